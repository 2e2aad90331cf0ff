//! The owner task of the core: takes in every event and carries out the core's outputs.
//!
//! It decides nothing about leases itself. Its state is owned in parts: connections, the registry of kernels, records on
//! disk, what is known of Slurm, pilots as jobs. `requests` hears callers, `outputs` carries decisions out, `slurm_news`
//! takes in what Slurm says.

mod abandoned;
mod asked;
mod connections;
mod drains;
mod endings;
mod kept;
mod kernels;
mod munged;
mod outputs;
mod queries;
mod records;
mod registry;
mod replicas;
mod requests;
mod seats;
mod slurm_news;
mod starts;

pub(crate) use records::{HopJournal, JournalKey, JournalValue};

use crate::admission::Rules;
use crate::estimates::Estimates;
use crate::inbox::Inbox;
use crate::parks::Parks;
use crate::pilot_jobs::{Failure, PilotJobs, PilotRequest};
use crate::slurm::{Facts, Owner, Queue, SlurmSide};
use crate::state_dir::{IDS_PER_TERM, StateDir};
use crate::views;
use abandoned::Abandoned;
use connections::Connections;
use drains::Drains;
use endings::Endings;
use hop_api::config::Config;
use hop_api::message::{Handover, NodeStanding};
use hop_core::config::{Limits, Shares};
use hop_core::journal::{Entry, Key, Value};
use hop_core::{Core, Input};
use hop_store::Accounting;
use hop_words::clock::SteadyClock;
use hop_words::id::{JobId, LeaseId, PoolName, ReplicaId, Term};
use hop_words::time::{Span, Timestamp};
use kept::Kept;
use records::{Records, RowId};
use registry::Registry;
use seats::Seats;
use slurm_news::SlurmNews;
use starts::FailedStarts;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

/// The first look for old rows after a start, once returning replicas and agents have been heard.
const PRUNE_FIRST: Span = Span::from_secs(300);
const DAY: Span = Span::from_secs(24 * 3600);

/// A report to the scheduler's task from its own helpers.
#[derive(Debug)]
pub(crate) enum Report {
    Submitted {
        ticket: u64,
        answer: Result<JobId, Failure>,
    },
    Looked(Result<Queue, String>),
    Facts(Box<Result<Facts, String>>),
    Limits(Box<Result<Limits, String>>),
    Shares(Box<Result<Shares, String>>),
    /// The ends of these leases are on disk.
    Durable(Vec<(LeaseId, JobId)>),
    /// The accounting database has these versions of rows.
    Settled(Vec<(RowId, u64)>),
    /// A question about the accounting was answered.
    Answered {
        uid: u32,
    },
    /// Slurm was asked whose seat that is.
    SeatOwner {
        job: JobId,
        answer: Result<Option<Owner>, String>,
    },
    /// `munged` was asked for a credential.
    Munged(Result<(), String>),
}

/// Things that become due here and not in the core.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Look,
    Facts,
    Limits,
    Shares,
    Munged,
    Submit,
    /// After a start: a replica that has not come back by now is lost.
    Grace,
    /// After a start: a lease that no agent has reported by now is lost.
    Orphans,
    ReplicaAway(ReplicaId),
    /// A lease should have started.
    Start(LeaseId),
    /// A replica that was asked to park a cell should have answered.
    ParkAnswer,
    /// Old rows leave the accounting.
    Prune,
}

pub(crate) struct Scheduler {
    config: Config,
    term: Term,
    started: Timestamp,
    clock: SteadyClock,
    core: Core,
    /// Inputs that the core has not taken in yet.
    todo: VecDeque<Input>,
    connections: Connections,
    /// How the pilots' nodes stand.
    standings: HashMap<JobId, NodeStanding>,
    failed_starts: FailedStarts,
    /// The newest release of blocked GPUs that an operator asked for.
    released: Timestamp,
    registry: Registry,
    kept: Kept,
    abandoned: Abandoned,
    drains: Drains,
    endings: Endings,
    records: Records,
    seats: Seats,
    news: SlurmNews,
    pilot_jobs: PilotJobs,
    slurm: SlurmSide,
    handovers: HashMap<LeaseId, Handover>,
    parks: Parks,
    estimates: Estimates,
    due: BTreeSet<(Timestamp, Due)>,
    /// Set when the state directory's ownership is due for a check.
    looked_at_state: bool,
    reports: mpsc::UnboundedSender<Report>,
    inbox: Option<mpsc::UnboundedReceiver<Report>>,
}

/// State that an earlier `hopd` left in the journal.
struct Legacy {
    core: Vec<Entry>,
    registry: Registry,
    kept: Kept,
    seats: Seats,
    pilot_jobs: PilotJobs,
    limits: Option<Limits>,
    rules: Option<BTreeMap<PoolName, Rules>>,
    shares: Option<Shares>,
    rows: Vec<hop_api::message::AcctRow>,
}

