//! Kernels that outlive their process: the conversation with the agent, answers through the log, the way back.

use super::*;
use hop_log::Sequence;
use hop_protocol::content::Stores;
use hop_protocol::message::Behind;

/// The state in which a front has opened tenure `n`.
pub(super) fn state(n: u64) -> State {
    let mut state = State::new();
    let incarnation = Incarnation(1);
    let seat = hop_words::id::JobId(1);
    let join = Entry::Join {
        incarnation,
        seat,
        node: "n1".into(),
        hot: false,
    };
    state.apply(Index(1), &join).unwrap();
    for n in 1..=n {
        let entry = Entry::Tenure {
            tenure: Tenure(n),
            executor: incarnation,
        };
        state.apply(state.applied().next(), &entry).unwrap();
    }
    state
}

/// The same with a record in the store.
pub(super) fn settled(n: u64) -> State {
    let mut state = state(n - 1);
    let record = hop_log::Record {
        number: RecordNumber(1),
        payload: hop_log::Payload::Folder,
    };
    let act = hop_log::Act::Record {
        record,
        through: None,
    };
    let (tenure, sequence) = (state.tenure(), Sequence(1));
    state
        .apply(
            state.applied().next(),
            &Entry::Act {
                tenure,
                sequence,
                act,
            },
        )
        .unwrap();
    let settled = Settled {
        tenure,
        part: 0,
        upto: RecordNumber(1),
        length: 99,
        mac: "00".into(),
    };
    state
        .apply(state.applied().next(), &Entry::Settled { settled })
        .unwrap();
    let entry = Entry::Tenure {
        tenure: Tenure(n),
        executor: Incarnation(1),
    };
    state.apply(state.applied().next(), &entry).unwrap();
    state
}

pub(super) fn durably(state: State) -> Option<Durably> {
    let stores = Stores {
        store: "/store".into(),
        others: vec!["/home".into()],
    };
    Some(Durably {
        elected: false,
        restored: None,
        state,
        folder: "/states/k".into(),
        stores,
        before_reply: false,
        silent: None,
        found_again: true,
    })
}

/// A kernel that captures, with `hopd` there.
pub(super) fn capturing() -> World {
    let mut world = World::new(durably(state(1)));
    greet(&mut world);
    assert_eq!(world.input(Input::KernelUp { pid: 7 }), ["agent: state.begin"]);
    assert_eq!(world.answer(1, json!({})), ["front: note kernel-up"]);
    world.hopd(News::Up);
    world.permits = true;
    world
}

/// A kernel whose replies wait for the store.
pub(super) fn answering_from_the_store() -> World {
    let mut world = World::new(durably(state(1)).map(|d| Durably {
        before_reply: true,
        ..d
    }));
    greet(&mut world);
    world.input(Input::KernelUp { pid: 7 });
    world.answer(1, json!({}));
    world.permits = true;
    world
}

pub(super) fn greet(world: &mut World) {
    assert_eq!(
        world.agent(1, "hello", json!({"version": 1})),
        ["agent: answer null"]
    );
}

impl World {
    pub(super) fn answer(&mut self, id: u64, ok: Value) -> Vec<String> {
        let parcel = Parcel::answer(id, ok);
        self.input(Input::Agent(parcel))
    }

    pub(super) fn refuse_agent(&mut self, id: u64) -> Vec<String> {
        let parcel = Parcel::refuse(id, "failed", "no");
        self.input(Input::Agent(parcel))
    }

    pub(super) fn captured(&mut self, op: &str, body: Value) -> Vec<String> {
        let mut parcel = Parcel::default();
        (parcel.wire.op, parcel.wire.body) = (Some(op.into()), body);
        if parcel.wire.body["record"].is_u64() {
            parcel.attachments = vec![Bytes::from_static(b"{}"), Bytes::from_static(b"body")];
        }
        self.input(Input::Agent(parcel))
    }

    pub(super) fn begins(&mut self, cell: &str) {
        assert_eq!(self.captured("state.begins", json!({"msg_id": cell})), [""; 0]);
    }

    pub(super) fn whole(&mut self, cell: &str) -> Vec<String> {
        self.captured(
            "state.cell",
            json!({"msg_id": cell, "status": "whole", "record": 1}),
        )
    }

