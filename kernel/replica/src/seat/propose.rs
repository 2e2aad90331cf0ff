//! The order in which a group's entries are proposed. If this member leads, several may be on their way at once: a
//! cell's end needn't wait for its predecessor's writes. [`super::tend`] decides on the proposals.
//!
//! A leader takes entries in the order of their sending. After an unknown outcome, later entries may have gone ahead,
//! and the log has refused them. All are sent again, one after the other: the log recognises those that it has taken.

use super::host::Member;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use hop_log::Entry;
use hop_raft::{Group as _, ProposeError};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::mpsc;

/// Between two tries to propose an entry.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Entries on their way at once. A cell's end, record, settling and the front's word are four.
const IN_FLIGHT: usize = 16;

/// Entries to propose, in order.
#[derive(Debug, Default)]
struct Pipeline {
    waiting: VecDeque<Entry>,
    /// Sent, and not known to be in the log.
    sent: VecDeque<Entry>,
    /// Outcomes to come.
    outstanding: usize,
    /// The outcome of an entry was unknown: nothing is sent until all outcomes are here.
    failed: bool,
    /// Number of entries to go one after the other.
    singly: usize,
}

impl Pipeline {
    /// The next entry to send.
    fn next(&mut self, leads: bool) -> Option<Entry> {
        let most = if leads && self.singly == 0 { IN_FLIGHT } else { 1 };
        if self.failed || self.outstanding >= most {
            return None;
        }
        let entry = self.waiting.pop_front()?;
        self.sent.push_back(entry.clone());
        self.outstanding += 1;
        Some(entry)
    }

    /// The outcome of the first sent entry without an outcome: whether the entry is in the log. Returns whether entries
    /// have to go again.
    fn done(&mut self, is_in: bool) -> bool {
        self.outstanding -= 1;
        if is_in && !self.failed {
            self.sent.pop_front();
            self.singly = self.singly.saturating_sub(1);
        }
        self.failed |= !is_in;
        let again = self.failed && self.outstanding == 0;
        if again {
            self.failed = false;
            self.singly = self.singly.max(self.sent.len());
            while let Some(entry) = self.sent.pop_back() {
                self.waiting.push_front(entry);
            }
        }
        again
    }
}

/// Proposes what comes, until nobody sends any more or the log takes no more entries here.
pub(super) async fn propose_in_order(member: Member, mut queue: mpsc::UnboundedReceiver<Entry>) {
    let mut pipeline = Pipeline::default();
    let mut outcomes = FuturesOrdered::new();
    loop {
        let leads = member.leads();
        while let Some(entry) = pipeline.next(leads) {
            outcomes.push_back(member.propose(entry));
        }
        tokio::select! {
            Some(outcome) = outcomes.next(), if !outcomes.is_empty() => {
                let is_in = match outcome {
                    Ok(_) => true,
                    Err(ProposeError::NoLeader | ProposeError::Unknown) => false,
                    // The keeper replaces the member.
                    Err(ProposeError::Stopped(why)) => {
                        return tracing::warn!(why, "the log takes no more entries here");
                    }
                };
                if pipeline.done(is_in) {
                    tokio::time::sleep(AGAIN_AFTER).await;
                }
            }
            entry = queue.recv() => match entry {
                Some(entry) => pipeline.waiting.push_back(entry),
                None => return,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_log::CellNumber;
    use hop_words::id::Tenure;

    fn entry(n: u64) -> Entry {
        let (cells, losses) = (CellNumber(n), Tenure(0));
        Entry::Heard { cells, losses }
    }

    fn with(entries: std::ops::RangeInclusive<u64>) -> Pipeline {
        let waiting = entries.map(entry).collect();
        Pipeline {
            waiting,
            ..Pipeline::default()
        }
    }

    #[test]
    fn a_leader_has_several_on_their_way_and_others_one() {
        let mut pipeline = with(1..=20);
        let sent: Vec<_> = std::iter::from_fn(|| pipeline.next(true)).collect();
        assert_eq!(sent, (1..=16).map(entry).collect::<Vec<_>>());
        assert!(!pipeline.done(true));
        assert_eq!(pipeline.next(true), Some(entry(17)));
        let mut pipeline = with(1..=2);
        assert_eq!(
            (pipeline.next(false), pipeline.next(false)),
            (Some(entry(1)), None)
        );
        assert!(!pipeline.done(true));
        assert_eq!(pipeline.next(false), Some(entry(2)));
    }

    #[test]
    fn behind_an_unknown_outcome_all_go_again_one_after_the_other() {
        let mut pipeline = with(1..=4);
        while pipeline.next(true).is_some() {}
        pipeline.waiting.push_back(entry(5));
        assert!(!pipeline.done(true));
        assert!(!pipeline.done(false), "two outcomes are to come");
        assert_eq!(pipeline.next(true), None);
        assert!(
            !pipeline.done(true),
            "it may have been refused behind the missing one"
        );
        assert!(pipeline.done(true));
        for n in 2..=4 {
            assert_eq!((pipeline.next(true), pipeline.next(true)), (Some(entry(n)), None));
            assert!(!pipeline.done(true));
        }
        pipeline.waiting.push_back(entry(6));
        assert_eq!(
            (pipeline.next(true), pipeline.next(true)),
            (Some(entry(5)), Some(entry(6)))
        );
    }

    #[test]
    fn an_entry_that_fails_again_is_sent_again() {
        let mut pipeline = with(1..=1);
        for _ in 0..3 {
            assert_eq!(pipeline.next(true), Some(entry(1)));
            assert!(pipeline.done(false));
        }
        assert_eq!(pipeline.next(true), Some(entry(1)));
        assert!(!pipeline.done(true));
        assert_eq!(pipeline.next(true), None);
    }
}
