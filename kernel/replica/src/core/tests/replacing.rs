//! The death of a kernel's process while the store writes: its answers are told apart.

use super::durable::{capturing, durably, greet, state};
use super::*;

/// A kernel with a record for each of these cells on its way to the store.
fn recorded(cells: &[&str]) -> World {
    let mut world = capturing();
    for cell in cells {
        world.run(cell, Value::Null);
        world.whole(cell);
        assert!(world.reply(cell, "ok")[0].starts_with("append "));
    }
    world
}

fn settled(world: &World) -> Option<(Tenure, u64)> {
    let durable = world.core.durable.as_ref().unwrap();
    let settled = durable.journal.state().restore().settled;
    settled.map(|s| (s.tenure, s.upto.0))
}

#[test]
fn a_dead_kernel_goes_on_behind_its_last_record_though_an_earlier_one_comes_to_the_disk_first() {
    let mut world = recorded(&["a", "b"]);
    let out = world.dies();
    assert!(out.contains(&"sync".into()), "{out:?}");
    assert_eq!(world.synced(1), ["write-state"], "it was on its way before");
    let before = SyncNumber(world.sync.0 - 1);
    assert_eq!(world.input(Input::InSync(before)), [""; 0]);
    assert_eq!(world.synced(2), ["write-state"]);
    assert_eq!(world.in_sync(), ["open 2"]);
    assert_eq!(world.opened(), ["front: note tenure", "hopd: up"]);
    assert_eq!(settled(&world), Some((Tenure(1), 2)));
    let journal = &world.core.durable.as_ref().unwrap().journal;
    assert_eq!(journal.state().losses().len(), 0);
}

#[test]
fn a_log_of_an_earlier_tenure_is_no_state_of_the_present_one() {
    let mut world = recorded(&["a"]);
    world.dies();
    world.reopened();
    let late = Input::Synced(OnDisk {
        tenure: Tenure(1),
        part: 0,
        upto: RecordNumber(1),
        length: 100,
        mac: "11".into(),
    });
    assert_eq!(world.input(late), [""; 0]);
    assert_eq!(settled(&world), None);
}

#[test]
fn a_folder_of_an_earlier_tenure_is_not_the_present_ones() {
    let mut world = recorded(&["a"]);
    world.dies();
    assert_eq!(world.in_sync(), ["open 2"]);
    let killed = Exit {
        reason: "killed by signal 9".into(),
        killed: true,
    };
    assert!(world.input(Input::Exited(killed)).contains(&"sync".into()));
    assert_eq!(world.input(Input::StoreFailed("why".into())), ["open 3"]);
    assert_eq!(world.input(Input::TenureOpened(Tenure(2))), [""; 0]);
    assert_eq!(world.opened(), ["front: note tenure", "hopd: up"]);
}

#[test]
fn a_reply_that_waits_for_the_store_waits_for_the_state_that_has_its_cell() {
    let mut world = World::new(durably(state(1)).map(|d| Durably {
        before_reply: true,
        ..d
    }));
    greet(&mut world);
    world.input(Input::KernelUp { pid: 7 });
    world.answer(1, json!({}));
    world.permits = true;
    for (record, cell) in [(1, "a"), (2, "b")] {
        world.run(cell, Value::Null);
        world.whole(cell);
        world.reply(cell, "ok");
        assert_eq!(world.synced(record), ["write-state"]);
    }
    for cell in ["a", "b"] {
        let told = [
            "front: note settled".to_owned(),
            format!("front: note answered {cell}"),
            format!("front: execute_reply {cell} ok"),
        ];
        assert_eq!(world.input(Input::Rested), told);
    }
    assert_eq!(world.input(Input::Rested), [""; 0]);
}
