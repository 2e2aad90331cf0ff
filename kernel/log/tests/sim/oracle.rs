//! The sixteen invariants by name, and the history that they are checked against.
//!
//! Each step leaves [`Fact`]s. After each step every invariant looks at the world and at the new facts; then the history
//! absorbs them.

use super::store::Mark;
use super::world::World;
use hop_log::{Act, Effect, Entry, Office, State};
use std::collections::{BTreeMap, BTreeSet};

/// An invariant that doesn't hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub name: &'static str,
    pub text: String,
}

pub type Check = Result<(), Violation>;

pub fn violated(name: &'static str, text: String) -> Check {
    Err(Violation { name, text })
}

macro_rules! hold {
    ($name:literal, $cond:expr, $($arg:tt)+) => {
        if !$cond {
            return violated($name, format!($($arg)+));
        }
    };
}

/// How the client was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Ended {
        outputs: u64,
    },
    Lost,
    /// By the front itself, at a restart of the user's.
    Aborted,
}

#[derive(Debug, Clone)]
pub enum Fact {
    /// An entry had an effect in the log that counts.
    Applied {
        entry: Entry,
        effect: Effect,
        before: u64,
    },
    Began {
        cell: u32,
        retry: bool,
        tenure: u64,
        replica: u32,
        lease: Option<u64>,
    },
    /// An executor took office with this namespace.
    Restored { tenure: u64, namespace: Vec<Mark> },
    /// The cell is in the namespace of this tenure's process.
    Ran { tenure: u64, mark: Mark },
    /// The namespace of this tenure's process is empty again.
    Emptied { tenure: u64 },
    /// The client has an answer.
    Delivered {
        cell: u32,
        tenure: u64,
        kind: Kind,
        received: u64,
        said: u64,
    },
    /// The user was told that this cell is gone.
    Told { cell: u32, tenure: u64 },
    /// The front was told that these are in the store.
    Stored { through: u64 },
    /// A replica was started.
    Started { incarnation: u32 },
    /// A restart was carried out in the log that counts.
    Fresh,
    /// The user asked for a restart.
    Restart,
}

#[derive(Debug, Default)]
struct Delivered {
    times: u32,
    kind: Option<Kind>,
    tenure: u64,
    /// The user gave it up by a restart.
    given_up: bool,
}

/// What happened so far.
#[derive(Default)]
pub struct Oracle {
    /// Facts are printed as they come.
    pub traces: bool,
    pub facts: Vec<Fact>,
    executors: BTreeMap<u64, u32>,
    begun: BTreeMap<u32, Vec<(u64, u32)>>,
    /// Cells by the tenure in which the log has their end.
    ended: BTreeSet<(u32, u64)>,
    lost: BTreeSet<u32>,
    lines: Vec<Vec<Mark>>,
    line_of: BTreeMap<u64, usize>,
    /// Cells of the group's log whose effects must survive the loss of a minority.
    durable: Vec<u32>,
    /// Cells that the front was told to be in the store.
    stored: Vec<u32>,
    numbers: BTreeMap<u64, u32>,
    told: BTreeSet<u32>,
    delivered: BTreeMap<u32, Delivered>,
    started: BTreeSet<u32>,
    reopened: bool,
}

/// A property of the world and the last step's facts.
pub type Invariant = fn(&World) -> Check;

pub const INVARIANTS: [(&str, Invariant); 15] = [
    ("one_tenure", one_tenure),
    ("once_per_attempt", once_per_attempt),
    ("fenced", fenced),
    ("reply_after_commit", reply_after_commit),
    ("durable_survives", durable_survives),
    ("loss_is_told", loss_is_told),
    ("whole_cells", whole_cells),
    ("one_answer", one_answer),
    ("lease_fence", lease_fence),
    ("one_writer", one_writer),
    ("ids_fresh", ids_fresh),
    ("members", members),
    ("settled_is_prefix", settled_is_prefix),
    ("asleep_is_whole", asleep_is_whole),
    ("outputs_counted", outputs_counted),
];

