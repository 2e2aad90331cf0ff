//! The front and the client behind it. What the front has told or accepted is on its disk in the same moment.

use super::Bug;
use super::group::Group;
use super::oracle::{Check, Fact, Kind};
use super::replica::{Process, Replica, cell_number, join, name};
use super::store::{Op, Write};
use super::world::{Message, Party, World};
use hop_log::{Answer, End, Entry, Index, Ledger, Loss, Office, State};
use hop_words::id::{CellId, Incarnation, Tenure};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug)]
struct Request {
    leased: bool,
    retry: bool,
    /// The tenure under which it was handed out first.
    first: Option<Tenure>,
    done: bool,
}

fn is_open(requests: &BTreeMap<u32, Request>, cell: &CellId) -> bool {
    requests.get(&cell_number(cell)).is_some_and(|r| !r.done)
}

/// A new tenure that the front opens from the store.
#[derive(Debug)]
struct Opening {
    state: State,
    incarnation: u32,
}

#[derive(Debug, Default)]
pub struct Front {
    requests: BTreeMap<u32, Request>,
    known: Tenure,
    pub link: Option<u32>,
    highest: u32,
    ledger: Ledger,
    outputs: BTreeMap<(u32, Tenure), BTreeSet<u64>>,
    heard_losses: BTreeSet<Tenure>,
    restarts: u32,
    restarting: bool,
    opening: Option<Opening>,
    wants_restart: bool,
    wants_sleep: bool,
    wants_move: bool,
    pub asleep: bool,
}

impl Front {
    pub fn accept(&mut self, cell: u32, leased: bool, retry: bool) {
        let request = Request {
            leased,
            retry,
            first: None,
            done: false,
        };
        self.requests.insert(cell, request);
    }

    pub fn unanswered(&self) -> Vec<u32> {
        self.requests
            .iter()
            .filter(|(_, r)| !r.done)
            .map(|(c, _)| *c)
            .collect()
    }

    pub fn describe(&self) -> String {
        let wishes = (self.wants_restart, self.wants_sleep, self.restarting);
        format!(
            "front: tenure {}, link {:?}, wishes {wishes:?}, opening {:?}",
            self.known,
            self.link,
            self.opening.is_some()
        )
    }

    pub fn wish(&mut self, what: usize) {
        match what {
            0 => self.wants_restart = true,
            1..4 => self.wants_sleep = true,
            _ => self.wants_move = true,
        }
    }
}

impl World {
    pub fn front_step(&mut self) -> Check {
        if self.front.opening.is_some() {
            return Ok(());
        }
        if self.front.wants_restart {
            self.front_restarts();
            return Ok(());
        }
        if self.is_without_executor() {
            return self.front_opens();
        }
        self.end_zombies();
        let Some(link) = self.front.link else {
            return Ok(());
        };
        if self.front.restarting {
            let restart = Message::Restart {
                tenure: self.front.known,
                restarts: self.front.restarts,
            };
            self.send(Party::Front, Party::Node(link), restart);
            return Ok(());
        }
        self.front_hands(link);
        if self.front.unanswered().is_empty() && self.front.wants_sleep && self.rng.chance(50) {
            let order = Message::Hibernate {
                tenure: self.front.known,
            };
            self.send(Party::Front, Party::Node(link), order);
        }
        if self.front.wants_move && self.config.replicas > 1 {
            self.front.wants_move = self.rng.chance(80);
            let alive: Vec<u32> = self
                .replicas
                .iter()
                .filter(|(_, r)| r.alive)
                .map(|(i, _)| *i)
                .collect();
            if let Some(to) = self.rng.pick(&alive) {
                let order = Message::Move {
                    tenure: self.front.known,
                    to,
                };
                self.send(Party::Front, Party::Node(link), order);
            }
        }
        Ok(())
    }

    /// Whether the kernel must be opened from the store. With one replica: its seat is gone by Slurm's word, or it was
    /// silent for long. With three: no majority is there.
    fn is_without_executor(&mut self) -> bool {
        let needed =
            !self.front.unanswered().is_empty() || self.front.restarting || self.store.newest().is_none();
        let alive = self.front.link.is_some_and(|l| self.replicas[&l].alive);
        let any = self.replicas.values().any(|r| r.alive);
        let impatient = !self.calm && self.rng.chance(self.swarm.impatience);
        if !any && self.front.link.is_some() {
            self.front.wants_sleep &= needed;
            self.front.asleep = !needed;
        }
        if self.config.replicas == 1 {
            return needed && (!alive || impatient);
        }
        let majority = |g: &Group| g.is_majority(|m| self.replicas.get(&m).is_some_and(|r| r.alive));
        let dead = self.group.as_ref().is_none_or(|g| !majority(g));
        let asleep = self
            .group
            .as_ref()
            .is_some_and(|g| matches!(g.reference.office(), Office::Asleep { .. }));
        needed && (dead || !any || impatient && self.leaders().is_empty()) && (!asleep || !any)
    }

