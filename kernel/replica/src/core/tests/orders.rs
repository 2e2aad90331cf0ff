//! Cells in order, with leases and without; blocks; interrupts; the beginning and the end.

use super::*;

#[test]
fn cells_without_a_need_pass_at_once() {
    let mut world = World::up();
    assert_eq!(world.run("a", Value::Null), ["kernel: execute_request a"]);
    assert_eq!(world.run("b", Value::Null), ["kernel: execute_request b"]);
    // The kernel itself aborts cells that it has.
    assert_eq!(world.reply("a", "error"), ["front: execute_reply a error"]);
    assert_eq!(world.reply("b", "aborted"), ["front: execute_reply b aborted"]);
    assert_eq!(world.place("b"), None);
}

#[test]
fn a_kernel_of_another_language_gets_its_cells_without_our_magics() {
    let mut world = World::of_program("bash_kernel", None, Replicas::One);
    world.input(Input::KernelUp { pid: 7 });
    world.hopd(News::Up);
    let mut run = |cell: &str, code: &str| world.run_with(cell, &json!({ "code": code }), Value::Null);
    assert_eq!(run("a", "ls # bash"), ["kernel: execute_request a \"ls # bash\""]);
    assert_eq!(
        run("b", "%%cpu\nls # bash"),
        ["kernel: execute_request b \"\\nls # bash\""]
    );
    assert_eq!(run("g", "#%%gpu 1\nls # bash"), [""; 0]);
    world.reply("a", "ok");
    assert_eq!(
        world.reply("b", "ok"),
        ["front: execute_reply b ok", "hopd: submit g 1 gpus"]
    );
    assert_eq!(
        world.grant("g", 1, 1),
        ["kernel: execute_request g lease 1 \"#%%gpu 1\\nls # bash\""]
    );
}

#[test]
fn a_kernel_that_knows_no_interrupt_message_gets_a_signal() {
    let mut world = World::of_program("R", None, Replicas::One);
    world.input(Input::KernelUp { pid: 7 });
    world.run("a", Value::Null);
    let out = interrupt(&mut world);
    assert_eq!(out[0], "interrupt");
    assert_eq!(out[1..], ANSWERED);
    let mut ipykernel = World::up();
    assert_eq!(interrupt(&mut ipykernel), ["kernel: interrupt_request"]);
}

#[test]
fn a_text_has_one_print_in_all_replicas_of_a_kernel_and_in_no_other_kernel() {
    let print = |key: &[u8], cell: &str, code: &str| {
        let mut world = World::up();
        world.core.author = Author::new(key, "replica".into());
        world.run_with(cell, &json!({"code": code}), gpu());
        world.core.lease.seeker().unwrap().print
    };
    let first = print(KEY, "a", "fit()");
    assert_eq!(print(KEY, "b", "fit()"), first);
    for other in [print(KEY, "a", "fit(2)"), print(b"another's", "a", "fit()")] {
        assert!(other != first && other != 0, "{other}");
    }
}

#[test]
fn a_lease_is_asked_for_when_nothing_runs() {
    let mut world = World::up();
    world.run("a", Value::Null);
    assert_eq!(world.run("g", gpu()), [""; 0]);
    assert_eq!(world.run("b", Value::Null), [""; 0]);
    assert_eq!([world.place("g"), world.place("b")], [Some(Place::Held); 2]);
    assert_eq!(
        world.reply("a", "ok"),
        ["front: execute_reply a ok", "hopd: submit g 1 gpus"]
    );
    assert_eq!(world.place("g"), Some(Place::Asked));
    assert_eq!(world.grant("x", 9, 1), [""; 0], "not a cell that waits");
    assert_eq!(world.grant("g", 1, 1), ["kernel: execute_request g lease 1"]);
    assert_eq!(world.place("g"), Some(Place::Running));
    assert_eq!(
        world.run("c", Value::Null),
        [""; 0],
        "a cell with a lease runs alone"
    );
    let out = world.reply("g", "ok");
    let expected = [
        "front: execute_reply g ok lease 1",
        "hopd: ended g 1 Ok",
        "kernel: execute_request b",
        "kernel: execute_request c",
    ];
    assert_eq!(out, expected);
}

