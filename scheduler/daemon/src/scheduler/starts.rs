//! Leases with a slow start in Slurm: their users read of the delay before anybody knows the cause.

use super::{Due, Scheduler};
use hop_api::message::{Event, QueueRow};
use hop_words::id::LeaseId;
use hop_words::time::{Span, spell};

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
        if self.news.is_away() && !self.news.stepmgr {
            // The core has told the reason for the wait.
            return;
        }
        let (_, held_up) = self.held_up(now.since(view.since));
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

    /// Why a lease has not started in this time: a word for scripts, and a clause.
    fn held_up(&self, time: Span) -> (&'static str, String) {
        // With step managers leases start without slurmctld.
        if !self.news.stepmgr {
            if self.news.is_away() {
                return ("SlurmAway", "Slurm's controller does not answer".to_owned());
            }
            let silent = self.news.silent_for(self.clock.now());
            if let Some(silent) = silent.filter(|silent| *silent >= SLOW) {
                let clause = format!("Slurm's controller has not answered for {}", spell(silent));
                return ("SlurmAway", clause);
            }
        }
        (
            "LeaseStarting",
            format!("Slurm has not done so for {}", spell(time)),
        )
    }

    /// Gives the rows of leases that are slow to start the reason that their users read.
    pub(super) fn say_what_starts_wait_for(&self, rows: &mut [QueueRow]) {
        let slow = |row: &&mut QueueRow| row.state == "STARTING" && row.why.is_empty() && row.time >= SLOW;
        for row in rows.iter_mut().filter(slow) {
            let (why, held_up) = self.held_up(row.time);
            row.why = why.to_owned();
            row.reason = format!("its lease is being started, but {held_up}");
        }
    }
}
