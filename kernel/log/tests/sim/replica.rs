//! A replica: its seat with the keeper, and the process that may execute. The process writes the settled state, too.

use super::Bug;
use super::oracle::{Check, Fact};
use super::store::{Mark, Op, Stored, Write};
use super::world::{Message, Party, World};
use bytes::Bytes;
use hop_log::{
    Act, Answer, CellNumber, End, Entry, Fate, Index, Office, Payload, Record, RecordNumber, Sequence,
    Settled, State,
};
use hop_words::id::{CellId, Incarnation, JobId, Tenure};
use hop_words::lease::Outcome;
use std::collections::{BTreeSet, VecDeque};

#[derive(Debug)]
pub struct Replica {
    /// Its seat. A dead one never comes back.
    pub alive: bool,
    pub paused: bool,
    pub keeper: bool,
    /// The keeper's state of the log, and its place in the group's log.
    pub state: State,
    pub cursor: usize,
    /// The last tenure that a process of this seat served, on the node's disk.
    served: Tenure,
    pub process: Option<Process>,
    /// The kernel hibernates, and its state is being written.
    ending: bool,
}

#[derive(Debug)]
pub struct Process {
    /// The state of the log where the kernel has one replica.
    pub own: State,
    office: Option<InOffice>,
    /// The lease whose device the ipykernel has open.
    pub device: Option<u64>,
    /// The last tenure in which the ipykernel died.
    died: Option<Tenure>,
}

#[derive(Debug, Clone)]
struct Request {
    cell: u32,
    leased: bool,
    retry: bool,
    /// It may have begun in an older tenure.
    lost: bool,
}

