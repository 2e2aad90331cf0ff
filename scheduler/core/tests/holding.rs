//! Kernels that can't let go of their GPUs: they keep them while nobody waits, and are warned once somebody does.

use crate::world::{World, facts};
use hop_core::config::{Config, Limit, LimitOf, Limits, PoolConfig, Scale};
use hop_core::{Core, Input, Output, Record};
use hop_words::id::{CellId, Incarnation, JobId, KernelId, LeaseId};
use hop_words::lease::EndCause;
use hop_words::need::Need;
use hop_words::reason::{RefusedBecause, Wanted};
use hop_words::time::Span;

const LINGER: Span = Span::from_secs(2);
const GRACE: Span = Span::from_secs(2);

fn pool() -> PoolConfig {
    let mut pool = PoolConfig::fixed("main", 0, 2, 8);
    pool.max_pilots = 8;
    pool
}

/// What was emitted, in a word each.
fn words(out: &[Output]) -> Vec<&'static str> {
    let word = |o: &Output| match o {
        Output::Revoked { .. } => "revoked",
        Output::Held { wanted: None, .. } => "stays",
        Output::Held {
            wanted: Some(Wanted::Waited),
            ..
        } => "warned: waited",
        Output::Held {
            wanted: Some(Wanted::Drained),
            ..
        } => "warned: drained",
        Output::Held {
            wanted: Some(Wanted::GivenBack),
            ..
        } => "warned: given back",
        Output::Held { .. } => "warned",
        Output::EndLease { .. } => "end",
        Output::EndAcknowledged { .. } => "ack",
        Output::StartLease(_) => "start",
        Output::DrainPilot { .. } => "drain",
        Output::SubmitPilot { .. } => "submit-pilot",
        Output::Queued { .. } => "queued",
        Output::Granted { lingering: true, .. } => "granted-lingering",
        Output::Granted { .. } => "granted",
        Output::Refused { .. } => "refused",
        Output::Record(Record::LeaseOpened { .. }) => "opened",
        Output::Record(Record::CellWithdrawn { .. }) => "withdrawn",
        Output::Record(Record::LeaseClosed { .. }) => "closed",
        _ => "something else",
    };
    out.iter().map(word).collect()
}

/// A kernel with a lease of `gpus` on `n0` whose cell has ended.
fn idle(w: &mut World, name: &str, user: &str, gpus: u16) -> KernelId {
    let k = w.kernel(name, user, &["n0"], 1);
    let (cell, _) = w.submit(&k, Need::gpus(gpus));
    w.settle();
    w.end_cell(&k, &cell);
    k
}

/// A world of one pilot with two GPUs, and a kernel that holds `gpus` of them though its lease is over.
fn holding(gpus: u16) -> (World, JobId, KernelId) {
    holding_in(World::new(1, Config::default(), pool()), gpus)
}

fn holding_in(mut w: World, gpus: u16) -> (World, JobId, KernelId) {
    let job = w.pilot("n0", 2, 8);
    let k = idle(&mut w, "k", "ada", gpus);
    assert_eq!(words(&w.pass(LINGER)), ["revoked"]);
    let out = w.hold_on(&k, LeaseId(1));
    assert_eq!(words(&out), ["stays"]);
    let Output::Held { within, .. } = &out[0] else {
        panic!("{out:?}")
    };
    assert_eq!(
        *within,
        Span(2 * GRACE.0),
        "once before the take-back, once during it"
    );
    (w, job, k)
}

fn state(w: &World, lease: u64) -> &'static str {
    w.core.lease(LeaseId(lease)).map_or("OVER", |l| l.state)
}

/// Another user's kernel on `n0`, with a cell that waits.
fn waiter(w: &mut World, gpus: u16) -> (KernelId, CellId, Vec<Output>) {
    let k = w.kernel("o", "bob", &["n0"], 1);
    let (cell, out) = w.submit(&k, Need::gpus(gpus));
    (k, cell, out)
}

#[test]
fn a_gpu_that_nobody_waits_for_stays_with_who_holds_it() {
    let (mut w, _, k) = holding(2);
    assert_eq!(state(&w, 1), "LINGERING");
    for _ in 0..60 {
        // Long after the grace: it is asked once more, and holds on.
        for out in [
            w.pass(Span::from_secs(600)),
            w.hold_on(&k, LeaseId(1)),
            w.pass(GRACE),
        ] {
            let words = words(&out);
            assert!(
                words.iter().all(|w| ["revoked", "stays"].contains(w)),
                "{words:?}"
            );
        }
        assert_ne!(state(&w, 1), "OVER");
    }
    let explained = w.said(&k, None).unwrap().concat();
    assert!(
        explained.contains("can't let go of lease 1") && explained.contains("process 7 holds it"),
        "{explained}"
    );
}