/// Checks every invariant but `heals`, which [`World::heal`] checks at the end.
pub fn check(world: &mut World) -> Check {
    for (_, invariant) in INVARIANTS {
        invariant(world)?;
    }
    world.store.never_goes_back()?;
    world.oracle.absorb(&world.group_is());
    Ok(())
}

fn cell_of(id: &hop_words::id::CellId) -> u32 {
    id.as_str()[1..].parse().expect("cells are c<number>")
}

/// At each index there is one executor, and it is a member. No tenure has two executors, whoever applies the log.
fn one_tenure(world: &World) -> Check {
    let views = world.replicas.keys().filter_map(|r| world.state_of(*r));
    for state in views {
        let Office::Held { tenure, executor, .. } = state.office() else {
            continue;
        };
        hold!(
            "one_tenure",
            state.members().contains_key(executor),
            "executor {executor} of tenure {tenure} is no member"
        );
        let known = world.oracle.executors.get(&tenure.0);
        hold!(
            "one_tenure",
            known.is_none_or(|k| *k == executor.0),
            "tenure {tenure} is held by {executor} and {known:?}"
        );
    }
    Ok(())
}

/// An attempt begins once. A cell without `%%retry` begins once in all.
fn once_per_attempt(world: &World) -> Check {
    for fact in &world.oracle.facts {
        let Fact::Began {
            cell,
            retry,
            tenure,
            replica,
            ..
        } = fact
        else {
            continue;
        };
        let before = world.oracle.begun.get(cell).map_or(&[][..], Vec::as_slice);
        let same = before.iter().any(|(t, _)| t == tenure);
        hold!(
            "once_per_attempt",
            !same,
            "c{cell} began twice in tenure {tenure}"
        );
        hold!(
            "once_per_attempt",
            *retry || before.is_empty(),
            "c{cell} began on {replica} in tenure {tenure} after {before:?}"
        );
    }
    Ok(())
}

/// Nothing of another tenure is ever applied.
fn fenced(world: &World) -> Check {
    for fact in &world.oracle.facts {
        let Fact::Applied {
            entry,
            effect,
            before,
        } = fact
        else {
            continue;
        };
        let named = entry.tenure().map(|t| t.0);
        let has_effect = *effect != Effect::Again;
        hold!(
            "fenced",
            named.is_none_or(|t| t == *before) || !has_effect,
            "{entry:?} was applied in tenure {before}"
        );
    }
    Ok(())
}

/// The client has no reply that the log doesn't have.
fn reply_after_commit(world: &World) -> Check {
    for fact in &world.oracle.facts {
        let Fact::Delivered {
            cell, tenure, kind, ..
        } = fact
        else {
            continue;
        };
        let is_there = match kind {
            Kind::Ended { .. } => world.oracle.ended.iter().any(|(c, _)| c == cell),
            Kind::Lost => world.oracle.lost.contains(cell),
            Kind::Aborted => true,
        };
        hold!(
            "reply_after_commit",
            is_there,
            "c{cell} was answered in tenure {tenure}: {kind:?}"
        );
    }
    Ok(())
}

/// What is durable is in the namespace of the next executor, once and in order.
fn durable_survives(world: &World) -> Check {
    for fact in &world.oracle.facts {
        let Fact::Restored { tenure, namespace } = fact else {
            continue;
        };
        // A keeper that lags may make a namespace for a tenure that is over.
        if world
            .oracle
            .executors
            .last_key_value()
            .is_some_and(|(newest, _)| newest > tenure)
        {
            continue;
        }
        let cells: Vec<u32> = namespace.iter().map(|m| m.cell).collect();
        let kept: Vec<u32> = cells
            .iter()
            .copied()
            .filter(|c| world.oracle.durable.contains(c))
            .collect();
        hold!(
            "durable_survives",
            kept == world.oracle.durable,
            "tenure {tenure} begins with {cells:?}; durable are {:?}",
            world.oracle.durable
        );
        let kept: Vec<u32> = cells
            .iter()
            .copied()
            .filter(|c| world.oracle.stored.contains(c))
            .collect();
        hold!(
            "durable_survives",
            kept == world.oracle.stored,
            "tenure {tenure} begins with {cells:?}; stored are {:?}",
            world.oracle.stored
        );
    }
    Ok(())
}

