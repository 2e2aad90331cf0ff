//! Open requests, over the death of their front.

use super::*;
use crate::core::Interrupt;
use hop_protocol::jupyter::Author;
use serde_json::json;

const ME: Bytes = Bytes::from_static(b"me");

/// Whatever reaches the replica and the client.
#[derive(Default)]
struct Ear {
    absent: bool,
    /// Subscribers besides the client.
    others: usize,
    sent: Vec<String>,
    told: Vec<String>,
    /// The execution counts of replies.
    counts: Vec<i64>,
    /// The sentences shown at cells.
    texts: Vec<String>,
    done: Vec<u64>,
    left: Vec<Mark>,
}

fn code(message: &Message) -> String {
    let content = serde_json::from_slice::<Value>(&Envelope::parse(message).unwrap().content).unwrap();
    content["code"].as_str().unwrap_or_default().to_owned()
}

impl Wire for Ear {
    fn reply(&mut self, _: Channel, _: &[u8], message: Message, mark: Option<Mark>) -> Result<(), Message> {
        if self.absent {
            return Err(message);
        }
        self.left.extend(mark);
        let envelope = Envelope::parse(&message).unwrap();
        let content = serde_json::from_slice::<Value>(&envelope.content).unwrap();
        self.told.push(envelope.header().unwrap().msg_type);
        self.counts.extend(content["execution_count"].as_i64());
        Ok(())
    }

    fn publish(&mut self, message: &Message, mark: Option<Mark>) -> bool {
        if !self.absent {
            self.left.extend(mark);
            let envelope = Envelope::parse(message).unwrap();
            let content = serde_json::from_slice::<Value>(&envelope.content).unwrap();
            self.told.push(envelope.header().unwrap().msg_type);
            self.texts.extend(content["text"].as_str().map(str::to_owned));
        }
        !self.absent
    }

    fn subscribers(&self) -> usize {
        if self.absent { 0 } else { 1 + self.others }
    }

    fn send(&mut self, item: Item) {
        self.sent.push(match item {
            Item::Jupyter { message, .. } => code(&message),
            Item::Note(Note::HandedBefore {
                tenure,
                behind,
                lacks,
                ..
            }) => {
                let lacks = if lacks { "" } else { " whole" };
                match behind {
                    Some(how) => format!("{how:?} {tenure}{lacks}"),
                    None => format!("before {tenure}{lacks}"),
                }
            }
            Item::Note(Note::MayBegin { .. }) => "may begin".to_owned(),
            Item::Note(note) => format!("{note:?}"),
        });
    }

    fn done(&mut self, seq: u64) {
        self.done.push(seq);
    }
}

/// Takes in what has left the front, and what it has to record.
pub(crate) fn take_in(front: &mut Front, left: &mut Vec<Mark>, records: &mut Vec<u8>) {
    front.have_left(&std::mem::take(left));
    match front.records() {
        Some(Records::More(more)) => records.extend(more),
        Some(Records::All(all)) => *records = all,
        None => {}
    }
    front.sanity_check();
}

struct World {
    front: Front,
    client: Author,
    ear: Ear,
    records: Vec<u8>,
    seq: u64,
}

impl World {
    /// A front in the first tenure, with its replica.
    fn new() -> Self {
        let mut world = Self {
            front: Front::new(b"key", "front".into()).durable(true),
            client: Author::new(b"key", "client".into()),
            ear: Ear::default(),
            records: Vec::new(),
            seq: 0,
        };
        world.front.take_up(b"", Time(0));
        world.front.next_tenure(Tenure(1), false, Time(0), &mut world.ear);
        world
    }

    fn asks(&mut self, code: &str) -> Envelope {
        self.asks_for(&json!({"code": code}))
    }

    fn runs(&mut self, cell: &Envelope) {
        let content = json!({"execution_count": 5});
        let said = self
            .client
            .publish("execute_input", &cell.header, &json!({}), &content, Time(0));
        self.comes(Item::Jupyter {
            channel: Channel::Iopub,
            identity: Bytes::new(),
            message: said,
        });
    }

    fn asks_for(&mut self, content: &Value) -> Envelope {
        let nothing = json!({});
        let parent = Bytes::from_static(b"{}");
        let asked = self
            .client
            .write("execute_request", &parent, &nothing, content, Time(0));
        let message = asked.clone().message();
        self.front
            .request(Channel::Shell, &ME, message, Time(0), &mut self.ear);
        self.settles();
        asked
    }

    fn begins(&mut self, cell: &Envelope) {
        self.front.may_begin(&id(cell), true);
        self.settles();
        self.comes(Item::Note(Note::Begins { cell: id(cell) }));
    }

