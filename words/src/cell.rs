//! Waiting cells, and the targets of a cancellation.

use crate::id::{CellId, KernelId, LeaseId};
use crate::lease::Outcome;
use crate::need::{Class, Need};
use crate::time::Span;
use serde::{Deserialize, Serialize};

/// A cell that was submitted and has no lease.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WaitingCell {
    pub cell: CellId,
    pub need: Need,
    pub class: Class,
    /// Mark of the cell's text: a kernel's cells with one print have one text. 0 means unknown.
    #[serde(default)]
    pub print: u64,
}

/// A cell parked in its middle, with its GPU memory on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParkedCell {
    pub cell: CellId,
    /// The lease on which it ran last.
    pub lease: LeaseId,
    /// Run time of the cell so far, over all leases.
    pub ran: Span,
}

/// A cell that has run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedCell {
    pub cell: CellId,
    pub outcome: Outcome,
}

/// The target of `hop cancel`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "target", rename_all = "kebab-case")]
pub enum CancelTarget {
    Lease { lease: LeaseId },
    Cell { kernel: KernelId, cell: CellId },
    Kernel { kernel: KernelId },
}
