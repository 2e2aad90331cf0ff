//! Requests besides cells, and what becomes of them when the process's messages or the process itself are lost.

use super::durable::capturing;
use super::*;

/// A message of the kernel's for a client's request of this type.
fn of_kernel(kind: &str, request: &str, id: &str, content: &Value) -> Message {
    let mut kernel = Author::new(KEY, "kernel".into());
    let parent = json!({"msg_id": id, "msg_type": request}).to_string().into();
    let said = kernel.write(kind, &parent, &json!({}), content, Timestamp(0));
    said.message()
}

fn oversized(channel: Channel, kind: &str, request: &str) -> Input {
    Input::Oversized {
        channel,
        identity: Bytes::from_static(b"me"),
        head: of_kernel(kind, request, "a", &json!({})),
    }
}

#[test]
fn a_message_that_is_too_large_is_told_and_a_reply_is_made_up_for() {
    let output = "front: stream a gresshopper: an output was dropped, because it is too large";
    for (channel, kind, request, told) in [
        (Channel::Iopub, "comm_open", "execute_request", vec![output]),
        (
            Channel::Shell,
            "execute_reply",
            "execute_request",
            vec![
                "front: error a RequestFailed",
                "front: note answered a",
                "front: execute_reply a error RequestFailed",
            ],
        ),
        (
            Channel::Shell,
            "inspect_reply",
            "inspect_request",
            vec!["front: inspect_reply a"],
        ),
        (
            Channel::Control,
            "debug_reply",
            "debug_request",
            vec!["front: debug_reply a"],
        ),
    ] {
        let mut world = capturing();
        world.run("a", Value::Null);
        world.begins("a");
        assert_eq!(world.input(oversized(channel, kind, request)), told, "{kind}");
        let is_answered = kind == "execute_reply";
        assert_eq!(world.place("a").is_none(), is_answered, "{kind}");
    }
    let mut world = capturing();
    let head = Message(vec![Bytes::from_static(b"topic")]);
    let (channel, identity) = (Channel::Iopub, Bytes::new());
    let unreadable = Input::Oversized {
        channel,
        identity,
        head,
    };
    assert_eq!(world.input(unreadable), [""; 0]);
}

#[test]
fn a_lost_connection_to_the_living_process_is_told_once_it_is_back() {
    let mut world = capturing();
    world.run("a", Value::Null);
    let told = "front: stream a gresshopper: the connection to the kernel's process was lost for a moment";
    let out = world.input(Input::HeardAgain);
    assert!(out.len() == 1 && out[0].starts_with(told), "{out:?}");
}

#[test]
fn a_process_that_can_not_be_heard_any_more_gives_way_to_the_next() {
    let killed = || Exit {
        reason: "killed by signal 9".into(),
        killed: true,
    };
    let mut world = capturing();
    world.run("a", Value::Null);
    world.begins("a");
    assert_eq!(world.input(Input::Deaf), ["kill"]);
    let out = world.input(Input::Exited(killed()));
    assert!(
        out.contains(&"start".to_owned()) && out.contains(&"front: error a CellLost".to_owned()),
        "{out:?}"
    );

    let mut unlogged = World::up();
    assert_eq!(unlogged.input(Input::Deaf), ["kill"]);
    let over = "front: note kernel-over died the connection to the kernel's process was lost, and the process was ended";
    assert!(unlogged.input(Input::Exited(killed())).contains(&over.to_owned()));
    assert_eq!(unlogged.input(Input::Deaf), [""; 0]);
}

impl World {
    /// The kernel answers a request on control.
    fn answers_control(&mut self, kind: &str, request: &str, id: &str, content: &Value) -> Vec<String> {
        let (channel, identity) = (Channel::Control, Bytes::from_static(b"me"));
        let message = of_kernel(kind, request, id, content);
        self.input(Input::FromKernel {
            channel,
            identity,
            message,
        })
    }

    /// The process has died, and the next one, of this number, takes requests.
    fn is_replaced(&mut self, number: u64) -> Vec<String> {
        let mut out = self.dies();
        self.reopened();
        out.extend(self.heard_again());
        out.extend(self.answer(number, json!({})));
        out
    }

    /// The subshell that the kernel reads in a client's message to this one.
    fn subshell_of(&mut self, kind: &str, to: &str) -> Value {
        self.now = self.now + Span(1);
        let header = json!({"msg_id": format!("at {}", self.now.0), "msg_type": kind, "session": "client", "subshell_id": to});
        let mut envelope = self.client.write(
            "",
            &cells::no_header(),
            &json!({}),
            &json!({"code": "w"}),
            self.now,
        );
        envelope.header = header.to_string().into();
        self.client.signer().sign(&mut envelope);
        let (channel, identity, message) = (Channel::Shell, Bytes::from_static(b"me"), envelope.message());
        let asked = Input::Request {
            channel,
            identity,
            message,
        };
        let out = self.core.handle(asked, self.now);
        let sent = out.into_iter().find_map(|out| match out {
            Output::ToKernel { message, .. } => Some(message),
            _ => None,
        });
        let sent = Envelope::parse(&sent.expect("it is passed on")).unwrap();
        assert_eq!(self.client.signer().verify(&sent), Ok(()));
        serde_json::from_slice::<Value>(&sent.header).unwrap()["subshell_id"].clone()
    }
}

