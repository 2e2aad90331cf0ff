//! A cell that has outrun its quantum while another waits: who is asked, what follows from either answer, and that
//! nothing else does.

use crate::world::{World, report};
use hop_core::config::{Config, PoolConfig, Quantum};
use hop_core::journal::Phase;
use hop_core::{Input, Output, ParkedCell, Record, ReplicaFacts, WaitingCell};
use hop_words::id::{CellId, Incarnation, JobId, KernelId, LeaseId};
use hop_words::lease::{EndCause, Outcome};
use hop_words::need::{Class, Need};
use hop_words::reason::{Reason, RefusedBecause};
use hop_words::time::Span;

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
    assert_eq!(
        reason.to_string(),
        "it has run for 67 min and a cell that needs 1 GPU waits"
    );
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
    let said = w.said(&a, Some(&cell)).unwrap().join(" ");
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
fn nothing_is_kept_for_a_cell_once_a_park_is_refused() {
    let mut w = world(Quantum::of_all(HOUR));
    w.pilot("n0", 2, 8);
    let [a, b, c] = ["a", "b", "c"].map(|name| w.kernel(name, name, &["n0"], 1));
    let (cell, _) = w.submit(&c, Need::gpus(2));
    w.settle();
    w.pass(HOUR);
    w.end_cell(&c, &cell);
    w.pass(HOUR);
    w.settle();
    w.submit(&a, Need::gpus(1));
    w.settle();
    w.pass(Span::from_secs(4000));
    let (_, out) = w.submit(&b, Need::gpus(2));
    assert_eq!(parks(&out).len(), 1);
    let (_, out) = w.submit(&c, Need::gpus(1));
    assert!(matches!(&out[..], [Output::Queued { .. }]), "{out:?}");
    let out = w.park(false).unwrap();
    assert!(
        matches!(&out[..], [Output::Record(_), Output::StartLease(s)] if s.kernel == c),
        "{out:?}"
    );
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
    assert!(
        matches!(
            &out[0],
            Output::Record(Record::CellWithdrawn {
                reason: Some(RefusedBecause::ReplicaLost),
                ..
            })
        ),
        "{out:?}"
    );
    assert_eq!(out[1..], [refused]);
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

/// An answer that came after its time, or to a question of an earlier daemon: the GPUs are free, and that counts.
#[test]
fn a_cell_that_parks_unasked_makes_room_as_well() {
    for refused in [false, true] {
        let (mut w, _, [a, b], cell) = long();
        if refused {
            w.submit(&b, Need::gpus(1));
            w.park(false);
        }
        w.asked_to_park = vec![(a.clone(), cell.clone(), LeaseId(1))];
        let out = w.park(true).unwrap();
        assert!(
            matches!(
                &out[0],
                Output::Record(Record::CellServed {
                    outcome: Outcome::Parked,
                    ..
                })
            ),
            "{out:?}"
        );
        w.settle();
        let served = if refused { &b } else { &a };
        assert!(w.running.keys().all(|(k, _)| k == served), "{:?}", w.running);
        assert_eq!(w.running.len(), 1);
    }
}

fn parked(kernel: &KernelId, cell: &CellId, lease: u64) -> Input {
    Input::ReplicaUp(ReplicaFacts {
        waiting: vec![WaitingCell {
            cell: cell.clone(),
            need: Need::gpus(1),
            class: Class::Batch,
            print: 0,
        }],
        parked: Some(ParkedCell {
            cell: cell.clone(),
            lease: LeaseId(lease),
            ran: Span::from_secs(5000),
        }),
        ..report(kernel, "ada", Incarnation(1), "n0")
    })
}

/// Whatever was lost on the way: the replica's report says how it stands.
#[test]
fn a_replica_that_reports_a_parked_cell_is_believed_whatever_was_known() {
    // The lease still runs it.
    let (mut w, _, [a, b], cell) = long();
    w.submit(&b, Need::gpus(1));
    w.running.clear();
    w.waiting.insert((a.clone(), cell.clone()));
    let out = w.tell(parked(&a, &cell, 1));
    assert!(
        matches!(
            &out[0],
            Output::Record(Record::CellServed {
                outcome: Outcome::Parked,
                ..
            })
        ),
        "{out:?}"
    );
    let views = w.core.waiting();
    assert_eq!((views.len(), views[1].parked), (2, Some(Span::from_secs(4000))));
    // It is known already.
    assert_eq!(w.tell(parked(&a, &cell, 1)), []);
    // Nothing is known of it: its lease is over, and so it is with one that is not the kernel's.
    for lease in [9, 1] {
        let (mut w, _, [a, b], first) = long();
        w.end_cell(&a, &first);
        w.settle();
        w.submit(&b, Need::gpus(1));
        w.settle();
        let cell = CellId::from("parked");
        w.waiting.insert((a.clone(), cell.clone()));
        w.tell(parked(&a, &cell, lease));
        let view = w.core.waiting().remove(0);
        assert_eq!((&view.cell, view.parked), (&cell, Some(Span::from_secs(5000))));
        assert_eq!(view.class, Class::Batch);
        let running = w.running.keys().next().unwrap().clone();
        w.end_cell(&running.0, &running.1);
        w.settle();
        assert!(w.running.contains_key(&(a, cell)));
    }
}

#[test]
fn a_parked_cell_waits_for_the_chip_that_it_ran_on() {
    let (mut w, _, [_, b], _) = long();
    w.submit(&b, Need::gpus(1));
    w.park(true).unwrap();
    let parked = w.core.waiting().remove(1);
    assert_eq!(parked.need.gpu_type, Some("fake".into()));
}

#[test]
fn what_runs_is_restored_with_its_class_and_what_an_earlier_daemon_wrote_too() {
    for written in ["", r#","class":"batch","ran":7"#] {
        let text = format!(r#"{{"running":{{"cell":"c","submitted":1,"since":2{written}}}}}"#);
        let Phase::Running { class, ran, .. } = serde_json::from_str(&text).unwrap() else {
            panic!("{text}")
        };
        let expected = match written {
            "" => (Class::Interactive, Span::ZERO),
            _ => (Class::Batch, Span(7)),
        };
        assert_eq!((class, ran), expected);
    }
}

#[test]
fn what_may_be_parked_is_explained() {
    let (mut w, _, [a, b], cell) = long();
    let said = |w: &World| w.said(&a, Some(&cell)).unwrap().join(" ");
    assert!(said(&w).contains("After 60 min it may be parked"), "{}", said(&w));
    w.submit(&b, Need::gpus(1));
    assert!(said(&w).contains("It is asked to park"), "{}", said(&w));
    w.park(false);
    assert!(said(&w).contains("can't: it runs to its end"), "{}", said(&w));
}

#[test]
fn a_cell_that_is_expected_to_end_soon_is_not_asked() {
    for (usual, worth, asked) in [(20, 30, 0), (200, 30, 1), (20, 1, 1)] {
        let mut w = world(Quantum {
            worth_waiting: Span::from_secs(worth),
            ..Quantum::of_all(Span::from_secs(10))
        });
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
        assert_eq!(
            parks(&out).len(),
            asked,
            "cells take {usual} s, {worth} s are worth it"
        );
    }
}

#[test]
fn a_deadline_is_not_parked_for_by_default() {
    assert_eq!(Quantum::of_all(HOUR).of(Class::Deadline), None);
}

#[test]
fn a_parked_cell_outlives_its_pilot_and_goes_on_in_the_next_one() {
    let (mut w, job, [a, b], cell) = long();
    w.submit(&b, Need::gpus(1));
    w.park(true).expect("it was asked to");
    w.settle();
    // The pilot goes with the other's cell on it; nothing can be granted, however long it takes.
    let out = w.tell(Input::PilotLost {
        pilot: job,
        cause: EndCause::PilotLost,
    });
    let granted = |out: &[Output], k: &KernelId, c: &CellId| {
        out.iter()
            .any(|o| matches!(o, Output::Granted { kernel, cell, .. } if kernel == k && cell == c))
    };
    assert!(!granted(&out, &a, &cell), "{out:?}");
    assert!(!granted(&w.pass(HOUR), &a, &cell));
    let (next, out) = w.pilot_up("n0", 1, 8);
    let lease = out.iter().find_map(|o| match o {
        Output::StartLease(s) if s.kernel == a => Some(s.lease),
        _ => None,
    });
    let out = w.confirm(next, lease.expect("the parked cell goes on"));
    assert!(granted(&out, &a, &cell), "{out:?}");
}
