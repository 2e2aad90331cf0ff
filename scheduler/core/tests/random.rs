//! Whatever happens in whatever order: the state stays sane, no GPU is lent twice, nobody starves.

use crate::world::{World, facts};
use hop_core::config::{Burst, Migrate, PoolConfig, Quantum, Scale};
use hop_core::{Config, Input};
use hop_words::need::Need;
use hop_words::time::Span;
use proptest::prelude::*;

fn pool() -> PoolConfig {
    let mut pool = PoolConfig::fixed("main", 0, 4, 8);
    pool.max_pilots = 64;
    pool.migrate = Some(Migrate::default());
    pool.quantum = Quantum::of_all(Span::from_secs(20));
    pool
}

fn start(seed: u64, nodes: u64) -> World {
    let config = Config {
        journal: true,
        ..Config::default()
    };
    let mut w = World::new(seed, config, pool());
    for n in 0..nodes {
        w.pilot(&format!("n{n}"), 4, 8);
    }
    w
}

/// Steps until what happens next is random no more: everything that waits must be served. No move is ever done, and each is
/// waited for, half an hour at most.
fn drain(w: &mut World) {
    const ROUNDS: u32 = 10_000;
    for round in 0..ROUNDS {
        w.settle();
        if w.waiting.is_empty() {
            return;
        }
        let running: Vec<_> = w.running.keys().cloned().collect();
        for (k, c) in running {
            if w.running.contains_key(&(k.clone(), c.clone())) {
                w.end_cell(&k, &c);
            }
        }
        w.migrations.clear();
        w.pass(Span::from_secs(1));
        assert!(round + 1 < ROUNDS, "cells starve: {:?}", w.core.waiting());
    }
}

fn run(seed: u64, steps: u64, nodes: u64, faults: bool, limits: bool) -> World {
    let mut w = start(seed, nodes);
    w.answers_get_lost = faults;
    if limits {
        w.limits();
    }
    for step in 0..steps {
        w.random_step(nodes, 6, faults);
        if limits && step % 50 == 0 {
            w.shares();
        }
    }
    w
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, ..ProptestConfig::default() })]

    #[test]
    fn the_state_stays_sane_and_every_cell_is_served(seed in any::<u64>(), nodes in 1u64..6, limits: bool) {
        let mut w = run(seed, 1500, nodes.max(3), false, limits);
        drain(&mut w);
        prop_assert!(w.granted > 50);
        w.core.sanity_check().unwrap();
    }

    /// Whatever a driver answers at once, the core asks for a few more things, and then waits for time to pass.
    #[test]
    fn failures_answered_at_once_have_an_end(seed in any::<u64>(), nodes in 2u64..6, scales: bool, described: bool) {
        let mut p = pool();
        p.min_pilots = nodes as u32;
        p.scale = scales.then(Scale::default);
        let partition = "cloud".to_owned();
        p.burst = vec![Burst { partition: partition.clone(), max_pilots: 4, boot: Span::from_secs(1), price: 1.0 }];
        let mut w = World::new(seed, Config::default(), p);
        for n in 0..nodes {
            w.pilot(&format!("n{n}"), 4, 8);
        }
        if described {
            w.tell(Input::BurstNode { facts: facts("c0"), partition });
        }
        for step in 0..1500 {
            w.random_step(nodes, 6, true);
            if step % 20 < 10 {
                w.everything_fails_at_once();
            }
        }
        w.core.sanity_check().unwrap();
    }

    #[test]
    fn the_state_stays_sane_while_things_break(seed in any::<u64>(), nodes in 3u64..6) {
        let w = run(seed, 1500, nodes, true, seed.is_multiple_of(2));
        w.core.sanity_check().unwrap();
    }
}

/// The big run: `cargo test --release -p hop-core --test random -- --ignored --nocapture`.
#[test]
#[ignore = "a million inputs, each with a full check"]
fn a_million_inputs() {
    stays_sane_for(1_000_000);
}

/// Shares put a cell before another, whose own rank stays as it was.
#[test]
fn new_shares_leave_no_cell_that_could_start() {
    run(8_220_857_101_796_532_048, 1500, 4, true, true);
}

/// The same as runs with every change.
#[test]
fn five_thousand_inputs() {
    stays_sane_for(5_000);
}

fn stays_sane_for(inputs: u64) {
    let mut w = start(7, 5);
    w.answers_get_lost = true;
    w.limits();
    while w.inputs < inputs {
        w.random_step(5, 6, w.inputs.is_multiple_of(3));
        // Lost nodes come back, or the world dies out.
        if w.inputs.is_multiple_of(500) {
            for n in 0..5 {
                let node = format!("n{n}");
                if !w
                    .agents
                    .values()
                    .any(|a| a.node.as_str() == node && !a.draining && !a.silent)
                {
                    w.pilot(&node, 4, 8);
                }
            }
        }
    }
    println!(
        "{} inputs, {} grants, {} leases, {} cells parked",
        w.inputs,
        w.granted,
        w.opened.len(),
        w.parked
    );
}

/// A stream of small cells of others doesn't keep a big one waiting for ever, whatever fair share says.
#[test]
fn a_big_cell_is_not_starved_by_small_ones() {
    for seed in 1..6 {
        let mut w = World::new(seed, Config::default(), pool());
        w.pilot("n0", 4, 8);
        let small: Vec<_> = (0..8)
            .map(|i| w.kernel(&format!("s{i}"), &format!("u{i}"), &["n0"], 1))
            .collect();
        let big = w.kernel("big", "heavy", &["n0"], 4);
        // The big one's user has used much already.
        for _ in 0..20 {
            let (cell, _) = w.submit(&big, Need::gpus(4));
            w.settle();
            w.pass(Span::from_secs(60));
            w.end_cell(&big, &cell);
            w.pass(Span::from_secs(5));
            w.settle();
        }
        for k in &small {
            w.submit(k, Need::gpus(1));
        }
        w.settle();
        let (cell, _) = w.submit(&big, Need::gpus(4));
        let mut waited = 0;
        while !w.running.contains_key(&(big.clone(), cell.clone())) {
            // Whenever a small cell ends, its kernel submits the next at once.
            let running: Vec<_> = w.running.keys().cloned().collect();
            let (k, c) = w.rng.pick(&running).unwrap();
            w.end_cell(&k, &c);
            w.submit(&k, Need::gpus(1));
            w.pass(Span::from_secs(5));
            w.settle();
            waited += 5;
            assert!(waited < 2000, "the big cell starves");
        }
    }
}

/// With a quantum so short that cells are parked all the time, and what is said of it gets lost at times.
#[test]
fn cells_that_are_parked_over_and_over_are_all_served() {
    for seed in [3, 5, 8] {
        let mut p = pool();
        p.quantum = Quantum {
            worth_waiting: Span::ZERO,
            ..Quantum::of_all(Span::from_secs(1))
        };
        let mut w = World::new(seed, Config::default(), p);
        w.answers_get_lost = true;
        for n in 0..3 {
            w.pilot(&format!("n{n}"), 4, 8);
        }
        for _ in 0..3_000 {
            w.random_step(3, 6, false);
            let can = w.rng.below(5) > 0;
            w.park(can);
        }
        assert!(w.parked > 50, "{} parked", w.parked);
        drain(&mut w);
    }
}

#[test]
fn scaling_pools_stay_sane_too() {
    let mut p = pool();
    p.scale = Some(Scale::default());
    let mut w = World::new(3, Config::default(), p);
    for n in 0..4 {
        w.pilot(&format!("n{n}"), 4, 8);
    }
    for _ in 0..4_000 {
        w.random_step(4, 6, true);
    }
}
