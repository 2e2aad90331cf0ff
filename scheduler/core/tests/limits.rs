//! Cells over a limit: idle leases end for them only where that lets them start.

use crate::world::{World, facts};
use hop_core::config::{Config, Count, Limit, LimitOf, Limits, Migrate, PoolConfig, Scale};
use hop_core::{CancelTarget, Input, Output, Record};
use hop_words::id::{JobId, KernelId, LeaseId};
use hop_words::need::Need;
use hop_words::reason::RefusedBecause;
use hop_words::time::Span;

const LINGER: Span = Span::from_secs(2);

/// A pilot with four GPUs, and two kernels of ada's beside it.
fn world() -> (World, KernelId, KernelId) {
    let mut pool = PoolConfig::fixed("main", 0, 4, 8);
    pool.max_pilots = 8;
    let mut w = World::new(1, Config::default(), pool);
    w.pilot("n0", 4, 8);
    let (a, b) = (w.kernel("a", "ada", &["n0"], 1), w.kernel("b", "ada", &["n0"], 1));
    (w, a, b)
}

fn words(out: &[Output]) -> Vec<&'static str> {
    let word = |o: &Output| match o {
        Output::Queued { .. } => "queued",
        Output::Refused { .. } => "refused",
        Output::Revoked { .. } => "revoked",
        Output::StartLease(_) => "start",
        Output::EndAcknowledged { .. } => "ack",
        Output::Held { wanted: None, .. } => "stays",
        Output::Held { .. } => "warned",
        Output::Record(Record::LeaseOpened { .. }) => "opened",
        Output::Record(Record::LeaseClosed { .. }) => "closed",
        Output::Record(Record::CellServed { .. }) => "served",
        Output::Record(Record::CellWithdrawn { .. }) => "withdrawn",
        _ => "something else",
    };
    out.iter().map(word).collect()
}

fn limit(of: LimitOf, gpus: u32) -> Limit {
    Limit {
        of,
        gpus: Some(gpus),
        gpu_minutes: None,
        name: "GrpTRES".into(),
    }
}

fn limits(limits: Vec<Limit>, elsewhere: u32) -> Input {
    Input::Limits(Limits {
        limits,
        elsewhere: vec![("ada".into(), "acct-1".into(), elsewhere)],
    })
}

/// Ada's association, with so many GPUs in jobs of her own.
fn association(gpus: u32, elsewhere: u32) -> Input {
    let of = LimitOf::Members {
        who: vec![("ada".into(), Some("acct-1".into())), ("ada".into(), None)],
        count: Count::Users,
    };
    limits(vec![limit(of, gpus)], elsewhere)
}

/// The kernel's lease is idle after a cell on so many GPUs.
fn idles(w: &mut World, kernel: &KernelId, gpus: u16) {
    let (cell, _) = w.submit(kernel, Need::gpus(gpus));
    w.settle();
    assert_eq!(words(&w.end_cell(kernel, &cell)), ["served"]);
}

#[test]
fn idle_leases_are_left_to_their_kernels_while_a_limit_is_taken_by_others() {
    let (mut w, a, b) = world();
    idles(&mut w, &a, 1);
    w.tell(association(2, 2));
    let (_, out) = w.submit(&b, Need::gpus(1));
    assert_eq!(words(&out), ["queued"], "the lease's end would be in vain");
    let (cell, _) = w.submit(&a, Need::gpus(1));
    assert_eq!(words(&w.end_cell(&a, &cell)), ["served"], "as it would be now");
    // Her own jobs have less of it: now it is of use.
    let out = w.tell(association(2, 1));
    assert_eq!(words(&out), ["revoked"]);
    w.settle();
    assert_eq!(w.running.len(), 1);
}

#[test]
fn idle_leases_are_left_to_their_kernels_while_another_limit_stands() {
    let (mut w, a, b) = world();
    idles(&mut w, &a, 1);
    let other = w.kernel("o", "bob1", &["n0"], 1);
    w.submit(&other, Need::gpus(2));
    w.settle();
    let of_user = limit(LimitOf::User("ada".into()), 1);
    let of_pool = limit(LimitOf::Pool("main".into()), 2);
    w.tell(limits(vec![of_user.clone(), of_pool], 0));
    let (_, out) = w.submit(&b, Need::gpus(1));
    assert_eq!(words(&out), ["queued"], "bob's cell has the pool's limit");
    let out = w.tell(limits(vec![of_user], 0));
    assert_eq!(words(&out), ["revoked"]);
}

#[test]
fn idle_leases_end_together_once_they_suffice() {
    let (mut w, a, b) = world();
    w.tell(association(2, 0));
    let cells = [&a, &b].map(|k| w.submit(k, Need::gpus(1)).0);
    w.settle();
    let large = w.kernel("l", "ada", &["n0"], 2);
    let (_, out) = w.submit(&large, Need::gpus(2));
    assert_eq!(words(&out), ["queued"]);
    assert_eq!(words(&w.end_cell(&a, &cells[0])), ["served"], "b's cell runs on");
    assert_eq!(
        words(&w.end_cell(&b, &cells[1])),
        ["served", "revoked", "revoked"]
    );
    w.settle();
    assert_eq!(w.running.len(), 1);
}

