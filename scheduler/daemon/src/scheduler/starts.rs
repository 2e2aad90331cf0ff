//! Leases with a slow start in Slurm: their users read of the delay before anybody knows the cause.

use super::{Due, Scheduler};
use hop_api::message::{Event, QueueRow};
use hop_core::LeaseView;
use hop_words::id::LeaseId;
use hop_words::time::spell;
use hop_words::time::{Span, Timestamp};

/// Time of a start after which the delay is told. Slurm needs 50 ms without a hold-up.
const SLOW: Span = Span::from_secs(2);
/// Pause until the delay is told again, with the time passed.
const AGAIN: Span = Span::from_secs(5);

impl Scheduler {
    /// The lease's start was ordered.
    pub(super) fn watch_start(&mut self, lease: LeaseId) {
        self.due.insert((self.clock.now() + SLOW, Due::Start(lease)));
    }

    /// Tells the user of a lease that has not started yet.
    pub(super) fn look_at_start(&mut self, lease: LeaseId) {
        let starting = self.core.lease(lease).filter(|l| l.state == "STARTING");
        let Some((view, cell)) = starting.and_then(|l| Some((l.clone(), l.cell?))) else {
            return;
        };
        let now = self.clock.now();
        self.due.insert((now + AGAIN, Due::Start(lease)));
        if self.news.is_away() {
            // The core has told the reason for the wait.
            return;
        }
        let (_, held_up) = self.held_up(&view, now);
        let event = Event::Queued {
            kernel: view.kernel.clone(),
            cell,
            position: 1,
            reason: format!("its lease on {} is being started, but {held_up}", view.node),
            estimate: None,
            range: None,
        };
        self.connections.tell(&view.kernel, &event);
    }

    /// Why a lease has not started yet: a word for scripts, and a clause.
    fn held_up(&self, view: &LeaseView, now: Timestamp) -> (&'static str, String) {
        let silent = self.news.silent_for(now).filter(|silent| *silent >= SLOW);
        match silent.filter(|_| !self.news.stepmgr) {
            _ if self.news.is_away() => ("SlurmAway", "Slurm's controller does not answer".to_owned()),
            Some(silent) => (
                "SlurmAway",
                format!("Slurm's controller has not answered for {}", spell(silent)),
            ),
            None => (
                "LeaseStarting",
                format!("Slurm has not done so for {}", spell(now.since(view.since))),
            ),
        }
    }

    /// Gives the rows of leases that are slow to start the reason that their users read.
    pub(super) fn say_what_starts_wait_for(&self, rows: &mut [QueueRow]) {
        let now = self.clock.now();
        let slow = |row: &&mut QueueRow| row.state == "STARTING" && row.why.is_empty() && row.time >= SLOW;
        for row in rows.iter_mut().filter(slow) {
            let Some(view) = row.lease.and_then(|lease| self.core.lease(lease)) else {
                continue;
            };
            let (why, held_up) = self.held_up(&view, now);
            row.why = why.to_owned();
            row.reason = format!("its lease is being started, but {held_up}");
        }
    }
}
