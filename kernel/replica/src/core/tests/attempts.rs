//! A cell with `%%retry`, and its attempts with other executors.

use super::super::{GroupStanding, Input, Place};
use super::World;
use super::durable::{greet, state};
use super::group::{elected, grown};
use hop_log::Entry;
use hop_words::id::{Incarnation, Tenure};
use hop_words::replica::Replicas;
use hop_words::time::{Span, Timestamp};
use proptest::prelude::*;
use serde_json::{Value, json};

const RUNS: &str = "kernel: execute_request a";
const PLACED: Option<Place> = Some(Place::Held);

fn retried() -> Value {
    json!({"code": "%%retry\n1", "stop_on_error": true})
}

/// Elected after another executor, with the cell handed on.
fn handed_on() -> World {
    let mut world = World::of(elected(state(1), 0), Replicas::Three);
    world.permits = true;
    world.input(Input::Elected);
    greet(&mut world);
    world.input(Input::KernelUp { pid: 7 });
    world.opened();
    world.answer(1, json!({}));
    world.input(Input::GroupStanding(GroupStanding {
        voters: [1, 2, 3].map(Incarnation).into(),
        ..GroupStanding::default()
    }));
    world.hopd(crate::leases::News::Up);
    world.commits = false;
    world.input(Input::HandedBefore {
        cell: "a".into(),
        tenure: Tenure(1),
        behind: None,
        lacks: false,
    });
    world
}

/// The proofs on their way.
fn proofs(world: &World) -> usize {
    world
        .proposed
        .iter()
        .filter(|e| e.as_presence().is_some())
        .count()
}

/// This executor runs the cell, in office as of now.
fn running() -> World {
    let mut world = grown();
    world.after(Span::from_secs(4));
    assert_eq!(world.run_with("a", &retried(), Value::Null), [""; 0]);
    assert_eq!(proofs(&world), 1, "it shows its office first");
    let out = world.commit();
    assert_eq!(out[1], RUNS, "{out:?}");
    assert!(out[0].starts_with("guard "), "{out:?}");
    world.begins("a");
    world
}

fn kills(out: &[String]) -> usize {
    out.iter().filter(|line| *line == "kill").count()
}

#[test]
fn a_cell_waits_for_its_former_run_and_its_user_reads_so() {
    let mut world = handed_on();
    assert_eq!(world.run_with("a", &retried(), Value::Null), ["ask-former"]);
    assert_eq!((proofs(&world), world.commit()), (1, Vec::new()));
    assert_eq!(world.after(Span::from_secs(1)), ["front: status a retry"]);
    assert_eq!(
        world.after(Span::from_secs(2)),
        [
            "front: display_data a Waiting to run again: its former run may not have ended on the node that was lost"
        ]
    );
    assert_eq!((proofs(&world), world.commit()), (1, Vec::new()));
    assert_eq!(world.run("b", Value::Null), [""; 0], "the order stays");
    let out = world.input(Input::FormerGone);
    let told: Vec<&str> = out.iter().map(String::as_str).collect();
    assert_eq!(told[..2], ["front: clear_output a", "front: status a cpu"]);
    assert!(told[2].starts_with("guard "), "{told:?}");
    assert_eq!(told[3..], [RUNS, "kernel: execute_request b"]);
}

#[test]
fn without_word_of_the_former_process_the_cell_waits_for_ten_seconds() {
    let mut world = handed_on();
    world.run_with("a", &retried(), Value::Null);
    for _ in 0..9 {
        world.commit();
        world.after(Span::from_secs(1));
    }
    world.after(Span::from_millis(990));
    assert_eq!((world.commit(), world.place("a")), (Vec::new(), PLACED));
    assert!(world.after(Span::from_millis(20)).contains(&RUNS.into()));
}

#[test]
fn long_after_the_loss_the_cell_begins_at_once() {
    let mut world = handed_on();
    world.after(Span::from_secs(11));
    assert_eq!(world.run_with("a", &retried(), Value::Null), [""; 0]);
    assert!(world.commit().contains(&RUNS.into()));
}

#[test]
fn other_cells_do_not_wait() {
    let mut world = handed_on();
    assert_eq!(world.run("b", Value::Null), ["kernel: execute_request b"]);
    world.reply("b", "ok");
    world.run_with("a", &retried(), Value::Null);
    assert_eq!(world.place("a"), PLACED);
    let mut alone = super::durable::capturing();
    let out = alone.run_with("a", &retried(), Value::Null);
    assert_eq!(out, [RUNS], "one replica has no other executor");
}

#[test]
fn no_gpu_is_held_in_the_wait() {
    let mut world = handed_on();
    assert_eq!(world.run_with("a", &retried(), super::gpu()), ["ask-former"]);
    world.commit();
    assert_eq!(world.input(Input::FormerGone), ["hopd: submit a 1 gpus"]);
}

#[test]
fn an_interrupt_ends_the_wait() {
    let mut world = handed_on();
    world.run_with("a", &retried(), Value::Null);
    world.after(Span::from_secs(3));
    let out = world.input(Input::Interrupt);
    assert!(out.contains(&"front: clear_output a".into()), "{out:?}");
    assert!(
        out.contains(&"front: execute_reply a error KeyboardInterrupt".into()),
        "{out:?}"
    );
    assert!(!out.contains(&"interrupt".into()), "{out:?}");
    assert_eq!(world.run("b", Value::Null), ["kernel: execute_request b"]);
}

