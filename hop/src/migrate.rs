//! `hop migrate`: moves a kernel to another node.

use crate::context::Context;
use crate::failure::Failure;
use crate::hopd::unexpected;
use crate::kernels;
use crate::values::SECONDS;
use hop_api::message::{KernelState, Request, Response};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  hop migrate lecture.ipynb            to the node that suits it best
  hop migrate 1a2b3c4d --to n3         there
  hop migrate KERNEL --no-wait         ask for it without waiting for the end

Cells go on while the kernel's state is copied; it changes place between two cells.";

/// Move a kernel to another node, with its variables.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Kernel: its id, the beginning of its id, or the notebook's name
    kernel: String,
    /// Target node; default: the kernel's best
    #[arg(long, value_name = "NODE")]
    to: Option<String>,
    /// Also a kernel with unsavable objects, which are lost
    #[arg(long)]
    force: bool,
    /// Don't wait until it has moved
    #[arg(long)]
    no_wait: bool,
    /// Longest wait, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(SECONDS))]
    timeout: u64,
}

pub(crate) fn run(args: &Args, context: &mut Context<'_>) -> Result<(), Failure> {
    let kernel = kernels::find(&args.kernel, context)?;
    let request = Request::Migrate {
        kernel: kernel.clone(),
        to: args.to.as_deref().map(Into::into),
        force: args.force,
    };
    match context.hopd.ask(request)? {
        Response::Done => {}
        other => return Err(unexpected(&other)),
    }
    if args.no_wait {
        return Ok(());
    }
    let patience = Duration::from_secs(args.timeout);
    let watched = kernels::watch(std::slice::from_ref(&kernel), patience, context, |row| {
        let moves = row.moving.is_some() || row.state == KernelState::Moving;
        (!moves).then(|| (row.move_failed.clone(), kernels::node(row)))
    })?;
    match watched.settled.into_iter().next() {
        Some((_, (None, _))) => Ok(()),
        // The failure may be that another replica has taken over meanwhile, elsewhere.
        Some((_, (Some(failed), node))) => {
            let is_on = match node.is_empty() {
                true => String::new(),
                false => format!("; it is on {node}"),
            };
            Err(Failure::Failed(format!(
                "kernel {kernel} did not move to {}: {}{is_on}",
                failed.to, failed.reason
            )))
        }
        None if !watched.closed.is_empty() => Err(Failure::Failed(format!(
            "kernel {kernel} did not move: it was closed meanwhile"
        ))),
        None => Err(Failure::Failed(format!(
            "kernel {kernel} has not moved within {} s: `hop kernels` shows whether it still does",
            args.timeout
        ))),
    }
}
