//! `hop-replica`: the batch step of a seat, a replica in it, and the little step that becomes the kernel.

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use hop_api::config::Config;
use hop_protocol::file::FrontFile;
use hop_protocol::step::Turn;
use hop_replica::leases::Leases;
use hop_replica::log::SeatLink;
use hop_replica::place::Place;
use hop_replica::spare::Spare;
use hop_replica::start::{self, Setup};
use hop_replica::{child, seat};
use hop_words::error::chain;
use hop_words::id::{Incarnation, JobId, NodeName};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    version,
    about = "Supervises a notebook's kernel on a compute node (started by hop-front)"
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one replica of a kernel: in a seat's step, or locally.
    Run {
        /// The kernel's folder with front.json.
        #[arg(long)]
        dir: PathBuf,
        #[arg(long)]
        incarnation: u32,
        #[command(flatten)]
        turn: TurnArgs,
    },
    /// Hold a seat: the batch step of a user's CPU-only job.
    Seat,
    /// Wait in a seat's step to become a replica of a kernel of this one's kind.
    #[command(hide = true)]
    Spare {
        /// The folder of a kernel that has a standby in the seat.
        #[arg(long)]
        dir: PathBuf,
        #[arg(long)]
        number: u32,
    },
    /// Become the kernel.
    #[command(hide = true)]
    Exec {
        #[arg(long)]
        parent: u32,
        #[arg(last = true, required = true)]
        argv: Vec<String>,
    },
}

/// When the replica runs the kernel's cells; at once without an option.
#[derive(clap::Args)]
#[group(multiple = false)]
struct TurnArgs {
    /// Wait with an empty kernel until the front moves the notebook's kernel here.
    #[arg(long)]
    standby: bool,
    /// Go on from the state of the kernel's group, which has elected this replica; end if it hasn't.
    #[arg(long)]
    elected: bool,
    /// Follow the log of the kernel's group until it elects this replica; end if it can't be followed.
    #[arg(long)]
    follows: bool,
}

impl TurnArgs {
    fn turn(&self) -> Turn {
        match (self.standby, self.elected, self.follows) {
            (true, ..) => Turn::Moved,
            (_, true, _) => Turn::Elected,
            (_, _, true) => Turn::Follows,
            _ => Turn::Now,
        }
    }
}

fn main() -> ExitCode {
    let filter =
        tracing_subscriber::EnvFilter::try_from_env("GRESSHOPPER_LOG").unwrap_or_else(|_| "warn".into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let done = match Args::parse().command {
        Command::Run {
            dir,
            incarnation,
            turn,
        } => in_runtime(replica(dir, Incarnation(incarnation), turn.turn())),
        Command::Seat => in_runtime(hold_seat()),
        Command::Spare { dir, number } => in_runtime(wait_as_spare(dir, number)),
        Command::Exec { parent, argv } => child::exec(parent, &argv).map(|never| match never {}),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hop-replica: {}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}

/// A single thread: the kernel's process is tied to the thread of its start, and no message crosses to another.
fn in_runtime(work: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done
}

async fn replica(dir: PathBuf, incarnation: Incarnation, turn: Turn) -> Result<()> {
    let file = FrontFile::read(&dir)?;
    let place = if file.launch.local {
        Place::local()
    } else {
        Place::from_slurm()?
    };
    let (leases, mut seat) = if file.launch.local {
        let reason = "this kernel runs without Slurm (hop-front in local mode), so there is no GPU to lend";
        (Leases::nobody(reason.into()), None)
    } else {
        let config = Config::load().context("can't read the configuration")?;
        (
            Leases::hopd(&config)?,
            Some(SeatLink::new(seat::take_place(place.seat.job).await?)),
        )
    };
    let elected = match &mut seat {
        Some(seat) if turn == Turn::Elected => seat.elected(&file.kernel, incarnation).await,
        _ => None,
    };
    if turn == Turn::Elected && elected.is_none() {
        anyhow::bail!("the kernel has another executor by now");
    }
    start::run(Setup {
        program: std::env::current_exe().context("can't find my own program file")?,
        dir,
        incarnation,
        file,
        place,
        leases,
        turn,
        seat,
        elected,
        spare: None,
    })
    .await
}

/// A replica in place before its kernel's need, with an interpreter that has imported a kernel's modules.
async fn wait_as_spare(dir: PathBuf, number: u32) -> Result<()> {
    let program = std::env::current_exe().context("can't find my own program file")?;
    let file = FrontFile::read(&dir)?;
    let place = Place::from_slurm()?;
    let config = Config::load().context("can't read the configuration")?;
    let mut spare = Spare::start(&program, &file, true).await?;
    let mut seat = SeatLink::new(seat::take_place(place.seat.job).await?);
    let called = tokio::select! {
        called = seat.called(number) => called,
        () = spare.ended() => anyhow::bail!("the spare interpreter has ended"),
    };
    let Some((dir, incarnation)) = called else {
        return Ok(());
    };
    let file = FrontFile::read(&dir)?;
    let elected = seat.elected(&file.kernel, incarnation).await;
    let elected = elected.context("the kernel has another executor by now")?;
    start::run(Setup {
        program,
        dir,
        incarnation,
        file,
        place,
        leases: Leases::hopd(&config)?,
        turn: Turn::Elected,
        seat: Some(seat),
        elected: Some(elected),
        spare: Some(spare),
    })
    .await
}

async fn hold_seat() -> Result<()> {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let job =
        number("SLURM_JOB_ID").context("a seat is a Slurm job's batch step: SLURM_JOB_ID is not set")?;
    let node: NodeName = std::env::var("SLURMD_NODENAME")
        .context("SLURMD_NODENAME is not set")?
        .into();
    let mem = number("SLURM_MEM_PER_NODE").unwrap_or(0);
    let cpus = number("SLURM_CPUS_ON_NODE").unwrap_or(1);
    let config = Config::load().ok();
    seat::run(config.as_ref(), JobId(job as u32), node, mem, cpus as u16).await
}