/// A cell that was answered and is gone is named before the next reply, once; and nothing else is.
fn loss_is_told(world: &World) -> Check {
    let oracle = &world.oracle;
    let mut told: BTreeSet<u32> = oracle.told.clone();
    for fact in &oracle.facts {
        match fact {
            Fact::Told { cell, tenure } => {
                hold!("loss_is_told", told.insert(*cell), "c{cell} was told twice");
                let known = oracle.delivered.get(cell);
                let answered = known.is_some_and(|d| matches!(d.kind, Some(Kind::Ended { .. })));
                hold!(
                    "loss_is_told",
                    answered || oracle.ended.iter().any(|(c, _)| c == cell),
                    "c{cell} was told in tenure {tenure} and never ended"
                );
                let kept = oracle
                    .line(*tenure)
                    .is_some_and(|line| line.iter().any(|m| m.cell == *cell));
                hold!(
                    "loss_is_told",
                    !kept,
                    "c{cell} was told as lost and is there in tenure {tenure}"
                );
            }
            Fact::Restored { tenure, namespace } => {
                let back = namespace.iter().find(|m| told.contains(&m.cell));
                hold!(
                    "loss_is_told",
                    back.is_none(),
                    "{back:?} was told as lost and is in tenure {tenure}"
                );
            }
            Fact::Delivered {
                cell, tenure, kind, ..
            } if *kind != Kind::Aborted => {
                let Some(line) = oracle.line(*tenure) else {
                    continue;
                };
                let there: BTreeSet<u32> = line.iter().map(|m| m.cell).collect();
                let gone = oracle.delivered.iter().find(|(c, d)| {
                    matches!(d.kind, Some(Kind::Ended { .. }))
                        && d.tenure < *tenure
                        && !d.given_up
                        && !there.contains(c)
                        && !told.contains(c)
                });
                hold!(
                    "loss_is_told",
                    gone.is_none(),
                    "c{cell} was answered in tenure {tenure}, which lacks {gone:?} of {there:?}"
                );
            }
            _ => {}
        }
    }
    Ok(())
}

/// A restored namespace is the namespace after some cell.
fn whole_cells(world: &World) -> Check {
    for fact in &world.oracle.facts {
        let Fact::Restored { tenure, namespace } = fact else {
            continue;
        };
        let known = world.oracle.lines.iter().any(|line| line.starts_with(namespace));
        let whole = namespace.iter().all(|m| !m.half);
        hold!(
            "whole_cells",
            whole && (known || namespace.is_empty()),
            "tenure {tenure} begins with {namespace:?}"
        );
    }
    Ok(())
}

/// No request is answered twice; `heals` holds that each is answered.
fn one_answer(world: &World) -> Check {
    for fact in &world.oracle.facts {
        let Fact::Delivered { cell, kind, .. } = fact else {
            continue;
        };
        let before = world.oracle.delivered.get(cell).map_or(0, |d| d.times);
        hold!("one_answer", before == 0, "c{cell} was answered again: {kind:?}");
    }
    Ok(())
}

/// A lease serves the replica that it was granted to and nobody else, and no device is in two hands.
fn lease_fence(world: &World) -> Check {
    let mut devices = BTreeSet::new();
    for (replica, process) in world.processes() {
        let Some(lease) = process.device else { continue };
        let known = world.hopd.leases.get(&lease);
        hold!(
            "lease_fence",
            known.is_some_and(|l| l.holder == replica && !l.over),
            "replica {replica} uses lease {lease}: {known:?}"
        );
        let device = known.map(|l| l.device);
        hold!(
            "lease_fence",
            devices.insert(device),
            "device {device:?} is in two hands"
        );
    }
    for fact in &world.oracle.facts {
        let Fact::Began {
            cell,
            tenure,
            lease: Some(lease),
            ..
        } = fact
        else {
            continue;
        };
        let holder = world.hopd.leases.get(lease).map(|l| l.holder);
        let executor = world.oracle.executors.get(tenure).copied();
        hold!(
            "lease_fence",
            holder == executor,
            "cell {cell} of {executor:?} begins on lease {lease} of {holder:?}"
        );
    }
    Ok(())
}

