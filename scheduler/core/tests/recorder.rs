//! What the core says to one input at a time, and that it says nothing else.

use crate::world::{World, by_hand, report};
use hop_core::config::{Config, Count, Limit, LimitOf, Limits, PoolConfig};
use hop_core::{Core, Input, Output, Record, ReportedLease, Submit};
use hop_words::id::{CellId, GpuIndex, Incarnation, JobId, KernelId, LeaseId};
use hop_words::lease::{EndCause, Outcome};
use hop_words::need::{Class, Need};
use hop_words::reason::{Reason, RefusedBecause};
use hop_words::time::{Span, Timestamp};

fn pool() -> PoolConfig {
    by_hand(2, 8)
}

fn world() -> World {
    let mut p = pool();
    p.max_pilots = 8;
    World::new(1, Config::default(), p)
}

/// The kinds of what was emitted, in order.
fn kinds(out: &[Output]) -> Vec<&'static str> {
    out.iter()
        .map(|o| match o {
            Output::StartLease(_) => "start",
            Output::EndLease { .. } => "end",
            Output::EndAcknowledged { .. } => "ack",
            Output::DrainPilot { .. } => "drain",
            Output::SubmitPilot { .. } => "submit-pilot",
            Output::CancelPilot { .. } => "cancel-pilot",
            Output::Granted { lingering: true, .. } => "granted-lingering",
            Output::Granted { .. } => "granted",
            Output::Queued { .. } => "queued",
            Output::Refused { .. } => "refused",
            Output::Revoked { .. } => "revoked",
            Output::Held { wanted: None, .. } => "stays",
            Output::Held { .. } => "warned",
            Output::Park { .. } => "park",
            Output::CloseKernel { .. } => "close",
            Output::Place { .. } => "place",
            Output::PlaceRefused { .. } => "place-refused",
            Output::Migrate { .. } => "migrate",
            Output::MoveRefused { .. } => "move-refused",
            Output::MoveWithdrawn { .. } => "move-withdrawn",
            Output::Forget { .. } => "forget",
            Output::Record(Record::LeaseOpened { .. }) => "opened",
            Output::Record(Record::LeaseStarted { .. }) => "started",
            Output::Record(Record::CellServed { .. }) => "served",
            Output::Record(Record::CellWithdrawn { .. }) => "withdrawn",
            Output::Record(Record::LeaseClosed { .. }) => "closed",
            Output::Journal(_) => "journal",
        })
        .collect()
}

#[test]
fn a_cell_gets_a_fresh_lease_then_a_lingering_one_then_none() {
    let mut w = world();
    let job = w.pilot("n0", 2, 8);
    let k = w.kernel("k", "ada", &["n0"], 1);
    let (cell, out) = w.submit(&k, Need::gpus(1));
    assert_eq!(kinds(&out), ["opened", "start"]);
    let out = w.confirm(job, LeaseId(1));
    assert_eq!(kinds(&out), ["started", "granted"]);
    w.now = w.now + Span::from_secs(3);
    let out = w.end_cell(&k, &cell);
    assert_eq!(kinds(&out), ["served"]);

    let (cell, out) = w.submit(&k, Need::gpus(1));
    assert_eq!(kinds(&out), ["granted-lingering"]);
    w.now = w.now + Span::from_secs(1);
    w.end_cell(&k, &cell);
    let out = w.pass(Span::from_secs(2));
    assert_eq!(kinds(&out), ["revoked"]);
    assert_eq!(kinds(&w.left().unwrap()), ["end"]);
    let out = w.confirm_end(job, LeaseId(1), true);
    assert_eq!(kinds(&out), ["closed", "ack"]);
    let Output::Record(Record::LeaseClosed {
        run,
        linger,
        cells,
        cause,
        held,
        ..
    }) = &out[0]
    else {
        panic!("{out:?}");
    };
    assert_eq!(
        (*run, *linger, *cells),
        (Span::from_secs(4), Span::from_secs(2), 2)
    );
    assert_eq!(*held, Span::from_secs(6));
    assert_eq!(*cause, EndCause::Done);
}

#[test]
fn a_cell_asked_for_again_is_answered_again_and_runs_once() {
    let mut w = world();
    let job = w.pilot("n0", 1, 8);
    let (a, b) = (w.kernel("a", "ada", &["n0"], 1), w.kernel("b", "bob", &["n0"], 1));
    let again = |kernel: &KernelId, cell: &CellId| {
        Input::Submit(Submit {
            kernel: kernel.clone(),
            cell: cell.clone(),
            need: Need::gpus(1),
            class: Class::Interactive,
            print: 0,
        })
    };
    let (first, _) = w.submit(&a, Need::gpus(1));
    assert_eq!(kinds(&w.tell(again(&a, &first))), [""; 0]);
    w.confirm(job, LeaseId(1));
    assert_eq!(kinds(&w.tell(again(&a, &first))), ["granted"]);
    let (second, out) = w.submit(&b, Need::gpus(1));
    assert_eq!(kinds(&out), ["queued"]);
    assert_eq!(kinds(&w.tell(again(&b, &second))), ["queued"]);
    let out = w.end_cell(&a, &first);
    assert_eq!(kinds(&out), ["served", "revoked"]);
    assert_eq!(kinds(&w.left().unwrap()), ["end"]);
}

#[test]
fn lingering_is_cut_when_somebody_waits_and_the_gpu_goes_to_them() {
    let mut w = world();
    let job = w.pilot("n0", 1, 8);
    let (a, b) = (w.kernel("a", "ada", &["n0"], 1), w.kernel("b", "bob", &["n0"], 1));
    let (cell, _) = w.submit(&a, Need::gpus(1));
    w.settle();
    w.end_cell(&a, &cell);
    let (_, out) = w.submit(&b, Need::gpus(1));
    assert_eq!(kinds(&out), ["revoked", "queued"]);
    let Output::Queued { position, reason, .. } = &out[1] else {
        panic!()
    };
    assert_eq!(*position, 1);
    assert_eq!(*reason, Reason::Claiming { node: "n0".into() });
    assert_eq!(kinds(&w.left().unwrap()), ["end"]);
    let out = w.confirm_end(job, LeaseId(1), true);
    assert_eq!(kinds(&out), ["closed", "opened", "start", "ack"]);
    let Output::Record(Record::LeaseClosed { cause, .. }) = &out[0] else {
        panic!()
    };
    assert_eq!(*cause, EndCause::Claimed);
}

#[test]
fn a_lease_does_not_linger_when_somebody_waits_already() {
    let mut w = world();
    w.pilot("n0", 1, 8);
    let (a, b) = (w.kernel("a", "ada", &["n0"], 1), w.kernel("b", "bob", &["n0"], 1));
    let (cell, _) = w.submit(&a, Need::gpus(1));
    w.settle();
    let (_, out) = w.submit(&b, Need::gpus(1));
    assert_eq!(kinds(&out), ["queued"]);
    let Output::Queued { reason, .. } = &out[0] else {
        panic!()
    };
    assert_eq!(
        reason.to_string(),
        "it needs a GPU and the only one that fits on n0 is in use"
    );
    let out = w.end_cell(&a, &cell);
    assert_eq!(kinds(&out), ["served", "revoked"]);
    assert_eq!(kinds(&w.left().unwrap()), ["end"]);
}

#[test]
fn a_cell_that_waits_for_the_users_own_other_notebook_is_told_its_name() {
    let mut w = world();
    let job = w.pilot("n0", 2, 8);
    let [a, b, c] = ["a", "b", "c"].map(|name| w.kernel(name, "ada", &["n0"], 1));
    let bob = w.kernel("bob", "bob", &["n0"], 1);
    let (of_bob, _) = w.submit(&bob, Need::gpus(1));
    w.submit(&a, Need::gpus(1));
    w.settle();
    let (_, out) = w.submit(&b, Need::gpus(1));
    let told = |out: &[Output]| reason_told(out).to_string();
    let busy = "it needs 1 GPU and all 2 that fit on n0 are in use";
    // Nobody reads of others' notebooks.
    assert_eq!(told(&out), format!("{busy}, 1 of them by your notebook a"));
    // Bob's GPU goes to her second notebook: the third one's cell is told so with the next news.
    let (of_c, _) = w.submit(&c, Need::gpus(1));
    w.end_cell(&bob, &of_bob);
    w.left();
    let mut out = w.confirm_end(job, LeaseId(1), true);
    w.settle();
    out.extend(w.pass(Span::from_secs(60)));
    let both = format!("{busy} by your notebooks a and b");
    let said = out.iter().rev().find_map(|o| match o {
        Output::Queued { cell, reason, .. } if *cell == of_c => Some(reason.to_string()),
        _ => None,
    });
    assert_eq!(said, Some(both));
}