#[test]
fn a_kernel_that_cannot_let_go_is_not_ended_for_a_cell_that_its_limit_keeps_out() {
    let (mut w, a, b) = world();
    idles(&mut w, &a, 1);
    assert_eq!(words(&w.pass(LINGER)), ["revoked"]);
    assert_eq!(words(&w.hold_on(&a, LeaseId(1))), ["stays"]);
    w.tell(association(2, 2));
    let (_, out) = w.submit(&b, Need::gpus(1));
    assert_eq!(words(&out), ["queued"]);
    let mut told = Vec::new();
    for _ in 0..30 {
        let out = w.pass(Span::from_secs(2));
        if words(&out).contains(&"revoked") {
            told.extend(words(&w.hold_on(&a, LeaseId(1))));
        }
    }
    assert_eq!(
        told,
        ["stays", "stays"],
        "it is asked again, and warned of nobody"
    );
    let out = w.tell(association(2, 1));
    assert_eq!(words(&out), ["revoked"]);
    assert_eq!(words(&w.hold_on(&a, LeaseId(1))), ["warned"]);
}

/// The refusal among what was emitted, with the limit's GPUs.
fn beyond(out: &[Output]) -> Option<u32> {
    out.iter().find_map(|o| match o {
        Output::Refused {
            reason: RefusedBecause::OverLimit { limit, .. },
            ..
        } => Some(*limit),
        _ => None,
    })
}

#[test]
fn a_limit_that_is_lowered_refuses_the_cells_that_it_will_never_let_start() {
    let (mut w, a, b) = world();
    let other = w.kernel("o", "bob1", &["n0"], 1);
    w.submit(&other, Need::gpus(2));
    w.settle();
    w.submit(&a, Need::gpus(4));
    w.submit(&b, Need::gpus(3));
    let out = w.tell(association(3, 0));
    assert_eq!(words(&out), ["withdrawn", "refused"]);
    assert_eq!(beyond(&out), Some(3));
    assert_eq!(w.core.waiting().len(), 1, "b's cell is within the limit");
}

#[test]
fn a_cell_that_was_starting_is_refused_by_a_limit_that_was_lowered_meanwhile() {
    let (mut w, a, _) = world();
    w.submit(&a, Need::gpus(2));
    assert_eq!(words(&w.tell(association(1, 0))), [""; 0]);
    w.agents.values_mut().for_each(|agent| agent.starting.clear());
    let out = w.tell(Input::LeaseFailed {
        lease: LeaseId(1),
        pilot: JobId(101),
        reason: "srun: error".into(),
        device_lost: false,
    });
    assert_eq!(words(&out), ["closed", "refused", "ack"]);
    assert_eq!(beyond(&out), Some(1));
}

/// Kernels don't move, and a due cell waits for both GPUs of its node: for a month-long cell and another one.
#[test]
fn a_due_cell_holds_no_node_while_its_limit_is_reached_elsewhere() {
    let mut pool = PoolConfig::fixed("main", 0, 2, 8);
    pool.max_pilots = 2;
    pool.linger = hop_core::config::Linger::fixed(Span::ZERO);
    let config = Config {
        due_after: Span::from_secs(60),
        ..Config::default()
    };
    let mut w = World::new(1, config, pool);
    w.pilot("n0", 2, 8);
    w.pilot("n1", 2, 8);
    w.tell(limits(vec![limit(LimitOf::User("ada".into()), 3)], 0));
    let at = [
        ("month", "bob1", "n0"),
        ("whole", "ada", "n0"),
        ("elsewhere", "ada", "n1"),
    ];
    let [month, whole, elsewhere] = at.map(|(name, user, node)| w.kernel(name, user, &[node], 1));
    w.submit(&month, Need::gpus(1));
    w.settle();
    w.submit(&whole, Need::gpus(2));
    w.pass(Span::from_secs(61));
    let [small, later] = ["small", "later"].map(|name| w.kernel(name, "cleo", &["n0"], 1));
    let (cell, out) = w.submit(&small, Need::gpus(1));
    assert_eq!(words(&out), ["queued"], "the node is held");
    let (beside, _) = w.submit(&elsewhere, Need::gpus(2));
    w.settle();
    w.pass(Span::from_secs(10));
    w.settle();
    w.end_cell(&small, &cell);
    w.settle();
    // Its limit allows it again.
    w.end_cell(&elsewhere, &beside);
    w.settle();
    let (_, out) = w.submit(&later, Need::gpus(1));
    assert_eq!(words(&out), ["queued"], "the node is held again");
}

