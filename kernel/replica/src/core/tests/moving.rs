//! Moves: prepared while cells go on, made between two cells, given up wherever something fails.

use super::durable::capturing;
use super::*;
use hop_api::message::{MoveCause, SeatPlan};

fn seat(incarnation: u32) -> SeatPlan {
    SeatPlan {
        incarnation: Incarnation(incarnation),
        node: "n2".into(),
        existing: None,
        partition: None,
        mem_mib: 0,
        cpus: 1,
    }
}

impl World {
    pub(super) fn asked_to_move(&mut self, to: u32, cause: MoveCause) -> Vec<String> {
        let (kernel, victim, seat) = ("k".into(), Incarnation(1), seat(to));
        self.hopd(News::Event(Event::Move {
            kernel,
            victim,
            seat,
            cause,
        }))
    }

    pub(super) fn move_ready(&mut self, to: u32) -> Vec<String> {
        let incarnation = Incarnation(to);
        self.input(Input::MoveReady { incarnation })
    }
}

/// A kernel whose new replica waits.
pub(super) fn moving() -> World {
    let mut world = capturing();
    assert_eq!(
        world.asked_to_move(2, MoveCause::Drain),
        ["front: note move-asked"]
    );
    world
}

#[test]
fn an_idle_kernel_moves_once_it_is_expected() {
    let mut world = moving();
    assert_eq!(
        world.asked_to_move(2, MoveCause::Drain),
        [""; 0],
        "asked again, on a new connection"
    );
    assert_eq!(
        world.run("a", Value::Null),
        ["kernel: execute_request a"],
        "cells go on"
    );
    world.whole("a");
    world.reply("a", "ok");
    assert_eq!(world.move_ready(2), ["agent: state.flush"]);
    assert_eq!(world.run("b", Value::Null), [""; 0], "it is for the next replica");
    assert_eq!(world.answer(2, json!({})), ["sync"]);
    world.synced(1);
    let out = world.input(Input::Rested);
    assert_eq!(
        out,
        ["front: note settled", "front: note moving", "kill", "leave"]
    );
}

#[test]
fn a_running_cell_ends_first_however_long_it_takes() {
    let mut world = moving();
    world.run("a", Value::Null);
    assert_eq!(world.move_ready(2), [""; 0]);
    assert_eq!(world.after(Span::from_secs(10_000)), [""; 0]);
    world.whole("a");
    let out = world.reply("a", "ok");
    assert!(out.contains(&"agent: state.flush".into()), "{out:?}");
}

#[test]
fn a_cell_that_is_granted_its_lease_runs_first() {
    let mut world = moving();
    assert_eq!(world.run("g", gpu()), ["hopd: submit g 1 gpus"]);
    assert_eq!(world.move_ready(2), ["agent: state.flush"]);
    assert_eq!(world.grant("g", 7, 1), ["kernel: execute_request g lease 7"]);
    assert_eq!(world.answer(2, json!({})), [""; 0], "it lacks the cell");
    world.whole("g");
    let out = world.reply("g", "ok");
    assert!(out.contains(&"agent: state.flush".into()), "{out:?}");
    world.answer(3, json!({}));
    world.synced(1);
    let out = world.input(Input::Rested);
    let expected = [
        "front: note settled",
        "hopd: release 7",
        "front: note moving",
        "kill",
        "leave",
    ];
    assert_eq!(out, expected);
}

#[test]
fn a_cell_that_waits_for_a_gpu_waits_in_the_new_seat() {
    let mut world = moving();
    world.run("g", gpu());
    world.move_ready(2);
    let out = world.answer(2, json!({}));
    let expected = ["sync", "front: note moving", "kill", "leave"];
    assert_eq!(out, expected, "nobody cancels it");
}

#[test]
fn a_bound_kernel_is_moved_by_its_user_alone() {
    let mut world = capturing();
    world.run("a", Value::Null);
    world.captured(
        "state.cell",
        json!({"msg_id": "a", "status": "later", "unmovable": ["sock: a socket"]}),
    );
    world.reply("a", "ok");
    let out = world.asked_to_move(2, MoveCause::Waiting);
    assert_eq!(out, ["hopd: not moved 2 sock: a socket"]);
    assert_eq!(
        world.asked_to_move(3, MoveCause::Asked),
        ["front: note move-asked"]
    );
}

