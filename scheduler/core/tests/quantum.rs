//! A cell that has outrun its quantum while another waits: who is asked, what follows from either answer, and that
//! nothing else does.

mod world;

use hop_core::config::{Config, PoolConfig, Quantum};
use hop_core::id::{CellId, Incarnation, JobId, KernelId, LeaseId};
use hop_core::lease::{EndCause, Outcome};
use hop_core::need::{Class, Need};
use hop_core::reason::{Reason, RefusedBecause};
use hop_core::time::Span;
use hop_core::{Input, Output, Record};
use world::World;

const HOUR: Span = Span::from_secs(3600);

fn world(quantum: Quantum) -> World {
    let mut pool = PoolConfig::fixed("main", 0, 4, 8);
    pool.max_pilots = 8;
    pool.quantum = quantum;
    World::new(1, Config::default(), pool)
}

/// Two kernels on a node of one GPU, on which the first one's cell has run for more than an hour.
fn long() -> (World, JobId, [KernelId; 2], CellId) {
    let mut w = world(Quantum::of_all(HOUR));
    let job = w.pilot("n0", 1, 8);
    let (a, b) = (w.kernel("a", "ada", &["n0"], 1), w.kernel("b", "bob", &["n0"], 1));
    let (cell, _) = w.submit(&a, Need::gpus(1));
    w.settle();
    w.pass(Span::from_secs(4000));
    (w, job, [a, b], cell)
}

fn parks(out: &[Output]) -> Vec<LeaseId> {
    let lease = |o: &Output| match o {
        Output::Park { lease, .. } => Some(*lease),
        _ => None,
    };
    out.iter().filter_map(lease).collect()
}

#[test]
fn a_cell_that_parks_makes_room_and_goes_on_afterwards() {
    let (mut w, job, [a, b], cell) = long();
    let (second, out) = w.submit(&b, Need::gpus(1));
    let [
        Output::Park {
            kernel,
            lease,
            reason,
            ..
        },
        Output::Queued { reason: why, .. },
    ] = &out[..]
    else {
        panic!("{out:?}")
    };
    assert_eq!((kernel, *lease), (&a, LeaseId(1)));
    assert_eq!(reason, "it has run for 67 min and a cell that needs 1 GPU waits");
    assert_eq!(*why, Reason::Parking { node: "n0".into() });

    let out = w.park(true).unwrap();
    let [
        Output::Record(Record::CellServed { outcome, .. }),
        Output::EndLease { cause, .. },
        Output::Queued {
            cell: queued,
            position,
            reason,
            ..
        },
    ] = &out[..]
    else {
        panic!("{out:?}")
    };
    assert_eq!((*outcome, *cause), (Outcome::Parked, EndCause::Claimed));
    assert_eq!((queued, *position, reason), (&cell, 2, &Reason::OwnLease));
    w.confirm_end(job, LeaseId(1), true);
    w.settle();
    assert!(w.running.contains_key(&(b.clone(), second.clone())));
    let said = w.core.explain(&a, Some(&cell)).unwrap().join(" ");
    assert!(
        said.contains("It ran for 67 min and was parked for others"),
        "{said}"
    );

    w.end_cell(&b, &second);
    w.settle();
    assert_eq!(w.running.get(&(a.clone(), cell.clone())), Some(&LeaseId(3)));
    // Its quantum begins anew, and what it ran for is learnt as a whole.
    let (_, out) = w.submit(&b, Need::gpus(1));
    assert_eq!(parks(&out), []);
    assert_eq!(parks(&w.pass(Span::from_secs(3599))), []);
    w.end_cell(&a, &cell);
    let foretold = w.core.foretell(&a, 0, Span::ZERO).unwrap();
    assert_eq!(foretold.history, 1);
    assert!(foretold.left.unwrap() > Span::from_secs(6000), "{foretold:?}");
}

#[test]
fn one_that_cannot_park_runs_on_and_is_not_asked_again() {
    let (mut w, _, [a, b], cell) = long();
    let (_, out) = w.submit(&b, Need::gpus(1));
    assert_eq!(parks(&out), [LeaseId(1)]);
    assert_eq!(w.park(false).unwrap(), []);
    for _ in 0..100 {
        assert_eq!(parks(&w.pass(Span::from_secs(60))), []);
    }
    assert!(w.running.contains_key(&(a.clone(), cell.clone())));
    w.end_cell(&a, &cell);
    w.settle();
    assert_eq!(w.running.len(), 1);
}

