//! The place of a replica in Slurm, and its first words to the front from there.

use anyhow::{Context, Result};
use hop_api::message::SeatStep;
use hop_protocol::file::FrontFile;
use hop_protocol::message::{Hello, VERSION};
use hop_words::id::{Incarnation, JobId, NodeName, Tenure};

/// The place of a replica: its node and its step in a seat.
#[derive(Debug, Clone)]
pub struct Place {
    pub node: NodeName,
    pub seat: SeatStep,
}

impl Place {
    /// Without Slurm.
    pub fn local() -> Self {
        Self::at(NodeName::from("localhost"), JobId(0), 0)
    }

    /// From the step's environment.
    pub fn from_slurm() -> Result<Self> {
        let var =
            |name: &str| std::env::var(name).with_context(|| format!("{name} is not set: not a Slurm step"));
        let job = JobId(var("SLURM_JOB_ID")?.parse()?);
        Ok(Self::at(
            var("SLURMD_NODENAME")?.into(),
            job,
            var("SLURM_STEP_ID")?.parse()?,
        ))
    }

    fn at(node: NodeName, job: JobId, step: u32) -> Self {
        let pid = std::process::id();
        let seat = SeatStep {
            job,
            step,
            pid,
            start_time: hop_words::process::start_time(pid).unwrap_or(0),
            uid: rustix::process::getuid().as_raw(),
        };
        Self { node, seat }
    }

    /// The first words of a replica here to its front, before the replica has heard or run anything.
    pub(crate) fn hello(&self, file: &FrontFile, incarnation: Incarnation) -> Hello {
        Hello {
            version: VERSION,
            kernel: file.kernel.clone(),
            incarnation,
            tenure: tenure_of(file),
            node: self.node.clone(),
            name: Some(file.launch.name.clone()),
            pid: std::process::id(),
            seat: self.seat.job,
            step: self.seat.step,
            front_epoch: 0,
            taken: 0,
            standby: false,
            in_flight: Vec::new(),
            answered: None,
            members: 0,
        }
    }
}

/// The tenure that the front has opened. Zero: the kernel keeps no log.
pub(crate) fn tenure_of(file: &FrontFile) -> Tenure {
    file.state.as_ref().map_or(Tenure(0), |s| s.tenure)
}
