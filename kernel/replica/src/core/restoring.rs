//! The beginning of a kernel's process: it is heard, gets the state from the user's store, and captures begin.

use super::durable::{Durable, Mending, Talk, begin_with, restore_with};
use super::{Core, Output, Phase, wording};
use crate::agent::Parcel;
use hop_log::Act;
use hop_words::id::CellId;
use hop_words::time::Span;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// An agent without a word for this long after the kernel is heard doesn't capture.
const AGENT_SPEAKS: Span = Span::from_secs(10);

/// A state whose restore has killed the process so often is left alone.
const RESTORE_DEATHS_MAX: u32 = 2;

/// The answer to `state.restore`, and the body of `state.notice`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Restored {
    /// Variables in whose place a placeholder stands, and why.
    lost: BTreeMap<String, String>,
    notices: Vec<String>,
    unmovable: Vec<String>,
    /// The number of the next cell.
    execution_count: Option<i64>,
}

impl Core {
    /// The kernel's process is heard, and the agent may have said hello.
    pub(super) fn prepare(&mut self) {
        let now = self.now;
        let Some(durable) = &mut self.durable else {
            return self.up();
        };
        match durable.talk {
            Talk::Greeted => self.open_store(),
            Talk::Silent { .. } => {
                if let Some(why) = durable.silent.clone() {
                    return self.without_captures(&why);
                }
                durable.talk = Talk::Silent {
                    until: Some(now + AGENT_SPEAKS),
                }
            }
            _ => self.up(),
        }
    }

    /// The agent said hello.
    pub(super) fn greeted(&mut self) {
        let preparing = matches!(self.phase, Phase::Preparing { .. });
        if let Some(durable) = &mut self.durable {
            durable.talk = Talk::Greeted;
            if preparing {
                self.open_store();
            }
        }
    }

    /// Reads the state once all known records are in the store.
    pub(super) fn open_store_if_ready(&mut self) {
        let preparing = matches!(self.phase, Phase::Preparing { .. });
        if preparing && self.durable.as_ref().is_some_and(|d| d.talk == Talk::Greeted) {
            self.open_store();
        }
    }

    /// Whether there is a state to bring back.
    pub(super) fn has_state(&self) -> bool {
        let durable = self.durable.as_ref();
        durable.is_some_and(|d| d.journal.state().restore().settled.is_some())
    }

    /// Names the store to the agent. Restored content is then known to be in the log, and isn't captured again.
    fn open_store(&mut self) {
        if let Some(durable) = self.durable.as_mut().filter(|d| d.restored.is_some()) {
            if !durable.opening
                && let Some(said) = durable.restored.take()
            {
                self.restored(said);
            }
            return;
        }
        if !self.durable.as_ref().is_some_and(Durable::may_restore) {
            return;
        }
        if !self.has_state() {
            return self.begin_capturing();
        }
        let id = self.ask_agent("state.begin", self.begin_with("nothing"));
        self.talk(Talk::Opening(id));
    }

    fn begin_capturing(&mut self) {
        let id = self.ask_agent("state.begin", self.begin_with("cells"));
        self.talk(Talk::Beginning(id));
    }

    pub(super) fn begin_with(&self, capture: &str) -> Value {
        self.durable.as_ref().map_or(Value::Null, |durable| {
            begin_with(
                capture,
                self.patience(),
                durable.journal.next_record(),
                &durable.stores,
            )
        })
    }

    pub(super) fn talk(&mut self, talk: Talk) {
        if let Some(durable) = &mut self.durable {
            durable.talk = talk;
        }
    }

    pub(super) fn ask_agent(&mut self, op: &str, body: Value) -> u64 {
        let id = self.durable.as_mut().map_or(0, |durable| {
            durable.last_request += 1;
            durable.last_request
        });
        self.out.push(Output::ToAgent(Parcel::request(id, op, body)));
        id
    }

