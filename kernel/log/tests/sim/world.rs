//! One kernel and everything around it, driven by a seed. Any actor may act at any step, which covers clocks of any rate,
//! pauses, and time limits that fire too early or too late.

use super::front::Front;
use super::group::Group;
use super::hopd::Hopd;
use super::oracle::{self, Check, Fact, Oracle, Violation, violated};
use super::replica::{Process, Replica};
use super::rng::Rng;
use super::store::{Store, Written};
use super::{Bug, Config};
use hop_log::steward::{self, Deed, View};
use hop_log::{Answer, CellNumber, Effect, Entry, Loss, Office, State};
use hop_words::id::{Incarnation, Tenure};
use std::collections::{BTreeMap, BTreeSet};

/// Who sends and receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    Front,
    Hopd,
    Node(u32),
}

#[derive(Debug, Clone)]
pub enum Message {
    /// Front to executor: a request, and the tenure under which it was handed out first.
    Hand {
        tenure: Tenure,
        cell: u32,
        leased: bool,
        retry: bool,
        first: Tenure,
        restarts: u32,
    },
    /// Front to executor: the client has the answer, or the user knows of the loss.
    HeardAnswer {
        tenure: Tenure,
        cell: u32,
    },
    HeardLoss {
        tenure: Tenure,
        loss: Tenure,
    },
    Restart {
        tenure: Tenure,
        restarts: u32,
    },
    Hibernate {
        tenure: Tenure,
    },
    Move {
        tenure: Tenure,
        to: u32,
    },
    /// Executor to front.
    Hello {
        tenure: Tenure,
        incarnation: u32,
        losses: Vec<Loss>,
    },
    Reply {
        tenure: Tenure,
        answer: Answer,
    },
    Output {
        tenure: Tenure,
        cell: u32,
        number: u64,
    },
    SettledThrough {
        tenure: Tenure,
        through: CellNumber,
    },
    Restarted {
        tenure: Tenure,
        restarts: u32,
    },
    /// Executor and hopd.
    Submit {
        tenure: Tenure,
        cell: u32,
    },
    Grant {
        tenure: Tenure,
        cell: u32,
        lease: u64,
    },
    Release {
        lease: u64,
    },
}

#[derive(Debug, Clone)]
pub struct Mail {
    pub from: Party,
    pub to: Party,
    pub message: Message,
}

/// Kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Ipykernel,
    Process,
    Node,
    Front,
    Cut,
    Pause,
    Keeper,
    Majority,
    Revoke,
}

impl Fault {
    const ALL: [(Self, &str); 9] = [
        (Self::Ipykernel, "ipykernel killed"),
        (Self::Process, "process killed"),
        (Self::Node, "node killed"),
        (Self::Front, "front killed"),
        (Self::Cut, "cut or mended"),
        (Self::Pause, "paused or resumed"),
        (Self::Keeper, "keeper killed or back"),
        (Self::Majority, "majority killed"),
        (Self::Revoke, "lease revoked"),
    ];

    fn name(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(f, _)| *f == self)
            .map_or("", |(_, name)| name)
    }
}

/// What a seed makes likely. Seeds differ in kind, so that each kind of fault also comes without the others.
pub struct Swarm {
    faults: Vec<Fault>,
    /// Percentages: steps that are faults; messages and proposals that are lost, and as many doubled; suspicions without
    /// ground; fronts that don't wait; wishes of the user's to restart, to sleep and to move.
    fault: usize,
    pub loss: usize,
    wrongly: usize,
    pub impatience: usize,
    wish: usize,
    /// How often an executor captures, and how often it settles.
    pub capture: usize,
    pub settle: usize,
}

impl Swarm {
    fn new(rng: &mut Rng) -> Self {
        let faults: Vec<Fault> = Fault::ALL
            .iter()
            .map(|(f, _)| *f)
            .filter(|_| rng.chance(45))
            .collect();
        let mut one_of = |choices: &[usize]| rng.pick(choices).unwrap_or(0);
        Self {
            faults,
            fault: one_of(&[0, 1, 2, 4, 8]),
            loss: one_of(&[0, 2, 8, 20]),
            wrongly: one_of(&[0, 2, 10]),
            impatience: one_of(&[0, 3, 15]),
            wish: one_of(&[0, 1, 4]),
            capture: one_of(&[5, 20, 60]),
            settle: one_of(&[5, 20, 60]),
        }
    }
}

