//! The scheduler daemon: a thin shell round `hop-core`.
//!
//! One task owns the core ([`scheduler`]); connections ([`server`]) and Slurm ([`slurm`]) are tasks that send it
//! events. It runs as the service account and holds one lock per state directory.

mod access;
mod accounting_rows;
mod admission;
mod inbox;
mod limits;
mod names;
mod parks;
mod pilot_jobs;
mod scheduler;
mod server;
mod slurm;
mod views;

use crate::inbox::Inbox;
use crate::names::Names;
use crate::scheduler::Scheduler;
use crate::server::Server;
use anyhow::{Context, Result, bail};
use clap::Parser;
use hop_api::config::Config;
use hop_api::identity::{Munge, user_id};
use hop_store::{Accounting, Journal};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

/// How long a first start waits for Slurm's limits before it serves without.
const LIMITS_PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Parser)]
#[command(name = "hopd", version, about = "The scheduler daemon of Gresshopper")]
struct Arguments {
    /// The configuration file [default: $GRESSHOPPER_CONF or /etc/gresshopper/gresshopper.toml]
    #[arg(long)]
    config: Option<PathBuf>,
    /// Check the configuration and exit
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("GRESSHOPPER_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info")),
        )
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
    match start(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hopd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(arguments: &Arguments) -> Result<()> {
    let config = match &arguments.config {
        Some(path) => Config::read(path)?,
        None => Config::load()?,
    };
    if arguments.check {
        println!("the configuration is fine: {} pools", config.pool.len());
        return Ok(());
    }
    let service_uid = check_account(&config)?;
    let _lock = open_state(&config.hopd.state_dir)?;
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(run(config, service_uid))
}

fn check_account(config: &Config) -> Result<u32> {
    let user = &config.service_user;
    let uid = user_id(user.as_str())
        .with_context(|| format!("this host knows no user {user} (service_user in the configuration)"))?;
    let me = rustix::process::geteuid().as_raw();
    if me != uid {
        bail!(
            "hopd runs as {user} (uid {uid}), not as uid {me}: pilots are that account's and MUNGE credentials are made for it"
        );
    }
    Ok(uid)
}

/// Makes the state directory and takes its lock, which goes with the process however that ends.
fn open_state(dir: &Path) -> Result<File> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .with_context(|| format!("can't make {}", dir.display()))?;
    let meta = std::fs::metadata(dir)?;
    if meta.mode() & 0o077 != 0 || meta.uid() != rustix::process::geteuid().as_raw() {
        bail!(
            "{} must belong to the service account with mode 700",
            dir.display()
        );
    }
    let path = dir.join("lock");
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .with_context(|| format!("{}", path.display()))?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| anyhow::anyhow!("another hopd runs on {}", dir.display()))?;
    Ok(file)
}

async fn run(config: Config, service_uid: u32) -> Result<()> {
    let state = &config.hopd.state_dir;
    let (journal, snapshot) = Journal::open(&state.join("journal.redb"))?;
    let accounting = Accounting::open(&state.join("accounting.db"))?;
    let (listener, address) = server::listen(&config.hopd.listen)
        .await
        .with_context(|| format!("can't listen on {}", config.hopd.listen))?;
    info!(%address, term = %snapshot.term, entries = snapshot.entries.len(), "hopd {} starts", env!("CARGO_PKG_VERSION"));
    let inbox = Arc::new(Inbox::new(service_uid));
    let identity = Arc::new(Munge {
        socket: config.munge_socket.clone(),
    });
    let names = Names::of_host().context("can't start the thread that asks for users' names")?;
    let term = snapshot.term;
    let server = Server::new(identity, names, service_uid, term, inbox.clone(), &config);
    let mut scheduler = Scheduler::new(config, journal, term, snapshot.entries, accounting)?;
    scheduler.learn_limits(LIMITS_PATIENCE).await;
    let serving = tokio::spawn(server::serve(listener, Arc::new(server)));
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let stop = async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    };
    let refresh = signal(SignalKind::hangup())?;
    scheduler.run(&inbox, refresh, stop).await;
    serving.abort();
    Ok(())
}
