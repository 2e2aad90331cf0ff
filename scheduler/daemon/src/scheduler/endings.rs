//! Jobs near their time limit. Nothing new sits in a seat that ends, and present kernels are moved to another seat in
//! time; a pilot that ends is replaced.

use super::Scheduler;
use super::asked::Asked;
use crate::slurm::{Ending, HeldUp};
use hop_core::{Input, MoveCause};
use hop_words::id::{JobId, KernelId, NodeName};
use hop_words::time::{Span, Timestamp};
use std::collections::BTreeMap;
use tracing::{info, warn};

/// Most kernels asked to leave after one look at the queue: seats that end together are not replaced all at once.
const AT_ONCE: usize = 4;

/// The last part of its whole time in which a seat with a short limit is replaced.
const LAST_PART: u64 = 5;

/// Seats that end soon.
#[derive(Debug, Default)]
pub(super) struct Endings {
    seats: BTreeMap<JobId, Timestamp>,
    asked: Asked,
}

impl Endings {
    /// The seat's end, if it is soon.
    pub(super) fn end_of(&self, seat: JobId) -> Option<Timestamp> {
        self.seats.get(&seat).copied()
    }

    /// Takes in the ends of all seats. Returns the seats that end soon no longer: Slurm has given them more time.
    fn look(&mut self, ends: BTreeMap<JobId, Ending>, before: Span, now: Timestamp) -> Vec<JobId> {
        let near = |end: &Ending| end.at.since(now) <= before.min(Span(end.limit.0 / LAST_PART));
        let soon = ends.into_iter().filter(|(_, end)| near(end));
        let soon: BTreeMap<_, _> = soon.map(|(job, end)| (job, end.at)).collect();
        let known = std::mem::replace(&mut self.seats, soon).into_keys();
        known.filter(|job| !self.seats.contains_key(job)).collect()
    }

    /// The seats, that which ends first first.
    fn in_order(&self) -> Vec<JobId> {
        let mut seats: Vec<_> = self.seats.iter().map(|(job, at)| (*at, *job)).collect();
        seats.sort_unstable();
        seats.into_iter().map(|(_, job)| job).collect()
    }
}

/// The pilots of which Slurm ends the jobs within their pool's time for a replacement.
fn pilots_near(
    pilots: impl IntoIterator<Item = (JobId, Span)>,
    ends: &BTreeMap<JobId, Ending>,
    now: Timestamp,
) -> Vec<JobId> {
    let near = |(job, before): &(JobId, Span)| ends.get(job).is_some_and(|end| end.at.since(now) <= *before);
    let near = pilots.into_iter().filter(near);
    near.map(|(job, _)| job).collect()
}

impl Scheduler {
    /// Has pilots near their end replaced, by Slurm's word of now. An agent's word is from its own start: the clock may
    /// have been set since, or the job's limit changed, and while slurmctld is away the agent knows no end.
    pub(super) fn pilots_end(&mut self, ends: &BTreeMap<JobId, Ending>) {
        let pilots = self.core.pilots().into_iter().filter(|p| p.state == "UP");
        let pilots = pilots.filter_map(|p| {
            let before = self.config.pool.get(&p.pool)?.rotate_before_s;
            Some((p.pilot, Span::from_secs(before.into())))
        });
        let near = pilots_near(pilots, ends, self.clock.now());
        let drain = near.into_iter().map(|pilot| Input::PilotDraining { pilot });
        self.todo.extend(drain);
    }

    /// Has waiting pilots end before the next reservation of their nodes, as one for maintenance: Slurm would start them
    /// after it. `wall`: the time by Slurm's clock.
    pub(super) fn fit_before_reservations(&self, held_up: HeldUp, wall: Timestamp) {
        for (job, minutes) in self.to_shorten(held_up, wall) {
            info!(%job, minutes, "the pilot ends before a reservation begins");
            let slurm = self.slurm.clone();
            tokio::spawn(async move {
                if let Err(reason) = slurm.shorten(job, minutes).await {
                    warn!(%job, "the pilot's time limit can't be lowered: {reason}");
                }
            });
        }
    }

    /// The pilots to be given another time limit, with that limit in minutes. A pilot is of use for at least as long as
    /// its replacement takes.
    pub(super) fn to_shorten(&self, held_up: HeldUp, wall: Timestamp) -> Vec<(JobId, u32)> {
        let HeldUp { pilots, reservations } = held_up;
        let limits = pilots.into_iter().filter_map(|(job, mut waiting)| {
            let (pool, node) = self.pilot_jobs.asked(job)?;
            let before = self.config.pool.get(pool)?.rotate_before_s;
            let least = Span::from_secs(2 * u64::from(before));
            waiting.nodes = node.cloned().into_iter().collect();
            Some((job, waiting.limit_before(&reservations, wall, least)?))
        });
        limits.collect()
    }

