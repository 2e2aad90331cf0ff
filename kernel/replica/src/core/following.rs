//! A replica in a member's seat that follows the kernel's log: the process restores the logged state and applies each
//! record committed later. The kernel goes on there at once when the log elects the member. Pure, as [`super::Core`],
//! which then takes over.
//!
//! Any record that the process can't follow ends the follower. The seat then starts a replica, as it would without a
//! follower.

use super::block::answer_to_hello;
use super::durable::{begin_standby, restore_with};
use crate::agent::Parcel;
use bytes::Bytes;
use hop_log::{Effect, Entry, Index, Office, Payload, Record, RecordNumber, State};
use hop_protocol::content::Stores;
use hop_words::id::Incarnation;
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::path::PathBuf;

/// What a follower is told.
#[derive(Debug)]
pub(crate) enum Input {
    /// The agent in the kernel's process said something.
    Agent(Parcel),
    /// The group's state, for a seat behind the others.
    State(State),
    /// The next entry of the group's log.
    Applied { index: Index, entry: Entry },
}

/// What it wants done.
#[derive(Debug, PartialEq)]
pub(crate) enum Output {
    ToAgent(Parcel),
    /// The process has what the log has, for the first time.
    Follows,
    /// The log has elected this member, and the process has all its records.
    Elected(Box<Elected>),
    /// The process can't follow, for this reason.
    Fails(String),
}

/// A replica takes office with a process that has the variables.
#[derive(Debug, PartialEq)]
pub(crate) struct Elected {
    pub(crate) state: State,
    /// As the agent's answer to `state.restore`.
    pub(crate) restored: Value,
}

#[derive(Debug, PartialEq, Eq)]
enum Talk {
    Silent,
    /// The process opens the store, by the request of this id.
    Opening(u64),
    /// The process reads or applies records, up to this one.
    Reading(u64, RecordNumber),
    /// The process has all records up to this one.
    Has(RecordNumber),
    Over,
}

/// The process's report on its variables.
#[derive(Debug, Default)]
struct Told {
    lost: Map<String, Value>,
    notices: Vec<Value>,
    unmovable: Value,
    /// The number of the next cell, by the newest answer.
    execution_count: Value,
}

/// A follower's view of its kernel.
#[derive(Debug)]
pub(crate) struct Following {
    me: Incarnation,
    state: State,
    /// The folder of all the kernel's tenures.
    folder: PathBuf,
    stores: Stores,
    talk: Talk,
    last_request: u64,
    /// Committed records still to send to the process, the oldest first.
    lacks: VecDeque<Record>,
    told: Told,
    /// The restoration is answered.
    is_restored: bool,
    knows: bool,
    out: Vec<Output>,
}

impl Following {
    /// A process without variables. `folder` has all the kernel's tenures, `stores` the user's chunks.
    pub(crate) fn new(me: Incarnation, state: State, folder: PathBuf, stores: Stores) -> Self {
        Self {
            me,
            state,
            folder,
            stores,
            talk: Talk::Silent,
            last_request: 0,
            lacks: VecDeque::new(),
            told: Told::default(),
            is_restored: false,
            knows: false,
            out: Vec::new(),
        }
    }

    /// Takes in an input; returns the outputs that follow, in order.
    pub(crate) fn handle(&mut self, input: Input) -> Vec<Output> {
        match input {
            Input::Agent(parcel) => self.agent(parcel),
            Input::State(state) => self.adopt(state),
            Input::Applied { index, entry } => self.applied(index, &entry),
        }
        self.go_on();
        std::mem::take(&mut self.out)
    }

    /// Whether the log has elected this member.
    pub(crate) fn is_elected(&self) -> bool {
        self.state.executor() == Some(self.me)
    }

    /// The entry to tell the log that this member keeps the variables. `None` means that the replica is no member.
    pub(crate) fn hot(&self) -> Option<Entry> {
        let member = self.state.members().get(&self.me)?;
        Some(member.entry(self.me, true))
    }