#[test]
fn an_executor_shows_its_office_while_the_cell_runs() {
    let mut world = running();
    let mut guards = Vec::new();
    for _ in 0..8 {
        let out = world.after(Span::from_secs(2));
        assert_eq!((out, proofs(&world)), (Vec::new(), 1));
        guards.extend(world.commit());
    }
    assert!(
        guards.len() == 8 && guards.iter().all(|line| line.starts_with("guard ")),
        "{guards:?}"
    );
    let out = world.reply("a", "ok");
    assert!(out.contains(&"unguard".into()), "{out:?}");
    world.commit();
    world.after(Span::from_secs(20));
    assert_eq!(proofs(&world), 0, "no cell is at stake");
}

#[test]
fn an_executor_out_of_office_ends_its_process_before_another_begins() {
    let mut world = running();
    let out = world.after(Span::from_millis(5_990));
    assert_eq!((kills(&out), proofs(&world)), (0, 1));
    let out = world.after(Span::from_secs(2));
    assert_eq!(kills(&out), 1, "once: {out:?}");
    let out = world.dies();
    assert!(out.contains(&"unguard".into()), "{out:?}");
    assert!(out.iter().any(|l| l.starts_with("front: stream a")), "{out:?}");
    assert_eq!(world.place("a"), PLACED, "it waits for a proof");
}

#[test]
fn an_earlier_proof_shows_nothing_of_the_time_since() {
    let mut world = running();
    world.after(Span::from_secs(2));
    let first = world.proposed.pop_front().unwrap();
    world.proposed.push_back(first.clone());
    world.commit();
    world.after(Span::from_secs(2));
    world.proposed.clear();
    // The seat had proposed it twice.
    for _ in 0..2 {
        world.proposed.push_back(first.clone());
        assert_eq!(world.commit(), [""; 0]);
    }
    let out = world.after(Span::from_secs(4));
    assert_eq!(kills(&out), 1);
}

#[test]
fn a_proof_that_the_log_refuses_is_none() {
    let mut world = running();
    world.after(Span::from_secs(2));
    world.proposed.clear();
    world.proposed.push_back(Entry::presence(Tenure(9), 2));
    assert_eq!(world.commit(), [""; 0]);
    assert_eq!(kills(&world.after(Span::from_secs(4))), 1);
}

#[test]
fn without_its_seats_keeper_the_process_is_ended_at_once() {
    let mut world = running();
    assert_eq!(world.input(Input::KeeperGone), ["kill"]);
    let mut world = grown();
    world.input(Input::KeeperGone);
    assert_eq!(world.run_with("a", &retried(), Value::Null), [""; 0]);
    assert_eq!(world.place("a"), PLACED, "a proof is new, and its keeper is gone");
    let mut world = grown();
    world.run("b", Value::Null);
    assert_eq!(
        world.input(Input::KeeperGone),
        [""; 0],
        "no other attempt of it begins"
    );
}

#[test]
fn a_group_that_takes_no_proof_is_given_up() {
    let mut world = running();
    world.after(Span::from_secs(7));
    world.dies();
    world.heard_again();
    let mut out = Vec::new();
    for _ in 0..3 {
        out.extend(world.after(Span::from_secs(5)));
    }
    assert!(out.contains(&"go-alone".into()), "{out:?}");
}

#[test]
fn a_deposed_executor_is_guarded_no_more() {
    let mut world = running();
    world.proposed.clear();
    let (tenure, executor) = (Tenure(2), Incarnation(2));
    world.proposed.push_back(Entry::Tenure { tenure, executor });
    let out = world.commit();
    let kill = out.iter().position(|line| line == "kill");
    let unguard = out.iter().position(|line| line == "unguard");
    assert!(kill.is_some() && kill < unguard, "{out:?}");
}

const STEP: Span = Span::from_millis(100);

/// The end of the former process, by its own decision or by the system's. Nothing reaches its supervisor any more, which
/// may stand still.
fn ends_at(world: &mut World, stands_still: bool) -> Timestamp {
    let guarded = world.core.attempts.guarded.expect("the cell runs");
    while !stands_still && world.now < guarded {
        if kills(&world.after(STEP)) > 0 {
            return world.now;
        }
    }
    guarded
}

/// How long after its election the next executor begins the cell. The log takes its entries at once.
fn begins_after() -> Span {
    let mut world = handed_on();
    let elected = world.now;
    let mut out = world.run_with("a", &retried(), Value::Null);
    while !out.contains(&RUNS.into()) {
        assert!(
            world.now.since(elected) < Span::from_secs(11),
            "it waits for ever"
        );
        out = world.commit();
        out.extend(world.after(STEP));
    }
    world.now.since(elected)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn attempts_never_meet(
        heard in proptest::collection::vec((0u64..1500, any::<bool>()), 0..20),
        silent in 0u64..15_000,
        stands_still in any::<bool>(),
    ) {
        let mut former = running();
        let mut out = Vec::new();
        let mut last = former.now;
        for (ms, commits) in heard {
            out.extend(former.after(Span::from_millis(ms)));
            if commits {
                out.extend(former.commit());
                last = former.now;
            }
        }
        // No election comes before an entry that the executor has heard.
        let elected = last + Span::from_millis(silent);
        if kills(&out) == 0 {
            let ended = ends_at(&mut former, stands_still);
            prop_assert!(ended <= elected + begins_after());
        }
    }
}
