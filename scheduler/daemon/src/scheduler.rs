//! The task that owns the core: everything that happens comes to it as an event, and what the core decides goes
//! out from here.
//!
//! It decides nothing about leases itself. It knows who is connected, who may do what, which handover belongs to
//! which lease, and carries outputs to agents, replicas, Slurm and the books.

use crate::access::{self, Access};
use crate::books::Books;
use crate::desk::{Act, Desk, Failure, Seen, SeenJob, Wish};
use crate::parks::{self, Parks};
use crate::server::{Caller, ConnId, Incoming};
use crate::slurm::{Facts, Owner, Queue, SlurmSide};
use crate::views;
use hop_api::config::Config;
use hop_api::message::{
    AcctQuery, AgentUp, Event, Expect, FromHopd, Grant, Handover, InfoReport, Order, Placement, Refusal,
    ReplicaUp, Request, Response, SeatPlan, SeatStep, StartLease, ToHopd,
};
use hop_core::config::{Limits, Shares};
use hop_core::id::{
    AccountName, CellId, JobId, KernelId, LeaseId, NodeName, PoolName, ReplicaId, Term, UserName,
};
use hop_core::journal::{Entry, Key, Value};
use hop_core::time::{Span, Timestamp};
use hop_core::{Core, Input, Output};
use hop_store::{Accounting, Journal};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tracing::{debug, error, info, warn};

/// A replica whose connection broke may come back within this time.
const REPLICA_AWAY: Span = Span::from_secs(15);
/// Until the next try after Slurm or slurmdbd gave no answer.
const SOON: Span = Span::from_secs(5);
/// The longest pause between two looks at the queue while Slurm is away.
const LOOK_LAST: Span = Span::from_secs(60);
/// Rows of one answer to `hop acct`.
const ACCT_ROWS: usize = 100_000;

/// Messages of one user that may wait while Slurm is asked about their seats.
const HELD_UP: usize = 256;
/// Answers that may wait for one caller to read them before it may ask on.
const UNREAD: usize = 8;
/// Questions about the accounting that one user may have open.
const ACCT_OPEN: usize = 4;
/// Replicas of one kernel: five, and a successor of each.
const REPLICAS: usize = 10;

/// What the journal is keyed by: the core's entries and our own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum BookKey {
    Core(Key),
    /// A kernel id belongs to its first user until nothing is left of the kernel.
    Owner(KernelId),
    /// What Slurm last said of limits, for a start while slurmdbd is away.
    Limits,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum BookValue {
    Core(Value),
    Owner(UserName),
    Limits(Box<Limits>),
}

pub(crate) type HopJournal = Journal<BookKey, BookValue>;

/// What reaches the scheduler's task from its own helpers.
#[derive(Debug)]
enum Report {
    Submitted {
        ticket: u64,
        answer: Result<JobId, Failure>,
    },
    Looked(Result<Queue, String>),
    Facts(Box<Result<Facts, String>>),
    Limits(Box<Result<Limits, String>>),
    Shares(Box<Result<Shares, String>>),
    /// A question about the accounting was answered.
    Answered {
        uid: u32,
    },
    /// Slurm was asked whose seat that is.
    SeatOwner {
        conn: ConnId,
        message: Box<ToHopd>,
        job: JobId,
        answer: Result<Option<Owner>, String>,
    },
}

struct Conn {
    caller: Caller,
    outgoing: mpsc::Sender<FromHopd>,
    /// An agent's pilot.
    pilot: Option<JobId>,
    replicas: BTreeSet<ReplicaId>,
    kernels: BTreeSet<KernelId>,
    /// Slurm is being asked whose its seat is: what comes meanwhile waits, so that order is kept.
    held_up: Option<VecDeque<ToHopd>>,
}

struct Replica {
    conn: Option<ConnId>,
    seat: SeatStep,
    node: NodeName,
    /// It can be asked to park a cell.
    parks: bool,
}

/// What Slurm said of a seat.
#[derive(Debug, Clone)]
struct Seat {
    user: UserName,
    account: Option<AccountName>,
    nodes: Vec<NodeName>,
}

/// Things that become due here and not in the core.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Look,
    Facts,
    Limits,
    Shares,
    Submit,
    /// After a start: who has not come back by now is lost.
    Grace,
    ReplicaAway(ReplicaId),
    /// A replica that was asked to park a cell should have answered.
    ParkAnswer,
}

pub(crate) struct Scheduler {
    config: Config,
    term: Term,
    started: Timestamp,
    clock: Clock,
    core: Core,
    books: Books,
    desk: Desk,
    journal: HopJournal,
    accounting: Arc<Accounting>,
    slurm: SlurmSide,
    stepmgr: bool,
    /// Nodes of burst partitions, with these.
    burst_nodes: BTreeMap<NodeName, String>,
    conns: HashMap<ConnId, Conn>,
    agents: HashMap<JobId, ConnId>,
    replicas: HashMap<ReplicaId, Replica>,
    /// Connections that hear of a kernel: its replicas' and its front's.
    listeners: HashMap<KernelId, BTreeSet<ConnId>>,
    owners: HashMap<KernelId, UserName>,
    placements: HashMap<KernelId, VecDeque<(ConnId, u64)>>,
    handovers: HashMap<LeaseId, Handover>,
    parks: Parks,
    /// Seats that Slurm has shown to be their user's.
    seats: HashMap<JobId, Seat>,
    /// Questions about the accounting that are open, by uid.
    asking: HashMap<u32, usize>,
    due: BTreeSet<(Timestamp, Due)>,
    look_pause: Span,
    /// Slurm's queue is being read.
    looking: bool,
    /// What the core was told; none: Slurm has never said.
    limits: Option<Limits>,
    problems: BTreeMap<&'static str, String>,
    reports: mpsc::UnboundedSender<Report>,
    inbox: Option<mpsc::UnboundedReceiver<Report>>,
    todo: VecDeque<Input>,
}

/// A clock that never goes back, in microseconds since the epoch.
struct Clock {
    wall: Timestamp,
    start: Instant,
}

impl Clock {
    fn new() -> Self {
        let since = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            wall: Timestamp(u64::try_from(since.as_micros()).unwrap_or(u64::MAX)),
            start: Instant::now(),
        }
    }

    fn now(&self) -> Timestamp {
        self.wall + Span(u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX))
    }
}

