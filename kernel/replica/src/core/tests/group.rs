//! A kernel with three replicas, as its executor decides.

use super::super::{Durably, GroupStanding, Input, Lack, Output};
use super::durable::{durably, greet, state};
use super::{Place, World, gpu, grant, terminated};
use crate::leases::News;
use bytes::Bytes;
use hop_api::message::{Event, Grant, MoveCause, Request};
use hop_log::{Act, Entry, Payload, Record, RecordNumber, Sequence, State};
use hop_protocol::link::Item;
use hop_protocol::message::Note;
use hop_words::id::{Incarnation, JobId, Tenure};
use hop_words::replica::Replicas;
use hop_words::time::{Span, Timestamp};
use serde_json::{Value, json};

fn apply(state: &mut State, entry: &Entry) {
    state.apply(state.applied().next(), entry).unwrap();
}

fn led(leader: u32, voters: &[u32]) -> GroupStanding {
    GroupStanding {
        voters: voters.iter().copied().map(Incarnation).collect(),
        leader: Some(Incarnation(leader)),
        ..GroupStanding::default()
    }
}

/// A kernel with replicas 2 and 3 beside this one, which has founded the group.
pub(super) fn grown() -> World {
    grown_of(durably(state(1)))
}

pub(super) fn grown_of(durably: Option<Durably>) -> World {
    let mut world = World::of(durably, Replicas::Three);
    greet(&mut world);
    world.input(Input::KernelUp { pid: 7 });
    assert_eq!(world.answer(1, json!({})), ["front: note kernel-up", "found 3"]);
    world.hopd(News::Up);
    world.permits = true;
    world.input(Input::GroupState(Box::new(state(1))));
    for id in [2, 3] {
        let out = world.input(Input::Grown {
            incarnation: Incarnation(id),
            seat: JobId(id),
            node: format!("n{id}").as_str().into(),
        });
        assert_eq!(out, [""; 0]);
    }
    let out = world.input(Input::GroupStanding(led(1, &[1, 2, 3])));
    assert_eq!(out, ["front: note members", "hopd: up"]);
    world.commits = false;
    world
}

/// Elected for tenure 2, with so many records in the log alone.
pub(super) fn elected(mut state: State, records: u64) -> Option<Durably> {
    for number in 1..=records {
        let payload = Payload::Inline {
            text: Bytes::from_static(b"{}"),
            body: Bytes::from_static(b"body"),
        };
        let number = RecordNumber(number);
        let record = Record { number, payload };
        let entry = Entry::Act {
            tenure: state.tenure(),
            sequence: Sequence(number.0),
            act: Act::Record {
                record,
                through: None,
            },
        };
        apply(&mut state, &entry);
    }
    let tenure = Entry::Tenure {
        tenure: Tenure(state.tenure().0 + 1),
        executor: Incarnation(1),
    };
    apply(&mut state, &tenure);
    durably(state).map(|d| Durably { elected: true, ..d })
}

fn is_inline(entry: &Entry) -> bool {
    entry.record().is_some_and(Record::is_inline)
}

#[test]
fn a_process_takes_cells_once_the_group_has_its_tenure() {
    let mut world = grown();
    world.dies();
    assert_eq!(world.in_sync(), [""; 0], "the tenure is proposed");
    assert_eq!(world.heard_again(), [""; 0], "the group is slow");
    assert_eq!(world.run("a", Value::Null), [""; 0], "it waits");
    assert_eq!(world.commit(), ["open 2"]);
    assert_eq!(
        world.opened(),
        ["front: note tenure", "hopd: up", "agent: state.begin"]
    );
}

#[test]
fn a_reply_waits_for_the_group() {
    let mut world = grown();
    world.run("a", Value::Null);
    world.whole("a");
    let out = world.reply("a", "ok");
    assert!(!out.iter().any(|line| line.contains("execute_reply")), "{out:?}");
    let records = world.proposed.iter().filter(|e| is_inline(e));
    assert_eq!(records.count(), 1, "the record is in the log itself");
    let out = world.commit();
    assert_eq!(out, ["front: note answered a", "front: execute_reply a ok"]);
}

