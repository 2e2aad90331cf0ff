//! The replicated log of a kernel: the entries and their state machine.
//!
//! [`State::apply`] decides the effect of each entry: the executor, the answer of each cell, the records of the namespace. The crate has no clock, no randomness, no IO and no `async`. Two hosts drive the same machine: with
//! three replicas a Raft group (`kernel/raft`, `kernel/keeper`), with one replica the executor alone, whose front opens
//! the tenures. `docs/replication.md` says, state by state, who may execute when.
//!
//! Every entry names its place: a tenure, an incarnation, an act's sequence, a record's number. A late, doubled or repeated
//! proposal therefore finds its place taken, and changes nothing.

mod apply;
mod check;
mod entry;
mod error;
mod form;
mod id;
mod ledger;
mod record;
mod state;
pub mod steward;
pub mod store;

pub use apply::{Effect, TAIL_MAX};
pub use check::Insane;
pub use entry::{Act, Entry, Settled};
pub use error::Refusal;
pub use form::{Form, FormError};
pub use id::{CellNumber, Generation, Index, RecordNumber, Sequence};
pub use ledger::Ledger;
pub use record::{Payload, Record};
pub use state::{Answer, End, Fate, Loss, Member, Office, Restore, State};
