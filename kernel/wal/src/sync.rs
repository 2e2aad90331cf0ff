//! The thread that makes the log safe: a single fdatasync for all frames since the last.

use crate::error::SyncError;
use crate::frame::Position;
use crate::memory::SegmentNumber;
use crate::options::Sync;
use crate::segment::{self, Blank};
use crate::shared::{Core, Shared, Waiter};
use std::io;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Duties between two syncs: the next sync must not wait long.
const DUTIES: usize = 4;

/// The running thread. Dropping ends the thread.
#[derive(Debug)]
pub(crate) struct Syncer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Syncer {
    pub(crate) fn start(shared: Arc<Shared>) -> io::Result<Self> {
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("wal-sync".into())
            .spawn(move || for_thread.sync_until_closed())?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.work.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread is in the journal already.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn sync_until_closed(&self) {
        let mut core = self.lock();
        loop {
            let (guard, mut did) = self.keep_house(core);
            core = guard;
            if core.written > core.synced {
                core = match self.sync_once(core) {
                    Ok(core) => core,
                    Err(()) => return,
                };
                did = true;
            } else if core.closing {
                return;
            }
            if !did {
                core = self.work.wait(core).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Syncs all frames, and tells the waiters. An error ends the thread: after a failed fdatasync the kernel may have
    /// dropped the pages, and a second fdatasync would succeed without them.
    fn sync_once<'a>(&'a self, mut core: MutexGuard<'a, Core>) -> Result<MutexGuard<'a, Core>, ()> {
        if let Sync::Every(pause) = self.options.sync {
            let waited = self.work.wait_timeout_while(core, pause, |c| !c.closing);
            core = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let target = core.written;
        let files = std::mem::take(&mut core.dirty);
        drop(core);
        let synced = files.iter().try_for_each(|file| file.sync_data());
        let mut core = self.lock();
        if let Err(error) = synced {
            let error = SyncError(Arc::new(error));
            let waiters = core.fail(&error);
            drop(core);
            for (_, then) in waiters {
                then(Err(error.clone()));
            }
            return Err(());
        }
        core.synced = target;
        let (ready, wait) = std::mem::take(&mut core.waiters)
            .into_iter()
            .partition(|(at, _): &(Position, Waiter)| *at <= target);
        core.waiters = wait;
        drop(core);
        let ready: Vec<(Position, Waiter)> = ready;
        for (_, then) in ready {
            then(Ok(()));
        }
        Ok(self.lock())
    }

    /// Removes old segments and prepares the next, of an old file if possible. Returns whether anything was done.
    fn keep_house<'a>(&'a self, mut core: MutexGuard<'a, Core>) -> (MutexGuard<'a, Core>, bool) {
        let mut did = false;
        for _ in 0..DUTIES {
            let (guard, again) = self.one_duty(core);
            core = guard;
            did |= again;
            if !again {
                break;
            }
        }
        (core, did)
    }

    fn one_duty<'a>(&'a self, mut core: MutexGuard<'a, Core>) -> (MutexGuard<'a, Core>, bool) {
        let (retired, wanted) = (core.take_retired(), core.wants_next());
        if retired.is_none() && wanted.is_none() {
            return self.clean(core);
        }
        core.making = wanted.is_some();
        drop(core);
        let blank = retired.map(|number| self.reuse(number, wanted.is_some()));
        let stays = retired.filter(|_| blank.as_ref().is_some_and(Result::is_err));
        let made = wanted.map(|number| match blank {
            Some(Ok(Some(blank))) => blank.into_segment(&self.dir, number),
            _ => self.make_segment(number, self.options.segment),
        });
        let mut core = self.lock();
        if let Some(number) = stays {
            core.keep_retired(number);
        }
        let done = stays.is_none() && made.as_ref().is_none_or(Result::is_ok);
        if let Some(made) = made {
            core.prepared(made);
            self.made.notify_all();
        }
        (core, done)
    }

    fn reuse(&self, number: SegmentNumber, wanted: bool) -> io::Result<Option<Blank>> {
        if wanted {
            return Blank::recycle(&self.dir, number, self.options.segment);
        }
        std::fs::remove_file(segment::path(&self.dir, number)).map(|()| None)
    }
}