#[test]
fn an_error_aborts_what_waits_behind_it() {
    let mut world = World::up();
    world.run("g", gpu());
    world.grant("g", 1, 1);
    world.run("b", Value::Null);
    world.run("h", gpu());
    let out = world.reply("g", "error");
    assert_eq!(
        out[..2],
        ["front: execute_reply g error lease 1", "hopd: ended g 1 Error"]
    );
    // Should hopd have been away just then, it hears of the end all the same.
    assert_eq!(world.hopd(News::Up), ["hopd: up ended g Error"]);
    let aborted = |cell| {
        ["status busy", "execute_reply aborted", "status idle"].map(|what| {
            let (kind, state) = what.split_once(' ').unwrap();
            format!("front: {kind} {cell} {state}")
        })
    };
    assert_eq!(out[2..], [aborted("b"), aborted("h")].concat());
    assert_eq!(world.run("later", Value::Null), ["kernel: execute_request later"]);
}

#[test]
fn without_stop_on_error_the_next_one_runs() {
    let mut world = World::up();
    world.run_with("a", &json!({"code": "", "stop_on_error": false}), Value::Null);
    world.run("g", gpu());
    assert_eq!(
        world.reply("a", "error"),
        ["front: execute_reply a error", "hopd: submit g 1 gpus"]
    );
}

const ANSWERED: [&str; 3] = [
    "front: status i busy",
    "front: interrupt_reply i",
    "front: status i idle",
];

fn interrupt(world: &mut World) -> Vec<String> {
    world.request(Channel::Control, "interrupt_request", "i", &json!({}), &json!({}))
}

#[test]
fn an_interrupt_spares_a_process_that_starts() {
    let mut world = World::starting();
    assert_eq!(world.input(Input::Interrupt), [""; 0]);
    assert_eq!(interrupt(&mut world), ANSWERED);
    assert_eq!(world.input(Input::KernelUp { pid: 7 }), ["front: note kernel-up"]);
}

#[test]
fn an_interrupt_ends_the_cells_that_wait_for_the_kernel() {
    for by_message in [true, false] {
        let mut world = World::starting();
        world.run_with("a", &json!({"code": "print(1)"}), Value::Null);
        world.run("g", gpu());
        let mut out = match by_message {
            true => interrupt(&mut world),
            false => world.input(Input::Interrupt),
        };
        if by_message {
            assert_eq!(out.split_off(out.len() - 3), ANSWERED);
        }
        let told = [
            "status a busy",
            "execute_input a",
            "error a KeyboardInterrupt",
            "execute_reply a error KeyboardInterrupt",
            "status a idle",
            "status g busy",
            "execute_reply g aborted",
            "status g idle",
        ];
        assert_eq!(out, told.map(|line| format!("front: {line}")));
        assert_eq!(world.run("later", Value::Null), [""; 0]);
        let out = world.input(Input::KernelUp { pid: 7 });
        assert_eq!(out, ["front: note kernel-up", "kernel: execute_request later"]);
    }
}

#[test]
fn a_cell_that_waits_for_the_kernel_is_shown_as_it_was_sent() {
    let mut world = World::starting();
    world.run_with("a", &json!({"code": "print(1)"}), Value::Null);
    let out = world.core.handle(Input::Interrupt, world.now);
    let shown = out.iter().find_map(|output| match output {
        Output::ToFront(Item::Jupyter { message, .. }) => {
            let envelope = Envelope::parse(message).unwrap();
            let input = envelope.header().unwrap().msg_type == "execute_input";
            input.then(|| serde_json::from_slice::<Value>(&envelope.content).unwrap())
        }
        _ => None,
    });
    assert_eq!(shown.unwrap()["code"], "print(1)");
}

