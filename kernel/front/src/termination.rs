//! The end of a front: a client shuts the kernel down or restarts it, the owner ends it, its server goes, or the kernel
//! dies. Decides what replica, owner and clients are told of the end, how long the front stays for their answers, and
//! what is removed afterwards. Pure: no socket, no clock; [`crate::run`] carries the decisions out. [`crate::life`]
//! decides on the kernel's replicas, [`crate::core`] answers the clients.

use crate::core::{End, Shutdown};
use hop_words::time::{Span, Timestamp};

/// Pause between the news of a kernel's death and the answers to its open requests. Clients poll the kernel's process
/// about every second, and should learn of the death first.
const OBITUARY: Span = Span::from_secs(3);

/// Time at the end for clients to read their last messages.
const FAREWELL: Span = Span::from_millis(500);
/// Time for a connected kernel to end, before the front ends without it.
const ENDING: Span = Span::from_secs(8);

/// Time for a connected kernel to be saved. The front then ends, and the replica goes on with the save by itself.
pub(crate) const PARTING: Span = Span::from_secs(40);

/// The part of a kernel that outlives its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeps {
    /// Nothing: no notebook would find the kernel again.
    Nothing,
    /// The state of a notebook's dead or restarted kernel. The kernel itself can't be saved at its server's end.
    State,
    /// The kernel of a notebook, with its variables.
    Kernel,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A client shuts the kernel down, or restarts it. `away` means that no replica has the kernel's requests, nor will
    /// before the next one connects.
    Shutdown { asked: Shutdown, away: bool },
    /// From now on no replica has the kernel's requests.
    ReplicaGone,
    /// The kernel's requests go to another replica from now on.
    NextReplica,
    /// The owner ends the kernel. `connected` tells whether its replica can hear of that now.
    End { connected: bool },
    /// The owner ends the kernel, and an earlier front was lost while ending it. The replica is about to connect.
    EndAgain,
    /// The kernel's server ends, or is gone.
    Part { reason: String, connected: bool },
    /// The kernel is saved, and hibernates.
    Asleep,
    /// The kernel's replica is lost. Another one is started, unless the front ends because of its server.
    ReplicaLost,
    /// The kernel has ended. Only the first such input counts.
    KernelOver(End),
    /// No message waits for a connected client.
    AllRead,
    /// The time of [`Termination::due`] has come.
    Due,
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Pass the client's request on to the replica.
    PassOn(Shutdown),
    /// End the kernel in the place of the absent replica, and answer the client.
    ShutDown(Shutdown),
    /// Have the replica end the kernel.
    End,
    /// Keep the outputs that no client reads any more, and have the replica save the kernel.
    Save { reason: String },
    /// Have the next replica save the kernel, as the one before it was told.
    SaveAgain { reason: String },
    /// Tell the owner that the kernel is dead.
    TellDeath { reason: String },
    /// Answer the open requests of the dead kernel.
    SendObituaries,
}

/// The result of a front that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// The kernel died, or its end is not known.
    pub died: bool,
    pub removal: Removal,
}

/// The things to remove at a front's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// Nothing. The notebook's next opening finds a kernel that may still run.
    Nothing,
    /// The front's folder, and the kernel's folder if nothing of the kernel is saved.
    Front,
    /// Both folders, whatever is saved. `hopd` is told that the kernel is closed for good.
    Kernel,
}

/// The use of the kernel's state after this front, as clients and the owner want it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The state is kept for the notebook's next opening, if anything is saved.
    Kept,
    /// A client restarts the kernel: the next front decides on the state.
    Restarted,
    /// The kernel is closed for good.
    Closed,
}

/// The reason for the front's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// The kernel's end: its death, or a client's wish.
    Kernel,
    Owner,
    /// The end of the kernel's server. An ending server shuts down all kernels: clients are no longer heard.
    Server,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    /// The kernel runs. `asked` is a client's request for its end; the replica may not have heard of it.
    Running {
        asked: Option<Shutdown>,
    },
    /// The kernel is being saved because its server goes.
    Parting {
        reason: String,
        asked: Option<Shutdown>,
        until: Timestamp,
    },
    /// The kernel is being ended at its owner's wish.
    Ending {
        asked: Option<Shutdown>,
        until: Timestamp,
    },
    /// The kernel died, and its open requests are answered then.
    Dead {
        obituaries: Timestamp,
    },
    /// The kernel has ended, and clients read their last messages.
    Lingering {
        died: bool,
        cause: Cause,
        until: Timestamp,
    },
    Over {
        died: bool,
    },
}