#[derive(Debug)]
enum Stage {
    Waiting,
    Running {
        left: u64,
        emitted: u64,
        lease: Option<u64>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Quiet {
    Moving {
        to: u32,
    },
    Hibernating,
    /// The act was proposed: nothing begins until the log has evaluated it.
    Asked {
        act: Sequence,
    },
}

#[derive(Debug)]
struct InOffice {
    tenure: Tenure,
    namespace: Vec<Mark>,
    seen: BTreeSet<u32>,
    queue: VecDeque<Request>,
    current: Option<(Request, Stage)>,
    /// Acts until they are evaluated, in order. None is ever withdrawn.
    outbox: VecDeque<(Sequence, Act)>,
    last_act: Sequence,
    proposed: Sequence,
    last_record: RecordNumber,
    uncaptured: Vec<Mark>,
    next_is_full: bool,
    /// Contents of records that are in the folder alone.
    local: VecDeque<Stored>,
    acked: BTreeSet<u32>,
    acked_loss: Tenure,
    hello_heard: bool,
    restarts: u32,
    fresh: Option<Sequence>,
    quiet: Option<Quiet>,
    lease: Option<u64>,
    settler: Settler,
}

/// Writes the records to the tenure's folder, one write at a time.
#[derive(Debug)]
struct Settler {
    created: bool,
    waiting: bool,
    base: Option<Stored>,
    upto: RecordNumber,
    length: u64,
    written: Option<Settled>,
    told: CellNumber,
}

pub fn name(cell: u32) -> CellId {
    format!("c{cell}").as_str().into()
}

pub fn cell_number(id: &CellId) -> u32 {
    id.as_str()[1..].parse().expect("cells are c<number>")
}

pub fn join(incarnation: u32, hot: bool) -> Entry {
    Entry::Join {
        incarnation: Incarnation(incarnation),
        seat: JobId(incarnation),
        node: format!("n{incarnation}").as_str().into(),
        hot,
    }
}

/// A record's text: whether it is a full one, and the effects in it.
fn text(full: bool, marks: &[Mark]) -> Bytes {
    let mut text = String::from(if full { "full" } else { "" });
    for mark in marks {
        text += &format!(" {}.{}.{}", mark.cell, mark.tenure, u8::from(mark.half));
    }
    Bytes::from(text)
}

pub fn parse(text: &Bytes) -> Vec<Mark> {
    let text = std::str::from_utf8(text).expect("our own text");
    let words = text.split_whitespace().filter(|w| *w != "full");
    words
        .map(|word| {
            let mut parts = word.split('.').map(|p| p.parse::<u64>().expect("a number"));
            let mut next = || parts.next().expect("three parts");
            Mark {
                cell: next() as u32,
                tenure: next(),
                half: next() == 1,
            }
        })
        .collect()
}

impl Replica {
    pub fn new() -> Self {
        Self {
            alive: true,
            paused: false,
            keeper: true,
            state: State::new(),
            cursor: 0,
            served: Tenure(0),
            process: None,
            ending: false,
        }
    }
}

impl Replica {
    pub fn describe(&self) -> String {
        let office = self.process.as_ref().and_then(|p| p.office.as_ref());
        let office = office.map(|o| {
            (
                o.tenure, &o.current, &o.queue, &o.outbox, &o.quiet, &o.fresh, &o.settler,
            )
        });
        let died = self.process.as_ref().map(|p| (p.died, p.own.office()));
        let (log, served) = (self.state.office(), self.served);
        format!(
            "log {log:?}, served {served}, process {died:?}, ending {}, {office:?}",
            self.ending
        )
    }

    /// Whether its process serves this tenure, or may take it up.
    pub fn serves(&self, tenure: Tenure) -> bool {
        self.process.as_ref().is_some_and(|p| match &p.office {
            Some(office) => office.tenure == tenure,
            None => tenure > self.served && p.died < Some(tenure),
        })
    }
}

impl Process {
    pub fn new(own: State) -> Self {
        Self {
            own,
            office: None,
            device: None,
            died: None,
        }
    }

    /// Whether this process can't serve the tenure any more.
    pub fn died_in(&self, tenure: Tenure) -> bool {
        self.died >= Some(tenure)
    }
}

impl InOffice {
    fn new(tenure: Tenure, namespace: Vec<Mark>, state: &State, created: bool) -> Self {
        let base = Stored {
            number: state.records(),
            full: true,
            marks: namespace.clone(),
        };
        Self {
            tenure,
            namespace,
            seen: BTreeSet::new(),
            queue: VecDeque::new(),
            current: None,
            outbox: VecDeque::new(),
            last_act: state.sequence(),
            proposed: Sequence(0),
            last_record: state.records(),
            uncaptured: Vec::new(),
            next_is_full: false,
            local: VecDeque::new(),
            acked: BTreeSet::new(),
            acked_loss: Tenure(0),
            hello_heard: false,
            restarts: 0,
            fresh: None,
            quiet: None,
            lease: None,
            settler: Settler {
                created,
                waiting: false,
                base: Some(base),
                upto: RecordNumber(0),
                length: 0,
                written: None,
                told: CellNumber(0),
            },
        }
    }

    /// The executor does this next.
    fn does(&mut self, act: Act) -> Sequence {
        self.last_act = self.last_act.next();
        self.outbox.push_back((self.last_act, act));
        self.last_act
    }

    /// Whether the entry was never proposed, for the planted bug.
    fn is_new(&mut self, entry: &Entry) -> bool {
        let Entry::Act { sequence, .. } = entry else {
            return false;
        };
        let new = *sequence > self.proposed;
        self.proposed = self.proposed.max(*sequence);
        new
    }

    fn is_idle(&self) -> bool {
        self.queue.is_empty()
            && self.current.is_none()
            && self.outbox.is_empty()
            && self.uncaptured.is_empty()
    }
}

impl World {
    fn office(&mut self, replica: u32) -> Option<&mut InOffice> {
        self.replicas.get_mut(&replica)?.process.as_mut()?.office.as_mut()
    }

    fn own_state(&self, replica: u32) -> Option<State> {
        self.state_of(replica).cloned()
    }

    // ---- deaths ----

    pub fn ipykernel_dies(&mut self, replica: u32) {
        if let Some(process) = self.replicas.get_mut(&replica).and_then(|r| r.process.as_mut()) {
            if let Some(office) = process.office.take() {
                process.died = Some(office.tenure);
            }
            process.device = None;
        }
    }

    pub fn process_dies(&mut self, replica: u32) {
        if self.config.replicas == 1 {
            // Its seat may live on, and has nobody in it.
            self.node_dies(replica);
        } else if let Some(r) = self.replicas.get_mut(&replica) {
            r.process = None;
        }
    }

    /// The keeper has applied `Hibernated`: no process goes on. The executor's seat writes the state first.
    pub fn falls_asleep(&mut self, replica: u32) {
        self.count("asleep");
        let tenure = self.replicas[&replica].state.tenure();
        let state = self.replicas[&replica].state.at_rest();
        let Some(r) = self.replicas.get_mut(&replica) else {
            return;
        };
        let office = r.process.as_ref().and_then(|p| p.office.as_ref());
        let served = office.filter(|o| o.tenure == tenure).map(|o| o.settler.created);
        r.ending = true;
        if !self.config.bug.is_some_and(|b| b == Bug::SleepsOn) {
            self.replicas.get_mut(&replica).expect("just seen").process = None;
        }
        match served {
            Some(created) => {
                let op = if created {
                    Op::WriteState(state)
                } else {
                    Op::Create(state)
                };
                self.store.write(Write {
                    by: replica,
                    folder: tenure.0,
                    op,
                });
            }
            None => self.replicas.get_mut(&replica).expect("just seen").ending = false,
        }
    }

    // ---- one step of a process ----

    pub fn process_steps(&mut self, replica: u32) -> Check {
        let r = self.replicas.get_mut(&replica).expect("alive");
        if r.ending {
            return Ok(());
        }
        let calm = self.calm;
        let often = |world: &mut Self, percent: usize| calm || world.rng.chance(percent);
        if r.process.is_none() {
            if self.config.replicas > 1 && often(self, 30) {
                let state = State::new();
                self.replicas.get_mut(&replica).expect("alive").process = Some(Process::new(state));
            }
            return self.ends_alone(replica);
        }
        if self.config.replicas == 1 {
            self.restores_in_place(replica);
        } else if !self.follows(replica) && self.rng.chance(10) {
            // Too long without its keeper's majority: the namespace is of no use any more.
            self.ipykernel_dies(replica);
        }
        self.is_deposed(replica);
        self.takes_office(replica)?;
        if self.office(replica).is_none() {
            return self.ends_alone(replica);
        }
        self.pump(replica)?;
        self.goes_on(replica)?;
        if often(self, self.swarm.capture) {
            self.captures(replica);
        }
        if often(self, self.swarm.settle) {
            self.settles(replica);
        }
        if often(self, 40) {
            self.tells_front(replica);
        }
        self.quiet_steps(replica)
    }

    /// A seat that its group has removed, or that sleeps, ends once the last executor's is gone.
    fn ends_alone(&mut self, replica: u32) -> Check {
        let Some(group) = &self.group else { return Ok(()) };
        let removed = group.removed.contains(&replica);
        let left = group.reference.has_left(Incarnation(replica));
        let asleep = matches!(self.replicas[&replica].state.office(), Office::Asleep { .. });
        let writes = self.replicas.values().any(|r| r.alive && r.ending);
        let executes = self.processes().any(|(_, p)| p.office.is_some());
        let dissolved = matches!(group.reference.office(), Office::Asleep { .. }) && !group.has(replica);
        if removed || left || dissolved || asleep && !writes && !executes {
            self.node_dies(replica);
        }
        Ok(())
    }

    fn is_deposed(&mut self, replica: u32) {
        let Some(state) = self.own_state(replica) else {
            return;
        };
        let served = self.office(replica).map(|o| o.tenure);
        if served.is_some_and(|t| t < state.tenure() || state.executor() != Some(Incarnation(replica))) {
            let process = self
                .replicas
                .get_mut(&replica)
                .and_then(|r| r.process.as_mut())
                .expect("in office");
            process.office = None;
            process.device = None;
            self.count("deposed");
        }
    }

    /// The executor's own ipykernel died, and there is no other replica: the same replica opens the next tenure.
    fn restores_in_place(&mut self, replica: u32) {
        let process = self
            .replicas
            .get_mut(&replica)
            .and_then(|r| r.process.as_mut())
            .expect("it has one");
        let tenure = process.own.tenure();
        if process.office.is_some()
            || !process.died_in(tenure)
            || self.store.queues.contains_key(&(tenure.0 + 1, replica))
        {
            return;
        }
        let mut state = process.own.clone();
        let next = Tenure(tenure.0 + 1);
        let entry = Entry::Tenure {
            tenure: next,
            executor: Incarnation(replica),
        };
        if state.apply(Index(state.applied().0 + 1), &entry).is_ok() {
            self.store.write(Write {
                by: replica,
                folder: next.0,
                op: Op::Create(state.at_rest()),
            });
        }
    }

    /// Takes office where the log says so, and makes the namespace.
    pub fn takes_office(&mut self, replica: u32) -> Check {
        let Some(state) = self.own_state(replica) else {
            return Ok(());
        };
        let Office::Held { tenure, executor, .. } = *state.office() else {
            return Ok(());
        };
        let r = &self.replicas[&replica];
        let Some(process) = &r.process else { return Ok(()) };
        let spent = tenure <= r.served && !self.has(Bug::ServesTwice);
        if executor != Incarnation(replica) || process.office.is_some() || spent || process.died_in(tenure) {
            return Ok(());
        }
        let restore = state.restore();
        let mut namespace = match restore.settled.map(|s| self.store.read(s)) {
            Some(Ok(namespace)) => namespace,
            None => Vec::new(),
            // A later tenure has begun, and has removed what this one would begin from.
            Some(Err(_)) if self.store.newest().is_some_and(|(folder, _)| folder > tenure.0) => {
                let r = self.replicas.get_mut(&replica).expect("alive");
                r.process.as_mut().expect("just seen").died = Some(tenure);
                return Ok(());
            }
            Some(Err(violation)) => return Err(violation),
        };
        for record in restore.records {
            if let Payload::Inline { text, .. } = &record.payload
                && !self.has(Bug::ForgetsTheTail)
            {
                if text.starts_with(b"full") {
                    namespace.clear();
                }
                namespace.extend(parse(text));
            }
        }
        let created = self.store.folders.contains_key(&tenure.0);
        let office = InOffice::new(tenure, namespace.clone(), &state, created);
        let r = self.replicas.get_mut(&replica).expect("alive");
        r.served = tenure;
        r.process.as_mut().expect("just seen").office = Some(office);
        self.oracle.note(Fact::Restored {
            tenure: tenure.0,
            namespace,
        });
        self.count("restored");
        Ok(())
    }

    // ---- proposals ----

    /// Takes evaluated acts out of the outbox, and proposes the others (again).
    fn pump(&mut self, replica: u32) -> Check {
        let once = self.has(Bug::ProposesOnce);
        for (i, entry) in self.waiting(replica).into_iter().enumerate() {
            if once && !self.office(replica).is_some_and(|o| o.is_new(&entry)) {
                continue;
            }
            if self.config.replicas == 1 {
                self.apply_own(replica, &entry);
                continue;
            }
            let queued = self.group.as_ref().is_some_and(|g| g.pending.contains(&entry));
            let again = if once {
                true
            } else if self.calm {
                i == 0 && !queued
            } else {
                self.rng.chance(30)
            };
            if again && self.replicas[&replica].keeper {
                self.propose_to_group(entry);
            }
        }
        self.waiting(replica);
        Ok(())
    }

    /// The acts that the log has not evaluated yet.
    fn waiting(&mut self, replica: u32) -> Vec<Entry> {
        let Some(state) = self.own_state(replica) else {
            return Vec::new();
        };
        let Some(office) = self.office(replica).filter(|o| o.tenure == state.tenure()) else {
            return Vec::new();
        };
        let evaluated = state.sequence();
        while office.outbox.pop_front_if(|(s, _)| *s <= evaluated).is_some() {}
        let tenure = office.tenure;
        let entry = |(sequence, act): &(Sequence, Act)| Entry::Act {
            tenure,
            sequence: *sequence,
            act: act.clone(),
        };
        office.outbox.iter().map(entry).collect()
    }

    fn apply_own(&mut self, replica: u32, entry: &Entry) {
        let newest = self.store.newest().map(|(folder, _)| folder);
        let Some(process) = self.replicas.get_mut(&replica).and_then(|r| r.process.as_mut()) else {
            return;
        };
        let before = process.own.tenure().0;
        let index = Index(process.own.applied().0 + 1);
        let Ok(effect) = process.own.apply(index, entry) else {
            return;
        };
        // The log of a replica that was superseded counts no more.
        if newest == Some(before) {
            self.note_applied(entry.clone(), effect, before);
        }
    }

    fn propose(&mut self, replica: u32, entry: Entry) {
        if self.config.replicas == 1 {
            self.apply_own(replica, &entry);
        } else if self.replicas[&replica].keeper {
            self.propose_to_group(entry);
        }
    }

    // ---- cells ----

    fn goes_on(&mut self, replica: u32) -> Check {
        if self.state_of(replica).is_none() {
            return self.runs_on(replica);
        }
        let Some(office) = self.office(replica) else {
            return Ok(());
        };
        if office.current.is_none() {
            if office.quiet.is_some() || office.fresh.is_some() {
                return Ok(());
            }
            if let Some(request) = office.queue.pop_front() {
                self.takes_up(replica, request);
            }
            return Ok(());
        }
        self.runs_on(replica)
    }

    fn takes_up(&mut self, replica: u32, request: Request) {
        let reruns = self.has(Bug::RunsOlder);
        let office = self.office(replica).expect("in office");
        if request.lost && !request.retry && !reruns {
            let (cell, why) = (name(request.cell), "its replica is gone".into());
            office.does(Act::Lost { cell, why });
            return;
        }
        if request.leased {
            let submit = Message::Submit {
                tenure: office.tenure,
                cell: request.cell,
            };
            office.current = Some((request, Stage::Waiting));
            self.send(Party::Node(replica), Party::Hopd, submit);
        } else {
            self.begins(replica, request, None);
        }
    }

    fn begins(&mut self, replica: u32, request: Request, lease: Option<u64>) {
        let usable = lease.is_none_or(|l| {
            self.hopd
                .leases
                .get(&l)
                .is_some_and(|l| !l.over && l.holder == replica)
        });
        let outputs = if usable { self.rng.below(4) as u64 } else { 0 };
        let process = self
            .replicas
            .get_mut(&replica)
            .and_then(|r| r.process.as_mut())
            .expect("in office");
        process.device = lease.filter(|_| usable);
        let office = process.office.as_mut().expect("in office");
        let (cell, retry, tenure) = (request.cell, request.retry, office.tenure.0);
        office.current = Some((
            request,
            Stage::Running {
                left: outputs,
                emitted: 0,
                lease,
            },
        ));
        self.oracle.note(Fact::Began {
            cell,
            retry,
            tenure,
            replica,
            lease,
        });
        self.count("began");
    }

    fn runs_on(&mut self, replica: u32) -> Check {
        let half = self.has(Bug::HalfCells) && self.rng.chance(30);
        let waits = self.calm || self.rng.chance(20);
        let Some(office) = self.office(replica) else {
            return Ok(());
        };
        let tenure = office.tenure;
        let Some((request, stage)) = &mut office.current else {
            return Ok(());
        };
        let cell = request.cell;
        match stage {
            Stage::Waiting => {
                if waits {
                    self.send(
                        Party::Node(replica),
                        Party::Hopd,
                        Message::Submit { tenure, cell },
                    );
                }
            }
            Stage::Running { left: 0, .. } => return self.ends_cell(replica),
            Stage::Running { left, emitted, .. } => {
                *left -= 1;
                *emitted += 1;
                let number = *emitted;
                if half {
                    office.uncaptured.push(Mark {
                        cell,
                        tenure: tenure.0,
                        half: true,
                    });
                }
                self.send(
                    Party::Node(replica),
                    Party::Front,
                    Message::Output { tenure, cell, number },
                );
            }
        }
        Ok(())
    }

    fn ends_cell(&mut self, replica: u32) -> Check {
        // Without its keeper a replica doesn't know the cell's number: it waits.
        let Some(state) = self.own_state(replica) else {
            return Ok(());
        };
        let prompt = self.config.replicas > 1 && self.rng.chance(self.swarm.capture + 20);
        let early = self.has(Bug::RepliesEarly);
        let keeps_lease = self.rng.chance(50);
        let process = self
            .replicas
            .get_mut(&replica)
            .and_then(|r| r.process.as_mut())
            .expect("in office");
        process.device = None;
        let office = process.office.as_mut().expect("in office");
        let Some((request, Stage::Running { emitted, lease, .. })) = office.current.take() else {
            return Ok(());
        };
        let (tenure, cell) = (office.tenure, request.cell);
        let mark = Mark {
            cell,
            tenure: tenure.0,
            half: false,
        };
        office.namespace.push(mark);
        office.uncaptured.push(mark);
        let record = prompt.then(|| take_record(office));
        let end = End::Ended {
            tenure,
            outcome: Outcome::Ok,
            reply: Bytes::new(),
            last_output: emitted,
        };
        office.does(Act::Ended {
            cell: name(cell),
            outcome: Outcome::Ok,
            reply: Bytes::new(),
            last_output: emitted,
            record,
        });
        office.lease = lease.filter(|_| keeps_lease);
        self.oracle.note(Fact::Ran {
            tenure: tenure.0,
            mark,
        });
        if let Some(lease) = lease.filter(|_| !keeps_lease) {
            self.send(Party::Node(replica), Party::Hopd, Message::Release { lease });
        }
        if early {
            let answer = Answer {
                number: state.cells().next(),
                cell: name(cell),
                end,
            };
            self.send(
                Party::Node(replica),
                Party::Front,
                Message::Reply { tenure, answer },
            );
        }
        Ok(())
    }

    /// Captures in think time what was not captured at a cell's end.
    fn captures(&mut self, replica: u32) {
        let folder = self.config.replicas == 1;
        let Some(office) = self.office(replica) else {
            return;
        };
        let running = matches!(office.current, Some((_, Stage::Running { .. })));
        let half = office.uncaptured.last().is_some_and(|m| m.half);
        if office.uncaptured.is_empty() || running && !half {
            return;
        }
        let through = office
            .uncaptured
            .iter()
            .rev()
            .find(|m| !m.half)
            .map(|m| name(m.cell));
        let mut record = take_record(office);
        if folder {
            let Payload::Inline { text, .. } = &record.payload else {
                return;
            };
            let stored = Stored {
                number: record.number,
                full: text.starts_with(b"full"),
                marks: parse(text),
            };
            office.local.push_back(stored);
            record.payload = Payload::Folder;
        }
        office.does(Act::Record { record, through });
    }

    // ---- settling ----

    fn settles(&mut self, replica: u32) {
        let Some(state) = self.own_state(replica) else {
            return;
        };
        let (early, shared) = (self.has(Bug::SettlesEarly), self.has(Bug::SharesAFolder));
        let Some(office) = self.office(replica) else {
            return;
        };
        let tenure = office.tenure;
        let settler = &mut office.settler;
        if settler.waiting {
            return;
        }
        let restored = state.settled().map(|s| s.tenure);
        let fresh = state.fresh_after();
        let op = if !settler.created {
            Some(Op::Create(state.at_rest()))
        } else if let Some(base) = settler.base.take() {
            Some(Op::Append(base))
        } else {
            next_to_store(office, &state, fresh).map(Op::Append)
        };
        let settler = &mut office.settler;
        if let Some(op) = op {
            settler.waiting = true;
            let mut folder = tenure.0;
            if let Op::Append(record) = &op
                && early
            {
                settler.upto = settler.upto.max(record.number);
                settler.length += 1;
            }
            if shared
                && matches!(op, Op::Append(_))
                && restored.is_some_and(|t| self.store.folders.contains_key(&t.0))
            {
                folder = restored.map_or(folder, |t| t.0);
            }
            self.store.write(Write {
                by: replica,
                folder,
                op,
            });
            if !early {
                return;
            }
        }
        self.proposes_settled(replica, &state);
    }

    fn proposes_settled(&mut self, replica: u32, state: &State) {
        let office = self.office(replica).expect("in office");
        let (tenure, settler) = (office.tenure, &office.settler);
        let settled = Settled {
            tenure,
            part: 0,
            upto: settler.upto,
            length: settler.length,
            mac: String::new(),
        };
        if settler.length == 0 || settler.upto > state.records() {
            return;
        }
        let there = state.settled().map(|s| (s.tenure, s.upto));
        if there < Some((tenure, settled.upto)) {
            let entry = Entry::Settled { settled };
            let queued = self.group.as_ref().is_some_and(|g| g.pending.contains(&entry));
            if !queued {
                self.propose(replica, entry);
            }
            return;
        }
        let office = self.office(replica).expect("in office");
        let newest = state.settled().filter(|s| s.tenure == tenure).cloned();
        if newest.is_some() && newest != office.settler.written && !office.settler.waiting {
            office.settler.waiting = true;
            let op = Op::WriteState(state.at_rest());
            self.store.write(Write {
                by: replica,
                folder: tenure.0,
                op,
            });
        }
    }

    /// The folder was created (`None`), or a record is in it.
    pub fn settler_did(&mut self, replica: u32, folder: u64, number: Option<RecordNumber>) {
        if number.is_none() {
            self.ended_asleep(replica, folder);
        }
        let early = self.has(Bug::SettlesEarly);
        let shares = self.has(Bug::SharesAFolder);
        let Some(office) = self.office(replica) else {
            return;
        };
        let shared = shares && number.is_some() && folder < office.tenure.0;
        if office.tenure.0 != folder && !shared {
            return;
        }
        let settler = &mut office.settler;
        settler.waiting = false;
        settler.created = true;
        if let Some(number) = number.filter(|_| !early) {
            settler.upto = settler.upto.max(number);
            settler.length += 1;
        }
    }

    /// The folder of a tenure that the same replica opened after its ipykernel's death.
    pub fn in_place_created(&mut self, replica: u32, folder: u64) {
        if self.config.replicas > 1 {
            return;
        }
        let state = self.store.folders.get(&folder).map(|f| f.state.clone());
        let mine = state
            .as_ref()
            .is_some_and(|s| s.executor().is_none() && s.tenure().0 == folder);
        let Some(process) = self.replicas.get_mut(&replica).and_then(|r| r.process.as_mut()) else {
            return;
        };
        if !mine || process.own.tenure().0 + 1 != folder || process.office.is_some() {
            return;
        }
        let entry = Entry::Tenure {
            tenure: Tenure(folder),
            executor: Incarnation(replica),
        };
        let index = Index(process.own.applied().0 + 1);
        if let Ok(effect) = process.own.apply(index, &entry) {
            self.note_applied(entry, effect, folder - 1);
        }
    }

    pub fn state_written(&mut self, replica: u32, folder: u64, state: &State) {
        self.ended_asleep(replica, folder);
        if let Some(office) = self.office(replica)
            && office.tenure.0 == folder
        {
            office.settler.waiting = false;
            office.settler.written = state.settled().cloned();
            office.settler.told = state.settled_through();
        }
    }

    fn ended_asleep(&mut self, replica: u32, folder: u64) {
        let known = self.replicas.get(&replica);
        if known.is_some_and(|r| {
            r.ending
                && self
                    .store
                    .folders
                    .get(&folder)
                    .is_some_and(|f| matches!(f.state.office(), Office::Asleep { .. }))
        }) {
            self.node_dies(replica);
        }
    }

    // ---- the front ----

    fn tells_front(&mut self, replica: u32) {
        let Some(state) = self.own_state(replica) else {
            return;
        };
        let calm = self.calm;
        let Some(office) = self.office(replica) else {
            return;
        };
        let (tenure, me) = (office.tenure, Party::Node(replica));
        if state.tenure() != tenure {
            return;
        }
        let mut out = Vec::new();
        if !office.hello_heard {
            let losses = state.losses().cloned().collect();
            out.push(Message::Hello {
                tenure,
                incarnation: replica,
                losses,
            });
        }
        let unheard = state
            .answers()
            .filter(|a| !office.acked.contains(&cell_number(&a.cell)));
        out.extend(unheard.map(|a| Message::Reply {
            tenure,
            answer: a.clone(),
        }));
        if office.settler.told > CellNumber(0) {
            out.push(Message::SettledThrough {
                tenure,
                through: office.settler.told,
            });
        }
        if office.restarts > 0 && office.fresh.is_none_or(|f| state.sequence() >= f) {
            office.fresh = None;
            out.push(Message::Restarted {
                tenure,
                restarts: office.restarts,
            });
        }
        let acked = state
            .answers()
            .take_while(|a| office.acked.contains(&cell_number(&a.cell)));
        let heard = acked.map(|a| a.number).max();
        let losses = office.acked_loss;
        for message in out {
            if calm || self.rng.chance(40) {
                self.send(me, Party::Front, message);
            }
        }
        let untold = state.losses().any(|l| l.tenure <= losses);
        if heard.is_some() || untold {
            let entry = Entry::Heard {
                cells: heard.unwrap_or_default(),
                losses,
            };
            let queued = self.group.as_ref().is_some_and(|g| g.pending.contains(&entry));
            if !queued {
                self.propose(replica, entry);
            }
        }
    }

    pub fn replica_hears(&mut self, replica: u32, message: Message) -> Check {
        if self.replicas.get(&replica).is_none_or(|r| !r.alive) {
            return Ok(());
        }
        let state = self.own_state(replica);
        let Some(office) = self.office(replica) else {
            return Ok(());
        };
        let tenure = office.tenure;
        match message {
            Message::Hand {
                tenure: t,
                cell,
                leased,
                retry,
                first,
                restarts,
            } if t == tenure => {
                office.hello_heard = true;
                // Its fate is asked when it comes: the front acknowledges the answer later, and the log forgets it then.
                let fate = state.as_ref().map(|s| s.fate(&name(cell), first));
                let Some(fate) = fate.filter(|_| restarts == office.restarts && office.fresh.is_none())
                else {
                    return self.counts_restarts(replica, restarts);
                };
                let lost = fate == Fate::LostInTheMiddle;
                let answered = matches!(fate, Fate::Answered(_)) || office.acked.contains(&cell);
                if office.seen.insert(cell) && !answered {
                    office.queue.push_back(Request {
                        cell,
                        leased,
                        retry,
                        lost,
                    });
                }
            }
            Message::HeardAnswer { tenure: t, cell } if t == tenure => {
                office.acked.insert(cell);
            }
            Message::HeardLoss { tenure: t, loss } if t == tenure => {
                office.hello_heard = true;
                office.acked_loss = office.acked_loss.max(loss);
            }
            Message::Restart { tenure: t, restarts } if t == tenure && restarts > office.restarts => {
                self.restarts(replica, restarts);
            }
            Message::Hibernate { tenure: t } if t == tenure && office.quiet.is_none() && office.is_idle() => {
                office.quiet = Some(Quiet::Hibernating);
            }
            Message::Move { tenure: t, to }
                if t == tenure && office.quiet.is_none() && office.is_idle() && to != replica =>
            {
                office.quiet = Some(Quiet::Moving { to });
            }
            Message::Grant {
                tenure: t,
                cell,
                lease,
            } if t == tenure => self.granted(replica, cell, lease),
            Message::Grant { lease, .. } => {
                self.send(Party::Node(replica), Party::Hopd, Message::Release { lease });
            }
            _ => {}
        }
        Ok(())
    }

    /// A front that restarted the kernel with an older executor counts from there.
    fn counts_restarts(&mut self, replica: u32, restarts: u32) -> Check {
        if let Some(office) = self.office(replica)
            && restarts > office.restarts
            && office.fresh.is_none()
            && office.seen.is_empty()
        {
            office.restarts = restarts;
        }
        Ok(())
    }

    fn granted(&mut self, replica: u32, cell: u32, lease: u64) {
        let office = self.office(replica).expect("in office");
        let waits = matches!(&office.current, Some((r, Stage::Waiting)) if r.cell == cell);
        if !waits {
            return;
        }
        let (request, _) = office.current.take().expect("waiting");
        self.begins(replica, request, Some(lease));
    }

    fn restarts(&mut self, replica: u32, restarts: u32) {
        let process = self
            .replicas
            .get_mut(&replica)
            .and_then(|r| r.process.as_mut())
            .expect("in office");
        process.device = None;
        let office = process.office.as_mut().expect("in office");
        let lease = match &office.current {
            Some((
                _,
                Stage::Running {
                    lease: Some(lease), ..
                },
            )) => Some(*lease),
            _ => None,
        };
        office.restarts = restarts;
        office.current = None;
        office.queue.clear();
        office.namespace.clear();
        office.uncaptured.clear();
        office.next_is_full = true;
        let tenure = office.tenure;
        office.fresh = Some(office.does(Act::Fresh));
        self.oracle.note(Fact::Emptied { tenure: tenure.0 });
        if let Some(lease) = lease {
            self.send(Party::Node(replica), Party::Hopd, Message::Release { lease });
        }
    }

    /// A kernel that moves or hibernates begins nothing until the log has answered.
    fn quiet_steps(&mut self, replica: u32) -> Check {
        let Some(state) = self.own_state(replica) else {
            return Ok(());
        };
        let Some(office) = self.office(replica) else {
            return Ok(());
        };
        let busy = !office.outbox.is_empty() || !office.uncaptured.is_empty();
        let settled =
            state.unsettled_records().len() == 0 && state.durable_through() == state.settled_through();
        let whole = office.settler.written == state.settled().cloned();
        match office.quiet {
            Some(Quiet::Asked { act }) if !busy && state.sequence() >= act => office.quiet = None,
            Some(Quiet::Moving { to }) if !busy => {
                let to = Incarnation(to);
                office.quiet = Some(Quiet::Asked {
                    act: office.does(Act::Moved { to }),
                });
                self.count("moves");
            }
            Some(Quiet::Hibernating) if !busy && settled && whole => {
                office.quiet = Some(Quiet::Asked {
                    act: office.does(Act::Hibernated),
                });
            }
            _ => {}
        }
        self.own_sleep(replica);
        Ok(())
    }

    /// The executor of a kernel with one replica has applied its own `Hibernated`.
    fn own_sleep(&mut self, replica: u32) {
        self.waiting(replica);
        let asleep = |s: &State| matches!(s.office(), Office::Asleep { .. });
        if self.config.replicas == 1 && self.own_state(replica).as_ref().is_some_and(asleep) {
            let own = self.replicas[&replica].process.as_ref().map(|p| p.own.clone());
            self.replicas.get_mut(&replica).expect("alive").state = own.expect("just seen");
            self.falls_asleep(replica);
        }
    }
}

fn take_record(office: &mut InOffice) -> Record {
    let marks = std::mem::take(&mut office.uncaptured);
    let full = std::mem::take(&mut office.next_is_full);
    office.last_record = office.last_record.next();
    Record {
        number: office.last_record,
        payload: Payload::Inline {
            text: text(full, &marks),
            body: Bytes::new(),
        },
    }
}

/// The next committed record that the folder lacks.
fn next_to_store(office: &mut InOffice, state: &State, fresh: RecordNumber) -> Option<Stored> {
    let upto = office.settler.upto;
    while office.local.pop_front_if(|r| r.number <= fresh).is_some() {}
    if let Some(stored) = office.local.pop_front_if(|r| r.number <= state.records()) {
        return Some(stored);
    }
    let record = state
        .unsettled_records()
        .find(|r| r.number > upto && r.is_inline())?;
    let Payload::Inline { text, .. } = &record.payload else {
        return None;
    };
    Some(Stored {
        number: record.number,
        full: text.starts_with(b"full"),
        marks: parse(text),
    })
}
