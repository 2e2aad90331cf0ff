//! Measurements, the same for every policy.

mod waits;

use crate::cluster::Cluster;
use crate::trace::Trace;
use hop_words::time::{Span, Timestamp};
use serde::Serialize;
use std::borrow::Cow;
use std::fmt::Write as _;

/// What became of one cell.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CellResult {
    pub session: u32,
    pub cell: u32,
    pub gpus: u16,
    pub submit: Timestamp,
    /// When it had its GPUs.
    pub granted: Timestamp,
    /// Time to read state and GPU memory from elsewhere.
    pub fetch: Span,
    /// Time to bring its GPU memory back onto the GPUs.
    pub unpark: Span,
    /// Start of the code, after all preparations.
    pub start: Timestamp,
    pub end: Timestamp,
    /// `true` if the cell neither queued nor waited for a move or a boot.
    pub immediate: bool,
    /// On the executor of the session's last cell; none for the first.
    pub reused: Option<bool>,
    pub migrated: bool,
    pub node: u32,
    /// Wait forecast when the cell was queued.
    pub estimate: Option<Span>,
    /// Forecasts at submission, if the policy makes any.
    pub foretold: Option<Foretold>,
}

/// A reason of a cell's wait, valid from the moment of its telling.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Why {
    pub session: u32,
    pub cell: u32,
    pub at: Timestamp,
    /// The reason's word for scripts, and its sentence.
    pub word: &'static str,
    pub says: String,
}

/// Forecasts for a cell at its submission.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Foretold {
    /// Its run time.
    pub run: Option<Span>,
    /// Run time, should the cell run for [`PROGRESS`].
    pub later: Option<Span>,
    pub gpus: u16,
    /// Past runs that this was from.
    pub history: u32,
}

/// Run after which a cell's run time is forecast again.
pub const PROGRESS: Span = Span::from_secs(600);

impl CellResult {
    /// From submission to its code running.
    pub fn delay(&self) -> Span {
        self.start.since(self.submit)
    }

    /// From submission to having its GPUs.
    pub fn wait(&self) -> Span {
        self.granted.since(self.submit)
    }
}

/// A number over time: changes only.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Steps {
    pub changes: Vec<(Timestamp, i64)>,
    /// Units per GPU; `None` means one.
    pub parts: Option<u32>,
}

impl Steps {
    pub fn add(&mut self, at: Timestamp, by: i64) {
        self.changes.push((at, by));
    }

    /// Adds `by` from `from` to `to`.
    pub fn span(&mut self, from: Timestamp, to: Timestamp, by: i64) {
        if to > from {
            self.add(from, by);
            self.add(to, -by);
        }
    }

    fn one(&self) -> f64 {
        self.parts.map_or(1.0, f64::from)
    }

    /// The integral in (unit x hours).
    pub fn hours(&self) -> f64 {
        let last = self.changes.iter().map(|&(t, _)| t).max();
        self.hours_between(Timestamp(0), last.unwrap_or_default())
    }

    /// The integral between two times, summed in whole microseconds: sums of the same spans are the same number.
    pub fn hours_between(&self, from: Timestamp, to: Timestamp) -> f64 {
        let left = |t: Timestamp| i128::from(to.0 - t.0.clamp(from.0, to.0));
        let sum: i128 = self.changes.iter().map(|&(t, by)| i128::from(by) * left(t)).sum();
        sum as f64 / 3.6e9 / self.one()
    }

    /// Mean of each of `n` equal stretches up to `end`.
    pub fn means(&self, end: Timestamp, n: usize) -> Vec<f64> {
        let mut changes = self.changes.clone();
        changes.sort_unstable();
        let mut changes = changes.into_iter().peekable();
        let bound = |i: usize| (u128::from(end.0.max(1)) * i as u128 / n as u128) as u64;
        let mut level = 0i64;
        let mean = |i: usize| {
            let (from, to) = (bound(i), bound(i + 1).max(bound(i) + 1));
            let mut sum = 0i128;
            let mut at = from;
            while let Some((t, by)) = changes.next_if(|&(t, _)| t.0 < to) {
                let t = t.0.max(at);
                sum += i128::from(level) * i128::from(t - at);
                level += by;
                at = t;
            }
            sum += i128::from(level) * i128::from(to - at);
            sum as f64 / (to - from) as f64 / self.one()
        };
        (0..n).map(mean).collect()
    }
}

