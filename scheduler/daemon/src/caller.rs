//! Proven callers, and the messages of their connections to the scheduler's task. The connections themselves are
//! [`crate::server`]'s.

use hop_api::message::{Response, Role, ToHopd};
use hop_words::id::UserName;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// A connection's number; never used again in one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ConnId(pub u64);

/// The proven other end of a connection.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub uid: u32,
    pub user: UserName,
    pub groups: Arc<[String]>,
    pub operator: bool,
    pub role: Role,
}

/// A message on its way to a caller.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub id: u64,
    pub body: Response,
    /// Dropped with the message: once the message is written, or its connection has ended.
    pub unread: Option<oneshot::Sender<()>>,
}

/// Reports of connections to the scheduler's task.
#[derive(Debug)]
pub(crate) enum Incoming {
    Opened {
        conn: ConnId,
        caller: Caller,
        outgoing: mpsc::Sender<Outgoing>,
    },
    Message {
        conn: ConnId,
        message: ToHopd,
    },
    Closed {
        conn: ConnId,
    },
}
