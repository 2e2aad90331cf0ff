//! Likely ranges of told waits, learnt from how earlier estimates turned out. Pure.
//!
//! The core makes the estimates. Each granted cell gives the factor between its estimates and its wait. Waiting cells
//! aren't counted yet: when a pool's waits have just grown, the pool's ranges are too narrow for a while.

use hop_words::id::{CellId, KernelId};
use hop_words::time::{Span, Timestamp};
use std::collections::{BTreeMap, VecDeque};

/// Errors that are remembered.
const KEPT: usize = 200;

/// With fewer known errors no range is told.
const ENOUGH: usize = 20;

/// Most estimates of one cell that count. A long wait brings many estimates, and is still one observation.
const OF_ONE: usize = 3;

/// Cells whose estimates are remembered. The cells that withdrew, of whom nothing is heard here, leave as others come.
const CELLS: usize = 10_000;

/// Added on both sides of a ratio: below it the length of a wait means nothing.
const BLUR_S: f64 = 1.0;

/// The range ends at this share of waits, and leaves out as much at the other end.
const LOW: f64 = 0.1;
const HIGH: f64 = 0.9;

type Key = (KernelId, CellId);

#[derive(Debug, Default)]
pub(crate) struct Estimates {
    open: BTreeMap<Key, Vec<(Timestamp, Span)>>,
    /// The keys of `open`, the oldest first; some are gone already.
    order: VecDeque<Key>,
    /// Real wait over estimated wait, the newest last.
    errors: VecDeque<f64>,
}

impl Estimates {
    /// A cell was told how long it still waits.
    pub(crate) fn told(&mut self, kernel: &KernelId, cell: &CellId, estimate: Span, now: Timestamp) {
        let key = (kernel.clone(), cell.clone());
        if !self.open.contains_key(&key) {
            self.order.push_back(key.clone());
        }
        let told = self.open.entry(key).or_default();
        if told.len() < OF_ONE {
            told.push((now, estimate));
        }
        while self.order.len() > CELLS {
            if let Some(oldest) = self.order.pop_front() {
                self.open.remove(&oldest);
            }
        }
    }

    /// The cell waits no longer.
    pub(crate) fn granted(&mut self, kernel: &KernelId, cell: &CellId, now: Timestamp) {
        let told = self.open.remove(&(kernel.clone(), cell.clone()));
        for (at, estimate) in told.into_iter().flatten() {
            let waited = now.since(at).as_secs_f64();
            let error = (waited + BLUR_S) / (estimate.as_secs_f64() + BLUR_S);
            self.errors.push_back(error);
        }
        let extra = self.errors.len().saturating_sub(KEPT);
        self.errors.drain(..extra);
    }

    /// The cell won't be served.
    pub(crate) fn over(&mut self, kernel: &KernelId, cell: &CellId) {
        self.open.remove(&(kernel.clone(), cell.clone()));
    }

    /// The range of four in five waits with this estimate.
    pub(crate) fn range(&self, estimate: Span) -> Option<(Span, Span)> {
        if self.errors.len() < ENOUGH {
            return None;
        }
        let mut sorted: Vec<f64> = self.errors.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let error = sorted[((sorted.len() - 1) as f64 * share).round() as usize];
            let seconds = (estimate.as_secs_f64() + BLUR_S) * error - BLUR_S;
            Span((seconds.max(0.0) * 1e6) as u64)
        };
        Some((at(LOW).min(estimate), at(HIGH).max(estimate)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Timestamp {
        Timestamp(s * 1_000_000)
    }

    /// Cells told an estimate of 9 s each, and their waits.
    fn after(waits: impl IntoIterator<Item = u64>) -> Estimates {
        let mut estimates = Estimates::default();
        for (n, wait) in waits.into_iter().enumerate() {
            let cell = CellId::from(format!("c{n}"));
            estimates.told(&"k".into(), &cell, Span::from_secs(9), at(100));
            estimates.granted(&"k".into(), &cell, at(100 + wait));
        }
        estimates
    }

    #[test]
    fn nothing_is_told_before_enough_is_known() {
        assert_eq!(after(vec![9; ENOUGH - 1]).range(Span::from_secs(40)), None);
        let sure = after(vec![9; ENOUGH]).range(Span::from_secs(40));
        assert_eq!(sure, Some((Span::from_secs(40), Span::from_secs(40))));
    }

    #[test]
    fn a_range_is_as_wide_as_the_errors_were() {
        // A tenth waited 0 s, a tenth 99 s, the others as told.
        let waits = (0..100).map(|n| match n % 10 {
            0 => 0,
            1 => 99,
            _ => 9,
        });
        let estimates = after(waits.chain([0, 99]));
        assert_eq!(
            estimates.range(Span::from_secs(19)),
            Some((Span::from_secs(1), Span::from_secs(199)))
        );
    }

    #[test]
    fn a_range_holds_its_estimate() {
        let late = after(vec![99; ENOUGH]);
        assert_eq!(
            late.range(Span::from_secs(9)),
            Some((Span::from_secs(9), Span::from_secs(99)))
        );
    }

    #[test]
    fn only_the_newest_errors_count_and_few_of_one_cell() {
        let mut estimates = after(vec![99; 50].into_iter().chain(vec![9; KEPT]));
        assert_eq!(estimates.errors.len(), KEPT);
        let nine = Span::from_secs(9);
        assert_eq!(estimates.range(nine), Some((nine, nine)));
        for _ in 0..1000 {
            estimates.told(&"k".into(), &"long".into(), nine, at(0));
        }
        estimates.granted(&"k".into(), &"long".into(), at(99_999));
        assert_eq!(estimates.range(nine), Some((nine, nine)), "one cell of many");
    }

    #[test]
    fn cells_that_withdrew_are_forgotten() {
        let mut estimates = Estimates::default();
        for n in 0..CELLS + 5 {
            estimates.told(
                &"k".into(),
                &format!("c{n}").as_str().into(),
                Span::from_secs(1),
                at(0),
            );
        }
        assert_eq!(estimates.open.len(), CELLS);
        estimates.over(&"k".into(), &format!("c{CELLS}").as_str().into());
        estimates.granted(&"k".into(), &format!("c{CELLS}").as_str().into(), at(9));
        assert!(estimates.errors.is_empty());
    }
}