/// What one policy did with the trace.
#[derive(Debug, Clone, Default)]
pub struct PolicyResult {
    pub policy: String,
    pub cells: Vec<CellResult>,
    /// GPUs of leases (or of whatever holds GPUs), lingering and switching included.
    pub held: Steps,
    /// GPUs of pilots from submission to end.
    pub provisioned: Steps,
    /// The part of these GPUs on burst nodes, and its cost.
    pub burst: Steps,
    pub burst_cost: f64,
    /// Number of pilots submitted to Slurm.
    pub pilots: u64,
    pub migrations: u64,
    /// Cells that were parked in their middle, each time counted.
    pub parks: u64,
    /// GB written to the store and read from it, and number of times that a host's memory was too small for parked
    /// memory.
    pub moved_gb: f64,
    pub spills: u64,
    /// Cells that wait.
    pub waiting: Steps,
    /// Jobs of the batch queue beside the pool, if any.
    pub batch: Option<BatchResult>,
    /// Reason of the wait, if the policy tells a reason.
    pub whys: Vec<Why>,
    pub wall_s: f64,
    /// Deadlines met and set, where the run had any.
    pub deadlines: Option<(u64, u64)>,
}

/// Work of the batch queue beside the pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct BatchResult {
    /// Jobs begun, and how many of these were stopped for a pilot.
    pub jobs: u64,
    pub requeued: u64,
    /// Work done, and work that has to be done again.
    pub gpu_hours_done: f64,
    pub gpu_hours_lost: f64,
}

/// Order statistics of seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Quantiles {
    pub p50: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

impl Quantiles {
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        let q = |p: f64| {
            let i = ((values.len() as f64 * p).ceil() as usize).saturating_sub(1);
            values.get(i).copied().map_or(0.0, round)
        };
        Self {
            p50: q(0.5),
            p90: q(0.9),
            p95: q(0.95),
            p99: q(0.99),
            max: q(1.0),
        }
    }
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Microseconds are all that is meant.
fn round(x: f64) -> f64 {
    (x * 1e6).round() / 1e6
}

/// One policy's line of the summary.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicySummary {
    pub policy: String,
    pub gpu_hours_used: f64,
    pub gpu_hours_held: f64,
    pub gpu_hours_provisioned: f64,
    pub delay_s: Quantiles,
    pub tct_s: Quantiles,
    pub immediate_fraction: f64,
    pub executor_reuse_fraction: f64,
    pub migrations: u64,
    /// Number of parks in the middle of cells; left out if zero.
    #[serde(skip_serializing_if = "is_zero")]
    pub parks: u64,
    pub antt: f64,
    pub stp: f64,
    pub deadline_hit_fraction: Option<f64>,
    pub wall_s: f64,
    /// From submission to having the GPUs, without bringing memory there.
    pub wait_s: Quantiles,
    /// Longest wait, and most later cells of the same size started during a single cell's wait.
    pub longest_wait_h: f64,
    pub overtaken_most: u32,
    /// TB through the store for kernels that changed nodes.
    pub moved_tb: f64,
    pub spills: u64,
    /// With think times counted.
    pub antt_with_think: f64,
    pub stp_with_think: f64,
    /// Share of the possible saving (reserved less used) that leases and pilots keep; none where hardly any is
    /// possible.
    pub held_saving_share: Option<f64>,
    pub provisioned_saving_share: Option<f64>,
    /// Burst nodes' part of the provisioned GPU-hours, and their cost.
    pub gpu_hours_burst: f64,
    pub burst_cost: f64,
    /// Median of |foretold - real| wait of queued cells in seconds, and how many were queued with an estimate.
    pub estimate_error_s: Option<f64>,
    pub estimates: u64,
    /// Estimates within a factor of two of the wait, or within a second.
    pub estimates_within_2x: Option<f64>,
    /// Median of |foretold - real| / real run times, where the policy foretells them.
    pub prediction_error: Option<f64>,
    pub predictions: Vec<Predictions>,
    /// Left out without a batch queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchResult>,
}

/// How well run times and needs were foretold, of one kind of cells.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Predictions {
    /// `history 0`, `1 to 3`, ...: past runs of the cell or its kernel. `after 600 s`: cells with at least this run,
    /// and the forecast made then.
    pub of: String,
    pub cells: usize,
    /// Median of |foretold - real| / real.
    pub error: f64,
    pub within_2x: f64,
    /// Share of cells whose GPUs were foretold; none where that was not tried.
    pub gpus_right: Option<f64>,
}

