//! A safe layer over Slurm: submit, allocate, cancel, jobs, steps, nodes, partitions, GRES, limits, hostlists.
//!
//! [`Slurm`] is a cheap handle. Each call runs one of Slurm's own commands as a child process, with a timeout, an
//! environment of our choosing and never a shell. This crate doesn't link libslurm, and no call can end the caller's
//! process. With [`Slurm::with_link`], jobs and nodes are read through the helper process `hop-slurm-link`, which does
//! link libslurm. The commands are the fallback if the helper is missing, dies or was built for another Slurm.
//!
//! Formats: only those meant for machines. Records and fields of `squeue` are separated by a random word of each
//! call, so a job's name can't forge another record, whatever characters it has.
//!
//! Policy of any kind, retries and starting steps are left to others. An `srun` runs for the whole life of its step,
//! so callers own that process; [`Slurm::command`] gives them a clean command to begin with.

pub mod gres;
pub mod hostlist;
pub mod id;
pub mod link;
pub mod span;
pub mod state;

mod accounting;
mod cancel;
mod config;
mod handle;
mod jobs;
mod nodes;
mod read;
mod record;
mod reservations;
mod run;
mod submit;

pub use accounting::{Association, LimitScope, Limits, Share};
pub use cancel::{CancelError, Signal};
pub use config::{Config, Version};
pub use handle::{Settings, Slurm};
pub use jobs::{Job, JobFilter, JobGres, Step};
pub use nodes::{Admits, Node, Partition};
pub use record::ParseError;
pub use reservations::{Reservation, SHOW_RESERVATIONS, WaitingJob, parse_reservations, shorten_args};
pub use run::{QueryError, RunAs, RunError};
pub use submit::{AllocateError, JobSpec, SpecError, SubmitError};
