//! The one lease that a kernel asks for, waits for or holds: for a cell, or for a `with gresshopper.gpu():` block.
//! The states are here, the verbs in [`super::leasing`].

use bytes::Bytes;
use hop_api::message::{Grant, ParkedCell, WaitingCell};
use hop_words::id::{CellId, LeaseId};
use hop_words::need::{Class, Need};
use hop_words::time::{Span, Timestamp};
use serde_json::Value;

/// A shorter wait is not told: a message for each cell would be noise.
const TELL_AFTER: Span = Span::from_millis(200);

/// The cell or block to get a lease.
#[derive(Debug, Clone)]
pub(super) struct Seeker {
    /// The cell's or block's name at `hopd`: the cell's id, or `CELL/N` for a block.
    pub(super) id: CellId,
    /// Header of the request, for all messages about the lease.
    pub(super) header: Bytes,
    pub(super) need: Need,
    pub(super) class: Class,
    /// Of the cell's text; 0 for a block, which is a part of a text.
    pub(super) print: u64,
    pub(super) kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Cell,
    /// A block, with the agent's request and the cell around the block's beginning. `None` means that no cell ran then.
    Block {
        request: u64,
        inside: Option<CellId>,
    },
}

/// The expected wait, and its likely range.
pub(super) type Expected = (Option<Span>, Option<(Span, Span)>);

/// A wait for a lease, and whether its user was told.
#[derive(Debug, Clone)]
pub(super) struct Wait {
    pub(super) since: Timestamp,
    pub(super) told: bool,
    /// Its place, reason and estimate, as `metadata.gresshopper` of a status message has them.
    pub(super) state: Value,
}

impl Wait {
    pub(super) fn new(since: Timestamp, state: Value) -> Self {
        Self {
            since,
            told: false,
            state,
        }
    }

    /// When to tell the user.
    pub(super) fn tell_at(&self) -> Option<Timestamp> {
        (!self.told).then_some(self.since + TELL_AFTER)
    }
}

/// How often a cell stood still in its middle, and its run time before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Parked {
    pub(super) ran: Span,
    pub(super) times: u32,
}

/// A lease in use.
#[derive(Debug, Clone)]
pub(super) struct Holder {
    pub(super) seeker: Seeker,
    pub(super) lease: LeaseId,
    /// As the cell's reply tells it.
    pub(super) described: Value,
    pub(super) started: Timestamp,
    /// Time from which on the cell may be parked for others. `None` means never.
    pub(super) parks_from: Option<Timestamp>,
    pub(super) parked: Parked,
    /// Set once the lease was taken away under the running cell. The cell may take its time to end.
    pub(super) revoked: Option<Revoked>,
}

/// A lease that was taken away.
#[derive(Debug, Clone)]
pub(super) struct Revoked {
    pub(super) reason: String,
    pub(super) at: Timestamp,
}

/// An order of `hopd`'s to make room in the middle of a cell.
#[derive(Debug, Clone)]
pub(super) struct Stop {
    pub(super) reason: String,
    /// The cell was interrupted meanwhile.
    pub(super) interrupted: bool,
}

#[derive(Debug, Default)]
pub(super) enum Lease {
    #[default]
    None,
    /// `hopd` was asked.
    Asked(Seeker, Wait),
    /// Granted. The kernel's parked GPU memory comes back first.
    Returning(Seeker, Wait, Box<Grant>),
    Held(Holder),
    /// The running cell is being taken off the GPUs.
    Stopping(Holder, Stop),
    /// The cell stands still in its middle, and waits for another lease.
    Standing(Box<Standing>),
}

/// A cell (or block) at a standstill, until it runs again.
#[derive(Debug)]
pub(super) struct Standing {
    pub(super) seeker: Seeker,
    pub(super) wait: Wait,
    /// The lease on which it ran last.
    pub(super) from: LeaseId,
    /// Runs so far, over all leases.
    pub(super) parked: Parked,
    pub(super) since: Timestamp,
    /// `hopd`'s reason for the park.
    pub(super) because: String,
    /// The next lease and the time of its grant, while the cell's memory is on the way back to the GPUs.
    pub(super) grant: Option<(Grant, Timestamp)>,
    /// When to ask for GPUs again.
    pub(super) again: Option<Timestamp>,
    pub(super) pause: Span,
    /// When to say why an interrupt hasn't ended the cell.
    pub(super) explain_at: Option<Timestamp>,
}

