//! Cells that the kernel ends without a reply.

use super::durable::capturing;
use super::group::grown;
use super::*;

impl World {
    /// The kernel says this of a cell.
    pub(super) fn says(&mut self, cell: &str, msg_type: &str, content: &Value) -> Vec<String> {
        let parent = json!({"msg_id": cell, "msg_type": "execute_request"}).to_string();
        let message = self
            .client
            .publish(msg_type, &parent.into(), &json!({}), content, self.now);
        self.input(Input::Published(message))
    }

    pub(super) fn says_idle(&mut self, cell: &str) {
        let out = self.says(cell, "status", &json!({"execution_state": "idle"}));
        assert_eq!(out[0], format!("front: status {cell} idle"));
    }

    /// How many answered cells would lose their effects with the executor.
    pub(super) fn at_stake(&self) -> usize {
        let durable = self.core.durable.as_ref().expect("the state is captured");
        durable.journal.state().cells_at_stake()
    }

    fn run_on(&mut self, cell: &str, need: Value) -> Vec<String> {
        self.run_with(cell, &json!({"code": cell, "stop_on_error": false}), need)
    }
}

/// A cell is interrupted, and ends without a reply.
fn struck(world: &mut World) {
    world.run_on("a", Value::Null);
    world.input(Input::Interrupt);
    world.says_idle("a");
}

const STRUCK: [&str; 2] = [
    "front: error a KeyboardInterrupt",
    "front: execute_reply a error KeyboardInterrupt",
];

#[test]
fn a_struck_cell_without_a_reply_is_answered_and_the_next_one_goes_on() {
    let mut world = World::up();
    struck(&mut world);
    assert_eq!(world.run("g", gpu()), [""; 0]);
    assert_eq!(world.after(Span::from_millis(900)), [""; 0]);
    let out = world.after(Span::from_secs(1));
    assert_eq!(out[..2], STRUCK);
    assert_eq!(out[2..], ["hopd: submit g 1 gpus", "front: status g queued"]);
    assert_eq!(world.reply("a", "error"), [""; 0], "it is answered once");
    let out = world.grant("g", 1, 1);
    assert_eq!(out.last().unwrap(), "kernel: execute_request g lease 1");
}

#[test]
fn an_interrupt_by_message_or_after_the_cell_counts_as_well() {
    let mut world = World::up();
    world.run("a", Value::Null);
    world.says_idle("a");
    world.request(Channel::Control, "interrupt_request", "i", &json!({}), &json!({}));
    assert_eq!(world.after(Span::from_secs(2)), STRUCK);
}

#[test]
fn its_error_aborts_the_cells_behind_as_any_other() {
    let mut world = World::up();
    world.run("a", Value::Null);
    world.run("g", gpu());
    world.input(Input::Interrupt);
    world.says("a", "error", &json!({"ename": "KeyboardInterrupt"}));
    world.says_idle("a");
    let out = world.after(Span::from_secs(2));
    assert_eq!(out[0], STRUCK[1], "its error is shown once");
    assert!(out.contains(&"front: execute_reply g aborted".into()), "{out:?}");
}

#[test]
fn a_reply_behind_its_idle_is_the_answer() {
    let mut world = World::up();
    struck(&mut world);
    world.after(Span::from_millis(900));
    assert_eq!(world.reply("a", "ok"), ["front: execute_reply a ok"]);
    assert_eq!(world.after(Span::from_secs(60)), [""; 0]);
}

#[test]
fn a_supervisor_that_stood_still_reads_the_reply_first() {
    let mut world = World::up();
    struck(&mut world);
    world.now = world.now + Span::from_secs(3600);
    assert_eq!(world.input(Input::Tick), [""; 0]);
    assert_eq!(world.reply("a", "ok"), ["front: execute_reply a ok"]);
}

#[test]
fn a_lease_ends_with_its_cell() {
    let mut world = World::up();
    world.run("g", gpu());
    world.grant("g", 1, 1);
    world.input(Input::Interrupt);
    world.says_idle("g");
    let out = world.after(Span::from_secs(2));
    let told = [
        "front: error g KeyboardInterrupt",
        "front: execute_reply g error KeyboardInterrupt lease 1",
        "hopd: ended g 1 Error",
    ];
    assert_eq!(out, told);
}

/// Its output could not be flushed, say: ipykernel goes on without an `idle`.
#[test]
fn a_cell_that_a_later_one_has_overtaken_is_over() {
    let mut world = World::up();
    world.run_on("a", Value::Null);
    world.run_on("b", Value::Null);
    world.reply("b", "ok");
    let out = world.after(Span::from_secs(2));
    let told = [
        "front: error a RequestFailed",
        "front: execute_reply a error RequestFailed",
        "front: status a idle",
    ];
    assert_eq!(out, told);
}

/// The signal of an interrupt at rest may come behind the next cell.
#[test]
fn an_interrupt_just_before_a_cell_may_have_struck_it() {
    for (before, name, after) in [(500, "KeyboardInterrupt", 2), (1500, "RequestFailed", 11)] {
        let mut world = World::up();
        world.input(Input::Interrupt);
        world.after(Span::from_millis(before));
        world.run("a", Value::Null);
        world.says_idle("a");
        let out = world.after(Span::from_secs(after));
        assert_eq!(
            out.last().unwrap(),
            &format!("front: execute_reply a error {name}")
        );
    }
}

/// The other cell's code may hold the kernel's threads up.
#[test]
fn a_reply_may_be_late_while_the_kernel_runs_another_cell() {
    let mut world = World::up();
    world.run("a", Value::Null);
    world.run("b", Value::Null);
    world.says_idle("a");
    world.input(Input::Interrupt);
    assert_eq!(world.after(Span::from_secs(3600)), [""; 0]);
    assert_eq!(world.reply("a", "ok"), ["front: execute_reply a ok"]);
    world.says_idle("b");
    assert_eq!(
        world.after(Span::from_secs(2)).last().unwrap(),
        "front: execute_reply b error KeyboardInterrupt"
    );
}

