//! What the simulator makes of the notebooks that `bench/deadline` ran live: deadlines met and the order in which the
//! notebooks are done, by slack and first come, first served. Reads `{"gpus", "lease": [p50, p99], "notebooks":
//! [{"begin", "cells", "deadline"}]}` on standard input, times in seconds; writes a line of JSON per policy and seed.

use hop_core::config::Linger;
use hop_sim::cluster::{Dist, Knobs, Latencies, People};
use hop_sim::trace::{Cell, Session};
use hop_sim::{Cluster, Policy, Trace};
use hop_words::time::{Span, Timestamp};
use std::io::Read;

/// A session opens this long before its first cell.
const OPEN: f64 = 120.0;
const SEEDS: u64 = 10;

fn at(seconds: f64) -> Timestamp {
    Timestamp(((seconds + OPEN) * 1e6) as u64)
}

fn session(i: usize, notebook: &serde_json::Value) -> Session {
    let number = |key: &str| notebook[key].as_f64().expect("a number of seconds");
    let begin = number("begin");
    let runs = notebook["cells"].as_array().expect("the cells' lengths");
    let cells = runs.iter().map(|run| Cell {
        submit: at(begin),
        run: Span((run.as_f64().expect("seconds") * 1e6) as u64),
        gpus: 1,
        cpus: 0,
        print: 0,
    });
    let cells: Vec<Cell> = cells.collect();
    let run: u64 = cells.iter().map(|c| c.run.0).sum();
    Session {
        id: format!("d{i:02}"),
        user: "alice".to_owned(),
        account: None,
        open: Timestamp(at(begin).0 - (OPEN * 1e6) as u64),
        close: at(begin) + Span(run),
        deadline: Some(at(number("deadline"))),
        cells,
    }
}

fn main() {
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .expect("standard input can be read");
    let live: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    let notebooks = live["notebooks"].as_array().expect("notebooks");
    let trace = Trace {
        name: "live".to_owned(),
        sessions: notebooks.iter().enumerate().map(|(i, n)| session(i, n)).collect(),
        left_out: hop_sim::LeftOut::default(),
    };
    let lease = |i: usize| live["lease"][i].as_f64().expect("p50 and p99 of a lease");
    let cluster = Cluster {
        nodes: 1,
        gpus_per_node: u16::try_from(live["gpus"].as_u64().expect("GPUs")).expect("few"),
        replicas: 1,
        latency: Latencies {
            lease: Dist::new(lease(0), lease(1)),
            // These kernels have nothing to park.
            vram_gb: Dist::new(0.0, 0.0),
            ..Latencies::default()
        },
        people: People {
            opens_before: None,
            closes_after: None,
            ..People::default()
        },
        policy: Knobs {
            linger: Linger::fixed(Span::from_secs(2)),
            scale: None,
            migrate: None,
            ..Knobs::default()
        },
        ..Cluster::default()
    };
    for (name, policy) in [("slack", "ours"), ("fcfs", "ours-no-deadlines")] {
        let policy: Policy = policy.parse().expect("a policy's name");
        for seed in 1..=SEEDS {
            let result = hop_sim::run(policy, &trace, &cluster, seed);
            let mut ends = vec![0.0f64; trace.sessions.len()];
            for cell in &result.cells {
                let end = cell.end.0 as f64 / 1e6 - OPEN;
                let last = &mut ends[cell.session as usize];
                *last = last.max(end);
            }
            let line = serde_json::json!({"policy": name, "seed": seed, "ends": ends});
            println!("{line}");
        }
    }
}
