//! Jupyter's envelope: `identities, <IDS|MSG>, signature, header, parent header, metadata, content, buffers`.
//!
//! Messages are never parsed into types and written again: unknown parts would be dropped. The four JSON parts are
//! passed on as the bytes they are; the header alone is looked into, to route.

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use hop_words::time::Timestamp;
use hop_zmtp::Message;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::Sha256;
use std::borrow::Cow;

const DELIMITER: &[u8] = b"<IDS|MSG>";

/// The kernel's sockets for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Channel {
    Shell,
    Control,
    Stdin,
    Iopub,
}

impl Channel {
    pub const ALL: [Self; 4] = [Self::Shell, Self::Control, Self::Stdin, Self::Iopub];

    /// Its number on the wire between front and replica.
    pub fn code(self) -> u8 {
        self as u8
    }

    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// Why a message is not valid in Jupyter's protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    #[error("there is no <IDS|MSG> delimiter")]
    NoDelimiter,
    #[error("the message has fewer than four parts")]
    Parts,
    #[error("the signature is wrong")]
    Signature,
    #[error("the header is not a message header")]
    Header,
}

/// Fields of a header that the front and the replica read.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Header {
    pub msg_id: String,
    pub msg_type: String,
    #[serde(default)]
    pub session: String,
    #[serde(default)]
    pub subshell_id: Option<String>,
}

/// Whether a request that was lost with its process or replica can be sent to the kernel's next process. A question
/// has no effect. The effect of a request on control was the lost process's own (a debugger's session, a subshell).
pub fn can_be_asked_again(channel: Channel, msg_type: &str) -> bool {
    match channel {
        Channel::Control => {
            msg_type.ends_with("_request")
                && !matches!(
                    msg_type,
                    "execute_request" | "interrupt_request" | "shutdown_request"
                )
        }
        Channel::Shell => matches!(
            msg_type,
            "kernel_info_request"
                | "complete_request"
                | "inspect_request"
                | "history_request"
                | "is_complete_request"
                | "comm_info_request"
        ),
        Channel::Stdin | Channel::Iopub => false,
    }
}

/// The content of an execute request, as far as it is read here.
#[derive(Debug, Deserialize)]
pub struct Execute<'a> {
    #[serde(borrow, default)]
    pub code: Cow<'a, str>,
    #[serde(default)]
    pub silent: bool,
    #[serde(default)]
    store_history: Value,
    #[serde(default = "yes")]
    pub stop_on_error: bool,
}

fn yes() -> bool {
    true
}

impl Execute<'_> {
    /// Whether the request is a client's own, of which its user sees nothing: it is silent, or leaves no trace in the
    /// history.
    pub fn is_hidden(&self) -> bool {
        self.silent || self.store_history == false
    }
}

/// A message cut at its delimiter. Cloning it copies no payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// Routing identities on shell, the topic on iopub.
    pub identities: Vec<Bytes>,
    pub signature: Bytes,
    pub header: Bytes,
    pub parent: Bytes,
    pub metadata: Bytes,
    pub content: Bytes,
    pub buffers: Vec<Bytes>,
}

impl Envelope {
    /// Cuts a message. Says nothing of its signature: see [`Signer::verify`].
    pub fn parse(message: &Message) -> Result<Self, EnvelopeError> {
        let frames = &message.0;
        let at = frames
            .iter()
            .position(|f| &f[..] == DELIMITER)
            .ok_or(EnvelopeError::NoDelimiter)?;
        let [signature, header, parent, metadata, content, buffers @ ..] = &frames[at + 1..] else {
            return Err(EnvelopeError::Parts);
        };
        Ok(Self {
            identities: frames[..at].to_vec(),
            signature: signature.clone(),
            header: header.clone(),
            parent: parent.clone(),
            metadata: metadata.clone(),
            content: content.clone(),
            buffers: buffers.to_vec(),
        })
    }

    pub fn message(self) -> Message {
        let mut frames = self.identities;
        frames.push(Bytes::from_static(DELIMITER));
        frames.extend([
            self.signature,
            self.header,
            self.parent,
            self.metadata,
            self.content,
        ]);
        frames.extend(self.buffers);
        Message(frames)
    }

