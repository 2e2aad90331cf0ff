//! The line before a waiting cell: who counts in it, and how long a wait it makes.

use crate::world::{World, by_hand, facts};
use hop_core::config::{Burst, Config, Limit, LimitOf, Limits, Migrate, PoolConfig, Scale};
use hop_core::{CellView, Input, NodeFacts};
use hop_words::id::{CellId, KernelId};
use hop_words::need::Need;
use hop_words::time::Span;

fn one_gpu_each(of: LimitOf) -> Input {
    Input::Limits(Limits {
        limits: vec![Limit {
            of,
            gpus: Some(1),
            gpu_minutes: None,
            name: "MaxTRESPerUser".into(),
        }],
        elsewhere: vec![],
    })
}

/// Kernels of one GPU on n0, one for each user.
fn kernels(w: &mut World, users: &[&str]) -> Vec<KernelId> {
    let kernel = |(i, user): (usize, &&str)| w.kernel(&format!("{user}{i}"), user, &["n0"], 1);
    users.iter().enumerate().map(kernel).collect()
}

/// The kernel's cell runs for so many seconds.
fn run(w: &mut World, kernel: &KernelId, seconds: u64) {
    let cell = submit(w, kernel);
    w.pass(Span::from_secs(seconds));
    w.end_cell(kernel, &cell);
    w.settle();
    w.pass(Span::from_secs(10));
    w.settle();
}

fn submit(w: &mut World, kernel: &KernelId) -> CellId {
    let (cell, _) = w.submit(kernel, Need::gpus(1));
    w.settle();
    cell
}

fn view(w: &World, kernel: &KernelId) -> CellView {
    let waiting = w.core.waiting();
    let mut waiting = waiting.into_iter().filter(|c| c.kernel == *kernel);
    waiting.next().expect("the kernel's cell waits")
}

#[test]
fn a_wait_behind_cells_known_to_be_long_is_the_sum_of_their_runs() {
    let mut w = World::new(1, Config::default(), by_hand(1, 64));
    w.pilot("n0", 1, 64);
    let long = kernels(&mut w, &["u0", "u1", "u2", "u3", "u4"]);
    let quick = w.kernel("q", "quinn", &["n0"], 1);
    for kernel in &long {
        (0..10).for_each(|_| run(&mut w, kernel, 3600));
    }
    // The pool's cells are short at the median.
    (0..60).for_each(|_| run(&mut w, &quick, 2));
    for kernel in &long {
        submit(&mut w, kernel);
    }
    let waiting = w.core.waiting();
    assert_eq!(waiting.len(), 4);
    for cell in waiting {
        let hours = cell.estimate.expect("all of them were seen").as_secs_f64() / 3600.0;
        let ahead = f64::from(cell.position);
        assert!(
            (ahead * 0.7..ahead * 1.4).contains(&hours),
            "{hours} h at {ahead}"
        );
    }
}

#[test]
fn the_cells_ahead_spread_over_all_pilots_of_a_node() {
    let mut w = World::new(1, Config::default(), by_hand(4, 64));
    (0..4).for_each(|_| _ = w.pilot("n0", 1, 16));
    let users = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let eight = kernels(&mut w, &users);
    for kernel in &eight {
        (0..4).for_each(|_| run(&mut w, kernel, 3600));
    }
    for kernel in &eight {
        submit(&mut w, kernel);
    }
    let waiting = w.core.waiting();
    assert_eq!(waiting.len(), 4);
    for cell in waiting {
        let hours = cell.estimate.expect("all of them were seen").as_secs_f64() / 3600.0;
        assert!(
            (0.7..1.4).contains(&hours),
            "{hours} h: each has a GPU of its own"
        );
    }
}

#[test]
fn cells_over_a_limit_go_before_nobody() {
    let mut w = World::new(1, Config::default(), by_hand(2, 64));
    w.pilot("n0", 2, 64);
    w.tell(one_gpu_each(LimitOf::EachUser));
    let adas = kernels(&mut w, &["ada"; 21]);
    let b = w.kernel("b", "bob", &["n0"], 1);
    let c = w.kernel("c", "cyd", &["n0"], 1);
    (0..10).for_each(|_| run(&mut w, &c, 600));
    for kernel in adas.iter().chain([&b, &c]) {
        submit(&mut w, kernel);
    }
    let c = view(&w, &c);
    assert_eq!(c.position, 1, "one of ada's runs, and the limit keeps 20 out");
    let estimate = c.estimate.expect("cells like these were seen");
    assert!(
        estimate < Span::from_secs(900),
        "bob's cell is the next to end: {estimate:?}"
    );
}

#[test]
fn only_as_many_go_before_others_as_their_limit_leaves_gpus_for() {
    let mut w = World::new(1, Config::default(), by_hand(2, 64));
    w.pilot("n0", 2, 64);
    w.tell(one_gpu_each(LimitOf::EachUser));
    let adas = kernels(&mut w, &["ada"; 21]);
    let b = w.kernel("b", "bob", &["n0"], 1);
    let d = w.kernel("d", "dan", &["n0"], 1);
    let c = w.kernel("c", "cyd", &["n0"], 1);
    (0..10).for_each(|_| run(&mut w, &c, 600));
    for kernel in [&b, &d].into_iter().chain(&adas).chain([&c]) {
        submit(&mut w, kernel);
    }
    assert_eq!(view(&w, &adas[0]).position, 1);
    let c = view(&w, &c);
    assert_eq!(c.position, 2, "one of ada's 21 goes before it");
    let estimate = c.estimate.expect("cells like these were seen");
    assert!(
        estimate < Span::from_secs(900),
        "bob's or dan's GPU is for it: {estimate:?}"
    );
}

#[test]
fn no_node_boots_on_account_of_cells_over_a_limit() {
    for with_limited in [false, true] {
        let mut pool = PoolConfig::fixed("main", 0, 2, 64);
        pool.max_pilots = 1;
        pool.scale = Some(Scale {
            learn: false,
            spares: 0,
            ..Scale::default()
        });
        pool.migrate = Some(Migrate::default());
        pool.burst = vec![Burst {
            partition: "cloud".into(),
            max_pilots: 4,
            boot: Span::from_secs(300),
            price: 3.0,
        }];
        let mut w = World::new(1, Config::default(), pool);
        let facts = |node: &str| NodeFacts {
            cpus: 64,
            ..facts(node)
        };
        w.tell(Input::Node(facts("n0")));
        w.tell(Input::BurstNode {
            facts: facts("c0"),
            partition: "cloud".into(),
        });
        w.pilot("n0", 2, 64);
        w.tell(one_gpu_each(LimitOf::User("ada".into())));
        let b = w.kernel("b", "bob", &["n0"], 1);
        let c = w.kernel("c", "cyd", &["n0"], 1);
        for kernel in [&b, &c] {
            (0..10).for_each(|_| run(&mut w, kernel, 120));
        }
        let adas = kernels(&mut w, &["ada"; 21]);
        for kernel in &adas[..if with_limited { 21 } else { 1 }] {
            submit(&mut w, kernel);
        }
        submit(&mut w, &b);
        (0..110).for_each(|_| _ = w.pass(Span::from_secs(1)));
        w.asked.clear();
        submit(&mut w, &c);
        assert_eq!(
            w.asked,
            Vec::<u64>::new(),
            "bob's GPU is free in seconds: {with_limited}"
        );
    }
}
