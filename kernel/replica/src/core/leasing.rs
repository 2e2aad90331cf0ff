//! Asks `hopd` for the lease of a cell or block, tells the user of a wait, uses the lease and gives it up.

use super::Core;
use super::cells::no_header;
use super::lease::{Expected, Holder, Kind, Lease, Parked, Revoked, Seeker, Wait, parks_from};
use super::memory::Last;
use super::wording::{self, describe};
use crate::need;
use bytes::Bytes;
use hop_api::message::{EndedCell, Grant, Outcome, Request as ToHopd};
use hop_words::id::{CellId, LeaseId, Tenure};
use hop_words::need::Need;
use hop_words::time::{Span, Timestamp};
use serde_json::{Value, json};

impl Core {
    /// Asks for the lease of the first waiting cell.
    pub(super) fn ask_for_cell(&mut self, id: CellId, need: Need) {
        let Some(cell) = self.cells.find(&id) else {
            return;
        };
        let seeker = Seeker {
            header: cell.header.clone(),
            class: need::class_of(&need, &cell.run),
            kind: Kind::Cell,
            print: self.author.signer().print(cell.code().as_bytes()),
            id: id.clone(),
            need,
        };
        self.cells.seek(&id);
        self.ask(seeker);
    }

    pub(super) fn ask(&mut self, seeker: Seeker) {
        let state = match &self.hopd {
            super::Hopd::Up => json!({"state": "queued"}),
            super::Hopd::Down(why) => wording::scheduler_away(why),
        };
        let ((kernel, tenure), cell) = (self.office(), seeker.id.clone());
        let (need, class, print) = (seeker.need.clone(), seeker.class, seeker.print);
        self.lease = Lease::Asked(seeker, Wait::new(self.now, state));
        self.tell_hopd(ToHopd::Submit {
            kernel,
            tenure,
            cell,
            need,
            class,
            print,
        });
    }

    /// Tells the user of a long wait its reason.
    pub(super) fn tell_long_wait(&mut self) {
        if self.lease.tell_at().is_some_and(|at| at <= self.now) {
            self.tell_wait();
        }
    }

    pub(super) fn tell_wait(&mut self) {
        if let Some((seeker, wait)) = self.lease.wait_mut() {
            wait.told = true;
            let header = seeker.header.clone();
            let notice = self.notice();
            self.publish_state(&header, &notice);
        }
    }

    /// Notes why the user waits.
    pub(super) fn update_wait(&mut self, state: Value) {
        if let Some((_, wait)) = self.lease.wait_mut() {
            wait.state = state;
            if wait.told {
                self.tell_wait();
            }
        }
    }

    /// Tells the user of the end of a told wait.
    pub(super) fn tell_granted(&mut self, header: &Bytes, wait: &Wait) {
        if wait.told {
            let notice = self.notice();
            self.publish_state(header, &notice);
        }
    }

    /// `hopd` has a place in the queue for the cell.
    pub(super) fn queued(&mut self, cell: &CellId, position: u32, reason: &str, expected: Expected) {
        if !self.lease.is_for(cell) {
            return;
        }
        let (estimate, range) = expected;
        let eta = estimate.map(Span::as_secs_f64);
        let mut state = json!({"state": "queued", "position": position, "reason": reason, "eta_s": eta});
        if let Some((low, high)) = range {
            state["eta_range_s"] = json!([low.as_secs_f64(), high.as_secs_f64()]);
        }
        if let Lease::Standing(standing) = &self.lease {
            state["state"] = "parked".into();
            state["because"] = standing.because.as_str().into();
        }
        self.update_wait(state);
    }

    /// A lease was granted. Parked GPU memory of the kernel comes back before the lease is used.
    pub(super) fn granted(&mut self, cell: &CellId, grant: Grant) {
        if self
            .lease
            .granted()
            .is_some_and(|(lease, id)| lease == grant.lease && id == cell)
        {
            // Said again on a new connection.
            return;
        }
        let devices = wording::device_paths(&grant);
        if devices.is_empty() {
            return self.use_lease(cell, grant);
        }
        let header = self
            .lease
            .seeker()
            .filter(|s| s.id == *cell)
            .map(|s| s.header.clone());
        self.gpu.last = Some(Last {
            id: grant.lease,
            devices,
            header: header.unwrap_or_else(no_header),
            grace: Span::ZERO,
        });
        self.gpu.doomed = None;
        self.gpu.held = None;
        self.gpu.leaving.retain(|left| *left != grant.lease);
        self.linger_is_over(grant.lease);
        self.lease = match std::mem::take(&mut self.lease) {
            Lease::Asked(seeker, wait) if seeker.id == *cell => {
                Lease::Returning(seeker, wait, Box::new(grant))
            }
            Lease::Standing(mut standing) if standing.seeker.id == *cell => {
                standing.grant = Some((grant, self.now));
                Lease::Standing(standing)
            }
            // Nobody waits for the lease any more: `hopd` learns so by the withdrawal.
            other => {
                self.lease = other;
                return;
            }
        };
        let acts = self.gpu.park.granted();
        self.carry_out(acts);
    }

