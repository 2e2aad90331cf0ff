//! A link is one connection to another seat. Frames wait in it for their writing, and questions for their answers.

use crate::lock::lock;
use crate::wire::Frame;
use bytes::Bytes;
use hop_raft::Unreachable;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, oneshot};

/// Bytes that may wait on a link, but for a single message: the other side may not listen.
const WAITING_MAX: usize = 16 << 20;

#[derive(Debug, Default)]
pub(crate) struct Link {
    out: Mutex<Outbox>,
    /// Something waits to be written.
    filled: Notify,
    /// There are newer links with the same seat.
    pub(crate) superseded: Notify,
    asked: Mutex<HashMap<u64, oneshot::Sender<Bytes>>>,
    last: AtomicU64,
}

/// Frames to write, in order.
#[derive(Debug, Default)]
struct Outbox {
    frames: VecDeque<Waiting>,
    /// Their bytes.
    size: usize,
}

#[derive(Debug)]
struct Waiting {
    bytes: Bytes,
    /// The number of the question, if the frame is a question.
    question: Option<u64>,
}

impl Link {
    /// Sends a frame that nobody answers.
    pub(crate) fn send(&self, frame: &Frame) {
        self.put(frame, None);
    }

    fn put(&self, frame: &Frame, question: Option<u64>) {
        let bytes = frame.encode();
        lock(&self.out).put(Waiting { bytes, question });
        self.filled.notify_one();
    }

    /// Asks a question of about so many bytes. A dropped question is not sent any more: to a seat at a standstill,
    /// openraft repeats its messages again and again.
    pub(crate) async fn ask(
        &self,
        size: usize,
        frame: impl FnOnce(u64) -> Frame,
    ) -> Result<Bytes, Unreachable> {
        if !lock(&self.out).has_room_for(size) {
            return Err(Unreachable);
        }
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let (tell, told) = oneshot::channel();
        lock(&self.asked).insert(number, tell);
        let _asked = Asked { link: self, number };
        self.put(&frame(number), Some(number));
        told.await.map_err(|_| Unreachable)
    }

    /// The answer to a question. `None`: there is none.
    pub(crate) fn answered(&self, number: u64, answer: Option<Bytes>) {
        let asker = lock(&self.asked).remove(&number);
        if let (Some(asker), Some(answer)) = (asker, answer) {
            // The asker may have lost its patience.
            let _ = asker.send(answer);
        }
    }

    /// Lets all askers know that no answer comes.
    pub(crate) fn broken(&self) {
        lock(&self.asked).clear();
    }

    /// Writes what waits, until the connection breaks.
    pub(crate) async fn write(&self, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
        loop {
            while let Some(bytes) = self.next() {
                to.write_all(&bytes).await?;
            }
            to.flush().await?;
            self.filled.notified().await;
        }
    }

    fn next(&self) -> Option<Bytes> {
        lock(&self.out).take()
    }
}

impl Outbox {
    fn put(&mut self, waiting: Waiting) {
        self.size += waiting.bytes.len();
        self.frames.push_back(waiting);
    }

    fn take(&mut self) -> Option<Bytes> {
        let Waiting { bytes, .. } = self.frames.pop_front()?;
        self.size -= bytes.len();
        Some(bytes)
    }

    fn forget(&mut self, question: u64) {
        self.frames.retain(|f| f.question != Some(question));
        self.size = self.frames.iter().map(|f| f.bytes.len()).sum();
    }

    fn has_room_for(&self, bytes: usize) -> bool {
        self.frames.is_empty() || self.size + bytes <= WAITING_MAX
    }
}

/// A question without an answer yet. Dropping forgets it.
struct Asked<'a> {
    link: &'a Link,
    number: u64,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        // An answered question is written already.
        if lock(&self.link.asked).remove(&self.number).is_some() {
            lock(&self.link.out).forget(self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_words::id::Incarnation;
    use std::time::Duration;
    use tokio::io::AsyncReadExt;
    use tokio::time::timeout;

    fn question(number: u64, message: &'static [u8]) -> Frame {
        Frame::Ask {
            number,
            group: "kernel.0".to_owned(),
            to: Incarnation(2),
            message: Bytes::from_static(message),
        }
    }

    async fn asks(link: &Link, message: &'static [u8], patience: Duration) -> Option<Bytes> {
        let asked = link.ask(message.len(), |number| question(number, message));
        timeout(patience, asked).await.ok()?.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_without_an_asker_is_not_written() {
        let link = Link::default();
        let message = &[7; 1 << 20];
        for _ in 0..100 {
            assert_eq!(asks(&link, message, Duration::from_millis(250)).await, None);
        }
        assert_eq!(lock(&link.out).size, 0, "the other side takes nothing");
        link.send(&Frame::Left {
            group: "kernel.0".to_owned(),
            member: Incarnation(1),
        });
        let (mut read, write) = tokio::io::duplex(1 << 20);
        let written = timeout(Duration::from_secs(1), link.write(write)).await;
        assert!(written.is_err(), "it goes on while the connection holds");
        let mut bytes = Vec::new();
        read.read_to_end(&mut bytes).await.unwrap();
        assert!(bytes.len() < 100, "{} bytes", bytes.len());
        let read = Frame::read(&mut bytes.as_slice()).await.unwrap();
        assert!(matches!(read, Frame::Left { .. }));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_goes_to_its_asker_alone() {
        let link = Link::default();
        let patience = Duration::from_secs(1);
        let answers = async {
            link.answered(1, Some(Bytes::from_static(b"one")));
            link.answered(0, None);
            link.answered(7, Some(Bytes::from_static(b"nobody")));
        };
        let (zero, one, ()) = tokio::join!(asks(&link, b"0", patience), asks(&link, b"1", patience), answers);
        assert_eq!((zero, one.as_deref()), (None, Some(&b"one"[..])));
        assert!(lock(&link.asked).is_empty());
        assert_eq!(
            lock(&link.out).frames.len(),
            2,
            "they were asked, and nobody has written yet"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_link_that_takes_nothing_is_out_of_reach_beyond_a_bound() {
        let link = Link::default();
        let half = &[7; WAITING_MAX / 2 - 100];
        let patience = Duration::from_secs(1);
        let asked = |message| link.ask(WAITING_MAX / 2, move |number| question(number, message));
        let (first, second, third) = tokio::join!(
            timeout(patience, asked(half)),
            timeout(patience, asked(half)),
            timeout(patience, asked(half)),
        );
        assert!(first.is_err() && second.is_err(), "they wait");
        assert!(third.unwrap().is_err(), "it has no room");
    }
}
