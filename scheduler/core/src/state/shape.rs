//! Needs, as far as cells with them compete for the same GPUs and cores.

use super::Group;
use hop_words::id::GpuType;
use hop_words::need::Need;

/// Needs for the same GPUs: cells of one shape compete with each other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shape {
    pub gpus: u16,
    pub gpu_type: Option<GpuType>,
    pub gpu_mem_mib: u64,
}

/// Needs for the same GPUs and as many cores.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size {
    pub shape: Shape,
    pub cpus: u16,
}

impl Size {
    pub(crate) fn of(need: &Need, cpus: u16) -> Self {
        Self {
            shape: Shape::of(need),
            cpus,
        }
    }
}

impl Shape {
    pub(crate) fn of(need: &Need) -> Self {
        Self {
            gpus: need.gpus,
            gpu_type: need.gpu_type.clone(),
            gpu_mem_mib: need.gpu_mem_mib,
        }
    }

    pub(crate) fn fits(&self, group: &Group) -> bool {
        self.takes(&group.gpu_type, group.mem_mib)
    }

    /// Whether GPUs of this type and memory would do.
    pub(crate) fn takes(&self, gpu_type: &GpuType, mem_mib: u64) -> bool {
        self.gpu_type.as_ref().is_none_or(|t| t == gpu_type) && mem_mib >= self.gpu_mem_mib
    }

    /// Whether as many GPUs are asked for, and all that would do for `other` would do.
    pub(crate) fn asks_no_more_than(&self, other: &Self) -> bool {
        self.gpus == other.gpus
            && (self.gpu_type.is_none() || self.gpu_type == other.gpu_type)
            && self.gpu_mem_mib <= other.gpu_mem_mib
    }
}
