//! Forecast of a cell's need and run: from the cell's own past runs, else its kernel's, else those of all cells. The
//! run so far shortens the forecast of a running cell.

use crate::core::Core;
use crate::index::Idx;
use crate::leases::PRIOR_WEIGHT;
use crate::state::Kernel;
use hop_words::id::KernelId;
use hop_words::time::Span;

/// Weight of the kernel's other cells beside a cell's own past runs: as of so many own runs.
const KERNEL_WEIGHT: f32 = 0.5;

/// At least so many observations are more than a guess. Even a recent observation counts a little less than one.
pub(crate) const FEW: f32 = 2.5;

/// What is expected of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Foretold {
    /// Median of the remaining run time; none where nothing ran as long before.
    pub left: Option<Span>,
    /// Likely number of GPUs for the kernel's next cell.
    pub gpus: u16,
    /// Number of past runs behind the forecast: the cell's, if any, else the kernel's.
    pub history: u32,
}

impl Core {
    /// Forecast for a cell with text `print` (0: unknown) that has run for `elapsed`. `None` means that the kernel is
    /// unknown.
    pub fn foretell(&self, kernel: &KernelId, print: u64, elapsed: Span) -> Option<Foretold> {
        let k = self.find_kernel(kernel)?;
        let kernel = &self.work.kernels[k];
        let same = kernel.prints.iter().find(|(p, _)| *p == print);
        let most = kernel.sizes.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        Some(Foretold {
            left: self.run_left(k, print, elapsed),
            gpus: most.map_or(kernel.default_need.gpus, |&(gpus, _)| gpus),
            history: same.map_or(kernel.runs.count, |(_, h)| h.count),
        })
    }

    /// How much longer the kernel's cell runs, at the median, when it has run for `elapsed`.
    pub(crate) fn run_left(&self, kernel: Idx<Kernel>, print: u64, elapsed: Span) -> Option<Span> {
        let k = &self.work.kernels[kernel];
        let same = k.prints.iter().find(|(p, _)| *p == print);
        if let Some(span) = same.and_then(|(_, h)| h.remaining(&k.runs, KERNEL_WEIGHT, elapsed, 0.5)) {
            return Some(span);
        }
        let others = &self.supply.pools[k.pool].runs;
        k.runs.remaining(others, PRIOR_WEIGHT, elapsed, 0.5)
    }

    /// Whether enough was seen to tell people how much longer the kernel's cell runs: the cell itself, or a few others,
    /// have run longer than `elapsed`.
    pub(crate) fn has_seen(&self, kernel: Idx<Kernel>, print: u64, elapsed: Span) -> bool {
        let k = &self.work.kernels[kernel];
        let same = k.prints.iter().find(|(p, _)| *p == print);
        same.is_some_and(|(_, h)| h.longer_than(elapsed) > 0.5)
            || k.runs.longer_than(elapsed) >= FEW
            || self.supply.pools[k.pool].runs.longer_than(elapsed) >= FEW
    }
}
