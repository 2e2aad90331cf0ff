//! States in an object store, for `hop state`. A kernel's agent saves to and restores from its user's folders; this
//! module carries states to and fro, reports progress, and names each part's place after a failure.

use crate::context::Context;
use crate::failure::Failure;
use crate::output::size;
use hop_blobs::local::{Collected, Local};
use hop_blobs::places::Places;
use hop_remote::address::{Address, Place};
use hop_remote::error::RemoteError;
use hop_remote::fetch::Fetched;
use hop_remote::open::Variables;
use hop_remote::remote::{Progress, Remote};
use hop_remote::send::Sent;
use hop_state::form::Saved;
use std::fs;
use std::future::Future;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Interval of progress reports.
const TELL: Duration = Duration::from_secs(1);

/// An object store, with the means to speak to it.
pub(crate) struct Store {
    remote: Remote,
    runtime: Runtime,
    /// Name of the store in messages.
    called: String,
}

impl Store {
    pub(crate) fn of(address: &Address) -> Result<Self, Failure> {
        Self::open(&address.place, address.to_string())
    }

    pub(crate) fn at(place: &Place) -> Result<Self, Failure> {
        Self::open(place, place.to_string())
    }

    fn open(place: &Place, called: String) -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        let env: Variables = std::env::vars_os()
            .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        // The client's constructor starts tasks, for which the runtime has to be entered.
        let entered = runtime.enter();
        let remote = Remote::open(place, &env).map_err(|e| failure(&called, &e))?;
        drop(entered);
        Ok(Self {
            remote,
            runtime,
            called,
        })
    }

    /// Reads and proves a state.
    pub(crate) fn read(&self, address: &Address, key: &[u8; 32]) -> Result<Saved, Failure> {
        self.runtime
            .block_on(self.remote.read(&address.name, key))
            .map_err(|e| failure(&self.called, &e))
    }

    /// Sends a state that lies here.
    pub(crate) fn send(
        &self,
        address: &Address,
        saved: &Saved,
        key: &[u8; 32],
        from: &Arc<Places>,
        context: &mut Context<'_>,
    ) -> Result<Sent, Failure> {
        let progress = Progress::default();
        let work = self.remote.send(&address.name, saved, key, from, &progress);
        self.told("sending", true, &progress, work, context)
    }

    /// Brings a state's content here.
    pub(crate) fn fetch(
        &self,
        saved: &Saved,
        local: &Arc<Local>,
        context: &mut Context<'_>,
    ) -> Result<Fetched, Failure> {
        let progress = Progress::default();
        let work = self.remote.fetch(saved, local, &progress);
        self.told("fetching", false, &progress, work, context)
    }

    pub(crate) fn collect(
        &self,
        key: &[u8; 32],
        age: Duration,
        context: &mut Context<'_>,
    ) -> Result<Collected, Failure> {
        let progress = Progress::default();
        self.told(
            "collecting",
            true,
            &progress,
            self.remote.collect(key, age, &progress),
            context,
        )
    }

    fn told<T>(
        &self,
        doing: &str,
        marked: bool,
        progress: &Progress,
        work: impl Future<Output = Result<T, RemoteError>>,
        context: &mut Context<'_>,
    ) -> Result<T, Failure> {
        self.runtime.block_on(async {
            tokio::pin!(work);
            let mut told = String::new();
            loop {
                tokio::select! {
                    done = &mut work => return done.map_err(|e| failure(&self.called, &e)),
                    // Stops cleanly, so that nothing stays marked as under way. An unmarked transfer is just ended.
                    _ = tokio::signal::ctrl_c(), if marked => progress.stop(),
                    () = tokio::time::sleep(TELL) => {
                        let now = format!("hop: {doing}{}", far(progress));
                        if now != told {
                            writeln!(context.err, "{now}")?;
                            told = now;
                        }
                    }
                }
            }
        })
    }
}

fn far(progress: &Progress) -> String {
    let done = progress.done_bytes.load(Ordering::Relaxed);
    match progress.of_bytes.load(Ordering::Relaxed) {
        0 => String::new(),
        of => format!(", {} of {}", size(done), size(of)),
    }
}

/// Failure of a store: status 3 if a later try may succeed.
fn failure(called: &str, error: &RemoteError) -> Failure {
    let Failure::Failed(text) = Failure::of(error) else {
        unreachable!("an error with its causes is a failure")
    };
    let text = format!("{called}: {text}");
    if error.is_away() {
        Failure::Unreachable(text)
    } else {
        Failure::Failed(text)
    }
}

/// The same failure, with more to it.
pub(crate) fn adding(failure: Failure, more: &str) -> Failure {
    match failure {
        Failure::Failed(text) => Failure::Failed(format!("{text}; {more}")),
        Failure::Unreachable(text) => Failure::Unreachable(format!("{text}; {more}")),
        other => other,
    }
}

/// Puts a proven state into a folder, in place of the former one.
pub(crate) fn install(saved: &Saved, folder: &Path) -> Result<(), Failure> {
    let write = || -> io::Result<()> {
        let above = folder.parent().unwrap_or_else(|| Path::new("/"));
        fs::DirBuilder::new().recursive(true).mode(0o700).create(above)?;
        let made = tempfile::Builder::new().prefix(".fetched-").tempdir_in(above)?;
        for (name, bytes) in [("log", &saved.log), ("head", &saved.head.raw)] {
            let mut file = fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(made.path().join(name))?;
            file.write_all(bytes)?;
        }
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
        fs::rename(made.keep(), folder)
    };
    write().map_err(|e| Failure::Failed(format!("the state can't be written to {}: {e}", folder.display())))
}