    pub(super) fn dies(&mut self) -> Vec<String> {
        let exit = Exit {
            reason: "it ran out of memory".into(),
            killed: false,
        };
        self.input(Input::Exited(exit))
    }

    pub(super) fn synced(&mut self, upto: u64) -> Vec<String> {
        let (length, mac) = (100, "11".into());
        self.input(Input::Synced(Settled {
            tenure: self.core.tenure(),
            part: 0,
            upto: RecordNumber(upto),
            length,
            mac,
        }))
    }

    /// The last order to have all records on disk is carried out.
    pub(super) fn in_sync(&mut self) -> Vec<String> {
        self.input(Input::InSync(self.sync))
    }

    /// The present tenure's folder is open.
    pub(super) fn opened(&mut self) -> Vec<String> {
        self.input(Input::TenureOpened(self.core.tenure()))
    }

    /// After a death: nothing waits to be written, and the next tenure is open.
    pub(super) fn reopened(&mut self) {
        let out = self.in_sync();
        assert!(out[0].starts_with("open "), "{out:?}");
        self.opened();
    }

    /// After a death: the new process is heard and greets.
    pub(super) fn heard_again(&mut self) -> Vec<String> {
        greet(self);
        self.input(Input::KernelUp { pid: 8 })
    }
}

#[test]
fn a_new_kernel_begins_to_capture() {
    let mut world = World::new(durably(state(1)));
    assert_eq!(world.run("a", Value::Null), [""; 0], "it waits");
    assert_eq!(
        world.input(Input::KernelUp { pid: 7 }),
        [""; 0],
        "the agent may still come"
    );
    greet_later(&mut world);
    assert_eq!(
        world.answer(1, json!({})),
        ["front: note kernel-up", "front: note begins a"]
    );
    let out = world.input(Input::MayBegin { cell: "a".into() });
    assert_eq!(out, ["kernel: execute_request a"]);
}

fn greet_later(world: &mut World) {
    let out = world.agent(1, "hello", json!({"version": 1}));
    assert_eq!(out, ["agent: answer null", "agent: state.begin"]);
}

#[test]
fn a_kernel_goes_on_from_its_settled_state() {
    let mut world = World::new(durably(settled(2)));
    greet(&mut world);
    world.input(Input::KernelUp { pid: 7 });
    assert_eq!(world.answer(1, json!({})), ["agent: state.restore"]);
    let lost = json!({"lost": {"sock": "a socket"}});
    assert_eq!(world.answer(2, lost), ["agent: state.begin"]);
    assert_eq!(world.answer(3, json!({})), ["front: note kernel-up"]);
    world.permits = true;
    let out = world.run("a", Value::Null);
    assert_eq!(out.len(), 2);
    assert!(
        out[0].contains("these variables could not be brought back"),
        "{out:?}"
    );
    assert_eq!(out[1], "kernel: execute_request a");
    world.whole("a");
    let out = world.reply("a", "ok");
    assert_eq!(
        out,
        [
            "append 2 behind 1",
            "front: note answered a",
            "front: execute_reply a ok"
        ]
    );
}

#[test]
fn an_agent_that_never_speaks_leaves_a_plain_kernel() {
    let mut world = World::new(durably(state(1)));
    world.input(Input::KernelUp { pid: 7 });
    assert_eq!(world.after(Span::from_secs(10)), ["front: note kernel-up"]);
    world.permits = true;
    let out = world.run("a", Value::Null);
    assert!(out[0].contains("this kernel is not saved"), "{out:?}");
    assert_eq!(
        world.reply("a", "ok"),
        ["front: note answered a", "front: execute_reply a ok"]
    );
    assert_eq!(
        world.dies(),
        ["front: note kernel-over died it ran out of memory", "leave"]
    );
}

#[test]
fn a_capture_goes_to_the_store_behind_its_cell() {
    let mut world = capturing();
    world.run("a", Value::Null);
    assert_eq!(world.whole("a"), [""; 0], "its cell isn't answered yet");
    assert_eq!(world.reply("a", "ok")[0], "append 1");
    assert_eq!(world.synced(1), ["write-state"]);
    assert_eq!(world.input(Input::Rested), ["front: note settled"]);
    world.run("b", Value::Null);
    world.captured("state.cell", json!({"msg_id": "b", "status": "later"}));
    assert_eq!(world.reply("b", "ok").len(), 2);
    let out = world.captured("state.record", json!({"cells": [{"msg_id": "b"}], "record": 2}));
    assert_eq!(out, ["append 2 behind 1"]);
}

