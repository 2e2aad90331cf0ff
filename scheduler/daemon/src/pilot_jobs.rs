//! The pilots as Slurm jobs: which to submit, adopt, give up and cancel.
//!
//! Pure: inputs are the core's requests, `sbatch`'s answers and `squeue`'s lists; outputs are actions. A pilot is known
//! by its job id. Pilots carry pool and ticket in their names and this state directory's id in their comments, so pilots
//! of an earlier `hopd` are found again, and those of another installation are left alone. A job once known stays
//! known, since an operator or a site's plugin may rename it. A job without an id is a pilot of ours only if it is
//! known: from the journal, or by its agent. While Slurm is away or refuses, a request
//! waits here with a growing pause; the core isn't told and doesn't repeat it.

use crate::installation::Installation;
use hop_core::Input;
use hop_words::id::{GpuType, JobId, NodeName, PoolName};
use hop_words::lease::EndCause;
use hop_words::time::{Span, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// squeue shows the first eight letters.
const NAME: &str = "hop-pool";
/// A pilot of an earlier `hopd` whose agent doesn't speak for this long is cancelled.
const ORPHAN: Span = Span::from_secs(60);
const FIRST_PAUSE: Span = Span::from_secs(2);
const LAST_PAUSE: Span = Span::from_secs(120);
/// A pilot whose job runs for this long without a report of the agent is given up. A booting node doesn't count:
/// the job is not RUNNING yet.
const MUTE: Span = Span::from_secs(300);
/// A node where a pilot's agent didn't come up is the last choice for this long.
const FAILED: Span = Span::from_secs(3600);
/// A pilot that Slurm has not started for this long is asked for on another node, if one has room.
const PASSED_OVER: Span = Span::from_secs(300);
/// A pilot that is missing from squeue stays known by its id for this long.
const KNOWN: Span = Span::from_secs(3600);
/// How often a job has to be missing from squeue before it counts as gone.
const MISSES: u8 = 2;

/// The name of a pilot's job.
pub(crate) fn job_name(pool: &PoolName, ticket: u64) -> String {
    format!("{NAME}.{pool}.{ticket}")
}

/// Slurm's words, which may be several lines.
fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    lines.join("; ").trim_end_matches('.').to_owned()
}

/// Whether a job of this name is a pilot.
pub(crate) fn is_pilot(name: &str) -> bool {
    parse_name(name).is_some()
}

/// Pilots that aren't cancelled, though this `hopd` knows nothing of them.
fn left_alone(of: &Option<Installation>, jobs: &[JobId]) -> String {
    let some: Vec<_> = jobs.iter().take(5).map(JobId::to_string).collect();
    let more = if jobs.len() > some.len() { ", ..." } else { "" };
    let (jobs, count) = (some.join(", "), jobs.len());
    match of {
        Some(id) => {
            format!("{count} pilots of another hopd are left alone (its id: {id}; jobs {jobs}{more}).")
        }
        None => format!(
            "{count} pilots without an id are left alone, since no agent of theirs has reported here: they are another \
             hopd's, or of an older release (jobs {jobs}{more}); cancel them if no other hopd runs."
        ),
    }
}

fn parse_name(name: &str) -> Option<(PoolName, u64)> {
    let rest = name.strip_prefix(NAME)?.strip_prefix('.')?;
    let (pool, ticket) = rest.rsplit_once('.')?;
    Some((pool.into(), ticket.parse().ok()?))
}

/// A job of the service account's in Slurm's queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SeenJob {
    pub job: JobId,
    pub name: String,
    pub node: Option<NodeName>,
    pub state: Seen,
    /// Slurm's word for why it waits.
    pub reason: String,
    /// The state directory whose `hopd` has submitted it, if it says so.
    pub installation: Option<Installation>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    Waiting,
    /// It has its nodes, which boot.
    Configuring,
    Running,
    Suspended,
    Over,
    /// Over, because its node failed.
    NodeFailed,
}

impl Seen {
    fn is_over(self) -> bool {
        matches!(self, Self::Over | Self::NodeFailed)
    }
}

/// A pilot that the core wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PilotRequest {
    pub pool: PoolName,
    /// A burst partition; none: the pool's own.
    pub partition: Option<String>,
    /// `None` means the node where the pilot is of most use.
    pub node: Option<NodeName>,
    /// GPUs of the pilot; `None` means the number of the pool's pilots.
    pub gpus: Option<u16>,
    /// Type of its GPUs; `None` means any of the pool's.
    pub gpu_type: Option<GpuType>,
}

/// What is wanted of Slurm.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Act {
    Sbatch {
        ticket: u64,
        request: PilotRequest,
        exclude: Vec<NodeName>,
    },
    Scancel(JobId),
    Tell(Input),
    Say(String),
}

/// A pilot whose agent hasn't spoken yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Coming {
    pub pool: PoolName,
    pub node: Option<NodeName>,
    pub job: Option<JobId>,
    /// Slurm's word for why the job waits; `None` if it runs, or isn't submitted.
    pub waits: Option<String>,
    /// Set if the job runs.
    pub mute: Option<Mute>,
    /// Why sbatch last gave no such job, if there is none yet.
    pub rejected: Option<String>,
}

/// A job that runs, and whose agent is not up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mute {
    pub since: Timestamp,
    pub down: Option<Down>,
}

/// Why the agent of a job that runs isn't up, by its last report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Down {
    /// `hopd` refused the report.
    Refused(String),
    CannotStart(String),
}

impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => write!(f, "its agent is refused: {why}"),
            Self::CannotStart(why) => write!(f, "its agent can't start: {why}"),
        }
    }
}

/// Why sbatch gave no job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Slurm may have accepted the job all the same.
    Uncertain(String),
    /// Slurm is away, or refused the job for now.
    No(String),
    /// Slurm refused the job for the node that it names.
    Unfit(String),
}

#[derive(Debug, Default)]
pub(crate) struct PilotJobs {
    installation: Installation,
    /// Pilots that are not ours, by their state directories' ids; `None` means that they bear none.
    others: BTreeMap<JobId, Option<Installation>>,
    tickets: BTreeMap<u64, Ticket>,
    pauses: BTreeMap<PoolName, Pause>,
    /// Why sbatch last gave no job, of each pool and partition asked for. A word against a single node is its ticket's.
    rejected: BTreeMap<Target, String>,
    /// Jobs of which the agent has reported, and isn't up.
    down: BTreeMap<JobId, Down>,
    /// Jobs of ours that nobody knows, and since when.
    orphans: BTreeMap<JobId, Timestamp>,
    missed: BTreeMap<JobId, u8>,
    /// Jobs known as pilots, whatever their names are now, and since when nothing was heard of each.
    ours: BTreeMap<JobId, Timestamp>,
    /// Possible nodes for pilots, of each pool.
    nodes: BTreeMap<PoolName, Vec<NodeName>>,
    /// The pool of each node that was ever in `nodes`.
    known: BTreeMap<NodeName, PoolName>,
    /// Slurm's reason for the wait of each of our jobs, by the last squeue.
    waits: BTreeMap<JobId, String>,
    /// Pools that must not be lent, with the reasons.
    refused: BTreeMap<PoolName, String>,
    /// Nodes of the pilots in the last squeue, and of the pilots that will come.
    places: BTreeMap<JobId, NodeName>,
    draining: BTreeSet<JobId>,
    /// Nodes where kernels are.
    homes: BTreeSet<NodeName>,
    /// Since when each ticket's job runs without an agent that is up.
    mute: BTreeMap<JobId, Timestamp>,
    /// Nodes on which the last pilot's agent did not come up.
    failed: BTreeMap<NodeName, Failed>,
    /// Nodes whose pilot Slurm refused or didn't start, and since when.
    passed_over: BTreeMap<NodeName, Timestamp>,
    /// Nodes where no whole pilot fits beside the jobs of others.
    full: BTreeSet<NodeName>,
    /// Whether squeue has answered once: until then existing pilots are unknown.
    looked: bool,
}

/// A pool, and the burst partition where one is asked for.
type Target = (PoolName, Option<String>);

#[derive(Debug)]
struct Ticket {
    request: PilotRequest,
    /// Node of the pilot, requested or chosen.
    node: Option<NodeName>,
    /// Node where its job was last seen to run. Slurm may forget the job before the next look.
    ran_on: Option<NodeName>,
    state: State,
    /// Since when its job waits, as seen.
    waits: Option<Timestamp>,
    /// Slurm's word against the node where it was last asked for.
    unfit: Option<String>,
    cancelled: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Wanted,
    Submitting,
    /// sbatch didn't say; looked for by name. Counts the looks.
    Uncertain(u8),
    Queued(JobId),
}

impl Ticket {
    fn target(&self) -> Target {
        (self.request.pool.clone(), self.request.partition.clone())
    }

    fn job(&self) -> Option<JobId> {
        match self.state {
            State::Queued(job) => Some(job),
            State::Wanted | State::Submitting | State::Uncertain(_) => None,
        }
    }

    fn is_to_be_submitted(&self) -> bool {
        !self.cancelled && self.job().is_none()
    }
}

#[derive(Debug)]
struct Failed {
    at: Timestamp,
    job: JobId,
    why: String,
}

#[derive(Debug, Clone, Copy)]
struct Pause {
    until: Timestamp,
    length: Span,
}

impl PilotJobs {
    /// The same as those of this state directory.
    pub(crate) fn of(self, installation: Installation) -> Self {
        Self { installation, ..self }
    }

    /// A ticket of an earlier `hopd`.
    pub(crate) fn restore(&mut self, ticket: u64, request: PilotRequest, job: Option<JobId>) {
        let state = job.map_or(State::Uncertain(0), State::Queued);
        self.insert(ticket, request, state);
    }

    fn insert(&mut self, ticket: u64, request: PilotRequest, state: State) {
        let node = request.node.clone();
        let entry = Ticket {
            request,
            node,
            ran_on: None,
            state,
            waits: None,
            unfit: None,
            cancelled: false,
        };
        self.tickets.insert(ticket, entry);
    }