#[test]
fn a_kernel_is_at_rest_where_another_replica_could_go_on_without_a_loss() {
    let mut world = grown();
    assert!(world.core.rests(), "nothing has run");
    world.run("a", Value::Null);
    assert!(!world.core.rests(), "a cell runs");
    world.whole("a");
    world.reply("a", "ok");
    assert!(!world.core.rests(), "its end isn't in the log");
    world.commit();
    assert!(world.core.rests());
    world.run("b", Value::Null);
    world.reply("b", "ok");
    world.commit();
    assert!(!world.core.rests(), "its effects aren't captured");
    world.captured("state.record", json!({"cells": [{"msg_id": "b"}], "record": 2}));
    world.commit();
    assert!(world.core.rests());
    world.run("c", Value::Null);
    world.reply("c", "ok");
    world.captured(
        "state.record",
        json!({"cells": [{"msg_id": "c"}], "record": 3, "unmovable": ["sock: a socket"]}),
    );
    world.commit();
    assert!(!world.core.rests(), "it holds what can't be captured");
}

#[test]
fn a_kernel_without_a_log_never_rests() {
    let mut world = World::new(None);
    world.input(Input::KernelUp { pid: 7 });
    assert!(!world.core.rests());
}

/// `before-reply`: the group's disks are enough, and the store isn't waited for.
#[test]
fn a_reply_that_waits_for_its_effects_leaves_once_the_group_has_them() {
    let mut world = grown_of(durably(state(1)).map(|d| Durably {
        before_reply: true,
        ..d
    }));
    let leaves = ["a", "b"].map(|cell| {
        [
            format!("front: note answered {cell}"),
            format!("front: execute_reply {cell} ok"),
        ]
    });
    world.run("a", Value::Null);
    world.whole("a");
    world.reply("a", "ok");
    let mut out = world.commit();
    out.retain(|line| line != "sync");
    assert_eq!(out, leaves[0]);
    world.run("b", Value::Null);
    world.reply("b", "ok");
    assert_eq!(world.commit(), ["sync"], "the effects aren't captured yet");
    world.captured("state.record", json!({"cells": [{"msg_id": "b"}], "record": 2}));
    assert_eq!(world.commit(), leaves[1]);
}

#[test]
fn a_reply_that_is_made_after_its_effects_are_in_the_log_leaves_at_once() {
    let mut world = grown_of(durably(state(1)).map(|d| Durably {
        before_reply: true,
        ..d
    }));
    world.run("a", Value::Null);
    ends(&mut world, "a");
    world.captured("state.record", json!({"cells": [{"msg_id": "a"}], "record": 1}));
    world.commit();
    let mut out = world.reply("a", "ok");
    out.retain(|line| line.contains(" a"));
    assert_eq!(out, ["front: note answered a", "front: execute_reply a ok"]);
}

#[test]
fn an_entry_that_has_overtaken_another_comes_again() {
    let mut world = grown();
    world.run("a", Value::Null);
    world.reply("a", "ok");
    world.run("b", Value::Null);
    world.reply("b", "ok");
    let late = world.proposed.pop_front().unwrap();
    let overtaking = world.proposed.clone();
    assert_eq!(world.commit(), [""; 0]);
    world.proposed = overtaking;
    world.proposed.push_front(late);
    let out = world.commit();
    let replies = ["a", "b"].map(|cell| format!("front: execute_reply {cell} ok"));
    assert!(replies.iter().all(|reply| out.contains(reply)), "{out:?}");
}

fn ends(world: &mut World, cell: &str) -> Vec<String> {
    world.begins(cell);
    let said = json!({"msg_id": cell, "status": "later", "plain": 3});
    world.captured("state.cell", said)
}

