//! Reasons for a cell's wait or refusal, and for a kernel's stay: the core decides them, the wire carries them.
//!
//! A reason's `Display` is the wording for people. Agents report some causes in their own words; for a cause found by
//! the scheduler itself, one of the constants stands. The policy that picks a reason is `scheduler/core`.

use crate::id::{GpuType, NodeName, PoolName};
use crate::lease::EndCause;
use crate::time::{Span, spell};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// The node did not start a lease in time.
pub const NOT_IN_TIME: &str = "its node did not start it in time";
/// The node reports a lease no more.
pub const NODE_FORGOT: &str = "its node doesn't know it any longer";
/// The process that a lease was meant for is gone.
pub const REPLICA_GONE: &str = "its replica is gone";
/// A GPU's take-back failed without a word of the node's.
pub const NOT_TAKEN_BACK: &str = "it could not be taken back";
/// A GPU under a lease that nobody knows any longer.
pub const STILL_ENDING: &str = "a lease that the scheduler has given up is still being ended on it";

/// The user's own other notebooks that hold the GPUs or cores for which a cell waits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Yours {
    pub notebooks: BTreeSet<String>,
    /// GPUs that they hold.
    pub gpus: u16,
}

impl Yours {
    /// Returns the words behind "in use" that tell the user's own part of `of` GPUs.
    fn after_in_use(&self, of: u32) -> String {
        let names: Vec<&str> = self.notebooks.iter().map(String::as_str).collect();
        let Some((last, rest)) = names.split_last() else {
            return String::new();
        };
        let part = match of.saturating_sub(self.gpus.into()) {
            0 => String::new(),
            _ => format!(", {} of them", self.gpus),
        };
        match rest {
            [] => format!("{part} by your notebook {last}"),
            _ => format!("{part} by your notebooks {} and {last}", rest.join(", ")),
        }
    }
}

/// Why a cell waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
pub enum Reason {
    /// No replica of its kernel is up.
    NoReplica,
    /// No pilot is up on the kernel's nodes. `coming`: a pilot is on its way.
    NoPilot { pool: PoolName, coming: bool },
    /// Slurm has not started the pilot that was asked for on the node, though it should be up by now.
    PilotLate { node: NodeName },
    /// GPUs that fit are lent to others.
    GpusBusy {
        node: NodeName,
        gpus: u16,
        fitting: u16,
        yours: Yours,
    },
    /// Each pilot on the node is smaller than the need, and a larger one finds no room there.
    PilotsSmall {
        node: NodeName,
        gpus: u16,
        /// GPUs in use on the node, of all its GPUs.
        used: u16,
        of: u16,
        yours: Yours,
    },
    /// GPUs would do, cores are lent to others.
    CoresBusy { node: NodeName, cpus: u16, free: u16 },
    /// The pool has GPUs of this type, but not where the kernel's replicas are.
    WrongType { gpu_type: Option<GpuType>, mem_mib: u64 },
    /// An idle lease is being ended to make room.
    Claiming { node: NodeName },
    /// A long-running cell is asked to park for this one.
    Parking { node: NodeName },
    /// GPUs are held back for a cell with a longer wait.
    HeldBack { node: NodeName },
    /// A limit of the site's.
    Limit {
        name: String,
        used: u32,
        limit: u32,
        /// GPUs on their way for other cells that the limit counts: the cell could start, but not beside these.
        coming: u32,
        yours: Yours,
    },
    /// The kernel's own earlier lease is not over yet.
    OwnLease,
    /// The cell has GPUs, but Slurm doesn't start the step that lends them.
    SlurmAway,
    /// A lease failed to start there and is tried again after a pause; elsewhere nothing is free.
    Retrying {
        node: NodeName,
        tries: u8,
        again_in: Span,
        why: String,
    },
    /// A replica moves to where a GPU is free.
    Migrating { to: NodeName },
    /// GPUs that fit can't be lent until somebody looks at them.
    Blocked { node: NodeName, why: String },
}

