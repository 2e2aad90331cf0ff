//! Needs of a cell: GPUs, cores, and a deadline.
//!
//! A need is known before the cell runs. A need is the kernelspec's default, overridden by cell metadata or by the
//! magics `%%gpu N [--type T] [--mem G] [--cpus C] [--deadline D]` and `%%cpu [--cpus C]`. Code can also state a need
//! in the middle of a cell. `kernel/replica` finds the need in a cell's text; this module is only the value.

use crate::id::GpuType;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// What one cell asks for. `gpus == 0 && cpus == 0` needs no lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(from = "Written")]
pub struct Need {
    /// Whole GPUs, all on one node: 0 to 8.
    pub gpus: u16,
    /// Slurm's GPU type; none: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_type: Option<GpuType>,
    /// Least memory of each GPU in MiB; 0: any.
    pub gpu_mem_mib: u64,
    /// Cores of the lease, beside the seat's own; 0: only the GPUs' cores.
    pub cpus: u16,
    /// When the cell should be done (`--deadline`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
}

/// A need as people write it.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Written {
    gpus: Option<u16>,
    gpu_type: Option<GpuType>,
    gpu_mem_mib: u64,
    cpus: u16,
    deadline: Option<Timestamp>,
}

impl From<Written> for Need {
    /// A type or a memory of GPUs without their number means one GPU.
    fn from(written: Written) -> Self {
        let (gpu_type, gpu_mem_mib) = (written.gpu_type, written.gpu_mem_mib);
        let least = u16::from(gpu_type.is_some() || gpu_mem_mib > 0);
        Self {
            gpus: written.gpus.unwrap_or(least),
            gpu_type,
            gpu_mem_mib,
            cpus: written.cpus,
            deadline: written.deadline,
        }
    }
}

impl Need {
    /// A need of `n` GPUs and nothing else.
    pub fn gpus(n: u16) -> Self {
        Self {
            gpus: n,
            ..Self::default()
        }
    }

    /// Whether a cell with this need runs without asking the scheduler.
    pub fn is_none(&self) -> bool {
        self.gpus == 0 && self.cpus == 0
    }
}

/// The queue's classes (architecture, section 7), the most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Somebody sits in front of it.
    #[default]
    Interactive,
    /// A cell or notebook with a deadline.
    Deadline,
    /// A whole notebook that runs unattended.
    Batch,
}

impl Class {
    /// As configuration and messages spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Interactive => "interactive",
            Self::Deadline => "deadline",
            Self::Batch => "batch",
        }
    }
}