#[test]
fn an_end_is_in_the_log_while_the_kernel_makes_the_reply() {
    let mut world = grown();
    world.run("a", Value::Null);
    assert_eq!(ends(&mut world, "a"), [""; 0]);
    assert_eq!(ends(&mut world, "a"), [""; 0]);
    assert_eq!(world.proposed.len(), 1, "once");
    assert_eq!(world.commit(), [""; 0], "the kernel's own reply is awaited");
    assert_eq!(world.place("a"), Some(Place::Running));
    let sent = ["front: note answered a", "front: execute_reply a ok"];
    assert_eq!(world.reply("a", "ok"), sent);
    assert!(world.proposed.is_empty());
}

/// Two sockets: a record may come before the reply that the kernel sent before it.
#[test]
fn a_record_that_overtakes_its_cells_reply_is_kept_behind_the_end() {
    let mut world = grown();
    world.run("a", Value::Null);
    ends(&mut world, "a");
    let said = json!({"record": 1, "cells": [{"msg_id": "a"}], "cause": "cells"});
    assert_eq!(world.captured("state.record", said), ["append 1"]);
    assert_eq!(world.proposed.len(), 2);
    assert_eq!(world.commit(), [""; 0]);
    let sent = ["front: note answered a", "front: execute_reply a ok"];
    assert_eq!(world.reply("a", "ok"), sent);
}

#[test]
fn a_reply_that_is_made_sooner_waits_for_the_group() {
    let mut world = grown();
    world.run("a", Value::Null);
    ends(&mut world, "a");
    // An interrupt that came behind the cell's end.
    let out = world.reply("a", "error");
    assert!(!out.iter().any(|line| line.contains("execute_reply")), "{out:?}");
    assert_eq!(
        world.commit(),
        ["front: note answered a", "front: execute_reply a error"]
    );
}

#[test]
fn a_process_that_dies_while_it_makes_the_reply_costs_no_cell() {
    for committed in [false, true] {
        let mut world = grown();
        world.run_with("a", &json!({"code": "%%retry\n1"}), Value::Null);
        ends(&mut world, "a");
        if committed {
            assert_eq!(world.commit(), [""; 0]);
        }
        let mut out = world.dies();
        out.extend(world.commit());
        let mut of_cell: Vec<&String> = out.iter().filter(|line| line.contains(" a")).collect();
        of_cell.sort();
        let told = [
            "front: execute_reply a ok",
            "front: note answered a",
            "front: status a idle",
            "front: stream a gresshopper: the kernel's process or node was lost right after this cell had ended",
        ];
        assert_eq!(of_cell, told, "it isn't run again");
    }
}

/// The next executor, of a log with everything that this one proposed. It is handed the cell again.
fn handed_on(world: &World, cell: &str) -> World {
    let mut state = state(1);
    for entry in &world.proposed {
        apply(&mut state, entry);
    }
    let mut next = World::of(elected(state, 0), Replicas::Three);
    next.input(Input::HandedBefore {
        cell: cell.into(),
        tenure: Tenure(1),
        behind: None,
        lacks: false,
    });
    next
}

#[test]
fn the_next_executor_says_what_may_be_missing() {
    let mut world = grown();
    world.run("a", Value::Null);
    ends(&mut world, "a");
    let said = json!({"record": 1, "cells": [{"msg_id": "a"}], "cause": "cells"});
    world.captured("state.record", said);
    let mut next = handed_on(&world, "a");
    let told = [
        "front: stream a gresshopper: the kernel's process or node was lost right after this cell had ended",
        "front: note answered a",
        "front: execute_reply a ok",
        "front: status a idle",
    ];
    assert_eq!(next.run("a", Value::Null), told);
}

/// The earlier executor's own word of the end may have been lost with its link, and clients wait for it.
#[test]
fn an_answer_from_the_log_ends_the_cell_for_its_client() {
    let mut world = grown();
    world.run("a", Value::Null);
    world.whole("a");
    world.reply("a", "ok");
    let mut next = handed_on(&world, "a");
    // The front names the cell, should its effects be lost later.
    let told = [
        "front: note answered a",
        "front: execute_reply a ok",
        "front: status a idle",
    ];
    assert_eq!(next.run("a", Value::Null), told);
}