#[test]
fn nobody_is_asked_before_the_quantum_or_without_one_or_for_nothing() {
    let mut w = world(Quantum::of_all(HOUR));
    w.pilot("n0", 1, 8);
    let (a, b) = (w.kernel("a", "ada", &["n0"], 1), w.kernel("b", "bob", &["n0"], 1));
    w.submit(&a, Need::gpus(1));
    w.settle();
    let (_, out) = w.submit(&b, Need::gpus(1));
    assert_eq!(parks(&out), []);
    w.pass(Span::from_secs(1800));
    assert_eq!(w.asked_to_park, []);
    w.pass(Span::from_secs(1800));
    assert_eq!(w.asked_to_park.len(), 1, "when its quantum is over");

    for (quantum, gpus, why) in [
        (Quantum::default(), 1, "no quantum"),
        (
            Quantum {
                batch: Some(HOUR),
                ..Quantum::default()
            },
            1,
            "another class's",
        ),
        (Quantum::of_all(HOUR), 2, "it would not do"),
    ] {
        let (mut w, _, [_, b], _) = long();
        let mut pool = PoolConfig::fixed("main", 0, 4, 8);
        (pool.max_pilots, pool.quantum) = (8, quantum);
        w.tell(Input::Pool(pool));
        w.submit(&b, Need::gpus(gpus));
        w.pass(HOUR);
        assert_eq!(w.asked_to_park, [], "{why}");
    }
}

#[test]
fn as_few_gpus_as_will_do_are_parked_those_first_that_ran_longest() {
    let mut w = world(Quantum::of_all(HOUR));
    w.pilot("n0", 4, 8);
    let names = ["a", "b", "c", "d"];
    for name in names {
        let k = w.kernel(name, name, &["n0"], 1);
        w.submit(&k, Need::gpus(1));
        w.settle();
        w.pass(Span::from_secs(10));
    }
    w.pass(HOUR);
    let e = w.kernel("e", "eve", &["n0"], 2);
    let (_, out) = w.submit(&e, Need::gpus(2));
    assert_eq!(parks(&out), [LeaseId(1), LeaseId(2)]);
    // One of them can't: the next is asked.
    assert_eq!(parks(&w.park(false).unwrap()), [LeaseId(3)]);
    w.park(true).unwrap();
    w.park(true).unwrap();
    w.settle();
    assert!(w.running.keys().any(|(k, _)| *k == e));
    assert_eq!(w.running.len(), 3);
}

#[test]
fn a_parked_cell_is_lost_with_its_process_and_goes_nowhere_else() {
    let (mut w, _, [a, b], cell) = long();
    w.pilot("n1", 1, 8);
    w.replica(&a, "ada", Incarnation(2), "n1");
    w.submit(&b, Need::gpus(1));
    w.park(true).unwrap();
    w.settle();
    w.pass(Span::from_secs(60));
    w.settle();
    assert_eq!(
        w.running.len(),
        1,
        "a GPU is free on n1, but its memory lies on n0"
    );
    let kernel = a.clone();
    let out = w.tell(Input::ReplicaLost {
        kernel,
        incarnation: Incarnation(1),
    });
    let refused = Output::Refused {
        kernel: a,
        cell,
        reason: RefusedBecause::ReplicaLost,
    };
    assert_eq!(out, [refused]);
}

#[test]
fn answers_that_come_too_late_or_from_others_change_nothing() {
    let (mut w, _, [a, b], cell) = long();
    w.submit(&b, Need::gpus(1));
    let lease = LeaseId(1);
    for kernel in [&b, &KernelId::from("nobody")] {
        let (kernel, cell) = (kernel.clone(), cell.clone());
        assert_eq!(
            w.tell(Input::ParkRefused {
                kernel: kernel.clone(),
                lease
            }),
            []
        );
        assert_eq!(w.tell(Input::CellParked { kernel, cell, lease }), []);
    }
    w.asked_to_park.clear();
    w.end_cell(&a, &cell);
    w.settle();
    assert_eq!(
        w.tell(Input::CellParked {
            kernel: a.clone(),
            cell,
            lease
        }),
        []
    );
    assert_eq!(w.tell(Input::ParkRefused { kernel: a, lease }), []);
    assert_eq!(w.running.len(), 1);
}

#[test]
fn a_cell_that_is_expected_to_end_soon_is_not_asked() {
    for (usual, asked) in [(20, 0), (200, 1)] {
        let mut w = world(Quantum::of_all(Span::from_secs(10)));
        w.pilot("n0", 1, 8);
        let (a, b) = (w.kernel("a", "ada", &["n0"], 1), w.kernel("b", "bob", &["n0"], 1));
        for _ in 0..20 {
            let (cell, _) = w.submit(&a, Need::gpus(1));
            w.settle();
            w.pass(Span::from_secs(usual));
            w.end_cell(&a, &cell);
            w.settle();
        }
        w.submit(&a, Need::gpus(1));
        w.settle();
        w.pass(Span::from_secs(12));
        let (_, out) = w.submit(&b, Need::gpus(1));
        assert_eq!(parks(&out).len(), asked, "cells take {usual} s");
    }
}

#[test]
fn a_deadline_is_not_parked_for_by_default() {
    assert_eq!(Quantum::of_all(HOUR).of(Class::Deadline), None);
}
