//! Kernels on their way to another node.

use crate::world::{World, facts, report};
use hop_core::config::{Config, Migrate, PoolConfig, Scale};
use hop_core::{Input, NodeFacts, Output, Prospect, ReplicaFacts, SeatPlan};
use hop_words::id::{CellId, Incarnation, JobId, KernelId, Tenure};
use hop_words::lease::EndCause;
use hop_words::need::{Class, Need};
use hop_words::time::Span;
use std::collections::BTreeMap;

/// Two nodes of one GPU. `comes` has had an hour of service and waits on `n0` behind a cell that may never end, so the
/// kernel is on its way to the free GPU of `n1`.
fn on_its_way() -> (World, KernelId, (KernelId, CellId)) {
    let mut pool = PoolConfig::fixed("main", 0, 1, 8);
    pool.max_pilots = 2;
    pool.migrate = Some(Migrate::default());
    let mut w = World::new(1, Config::default(), pool);
    w.pilot("n0", 1, 8);
    let comes = w.kernel("comes", "ada", &["n0"], 1);
    let (cell, _) = w.submit(&comes, Need::gpus(1));
    w.settle();
    w.pass(Span::from_secs(3600));
    w.end_cell(&comes, &cell);
    w.settle();
    let busy = w.kernel("busy", "bob", &["n0"], 1);
    let (never_ends, _) = w.submit(&busy, Need::gpus(1));
    w.settle();
    w.pilot("n1", 1, 8);
    let mut out = w.submit(&comes, Need::gpus(1)).1;
    for _ in 0..20 {
        out.extend(w.pass(Span::from_secs(5)));
    }
    let to = out.iter().find_map(|o| match o {
        Output::Migrate { kernel, seat, .. } if *kernel == comes => Some(seat.node.as_str()),
        _ => None,
    });
    assert_eq!(to, Some("n1"), "{out:?}");
    (w, comes, (busy, never_ends))
}

fn runs(w: &World, kernel: &KernelId) -> bool {
    w.running.keys().any(|(k, _)| k == kernel)
}

#[test]
fn a_moving_kernel_takes_nothing_where_it_leaves_and_keeps_its_gpus_where_it_goes() {
    let (mut w, comes, (busy, cell)) = on_its_way();
    let out = w.end_cell(&busy, &cell);
    let claimed = |o: &Output| {
        matches!(
            o,
            Output::Revoked {
                cause: EndCause::Claimed,
                ..
            }
        )
    };
    assert!(!out.iter().any(claimed), "nobody waits for this GPU: {out:?}");
    w.core.sanity_check().unwrap();
    // Whoever has had less service goes first elsewhere, but the GPU there would lie idle only until the kernel comes.
    let quick = w.kernel("quick", "eve", &["n1"], 1);
    w.submit(&quick, Need::gpus(1));
    w.settle();
    assert!(!runs(&w, &quick), "the GPU is set aside");
    assert!(w.move_replica(), "the move is done");
    w.settle();
    assert!(runs(&w, &comes));
    w.core.sanity_check().unwrap();
}

/// A cell that runs for 100 s or for 1000 s, as often, has run for 105 s when another kernel's cell comes to its node.
/// Somebody may have asked for the wait there when it had just begun.
fn decided_beside_it(asked: bool) -> Vec<Output> {
    let mut pool = PoolConfig::fixed("main", 0, 1, 8);
    pool.max_pilots = 2;
    pool.migrate = Some(Migrate::default());
    let mut w = World::new(1, Config::default(), pool);
    w.pilot("n0", 1, 8);
    let busy = w.kernel("busy", "bob", &["n0"], 1);
    for seconds in [1000, 100].repeat(7) {
        let (cell, _) = w.submit(&busy, Need::gpus(1));
        w.settle();
        w.pass(Span::from_secs(seconds));
        w.end_cell(&busy, &cell);
    }
    w.submit(&busy, Need::gpus(1));
    w.settle();
    w.pilot("n1", 1, 8);
    let waits = w.kernel("waits", "ada", &["n0"], 1);
    if asked {
        let wait = w.core.would_wait(&Prospect {
            kernel: Some(waits.clone()),
            user: "ada".into(),
            pool: "main".into(),
            default_need: Need::gpus(1),
            need: Need::gpus(1),
            class: Class::Interactive,
        });
        assert!(wait.is_some_and(|wait| wait > Span::from_secs(90)), "{wait:?}");
    }
    let mut out = w.pass(Span::from_secs(105));
    out.extend(w.submit(&waits, Need::gpus(1)).1);
    out.extend(w.pass(Span::from_secs(1)));
    out
}