/// The end of one kernel's front.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Termination {
    keeps: Keeps,
    fate: Fate,
    stage: Stage,
}

impl Termination {
    pub fn new(keeps: Keeps) -> Self {
        Self {
            keeps,
            fate: Fate::Kept,
            stage: Stage::Running { asked: None },
        }
    }

    /// Whether nothing but the kernel itself or a client can end the front so far.
    pub fn is_running(&self) -> bool {
        matches!(self.stage, Stage::Running { .. })
    }

    /// Whether the front ends because of its server. Clients' messages must not disturb the kernel's save then.
    pub fn is_parting(&self) -> bool {
        matches!(
            self.stage,
            Stage::Parting { .. }
                | Stage::Lingering {
                    cause: Cause::Server,
                    ..
                }
        )
    }

    /// Time of the next [`Input::Due`].
    pub fn due(&self) -> Option<Timestamp> {
        match self.stage {
            Stage::Running { .. } | Stage::Over { .. } => None,
            Stage::Dead { obituaries: at }
            | Stage::Parting { until: at, .. }
            | Stage::Ending { until: at, .. }
            | Stage::Lingering { until: at, .. } => Some(at),
        }
    }

    /// The front's result, once the front is over. `left` means that an earlier front was lost, and the earlier
    /// front's replica may still run and connect.
    pub fn outcome(&self, left: bool) -> Option<Outcome> {
        let Stage::Over { died } = self.stage else {
            return None;
        };
        let removal = match self.fate {
            Fate::Closed => Removal::Kernel,
            Fate::Kept | Fate::Restarted if left => Removal::Nothing,
            Fate::Kept | Fate::Restarted => Removal::Front,
        };
        Some(Outcome { died, removal })
    }

    /// Takes in an input; returns the action that follows.
    pub fn handle(&mut self, input: Input, now: Timestamp) -> Option<Act> {
        match input {
            Input::Shutdown { asked, away } => self.shut_down(asked, away),
            Input::ReplicaGone => self.asked().and_then(Option::take).map(Act::ShutDown),
            Input::NextReplica => self.next_replica(),
            Input::End { connected } => self.end(patience(connected, ENDING), now),
            Input::EndAgain => self.end(ENDING, now),
            Input::Part { reason, connected } => self.part(reason, connected, now),
            Input::Asleep | Input::ReplicaLost => self.saves_no_more(now),
            Input::KernelOver(end) => self.kernel_over(end, now),
            Input::AllRead => self.all_read(),
            Input::Due => self.becomes_due(now),
        }
    }

    /// The place for a client's request, while the kernel has not ended.
    fn asked(&mut self) -> Option<&mut Option<Shutdown>> {
        match &mut self.stage {
            Stage::Running { asked } | Stage::Parting { asked, .. } | Stage::Ending { asked, .. } => {
                Some(asked)
            }
            Stage::Dead { .. } | Stage::Lingering { .. } | Stage::Over { .. } => None,
        }
    }

    /// The next replica knows nothing of the orders to the one before it, and has the time that is left of theirs.
    fn next_replica(&mut self) -> Option<Act> {
        if let Some(asked) = self.asked().cloned().flatten() {
            return Some(Act::PassOn(asked));
        }
        match &self.stage {
            Stage::Parting { reason, .. } => Some(Act::SaveAgain {
                reason: reason.clone(),
            }),
            Stage::Ending { .. } => Some(Act::End),
            Stage::Running { .. } | Stage::Dead { .. } | Stage::Lingering { .. } | Stage::Over { .. } => None,
        }
    }

    /// The request of a client. It decides on the state of a kernel that has ended, too.
    fn shut_down(&mut self, request: Shutdown, away: bool) -> Option<Act> {
        if self.is_parting() || matches!(self.stage, Stage::Over { .. }) {
            return None;
        }
        self.fate = match request.restart {
            true => Fate::Restarted,
            false => Fate::Closed,
        };
        let asked = self.asked()?;
        if away {
            *asked = None;
            return Some(Act::ShutDown(request));
        }
        *asked = Some(request.clone());
        Some(Act::PassOn(request))
    }

