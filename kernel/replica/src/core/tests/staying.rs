//! A kernel of which something isn't saved stays, unless its seat ends or nobody uses it any more.

use super::durable::capturing;
use super::group::grown;
use super::moving::moving;
use super::*;
use hop_api::message::MoveCause;

fn full() -> Value {
    json!({"whole": false, "why": "the store is full"})
}

fn asked_to_sleep(world: &mut World) -> Vec<String> {
    let (kernel, reason) = ("k".into(), "maintenance".into());
    world.hopd(News::Event(Event::Hibernate { kernel, reason }))
}

/// Whether `hopd` is told that the kernel's state is captured.
fn is_captured(world: &mut World) -> bool {
    let out = world.core.handle(Input::Hopd(News::Up), Timestamp(0));
    let captured = out.iter().find_map(|output| match output {
        Output::ToHopd(request) => match &**request {
            ToHopd::ReplicaUp(up) => Some(up.captured),
            _ => None,
        },
        _ => None,
    });
    captured.unwrap()
}

/// The next cell runs here, and its user reads why the kernel isn't saved.
fn runs_on(world: &mut World) {
    assert!(!is_captured(world));
    let out = world.run("b", Value::Null);
    assert!(out[0].contains("this kernel is not saved"), "{out:?}");
    assert_eq!(out[1..], ["kernel: execute_request b"]);
    let refused = world.asked_to_move(3, MoveCause::Drain);
    assert_eq!(refused, ["hopd: not moved 3 its state is not saved yet"]);
    assert_eq!(world.whole("b"), ["hopd: up", &*refused[0]]);
    assert!(is_captured(world));
}

/// No capture is tried again beside the first cells after a failure: their `later` says nothing of the store.
#[test]
fn a_kernel_is_unsaved_from_a_failed_capture_to_the_next_good_one() {
    let mut world = capturing();
    for (cell, status) in [("a", "whole"), ("b", "later")] {
        world.run(cell, Value::Null);
        world.captured("state.cell", json!({"msg_id": cell, "status": status}));
        world.reply(cell, "ok");
    }
    let full = || json!({"why": "the store is full", "since": 4});
    assert_eq!(world.captured("state.failed", full()), ["hopd: up"], "at once");
    assert!(!is_captured(&mut world));
    assert_eq!(world.captured("state.failed", full()), [""; 0], "it is known");
    let out = world.run("c", Value::Null);
    assert!(out[0].ends_with("this kernel is not saved since [4]"), "{out:?}");
    let later = json!({"msg_id": "c", "status": "later"});
    assert_eq!(world.captured("state.cell", later), [""; 0]);
    assert!(!is_captured(&mut world), "nothing was captured since");
    world.reply("c", "ok");
    assert_eq!(
        world.run("d", Value::Null),
        ["kernel: execute_request d"],
        "it is told once"
    );
    assert_eq!(world.whole("d"), ["hopd: up"]);
    assert!(is_captured(&mut world));
    world.reply("d", "ok");
    let out = world.run("e", Value::Null);
    assert!(out[0].contains("this kernel is saved again"), "{out:?}");
    assert_eq!(world.run("f", Value::Null).len(), 1);
}

/// Cells are captured while audits fail, and take nothing back.
#[test]
fn a_kernel_whose_audit_failed_is_unsaved_until_one_does_not() {
    let mut world = capturing();
    let missed = "changes outside of cells couldn't be saved: the store is full";
    assert_eq!(
        world.captured("state.failed", json!({"why": missed})),
        ["hopd: up"]
    );
    let told = world.core.durable.as_ref().unwrap().notices.concat();
    assert!(
        told.contains(&format!("this kernel is not saved: {missed}. ")),
        "{told}"
    );
    world.run("a", Value::Null);
    assert_eq!(world.captured("state.cell", captured("a", Some(missed))), [""; 0]);
    assert!(!is_captured(&mut world));
    world.reply("a", "ok");
    world.captured("state.record", json!({"cause": "cells", "why": missed}));
    assert!(!is_captured(&mut world));
    assert_eq!(
        world.run("b", Value::Null),
        ["kernel: execute_request b"],
        "it is told once"
    );
    assert_eq!(
        world.captured("state.record", json!({"cause": "audit"})),
        ["hopd: up"]
    );
    assert!(is_captured(&mut world));
    // A cell that fails meanwhile gives the cells' reason, and the next one the audit's again.
    world.captured("state.failed", json!({"why": missed}));
    world.captured("state.failed", json!({"why": "the log is away", "since": 4}));
    assert_eq!(world.captured("state.cell", captured("b", Some(missed))), [""; 0]);
    world.captured("state.cell", captured("b", None));
    assert!(is_captured(&mut world));
}