    pub(crate) fn want(&mut self, ticket: u64, request: PilotRequest, now: Timestamp) -> Vec<Act> {
        self.insert(ticket, request, State::Wanted);
        self.submit_wanted(now)
    }

    /// The core doesn't want it any longer.
    pub(crate) fn cancel(&mut self, ticket: u64, job: Option<JobId>) -> Vec<Act> {
        let known = self.tickets.get_mut(&ticket);
        let job = match known {
            Some(Ticket {
                state: State::Submitting | State::Uncertain(_),
                cancelled,
                ..
            }) => {
                *cancelled = true;
                None
            }
            Some(Ticket {
                state: State::Queued(job),
                ..
            }) => {
                let job = *job;
                self.tickets.remove(&ticket);
                Some(job)
            }
            Some(_) => {
                self.tickets.remove(&ticket);
                None
            }
            None => job,
        };
        job.map(Act::Scancel).into_iter().collect()
    }

    pub(crate) fn submitted(
        &mut self,
        ticket: u64,
        answer: Result<JobId, Failure>,
        now: Timestamp,
    ) -> Vec<Act> {
        let Some(t) = self.tickets.get_mut(&ticket) else {
            return answer.ok().map(Act::Scancel).into_iter().collect();
        };
        let pool = t.request.pool.clone();
        match &answer {
            Ok(_) => drop(self.rejected.remove(&t.target())),
            Err(Failure::Unfit(_)) if t.node.is_some() => drop(self.rejected.remove(&t.target())),
            Err(Failure::Uncertain(why) | Failure::No(why) | Failure::Unfit(why)) => {
                self.rejected.insert(t.target(), one_line(why));
            }
        }
        t.unfit = None;
        match answer {
            Ok(job) if t.cancelled => {
                self.tickets.remove(&ticket);
                vec![Act::Scancel(job)]
            }
            Ok(job) => {
                t.state = State::Queued(job);
                if let Some(node) = t.node.clone() {
                    self.places.insert(job, node);
                }
                vec![Act::Tell(Input::PilotQueued { ticket, job })]
            }
            Err(Failure::Unfit(reason)) if t.node.is_some() => self.unfit(ticket, reason, now),
            Err(Failure::Uncertain(reason)) => {
                t.state = State::Uncertain(0);
                self.try_later(&pool, &reason, now)
            }
            Err(Failure::No(reason) | Failure::Unfit(reason)) => {
                t.state = State::Wanted;
                t.node = t.request.node.clone();
                if t.cancelled {
                    self.tickets.remove(&ticket);
                }
                self.try_later(&pool, &reason, now)
            }
        }
    }

    fn try_later(&mut self, pool: &PoolName, reason: &str, now: Timestamp) -> Vec<Act> {
        let length = self.pause(pool, now);
        vec![Act::Say(format!(
            "no pilot for pool {pool}: {reason}; the next try is in {:.0} s",
            length.as_secs_f64()
        ))]
    }

    /// Slurm can never start the pilot on its node. Another node is tried, at once if one was not tried lately. The core
    /// chooses it where the core chose the first.
    fn unfit(&mut self, ticket: u64, reason: String, now: Timestamp) -> Vec<Act> {
        let Some(mut t) = self.tickets.remove(&ticket) else {
            return Vec::new();
        };
        self.passed_over.extend(t.node.take().map(|node| (node, now)));
        let pool = t.request.pool.clone();
        if t.cancelled {
            return Vec::new();
        }
        let mut acts = vec![Act::Say(format!("no pilot for pool {pool}: {reason}"))];
        if t.request.node.is_some() {
            acts.push(Act::Tell(Input::PilotRefused { ticket, reason }));
            return acts;
        }
        t.state = State::Wanted;
        t.unfit = Some(one_line(&reason));
        self.tickets.insert(ticket, t);
        if !self.has_better(&pool) {
            self.pause(&pool, now);
        }
        acts.extend(self.submit_wanted(now));
        acts
    }

    /// Whether a node of the pool without a pilot has room, and nothing speaks against it.
    fn has_better(&self, pool: &PoolName) -> bool {
        let staying = self.staying();
        let avoided = |n: &NodeName| {
            let bad = self.failed.contains_key(n) || self.passed_over.contains_key(n);
            bad || self.full.contains(n) || staying.contains(n)
        };
        let nodes = self.nodes.get(pool);
        nodes.is_some_and(|nodes| nodes.iter().any(|n| !avoided(n)))
    }

    /// A pilot's agent has reported: its pool works. An unknown job is matched with a request of its pool that has no
    /// job id yet.
    pub(crate) fn agent_up(&mut self, job: JobId, pool: &PoolName, known: bool, now: Timestamp) -> Vec<Act> {
        self.ours.insert(job, now);
        self.pauses.remove(pool);
        self.orphans.remove(&job);
        let waits =
            |t: &Ticket| t.request.pool == *pool && matches!(t.state, State::Wanted | State::Uncertain(_));
        let instead = || self.tickets.iter().find(|(_, t)| waits(t)).map(|(n, _)| *n);
        let of_job = self.ticket_with(job);
        let Some(ticket) = of_job.or_else(|| if known { None } else { instead() }) else {
            return Vec::new();
        };
        let was = self.tickets.remove(&ticket).map(|t| t.state);
        match was {
            Some(State::Queued(_)) | None => Vec::new(),
            Some(_) => vec![Act::Tell(Input::PilotQueued { ticket, job })],
        }
    }

    /// An agent is up on the node: the node works.
    pub(crate) fn node_works(&mut self, job: JobId, node: &NodeName) {
        self.mute.remove(&job);
        self.down.remove(&job);
        self.failed.remove(node);
        self.passed_over.remove(node);
    }

    /// The job's agent has reported, and isn't up.
    pub(crate) fn agent_is_down(&mut self, job: JobId, why: Down, now: Timestamp) {
        self.ours.insert(job, now);
        self.down.insert(job, why);
        if self.ticket_with(job).is_some() {
            self.mute.entry(job).or_insert(now);
        }
    }

    fn mute(&self, job: JobId) -> Option<Mute> {
        Some(Mute {
            since: *self.mute.get(&job)?,
            down: self.down(job).cloned(),
        })
    }

    /// Why the job's agent isn't up, if it has said so.
    pub(crate) fn down(&self, job: JobId) -> Option<&Down> {
        self.down.get(&job)
    }

    pub(crate) fn pool_of_ticket(&self, ticket: u64) -> Option<&PoolName> {
        self.tickets.get(&ticket).map(|t| &t.request.pool)
    }

    /// Why sbatch last gave no job for the ticket.
    fn word_against<'a>(&'a self, ticket: &'a Ticket) -> Option<&'a str> {
        let of_target = || self.rejected.get(&ticket.target());
        ticket.unfit.as_ref().or_else(of_target).map(String::as_str)
    }

    /// The words with which Slurm has refused the jobs that are still wanted.
    fn rejections(&self) -> BTreeMap<Target, &str> {
        let wanted = self.tickets.values().filter(|t| t.is_to_be_submitted());
        let rejected = wanted.filter_map(|t| Some((t.target(), self.word_against(t)?)));
        rejected.collect()
    }

    /// Why Slurm takes none of the jobs that the pool wants.
    pub(crate) fn rejection(&self, pool: &PoolName) -> Option<&str> {
        let of_pool = |t: &&Ticket| t.is_to_be_submitted() && t.request.pool == *pool;
        let mut wanted = self.tickets.values().filter(of_pool);
        wanted.find_map(|t| self.word_against(t))
    }

    /// Why Slurm doesn't take the job that is wanted on this node.
    pub(crate) fn rejection_on(&self, node: &NodeName) -> Option<&str> {
        let here = |t: &&Ticket| t.is_to_be_submitted() && t.request.node.as_ref() == Some(node);
        let mut wanted = self.tickets.values().filter(here);
        wanted.find_map(|t| self.word_against(t))
    }

    /// Why Slurm has started none of the pool's submitted jobs, as a clause.
    pub(crate) fn delay(&self, pool: &PoolName) -> Option<String> {
        self.delay_of(|t| t.request.pool == *pool)
    }

    /// Why Slurm has not started the job that is wanted on this node, as a clause.
    pub(crate) fn delay_on(&self, node: &NodeName) -> Option<String> {
        self.delay_of(|t| t.request.node.as_ref() == Some(node))
    }

    fn delay_of(&self, of: impl Fn(&Ticket) -> bool) -> Option<String> {
        let wanted = self.tickets.values().filter(|t| !t.cancelled && of(t));
        let reason = |job: JobId| {
            let said = self.waits.get(&job).filter(|said| tells_why(said))?;
            Some(format!("Slurm has not started job {job}: {said}"))
        };
        // The pool waits for no other job while one runs and its agent comes up.
        let all: Option<Vec<String>> = wanted.filter_map(Ticket::job).map(reason).collect();
        all?.into_iter().next()
    }

    /// The pools whose jobs wait in Slurm's queue, each with the reason.
    pub(crate) fn delays(&self) -> BTreeMap<PoolName, String> {
        let pools: BTreeSet<&PoolName> = self.tickets.values().map(|t| &t.request.pool).collect();
        let delays = pools.into_iter().map(|p| Some((p.clone(), self.delay(p)?)));
        delays.flatten().collect()
    }

    /// The pool of a job in Slurm's queue that is still wanted, and the node asked for.
    pub(crate) fn asked(&self, job: JobId) -> Option<(&PoolName, Option<&NodeName>)> {
        let mut wanted = self.tickets.values().filter(|t| !t.cancelled);
        let ticket = wanted.find(|t| t.job() == Some(job))?;
        Some((&ticket.request.pool, ticket.node.as_ref()))
    }

