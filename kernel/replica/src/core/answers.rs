//! Messages that a client gets in the kernel's stead, as ipykernel would write them.

use super::cells::{Cell, Request, no_header};
use super::{Core, Output, wording};
use bytes::Bytes;
use hop_protocol::jupyter::{Channel, Envelope, Header, date};
use hop_protocol::link::Item;
use hop_protocol::message::Note;
use hop_words::id::CellId;
use hop_zmtp::Message;
use serde_json::{Value, json};

/// In `metadata.gresshopper`, marks a reply written by the supervisor before the kernel had made its own. Clients see
/// the mark only if the kernel's own reply was lost.
const AHEAD: &str = "written_ahead";

/// Why a cell is answered without having been run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// A cell before it failed (`stop_on_error`).
    Aborted,
    /// The user interrupted the cell while it waited for this.
    Interrupted(&'static str),
    /// Its need can't be read.
    Usage(String),
    /// The scheduler will not grant its need.
    Refused(String),
}

impl Core {
    /// The last execution count that clients have read, by the front's word. A replica that takes a kernel over answers
    /// lost cells before the variables, and with them the count, are back.
    pub fn clients_have_read(&mut self, count: Option<i64>) {
        if let (0, Some(count)) = (self.cells.count, count) {
            self.cells.count = count;
        }
    }

    pub(super) fn send_front(&mut self, channel: Channel, identity: Bytes, message: Message) {
        self.out.push(Output::ToFront(Item::Jupyter {
            channel,
            identity,
            message,
        }));
    }

    pub(super) fn note(&mut self, note: Note) {
        self.out.push(Output::ToFront(Item::Note(note)));
    }

    pub(super) fn publish(&mut self, message: Message) {
        let hides = self.hides_a_wait(&message);
        self.send_front(Channel::Iopub, Bytes::new(), message);
        if hides {
            self.tell_wait();
            self.tell_attempt_wait_again();
        }
    }

    /// Whether the message makes a waiting kernel look idle: for instance at the end of another request, such as a
    /// completion. Clients show the newest state, whatever its request.
    fn hides_a_wait(&self, message: &Message) -> bool {
        let told = self.lease.wait().is_some_and(|wait| wait.told);
        let seeker = self.lease.seeker().filter(|_| told).map(|s| &s.header);
        let Some(waiting) = seeker.or_else(|| self.told_attempt_wait()) else {
            return false;
        };
        let Ok(envelope) = Envelope::parse(message) else {
            return false;
        };
        let is_status = envelope.header().is_ok_and(|h| h.msg_type == "status");
        let content = || serde_json::from_slice::<Value>(&envelope.content).unwrap_or_default();
        let waits = serde_json::from_slice::<Header>(waiting).ok();
        is_status
            && content()["execution_state"] == "idle"
            && envelope.parent().map(|p| p.msg_id) != waits.map(|h| h.msg_id)
    }

    /// Tells clients of a cell's lease or wait: a `status` message (docs/wiring.md).
    pub(super) fn publish_state(&mut self, header: &Bytes, state: &Value) {
        let metadata = json!({"gresshopper": state});
        let content = json!({"execution_state": "busy"});
        let message = self
            .author
            .publish("status", header, &metadata, &content, self.now);
        self.publish(message);
    }

    pub(super) fn stderr(&mut self, header: &Bytes, text: &str) {
        let message = self.author.stderr(header, text, self.now);
        self.publish(message);
    }

    pub(super) fn say(&mut self, header: &Bytes, msg_type: &str, content: &Value) {
        let message = self
            .author
            .publish(msg_type, header, &json!({}), content, self.now);
        self.publish(message);
    }

    fn status(&mut self, header: &Bytes, state: &str) {
        self.say(header, "status", &json!({"execution_state": state}));
    }

    /// Answers an interrupt that the kernel never sees.
    pub(super) fn answer_interrupt(&mut self, channel: Channel, identity: Bytes, header: &Bytes) {
        self.status(header, "busy");
        let content = json!({"status": "ok"});
        let reply = self
            .author
            .write("interrupt_reply", header, &json!({}), &content, self.now);
        self.send_front(channel, identity, reply.message());
        self.status(header, "idle");
    }

