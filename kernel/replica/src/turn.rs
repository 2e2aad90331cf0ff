//! Whose turn it is: which execute requests go to the kernel now, which wait for a lease, and what becomes of those
//! behind them. Pure: `T` is whatever the caller keeps of a request.
//!
//! Requests run in the order in which they came. Those without a need go straight to the kernel, which has a queue of
//! its own, unless one with a need is waiting or running before them. One with a need asks for its lease when all before
//! it are answered, so that no GPU is held while something else runs.

use hop_core::id::{CellId, LeaseId};
use hop_core::need::Need;
use hop_core::time::Timestamp;
use std::collections::VecDeque;

/// How the kernel answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Ok,
    Error,
    Aborted,
}

/// Why a request is answered without having been run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// One before it failed, and it doesn't run then (`stop_on_error`).
    Aborted,
    /// The user interrupted it while it waited.
    Interrupted,
    /// Its need can't be read.
    Usage(String),
    /// The scheduler will not grant it.
    Refused(String),
}

#[derive(Debug, PartialEq, Eq)]
pub enum Output<T> {
    Forward(CellId, T),
    /// Answer it in the kernel's stead.
    Settle(CellId, T, Verdict),
    Submit(CellId, Need),
    /// The cell waits no longer.
    Withdraw(CellId),
    /// A cell that had a lease is over.
    Ended {
        cell: CellId,
        lease: LeaseId,
        started: Timestamp,
        answer: Answer,
    },
}

#[derive(Debug)]
struct Held<T> {
    cell: CellId,
    need: Result<Need, String>,
    stop_on_error: bool,
    request: T,
}

#[derive(Debug)]
struct Sent {
    cell: CellId,
    on: On,
    stop_on_error: bool,
}

/// What a request that the kernel has runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum On {
    Nothing,
    /// Since then.
    Lease(LeaseId, Timestamp),
    /// It stands still in its middle, until it has another lease.
    Hold,
}

#[derive(Debug)]
pub struct Turn<T> {
    sent: VecDeque<Sent>,
    held: VecDeque<Held<T>>,
    /// The first of `held` has been submitted.
    asked: bool,
}

impl<T> Default for Turn<T> {
    fn default() -> Self {
        Self {
            sent: VecDeque::new(),
            held: VecDeque::new(),
            asked: false,
        }
    }
}

impl<T> Turn<T> {
    /// An execute request came.
    pub fn arrive(
        &mut self,
        cell: CellId,
        need: Result<Need, String>,
        stop_on_error: bool,
        request: T,
    ) -> Vec<Output<T>> {
        self.held.push_back(Held {
            cell,
            need,
            stop_on_error,
            request,
        });
        let mut out = Vec::new();
        self.advance(&mut out);
        out
    }

    /// The kernel answered a request that it had been sent.
    pub fn replied(&mut self, cell: &CellId, answer: Answer) -> Vec<Output<T>> {
        let mut out = Vec::new();
        let Some(at) = self.sent.iter().position(|s| s.cell == *cell) else {
            return out;
        };
        let sent = self.sent.remove(at).expect("the position was just found");
        match sent.on {
            On::Nothing => {}
            On::Lease(lease, started) => out.push(Output::Ended {
                cell: sent.cell,
                lease,
                started,
                answer,
            }),
            On::Hold => out.push(Output::Withdraw(sent.cell)),
        }
        if answer == Answer::Error && sent.stop_on_error {
            self.abort_held(&mut out);
        }
        self.advance(&mut out);
        out
    }

    /// The waiting cell has its lease.
    pub fn granted(&mut self, cell: &CellId, lease: LeaseId, now: Timestamp) -> Vec<Output<T>> {
        let Some(held) = self.take_asked(cell) else {
            return Vec::new();
        };
        self.sent.push_back(Sent {
            cell: held.cell.clone(),
            on: On::Lease(lease, now),
            stop_on_error: held.stop_on_error,
        });
        vec![Output::Forward(held.cell, held.request)]
    }

    /// The cell on this lease stands still in its middle: it has no lease any more. Returns since when it had.
    pub fn stopped(&mut self, lease: LeaseId) -> Option<Timestamp> {
        self.sent.iter_mut().find_map(|s| match s.on {
            On::Lease(l, since) if l == lease => {
                s.on = On::Hold;
                Some(since)
            }
            _ => None,
        })
    }