#[test]
fn the_last_executor_is_preferred_and_any_other_replica_will_do() {
    let mut w = world();
    w.pilot("n0", 1, 8);
    let second = w.pilot("n1", 1, 8);
    let k = w.kernel("k", "ada", &["n0", "n1"], 1);
    let other = w.kernel("o", "bob", &["n0"], 1);
    let (cell, _) = w.submit(&k, Need::gpus(1));
    w.settle();
    assert_eq!(w.core.leases()[0].node.as_str(), "n0");
    w.end_cell(&k, &cell);
    w.pass(Span::from_secs(3));
    w.settle();
    // Its node is taken: the other replica runs it.
    w.submit(&other, Need::gpus(1));
    w.settle();
    let (cell, _) = w.submit(&k, Need::gpus(1));
    w.settle();
    let lease = w.core.leases().into_iter().find(|l| l.kernel == k).unwrap();
    assert_eq!(
        (lease.node.as_str(), lease.pilot, lease.executor),
        ("n1", second, Incarnation(2))
    );
    w.end_cell(&k, &cell);
}

#[test]
fn more_than_there_can_ever_be_is_refused_with_the_reason() {
    let mut w = world();
    w.pilot("n0", 2, 8);
    let k = w.kernel("k", "ada", &["n0"], 1);
    let (_, out) = w.submit(&k, Need::gpus(3));
    assert_eq!(kinds(&out), ["refused"]);
    let Output::Refused { reason, .. } = &out[0] else {
        panic!()
    };
    assert_eq!(
        reason.to_string(),
        "the cell asks for 3 GPUs on one node, and pool main has 2 on each"
    );
    let (_, out) = w.submit(&k, Need::default());
    assert!(matches!(
        &out[0],
        Output::Refused {
            reason: RefusedBecause::NeedsNothing,
            ..
        }
    ));
    let (_, out) = w.submit(&"nobody".into(), Need::gpus(1));
    assert!(matches!(
        &out[0],
        Output::Refused {
            reason: RefusedBecause::NoKernel,
            ..
        }
    ));
}

#[test]
fn limits_hold_cells_up_and_say_so() {
    let mut w = world();
    w.pilot("n0", 2, 8);
    let limits = vec![Limit {
        of: LimitOf::EachUser,
        gpus: Some(1),
        gpu_minutes: None,
        name: "QOS normal, MaxTRESPerUser".into(),
    }];
    w.tell(Input::Limits(Limits {
        limits,
        ..Limits::default()
    }));
    let (a, b) = (w.kernel("a", "ada", &["n0"], 1), w.kernel("b", "ada", &["n0"], 1));
    let (cell, _) = w.submit(&a, Need::gpus(1));
    w.settle();
    let (_, out) = w.submit(&b, Need::gpus(1));
    assert_eq!(kinds(&out), ["queued"]);
    let Output::Queued { reason, .. } = &out[0] else {
        panic!()
    };
    assert_eq!(
        reason.to_string(),
        "limit QOS normal, MaxTRESPerUser: 1 of 1 GPUs are in use already by your notebook a"
    );
    let out = w.end_cell(&a, &cell);
    assert_eq!(kinds(&out), ["served", "revoked"]);
    w.settle();
    assert_eq!(w.running.len(), 1);
    let (_, out) = w.submit(&a, Need::gpus(2));
    assert!(matches!(
        &out[0],
        Output::Refused {
            reason: RefusedBecause::OverLimit { .. },
            ..
        }
    ));
}

/// Ada's association in `lab` allows `gpus`, and she holds `elsewhere` in jobs of her own.
fn association_of_ada(gpus: u32, minutes: Option<u64>, elsewhere: u32) -> Input {
    Input::Limits(Limits {
        limits: vec![Limit {
            of: LimitOf::Members {
                who: vec![("ada".into(), Some("acct-1".into())), ("ada".into(), None)],
                count: Count::Users,
            },
            gpus: Some(gpus),
            gpu_minutes: minutes,
            name: "GrpTRES of ada in account acct-1".into(),
        }],
        elsewhere: vec![("ada".into(), "acct-1".into(), elsewhere)],
    })
}

#[test]
fn limits_on_associations_count_leases_and_what_people_hold_in_slurm() {
    let mut w = world();
    w.pilot("n0", 4, 8);
    w.tell(association_of_ada(2, None, 1));
    let (a, b) = (w.kernel("a", "ada", &["n0"], 1), w.kernel("b", "ada", &["n0"], 1));
    let other = w.kernel("c", "bob1", &["n0"], 1);
    w.submit(&a, Need::gpus(1));
    w.settle();
    let (_, out) = w.submit(&b, Need::gpus(1));
    let [Output::Queued { reason, .. }] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!(
        reason.to_string(),
        "limit GrpTRES of ada in account acct-1: 2 of 2 GPUs are in use already"
    );
    let (_, out) = w.submit(&other, Need::gpus(2));
    assert_eq!(kinds(&out), ["opened", "start"], "it binds nobody else");
    // Her own Slurm job is over.
    let out = w.tell(association_of_ada(2, None, 0));
    assert_eq!(kinds(&out), ["opened", "start"]);
    w.settle();
    let (_, out) = w.submit(&a, Need::gpus(3));
    assert_eq!(kinds(&out), ["refused"], "it never could");
    let out = w.tell(Input::Limits(Limits::default()));
    assert_eq!(kinds(&out), [""; 0]);
}

#[test]
fn the_one_who_has_used_less_goes_first() {
    let mut w = world();
    w.pilot("n0", 1, 8);
    let (a, b) = (
        w.kernel("a", "ada", &["n0"], 1),
        w.kernel("b", "bob1", &["n0"], 1),
    );
    let (c, _) = (w.kernel("c", "cy", &["n0"], 1), ());
    let (cell, _) = w.submit(&a, Need::gpus(1));
    w.settle();
    w.now = w.now + Span::from_secs(600);
    w.end_cell(&a, &cell);
    let (busy, _) = w.submit(&c, Need::gpus(1));
    w.settle();
    // Ada asks before Bob, but has used ten minutes already.
    w.submit(&a, Need::gpus(1));
    w.submit(&b, Need::gpus(1));
    w.end_cell(&c, &busy);
    w.settle();
    let running: Vec<_> = w.running.keys().map(|(k, _)| k.as_str().to_owned()).collect();
    assert_eq!(running, ["b"]);
}

/// A lease that lingers, and its pilot.
fn lingering(gpus: u16) -> (World, JobId, KernelId) {
    let mut w = world();
    let job = w.pilot("n0", 2, 8);
    let k = w.kernel("k", "ada", &["n0"], 1);
    let cpus = if gpus == 0 { 2 } else { 0 };
    let (cell, _) = w.submit(
        &k,
        Need {
            gpus,
            cpus,
            ..Need::default()
        },
    );
    w.settle();
    w.end_cell(&k, &cell);
    (w, job, k)
}

#[test]
fn a_kernel_gets_the_grace_to_leave_its_gpus_before_they_are_taken_back() {
    let (mut w, job, _) = lingering(1);
    assert_eq!(kinds(&w.pass(Span::from_secs(2))), ["revoked"]);
    assert_eq!(w.core.leases()[0].state, "ENDING");
    // The agent comes back meanwhile: it isn't told anything yet.
    w.tell(Input::PilotSilent { pilot: job });
    assert_eq!(kinds(&w.announce(job)), [""; 0]);
    assert_eq!(kinds(&w.pass(Span::from_millis(1999))), [""; 0]);
    let out = w.pass(Span::from_millis(1));
    let [Output::EndLease { cause, grace, .. }] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!((*cause, *grace), (EndCause::Done, Span::from_secs(2)));
    // Too late to say so: it is ordered once.
    w.leaving.insert(LeaseId(1), "k".into());
    assert_eq!(kinds(&w.left().unwrap()), [""; 0]);
    assert_eq!(kinds(&w.confirm_end(job, LeaseId(1), true)), ["closed", "ack"]);
}

