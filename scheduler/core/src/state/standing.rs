//! A node's availability as far as known, the source of the knowledge, and the failed pilots of the node.

use hop_words::time::{Span, Timestamp};

/// Whether pilots and replicas may be placed on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Standing {
    /// Neither Slurm nor an agent has named the node since the start: the journal or a replica alone knows of it.
    #[default]
    Unheard,
    Up,
    /// Down or drained, by Slurm's word.
    Down,
    /// In no pool's partition any more, by Slurm's word.
    Gone,
}

impl Standing {
    pub(crate) fn is_up(self) -> bool {
        self == Self::Up
    }

    /// The standing once an agent runs on the node. A standing by Slurm's word stays.
    pub(crate) fn with_agent(self) -> Self {
        match self {
            Self::Unheard => Self::Up,
            Self::Up | Self::Down | Self::Gone => self,
        }
    }
}

/// Pilots that failed on a node one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failing {
    /// The first of them was asked for then.
    pub since: Timestamp,
    /// The last of them failed then.
    pub last: Timestamp,
}

/// Pilots were asked for on a node in vain: none is asked for until then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shunned {
    pub until: Timestamp,
    /// How long it was last shunned.
    pub pause: Span,
}

#[cfg(test)]
mod tests {
    use super::Standing as S;

    #[test]
    fn an_agent_speaks_for_a_node_of_which_slurm_has_said_nothing() {
        let after = [S::Unheard, S::Up, S::Down, S::Gone].map(S::with_agent);
        assert_eq!(after, [S::Up, S::Up, S::Down, S::Gone]);
        assert!(!S::default().is_up());
    }
}
