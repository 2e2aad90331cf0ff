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
    /// Counts the reopenings of the kernel's group from the store, each after the loss of a majority.
    Generation,
    u32
);

/// The tenures of generation `g` lie between `g * TENURES` and `(g + 1) * TENURES`, both excluded. A lost group may have
/// opened tenures unseen; a new generation takes none of them.
const TENURES: u64 = 1_000_000;

impl Generation {
    /// The number before the generation's first tenure.
    pub const fn before_first_tenure(self) -> Tenure {
        Tenure(self.0 as u64 * TENURES)
    }

    /// The generation's last tenure.
    pub const fn last_tenure(self) -> Tenure {
        Tenure((self.0 as u64 + 1) * TENURES - 1)
    }
}
