//! Leases with a slow start in Slurm: their users read of the delay before anybody knows the cause.

use super::{Due, Scheduler};
use hop_api::message::Event;
use hop_core::reason::spell;
use hop_words::id::LeaseId;
use hop_words::time::Span;

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
        let silent = self.news.silent_for(now).filter(|silent| *silent >= SLOW);
        let held_up = match silent.filter(|_| !self.news.stepmgr) {
            Some(silent) => format!("Slurm's controller has not answered for {}", spell(silent)),
            None => format!("Slurm has not done so for {}", spell(now.since(view.since))),
        };
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
}
