use super::*;
use crate::core::{Interrupt, Mark, Records};
use hop_protocol::jupyter::Author;
use hop_words::time::Span;

const ME: Bytes = Bytes::from_static(b"me");

/// Everybody is there, and what is said is written down. The screen has what all cells show.
#[derive(Default)]
struct Ear {
    said: Vec<String>,
    screen: Vec<String>,
}

impl Ear {
    fn shows(&mut self, message: &Message) {
        let e = Envelope::parse(message).unwrap();
        let content: Value = serde_json::from_slice(&e.content).unwrap();
        let texts = [&content["text"], &content["data"]["text/plain"]];
        let text = texts.iter().find_map(|t| t.as_str());
        match &*e.header().unwrap().msg_type {
            "clear_output" => self.screen.clear(),
            "stream" | "display_data" => self.screen.push(text.unwrap().to_owned()),
            _ => {}
        }
    }
}

fn line(message: &Message) -> String {
    let e = Envelope::parse(message).unwrap();
    let content: Value = serde_json::from_slice(&e.content).unwrap();
    let metadata: Value = serde_json::from_slice(&e.metadata).unwrap();
    let notice = [&metadata["gresshopper"], &content["data"]]
        .into_iter()
        .find(|n| n["state"].is_string());
    let words = [
        content["execution_state"].as_str(),
        content["data"]["text/plain"].as_str(),
        notice.and_then(|n| n["state"].as_str()),
        notice.and_then(|n| n["reason"].as_str()),
    ];
    let mut line = e.header().unwrap().msg_type;
    for word in words.into_iter().flatten() {
        line = format!("{line} {word}");
    }
    let parent = e.parent().filter(|p| p.msg_type == "execute_request");
    if line.starts_with("status busy") && parent.is_some() {
        line += " at the cell";
    }
    line
}

impl Wire for Ear {
    fn reply(&mut self, _: Channel, _: &[u8], message: Message, _: Option<Mark>) -> Result<(), Message> {
        self.said.push(line(&message));
        Ok(())
    }

    fn publish(&mut self, message: &Message, _: Option<Mark>) -> bool {
        self.said.push(line(message));
        self.shows(message);
        true
    }

    fn subscribers(&self) -> usize {
        1
    }

    fn send(&mut self, item: Item) {
        if let Item::Jupyter { message, .. } = item {
            self.said.push(format!("to the replica: {}", line(&message)));
        }
    }

    fn done(&mut self, _: u64) {
        self.said.push("done".to_owned());
    }
}

struct World {
    front: Front,
    client: Author,
    ear: Ear,
}

impl World {
    fn new(info: Option<Value>) -> Self {
        Self {
            front: Front::new(b"key", "front".into()).durable(true).knowing(info),
            client: Author::new(b"key", "client".into()),
            ear: Ear::default(),
        }
    }

    fn asks(&mut self, kind: &str, metadata: &Value, content: &Value) -> (Envelope, Vec<String>) {
        let asked = self.client.write(kind, &none(), metadata, content, Time(0));
        self.front.request(
            Channel::Shell,
            &ME,
            asked.clone().message(),
            Time(0),
            &mut self.ear,
        );
        (asked, self.said())
    }

    fn waits(&mut self, reason: &str) -> Vec<String> {
        let seat = SeatWaits {
            reason: reason.to_owned(),
            start: Some(Time(9_000_000)),
        };
        self.front.seat_waits(seat, Time(5_000_000), &mut self.ear);
        self.said()
    }

    /// The kernel's own answer.
    fn answers(&mut self, request: &Envelope, kind: &str, content: &Value) -> Vec<String> {
        let mut kernel = Author::new(b"key", "kernel".into());
        let reply = kernel.write(kind, &request.header, &json!({}), content, Time(0));
        let item = Item::Jupyter {
            channel: Channel::Shell,
            identity: ME,
            message: reply.message(),
        };
        self.front.item(1, item, Time(0), &mut self.ear);
        self.said()
    }

