//! Leases and pilots that don't start: the users of waiting cells read of the delay, and of Slurm's reason; `hop info`
//! tells of a pilot that starts no lease.

use super::{Due, Scheduler};
use crate::pilot_jobs::Failure;
use hop_api::message::{Event, KernelItem, QueueRow, Told};
use hop_core::{CellView, Output, PilotView};
use hop_words::explain::Item;
use hop_words::id::{JobId, LeaseId, PoolName};
use hop_words::reason::Reason;
use hop_words::time::{Span, spell};
use std::collections::{BTreeMap, BTreeSet};

/// Time of a start after which the delay is told. Slurm needs 50 ms without a hold-up.
const SLOW: Span = Span::from_secs(2);
/// Pause until the delay is told again, with the time passed.
const AGAIN: Span = Span::from_secs(5);

/// Leases that did not start on each pilot, in a row.
#[derive(Debug, Default)]
pub(super) struct FailedStarts {
    pilots: BTreeMap<JobId, (u32, String)>,
}

impl FailedStarts {
    pub(super) fn failed(&mut self, pilot: JobId, why: &str) {
        let (count, last) = self.pilots.entry(pilot).or_default();
        *count += 1;
        why.clone_into(last);
    }

    pub(super) fn started(&mut self, pilot: JobId) {
        self.pilots.remove(&pilot);
    }

    /// Forgets pilots that are gone.
    pub(super) fn keep(&mut self, is_live: impl Fn(JobId) -> bool) {
        self.pilots.retain(|pilot, _| is_live(*pilot));
    }

    /// The pilot's failures since its last lease that started, as a clause.
    pub(super) fn told(&self, pilot: JobId) -> Option<String> {
        Some(match self.pilots.get(&pilot)? {
            (1, why) => format!("its last lease did not start: {why}"),
            (count, why) => format!("its last {count} leases did not start: {why}"),
        })
    }
}

impl Scheduler {
    /// The agent reports that a lease did not start. A lease that was given up meanwhile is nobody's failure.
    pub(super) fn start_failed(&mut self, pilot: JobId, lease: LeaseId, why: &str) {
        if self.core.lease(lease).is_some_and(|l| l.state == "STARTING") {
            let live = self.live_pilots();
            self.failed_starts.keep(|pilot| live.contains(&pilot));
            self.failed_starts.failed(pilot, why);
        }
    }

    /// Why a cell waits, with Slurm's word against the job that the cell waits for.
    pub(super) fn worded(&self, reason: &Reason) -> String {
        if let Some(why) = self.rejection(reason) {
            return format!("{reason}; its submission failed: {why}");
        }
        if let Some(why) = self.delay(reason) {
            return format!("{reason}; {why}");
        }
        let Reason::NoPilot { pool, .. } = reason else {
            return reason.to_string();
        };
        let refused = self.pilot_jobs.refusal(pool);
        let refused = refused.map(|why| format!("the pool is not lent: {why}"));
        match refused.or_else(|| self.occupied(pool)) {
            Some(why) => format!("{reason}; {why}"),
            None => reason.to_string(),
        }
    }

    /// Nodes of the pool that still have pilots of other pools, in words. The configuration has given them to this one.
    pub(super) fn occupied(&self, pool: &PoolName) -> Option<String> {
        let is_here = |p: &PilotView| p.pool != *pool && self.pilot_jobs.pool_of(&p.node) == Some(pool);
        let all: Vec<PilotView> = self.core.pilots().into_iter().filter(is_here).collect();
        let first = all.first()?;
        let (node, former, job) = (&first.node, &first.pool, first.pilot);
        let more = match all.len() - 1 {
            0 => String::new(),
            more => format!(", and so have {more} other jobs"),
        };
        Some(format!(
            "node {node} has GPUs in job {job} of pool {former}, its former pool, until the leases there end{more}"
        ))
    }