pub struct World {
    pub rng: Rng,
    pub swarm: Swarm,
    pub config: Config,
    pub calm: bool,
    pub replicas: BTreeMap<u32, Replica>,
    pub group: Option<Group>,
    pub store: Store,
    pub front: Front,
    pub hopd: Hopd,
    pub oracle: Oracle,
    pub net: Vec<Mail>,
    pub cuts: BTreeSet<(Party, Party)>,
    pub stats: BTreeMap<&'static str, u64>,
    next_cell: u32,
}

impl World {
    pub fn new(seed: u64, config: Config) -> Self {
        let mut rng = Rng::new(seed);
        let swarm = Swarm::new(&mut rng);
        Self {
            rng,
            swarm,
            config,
            calm: false,
            replicas: BTreeMap::new(),
            group: None,
            store: Store::default(),
            front: Front::default(),
            hopd: Hopd::default(),
            oracle: Oracle::default(),
            net: Vec::new(),
            cuts: BTreeSet::new(),
            stats: BTreeMap::new(),
            next_cell: 1,
        }
    }

    pub fn has(&self, bug: Bug) -> bool {
        self.config.bug == Some(bug)
    }

    pub fn count(&mut self, what: &'static str) {
        *self.stats.entry(what).or_default() += 1;
    }

    pub fn send(&mut self, from: Party, to: Party, message: Message) {
        self.net.push(Mail { from, to, message });
    }

    /// The log's state as the replica knows it: its keeper's, or its own where it has no group.
    pub fn state_of(&self, replica: u32) -> Option<&State> {
        let replica = self.replicas.get(&replica)?;
        if !replica.alive {
            return None;
        }
        if self.config.replicas == 1 {
            return replica.process.as_ref().map(|p| &p.own);
        }
        replica.keeper.then_some(&replica.state)
    }

    pub fn group_is(&self) -> Option<State> {
        self.group.as_ref().map(|g| g.reference.clone())
    }

    pub fn processes(&self) -> impl Iterator<Item = (u32, &Process)> {
        let alive = self.replicas.iter().filter(|(_, r)| r.alive);
        alive.filter_map(|(i, r)| Some((*i, r.process.as_ref()?)))
    }

    /// The entry as the log evaluates it: with the machine's fence taken out where that bug is planted.
    pub fn fenced(&self, state: &State, entry: &Entry) -> Entry {
        let mut entry = entry.clone();
        let stale = entry.tenure().is_some_and(|t| t < state.tenure()) && state.executor().is_some();
        if stale && self.has(Bug::NoFence) {
            match &mut entry {
                Entry::Act { tenure, sequence, .. } => {
                    (*tenure, *sequence) = (state.tenure(), state.sequence().next());
                }
                Entry::Settled { settled } => settled.tenure = state.tenure(),
                _ => {}
            }
        }
        entry
    }

    // ---- one step ----

    /// One random step.
    pub fn step(&mut self) -> Check {
        if self.rng.chance(self.swarm.fault) {
            self.fault();
        } else if self.rng.chance(self.swarm.wish) {
            let what = self.rng.below(10);
            self.front.wish(what);
        }
        match self.rng.below(100) {
            0..4 => self.submit(),
            4..32 => self.deliver()?,
            32..66 => self.replica_step()?,
            66..74 => self.front_step()?,
            74..78 => self.hopd_step(),
            78..86 => self.append()?,
            86..92 => self.steward()?,
            _ => self.land()?,
        }
        oracle::check(self)
    }

    fn submit(&mut self) {
        if self.next_cell > 40 {
            return;
        }
        let cell = self.next_cell;
        self.next_cell += 1;
        let (leased, retry) = (self.rng.chance(40), self.rng.chance(15));
        self.front.accept(cell, leased, retry);
        self.count("submitted");
    }

    pub fn deliver(&mut self) -> Check {
        if self.net.is_empty() {
            return Ok(());
        }
        let at = self.rng.below(self.net.len());
        if !self.calm {
            if self.net.len() > 60 || self.rng.chance(self.swarm.loss) {
                self.net.swap_remove(at);
                return Ok(());
            }
            if self.rng.chance(self.swarm.loss) {
                let copy = self.net[at].clone();
                self.net.push(copy);
            }
        }
        let mail = self.net.swap_remove(at);
        if self.cuts.contains(&(mail.from, mail.to)) {
            return Ok(());
        }
        match mail.to {
            Party::Front => self.front_hears(mail.from, mail.message),
            Party::Hopd => {
                self.hopd_hears(mail.from, mail.message);
                Ok(())
            }
            Party::Node(replica) => self.replica_hears(replica, mail.message),
        }
    }

