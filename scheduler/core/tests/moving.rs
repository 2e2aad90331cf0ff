//! Kernels on their way to another node.

use crate::world::World;
use hop_core::config::{Config, Migrate, PoolConfig};
use hop_core::{Output, Prospect};
use hop_words::id::{CellId, KernelId};
use hop_words::lease::EndCause;
use hop_words::need::{Class, Need};
use hop_words::time::Span;

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
fn a_kernel_on_its_way_takes_nothing_where_it_leaves_and_keeps_what_is_set_aside_where_it_goes() {
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
