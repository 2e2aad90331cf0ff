//! The policies of others: each a small separate model, over the same trace and cluster.
//!
//! Unknown costs of a baseline are left out, in the baseline's favour. A fitting cell is placed, whatever waits before
//! (first fit), as in the papers and in Slurm's backfill.

mod holding;
mod notebookos;
mod preemptive;
mod sharing;

pub(crate) use holding::{Holding, holding};
pub(crate) use notebookos::{ScaleIn, run as notebookos};
pub(crate) use preemptive::preemptive;
pub(crate) use sharing::{Sharing, sharing};
