//! An executor's news of its group: the voters, the leader, and the voters that lack entries of the log. Pure;
//! [`super::tend`] has the clock and the group.
//!
//! A healthy voter lacks the newest entry for some milliseconds after each cell. A voter lags if it lacks an entry that
//! has been in the leader's log for a second. Reports are rare, however many cells run.

use crate::core::GroupStanding;
use hop_raft::Progress;
use hop_words::id::Incarnation;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// A voter has this long to store an entry, before it lags.
const LAGS_AFTER: Duration = Duration::from_secs(1);
/// Least time between a report and the news of another leader, or of another voter that lags.
const PAUSE: Duration = Duration::from_secs(1);
/// The same for other news: numbers that change, and voters that have caught up.
const LONG_PAUSE: Duration = Duration::from_secs(5);

/// The next look at the voters' progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Look {
    at: Instant,
    /// All voters should have this entry by then.
    entry: u64,
}

/// The voters of a group, as last told to the executor and as they are now.
#[derive(Debug, Default)]
pub(super) struct Watch {
    now: GroupStanding,
    look: Option<Look>,
    /// The last entry of the last look.
    looked: u64,
    told: Option<(Instant, GroupStanding)>,
    /// News wait until then.
    tells_at: Option<Instant>,
}

impl Watch {
    /// Takes in the present standing. `progress` is the leader's knowledge, and `None` at other members.
    pub(super) fn see(
        &mut self,
        voters: &BTreeSet<Incarnation>,
        leader: Option<Incarnation>,
        progress: Option<&Progress>,
        now: Instant,
    ) {
        self.now.voters.clone_from(voters);
        // An election is under way: the leader of before is the last that is known.
        let Some(leader) = leader else { return };
        self.now.leader = Some(leader);
        let Some(progress) = progress else {
            self.now.lacking.clear();
            (self.look, self.looked) = (None, 0);
            return;
        };
        self.now
            .lacking
            .retain(|member, _| progress.stored.contains_key(member));
        if let Some(look) = self.look.take_if(|look| look.at <= now) {
            self.now.lacking = lacking(progress, look.entry);
            self.looked = look.entry;
        }
        let more = progress.last > self.looked || !self.now.lacking.is_empty();
        if more && self.look.is_none() {
            self.look = Some(Look {
                at: now + LAGS_AFTER,
                entry: progress.last,
            });
        }
    }

    /// The report that is due.
    pub(super) fn report(&mut self, now: Instant) -> Option<GroupStanding> {
        self.tells_at = None;
        let at = match &self.told {
            None => now,
            Some((_, told)) if *told == self.now => return None,
            Some((_, told)) if told.voters != self.now.voters => now,
            Some((last, told)) => {
                let lags = |member: &Incarnation| !told.lacking.contains_key(member);
                let urgent = told.leader != self.now.leader || self.now.lacking.keys().any(lags);
                *last + if urgent { PAUSE } else { LONG_PAUSE }
            }
        };
        if at > now {
            self.tells_at = Some(at);
            return None;
        }
        self.told = Some((now, self.now.clone()));
        Some(self.now.clone())
    }

    /// Another process hears the reports from now on.
    pub(super) fn forget(&mut self) {
        (self.told, self.tells_at) = (None, None);
    }

    /// When to look again.
    pub(super) fn due(&self) -> Option<Instant> {
        let look = self.look.map(|look| look.at);
        look.into_iter().chain(self.tells_at).min()
    }
}

