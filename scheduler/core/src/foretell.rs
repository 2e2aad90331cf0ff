//! Forecast of a cell's need and run: from the cell's own past runs, else its kernel's, else those of all cells. The
//! run so far shortens the forecast of a running cell.

use crate::core::Core;
use crate::index::Idx;
use crate::leases::PRIOR_WEIGHT;
use crate::predict::Habit;
use crate::state::{Cell, Kernel};
use hop_words::id::KernelId;
use hop_words::time::Span;

/// Weight of the kernel's other cells beside a cell's own past runs: as of so many own runs.
const KERNEL_WEIGHT: f32 = 0.5;

/// Evidence that an expectation rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Basis {
    /// The likeliest value, however little is known: for decisions.
    Guess,
    /// From values seen a few times: for people, since they plan by the answer.
    Seen,
}

/// Stands for an unknown time: longer than any that is foreseen.
pub(crate) const UNKNOWN: Span = Span(u64::MAX / 4);

/// Expected run of a cell before any has been seen.
pub(crate) const UNSEEN: Span = Span::from_secs(60);

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
        let median = |own: &Habit, others: &Habit, n: f32| own.remaining(others, n, elapsed, 0.5);
        self.by_past_runs(kernel, print, median)
    }

    /// How much longer the cell runs once it starts, on average.
    pub(crate) fn mean_run(&self, cell: &Cell) -> Span {
        let elapsed = cell.parked.map_or(Span::ZERO, |(_, ran)| ran);
        let mean = |own: &Habit, others: &Habit, n: f32| own.mean_left(others, n, elapsed);
        let left = self.by_past_runs(cell.kernel, cell.print, mean);
        // A cell that outran all runs seen is expected to run as long again.
        left.unwrap_or_else(|| elapsed.max(UNSEEN))
    }

    /// A forecast from past runs of the cell itself and of the kernel; else from past runs of the kernel and of
    /// the pool. `of` gets both, and the weight of the second.
    fn by_past_runs(
        &self,
        kernel: Idx<Kernel>,
        print: u64,
        of: impl Fn(&Habit, &Habit, f32) -> Option<Span>,
    ) -> Option<Span> {
        let k = &self.work.kernels[kernel];
        let same = k.prints.iter().find(|(p, _)| *p == print);
        if let Some(span) = same.and_then(|(_, h)| of(h, &k.runs, KERNEL_WEIGHT)) {
            return Some(span);
        }
        of(&k.runs, &self.supply.pools[k.pool].runs, PRIOR_WEIGHT)
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
