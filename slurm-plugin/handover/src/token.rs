//! The agent's requests to the plugin, and the plugin's confirmations to the agent.
//!
//! A [`Token`] travels as the payload of a MUNGE credential restricted to uid 0, in the environment variable
//! [`TOKEN_VARIABLE`] of a lease's step. A [`Confirmation`] comes back as one JSON line on the agent's Unix stream
//! socket, from a peer of uid 0; one connection a line. Neither side answers a line.
//!
//! Both carry the version [`VERSION`] and refuse any other. Making and opening credentials is left to
//! `hop-munge` and its callers, sockets to the plugin and the agent.

pub use hop_words::gpu::Device;
use hop_words::id::{Epoch, GpuIndex, JobId, LeaseId, NodeName, UserName};
use hop_words::lease::Handover;
use hop_words::line;
use hop_words::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The version of [`Token`] and [`Confirmation`].
pub const VERSION: u32 = 1;

/// The environment variable that carries the credential with the token into the lease's step.
pub const TOKEN_VARIABLE: &str = "GRESSHOPPER_LEASE";

/// The environment variable that marks a step as a kernel's. Its value, the kernel's id, is only a name here.
pub const KERNEL_VARIABLE: &str = "GRESSHOPPER_KERNEL";

/// The longest line that either side reads, in bytes.
pub const MAX_LINE: usize = 64 * 1024;

/// Age in seconds from which a token is no longer believed; also the time to live of the token's credential. The age
/// covers an srun waiting for the last lease's GPU.
pub const MAX_AGE_S: u64 = 300;

/// The agent's order to the plugin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// [`VERSION`].
    pub v: u32,
    pub op: Op,
    pub lease: LeaseId,
    /// Greater than that of any earlier lease of the node's devices.
    pub epoch: Epoch,
    /// The pilot's job: the plugin refuses the token in a step of any other.
    pub pilot: JobId,
    /// The agent's socket, absolute, where the confirmation goes.
    pub notify: PathBuf,
    /// Time in milliseconds for holders of the device at take-back, before these processes are ended.
    pub grace_ms: u32,
    /// By this node's clock.
    pub issued_at: Timestamp,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// Hand over this step's devices and cores; the take-back follows at the step's end by itself.
    Lend(Lend),
    /// End the lease that a killed slurmstepd left behind, or try a blocked device once more. For a step with
    /// `--overlap --gres=none`.
    TakeBack,
    /// Say how the node stands, after another look at blocked devices. For a step as of [`Op::TakeBack`].
    Look(Look),
}

/// A request to look at blocked devices once more.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Look {
    pub again: Vec<GpuIndex>,
    /// The asking operator, as known to `hopd`. Their word lets one look do where the count was lost.
    #[serde(default)]
    pub operator: Option<UserName>,
    /// When they asked. The answer repeats the time: a look begun before answers no later request.
    #[serde(default)]
    pub asked: Option<Timestamp>,
}

/// To whom, and how much: the plugin refuses a step that holds anything else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lend {
    pub kernel: KernelProcess,
    /// The number of GPUs that the lease's step must hold; 0: cores alone.
    pub gpus: u16,
    /// The number of cores that the lease was asked for; 0: none are handed over.
    pub cpus: u16,
}