#[test]
fn nobody_is_waited_for_who_has_nothing_to_leave_or_is_gone() {
    let (mut w, ..) = lingering(0);
    assert_eq!(
        kinds(&w.pass(Span::from_secs(2))),
        ["revoked", "end"],
        "cores alone"
    );

    let (mut w, _, kernel) = lingering(1);
    let lease = LeaseId(1);
    let out = w.tell(Input::ReleaseLease { kernel, lease });
    assert_eq!(kinds(&out), ["revoked", "end"], "it wants to be rid of it");

    let (mut w, _, kernel) = lingering(1);
    w.pass(Span::from_secs(2));
    let incarnation = Incarnation(1);
    let out = w.tell(Input::ReplicaLost { kernel, incarnation });
    assert_eq!(kinds(&out), ["end"], "its process went while it left");

    let (mut w, _, kernel) = lingering(1);
    let out = w.tell(Input::ReplicaLost { kernel, incarnation });
    assert_eq!(kinds(&out), ["revoked", "end"], "its process is gone");

    let mut without = pool();
    (without.max_pilots, without.grace) = (8, Span::ZERO);
    let (mut w, ..) = lingering(1);
    w.tell(Input::Pool(without));
    assert_eq!(kinds(&w.pass(Span::from_secs(2))), ["revoked", "end"], "no grace");
}

#[test]
fn a_foreign_kernel_cannot_end_the_grace() {
    let (mut w, ..) = lingering(1);
    let other = w.kernel("o", "bob", &["n0"], 1);
    w.pass(Span::from_secs(2));
    let out = w.tell(Input::ReleaseLease {
        kernel: other,
        lease: LeaseId(1),
    });
    assert_eq!(kinds(&out), [""; 0]);
    assert_eq!(kinds(&w.left().unwrap()), ["end"]);
}

#[test]
fn a_lost_pilot_loses_its_leases_and_says_so_once() {
    let mut w = world();
    let job = w.pilot("n0", 2, 8);
    let k = w.kernel("k", "ada", &["n0"], 1);
    w.submit(&k, Need::gpus(1));
    w.settle();
    w.agents.remove(&job);
    let out = w.tell(Input::PilotLost {
        pilot: job,
        cause: EndCause::NodeLost,
    });
    assert_eq!(kinds(&out), ["served", "revoked", "closed"]);
    let Output::Record(Record::CellServed {
        outcome, with_lease, ..
    }) = &out[0]
    else {
        panic!()
    };
    assert_eq!((*outcome, *with_lease), (Outcome::Lost, true));
    let (_, out) = w.submit(&k, Need::gpus(1));
    let [Output::SubmitPilot { node, .. }, Output::Queued { reason, .. }] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!(
        node.as_ref().map(|n| n.as_str()),
        Some("n0"),
        "another is brought there"
    );
    assert_eq!(reason.to_string(), "pool main is starting a job with GPUs for it");
}

fn failed(w: &mut World, job: JobId, lease: u64) -> Vec<Output> {
    w.agents.get_mut(&job).expect("it is there").starting.clear();
    w.tell(Input::LeaseFailed {
        lease: LeaseId(lease),
        pilot: job,
        reason: "srun: error".into(),
        device_lost: false,
    })
}

#[test]
fn a_failed_start_is_tried_again_after_growing_pauses() {
    let mut w = world();
    let job = w.pilot("n0", 2, 8);
    let k = w.kernel("k", "ada", &["n0"], 1);
    w.submit(&k, Need::gpus(1));
    for n in 1..=3u64 {
        let out = failed(&mut w, job, n);
        let Output::Queued { reason, .. } = &out[1] else {
            panic!("{out:?}")
        };
        assert_eq!(kinds(&out), ["closed", "queued", "ack"]);
        assert!(reason.to_string().contains("could not be started"), "{reason}");
        let pause = Span::from_secs(1 << (n - 1));
        let out = w.pass(Span(pause.0 - 1));
        assert!(!kinds(&out).contains(&"start"), "{out:?}");
        let out = w.pass(Span(1));
        assert!(kinds(&out).contains(&"start"), "{out:?}");
    }
    assert_eq!(kinds(&failed(&mut w, job, 4)), ["closed", "refused", "ack"]);
}

#[test]
fn a_failed_start_goes_elsewhere_at_once() {
    let mut w = world();
    let jobs = [w.pilot("n0", 1, 8), w.pilot("n1", 1, 8)];
    let k = w.kernel("k", "ada", &["n0", "n1"], 1);
    w.submit(&k, Need::gpus(1));
    let out = failed(&mut w, jobs[0], 1);
    assert_eq!(kinds(&out), ["closed", "opened", "start", "ack"]);
    let Output::StartLease(start) = &out[2] else {
        panic!("{out:?}")
    };
    assert_eq!(start.pilot, jobs[1]);
    // Somebody else's cell has no reason to avoid the first.
    let other = w.kernel("o", "bob", &["n0"], 1);
    let (_, out) = w.submit(&other, Need::gpus(1));
    assert_eq!(kinds(&out), ["opened", "start"]);
}

#[test]
fn cores_alone_are_leased_too() {
    let mut w = world();
    w.pilot("n0", 2, 8);
    let (a, b) = (w.kernel("a", "ada", &["n0"], 0), w.kernel("b", "bob", &["n0"], 0));
    let cores = |cpus| Need {
        cpus,
        ..Need::default()
    };
    w.submit(&a, cores(6));
    w.settle();
    let (_, out) = w.submit(&b, cores(4));
    let Output::Queued { reason, .. } = &out[0] else {
        panic!("{out:?}")
    };
    assert_eq!(reason.to_string(), "it needs 4 cores and 2 are free on n0");
    let (_, out) = w.submit(&b, cores(2));
    // The first of the queue holds back nothing yet: two cores are free.
    assert_eq!(kinds(&out), ["opened", "start"]);
}

/// The agent's own step sits on it, with one core.
#[test]
fn a_blocked_gpu_takes_a_core() {
    let mut w = world();
    let pilot = w.pilot("n0", 2, 8);
    w.tell(Input::SlotBlocked {
        pilot,
        index: GpuIndex(1),
        reason: "held".into(),
        lost: false,
    });
    let a = w.kernel("a", "ada", &["n0"], 0);
    let cores = |cpus| Need {
        cpus,
        ..Need::default()
    };
    let (_, out) = w.submit(&a, cores(8));
    let Output::Queued { reason, .. } = &out[0] else {
        panic!("{out:?}")
    };
    assert_eq!(reason.to_string(), "it needs 8 cores and 7 are free on n0");
}

#[test]
fn pilots_are_kept_at_the_minimum_and_replaced() {
    let mut core = Core::new(Config::default(), Timestamp(0));
    let mut out = Vec::new();
    core.handle(
        Input::Pool(PoolConfig::fixed("main", 2, 2, 8)),
        Timestamp(0),
        &mut out,
    );
    assert_eq!(kinds(&out), ["submit-pilot", "submit-pilot"]);
    out.clear();
    core.handle(
        Input::PilotFailed {
            ticket: 1,
            reason: "no".into(),
        },
        Timestamp(1),
        &mut out,
    );
    assert_eq!(kinds(&out), [""; 0]);
    core.handle(Input::Tick, Timestamp(1) + Span::from_secs(10), &mut out);
    assert_eq!(kinds(&out), ["submit-pilot"]);
    core.sanity_check().unwrap();
}

#[test]
fn an_agent_that_comes_back_is_reconciled() {
    let mut w = world();
    let job = w.pilot("n0", 2, 8);
    let (a, b) = (w.kernel("a", "ada", &["n0"], 1), w.kernel("b", "bob", &["n0"], 1));
    w.submit(&a, Need::gpus(1));
    w.submit(&b, Need::gpus(1));
    w.confirm(job, LeaseId(1));
    w.tell(Input::PilotSilent { pilot: job });
    // It knows lease 1, never heard of lease 2, and has a lease that nobody knows.
    let agent = w.agents.get_mut(&job).unwrap();
    agent
        .live
        .insert(LeaseId(77), ("ghost".into(), vec![GpuIndex(1)]));
    let out = w.announce(job);
    // Lease 2 is over and its cell waits; lease 77 is told to end, and its GPU isn't lent before it has.
    assert_eq!(kinds(&out), ["closed", "queued", "end"]);
    let Output::EndLease { lease, .. } = &out[2] else {
        panic!()
    };
    assert_eq!(*lease, LeaseId(77));
    let out = w.confirm_end(job, LeaseId(77), true);
    assert_eq!(kinds(&out), ["opened", "start", "ack"]);
}

