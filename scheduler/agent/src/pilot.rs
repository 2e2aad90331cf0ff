//! What the agent learns about its own pilot: from Slurm's environment, and from slurmctld where it answers.

use anyhow::{Context, Result};
use hop_api::config::Pool;
use hop_api::message::GpuSlot;
use hop_core::id::{GpuIndex, GpuType, JobId, NodeName};
use hop_core::time::Timestamp;
use hop_slurm::id::StepKey;
use hop_slurm::{Settings, Slurm};
use std::time::Duration;

/// Slurm's default for MaxStepCount.
const MAX_STEPS: u32 = 40_000;

#[derive(Debug)]
pub(crate) struct Pilot {
    pub(crate) job: JobId,
    pub(crate) node: NodeName,
    pub(crate) gpus: Vec<GpuSlot>,
    pub(crate) cpus: u16,
    pub(crate) ends: Option<Timestamp>,
    pub(crate) steps_max: u32,
    /// Steps that are there already: those of an agent before this one.
    pub(crate) steps: Vec<u32>,
}

/// Looks at the environment of the batch step, and asks Slurm for the rest.
///
/// # Errors
/// Not run as a batch step. That slurmctld is away is no error.
pub(crate) async fn discover(pool: &Pool) -> Result<Pilot> {
    let variable = |name: &str| {
        std::env::var(name).with_context(|| format!("{name} is not set: run this as a pilot's batch step"))
    };
    let job: JobId = variable("SLURM_JOB_ID")?.parse().context("SLURM_JOB_ID")?;
    let node: NodeName = variable("SLURMD_NODENAME")?.into();
    let cpus = variable("SLURM_CPUS_ON_NODE")?
        .parse()
        .context("SLURM_CPUS_ON_NODE")?;
    let slurm = slurm();
    let (indices, gpu_type) = match gpus_by_slurm(&slurm, job, &node).await {
        Some(found) => found,
        None => {
            let text = std::env::var("SLURM_JOB_GPUS").unwrap_or_default();
            let indices = crate::link::parse_gpus(&text).context("SLURM_JOB_GPUS")?;
            (
                indices,
                GpuType::from(pool.gpu_type.as_deref().unwrap_or_default()),
            )
        }
    };
    let ends = match slurm.job(job).await {
        Ok(Some(found)) => found.limit.span().and(found.end),
        _ => None,
    };
    let steps_max = slurm.config().await.ok().and_then(|c| c.max_step_count());
    Ok(Pilot {
        job,
        node,
        gpus: indices
            .into_iter()
            .map(|index| GpuSlot {
                index,
                gpu_type: gpu_type.clone(),
                mem_mib: pool.gpu_mem_mib,
                blocked: None,
            })
            .collect(),
        cpus,
        ends,
        steps_max: steps_max.unwrap_or(MAX_STEPS),
        steps: steps(job).await,
    })
}

async fn gpus_by_slurm(slurm: &Slurm, job: JobId, node: &NodeName) -> Option<(Vec<GpuIndex>, GpuType)> {
    let detail = slurm.job_gres(job).await.ok()?;
    let here = detail.into_iter().find(|d| d.nodes.contains(node))?;
    let indices = hop_slurm::gres::gpu_index(&here.gres);
    let gpu_type = here.gres.first().map(hop_slurm::gres::Gres::gpu_type)?;
    (!indices.is_empty()).then_some((indices, gpu_type))
}

/// With little patience: an agent starts again while slurmctld is away, and has its environment to go by.
fn slurm() -> Slurm {
    Slurm::new(Settings {
        timeout: Duration::from_secs(5),
        ..Settings::default()
    })
}

/// The numbered steps of a job that Slurm shows; none where it doesn't answer.
pub(crate) async fn steps(job: JobId) -> Vec<u32> {
    let slurm = slurm();
    let found = slurm.steps(job).await.unwrap_or_default();
    found
        .iter()
        .filter_map(|step| match step.id.step {
            StepKey::Number(n) => Some(n),
            _ => None,
        })
        .collect()
}

/// Field 22 of `/proc/PID/stat`; none where the process is gone or hidden from us.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses and may hold anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_of_this_process_is_read() {
        let own = start_time(std::process::id()).unwrap();
        assert!(own > 0);
        assert_eq!(start_time(u32::MAX), None);
    }
}