#[test]
fn it_is_asked_again_at_growing_intervals() {
    let (mut w, _, k) = holding(1);
    let mut pauses = Vec::new();
    for _ in 0..6 {
        let before = w.now;
        while words(&w.pass(Span::from_secs(5))) != ["revoked"] {}
        pauses.push(w.now.since(before).0 / 1_000_000);
        assert_eq!(words(&w.hold_on(&k, LeaseId(1))), ["stays"]);
    }
    assert_eq!(pauses, [30, 30, 60, 120, 240, 480]);
}

#[test]
fn a_kernel_that_lets_go_at_last_gives_the_gpu_back() {
    let (mut w, job, k) = holding(1);
    let out = w.tell(Input::ReleaseLease {
        kernel: k,
        lease: LeaseId(1),
    });
    assert_eq!(words(&out), ["revoked", "end"]);
    let out = w.confirm_end(job, LeaseId(1), true);
    assert_eq!(words(&out), ["closed", "ack"]);
    let Output::Record(Record::LeaseClosed { held_on, linger, .. }) = &out[0] else {
        panic!("{out:?}")
    };
    assert!(
        matches!(held_on, Some((_, why)) if why == "process 7 holds it"),
        "{held_on:?}"
    );
    assert_eq!(*linger, LINGER, "nothing of it is lost to the books");
}

#[test]
fn whoever_waits_gets_the_gpu_after_the_warning() {
    let (mut w, job, k) = holding(2);
    let (other, _, out) = waiter(&mut w, 1);
    assert_eq!(words(&out), ["revoked", "queued"]);
    let out = w.hold_on(&k, LeaseId(1));
    assert_eq!(words(&out), ["warned: waited"]);
    // Said again, it delays nothing.
    w.now = w.now + Span::from_secs(1);
    assert_eq!(words(&w.hold_on(&k, LeaseId(1))), ["warned: waited"]);
    assert_eq!(words(&w.pass(Span::from_millis(999))), [""; 0]);
    assert_eq!(words(&w.pass(Span::from_millis(1))), ["end"]);
    assert_eq!(words(&w.hold_on(&k, LeaseId(1))), [""; 0], "too late");
    let out = w.confirm_end(job, LeaseId(1), true);
    assert_eq!(words(&out), ["closed", "opened", "start", "ack"]);
    let Output::StartLease(start) = &out[2] else {
        panic!("{out:?}")
    };
    assert_eq!(start.kernel, other);
}

#[test]
fn who_waited_and_is_gone_ends_nobody() {
    let (mut w, _, k) = holding(2);
    let (other, cell, _) = waiter(&mut w, 1);
    assert_eq!(words(&w.hold_on(&k, LeaseId(1))), ["warned: waited"]);
    w.tell(Input::CancelCell { kernel: other, cell });
    assert_eq!(words(&w.pass(GRACE)), ["stays"]);
    assert_eq!(state(&w, 1), "LINGERING");
    let (next, out) = w.submit(&k, Need::gpus(2));
    assert_eq!(words(&out), ["granted-lingering"], "{next}");
}

#[test]
fn only_as_many_are_warned_as_are_needed() {
    let (mut w, _, _) = holding(1);
    let second = idle(&mut w, "l", "eve", 1);
    w.pass(LINGER);
    assert_eq!(words(&w.hold_on(&second, LeaseId(2))), ["stays"]);
    let (.., out) = waiter(&mut w, 1);
    assert_eq!(words(&out), ["revoked", "queued"]);
    assert_eq!([state(&w, 1), state(&w, 2)], ["ENDING", "LINGERING"]);
    // The other's turn to be asked comes meanwhile: the GPU of the first suffices.
    w.hold_on(&"k".into(), LeaseId(1));
    w.tell(Input::ReleaseLease {
        kernel: "k".into(),
        lease: LeaseId(1),
    });
    w.pass(Span::from_secs(40));
    assert_eq!(words(&w.hold_on(&second, LeaseId(2))), ["stays"]);
}

#[test]
fn an_idle_lease_goes_before_one_that_is_held() {
    let (mut w, ..) = holding(1);
    idle(&mut w, "l", "eve", 1);
    let (.., out) = waiter(&mut w, 1);
    assert_eq!(words(&out), ["revoked", "queued"]);
    assert_eq!([state(&w, 1), state(&w, 2)], ["LINGERING", "ENDING"]);
}

#[test]
fn a_free_gpu_is_taken_before_one_that_is_held() {
    let (mut w, ..) = holding(1);
    let (.., out) = waiter(&mut w, 1);
    assert_eq!(words(&out), ["opened", "start"]);
    assert_eq!(state(&w, 1), "LINGERING");
}

