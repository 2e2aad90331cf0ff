//! The end of this replica: its seat ends, or the kernel moves or hibernates. Before the end the state is captured once
//! more.

mod staying;

use super::durable::{Awaiting, Durable, Farewell, Leaving, Talk};
use super::{Core, Output, Phase, wording};
use bytes::Bytes;
use hop_api::message::Request as ToHopd;
use hop_log::Act;
use hop_protocol::jupyter::Channel;
use hop_protocol::message::Note;
use hop_words::time::{Span, Timestamp};
use hop_zmtp::Message;
use serde_json::{Value, json};

/// Time for the running cell of a kernel that hibernates, and then for the last capture. Fronts and provisioners wait
/// for the kernel's end longer than both.
const LAST_CELL: Span = Span::from_secs(15);
const LAST_CAPTURE: Span = Span::from_secs(20);

/// The longest time for which an ending seat holds out ([`crate::seat`]), and the part needed for leaving.
const SEAT_HOLDS: Span = Span::from_secs(25);
const LEAVING: Span = Span::from_secs(1);

/// The part of a seat's last seconds that is kept for the last capture.
const KEPT_FOR_CAPTURE: Span = Span::from_secs(10);

impl Core {
    pub(super) fn is_leaving(&self) -> bool {
        self.durable.as_ref().is_some_and(Durable::is_leaving)
    }

    /// The seat ends. The running cell is given as long as Slurm's grace allows, and the state is captured once more.
    pub(super) fn leave_seat(&mut self, reason: String, grace: Span) {
        let (for_cell, for_all) = shares(grace);
        let (until, by) = (self.now + for_cell, Some(self.now + for_all));
        if self.durable.as_ref().is_some_and(|d| d.leaving.is_none()) {
            return self.bid_farewell(Farewell::Leave(reason), Some(until), by);
        }
        if let Some(leaving) = self.durable.as_mut().and_then(|d| d.leaving.as_mut()) {
            leaving.in_haste = true;
            leaving.by = leaving.by.or(by);
            if !leaving.flushed {
                leaving.until = Some(leaving.until.map_or(until, |at| at.min(until)));
            }
        }
    }

    /// Nobody uses the kernel any more: it hibernates with what can be saved.
    pub(super) fn sleep_as_an_orphan(&mut self, reason: String) {
        self.give_up_move("the kernel hibernates");
        self.say_farewell(Farewell::Sleep(reason.clone()));
        if let Some(leaving) = self.durable.as_mut().and_then(|d| d.leaving.as_mut()) {
            leaving.in_haste = true;
            // Nobody would start the kernel in another seat.
            if matches!(leaving.farewell, Farewell::Leave(_)) && !leaving.handed_over {
                leaving.farewell = Farewell::Sleep(reason);
            }
        }
    }

    /// `hopd` wants the kernel saved and ended.
    pub(super) fn asked_to_sleep(&mut self, reason: String) {
        let moves = self.durable.as_ref().is_some_and(|d| d.moving.is_some());
        let waits = self.cells.iter().next().is_some();
        if !waits && !moves {
            if self.waits_for_store(Awaiting::Sleep(reason.clone())) {
                return;
            }
            if self.comes_back() {
                return self.say_farewell(Farewell::Sleep(reason));
            }
        }
        let reason = match (waits, moves) {
            (true, _) => "a cell of it runs or waits".to_owned(),
            (false, true) => "it is being moved".to_owned(),
            (false, false) => "its state is not kept".to_owned(),
        };
        self.refuse_to_sleep(reason);
    }

    pub(super) fn refuse_to_sleep(&mut self, reason: String) {
        let (kernel, tenure) = self.office();
        self.tell_hopd(ToHopd::HibernateRefused {
            kernel,
            tenure,
            reason,
        });
    }

    pub(super) fn say_farewell(&mut self, farewell: Farewell) {
        let until = match farewell {
            Farewell::Move(_) => None,
            Farewell::Leave(_) | Farewell::Sleep(_) => Some(self.now + LAST_CELL),
        };
        self.bid_farewell(farewell, until, None);
    }

