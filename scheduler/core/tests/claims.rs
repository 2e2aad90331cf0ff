//! GPUs that are kept for a waiting cell, and no longer than they are of use to it.

use crate::world::World;
use hop_core::config::{Config, Limit, LimitOf, Limits, Linger, PoolConfig};
use hop_core::{Input, Output};
use hop_words::id::{CellId, KernelId};
use hop_words::need::Need;
use hop_words::time::Span;

/// A pilot with two GPUs on each of two nodes. Leases linger for minutes.
fn world() -> World {
    let mut pool = PoolConfig::fixed("main", 0, 2, 8);
    pool.max_pilots = 2;
    pool.linger = Linger::fixed(Span::from_secs(300));
    let config = Config {
        fair_share: false,
        ..Config::default()
    };
    let mut w = World::new(1, config, pool);
    w.pilot("n0", 2, 8);
    w.pilot("n1", 2, 8);
    w
}

fn starts(w: &mut World, kernel: &KernelId, gpus: u16) -> CellId {
    let (cell, out) = w.submit(kernel, Need::gpus(gpus));
    assert!(
        matches!(&out[..], [Output::Record(_), Output::StartLease(_)]),
        "{out:?}"
    );
    w.settle();
    cell
}

/// A kernel on the first node that has run on both GPUs for so long.
fn after_a_run(w: &mut World, name: &str, seconds: u64) -> KernelId {
    let kernel = w.kernel(name, name, &["n0"], 1);
    let cell = starts(w, &kernel, 2);
    w.pass(Span::from_secs(seconds));
    w.end_cell(&kernel, &cell);
    w.pass(Span::from_secs(301));
    w.settle();
    kernel
}

/// A cell of two GPUs, for which an idle lease ends. The other GPU is free.
fn claims(w: &mut World, large: &KernelId) {
    let short = w.kernel("short", "short", &["n0"], 1);
    let cell = starts(w, &short, 1);
    w.end_cell(&short, &cell);
    let (_, out) = w.submit(large, Need::gpus(2));
    assert!(
        matches!(
            &out[..],
            [
                Output::Revoked { .. } | Output::EndLease { .. },
                ..,
                Output::Queued { .. }
            ]
        ),
        "{out:?}"
    );
}

/// After a claim, a cell of better rank takes the free GPU, and a cell of lesser rank the other one.
fn overtaken() -> (World, KernelId, [(KernelId, CellId); 2]) {
    let mut w = world();
    let [large, heavy] = [("large", 1000), ("heavy", 8000)].map(|(name, s)| after_a_run(&mut w, name, s));
    claims(&mut w, &large);
    let new = w.kernel("new", "new", &["n0"], 1);
    let first = starts(&mut w, &new, 1);
    let second = starts(&mut w, &heavy, 1);
    (w, large, [(new, first), (heavy, second)])
}

#[test]
fn nothing_is_kept_for_a_cell_once_others_have_too_much_of_it() {
    let (w, large, _) = overtaken();
    assert!(w.waiting.iter().all(|(k, _)| *k == large), "{:?}", w.waiting);
    assert_eq!(w.running.len(), 2);
}

#[test]
fn idle_leases_end_for_a_cell_for_which_others_ended_in_vain() {
    let (mut w, large, running) = overtaken();
    for (kernel, cell) in &running {
        w.pass(Span::from_secs(60));
        w.end_cell(kernel, cell);
        w.settle();
    }
    w.pass(Span::from_secs(20));
    w.settle();
    assert!(w.running.keys().all(|(k, _)| *k == large), "{:?}", w.running);
    assert_eq!(w.running.len(), 1);
}

#[test]
fn nothing_is_kept_for_a_cell_while_a_limit_keeps_it_out() {
    let mut w = world();
    let [large, heavy] = [("large", 1000), ("heavy", 8000)].map(|(name, s)| after_a_run(&mut w, name, s));
    w.tell(Input::Limits(Limits {
        limits: vec![Limit {
            of: LimitOf::User("large".into()),
            gpus: Some(2),
            gpu_minutes: None,
            name: "GrpTRES".into(),
        }],
        elsewhere: Vec::new(),
    }));
    claims(&mut w, &large);
    let beside = w.kernel("beside", "large", &["n1"], 1);
    let cell = starts(&mut w, &beside, 1);
    let second = starts(&mut w, &heavy, 1);
    w.end_cell(&heavy, &second);
    w.end_cell(&beside, &cell);
    w.pass(Span::from_secs(5));
    w.settle();
    assert!(w.running.keys().all(|(k, _)| *k == large), "{:?}", w.running);
    assert_eq!(w.running.len(), 1, "its own turn has come");
}
