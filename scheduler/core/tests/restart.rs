//! The driver is restarted: waiting cells keep their places, and kernels what they have used.

use crate::world::{World, facts, report};
use hop_core::config::{Config, PoolConfig, Scale};
use hop_core::{Core, Input, Output, ReplicaFacts, WaitingCell};
use hop_words::id::{CellId, Incarnation, JobId, KernelId, LeaseId};
use hop_words::need::{Class, Need};
use hop_words::time::Span;

const HOUR: Span = Span::from_secs(3600);

fn config() -> Config {
    Config {
        journal: true,
        // Only the kernel's own use counts.
        fair_share: false,
        ..Config::default()
    }
}

fn pool() -> PoolConfig {
    let mut pool = PoolConfig::fixed("main", 0, 2, 8);
    pool.max_pilots = 1;
    pool
}

fn world(gpus: u16) -> World {
    let mut w = World::new(1, config(), pool());
    w.pilot("n0", gpus, 8);
    w
}

/// Another core in the place of the last one, from the journal alone. The agents report themselves.
fn restart(w: &mut World) {
    let lines = w
        .journal
        .iter()
        .map(|e| serde_json::to_string(e).expect("an entry is written"));
    let journal: Vec<_> = lines
        .map(|l| serde_json::from_str(&l).expect("what was written is read"))
        .collect();
    w.core = Core::restore(config(), vec![pool()], journal, w.now, &mut Vec::new());
    w.core.sanity_check().expect("a sane state");
    for job in w.agents.keys().copied().collect::<Vec<_>>() {
        w.announce(job);
    }
}

/// The kernel's replica reports itself, with these cells in wait.
fn comes_back(w: &mut World, kernel: &KernelId, cells: &[&CellId]) {
    let user = w.core.owner(kernel).expect("the journal has it").clone();
    let waiting = cells.iter().map(|&cell| WaitingCell {
        cell: cell.clone(),
        need: Need::gpus(1),
        class: Class::Interactive,
        print: 0,
    });
    w.tell(Input::ReplicaUp(ReplicaFacts {
        waiting: waiting.collect(),
        ..report(kernel, user.as_str(), Incarnation(1), "n0")
    }));
}

fn order(w: &World) -> Vec<String> {
    let waiting = w.core.waiting().into_iter();
    waiting.map(|cell| cell.kernel.to_string()).collect()
}

fn is_due(w: &World, kernel: &KernelId) -> bool {
    let said = w.said(kernel, None).expect("a cell of it waits");
    said.iter().any(|s| s.starts_with("It has waited so long"))
}

/// A cell of the first kernel runs. One of `old` waits from now on, and one of `young` two hours later.
fn two_wait() -> (World, [(KernelId, CellId); 3]) {
    let mut w = world(1);
    let [busy, old, young] = [("busy", "cy"), ("old", "ada"), ("young", "bob")]
        .map(|(name, user)| w.kernel(name, user, &["n0"], 1));
    let (runs, _) = w.submit(&busy, Need::gpus(1));
    w.settle();
    let (first, _) = w.submit(&old, Need::gpus(1));
    w.pass(HOUR);
    w.pass(HOUR);
    let (second, _) = w.submit(&young, Need::gpus(1));
    (w, [(busy, runs), (old, first), (young, second)])
}

#[test]
fn a_waiting_cell_keeps_its_place_and_its_age_over_a_restart() {
    let (mut w, [_, (old, first), (young, second)]) = two_wait();
    let since = w.core.waiting().into_iter().find(|c| c.kernel == old);
    let since = since.expect("it waits").submitted;
    w.now = since + Span::from_secs(4 * 3600 - 1);
    // Twice: the second core has the first one's word alone, written before the first cell was asked for again.
    for _ in 0..2 {
        restart(&mut w);
        comes_back(&mut w, &young, &[&second]);
        comes_back(&mut w, &old, &[]);
    }
    comes_back(&mut w, &old, &[&first]);
    assert_eq!(order(&w), ["old", "young"]);
    assert!(!is_due(&w, &old));
    w.pass(Span::from_secs(1));
    assert!(is_due(&w, &old));
    assert!(!is_due(&w, &young));
    w.core.sanity_check().unwrap();
}

#[test]
fn a_cell_about_to_start_keeps_its_age_over_a_restart() {
    let (mut w, [(busy, runs), (old, first), _]) = two_wait();
    let since = w.core.waiting()[0].submitted;
    w.end_cell(&busy, &runs);
    w.left();
    let job = *w.agents.keys().next().expect("it is up");
    w.confirm_end(job, LeaseId(1), true);
    assert_eq!(order(&w), ["young"], "the other starts");
    comes_back(&mut w, &old, &[]);
    // The order to start the lease is lost.
    restart(&mut w);
    comes_back(&mut w, &old, &[&first]);
    w.settle();
    let started = w.core.leases().into_iter().find(|l| l.kernel == old);
    assert_eq!(started.map(|l| l.submit), Some(since));
}

/// Nobody goes before others by a cell that was withdrawn, or by one that never waited.
#[test]
fn only_a_cell_that_waits_keeps_its_age() {
    let (mut w, [_, (old, first), (young, second)]) = two_wait();
    w.pass(HOUR);
    w.tell(Input::CancelCell {
        kernel: old.clone(),
        cell: first.clone(),
    });
    restart(&mut w);
    comes_back(&mut w, &young, &[&second]);
    let other = CellId::from("other");
    for cell in [&first, &other] {
        w.waiting.insert((old.clone(), cell.clone()));
    }
    comes_back(&mut w, &old, &[&first, &other]);
    let mut waits = w.core.waiting();
    waits.retain(|c| c.kernel == old);
    assert_eq!(waits.len(), 2);
    assert!(waits.iter().all(|c| c.submitted == w.now), "{waits:?}");
}

