//! Moves that somebody asks for, kernels that policy leaves where they are, and kernels that sleep.

use crate::world::{World, facts};
use hop_core::config::{Config, Migrate, PoolConfig};
use hop_core::{Doing, Input, MoveCause, Output, PlaceReplica, SeatUp, Standby, Withdrawal};
use hop_words::id::{Incarnation, JobId, KernelId, NodeName};
use hop_words::need::Need;
use hop_words::reason::{MoveRefused, RefusedBecause};
use hop_words::time::Span;

/// Moves for cells that wait, and none ahead of them.
fn for_who_waits() -> Option<Migrate> {
    Some(Migrate {
        ahead: false,
        ..Migrate::default()
    })
}

/// Three nodes of two GPUs with a pilot on each, and a kernel on the first.
fn world(migrate: Option<Migrate>) -> (World, KernelId) {
    let mut pool = PoolConfig::fixed("main", 0, 2, 8);
    pool.max_pilots = 3;
    pool.migrate = migrate;
    let mut w = World::new(1, Config::default(), pool);
    for n in 0..3 {
        w.tell(Input::Node(facts(&format!("n{n}"))));
        w.pilot(&format!("n{n}"), 2, 8);
    }
    let k = w.kernel("k", "ada", &["n0"], 1);
    (w, k)
}

fn asks(w: &mut World, kernel: &KernelId, from: Option<&str>, to: Option<&str>) -> Vec<Output> {
    w.tell(Input::Migrate {
        kernel: kernel.clone(),
        from: from.map(Into::into),
        to: to.map(Into::into),
        cause: MoveCause::Asked,
    })
}

fn stays(out: &[Output]) -> &MoveRefused {
    match out {
        [Output::MoveRefused { reason, .. }] => reason,
        other => panic!("{other:?}"),
    }
}

fn goes_to(out: &[Output]) -> (&str, MoveCause) {
    let moves = out.iter().find_map(|o| match o {
        Output::Migrate { seat, cause, .. } => Some((seat.node.as_str(), *cause)),
        _ => None,
    });
    moves.unwrap_or_else(|| panic!("{out:?}"))
}

#[test]
fn a_kernel_goes_where_it_is_asked_to_or_says_why_not() {
    let (mut w, k) = world(None);
    let nobody = KernelId::from("nobody");
    assert_eq!(stays(&asks(&mut w, &nobody, None, None)), &MoveRefused::NoReplica);
    assert_eq!(
        stays(&asks(&mut w, &k, None, Some("n0"))),
        &MoveRefused::SitsThere { node: "n0".into() }
    );
    assert_eq!(
        stays(&asks(&mut w, &k, Some("n1"), None)),
        &MoveRefused::NoReplica,
        "none is there"
    );
    w.tell(Input::NodeDown { node: "n1".into() });
    assert_eq!(
        stays(&asks(&mut w, &k, None, Some("n1"))),
        &MoveRefused::Unfit { node: "n1".into() }
    );
    assert_eq!(
        goes_to(&asks(&mut w, &k, Some("n0"), None)),
        ("n2", MoveCause::Asked),
        "the one that is up"
    );
    assert_eq!(w.core.kernel(&k).unwrap().doing, Doing::Moving);
    assert_eq!(
        stays(&asks(&mut w, &k, None, None)),
        &MoveRefused::Moves { to: "n2".into() }
    );
}

#[test]
fn a_move_without_an_end_is_withdrawn() {
    let (mut w, k) = world(None);
    goes_to(&asks(&mut w, &k, None, Some("n1")));
    let out = w.pass(Span::from_secs(3600));
    let withdrawn = |o: &Output| matches!(o, Output::MoveWithdrawn { to, .. } if to.as_str() == "n1");
    assert!(out.iter().any(withdrawn), "{out:?}");
    assert_eq!(w.core.kernel(&k).unwrap().doing, Doing::Idle);
    goes_to(&asks(&mut w, &k, None, Some("n1")));
}

/// Its executor was lost on the way, and the next one knows of no move.
#[test]
fn a_move_is_over_once_the_log_elects_somebody_else() {
    let (mut w, k) = world(None);
    w.elect(&k, 1, "n0", &[]);
    goes_to(&asks(&mut w, &k, None, Some("n1")));
    let out = w.elect(&k, 9, "n2", &[]);
    let why = out.iter().find_map(|o| match o {
        Output::MoveWithdrawn { why, .. } => Some(*why),
        _ => None,
    });
    assert_eq!(why, Some(Withdrawal::Overtaken(Incarnation(9))), "{out:?}");
    let told =
        "its process was lost or restarted meanwhile, and the new one has to be asked again (`hop migrate`)";
    assert_eq!(why.unwrap().to_string(), told);
    assert_eq!(w.core.kernel(&k).unwrap().doing, Doing::Idle);
    goes_to(&asks(&mut w, &k, None, Some("n1")));
}