    /// Pools without pilots, and nodes without a working agent, in sentences.
    pub(crate) fn problems(&self) -> impl Iterator<Item = String> + '_ {
        let rejected = self.rejections().into_iter().map(|((pool, partition), why)| {
            let partition = partition.as_ref().map(|p| format!(" in partition {p}"));
            let place = partition.unwrap_or_default();
            format!(
                "No pilot of pool {pool}{place} could be submitted: {why}; hopd tries again at least every two minutes."
            )
        });
        let others = self.others_by_installation().into_iter();
        let others = others.map(|(of, jobs)| left_alone(of, &jobs));
        rejected.chain(self.dead_nodes()).chain(others)
    }

    fn dead_nodes(&self) -> impl Iterator<Item = String> + '_ {
        self.failed.iter().map(|(node, failed)| {
            let (why, job) = (&failed.why, failed.job);
            format!(
                "No pilot came up on node {node}: {why} (pilot.{job}.log in its [agent] state_dir says more); other \
                 nodes are tried first."
            )
        })
    }

    pub(crate) fn set_homes(&mut self, homes: BTreeSet<NodeName>) {
        self.homes = homes;
    }

    pub(crate) fn set_full(&mut self, full: BTreeSet<NodeName>) {
        self.full = full;
    }

    pub(crate) fn drains(&mut self, job: JobId) {
        self.draining.insert(job);
    }

    /// Takes in Slurm's facts on the pools' nodes, and the pools that must not be lent.
    pub(crate) fn facts(
        &mut self,
        nodes: BTreeMap<PoolName, Vec<NodeName>>,
        refused: BTreeMap<PoolName, String>,
        now: Timestamp,
    ) -> Vec<Act> {
        let mut acts: Vec<_> = refused
            .iter()
            .filter(|(pool, why)| self.refused.get(*pool) != Some(*why))
            .map(|(pool, why)| Act::Say(format!("pool {pool} is not lent: {why}")))
            .collect();
        for (pool, nodes) in &nodes {
            self.known.extend(nodes.iter().map(|n| (n.clone(), pool.clone())));
        }
        self.nodes = nodes;
        self.refused = refused;
        acts.extend(self.submit_wanted(now));
        acts
    }

    /// The pilots that are wanted and not up yet.
    pub(crate) fn coming(&self) -> impl Iterator<Item = Coming> + '_ {
        let tickets = self.tickets.values().filter(|t| !t.cancelled);
        tickets.map(|ticket| {
            let job = ticket.job();
            Coming {
                pool: ticket.request.pool.clone(),
                node: ticket.node.clone(),
                job,
                waits: job.and_then(|job| self.waits.get(&job).cloned()),
                mute: job.and_then(|job| self.mute(job)),
                rejected: match job {
                    Some(_) => None,
                    None => self.word_against(ticket).map(str::to_owned),
                },
            }
        })
    }

    /// The pool of a node on which pilots could be at some time.
    pub(crate) fn pool_of(&self, node: &NodeName) -> Option<&PoolName> {
        self.known.get(node)
    }

    pub(crate) fn refusal(&self, pool: &PoolName) -> Option<&str> {
        self.refused.get(pool).map(String::as_str)
    }

    /// `pilots`: those that the core knows. `jobs`: all of the service account's in Slurm's queue.
    pub(crate) fn looked(&mut self, jobs: &[SeenJob], pilots: &BTreeSet<JobId>, now: Timestamp) -> Vec<Act> {
        self.looked = true;
        let waiting = jobs.iter().filter(|j| j.state == Seen::Waiting);
        self.waits = waiting.map(|j| (j.job, j.reason.clone())).collect();
        let mut acts = Vec::new();
        let ours = self.find_ours(jobs, pilots, now);
        self.note_others(jobs, &ours, &mut acts);
        self.places = ours
            .values()
            .filter(|j| !j.state.is_over())
            .filter_map(|j| {
                Some((
                    j.job,
                    j.node.clone().or_else(|| self.places.get(&j.job).cloned())?,
                ))
            })
            .collect();
        self.draining.retain(|job| ours.contains_key(job));
        self.mute.retain(|job, _| ours.contains_key(job));
        let queued: BTreeSet<JobId> = self.queued().collect();
        self.down
            .retain(|job, _| ours.contains_key(job) || queued.contains(job));
        self.failed.retain(|_, failed| now.since(failed.at) < FAILED);
        self.passed_over.retain(|_, at| now.since(*at) < FAILED);
        // An agent may be quicker than the answer of its sbatch: its pilot is up, and comes no more.
        let is_up = |t: &Ticket| t.job().is_some_and(|job| pilots.contains(&job));
        self.tickets.retain(|_, t| !is_up(t));
        for seen in ours.values() {
            self.look_at(seen, pilots, now, &mut acts);
        }
        self.orphans.retain(|job, _| ours.contains_key(job));
        self.look_for_tickets(&ours, now, &mut acts);
        for job in pilots {
            let seen = ours.get(job);
            let gone = match seen {
                Some(seen) => seen.state.is_over(),
                None => self.missed(*job),
            };
            if gone {
                self.missed.remove(job);
                let cause = match seen.map(|seen| seen.state) {
                    Some(Seen::NodeFailed) => EndCause::NodeLost,
                    _ => EndCause::PilotLost,
                };
                let pilot = *job;
                acts.push(Act::Tell(Input::PilotLost { pilot, cause }));
                // Its agent may live, and lend GPUs outside every lease.
                acts.extend(seen.is_none().then_some(Act::Scancel(*job)));
            }
        }
        self.missed.retain(|job, _| !ours.contains_key(job));
        let wanted: BTreeSet<Target> = self.tickets.values().map(Ticket::target).collect();
        self.rejected.retain(|target, _| wanted.contains(target));
        acts.extend(self.submit_wanted(now));
        acts
    }

    /// The jobs that are pilots: by their names, or because they were known before.
    fn find_ours<'a>(
        &mut self,
        jobs: &'a [SeenJob],
        pilots: &BTreeSet<JobId>,
        now: Timestamp,
    ) -> BTreeMap<JobId, &'a SeenJob> {
        let known = self.known_jobs(pilots.iter().copied());
        let is_signed = |j: &SeenJob| j.installation.as_ref() == Some(&self.installation);
        let is_ours = |j: &&SeenJob| is_pilot(&j.name) && is_signed(j) || known.contains(&j.job);
        let ours: BTreeMap<_, _> = jobs.iter().filter(is_ours).map(|j| (j.job, j)).collect();
        let heard = ours.keys().chain(pilots).copied().chain(self.queued());
        let heard: Vec<JobId> = heard.collect();
        self.ours.extend(heard.into_iter().map(|job| (job, now)));
        self.ours.retain(|_, at| now.since(*at) < KNOWN);
        ours
    }

    /// Names pilots of other installations once. Their own `hopd` cares for them.
    fn note_others(&mut self, jobs: &[SeenJob], ours: &BTreeMap<JobId, &SeenJob>, acts: &mut Vec<Act>) {
        let lives = |j: &&SeenJob| !j.state.is_over() && is_pilot(&j.name) && !ours.contains_key(&j.job);
        let others = jobs.iter().filter(lives);
        let others: BTreeMap<_, _> = others.map(|j| (j.job, j.installation.clone())).collect();
        let before = std::mem::replace(&mut self.others, others);
        let known: BTreeSet<_> = before.into_values().collect();
        let new = self.others_by_installation().into_iter();
        let new = new.filter(|(of, _)| !known.contains(*of));
        acts.extend(new.map(|(of, jobs)| Act::Say(left_alone(of, &jobs))));
    }

    fn others_by_installation(&self) -> BTreeMap<&Option<Installation>, Vec<JobId>> {
        let mut by = BTreeMap::<_, Vec<JobId>>::new();
        for (job, of) in &self.others {
            by.entry(of).or_default().push(*job);
        }
        by
    }

    /// The jobs of tickets.
    fn queued(&self) -> impl Iterator<Item = JobId> + '_ {
        self.tickets.values().filter_map(Ticket::job)
    }

    fn ticket_with(&self, job: JobId) -> Option<u64> {
        let mut tickets = self.tickets.iter();
        tickets
            .find(|(_, t)| t.job() == Some(job))
            .map(|(ticket, _)| *ticket)
    }

    /// The jobs known as pilots, whatever their names are. `pilots`: those that the core knows.
    pub(crate) fn known_jobs(&self, pilots: impl IntoIterator<Item = JobId>) -> BTreeSet<JobId> {
        let ours = self.ours.keys().copied();
        ours.chain(self.queued()).chain(pilots).collect()
    }

    /// The ticket of a job of ours. A name tells only of a job that nobody knows by its id: any name may be given to it.
    fn ticket_of(&self, seen: &SeenJob, pilots: &BTreeSet<JobId>) -> Option<u64> {
        match self.ticket_with(seen.job) {
            Some(ticket) => Some(ticket),
            None if pilots.contains(&seen.job) => None,
            None => parse_name(&seen.name).map(|(_, ticket)| ticket),
        }
    }

    fn missed(&mut self, job: JobId) -> bool {
        let times = self.missed.entry(job).or_default();
        *times += 1;
        *times >= MISSES
    }

    fn look_at(&mut self, seen: &SeenJob, pilots: &BTreeSet<JobId>, now: Timestamp, acts: &mut Vec<Act>) {
        let job = seen.job;
        if seen.state.is_over() {
            self.ended(seen, pilots);
            return;
        }
        if seen.state == Seen::Suspended {
            acts.push(Act::Say(format!(
                "pilot {job} was suspended: it is cancelled, its leases end"
            )));
            acts.push(Act::Tell(Input::PilotLost {
                pilot: job,
                cause: EndCause::PilotLost,
            }));
            acts.push(Act::Scancel(job));
            self.draining.insert(job);
            return;
        }
        if let Some(ticket) = self.ticket_of(seen, pilots)
            && let Some(t) = self.tickets.get_mut(&ticket)
        {
            match t.state {
                State::Queued(known) if known == job => {
                    self.await_agent(seen, ticket, now, acts);
                    return;
                }
                State::Uncertain(_) if t.cancelled => {
                    self.tickets.remove(&ticket);
                    acts.push(Act::Scancel(job));
                    return;
                }
                State::Uncertain(_) => {
                    t.state = State::Queued(job);
                    acts.push(Act::Tell(Input::PilotQueued { ticket, job }));
                    return;
                }
                State::Submitting => return,
                State::Wanted | State::Queued(_) => {}
            }
        }
        if pilots.contains(&job) {
            return;
        }
        let since = *self.orphans.entry(job).or_insert(now);
        if seen.state == Seen::Waiting || now.since(since) >= ORPHAN {
            acts.push(Act::Say(format!(
                "pilot {job} belongs to nobody: it is cancelled"
            )));
            acts.push(Act::Scancel(job));
        }
    }

    /// A job that sbatch didn't tell of has had its effect: the ticket fails with the job.
    fn ended(&mut self, seen: &SeenJob, pilots: &BTreeSet<JobId>) {
        let ticket = self.ticket_of(seen, pilots);
        if let Some(t) = ticket.and_then(|ticket| self.tickets.get_mut(&ticket))
            && matches!(t.state, State::Uncertain(_))
        {
            t.state = State::Queued(seen.job);
        }
    }

    /// Gives up a pilot of which the agent can't or may not speak to `hopd`: its job holds GPUs that nobody is lent.
    fn await_agent(&mut self, seen: &SeenJob, ticket: u64, now: Timestamp, acts: &mut Vec<Act>) {
        let job = seen.job;
        if let (Seen::Running | Seen::Configuring, Some(t)) = (seen.state, self.tickets.get_mut(&ticket)) {
            t.ran_on.clone_from(&seen.node);
        }
        if seen.state != Seen::Running {
            self.mute.remove(&job);
            if seen.state == Seen::Waiting {
                self.await_slurm(job, ticket, now, acts);
            }
            return;
        }
        let silent = now.since(*self.mute.entry(job).or_insert(now));
        if silent < MUTE {
            return;
        }
        let but = self
            .down(job)
            .map_or_else(|| "its agent has not reported".to_owned(), Down::to_string);
        let reason = format!("Slurm job {job} ran for {:.0} s, and {but}", silent.as_secs_f64());
        acts.push(Act::Scancel(job));
        self.fail(ticket, seen.node.clone(), reason, now, acts);
    }

    /// Gives up a pilot that Slurm doesn't start on a node chosen here, while another has room. The core asks again.
    fn await_slurm(&mut self, job: JobId, ticket: u64, now: Timestamp, acts: &mut Vec<Act>) {
        let Some(t) = self.tickets.get_mut(&ticket) else {
            return;
        };
        let since = *t.waits.get_or_insert(now);
        let chosen = t.request.node.is_none() && t.request.partition.is_none();
        let pool = t.request.pool.clone();
        if !chosen || now.since(since) < PASSED_OVER || !self.has_better(&pool) {
            return;
        }
        let node = self.tickets.remove(&ticket).and_then(|t| t.node);
        let place = node.as_ref().map(|n| format!(" on {n}")).unwrap_or_default();
        self.passed_over.extend(node.map(|n| (n, now)));
        self.places.remove(&job);
        let reason = format!("Slurm has not started job {job}{place}, and another node has room");
        acts.push(Act::Scancel(job));
        acts.push(Act::Say(format!("a pilot for pool {pool} is given up: {reason}")));
        acts.push(Act::Tell(Input::PilotFailed { ticket, reason }));
    }

    fn look_for_tickets(&mut self, ours: &BTreeMap<JobId, &SeenJob>, now: Timestamp, acts: &mut Vec<Act>) {
        let mut failed = Vec::new();
        for (ticket, t) in &mut self.tickets {
            match &mut t.state {
                State::Queued(job) => {
                    let seen = ours.get(job);
                    let over = match seen {
                        Some(seen) => seen.state.is_over(),
                        None => {
                            let times = self.missed.entry(*job).or_default();
                            *times += 1;
                            *times >= MISSES
                        }
                    };
                    if over {
                        let why = self.down.get(job).map(|why| format!(": {why}"));
                        let why = why.unwrap_or_default();
                        let reason = format!("Slurm job {job} ended before its agent was up{why}");
                        // A job that was cancelled before it ran has no node.
                        let node = seen.and_then(|s| s.node.as_ref()).or(t.ran_on.as_ref());
                        failed.push((*ticket, node.cloned(), reason));
                    }
                }
                State::Uncertain(looks) => {
                    *looks += 1;
                    if *looks >= MISSES {
                        failed.push((*ticket, None, "sbatch had no effect".to_owned()));
                    }
                }
                State::Wanted | State::Submitting => {}
            }
        }
        for (ticket, node, reason) in failed {
            self.fail(ticket, node, reason, now, acts);
        }
    }

    /// No pilot comes of the ticket. `node`: where its job ran.
    fn fail(
        &mut self,
        ticket: u64,
        node: Option<NodeName>,
        reason: String,
        now: Timestamp,
        acts: &mut Vec<Act>,
    ) {
        let Some(t) = self.tickets.remove(&ticket) else {
            return;
        };
        if let (State::Queued(job), Some(node)) = (t.state, node) {
            let (at, why) = (now, reason.clone());
            self.failed.insert(node, Failed { at, job, why });
        }
        self.pause(&t.request.pool, now);
        acts.push(Act::Say(format!(
            "a pilot for pool {} failed: {reason}",
            t.request.pool
        )));
        acts.push(Act::Tell(Input::PilotFailed { ticket, reason }));
    }

    /// The longest pause doubles with each failure in a row.
    fn pause(&mut self, pool: &PoolName, now: Timestamp) -> Span {
        let before = self.pauses.get(pool).map_or(Span::ZERO, |p| p.length);
        let length = Span((before.0 * 2).clamp(FIRST_PAUSE.0, LAST_PAUSE.0));
        self.pauses.insert(
            pool.clone(),
            Pause {
                until: now + length,
                length,
            },
        );
        length
    }

    /// Submits requests whose pause has ended.
    pub(crate) fn submit_wanted(&mut self, now: Timestamp) -> Vec<Act> {
        if !self.looked {
            return Vec::new();
        }
        let wanted: Vec<u64> = self
            .tickets
            .iter()
            .filter(|(_, t)| t.state == State::Wanted && !self.refused.contains_key(&t.request.pool))
            .filter(|(_, t)| self.nodes.contains_key(&t.request.pool))
            .filter(|(_, t)| self.pauses.get(&t.request.pool).is_none_or(|p| p.until <= now))
            .map(|(n, _)| *n)
            .collect();
        let mut acts = Vec::new();
        for ticket in wanted {
            let (node, exclude) = self.place(ticket);
            let Some(t) = self.tickets.get_mut(&ticket) else {
                continue;
            };
            t.state = State::Submitting;
            t.node = node.clone();
            acts.push(Act::Sbatch {
                ticket,
                request: PilotRequest {
                    node,
                    ..t.request.clone()
                },
                exclude,
            });
        }
        acts
    }

    /// Nodes with a pilot that stays, or with one on its way.
    fn staying(&self) -> BTreeSet<NodeName> {
        let coming = self.tickets.values().filter_map(|t| t.node.clone());
        let there = self.places.iter();
        let there = there.filter(|(job, _)| !self.draining.contains(job));
        there.map(|(_, node)| node.clone()).chain(coming).collect()
    }

    /// Picks a node of the pool without a lasting pilot: nodes with room beside the jobs of others first, of equals
    /// homes of kernels, then nodes without a leaving pilot. Nodes without a working agent come last, and before them
    /// those where Slurm started no pilot. Without a node, names the nodes to leave out.
    fn place(&self, ticket: u64) -> (Option<NodeName>, Vec<NodeName>) {
        let t = &self.tickets[&ticket];
        if t.node.is_some() {
            return (t.node.clone(), Vec::new());
        }
        let staying = self.staying();
        let leaving: BTreeSet<&NodeName> = self
            .draining
            .iter()
            .filter_map(|job| self.places.get(job))
            .collect();
        if t.request.partition.is_some() {
            return (None, staying.into_iter().collect());
        }
        let free = self.nodes[&t.request.pool]
            .iter()
            .filter(|n| !staying.contains(*n));
        let choice = free
            .min_by_key(|n| {
                let failed = self.failed.get(*n).map(|failed| failed.at);
                let passed_over = self.passed_over.get(*n);
                let fits = (
                    self.full.contains(*n),
                    !self.homes.contains(*n),
                    leaving.contains(n),
                );
                (failed, passed_over, fits)
            })
            .cloned();
        let exclude = if choice.is_some() {
            Vec::new()
        } else {
            staying.into_iter().collect()
        };
        (choice, exclude)
    }

    /// When [`PilotJobs::submit_wanted`] is next of use.
    pub(crate) fn next_wake(&self, now: Timestamp) -> Option<Timestamp> {
        self.tickets
            .values()
            .filter(|t| t.state == State::Wanted)
            .filter_map(|t| self.pauses.get(&t.request.pool))
            .map(|p| p.until)
            .filter(|until| *until > now)
            .min()
    }
}

