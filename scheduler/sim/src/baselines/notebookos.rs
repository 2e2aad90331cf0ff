//! NotebookOS's static policy, as in its public code (the paper's policy of the same name; `ds2-lab/NotebookOS`,
//! `common/scheduling/{policy/default.go, scheduler/base_scheduler.go}`).
//!
//! Three replicas run on the least loaded hosts under a cap on subscription that follows demand over use. A cell runs
//! where the last one ran if GPUs are free there, else on the replica with the most idle GPUs. Otherwise a replica
//! drawn by chance moves to a host with free GPUs. GPUs are bound for the cell alone, with no linger. Hosts are added
//! and removed by committed GPUs. Its copy of GPU memory before and after each cell costs the same as our unparking
//! and parking. Its other replicas have read the executor's writes by the time of the next cell.
//!
//! As coded, a host is given back only if it is wholly idle, has at most four containers and none of their kernels
//! trains. Their replicas move first, to hosts under the cap. With [`ScaleIn::Free`] idle hosts are cleared at once and
//! at no cost.

use crate::cluster::Cluster;
use crate::metrics::{CellResult, PolicyResult};
use crate::rng::Rng;
use crate::trace::Trace;
use hop_words::time::{Span, Timestamp};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

const FACTOR: f64 = 1.05;
const LIMIT: f64 = 1.1;
const BUFFER: usize = 3;
const INTERVAL: Span = Span::from_secs(30);
const RELEASED_AT_ONCE: usize = 2;
/// Fewest hosts, and these hosts' share of the cluster at the authors' scale (12 of 48).
const LEAST_HOSTS: usize = 12;
const LEAST_SHARE: usize = 4;
/// A host with more containers isn't cleared.
const CONTAINERS: usize = 4;
/// Where nothing trains.
const MAX_RATIO: f64 = 7.0;
const TRIES: u32 = 5;
const REPLICAS: u16 = 3;
const LEAST_WAIT: Span = Span::from_secs(1);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Done {
        session: usize,
        cell: usize,
    },
    Free {
        host: usize,
        gpus: u16,
        since: Timestamp,
    },
    HostUp(usize),
    HostGone(usize),
    Moved {
        session: usize,
        victim: usize,
        to: usize,
    },
    Close(usize),
    Open(usize),
    Place(usize, u32),
    /// The replicas of a host that is given back have moved.
    Cleared(usize),
    Submit {
        session: usize,
        cell: usize,
    },
    /// Tries to start the waiting cell again.
    Retry {
        session: usize,
        cell: usize,
        attempt: u32,
    },
    Scale,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HostState {
    Off,
    Coming,
    Up,
    /// Its replicas are moving away.
    Clearing,
    Going,
}

struct Host {
    state: HostState,
    since: Timestamp,
    free: u16,
    /// Most GPUs that the replicas here could ask for.
    placed: u32,
    /// Sessions with a replica here.
    sessions: BTreeSet<usize>,
}

#[derive(Default)]
struct Session {
    replicas: Vec<usize>,
    last: Option<usize>,
    waiting: Option<(usize, Timestamp)>,
    queued: bool,
    migrated: bool,
    /// Host to which a replica is moving.
    moving: Option<usize>,
    closed: bool,
    done: usize,
    vram: f64,
    state: f64,
    gpus: u16,
    training: bool,
}

struct World<'a> {
    trace: &'a Trace,
    cluster: &'a Cluster,
    rng: Rng,
    now: Timestamp,
    events: BinaryHeap<Reverse<(Timestamp, u64, Event)>>,
    seq: u64,
    hosts: Vec<Host>,
    sessions: Vec<Session>,
    /// GPUs asked for by sessions with replicas, and of these by training sessions.
    demand: u64,
    busy: u64,
    open: usize,
    min_hosts: usize,
    scale_in: ScaleIn,
    result: PolicyResult,
}

