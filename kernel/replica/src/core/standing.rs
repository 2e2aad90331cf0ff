//! A cell parked during its run, because others wait for the GPUs. The cell stands still at its next CUDA call, keeps
//! its place in the kernel, and goes on with the next lease. [`super::memory`] takes its memory off the GPUs and back.

use super::Core;
use super::lease::{Holder, Lease, Parked, Seeker, Standing, Stop, Wait, parks_from};
use super::wording;
use hop_api::message::{Outcome, Request as ToHopd};
use hop_words::id::{CellId, LeaseId};
use hop_words::time::Span;
use serde_json::json;

/// The first pause before a cell asks again, after a return that failed or a refusal; each further pause is twice the
/// last.
const FIRST_PAUSE: Span = Span::from_secs(4);
const LONGEST_PAUSE: Span = Span::from_secs(300);

/// Time for an interrupted cell to end, before the user is told the reason for the delay.
const INTERRUPTED: Span = Span::from_secs(1);

impl Core {
    /// `hopd` asks the cell on this lease to make room.
    pub(super) fn asked_to_park(&mut self, cell: &CellId, lease: LeaseId, reason: String) {
        match std::mem::take(&mut self.lease) {
            Lease::Stopping(holder, stop) if holder.lease == lease => {
                // Asked again, after a broken connection: the answer comes.
                self.lease = Lease::Stopping(holder, stop);
            }
            Lease::Held(holder) if self.can_stop(&holder, cell, lease) => {
                let interrupted = false;
                self.lease = Lease::Stopping(holder, Stop { reason, interrupted });
                let acts = self.gpu.park.asked();
                self.carry_out(acts);
            }
            other => {
                self.lease = other;
                self.refuse_park(lease, "that cell doesn't run on it any more".into());
            }
        }
    }

    fn can_stop(&self, holder: &Holder, cell: &CellId, lease: LeaseId) -> bool {
        let begun = self.cells.seeking() != Some(cell);
        begun && holder.lease == lease && holder.seeker.id == *cell && !self.gpu.is_revoked(lease)
    }

    fn refuse_park(&mut self, lease: LeaseId, reason: String) {
        let (kernel, tenure) = self.office();
        self.tell_hopd(ToHopd::ParkRefused {
            kernel,
            tenure,
            lease,
            reason,
        });
    }

    /// The cell can't be stopped.
    pub(super) fn runs_on(&mut self, reason: String) {
        match std::mem::take(&mut self.lease) {
            Lease::Stopping(holder, _) => {
                let lease = holder.lease;
                self.lease = Lease::Held(holder);
                self.refuse_park(lease, reason);
            }
            other => self.lease = other,
        }
    }

    /// Nothing of the cell is on its GPUs any more: the lease is over, and the cell waits for another.
    pub(super) fn stopped(&mut self) {
        let (holder, stop) = match std::mem::take(&mut self.lease) {
            Lease::Stopping(holder, stop) => (holder, stop),
            other => {
                self.lease = other;
                return;
            }
        };
        let (lease, now) = (holder.lease, self.now);
        let ran = Span(holder.parked.ran.0 + now.since(holder.started).0);
        let header = self.header_of(&holder.seeker);
        self.stderr(&header, &wording::is_parked(&stop.reason));
        let mut seeker = holder.seeker;
        seeker.header = header;
        let cell = seeker.id.clone();
        self.lease = Lease::Standing(Box::new(Standing {
            wait: Wait::new(now, json!({"state": "parked", "because": stop.reason})),
            seeker,
            from: lease,
            parked: Parked {
                ran,
                times: holder.parked.times,
            },
            since: now,
            because: stop.reason,
            grant: None,
            again: None,
            pause: FIRST_PAUSE,
            explain_at: stop.interrupted.then_some(now + INTERRUPTED),
        }));
        let (kernel, tenure) = self.office();
        self.tell_hopd(ToHopd::CellParked {
            kernel,
            tenure,
            cell,
            lease,
        });
        if self.gpu.revoked_meanwhile(lease) {
            // The lease was over before: hopd has nothing to end, and doesn't know that the cell waits.
            self.release_lease(lease);
            self.register();
        } else {
            self.gpu.last = None;
        }
    }