    fn fails(&mut self, why: impl Into<String>) {
        if self.talk != Talk::Over {
            self.talk = Talk::Over;
            self.out.push(Output::Fails(why.into()));
        }
    }

    fn ask(&mut self, op: &str, body: Value, attachments: Vec<Bytes>) -> u64 {
        self.last_request += 1;
        let parcel = Parcel {
            attachments,
            ..Parcel::request(self.last_request, op, body)
        };
        self.out.push(Output::ToAgent(parcel));
        self.last_request
    }

    fn agent(&mut self, parcel: Parcel) {
        let wire = parcel.wire;
        match (wire.op.as_deref(), wire.id, wire.re) {
            (Some("hello"), Some(id), _) => {
                let (answer, speaks) = answer_to_hello(id, &wire.body);
                self.out.push(Output::ToAgent(answer));
                match speaks {
                    true => self.open(),
                    false => self.fails("the agent in the kernel is of another release"),
                }
            }
            (Some("state.notice"), ..) => self.told.take_in(wire.body),
            (_, _, Some(re)) => match (wire.ok, wire.error) {
                (_, Some(error)) => self.fails(error.message),
                (answer, None) => self.answered(re, answer.unwrap_or_default()),
            },
            _ => {}
        }
    }

    fn open(&mut self) {
        let record = RecordNumber(self.state.records().0 + 1);
        let body = begin_standby(record, &self.stores);
        let id = self.ask("state.begin", body, Vec::new());
        self.talk = Talk::Opening(id);
    }

    fn answered(&mut self, re: u64, answer: Value) {
        match self.talk {
            Talk::Opening(id) if id == re => self.restore(),
            Talk::Reading(id, upto) if id == re => {
                let is_applied = std::mem::replace(&mut self.is_restored, true);
                let lost = answer["lost"].as_object().is_some_and(|lost| !lost.is_empty());
                if is_applied && lost {
                    return self.fails("a variable has to be made again by its cells");
                }
                self.told.take_in(answer);
                self.talk = Talk::Has(upto);
            }
            _ => {}
        }
    }

    /// Has the process read the log's present content.
    fn restore(&mut self) {
        let restore = self.state.restore();
        let Some(settled) = restore.settled else {
            return self.fails("nothing of the kernel's state is in the store yet");
        };
        let (mut upto, mut attachments) = (settled.upto, Vec::new());
        for record in restore.records {
            let Payload::Inline { text, body } = &record.payload else {
                return self.fails(IN_THE_STORE);
            };
            attachments.extend([text.clone(), body.clone()]);
            upto = record.number;
        }
        // No user waits for this process: everything is read before the first use.
        let body = restore_with(settled, &self.folder, false);
        let id = self.ask("state.restore", body, attachments);
        self.talk = Talk::Reading(id, upto);
    }

    fn reads(&self) -> bool {
        matches!(self.talk, Talk::Reading(..) | Talk::Has(_))
    }

    fn adopt(&mut self, state: State) {
        let same = state.records() == self.state.records();
        self.state = state;
        if self.reads() && !same {
            self.fails("its seat was behind the log");
        }
    }

    fn applied(&mut self, index: Index, entry: &Entry) {
        let (before, was_elected) = (self.state.records(), self.is_elected());
        // The refusal is the same at every member.
        let Ok(effect) = self.state.apply(index, entry) else {
            return;
        };
        if self.state.records() < before || effect == Effect::Fresh {
            return self.fails("the kernel's namespace is another one now");
        }
        if self.state.records() > before && self.reads() {
            self.lacks.extend(entry.record().cloned());
        }
        if was_elected && !self.is_elected() {
            return self.fails("another replica was elected");
        }
        let asleep = matches!(self.state.office(), Office::Asleep { .. });
        if asleep || self.state.has_left(self.me) {
            self.fails("its seat is no member of the kernel's group any more");
        }
    }

