//! `hop cancel`: ends leases, waiting cells, kernels.

use crate::context::Context;
use crate::failure::Failure;
use crate::hopd::unexpected;
use crate::kernels;
use hop_api::message::{CancelTarget, Request, Response};

const EXAMPLES: &str = "\
Examples:
  hop cancel 12                 take lease 12 back: its cell is interrupted, the kernel lives on
  hop cancel KERNEL/CELL        forget a waiting cell, or end a running one
  hop cancel --kernel KERNEL    close the kernel: its variables are lost

KERNEL may be the beginning of the id, or the notebook's name.";

/// End a lease, a waiting cell, or a kernel.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Leases (numbers) and cells (KERNEL/CELL)
    #[arg(value_name = "LEASE|KERNEL/CELL", required_unless_present = "kernels")]
    targets: Vec<String>,
    /// Close these kernels for good
    #[arg(short = 'k', long = "kernel", value_name = "KERNEL")]
    kernels: Vec<String>,
    /// Say what was cancelled
    #[arg(short = 'v', long)]
    verbose: bool,
}

/// All are tried; the status tells whether all were done.
pub(crate) fn run(args: &Args, context: &mut Context<'_>) -> Result<(), Failure> {
    let cells = args.targets.iter().map(|word| (word, false));
    let kernels = args.kernels.iter().map(|word| (word, true));
    let mut failures = Vec::new();
    for (word, is_kernel) in cells.chain(kernels) {
        match target(word, is_kernel, context).and_then(|target| cancel(target, context)) {
            Ok(()) if args.verbose => writeln!(context.err, "hop: {word} is cancelled.")?,
            Ok(()) => {}
            Err(failure) if failure.is_of_all_arguments() => return Err(failure),
            Err(failure) => failures.push(format!("{word}: {failure}")),
        }
    }
    match failures.is_empty() {
        true => Ok(()),
        false => Err(Failure::Failed(failures.join("\nhop: "))),
    }
}

fn target(word: &str, is_kernel: bool, context: &Context<'_>) -> Result<CancelTarget, Failure> {
    if is_kernel {
        return Ok(CancelTarget::Kernel {
            kernel: kernels::find(word, context)?,
        });
    }
    if let Some((kernel, cell)) = word
        .split_once('/')
        .filter(|(kernel, cell)| !kernel.is_empty() && !cell.is_empty())
    {
        return Ok(CancelTarget::Cell {
            kernel: kernels::find(kernel, context)?,
            cell: cell.into(),
        });
    }
    match word.parse() {
        Ok(lease) => Ok(CancelTarget::Lease { lease }),
        Err(_) => Err(Failure::Usage(format!(
            "{word:?} is neither a lease's number nor KERNEL/CELL; to close a kernel write `hop cancel --kernel {word}`"
        ))),
    }
}

fn cancel(target: CancelTarget, context: &Context<'_>) -> Result<(), Failure> {
    match context.hopd.ask(Request::Cancel(target))? {
        Response::Done => Ok(()),
        other => Err(unexpected(&other)),
    }
}
