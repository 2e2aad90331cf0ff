//! `hopd`'s calls to Slurm: submit and cancel pilots, look at the queue, learn nodes and settings.
//!
//! Each call runs in a separate task and answers with an event, so Slurm never holds up a decision.

use crate::admission::Rules;
use crate::installation::Installation;
use crate::limits::{self, SlurmAccounts};
use crate::pilot_jobs::{Failure, PilotRequest, Seen, SeenJob, is_pilot, job_name};
use crate::supply::{self, Rooms};
use hop_api::config::{Config, Isolation, Pool};
use hop_core::config::{Limits, Shares};
use hop_core::{NodeFacts, PoolOffers};
use hop_slurm::gres::Gres;
use hop_slurm::span::TimeLimit;
use hop_slurm::state::JobState;
use hop_slurm::{
    Job, JobFilter, JobSpec, Node, Partition, Reservation, Settings, Slurm, SubmitError, WaitingJob,
};
use hop_words::error::chain;
use hop_words::id::{AccountName, GpuType, JobId, NodeName, PoolName, UserName};
use hop_words::replica::SEAT_JOB;
use hop_words::time::{Span, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;
use tracing::info;

/// Facts on the nodes and settings of Slurm that concern pilots.
#[derive(Debug)]
pub(crate) struct Facts {
    pub nodes: Vec<NodeFacts>,
    /// Nodes of pools' burst partitions, with these.
    pub burst: Vec<(NodeFacts, String)>,
    pub down: Vec<NodeName>,
    /// All nodes of the pools, powered-down ones included: kernels can sit there, and pilots start. `None` means
    /// that Slurm shows no node at all: a node's absence says nothing.
    pub members: Option<BTreeSet<NodeName>>,
    /// Usable nodes of each pool.
    pub usable: BTreeMap<PoolName, Vec<NodeName>>,
    /// Pools that must not be lent, with the reasons.
    pub refused: BTreeMap<PoolName, String>,
    /// Whom each pool's partition takes; or why that isn't known, while slurmdbd doesn't tell the accounts' parents.
    pub rules: Result<BTreeMap<PoolName, Rules>, String>,
    /// What each pool could ever have.
    pub offers: Vec<PoolOffers>,
    pub stepmgr: bool,
    /// What Slurm doesn't show us (`PrivateData`).
    pub hidden: Vec<String>,
}

/// A job's owner, and the account charged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    pub uid: u32,
    pub account: Option<AccountName>,
    pub qos: Option<String>,
    /// Where it runs.
    pub nodes: Vec<NodeName>,
    pub lives: bool,
}

/// The queue, as seen by one look.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// Of the service account.
    pub pilots: Vec<SeenJob>,
    /// Jobs of the users with seats that have started and live.
    pub alive: Vec<JobId>,
    /// Running jobs of `alive` with a time limit.
    pub ends: BTreeMap<JobId, Ending>,
    /// Drained nodes, with the reason given for each.
    pub drained: BTreeMap<NodeName, String>,
    pub rooms: Rooms,
    pub seats: Vec<WaitingSeat>,
    pub held_up: HeldUp,
}

/// A seat that Slurm has not started yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WaitingSeat {
    pub job: JobId,
    pub user: UserName,
    /// Slurm's word for why it waits.
    pub why: String,
}

/// Pilots in Slurm's queue that a reservation may hold up, without the nodes that they ask for.
#[derive(Debug, Default)]
pub(crate) struct HeldUp {
    pub pilots: Vec<(JobId, WaitingJob)>,
    pub reservations: Vec<Reservation>,
}

/// A job's end by its time limit. Slurm says it by the wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ending {
    pub at: Timestamp,
    /// The whole time that the job has.
    pub limit: Span,
}

#[derive(Debug, Clone)]
pub(crate) struct SlurmSide {
    slurm: Slurm,
    config: Config,
    /// Where the configuration was read, for pilots: an absolute path.
    file: PathBuf,
    installation: Installation,
    /// The service account. Its name is of no use while this host's user database doesn't know it.
    uid: u32,
}

impl SlurmSide {
    pub(crate) fn new(config: Config, file: PathBuf, installation: Installation) -> Self {
        let settings = Settings {
            timeout: Duration::from_secs(20),
            ..Settings::default()
        };
        let slurm = Slurm::new(settings).with_link(config.prefix.join("bin/hop-slurm-link"));
        Self {
            slurm,
            config,
            file,
            installation,
            uid: rustix::process::geteuid().as_raw(),
        }
    }

    pub(crate) fn installation(&self) -> &Installation {
        &self.installation
    }

    /// Submits a pilot.
    pub(crate) async fn sbatch(
        &self,
        ticket: u64,
        request: &PilotRequest,
        exclude: Vec<NodeName>,
        stepmgr: bool,
    ) -> Result<JobId, Failure> {
        let spec = self.pilot_spec(ticket, request, exclude, stepmgr)?;
        self.slurm.submit(&spec).await.map_err(|error| {
            let text = chain(&error);
            match error {
                SubmitError::Refused { reason, .. } if is_about_nodes(&reason) => Failure::Unfit(text),
                SubmitError::NoJobId { .. } => Failure::Uncertain(text),
                SubmitError::Run(hop_slurm::RunError::Timeout { .. }) => Failure::Uncertain(text),
                _ => Failure::No(text),
            }
        })
    }

