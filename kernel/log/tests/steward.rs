//! The leader's duties, as a table: a kernel's log, the leader's view, and the next deed.

use crate::common::*;
use hop_log::Entry;
use hop_log::steward::{Deed, View, next};
use hop_words::id::{Incarnation, Tenure};
use std::collections::{BTreeMap, BTreeSet};

/// The view of replica 1 on a healthy kernel.
struct Facts {
    me: u32,
    voters: Vec<u32>,
    learners: Vec<(u32, bool)>,
    changing: bool,
    gone: Vec<u32>,
    unfit: Vec<u32>,
    leaving: Vec<u32>,
    died: Option<u64>,
    wanted: usize,
}

fn healthy() -> Facts {
    Facts {
        me: 1,
        voters: vec![1, 2, 3],
        learners: vec![],
        changing: false,
        gone: vec![],
        unfit: vec![],
        leaving: vec![],
        died: None,
        wanted: 3,
    }
}

fn set(numbers: &[u32]) -> BTreeSet<Incarnation> {
    numbers.iter().map(|n| Incarnation(*n)).collect()
}

fn deed(log: &Log, facts: &Facts) -> Option<Deed> {
    let (voters, gone, unfit) = (set(&facts.voters), set(&facts.gone), set(&facts.unfit));
    let leaving = set(&facts.leaving);
    let learners: BTreeMap<_, _> = facts
        .learners
        .iter()
        .map(|(m, up)| (Incarnation(*m), *up))
        .collect();
    let view = View {
        me: Incarnation(facts.me),
        voters: &voters,
        learners: &learners,
        changing: facts.changing,
        gone: &gone,
        unfit: &unfit,
        leaving: &leaving,
        died: facts.died.map(Tenure),
        wanted: facts.wanted,
    };
    next(&log.state, &view)
}

fn hot(incarnation: u32) -> Entry {
    let Entry::Join {
        incarnation,
        seat,
        node,
        ..
    } = join(incarnation)
    else {
        unreachable!()
    };
    Entry::Join {
        incarnation,
        seat,
        node,
        hot: true,
    }
}

#[test]
fn a_healthy_kernel_needs_nothing() {
    assert_eq!(deed(&Log::of_three(), &healthy()), None);
}

#[test]
fn a_lost_executor_is_followed_by_a_hot_member_or_the_leader() {
    let mut log = Log::of_three();
    let facts = Facts {
        me: 2,
        unfit: vec![1],
        ..healthy()
    };
    assert_eq!(deed(&log, &facts), Some(Deed::Propose(tenure(2, 2))));
    log.does(&hot(3));
    assert_eq!(deed(&log, &facts), Some(Deed::Propose(tenure(2, 3))));
    let none_fit = Facts {
        unfit: vec![1, 2, 3],
        ..facts
    };
    assert_eq!(deed(&log, &none_fit), None);
}

#[test]
fn a_process_that_died_is_followed_in_place() {
    let log = Log::of_three();
    let died = |tenure| Facts {
        me: 2,
        died: Some(tenure),
        ..healthy()
    };
    assert_eq!(deed(&log, &died(1)), Some(Deed::Propose(tenure(2, 1))));
    assert_eq!(deed(&log, &died(0)), Some(Deed::Lead(Incarnation(1))));
}

#[test]
fn a_member_without_a_vote_never_takes_office() {
    let mut log = Log::of_three();
    log.does(&hot(4));
    let facts = Facts {
        me: 2,
        learners: vec![(4, false)],
        gone: vec![1],
        ..healthy()
    };
    assert_eq!(deed(&log, &facts), Some(Deed::Propose(tenure(2, 2))));
}

