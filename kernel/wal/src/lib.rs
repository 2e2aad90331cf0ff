//! A write-ahead log shared by many groups: one fdatasync serves them all.
//!
//! Entries lie in segments: files of one size, filled with zeros before use. Appending hence changes no metadata of
//! the file system and can't find the disk full. A frame is readable by [`Group::entries`] and survives the process's
//! death once [`Group::append`] returns; [`Wal::on_synced`] tells when it survives the node's. A torn frame is found
//! by its checksum and ends the log.
//!
//! The crate knows nothing of Raft: an entry is bytes under an index, a slot is bytes under a small number. Damage
//! beyond a torn write is an error of [`Wal::open`]: acknowledged entries are never cut off in silence.

mod error;
mod frame;
mod memory;
mod options;
mod segment;
mod shared;
mod sync;
mod wal;

pub use error::{AppendError, OpenError, SyncError};
pub use frame::Position;
pub use memory::GroupState;
pub use options::{Options, Sync};
pub use wal::{Group, Wal};
