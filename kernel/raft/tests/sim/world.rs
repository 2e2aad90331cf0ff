//! The world around the members: network, disks, keepers and the executor.

use bytes::Bytes;
use hop_log::steward::{self, Deed, View};
use hop_log::{
    Act, Effect, Entry, Form, Index, Payload, Record, RecordNumber, Refusal, Sequence, Settled, State,
};
use hop_raft::{Feed, Group, Member, News, Opening, Transport, Unreachable};
use hop_wal::{Options, Sync, Wal};
use hop_words::id::{CellId, Incarnation, JobId, NodeName, Tenure};
use hop_words::lease::Outcome;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

const WANTED: usize = 3;
/// Steps without a sign of life before a member is given up.
const GONE_AFTER: usize = 15;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Faults {
    links: bool,
    nodes: bool,
    forgetful: bool,
}

impl Faults {
    pub const NONE: Self = Self {
        links: false,
        nodes: false,
        forgetful: false,
    };
    pub const LINKS: Self = Self {
        links: true,
        ..Self::NONE
    };
    pub const NODES: Self = Self {
        nodes: true,
        ..Self::NONE
    };
    pub const ALL: Self = Self {
        links: true,
        nodes: true,
        forgetful: false,
    };
    pub const FORGETFUL: Self = Self {
        forgetful: true,
        ..Self::ALL
    };
}

/// The network between members.
struct Net {
    rng: StdRng,
    /// Messages in this direction are lost.
    cut: BTreeSet<(u32, u32)>,
    /// Of a hundred messages so many are lost, and so many delivered twice.
    lost: u32,
    doubled: u32,
    slow: u64,
    members: BTreeMap<u32, Arc<Member<Wire>>>,
}

#[derive(Clone)]
pub struct Wire {
    me: u32,
    net: Arc<Mutex<Net>>,
}

impl Wire {
    /// The delay on the way to a member. `None`: the message is lost.
    fn travel(&self, from: u32, to: u32) -> Option<(Duration, bool)> {
        let mut net = self.net.lock().unwrap();
        let (lost, doubled, slow) = (net.lost, net.doubled, net.slow);
        let is_lost = net.rng.random_range(0..100) < lost || net.cut.contains(&(from, to));
        let delay = Duration::from_micros(net.rng.random_range(100..=slow));
        let twice = net.rng.random_range(0..100) < doubled;
        (!is_lost).then_some((delay, twice))
    }

    fn member(&self, id: u32) -> Option<Arc<Member<Self>>> {
        self.net.lock().unwrap().members.get(&id).cloned()
    }
}

impl Transport for Wire {
    async fn ask(&self, to: Incarnation, message: Bytes) -> Result<Bytes, Unreachable> {
        let Some((delay, twice)) = self.travel(self.me, to.0) else {
            return std::future::pending().await;
        };
        tokio::time::sleep(delay).await;
        let member = self.member(to.0).ok_or(Unreachable)?;
        if twice {
            let (wire, message) = (self.clone(), message.clone());
            tokio::spawn(async move {
                tokio::time::sleep(delay * 20).await;
                if let Some(member) = wire.member(to.0) {
                    let _ = member.receive(message).await;
                }
            });
        }
        // The other side goes on where the asker has lost its patience.
        let answered = tokio::spawn(async move { member.receive(message).await });
        let answer = answered
            .await
            .map_err(|_| Unreachable)?
            .map_err(|_| Unreachable)?;
        let Some((delay, _)) = self.travel(to.0, self.me) else {
            return std::future::pending().await;
        };
        tokio::time::sleep(delay).await;
        Ok(answer)
    }
}

/// A node with one member.
struct Host {
    dir: TempDir,
    wal: Option<Wal>,
    member: Option<Arc<Member<Wire>>>,
    feed: Option<Feed>,
    state: Option<State>,
    silent: usize,
    gone: bool,
}