impl Reason {
    /// The user's own other notebooks that hold the awaited GPUs or cores.
    pub fn yours(&self) -> Option<&Yours> {
        match self {
            Self::GpusBusy { yours, .. } | Self::PilotsSmall { yours, .. } | Self::Limit { yours, .. } => {
                Some(yours)
            }
            _ => None,
        }
    }

    /// A word for scripts, Slurm's if Slurm has one. Words are added, but never changed.
    pub fn word(&self) -> &'static str {
        match self {
            Self::NoReplica => "KernelStarting",
            Self::NoPilot { coming: true, .. } => "PilotStarting",
            Self::NoPilot { coming: false, .. } => "NoPilot",
            Self::PilotLate { .. } => "PilotPending",
            Self::GpusBusy { .. } | Self::PilotsSmall { .. } | Self::CoresBusy { .. } => "Resources",
            Self::WrongType { .. } => "GPUType",
            Self::Claiming { .. } => "Claiming",
            Self::Parking { .. } => "Parking",
            Self::HeldBack { .. } => "Priority",
            Self::Limit { .. } => "Limit",
            Self::OwnLease => "OwnLease",
            Self::SlurmAway => "SlurmAway",
            Self::Retrying { .. } => "Retrying",
            Self::Migrating { .. } => "Moving",
            Self::Blocked { .. } => "Blocked",
        }
    }
}

impl Reason {
    /// Writes what the kernel's nodes lack.
    fn write_lacking(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GpusBusy {
                node,
                gpus,
                fitting,
                yours,
            } => {
                let whose = yours.after_in_use((*fitting).into());
                write!(f, "it needs {} in use{whose}", gpus_busy(node, *gpus, *fitting))
            }
            Self::PilotsSmall {
                node, gpus, used: 0, ..
            } => write!(
                f,
                "it needs {gpus} GPUs and each job with GPUs on {node} has fewer"
            ),
            Self::PilotsSmall {
                node,
                gpus,
                used,
                of,
                yours,
            } => {
                let (are, whose) = (are(u32::from(*used)), yours.after_in_use((*used).into()));
                write!(
                    f,
                    "it needs {gpus} GPUs and {used} of the {of} on {node} {are} in use{whose}"
                )
            }
            Self::CoresBusy { node, cpus, free } => {
                write!(
                    f,
                    "it needs {cpus} core{} and {free} {} free on {node}",
                    plural(*cpus),
                    are(u32::from(*free))
                )
            }
            Self::WrongType { gpu_type, mem_mib } => {
                write!(f, "no GPU ")?;
                if let Some(t) = gpu_type {
                    write!(f, "of type {t} ")?;
                }
                if *mem_mib > 0 {
                    write!(f, "with {} ", size(*mem_mib))?;
                }
                write!(f, "is on this kernel's nodes")
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoReplica => write!(f, "no process of this kernel is up yet"),
            Self::NoPilot { pool, coming: true } => {
                write!(f, "pool {pool} is starting a job with GPUs for it")
            }
            Self::NoPilot { pool, coming: false } => {
                write!(
                    f,
                    "pool {pool} has no job with GPUs on this kernel's nodes, and none elsewhere lies idle that could \
                     give way (a restarted kernel is placed anew)"
                )
            }
            Self::PilotLate { node } => {
                write!(f, "Slurm has not started the job with GPUs for it on {node} yet")
            }
            Self::GpusBusy { .. }
            | Self::PilotsSmall { .. }
            | Self::CoresBusy { .. }
            | Self::WrongType { .. } => self.write_lacking(f),
            Self::Claiming { node } => {
                write!(f, "an idle lease on {node} is being ended to make room for it")
            }
            Self::Parking { node } => {
                write!(
                    f,
                    "a cell that has run for long on {node} is asked to make room for it"
                )
            }
            Self::HeldBack { node } => {
                write!(
                    f,
                    "free GPUs on {node} are held back for a cell that goes before it"
                )
            }
            Self::Limit {
                name,
                used,
                limit,
                coming,
                yours,
            } => {
                let whose = yours.after_in_use(*used);
                write!(
                    f,
                    "limit {name}: {used} of {limit} GPUs are in use already{whose}"
                )?;
                match coming {
                    0 => Ok(()),
                    1 => write!(f, ", and 1 is on its way for another cell"),
                    _ => write!(f, ", and {coming} are on their way for other cells"),
                }
            }
            Self::SlurmAway => write!(
                f,
                "Slurm's controller does not answer; it has its GPUs and starts when the controller is back"
            ),
            Self::OwnLease => write!(f, "the kernel's earlier lease is being ended first"),
            Self::Retrying {
                node,
                tries,
                again_in,
                why,
            } => {
                let times = if *tries == 1 {
                    "once".to_owned()
                } else {
                    format!("{tries} times")
                };
                write!(
                    f,
                    "its lease on {node} could not be started ({times}: {why}); it is tried there again in {}",
                    spell(*again_in)
                )
            }
            Self::Migrating { to } => write!(f, "the kernel moves to {to}, where a GPU is free"),
            Self::Blocked { node, why } => write!(f, "a GPU on {node} can't be lent: {why}"),
        }
    }
}