/// The front holds cells until the seat is there, and hands them out with the interrupt behind: the kernel may be up by
/// then, and its first cell waits for the front's word.
#[test]
fn an_interrupt_ends_the_cell_that_waits_for_the_fronts_word() {
    let mut world = super::durable::capturing();
    world.permits = false;
    assert_eq!(world.run("a", Value::Null), ["front: note begins a"]);
    assert_eq!(world.run("b", Value::Null), [""; 0]);
    let out = interrupt(&mut world);
    let replies: Vec<_> = out.iter().filter(|l| l.contains("execute_reply")).collect();
    let told = [
        "front: execute_reply a error KeyboardInterrupt",
        "front: execute_reply b aborted",
    ];
    assert_eq!(replies, told);
    assert_eq!(out[out.len() - 3..], ANSWERED);
    assert_eq!(
        world.input(Input::MayBegin { cell: "a".into() }),
        [""; 0],
        "too late"
    );
    assert_eq!(
        interrupt(&mut world),
        ["kernel: interrupt_request"],
        "nothing waits"
    );
}

#[test]
fn an_interrupt_takes_a_waiting_cell_back() {
    let mut world = World::up();
    assert_eq!(world.input(Input::Interrupt), ["interrupt"]);
    world.run("g", gpu());
    world.run("b", Value::Null);
    let out = interrupt(&mut world);
    assert_eq!(out[0], "hopd: cancel g");
    assert!(
        out.contains(&"front: execute_reply g error KeyboardInterrupt".into()),
        "{out:?}"
    );
    assert!(out.contains(&"front: execute_reply b aborted".into()), "{out:?}");
    assert_eq!(
        out[out.len() - 2..],
        ["front: interrupt_reply i", "front: status i idle"]
    );
    assert!(
        !out.contains(&"interrupt".into()),
        "the kernel runs nothing and must not be struck"
    );
    assert_eq!(world.grant("g", 1, 1), [""; 0], "too late");
}

#[test]
fn a_bad_need_is_told_in_its_turn() {
    let mut world = World::up();
    world.run("a", Value::Null);
    assert_eq!(world.run("bad", json!({"gpus": 9999})), [""; 0]);
    let out = world.reply("a", "ok");
    assert!(
        out.contains(&"front: execute_reply bad error UsageError".into()),
        "{out:?}"
    );
    assert_eq!(world.place("bad"), None);
}

#[test]
fn a_refusal_is_an_error_of_that_cell() {
    let mut world = World::up();
    world.run("g", gpu());
    world.run("b", Value::Null);
    let out = world.refuse("g");
    assert!(
        out.contains(&"front: execute_reply g error LeaseRefused".into()),
        "{out:?}"
    );
    assert!(out.contains(&"front: execute_reply b aborted".into()), "{out:?}");
}

#[test]
fn a_request_that_comes_twice_runs_once() {
    let mut world = World::up();
    assert_eq!(world.run("a", Value::Null), ["kernel: execute_request a"]);
    assert_eq!(world.run("a", Value::Null), [""; 0]);
}

fn in_subshell(world: &mut World, cell: &str) -> Vec<String> {
    let header = json!({"msg_id": cell, "msg_type": "execute_request", "subshell_id": "1"});
    world.request_as(header, Channel::Shell, &json!({}), &json!({"code": ""}))
}

/// The kernel alone can refuse a request that can't be read.
fn unreadable(world: &mut World, cell: &str) -> Vec<String> {
    world.run_with(cell, &json!({"code": "", "silent": null}), Value::Null)
}

#[test]
fn a_cell_outside_of_the_order_reaches_a_kernel_that_starts() {
    for ask in [in_subshell, unreadable] {
        let mut world = super::durable::capturing();
        world.dies();
        world.reopened();
        assert_eq!(ask(&mut world, "s"), [""; 0]);
        assert_eq!(ask(&mut world, "s"), [""; 0], "once");
        assert_eq!(world.run("a", Value::Null), [""; 0]);
        world.heard_again();
        let out = world.answer(2, json!({}));
        let sent: Vec<_> = out.iter().filter(|line| line.starts_with("kernel: ")).collect();
        assert_eq!(sent, ["kernel: execute_request s", "kernel: execute_request a"]);
        world.reply("a", "ok");
        world.whole("a");
        assert_eq!(world.reply("s", "ok"), ["front: execute_reply s ok"]);
        assert_eq!(world.place("s"), None);
    }
}

