use super::*;
use hop_protocol::message::InFlight;

/// All that the front does, in words. By default nobody is there.
#[derive(Default)]
pub(crate) struct Recorder {
    here: Vec<&'static [u8]>,
    subscribed: bool,
    seen: Vec<String>,
}

impl Recorder {
    fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.seen)
    }
}

fn kind(message: &Message) -> String {
    let e = Envelope::parse(message).unwrap();
    let state = serde_json::from_slice::<Value>(&e.content).unwrap()["status"]
        .as_str()
        .unwrap_or("")
        .to_owned();
    format!("{} {state}", e.header().unwrap().msg_type)
        .trim()
        .to_owned()
}

impl Wire for Recorder {
    fn reply(&mut self, _: Channel, id: &[u8], message: Message, mark: Option<Mark>) -> Result<(), Message> {
        if !self.here.contains(&id) {
            return Err(message);
        }
        self.seen
            .push(format!("reply {} {:?}", kind(&message), mark.map(|m| m.0)));
        Ok(())
    }

    fn publish(&mut self, message: &Message, mark: Option<Mark>) -> bool {
        if self.subscribed {
            self.seen
                .push(format!("publish {} {:?}", kind(message), mark.map(|m| m.0)));
        }
        self.subscribed
    }

    fn subscribers(&self) -> usize {
        self.subscribed.into()
    }

    fn send(&mut self, item: Item) {
        self.seen.push(match item {
            Item::Jupyter { channel, message, .. } => format!("send {channel:?} {}", kind(&message)),
            Item::Note(note) => format!("send {note:?}"),
        });
    }

    fn done(&mut self, seq: u64) {
        self.seen.push(format!("done {seq}"));
    }
}

const ME: Bytes = Bytes::from_static(b"me");

fn request(author: &mut Author) -> Envelope {
    author.write(
        "execute_request",
        &Bytes::from_static(b"{}"),
        &json!({}),
        &json!({"code": "1"}),
        Time(0),
    )
}

/// A client sends a cell.
fn asks(front: &mut Front, wire: &mut Recorder, author: &mut Author) {
    front.request(Channel::Shell, &ME, request(author).message(), Time(0), wire);
}

fn from_kernel(channel: Channel, message: Message) -> Item {
    let identity = if channel == Channel::Iopub {
        Bytes::new()
    } else {
        ME
    };
    Item::Jupyter {
        channel,
        identity,
        message,
    }
}

#[test]
fn only_signed_requests_pass() {
    let (mut front, mut wire) = (Front::new(b"key", "front".into()), Recorder::default());
    front.request(
        Channel::Shell,
        &ME,
        request(&mut Author::new(b"wrong", "w".into())).message(),
        Time(0),
        &mut wire,
    );
    front.request(
        Channel::Shell,
        &ME,
        Message(vec![Bytes::from_static(b"x")]),
        Time(0),
        &mut wire,
    );
    assert!(wire.take().is_empty());
    front.request(
        Channel::Shell,
        &ME,
        request(&mut Author::new(b"key", "client".into())).message(),
        Time(0),
        &mut wire,
    );
    assert_eq!(wire.take(), ["send Shell execute_request"]);
}

