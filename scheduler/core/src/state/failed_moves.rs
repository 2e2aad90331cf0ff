//! A kernel's moves that came to nothing, and the pauses after them.
//!
//! After a failed move, no move goes to the same node for a while, twice as long after each. After several in a row, no
//! move goes anywhere for a while: the cause is then the kernel itself. So failures that are answered at once can't
//! follow each other without end.

use super::Node;
use crate::index::Idx;
use hop_words::time::{Span, Timestamp};

/// The first pause after a failed move to a node, and the longest.
const NODE_PAUSE: Span = Span::from_secs(10);
const NODE_PAUSE_AT_MOST: Span = Span::from_secs(3600);

/// A node's failures count no longer for a move that is asked for this long after the pause.
const FORGIVEN: Span = Span::from_secs(3600);

/// Number of failed moves in a row before the first pause of all moves, length of that pause, and how often it doubles.
const AT_ONCE: u32 = 3;
const PAUSE: Span = Span::from_secs(10);
const DOUBLINGS: u32 = 5;

/// Failed moves to a single node, one after the other.
#[derive(Debug, Clone, Copy)]
struct Failed {
    node: Idx<Node>,
    until: Timestamp,
    pause: Span,
}

/// A kernel's failed moves.
#[derive(Debug, Default)]
pub(crate) struct FailedMoves {
    by_node: Vec<Failed>,
    /// Failed moves since the last successful one.
    in_a_row: u32,
    /// End of the pause of all moves.
    until: Timestamp,
}

impl FailedMoves {
    /// A move to the node, asked for at `asked`, has failed.
    pub(crate) fn failed(&mut self, node: Idx<Node>, asked: Timestamp, now: Timestamp) {
        let before = self.by_node.extract_if(.., |f| f.node == node).next();
        let before = before.filter(|f| asked.since(f.until) <= FORGIVEN);
        let last = before.map_or(Span::ZERO, |f| f.pause);
        let pause = Span(last.0.saturating_mul(2)).clamp(NODE_PAUSE, NODE_PAUSE_AT_MOST);
        let until = now + pause;
        self.by_node.push(Failed { node, until, pause });
        self.in_a_row = self.in_a_row.saturating_add(1);
        if let Some(more) = self.in_a_row.checked_sub(AT_ONCE) {
            self.until = now + Span(PAUSE.0 << more.min(DOUBLINGS));
        }
    }

    /// A move to the node has succeeded.
    pub(crate) fn succeeded(&mut self, node: Idx<Node>) {
        self.by_node.retain(|f| f.node != node);
        self.in_a_row = 0;
        self.until = Timestamp::default();
    }

    /// Whether the kernel is left where it is for now.
    pub(crate) fn pauses(&self, now: Timestamp) -> bool {
        self.until > now
    }

    /// Whether no move should go to the node for now.
    pub(crate) fn avoids(&self, node: Idx<Node>, now: Timestamp) -> bool {
        let here = |f: &Failed| f.node == node && f.until > now;
        self.pauses(now) || self.by_node.iter().any(here)
    }

    /// Whether the last move to the node failed: nodes without such a failure come first.
    pub(crate) fn has(&self, node: Idx<Node>) -> bool {
        self.by_node.iter().any(|f| f.node == node)
    }

    /// Ends of the pauses that are not over.
    pub(crate) fn ends(&self, now: Timestamp) -> impl Iterator<Item = Timestamp> + '_ {
        let ends = self.by_node.iter().map(|f| f.until);
        ends.chain([self.until]).filter(move |until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_for_each_node_and_end() {
        let (mut moves, node, now) = (FailedMoves::default(), Idx::FIRST, Timestamp(1_000_000));
        moves.failed(node, now, now);
        assert!(moves.avoids(node, now) && moves.has(node) && !moves.pauses(now));
        let again = now + NODE_PAUSE;
        assert!(!moves.avoids(node, again));
        moves.failed(node, again, again);
        assert_eq!(
            moves.ends(again).collect::<Vec<_>>(),
            [again + Span::from_secs(20)]
        );
        let late = again + FORGIVEN + Span::from_secs(21);
        moves.failed(node, late, late);
        assert!(moves.ends(late).any(|end| end == late + NODE_PAUSE));
        assert!(moves.pauses(late));
        moves.succeeded(node);
        assert!(!moves.avoids(node, late) && moves.ends(late).next().is_none());
    }

    #[test]
    fn pauses_have_a_longest_length() {
        let (mut moves, mut now) = (FailedMoves::default(), Timestamp(1_000_000));
        for _ in 0..100 {
            moves.failed(Idx::FIRST, now, now);
            now = moves.ends(now).max().unwrap_or(now);
        }
        moves.failed(Idx::FIRST, now, now);
        assert_eq!(moves.ends(now).max(), Some(now + NODE_PAUSE_AT_MOST));
    }
}
