//! Cells that were asked to park and whose replicas have not answered. Pure.
//!
//! The core asks once for each lease and waits as long as needed; losses on a broken connection, or with a silent
//! replica, are seen to here.

use hop_api::message::Event;
use hop_words::id::{KernelId, LeaseId, ReplicaId};
use hop_words::time::{Span, Timestamp};
use std::collections::BTreeMap;

/// A replica gives a park up after 300 s. A replica without an answer after this time counts as having refused.
pub(crate) const PATIENCE: Span = Span::from_secs(330);

#[derive(Debug, Default)]
pub(crate) struct Parks {
    open: BTreeMap<LeaseId, Ask>,
}

#[derive(Debug)]
struct Ask {
    replica: ReplicaId,
    event: Event,
    since: Timestamp,
}

impl Parks {
    pub(crate) fn ask(&mut self, lease: LeaseId, replica: ReplicaId, event: Event, now: Timestamp) {
        let since = now;
        self.open.insert(
            lease,
            Ask {
                replica,
                event,
                since,
            },
        );
    }

    /// A replica of the kernel has answered. An answer about a lease of another kernel is ignored.
    pub(crate) fn answered(&mut self, lease: LeaseId, kernel: &KernelId) {
        if self.open.get(&lease).is_some_and(|a| a.replica.kernel == *kernel) {
            self.open.remove(&lease);
        }
    }

    /// Forgets the lease's request: no answer is due any more.
    pub(crate) fn over(&mut self, lease: LeaseId) {
        self.open.remove(&lease);
    }

    /// Events that a returning replica may have missed.
    pub(crate) fn of(&self, replica: &ReplicaId) -> Vec<Event> {
        let theirs = self.open.values().filter(|a| a.replica == *replica);
        theirs.map(|a| a.event.clone()).collect()
    }

    /// Asked replicas without an answer in time: they count as having refused.
    pub(crate) fn overdue(&mut self, now: Timestamp) -> Vec<(LeaseId, ReplicaId)> {
        let due = self.open.extract_if(.., |_, a| now.since(a.since) >= PATIENCE);
        due.map(|(lease, a)| (lease, a.replica)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_words::id::Incarnation;

    fn replica(kernel: &str) -> ReplicaId {
        ReplicaId {
            kernel: kernel.into(),
            incarnation: Incarnation(1),
        }
    }

    fn park(lease: u64) -> Event {
        Event::Park {
            kernel: "k".into(),
            lease: LeaseId(lease),
            cell: "c".into(),
            reason: "r".into(),
        }
    }

    #[test]
    fn what_was_asked_is_said_again_until_it_is_answered_or_overdue() {
        let mut parks = Parks::default();
        let at = |s: u64| Timestamp(s * 1_000_000);
        parks.ask(LeaseId(1), replica("a"), park(1), at(0));
        parks.ask(LeaseId(2), replica("b"), park(2), at(10));
        assert_eq!(parks.of(&replica("a")).len(), 1);
        assert_eq!(parks.of(&replica("c")).len(), 0);
        assert_eq!(parks.overdue(at(329)), []);
        assert_eq!(parks.overdue(at(330)), [(LeaseId(1), replica("a"))]);
        assert_eq!(parks.overdue(at(330)), []);
        parks.answered(LeaseId(2), &"a".into());
        assert_eq!(parks.of(&replica("b")).len(), 1, "it isn't a's");
        parks.answered(LeaseId(2), &"b".into());
        assert_eq!(parks.of(&replica("b")).len(), 0);
        assert_eq!(parks.overdue(at(9999)), []);
    }
}
