//! Each transition with its action, and each input that changes nothing; then the ways to the outcome.

use super::*;
use crate::core::tests::Recorder;
use crate::core::{Asked, Front};
use bytes::Bytes;
use hop_protocol::jupyter::{Author, Channel};
use proptest::prelude::*;
use serde_json::json;

const NOW: Timestamp = Timestamp(1_000_000_000);

/// A client's request to shut the kernel down, or to restart it.
fn request(restart: bool) -> Shutdown {
    let mut client = Author::new(b"key", "client".into());
    let (parent, content) = (Bytes::from_static(b"{}"), json!({"restart": restart}));
    let request = client.write("shutdown_request", &parent, &json!({}), &content, NOW);
    let identity = Bytes::from_static(b"me");
    let mut front = Front::new(b"key", "front".into());
    match front.request(
        Channel::Control,
        &identity,
        request.message(),
        NOW,
        &mut Recorder::default(),
    ) {
        Asked::Shutdown(asked) => asked,
        other => panic!("{other:?}"),
    }
}

fn client(restart: bool, away: bool) -> Input {
    let asked = request(restart);
    Input::Shutdown { asked, away }
}

fn part(connected: bool) -> Input {
    let reason = "it ends".into();
    Input::Part { reason, connected }
}

fn dead() -> End {
    let reason = "its node was lost".into();
    End::Dead { reason }
}

/// All inputs, with their names in the tables.
fn inputs() -> Vec<(&'static str, Input)> {
    vec![
        ("restart", client(true, false)),
        ("restart, away", client(true, true)),
        ("shutdown", client(false, false)),
        ("shutdown, away", client(false, true)),
        ("replica gone", Input::ReplicaGone),
        ("next replica", Input::NextReplica),
        ("end", Input::End { connected: true }),
        ("end, unheard", Input::End { connected: false }),
        ("end again", Input::EndAgain),
        ("part", part(true)),
        ("part, unheard", part(false)),
        ("asleep", Input::Asleep),
        ("replica lost", Input::ReplicaLost),
        ("kernel shut down", Input::KernelOver(End::Shutdown)),
        ("kernel died", Input::KernelOver(dead())),
        ("all read", Input::AllRead),
        ("due", Input::Due),
    ]
}

fn of_request(asked: &Shutdown) -> &'static str {
    match asked.restart {
        true => "restart",
        false => "shutdown",
    }
}

fn of_act(act: Option<&Act>) -> String {
    match act {
        None => "-".into(),
        Some(Act::PassOn(asked)) => format!("pass on {}", of_request(asked)),
        Some(Act::ShutDown(asked)) => format!("{} here", of_request(asked)),
        Some(Act::End) => "end".into(),
        Some(Act::Save { reason }) => format!("save as {reason}"),
        Some(Act::SaveAgain { reason }) => format!("save again as {reason}"),
        Some(Act::TellDeath { reason }) => format!("tell that {reason}"),
        Some(Act::SendObituaries) => "obituaries".into(),
    }
}

/// The state in words, with its due time in seconds from [`NOW`].
fn of_state(termination: &Termination) -> String {
    let of_asked = |asked: &Option<Shutdown>| {
        let asked = asked.as_ref().map(of_request);
        asked.map(|asked| format!(" asked {asked}")).unwrap_or_default()
    };
    let stage = match &termination.stage {
        Stage::Running { asked } => format!("running{}", of_asked(asked)),
        Stage::Parting { asked, .. } => format!("parting{}", of_asked(asked)),
        Stage::Ending { asked, .. } => format!("ending{}", of_asked(asked)),
        Stage::Dead { .. } => "dead".into(),
        Stage::Lingering { died, cause, .. } => {
            let how = if *died { "dead" } else { "shut down" };
            format!("lingering {how} by {cause:?}").to_lowercase()
        }
        Stage::Over { died } => if *died { "over dead" } else { "over" }.into(),
    };
    let due = termination.due().map(|at| at.since(NOW).as_secs_f64());
    let due = due.map(|s| format!(" {s}")).unwrap_or_default();
    format!("{stage}{due}, {:?}", termination.fate).to_lowercase()
}

