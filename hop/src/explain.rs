//! `hop explain`: why a cell waits or waited, in sentences.
//!
//! `hopd` answers with typed items, which are worded here, and with a sentence of its own for each.

use crate::context::Context;
use crate::failure::Failure;
use crate::hopd::unexpected;
use crate::kernels;
use crate::output::Whose;
use hop_api::message::{
    Explanation, KernelRow, KernelState, KernelsQuery, QueueQuery, QueueRow, Request, Response, Told,
};
use hop_words::id::{CellId, KernelId, UserName};
use hop_words::text::plain;
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  hop explain                       all your waiting cells
  hop explain 1a2b3c4d              the waiting cell of the kernel whose id begins so
  hop explain lecture.ipynb         the same by the notebook's name
  hop explain KERNEL CELL           one cell, also one that has run already
  hop explain -u bob                all that bob waits for (operators)";

/// Why a cell waits, or waited.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Kernel: its id, the beginning of its id, or the notebook's name; default: all that wait
    #[arg(conflicts_with_all = ["allusers", "users", "me"])]
    kernel: Option<String>,
    /// The cell's msg_id; default: the waiting cell
    cell: Option<String>,
    #[command(flatten)]
    whose: Whose,
    /// JSON
    #[arg(long, value_name = "VERSION", num_args = 0..=1, require_equals = true, default_missing_value = "v1", value_parser = ["v1"])]
    json: Option<String>,
}

/// A cell that waits, or a kernel that starts.
struct Waiting {
    kernel: KernelId,
    cell: Option<CellId>,
    name: String,
    user: UserName,
}

impl Waiting {
    fn of_cell(row: QueueRow) -> Self {
        Self {
            kernel: row.kernel,
            cell: row.cell,
            name: row.name,
            user: row.user,
        }
    }

    fn of_kernel(row: KernelRow) -> Self {
        Self {
            kernel: row.kernel,
            cell: None,
            name: row.name,
            user: row.user,
        }
    }
}

pub(crate) fn run(args: &Args, context: &mut Context<'_>) -> Result<(), Failure> {
    let Some(kernel) = &args.kernel else {
        return all_that_wait(args, context);
    };
    let kernel = kernels::find(kernel, context)?;
    let explanation = ask(kernel, args.cell.as_deref().map(CellId::from), context)?;
    match args.json.is_some() {
        true => write_json(with_head(row(&explanation)), context),
        false => write_sentences(&sentences(&explanation), "", context),
    }
}

fn all_that_wait(args: &Args, context: &mut Context<'_>) -> Result<(), Failure> {
    let query = QueueQuery {
        users: args.whose.users(context)?,
        all_users: args.whose.all(context.is_root),
        ..QueueQuery::default()
    };
    let rows = match context.hopd.ask(Request::Queue(query))? {
        Response::Queue { rows, .. } => rows,
        other => return Err(unexpected(&other)),
    };
    let waits = |row: &QueueRow| ["PENDING", "SUSPENDED", "STARTING"].contains(&row.state.as_str());
    let mut waiting: Vec<Waiting> = rows.into_iter().filter(waits).map(Waiting::of_cell).collect();
    for kernel in starting(args, context)? {
        if waiting.iter().all(|w| w.kernel != kernel.kernel) {
            waiting.push(kernel);
        }
    }
    let mut explained = Vec::new();
    for waiting in waiting {
        // It may have begun since.
        if let Ok(explanation) = ask(waiting.kernel.clone(), waiting.cell.clone(), context) {
            explained.push((waiting, explanation));
        }
    }
    if args.json.is_some() {
        let rows: Vec<Value> = explained
            .iter()
            .map(|(_, explanation)| row(explanation))
            .collect();
        return write_json(with_head(json!({"rows": rows})), context);
    }
    if explained.is_empty() {
        writeln!(context.err, "hop: no cell waits")?;
    }
    for (waiting, explanation) in &explained {
        let (name, user) = (plain(&waiting.name), &waiting.user);
        let id: String = waiting.kernel.as_str().chars().take(8).collect();
        writeln!(context.out, "{name} ({id}), {user}:")?;
        write_sentences(&sentences(explanation), "  ", context)?;
    }
    Ok(())
}

/// Kernels without a process yet: `hopd` knows nothing of their cells.
fn starting(args: &Args, context: &mut Context<'_>) -> Result<Vec<Waiting>, Failure> {
    let query = KernelsQuery {
        users: args.whose.users(context)?,
        all_users: args.whose.all(context.is_root),
        ..KernelsQuery::default()
    };
    let rows = kernels::rows(query, context)?;
    let starts = |row: &KernelRow| {
        use KernelState::{Lost, Replacing, Starting};
        matches!(row.state, Starting | Lost | Replacing)
    };
    Ok(rows.into_iter().filter(starts).map(Waiting::of_kernel).collect())
}

fn ask(kernel: KernelId, cell: Option<CellId>, context: &Context<'_>) -> Result<Explanation, Failure> {
    match context.hopd.ask(Request::Explain { kernel, cell })? {
        Response::Explanation(explanation) => Ok(explanation),
        other => Err(unexpected(&other)),
    }
}

fn row(explanation: &Explanation) -> Value {
    json!({
        "kernel_id": explanation.kernel,
        "cell_id": explanation.cell,
        "sentences": sentences(explanation),
        "items": explanation.items,
    })
}

/// Words the items. An item that is new to this `hop` has `hopd`'s sentence, and so has all of a `hopd` without items.
fn sentences(explanation: &Explanation) -> Vec<String> {
    let (items, theirs) = (&explanation.items, &explanation.sentences);
    if items.len() != theirs.len() {
        return theirs.clone();
    }
    let worded = items.iter().map(Told::sentence).zip(theirs);
    worded
        .map(|(ours, theirs)| ours.unwrap_or_else(|| theirs.clone()))
        .collect()
}

fn with_head(mut document: Value) -> Value {
    document["version"] = "v1".into();
    document["command"] = "explain".into();
    document
}

fn write_json(document: Value, context: &mut Context<'_>) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(&document).map_err(|e| Failure::of(&e))?;
    Ok(writeln!(context.out, "{text}")?)
}

fn write_sentences(sentences: &[String], indent: &str, context: &mut Context<'_>) -> Result<(), Failure> {
    for sentence in sentences {
        writeln!(context.out, "{indent}{}", plain(sentence))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_api::message::KernelItem;

    #[test]
    fn items_are_worded_here_and_unknown_ones_as_hopd_words_them() {
        let mut told = Explanation::new("k".into(), None, vec![KernelItem::NoCell.into()]);
        told.items.push(Told::Newer(json!({"item": "of-2030"})));
        told.sentences = vec!["An old wording.".into(), "A new thing.".into()];
        assert_eq!(
            sentences(&told),
            ["No cell of it waits or has a lease.", "A new thing."]
        );
        told.items.clear();
        assert_eq!(sentences(&told), ["An old wording.", "A new thing."]);
    }
}