#[test]
fn the_journal_brings_back_leases_kernels_and_counters() {
    let config = Config {
        journal: true,
        ..Config::default()
    };
    let mut p = pool();
    p.max_pilots = 8;
    let mut w = World::new(1, config.clone(), p.clone());
    let mut journal = Vec::new();
    let mut keep = |out: Vec<Output>| {
        journal.extend(out.into_iter().filter_map(|o| match o {
            Output::Journal(e) => Some(serde_json::from_str(&serde_json::to_string(&e).unwrap()).unwrap()),
            _ => None,
        }));
    };
    let job = JobId(101);
    w.next_job = 100;
    // `pilot` and `kernel` hide their outputs: tell them again, which emits the same entries.
    w.pilot("n0", 2, 8);
    let k = w.kernel("k", "ada", &["n0"], 1);
    keep(w.replica(&k, "ada", Incarnation(1), "n0"));
    let (cell, out) = w.submit(&k, Need::gpus(1));
    keep(out);
    keep(w.confirm(job, LeaseId(1)));

    let now = w.now + Span::from_secs(5);
    let mut out = Vec::new();
    let mut core = Core::restore(config, vec![p], journal, now, &mut out);
    core.sanity_check().unwrap();
    let lease = core.lease(LeaseId(1)).unwrap();
    assert_eq!(
        (lease.state, lease.cell.as_ref(), lease.kernel.as_str()),
        ("RUNNING", Some(&cell), "k")
    );
    out.clear();
    let up = hop_core::PilotUp {
        node: "n0".into(),
        pilot: job,
        pool: "main".into(),
        gpus: vec![],
        cpus: 8,
        ends: None,
        steps_left: 1000,
        leases: vec![ReportedLease {
            lease: LeaseId(1),
            kernel: k.clone(),
            devices: vec![GpuIndex(0)],
        }],
        starting: vec![],
        ended: vec![],
        draining: false,
        node_drains: false,
    };
    let slot = |i| hop_core::GpuSlot {
        index: GpuIndex(i),
        gpu_type: "fake".into(),
        mem_mib: 1,
        blocked: None,
    };
    let up = hop_core::PilotUp {
        gpus: vec![slot(0), slot(1)],
        ..up
    };
    core.handle(Input::PilotUp(up), now, &mut out);
    assert_eq!(kinds(&out), [""; 0]);
    core.handle(
        Input::CellEnded {
            kernel: k.clone(),
            cell,
            lease: LeaseId(1),
            outcome: Outcome::Ok,
        },
        now + Span::from_secs(1),
        &mut out,
    );
    assert!(kinds(&out).contains(&"served"));
    core.sanity_check().unwrap();
    out.clear();
    core.handle(
        Input::Submit(Submit {
            kernel: "new".into(),
            cell: "x".into(),
            need: Need::gpus(1),
            class: Class::Batch,
            print: 0,
        }),
        now,
        &mut out,
    );
    assert_eq!(kinds(&out), ["refused"]);
}

#[test]
fn placement_takes_the_least_subscribed_distinct_nodes() {
    let mut w = world();
    for n in ["n0", "n1", "n2"] {
        w.pilot(n, 2, 8);
    }
    w.kernel("a", "ada", &["n0"], 2);
    let place = hop_core::PlaceReplica {
        kernel: "b".into(),
        user: "bob".into(),
        account: None,
        pool: "main".into(),
        first: None,
        default_need: Need::gpus(1),
        mem_mib: 100,
        cpus: 1,
        avoid: vec![],
        name: String::new(),
    };
    let avoiding = |nodes: &[&str]| {
        let avoid = nodes.iter().map(|n| (*n).into()).collect();
        Input::PlaceKernel(hop_core::PlaceReplica {
            avoid,
            ..place.clone()
        })
    };
    assert_eq!(placed(&w.tell(avoiding(&[]))), "n1");
    assert_eq!(placed(&w.tell(avoiding(&["n1"]))), "n2");
    let out = w.tell(avoiding(&["n0", "n1", "n2"]));
    let [Output::PlaceRefused { reason, .. }] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!(
        reason.to_string(),
        "pool main has no node that will do for the kernel's next replica"
    );
}

#[test]
fn a_cell_that_waits_beside_free_gpus_says_first_where_they_are_and_what_helps() {
    let mut w = world();
    for node in ["n0", "n1", "n2"] {
        w.pilot(node, 1, 8);
    }
    let (a, b) = (
        w.kernel("a", "ada", &["n0"], 1),
        w.kernel("b", "bob1", &["n0"], 1),
    );
    w.submit(&a, Need::gpus(1));
    w.settle();
    w.submit(&b, Need::gpus(1));
    let said = w.said(&b, None).unwrap();
    let first = "What it needs is free on n1 and n2, but its kernel sits on n0: `hop migrate b` takes the kernel there with \
                 its variables, a restarted kernel goes there without them.";
    assert_eq!(said[0], first);
    assert!(
        said[1].starts_with("The cell waits because it needs a GPU"),
        "{said:?}"
    );
    // Where nothing is free elsewhere, nothing is said of it.
    for (name, node) in [("c", "n1"), ("d", "n2")] {
        let kernel = w.kernel(name, "ada", &[node], 1);
        w.submit(&kernel, Need::gpus(1));
        w.settle();
    }
    assert!(w.said(&b, None).unwrap()[0].starts_with("The cell waits"));
}

#[test]
fn where_a_limit_holds_a_cell_up_free_gpus_elsewhere_are_no_news() {
    let mut w = world();
    for node in ["n0", "n1", "n2"] {
        w.pilot(node, 1, 8);
    }
    let limits = vec![Limit {
        of: LimitOf::EachUser,
        gpus: Some(1),
        gpu_minutes: None,
        name: "QOS normal, MaxTRESPerUser".into(),
    }];
    w.tell(Input::Limits(Limits {
        limits,
        ..Limits::default()
    }));
    let kernels = [("a", "ada", "n0"), ("b", "bob1", "n1"), ("c", "bob1", "n0")];
    let kernels = kernels.map(|(name, user, node)| w.kernel(name, user, &[node], 1));
    for kernel in &kernels {
        w.submit(kernel, Need::gpus(1));
        w.settle();
    }
    let said = w.said(&kernels[2], None).unwrap();
    assert!(
        said[0].starts_with("The cell waits because limit QOS normal, MaxTRESPerUser: 1 of 1"),
        "{said:?}"
    );
    assert!(!said.iter().any(|s| s.contains("hop migrate")), "{said:?}");
}

#[test]
fn closing_a_kernel_leaves_nothing_behind() {
    let mut w = world();
    let job = w.pilot("n0", 1, 8);
    let k = w.kernel("k", "ada", &["n0"], 1);
    w.submit(&k, Need::gpus(1));
    w.settle();
    w.submit(&k, Need::gpus(1));
    let out = w.tell(Input::CloseKernel { kernel: k.clone() });
    assert_eq!(kinds(&out), ["withdrawn", "refused", "served", "revoked", "end"]);
    let out = w.confirm_end(job, LeaseId(1), true);
    assert_eq!(kinds(&out), ["closed", "forget", "ack"]);
    assert_eq!(w.core.kernel_count(), 0);
    assert_eq!(w.said(&k, None), None);
}

#[test]
fn cells_outlive_their_kernels_last_process_for_a_while_and_are_then_refused() {
    let mut w = world();
    w.pilot("n0", 1, 8);
    let (a, b) = (
        w.kernel("a", "ada", &["n0"], 1),
        w.kernel("b", "bob1", &["n0"], 1),
    );
    w.submit(&a, Need::gpus(1));
    w.settle();
    w.submit(&b, Need::gpus(1));
    let lost = |kernel: &KernelId, incarnation| Input::ReplicaLost {
        kernel: kernel.clone(),
        incarnation: Incarnation(incarnation),
    };
    let out = w.tell(lost(&b, 1));
    let [Output::Queued { reason, .. }] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!(*reason, Reason::NoReplica);
    w.now = w.now + Span::from_secs(29);
    assert_eq!(kinds(&w.tell(Input::Tick)), [""; 0]);
    w.now = w.now + Span::from_secs(1);
    let out = w.tell(Input::Tick);
    assert!(
        matches!(
            &out[..],
            [
                Output::Record(Record::CellWithdrawn { .. }),
                Output::Refused {
                    reason: RefusedBecause::ReplicaLost,
                    ..
                }
            ]
        ),
        "{out:?}"
    );
    // A process that comes back doesn't know what another one had asked for.
    let kernel = w.kernel("c", "bob1", &["n0"], 1);
    w.submit(&kernel, Need::gpus(1));
    w.tell(lost(&kernel, 1));
    let out = w.replica(&kernel, "bob1", Incarnation(2), "n0");
    assert_eq!(kinds(&out), ["withdrawn", "refused"]);
    w.core.sanity_check().unwrap();
}

