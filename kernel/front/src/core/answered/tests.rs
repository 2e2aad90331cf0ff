//! Each cell's client gets its reply and its `idle`, whoever is lost when.

use crate::core::{Front, Mark, Records, Wire};
use bytes::Bytes;
use hop_protocol::jupyter::{Author, Channel, Envelope, Header};
use hop_protocol::link::Item;
use hop_protocol::message::{Behind, InFlight, Note};
use hop_protocol::retain::{Retained, Taken};
use hop_words::id::{CellId, Tenure};
use hop_words::time::Timestamp as Time;
use hop_zmtp::Message;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const ME: Bytes = Bytes::from_static(b"me");

/// A choice of the next thing to happen.
#[derive(Debug, Clone, Copy)]
enum Step {
    Ask,
    /// The replica takes what the front has sent.
    Serve,
    /// The running cell's end: the reply is made, and says `idle` before it or after it.
    End {
        idle_first: bool,
    },
    /// The idle of the last reply is made.
    Idle,
    /// The front takes so many of the replica's items.
    Take(usize),
    /// What was sent to clients leaves.
    Leave,
    Acknowledge,
    KillFront,
    KillReplica,
    KillBoth,
    Shell(bool),
    Iopub(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Ask),
        8 => Just(Step::Serve),
        6 => any::<bool>().prop_map(|idle_first| Step::End { idle_first }),
        3 => Just(Step::Idle),
        8 => (1..4usize).prop_map(Step::Take),
        6 => Just(Step::Leave),
        2 => Just(Step::Acknowledge),
        2 => Just(Step::KillFront),
        2 => Just(Step::KillReplica),
        1 => Just(Step::KillBoth),
        3 => any::<bool>().prop_map(Step::Shell),
        3 => any::<bool>().prop_map(Step::Iopub),
    ]
}

/// The clients' sockets, and the stream to the replica.
#[derive(Default)]
struct Ear {
    shell: bool,
    iopub: bool,
    outbox: Vec<(Message, Option<Mark>)>,
    done: Vec<u64>,
    sent: VecDeque<Item>,
}

impl Wire for Ear {
    fn reply(&mut self, _: Channel, _: &[u8], message: Message, mark: Option<Mark>) -> Result<(), Message> {
        if !self.shell {
            return Err(message);
        }
        self.outbox.push((message, mark));
        Ok(())
    }

    fn publish(&mut self, message: &Message, mark: Option<Mark>) -> bool {
        if self.iopub {
            self.outbox.push((message.clone(), mark));
        }
        self.iopub
    }

    fn subscribers(&self) -> usize {
        self.iopub.into()
    }

    fn send(&mut self, item: Item) {
        self.sent.push_back(item);
    }

    fn done(&mut self, seq: u64) {
        self.done.push(seq);
    }
}

/// An executor: it answers from the log, or runs a cell that has not begun before.
struct Replica {
    tenure: Tenure,
    author: Author,
    kept: Retained<Item>,
    /// What the front has not taken.
    link: VecDeque<(u64, Item)>,
    handed: BTreeMap<CellId, Option<Behind>>,
    waits: VecDeque<(CellId, Bytes)>,
    /// The front's word was asked for.
    asked: bool,
    runs: bool,
    owes_idle: Option<Bytes>,
    /// The cell in front ended with an error.
    stops: bool,
}

impl Replica {
    fn new(tenure: u64) -> Self {
        Self {
            tenure: Tenure(tenure),
            author: Author::new(b"key", "replica".into()),
            kept: Retained::new(usize::MAX),
            link: VecDeque::new(),
            handed: BTreeMap::new(),
            waits: VecDeque::new(),
            asked: false,
            runs: false,
            owes_idle: None,
            stops: false,
        }
    }

    fn emit(&mut self, item: Item) {
        let seq = self.kept.push(item.clone());
        self.link.push_back((seq, item));
    }

    fn publish(&mut self, header: &Bytes, state: &str) {
        let message = self.author.status(header, state, &json!({}), Time(0));
        self.emit(Item::Jupyter {
            channel: Channel::Iopub,
            identity: Bytes::new(),
            message,
        });
    }