    /// The cell that stands still has another lease. Returns whether there is such a cell.
    pub fn resumed(&mut self, cell: &CellId, lease: LeaseId, now: Timestamp) -> bool {
        let mut standing = self.sent.iter_mut().filter(|s| s.on == On::Hold);
        let found = standing.find(|s| s.cell == *cell);
        found.map(|s| s.on = On::Lease(lease, now)).is_some()
    }

    /// The waiting cell gets no lease.
    pub fn refused(&mut self, cell: &CellId, reason: String) -> Vec<Output<T>> {
        let mut out = Vec::new();
        if let Some(held) = self.take_asked(cell) {
            self.fail(held, Verdict::Refused(reason), &mut out);
            self.advance(&mut out);
        }
        out
    }

    /// The user interrupted the kernel. What the kernel runs is its own matter; what waits for a lease is ours.
    pub fn interrupted(&mut self) -> Vec<Output<T>> {
        let mut out = Vec::new();
        if let Some(cell) = self.waiting().map(|(cell, _)| cell.clone())
            && let Some(held) = self.take_asked(&cell)
        {
            out.push(Output::Withdraw(cell));
            self.fail(held, Verdict::Interrupted, &mut out);
            self.advance(&mut out);
        }
        out
    }

    /// The cell that waits for a lease, with its need.
    pub fn waiting(&self) -> Option<(&CellId, &Need)> {
        let first = self.held.front().filter(|_| self.asked)?;
        Some((&first.cell, first.need.as_ref().ok()?))
    }

    /// The cell that runs on this lease.
    pub fn running_on(&self, lease: LeaseId) -> Option<&CellId> {
        self.sent
            .iter()
            .find(|s| matches!(s.on, On::Lease(l, _) if l == lease))
            .map(|s| &s.cell)
    }

    /// Since when a cell runs on this lease.
    pub fn since(&self, lease: LeaseId) -> Option<Timestamp> {
        self.sent.iter().find_map(|s| match s.on {
            On::Lease(l, since) if l == lease => Some(since),
            _ => None,
        })
    }

    /// The lease that a cell runs on, with the cell.
    pub fn lease(&self) -> Option<(LeaseId, &CellId)> {
        self.sent.iter().find_map(|s| match s.on {
            On::Lease(lease, _) => Some((lease, &s.cell)),
            On::Nothing | On::Hold => None,
        })
    }

    /// Nothing else may run beside what runs now.
    fn is_taken(&self) -> bool {
        self.sent.iter().any(|s| s.on != On::Nothing)
    }

    /// The cell that the kernel runs now.
    pub fn running(&self) -> Option<&CellId> {
        self.sent.front().map(|s| &s.cell)
    }

    fn take_asked(&mut self, cell: &CellId) -> Option<Held<T>> {
        if !self.asked || self.held.front().is_none_or(|h| h.cell != *cell) {
            return None;
        }
        self.asked = false;
        self.held.pop_front()
    }

    fn advance(&mut self, out: &mut Vec<Output<T>>) {
        while !self.asked {
            let Some(first) = self.held.front() else {
                return;
            };
            let plain = first.need.as_ref().is_ok_and(Need::is_none);
            let free = if plain {
                !self.is_taken()
            } else {
                self.sent.is_empty()
            };
            if !free {
                return;
            }
            match &first.need {
                Ok(need) if !plain => {
                    out.push(Output::Submit(first.cell.clone(), need.clone()));
                    self.asked = true;
                }
                _ => self.dispose(out),
            }
        }
    }

    /// The first of the held ones needs no lease: it goes to the kernel, or it is wrong.
    fn dispose(&mut self, out: &mut Vec<Output<T>>) {
        let Some(held) = self.held.pop_front() else {
            return;
        };
        match &held.need {
            Err(problem) => {
                let verdict = Verdict::Usage(problem.clone());
                self.fail(held, verdict, out);
            }
            Ok(_) => {
                self.sent.push_back(Sent {
                    cell: held.cell.clone(),
                    on: On::Nothing,
                    stop_on_error: held.stop_on_error,
                });
                out.push(Output::Forward(held.cell, held.request));
            }
        }
    }