#[test]
fn the_kernels_next_cell_goes_on_with_it() {
    let (mut w, _, k) = holding(1);
    let (cell, out) = w.submit(&k, Need::gpus(1));
    assert_eq!(words(&out), ["granted-lingering"]);
    w.end_cell(&k, &cell);
    assert_eq!(words(&w.pass(LINGER)), ["revoked"]);
    assert_eq!(words(&w.hold_on(&k, LeaseId(1))), ["stays"]);
}

#[test]
fn a_cell_that_comes_while_it_is_asked_again_goes_on_with_it() {
    let (mut w, _, k) = holding(1);
    assert_eq!(words(&w.pass(Span::from_secs(30))), ["revoked"]);
    let (_, out) = w.submit(&k, Need::gpus(1));
    assert_eq!(words(&out), ["queued"]);
    assert_eq!(words(&w.hold_on(&k, LeaseId(1))), ["stays", "granted-lingering"]);
}

#[test]
fn a_kernel_that_holds_on_is_refused_more_and_lives() {
    let (mut w, _, k) = holding(1);
    let (_, out) = w.submit(&k, Need::gpus(2));
    assert_eq!(words(&out), ["revoked", "queued"], "it may have let go meanwhile");
    let out = w.hold_on(&k, LeaseId(1));
    assert_eq!(words(&out), ["stays", "withdrawn", "refused"]);
    let Output::Refused { reason, .. } = &out[2] else {
        panic!("{out:?}")
    };
    assert!(
        matches!(reason, RefusedBecause::StillHolds { gpus: 1, .. }),
        "{reason}"
    );
    assert_eq!(state(&w, 1), "LINGERING");
}

#[test]
fn a_drained_pilot_is_left_after_the_warning() {
    let (mut w, job, k) = holding(1);
    let out = w.tell(Input::PilotDraining { pilot: job });
    assert!(words(&out).contains(&"revoked"), "{out:?}");
    assert_eq!(words(&w.hold_on(&k, LeaseId(1))), ["warned: drained"]);
    assert_eq!(words(&w.pass(GRACE)), ["end"]);
}

#[test]
fn who_waits_at_a_limit_is_waited_for_as_well() {
    let (mut w, _, k) = holding(1);
    w.tell(Input::Limits(Limits {
        limits: vec![Limit {
            name: "MaxTRESPerUser".into(),
            of: LimitOf::User("ada".into()),
            gpus: Some(1),
            gpu_minutes: None,
        }],
        ..Limits::default()
    }));
    let second = w.kernel("l", "ada", &["n0"], 1);
    let (_, out) = w.submit(&second, Need::gpus(1));
    assert_eq!(words(&out), ["revoked", "queued"]);
    assert_eq!(words(&w.hold_on(&k, LeaseId(1))), ["warned: waited"]);
}

/// Ada may have so many GPUs.
fn ada_is_limited(w: &mut World, gpus: u32) {
    w.tell(Input::Limits(Limits {
        limits: vec![Limit {
            name: "MaxTRESPerUser".into(),
            of: LimitOf::User("ada".into()),
            gpus: Some(gpus),
            gpu_minutes: None,
        }],
        ..Limits::default()
    }));
}

#[test]
fn who_waits_at_a_limit_for_the_held_gpu_itself_is_waited_for_as_well() {
    let (mut w, _, k) = holding(2);
    ada_is_limited(&mut w, 2);
    let second = w.kernel("l", "ada", &["n0"], 1);
    let (_, out) = w.submit(&second, Need::gpus(1));
    assert_eq!(words(&out), ["revoked", "queued"]);
    assert_eq!(words(&w.hold_on(&k, LeaseId(1))), ["warned: waited"]);
}

#[test]
fn nobody_loses_variables_for_a_cell_at_a_limit_that_has_no_gpu_to_start_on() {
    let (mut w, _, k) = holding(1);
    ada_is_limited(&mut w, 1);
    let job = w.pilot("n1", 2, 8);
    let busy = w.kernel("busy", "bob", &["n1"], 2);
    let (cell, _) = w.submit(&busy, Need::gpus(2));
    w.confirm(job, LeaseId(2));
    let second = w.kernel("l", "ada", &["n1"], 1);
    w.submit(&second, Need::gpus(1));
    let asked = |w: &mut World, seconds| {
        let mut answers = Vec::new();
        for _ in 0..seconds {
            w.pass(Span::from_secs(1));
            if state(w, 1) == "ENDING" {
                answers.extend(words(&w.hold_on(&k, LeaseId(1))));
            }
        }
        answers
    };
    let answers = asked(&mut w, 120);
    assert!(answers.contains(&"stays"), "{answers:?}");
    assert!(!answers.contains(&"warned: waited"), "{answers:?}");
    // Now the cell lacks nothing else.
    w.end_cell(&busy, &cell);
    w.tell(Input::ReleaseLease {
        kernel: busy,
        lease: LeaseId(2),
    });
    w.confirm_end(job, LeaseId(2), true);
    let answers = asked(&mut w, 120);
    assert!(answers.contains(&"warned: waited"), "{answers:?}");
}

