//! The Standard Workload Format of the Parallel Workloads Archive: 18 fields a line, comments after a semicolon.

use super::{Job, Jobs};
use crate::session::TraceError;

const FIELDS: usize = 18;
/// Places of the fields in a line.
const SUBMIT: usize = 1;
const RUN: usize = 3;
const ALLOCATED: usize = 4;
const REQUESTED: usize = 7;
const USER: usize = 11;
const GROUP: usize = 12;

/// Whether a text with this first line is in SWF.
pub(super) fn is(first: &str) -> bool {
    let fields = || first.split_whitespace();
    first.trim_start().starts_with(';')
        || fields().count() >= FIELDS && fields().all(|f| f.parse::<f64>().is_ok())
}

pub(super) fn read(text: &str, procs_per_gpu: u32) -> Result<Jobs, TraceError> {
    let mut jobs = Jobs::default();
    for (n, line) in text.lines().enumerate() {
        let line = line.trim();
        if !line.is_empty() && !line.starts_with(';') {
            job(n + 1, line, procs_per_gpu, &mut jobs)?;
        }
    }
    Ok(jobs)
}

fn job(line: usize, text: &str, procs_per_gpu: u32, jobs: &mut Jobs) -> Result<(), TraceError> {
    let fields: Vec<&str> = text.split_whitespace().collect();
    if fields.len() < FIELDS {
        return Err(TraceError::Fields {
            line,
            found: fields.len(),
            needed: FIELDS,
        });
    }
    let number = |at: usize, what: &'static str| {
        let value = fields[at].parse::<f64>().ok().filter(|v| v.is_finite());
        value.ok_or_else(|| TraceError::value(line, what, fields[at], "a number"))
    };
    let (submit, run) = (number(SUBMIT, "the submission")?, number(RUN, "the run")?);
    let allocated = number(ALLOCATED, "the number of processors")?;
    let asked = number(REQUESTED, "the number of processors asked for")?;
    // Minus one stands for unknown.
    if run < 0.0 || submit < 0.0 {
        jobs.left_out.never_ran += 1;
        return Ok(());
    }
    let procs = if allocated > 0.0 {
        allocated
    } else {
        asked.max(0.0)
    };
    let known = |at: usize| (fields[at] != "-1").then(|| fields[at].to_owned());
    jobs.add(Job {
        place: format!("line {line}"),
        user: known(USER).unwrap_or_default(),
        account: known(GROUP),
        submit,
        run,
        gpus: (procs / f64::from(procs_per_gpu.max(1))).ceil() as u64,
    });
    Ok(())
}
