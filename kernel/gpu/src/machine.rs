//! Park and unpark as a pure state machine: the next call, given the last call's answer.
//!
//! Each call may succeed, fail, or not come back in time; after the latter two the machine doesn't guess but asks
//! the driver for the process's state. It always ends, and each ending says where the data is. Deadlines are the
//! business of whoever makes the calls ([`crate::calls`]).

use crate::driver::ProcessState;
use serde::{Deserialize, Serialize};

/// How often a state on the way to another is asked for again, and how often an unlock is tried again.
const PATIENCE: u8 = 5;

/// A call that the machine wants made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Call {
    /// The in-kernel agent copies out what the frameworks hold. It rolls itself back when it fails.
    CopyOut,
    Lock,
    Checkpoint,
    /// Is anything of ours left on the device?
    Prove,
    /// Make sure of the device memory that the restore will take.
    Reserve,
    /// Give up the reservation, if one is held, and restore.
    Restore,
    Unlock,
    /// The in-kernel agent copies back in; it also cancels a copy-out that is still under way.
    CopyIn,
    /// Ask the driver how the process stands.
    State,
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Done,
    /// The answer to [`Call::State`].
    State(ProcessState),
    /// The call said no, or [`Call::Prove`] found something; the text is for people.
    Failed(String),
    TimedOut(String),
}

/// Final state of a park or an unpark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum Outcome {
    /// Off the device, proven.
    Parked,
    /// On the device and running, as before the park was asked for.
    NotParked { why: String },
    /// On the device and running.
    Unparked,
    /// Off the device as far as the driver knows; all data in host memory; may be tried again.
    StillParked { why: String },
    /// The CUDA context is back on the device; what the frameworks held is still in host memory, intact. May be
    /// tried again.
    HalfBack { why: String },
    /// The driver left the process unusable. `frameworks_in_host`: the frameworks' memory is readable in the process's
    /// host memory, and rung (d) can save the memory.
    Broken { why: String, frameworks_in_host: bool },
}

/// What comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    Call(Call),
    End(Outcome),
}

/// Which halves take part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Halves {
    /// Rung (b): the in-kernel agent.
    pub inside: bool,
    /// Rung (c): the driver's checkpoint.
    pub driver: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Out,
    /// Out failed: bring everything back.
    Back,
    In,
}

/// One park or one unpark.
#[derive(Debug, Clone)]
pub struct Machine {
    halves: Halves,
    way: Way,
    /// The call that was asked for last.
    asked: Call,
    /// The call whose effect `State` is to tell.
    doubt: Option<Call>,
    why: Option<String>,
    /// `true` once the frameworks' memory is in host memory.
    copied_out: bool,
    tries: u8,
}

impl Machine {
    /// Begins a park.
    pub fn park(halves: Halves) -> (Self, Next) {
        let first = match halves {
            Halves { inside: true, .. } => Call::CopyOut,
            Halves { driver: true, .. } => Call::Lock,
            Halves { .. } => Call::Prove,
        };
        Self::begin(halves, Way::Out, first, false)
    }

    /// Begins an unpark of what [`Machine::park`] parked with the same halves.
    pub fn unpark(halves: Halves) -> (Self, Next) {
        Self::begin(halves, Way::In, Call::Reserve, halves.inside)
    }

    /// Takes up the way back where somebody left the process locked.
    pub fn unlock(halves: Halves) -> (Self, Next) {
        Self::begin(halves, Way::In, Call::Unlock, halves.inside)
    }

    /// Tries the way back in again after [`Outcome::HalfBack`].
    pub fn finish_half_back(halves: Halves) -> (Self, Next) {
        Self::begin(halves, Way::In, Call::CopyIn, true)
    }

    fn begin(halves: Halves, way: Way, first: Call, copied_out: bool) -> (Self, Next) {
        let machine = Self {
            halves,
            way,
            asked: first,
            doubt: None,
            why: None,
            copied_out,
            tries: 0,
        };
        (machine, Next::Call(first))
    }

    /// Takes the answer to the last call and returns the next step. Must not be called again after [`Next::End`].
    pub fn next(&mut self, answer: Answer) -> Next {
        match (self.asked, answer) {
            (Call::State, Answer::State(state)) => self.on_state(state),
            (Call::State, other) => self.broken(&format!(
                "the driver can't say how the process stands: {}",
                text(other)
            )),
            (call, Answer::Done) => self.on_done(call),
            (call, answer) => self.on_trouble(call, text(answer)),
        }
    }