#[test]
fn a_kernel_is_not_shut_down_in_the_place_of_the_one_before_it() {
    let mut author = Author::new(b"key", "client".into());
    let asked = author.write(
        "shutdown_request",
        &Bytes::from_static(b"{}"),
        &json!({}),
        &json!({}),
        Time(0),
    );
    let made = asked.date().unwrap();
    let second = jiff::SignedDuration::from_secs(1);
    let passes = |front: Front, request: Envelope| {
        let (mut front, mut wire) = (front, Recorder::default());
        match front.request(Channel::Control, &ME, request.message(), Time(0), &mut wire) {
            Asked::Shutdown(asked) => wire.send(asked.item()),
            asked => assert!(matches!(asked, Asked::Nothing | Asked::Kernel)),
        }
        front.sanity_check();
        wire.take()
    };
    let front = || Front::new(b"key", "front".into());
    let sent = ["send Control shutdown_request"];
    assert!(passes(front().launched(made + second), asked.clone()).is_empty());
    assert_eq!(passes(front().launched(made - second), asked.clone()), sent);
    assert_eq!(passes(front(), asked.clone()), sent, "a front that took over");
    let mut undated = asked;
    undated.header = Bytes::from_static(br#"{"msg_id": "1", "msg_type": "shutdown_request", "date": "?"}"#);
    author.signer().sign(&mut undated);
    assert_eq!(passes(front().launched(made + second), undated), sent);
    // Other requests wait for the kernel that comes.
    let early = request(&mut author);
    let kept = passes(front().launched(made + second), early);
    assert_eq!(kept, ["send Control execute_request"]);
}

#[test]
fn what_nobody_was_there_for_is_delivered_on_return() {
    let (mut front, mut wire, mut author) = (
        Front::new(b"key", "front".into()),
        Recorder::default(),
        Author::new(b"key", "client".into()),
    );
    let r = request(&mut author);
    front.request(Channel::Shell, &ME, r.clone().message(), Time(0), &mut wire);
    wire.take();
    let nothing = json!({});
    let starting = author.status(&Bytes::from_static(b"{}"), "starting", &nothing, Time(0));
    front.item(1, from_kernel(Channel::Iopub, starting), Time(0), &mut wire);
    front.item(
        2,
        from_kernel(
            Channel::Iopub,
            author.publish("stream", &r.header, &nothing, &nothing, Time(0)),
        ),
        Time(0),
        &mut wire,
    );
    let reply = author
        .write(
            "execute_reply",
            &r.header,
            &nothing,
            &json!({"status": "ok"}),
            Time(0),
        )
        .message();
    front.item(3, from_kernel(Channel::Shell, reply), Time(0), &mut wire);
    front.sanity_check();
    assert_eq!(wire.take(), ["done 1"]);

    wire.subscribed = true;
    front.subscribed(&Bytes::new(), Time(0), &mut wire);
    assert_eq!(
        wire.take(),
        ["publish iopub_welcome None", "publish stream Some(2)"]
    );
    wire.here.push(b"me");
    front.connected(Channel::Control, &ME, &mut wire);
    assert!(wire.take().is_empty(), "it is for shell");
    front.connected(Channel::Shell, &ME, &mut wire);
    assert_eq!(wire.take(), ["reply execute_reply ok Some(3)"]);
    front.sanity_check();
}

#[test]
fn no_later_message_overtakes_an_output_that_found_no_subscriber() {
    let (mut front, mut wire) = (Front::new(b"key", "front".into()), Recorder::default());
    let mut author = Author::new(b"key", "client".into());
    let cell = request(&mut author);
    asks(&mut front, &mut wire, &mut author);
    let text = author.publish("stream", &cell.header, &json!({}), &json!({}), Time(0));
    front.item(1, from_kernel(Channel::Iopub, text), Time(0), &mut wire);
    wire.take();
    // The client's subscription is there, and the news of it is not.
    wire.subscribed = true;
    let idle = author.status(&cell.header, "idle", &json!({}), Time(0));
    front.item(2, from_kernel(Channel::Iopub, idle), Time(0), &mut wire);
    front.sanity_check();
    assert_eq!(wire.take(), ["publish stream Some(1)", "publish status Some(2)"]);
    front.subscribed(&Bytes::new(), Time(0), &mut wire);
    assert_eq!(wire.take(), ["publish iopub_welcome None"]);
}

#[test]
fn too_much_is_dropped_from_the_oldest_and_said() {
    let (mut front, mut wire, mut author) = (
        Front::new(b"key", "front".into()),
        Recorder::default(),
        Author::new(b"key", "client".into()),
    );
    let r = request(&mut author);
    let large = json!({"text": "x".repeat(KEEP / 2 + 1)});
    for seq in 1..=3 {
        front.item(
            seq,
            from_kernel(
                Channel::Iopub,
                author.publish("stream", &r.header, &json!({}), &large, Time(0)),
            ),
            Time(0),
            &mut wire,
        );
        front.sanity_check();
    }
    assert_eq!(wire.take(), ["done 1", "done 2"]);
    wire.subscribed = true;
    front.subscribed(&Bytes::new(), Time(0), &mut wire);
    let expected = [
        "publish iopub_welcome None",
        "publish stream None",
        "publish stream Some(3)",
    ];
    assert_eq!(wire.take(), expected);
}

/// The replica dropped outputs on their way.
fn dropped(front: &mut Front, wire: &mut Recorder, messages: u64) -> Vec<String> {
    let note = Note::Dropped { messages, bytes: 9 };
    front.item(messages, Item::Note(note), Time(0), wire);
    front.sanity_check();
    wire.take()
}

#[test]
fn outputs_that_a_replica_dropped_are_told_at_the_open_cell_or_at_the_next() {
    let (mut front, mut wire, mut author) = (
        Front::new(b"key", "front".into()),
        Recorder::default(),
        Author::new(b"key", "client".into()),
    );
    wire.subscribed = true;
    assert_eq!(dropped(&mut front, &mut wire, 1), ["done 1"], "no cell is open");
    asks(&mut front, &mut wire, &mut author);
    let at_next = ["publish stream None", "send Shell execute_request"];
    assert_eq!(wire.take(), at_next);
    let at_open = ["publish stream None", "done 2"];
    assert_eq!(dropped(&mut front, &mut wire, 2), at_open);
    // Without a client the sentence waits.
    wire.subscribed = false;
    assert_eq!(dropped(&mut front, &mut wire, 3), ["done 3"]);
    wire.subscribed = true;
    front.subscribed(&Bytes::new(), Time(0), &mut wire);
    front.sanity_check();
    let at_return = ["publish iopub_welcome None", "publish stream None"];
    assert_eq!(wire.take(), at_return);
    // After the server's end the notebook's next opening tells it.
    front.part();
    dropped(&mut front, &mut wire, 4);
    assert_eq!(front.parted().unwrap().dropped, 4);
}

#[test]
fn a_death_is_told_in_the_cell_at_once_and_answered_after() {
    let (mut front, mut wire, mut author) = (
        Front::new(b"key", "front".into()),
        Recorder::default(),
        Author::new(b"key", "client".into()),
    );
    wire.here.push(b"me");
    wire.subscribed = true;
    for _ in 0..2 {
        asks(&mut front, &mut wire, &mut author);
    }
    wire.take();
    let over = Over::Died {
        reason: "out of memory".into(),
    };
    front.item(1, Item::Note(Note::KernelOver { over }), Time(0), &mut wire);
    front.sanity_check();
    assert_eq!(
        wire.take(),
        [
            "publish error None",
            "publish status Some(1)",
            "publish status Some(2)",
            "done 1"
        ]
    );
    assert_eq!(
        front.end(),
        Some(&End::Dead {
            reason: "out of memory".into()
        })
    );
    front.send_obituaries(&mut wire);
    assert_eq!(
        wire.take(),
        [
            "reply execute_reply error None",
            "reply execute_reply aborted None"
        ]
    );
    asks(&mut front, &mut wire, &mut author);
    assert!(wire.take().is_empty(), "a dead kernel is asked nothing");
}

#[test]
fn a_cell_that_was_let_begin_and_did_not_is_handed_on_as_a_new_one() {
    let mut author = Author::new(b"key", "client".into());
    let (mut front, mut wire) = (
        Front::new(b"key", "front".into()).durable(true),
        Recorder::default(),
    );
    front.next_tenure(Tenure(1), false, Time(0), &mut wire);
    for begins in [false, true] {
        let r = request(&mut author);
        let cell: CellId = r.header().unwrap().msg_id.into();
        front.request(Channel::Shell, &ME, r.message(), Time(0), &mut wire);
        let note = Note::Begins { cell: cell.clone() };
        front.item(1, Item::Note(note), Time(0), &mut wire);
        if !begins {
            let note = Note::NotBegun { cell };
            front.item(2, Item::Note(note), Time(0), &mut wire);
        }
    }
    wire.take();
    front.next_tenure(Tenure(2), true, Time(0), &mut wire);
    let sent = wire.take();
    assert_eq!(sent.len(), 3, "{sent:?}");
    assert_eq!(sent[0], "send Shell execute_request");
    assert!(
        sent[1].contains("HandedBefore") && sent[1].contains("Tenure(1)"),
        "{sent:?}"
    );
}

#[test]
fn an_answer_is_heard_before_another_cell_has_its_id() {
    let mut author = Author::new(b"key", "client".into());
    let (mut front, mut wire) = (
        Front::new(b"key", "front".into()).durable(true),
        Recorder::default(),
    );
    front.next_tenure(Tenure(1), false, Time(0), &mut wire);
    let (r, other) = (request(&mut author), request(&mut author));
    let cell: CellId = r.header().unwrap().msg_id.into();
    let (number, count) = (7, None);
    front.request(Channel::Shell, &ME, r.clone().message(), Time(0), &mut wire);
    let note = Note::Answered {
        cell,
        number,
        count,
        lost: false,
    };
    front.item(1, Item::Note(note), Time(0), &mut wire);
    let reply = author.write("execute_reply", &r.header, &json!({}), &json!({}), Time(0));
    front.item(
        2,
        from_kernel(Channel::Shell, reply.message()),
        Time(0),
        &mut wire,
    );
    wire.take();
    front.request(Channel::Shell, &ME, other.message(), Time(0), &mut wire);
    assert_eq!(wire.take(), ["send Shell execute_request"]);
    for heard in [true, false] {
        front.request(Channel::Shell, &ME, r.clone().message(), Time(0), &mut wire);
        let sent = wire.take();
        assert_eq!(sent.len(), 1 + usize::from(heard), "{sent:?}");
        assert_eq!(sent[0].contains("Heard { cells: 7"), heard, "{sent:?}");
        assert_eq!(sent.last().unwrap(), "send Shell execute_request");
    }
}

/// The open cell's own reply says that it is lost, or it runs again.
#[test]
fn answered_cells_whose_effects_are_gone_are_named_unless_they_wait_for_their_reply() {
    let mut author = Author::new(b"key", "client".into());
    let (mut front, mut wire) = (
        Front::new(b"key", "front".into()).durable(true),
        Recorder::default(),
    );
    (wire.here, wire.subscribed) = (vec![&b"me"[..]], true);
    front.next_tenure(Tenure(1), false, Time(0), &mut wire);
    let (answered, open) = (request(&mut author), request(&mut author));
    for (seq, cell) in [(1, &answered), (3, &open)] {
        front.request(Channel::Shell, &ME, cell.clone().message(), Time(0), &mut wire);
        let note = Note::Answered {
            cell: cell.header().unwrap().msg_id.into(),
            number: seq,
            count: Some(4),
            lost: false,
        };
        front.item(seq, Item::Note(note), Time(0), &mut wire);
        if seq == 1 {
            let reply = author.write("execute_reply", &cell.header, &json!({}), &json!({}), Time(0));
            let reply = from_kernel(Channel::Shell, reply.message());
            front.item(2, reply, Time(0), &mut wire);
        }
    }
    wire.take();
    let id = |cell: &Envelope| CellId::from(cell.header().unwrap().msg_id.as_str());
    let loses = |lost: Vec<CellId>| {
        Item::Note(Note::Tenure {
            tenure: Tenure(2),
            lost,
        })
    };
    front.item(4, loses(vec![id(&open)]), Time(0), &mut wire);
    let named = |told: &[String]| told.iter().any(|line| line.contains("stream"));
    assert!(!named(&wire.take()), "the cell is open");
    front.item(5, loses(vec![id(&answered), id(&open)]), Time(0), &mut wire);
    assert!(named(&wire.take()));
    front.item(6, loses(vec![id(&answered)]), Time(0), &mut wire);
    assert!(!named(&wire.take()), "once");
    front.sanity_check();
}

/// Cells 1 and 2 were answered, and the store has the first one alone.
fn half_saved() -> (Front, Recorder) {
    let mut author = Author::new(b"key", "client".into());
    let (mut front, mut wire) = (
        Front::new(b"key", "front".into()).durable(true),
        Recorder::default(),
    );
    for (seq, cell) in [(1, request(&mut author)), (2, request(&mut author))] {
        front.request(Channel::Shell, &ME, cell.clone().message(), Time(0), &mut wire);
        let note = Note::Answered {
            cell: cell.header().unwrap().msg_id.into(),
            number: seq,
            count: Some(seq as i64),
            lost: false,
        };
        front.item(seq, Item::Note(note), Time(0), &mut wire);
        let reply = author.write("execute_reply", &cell.header, &json!({}), &json!({}), Time(0));
        front.item(
            seq + 2,
            from_kernel(Channel::Shell, reply.message()),
            Time(0),
            &mut wire,
        );
    }
    front.item(5, Item::Note(Note::Settled { through: 1 }), Time(0), &mut wire);
    (front, wire)
}

#[test]
fn cells_that_were_not_saved_are_named_at_the_next_opening() {
    let kernel = tempfile::tempdir().unwrap();
    for dies in [false, true] {
        let (mut front, mut wire) = half_saved();
        match dies {
            true => front.die("its node was lost".into(), Time(0), &mut wire),
            false => front.part(),
        }
        front.parted().unwrap().write(kernel.path()).unwrap();
        let told = Meanwhile::take(kernel.path()).unwrap();
        let names: Vec<_> = told.unsaved.iter().map(|unsaved| &*unsaved.name).collect();
        assert_eq!(names, ["[2]"], "{dies}");
        let cell = told.unsaved[0].cell.clone();

        let (mut front, mut wire) = (Front::new(b"key", "next".into()), Recorder::default());
        wire.subscribed = true;
        front.tell_meanwhile(told);
        let lost = Note::Tenure {
            tenure: Tenure(2),
            lost: vec![cell],
        };
        front.item(1, Item::Note(lost), Time(0), &mut wire);
        let r = request(&mut Author::new(b"key", "client".into()));
        front.request(Channel::Shell, &ME, r.message(), Time(0), &mut wire);
        let streams = wire.take().iter().filter(|line| line.contains("stream")).count();
        assert_eq!(streams, 1, "they are named once");
    }
    let (mut front, mut wire) = half_saved();
    front.item(6, Item::Note(Note::Settled { through: 2 }), Time(0), &mut wire);
    front.part();
    assert_eq!(front.parted().unwrap().unsaved, [], "all was saved");
    assert!(half_saved().0.parted().is_none(), "its user has ended the kernel");
}

#[test]
fn a_cell_whose_reply_tells_its_loss_is_not_named_as_ended() {
    let (mut front, mut wire) = half_saved();
    front.part();
    let lost = Note::Answered {
        cell: "lost".into(),
        number: 3,
        count: None,
        lost: true,
    };
    front.item(6, Item::Note(lost), Time(0), &mut wire);
    let told = front.parted().unwrap();
    let names: Vec<_> = told.unsaved.iter().map(|unsaved| &*unsaved.name).collect();
    assert_eq!(names, ["[2]"]);
}

#[test]
fn a_loss_that_nobody_read_of_is_told_by_its_number_at_the_next_opening() {
    for parts_first in [true, false] {
        let (mut front, mut wire) = half_saved();
        let cell = front.ledger.cells().next().unwrap().clone();
        if parts_first {
            front.part();
        }
        let lost = Note::Tenure {
            tenure: Tenure(2),
            lost: vec![cell],
        };
        front.item(6, Item::Note(lost), Time(0), &mut wire);
        if !parts_first {
            front.part();
        }
        let told = front.parted().unwrap();
        let names: Vec<_> = told.unsaved.iter().map(|unsaved| &*unsaved.name).collect();
        assert_eq!((names, told.has_losses()), (vec!["[2]"], true), "{parts_first}");
    }
}

#[test]
fn what_a_cell_showed_without_a_server_is_shown_at_the_next_openings_first_cell() {
    let mut author = Author::new(b"key", "client".into());
    let (mut front, mut wire) = (
        Front::new(b"key", "front".into()).durable(true),
        Recorder::default(),
    );
    let (r, behind) = (request(&mut author), request(&mut author));
    for r in [&r, &behind] {
        front.request(Channel::Shell, &ME, r.clone().message(), Time(0), &mut wire);
    }
    let cell: CellId = r.header().unwrap().msg_id.into();
    front.item(1, Item::Note(Note::Begins { cell }), Time(0), &mut wire);
    let mut shows = |front: &mut Front, wire: &mut Recorder, seq, text: &str| {
        let content = json!({"name": "stdout", "text": text});
        let output = author.publish("stream", &r.header, &json!({}), &content, Time(0));
        front.item(seq, from_kernel(Channel::Iopub, output), Time(0), wire);
    };
    shows(&mut front, &mut wire, 2, "before");
    front.part();
    shows(&mut front, &mut wire, 3, "after");
    let kernel = tempfile::tempdir().unwrap();
    front.parted().unwrap().write(kernel.path()).unwrap();

    let told = Meanwhile::take(kernel.path()).unwrap();
    assert_eq!(Meanwhile::take(kernel.path()), None, "it is told once");
    assert_eq!((told.lost.len(), told.not_run.len()), (1, 1));
    let texts: Vec<_> = told.outputs.iter().map(|o| o.content["text"].clone()).collect();
    assert_eq!(texts, ["before", "after"]);
    let (mut front, mut wire) = (Front::new(b"key", "next".into()), Recorder::default());
    wire.subscribed = true;
    front.tell_meanwhile(told);
    let r = request(&mut Author::new(b"key", "client".into()));
    front.request(Channel::Shell, &ME, r.message(), Time(0), &mut wire);
    let streams = wire
        .take()
        .iter()
        .filter(|s| s.contains("publish stream"))
        .count();
    assert_eq!(streams, 5, "three sentences and two outputs");
}

/// VS Code sends such requests before the user's first cell.
#[test]
fn a_clients_hidden_request_is_told_nothing_in_the_users_place() {
    let mut author = Author::new(b"key", "client".into());
    let (mut front, mut wire) = (Front::new(b"key", "front".into()), Recorder::default());
    wire.subscribed = true;
    front.tell("it was lost", Time(0), &mut wire);
    for content in [
        json!({"code": "1", "silent": false, "store_history": false}),
        json!({"code": "1", "silent": true}),
    ] {
        let parent = Bytes::from_static(b"{}");
        let hidden = author.write("execute_request", &parent, &json!({}), &content, Time(0));
        front.request(Channel::Shell, &ME, hidden.message(), Time(0), &mut wire);
    }
    front.tell("it was moved", Time(0), &mut wire);
    front.sanity_check();
    assert_eq!(wire.take(), ["send Shell execute_request"; 2]);
    asks(&mut front, &mut wire, &mut author);
    let told = "publish stream None";
    assert_eq!(wire.take(), [told, told, "send Shell execute_request"]);
    front.part();
    assert_eq!(front.parted().unwrap().not_run.len(), 1);
}

#[test]
fn a_new_front_learns_what_is_open_from_the_replica() {
    let (mut front, mut wire, mut author) = (
        Front::new(b"key", "front".into()),
        Recorder::default(),
        Author::new(b"key", "client".into()),
    );
    let r = request(&mut author);
    front.resume(
        vec![InFlight {
            identity: hex::encode(ME),
            header: String::from_utf8(r.header.to_vec()).unwrap(),
        }],
        Some(&[]),
        Tenure(0),
        &mut wire,
    );
    assert!(front.owes(&ME));
    let reply = author
        .write(
            "execute_reply",
            &r.header,
            &json!({}),
            &json!({"status": "ok"}),
            Time(0),
        )
        .message();
    wire.here.push(b"me");
    front.item(1, from_kernel(Channel::Shell, reply), Time(0), &mut wire);
    assert!(!front.owes(&ME));
    assert_eq!(wire.take(), ["reply execute_reply ok Some(1)"]);
}

/// jupyter_client raises at a signature that it has seen: a plain client's notebook ended by it.
#[test]
fn a_reply_that_a_killed_front_may_have_handed_over_is_another_message() {
    let (mut front, mut wire, mut author) = (
        Front::new(b"key", "front".into()),
        Recorder::default(),
        Author::new(b"key", "client".into()),
    );
    let mut reply_to =
        |r: &Envelope| author.write("execute_reply", &r.header, &json!({}), &json!({}), Time(0));
    let mut client = Author::new(b"key", "client".into());
    let (read, other) = (request(&mut client), request(&mut client));
    let cell = CellId::from(read.header().unwrap().msg_id.as_str());
    front.resume(Vec::new(), Some(&[cell]), Tenure(0), &mut wire);
    let (reply, of_other) = (reply_to(&read), reply_to(&other));
    assert_eq!(front.renewed(of_other.clone().message()), of_other.message());
    let renewed = Envelope::parse(&front.renewed(reply.clone().message())).unwrap();
    assert_eq!(front.author.signer().verify(&renewed), Ok(()));
    assert_ne!(renewed.signature, reply.signature);
    let rest = |e: &Envelope| (e.parent.clone(), e.content.clone(), e.header().unwrap().msg_type);
    assert_eq!(rest(&renewed), rest(&reply));
    assert_eq!(front.renewed(reply.clone().message()), reply.message(), "once");
}

/// A front of a kernel that ran on without a server, with the cell that still runs, and a client that listens.
fn after_a_loss(cell: &Envelope) -> (Front, Recorder) {
    let mut front = Front::new(b"key", "front".into()).durable(true).after_a_loss();
    let mut wire = Recorder {
        here: vec![&b"me"[..]],
        subscribed: true,
        seen: Vec::new(),
    };
    let header = String::from_utf8(cell.header.to_vec()).unwrap();
    let identity = hex::encode("gone");
    let flights = vec![InFlight { identity, header }];
    front.resume(flights, Some(&[]), Tenure(1), &mut wire);
    (front, wire)
}

/// An output of that cell comes. Returns what is done about it.
fn shows(front: &mut Front, wire: &mut Recorder, cell: &Envelope, seq: u64) -> Vec<String> {
    let content = json!({"name": "stdout", "text": "x"});
    let mut kernel = Author::new(b"key", format!("kernel {seq}"));
    let output = kernel.publish("stream", &cell.header, &json!({}), &content, Time(0));
    front.item(seq, from_kernel(Channel::Iopub, output), Time(0), wire);
    wire.take()
}

#[test]
fn a_cell_of_before_is_shown_at_the_next_cell_and_behind_it() {
    let mut author = Author::new(b"key", "client".into());
    let (cell, next) = (request(&mut author), request(&mut author));
    let (mut front, mut wire) = after_a_loss(&cell);
    assert_eq!(shows(&mut front, &mut wire, &cell, 1), ["done 1"], "nobody asked");
    front.request(Channel::Shell, &ME, next.clone().message(), Time(0), &mut wire);
    let told = "publish stream None";
    assert_eq!(wire.take(), [told, told, "send Shell execute_request"]);
    assert_eq!(shows(&mut front, &mut wire, &cell, 2), [told, "done 2"]);
    let reply = author.write("execute_reply", &cell.header, &json!({}), &json!({}), Time(0));
    front.item(
        3,
        from_kernel(Channel::Shell, reply.message()),
        Time(0),
        &mut wire,
    );
    assert_eq!(wire.take(), ["done 3"], "its client is gone");
    assert_eq!(shows(&mut front, &mut wire, &next, 4), ["publish stream Some(2)"]);
    front.sanity_check();
}

#[test]
fn a_cell_of_before_that_nobody_read_of_is_kept_for_the_opening_after() {
    let cell = request(&mut Author::new(b"key", "client".into()));
    let (mut front, mut wire) = after_a_loss(&cell);
    shows(&mut front, &mut wire, &cell, 1);
    front.part();
    shows(&mut front, &mut wire, &cell, 2);
    assert_eq!(front.parted().unwrap().outputs.len(), 2);
}

#[test]
fn a_cell_of_before_that_asks_for_input_is_told_at_the_cell_behind_it() {
    let mut author = Author::new(b"key", "client".into());
    let (cell, next) = (request(&mut author), request(&mut author));
    let (mut front, mut wire) = after_a_loss(&cell);
    front.request(Channel::Shell, &ME, next.message(), Time(0), &mut wire);
    wire.take();
    let asks = author.write("input_request", &cell.header, &json!({}), &json!({}), Time(0));
    let item = from_kernel(Channel::Stdin, asks.message());
    front.item(1, item, Time(0), &mut wire);
    assert_eq!(wire.take(), ["publish stream None", "done 1"]);
}

#[test]
fn a_cell_of_before_that_is_lost_is_told_at_the_next_cell() {
    let mut author = Author::new(b"key", "client".into());
    let cell = request(&mut author);
    let (mut front, mut wire) = after_a_loss(&cell);
    front.next_tenure(Tenure(2), true, Time(0), &mut wire);
    assert!(wire.take().is_empty());
    asks(&mut front, &mut wire, &mut author);
    assert_eq!(wire.take(), ["publish stream None", "send Shell execute_request"]);
}

#[test]
fn a_death_beside_a_cell_of_before_is_told_at_the_clients_own() {
    let mut author = Author::new(b"key", "client".into());
    let (mut front, mut wire) = after_a_loss(&request(&mut author));
    let own = request(&mut author).message();
    front.request(Channel::Shell, &ME, own, Time(0), &mut wire);
    wire.take();
    front.die("out of memory".into(), Time(0), &mut wire);
    assert_eq!(wire.take(), ["publish error None", "publish status Some(1)"]);
}

#[test]
fn a_client_is_answered_while_a_cell_of_before_runs() {
    let mut author = Author::new(b"key", "client".into());
    let (mut front, mut wire) = after_a_loss(&request(&mut author));
    front = front.knowing(Some(json!({"status": "ok"})));
    let parent = Bytes::from_static(b"{}");
    let info = author.write("kernel_info_request", &parent, &json!({}), &json!({}), Time(0));
    front.request(Channel::Shell, &ME, info.message(), Time(0), &mut wire);
    let status = "publish status None";
    assert_eq!(
        wire.take(),
        [status, "reply kernel_info_reply ok None", status, status]
    );
}

const QUESTIONS: [(Channel, &str); 6] = [
    (Channel::Shell, "kernel_info_request"),
    (Channel::Shell, "complete_request"),
    (Channel::Shell, "comm_info_request"),
    (Channel::Control, "debug_request"),
    (Channel::Control, "create_subshell_request"),
    (Channel::Control, "list_subshell_request"),
];

/// A front with this question of a client's open.
fn asked((channel, kind): (Channel, &str)) -> (Front, Recorder) {
    let mut author = Author::new(b"key", "client".into());
    let mut front = Front::new(b"key", "front".into()).durable(true);
    let mut wire = Recorder {
        here: vec![b"me"],
        subscribed: true,
        seen: Vec::new(),
    };
    front.next_tenure(Tenure(1), false, Time(0), &mut wire);
    let parent = Bytes::from_static(b"{}");
    let question = author.write(kind, &parent, &json!({}), &json!({}), Time(0));
    front.request(channel, &ME, question.message(), Time(0), &mut wire);
    assert_eq!(wire.take(), [format!("send {channel:?} {kind}")]);
    (front, wire)
}

#[test]
fn an_open_question_is_asked_of_the_next_replica() {
    for (channel, kind) in QUESTIONS {
        let (mut front, mut wire) = asked((channel, kind));
        front.next_tenure(Tenure(2), true, Time(0), &mut wire);
        assert_eq!(wire.take(), [format!("send {channel:?} {kind}")]);
    }
}

#[test]
fn an_open_question_is_answered_with_the_kernels_death() {
    for (channel, kind) in QUESTIONS {
        let (mut front, mut wire) = asked((channel, kind));
        front.die("out of memory".into(), Time(0), &mut wire);
        assert!(wire.take().is_empty());
        front.send_obituaries(&mut wire);
        let reply = format!("reply {} error None", kind.replace("request", "reply"));
        match kind {
            INFO => assert!(wire.take().is_empty()),
            _ => assert_eq!(wire.take(), [reply]),
        }
    }
}

/// Requests of two clients by one id, and again by the first: each client reads of its own alone.
#[test]
fn a_second_clients_request_with_an_open_ones_id_is_refused_in_words() {
    let (mut front, mut wire) = (Front::new(b"key", "front".into()), Recorder::default());
    let mut author = Author::new(b"key", "client".into());
    (wire.here, wire.subscribed) = (vec![&b"me"[..], b"you"], true);
    let first = request(&mut author);
    front.request(Channel::Shell, &ME, first.clone().message(), Time(0), &mut wire);
    assert_eq!(wire.take(), ["send Shell execute_request"]);
    let you = Bytes::from_static(b"you");
    front.request(Channel::Shell, &you, first.clone().message(), Time(0), &mut wire);
    let out = wire.take();
    assert!(
        out.len() == 1 && out[0].starts_with("reply execute_reply error"),
        "{out:?}"
    );
    let reply = author.write(
        "execute_reply",
        &first.header,
        &json!({}),
        &json!({"status": "ok"}),
        Time(0),
    );
    front.item(
        1,
        from_kernel(Channel::Shell, reply.message()),
        Time(0),
        &mut wire,
    );
    let out = wire.take();
    assert!(out[0].starts_with("reply execute_reply ok"), "{out:?}");
    front.request(Channel::Shell, &you, first.message(), Time(0), &mut wire);
    assert_eq!(
        wire.take(),
        ["send Shell execute_request"],
        "the id is free again"
    );
}