/// Whether Slurm's word on a waiting job tells more than that the job waits.
pub(crate) fn tells_why(reason: &str) -> bool {
    !["", "None", "Priority"].contains(&reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_000_000_000);

    fn later(s: u64) -> Timestamp {
        NOW + Span::from_secs(s)
    }

    fn pool() -> PoolName {
        "main".into()
    }

    fn request() -> PilotRequest {
        PilotRequest {
            pool: pool(),
            partition: None,
            node: None,
            gpus: None,
            gpu_type: None,
        }
    }

    fn pilot_jobs(nodes: &[&str]) -> PilotJobs {
        let mut pilot_jobs = PilotJobs::default();
        let nodes = nodes.iter().map(|n| NodeName::from(*n)).collect();
        assert_eq!(
            pilot_jobs.facts([(pool(), nodes)].into(), BTreeMap::new(), NOW),
            []
        );
        assert_eq!(pilot_jobs.looked(&[], &BTreeSet::new(), NOW), []);
        pilot_jobs
    }

    fn seen(job: u32, ticket: u64, node: &str, state: Seen) -> SeenJob {
        SeenJob {
            job: JobId(job),
            name: job_name(&pool(), ticket),
            node: (!node.is_empty()).then(|| node.into()),
            state,
            reason: String::new(),
            installation: Some(Installation::default()),
        }
    }

    fn sbatch(ticket: u64, node: Option<&str>, exclude: &[&str]) -> Act {
        Act::Sbatch {
            ticket,
            request: PilotRequest {
                node: node.map(Into::into),
                ..request()
            },
            exclude: exclude.iter().map(|n| NodeName::from(*n)).collect(),
        }
    }

    fn queued(ticket: u64, job: u32) -> Act {
        Act::Tell(Input::PilotQueued {
            ticket,
            job: JobId(job),
        })
    }

    fn lost(job: u32) -> Act {
        Act::Tell(Input::PilotLost {
            pilot: JobId(job),
            cause: EndCause::PilotLost,
        })
    }

    fn silent(acts: Vec<Act>) -> Vec<Act> {
        acts.into_iter().filter(|a| !matches!(a, Act::Say(_))).collect()
    }

    #[test]
    fn pilots_spread_over_nodes_and_go_where_one_leaves_last() {
        let mut pilot_jobs = pilot_jobs(&["n1", "n2"]);
        assert_eq!(pilot_jobs.want(1, request(), NOW), [sbatch(1, Some("n1"), &[])]);
        assert_eq!(pilot_jobs.want(2, request(), NOW), [sbatch(2, Some("n2"), &[])]);
        assert_eq!(pilot_jobs.submitted(1, Ok(JobId(11)), NOW), [queued(1, 11)]);
        assert_eq!(pilot_jobs.submitted(2, Ok(JobId(12)), NOW), [queued(2, 12)]);
        assert_eq!(pilot_jobs.agent_up(JobId(11), &pool(), true, NOW), []);
        assert_eq!(pilot_jobs.agent_up(JobId(12), &pool(), true, NOW), []);
        let pilots = [JobId(11), JobId(12)].into();
        let jobs = [seen(11, 1, "n1", Seen::Running), seen(12, 2, "n2", Seen::Running)];
        assert_eq!(pilot_jobs.looked(&jobs, &pilots, NOW), []);
        // No node without a pilot: anywhere but there.
        assert_eq!(
            pilot_jobs.want(3, request(), NOW),
            [sbatch(3, None, &["n1", "n2"])]
        );
        pilot_jobs.drains(JobId(12));
        assert_eq!(pilot_jobs.want(4, request(), NOW), [sbatch(4, Some("n2"), &[])]);
    }

    #[test]
    fn who_is_to_come_is_known_with_slurms_word_for_the_wait() {
        let mut pilot_jobs = pilot_jobs(&["n1"]);
        let coming = |of: &PilotJobs| {
            let seen = of.coming();
            seen.map(|c| (c.job.map(|j| j.0), c.node.map(|n| n.to_string()), c.waits))
                .collect::<Vec<_>>()
        };
        pilot_jobs.want(1, request(), NOW);
        let node = Some("n1".to_owned());
        assert_eq!(coming(&pilot_jobs), [(None, node.clone(), None)]);
        pilot_jobs.submitted(1, Ok(JobId(11)), NOW);
        let waits = SeenJob {
            reason: "ReqNodeNotAvail".into(),
            ..seen(11, 1, "", Seen::Waiting)
        };
        pilot_jobs.looked(&[waits], &BTreeSet::new(), NOW);
        let why = Some("ReqNodeNotAvail".to_owned());
        assert_eq!(coming(&pilot_jobs), [(Some(11), node.clone(), why)]);
        pilot_jobs.looked(&[seen(11, 1, "n1", Seen::Running)], &BTreeSet::new(), NOW);
        assert_eq!(coming(&pilot_jobs), [(Some(11), node, None)]);
        pilot_jobs.agent_up(JobId(11), &pool(), true, NOW);
        assert_eq!(coming(&pilot_jobs), []);
        assert_eq!(pilot_jobs.pool_of(&"n1".into()), Some(&pool()));
        assert_eq!(pilot_jobs.pool_of(&"c1".into()), None);
    }

    #[test]
    fn a_pilot_goes_where_kernels_are_even_if_it_has_to_wait_there() {
        let mut pilot_jobs = pilot_jobs(&["n1", "n2", "n3"]);
        let pilots = [JobId(12)].into();
        assert_eq!(
            pilot_jobs.looked(&[seen(12, 2, "n2", Seen::Running)], &pilots, NOW),
            []
        );
        pilot_jobs.set_homes(["n2".into(), "n3".into()].into());
        assert_eq!(pilot_jobs.want(3, request(), NOW), [sbatch(3, Some("n3"), &[])]);
        pilot_jobs.looked(&[seen(12, 2, "n2", Seen::Suspended)], &pilots, NOW);
        assert_eq!(pilot_jobs.want(4, request(), NOW), [sbatch(4, Some("n2"), &[])]);
    }

    #[test]
    fn a_wish_for_a_node_a_partition_and_a_size_is_kept_to_whatever_slurm_says_first() {
        let mut pilot_jobs = pilot_jobs(&["n1", "n2"]);
        let here = PilotRequest {
            partition: Some("burst".into()),
            node: Some("b1".into()),
            gpus: Some(1),
            ..request()
        };
        let wanted = Act::Sbatch {
            ticket: 1,
            request: here.clone(),
            exclude: Vec::new(),
        };
        assert_eq!(pilot_jobs.want(1, here, NOW), std::slice::from_ref(&wanted));
        pilot_jobs.submitted(1, Err(Failure::No("not now".into())), NOW);
        assert_eq!(pilot_jobs.submit_wanted(later(2)), [wanted]);
    }

    fn full(nodes: &[&str]) -> BTreeSet<NodeName> {
        nodes.iter().map(|n| NodeName::from(*n)).collect()
    }

    #[test]
    fn a_pilot_goes_where_others_jobs_leave_room_before_where_kernels_are() {
        let mut pilot_jobs = pilot_jobs(&["n1", "n2", "n3"]);
        pilot_jobs.set_homes(["n1".into(), "n3".into()].into());
        pilot_jobs.set_full(full(&["n1"]));
        assert_eq!(pilot_jobs.want(1, request(), NOW), [sbatch(1, Some("n3"), &[])]);
        assert_eq!(pilot_jobs.want(2, request(), NOW), [sbatch(2, Some("n2"), &[])]);
        // The third pilot waits on the full node: each other node has a pilot.
        assert_eq!(pilot_jobs.want(3, request(), NOW), [sbatch(3, Some("n1"), &[])]);
    }

    #[test]
    fn a_pilot_that_slurm_does_not_start_is_asked_for_elsewhere_once_another_node_has_room() {
        let mut pilot_jobs = pilot_jobs(&["n1", "n2"]);
        pilot_jobs.set_full(full(&["n1", "n2"]));
        assert_eq!(pilot_jobs.want(1, request(), NOW), [sbatch(1, Some("n1"), &[])]);
        assert_eq!(pilot_jobs.submitted(1, Ok(JobId(11)), NOW), [queued(1, 11)]);
        let waiting = [seen(11, 1, "", Seen::Waiting)];
        let look = |of: &mut PilotJobs, s| of.looked(&waiting, &BTreeSet::new(), later(s));
        for s in [0, 299, 300, 1000] {
            assert_eq!(look(&mut pilot_jobs, s), []);
        }
        pilot_jobs.set_full(full(&["n1"]));
        let (acts, ticket, reason) = failed(look(&mut pilot_jobs, 1003));
        assert_eq!((acts, ticket), (vec![Act::Scancel(JobId(11))], 1));
        assert_eq!(
            reason,
            "Slurm has not started job 11 on n1, and another node has room"
        );
        // Even if n1 seems to have room: a reservation may begin soon.
        pilot_jobs.set_full(full(&[]));
        assert_eq!(
            pilot_jobs.want(2, request(), later(1013)),
            [sbatch(2, Some("n2"), &[])]
        );
        assert_eq!(pilot_jobs.problems().count(), 0);
    }

    #[test]
    fn a_pilot_that_its_node_cannot_run_is_asked_for_on_the_next_node_at_once() {
        let mut pilot_jobs = pilot_jobs(&["n1", "n2"]);
        let unfit = || {
            Err(Failure::Unfit(
                "Requested node configuration is not available".into(),
            ))
        };
        assert_eq!(pilot_jobs.want(1, request(), NOW), [sbatch(1, Some("n1"), &[])]);
        let acts = silent(pilot_jobs.submitted(1, unfit(), NOW));
        assert_eq!(acts, [sbatch(1, Some("n2"), &[])]);
        // No node is left: all pause.
        assert_eq!(silent(pilot_jobs.submitted(1, unfit(), NOW)), []);
        assert_eq!(pilot_jobs.submit_wanted(later(2)), [sbatch(1, Some("n1"), &[])]);
        assert_eq!(pilot_jobs.cancel(1, None), []);
        assert_eq!(silent(pilot_jobs.submitted(1, unfit(), later(2))), []);
        assert_eq!(pilot_jobs.next_wake(later(2)), None);
    }

    #[test]
    fn the_core_hears_of_a_node_of_its_choice_that_cannot_run_the_pilot() {
        let mut pilot_jobs = pilot_jobs(&["n1", "n2"]);
        let here = PilotRequest {
            node: Some("n1".into()),
            ..request()
        };
        assert_eq!(pilot_jobs.want(1, here, NOW), [sbatch(1, Some("n1"), &[])]);
        let unfit = Failure::Unfit("Requested node configuration is not available".into());
        let reason = "Requested node configuration is not available".into();
        let refused = Act::Tell(Input::PilotRefused { ticket: 1, reason });
        assert_eq!(silent(pilot_jobs.submitted(1, Err(unfit), NOW)), [refused]);
        // Nobody else has to wait for that.
        assert_eq!(pilot_jobs.want(2, request(), NOW), [sbatch(2, Some("n2"), &[])]);
    }

    #[test]
    fn nothing_is_submitted_before_the_queue_was_looked_at() {
        let mut pilot_jobs = PilotJobs::default();
        pilot_jobs.facts([(pool(), vec!["n1".into()])].into(), BTreeMap::new(), NOW);
        assert_eq!(pilot_jobs.want(1, request(), NOW), []);
        assert_eq!(
            pilot_jobs.looked(&[], &BTreeSet::new(), NOW),
            [sbatch(1, Some("n1"), &[])]
        );
    }

    #[test]
    fn while_slurm_refuses_the_pauses_grow_and_the_core_hears_nothing() {
        let mut pilot_jobs = pilot_jobs(&["n1"]);
        pilot_jobs.want(1, request(), NOW);
        let mut now = NOW;
        for pause in [2, 4, 8, 16, 32, 64, 120, 120] {
            let said = pilot_jobs.submitted(1, Err(Failure::No("Slurm is away".into())), now);
            assert!(matches!(&said[..], [Act::Say(text)] if text.contains("Slurm is away")));
            assert_eq!(pilot_jobs.next_wake(now), Some(now + Span::from_secs(pause)));
            assert_eq!(pilot_jobs.submit_wanted(now + Span::from_secs(pause - 1)), []);
            now = now + Span::from_secs(pause);
            assert_eq!(pilot_jobs.submit_wanted(now), [sbatch(1, Some("n1"), &[])]);
        }
        assert_eq!(pilot_jobs.submitted(1, Ok(JobId(9)), now), [queued(1, 9)]);
        assert_eq!(pilot_jobs.next_wake(now), None);
    }

    #[test]
    fn slurms_word_against_a_pools_pilots_is_kept_until_it_takes_one() {
        let mut pilot_jobs = pilot_jobs(&["n1"]);
        let said = |of: &PilotJobs| {
            let coming: Vec<_> = of.coming().map(|c| c.rejected).collect();
            let problems: Vec<_> = of.problems().collect();
            (of.rejection(&pool()).map(str::to_owned), coming, problems)
        };
        pilot_jobs.want(1, request(), NOW);
        assert_eq!(said(&pilot_jobs), (None, vec![None], vec![]));
        let answer = Err(Failure::No("sbatch: error: no\nInvalid account.".into()));
        pilot_jobs.submitted(1, answer, NOW);
        let why = Some("sbatch: error: no; Invalid account".to_owned());
        let problem = "No pilot of pool main could be submitted: sbatch: error: no; Invalid account; hopd tries again \
                       at least every two minutes.";
        let all = (why.clone(), vec![why], vec![problem.to_owned()]);
        assert_eq!(said(&pilot_jobs), all);
        pilot_jobs.submit_wanted(later(2));
        assert_eq!(said(&pilot_jobs), all, "while it is asked again");
        // The core wants another, and a burst partition takes pilots.
        assert_eq!(pilot_jobs.cancel(1, None), []);
        pilot_jobs.submitted(1, Err(Failure::No("no".into())), later(2));
        pilot_jobs.want(2, request(), later(3));
        assert_eq!(said(&pilot_jobs).0.as_deref(), Some("no"));
        let burst = PilotRequest {
            partition: Some("cloud".into()),
            ..request()
        };
        pilot_jobs.want(3, burst, later(10));
        pilot_jobs.submitted(3, Ok(JobId(13)), later(10));
        assert_eq!(said(&pilot_jobs).0.as_deref(), Some("no"));
        pilot_jobs.submit_wanted(later(20));
        pilot_jobs.submitted(2, Ok(JobId(12)), later(20));
        assert_eq!(said(&pilot_jobs), (None, vec![None, None], vec![]));
    }

    #[test]
    fn slurms_word_on_a_node_is_of_the_job_that_is_wanted_there() {
        let mut pilot_jobs = pilot_jobs(&["n1", "n2"]);
        let on = |node: &str| PilotRequest {
            node: Some(node.into()),
            ..request()
        };
        pilot_jobs.want(1, on("n1"), NOW);
        pilot_jobs.submitted(1, Ok(JobId(11)), NOW);
        pilot_jobs.want(2, on("n2"), NOW);
        pilot_jobs.submitted(2, Err(Failure::No("no".into())), NOW);
        let said = ["n1", "n2"].map(|node| pilot_jobs.rejection_on(&node.into()));
        assert_eq!(said, [None, Some("no")]);
    }

    #[test]
    fn slurms_word_against_a_node_is_told_of_no_other_job() {
        let mut pilot_jobs = pilot_jobs(&["n1", "n2"]);
        let on = |node: &str| PilotRequest {
            node: Some(node.into()),
            ..request()
        };
        let unfit = || Err(Failure::Unfit("no such node".into()));
        let said = |of: &PilotJobs| {
            let coming: Vec<_> = of.coming().map(|c| c.rejected).collect();
            (coming, of.rejection(&pool()).map(str::to_owned))
        };
        // The core chose n1, and hears of the refusal.
        pilot_jobs.want(1, on("n1"), NOW);
        pilot_jobs.want(2, on("n2"), NOW);
        pilot_jobs.submitted(1, unfit(), NOW);
        assert_eq!(said(&pilot_jobs), (vec![None], None));
        // The third is for any node.
        pilot_jobs.want(3, request(), NOW);
        pilot_jobs.submitted(3, unfit(), NOW);
        let why = Some("no such node".to_owned());
        assert_eq!(said(&pilot_jobs), (vec![None, why.clone()], why));
        assert_eq!(pilot_jobs.rejection_on(&"n2".into()), None);
        pilot_jobs.submit_wanted(later(200));
        pilot_jobs.submitted(3, Ok(JobId(13)), later(200));
        assert_eq!(said(&pilot_jobs), (vec![None, None], None));
    }

    #[test]
    fn an_sbatch_that_timed_out_is_looked_for_by_name() {
        let mut pilot_jobs = pilot_jobs(&["n1"]);
        pilot_jobs.want(1, request(), NOW);
        pilot_jobs.submitted(1, Err(Failure::Uncertain("timeout".into())), NOW);
        let jobs = [seen(11, 1, "", Seen::Waiting)];
        assert_eq!(pilot_jobs.looked(&jobs, &BTreeSet::new(), NOW), [queued(1, 11)]);
        // Another one had no effect.
        pilot_jobs.want(2, request(), later(10));
        pilot_jobs.submitted(2, Err(Failure::Uncertain("timeout".into())), later(10));
        assert_eq!(pilot_jobs.looked(&jobs, &BTreeSet::new(), later(11)), []);
        let acts = silent(pilot_jobs.looked(&jobs, &BTreeSet::new(), later(12)));
        assert!(matches!(
            &acts[..],
            [Act::Tell(Input::PilotFailed { ticket: 2, .. })]
        ));
    }

    #[test]
    fn pilots_of_an_earlier_hopd_are_adopted_and_strangers_cancelled() {
        let mut pilot_jobs = PilotJobs::default();
        pilot_jobs.restore(1, request(), None);
        pilot_jobs.restore(2, request(), Some(JobId(12)));
        let jobs = [
            seen(11, 1, "n1", Seen::Running),
            seen(12, 2, "n2", Seen::Waiting),
            seen(13, 7, "", Seen::Waiting),
            seen(14, 8, "n4", Seen::Running),
            SeenJob {
                name: "somebody's own job".into(),
                ..seen(15, 9, "n5", Seen::Running)
            },
        ];
        let acts = silent(pilot_jobs.looked(&jobs, &BTreeSet::new(), NOW));
        assert_eq!(acts, [queued(1, 11), Act::Scancel(JobId(13))]);
        // Its agent may still speak.
        let rest = [jobs[0].clone(), jobs[1].clone(), jobs[3].clone()];
        assert_eq!(pilot_jobs.looked(&rest, &BTreeSet::new(), later(30)), []);
        let acts = silent(pilot_jobs.looked(&rest, &BTreeSet::new(), later(60)));
        assert_eq!(acts, [Act::Scancel(JobId(14))]);
    }

    #[test]
    fn pilots_of_another_installation_are_named_once_and_left_alone() {
        let mut pilot_jobs = pilot_jobs(&["n1"]);
        let theirs = Installation::random();
        let of = |job, installation: Option<&Installation>, state| SeenJob {
            installation: installation.cloned(),
            ..seen(job, 1, "n1", state)
        };
        let jobs = [
            of(11, Some(&theirs), Seen::Running),
            of(12, Some(&theirs), Seen::Waiting),
            of(13, None, Seen::Running),
            of(14, Some(&Installation::random()), Seen::NodeFailed),
        ];
        // Tickets of two installations have the same numbers.
        pilot_jobs.want(1, request(), NOW);
        pilot_jobs.submitted(1, Err(Failure::Uncertain("timeout".into())), NOW);
        let acts = pilot_jobs.looked(&jobs, &BTreeSet::new(), NOW);
        let [Act::Say(unsigned), Act::Say(another)] = &acts[..] else {
            panic!("{acts:?}")
        };
        assert!(
            another.contains(&theirs.to_string()) && another.contains("11, 12"),
            "{another}"
        );
        assert!(unsigned.contains("without an id"), "{unsigned}");
        let problems: Vec<_> = pilot_jobs.problems().collect();
        assert!(
            problems.contains(another) && problems.contains(unsigned),
            "{problems:?}"
        );
        for s in [60, 600] {
            let acts = silent(pilot_jobs.looked(&jobs, &BTreeSet::new(), later(s)));
            let touched = acts
                .iter()
                .any(|a| matches!(a, Act::Scancel(_) | Act::Tell(Input::PilotQueued { .. })));
            assert!(!touched, "{acts:?}");
        }
        // One without an id whose agent reports here is one of ours.
        pilot_jobs.agent_up(JobId(13), &pool(), false, later(601));
        assert!(pilot_jobs.known_jobs([]).contains(&JobId(13)));
        pilot_jobs.looked(&jobs, &[JobId(13)].into(), later(602));
        let problems: Vec<_> = pilot_jobs.problems().collect();
        assert!(!problems.contains(unsigned), "{problems:?}");
    }

    #[test]
    fn an_upgraded_hopd_adopts_the_pilots_of_its_journal() {
        let mut pilot_jobs = PilotJobs::default().of(Installation::random());
        pilot_jobs.restore(2, request(), Some(JobId(12)));
        let old = |job, state| SeenJob {
            installation: None,
            ..seen(job, 2, "n1", state)
        };
        let jobs = [old(11, Seen::Running), old(12, Seen::Waiting)];
        for s in [0, 600] {
            assert_eq!(
                silent(pilot_jobs.looked(&jobs, &[JobId(11)].into(), later(s))),
                []
            );
        }
        assert_eq!(pilot_jobs.problems().count(), 0);
        assert_eq!(pilot_jobs.known_jobs([]), [JobId(11), JobId(12)].into());
    }

    #[test]
    fn an_agent_that_nobody_knows_takes_the_place_of_a_wanted_pilot() {
        let mut pilot_jobs = PilotJobs::default();
        pilot_jobs.want(1, request(), NOW);
        assert_eq!(
            pilot_jobs.agent_up(JobId(30), &pool(), false, NOW),
            [queued(1, 30)]
        );
        pilot_jobs.facts([(pool(), vec!["n1".into()])].into(), BTreeMap::new(), NOW);
        assert_eq!(
            pilot_jobs.looked(&[seen(30, 4, "n1", Seen::Running)], &[JobId(30)].into(), NOW),
            []
        );
    }

    #[test]
    fn a_suspended_pilot_is_cancelled_and_its_leases_are_lost_at_once() {
        let mut pilot_jobs = pilot_jobs(&["n1"]);
        let pilots = [JobId(11)].into();
        let acts = silent(pilot_jobs.looked(&[seen(11, 1, "n1", Seen::Suspended)], &pilots, NOW));
        assert_eq!(acts, [lost(11), Act::Scancel(JobId(11))]);
    }

    #[test]
    fn a_pilot_whose_node_failed_is_lost_with_the_node() {
        let mut pilot_jobs = pilot_jobs(&["n1"]);
        let pilots = [JobId(11)].into();
        let acts = pilot_jobs.looked(&[seen(11, 1, "n1", Seen::NodeFailed)], &pilots, NOW);
        let (pilot, cause) = (JobId(11), EndCause::NodeLost);
        assert_eq!(acts, [Act::Tell(Input::PilotLost { pilot, cause })]);
    }

    #[test]
    fn a_pilot_is_lost_when_slurm_says_so_or_has_not_shown_it_twice() {
        let mut pilot_jobs = pilot_jobs(&["n1"]);
        let pilots = [JobId(11)].into();
        assert_eq!(pilot_jobs.looked(&[], &pilots, NOW), []);
        assert_eq!(
            pilot_jobs.looked(&[seen(11, 1, "n1", Seen::Running)], &pilots, NOW),
            []
        );
        assert_eq!(pilot_jobs.looked(&[], &pilots, NOW), []);
        // Slurm may be mistaken, and its agent may lend.
        let acts = pilot_jobs.looked(&[], &pilots, NOW);
        assert_eq!(acts, [lost(11), Act::Scancel(JobId(11))]);
        assert_eq!(
            pilot_jobs.looked(&[seen(11, 1, "n1", Seen::Over)], &pilots, NOW),
            [lost(11)]
        );
    }

    /// A job that has another name than its pilot was given.
    fn renamed(seen: SeenJob, name: &str) -> SeenJob {
        let name = name.to_owned();
        SeenJob { name, ..seen }
    }

    #[test]
    fn a_renamed_pilot_is_known_by_its_job() {
        let mut pilot_jobs = pilot_jobs(&["n1", "n2"]);
        let pilots = [JobId(11)].into();
        let evil = |state| renamed(seen(11, 1, "n1", state), "evil");
        for s in [0, 60, 600] {
            assert_eq!(pilot_jobs.looked(&[evil(Seen::Running)], &pilots, later(s)), []);
        }
        assert!(pilot_jobs.known_jobs([]).contains(&JobId(11)));
        assert_eq!(pilot_jobs.want(2, request(), NOW), [sbatch(2, Some("n2"), &[])]);
        // Another pilot's name makes it no other pilot.
        pilot_jobs.submitted(2, Err(Failure::Uncertain("timeout".into())), NOW);
        let as_another = renamed(seen(11, 1, "n1", Seen::Running), &job_name(&pool(), 2));
        assert_eq!(pilot_jobs.looked(&[as_another], &pilots, NOW), []);
        let acts = silent(pilot_jobs.looked(&[evil(Seen::Suspended)], &pilots, NOW));
        assert_eq!(acts[..2], [lost(11), Act::Scancel(JobId(11))]);
        let acts = silent(pilot_jobs.looked(&[evil(Seen::Over)], &pilots, NOW));
        assert_eq!(acts, [lost(11)]);
    }

    #[test]
    fn a_pilot_that_a_plugin_renames_comes_up_or_is_given_up() {
        let mut pilot_jobs = pilot_jobs(&["n1"]);
        let renamed = |state| renamed(seen(11, 1, "n1", state), "site.1");
        pilot_jobs.want(1, request(), NOW);
        pilot_jobs.submitted(1, Ok(JobId(11)), NOW);
        for s in [0, 1, 299] {
            assert_eq!(
                pilot_jobs.looked(&[renamed(Seen::Running)], &BTreeSet::new(), later(s)),
                []
            );
        }
        let acts = pilot_jobs.looked(&[renamed(Seen::Running)], &BTreeSet::new(), later(300));
        let (acts, ticket, _) = failed(acts);
        assert_eq!((acts, ticket), (vec![Act::Scancel(JobId(11))], 1));
        // Its scancel had no effect: it belongs to nobody.
        assert_eq!(
            pilot_jobs.looked(&[renamed(Seen::Running)], &BTreeSet::new(), later(301)),
            []
        );
        let acts = silent(pilot_jobs.looked(&[renamed(Seen::Running)], &BTreeSet::new(), later(361)));
        assert_eq!(acts, [Act::Scancel(JobId(11))]);
    }

    #[test]
    fn a_renamed_pilot_of_an_earlier_hopd_is_known_by_its_agent() {
        let mut pilot_jobs = pilot_jobs(&["n1"]);
        let strangers = [
            renamed(seen(11, 1, "n1", Seen::Running), "evil"),
            renamed(seen(12, 1, "n1", Seen::Running), "somebody's own job"),
        ];
        let look = |of: &mut PilotJobs, s| silent(of.looked(&strangers, &BTreeSet::new(), later(s)));
        assert_eq!(look(&mut pilot_jobs, 0), []);
        assert_eq!(look(&mut pilot_jobs, 100), []);
        // The core has it as a pilot from now on, and loses it later.
        assert_eq!(pilot_jobs.agent_up(JobId(11), &pool(), false, later(100)), []);
        assert_eq!(look(&mut pilot_jobs, 101), []);
        assert_eq!(look(&mut pilot_jobs, 161), [Act::Scancel(JobId(11))]);
        // An agent that is refused is one of ours as well.
        let unknown = Down::Refused("there is no pool old".into());
        pilot_jobs.agent_is_down(JobId(12), unknown, later(200));
        assert_eq!(look(&mut pilot_jobs, 201), [Act::Scancel(JobId(11))]);
        let acts = look(&mut pilot_jobs, 261);
        assert_eq!(acts, [Act::Scancel(JobId(11)), Act::Scancel(JobId(12))]);
    }

    #[test]
    fn a_pilot_that_dies_before_it_speaks_is_told_once_and_the_pool_pauses() {
        let mut pilot_jobs = pilot_jobs(&["n1"]);
        pilot_jobs.want(1, request(), NOW);
        pilot_jobs.submitted(1, Ok(JobId(11)), NOW);
        let acts = silent(pilot_jobs.looked(&[seen(11, 1, "n1", Seen::Over)], &BTreeSet::new(), NOW));
        assert!(matches!(
            &acts[..],
            [Act::Tell(Input::PilotFailed { ticket: 1, .. })]
        ));
        assert_eq!(pilot_jobs.want(2, request(), later(1)), []);
        assert_eq!(pilot_jobs.submit_wanted(later(2)), [sbatch(2, Some("n1"), &[])]);
    }

    fn failed(acts: Vec<Act>) -> (Vec<Act>, u64, String) {
        let mut acts = silent(acts);
        let Some(Act::Tell(Input::PilotFailed { ticket, reason })) = acts.pop() else {
            panic!("{acts:?}")
        };
        (acts, ticket, reason)
    }

    #[test]
    fn a_pilot_whose_agent_says_nothing_is_given_up_and_its_node_is_named() {
        let mut pilot_jobs = pilot_jobs(&["n1", "n2"]);
        pilot_jobs.want(1, request(), NOW);
        pilot_jobs.submitted(1, Ok(JobId(11)), NOW);
        let mut look = |state, s| pilot_jobs.looked(&[seen(11, 1, "n1", state)], &BTreeSet::new(), later(s));
        // Its node boots for as long as that takes.
        assert_eq!(look(Seen::Configuring, 0), []);
        assert_eq!(look(Seen::Configuring, 1000), []);
        assert_eq!(look(Seen::Running, 2000), []);
        assert_eq!(look(Seen::Running, 2299), []);
        let (acts, ticket, reason) = failed(look(Seen::Running, 2300));
        assert_eq!((acts, ticket), (vec![Act::Scancel(JobId(11))], 1));
        assert_eq!(
            reason,
            "Slurm job 11 ran for 300 s, and its agent has not reported"
        );
        assert_eq!(look(Seen::Over, 2301), []);
        let problems: Vec<_> = pilot_jobs.problems().collect();
        assert!(
            matches!(&problems[..], [one] if one.contains("node n1") && one.contains(&reason)),
            "{problems:?}"
        );
        assert_eq!(
            pilot_jobs.want(2, request(), later(2310)),
            [sbatch(2, Some("n2"), &[])]
        );
    }

    #[test]
    fn a_pilot_whose_agent_cannot_start_fails_with_the_agents_reason() {
        let mut pilot_jobs = pilot_jobs(&["n1"]);
        pilot_jobs.want(1, request(), NOW);
        pilot_jobs.submitted(1, Ok(JobId(11)), NOW);
        let why = Down::CannotStart("epochs.json is of version 2".into());
        pilot_jobs.agent_is_down(JobId(11), why, later(1));
        // Slurm may forget the job at once.
        assert_eq!(pilot_jobs.looked(&[], &BTreeSet::new(), later(2)), []);
        let over = [seen(11, 1, "n1", Seen::Over)];
        let (_, _, reason) = failed(pilot_jobs.looked(&over, &BTreeSet::new(), later(3)));
        let told = "ended before its agent was up: its agent can't start: epochs.json is of version 2";
        assert!(reason.ends_with(told), "{reason}");
        let problems: Vec<_> = pilot_jobs.problems().collect();
        assert!(
            matches!(&problems[..], [one] if one.contains(told)),
            "{problems:?}"
        );
    }

    #[test]
    fn a_pilot_whose_agent_is_refused_fails_with_the_reason() {
        let mut pilot_jobs = pilot_jobs(&["n1"]);
        pilot_jobs.want(1, request(), NOW);
        pilot_jobs.submitted(1, Ok(JobId(11)), NOW);
        let refused = |why: &str| Down::Refused(why.into());
        pilot_jobs.agent_is_down(JobId(11), refused("an older term"), later(1));
        pilot_jobs.agent_is_down(JobId(12), refused("nobody asked for it"), later(1));
        let mute: Vec<_> = pilot_jobs.coming().filter_map(|c| c.mute).collect();
        let (since, down) = (later(1), Some(refused("an older term")));
        assert_eq!(mute, [Mute { since, down }]);
        let running = [seen(11, 1, "n1", Seen::Running)];
        assert_eq!(pilot_jobs.looked(&running, &BTreeSet::new(), later(300)), []);
        let (acts, _, reason) = failed(pilot_jobs.looked(&running, &BTreeSet::new(), later(301)));
        assert_eq!(acts, [Act::Scancel(JobId(11))]);
        assert!(
            reason.ends_with("its agent is refused: an older term"),
            "{reason}"
        );
    }

    #[test]
    fn an_agent_that_was_quicker_than_its_sbatch_is_no_missing_one() {
        let mut pilot_jobs = pilot_jobs(&["n1"]);
        pilot_jobs.want(1, request(), NOW);
        assert_eq!(pilot_jobs.agent_up(JobId(11), &pool(), false, NOW), []);
        assert_eq!(pilot_jobs.submitted(1, Ok(JobId(11)), NOW), [queued(1, 11)]);
        let (running, pilots) = ([seen(11, 1, "n1", Seen::Running)], [JobId(11)].into());
        for s in [1, 1000, 2000] {
            assert_eq!(pilot_jobs.looked(&running, &pilots, later(s)), []);
        }
        assert_eq!(pilot_jobs.coming().count(), 0);
    }

    /// Fails a pilot of this ticket on the node where Slurm ran it.
    fn fail_on(pilot_jobs: &mut PilotJobs, ticket: u64, node: &str, now: Timestamp) {
        let job = u32::try_from(ticket).unwrap() + 10;
        assert_eq!(
            pilot_jobs.want(ticket, request(), now),
            [sbatch(ticket, Some(node), &[])]
        );
        pilot_jobs.submitted(ticket, Ok(JobId(job)), now);
        let over = [seen(job, ticket, node, Seen::Over)];
        let (acts, found, _) = failed(pilot_jobs.looked(&over, &BTreeSet::new(), now));
        assert_eq!((acts, found), (vec![], ticket));
    }

    #[test]
    fn a_node_without_a_working_agent_is_the_last_choice() {
        let mut pilot_jobs = pilot_jobs(&["n1", "n2"]);
        // Even if kernels are there.
        pilot_jobs.set_homes(["n1".into()].into());
        fail_on(&mut pilot_jobs, 1, "n1", NOW);
        fail_on(&mut pilot_jobs, 2, "n2", later(200));
        // The failure of longest ago first.
        fail_on(&mut pilot_jobs, 3, "n1", later(400));
        fail_on(&mut pilot_jobs, 4, "n2", later(600));
        assert_eq!(pilot_jobs.problems().count(), 2);
        // An agent up on `n2` shows that the node works.
        pilot_jobs.node_works(JobId(14), &"n2".into());
        assert_eq!(pilot_jobs.problems().count(), 1);
        fail_on(&mut pilot_jobs, 5, "n2", later(800));
        // In time nothing is known of a node any longer.
        pilot_jobs.looked(&[], &BTreeSet::new(), later(400 + 3600));
        assert_eq!(pilot_jobs.problems().count(), 1);
        fail_on(&mut pilot_jobs, 6, "n1", later(400 + 3600));
    }

    #[test]
    fn a_pilot_that_was_cancelled_before_it_ran_says_nothing_of_the_node() {
        let mut pilot_jobs = pilot_jobs(&["n1", "n2"]);
        pilot_jobs.want(1, request(), NOW);
        pilot_jobs.submitted(1, Ok(JobId(11)), NOW);
        failed(pilot_jobs.looked(&[seen(11, 1, "", Seen::Over)], &BTreeSet::new(), NOW));
        assert_eq!(pilot_jobs.problems().count(), 0);
        assert_eq!(
            pilot_jobs.want(2, request(), later(10)),
            [sbatch(2, Some("n1"), &[])]
        );
    }

    #[test]
    fn a_node_whose_pilot_slurm_forgot_at_once_is_named() {
        let mut pilot_jobs = pilot_jobs(&["n1", "n2"]);
        pilot_jobs.want(1, request(), NOW);
        pilot_jobs.submitted(1, Ok(JobId(11)), NOW);
        let look = |of: &mut PilotJobs, jobs: &[SeenJob]| of.looked(jobs, &BTreeSet::new(), NOW);
        assert_eq!(look(&mut pilot_jobs, &[seen(11, 1, "n1", Seen::Running)]), []);
        assert_eq!(look(&mut pilot_jobs, &[]), []);
        failed(look(&mut pilot_jobs, &[]));
        let problems: Vec<_> = pilot_jobs.problems().collect();
        assert!(
            matches!(&problems[..], [one] if one.contains("node n1")),
            "{problems:?}"
        );
        let next = sbatch(2, Some("n2"), &[]);
        assert_eq!(pilot_jobs.want(2, request(), later(10)), [next]);
    }

    #[test]
    fn a_pilot_that_sbatch_did_not_tell_of_and_that_ended_fails_with_its_node() {
        let mut pilot_jobs = pilot_jobs(&["n1"]);
        pilot_jobs.want(1, request(), NOW);
        pilot_jobs.submitted(1, Err(Failure::Uncertain("timeout".into())), NOW);
        let over = [seen(11, 1, "n1", Seen::Over)];
        let (acts, ticket, reason) = failed(pilot_jobs.looked(&over, &BTreeSet::new(), NOW));
        assert_eq!((acts, ticket), (vec![], 1));
        assert_eq!(reason, "Slurm job 11 ended before its agent was up");
        assert_eq!(pilot_jobs.problems().count(), 1);
    }

    #[test]
    fn a_refused_pool_gets_no_pilot_and_the_reason_is_said_once() {
        let mut pilot_jobs = pilot_jobs(&["n1"]);
        let refused: BTreeMap<_, _> = [(pool(), "ConstrainDevices is off".to_owned())].into();
        let nodes: BTreeMap<_, _> = [(pool(), vec!["n1".into()])].into();
        assert_eq!(pilot_jobs.facts(nodes.clone(), refused.clone(), NOW).len(), 1);
        assert_eq!(pilot_jobs.facts(nodes.clone(), refused, NOW), []);
        assert_eq!(pilot_jobs.want(1, request(), NOW), []);
        assert_eq!(pilot_jobs.refusal(&pool()), Some("ConstrainDevices is off"));
        assert_eq!(
            pilot_jobs.facts(nodes, BTreeMap::new(), NOW),
            [sbatch(1, Some("n1"), &[])]
        );
    }

    #[test]
    fn a_cancelled_ticket_leaves_no_job() {
        let mut pilot_jobs = pilot_jobs(&["n1"]);
        pilot_jobs.want(1, request(), NOW);
        assert_eq!(pilot_jobs.cancel(1, None), []);
        assert_eq!(
            pilot_jobs.submitted(1, Ok(JobId(11)), NOW),
            [Act::Scancel(JobId(11))]
        );
        pilot_jobs.want(2, request(), NOW);
        pilot_jobs.submitted(2, Ok(JobId(12)), NOW);
        assert_eq!(pilot_jobs.cancel(2, Some(JobId(12))), [Act::Scancel(JobId(12))]);
        assert_eq!(pilot_jobs.cancel(9, Some(JobId(19))), [Act::Scancel(JobId(19))]);
    }
}
