//! A timer by which Linux ends this process at a given time, even a stopped process. A stopped process can't end its
//! kernel itself, and would let the kernel run on for a moment once it is continued. [`crate::core`] decides the time.
//!
//! The kernel's process ends with this process, by [`crate::child`].

use hop_words::clock::SteadyClock;
use hop_words::time::Timestamp;
use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Goes on while the machine sleeps.
const CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;

#[derive(Debug, Default)]
pub(crate) struct Guard {
    /// Dropping the timer disarms it.
    timer: Option<Timer>,
}

impl Guard {
    /// Has Linux end this process at this time by `clock`. `None` disarms the timer.
    pub(crate) fn set(&mut self, at: Option<Timestamp>, clock: SteadyClock) {
        let set = match at {
            Some(at) => self.arm(at, clock),
            None => {
                self.timer = None;
                Ok(())
            }
        };
        if let Err(error) = set {
            tracing::warn!(%error, "the system doesn't end this process if it stands still");
        }
    }

    fn arm(&mut self, at: Timestamp, clock: SteadyClock) -> nix::Result<()> {
        // Read first: a stop between the two readings makes the time earlier, and not later.
        let now = Duration::from(clock_gettime(CLOCK)?);
        let end = now + Duration::from_micros(at.since(clock.now()).0);
        let timer = match &mut self.timer {
            Some(timer) => timer,
            none => none.insert(Timer::new(
                CLOCK,
                SigEvent::new(SigevNotify::SigevSignal {
                    signal: Signal::SIGKILL,
                    si_value: 0,
                }),
            )?),
        };
        let end = Expiration::OneShot(TimeSpec::from(end));
        timer.set(end, TimerSetTimeFlags::TFD_TIMER_ABSTIME)
    }
}
