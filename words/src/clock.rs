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
///
/// The wall clock may be set, or a machine stopped and woken with its monotonic clock behind. The steady clock
/// goes on unchanged: after a jump, everything waiting in a core would be due at once. Times from elsewhere are
/// converted by [`Skew::of_wall`].
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
        Self::starting_at(now())
    }

    /// Starts at this time.
    pub fn starting_at(wall: Timestamp) -> Self {
        Self {
            wall,
            start: Instant::now(),
        }
    }

    /// Microseconds since the Unix epoch.
    pub fn now(&self) -> Timestamp {
        self.wall + Span(u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// How far this clock and the wall clock are apart at present.
    pub fn skew(&self) -> Skew {
        Skew {
            own: self.now(),
            wall: now(),
        }
    }
}

/// The same moment by a [`SteadyClock`] and by the wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skew {
    pub own: Timestamp,
    pub wall: Timestamp,
}

impl Skew {
    /// A time by the wall clock (of Slurm's, say), by the steady clock.
    pub fn of_wall(self, at: Timestamp) -> Timestamp {
        if at >= self.wall {
            self.own + at.since(self.wall)
        } else {
            Timestamp(self.own.0.saturating_sub(self.wall.since(at).0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_wall_clock_keep_their_distance_from_now() {
        for (own, wall) in [(1_000, 1_000), (400, 1_000), (1_000, 400)] {
            let skew = Skew {
                own: Timestamp(own),
                wall: Timestamp(wall),
            };
            assert_eq!(skew.of_wall(Timestamp(wall + 50)), Timestamp(own + 50));
            assert_eq!(skew.of_wall(Timestamp(wall - 50)), Timestamp(own - 50));
            assert_eq!(skew.of_wall(Timestamp(wall)), Timestamp(own));
        }
        let skew = Skew {
            own: Timestamp(3),
            wall: Timestamp(9),
        };
        assert_eq!(skew.of_wall(Timestamp(1)), Timestamp(0));
        assert_eq!(skew.of_wall(Timestamp(u64::MAX)), Timestamp(u64::MAX - 6));
    }
}