    fn reply(&mut self, header: &Bytes, status: &str) {
        let content = json!({"status": status});
        let reply = self
            .author
            .write("execute_reply", header, &json!({}), &content, Time(0));
        self.emit(Item::Jupyter {
            channel: Channel::Shell,
            identity: ME,
            message: reply.message(),
        });
    }

    fn asks_for_the_next(&mut self) {
        if let Some((cell, _)) = self.waits.front().cloned()
            && !self.asked
        {
            self.asked = true;
            self.emit(Item::Note(Note::Begins { cell }));
        }
    }
}

struct World {
    front: Front,
    client: Author,
    ear: Ear,
    replica: Replica,
    /// The kernel's log: answers with their numbers and their status, and the last number.
    log: BTreeMap<CellId, (u64, &'static str)>,
    last: u64,
    records: Vec<u8>,
    taken: Taken,
    in_hand: BTreeSet<u64>,
    met: bool,
    /// Each cell with what its client has: the statuses of its replies, and the number of its idles.
    cells: BTreeMap<CellId, (Vec<String>, usize)>,
    /// How the log had a cell end first.
    ended: BTreeMap<CellId, &'static str>,
    begun: BTreeSet<CellId>,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            front: Front::new(b"key", "front".into()).durable(true),
            client: Author::new(b"key", "client".into()),
            ear: Ear {
                shell: true,
                iopub: true,
                ..Ear::default()
            },
            replica: Replica::new(1),
            log: BTreeMap::new(),
            last: 0,
            records: Vec::new(),
            taken: Taken::default(),
            in_hand: BTreeSet::new(),
            met: true,
            cells: BTreeMap::new(),
            ended: BTreeMap::new(),
            begun: BTreeSet::new(),
        };
        world.front.take_up(b"", Time(0));
        world.front.next_tenure(Tenure(1), false, Time(0), &mut world.ear);
        world
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Ask if self.ear.shell && self.cells.len() < 20 => self.ask(),
            Step::Serve => self.serve(),
            Step::End { idle_first } => self.end(idle_first),
            Step::Idle => self.idle(),
            Step::Take(count) => (0..count).for_each(|_| self.take()),
            Step::Leave => self.leave(),
            Step::Acknowledge => self.front.acknowledge(&mut self.ear),
            Step::KillFront => {
                self.lose_front();
                self.resume();
            }
            Step::KillReplica => self.elect(),
            Step::KillBoth => {
                self.lose_front();
                self.elect();
            }
            Step::Shell(here) => {
                self.ear.shell = here;
                if here {
                    self.front.connected(Channel::Shell, &ME, &mut self.ear);
                }
            }
            Step::Iopub(here) => {
                self.ear.iopub = here;
                if here {
                    self.front.subscribed(&Bytes::new(), Time(0), &mut self.ear);
                }
            }
            Step::Ask => {}
        }
        self.settle();
    }

    fn ask(&mut self) {
        let parent = Bytes::from_static(b"{}");
        let content = json!({"code": "1", "stop_on_error": true});
        let asked = self
            .client
            .write("execute_request", &parent, &json!({}), &content, Time(0));
        let cell = asked.header().unwrap().msg_id.into();
        self.cells.insert(cell, (Vec::new(), 0));
        self.front
            .request(Channel::Shell, &ME, asked.message(), Time(0), &mut self.ear);
    }

    fn serve(&mut self) {
        let Some(item) = self.ear.sent.pop_front() else {
            return;
        };
        match item {
            Item::Note(Note::HandedBefore { cell, behind, .. }) => {
                self.replica.handed.insert(cell, behind);
            }
            Item::Note(Note::MayBegin { cell }) => {
                let is_first = self
                    .replica
                    .waits
                    .front()
                    .is_some_and(|(first, _)| *first == cell);
                if is_first && !self.replica.runs {
                    assert!(self.begun.insert(cell), "a cell begins twice");
                    self.replica.runs = true;
                }
            }
            Item::Note(Note::Heard { cells, .. }) => self.log.retain(|_, (number, _)| *number > cells),
            Item::Jupyter { message, .. } => self.request(&message),
            Item::Note(_) => {}
        }
    }

    fn request(&mut self, message: &Message) {
        let envelope = Envelope::parse(message).unwrap();
        let (cell, header): (CellId, _) = (envelope.header().unwrap().msg_id.into(), envelope.header);
        let known = self.log.get(&cell).copied();
        match (self.replica.handed.remove(&cell), known) {
            (Some(behind), Some((_, status))) if behind != Some(Behind::New) => {
                self.answer(&cell, &header, status);
                self.replica.publish(&header, "idle");
            }
            (Some(Some(_)), _) if self.replica.stops => {
                self.replica.reply(&header, "aborted");
                self.replica.publish(&header, "idle");
            }
            (Some(behind), _) if behind != Some(Behind::New) => {
                self.replica.stops = true;
                self.replica.publish(&header, "idle");
                self.answer(&cell, &header, "lost");
            }
            _ => {
                self.replica.stops = false;
                self.replica.waits.push_back((cell, header));
                self.replica.asks_for_the_next();
            }
        }
    }

    fn answer(&mut self, cell: &CellId, header: &Bytes, status: &'static str) {
        self.last += 1;
        let number = self.log.get(cell).map_or(self.last, |(number, _)| *number);
        self.log.insert(cell.clone(), (number, status));
        self.ended.entry(cell.clone()).or_insert(status);
        self.replica.emit(Item::Note(Note::Answered {
            cell: cell.clone(),
            number,
            count: None,
            lost: false,
        }));
        self.replica.reply(header, status);
    }

    fn end(&mut self, idle_first: bool) {
        self.idle();
        if !std::mem::take(&mut self.replica.runs) {
            return;
        }
        let (cell, header) = self.replica.waits.pop_front().unwrap();
        self.replica.asked = false;
        if idle_first {
            self.replica.publish(&header, "idle");
        } else {
            self.replica.owes_idle = Some(header.clone());
        }
        self.answer(&cell, &header, "ok");
        self.replica.asks_for_the_next();
    }

    fn idle(&mut self) {
        if let Some(header) = self.replica.owes_idle.take() {
            self.replica.publish(&header, "idle");
        }
    }

    fn take(&mut self) {
        let Some((seq, item)) = self.replica.link.pop_front() else {
            return;
        };
        if !self.taken.take(seq) {
            return;
        }
        self.in_hand.insert(seq);
        if let Item::Note(Note::Begins { cell }) = &item {
            self.front.may_begin(cell, true);
            self.record();
        }
        self.front.item(seq, item, Time(0), &mut self.ear);
        self.settle();
    }

    /// The client reads.
    fn leave(&mut self) {
        let outbox = std::mem::take(&mut self.ear.outbox);
        for (message, _) in &outbox {
            let envelope = Envelope::parse(message).unwrap();
            let Some(Header { msg_id, .. }) = envelope.parent() else {
                continue;
            };
            let Some(cell) = self.cells.get_mut(&CellId::from(msg_id)) else {
                continue;
            };
            let content: Value = serde_json::from_slice(&envelope.content).unwrap();
            match &*envelope.header().unwrap().msg_type {
                "execute_reply" => cell.0.push(content["status"].as_str().unwrap().to_owned()),
                "status" if content["execution_state"] == "idle" => cell.1 += 1,
                _ => {}
            }
        }
        let marks: Vec<Mark> = outbox.into_iter().filter_map(|(_, mark)| mark).collect();
        let left = self.front.have_left(&marks);
        self.ear.done.extend(left);
    }

    fn record(&mut self) {
        match self.front.records() {
            Some(Records::More(more)) => self.records.extend(more),
            Some(Records::All(all)) => self.records = all,
            None => {}
        }
    }

    fn settle(&mut self) {
        self.record();
        for seq in std::mem::take(&mut self.ear.done) {
            self.in_hand.remove(&seq);
            self.replica.kept.done(seq..=seq);
        }
        self.front.sanity_check();
    }

    /// Another front takes the records up. What had not left is gone, and so are the clients.
    fn lose_front(&mut self) {
        self.ear = Ear::default();
        self.front = Front::new(b"key", "next".into()).durable(true);
        self.front.take_up(&self.records, Time(0));
        let again = self.in_hand.iter().copied().chain(self.taken.again());
        self.taken = Taken::resume(self.taken.upto(), again.collect::<Vec<_>>());
        self.in_hand.clear();
        self.met = false;
    }

    /// The replica comes back to the new front. Requests that were on their way are in the front's hands again.
    fn resume(&mut self) {
        let replica = &mut self.replica;
        let flight = |(_, header): &(CellId, Bytes)| InFlight {
            identity: hex::encode(ME),
            header: String::from_utf8(header.to_vec()).unwrap(),
        };
        let in_flight = replica.waits.iter().map(flight).collect();
        let answered = replica.kept.items().filter_map(|item| match item {
            Item::Jupyter {
                channel: Channel::Shell,
                message,
                ..
            } => Some(CellId::from(Envelope::parse(message).unwrap().parent()?.msg_id)),
            _ => None,
        });
        let answered: Vec<CellId> = answered.collect();
        self.front
            .resume(in_flight, Some(&answered), replica.tenure, &mut self.ear);
        let (upto, again) = (self.taken.upto(), self.taken.again());
        replica.kept.settle(upto, &again);
        replica.link = replica.kept.lacking(upto, &again).into();
        // The earlier front's word may have been on its way.
        if std::mem::take(&mut replica.asked) && !replica.runs {
            replica.asks_for_the_next();
        }
        replica.asked |= replica.runs;
        self.met = true;
    }

    /// The replica is lost, and the kernel's group elects another one.
    fn elect(&mut self) {
        let tenure = self.replica.tenure.0 + 1;
        self.replica = Replica::new(tenure);
        self.ear.sent.clear();
        self.ear.done.clear();
        self.front
            .next_tenure(Tenure(tenure), self.met, Time(0), &mut self.ear);
        (self.taken, self.met) = (Taken::default(), true);
        self.in_hand.clear();
    }

    fn comes_to_rest(&mut self) {
        self.step(Step::Shell(true));
        self.step(Step::Iopub(true));
        for _ in 0..200 {
            self.step(Step::Serve);
            self.step(Step::End { idle_first: false });
            self.step(Step::Idle);
            self.step(Step::Take(8));
            self.step(Step::Leave);
        }
        for (cell, (replies, idles)) in &self.cells {
            assert!(!replies.is_empty(), "{cell} has no reply");
            assert!(*idles > 0, "{cell} is never idle: {replies:?}");
            if let Some(ended) = self.ended.get(cell) {
                assert!(
                    replies.iter().all(|r| r == ended),
                    "{cell} was {ended}: {replies:?}"
                );
            }
        }
        assert!(self.front.answered.is_empty(), "{:?}", self.front.answered);
        assert_eq!(self.front.kept, 0);
    }
}

