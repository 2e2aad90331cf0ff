//! Longest waits and overtaken cells, which the quantiles of the summary can't show.

use super::CellResult;
use std::collections::BTreeMap;

/// For each of `(submitted, granted)`: how many were submitted later and granted earlier.
fn overtaken(cells: &[(u64, u64)]) -> Vec<u32> {
    let mut submits: Vec<u64> = cells.iter().map(|&(submit, _)| submit).collect();
    submits.sort_unstable();
    let mut order: Vec<usize> = (0..cells.len()).collect();
    order.sort_unstable_by_key(|&i| cells[i].1);
    let mut counts = Counts(vec![0; submits.len() + 1]);
    let mut passed = vec![0; cells.len()];
    let mut rest = &order[..];
    while let Some(&first) = rest.first() {
        // Cells granted at one time don't overtake each other.
        let at = cells[first].1;
        let (now, later) = rest.split_at(rest.partition_point(|&i| cells[i].1 == at));
        for &i in now {
            passed[i] = counts.above(submits.partition_point(|&s| s <= cells[i].0));
        }
        for &i in now {
            counts.add(submits.partition_point(|&s| s < cells[i].0));
        }
        rest = later;
    }
    passed
}

/// A Fenwick tree over places.
struct Counts(Vec<u32>);

impl Counts {
    fn add(&mut self, place: usize) {
        let mut i = place + 1;
        while i < self.0.len() {
            self.0[i] += 1;
            i += i & i.wrapping_neg();
        }
    }

    fn below(&self, place: usize) -> u32 {
        let (mut i, mut sum) = (place, 0);
        while i > 0 {
            sum += self.0[i];
            i -= i & i.wrapping_neg();
        }
        sum
    }

    /// Number of waits at this place or above.
    fn above(&self, place: usize) -> u32 {
        self.below(self.0.len() - 1) - self.below(place)
    }
}

/// Most later cells of the same size started during a single cell's wait.
pub(super) fn overtaken_most(cells: &[CellResult]) -> u32 {
    let mut sizes: BTreeMap<u16, Vec<(u64, u64)>> = BTreeMap::new();
    for c in cells.iter().filter(|c| c.gpus > 0) {
        sizes.entry(c.gpus).or_default().push((c.submit.0, c.granted.0));
    }
    let most = sizes.values().flat_map(|cells| overtaken(cells)).max();
    most.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::overtaken;

    #[test]
    fn whoever_came_later_and_got_theirs_earlier_overtook() {
        let cells = [(0, 50), (1, 10), (2, 50), (3, 20), (60, 61), (3, 20)];
        let slow = |i: usize| {
            let (submit, granted) = cells[i];
            cells.iter().filter(|&&(s, g)| s > submit && g < granted).count() as u32
        };
        let all: Vec<u32> = (0..cells.len()).map(slow).collect();
        assert_eq!(overtaken(&cells), all);
        assert_eq!(all, [3, 0, 2, 0, 0, 0]);
    }
}