/// Handles the input at [`NOW`]. Returns the action and the state in words.
fn handled(mut termination: Termination, input: Input) -> String {
    let act = termination.handle(input, NOW);
    termination.sanity_check();
    format!("{}; {}", of_act(act.as_ref()), of_state(&termination))
}

/// Asserts that in this state the inputs of the rows do what the rows say, and that all others do nothing. Nothing is
/// due yet.
fn only(keeps: Keeps, fate: Fate, stage: Stage, rows: &[(&str, &str)]) {
    let termination = Termination { keeps, fate, stage };
    termination.sanity_check();
    let state = of_state(&termination);
    let inputs = inputs();
    assert!(rows.iter().all(|(name, _)| inputs.iter().any(|(n, _)| n == name)));
    for (name, input) in inputs {
        let row = rows.iter().find(|(n, _)| *n == name);
        let expected = row.map_or_else(|| format!("-; {state}"), |(_, after)| (*after).to_owned());
        let got = handled(termination.clone(), input);
        assert_eq!(got, expected, "'{name}' in '{state}'");
    }
}

const LATER: Timestamp = Timestamp(NOW.0 + 5_000_000);

fn running(asked: Option<Shutdown>) -> Stage {
    Stage::Running { asked }
}

fn parting(asked: Option<Shutdown>, until: Timestamp) -> Stage {
    let reason = "it ends".into();
    Stage::Parting { reason, asked, until }
}

fn ending(asked: Option<Shutdown>, until: Timestamp) -> Stage {
    Stage::Ending { asked, until }
}

fn lingering(died: bool, cause: Cause, until: Timestamp) -> Stage {
    Stage::Lingering { died, cause, until }
}

#[test]
fn a_running_kernel() {
    let rows = [
        ("restart", "pass on restart; running asked restart, restarted"),
        ("restart, away", "restart here; running, restarted"),
        ("shutdown", "pass on shutdown; running asked shutdown, closed"),
        ("shutdown, away", "shutdown here; running, closed"),
        ("end", "end; ending 8, closed"),
        ("end, unheard", "end; ending 0.5, closed"),
        ("end again", "end; ending 8, closed"),
        ("part", "save as it ends; parting 40, kept"),
        ("part, unheard", "save as it ends; parting 0.5, kept"),
        ("kernel shut down", "-; lingering shut down by kernel 0.5, kept"),
        ("kernel died", "tell that its node was lost; dead 3, kept"),
    ];
    only(Keeps::Kernel, Fate::Kept, running(None), &rows);
}

#[test]
fn a_kernel_that_a_client_restarts() {
    let rows = [
        ("restart", "pass on restart; running asked restart, restarted"),
        ("restart, away", "restart here; running, restarted"),
        ("shutdown", "pass on shutdown; running asked shutdown, closed"),
        ("shutdown, away", "shutdown here; running, closed"),
        ("replica gone", "restart here; running, restarted"),
        (
            "next replica",
            "pass on restart; running asked restart, restarted",
        ),
        ("end", "end; ending asked restart 8, restarted"),
        ("end, unheard", "end; ending asked restart 0.5, restarted"),
        ("end again", "end; ending asked restart 8, restarted"),
        ("part", "save as it ends; parting asked restart 40, restarted"),
        (
            "part, unheard",
            "save as it ends; parting asked restart 0.5, restarted",
        ),
        (
            "kernel shut down",
            "-; lingering shut down by kernel 0.5, restarted",
        ),
        ("kernel died", "tell that its node was lost; dead 3, restarted"),
    ];
    let asked = Some(request(true));
    only(Keeps::Kernel, Fate::Restarted, running(asked), &rows);
}