    /// The header of the request to show the cell's or block's prints now.
    fn header_of(&self, seeker: &Seeker) -> bytes::Bytes {
        match (seeker.as_cell(), self.cells.running()) {
            (None, Some(running)) => self.cells.header(running),
            (None, None) => super::cells::no_header(),
            (Some(_), _) => seeker.header.clone(),
        }
    }

    /// The memory of the cell is back on GPUs, and it runs.
    pub(super) fn go_on(&mut self, standing: Standing) {
        let Some((grant, started)) = standing.grant else {
            self.lease = Lease::Standing(Box::new(standing));
            return;
        };
        let times = standing.parked.times + 1;
        let seeker = standing.seeker;
        let header = seeker.header.clone();
        let described = wording::describe(&grant, &self.identity.models);
        let replied = seeker.as_cell().or_else(|| self.cells.running()).cloned();
        if let Some(replied) = replied {
            self.cells.set_metadata(&replied, described.clone());
            self.cells.add_metadata(&replied, "parked", times.into());
        }
        self.lease = Lease::Held(Holder {
            parks_from: parks_from(&grant, seeker.class, started),
            seeker,
            lease: grant.lease,
            described,
            started,
            parked: Parked {
                ran: standing.parked.ran,
                times,
            },
            revoked: None,
        });
        self.tell_granted(&header, &standing.wait);
        self.stderr(&header, &wording::goes_on(self.now.since(standing.since)));
    }

    /// The cell's granted lease is over before the cell's memory was back.
    pub(super) fn stand_again(&mut self) {
        if let Lease::Standing(standing) = &mut self.lease {
            standing.grant = None;
        }
    }

    /// GPUs were granted, but the memory of the cell can't go back to them: they go back, and the cell asks again
    /// later.
    pub(super) fn can_not_return(&mut self, why: &str) {
        let Lease::Standing(standing) = &mut self.lease else {
            return;
        };
        let Some((grant, _)) = standing.grant.take() else {
            return;
        };
        let (cell, lease) = (standing.seeker.id.clone(), grant.lease);
        self.cell_ended(&cell, lease, self.now, Outcome::Parked);
        self.release_lease(lease);
        self.ask_later(&wording::cell_can_not_go_back(why));
    }

    /// `hopd` won't serve the cell, or somebody cancelled it. The cell is interrupted; in a CUDA call the interrupt
    /// takes effect only with a GPU.
    pub(super) fn standing_refused(&mut self, reason: &str) {
        self.ask_later(&format!("it was refused a GPU to go on with: {reason}"));
        self.interrupt_kernel();
    }

    fn ask_later(&mut self, why: &str) {
        let now = self.now;
        let Lease::Standing(standing) = &mut self.lease else {
            return;
        };
        let pause = standing.pause;
        standing.again = Some(now + pause);
        standing.pause = Span((pause.0 * 2).min(LONGEST_PAUSE.0));
        let header = standing.seeker.header.clone();
        self.stderr(&header, &wording::asks_again(why, pause));
        self.update_wait(json!({"state": "parked", "reason": why}));
    }

    /// The kernel was interrupted while a cell stands still or is being stopped.
    pub(super) fn standing_interrupted(&mut self) {
        let now = self.now;
        match &mut self.lease {
            Lease::Stopping(_, stop) => stop.interrupted = true,
            Lease::Standing(standing) => standing.explain_at = Some(now + INTERRUPTED),
            _ => {}
        }
    }

    /// Time passes for a cell at a standstill.
    pub(super) fn standing_tick(&mut self) {
        let now = self.now;
        let Lease::Standing(standing) = &mut self.lease else {
            return;
        };
        let explain = standing.explain_at.take_if(|at| *at <= now).is_some();
        let again = standing.again.take_if(|at| *at <= now).is_some();
        let header = standing.seeker.header.clone();
        if explain {
            self.stderr(&header, wording::STANDS_IN_CUDA);
        }
        if again {
            self.register();
        }
    }
}
