//! The errors of each operation.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// The log can't be opened. Its groups are lost on this node.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("can't use the folder {}", path.display())]
    Folder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("another process has the log in {} open", path.display())]
    Locked { path: PathBuf },
    #[error("can't read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is not of this version", path.display())]
    Version { path: PathBuf },
    /// A frame is damaged, and later frames follow behind the damage.
    #[error("{} is damaged at byte {at}", path.display())]
    Damaged { path: PathBuf, at: u64 },
}

/// A frame was not written. The group is out: its later appends fail, too.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    /// No segment is left and no other can be made: mostly the disk is full.
    #[error("no segment can be made in {}", path.display())]
    Segment {
        path: PathBuf,
        #[source]
        source: Arc<io::Error>,
    },
    #[error("can't write to the log")]
    Write(#[source] Arc<io::Error>),
    #[error(transparent)]
    Sync(#[from] SyncError),
    #[error("entry {index} doesn't follow entry {last}")]
    Gap { index: u64, last: u64 },
    #[error("the group is closed")]
    Closed,
}

/// fdatasync failed. The frames since the last sync may be lost, hence nothing is acknowledged any more.
#[derive(Debug, Clone, thiserror::Error)]
#[error("can't sync the log to its disk")]
pub struct SyncError(#[source] pub Arc<io::Error>);