    fn pilot_spec(
        &self,
        ticket: u64,
        request: &PilotRequest,
        exclude: Vec<NodeName>,
        stepmgr: bool,
    ) -> Result<JobSpec, Failure> {
        let pool_name = &request.pool;
        let Some(pool) = self.config.pool.get(pool_name) else {
            return Err(Failure::No(format!("there is no pool {pool_name}")));
        };
        let gpus = request.gpus.unwrap_or(pool.gpus_per_pilot);
        let asked = request.gpu_type.as_ref().map(GpuType::as_str);
        let gres = match (gpus, asked.or(pool.gpu_type.as_deref())) {
            (0, _) => Vec::new(),
            (n, Some(t)) => vec![format!("gpu:{t}:{n}")],
            (n, None) => vec![format!("gpu:{n}")],
        };
        let gres = gres
            .iter()
            .map(|g| Gres::parse(g))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| Failure::No(e.to_string()))?;
        Ok(JobSpec {
            script: self.script(pool_name),
            name: job_name(pool_name, ticket),
            comment: Some(self.installation.comment()),
            partition: Some(
                request
                    .partition
                    .clone()
                    .unwrap_or_else(|| pool.partition.clone()),
            ),
            account: pool.account.clone(),
            nodelist: request.node.iter().cloned().collect(),
            exclude,
            nodes: Some(1),
            ntasks: Some(1),
            cpus_per_task: Some(pool.cpus_for(gpus).into()),
            mem_mib: (pool.mem_mib > 0).then_some(pool.mem_mib),
            gres,
            time_limit_min: (pool.time_limit_min > 0).then_some(pool.time_limit_min),
            workdir: Some("/".into()),
            env: self.environment(),
            stepmgr,
            requeue: false,
            ..JobSpec::default()
        })
    }

    fn environment(&self) -> Vec<(String, String)> {
        let conf = self.file.display().to_string();
        let mut env = vec![(hop_api::config::CONFIG_VARIABLE.to_owned(), conf)];
        for name in ["PATH", "SLURM_CONF", "GRESSHOPPER_LOG"] {
            if let Ok(value) = std::env::var(name) {
                env.push((name.to_owned(), value));
            }
        }
        env
    }

    /// Starts the agent again when it dies without having been told to, a few times a minute at most.
    fn script(&self, pool: &PoolName) -> String {
        let agent = self.config.prefix.join("bin/hop-agent");
        format!(
            r#"#!/bin/sh
# Pilot of Gresshopper, pool {pool}: keeps the node's agent running.
umask 077
logs={logs}
mkdir -p "$logs" 2>/dev/null
log="$logs/pilot.$SLURM_JOB_ID.log"
if ( : >>"$log" ) 2>/dev/null; then exec 2>>"$log"; fi
told=
trap 'told=1; kill -TERM "$agent" 2>/dev/null' TERM INT
tries=0
while :; do
    began=$(date +%s)
    {agent} run --pool {pool} &
    agent=$!
    wait "$agent"; status=$?
    while kill -0 "$agent" 2>/dev/null; do wait "$agent"; status=$?; done
    [ -n "$told" ] && exit 0
    [ "$status" -eq 0 ] && exit 0
    if [ $(($(date +%s) - began)) -gt 30 ]; then tries=0; fi
    tries=$((tries + 1))
    [ "$tries" -gt 10 ] && exit 1
    [ "$tries" -gt 2 ] && sleep "$tries"
done
"#,
            agent = shell_word(&agent.display().to_string()),
            pool = shell_word(pool.as_str()),
            logs = shell_word(&self.config.agent.state_dir.display().to_string()),
        )
    }

    pub(crate) async fn scancel(&self, job: JobId) -> Result<(), String> {
        self.slurm.cancel(job).await.map_err(|e| chain(&e))
    }

    /// A single look for all: our pilots, the jobs of users with seats, and the drained nodes. `known`: the pilots known
    /// by their ids.
    pub(crate) async fn queue(
        &self,
        seat_users: Vec<UserName>,
        known: &BTreeSet<JobId>,
    ) -> Result<Queue, String> {
        // An ended pilot's row tells the node on which it came to nothing.
        let filter = JobFilter {
            users: seat_users,
            uids: vec![self.uid],
            ended: true,
            ..JobFilter::default()
        };
        let jobs = self.slurm.jobs(&filter).await.map_err(|e| chain(&e))?;
        // A seat that Slurm has put back into its queue is no place for a kernel; it reports again if it starts again.
        let is_there = |j: &&Job| !j.state.is_over() && !j.state.is_waiting();
        let alive = jobs.iter().filter(is_there).map(|j| j.id).collect();
        let held_up = self.held_up(&jobs, known).await;
        let ends = jobs.iter().filter_map(|j| Some((j.id, ending(j)?))).collect();
        let nodes = self.slurm.nodes().await.map_err(|e| chain(&e))?;
        let rooms = supply::rooms(&self.config, self.uid, &jobs, &nodes, known, &self.installation);
        let seats = jobs
            .iter()
            .filter_map(|j| waiting_seat(&self.config, j))
            .collect();
        let service = self.uid;
        let pilots = jobs.into_iter().filter(|j| j.uid == service).map(seen).collect();
        let drained = nodes.into_iter().filter(|n| n.state.is_drained());
        let drained = drained
            .map(|n| (n.name, n.reason.unwrap_or_else(|| n.state.to_string())))
            .collect();
        Ok(Queue {
            pilots,
            alive,
            ends,
            drained,
            rooms,
            seats,
            held_up,
        })
    }

    /// Reservations are only asked for while a pilot waits.
    async fn held_up(&self, jobs: &[Job], known: &BTreeSet<JobId>) -> HeldUp {
        let is_pilot = |j: &&Job| is_pilot(&j.name) || known.contains(&j.id);
        let waiting = jobs.iter().filter(|j| j.state.is_waiting()).filter(is_pilot);
        let waiting = waiting.map(|j| {
            let job = WaitingJob {
                nodes: Vec::new(),
                limit: j.limit,
                reason: j.reason.clone().unwrap_or_default(),
            };
            (j.id, job)
        });
        let pilots: Vec<_> = waiting.filter(|(_, job)| job.may_be_held_up()).collect();
        if pilots.is_empty() {
            return HeldUp::default();
        }
        let reservations = self.slurm.reservations().await;
        let reservations = reservations.unwrap_or_else(|error| {
            info!("Slurm's reservations can't be read: {}", chain(&error));
            Vec::new()
        });
        HeldUp { pilots, reservations }
    }

    /// Lowers a pilot's time limit.
    pub(crate) async fn shorten(&self, job: JobId, minutes: u32) -> Result<(), String> {
        self.slurm.shorten(job, minutes).await.map_err(|e| chain(&e))
    }

    /// What Slurm doesn't show us.
    async fn hidden(&self, settings: &hop_slurm::Config) -> Result<Vec<String>, String> {
        let user = &self.config.service_user;
        self.slurm
            .hidden_from(user, settings)
            .await
            .map_err(|e| chain(&e))
    }

    /// The job's owner; `None` if Slurm has forgotten the job, or hides it.
    pub(crate) async fn owner(&self, job: JobId) -> Result<Option<Owner>, String> {
        let found = self.slurm.job(job).await.map_err(|e| chain(&e))?;
        Ok(found.map(|j| Owner {
            uid: j.uid,
            account: j.account,
            qos: j.qos,
            nodes: j.nodes,
            lives: !j.state.is_over(),
        }))
    }

    /// Limits of users by slurmdbd's associations and QOS, and the users' holdings in their own jobs. No limits where
    /// Slurm doesn't enforce them (`AccountingStorageEnforce`).
    pub(crate) async fn limits(&self) -> Result<Limits, String> {
        let settings = self.slurm.config().await.map_err(|e| chain(&e))?;
        if !settings.enforces_limits() {
            return Ok(Limits::default());
        }
        let cluster = settings.cluster().unwrap_or("cluster").to_owned();
        let associations = self.slurm.associations(&cluster).await.map_err(|e| chain(&e))?;
        let qos = self.slurm.qos_limits().await.map_err(|e| chain(&e))?;
        let partitions = self.slurm.partitions().await.map_err(|e| chain(&e))?;
        let mut jobs = self
            .slurm
            .jobs(&JobFilter::default())
            .await
            .map_err(|e| chain(&e))?;
        jobs.retain(|j| j.uid != self.uid);
        let pools = self.config.pool.iter();
        let pools: Vec<_> = pools
            .map(|(name, p)| (name.clone(), p.partition.clone()))
            .collect();
        let limits = SlurmAccounts {
            associations: &associations,
            qos: &qos,
            partitions: &partitions,
            jobs: &jobs,
            pools: &pools,
            service: &self.config.service_user,
        };
        Ok(limits.limits())
    }

    /// Fair shares and past usage, asked at `at`.
    pub(crate) async fn shares(&self, at: Timestamp) -> Result<Shares, String> {
        let rows = self.slurm.shares().await.map_err(|e| chain(&e))?;
        Ok(limits::shares(&rows, &self.config.service_user, at))
    }

    /// The nodes, and whether Slurm keeps GPUs apart as each pool says it does.
    pub(crate) async fn facts(&self) -> Result<Facts, String> {
        let settings = self.slurm.config().await.map_err(|e| chain(&e))?;
        let partitions = self.slurm.partitions().await.map_err(|e| chain(&e))?;
        let nodes = self.slurm.nodes().await.map_err(|e| chain(&e))?;
        let mut facts = Facts {
            nodes: Vec::new(),
            burst: Vec::new(),
            down: Vec::new(),
            members: (!nodes.is_empty()).then(|| self.members(&partitions, &nodes)),
            usable: BTreeMap::new(),
            refused: BTreeMap::new(),
            // All else is slurmctld's word, and holds without slurmdbd.
            rules: self.rules(&settings, &partitions).await,
            offers: self
                .config
                .pool
                .iter()
                .map(|(name, pool)| offers(name, pool, &partitions, &nodes))
                .collect(),
            stepmgr: settings.has_stepmgr(),
            // Without slurmdbd's word nothing is complained of.
            hidden: self.hidden(&settings).await.unwrap_or_default(),
        };
        let seats = self.seating(&partitions);
        let seated = nodes.iter().filter(|n| may_sit(seats.as_ref(), &n.name));
        let mut own = supply::own(&self.config, seated);
        for (name, pool) in &self.config.pool {
            let partition = partitions.iter().find(|p| p.name == pool.partition);
            let why = refusal(pool, partition, settings.constrains_devices());
            match why.or_else(|| own.disputed.remove(name)) {
                Some(why) => drop(facts.refused.insert(name.clone(), why)),
                None => {
                    let usable = own.usable.remove(name).unwrap_or_default();
                    facts.usable.insert(name.clone(), usable);
                }
            }
        }
        (facts.nodes, facts.down) = (own.nodes, own.down);
        self.burst_facts(&partitions, &nodes, &mut facts);
        Ok(facts)
    }

    /// The nodes of the pools' partitions on which kernels can sit. Of a powered-down node only the partition may tell.
    fn members(&self, partitions: &[Partition], nodes: &[Node]) -> BTreeSet<NodeName> {
        let seats = self.seating(partitions);
        let pools = || self.config.pool.values();
        let own = |name: &String| pools().any(|p| p.partition == *name);
        let burst = |name: &String| pools().flat_map(|p| &p.burst).any(|b| b.partition == *name);
        let is_member =
            |name: &String, node: &NodeName| burst(name) || own(name) && may_sit(seats.as_ref(), node);
        let listed = partitions
            .iter()
            .flat_map(|p| p.nodes.iter().map(|n| (&p.name, n)));
        let told = nodes
            .iter()
            .flat_map(|n| n.partitions.iter().map(|p| (p, &n.name)));
        let members = listed.chain(told).filter(|(name, node)| is_member(name, node));
        members.map(|(_, node)| node.clone()).collect()
    }

    /// The nodes of the seats' partition; `None` means unknown.
    fn seating<'a>(&self, partitions: &'a [Partition]) -> Option<BTreeSet<&'a NodeName>> {
        let seats = partitions.iter().find(|p| p.name == self.config.seat.partition)?;
        (!seats.nodes.is_empty()).then(|| seats.nodes.iter().collect())
    }

    /// Rules of the pools' partitions. From 23.02 on, a rule on an account also holds for its children.
    async fn rules(
        &self,
        settings: &hop_slurm::Config,
        partitions: &[Partition],
    ) -> Result<BTreeMap<PoolName, Rules>, String> {
        let found = |name: &str| partitions.iter().find(|p| p.name == name);
        let of = |pool: &Pool| {
            found(&pool.partition)
                .map(|p| p.admits.clone())
                .unwrap_or_default()
        };
        let all: Vec<_> = self
            .config
            .pool
            .iter()
            .map(|(name, pool)| (name, pool, of(pool)))
            .collect();
        let on_accounts = |a: &hop_slurm::Admits| a.accounts.is_some() || !a.not_accounts.is_empty();
        let hierarchical = settings.version().is_some_and(|v| v.series() >= (23, 2));
        let mut parents = BTreeMap::new();
        if hierarchical && all.iter().any(|(.., admits)| on_accounts(admits)) {
            let cluster = settings.cluster().unwrap_or("cluster").to_owned();
            let associations = self.slurm.associations(&cluster).await.map_err(|e| chain(&e))?;
            let above = associations.into_iter().filter(|a| a.user.is_none());
            parents.extend(above.filter_map(|a| Some((a.account, a.parent?))));
        }
        let rules = all.into_iter().map(|(name, pool, admits)| {
            let rules = Rules {
                partition: pool.partition.clone(),
                admits,
                parents: parents.clone(),
            };
            (name.clone(), rules)
        });
        Ok(rules.collect())
    }

    /// Nodes of burst partitions. Of a powered-down node Slurm may tell the name alone: such a node counts as large as
    /// a pilot of the pool.
    fn burst_facts(&self, partitions: &[Partition], nodes: &[Node], facts: &mut Facts) {
        for (name, pool) in &self.config.pool {
            for burst in &pool.burst {
                let Some(partition) = partitions.iter().find(|p| p.name == burst.partition) else {
                    let why = format!("Slurm has no partition {} (burst)", burst.partition);
                    facts.refused.insert(name.clone(), why);
                    continue;
                };
                let own = partitions.iter().find(|p| p.name == pool.partition);
                if own.is_some_and(|own| own.admits != partition.admits) {
                    let why = format!(
                        "partition {} (burst) takes others than partition {}: give both the same AllowAccounts, \
                         DenyAccounts, AllowGroups, AllowQos and DenyQos",
                        partition.name, pool.partition
                    );
                    facts.refused.insert(name.clone(), why);
                }
                for node in &partition.nodes {
                    let known = nodes.iter().find(|n| n.name == *node);
                    if known.is_some_and(|n| !n.state.is_usable() && !n.state.is_powered_down()) {
                        facts.down.push(node.clone());
                    }
                    let there = NodeFacts {
                        node: node.clone(),
                        pool: name.clone(),
                        gpus: known.map_or(pool.gpus_per_pilot, |n| supply::gpus(pool, &n.gres)),
                        gpu_type: known.map_or_else(
                            || pool.gpu_type.as_deref().unwrap_or_default().into(),
                            |n| supply::gpu_type(pool, &n.gres),
                        ),
                        gpu_mem_mib: pool.gpu_mem_mib,
                        cpus: known
                            .map_or(pool.cpus_per_pilot, |n| u16::try_from(n.cpus).unwrap_or(u16::MAX)),
                    };
                    facts.burst.push((there, burst.partition.clone()));
                }
            }
        }
    }
}