/// The log as the first member showed it.
#[derive(Default)]
struct Reference {
    state: Option<State>,
    entries: BTreeMap<Index, (Entry, Result<Effect, Refusal>)>,
    /// The encoded state after each entry.
    states: BTreeMap<Index, Bytes>,
}

/// The proposal that its executor makes until it is applied.
struct Proposal {
    by: u32,
    entry: Entry,
    asked: tokio::task::JoinHandle<Option<Index>>,
}

pub struct World {
    rng: StdRng,
    faults: Faults,
    net: Arc<Mutex<Net>>,
    hosts: BTreeMap<u32, Host>,
    reference: Reference,
    proposal: Option<Proposal>,
    acknowledged: Vec<(Index, Entry)>,
    cells: u64,
    step: usize,
    voted: BTreeSet<u32>,
    removed: BTreeSet<u32>,
}

/// A folder in memory: nothing here judges the disk.
fn scratch() -> TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

fn options() -> Options {
    // Syncs come from a thread of the system's; here all time is virtual.
    Options {
        segment: 64 << 10,
        spare: 2,
        sync: Sync::Every(Duration::from_secs(3600)),
    }
}

fn join(id: u32) -> Entry {
    Entry::Join {
        incarnation: Incarnation(id),
        seat: JobId(100 + id),
        node: NodeName::from(format!("n{id}")),
        hot: false,
    }
}

/// A kernel that has run with one replica until now.
fn first_state() -> State {
    let mut state = State::new();
    state.apply(Index(1), &join(1)).unwrap();
    let tenure = Entry::Tenure {
        tenure: Tenure(1),
        executor: Incarnation(1),
    };
    state.apply(Index(2), &tenure).unwrap();
    state
}