impl Scheduler {
    /// Rebuilds everything from the journal.
    ///
    /// # Errors
    /// The accounting database can't be read, or an entry of the journal contradicts its key.
    pub(crate) fn new(
        config: Config,
        slurm: SlurmSide,
        journal: HopJournal,
        term: Term,
        entries: Vec<(JournalKey, JournalValue)>,
        accounting: Accounting,
    ) -> anyhow::Result<Self> {
        let clock = SteadyClock::new();
        let now = clock.now();
        let legacy = Legacy::read(entries, term)?;
        let (reports, inbox) = mpsc::unbounded_channel();
        let records = Records::open(
            journal,
            accounting,
            legacy.rows,
            config.quota.cells,
            reports.clone(),
            now,
        )?;
        let mut out = Vec::new();
        let core_config = hop_core::Config {
            journal: true,
            ..hop_core::Config::default()
        };
        let core = Core::restore(core_config, views::pools(&config), legacy.core, now, &mut out);
        let mut scheduler = Self {
            pilot_jobs: legacy.pilot_jobs.of(slurm.installation().clone()),
            slurm,
            term,
            started: now,
            core,
            todo: VecDeque::new(),
            connections: Connections::default(),
            standings: HashMap::new(),
            failed_starts: FailedStarts::default(),
            released: now,
            registry: legacy.registry,
            kept: legacy.kept,
            abandoned: Abandoned::default(),
            drains: Drains::default(),
            endings: Endings::default(),
            records,
            seats: legacy.seats,
            news: SlurmNews::new(
                Span::from_secs(config.hopd.poll_s.into()),
                legacy.limits,
                legacy.rules,
                legacy.shares,
            ),
            handovers: HashMap::new(),
            parks: Parks::default(),
            estimates: Estimates::default(),
            due: BTreeSet::new(),
            looked_at_state: false,
            reports,
            inbox: Some(inbox),
            clock,
            config,
        };
        scheduler
            .todo
            .extend(scheduler.news.limits.clone().map(Input::Limits));
        scheduler
            .todo
            .extend(scheduler.news.shares.clone().map(Input::Shares));
        scheduler.carry_out(out);
        for kernel in scheduler.registry.owned() {
            scheduler.forget_unknown(&kernel);
        }
        Ok(scheduler)
    }

    /// From now on callers are served: those of an earlier `hopd` have time to come back.
    fn begin(&mut self) {
        let now = self.clock.now();
        let grace = Span::from_secs(self.config.hopd.grace_s.into());
        let agents = hop_core::Config::default().silent_grace;
        self.due.extend([
            (now, Due::Look),
            (now, Due::Shares),
            (now, Due::Munged),
            (now + grace, Due::Grace),
            (now + agents + agents, Due::Orphans),
            (now + PRUNE_FIRST, Due::Prune),
        ]);
        for due in [Due::Facts, Due::Limits] {
            if self.due.iter().all(|(_, other)| *other != due) {
                self.due.insert((now, due));
            }
        }
    }

    /// Runs until `stop`; then everything is on disk. Each `refresh` has it ask Slurm for nodes, settings, limits and
    /// shares at once.
    ///
    /// # Errors
    /// Another `hopd` has taken over: why that is known. Nothing more is written, and nobody told.
    pub(crate) async fn run(
        mut self,
        incoming: &Inbox,
        mut refresh: tokio::signal::unix::Signal,
        state: &StateDir,
        stop: impl Future<Output = ()>,
    ) -> Result<(), String> {
        let mut inbox = self.inbox.take().expect("run is called once");
        tokio::pin!(stop);
        self.begin();
        loop {
            let wake = self.next_wake();
            tokio::select! {
                biased;
                () = &mut stop => break,
                Some(()) = refresh.recv() => self.ask_all(),
                // Reports go before callers, who may send without a pause.
                Some(report) = inbox.recv() => self.report(report),
                () = sleep_until(wake, self.clock.now()) => self.tick(),
                (uid, event) = incoming.next() => {
                    let began = Instant::now();
                    self.incoming(event);
                    self.settle();
                    incoming.spent(uid, began.elapsed());
                }
            }
            self.settle();
            if std::mem::take(&mut self.looked_at_state) {
                state
                    .superseded()
                    .or_else(|| self.records.superseded())
                    .map_or(Ok(()), Err)?;
            }
        }
        info!("hopd ends; leases go on and are taken over by the next hopd");
        self.records.flush().await;
        Ok(())
    }

