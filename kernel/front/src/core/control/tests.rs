//! Interrupts and ends, with and without a replica.

use super::*;
use crate::core::Mark;
use crate::core::requests::tests::take_in;
use hop_protocol::jupyter::Author;
use hop_protocol::message::Over;
use hop_protocol::retain::Retained;
use hop_words::id::Tenure;

const ME: Bytes = Bytes::from_static(b"me");
const AT: Time = Time(0);

/// All messages to clients and to the replica, in words. The client is there.
struct Ear {
    said: Vec<String>,
    /// The items of the present stream that no replica has taken.
    kept: Retained<Item>,
    left: Vec<Mark>,
}

fn line(message: &Message) -> String {
    let e = Envelope::parse(message).unwrap();
    let content: Value = serde_json::from_slice(&e.content).unwrap();
    let mut line = e.header().unwrap().msg_type;
    for word in ["execution_state", "code", "status", "ename"] {
        if let Some(word) = content[word].as_str() {
            line = format!("{line} {word}");
        }
    }
    line
}

impl Wire for Ear {
    fn reply(
        &mut self,
        channel: Channel,
        _: &[u8],
        message: Message,
        mark: Option<Mark>,
    ) -> Result<(), Message> {
        self.left.extend(mark);
        self.said.push(format!("{channel:?}: {}", line(&message)));
        Ok(())
    }

    fn publish(&mut self, message: &Message, mark: Option<Mark>) -> bool {
        self.left.extend(mark);
        self.said.push(line(message));
        true
    }

    fn subscribers(&self) -> usize {
        1
    }

    fn send(&mut self, item: Item) {
        self.kept.push(item);
    }

    fn done(&mut self, _: u64) {}
}

struct World {
    front: Front,
    client: Author,
    ear: Ear,
    records: Vec<u8>,
}

impl World {
    fn new(durable: bool) -> Self {
        let mut world = Self {
            front: Front::new(b"key", "front".into()).durable(durable),
            client: Author::new(b"key", "client".into()),
            ear: Ear {
                said: Vec::new(),
                kept: Retained::new(1 << 20),
                left: Vec::new(),
            },
            records: Vec::new(),
        };
        world.front.take_up(b"", AT);
        world
    }

    /// A front that was connected to its first replica.
    fn connected() -> Self {
        let mut world = Self::new(true);
        world.front.next_tenure(Tenure(1), false, AT, &mut world.ear);
        world.front.replica_is_there(AT, &mut world.ear);
        world
    }

    fn asks(&mut self, channel: Channel, kind: &str, content: &Value) -> (Envelope, Asked) {
        let parent = Bytes::from_static(b"{}");
        let asked = self.client.write(kind, &parent, &json!({}), content, AT);
        let message = asked.clone().message();
        let what = self.front.request(channel, &ME, message, AT, &mut self.ear);
        self.settles();
        (asked, what)
    }

    fn cell(&mut self, code: &str) -> CellId {
        self.cell_of(&json!({"code": code}))
    }

    fn cell_of(&mut self, content: &Value) -> CellId {
        let (asked, what) = self.asks(Channel::Shell, "execute_request", content);
        assert_eq!(what, Asked::Kernel);
        asked.header().unwrap().msg_id.into()
    }

    /// By a client's request, or by a signal.
    fn interrupts(&mut self, by_request: bool, away: bool) -> Vec<CellId> {
        let interrupt = match by_request {
            false => Interrupt::Signal,
            true => match self.asks(Channel::Control, "interrupt_request", &json!({})).1 {
                Asked::Interrupt(interrupt) => interrupt,
                other => panic!("{other:?}"),
            },
        };
        let ended = self.front.interrupt(interrupt, away, AT, &mut self.ear);
        self.takes_back(&ended);
        ended
    }

    fn is_gone(&mut self, untaken: Vec<Interrupt>) -> Vec<CellId> {
        let ended = self.front.replica_is_gone(untaken, AT, &mut self.ear);
        self.takes_back(&ended);
        ended
    }

    fn takes_back(&mut self, ended: &[CellId]) {
        self.ear.kept.extract(|item| is_request_of(item, ended));
        self.settles();
    }

    /// The requests go to another replica.
    fn next_tenure(&mut self, tenure: u64) {
        self.ear.kept = Retained::new(1 << 20);
        self.front.next_tenure(Tenure(tenure), true, AT, &mut self.ear);
        self.settles();
    }