    fn comes(&mut self) -> Vec<String> {
        self.front.replica_is_there(Time(0), &mut self.ear);
        self.said()
    }

    fn said(&mut self) -> Vec<String> {
        self.front.sanity_check();
        std::mem::take(&mut self.ear.said)
    }
}

const INFORMED: [&str; 4] = [
    "status busy",
    "kernel_info_reply",
    "status idle",
    "status starting seat no node has room",
];

const BUSY: &str = "status busy seat no node has room at the cell";

fn nothing() -> Value {
    json!({})
}

#[test]
fn who_asks_for_a_kernel_without_a_node_is_answered_in_its_place_once() {
    let mut world = World::new(Some(json!({"status": "ok", "banner": "old"})));
    let (first, said) = world.asks("kernel_info_request", &nothing(), &nothing());
    assert_eq!(
        said,
        ["to the replica: kernel_info_request"],
        "it may come at once"
    );
    assert_eq!(world.waits("Resources"), INFORMED);
    assert_eq!(world.waits("Resources"), [""; 0], "it is no news");
    let (_, said) = world.asks("kernel_info_request", &nothing(), &nothing());
    assert_eq!(said, INFORMED, "and the kernel never sees it");
    assert_eq!(
        world.waits("Priority"),
        ["status starting seat other jobs come first"]
    );
    assert_eq!(world.comes(), ["status idle cpu"]);
    let own = json!({"status": "ok", "banner": "new"});
    assert_eq!(
        world.answers(&first, "kernel_info_reply", &own),
        ["done"],
        "one too many"
    );
    assert_eq!(world.front.take_learnt(), Some(own.clone()));
    let (later, said) = world.asks("kernel_info_request", &nothing(), &nothing());
    assert_eq!(said, ["to the replica: kernel_info_request"]);
    assert_eq!(
        world.answers(&later, "kernel_info_reply", &own),
        ["kernel_info_reply"]
    );
    assert_eq!(world.front.take_learnt(), None, "it says what it said before");
}

#[test]
fn a_kernelspec_without_a_kernel_before_waits_for_its_first() {
    let mut world = World::new(None);
    world.asks("kernel_info_request", &nothing(), &nothing());
    assert_eq!(
        world.waits("Resources"),
        ["status starting seat no node has room"]
    );
    let (_, said) = world.asks("kernel_info_request", &nothing(), &nothing());
    assert_eq!(said, ["to the replica: kernel_info_request"]);
}

#[test]
fn a_cell_reads_why_it_waits_where_its_client_shows_no_notices() {
    let mut world = World::new(None);
    world.waits("Resources");
    let (_, said) = world.asks("execute_request", &nothing(), &json!({"code": "1"}));
    let text = "Waiting for a node for this notebook's kernel: no node has room";
    assert_eq!(
        said,
        [
            "to the replica: execute_request".to_owned(),
            BUSY.to_owned(),
            format!("display_data {text}")
        ]
    );
    let said = world.waits("Priority");
    let text = text.replace("no node has room", "other jobs come first");
    assert_eq!(said[1..], [format!("update_display_data {text}")]);
    assert_eq!(
        world.comes(),
        ["clear_output", "status busy cpu at the cell"],
        "its cell is next"
    );

    let mut unattended = World::new(None);
    unattended.waits("Resources");
    let run = json!({"gresshopper": {"run": {"class": "batch"}}});
    let (_, said) = unattended.asks("execute_request", &run, &json!({"code": "1"}));
    assert_eq!(said, ["to the replica: execute_request", BUSY]);
}

#[test]
fn a_kernel_whose_cell_waits_for_a_seat_looks_busy_until_the_cell_ends() {
    let mut world = World::new(Some(json!({"status": "ok"})));
    world.asks("execute_request", &nothing(), &json!({"code": "1"}));
    assert_eq!(world.waits("Resources")[0], BUSY);
    let (_, said) = world.asks("kernel_info_request", &nothing(), &nothing());
    assert_eq!(said.last().unwrap(), BUSY, "after the question's idle");
    world
        .front
        .interrupt(Interrupt::Signal, true, Time(0), &mut world.ear);
    let said = world.said();
    assert_eq!(said.last().unwrap(), "status starting seat no node has room");
}