#[test]
fn a_quiet_kernel_that_never_replies_has_failed() {
    let mut world = World::up();
    world.run("a", Value::Null);
    world.says_idle("a");
    assert_eq!(world.after(Span::from_secs(9)), [""; 0]);
    let out = world.after(Span::from_secs(2));
    assert_eq!(out.last().unwrap(), "front: execute_reply a error RequestFailed");
    // A subshell's cell, or one that the kernel can't read.
    let header = json!({"msg_id": "s", "msg_type": "execute_request", "subshell_id": "1"});
    world.request_as(header, Channel::Shell, &json!({}), &json!({"code": "s"}));
    world.says_idle("s");
    let out = world.after(Span::from_secs(11));
    assert_eq!(out.last().unwrap(), "front: execute_reply s error RequestFailed");
}

#[test]
fn another_languages_kernel_may_be_idle_long_before_it_replies() {
    let mut world = World::of_program("akernel", None, Replicas::One);
    world.input(Input::KernelUp { pid: 7 });
    world.run("a", Value::Null);
    world.run("b", Value::Null);
    world.reply("b", "ok");
    assert_eq!(world.after(Span::from_secs(3600)), [""; 0]);
    world.says_idle("a");
    let out = world.after(Span::from_secs(2));
    assert_eq!(out.last().unwrap(), "front: execute_reply a error RequestFailed");
    world.run("c", Value::Null);
    world.says_idle("c");
    assert_eq!(world.after(Span::from_secs(3600)), [""; 0]);
    assert_eq!(world.reply("c", "ok"), ["front: execute_reply c ok"]);
    struck(&mut world);
    assert_eq!(world.after(Span::from_secs(2)), STRUCK);
}

#[test]
fn a_kernel_sleeps_behind_such_a_cell() {
    let mut world = capturing();
    struck(&mut world);
    let reason = "nobody is there".into();
    world.input(Input::Orphaned { reason });
    let out = world.after(Span::from_secs(2));
    assert_eq!(out[..2], STRUCK, "it never began: the log has nothing of it");
    assert!(out.contains(&"agent: state.flush".into()), "{out:?}");
}

#[test]
fn what_a_struck_cell_did_is_saved() {
    let mut world = capturing();
    world.run("a", Value::Null);
    world.begins("a");
    world.input(Input::Interrupt);
    world.says_idle("a");
    let out = world.after(Span::from_secs(2));
    let told = [STRUCK[0], "front: note answered a", STRUCK[1]];
    assert_eq!(out, told);
    assert!(!world.core.rests());
    world.captured("state.record", json!({"cells": [{"msg_id": "a"}], "record": 1}));
    world.synced(1);
    assert_eq!(world.at_stake(), 0);
}

/// The next record completes a later cell, and no record follows.
#[test]
fn a_struck_cell_that_a_later_cells_record_has_is_not_at_stake() {
    let mut world = capturing();
    world.run_on("a", Value::Null);
    world.run_on("b", Value::Null);
    world.begins("a");
    world.input(Input::Interrupt);
    world.says_idle("a");
    world.begins("b");
    world.reply("b", "ok");
    let cells = json!([{"msg_id": "a"}, {"msg_id": "b"}]);
    world.captured("state.record", json!({"cells": cells, "record": 1}));
    world.synced(1);
    let out = world.after(Span::from_secs(2));
    assert!(out.contains(&STRUCK[1].into()), "{out:?}");
    assert_eq!(world.at_stake(), 0);
}

/// The log has the given up cell behind the later one, and one record has both.
#[test]
fn a_given_up_cell_is_completed_by_the_record_of_an_earlier_answered_one() {
    let mut world = capturing();
    world.run_on("a", Value::Null);
    world.run_on("b", Value::Null);
    world.begins("a");
    world.says_idle("a");
    world.reply("b", "ok");
    let out = world.after(Span::from_secs(2));
    assert!(
        out.contains(&"front: execute_reply a error RequestFailed".into()),
        "{out:?}"
    );
    assert_eq!(world.at_stake(), 2);
    let cells = json!([{"msg_id": "a"}, {"msg_id": "b"}]);
    world.captured("state.record", json!({"cells": cells, "record": 1}));
    world.synced(1);
    assert_eq!(world.at_stake(), 0);
}

/// The record was on its way while the cell behind its cells was answered.
#[test]
fn a_record_completes_no_cell_that_it_lacks() {
    let mut world = capturing();
    for cell in ["a", "b", "c"] {
        world.run_on(cell, Value::Null);
        world.begins(cell);
        world.reply(cell, "ok");
    }
    let cells = json!([{"msg_id": "a"}, {"msg_id": "c"}]);
    world.captured("state.record", json!({"cells": cells, "record": 1}));
    world.synced(1);
    assert_eq!(world.at_stake(), 2);
}

#[test]
fn a_cell_that_the_log_has_as_ended_gets_that_answer() {
    let mut world = grown();
    world.commits = true;
    world.run("a", Value::Null);
    world.begins("a");
    let said = json!({"msg_id": "a", "status": "whole", "plain": 3, "record": 1});
    world.captured("state.cell", said);
    world.input(Input::Interrupt);
    world.says_idle("a");
    let out = world.after(Span::from_secs(2));
    assert!(out.contains(&"front: execute_reply a ok".into()), "{out:?}");
    assert!(!out.contains(&STRUCK[0].into()), "{out:?}");
}
