//! The driver's checkpoint calls as a trait, and what their answers mean.
//!
//! RUNNING -lock-> LOCKED -checkpoint-> CHECKPOINTED -restore-> LOCKED -unlock-> RUNNING. Knows nothing of how the
//! calls are reached ([`crate::libcuda`] in this process, [`crate::helper`] in another).

use crate::Pid;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// The driver's view of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessState {
    Running,
    Locked,
    Checkpointed,
    /// Terminal: the driver offers no way out of it.
    Failed,
    /// Newer drivers: on the way to `Checkpointed`.
    Checkpointing,
    /// Newer drivers: on the way to `Locked`.
    Restoring,
}

impl ProcessState {
    /// Reads a `CUprocessState`; `None` for an unknown number.
    pub fn from_raw(raw: i32) -> Option<Self> {
        Some(match raw {
            0 => Self::Running,
            1 => Self::Locked,
            2 => Self::Checkpointed,
            3 => Self::Failed,
            4 => Self::Checkpointing,
            5 => Self::Restoring,
            _ => return None,
        })
    }
}

impl fmt::Display for ProcessState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Running => "running",
            Self::Locked => "locked",
            Self::Checkpointed => "checkpointed",
            Self::Failed => "failed",
            Self::Checkpointing => "being checkpointed",
            Self::Restoring => "being restored",
        })
    }
}

/// Generation of the checkpoint structures that the driver reads. All are 64 bytes; unused bytes are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Api {
    /// CUDA 12.8 (driver 570): no device remapping.
    V12_8,
    /// CUDA 13.0 (driver 580): `gpuPairs` in the restore arguments.
    V13,
}

impl Api {
    /// Generation for a driver of this `cuDriverGetVersion`; `None` if the driver has no checkpoint calls.
    pub fn of_version(version: i32) -> Option<Self> {
        match version {
            13_000.. => Some(Self::V13),
            12_080.. => Some(Self::V12_8),
            _ => None,
        }
    }
}

/// A device's UUID, as printed by NVML (`GPU-...`) and as wanted by the driver (16 bytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GpuUuid(pub [u8; 16]);

/// The text isn't a GPU's UUID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no GPU UUID (GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx)")]
pub struct NoUuid(String);

impl std::str::FromStr for GpuUuid {
    type Err = NoUuid;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || NoUuid(text.to_owned());
        let body = text
            .strip_prefix("GPU-")
            .or_else(|| text.strip_prefix("MIG-"))
            .unwrap_or(text);
        let digits: Vec<u8> = body.bytes().filter(|b| *b != b'-').collect();
        if digits.len() != 32 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(wrong());
        }
        let mut uuid = [0; 16];
        for (byte, pair) in uuid.iter_mut().zip(digits.chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        Ok(Self(uuid))
    }
}

impl TryFrom<String> for GpuUuid {
    type Error = NoUuid;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<GpuUuid> for String {
    fn from(uuid: GpuUuid) -> Self {
        uuid.to_string()
    }
}

impl fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU-")?;
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// Memory checkpointed on `old` is restored on `new`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuPair {
    pub old: GpuUuid,
    pub new: GpuUuid,
}

/// One verb of the checkpoint state machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "do")]
pub enum Step {
    State,
    /// Waits at most `timeout_ms` for the process's CUDA calls to come to rest.
    Lock {
        timeout_ms: u32,
    },
    Checkpoint,
    /// An empty `pairs` restores onto the same devices.
    Restore {
        pairs: Vec<GpuPair>,
    },
    Unlock,
}

impl Step {
    pub fn name(&self) -> &'static str {
        match self {
            Self::State => "cuCheckpointProcessGetState",
            Self::Lock { .. } => "cuCheckpointProcessLock",
            Self::Checkpoint => "cuCheckpointProcessCheckpoint",
            Self::Restore { .. } => "cuCheckpointProcessRestore",
            Self::Unlock => "cuCheckpointProcessUnlock",
        }
    }
}

/// A failed call of the driver.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum DriverError {
    /// The driver answered with an error. `code` is a `CUresult`.
    #[error("{call} answered {code} ({})", meaning(*code))]
    Refused { call: String, code: i32 },
    #[error("{call} has not returned after {after:?}")]
    TimedOut { call: String, after: Duration },
    /// The helper was asked and couldn't be reached, or refused.
    #[error("the GPU helper: {0}")]
    Helper(String),
    /// The driver lacks the call, or has an older generation of it.
    #[error("{0}")]
    Unsupported(String),
}

impl DriverError {
    /// Whether the same call with more privilege may be answered.
    pub fn is_permission(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                code: CUDA_ERROR_NOT_PERMITTED
                    | CUDA_ERROR_OPERATING_SYSTEM
                    // Error of a process whose cgroup may not open the device (any more).
                    | CUDA_ERROR_NOT_INITIALIZED
                    | CUDA_ERROR_NO_DEVICE,
                ..
            }
        )
    }
}

pub const CUDA_ERROR_NOT_INITIALIZED: i32 = 3;
pub const CUDA_ERROR_NO_DEVICE: i32 = 100;
pub const CUDA_ERROR_OPERATING_SYSTEM: i32 = 304;
pub const CUDA_ERROR_NOT_PERMITTED: i32 = 800;

/// Meaning of a `CUresult` of these calls, for the reader of a message.
pub fn meaning(code: i32) -> &'static str {
    match code {
        1 => "invalid value: no such process, or arguments of another generation",
        2 => "out of memory",
        3 => "the driver is not initialized",
        100 => "no CUDA device",
        101 => "no such device",
        304 => "the operating system refused: privilege, or a process that an earlier failure left stuck",
        400 => "invalid handle",
        401 => "the process is not in the state that this call needs",
        600 => "not ready: the lock's time is over",
        800 => "not permitted: ask the privileged helper",
        801 => "not supported for this process or device",
        999 => "unknown error in the driver",
        _ => "see CUresult in the CUDA driver API's reference",
    }
}

/// The checkpoint calls, one step at a time, on processes by pid. Calls may block: the callers give them a deadline
/// ([`crate::calls`]).
pub trait Driver: Send + Sync {
    fn api(&self) -> Option<Api>;

    /// Does a step; for [`Step::State`] the state found, otherwise the step's resulting state.
    fn step(&self, pid: Pid, step: &Step) -> Result<ProcessState, DriverError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_survives_its_text() {
        let text = "GPU-01234567-89ab-cdef-0123-456789abcdef";
        let uuid: GpuUuid = text.parse().unwrap();
        assert_eq!(uuid.to_string(), text);
        assert!("GPU-0123".parse::<GpuUuid>().is_err());
        assert!(
            "GPU-é1234567-89ab-cdef-0123-456789abcdef"
                .parse::<GpuUuid>()
                .is_err()
        );
    }

    #[test]
    fn generations_follow_the_driver() {
        assert_eq!(Api::of_version(12_040), None);
        assert_eq!(Api::of_version(12_080), Some(Api::V12_8));
        assert_eq!(Api::of_version(13_000), Some(Api::V13));
    }
}
