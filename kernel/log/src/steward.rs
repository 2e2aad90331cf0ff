//! The leader's duties for its kernel, one at a time: an executor in office, living members, voters in the right
//! number.
//!
//! Pure: the keeper asks [`next`] after each change, carries the deed out, and asks again once it has taken effect. Two
//! keepers may both believe to lead. Every deed is an entry or a change of voters, and the log takes only one of two.

use crate::entry::Entry;
use crate::state::{Office, State};
use hop_words::id::{Incarnation, Tenure};
use std::collections::{BTreeMap, BTreeSet};

/// The leader's knowledge beside the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View<'a> {
    /// The leader.
    pub me: Incarnation,
    pub voters: &'a BTreeSet<Incarnation>,
    /// Members that receive the log and have no vote. `true`: the member has nearly all of the log.
    pub learners: &'a BTreeMap<Incarnation, bool>,
    /// A change of voters is under way.
    pub changing: bool,
    /// Members gone for good: their seat is gone, or they were silent for too long.
    pub gone: &'a BTreeSet<Incarnation>,
    /// Members that must not take office: gone, or not heard of, or without room for the namespace.
    pub unfit: &'a BTreeSet<Incarnation>,
    /// Members to replace while they live: their node is drained, or their seat ends soon.
    pub leaving: &'a BTreeSet<Incarnation>,
    /// The last tenure with a process that is known to have died.
    pub died: Option<Tenure>,
    /// Number of replicas for the kernel: 1 or 3.
    pub wanted: usize,
}

/// The next duty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deed {
    Propose(Entry),
    /// The member begins to receive the log.
    Learner(Incarnation),
    /// The members named become the voters, in one joint step.
    Voters(BTreeSet<Incarnation>),
    /// The executing voter should lead.
    Lead(Incarnation),
    /// So many more replicas are needed.
    Grow(usize),
}

/// The leader's next deed. `None`: everything is as it should be, or a change has to end first.
pub fn next(state: &State, view: &View<'_>) -> Option<Deed> {
    if matches!(state.office(), Office::Asleep { .. }) {
        return None;
    }
    executor(state, view)
        .or_else(|| membership(state, view))
        .or_else(|| leadership(state, view))
        .or_else(|| growth(state, view))
}

/// A kernel without an executor, or with a lost one, gets another: a hot member first, then the executor of before,
/// then the leader.
fn executor(state: &State, view: &View<'_>) -> Option<Deed> {
    let current = state.executor();
    let lost = current.is_none_or(|e| view.unfit.contains(&e) || view.gone.contains(&e));
    if !lost && view.died != Some(state.tenure()) {
        return None;
    }
    let fit = |m: &Incarnation| view.voters.contains(m) && !view.unfit.contains(m) && !view.gone.contains(m);
    let candidates = state.members().iter().filter(|(m, _)| fit(m));
    let best = candidates.max_by_key(|(m, member)| (member.hot, current == Some(**m), **m == view.me));
    best.map(|(executor, _)| {
        Deed::Propose(Entry::Tenure {
            tenure: Tenure(state.tenure().0 + 1),
            executor: *executor,
        })
    })
}

fn membership(state: &State, view: &View<'_>) -> Option<Deed> {
    if view.changing {
        return None;
    }
    let surplus = staying(state, view) > view.wanted;
    let new = |m: &&Incarnation| {
        let known = view.voters.contains(m) || view.learners.contains_key(m);
        !known && !view.gone.contains(m) && !view.leaving.contains(m)
    };
    if !surplus && let Some(member) = state.members().keys().find(new) {
        return Some(Deed::Learner(*member));
    }
    if let Some(voters) = voters(state, view) {
        return Some(Deed::Voters(voters));
    }
    let replaced = |m: &Incarnation| view.gone.contains(m) || view.leaving.contains(m);
    let left = |m: &&Incarnation| !view.voters.contains(m) && (replaced(m) || surplus);
    let incarnation = *state.members().keys().rfind(left)?;
    Some(Deed::Propose(Entry::Left { incarnation }))
}

/// Members that will be there for long.
fn staying(state: &State, view: &View<'_>) -> usize {
    let stays = |m: &&Incarnation| !view.gone.contains(m) && !view.leaving.contains(m);
    state.members().keys().filter(stays).count()
}

/// Voters to replace the present voters, if different. Never two, and never without the leader.
fn voters(state: &State, view: &View<'_>) -> Option<BTreeSet<Incarnation>> {
    let ready = view.learners.iter().filter(|(m, caught_up)| {
        **caught_up && state.members().contains_key(m) && !view.gone.contains(m) && !view.leaving.contains(m)
    });
    let mut ready = ready.map(|(m, _)| *m);
    let mut voters = view.voters.clone();
    if voters.len() > view.wanted {
        // From three to one only if the executor stays.
        return (view.wanted == 1 && state.executor() == Some(view.me)).then(|| BTreeSet::from([view.me]));
    }
    let replaced = view
        .voters
        .iter()
        .filter(|v| **v != view.me && view.to_replace(state, **v));
    for (old, new) in replaced.zip(ready.by_ref()) {
        voters.remove(old);
        voters.insert(new);
    }
    let missing = view.wanted.saturating_sub(voters.len());
    let added: Vec<_> = ready.take(missing).collect();
    if added.len() == missing {
        voters.extend(added);
    }
    (voters != *view.voters).then_some(voters)
}

impl View<'_> {
    /// Whether the voter needs a successor. An executor that leaves hands over first.
    fn to_replace(&self, state: &State, voter: Incarnation) -> bool {
        // A `Left` that was proposed long ago may have met a voter.
        let lost = self.gone.contains(&voter) || !state.members().contains_key(&voter);
        lost || self.leaving.contains(&voter) && state.executor() != Some(voter)
    }
}

/// The executor leads where possible: its entries then commit after a single round trip.
fn leadership(state: &State, view: &View<'_>) -> Option<Deed> {
    let executor = state.executor()?;
    let lost = view.unfit.contains(&executor) || view.gone.contains(&executor);
    if view.changing {
        return None;
    }
    if executor != view.me && view.voters.contains(&executor) && !lost {
        return Some(Deed::Lead(executor));
    }
    let other = |v: &&Incarnation| **v != view.me && !view.unfit.contains(v) && !view.leaving.contains(v);
    let leaves = view.leaving.contains(&view.me) && executor != view.me;
    leaves
        .then(|| view.voters.iter().find(other).copied().map(Deed::Lead))
        .flatten()
}

fn growth(state: &State, view: &View<'_>) -> Option<Deed> {
    let missing = view.wanted.saturating_sub(staying(state, view));
    (missing > 0).then_some(Deed::Grow(missing))
}