#[test]
fn a_kernel_grows_from_one_to_three_in_one_step() {
    let mut log = Log::new();
    log.does(&join(1));
    log.does(&tenure(1, 1));
    let alone = Facts {
        voters: vec![1],
        ..healthy()
    };
    assert_eq!(deed(&log, &alone), Some(Deed::Grow(2)));
    log.does(&join(2));
    assert_eq!(deed(&log, &alone), Some(Deed::Learner(Incarnation(2))));
    let one_ready = Facts {
        learners: vec![(2, true)],
        ..alone
    };
    assert_eq!(
        deed(&log, &one_ready),
        Some(Deed::Grow(1)),
        "two voters are worse than one"
    );
    log.does(&join(3));
    let one_lags = Facts {
        learners: vec![(2, true), (3, false)],
        ..one_ready
    };
    assert_eq!(deed(&log, &one_lags), None);
    let ready = Facts {
        learners: vec![(2, true), (3, true)],
        ..one_lags
    };
    assert_eq!(deed(&log, &ready), Some(Deed::Voters(set(&[1, 2, 3]))));
    let changing = Facts {
        changing: true,
        ..ready
    };
    assert_eq!(deed(&log, &changing), None);
}

#[test]
fn a_lost_standby_is_replaced_and_then_left() {
    let mut log = Log::of_three();
    let lost = Facts {
        gone: vec![3],
        unfit: vec![3],
        ..healthy()
    };
    assert_eq!(deed(&log, &lost), Some(Deed::Grow(1)));
    log.does(&join(4));
    let ready = Facts {
        learners: vec![(4, true)],
        ..lost
    };
    assert_eq!(deed(&log, &ready), Some(Deed::Voters(set(&[1, 2, 4]))));
    let replaced = Facts {
        voters: vec![1, 2, 4],
        learners: vec![],
        ..ready
    };
    assert_eq!(deed(&log, &replaced), Some(Deed::Propose(left(3))));
    log.does(&left(3));
    assert_eq!(deed(&log, &replaced), None);
}

#[test]
fn a_voter_that_is_no_member_is_replaced() {
    let mut log = Log::of_three();
    log.does(&left(3));
    log.does(&join(4));
    let facts = Facts {
        learners: vec![(4, true)],
        ..healthy()
    };
    assert_eq!(deed(&log, &facts), Some(Deed::Voters(set(&[1, 2, 4]))));
}

#[test]
fn a_member_that_leaves_is_replaced_before_it_goes() {
    let mut log = Log::of_three();
    let leaves = Facts {
        leaving: vec![2],
        ..healthy()
    };
    assert_eq!(deed(&log, &leaves), Some(Deed::Grow(1)));
    log.does(&join(4));
    assert_eq!(deed(&log, &leaves), Some(Deed::Learner(Incarnation(4))));
    let ready = Facts {
        learners: vec![(4, true)],
        ..leaves
    };
    assert_eq!(deed(&log, &ready), Some(Deed::Voters(set(&[1, 3, 4]))));
    let replaced = Facts {
        voters: vec![1, 3, 4],
        learners: vec![],
        ..ready
    };
    assert_eq!(deed(&log, &replaced), Some(Deed::Propose(left(2))));
}

#[test]
fn an_executor_that_leaves_hands_over_first() {
    let mut log = Log::of_three();
    log.does(&join(4));
    let leaves = Facts {
        leaving: vec![1],
        learners: vec![(4, true)],
        ..healthy()
    };
    assert_eq!(deed(&log, &leaves), None, "its successor is ready");
    log.does(&moved(1, 2));
    assert_eq!(
        deed(&log, &leaves),
        Some(Deed::Lead(Incarnation(2))),
        "never without its leader"
    );
    let by_another = Facts { me: 2, ..leaves };
    assert_eq!(deed(&log, &by_another), Some(Deed::Voters(set(&[2, 3, 4]))));
}

#[test]
fn a_replica_too_many_leaves() {
    let mut log = Log::of_three();
    log.does(&join(4));
    assert_eq!(deed(&log, &healthy()), Some(Deed::Propose(left(4))));
}

#[test]
fn a_kernel_shrinks_to_its_executor_in_one_step() {
    let log = Log::of_three();
    let shrinks = |me| Facts {
        me,
        wanted: 1,
        ..healthy()
    };
    assert_eq!(deed(&log, &shrinks(1)), Some(Deed::Voters(set(&[1]))));
    assert_eq!(deed(&log, &shrinks(2)), Some(Deed::Lead(Incarnation(1))));
}

#[test]
fn a_sleeping_kernel_is_left_alone() {
    let mut log = Log::of_three();
    log.does(&hibernated(1));
    assert_eq!(deed(&log, &healthy()), None);
}