#[test]
fn a_dead_kernel_comes_back_without_its_client_noticing() {
    let mut world = capturing();
    world.run("a", Value::Null);
    world.whole("a");
    world.reply("a", "ok");
    world.run("b", Value::Null);
    world.run("c", Value::Null);
    world.begins("b");
    let out = world.dies();
    let told: Vec<&str> = out.iter().map(String::as_str).collect();
    assert!(
        told.contains(&"front: execute_reply b error CellLost"),
        "{told:?}"
    );
    assert!(told.contains(&"front: execute_reply c aborted"), "{told:?}");
    assert!(
        told.contains(&"front: status  restarting") || told.contains(&"front: status restarting"),
        "{told:?}"
    );
    assert!(told.contains(&"start") && told.contains(&"sync"), "{told:?}");
    assert_eq!(world.run("d", Value::Null), [""; 0]);
    assert_eq!(world.synced(1), ["write-state"]);
    assert_eq!(world.in_sync(), ["open 2"]);
    assert_eq!(world.opened(), ["front: note tenure", "hopd: up"]);
    assert_eq!(world.heard_again(), ["agent: state.begin"]);
}

#[test]
fn records_are_on_disk_before_the_next_tenure() {
    let mut world = capturing();
    world.run("a", Value::Null);
    world.whole("a");
    world.reply("a", "ok");
    let out = world.dies();
    let at = |what: &str| out.iter().position(|line| line == what);
    assert!(at("sync").is_some(), "{out:?}");
    assert_eq!(at("open 2"), None, "the last record isn't settled yet: {out:?}");
    assert_eq!(world.synced(1), ["write-state"]);
    assert_eq!(world.in_sync(), ["open 2"]);
    world.opened();
    world.heard_again();
    assert_eq!(world.answer(2, json!({})), ["agent: state.restore"]);
}

#[test]
fn a_reply_that_waits_for_the_store_does_not_leave_without_the_cells_effects() {
    let mut world = answering_from_the_store();
    for (cell, record) in [("a", true), ("b", false)] {
        world.run(cell, Value::Null);
        if record {
            world.whole(cell);
        }
        let out = world.reply(cell, "ok");
        assert!(!out.iter().any(|line| line.contains("execute_reply")), "{out:?}");
    }
    let mut out = world.dies();
    out.extend(world.synced(1));
    out.extend(world.in_sync());
    out.extend(world.input(Input::Rested));
    out.extend(world.opened());
    world.heard_again();
    world.run("c", Value::Null);
    out.extend(world.input(Input::Rested));
    out.retain(|line| line.contains("execute_reply"));
    out.sort();
    let told = [
        "front: execute_reply a ok",
        "front: execute_reply b error CellLost",
    ];
    assert_eq!(out, told);
}

#[test]
fn a_cell_that_has_not_begun_runs_in_the_next_process() {
    let mut world = capturing();
    world.run("a", Value::Null);
    world.run("b", Value::Null);
    let out = world.dies();
    assert!(!out.iter().any(|line| line.contains("execute_reply")), "{out:?}");
    world.reopened();
    world.heard_again();
    let out = world.answer(2, json!({}));
    let expected = [
        "front: note kernel-up",
        "hopd: up",
        // No lost cell has said so.
        "front: stream a gresshopper: this kernel's process is new",
        "kernel: execute_request a",
        "kernel: execute_request b",
    ];
    assert_eq!(out, expected);
}

#[test]
fn an_error_that_stops_nothing_aborts_nothing() {
    let mut world = capturing();
    world.run_with("a", &json!({"code": "x", "stop_on_error": false}), Value::Null);
    world.run("b", Value::Null);
    world.begins("a");
    let out = world.dies();
    let replies: Vec<&String> = out.iter().filter(|line| line.contains("execute_reply")).collect();
    assert_eq!(replies, ["front: execute_reply a error CellLost"]);
}

