//! Kernels that ended while nobody listened: forgotten once nothing of them has been there for a while.

use super::Scheduler;
use hop_core::{BareKernel, Input};
use hop_words::id::{JobId, KernelId};
use hop_words::time::{Span, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use tracing::info;

/// How long nothing of a kernel must have been there. A front or a replica that lives reconnects within seconds.
const PATIENCE: Span = Span::from_secs(300);

/// Most time of one look at Slurm's queue. After a longer gap `hopd` may have stood still, or Slurm was away: nobody
/// could report meanwhile.
const LOOK: Span = Span::from_secs(30);

/// Kernels of which nothing is there, each with the first of the looks in a row that showed so.
#[derive(Debug, Default)]
pub(super) struct Abandoned {
    since: BTreeMap<KernelId, Timestamp>,
    /// The last look at Slurm's queue. `None` means that Slurm has not answered it.
    looked: Option<Timestamp>,
}

/// The traces of a kernel without a process in the core.
#[derive(Debug, Clone, Copy)]
struct Left<'a> {
    /// Seats of its replicas, by the last report.
    seats: &'a [JobId],
    /// A front or a replica of it is connected.
    is_heard: bool,
    sleeps: bool,
    /// A seat of its user's waits in Slurm's queue, and may be for this kernel.
    seat_waits: bool,
}

impl Left<'_> {
    fn is_nothing(&self, alive: &BTreeSet<JobId>) -> bool {
        let sits = self.seats.iter().any(|job| alive.contains(job));
        !(sits || self.is_heard || self.sleeps || self.seat_waits)
    }
}

impl Abandoned {
    /// Takes in the kernels of which nothing is there by a look at Slurm's queue, `pause` after the last one. Returns
    /// the kernels to be forgotten.
    fn look(&mut self, gone: BTreeSet<KernelId>, pause: Span, now: Timestamp) -> Vec<KernelId> {
        let goes_on = self.looked.is_some_and(|last| now.since(last) <= pause + LOOK);
        self.looked = Some(now);
        let known = std::mem::take(&mut self.since);
        let first = |kernel: &KernelId| known.get(kernel).copied().filter(|_| goes_on);
        let since = gone.into_iter().map(|kernel| {
            let since = first(&kernel).unwrap_or(now);
            (kernel, since)
        });
        self.since = since.collect();
        let long = self
            .since
            .iter()
            .filter(|(_, since)| now.since(**since) >= PATIENCE);
        long.map(|(kernel, _)| kernel.clone()).collect()
    }

    /// Slurm has not answered a look.
    pub(super) fn unanswered(&mut self) {
        self.looked = None;
    }
}

impl Scheduler {
    /// Closes the kernels that have ended while nobody listened. `alive`: the jobs of their users that have started and
    /// live.
    pub(super) fn forget_abandoned(&mut self, alive: &[JobId], now: Timestamp) {
        // Their seats may be hidden from us.
        if self.news.hides_jobs() {
            return self.abandoned.unanswered();
        }
        let alive: BTreeSet<JobId> = alive.iter().copied().collect();
        let gone = self
            .core
            .bare_kernels()
            .filter(|k| self.left_of(k).is_nothing(&alive));
        let gone = gone.map(|k| k.kernel.clone()).collect();
        let pause = Span::from_secs(self.config.hopd.poll_s.into());
        for kernel in self.abandoned.look(gone, pause, now) {
            let minutes = PATIENCE.0 / Span::from_secs(60).0;
            info!(%kernel, "forgotten: its notebook, processes and seats have been gone for {minutes} minutes");
            self.todo.push_back(Input::CloseKernel { kernel });
        }
    }

    fn left_of<'a>(&self, bare: &BareKernel<'a>) -> Left<'a> {
        Left {
            seats: bare.seats,
            is_heard: self.connections.is_heard(bare.kernel),
            sleeps: self.kept.asleep(bare.kernel).is_some(),
            seat_waits: self.news.waiting_seats(bare.user).next().is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL: Span = Span::from_secs(3);

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000)
    }

    fn only(kernel: &str) -> BTreeSet<KernelId> {
        [kernel.into()].into()
    }

    /// Looks every 30 seconds from `from` to `to`, each without a trace of the kernel; the times when it is forgotten.
    fn looks(abandoned: &mut Abandoned, from: u64, to: u64) -> Vec<u64> {
        let times = (from..=to).step_by(30);
        let forgotten = |s: &u64| abandoned.look(only("a"), POLL, at(*s)) == ["a".into()];
        times.filter(forgotten).collect()
    }

    #[test]
    fn only_a_kernel_of_which_nothing_is_there_is_gone() {
        let nothing = Left {
            seats: &[JobId(7), JobId(8)],
            is_heard: false,
            sleeps: false,
            seat_waits: false,
        };
        let none_sat = Left {
            seats: &[],
            ..nothing
        };
        let heard = Left {
            is_heard: true,
            ..nothing
        };
        let sleeps = Left {
            sleeps: true,
            ..nothing
        };
        let waits = Left {
            seat_waits: true,
            ..nothing
        };
        let table: [(Left<'_>, &[u32], bool); 7] = [
            (nothing, &[], true),
            (nothing, &[9], true),
            (none_sat, &[9], true),
            (nothing, &[8], false),
            (heard, &[], false),
            (sleeps, &[], false),
            (waits, &[], false),
        ];
        for (left, alive, gone) in table {
            let alive = alive.iter().map(|job| JobId(*job)).collect();
            assert_eq!(left.is_nothing(&alive), gone, "{left:?} {alive:?}");
        }
    }

    #[test]
    fn a_kernel_is_forgotten_after_five_minutes_of_nothing() {
        let mut abandoned = Abandoned::default();
        assert_eq!(looks(&mut abandoned, 0, 300), [300]);
    }

    #[test]
    fn a_trace_of_the_kernel_begins_the_time_anew() {
        let mut abandoned = Abandoned::default();
        assert!(looks(&mut abandoned, 0, 270).is_empty());
        assert!(abandoned.look(only("b"), POLL, at(290)).is_empty());
        assert_eq!(looks(&mut abandoned, 300, 600), [600]);
    }

    #[test]
    fn a_look_without_an_answer_begins_the_time_anew() {
        let mut abandoned = Abandoned::default();
        assert!(looks(&mut abandoned, 0, 270).is_empty());
        abandoned.unanswered();
        assert_eq!(looks(&mut abandoned, 300, 600), [600]);
    }

    #[test]
    fn a_standstill_begins_the_time_anew() {
        let mut abandoned = Abandoned::default();
        assert!(looks(&mut abandoned, 0, 270).is_empty());
        assert_eq!(looks(&mut abandoned, 304, 604), [604]);
    }
}
