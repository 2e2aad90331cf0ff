//! Execute requests on their way to the kernel and their replies on the way back.

use super::Replica;
use crate::need::{self, Unattended};
use crate::turn::{Answer, Output, Verdict};
use bytes::Bytes;
use hop_core::id::CellId;
use hop_core::time::Timestamp;
use hop_protocol::jupyter::{Channel, Envelope, Header, now, with_key};
use hop_protocol::link::Item;
use hop_protocol::message::InFlight;
use hop_zmtp::Message;
use serde::Deserialize;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::VecDeque;

/// An execute request that is held.
#[derive(Debug)]
pub(super) struct Request {
    identity: Bytes,
    message: Message,
    code: String,
}

/// Execute requests without a reply, the oldest first, and what their replies will say.
#[derive(Debug, Default)]
pub(super) struct Cells {
    open: Vec<Open>,
    /// The kernel's last execution count.
    count: i64,
}

#[derive(Debug)]
struct Open {
    cell: CellId,
    identity: Bytes,
    header: Bytes,
    /// `metadata.gresshopper` of the reply.
    metadata: Option<Value>,
    run: Unattended,
}

impl Cells {
    pub(super) fn in_flight(&self) -> Vec<InFlight> {
        let in_flight = |o: &Open| InFlight {
            identity: hex::encode(&o.identity),
            header: String::from_utf8_lossy(&o.header).into_owned(),
        };
        self.open.iter().map(in_flight).collect()
    }

    /// The header of a cell's request.
    pub(super) fn header(&self, cell: &CellId) -> Option<Bytes> {
        self.open
            .iter()
            .find(|o| o.cell == *cell)
            .map(|o| o.header.clone())
    }

    /// What `hop run` said of a cell.
    pub(super) fn run(&self, cell: &CellId) -> Unattended {
        let open = self.open.iter().find(|o| o.cell == *cell);
        open.map(|o| o.run.clone()).unwrap_or_default()
    }

    /// Notes what the cell's reply will say of its lease.
    pub(super) fn set_metadata(&mut self, cell: &CellId, key: Option<&str>, value: Value) {
        if let Some(open) = self.open.iter_mut().find(|o| o.cell == *cell) {
            match (key, &mut open.metadata) {
                (Some(key), Some(Value::Object(map))) => drop(map.insert(key.to_owned(), value)),
                (Some(key), other) => *other = Some(json!({key: value})),
                (None, other) => *other = Some(value),
            }
        }
    }

    fn close(&mut self, cell: &CellId) -> Option<Open> {
        let at = self.open.iter().position(|o| o.cell == *cell)?;
        Some(self.open.remove(at))
    }
}

#[derive(Deserialize)]
struct ExecuteContent<'a> {
    #[serde(borrow, default)]
    code: Cow<'a, str>,
    #[serde(default)]
    silent: bool,
    #[serde(default = "yes")]
    stop_on_error: bool,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
struct ReplyContent<'a> {
    #[serde(borrow, default)]
    status: Cow<'a, str>,
    execution_count: Option<i64>,
}

/// Now, as `hopd` counts time.
pub(super) fn timestamp() -> Timestamp {
    Timestamp(u64::try_from(jiff::Timestamp::now().as_microsecond()).unwrap_or(0))
}

impl Replica {
    pub(super) async fn execute_request(
        &mut self,
        identity: Bytes,
        message: Message,
        envelope: &Envelope,
        header: &Header,
    ) {
        let cell: CellId = header.msg_id.as_str().into();
        let run = Unattended::of_request(&envelope.metadata);
        self.cells.open.push(Open {
            cell: cell.clone(),
            identity: identity.clone(),
            header: envelope.header.clone(),
            metadata: None,
            run: run.clone().unwrap_or_default(),
        });
        // What can't be read is the kernel's to refuse; and a subshell's cells don't stand in this queue.
        let content = serde_json::from_slice::<ExecuteContent<'_>>(&envelope.content);
        let (Ok(content), None) = (content, &header.subshell_id) else {
            self.send_kernel(Channel::Shell, &identity, &message).await;
            return;
        };
        let default = &self.file.launch.default_need;
        let need = need::of_cell(
            &content.code,
            &envelope.metadata,
            content.silent,
            default,
            timestamp(),
        );
        let need = run.and_then(|run| need.map(|need| run.apply(need)));
        let plain = need.as_ref().is_ok_and(hop_core::need::Need::is_none);
        let request = Request {
            identity,
            message,
            code: if plain {
                String::new()
            } else {
                content.code.into_owned()
            },
        };
        let out = self.turn.arrive(
            cell,
            need.map_err(|e| e.to_string()),
            content.stop_on_error,
            request,
        );
        self.carry_out(out).await;
    }

