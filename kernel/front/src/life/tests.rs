use super::*;

const SECOND: u64 = 1_000_000;

fn at(seconds: u64) -> Timestamp {
    Timestamp(seconds * SECOND)
}

fn up(durable: bool) -> Life {
    let mut life = Life::new(durable, false);
    assert_eq!(life.handle(Input::Started { tenure: Tenure(1) }, at(0)), []);
    assert_eq!(life.handle(Input::Connected { node: "n1".into() }, at(1)), []);
    life
}

fn start_elsewhere() -> Act {
    Act::Start {
        fresh_seat: true,
        avoid: Some("n1".into()),
        old: Some(Tenure(1)),
    }
}

#[test]
fn a_lost_kernel_with_a_log_goes_on() {
    let mut life = up(true);
    life.handle(Input::Disconnected { silent: false }, at(10));
    life.handle(Input::ProcessGone, at(10));
    assert_eq!(life.handle(Input::Tick, at(10)), []);
    let acts = life.handle(Input::Tick, at(11));
    let again = Act::Start {
        fresh_seat: false,
        avoid: None,
        old: Some(Tenure(1)),
    };
    assert!(
        matches!(&acts[..], [Act::Tell { .. }, start] if *start == again),
        "{acts:?}"
    );
    assert!(life.is_starting());
    life.handle(Input::Started { tenure: Tenure(2) }, at(12));
    life.handle(Input::Connected { node: "n2".into() }, at(13));
    assert_eq!(life.tenure(), Tenure(2));
}

#[test]
fn a_lost_kernel_without_a_log_dies() {
    let mut life = up(false);
    life.handle(Input::Disconnected { silent: false }, at(10));
    assert_eq!(life.handle(Input::Tick, at(74)), []);
    let acts = life.handle(Input::Tick, at(76));
    assert!(
        matches!(&acts[..], [Act::Die { reason }] if reason.contains("node n1 was lost")),
        "{acts:?}"
    );
    assert_eq!(life.handle(Input::Tick, at(99)), []);
}

#[test]
fn a_replica_that_dials_again_is_not_lost() {
    let mut life = up(true);
    life.handle(Input::Disconnected { silent: false }, at(10));
    life.handle(Input::Connected { node: "n1".into() }, at(11));
    assert_eq!(life.handle(Input::Tick, at(60)), []);
}

#[test]
fn clients_are_told_of_a_silence_that_outlasts_an_election() {
    let later = |ms: u64| Timestamp(10 * SECOND + ms * 1000);
    let told = |life: &mut Life, silent| {
        life.handle(Input::Disconnected { silent }, at(10));
        assert_eq!(life.unanswered(later(1400)), None, "an election takes as long");
        life.unanswered(later(1500))
    };
    let mut group = up(true);
    assert_eq!(group.unanswered(at(10)), None, "it is there");
    group.has_members(3);
    let unanswered = |within, then| {
        Some(Unanswered {
            node: Some("n1".into()),
            within: Span::from_secs(within),
            then,
        })
    };
    assert_eq!(told(&mut group, false), unanswered(15, Then::Elected));
    group.handle(Input::Connected { node: "n2".into() }, later(1600));
    assert_eq!(group.unanswered(at(30)), None, "another one is there");
    assert_eq!(told(&mut up(true), true), unanswered(4, Then::Started));
    assert_eq!(told(&mut up(false), false), unanswered(65, Then::Ends));
    let left = Life::left(true, false, Tenure(3), at(10));
    let told = left.unanswered(at(12)).unwrap();
    assert_eq!((told.within, told.then, told.node), (LEFT, Then::Started, None));
}

#[test]
fn an_srun_that_is_killed_alone_ends_nothing() {
    let mut life = up(true);
    life.handle(Input::ProcessGone, at(10));
    assert_eq!(life.handle(Input::Tick, at(60)), []);
    life.handle(Input::Disconnected { silent: false }, at(70));
    assert_eq!(
        life.handle(Input::Tick, at(71)).len(),
        2,
        "nothing stands for it any more"
    );
}

