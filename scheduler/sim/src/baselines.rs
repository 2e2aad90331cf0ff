//! The policies that others have: each a small model of its own, over the same trace and cluster.
//!
//! Where a baseline's cost is not known it is left out, to the baseline's favour. Who fits is placed, whatever waits
//! before it (first fit), as their papers and Slurm's backfill have it.

mod holding;
mod notebookos;
mod preemptive;
mod sharing;

pub(crate) use holding::{Holding, holding};
pub(crate) use notebookos::{ScaleIn, run as notebookos};
pub(crate) use preemptive::preemptive;
pub(crate) use sharing::{Sharing, sharing};