#[test]
fn a_target_that_fails_leaves_the_kernel_where_it_is() {
    for ready in [false, true] {
        let mut world = moving();
        world.run("a", Value::Null);
        if ready {
            world.move_ready(2);
        }
        let (incarnation, reason) = (Incarnation(2), "no room".into());
        let out = world.input(Input::MoveFailed { incarnation, reason });
        assert_eq!(out, ["hopd: not moved 2 no room"]);
        world.whole("a");
        world.reply("a", "ok");
        assert_eq!(world.run("b", Value::Null), ["kernel: execute_request b"]);
        // hopd may not have known this replica yet.
        assert_eq!(world.hopd(News::Up), ["hopd: up", "hopd: not moved 2 no room"]);
    }
}

#[test]
fn what_cannot_be_saved_in_time_stays() {
    let mut world = moving();
    world.move_ready(2);
    let out = world.after(Span::from_secs(20));
    let expected = [
        "front: note move-off",
        "hopd: not moved 2 its state could not be saved in time",
    ];
    assert_eq!(out, expected);
    assert_eq!(world.move_ready(2), ["front: note move-off"], "too late");
    assert_eq!(world.answer(2, json!({})), [""; 0]);
    assert_eq!(world.run("b", Value::Null), ["kernel: execute_request b"]);
}

#[test]
fn a_move_that_nobody_waits_for_is_given_up() {
    let mut world = moving();
    world.move_ready(2);
    let (kernel, incarnation) = ("k".into(), Incarnation(2));
    let withdrawn = Event::MoveWithdrawn { kernel, incarnation };
    assert_eq!(world.hopd(News::Event(withdrawn)), ["front: note move-off"]);
    let mut world = moving();
    let out = world.input(Input::FrontChanged);
    assert_eq!(out[0], "front: note move-off");
    assert!(out[1].starts_with("hopd: not moved 2"), "{out:?}");
    let mut world = moving();
    let out = world.input(Input::StoreFailed("the quota is used up".into()));
    assert_eq!(out[0], "hopd: up");
    assert_eq!(out.len(), 3, "{out:?}");
}

#[test]
fn a_seat_that_ends_meanwhile_is_left_in_time() {
    let mut world = moving();
    world.run("a", Value::Null);
    world.move_ready(2);
    assert_eq!(world.input(terminated()), [""; 0]);
    let out = world.after(Span::from_secs(2));
    assert_eq!(out, ["front: note moving", "kill", "leave"]);
}

#[test]
fn a_process_that_dies_before_the_move_comes_back_and_then_moves() {
    let mut world = moving();
    world.run("a", Value::Null);
    world.begins("a");
    world.move_ready(2);
    let out = world.dies();
    assert!(out.contains(&"start".into()), "{out:?}");
    world.reopened();
    world.heard_again();
    let out = world.answer(2, json!({}));
    assert_eq!(out.last().unwrap(), "agent: state.flush", "{out:?}");
}

#[test]
fn a_replica_that_came_since_the_order_says_that_it_has_to_be_asked_itself() {
    let mut world = capturing();
    let order = Event::Move {
        kernel: "k".into(),
        victim: Incarnation(7),
        seat: seat(2),
        cause: MoveCause::Asked,
    };
    let why =
        "its process was lost or restarted meanwhile, and the new one has to be asked again (`hop migrate`)";
    let out = world.hopd(News::Event(order));
    assert_eq!(out, [format!("hopd: not moved 2 {why}")]);
}

#[test]
fn a_moving_kernel_does_not_fall_asleep() {
    let mut world = moving();
    let (kernel, reason) = ("k".into(), "maintenance".into());
    let out = world.hopd(News::Event(Event::Hibernate { kernel, reason }));
    assert_eq!(out, ["hopd: stays it is being moved"]);
}

