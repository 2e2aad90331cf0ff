//! A move of the kernel to another seat (docs/replication.md). The front prepares a replica in the new seat while cells
//! go on; then the present replica saves everything between two cells and leaves. A failure before leaves the kernel in
//! its present seat, and `hopd` hears the reason.
//!
//! A member of the kernel's group gets the kernel by an election. If time permits, a replica in the member's seat
//! follows the log first: the kernel is then away for a few records' time only. In a hot standby's seat a follower runs
//! already. Without a follower the seat starts a replica.

use super::durable::{Awaiting, Farewell, Leaving, Move};
use super::{Core, wording};
use hop_api::message::{MoveCause, Request as ToHopd, SeatPlan};
use hop_protocol::message::Note;
use hop_words::id::Incarnation;
use hop_words::time::Span;

/// A replica in a member's seat follows the log within this time, or the member is elected without.
const FOLLOWS_WITHIN: Span = Span::from_secs(12);

impl Core {
    /// `hopd` wants the kernel in another seat.
    pub(super) fn asked_to_move(&mut self, victim: Incarnation, seat: SeatPlan, cause: MoveCause) {
        let to = seat.incarnation;
        if self.moving().is_some_and(|m| m.to == to) {
            // Asked again, on a new connection.
            return;
        }
        let order = Awaiting::Move {
            victim,
            seat: seat.clone(),
            cause,
        };
        if self.waits_for_store(order) {
            return;
        }
        if let Some(reason) = self.stays_because(victim, cause) {
            return self.tell_not_moved(to, reason);
        }
        let elects = self.is_standby(to);
        // A cell that waits for a GPU would wait for the preparation as well, and a hot standby is prepared already.
        let in_haste = elects && (cause == MoveCause::Waiting || self.is_hot(to));
        let elects_at = (elects && !in_haste).then(|| self.now + FOLLOWS_WITHIN);
        if let Some(durable) = &mut self.durable {
            durable.moving = Some(Move {
                to,
                cause,
                elects,
                elects_at,
            });
        }
        match in_haste {
            true => self.elect(to),
            false => self.note(Note::MoveAsked { seat, member: elects }),
        }
    }

    /// Has the log elect that member between two cells.
    fn elect(&mut self, to: Incarnation) {
        if let Some(moving) = self.durable.as_mut().and_then(|d| d.moving.as_mut()) {
            moving.elects_at = None;
        }
        self.say_farewell(Farewell::Move(to));
    }

    /// Without a follower in the member's seat: the seat starts a replica after the election.
    pub(super) fn elect_unprepared(&mut self) {
        let due = |m: &&Move| m.elects_at.is_some_and(|at| at <= self.now);
        if let Some(to) = self.moving().filter(due).map(|m| m.to) {
            self.note(Note::MoveOff { incarnation: to });
            self.elect(to);
        }
    }

    /// The member whose election is decided.
    pub(super) fn chosen(&self) -> Option<Incarnation> {
        self.moving().filter(|m| m.elects).map(|m| m.to)
    }

    fn moving(&self) -> Option<&Move> {
        self.durable.as_ref()?.moving.as_ref()
    }

    pub(super) fn leaving(&self) -> Option<&Leaving> {
        self.durable.as_ref()?.leaving.as_ref()
    }

    /// Why the kernel isn't moved. Only the user moves a bound kernel, and was told of the losses.
    fn stays_because(&self, victim: Incarnation, cause: MoveCause) -> Option<String> {
        let Some(durable) = self.durable.as_ref().filter(|_| self.comes_back()) else {
            return Some("its state is not saved, or its process ends".into());
        };
        if victim != self.identity.incarnation {
            return Some(wording::ORDER_TO_ANOTHER.into());
        }
        if !durable.is_saved() {
            return Some("its state is not saved yet".into());
        }
        if durable.moving.is_some() {
            return Some("it is being moved elsewhere".into());
        }
        self.bound_here(cause)
    }

    /// The reason that keeps the kernel from a move that isn't the user's own.
    fn bound_here(&self, cause: MoveCause) -> Option<String> {
        let reasons = self.durable.as_ref()?.bound().reasons();
        let by_policy = cause != MoveCause::Asked;
        (by_policy && !reasons.is_empty()).then(|| reasons.join(" "))
    }

