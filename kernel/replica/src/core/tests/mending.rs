//! A broken store: tried at once at each planned end and after a death, with a record of everything once it takes any.

use super::durable::{capturing, durably, state};
use super::*;
use hop_api::message::MoveCause;

/// A kernel whose store broke before the end of cell `a`.
fn broken() -> World {
    let mut world = capturing();
    world.input(Input::StoreFailed("the quota is used up".into()));
    world.run("a", Value::Null);
    world.whole("a");
    let out = world.reply("a", "ok");
    assert_eq!(out, ["front: note answered a", "front: execute_reply a ok"]);
    world
}

fn orphaned() -> Input {
    let reason = "its Jupyter server ends".into();
    Input::Orphaned { reason }
}

fn asked_to_sleep(world: &mut World) -> Vec<String> {
    let (kernel, reason) = ("k".into(), "maintenance".into());
    world.hopd(News::Event(Event::Hibernate { kernel, reason }))
}

fn still_fails(world: &mut World) -> Vec<String> {
    world.input(Input::StoreStillFails("the quota is used up".into()))
}

/// The store takes records again, and the agent makes one of everything from now on.
fn mended(world: &mut World) -> Vec<String> {
    assert_eq!(world.input(Input::StoreMended), ["agent: state.begin"]);
    let mut out = world.answer(2, json!({}));
    assert_eq!(out.remove(0), "hopd: up", "it is saved again");
    out
}

/// The last capture makes the record of everything, and is answered.
fn saved(world: &mut World) -> Vec<String> {
    let record = world.captured("state.record", json!({"record": 1}));
    assert_eq!(record, ["append 1"]);
    assert_eq!(world.answer(3, json!({})), ["sync"]);
    let out = world.synced(1);
    assert_eq!(
        world.at_stake(),
        0,
        "the record of everything has the effects of each cell"
    );
    out
}

#[test]
fn at_its_servers_end_a_kernel_is_saved_whole_if_there_is_room_by_then() {
    let mut world = broken();
    assert_eq!(world.input(orphaned()), ["try-store"]);
    assert_eq!(mended(&mut world), ["agent: state.flush"]);
    assert_eq!(saved(&mut world), ["write-state"]);
    assert_eq!(
        world.input(Input::Rested).last().unwrap(),
        "write-state",
        "the log says so"
    );
    let out = world.input(Input::Rested);
    assert!(out.contains(&"hopd: hibernated".into()), "{out:?}");
    assert!(world.core.is_asleep() && !world.core.has_successor());
}

#[test]
fn at_its_servers_end_a_kernel_that_can_not_be_saved_ends_at_once() {
    let mut world = broken();
    assert_eq!(world.input(orphaned()), ["try-store"]);
    let out = still_fails(&mut world);
    assert_eq!(
        out[1..],
        ["front: note asleep its Jupyter server ends", "kill", "leave"]
    );
    assert!(!world.core.is_asleep(), "no word says that it is saved");

    let mut world = broken();
    world.input(orphaned());
    let out = world.after(Span::from_secs(5));
    assert_eq!(out.last().unwrap(), "leave", "a store that hangs is broken");
    assert_eq!(still_fails(&mut world), [""; 0], "it is too late");
}

#[test]
fn a_cell_that_runs_at_its_servers_end_is_waited_for_though_the_store_is_broken() {
    let mut world = broken();
    world.run("b", Value::Null);
    world.begins("b");
    assert_eq!(world.input(orphaned()), ["try-store"]);
    assert_eq!(still_fails(&mut world), [""; 0]);
    let out = world.reply("b", "ok");
    assert!(out.contains(&"try-store".into()), "{out:?}");
    assert_eq!(still_fails(&mut world).last().unwrap(), "leave");
}

#[test]
fn a_kernel_of_a_broken_store_is_put_to_sleep_once_it_is_saved() {
    let mut world = broken();
    assert_eq!(asked_to_sleep(&mut world), ["try-store"]);
    assert_eq!(
        asked_to_sleep(&mut world),
        [""; 0],
        "asked again, on a new connection"
    );
    assert_eq!(mended(&mut world), ["agent: state.flush"]);
    saved(&mut world);

    let mut world = broken();
    asked_to_sleep(&mut world);
    let stays = "hopd: stays its state could not be saved: the quota is used up";
    assert_eq!(still_fails(&mut world), [stays]);
    assert_eq!(
        world.run("b", Value::Null).last().unwrap(),
        "kernel: execute_request b"
    );
}