/// Classes of [`Predictions`] by the number of past runs.
const HISTORY: [(u32, u32, &str); 5] = [
    (0, u32::MAX, "all"),
    (0, 0, "history 0"),
    (1, 3, "history 1 to 3"),
    (4, 15, "history 4 to 15"),
    (16, u32::MAX, "history 16 and more"),
];

impl Predictions {
    /// `pairs`: foretold and real seconds.
    fn of(name: &str, pairs: &[(f64, f64)], gpus_right: Option<f64>) -> Self {
        let mut errors: Vec<f64> = pairs.iter().map(|(f, r)| (f - r).abs() / r.max(1e-3)).collect();
        errors.sort_unstable_by(f64::total_cmp);
        let near = pairs
            .iter()
            .filter(|(f, r)| *f <= 2.0 * r && *r <= 2.0 * f)
            .count();
        Self {
            of: name.to_owned(),
            cells: pairs.len(),
            error: errors.get(errors.len() / 2).copied().map_or(0.0, round),
            within_2x: round(near as f64 / pairs.len().max(1) as f64),
            gpus_right: gpus_right.map(round),
        }
    }
}

/// The JSON summary of one run of the simulator.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    pub trace: String,
    pub seed: u64,
    pub config_hash: String,
    pub policies: Vec<PolicySummary>,
    pub nodes: u32,
    pub gpus: u32,
    pub sessions: usize,
    pub cells: usize,
    /// GPU-hours if every session held its GPUs from opening to closing.
    pub gpu_hours_reserved: f64,
}

impl Summary {
    pub fn new(results: &[PolicyResult], trace: &Trace, cluster: &Cluster, seed: u64) -> Self {
        Self {
            trace: trace.name.clone(),
            seed,
            config_hash: cluster.hash(),
            policies: results.iter().map(|r| r.summary(trace)).collect(),
            nodes: cluster.nodes,
            gpus: cluster.gpus(),
            sessions: trace.sessions.len(),
            cells: trace.cells(),
            gpu_hours_reserved: reserved_hours(trace),
        }
    }
}

/// Share of the reservation, or of a GPU-hour if that is more, below which no share is shown.
const HARDLY: f64 = 1e-3;

/// GPU-hours if every session held the largest need from the first cell's submission to the session's close.
pub fn reserved_hours(trace: &Trace) -> f64 {
    let hours = |s: &crate::trace::Session| {
        let first = s.cells.first().map_or(s.close, |c| c.submit);
        f64::from(s.gpus()) * s.close.since(first).as_secs_f64() / 3600.0
    };
    trace.sessions.iter().map(hours).sum()
}

