//! Counts events that anybody can cause, to keep them from filling up the log.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of events so far.
#[derive(Debug, Default)]
pub struct LogSampler(AtomicU64);

impl LogSampler {
    /// Counts one event more. Returns the new number if the event is worth a line of the log: the first, the tenth, the
    /// hundredth ...
    pub fn count(&self) -> Option<u64> {
        let count = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        (10u64.pow(count.ilog10()) == count).then_some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_events_are_four_lines() {
        let sampler = LogSampler::default();
        let told: Vec<u64> = (0..1000).filter_map(|_| sampler.count()).collect();
        assert_eq!(told, [1, 10, 100, 1000]);
    }
}