/// It isn't lost with a process that never had it.
#[test]
fn a_cell_outside_of_the_order_outlives_a_process_that_starts() {
    let mut world = super::durable::capturing();
    world.dies();
    world.reopened();
    in_subshell(&mut world, "s");
    let out = world.input(Input::Exited(Exit {
        reason: "killed by signal 9".into(),
        killed: true,
    }));
    assert!(!out.iter().any(|line| line.contains("execute_reply")), "{out:?}");
    world.reopened();
    world.heard_again();
    let out = world.answer(2, json!({}));
    assert!(out.contains(&"kernel: execute_request s".to_owned()), "{out:?}");
}

#[test]
fn an_interrupt_spares_a_subshells_cell() {
    let mut world = World::starting();
    in_subshell(&mut world, "s");
    assert_eq!(interrupt(&mut world), ANSWERED);
    let out = world.input(Input::KernelUp { pid: 7 });
    assert_eq!(out, ["front: note kernel-up", "kernel: execute_request s"]);
}

#[test]
fn a_subshells_cell_stands_in_no_order() {
    let mut world = World::up();
    world.run("g", gpu());
    let out = in_subshell(&mut world, "s");
    assert_eq!(out, ["kernel: execute_request s"]);
    assert_eq!(world.place("s"), Some(Place::Free));
    assert_eq!(
        world.reply("s", "error"),
        ["front: execute_reply s error"],
        "it aborts nothing"
    );
    assert_eq!(world.place("g"), Some(Place::Asked));
}

#[test]
fn a_long_wait_is_told_with_each_change() {
    let mut world = World::up();
    world.run("g", gpu());
    assert_eq!(world.after(Span::from_millis(199)), [""; 0]);
    assert_eq!(world.after(Span::from_millis(1)), ["front: status g queued"]);
    let queued = Event::Queued {
        kernel: "k".into(),
        cell: "g".into(),
        position: 2,
        reason: "others came first".into(),
        estimate: None,
        range: None,
    };
    assert_eq!(world.hopd(News::Event(queued)), ["front: status g queued"]);
    assert_eq!(
        world.grant("g", 1, 0),
        ["front: status g granted", "kernel: execute_request g lease 1"]
    );
}

#[test]
fn a_waiting_cell_is_said_again_to_a_new_hopd() {
    let mut world = World::up();
    world.run("g", gpu());
    assert_eq!(
        world.hopd(News::Down {
            reason: "gone".into()
        }),
        [""; 0]
    );
    assert_eq!(world.hopd(News::Up), ["hopd: up waits g"]);
    world.grant("g", 1, 1);
    assert_eq!(world.hopd(News::Up), ["hopd: up holds 1 g"]);
    assert_eq!(
        world.grant("g", 1, 1),
        [""; 0],
        "a grant that is said again runs nothing twice"
    );
}

#[test]
fn a_block_has_a_lease_of_its_own() {
    let mut world = World::up();
    world.run("a", Value::Null);
    assert_eq!(
        world.agent(5, "need.acquire", json!({"need": gpu()})),
        ["hopd: submit a/1 1 gpus"]
    );
    assert_eq!(
        world.agent(6, "need.acquire", json!({"need": gpu()})),
        ["agent: refuse busy"]
    );
    assert_eq!(world.grant("a/1", 1, 1), ["agent: answer 1"]);
    assert_eq!(world.run("b", Value::Null), ["kernel: execute_request b"]);
    assert_eq!(
        world.agent(7, "need.release", json!({}))[0],
        "hopd: ended a/1 1 Ok"
    );
    assert_eq!(world.reply("a", "ok"), ["front: execute_reply a ok lease 1"]);
}

#[test]
fn a_block_shares_the_lease_of_its_cell() {
    let mut world = World::up();
    world.run("g", gpu());
    assert_eq!(
        world.agent(4, "need.acquire", json!({"need": gpu()})),
        ["agent: refuse busy"]
    );
    world.grant("g", 1, 1);
    assert_eq!(
        world.agent(5, "need.acquire", json!({"need": gpu()})),
        ["agent: answer 1"]
    );
    assert_eq!(
        world.agent(6, "need.acquire", json!({"need": {"gpus": 2}})),
        ["agent: refuse busy"]
    );
    assert_eq!(
        world.agent(7, "need.release", json!({})),
        ["agent: answer null"],
        "it gives nothing back"
    );
    assert_eq!(
        world.agent(8, "need.acquire", json!({"need": {"gpus": 9999}})),
        ["agent: refuse invalid"]
    );
    assert_eq!(world.agent(9, "other", json!({})), ["agent: refuse unknown"]);
}

