//! Two attempts of one cell never run at once: a cell with `%%retry` begins here once no earlier executor's process can
//! still run it (docs/replication.md, "A former attempt").
//!
//! An executor with such a cell in its process shows its office every two seconds, by an entry that changes nothing.
//! Without that it ends the process itself after [`ENDS_AFTER`]; the shell has the system end both supervisor and process
//! after [`ENDED_AFTER`], even if they stand still. The next executor hence waits for [`FORMER_RUNS`] at most. The seat
//! knows which former processes have ended; [`super::interrupts`] ends a wait.

use super::cells::{Cell, StageName};
use super::lease::Wait;
use super::{Core, Output, Phase, wording};
use bytes::Bytes;
use hop_log::Entry;
use hop_words::id::{CellId, Tenure};
use hop_words::time::{Span, Timestamp};
use serde_json::json;

/// Between two proofs of the office.
const SHOWS_EVERY: Span = Span::from_secs(2);

/// The greatest age of a proof when a cell begins: the next proof is on its way then.
const SHOWN_FOR: Span = Span::from_secs(3);

/// After so long without a proof, an executor ends the process that may run a cell with `%%retry`.
const ENDS_AFTER: Span = Span::from_secs(6);

/// After so long without a proof, the system ends the supervisor, and the process with it.
const ENDED_AFTER: Span = Span::from_secs(8);

/// The time after an election in which the former executor's process may still run. Its last proof is older than the
/// election: the rest over [`ENDED_AFTER`] is for clocks of different rates and for the end itself.
const FORMER_RUNS: Span = Span::from_secs(10);

/// Whether the process of an earlier executor may still run.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Former {
    #[default]
    Gone,
    MayRun {
        until: Timestamp,
        /// The seat was asked whether that process has ended.
        asked: bool,
    },
}

/// The proofs that this replica is in office.
#[derive(Debug, Default)]
struct Shown {
    /// The last time at which the replica is proven to have been in office.
    at: Option<Timestamp>,
    /// The proof on its way: its number, and the time of its proposal.
    proposed: Option<(u64, Timestamp)>,
    /// The number of the last proof.
    number: u64,
}

/// A cell with `%%retry` that must not begin yet.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) cell: CellId,
    pub(super) header: Bytes,
    pub(super) wait: Wait,
}

#[derive(Debug, Default)]
pub(super) struct Attempts {
    former: Former,
    shown: Shown,
    pub(super) waiting: Option<Waiting>,
    /// The time told to the shell, at which the system ends the process.
    pub(super) guarded: Option<Timestamp>,
    /// The process is being ended for lack of a proof.
    ending: bool,
}

impl Core {
    /// Another executor was in office before: its process may still run.
    pub(super) fn follows_another(&mut self) {
        self.attempts.former = Former::MayRun {
            until: self.now + FORMER_RUNS,
            asked: false,
        };
    }

    /// The seat knows that the processes of all earlier executors have ended.
    pub(super) fn former_gone(&mut self) {
        self.attempts.former = Former::Gone;
    }

    /// The group begins with this replica in office.
    pub(super) fn founded_in_office(&mut self) {
        self.attempts.shown.at = Some(self.now);
    }

    /// A state from elsewhere may hide the application of the proof on its way.
    pub(super) fn forget_proof(&mut self) {
        self.attempts.shown.proposed = None;
    }

    /// Whether an unapplied proof counts as an entry that the group doesn't take.
    pub(super) fn awaits_proof(&self) -> bool {
        self.attempts.shown.proposed.is_some()
    }

    /// Whether the next cell has to wait before it may begin, or ask for its lease.
    pub(super) fn attempt_waits(&mut self, id: &CellId) -> bool {
        let retried = self.cells.find(id).filter(|c| c.is_retried());
        let Some(header) = retried.map(|c| c.header.clone()) else {
            return false;
        };
        let Some(why) = self.why_attempt_waits() else {
            self.attempt_goes_on();
            return false;
        };
        let state = json!({"state": "retry", "reason": why});
        match &mut self.attempts.waiting {
            Some(waiting) if waiting.cell == *id => {
                if waiting.wait.state != state {
                    waiting.wait.state = state;
                    if waiting.wait.told {
                        self.tell_attempt_wait();
                    }
                }
            }
            _ => {
                self.attempts.waiting = Some(Waiting {
                    cell: id.clone(),
                    header,
                    wait: Wait::new(self.now, state),
                });
            }
        }
        true
    }

