//! Numbers of messages to clients. By a number the front learns that its message has left. By the replica's own number
//! the front then tells the replica.

use std::collections::HashMap;

/// The front's number of a message to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark(pub u64);

/// Messages to clients still on their way, with the present replica's number of its own messages.
#[derive(Debug, Default)]
pub(super) struct Marks {
    last: u64,
    items: HashMap<Mark, u64>,
    /// The announcement of the next answer.
    announced: Option<u64>,
    /// Announcements of answers, by the answer's mark: the next front needs both.
    announcements: HashMap<Mark, u64>,
}

impl Marks {
    /// A number for a message. `seq` is the replica's.
    pub(super) fn give(&mut self, seq: Option<u64>) -> Mark {
        self.last += 1;
        let mark = Mark(self.last);
        self.items.extend(seq.map(|seq| (mark, seq)));
        mark
    }

    /// The replica's number of the message, if it is the replica's.
    pub(super) fn seq(&self, mark: Mark) -> Option<u64> {
        self.items.get(&mark).copied()
    }

    /// An item of the replica announces the next answer. Returns an earlier such item, if no answer has followed it.
    pub(super) fn announces(&mut self, seq: u64) -> Option<u64> {
        self.announced.replace(seq)
    }

    /// A number for a reply. The reply may have been announced.
    pub(super) fn give_reply(&mut self, seq: u64) -> Mark {
        let mark = self.give(Some(seq));
        let announced = self.announced.take();
        self.announcements.extend(announced.map(|seq| (mark, seq)));
        mark
    }

    /// Another replica numbers its items from the beginning.
    pub(super) fn new_stream(&mut self) {
        self.items.clear();
        self.announcements.clear();
        self.announced = None;
    }

    /// Nothing is left to do with a message. Returns the replica's numbers of it.
    pub(super) fn take(&mut self, mark: Mark) -> impl Iterator<Item = u64> + use<> {
        let announcement = self.announcements.remove(&mark);
        self.items.remove(&mark).into_iter().chain(announcement)
    }
}

/// The word `idle`: nothing more comes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Idle {
    /// The replica is to say it.
    Due,
    OnItsWay(Mark),
    /// The clients have heard the word, or don't wait for it.
    Left,
}