/// The executor's process. The plugin believes none of the fields, and compares all with its own record of the step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelProcess {
    pub uid: u32,
    /// The pid of the step's first process (the replica).
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`, in clock ticks since boot.
    pub start_time: u64,
    pub seat_job: JobId,
    pub seat_step: u32,
}

/// What the plugin tells the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Confirmation {
    HandedOver(HandedOver),
    TakenBack(TakenBack),
    Standing(Standing),
    Refused(Refused),
}

/// How the node stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    pub node: NodeName,
    pub pilot: JobId,
    pub level: Level,
    /// Why nothing is counted here; empty if it is.
    pub why: String,
    pub blocked: Vec<BlockedDevice>,
    /// Devices blocked before this look, each with the lease to blame.
    pub freed: Vec<(GpuIndex, LeaseId)>,
    /// [`Look::asked`] of the look.
    #[serde(default)]
    pub asked: Option<Timestamp>,
    pub at: Timestamp,
}

/// A device not lent to anybody before it is free.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockedDevice {
    pub index: GpuIndex,
    pub lease: LeaseId,
    pub why: String,
}

/// The kernel of the token, and nothing else, can open the devices from now on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandedOver {
    pub lease: LeaseId,
    pub node: NodeName,
    #[serde(default)]
    pub level: Level,
    #[serde(flatten)]
    pub handover: Handover,
}

/// Evidence, for the node, that nobody holds a device after its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Linux counts the device's open files from the lease's beginning to its end; zero is the proof.
    Counted,
    /// The kernel's processes are held still and all are looked at once.
    #[default]
    Scanned,
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Counted => "counted",
            Self::Scanned => "scanned",
        })
    }
}

/// The end of a lease on this node, as far as an end was possible.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenBack {
    pub lease: LeaseId,
    pub epoch: Epoch,
    pub node: NodeName,
    pub pilot: JobId,
    /// The devices of the lease, clean or not.
    pub devices: Vec<GpuIndex>,
    /// No kernel can open any of the devices, and nothing holds one: counted or scanned, as `level` says.
    pub clean: bool,
    /// The devices that aren't clean: no plugin grants them before a take-back of theirs was. Empty if `clean`.
    #[serde(default)]
    pub blocked: Vec<GpuIndex>,
    #[serde(default)]
    pub level: Level,
    /// The processes that were ended for it.
    pub ended_pids: Vec<u32>,
    /// Remaining holders of a device; empty if `clean`.
    pub holders: Vec<Holder>,
    pub at: Timestamp,
}

/// A process, or another cause, that keeps a device from being clean.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub pid: u32,
    pub uid: u32,
    /// The program's file, empty where it couldn't be read.
    pub exe: String,
    pub how: Hold,
    /// Why the holder was not ended, in a sentence.
    pub why: String,
}

/// The ways to hold a device without opening it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hold {
    /// An open descriptor in some thread's file table.
    Descriptor,
    /// A memory mapping.
    Mapping,
    /// An io_uring, which may have it registered.
    IoUring,
    /// A descriptor in flight in a Unix socket of the process, perhaps the device's.
    InFlight,
    /// Cgroup state that couldn't be taken away.
    Cgroup,
    /// Linux counts an open file of the device; the process opened it, and may be gone.
    OpenFile,
    /// Perhaps none: the process can't be looked at, and keeps others from being looked at.
    Unseen,
    /// None: nobody holds it, and the record of the lease's end can't be written.
    Record,
}

impl std::fmt::Display for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Descriptor => "an open descriptor",
            Self::Mapping => "a mapping",
            Self::IoUring => "an io_uring",
            Self::InFlight => "a descriptor in flight in a socket",
            Self::Cgroup => "its cgroup",
            Self::OpenFile => "an open file",
            Self::Unseen => "what can't be seen, if at all",
            Self::Record => "its record",
        })
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            pid,
            uid,
            exe,
            how,
            why,
        } = self;
        match (how, exe.as_str()) {
            (Hold::Record, _) => write!(f, "the end of its lease can't be recorded: {why}"),
            (_, "") => write!(f, "process {pid} of uid {uid} holds it by {how}: {why}"),
            _ => write!(f, "process {pid} ({exe}, uid {uid}) holds it by {how}: {why}"),
        }
    }
}

/// Nothing was handed over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// `None` if the credential was not believed: its token then proves nothing.
    pub lease: Option<LeaseId>,
    pub pilot: JobId,
    pub step: u32,
    pub reason: Refusal,
    pub at: Timestamp,
}

/// Why the plugin did nothing. `Display` is what the sysadmin reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "code", rename_all = "kebab-case")]
pub enum Refusal {
    #[error("the credential was not believed: {detail}")]
    Credential { detail: String },
    #[error("the credential was used before")]
    Replayed,
    #[error("the token can't be read: {detail}")]
    Token { detail: String },
    #[error("the token is of version {theirs}, the plugin of {ours}: install the same release on the node")]
    Version { ours: u32, theirs: u32 },
    #[error("the token was made by uid {uid}, which is not the service account")]
    MintedByOther { uid: u32 },
    #[error("the step's job belongs to uid {uid}, not to the service account")]
    JobOfOther { uid: u32 },
    #[error("the token is for pilot {token}, the step runs in job {step}")]
    WrongPilot { token: JobId, step: JobId },
    #[error("the token is {age_s} s old, at most {MAX_AGE_S} s are allowed")]
    TooOld { age_s: u64 },
    #[error(
        "no kernel is registered as step {step} of job {job}: it is not running, not a kernel's, Slurm constrains no devices there (ConstrainDevices), or its registration failed as it started (slurmd's log says why; a restart of the kernel registers it)"
    )]
    UnknownKernel { job: JobId, step: u32 },
    #[error("the kernel's step belongs to uid {record}, the token says {token}")]
    WrongUid { token: u32, record: u32 },
    #[error("process {pid} is not the one that was registered for the kernel's step")]
    WrongProcess { pid: u32 },
    #[error("process {pid} is not in the cgroup of the kernel's step")]
    OutsideItsStep { pid: u32 },
    #[error("a kernel of root's gets no device")]
    RootKernel,
    #[error(
        "the lease asks for {token} GPUs, Slurm names {step} for its step, and {opens} device files open in it"
    )]
    WrongGpus { token: u16, step: u16, opens: u16 },
    #[error("epoch {epoch} is not greater than {last}, the last that GPU {index} saw")]
    StaleEpoch {
        epoch: Epoch,
        last: Epoch,
        index: GpuIndex,
    },
    #[error("GPU {index} is blocked: {why}")]
    Blocked { index: GpuIndex, why: String },
    #[error(
        "uid {uid} gets no GPU on this node before GPU {index}, which a lease of theirs left blocked, is free"
    )]
    LesseeBlocks { uid: u32, index: GpuIndex },
    #[error("this node can't count open files, and isolation=counted asks for it: {why}")]
    NotCounted { why: String },
    #[error("the kernel holds lease {lease} already")]
    KernelHolds { lease: LeaseId },
    #[error("the lease belongs to pilot {owner}, the take-back came from {step}")]
    NotItsPilot { owner: JobId, step: JobId },
    #[error("Slurm does not constrain devices on this node (ConstrainDevices)")]
    Unconstrained,
    #[error("{what}: {detail}")]
    Failed { what: String, detail: String },
}

/// Why a token or a confirmation could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("not valid JSON of the handover protocol")]
    Json(#[source] serde_json::Error),
    #[error("version {theirs} of the handover protocol, this is {VERSION}")]
    Version { theirs: u32 },
    #[error("longer than {MAX_LINE} bytes")]
    TooLong,
}

#[derive(Deserialize)]
struct VersionOnly {
    v: u32,
}

/// A confirmation as it is written: the version beside the body.
#[derive(Serialize, Deserialize)]
struct Line<B> {
    v: u32,
    body: B,
}

fn check_version(bytes: &[u8]) -> Result<(), ReadError> {
    if bytes.len() > MAX_LINE {
        return Err(ReadError::TooLong);
    }
    let VersionOnly { v } = serde_json::from_slice(bytes).map_err(ReadError::Json)?;
    if v == VERSION {
        Ok(())
    } else {
        Err(ReadError::Version { theirs: v })
    }
}

impl Token {
    /// The credential's payload.
    pub fn to_payload(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a token holds nothing that JSON can't say")
    }

    /// Reads a credential's payload.
    ///
    /// # Errors
    /// Another version is told as such before anything else is read.
    pub fn from_payload(bytes: &[u8]) -> Result<Self, ReadError> {
        check_version(bytes)?;
        serde_json::from_slice(bytes).map_err(ReadError::Json)
    }
}

impl Confirmation {
    /// One line with its newline.
    pub fn to_line(&self) -> Vec<u8> {
        line::encode(&Line {
            v: VERSION,
            body: self,
        })
        .expect("a confirmation holds nothing that JSON can't say")
    }

    /// Reads a line, with or without its newline.
    ///
    /// # Errors
    /// Another version is told as such before anything else is read.
    pub fn from_line(line: &[u8]) -> Result<Self, ReadError> {
        check_version(line)?;
        let line: Line<Self> = serde_json::from_slice(line).map_err(ReadError::Json)?;
        Ok(line.body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(op: Op) -> Token {
        Token {
            v: VERSION,
            op,
            lease: LeaseId(7),
            epoch: Epoch(40),
            pilot: JobId(12),
            notify: "/var/lib/gresshopper/agent/n1/agent.12.sock".into(),
            grace_ms: 500,
            issued_at: Timestamp(1_700_000_000_000_000),
        }
    }

    fn lend() -> Op {
        let kernel = KernelProcess {
            uid: 1000,
            pid: 4711,
            start_time: 99,
            seat_job: JobId(3),
            seat_step: 0,
        };
        Op::Lend(Lend {
            kernel,
            gpus: 1,
            cpus: 2,
        })
    }

    #[test]
    fn a_token_survives_the_journey() {
        for op in [lend(), Op::TakeBack] {
            let token = token(op);
            assert_eq!(Token::from_payload(&token.to_payload()).unwrap(), token);
        }
    }

    #[test]
    fn the_written_form_is_stable() {
        let text = String::from_utf8(token(lend()).to_payload()).unwrap();
        assert_eq!(
            text,
            concat!(
                r#"{"v":1,"op":{"lend":{"kernel":{"uid":1000,"pid":4711,"start_time":99,"seat_job":3,"#,
                r#""seat_step":0},"gpus":1,"cpus":2}},"lease":7,"epoch":40,"pilot":12,"#,
                r#""notify":"/var/lib/gresshopper/agent/n1/agent.12.sock","grace_ms":500,"#,
                r#""issued_at":1700000000000000}"#
            )
        );
    }

    #[test]
    fn the_written_form_of_a_handover_is_stable() {
        let text = concat!(
            r#"{"v":1,"body":{"kind":"handed-over","lease":7,"epoch":40,"node":"n1","pilot":12,"step":3,"#,
            r#""devices":[{"index":1,"path":"/dev/nvidia1","major":195,"minor":1}],"cores":"2-5","#,
            r#""level":"counted","at":1700000000000000}}"#
        );
        let Confirmation::HandedOver(handed) = Confirmation::from_line(text.as_bytes()).unwrap() else {
            panic!("{text}")
        };
        assert_eq!((handed.lease, handed.level), (LeaseId(7), Level::Counted));
        assert_eq!((handed.handover.step, handed.handover.devices.len()), (3, 1));
        let keys = |line: &[u8]| line::decode::<serde_json::Value>(line).unwrap();
        let written = Confirmation::HandedOver(handed).to_line();
        assert_eq!(keys(&written), keys(text.as_bytes()));
    }

    #[test]
    fn a_confirmation_survives_the_journey_as_one_line() {
        let refused = Confirmation::Refused(Refused {
            lease: None,
            pilot: JobId(1),
            step: 2,
            reason: Refusal::Failed {
                what: "two\nlines".to_owned(),
                detail: String::new(),
            },
            at: Timestamp(5),
        });
        let line = refused.to_line();
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        assert_eq!(Confirmation::from_line(&line).unwrap(), refused);
    }

    #[test]
    fn another_version_is_refused_whatever_else_it_says() {
        let newer = br#"{"v":2,"op":{"swap":{}},"unheard":"of"}"#;
        assert!(matches!(
            Token::from_payload(newer),
            Err(ReadError::Version { theirs: 2 })
        ));
        let line = br#"{"v":3,"body":{"kind":"exploded"}}"#;
        assert!(matches!(
            Confirmation::from_line(line),
            Err(ReadError::Version { theirs: 3 })
        ));
    }

    #[test]
    fn the_longest_answer_about_a_take_back_fits_into_a_line() {
        let holder = Holder {
            pid: u32::MAX,
            uid: u32::MAX,
            exe: "\u{10ffff}".repeat(crate::proc::EXE),
            how: Hold::Descriptor,
            why: "x".repeat(200),
        };
        let taken = TakenBack {
            lease: LeaseId(u64::MAX),
            epoch: Epoch(u64::MAX),
            node: NodeName::from("n".repeat(255)),
            pilot: JobId(u32::MAX),
            devices: vec![GpuIndex(u16::MAX); 16],
            clean: false,
            blocked: vec![GpuIndex(u16::MAX); 16],
            level: Level::Counted,
            ended_pids: vec![u32::MAX; crate::release::NUMBERED],
            holders: vec![holder; crate::release::NAMED],
            at: Timestamp(u64::MAX),
        };
        let line = Confirmation::TakenBack(taken).to_line();
        assert!(line.len() < MAX_LINE / 2, "{}", line.len());
    }

    #[test]
    fn garbage_and_length_are_refused() {
        assert!(matches!(Token::from_payload(b"hello"), Err(ReadError::Json(_))));
        assert!(matches!(
            Token::from_payload(&vec![b' '; MAX_LINE + 1]),
            Err(ReadError::TooLong)
        ));
    }
}