    fn go_on(&mut self) {
        let Talk::Has(upto) = self.talk else {
            return;
        };
        if !self.lacks.is_empty() {
            return self.apply(upto);
        }
        if self.is_elected() {
            self.talk = Talk::Over;
            let restored = std::mem::take(&mut self.told).into_value();
            let state = self.state.clone();
            self.out
                .push(Output::Elected(Box::new(Elected { state, restored })));
        } else if !self.knows {
            self.knows = true;
            self.out.push(Output::Follows);
        }
    }

    fn apply(&mut self, upto: RecordNumber) {
        let (first, mut last, mut attachments) = (RecordNumber(upto.0 + 1), upto, Vec::new());
        for record in std::mem::take(&mut self.lacks) {
            let Payload::Inline { text, body } = record.payload else {
                return self.fails(IN_THE_STORE);
            };
            if record.number.0 != last.0 + 1 {
                return self.fails("a record of the log is missing");
            }
            attachments.extend([text, body]);
            last = record.number;
        }
        let id = self.ask("state.apply", json!({"record": first}), attachments);
        self.talk = Talk::Reading(id, last);
    }

    /// Checks what must always hold.
    #[cfg(test)]
    fn sanity_check(&self) {
        self.state.sanity_check().expect("the log's invariants hold");
        assert!(self.reads() || self.lacks.is_empty() || self.talk == Talk::Over);
        if let Talk::Has(upto) = self.talk {
            assert!(self.lacks.is_empty() && upto == self.state.records());
        }
        if let Talk::Reading(_, upto) = self.talk {
            let lacks = self.lacks.len() as u64;
            assert_eq!(upto.0 + lacks, self.state.records().0, "no record is skipped");
        }
    }
}

const IN_THE_STORE: &str = "a record is too large for the log";

impl Told {
    /// Variables that were read again since are not lost any more.
    fn take_in(&mut self, said: Value) {
        for name in said["names"].as_array().into_iter().flatten() {
            self.lost.remove(name.as_str().unwrap_or_default());
        }
        if let Some(lost) = said["lost"].as_object() {
            self.lost.extend(lost.clone());
        }
        for notice in said["notices"].as_array().into_iter().flatten() {
            if !self.notices.contains(notice) {
                self.notices.push(notice.clone());
            }
        }
        if said["unmovable"].is_array() {
            self.unmovable = said["unmovable"].clone();
        }
        if said["execution_count"].is_i64() {
            self.execution_count = said["execution_count"].clone();
        }
    }

