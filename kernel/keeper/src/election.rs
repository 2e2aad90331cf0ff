//! When a member stands for election.
//!
//! openraft 0.9 has no pre-vote: a campaign deposes the leader even where it can't be won. So a member stands only
//! where it has no leader in sight, and neither has a majority of the voters, by what their seats say to hear. Voters
//! stand one after the other: the executor first, then by their incarnation.

use crate::hearing::Heard;
use hop_raft::Standing;
use hop_words::id::{Incarnation, JobId};
use hop_words::time::Span;
use std::collections::{BTreeMap, BTreeSet};

/// Time for each voter's own attempt.
pub const TURN: Span = Span::from_millis(100);

/// A member's knowledge.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    pub me: Incarnation,
    pub executor: Option<Incarnation>,
    pub standing: &'a Standing,
    /// The seats of the group's members.
    pub seats: &'a BTreeMap<Incarnation, JobId>,
    pub heard: &'a Heard,
    /// Members that can't go on, though their seats are up.
    pub failed: &'a BTreeSet<Incarnation>,
}

/// The pause before this member stands for election, and the pause before its next attempt. `None` means that the
/// member must not stand.
pub fn stands(view: View<'_>) -> Option<(Span, Span)> {
    let standing = view.standing;
    if !standing.voters.contains(&view.me) || standing.leader == Some(view.me) {
        return None;
    }
    let without = standing.voters.iter().filter(|v| view.lacks_leader(**v)).count();
    if !view.lacks_leader(view.me) || without * 2 <= standing.voters.len() {
        return None;
    }
    let mut order: Vec<_> = standing.voters.iter().filter(|v| view.is_up(**v)).collect();
    order.sort_by_key(|v| (view.executor != Some(**v), **v));
    let rank = order.iter().position(|v| **v == view.me)? as u64;
    Some((Span(rank * TURN.0), Span(order.len() as u64 * TURN.0)))
}

impl View<'_> {
    fn is_up(&self, member: Incarnation) -> bool {
        let seat = self.seats.get(&member);
        let fails = self.failed.contains(&member);
        !fails && (member == self.me || seat.is_some_and(|s| self.heard.up.contains(s)))
    }

    /// Whether a voter is known to see no leader, as far as this member can tell: it knows only its own last leader.
    fn lacks_leader(&self, voter: Incarnation) -> bool {
        if !self.is_up(voter) {
            return false;
        }
        let Some(leader) = self.standing.leader else {
            return true;
        };
        if voter == leader {
            return false;
        }
        // The seat of a member that can't go on is heard as before.
        if self.failed.contains(&leader) {
            return true;
        }
        if voter == self.me {
            return !self.is_up(leader);
        }
        let hears = self.seats.get(&voter).and_then(|s| self.heard.hears.get(s));
        let seat = self.seats.get(&leader);
        !hears.is_some_and(|h| seat.is_some_and(|s| h.contains(s)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Incarnation = Incarnation(1);
    const OTHER: Incarnation = Incarnation(2);
    const LEADER: Incarnation = Incarnation(3);

    fn standing(leader: Option<Incarnation>) -> Standing {
        Standing {
            leader,
            voters: BTreeSet::from([ME, OTHER, LEADER]),
            ..Standing::default()
        }
    }

    /// The answer where these seats are up, and the other voter hears these.
    fn ask(leader: Option<Incarnation>, up: &[u32], other_hears: &[u32]) -> Option<(Span, Span)> {
        ask_beside(leader, up, other_hears, &[])
    }

    /// As [`ask`], where these members have failed.
    fn ask_beside(
        leader: Option<Incarnation>,
        up: &[u32],
        other_hears: &[u32],
        failed: &[Incarnation],
    ) -> Option<(Span, Span)> {
        let jobs = |ids: &[u32]| ids.iter().map(|id| JobId(*id)).collect::<BTreeSet<_>>();
        let heard = Heard {
            up: jobs(up),
            hears: BTreeMap::from([(JobId(2), jobs(other_hears))]),
            ..Heard::default()
        };
        stands(View {
            me: ME,
            executor: Some(OTHER),
            standing: &standing(leader),
            seats: &[1, 2, 3].map(|id| (Incarnation(id), JobId(id))).into(),
            heard: &heard,
            failed: &failed.iter().copied().collect(),
        })
    }

    #[test]
    fn a_leader_that_cannot_go_on_is_none() {
        let ask = |failed| ask_beside(Some(LEADER), &[2, 3], &[1, 3], failed);
        assert_eq!(ask(&[]), None);
        assert_eq!(ask(&[LEADER]), Some((TURN, Span(2 * TURN.0))));
        assert_eq!(ask(&[LEADER, OTHER]), None, "alone, nothing can be won");
        assert_eq!(ask(&[LEADER, ME]), None);
    }

    #[test]
    fn a_member_stands_where_a_majority_has_lost_the_leader() {
        assert_eq!(ask(Some(LEADER), &[2, 3], &[1, 3]), None, "the leader is there");
        assert_eq!(ask(Some(LEADER), &[2], &[1, 3]), None, "the other has a leader");
        assert_eq!(ask(Some(LEADER), &[], &[]), None, "alone, nothing can be won");
        let second = (TURN, Span(2 * TURN.0));
        assert_eq!(
            ask(Some(LEADER), &[2], &[1]),
            Some(second),
            "the executor goes first"
        );
        assert_eq!(ask(None, &[2, 3], &[1, 3]), Some((TURN, Span(3 * TURN.0))));
    }

    #[test]
    fn a_learner_and_a_leader_never_stand() {
        assert_eq!(ask(Some(ME), &[2], &[1]), None);
        let heard = Heard::default();
        let learner = View {
            me: Incarnation(9),
            executor: None,
            standing: &standing(None),
            seats: &BTreeMap::new(),
            heard: &heard,
            failed: &BTreeSet::new(),
        };
        assert_eq!(stands(learner), None);
    }
}
