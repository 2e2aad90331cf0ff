//! News from the keeper to its host.

use crate::visit::Visitor;
use hop_words::id::Incarnation;
use std::collections::BTreeSet;

/// A group's lack of replicas, reported once for each change by its leader. None at all withdraws the report before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    pub group: String,
    pub replicas: usize,
    /// Members whose seats are gone: their nodes may have another seat.
    pub gone: BTreeSet<Incarnation>,
    /// Members that can't go on, in seats that live.
    pub failed: BTreeSet<Incarnation>,
}

/// Something that the keeper's host has to see to.
#[derive(Debug)]
pub enum Event {
    Need(Need),
    /// A command of the user's asks for a kernel's process on this node.
    Visited(Visitor),
    /// Another seat has a message for this seat's member of a group that isn't kept here: the member is to join.
    Invited {
        group: String,
        me: Incarnation,
    },
    /// The kernel is over, or this seat's member has left it, by the word of another of the kernel's seats; or all of
    /// these seats have gone.
    Closed {
        group: String,
    },
    /// The member has no leader in sight for long: the group may be over, and nobody is left to say so.
    Leaderless {
        group: String,
    },
}
