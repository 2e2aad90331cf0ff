//! Cancelling and signalling jobs and steps.

use crate::handle::Slurm;
use crate::id::{JobOrStep, StepId, StepKey};
use crate::run::{Call, RunError};
use serde::{Deserialize, Serialize};

/// A signal that we send through Slurm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Signal {
    Int,
    Term,
    Kill,
    Usr1,
    Usr2,
    Hup,
    Stop,
    Cont,
}

impl Signal {
    fn name(self) -> &'static str {
        match self {
            Self::Int => "INT",
            Self::Term => "TERM",
            Self::Kill => "KILL",
            Self::Usr1 => "USR1",
            Self::Usr2 => "USR2",
            Self::Hup => "HUP",
            Self::Stop => "STOP",
            Self::Cont => "CONT",
        }
    }
}

/// Why something was not cancelled.
#[derive(Debug, thiserror::Error)]
pub enum CancelError {
    #[error("Slurm knows no {0}, or it is over already")]
    Gone(String),
    #[error("Slurm does not let this account cancel {target}: {reason}")]
    Forbidden { target: String, reason: String },
    #[error(transparent)]
    Run(RunError),
}

impl CancelError {
    /// Slurm itself is away; the same call may work later.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Run(run) if run.is_unreachable())
    }
}

impl Slurm {
    /// Cancels a job or a step: SIGTERM, after KillWait SIGKILL. `scancel` is silent about a job at its end, so
    /// [`CancelError::Gone`] is sure for steps alone.
    pub async fn cancel(&self, target: impl Into<JobOrStep>) -> Result<(), CancelError> {
        self.scancel(target.into(), Vec::new()).await
    }

    /// Sends a signal to all steps of a job (not the job's batch script), or to a single step.
    pub async fn signal(&self, target: impl Into<JobOrStep>, signal: Signal) -> Result<(), CancelError> {
        self.scancel(target.into(), vec![format!("--signal={}", signal.name())])
            .await
    }

    /// Sends a signal to a job's batch script alone.
    pub async fn signal_batch(
        &self,
        target: hop_words::id::JobId,
        signal: Signal,
    ) -> Result<(), CancelError> {
        let args = vec![format!("--signal={}", signal.name()), "--batch".to_owned()];
        self.scancel(target.into(), args).await
    }

    async fn scancel(&self, target: JobOrStep, mut args: Vec<String>) -> Result<(), CancelError> {
        let name = match target {
            JobOrStep::Step(StepId {
                job,
                step: StepKey::Batch,
            }) => {
                args.push("--batch".to_owned());
                job.to_string()
            }
            other => other.to_string(),
        };
        args.push(name);
        match self.runner.run(&Call::new("scancel", args)).await {
            // A job that is over already: scancel complains but ends well.
            Ok(said) if is_gone(&said.stderr) => Err(CancelError::Gone(target.to_string())),
            Ok(_) => Ok(()),
            Err(error) => Err(cancel_error(error, target)),
        }
    }
}

fn is_gone(stderr: &str) -> bool {
    const GONE: [&str; 4] = [
        "Invalid job id specified",
        "Job/step already completing or completed",
        "Invalid job step",
        "No matching",
    ];
    GONE.iter().any(|words| stderr.contains(words))
}

fn cancel_error(error: RunError, target: JobOrStep) -> CancelError {
    match error.said() {
        Some(said) if is_gone(said) => CancelError::Gone(target.to_string()),
        Some(said) if said.contains("Access/permission denied") => CancelError::Forbidden {
            target: target.to_string(),
            reason: said.to_owned(),
        },
        _ => CancelError::Run(error),
    }
}
