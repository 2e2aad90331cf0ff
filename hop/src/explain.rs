//! `hop explain`: why a cell waits or waited, in sentences.

use crate::context::Context;
use crate::failure::Failure;
use crate::hopd::unexpected;
use crate::kernels;
use hop_api::message::{Request, Response};
use hop_words::id::CellId;

const EXAMPLES: &str = "\
Examples:
  hop explain 1a2b3c4d              the waiting cell of the kernel whose id begins so
  hop explain lecture.ipynb         the same by the notebook's name
  hop explain KERNEL CELL           one cell, also one that has run already";

/// Why a cell waits, or waited.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Kernel: its id, the beginning of its id, or the notebook's name
    kernel: String,
    /// The cell's msg_id; default: the waiting cell
    cell: Option<String>,
    /// JSON
    #[arg(long, value_name = "VERSION", num_args = 0..=1, require_equals = true, default_missing_value = "v1", value_parser = ["v1"])]
    json: Option<String>,
}

pub(crate) fn run(args: &Args, context: &mut Context<'_>) -> Result<(), Failure> {
    let kernel = kernels::find(&args.kernel, context)?;
    let cell = args.cell.as_deref().map(CellId::from);
    let explanation = match context.hopd.ask(Request::Explain { kernel, cell })? {
        Response::Explanation(explanation) => explanation,
        other => return Err(unexpected(&other)),
    };
    if args.json.is_some() {
        let document = serde_json::json!({
            "version": "v1",
            "command": "explain",
            "kernel_id": explanation.kernel,
            "cell_id": explanation.cell,
            "sentences": explanation.sentences,
        });
        writeln!(
            context.out,
            "{}",
            serde_json::to_string_pretty(&document).map_err(|e| Failure::of(&e))?
        )?;
        return Ok(());
    }
    for sentence in &explanation.sentences {
        let clean: String = sentence
            .chars()
            .map(|c| if c.is_control() { '?' } else { c })
            .collect();
        writeln!(context.out, "{clean}")?;
    }
    Ok(())
}