/// The client has no reply, and the effects are gone.
#[test]
fn an_answer_without_its_effects_is_not_given() {
    for ahead in [false, true] {
        let mut world = grown();
        world.run("a", Value::Null);
        match ahead {
            true => drop(ends(&mut world, "a")),
            false => drop(world.reply("a", "ok")),
        }
        let mut next = handed_on(&world, "a");
        let told = next.run("a", Value::Null);
        assert!(
            told.contains(&"front: execute_reply a error CellLost".into()),
            "{told:?}"
        );
        assert!(!told.iter().any(|line| line.ends_with("a ok")), "{told:?}");

        let mut next = handed_on(&world, "a");
        let told = next.run_with("a", &json!({"code": "%%retry\n1"}), Value::Null);
        assert_eq!(told, [""; 0], "it waits to run again");
    }
}

#[test]
fn a_cell_with_a_lease_and_a_kernel_without_a_group_wait_for_the_reply() {
    let mut world = grown();
    world.run("g", gpu());
    world.grant("g", 6, 1);
    assert_eq!(ends(&mut world, "g"), [""; 0]);
    assert!(world.proposed.is_empty(), "{:?}", world.proposed);
    let mut world = super::durable::capturing();
    world.run("a", Value::Null);
    world.commits = false;
    assert_eq!(ends(&mut world, "a"), [""; 0]);
    assert!(world.proposed.is_empty(), "{:?}", world.proposed);
}

#[test]
fn an_end_that_its_own_executors_next_tenure_overtakes_is_a_loss() {
    let mut world = grown();
    world.run("a", Value::Null);
    world.reply("a", "ok");
    let late = world.proposed.pop_front().unwrap();
    world.dies();
    world.in_sync();
    world.commit();
    world.proposed.push_back(late);
    let out = world.commit();
    assert_eq!(
        out.last().unwrap(),
        "front: execute_reply a error CellLost",
        "{out:?}"
    );
}

#[test]
fn an_executor_that_was_replaced_leaves_without_a_word() {
    let mut world = grown();
    world.run("a", Value::Null);
    world.reply("a", "ok");
    world.proposed.push_front(Entry::Tenure {
        tenure: Tenure(world.core.tenure().0 + 1),
        executor: Incarnation(2),
    });
    assert_eq!(world.commit(), ["kill", "leave"]);
}

#[test]
fn a_new_executor_reads_what_the_log_has_and_the_store_lacks() {
    let mut world = World::of(elected(state(1), 2), Replicas::Three);
    world.commits = false;
    assert_eq!(world.input(Input::Elected), ["open 2"]);
    greet(&mut world);
    let out = world.input(Input::KernelUp { pid: 7 });
    assert_eq!(out, [""; 0], "nothing is read yet");
    let out = world.opened();
    assert_eq!(
        out,
        ["front: note tenure", "hopd: up", "append 1", "append 2", "sync"]
    );
    assert_eq!(world.synced(2), [""; 0], "the log doesn't know of it yet");
    assert_eq!(world.commit(), ["write-state", "agent: state.begin"]);
}

#[test]
fn a_seat_that_ends_hands_the_kernel_to_another_member() {
    let mut world = grown();
    assert_eq!(world.input(terminated()), ["agent: state.flush"]);
    assert_eq!(world.answer(2, json!({}))[0], "sync");
    world.in_sync();
    let moved = |e: &Entry| matches!(e, Entry::Act { act: Act::Moved { to }, .. } if *to == Incarnation(2));
    assert!(world.proposed.iter().any(moved), "{:?}", world.proposed);
    assert_eq!(world.proposed.len(), 1, "once");
    assert_eq!(world.commit(), ["kill", "leave"]);
}