#[test]
fn a_kernel_of_which_nothing_is_left_is_forgotten() {
    let mut w = world();
    w.pilot("n0", 1, 8);
    let a = w.kernel("a", "ada", &["n0"], 1);
    w.kernel("b", "ada", &["n0"], 1);
    assert_eq!(w.core.kernel_count(), 2);
    let mut out = Vec::new();
    assert!(!w.core.make_room_for_kernel(&"ada".into(), 2, &mut out));
    assert_eq!(kinds(&out), [""; 0]);
    w.tell(Input::ReplicaLost {
        kernel: a,
        incarnation: Incarnation(1),
    });
    assert!(w.core.make_room_for_kernel(&"ada".into(), 2, &mut out));
    assert_eq!(kinds(&out), ["forget"]);
    w.tell(Input::ReplicaLost {
        kernel: "b".into(),
        incarnation: Incarnation(1),
    });
    w.now = w.now + Span::from_secs(86_400);
    let out = w.tell(Input::Tick);
    assert!(kinds(&out).contains(&"forget"), "{out:?}");
    assert_eq!(w.core.kernel_count(), 0);
    w.core.sanity_check().unwrap();
}

fn facts(node: &str, gpus: u16) -> hop_core::NodeFacts {
    hop_core::NodeFacts {
        node: node.into(),
        pool: "main".into(),
        gpus,
        gpu_type: "".into(),
        gpu_mem_mib: 0,
        cpus: 8,
    }
}

#[test]
fn a_node_that_nothing_is_heard_of_is_taken_last() {
    let mut w = world();
    let jobs = ["n0", "n1", "n2"].map(|n| w.pilot(n, 2, 8));
    w.tell(Input::PilotSilent { pilot: jobs[0] });
    w.tell(Input::PilotSilent { pilot: jobs[1] });
    for kernel in ["a", "b"] {
        let out = w.tell(Input::PlaceKernel(place(kernel, 1)));
        assert_eq!(placed(&out), "n2", "a loaded node is better than a silent one");
    }
    let other = hop_core::PlaceReplica {
        avoid: vec!["n2".into()],
        ..place("c", 1)
    };
    let out = w.tell(Input::PlaceKernel(other));
    assert_eq!(placed(&out), "n0", "silence is no proof of a loss");
}

fn place(name: &str, gpus: u16) -> hop_core::PlaceReplica {
    hop_core::PlaceReplica {
        kernel: name.into(),
        user: "ada".into(),
        account: None,
        pool: "main".into(),
        first: None,
        default_need: Need::gpus(gpus),
        mem_mib: 512,
        cpus: 1,
        avoid: Vec::new(),
        name: String::new(),
    }
}

/// The seat of ada's on the node.
fn seat_up(job: u32, node: &str, mem_mib: u64) -> Input {
    Input::SeatUp(hop_core::SeatUp {
        job: JobId(job),
        user: "ada".into(),
        node: node.into(),
        mem_mib,
        cpus: 4,
    })
}

/// The seat that the placement of another kernel of ada's is given.
fn shared_seat(w: &mut World, name: &str) -> Option<JobId> {
    let out = w.tell(Input::PlaceKernel(place(name, 1)));
    let Some(Output::Place { seat, .. }) = out.last() else {
        panic!("{out:?}")
    };
    seat.existing
}

#[test]
fn a_seat_is_as_full_as_its_replicas_make_it_whoever_reports_first() {
    let mut w = world();
    w.pilot("n0", 4, 8);
    // After a restart the replica may be heard before its seat.
    w.kernel("a", "ada", &["n0"], 1);
    assert_eq!(w.tell(seat_up(10_001, "n0", 512)), []);
    assert_eq!(shared_seat(&mut w, "b"), None, "the seat has room for one");
    assert_eq!(w.tell(seat_up(10_001, "n0", 1024)), []);
    assert_eq!(shared_seat(&mut w, "c"), Some(JobId(10_001)));
    // The living replica counts with the memory that its kernel asks for now.
    let larger = hop_core::PlaceReplica {
        mem_mib: 1024,
        ..place("a", 1)
    };
    w.tell(Input::PlaceKernel(larger));
    assert_eq!(shared_seat(&mut w, "d"), None);
    w.tell(Input::ReplicaLost {
        kernel: "a".into(),
        incarnation: Incarnation(1),
    });
    assert_eq!(shared_seat(&mut w, "e"), Some(JobId(10_001)));
}

#[test]
fn a_seat_whose_node_nobody_has_named_yet_is_remembered() {
    let mut w = world();
    assert_eq!(w.tell(seat_up(7, "n0", 512)), []);
    w.tell(Input::Node(facts("n0", 2)));
    w.pilot("n0", 2, 8);
    assert_eq!(shared_seat(&mut w, "a"), Some(JobId(7)));
}

/// The first of two nodes has a replica whose number another clock gave it; the second has a plan.
#[test]
fn a_replica_of_any_number_takes_the_seat_that_was_planned() {
    for first in [None, Some(Incarnation(1_764_000_000))] {
        let mut w = world();
        for n in ["n0", "n1"] {
            w.pilot(n, 2, 8);
        }
        let place = |name: &str, first| {
            Input::PlaceKernel(hop_core::PlaceReplica {
                first,
                ..place(name, 2)
            })
        };
        let out = w.tell(place("a", first));
        assert_eq!(placed(&out), "n0");
        let Output::Place { seat, .. } = &out[0] else {
            panic!("{out:?}")
        };
        assert_eq!(seat.incarnation, first.unwrap_or(Incarnation(1)));
        w.replica(&"a".into(), "ada", Incarnation(1_764_000_000), "n0");
        assert_eq!(placed(&w.tell(place("b", None))), "n1");
        let out = w.tell(place("c", None));
        assert_eq!(placed(&out), "n0", "each node has one kernel of two GPUs");
    }
}

/// The replica had not read the grant when it reported.
#[test]
fn a_report_that_crosses_a_grant_ends_no_lease() {
    let mut w = world();
    let job = w.pilot("n0", 1, 8);
    let k = w.kernel("k", "ada", &["n0"], 1);
    let (cell, _) = w.submit(&k, Need::gpus(1));
    let out = w.confirm(job, LeaseId(1));
    assert!(kinds(&out).contains(&"granted"), "{out:?}");
    let report = |waiting: Vec<hop_core::WaitingCell>| {
        Input::ReplicaUp(hop_core::ReplicaFacts {
            waiting,
            ..report(&k, "ada", Incarnation(1), "n0")
        })
    };
    let waits = hop_core::WaitingCell {
        cell: cell.clone(),
        need: Need::gpus(1),
        class: Class::Interactive,
        print: 0,
    };
    let out = w.tell(report(vec![waits]));
    assert!(
        matches!(&out[..], [Output::Granted { cell: again, lease: LeaseId(1), .. }] if *again == cell),
        "it is told once more, on what may be a new connection: {out:?}"
    );
    let out = w.tell(report(Vec::new()));
    assert!(
        kinds(&out).contains(&"end") || kinds(&out).contains(&"revoked"),
        "{out:?}"
    );
}

/// hopd was away when the cell ended; its replica says how.
#[test]
fn a_cell_that_ended_unheard_has_its_own_outcome() {
    let mut w = world();
    let job = w.pilot("n0", 1, 8);
    let k = w.kernel("k", "ada", &["n0"], 1);
    let (cell, _) = w.submit(&k, Need::gpus(1));
    w.confirm(job, LeaseId(1));
    let report = |incarnation| {
        Input::ReplicaUp(hop_core::ReplicaFacts {
            ended: Some(hop_core::EndedCell {
                cell: cell.clone(),
                outcome: Outcome::Error,
            }),
            ..report(&k, "ada", Incarnation(incarnation), "n0")
        })
    };
    assert_eq!(kinds(&w.tell(report(2))), [""; 0], "another replica's lease");
    let out = w.tell(report(1));
    assert!(
        matches!(
            &out[0],
            Output::Record(Record::CellServed {
                outcome: Outcome::Error,
                ..
            })
        ),
        "{out:?}"
    );
    w.core.sanity_check().unwrap();
}