    /// Adds Slurm's word against the job, or for its delay, to the reason of the wait.
    pub(super) fn explain_slurms_word(&self, items: &mut Vec<Told>) {
        let slurms_word = |told: &Told| match told {
            Told::Cell(Item::Waits(reason)) => {
                let rejection = self.rejection(reason).map(str::to_owned);
                let unsubmitted = rejection.map(|why| KernelItem::Unsubmitted { why });
                unsubmitted.or_else(|| self.delay(reason).map(|why| KernelItem::Unstarted { why }))
            }
            _ => None,
        };
        let found = items
            .iter()
            .enumerate()
            .find_map(|(i, told)| Some((i, slurms_word(told)?)));
        if let Some((i, item)) = found {
            items.insert(i + 1, item.into());
        }
    }

    fn rejection(&self, reason: &Reason) -> Option<&str> {
        match reason {
            Reason::NoPilot { pool, coming: true } => self.pilot_jobs.rejection(pool),
            Reason::PilotLate { node } => self.pilot_jobs.rejection_on(node),
            _ => None,
        }
    }

    fn delay(&self, reason: &Reason) -> Option<String> {
        match reason {
            Reason::NoPilot { pool, coming: true } => self.pilot_jobs.delay(pool),
            Reason::PilotLate { node } => self.pilot_jobs.delay_on(node),
            _ => None,
        }
    }

    /// Slurm was looked at. Cells that wait for a pool's pilots are told if Slurm's reason has changed.
    pub(super) fn tell_of_delays(&mut self, before: &BTreeMap<PoolName, String>) {
        let now = self.pilot_jobs.delays();
        let pools: BTreeSet<&PoolName> = before.keys().chain(now.keys()).collect();
        for pool in pools.into_iter().filter(|p| before.get(*p) != now.get(*p)) {
            self.tell_those_who_wait_for_pilots(pool);
        }
    }

    /// sbatch answered. Cells that wait for the pool's pilots are told if Slurm's word has changed.
    pub(super) fn submitted(&mut self, ticket: u64, answer: Result<JobId, Failure>) {
        let now = self.clock.now();
        let Some(pool) = self.pilot_jobs.pool_of_ticket(ticket).cloned() else {
            let acts = self.pilot_jobs.submitted(ticket, answer, now);
            return self.act(acts);
        };
        let before = self.pilot_jobs.rejection(&pool).map(str::to_owned);
        let acts = self.pilot_jobs.submitted(ticket, answer, now);
        let has_changed = self.pilot_jobs.rejection(&pool) != before.as_deref();
        self.act(acts);
        if has_changed {
            self.tell_those_who_wait_for_pilots(&pool);
        }
    }

    fn tell_those_who_wait_for_pilots(&mut self, pool: &PoolName) {
        let waits = |c: &CellView| {
            let for_pilot = matches!(
                c.reason,
                Reason::NoPilot { coming: true, .. } | Reason::PilotLate { .. }
            );
            for_pilot && c.pool == *pool
        };
        for cell in self.core.waiting().into_iter().filter(waits) {
            self.for_kernels(Output::Queued {
                kernel: cell.kernel,
                cell: cell.cell,
                position: cell.position,
                reason: cell.reason,
                estimate: cell.estimate,
            });
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_starts_count_until_a_lease_starts() {
        let mut failed = FailedStarts::default();
        let pilot = JobId(7);
        assert_eq!(failed.told(pilot), None);
        failed.failed(pilot, "no room");
        assert_eq!(
            failed.told(pilot).unwrap(),
            "its last lease did not start: no room"
        );
        failed.failed(pilot, "no plugin");
        failed.failed(JobId(8), "no room");
        assert_eq!(
            failed.told(pilot).unwrap(),
            "its last 2 leases did not start: no plugin"
        );
        failed.keep(|known| known == pilot);
        assert_eq!(failed.told(JobId(8)), None);
        failed.started(pilot);
        assert_eq!(failed.told(pilot), None);
    }
}