impl Scheduler {
    /// Rebuilds everything from the journal.
    ///
    /// # Errors
    /// The accounting database can't be read.
    pub(crate) fn new(
        config: Config,
        journal: HopJournal,
        term: Term,
        entries: Vec<(BookKey, BookValue)>,
        accounting: Accounting,
    ) -> anyhow::Result<Self> {
        let clock = Clock::new();
        let now = clock.now();
        let mut owners = HashMap::new();
        let mut core_entries = Vec::new();
        let mut desk = Desk::default();
        let mut leases = Vec::new();
        let mut limits = None;
        let mut counters = hop_core::journal::Counters {
            next_lease: 1,
            next_ticket: 1,
        };
        for (key, value) in entries {
            match (key, value) {
                (BookKey::Owner(kernel), BookValue::Owner(user)) => drop(owners.insert(kernel, user)),
                (BookKey::Limits, BookValue::Limits(known)) => limits = Some(*known),
                (BookKey::Core(key), BookValue::Core(value)) => {
                    match (&key, &value) {
                        (Key::Ticket(n), Value::Ticket(t)) => {
                            let wish = Wish {
                                pool: t.pool.clone(),
                                partition: t.partition.clone(),
                                node: t.node.clone(),
                                gpus: (t.gpus > 0).then_some(t.gpus),
                            };
                            desk.restore(*n, wish, t.job);
                        }
                        (Key::Lease(id), _) => leases.push(*id),
                        (Key::Counters, Value::Counters(c)) => counters = *c,
                        _ => {}
                    }
                    core_entries.push(Entry {
                        key,
                        value: Some(value),
                    });
                }
                (key, _) => anyhow::bail!("the journal's entry {key:?} has a value of another kind"),
            }
        }
        core_entries.push(skip_ids(counters, term));
        let books = Books::restore(if leases.is_empty() {
            Vec::new()
        } else {
            let query = AcctQuery {
                all_users: true,
                leases,
                ..AcctQuery::default()
            };
            accounting.query(&query, now)?
        });
        let mut out = Vec::new();
        let core_config = hop_core::Config {
            journal: true,
            ..hop_core::Config::default()
        };
        let core = Core::restore(core_config, views::pools(&config), core_entries, now, &mut out);
        let (reports, inbox) = mpsc::unbounded_channel();
        let mut scheduler = Self {
            slurm: SlurmSide::new(config.clone()),
            term,
            started: now,
            core,
            books,
            desk,
            journal,
            accounting: Arc::new(accounting),
            stepmgr: false,
            burst_nodes: BTreeMap::new(),
            conns: HashMap::new(),
            agents: HashMap::new(),
            replicas: HashMap::new(),
            listeners: HashMap::new(),
            owners,
            placements: HashMap::new(),
            handovers: HashMap::new(),
            parks: Parks::default(),
            seats: HashMap::new(),
            asking: HashMap::new(),
            due: BTreeSet::new(),
            look_pause: Span::from_secs(config.hopd.poll_s.into()),
            looking: false,
            limits,
            problems: BTreeMap::new(),
            reports,
            inbox: Some(inbox),
            todo: VecDeque::new(),
            clock,
            config,
        };
        let grace = Span::from_secs(scheduler.config.hopd.grace_s.into());
        scheduler.due.insert((now, Due::Facts));
        scheduler.due.insert((now, Due::Look));
        scheduler.due.insert((now, Due::Limits));
        scheduler.due.insert((now, Due::Shares));
        scheduler.due.insert((now + grace, Due::Grace));
        scheduler.todo.extend(scheduler.limits.clone().map(Input::Limits));
        scheduler.carry_out(out);
        Ok(scheduler)
    }

    /// Runs until `stop`; then everything is on disk. Each `refresh` has it ask Slurm for nodes, settings, limits and
    /// shares at once.
    pub(crate) async fn run(
        mut self,
        mut incoming: mpsc::Receiver<Incoming>,
        mut refresh: tokio::signal::unix::Signal,
        stop: impl Future<Output = ()>,
    ) {
        let mut inbox = self.inbox.take().expect("run is called once");
        tokio::pin!(stop);
        loop {
            let wake = self.next_wake();
            tokio::select! {
                biased;
                () = &mut stop => break,
                Some(()) = refresh.recv() => self.ask_all(),
                event = incoming.recv() => match event {
                    Some(event) => self.incoming(event),
                    None => break,
                },
                report = inbox.recv() => if let Some(report) = report { self.report(report) },
                () = sleep_until(wake, self.clock.now()) => self.tick(),
            }
            self.settle();
        }
        info!("hopd ends; leases go on and are taken over by the next hopd");
        if let Err(error) = self.journal.flush().await {
            error!("the journal is not on disk: {error}");
        }
        if let Err(error) = self.accounting.record([]).durable().await {
            error!("the accounting is not on disk: {error}");
        }
    }

    fn next_wake(&self) -> Option<Timestamp> {
        let own = self.due.first().map(|(at, _)| *at);
        [own, self.core.next_wake()].into_iter().flatten().min()
    }

    fn tick(&mut self) {
        let now = self.clock.now();
        while let Some((at, due)) = self.due.first().cloned() {
            if at > now {
                break;
            }
            self.due.pop_first();
            match due {
                Due::Look => self.look(),
                Due::Facts => self.ask_facts(),
                Due::Limits => self.ask_limits(),
                Due::Shares => self.ask_shares(),
                Due::Submit => {
                    let acts = self.desk.submit_wanted(now);
                    self.act(acts);
                }
                Due::Grace => self.grace_over(),
                Due::ReplicaAway(id) => self.replica_away(&id),
                Due::ParkAnswer => self.parks_overdue(now),
            }
        }
        self.todo.push_back(Input::Tick);
    }

    /// Hands what is to do to the core until nothing is left.
    fn settle(&mut self) {
        while let Some(input) = self.todo.pop_front() {
            let mut out = Vec::new();
            debug!(?input, "input");
            self.core.handle(input, self.clock.now(), &mut out);
            self.carry_out(out);
        }
    }

    // --- what the core decided ---

    fn carry_out(&mut self, outputs: Vec<Output>) {
        let mut entries = Vec::new();
        let mut rows = Vec::new();
        let mut rest = Vec::new();
        for output in outputs {
            match output {
                Output::Journal(entry) => {
                    entries.push((BookKey::Core(entry.key), entry.value.map(BookValue::Core)))
                }
                Output::Record(record) => rows.extend(self.books.enter(record)),
                other => rest.push(other),
            }
        }
        if !entries.is_empty() {
            // Not waited for: see docs/operations.md, "What a crash can lose".
            drop(self.journal.post(entries.iter().map(|(k, v)| (k, v.as_ref()))));
        }
        if !rows.is_empty() {
            drop(self.accounting.record(rows));
        }
        for output in rest {
            debug!(?output, "output");
            self.carry_out_one(output);
        }
    }

    fn carry_out_one(&mut self, output: Output) {
        match output {
            Output::StartLease(start) => self.start_lease(start),
            Output::EndLease {
                lease,
                pilot,
                cause,
                grace,
            } => {
                let term = self.term;
                self.order(
                    pilot,
                    Order::EndLease {
                        term,
                        lease,
                        cause,
                        grace,
                    },
                );
            }
            Output::EndAcknowledged { lease, pilot } => {
                self.handovers.remove(&lease);
                self.parks.over(lease);
                self.order(
                    pilot,
                    Order::EndAcknowledged {
                        term: self.term,
                        lease,
                    },
                );
            }
            Output::DrainPilot { pilot } => {
                self.desk.drains(pilot);
                self.order(pilot, Order::Drain { term: self.term });
            }
            Output::SubmitPilot {
                ticket,
                pool,
                partition,
                node,
                gpus,
            } => {
                let wish = Wish {
                    pool,
                    partition,
                    node,
                    gpus,
                };
                let acts = self.desk.want(ticket, wish, self.clock.now());
                self.act(acts);
            }
            Output::CancelPilot { ticket, job } => {
                let acts = self.desk.cancel(ticket, job);
                self.act(acts);
            }
            Output::Granted { .. } => self.granted(output),
            Output::Queued {
                kernel,
                cell,
                position,
                reason,
                estimate,
            } => {
                let event = Event::Queued {
                    kernel: kernel.clone(),
                    cell,
                    position,
                    reason: reason.to_string(),
                    estimate,
                };
                self.tell(&kernel, event);
            }
            Output::Refused { kernel, cell, reason } => {
                let reason = reason.to_string();
                self.tell(&kernel.clone(), Event::Refused { kernel, cell, reason });
            }
            Output::Revoked {
                kernel,
                lease,
                cause,
                reason,
                grace,
            } => {
                let event = Event::Revoked {
                    kernel: kernel.clone(),
                    lease,
                    cause,
                    reason,
                    grace,
                };
                self.tell(&kernel, event);
            }
            Output::CloseKernel { kernel, reason } => {
                self.tell(&kernel.clone(), Event::Close { kernel, reason });
            }
            Output::Place { kernel, seats } => self.placed(&kernel, Ok(seats)),
            Output::PlaceRefused { kernel, reason } => self.placed(&kernel, Err(reason.to_string())),
            Output::Park {
                kernel,
                lease,
                cell,
                reason,
            } => self.ask_to_park(kernel, lease, cell, reason),
            Output::Migrate { kernel, .. } => {
                // No pool asks for migration: a kernel has one replica, which can't be moved with its variables
                // (views::core_pool). So this is a defect to be seen.
                warn!(%kernel, "a migration was asked for that this hopd can't carry out");
            }
            Output::Forget { kernel } => {
                self.listeners.remove(&kernel);
                if self.owners.remove(&kernel).is_some() {
                    drop(self.journal.post([(&BookKey::Owner(kernel), None)]));
                }
            }
            Output::Record(_) | Output::Journal(_) => {}
        }
    }