    /// With one replica: seats of executors before are cancelled some time.
    fn end_zombies(&mut self) {
        if self.config.replicas > 1 || !self.calm && !self.rng.chance(10) {
            return;
        }
        let link = self.front.link;
        let old: Vec<u32> = self
            .replicas
            .iter()
            .filter(|(i, r)| r.alive && Some(**i) != link)
            .map(|(i, _)| *i)
            .collect();
        for replica in old {
            self.node_dies(replica);
        }
    }

    fn front_hands(&mut self, link: u32) {
        let known = self.front.known;
        let overwrites = self.has(Bug::MarkIsOverwritten);
        let mut out = Vec::new();
        for (cell, request) in self.front.requests.iter_mut().filter(|(_, r)| !r.done) {
            if request.first.is_none() || overwrites {
                request.first = Some(known);
            }
            out.push(Message::Hand {
                tenure: known,
                cell: *cell,
                leased: request.leased,
                retry: request.retry,
                first: request.first.unwrap_or(known),
                restarts: self.front.restarts,
            });
        }
        for message in out {
            if self.calm || self.rng.chance(60) {
                self.send(Party::Front, Party::Node(link), message);
            }
        }
    }

    /// The user restarts the kernel: every open request is answered as aborted.
    fn front_restarts(&mut self) {
        self.front.wants_restart = false;
        self.front.restarts += 1;
        self.front.restarting = true;
        self.oracle.note(Fact::Restart);
        for cell in self.front.unanswered() {
            self.deliver_answer(cell, Kind::Aborted, 0, 0);
        }
        self.count("restarts");
    }

    fn deliver_answer(&mut self, cell: u32, kind: Kind, received: u64, said: u64) {
        let tenure = self.front.known.0;
        if let Some(request) = self.front.requests.get_mut(&cell) {
            request.done = true;
        }
        self.oracle.note(Fact::Delivered {
            cell,
            tenure,
            kind,
            received,
            said,
        });
    }

    // ---- opening from the store ----

    fn front_opens(&mut self) -> Check {
        let stored = self.store.newest().map(|(_, s)| s.at_rest());
        let mut state = stored.clone().unwrap_or_default();
        if self.config.replicas > 1 && stored.is_some() {
            // The seats are cancelled, and their end is waited for. A group may have existed: its tenures are used.
            for replica in self.replicas.keys().copied().collect::<Vec<_>>() {
                self.node_dies(replica);
            }
            self.group = None;
            self.oracle.majority_lost();
            let highest = if self.has(Bug::IncarnationAgain) {
                0
            } else {
                self.front.highest
            };
            let generation = state.generation().next();
            state = state.reopened(generation, Incarnation(highest));
            self.count("reopened");
        }
        let incarnation = if self.has(Bug::IncarnationAgain) {
            state.highest_incarnation().0 + 1
        } else {
            self.front.highest.max(state.highest_incarnation().0) + 1
        };
        self.front.highest = self.front.highest.max(incarnation);
        let tenure = Tenure(state.tenure().0 + 1);
        // On its disk first: a front that dies now is followed by one that doesn't listen to the old executor either.
        if !self.has(Bug::ListensWhileOpening) {
            self.front.known = tenure;
            self.front.link = None;
        }
        for entry in [
            join(incarnation, false),
            Entry::Tenure {
                tenure,
                executor: Incarnation(incarnation),
            },
        ] {
            let index = Index(state.applied().0 + 1);
            if state.apply(index, &entry).is_err() {
                return Ok(());
            }
        }
        let op = Op::Create(state.clone());
        self.store.write(Write {
            by: 0,
            folder: tenure.0,
            op,
        });
        self.front.opening = Some(Opening { state, incarnation });
        Ok(())
    }

    pub fn front_created(&mut self, folder: u64, taken: bool) -> Check {
        let Some(opening) = self.front.opening.take_if(|o| o.state.tenure().0 == folder) else {
            return Ok(());
        };
        if taken {
            return Ok(());
        }
        let Opening { state, incarnation } = opening;
        let tenure = state.tenure();
        self.oracle.rewound(state.cells().0);
        let entry = Entry::Tenure {
            tenure,
            executor: Incarnation(incarnation),
        };
        let lost = state
            .losses()
            .filter(|l| l.tenure == tenure)
            .flat_map(|l| l.cells.clone())
            .collect();
        let effect = hop_log::Effect::Opened {
            tenure,
            executor: Incarnation(incarnation),
            lost,
        };
        self.note_applied(entry, effect, tenure.0 - 1);
        self.front.known = tenure;
        self.front.link = Some(incarnation);
        self.front.asleep = false;
        let requests = &self.front.requests;
        let lost = self.front.ledger.reopened(&state, |cell| is_open(requests, cell));
        self.tell(&lost);
        self.start(incarnation);
        let replica = self.replicas.get_mut(&incarnation).expect("just started");
        let mut process = Process::new(state.clone());
        process.own = state.clone();
        replica.process = Some(process);
        if self.config.replicas > 1 {
            // The log of the new group begins behind the state that was written.
            let held = matches!(state.office(), Office::Held { .. });
            debug_assert!(held);
            state.sanity_check().map_err(super::oracle::Violation::from)?;
            replica.state = state.clone();
            self.group = Some(Group::new(state, incarnation));
        }
        self.takes_office(incarnation)
    }

