//! Tends the user's content for one kernel, in a thread of its own. The content may lie on another file system than the
//! kernel's log, as a site's store does: one that hangs holds up no record. Every ten minutes the store is checked as a
//! kernel's process does, collections learn of the kernel, and its hold on content goes on ([`hop_state::hold`]). Once an
//! hour a kernel collects the garbage of its user: closed notebooks free their room this way.

use hop_protocol::content;
use hop_state::garbage::{self, GarbageError};
use hop_state::hold::{GOES_ON_EVERY, Hold};
use hop_state::log::Key;
use hop_words::error::chain;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

/// How often garbage is collected.
const COLLECT_EVERY: Duration = Duration::from_hours(1);

/// How long content stays that no record names (docs/state.md).
const GRACE: Duration = Duration::from_hours(1);

/// One kernel's share in the order of its user's content.
#[derive(Debug)]
pub(crate) struct Upkeep {
    /// The folder of all states of the user's kernels.
    states: PathBuf,
    /// The user's content-addressed store of chunks.
    content: PathBuf,
    /// The hold on content that the kernel's next records may name. `None` means that the file system has no locks, or that
    /// no hold has begun yet.
    hold: Option<Hold>,
    /// The begin of the hold's clock.
    began: Instant,
}

impl Upkeep {
    pub(crate) fn new(states: PathBuf, content: PathBuf) -> Self {
        Self {
            states,
            content,
            hold: None,
            began: Instant::now(),
        }
    }

    /// Goes on until the other end is gone.
    pub(crate) fn run(mut self, over: &Receiver<Infallible>) {
        loop {
            if self.tend() {
                match Key::of_owner() {
                    Ok(key) => collect(&self.content, &self.states, &key),
                    Err(error) => tracing::warn!(error = chain(&error), "no garbage was collected"),
                }
            }
            if over.recv_timeout(GOES_ON_EVERY) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    /// Returns whether garbage is due. A store mended meanwhile hears of the kernel long before content in it counts as
    /// old.
    fn tend(&mut self) -> bool {
        if let Err(error) = self.register() {
            // The kernel's process tells its user of a store that can't be used.
            tracing::warn!(error, "a collection of garbage may not find this kernel");
            return false;
        }
        self.hold();
        garbage::age(&self.content, SystemTime::now()).is_none_or(|age| age >= COLLECT_EVERY)
    }

    /// Has collections in the store find this kernel.
    fn register(&self) -> Result<(), String> {
        content::prepare(&self.content).map_err(|error| chain(&error))?;
        garbage::register(&self.content, &self.states).map_err(|error| chain(&error))
    }

    /// Keeps collections from what the kernel's next records may name.
    fn hold(&mut self) {
        let now = self.began.elapsed();
        let goes_on = self.hold.as_mut().is_some_and(|hold| hold.go_on(now).is_ok());
        if !goes_on {
            let begun = Hold::begin(&self.content, now);
            let told = |error| tracing::info!(%error, "content is held by its age alone");
            self.hold = begun.map_err(told).ok();
        }
    }
}

/// Collects the user's garbage: all states are read for it, and all names of content.
pub(crate) fn collect(content: &Path, states: &Path, key: &Key) {
    if let Err(error) = content::prepare(content) {
        return tracing::warn!(error = chain(&error), "no garbage was collected");
    }
    match garbage::collect(content, states, key, GRACE) {
        Ok(done) => {
            let (removed, bytes) = (done.removed, done.freed_bytes);
            tracing::info!(removed, bytes, "content that no state needs was removed");
        }
        Err(GarbageError::Busy) => {}
        Err(error) => tracing::warn!(error = chain(&error), "no garbage was collected"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_store_that_others_can_read_gets_nothing_until_it_is_private() {
        let tmp = tempfile::tempdir().unwrap();
        let [states, store] = ["states", "store"].map(|name| tmp.path().join(name));
        fs::create_dir(&store).unwrap();
        let mut upkeep = Upkeep::new(states, store.clone());
        let mut tended = |mode| {
            fs::set_permissions(&store, fs::Permissions::from_mode(mode)).unwrap();
            (upkeep.tend(), fs::read_dir(&store).unwrap().count())
        };
        assert_eq!(tended(0o755), (false, 0));
        assert_eq!(tended(0o700), (true, 2), "the kernel's place, and its hold");
        let held = || fs::read_dir(store.join("holds")).unwrap().count();
        assert_eq!((tended(0o700), held()), ((true, 2), 1));
        drop(upkeep);
        assert_eq!(held(), 0);
    }
}