    fn start_lease(&mut self, start: hop_core::StartLease) {
        let replica = ReplicaId {
            kernel: start.kernel.clone(),
            incarnation: start.executor,
        };
        let problem = match (self.replicas.get(&replica), self.agents.get(&start.pilot)) {
            (None, _) => "its executor is not connected",
            (_, None) => "its agent is not connected",
            (Some(executor), Some(_)) => {
                let order = StartLease {
                    term: self.term,
                    lease: start.lease,
                    step_name: access::step_name(&start.user, &start.kernel, &start.cell),
                    user: start.user,
                    kernel: start.kernel,
                    cell: start.cell,
                    executor: executor.seat.clone(),
                    gpus: start.gpus,
                    gpu_type: start.gpu_type,
                    cpus: start.cpus,
                };
                self.order(start.pilot, Order::StartLease(order));
                return;
            }
        };
        self.todo.push_back(Input::LeaseFailed {
            lease: start.lease,
            pilot: start.pilot,
            reason: problem.into(),
            device_lost: false,
        });
    }

    /// Asks the replica that runs the cell, if it is one that can. Should its connection break it is asked when it is back.
    fn ask_to_park(&mut self, kernel: KernelId, lease: LeaseId, cell: CellId, reason: String) {
        let incarnation = self.core.lease(lease).map(|l| l.executor);
        let replica = incarnation.map(|incarnation| ReplicaId {
            kernel: kernel.clone(),
            incarnation,
        });
        let known = replica.and_then(|id| self.replicas.get(&id).filter(|r| r.parks).map(|r| (id, r.conn)));
        let Some((id, conn)) = known else {
            info!(%kernel, %lease, "its replica can't park a cell");
            self.todo.push_back(Input::ParkRefused { kernel, lease });
            return;
        };
        info!(replica = %id, %lease, %cell, "a cell is asked to park: {reason}");
        let now = self.clock.now();
        let event = Event::Park {
            kernel,
            lease,
            cell,
            reason,
        };
        self.parks.ask(lease, id, event.clone(), now);
        self.due.insert((now + parks::PATIENCE, Due::ParkAnswer));
        if let Some(conn) = conn {
            self.send(conn, 0, Response::Event(event));
        }
    }

    fn parks_overdue(&mut self, now: Timestamp) {
        for (lease, replica) in self.parks.overdue(now) {
            warn!(%lease, %replica, "it has not said whether its cell parks: taken as a no");
            let kernel = replica.kernel;
            self.todo.push_back(Input::ParkRefused { kernel, lease });
        }
    }

    fn granted(&mut self, output: Output) {
        let Output::Granted {
            kernel,
            cell,
            lease,
            node,
            lingering,
            waited,
            ..
        } = output
        else {
            return;
        };
        let Some(handover) = self.handovers.get(&lease).cloned() else {
            warn!(%lease, "a lease was granted without a handover");
            return;
        };
        let grant = Grant {
            lease,
            node,
            handover,
            waited,
            lingering,
        };
        self.tell(&kernel.clone(), Event::Granted { kernel, cell, grant });
    }

    fn placed(&mut self, kernel: &KernelId, seats: Result<Vec<hop_core::SeatPlan>, String>) {
        let Some(waiting) = self.placements.get_mut(kernel) else {
            return;
        };
        let Some((conn, id)) = waiting.pop_front() else {
            return;
        };
        if waiting.is_empty() {
            self.placements.remove(kernel);
        }
        if seats.is_ok() {
            if let Some(user) = self.core.owner(kernel).cloned() {
                self.owned_now(kernel, &user);
            }
            self.listen(conn, kernel);
        }
        let seat = &self.config.seat;
        let body = match seats {
            Ok(seats) => Response::Placement(Placement {
                seats: seats
                    .into_iter()
                    .map(|s| SeatPlan {
                        incarnation: s.incarnation,
                        partition: self.burst_nodes.get(&s.node).unwrap_or(&seat.partition).clone(),
                        node: s.node,
                        existing: s.existing,
                        mem_mib: s.mem_mib,
                        cpus: s.cpus,
                        time_limit_min: seat.time_limit_min,
                    })
                    .collect(),
            }),
            Err(reason) => Response::Refused(Refusal::Unavailable { reason }),
        };
        self.answer(conn, id, body);
    }

    fn act(&mut self, acts: Vec<Act>) {
        for act in acts {
            match act {
                Act::Tell(input) => self.todo.push_back(input),
                Act::Say(text) => warn!("{text}"),
                Act::Scancel(job) => {
                    let slurm = self.slurm.clone();
                    tokio::spawn(async move {
                        if let Err(reason) = slurm.scancel(job).await {
                            warn!(%job, "scancel failed: {reason}");
                        }
                    });
                }
                Act::Sbatch {
                    ticket,
                    wish,
                    exclude,
                } => {
                    info!(
                        ticket,
                        pool = %wish.pool,
                        partition = wish.partition,
                        node = wish.node.as_ref().map(NodeName::as_str),
                        gpus = wish.gpus,
                        "a pilot is submitted"
                    );
                    let (slurm, reports, stepmgr) = (self.slurm.clone(), self.reports.clone(), self.stepmgr);
                    tokio::spawn(async move {
                        let answer = slurm.sbatch(ticket, &wish, exclude, stepmgr).await;
                        let _ = reports.send(Report::Submitted { ticket, answer });
                    });
                }
            }
        }
        let now = self.clock.now();
        if let Some(at) = self.desk.next_wake(now) {
            self.due.insert((at, Due::Submit));
        }
    }

    fn order(&mut self, pilot: JobId, order: Order) {
        match self.agents.get(&pilot) {
            Some(conn) => self.send(*conn, 0, Response::Order(order)),
            // It hears of it when it reports again: the core compares.
            None => debug!(%pilot, "an order has no agent to go to"),
        }
    }

    fn tell(&mut self, kernel: &KernelId, event: Event) {
        let listeners: Vec<_> = self
            .listeners
            .get(kernel)
            .into_iter()
            .flatten()
            .copied()
            .collect();
        for conn in listeners {
            self.send(conn, 0, Response::Event(event.clone()));
        }
    }