/// The agent can't have heard of leases that its own report makes room for.
#[test]
fn a_report_of_ended_leases_ends_no_lease_that_follows_from_it() {
    let mut w = world();
    let job = w.pilot("n0", 1, 8);
    let (a, b) = (w.kernel("a", "ada", &["n0"], 1), w.kernel("b", "bob", &["n0"], 1));
    w.submit(&a, Need::gpus(1));
    w.confirm(job, LeaseId(1));
    w.submit(&b, Need::gpus(1));
    let out = w.tell(Input::PilotUp(hop_core::PilotUp {
        node: "n0".into(),
        pilot: job,
        pool: "main".into(),
        gpus: vec![hop_core::GpuSlot {
            index: GpuIndex(0),
            gpu_type: "fake".into(),
            mem_mib: 1,
            blocked: None,
        }],
        cpus: 8,
        ends: None,
        steps_left: 1000,
        leases: vec![],
        starting: vec![],
        ended: vec![hop_core::ReportedEnd {
            lease: LeaseId(1),
            cause: EndCause::StepLost,
            clean: true,
            detail: String::new(),
        }],
        draining: false,
        node_drains: false,
    }));
    assert_eq!(
        kinds(&out),
        ["served", "revoked", "closed", "opened", "start", "ack"]
    );
    assert_eq!(w.core.lease(LeaseId(2)).unwrap().state, "STARTING");
    w.core.sanity_check().unwrap();
}

/// The node of the one seat.
fn placed(out: &[Output]) -> String {
    let [Output::Place { seat, .. }] = out else {
        panic!("{out:?}")
    };
    seat.node.to_string()
}

/// One pilot of a pool that may have one, on the third of four nodes.
fn one_pilot() -> (World, JobId) {
    let mut pool = PoolConfig::fixed("main", 0, 2, 8);
    pool.max_pilots = 1;
    let mut w = World::new(1, Config::default(), pool);
    for n in 0..4 {
        w.tell(Input::Node(facts(&format!("n{n}"), 2)));
    }
    let job = w.pilot("n2", 2, 8);
    (w, job)
}

#[test]
fn kernels_are_placed_where_pilots_are() {
    let (mut w, _) = one_pilot();
    for (i, gpus) in [0, 1, 0, 2].into_iter().enumerate() {
        let out = w.tell(Input::PlaceKernel(place(&format!("k{i}"), gpus)));
        assert_eq!(placed(&out), "n2");
    }
    w.core.sanity_check().unwrap();
}

#[test]
fn a_pilot_comes_to_a_kernel_that_sits_where_none_is() {
    let (mut w, job) = one_pilot();
    let near = w.kernel("near", "ada", &["n2"], 1);
    let far = w.kernel("far", "bob1", &["n0"], 1);
    let (cell, _) = w.submit(&near, Need::gpus(1));
    w.settle();
    // The only pilot is busy.
    let (_, out) = w.submit(&far, Need::gpus(1));
    let [Output::Queued { reason, .. }] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!(
        reason.to_string(),
        "pool main has no job with GPUs on this kernel's nodes, and none elsewhere lies idle that could give way (a \
         restarted kernel is placed anew)"
    );
    w.end_cell(&near, &cell);
    w.now = w.now + Span::from_secs(60);
    w.tell(Input::Tick);
    w.settle();
    w.now = w.now + Span::from_secs(5);
    let out = w.tell(Input::Tick);
    let moved = out
        .iter()
        .position(|o| matches!(o, Output::SubmitPilot { node: Some(n), .. } if n.as_str() == "n0"));
    let drained = out
        .iter()
        .position(|o| matches!(o, Output::DrainPilot { pilot } if *pilot == job));
    assert!(moved.is_some() && moved < drained, "{out:?}");
    w.core.sanity_check().unwrap();
}

#[test]
fn a_cell_that_has_waited_very_long_has_a_busy_pilot_give_way() {
    let (mut w, job) = one_pilot();
    let near = w.kernel("near", "ada", &["n2"], 1);
    let far = w.kernel("far", "bob1", &["n0"], 1);
    w.submit(&near, Need::gpus(1));
    w.settle();
    w.submit(&far, Need::gpus(1));
    let mut out = Vec::new();
    for _ in 0..300 {
        w.now = w.now + Span::from_secs(60);
        out = w.tell(Input::Tick);
        if out.iter().any(|o| matches!(o, Output::DrainPilot { .. })) {
            break;
        }
    }
    assert!(out.contains(&Output::DrainPilot { pilot: job }), "{out:?}");
    assert!(
        !out.iter().any(|o| matches!(o, Output::EndLease { .. })),
        "what runs goes on"
    );
    w.core.sanity_check().unwrap();
}

#[test]
fn burst_nodes_are_used_when_the_own_ones_are_full_and_given_back() {
    let mut pool = PoolConfig::fixed("main", 0, 2, 8);
    pool.max_pilots = 1;
    pool.scale = Some(hop_core::config::Scale {
        learn: false,
        right_size: false,
        spares: 0,
        idle_min: Span::from_secs(10),
        idle_max: Span::from_secs(30),
        ..hop_core::config::Scale::default()
    });
    pool.burst = vec![hop_core::config::Burst {
        partition: "cloud".into(),
        max_pilots: 1,
        boot: Span::from_secs(60),
        price: 1.0,
    }];
    let mut w = World::new(1, Config::default(), pool);
    w.tell(Input::Node(facts("n0", 2)));
    w.tell(Input::BurstNode {
        facts: facts("b0", 2),
        partition: "cloud".into(),
    });
    assert_eq!(
        placed(&w.tell(Input::PlaceKernel(place("a", 0)))),
        "n0",
        "there is room"
    );
    w.pilot("n0", 2, 8);
    let (a, b) = (w.kernel("a", "ada", &["n0"], 0), w.kernel("b", "ada", &["n0"], 0));
    w.submit(&a, Need::gpus(2));
    w.settle();
    w.submit(&b, Need::gpus(2));
    assert_eq!(placed(&w.tell(Input::PlaceKernel(place("c", 0)))), "b0");
    let c = w.kernel("c", "ada", &["b0"], 0);
    let (_, out) = w.submit(&c, Need::gpus(1));
    let Output::SubmitPilot { partition, node, .. } = &out[0] else {
        panic!("{out:?}")
    };
    assert_eq!(
        (partition.as_deref(), node.as_ref().map(|n| n.as_str())),
        (Some("cloud"), Some("b0"))
    );
    w.core.sanity_check().unwrap();
    // Another kernel there waits for that one too: the burst partition may have no more.
    let d = w.kernel("d", "bob1", &["b0"], 0);
    let (_, out) = w.submit(&d, Need::gpus(1));
    assert_eq!(kinds(&out), ["queued"]);
}

fn offers(pool: &str, gpus: &[(&str, u16)], types_known: bool) -> Input {
    Input::PoolOffers(hop_core::PoolOffers {
        pool: pool.into(),
        gpus: gpus.iter().map(|&(t, n)| (t.into(), n)).collect(),
        types_known,
        gpu_mem_mib: 40_000,
        cpus: 6,
    })
}

fn of_type(gpus: u16, gpu_type: &str) -> Need {
    Need {
        gpu_type: Some(gpu_type.into()),
        ..Need::gpus(gpus)
    }
}

/// The reason in the one refusal.
#[track_caller]
fn refusal(out: &[Output]) -> String {
    let [Output::Refused { reason, .. }] = out else {
        panic!("{out:?}")
    };
    reason.to_string()
}

#[test]
fn what_no_node_of_the_pool_could_ever_have_is_refused_with_what_there_is() {
    let mut w = world();
    let k = w.kernel("k", "ada", &["n0"], 1);
    w.tell(Input::Pool(PoolConfig::fixed("big", 1, 8, 64)));
    w.tell(offers("big", &[("h100", 8)], true));
    assert_eq!(
        kinds(&w.tell(offers("main", &[("a100", 2), ("v100", 1)], true))),
        [""; 0]
    );
    for (need, said) in [
        (
            of_type(1, "nosuch"),
            "the cell asks for a GPU of type nosuch, which no node of pool main has: it has a100 or v100",
        ),
        (
            of_type(1, "h100"),
            "the cell asks for a GPU of type h100, which no node of pool main has: it has a100 or v100; a kernel in pool big \
             would get it",
        ),
        (
            of_type(2, "v100"),
            "the cell asks for 2 GPUs on one node, and pool main has 1 on each",
        ),
        (
            Need {
                gpu_mem_mib: 80_000,
                ..Need::gpus(1)
            },
            "the cell asks for GPUs with 80000 MiB, and those of pool main have 40000 MiB",
        ),
        (
            Need {
                cpus: 7,
                ..Need::default()
            },
            "the cell asks for 7 cores on one node, and pool main lends 6 on each",
        ),
    ] {
        let (_, out) = w.submit(&k, need);
        assert_eq!(refusal(&out), said);
    }
    for need in [of_type(2, "a100"), of_type(1, "v100")] {
        let (cell, out) = w.submit(&k, need);
        assert_eq!(kinds(&out), ["queued"]);
        w.tell(Input::CancelCell {
            kernel: k.clone(),
            cell,
        });
    }
}

