//! `hop metrics`: what a monitoring system collects, in Prometheus' text format.

use crate::context::Context;
use crate::failure::Failure;
use crate::hopd::unexpected;
use crate::info;
use hop_api::message::{InfoReport, NodeInfo, QueueQuery, QueueRow, Request, Response};
use std::fmt::Write as _;

const EXAMPLES: &str = "\
Example, for node_exporter's textfile collector, each minute on one host:
  hop metrics > /var/lib/node_exporter/.gresshopper; mv /var/lib/node_exporter/.gresshopper /var/lib/node_exporter/gresshopper.prom

Run it as an operator: others' waiting cells are counted, but how long they wait isn't known.
Without hopd it writes gresshopper_up 0 alone, with status 3.";

/// Numbers for a monitoring system, in Prometheus' text format
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args, context: &mut Context<'_>) -> Result<(), Failure> {
    let seen = look(context);
    let (text, result) = match seen {
        Ok((report, rows)) => (page(&report, &rows), Ok(())),
        Err(failure) if failure.is_without_hopd() => {
            (gauge("up", "hopd answers", &[(&[], 0.0)]), Err(failure))
        }
        Err(failure) => return Err(failure),
    };
    context.out.write_all(text.as_bytes())?;
    result
}

fn look(context: &Context<'_>) -> Result<(InfoReport, Vec<QueueRow>), Failure> {
    let report = match context.hopd.ask(Request::Info)? {
        Response::Info(report) => report,
        other => return Err(unexpected(&other)),
    };
    let everybody = |all_users| {
        let query = QueueQuery {
            all_users,
            ..QueueQuery::default()
        };
        context.hopd.ask(Request::Queue(query))
    };
    match everybody(true).or_else(|_| everybody(false))? {
        Response::Queue { rows, .. } => Ok((report, rows)),
        other => Err(unexpected(&other)),
    }
}

/// Labels and value of each line.
type Lines<'a> = [(&'a [(&'a str, &'a str)], f64)];

fn page(report: &InfoReport, rows: &[QueueRow]) -> String {
    let one = |value: f64| [(&[] as &[_], value)];
    let waits = rows.iter().filter(|row| row.state == "PENDING");
    let longest = waits.map(|row| row.time.as_secs_f64()).fold(0.0, f64::max);
    let mut text = gauge("up", "hopd answers", &one(1.0));
    text += &gauge(
        "start_time_seconds",
        "when hopd started, since the epoch",
        &one(report.started.0 as f64 / 1e6),
    );
    text += &gauge(
        "problems",
        "what hopd is in trouble with: hop info --daemon",
        &one(report.problems.len() as f64),
    );
    text += &gauge("kernels", "open kernels", &one(report.kernels.into()));
    text += &gauge(
        "cells_waiting",
        "cells that wait for a lease",
        &one(report.waiting.into()),
    );
    text += &gauge(
        "longest_wait_seconds",
        "how long the first of them has waited",
        &one(longest),
    );
    text += &gpus(&report.nodes);
    text
}

/// GPUs of each node, by what they do. The states add up to all.
fn gpus(nodes: &[NodeInfo]) -> String {
    let mut text = head("gpus", "GPUs of the pilots, by what they do");
    // A pilot that isn't up has no GPUs yet, and may have neither node nor job to be told by.
    for node in nodes.iter().filter(|node| node.gpus > 0) {
        // Nothing new starts on a draining pilot, or on a silent one.
        let free = info::free(node);
        let unused = info::idle(node) - free;
        for (state, count) in [
            ("leased", node.gpus_leased),
            ("lingering", node.gpus_lingering),
            ("blocked", node.gpus_blocked),
            ("free", free),
            ("unavailable", unused),
        ] {
            let pilot = node.pilot.to_string();
            let labels = [
                ("pool", node.pool.as_str()),
                ("node", node.node.as_str()),
                ("pilot", pilot.as_str()),
                ("state", state),
            ];
            text += &line("gpus", &labels, count.into());
        }
    }
    text
}

fn gauge(name: &str, help: &str, lines: &Lines<'_>) -> String {
    let lines: String = lines
        .iter()
        .map(|(labels, value)| line(name, labels, *value))
        .collect();
    head(name, help) + &lines
}

fn head(name: &str, help: &str) -> String {
    format!("# HELP gresshopper_{name} {help}\n# TYPE gresshopper_{name} gauge\n")
}

fn line(name: &str, labels: &[(&str, &str)], value: f64) -> String {
    let mut text = format!("gresshopper_{name}");
    for (at, (key, value)) in labels.iter().enumerate() {
        let value = value
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n");
        let _ = write!(text, "{}{key}=\"{value}\"", if at == 0 { '{' } else { ',' });
    }
    text.push_str(if labels.is_empty() { "" } else { "}" });
    text + &format!(" {value}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_words::id::JobId;

    #[test]
    fn pilots_that_are_to_come_have_no_series() {
        let up = crate::transcripts::info().nodes.swap_remove(0);
        let coming = NodeInfo {
            node: "".into(),
            pilot: JobId(0),
            state: "PENDING".into(),
            gpus: 0,
            gpus_leased: 0,
            gpus_lingering: 0,
            ..up.clone()
        };
        let text = gpus(&[up, coming.clone(), coming]);
        assert_eq!(text.matches("pilot=\"31\"").count(), 5, "{text}");
        assert!(!text.contains("pilot=\"0\""), "{text}");
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(
            line("x", &[("a", "q\"\\\n"), ("b", "")], 1.5),
            "gresshopper_x{a=\"q\\\"\\\\\\n\",b=\"\"} 1.5\n"
        );
    }
}
