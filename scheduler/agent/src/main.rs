//! The agent of a pilot: no other process grants leases on its node.
//!
//! `run` is the batch step's program, `hold` the task of each lease's step. Decisions are in [`state`].

mod epochs;
mod hold;
mod link;
mod pilot;
mod run;
mod state;
mod steps;

use clap::{Parser, Subcommand};
use hop_words::error::chain;
use std::process::ExitCode;

#[derive(Debug, Parser)]
#[command(
    name = "hop-agent",
    version,
    about = "The agent of a Gresshopper pilot; hopd starts it"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The batch step's program
    Run(run::Args),
    /// The task of a lease's step
    Hold(hold::Args),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Hold(args) => hold::hold(&args),
        Command::Run(args) => {
            tracing_subscriber::fmt()
                .with_env_filter(
                    tracing_subscriber::EnvFilter::try_from_env("GRESSHOPPER_LOG")
                        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info")),
                )
                .with_ansi(false)
                .with_writer(std::io::stderr)
                .init();
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(anyhow::Error::from)
                .and_then(|runtime| {
                    let done = runtime.block_on(run::run(&args));
                    runtime.shutdown_background();
                    done
                })
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hop-agent: {}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}
