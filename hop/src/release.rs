//! `hop release`: has blocked GPUs looked at again, and lent if they are free.
//!
//! `hop release` ends no process: the operator looks up the holder (`hop info -o node,reason%-60`), ends it as they see
//! fit, and reports here. The node's plugin then checks whether the GPU is free; the operator's claim alone frees
//! nothing.

use crate::context::Context;
use crate::failure::Failure;
use crate::hopd::unexpected;
use crate::values::SECONDS;
use hop_api::message::{InfoReport, NodeInfo, Request, Response};
use hop_words::id::GpuIndex;
use hop_words::time::Timestamp;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  hop release n1             all blocked GPUs of a node
  hop release n1:0,2         these
  hop release n1 --no-wait   ask for it without waiting for the result

A GPU is blocked while a process still holds it that Gresshopper may not end.
`hop info` names the holder: end it first.
Only operators may do this, and hopd's log says who did.";

const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Have blocked GPUs looked at again, and lent if they are free.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Nodes, each with its GPUs by Slurm's index; without indices all blocked GPUs
    #[arg(value_name = "NODE[:GPU[,GPU..]]", required = true)]
    targets: Vec<String>,
    /// Don't wait until the node has looked
    #[arg(long)]
    no_wait: bool,
    /// Longest wait, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(SECONDS))]
    timeout: u64,
}