    fn replies(&mut self, cell: &Envelope) {
        let content = json!({"status": "ok"});
        let reply = self
            .client
            .write("execute_reply", &cell.header, &json!({}), &content, Time(0));
        self.comes(Item::Jupyter {
            channel: Channel::Shell,
            identity: ME,
            message: reply.message(),
        });
    }

    fn comes(&mut self, item: Item) {
        self.seq += 1;
        self.front.item(self.seq, item, Time(0), &mut self.ear);
        self.settles();
    }

    fn settles(&mut self) {
        take_in(&mut self.front, &mut self.ear.left, &mut self.records);
    }

    /// The front is killed, and another one follows.
    fn follows(&mut self) {
        self.front = Front::new(b"key", "next".into()).durable(true);
        self.front.take_up(&self.records, Time(0));
        self.settles();
        self.sent();
    }

    /// The replica of the front before comes back.
    fn resumes(&mut self, in_flight: &[&Envelope], answered: &[&Envelope]) -> Vec<String> {
        let flight = |cell: &&Envelope| InFlight {
            identity: hex::encode(ME),
            header: String::from_utf8(cell.header.to_vec()).unwrap(),
        };
        let answered: Vec<CellId> = answered.iter().map(|c| id(c)).collect();
        let flights = in_flight.iter().map(flight).collect();
        self.front
            .resume(flights, Some(&answered), Tenure(1), &mut self.ear);
        self.settles();
        self.sent()
    }

    fn elects(&mut self, tenure: u64, met: bool) -> Vec<String> {
        self.front
            .next_tenure(Tenure(tenure), met, Time(0), &mut self.ear);
        self.settles();
        self.sent()
    }

    fn sent(&mut self) -> Vec<String> {
        std::mem::take(&mut self.ear.sent)
    }
}

fn id(cell: &Envelope) -> CellId {
    cell.header().unwrap().msg_id.into()
}

#[test]
fn what_a_killed_front_held_goes_to_the_replica_that_is_elected_then() {
    let mut world = World::new();
    let (answered, begun) = (world.asks("answered"), world.asks("begun"));
    world.asks("queued");
    world.begins(&answered);
    world.replies(&answered);
    world.begins(&begun);
    for killed in 0..3 {
        world.follows();
        if killed == 2 {
            world.asks("new");
            assert_eq!(world.sent(), [""; 0], "it waits behind the others");
        }
    }
    // The cell that may have begun is lost or answered, never run again.
    let all = |tenure: u64| {
        let behind = format!("New {tenure}");
        ["before 1", "begun", &behind, "queued", &behind, "new"].map(str::to_owned)
    };
    assert_eq!(world.elects(2, false), all(2));
    world.follows();
    assert_eq!(world.elects(3, false), all(3));
    assert_eq!(
        world.resumes(&[], &[]),
        [""; 0],
        "its hello comes after its election"
    );
    assert_eq!(world.elects(4, true), all(4));
}

#[test]
fn the_next_replica_hears_the_last_number_that_clients_have_read() {
    let mut world = World::new();
    assert_eq!(world.front.last_count(), None);
    let cell = world.asks("a");
    world.runs(&cell);
    world.elects(2, true);
    assert_eq!(world.front.last_count(), Some(5));
    for tenure in 3..6 {
        world.follows();
        world.elects(tenure, false);
        assert_eq!(world.front.last_count(), Some(5), "the front before is lost, too");
    }
    world.comes(Item::Note(Note::Answered {
        cell: id(&cell),
        number: 1,
        count: Some(6),
        lost: false,
    }));
    world.follows();
    assert_eq!(world.front.last_count(), Some(6));
}

#[test]
fn a_front_without_a_replica_answers_with_the_last_number_that_clients_have_read() {
    for follows in [false, true] {
        let mut world = World::new();
        let cell = world.asks("a");
        world.begins(&cell);
        world.runs(&cell);
        world.replies(&cell);
        world.asks("waits");
        if follows {
            world.follows();
        }
        world
            .front
            .interrupt(Interrupt::Signal, true, Time(0), &mut world.ear);
        world.settles();
        assert_eq!(world.ear.counts, [5], "the waiting cell is interrupted");
        let cell = world.asks("b");
        world.begins(&cell);
        world.runs(&cell);
        if follows {
            world.follows();
        }
        world.front.die("no memory".into(), Time(0), &mut world.ear);
        world.front.send_obituaries(&mut world.ear);
        assert_eq!(world.ear.counts, [5, 5], "the kernel died in the cell");
    }
}

