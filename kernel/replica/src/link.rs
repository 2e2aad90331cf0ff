//! The replica's end of the numbered stream of frames to its front: the frames kept for the next connection, in bounds,
//! and the number of frames taken. A broken connection or a killed front loses nothing and repeats nothing. Beyond the
//! bounds the oldest outputs are dropped, and the front is told how many it lacks.

use crate::core::Input;
use crate::dial::Outlet;
use hop_protocol::jupyter::{Channel, Envelope};
use hop_protocol::link::{Frame, Item};
use hop_protocol::meanwhile::Meanwhile;
use hop_protocol::message::{Hello, Note};
use hop_protocol::retain::{Retained, Taken, Weigh, ranges};
use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;

/// Bytes that are kept for the front. They count against the seat's memory.
const KEEP: usize = 64 << 20;

/// Bytes handed to a connection and not written yet. The kept items behind them wait, since nothing handed to a
/// connection can be dropped.
const UNWRITTEN: usize = 4 << 20;

/// The stream, over all of its connections.
#[derive(Debug)]
pub(crate) struct FrontLink {
    kept: Retained<Item>,
    taken: Taken,
    epoch: u64,
    out: Option<Connection>,
    /// The last item that was handed to the connection, or taken by the front before it.
    sent: u64,
    /// Earlier items that the front wants once more.
    again: BTreeSet<u64>,
    acks: Vec<u64>,
    /// Frames for the kernel's shell among the taken ones. The front keeps the frames for the next replica.
    shell_acks: Vec<u64>,
    /// Dropped items that were handed to a connection, with their bytes. The front may have taken them.
    doubtful: BTreeMap<u64, usize>,
    /// Messages and bytes that the front lacks, and was not told of.
    lost: (u64, u64),
}

#[derive(Debug)]
struct Connection {
    outlet: Outlet,
    /// The weight of all items that were handed to it.
    handed: usize,
}