impl World {
    pub async fn new(seed: u64, faults: Faults) -> Self {
        let net = Net {
            rng: StdRng::seed_from_u64(seed ^ 0x5eed),
            cut: BTreeSet::new(),
            lost: 0,
            doubled: 0,
            slow: 2_000,
            members: BTreeMap::new(),
        };
        let mut world = Self {
            rng: StdRng::seed_from_u64(seed),
            faults,
            net: Arc::new(Mutex::new(net)),
            hosts: BTreeMap::new(),
            reference: Reference::default(),
            proposal: None,
            acknowledged: Vec::new(),
            cells: 0,
            step: 0,
            voted: BTreeSet::new(),
            removed: BTreeSet::new(),
        };
        world.new_host(1).await;
        let founder = world.member(1).unwrap();
        founder.found(&first_state()).await.unwrap();
        world
    }

    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.len() as u64
    }

    async fn new_host(&mut self, id: u32) {
        let host = Host {
            dir: scratch(),
            wal: None,
            member: None,
            feed: None,
            state: None,
            silent: 0,
            gone: false,
        };
        self.hosts.insert(id, host);
        self.start(id).await;
    }

    async fn start(&mut self, id: u32) {
        let wire = Wire {
            me: id,
            net: Arc::clone(&self.net),
        };
        let host = self.hosts.get_mut(&id).unwrap();
        let wal = match Wal::open(host.dir.path(), options()) {
            Ok(wal) => wal,
            // The last tasks of the killed process have the log open.
            Err(hop_wal::OpenError::Locked { .. }) => return,
            Err(error) => panic!("member {id}: {error}"),
        };
        let opening = Opening {
            wal: &wal,
            name: "kernel.0",
            me: Incarnation(id),
            transport: Arc::new(wire),
        };
        let member = Arc::new(Member::open(opening).await.unwrap());
        let feed = member.subscribe();
        host.state.clone_from(&feed.state);
        host.feed = Some(feed);
        host.wal = Some(wal);
        host.member = Some(Arc::clone(&member));
        self.net.lock().unwrap().members.insert(id, member);
    }

    /// The process is killed. What it wrote stays.
    async fn kill(&mut self, id: u32) {
        self.net.lock().unwrap().members.remove(&id);
        let host = self.hosts.get_mut(&id).unwrap();
        if let Some(member) = host.member.take() {
            member.close().await;
        }
        host.feed = None;
        host.state = None;
        // Tasks that still answer a message hold the WAL's group, not the WAL.
        host.wal = None;
    }

    pub fn member(&self, id: u32) -> Option<Arc<Member<Wire>>> {
        self.hosts.get(&id)?.member.clone()
    }

    fn running(&self) -> Vec<u32> {
        let runs = |h: &Host| h.member.is_some();
        self.hosts
            .iter()
            .filter(|(_, h)| runs(h))
            .map(|(id, _)| *id)
            .collect()
    }

    /// Whether the pair hear each other, in both directions.
    fn up(&self, a: u32, b: u32) -> bool {
        let net = self.net.lock().unwrap();
        let alive = net.members.contains_key(&a) && net.members.contains_key(&b);
        alive && (a == b || !net.cut.contains(&(a, b)) && !net.cut.contains(&(b, a)))
    }

    pub async fn step(&mut self) {
        self.step += 1;
        self.break_something().await;
        self.keep().await;
        self.execute().await;
        let pause = self.rng.random_range(50..150);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        self.look();
    }

    /// Ends all faults, and has the group become whole.
    pub async fn heal(&mut self, steps: usize) {
        {
            let mut net = self.net.lock().unwrap();
            net.cut.clear();
            (net.lost, net.doubled, net.slow) = (0, 0, 2_000);
        }
        self.faults = Faults::NONE;
        for _ in 0..steps {
            let before = self.acknowledged();
            self.step().await;
            if self.is_whole() && self.acknowledged() > before {
                return self.check_acknowledged();
            }
        }
        let told = |id: &u32| {
            let host = &self.hosts[id];
            let applied = host
                .state
                .as_ref()
                .map(|s| (s.applied(), s.tenure(), s.executor()));
            (
                *id,
                host.gone,
                applied,
                host.member.as_ref().map(|m| m.standing()),
            )
        };
        let hosts: Vec<_> = self.hosts.keys().map(told).collect();
        let proposal = self.proposal.as_ref().map(|p| (p.by, p.asked.is_finished()));
        panic!("the group doesn't heal, {proposal:?} is proposed: {hosts:?}");
    }

    fn is_whole(&self) -> bool {
        let Some(state) = &self.reference.state else {
            return false;
        };
        let voters: Vec<u32> = state.members().keys().map(|m| m.0).collect();
        let caught_up = |id: &u32| {
            let host = &self.hosts[id];
            host.member.is_some()
                && host
                    .state
                    .as_ref()
                    .is_some_and(|s| s.applied() == state.applied())
        };
        let leader = self.leader();
        let standing = leader.and_then(|l| self.member(l)).map(|m| m.standing());
        let votes = standing
            .is_some_and(|s| s.voters.iter().map(|v| v.0).collect::<Vec<_>>() == voters && !s.is_changing());
        voters.len() == WANTED && votes && voters.iter().all(caught_up) && state.executor().is_some()
    }

    fn leader(&self) -> Option<u32> {
        let leads = |id: &u32| {
            let standing = self.member(*id).map(|m| m.standing());
            standing.is_some_and(|s| s.leader == Some(Incarnation(*id)))
        };
        self.running()
            .into_iter()
            .filter(leads)
            .max_by_key(|id| self.member(*id).map(|m| m.standing().term))
    }

    // Faults.

    async fn break_something(&mut self) {
        if self.faults.links {
            self.break_links();
        }
        if self.faults.nodes && self.rng.random_range(0..100) < 6 {
            self.break_node().await;
        }
        let down: Vec<u32> = self
            .hosts
            .iter()
            .filter(|(_, h)| h.member.is_none() && !h.gone)
            .map(|(id, _)| *id)
            .collect();
        for id in down {
            if self.rng.random_range(0..100) < 15 {
                self.start(id).await;
            }
        }
    }

    fn break_links(&mut self) {
        let ids: Vec<u32> = self.hosts.keys().copied().collect();
        let mut net = self.net.lock().unwrap();
        if self.rng.random_range(0..100) < 5 {
            net.lost = [0, 0, 5, 30][self.rng.random_range(0..4)];
            net.doubled = [0, 5, 30][self.rng.random_range(0..3)];
            net.slow = [500, 5_000, 50_000, 300_000][self.rng.random_range(0..4)];
        }
        let (a, b) = (
            ids[self.rng.random_range(0..ids.len())],
            ids[self.rng.random_range(0..ids.len())],
        );
        match self.rng.random_range(0..100) {
            0..5 => drop(net.cut.insert((a, b))),
            5..8 => net.cut.extend([(a, b), (b, a)]),
            8..11 => net
                .cut
                .extend(ids.iter().filter(|o| **o != a).flat_map(|o| [(a, *o), (*o, a)])),
            11..20 => net.cut.clear(),
            _ => {}
        }
        net.cut.retain(|(a, b)| a != b);
    }

    async fn break_node(&mut self) {
        let running = self.running();
        let Some(id) = running
            .get(self.rng.random_range(0..running.len().max(1)))
            .copied()
        else {
            return;
        };
        self.kill(id).await;
        if self.rng.random_range(0..100) >= 30 || !self.may_lose(id) {
            return;
        }
        let host = self.hosts.get_mut(&id).unwrap();
        if self.faults.forgetful {
            host.dir = scratch();
        } else {
            host.gone = true;
        }
    }

    /// A minority of the voters may be lost at a time.
    fn may_lose(&self, id: u32) -> bool {
        let standing = self
            .running()
            .into_iter()
            .filter_map(|r| self.member(r))
            .map(|m| m.standing());
        let Some(newest) = standing.max_by_key(|s| s.term) else {
            return false;
        };
        let left = |set: &BTreeSet<Incarnation>| {
            let alive = set.iter().filter(|v| v.0 != id && !self.hosts[&v.0].gone).count();
            alive * 2 > set.len()
        };
        // Changes under way may not be known to the member that was asked.
        newest.voters.len() == WANTED
            && !newest.is_changing()
            && left(&newest.voters)
            && self.leader().is_some()
    }

    // Keepers.

    async fn keep(&mut self) {
        let running = self.running();
        for (id, host) in &mut self.hosts {
            host.silent = if running.contains(id) { 0 } else { host.silent + 1 };
        }
        for id in running {
            let Some(member) = self.member(id) else { continue };
            let standing = member.standing();
            if standing.stopped.is_some() {
                assert!(self.faults.forgetful, "member {id} stopped: {standing:?}");
                self.kill(id).await;
                continue;
            }
            if standing.leader == Some(Incarnation(id)) {
                member.remind().await;
                self.serve(id, &member).await;
            } else if self.should_campaign(id, &standing) {
                member.campaign().await;
            }
        }
    }

    /// A member campaigns where a majority of the voters has no leader in sight; they take turns.
    fn should_campaign(&self, id: u32, standing: &hop_raft::Standing) -> bool {
        let sees_leader = |v: u32| {
            let leader = self.member(v).and_then(|m| m.standing().leader);
            leader.is_some_and(|l| self.up(v, l.0))
        };
        let voters: Vec<u32> = standing.voters.iter().map(|v| v.0).collect();
        let without = voters
            .iter()
            .filter(|v| self.up(id, **v) && !sees_leader(**v))
            .count();
        let Some(rank) = voters.iter().position(|v| *v == id) else {
            return false;
        };
        without * 2 > voters.len() && !sees_leader(id) && self.step / 2 % voters.len() == rank
    }

    async fn serve(&mut self, id: u32, member: &Arc<Member<Wire>>) {
        let standing = member.standing();
        let Some(state) = self.hosts[&id].state.clone() else {
            return;
        };
        let silent = |m: &u32| {
            let host = self.hosts.get(m);
            host.is_none_or(|h| h.gone && h.silent > GONE_AFTER)
        };
        let all = state.members().keys().chain(&standing.voters).copied();
        let gone: BTreeSet<_> = all.clone().filter(|m| silent(&m.0)).collect();
        let unfit: BTreeSet<_> = all.filter(|m| !self.up(id, m.0)).collect();
        let view = View {
            me: Incarnation(id),
            voters: &standing.voters,
            learners: &standing.learners,
            changing: standing.is_changing(),
            gone: &gone,
            unfit: &unfit,
            leaving: &BTreeSet::new(),
            died: None,
            wanted: WANTED,
        };
        let member = Arc::clone(member);
        if let Some(next) = standing.next_voters.clone() {
            tokio::spawn(async move { member.set_voters(next).await });
            return;
        }
        match steward::next(&state, &view) {
            Some(Deed::Propose(entry)) => drop(tokio::spawn(async move { member.propose(entry).await })),
            Some(Deed::Learner(learner)) => {
                drop(tokio::spawn(async move { member.add_learner(learner).await }))
            }
            Some(Deed::Voters(voters)) => {
                self.note_voters(&standing.voters, &voters);
                tokio::spawn(async move { member.set_voters(voters).await });
            }
            Some(Deed::Grow(_)) => self.grow(&state, &member).await,
            // The keeper asks the executor's keeper to stand.
            Some(Deed::Lead(executor)) => {
                if let Some(executor) = self.member(executor.0).filter(|_| self.up(id, executor.0)) {
                    executor.campaign().await;
                }
            }
            None => {}
        }
    }

    async fn grow(&mut self, state: &State, member: &Arc<Member<Wire>>) {
        let known = self.hosts.keys().next_back().copied().unwrap_or_default();
        let id = known.max(state.highest_incarnation().0) + 1;
        // A seat whose joining nobody committed is used first.
        let idle = self.hosts.iter().find(|(id, h)| {
            let id = Incarnation(**id);
            h.member.is_some() && !state.members().contains_key(&id) && !state.has_left(id)
        });
        let id = match idle {
            Some((id, _)) => *id,
            None => {
                self.new_host(id).await;
                id
            }
        };
        let member = Arc::clone(member);
        tokio::spawn(async move { member.propose(join(id)).await });
    }

    fn note_voters(&mut self, from: &BTreeSet<Incarnation>, to: &BTreeSet<Incarnation>) {
        assert_ne!(to.len(), 2, "two voters");
        self.voted.extend(to.iter().map(|v| v.0));
        self.removed.extend(from.difference(to).map(|v| v.0));
        let back = to
            .iter()
            .find(|v| self.removed.contains(&v.0) && !from.contains(v));
        assert_eq!(back, None, "a removed voter comes back");
    }

    // The executor.

    async fn execute(&mut self) {
        if let Some(proposal) = self.proposal.take() {
            self.pursue(proposal).await;
            return;
        }
        let executes = |(id, host): (&u32, &Host)| {
            let state = host.state.as_ref()?;
            let office = state.executor() == Some(Incarnation(*id)) && host.member.is_some();
            office.then(|| (state.tenure(), *id))
        };
        let Some((_, by)) = self.hosts.iter().filter_map(executes).max() else {
            return;
        };
        let state = self.hosts[&by].state.clone().unwrap();
        let entry = self.next_entry(&state);
        self.propose(by, entry);
    }

    fn propose(&mut self, by: u32, entry: Entry) {
        let Some(member) = self.member(by) else { return };
        let proposed = entry.clone();
        let asked = tokio::spawn(async move { member.propose(proposed).await.ok() });
        self.proposal = Some(Proposal { by, entry, asked });
    }

    /// The same entry again, until it was applied or the tenure is over.
    async fn pursue(&mut self, proposal: Proposal) {
        if !proposal.asked.is_finished() {
            self.proposal = Some(proposal);
            return;
        }
        if let Ok(Some(index)) = proposal.asked.await {
            self.acknowledged.push((index, proposal.entry));
            return;
        }
        let state = self.hosts[&proposal.by].state.as_ref();
        let over = state.is_none_or(|s| proposal.entry.tenure().is_some_and(|t| t != s.tenure()));
        if !over {
            self.propose(proposal.by, proposal.entry);
        }
    }

    fn next_entry(&mut self, state: &State) -> Entry {
        let tenure = state.tenure();
        if self.cells % 5 == 4 && state.unsettled_records().len() > 0 {
            self.cells += 1;
            let upto = state.records();
            return Entry::Settled {
                settled: Settled {
                    tenure,
                    part: 0,
                    upto,
                    length: upto.0 * 100,
                    mac: "00".into(),
                },
            };
        }
        if state.answers().len() > 8 {
            return Entry::Heard {
                cells: state.cells(),
                losses: tenure,
            };
        }
        self.cells += 1;
        let record = Record {
            number: RecordNumber(state.records().0 + 1),
            payload: Payload::Inline {
                text: Bytes::from_static(b"{}"),
                body: Bytes::from(vec![7; self.rng.random_range(0..3000)]),
            },
        };
        Entry::Act {
            tenure,
            sequence: Sequence(state.sequence().0 + 1),
            act: Act::Ended {
                cell: CellId::from(format!("cell-{}", self.cells)),
                outcome: Outcome::Ok,
                reply: Bytes::from_static(b"reply"),
                last_output: 0,
                record: Some(record),
            },
        }
    }

    // The oracle.

    fn look(&mut self) {
        for (id, host) in &mut self.hosts {
            let Some(feed) = &mut host.feed else { continue };
            while let Ok(news) = feed.news.try_recv() {
                match news {
                    News::State(state) => {
                        self.reference.state(*id, &state);
                        host.state = Some(*state);
                    }
                    News::Applied { index, entry, effect } => {
                        let state = host.state.as_mut().expect("the state comes first");
                        let own = state.apply(index, &entry);
                        assert_eq!(own, effect, "member {id} at {index}");
                        state.sanity_check().unwrap();
                        self.reference.entry(*id, index, &entry, &effect);
                        self.reference.same_state(*id, state);
                    }
                }
            }
        }
        self.check_acknowledged();
    }

    fn check_acknowledged(&self) {
        for (index, entry) in &self.acknowledged {
            let known = self.reference.entries.get(index).map(|(e, _)| e);
            let shown = self
                .reference
                .state
                .as_ref()
                .is_some_and(|s| s.applied() >= *index);
            assert!(
                known == Some(entry) || !shown,
                "acknowledged at {index}: {entry:?}, there is {known:?}"
            );
        }
    }
}

impl Reference {
    fn entry(&mut self, id: u32, index: Index, entry: &Entry, effect: &Result<Effect, Refusal>) {
        if let Some((known, before)) = self.entries.get(&index) {
            assert_eq!((known, before), (entry, effect), "member {id} differs at {index}");
            return;
        }
        let state = self.state.as_mut().expect("the group's state comes first");
        assert!(
            index > state.applied(),
            "member {id} has an entry at {index} unknown to the others"
        );
        let own = state.apply(index, entry);
        assert_eq!(own, *effect, "member {id} at {index}");
        self.states.insert(index, state.encode());
        self.entries.insert(index, (entry.clone(), effect.clone()));
    }

    fn state(&mut self, id: u32, state: &State) {
        if self.state.is_none() {
            self.states.insert(state.applied(), state.encode());
            self.state = Some(state.clone());
        }
        self.same_state(id, state);
    }

    fn same_state(&self, id: u32, state: &State) {
        let index = state.applied();
        let known = self
            .states
            .get(&index)
            .unwrap_or_else(|| panic!("member {id} has a state of {index}"));
        assert_eq!(*known, state.encode(), "member {id} at {index}");
    }
}