    /// Leaves once no cell runs. The running cell is waited for until `until`; `None` means for ever.
    pub(super) fn bid_farewell(
        &mut self,
        farewell: Farewell,
        until: Option<Timestamp>,
        by: Option<Timestamp>,
    ) {
        let in_haste = matches!(farewell, Farewell::Leave(_));
        if let Some(durable) = &mut self.durable
            && durable.leaving.is_none()
        {
            durable.leaving = Some(Leaving {
                farewell,
                until,
                in_haste,
                by,
                flushed: false,
                handed_over: false,
            });
        }
        self.leave_if_idle();
    }

    /// Whether no cell holds up the last capture.
    fn is_idle(&self) -> bool {
        !self.cells.is_any_with_kernel() && !self.runs_first()
    }

    /// Captures for the last time once no cell runs. A broken store is tried before.
    pub(super) fn leave_if_idle(&mut self) {
        if self.leaving().is_none_or(|l| l.flushed) || self.try_store() {
            return;
        }
        let (now, idle) = (self.now, self.is_idle());
        let Some(durable) = &mut self.durable else {
            return;
        };
        let Some(leaving) = &mut durable.leaving else {
            return;
        };
        if durable.talk == Talk::Captures && idle {
            let captured = now + LAST_CAPTURE;
            leaving.until = Some(leaving.by.map_or(captured, |by| by.min(captured)));
            let id = self.ask_agent("state.flush", json!({"audit": true}));
            self.talk(Talk::Flushing(id));
        }
    }

    /// Whether the last capture is asked for. No record would have the effects of further shell messages, so the
    /// messages are left to the next replica.
    pub fn keeps_back(&self) -> bool {
        let last = |d: &Durable| {
            let flushing = matches!(d.talk, Talk::Flushing(_));
            d.leaving.as_ref().is_some_and(|l| l.flushed || flushing)
        };
        let durable = self.durable.as_ref();
        durable.is_some_and(|d| last(d) || matches!(self.phase, Phase::Over))
    }

    pub(super) fn keep_back(&mut self, identity: Bytes, message: Message) {
        if let Some(durable) = &mut self.durable {
            durable.kept_back.push((Channel::Shell, identity, message));
        }
    }

    /// After each input; `kept_back` says whether shell messages were kept back before it.
    pub(super) fn go_on_or_leave(&mut self, kept_back: bool) {
        self.reconsider_leaving();
        if kept_back {
            self.let_go_of_kept_back();
        }
    }

    /// The kernel stays after all, and gets what was kept back.
    fn let_go_of_kept_back(&mut self) {
        if self.keeps_back() {
            return;
        }
        let kept = self.durable.as_mut().map(|d| std::mem::take(&mut d.kept_back));
        for (channel, identity, message) in kept.unwrap_or_default() {
            self.request(channel, identity, message);
        }
        if matches!(self.phase, Phase::Up) {
            self.send_early();
        }
    }

    /// The agent answered `state.flush`.
    pub(super) fn flushed(&mut self, answer: Result<Value, String>) {
        // A cell with a new lease runs first.
        let idle = !self.runs_first();
        self.talk(Talk::Captures);
        let why = self.stays_after(answer);
        if let Some(why) = why.filter(|_| idle && self.may_stay()) {
            return self.stay(&why);
        }
        if let Some(leaving) = self.durable.as_mut().and_then(|d| d.leaving.as_mut())
            && idle
        {
            leaving.flushed = true;
        }
        self.sync();
        self.go_if_settled();
    }

    /// Nothing more can be saved: the kernel leaves once no cell runs.
    pub(super) fn leave_unsaved(&mut self) {
        let idle = self.is_idle();
        let captures = |d: &&mut Durable| idle && !matches!(d.talk, Talk::Flushing(_));
        if let Some(leaving) = self
            .durable
            .as_mut()
            .filter(captures)
            .and_then(|d| d.leaving.as_mut())
        {
            leaving.flushed = true;
        }
        self.go_if_settled();
    }