    /// Answers a cell withheld from the kernel, and the cells behind, aborted by the failure.
    pub(super) fn fail(&mut self, cell: &CellId, verdict: Verdict) {
        let Some((cell, request)) = self.cells.take_unsent(cell) else {
            return;
        };
        let stop = cell.stops_on_error();
        self.settle(&cell, &request, verdict);
        if stop {
            self.abort_held();
        }
    }

    pub(super) fn abort_held(&mut self) {
        for (cell, request) in self.cells.take_held() {
            self.settle(&cell, &request, Verdict::Aborted);
        }
    }

    fn settle(&mut self, cell: &Cell, request: &Request, verdict: Verdict) {
        let header = cell.header.clone();
        self.hide_text(&cell.id);
        self.status(&header, "busy");
        let count = self.cells.shown_count();
        if verdict != Verdict::Aborted {
            let input = json!({"code": request.code(), "execution_count": count});
            self.say(&header, "execute_input", &input);
        }
        let content = match verdict {
            Verdict::Aborted => json!({"status": "aborted"}),
            Verdict::Interrupted(what) => {
                let text = format!("the cell was interrupted while it waited for {what}");
                self.failure(&header, "KeyboardInterrupt", &text)
            }
            Verdict::Refused(reason) => self.failure(&header, "LeaseRefused", &reason),
            Verdict::Usage(problem) => {
                self.stderr(&header, &format!("UsageError: {problem}\n"));
                error_content("UsageError", &problem, count)
            }
        };
        let message = self.write_reply(&header, &content);
        self.answer_unlogged(&cell.id, cell.identity.clone(), message);
        self.status(&header, "idle");
    }

    /// A cell was lost in its middle: the answer is an error, and the log notes the loss.
    pub(super) fn lose(&mut self, cell: Cell, why: String) {
        let count = self.cells.count_of_lost(&cell);
        let content = self.failure_at(&cell.header, "CellLost", &why, count);
        let message = self.write_reply(&cell.header, &content);
        let (id, header, identity) = (cell.id.clone(), cell.header.clone(), cell.identity.clone());
        self.answer_lost(&id, identity, message, why);
        self.status(&header, "idle");
    }

    /// A request possibly begun by an earlier executor: an error, noted in the log as a loss.
    pub(super) fn lose_request(&mut self, cell: CellId, identity: Bytes, header: Bytes, why: String) {
        self.status(&header, "busy");
        let content = self.failure(&header, "CellLost", &why);
        let message = self.write_reply(&header, &content);
        self.answer_lost(&cell, identity, message, why);
        self.status(&header, "idle");
    }

    /// Says once more that a cell was lost.
    pub(super) fn say_lost(&mut self, identity: Bytes, header: Bytes, why: &str) {
        let content = self.failure(&header, "CellLost", why);
        let message = self.write_reply(&header, &content);
        self.send_front(Channel::Shell, identity, message);
        self.status(&header, "idle");
    }

    /// Answers a request behind a cell lost with its executor.
    pub(super) fn abort_request(&mut self, cell: &CellId, identity: Bytes, header: &Bytes) {
        self.status(header, "busy");
        let message = self.write_reply(header, &json!({"status": "aborted"}));
        self.answer_unlogged(cell, identity, message);
        self.status(header, "idle");
    }

    /// A cell that the dead process had, but can't have begun.
    pub(super) fn abort_sent(&mut self, cell: Cell) {
        let message = self.write_reply(&cell.header, &json!({"status": "aborted"}));
        self.answer_unlogged(&cell.id, cell.identity.clone(), message);
        self.status(&cell.header, "idle");
    }

    /// A request that the kernel won't answer, or whose reply is lost: an error, in a reply of this type.
    pub(super) fn fail_request(
        &mut self,
        (channel, identity): (Channel, Bytes),
        msg_type: &str,
        header: &Bytes,
        why: &str,
    ) {
        let content = error_content("RequestFailed", why, self.cells.shown_count());
        if msg_type == "execute_reply" {
            self.failure(header, "RequestFailed", why);
        }
        let reply = self
            .author
            .write(msg_type, header, &json!({}), &content, self.now);
        match channel {
            Channel::Shell => self.reply(identity, reply.message()),
            _ => self.send_front(channel, identity, reply.message()),
        }
    }

