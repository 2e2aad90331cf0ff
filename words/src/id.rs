//! Newtype ids. An id is never used again, and two kinds of id never mix.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

macro_rules! number_in_decimal {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

/// A newtype over a number, written in decimal.
macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident, $repr:ty) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $repr);

        number_in_decimal!($name);

        impl std::str::FromStr for $name {
            type Err = std::num::ParseIntError;

            fn from_str(s: &str) -> Result<Self, Self::Err> {
                s.parse().map(Self)
            }
        }
    };
}

/// A newtype over a short string that is cheap to clone.
macro_rules! name_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Arc<str>);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl From<&str> for $name {
            fn from(s: &str) -> Self {
                Self(s.into())
            }
        }

        impl From<String> for $name {
            fn from(s: String) -> Self {
                Self(s.into())
            }
        }
    };
}

name_id!(
    /// A kernel: one user's namespace. Jupyter's kernel id, a UUID in text.
    KernelId
);
name_id!(
    /// A cell's execution: the `msg_id` of the `execute_request`, unique within the kernel.
    CellId
);
name_id!(
    /// A compute node, by Slurm's `NodeName`.
    NodeName
);
name_id!(
    /// A user's login name.
    UserName
);
name_id!(
    /// A Slurm account.
    AccountName
);
name_id!(
    /// A pool of GPUs and cores that may be lent, as named in `gresshopper.toml`.
    PoolName
);
name_id!(
    /// A GPU type as in Slurm's `Gres=gpu:TYPE:n`; empty where Slurm names none.
    GpuType
);

number_id!(
    /// A Slurm job id.
    JobId,
    u32
);
number_id!(
    /// One replica's life within its kernel. Never used again within the kernel.
    Incarnation,
    u32
);
number_id!(
    /// A lease, unique within one `hopd` state directory for ever.
    LeaseId,
    u64
);
number_id!(
    /// The fencing number of a lease. The epoch grows with every lease on a node, and the agent keeps the epoch on
    /// disk. The plugin refuses a number not greater than the last for the device.
    Epoch,
    u64
);
/// The term of a `hopd`: grows by one with every start of a daemon on a state directory. Agents refuse orders of a
/// term below the highest seen. Files and messages with a higher number than [`Term::MOST`] are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "u64", try_from = "u64")]
pub struct Term(pub u64);

number_in_decimal!(Term);

number_id!(
    /// An executor's term of office, counted by the kernel's own log. Only the highest tenure speaks for the kernel.
    /// 0 belongs to a kernel without a log.
    #[derive(Default)]
    Tenure,
    u64
);
number_id!(
    /// A GPU's index on its node, in gres.conf's order: what Slurm prints as `IDX` and `SLURM_STEP_GPUS`.
    GpuIndex,
    u16
);

/// A number that no `hopd` ever reaches by its starts: a damaged file, or a forged one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no term of a hopd: the highest is {most}", most = Term::MOST.0)]
pub struct NoTerm(pub u64);

impl Term {
    /// A start each millisecond for thirty years. Ids are made of a term and a counter, and have to fit into 63 bits.
    pub const MOST: Self = Self(1_000_000_000_000);
}

impl From<Term> for u64 {
    fn from(term: Term) -> Self {
        term.0
    }
}

impl TryFrom<u64> for Term {
    type Error = NoTerm;

    fn try_from(number: u64) -> Result<Self, NoTerm> {
        match Self(number) {
            term if term <= Self::MOST => Ok(term),
            _ => Err(NoTerm(number)),
        }
    }
}

/// One replica of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReplicaId {
    pub kernel: KernelId,
    pub incarnation: Incarnation,
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.kernel, self.incarnation)
    }
}

/// A cell of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CellRef {
    pub kernel: KernelId,
    pub cell: CellId,
}

impl fmt::Display for CellRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kernel, self.cell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_beyond_all_starts_is_refused_in_a_sentence() {
        let most = serde_json::from_str::<Term>("1000000000000").unwrap();
        assert_eq!(
            (most, serde_json::to_string(&most).unwrap().as_str()),
            (Term::MOST, "1000000000000")
        );
        let refused = serde_json::from_str::<Term>("18446744073709551615").unwrap_err();
        assert_eq!(
            refused.to_string(),
            "18446744073709551615 is no term of a hopd: the highest is 1000000000000"
        );
        assert!(serde_json::from_str::<Term>("-1").is_err());
    }
}
