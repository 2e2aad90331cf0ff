//! The system's promise to end this process at a given time, even if the process stands still then: a stopped process
//! can't end its kernel itself, and would let it run on for a moment once it is continued. [`crate::core`] says when.
//!
//! The kernel's process ends with this one: [`crate::child`] binds it to our life.

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
    /// Dropped, it ends nothing any more.
    timer: Option<Timer>,
}

impl Guard {
    /// Ends this process at that time by `clock`. `None`: at no time.
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
