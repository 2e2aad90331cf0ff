//! `hop info`: the pools, node by node, in sinfo's manner; `--daemon` says who answers.

use crate::context::Context;
use crate::failure::Failure;
use crate::filter::{Nodes, Pools};
use crate::hopd::unexpected;
use crate::output::{Field, Options, Value, View, field};
use hop_api::message::{InfoReport, NodeInfo, Request, Response};
use hop_words::id::JobId;
use hop_words::need::Class;

const EXAMPLES: &str = "\
Examples:
  hop info                    each node's pilot: its GPUs, what is lent, what is blocked and why
  hop info -r main            one pool
  hop info --daemon           hopd itself: release, term, kernels, waiting cells
  hop info -P -o node,gpusfree";

/// The pools: nodes, pilots, and what of them is lent.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    pools: Pools,
    #[command(flatten)]
    nodes: Nodes,
    /// hopd itself, not the nodes
    #[arg(long)]
    daemon: bool,
    #[command(flatten)]
    output: Options,
}

static FIELDS: [Field<NodeInfo>; 16] = [
    field!("Node", -10, "the node", |n| Value::text(&n.node)),
    field!("Pool", 10, "its pool", |n| Value::text(&n.pool)),
    field!("Pilot", 8, "the Slurm job that holds it", |n| {
        Value::maybe((n.pilot != JobId(0)).then_some(n.pilot))
    }),
    field!(
        "State",
        10,
        "of the pilot: UP, DRAINING, SILENT, PENDING, STARTING; DRAINED: a node without one that Slurm drains",
        |n| Value::text(&n.state)
    ),
    field!("GPUs", 4, "GPUs of the pilot", |n| Value::Number(n.gpus.into())),
    field!("Leased", 6, "of them with a running cell", |n| Value::Number(
        n.gpus_leased.into()
    )),
    field!("Linger", 6, "of them kept ready for a next cell", |n| {
        Value::Number(n.gpus_lingering.into())
    }),
    field!("Blocked", 7, "of them that can't be lent", |n| Value::Number(
        n.gpus_blocked.into()
    )),
    field!(
        "GPUsFree",
        8,
        "of them free; none of a pilot that takes no new lease (DRAINING) or isn't heard (SILENT)",
        |n| Value::Number(free(n).into())
    ),
    field!("GPUTypes", 10, "their types", |n| Value::text(types(n))),
    field!("CPUs", 4, "cores that can be lent", |n| Value::Number(
        n.cpus.into()
    )),
    field!("CPUsLeased", 10, "of them lent", |n| Value::Number(
        n.cpus_leased.into()
    )),
    field!(
        "Quantum",
        -10,
        "seconds by class after which a cell may be parked for others",
        |n| { Value::text(quantum(n)) }
    ),
    field!(
        "Isolation",
        9,
        "how the node knows that nobody holds a GPU after its lease: counted, scanned, none",
        |n| Value::text(&n.isolation)
    ),
    field!(
        "BlockedGPUs",
        11,
        "the GPUs that can't be lent, by Slurm's index",
        |n| { Value::text(blocked(n)) }
    ),
    field!("Reason", -20, "what is wrong", |n| Value::text(&n.reason)),
];

static VIEW: View<NodeInfo> = View {
    command: "info",
    fields: &FIELDS,
    default: "Node%-8,Pool%8,Pilot%7,State%8,GPUs,Leased,Linger,Blocked,Isolation%9,Reason%-8",
    brief: "Node,State,GPUsFree",
    variable: "HOP_INFO_FORMAT",
};

static DAEMON_FIELDS: [Field<InfoReport>; 6] = [
    field!("Version", -10, "hopd's release", |i| Value::text(&i.version)),
    field!("Term", 6, "starts of hopd on this state directory", |i| {
        Value::text(i.term)
    }),
    field!("Started", 19, "when", |i| Value::Time(i.started)),
    field!("Kernels", 7, "open kernels", |i| Value::Number(i.kernels.into())),
    field!("Waiting", 7, "waiting cells", |i| Value::Number(i.waiting.into())),
    field!("Problems", -25, "what hopd is in trouble with", |i| Value::text(
        i.problems.join("; ")
    )),
];

static DAEMON_VIEW: View<InfoReport> = View {
    command: "info --daemon",
    fields: &DAEMON_FIELDS,
    default: "Version,Term,Started,Kernels,Waiting",
    brief: "Version,Term",
    variable: "HOP_DAEMON_FORMAT",
};