fn captured(cell: &str, missed: Option<&str>) -> Value {
    json!({"msg_id": cell, "status": "whole", "why": missed.unwrap_or_default()})
}

#[test]
fn a_user_who_read_that_the_kernel_is_not_saved_reads_of_the_next_processs_that_it_is() {
    let mut world = capturing();
    let full = json!({"why": "the store is full", "since": 4});
    assert_eq!(world.captured("state.failed", full), ["hopd: up"]);
    world.dies();
    let told = |world: &World| world.core.durable.as_ref().unwrap().notices.clone();
    assert!(!told(&world).concat().contains("is saved again"));
    world.reopened();
    let told = told(&world);
    let at = |words: &str| told.iter().position(|notice| notice.contains(words)).unwrap();
    assert!(at("is not saved since [4]") < at("is saved again"), "{told:?}");
}

#[test]
fn a_next_process_without_room_for_its_folder_is_not_called_saved_and_names_the_lost_cells_at_once() {
    let mut world = capturing();
    world.run("a", Value::Null);
    world.reply("a", "ok");
    let full = json!({"why": "the store is full", "since": 4});
    assert_eq!(world.captured("state.failed", full), ["hopd: up"]);
    world.dies();
    assert_eq!(world.in_sync(), ["open 2"]);
    let out = world.input(Input::StoreFailed("no room for its folder".into()));
    assert_eq!(out[0], "front: note tenure");
    let told = world.core.durable.as_ref().unwrap().notices.concat();
    assert!(told.contains("is not saved: no room for its folder"), "{told}");
    assert!(!told.contains("is saved again"), "{told}");
}

#[test]
fn hopd_knows_at_once_that_the_log_can_not_be_written_and_that_it_can_again() {
    let mut world = capturing();
    let failed = || Input::StoreFailed("the quota is used up".into());
    assert_eq!(world.input(failed()), ["hopd: up"]);
    assert!(!is_captured(&mut world));
    assert_eq!(world.input(failed()), [""; 0]);
    assert_eq!(world.input(Input::StoreMended), ["agent: state.begin"]);
    assert_eq!(world.answer(2, json!({})), ["hopd: up"]);
    assert!(is_captured(&mut world));
}

#[test]
fn a_kernel_whose_last_capture_fails_does_not_move() {
    let mut world = moving();
    assert_eq!(world.move_ready(2), ["agent: state.flush"]);
    let stays = [
        "hopd: up",
        "front: note move-off",
        "hopd: not moved 2 its state could not be saved: the store is full",
    ];
    assert_eq!(world.answer(2, full()), stays);
    runs_on(&mut world);

    let mut world = moving();
    world.move_ready(2);
    let out = world.refuse_agent(2);
    assert_eq!(out[..2], stays[..2]);
    assert!(out[2].starts_with("hopd: not moved 2 its state could not be saved"));
    assert_eq!(out.len(), 3);
    runs_on(&mut world);
}

#[test]
fn a_kernel_whose_last_capture_fails_is_not_put_to_sleep() {
    let mut world = capturing();
    assert_eq!(asked_to_sleep(&mut world), ["agent: state.flush"]);
    assert_eq!(world.run("a", Value::Null), [""; 0]);
    let out = world.answer(2, full());
    let stays = "hopd: stays its state could not be saved: the store is full";
    assert_eq!(out[..2], ["hopd: up", stays]);
    assert_eq!(out.last().unwrap(), "kernel: execute_request a", "{out:?}");
    assert!(!out.contains(&"kill".into()), "{out:?}");

    let mut world = capturing();
    asked_to_sleep(&mut world);
    let out = world.after(Span::from_secs(60));
    assert_eq!(out, ["hopd: stays its state could not be saved in time"]);
}

#[test]
fn a_kernel_with_all_saved_is_put_to_sleep() {
    let mut world = capturing();
    asked_to_sleep(&mut world);
    let out = world.answer(2, json!({"whole": true}));
    assert_eq!(out, ["sync", "write-state"]);
    let out = world.input(Input::Rested);
    let asleep = [
        "front: note settled",
        "hopd: hibernated",
        "front: note asleep maintenance",
    ];
    assert_eq!(out[..3], asleep);
    assert_eq!(out[3..], ["kill", "leave"]);
}

#[test]
fn a_store_that_fails_meanwhile_leaves_the_kernel_awake() {
    let mut world = capturing();
    asked_to_sleep(&mut world);
    let out = world.input(Input::StoreFailed("the quota is used up".into()));
    assert_eq!(
        out,
        [
            "hopd: up",
            "hopd: stays nothing can be written to its user's store"
        ]
    );
    assert_eq!(world.answer(2, json!({})), [""; 0], "it was for the sleep");
}