#[test]
fn a_move_to_a_member_is_an_election() {
    let mut world = grown();
    let out = world.asked_to_move(3, MoveCause::Waiting);
    assert_eq!(out, ["agent: state.flush"], "no seat is prepared");
    assert_eq!(world.answer(2, json!({}))[0], "sync");
    world.in_sync();
    let moved = |e: &Entry| matches!(e, Entry::Act { act: Act::Moved { to }, .. } if *to == Incarnation(3));
    assert!(world.proposed.iter().any(moved), "{:?}", world.proposed);
    assert_eq!(world.proposed.len(), 1, "once");
    assert!(!world.core.has_successor());
    assert_eq!(world.commit(), ["kill", "leave"]);
    assert!(world.core.has_successor(), "the kernel's folder is its");
}

/// A kernel that is to move to member 3, in whose seat a replica is being prepared.
fn preparing() -> World {
    let mut world = grown();
    let out = world.asked_to_move(3, MoveCause::Drain);
    assert_eq!(out, ["front: note move-asked"]);
    assert_eq!(
        world.run("a", Value::Null),
        ["kernel: execute_request a"],
        "cells go on"
    );
    world.whole("a");
    world.reply("a", "ok");
    world.commit();
    world
}

#[test]
fn a_member_is_elected_once_a_replica_in_its_seat_follows_the_log() {
    let mut world = preparing();
    let incarnation = Incarnation(3);
    assert_eq!(
        world.input(Input::MoveReady { incarnation }),
        ["agent: state.flush"]
    );
    assert_eq!(world.run("b", Value::Null), [""; 0], "it is for the next replica");
    assert_eq!(pass(&mut world, 15), [""; 0], "nothing is prepared any more");
}

#[test]
fn a_member_without_a_replica_that_follows_is_elected_all_the_same() {
    let mut world = preparing();
    let (incarnation, reason) = (Incarnation(3), "no room".to_owned());
    let out = world.input(Input::MoveFailed { incarnation, reason });
    assert_eq!(out, ["agent: state.flush"]);
    let (incarnation, reason) = (Incarnation(3), "it ended".to_owned());
    let out = world.input(Input::MoveFailed { incarnation, reason });
    assert_eq!(out, [""; 0], "its seat starts another one");

    let mut world = preparing();
    assert_eq!(pass(&mut world, 11), [""; 0]);
    assert_eq!(
        pass(&mut world, 1),
        ["front: note move-off", "agent: state.flush"]
    );
}

/// The seat ends, and the kernel goes to the third member.
fn hands_over_to_the_third(world: &mut World) {
    world.input(terminated());
    world.answer(2, json!({}));
    world.synced(1);
    world.commit();
    world.input(Input::Rested);
    let moved = |e: &Entry| matches!(e, Entry::Act { act: Act::Moved { to }, .. } if *to == Incarnation(3));
    assert!(world.proposed.iter().any(moved), "{:?}", world.proposed);
}

#[test]
fn a_seat_that_ends_hands_over_to_the_member_that_is_prepared() {
    let mut world = preparing();
    hands_over_to_the_third(&mut world);
}

/// Its seat says that the third member keeps the kernel's variables, or doesn't.
fn becomes(world: &mut World, hot: bool) -> Vec<String> {
    let entry = Entry::Join {
        incarnation: Incarnation(3),
        seat: JobId(3),
        node: "n3".into(),
        hot,
    };
    let index = world.core.applied_index().next();
    world.input(Input::Applied { index, entry })
}

#[test]
fn hopd_hears_which_standby_is_hot_and_a_move_there_needs_no_preparation() {
    let mut world = grown();
    assert_eq!(becomes(&mut world, true), ["hopd: up"]);
    assert_eq!(
        world.asked_to_move(3, MoveCause::Drain),
        ["agent: state.flush"],
        "its process has the variables already"
    );

    let mut world = grown();
    becomes(&mut world, true);
    assert_eq!(becomes(&mut world, false), ["hopd: up"]);
    assert_eq!(
        world.asked_to_move(3, MoveCause::Drain),
        ["front: note move-asked"]
    );
}