pub(crate) fn run(args: &Args, context: &mut Context<'_>) -> Result<(), Failure> {
    let answered = match args.daemon {
        true => args.output.answered(&DAEMON_VIEW, context)?,
        false => args.output.answered(&VIEW, context)?,
    };
    if answered {
        return Ok(());
    }
    let report = match context.hopd.ask(Request::Info)? {
        Response::Info(report) => report,
        other => return Err(unexpected(&other)),
    };
    for problem in &report.problems {
        writeln!(context.err, "hop: hopd says: {problem}")?;
    }
    if args.daemon {
        return args.output.write(&DAEMON_VIEW, &[report], context);
    }
    let mut nodes: Vec<NodeInfo> = report
        .nodes
        .into_iter()
        .filter(|node| args.pools.has(&node.pool) && args.nodes.has(&node.node))
        .collect();
    nodes.sort_by_cached_key(|n| (in_pieces(n.pool.as_str()), in_pieces(n.node.as_str()), n.pilot));
    args.output.write(&VIEW, &nodes, context)?;
    if args.output.is_table() {
        writeln!(context.err, "hop: {}.", totals(&nodes, report.waiting))?;
    }
    Ok(())
}

/// A name as people sort it: n2 before n10.
fn in_pieces(name: &str) -> Vec<(String, u64)> {
    let mut pieces = vec![(String::new(), 0_u64)];
    let mut in_number = false;
    for c in name.chars() {
        match c.to_digit(10) {
            Some(digit) => {
                let number = &mut pieces.last_mut().expect("there is always one").1;
                *number = number.saturating_mul(10).saturating_add(digit.into());
                in_number = true;
            }
            None => {
                if std::mem::take(&mut in_number) {
                    pieces.push((String::new(), 0));
                }
                pieces.last_mut().expect("there is always one").0.push(c);
            }
        }
    }
    pieces
}

/// All nodes in one line.
fn totals(nodes: &[NodeInfo], waiting: u32) -> String {
    let sum = |of: fn(&NodeInfo) -> u16| nodes.iter().map(|n| u64::from(of(n))).sum::<u64>();
    let up = sum(free);
    let all = sum(|n| n.gpus);
    let mut said = format!(
        "{all} GPU{}: {up} free, {} leased, {} lingering",
        if all == 1 { "" } else { "s" },
        sum(|n| n.gpus_leased),
        sum(|n| n.gpus_lingering)
    );
    let blocked = sum(|n| n.gpus_blocked);
    if blocked > 0 {
        said.push_str(&format!(", {blocked} blocked"));
    }
    match waiting {
        1 => said.push_str("; 1 cell waits"),
        n => said.push_str(&format!("; {n} cells wait")),
    }
    said
}

/// GPUs of the pilot that can be lent now.
pub(crate) fn free(node: &NodeInfo) -> u16 {
    if node.state == "UP" { idle(node) } else { 0 }
}

/// GPUs that are neither lent nor blocked.
pub(crate) fn idle(node: &NodeInfo) -> u16 {
    node.gpus
        .saturating_sub(node.gpus_leased)
        .saturating_sub(node.gpus_lingering)
        .saturating_sub(node.gpus_blocked)
}

fn quantum(node: &NodeInfo) -> String {
    let of = |(class, seconds): &(Class, u32)| format!("{}:{seconds}", class.name());
    node.quantum.iter().map(of).collect::<Vec<_>>().join(",")
}

fn blocked(node: &NodeInfo) -> String {
    let indices: Vec<String> = node.blocked.iter().map(ToString::to_string).collect();
    indices.join(",")
}

fn types(node: &NodeInfo) -> String {
    let names: Vec<&str> = node
        .gpu_types
        .iter()
        .map(|name| name.as_str())
        .filter(|name| !name.is_empty())
        .collect();
    names.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_that_nobody_can_be_lent_are_not_free() {
        let up = crate::transcripts::info().nodes.swap_remove(0);
        let idle = idle(&up);
        assert!(idle > 0 && up.state == "UP");
        for (state, wanted) in [("UP", idle), ("SILENT", 0), ("DRAINING", 0)] {
            let state = state.to_owned();
            assert_eq!(free(&NodeInfo { state, ..up.clone() }), wanted);
        }
    }
}