    /// Removes rows past the site's retention time, on a thread of its own.
    fn prune(&mut self) {
        let now = self.clock.now();
        self.due.insert((now + DAY, Due::Prune));
        let days = u64::from(self.config.hopd.accounting_days);
        if days == 0 {
            return;
        }
        let before = Timestamp(now.0.saturating_sub(DAY.0.saturating_mul(days)));
        let accounting = self.records.accounting();
        tokio::task::spawn_blocking(move || match accounting.prune(before) {
            Ok(0) => {}
            Ok(leases) => info!(
                leases,
                "leases that ended more than {days} days ago left the accounting"
            ),
            Err(error) => warn!("old leases can't be removed from the accounting: {error}"),
        });
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
                Due::Look => {
                    self.looked_at_state = true;
                    self.look();
                }
                Due::Prune => self.prune(),
                Due::Facts => self.ask_facts(),
                Due::Limits => self.ask_limits(),
                Due::Shares => self.ask_shares(),
                Due::Munged => self.ask_munged(),
                Due::Submit => {
                    let acts = self.pilot_jobs.submit_wanted(now);
                    self.act(acts);
                }
                Due::Grace => self.grace_over(),
                Due::Orphans => self.orphans_over(),
                Due::ReplicaAway(id) => self.replica_away(&id),
                Due::Start(lease) => self.look_at_start(lease),
                Due::ParkAnswer => self.parks_overdue(now),
            }
        }
        self.todo.push_back(Input::Tick);
    }

    /// Hands what is to do to the core until nothing is left.
    fn settle(&mut self) {
        loop {
            while let Some(input) = self.todo.pop_front() {
                let mut out = Vec::new();
                debug!(?input, "input");
                let used = match &input {
                    Input::CellEnded { lease, .. } => Some(*lease),
                    _ => None,
                };
                self.core.handle(input, self.clock.now(), &mut out);
                self.carry_out(out);
                if let Some(lease) = used {
                    self.tell_kept(lease);
                }
            }
            match self.connections.next_deaf() {
                Some(conn) => self.closed(conn),
                None => return,
            }
        }
    }

    fn report(&mut self, report: Report) {
        match report {
            Report::Submitted { ticket, answer } => self.submitted(ticket, answer),
            Report::Looked(answer) => self.looked(answer),
            Report::Facts(facts) => self.facts(*facts),
            Report::Limits(limits) => self.limits(*limits),
            Report::Shares(shares) => self.shares(*shares),
            Report::Durable(ended) => self.acknowledge(ended),
            Report::Settled(rows) => self.records.settled(rows),
            Report::Answered { uid } => self.connections.acct_answered(uid),
            Report::SeatOwner { job, answer } => self.seat_owner(job, &answer),
            Report::Munged(answer) => self.munged(answer),
        }
    }
}

impl Legacy {
    fn read(entries: Vec<(JournalKey, JournalValue)>, term: Term) -> anyhow::Result<Self> {
        let mut legacy = Self {
            core: Vec::new(),
            registry: Registry::default(),
            kept: Kept::default(),
            seats: Seats::default(),
            pilot_jobs: PilotJobs::default(),
            limits: None,
            rules: None,
            shares: None,
            rows: Vec::new(),
        };
        let mut counters = hop_core::journal::Counters {
            next_lease: 1,
            next_ticket: 1,
        };
        for (key, value) in entries {
            match (key, value) {
                (JournalKey::Owner(kernel), JournalValue::Owner(user)) => {
                    legacy.registry.restore_owner(kernel, user);
                }
                (JournalKey::Tenure(kernel), JournalValue::Tenure(tenure)) => {
                    legacy.registry.restore_tenure(kernel, tenure);
                }
                (JournalKey::Asleep(kernel), JournalValue::Asleep(asleep)) => {
                    legacy.kept.falls_asleep(kernel, *asleep);
                }
                (JournalKey::Seat(job), JournalValue::Seat(seat)) => legacy.seats.restore(job, seat),
                (JournalKey::Limits, JournalValue::Limits(known)) => legacy.limits = Some(*known),
                (JournalKey::Rules, JournalValue::Rules(known)) => legacy.rules = Some(known),
                (JournalKey::Shares, JournalValue::Shares(known)) => legacy.shares = Some(*known),
                (JournalKey::Row(_), JournalValue::Row(row)) => legacy.rows.push(*row),
                (JournalKey::Core(key), JournalValue::Core(value)) => {
                    match (&key, &value) {
                        (Key::Ticket(n), Value::Ticket(t)) => legacy.ticket(*n, t),
                        (Key::Counters, Value::Counters(c)) => counters = *c,
                        _ => {}
                    }
                    legacy.core.push(Entry {
                        key,
                        value: Some(value),
                    });
                }
                (key, _) => anyhow::bail!("the journal's entry {key:?} has a value of another kind"),
            }
        }
        legacy.core.push(skip_ids(counters, term));
        Ok(legacy)
    }

    fn ticket(&mut self, number: u64, ticket: &hop_core::journal::TicketImage) {
        let request = PilotRequest {
            pool: ticket.pool.clone(),
            partition: ticket.partition.clone(),
            node: ticket.node.clone(),
            gpus: (ticket.gpus > 0).then_some(ticket.gpus),
            gpu_type: ticket.gpu_type.clone(),
        };
        self.pilot_jobs.restore(number, request, ticket.job);
    }
}

/// Counters of a new term. The journal lags behind memory by one write: each term begins with numbers of its own, and
/// no id is used twice after a crash.
fn skip_ids(last: hop_core::journal::Counters, term: Term) -> Entry {
    const LAG: u64 = 10_000;
    let skip = |next: u64| (next + LAG).max(term.0 * IDS_PER_TERM + 1);
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