/// The leader that `hopd` hears of, and how far each standby is behind.
fn told(world: &mut World, standing: GroupStanding) -> (Option<u32>, Vec<Option<u64>>) {
    let out = world.core.handle(Input::GroupStanding(standing), Timestamp(0));
    let up = out.into_iter().find_map(|output| match output {
        Output::ToHopd(request) => match *request {
            Request::ReplicaUp(up) => Some(up),
            _ => None,
        },
        _ => None,
    });
    let up = up.expect("hopd is told");
    let behind = up.standbys.iter().map(|s| s.behind);
    (up.leader.map(|l| l.0), behind.collect())
}

#[test]
fn hopd_hears_who_leads_and_how_far_each_standby_is_behind() {
    let mut world = grown();
    let lacking = |lacking: &[(u32, Option<u64>)]| GroupStanding {
        lacking: lacking.iter().map(|(m, n)| (Incarnation(*m), *n)).collect(),
        ..led(1, &[1, 2, 3])
    };
    let standing = lacking(&[(3, Some(1204))]);
    assert_eq!(
        told(&mut world, standing.clone()),
        (Some(1), vec![Some(0), Some(1204)])
    );
    assert_eq!(
        world.input(Input::GroupStanding(standing)),
        [""; 0],
        "nothing has changed"
    );
    let silent = lacking(&[(3, None)]);
    assert_eq!(told(&mut world, silent), (Some(1), vec![Some(0), None]));
    let by_another = led(2, &[1, 2, 3]);
    assert_eq!(
        told(&mut world, by_another),
        (Some(2), vec![Some(0), None]),
        "only the leader knows of the others"
    );
}

#[test]
fn a_seat_that_ends_hands_over_to_the_hot_standby() {
    let mut world = grown();
    becomes(&mut world, true);
    world.run("a", Value::Null);
    world.whole("a");
    world.reply("a", "ok");
    world.commit();
    hands_over_to_the_third(&mut world);
}

#[test]
fn a_process_that_has_followed_the_log_restores_nothing() {
    let said = json!({"lost": {"f": "a socket"}, "notices": [], "unmovable": []});
    let mut next = World::of(
        elected(state(1), 1).map(|d| Durably {
            restored: Some(said),
            ..d
        }),
        Replicas::Three,
    );
    next.input(Input::Elected);
    let out = next.input(Input::KernelUp { pid: 7 });
    assert_eq!(out, [""; 0], "the tenure's folder isn't open");
    let out = next.opened();
    assert!(
        out.contains(&"agent: state.begin".into()),
        "captures begin: {out:?}"
    );
    assert!(!out.iter().any(|o| o.contains("restore")), "{out:?}");
    let out = next.answer(1, json!({}));
    assert!(out.contains(&"front: note kernel-up".into()), "{out:?}");
}

#[test]
fn a_member_that_is_gone_is_not_elected() {
    let mut world = grown();
    world.run("a", Value::Null);
    assert_eq!(world.asked_to_move(3, MoveCause::Waiting), [""; 0], "a cell runs");
    let out = world.input(Input::GroupStanding(led(1, &[1, 2])));
    assert_eq!(
        out,
        [
            "front: note members",
            "hopd: up",
            "front: note move-off",
            "hopd: not moved 3 the replica there is gone"
        ]
    );
    world.reply("a", "ok");
    assert_eq!(
        world.run("b", Value::Null),
        ["kernel: execute_request b"],
        "it goes on here"
    );
}

#[test]
fn an_election_waits_for_what_is_on_its_way_to_the_log() {
    let mut world = grown();
    world.asked_to_move(3, MoveCause::Waiting);
    world.input(Input::Grown {
        incarnation: Incarnation(4),
        seat: JobId(4),
        node: "n4".into(),
    });
    world.answer(2, json!({}));
    assert_eq!(world.in_sync(), [""; 0], "a member is about to join");
    let out = world.commit();
    assert_eq!(out.last().map(String::as_str), Some("leave"), "{out:?}");
}