#[test]
fn a_clients_hidden_request_reads_no_reason_in_the_place_of_the_users_cell() {
    let mut world = World::new(None);
    world.waits("Resources");
    let hidden = json!({"code": "1", "silent": false, "store_history": false});
    let (_, said) = world.asks("execute_request", &nothing(), &hidden);
    assert_eq!(said, ["to the replica: execute_request", BUSY]);
    let (_, said) = world.asks("execute_request", &nothing(), &json!({"code": "1"}));
    assert!(said[2].starts_with("display_data Waiting"), "{said:?}");
}

const LOST: &str = "gresshopper: it was lost.\n";

/// The kernel's node says something about a cell.
fn publishes(world: &mut World, cell: &Envelope, kind: &str, content: &Value) {
    let mut replica = Author::new(b"key", format!("replica {kind}"));
    let said = replica.publish(kind, &cell.header, &json!({}), content, Time(0));
    let item = Item::Jupyter {
        channel: Channel::Iopub,
        identity: Bytes::new(),
        message: said,
    };
    world.front.item(1, item, Time(0), &mut world.ear);
}

#[test]
fn sentences_at_a_cell_outlast_the_text_of_its_wait() {
    let mut world = World::new(None);
    world.front.tell("it was lost", Time(0), &mut world.ear);
    world.waits("Resources");
    let (cell, _) = world.asks("execute_request", &nothing(), &json!({"code": "1"}));
    assert_eq!(world.ear.screen.len(), 2);
    world.comes();
    assert_eq!(world.ear.screen, [LOST], "the seat is there");
    let text = json!({"data": {"text/plain": "Waiting for 1 GPU"}});
    publishes(&mut world, &cell, "display_data", &text);
    world.front.tell("it was lost", Time(0), &mut world.ear);
    publishes(&mut world, &cell, "clear_output", &nothing());
    assert_eq!(world.ear.screen, [LOST, LOST], "the GPU is there");
    publishes(&mut world, &cell, "execute_input", &nothing());
    world.front.tell("it was lost", Time(0), &mut world.ear);
    publishes(&mut world, &cell, "clear_output", &nothing());
    assert_eq!(world.ear.screen, [""; 0], "the cell clears its own outputs");
}

/// The executor's text at a cell that waits for its lease.
fn executor_tells(world: &mut World, cell: &Envelope, kind: &str, text: &str) {
    let display = format!("gresshopper-{}", cell.header().unwrap().msg_id);
    let shown = json!({"data": {"text/plain": text}, "transient": {"display_id": display}});
    publishes(world, cell, kind, &shown);
}

#[test]
fn the_text_of_a_lost_executor_is_gone_before_the_next_one_has_the_cell() {
    let mut world = World::new(None);
    world.front.next_tenure(Tenure(1), false, Time(0), &mut world.ear);
    world.comes();
    world.front.tell("it was lost", Time(0), &mut world.ear);
    let (cell, _) = world.asks("execute_request", &nothing(), &json!({"code": "1"}));
    executor_tells(&mut world, &cell, "display_data", "Waiting for 2 GPUs");
    executor_tells(
        &mut world,
        &cell,
        "update_display_data",
        "Waiting for 2 GPUs: next",
    );
    world.said();
    world.front.next_tenure(Tenure(2), true, Time(0), &mut world.ear);
    assert_eq!(
        world.said(),
        ["clear_output", "stream", "to the replica: execute_request"]
    );
    world.front.next_tenure(Tenure(3), true, Time(0), &mut world.ear);
    assert_eq!(world.said(), ["to the replica: execute_request"], "it is gone");
    publishes(&mut world, &cell, "execute_input", &nothing());
    executor_tells(&mut world, &cell, "display_data", "the cell's own");
    world.said();
    world.front.next_tenure(Tenure(4), true, Time(0), &mut world.ear);
    assert_eq!(
        world.said(),
        ["to the replica: execute_request"],
        "the cell began"
    );
}

