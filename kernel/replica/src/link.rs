//! The replica's end of the numbered stream of frames to its front: what is kept for the next connection, in bounds, and
//! what was taken already. A broken connection or a killed front loses nothing and repeats nothing.

use hop_protocol::link::{Frame, Item};
use hop_protocol::message::Note;
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

    /// A connection stands. The front has `taken` frames of this stream, and wants those in `again` once more.
    pub(crate) fn up(&mut self, epoch: u64, taken: u64, again: &[u64], out: mpsc::UnboundedSender<Frame>) {
        if epoch != self.epoch {
            // A new front wants again what the old one was still working on.
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
                // A link that broke just now: the item is kept for the next one.
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

    /// Acknowledges the frames that were taken since the last call.
    pub(crate) fn acknowledge(&mut self) {
        if !self.acks.is_empty()
            && let Some(out) = &self.out
        {
            // On a new link the hello says what was taken.
            let _ = out.send(Frame::Done(ranges(std::mem::take(&mut self.acks))));
        }
    }

    /// Whether the front has dealt with all that was sent.
    pub(crate) fn is_settled(&self) -> bool {
        self.kept.is_empty()
    }
}
