//! What a site sets: the core's own knobs, pools, limits, shares.

use crate::id::{AccountName, PoolName, UserName};
use crate::need::Class;
use crate::time::Span;
use serde::{Deserialize, Serialize};

/// Knobs of the whole core.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Emit [`crate::Output::Journal`], for a driver that must survive its own restart.
    pub journal: bool,
    /// How often a cell is tried on another lease after one failed to start.
    pub start_retries: u8,
    /// How long a pilot whose agent is silent is waited for.
    pub silent_grace: Span,
    /// How long a lease may take to start before it is given up.
    pub start_timeout: Span,
    /// A cell that has waited this long goes before all that have not, first come first served.
    pub aging: Span,
    /// A cell that can't be served holds GPUs back for itself on one node after it has waited this long.
    pub reserve_after: Span,
    /// Half-life of usage in fair share.
    pub usage_half_life: Span,
    /// Fair share is on; off: first come, first served.
    pub fair_share: bool,
    /// How often a waiting cell's position and estimate are told anew, where they changed; zero: never.
    pub report_every: Span,
    /// How long the cells of a kernel wait for a process of it when its last one is lost.
    pub replica_grace: Span,
    /// A kernel of which nothing is left is forgotten after this time.
    pub kernel_ttl: Span,
    /// How long a seat that was placed but has no replica yet counts as taken.
    pub placement_ttl: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            journal: false,
            start_retries: 3,
            silent_grace: Span::from_secs(60),
            start_timeout: Span::from_secs(60),
            aging: Span::from_secs(900),
            reserve_after: Span::from_secs(1),
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
    /// Cores that come with each GPU where the need names none.
    #[serde(default = "one")]
    pub cpus_per_gpu: u16,
    #[serde(default)]
    pub linger: Linger,
    /// How long a kernel whose lease is over gets to leave its GPUs before the take-back is ordered, and those who then
    /// still hold a device before they are ended.
    #[serde(default = "grace")]
    pub grace: Span,
    /// How long a cell may run before it is asked to park while another waits for its GPUs.
    #[serde(default)]
    pub quantum: Quantum,
    /// A pilot this near to its time limit takes no new lease and is replaced.
    #[serde(default = "rotate_before")]
    pub rotate_before: Span,
    /// A pilot with fewer steps left takes no new lease and is replaced.
    #[serde(default = "rotate_steps")]
    pub rotate_steps: u32,
    /// Pilots follow demand; none: `min_pilots` are kept up and no more.
    #[serde(default)]
    pub scale: Option<Scale>,
    /// Replicas may be moved to where a GPU is free; none: never.
    #[serde(default)]
    pub migrate: Option<Migrate>,
    /// Replicas of other nodes' seats are placed under this cap of (GPUs wanted) / (GPUs there x R), times what
    /// demand says.
    #[serde(default = "subscription_cap")]
    pub subscription_cap: f64,
    /// Partitions to turn to when the pool's own has no room, the cheapest first.
    #[serde(default)]
    pub burst: Vec<Burst>,
    /// A kernel's cells run where its last one ran if they can.
    #[serde(default = "yes")]
    pub affinity: bool,
    /// New kernels are packed onto few nodes, as far as they are unlikely to get in each other's way; else they are
    /// spread by subscription alone. Pays where pilots follow demand.
    #[serde(default)]
    pub pack: bool,
}

fn yes() -> bool {
    true
}

fn one() -> u16 {
    1
}

pub(crate) fn grace() -> Span {
    Span::from_secs(2)
}

fn rotate_before() -> Span {
    Span::from_secs(600)
}

fn rotate_steps() -> u32 {
    64
}

fn subscription_cap() -> f64 {
    7.0
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
            cpus_per_gpu: 1,
            linger: Linger::default(),
            grace: grace(),
            quantum: Quantum::default(),
            rotate_before: rotate_before(),
            rotate_steps: rotate_steps(),
            scale: None,
            migrate: None,
            subscription_cap: subscription_cap(),
            burst: Vec::new(),
            affinity: true,
            pack: false,
        }
    }
}

/// How long cells of each class may run undisturbed; none: to their end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quantum {
    pub interactive: Option<Span>,
    pub deadline: Option<Span>,
    pub batch: Option<Span>,
    /// A wait that is expected to be over by then isn't worth a park, which copies all of a GPU's memory.
    pub worth_waiting: Span,
}

impl Default for Quantum {
    fn default() -> Self {
        Self {
            interactive: None,
            deadline: None,
            batch: None,
            worth_waiting: Span::from_secs(30),
        }
    }
}

impl Quantum {
    /// The same for all but those with a deadline, which a park might make miss it.
    pub fn of_all(span: Span) -> Self {
        Self {
            interactive: Some(span),
            batch: Some(span),
            ..Self::default()
        }
    }

