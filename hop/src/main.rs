//! `hop`: the command line of Gresshopper.
//!
//! One module per subcommand. To add one: write `src/NAME.rs` with `pub(crate) struct Args` (clap's derive) and
//! `pub(crate) fn run(args: &Args, context: &mut Context<'_>) -> Result<(), Failure>`, and add two lines to
//! [`Command`] and [`dispatch`]. Data goes to `context.out`, all else to `context.err`. A failure is a [`Failure`],
//! whose kind is the exit status. Commands that list records use [`output`] with its formats. `context.hopd` connects
//! on its first use.

mod acct;
mod asked;
mod cancel;
mod context;
mod doctor;
mod explain;
mod failure;
mod files;
mod filter;
mod generate;
mod gpu;
mod gpu_restart;
mod hibernate;
mod hopd;
mod info;
mod kernels;
mod kernelspec;
mod metrics;
mod migrate;
mod open;
mod output;
#[cfg(test)]
mod pages;
mod plugin;
mod queue;
mod relay;
mod release;
mod report;
mod run;
mod sim;
mod state;
mod state_remote;
mod time;
mod trace;
#[cfg(test)]
mod transcripts;
mod values;

use clap::{Parser, Subcommand};
use context::Context;
use failure::Failure;
use output::Plain;
use std::process::ExitCode;

/// See and steer Gresshopper: leases of GPUs, waiting cells and their reasons, usage.
#[derive(Debug, Parser)]
// Slurm's commands take the beginning of a long option, too.
#[command(name = "hop", version, after_help = failure::EXIT_STATUS, infer_long_args = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show accounting: leases, and the cells that they served
    Acct(acct::Args),
    /// Usage and waits in sums: GPU-hours, cells, how long they waited
    Report(report::Args),
    /// Show waiting cells and leases in use
    Queue(queue::Args),
    /// Show the pools: nodes, pilots and their lent GPUs
    Info(info::Args),
    /// Numbers for a monitoring system, in Prometheus' text format
    Metrics(metrics::Args),
    /// Why a cell waits, or waited
    Explain(explain::Args),
    /// End a lease, a waiting cell, or a kernel
    Cancel(cancel::Args),
    /// Have blocked GPUs looked at again, and lent if they are free (operators)
    Release(release::Args),
    /// All kernels, open or hibernated
    Kernels(kernels::Args),
    /// Move a kernel to another node, with its variables
    Migrate(migrate::Args),
    /// Save kernels whole in their user's home, and end their processes
    Hibernate(hibernate::Args),
    /// Bring a hibernated kernel back
    Wake(hibernate::WakeArgs),
    /// Forget hibernated kernels: their variables are lost
    Forget(hibernate::ForgetArgs),
    /// Open a notebook in your Jupyter server, which JupyterHub starts if need be
    Open(open::Args),
    /// Run a whole notebook unattended, by a deadline
    Run(run::Args),
    /// GPU memory to host memory and back, and what is on the devices
    Gpu(gpu::Args),
    /// Save, compare, restore and export the state of a notebook
    State(state::Args),
    /// Kernels for Jupyter that run through Gresshopper
    Kernelspec(kernelspec::Args),
    /// Simulate policies on a trace
    Sim(sim::Args),
    /// Export what ran as a trace
    Trace(trace::Args),
    /// Find faults of the installation, and say how to mend them
    Doctor(doctor::Args),
    /// Put the SPANK plugin into plugstack.conf, or take it out
    Plugin(plugin::Args),
    /// Write man pages and completions
    #[command(hide = true)]
    Generate(generate::Args),
}

fn dispatch(command: &Command, context: &mut Context<'_>) -> Result<(), Failure> {
    match command {
        Command::Acct(args) => acct::run(args, context),
        Command::Report(args) => report::run(args, context),
        Command::Queue(args) => queue::run(args, context),
        Command::Info(args) => info::run(args, context),
        Command::Metrics(args) => metrics::run(args, context),
        Command::Explain(args) => explain::run(args, context),
        Command::Cancel(args) => cancel::run(args, context),
        Command::Release(args) => release::run(args, context),
        Command::Kernels(args) => kernels::run(args, context),
        Command::Migrate(args) => migrate::run(args, context),
        Command::Hibernate(args) => hibernate::run(args, context),
        Command::Wake(args) => hibernate::wake(args, context),
        Command::Forget(args) => hibernate::forget(args, context),
        Command::Open(args) => open::run(args, context),
        Command::Run(args) => run::run(args, context),
        Command::Gpu(args) => gpu::run(args, context),
        Command::State(args) => state::run(args, context),
        Command::Kernelspec(args) => kernelspec::run(args, context),
        Command::Sim(args) => sim::run(args, context),
        Command::Trace(args) => trace::run(args, context),
        Command::Doctor(args) => doctor::run(args, context),
        Command::Plugin(args) => plugin::run(args, context),
        Command::Generate(args) => generate::run(args, context),
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let (mut out, mut err) = (Plain(std::io::stdout().lock()), Plain(std::io::stderr()));
    let mut context = Context::of_process(&mut out, &mut err);
    let result =
        dispatch(&cli.command, &mut context).and_then(|()| context.out.flush().map_err(Failure::from));
    failure::report(result, context.err)
}