#[test]
fn a_message_for_a_subshell_of_an_earlier_process_goes_to_the_main_shell() {
    for kind in ["comm_msg", "execute_request", "inspect_request"] {
        let mut world = capturing();
        let created = json!({"status": "ok", "subshell_id": "s"});
        world.request(
            Channel::Control,
            "create_subshell_request",
            "c",
            &json!({}),
            &json!({}),
        );
        world.answers_control("create_subshell_reply", "create_subshell_request", "c", &created);
        assert_eq!(world.subshell_of(kind, "s"), "s", "{kind}");
        assert_eq!(world.subshell_of(kind, "another kernel's"), Value::Null, "{kind}");
        let out = world.is_replaced(2);
        assert!(out.contains(&"front: note kernel-up".to_owned()), "{out:?}");
        assert_eq!(world.subshell_of(kind, "s"), Value::Null, "{kind}");
        let again = json!({"status": "ok", "subshell_id": "t"});
        world.answers_control("create_subshell_reply", "create_subshell_request", "d", &again);
        assert_eq!(world.subshell_of(kind, "t"), "t", "{kind}");
        let deleted = json!({"subshell_id": "t"});
        world.request(
            Channel::Control,
            "delete_subshell_request",
            "e",
            &json!({}),
            &deleted,
        );
        assert_eq!(world.subshell_of(kind, "t"), Value::Null, "{kind}");
    }
}

#[test]
fn open_questions_are_asked_of_the_next_process_and_answered_ones_are_not() {
    let questions = [
        (Channel::Shell, "kernel_info_request"),
        (Channel::Shell, "complete_request"),
        (Channel::Shell, "inspect_request"),
        (Channel::Shell, "history_request"),
        (Channel::Shell, "is_complete_request"),
        (Channel::Shell, "comm_info_request"),
        (Channel::Control, "kernel_info_request"),
        (Channel::Control, "debug_request"),
        (Channel::Control, "create_subshell_request"),
    ];
    let others = [
        (Channel::Shell, "comm_msg"),
        (Channel::Control, "interrupt_request"),
        (Channel::Stdin, "input_reply"),
    ];
    for (is_asked, (channel, kind)) in questions
        .map(|q| (true, q))
        .into_iter()
        .chain(others.map(|o| (false, o)))
    {
        let mut world = capturing();
        let passed = [format!("kernel: {kind}")];
        let again = match is_asked {
            true => &passed[..],
            false => &[],
        };
        let ask = |world: &mut World| world.request(channel, kind, "q", &json!({}), &json!({}));
        assert_eq!(ask(&mut world), passed);
        for process in 2..4 {
            let out = world.is_replaced(process);
            let asked: Vec<_> = out.into_iter().filter(|o| o.starts_with("kernel: ")).collect();
            assert_eq!(asked, again, "{kind} in process {process}");
        }
        if is_asked {
            assert_eq!(ask(&mut world), [""; 0], "{kind}: as an earlier front has asked");
        }
        let message = of_kernel(
            &kind.replace("request", "reply"),
            kind,
            "q",
            &json!({"status": "ok"}),
        );
        let identity = Bytes::from_static(b"me");
        world.input(Input::FromKernel {
            channel,
            identity,
            message,
        });
        let out = world.is_replaced(4);
        assert!(
            !out.iter().any(|o| o.starts_with("kernel: ")),
            "{kind} was answered: {out:?}"
        );
    }
}

#[test]
fn a_request_that_does_not_reach_the_living_process_is_answered_in_its_place() {
    let failed = [
        "front: error q RequestFailed",
        "front: execute_reply q error RequestFailed",
    ];
    for (channel, kind, at_once, later) in [
        (
            Channel::Control,
            "interrupt_request",
            vec![
                "interrupt",
                "front: status q busy",
                "front: interrupt_reply q",
                "front: status q idle",
            ],
            vec![],
        ),
        (
            Channel::Shell,
            "execute_request",
            vec![],
            [&failed[..], &["front: status q idle"]].concat(),
        ),
        (
            Channel::Shell,
            "inspect_request",
            vec![],
            vec!["front: inspect_reply q", "front: status q idle"],
        ),
        (
            Channel::Control,
            "debug_request",
            vec![],
            vec!["front: debug_reply q", "front: status q idle"],
        ),
        (Channel::Shell, "kernel_info_request", vec![], vec![]),
        (Channel::Shell, "comm_msg", vec![], vec![]),
    ] {
        for dies in [false, true] {
            let mut world = World::up();
            world.request(channel, kind, "q", &json!({}), &json!({"code": "q"}));
            let header = json!({"msg_id": "q", "msg_type": kind, "session": "client"});
            let mut envelope = world
                .client
                .write("", &cells::no_header(), &json!({}), &json!({}), world.now);
            envelope.header = header.to_string().into();
            let unreached = Input::Unreached(channel, Bytes::from_static(b"me"), envelope.message());
            assert_eq!(world.input(unreached), at_once, "{kind}");
            assert_eq!(
                world.after(Span::from_secs(4)),
                [""; 0],
                "{kind}: the process may be at its end"
            );
            if dies {
                world.dies();
            }
            let told = match dies {
                true => vec![],
                false => later.clone(),
            };
            assert_eq!(world.after(Span::from_secs(2)), told, "{kind} {dies}");
        }
    }
}