#[test]
fn a_kernel_that_is_being_saved() {
    let rows = [
        ("next replica", "save again as it ends; parting 5, kept"),
        ("asleep", "-; parting 0, kept"),
        ("replica lost", "-; parting 0, kept"),
        ("kernel shut down", "-; lingering shut down by server 0.5, kept"),
        ("kernel died", "-; lingering dead by server 0.5, kept"),
    ];
    only(Keeps::Kernel, Fate::Kept, parting(None, LATER), &rows);
}

#[test]
fn a_kernel_that_is_being_saved_after_a_clients_shutdown() {
    let rows = [
        ("replica gone", "shutdown here; parting 5, closed"),
        (
            "next replica",
            "pass on shutdown; parting asked shutdown 5, closed",
        ),
        ("asleep", "-; parting asked shutdown 0, closed"),
        ("replica lost", "-; parting asked shutdown 0, closed"),
        ("kernel shut down", "-; lingering shut down by server 0.5, closed"),
        ("kernel died", "-; lingering dead by server 0.5, closed"),
    ];
    let asked = Some(request(false));
    only(Keeps::Kernel, Fate::Closed, parting(asked, LATER), &rows);
}

#[test]
fn a_kernel_that_its_owner_ends() {
    let rows = [
        ("restart", "pass on restart; ending asked restart 5, restarted"),
        ("restart, away", "restart here; ending 5, restarted"),
        ("shutdown", "pass on shutdown; ending asked shutdown 5, closed"),
        ("shutdown, away", "shutdown here; ending 5, closed"),
        ("next replica", "end; ending 5, closed"),
        ("kernel shut down", "-; lingering shut down by owner 5, closed"),
        ("kernel died", "-; lingering dead by owner 5, closed"),
    ];
    only(Keeps::Kernel, Fate::Closed, ending(None, LATER), &rows);
}

#[test]
fn a_kernel_that_its_owner_ends_after_a_clients_restart() {
    let rows = [
        ("restart", "pass on restart; ending asked restart 5, restarted"),
        ("restart, away", "restart here; ending 5, restarted"),
        ("shutdown", "pass on shutdown; ending asked shutdown 5, closed"),
        ("shutdown, away", "shutdown here; ending 5, closed"),
        ("replica gone", "restart here; ending 5, restarted"),
        (
            "next replica",
            "pass on restart; ending asked restart 5, restarted",
        ),
        ("kernel shut down", "-; lingering shut down by owner 5, restarted"),
        ("kernel died", "-; lingering dead by owner 5, restarted"),
    ];
    let asked = Some(request(true));
    only(Keeps::Kernel, Fate::Restarted, ending(asked, LATER), &rows);
}

#[test]
fn a_dead_kernel_whose_requests_are_not_answered_yet() {
    let at_once = "obituaries; lingering dead by owner 0.5, kept";
    let rows = [
        ("restart", "-; dead 1, restarted"),
        ("restart, away", "-; dead 1, restarted"),
        ("shutdown", "-; dead 1, closed"),
        ("shutdown, away", "-; dead 1, closed"),
        ("end", at_once),
        ("end, unheard", at_once),
        ("end again", at_once),
        ("part", at_once),
        ("part, unheard", at_once),
    ];
    let obituaries = NOW + Span::from_secs(1);
    only(Keeps::Kernel, Fate::Kept, Stage::Dead { obituaries }, &rows);
}

#[test]
fn a_kernel_that_ended_by_itself() {
    for (died, how) in [(false, "shut down"), (true, "dead")] {
        let now = format!("lingering {how} by kernel 5");
        let (restarted, closed) = (format!("-; {now}, restarted"), format!("-; {now}, closed"));
        let by_owner = format!("-; lingering {how} by owner 0.5, kept");
        let mut rows = vec![
            ("restart", &*restarted),
            ("restart, away", &restarted),
            ("shutdown", &closed),
            ("shutdown, away", &closed),
            ("end", &by_owner),
            ("end, unheard", &by_owner),
            ("end again", &by_owner),
            ("part", &by_owner),
            ("part, unheard", &by_owner),
        ];
        if !died {
            rows.push(("all read", "-; over, kept"));
        }
        let stage = lingering(died, Cause::Kernel, LATER);
        only(Keeps::Kernel, Fate::Kept, stage, &rows);
    }
}

