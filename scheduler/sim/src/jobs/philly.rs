//! Philly's `cluster_job_log`: one JSON list of jobs, each with its attempts. A job's run is the sum of its attempts.

use super::{Job, Jobs, time};
use crate::session::TraceError;
use serde::Deserialize;
use serde::de::IgnoredAny;

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    jobid: Option<String>,
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    vc: Option<String>,
    #[serde(default)]
    submitted_time: Option<String>,
    #[serde(default)]
    attempts: Vec<Attempt>,
}

#[derive(Deserialize)]
struct Attempt {
    #[serde(default)]
    start_time: Option<String>,
    #[serde(default)]
    end_time: Option<String>,
    #[serde(default)]
    detail: Vec<Server>,
}

#[derive(Deserialize)]
struct Server {
    #[serde(default)]
    gpus: Vec<IgnoredAny>,
}

pub(super) fn read(text: &str) -> Result<Jobs, TraceError> {
    let entries: Vec<Entry> = serde_json::from_str(text).map_err(|e| TraceError::Philly(e.to_string()))?;
    let mut jobs = Jobs::default();
    for (n, entry) in entries.into_iter().enumerate() {
        let place = format!(
            "job {}",
            entry.jobid.clone().unwrap_or_else(|| (n + 1).to_string())
        );
        match entry.job(place)? {
            Some(job) => jobs.add(job),
            None => jobs.left_out.never_ran += 1,
        }
    }
    Ok(jobs)
}

impl Entry {
    /// `None` means that the job never ran, or that a time is missing.
    fn job(self, place: String) -> Result<Option<Job>, TraceError> {
        let mut run = 0.0;
        let mut gpus = None;
        for attempt in &self.attempts {
            let times =
                moment(attempt.start_time.as_ref(), &place)?.zip(moment(attempt.end_time.as_ref(), &place)?);
            let Some((start, end)) = times else { continue };
            if end < start {
                return Err(TraceError::NegativeRun(place));
            }
            run += end - start;
            gpus = Some(attempt.detail.iter().map(|s| s.gpus.len() as u64).sum());
        }
        let submit = moment(self.submitted_time.as_ref(), &place)?;
        Ok(submit.zip(gpus).map(|(submit, gpus)| Job {
            place,
            user: self.user.unwrap_or_default(),
            account: self.vc,
            submit,
            run,
            gpus,
        }))
    }
}

/// A time that may be missing.
fn moment(text: Option<&String>, place: &str) -> Result<Option<f64>, TraceError> {
    match text.map(String::as_str) {
        None | Some("" | "None" | "null") => Ok(None),
        Some(text) => match time::seconds(text) {
            Some(seconds) => Ok(Some(seconds)),
            None => Err(TraceError::NoTime {
                place: place.to_owned(),
                value: text.chars().take(40).collect(),
            }),
        },
    }
}