/// The user interrupts a cell while no driver listens, and runs another.
#[test]
fn a_cell_withdrawn_during_a_restart_keeps_nothing() {
    let (mut w, [_, (old, first), _]) = two_wait();
    restart(&mut w);
    let other = CellId::from("other");
    w.waiting.insert((old.clone(), other.clone()));
    comes_back(&mut w, &old, &[&other]);
    w.pass(HOUR);
    w.ask_again(&old, &first);
    let waits = w.core.waiting().into_iter().find(|c| c.cell == first);
    assert_eq!(waits.map(|c| c.submitted), Some(w.now));
}

/// A client that counts its cells from the beginning uses the id of a cell that was withdrawn while no driver listened.
#[test]
fn a_withdrawn_cells_age_is_forgotten_some_time_after_a_restart() {
    let (mut w, [_, (old, first), _]) = two_wait();
    restart(&mut w);
    comes_back(&mut w, &old, &[]);
    w.pass(Span::from_secs(601));
    w.ask_again(&old, &first);
    let waits = w.core.waiting().into_iter().find(|c| c.cell == first);
    assert_eq!(waits.map(|c| c.submitted), Some(w.now));
}

/// Use by ended leases counts, faded since, and so does use by a lease that still runs.
#[test]
fn a_kernels_own_use_outlives_a_restart() {
    let mut w = world(2);
    let names = ["long-ago", "lately", "runs", "new"];
    let kernels = names.map(|name| w.kernel(name, "ada", &["n0"], 1));
    let [long_ago, lately, runs, new] = &kernels;
    for (kernel, used, pause) in [(long_ago, 16_000, 28 * 24), (lately, 4000, 0)] {
        let (cell, _) = w.submit(kernel, Need::gpus(1));
        w.settle();
        w.pass(Span::from_secs(used));
        w.end_cell(kernel, &cell);
        w.pass(Span::from_secs(2));
        w.settle();
        (0..pause).for_each(|_| _ = w.pass(HOUR));
    }
    w.submit(runs, Need::gpus(1));
    w.settle();
    w.pass(Span::from_secs(100_000));
    restart(&mut w);
    for kernel in [runs, lately, long_ago, new] {
        comes_back(&mut w, kernel, &[]);
    }
    w.settle();
    let busy = w.kernel("busy", "bob", &["n0"], 2);
    w.submit(&busy, Need::gpus(2));
    w.settle();
    for kernel in [runs, lately, long_ago, new] {
        w.submit(kernel, Need::gpus(1));
    }
    assert_eq!(order(&w), ["new", "long-ago", "lately", "runs"]);
}

/// A pool without pilots, where pilots follow demand.
fn on_demand() -> PoolConfig {
    let mut pool = pool();
    pool.min_pilots = 0;
    pool.max_pilots = 16;
    pool.scale = Some(Scale {
        spares: 0,
        ..Scale::default()
    });
    pool
}

/// The tickets of the pilots asked for.
fn asked(out: &[Output]) -> Vec<u64> {
    let asked = |o: &Output| match o {
        Output::SubmitPilot { ticket, .. } => Some(*ticket),
        _ => None,
    };
    out.iter().filter_map(asked).collect()
}

#[test]
fn pilots_on_their_way_are_not_asked_for_again() {
    let mut w = World::new(1, config(), on_demand());
    w.tell(Input::Node(facts("n0")));
    let k = w.kernel("k", "ada", &["n0"], 1);
    // The pilot expected of the new kernel fails, and its node is tried again after a while.
    for ticket in std::mem::take(&mut w.asked) {
        let reason = "no".to_owned();
        w.tell(Input::PilotFailed { ticket, reason });
    }
    w.pass(Span::from_secs(700));
    let (cell, out) = w.submit(&k, Need::gpus(1));
    let [ticket] = asked(&out)[..] else {
        panic!("{out:?}")
    };
    let job = JobId(9000);
    w.tell(Input::PilotQueued { ticket, job });
    for turn in 0..3 {
        w.pass(Span::from_secs(20));
        let mut out = Vec::new();
        w.core = Core::restore(config(), vec![on_demand()], w.journal.clone(), w.now, &mut out);
        out.extend(w.tell(Input::Node(facts("n0"))));
        w.asked.clear();
        comes_back(&mut w, &k, &[&cell]);
        w.pass(Span::from_secs(20));
        assert!(asked(&out).is_empty() && w.asked.is_empty(), "restart {turn}");
        assert_eq!(w.core.waiting().len(), 1);
    }
    w.core.sanity_check().expect("a sane state");
}

/// The driver asks Slurm whether anything of a kernel is left.
#[test]
fn the_seats_of_a_lost_kernel_are_known_over_a_restart() {
    let mut w = world(1);
    let kernel = w.kernel("old", "ada", &["n0"], 1);
    let bare = |w: &World| -> Vec<_> {
        let bare = w.core.bare_kernels();
        bare.map(|k| (k.kernel.clone(), k.user.to_string(), k.seats.to_vec()))
            .collect()
    };
    assert_eq!(bare(&w), [], "a replica is there");
    let seat = w.core.kernel(&kernel).expect("it is open").replicas[0].seat;
    let lost = Input::ReplicaLost {
        kernel: kernel.clone(),
        incarnation: Incarnation(1),
    };
    w.tell(lost);
    let left = [(kernel, "ada".to_owned(), vec![seat])];
    assert_eq!(bare(&w), left);
    restart(&mut w);
    assert_eq!(bare(&w), left);
    w.core.sanity_check().unwrap();
}
