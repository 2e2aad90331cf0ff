//! A cell that is parked in its middle, because others wait for its GPUs: it stands still at its next CUDA call, keeps its
//! place in the kernel, and goes on with the next lease. Taking it off and bringing it back is `parking`'s.

use super::Replica;
use super::cells::timestamp;
use bytes::Bytes;
use hop_api::message::{Grant, Outcome, ParkedCell, Request as ToHopd};
use hop_core::id::{CellId, LeaseId};
use hop_core::need::{Class, Need};
use hop_core::time::{Span, Timestamp};
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;

/// Between a try to bring it back that failed, or a refusal, and the next time that it asks for GPUs: doubles.
const AGAIN: (Duration, Duration) = (Duration::from_secs(4), Duration::from_secs(300));

/// A cell that was interrupted has so long to end before its user is told why it doesn't.
const INTERRUPTED: Duration = Duration::from_secs(1);

/// Who runs on a lease: a cell, or a block within one.
pub(super) struct Runner {
    pub(super) cell: CellId,
    /// Of the request whose outputs these are.
    pub(super) header: Bytes,
    pub(super) need: Need,
    pub(super) class: Class,
    pub(super) started: Timestamp,
}

/// A cell that is asked to leave its GPUs.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) cell: CellId,
    pub(super) lease: LeaseId,
    pub(super) reason: String,
    /// It was interrupted meanwhile.
    pub(super) interrupted: bool,
}

/// The cell that stands still, until it runs again.
#[derive(Debug)]
pub(super) struct Standing {
    pub(super) cell: CellId,
    /// The lease on which it ran last.
    pub(super) from: LeaseId,
    /// How long it has run, over all its leases.
    ran: Span,
    since: Instant,
    /// Why it had to.
    because: String,
    /// Asks for GPUs again then: they were there and of no use, or it was refused.
    again: Option<Instant>,
    pause: Duration,
    /// When to say why an interrupt hasn't ended it.
    explain_at: Option<Instant>,
}

/// What is remembered of a cell that was parked and runs again.
#[derive(Debug)]
pub(super) struct Ran {
    cell: CellId,
    ran: Span,
    times: u32,
}

impl Standing {
    pub(super) fn as_reported(&self) -> ParkedCell {
        ParkedCell {
            cell: self.cell.clone(),
            lease: self.from,
            ran: self.ran,
        }
    }

    /// What its user is told while it waits, besides what the queue says.
    pub(super) fn because(&self) -> &str {
        &self.because
    }

    pub(super) fn due(&self) -> Option<Instant> {
        [self.again, self.explain_at].into_iter().flatten().min()
    }

    /// It asks again in so long, after one more try that came to nothing.
    fn ask_later(&mut self) -> Duration {
        let pause = self.pause;
        self.again = Some(Instant::now() + pause);
        self.pause = (pause * 2).min(AGAIN.1);
        pause
    }
}

impl Replica {
    /// hopd asks the cell on this lease to make room.
    pub(super) async fn asked_to_park(&mut self, asked: Asked) {
        if self
            .parking
            .asked
            .as_ref()
            .is_some_and(|a| a.lease == asked.lease)
        {
            // Asked again, after a broken connection: the answer comes.
            return;
        }
        let here = self.runner(asked.lease).is_some_and(|r| r.cell == asked.cell);
        if !here || self.parking.is_revoked(asked.lease) {
            return self.runs_on(asked.lease, "that cell doesn't run on it any more".to_owned());
        }
        self.parking.asked = Some(asked);
        let out = self.parking.park.asked();
        self.park(out).await;
    }

    fn runs_on(&self, lease: LeaseId, reason: String) {
        let kernel = self.file.kernel.clone();
        self.lending.send(ToHopd::ParkRefused {
            kernel,
            lease,
            reason,
        });
    }

    /// It can't be stopped.
    pub(super) fn not_stopped(&mut self, reason: String) {
        if let Some(asked) = self.parking.asked.take() {
            self.runs_on(asked.lease, reason);
        }
    }

    /// Nothing of the cell is on its GPUs any more: the lease is over, and the cell waits for another.
    pub(super) fn stopped(&mut self) {
        let Some(asked) = self.parking.asked.take() else {
            return;
        };
        let Asked {
            cell, lease, reason, ..
        } = asked;
        let Some(runner) = self.runner(lease) else {
            return;
        };
        let before = self.parking.ran.as_ref().filter(|r| r.cell == cell);
        let ran = Span(before.map_or(0, |r| r.ran.0) + timestamp().since(runner.started).0);
        let text = format!(
            "gresshopper: the cell is parked: {reason}. Its GPU memory is in host memory; it goes on by itself where it \
             is when a GPU is free.\n"
        );
        self.write_stderr(&runner.header, &text);
        self.turn.stopped(lease);
        self.stand_block(&cell);
        self.parking.standing = Some(Standing {
            cell: cell.clone(),
            from: lease,
            ran,
            since: Instant::now(),
            because: reason,
            again: None,
            pause: AGAIN.0,
            explain_at: asked.interrupted.then(|| Instant::now() + INTERRUPTED),
        });
        self.wait_standing(runner);
        let kernel = self.file.kernel.clone();
        self.lending.send(ToHopd::CellParked { kernel, cell, lease });
        if self.parking.revoked_meanwhile(lease) {
            // Its lease was over before: there is nothing for hopd to end, and it doesn't know that the cell waits.
            self.let_go(lease);
            self.register();
        } else {
            self.parking.no_lease();
        }
    }

