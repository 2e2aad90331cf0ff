//! The death of a kernel's process while the store writes: its answers are told apart.

use super::durable::{answering_from_the_store, capturing, durably, greet};
use super::group::grown;
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
fn a_dead_kernel_goes_on_behind_its_last_record_whichever_reaches_the_disk_first() {
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
    let late = Input::Synced(Settled {
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
    assert_eq!(
        world.input(Input::StoreFailed("why".into())),
        ["front: note tenure", "hopd: up", "open 3"]
    );
    assert_eq!(world.input(Input::TenureOpened(Tenure(2))), [""; 0]);
    assert_eq!(world.opened(), ["front: note tenure", "hopd: up"]);
}

#[test]
fn a_reply_that_waits_for_the_store_waits_for_the_state_that_has_its_cell() {
    let mut world = answering_from_the_store();
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

fn widget_sends(world: &mut World, id: &str) {
    let content = json!({"comm_id": "slider", "data": {}});
    world.request(Channel::Shell, "comm_msg", id, &json!({}), &content);
}

fn told_of_widgets(world: &World) -> Vec<&str> {
    let notices = &world.core.durable.as_ref().unwrap().notices;
    let of_widgets = notices.iter().filter(|text| text.contains("widgets"));
    of_widgets.map(String::as_str).collect()
}

#[test]
fn a_widget_whose_change_no_audit_followed_is_told_once_with_the_loss() {
    let mut world = capturing();
    widget_sends(&mut world, "m1");
    world.after(Span::from_secs(1));
    widget_sends(&mut world, "m2");
    assert_eq!(world.captured("state.audited", json!({"after": "m1"})), [""; 0]);
    world.after(Span::from_secs(2));
    world.dies();
    let told = "gresshopper: what widgets changed in the last 2 s before the kernel's process was lost may be lost.\n";
    assert_eq!(told_of_widgets(&world), [told]);
    world.dies();
    assert_eq!(told_of_widgets(&world), [told], "the next process had none");
}

#[test]
fn a_loss_after_the_audit_takes_nothing_of_widgets_along() {
    let mut world = capturing();
    widget_sends(&mut world, "m1");
    world.captured("state.audited", json!({"after": "m1"}));
    world.dies();
    assert_eq!(told_of_widgets(&world), [""; 0]);
    let mut world = capturing();
    widget_sends(&mut world, "m1");
    world.input(Input::StoreFailed("the quota is used up".into()));
    world.captured("state.audited", json!({"after": "m1"}));
    world.input(Input::StoreMended);
    world.dies();
    assert_eq!(told_of_widgets(&world).len(), 1, "its record was dropped");
}

/// The execution count that the supervisor's own reply to a waiting cell shows.
fn count_of_interrupted(world: &mut World) -> Value {
    world.run("g", gpu());
    let (core, now) = (&mut world.core, world.now);
    let replies = core
        .handle(Input::Interrupt, now)
        .into_iter()
        .filter_map(|out| match out {
            Output::ToFront(Item::Jupyter {
                channel: Channel::Shell,
                message,
                ..
            }) => Some(message),
            _ => None,
        });
    let [reply] = &replies.collect::<Vec<_>>()[..] else {
        panic!("one reply");
    };
    let content = Envelope::parse(reply).unwrap().content;
    serde_json::from_slice::<Value>(&content).unwrap()["execution_count"].clone()
}

/// As in one process: the number of the last cell that the kernel had.
#[test]
fn a_cell_that_the_kernel_never_had_shows_the_restored_count() {
    let mut world = World::new(durably(super::durable::settled(2)));
    greet(&mut world);
    world.input(Input::KernelUp { pid: 7 });
    world.answer(1, json!({}));
    assert_eq!(
        world.answer(2, json!({"execution_count": 57})),
        ["agent: state.begin"]
    );
    world.answer(3, json!({}));
    assert_eq!(count_of_interrupted(&mut world), 56);

    let restored = Some(json!({"execution_count": 12}));
    let mut follower = World::new(durably(super::durable::settled(2)).map(|d| Durably { restored, ..d }));
    follower.input(Input::KernelUp { pid: 7 });
    assert_eq!(follower.answer(1, json!({})), ["front: note kernel-up"]);
    assert_eq!(count_of_interrupted(&mut follower), 11);

    assert_eq!(count_of_interrupted(&mut capturing()), 1, "a new kernel");
}

#[test]
fn a_replica_answers_with_the_number_that_clients_have_read_before_the_variables_are_back() {
    let mut elected = World::new(durably(super::durable::settled(2)));
    elected.core.clients_have_read(Some(5));
    assert_eq!(count_of_interrupted(&mut elected), 5);
    elected.core.clients_have_read(None);
    elected.core.clients_have_read(Some(9));
    assert_eq!(
        elected.core.cells.shown_count(),
        5,
        "its own word counts from now on"
    );
}

#[test]
fn a_cell_that_its_process_had_begun_is_lost_under_the_number_that_the_process_announced() {
    let mut world = capturing();
    world.run("a", Value::Null);
    world.whole("a");
    world.reply("a", "ok");
    world.run("b", Value::Null);
    world.run("c", Value::Null);
    world.begins("b");
    let cells = &world.core.cells;
    let count = |cell: &str| cells.count_of_lost(cells.find(&cell.into()).unwrap());
    assert_eq!((count("b"), count("c")), (4, 3));
}

/// The next replica of a kernel whose cell `a` ended this way, with the store's word for it. The front `lacks` its end.
fn taken_over(status: &str, lacks: bool) -> World {
    let mut world = recorded(&[]);
    world.run("a", Value::Null);
    world.whole("a");
    world.reply("a", status);
    world.synced(1);
    let mut state = world.core.durable.as_ref().unwrap().journal.state().clone();
    let (tenure, executor) = (Tenure(2), Incarnation(1));
    let index = state.applied().next();
    state.apply(index, &Entry::Tenure { tenure, executor }).unwrap();
    let mut next = World::new(durably(state));
    next.input(Input::HandedBefore {
        cell: "a".into(),
        tenure: Tenure(1),
        behind: None,
        lacks,
    });
    next
}

#[test]
fn an_answer_of_the_log_says_what_may_be_missing_where_the_front_lacks_the_cells_end() {
    let missing =
        "front: stream a gresshopper: the kernel's process or node was lost right after this cell had ended";
    let error = "front: error a";
    for (status, lacks, shown) in [
        ("ok", false, vec![]),
        ("ok", true, vec![missing]),
        ("error", false, vec![]),
        ("error", true, vec![missing, error]),
    ] {
        let out = taken_over(status, lacks).run("a", Value::Null);
        let reply = format!("front: execute_reply a {status}");
        let told = [
            shown,
            vec!["front: note answered a", &reply, "front: status a idle"],
        ]
        .concat();
        assert_eq!(out, told, "{lacks}");
    }
}

/// A kernel with a saved state, at the edge of being given up: its process has died five times.
fn dies_again_and_again(given: Option<Durably>) -> World {
    let mut world = World::new(given);
    world.permits = true;
    world.hopd(News::Up);
    greet(&mut world);
    world.input(Input::KernelUp { pid: 7 });
    let ready = |world: &mut World, id| {
        world.answer(id, json!({}));
        world.answer(id + 1, json!({}));
        world.answer(id + 2, json!({}));
    };
    ready(&mut world, 1);
    for n in 1..=5 {
        let out = world.dies();
        assert!(out.contains(&"start".into()), "{out:?}");
        world.reopened();
        world.heard_again();
        ready(&mut world, 1 + 3 * n);
    }
    assert!(matches!(world.core.phase, Phase::Up));
    world
}

/// As `hopd` and the front hear of the end of a kernel that its notebook finds again, or doesn't.
fn given_up(found_again: bool) -> Vec<String> {
    let given = durably(super::durable::settled(2)).map(|d| Durably { found_again, ..d });
    let mut world = dies_again_and_again(given);
    let out = world.dies();
    assert_eq!(
        world.after(Span::from_secs(3600)),
        [""; 0],
        "nothing starts it again"
    );
    out
}

#[test]
fn a_kernel_that_is_given_up_hibernates_where_its_notebook_finds_it() {
    let died = "front: note kernel-over died it ran out of memory. It has died 6 times within a minute";
    let kept = ". Its saved variables are back at its notebook's next opening";
    let over = format!("{died}{kept}");
    assert_eq!(given_up(true), ["hopd: hibernated", &over, "leave"]);
    assert_eq!(given_up(false), ["hopd: kernel-ended", died, "leave"]);
}

#[test]
fn a_cell_that_a_kernel_is_given_up_in_is_lost_for_its_lease() {
    let mut world = dies_again_and_again(durably(super::durable::settled(2)));
    world.run("a", gpu());
    world.grant("a", 3, 1);
    let out = world.dies();
    assert_eq!(out[..2], ["hopd: ended a 3 Lost", "hopd: hibernated"], "{out:?}");
}

#[test]
fn a_kernel_that_is_given_up_ends_its_group() {
    let mut world = grown();
    world.commits = true;
    world.run("a", Value::Null);
    world.whole("a");
    world.reply("a", "ok");
    world.synced(1);
    world.core.durable.as_mut().unwrap().deaths = [world.now; 5].into();
    let out = world.dies();
    assert_eq!(out[0], "hopd: hibernated", "{out:?}");
    assert_eq!(out[2..], ["disband", "leave"], "{out:?}");
}

/// Also a kernel that is given up for another reason.
#[test]
fn a_dead_kernels_state_is_told_to_hopd_whatever_it_died_of() {
    let mut ended = dies_again_and_again(durably(super::durable::settled(2)));
    ended.input(Input::Hopd(News::Event(Event::Close {
        kernel: "k".into(),
        reason: "its seat".into(),
    })));
    let out = ended.dies();
    assert_eq!(out[0], "hopd: hibernated", "{out:?}");

    let mut asked = World::new(durably(super::durable::settled(2)));
    asked.input(Input::End);
    let out = asked.dies();
    assert_eq!(
        out,
        ["front: note kernel-over shutdown", "leave"],
        "its front closes it"
    );

    let silent = Some("no library".to_owned());
    let given = durably(super::durable::settled(2)).map(|d| Durably { silent, ..d });
    let mut unsaved = World::new(given);
    unsaved.input(Input::KernelUp { pid: 7 });
    let reason = "nobody is there".into();
    let out = unsaved.input(Input::Orphaned { reason });
    assert_eq!(out[..2], ["kill", "hopd: hibernated"], "{out:?}");
}