impl Standing {
    pub(super) fn as_reported(&self) -> ParkedCell {
        ParkedCell {
            cell: self.seeker.id.clone(),
            lease: self.from,
            ran: self.parked.ran,
        }
    }

    pub(super) fn due(&self) -> Option<Timestamp> {
        [self.again, self.explain_at].into_iter().flatten().min()
    }

    /// Without a grant, the cell waits in the queue.
    pub(super) fn wait_mut(&mut self) -> Option<(&Seeker, &mut Wait)> {
        Some((&self.seeker, &mut self.wait))
    }
}

impl Lease {
    /// The cell running on a lease, or at a standstill in its middle. Other cells must not run beside it.
    pub(super) fn running_cell(&self) -> Option<&CellId> {
        match self {
            Self::None | Self::Asked(..) | Self::Returning(..) => None,
            Self::Held(h) | Self::Stopping(h, _) => h.seeker.as_cell(),
            Self::Standing(s) => s.seeker.as_cell(),
        }
    }

    pub(super) fn seeker(&self) -> Option<&Seeker> {
        match self {
            Self::None => None,
            Self::Asked(seeker, _) | Self::Returning(seeker, ..) => Some(seeker),
            Self::Held(h) | Self::Stopping(h, _) => Some(&h.seeker),
            Self::Standing(s) => Some(&s.seeker),
        }
    }

    pub(super) fn is_for(&self, id: &CellId) -> bool {
        self.seeker().is_some_and(|s| s.id == *id)
    }

    /// The granted lease that isn't over, with its cell or block.
    pub(super) fn granted(&self) -> Option<(LeaseId, &CellId)> {
        match self {
            Self::None | Self::Asked(..) => None,
            Self::Returning(seeker, _, grant) => Some((grant.lease, &seeker.id)),
            Self::Held(h) | Self::Stopping(h, _) => Some((h.lease, &h.seeker.id)),
            Self::Standing(s) => s.grant.as_ref().map(|(grant, _)| (grant.lease, &s.seeker.id)),
        }
    }

    pub(super) fn wait_mut(&mut self) -> Option<(&Seeker, &mut Wait)> {
        match self {
            Self::Asked(seeker, wait) | Self::Returning(seeker, wait, _) => Some((seeker, wait)),
            Self::Standing(s) => s.wait_mut(),
            Self::None | Self::Held(_) | Self::Stopping(..) => None,
        }
    }

    pub(super) fn wait(&self) -> Option<&Wait> {
        match self {
            Self::Asked(_, wait) | Self::Returning(_, wait, _) => Some(wait),
            Self::Standing(s) => Some(&s.wait),
            Self::None | Self::Held(_) | Self::Stopping(..) => None,
        }
    }

    /// Time to tell a waiting user of the wait.
    pub(super) fn tell_at(&self) -> Option<Timestamp> {
        self.wait().and_then(Wait::tell_at)
    }
}

/// Time from which a cell beginning now may be parked for others.
pub(super) fn parks_from(grant: &Grant, class: Class, now: Timestamp) -> Option<Timestamp> {
    let quantum = grant.quanta.iter().find(|(of, _)| *of == class);
    quantum.map(|(_, span)| now + *span)
}

impl Seeker {
    /// As `hopd` hears of it on a new connection.
    pub(super) fn as_waiting(&self) -> WaitingCell {
        WaitingCell {
            cell: self.id.clone(),
            need: self.need.clone(),
            class: self.class,
            print: self.print,
        }
    }

    pub(super) fn as_cell(&self) -> Option<&CellId> {
        (self.kind == Kind::Cell).then_some(&self.id)
    }
}
