//! The simulator's side of `bench/replay`: cuts an hour out of a trace, and says what the simulator makes of it.
//!
//! `live_replay cut TRACE HOUR SEED` writes, as JSON lines, the hour that begins with that one at 60 times the speed,
//! sessions left out by seed until four nodes of 8 GPUs are just too few. `live_replay run` reads `{"latency",
//! "linger_s", "seeds", "sessions": [{"id", "user", "cells": [{"submit", "run", "gpus"}]}]}` on standard input, times in
//! seconds, and writes a line of JSON per seed: `{"seed", "held_h", "cells": [{"session", "cell", "delay", "node",
//! "end"}]}`.

use hop_core::config::Linger;
use hop_sim::cluster::{Dist, Knobs, Latencies, People};
use hop_sim::trace::{Cell, Session};
use hop_sim::{Cluster, Policy, PolicyResult, Trace};
use hop_words::time::{Span, Timestamp};
use serde::Deserialize;
use std::io::Read;
use std::process::ExitCode;

/// Kernels are opened one after the other, as they are live, so far apart that each is up before the next is placed.
const OPENING: Span = Span::from_secs(30);
/// All are there, and idle, before the clock starts: this long after the first was opened.
const OPEN: f64 = 3600.0;
/// And stay until this long after the last cell, so that none is closed while others run.
const STAY: Span = Span::from_secs(3600);
const HOUR: f64 = 3.6e9;
const FASTER: f64 = 60.0;
/// Between the submissions of cells that ran already when the hour began.
const APART: Span = Span::from_millis(200);
/// A cell waits that is put off by more than this: less is the giving back of the kernel's own last lease.
const WAITS: Span = Span::from_millis(500);
/// The share of the cells that have to wait, in the mean of so many seeds: a little more than the 30 % aimed at.
const SHARE: f64 = 0.33;
const SEEDS: u64 = 10;
/// The dev cluster's people.
const USERS: [&str; 3] = ["alice", "bob", "carol"];

#[derive(Deserialize)]
struct Live {
    latency: Latencies,
    linger_s: f64,
    seeds: u64,
    sessions: Vec<LiveSession>,
}

#[derive(Deserialize)]
struct LiveSession {
    id: String,
    user: String,
    cells: Vec<LiveCell>,
}

#[derive(Deserialize)]
struct LiveCell {
    submit: f64,
    run: f64,
    gpus: u16,
}

fn micros(seconds: f64) -> u64 {
    (seconds * 1e6) as u64
}

/// What is live: one replica a kernel, pilots that stay, nothing that moves, nothing to park.
fn cluster(latency: Latencies, linger: Span) -> Cluster {
    Cluster {
        nodes: 4,
        gpus_per_node: 8,
        cpus_per_node: 16,
        replicas: 1,
        latency,
        people: People {
            opens_before: None,
            closes_after: None,
            ..People::default()
        },
        policy: Knobs {
            linger: Linger::fixed(linger),
            scale: None,
            migrate: None,
            ..Knobs::default()
        },
        ..Cluster::default()
    }
}

fn simulate(trace: &Trace, cluster: &Cluster, seed: u64) -> PolicyResult {
    // A pool whose pilots stay is not packed in production either.
    let policy: Policy = "ours-no-packing".parse().expect("a policy's name");
    hop_sim::run(policy, trace, cluster, seed)
}

/// As if all had opened their notebooks beforehand and closed them long afterwards.
fn opened_before(mut trace: Trace) -> Trace {
    let mut open = OPENING;
    for s in &mut trace.sessions {
        for c in &mut s.cells {
            c.submit = c.submit + Span(micros(OPEN));
        }
        s.open = Timestamp(open.0);
        open = Span(open.0 + OPENING.0);
        s.close = s.cells.iter().map(|c| c.submit + c.run).max().unwrap_or_default() + STAY;
    }
    trace
}