#[test]
fn a_cell_with_retry_runs_again() {
    let mut world = capturing();
    world.run_with("a", &json!({"code": "%%retry\nx"}), Value::Null);
    world.run("b", Value::Null);
    world.begins("a");
    world.permits = false;
    let out = world.dies();
    assert!(
        out.iter()
            .any(|line| line.contains("The cell runs again") || line.contains("out of memory")),
        "{out:?}"
    );
    assert!(
        !out.iter().any(|line| line.starts_with("front: execute_reply a")),
        "{out:?}"
    );
    world.reopened();
    world.heard_again();
    let out = world.answer(2, json!({}));
    assert_eq!(out.last().unwrap(), "front: note begins a");
    assert_eq!(
        world.input(Input::MayBegin { cell: "a".into() }),
        ["kernel: execute_request a", "front: note begins b"]
    );
}

#[test]
fn a_cell_asks_the_next_front_where_the_front_is_lost_before_its_word() {
    let mut world = capturing();
    world.permits = false;
    assert_eq!(world.run("a", Value::Null), ["front: note begins a"]);
    assert_eq!(world.input(Input::FrontChanged), ["front: note begins a"]);
    let word = || Input::MayBegin { cell: "a".into() };
    assert_eq!(world.input(word()), ["kernel: execute_request a"]);
    assert_eq!(world.input(word()), [""; 0], "the word to the first question");
    assert_eq!(world.input(Input::FrontChanged), [""; 0]);
}

#[test]
fn deaths_without_end_end_the_kernel() {
    let mut world = capturing();
    for n in 0..5 {
        let out = world.dies();
        assert!(out.contains(&"start".into()), "{out:?}");
        world.reopened();
        world.heard_again();
        world.answer(2 + n, json!({}));
    }
    let out = world.dies();
    let over = "front: note kernel-over died it ran out of memory. It has died 6 times within a minute";
    assert_eq!(out, [over, "leave"], "it leaves nothing: its front closes it");
}

#[test]
fn a_kernel_that_is_killed_before_its_first_cell_starts_again() {
    let mut world = World::new(durably(state(1)));
    let killed = Exit {
        reason: "killed by signal 9".into(),
        killed: true,
    };
    let out = world.input(Input::Exited(killed));
    assert!(out.contains(&"start".to_owned()), "not heard yet: {out:?}");
    world.reopened();
    assert_eq!(world.input(Input::KernelUp { pid: 8 }), [""; 0]);
    let out = world.dies();
    assert!(out.contains(&"start".to_owned()), "heard: {out:?}");
    assert_eq!(world.run("a", Value::Null), [""; 0], "it waits");
    world.reopened();
    let out = world.dies();
    let told = "front: note kernel-over not-started it ran out of memory";
    assert_eq!(out[0], told, "by itself, before it was heard: {out:?}");
}

#[test]
fn a_state_that_kills_its_reader_is_left_alone() {
    let mut world = World::new(durably(settled(2)));
    greet(&mut world);
    world.input(Input::KernelUp { pid: 7 });
    let mut id = 1;
    for _ in 0..2 {
        assert_eq!(world.answer(id, json!({})), ["agent: state.restore"]);
        let out = world.dies();
        assert!(out.contains(&"start".into()), "{out:?}");
        world.reopened();
        world.heard_again();
        id += 2;
    }
    assert_eq!(
        world.answer(id, json!({})),
        ["keep /states/k/1.0", "agent: state.begin"]
    );
    assert_eq!(world.answer(id + 1, json!({})), ["front: note kernel-up"]);
    world.permits = true;
    let out = world.run("a", Value::Null);
    assert!(out[0].contains("the kernel is a new one"), "{out:?}");
}

#[test]
fn a_restore_that_fails_leaves_an_empty_kernel_and_says_so() {
    let mut world = World::new(durably(settled(2)));
    greet(&mut world);
    world.input(Input::KernelUp { pid: 7 });
    world.answer(1, json!({}));
    assert_eq!(
        world.refuse_agent(2),
        ["keep /states/k/1.0", "agent: state.begin"]
    );
    assert_eq!(world.answer(3, json!({})), ["front: note kernel-up"]);
    world.permits = true;
    let out = world.run("a", Value::Null);
    assert!(
        out[0].contains("the kernel is a new one, since its variables could not be brought back"),
        "{out:?}"
    );
    world.whole("a");
    assert_eq!(world.reply("a", "ok")[0], "append 2", "behind nothing");
}

