//! How a command fails: what the user reads, and the exit status.

use hop_words::error::{chain, system_words, without_numbers};
use std::io::{self, Write};
use std::process::ExitCode;

pub(crate) const EXIT_STATUS: &str =
    "Exit status: 0 done; 1 failed or refused; 2 wrong usage; 3 hopd can't be reached.";

/// Failure of a command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Status 1.
    #[error("{0}")]
    Failed(String),
    /// Status 2.
    #[error("{0}")]
    Usage(String),
    /// Status 3.
    #[error("{0}")]
    Unreachable(String),
    /// No file of this host names a `hopd`. Status 3.
    #[error("{0}")]
    Unconfigured(String),
    /// A run that ended otherwise than well; `hop run --help` lists the statuses.
    #[error("{text}")]
    Ended { status: u8, text: String },
    /// The reader of our output has seen enough: silent, status 0.
    #[error("broken pipe")]
    BrokenPipe,
}

impl Failure {
    /// An error with its causes, on a single line.
    pub(crate) fn of(error: &dyn std::error::Error) -> Self {
        Self::Failed(chain(error))
    }

    /// Whether `hopd` has not answered.
    pub(crate) fn is_without_hopd(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Unconfigured(_))
    }

    /// Whether a command fails so with each of its arguments: the others aren't tried.
    pub(crate) fn is_of_all_arguments(&self) -> bool {
        self.is_without_hopd() || matches!(self, Self::Usage(_))
    }

    fn status(&self) -> u8 {
        match self {
            Self::BrokenPipe => 0,
            Self::Failed(_) => 1,
            Self::Usage(_) => 2,
            Self::Unreachable(_) | Self::Unconfigured(_) => 3,
            Self::Ended { status, .. } => *status,
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::BrokenPipe,
            _ => Self::Failed(format!("could not write the output: {}", system_words(&error))),
        }
    }
}

/// Says what went wrong on `err` and gives the exit status.
pub(crate) fn report(result: Result<(), Failure>, err: &mut dyn Write) -> ExitCode {
    let Err(failure) = result else {
        return ExitCode::SUCCESS;
    };
    if !matches!(failure, Failure::BrokenPipe) {
        // stderr may be gone too; the status says it then.
        let _ = writeln!(err, "hop: {}", without_numbers(&failure.to_string()));
    }
    ExitCode::from(failure.status())
}
