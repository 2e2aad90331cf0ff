//! The notices of clients that announced themselves, and the text of those that didn't.

use super::*;

fn announce(world: &mut World, id: &str, data: &Value) -> Vec<String> {
    let content = json!({"comm_id": id, "target_name": "gresshopper", "data": data});
    world.request(Channel::Shell, "comm_open", id, &json!({}), &content)
}

fn say(world: &mut World, comm: &str, data: &Value) -> Vec<String> {
    let content = json!({"comm_id": comm, "data": data});
    world.request(Channel::Shell, "comm_msg", "m", &json!({}), &content)
}

fn queued(world: &mut World, cell: &str, position: u32) -> Vec<String> {
    world.hopd(News::Event(Event::Queued {
        kernel: "k".into(),
        cell: cell.into(),
        position,
        reason: "all are in use".into(),
        estimate: Some(Span::from_secs(40)),
        range: Some((Span::from_secs(20), Span::from_secs(90))),
    }))
}

#[test]
fn an_announced_client_hears_of_each_change() {
    let mut world = World::up();
    assert_eq!(
        announce(&mut world, "c", &json!({"version": 1})),
        ["front: comm_msg c cpu"]
    );
    assert_eq!(
        world.run("a", Value::Null),
        ["kernel: execute_request a"],
        "no need, no notice"
    );
    assert_eq!(world.reply("a", "ok"), ["front: execute_reply a ok"]);
    assert_eq!(
        world.run("g", gpu()),
        ["hopd: submit g 1 gpus", "front: comm_msg c queued"]
    );
    assert_eq!(queued(&mut world, "g", 2), ["front: comm_msg c queued"]);
    assert_eq!(queued(&mut world, "g", 2), [""; 0], "nothing new");
    let out = world.after(Span::from_secs(60));
    assert_eq!(out, ["front: status g queued"], "a text is for others");
    let granted = world.grant("g", 1, 1);
    assert_eq!(
        granted,
        [
            "front: status g granted",
            "kernel: execute_request g lease 1",
            "front: comm_msg c granted"
        ]
    );
    let out = world.reply("g", "ok");
    assert_eq!(
        out,
        [
            "front: execute_reply g ok lease 1",
            "hopd: ended g 1 Ok",
            "front: comm_msg c lingering"
        ]
    );
    assert_eq!(world.revoke(1), ["gpu: Leave 1", "front: comm_msg c cpu"]);
}

#[test]
fn an_announced_client_hears_that_the_lease_was_taken_away() {
    let mut world = World::up();
    announce(&mut world, "c", &json!({"version": 1}));
    world.run("g", gpu());
    world.grant("g", 1, 1);
    let out = world.revoke(1);
    assert_eq!(out.last().unwrap(), "front: comm_msg c revoked");
    let notice = world.core.notice();
    assert_eq!(
        [&notice["state"], &notice["cell"]],
        [&json!("revoked"), &json!("g")]
    );
    // Until the cell has ended: it may put its things in order first.
    let out = world.reply("g", "error");
    assert!(out.contains(&"front: comm_msg c cpu".to_owned()), "{out:?}");
}

#[test]
fn a_notice_says_which_cell_what_and_since_when() {
    let mut world = World::up();
    let metadata = json!({"cellId": "cell-9", "gresshopper": {"need": gpu()}});
    world.request(
        Channel::Shell,
        "execute_request",
        "g",
        &metadata,
        &json!({"code": "g"}),
    );
    queued(&mut world, "g", 3);
    let notice = world.core.notice();
    let expected = json!({
        "state": "queued", "position": 3, "reason": "all are in use", "eta_s": 40.0,
        "eta_range_s": [20.0, 90.0], "cell": "g", "cell_id": "cell-9",
        "need": {"gpus": 1, "gpu_mem_mib": 0, "cpus": 0}, "since": 1.0,
    });
    assert_eq!(notice, expected);
    world.after(Span::from_secs(5));
    world.grant("g", 1, 1);
    let notice = world.core.notice();
    assert_eq!(
        [&notice["state"], &notice["since"], &notice["lease"]],
        [&json!("granted"), &json!(6.0), &json!(1)]
    );
    assert_eq!(notice["until"], 3606.0, "the end of its quantum");
    world.hopd(News::Down {
        reason: "it restarts".into(),
    });
    assert_eq!(world.core.notice()["away"], "it restarts");
}

#[test]
fn a_lingering_lease_says_until_when_as_long_as_hopd_is_there() {
    let mut world = World::up();
    announce(&mut world, "c", &json!({"version": 1}));
    world.run("g", gpu());
    world.grant("g", 1, 1);
    world.reply("g", "ok");
    assert_eq!(world.core.notice().get("until"), None);
    assert_eq!(kept(&mut world, 9), [""; 0], "another lease");
    assert_eq!(kept(&mut world, 1), ["front: comm_msg c lingering"]);
    assert_eq!(world.core.notice()["until"], 30.0);
    world.hopd(News::Down {
        reason: "it restarts".into(),
    });
    assert_eq!(world.core.notice().get("until"), None, "nobody ends it then");
    assert_eq!(world.core.notice()["state"], "lingering");
}

