//! The death of a kernel's process, and the next process of the same kernel.

use super::cells::LostCell;
use super::durable::{Durable, Mending, Talk};
use super::lease::{Kind, Lease};
use super::memory::Park;
use super::{Core, Exit, Output, Phase, wording};
use hop_api::message::Outcome;
use hop_words::id::CellId;
use hop_words::time::Span;
use std::collections::BTreeSet;

/// Deaths of the kernel's process within [`DEATHS_WITHIN`] that are too many.
const DEATHS_MAX: usize = 5;
const DEATHS_WITHIN: Span = Span::from_secs(60);

impl Core {
    /// Whether the kernel goes on in another process after the end of the present process.
    pub(super) fn comes_back(&self) -> bool {
        self.outlives_process() && self.durable.as_ref().is_some_and(|d| d.broken.is_none())
    }

    /// The same, if a broken store can be written again.
    pub(super) fn outlives_process(&self) -> bool {
        self.durable
            .as_ref()
            .is_some_and(|d| !d.is_at_its_end() && !matches!(d.talk, Talk::Off))
            && !matches!(self.phase, Phase::Over)
    }

    /// The kernel's process has died, for this reason, perhaps with records that a broken store lacks. The next process
    /// stays if the store can be written again.
    fn waits_for_store_to_stay(&mut self, reason: &str) {
        let mending = self.durable.as_ref().map(|d| d.mending);
        if let Some(Mending::Possible | Mending::Asked(_)) = mending {
            return self.goes_on_without_lost_records();
        }
        if self.try_store()
            && let Some(durable) = &mut self.durable
        {
            durable.died = Some(reason.to_owned());
        }
    }

    /// Whether another replica could go on now without a loss to the user: no cell runs, each answered cell is in the
    /// log with its effects, and all content can be captured.
    pub fn rests(&self) -> bool {
        let rests = |durable: &Durable| {
            let state = durable.journal.state();
            let kept = state.cells_at_stake() == 0 && durable.journal.is_settled();
            kept && durable.is_saved()
                && durable.bound.is_empty()
                && durable.moving.is_none()
                && !durable.is_leaving()
        };
        matches!(self.phase, Phase::Up)
            && !self.cells.is_any_with_kernel()
            && self.durable.as_ref().is_some_and(rests)
    }

    /// Whether a kernel without users is worth a save.
    pub(super) fn is_found_again(&self) -> bool {
        self.durable.as_ref().is_some_and(|d| d.found_again)
    }

    /// The kernel's process has died. The cell in its middle is lost, and the kernel goes on in a new process from its
    /// last captured state.
    pub(super) fn come_back(&mut self, exit: Exit) {
        let starting = matches!(self.phase, Phase::Starting { .. } | Phase::Preparing { .. });
        let restoring = matches!(self.phase, Phase::Preparing { .. }) && self.has_state();
        let reason = self.reason_of(exit);
        self.waits_for_store_to_stay(&reason);
        let now = self.now;
        let Some(durable) = &mut self.durable else {
            return;
        };
        durable.deaths.push_back(now);
        while durable
            .deaths
            .front()
            .is_some_and(|at| now.since(*at) > DEATHS_WITHIN)
        {
            durable.deaths.pop_front();
        }
        if durable.deaths.len() > DEATHS_MAX {
            let deaths = durable.deaths.len();
            let comes_back = self.has_state() && self.is_found_again();
            return self.over(wording::died_too_often(&reason, deaths, comes_back));
        }
        durable.restore_deaths += u32::from(restoring);
        // The move goes on once the process is back: no cell runs before.
        if let Some(leaving) = &mut durable.leaving {
            (leaving.until, leaving.flushed) = (leaving.by, false);
        }
        durable.talk = Talk::Silent { until: None };
        durable.restored = None;
        durable.captured.clear();
        durable.failed = None;
        self.tell_hopd_saved();
        self.forget_process();
        // An unused process is not missed.
        if !self.lose_running_cells(&reason)
            && !starting
            && let Some(durable) = &mut self.durable
        {
            durable.notices.push(wording::process_is_new(&reason));
        }
        self.tell_lost_widgets();
        let mut early = self.asked.process_is_new();
        early.extend(self.phase.take_early());
        self.phase = Phase::Starting {
            early,
            until: now + super::START,
        };
        self.say_restarting();
        self.out.push(Output::StartKernel);
        let sync = self.sync();
        if let Some(durable) = &mut self.durable {
            durable.reopens = Some(sync);
        }
    }

    /// The process is gone, with its GPU memory.
    pub(super) fn forget_process(&mut self) {
        self.gpu.park = Park::Home;
        self.gpu.doomed = None;
        self.gpu.last = None;
        if let Some(held) = self.gpu.held.take() {
            self.release_lease(held.lease);
        }
        if let Some((_, lease)) = self.gpu.after.take() {
            self.release_lease(lease);
        }
        self.release_left();
        let seeker = self.lease.seeker().map(|s| (s.id.clone(), s.kind == Kind::Cell));
        let Some((id, is_cell)) = seeker else {
            return;
        };
        // A cell that hasn't started keeps its place in the queue, or its lease: the lease's GPUs are this
        // replica's.
        let waits = is_cell && self.cells.seeking() == Some(&id);
        match &self.lease {
            Lease::Returning(..) if waits => self.proceed(),
            _ if waits => {}
            Lease::Asked(..) | Lease::Returning(..) => {
                self.lease = Lease::None;
                self.withdraw(&id);
            }
            _ => {
                self.lease_used(&id, Outcome::Lost);
                self.gpu.park = Park::Home;
            }
        }
    }

    /// The cell running at the process's death is lost, and the cells behind it are aborted as behind any error. Returns
    /// whether a cell has told of the death: one that had not begun runs in the next process, and tells nothing.
    fn lose_running_cells(&mut self, reason: &str) -> bool {
        let mut aborts = false;
        let ahead: BTreeSet<CellId> = self
            .durable
            .as_ref()
            .map_or_else(BTreeSet::new, |d| d.journal.ahead().cloned().collect());
        // An aborted cell is behind a lost one.
        let lost = self.cells.take_sent(|cell| ahead.contains(cell));
        let told = !lost.is_empty();
        for lost in lost {
            match lost {
                LostCell::Ended(cell) => {
                    self.tell_may_be_missing(&cell.header);
                    self.reply_ahead(&cell.id, None);
                    self.idle(&cell.header);
                }
                LostCell::Again(cell) => self.tell_retry(&cell, reason),
                LostCell::Lost(cell) => {
                    aborts |= cell.stops_on_error();
                    self.lose(cell, wording::cell_lost(reason));
                }
                LostCell::Behind(cell) => self.abort_sent(cell),
            }
        }
        if aborts {
            self.abort_held();
        }
        told
    }
}