/// Whether seats of the seats' own partition can be on the node.
fn may_sit(seats: Option<&BTreeSet<&NodeName>>, node: &NodeName) -> bool {
    seats.is_none_or(|nodes| nodes.contains(node))
}

/// The most that a node of the pool could ever have, in any state, burst nodes included. An unregistered node may have
/// more than Slurm knows.
fn offers(name: &PoolName, pool: &Pool, partitions: &[Partition], nodes: &[Node]) -> PoolOffers {
    let own = std::iter::once(&pool.partition);
    let wanted = own.chain(pool.burst.iter().map(|b| &b.partition));
    let (mut gpus, mut types_known, mut cpus) = (BTreeMap::new(), true, 0);
    let mut most = |gpu_type: GpuType, count: u64| {
        let known = gpus.entry(gpu_type).or_default();
        *known = u16::try_from(count).unwrap_or(u16::MAX).max(*known);
    };
    if let Some(gpu_type) = &pool.gpu_type {
        most(gpu_type.as_str().into(), pool.gpus_per_pilot.into());
    }
    for partition in wanted {
        let found = partitions.iter().find(|p| p.name == *partition);
        let places = found.map_or(&[][..], |p| &p.nodes);
        let known = places.iter().map(|n| nodes.iter().find(|known| known.name == *n));
        if places.is_empty() {
            (types_known, cpus) = (false, u16::MAX);
        }
        for node in known {
            let Some(node) = node.filter(|n| n.version.is_some() || n.gres.iter().any(is_typed)) else {
                (types_known, cpus) = (false, u16::MAX);
                continue;
            };
            cpus = u16::try_from(node.cpus).unwrap_or(u16::MAX).max(cpus);
            let kind = pool.gpu_type.as_deref();
            for gres in node.gres.iter().filter(|g| g.is_gpu_of(kind)) {
                most(gres.gpu_type(), gres.count);
            }
        }
    }
    PoolOffers {
        pool: name.clone(),
        gpus: gpus.into_iter().collect(),
        types_known,
        gpu_mem_mib: pool.gpu_mem_mib,
        cpus,
    }
}