    /// The header's fields, as far as they are read here.
    pub fn header(&self) -> Result<Header, EnvelopeError> {
        serde_json::from_slice(&self.header).map_err(|_| EnvelopeError::Header)
    }

    /// When it was made, by its sender's clock; none: the header doesn't say, or not as Jupyter does.
    pub fn date(&self) -> Option<jiff::Timestamp> {
        #[derive(Deserialize)]
        struct Dated<'a> {
            #[serde(borrow)]
            date: Cow<'a, str>,
        }
        let dated: Dated<'_> = serde_json::from_slice(&self.header).ok()?;
        dated.date.parse().ok()
    }

    /// The content of an execute request; `None` where the kernel itself refuses the request.
    pub fn execute(&self) -> Option<Execute<'_>> {
        serde_json::from_slice(&self.content).ok()
    }

    /// `msg_id` and type of the request behind this message, if any.
    pub fn parent(&self) -> Option<Header> {
        serde_json::from_slice(&self.parent).ok()
    }
}

/// A kernel's key.
#[derive(Clone)]
pub struct Signer(Hmac<Sha256>);

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signer(..)")
    }
}

impl Signer {
    pub fn new(key: &[u8]) -> Self {
        Self(Hmac::new_from_slice(key).expect("HMAC takes keys of any length"))
    }

    fn mac(&self, e: &Envelope) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        for part in [&e.header, &e.parent, &e.metadata, &e.content] {
            mac.update(part);
        }
        mac
    }

    /// Checks that the holder of the key wrote this message.
    pub fn verify(&self, e: &Envelope) -> Result<(), EnvelopeError> {
        let given = hex::decode(&e.signature).map_err(|_| EnvelopeError::Signature)?;
        self.mac(e)
            .verify_slice(&given)
            .map_err(|_| EnvelopeError::Signature)
    }

    /// A number for a text, never 0. Nobody without the key can tell which text has it.
    pub fn print(&self, text: &[u8]) -> u64 {
        let mac = self.0.clone().chain_update(text).finalize().into_bytes();
        let (head, _) = mac.split_first_chunk().expect("a MAC of SHA-256 has 32 bytes");
        u64::from_le_bytes(*head).max(1)
    }

    /// Signs parts 0 to 3; buffers are not signed.
    pub fn sign(&self, e: &mut Envelope) {
        e.signature = hex::encode(self.mac(e).finalize().into_bytes()).into();
    }
}

/// Makes messages of our own. Each has a unique id, so no two have the same signature, which clients refuse as a
/// replay. Pure: the caller passes the session and the time.
#[derive(Debug, Clone)]
pub struct Author {
    signer: Signer,
    session: String,
    written: u64,
}

impl Author {
    /// `session` must be unique: it begins each message's id.
    pub fn new(key: &[u8], session: String) -> Self {
        Self {
            signer: Signer::new(key),
            session,
            written: 0,
        }
    }

    /// The session in the headers of the author's messages.
    pub fn session(&self) -> &str {
        &self.session
    }

    pub fn signer(&self) -> &Signer {
        &self.signer
    }

    /// A message that answers (or belongs to) the request with the header `parent`, `{}` for none.
    pub fn write(
        &mut self,
        msg_type: &str,
        parent: &Bytes,
        metadata: &Value,
        content: &Value,
        now: Timestamp,
    ) -> Envelope {
        let header = json!({
            "msg_id": self.next_id(),
            "msg_type": msg_type,
            "username": "gresshopper",
            "session": self.session,
            "date": date(now),
            "version": "5.3",
        });
        let mut envelope = Envelope {
            identities: Vec::new(),
            signature: Bytes::new(),
            header: header.to_string().into(),
            parent: parent.clone(),
            metadata: metadata.to_string().into(),
            content: content.to_string().into(),
            buffers: Vec::new(),
        };
        self.signer.sign(&mut envelope);
        envelope
    }

    fn next_id(&mut self) -> String {
        self.written += 1;
        format!("{}_{}", self.session, self.written)
    }

    /// The message under an id of its own: Jupyter's sessions raise on a signature that they have seen before, and pass
    /// over a second reply.
    ///
    /// # Errors
    /// The header is no JSON object.
    pub fn renew(&mut self, envelope: &mut Envelope) -> Result<(), EnvelopeError> {
        let header = serde_json::from_slice(&envelope.header);
        let mut header: serde_json::Map<String, Value> = header.map_err(|_| EnvelopeError::Header)?;
        header.insert("msg_id".to_owned(), Value::String(self.next_id()));
        envelope.header = Value::Object(header).to_string().into();
        self.signer.sign(envelope);
        Ok(())
    }

