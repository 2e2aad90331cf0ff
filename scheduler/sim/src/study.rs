//! Several seeds of several clusters: what a policy does as a median and a range, not by the luck of one seed.

use crate::metrics::PolicySummary;
use serde::Serialize;
use std::collections::BTreeMap;

/// One figure over all seeds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    /// None where no seed has the figure.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_unstable_by(f64::total_cmp);
        let (&least, &most) = (values.first()?, values.last()?);
        let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Self {
            median: f64::midpoint(low, high),
            least,
            most,
        })
    }
}

/// A figure of the summary, by its name in the summary.
type Figure = (&'static str, fn(&PolicySummary) -> Option<f64>);

const FIGURES: [Figure; 19] = [
    ("antt", |s| Some(s.antt)),
    ("stp", |s| Some(s.stp)),
    ("held_saving_share", |s| s.held_saving_share),
    ("provisioned_saving_share", |s| s.provisioned_saving_share),
    ("immediate_fraction", |s| Some(s.immediate_fraction)),
    ("executor_reuse_fraction", |s| Some(s.executor_reuse_fraction)),
    ("delay_p50_s", |s| Some(s.delay_s.p50)),
    ("delay_p95_s", |s| Some(s.delay_s.p95)),
    ("delay_p99_s", |s| Some(s.delay_s.p99)),
    ("wait_p99_s", |s| Some(s.wait_s.p99)),
    ("longest_wait_h", |s| Some(s.longest_wait_h)),
    ("overtaken_most", |s| Some(f64::from(s.overtaken_most))),
    ("migrations", |s| Some(s.migrations as f64)),
    ("deadline_hit_fraction", |s| s.deadline_hit_fraction),
    ("gpu_hours_provisioned", |s| Some(s.gpu_hours_provisioned)),
    ("batch_jobs", |s| Some(s.batch.as_ref()?.jobs as f64)),
    ("batch_requeued", |s| Some(s.batch.as_ref()?.requeued as f64)),
    ("batch_gpu_hours_done", |s| Some(s.batch.as_ref()?.gpu_hours_done)),
    ("batch_gpu_hours_lost", |s| Some(s.batch.as_ref()?.gpu_hours_lost)),
];

/// A policy's results on one cluster, over all seeds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    pub policy: String,
    /// Swept parameters, such as `nodes`, and their values here.
    pub at: BTreeMap<String, f64>,
    pub gpus: u32,
    pub seeds: Vec<u64>,
    pub figures: BTreeMap<&'static str, Spread>,
}

impl Point {
    /// `runs` has one summary of this policy for each seed.
    pub fn new(policy: String, at: BTreeMap<String, f64>, gpus: u32, runs: &[(u64, PolicySummary)]) -> Self {
        let figures = FIGURES.iter().filter_map(|(name, figure)| {
            Some((*name, Spread::of(runs.iter().filter_map(|(_, s)| figure(s)))?))
        });
        Self {
            policy,
            at,
            gpus,
            seeds: runs.iter().map(|(seed, _)| *seed).collect(),
            figures: figures.collect(),
        }
    }

    pub fn figure(&self, name: &str) -> Option<Spread> {
        self.figures.get(name).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::Spread;

    #[test]
    fn the_median_lies_in_the_middle_and_between_two() {
        let of = |v: &[f64]| Spread::of(v.iter().copied()).map(|s| (s.median, s.least, s.most));
        assert_eq!(of(&[3.0, 1.0, 2.0]), Some((2.0, 1.0, 3.0)));
        assert_eq!(of(&[4.0, 1.0, 2.0, 9.0]), Some((3.0, 1.0, 9.0)));
        assert_eq!(of(&[]), None);
    }
}