#[test]
fn a_request_of_an_earlier_tenure_is_lost_in_the_middle() {
    let mut world = World::new(durably(settled(3)));
    world.input(Input::HandedBefore {
        cell: "a".into(),
        tenure: Tenure(2),
        behind: None,
        lacks: true,
    });
    let out = world.run("a", Value::Null);
    assert!(
        out.contains(&"front: execute_reply a error CellLost".into()),
        "{out:?}"
    );
    assert!(
        out.contains(&"front: note answered a lost".into()),
        "no effects of it are at stake: {out:?}"
    );
    world.input(Input::HandedBefore {
        cell: "b".into(),
        tenure: Tenure(2),
        behind: None,
        lacks: true,
    });
    let out = world.run_with("b", &json!({"code": "%%retry\nx"}), Value::Null);
    assert_eq!(out, [""; 0], "it waits to run again");
    assert_eq!(world.run("c", Value::Null), [""; 0]);
}

#[test]
fn a_cell_lost_with_its_executor_stops_those_that_waited_behind_it() {
    for (content, stops) in [(json!({}), true), (json!({"stop_on_error": false}), false)] {
        let mut world = World::new(durably(settled(3)));
        for (cell, behind) in [("a", None), ("b", Some(Behind::Queued)), ("c", Some(Behind::New))] {
            let (cell, tenure) = (cell.into(), Tenure(2));
            world.input(Input::HandedBefore {
                cell,
                tenure,
                behind,
                lacks: true,
            });
        }
        let out = world.run_with("a", &content, Value::Null);
        assert!(
            out.contains(&"front: execute_reply a error CellLost".into()),
            "{out:?}"
        );
        let b = world.run_with("b", &content, Value::Null);
        let c = world.run("c", Value::Null);
        match stops {
            true => assert!(b.contains(&"front: execute_reply b aborted".into()), "{b:?}"),
            false => assert!(
                b.contains(&"front: execute_reply b error CellLost".into()),
                "{b:?}"
            ),
        }
        match stops {
            true => assert!(c.contains(&"front: execute_reply c aborted".into()), "{c:?}"),
            false => assert_eq!(c, [""; 0], "it is a new one"),
        }
        assert_eq!(world.run("later", Value::Null), [""; 0], "it wasn't there then");
    }
}

#[test]
fn a_request_with_the_id_of_an_earlier_cell_is_a_new_one() {
    let mut world = capturing();
    for n in 1..=2 {
        let out = world.run("a", Value::Null);
        assert!(out.contains(&"kernel: execute_request a".into()), "{n}: {out:?}");
        // The front tells what it has heard before it hands out a request with a known id.
        world.input(Input::Heard {
            cells: n - 1,
            losses: Tenure(0),
        });
        let out = world.reply("a", "ok");
        assert!(out.contains(&"front: execute_reply a ok".into()), "{n}: {out:?}");
    }
}

#[test]
fn a_lease_ends_with_the_process_that_used_it() {
    let mut world = capturing();
    world.run("g", gpu());
    world.grant("g", 1, 1);
    world.begins("g");
    assert_eq!(world.place("g"), Some(Place::Running));
    let out = world.dies();
    assert!(out.contains(&"hopd: ended g 1 Lost".into()), "{out:?}");
    assert!(
        out.contains(&"front: execute_reply g error CellLost".into()),
        "{out:?}"
    );
}

#[test]
fn a_waiting_cell_outlives_the_process() {
    let mut world = capturing();
    world.permits = false;
    assert_eq!(world.run("g", gpu()), ["hopd: submit g 1 gpus"]);
    let out = world.dies();
    assert!(!out.iter().any(|line| line.contains("execute_reply")), "{out:?}");
    assert_eq!(world.grant("g", 1, 1), [""; 0], "the kernel isn't there yet");
    world.reopened();
    world.heard_again();
    assert_eq!(world.answer(2, json!({})).last().unwrap(), "front: note begins g");
    assert_eq!(
        world.input(Input::MayBegin { cell: "g".into() }),
        [
            "front: stream g gresshopper: this kernel's process is new",
            "kernel: execute_request g lease 1"
        ]
    );
}

#[test]
fn a_seat_that_ends_is_left_with_everything_saved() {
    let mut world = capturing();
    world.run("a", Value::Null);
    assert_eq!(world.input(terminated()), [""; 0], "the cell is given a moment");
    assert_eq!(world.run("b", Value::Null), [""; 0], "it is for the next replica");
    world.whole("a");
    let out = world.reply("a", "ok");
    assert!(out.contains(&"agent: state.flush".into()), "{out:?}");
    let out = world.answer(2, json!({}));
    assert_eq!(out, ["sync"]);
    world.synced(1);
    let out = world.input(Input::Rested);
    let expected = [
        "front: note settled",
        "front: note leaving its seat was cancelled or reached its time limit",
        "kill",
        "leave",
    ];
    assert_eq!(out, expected);
}