impl FrontLink {
    pub(crate) fn new() -> Self {
        Self {
            kept: Retained::new(KEEP),
            taken: Taken::default(),
            epoch: 0,
            out: None,
            sent: 0,
            again: BTreeSet::new(),
            acks: Vec::new(),
            shell_acks: Vec::new(),
            doubtful: BTreeMap::new(),
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
    pub(crate) fn up(&mut self, epoch: u64, taken: u64, again: &[u64], outlet: Outlet) {
        let wanted: BTreeSet<u64> = again.iter().copied().filter(|seq| *seq <= taken).collect();
        let is_new = epoch != self.epoch;
        if is_new {
            // A new front wants again the old front's frames in work.
            self.taken = Taken::default();
            (self.acks, self.shell_acks) = (Vec::new(), Vec::new());
            self.kept.settle(taken, again);
            self.epoch = epoch;
        }
        for (seq, bytes) in std::mem::take(&mut self.doubtful) {
            if seq > taken || wanted.contains(&seq) {
                self.loses(bytes);
            } else if !is_new {
                self.doubtful.insert(seq, bytes);
            }
        }
        (self.sent, self.again) = (taken, wanted);
        self.out = Some(Connection { outlet, handed: 0 });
        self.hand_over();
    }

    pub(crate) fn down(&mut self) {
        self.out = None;
    }

    pub(crate) fn send(&mut self, item: Item) {
        // Before the reply the cell is open, and the user reads of the cell's lost outputs.
        if let Item::Jupyter {
            channel: Channel::Shell,
            ..
        } = item
        {
            self.tell_lost();
        }
        self.kept.push(item);
        for (seq, bytes) in self.kept.enforce() {
            if seq <= self.sent && !self.again.remove(&seq) {
                self.doubtful.insert(seq, bytes);
            } else {
                self.loses(bytes);
            }
        }
        self.hand_over();
    }

    fn loses(&mut self, bytes: usize) {
        self.lost.0 += 1;
        self.lost.1 += bytes as u64;
    }

    fn tell_lost(&mut self) {
        let (messages, bytes) = std::mem::take(&mut self.lost);
        if messages > 0 {
            self.kept.push(Item::Note(Note::Dropped { messages, bytes }));
        }
    }

    /// Hands kept items to the connection, as far as it has written the items before.
    pub(crate) fn hand_over(&mut self) {
        while self.has_written_enough() {
            let Some(seq) = self.next() else {
                if self.lost.0 == 0 {
                    return;
                }
                self.tell_lost();
                continue;
            };
            self.again.remove(&seq);
            self.sent = self.sent.max(seq);
            if let (Some(out), Some(item)) = (&mut self.out, self.kept.get(seq)) {
                out.handed += item.weight();
                // A link broken just now: the item is kept for the next link.
                let _ = out.outlet.frames.send(Frame::Item(seq, item.clone()));
            }
        }
    }

    /// The number of the next item to hand over.
    fn next(&self) -> Option<u64> {
        let again = self.again.first().copied();
        again.or_else(|| self.kept.after(self.sent).map(|(seq, _)| seq))
    }

    fn has_written_enough(&mut self) -> bool {
        self.out.as_mut().is_some_and(|out| {
            let written = *out.outlet.written.borrow_and_update();
            out.handed - written < UNWRITTEN
        })
    }

    /// Waits until the connection has written something, if items wait for that.
    pub(crate) async fn has_room(&mut self) {
        let waits = self.next().is_some();
        let has_written = match &mut self.out {
            Some(out) if waits => out.outlet.written.changed().await.is_ok(),
            _ => false,
        };
        // The end of a connection is told by its dialler.
        if !has_written {
            pending::<()>().await;
        }
    }

    /// Takes a frame in. Returns its item where that is new.
    pub(crate) fn take(&mut self, frame: Frame) -> Option<Item> {
        match frame {
            Frame::Item(seq, item) if self.taken.take(seq) => {
                match &item {
                    Item::Jupyter {
                        channel: Channel::Shell,
                        ..
                    } => self.shell_acks.push(seq),
                    _ => self.acks.push(seq),
                }
                Some(item)
            }
            Frame::Done(done) => {
                for range in done {
                    self.doubtful.retain(|seq, _| !range.contains(seq));
                    self.kept.done(range);
                }
                None
            }
            _ => None,
        }
    }

    /// Acknowledges the frames taken since the last call. Frames for the shell of a kernel that `keeps_back` are left
    /// out: the front keeps them for the next replica.
    pub(crate) fn acknowledge(&mut self, keeps_back: bool) {
        if !keeps_back {
            self.acks.append(&mut self.shell_acks);
        }
        if !self.acks.is_empty()
            && let Some(out) = &self.out
        {
            // On a new link the hello lists the frames taken.
            let _ = out
                .outlet
                .frames
                .send(Frame::Done(ranges(std::mem::take(&mut self.acks))));
        }
    }

    /// The cells' outputs that no front has taken, for the notebook's next opening.
    pub(crate) fn meanwhile(&self) -> Meanwhile {
        let mut meanwhile = Meanwhile::lacking(self.lost.0 + self.doubtful.len() as u64);
        for item in self.kept.items() {
            match item {
                Item::Jupyter { message, .. } => _ = meanwhile.keep(message),
                Item::Note(Note::Dropped { messages, .. }) => meanwhile.dropped += messages,
                Item::Note(_) => {}
            }
        }
        meanwhile
    }

    /// What must hold after every call.
    #[cfg(test)]
    fn sanity_check(&self) {
        self.kept.sanity_check();
        assert!(self.doubtful.keys().all(|seq| self.kept.get(*seq).is_none()));
        assert!(self.again.iter().all(|seq| *seq <= self.sent));
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
        Note::Renamed { name } => Input::Renamed(name),
        Note::HandedBefore {
            cell,
            tenure,
            behind,
            lacks,
        } => Input::HandedBefore {
            cell,
            tenure,
            behind,
            lacks,
        },
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
    use futures_util::FutureExt;
    use hop_protocol::jupyter::Author;
    use hop_words::time::Timestamp;
    use serde_json::{Value, json};
    use tokio::sync::{mpsc, watch};

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

    /// The front's end of a connection.
    struct Front {
        frames: mpsc::UnboundedReceiver<Frame>,
        written: watch::Sender<usize>,
        items: Vec<(u64, Item)>,
    }

    impl Front {
        fn connects() -> (Outlet, Self) {
            let (frames, queue) = mpsc::unbounded_channel();
            let (written_tx, written) = watch::channel(0);
            let front = Self {
                frames: queue,
                written: written_tx,
                items: Vec::new(),
            };
            (Outlet { frames, written }, front)
        }

        /// Reads the frames that were handed over. Returns their weight.
        fn reads(&mut self) -> usize {
            let mut weight = 0;
            while let Ok(frame) = self.frames.try_recv() {
                if let Frame::Item(seq, item) = frame {
                    weight += item.weight();
                    self.items.push((seq, item));
                }
            }
            self.written.send_modify(|written| *written += weight);
            weight
        }

        /// Reads until nothing more comes.
        fn reads_all(&mut self, link: &mut FrontLink) {
            while self.reads() > 0 {
                link.hand_over();
                link.sanity_check();
            }
        }

        fn dropped(&self) -> Vec<u64> {
            let dropped = self.items.iter().filter_map(|(_, item)| match item {
                Item::Note(Note::Dropped { messages, .. }) => Some(*messages),
                _ => None,
            });
            dropped.collect()
        }
    }

    /// The reply to a cell.
    fn replied(author: &mut Author) -> Item {
        let none = Bytes::from_static(b"{}");
        let asked = author.write("execute_request", &none, &json!({}), &json!({}), Timestamp(0));
        let reply = author.write(
            "execute_reply",
            &asked.header,
            &json!({}),
            &json!({}),
            Timestamp(0),
        );
        Item::Jupyter {
            channel: Channel::Shell,
            identity: Bytes::new(),
            message: reply.message(),
        }
    }

    /// A weight in MiB.
    const LARGE: usize = 3;
    const MANY: u64 = 100;

    fn large(author: &mut Author) -> Item {
        shown(author, &"x".repeat(LARGE << 20))
    }

    #[test]
    fn a_slow_connection_holds_no_more_than_the_bound_and_the_front_is_told_what_it_lacks() {
        let mut author = Author::new(b"key", "kernel".into());
        let mut link = FrontLink::new();
        let (outlet, mut front) = Front::connects();
        link.up(1, 0, &[], outlet);
        for _ in 0..MANY {
            link.send(large(&mut author));
            link.sanity_check();
        }
        link.send(replied(&mut author));
        let handed = front.reads();
        assert!(handed < UNWRITTEN + ((LARGE + 1) << 20), "{handed}");
        assert!(link.kept.bytes() <= KEEP, "{}", link.kept.bytes());
        link.hand_over();
        front.reads_all(&mut link);
        let outputs = front.items.iter().filter(|(_, item)| item.droppable()).count() as u64;
        let [dropped] = front.dropped()[..] else {
            panic!("told once: {:?}", front.dropped());
        };
        assert_eq!(outputs + dropped, MANY);
        assert!(dropped > MANY / 2);
        let last: Vec<bool> = front
            .items
            .iter()
            .rev()
            .take(2)
            .map(|(_, item)| item.droppable())
            .collect();
        let is_told = |(_, item): &(u64, Item)| matches!(item, Item::Note(Note::Dropped { .. }));
        assert_eq!(
            (last, front.items.iter().rev().position(is_told)),
            (vec![false, false], Some(1))
        );
        assert!(front.items.is_sorted_by_key(|(seq, _)| *seq));
        link.take(Frame::Done(vec![1..=u64::MAX]));
        assert!(link.is_settled());
    }

    #[test]
    fn a_broken_connection_loses_what_was_dropped_and_not_taken() {
        let mut author = Author::new(b"key", "kernel".into());
        let mut link = FrontLink::new();
        let (outlet, mut front) = Front::connects();
        link.up(1, 0, &[], outlet);
        for _ in 0..MANY {
            link.send(large(&mut author));
            front.reads_all(&mut link);
        }
        assert_eq!(
            (front.items.len() as u64, front.dropped()),
            (MANY, vec![]),
            "all came"
        );
        link.take(Frame::Done(vec![1..=10, 13..=20]));
        link.down();
        let meanwhile = link.meanwhile();
        let kept = meanwhile.outputs.len() as u64;
        // The front comes back, has taken 30 items, and wants two of these once more.
        let (outlet, mut front) = Front::connects();
        link.up(2, 30, &[12, 15], outlet);
        front.reads_all(&mut link);
        let outputs = front.items.iter().filter(|(_, item)| item.droppable()).count() as u64;
        assert_eq!(
            front.dropped(),
            [MANY - 30 - outputs + 1],
            "the front has dealt with item 15"
        );
        assert_eq!(meanwhile.dropped + kept, MANY - 18);
        // What is lost is told once.
        let (outlet, mut front) = Front::connects();
        link.up(2, MANY + 1, &[], outlet);
        front.reads_all(&mut link);
        assert!(front.dropped().is_empty());
    }

    #[test]
    fn a_connection_that_has_written_something_has_room() {
        let mut author = Author::new(b"key", "kernel".into());
        let mut link = FrontLink::new();
        let (outlet, mut front) = Front::connects();
        link.up(1, 0, &[], outlet);
        assert_eq!(link.has_room().now_or_never(), None, "nothing waits");
        for _ in 0..5 {
            link.send(large(&mut author));
        }
        assert_eq!(link.has_room().now_or_never(), None, "nothing is written");
        front.reads();
        assert_eq!(link.has_room().now_or_never(), Some(()), "something is written");
        drop(front);
        assert_eq!(
            link.has_room().now_or_never(),
            None,
            "its end is told by the dialler"
        );
    }

    #[test]
    fn the_word_that_a_cell_has_ended_is_never_dropped() {
        let mut author = Author::new(b"key", "kernel".into());
        let content = json!({"execution_state": "idle"});
        let parent = Bytes::from_static(b"{}");
        let idle = author.publish("status", &parent, &json!({}), &content, Timestamp(0));
        let mut link = FrontLink::new();
        link.send(Item::Jupyter {
            channel: Channel::Iopub,
            identity: Bytes::new(),
            message: idle.clone(),
        });
        for _ in 0..MANY {
            link.send(large(&mut author));
        }
        let (outlet, mut front) = Front::connects();
        link.up(1, 0, &[], outlet);
        front.reads_all(&mut link);
        assert!(matches!(&front.items[0], (1, Item::Jupyter { message, .. }) if *message == idle));
        let outputs = front.items.iter().filter(|(_, item)| item.droppable()).count() as u64;
        assert_eq!(front.dropped(), [MANY - outputs]);
    }

    #[test]
    fn what_no_front_has_taken_is_kept_for_the_next_opening() {
        let mut author = Author::new(b"key", "kernel".into());
        let mut link = FrontLink::new();
        let (outlet, _front) = Front::connects();
        link.up(1, 0, &[], outlet);
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

    #[test]
    fn what_comes_for_a_kernel_that_leaves_stays_the_fronts() {
        let mut author = Author::new(b"key", "kernel".into());
        let mut link = FrontLink::new();
        let (outlet, mut front) = Front::connects();
        link.up(1, 0, &[], outlet);
        let mut acked = |link: &mut FrontLink, keeps_back| {
            link.acknowledge(keeps_back);
            match front.frames.try_recv() {
                Ok(Frame::Done(ranges)) => ranges,
                Ok(other) => panic!("{other:?}"),
                Err(_) => Vec::new(),
            }
        };
        link.take(Frame::Item(1, replied(&mut author)));
        assert_eq!(acked(&mut link, false), [1..=1]);
        link.take(Frame::Item(2, replied(&mut author)));
        link.take(Frame::Item(3, Item::Note(Note::Interrupt)));
        assert_eq!(acked(&mut link, true), [3..=3]);
        assert_eq!(acked(&mut link, true), []);
        assert_eq!(acked(&mut link, false), [2..=2], "it stays after all");

        link.take(Frame::Item(4, replied(&mut author)));
        link.acknowledge(true);
        let (outlet, mut front) = Front::connects();
        link.up(2, 0, &[], outlet);
        link.acknowledge(false);
        assert!(front.frames.try_recv().is_err(), "another front numbers its own");
    }
}
