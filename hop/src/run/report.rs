//! Reports of `hop run`: the forecast in sentences, and the whole run as one JSON document.

use super::plan::{Cell, Forecast, Verdict};
use super::span;
use super::worker::{CellOver, Over, Status};
use crate::failure::Failure;
use crate::time::{tell_span, write_time};
use hop_words::time::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;
use std::io::Write;
use std::path::Path;

/// What is foretold.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Expected {
    /// `holds`, `tight`, `missed`, `unknown`; null without a deadline.
    verdict: Option<&'static str>,
    expected_s: f64,
    cautious_s: f64,
    /// To spare until the deadline; negative: late.
    spare_s: Option<f64>,
    cells: usize,
    unknown_cells: usize,
    /// How long the first GPU is waited for is not known.
    queue_unknown: bool,
    /// Part of `expected_s` for the wait for the first GPU, because all fitting GPUs are lent now.
    wait_s: f64,
    /// `true` if part of `expected_s` is assumed from runs with other numbers of GPUs.
    assumed: bool,
    gpus: Option<u16>,
    /// Fewest GPUs that would meet the deadline.
    would_hold_with_gpus: Option<u16>,
    would_then_take_s: Option<f64>,
    /// When the run would have to begin, at the latest.
    begin_by: Option<f64>,
    done: f64,
    #[serde(skip)]
    deadline: Option<Timestamp>,
}

fn seconds(at: Timestamp) -> f64 {
    at.0 as f64 / 1e6
}

impl Expected {
    pub(super) fn of(
        forecast: &Forecast,
        now: Timestamp,
        deadline: Option<Timestamp>,
        cells: &[Cell],
    ) -> Self {
        let (verdict, spare) = match forecast.verdict {
            Verdict::NoDeadline => (None, None),
            Verdict::Holds(s) => (Some("holds"), Some(s)),
            Verdict::Tight(s) => (Some("tight"), Some(s)),
            Verdict::Missed(s) => (Some("missed"), Some(-s)),
            Verdict::Unknown(s) => (Some("unknown"), Some(s)),
        };
        let length = &forecast.length;
        Self {
            verdict,
            expected_s: length.expected,
            cautious_s: length.cautious,
            spare_s: spare,
            cells: cells.len(),
            unknown_cells: length.unknown,
            queue_unknown: length.queue_unknown,
            wait_s: length.wait,
            assumed: length.assumed,
            gpus: forecast.gpus,
            would_hold_with_gpus: forecast.would_hold.map(|(n, _)| n),
            would_then_take_s: forecast.would_hold.map(|(_, s)| s),
            begin_by: deadline.map(|d| seconds(d) - length.expected),
            done: seconds(now) + length.expected,
            deadline,
        }
    }

    /// For people. `scaled`: they have said something of GPUs already.
    pub(super) fn lines(&self, zone: &TimeZone, scaled: bool) -> Vec<String> {
        let at = |s: f64| write_time(Timestamp((s.max(0.0) * 1e6) as u64), zone);
        let mut lines = Vec::new();
        let known = self.cells - self.unknown_cells;
        if known == 0 {
            lines.push("how long it takes is not known: none of its cells ran before".to_owned());
        } else {
            let unknown = match self.unknown_cells {
                0 => String::new(),
                n => format!(", without {} that never ran", cells(n)),
            };
            let queue = if self.queue_unknown {
                ", and the wait for a GPU, which can't be foretold now".to_owned()
            } else if self.wait_s >= 1.0 {
                format!(
                    ", {} of it the wait for a GPU, for those that fit are lent now",
                    tell_span(span(self.wait_s))
                )
            } else {
                String::new()
            };
            let assumed = if self.assumed { ", partly assumed" } else { "" };
            let gpus = self.gpus.map_or(String::new(), |n| format!(" with {}", gpus(n)));
            lines.push(format!(
                "expected to take {}{gpus}, seldom more than {}{unknown}{queue}{assumed}: done at {}",
                tell_span(span(self.expected_s)),
                tell_span(span(self.cautious_s)),
                at(self.done)
            ));
        }
        let (Some(deadline), Some(spare)) = (self.deadline, self.spare_s) else {
            return lines;
        };
        let by = write_time(deadline, zone);
        let left = tell_span(span(spare.abs()));
        lines.push(match self.verdict {
            Some("holds") => format!("the deadline {by} is expected to hold, with {left} to spare"),
            Some("tight") => format!("the deadline {by} may hold, with {left} to spare, if no cell is slow"),
            Some("unknown") if self.unknown_cells == 0 => {
                format!("whether the deadline {by} holds depends on the wait for a GPU; {left} remain for it")
            }
            Some("unknown") => {
                format!(
                    "whether the deadline {by} holds depends on cells that never ran; {left} remain for them"
                )
            }
            _ => format!("the deadline {by} is not expected to hold, by {left}"),
        });
        if !matches!(self.verdict, Some("holds" | "unknown")) {
            lines.extend(self.remedies(&at, scaled));
        }
        lines
    }

