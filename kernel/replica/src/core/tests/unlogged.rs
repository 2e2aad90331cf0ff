//! Cells that end without effects: aborted, interrupted in their wait, lost. None of them stands in the way of a
//! kernel's hibernation or move, and none is told as lost.

use super::super::{Durably, Input};
use super::durable::{capturing, durably, greet, settled, state};
use super::group::{grown, grown_of};
use super::{World, terminated};
use hop_log::{Act, Entry};
use hop_protocol::message::Behind;
use hop_words::id::Tenure;
use hop_words::replica::Replicas;
use hop_words::time::Span;
use serde_json::{Value, json};

fn orphaned() -> Input {
    Input::Orphaned {
        reason: "nobody is there".into(),
    }
}

/// The first of two cells fails, and is captured; ipykernel aborts the second one.
fn fails_and_aborts(world: &mut World) -> Vec<String> {
    world.run("a", Value::Null);
    world.run("b", Value::Null);
    world.begins("a");
    world.whole("a");
    let mut out = world.reply("a", "error");
    out.extend(world.reply("b", "aborted"));
    out
}

fn before_reply() -> Option<Durably> {
    durably(state(1)).map(|d| Durably {
        before_reply: true,
        ..d
    })
}

fn replies(out: &[String]) -> Vec<&str> {
    let replies = out
        .iter()
        .filter_map(|line| line.strip_prefix("front: execute_reply "));
    replies.collect()
}

#[test]
fn a_cell_that_the_kernel_aborted_has_no_effects_to_save() {
    let mut world = grown();
    world.commits = true;
    let out = fails_and_aborts(&mut world);
    assert_eq!(replies(&out), ["a error", "b aborted"]);
    assert!(!out.contains(&"front: note answered b".into()), "{out:?}");
    assert!(world.core.rests());
    world.synced(1);
    world.input(Input::Rested);
    assert_eq!(world.input(orphaned()), ["agent: state.flush"]);
    assert_eq!(world.answer(2, json!({})), ["sync", "write-state"]);
    let told = [
        "hopd: hibernated",
        "front: note asleep nobody is there",
        "kill",
        "leave",
    ];
    assert_eq!(world.input(Input::Rested)[1..], told);
}

/// A kernel without our agent, or one that answers so when it has begun: its effects count.
#[test]
fn an_aborted_cell_that_had_begun_is_saved_as_any_other() {
    let mut world = capturing();
    world.run("a", Value::Null);
    world.begins("a");
    assert_eq!(
        world.reply("a", "aborted"),
        ["front: note answered a", "front: execute_reply a aborted"]
    );
    assert!(!world.core.rests());
}

#[test]
fn answers_leave_in_the_order_of_their_cells() {
    let mut world = grown();
    assert_eq!(
        fails_and_aborts(&mut world),
        ["append 1"],
        "the log hasn't got the error"
    );
    let hello = world.core.introduces(crate::link::tests::hello());
    assert_eq!(hello.answered.unwrap().len(), 2);
    assert_eq!(replies(&world.commit()), ["a error", "b aborted"]);

    let mut world = grown();
    world.run("a", Value::Null);
    world.begins("a");
    world.permits = false;
    world.run("b", Value::Null);
    let out = world.reply("a", "error");
    assert_eq!(replies(&out), [""; 0], "b is aborted by the supervisor: {out:?}");
    assert_eq!(replies(&world.commit()), ["a error", "b aborted"]);
}

#[test]
fn a_deposed_executor_aborts_nothing_any_more() {
    let mut world = grown();
    fails_and_aborts(&mut world);
    world.proposed.push_front(Entry::Tenure {
        tenure: Tenure(2),
        executor: hop_words::id::Incarnation(2),
    });
    assert_eq!(world.commit(), ["kill", "leave"]);
}

#[test]
fn a_reply_that_waits_for_effects_is_held_by_no_cell_without_any() {
    let mut world = grown_of(before_reply());
    world.commits = true;
    let out = fails_and_aborts(&mut world);
    assert_eq!(replies(&out), ["a error", "b aborted"]);

    let mut world = alone_and_held();
    world.synced(1);
    assert_eq!(replies(&world.input(Input::Rested)), ["a error", "b aborted"]);
}