/// No two tenures write one folder: the store looks at each write, and at what readers take for the newest state.
fn one_writer(world: &World) -> Check {
    for (folder, content) in &world.store.folders {
        let of_another = content
            .log
            .iter()
            .flat_map(|r| &r.marks)
            .find(|m| m.tenure > *folder);
        hold!(
            "one_writer",
            of_another.is_none(),
            "folder {folder} holds {of_another:?}"
        );
    }
    Ok(())
}

/// Incarnations and tenures are given once.
fn ids_fresh(world: &World) -> Check {
    for fact in &world.oracle.facts {
        match fact {
            Fact::Started { incarnation } => {
                let again = world.oracle.started.contains(incarnation);
                hold!("ids_fresh", !again, "incarnation {incarnation} was started twice");
            }
            Fact::Applied {
                effect: Effect::Opened { tenure, executor, .. },
                ..
            } => {
                let before = world.oracle.executors.get(&tenure.0);
                hold!(
                    "ids_fresh",
                    before.is_none(),
                    "tenure {tenure} of {executor} was {before:?}'s"
                );
            }
            _ => {}
        }
    }
    Ok(())
}

/// There are one or three voters, never two; `heals` holds that they are as many as wanted, and the log's members.
fn members(world: &World) -> Check {
    let Some(group) = &world.group else {
        return Ok(());
    };
    let count = group.voters.len();
    hold!(
        "members",
        count == 1 || count == 3,
        "{count} voters: {:?}",
        group.voters
    );
    Ok(())
}

/// The settled state is what the log says up to the settled record, and no more is settled than is committed.
fn settled_is_prefix(world: &World) -> Check {
    let states = world.replicas.keys().filter_map(|r| world.state_of(*r));
    for state in states.chain(world.group.as_ref().map(|g| &g.reference)) {
        state.sanity_check().map_err(|e| Violation {
            name: "settled_is_prefix",
            text: e.0,
        })?;
    }
    let authorities = world.group.as_ref().map(|g| &g.reference);
    let stored = world.store.newest().map(|(_, state)| state);
    for state in authorities.into_iter().chain(stored) {
        let Some(settled) = state.restore().settled else {
            continue;
        };
        let namespace = world.store.read(settled)?;
        if namespace.iter().any(|m| m.half) {
            continue; // `whole_cells` looks at these.
        }
        let known = world.oracle.lines.iter().any(|line| line.starts_with(&namespace));
        hold!(
            "settled_is_prefix",
            known,
            "{settled:?} holds {namespace:?}, which never was"
        );
    }
    Ok(())
}

/// A kernel that hibernates has settled everything and has no process.
fn asleep_is_whole(world: &World) -> Check {
    for (replica, _) in world.processes() {
        let asleep = world
            .state_of(replica)
            .is_some_and(|s| matches!(s.office(), Office::Asleep { .. }));
        hold!(
            "asleep_is_whole",
            !asleep,
            "replica {replica} of a sleeping kernel has a process"
        );
    }
    let Some((_, state)) = world.store.newest() else {
        return Ok(());
    };
    let whole = state.unsettled_records().len() == 0 && state.durable_through() == state.settled_through();
    hold!(
        "asleep_is_whole",
        !matches!(state.office(), Office::Asleep { .. }) || whole,
        "{state:?}"
    );
    Ok(())
}

/// What the front lacks of a committed cell's outputs it says.
fn outputs_counted(world: &World) -> Check {
    for fact in &world.oracle.facts {
        let Fact::Delivered {
            cell,
            kind: Kind::Ended { outputs },
            received,
            said,
            ..
        } = fact
        else {
            continue;
        };
        hold!(
            "outputs_counted",
            received + said == *outputs,
            "c{cell} had {outputs} outputs; {received} were shown, {said} said to be missing"
        );
    }
    Ok(())
}