#[test]
fn what_nobody_knows_yet_is_waited_for_and_refused_once_it_is_known() {
    let mut w = world();
    let k = w.kernel("k", "ada", &["n0"], 1);
    assert_eq!(kinds(&w.submit(&k, of_type(1, "h100")).1), ["queued"]);
    // A node that was never up names no type yet.
    assert_eq!(kinds(&w.tell(offers("main", &[("", 2)], false))), [""; 0]);
    let out = w.tell(offers("main", &[("a100", 2)], true));
    assert_eq!(kinds(&out), ["withdrawn", "refused"]);
    assert!(refusal(&out[1..]).contains("it has a100"), "{out:?}");
}

#[test]
fn what_a_pilot_has_is_there_whatever_was_said_of_its_node() {
    let mut w = world();
    w.tell(offers("main", &[("a100", 1)], true));
    w.pilot("n0", 2, 8);
    let k = w.kernel("k", "ada", &["n0"], 1);
    let (_, out) = w.submit(
        &k,
        Need {
            cpus: 8,
            ..Need::gpus(2)
        },
    );
    assert_eq!(kinds(&out), ["opened", "start"]);
}

/// What a new kernel's cell would wait.
fn would_wait(w: &World, user: &str, need: &Need) -> Option<Span> {
    w.core.would_wait(&hop_core::Prospect {
        kernel: None,
        user: user.into(),
        pool: "main".into(),
        default_need: Need::gpus(1),
        need: need.clone(),
        class: Class::Batch,
    })
}

#[test]
fn what_a_cell_would_wait_is_what_it_is_told_when_it_comes() {
    let mut w = world();
    let job = w.pilot("n0", 1, 8);
    assert_eq!(would_wait(&w, "bob", &Need::gpus(1)), Some(Span::ZERO));
    let k = w.kernel("k", "ada", &["n0"], 1);
    // The kernel's cells take 100 s.
    for turn in 0..5 {
        let (cell, _) = w.submit(&k, Need::gpus(1));
        if turn == 0 {
            w.confirm(job, LeaseId(1));
        }
        w.now = w.now + Span::from_secs(100);
        w.end_cell(&k, &cell);
    }
    assert!(
        would_wait(&w, "bob", &Need::gpus(1)).unwrap() < Span::from_secs(1),
        "it only lingers"
    );
    w.submit(&k, Need::gpus(1));
    w.now = w.now + Span::from_secs(40);
    w.tell(Input::Tick);
    let foretold = would_wait(&w, "bob", &Need::gpus(1)).unwrap();
    assert!((40..=70).contains(&(foretold.0 / 1_000_000)), "{foretold:?}");
    let b = w.kernel("b", "bob", &["n0"], 1);
    let (_, out) = w.submit(&b, Need::gpus(1));
    let told = out.iter().find_map(|o| match o {
        Output::Queued { estimate, .. } => *estimate,
        _ => None,
    });
    assert_eq!(told, Some(foretold));
    // One that comes after it waits for it, too.
    assert!(would_wait(&w, "bob", &Need::gpus(1)).unwrap() > foretold);
    assert_eq!(would_wait(&w, "eve", &Need::gpus(3)), None, "never");
    assert_eq!(would_wait(&w, "eve", &Need::default()), Some(Span::ZERO));
}

/// The wait that is told in these outputs, if any is.
fn told_wait(out: &[Output]) -> Option<Option<Span>> {
    out.iter().find_map(|o| match o {
        Output::Queued { estimate, .. } => Some(*estimate),
        _ => None,
    })
}

#[test]
fn a_wait_is_told_once_enough_was_seen_and_again_when_it_turns_out_otherwise() {
    let mut w = world();
    let job = w.pilot("n0", 1, 8);
    let (k, b) = (w.kernel("k", "ada", &["n0"], 1), w.kernel("b", "bob", &["n0"], 1));
    let (cell, _) = w.submit(&k, Need::gpus(1));
    w.confirm(job, LeaseId(1));
    w.now = w.now + Span::from_secs(26);
    w.tell(Input::Tick);
    let (waiting, out) = w.submit(&b, Need::gpus(1));
    assert_eq!(told_wait(&out), Some(None), "no cell has run for 26 s before");
    let said = w.said(&b, None).unwrap();
    assert!(said.iter().any(|s| s.contains("is not known yet")), "{said:?}");
    assert_eq!(w.core.waiting()[0].estimate, None);
    w.tell(Input::CancelCell {
        kernel: b.clone(),
        cell: waiting,
    });
    w.end_cell(&k, &cell);
    for _ in 0..4 {
        let (cell, _) = w.submit(&k, Need::gpus(1));
        w.now = w.now + Span::from_secs(100);
        w.end_cell(&k, &cell);
    }
    w.submit(&k, Need::gpus(1));
    w.now = w.now + Span::from_secs(40);
    w.tell(Input::Tick);
    let (_, out) = w.submit(&b, Need::gpus(1));
    let foretold = told_wait(&out).flatten().unwrap();
    assert!((40..=70).contains(&(foretold.0 / 1_000_000)), "{foretold:?}");
    // It goes on as foretold: nothing is told. It goes on for longer than any other did: that is told.
    w.now = w.now + Span::from_secs(20);
    assert_eq!(told_wait(&w.tell(Input::Tick)), None);
    w.now = w.now + Span::from_secs(400);
    assert_eq!(told_wait(&w.tell(Input::Tick)), Some(None));
}

#[test]
fn where_no_pilot_is_a_cell_would_wait_for_one_to_boot() {
    let (mut w, _) = one_pilot();
    let k = w.kernel("k", "ada", &["n0"], 1);
    let prospect = hop_core::Prospect {
        kernel: Some(k),
        user: "ada".into(),
        pool: "main".into(),
        default_need: Need::gpus(1),
        need: Need::gpus(1),
        class: Class::Interactive,
    };
    // The idle one on n2 would give way.
    assert_eq!(w.core.would_wait(&prospect), Some(Span::from_secs(10)));
    w.tell(Input::NodeDown { node: "n0".into() });
    assert_eq!(w.core.would_wait(&prospect), None);
}

fn away(away: bool) -> Input {
    Input::SlurmAway { away }
}

/// The reason in the one thing said.
#[track_caller]
fn reason_told(out: &[Output]) -> &Reason {
    let [.., Output::Queued { reason, .. }] = out else {
        panic!("{out:?}")
    };
    reason
}

#[test]
fn a_lease_waits_for_slurmctld_and_says_so() {
    let mut w = world();
    let job = w.pilot("n0", 2, 8);
    let k = w.kernel("k", "ada", &["n0"], 1);
    let (cell, _) = w.submit(&k, Need::gpus(1));
    let out = w.tell(away(true));
    assert_eq!(
        (kinds(&out), reason_told(&out)),
        (vec!["queued"], &Reason::SlurmAway)
    );
    assert_eq!(kinds(&w.tell(away(true))), [""; 0]);
    // It is neither given up nor counted as failed, however long that takes.
    for _ in 0..10 {
        assert_eq!(kinds(&w.pass(Span::from_secs(60))), [""; 0]);
    }
    // Where srun hangs the agent gives up; the cell gets another lease each time.
    for lease in 1..=8 {
        w.now = w.now + Span::from_secs(30);
        let out = w.tell(Input::LeaseFailed {
            lease: LeaseId(lease),
            pilot: job,
            reason: "no handover".into(),
            device_lost: false,
        });
        assert_eq!(kinds(&out), ["closed", "opened", "start", "queued", "ack"]);
    }
    let said = w.said(&k, Some(&cell)).unwrap();
    assert!(said[0].contains("controller does not answer"), "{said:?}");
    assert_eq!(kinds(&w.tell(away(false))), [""; 0]);
    assert_eq!(kinds(&w.pass(Span::from_secs(59))), [""; 0]);
    assert_eq!(kinds(&w.confirm(job, LeaseId(9))), ["started", "granted"]);
    w.core.sanity_check().unwrap();
}

#[test]
fn what_fails_at_once_while_slurmctld_is_away_is_not_tried_for_ever() {
    let mut w = world();
    let job = w.pilot("n0", 2, 8);
    let k = w.kernel("k", "ada", &["n0"], 1);
    w.tell(away(true));
    w.submit(&k, Need::gpus(1));
    let refused = (1..=8).find(|&lease| {
        let out = failed(&mut w, job, lease);
        w.pass(Span::from_secs(10));
        kinds(&out).contains(&"refused")
    });
    assert_eq!(refused, Some(4));
}