/// A kernel with three answered cells, `[4]` to `[6]`. The first of them is saved.
fn half_saved() -> World {
    let mut world = World::new();
    for number in 1..=3 {
        world.comes(Item::Note(Note::Answered {
            cell: format!("c{number}").into(),
            number,
            count: Some(number as i64 + 3),
            lost: false,
        }));
    }
    world.comes(Item::Note(Note::Settled { through: 1 }));
    world
}

/// The kernel goes on without the effects of two cells, by the word of its group's log, or by that of the store.
fn loses_two(world: &mut World, by_log: bool) {
    let note = Note::Tenure {
        tenure: Tenure(2),
        lost: vec!["c2".into(), "c3".into()],
    };
    match by_log {
        true => world.comes(Item::Note(note)),
        false => world
            .front
            .reopened(&hop_log::State::new(), Time(0), &mut world.ear),
    }
    world.settles();
}

#[test]
fn a_front_names_the_lost_cells_that_a_killed_front_had_answered() {
    let lost = "gresshopper: the kernel was lost before these cells were saved, so their effects are gone: [5], [6]\n";
    for by_log in [false, true] {
        // A front is killed before the loss, before its user has read of the loss, or never.
        for (before, unread) in [(true, false), (false, true), (true, true), (false, false)] {
            let mut world = half_saved();
            let follows = |world: &mut World, is_killed| {
                // The second front has its predecessor's account alone.
                for _ in 0..if is_killed { 2 } else { 0 } {
                    world.follows();
                }
            };
            follows(&mut world, before);
            loses_two(&mut world, by_log);
            follows(&mut world, unread);
            world.asks("next");
            assert_eq!(world.ear.texts, [lost], "{by_log} {before} {unread}");
            world.follows();
            loses_two(&mut world, !by_log);
            world.asks("later");
            assert_eq!(world.ear.texts.len(), 1, "they are named once");
        }
    }
}

/// The log has the end of a cell whose reply is on its way.
#[test]
fn a_lost_cell_whose_reply_tells_so_is_not_named_by_the_next_front() {
    let mut world = World::new();
    let cell = world.asks("a");
    world.begins(&cell);
    world.comes(Item::Note(Note::Answered {
        cell: id(&cell),
        number: 1,
        count: Some(4),
        lost: false,
    }));
    world.comes(Item::Note(Note::Tenure {
        tenure: Tenure(2),
        lost: vec![id(&cell)],
    }));
    assert_eq!(world.front.ledger.len(), 0);
    world.follows();
    assert_eq!(world.front.ledger.len(), 0);
    assert_eq!(world.ear.texts, [""; 0]);
}

#[test]
fn a_replica_that_comes_back_gets_what_it_lacks_and_nothing_twice() {
    let mut world = World::new();
    let (replied, runs, lacks) = (world.asks("replied"), world.asks("runs"), world.asks("lacks"));
    world.begins(&replied);
    world.follows();
    world.asks("new");
    assert_eq!(world.resumes(&[&runs], &[&replied]), ["lacks", "new"]);
    world.replies(&replied);
    assert_eq!(world.ear.told, ["execute_reply"]);
    // The executor is lost after all: cells behind are whole requests, though another front took them.
    assert_eq!(world.elects(2, true), ["runs", "New 2", "lacks", "New 2", "new"]);
    for cell in [&runs, &lacks] {
        world.replies(cell);
    }
    world.follows();
    assert_eq!(world.elects(3, false), ["new"]);
}

#[test]
fn the_next_replica_hears_whether_the_front_lacks_a_cells_end() {
    let mut world = World::new();
    let (ended, runs) = (world.asks("ended"), world.asks("runs"));
    for cell in [&ended, &runs] {
        world.begins(cell);
    }
    world.sent();
    let idle = world.client.status(&ended.header, "idle", &json!({}), Time(0));
    world.comes(Item::Jupyter {
        channel: Channel::Iopub,
        identity: Bytes::new(),
        message: idle,
    });
    let all = ["before 1 whole", "ended", "Queued 1", "runs"];
    assert_eq!(world.elects(2, true), all);
    world.follows();
    assert_eq!(world.elects(3, false), all);
}

#[test]
fn a_reply_that_no_client_has_is_asked_for_again() {
    let mut world = World::new();
    let cell = world.asks("cell");
    world.begins(&cell);
    world.ear.absent = true;
    world.replies(&cell);
    world.follows();
    assert_eq!(world.elects(2, false), ["before 1", "cell"], "the log answers");
}

#[test]
fn a_reply_is_due_until_its_client_has_it() {
    let mut world = World::new();
    let cell = world.asks("cell");
    world.begins(&cell);
    world.ear.absent = true;
    world.replies(&cell);
    assert!(world.front.owes(&ME), "it may come back for the reply");
    world.ear.absent = false;
    world.front.connected(Channel::Shell, &ME, &mut world.ear);
    assert!(!world.front.owes(&ME));
}

