//! Files that `hopd` writes: the journal, which survives a restart, and the accounting database.
//!
//! [`Journal`] holds the last value of each key that the core emits, and the daemon's term. [`Accounting`] holds one
//! row per lease and one per cell. Each writes on a thread of its own, which puts all posts of one sync's time into
//! one transaction. Each keeps unwritten changes (on a full disk) in memory, tries again, and tells its waiting
//! callers. `docs/store.md` says what is durable when.
//!
//! Left to others: the meaning of entries (`hop-core`), and who may read which rows (`hopd`).

mod accounting;
mod journal;
mod writer;

pub use accounting::{Accounting, AccountingError, AccountingOpenError, Discrepancy};
pub use journal::{Journal, JournalOpenError, Snapshot};
pub use writer::{Health, SaveError, Ticket};