/// Why a running cell is asked to park.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParkBecause {
    /// Run of the cell so far.
    pub ran: Span,
    /// GPUs of the cell that waits.
    pub gpus: u16,
}

impl fmt::Display for ParkBecause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ran, gpus } = self;
        write!(
            f,
            "it has run for {} and a cell that needs {gpus} GPU{} waits",
            spell(*ran),
            plural(*gpus)
        )
    }
}

/// Why a lease was taken from its kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RevokedBecause {
    /// The lease ended for its cause.
    Ended(EndCause),
    /// The scheduler doesn't know the lease any longer.
    Unknown,
}

impl fmt::Display for RevokedBecause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ended(cause) => cause.sentence().unwrap_or_default(),
            Self::Unknown => "the scheduler doesn't know this lease any longer",
        })
    }
}

/// Why a kernel must let go of GPUs that it can't let go of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wanted {
    /// A cell could start on them.
    Waited,
    /// The GPUs' pilot takes no new leases: its node is drained, or its time is over.
    Drained,
    /// The kernel is closed, or its process is gone.
    Closed,
    /// They have been idle for as long as an idle pilot is kept, and Slurm's queue gets them back.
    GivenBack,
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Waited => "somebody waits for it",
            Self::Drained => "the Slurm job that lends it is being ended",
            Self::Closed => "the kernel ends",
            Self::GivenBack => "GPUs that lie idle for so long go back to Slurm's queue here",
        })
    }
}