    /// A process of the user's starts a replica.
    pub fn start(&mut self, incarnation: u32) {
        self.oracle.note(Fact::Started { incarnation });
        self.front.highest = self.front.highest.max(incarnation);
        self.replicas.insert(incarnation, Replica::new());
        self.count("started");
    }

    pub fn front_grows(&mut self, more: usize) {
        let joining = self.replicas.iter().filter(|(i, r)| {
            let member = self
                .group
                .as_ref()
                .is_some_and(|g| g.reference.members().contains_key(&Incarnation(**i)));
            r.alive && !member
        });
        for _ in joining.count()..more {
            self.start(self.front.highest + 1);
        }
    }

    pub fn front_crashes(&mut self) {
        self.front.opening = None;
        if self.rng.chance(50) {
            self.store.lose_writes_of(0);
        }
    }

    // ---- what the front hears ----

    pub fn front_hears(&mut self, from: Party, message: Message) -> Check {
        if self.front.opening.is_some() && !self.has(Bug::ListensWhileOpening) {
            return Ok(());
        }
        let Party::Node(replica) = from else { return Ok(()) };
        let known = self.front.known;
        // A connection begins with its `Hello`: before it, nothing of this executor counts.
        if self.front.link != Some(replica) && !matches!(message, Message::Hello { .. }) {
            return Ok(());
        }
        match message {
            Message::Hello {
                tenure,
                incarnation,
                losses,
            } if tenure >= known => {
                self.front.known = tenure;
                self.front.link = Some(incarnation);
                self.hear_losses(replica, &losses);
            }
            Message::Reply { tenure, answer } if tenure == known => self.hear_answer(replica, &answer),
            Message::Output { tenure, cell, number } if tenure == known => {
                self.front
                    .outputs
                    .entry((cell, tenure))
                    .or_default()
                    .insert(number);
            }
            Message::SettledThrough { tenure, through } if tenure == known => {
                self.front.ledger.settled(through);
                self.oracle.note(Fact::Stored { through: through.0 });
            }
            Message::Restarted { tenure, restarts } if tenure == known && restarts == self.front.restarts => {
                self.front.restarting = false;
            }
            _ => {}
        }
        Ok(())
    }

    fn hear_losses(&mut self, replica: u32, losses: &[Loss]) {
        let tenure = self.front.known;
        for loss in losses {
            let requests = &self.front.requests;
            let lost = self
                .front
                .ledger
                .lost(loss.cells.iter().cloned(), |cell| is_open(requests, cell));
            self.tell(&lost);
            self.front.heard_losses.insert(loss.tenure);
            let heard = Message::HeardLoss {
                tenure,
                loss: loss.tenure,
            };
            self.send(Party::Front, Party::Node(replica), heard);
        }
    }

    fn tell(&mut self, cells: &[CellId]) {
        let tenure = self.front.known.0;
        for cell in cells {
            self.count("losses told");
            if !self.has(Bug::SilentLoss) {
                self.oracle.note(Fact::Told {
                    cell: cell_number(cell),
                    tenure,
                });
            }
        }
    }

    fn hear_answer(&mut self, replica: u32, answer: &Answer) {
        let cell = cell_number(&answer.cell);
        let (tenure, done) = (
            self.front.known,
            self.front.requests.get(&cell).is_none_or(|r| r.done),
        );
        if !done || self.has(Bug::AnswersTwice) {
            match &answer.end {
                End::Ended {
                    tenure: ran,
                    last_output,
                    ..
                } => {
                    let received = self
                        .front
                        .outputs
                        .get(&(cell, *ran))
                        .map_or(0, |o| o.len() as u64);
                    let missing = last_output.saturating_sub(received);
                    let said = if self.has(Bug::SilentOutputs) { 0 } else { missing };
                    self.deliver_answer(
                        cell,
                        Kind::Ended {
                            outputs: *last_output,
                        },
                        received,
                        said,
                    );
                    self.front.ledger.answered(answer.number, name(cell));
                }
                End::Lost { .. } => self.deliver_answer(cell, Kind::Lost, 0, 0),
            }
            self.count("answered");
        }
        self.send(
            Party::Front,
            Party::Node(replica),
            Message::HeardAnswer { tenure, cell },
        );
    }
}