    /// The agent answered a request of ours.
    pub(super) fn agent_answered(&mut self, id: u64, answer: Result<Value, String>) {
        let Some(durable) = &self.durable else {
            return;
        };
        if durable.mending == Mending::Asked(id) {
            return self.captures_anew(answer);
        }
        match (durable.talk, answer) {
            (Talk::Opening(asked), Ok(_)) if asked == id => self.restore(),
            (Talk::Opening(asked), Err(why)) if asked == id => self.not_restored(&why),
            (Talk::Beginning(asked), Ok(_)) if asked == id => self.ready(),
            (Talk::Beginning(asked), Err(why)) if asked == id => self.without_captures(&why),
            (Talk::Restoring(asked), Ok(answer)) if asked == id => self.restored(answer),
            (Talk::Restoring(asked), Err(why)) if asked == id => self.not_restored(&why),
            (Talk::Flushing(asked), answer) if asked == id => self.flushed(answer),
            _ => {}
        }
    }

    /// Has the agent read the state from which the kernel goes on.
    fn restore(&mut self) {
        let Some(durable) = &self.durable else {
            return;
        };
        if durable.restore_deaths >= RESTORE_DEATHS_MAX {
            return self.not_restored("the kernel's process died while its variables were read");
        }
        let Some(settled) = durable.journal.state().restore().settled else {
            return self.begin_capturing();
        };
        let body = restore_with(settled, &durable.folder, true);
        let id = self.ask_agent("state.restore", body);
        self.talk(Talk::Restoring(id));
    }

    fn restored(&mut self, answer: Value) {
        self.tell_restored(answer);
        if let Some(durable) = &mut self.durable {
            durable.restore_deaths = 0;
        }
        self.begin_capturing();
    }

    /// The user reads at the next cell which variables didn't come back, or came back otherwise.
    pub(super) fn tell_restored(&mut self, said: Value) {
        let restored: Restored = serde_json::from_value(said).unwrap_or_default();
        if let Some(next) = restored.execution_count {
            self.cells.count = next - 1;
        }
        if let Some(durable) = &mut self.durable {
            let lost = restored.lost.iter().map(|(name, why)| format!("{name} ({why})"));
            let lost: Vec<String> = lost.collect();
            if !lost.is_empty() {
                durable.notices.push(wording::could_not_come_back(&lost));
            }
            durable
                .notices
                .extend(restored.notices.iter().map(|n| wording::notice(n)));
        }
        self.note_bound(restored.unmovable);
    }

    /// The state can't be brought back: the kernel begins empty, and the state stays in its folder for its user.
    fn not_restored(&mut self, why: &str) {
        let Some(durable) = &mut self.durable else {
            return;
        };
        let kept = durable.journal.state().restore().settled.map(|s| {
            let name = hop_log::store::folder_name(s.tenure, s.part);
            durable.folder.join(name)
        });
        durable.notices.push(wording::not_restored(why, kept.as_deref()));
        durable.restore_deaths = 0;
        self.out.extend(kept.map(Output::KeepState));
        self.act(Act::Fresh);
        self.begin_capturing();
    }

    fn ready(&mut self) {
        self.talk(Talk::Captures);
        self.capture_anew();
        self.up();
        self.found_group();
        self.leave_if_idle();
    }

    pub(super) fn without_captures(&mut self, why: &str) {
        if let Some(durable) = &mut self.durable {
            durable.talk = Talk::Off;
            durable.notices.push(wording::not_captured(why, None));
        }
        self.up();
    }

    /// Tells the user the notices to be read before the reply of `cell`, unless the cell is hidden from the user.
    pub(super) fn tell_notices(&mut self, cell: &CellId) {
        if self.cells.find(cell).is_none_or(|c| c.is_hidden) {
            return;
        }
        let header = self.cells.header(cell);
        let of_log = self.durable.as_mut().map(|d| std::mem::take(&mut d.notices));
        let of_default = self.notices.bad_default.take();
        for notice in of_default.into_iter().chain(of_log.unwrap_or_default()) {
            self.stderr(&header, &notice);
        }
    }
}