    /// Clients see the kernel starting again, as when Jupyter restarts one.
    pub(super) fn say_restarting(&mut self) {
        self.status(&no_header(), "restarting");
    }

    pub(super) fn tell_retry(&mut self, cell: &CellId, reason: &str) {
        let header = self.cells.header(cell);
        self.stderr(&header, &wording::runs_again(reason));
    }

    /// The reply to a successful cell without results to show, before the kernel has made the reply.
    pub(super) fn write_ahead(&mut self, header: &Bytes, count: i64) -> Message {
        let content =
            json!({"status": "ok", "execution_count": count, "user_expressions": {}, "payload": []});
        self.write_reply_with(header, &content, &json!({ AHEAD: true }))
    }

    /// The kernel was lost between a cell's end and its reply.
    pub(super) fn tell_may_be_missing(&mut self, header: &Bytes) {
        self.stderr(header, wording::LAST_OUTPUTS_MAY_BE_MISSING);
    }

    /// Shows the error of a reply from the log: the kernel's own word of it may be lost with the last outputs.
    pub(super) fn show_error(&mut self, header: &Bytes, reply: &Message) {
        let content = Envelope::parse(reply).map(|e| e.content).unwrap_or_default();
        let content = serde_json::from_slice::<Value>(&content).unwrap_or_default();
        if content["status"] == "error" {
            let (ename, evalue, traceback) = (&content["ename"], &content["evalue"], &content["traceback"]);
            let shown = json!({"ename": ename, "evalue": evalue, "traceback": traceback});
            self.say(header, "error", &shown);
        }
    }

    /// Ends a cell for clients: nothing more of the cell comes. An earlier executor may have sent the end already,
    /// and the link may have lost the message.
    pub(super) fn idle(&mut self, header: &Bytes) {
        self.status(header, "idle");
    }

    fn write_reply(&mut self, header: &Bytes, content: &Value) -> Message {
        self.write_reply_with(header, content, &Value::Null)
    }

    /// `ours` is the reply's `metadata.gresshopper`, if not null.
    pub(super) fn write_reply_with(&mut self, header: &Bytes, content: &Value, ours: &Value) -> Message {
        let mut metadata = json!({
            "started": date(self.now), "dependencies_met": true, "engine": "", "status": content["status"],
        });
        if !ours.is_null() {
            metadata["gresshopper"] = ours.clone();
        }
        let reply = self
            .author
            .write("execute_reply", header, &metadata, content, self.now);
        reply.message()
    }

    /// Shows an error at the cell, and returns the content of its reply.
    fn failure(&mut self, header: &Bytes, name: &str, value: &str) -> Value {
        self.failure_at(header, name, value, self.cells.shown_count())
    }

    pub(super) fn failure_at(&mut self, header: &Bytes, name: &str, value: &str, count: i64) -> Value {
        let content = error_content(name, value, count);
        let shown = json!({"ename": name, "evalue": value, "traceback": content["traceback"]});
        self.say(header, "error", &shown);
        content
    }
}

/// Whether a reply from the log was written before the kernel had made its own.
pub(super) fn is_ahead(reply: &Message) -> bool {
    let metadata = Envelope::parse(reply).map(|e| e.metadata);
    let metadata = metadata
        .ok()
        .and_then(|m| serde_json::from_slice::<Value>(&m).ok());
    metadata.is_some_and(|m| m["gresshopper"][AHEAD] == json!(true))
}

/// The execution count that a reply tells.
pub(super) fn count(reply: &Message) -> Option<i64> {
    let content = Envelope::parse(reply).ok()?.content;
    serde_json::from_slice::<Value>(&content).ok()?["execution_count"].as_i64()
}

pub(super) fn error_content(name: &str, value: &str, count: i64) -> Value {
    json!({
        "status": "error", "ename": name, "evalue": value, "traceback": [format!("{name}: {value}")],
        "execution_count": count, "user_expressions": {}, "payload": [],
    })
}
