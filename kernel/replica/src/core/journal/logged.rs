//! A cell's reply as the log has it. The client gets a reply of any size. In the log, where the reply serves the next
//! executor alone, a large reply is shortened: openraft gives a message of entries 250 ms, whatever its size.

use super::super::Core;
use super::pack;
use bytes::Bytes;
use hop_protocol::jupyter::Envelope;
use hop_zmtp::Message;
use serde_json::{Value, json};

/// The most bytes of a reply that goes into the log as it is.
const WHOLE: usize = 1 << 20;

/// The lines that a shortened error keeps of its traceback; below, the characters of each line and of the error's text.
const LINES: usize = 100;
const CHARACTERS: usize = 2000;

impl Core {
    pub(in crate::core) fn logged(&mut self, reply: &Message) -> Bytes {
        if reply.size() <= WHOLE {
            return pack(reply);
        }
        match Envelope::parse(reply) {
            Ok(envelope) => pack(&self.shortened(&envelope)),
            Err(_) => pack(reply),
        }
    }

    fn shortened(&mut self, reply: &Envelope) -> Message {
        let read = |part: &Bytes| serde_json::from_slice::<Value>(part).unwrap_or_default();
        let (metadata, content) = (read(&reply.metadata), read(&reply.content));
        let mut kept = json!({
            "status": content["status"], "execution_count": content["execution_count"],
            "user_expressions": {}, "payload": [],
        });
        if let Some(name) = content["ename"].as_str() {
            let lines = content["traceback"].as_array().map_or(&[][..], Vec::as_slice);
            let last = lines[lines.len().saturating_sub(LINES)..].iter();
            let last = last.map(|line| cut(line.as_str().unwrap_or_default()));
            let left_out = "gresshopper: parts of this error were left out, since it is too large to be kept";
            kept["ename"] = cut(name).into();
            kept["evalue"] = cut(content["evalue"].as_str().unwrap_or_default()).into();
            kept["traceback"] = last.chain([left_out.to_owned()]).collect();
        }
        let metadata = json!({"gresshopper": metadata["gresshopper"]});
        let message = self
            .author
            .write("execute_reply", &reply.parent, &metadata, &kept, self.now);
        message.message()
    }
}

fn cut(text: &str) -> String {
    text.chars().take(CHARACTERS).collect()
}
