//! `hop queue`: waiting cells and leases in use, in squeue's manner.

use crate::context::Context;
use crate::failure::Failure;
use crate::filter::States;
use crate::hopd::unexpected;
use crate::output::{Field, Options, Value, View, Whose, field};
use crate::time::write_span;
use hop_api::message::{QueueQuery, QueueRow, Request, Response};
use hop_slurm::gres::write_index;
use hop_words::time::Span;

const EXAMPLES: &str = "\
Examples:
  hop queue                   your waiting cells and your leases
  hop queue -a                everybody's (operators; the default for root)
  hop queue -t pending        waiting cells only
  hop queue -P -o kernelid,state,position,reason
  hop explain KERNEL          why a cell waits, in sentences";

/// Show waiting cells and leases in use.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    whose: Whose,
    #[command(flatten)]
    states: States,
    #[command(flatten)]
    output: Options,
}

static FIELDS: [Field<QueueRow>; 22] = [
    field!("KernelID", -9, "the kernel", |r| Value::text(&r.kernel)),
    field!("Name", 12, "what the notebook is called", |r| Value::text(
        &r.name
    )),
    field!("User", 9, "who", |r| Value::text(&r.user)),
    field!(
        "State",
        9,
        "PENDING, SUSPENDED, STARTING, RUNNING, LINGERING, ...",
        |r| { Value::text(&r.state) }
    ),
    field!("Time", 9, "how long in this state", |r| Value::Span(r.time)),
    field!("TimeRaw", 10, "in seconds", |r| Value::Seconds(r.time)),
    field!("NGPUs", 5, "GPUs asked for", |r| Value::Number(
        r.need.gpus.into()
    )),
    field!("GPUType", 8, "the type asked for", |r| Value::maybe(
        r.need.gpu_type.as_ref()
    )),
    field!("GPUMem", 7, "least memory of each GPU", |r| mib(r
        .need
        .gpu_mem_mib)),
    field!("CPUs", 4, "cores asked for", |r| Value::Number(
        r.need.cpus.into()
    )),
    field!("Deadline", 19, "when the cell should be done", |r| Value::time(
        r.need.deadline
    )),
    field!("CellID", 36, "the cell's msg_id", |r| Value::maybe(
        r.cell.as_ref()
    )),
    field!("LeaseID", 9, "the lease that it has", |r| Value::maybe(
        r.lease.as_ref()
    )),
    field!("Node", 8, "where the lease is", |r| Value::maybe(r.node.as_ref())),
    field!("GPUs", 6, "which GPUs of the node: Slurm's IDX", |r| Value::text(
        write_index(&r.gpus)
    )),
    field!("Submit", 19, "when it was asked for", |r| Value::Time(r.submit)),
    field!("Position", 8, "place in the queue, from 1", |r| number(
        r.position
    )),
    field!("Estimate", 9, "expected further wait", |r| span(r.estimate)),
    field!("EstimateRaw", 11, "in seconds", |r| r
        .estimate
        .map_or(Value::Absent, Value::Seconds)),
    field!("Reason", 30, "why it waits, or isn't let go", |r| Value::text(
        &r.reason
    )),
    field!("Why", -14, "the same in one word, for scripts", |r| {
        Value::text(&r.why)
    }),
    field!(
        "NodeReason",
        -19,
        "the node and GPUs of a lease (and why they aren't let go), else (position, estimate: reason)",
        |r| Value::text(node_or_reason(r))
    ),
];

/// All that a row's state may be.
const STATES: [&str; 6] = [
    "PENDING",
    "SUSPENDED",
    "STARTING",
    "RUNNING",
    "LINGERING",
    "ENDING",
];

static VIEW: View<QueueRow> = View {
    command: "queue",
    fields: &FIELDS,
    default: "KernelID,Name,User,State,Time,NGPUs,NodeReason",
    brief: "KernelID,State,Time",
    variable: "HOP_QUEUE_FORMAT",
};

pub(crate) fn run(args: &Args, context: &mut Context<'_>) -> Result<(), Failure> {
    if args.output.answered(&VIEW, context)? {
        return Ok(());
    }
    args.states.check(&STATES)?;
    let query = QueueQuery {
        users: args.whose.users(context)?,
        all_users: args.whose.all(context.is_root),
        ..QueueQuery::default()
    };
    let mut rows = match context.hopd.ask(Request::Queue(query))? {
        Response::Queue { rows, .. } => rows,
        other => return Err(unexpected(&other)),
    };
    rows.retain(|row| args.states.has(&row.state));
    args.output.write(&VIEW, &rows, context)
}

fn node_or_reason(row: &QueueRow) -> String {
    let held = if row.reason.is_empty() {
        String::new()
    } else {
        format!(" ({})", row.reason)
    };
    match (&row.node, row.position) {
        (Some(node), _) if row.gpus.is_empty() => format!("{node}{held}"),
        (Some(node), _) => format!("{node}:{}{held}", write_index(&row.gpus)),
        (None, Some(position)) => match row.estimate {
            Some(estimate) => format!("({position}, ~{}: {})", about(estimate), row.reason),
            None => format!("({position}: {})", row.reason),
        },
        (None, None) if row.reason.is_empty() => String::new(),
        (None, None) => format!("({})", row.reason),
    }
}

/// An estimate in the table's way, without the milliseconds that nobody foretells.
fn about(estimate: Span) -> String {
    write_span(Span(estimate.0 / 1_000_000 * 1_000_000))
        .trim_end_matches(".000")
        .to_owned()
}

fn mib(mib: u64) -> Value {
    if mib == 0 { Value::Absent } else { Value::Mib(mib) }
}

fn number(n: Option<u32>) -> Value {
    n.map_or(Value::Absent, |n| Value::Number(n.into()))
}

fn span(span: Option<Span>) -> Value {
    span.map_or(Value::Absent, Value::Span)
}
