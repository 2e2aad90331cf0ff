//! The scheduler daemon: a thin shell round `hop-core`.
//!
//! One task owns the core ([`scheduler`]). Connections ([`server`]) and Slurm ([`slurm`]) are tasks that send events to
//! the scheduler. The daemon runs as the service account and holds one lock per state directory.

mod access;
mod accounting_rows;
mod admission;
mod caller;
mod estimates;
mod inbox;
mod installation;
mod limits;
mod names;
mod parks;
mod pilot_jobs;
mod scheduler;
mod server;
mod slurm;
mod state_dir;
mod supply;
mod views;

use crate::inbox::Inbox;
use crate::names::Names;
use crate::scheduler::Scheduler;
use crate::server::Server;
use crate::slurm::SlurmSide;
use crate::state_dir::{JOURNAL, StateDir};
use anyhow::{Context, Result, bail};
use clap::Parser;
use hop_api::config::Config;
use hop_api::identity::{Identity, Munge, user_id};
use hop_store::{Accounting, Journal};
use hop_words::error::chain;
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
    /// The configuration file, on the pools' nodes too [default: $GRESSHOPPER_CONF or /etc/gresshopper/gresshopper.toml]
    #[arg(long)]
    config: Option<PathBuf>,
    /// Check the configuration and exit
    #[arg(long)]
    check: bool,
    /// Set an unreadable journal aside, for the next start to make a new one, and exit
    #[arg(long, conflicts_with = "check")]
    recover: bool,
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
            eprintln!("hopd: {}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn start(arguments: &Arguments) -> Result<()> {
    let file = std::path::absolute(arguments.config.clone().unwrap_or_else(Config::path))?;
    let config = Config::read(&file)?;
    if arguments.check {
        let pools: Vec<&str> = config.pool.keys().map(|name| name.as_str()).collect();
        match pools[..] {
            [] => println!("the configuration is fine, but lends nothing: it has no [pool.NAME]"),
            _ => println!("the configuration is fine; pools: {}", pools.join(", ")),
        }
        for doubt in config.doubts() {
            eprintln!("hopd: {doubt}");
        }
        for missing in missing_here(&config) {
            eprintln!("hopd: on this host {missing}");
        }
        return Ok(());
    }
    let service_uid = check_account(&config)?;
    let state = StateDir::open(&config.hopd.state_dir)?;
    if arguments.recover {
        return recover(&state);
    }
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(run(config, file, &state, service_uid))
}

/// Things that the configuration names and this host lacks, in clauses. The file may be for other hosts.
fn missing_here(config: &Config) -> Vec<String> {
    let mut missing = Vec::new();
    let operators = config.operators.iter().map(|user| (user, "operators"));
    for (user, key) in std::iter::once((&config.service_user, "service_user")).chain(operators) {
        match user_id(user.as_str()) {
            Ok(Some(_)) => {}
            Ok(None) => missing.push(format!("there is no user {user} ({key})")),
            Err(error) => missing.push(format!("{user} ({key}) can't be looked up: {error}")),
        }
    }
    let state = &config.hopd.state_dir;
    if state.exists() && !state.is_dir() {
        missing.push(format!("{} is no directory (hopd.state_dir)", state.display()));
    } else if !state.parent().is_none_or(Path::is_dir) {
        missing.push(format!(
            "{} can't be made (hopd.state_dir): what is above it isn't there",
            state.display()
        ));
    }
    let agent = Some(config.prefix.join("bin/hop-agent"));
    for (key, path) in [
        ("prefix", agent),
        ("jupyter_python", config.jupyter_python.clone()),
    ] {
        if let Some(path) = path.filter(|path| !path.exists()) {
            missing.push(format!("{} is not there ({key})", path.display()));
        }
    }
    let socket = config.munge_socket.clone();
    if let Err(error) = (Munge { socket }).encode(b"", rustix::process::geteuid().as_raw()) {
        missing.push(format!("hopd would serve nobody: {error}"));
    }
    missing
}

fn check_account(config: &Config) -> Result<u32> {
    let user = &config.service_user;
    let uid = user_id(user.as_str())?
        .with_context(|| format!("this host knows no user {user} (service_user in the configuration)"))?;
    let me = rustix::process::geteuid().as_raw();
    if me != uid {
        bail!(
            "hopd runs as {user} (uid {uid}), not as uid {me}: pilots are that account's and MUNGE credentials are made for it"
        );
    }
    Ok(uid)
}

fn recover(state: &StateDir) -> Result<()> {
    match state.set_journal_aside()? {
        Some(aside) => eprintln!(
            "hopd: the journal is now {}. Start hopd: leases that still run are ended, and agents, kernels and waiting cells \
             report themselves; the accounting stays.",
            aside.display()
        ),
        None => eprintln!("hopd: there is no journal to be set aside"),
    }
    Ok(())
}

async fn run(config: Config, file: PathBuf, state: &StateDir, service_uid: u32) -> Result<()> {
    let accounting = Accounting::open_known(&state.path("accounting.db"), state.has_begun())?;
    let known = state.known_term(&accounting)?;
    let (journal, snapshot) = Journal::open_after(&state.path(JOURNAL), known)
        .context("`hopd --recover` sets a journal aside that can't be read, and keeps the accounting")?;
    state.write_term(snapshot.term)?;
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
    let installation = state.installation()?;
    let slurm = SlurmSide::new(config.clone(), file, installation);
    let mut scheduler = Scheduler::new(config, slurm, journal, term, snapshot.entries, accounting)?;
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
    let ended = scheduler.run(&inbox, refresh, state, stop).await;
    serving.abort();
    ended.map_err(|why| anyhow::anyhow!("{why}; this one ends"))
}
