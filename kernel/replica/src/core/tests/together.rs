//! The effects of a cell that were captured before its reply go into the group's log with the cell's end.

use super::super::{Input, Output};
use super::World;
use super::durable::{capturing, durably, greet, state};
use super::group::grown;
use crate::agent::Parcel;
use bytes::Bytes;
use hop_log::{CellNumber, Entry};
use hop_words::id::{Incarnation, Tenure};
use hop_words::replica::Replicas;
use hop_words::time::Span;
use serde_json::{Value, json};

const LEAVES: [&str; 2] = ["front: note answered a", "front: execute_reply a ok"];

/// Cell `a` ran well, and was captured in time; its reply is being made.
fn ends_whole(world: &mut World) -> Vec<String> {
    world.run("a", Value::Null);
    world.begins("a");
    let said = json!({"msg_id": "a", "status": "whole", "plain": 3, "record": 1});
    world.captured("state.cell", said)
}

fn patience_of(replicas: Replicas) -> Value {
    let mut world = World::of(durably(state(1)), replicas);
    greet(&mut world);
    let out = world.core.handle(Input::KernelUp { pid: 7 }, world.now);
    let asked = out.into_iter().find_map(|output| match output {
        Output::ToAgent(parcel) => Some(parcel.wire.body),
        _ => None,
    });
    asked.unwrap()["patience_ms"].clone()
}

#[test]
fn captures_of_several_replicas_may_hold_up_replies_for_a_bounded_time() {
    assert_eq!(patience_of(Replicas::One), Value::Null);
    let patience = patience_of(Replicas::Three).as_f64().unwrap();
    assert!((1.0..=25.0).contains(&patience), "{patience} ms");
}

#[test]
fn a_cells_end_and_its_effects_are_one_entry() {
    let mut world = grown();
    assert_eq!(ends_whole(&mut world), ["append 1"]);
    assert_eq!(world.proposed.len(), 1);
    assert!(world.proposed[0].record().is_some_and(hop_log::Record::is_inline));
    assert_eq!(world.reply("a", "ok"), [""; 0], "it waits for the entry");
    assert_eq!(world.commit(), LEAVES);
    assert_eq!(world.core.durable_through(), CellNumber(1));
    assert_eq!(world.after(Span::from_secs(1)), [""; 0], "once");
}

/// The same of a cell whose reply isn't told before it is made.
#[test]
fn a_reply_that_was_waited_for_goes_with_its_effects() {
    let mut world = grown();
    world.run("a", Value::Null);
    world.begins("a");
    world.whole("a");
    assert_eq!(world.proposed.len(), 0);
    assert_eq!(world.reply("a", "ok"), ["append 1"]);
    assert_eq!(world.proposed.len(), 1);
    assert_eq!(world.commit(), LEAVES);
    assert_eq!(world.core.durable_through(), CellNumber(1));
}

#[test]
fn records_behind_it_have_the_next_numbers() {
    let mut world = grown();
    ends_whole(&mut world);
    let later = json!({"cells": [], "record": 2});
    assert_eq!(world.captured("state.record", later), ["append 2"]);
    world.reply("a", "ok");
    assert_eq!(world.commit(), LEAVES);
}

/// A megabyte and more takes its time on the way to the others.
#[test]
fn a_reply_does_not_wait_for_a_large_record() {
    let mut world = grown();
    world.run("a", Value::Null);
    world.begins("a");
    let mut parcel = Parcel::default();
    parcel.wire.op = Some("state.cell".into());
    parcel.wire.body = json!({"msg_id": "a", "status": "whole", "plain": 3, "record": 1});
    parcel.attachments = vec![Bytes::from_static(b"{}"), vec![0; 2 << 20].into()];
    assert_eq!(world.input(Input::Agent(parcel)), ["append 1"]);
    assert_eq!(world.proposed.len(), 2, "the end, and the record behind it");
    world.reply("a", "ok");
    assert_eq!(world.commit_one(), LEAVES);
    assert_eq!(world.core.durable_through(), CellNumber(0));
    world.commit();
    assert_eq!(world.core.durable_through(), CellNumber(1));
}

/// Its folder may have the end without the record.
#[test]
fn a_kernel_with_one_replica_records_them_apart() {
    let mut world = capturing();
    world.commits = false;
    world.run("a", Value::Null);
    world.whole("a");
    world.reply("a", "ok");
    assert_eq!(world.proposed.len(), 2);
    assert_eq!(world.commit_one(), LEAVES);
}

/// The next executor answers, with the loss.
#[test]
fn neither_counts_of_a_deposed_executor() {
    let mut world = grown();
    ends_whole(&mut world);
    world.reply("a", "ok");
    world.proposed.push_front(Entry::Tenure {
        tenure: Tenure(world.core.tenure().0 + 1),
        executor: Incarnation(2),
    });
    assert_eq!(world.commit(), ["kill", "leave"]);
    assert_eq!(world.after(Span::from_secs(1)), [""; 0]);
}

#[test]
fn a_process_that_dies_before_the_entry_is_committed_loses_both() {
    let mut world = grown();
    ends_whole(&mut world);
    world.reply("a", "ok");
    let late = world.proposed.pop_front().unwrap();
    world.dies();
    world.in_sync();
    let mut out = world.commit();
    world.proposed.push_back(late);
    out.extend(world.commit());
    let replies: Vec<_> = out.iter().filter(|l| l.contains("execute_reply a")).collect();
    assert_eq!(replies, ["front: execute_reply a error CellLost"]);
}