#[test]
fn outputs_wait_for_all_subscribers_of_a_killed_front_for_a_second() {
    for comes_back in [true, false] {
        let mut world = World::new();
        let cell = world.asks("cell");
        world.begins(&cell);
        for others in 0..2 {
            world.ear.others = others;
            world.front.subscribed(&Bytes::new(), Time(0), &mut world.ear);
        }
        world.settles();
        // A second front is killed before all are back.
        for _ in 0..2 {
            world.follows();
            world.ear = Ear::default();
            world.front.subscribed(&Bytes::new(), Time(10), &mut world.ear);
            world.settles();
        }
        world.resumes(&[&cell], &[]);
        world.runs(&cell);
        assert_eq!(world.ear.told, ["iopub_welcome"], "the other one would miss it");
        if comes_back {
            world.ear.others = 1;
            world.front.subscribed(&Bytes::new(), Time(20), &mut world.ear);
            let told = ["iopub_welcome", "iopub_welcome", "execute_input"];
            assert_eq!(world.ear.told, told);
        } else {
            world.front.look_at_audience(Time(1_000_009), &mut world.ear);
            assert_eq!(world.ear.told, ["iopub_welcome"]);
            world.front.look_at_audience(Time(1_000_010), &mut world.ear);
            assert_eq!(world.ear.told, ["iopub_welcome", "execute_input"]);
        }
        world.replies(&cell);
        assert_eq!(world.ear.told.last().unwrap(), "execute_reply");
    }
}

#[test]
fn an_id_that_is_used_again_is_another_request() {
    let mut world = World::new();
    let cell = world.asks("cell");
    world.begins(&cell);
    world.ear.absent = true;
    world.replies(&cell);
    let message = cell.message();
    world
        .front
        .request(Channel::Shell, &ME, message, Time(0), &mut world.ear);
    world.settles();
    // The first one's reply is read.
    world.ear.left.push(Mark(world.seq));
    world.settles();
    world.follows();
    assert_eq!(world.elects(2, false), ["cell"]);
}

#[test]
fn the_word_for_a_cell_is_recorded_until_it_is_given_back() {
    let mut world = World::new();
    let cell = world.asks("cell");
    world.begins(&cell);
    world.comes(Item::Note(Note::NotBegun { cell: id(&cell) }));
    world.follows();
    assert_eq!(world.elects(2, false), ["cell"]);
}

#[test]
fn a_lost_cells_client_hears_of_it_at_its_return() {
    let mut world = World::new();
    let cell = world.asks("cell");
    // Nothing was recorded.
    world.records.clear();
    world.follows();
    assert_eq!(world.resumes(&[&cell], &[]), [""; 0]);
    world.ear.absent = true;
    world.elects(2, true);
    assert_eq!(world.ear.told, [""; 0]);
    world.ear.absent = false;
    world.front.subscribed(&Bytes::new(), Time(0), &mut world.ear);
    world.front.connected(Channel::Shell, &ME, &mut world.ear);
    world.front.sanity_check();
    let told = ["iopub_welcome", "error", "status", "execute_reply"];
    assert_eq!(world.ear.told, told);
}

#[test]
fn a_cell_that_nobody_heard_of_waited_behind_the_one_before_it() {
    for silent in [false, true] {
        let mut world = World::new();
        let first = world.asks("first");
        let content = json!({"code": "second", "silent": silent});
        let (second, third) = (world.asks_for(&content), world.asks("third"));
        for cell in [&first, &second, &third] {
            world.begins(cell);
        }
        world.runs(&first);
        world.follows();
        let waits = if silent { "before 1" } else { "Queued 1" };
        let handed = ["before 1", "first", waits, "second", "Queued 1", "third"];
        assert_eq!(world.elects(2, false), handed);
        world.runs(&second);
        world.follows();
        assert_eq!(
            world.elects(3, false)[2],
            "before 1",
            "it may have left something"
        );
    }
}

/// The reply has left when the front and the executor are killed, and the record of its leaving is missing.
#[test]
fn a_cell_whose_reply_may_have_been_read_stops_no_later_one() {
    let mut world = World::new();
    let cell = world.asks("answered");
    world.begins(&cell);
    world.runs(&cell);
    world.comes(Item::Note(Note::Answered {
        cell: id(&cell),
        number: 1,
        count: Some(4),
        lost: false,
    }));
    world.follows();
    world.asks("later");
    world.asks("behind it");
    let handed = ["before 1", "answered", "later", "New 2", "behind it"];
    assert_eq!(world.elects(2, false), handed);
}
