//! Counts refused connections, to keep the log from filling up.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many were turned away so far.
#[derive(Debug, Default)]
pub struct Strangers(AtomicU64);

impl Strangers {
    /// Counts one more. Their number if it is worth a line: the first, the tenth, the hundredth ...
    pub fn another(&self) -> Option<u64> {
        let count = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        (10u64.pow(count.ilog10()) == count).then_some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_are_four_lines() {
        let strangers = Strangers::default();
        let told: Vec<u64> = (0..1000).filter_map(|_| strangers.another()).collect();
        assert_eq!(told, [1, 10, 100, 1000]);
    }
}
