//! The lines between a holder and its agent, over the agent's Unix socket. Both are this program, under the
//! service account; the plugin's confirmations come to the same socket from root.

use hop_words::id::{GpuIndex, LeaseId};
use serde::{Deserialize, Serialize};

/// The version of these lines: an agent exchanged under a living holder must see the difference.
pub(crate) const VERSION: u32 = 1;
/// The longest line, in bytes.
pub(crate) const MAX_LINE: usize = 64 << 10;

/// The lease of a guard's holder: none.
pub(crate) const GUARD: LeaseId = LeaseId(0);

/// Holder to agent: one line, after connecting.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct HolderHello {
    pub(crate) holder: u32,
    pub(crate) lease: LeaseId,
    pub(crate) step: u32,
    /// `SLURM_STEP_GPUS`: what Slurm gave the step.
    pub(crate) gpus: Vec<GpuIndex>,
}

/// Agent to holder, one line.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub(crate) enum ToHolder {
    /// The lease is over.
    End,
}

/// `SLURM_STEP_GPUS`: indices separated by commas.
pub(crate) fn parse_gpus(text: &str) -> Option<Vec<GpuIndex>> {
    text.split(',')
        .map(str::trim)
        .filter(|s| !s.is_empty())
        .map(|s| s.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_gpus_are_read() {
        assert_eq!(parse_gpus("0,3").unwrap(), [GpuIndex(0), GpuIndex(3)]);
        assert_eq!(parse_gpus("").unwrap(), []);
        assert_eq!(parse_gpus("0,x"), None);
    }
}
