//! GPUs as Slurm counts them and as device files.

use crate::id::{GpuIndex, GpuType};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A GPU that a pilot holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuSlot {
    pub index: GpuIndex,
    pub gpu_type: GpuType,
    /// Memory in MiB; 0 means unknown.
    pub mem_mib: u64,
    /// Why the GPU can't be lent. `None` means that it can be.
    pub blocked: Option<String>,
}

/// The device file of a leased GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    pub index: GpuIndex,
    pub path: PathBuf,
    pub major: u32,
    pub minor: u32,
}
