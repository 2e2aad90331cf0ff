//! Facts on the agent's own pilot, from Slurm's environment and, if it answers, from slurmctld.

use anyhow::{Context, Result};
use hop_api::config::Pool;
use hop_api::message::GpuSlot;
use hop_slurm::gres::Gres;
use hop_slurm::id::StepKey;
use hop_slurm::{Settings, Slurm};
use hop_words::error::chain;
use hop_words::id::{GpuIndex, GpuType, JobId, NodeName};
use hop_words::time::Timestamp;
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
    /// Steps of an earlier agent of this pilot.
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
    let gpus = match gpus_by_slurm(&slurm, job, &node).await {
        Some(found) => found,
        None => {
            let text = std::env::var("SLURM_JOB_GPUS").unwrap_or_default();
            let indices = crate::link::parse_gpus(&text).context("SLURM_JOB_GPUS")?;
            let gpu_type = GpuType::from(pool.gpu_type.as_deref().unwrap_or_default());
            indices.into_iter().map(|i| (i, gpu_type.clone())).collect()
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
        gpus: gpus
            .into_iter()
            .map(|(index, gpu_type)| GpuSlot {
                index,
                gpu_type,
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

async fn gpus_by_slurm(slurm: &Slurm, job: JobId, node: &NodeName) -> Option<Vec<(GpuIndex, GpuType)>> {
    let detail = slurm.job_gres(job).await.ok()?;
    let here = detail.into_iter().find(|d| d.nodes.contains(node))?;
    let gpus = typed(&here.gres);
    (!gpus.is_empty()).then_some(gpus)
}

/// A node's GPUs may be of several types: each by its own.
fn typed(gres: &[Gres]) -> Vec<(GpuIndex, GpuType)> {
    let gpus = gres.iter().filter(|g| g.name == "gpu");
    let mut all: Vec<_> = gpus
        .flat_map(|g| g.index.iter().flatten().map(|&i| (i, g.gpu_type())))
        .collect();
    all.sort_unstable_by_key(|&(i, _)| i);
    all
}

/// With little patience: an agent starts again while slurmctld is away, and has its environment to go by.
fn slurm() -> Slurm {
    Slurm::new(Settings {
        timeout: Duration::from_secs(5),
        ..Settings::default()
    })
}

/// Whether Slurm preempts the job; `false` without an answer.
pub(crate) async fn is_preempted(job: JobId) -> bool {
    slurm().is_preempted(job).await.unwrap_or_else(|error| {
        tracing::warn!(%job, "Slurm can't say whether it preempts the job: {}", chain(&error));
        false
    })
}

/// The numbered steps of a job, as shown by Slurm; none without an answer.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_gpu_has_the_type_that_slurm_says_of_it() {
        let said = Gres::parse_list("gpu:h100:2(IDX:2-3),gpu:a100:1(IDX:0),shard:4(IDX:1)");
        let gpus = typed(&said);
        assert_eq!(
            gpus,
            [
                (GpuIndex(0), "a100".into()),
                (GpuIndex(2), "h100".into()),
                (GpuIndex(3), "h100".into())
            ]
        );
        assert_eq!(
            typed(&Gres::parse_list("gpu:2(IDX:0-1)"))[1],
            (GpuIndex(1), "".into())
        );
    }
}