#[test]
fn a_question_between_two_inputs_decides_nothing() {
    assert_eq!(decided_beside_it(true), decided_beside_it(false));
}

/// How long a move that never arrives is waited for, from its order on.
fn patience(w: &mut World) -> Span {
    let mut ordered = None;
    for second in 0..7200 {
        for output in &w.pass(Span::from_secs(1)) {
            match (output, ordered) {
                (Output::Migrate { .. }, _) => ordered = Some(second),
                (Output::MoveWithdrawn { .. }, Some(then)) => return Span::from_secs(second - then),
                _ => {}
            }
        }
    }
    panic!("no move is ordered, or one is waited for for ever");
}

/// A kernel with hundreds of gigabytes takes minutes. Given up each time, it would never arrive anywhere.
#[test]
fn a_move_that_was_given_up_is_waited_for_longer_the_next_time() {
    let (mut w, _, _) = on_its_way();
    // The first one is under way already, and given up after 200 s. Nobody else wants the GPU: it is tried again.
    let second = patience(&mut w);
    assert!(second > Span::from_secs(400), "{second:?}");
    w.core.sanity_check().unwrap();
}

// --- moves that fail ---

/// One GPU on each of these nodes, the first taken for good, and a kernel whose cell waits there.
fn waits_beside_free(nodes: &[&str]) -> (World, KernelId) {
    let mut pool = PoolConfig::fixed("main", 0, 2, 64);
    pool.max_pilots = 8;
    pool.migrate = Some(Migrate::default());
    let mut w = World::new(1, Config::default(), pool);
    for node in nodes {
        w.tell(Input::Node(facts(node)));
        // Nodes with fewer free GPUs come first.
        w.pilot(node, if *node == "n2" { 2 } else { 1 }, 8);
    }
    let busy = w.kernel("busy", "bob", &["n0"], 1);
    w.submit(&busy, Need::gpus(1));
    w.settle();
    let waits = w.kernel("waits", "cyd", &["n0"], 1);
    w.submit(&waits, Need::gpus(1));
    (w, waits)
}

/// Passes so many seconds. Each move is answered at once: it fails if `fails` says so of its target, and is done
/// otherwise. Returns how many moves to each node failed.
fn answer_moves(w: &mut World, seconds: u64, fails: impl Fn(&SeatPlan) -> bool) -> BTreeMap<String, u32> {
    let mut failed = BTreeMap::new();
    for _ in 0..seconds {
        for answers in 0.. {
            assert!(
                answers < 10,
                "a move that fails is asked for again at once: {failed:?}"
            );
            match w.migrations.pop() {
                Some((kernel, _, seat)) if fails(&seat) => {
                    *failed.entry(seat.node.to_string()).or_default() += 1;
                    let incarnation = seat.incarnation;
                    w.tell(Input::MigrationFailed { kernel, incarnation });
                }
                Some(done) => {
                    w.migrations.push(done);
                    w.move_replica();
                    w.settle();
                }
                None => break,
            }
        }
        w.pass(Span::from_secs(1));
    }
    failed
}

#[test]
fn moves_that_fail_at_once_have_an_end() {
    let (mut w, waits) = waits_beside_free(&["n0", "n1"]);
    let failed = answer_moves(&mut w, 24 * 3600, |_| true);
    assert!(
        (10..60).contains(&failed["n1"]),
        "tried again after ever longer pauses: {failed:?}"
    );
    // The pauses end, as soon as a move succeeds.
    answer_moves(&mut w, 3700, |_| false);
    assert!(runs(&w, &waits));
    w.core.sanity_check().unwrap();
}

