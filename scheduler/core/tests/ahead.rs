//! Kernels leave crowded nodes before anybody waits, and only then.

use crate::world::{World, facts};
use hop_core::config::{Config, Migrate, PoolConfig, Scale};
use hop_core::{Input, Output, Room};
use hop_words::need::Need;
use hop_words::time::Span;

/// Three nodes of two GPUs.
fn three_nodes(ahead: bool) -> World {
    let mut pool = PoolConfig::fixed("main", 0, 2, 8);
    pool.max_pilots = 3;
    pool.migrate = Some(Migrate {
        ahead,
        ..Migrate::default()
    });
    pool.scale = Some(Scale {
        spares: 0,
        idle_min: Span::from_secs(24 * 3600),
        ..Scale::default()
    });
    let mut w = World::new(1, Config::default(), pool);
    for n in 0..3 {
        w.tell(Input::Node(facts(&format!("n{n}"))));
    }
    w
}

/// Where replicas are moved within so long.
fn moves(w: &mut World, seconds: u64) -> Vec<(u32, String)> {
    let mut moves = Vec::new();
    for _ in 0..seconds / 10 {
        let out = w.pass(Span::from_secs(10));
        moves.extend(out.into_iter().filter_map(|o| match o {
            Output::Migrate { victim, seat, .. } => Some((victim.0, seat.node.to_string())),
            _ => None,
        }));
    }
    moves
}

/// Three nodes of two GPUs, with a pilot on some of them whatever is asked for.
fn pilots_that_stay(on: &[&str]) -> World {
    let mut pool = PoolConfig::fixed("main", on.len() as u32, 2, 8);
    pool.migrate = Some(Migrate::default());
    let mut w = World::new(1, Config::default(), pool);
    for n in 0..3 {
        w.tell(Input::Node(facts(&format!("n{n}"))));
    }
    for node in on {
        w.pilot(node, 2, 8);
    }
    w
}

/// The same with pilots that stay, on the first two nodes or on the first alone.
#[test]
fn they_are_moved_apart_to_a_pilot_where_pilots_do_not_follow_demand() {
    for (pilots, moved) in [(&["n0", "n1"][..], 1), (&["n0"], 0)] {
        let mut w = pilots_that_stay(pilots);
        w.kernel("a", "ada", &["n0"], 2);
        w.kernel("b", "bob", &["n0"], 2);
        let made = moves(&mut w, 750);
        assert_eq!(made.len(), moved, "{pilots:?}: {made:?}");
        assert!(made.iter().all(|(_, to)| to == "n1"), "{made:?}");
    }
}

/// As most notebooks are: their kernelspec names no need, and their cells do.
#[test]
fn what_cells_asked_for_counts_where_the_kernelspec_names_no_need() {
    let mut w = pilots_that_stay(&["n0", "n1"]);
    for name in ["a", "b"] {
        let k = w.kernel(name, "ada", &["n0"], 0);
        let (cell, _) = w.submit(&k, Need::gpus(2));
        w.settle();
        w.pass(Span::from_secs(20));
        w.end_cell(&k, &cell);
        w.pass(Span::from_secs(20));
        w.settle();
    }
    assert_eq!(moves(&mut w, 750).len(), 1);
}

#[test]
fn nobody_is_moved_apart_to_where_the_jobs_of_others_are() {
    for (taken, moved) in [(&["n1"][..], &["n2"][..]), (&["n1", "n2"], &[])] {
        let mut w = three_nodes(true);
        for &node in taken {
            let (node, room) = (node.into(), Room { taken: 2, seat: true });
            w.tell(Input::NodeRoom { node, room });
        }
        w.kernel("a", "ada", &["n0"], 2);
        w.kernel("b", "bob", &["n0"], 2);
        let made: Vec<String> = moves(&mut w, 750).into_iter().map(|(_, to)| to).collect();
        assert_eq!(made, moved, "{taken:?} are taken");
    }
}

#[test]
fn a_kernel_is_moved_apart_to_its_own_standby() {
    let mut w = three_nodes(true);
    let a = w.kernel("a", "ada", &["n0"], 2);
    let b = w.kernel("b", "bob", &["n0"], 2);
    for k in [a, b] {
        let standby = hop_core::Standby {
            incarnation: hop_words::id::Incarnation(7),
            node: "n2".into(),
            seat: hop_words::id::JobId(77),
        };
        w.stands_by(&k, vec![standby]);
    }
    let made = moves(&mut w, 750);
    assert!(matches!(&made[..], [(_, to)] if to == "n2"), "{made:?}");
}

#[test]
fn kernels_that_share_a_node_too_small_for_both_are_moved_apart_once_quiet() {
    for (gpus, ahead, moved) in [(2, true, 1), (1, true, 0), (2, false, 0)] {
        let mut w = three_nodes(ahead);
        w.kernel("a", "ada", &["n0"], gpus);
        w.kernel("b", "bob", &["n0"], gpus);
        assert_eq!(moves(&mut w, 100), [], "they were opened just now");
        let made = moves(&mut w, 650);
        assert_eq!(made.len(), moved, "of {gpus} GPUs each, ahead {ahead}: {made:?}");
        assert!(made.iter().all(|(_, to)| to == "n1"), "{made:?}");
    }
}