impl Oracle {
    pub fn note(&mut self, fact: Fact) {
        if self.traces {
            println!("{fact:?}");
        }
        self.facts.push(fact);
    }

    fn line(&self, tenure: u64) -> Option<&Vec<Mark>> {
        self.line_of.get(&tenure).map(|i| &self.lines[*i])
    }

    /// The log goes on from a state of the store that has these many cells.
    pub fn rewound(&mut self, cells: u64) {
        self.numbers.retain(|number, _| *number <= cells);
    }

    /// A majority was lost, or all of it: only what the front knows to be stored survives.
    pub fn majority_lost(&mut self) {
        self.durable.clear();
        self.reopened = true;
    }

    fn absorb(&mut self, group: &Option<State>) {
        for fact in std::mem::take(&mut self.facts) {
            match fact {
                Fact::Applied { entry, effect, .. } => self.absorb_entry(&entry, &effect, group.is_some()),
                Fact::Began {
                    cell,
                    tenure,
                    replica,
                    ..
                } => {
                    self.begun.entry(cell).or_default().push((tenure, replica));
                }
                Fact::Restored { tenure, namespace } => self.begin_line(tenure, namespace),
                Fact::Ran { tenure, mark } => {
                    if let Some(i) = self.line_of.get(&tenure) {
                        self.lines[*i].push(mark);
                    }
                }
                Fact::Emptied { tenure } => self.begin_line(tenure, Vec::new()),
                Fact::Delivered {
                    cell, tenure, kind, ..
                } => {
                    let d = self.delivered.entry(cell).or_default();
                    d.times += 1;
                    d.kind = Some(kind);
                    d.tenure = tenure;
                }
                Fact::Told { cell, .. } => {
                    self.told.insert(cell);
                }
                Fact::Stored { through } => {
                    let cells = self.numbers.range(..=through).map(|(_, c)| *c);
                    let known: Vec<u32> = cells.filter(|c| !self.stored.contains(c)).collect();
                    self.stored.extend(known);
                }
                Fact::Started { incarnation } => {
                    self.started.insert(incarnation);
                }
                Fact::Fresh => {
                    self.durable.clear();
                    self.stored.clear();
                    self.numbers.clear();
                }
                Fact::Restart => self.delivered.values_mut().for_each(|d| d.given_up = true),
            }
        }
    }

    fn begin_line(&mut self, tenure: u64, namespace: Vec<Mark>) {
        self.line_of.insert(tenure, self.lines.len());
        self.lines.push(namespace);
    }

    fn absorb_entry(&mut self, entry: &Entry, effect: &Effect, group: bool) {
        match (entry, effect) {
            (
                _,
                Effect::Opened {
                    tenure,
                    executor,
                    lost,
                },
            ) => {
                self.executors.insert(tenure.0, executor.0);
                let lost: Vec<u32> = lost.iter().map(cell_of).collect();
                self.numbers.retain(|_, cell| !lost.contains(cell));
            }
            (Entry::Act { tenure, act, .. }, effect) => self.absorb_act(tenure.0, act, effect, group),
            _ => {}
        }
    }

    fn absorb_act(&mut self, tenure: u64, act: &Act, effect: &Effect, group: bool) {
        match (act, effect) {
            (Act::Ended { cell, record, .. }, Effect::Answered { number, .. }) => {
                self.ended.insert((cell_of(cell), tenure));
                self.numbers.insert(number.0, cell_of(cell));
                if let Some(record) = record {
                    self.absorb_record(record, group);
                }
            }
            (Act::Lost { cell, .. }, Effect::Answered { .. }) => {
                self.lost.insert(cell_of(cell));
            }
            (Act::Record { record, .. }, Effect::Recorded) => self.absorb_record(record, group),
            _ => {}
        }
    }

    fn absorb_record(&mut self, record: &hop_log::Record, group: bool) {
        if group && let hop_log::Payload::Inline { text, .. } = &record.payload {
            let cells = super::replica::parse(text).into_iter().map(|m| m.cell);
            let new: Vec<u32> = cells.filter(|c| !self.durable.contains(c)).collect();
            self.durable.extend(new);
        }
    }
}