    fn answer(&mut self, conn: ConnId, id: u64, body: Response) {
        // A pong is what keeps a quiet connection from looking dead to the caller.
        let always = matches!(body, Response::Refused(_) | Response::Pong);
        if id != 0 || always {
            self.send(conn, id, body);
        }
    }

    fn send(&mut self, conn: ConnId, id: u64, body: Response) {
        let Some(open) = self.conns.get(&conn) else { return };
        if open.outgoing.try_send(FromHopd { id, body }).is_err() {
            warn!(?conn, user = %open.caller.user, "a caller doesn't read: hung up");
            self.closed(conn);
        }
    }

    // --- connections ---

    fn incoming(&mut self, event: Incoming) {
        match event {
            Incoming::Opened {
                conn,
                caller,
                outgoing,
            } => {
                let open = Conn {
                    caller,
                    outgoing,
                    pilot: None,
                    replicas: BTreeSet::new(),
                    kernels: BTreeSet::new(),
                    held_up: None,
                };
                self.conns.insert(conn, open);
            }
            Incoming::Closed { conn } => self.closed(conn),
            Incoming::Message { conn, message } => self.message(conn, message),
        }
    }

    fn closed(&mut self, conn: ConnId) {
        let Some(open) = self.conns.remove(&conn) else {
            return;
        };
        let now = self.clock.now();
        for kernel in &open.kernels {
            self.unlisten(conn, kernel);
        }
        if let Some(pilot) = open.pilot.filter(|p| self.agents.get(p) == Some(&conn)) {
            self.agents.remove(&pilot);
            warn!(%pilot, "the agent's connection broke");
            self.todo.push_back(Input::PilotSilent { pilot });
            self.look_soon();
        }
        for id in open.replicas {
            if let Some(replica) = self.replicas.get_mut(&id).filter(|r| r.conn == Some(conn)) {
                replica.conn = None;
                self.due.insert((now + REPLICA_AWAY, Due::ReplicaAway(id)));
            }
        }
    }

    fn replica_away(&mut self, id: &ReplicaId) {
        if self.replicas.get(id).is_some_and(|r| r.conn.is_none()) {
            info!(replica = %id, "a replica did not come back");
            self.replicas.remove(id);
            self.tell_homes();
            self.todo.push_back(Input::ReplicaLost {
                kernel: id.kernel.clone(),
                incarnation: id.incarnation,
            });
        }
    }

    /// A kernel that was restarted has another replica. Those before it, whose connection is gone, are not waited for
    /// where their place was taken or nothing is lost by it: the next cell would be started in a process that is dead.
    /// One that was merely cut off comes back as if it were new.
    fn superseded_by(&mut self, new: &ReplicaId, seat: JobId) {
        let holds = |id: &ReplicaId| {
            let mut leases = self.core.leases().into_iter();
            leases.any(|l| l.kernel == id.kernel && l.executor == id.incarnation)
        };
        let others = self.replicas.iter().filter(|(id, r)| {
            id.kernel == new.kernel && id.incarnation < new.incarnation && r.conn.is_none()
        });
        let gone: Vec<_> = others
            .filter(|(id, r)| r.seat.job == seat || !holds(id))
            .map(|(id, _)| id.clone())
            .collect();
        for id in gone {
            self.replica_away(&id);
        }
    }

    /// A pilot is of most use where kernels are.
    fn tell_homes(&mut self) {
        let homes = self.replicas.values().map(|r| r.node.clone()).collect();
        self.desk.set_homes(homes);
    }

    /// Leases of an earlier `hopd` whose replicas have not come back.
    fn grace_over(&mut self) {
        for view in self.core.leases() {
            let executor = ReplicaId {
                kernel: view.kernel.clone(),
                incarnation: view.executor,
            };
            if !self.replicas.contains_key(&executor) {
                info!(lease = %view.lease, replica = %executor, "nobody has come back for this lease");
                self.todo.push_back(Input::ReleaseLease {
                    kernel: view.kernel,
                    lease: view.lease,
                });
            }
        }
    }

    fn message(&mut self, conn: ConnId, message: ToHopd) {
        let Some(open) = self.conns.get_mut(&conn) else {
            return;
        };
        let id = message.id;
        if open.held_up.is_some() {
            // An answer out of turn, since Slurm may keep the others waiting for longer than silence is borne. A caller
            // that asked by number wants to know that all before it was heard.
            if id == 0 && matches!(message.body, Request::Ping) {
                return self.answer(conn, id, Response::Pong);
            }
            let uid = open.caller.uid;
            let theirs = self.conns.values().filter(|c| c.caller.uid == uid);
            let waiting: usize = theirs.filter_map(|c| c.held_up.as_ref()).map(VecDeque::len).sum();
            if waiting >= HELD_UP {
                return self.answer(conn, id, access::too_many());
            }
            if let Some(held_up) = self.conns.get_mut(&conn).and_then(|c| c.held_up.as_mut()) {
                held_up.push_back(message);
            }
            return;
        }
        let access = Access {
            caller: open.caller.clone(),
            pilot: open.pilot,
        };
        match self.request(conn, &access, message) {
            Ok(Some(body)) => self.answer(conn, id, body),
            Ok(None) => {}
            Err(refusal) => {
                debug!(?conn, user = %access.caller.user, "refused: {refusal}");
                self.answer(conn, id, Response::Refused(refusal));
            }
        }
    }

