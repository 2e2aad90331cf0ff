//! Files of `hopd`: the journal, which survives a restart, and the accounting database.
//!
//! [`Journal`] holds the last value of each key that the core emits, and the daemon's term. [`Accounting`] holds a row
//! per lease and a row per cell. Each writes on a separate thread, which puts all posts during a sync into a single
//! transaction. Each keeps unwritten changes (on a full disk) in memory, tries again, and tells its waiting callers.
//! `docs/store.md` says what is durable when.
//!
//! Left to others: the meaning of entries (`hop-core`), and the right to read rows (`hopd`).

mod accounting;
mod journal;
mod sums;
mod writer;

pub use accounting::{Accounting, AccountingError, AccountingOpenError, Discrepancy, First, Most};
pub use journal::{Journal, JournalOpenError, Snapshot};
pub use sums::Summed;
pub use writer::{Health, SaveError, Ticket};