fn kept(world: &mut World, lease: u64) -> Vec<String> {
    world.hopd(News::Event(Event::Kept {
        kernel: "k".into(),
        lease: LeaseId(lease),
        until: Timestamp(30_000_000),
    }))
}

#[test]
fn a_new_announcement_replaces_that_of_its_session() {
    let mut world = World::up();
    announce(&mut world, "c", &json!({"version": 1}));
    announce(&mut world, "d", &json!({"version": 1}));
    assert_eq!(
        world.run("g", gpu()),
        ["hopd: submit g 1 gpus", "front: comm_msg d queued"]
    );
    let content = json!({"comm_id": "d", "data": {}});
    assert_eq!(
        world.request(Channel::Shell, "comm_close", "x", &json!({}), &content),
        [""; 0]
    );
    assert_eq!(queued(&mut world, "g", 1), [""; 0]);
}

#[test]
fn other_comms_and_versions_are_not_ours() {
    let mut world = World::up();
    let content = json!({"comm_id": "w", "target_name": "jupyter.widget", "data": {}});
    let out = world.request(Channel::Shell, "comm_open", "w", &json!({}), &content);
    assert_eq!(out, ["kernel: comm_open"]);
    assert_eq!(
        say(&mut world, "w", &json!({"release": true})),
        ["kernel: comm_msg"]
    );
    assert_eq!(
        announce(&mut world, "c", &json!({"version": 2})),
        ["front: comm_close c"]
    );
    assert_eq!(world.run("g", gpu()), ["hopd: submit g 1 gpus"]);
}

#[test]
fn the_lingering_lease_is_released_on_a_wish() {
    let mut world = World::up();
    announce(&mut world, "c", &json!({"version": 1}));
    assert_eq!(
        say(&mut world, "c", &json!({"release": true})),
        [""; 0],
        "there is none"
    );
    world.run("g", gpu());
    world.grant("g", 1, 1);
    assert_eq!(
        say(&mut world, "c", &json!({"release": true})),
        [""; 0],
        "it is in use"
    );
    world.reply("g", "ok");
    let out = say(&mut world, "c", &json!({"release": true}));
    assert_eq!(out, ["gpu: Leave 1", "front: comm_msg c cpu"]);
    assert_eq!(world.errand(ErrandEnd::Left(Left::Nothing)), ["hopd: release 1"]);
}

#[test]
fn the_next_cell_takes_the_lingering_lease() {
    let mut world = World::up();
    announce(&mut world, "c", &json!({"version": 1}));
    world.run("g", gpu());
    world.grant("g", 1, 1);
    world.reply("g", "ok");
    world.run("h", gpu());
    let granted = world.grant("h", 1, 1);
    assert_eq!(
        granted,
        ["kernel: execute_request h lease 1", "front: comm_msg c granted"]
    );
    assert_eq!(
        world.reply("h", "ok").last().unwrap(),
        "front: comm_msg c lingering"
    );
}

#[test]
fn the_notebooks_default_goes_before_the_kernelspecs() {
    let mut world = World::up();
    announce(&mut world, "c", &json!({"version": 1}));
    say(&mut world, "c", &json!({"default_need": {"gpus": 2}}));
    assert_eq!(world.run("a", Value::Null)[0], "hopd: submit a 2 gpus");
    world.refuse("a");
    say(&mut world, "c", &json!({"default_need": null}));
    assert_eq!(world.run("b", Value::Null), ["kernel: execute_request b"]);
}

#[test]
fn a_notebooks_default_that_cannot_be_read_is_told_at_the_next_cell() {
    let mut world = World::up();
    announce(&mut world, "c", &json!({"version": 1}));
    for bad in [
        json!({"gpus": 9999}),
        json!("two"),
        json!({"gpus": 0, "gpu_type": "h200"}),
    ] {
        say(&mut world, "c", &json!({"default_need": bad}));
        let told = "front: stream b gresshopper: the GPUs that the notebook's metadata name for each cell are not used";
        assert_eq!(world.run("b", Value::Null), [told, "kernel: execute_request b"]);
        world.reply("b", "ok");
        assert_eq!(world.run("c", Value::Null), ["kernel: execute_request c"], "once");
        world.reply("c", "ok");
    }
    say(&mut world, "c", &json!({"default_need": {"gpu_type": "h200"}}));
    assert_eq!(world.run("d", Value::Null)[0], "hopd: submit d 1 gpus");
}