    fn replica_step(&mut self) -> Check {
        let alive: Vec<u32> = self
            .replicas
            .iter()
            .filter(|(_, r)| r.alive && !r.paused)
            .map(|(i, _)| *i)
            .collect();
        let Some(replica) = self.rng.pick(&alive) else {
            return Ok(());
        };
        if self.rng.chance(40) {
            self.keeper_applies(replica)
        } else {
            self.process_steps(replica)
        }
    }

    /// A write of the store takes effect.
    pub fn land(&mut self) -> Check {
        let keys: Vec<_> = self.store.queues.keys().copied().collect();
        let Some(key) = self.rng.pick(&keys) else {
            return Ok(());
        };
        match self.store.land(key) {
            None => Ok(()),
            Some(Err(violation)) => Err(violation),
            Some(Ok(Written::Created { by: 0, folder, taken })) => self.front_created(folder, taken),
            Some(Ok(Written::Created { by, folder, taken })) => {
                if !taken {
                    self.in_place_created(by, folder);
                }
                if !taken || self.store.folders.contains_key(&folder) {
                    self.settler_did(by, folder, None);
                }
                Ok(())
            }
            Some(Ok(Written::Appended { by, folder, number })) => {
                self.settler_did(by, folder, Some(number));
                Ok(())
            }
            Some(Ok(Written::State { by, folder, state })) => {
                self.state_written(by, folder, &state);
                Ok(())
            }
        }
    }

    // ---- the group ----

    fn up(&self, replica: u32) -> bool {
        self.replicas
            .get(&replica)
            .is_some_and(|r| r.alive && r.keeper && !r.paused)
    }

    fn linked(&self, a: u32, b: u32) -> bool {
        a == b
            || !self.cuts.contains(&(Party::Node(a), Party::Node(b)))
                && !self.cuts.contains(&(Party::Node(b), Party::Node(a)))
    }

    /// Whether this voter could lead now.
    pub fn can_lead(&self, leader: u32) -> bool {
        let Some(group) = &self.group else { return false };
        let votes =
            group.voters.contains(&leader) || group.joint.as_ref().is_some_and(|j| j.contains(&leader));
        votes && self.up(leader) && group.is_majority(|m| self.up(m) && self.linked(leader, m))
    }

    pub fn leaders(&self) -> Vec<u32> {
        let Some(group) = &self.group else {
            return Vec::new();
        };
        let all = group.voters.iter().chain(group.joint.iter().flatten());
        all.copied().filter(|m| self.can_lead(*m)).collect()
    }

    /// Whether the replica learns what its group commits.
    pub fn follows(&self, replica: u32) -> bool {
        let Some(group) = &self.group else { return false };
        self.up(replica) && group.has(replica) && self.leaders().iter().any(|l| self.linked(*l, replica))
    }

    /// Appends a proposal, or loses it, or keeps a copy for later.
    pub fn append(&mut self) -> Check {
        let leads = !self.leaders().is_empty();
        let calm = self.calm;
        let (at, lose, keep) = {
            let Some(group) = &self.group else { return Ok(()) };
            if group.pending.is_empty() || !leads {
                return Ok(());
            }
            let at = if calm {
                0
            } else {
                self.rng.below(group.pending.len())
            };
            (
                at,
                !calm && self.rng.chance(self.swarm.loss),
                !calm && self.rng.chance(self.swarm.loss),
            )
        };
        let group = self.group.as_mut().expect("looked at above");
        let entry = if keep {
            group.pending[at].clone()
        } else {
            group.pending.remove(at)
        };
        if lose {
            return Ok(());
        }
        self.append_entry(entry);
        Ok(())
    }

    fn append_entry(&mut self, entry: Entry) {
        let Some(mut group) = self.group.take() else {
            return;
        };
        let before = group.reference.tenure().0;
        let fenced = self.fenced(&group.reference, &entry);
        let (_, result) = group.append(fenced);
        self.count(if result.is_ok() { "applied" } else { "refused" });
        self.group = Some(group);
        if let Ok(effect) = result {
            self.note_applied(entry, effect, before);
        }
    }

    pub fn note_applied(&mut self, entry: Entry, effect: Effect, before: u64) {
        if effect == Effect::Fresh {
            self.oracle.note(Fact::Fresh);
        }
        if matches!(effect, Effect::Opened { .. }) {
            self.count("tenures");
        }
        self.oracle.note(Fact::Applied {
            entry,
            effect,
            before,
        });
    }