    pub const fn of(&self, class: Class) -> Option<Span> {
        match class {
            Class::Interactive => self.interactive,
            Class::Deadline => self.deadline,
            Class::Batch => self.batch,
        }
    }

    pub fn is_off(&self) -> bool {
        [self.interactive, self.deadline, self.batch]
            .iter()
            .all(Option::is_none)
    }
}

/// How long a lease is held on to after its cell.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Linger {
    Fixed(Span),
    /// From the kernel's own think times: as long as the chance of the next cell is worth the GPU, at most `max`.
    Learnt {
        max: Span,
        /// Seconds of waiting (handover and unparking) that a next cell on a lingering lease spares.
        spares: Span,
        /// How many idle GPU-seconds one spared second of a person's waiting is worth.
        worth: f64,
    },
}

impl Default for Linger {
    fn default() -> Self {
        Self::Fixed(Span::from_secs(2))
    }
}

/// How pilots follow demand.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scale {
    /// An idle pilot is kept for at least this long.
    pub idle_min: Span,
    /// And for at most this long after its last lease.
    pub idle_max: Span,
    /// How many idle GPU-seconds it is worth that one cell need not wait for a pilot.
    pub worth: f64,
    /// Pilots are kept and started by what is learnt of the kernels' think times; else an idle one is kept for
    /// `idle_max`, and one is started only for a cell that waits.
    pub learn: bool,
    /// A pilot is as large as the need that it is started for; else all are of `gpus_per_pilot`.
    pub right_size: bool,
    /// A pilot started for a kernel is so large that at most this share of the kernel's cells asked for more.
    pub too_small: f64,
    /// GPUs are kept idle on nodes set apart, where every kernel has a replica, for those that come back when their own
    /// pilot is gone, as far as that is worth it: at most those of so many whole pilots; zero: no nodes are set apart.
    pub spares: u32,
    /// But no more than one whole pilot's, or this share of the GPUs that are leased.
    pub spare_share: f64,
    /// How many nodes are set apart for them.
    pub spare_nodes: u32,
    /// Time from a pilot's submission to its first lease, until it has been seen.
    pub boot: Span,
}

impl Default for Scale {
    fn default() -> Self {
        Self {
            idle_min: Span::from_secs(60),
            idle_max: Span::from_secs(24 * 3600),
            worth: 58_000.0,
            learn: true,
            right_size: true,
            too_small: 0.4,
            spares: 1,
            spare_share: 0.05,
            spare_nodes: 3,
            boot: Span::from_secs(5),
        }
    }
}

/// When replicas move.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Migrate {
    /// What a move is expected to take until moves have been seen.
    pub takes: Span,
    /// A move must be expected to save at least this much waiting.
    pub margin: Span,
    /// Replicas of quiet kernels go to where GPUs lie idle, ahead of need. Where pilots follow what is learnt only.
    #[serde(default = "yes")]
    pub ahead: bool,
}

impl Default for Migrate {
    fn default() -> Self {
        Self {
            takes: Span::from_secs(10),
            margin: Span::from_secs(5),
            ahead: true,
        }
    }
}

/// A partition whose nodes must boot first, or cost money.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Burst {
    pub partition: String,
    pub max_pilots: u32,
    /// From submission to the agent's first word.
    pub boot: Span,
    /// Price of a GPU-hour, in the site's own unit.
    pub price: f64,
}

/// Limits on GPUs held at once and on GPU-minutes used, as Slurm's associations and QOS state them for gres/gpu.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    pub limits: Vec<Limit>,
    /// GPUs that people hold in Slurm jobs of their own, which [`LimitOf::Members`] counts beside their leases.
    pub elsewhere: Vec<(UserName, AccountName, u32)>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    pub of: LimitOf,
    /// GPUs leased at once (GrpTRES, MaxTRESPerUser).
    pub gpus: Option<u32>,
    /// GPU-minutes within the half-life (GrpTRESMins).
    pub gpu_minutes: Option<u64>,
    /// What the site calls it ("QOS normal, MaxTRESPerUser"), for the sentence.
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
    /// A set of Slurm's associations: one user's, an account's with all below it, those of a QOS.
    Members {
        /// No account: the user's leases of which Slurm has not said the account.
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
    /// All together; GPU-minutes are those of their users (GrpTRES of a user's association, of a QOS).
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
    pub users: Vec<(UserName, Share)>,
    pub accounts: Vec<(AccountName, Share)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// Relative weight; 1 where nobody said otherwise.
    pub weight: f64,
    /// GPU-seconds used, decayed to now.
    pub usage: f64,
}
