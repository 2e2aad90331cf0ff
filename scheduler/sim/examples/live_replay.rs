//! The simulator's side of `bench/replay`: cuts an hour out of a trace, and says what the simulator makes of it.
//!
//! `live_replay cut TRACE HOUR SEED SPEED` writes, as JSON lines, the hour that begins with that one at so many times the
//! speed. Sessions are left out by seed until those that are open at once ask for no more GPUs than four nodes of 8 have.
//! `live_replay run` reads `{"latency", "linger_s", "replicas", "migrate", "seeds", "sessions": [{"id", "user", "cells":
//! [{"submit", "run", "gpus"}]}]}` on standard input, times in seconds, and writes a line of JSON per seed: `{"seed",
//! "held_h", "moves", "cells": [{"session", "cell", "delay", "immediate", "reused", "node", "end"}]}`.

use hop_core::config::{Linger, Migrate};
use hop_sim::cluster::{Knobs, Latencies, People};
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
/// Between the submissions of cells that ran already when the hour began.
const APART: Span = Span::from_millis(200);
/// The dev cluster's nodes, and their GPUs.
const NODES: u32 = 4;
const GPUS: u16 = 8;
/// The dev cluster's people.
const USERS: [&str; 3] = ["alice", "bob", "carol"];

#[derive(Deserialize)]
struct Live {
    latency: Latencies,
    linger_s: f64,
    replicas: u16,
    /// None: no kernel is moved.
    migrate: Option<Migrate>,
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

/// What is live: pilots that stay, and nothing to park.
fn cluster(live: &Live) -> Cluster {
    Cluster {
        nodes: NODES,
        gpus_per_node: GPUS,
        cpus_per_node: 16,
        replicas: live.replicas,
        latency: live.latency.clone(),
        people: People {
            opens_before: None,
            closes_after: None,
            ..People::default()
        },
        policy: Knobs {
            linger: Linger::fixed(Span(micros(live.linger_s))),
            scale: None,
            migrate: live.migrate.clone(),
            ..Knobs::default()
        },
        ..Cluster::default()
    }
}

fn simulate(trace: &Trace, cluster: &Cluster, seed: u64) -> PolicyResult {
    let policy: Policy = "ours".parse().expect("a policy's name");
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

fn cut(text: &str, hour: f64, seed: u64, speed: f64) -> Trace {
    let month = Trace::parse("month", text, seed).expect("the trace can be read");
    let from = Timestamp((hour * HOUR) as u64);
    let mut whole = month.window(from, Span(HOUR as u64)).compressed(speed);
    whole.sessions.retain(|s| !s.cells.is_empty());
    let mut thin = whole.thinned(NODES * u32::from(GPUS), seed);
    for (i, s) in thin.sessions.iter_mut().enumerate() {
        USERS[i % USERS.len()].clone_into(&mut s.user);
    }
    one_by_one(&mut thin, &running(&month, from));
    thin
}

fn run(live: &Live) {
    let sessions = live.sessions.iter().map(|s| Session {
        id: s.id.clone(),
        user: s.user.clone(),
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
        left_out: hop_sim::LeftOut::default(),
    });
    let cluster = cluster(live);
    for seed in 1..=live.seeds {
        let result = simulate(&trace, &cluster, seed);
        let cell = |c: &hop_sim::metrics::CellResult| {
            serde_json::json!({
                "session": trace.sessions[c.session as usize].id,
                "cell": c.cell,
                "delay": c.delay().as_secs_f64(),
                "immediate": c.immediate,
                "reused": c.reused,
                "node": c.node,
                "end": c.end.0 as f64 / 1e6 - OPEN,
            })
        };
        let cells: Vec<_> = result.cells.iter().map(cell).collect();
        let (held, moves) = (result.held.hours(), result.migrations);
        println!(
            "{}",
            serde_json::json!({"seed": seed, "held_h": held, "moves": moves, "cells": cells})
        );
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["cut", path, hour, seed, speed] => {
            let text = std::fs::read_to_string(path).expect("the trace is there");
            let number = |text: &str| text.parse().expect("a number");
            let seed = seed.parse().expect("a whole number");
            print!("{}", cut(&text, number(hour), seed, number(speed)).to_lines());
        }
        ["run"] => {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .expect("standard input can be read");
            run(&serde_json::from_str(&text).expect("it is JSON of the form described above"));
        }
        _ => {
            eprintln!("usage: live_replay cut TRACE HOUR SEED SPEED | live_replay run");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