    fn remedies(&self, at: &impl Fn(f64) -> String, scaled: bool) -> Vec<String> {
        let mut lines = Vec::new();
        if let (Some(n), Some(takes)) = (self.would_hold_with_gpus, self.would_then_take_s) {
            let sure = if self.assumed || !scaled {
                ", if its cells get faster with GPUs"
            } else {
                ""
            };
            lines.push(format!(
                "  it would hold with --gpus {n}: about {}{sure}",
                tell_span(span(takes))
            ));
        }
        if let Some(spare) = self.spare_s.filter(|s| *s < 0.0 && self.wait_s + s >= 0.0) {
            lines.push(format!(
                "  it would hold if a GPU were free now, with {} to spare (hop info shows what is lent)",
                tell_span(span(self.wait_s + spare))
            ));
        }
        if self.verdict == Some("missed")
            && let Some(begin) = self.begin_by
        {
            lines.push(format!("  it would have had to begin by {}", at(begin)));
        }
        let cautious = self.done - self.expected_s + self.cautious_s;
        lines.push(format!(
            "  a deadline that is expected to hold: {}",
            at(cautious.ceil())
        ));
        lines
    }
}

pub(super) fn cells(n: usize) -> String {
    if n == 1 {
        "1 cell".to_owned()
    } else {
        format!("{n} cells")
    }
}

pub(super) fn gpus(n: u16) -> String {
    if n == 1 {
        "1 GPU".to_owned()
    } else {
        format!("{n} GPUs")
    }
}

#[derive(Debug, Serialize)]
struct CellReport {
    index: usize,
    status: Status,
    reason: Option<String>,
    run_s: f64,
    wait_s: f64,
    lease: Option<u64>,
    node: Option<String>,
    n_gpus: usize,
}

/// `--json`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    version: &'static str,
    command: &'static str,
    notebook: String,
    output: String,
    kernel: String,
    pub(super) kernel_id: Option<String>,
    /// Null before the end.
    status: Option<Status>,
    reason: Option<String>,
    deadline: Option<f64>,
    /// Null without a deadline, and before the end.
    deadline_met: Option<bool>,
    end: Option<f64>,
    kept_until: Option<f64>,
    pub(super) expected: Option<Expected>,
    cells: Vec<CellReport>,
}

impl Report {
    pub(super) fn new(notebook: String, out: &Path, kernel: &str, deadline: Option<Timestamp>) -> Self {
        Self {
            version: "v1",
            command: "run",
            notebook,
            output: out.display().to_string(),
            kernel: kernel.to_owned(),
            kernel_id: None,
            status: None,
            reason: None,
            deadline: deadline.map(seconds),
            deadline_met: None,
            end: None,
            kept_until: None,
            expected: None,
            cells: Vec::new(),
        }
    }

    pub(super) fn cell(&mut self, over: &CellOver) {
        let lease = over.lease.clone().unwrap_or_default();
        self.cells.push(CellReport {
            index: over.index,
            status: over.status,
            reason: Some(over.reason.clone()).filter(|r| !r.is_empty()),
            run_s: over.seconds,
            wait_s: over.waited,
            lease: lease.lease,
            node: Some(lease.node).filter(|n| !n.is_empty()),
            n_gpus: lease.gpus.len(),
        });
    }

    pub(super) fn end(&mut self, over: &Over, at: Timestamp) {
        self.status = Some(over.status);
        self.reason = Some(over.reason.clone()).filter(|r| !r.is_empty());
        self.kept_until = over.kept_until;
        self.end = Some(seconds(at));
        self.deadline_met = self
            .deadline
            .map(|by| over.status == Status::Ok && seconds(at) <= by);
    }

    pub(super) fn write(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(self).map_err(|e| Failure::of(&e))?;
        writeln!(out, "{text}")?;
        Ok(())
    }
}