/// Why a cell or a placement is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "refused", rename_all = "kebab-case")]
pub enum RefusedBecause {
    #[error("there is no pool {pool}")]
    NoPool { pool: PoolName },
    #[error("the kernel is not known: start it anew")]
    NoKernel,
    #[error("the cell asks for neither GPUs nor cores, so it needs no lease")]
    NeedsNothing,
    #[error("the cell asks for {asked} GPUs on one node, and pool {pool} has {most} on each")]
    TooManyGpus { pool: PoolName, asked: u16, most: u16 },
    #[error("{}", no_such_type(.pool, .asked, .there, .elsewhere))]
    NoSuchType {
        pool: PoolName,
        asked: GpuType,
        /// The types that the pool has.
        there: Vec<GpuType>,
        /// Pools that have it.
        elsewhere: Vec<PoolName>,
    },
    #[error("{}", too_little_memory(.pool, *.asked, *.most))]
    TooLittleMemory { pool: PoolName, asked: u64, most: u64 },
    #[error("the cell asks for {asked} cores on one node, and pool {pool} lends {most} on each")]
    TooManyCores { pool: PoolName, asked: u16, most: u16 },
    #[error("the cell asks for {asked} GPUs, and limit {name} allows {limit}")]
    OverLimit { name: String, asked: u16, limit: u32 },
    #[error("limit {name}: {used} of {limit} GPU-minutes are used up")]
    UsedUp { name: String, used: u64, limit: u64 },
    #[error("the lease could not be started, {tries} times: {reason}")]
    StartFailed { tries: u8, reason: String },
    #[error("pool {pool} has no node that will do for the kernel's next replica")]
    NoNode { pool: PoolName },
    #[error("the kernel's process was lost while the cell waited, and none came back: run the cell again")]
    ReplicaLost,
    /// The kernel's pool doesn't take cells of its user's any more, or isn't lent.
    #[error("{why}")]
    NotTaken { why: String },
    #[error("cancelled by {by}")]
    Cancelled { by: String },
    #[error("the kernel was closed")]
    Closed,
    #[error("the kernel sleeps: run the cell again, and it wakes")]
    Asleep,
    #[error(
        "the kernel still holds {gpus} GPU{} of an earlier cell ({why}), and must let go of what it holds before it gets \
         something else: ask for the same again, or let go by `del model; torch.cuda.empty_cache()`, or end the program \
         that the cell has started",
        plural(*.gpus)
    )]
    StillHolds { gpus: u16, why: String },
}

/// Why a kernel stays where it is although a move was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "stays", rename_all = "kebab-case")]
pub enum MoveRefused {
    #[error("no process of it is up")]
    NoReplica,
    #[error("it moves to {to} already")]
    Moves { to: NodeName },
    #[error("pool {pool} has no node {node}")]
    NotInPool { node: NodeName, pool: PoolName },
    #[error("it is on {node} already")]
    SitsThere { node: NodeName },
    #[error("node {node} is down, drained, or has too few GPUs for it")]
    Unfit { node: NodeName },
    #[error("no other node of pool {pool} will do")]
    NoOtherNode { pool: PoolName },
}

fn no_such_type(pool: &PoolName, asked: &GpuType, there: &[GpuType], elsewhere: &[PoolName]) -> String {
    let there = match there {
        [] => "Slurm names no type for its GPUs".to_owned(),
        types => format!("it has {}", list(types)),
    };
    let elsewhere = match elsewhere {
        [] => String::new(),
        pools => format!("; a kernel in pool {} would get it", list(pools)),
    };
    format!("the cell asks for a GPU of type {asked}, which no node of pool {pool} has: {there}{elsewhere}")
}

fn too_little_memory(pool: &PoolName, asked: u64, most: u64) -> String {
    let asked = size(asked);
    match most {
        0 => format!(
            "the cell asks for GPUs with {asked}, and this site doesn't say how much those of pool {pool} have \
             (pool.{pool}.gpu_mem_mib): leave --mem out"
        ),
        _ => format!(
            "the cell asks for GPUs with {asked}, and those of pool {pool} have {}",
            size(most)
        ),
    }
}

/// Memory in GiB if that is a whole number, else in MiB.
fn size(mib: u64) -> String {
    match mib {
        1.. if mib.is_multiple_of(1024) => format!("{} GiB", mib / 1024),
        _ => format!("{mib} MiB"),
    }
}

/// "a", "a or b", "a, b or c".
fn list<T: fmt::Display>(items: &[T]) -> String {
    let words: Vec<String> = items.iter().map(T::to_string).collect();
    match words.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => words.concat(),
    }
}

fn gpus_busy(node: &NodeName, gpus: u16, fitting: u16) -> String {
    match fitting {
        1 => format!("a GPU and the only one that fits on {node} is"),
        _ => format!(
            "{gpus} GPU{} and all {fitting} that fit on {node} are",
            plural(gpus)
        ),
    }
}

fn are(n: u32) -> &'static str {
    if n == 1 { "is" } else { "are" }
}

pub(crate) fn plural(n: u16) -> &'static str {
    if n == 1 { "" } else { "s" }
}
