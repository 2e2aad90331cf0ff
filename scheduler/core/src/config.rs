//! The site's settings: the core's own parameters, pools, limits and shares.
//!
//! [`Linger`], [`Quantum`], [`Scale`], [`Migrate`] and [`Burst`] say how a pool is run. Each has one type for
//! `gresshopper.toml` and the simulator's cluster file. `hopd` leaves the other policies as they are by default
//! ([`Config::fair_share`], [`Config::due_overtaken`], [`PoolConfig::affinity`], [`PoolConfig::pack`]): the simulator
//! and tests change them for experiments.

pub mod duration;
mod policy;

pub use policy::{Burst, Linger, Migrate, Quantum, Scale};

use hop_words::id::{AccountName, PoolName, UserName};
use hop_words::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};

/// Knobs of the whole core.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Emits [`crate::Output::Journal`], for a driver with a need to survive its own restart.
    pub journal: bool,
    /// How often a cell is tried on another lease after one failed to start.
    pub start_retries: u8,
    /// How long a cell stays away from a pilot where its lease failed to start; doubles with each failure.
    pub retry_after: Span,
    /// How long a pilot whose agent is silent is waited for.
    pub silent_grace: Span,
    /// How long a lease may take to start before it is given up.
    pub start_timeout: Span,
    /// A cell is due after waiting for this time. Due cells go before all others, first come first served, and nodes
    /// are held for them.
    pub due_after: Span,
    /// A cell is also due after this many later starts of cells with as many GPUs, in places that would have done for it.
    pub due_overtaken: u32,
    /// How long the first due cell holds one node, before the number of held nodes doubles for the first time, and each
    /// next time.
    pub widen_every: Span,
    /// Half-life of usage in fair share.
    pub usage_half_life: Span,
    /// Fair share is on; off: first come, first served.
    pub fair_share: bool,
    /// How often a waiting cell's position and estimate are told anew, where they changed; zero: never.
    pub report_every: Span,
    /// How long the cells of a kernel wait for a new process after the last one is lost.
    pub replica_grace: Span,
    /// A kernel without processes and cells is forgotten after this time.
    pub kernel_ttl: Span,
    /// How long a seat that was placed but has no replica yet counts as taken.
    pub placement_ttl: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            journal: false,
            start_retries: 3,
            retry_after: Span::from_secs(1),
            silent_grace: Span::from_secs(60),
            start_timeout: Span::from_secs(60),
            due_after: Span::from_secs(4 * 3600),
            due_overtaken: 12,
            widen_every: Span::from_secs(1800),
            usage_half_life: Span::from_secs(7 * 86_400),
            fair_share: true,
            report_every: Span::from_secs(5),
            replica_grace: Span::from_secs(30),
            kernel_ttl: Span::from_secs(86_400),
            placement_ttl: Span::from_secs(600),
        }
    }
}

/// A pool, as `gresshopper.toml` describes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PoolConfig {
    pub name: PoolName,
    /// GPUs and cores of one pilot.
    pub gpus_per_pilot: u16,
    pub cpus_per_pilot: u16,
    pub min_pilots: u32,
    pub max_pilots: u32,
    #[serde(default)]
    pub linger: Linger,
    /// Time for a kernel to leave its GPUs after a lease, before the take-back is ordered. The remaining holders then
    /// get the same time before they are ended.
    #[serde(default = "grace")]
    pub grace: Span,
    /// Run time of a cell before a request to park while another cell waits for its GPUs.
    #[serde(default)]
    pub quantum: Quantum,
    /// Time left at which a pilot takes no new lease and is replaced.
    #[serde(default = "rotate_before")]
    pub rotate_before: Span,
    /// Pilots follow demand; none: `min_pilots` are kept up and no more.
    #[serde(default)]
    pub scale: Option<Scale>,
    /// Replicas may be moved to where a GPU is free; none: never.
    #[serde(default)]
    pub migrate: Option<Migrate>,
    /// Partitions to turn to when the pool's own has no room, the cheapest first.
    #[serde(default)]
    pub burst: Vec<Burst>,
    /// Runs the cells of a kernel where its last cell ran, if possible.
    #[serde(default = "yes")]
    pub affinity: bool,
    /// If pilots follow demand, new kernels are packed onto few nodes, as far as they are unlikely to get in each
    /// other's way; else they are spread by subscription alone.
    #[serde(default = "yes")]
    pub pack: bool,
}

fn yes() -> bool {
    true
}

pub(crate) fn grace() -> Span {
    Span::from_secs(2)
}

fn rotate_before() -> Span {
    Span::from_secs(600)
}

impl PoolConfig {
    /// A pool that keeps a fixed number of pilots.
    pub fn fixed(name: &str, pilots: u32, gpus: u16, cpus: u16) -> Self {
        Self {
            name: name.into(),
            gpus_per_pilot: gpus,
            cpus_per_pilot: cpus,
            min_pilots: pilots,
            max_pilots: pilots,
            linger: Linger::fixed(Span::from_secs(2)),
            grace: grace(),
            quantum: Quantum::default(),
            rotate_before: rotate_before(),
            scale: None,
            migrate: None,
            burst: Vec::new(),
            affinity: true,
            pack: true,
        }
    }

    /// Whether the configuration has the pool. Pilots of a former configuration may name others.
    pub(crate) fn is_configured(&self) -> bool {
        self.cpus_per_pilot > 0
    }
}

/// Limits on GPUs held at once and on GPU-minutes used, as Slurm's associations and QOS state them for gres/gpu.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    pub limits: Vec<Limit>,
    /// GPUs held by people in their own Slurm jobs, counted by [`LimitOf::Members`] beside their leases.
    pub elsewhere: Vec<(UserName, AccountName, u32)>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    pub of: LimitOf,
    /// GPUs leased at once (GrpTRES, MaxTRESPerUser).
    pub gpus: Option<u32>,
    /// GPU-minutes within the half-life (GrpTRESMins).
    pub gpu_minutes: Option<u64>,
    /// The site's name for the limit ("QOS normal, MaxTRESPerUser"), for the sentence.
    pub name: String,
}

/// Whom a limit binds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitOf {
    User(UserName),
    /// All users of the account together.
    Account(AccountName),
    /// Each user, whoever it is.
    EachUser,
    /// All leases of a pool together.
    Pool(PoolName),
    /// Each user within a pool.
    EachUserOf(PoolName),
    /// A set of Slurm's associations: a user's, an account's with all below, or a QOS's.
    Members {
        /// Members of the set. A user without an account stands for the leases whose account Slurm has not told.
        who: Vec<(UserName, Option<AccountName>)>,
        count: Count,
    },
}

/// What a limit on [`LimitOf::Members`] counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Count {
    /// All together; GPU-minutes are those of their accounts (GrpTRES of an account).
    Accounts,
    /// All together; GPU-minutes are those of the users in these accounts (GrpTRES of a user's association, of a QOS).
    Users,
    /// Each user (MaxTRESPerUser).
    PerUser,
    /// Each account (MaxTRESPerAccount).
    PerAccount,
    /// Each lease (MaxTRES).
    PerLease,
}

/// Shares as Slurm has them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Shares {
    /// When Slurm said so.
    pub at: Timestamp,
    pub users: Vec<(UserName, Share)>,
    pub accounts: Vec<(AccountName, Share)>,
    /// The users' in each of their accounts.
    pub associations: Vec<(UserName, AccountName, Share)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// Relative weight; 1 where nobody said otherwise.
    pub weight: f64,
    /// GPU-seconds that Slurm's jobs have used beside our leases, decayed to [`Shares::at`].
    pub usage: f64,
}
