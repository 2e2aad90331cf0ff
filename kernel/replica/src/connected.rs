//! A process of the kernel with the connections to it, freshly started or a spare's.

use crate::agent::{self, Agent, Parcel};
use crate::child::Kernel;
use crate::scratch::Scratch;
use crate::sockets::{Events, Sockets};
use anyhow::{Context, Result};
use hop_protocol::file::FrontFile;
use hop_protocol::jupyter::Author;
use std::path::Path;
use std::time::Duration;
use tokio::sync::mpsc;

/// Interval of questions to a kernel without a welcome on iopub (before ipykernel 7).
pub(crate) const PROBE_EVERY: Duration = Duration::from_millis(300);

/// A process of the kernel, with the connections to it.
pub(crate) struct Process {
    pub(crate) kernel: Kernel,
    pub(crate) sockets: Sockets,
    pub(crate) events: Events,
    /// Its iopub is connected and heard already.
    pub(crate) heard: bool,
    pub(crate) to_agent: mpsc::UnboundedSender<Parcel>,
    pub(crate) agent: Option<mpsc::Receiver<Parcel>>,
    /// The folder of the process's sockets, removed with this value.
    _scratch: Scratch,
}

impl Process {
    pub(crate) fn start(program: &Path, file: &FrontFile, lends: bool) -> Result<Self> {
        let scratch = Scratch::create().context("can't make a folder for the kernel's sockets")?;
        let (agent, theirs) = agent::open()?;
        let kernel = Kernel::start(program, file, scratch.path(), theirs, lends)?;
        let (sockets, events) = Sockets::new(scratch.path(), author(file));
        Ok(Self::new(kernel, agent, sockets, events, scratch))
    }

    pub(crate) fn new(
        kernel: Kernel,
        agent: Agent,
        sockets: Sockets,
        events: Events,
        scratch: Scratch,
    ) -> Self {
        Self {
            kernel,
            sockets,
            events,
            heard: false,
            to_agent: agent.out,
            agent: Some(agent.input),
            _scratch: scratch,
        }
    }
}

/// The author of the replica's own messages.
pub(crate) fn author(file: &FrontFile) -> Author {
    Author::new(file.signing_key.as_bytes(), uuid::Uuid::new_v4().to_string())
}