#[test]
fn a_running_cell_has_what_slurms_grace_leaves_of_the_last_capture() {
    for (grace, cell) in [(5, 2), (15, 7), (30, 14), (600, 14)] {
        let mut world = capturing();
        world.run("a", Value::Null);
        let grace = Span::from_secs(grace);
        assert_eq!(world.input(Input::Terminated { grace }), [""; 0]);
        assert_eq!(world.after(Span(cell * 1_000_000 - 1)), [""; 0]);
        let out = world.after(Span(1));
        assert!(out[0].starts_with("front: note leaving"), "{out:?}");
    }
}

#[test]
fn the_last_capture_ends_before_slurm_kills_the_seat() {
    let mut world = capturing();
    assert_eq!(world.input(terminated()), ["agent: state.flush"]);
    assert_eq!(world.after(Span(3_999_999)), [""; 0]);
    let out = world.after(Span(1));
    assert!(out[0].starts_with("front: note leaving"), "{out:?}");
}

#[test]
fn a_cell_that_runs_as_its_kernel_is_to_hibernate_ends_first() {
    let mut world = capturing();
    world.run("a", Value::Null);
    world.begins("a");
    let orphaned = Input::Orphaned {
        reason: "nobody is there".into(),
    };
    assert_eq!(world.input(orphaned), [""; 0]);
    assert_eq!(world.after(Span(14_999_999)), [""; 0]);
    world.whole("a");
    let out = world.reply("a", "ok");
    assert!(out.contains(&"agent: state.flush".into()), "{out:?}");
}

#[test]
fn a_cell_that_was_to_begin_as_its_seat_ended_is_the_next_replicas() {
    let mut world = capturing();
    world.permits = false;
    world.run("a", Value::Null);
    assert_eq!(world.run("b", Value::Null), [""; 0], "behind a");
    world.input(terminated());
    assert_eq!(
        world.input(Input::MayBegin { cell: "a".into() }),
        [""; 0],
        "too late"
    );
    let out = world.answer(2, json!({}));
    let told: Vec<&str> = out.iter().map(String::as_str).collect();
    let expected = [
        "sync",
        "front: note not-begun a",
        "front: note leaving its seat was cancelled or reached its time limit",
        "kill",
        "leave",
    ];
    assert_eq!(told, expected);
}

#[test]
fn a_cell_that_ran_before_is_not_called_new() {
    let mut world = capturing();
    world.run_with("a", &json!({"code": "%%retry\nx"}), Value::Null);
    world.run("b", Value::Null);
    world.begins("a");
    world.dies();
    world.reopened();
    let out = world.input(terminated());
    assert_eq!(out, [""; 0]);
    let out = world.after(Span::from_secs(2));
    assert!(out.contains(&"front: note not-begun b".into()), "{out:?}");
    assert!(!out.contains(&"front: note not-begun a".into()), "{out:?}");
}

#[test]
fn an_orphan_hibernates() {
    let mut world = capturing();
    let orphaned = Input::Orphaned {
        reason: "nobody is there".into(),
    };
    assert_eq!(world.input(orphaned), ["agent: state.flush"]);
    let out = world.answer(2, json!({}));
    assert_eq!(
        out,
        ["sync", "write-state"],
        "nothing was captured: it sleeps as it is"
    );
    let out = world.input(Input::Rested);
    assert!(
        out.contains(&"front: note asleep nobody is there".into()),
        "{out:?}"
    );
    assert_eq!(out.last().unwrap(), "leave");
}

#[test]
fn an_orphan_that_nobody_finds_again_ends() {
    let mut given = durably(state(1));
    given.as_mut().unwrap().found_again = false;
    let mut world = World::new(given);
    greet(&mut world);
    world.input(Input::KernelUp { pid: 7 });
    world.answer(1, json!({}));
    let reason = "nobody is there".into();
    let out = world.input(Input::Orphaned { reason });
    let over = "front: note kernel-over died nobody is there, and this kernel's variables could not be saved";
    assert_eq!(out, ["hopd: kernel-ended", "kill", over, "leave"]);
}

