//! The common form of every trace: sessions and their cells. Also the reasons for which a text can't be read.

use hop_words::time::{Span, Timestamp};
use std::fmt;

/// Characters of a wrong value that a message repeats.
pub(crate) const QUOTED: usize = 40;

/// No time or length in a trace is greater than this: a greater number is not in seconds or minutes.
pub(crate) const TEN_YEARS: f64 = 10.0 * 366.0 * 86_400.0;

/// Time for which a session is open before its first cell, if untold by the trace.
pub(crate) const OPENED_BEFORE: Span = Span::from_secs(120);

/// GPUs of one cell at most.
pub(crate) const MOST_GPUS: u64 = 8;

/// One person's sitting with one kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    pub id: String,
    pub user: String,
    pub account: Option<String>,
    /// When it was opened and closed.
    pub open: Timestamp,
    pub close: Timestamp,
    /// Deadline of the last cell, for notebooks that run unattended.
    pub deadline: Option<Timestamp>,
    pub cells: Vec<Cell>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    pub submit: Timestamp,
    pub run: Span,
    pub gpus: u16,
    pub cpus: u16,
    /// Fingerprint of the cell's text, equal for equal texts; 0 means unknown.
    pub print: u64,
}

impl Session {
    /// Most GPUs that a cell of the session asks for.
    pub fn gpus(&self) -> u16 {
        self.cells.iter().map(|c| c.gpus).max().unwrap_or(0)
    }
}

/// Jobs of a trace without a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeftOut {
    pub without_gpus: u64,
    /// Jobs for more than [`MOST_GPUS`], and so for several nodes.
    pub too_large: u64,
    /// Jobs cancelled before their start, or without known times.
    pub never_ran: u64,
}

impl LeftOut {
    pub fn all(&self) -> u64 {
        self.without_gpus + self.too_large + self.never_ran
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} jobs without a GPU, {} of more than {MOST_GPUS} GPUs, {} that never ran",
            self.without_gpus, self.too_large, self.never_ran
        )
    }
}

/// Why a trace can't be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("the trace is empty")]
    Empty,
    #[error("line {line} is longer than 1 MiB")]
    Long { line: usize },
    #[error(
        "line {line} names no column {column}: a table's first line names num_gpu, submit_time and duration, separated \
         by commas; JSON lines begin with a brace; docs/trace-format.md has the other forms"
    )]
    Column { line: usize, column: &'static str },
    #[error("line {line} names no column {column}, which {form}")]
    Lacks {
        line: usize,
        column: &'static str,
        /// The form, as in "sacct --parsable2 writes".
        form: &'static str,
    },
    #[error("line {line} has {found} fields; a line of SWF has {needed}")]
    Fields {
        line: usize,
        found: usize,
        needed: usize,
    },
    #[error("line {line}: {what} is {value:?}; it must be {must}")]
    Value {
        line: usize,
        what: &'static str,
        value: String,
        must: &'static str,
    },
    #[error("the text begins as Philly's cluster_job_log and is none: {0}")]
    Philly(String),
    #[error("{place}: {value:?} is no time such as 2017-10-07 01:12:09")]
    NoTime { place: String, value: String },
    #[error("{0}: an attempt ends before it starts")]
    NegativeRun(String),
    #[error("{place}: the {what} is longer than ten years, or more than ten years after the first job")]
    JobTooLate { place: String, what: &'static str },
    #[error("no job of the trace can be simulated: {0}")]
    NoJobs(LeftOut),
    #[error("line {line}: a quote is opened, and closed nowhere after it")]
    Quote { line: usize },
    #[error("line {line} names the column {column} twice")]
    Twice { line: usize, column: &'static str },
    #[error("line {line} has no field for the column {column}")]
    Short { line: usize, column: &'static str },
    #[error("line {line}: {what} is {value:?}; it must be a whole number, not negative")]
    Number {
        line: usize,
        value: String,
        what: &'static str,
    },
    #[error("line {line} is not a cell in JSON: {what}, in column {column} of the line")]
    Json {
        line: usize,
        column: usize,
        what: String,
    },
    #[error("line {line}: session {session:?} belonged to another user in a line before")]
    OtherUser { line: usize, session: String },
    #[error("line {line} is of version {version} of the form; this program reads version 1")]
    Version { line: usize, version: u32 },
    #[error("line {line}: {what} must not be negative")]
    Negative { line: usize, what: &'static str },
    #[error("line {line} asks for {gpus} GPUs; one cell gets at most 8")]
    Gpus { line: usize, gpus: u64 },
    #[error("line {line}: {what} lies more than ten years after the trace's start")]
    TooLate { line: usize, what: &'static str },
}

impl TraceError {
    /// A value unlike its required form.
    pub(crate) fn value(line: usize, what: &'static str, value: &str, must: &'static str) -> Self {
        Self::Value {
            line,
            what,
            value: value.chars().take(QUOTED).collect(),
            must,
        }
    }
}

/// A session of these cells, in any order.
pub(crate) fn session(id: String, user: String, account: Option<String>, mut cells: Vec<Cell>) -> Session {
    cells.sort_by_key(|c| c.submit);
    let first = cells.first().map_or(0, |c| c.submit.0);
    let last = cells.iter().map(|c| c.submit + c.run).max().unwrap_or_default();
    Session {
        id,
        user,
        account,
        open: Timestamp(first.saturating_sub(OPENED_BEFORE.0)),
        // Every session lasts, if only for a microsecond.
        close: last.max(Timestamp(first + 1)),
        deadline: None,
        cells,
    }
}