    /// A leader, or a voter that believes to lead, does one of its duties.
    pub fn steward(&mut self) -> Check {
        let leaders = self.leaders();
        let Some(group) = &self.group else { return Ok(()) };
        let (joint, voters) = (group.joint.is_some(), group.voters.clone());
        if joint {
            if !leaders.is_empty() && self.rng.chance(if self.calm { 100 } else { 40 }) {
                self.group.as_mut().expect("just seen").end_change();
            }
            if !self.has(Bug::ChangeInChange) {
                return Ok(());
            }
        }
        let stale: Vec<u32> = voters.iter().copied().filter(|v| self.up(*v)).collect();
        let real = self.rng.chance(85) || self.calm;
        let Some(me) = self.rng.pick(if real { &leaders } else { &stale }) else {
            return Ok(());
        };
        let Some(deed) = self.duty(me, &voters) else {
            return self.join_those_who_ask(me);
        };
        let leads = leaders.contains(&me);
        match deed {
            Deed::Propose(entry) => self.propose_to_group(entry),
            Deed::Learner(member) if leads => {
                let group = self.group.as_mut().expect("just seen");
                group.learners.insert(member.0);
                if let Some(replica) = self.replicas.get_mut(&member.0) {
                    replica.state = group.initial.clone();
                    replica.cursor = 0;
                }
            }
            Deed::Voters(voters) if leads => {
                let mut voters: BTreeSet<u32> = voters.iter().map(|v| v.0).collect();
                if self.has(Bug::TwoVoters) && voters.len() == 3 {
                    voters.pop_last();
                }
                return self.group.as_mut().expect("just seen").begin_change(voters);
            }
            Deed::Grow(more) if self.rng.chance(30) || self.calm => self.front_grows(more),
            Deed::Lead(_) | Deed::Learner(_) | Deed::Voters(_) | Deed::Grow(_) => {}
        }
        self.join_those_who_ask(me)
    }

    fn duty(&mut self, me: u32, voters: &BTreeSet<u32>) -> Option<Deed> {
        let dead: BTreeSet<Incarnation> = self
            .replicas
            .iter()
            .filter(|(_, r)| !r.alive)
            .map(|(i, _)| Incarnation(*i))
            .collect();
        let (mut gone, mut unfit) = (BTreeSet::new(), dead.clone());
        for member in self.replicas.keys().copied().collect::<Vec<_>>() {
            let suspected =
                self.replicas[&member].paused || !self.linked(me, member) || !self.replicas[&member].keeper;
            let (wrongly, knows) = (
                if suspected { 50 } else { self.swarm.wrongly },
                self.calm || self.rng.chance(70),
            );
            if !self.calm && self.rng.chance(wrongly) || self.calm && suspected {
                unfit.insert(Incarnation(member));
            }
            if dead.contains(&Incarnation(member)) && knows || suspected && !self.calm && self.rng.chance(10)
            {
                gone.insert(Incarnation(member));
            }
        }
        let died = self.died(me);
        let group = self.group.as_ref()?;
        let learners = group.learners.iter().map(|l| {
            let lag = self
                .replicas
                .get(l)
                .is_none_or(|r| r.cursor + 3 < group.log.len());
            (Incarnation(*l), !lag && self.up(*l))
        });
        let view = View {
            me: Incarnation(me),
            voters: &voters.iter().map(|v| Incarnation(*v)).collect(),
            learners: &learners.collect(),
            changing: group.joint.is_some() && !self.has(Bug::ChangeInChange),
            gone: &gone,
            unfit: &unfit,
            leaving: &BTreeSet::new(),
            died,
            wanted: 3,
        };
        steward::next(&self.replicas[&me].state, &view)
    }

    /// The tenure whose process died, as far as the leader has heard.
    fn died(&mut self, me: u32) -> Option<Tenure> {
        let state = &self.replicas[&me].state;
        let (tenure, executor) = (state.tenure(), state.executor()?);
        let replica = self.replicas.get(&executor.0)?;
        let serves = replica.serves(tenure);
        let heard = self.calm || self.rng.chance(50);
        (!serves && heard && replica.alive && self.linked(me, executor.0)).then_some(tenure)
    }

