//! Forecast of a run: the length, the deadline's chances, and the GPUs to meet the deadline. Pure.
//!
//! Times are seconds from now. Nothing unknown is made up: a cell that never ran counts as nothing and makes the
//! answer uncertain.

use super::history::{History, Print, median};
use std::collections::BTreeMap;

/// Share of a cell's work that more GPUs make faster, until runs with different numbers of GPUs have shown it.
const PARALLEL: f64 = 0.9;
/// Share of the expected length that `auto` leaves for surprises.
const MARGIN: f64 = 0.05;
/// Time for a lease before any was seen: a fresh one takes a fraction of a second.
const LEASE: f64 = 0.3;

/// A cell still to run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cell {
    pub(crate) print: Print,
    /// GPUs that it asks for itself.
    pub(crate) gpus: u16,
    /// `--gpus` sets the number of GPUs.
    pub(crate) scaled: bool,
    /// Time of the last run, as stored in the notebook.
    pub(crate) prior: Option<f64>,
}

/// How many GPUs the scaled cells get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gpus {
    /// As the cells ask.
    Own,
    Fixed(u16),
    /// The fewest GPUs to meet the deadline, between one and this number.
    Auto(u16),
}

/// Expected wait of the first cell with GPUs, by their number; `None` means no estimate. Fewer GPUs than a number wait no
/// longer than that.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Waits {
    Free,
    Told(BTreeMap<u16, Option<f64>>),
}

impl Waits {
    fn of(&self, gpus: u16) -> Option<f64> {
        match self {
            Self::Free => Some(0.0),
            Self::Told(waits) => waits.range(gpus..).next().and_then(|(_, wait)| *wait),
        }
    }
}

/// All that a forecast is made of.
#[derive(Debug)]
pub(crate) struct Basis<'a> {
    pub(crate) history: &'a History,
    pub(crate) params: &'a Print,
    /// Until the kernel is up.
    pub(crate) start: f64,
    pub(crate) waits: &'a Waits,
    /// From now to the deadline; negative when it is over.
    pub(crate) deadline: Option<f64>,
    pub(crate) gpus: Gpus,
    /// Most GPUs that one cell can have.
    pub(crate) limit: u16,
}