    /// The front is killed, and another one follows.
    fn follows(&mut self) {
        self.front = Front::new(b"key", "next".into()).durable(true);
        self.front.take_up(&self.records, AT);
        self.ear.kept = Retained::new(1 << 20);
        self.settles();
        self.said();
    }

    fn settles(&mut self) {
        take_in(&mut self.front, &mut self.ear.left, &mut self.records);
        self.ear.kept.sanity_check();
    }

    fn said(&mut self) -> Vec<String> {
        std::mem::take(&mut self.ear.said)
    }

    /// The items that the replica gets when it connects.
    fn kept(&self) -> Vec<String> {
        let words = |item: &Item| match item {
            Item::Jupyter { message, .. } => line(message),
            Item::Note(Note::HandedBefore { behind, .. }) => format!("behind {behind:?}"),
            Item::Note(note) => format!("{note:?}"),
        };
        self.ear.kept.items().map(words).collect()
    }
}

const INTERRUPTED: [&str; 5] = [
    "status busy",
    "execute_input a",
    "error KeyboardInterrupt",
    "status idle",
    "Shell: execute_reply error KeyboardInterrupt",
];
const ABORTED: [&str; 3] = ["status busy", "status idle", "Shell: execute_reply aborted"];
const ANSWERED: [&str; 3] = ["status busy", "Control: interrupt_reply ok", "status idle"];

#[test]
fn an_interrupt_without_a_replica_ends_the_waiting_cell_and_those_behind() {
    for by_request in [true, false] {
        let mut world = World::connected();
        world.is_gone(Vec::new());
        let (a, b) = (world.cell("a"), world.cell("b"));
        world.said();
        assert_eq!(world.interrupts(by_request, true), [a, b]);
        let mut said = [&INTERRUPTED[..], &ABORTED].concat();
        if by_request {
            said.extend(ANSWERED);
        }
        assert_eq!(world.said(), said);
        world.next_tenure(2);
        assert_eq!(
            (world.kept(), world.said()),
            (vec![], vec![]),
            "nothing is left to run"
        );
        world.cell("c");
        assert_eq!(world.kept(), ["execute_request c"], "the interrupt is over");
        world.follows();
        assert_eq!(world.kept(), [""; 0]);
        world
            .front
            .resume(Vec::new(), Some(&[]), Tenure(2), &mut world.ear);
        assert_eq!(
            world.kept(),
            ["execute_request c"],
            "the next front knows the answers"
        );
    }
}

#[test]
fn an_interrupt_before_the_first_connection_takes_the_cells_back_from_the_stream() {
    let mut world = World::new(true);
    let a = world.cell_of(&json!({"code": "a", "stop_on_error": false}));
    world.cell("b");
    world.front.next_tenure(Tenure(1), false, AT, &mut world.ear);
    assert_eq!(world.kept(), ["execute_request a", "execute_request b"]);
    assert_eq!(world.interrupts(false, true), [a]);
    assert_eq!(world.said(), INTERRUPTED);
    assert_eq!(world.kept(), ["execute_request b"], "it stops on no error");
    // Also from a stream that has begun anew.
    world.cell("c");
    world.front.replica_is_there(AT, &mut world.ear);
    world.next_tenure(2);
    let handed = ["execute_request b", "behind Some(New)", "execute_request c"];
    assert_eq!(world.kept(), handed);
    assert_eq!(world.interrupts(false, true).len(), 2);
    assert_eq!(world.kept(), [""; 0]);
}

#[test]
fn an_interrupt_without_a_waiting_cell_is_answered_and_forgotten() {
    let mut world = World::connected();
    world.is_gone(Vec::new());
    assert_eq!(world.interrupts(true, true), []);
    assert_eq!(world.said(), ANSWERED);
    assert_eq!((world.interrupts(false, true), world.said()), (vec![], vec![]));
    world.cell("a");
    world.next_tenure(2);
    assert_eq!(world.kept(), ["execute_request a"]);
}

#[test]
fn an_interrupt_of_a_cell_that_may_have_begun_is_for_the_next_replica() {
    let mut world = World::connected();
    let a = world.cell("a");
    world.cell("b");
    world.front.may_begin(&a, true);
    world.ear.kept = Retained::new(1 << 20);
    assert_eq!(world.interrupts(true, true), []);
    assert_eq!(
        (world.kept(), world.said()),
        (vec!["interrupt_request".to_owned()], vec![])
    );
    // The same cell under the next tenure.
    world.next_tenure(2);
    world.ear.kept = Retained::new(1 << 20);
    assert_eq!(world.interrupts(false, true), []);
    assert_eq!(
        (world.kept(), world.said()),
        (vec!["Interrupt".to_owned()], vec![])
    );
}

