//! The states of Slurm's jobs and nodes. An unknown word is kept as read.

use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// An enum over Slurm's words with an `Unknown` for the rest.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(from = "String", into = "String")]
        pub enum $name {
            $($(#[$vdoc])* $variant,)*
            /// An unknown word of Slurm's, as read.
            Unknown(String),
        }

        impl $name {
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $word,)*
                    Self::Unknown(word) => word,
                }
            }
        }

        impl From<&str> for $name {
            fn from(word: &str) -> Self {
                match word {
                    $($word => Self::$variant,)*
                    other => Self::Unknown(other.to_owned()),
                }
            }
        }

        impl From<String> for $name {
            fn from(word: String) -> Self {
                Self::from(word.as_str())
            }
        }

        impl From<$name> for String {
            fn from(word: $name) -> Self {
                word.as_str().to_owned()
            }
        }

        impl FromStr for $name {
            type Err = Infallible;

            fn from_str(word: &str) -> Result<Self, Infallible> {
                Ok(Self::from(word))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

words! {
    /// A job's state, long form.
    JobState {
        Pending = "PENDING",
        Running = "RUNNING",
        Suspended = "SUSPENDED",
        Completing = "COMPLETING",
        Completed = "COMPLETED",
        Cancelled = "CANCELLED",
        Failed = "FAILED",
        Timeout = "TIMEOUT",
        NodeFail = "NODE_FAIL",
        Preempted = "PREEMPTED",
        BootFail = "BOOT_FAIL",
        Deadline = "DEADLINE",
        OutOfMemory = "OUT_OF_MEMORY",
        Configuring = "CONFIGURING",
        Resizing = "RESIZING",
        Requeued = "REQUEUED",
        RequeueHold = "REQUEUE_HOLD",
        RequeueFed = "REQUEUE_FED",
        SpecialExit = "SPECIAL_EXIT",
        ResvDelHold = "RESV_DEL_HOLD",
        StageOut = "STAGE_OUT",
        Stopped = "STOPPED",
        Signaling = "SIGNALING",
        Revoked = "REVOKED",
    }
}

impl JobState {
    /// Whether the job waits for resources and may yet start.
    pub fn is_waiting(&self) -> bool {
        matches!(
            self,
            Self::Pending
                | Self::Requeued
                | Self::RequeueHold
                | Self::SpecialExit
                | Self::ResvDelHold
                | Self::RequeueFed
        )
    }

    /// Whether the job holds resources and its processes may run. In `Configuring` its nodes boot, and nothing runs
    /// yet.
    pub fn holds_resources(&self) -> bool {
        matches!(
            self,
            Self::Running
                | Self::Suspended
                | Self::Completing
                | Self::Configuring
                | Self::Resizing
                | Self::StageOut
                | Self::Stopped
                | Self::Signaling
        )
    }

    /// It is over for good. An unknown state is none of the three.
    pub fn is_over(&self) -> bool {
        matches!(
            self,
            Self::Completed
                | Self::Cancelled
                | Self::Failed
                | Self::Timeout
                | Self::NodeFail
                | Self::Preempted
                | Self::BootFail
                | Self::Deadline
                | Self::OutOfMemory
                | Self::Revoked
        )
    }
}

words! {
    /// A node's base state.
    NodeBase {
        Unset = "UNKNOWN",
        Down = "DOWN",
        Idle = "IDLE",
        Allocated = "ALLOCATED",
        Mixed = "MIXED",
        Error = "ERROR",
        Future = "FUTURE",
        Inval = "INVAL",
    }
}

words! {
    /// Flags behind the base state.
    NodeFlag {
        Cloud = "CLOUD",
        Completing = "COMPLETING",
        Drain = "DRAIN",
        Draining = "DRAINING",
        Drained = "DRAINED",
        DynamicNorm = "DYNAMIC_NORM",
        Fail = "FAIL",
        Failing = "FAILING",
        InvalidReg = "INVALID_REG",
        Maintenance = "MAINTENANCE",
        NotResponding = "NOT_RESPONDING",
        PowerDown = "POWER_DOWN",
        PoweringDown = "POWERING_DOWN",
        PoweredDown = "POWERED_DOWN",
        PowerUp = "POWER_UP",
        PoweringUp = "POWERING_UP",
        Planned = "PLANNED",
        RebootRequested = "REBOOT_REQUESTED",
        RebootIssued = "REBOOT_ISSUED",
        Reserved = "RESERVED",
        Blocked = "BLOCKED",
    }
}

/// A node's state: `MIXED+DRAIN`, `IDLE+CLOUD+POWERED_DOWN`, `DOWN*`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeState {
    pub base: NodeBase,
    pub flags: Vec<NodeFlag>,
}

impl NodeState {
    /// Reads what `scontrol show node` prints; a trailing `*` means not responding.
    pub fn parse(text: &str) -> Self {
        let mut flags = Vec::new();
        let text = match text.strip_suffix('*') {
            Some(text) => {
                flags.push(NodeFlag::NotResponding);
                text
            }
            None => text,
        };
        let mut words = text.split('+');
        let base = NodeBase::from(words.next().unwrap_or_default());
        flags.extend(words.map(NodeFlag::from));
        flags.dedup();
        Self { base, flags }
    }

    pub fn has(&self, flag: &NodeFlag) -> bool {
        self.flags.contains(flag)
    }

    /// Drained, expected to fail, or in a maintenance by an administrator's word: running jobs go on, and nothing new
    /// starts.
    pub fn is_drained(&self) -> bool {
        use NodeFlag as F;
        let drains = |flag: &F| {
            matches!(
                flag,
                F::Drain | F::Draining | F::Drained | F::Fail | F::Failing | F::Maintenance
            )
        };
        self.flags.iter().any(drains)
    }

    /// Work can be started there now: up, answering, not draining, powered on.
    pub fn is_usable(&self) -> bool {
        use NodeFlag as F;
        matches!(self.base, NodeBase::Idle | NodeBase::Allocated | NodeBase::Mixed)
            && !self.flags.iter().any(|flag| {
                matches!(
                    flag,
                    F::Drain
                        | F::Draining
                        | F::Drained
                        | F::Fail
                        | F::Failing
                        | F::InvalidReg
                        | F::Maintenance
                        | F::NotResponding
                        | F::PowerDown
                        | F::PoweringDown
                        | F::PoweredDown
                        | F::PoweringUp
                        | F::RebootIssued
                        | F::Blocked
                )
            })
    }

    /// Powered down: Slurm can power it up on demand.
    pub fn is_powered_down(&self) -> bool {
        self.has(&NodeFlag::PoweredDown)
    }
}

impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.base.fmt(f)?;
        self.flags.iter().try_for_each(|flag| write!(f, "+{flag}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_state_is_at_most_one_of_three() {
        let all = [
            "PENDING",
            "RUNNING",
            "COMPLETING",
            "COMPLETED",
            "NODE_FAIL",
            "STOPPED",
            "NEW_IN_27",
        ];
        for word in all {
            let state = JobState::from(word);
            let kinds = [state.is_waiting(), state.holds_resources(), state.is_over()];
            assert!(kinds.iter().filter(|kind| **kind).count() <= 1, "{word}");
            assert_eq!(state.to_string(), word);
        }
        assert_eq!(
            JobState::from("NEW_IN_27"),
            JobState::Unknown("NEW_IN_27".to_owned())
        );
    }

    #[test]
    fn node_states_of_scontrol() {
        assert!(NodeState::parse("IDLE").is_usable());
        assert!(NodeState::parse("MIXED+PLANNED").is_usable());
        assert!(!NodeState::parse("MIXED+DRAIN").is_usable());
        assert!(NodeState::parse("MIXED+DRAIN").is_drained());
        assert!(NodeState::parse("IDLE+FAIL").is_drained());
        assert!(NodeState::parse("ALLOCATED+FAILING").is_drained());
        assert!(NodeState::parse("MIXED+MAINTENANCE").is_drained());
        assert!(!NodeState::parse("DOWN*").is_drained());
        assert!(!NodeState::parse("DOWN*").is_usable());
        assert!(!NodeState::parse("IDLE*").is_usable());
        let cloud = NodeState::parse("IDLE+CLOUD+POWERED_DOWN");
        assert!(cloud.is_powered_down() && !cloud.is_usable());
        assert_eq!(cloud.to_string(), "IDLE+CLOUD+POWERED_DOWN");
    }
}