#[test]
fn a_kernel_of_a_broken_store_moves_once_the_store_is_mended() {
    for cause in [MoveCause::Drain, MoveCause::Waiting, MoveCause::Asked] {
        let mut world = broken();
        assert_eq!(world.asked_to_move(2, cause), ["try-store"]);
        assert_eq!(mended(&mut world), ["front: note move-asked"]);

        let mut world = broken();
        world.asked_to_move(2, cause);
        let stays = "hopd: not moved 2 its state could not be saved: the quota is used up";
        assert_eq!(still_fails(&mut world), [stays]);

        let mut world = broken();
        world.asked_to_move(2, cause);
        let (kernel, incarnation) = ("k".into(), Incarnation(2));
        world.hopd(News::Event(Event::MoveWithdrawn { kernel, incarnation }));
        assert_eq!(mended(&mut world), [""; 0], "nobody waits for the move");
    }
}

#[test]
fn a_seat_that_ends_tries_a_broken_store() {
    let mut world = broken();
    assert_eq!(world.input(terminated()), ["try-store"]);
    assert_eq!(mended(&mut world), ["agent: state.flush"]);
    assert_eq!(saved(&mut world), ["write-state"]);
    let out = world.input(Input::Rested);
    assert!(out[1].starts_with("front: note leaving"), "{out:?}");

    let mut world = broken();
    world.input(terminated());
    let out = still_fails(&mut world);
    assert!(out[0].starts_with("front: note leaving"), "{out:?}");
}

#[test]
fn a_seat_that_ends_with_its_server_leaves_the_kernel_asleep() {
    let mut world = capturing();
    world.input(terminated());
    assert_eq!(world.input(orphaned()), [""; 0]);
    assert_eq!(world.answer(2, json!({})), ["sync", "write-state"]);
    let out = world.input(Input::Rested);
    assert!(out.contains(&"hopd: hibernated".into()), "{out:?}");
}

#[test]
fn a_dead_process_is_given_up_only_once_the_store_was_tried() {
    let mut world = broken();
    let out = world.dies();
    assert_eq!(
        out.iter().filter(|line| *line == "try-store").count(),
        1,
        "{out:?}"
    );
    assert!(out.contains(&"start".into()), "{out:?}");
    assert_eq!(world.heard_again(), [""; 0], "it waits for the store");
    assert_eq!(world.input(Input::StoreMended), ["hopd: up"]);
    assert_eq!(world.in_sync(), ["open 2"]);
    let out = world.opened();
    assert_eq!(out[0], "front: note tenure", "{out:?}");
    let durable = world.core.durable.as_ref().unwrap();
    let lost: Vec<_> = durable.journal.state().losses().collect();
    assert_eq!(lost[0].cells, ["a".into()], "the user reads which cell is lost");
    assert_eq!(out.last().unwrap(), "agent: state.begin", "{out:?}");
    assert_eq!(world.answer(2, json!({})), ["front: note kernel-up", "hopd: up"]);

    let mut world = broken();
    world.dies();
    let out = still_fails(&mut world);
    let died = "front: note kernel-over died it ran out of memory, and its variables could not be saved: the quota is \
        used up";
    assert_eq!(out, [died, "leave"]);
}

#[test]
fn a_process_that_dies_while_it_is_asked_for_everything_is_followed() {
    let mut world = broken();
    assert_eq!(world.input(Input::StoreMended), ["agent: state.begin"]);
    let out = world.dies();
    assert!(out.contains(&"start".into()), "{out:?}");
    assert!(!out.contains(&"try-store".into()), "{out:?}");
}

/// The user makes room, and works on.
#[test]
fn a_cells_end_tries_a_broken_store() {
    let mut world = broken();
    world.after(Span::from_secs(5));
    world.run("b", Value::Null);
    world.whole("b");
    assert!(world.reply("b", "ok").contains(&"try-store".into()));
    assert_eq!(still_fails(&mut world), [""; 0]);
    world.run("c", Value::Null);
    world.whole("c");
    assert_eq!(world.reply("c", "ok").len(), 2, "not at each cell");
}

#[test]
fn a_kernel_without_captures_says_its_end_to_a_front_that_lives() {
    let given = durably(state(1)).map(|d| Durably {
        silent: Some("no library".into()),
        ..d
    });
    let mut world = World::new(given);
    assert_eq!(world.input(Input::KernelUp { pid: 7 }), ["front: note kernel-up"]);
    let out = world.input(orphaned());
    let over = "front: note kernel-over died its Jupyter server ends, and this kernel's variables could not be saved";
    assert_eq!(out, ["hopd: kernel-ended", "kill", over, "leave"]);
    assert_eq!(world.input(orphaned()), [""; 0], "once");
}