#[test]
fn a_store_that_fails_is_told_once() {
    let mut world = capturing();
    assert_eq!(
        world.input(Input::StoreFailed("the quota is used up".into())),
        ["hopd: up"]
    );
    world.input(Input::StoreFailed("the quota is used up".into()));
    let out = world.run("a", Value::Null);
    assert_eq!(
        out.iter().filter(|line| line.contains("is not saved")).count(),
        1,
        "{out:?}"
    );
    world.whole("a");
    assert_eq!(world.reply("a", "ok").len(), 2, "nothing more is written");
}

/// A kernel whose store failed and can be written again. Both notices are still to be told.
fn mended() -> World {
    let mut world = capturing();
    world.input(Input::StoreFailed("the quota is used up".into()));
    assert_eq!(world.input(Input::StoreMended), ["agent: state.begin"]);
    world
}

#[test]
fn a_store_that_can_be_written_again_gets_a_record_of_everything() {
    let mut world = mended();
    world.run("a", Value::Null);
    world.whole("a");
    assert_eq!(
        world.reply("a", "ok").len(),
        2,
        "its record is a difference to a lost one"
    );
    assert_eq!(world.answer(2, json!({})), ["hopd: up"]);
    let out = world.run("b", Value::Null);
    assert_eq!(
        out.iter()
            .filter(|line| line.contains("this kernel is saved again"))
            .count(),
        1,
        "{out:?}"
    );
    world.whole("b");
    assert_eq!(world.reply("b", "ok")[0], "append 1");
    assert_eq!(world.synced(1), ["write-state"]);
    assert_eq!(world.input(Input::StoreMended), [""; 0], "nothing is broken");
}

#[test]
fn a_store_that_fails_again_before_the_answer_stays_broken() {
    let mut world = mended();
    world.input(Input::StoreFailed("the quota is used up".into()));
    world.answer(2, json!({}));
    world.run("a", Value::Null);
    world.whole("a");
    assert_eq!(world.reply("a", "ok").len(), 2, "nothing is written");
    assert_eq!(world.input(Input::StoreMended), ["agent: state.begin"]);
    world.answer(3, json!({}));
    world.run("b", Value::Null);
    world.whole("b");
    assert_eq!(world.reply("b", "ok")[0], "append 1");
}

#[test]
fn a_record_of_everything_is_asked_for_once_captures_have_begun() {
    let mut world = World::new(durably(state(1)));
    greet(&mut world);
    assert_eq!(world.input(Input::KernelUp { pid: 7 }), ["agent: state.begin"]);
    world.input(Input::StoreFailed("the quota is used up".into()));
    assert_eq!(world.input(Input::StoreMended), [""; 0]);
    assert_eq!(
        world.answer(1, json!({})),
        ["agent: state.begin", "front: note kernel-up"]
    );
    world.permits = true;
    world.answer(2, json!({}));
    world.run("a", Value::Null);
    world.whole("a");
    assert_eq!(world.reply("a", "ok")[0], "append 1");
}

#[test]
fn a_state_in_a_tenures_later_part_is_where_the_kernel_goes_on() {
    let mut world = capturing();
    world.run("a", Value::Null);
    world.whole("a");
    world.reply("a", "ok");
    let (upto, length, mac) = (RecordNumber(1), 50, "22".into());
    let out = world.input(Input::Synced(Settled {
        tenure: Tenure(1),
        part: 1,
        upto,
        length,
        mac,
    }));
    assert_eq!(out, ["write-state"]);
    let journal = &world.core.durable.as_ref().unwrap().journal;
    let settled = journal.state().restore().settled.unwrap();
    assert_eq!((settled.tenure, settled.part, settled.length), (Tenure(1), 1, 50));
}

#[test]
fn a_restart_by_the_user_ends_the_process_for_good() {
    let mut world = capturing();
    world.input(Input::End);
    assert_eq!(world.dies(), ["front: note kernel-over shutdown", "leave"]);
}

#[test]
fn a_process_is_told_of_all_of_the_users_stores() {
    let stores = durably(state(1)).unwrap().stores;
    let body = super::super::durable::begin_standby(RecordNumber(1), &stores);
    assert_eq!(
        (&body["store"], &body["others"]),
        (&json!("/store"), &json!(["/home"]))
    );
}