/// Whether Slurm refuses the job because of the named node: the node could never run the job.
fn is_about_nodes(reason: &str) -> bool {
    let words = [
        "Requested node configuration is not available",
        "Invalid node name specified",
    ];
    words.iter().any(|w| reason.contains(w))
}

fn is_typed(gres: &Gres) -> bool {
    gres.name == "gpu" && gres.kind.is_some()
}

fn refusal(pool: &Pool, partition: Option<&Partition>, constrained: bool) -> Option<String> {
    let Some(partition) = partition else {
        return Some(format!("Slurm has no partition {}", pool.partition));
    };
    let of_no_use = ends_too_soon(pool, partition).or_else(|| leaves_no_seat(partition));
    if of_no_use.is_some() {
        return of_no_use;
    }
    if pool.isolation == Isolation::None {
        return None;
    }
    if !constrained {
        return Some(
            "Slurm doesn't constrain devices (ConstrainDevices=yes in cgroup.conf and TaskPlugin=task/cgroup); \
             set isolation = \"none\" for the pool to lend all the same"
                .into(),
        );
    }
    if partition.may_suspend() {
        return Some(format!(
            "jobs of partition {} may be suspended (PreemptMode or OverSubscribe): a suspended job's GPUs are not \
             its own; use a partition that doesn't suspend",
            partition.name
        ));
    }
    None
}

/// Why the pool's pilots would be of no use by their time limit, or never start.
fn ends_too_soon(pool: &Pool, partition: &Partition) -> Option<String> {
    let minutes = |limit: TimeLimit| limit.span().map(|span| span.0 / 60_000_000);
    let name = &partition.name;
    let (minutes, mend) = match (pool.time_limit_min, partition.default_time) {
        (0, TimeLimit::Unset) => (minutes(partition.max_time)?, "lower rotate_before_s".to_owned()),
        // sbatch without --time.
        (0, default) => {
            let mend = format!("set time_limit_min, since partition {name} has a DefaultTime");
            (minutes(default)?, mend)
        }
        (minutes, _) => (minutes.into(), "lower rotate_before_s".to_owned()),
    };
    // A pilot is replaced this long before its end, and must be of use until then.
    (minutes * 60 < 2 * u64::from(pool.rotate_before_s)).then(|| {
        format!(
            "its pilots end after {minutes} min and are to be replaced {} s before: {mend}",
            pool.rotate_before_s
        )
    })
}

/// Why no user's seat could be on a pilot's node.
fn leaves_no_seat(partition: &Partition) -> Option<String> {
    let (name, setting) = (&partition.name, partition.gives_whole_nodes()?);
    Some(format!(
        "partition {name} has {setting}: no user's seat can be beside a pilot; use a partition without it"
    ))
}

