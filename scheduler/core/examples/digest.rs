//! A hash of all that the core puts out, for many worlds: two builds with equal lines decide alike. For changes that
//! may save time alone; `bench/core/equal` compares two builds.

#[path = "../tests/world/mod.rs"]
mod world;

use hop_core::Input;
use hop_core::config::{Config, Migrate, PoolConfig, Quantum, Scale};
use hop_words::id::{JobId, KernelId};
use hop_words::lease::EndCause;
use hop_words::need::Need;
use hop_words::time::Span;
use world::{Full, World};

/// Where a digest begins.
const BASIS: u64 = 0xcbf2_9ce4_8422_2325;

fn main() {
    full("full", Full::new());
    full("full, as shipped", Full::shipped());
    for seed in 1..=12 {
        random(seed);
        overload(seed);
    }
}

fn print(name: &str, world: &World) {
    let digest = world.digest.unwrap_or(BASIS);
    println!(
        "{name}: {} inputs, {} grants, {digest:016x}",
        world.inputs, world.granted
    );
    world.core.sanity_check().expect("the state is sane");
}

fn full(name: &str, mut full: Full) {
    full.world.digest = Some(BASIS);
    full.run(40_000);
    print(name, &full.world);
}

fn pool(seed: u64, nodes: u32) -> PoolConfig {
    let mut pool = PoolConfig::fixed("main", 0, 4, 8);
    pool.max_pilots = nodes;
    pool.migrate = (!seed.is_multiple_of(3)).then(Migrate::default);
    pool.scale = (!seed.is_multiple_of(4)).then(Scale::default);
    pool.pack = seed.is_multiple_of(2);
    if seed.is_multiple_of(5) {
        pool.quantum = Quantum::of_all(Span::from_secs(20));
    }
    pool
}

fn config(seed: u64) -> Config {
    Config {
        journal: true,
        // Ages and numbers make due, in turn.
        due_after: Span::from_secs(if seed.is_multiple_of(2) { 600 } else { 4 * 3600 }),
        widen_every: Span::from_secs(if seed.is_multiple_of(2) { 60 } else { 1800 }),
        ..Config::default()
    }
}

/// Everything happens in any order, and things break.
fn random(seed: u64) {
    let mut w = World::new(seed, config(seed), pool(seed, 64));
    w.check_every = 0;
    w.digest = Some(BASIS);
    w.answers_get_lost = true;
    for n in 0..5 {
        w.pilot(&format!("n{n}"), 4, 8);
    }
    if seed.is_multiple_of(2) {
        w.limits();
    }
    while w.inputs < 15_000 {
        w.random_step(5, 6, w.inputs.is_multiple_of(3));
        if w.inputs.is_multiple_of(400) {
            come_back(&mut w, 5);
        }
    }
    print(&format!("random {seed}"), &w);
}

/// Drained pilots end, and nodes without a pilot get one.
fn come_back(w: &mut World, nodes: u64) {
    let over = |a: &world::Agent| a.draining && a.live.is_empty() && a.starting.is_empty();
    let over: Vec<JobId> = w
        .agents
        .iter()
        .filter(|(_, a)| over(a))
        .map(|(j, _)| *j)
        .collect();
    for pilot in over {
        w.agents.remove(&pilot);
        let cause = EndCause::PilotLost;
        w.tell(Input::PilotLost { pilot, cause });
    }
    for n in 0..nodes {
        let node = format!("n{n}");
        let there = |a: &world::Agent| a.node.as_str() == node;
        if !w.agents.values().any(there) {
            w.pilot(&node, 4, 8);
        }
    }
}

/// More cells than the cluster can bear, of different sizes, for days: many are due, and nodes are held for them.
fn overload(seed: u64) {
    const NODES: u64 = 12;
    let mut w = World::new(seed, config(seed), pool(seed, NODES as u32));
    w.check_every = 0;
    w.digest = Some(BASIS);
    for n in 0..NODES {
        w.pilot(&format!("n{n}"), 4, 8);
    }
    let replicas = if seed.is_multiple_of(2) { 3 } else { 1 };
    let kernels: Vec<KernelId> = (0..120)
        .map(|k| {
            let first = w.rng.below(NODES);
            let nodes: Vec<String> = (0..replicas)
                .map(|i| format!("n{}", (first + 5 * i) % NODES))
                .collect();
            let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
            let user = format!("u{}", "x".repeat(k % 6));
            w.kernel(&format!("k{k}"), &user, &nodes, 1)
        })
        .collect();
    for minute in 0..3 * 24 * 60 {
        if seed.is_multiple_of(3) && minute == 24 * 60 {
            w.limits();
        }
        minute_of_overload(&mut w, &kernels);
        if minute % 10 == 0 {
            come_back(&mut w, NODES);
        }
    }
    print(&format!("overload {seed}"), &w);
}

fn minute_of_overload(w: &mut World, kernels: &[KernelId]) {
    let running: Vec<_> = w.running.keys().cloned().collect();
    for (kernel, cell) in running {
        if w.rng.below(30) == 0 && w.running.contains_key(&(kernel.clone(), cell.clone())) {
            w.end_cell(&kernel, &cell);
        }
    }
    settle(w);
    w.pass(Span::from_secs(60));
    for _ in 0..3 {
        let kernel = w.rng.pick(kernels).expect("there are kernels");
        let busy = |(k, _): &(KernelId, _)| *k == kernel;
        if !w.running.keys().any(busy) && !w.waiting.iter().any(busy) {
            let gpus = w.rng.pick(&[1, 1, 1, 2, 3, 4]).expect("it is a list");
            w.submit(&kernel, Need::gpus(gpus));
        }
    }
    settle(w);
}

fn settle(w: &mut World) {
    w.settle();
    while w.move_replica() || w.park(true).is_some() || w.no_pilot() {
        w.settle();
    }
}