    fn join_those_who_ask(&mut self, leader: u32) -> Check {
        let asks = |i: &u32, r: &Replica| {
            r.alive
                && r.keeper
                && self.linked(leader, *i)
                && !self.replicas[&leader]
                    .state
                    .members()
                    .contains_key(&Incarnation(*i))
        };
        let asking: Vec<u32> = self
            .replicas
            .iter()
            .filter(|(i, r)| asks(i, r))
            .map(|(i, _)| *i)
            .collect();
        let asleep = matches!(self.replicas[&leader].state.office(), Office::Asleep { .. });
        if let Some(joining) = self.rng.pick(&asking).filter(|_| !asleep) {
            let hot = self.rng.chance(30);
            self.propose_to_group(super::replica::join(joining, hot));
        }
        Ok(())
    }

    pub fn propose_to_group(&mut self, entry: Entry) {
        if let Some(group) = &mut self.group {
            group.pending.push(entry);
            if group.pending.len() > 40 {
                let at = self.rng.below(40);
                group.pending.remove(at);
            }
        }
    }

    /// The keeper applies its next entry.
    pub fn keeper_applies(&mut self, replica: u32) -> Check {
        if self.config.replicas == 1 || !self.follows(replica) {
            return Ok(());
        }
        let group = self.group.as_ref().expect("it follows one");
        let known = &self.replicas[&replica];
        let Some((index, entry)) = group.log.get(known.cursor).cloned() else {
            return Ok(());
        };
        let mut state = known.state.clone();
        let mut applied = entry.clone();
        if self.has(Bug::EveryOneTakesOffice)
            && let Entry::Tenure { executor, .. } = &mut applied
            && state.members().contains_key(&Incarnation(replica))
        {
            *executor = Incarnation(replica);
        }
        let applied = self.fenced(&state, &applied);
        let result = state.apply(index, &applied);
        let known = self.replicas.get_mut(&replica).expect("just seen");
        known.state = state;
        known.cursor += 1;
        match result {
            Ok(Effect::Asleep) => self.falls_asleep(replica),
            Ok(Effect::Left { .. })
                if entry
                    == (Entry::Left {
                        incarnation: Incarnation(replica),
                    }) =>
            {
                self.node_dies(replica);
            }
            _ => {}
        }
        Ok(())
    }

    // ---- faults ----

    fn fault(&mut self) {
        let alive: Vec<u32> = self
            .replicas
            .iter()
            .filter(|(_, r)| r.alive)
            .map(|(i, _)| *i)
            .collect();
        let victim = self.rng.pick(&alive).unwrap_or(0);
        let Some(fault) = self.rng.pick(&self.swarm.faults) else {
            return;
        };
        self.count(fault.name());
        match fault {
            Fault::Ipykernel => self.ipykernel_dies(victim),
            Fault::Process => self.process_dies(victim),
            Fault::Node => self.node_dies(victim),
            Fault::Front => self.front_crashes(),
            Fault::Cut => self.cut_or_mend(),
            Fault::Pause => {
                if let Some(r) = self.replicas.get_mut(&victim) {
                    r.paused = !r.paused;
                }
            }
            Fault::Keeper => {
                let has_one = self.config.replicas > 1;
                if let Some(r) = self.replicas.get_mut(&victim).filter(|_| has_one) {
                    r.keeper = !r.keeper;
                }
            }
            Fault::Majority => self.lose_majority(),
            Fault::Revoke => self.revoke_something(),
        }
    }

    fn cut_or_mend(&mut self) {
        if self.cuts.len() > 3 || self.rng.chance(50) {
            let cuts: Vec<_> = self.cuts.iter().copied().collect();
            if let Some(cut) = self.rng.pick(&cuts) {
                self.cuts.remove(&cut);
            }
            return;
        }
        let mut parties = vec![Party::Front, Party::Hopd];
        parties.extend(
            self.replicas
                .iter()
                .filter(|(_, r)| r.alive)
                .map(|(i, _)| Party::Node(*i)),
        );
        if let (Some(from), Some(to)) = (self.rng.pick(&parties), self.rng.pick(&parties))
            && from != to
        {
            self.cuts.insert((from, to));
        }
    }

    fn lose_majority(&mut self) {
        let alive: Vec<u32> = self
            .replicas
            .iter()
            .filter(|(_, r)| r.alive)
            .map(|(i, _)| *i)
            .collect();
        let victims = if self.rng.chance(50) { 2 } else { alive.len() };
        for victim in alive.into_iter().take(victims) {
            self.node_dies(victim);
        }
    }

    pub fn node_dies(&mut self, replica: u32) {
        if let Some(r) = self.replicas.get_mut(&replica) {
            r.alive = false;
            r.process = None;
            // Some of its writes are on their way to the store's server, and land late.
            if self.rng.chance(50) {
                self.store.lose_writes_of(replica);
            }
        }
    }

