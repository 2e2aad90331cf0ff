//! A replicated log without its protocol: entries are appended while a majority is connected. Proposals come late, twice,
//! out of order or never.

use super::oracle::{Check, violated};
use hop_log::{Effect, Entry, Index, Refusal, State};
use std::collections::BTreeSet;

pub struct Group {
    pub log: Vec<(Index, Entry)>,
    /// The state before the first entry of `log`.
    pub initial: State,
    /// The state after the last entry.
    pub reference: State,
    pub pending: Vec<Entry>,
    pub voters: BTreeSet<u32>,
    pub learners: BTreeSet<u32>,
    /// The voters after the change under way.
    pub joint: Option<BTreeSet<u32>>,
    /// Every voter that was removed: it may not come back.
    pub removed: BTreeSet<u32>,
}

impl Group {
    pub fn new(initial: State, first: u32) -> Self {
        Self {
            log: Vec::new(),
            reference: initial.clone(),
            initial,
            pending: Vec::new(),
            voters: BTreeSet::from([first]),
            learners: BTreeSet::new(),
            joint: None,
            removed: BTreeSet::new(),
        }
    }

    pub fn has(&self, member: u32) -> bool {
        let joins = self.joint.as_ref().is_some_and(|j| j.contains(&member));
        self.voters.contains(&member) || self.learners.contains(&member) || joins
    }

    /// Whether these are a majority, of both sets of voters while they change.
    pub fn is_majority(&self, up: impl Fn(u32) -> bool) -> bool {
        let of = |set: &BTreeSet<u32>| set.iter().filter(|m| up(**m)).count() * 2 > set.len();
        of(&self.voters) && self.joint.as_ref().is_none_or(of)
    }

    pub fn append(&mut self, entry: Entry) -> (Entry, Result<Effect, Refusal>) {
        // Entries of the protocol's own leave gaps.
        let index = Index(self.reference.applied().0 + 1 + self.log.len() as u64 % 2);
        let result = self.reference.apply(index, &entry);
        self.log.push((index, entry.clone()));
        (entry, result)
    }

    pub fn begin_change(&mut self, voters: BTreeSet<u32>) -> Check {
        if self.joint.is_some() {
            return violated("members", "a change began within a change".into());
        }
        if let Some(back) = voters.iter().find(|v| self.removed.contains(v)) {
            return violated("ids_fresh", format!("voter {back} came back"));
        }
        self.joint = Some(voters);
        Ok(())
    }

    pub fn end_change(&mut self) {
        let Some(voters) = self.joint.take() else { return };
        self.removed.extend(self.voters.difference(&voters));
        self.learners.retain(|l| !voters.contains(l));
        self.voters = voters;
    }
}