    /// Takes in the ends of jobs from a look at Slurm's queue, by our own clock.
    pub(super) fn seats_end(&mut self, ends: &BTreeMap<JobId, Ending>) {
        let seats = ends.iter().filter(|(job, _)| self.seats.get(**job).is_some());
        let seats = seats.map(|(job, end)| (*job, *end)).collect();
        let before = Span::from_secs(self.config.seat.replace_before_s.into());
        let over = self.endings.look(seats, before, self.clock.now());
        let said = over.into_iter().map(|job| (job, false));
        // A seat that has reported itself again is told of again.
        let said = said.chain(self.endings.seats.keys().map(|job| (*job, true)));
        self.todo
            .extend(said.map(|(job, soon)| Input::SeatEnds { job, soon }));
        if self.endings.seats.is_empty() {
            self.endings.asked.forget();
        } else {
            self.replace_seats();
        }
    }

    /// Asks the movable kernels in these seats to leave. The others stay to the end.
    fn replace_seats(&mut self) {
        // First the core must learn which seats it can't name.
        self.settle();
        let mut left = AT_ONCE;
        for job in self.endings.in_order() {
            for (kernel, node) in self.may_leave_seat(job) {
                if left == 0 {
                    return;
                }
                if !self.endings.asked.may_ask(&kernel, self.clock.now()) {
                    continue;
                }
                left -= 1;
                let asked = self.ask_core_to_move(&kernel, Some(node), None, MoveCause::SeatEnds);
                if let Err(why) = asked {
                    info!(%kernel, seat = %job, "it can't leave the seat that ends: {why}");
                }
            }
        }
    }

    /// The kernels whose executor is in the seat and can be moved, with its node.
    fn may_leave_seat(&self, job: JobId) -> Vec<(KernelId, NodeName)> {
        let mut found = Vec::new();
        for id in self.registry.in_seat(job) {
            let executor = self.free_to_leave(&id.kernel);
            if let Some(executor) = executor.filter(|e| e.seat.job == job) {
                let node = executor.node.clone();
                found.push((id.kernel, node));
            }
        }
        found.sort();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: Span = Span::from_secs(600);

    fn ends(at_s: u64, limit_s: u64) -> BTreeMap<JobId, Ending> {
        let (at, limit) = (Timestamp(at_s * 1_000_000), Span::from_secs(limit_s));
        [(JobId(7), Ending { at, limit })].into()
    }

    #[test]
    fn a_seat_ends_soon_within_the_sites_figure_or_a_fifth_of_its_limit() {
        let mut endings = Endings::default();
        let now = Timestamp(0);
        endings.look(ends(601, 86_400), BEFORE, now);
        assert_eq!(endings.end_of(JobId(7)), None);
        endings.look(ends(600, 86_400), BEFORE, now);
        assert!(endings.end_of(JobId(7)).is_some());
        let over = endings.look(ends(600, 900), BEFORE, now);
        assert_eq!(over, [JobId(7)], "it would be replaced as soon as it is there");
        endings.look(ends(180, 900), BEFORE, now);
        assert!(endings.end_of(JobId(7)).is_some());
        let late = Timestamp(200 * 1_000_000);
        assert_eq!(endings.look(ends(180, 900), BEFORE, late), [], "Slurm is late");
        assert_eq!(endings.look(BTreeMap::new(), BEFORE, now), [JobId(7)]);
    }

    #[test]
    fn a_pilot_is_replaced_within_its_pools_time_of_slurms_end() {
        let (pilots, now) = ([(JobId(7), BEFORE)], Timestamp(0));
        assert_eq!(pilots_near(pilots, &ends(601, 86_400), now), []);
        assert_eq!(pilots_near(pilots, &ends(600, 86_400), now), [JobId(7)]);
        assert_eq!(pilots_near(pilots, &BTreeMap::new(), now), [], "it has no limit");
        let late = Timestamp(700 * 1_000_000);
        assert_eq!(pilots_near(pilots, &ends(600, 86_400), late), [JobId(7)]);
    }

    #[test]
    fn what_ends_first_is_left_first() {
        let mut endings = Endings::default();
        let mut all = ends(300, 86_400);
        let first = Ending {
            at: Timestamp(200 * 1_000_000),
            limit: Span::from_secs(86_400),
        };
        all.insert(JobId(9), first);
        endings.look(all, BEFORE, Timestamp(0));
        assert_eq!(endings.in_order(), [JobId(9), JobId(7)]);
    }
}