    /// The answer to a request; none where it comes later or is an event.
    fn request(
        &mut self,
        conn: ConnId,
        access: &Access,
        message: ToHopd,
    ) -> Result<Option<Response>, Refusal> {
        access.role_may(&message.body)?;
        let user = access.caller.user.clone();
        match message.body {
            Request::Ping => return Ok(Some(Response::Pong)),
            Request::PlaceKernel(place) => return self.place(conn, access, message.id, place),
            Request::CloseKernel { kernel } => {
                access.owns(self.owner_of(&kernel), &kernel)?;
                self.todo.push_back(Input::CloseKernel { kernel });
            }
            Request::SeatUp { job, .. } => {
                if let Some(wait) = self.seat_is_callers(conn, access, job, &message)? {
                    return Ok(wait);
                }
                self.seat_up(&user, message.body);
            }
            Request::ReplicaUp(ref up) => {
                access::check_replica(access, up)?;
                access.owns(self.owner_of(&up.kernel), &up.kernel)?;
                self.pool_lends(&up.pool.clone().unwrap_or_else(|| self.default_pool()))?;
                if let Some(wait) = self.seat_is_callers(conn, access, up.seat.job, &message)? {
                    return Ok(wait);
                }
                let Request::ReplicaUp(up) = message.body else {
                    unreachable!("matched above")
                };
                self.is_in_its_seat(&up)?;
                self.within_quota(access, &up)?;
                self.replica_up(conn, &user, up);
            }
            Request::Submit {
                kernel,
                cell,
                need,
                class,
            } => {
                self.speaks_for(conn, &kernel)?;
                access::check_name("cell id", cell.as_str())?;
                access::check_need(&need)?;
                self.may_wait(access, 1)?;
                self.todo.push_back(Input::Submit {
                    kernel,
                    cell,
                    need,
                    class,
                    print: 0,
                });
            }
            Request::CancelCell { kernel, cell } => {
                self.speaks_for(conn, &kernel)?;
                self.todo.push_back(Input::CancelCell { kernel, cell });
            }
            Request::CellEnded {
                kernel,
                cell,
                lease,
                outcome,
                ..
            } => {
                self.speaks_for(conn, &kernel)?;
                // What was asked of it is not asked of the lease's next cell.
                self.parks.over(lease);
                self.todo.push_back(Input::CellEnded {
                    kernel,
                    cell,
                    lease,
                    outcome,
                });
            }
            Request::ReleaseLease { kernel, lease } => {
                self.speaks_for(conn, &kernel)?;
                self.todo.push_back(Input::ReleaseLease { kernel, lease });
            }
            Request::CellParked { kernel, cell, lease } => {
                self.speaks_for(conn, &kernel)?;
                info!(%kernel, %lease, %cell, "a cell is parked");
                self.parks.over(lease);
                self.todo.push_back(Input::CellParked { kernel, cell, lease });
            }
            Request::ParkRefused {
                kernel,
                lease,
                reason,
            } => {
                self.speaks_for(conn, &kernel)?;
                info!(%kernel, %lease, "a cell can't be parked: {}", access::printable(&reason, 500));
                self.parks.over(lease);
                self.todo.push_back(Input::ParkRefused { kernel, lease });
            }
            Request::AgentUp(up) => self.agent_up(conn, up)?,
            Request::LeaseStarted { lease, handover } => {
                let pilot = access.pilot()?;
                self.lease_started(pilot, lease, handover);
            }
            Request::LeaseFailed {
                lease,
                reason,
                device_lost,
            } => {
                let pilot = access.pilot()?;
                warn!(%lease, %pilot, "a lease did not start: {reason}");
                self.todo.push_back(Input::LeaseFailed {
                    lease,
                    pilot,
                    reason,
                    device_lost,
                });
            }
            Request::SlotBlocked { index, reason } => {
                let pilot = access.pilot()?;
                warn!(%pilot, gpu = %index, "a GPU can't be lent any more: {reason}");
                self.todo.push_back(Input::SlotBlocked {
                    pilot,
                    index,
                    reason,
                    lost: true,
                });
            }
            Request::LeaseEnded { lease, end } => {
                let pilot = access.pilot()?;
                self.todo.push_back(Input::LeaseEnded {
                    lease,
                    pilot,
                    cause: end.cause,
                    clean: end.clean,
                    detail: end.detail,
                });
            }
            Request::Acct(_) | Request::Queue(_) | Request::Info | Request::Explain { .. }
                if self.does_not_read(conn) =>
            {
                return Ok(Some(access::too_many()));
            }
            Request::Acct(query) => return self.acct(conn, access, message.id, query),
            Request::Queue(query) => {
                let users = access.may_see(query.all_users, &query.users)?;
                let rows = views::queue(&self.core, users.as_deref(), self.clock.now());
                let expected = self.expected(access, &query.expect)?;
                return Ok(Some(Response::Queue { rows, expected }));
            }
            Request::Info => return Ok(Some(Response::Info(self.info()))),
            Request::Explain { kernel, cell } => {
                access.owns(self.owner_of(&kernel), &kernel)?;
                return views::explain(&self.core, kernel, cell).map(|e| Some(Response::Explanation(e)));
            }
            Request::Cancel(target) => {
                let target = views::cancel_target(&self.core, target, |kernel| {
                    access.owns(self.owner_of(kernel), kernel)
                })?;
                self.todo.push_back(Input::Cancel { target, by: user });
            }
        }
        Ok(Some(Response::Done))
    }

    fn owner_of(&self, kernel: &KernelId) -> Option<&UserName> {
        self.owners.get(kernel).or_else(|| self.core.owner(kernel))
    }

    fn owned_now(&mut self, kernel: &KernelId, user: &UserName) {
        if self.owners.contains_key(kernel) {
            return;
        }
        self.owners.insert(kernel.clone(), user.clone());
        let (key, value) = (BookKey::Owner(kernel.clone()), BookValue::Owner(user.clone()));
        drop(self.journal.post([(&key, Some(&value))]));
    }

    fn unlisten(&mut self, conn: ConnId, kernel: &KernelId) {
        if let Some(listeners) = self.listeners.get_mut(kernel) {
            listeners.remove(&conn);
            if listeners.is_empty() {
                self.listeners.remove(kernel);
            }
        }
    }

    fn listen(&mut self, conn: ConnId, kernel: &KernelId) {
        if !self.conns.contains_key(&conn) {
            return;
        }
        self.listeners.entry(kernel.clone()).or_default().insert(conn);
        if let Some(open) = self.conns.get_mut(&conn) {
            open.kernels.insert(kernel.clone());
        }
    }

    /// Only a registered replica speaks of a kernel's cells.
    fn speaks_for(&self, conn: ConnId, kernel: &KernelId) -> Result<(), Refusal> {
        let registered = self
            .conns
            .get(&conn)
            .is_some_and(|c| c.replicas.iter().any(|r| r.kernel == *kernel));
        if registered {
            return Ok(());
        }
        Err(Refusal::Forbidden {
            reason: format!("this connection has registered no replica of kernel {kernel}"),
        })
    }

    fn pool_lends(&self, pool: &PoolName) -> Result<(), Refusal> {
        if !self.config.pool.contains_key(pool) {
            return Err(Refusal::NotFound {
                what: format!("pool {pool}"),
            });
        }
        match self.desk.refusal(pool) {
            Some(why) => Err(Refusal::Unavailable {
                reason: format!("pool {pool} is not lent: {why}"),
            }),
            None => Ok(()),
        }
    }

    fn default_pool(&self) -> PoolName {
        let pools = &self.config.pool;
        let main = PoolName::from("main");
        if pools.contains_key(&main) {
            return main;
        }
        pools.keys().next().cloned().unwrap_or(main)
    }

    fn place(
        &mut self,
        conn: ConnId,
        access: &Access,
        id: u64,
        place: hop_api::message::PlaceKernel,
    ) -> Result<Option<Response>, Refusal> {
        let user = &access.caller.user;
        access::check_place(&place)?;
        let owner = self.owner_of(&place.kernel);
        if owner.is_some_and(|o| o != user) {
            return Err(access::not_yours(&place.kernel));
        }
        self.may_open_kernel(access, &place.kernel)?;
        let pool = place.pool.clone().unwrap_or_else(|| self.default_pool());
        self.pool_lends(&pool)?;
        self.placements
            .entry(place.kernel.clone())
            .or_default()
            .push_back((conn, id));
        let seat = &self.config.seat;
        self.todo.push_back(Input::PlaceKernel(hop_core::PlaceKernel {
            kernel: place.kernel,
            user: user.clone(),
            // Slurm says it once a seat is there: who is charged, and so which limits hold, is not the asker's choice.
            account: None,
            pool,
            replicas: place.replicas.clamp(1, 5),
            default_need: place.default_need,
            mem_mib: if place.mem_mib == 0 {
                seat.mem_mib
            } else {
                place.mem_mib
            },
            cpus: if place.cpus == 0 { seat.cpus } else { place.cpus },
            avoid: place.avoid,
            name: String::new(),
        }));
        Ok(None)
    }

    // --- quotas ---

    /// Whether the user may have one kernel more; their own ones of which nothing is left make room for it.
    fn may_open_kernel(&mut self, access: &Access, kernel: &KernelId) -> Result<(), Refusal> {
        if self.core.owner(kernel).is_some() || access.caller.operator {
            return Ok(());
        }
        let (user, most) = (&access.caller.user, self.config.quota.kernels);
        let mut out = Vec::new();
        let room = self.core.make_room_for_kernel(user, most, &mut out);
        self.carry_out(out);
        if room {
            Ok(())
        } else {
            Err(access::over_quota(user, "kernels open", most))
        }
    }