impl PolicyResult {
    pub fn summary(&self, trace: &Trace) -> PolicySummary {
        let used = trace.gpu_hours_used();
        let reserved = reserved_hours(trace);
        let possible = reserved - used;
        let saving = |hours: f64| {
            (possible > HARDLY * reserved.max(1.0)).then(|| round((reserved - hours) / possible))
        };
        let gpu_cells: Vec<&CellResult> = self.cells.iter().filter(|c| c.gpus > 0).collect();
        let share = |n: usize, of: usize| if of == 0 { 1.0 } else { round(n as f64 / of as f64) };
        let again: Vec<bool> = gpu_cells.iter().filter_map(|c| c.reused).collect();
        let (antt, stp) = self.antt_stp(trace, false);
        let (antt_think, stp_think) = self.antt_stp(trace, true);
        let seconds = |f: &dyn Fn(&CellResult) -> Span| {
            Quantiles::of(gpu_cells.iter().map(|c| f(c).as_secs_f64()).collect())
        };
        let mut errors: Vec<f64> = self
            .cells
            .iter()
            .filter_map(|c| {
                c.estimate
                    .map(|e| (e.as_secs_f64() - c.wait().as_secs_f64()).abs())
            })
            .collect();
        errors.sort_unstable_by(f64::total_cmp);
        let predictions = self.predictions(trace);
        let held = self.held.hours();
        let provisioned = self.provisioned.hours();
        PolicySummary {
            policy: self.policy.clone(),
            gpu_hours_used: round(used),
            gpu_hours_held: round(held),
            gpu_hours_provisioned: round(provisioned),
            delay_s: seconds(&CellResult::delay),
            tct_s: seconds(&|c| c.end.since(c.submit)),
            immediate_fraction: share(gpu_cells.iter().filter(|c| c.immediate).count(), gpu_cells.len()),
            executor_reuse_fraction: share(again.iter().filter(|&&r| r).count(), again.len()),
            migrations: self.migrations,
            parks: self.parks,
            antt: round(antt),
            stp: round(stp),
            deadline_hit_fraction: self.deadlines.map(|(met, all)| share(met as usize, all as usize)),
            wall_s: self.wall_s,
            longest_wait_h: round(seconds(&CellResult::wait).max / 3600.0),
            overtaken_most: waits::overtaken_most(&self.cells),
            wait_s: seconds(&CellResult::wait),
            moved_tb: round(self.moved_gb / 1000.0),
            spills: self.spills,
            antt_with_think: round(antt_think),
            stp_with_think: round(stp_think),
            held_saving_share: saving(held),
            provisioned_saving_share: saving(provisioned),
            gpu_hours_burst: round(self.burst.hours()),
            burst_cost: round(self.burst_cost),
            estimate_error_s: errors.get(errors.len() / 2).copied().map(round),
            estimates: errors.len() as u64,
            estimates_within_2x: (!errors.is_empty()).then(|| {
                let near = |c: &&CellResult| {
                    let (e, d) = (
                        c.estimate.unwrap_or_default().as_secs_f64(),
                        c.wait().as_secs_f64(),
                    );
                    c.estimate.is_some() && ((e <= 2.0 * d && d <= 2.0 * e) || (e - d).abs() <= 1.0)
                };
                share(self.cells.iter().filter(near).count(), errors.len())
            }),
            prediction_error: predictions.first().map(|p| p.error),
            predictions,
            batch: self.batch.map(|b| BatchResult {
                gpu_hours_done: round(b.gpu_hours_done),
                gpu_hours_lost: round(b.gpu_hours_lost),
                ..b
            }),
        }
    }

    /// Forecasts of cells with GPUs: by past runs, and for long-running cells. Empty without forecasts.
    fn predictions(&self, trace: &Trace) -> Vec<Predictions> {
        let run = |c: &CellResult| trace.sessions[c.session as usize].cells[c.cell as usize].run;
        let told: Vec<(&CellResult, Foretold)> = self
            .cells
            .iter()
            .filter(|c| c.gpus > 0)
            .filter_map(|c| c.foretold.map(|f| (c, f)))
            .collect();
        if told.is_empty() {
            return Vec::new();
        }
        let mut all: Vec<Predictions> = Vec::new();
        for (from, to, name) in HISTORY {
            let of: Vec<_> = told
                .iter()
                .filter(|(_, f)| (from..=to).contains(&f.history))
                .collect();
            let right = of.iter().filter(|(c, f)| c.gpus == f.gpus).count();
            let pairs: Vec<(f64, f64)> = of
                .iter()
                .filter_map(|(c, f)| f.run.map(|p| (p.as_secs_f64(), run(c).as_secs_f64())))
                .collect();
            let right = right as f64 / of.len().max(1) as f64;
            all.push(Predictions::of(name, &pairs, Some(right)));
        }
        // Long-running cells: the forecast at submission, and the one made later.
        let long = || told.iter().filter(|(c, _)| run(c) > PROGRESS);
        let pairs = |when: &dyn Fn(&Foretold) -> Option<Span>| -> Vec<(f64, f64)> {
            long()
                .filter_map(|(c, f)| when(f).map(|p| (p.as_secs_f64(), run(c).as_secs_f64())))
                .collect()
        };
        all.push(Predictions::of(
            "over 600 s, at submission",
            &pairs(&|f| f.run),
            None,
        ));
        all.push(Predictions::of(
            "over 600 s, after 600 s",
            &pairs(&|f| f.later),
            None,
        ));
        all
    }