/// VS Code sends such requests before the user's first cell.
#[test]
fn a_clients_hidden_request_takes_no_default_and_no_notice() {
    let mut world = World::up();
    announce(&mut world, "c", &json!({"version": 1}));
    for (cell, content) in [
        ("a", json!({"code": "a", "silent": false, "store_history": false})),
        ("b", json!({"code": "b", "silent": true})),
    ] {
        say(&mut world, "c", &json!({"default_need": "two"}));
        let sent = [format!("kernel: execute_request {cell}")];
        assert_eq!(
            world.run_with(cell, &content, Value::Null),
            sent,
            "the notice waits"
        );
        say(&mut world, "c", &json!({"default_need": {"gpus": 1}}));
        let again = format!("{cell}-again");
        world.reply(cell, "ok");
        let sent = [format!("kernel: execute_request {again}")];
        assert_eq!(world.run_with(&again, &content, Value::Null), sent, "no GPU");
        world.reply(&again, "ok");
    }
    say(&mut world, "c", &json!({"default_need": "two"}));
    assert!(world.run("d", Value::Null)[0].starts_with("front: stream d"));
}

#[test]
fn a_kernel_whose_cell_waits_looks_busy_whatever_ends_meanwhile() {
    let mut world = World::up();
    let mut kernel = Author::new(KEY, "kernel".into());
    let mut status = |id: &str, kind: &str, state: &str| {
        let header = json!({"msg_id": id, "msg_type": kind, "session": "client"}).to_string();
        Input::Published(kernel.status(&header.into(), state, &json!({}), Timestamp(0)))
    };
    world.run("g", gpu());
    let idle = status("c", "complete_request", "idle");
    assert_eq!(
        world.input(idle),
        ["front: status c idle"],
        "nobody was told of the wait"
    );
    world.after(Span::from_secs(1));
    let busy = status("c", "complete_request", "busy");
    assert_eq!(world.input(busy), ["front: status c busy"]);
    let idle = status("c", "complete_request", "idle");
    assert_eq!(
        world.input(idle),
        ["front: status c idle", "front: status g queued"]
    );
    world.grant("g", 1, 1);
    let idle = status("d", "complete_request", "idle");
    assert_eq!(
        world.input(idle),
        ["front: status d idle"],
        "the kernel says itself what it does"
    );
}

#[test]
fn others_see_a_text_that_goes_before_the_cell_begins() {
    let mut world = World::up();
    world.run("g", gpu());
    queued(&mut world, "g", 2);
    let out = world.after(Span::from_secs(3));
    let text = "Waiting for 1 GPU: place 2 in the queue, about 40 s (all are in use)";
    assert_eq!(
        out,
        [
            "front: status g queued".to_owned(),
            format!("front: display_data g {text}")
        ]
    );
    assert_eq!(
        queued(&mut world, "g", 1),
        ["front: status g queued"],
        "news come every two seconds"
    );
    let text = "Waiting for 1 GPU: next in the queue, about 40 s (all are in use)";
    assert_eq!(
        world.after(Span::from_secs(60)),
        [format!("front: update_display_data g {text}")]
    );
    let out = world.grant("g", 1, 1);
    assert_eq!(
        out,
        [
            "front: clear_output g",
            "front: status g granted",
            "kernel: execute_request g lease 1"
        ]
    );
}

#[test]
fn the_text_is_gone_before_an_error_is_shown() {
    for how in ["refused", "interrupted"] {
        let mut world = World::up();
        world.run("g", gpu());
        world.after(Span::from_secs(3));
        let out = match how {
            "refused" => world.refuse("g"),
            _ => world.input(Input::Interrupt),
        };
        let at = |line: &str| out.iter().position(|l| l.starts_with(line)).unwrap();
        assert!(at("front: clear_output g") < at("front: error g"), "{out:?}");
        assert!(
            !world
                .after(Span::from_secs(60))
                .iter()
                .any(|l| l.contains("display")),
            "{how}"
        );
    }
}

#[test]
fn an_unattended_run_sees_no_text() {
    let mut world = World::up();
    let metadata = json!({"gresshopper": {"need": gpu(), "run": {"class": "batch"}}});
    world.request(
        Channel::Shell,
        "execute_request",
        "g",
        &metadata,
        &json!({"code": "g"}),
    );
    assert_eq!(world.after(Span::from_secs(60)), ["front: status g queued"]);
}

#[test]
fn a_block_in_a_cell_shows_no_text() {
    let mut world = World::up();
    world.run("a", Value::Null);
    world.agent(1, "need.acquire", json!({"need": gpu()}));
    assert_eq!(world.after(Span::from_secs(60)), ["front: status a queued"]);
    let notice = world.core.notice();
    assert_eq!(
        [&notice["cell"], &notice["state"]],
        [&json!("a"), &json!("queued")]
    );
}

#[test]
fn code_in_the_kernel_asks_for_the_same() {
    let mut world = World::up();
    assert_eq!(world.agent(1, "need.status", json!({})), ["agent: answer null"]);
    assert_eq!(
        world.agent(2, "need.end_linger", json!({})),
        ["agent: answer null"]
    );
    world.run("g", gpu());
    world.grant("g", 1, 1);
    assert_eq!(world.agent(3, "need.status", json!({})), ["agent: answer 1"]);
    assert_eq!(world.core.notice()["models"], json!(["NVIDIA H200"]));
    world.reply("g", "ok");
    assert_eq!(
        world.agent(4, "need.end_linger", json!({})),
        ["gpu: Leave 1", "agent: answer null"]
    );
}