#[test]
fn a_lease_withdrawn_before_it_started_was_cancelled_and_did_not_fail() {
    let mut w = world();
    let job = w.pilot("n0", 2, 8);
    let k = w.kernel("k", "ada", &["n0"], 1);
    let (cell, _) = w.submit(&k, Need::gpus(1));
    assert_eq!(kinds(&w.tell(Input::CancelCell { kernel: k, cell })), ["end"]);
    let out = w.tell(Input::LeaseFailed {
        lease: LeaseId(1),
        pilot: job,
        reason: "it was withdrawn".into(),
        device_lost: false,
    });
    let Output::Record(Record::LeaseClosed { cause, .. }) = &out[0] else {
        panic!("{out:?}")
    };
    assert_eq!(
        (kinds(&out), *cause),
        (vec!["closed", "ack"], EndCause::Cancelled)
    );
}

// --- executors that a kernel's log has deposed ---

/// Two nodes with one GPU each, and a kernel whose log has elected executor 1 on the first.
fn elected() -> (World, [JobId; 2], KernelId) {
    let mut w = world();
    let pilots = ["n0", "n1"].map(|node| w.pilot(node, 1, 8));
    let k = w.kernel("k", "ada", &[], 1);
    w.elect(&k, 1, "n0", &[]);
    (w, pilots, k)
}

#[test]
fn a_deposed_executor_is_lent_nothing_though_it_is_up_and_has_a_lease() {
    for ends in [false, true] {
        let (mut w, [old, new], k) = elected();
        let (cell, _) = w.submit(&k, Need::gpus(1));
        w.confirm(old, LeaseId(1));
        if ends {
            w.end_cell(&k, &cell);
        }
        // What runs or lingers there is taken back at once: nobody waits for that process to let go.
        let out = w.elect(&k, 2, "n1", &[]);
        assert!(kinds(&out).ends_with(&["revoked", "end"]), "{out:?}");
        let (_, out) = w.submit(&k, Need::gpus(1));
        let Some(Output::StartLease(start)) = out.iter().find(|o| matches!(o, Output::StartLease(_))) else {
            panic!("{out:?}");
        };
        assert_eq!((start.executor, start.pilot), (Incarnation(2), new));
    }
}

#[test]
fn a_cell_that_waits_keeps_its_place_for_the_new_executor_and_starts_when_it_asks() {
    let (mut w, _, k) = elected();
    let blocker = w.kernel("b", "bob", &["n0", "n1"], 1);
    for _ in 0..2 {
        w.submit(&blocker, Need::gpus(1));
        w.settle();
    }
    let (first, _) = w.submit(&k, Need::gpus(1));
    let (second, _) = w.submit(&blocker, Need::gpus(1));
    let out = w.elect(&k, 2, "n1", &[]);
    assert!(!kinds(&out).contains(&"refused"), "{out:?}");
    let out = w.ask_again(&k, &first);
    assert!(
        matches!(&out[..], [Output::Queued { position: 1, .. }]),
        "{out:?}"
    );
    let there = w.core.leases().into_iter().find(|l| l.node.as_str() == "n1");
    let cell = there.and_then(|l| l.cell).unwrap();
    w.end_cell(&blocker, &cell);
    w.settle();
    assert!(w.running.contains_key(&(k, first)) && w.waiting.contains(&(blocker, second)));
}

#[test]
fn a_cell_that_the_new_executor_never_asks_for_starts_nowhere_and_is_refused() {
    let (mut w, _, k) = elected();
    // Its lease is starting: the cell waits again.
    let (cell, out) = w.submit(&k, Need::gpus(1));
    assert_eq!(kinds(&out), ["opened", "start"]);
    let out = w.elect(&k, 2, "n1", &[]);
    assert!(
        kinds(&out).contains(&"end") && !kinds(&out).contains(&"start"),
        "{out:?}"
    );
    w.settle();
    assert!(w.waiting.contains(&(k.clone(), cell)));
    let out = w.pass(Span::from_secs(10));
    assert!(kinds(&out).ends_with(&["withdrawn", "refused"]), "{out:?}");
    // One that is listed starts at once.
    let (cell, _) = w.submit(&k, Need::gpus(1));
    let out = w.elect(&k, 3, "n0", std::slice::from_ref(&cell));
    assert!(kinds(&out).contains(&"start"), "{out:?}");
    w.settle();
    assert!(w.running.contains_key(&(k, cell)));
}

#[test]
fn cells_outlive_the_last_executor_until_the_next_one_asks() {
    let (mut w, _, k) = elected();
    let (cell, _) = w.submit(&k, Need::gpus(4));
    assert!(!w.waiting.contains(&(k.clone(), cell)), "more than there is");
    let (cell, _) = w.submit(
        &k,
        Need {
            gpu_type: Some("fake".into()),
            ..Need::gpus(2)
        },
    );
    w.tell(Input::ReplicaLost {
        kernel: k.clone(),
        incarnation: Incarnation(1),
    });
    w.kernels.insert(k.clone(), Vec::new());
    let out = w.elect(&k, 2, "n1", &[]);
    assert_eq!(kinds(&out), [""; 0], "its process may ask a moment later");
    assert_eq!(kinds(&w.ask_again(&k, &cell)), ["queued"]);
    assert_eq!(kinds(&w.pass(Span::from_secs(20))), [""; 0]);
}

#[test]
fn a_report_of_a_lower_tenure_changes_nothing() {
    let (mut w, _, k) = elected();
    w.elect(&k, 2, "n1", &[]);
    w.tenures.insert(k.clone(), 0);
    w.elect(&k, 1, "n0", &[]);
    assert_eq!(w.core.other_replicas(&k, Incarnation(2)), 0);
    w.deposed.clear();
    let (_, out) = w.submit(&k, Need::gpus(1));
    let executor = out.iter().find_map(|o| match o {
        Output::StartLease(start) => Some(start.executor),
        _ => None,
    });
    assert_eq!(executor, Some(Incarnation(2)));
}

/// The driver was restarted while the executor changed: only the lease is left of the old one.
#[test]
fn a_lease_of_an_executor_that_never_reported_again_is_not_the_next_ones() {
    let config = Config {
        journal: true,
        ..Config::default()
    };
    let mut w = World::new(1, config.clone(), pool());
    let job = w.pilot("n0", 1, 8);
    let k = w.kernel("k", "ada", &[], 1);
    let mut out = w.elect(&k, 1, "n0", &[]);
    let (cell, more) = w.submit(&k, Need::gpus(1));
    out.extend(more);
    out.extend(w.confirm(job, LeaseId(1)));
    out.extend(w.end_cell(&k, &cell));
    let journal = out.into_iter().filter_map(|o| match o {
        Output::Journal(entry) => Some(entry),
        _ => None,
    });
    w.core = Core::restore(config, vec![pool()], journal, w.now, &mut Vec::new());
    w.announce(job);
    assert_eq!(w.core.leases().len(), 1);
    let out = w.elect(&k, 2, "n0", &[]);
    assert!(kinds(&out).contains(&"end"), "{out:?}");
}

/// The driver was restarted while a node was starting a lease, and slurmctld is slow.
#[test]
fn a_lease_that_a_node_was_starting_keeps_its_gpu_until_its_node_has_ended_it() {
    let config = Config {
        journal: true,
        ..Config::default()
    };
    let mut w = World::new(1, config.clone(), pool());
    let job = w.pilot("n0", 1, 8);
    let k = w.kernel("k", "ada", &[], 1);
    let mut out = w.elect(&k, 1, "n0", &[]);
    let (_, more) = w.submit(&k, Need::gpus(1));
    out.extend(more);
    let journal = out.into_iter().filter_map(|o| match o {
        Output::Journal(entry) => Some(entry),
        _ => None,
    });
    w.core = Core::restore(config, vec![pool()], journal, w.now, &mut Vec::new());
    let out = w.announce_starting(job, vec![LeaseId(1)]);
    assert!(kinds(&out).contains(&"end"), "{out:?}");
    w.elect(&k, 1, "n0", &[]);
    let (_, out) = w.submit(&k, Need::gpus(1));
    assert!(
        !kinds(&out).contains(&"start"),
        "its node would refuse it: {out:?}"
    );
    let out = w.tell(Input::LeaseFailed {
        lease: LeaseId(1),
        pilot: job,
        reason: "it was ended before it had started".into(),
        device_lost: false,
    });
    assert!(kinds(&out).contains(&"start"), "{out:?}");
}