/// The store of a kernel with one replica hasn't got the failed cell yet.
fn alone_and_held() -> World {
    let mut world = World::of(before_reply(), Replicas::One);
    greet(&mut world);
    world.input(Input::KernelUp { pid: 7 });
    world.answer(1, json!({}));
    world.permits = true;
    let out = fails_and_aborts(&mut world);
    assert_eq!(
        replies(&out),
        [""; 0],
        "the store hasn't got the first one: {out:?}"
    );
    world
}

#[test]
fn a_replica_that_leaves_says_what_waited_behind_its_last_answer() {
    let mut world = alone_and_held();
    assert_eq!(world.input(terminated()), ["agent: state.flush"]);
    world.answer(2, json!({}));
    world.synced(1);
    let out = world.input(Input::Rested);
    assert_eq!(replies(&out), ["a error", "b aborted"], "{out:?}");
    assert!(
        out.iter().any(|line| line.starts_with("front: note leaving")),
        "{out:?}"
    );
}

/// The log has the loss while the next process already captures.
#[test]
fn a_lost_cell_is_told_at_once_although_replies_wait_for_effects() {
    let given = durably(settled(3)).map(|d| Durably {
        before_reply: true,
        ..d
    });
    let mut world = World::new(given);
    greet(&mut world);
    world.input(Input::KernelUp { pid: 7 });
    for id in 1..=3 {
        world.answer(id, json!({}));
    }
    world.input(Input::HandedBefore {
        cell: "a".into(),
        tenure: Tenure(2),
        behind: None::<Behind>,
        lacks: true,
    });
    assert_eq!(replies(&world.run("a", Value::Null)), ["a error CellLost"]);
    assert!(world.core.rests());
}

/// A silent request fires no `state.cell`: a later record names it.
#[test]
fn a_silent_request_is_saved_by_the_record_that_names_it() {
    let mut world = capturing();
    world.run_with("s", &json!({"code": "x = 1", "silent": true}), Value::Null);
    world.begins("s");
    world.reply("s", "ok");
    assert!(!world.core.rests());
    let said = json!({"cells": [{"msg_id": "s", "seq": 0}], "record": 1});
    assert_eq!(world.captured("state.record", said), ["append 1"]);
    world.synced(1);
    assert!(world.core.rests());
}

#[test]
fn a_record_completes_its_cells_though_the_last_one_is_a_subshells() {
    let mut world = capturing();
    world.run("a", Value::Null);
    let header = json!({"msg_id": "s", "msg_type": "execute_request", "subshell_id": "1"});
    world.request_as(header, super::Channel::Shell, &json!({}), &json!({"code": ""}));
    world.reply("a", "ok");
    let said = json!({"cells": [{"msg_id": "a"}, {"msg_id": "s"}], "record": 1});
    assert_eq!(
        world.captured("state.record", said),
        ["append 1"],
        "the subshell's reply isn't waited for"
    );
    world.synced(1);
    assert!(!world.core.rests(), "its cell would be lost");
    world.reply("s", "ok");
    assert!(world.core.rests());
}

/// What can't be captured is lost: the kernel isn't left with an executor that nobody asked for.
#[test]
fn a_kernel_that_the_log_lets_not_sleep_ends_with_its_group() {
    let mut world = grown();
    world.commits = true;
    world.run("a", Value::Null);
    world.reply("a", "ok");
    assert_eq!(world.input(orphaned()), ["agent: state.flush"]);
    let failed = json!({"whole": false, "why": "the store is full"});
    let out = world.answer(2, failed);
    let told = [
        "hopd: up",
        "sync",
        "disband",
        "hopd: kernel-ended",
        "front: note asleep nobody is there",
        "kill",
        "leave",
    ];
    assert_eq!(out, told);
    assert_eq!(world.after(Span::from_secs(60)), [""; 0], "once");
}

#[test]
fn a_kernel_that_is_not_saved_in_time_ends_with_its_group() {
    let mut world = grown();
    assert_eq!(world.input(orphaned()), ["agent: state.flush"]);
    let out = world.after(Span::from_secs(20));
    assert_eq!(out[0], "disband", "{out:?}");
    let hibernates = |e: &Entry| {
        matches!(
            e,
            Entry::Act {
                act: Act::Hibernated,
                ..
            }
        )
    };
    assert!(!world.proposed.iter().any(hibernates));

    let mut world = capturing();
    world.input(orphaned());
    let out = world.after(Span::from_secs(20));
    assert!(!out.contains(&"disband".into()), "it has none: {out:?}");
}