    /// Whether this replica can use the lease: `hopd` tells all processes of a kernel of the kernel's leases.
    pub(super) fn is_ours(&self, grant: &Grant) -> bool {
        let identity = &self.identity;
        grant.executor == identity.incarnation && grant.node == identity.node
    }

    /// A lease for a cell of this replica is on another process's node: the lease goes back, and the cell asks again.
    /// `hopd` accepts this from the newest tenure alone. Without a log `hopd` can't tell processes apart, and the lease
    /// may be our successor's.
    pub(super) fn granted_elsewhere(&mut self, cell: &CellId, grant: &Grant) {
        let waits = match &self.lease {
            Lease::Asked(seeker, _) => seeker.id == *cell,
            Lease::Standing(standing) => standing.seeker.id == *cell && standing.grant.is_none(),
            Lease::None | Lease::Returning(..) | Lease::Held(_) | Lease::Stopping(..) => false,
        };
        let (_, tenure) = self.office();
        if waits && (tenure > Tenure(0) || grant.executor == self.identity.incarnation) {
            self.release_lease(grant.lease);
            self.register();
        }
    }

    /// The kernel's memory is in its place for the granted lease.
    pub(super) fn proceed(&mut self) {
        match std::mem::take(&mut self.lease) {
            Lease::Returning(seeker, wait, grant) => {
                let cell = seeker.id.clone();
                self.lease = Lease::Asked(seeker, wait);
                self.use_lease(&cell, *grant);
            }
            Lease::Standing(standing) => self.go_on(*standing),
            other => self.lease = other,
        }
    }

    /// Begins the waiting cell or block.
    fn use_lease(&mut self, cell: &CellId, grant: Grant) {
        let (seeker, wait) = match std::mem::take(&mut self.lease) {
            Lease::Asked(seeker, wait) if seeker.id == *cell => (seeker, wait),
            other => {
                self.lease = other;
                return;
            }
        };
        self.hide_text(&seeker.id);
        let described = describe(&grant, &self.identity.models);
        let holder = Holder {
            lease: grant.lease,
            described: described.clone(),
            started: self.now,
            parks_from: parks_from(&grant, seeker.class, self.now),
            parked: Parked::default(),
            revoked: None,
            seeker,
        };
        let (kind, header) = (holder.seeker.kind.clone(), holder.seeker.header.clone());
        self.lease = Lease::Held(holder);
        self.linger_is_over(grant.lease);
        self.tell_granted(&header, &wait);
        match kind {
            Kind::Cell => self.cells.set_metadata(cell, described),
            Kind::Block { request, inside } => {
                if let Some(inside) = inside {
                    self.cells.set_metadata(&inside, described.clone());
                }
                self.answer_agent(request, described);
            }
        }
    }

    /// `hopd` refuses the lease, or the granted lease can't be used.
    pub(super) fn refused(&mut self, cell: &CellId, reason: String) {
        match std::mem::take(&mut self.lease) {
            Lease::Standing(standing) if standing.seeker.id == *cell => {
                self.lease = Lease::Standing(standing);
                self.standing_refused(&reason);
            }
            Lease::Asked(seeker, _) | Lease::Returning(seeker, ..) if seeker.id == *cell => match seeker.kind
            {
                Kind::Block { request, .. } => self.refuse_agent(request, "refused", &reason),
                Kind::Cell => self.fail(cell, super::Verdict::Refused(reason)),
            },
            other => self.lease = other,
        }
    }

    /// The cell or block waits no longer.
    pub(super) fn withdraw(&mut self, cell: &CellId) {
        let ((kernel, tenure), cell) = (self.office(), cell.clone());
        self.tell_hopd(ToHopd::CancelCell { kernel, tenure, cell });
    }

    /// The cell or block with a lease, or at a standstill without one, has ended.
    pub(super) fn lease_used(&mut self, cell: &CellId, outcome: Outcome) {
        if !self.lease.is_for(cell) {
            return;
        }
        let used = match std::mem::take(&mut self.lease) {
            Lease::Held(holder) => {
                self.lingers(&holder);
                Some((holder.lease, holder.started))
            }
            Lease::Stopping(holder, _) => {
                self.gpu.park.cell_ended();
                Some((holder.lease, holder.started))
            }
            Lease::Standing(standing) => match standing.grant {
                Some((grant, since)) => Some((grant.lease, since)),
                None => {
                    self.withdraw(cell);
                    None
                }
            },
            other => {
                self.lease = other;
                None
            }
        };
        if let Some((lease, started)) = used {
            self.cell_ended(cell, lease, started, outcome);
        }
    }

