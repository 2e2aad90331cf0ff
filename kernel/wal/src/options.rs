//! A log's use of the disk, and the moment from which entries are safe on disk.

use std::time::Duration;

/// How the log uses its disk.
#[derive(Debug, Clone)]
pub struct Options {
    /// Bytes of a segment. A larger frame gets a segment of its own size.
    pub segment: u64,
    /// Segments beyond the need of the living content.
    pub spare: usize,
    pub sync: Sync,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment: 1 << 20,
            spare: 3,
            sync: Sync::Always,
        }
    }
}

/// When the log is synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    /// At once after each write; [`crate::Wal::on_synced`] waits for the sync.
    Always,
    /// At this interval; nobody waits. A power cut of all members at once loses the changes since the last sync.
    Every(Duration),
}