/// How hosts are given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScaleIn {
    AsCoded,
    Free,
}

pub(crate) fn run(trace: &Trace, cluster: &Cluster, seed: u64, scale_in: ScaleIn) -> PolicyResult {
    let mut draw = Rng::new(seed, 0xd1a5);
    let sessions: Vec<Session> = trace
        .sessions
        .iter()
        .map(|s| Session {
            vram: cluster.latency.vram_gb.draw(&mut draw).as_secs_f64().min(80.0),
            state: cluster.latency.state_gb.draw(&mut draw).as_secs_f64().min(200.0),
            gpus: s.gpus(),
            ..Session::default()
        })
        .collect();
    let host = || Host {
        state: HostState::Off,
        since: Timestamp(0),
        free: cluster.gpus_per_node,
        placed: 0,
        sessions: BTreeSet::new(),
    };
    let mut world = World {
        trace,
        cluster,
        rng: Rng::new(seed, 0x0b05),
        now: Timestamp(0),
        events: BinaryHeap::new(),
        seq: 0,
        hosts: (0..cluster.nodes).map(|_| host()).collect(),
        open: sessions
            .iter()
            .enumerate()
            .filter(|(i, _)| !trace.sessions[*i].cells.is_empty())
            .count(),
        sessions,
        demand: 0,
        busy: 0,
        min_hosts: (cluster.nodes as usize / LEAST_SHARE).clamp(1, LEAST_HOSTS),
        scale_in,
        result: PolicyResult::default(),
    };
    world.go();
    world.result
}

