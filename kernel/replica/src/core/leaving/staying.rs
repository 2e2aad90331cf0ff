//! A kernel about to move or to hibernate stays in place if a part of the state isn't saved. A kernel without
//! users, or with an ending seat, leaves with the saved part.

use super::super::durable::{Farewell, Unsaved};
use super::super::{Core, wording};
use hop_log::{Act, Entry, Refusal};
use hop_protocol::message::Note;
use serde::Deserialize;
use serde_json::Value;

/// The answer to `state.flush`.
#[derive(Debug, Deserialize)]
#[serde(default)]
struct Flushed {
    whole: bool,
    /// Why something couldn't be captured.
    why: String,
    unmovable: Option<Vec<String>>,
}

impl Default for Flushed {
    fn default() -> Self {
        Self {
            whole: true,
            why: String::new(),
            unmovable: None,
        }
    }
}

impl Core {
    /// Whether nothing forces the kernel's end here, and the log hasn't been asked for it.
    pub(in crate::core) fn may_stay(&self) -> bool {
        let Some(durable) = &self.durable else {
            return true;
        };
        let hibernates = |entry: &Entry| {
            matches!(
                entry,
                Entry::Act {
                    act: Act::Hibernated,
                    ..
                }
            )
        };
        let asked = self.is_asleep() || durable.journal.proposed().any(hibernates);
        durable
            .leaving
            .as_ref()
            .is_none_or(|l| !l.in_haste && !l.handed_over && !asked)
    }

    /// The kernel stays: what was to follow doesn't.
    pub(in crate::core) fn stay(&mut self, why: &str) {
        let Some(durable) = &mut self.durable else {
            return;
        };
        match durable.leaving.take_if(|l| !l.in_haste).map(|l| l.farewell) {
            Some(Farewell::Move(to)) => {
                durable.moving = None;
                durable.forget_flush();
                self.note(Note::MoveOff { incarnation: to });
                self.tell_not_moved(to, why.to_owned());
            }
            Some(Farewell::Sleep(_)) => {
                durable.forget_flush();
                self.refuse_to_sleep(why.to_owned());
            }
            Some(Farewell::Leave(_)) | None => self.give_up_move(why),
        }
    }

    /// Takes in the answer to the last capture. Returns why the kernel is better not moved, nor put to sleep.
    pub(in crate::core) fn stays_after(&mut self, answer: Result<Value, String>) -> Option<String> {
        let said = answer.and_then(|said| serde_json::from_value::<Flushed>(said).map_err(|e| e.to_string()));
        let failed = match said {
            Ok(said) => {
                if let Some(unmovable) = said.unmovable {
                    self.note_bound(unmovable);
                }
                (!said.whole).then_some(said.why)
            }
            Err(why) => Some(why),
        };
        match failed {
            Some(why) => {
                let told = wording::not_saved(&why);
                self.capture_failed(Unsaved { why, since: None });
                Some(told)
            }
            None => {
                self.captured_again(None);
                self.turned_out_bound()
            }
        }
    }

    /// A capture failed for this reason. The first reason since the last good capture counts.
    pub(in crate::core) fn capture_failed(&mut self, why: Unsaved) {
        if let Some(durable) = &mut self.durable {
            durable.failed.get_or_insert(why);
            self.tell_saved();
        }
    }

    /// A capture succeeded, and made up for those that failed before. `missed`: something else is unsaved.
    pub(in crate::core) fn captured_again(&mut self, missed: Option<Unsaved>) {
        if let Some(durable) = &mut self.durable {
            durable.failed = missed;
            self.tell_saved();
        }
    }

    /// The last capture, or the cell before it, took too long.
    pub(in crate::core) fn too_late(&mut self) {
        if self.may_stay() {
            return self.stay(wording::NOT_SAVED_IN_TIME);
        }
        let leaving = self.durable.as_mut().and_then(|d| d.leaving.as_mut());
        match leaving {
            // The group elects another executor, or it is given up.
            Some(leaving) if leaving.handed_over && !leaving.in_haste => leaving.until = None,
            _ => self.go(),
        }
    }

    /// The log refuses to hand the kernel to another member, or to note that it hibernates. A kernel that must leave
    /// does so all the same: the front starts the next replica from what is saved.
    pub(in crate::core) fn leave_or_stay(&mut self, refusal: &Refusal) {
        match self.leaving().map(|l| l.in_haste) {
            Some(true) => self.go(),
            Some(false) => self.stay(&wording::not_saved(&refusal.to_string())),
            None => {}
        }
    }
}
