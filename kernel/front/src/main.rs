//! `hop-front`: reads its orders on standard input, and reports on standard output (`owner`); or is a kernelspec's
//! `argv` (`launcher`).

use anyhow::{Context, Result};
use clap::Parser;
use hop_front::owner::{MAX_LINE, Said, Start, VERSION, Wish, say};
use hop_front::{claim, launch, launcher, owner, run};
use hop_protocol::file::states_dir;
use hop_words::error::{chain, system_words};
use hop_words::line::tokio::Lines;
use hop_words::line::{self, LineError};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::IsTerminal;
use std::process::ExitCode;
use tokio::io::BufReader;
use tokio::sync::mpsc;

#[derive(Parser)]
#[command(
    version,
    about = "Speaks Jupyter's protocol for one kernel (started by the kernel provisioner)"
)]
struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Runs a kernel for a client that starts the kernelspec's command itself
    Kernel(launcher::Args),
    /// Tells the user's saved kernels that a notebook, or a folder of notebooks, has another path
    Rename {
        old: String,
        new: String,
        /// A kernel whose front hears it from its owner (may be given several times)
        #[arg(long, value_name = "KERNEL")]
        told: Vec<String>,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    let filter =
        tracing_subscriber::EnvFilter::try_from_env("GRESSHOPPER_LOG").unwrap_or_else(|_| "warn".into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    // A single thread: no message crosses to another thread on its way.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("hop-front: {}", system_words(&error));
            return ExitCode::FAILURE;
        }
    };
    let done = match args.verb {
        None => runtime.block_on(front()),
        Some(Verb::Rename { old, new, told }) => {
            owner::speak_to_people();
            runtime.block_on(rename(&told, &old, &new))
        }
        Some(Verb::Kernel(args)) => {
            owner::speak_to_people();
            launcher::start(args).and_then(|start| runtime.block_on(launched(start)))
        }
    };
    runtime.shutdown_background();
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let reason = chain(&*error);
            eprintln!("hop-front: {reason}");
            say(&Said::Failed { reason });
            ExitCode::FAILURE
        }
    }
}

async fn front() -> Result<bool> {
    let mut lines = Lines::new(BufReader::new(tokio::io::stdin()), MAX_LINE);
    let line = lines.next_line().await.context("can't read what to run")?;
    // The line is empty if the owner ends before its order; it is then refused.
    let start: Start =
        line::decode(&line.unwrap_or_default()).context("what to run is not of this release")?;
    anyhow::ensure!(
        start.version == VERSION,
        "the provisioner is of another release than hop-front: install the same"
    );
    let (wish, wishes) = mpsc::channel(1);
    tokio::spawn(async move {
        let said = async {
            loop {
                let line = match lines.next_line().await {
                    Ok(Some(line)) => line,
                    // As a line that is not understood.
                    Err(LineError::TooLong { .. }) => continue,
                    Ok(None) | Err(_) => return Wish::Gone,
                };
                match Wish::read(&line) {
                    Some(Wish::Hibernate) => return Wish::Hibernate,
                    // The front may have ended first.
                    Some(wanted) => drop(wish.send(wanted).await),
                    None => {}
                }
            }
        };
        let wanted = tokio::select! {
            wanted = said => wanted,
            () = parent_gone() => Wish::Gone,
        };
        let _ = wish.send(wanted).await;
    });
    run::run(start, wishes).await
}

/// Tells saved kernels that a notebook, or a folder of notebooks, has another path, and `hop` its new name.
async fn rename(told: &[String], old: &str, new: &str) -> Result<bool> {
    let states = states_dir().context("there is no home folder (HOME is not set)")?;
    let told = told.iter().map(|kernel| kernel.as_str().into()).collect();
    let renamed = claim::rename(&states, &told, old, new);
    let renamed = renamed.context("a saved kernel can't be told its notebook's new path")?;
    if !renamed.is_empty() {
        launch::tell_names(&renamed).await;
    }
    Ok(true)
}

/// A front for a client without further words: the front ends with the client.
async fn launched(start: Start) -> Result<bool> {
    let (wish, wishes) = mpsc::channel(1);
    tokio::spawn(async move {
        parent_gone().await;
        // The front may have ended first.
        let _ = wish.send(Wish::Gone).await;
    });
    run::run(start, wishes).await
}

/// Waits for the death of the parent process. The pipe alone isn't enough: another process may have inherited it.
async fn parent_gone() {
    let parent = rustix::process::getppid().filter(|p| *p != Pid::INIT);
    let Some(parent) = parent else {
        return std::future::pending().await;
    };
    let Ok(fd) = pidfd_open(parent, PidfdFlags::empty()) else {
        return std::future::pending().await;
    };
    let waited = tokio::task::spawn_blocking(move || {
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        while poll(&mut fds, None) == Err(rustix::io::Errno::INTR) {}
    });
    // An error is no news of the parent.
    if waited.await.is_err() {
        std::future::pending().await
    }
}