#[test]
fn a_kernel_that_ended_at_its_owners_wish() {
    for (died, how, over) in [(false, "shut down", "over"), (true, "dead", "over dead")] {
        let now = format!("lingering {how} by owner 5");
        let (restarted, closed) = (format!("-; {now}, restarted"), format!("-; {now}, closed"));
        let over = format!("-; {over}, closed");
        let rows = [
            ("restart", &*restarted),
            ("restart, away", &restarted),
            ("shutdown", &closed),
            ("shutdown, away", &closed),
            ("all read", &over),
        ];
        let stage = lingering(died, Cause::Owner, LATER);
        only(Keeps::Kernel, Fate::Closed, stage, &rows);
    }
}

#[test]
fn a_kernel_that_ended_during_its_save() {
    let read = [("all read", "-; over, kept")];
    let shut_down = lingering(false, Cause::Server, LATER);
    only(Keeps::Kernel, Fate::Kept, shut_down, &read);
    let dead = lingering(true, Cause::Server, LATER);
    only(Keeps::Kernel, Fate::Kept, dead, &[]);
}

#[test]
fn a_front_that_is_over() {
    for (died, fate) in [
        (false, Fate::Kept),
        (true, Fate::Closed),
        (false, Fate::Restarted),
    ] {
        only(Keeps::Kernel, fate, Stage::Over { died }, &[]);
    }
}

#[test]
fn the_time_that_is_up() {
    let obituaries = NOW;
    for (stage, after) in [
        (parting(None, NOW), "-; over, closed"),
        (ending(None, NOW), "-; over dead, closed"),
        (
            Stage::Dead { obituaries },
            "obituaries; lingering dead by kernel 0.5, closed",
        ),
        (lingering(false, Cause::Kernel, NOW), "-; over, closed"),
        (lingering(true, Cause::Kernel, NOW), "-; over dead, closed"),
        (lingering(false, Cause::Owner, NOW), "-; over, closed"),
        (lingering(true, Cause::Owner, NOW), "-; over dead, closed"),
        (lingering(false, Cause::Server, NOW), "-; over, closed"),
        (lingering(true, Cause::Server, NOW), "-; over, closed"),
    ] {
        let (keeps, fate) = (Keeps::Kernel, Fate::Closed);
        let termination = Termination { keeps, fate, stage };
        assert_eq!(handled(termination, Input::Due), after);
    }
}

#[test]
fn a_kernel_that_can_not_be_saved_ends_with_its_server() {
    for (keeps, dead) in [(Keeps::State, "kept"), (Keeps::Nothing, "closed")] {
        for (connected, s) in [(true, "8"), (false, "0.5")] {
            let of = |fate, stage| handled(Termination { keeps, fate, stage }, part(connected));
            let runs = of(Fate::Kept, running(None));
            assert_eq!(runs, format!("end; ending {s}, closed"));
            let over = of(Fate::Kept, lingering(true, Cause::Kernel, LATER));
            assert_eq!(over, format!("-; lingering dead by owner 0.5, {dead}"));
        }
    }
}