#[test]
fn the_next_front_takes_the_text_of_a_lost_executor_away() {
    let mut world = World::new(None);
    world.front.next_tenure(Tenure(1), false, Time(0), &mut world.ear);
    world.comes();
    world.front.take_up(&[], Time(0));
    let (cell, _) = world.asks("execute_request", &nothing(), &json!({"code": "1"}));
    executor_tells(&mut world, &cell, "display_data", "Waiting for 2 GPUs");
    let Some(Records::More(records) | Records::All(records)) = world.front.records() else {
        panic!("a text is recorded");
    };
    world.front = Front::new(b"key", "next".into()).durable(true);
    world.front.take_up(&records, Time(0));
    world.said();
    world.front.next_tenure(Tenure(2), false, Time(0), &mut world.ear);
    assert_eq!(world.said(), ["clear_output", "to the replica: execute_request"]);
}

#[test]
fn the_text_of_a_lost_executor_is_gone_where_the_front_ends_the_cell() {
    let waits = || {
        let mut world = World::new(None);
        world.front.next_tenure(Tenure(1), false, Time(0), &mut world.ear);
        world.comes();
        let (cell, _) = world.asks("execute_request", &nothing(), &json!({"code": "1"}));
        executor_tells(&mut world, &cell, "display_data", "Waiting for 2 GPUs");
        world.said();
        world
    };
    let mut dead = waits();
    dead.front.die("no".into(), Time(0), &mut dead.ear);
    assert_eq!(dead.said(), ["clear_output", "error", "status idle"]);
    let mut interrupted = waits();
    interrupted
        .front
        .interrupt(Interrupt::Signal, true, Time(0), &mut interrupted.ear);
    assert_eq!(interrupted.said()[0], "clear_output");
}

const UNANSWERED: &str =
    "its node n1 doesn't answer; another replica takes over, or one is started after 15 s at the latest";

fn is_unanswered(world: &mut World) -> Vec<String> {
    let replica = Unanswered {
        node: Some("n1".into()),
        within: Span::from_secs(15),
        then: Then::Elected,
    };
    world.front.is_unanswered(replica, Time(0), &mut world.ear);
    world.said()
}

/// A kernel with a replica.
fn begun() -> World {
    let mut world = World::new(None);
    world.front.next_tenure(Tenure(1), false, Time(0), &mut world.ear);
    world.comes();
    world
}

#[test]
fn a_cell_reads_that_the_kernels_node_does_not_answer() {
    let mut world = begun();
    assert_eq!(
        is_unanswered(&mut world),
        [format!("status starting seat {UNANSWERED}")]
    );
    let (_, said) = world.asks("execute_request", &nothing(), &json!({"code": "1"}));
    let told = [
        "to the replica: execute_request".to_owned(),
        format!("status busy seat {UNANSWERED} at the cell"),
        format!("display_data Waiting for this notebook's kernel: {UNANSWERED}"),
    ];
    assert_eq!(said, told);
    assert_eq!(is_unanswered(&mut world), [""; 0], "it is no news");
    world.front.is_started_again(Time(0), &mut world.ear);
    let lost = "its replica was lost, and another one is started";
    assert_eq!(
        world.said(),
        [
            format!("status busy seat {lost} at the cell"),
            format!("update_display_data Waiting for this notebook's kernel: {lost}"),
        ]
    );
    world.front.next_tenure(Tenure(2), true, Time(0), &mut world.ear);
    assert_eq!(
        world.said(),
        ["to the replica: execute_request"],
        "it isn't there yet"
    );
    assert_eq!(world.comes(), ["clear_output", "status busy cpu at the cell"]);
    world.front.is_started_again(Time(0), &mut world.ear);
    assert_eq!(world.said(), [""; 0], "nobody was told that it waits");
}