    /// Whether so many cells of the user's more may wait. What of theirs is on its way to the core counts too.
    fn may_wait(&self, access: &Access, more: usize) -> Result<(), Refusal> {
        let (user, most) = (&access.caller.user, self.config.quota.cells);
        if !access.caller.operator && self.core.waiting_of(user) + more > most {
            return Err(access::over_quota(user, "cells waiting", most));
        }
        Ok(())
    }

    fn within_quota(&mut self, access: &Access, up: &ReplicaUp) -> Result<(), Refusal> {
        self.may_open_kernel(access, &up.kernel)?;
        // Those that it has asked for before are asked for again.
        let known = self.core.waiting_in(&up.kernel);
        self.may_wait(access, up.waiting.len().saturating_sub(known))?;
        if self.core.other_replicas(&up.kernel, up.incarnation) >= REPLICAS {
            return Err(access::over_quota(
                &access.caller.user,
                "replicas of this kernel",
                REPLICAS,
            ));
        }
        Ok(())
    }

    /// A replica is where its seat is. While Slurm can't be asked, any node that is known will do.
    fn is_in_its_seat(&self, up: &ReplicaUp) -> Result<(), Refusal> {
        let nodes = self.seats.get(&up.seat.job).map_or(&[][..], |seat| &seat.nodes);
        let right = match nodes {
            [] => self.core.knows_node(&up.node),
            nodes => nodes.contains(&up.node),
        };
        if right {
            Ok(())
        } else {
            Err(access::not_its_node(up.seat.job, &up.node))
        }
    }

    /// Answers pile up: the caller asks and doesn't read.
    fn does_not_read(&self, conn: ConnId) -> bool {
        let queue = self.conns.get(&conn).map(|c| &c.outgoing);
        queue.is_some_and(|q| q.max_capacity() - q.capacity() >= UNREAD)
    }

