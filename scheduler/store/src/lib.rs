//! Files that `hopd` writes: the journal, which survives a restart, and the accounting database.
//!
//! [`Journal`] holds the last value of each key that the core emits and the daemon's term; [`Accounting`] holds
//! one row per lease and one per cell. Both write on a thread of their own that puts everything which came in
//! while it was syncing into one transaction, and both keep what could not be written (a full disk) in memory and
//! try again, telling everybody who waits. `docs/store.md` says what is durable when.
//!
//! Left to others: the meaning of entries (`hop-core`), and who may read which rows (`hopd`).

mod accounting;
mod journal;
mod writer;

pub use accounting::{Accounting, AccountingError, AccountingOpenError, Discrepancy};
pub use journal::{Journal, JournalOpenError, Snapshot};
pub use writer::{Health, SaveError, Ticket};