/// What is expected.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Length {
    pub(crate) expected: f64,
    /// Seldom more than this.
    pub(crate) cautious: f64,
    /// Cells of which nothing is known.
    pub(crate) unknown: usize,
    /// How long the first lease is waited for is not known.
    pub(crate) queue_unknown: bool,
    /// Part of the time that is spent in the queue.
    pub(crate) wait: f64,
    /// Of how much a part is assumed, because the cells did not yet run with that many GPUs.
    pub(crate) assumed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Verdict {
    NoDeadline,
    /// With this much to spare.
    Holds(f64),
    /// The forecast holds, unless cells take as long as they sometimes did.
    Tight(f64),
    /// By this much too late.
    Missed(f64),
    /// The unknown cells decide; the known ones leave this much time.
    Unknown(f64),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Forecast {
    pub(crate) length: Length,
    pub(crate) verdict: Verdict,
    /// GPUs of the scaled cells; none: as each asks.
    pub(crate) gpus: Option<u16>,
    /// Fewest GPUs with which the deadline would hold, and the run's time with them.
    pub(crate) would_hold: Option<(u16, f64)>,
}

impl Basis<'_> {
    /// Looks ahead over the remaining cells.
    pub(crate) fn forecast(&self, cells: &[Cell]) -> Forecast {
        let gpus = self.choose(cells);
        let length = self.length(cells, gpus);
        let verdict = self.verdict(&length);
        let would_hold = match verdict {
            Verdict::Missed(_) | Verdict::Tight(_) => self.more(cells, gpus),
            _ => None,
        };
        Forecast {
            length,
            verdict,
            gpus,
            would_hold,
        }
    }

    /// When the first of the cells must start at the latest, from now, so that the last is done in time.
    pub(crate) fn latest_start(&self, cells: &[Cell], gpus: Option<u16>) -> Option<f64> {
        let runs = cells.iter().filter_map(|c| self.estimate(c, gpus));
        Some(self.deadline? - runs.map(|e| e.expected).sum::<f64>())
    }

    /// Expected time of the first of the cells.
    pub(crate) fn of_cell(&self, cell: &Cell, gpus: Option<u16>) -> Option<f64> {
        self.estimate(cell, gpus).map(|e| e.expected)
    }

    fn choose(&self, cells: &[Cell]) -> Option<u16> {
        match self.gpus {
            Gpus::Own => None,
            Gpus::Fixed(n) => Some(n),
            Gpus::Auto(most) => {
                let Some(deadline) = self.deadline else {
                    return Some(1);
                };
                let counts = || 1..=most.max(1);
                let length = |n: &u16| self.length(cells, Some(*n));
                counts()
                    .find(|n| length(n).cautious + MARGIN * length(n).expected <= deadline)
                    .or_else(|| counts().find(|n| length(n).expected <= deadline))
                    .or_else(|| counts().min_by(|a, b| length(a).expected.total_cmp(&length(b).expected)))
            }
        }
    }

    /// The fewest GPUs, more than `gpus`, with which the deadline holds.
    fn more(&self, cells: &[Cell], gpus: Option<u16>) -> Option<(u16, f64)> {
        let scaled = cells.iter().filter(|c| c.scaled);
        let now = gpus.or_else(|| scaled.map(|c| c.gpus).max())?;
        (now + 1..=self.limit).find_map(|n| {
            let length = self.length(cells, Some(n));
            (length.cautious <= self.deadline?).then_some((n, length.expected))
        })
    }

    fn verdict(&self, length: &Length) -> Verdict {
        let Some(deadline) = self.deadline else {
            return Verdict::NoDeadline;
        };
        let spare = deadline - length.expected;
        if spare < 0.0 {
            Verdict::Missed(-spare)
        } else if length.unknown > 0 || length.queue_unknown {
            Verdict::Unknown(spare)
        } else if length.cautious > deadline {
            Verdict::Tight(spare)
        } else {
            Verdict::Holds(spare)
        }
    }

    fn length(&self, cells: &[Cell], gpus: Option<u16>) -> Length {
        let mut sum = Length {
            expected: self.start,
            ..Length::default()
        };
        let mut spread = 0.0;
        let lease = self.history.usual_wait().unwrap_or(LEASE);
        let mut queued = false;
        for cell in cells {
            let n = count(cell, gpus);
            if n > 0 && !std::mem::replace(&mut queued, true) {
                let wait = self.waits.of(n);
                sum.queue_unknown = wait.is_none();
                sum.wait = wait.unwrap_or_default();
                // The forecast wait is the middle of its range.
                spread += sum.wait.powi(2);
                // While the earlier cells run, other cells in the queue go on: the wait gets shorter.
                sum.wait = (sum.wait - sum.expected).max(0.0);
                sum.expected += sum.wait.max(lease);
            } else if n > 0 {
                sum.expected += lease;
            }
            match self.estimate(cell, gpus) {
                Some(one) => {
                    sum.expected += one.expected;
                    // Cells vary apart from each other, so not all are slow at once.
                    spread += (one.cautious - one.expected).powi(2);
                    sum.assumed |= one.assumed;
                }
                None => sum.unknown += 1,
            }
        }
        sum.cautious = sum.expected + f64::sqrt(spread);
        sum
    }

    fn estimate(&self, cell: &Cell, gpus: Option<u16>) -> Option<Length> {
        let n = count(cell, gpus);
        let runs = self.history.runs(&cell.print, self.params);
        let of = |m: u16| -> Vec<f64> {
            let same = runs.iter().filter(|r| r.gpus == m);
            same.map(|r| r.seconds).collect()
        };
        let own = of(n);
        if let Some(expected) = median(&own) {
            return Some(length(expected, &own, false));
        }
        let Some(nearest) = runs.iter().map(|r| r.gpus).min_by_key(|m| m.abs_diff(n)) else {
            let prior = cell.prior?;
            let speedup = work(n, PARALLEL) / work(cell.gpus, PARALLEL);
            return Some(length(prior * speedup, &[], n != cell.gpus));
        };
        let near = of(nearest);
        let share = share(&runs.iter().map(|r| (r.gpus, r.seconds)).collect::<Vec<_>>());
        let factor = work(n, share) / work(nearest, share);
        Some(length(median(&near)? * factor, &[], true))
    }
}