#[test]
fn a_move_that_failed_goes_to_another_node_next() {
    let (mut w, waits) = waits_beside_free(&["n0", "n1", "n2"]);
    let failed = answer_moves(&mut w, 200, |seat| seat.node.as_str() == "n1");
    assert_eq!(failed, BTreeMap::from([("n1".to_owned(), 1)]));
    assert!(runs(&w, &waits));
}

/// The kernel itself is the reason: not all nodes are tried in one moment.
#[test]
fn a_kernel_whose_moves_fail_everywhere_stays_for_a_while() {
    let nodes: Vec<String> = (0..20).map(|n| format!("n{n}")).collect();
    let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
    let (mut w, _) = waits_beside_free(&nodes);
    let failed = answer_moves(&mut w, 300, |_| true);
    assert!((3..15).contains(&failed.values().sum::<u32>()), "{failed:?}");
}

/// What is tried in vain for a cell is kept from nobody else.
#[test]
fn a_due_cell_holds_no_node_to_which_its_kernel_can_not_be_moved() {
    let (mut w, _) = waits_beside_free(&["n0", "n1"]);
    answer_moves(&mut w, 4 * 3600, |_| true);
    let other = w.kernel("other", "eve", &["n1"], 1);
    w.submit(&other, Need::gpus(1));
    w.settle();
    assert!(runs(&w, &other), "{:?}", w.said(&other, None));
    w.core.sanity_check().unwrap();
}

#[test]
fn a_kernel_with_a_broken_connection_is_moved_once_it_is_back() {
    let (mut w, kernel) = waits_beside_free(&["n0", "n1"]);
    let incarnation = Incarnation(1);
    let away = kernel.clone();
    w.tell(Input::ReplicaAway {
        kernel: away,
        incarnation,
    });
    w.pass(Span::from_secs(600));
    assert!(w.migrations.is_empty(), "it can't be asked");
    w.tell(Input::ReplicaUp(ReplicaFacts {
        executes: Some(Tenure(0)),
        ..report(&kernel, "cyd", incarnation, "n0")
    }));
    assert_eq!(w.migrations.len(), 1);
    w.core.sanity_check().unwrap();
}

// --- moves to where a pilot is yet to come ---

/// Two nodes of so many GPUs, whose pilots follow demand.
fn scaling(gpus: u16, scale: Scale) -> World {
    let mut pool = PoolConfig::fixed("main", 0, gpus, 8 * gpus);
    pool.max_pilots = 16;
    pool.migrate = Some(Migrate::default());
    pool.scale = Some(scale);
    pool.pack = false;
    let mut w = World::new(1, Config::default(), pool);
    w.check_every = 50;
    for node in ["n0", "n1"] {
        w.tell(Input::Node(NodeFacts { gpus, ..facts(node) }));
    }
    w
}

/// Passes so many seconds. Then all pilots that were asked for, by these outputs too, come up, and all moves are done.
fn go_on(w: &mut World, seconds: u64, out: Vec<Output>, whole: u16) {
    let out = out.into_iter().chain(w.pass(Span::from_secs(seconds)));
    for o in out.collect::<Vec<_>>() {
        if let Output::SubmitPilot {
            ticket, node, gpus, ..
        } = o
        {
            let job = JobId(w.next_job + 1);
            w.tell(Input::PilotQueued { ticket, job });
            let gpus = gpus.unwrap_or(whole);
            w.pilot(node.expect("the core names the node").as_str(), gpus, 8 * gpus);
        }
    }
    while w.move_replica() {}
    w.settle();
}

/// A cell of one GPU runs for 5 s, and its user thinks for so long afterwards.
fn run_briefly(w: &mut World, kernel: &KernelId, think: u64, whole: u16) {
    let (cell, out) = w.submit(kernel, Need::gpus(1));
    go_on(w, 1, out, whole);
    go_on(w, 5, Vec::new(), whole);
    let out = w.end_cell(kernel, &cell);
    go_on(w, 1, out, whole);
    go_on(w, think, Vec::new(), whole);
}

