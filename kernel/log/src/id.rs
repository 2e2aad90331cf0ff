//! Numbers given out by the log. Each counts within one kernel and is never given twice within a generation.

use hop_words::id::Tenure;
use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $repr:ty) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $repr);

        impl $name {
            /// The number after this one.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// The place of an entry in the log. The first entry has 1; Raft's own entries leave gaps.
    Index,
    u64
);
number!(
    /// A cell by the order in which cells were answered. The first has 1.
    CellNumber,
    u64
);
number!(
    /// A record of the namespace by the order in which records were committed. The first has 1.
    RecordNumber,
    u64
);
number!(
    /// An act of a tenure by the order in which the executor proposes. The first of each tenure has 1.
    Sequence,
    u64
);
number!(
    /// The kernel's groups of replicas, in the order in which fronts opened them. Numbers may be left out: a restart
    /// takes the clock's seconds.
    Generation,
    u32
);

/// The tenures of generation `g` lie between `g * TENURES` and `(g + 1) * TENURES`, both excluded. A lost group may have
/// opened tenures unseen; a new generation takes none of them.
const TENURES: u64 = 1_000_000;

/// The highest generation that a clock may give, in 2065. A clock set far ahead leaves numbers for the groups after.
const LATEST: u32 = 3_000_000_000;

impl Generation {
    /// The generation of a tenure. `None` means a number beyond all generations.
    pub fn of(tenure: Tenure) -> Option<Self> {
        u32::try_from(tenure.0 / TENURES).ok().map(Self)
    }

    /// The generation of a new group: above the last known one, whatever the clock says. A kernel may have had groups
    /// that nobody knows any more, and the clock's seconds grow faster than generations. `None` means that no number is
    /// left.
    pub fn above(last: Self, seconds: u64) -> Option<Self> {
        let by_clock = u32::try_from(seconds).unwrap_or(LATEST).min(LATEST);
        Some(Self(last.0.checked_add(1)?.max(by_clock)))
    }

    /// The number before the generation's first tenure.
    pub const fn before_first_tenure(self) -> Tenure {
        Tenure(self.0 as u64 * TENURES)
    }

    /// The generation's last tenure.
    pub const fn last_tenure(self) -> Tenure {
        Tenure((self.0 as u64 + 1) * TENURES - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_generation_is_above_the_last_one_by_any_clock() {
        const TODAY: u64 = 1_800_000_000;
        const YEAR: u64 = 31_536_000;
        for (last, clock, next) in [
            (0, TODAY, 1_800_000_000),
            // Two restarts in one second.
            (1_800_000_000, TODAY, 1_800_000_001),
            // The clock is set back by an hour and by a year, and stands at 1970.
            (1_800_000_000, TODAY - 3600, 1_800_000_001),
            (1_800_000_000, TODAY - YEAR, 1_800_000_001),
            (1_800_000_000, 0, 1_800_000_001),
            (0, 0, 1),
            (6, 0, 7),
            // The clock is right again after it was behind, and after it was ahead.
            (6, TODAY, 1_800_000_000),
            (1_900_000_000, TODAY, 1_900_000_001),
            // A clock far ahead leaves numbers for later groups.
            (6, u64::MAX, LATEST),
            (LATEST, u64::MAX, LATEST + 1),
        ] {
            let above = Generation::above(Generation(last), clock);
            assert_eq!(above, Some(Generation(next)), "{last} {clock}");
        }
        assert_eq!(Generation::above(Generation(u32::MAX), TODAY), None);
    }

    #[test]
    fn a_tenure_is_of_one_generation() {
        for generation in [0, 1, 1_800_000_000, u32::MAX].map(Generation) {
            let first = generation.before_first_tenure().0 + 1;
            for tenure in [Tenure(first), generation.last_tenure()] {
                assert_eq!(Generation::of(tenure), Some(generation));
            }
        }
        assert_eq!(Generation::of(Tenure(u64::MAX)), None);
    }
}