    /// A reply on shell. Only those to cells are looked into, and only those of cells with a lease are changed.
    pub(super) async fn reply(&mut self, identity: Bytes, message: Message) {
        let envelope = Envelope::parse(&message).ok();
        let is_cell = |e: &Envelope| e.header().is_ok_and(|h| h.msg_type == "execute_reply");
        let Some(mut envelope) = envelope.filter(is_cell) else {
            return self.reply_as_it_is(identity, message);
        };
        let Some(parent) = envelope.parent() else {
            return self.reply_as_it_is(identity, message);
        };
        let cell: CellId = parent.msg_id.as_str().into();
        let metadata = self.cells.close(&cell).and_then(|open| open.metadata);
        let content = serde_json::from_slice::<ReplyContent<'_>>(&envelope.content).ok();
        let answer = match content.as_ref().map(|c| &*c.status) {
            Some("ok") => Answer::Ok,
            Some("aborted" | "abort") => Answer::Aborted,
            _ => Answer::Error,
        };
        self.cells.count = content
            .and_then(|c| c.execution_count)
            .unwrap_or(self.cells.count);
        let message = match metadata {
            Some(value) => {
                envelope.metadata = with_key(&envelope.metadata, "gresshopper", value);
                self.author.signer().sign(&mut envelope);
                envelope.message()
            }
            None => message,
        };
        self.reply_as_it_is(identity, message);
        let out = self.turn.replied(&cell, answer);
        self.cell_is_over(&cell);
        self.carry_out(out).await;
        self.park_after(&cell).await;
    }

    fn reply_as_it_is(&mut self, identity: Bytes, message: Message) {
        self.send_front(Item::Jupyter {
            channel: Channel::Shell,
            identity,
            message,
        });
    }

    /// Does what the queue decided.
    pub(super) async fn carry_out(&mut self, out: Vec<Output<Request>>) {
        let mut out = VecDeque::from(out);
        while let Some(output) = out.pop_front() {
            match output {
                Output::Forward(cell, request) => {
                    let message = self.with_lease(&cell, request.message);
                    self.send_kernel(Channel::Shell, &request.identity, &message)
                        .await;
                }
                Output::Submit(cell, need) => match self.in_the_way() {
                    Some(reason) => out.extend(self.turn.refused(&cell, reason)),
                    None => self.submit(cell, need),
                },
                Output::Withdraw(cell) => self.withdraw(&cell),
                Output::Ended {
                    cell,
                    lease,
                    started,
                    answer,
                } => self.cell_ended(cell, lease, started, answer),
                Output::Settle(cell, request, verdict) => self.settle(&cell, &request, verdict),
            }
        }
    }

    /// Interrupts the cell that waits for a lease, if one does. The kernel runs no cell then and must not hear of it: its
    /// signal would strike the cell that the user runs next, as our answer to this one is there sooner.
    pub(super) async fn interrupt_waiting(&mut self) -> bool {
        let out = self.turn.interrupted();
        let waited = !out.is_empty();
        self.carry_out(out).await;
        waited
    }

    /// Answers an interrupt that the kernel doesn't hear of.
    pub(super) fn answer_interrupt(&mut self, channel: Channel, identity: Bytes, request: Bytes) {
        self.publish(self.author.status(&request, "busy", &json!({})));
        let content = json!({"status": "ok"});
        let reply = self
            .author
            .write("interrupt_reply", &request, &json!({}), &content);
        self.send_front(Item::Jupyter {
            channel,
            identity,
            message: reply.message(),
        });
        self.publish(self.author.status(&request, "idle", &json!({})));
    }

    /// The request of a cell with a lease says so to the agent in the kernel.
    fn with_lease(&self, cell: &CellId, message: Message) -> Message {
        let Some(lease) = self.lease_of(cell) else {
            return message;
        };
        let Ok(mut envelope) = Envelope::parse(&message) else {
            return message;
        };
        let metadata = serde_json::from_slice::<Value>(&envelope.metadata).unwrap_or_default();
        let mut ours = metadata["gresshopper"].as_object().cloned().unwrap_or_default();
        ours.insert("lease".to_owned(), lease.clone());
        envelope.metadata = with_key(&envelope.metadata, "gresshopper", ours.into());
        self.author.signer().sign(&mut envelope);
        envelope.message()
    }

    /// Answers a request that the kernel never sees, with the messages that it would have sent.
    fn settle(&mut self, cell: &CellId, request: &Request, verdict: Verdict) {
        let header = self
            .cells
            .close(cell)
            .map_or_else(|| Bytes::from_static(b"{}"), |open| open.header);
        self.publish(self.author.status(&header, "busy", &json!({})));
        let count = self.cells.count;
        if verdict != Verdict::Aborted {
            let input = json!({"code": request.code, "execution_count": count});
            self.publish(self.author.publish("execute_input", &header, &json!({}), &input));
        }
        let failed = |name: &str, value: &str| {
            json!({"status": "error", "ename": name, "evalue": value,
            "traceback": [format!("{name}: {value}")], "execution_count": count, "user_expressions": {}, "payload": []})
        };
        let (content, error) = match verdict {
            Verdict::Aborted => (json!({"status": "aborted"}), false),
            Verdict::Interrupted => (
                failed(
                    "KeyboardInterrupt",
                    "the cell was interrupted while it waited for its lease",
                ),
                true,
            ),
            Verdict::Refused(reason) => (failed("LeaseRefused", &reason), true),
            Verdict::Usage(problem) => {
                let text = json!({"name": "stderr", "text": format!("UsageError: {problem}\n")});
                self.publish(self.author.publish("stream", &header, &json!({}), &text));
                (failed("UsageError", &problem), false)
            }
        };
        if error {
            let shown = json!({"ename": content["ename"], "evalue": content["evalue"], "traceback": content["traceback"]});
            self.publish(self.author.publish("error", &header, &json!({}), &shown));
        }
        let metadata =
            json!({"started": now(), "dependencies_met": true, "engine": "", "status": content["status"]});
        let reply = self
            .author
            .write("execute_reply", &header, &metadata, &content)
            .message();
        self.reply_as_it_is(request.identity.clone(), reply);
        self.publish(self.author.status(&header, "idle", &json!({})));
    }
}