/// `n1` has one idle pilot of one GPU, kept for ada who runs a cell every `think` seconds. The first due cell holds the
/// node, ada may not start there any more, and her waiting cell made the pilot worth keeping: nobody ran.
fn waits_for_a_node_with_an_idle_pilot(scale: Scale, think: u64) -> u64 {
    let mut w = scaling(8, scale);
    let ada = w.kernel("a", "ada", &["n1"], 0);
    for pause in [3600 * 3].repeat(40).into_iter().chain([60].repeat(100)) {
        run_briefly(&mut w, &ada, pause, 8);
    }
    let bob = w.kernel("b", "bob", &["n0"], 0);
    let (_, out) = w.submit(&bob, Need::gpus(8));
    go_on(&mut w, 4, out, 8);
    run_briefly(&mut w, &ada, 30, 8);
    let cyd = w.kernel("c", "cyd", &["n0"], 0);
    let (_, out) = w.submit(&cyd, Need::gpus(8));
    go_on(&mut w, 0, out, 8);
    let mut hers: Option<CellId> = None;
    for waited in (10..24 * 3600).step_by(10) {
        go_on(&mut w, 10, Vec::new(), 8);
        if runs(&w, &cyd) {
            return waited;
        }
        if waited.is_multiple_of(think) {
            let runs = |c: &CellId| w.running.contains_key(&(ada.clone(), c.clone()));
            let out = match hers.take() {
                Some(cell) if runs(&cell) => w.end_cell(&ada, &cell),
                Some(waits) => {
                    hers = Some(waits);
                    continue;
                }
                None => {
                    let (cell, out) = w.submit(&ada, Need::gpus(1));
                    hers = Some(cell);
                    out
                }
            };
            go_on(&mut w, 0, out, 8);
        }
    }
    panic!("it waits for a day: {:?}", w.said(&cyd, None));
}

#[test]
fn a_kernel_moves_to_a_node_where_an_idle_pilot_gives_way() {
    for (learn, think) in [(true, 10), (true, 20)] {
        let scale = Scale {
            learn,
            ..Scale::default()
        };
        let waited = waits_for_a_node_with_an_idle_pilot(scale, think);
        assert!(waited <= 120, "after {waited} s");
    }
    let fixed = Scale {
        learn: false,
        spares: 0,
        ..Scale::default()
    };
    let waited = waits_for_a_node_with_an_idle_pilot(fixed, 60);
    assert!(waited <= 120, "after {waited} s");
}

/// A due cell of two GPUs holds both nodes, whose cells run for weeks. A cell of seconds doesn't delay it on the GPU left
/// over on `n1`, wherever its own kernel sits.
#[test]
fn a_short_cell_is_moved_to_a_bare_gpu_of_a_held_node() {
    for home in ["n1", "n0"] {
        let scale = Scale {
            learn: false,
            spares: 0,
            ..Scale::default()
        };
        let mut w = scaling(2, scale);
        let short = w.kernel("s", "sue", &["n1"], 1);
        for _ in 0..20 {
            run_briefly(&mut w, &short, 55, 2);
        }
        for (kernel, user, node) in [("m", "mia", "n1"), ("x", "xen", "n0"), ("y", "yve", "n0")] {
            let long = w.kernel(kernel, user, &[node], 1);
            let (_, out) = w.submit(&long, Need::gpus(1));
            go_on(&mut w, 1, out, 2);
            go_on(&mut w, 60, Vec::new(), 2);
        }
        let due = w.kernel("d", "dan", &["n0"], 2);
        let (_, out) = w.submit(&due, Need::gpus(2));
        go_on(&mut w, 1, out, 2);
        for _ in 0..30 * 60 {
            go_on(&mut w, 60, Vec::new(), 2);
        }
        let quick = w.kernel("e", "eve", &[home], 1);
        let (_, out) = w.submit(&quick, Need::gpus(1));
        go_on(&mut w, 1, out, 2);
        for _ in 0..30 {
            go_on(&mut w, 10, Vec::new(), 2);
        }
        assert!(runs(&w, &quick), "on {home}: {:?}", w.said(&quick, None));
    }
}