/// The state of a notebook's kernel is kept for the start that follows; nobody would find another kernel's.
#[test]
fn the_owners_end_closes_what_nobody_restarts() {
    let asked = |restart: bool| Some(request(restart));
    let obituaries = LATER;
    for (fate, stage, of_notebook, of_none) in [
        (Fate::Kept, running(None), "closed", "closed"),
        (Fate::Restarted, running(asked(true)), "restarted", "closed"),
        (Fate::Closed, running(asked(false)), "closed", "closed"),
        (Fate::Kept, Stage::Dead { obituaries }, "kept", "closed"),
        (Fate::Restarted, Stage::Dead { obituaries }, "restarted", "closed"),
        (
            Fate::Closed,
            lingering(true, Cause::Kernel, LATER),
            "closed",
            "closed",
        ),
        (
            Fate::Restarted,
            lingering(false, Cause::Kernel, LATER),
            "restarted",
            "closed",
        ),
    ] {
        for (keeps, after) in [
            (Keeps::Kernel, of_notebook),
            (Keeps::State, of_notebook),
            (Keeps::Nothing, of_none),
        ] {
            let stage = stage.clone();
            let termination = Termination { keeps, fate, stage };
            let state = of_state(&termination);
            let ended = handled(termination, Input::End { connected: true });
            assert!(
                ended.ends_with(&format!(", {after}")),
                "{keeps:?}, {state}: {ended}"
            );
        }
    }
}

#[test]
fn the_outcome_says_what_is_removed() {
    for (fate, left, removal) in [
        (Fate::Kept, false, Removal::Front),
        (Fate::Restarted, false, Removal::Front),
        (Fate::Closed, false, Removal::Kernel),
        (Fate::Kept, true, Removal::Nothing),
        (Fate::Restarted, true, Removal::Nothing),
        (Fate::Closed, true, Removal::Kernel),
    ] {
        for died in [false, true] {
            let (keeps, stage) = (Keeps::Kernel, Stage::Over { died });
            let outcome = Termination { keeps, fate, stage }.outcome(left);
            assert_eq!(outcome, Some(Outcome { died, removal }), "{fate:?} {left}");
        }
    }
    assert_eq!(Termination::new(Keeps::Kernel).outcome(false), None);
}

#[test]
fn what_the_shell_asks_of_the_states() {
    let obituaries = LATER;
    for (stage, is_running, is_parting) in [
        (running(None), true, false),
        (running(Some(request(false))), true, false),
        (parting(None, LATER), false, true),
        (ending(None, LATER), false, false),
        (Stage::Dead { obituaries }, false, false),
        (lingering(false, Cause::Kernel, LATER), false, false),
        (lingering(true, Cause::Owner, LATER), false, false),
        (lingering(true, Cause::Server, LATER), false, true),
    ] {
        let (keeps, fate) = (Keeps::Kernel, Fate::Closed);
        let termination = Termination { keeps, fate, stage };
        let asked = (termination.is_running(), termination.is_parting());
        assert_eq!(asked, (is_running, is_parting), "{}", of_state(&termination));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Each order goes out at most once, and a front with a due time is over soon after that time.
    #[test]
    fn a_front_ends_once(
        keeps in prop::sample::select(vec![Keeps::Nothing, Keeps::State, Keeps::Kernel]),
        steps in prop::collection::vec((prop::sample::select(inputs()), 0u64..2_000), 0..60),
    ) {
        let mut termination = Termination::new(keeps);
        let mut now = NOW;
        let mut once = Vec::new();
        for ((name, input), ms) in steps {
            now = now + Span::from_millis(ms);
            let was_over = termination.outcome(false).is_some();
            let act = termination.handle(input, now);
            termination.sanity_check();
            prop_assert!(!was_over || act.is_none());
            match act {
                None | Some(Act::PassOn(_) | Act::ShutDown(_)) => {}
                // Each replica hears of the end.
                Some(Act::SaveAgain { .. } | Act::End) if name == "next replica" => {}
                Some(act) => once.push(std::mem::discriminant(&act)),
            }
        }
        for _ in 0..2 {
            if let Some(at) = termination.due() {
                let act = termination.handle(Input::Due, at);
                once.extend(act.as_ref().map(std::mem::discriminant));
                prop_assert!(termination.outcome(false).is_some() || termination.due() > Some(at));
            }
        }
        prop_assert!(termination.due().is_none());
        for (i, act) in once.iter().enumerate() {
            prop_assert!(!once[..i].contains(act));
        }
    }
}