    pub(super) fn cell_ended(&mut self, cell: &CellId, lease: LeaseId, started: Timestamp, outcome: Outcome) {
        let ((kernel, tenure), cell, ended) = (self.office(), cell.clone(), self.now);
        self.ended = Some(EndedCell {
            cell: cell.clone(),
            outcome,
        });
        self.tell_hopd(ToHopd::CellEnded {
            kernel,
            tenure,
            cell,
            lease,
            started,
            ended,
            outcome,
        });
    }

    /// `hopd` takes a lease away. Returns the cell on the lease, which is told the reason, interrupted, and has the
    /// grace time to end.
    pub(super) fn revoked(&mut self, lease: LeaseId, reason: &str) -> Option<CellId> {
        let at = self.now;
        let cell = match &mut self.lease {
            Lease::Held(h) | Lease::Stopping(h, _) if h.lease == lease => match &h.seeker.kind {
                Kind::Cell => {
                    let reason = reason.to_owned();
                    h.revoked = Some(Revoked { reason, at });
                    h.seeker.id.clone()
                }
                Kind::Block { .. } => {
                    // The block has nothing any more: its end will say nothing.
                    if let Lease::Stopping(..) = std::mem::take(&mut self.lease) {
                        self.gpu.park.cell_ended();
                    }
                    self.cells.running()?.clone()
                }
            },
            _ => return None,
        };
        let header = self.cells.header(&cell);
        self.publish_state(
            &header,
            &json!({"state": "revoked", "lease": lease, "reason": reason}),
        );
        self.stderr(&header, &wording::taken_away(reason));
        self.cells.add_metadata(&cell, "revoked", reason.into());
        self.cells.note_interrupt(self.now);
        let why = Some(wording::lease_revoked(reason));
        self.out.push(super::Output::InterruptKernel { why });
        Some(cell)
    }

    /// A lease is over before its cell has begun: the cell asks for another one.
    fn ask_again(&mut self, lease: LeaseId) {
        let held = match &self.lease {
            Lease::Held(holder) if holder.lease == lease => holder.seeker.id.clone(),
            _ => return,
        };
        if self.cells.seeking() == Some(&held) {
            self.lease = Lease::None;
            self.cells.unseek(&held);
        }
    }

    /// A lease is over for `hopd`: nothing of the kernel may stay on its GPUs.
    pub(super) fn lease_over(&mut self, lease: LeaseId, grace: Span, reason: &str) {
        self.linger_is_over(lease);
        let standing = match &self.lease {
            Lease::Standing(s) => Some((s.from, s.grant.as_ref().map(|(grant, _)| grant.lease))),
            _ => None,
        };
        let comes_back = standing.is_some_and(|(_, granted)| granted == Some(lease));
        self.ask_again(lease);
        let running = if comes_back {
            None
        } else {
            self.revoked(lease, reason)
        };
        let Some(last) = self.gpu.last.as_mut().filter(|last| last.id == lease) else {
            self.release_lease(lease);
            if standing.is_some_and(|(from, _)| from == lease) {
                // The lease was over before `hopd` heard of the parked cell.
                self.register();
            }
            return;
        };
        last.grace = grace;
        if comes_back {
            self.stand_again();
            self.leave(lease);
            return self.register();
        }
        if let Lease::Returning(seeker, _, grant) = &self.lease
            && grant.lease == lease
        {
            let cell = seeker.id.clone();
            self.refused(&cell, format!("the GPU was taken away: {reason}"));
        }
        match running {
            Some(cell) => {
                self.gpu.after = Some((cell, lease));
                self.gpu.doomed = Some(wording::would_not_end(reason, grace));
            }
            None => self.leave(lease),
        }
    }

    /// Why a cell can't be given a lease of its own now. `None` means that it can.
    pub(super) fn in_the_way(&self) -> Option<String> {
        match &self.lease {
            Lease::None => None,
            Lease::Asked(..) | Lease::Returning(..) => Some(wording::BLOCK_WAITS.into()),
            Lease::Standing(_) => Some(wording::BLOCK_IS_PARKED.into()),
            Lease::Held(h) | Lease::Stopping(h, _) => Some(wording::block_holds(h.lease)),
        }
    }
}
