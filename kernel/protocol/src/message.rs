//! Messages between front and replica beside Jupyter's, in JSON. [`VERSION`] is in both sides' first frame; both
//! refuse another version. New fields are optional; a changed meaning is a new version.

use crate::jupyter::Header;
use hop_words::id::{CellId, Incarnation, JobId, KernelId, NodeName, Tenure};
use hop_words::replica::SeatPlan;
use serde::{Deserialize, Serialize};

/// The version of this protocol.
pub const VERSION: u32 = 2;

/// The replica's first frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub version: u32,
    pub kernel: KernelId,
    pub incarnation: Incarnation,
    /// The tenure in which the replica executes. Zero belongs to a kernel that keeps no log.
    pub tenure: Tenure,
    pub node: NodeName,
    /// What the replica calls the notebook. `None` comes from an earlier release, which takes no [`Note::Renamed`].
    #[serde(default)]
    pub name: Option<String>,
    pub pid: u32,
    /// The replica's step: its seat and the step's number in it. Seat 0 belongs to a replica without Slurm.
    pub seat: JobId,
    pub step: u32,
    /// The epoch of the last heard front (0 means none), and the last frame taken from it.
    pub front_epoch: u64,
    pub taken: u64,
    /// `true` if the replica waits in its seat with a kernel process without variables: the front welcomes it with the
    /// kernel's next tenure.
    #[serde(default)]
    pub standby: bool,
    /// Unanswered execute requests, the oldest first: a new front answers them if the kernel dies.
    pub in_flight: Vec<InFlight>,
    /// Answered execute requests whose reply the front may lack: the reply is on its way, or waits for the log. `None`
    /// comes from a process that doesn't execute the kernel yet.
    pub answered: Option<Vec<CellId>>,
    /// Members of the kernel's group that vote; 0 without a group.
    #[serde(default)]
    pub members: usize,
}

/// An execute request without a reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InFlight {
    /// The client's routing identity, in hex.
    pub identity: String,
    /// The request's header as it came.
    pub header: String,
}

impl InFlight {
    /// Whether this is the cell's.
    pub fn is(&self, cell: &CellId) -> bool {
        serde_json::from_str::<Header>(&self.header).is_ok_and(|h| h.msg_id == cell.as_str())
    }
}

/// The front's first frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Welcome {
    Yes {
        version: u32,
        /// Grows with every front of this kernel.
        epoch: u64,
        /// The last frame taken by the front, and earlier frames to send again.
        taken: u64,
        again: Vec<u64>,
        /// The last execution count that clients have read, of whatever replica.
        #[serde(default)]
        count: Option<i64>,
    },
    /// Refusal of a replica of another version, or of a superseded one. The replica ends.
    No { version: u32, reason: String },
}

/// Place of a cell in wait behind another one at the loss of its executor. No word came that the cell had begun. If the
/// cell in front ends with an error, this cell is aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Behind {
    /// The executor had the front's word for the cell.
    Queued,
    /// The cell is handed out as a new one.
    New,
}

/// Messages between front and replica alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "note", rename_all = "kebab-case")]
pub enum Note {
    // From the front.
    /// No client has this identity (hex) any longer.
    ClientGone { identity: String },
    /// Interrupt as with a signal (`KernelManager.interrupt_kernel` in mode `signal`).
    Interrupt,
    /// End the kernel now, and the replica.
    End,
    /// Nobody uses the kernel any more: it hibernates.
    Sleep { reason: String },
    /// The user calls the notebook so from now on.
    Renamed { name: String },
    /// The execute request with this id follows. The front has handed the request out before, first under this tenure.
    HandedBefore {
        cell: CellId,
        tenure: Tenure,
        #[serde(default)]
        behind: Option<Behind>,
        /// The cell's last outputs may be lost: no replica has said that they are complete.
        lacks: bool,
    },
    /// Answers [`Note::Begins`]: the cell may begin.
    MayBegin { cell: CellId },
    /// A new replica has a place: it joins the kernel's group. Answers [`Note::Grow`].
    Grown {
        incarnation: Incarnation,
        seat: JobId,
        node: NodeName,
    },
    /// The clients have the answers up to this number, and were told of the losses up to this tenure
    /// (docs/replication.md).
    Heard { cells: u64, losses: Tenure },
    /// The replica of this incarnation waits in the seat of [`Note::MoveAsked`]: leave between two cells.
    MoveReady { incarnation: Incarnation },
    /// The move to this incarnation failed; the replica tells `hopd`.
    MoveFailed {
        incarnation: Incarnation,
        reason: String,
    },

    // From the replica.
    /// The kernel is up and takes requests.
    KernelUp { pid: u32 },
    /// The kernel is over; this is the replica's last word.
    KernelOver { over: Over },
    /// Outputs were dropped, because nobody took them for too long.
    Dropped { messages: u64, bytes: u64 },
    /// The cell is to begin. A kernel with a log begins no cell before [`Note::MayBegin`].
    Begins { cell: CellId },
    /// The cell of the last [`Note::Begins`] has not begun, and won't: this replica leaves.
    NotBegun { cell: CellId },
    /// The next execute reply is the log's answer of this number. `count` is the cell's execution count. `lost` means
    /// that the reply tells of the cell's loss: the cell has no effects.
    Answered {
        cell: CellId,
        number: u64,
        count: Option<i64>,
        #[serde(default)]
        lost: bool,
    },
    /// The effects of all cells answered up to this number are in the user's store.
    Settled { through: u64 },
    /// The kernel's process died, and the replica goes on in this tenure. `lost` are answered cells without effects.
    Tenure { tenure: Tenure, lost: Vec<CellId> },
    /// The kernel's group lacks `count` replicas. New ones have numbers from `first` on, and sit on other nodes than
    /// these. The nodes of `last` have replicas that failed, and are the last choice.
    Grow {
        count: usize,
        first: Incarnation,
        nodes: Vec<NodeName>,
        #[serde(default)]
        last: Vec<NodeName>,
    },
    /// Number of voting members of the kernel's group: with three, the kernel survives the loss of one.
    Members { count: usize },
    /// The replica's seat ends. The state is settled as far as possible; the kernel should go on elsewhere.
    Leaving { reason: String },
    /// Prepare a replica in this seat: the kernel is to move there. `member` means that the seat has a member of the
    /// kernel's group, so no other seat will do.
    MoveAsked {
        seat: SeatPlan,
        #[serde(default)]
        member: bool,
    },
    /// The move to this incarnation is given up.
    MoveOff { incarnation: Incarnation },
    /// As [`Note::Leaving`], for the replica that waits: everything is settled.
    Moving { incarnation: Incarnation },
    /// The kernel's state is settled, and its processes end until somebody needs the kernel again.
    Asleep { reason: String },
}

/// How a kernel ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "kebab-case")]
pub enum Over {
    /// The kernel was asked to end.
    Shutdown,
    /// The kernel died. `reason` is a sentence for the user.
    Died { reason: String },
    /// The kernel never came up.
    NotStarted { reason: String },
}
