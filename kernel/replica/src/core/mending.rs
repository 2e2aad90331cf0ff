//! The way back after a failure of the user's store ([`super::storing`]).
//!
//! The store's thread tries again by itself, in ever longer pauses. A cell's end, an order of `hopd`, the kernel's end
//! and its process's death have the store tried at once: its user may have made room. Records build on lost
//! records: the kernel's agent is then asked for a record of everything. A kernel about to end waits for the
//! record; an unsavable kernel ends at once.

use super::durable::{Awaiting, Durable, Mending, Talk};
use super::{Core, Output, wording};
use hop_words::time::Span;
use serde_json::Value;

/// Time between a failure and the first cell whose end has the store tried again.
pub(super) const TRY_AGAIN: Span = Span::from_secs(5);

/// A store that hangs counts as broken after this time.
const ANSWERS_WITHIN: Span = Span::from_secs(5);

impl Core {
    /// Has a broken store tried at once, unless it is on its way back already. Returns whether it was broken.
    pub(super) fn try_store(&mut self) -> bool {
        let until = self.now + ANSWERS_WITHIN;
        let Some(durable) = self.durable.as_mut().filter(|d| d.broken.is_some()) else {
            return false;
        };
        if durable.mending == Mending::No {
            durable.mending = Mending::Tried { until };
            self.out.push(Output::TryStore);
        }
        true
    }

    /// A cell has ended, and its record was dropped.
    pub(super) fn try_store_in_use(&mut self) {
        if self.durable.as_ref().is_some_and(|d| d.tries_after <= self.now) {
            self.try_store();
        }
    }

    /// Has an order of `hopd` wait for a broken store. Returns whether it waits.
    pub(super) fn waits_for_store(&mut self, order: Awaiting) -> bool {
        let waits = self.outlives_process() && self.try_store();
        if let Some(durable) = self.durable.as_mut().filter(|_| waits) {
            durable.awaiting.retain(|known| !known.is_again(&order));
            durable.awaiting.push(order);
        }
        waits
    }

    /// The store has not answered in time.
    pub(super) fn try_is_over(&mut self) {
        let now = self.now;
        let over = |d: &Durable| matches!(d.mending, Mending::Tried { until } if until <= now);
        if self.durable.as_ref().is_some_and(over) {
            self.store_still_fails("the file system doesn't answer".to_owned());
        }
    }

    /// The store can be written again.
    pub(super) fn store_mended(&mut self) {
        let Some(durable) = self.durable.as_mut().filter(|d| d.broken.is_some()) else {
            return;
        };
        if durable.died.take().is_some() {
            return self.goes_on_without_lost_records();
        }
        durable.mending = Mending::Possible;
        self.capture_anew();
    }

    /// The store failed once more when it was tried.
    pub(super) fn store_still_fails(&mut self, why: String) {
        let now = self.now;
        let tried = |d: &&mut Durable| matches!(d.mending, Mending::Tried { .. });
        let Some(durable) = self.durable.as_mut().filter(tried) else {
            return;
        };
        durable.tries_after = now + TRY_AGAIN;
        durable.broken = Some(why.clone());
        let died = durable.died.take();
        self.tell_saved();
        if let Some(reason) = died {
            self.give_up_mending(&why);
            return self.over(wording::died_unsaved(&reason, &why));
        }
        self.give_up_mending(&why);
    }

    /// The kernel's process died, and its successor begins from the store: no record builds on lost ones any more.
    pub(super) fn goes_on_without_lost_records(&mut self) {
        if let Some(durable) = &mut self.durable {
            (durable.broken, durable.mending) = (None, Mending::No);
        }
        self.tell_hopd_saved();
        self.open_store_if_ready();
        self.carry_out_awaiting();
    }

    /// Asks for a record of everything, if the store lacks records and takes them again. Until the answer, records
    /// build on lost ones, and are dropped.
    pub(super) fn capture_anew(&mut self) {
        let durable = self.durable.as_ref();
        if !durable.is_some_and(|d| d.mending == Mending::Possible && d.talk == Talk::Captures) {
            return;
        }
        let mut body = self.begin_with("cells");
        body["anew"] = true.into();
        let id = self.ask_agent("state.begin", body);
        if let Some(durable) = &mut self.durable {
            durable.mending = Mending::Asked(id);
        }
    }

    /// The agent answered [`Core::capture_anew`].
    pub(super) fn captures_anew(&mut self, answer: Result<Value, String>) {
        let Some(durable) = &mut self.durable else {
            return;
        };
        if let Err(why) = answer {
            return self.give_up_mending(&why);
        }
        (durable.broken, durable.mending) = (None, Mending::No);
        durable.next_is_whole = true;
        self.tell_saved();
        self.carry_out_awaiting();
        self.leave_if_idle();
    }

    /// The orders that waited for the store can be carried out.
    fn carry_out_awaiting(&mut self) {
        let orders = self.durable.as_mut().map(|d| std::mem::take(&mut d.awaiting));
        for order in orders.unwrap_or_default() {
            match order {
                Awaiting::Sleep(reason) => self.asked_to_sleep(reason),
                Awaiting::Move { victim, seat, cause } => self.asked_to_move(victim, seat, cause),
            }
        }
    }

    /// The store stays broken for now. Waiting orders are refused, and a kernel forced to leave goes with the
    /// state saved before.
    pub(super) fn give_up_mending(&mut self, why: &str) {
        let Some(durable) = &mut self.durable else {
            return;
        };
        durable.mending = Mending::No;
        let refusal = wording::not_saved(why);
        for order in std::mem::take(&mut durable.awaiting) {
            match order {
                Awaiting::Sleep(_) => self.refuse_to_sleep(refusal.clone()),
                Awaiting::Move { seat, .. } => self.tell_not_moved(seat.incarnation, refusal.clone()),
            }
        }
        if self.leaving().is_none_or(|l| l.flushed) {
            return;
        }
        if self.may_stay() {
            return self.stay(&refusal);
        }
        self.leave_unsaved();
    }
}

impl Awaiting {
    /// Whether the order stands for an earlier one, which `hopd` repeats on a new connection.
    fn is_again(&self, order: &Self) -> bool {
        match (self, order) {
            (Self::Sleep(_), Self::Sleep(_)) => true,
            (Self::Move { seat, .. }, Self::Move { seat: again, .. }) => {
                seat.incarnation == again.incarnation
            }
            _ => false,
        }
    }
}