/// The end of a running job with a time limit.
fn ending(job: &Job) -> Option<Ending> {
    match (job.end, job.limit) {
        (Some(at), TimeLimit::At(limit)) if job.state == JobState::Running => Some(Ending { at, limit }),
        _ => None,
    }
}

fn seen(job: Job) -> SeenJob {
    let state = match &job.state {
        JobState::Suspended | JobState::Stopped => Seen::Suspended,
        JobState::NodeFail => Seen::NodeFailed,
        state if state.is_over() => Seen::Over,
        state if state.is_waiting() => Seen::Waiting,
        JobState::Completing => Seen::Over,
        JobState::Configuring => Seen::Configuring,
        _ => Seen::Running,
    };
    SeenJob {
        job: job.id,
        name: job.name,
        node: job.nodes.into_iter().next(),
        state,
        reason: job.reason.unwrap_or_default(),
        installation: Installation::of_comment(job.comment.as_deref()),
    }
}

/// The job, if it is a seat that waits for a reason that Slurm has said.
fn waiting_seat(config: &Config, job: &Job) -> Option<WaitingSeat> {
    let bursts = config.pool.values().flat_map(|pool| &pool.burst);
    let mut partitions = bursts.map(|b| &b.partition).chain([&config.seat.partition]);
    let is_there = partitions.any(|p| job.partition.split(',').any(|asked| asked == p));
    let is_seat = job.name == SEAT_JOB && is_there && job.state.is_waiting();
    let why = job.reason.as_ref().filter(|_| is_seat)?;
    Some(WaitingSeat {
        job: job.id,
        user: job.user.clone(),
        why: why.clone(),
    })
}

