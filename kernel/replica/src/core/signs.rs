//! When the reply to a cell counts as one that never comes, by what the kernel has said since. [`super::replies`] notes
//! the signs and answers the cell.

use hop_words::time::{Span, Timestamp};

/// A missing reply is given up after so long, where an interrupt or a later cell's reply explains its lack.
const SOON: Span = Span::from_secs(1);

/// The same, where nothing but the kernel's `idle` speaks for it.
const LATE: Span = Span::from_secs(10);

/// Between finding that a reply is missing and giving it up: this supervisor may have stood still, with the reply
/// unread.
const LOOKS_AGAIN: Span = Span::from_millis(250);

/// Signs that the kernel's process is past a cell without its reply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Signs {
    /// The kernel said `idle` for the cell.
    pub(super) idle: Option<Timestamp>,
    /// The process was interrupted before that, or just before it got the cell.
    pub(super) struck: bool,
    /// The kernel has replied to a later cell.
    pub(super) overtaken: Option<Timestamp>,
    /// Clients have the cell's error.
    pub(super) error_shown: bool,
    /// A record has the cell's effects beside those of a later cell: no other record will complete the cell.
    pub(super) recorded: bool,
    /// The first look at which the reply was missing.
    pub(super) missed: Option<Timestamp>,
}

impl Signs {
    /// An interrupt of a process at rest may still strike a cell that the process gets so long after.
    pub(super) const IN_FLIGHT: Span = Span::from_secs(1);

    pub(super) fn is_idle(&self) -> bool {
        self.idle.is_some()
    }

    /// When the reply is given up. `alone` says that the process has nothing else to do: no other code can hold the
    /// reply up. `in_order` says that the kernel is ipykernel, which ends each cell before the next one, and says
    /// `idle` behind the reply. Other kernels may work on several cells.
    pub(super) fn given_up_at(&self, alone: bool, in_order: bool) -> Option<Timestamp> {
        let at = match (self.idle, self.overtaken) {
            (Some(idle), Some(overtaken)) => idle.max(overtaken) + SOON,
            (None, Some(overtaken)) if in_order => overtaken + SOON,
            (Some(idle), None) if self.struck => idle + SOON,
            (Some(idle), None) if in_order && alone => idle + LATE,
            _ => return None,
        };
        Some(self.missed.map_or(at, |missed| at.max(missed + LOOKS_AGAIN)))
    }
}
