//! The replica's end of the numbered stream of frames to its front: the frames kept for the next connection, in bounds,
//! and the number of frames taken. A broken connection or a killed front loses nothing and repeats nothing.

use crate::core::Input;
use hop_protocol::jupyter::{Channel, Envelope};
use hop_protocol::link::{Frame, Item};
use hop_protocol::meanwhile::Meanwhile;
use hop_protocol::message::{Hello, Note};
use hop_protocol::retain::{Retained, Taken, ranges};
use tokio::sync::mpsc;

/// Bytes that are kept for the front. They count against the seat's memory.
const KEEP: usize = 64 << 20;

/// The stream, over all of its connections.
#[derive(Debug)]
pub(crate) struct FrontLink {
    kept: Retained<Item>,
    taken: Taken,
    epoch: u64,
    out: Option<mpsc::UnboundedSender<Frame>>,
    acks: Vec<u64>,
    /// Messages and bytes dropped since the front was last told.
    lost: (u64, u64),
}

impl FrontLink {
    pub(crate) fn new() -> Self {
        Self {
            kept: Retained::new(KEEP),
            taken: Taken::default(),
            epoch: 0,
            out: None,
            acks: Vec::new(),
            lost: (0, 0),
        }
    }

    /// The epoch of the last front, and the last frame taken of it.
    pub(crate) fn position(&self) -> (u64, u64) {
        (self.epoch, self.taken.upto())
    }

    /// The hello for the next connection.
    pub(crate) fn introduces(&self, mut hello: Hello) -> Hello {
        (hello.front_epoch, hello.taken) = self.position();
        let replies = self.kept.items().filter_map(|item| match item {
            Item::Jupyter {
                channel: Channel::Shell,
                message,
                ..
            } => Envelope::parse(message).ok()?.parent(),
            _ => None,
        });
        let cells = replies.filter(|p| p.msg_type == "execute_request");
        hello
            .answered
            .get_or_insert_default()
            .extend(cells.map(|p| p.msg_id.into()));
        hello
    }

    /// A connection stands. The front has `taken` frames of this stream, and wants the frames in `again` once more.
    pub(crate) fn up(&mut self, epoch: u64, taken: u64, again: &[u64], out: mpsc::UnboundedSender<Frame>) {
        if epoch != self.epoch {
            // A new front wants again the old front's frames in work.
            self.taken = Taken::default();
            self.kept.settle(taken, again);
            self.epoch = epoch;
        }
        for (seq, item) in self.kept.lacking(taken, again) {
            // The link may have broken again; then the next one begins here.
            let _ = out.send(Frame::Item(seq, item));
        }
        self.out = Some(out);
        let (messages, bytes) = std::mem::take(&mut self.lost);
        if messages > 0 {
            self.send(Item::Note(Note::Dropped { messages, bytes }));
        }
    }

    pub(crate) fn down(&mut self) {
        self.out = None;
    }

    pub(crate) fn send(&mut self, item: Item) {
        let seq = self.kept.push(item.clone());
        match &self.out {
            Some(out) => {
                // A link broken just now: the item is kept for the next link.
                let _ = out.send(Frame::Item(seq, item));
                self.kept.enforce();
            }
            None => {
                let dropped = self.kept.enforce();
                self.lost.0 += dropped.messages;
                self.lost.1 += dropped.bytes;
            }
        }
    }

    /// Takes a frame in. Returns its item where that is new.
    pub(crate) fn take(&mut self, frame: Frame) -> Option<Item> {
        match frame {
            Frame::Item(seq, item) if self.taken.take(seq) => {
                self.acks.push(seq);
                Some(item)
            }
            Frame::Done(done) => {
                done.into_iter().for_each(|range| self.kept.done(range));
                None
            }
            _ => None,
        }
    }

    /// Acknowledges the frames taken since the last call.
    pub(crate) fn acknowledge(&mut self) {
        if !self.acks.is_empty()
            && let Some(out) = &self.out
        {
            // On a new link the hello lists the frames taken.
            let _ = out.send(Frame::Done(ranges(std::mem::take(&mut self.acks))));
        }
    }