#[test]
fn no_pilot_is_asked_for_beyond_a_limit() {
    let mut pool = PoolConfig::fixed("main", 0, 2, 8);
    pool.max_pilots = 4;
    pool.linger = hop_core::config::Linger::fixed(Span::ZERO);
    pool.scale = Some(Scale {
        learn: false,
        spares: 0,
        ..Scale::default()
    });
    let mut w = World::new(1, Config::default(), pool);
    for node in ["n0", "n1", "n2"] {
        w.tell(Input::Node(facts(node)));
    }
    w.pilot("n0", 2, 8);
    w.tell(limits(vec![limit(LimitOf::EachUser, 1)], 0));
    let at = [("a", "n0"), ("b", "n1"), ("c", "n2")];
    let [a, b, c] = at.map(|(name, node)| w.kernel(name, "ada", &[node], 1));
    let (first, _) = w.submit(&a, Need::gpus(1));
    w.settle();
    let (second, out) = w.submit(&b, Need::gpus(1));
    assert_eq!(words(&out), ["queued"]);
    assert_eq!(words(&w.submit(&c, Need::gpus(1)).1), ["queued"]);
    w.pass(Span::from_secs(600));
    assert_eq!(w.asked, [0; 0], "they would be of no use");
    w.end_cell(&a, &first);
    w.settle();
    assert_eq!(w.asked, [1], "the limit allows one, and at once");
    w.pass(Span::from_secs(10));
    assert_eq!(w.asked, [1]);
    // Another's cell isn't kept from a pilot.
    let other = w.kernel("o", "bob1", &["n2"], 1);
    w.submit(&other, Need::gpus(1));
    assert_eq!(w.asked, [1, 2]);
    w.tell(Input::PilotFailed {
        ticket: 2,
        reason: "no room".into(),
    });
    w.tell(Input::CloseKernel { kernel: other });
    let job = JobId(w.next_job + 1);
    w.tell(Input::PilotQueued { ticket: 1, job });
    assert_eq!(w.pilot("n1", 2, 8), job);
    w.settle();
    w.pass(Span::from_secs(600));
    assert_eq!(w.asked, [1, 2], "it is b's turn");
    w.end_cell(&b, &second);
    w.settle();
    assert_eq!(w.asked, [1, 2, 3]);
}

#[test]
fn a_pilot_on_its_way_for_another_cell_is_told_as_what_the_limit_counts() {
    let mut pool = PoolConfig::fixed("main", 0, 2, 16);
    pool.max_pilots = 16;
    pool.migrate = Some(Migrate::default());
    pool.scale = Some(Scale {
        learn: false,
        spares: 0,
        ..Scale::default()
    });
    let mut w = World::new(1, Config::default(), pool);
    w.tell(Input::Node(facts("n0")));
    w.tell(Input::Node(facts("n1")));
    w.tell(limits(vec![limit(LimitOf::EachUser, 1)], 0));
    let (a, b) = (w.kernel("a", "ada", &["n0"], 1), w.kernel("b", "ada", &["n1"], 1));
    let (cell, _) = w.submit(&a, Need::gpus(1));
    w.submit(&b, Need::gpus(1));
    let said = w.said(&b, None).expect("it waits").join(" ");
    assert!(
        said.contains("limit GrpTRES: 0 of 1 GPUs are in use already, and 1 is on its way for another cell"),
        "{said}"
    );
    let target = CancelTarget::Cell { kernel: a, cell };
    w.asked.clear();
    w.tell(Input::Cancel {
        target,
        by: "root".into(),
    });
    w.pass(Span::from_secs(60));
    assert_eq!(w.asked.len(), 1, "the limit lets the other start now");
}

/// Ada's cell is over her own limit. With the pilot that comes for bob's cell it is over the account's, too.
#[test]
fn a_cell_under_two_limits_starts_once_the_one_against_it_counts_fewer_gpus() {
    let mut pool = PoolConfig::fixed("main", 0, 2, 8);
    pool.max_pilots = 3;
    pool.linger = hop_core::config::Linger::fixed(Span::ZERO);
    pool.scale = Some(Scale {
        learn: false,
        spares: 0,
        ..Scale::default()
    });
    let mut w = World::new(1, Config::default(), pool);
    for node in ["n0", "n1", "n2"] {
        w.tell(Input::Node(facts(node)));
    }
    w.pilot("n0", 2, 8);
    w.pilot("n1", 2, 8);
    let of_account = limit(LimitOf::Account("both".into()), 1);
    let of_user = limit(LimitOf::User("ada".into()), 1);
    w.tell(limits(vec![of_account, of_user], 0));
    let first = w.kernel_in("own", "a", "ada", &["n0"], 1);
    let [second, other] =
        [("b", "ada", "n1"), ("o", "bob1", "n2")].map(|(k, user, n)| w.kernel_in("both", k, user, &[n], 1));
    let (cell, _) = w.submit(&first, Need::gpus(1));
    w.settle();
    w.submit(&other, Need::gpus(1));
    assert_eq!(w.asked, [1], "bob's pilot is on its way");
    let (_, out) = w.submit(&second, Need::gpus(1));
    assert_eq!(words(&out), ["queued"]);
    w.end_cell(&first, &cell);
    w.settle();
    assert!(
        w.running.keys().any(|(k, _)| *k == second),
        "{:?}",
        w.core.waiting()
    );
}