    // ---- the end ----

    /// No more faults: within a bound everything is in order again.
    pub fn heal(&mut self) -> Check {
        self.calm = true;
        self.cuts.clear();
        for replica in self.replicas.values_mut() {
            replica.paused = false;
            replica.keeper = true;
        }
        for _ in 0..400 {
            self.calm_round()?;
            if self.is_well().is_ok() {
                break;
            }
        }
        self.is_well()?;
        self.front.wish(1);
        for _ in 0..200 {
            self.calm_round()?;
        }
        self.hibernates_well()
    }

    fn calm_round(&mut self) -> Check {
        for _ in 0..self.net.len() {
            self.deliver()?;
            oracle::check(self)?;
        }
        for replica in self
            .replicas
            .iter()
            .filter(|(_, r)| r.alive)
            .map(|(i, _)| *i)
            .collect::<Vec<_>>()
        {
            for _ in 0..4 {
                self.keeper_applies(replica)?;
            }
            if self.replicas[&replica].alive {
                self.process_steps(replica)?;
            }
            oracle::check(self)?;
        }
        for _ in 0..8 {
            self.append()?;
            self.land()?;
            oracle::check(self)?;
        }
        self.steward()?;
        self.front_step()?;
        self.hopd_step();
        oracle::check(self)
    }

    fn is_well(&self) -> Check {
        let open = self.front.unanswered();
        if !open.is_empty() {
            return violated(
                "heals",
                format!("cells {open:?} have no answer; {}", self.describe()),
            );
        }
        if let Some(group) = &self.group {
            let asleep = matches!(group.reference.office(), Office::Asleep { .. });
            let dead = group.voters.iter().find(|v| !self.replicas[v].alive);
            let whole = group.voters.len() == 3 && group.joint.is_none() && dead.is_none();
            let named: Vec<u32> = group.reference.members().keys().map(|m| m.0).collect();
            let voters: Vec<u32> = group.voters.iter().copied().collect();
            if !asleep && (!whole || group.reference.executor().is_none() || named != voters) {
                return violated("heals", format!("the kernel is not whole: {}", self.describe()));
            }
        }
        let owned = |i: &u32| match &self.group {
            Some(group) => group.has(*i),
            None => self.front.link == Some(*i),
        };
        match self.replicas.iter().find(|(i, r)| r.alive && !owned(i)) {
            Some((orphan, _)) => violated(
                "heals",
                format!("replica {orphan} has no owner; {}", self.describe()),
            ),
            None => Ok(()),
        }
    }

    /// An idle kernel hibernates when asked to: everything settled, no process.
    fn hibernates_well(&mut self) -> Check {
        let alive: Vec<_> = self
            .replicas
            .iter()
            .filter(|(_, r)| r.alive)
            .map(|(i, _)| *i)
            .collect();
        if !alive.is_empty() {
            let text = format!(
                "replicas {alive:?} of a sleeping kernel live; {}",
                self.describe()
            );
            return violated("heals", text);
        }
        match self.store.newest() {
            None => Ok(()),
            Some((_, state)) if matches!(state.office(), Office::Asleep { .. }) => Ok(()),
            // The sleeping kernel's last state may be lost with its process: the one before holds the same records.
            Some((_, state)) => {
                let text = format!("{state:?}; {}", self.describe());
                if self.front.asleep {
                    Ok(())
                } else {
                    violated("heals", text)
                }
            }
        }
    }

    fn describe(&self) -> String {
        use std::fmt::Write;
        let mut text = format!("{}\n", self.front.describe());
        if let Some(g) = &self.group {
            let (office, joint) = (g.reference.office(), &g.joint);
            let _ = writeln!(
                text,
                "voters {:?} {joint:?}, learners {:?}, {office:?}",
                g.voters, g.learners
            );
            let _ = writeln!(
                text,
                "members {:?}, pending {:?}",
                g.reference.members().keys(),
                g.pending
            );
        }
        for (i, replica) in self.replicas.iter().filter(|(_, r)| r.alive) {
            let _ = writeln!(text, "{i}: {}", replica.describe());
        }
        let _ = writeln!(
            text,
            "writes {}, mail {:?}",
            self.store.queues.len(),
            self.net.len()
        );
        text
    }
}

impl From<hop_log::Insane> for Violation {
    fn from(insane: hop_log::Insane) -> Self {
        Self {
            name: "settled_is_prefix",
            text: insane.0,
        }
    }
}