fn waiting_share(trace: &Trace) -> f64 {
    let latency = Latencies {
        vram_gb: Dist::new(0.0, 0.0),
        ..Latencies::default()
    };
    let cluster = cluster(latency, Span::from_secs(2));
    let trace = opened_before(trace.clone());
    let cells = (1..=SEEDS).flat_map(|seed| simulate(&trace, &cluster, seed).cells);
    let (waited, all) = cells.fold((0, 0), |(waited, all), c| {
        (waited + u32::from(c.delay() > WAITS), all + 1)
    });
    f64::from(waited) / f64::from(all.max(1))
}

/// The sessions in which a cell ran at that time, in the order of these cells' submissions.
fn running(month: &Trace, at: Timestamp) -> Vec<&str> {
    let runs = |c: &&Cell| c.submit < at && c.submit + c.run > at;
    let found = month
        .sessions
        .iter()
        .filter_map(|s| s.cells.iter().find(runs).map(|c| (c.submit, s.id.as_str())));
    let mut found: Vec<_> = found.collect();
    found.sort_unstable();
    found.into_iter().map(|(_, id)| id).collect()
}

/// What ran already when the hour began is submitted one after the other, in the order of old: who came first is then
/// no matter of chance.
fn one_by_one(trace: &mut Trace, running: &[&str]) {
    let mut at = Span::ZERO;
    for id in running {
        if let Some(s) = trace.sessions.iter_mut().find(|s| s.id == *id) {
            s.cells[0].submit = Timestamp(at.0);
            at = Span(at.0 + APART.0);
        }
    }
}

fn cut(text: &str, hour: f64, seed: u64) -> Trace {
    let month = Trace::parse("month", text, seed).expect("the trace can be read");
    let from = Timestamp((hour * HOUR) as u64);
    let running = running(&month, from);
    let mut whole = month.window(from, Span(HOUR as u64)).compressed(FASTER);
    whole.sessions.retain(|s| !s.cells.is_empty());
    let mut fewest = 32;
    loop {
        let mut thin = whole.thinned(fewest, seed);
        for (i, s) in thin.sessions.iter_mut().enumerate() {
            USERS[i % USERS.len()].clone_into(&mut s.user);
        }
        one_by_one(&mut thin, &running);
        if thin.sessions.len() == whole.sessions.len() || waiting_share(&thin) >= SHARE {
            return thin;
        }
        fewest += 1;
    }
}

fn run(live: Live) {
    let sessions = live.sessions.into_iter().map(|s| Session {
        id: s.id,
        user: s.user,
        account: Some("lab".to_owned()),
        open: Timestamp(0),
        close: Timestamp(0),
        deadline: None,
        cells: s
            .cells
            .iter()
            .map(|c| Cell {
                submit: Timestamp(micros(c.submit)),
                run: Span(micros(c.run)),
                gpus: c.gpus,
                cpus: 0,
                print: 0,
            })
            .collect(),
    });
    let trace = opened_before(Trace {
        name: "live".to_owned(),
        sessions: sessions.collect(),
    });
    let cluster = cluster(live.latency, Span(micros(live.linger_s)));
    for seed in 1..=live.seeds {
        let result = simulate(&trace, &cluster, seed);
        let cell = |c: &hop_sim::metrics::CellResult| {
            serde_json::json!({
                "session": trace.sessions[c.session as usize].id,
                "cell": c.cell,
                "delay": c.delay().as_secs_f64(),
                "node": c.node,
                "end": c.end.0 as f64 / 1e6 - OPEN,
            })
        };
        let cells: Vec<_> = result.cells.iter().map(cell).collect();
        println!(
            "{}",
            serde_json::json!({"seed": seed, "held_h": result.held.hours(), "cells": cells})
        );
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["cut", path, hour, seed] => {
            let text = std::fs::read_to_string(path).expect("the trace is there");
            let (hour, seed) = (
                hour.parse().expect("an hour"),
                seed.parse().expect("a whole number"),
            );
            print!("{}", cut(&text, hour, seed).to_lines());
        }
        ["run"] => {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .expect("standard input can be read");
            run(serde_json::from_str(&text).expect("it is JSON of the form described above"));
        }
        _ => {
            eprintln!("usage: live_replay cut TRACE HOUR SEED | live_replay run");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