    /// The cells' outputs that no front has taken, for the notebook's next opening.
    pub(crate) fn meanwhile(&self) -> Meanwhile {
        let mut meanwhile = Meanwhile::lacking(self.lost.0);
        for item in self.kept.items() {
            if let Item::Jupyter { message, .. } = item {
                meanwhile.keep(message);
            }
        }
        meanwhile
    }

    /// Whether the front has dealt with all sent frames.
    pub(crate) fn is_settled(&self) -> bool {
        self.kept.is_empty()
    }
}

/// A note of the front, as an input of the core. `None` means a note for another part.
pub(crate) fn input_of(note: Note) -> Option<Input> {
    Some(match note {
        Note::Interrupt => Input::Interrupt,
        Note::End => Input::End,
        Note::Sleep { reason } => Input::Orphaned { reason },
        Note::HandedBefore { cell, tenure, behind } => Input::HandedBefore { cell, tenure, behind },
        Note::MayBegin { cell } => Input::MayBegin { cell },
        Note::Grown {
            incarnation,
            seat,
            node,
        } => Input::Grown {
            incarnation,
            seat,
            node,
        },
        Note::Heard { cells, losses } => Input::Heard { cells, losses },
        Note::MoveReady { incarnation } => Input::MoveReady { incarnation },
        Note::MoveFailed { incarnation, reason } => Input::MoveFailed { incarnation, reason },
        _ => return None,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use bytes::Bytes;
    use hop_protocol::jupyter::Author;
    use hop_words::time::Timestamp;
    use serde_json::{Value, json};

    /// A replica's hello.
    pub(crate) fn hello() -> Hello {
        let hello = json!({
            "version": 1, "kernel": "k", "incarnation": 1, "tenure": 1, "node": "n", "pid": 1, "seat": 1, "step": 0,
            "front_epoch": 0, "taken": 0, "in_flight": [],
        });
        serde_json::from_value(hello).unwrap()
    }

    /// A stream of this text, by a cell.
    fn shown(author: &mut Author, text: &str) -> Item {
        let now = Timestamp(0);
        let request = author.write(
            "execute_request",
            &Bytes::from_static(b"{}"),
            &json!({}),
            &json!({}),
            now,
        );
        let content = json!({"name": "stdout", "text": text});
        Item::Jupyter {
            channel: Channel::Iopub,
            identity: Bytes::new(),
            message: author.publish("stream", &request.header, &json!({}), &content, now),
        }
    }

    #[test]
    fn what_no_front_has_taken_is_kept_for_the_next_opening() {
        let mut author = Author::new(b"key", "kernel".into());
        let mut link = FrontLink::new();
        let (out, _front) = mpsc::unbounded_channel();
        link.up(1, 0, &[], out);
        link.send(shown(&mut author, "heard"));
        link.take(Frame::Done(vec![1..=1]));
        link.down();
        link.send(shown(&mut author, "unheard"));
        link.send(Item::Note(Note::End));
        let texts: Vec<Value> = link
            .meanwhile()
            .outputs
            .into_iter()
            .map(|o| o.content["text"].clone())
            .collect();
        assert_eq!(texts, ["unheard"]);
        assert!(!link.is_settled());
    }

    #[test]
    fn a_reply_that_the_front_may_lack_is_named() {
        let mut author = Author::new(b"key", "kernel".into());
        let mut link = FrontLink::new();
        let none = Bytes::from_static(b"{}");
        let mut reply = |to: &str| {
            let asked = author.write(
                &format!("{to}_request"),
                &none,
                &json!({}),
                &json!({}),
                Timestamp(0),
            );
            let reply = author.write(
                &format!("{to}_reply"),
                &asked.header,
                &json!({}),
                &json!({}),
                Timestamp(0),
            );
            link.send(Item::Jupyter {
                channel: Channel::Shell,
                identity: Bytes::new(),
                message: reply.message(),
            });
            asked.header().unwrap().msg_id
        };
        let (first, second) = (reply("execute"), reply("execute"));
        reply("inspect");
        let named = || Hello {
            answered: Some(vec!["waits".into()]),
            ..hello()
        };
        let ids = |link: &FrontLink| link.introduces(named()).answered.unwrap();
        assert_eq!(
            ids(&link),
            ["waits".into(), first.as_str().into(), second.as_str().into()]
        );
        link.take(Frame::Done(vec![1..=1]));
        assert_eq!(ids(&link), ["waits".into(), second.as_str().into()]);
    }
}
