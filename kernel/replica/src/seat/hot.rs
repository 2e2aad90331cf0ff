//! When a seat starts the hot standby of a group: a replica whose process follows the log before it is elected. Pure;
//! [`super::tend`] starts and ends it.

use super::{LONGEST_PAUSE, pause};
use std::time::Duration;
use tokio::time::Instant;

/// Between the wish for a hot standby and its start: a kernel that has just begun, or moved, needs the nodes' cores
/// itself.
const SETTLES: Duration = Duration::from_secs(2);

/// Between the end of a hot standby that could not follow and the next, twice as long each time.
const AGAIN_AFTER: Duration = Duration::from_secs(15);

/// Something to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Deed {
    Start,
    /// Another member is the hot standby.
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// This member isn't to be hot.
    Off,
    /// The next process is started then.
    Waits { until: Instant },
    /// A process starts, reads, or follows.
    Runs { since: Instant },
}

/// The hot standby of one group in one seat.
#[derive(Debug)]
pub(super) struct Hot {
    /// The kernel is to have a hot standby.
    wanted: bool,
    stage: Stage,
    /// Consecutive processes unable to follow for long.
    failed: u32,
    /// Earliest start of the next process.
    not_before: Option<Instant>,
}

impl Hot {
    pub(super) fn new(wanted: bool) -> Self {
        Self {
            wanted,
            stage: Stage::Off,
            failed: 0,
            not_before: None,
        }
    }

    /// The next step. `chosen`: the log names this member as the hot standby, and has state to follow.
    pub(super) fn next(&mut self, chosen: bool, now: Instant) -> Option<Deed> {
        match (self.stage, chosen && self.wanted) {
            (Stage::Off, true) => {
                let until = self.not_before.map_or(now + SETTLES, |at| at.max(now + SETTLES));
                self.stage = Stage::Waits { until };
                None
            }
            (Stage::Waits { until }, true) if now >= until => {
                self.stage = Stage::Runs { since: now };
                Some(Deed::Start)
            }
            (Stage::Waits { .. }, false) => {
                self.stage = Stage::Off;
                None
            }
            (Stage::Runs { .. }, false) => Some(Deed::End),
            (Stage::Off, false) | (Stage::Waits { .. } | Stage::Runs { .. }, true) => None,
        }
    }

    /// The process has ended, or could not be started.
    pub(super) fn gone(&mut self, now: Instant) {
        let Stage::Runs { since } = self.stage else {
            return;
        };
        if now - since >= LONGEST_PAUSE {
            self.failed = 0;
        }
        self.not_before = Some(now + pause(AGAIN_AFTER, self.failed));
        self.failed += 1;
        self.stage = Stage::Off;
    }

    /// The process executes now: the log has elected this member.
    pub(super) fn took_office(&mut self) {
        *self = Self::new(self.wanted);
    }

    /// When to look again.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.stage {
            Stage::Waits { until } => Some(until),
            Stage::Off | Stage::Runs { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_is_chosen_has_one_standby_after_a_while() {
        let begin = Instant::now();
        let mut hot = Hot::new(true);
        assert_eq!((hot.next(false, begin), hot.due()), (None, None));
        assert_eq!(hot.next(true, begin), None, "the kernel itself comes first");
        let later = begin + SETTLES;
        assert_eq!(hot.due(), Some(later));
        assert_eq!(hot.next(true, later - Duration::from_millis(1)), None);
        assert_eq!(hot.next(true, later), Some(Deed::Start));
        assert_eq!((hot.next(true, later), hot.due()), (None, None));
    }

    #[test]
    fn without_the_wish_none_is_started() {
        let begin = Instant::now();
        let mut hot = Hot::new(false);
        hot.next(true, begin);
        assert_eq!((hot.next(true, begin + SETTLES), hot.due()), (None, None));
    }

    #[test]
    fn a_member_that_is_not_chosen_any_more_ends_it() {
        let begin = Instant::now();
        let mut hot = Hot::new(true);
        hot.next(true, begin);
        assert_eq!((hot.next(false, begin), hot.due()), (None, None), "not begun yet");
        hot.next(true, begin);
        hot.next(true, begin + SETTLES);
        assert_eq!(hot.next(false, begin + SETTLES), Some(Deed::End));
        hot.gone(begin + SETTLES);
        assert_eq!((hot.next(false, begin + SETTLES), hot.due()), (None, None));
    }

    #[test]
    fn one_that_can_not_follow_is_tried_later_and_later() {
        let mut now = Instant::now();
        let mut hot = Hot::new(true);
        let mut waits = Vec::new();
        for _ in 0..8 {
            hot.next(true, now);
            let due = hot.due().unwrap();
            waits.push((due - now).as_secs());
            now = due;
            assert_eq!(hot.next(true, now), Some(Deed::Start));
            hot.gone(now);
            hot.gone(now);
        }
        assert_eq!(waits, [2, 15, 30, 60, 120, 240, 480, 600], "each end counts once");
        hot.next(true, now);
        now = hot.due().unwrap();
        hot.next(true, now);
        now += LONGEST_PAUSE;
        hot.gone(now);
        hot.next(true, now);
        assert_eq!(hot.due(), Some(now + AGAIN_AFTER), "it has followed for long");
        hot.next(false, now);
        now += LONGEST_PAUSE;
        hot.next(true, now);
        assert_eq!(hot.due(), Some(now + SETTLES), "chosen anew after the pause");
    }

    #[test]
    fn one_that_took_office_is_no_failure() {
        let now = Instant::now();
        let mut hot = Hot::new(true);
        hot.next(true, now);
        hot.next(true, now + SETTLES);
        hot.took_office();
        hot.gone(now + SETTLES);
        hot.next(true, now + SETTLES);
        assert_eq!(hot.due(), Some(now + SETTLES + SETTLES));
        let mut unwanted = Hot::new(false);
        unwanted.took_office();
        unwanted.next(true, now);
        assert_eq!(unwanted.due(), None);
    }
}
