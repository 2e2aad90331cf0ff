//! Unwritten messages to one peer. Sending writes at once if the socket takes the message, which saves a task switch.
//! The rest waits here, bounded in bytes, for [`Outbox::pump`].

use crate::stream::WriteHalf;
use bytes::{Buf, Bytes};
use std::collections::VecDeque;
use std::io;
use std::io::IoSlice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Most slices in one system call.
const SLICES: usize = 64;

/// Collects the tags of messages that have left the process, or whose peer is gone.
#[derive(Debug, Clone, Default)]
pub struct Receipts(Arc<Done>);

#[derive(Debug, Default)]
struct Done {
    tags: Mutex<Vec<u64>>,
    news: Notify,
}

impl Receipts {
    /// A receipt to be handed in with a message. When its last clone is dropped, `tag` is done.
    pub fn issue(&self, tag: u64) -> Receipt {
        Receipt(Arc::new(Slip {
            tag,
            done: Arc::clone(&self.0),
        }))
    }

    /// The tags that were done since the last call.
    pub fn take(&self) -> Vec<u64> {
        std::mem::take(&mut *lock(&self.0.tags))
    }

    /// Waits until [`Receipts::take`] has something to give.
    pub async fn ready(&self) {
        while lock(&self.0.tags).is_empty() {
            self.0.news.notified().await;
        }
    }
}

/// Held by a message until written to all peers.
#[derive(Debug, Clone)]
pub struct Receipt(#[expect(dead_code, reason = "held for its drop")] Arc<Slip>);

#[derive(Debug)]
struct Slip {
    tag: u64,
    done: Arc<Done>,
}

impl Drop for Slip {
    fn drop(&mut self) {
        lock(&self.done.tags).push(self.tag);
        self.done.news.notify_one();
    }
}

/// Poisoning means that a panic is already on its way; the data here stays whole at every step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
pub(crate) struct Outbox {
    half: WriteHalf,
    queue: Mutex<Queue>,
    news: Notify,
    limit: usize,
}

#[derive(Debug, Default)]
struct Queue {
    chunks: VecDeque<(Bytes, Option<Receipt>)>,
    bytes: usize,
    closed: bool,
}

impl Outbox {
    pub(crate) fn new(half: WriteHalf, limit: usize) -> Self {
        Self {
            half,
            queue: Mutex::default(),
            news: Notify::new(),
            limit,
        }
    }

    /// Takes the chunks of one message. False: the peer is gone, or was cut off because it doesn't read.
    pub(crate) fn push(&self, chunks: &[Bytes], receipt: Option<&Receipt>) -> bool {
        let mut queue = lock(&self.queue);
        if queue.closed {
            return false;
        }
        if queue.bytes > self.limit {
            self.close_locked(&mut queue);
            return false;
        }
        let was_empty = queue.chunks.is_empty();
        for chunk in chunks.iter().filter(|c| !c.is_empty()) {
            queue.bytes += chunk.len();
            queue.chunks.push_back((chunk.clone(), receipt.cloned()));
        }
        if was_empty && self.write_some(&mut queue).is_err() {
            self.close_locked(&mut queue);
            return false;
        }
        if !queue.chunks.is_empty() {
            self.news.notify_one();
        }
        true
    }

    /// Writes until the socket takes no more.
    fn write_some(&self, queue: &mut Queue) -> io::Result<()> {
        while !queue.chunks.is_empty() {
            let slices: Vec<IoSlice<'_>> = queue
                .chunks
                .iter()
                .take(SLICES)
                .map(|(c, _)| IoSlice::new(c))
                .collect();
            let mut written = match self.half.try_write_vectored(&slices) {
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            queue.bytes -= written;
            while let Some((front, _)) = queue.chunks.front_mut() {
                if front.len() > written {
                    front.advance(written);
                    break;
                }
                written -= front.len();
                queue.chunks.pop_front();
            }
        }
        Ok(())
    }

    /// Writes waiting messages, as the socket takes them, until the connection ends.
    pub(crate) async fn pump(&self) {
        loop {
            let (closed, empty) = {
                let queue = lock(&self.queue);
                (queue.closed, queue.chunks.is_empty())
            };
            if closed {
                return;
            }
            if empty {
                self.news.notified().await;
                continue;
            }
            let ready = self.half.writable().await;
            let mut queue = lock(&self.queue);
            if ready.is_err() || self.write_some(&mut queue).is_err() {
                self.close_locked(&mut queue);
            }
        }
    }

    pub(crate) fn close(&self) {
        self.close_locked(&mut lock(&self.queue));
    }

    fn close_locked(&self, queue: &mut Queue) {
        queue.closed = true;
        queue.chunks.clear();
        queue.bytes = 0;
        self.half.shutdown();
        self.news.notify_one();
    }

    /// Bytes that the socket hasn't taken yet.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.queue).bytes
    }
}