    /// Ends the front at its owner's wish. The state of a notebook's dead kernel is kept: the owner clears the dead front
    /// away, and starts the kernel again.
    fn end(&mut self, patience: Span, now: Timestamp) -> Option<Act> {
        let (act, unless_asked) = match &mut self.stage {
            Stage::Running { asked } => {
                let asked = asked.take();
                let until = now + patience;
                self.stage = Stage::Ending { asked, until };
                (Some(Act::End), Fate::Closed)
            }
            Stage::Dead { .. } => {
                self.linger(true, Cause::Owner, now + FAREWELL);
                (Some(Act::SendObituaries), Fate::Kept)
            }
            Stage::Lingering {
                cause: cause @ Cause::Kernel,
                until,
                ..
            } => {
                (*cause, *until) = (Cause::Owner, now + FAREWELL);
                (None, Fate::Kept)
            }
            Stage::Parting { .. } | Stage::Ending { .. } | Stage::Lingering { .. } | Stage::Over { .. } => {
                return None;
            }
        };
        if self.keeps == Keeps::Nothing {
            self.fate = Fate::Closed;
        } else if self.fate == Fate::Kept {
            self.fate = unless_asked;
        }
        act
    }

    /// Saves the kernel of a notebook, for its owner to come back, and ends any other kernel.
    fn part(&mut self, reason: String, connected: bool, now: Timestamp) -> Option<Act> {
        match &mut self.stage {
            Stage::Running { asked } if self.keeps == Keeps::Kernel => {
                let asked = asked.take();
                let until = now + patience(connected, PARTING);
                let act = Act::Save {
                    reason: reason.clone(),
                };
                self.stage = Stage::Parting { reason, asked, until };
                Some(act)
            }
            _ => self.end(patience(connected, ENDING), now),
        }
    }

    /// The kernel is saved as well as can be.
    fn saves_no_more(&mut self, now: Timestamp) -> Option<Act> {
        if let Stage::Parting { until, .. } = &mut self.stage {
            *until = now;
        }
        None
    }

    fn kernel_over(&mut self, end: End, now: Timestamp) -> Option<Act> {
        let died = end != End::Shutdown;
        match (&self.stage, end) {
            (Stage::Running { .. }, End::Dead { reason }) => {
                let obituaries = now + OBITUARY;
                self.stage = Stage::Dead { obituaries };
                return Some(Act::TellDeath { reason });
            }
            (Stage::Running { .. }, End::Shutdown) => self.linger(died, Cause::Kernel, now + FAREWELL),
            (Stage::Parting { until, .. }, _) => {
                let until = (now + FAREWELL).min(*until);
                self.linger(died, Cause::Server, until);
            }
            (Stage::Ending { until, .. }, _) => self.linger(died, Cause::Owner, *until),
            (Stage::Dead { .. } | Stage::Lingering { .. } | Stage::Over { .. }, _) => {}
        }
        None
    }

    fn linger(&mut self, died: bool, cause: Cause, until: Timestamp) {
        self.stage = Stage::Lingering { died, cause, until };
    }

    /// The front of a dead kernel stays for the whole time, unless ended by the owner.
    fn all_read(&mut self) -> Option<Act> {
        if let Stage::Lingering { died, cause, .. } = self.stage
            && (!died || cause == Cause::Owner)
        {
            self.stage = Stage::Over { died };
        }
        None
    }

    fn becomes_due(&mut self, now: Timestamp) -> Option<Act> {
        if self.due().is_none_or(|at| now < at) {
            return None;
        }
        match self.stage {
            Stage::Dead { .. } => {
                self.linger(true, Cause::Kernel, now + FAREWELL);
                return Some(Act::SendObituaries);
            }
            Stage::Lingering { died, cause, .. } => {
                let died = died && cause != Cause::Server;
                self.stage = Stage::Over { died };
            }
            Stage::Ending { .. } => self.stage = Stage::Over { died: true },
            Stage::Parting { .. } => self.stage = Stage::Over { died: false },
            Stage::Running { .. } | Stage::Over { .. } => {}
        }
        None
    }

    /// What must hold after every call.
    pub fn sanity_check(&self) {
        assert!(!self.is_parting() || self.keeps == Keeps::Kernel, "{self:?}");
        match &self.stage {
            Stage::Running { asked: Some(asked) } => {
                assert_eq!(asked.restart, self.fate == Fate::Restarted, "{self:?}");
                assert!(self.fate != Fate::Kept, "{self:?}");
            }
            Stage::Ending { .. } => assert!(self.fate != Fate::Kept, "{self:?}"),
            _ => {}
        }
    }
}

/// Time for the replica to act upon an order. A replica without a connection hears of it later, if at all.
fn patience(connected: bool, most: Span) -> Span {
    if connected { most } else { FAREWELL }
}

#[cfg(test)]
mod tests;