    /// It was granted a lease: once its memory is back it goes on. What it does from now on it does with that lease.
    pub(super) fn resume(&mut self, cell: &CellId, lease: LeaseId) {
        if self.parking.stands(cell) {
            self.turn.resumed(cell, lease, timestamp());
            self.resume_block(cell, lease);
        }
    }

    /// Its memory is on its GPUs, and it runs. Returns whether that is a cell that stood still.
    pub(super) fn goes_on(&mut self, cell: &CellId, grant: &Grant) -> bool {
        let Some(standing) = self.parking.standing.take_if(|s| s.cell == *cell) else {
            return false;
        };
        let times = self.parking.ran.take().filter(|r| r.cell == *cell);
        let times = times.map_or(1, |r| r.times + 1);
        self.parking.ran = Some(Ran {
            cell: cell.clone(),
            ran: standing.ran,
            times,
        });
        let stood = standing.since.elapsed().as_secs();
        if let Some(header) = self.granted_standing(cell, grant, times) {
            let text = format!("gresshopper: the cell goes on; it stood still for {stood} s.\n");
            self.write_stderr(&header, &text);
        }
        true
    }

    /// The lease that it was granted is over before its memory was back: it stands still as before. Returns whether
    /// that is so.
    pub(super) fn stands_again(&mut self, cell: &CellId, lease: LeaseId) -> bool {
        if !self.parking.stands(cell) {
            return false;
        }
        self.turn.stopped(lease);
        self.stand_block(cell);
        true
    }

    /// GPUs were there, and what it has in host memory can't go back to them: they go back, and it asks again later.
    pub(super) fn can_not_return(&mut self, cell: &CellId, lease: LeaseId, why: &str) {
        let (kernel, now) = (self.file.kernel.clone(), timestamp());
        self.lending.send(ToHopd::CellEnded {
            kernel: kernel.clone(),
            cell: cell.clone(),
            lease,
            started: now,
            ended: now,
            outcome: Outcome::Parked,
        });
        self.lending.send(ToHopd::ReleaseLease { kernel, lease });
        self.ask_later(&format!(
            "a GPU was there, but what the cell has in host memory can't go back to it: {why}"
        ));
    }

    /// hopd won't serve it, or somebody cancelled it. It is interrupted; if it stands in a CUDA call, that takes effect
    /// only with a GPU.
    pub(super) fn standing_refused(&mut self, reason: &str) {
        self.ask_later(&format!("it was refused a GPU to go on with: {reason}"));
        self.kernel.interrupt();
        self.standing_interrupted();
    }

    fn ask_later(&mut self, why: &str) {
        let Some(standing) = self.parking.standing.as_mut() else {
            return;
        };
        let pause = standing.ask_later().as_secs();
        let header = self.standing_header();
        let text = format!("gresshopper: {why}. The cell stands still and asks again in about {pause} s.\n");
        self.write_stderr(&header, &text);
        self.told_standing(why);
    }

    /// The kernel was interrupted.
    pub(super) fn standing_interrupted(&mut self) {
        if let Some(asked) = self.parking.asked.as_mut() {
            asked.interrupted = true;
        }
        if let Some(standing) = self.parking.standing.as_mut() {
            standing.explain_at = Some(Instant::now() + INTERRUPTED);
        }
    }

    /// Something of the cell that stands still is due.
    pub(super) fn standing_due(&mut self) {
        let now = Instant::now();
        let Some(standing) = self.parking.standing.as_mut() else {
            return;
        };
        let explain = standing.explain_at.take_if(|at| *at <= now).is_some();
        let again = standing.again.take_if(|at| *at <= now).is_some();
        if explain {
            let text = "gresshopper: the cell is interrupted, but stands in a GPU operation, which waits for a GPU. It ends \
                        as soon as it has one. To end it now, restart the kernel.\n";
            let header = self.standing_header();
            self.write_stderr(&header, text);
        }
        if again {
            self.register();
        }
    }

    /// The driver has given the process up: whatever the cell waits for won't come.
    pub(super) fn is_lost(&mut self, why: &str) {
        self.ended_by = Some(format!(
            "the cell was parked in its middle for others, and the driver lost what it had on its GPU: {why}"
        ));
        self.kernel.kill();
    }

    /// A cell has ended, whatever it was doing.
    pub(super) fn cell_is_over(&mut self, cell: &CellId) {
        if self.parking.asked.take_if(|a| a.cell == *cell).is_some() {
            self.parking.park.cell_ended();
        }
        self.parking.forget(cell);
        self.parking.standing.take_if(|s| s.cell == *cell);
        self.parking.ran.take_if(|r| r.cell == *cell);
        self.lending.forget(cell);
    }

    fn standing_header(&self) -> Bytes {
        let cell = self.parking.standing.as_ref().map(|s| s.cell.clone());
        cell.map_or_else(|| Bytes::from_static(b"{}"), |cell| self.waiting_header(&cell))
    }

    fn write_stderr(&mut self, header: &Bytes, text: &str) {
        let text = json!({"name": "stderr", "text": text});
        let message = self.author.publish("stream", header, &json!({}), &text);
        self.publish(message);
    }
}