#[test]
fn silence_is_given_longer_than_an_end() {
    let mut life = up(true);
    life.handle(Input::Disconnected { silent: true }, at(10));
    assert_eq!(life.handle(Input::Tick, at(13)), []);
    let acts = life.handle(Input::Tick, at(15));
    assert!(
        matches!(&acts[..], [Act::Tell { .. }, start] if *start == start_elsewhere()),
        "{acts:?}"
    );
}

#[test]
fn the_first_seat_may_end_under_the_kernel_and_the_next_one() {
    let mut life = Life::new(true, false);
    for n in [0, 2] {
        life.handle(Input::Started { tenure: Tenure(n) }, at(n));
        let fresh = Act::Start {
            fresh_seat: true,
            avoid: None,
            old: None,
        };
        assert_eq!(life.handle(Input::ProcessGone, at(n + 1)), [fresh]);
    }
    life.handle(Input::Started { tenure: Tenure(4) }, at(4));
    let acts = life.handle(Input::ProcessGone, at(5));
    assert!(matches!(acts[..], [Act::Die { .. }]), "{acts:?}");
    let mut local = Life::new(true, true);
    local.handle(Input::Started { tenure: Tenure(1) }, at(0));
    let acts = local.handle(Input::ProcessGone, at(1));
    assert!(
        matches!(acts[..], [Act::Die { .. }]),
        "no seat ends there: {acts:?}"
    );
}

#[test]
fn a_start_that_fails_is_tried_again_with_pauses() {
    let mut life = up(true);
    life.handle(
        Input::Leaving {
            reason: "its seat ends".into(),
        },
        at(10),
    );
    for (now, pause) in [(10, 1), (11, 2), (13, 4), (17, 8), (25, 16), (41, 30), (71, 30)] {
        let acts = life.handle(Input::NotStarted { reason: "no".into() }, at(now));
        assert!(matches!(&acts[..], [Act::Tell { .. }]), "{acts:?}");
        assert_eq!(
            life.handle(Input::Tick, Timestamp((now + pause) * SECOND - 1)),
            []
        );
        assert!(matches!(
            &life.handle(Input::Tick, at(now + pause))[..],
            [Act::Start { .. }]
        ));
    }
    let mut first = Life::new(true, false);
    let acts = first.handle(Input::NotStarted { reason: "no".into() }, at(0));
    assert!(
        matches!(&acts[..], [Act::Die { .. }]),
        "a first start tells its error at once"
    );
}

#[test]
fn replicas_that_never_connect_end_the_kernel() {
    let mut life = up(true);
    life.handle(
        Input::Leaving {
            reason: "its seat ends".into(),
        },
        at(1),
    );
    for n in 1..STILLBORN {
        life.handle(
            Input::Started {
                tenure: Tenure(u64::from(n) + 1),
            },
            at(2),
        );
        assert!(matches!(
            &life.handle(Input::ProcessGone, at(3))[..],
            [Act::Start { .. }]
        ));
    }
    life.handle(Input::Started { tenure: Tenure(9) }, at(4));
    assert!(matches!(
        &life.handle(Input::Tick, at(200))[..],
        [Act::Die { .. }]
    ));
}

#[test]
fn a_replica_that_does_not_connect_is_soon_tried_elsewhere_while_tries_are_left() {
    for (lived, tries) in [(true, STILLBORN - 1), (false, STILLBORN_FIRST - 1)] {
        let mut life = if lived { up(true) } else { Life::new(true, false) };
        if lived {
            life.handle(
                Input::Leaving {
                    reason: "it ends".into(),
                },
                at(1),
            );
        }
        let mut now = 2;
        for n in 0..tries {
            let tenure = Tenure(u64::from(n) + 2);
            life.handle(Input::Started { tenure }, at(now));
            assert_eq!(life.handle(Input::Tick, at(now + 30)), []);
            let acts = life.handle(Input::Tick, at(now + 31));
            assert!(
                matches!(acts[..], [Act::Start { fresh_seat: true, .. }]),
                "{acts:?}"
            );
            now += 31;
        }
        life.handle(Input::Started { tenure: Tenure(9) }, at(now));
        assert_eq!(
            life.handle(Input::Tick, at(now + 90)),
            [],
            "the last one is given time"
        );
        let acts = life.handle(Input::Tick, at(now + 91));
        assert!(matches!(acts[..], [Act::Die { .. }]), "{acts:?}");
    }
}