    /// A message for iopub, under ipykernel's kind of topic.
    pub fn publish(
        &mut self,
        msg_type: &str,
        parent: &Bytes,
        metadata: &Value,
        content: &Value,
        now: Timestamp,
    ) -> Message {
        let mut envelope = self.write(msg_type, parent, metadata, content, now);
        envelope.identities = vec![format!("kernel.gresshopper.{msg_type}").into()];
        envelope.message()
    }

    /// `status` on iopub.
    pub fn status(&mut self, parent: &Bytes, state: &str, metadata: &Value, now: Timestamp) -> Message {
        self.publish(
            "status",
            parent,
            metadata,
            &json!({"execution_state": state}),
            now,
        )
    }

    /// Text on a cell's stderr.
    pub fn stderr(&mut self, parent: &Bytes, text: &str, now: Timestamp) -> Message {
        let content = json!({"name": "stderr", "text": text});
        self.publish("stream", parent, &json!({}), &content, now)
    }
}

/// A time in Jupyter's form: Jupyter's parser takes at most six digits below the second. A time out of the calendar's
/// range reads as 1970.
pub fn date(at: Timestamp) -> String {
    let at = i64::try_from(at.0)
        .ok()
        .and_then(|micros| jiff::Timestamp::from_microsecond(micros).ok());
    at.unwrap_or_default()
        .strftime("%Y-%m-%dT%H:%M:%S%.6fZ")
        .to_string()
}

/// `part` (a JSON object) with `key` set to `value`; `part` as it is when it is no object.
pub fn with_key(part: &Bytes, key: &str, value: Value) -> Bytes {
    match serde_json::from_slice::<Value>(part) {
        Ok(Value::Object(mut map)) => {
            map.insert(key.to_owned(), value);
            Value::Object(map).to_string().into()
        }
        _ => part.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_verifies_and_a_changed_part_does_not() {
        let mut author = Author::new(b"key", "session".into());
        let parent = Bytes::from_static(b"{}");
        let mut e = author.write("status", &parent, &json!({}), &json!({"x": 1}), Timestamp(0));
        assert_eq!(author.signer().verify(&e), Ok(()));
        assert_eq!(Signer::new(b"other").verify(&e), Err(EnvelopeError::Signature));
        e.content = Bytes::from_static(b"{}");
        assert_eq!(author.signer().verify(&e), Err(EnvelopeError::Signature));
        e.signature = Bytes::from_static(b"zz");
        assert_eq!(author.signer().verify(&e), Err(EnvelopeError::Signature));
    }

    #[test]
    fn an_envelope_survives_cutting_and_joining_whatever_its_parts_hold() {
        let frames = [
            "a",
            "b",
            "<IDS|MSG>",
            "sig",
            "{\"msg_id\":\"1\",\"msg_type\":\"t\",\"new\":null}",
            "{}",
            "{}",
            "{}",
            "\0\u{1}",
            "",
        ];
        let message = Message(frames.iter().map(|f| Bytes::from_static(f.as_bytes())).collect());
        let e = Envelope::parse(&message).unwrap();
        assert_eq!(e.header().unwrap().msg_id, "1");
        assert_eq!(e.identities.len(), 2);
        assert_eq!(e.buffers.len(), 2);
        assert_eq!(e.message(), message);
        assert_eq!(
            Envelope::parse(&Message(message.0[..2].to_vec())),
            Err(EnvelopeError::NoDelimiter)
        );
        assert_eq!(
            Envelope::parse(&Message(message.0[..6].to_vec())),
            Err(EnvelopeError::Parts)
        );
    }

    #[test]
    fn no_two_messages_are_alike() {
        let mut author = Author::new(b"key", "session".into());
        let parent = Bytes::from_static(b"{}");
        let (a, b) = (
            author.status(&parent, "busy", &json!({}), Timestamp(0)),
            author.status(&parent, "busy", &json!({}), Timestamp(0)),
        );
        assert_ne!(a.0[2], b.0[2]);
    }
}