/// The voters without this entry, and the number of entries that each lacks.
fn lacking(progress: &Progress, entry: u64) -> BTreeMap<Incarnation, Option<u64>> {
    let lack = progress
        .stored
        .iter()
        .filter(|(_, stored)| stored.is_none_or(|s| s < entry));
    lack.map(|(member, stored)| (*member, stored.map(|s| progress.last.saturating_sub(s))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group of three, seen once a tenth of a second.
    struct World {
        watch: Watch,
        now: Instant,
        leader: Option<Incarnation>,
        progress: Progress,
        reports: Vec<GroupStanding>,
    }

    const ME: Incarnation = Incarnation(1);

    fn world() -> World {
        let mut world = World {
            watch: Watch::default(),
            now: Instant::now(),
            leader: Some(ME),
            progress: Progress {
                last: 0,
                stored: [2, 3].map(|m| (Incarnation(m), Some(0))).into(),
            },
            reports: Vec::new(),
        };
        world.passes(0);
        assert_eq!(world.reports.len(), 1, "the first is told at once");
        world.reports.clear();
        world
    }

    impl World {
        fn passes(&mut self, tenths: u32) {
            for _ in 0..=tenths {
                let voters = [1, 2, 3].map(Incarnation).into();
                let progress = Some(&self.progress).filter(|_| self.leader == Some(ME));
                self.watch.see(&voters, self.leader, progress, self.now);
                self.reports.extend(self.watch.report(self.now));
                self.now += Duration::from_millis(100);
            }
        }

        /// Cells end for so long. Replica 3 stores as many entries less as `lost` says.
        fn runs(&mut self, tenths: u32, lost: u64) {
            for _ in 0..tenths {
                self.progress.last += 5;
                let last = self.progress.last;
                self.progress.stored.insert(Incarnation(2), Some(last - 2));
                let third = self.progress.stored.get_mut(&Incarnation(3)).unwrap();
                *third = third.map(|s| s + 5 - lost);
                self.passes(0);
            }
        }

        fn said(&mut self) -> Vec<Vec<(u32, Option<u64>)>> {
            let reports = std::mem::take(&mut self.reports);
            let lacking = reports.into_iter().map(|r| r.lacking);
            lacking
                .map(|l| l.into_iter().map(|(m, n)| (m.0, n)).collect())
                .collect()
        }
    }

    #[test]
    fn cells_alone_are_no_news() {
        let mut world = world();
        world.runs(600, 0);
        assert_eq!(world.said(), [[]; 0]);
    }

    #[test]
    fn a_voter_that_stores_within_a_second_is_no_news() {
        let mut world = world();
        for _ in 0..20 {
            world.progress.last += 1;
            world.passes(7);
            for member in [2, 3].map(Incarnation) {
                world.progress.stored.insert(member, Some(world.progress.last));
            }
            world.passes(0);
        }
        assert_eq!(world.said(), [[]; 0]);
    }

    /// [`super::tend`] looks and asks when a voter is due, and at no other time.
    #[test]
    fn news_of_a_voter_come_when_they_are_due() {
        let mut world = world();
        let begin = world.now;
        let stored = |world: &mut World, second, third| {
            world.progress.last = 9;
            let of = [(2, second), (3, third)].map(|(m, s)| (Incarnation(m), Some(s)));
            world.progress.stored = of.into();
        };
        stored(&mut world, 9, 8);
        world.passes(0);
        assert_eq!(world.watch.due(), Some(begin + LAGS_AFTER));
        world.now = begin + LAGS_AFTER;
        world.passes(0);
        assert_eq!(world.said(), [[(3, Some(1))]]);
        stored(&mut world, 9, 9);
        let told = begin + LAGS_AFTER;
        world.now = told + LAGS_AFTER;
        world.passes(0);
        assert_eq!(
            (world.said(), world.watch.due()),
            (vec![], Some(told + LONG_PAUSE))
        );
        world.now = told + LONG_PAUSE;
        world.passes(0);
        assert_eq!((world.said(), world.watch.due()), (vec![vec![]], None));
        world.watch.forget();
        world.passes(0);
        assert_eq!(world.said().len(), 1, "another process hears it anew");
    }

    #[test]
    fn other_voters_are_told_at_once_and_one_that_is_gone_lags_no_more() {
        let mut world = world();
        world.progress.last = 7;
        world.progress.stored = [(2, Some(7)), (3, None)].map(|(m, s)| (Incarnation(m), s)).into();
        world.passes(12);
        assert_eq!(world.said(), [[(3, None)]]);
        world.progress.stored.remove(&Incarnation(3));
        let voters = [1, 2].map(Incarnation).into();
        world
            .watch
            .see(&voters, world.leader, Some(&world.progress), world.now);
        let told = world.watch.report(world.now).unwrap();
        assert_eq!((told.voters, told.lacking), (voters, BTreeMap::new()));
    }

    #[test]
    fn a_voter_that_lags_is_told_and_its_number_now_and_then() {
        let mut world = world();
        world.runs(100, 5);
        let said = world.said();
        assert!((2..=3).contains(&said.len()), "{said:?}");
        let [(3, Some(first))] = said[0][..] else {
            panic!("{said:?}")
        };
        assert!((50..=120).contains(&first), "{first}");
        world
            .progress
            .stored
            .insert(Incarnation(3), Some(world.progress.last));
        world
            .progress
            .stored
            .insert(Incarnation(2), Some(world.progress.last));
        world.passes(100);
        assert_eq!(world.said().last(), Some(&vec![]), "it has caught up");
        world.passes(100);
        assert_eq!(world.watch.due(), None, "a quiet group wakes nobody");
    }

    #[test]
    fn a_voter_that_lacks_one_entry_of_a_quiet_group_is_told() {
        let mut world = world();
        world.progress.last = 1;
        world.progress.stored.insert(Incarnation(2), Some(1));
        world.passes(12);
        assert_eq!(world.said(), [[(3, Some(1))]]);
        world.passes(600);
        assert_eq!(world.said(), [[]; 0], "once");
    }

    #[test]
    fn a_voter_that_lags_now_and_again_is_told_rarely() {
        let mut world = world();
        for _ in 0..20 {
            world.progress.last += 1;
            world
                .progress
                .stored
                .insert(Incarnation(2), Some(world.progress.last));
            world.passes(14);
            world
                .progress
                .stored
                .insert(Incarnation(3), Some(world.progress.last));
            world.passes(14);
        }
        let said = world.said().len();
        assert!((2..=30).contains(&said), "{said} in a minute");
    }

    #[test]
    fn a_voter_without_an_answer_lags_by_an_unknown_number() {
        let mut world = world();
        world.progress.last = 7;
        world.progress.stored = [(2, Some(7)), (3, None)].map(|(m, s)| (Incarnation(m), s)).into();
        world.passes(12);
        assert_eq!(world.said(), [[(3, None)]]);
    }

    #[test]
    fn another_leader_is_told_and_its_voters_lag_is_unknown() {
        let mut world = world();
        world.runs(30, 5);
        world.passes(20);
        world.said();
        world.leader = None;
        world.passes(60);
        let last_known = |told: &GroupStanding| told.leader == Some(ME);
        assert!(world.reports.iter().all(last_known), "{:?}", world.reports);
        world.said();
        world.leader = Some(Incarnation(2));
        world.passes(10);
        assert_eq!(world.reports.len(), 1);
        assert_eq!(world.reports[0].leader, Some(Incarnation(2)));
        assert_eq!(world.said(), [[]]);
        assert_eq!(world.watch.due(), None, "only the leader looks");
        world.leader = Some(Incarnation(3));
        world.passes(10);
        assert_eq!(world.reports.len(), 1, "within little more than a second");
    }
}
