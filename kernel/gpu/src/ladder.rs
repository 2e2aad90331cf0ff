//! The ladder: the rung on which a process leaves the device, as a pure function of the findings.
//!
//! (a) The process never touched CUDA: nothing to do. (b) Copy out the frameworks' memory, then take the driver's
//! checkpoint (c) of the small rest. (c) alone takes everything if (b) can't. (d) Save the state, restart the
//! interpreter, restore. (e) Go on with another replica. (b) alone doesn't free a device: the CUDA context and its
//! open files stay. Each skipped rung has reasons that can be shown.

use crate::Pid;
use crate::driver::{Api, GpuPair, GpuUuid, ProcessState};
use hop_words::memory::HostLeft;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Device memory that a bare CUDA context takes, for estimates (200 to 600 MB, by device and driver).
pub const CONTEXT_BYTES: u64 = 600 << 20;

/// Reason to save nothing without a state engine.
pub(crate) const NO_STATE: &str = "no state engine was asked";

/// Whether something holds, where it could be found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Known {
    Yes,
    No,
    #[default]
    Unknown,
}

/// The in-kernel agent's report on its process.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Inside {
    /// Bytes on the device that a copy-out would free.
    pub frameworks_bytes: u64,
    /// Page-locked bytes at hand from earlier parks: they needn't be found again.
    pub pool_bytes: u64,
    /// Obstacles to copying the frameworks' memory out, by name.
    pub refusals: Vec<String>,
    pub managed: Known,
    pub ipc: Known,
    /// The interpreter was started again (rung d), and its variables wait for a device.
    pub saved: bool,
}

/// The driver as it was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverFound {
    /// `cuDriverGetVersion`.
    pub cuda: i32,
    /// 580 of `580.159.03`; none where NVML doesn't say.
    pub branch: Option<u32>,
    pub api: Option<Api>,
    /// Whether the calls on this process are allowed, by ourselves or through the helper.
    pub permitted: Known,
}

/// State that the state engine could save (rung d).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateOffer {
    pub bytes: u64,
    /// Names that wouldn't survive a restart.
    pub lost: Vec<String>,
}

/// Everything that the choice depends on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The process holds a device file, or NVML lists it.
    pub touched: bool,
    /// Bytes that NVML counts for the process; none where NVML is absent or doesn't say.
    pub device_bytes: Option<u64>,
    pub devices: Vec<GpuUuid>,
    pub inside: Option<Inside>,
    /// None: libcuda couldn't be loaded; the text says why.
    pub driver: Result<DriverFound, String>,
    pub mig: Known,
    pub mps: Known,
    /// The process was started for checkpoints with CUDA IPC (driver 610, `cuda-checkpoint --launch-job`).
    pub ipc_job: bool,
    /// Host memory still allowed to the process, and the limit behind the number; `None`: unlimited as far as known.
    pub host_left: Option<HostLeft>,
    /// Other processes of the process's tree that hold a device file.
    pub children: Vec<Pid>,
    /// The state engine's offer to save the state, or its obstacle.
    pub state: Result<StateOffer, String>,
    /// Another replica could run the kernel's cells instead.
    pub other_replica: bool,
    /// Rungs that were tried, and their results.
    pub tried: Vec<(Rung, String)>,
}

/// A way off the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rung {
    /// (a)
    Nothing,
    /// (b), then (c) of the rest.
    CopyOut,
    /// (c) of everything.
    Checkpoint,
    /// (d)
    Restart,
    /// (e)
    Move,
}

impl Rung {
    pub const ALL: [Self; 5] = [
        Self::Nothing,
        Self::CopyOut,
        Self::Checkpoint,
        Self::Restart,
        Self::Move,
    ];

    /// The letter in messages and benchmark cases.
    pub fn letter(self) -> &'static str {
        match self {
            Self::Nothing => "a",
            Self::CopyOut => "b+c",
            Self::Checkpoint => "c",
            Self::Restart => "d",
            Self::Move => "e",
        }
    }
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing to do",
            Self::CopyOut => "copy out the frameworks, checkpoint the rest",
            Self::Checkpoint => "driver checkpoint",
            Self::Restart => "save, restart, restore",
            Self::Move => "another replica",
        })
    }
}