#[test]
fn a_cell_elsewhere_gets_the_pilot_of_who_only_holds_on() {
    let mut pool = pool();
    pool.max_pilots = 1;
    let (mut w, _, k) = holding_in(World::new(1, Config::default(), pool), 1);
    w.tell(Input::Node(facts("n1")));
    let other = w.kernel("o", "bob", &["n1"], 1);
    let (_, out) = w.submit(&other, Need::gpus(1));
    assert!(
        words(&out).starts_with(&["submit-pilot", "drain", "revoked"]),
        "{out:?}"
    );
    assert_eq!(words(&w.hold_on(&k, LeaseId(1))), ["warned: drained"]);
}

#[test]
fn a_pool_that_gives_idle_gpus_back_does_so_after_its_time() {
    let mut pool = pool();
    let scale = Scale {
        idle_max: Span::from_secs(3600),
        ..Scale::default()
    };
    (pool.scale, pool.min_pilots) = (Some(scale), 0);
    let (mut w, _, k) = holding_in(World::new(1, Config::default(), pool), 1);
    let since = w.now;
    loop {
        w.pass(Span::from_secs(60));
        let words = words(&w.hold_on(&k, LeaseId(1)));
        if words == ["warned: given back"] {
            break;
        }
        assert!(words == ["stays"] || words.is_empty(), "{words:?}");
        assert!(w.now.since(since) < Span::from_secs(4300));
    }
    assert!(w.now.since(since) >= Span::from_secs(3600));
}

#[test]
fn a_foreign_kernel_cannot_hold_on() {
    let (mut w, ..) = holding(2);
    let (other, ..) = waiter(&mut w, 1);
    assert_eq!(words(&w.hold_on(&other, LeaseId(1))), [""; 0]);
    assert_eq!(
        words(&w.pass(GRACE)),
        ["end"],
        "its own kernel has not said so again"
    );
}

#[test]
fn a_cancelled_lease_ends_though_it_is_held() {
    let (mut w, _, k) = holding(1);
    w.tell(Input::Cancel {
        target: hop_core::CancelTarget::Lease { lease: LeaseId(1) },
        by: "root".into(),
    });
    assert_eq!(words(&w.hold_on(&k, LeaseId(1))), [""; 0]);
    assert_eq!(words(&w.pass(GRACE)), ["end"]);
}

#[test]
fn a_kernel_whose_process_is_gone_holds_nothing() {
    let (mut w, _, k) = holding(1);
    let out = w.tell(Input::ReplicaLost {
        kernel: k,
        incarnation: Incarnation(1),
    });
    assert_eq!(words(&out), ["revoked", "end"]);
}

#[test]
fn a_restart_of_hopd_ends_no_kernel_that_holds_on() {
    let config = Config {
        journal: true,
        ..Config::default()
    };
    let mut w = World::new(1, config.clone(), pool());
    let mut journal = Vec::new();
    let mut keep = |out: Vec<Output>| {
        journal.extend(out.into_iter().filter_map(|o| match o {
            Output::Journal(entry) => Some(entry),
            _ => None,
        }));
    };
    let job = w.pilot("n0", 2, 8);
    let k = w.kernel("k", "ada", &["n0"], 1);
    keep(w.replica(&k, "ada", Incarnation(1), "n0"));
    let (cell, out) = w.submit(&k, Need::gpus(1));
    keep(out);
    keep(w.confirm(job, LeaseId(1)));
    keep(w.end_cell(&k, &cell));
    // It was just asked to let go, and could not yet say that it can't.
    keep(w.pass(LINGER));
    w.core = Core::restore(config, vec![pool()], journal, w.now, &mut Vec::new());
    w.core.sanity_check().unwrap();
    assert_eq!(state(&w, 1), "LINGERING");
    w.announce(job);
    let out = w.replica(&k, "ada", Incarnation(1), "n0");
    let revoked = |o: &Output| {
        matches!(
            o,
            Output::Revoked {
                cause: EndCause::Released,
                ..
            }
        )
    };
    assert!(out.iter().any(revoked), "{out:?}");
    let out = w.hold_on(&k, LeaseId(1));
    assert!(words(&out).contains(&"stays"), "{out:?}");
}