#[test]
fn a_kernel_that_moves_says_nothing_of_it() {
    let mut life = up(true);
    let start = Act::Start {
        fresh_seat: true,
        avoid: None,
        old: Some(Tenure(1)),
    };
    assert_eq!(life.handle(Input::Moving, at(5)), [start]);
}

#[test]
fn a_sleeping_kernel_wakes_when_it_is_wanted() {
    let mut life = up(true);
    life.handle(Input::Asleep { wanted: false }, at(5));
    assert_eq!(life.handle(Input::Disconnected { silent: false }, at(6)), []);
    assert_eq!(life.handle(Input::Tick, at(9999)), []);
    let wake = Act::Start {
        fresh_seat: false,
        avoid: None,
        old: Some(Tenure(1)),
    };
    assert_eq!(life.handle(Input::Wanted, at(9999)), std::slice::from_ref(&wake));
    assert_eq!(life.handle(Input::Wanted, at(9999)), [], "once");
    let mut life = up(true);
    assert_eq!(
        life.handle(Input::Asleep { wanted: true }, at(5)),
        [wake],
        "a cell came during the last save"
    );
    assert!(life.is_away());
    assert_eq!(life.handle(Input::Wanted, at(5)), [], "once");
}

#[test]
fn a_kernel_that_was_left_is_waited_for_and_then_begins_with_what_is_saved() {
    let left = || Life::left(true, false, Tenure(3), at(10));
    let mut life = left();
    assert_eq!(life.handle(Input::Tick, at(44)), []);
    life.handle(Input::Connected { node: "n1".into() }, at(44));
    assert_eq!(
        (life.handle(Input::Tick, at(99)), life.tenure()),
        (vec![], Tenure(3))
    );
    let begins = Act::Start {
        fresh_seat: false,
        avoid: None,
        old: None,
    };
    let mut here = Life::left(true, true, Tenure(3), at(10));
    assert_eq!(
        left().handle(Input::Tick, at(46)),
        here.handle(Input::Tick, at(23))
    );
    assert_eq!(left().handle(Input::Tick, at(46)), [begins]);
}

#[test]
fn a_kernel_is_left_until_its_replica_connects_or_another_begins() {
    let left = || Life::left(true, false, Tenure(3), at(10));
    let after = |inputs: &[(u64, Input)]| {
        let mut life = left();
        for (seconds, input) in inputs {
            life.handle(input.clone(), at(*seconds));
        }
        life.is_left()
    };
    let connected = Input::Connected { node: "n1".into() };
    assert!(after(&[]));
    assert!(after(&[
        (11, Input::Tick),
        (12, Input::Wanted),
        (13, Input::ProcessGone)
    ]));
    let elected = Input::Started { tenure: Tenure(4) };
    assert!(after(&[(11, elected)]), "its group has elected another replica");
    assert!(!after(&[(11, connected.clone())]));
    let lost = Input::Disconnected { silent: true };
    assert!(!after(&[(11, connected), (12, lost)]), "of this front by now");
    assert!(!after(&[(46, Input::Tick)]), "a replica is being started");
    assert!(!after(&[(11, Input::Over)]));
    for other in [
        Life::new(true, false),
        Life::resumed(true, false, 1, Tenure(3), at(10)),
        up(true),
    ] {
        assert!(!other.is_left(), "{other:?}");
    }
}

#[test]
fn a_resumed_kernel_is_given_the_time_to_elect_another_replica() {
    let mut life = Life::resumed(true, false, 3, Tenure(3), at(10));
    assert_eq!(
        life.handle(Input::Tick, at(34)),
        [],
        "its executor may be silent, and isn't replaced yet"
    );
    assert_eq!(life.handle(Input::Tick, at(36)).len(), 2);
}

#[test]
fn a_resumed_kernel_is_waited_for() {
    let mut life = Life::resumed(true, false, 1, Tenure(3), at(10));
    assert_eq!(life.handle(Input::Tick, at(13)), []);
    life.handle(Input::Connected { node: "n1".into() }, at(13));
    assert_eq!(
        (life.handle(Input::Tick, at(99)), life.tenure()),
        (vec![], Tenure(3))
    );
}