impl World<'_> {
    fn at(&mut self, when: Timestamp, event: Event) {
        self.seq += 1;
        self.events.push(Reverse((when, self.seq, event)));
    }

    fn go(&mut self) {
        for n in 0..self.min_hosts {
            self.hosts[n].state = HostState::Up;
        }
        for (i, s) in self
            .trace
            .sessions
            .iter()
            .enumerate()
            .filter(|(_, s)| !s.cells.is_empty())
        {
            self.at(s.open, Event::Open(i));
            self.at(s.close, Event::Close(i));
        }
        self.at(Timestamp(0) + INTERVAL, Event::Scale);
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = self.now.max(at);
            self.happen(event);
        }
        for n in 0..self.hosts.len() {
            self.count_host(n);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Open(s) => {
                let first = self.trace.sessions[s].cells[0].submit;
                self.place(s, 0);
                self.at(first.max(self.now), Event::Submit { session: s, cell: 0 });
            }
            Event::Place(s, tries) => self.place(s, tries),
            Event::Cleared(n) => self.cleared(n),
            Event::Submit { session, cell } => {
                self.sessions[session].waiting = Some((cell, self.now));
                self.sessions[session].queued = false;
                self.sessions[session].migrated = false;
                self.attempt(session, cell, 0);
            }
            Event::Retry {
                session,
                cell,
                attempt,
            } => {
                if self.sessions[session].waiting.is_some_and(|(c, _)| c == cell) {
                    self.attempt(session, cell, attempt);
                }
            }
            Event::Done { session, cell } => self.done(session, cell),
            Event::Free { host, gpus, since } => {
                self.hosts[host].free += gpus;
                self.result.held.span(since, self.now, i64::from(gpus));
            }
            Event::Moved { session, victim, to } => self.moved(session, victim, to),
            Event::HostUp(n) => self.hosts[n].state = HostState::Up,
            Event::HostGone(n) => {
                self.count_host(n);
                self.hosts[n].state = HostState::Off;
            }
            Event::Close(s) => {
                self.sessions[s].closed = true;
                self.close(s);
            }
            Event::Scale => self.scale(),
        }
    }

    fn count_host(&mut self, n: usize) {
        if self.hosts[n].state != HostState::Off {
            let gpus = i64::from(self.cluster.gpus_per_node);
            self.result.provisioned.span(self.hosts[n].since, self.now, gpus);
        }
    }

    /// Ratio of all sessions' demand to the GPUs in training now.
    fn ratio(&self) -> f64 {
        if self.busy == 0 {
            MAX_RATIO
        } else {
            (self.demand as f64 / self.busy as f64).max(1.0)
        }
    }

    fn viable(&self, s: usize) -> Vec<usize> {
        let ratio = self.ratio();
        let need = f64::from(self.sessions[s].gpus);
        let room = f64::from(self.cluster.gpus_per_node) * f64::from(REPLICAS);
        let mut hosts: Vec<usize> = (0..self.hosts.len())
            .filter(|&n| self.hosts[n].state == HostState::Up && !self.sessions[s].replicas.contains(&n))
            .filter(|&n| (f64::from(self.hosts[n].placed) + need) / room < ratio || self.hosts[n].placed == 0)
            .collect();
        hosts.sort_by_key(|&n| (self.hosts[n].placed, n));
        hosts
    }

    /// Finds hosts under the cap for the session's replicas, and asks for the missing hosts. After five tries it gives
    /// up and takes the least loaded ones, as its user would try again.
    fn place(&mut self, s: usize, tries: u32) {
        if self.sessions[s].closed && self.sessions[s].done == self.trace.sessions[s].cells.len() {
            return;
        }
        let wanted = usize::from(REPLICAS.min(self.cluster.nodes as u16));
        let hosts = self.viable(s);
        if hosts.len() < wanted && tries < TRIES {
            let coming = self.hosts.iter().filter(|h| h.state == HostState::Coming).count();
            self.add_hosts((wanted - hosts.len()).saturating_sub(coming));
            let wait = self.back_off(0.75, tries);
            return self.at(self.now + wait, Event::Place(s, tries + 1));
        }
        let mut hosts: Vec<usize> = hosts.into_iter().take(wanted).collect();
        let mut rest: Vec<usize> = (0..self.hosts.len())
            .filter(|n| !hosts.contains(n) && self.hosts[*n].state == HostState::Up)
            .collect();
        rest.sort_by_key(|&n| (self.hosts[n].placed, n));
        hosts.extend(rest.into_iter().take(wanted - hosts.len()));
        for &n in &hosts {
            self.hosts[n].placed += u32::from(self.sessions[s].gpus);
            self.hosts[n].sessions.insert(s);
        }
        if !hosts.is_empty() {
            self.demand += u64::from(self.sessions[s].gpus);
        }
        self.sessions[s].replicas = hosts;
        if let Some((cell, _)) = self.sessions[s].waiting {
            self.at(
                self.now,
                Event::Retry {
                    session: s,
                    cell,
                    attempt: 0,
                },
            );
        }
    }

    fn attempt(&mut self, s: usize, cell: usize, attempt: u32) {
        let c = &self.trace.sessions[s].cells[cell];
        if c.gpus == 0 {
            return self.start(s, None);
        }
        if self.sessions[s].replicas.is_empty() {
            self.sessions[s].queued = true;
            return;
        }
        let fits = |n: &usize| self.hosts[*n].free >= c.gpus;
        let last = self.sessions[s]
            .last
            .filter(|n| self.sessions[s].replicas.contains(n))
            .filter(fits);
        let replicas = self.sessions[s].replicas.iter().copied();
        let host = last.or_else(|| {
            replicas
                .filter(fits)
                .max_by_key(|&n| (self.hosts[n].free, Reverse(n)))
        });
        if let Some(n) = host {
            return self.start(s, Some(n));
        }
        self.sessions[s].queued = true;
        self.migrate(s, cell, attempt);
    }

    /// A replica drawn by chance moves to a host with GPUs, which are reserved first; five tries.
    fn migrate(&mut self, s: usize, cell: usize, attempt: u32) {
        let need = self.trace.sessions[s].cells[cell].gpus;
        let target = self.viable(s).into_iter().find(|&n| self.hosts[n].free >= need);
        let target = target.or_else(|| {
            let all = 0..self.hosts.len();
            all.filter(|&n| self.hosts[n].state == HostState::Up && !self.sessions[s].replicas.contains(&n))
                .find(|&n| self.hosts[n].free >= need)
        });
        let Some(to) = target else {
            self.add_hosts(1);
            let wait = self.back_off(0.5, attempt);
            let next = if attempt >= TRIES { 0 } else { attempt + 1 };
            return self.at(
                self.now + wait,
                Event::Retry {
                    session: s,
                    cell,
                    attempt: next,
                },
            );
        };
        self.hosts[to].free -= need;
        self.hosts[to].placed += u32::from(self.sessions[s].gpus);
        self.sessions[s].migrated = true;
        self.sessions[s].moving = Some(to);
        self.result.migrations += 1;
        let session = &self.sessions[s];
        self.result.moved_gb += 2.0 * (session.state + session.vram * f64::from(session.gpus));
        let victim = self.rng.below(self.sessions[s].replicas.len());
        let l = &self.cluster.latency;
        // A pre-warmed container if possible: a replica's start. Its data directory goes through the store.
        let gb = self.sessions[s].state + self.sessions[s].vram * f64::from(self.sessions[s].gpus);
        let takes = Span(l.replica.draw(&mut self.rng).0 + l.store(2.0 * gb).0);
        // The reserved GPUs are held meanwhile.
        self.result.held.span(self.now, self.now + takes, i64::from(need));
        self.at(
            self.now + takes,
            Event::Moved {
                session: s,
                victim,
                to,
            },
        );
    }

    /// Exponential back-off from `first` times a host's start.
    fn back_off(&self, first: f64, attempt: u32) -> Span {
        let times = (first * 1.25f64.powi(attempt.min(TRIES) as i32)).min(1.5);
        // Time passes also where hosts take none.
        Span((times * self.cluster.latency.host_mean * 1e6) as u64).max(LEAST_WAIT)
    }

    fn moved(&mut self, s: usize, victim: usize, to: usize) {
        self.sessions[s].moving = None;
        let Some((cell, _)) = self.sessions[s].waiting else {
            return;
        };
        let need = self.trace.sessions[s].cells[cell].gpus;
        self.hosts[to].free += need;
        let old = self.sessions[s].replicas[victim];
        self.hosts[old].placed -= u32::from(self.sessions[s].gpus);
        self.resettle(s, victim, to);
        self.start(s, Some(to));
    }

    fn start(&mut self, s: usize, host: Option<usize>) {
        let Some((cell, submit)) = self.sessions[s].waiting.take() else {
            return;
        };
        let c = &self.trace.sessions[s].cells[cell];
        // Four hops, the pre-commit and a vote in the kernel's log.
        let l = &self.cluster.latency;
        let message = l.message.draw(&mut self.rng);
        let vote = l.lease.draw(&mut self.rng);
        let granted = self.now + Span(message.0 + vote.0);
        let unpark = if c.gpus > 0 && self.sessions[s].last.is_some() {
            l.unpark(self.sessions[s].vram)
        } else {
            Span::ZERO
        };
        let start = granted + unpark;
        let end = start + c.run;
        let reused = match (self.sessions[s].last, host) {
            (Some(a), Some(b)) => Some(a == b),
            _ => None,
        };
        if let Some(n) = host {
            self.hosts[n].free -= c.gpus;
            self.sessions[s].last = Some(n);
            self.train(s, true);
            let store = l.park(self.sessions[s].vram);
            let since = self.now;
            self.at(
                end + store,
                Event::Free {
                    host: n,
                    gpus: c.gpus,
                    since,
                },
            );
        }
        self.result.waiting.span(submit, granted, 1);
        self.result.cells.push(CellResult {
            session: s as u32,
            cell: cell as u32,
            gpus: c.gpus,
            submit,
            granted,
            fetch: Span::ZERO,
            unpark,
            start,
            end,
            immediate: !self.sessions[s].queued,
            reused,
            migrated: self.sessions[s].migrated,
            node: host.map_or(u32::MAX, |n| n as u32),
            estimate: None,
            foretold: None,
        });
        self.at(end, Event::Done { session: s, cell });
    }

    /// Moves one of the session's replicas to another host.
    fn resettle(&mut self, s: usize, replica: usize, to: usize) {
        let old = std::mem::replace(&mut self.sessions[s].replicas[replica], to);
        self.hosts[old].sessions.remove(&s);
        self.hosts[to].sessions.insert(s);
    }

    fn train(&mut self, s: usize, training: bool) {
        let gpus = u64::from(self.sessions[s].gpus);
        match (
            std::mem::replace(&mut self.sessions[s].training, training),
            training,
        ) {
            (false, true) => self.busy += gpus,
            (true, false) => self.busy -= gpus,
            _ => {}
        }
    }

    fn done(&mut self, s: usize, cell: usize) {
        self.sessions[s].done = cell + 1;
        self.train(s, false);
        if let Some(next) = self.trace.sessions[s].cells.get(cell + 1) {
            self.at(
                next.submit.max(self.now),
                Event::Submit {
                    session: s,
                    cell: cell + 1,
                },
            );
        }
        self.close(s);
    }

    fn close(&mut self, s: usize) {
        let all = self.trace.sessions[s].cells.len();
        if !self.sessions[s].closed || self.sessions[s].done < all {
            return;
        }
        let gpus = u32::from(self.sessions[s].gpus);
        let replicas = std::mem::take(&mut self.sessions[s].replicas);
        if !replicas.is_empty() {
            self.demand -= u64::from(gpus);
        }
        for n in replicas {
            self.hosts[n].placed -= gpus;
            self.hosts[n].sessions.remove(&s);
        }
        self.open -= 1;
    }

    /// Moves the replicas of an idle host elsewhere, at no cost and in no time; false if some have nowhere to go.
    fn clear(&mut self, host: usize) -> bool {
        let mut moves = Vec::new();
        let mut up: Vec<usize> = (0..self.hosts.len())
            .filter(|&n| n != host && self.hosts[n].state == HostState::Up)
            .collect();
        up.sort_by_key(|&n| (self.hosts[n].placed, n));
        for &s in &self.hosts[host].sessions {
            let session = &self.sessions[s];
            let Some(i) = session.replicas.iter().position(|&n| n == host) else {
                continue;
            };
            let away = |n: &usize| !session.replicas.contains(n) && session.moving != Some(*n);
            let target = up.iter().copied().find(away);
            match target {
                Some(to) => moves.push((s, i, to)),
                None => return false,
            }
        }
        for (s, i, to) in moves {
            let gpus = u32::from(self.sessions[s].gpus);
            self.resettle(s, i, to);
            self.hosts[to].placed += gpus;
            self.hosts[host].placed -= gpus;
        }
        true
    }

    fn add_hosts(&mut self, n: usize) {
        let off: Vec<usize> = (0..self.hosts.len())
            .filter(|&i| self.hosts[i].state == HostState::Off)
            .take(n)
            .collect();
        for i in off {
            self.hosts[i].state = HostState::Coming;
            self.hosts[i].since = self.now;
            self.hosts[i].free = self.cluster.gpus_per_node;
            let l = &self.cluster.latency;
            let takes = (l.host_mean + l.host_sd * self.rng.normal()).max(1.0);
            self.at(self.now + Span((takes * 1e6) as u64), Event::HostUp(i));
        }
    }

    fn scale(&mut self) {
        let whole = self.cluster.gpus_per_node;
        let lends = |h: &&Host| matches!(h.state, HostState::Up | HostState::Coming);
        let hosts = self.hosts.iter().filter(lends).count();
        let load: u32 = self
            .hosts
            .iter()
            .filter(|h| h.state == HostState::Up)
            .map(|h| u32::from(whole - h.free))
            .sum();
        let by = |f: f64| (f64::from(load) * f / f64::from(whole)).ceil() as usize;
        let target = by(FACTOR).max(self.min_hosts + BUFFER);
        if hosts < target {
            self.add_hosts(target - hosts);
        } else {
            let floor = by(LIMIT).max(self.min_hosts + BUFFER);
            let surplus = hosts.saturating_sub(floor).min(RELEASED_AT_ONCE);
            match self.scale_in {
                ScaleIn::Free => self.release_freely(surplus),
                ScaleIn::AsCoded => self.release(surplus),
            }
        }
        if self.open > 0 {
            self.at(self.now + INTERVAL, Event::Scale);
        }
    }

    fn release_freely(&mut self, surplus: usize) {
        let whole = self.cluster.gpus_per_node;
        let idle: Vec<usize> = (0..self.hosts.len())
            .rev()
            .filter(|&n| self.hosts[n].state == HostState::Up && self.hosts[n].free == whole)
            .take(surplus)
            .collect();
        for n in idle {
            if self.clear(n) {
                self.go_host(n);
            }
        }
    }

    /// Goes through the hosts, the most idle first, of equals the one with the highest subscription. Stops at the
    /// first that can't be given back.
    fn release(&mut self, surplus: usize) {
        let whole = self.cluster.gpus_per_node;
        for _ in 0..surplus {
            let up = (0..self.hosts.len()).filter(|&n| self.hosts[n].state == HostState::Up);
            let key = |n: usize| {
                let h = &self.hosts[n];
                (h.free, h.placed, Reverse(h.sessions.len()), Reverse(n))
            };
            let Some(n) = up.max_by_key(|&n| key(n)) else {
                return;
            };
            let host = &self.hosts[n];
            let trains = host.sessions.iter().any(|&s| self.sessions[s].training);
            if host.free < whole || host.sessions.len() > CONTAINERS || trains || !self.begin_clearing(n) {
                return;
            }
        }
    }

    /// Has the host's replicas moved to hosts under the cap, which takes a replica's start; false without such a host.
    fn begin_clearing(&mut self, n: usize) -> bool {
        let sessions: Vec<usize> = self.hosts[n].sessions.iter().copied().collect();
        let finds = |s: &usize| self.viable(*s).into_iter().any(|to| to != n);
        if !sessions.iter().all(finds) {
            return false;
        }
        let mut takes = Span::ZERO;
        for _ in &sessions {
            takes = takes.max(self.cluster.latency.replica.draw(&mut self.rng));
        }
        self.result.migrations += sessions.len() as u64;
        self.hosts[n].state = HostState::Clearing;
        self.at(self.now + takes, Event::Cleared(n));
        true
    }

    fn cleared(&mut self, n: usize) {
        let sessions: Vec<usize> = self.hosts[n].sessions.iter().copied().collect();
        for s in sessions {
            let Some(to) = self.viable(s).into_iter().find(|&to| to != n) else {
                // The cap has changed meanwhile: the host stays.
                self.hosts[n].state = HostState::Up;
                return;
            };
            let replica = self.sessions[s].replicas.iter().position(|&h| h == n);
            let gpus = u32::from(self.sessions[s].gpus);
            self.resettle(s, replica.expect("it is on this host"), to);
            self.hosts[to].placed += gpus;
            self.hosts[n].placed -= gpus;
        }
        self.go_host(n);
    }

    fn go_host(&mut self, n: usize) {
        self.hosts[n].state = HostState::Going;
        let takes = (10.0 + self.rng.normal()).max(1.0);
        self.at(self.now + Span((takes * 1e6) as u64), Event::HostGone(n));
    }
}
