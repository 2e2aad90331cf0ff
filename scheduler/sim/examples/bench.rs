//! Prints the lines of bench `sim`, medians of ten seeds beside NotebookOS's policy as coded. `bench TRACE`.

use hop_sim::metrics::PolicySummary;
use hop_sim::{Cluster, Point, Policy, Synth, Trace};
use std::collections::BTreeMap;
use std::time::Instant;

const SEEDS: u64 = 10;
/// As many nodes as reservation needs.
const WHOLE: u32 = 0;

struct Bench {
    text: String,
}

impl Bench {
    fn trace(&self, seed: u64) -> Trace {
        Trace::parse("month", &self.text, seed).expect("the trace is one")
    }

    /// All seeds of a policy on so many nodes.
    fn point(&self, policy: &str, nodes: u32) -> Point {
        let runs = (1..=SEEDS).map(|seed| (seed, self.summary(policy, nodes, seed)));
        let runs: Vec<(u64, PolicySummary)> = runs.collect();
        Point::new(policy.to_owned(), BTreeMap::new(), nodes * 8, &runs)
    }

    fn summary(&self, policy: &str, nodes: u32, seed: u64) -> PolicySummary {
        let trace = self.trace(seed);
        let cluster = Cluster {
            nodes,
            ..Cluster::default()
        };
        let policy: Policy = policy.parse().expect("a policy's name");
        hop_sim::run(policy, &trace, &cluster.sized_for(&trace), seed).summary(&trace)
    }
}

fn line(case: &str, ours: f64, peer: Option<f64>, unit: &str, n: usize) {
    let (name, value) = match peer {
        Some(value) => ("\"notebookos\"".to_owned(), format!("{value:.6}")),
        None => ("null".to_owned(), "null".to_owned()),
    };
    println!(
        "{{\"bench\":\"sim\",\"case\":\"{case}\",\"ours\":{ours:.6},\"peer\":{name},\"peer_value\":{value},\"unit\":\"{unit}\",\"n\":{n}}}"
    );
}

/// How long ours takes on ten times as many sessions as the month has.
fn ten_times() -> (f64, usize) {
    let synth: Synth = "synth:a,sessions=3370".parse().expect("a trace");
    let trace = synth.trace(1);
    let cluster = Cluster::default().sized_for(&trace);
    let begun = Instant::now();
    let ours: Policy = "ours".parse().expect("a policy's name");
    let cells = hop_sim::run(ours, &trace, &cluster, 1).cells.len();
    (begun.elapsed().as_secs_f64(), cells)
}

fn main() {
    let path = std::env::args().nth(1).expect("first argument: a trace");
    let text = std::fs::read_to_string(&path).expect("the trace can be read");
    let bench = Bench { text };
    let cells = bench.trace(1).cells();
    let begun = Instant::now();
    bench.summary("ours", WHOLE, 1);
    line("month_ours_s", begun.elapsed().as_secs_f64(), None, "s", cells);
    for (nodes, cases) in [
        (
            37,
            &[
                ("antt_296", "antt", "ratio"),
                ("longest_wait_h_296", "longest_wait_h", "h"),
                ("overtaken_296", "overtaken_most", "cells"),
            ][..],
        ),
        (42, &[("antt_336", "antt", "ratio")][..]),
        (
            WHOLE,
            &[
                ("provisioned_saving_share", "provisioned_saving_share", "share"),
                ("immediate_fraction", "immediate_fraction", "share"),
                ("delay_p95_s", "delay_p95_s", "s"),
                ("delay_p99_s", "delay_p99_s", "s"),
            ][..],
        ),
    ] {
        let (ours, peer) = (bench.point("ours", nodes), bench.point("notebookos", nodes));
        for &(case, figure, unit) in cases {
            let median = |p: &Point| p.figure(figure).expect("every run has it").median;
            line(case, median(&ours), Some(median(&peer)), unit, cells);
        }
    }
    let (seconds, cells) = ten_times();
    line("ten_times_s", seconds, None, "s", cells);
}