/// Lets so many seconds pass.
fn pass(world: &mut World, seconds: u64) -> Vec<String> {
    world.now = world.now + Span::from_secs(seconds);
    world.input(Input::Tick)
}

#[test]
fn a_group_that_takes_no_entries_is_given_up_and_the_kernel_saved() {
    let mut world = grown();
    world.run("a", Value::Null);
    world.whole("a");
    world.reply("a", "ok");
    assert!(!world.proposed.is_empty());
    assert_eq!(pass(&mut world, 14), [""; 0], "it may be an election");
    world.commits = true;
    let out = pass(&mut world, 1);
    assert_eq!(
        out,
        ["go-alone", "agent: state.flush"],
        "its client is answered by the next replica"
    );
    assert_eq!(world.answer(2, json!({}))[0], "sync");
    assert_eq!(world.synced(1), ["write-state"]);
    let out = world.input(Input::Rested);
    assert_eq!(
        out,
        [
            "front: note settled",
            "front: note leaving most of its replicas are out of reach",
            "kill",
            "leave"
        ],
        "the front starts the next one"
    );
}

#[test]
fn a_group_that_is_given_up_leaves_the_kernels_own_reply() {
    let mut world = grown();
    world.run("a", Value::Null);
    ends(&mut world, "a");
    let ahead = |entry: &Entry| match entry {
        Entry::Act {
            act: Act::Ended { reply, .. },
            ..
        } => String::from_utf8_lossy(reply).contains("written_ahead"),
        _ => false,
    };
    assert!(world.proposed.drain(..).all(|entry| ahead(&entry)));
    world.reply("a", "ok");
    assert_eq!(pass(&mut world, 15), ["go-alone", "agent: state.flush"]);
    assert_eq!(world.proposed.len(), 1);
    assert!(!ahead(&world.proposed[0]), "nothing of it may be missing");
    assert_eq!(world.commit(), [""; 0], "the next executor answers");
}

#[test]
fn a_cell_runs_to_its_end_in_a_group_that_is_given_up() {
    let mut world = grown();
    world.input(Input::Heard {
        cells: 0,
        losses: Tenure(1),
    });
    world.run("a", Value::Null);
    world.commits = true;
    assert_eq!(pass(&mut world, 15), ["go-alone"]);
    let out = world.reply("a", "ok");
    assert_eq!(out, ["agent: state.flush"], "nobody hears of its end from here");
}

#[test]
fn a_process_that_was_stopped_gives_its_group_time() {
    let mut world = grown();
    world.run("a", Value::Null);
    world.reply("a", "ok");
    assert_eq!(pass(&mut world, 60), [""; 0]);
    assert_eq!(pass(&mut world, 14), [""; 0]);
    assert_eq!(world.commit().last().unwrap(), "front: execute_reply a ok");
    assert_eq!(pass(&mut world, 14), [""; 0], "nothing is on its way");
}

#[test]
fn a_kernel_that_is_over_ends_its_group() {
    let mut world = grown();
    assert_eq!(world.input(Input::End), ["kill"]);
    assert_eq!(
        world.dies(),
        ["front: note kernel-over shutdown", "disband", "leave"]
    );
}

