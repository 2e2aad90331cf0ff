//! Slurm's ids of jobs and steps.

use hop_words::id::JobId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Which step of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepKey {
    /// The batch script.
    Batch,
    /// What `PrologFlags=Contain` makes on each node.
    Extern,
    /// `salloc`'s own step (`LaunchParameters=use_interactive_step`).
    Interactive,
    /// Waiting for its resources.
    Pending,
    /// A numbered one.
    Number(u32),
}

/// `job.step`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StepId {
    pub job: JobId,
    pub step: StepKey,
}

/// What can be cancelled or signalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobOrStep {
    Job(JobId),
    Step(StepId),
}

impl From<JobId> for JobOrStep {
    fn from(job: JobId) -> Self {
        Self::Job(job)
    }
}

impl From<StepId> for JobOrStep {
    fn from(step: StepId) -> Self {
        Self::Step(step)
    }
}

/// Not an id as Slurm writes them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no job or step id")]
pub struct IdError(pub String);

impl fmt::Display for StepKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Batch => f.write_str("batch"),
            Self::Extern => f.write_str("extern"),
            Self::Interactive => f.write_str("interactive"),
            Self::Pending => f.write_str("TBD"),
            Self::Number(n) => n.fmt(f),
        }
    }
}

impl FromStr for StepKey {
    type Err = IdError;

    fn from_str(s: &str) -> Result<Self, IdError> {
        Ok(match s {
            "batch" => Self::Batch,
            "extern" | "Extern" => Self::Extern,
            "interactive" | "Interactive" => Self::Interactive,
            "TBD" => Self::Pending,
            n => Self::Number(n.parse().map_err(|_| IdError(s.to_owned()))?),
        })
    }
}

impl fmt::Display for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.job, self.step)
    }
}

impl FromStr for StepId {
    type Err = IdError;

    fn from_str(s: &str) -> Result<Self, IdError> {
        let wrong = || IdError(s.to_owned());
        let (job, step) = s.split_once('.').ok_or_else(wrong)?;
        Ok(Self {
            job: job.parse().map_err(|_| wrong())?,
            step: step.parse()?,
        })
    }
}

impl fmt::Display for JobOrStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job(job) => job.fmt(f),
            Self::Step(step) => step.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_read_back_as_written() {
        for text in [
            "12.0",
            "12.batch",
            "12.extern",
            "12.interactive",
            "12.TBD",
            "4294901759.7",
        ] {
            assert_eq!(text.parse::<StepId>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "12", "12.", ".1", "a.1", "12.x", "12.1.2", "-1.2"] {
            assert!(text.parse::<StepId>().is_err(), "{text:?}");
        }
    }
}
