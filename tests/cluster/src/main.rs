//! `devcluster`: a real Slurm cluster of several nodes on one machine, up and down by one command.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};
use devcluster::{Cluster, Options, Status, UpOutcome, Variant};

/// A real Slurm cluster of several nodes on one machine.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    /// Everything of the cluster lies below this directory.
    #[arg(
        long,
        global = true,
        env = "HOP_DEV_BASE",
        default_value = "/srv/gresshopper-dev"
    )]
    base: PathBuf,
    #[command(subcommand)]
    command: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Bring the cluster up; what runs already is left alone.
    Up(UpArgs),
    /// Stop what was started and take away all that was made outside the base directory.
    Down {
        /// Remove the base directory too.
        #[arg(long)]
        purge: bool,
    },
    /// What runs; exit status 3 unless all of it does.
    Status {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Shell exports for working with the cluster from outside.
    Env,
    /// Run a command inside the cluster.
    Exec(ExecArgs),
    /// Make what a variant needs beforehand.
    Prepare {
        /// The variant.
        variant: Preparable,
    },
    /// Kill a node's slurmd with SIGKILL.
    KillSlurmd {
        /// The node.
        node: String,
    },
    /// Start a node's slurmd and wait until the node can take jobs.
    StartSlurmd {
        /// The node.
        node: String,
    },
    /// Kill everything that runs on a node, as when its machine loses power.
    LoseNode {
        /// The node.
        node: String,
    },
    /// Stop everything that runs on a node, as when its virtual machine is paused.
    PauseNode {
        /// The node.
        node: String,
    },
    /// Let a paused node go on.
    ResumeNode {
        /// The node.
        node: String,
    },
    /// Stop slurmctld.
    StopSlurmctld {
        /// With SIGKILL.
        #[arg(long)]
        kill: bool,
    },
    /// Start slurmctld and wait until it answers.
    StartSlurmctld,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Preparable {
    /// The chroot of Debian 13 with Slurm 24.11.
    Trixie,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum VariantChoice {
    /// v1 where the devices controller is on cgroup v1, else v2.
    Auto,
    /// The host's Slurm on cgroup v1.
    V1,
    /// The host's Slurm on cgroup v2.
    V2,
    /// Debian 13's Slurm in a chroot, on cgroup v2.
    Trixie,
}

#[derive(Debug, Args)]
struct UpArgs {
    /// Tells the clusters of one machine apart: their node names, ports and devices.
    #[arg(long, default_value_t = 0)]
    index: u16,
    /// Which Slurm series on which cgroup version.
    #[arg(long, value_enum, default_value_t = VariantChoice::Auto)]
    variant: VariantChoice,
    /// Nodes of partition `notebook`.
    #[arg(long, default_value_t = 4)]
    nodes: u16,
    /// CLOUD nodes of partition `burst`, powered up and down by Slurm.
    #[arg(long, default_value_t = 2)]
    burst_nodes: u16,
    /// Fake GPUs per node.
    #[arg(long, default_value_t = 2)]
    gpus_per_node: u16,
    /// A real GPU's device file instead of fake ones, on a cluster of one node; again for each further GPU.
    #[arg(long = "gpu-file")]
    gpu_files: Vec<PathBuf>,
    /// The machine's real cores with ConstrainCores=yes, instead of 32 pretended ones.
    #[arg(long)]
    real_cores: bool,
    /// TaskPlugin task/affinity besides task/cgroup.
    #[arg(long)]
    task_affinity: bool,
    /// A file whose lines are added to slurm.conf.
    #[arg(long)]
    conf_extra: Option<PathBuf>,
    /// A line for plugstack.conf.
    #[arg(long)]
    plugstack: Option<String>,
    /// Seconds to wait for device numbers that other clusters of this machine hold.
    #[arg(long, env = "HOP_DEV_PATIENCE", default_value_t = 0)]
    patience: u64,
    /// A further directory to be seen inside variant trixie.
    #[arg(long = "bind")]
    binds: Vec<PathBuf>,
}

#[derive(Debug, Args)]
struct ExecArgs {
    /// The user.
    #[arg(long, short, default_value = "root")]
    user: String,
    /// Working directory; the home unless told, for root the present one.
    #[arg(long, short = 'C')]
    chdir: Option<PathBuf>,
    /// NAME=VALUE for the command's environment, or NAME to pass it on.
    #[arg(long, short)]
    env: Vec<String>,
    /// The command.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

impl UpArgs {
    fn options(self, base: PathBuf) -> Result<Options> {
        let conf_extra = match &self.conf_extra {
            Some(file) => {
                std::fs::read_to_string(file).with_context(|| format!("can't read {}", file.display()))?
            }
            None => String::new(),
        };
        let variant = match self.variant {
            VariantChoice::Auto => Variant::of_host()?,
            VariantChoice::V1 => Variant::V1,
            VariantChoice::V2 => Variant::V2,
            VariantChoice::Trixie => Variant::Trixie,
        };
        Ok(Options {
            base,
            index: self.index,
            variant,
            nodes: self.nodes,
            burst_nodes: self.burst_nodes,
            gpus_per_node: self.gpus_per_node,
            gpu_files: self.gpu_files,
            real_cores: self.real_cores,
            task_affinity: self.task_affinity,
            conf_extra,
            plugstack: self.plugstack,
            binds: self.binds,
        })
    }
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("devcluster: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    let base = cli.base;
    match cli.command {
        Verb::Up(args) => {
            let patience = Duration::from_secs(args.patience);
            up(&Cluster::new(args.options(base)?)?.patient(patience))?;
        }
        Verb::Down { purge } => {
            if Cluster::exists(&base) {
                Cluster::open(&base)?.down(purge)?;
            } else {
                eprintln!("devcluster: there is no cluster at {}", base.display());
            }
        }
        Verb::Status { json } => return status(&Cluster::open(&base)?.status()?, json),
        Verb::Env => {
            for (name, value) in Cluster::open(&base)?.env() {
                println!("export {name}='{value}'");
            }
        }
        Verb::Exec(args) => return Err(exec(&Cluster::open(&base)?, args)),
        Verb::Prepare {
            variant: Preparable::Trixie,
        } => {
            devcluster::prepare_trixie(|step| eprintln!("devcluster: {step}"))?;
        }
        Verb::KillSlurmd { node } => Cluster::open(&base)?.kill_slurmd(&node)?,
        Verb::StartSlurmd { node } => Cluster::open(&base)?.start_slurmd(&node)?,
        Verb::LoseNode { node } => Cluster::open(&base)?.lose_node(&node)?,
        Verb::PauseNode { node } => Cluster::open(&base)?.pause_node(&node)?,
        Verb::ResumeNode { node } => Cluster::open(&base)?.resume_node(&node)?,
        Verb::StopSlurmctld { kill } => Cluster::open(&base)?.stop_slurmctld(kill)?,
        Verb::StartSlurmctld => Cluster::open(&base)?.start_slurmctld()?,
    }
    Ok(ExitCode::SUCCESS)
}

fn up(cluster: &Cluster) -> Result<()> {
    let started = std::time::Instant::now();
    let outcome = cluster.up()?;
    let o = cluster.options();
    let what = match outcome {
        UpOutcome::Started => "is up",
        UpOutcome::AlreadyUp => "was up already",
        UpOutcome::Mended => "is whole again",
    };
    let gpus = match o.gpu_files.len() {
        0 => format!("{} fake GPUs each", o.gpus_per_node),
        real => format!("{real} real GPUs"),
    };
    eprintln!(
        "devcluster: {} ({}, {} nodes with {gpus}) {what} at {} after {:.1} s",
        o.cluster_name(),
        o.variant,
        o.nodes,
        o.base.display(),
        started.elapsed().as_secs_f32()
    );
    Ok(())
}

fn status(status: &Status, json: bool) -> Result<ExitCode> {
    if json {
        println!(
            "{}",
            serde_json::to_string_pretty(status).context("can't write JSON")?
        );
    } else {
        println!("{} {}", status.base.display(), status.variant);
        for (daemon, pid) in &status.running {
            println!("  {daemon:<14} {pid}");
        }
        for daemon in &status.missing {
            println!("  {daemon:<14} not running");
        }
        for node in &status.nodes {
            println!("  node {:<9} {}", node.node, node.state);
        }
    }
    Ok(if status.missing.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(3)
    })
}

/// Becomes the command; comes back only with the error that kept it from that.
fn exec(cluster: &Cluster, args: ExecArgs) -> anyhow::Error {
    let (program, rest) = args.command.split_first().expect("clap requires a command");
    let mut command = match cluster.command(&args.user, args.chdir.as_deref(), program) {
        Ok(command) => command,
        Err(e) => return e,
    };
    command.args(rest);
    for pair in &args.env {
        match pair.split_once('=') {
            Some((name, value)) => drop(command.env(name, value)),
            None => drop(std::env::var_os(pair).map(|value| command.env(pair, value))),
        }
    }
    anyhow::Error::new(command.exec()).context(format!("can't run {program}"))
}