/// The log would refuse: no record has the cell's effects.
#[test]
fn a_kernel_with_a_cell_in_no_record_stays() {
    let mut world = moving();
    world.run("a", Value::Null);
    world.reply("a", "ok");
    world.move_ready(2);
    let out = world.answer(2, json!({}));
    let stays = "hopd: not moved 2 its state could not be saved";
    assert_eq!(out, ["sync", "front: note move-off", stays]);

    let mut world = capturing();
    world.run("a", Value::Null);
    world.reply("a", "ok");
    asked_to_sleep(&mut world);
    let out = world.answer(2, json!({}));
    assert_eq!(out, ["sync", "hopd: stays its state could not be saved"]);
}

#[test]
fn a_kernel_that_turns_out_bound_is_moved_by_its_user_alone() {
    let bound = || json!({"unmovable": ["sock: a socket"]});
    let mut world = moving();
    world.move_ready(2);
    let out = world.answer(2, bound());
    let stays = [
        "hopd: bound 1",
        "front: note move-off",
        "hopd: not moved 2 sock: a socket",
    ];
    assert_eq!(out, stays);

    let mut world = capturing();
    world.asked_to_move(2, MoveCause::Asked);
    world.move_ready(2);
    let out = world.answer(2, bound());
    let moves = ["hopd: bound 1", "sync", "front: note moving", "kill", "leave"];
    assert_eq!(out, moves);
}

#[test]
fn a_kernel_whose_log_refuses_the_move_stays() {
    let mut world = grown();
    world.asked_to_move(2, MoveCause::Waiting);
    assert_eq!(world.answer(2, json!({})), ["sync"]);
    let out = refused(&mut world);
    let stays = "hopd: not moved 2 its state could not be saved: replica 2 is no member";
    assert_eq!(out, ["front: note move-off", stays]);
    assert_eq!(world.run("a", Value::Null), ["kernel: execute_request a"]);
    assert_eq!(world.after(Span::from_secs(10)), [""; 0]);
}

/// The member has left before the order for its election is in the log.
fn refused(world: &mut World) -> Vec<String> {
    let incarnation = Incarnation(2);
    world.proposed.push_front(Entry::Left { incarnation });
    world.commit()
}

/// The front has heard that the cell has not begun.
#[test]
fn a_cell_that_was_handed_over_asks_again_where_it_runs_after_all() {
    for answered in [true, false] {
        let mut world = grown();
        world.permits = false;
        assert_eq!(world.run("a", Value::Null), ["front: note begins a"]);
        world.asked_to_move(2, MoveCause::Waiting);
        let may_begin = || Input::MayBegin { cell: "a".into() };
        if answered {
            assert_eq!(world.input(may_begin()), [""; 0]);
        }
        assert_eq!(world.answer(2, json!({})), ["sync", "front: note not-begun a"]);
        if !answered {
            assert_eq!(world.input(may_begin()), [""; 0], "it is too late");
        }
        let out = refused(&mut world);
        assert_eq!(out[0], "front: note move-off");
        assert_eq!(out[2..], ["front: note begins a"]);
        assert_eq!(world.input(may_begin()), ["kernel: execute_request a"]);
    }
}

/// A kernel with a lease that lingers; the group is asked to elect member 2.
fn lingering() -> World {
    let mut world = grown();
    world.run("g", gpu());
    world.grant("g", 7, 1);
    world.whole("g");
    world.reply("g", "ok");
    world.commit();
    world.synced(1);
    world.commit();
    world.input(Input::Rested);
    world.asked_to_move(2, MoveCause::Waiting);
    let out = world.answer(2, json!({}));
    assert!(!out.contains(&"hopd: release 7".into()), "{out:?}");
    world
}

#[test]
fn a_lease_that_lingers_goes_back_once_another_executor_is_elected() {
    let mut world = lingering();
    let out = refused(&mut world);
    assert!(!out.contains(&"hopd: release 7".into()), "{out:?}");
    let mut world = lingering();
    assert_eq!(world.commit(), ["hopd: release 7", "kill", "leave"]);
}

#[test]
fn a_kernel_that_must_leave_does_so_with_what_is_saved() {
    let mut world = moving();
    world.move_ready(2);
    world.input(terminated());
    let out = world.answer(2, full());
    assert_eq!(out, ["hopd: up", "sync", "front: note moving", "kill", "leave"]);

    let mut world = capturing();
    asked_to_sleep(&mut world);
    let reason = "nobody is there".into();
    assert_eq!(world.input(Input::Orphaned { reason }), [""; 0]);
    world.answer(2, full());
    let out = world.input(Input::Rested);
    assert!(out.contains(&"hopd: hibernated".into()), "{out:?}");
    assert_eq!(out.last().unwrap(), "leave");
}
