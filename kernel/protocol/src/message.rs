//! What flows between front and replica besides Jupyter's messages, in JSON. [`VERSION`] is in both sides' first frame;
//! both refuse another one. New fields are optional; a changed meaning is a new version.

use hop_core::id::{Incarnation, KernelId, NodeName};
use serde::{Deserialize, Serialize};

/// The version of this protocol.
pub const VERSION: u32 = 1;

/// The replica's first frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub version: u32,
    pub kernel: KernelId,
    pub incarnation: Incarnation,
    pub node: NodeName,
    pub pid: u32,
    /// The epoch of the front that it heard last (0: none), and the last frame that it took of it.
    pub front_epoch: u64,
    pub taken: u64,
    /// Execute requests that the kernel hasn't answered, the oldest first, so that a new front can answer them if the
    /// kernel dies.
    pub in_flight: Vec<InFlight>,
}

/// An execute request without a reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InFlight {
    /// The client's routing identity, in hex.
    pub identity: String,
    /// The request's header as it came.
    pub header: String,
}

/// The front's first frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Welcome {
    Yes {
        version: u32,
        /// Grows with every front of this kernel.
        epoch: u64,
        /// The last frame that the front took of this replica, and those below it that it wants again.
        taken: u64,
        again: Vec<u64>,
    },
    /// Not this replica: it is of another version or superseded. It ends.
    No { version: u32, reason: String },
}

/// Unlike messages of Jupyter's, these are between the two alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "note", rename_all = "kebab-case")]
pub enum Note {
    /// Front: no client has this identity (hex) any longer.
    ClientGone { identity: String },
    /// Front: interrupt as with a signal (`KernelManager.interrupt_kernel` in mode `signal`).
    Interrupt,
    /// Front: end the kernel now and yourself.
    End,
    /// Replica: the kernel is up and takes requests.
    KernelUp { pid: u32 },
    /// Replica: the kernel is over; this is the replica's last word.
    KernelOver { over: Over },
    /// Replica: outputs were dropped, because nobody took them for too long.
    Dropped { messages: u64, bytes: u64 },
}

/// How a kernel ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "kebab-case")]
pub enum Over {
    /// It was asked to.
    Shutdown,
    /// It died. `reason` is a sentence for the user.
    Died { reason: String },
    /// It never came up.
    NotStarted { reason: String },
}