    fn on_done(&mut self, call: Call) -> Next {
        self.doubt = None;
        match (self.way, call) {
            (Way::Out, Call::CopyOut) => {
                self.copied_out = true;
                self.ask(if self.halves.driver {
                    Call::Lock
                } else {
                    Call::Prove
                })
            }
            (Way::Out, Call::Lock) => self.ask(Call::Checkpoint),
            (Way::Out, Call::Checkpoint) => self.ask(Call::Prove),
            (Way::Out, Call::Prove) => Next::End(Outcome::Parked),
            (_, Call::Reserve) if self.halves.driver => self.ask(Call::Restore),
            (_, Call::Reserve | Call::Unlock) => self.on_context_back(),
            (_, Call::Restore) => self.ask(Call::Unlock),
            (_, Call::CopyIn) => {
                self.copied_out = false;
                self.home()
            }
            (_, call) => self.broken(&format!("{call:?} was answered out of its turn")),
        }
    }

    fn on_trouble(&mut self, call: Call, why: String) -> Next {
        if self.why.is_none() {
            self.why = Some(why.clone());
        }
        match (self.way, call) {
            // A failed copy-out has rolled itself back; a late one is cancelled by the copy-in.
            (Way::Out, Call::CopyOut) => {
                self.way = Way::Back;
                self.copied_out = true;
                self.ask(Call::CopyIn)
            }
            (Way::Out, Call::Prove) => {
                self.way = Way::Back;
                match self.halves.driver {
                    true => self.ask(Call::Restore),
                    false => self.on_context_back(),
                }
            }
            (_, Call::Lock | Call::Checkpoint | Call::Restore | Call::Unlock) => {
                self.doubt = Some(call);
                self.ask(Call::State)
            }
            (_, Call::Reserve) => Next::End(Outcome::StillParked { why }),
            (_, Call::CopyIn) => Next::End(Outcome::HalfBack { why: self.reason() }),
            (_, call) => self.broken(&format!("{call:?} was answered out of its turn")),
        }
    }

    fn on_state(&mut self, state: ProcessState) -> Next {
        use ProcessState as S;
        let Some(doubt) = self.doubt else {
            return self.broken("a state that nobody asked for");
        };
        match (self.way, doubt, state) {
            (_, _, S::Checkpointing | S::Restoring) => match self.again() {
                true => Next::Call(Call::State),
                false => self.broken("the driver has not come to an end with the process"),
            },
            (_, _, S::Failed) => self.broken("the driver's checkpoint of the process has failed for good"),
            (Way::Out, Call::Checkpoint, S::Checkpointed) => {
                // The call took effect; only its answer was late or wrong.
                self.why = None;
                self.ask(Call::Prove)
            }
            (Way::Out, Call::Lock, S::Checkpointed) => {
                self.broken("somebody else checkpointed the process meanwhile")
            }
            (Way::Out, _, S::Locked) => {
                self.way = Way::Back;
                self.ask(Call::Unlock)
            }
            (Way::Out, _, S::Running) => {
                self.way = Way::Back;
                self.on_context_back()
            }
            (_, _, S::Checkpointed) => Next::End(Outcome::StillParked { why: self.reason() }),
            (_, _, S::Running) => self.on_context_back(),
            (_, Call::Unlock, S::Locked) => match self.again() {
                true => self.ask(Call::Unlock),
                false => self.broken("the process stays locked"),
            },
            (_, _, S::Locked) => self.ask(Call::Unlock),
        }
    }

    /// The context is on the device and usable: the frameworks' share is next.
    fn on_context_back(&mut self) -> Next {
        match self.copied_out {
            true => self.ask(Call::CopyIn),
            false => self.home(),
        }
    }

    fn home(&mut self) -> Next {
        Next::End(match self.way {
            Way::In => Outcome::Unparked,
            Way::Out | Way::Back => Outcome::NotParked { why: self.reason() },
        })
    }

    fn ask(&mut self, call: Call) -> Next {
        self.asked = call;
        Next::Call(call)
    }

    fn again(&mut self) -> bool {
        self.tries += 1;
        self.tries <= PATIENCE
    }

    fn reason(&self) -> String {
        self.why
            .clone()
            .unwrap_or_else(|| "no reason was given".to_owned())
    }

    fn broken(&mut self, what: &str) -> Next {
        let why = match &self.why {
            Some(first) => format!("{first}; {what}"),
            None => what.to_owned(),
        };
        Next::End(Outcome::Broken {
            why,
            frameworks_in_host: self.copied_out,
        })
    }
}

fn text(answer: Answer) -> String {
    match answer {
        Answer::Failed(text) | Answer::TimedOut(text) => text,
        Answer::Done => "an empty answer".to_owned(),
        Answer::State(state) => format!("the process is {state}"),
    }
}

#[cfg(test)]
mod tests;