/// Why a rung is passed over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "reason")]
pub enum Reason {
    #[error("the process holds a GPU")]
    Touched,
    #[error(
        "no gresshopper agent answers inside the process (it needs `import gresshopper.gpu; gresshopper.gpu.install()`, or %load_ext gresshopper.gpu)"
    )]
    NoAgent,
    #[error("{what}")]
    AgentRefuses { what: String },
    #[error("the frameworks hold nothing on the device")]
    NothingHeld,
    #[error("{why}")]
    NoDriver { why: String },
    #[error("the driver (CUDA {}.{}) has no checkpoint calls; 570 is the first that has", cuda / 1000, cuda % 1000 / 10)]
    DriverTooOld { cuda: i32 },
    #[error("the driver lets nobody unprivileged checkpoint, and no helper is there (hop-gpu-helper)")]
    NotPermitted,
    #[error("the process uses managed memory, which the driver can't checkpoint")]
    Managed,
    #[error("the process shares device memory with another (CUDA IPC), which this driver can't checkpoint")]
    Ipc,
    #[error("the device is a MIG instance, which the driver can't checkpoint")]
    Mig,
    #[error("the process runs under MPS, which the driver can't checkpoint")]
    Mps,
    #[error("{} of host memory needed, {} left by {limit}", mib(*need), mib(*left))]
    HostMemory { need: u64, left: u64, limit: String },
    #[error("processes that it started hold the device, too: {}", list(pids))]
    Children { pids: Vec<Pid> },
    #[error("{why}")]
    NoState { why: String },
    #[error("a restart would lose {}", names.join(", "))]
    StateLost { names: Vec<String> },
    #[error("no other replica could go on")]
    NoOtherReplica,
    #[error("tried: {why}")]
    Tried { why: String },
    #[error("it holds no GPU yet, so nothing would keep it from opening one that isn't its any more")]
    NotOnGpu,
    #[error("it holds its GPU in another way than by CUDA, or the driver won't say how it stands")]
    NoContext,
    #[error("without NVML nobody can tell to which GPU it would come back")]
    NoTelemetry,
    #[error(
        "the driver brings it back to the same GPU only (580 would to others, too), and there are {gpus} here"
    )]
    SameGpuOnly { gpus: usize },
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

fn list(pids: &[Pid]) -> String {
    pids.iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

/// The rungs that were passed over and why, in the ladder's order.
pub type PassedOver = Vec<(Rung, Vec<Reason>)>;

/// The choice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Chosen {
    pub rung: Rung,
    pub passed_over: PassedOver,
}

/// No rung leads off the device: the kernel keeps its lease, or the user is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    pub passed_over: PassedOver,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the process can't leave the GPU")?;
        for (rung, reasons) in self.passed_over.iter().filter(|(rung, _)| *rung != Rung::Nothing) {
            let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
            write!(f, "; {rung}: {}", reasons.join(", "))?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}

/// The first rung against which nothing speaks.
///
/// # Errors
/// Each rung has a reason against it.
pub fn choose(found: &Found) -> Result<Chosen, Refusal> {
    let mut passed_over = PassedOver::new();
    for rung in Rung::ALL {
        let mut reasons = against(rung, found);
        let tried = found.tried.iter().filter(|(tried, _)| *tried == rung);
        reasons.extend(tried.map(|(_, why)| Reason::Tried { why: why.clone() }));
        if reasons.is_empty() {
            return Ok(Chosen { rung, passed_over });
        }
        passed_over.push((rung, reasons));
    }
    Err(Refusal { passed_over })
}

fn against(rung: Rung, found: &Found) -> Vec<Reason> {
    match rung {
        Rung::Nothing if found.touched => vec![Reason::Touched],
        Rung::Nothing => Vec::new(),
        Rung::CopyOut => against_copy_out(found),
        Rung::Checkpoint => {
            let mut reasons = against_driver(found);
            let image = found.device_bytes.unwrap_or(0);
            reasons.extend(against_host_memory(found, image));
            reasons
        }
        Rung::Restart => match &found.state {
            Err(why) => vec![Reason::NoState { why: why.clone() }],
            Ok(offer) if !offer.lost.is_empty() => vec![Reason::StateLost {
                names: offer.lost.clone(),
            }],
            Ok(_) => Vec::new(),
        },
        Rung::Move if found.other_replica => Vec::new(),
        Rung::Move => vec![Reason::NoOtherReplica],
    }
}

fn against_copy_out(found: &Found) -> Vec<Reason> {
    let Some(inside) = &found.inside else {
        return vec![Reason::NoAgent];
    };
    let mut reasons: Vec<Reason> = inside
        .refusals
        .iter()
        .map(|what| Reason::AgentRefuses { what: what.clone() })
        .collect();
    if inside.frameworks_bytes == 0 && inside.refusals.is_empty() {
        reasons.push(Reason::NothingHeld);
    }
    reasons.extend(against_driver(found));
    reasons.extend(against_host_memory(found, copy_out_host_need(found, inside)));
    reasons
}