/// The parallel share, by the runs with the fewest and the most GPUs.
fn share(runs: &[(u16, f64)]) -> f64 {
    let of = |m: u16| {
        let same = runs.iter().filter(|(n, _)| *n == m);
        median(&same.map(|(_, s)| *s).collect::<Vec<_>>())
    };
    let counts = || runs.iter().map(|(n, _)| *n).filter(|n| *n > 0);
    let (Some(few), Some(many)) = (counts().min(), counts().max()) else {
        return PARALLEL;
    };
    let (Some(slow), Some(fast)) = (of(few), of(many)) else {
        return PARALLEL;
    };
    let (a, b) = (1.0 / f64::from(few), 1.0 / f64::from(many));
    let bottom = slow * (1.0 - b) - fast * (1.0 - a);
    if few == many || bottom <= 0.0 {
        return PARALLEL;
    }
    ((slow - fast) / bottom).clamp(0.0, 1.0)
}

fn count(cell: &Cell, gpus: Option<u16>) -> u16 {
    gpus.filter(|_| cell.scaled).unwrap_or(cell.gpus)
}

/// Amdahl's law.
fn work(gpus: u16, share: f64) -> f64 {
    1.0 - share + share / f64::from(gpus.max(1))
}

/// A few runs don't show how long it may take.
fn length(expected: f64, seen: &[f64], assumed: bool) -> Length {
    let longest = seen.iter().copied().fold(expected, f64::max);
    let margin = if seen.len() < 3 { 1.25 } else { 1.0 };
    Length {
        expected,
        cautious: longest.max(expected * margin),
        assumed,
        ..Length::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::Ran;
    use super::*;

    fn cell(text: &str, gpus: u16) -> Cell {
        Cell {
            print: Print::of(text),
            gpus,
            scaled: gpus > 0,
            prior: None,
        }
    }

    fn ran(text: &str, gpus: u16, seconds: f64) -> Ran {
        Ran {
            print: Print::of(text),
            params: Print::of(""),
            gpus,
            seconds,
            waited: 0.0,
        }
    }

    fn forecast(history: &[Ran], cells: &[Cell], deadline: f64, gpus: Gpus) -> Forecast {
        let (history, params) = (History::of(history.to_vec()), Print::of(""));
        let basis = Basis {
            history: &history,
            params: &params,
            start: 0.0,
            waits: &Waits::Free,
            deadline: Some(deadline),
            gpus,
            limit: 4,
        };
        basis.forecast(cells)
    }

    #[test]
    fn a_deadline_holds_is_tight_or_is_missed_by_what_the_cells_took() {
        let seen = [90.0, 100.0, 100.0, 100.0, 130.0].map(|s| ran("train", 1, s));
        let cells = [cell("train", 1)];
        let verdict = |deadline| forecast(&seen, &cells, deadline, Gpus::Own).verdict;
        assert_eq!(verdict(150.0), Verdict::Holds(50.0));
        assert_eq!(verdict(110.0), Verdict::Tight(10.0));
        assert_eq!(verdict(60.0), Verdict::Missed(40.0));
    }

    #[test]
    fn cells_that_never_ran_make_it_uncertain_and_nothing_is_made_up() {
        let cells = [cell("train", 1), cell("new", 1)];
        let seen = [ran("train", 1, 100.0)];
        let got = forecast(&seen, &cells, 150.0, Gpus::Own);
        assert_eq!((got.length.unknown, got.verdict), (1, Verdict::Unknown(50.0)));
        let got = forecast(&seen, &cells, 50.0, Gpus::Own);
        assert_eq!(got.verdict, Verdict::Missed(50.0));
        let prior = [Cell {
            prior: Some(80.0),
            ..cell("new", 0)
        }];
        assert_eq!(
            forecast(&[], &prior, 150.0, Gpus::Own).verdict,
            Verdict::Holds(70.0)
        );
    }

    #[test]
    fn auto_takes_as_few_gpus_as_keep_the_deadline() {
        let seen = [ran("train", 1, 100.0), ran("train", 2, 50.0)];
        let cells = [cell("load", 0), cell("train", 1)];
        let known = [seen.to_vec(), vec![ran("load", 0, 4.0)]].concat();
        let gpus = |deadline| forecast(&known, &cells, deadline, Gpus::Auto(4)).gpus;
        assert_eq!(gpus(200.0), Some(1));
        assert_eq!(gpus(80.0), Some(2));
        assert_eq!(gpus(50.0), Some(3), "all of it is parallel, as the two runs show");
        assert_eq!(gpus(1.0), Some(4), "as fast as can be");
        let none = forecast(&[], &cells, 10.0, Gpus::Auto(4));
        assert_eq!((none.gpus, none.length.unknown), (Some(1), 2));
    }

    #[test]
    fn it_says_what_it_would_take() {
        let seen = [ran("train", 1, 100.0)];
        let cells = [cell("train", 1)];
        let got = forecast(&seen, &cells, 80.0, Gpus::Fixed(1));
        assert_eq!(got.verdict, Verdict::Missed(20.0));
        let (n, takes) = got.would_hold.unwrap();
        assert_eq!(n, 2);
        assert!(
            (takes - 55.0).abs() < 1e-9,
            "nine tenths are assumed to be parallel: {takes}"
        );
        assert_eq!(forecast(&seen, &cells, 20.0, Gpus::Fixed(1)).would_hold, None);
        assert_eq!(forecast(&seen, &cells, 300.0, Gpus::Fixed(1)).would_hold, None);
    }

    #[test]
    fn a_queue_that_nobody_can_foretell_makes_it_uncertain() {
        let (history, params) = (History::of([ran("a", 1, 30.0)]), Print::of(""));
        let basis = Basis {
            history: &history,
            params: &params,
            start: 0.0,
            waits: &Waits::Told(BTreeMap::from([(1, None)])),
            deadline: Some(100.0),
            gpus: Gpus::Own,
            limit: 1,
        };
        assert_eq!(basis.forecast(&[cell("a", 1)]).verdict, Verdict::Unknown(70.0));
        assert_eq!(basis.forecast(&[]).verdict, Verdict::Holds(100.0));
    }

    #[test]
    fn a_wait_that_is_told_counts_once_and_less_what_runs_before_it() {
        let (history, params) = (History::of([ran("a", 1, 30.0), ran("b", 0, 20.0)]), Print::of(""));
        let waits = Waits::Told(BTreeMap::from([(1, Some(50.0)), (2, None)]));
        let basis = Basis {
            history: &history,
            params: &params,
            start: 0.0,
            waits: &waits,
            deadline: Some(100.0),
            gpus: Gpus::Own,
            limit: 1,
        };
        let alone = basis.forecast(&[cell("a", 1)]);
        assert_eq!((alone.length.wait, alone.verdict), (50.0, Verdict::Tight(20.0)));
        let later = basis.forecast(&[cell("b", 0), cell("a", 1)]);
        assert_eq!((later.length.wait, later.length.expected), (30.0, 80.0));
        let twice = basis.forecast(&[cell("a", 1), cell("a", 1)]);
        assert_eq!(twice.verdict, Verdict::Missed(10.0));
        assert!(basis.forecast(&[cell("a", 2)]).length.queue_unknown);
        assert!(waits.of(3).is_none());
        let rough = Waits::Told(BTreeMap::from([(8, Some(20.0)), (16, Some(50.0))]));
        assert_eq!(
            rough.of(9),
            Some(50.0),
            "as for the next number that was asked for"
        );
    }

    #[test]
    fn the_latest_start_leaves_time_for_all_that_follows() {
        let (history, params) = (History::of([ran("a", 1, 30.0), ran("b", 1, 20.0)]), Print::of(""));
        let basis = Basis {
            history: &history,
            params: &params,
            start: 0.0,
            waits: &Waits::Free,
            deadline: Some(100.0),
            gpus: Gpus::Own,
            limit: 1,
        };
        let cells = [cell("a", 1), cell("b", 1)];
        assert_eq!(basis.latest_start(&cells, None), Some(50.0));
        assert_eq!(basis.latest_start(&cells[1..], None), Some(80.0));
    }
}