/// A single word for a POSIX shell, whatever the text.
fn shell_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pilot_jobs::PilotJobs;
    use hop_slurm::Version;
    use hop_slurm::link::{self, Hello, PROTOCOL};
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    fn installation() -> Installation {
        Installation::parse("0123456789abcdef0123456789abcdef").unwrap()
    }

    fn side() -> SlurmSide {
        let text = "[pool.main]\npartition='p'\naccount='pool'\ngpus_per_pilot=2\ncpus_per_pilot=8\nmin_pilots=1\nmax_pilots=1";
        SlurmSide::new(
            Config::parse(text, "x".as_ref()).unwrap(),
            "/site/g.toml".into(),
            installation(),
        )
    }

    #[test]
    fn a_pilot_is_one_named_job_on_one_node() {
        let side = side();
        let request = PilotRequest {
            pool: "main".into(),
            partition: None,
            node: Some("n1".into()),
            gpus: None,
            gpu_type: None,
        };
        let spec = side.pilot_spec(5, &request, vec![], true).unwrap();
        assert_eq!(spec.name, "hop-pool.main.5");
        assert_eq!(spec.comment, Some(installation().comment()));
        assert_eq!(
            (spec.nodes, spec.cpus_per_task, spec.stepmgr),
            (Some(1), Some(8), true)
        );
        assert_eq!(spec.gres, [Gres::parse("gpu:2").unwrap()]);
        assert_eq!(spec.nodelist, [NodeName::from("n1")]);
        assert!(!spec.requeue && spec.time_limit_min.is_none());
        assert_eq!(spec.mem_mib, Some(1024), "seats need the rest of the node's");
        assert!(spec.script.starts_with("#!/bin/sh\n"));
        let named = |(name, _): &&(String, String)| name == hop_api::config::CONFIG_VARIABLE;
        let file = spec.env.iter().find(named).map(|(_, file)| file.as_str());
        assert_eq!(file, Some("/site/g.toml"), "the file that hopd read");
        let small = PilotRequest {
            partition: Some("burst".into()),
            gpus: Some(1),
            ..request.clone()
        };
        let small = side.pilot_spec(6, &small, vec![], true).unwrap();
        assert_eq!(
            (small.partition.as_deref(), small.cpus_per_task),
            (Some("burst"), Some(4))
        );
        assert_eq!(small.gres, [Gres::parse("gpu:1").unwrap()]);
        let typed = PilotRequest {
            gpus: Some(1),
            gpu_type: Some("b".into()),
            ..request
        };
        let typed = side.pilot_spec(7, &typed, vec![], true).unwrap();
        assert_eq!(
            typed.gres,
            [Gres::parse("gpu:b:1").unwrap()],
            "the type asked for"
        );
        assert!(
            spec.script
                .contains("'/opt/gresshopper/bin/hop-agent' run --pool 'main'")
        );
    }

    #[test]
    fn a_pilots_memory_is_the_pools_and_0_leaves_it_to_slurm() {
        let mut side = side();
        let request = PilotRequest {
            pool: "main".into(),
            partition: None,
            node: None,
            gpus: Some(1),
            gpu_type: None,
        };
        for (mem_mib, asked) in [(512, Some(512)), (0, None)] {
            side.config.pool.get_mut(&"main".into()).unwrap().mem_mib = mem_mib;
            let spec = side.pilot_spec(5, &request, vec![], true).unwrap();
            assert_eq!(spec.mem_mib, asked);
        }
    }

    fn node(name: &str, gres: &str, version: Option<&str>) -> Node {
        Node {
            name: name.into(),
            state: hop_slurm::state::NodeState::parse("IDLE"),
            reason: None,
            cpus: 16,
            cpus_allocated: 0,
            threads_per_core: 1,
            mem_mib: 0,
            mem_allocated_mib: 0,
            gres: Gres::parse_list(gres),
            gres_unread: vec![],
            gres_used: vec![],
            features: vec![],
            partitions: vec!["p".into()],
            version: version.map(str::to_owned),
        }
    }

    #[test]
    fn a_pool_offers_what_any_of_its_nodes_could_have_as_far_as_slurm_knows() {
        let side = side();
        let name: PoolName = "main".into();
        let pool = &side.config.pool[&name];
        let partitions = [Partition {
            nodes: vec!["a".into(), "b".into()],
            ..partition("OFF")
        }];
        let of = |nodes: &[Node]| offers(&name, pool, &partitions, nodes);
        let a = || node("a", "gpu:a100:4", Some("22.05"));
        let both = of(&[a(), node("b", "gpu:h100:1,gpu:a100:8", None)]);
        assert_eq!(both.gpus, [("a100".into(), 8), ("h100".into(), 1)]);
        assert!(both.types_known && both.cpus == 16);
        // Not there, not registered, or told by name alone: nobody knows.
        for unknown in [
            vec![a()],
            vec![a(), node("b", "gpu:4", None)],
            vec![a(), node("b", "", None)],
        ] {
            let known = of(&unknown);
            assert!(!known.types_known && known.cpus == u16::MAX, "{known:?}");
        }
        let untyped = of(&[a(), node("b", "gpu:4", Some("22.05"))]);
        assert_eq!(untyped.gpus, [("".into(), 4), ("a100".into(), 4)]);
        assert!(untyped.types_known);
        let typed = Pool {
            gpu_type: Some("a100".into()),
            ..pool.clone()
        };
        let known = offers(
            &name,
            &typed,
            &partitions,
            &[a(), node("b", "gpu:h100:1", Some("22.05"))],
        );
        assert_eq!(known.gpus, [("a100".into(), 4)]);
    }

    fn two_pools(first: &str, second: &str) -> Config {
        let pool = |name: &str, more: &str| {
            format!(
                "[pool.{name}]\npartition='p'\naccount='pool'\ngpus_per_pilot=4\ncpus_per_pilot=8\nmin_pilots=1\n\
                 max_pilots=1\n{more}\n"
            )
        };
        let text = pool("a", first) + &pool("b", second);
        Config::parse(&text, "x".as_ref()).unwrap()
    }

    /// The node's pool, GPUs and type in the facts, and the pools able to take the node.
    fn facts_of<'a>(own: &'a supply::Own, node: &str) -> Option<(&'a str, u16, &'a str, Vec<&'a str>)> {
        let facts = own.nodes.iter().find(|n| n.node.as_str() == node)?;
        let usable = own.usable.iter();
        let usable = usable.filter(|(_, nodes)| nodes.contains(&facts.node));
        let usable = usable.map(|(pool, _)| pool.as_str()).collect();
        Some((facts.pool.as_str(), facts.gpus, facts.gpu_type.as_str(), usable))
    }

    #[test]
    fn a_pool_has_the_nodes_and_gpus_of_its_type() {
        let config = two_pools("gpu_type='t4'", "gpu_type='a100'");
        let nodes = [
            node("na", "gpu:a100:4", None),
            node("nt", "gpu:t4:4", None),
            node("few", "gpu:t4:2,gpu:a100:2", None),
            node("none", "gpu:v100:8", None),
            Node {
                cpus: 4,
                ..node("cores", "gpu:t4:8", None)
            },
        ];
        let own = supply::own(&config, nodes.iter());
        assert_eq!(facts_of(&own, "na"), Some(("b", 4, "a100", vec!["b"])));
        assert_eq!(facts_of(&own, "nt"), Some(("a", 4, "t4", vec!["a"])));
        assert_eq!(facts_of(&own, "few"), Some(("a", 2, "t4", vec![])));
        assert_eq!(facts_of(&own, "none"), None);
        assert_eq!(facts_of(&own, "cores"), Some(("a", 8, "t4", vec![])));
        assert_eq!((own.disputed, own.down), (BTreeMap::new(), vec![]));
    }

    #[test]
    fn of_two_pools_for_one_node_the_second_is_refused_with_what_to_do() {
        let mixed = [node("n1", "gpu:t4:4,gpu:a100:4", None)];
        for config in [
            two_pools("", ""),
            two_pools("", "gpu_type='t4'"),
            two_pools("gpu_type='t4'", "gpu_type='a100'"),
        ] {
            let own = supply::own(&config, mixed.iter());
            assert_eq!(facts_of(&own, "n1").unwrap().0, "a");
            let why: Vec<_> = own
                .disputed
                .iter()
                .map(|(p, why)| (p.as_str(), why.as_str()))
                .collect();
            let said = "its pilots could go to node n1 of pool a: give each of the two a partition or a gpu_type of \
                        its own";
            assert_eq!(why, [("b", said)]);
        }
        // The second takes none of its pilots.
        let small = [node("n1", "gpu:t4:2", None)];
        assert_eq!(
            supply::own(&two_pools("", ""), small.iter()).disputed,
            BTreeMap::new()
        );
    }

    /// The service account's uid in the tests.
    const SERVICE: u32 = 61000;

    fn job(name: &str, uid: u32, node: &str, cpus: u32, gres: &str) -> Job {
        Job {
            id: JobId(1),
            name: name.to_owned(),
            comment: None,
            // As Slurm shows a user without a name.
            user: if uid == 1 { "ada" } else { "nobody" }.into(),
            uid,
            account: None,
            partition: "p".to_owned(),
            qos: None,
            state: JobState::Running,
            reason: None,
            nodes: vec![node.into()],
            cpus,
            gres: Gres::parse_list(gres),
            submitted: None,
            start: None,
            end: None,
            limit: TimeLimit::Unlimited,
        }
    }

    #[test]
    fn a_seat_that_waits_is_told_with_slurms_word() {
        let config = two_pools("gpu_type='t4'", "gpu_type='a100'");
        let seat = || Job {
            state: JobState::Pending,
            partition: format!("other,{}", config.seat.partition),
            reason: Some("Resources".to_owned()),
            nodes: Vec::new(),
            ..job(SEAT_JOB, 1, "", 1, "")
        };
        let told = waiting_seat(&config, &seat()).unwrap();
        assert_eq!((told.user.as_str(), told.why.as_str()), ("ada", "Resources"));
        let others = [
            job(SEAT_JOB, 1, "n1", 1, ""),
            Job {
                name: "train".to_owned(),
                ..seat()
            },
            Job {
                partition: "other".to_owned(),
                ..seat()
            },
            Job {
                reason: None,
                ..seat()
            },
        ];
        for other in others {
            assert_eq!(waiting_seat(&config, &other), None, "{other:?}");
        }
    }

    #[test]
    fn room_is_what_the_jobs_of_others_leave() {
        let config = two_pools("gpu_type='t4'", "gpu_type='a100'");
        let uses = |name: &str, used: &str, cpus: u32| Node {
            gres_used: Gres::parse_list(used),
            cpus_allocated: cpus,
            mem_mib: 1 << 20,
            ..node(name, "gpu:t4:4", None)
        };
        let of = |name, comment| Job {
            comment,
            ..job("hop-pool.a.7", SERVICE, name, 8, "gpu:t4:4")
        };
        let pilot = |node| of(node, Some(installation().comment()));
        let renamed = Job {
            id: JobId(2),
            ..job("evil", SERVICE, "renamed", 8, "gpu:t4:4")
        };
        let jobs = [
            pilot("ours"),
            pilot("both"),
            renamed,
            job("train", 1, "batch", 8, "gpu:t4:4"),
            job("hop-pool.a.7", 1, "forged", 8, "gpu:t4:4"),
            of("another", Some(Installation::random().comment())),
            of("unsigned", None),
        ];
        let nodes = [
            uses("idle", "gpu:t4:0(IDX:N/A)", 0),
            uses("ours", "gpu:t4:4(IDX:0-3)", 8),
            uses("both", "gpu:t4:4(IDX:0-3)", 16),
            uses("batch", "gpu:t4:3(IDX:0-2)", 4),
            uses("forged", "gpu:t4:4(IDX:0-3)", 8),
            uses("renamed", "gpu:t4:4(IDX:0-3)", 8),
            uses("another", "gpu:t4:4(IDX:0-3)", 8),
            uses("unsigned", "gpu:t4:4(IDX:0-3)", 8),
            uses("cores", "gpu:t4:0(IDX:N/A)", 9),
            Node {
                state: hop_slurm::state::NodeState::parse("IDLE+RESERVED"),
                ..uses("course", "gpu:t4:0(IDX:N/A)", 0)
            },
            Node {
                mem_allocated_mib: 1 << 20,
                ..uses("full", "gpu:t4:0(IDX:N/A)", 1)
            },
        ];
        let rooms = supply::rooms(
            &config,
            SERVICE,
            &jobs,
            &nodes,
            &[JobId(2)].into(),
            &installation(),
        );
        let room = |taken, seat| hop_core::Room { taken, seat };
        let expected = [
            ("another", room(4, true)),
            ("batch", room(3, true)),
            ("both", room(0, false)),
            ("cores", room(u16::MAX, true)),
            ("course", room(u16::MAX, false)),
            ("forged", room(4, true)),
            ("full", room(0, false)),
            ("idle", room(0, true)),
            ("ours", room(0, true)),
            ("renamed", room(0, true)),
            ("unsigned", room(4, true)),
        ];
        assert_eq!(rooms.of, expected.map(|(n, r)| (NodeName::from(n), r)).into());
        let full = ["another", "batch", "cores", "course", "forged", "unsigned"];
        assert_eq!(rooms.full, full.map(NodeName::from).into());
    }

    /// A Slurm with these jobs and nodes, told by a helper in the shell.
    fn slurm_with(dir: &Path, jobs: &[Job], nodes: &[Node]) -> Slurm {
        let hello = Hello {
            protocol: PROTOCOL,
            built: Some(Version::parse("22.05.8").unwrap()),
            api: Some((38, 38)),
        };
        let jobs = link::Answer::Jobs {
            time: 1,
            jobs: jobs.to_vec(),
        };
        let nodes = link::Answer::Nodes {
            time: 1,
            nodes: nodes.to_vec(),
        };
        for (name, text) in [
            ("hello", serde_json::to_string(&hello).unwrap()),
            ("jobs", serde_json::to_string(&jobs).unwrap()),
            ("nodes", serde_json::to_string(&nodes).unwrap()),
        ] {
            std::fs::write(dir.join(name), text + "\n").unwrap();
        }
        let script = "#!/bin/sh\ncd \"${0%/*}\"; cat hello\nwhile read -r asked; do case $asked in\n\
                      *jobs*) cat jobs;;\n*) cat nodes;;\nesac; done\n";
        let helper = dir.join("helper");
        std::fs::write(&helper, script).unwrap();
        std::fs::set_permissions(&helper, std::fs::Permissions::from_mode(0o755)).unwrap();
        Slurm::new(Settings::default()).with_link(helper)
    }

    /// As `squeue` and `scontrol` answer on a host whose user database names nobody: the jobs of named users are left
    /// out, and all ends well.
    const NAMELESS: &str = r#"#!/bin/sh