fn happens(steps: impl IntoIterator<Item = Step>) {
    let mut world = World::new();
    steps.into_iter().for_each(|step| world.step(step));
    world.comes_to_rest();
}

/// The replica's first answer was announced to a front that is lost with it.
#[test]
fn an_answer_is_announced_to_the_next_front_as_well() {
    let end = Step::End { idle_first: false };
    let runs = [
        Step::Ask,
        Step::Ask,
        Step::Serve,
        Step::Take(1),
        Step::Serve,
        Step::Serve,
    ];
    let announced = [
        end,
        Step::Take(1),
        Step::KillFront,
        Step::Take(3),
        Step::Serve,
        end,
    ];
    let lost = [
        Step::Take(2),
        Step::Acknowledge,
        Step::Serve,
        Step::Serve,
        Step::KillFront,
        Step::KillReplica,
    ];
    happens([runs, announced, lost].concat());
}

/// The client's iopub comes back later than its shell, and front and replica are lost between.
#[test]
fn a_cell_is_idle_though_the_front_that_held_the_word_is_lost_with_the_replica() {
    let end = Step::End { idle_first: true };
    let runs = [Step::Ask, Step::Serve, Step::Take(1), Step::Serve];
    let replies = [Step::Iopub(false), end, Step::Take(3), Step::Leave];
    for lost in [Step::KillReplica, Step::KillBoth] {
        let lost = [lost, Step::KillFront, Step::KillBoth, Step::Idle];
        happens([runs, replies, lost].concat());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_client_gets_its_answer_whole(steps in prop::collection::vec(step(), 0..120)) {
        happens(steps);
    }
}