#[test]
fn a_kernel_whose_server_goes_sleeps_instead_of_moving() {
    let mut world = moving();
    world.move_ready(2);
    let reason = "its Jupyter server ends".into();
    let out = world.input(Input::Orphaned { reason });
    assert_eq!(out[0], "front: note move-off", "{out:?}");
    assert_eq!(out.last().unwrap(), "agent: state.flush", "{out:?}");
    assert_eq!(world.answer(2, json!({})), [""; 0], "it was for the move");
    assert_eq!(world.answer(3, json!({})), ["sync", "write-state"]);
    let out = world.input(Input::Rested);
    assert!(out.contains(&"hopd: hibernated".into()), "{out:?}");
}

fn in_subshell(world: &mut World, cell: &str) -> Vec<String> {
    let header = json!({"msg_id": cell, "msg_type": "execute_request", "subshell_id": "1"});
    world.request_as(header, Channel::Shell, &json!({}), &json!({"code": ""}))
}

#[test]
fn a_subshells_cell_ends_first_as_any_other() {
    let mut world = moving();
    assert_eq!(in_subshell(&mut world, "s"), ["kernel: execute_request s"]);
    assert!(!world.core.rests(), "the cell would be lost");
    assert_eq!(world.move_ready(2), [""; 0]);
    assert_eq!(world.after(Span::from_secs(10_000)), [""; 0]);
    let out = world.reply("s", "ok");
    assert_eq!(out, ["front: execute_reply s ok", "agent: state.flush"]);
}

#[test]
fn a_subshells_cell_that_dies_with_its_process_gives_the_reason_itself() {
    let mut world = capturing();
    in_subshell(&mut world, "s");
    let out = world.dies();
    assert!(
        out.contains(&"front: execute_reply s error CellLost".into()),
        "{out:?}"
    );
    world.reopened();
    world.heard_again();
    world.answer(2, json!({}));
    assert_eq!(world.run("a", Value::Null), ["kernel: execute_request a"]);
}

fn widget(world: &mut World, id: &str) -> Vec<String> {
    let content = json!({"comm_id": "w", "data": {"state": id}});
    world.request(Channel::Shell, "comm_msg", id, &json!({}), &content)
}

#[test]
fn what_comes_behind_the_last_capture_is_the_next_replicas() {
    let mut world = moving();
    assert_eq!(widget(&mut world, "5"), ["kernel: comm_msg  5"]);
    assert!(!world.core.keeps_back());
    assert_eq!(world.move_ready(2), ["agent: state.flush"]);
    assert!(world.core.keeps_back());
    assert_eq!(widget(&mut world, "6"), [""; 0], "no record would have it");
    assert_eq!(in_subshell(&mut world, "s"), [""; 0]);
    assert_eq!(
        world.answer(2, json!({})),
        [
            "sync",
            "front: note not-begun s",
            "front: note moving",
            "kill",
            "leave"
        ]
    );
    assert_eq!(widget(&mut world, "7"), [""; 0]);
    assert!(world.core.keeps_back(), "the front hands it on");
}

#[test]
fn a_kernel_that_stays_after_all_gets_what_was_kept_back() {
    let mut world = moving();
    world.move_ready(2);
    for id in ["5", "6"] {
        assert_eq!(widget(&mut world, id), [""; 0]);
    }
    in_subshell(&mut world, "s");
    let out = world.after(Span::from_secs(20));
    let expected = [
        "front: note move-off",
        "hopd: not moved 2 its state could not be saved in time",
        "kernel: comm_msg  5",
        "kernel: comm_msg  6",
        "kernel: execute_request s",
    ];
    assert_eq!(out, expected);
    assert!(!world.core.keeps_back());
}

/// What ran since is in no record of the earlier capture.
#[test]
fn the_answer_to_an_earlier_moves_capture_is_none_to_a_later_ones() {
    let mut world = moving();
    world.move_ready(2);
    world.after(Span::from_secs(20));
    world.run("a", Value::Null);
    world.asked_to_move(3, MoveCause::Drain);
    assert_eq!(world.move_ready(3), [""; 0], "a cell runs");
    assert_eq!(world.answer(2, json!({})), [""; 0]);
    assert!(!world.core.keeps_back());
    world.whole("a");
    let out = world.reply("a", "ok");
    assert!(out.contains(&"agent: state.flush".into()), "{out:?}");
    assert_eq!(world.answer(3, json!({})), ["sync"]);
}