    fn fail(&mut self, held: Held<T>, verdict: Verdict, out: &mut Vec<Output<T>>) {
        let stop = held.stop_on_error;
        out.push(Output::Settle(held.cell, held.request, verdict));
        if stop {
            self.abort_held(out);
        }
    }

    fn abort_held(&mut self, out: &mut Vec<Output<T>>) {
        for held in self.held.drain(..) {
            if self.asked {
                self.asked = false;
                out.push(Output::Withdraw(held.cell.clone()));
            }
            out.push(Output::Settle(held.cell, held.request, Verdict::Aborted));
        }
    }

    /// What must hold after every call.
    pub fn sanity_check(&self) {
        assert!(
            !self.asked || self.waiting().is_some(),
            "only a held cell with a need can have been submitted"
        );
        assert!(
            !self.asked || self.sent.is_empty(),
            "a lease is asked for when nothing runs"
        );
        let leases = self.sent.iter().filter(|s| s.on != On::Nothing).count();
        assert!(
            leases <= 1 && (leases == 0 || self.sent.len() == 1),
            "a cell with a lease runs alone"
        );
        if let Some(first) = self.held.front().filter(|_| !self.asked) {
            assert!(!self.sent.is_empty(), "{} waits for nothing", first.cell);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Output::*;
    use super::*;

    const NONE: fn() -> Result<Need, String> = || Ok(Need::default());
    const GPU: fn() -> Result<Need, String> = || Ok(Need::gpus(1));

    fn id(cell: &str) -> CellId {
        cell.into()
    }

    fn arrive(turn: &mut Turn<()>, cell: &str, need: Result<Need, String>) -> Vec<Output<()>> {
        let out = turn.arrive(id(cell), need, true, ());
        turn.sanity_check();
        out
    }

    fn ended(cell: &str, answer: Answer) -> Output<()> {
        let (cell, lease, started) = (id(cell), LeaseId(1), Timestamp(5));
        Ended {
            cell,
            lease,
            started,
            answer,
        }
    }

    #[test]
    fn cells_without_need_go_straight_through() {
        let mut turn = Turn::default();
        for cell in ["a", "b"] {
            assert_eq!(arrive(&mut turn, cell, NONE()), [Forward(id(cell), ())]);
        }
        assert_eq!(
            turn.replied(&id("a"), Answer::Error),
            [],
            "what the kernel has it aborts itself"
        );
        assert_eq!(turn.replied(&id("b"), Answer::Aborted), []);
    }

    #[test]
    fn a_lease_is_asked_for_when_nothing_runs_before_and_later_cells_wait_for_its_cell() {
        let mut turn = Turn::default();
        arrive(&mut turn, "a", NONE());
        assert_eq!(arrive(&mut turn, "g", GPU()), []);
        assert_eq!(arrive(&mut turn, "b", NONE()), []);
        assert_eq!(
            turn.replied(&id("a"), Answer::Ok),
            [Submit(id("g"), Need::gpus(1))]
        );
        assert_eq!(
            turn.granted(&id("x"), LeaseId(9), Timestamp(5)),
            [],
            "not one that waits"
        );
        assert_eq!(
            turn.granted(&id("g"), LeaseId(1), Timestamp(5)),
            [Forward(id("g"), ())]
        );
        turn.sanity_check();
        assert_eq!(arrive(&mut turn, "c", NONE()), []);
        let out = turn.replied(&id("g"), Answer::Ok);
        assert_eq!(
            out,
            [ended("g", Answer::Ok), Forward(id("b"), ()), Forward(id("c"), ())]
        );
        turn.sanity_check();
    }

    #[test]
    fn a_cell_that_stands_still_keeps_its_place_and_goes_on_with_another_lease() {
        let mut turn = Turn::default();
        arrive(&mut turn, "g", GPU());
        turn.granted(&id("g"), LeaseId(1), Timestamp(5));
        assert_eq!(turn.stopped(LeaseId(9)), None);
        assert_eq!(turn.stopped(LeaseId(1)), Some(Timestamp(5)));
        assert_eq!((turn.lease(), turn.running()), (None, Some(&id("g"))));
        for cell in ["b", "h"] {
            let need = if cell == "b" { NONE() } else { GPU() };
            assert_eq!(arrive(&mut turn, cell, need), []);
        }
        assert_eq!(turn.interrupted(), [], "the kernel's matter");
        assert!(!turn.resumed(&id("b"), LeaseId(2), Timestamp(7)));
        assert!(turn.resumed(&id("g"), LeaseId(2), Timestamp(7)));
        turn.sanity_check();
        assert_eq!(turn.running_on(LeaseId(2)), Some(&id("g")));
        let out = turn.replied(&id("g"), Answer::Ok);
        let ended = Ended {
            cell: id("g"),
            lease: LeaseId(2),
            started: Timestamp(7),
            answer: Answer::Ok,
        };
        assert_eq!(out, [ended, Forward(id("b"), ())]);
    }

    #[test]
    fn a_cell_that_ends_while_it_stands_still_waits_no_longer() {
        let mut turn = Turn::default();
        arrive(&mut turn, "g", GPU());
        turn.granted(&id("g"), LeaseId(1), Timestamp(5));
        turn.stopped(LeaseId(1));
        arrive(&mut turn, "b", NONE());
        let aborted = Settle(id("b"), (), Verdict::Aborted);
        assert_eq!(
            turn.replied(&id("g"), Answer::Error),
            [Withdraw(id("g")), aborted]
        );
        turn.sanity_check();
        assert!(!turn.resumed(&id("g"), LeaseId(2), Timestamp(7)));
    }

    #[test]
    fn an_error_aborts_what_waits_behind_it() {
        let mut turn = Turn::default();
        arrive(&mut turn, "g", GPU());
        turn.granted(&id("g"), LeaseId(1), Timestamp(5));
        arrive(&mut turn, "b", NONE());
        arrive(&mut turn, "h", GPU());
        let out = turn.replied(&id("g"), Answer::Error);
        let aborted = |cell| Settle(id(cell), (), Verdict::Aborted);
        assert_eq!(out, [ended("g", Answer::Error), aborted("b"), aborted("h")]);
        assert_eq!(arrive(&mut turn, "later", NONE()), [Forward(id("later"), ())]);
    }

    #[test]
    fn without_stop_on_error_the_next_one_runs() {
        let mut turn = Turn::default();
        turn.arrive(id("a"), NONE(), false, ());
        arrive(&mut turn, "g", GPU());
        assert_eq!(
            turn.replied(&id("a"), Answer::Error),
            [Submit(id("g"), Need::gpus(1))]
        );
    }

    #[test]
    fn an_interrupt_cancels_the_cell_that_waits_and_what_is_behind_it() {
        let mut turn = Turn::default();
        assert_eq!(turn.interrupted(), []);
        arrive(&mut turn, "g", GPU());
        arrive(&mut turn, "b", NONE());
        let out = turn.interrupted();
        let answer = |cell, verdict| Settle(id(cell), (), verdict);
        let expected = [
            Withdraw(id("g")),
            answer("g", Verdict::Interrupted),
            answer("b", Verdict::Aborted),
        ];
        assert_eq!(out, expected);
        turn.sanity_check();
        assert_eq!(turn.granted(&id("g"), LeaseId(1), Timestamp(5)), [], "too late");
    }

    #[test]
    fn a_bad_need_is_told_in_its_turn() {
        let mut turn = Turn::default();
        arrive(&mut turn, "a", NONE());
        assert_eq!(arrive(&mut turn, "bad", Err("no".into())), []);
        let verdict = Verdict::Usage("no".into());
        assert_eq!(
            turn.replied(&id("a"), Answer::Ok),
            [Settle(id("bad"), (), verdict)]
        );
        turn.sanity_check();
    }

    #[test]
    fn a_refusal_is_an_error_of_that_cell() {
        let mut turn = Turn::default();
        arrive(&mut turn, "g", GPU());
        arrive(&mut turn, "b", NONE());
        let out = turn.refused(&id("g"), "too many".into());
        let expected = [
            Settle(id("g"), (), Verdict::Refused("too many".into())),
            Settle(id("b"), (), Verdict::Aborted),
        ];
        assert_eq!(out, expected);
        turn.sanity_check();
    }
}