    fn into_value(self) -> Value {
        let unmovable = match self.unmovable {
            Value::Null => json!([]),
            said => said,
        };
        json!({
            "lost": self.lost, "notices": self.notices, "unmovable": unmovable,
            "execution_count": self.execution_count,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent;
    use hop_log::Act;
    use hop_log::{Sequence, Settled};
    use hop_words::id::{JobId, Tenure};

    const ME: Incarnation = Incarnation(2);

    fn apply(state: &mut State, entry: &Entry) {
        state.apply(state.applied().next(), entry).unwrap();
    }

    fn join(state: &mut State, incarnation: u32) {
        let join = Entry::Join {
            incarnation: Incarnation(incarnation),
            seat: JobId(incarnation),
            node: "n".into(),
            hot: false,
        };
        apply(state, &join);
    }

    fn act(state: &State, act: Act) -> Entry {
        Entry::Act {
            tenure: state.tenure(),
            sequence: Sequence(state.sequence().0 + 1),
            act,
        }
    }

    fn record(state: &State, inline: bool) -> Entry {
        let number = RecordNumber(state.records().0 + 1);
        let text = Bytes::from(format!("text {}", number.0));
        let payload = match inline {
            true => Payload::Inline {
                text,
                body: Bytes::from_static(b"body"),
            },
            false => Payload::Folder,
        };
        let record = Record { number, payload };
        let through = None;
        act(state, Act::Record { record, through })
    }

    /// Replica 1 executes, and replica 2, the follower, is a member. Of two records the store has the first.
    fn begun() -> State {
        let mut state = State::new();
        join(&mut state, 1);
        join(&mut state, 2);
        elect(&mut state, 1);
        let first = record(&state, true);
        apply(&mut state, &first);
        let settled = Settled {
            tenure: Tenure(1),
            part: 0,
            upto: RecordNumber(1),
            length: 10,
            mac: "mac".into(),
        };
        apply(&mut state, &Entry::Settled { settled });
        let second = record(&state, true);
        apply(&mut state, &second);
        state
    }

    fn elect(state: &mut State, executor: u32) {
        let tenure = tenure(state, executor);
        apply(state, &tenure);
    }

    fn tenure(state: &State, executor: u32) -> Entry {
        Entry::Tenure {
            tenure: Tenure(state.tenure().0 + 1),
            executor: Incarnation(executor),
        }
    }

    struct World(Following);

    impl World {
        fn new(state: State) -> Self {
            Self(Following::new(
                ME,
                state,
                "/states".into(),
                Stores::only("/store"),
            ))
        }

        /// As words: an agent's request by its name, id, record, and texts of attachments.
        fn input(&mut self, input: Input) -> Vec<String> {
            let out = self.0.handle(input);
            self.0.sanity_check();
            out.into_iter().map(word).collect()
        }

        fn greet(&mut self) -> Vec<String> {
            let hello = Parcel::request(0, "hello", json!({"version": agent::VERSION}));
            self.input(Input::Agent(hello))
        }

        fn answer(&mut self, id: u64, body: Value) -> Vec<String> {
            self.input(Input::Agent(Parcel::answer(id, body)))
        }

        fn entry(&mut self, entry: Entry) -> Vec<String> {
            let index = self.0.state.applied().next();
            self.input(Input::Applied { index, entry })
        }

        fn record(&mut self) -> Vec<String> {
            let entry = record(&self.0.state, true);
            self.entry(entry)
        }
    }

    fn word(output: Output) -> String {
        match output {
            Output::ToAgent(parcel) => {
                let texts = parcel.attachments.iter().step_by(2);
                let texts: Vec<_> = texts.map(|t| String::from_utf8_lossy(t).into_owned()).collect();
                match (parcel.wire.op, parcel.wire.id) {
                    (Some(op), Some(id)) => {
                        let record = &parcel.wire.body["record"];
                        format!("{op} {id} {record} {}", texts.join(", "))
                    }
                    _ => "answer".into(),
                }
            }
            Output::Follows => "follows".into(),
            Output::Elected(elected) => {
                assert_eq!(elected.state.executor(), Some(ME));
                format!("elected {}", elected.restored)
            }
            Output::Fails(why) => format!("fails: {why}"),
        }
    }

    /// A follower that has everything.
    fn following() -> World {
        let mut world = World::new(begun());
        assert_eq!(world.greet(), ["answer", "state.begin 1 3 "]);
        assert_eq!(world.answer(1, json!({})), ["state.restore 2 null text 2"]);
        let said = json!({
            "names": ["a"], "lost": {"b": "why"}, "notices": ["n"], "unmovable": [], "execution_count": 5,
        });
        assert_eq!(world.answer(2, said), ["follows"]);
        world
    }

    #[test]
    fn a_follower_has_each_record_when_it_is_elected() {
        let mut world = following();
        assert_eq!(world.record(), ["state.apply 3 3 text 3"]);
        assert_eq!(world.record(), [""; 0], "one request at a time");
        assert_eq!(world.record(), [""; 0]);
        let said = json!({"record": 3, "names": ["b"], "lost": {}, "notices": ["n", "m"]});
        assert_eq!(world.answer(3, said), ["state.apply 4 4 text 4, text 5"]);
        let elected = tenure(&world.0.state, 2);
        assert_eq!(world.entry(elected), [""; 0], "its process lacks records");
        let said = json!({"record": 5, "names": [], "lost": {}, "notices": [], "execution_count": 8});
        let out = world.answer(4, said);
        assert_eq!(
            out,
            [r#"elected {"execution_count":8,"lost":{},"notices":["n","m"],"unmovable":[]}"#],
            "`b` has come back"
        );
        assert_eq!(world.record(), [""; 0], "it is the core's now");
    }

    #[test]
    fn a_member_that_is_elected_and_deposed_before_it_has_everything_ends() {
        let mut world = following();
        world.record();
        let elected = tenure(&world.0.state, 2);
        assert_eq!(world.entry(elected), [""; 0]);
        let other = tenure(&world.0.state, 1);
        assert_eq!(world.entry(other), ["fails: another replica was elected"]);
    }

    #[test]
    fn records_that_come_during_the_restoration_are_applied_after_it() {
        let mut world = World::new(begun());
        world.greet();
        assert_eq!(world.record(), [""; 0]);
        assert_eq!(
            world.answer(1, json!({})),
            ["state.restore 2 null text 2, text 3"],
            "the newest state is read"
        );
        assert_eq!(world.record(), [""; 0]);
        assert_eq!(world.answer(2, json!({})), ["state.apply 3 4 text 4"]);
        assert_eq!(world.answer(3, json!({})), ["follows"]);
    }

    #[test]
    fn another_executor_is_followed_as_well() {
        let mut state = begun();
        join(&mut state, 3);
        let mut world = World::new(state);
        world.greet();
        world.answer(1, json!({}));
        world.answer(2, json!({}));
        let elected = tenure(&world.0.state, 3);
        assert_eq!(world.entry(elected), [""; 0]);
        assert_eq!(world.record(), ["state.apply 3 3 text 3"]);
    }

    #[test]
    fn whatever_can_not_be_followed_ends_the_follower() {
        let refusal = |id| {
            Input::Agent(Parcel::refuse(
                id,
                "rebuild",
                "a pool would run code when it goes",
            ))
        };
        let in_the_folder = |world: &World| record(&world.0.state, false);
        let mut world = following();
        world.record();
        let out = world.input(refusal(3));
        assert_eq!(out, ["fails: a pool would run code when it goes"]);
        assert_eq!(world.record(), [""; 0], "once");

        let mut world = following();
        world.record();
        let out = world.answer(
            3,
            json!({"record": 3, "names": [], "lost": {"c": "a socket"}, "notices": []}),
        );
        assert_eq!(out, ["fails: a variable has to be made again by its cells"]);

        let mut world = following();
        let large = in_the_folder(&world);
        assert_eq!(world.entry(large), ["fails: a record is too large for the log"]);

        let mut world = following();
        let fresh = act(&world.0.state, Act::Fresh);
        assert_eq!(
            world.entry(fresh),
            ["fails: the kernel's namespace is another one now"]
        );

        let mut world = following();
        let left = Entry::Left { incarnation: ME };
        assert_eq!(
            world.entry(left),
            ["fails: its seat is no member of the kernel's group any more"]
        );

        let mut world = following();
        let mut ahead = world.0.state.clone();
        let missed = record(&ahead, true);
        apply(&mut ahead, &missed);
        let out = world.input(Input::State(ahead));
        assert_eq!(out, ["fails: its seat was behind the log"]);

        let mut world = World::new(State::new());
        world.greet();
        let out = world.answer(1, json!({}));
        assert_eq!(out, ["fails: nothing of the kernel's state is in the store yet"]);

        let mut world = World::new(begun());
        let hello = Parcel::request(0, "hello", json!({"version": 0}));
        let out = world.input(Input::Agent(hello));
        assert_eq!(
            out,
            ["answer", "fails: the agent in the kernel is of another release"]
        );
    }
}