    /// The same, once the last capture has told everything.
    pub(super) fn turned_out_bound(&self) -> Option<String> {
        self.bound_here(self.moving()?.cause)
    }

    /// The replica in the new seat is ready: this replica leaves as soon as no cell runs.
    pub(super) fn move_ready(&mut self, to: Incarnation) {
        if self.moving().is_none_or(|m| m.to != to) {
            return self.note(Note::MoveOff { incarnation: to });
        }
        self.elect(to);
    }

    /// The front reports a failed move: the present move, or an earlier one.
    pub(super) fn move_failed(&mut self, to: Incarnation, reason: String) {
        if let Some(moving) = self.moving().filter(|m| m.to == to && m.elects) {
            if moving.elects_at.is_some() {
                self.elect(to);
            }
            return;
        }
        self.forget_move(to);
        self.tell_not_moved(to, reason);
    }

    /// `hopd` doesn't wait for the move any longer.
    pub(super) fn move_withdrawn(&mut self, to: Incarnation) {
        if let Some(durable) = &mut self.durable {
            let of_move =
                |order: &Awaiting| matches!(order, Awaiting::Move { seat, .. } if seat.incarnation == to);
            durable.awaiting.retain(|order| !of_move(order));
        }
        if self.forget_move(to) {
            self.note(Note::MoveOff { incarnation: to });
        }
    }

    /// The members of the log have changed, and a former member can't be elected.
    pub(super) fn reconsider_election(&mut self) {
        if self.moving().is_some_and(|m| m.elects && !self.is_standby(m.to)) {
            self.give_up_move("the replica there is gone");
        }
    }

    /// The front before may have noted a question or a lack of members as dealt with, and died before its answer.
    pub(super) fn front_changed(&mut self) {
        self.cells.ask_again();
        self.give_up_move("its front was replaced meanwhile");
        self.lacks_members_still();
    }

    /// The kernel's state can't be taken along, so the kernel stays.
    pub(super) fn give_up_move(&mut self, why: &str) {
        let Some(to) = self.moving().map(|m| m.to) else {
            return;
        };
        self.move_withdrawn(to);
        self.tell_not_moved(to, why.into());
    }

    /// The kernel goes on here. Returns whether it was to move there.
    fn forget_move(&mut self, to: Incarnation) -> bool {
        let Some(durable) = &mut self.durable else {
            return false;
        };
        let known = durable.moving.take_if(|m| m.to == to).is_some();
        let leaves = |l: &Leaving| l.farewell == Farewell::Move(to);
        if known && durable.leaving.as_ref().is_some_and(leaves) {
            durable.leaving = None;
            durable.forget_flush();
        }
        known
    }

    /// Tells `hopd`, now and with the next registration, since `hopd` may not know this replica yet.
    pub(super) fn tell_not_moved(&mut self, to: Incarnation, reason: String) {
        let (kernel, tenure) = self.office();
        let said = ToHopd::MigrationFailed {
            kernel,
            tenure,
            incarnation: to,
            reason,
        };
        self.not_moved = Some(Box::new(said.clone()));
        self.tell_hopd(said);
    }

    /// Whether no cell goes to the kernel now. Before a move cells go one by one, because queued cells would end with
    /// ipykernel. Once the log is asked for another executor, the cells are that executor's.
    pub(super) fn holds_back(&self) -> bool {
        let queues = self.moving().is_some() && self.cells.running().is_some();
        queues
            || self
                .leaving()
                .is_some_and(|l| l.handed_over || !self.runs_first())
    }

    /// A cell with a lease runs before the kernel moves.
    pub(super) fn runs_first(&self) -> bool {
        self.is_moving_off() && self.lease.granted().is_some()
    }

    fn is_moving_off(&self) -> bool {
        self.leaving()
            .is_some_and(|l| matches!(l.farewell, Farewell::Move(_)))
    }

    /// A lease was granted after the last capture: its cell runs here, and the capture is taken again.
    pub(super) fn reconsider_leaving(&mut self) {
        if !self.runs_first() {
            return;
        }
        if let Some(durable) = &mut self.durable
            && let Some(leaving) = durable.leaving.as_mut().filter(|l| !l.in_haste)
        {
            (leaving.flushed, leaving.until) = (false, None);
            durable.forget_flush();
        }
    }
}
