//! The wall clock, read by shells and never by a core: a core is handed its [`Timestamp`].

use crate::time::{Span, Timestamp};
use std::time::{Instant, SystemTime};

/// Microseconds since the Unix epoch. A clock set before 1970 reads as zero.
pub fn now() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// A clock that never goes back: the wall clock at its making, and the monotonic clock from then on. Daemons hand its
/// readings to their cores.
#[derive(Debug, Clone, Copy)]
pub struct SteadyClock {
    wall: Timestamp,
    start: Instant,
}

impl SteadyClock {
    /// Starts at the wall clock's time.
    #[expect(
        clippy::new_without_default,
        reason = "a reading of the clock is no default value"
    )]
    pub fn new() -> Self {
        Self {
            wall: now(),
            start: Instant::now(),
        }
    }

    /// Microseconds since the Unix epoch.
    pub fn now(&self) -> Timestamp {
        self.wall + Span(u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX))
    }
}