/// The replica outlives the kernel's process, and carries the move out with the next one.
#[test]
fn a_move_goes_on_with_the_next_process_of_the_same_replica() {
    let (mut w, k) = world(None);
    w.elect(&k, 1, "n0", &[]);
    goes_to(&asks(&mut w, &k, None, Some("n1")));
    for _ in 0..2 {
        let out = w.elect(&k, 1, "n0", &[]);
        assert!(!out.iter().any(is_withdrawn), "{out:?}");
        assert_eq!(w.core.kernel(&k).unwrap().doing, Doing::Moving);
    }
    assert!(w.elect(&k, 9, "n2", &[]).iter().any(is_withdrawn));
}

#[test]
fn a_move_ends_with_the_election_of_the_replica_that_it_is_for() {
    let (mut w, k) = world(None);
    w.elect(&k, 1, "n0", &[]);
    let (_, to) = moved(&asks(&mut w, &k, None, Some("n1")));
    let out = w.elect(&k, to.0, "n1", &[]);
    assert!(!out.iter().any(is_withdrawn), "{out:?}");
    assert_eq!(w.core.kernel(&k).unwrap().doing, Doing::Idle);
}

/// The replica that leaves, and the one that comes.
fn moved(out: &[Output]) -> (Incarnation, Incarnation) {
    let moves = out.iter().find_map(|o| match o {
        Output::Migrate { victim, seat, .. } => Some((*victim, seat.incarnation)),
        _ => None,
    });
    moves.expect("it moves")
}

fn is_withdrawn(o: &Output) -> bool {
    matches!(o, Output::MoveWithdrawn { .. })
}

/// The cell that runs is waited for, however quick the moves before were.
#[test]
fn a_quick_past_makes_nobody_impatient() {
    let (mut w, k) = world(None);
    for n in 0..20 {
        let to = ["n1", "n0"][n % 2];
        let (victim, incarnation) = moved(&asks(&mut w, &k, None, Some(to)));
        w.replica(&k, "ada", incarnation, to);
        w.tell(Input::ReplicaLost {
            kernel: k.clone(),
            incarnation: victim,
        });
    }
    goes_to(&asks(&mut w, &k, None, Some("n1")));
    let out = w.pass(Span::from_secs(29));
    assert!(!out.iter().any(is_withdrawn), "{out:?}");
}

/// All of n0's GPUs are taken for long, and others are free.
fn crowded(fixed: Option<&str>) -> Vec<Output> {
    let (mut w, k) = world(for_who_waits());
    let other = w.kernel("other", "bob", &["n0"], 2);
    let (_, _) = w.submit(&other, Need::gpus(2));
    w.settle();
    // Long enough that it is expected to go on for long.
    w.pass(Span::from_secs(600));
    w.tell(Input::KernelFixed {
        kernel: k.clone(),
        why: fixed.map(Into::into),
    });
    let (_, mut out) = w.submit(&k, Need::gpus(1));
    out.extend(w.pass(Span::from_secs(60)));
    out
}

#[test]
fn policy_moves_a_kernel_to_free_gpus_and_leaves_one_that_can_not_go() {
    assert_eq!(goes_to(&crowded(None)).1, MoveCause::Waiting);
    let out = crowded(Some("its state is not saved"));
    let moves = |o: &Output| matches!(o, Output::Migrate { .. });
    assert!(!out.iter().any(moves), "{out:?}");
}

/// One more replica, on a node beside these.
fn another(kernel: &KernelId, avoid: &[&str]) -> PlaceReplica {
    PlaceReplica {
        kernel: kernel.clone(),
        user: "ada".into(),
        account: None,
        pool: "main".into(),
        first: None,
        default_need: Need::gpus(1),
        mem_mib: 512,
        cpus: 1,
        avoid: avoid.iter().map(|n| NodeName::from(*n)).collect(),
        name: String::new(),
    }
}

#[test]
fn a_kernel_with_standbys_goes_to_one_that_has_free_gpus() {
    let (mut w, k) = world(for_who_waits());
    let other = w.kernel("other", "bob", &["n0"], 2);
    w.submit(&other, Need::gpus(2));
    w.settle();
    w.pass(Span::from_secs(600));
    let standby = |incarnation: u32, node: &str| Standby {
        incarnation: Incarnation(incarnation),
        node: node.into(),
        seat: JobId(incarnation),
    };
    // As the front grew the kernel.
    w.tell(Input::PlaceKernel(another(&k, &["n0", "n1"])));
    w.stands_by(&k, vec![standby(7, "n2"), standby(8, "unknown")]);
    let (_, mut out) = w.submit(&k, Need::gpus(1));
    out.extend(w.pass(Span::from_secs(60)));
    let seat = out.iter().find_map(|o| match o {
        Output::Migrate { seat, .. } => Some(seat),
        _ => None,
    });
    let seat = seat.expect("it moves");
    assert_eq!(
        (seat.incarnation, seat.node.as_str(), seat.existing),
        (Incarnation(7), "n2", Some(JobId(7)))
    );
    // A new replica is another one, wherever it is placed.
    let placed = w.tell(Input::PlaceKernel(another(&k, &["n0", "n2"])));
    let [Output::Place { seat, .. }] = &placed[..] else {
        panic!("{placed:?}");
    };
    assert!(seat.incarnation > Incarnation(7), "{seat:?}");
}