    /// Asks Slurm once whose job a seat is. Some: the request waits for that, or was answered.
    #[expect(
        clippy::option_option,
        reason = "whether it waits, and what to answer meanwhile"
    )]
    fn seat_is_callers(
        &mut self,
        conn: ConnId,
        access: &Access,
        job: JobId,
        message: &ToHopd,
    ) -> Result<Option<Option<Response>>, Refusal> {
        match self.seats.get(&job) {
            Some(seat) if seat.user == access.caller.user => Ok(None),
            Some(_) => Err(access::not_your_seat(job)),
            None => {
                let (slurm, reports) = (self.slurm.clone(), self.reports.clone());
                if let Some(open) = self.conns.get_mut(&conn) {
                    open.held_up = Some(VecDeque::new());
                }
                let message = Box::new(ToHopd {
                    id: message.id,
                    body: message.body.clone(),
                });
                tokio::spawn(async move {
                    let answer = slurm.owner(job).await;
                    let _ = reports.send(Report::SeatOwner {
                        conn,
                        message,
                        job,
                        answer,
                    });
                });
                Ok(Some(None))
            }
        }
    }

    fn seat_owner(
        &mut self,
        conn: ConnId,
        message: ToHopd,
        job: JobId,
        answer: Result<Option<Owner>, String>,
    ) {
        let Some(open) = self.conns.get_mut(&conn) else {
            return;
        };
        let caller = open.caller.clone();
        let held_up = open.held_up.take().unwrap_or_default();
        let unknown = answer.is_err();
        let mut account = None;
        let mut nodes = Vec::new();
        let refusal = match answer {
            Ok(Some(owner)) if owner.uid == caller.uid && owner.lives => {
                account = owner.account;
                nodes = owner.nodes;
                None
            }
            Ok(Some(owner)) if owner.uid == caller.uid => Some(Refusal::Invalid {
                reason: format!("Slurm job {job} is over, it can be no seat"),
            }),
            Ok(_) => Some(access::not_your_seat(job)),
            Err(reason) => {
                // The plugin asks Slurm itself before it hands anything over: a seat that is somebody else's
                // gets nothing. Without this a kernel could not come back while slurmctld is away.
                warn!(%job, "whose seat this is can't be asked now: {reason}");
                None
            }
        };
        if let Some(refusal) = refusal {
            self.answer(conn, message.id, Response::Refused(refusal));
        } else {
            let seat = Seat {
                user: caller.user,
                account,
                nodes,
            };
            self.seats.insert(job, seat);
            self.message(conn, message);
            if unknown {
                self.seats.remove(&job);
            }
        }
        for message in held_up {
            self.message(conn, message);
        }
    }

    fn seat_up(&mut self, user: &UserName, request: Request) {
        let Request::SeatUp {
            job,
            node,
            mem_mib,
            cpus,
        } = request
        else {
            return;
        };
        self.todo.push_back(Input::SeatUp {
            job,
            user: user.clone(),
            node,
            mem_mib,
            cpus,
        });
    }

    fn replica_up(&mut self, conn: ConnId, user: &UserName, up: ReplicaUp) {
        let id = ReplicaId {
            kernel: up.kernel.clone(),
            incarnation: up.incarnation,
        };
        info!(replica = %id, %user, node = %up.node, seat = %up.seat.job, "a replica is up");
        self.owned_now(&up.kernel, user);
        self.superseded_by(&id, up.seat.job);
        let replica = Replica {
            conn: Some(conn),
            seat: up.seat.clone(),
            node: up.node.clone(),
            parks: up.parks,
        };
        if let Some(before) = self.replicas.insert(id.clone(), replica)
            && let Some(old) = before.conn.filter(|c| *c != conn)
        {
            if let Some(open) = self.conns.get_mut(&old) {
                open.replicas.remove(&id);
            }
            self.unlisten(old, &id.kernel);
        }
        self.listen(conn, &id.kernel);
        self.tell_homes();
        if let Some(parked) = &up.parked {
            self.parks.over(parked.lease);
        }
        for event in self.parks.of(&id) {
            self.send(conn, 0, Response::Event(event));
        }
        if let Some(open) = self.conns.get_mut(&conn) {
            open.replicas.insert(id);
        }
        let pool = up.pool.unwrap_or_else(|| self.default_pool());
        // Slurm's word on who is charged goes before the kernel's own.
        let account = self.seats.get(&up.seat.job).and_then(|seat| seat.account.clone());
        self.todo.push_back(Input::ReplicaUp(hop_core::ReplicaUp {
            kernel: up.kernel,
            incarnation: up.incarnation,
            user: user.clone(),
            account,
            pool,
            node: up.node,
            seat: up.seat.job,
            name: access::printable(&up.name, 200),
            holds: up.holds,
            waiting: up
                .waiting
                .into_iter()
                .map(|(cell, need, class)| hop_core::WaitingCell { cell, need, class })
                .collect(),
            parked: up.parked.map(|p| hop_core::ParkedCell {
                cell: p.cell,
                lease: p.lease,
                ran: p.ran,
            }),
        }));
    }

    // --- agents ---

    fn agent_up(&mut self, conn: ConnId, up: AgentUp) -> Result<(), Refusal> {
        if up.term > self.term {
            return Err(Refusal::Forbidden {
                reason: format!(
                    "node {} obeys term {}, this hopd is of term {}",
                    up.node, up.term, self.term
                ),
            });
        }
        if !self.config.pool.contains_key(&up.pool) {
            return Err(Refusal::NotFound {
                what: format!("pool {}", up.pool),
            });
        }
        info!(pilot = %up.pilot, node = %up.node, leases = up.leases.len(), ended = up.ended.len(), "an agent is up");
        if let Some(open) = self.conns.get_mut(&conn) {
            open.pilot = Some(up.pilot);
        }
        self.agents.insert(up.pilot, conn);
        let known = self.core.pilots().iter().any(|p| p.pilot == up.pilot);
        let acts = self.desk.agent_up(up.pilot, &up.pool, known);
        self.act(acts);
        for live in &up.leases {
            self.books.step(live.lease, live.handover.step);
            self.handovers.insert(live.lease, live.handover.clone());
        }
        self.todo.push_back(Input::PilotUp(views::pilot_up(up)));
        Ok(())
    }

    fn lease_started(&mut self, pilot: JobId, lease: LeaseId, handover: Handover) {
        info!(%lease, %pilot, step = handover.step, "a lease has started");
        self.books.step(lease, handover.step);
        let devices = handover.devices.iter().map(|d| d.index).collect();
        self.handovers.insert(lease, handover);
        self.todo.push_back(Input::LeaseStarted {
            lease,
            pilot,
            devices,
        });
    }

    // --- questions ---

    fn acct(
        &mut self,
        conn: ConnId,
        access: &Access,
        id: u64,
        mut query: AcctQuery,
    ) -> Result<Option<Response>, Refusal> {
        let all = query.all_users || query.visible && access.caller.operator;
        match access.may_see(all, &query.users)? {
            Some(users) => {
                query.all_users = false;
                query.users = users;
            }
            None => query.all_users = true,
        }
        let now = self.clock.now();
        let live = views::live_leases(&self.core);
        let accounting = self.accounting.clone();
        // Rows that are still on their way to the disk belong to the answer.
        let flushed = accounting.record([]);
        let Some(outgoing) = self.conns.get(&conn).map(|c| c.outgoing.clone()) else {
            return Ok(None);
        };
        let uid = access.caller.uid;
        let open = self.asking.entry(uid).or_default();
        if *open >= ACCT_OPEN {
            return Ok(Some(access::too_many()));
        }
        *open += 1;
        let reports = self.reports.clone();
        tokio::spawn(async move {
            let _ = tokio::time::timeout(Duration::from_secs(5), flushed.durable()).await;
            let read = tokio::task::spawn_blocking(move || accounting.query(&query, now)).await;
            let body = match read {
                Ok(Ok(mut rows)) => {
                    rows.truncate(ACCT_ROWS);
                    views::freshen(&mut rows, &live, now);
                    Response::Acct { rows }
                }
                Ok(Err(error)) => unreadable(&error.to_string()),
                Err(error) => unreadable(&error.to_string()),
            };
            // Never waits: who doesn't read has room for a thousand more, and then none for this one either.
            let _ = outgoing.try_send(FromHopd { id, body });
            let _ = reports.send(Report::Answered { uid });
        });
        Ok(None)
    }

    /// What these cells would wait if the caller submitted them now.
    fn expected(&mut self, access: &Access, cells: &[Expect]) -> Result<Vec<Option<Span>>, Refusal> {
        access::check_expect(cells)?;
        if cells.is_empty() {
            return Ok(Vec::new());
        }
        // What the core knows is as old as the last thing that happened.
        let mut out = Vec::new();
        self.core.handle(Input::Tick, self.clock.now(), &mut out);
        self.carry_out(out);
        let user = &access.caller.user;
        let mine = |kernel: &KernelId| self.owner_of(kernel) == Some(user);
        let waits = cells.iter().map(|cell| {
            self.core.would_wait(&hop_core::Prospect {
                kernel: cell.kernel.clone().filter(mine),
                user: user.clone(),
                pool: cell.pool.clone().unwrap_or_else(|| self.default_pool()),
                default_need: cell.default_need.clone(),
                need: cell.need.clone(),
                class: cell.class,
            })
        });
        Ok(waits.collect())
    }

    fn info(&self) -> InfoReport {
        let mut problems: Vec<String> = self.problems.values().cloned().collect();
        for pool in self.config.pool.keys() {
            if let Some(why) = self.desk.refusal(pool) {
                problems.push(format!("Pool {pool} is not lent: {why}."));
            }
        }
        for (what, health) in [
            ("journal", self.journal.health()),
            ("accounting", self.accounting.health()),
        ] {
            if let Some(error) = health.error {
                problems.push(format!(
                    "The {what} is behind by {} entries: {error}.",
                    health.unsaved
                ));
            }
        }
        views::info(&self.core, &self.config, self.term, self.started, problems)
    }

    // --- Slurm ---

    fn report(&mut self, report: Report) {
        let now = self.clock.now();
        match report {
            Report::Submitted { ticket, answer } => {
                let acts = self.desk.submitted(ticket, answer, now);
                self.act(acts);
            }
            Report::Looked(answer) => self.looked(answer),
            Report::Facts(facts) => self.facts(*facts),
            Report::Answered { uid } => {
                if let Some(open) = self.asking.get_mut(&uid) {
                    *open -= 1;
                    if *open == 0 {
                        self.asking.remove(&uid);
                    }
                }
            }
            Report::Limits(limits) => self.limits(*limits),
            Report::Shares(shares) => self.shares(*shares),
            Report::SeatOwner {
                conn,
                message,
                job,
                answer,
            } => self.seat_owner(conn, *message, job, answer),
        }
    }

    fn look_soon(&mut self) {
        let soon = Span::from_millis(500).min(self.look_pause);
        self.look_in(soon);
    }

    /// There is one next look, whatever asked for it.
    fn look_in(&mut self, pause: Span) {
        self.due.retain(|(_, due)| *due != Due::Look);
        self.due.insert((self.clock.now() + pause, Due::Look));
    }

    /// One at a time: what two answers miss must have been missing for as long as the second took, and two that were
    /// asked before a job was submitted would both miss it. The answer to the one under way brings the next.
    fn look(&mut self) {
        if std::mem::replace(&mut self.looking, true) {
            return;
        }
        let users: HashSet<UserName> = self.seats.values().map(|seat| seat.user.clone()).collect();
        let (slurm, reports) = (self.slurm.clone(), self.reports.clone());
        tokio::spawn(async move {
            let answer = slurm.queue(users.into_iter().collect()).await;
            let _ = reports.send(Report::Looked(answer));
        });
    }

    fn looked(&mut self, answer: Result<Queue, String>) {
        self.looking = false;
        let now = self.clock.now();
        let usual = Span::from_secs(self.config.hopd.poll_s.into());
        match answer {
            Err(reason) => {
                self.look_pause = Span((self.look_pause.0 * 2).min(LOOK_LAST.0));
                if self
                    .problems
                    .insert("queue", format!("Slurm does not answer: {reason}."))
                    .is_none()
                {
                    warn!("Slurm's queue can't be read: {reason}; what runs goes on");
                }
                // With step managers leases start without slurmctld.
                let away = !self.stepmgr;
                self.todo.push_back(Input::SlurmAway { away });
            }
            Ok(queue) => {
                self.look_pause = usual;
                if self.problems.remove("queue").is_some() {
                    info!("Slurm answers again");
                }
                self.todo.push_back(Input::SlurmAway { away: false });
                let pilots: BTreeSet<JobId> = self.core.pilots().iter().map(|p| p.pilot).collect();
                self.say_what_pilots_wait_for(&queue.pilots);
                let acts = self.desk.looked(&queue.pilots, &pilots, now);
                self.act(acts);
                self.seats_gone(&queue.alive);
            }
        }
        self.look_in(self.look_pause);
    }

    /// A pilot that Slurm doesn't start is why cells wait: `hop info` says it.
    fn say_what_pilots_wait_for(&mut self, jobs: &[SeenJob]) {
        let waiting = jobs.iter().filter(|j| j.state == Seen::Waiting);
        let said: Vec<String> = waiting
            .filter(|j| !["", "None", "Priority"].contains(&j.reason.as_str()))
            .map(|j| format!("{} ({})", j.job, j.reason))
            .collect();
        if said.is_empty() {
            self.problems.remove("pilots");
        } else {
            let text = format!("Pilots wait in Slurm's queue: {}.", said.join(", "));
            self.problems.insert("pilots", text);
        }
    }

    fn seats_gone(&mut self, alive: &[JobId]) {
        let gone: Vec<_> = self
            .seats
            .keys()
            .filter(|j| !alive.contains(j))
            .copied()
            .collect();
        for job in gone {
            // Its user's jobs were not in this look if the seat was learnt meanwhile: ask again next time.
            if self
                .replicas
                .values()
                .any(|r| r.seat.job == job && r.conn.is_some())
            {
                continue;
            }
            self.seats.remove(&job);
            self.todo.push_back(Input::SeatGone { job });
            let lost: Vec<_> = self
                .replicas
                .iter()
                .filter(|(_, r)| r.seat.job == job)
                .map(|(id, _)| id.clone())
                .collect();
            for id in lost {
                self.replica_away(&id);
            }
        }
    }

    fn refresh(&self) -> Span {
        Span::from_secs(self.config.hopd.refresh_s.into())
    }

    /// Asks Slurm for limits before anybody is served, where no earlier `hopd` has written down what they are. After
    /// `patience` it goes on without.
    pub(crate) async fn learn_limits(&mut self, patience: Duration) {
        if self.limits.is_some() {
            return;
        }
        let asked = tokio::time::timeout(patience, self.slurm.limits()).await;
        self.limits(asked.unwrap_or_else(|_| Err("no answer".to_owned())));
        self.due.retain(|(_, due)| *due != Due::Limits);
        let next = self.clock.now()
            + if self.limits.is_some() {
                self.refresh()
            } else {
                SOON
            };
        self.due.insert((next, Due::Limits));
    }

    fn ask_limits(&mut self) {
        let (slurm, reports) = (self.slurm.clone(), self.reports.clone());
        tokio::spawn(async move {
            let limits = slurm.limits().await;
            let _ = reports.send(Report::Limits(Box::new(limits)));
        });
    }

    fn limits(&mut self, answer: Result<Limits, String>) {
        let now = self.clock.now();
        self.due.retain(|(_, due)| *due != Due::Limits);
        match answer {
            Err(reason) => {
                let known = match &self.limits {
                    Some(_) => "those known last are kept",
                    None => "nobody is held to any until they can be read",
                };
                let text = format!("Slurm's limits can't be read ({known}): {reason}.");
                if self.problems.insert("limits", text.clone()).is_none() {
                    warn!("{text}");
                }
                self.due.insert((now + SOON, Due::Limits));
            }
            Ok(limits) => {
                if self.problems.remove("limits").is_some() {
                    info!("Slurm's limits can be read again");
                }
                self.due.insert((now + self.refresh(), Due::Limits));
                if self.limits.as_ref() == Some(&limits) {
                    return;
                }
                info!(limits = limits.limits.len(), "Slurm's limits have changed");
                let value = BookValue::Limits(Box::new(limits.clone()));
                drop(self.journal.post([(&BookKey::Limits, Some(&value))]));
                self.todo.push_back(Input::Limits(limits.clone()));
                self.limits = Some(limits);
            }
        }
    }

    fn ask_shares(&mut self) {
        let (slurm, reports) = (self.slurm.clone(), self.reports.clone());
        tokio::spawn(async move {
            let shares = slurm.shares().await;
            let _ = reports.send(Report::Shares(Box::new(shares)));
        });
    }

    fn shares(&mut self, answer: Result<Shares, String>) {
        let next = match answer {
            Err(reason) => {
                let text = format!("Slurm's fair shares can't be read, those known last count: {reason}.");
                if self.problems.insert("shares", text.clone()).is_none() {
                    warn!("{text}");
                }
                SOON
            }
            Ok(shares) => {
                self.problems.remove("shares");
                self.todo.push_back(Input::Shares(shares));
                self.refresh()
            }
        };
        self.due.insert((self.clock.now() + next, Due::Shares));
    }

    fn ask_all(&mut self) {
        let asks = [Due::Facts, Due::Limits, Due::Shares];
        self.due.retain(|(_, due)| !asks.contains(due));
        self.due.extend(asks.map(|due| (self.clock.now(), due)));
    }

    fn ask_facts(&mut self) {
        let (slurm, reports) = (self.slurm.clone(), self.reports.clone());
        tokio::spawn(async move {
            let facts = slurm.facts().await;
            let _ = reports.send(Report::Facts(Box::new(facts)));
        });
    }

    fn facts(&mut self, facts: Result<Facts, String>) {
        let now = self.clock.now();
        match facts {
            Err(reason) => {
                warn!("Slurm's nodes and settings can't be read: {reason}");
                self.problems
                    .insert("facts", format!("Slurm's settings can't be read: {reason}."));
                self.due.insert((now + Span::from_secs(5), Due::Facts));
            }
            Ok(facts) => {
                self.problems.remove("facts");
                self.stepmgr = facts.stepmgr;
                self.todo.extend(facts.nodes.into_iter().map(Input::Node));
                self.burst_nodes = facts
                    .burst
                    .iter()
                    .map(|(node, partition)| (node.node.clone(), partition.clone()))
                    .collect();
                let burst = facts.burst.into_iter();
                self.todo
                    .extend(burst.map(|(facts, partition)| Input::BurstNode { facts, partition }));
                self.todo.extend(facts.offers.into_iter().map(Input::PoolOffers));
                self.todo.extend(
                    facts
                        .down
                        .into_iter()
                        .map(|node: NodeName| Input::NodeDown { node }),
                );
                let acts = self.desk.facts(facts.usable, facts.refused, now);
                self.act(acts);
                self.due.insert((now + self.refresh(), Due::Facts));
            }
        }
    }
}

fn unreadable(reason: &str) -> Response {
    Response::Refused(Refusal::Unavailable {
        reason: format!("the accounting can't be read: {reason}"),
    })
}

/// The journal lags behind memory by one write. So that no id is used twice after a crash, each term begins with
/// numbers of its own.
fn skip_ids(last: hop_core::journal::Counters, term: Term) -> Entry {
    const PER_TERM: u64 = 1_000_000;
    const LAG: u64 = 10_000;
    let skip = |next: u64| (next + LAG).max(term.0 * PER_TERM + 1);
    Entry {
        key: Key::Counters,
        value: Some(Value::Counters(hop_core::journal::Counters {
            next_lease: skip(last.next_lease),
            next_ticket: skip(last.next_ticket),
        })),
    }
}

async fn sleep_until(wake: Option<Timestamp>, now: Timestamp) {
    match wake {
        Some(at) => tokio::time::sleep(Duration::from_micros(at.since(now).0)).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