#[test]
fn a_block_that_stays_open_refuses_the_next_cell() {
    let mut world = World::up();
    world.run("a", Value::Null);
    world.agent(5, "need.acquire", json!({"need": gpu()}));
    world.grant("a/1", 1, 1);
    world.reply("a", "ok");
    let out = world.run("g", gpu());
    assert!(
        out.contains(&"front: execute_reply g error LeaseRefused".into()),
        "{out:?}"
    );
    assert_eq!(world.revoke(1), ["gpu: Leave 1"], "nobody runs on it");
    assert_eq!(world.errand(ErrandEnd::Left(Left::Parked)), ["hopd: release 1"]);
    assert_eq!(world.run("h", gpu()), ["hopd: submit h 1 gpus"]);
}

#[test]
fn early_requests_wait_until_the_kernel_is_heard() {
    let mut world = World::starting();
    assert_eq!(world.run("a", Value::Null), [""; 0]);
    assert_eq!(world.run("g", gpu()), [""; 0]);
    let out = world.input(Input::KernelUp { pid: 7 });
    assert_eq!(out, ["front: note kernel-up", "kernel: execute_request a"]);
    assert_eq!(world.reply("a", "ok")[1], "hopd: submit g 1 gpus");
}

#[test]
fn a_kernel_that_never_comes_up_is_ended() {
    let mut world = World::starting();
    assert_eq!(world.after(Span::from_secs(119)), [""; 0]);
    assert_eq!(world.after(Span::from_secs(1)), ["kill"]);
    let exit = Exit {
        reason: "killed by signal 9".into(),
        killed: true,
    };
    let told = "front: note kernel-over not-started the kernel didn't come up within 120 s";
    assert_eq!(world.input(Input::Exited(exit)), [told, "leave"]);
}

#[test]
fn the_end_is_told_with_its_reason() {
    let exit = || {
        Input::Exited(Exit {
            reason: "it ran out of memory".into(),
            killed: false,
        })
    };
    let mut world = World::up();
    assert_eq!(
        world.input(exit()),
        ["front: note kernel-over died it ran out of memory", "leave"]
    );
    let mut world = World::up();
    assert_eq!(world.input(Input::End), ["kill"]);
    assert_eq!(world.input(exit()), ["front: note kernel-over shutdown", "leave"]);
    let mut world = World::up();
    world.input(terminated());
    let out = world.input(exit());
    assert!(out[0].contains("its seat was cancelled"), "{out:?}");
}

#[test]
fn a_shutdown_is_given_five_seconds() {
    let mut world = World::up();
    let out = world.request(
        Channel::Control,
        "shutdown_request",
        "s",
        &json!({}),
        &json!({"restart": false}),
    );
    assert_eq!(out, ["kernel: shutdown_request"]);
    assert_eq!(world.after(Span::from_secs(4)), [""; 0]);
    assert_eq!(world.after(Span::from_secs(1)), ["kill"]);
}

#[test]
fn hopd_hears_a_renamed_notebooks_name_now_and_on_later_connections() {
    let mut world = World::up();
    let renamed = |world: &mut World| {
        world
            .core
            .handle(Input::Renamed("train.ipynb".into()), Timestamp(0))
    };
    let named = |out: &[Output]| match out {
        [Output::ToHopd(request)] => match &**request {
            ToHopd::ReplicaUp(up) => up.name.clone(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    assert_eq!(named(&renamed(&mut world)), "train.ipynb");
    let why = "it restarts".to_owned();
    world.hopd(News::Down { reason: why });
    assert!(renamed(&mut world).is_empty(), "nobody hears it");
    let again = world.core.handle(Input::Hopd(News::Up), Timestamp(0));
    assert_eq!(named(&again), "train.ipynb");
    world.core.sanity_check();
}