#[test]
fn a_place_that_came_to_nothing_keeps_no_kernel_away() {
    let (mut w, k) = world(None);
    let again = |first: u32, avoid: &[&str]| PlaceReplica {
        first: Some(Incarnation(first)),
        ..another(&k, avoid)
    };
    // The seat on n1 didn't start: the front asks for another, by the same number.
    w.tell(Input::PlaceKernel(again(2, &["n0", "n2"])));
    w.tell(Input::PlaceKernel(again(2, &["n0", "n1"])));
    assert_eq!(
        stays(&asks(&mut w, &k, None, Some("n2"))),
        &MoveRefused::SitsThere { node: "n2".into() },
        "a replica is on its way there"
    );
    assert_eq!(
        goes_to(&asks(&mut w, &k, None, Some("n1"))),
        ("n1", MoveCause::Asked)
    );
    // Nor does the place of the move go with the next such request.
    w.tell(Input::PlaceKernel(again(2, &["n0", "n1"])));
    assert_eq!(
        stays(&asks(&mut w, &k, None, None)),
        &MoveRefused::Moves { to: "n1".into() }
    );
}

#[test]
fn a_kernel_that_sleeps_leaves_nothing_behind() {
    let (mut w, k) = world(None);
    w.submit(&k, Need::gpus(2));
    w.settle();
    let (waits, _) = w.submit(&k, Need::gpus(2));
    let mut out = w.tell(Input::Hibernated { kernel: k.clone() });
    let refused = |o: &Output| matches!(o, Output::Refused { cell, reason: RefusedBecause::Asleep, .. } if *cell == waits);
    assert!(out.iter().any(refused), "{out:?}");
    for _ in 0..10 {
        w.settle();
        out.extend(w.pass(Span::from_secs(10)));
    }
    assert!(w.core.leases().is_empty());
    assert!(w.core.kernel(&k).is_none());
}

#[test]
fn a_kernel_leaves_a_seat_that_ends_for_another_on_its_node_where_there_is_no_other() {
    let mut pool = PoolConfig::fixed("main", 0, 2, 8);
    pool.max_pilots = 1;
    let mut w = World::new(1, Config::default(), pool);
    w.tell(Input::Node(facts("n0")));
    w.pilot("n0", 2, 8);
    let k = w.kernel("k", "ada", &["n0"], 1);
    let seat = w.core.kernel(&k).unwrap().replicas[0].seat;
    w.tell(Input::SeatUp(SeatUp {
        job: seat,
        user: "ada".into(),
        node: "n0".into(),
        mem_mib: 1 << 20,
        cpus: 1,
    }));
    let plan = |w: &mut World, cause| {
        let out = w.tell(Input::Migrate {
            kernel: k.clone(),
            from: Some("n0".into()),
            to: None,
            cause,
        });
        out.into_iter().find_map(|o| match o {
            Output::Migrate { seat, .. } => Some(seat),
            _ => None,
        })
    };
    assert_eq!(plan(&mut w, MoveCause::Drain), None);
    w.tell(Input::SeatEnds {
        job: seat,
        soon: true,
    });
    let to = plan(&mut w, MoveCause::SeatEnds).unwrap();
    assert_eq!((to.node.as_str(), to.existing), ("n0", None));
    w.tell(Input::MigrationFailed {
        kernel: k.clone(),
        incarnation: to.incarnation,
    });
    w.tell(Input::SeatEnds {
        job: seat,
        soon: false,
    });
    assert_eq!(
        plan(&mut w, MoveCause::SeatEnds).unwrap().existing,
        Some(seat),
        "Slurm has given it more time"
    );
}

#[test]
fn a_move_is_not_withdrawn_by_the_clock_of_a_closed_kernels_move() {
    let (mut w, first) = world(None);
    goes_to(&asks(&mut w, &first, None, Some("n1")));
    let half = Span::from_secs(90);
    let mut out = w.pass(half);
    w.tell(Input::CloseKernel { kernel: first });
    // It has the closed kernel's place, and its move the same number.
    let second = w.kernel("second", "ada", &["n0"], 1);
    goes_to(&asks(&mut w, &second, None, Some("n1")));
    out.extend(w.pass(Span::from_secs(180)));
    assert!(!out.iter().any(is_withdrawn), "{out:?}");
    assert!(w.pass(half).iter().any(is_withdrawn), "by its own");
}