    fn why_attempt_waits(&mut self) -> Option<&'static str> {
        self.group()?;
        let age = self.attempts.shown.at.map(|at| self.now.since(at));
        if age.is_none_or(|age| age >= SHOWS_EVERY) {
            self.show_office();
        }
        if let Former::MayRun { until, asked } = &mut self.attempts.former
            && *until > self.now
        {
            if !std::mem::replace(asked, true) {
                self.out.push(Output::AskFormer);
            }
            return Some(wording::FORMER_ATTEMPT);
        }
        // Others may take the end of the keeper for the end of this process.
        let shown = self.identity.has_keeper && age.is_some_and(|age| age <= SHOWN_FOR);
        (!shown).then_some(wording::NO_MAJORITY)
    }

    /// Proposes the next proof, unless one is on its way.
    fn show_office(&mut self) {
        let (tenure, now) = (self.tenure(), self.now);
        let shown = &mut self.attempts.shown;
        if shown.proposed.is_none() {
            shown.number += 1;
            shown.proposed = Some((shown.number, now));
            self.out
                .push(Output::Propose(Entry::presence(tenure, shown.number)));
        }
    }

    /// A proof was applied: the replica was in office after its proposal, if the log took it for one of this tenure.
    pub(super) fn presence_applied(&mut self, (tenure, number): (Tenure, u64), taken: bool) {
        let own = tenure == self.tenure();
        let shown = &mut self.attempts.shown;
        // An earlier one, proposed again by the seat, shows nothing of the time since.
        let Some((_, at)) = shown.proposed.take_if(|(n, _)| *n == number) else {
            return;
        };
        if own && taken {
            shown.at = Some(at);
        }
    }

    /// Whether the process may run a cell that another executor would begin again.
    fn may_run_twice(&self) -> bool {
        let running = |c: &Cell| c.is_retried() && c.stage() == StageName::Running;
        self.group().is_some() && !matches!(self.phase, Phase::Over) && self.cells.iter().any(running)
    }

    /// Tells the shell when the system is to end the process. A cell is given to the process behind this word.
    pub(super) fn guard(&mut self) {
        let shown = self.attempts.shown.at.unwrap_or(self.now);
        let at = self.may_run_twice().then_some(shown + ENDED_AFTER);
        self.attempts.ending &= at.is_some();
        if self.attempts.guarded != at {
            self.attempts.guarded = at;
            self.out.push(Output::Guard(at));
        }
    }

    /// Nobody elects or reports through the seat's keeper any more.
    pub(super) fn keeper_gone(&mut self) {
        self.identity.has_keeper = false;
        if self.may_run_twice() {
            self.end_attempt();
        }
    }

    fn end_attempt(&mut self) {
        if !std::mem::replace(&mut self.attempts.ending, true) {
            self.gpu.doomed = Some(wording::OUT_OF_OFFICE.to_owned());
            self.out.push(Output::KillKernel);
        }
    }

    /// When something is due here.
    pub(super) fn attempts_due(&self) -> Option<Timestamp> {
        let attempts = &self.attempts;
        let former = match (&attempts.waiting, attempts.former) {
            (Some(_), Former::MayRun { until, .. }) => Some(until),
            _ => None,
        };
        let tell = attempts.waiting.as_ref().and_then(|w| w.wait.tell_at());
        let (shown, runs) = (attempts.shown.at, self.may_run_twice());
        let needed = (runs || attempts.waiting.is_some()) && attempts.shown.proposed.is_none();
        let shows = shown.filter(|_| needed);
        let ends = shown.filter(|_| runs && !attempts.ending);
        [
            former,
            tell,
            shows.map(|at| at + SHOWS_EVERY),
            ends.map(|at| at + ENDS_AFTER),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    pub(super) fn attempts_tick(&mut self) {
        if let Former::MayRun { until, .. } = self.attempts.former
            && until <= self.now
        {
            self.attempts.former = Former::Gone;
        }
        let tells = self.attempts.waiting.as_ref().and_then(|w| w.wait.tell_at());
        if tells.is_some_and(|at| at <= self.now) {
            self.tell_attempt_wait();
        }
        let Some(shown) = self.attempts.shown.at else {
            return;
        };
        let (age, runs) = (self.now.since(shown), self.may_run_twice());
        if runs && age >= ENDS_AFTER {
            self.end_attempt();
        }
        if (runs || self.attempts.waiting.is_some()) && age >= SHOWS_EVERY {
            self.show_office();
        }
    }

    // The wait, as users read it.

    /// The header of the cell whose wait was told.
    pub(super) fn told_attempt_wait(&self) -> Option<&Bytes> {
        let told = self.attempts.waiting.as_ref().filter(|w| w.wait.told);
        told.map(|w| &w.header)
    }

    /// Another request's end made the kernel look idle.
    pub(super) fn tell_attempt_wait_again(&mut self) {
        if self.told_attempt_wait().is_some() {
            self.tell_attempt_wait();
        }
    }

    fn tell_attempt_wait(&mut self) {
        if let Some(waiting) = &mut self.attempts.waiting {
            waiting.wait.told = true;
            let (header, notice) = (waiting.header.clone(), self.notice());
            self.publish_state(&header, &notice);
        }
    }

    /// The cell waits no longer: it goes on, or is answered.
    fn attempt_goes_on(&mut self) {
        let Some(waiting) = self.attempts.waiting.take() else {
            return;
        };
        self.hide_text(&waiting.cell);
        if waiting.wait.told && self.cells.find(&waiting.cell).is_some() {
            let notice = self.notice();
            self.publish_state(&waiting.header, &notice);
        }
    }

    /// Forgets a wait whose cell is gone, or waits for something else.
    pub(super) fn settle_attempts(&mut self) {
        let waits = |w: &Waiting| {
            let stage = self.cells.find(&w.cell).map(Cell::stage);
            matches!(stage, Some(StageName::Held | StageName::Seeking)) && matches!(self.phase, Phase::Up)
        };
        if self.attempts.waiting.as_ref().is_some_and(|w| !waits(w)) {
            self.attempt_goes_on();
        }
        self.guard();
    }
}