#[test]
fn a_running_cell_keeps_its_outputs_when_its_node_does_not_answer_for_a_while() {
    let mut world = begun();
    let (first, _) = world.asks("execute_request", &nothing(), &json!({"code": "1"}));
    publishes(&mut world, &first, "execute_input", &nothing());
    world.said();
    assert_eq!(
        is_unanswered(&mut world),
        [format!("status busy seat {UNANSWERED} at the cell")]
    );
    assert_eq!(world.comes(), ["status busy cpu at the cell"]);
}

#[test]
fn the_text_of_an_executor_that_is_back_is_shown_again() {
    let mut world = begun();
    let (cell, _) = world.asks("execute_request", &nothing(), &json!({"code": "1"}));
    executor_tells(&mut world, &cell, "display_data", "Waiting for 2 GPUs");
    world.said();
    let text = format!("update_display_data Waiting for this notebook's kernel: {UNANSWERED}");
    assert_eq!(is_unanswered(&mut world)[1..], [text]);
    assert_eq!(
        world.comes(),
        [
            "update_display_data Waiting for 2 GPUs",
            "status busy cpu at the cell"
        ]
    );
}

#[test]
fn a_replica_that_is_back_tells_the_clients_again_how_the_kernel_stands() {
    let mut world = begun();
    let open = json!({"comm_id": "c", "target_name": "gresshopper", "data": {"version": 1}});
    world.asks("comm_open", &nothing(), &open);
    let told = is_unanswered(&mut world);
    assert_eq!(told[1..], [format!("comm_msg seat {UNANSWERED}")]);
    assert_eq!(world.comes(), ["status idle cpu", "to the replica: comm_open"]);
    is_unanswered(&mut world);
    world.front.next_tenure(Tenure(2), true, Time(0), &mut world.ear);
    assert_eq!(world.said(), ["to the replica: comm_open"]);
    assert_eq!(world.comes(), ["status idle cpu"], "it knows them");
}

#[test]
fn the_text_is_gone_before_a_dead_kernels_error() {
    let mut world = World::new(None);
    world.waits("Resources");
    world.asks("execute_request", &nothing(), &json!({"code": "1"}));
    world.front.die("no".into(), Time(0), &mut world.ear);
    assert_eq!(world.said(), ["clear_output", "error", "status idle"]);
}

#[test]
fn clients_that_announced_themselves_are_told_and_introduced_to_the_next_replica() {
    let mut world = World::new(None);
    let open = json!({"comm_id": "c", "target_name": "gresshopper", "data": {"version": 1}});
    world.asks("comm_open", &nothing(), &open);
    world.asks(
        "comm_open",
        &nothing(),
        &json!({"comm_id": "w", "target_name": "jupyter.widget", "data": {}}),
    );
    for need in [json!({"gpus": 1}), Value::Null, json!({"gpus": 2})] {
        let wish = json!({"comm_id": "c", "data": {"default_need": need}});
        world.asks("comm_msg", &nothing(), &wish);
    }
    world.asks(
        "comm_msg",
        &nothing(),
        &json!({"comm_id": "c", "data": {"release": true}}),
    );
    let wait = "seat no node has room";
    assert_eq!(
        world.waits("Resources"),
        [format!("status starting {wait}"), format!("comm_msg {wait}")]
    );
    let (_, said) = world.asks("execute_request", &nothing(), &json!({"code": "1"}));
    assert_eq!(
        said,
        [
            "to the replica: execute_request",
            &format!("status busy {wait} at the cell")
        ],
        "it shows the notice itself"
    );
    world.comes();
    world.front.goes_elsewhere(Time(0), &mut world.ear);
    assert_eq!(world.said(), ["comm_msg moving"]);
    world.front.next_tenure(Tenure(2), true, Time(0), &mut world.ear);
    let to = |kind: &str| format!("to the replica: {kind}");
    assert_eq!(
        world.said(),
        [to("comm_open"), to("comm_msg"), to("execute_request")]
    );
    world.front.gone(&ME, &mut world.ear);
    world.front.next_tenure(Tenure(3), true, Time(0), &mut world.ear);
    assert_eq!(world.said(), [to("execute_request")]);
}