    /// ANTT and STP over sessions (Eyerman and Eeckhout). A session's time is the time from submission to reply of its
    /// cells, alone and shared; with `think`, from its first submission to its last reply.
    pub fn antt_stp(&self, trace: &Trace, think: bool) -> (f64, f64) {
        let n = trace.sessions.len();
        let mut shared = vec![0.0; n];
        let mut first = vec![u64::MAX; n];
        let mut last = vec![0u64; n];
        for c in &self.cells {
            let s = c.session as usize;
            shared[s] += c.end.since(c.submit).as_secs_f64();
            first[s] = first[s].min(c.submit.0);
            last[s] = last[s].max(c.end.0);
        }
        let (mut antt, mut stp, mut count) = (0.0, 0.0, 0.0);
        for (i, s) in trace
            .sessions
            .iter()
            .enumerate()
            .filter(|(_, s)| !s.cells.is_empty())
        {
            let alone = if think {
                // A cell is not submitted before the earlier one's reply.
                let end = |at: Timestamp, c: &crate::trace::Cell| at.max(c.submit) + c.run;
                let last = s.cells.iter().fold(Timestamp(0), end);
                last.since(s.cells[0].submit).as_secs_f64()
            } else {
                s.cells.iter().map(|c| c.run.as_secs_f64()).sum()
            };
            let with = if think {
                last[i].saturating_sub(first[i]) as f64 / 1e6
            } else {
                shared[i]
            };
            if alone <= 0.0 || with <= 0.0 {
                continue;
            }
            antt += with / alone;
            stp += alone / with;
            count += 1.0;
        }
        (antt / f64::max(count, 1.0), stp)
    }
}

/// A text as a field of a table: in quotes where it would end the field otherwise.
fn field(text: &str) -> Cow<'_, str> {
    if text.contains([',', '"', '\n', '\r']) {
        return Cow::Owned(format!("\"{}\"", text.replace('"', "\"\"")));
    }
    Cow::Borrowed(text)
}

/// One row per cell and policy.
pub fn csv(results: &[PolicyResult], trace: &Trace, seed: u64, config_hash: &str) -> String {
    let mut out = String::from(
        "policy,seed,config_hash,session,cell,gpus,submit_s,delay_s,wait_s,fetch_s,unpark_s,run_s,end_s,immediate,reused,migrated,node,estimate_s,foretold_run_s,foretold_gpus,history\n",
    );
    for r in results {
        for c in &r.cells {
            let s = |t: Timestamp| t.0 as f64 / 1e6;
            let run = trace.sessions[c.session as usize].cells[c.cell as usize]
                .run
                .as_secs_f64();
            let reused = c.reused.map_or("", |r| if r { "1" } else { "0" });
            let estimate = c
                .estimate
                .map_or_else(String::new, |e| format!("{:.6}", e.as_secs_f64()));
            let foretold = c.foretold.map_or_else(
                || ",,".to_owned(),
                |f| {
                    let run = f.run.map(|r| format!("{:.6}", r.as_secs_f64()));
                    format!("{},{},{}", run.unwrap_or_default(), f.gpus, f.history)
                },
            );
            // Writing to a string can't fail.
            let _ = writeln!(
                out,
                "{},{seed},{config_hash},{},{},{},{:.6},{:.6},{:.6},{:.6},{:.6},{run:.6},{:.6},{},{reused},{},{},{estimate},{foretold}",
                r.policy,
                field(&trace.sessions[c.session as usize].id),
                c.cell,
                c.gpus,
                s(c.submit),
                c.delay().as_secs_f64(),
                c.wait().as_secs_f64(),
                c.fetch.as_secs_f64(),
                c.unpark.as_secs_f64(),
                s(c.end),
                u8::from(c.immediate),
                u8::from(c.migrated),
                c.node,
            );
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_integrate_and_average() {
        let hour = 3_600_000_000;
        let mut s = Steps::default();
        s.span(Timestamp(0), Timestamp(2 * hour), 3);
        s.span(Timestamp(hour), Timestamp(2 * hour), 1);
        assert!((s.hours() - 7.0).abs() < 1e-9);
        let means = s.means(Timestamp(4 * hour), 4);
        let close = means
            .iter()
            .zip([3.0, 4.0, 0.0, 0.0])
            .all(|(a, b): (&f64, f64)| (a - b).abs() < 1e-9);
        assert!(close, "{means:?}");
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_list() {
        let q = Quantiles::of((1..=100).rev().map(f64::from).collect());
        assert_eq!(
            (q.p50, q.p90, q.p95, q.p99, q.max),
            (50.0, 90.0, 95.0, 99.0, 100.0)
        );
    }
}