    /// Leaves once all captures are in the store.
    pub(super) fn go_if_settled(&mut self) {
        let Some(durable) = &self.durable else {
            return;
        };
        let leaving = durable.leaving.as_ref();
        let Some(leaving) = leaving.filter(|l| l.flushed && !l.handed_over) else {
            return;
        };
        let state = durable.journal.state();
        let committed = state.unsettled_records().len() == 0 && durable.journal.is_settled();
        let settled = committed && durable.resting.is_empty();
        let may_stay = self.may_stay();
        if settled && may_stay && state.cells_at_stake() > 0 {
            self.stay(wording::NOT_SAVED);
        } else if settled && !self.is_asleep() && matches!(leaving.farewell, Farewell::Sleep(_)) {
            self.act(Act::Hibernated);
        } else if settled || (durable.broken.is_some() && !may_stay) {
            self.go();
        }
    }

    /// The group has elected another executor. If this replica asked for the election, for a move, the lingering
    /// lease goes back before the end of the process.
    pub(super) fn succeeded(&mut self) {
        let handed_over = |l: &Leaving| l.handed_over && matches!(l.farewell, Farewell::Move(_));
        if self.leaving().is_some_and(handed_over) {
            self.leave_devices();
        }
        self.deposed();
    }

    /// Whether the log says that the kernel hibernates.
    pub(super) fn is_asleep(&self) -> bool {
        let state = self.durable.as_ref().map(|d| d.journal.state());
        state.is_some_and(|s| matches!(s.office(), hop_log::Office::Asleep { .. }))
    }

    pub(super) fn go(&mut self) {
        let Some(durable) = &mut self.durable else {
            return;
        };
        let Some(mut leaving) = durable.leaving.take() else {
            return;
        };
        let heir = self.heir(&leaving.farewell);
        if let Some(durable) = &mut self.durable {
            durable.moving = None;
        }
        // A cell that the front lets begin in this moment goes to the next replica.
        for cell in self.cells.not_begun() {
            self.note(Note::NotBegun { cell });
        }
        if let Some(to) = heir
            && !leaving.handed_over
        {
            // The log may refuse, and then the process lives on: it keeps its GPUs until the other is elected.
            self.act(Act::Moved { to });
            leaving.handed_over = true;
            if let Some(durable) = &mut self.durable {
                durable.leaving = Some(leaving);
            }
            return;
        }
        // Answers to cells that never ran go out now: the next replica would run the cells, or tell them as lost.
        self.send_unlogged();
        match leaving.farewell {
            Farewell::Leave(reason) => self.note(Note::Leaving { reason }),
            Farewell::Move(incarnation) => {
                self.leave_devices();
                // The next tenure is opened in the store, and begins a group of its own.
                self.disband();
                self.note(Note::Moving { incarnation });
            }
            Farewell::Sleep(reason) => {
                // A group whose log still names an executor would start one again.
                if !self.is_asleep() {
                    self.disband();
                }
                let (kernel, tenure) = self.office();
                self.tell_hopd(match self.is_asleep() || self.has_state() {
                    true => ToHopd::Hibernated { kernel, tenure },
                    false => ToHopd::KernelEnded { kernel, tenure },
                });
                self.note(Note::Asleep { reason });
            }
        }
        self.phase = Phase::Over;
        self.out.push(Output::KillKernel);
        self.out.push(Output::Leave);
    }
}

/// How long the running cell may go on in a seat that Slurm kills after `grace`, and how long all may take.
fn shares(grace: Span) -> (Span, Span) {
    let all = Span(grace.min(SEAT_HOLDS).0.saturating_sub(LEAVING.0));
    let capture = Span(all.0 / 2).min(KEPT_FOR_CAPTURE);
    (Span(all.0 - capture.0), all)
}