/// Reasons against parking the process in its running cell, by the driver alone. They are all reasons against rung
/// (c), and the lack of a way to go on later with any other GPU. `gpus` is the number of GPUs in this machine; `None`
/// means unknown.
pub fn against_mid_cell(found: &Found, state: Option<ProcessState>, gpus: Option<usize>) -> Vec<Reason> {
    if !found.touched && found.children.is_empty() {
        return vec![Reason::NotOnGpu];
    }
    let mut reasons = against(Rung::Checkpoint, found);
    let driver = found.driver.as_ref().ok().and_then(|d| d.api);
    if driver.is_some() && found.children.is_empty() && state.is_none() {
        reasons.push(Reason::NoContext);
    }
    match gpus {
        None => reasons.push(Reason::NoTelemetry),
        Some(gpus) if driver == Some(Api::V12_8) && gpus > found.devices.len() => {
            reasons.push(Reason::SameGpuOnly { gpus });
        }
        Some(_) => {}
    }
    reasons
}

/// Host memory for (b) and for (c) of the rest: the copies, less memory already page-locked, and the image of the
/// rest.
fn copy_out_host_need(found: &Found, inside: &Inside) -> u64 {
    let copies = inside.frameworks_bytes.saturating_sub(inside.pool_bytes);
    let rest = match found.device_bytes {
        Some(all) => all.saturating_sub(inside.frameworks_bytes),
        None => CONTEXT_BYTES,
    };
    copies.saturating_add(rest)
}

fn against_driver(found: &Found) -> Vec<Reason> {
    let mut reasons = Vec::new();
    match &found.driver {
        Err(why) => reasons.push(Reason::NoDriver { why: why.clone() }),
        Ok(DriverFound { api: None, cuda, .. }) => reasons.push(Reason::DriverTooOld { cuda: *cuda }),
        Ok(DriverFound {
            permitted: Known::No, ..
        }) => reasons.push(Reason::NotPermitted),
        Ok(_) => {}
    }
    // Unknown facts are let through: the driver decides, and its refusal leads to the next rung.
    let inside = found.inside.as_ref();
    if inside.is_some_and(|i| i.managed == Known::Yes) {
        reasons.push(Reason::Managed);
    }
    if inside.is_some_and(|i| i.ipc == Known::Yes) && !ipc_is_served(found) {
        reasons.push(Reason::Ipc);
    }
    if found.mig == Known::Yes {
        reasons.push(Reason::Mig);
    }
    if found.mps == Known::Yes {
        reasons.push(Reason::Mps);
    }
    if !found.children.is_empty() {
        reasons.push(Reason::Children {
            pids: found.children.clone(),
        });
    }
    reasons
}

fn ipc_is_served(found: &Found) -> bool {
    let branch = found.driver.as_ref().ok().and_then(|d| d.branch);
    found.ipc_job && branch.is_some_and(|branch| branch >= 610)
}

fn against_host_memory(found: &Found, need: u64) -> Option<Reason> {
    let left = found.host_left.as_ref()?;
    (need > left.bytes).then(|| Reason::HostMemory {
        need,
        left: left.bytes,
        limit: left.limit.clone(),
    })
}

/// A device as a restore sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub uuid: GpuUuid,
    /// The chip, by NVML's product name.
    pub name: String,
    pub total_bytes: u64,
}

/// Why a parked process can't come back on these devices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RemapError {
    #[error("{parked} devices were parked and {given} are given: the numbers must be the same")]
    Count { parked: usize, given: usize },
    #[error("parked on {was}, given {given}: the driver restores only onto the same type of chip")]
    Chip { was: String, given: String },
    #[error("{given} has less memory than the device that was parked")]
    Memory { given: GpuUuid },
    #[error("other devices are given than were parked, which needs driver 580 (CUDA 13.0)")]
    Driver,
}

/// Which device comes back as which. Empty when each is itself.
///
/// # Errors
/// The driver wouldn't allow it.
pub fn remap(parked: &[Place], given: &[Place], api: Option<Api>) -> Result<Vec<GpuPair>, RemapError> {
    if parked.len() != given.len() {
        return Err(RemapError::Count {
            parked: parked.len(),
            given: given.len(),
        });
    }
    // A device that is given again stays itself; the others are taken in order.
    let mut others = given.iter().filter(|g| !parked.iter().any(|p| p.uuid == g.uuid));
    let mut pairs = Vec::new();
    for old in parked {
        let again = given.iter().find(|g| g.uuid == old.uuid);
        let new = again
            .or_else(|| others.next())
            .expect("as many are given as were parked");
        if new.name != old.name {
            return Err(RemapError::Chip {
                was: old.name.clone(),
                given: new.name.clone(),
            });
        }
        if new.total_bytes < old.total_bytes {
            return Err(RemapError::Memory { given: new.uuid });
        }
        pairs.push(GpuPair {
            old: old.uuid,
            new: new.uuid,
        });
    }
    if pairs.iter().all(|p| p.old == p.new) {
        return Ok(Vec::new());
    }
    match api {
        Some(Api::V13) => Ok(pairs),
        _ => Err(RemapError::Driver),
    }
}

#[cfg(test)]
mod tests;