case "$0" in *scontrol) exit 0;; esac
for word in "$@"; do case "$word" in
--user=*) echo "squeue: error: Invalid user: ${word#*=}" >&2; exit 0;;
--format=*) format=${word#*=};;
esac; done
printf %s "$format" | sed 's/%A/7/; s/%T/RUNNING/; s/%r/None/; s/%u/nobody/; s/%U/UID/; s/%P/p/; s/%a/pool/
s/%q/normal/; s/%N/n1/; s/%C/8/; s/%b/gpu:2/; s/%V/1/; s/%S/1/; s/%e/N\/A/; s/%l/UNLIMITED/; s/%k//; s/%j/hop-pool.main.1/'
"#;

    #[tokio::test]
    async fn pilots_are_seen_while_the_user_database_names_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let mut side = side();
        for name in ["squeue", "scontrol"] {
            let path = dir.path().join(name);
            std::fs::write(&path, NAMELESS.replace("UID", &side.uid.to_string())).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        side.slurm = Slurm::new(Settings {
            bin: Some(dir.path().into()),
            ..Settings::default()
        });
        let queue = side.queue(vec!["ada".into()], &BTreeSet::new()).await.unwrap();
        let pilots: Vec<JobId> = queue.pilots.iter().map(|p| p.job).collect();
        assert_eq!((pilots, queue.alive), (vec![JobId(7)], vec![JobId(7)]));
    }

    #[tokio::test]
    async fn a_look_at_the_queue_shows_where_a_pilot_died() {
        let dir = tempfile::tempdir().unwrap();
        let mut side = side();
        let died = Job {
            id: JobId(11),
            state: JobState::Failed,
            ..job("hop-pool.main.1", side.uid, "n1", 8, "gpu:2")
        };
        let ended = Job {
            id: JobId(12),
            state: JobState::Completed,
            ..job("a seat", 1, "n1", 1, "")
        };
        side.slurm = slurm_with(dir.path(), &[died, ended], &[node("n1", "gpu:2", None)]);
        let queue = side.queue(vec!["ada".into()], &BTreeSet::new()).await.unwrap();
        assert_eq!((queue.alive, queue.ends), (vec![], BTreeMap::new()));
        let free = hop_core::Room {
            taken: 0,
            seat: false,
        };
        assert_eq!(queue.rooms.of, [("n1".into(), free)].into());
        let mut pilot_jobs = PilotJobs::default();
        let request = PilotRequest {
            pool: "main".into(),
            partition: None,
            node: None,
            gpus: None,
            gpu_type: None,
        };
        pilot_jobs.restore(1, request, Some(JobId(11)));
        pilot_jobs.looked(&queue.pilots, &BTreeSet::new(), Timestamp(1));
        let problems: Vec<_> = pilot_jobs.problems().collect();
        assert!(
            matches!(&problems[..], [one] if one.contains("No pilot came up on node n1: Slurm job 11 ended")),
            "{problems:?}"
        );
    }

    #[tokio::test]
    async fn a_seat_that_is_back_in_the_queue_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let mut side = side();
        let of = |id: u32, state: JobState| Job {
            id: JobId(id),
            state,
            ..job(SEAT_JOB, 1, "n1", 1, "")
        };
        let jobs = [
            of(12, JobState::Pending),
            of(13, JobState::Running),
            of(14, JobState::Requeued),
        ];
        side.slurm = slurm_with(dir.path(), &jobs, &[node("n1", "gpu:2", None)]);
        let queue = side.queue(vec!["ada".into()], &BTreeSet::new()).await.unwrap();
        assert_eq!(queue.alive, [JobId(13)]);
    }

    #[test]
    fn a_refusal_of_the_node_is_told_from_all_others() {
        assert!(is_about_nodes(
            "sbatch: error: Batch job submission failed: Requested node configuration is not available"
        ));
        assert!(!is_about_nodes(
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)"
        ));
    }

    #[test]
    fn a_node_is_in_a_pool_where_pilots_and_kernels_can_be() {
        let text = "[pool.main]\npartition='p'\naccount='pool'\ngpus_per_pilot=2\ncpus_per_pilot=8\nmin_pilots=1\n\
                    max_pilots=1\n[pool.main.scale]\n[[pool.main.burst]]\npartition='cloud'\nmax_pilots=1";
        let side = SlurmSide::new(
            Config::parse(text, "x".as_ref()).unwrap(),
            "/site/g.toml".into(),
            installation(),
        );
        let of = |name: &str, nodes: &[&str]| Partition {
            name: name.into(),
            nodes: nodes.iter().map(|n| NodeName::from(*n)).collect(),
            ..partition("OFF")
        };
        // Slurm shows b and c of powered-down nodes in their partitions alone.
        let partitions = [of("p", &["b"]), of("cloud", &["c"]), of("others", &["d"])];
        let elsewhere = Node {
            partitions: vec!["others".into()],
            ..node("e", "gpu:2", None)
        };
        let members = side.members(&partitions, &[node("a", "gpu:2", None), elsewhere]);
        assert!(
            members.iter().map(NodeName::as_str).eq(["a", "b", "c"]),
            "{members:?}"
        );
        // Kernels sit in another partition, which doesn't have a any more. The burst node's seats are in its own.
        let seats = of("notebook", &["b"]);
        let partitions = [&partitions[..], &[seats]].concat();
        let members = side.members(&partitions, &[node("a", "gpu:2", None)]);
        assert!(members.iter().map(NodeName::as_str).eq(["b", "c"]), "{members:?}");
    }

    #[test]
    fn words_are_quoted_for_the_shell() {
        assert_eq!(shell_word("a b'c"), r"'a b'\''c'");
    }

    fn partition(preempt: &str) -> Partition {
        Partition {
            name: "p".into(),
            state: "UP".into(),
            nodes: vec![],
            is_default: false,
            max_time: TimeLimit::Unlimited,
            default_time: TimeLimit::Unset,
            oversubscribe: "NO".into(),
            exclusive_user: false,
            preempt_mode: preempt.into(),
            admits: hop_slurm::Admits::default(),
            qos: None,
        }
    }

    #[test]
    fn pools_that_cannot_be_kept_apart_are_refused_with_the_reason() {
        let side = side();
        let pool = &side.config.pool[&"main".into()];
        assert_eq!(refusal(pool, Some(&partition("OFF")), true), None);
        let why = refusal(pool, Some(&partition("SUSPEND,GANG")), true).unwrap();
        assert!(why.contains("suspended"), "{why}");
        let why = refusal(pool, Some(&partition("OFF")), false).unwrap();
        assert!(why.contains("ConstrainDevices"), "{why}");
        let aloud = Pool {
            isolation: Isolation::None,
            ..pool.clone()
        };
        assert_eq!(refusal(&aloud, Some(&partition("SUSPEND")), false), None);
        assert!(refusal(&aloud, None, true).unwrap().contains("no partition p"));
        let short = Pool {
            time_limit_min: 10,
            ..aloud.clone()
        };
        let why = refusal(&short, Some(&partition("OFF")), true).unwrap();
        assert!(why.contains("lower rotate_before_s"), "{why}");
        let whole = Partition {
            oversubscribe: "EXCLUSIVE".into(),
            ..partition("OFF")
        };
        let why = refusal(&aloud, Some(&whole), true).unwrap();
        assert!(why.contains("OverSubscribe=EXCLUSIVE: no user's seat"), "{why}");
        let users = Partition {
            exclusive_user: true,
            ..partition("OFF")
        };
        let why = refusal(&aloud, Some(&users), true).unwrap();
        assert!(why.contains("ExclusiveUser=YES: no user's seat"), "{why}");
    }

    #[test]
    fn pools_whose_pilots_end_too_soon_or_never_start_are_refused() {
        let side = side();
        let pool = side.config.pool[&"main".into()].clone();
        let limited = |default_time, max_time| Partition {
            default_time,
            max_time,
            ..partition("OFF")
        };
        let minutes = |minutes: u64| TimeLimit::At(Span::from_secs(60 * minutes));
        let of = |limit: u32, there: &Partition| {
            let pool = Pool {
                time_limit_min: limit,
                ..pool.clone()
            };
            refusal(&pool, Some(there), true)
        };
        let (unset, endless) = (TimeLimit::Unset, TimeLimit::Unlimited);
        // A pilot without --time has the partition's DefaultTime, else its MaxTime.
        for there in [limited(minutes(10), endless), limited(minutes(10), minutes(1440))] {
            let why = of(0, &there).unwrap();
            assert!(
                why.contains("end after 10 min") && why.contains("set time_limit_min"),
                "{why}"
            );
            assert_eq!(of(1440, &there), None);
        }
        let why = of(0, &limited(unset, minutes(10))).unwrap();
        assert!(why.contains("end after 10 min"), "{why}");
        for there in [
            limited(unset, endless),
            limited(endless, endless),
            limited(minutes(60), endless),
        ] {
            assert_eq!(of(0, &there), None);
        }
        // A QOS with the flag PartitionTimeLimit allows more.
        assert_eq!(of(1441, &limited(minutes(60), minutes(1440))), None);
    }
}