#[test]
fn without_a_group_the_kernel_stays_with_one_replica() {
    let mut world = World::of(durably(state(1)), Replicas::Three);
    greet(&mut world);
    world.input(Input::KernelUp { pid: 7 });
    world.answer(1, json!({}));
    world.permits = true;
    world.input(Input::NotFounded);
    world.run("a", Value::Null);
    world.whole("a");
    let out = world.reply("a", "ok");
    assert!(out.contains(&"front: execute_reply a ok".to_owned()), "{out:?}");
    assert_eq!(world.core.members(), 0);
    // The disk of its log may have room by now. An entry that is on its way comes first.
    world.now = world.core.due().unwrap();
    assert_eq!(world.input(Input::Tick), ["found 3"]);
    world.input(Input::NotFounded);
    // A store that fails is waited for.
    let again = |world: &mut World| {
        world.now = world.now + Span::from_secs(60);
        world.input(Input::Tick)
    };
    world.input(Input::StoreFailed("full".into()));
    assert_eq!(again(&mut world), [""; 0]);
    world.input(Input::StoreMended);
    world.answer(2, json!({}));
    assert_eq!(again(&mut world), ["found 3"]);
    world.input(Input::NotFounded);
    // Nobody would answer.
    world.input(Input::KeeperGone);
    assert_eq!(again(&mut world), [""; 0]);
    assert_eq!(world.core.due(), None);
    let lacks = Input::Lacks(Lack {
        replicas: 2,
        gone: [].into(),
        failed: [].into(),
    });
    let told = world.core.handle(lacks, world.now);
    assert!(matches!(&told[..], [Output::ToFront(_)]), "{told:?}");
}

#[test]
fn a_gone_members_node_may_have_the_next_one_and_a_failed_ones_if_no_other_is_left() {
    let mut world = grown();
    let lacks = Input::Lacks(Lack {
        replicas: 1,
        gone: [Incarnation(2)].into(),
        failed: [Incarnation(3)].into(),
    });
    let told = world.core.handle(lacks, world.now);
    let [Output::ToFront(Item::Note(Note::Grow { nodes, last, .. }))] = &told[..] else {
        panic!("{told:?}");
    };
    assert_eq!((&nodes[..], &last[..]), (&["n1".into()][..], &["n3".into()][..]));
}

/// `hopd` has lent to an executor that this one has replaced, or says so of one that has replaced this one.
#[test]
fn a_lease_of_another_executors_goes_back_and_the_cell_asks_again() {
    let mut world = grown();
    let lent = |lease, executor, node: &str| {
        let grant = Grant {
            executor: Incarnation(executor),
            node: node.into(),
            ..grant(lease, 1)
        };
        let (kernel, cell) = ("k".into(), "g".into());
        News::Event(Event::Granted { kernel, cell, grant })
    };
    assert_eq!(world.run("g", gpu()), ["hopd: submit g 1 gpus"]);
    let again = ["hopd: release 5", "hopd: up waits g"];
    assert_eq!(world.hopd(lent(5, 2, "n2")), again);
    assert_eq!(world.hopd(lent(5, 1, "n2")), again);
    assert_eq!(world.place("g"), Some(Place::Asked));
    assert_eq!(
        world.hopd(lent(6, 1, "n1")),
        ["kernel: execute_request g lease 6"]
    );
    // Said again to all of the kernel's processes, and of a cell that doesn't wait here.
    assert_eq!(world.hopd(lent(5, 2, "n2")), [""; 0]);
}

#[test]
fn without_a_log_another_executors_lease_may_be_the_successors() {
    let mut world = World::up();
    world.run("g", gpu());
    let grant = Grant {
        executor: Incarnation(2),
        ..grant(5, 1)
    };
    let (kernel, cell) = ("k".into(), "g".into());
    let out = world.hopd(News::Event(Event::Granted { kernel, cell, grant }));
    assert_eq!(out, [""; 0]);
    assert_eq!(world.grant("g", 6, 1), ["kernel: execute_request g lease 6"]);
}

/// A front after a killed one sends a request that the replica doesn't name: the cell would run twice.
#[test]
fn each_request_is_named_until_its_reply_leaves() {
    let mut world = grown();
    let named = |world: &World| {
        let hello = world.core.introduces(crate::link::tests::hello());
        (hello.in_flight.len(), hello.answered.unwrap())
    };
    world.run("a", Value::Null);
    assert_eq!(named(&world), (1, Vec::new()));
    world.whole("a");
    world.reply("a", "ok");
    assert_eq!(
        named(&world),
        (0, vec!["a".into()]),
        "the log doesn't have it yet"
    );
    world.commit();
    assert_eq!(named(&world), (0, Vec::new()), "the link has it");
}