#[test]
fn an_interrupt_that_the_lost_replica_has_not_taken_is_for_the_waiting_cell() {
    let mut world = World::connected();
    let a = world.cell("a");
    assert_eq!(world.interrupts(false, false), [], "its replica decides");
    assert_eq!(
        (world.kept(), world.said()),
        (
            vec!["execute_request a".to_owned(), "Interrupt".to_owned()],
            vec![]
        )
    );
    let untaken = world.ear.kept.extract(|item| Interrupt::of(item).is_some());
    let untaken = untaken.iter().filter_map(Interrupt::of).collect();
    assert_eq!(world.is_gone(untaken), [a]);
    assert_eq!(world.said(), INTERRUPTED);
    world.next_tenure(2);
    assert_eq!(world.kept(), [""; 0]);
}

#[test]
fn an_interrupt_is_behind_the_requests_of_a_killed_front() {
    let mut world = World::connected();
    let a = world.cell("a");
    world.front.may_begin(&a, true);
    world.settles();
    world.follows();
    world.cell("b");
    assert_eq!(world.interrupts(false, false), []);
    assert_eq!(world.kept(), [""; 0], "the replica may come back with its cell");
    world
        .front
        .resume(Vec::new(), Some(&[]), Tenure(1), &mut world.ear);
    world.settles();
    let sent = [
        "behind None",
        "execute_request a",
        "execute_request b",
        "Interrupt",
    ];
    assert_eq!(world.kept(), sent);
}

#[test]
fn a_kernel_without_a_log_gets_its_interrupt_at_its_start() {
    let mut world = World::new(false);
    world.cell("a");
    assert_eq!(world.interrupts(true, true), []);
    assert_eq!(world.kept(), ["execute_request a", "interrupt_request"]);
    assert_eq!(world.said(), [""; 0]);
}

#[test]
fn a_client_ends_a_kernel_without_a_replica() {
    let mut world = World::connected();
    world.is_gone(Vec::new());
    let (_, asked) = world.asks(Channel::Control, "shutdown_request", &json!({"restart": true}));
    let Asked::Shutdown(asked) = asked else {
        panic!("{asked:?}");
    };
    assert!(asked.restart);
    assert_eq!(
        (world.kept(), world.front.end()),
        (vec![], None),
        "the caller decides"
    );
    world.front.shut_down(&asked, AT, &mut world.ear);
    world.settles();
    let said = [
        "status busy",
        "Control: shutdown_reply ok",
        "status idle",
        "shutdown_reply ok",
    ];
    assert_eq!(world.said(), said);
    assert_eq!(world.front.end(), Some(&End::Shutdown));
    world.front.shut_down(&asked, AT, &mut world.ear);
    assert_eq!((world.said(), world.kept()), (vec![], vec![]), "once");
}

#[test]
fn only_a_verified_shutdown_request_of_this_kernel_counts() {
    let nothing = json!({});
    let mut world = World::connected();
    world.client = Author::new(b"another kernel's", "client".into());
    let (_, asked) = world.asks(Channel::Control, "shutdown_request", &nothing);
    assert_eq!(asked, Asked::Nothing);
    world.client = Author::new(b"key", "client".into());
    let (_, asked) = world.asks(Channel::Stdin, "shutdown_request", &nothing);
    assert_eq!(
        (asked, world.kept()),
        (Asked::Nothing, vec!["shutdown_request".to_owned()])
    );
    // Of a dead kernel its user may want the saved state removed.
    let over = Over::Died {
        reason: "out of memory".into(),
    };
    world
        .front
        .item(1, Item::Note(Note::KernelOver { over }), AT, &mut world.ear);
    let (_, asked) = world.asks(Channel::Control, "shutdown_request", &nothing);
    assert!(matches!(asked, Asked::Shutdown(asked) if !asked.restart));
    let (_, asked) = world.asks(Channel::Control, "interrupt_request", &nothing);
    assert_eq!(asked, Asked::Nothing);
    // The kernel that was here before.
    let mut world = World::connected();
    let later = jiff::Timestamp::from_second(1).unwrap();
    world.front = std::mem::replace(&mut world.front, Front::new(b"", String::new())).launched(later);
    let (_, asked) = world.asks(Channel::Control, "shutdown_request", &nothing);
    assert_eq!((asked, world.kept()), (Asked::Nothing, vec![]));
}
