//! Policies by name.

use crate::baselines::{self, Holding, ScaleIn, Sharing};
use crate::cluster::Cluster;
use crate::metrics::PolicyResult;
use crate::trace::Trace;
use crate::world::{self, Without};
use std::fmt;
use std::str::FromStr;

/// A policy that `hop sim` can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Every session holds its GPUs from opening to closing.
    Reservation,
    /// As reservation, but a session without a cell for a while loses its GPUs and its state.
    IdleCull,
    /// Every cell is a batch job.
    FcfsBatch,
    /// As batch, in containers kept ready.
    WarmPool,
    /// Everybody at once, GPUs shared by time.
    TimeSlicing,
    /// Every session has its fixed part of the cluster.
    Partitioning,
    /// NotebookOS's static policy as coded.
    NotebookOs,
    /// The same, but hosts are cleared at once and for nothing.
    NotebookOsFreeScaleIn,
    /// Knows all run times, stops and moves cells at no cost: what nobody can do better.
    Bound,
    /// The production core.
    Ours(Without),
}

const WITH: [&str; 2] = ["three-replicas", "parking"];

const PARTS: [&str; 9] = [
    "linger",
    "migration",
    "moving-ahead",
    "scaling",
    "fair-share",
    "affinity",
    "packing",
    "learning",
    "deadlines",
];

impl Policy {
    /// All, in the order of the report: ours as it ships, the baselines, ours without each part.
    pub fn all() -> Vec<Self> {
        let mut all = Self::main();
        all.extend(Self::with("parking"));
        all.extend(
            PARTS
                .iter()
                .map(|p| Self::without(p).expect("the parts are those of the list")),
        );
        all
    }

    /// Our policy as shipped, with three replicas and with one, and the baselines.
    pub fn main() -> Vec<Self> {
        vec![
            Self::with("three-replicas").expect("it is in the list"),
            Self::Ours(Without::default()),
            Self::Reservation,
            Self::IdleCull,
            Self::FcfsBatch,
            Self::WarmPool,
            Self::TimeSlicing,
            Self::Partitioning,
            Self::NotebookOs,
            Self::NotebookOsFreeScaleIn,
            Self::Bound,
        ]
    }

    fn without(part: &str) -> Option<Self> {
        let mut w = Without::default();
        let flag = match part {
            "linger" => &mut w.linger,
            "migration" => &mut w.migration,
            "moving-ahead" => &mut w.moving_ahead,
            "scaling" => &mut w.scaling,
            "fair-share" => &mut w.fair_share,
            "affinity" => &mut w.affinity,
            "packing" => &mut w.packing,
            "learning" => &mut w.learning,
            "deadlines" => &mut w.deadlines,
            _ => return None,
        };
        *flag = true;
        Some(Self::Ours(w))
    }

    /// Ours with a part that the simulated cluster has only by name: three replicas, which larger pools ship with, or
    /// parking.
    fn with(what: &str) -> Option<Self> {
        let mut w = Without::default();
        match what {
            "three-replicas" => w.three_replicas = true,
            "parking" => w.parking = true,
            _ => return None,
        }
        Some(Self::Ours(w))
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Reservation => "reservation",
            Self::IdleCull => "idle-cull",
            Self::FcfsBatch => "fcfs-batch",
            Self::WarmPool => "warm-pool",
            Self::TimeSlicing => "time-slicing",
            Self::Partitioning => "partitioning",
            Self::NotebookOs => "notebookos",
            Self::NotebookOsFreeScaleIn => "notebookos-free-scale-in",
            Self::Bound => "bound",
            Self::Ours(_) => "ours",
        };
        f.write_str(name)?;
        for part in PARTS.iter().filter(|p| Self::without(p) == Some(*self)) {
            write!(f, "-no-{part}")?;
        }
        for part in WITH.iter().filter(|p| Self::with(p) == Some(*self)) {
            write!(f, "-{part}")?;
        }
        Ok(())
    }
}

/// A name that is no policy's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy {0:?}; there are: {list}", list = names())]
pub struct UnknownPolicy(pub String);

fn names() -> String {
    let names: Vec<String> = Policy::all().iter().map(ToString::to_string).collect();
    names.join(", ")
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(s: &str) -> Result<Self, UnknownPolicy> {
        let found = Self::all().into_iter().find(|p| p.to_string() == s);
        found.ok_or_else(|| UnknownPolicy(s.to_owned()))
    }
}

/// Runs one policy. `wall_s` is left at zero: the caller has a clock and measures it.
pub fn run(policy: Policy, trace: &Trace, cluster: &Cluster, seed: u64) -> PolicyResult {
    let mut result = match policy {
        Policy::Reservation => baselines::holding(trace, cluster, seed, Holding::Reservation),
        Policy::IdleCull => baselines::holding(trace, cluster, seed, Holding::IdleCull),
        Policy::FcfsBatch => baselines::holding(trace, cluster, seed, Holding::Batch),
        Policy::WarmPool => baselines::holding(trace, cluster, seed, Holding::WarmPool),
        Policy::Bound => baselines::preemptive(trace, cluster),
        Policy::TimeSlicing => baselines::sharing(trace, cluster, seed, Sharing::TimeSlicing),
        Policy::Partitioning => baselines::sharing(trace, cluster, seed, Sharing::Partitioning),
        Policy::NotebookOs => baselines::notebookos(trace, cluster, seed, ScaleIn::AsCoded),
        Policy::NotebookOsFreeScaleIn => baselines::notebookos(trace, cluster, seed, ScaleIn::Free),
        Policy::Ours(without) => world::run(trace, cluster, seed, without, false),
    };
    result.policy = policy.to_string();
    result.cells.sort_by_key(|c| (c.session, c.cell));
    result
}

/// Runs ours with the core's own check after every input.
pub fn run_checked(trace: &Trace, cluster: &Cluster, seed: u64) -> PolicyResult {
    world::run(trace, cluster, seed, Without::default(), true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_is_found_by_its_name() {
        for p in Policy::all() {
            assert_eq!(p.to_string().parse(), Ok(p));
        }
        assert_eq!(
            "ours-no-linger".parse::<Policy>().unwrap().to_string(),
            "ours-no-linger"
        );
        assert!(
            "yours"
                .parse::<Policy>()
                .unwrap_err()
                .to_string()
                .contains("reservation")
        );
    }
}