pub(crate) fn run(args: &Args, context: &mut Context<'_>) -> Result<(), Failure> {
    let targets: Vec<Target> = args
        .targets
        .iter()
        .map(|word| target(word))
        .collect::<Result<_, _>>()?;
    let before = info(context)?;
    let mut asked = Vec::new();
    for wanted in targets {
        let request = Request::Release {
            node: wanted.node.as_str().into(),
            gpus: wanted.gpus.clone(),
        };
        match context.hopd.ask(request)? {
            Response::Looking { asked: at } => asked.push((wanted, at)),
            other => return Err(unexpected(&other)),
        }
    }
    if args.no_wait {
        return Ok(());
    }
    let deadline = Instant::now() + Duration::from_secs(args.timeout);
    loop {
        let now = info(context)?;
        if asked.iter().all(|(target, at)| target.has_looked(&now, *at)) {
            return found(&asked, &before, &now, context);
        }
        if Instant::now() >= deadline {
            return Err(Failure::Failed(format!(
                "no answer from the node within {} s: its agent's log says why; `hop info` shows what is blocked",
                args.timeout
            )));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

fn info(context: &Context<'_>) -> Result<InfoReport, Failure> {
    match context.hopd.ask(Request::Info)? {
        Response::Info(report) => Ok(report),
        other => Err(unexpected(&other)),
    }
}

#[derive(Debug, PartialEq)]
struct Target {
    node: String,
    gpus: Vec<GpuIndex>,
}

impl Target {
    /// The node's agents. A silent agent can't be asked; its pilot is soon followed by another, or ends.
    fn rows<'a>(&self, report: &'a InfoReport) -> impl Iterator<Item = &'a NodeInfo> {
        let node = self.node.clone();
        let rows = report.nodes.iter();
        rows.filter(move |n| n.node.as_str() == node && n.state != "SILENT")
    }

    /// Whether all agents with leases or blocked GPUs on the node have looked since then.
    fn has_looked(&self, report: &InfoReport, since: Timestamp) -> bool {
        let mut any = false;
        let answered = self.rows(report).all(|row| {
            let has = row.asked >= Some(since);
            any |= has;
            let concerned = row.state == "UP" || self.blocked_of(row).next().is_some();
            has || !concerned
        });
        any && answered
    }

    fn blocked_of<'a>(&'a self, row: &'a NodeInfo) -> impl Iterator<Item = GpuIndex> + 'a {
        let blocked = row.blocked.iter().copied();
        blocked.filter(|i| self.gpus.is_empty() || self.gpus.contains(i))
    }

    /// The sentence for a target of which nothing was blocked.
    fn nothing(&self) -> String {
        let node = &self.node;
        let gpus: Vec<String> = self.gpus.iter().map(ToString::to_string).collect();
        match gpus.is_empty() {
            true => format!("no GPU of {node} is blocked: nothing was to be done."),
            false => format!(
                "GPU {} of {node} isn't blocked: nothing was to be done.",
                gpus.join(",")
            ),
        }
    }

    fn blocked(&self, report: &InfoReport) -> Vec<GpuIndex> {
        self.rows(report)
            .flat_map(|row| self.blocked_of(row).collect::<Vec<_>>())
            .collect()
    }
}

fn target(word: &str) -> Result<Target, Failure> {
    let (node, gpus) = word.split_once(':').unwrap_or((word, ""));
    let indices = gpus.split(',').filter(|part| !part.is_empty());
    let gpus: Result<Vec<u16>, _> = indices.map(str::parse).collect();
    match gpus {
        Ok(gpus) if !node.is_empty() => Ok(Target {
            node: node.to_owned(),
            gpus: gpus.into_iter().map(GpuIndex).collect(),
        }),
        _ => Err(Failure::Usage(format!(
            "{word:?} is no NODE[:GPU[,GPU..]]: write n1, or n1:0,2 with Slurm's indices"
        ))),
    }
}

fn found(
    asked: &[(Target, Timestamp)],
    before: &InfoReport,
    now: &InfoReport,
    context: &mut Context<'_>,
) -> Result<(), Failure> {
    let mut still = Vec::new();
    for (target, _) in asked {
        let (was, held) = (target.blocked(before), target.blocked(now));
        if was.is_empty() && held.is_empty() {
            writeln!(context.err, "hop: {}", target.nothing())?;
        }
        for index in was.iter().filter(|i| !held.contains(i)) {
            writeln!(context.err, "hop: GPU {index} of {} is lent again.", target.node)?;
        }
        if !held.is_empty() {
            let indices: Vec<String> = held.iter().map(ToString::to_string).collect();
            let reasons = target.rows(now).map(|row| row.reason.as_str());
            let why: Vec<&str> = reasons.filter(|reason| !reason.is_empty()).collect();
            let (node, why) = (&target.node, why.join("; "));
            still.push(format!("{node}: GPU {} stays blocked: {why}", indices.join(",")));
        }
    }
    match still.is_empty() {
        true => Ok(()),
        false => Err(Failure::Failed(still.join("\nhop: "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_node_with_or_without_gpus() {
        let of = |node: &str, gpus: &[u16]| Target {
            node: node.to_owned(),
            gpus: gpus.iter().copied().map(GpuIndex).collect(),
        };
        assert_eq!(target("n1").unwrap(), of("n1", &[]));
        assert_eq!(target("n1:0,12").unwrap(), of("n1", &[0, 12]));
        for bad in ["", ":1", "n1:x", "n1:-1", "n1:70000"] {
            assert!(target(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_target_of_which_nothing_was_blocked_is_told() {
        let said = |word: &str| target(word).unwrap().nothing();
        assert_eq!(said("n1"), "no GPU of n1 is blocked: nothing was to be done.");
        assert_eq!(
            said("n1:0,9"),
            "GPU 0,9 of n1 isn't blocked: nothing was to be done."
        );
    }

    #[test]
    fn a_look_that_had_begun_before_is_no_answer() {
        let mut report = crate::transcripts::info();
        let at = Timestamp(1000);
        let of = |word: &str| target(word).unwrap();
        report.nodes[0].asked = Some(Timestamp(999));
        assert!(!of("n1").has_looked(&report, at));
        report.nodes[0].asked = Some(at);
        assert!(of("n1").has_looked(&report, at));
        assert!(
            !of("n2").has_looked(&report, at),
            "its agent drains, and has blocked GPUs"
        );
        let mut second = report.nodes[1].clone();
        second.node = "n1".into();
        report.nodes.push(second);
        assert!(!of("n1").has_looked(&report, at));
        assert!(
            of("n1:7").has_looked(&report, at),
            "the other agent has nothing of it"
        );
        report.nodes[2].state = "SILENT".into();
        assert!(of("n1").has_looked(&report, at));
        assert_eq!(of("n1").blocked(&report), [], "of a pilot that is gone");
        report.nodes[0].state = "SILENT".into();
        report.nodes[0].asked = None;
        assert!(!of("n1").has_looked(&report, at), "somebody must have looked");
    }
}
