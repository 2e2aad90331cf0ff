//! Traces: submissions of cells and their run times. `docs/trace-format.md` describes the forms of files. Traces of
//! batch jobs are read in [`crate::jobs`].

use crate::jobs::{self, Header, Rows};
use crate::rng::Rng;
pub use crate::session::{Cell, LeftOut, Session, TraceError};
use crate::session::{OPENED_BEFORE, QUOTED, TEN_YEARS, session};
use hop_words::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Sessions with their cells, by time. Times count from the trace's start.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    pub name: String,
    pub sessions: Vec<Session>,
    /// Jobs without a cell, if the file is a trace of batch jobs.
    pub left_out: LeftOut,
}

/// A line of our own form: a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Version of the form.
    #[serde(default = "one")]
    pub v: u32,
    pub session: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Seconds from the trace's start.
    pub submit: f64,
    /// Seconds of running.
    pub run: f64,
    #[serde(default)]
    pub gpus: u16,
    #[serde(default)]
    pub cpus: u16,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub print: u64,
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// No line of a trace is longer.
const LINE: usize = 1 << 20;
impl Trace {
    /// Reads any form: JSON lines if the text begins with a brace, a trace of batch jobs by its first line, else the
    /// table of shared/data.
    ///
    /// # Errors
    /// The first unreadable line, with its number.
    pub fn parse(name: &str, text: &str, seed: u64) -> Result<Self, TraceError> {
        Self::parse_with(name, text, seed, 1)
    }

    /// The same, with so many processors of a trace in SWF for one GPU.
    ///
    /// # Errors
    /// The first unreadable line, with its number.
    pub fn parse_with(name: &str, text: &str, seed: u64, procs_per_gpu: u32) -> Result<Self, TraceError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let first = text.trim_start();
        // Philly's list may be one line.
        let long = text.lines().position(|l| l.len() > LINE);
        if let Some(n) = long.filter(|_| !first.starts_with('[')) {
            return Err(TraceError::Long { line: n + 1 });
        }
        let (sessions, left_out) = if first.starts_with('{') {
            (parse_lines(text)?, LeftOut::default())
        } else if let Some(jobs) = jobs::parse(text, procs_per_gpu) {
            jobs?
        } else {
            (parse_table(text, seed)?, LeftOut::default())
        };
        if sessions.iter().all(|s| s.cells.is_empty()) {
            return Err(TraceError::Empty);
        }
        Ok(Self {
            name: name.to_owned(),
            sessions,
            left_out,
        })
    }

    /// Our own form, one cell a line, by time of submission.
    pub fn to_lines(&self) -> String {
        let mut cells: Vec<(&Session, &Cell)> = self
            .sessions
            .iter()
            .flat_map(|s| s.cells.iter().map(move |c| (s, c)))
            .collect();
        cells.sort_by_key(|(s, c)| (c.submit, s.id.clone()));
        let mut out = String::new();
        for (s, c) in cells {
            let line = Line {
                v: 1,
                session: s.id.clone(),
                user: s.user.clone(),
                account: s.account.clone(),
                submit: c.submit.0 as f64 / 1e6,
                run: c.run.as_secs_f64(),
                gpus: c.gpus,
                cpus: c.cpus,
                print: c.print,
            };
            out.push_str(&serde_json::to_string(&line).expect("a line has nothing that JSON can't say"));
            out.push('\n');
        }
        out
    }

    pub fn cells(&self) -> usize {
        self.sessions.iter().map(|s| s.cells.len()).sum()
    }

    /// When the last cell ends if nobody waits.
    pub fn end(&self) -> Timestamp {
        self.sessions.iter().map(|s| s.close).max().unwrap_or_default()
    }

    pub fn gpu_hours_used(&self) -> f64 {
        let cells = self.sessions.iter().flat_map(|s| &s.cells);
        cells
            .map(|c| c.run.as_secs_f64() * f64::from(c.gpus))
            .sum::<f64>()
            / 3600.0
    }

    /// The same people at `factor` times the speed.
    #[must_use]
    pub fn compressed(mut self, factor: f64) -> Self {
        let squeeze = |t: u64| (t as f64 / factor) as u64;
        for s in &mut self.sessions {
            s.open.0 = squeeze(s.open.0);
            s.close.0 = squeeze(s.close.0).max(s.open.0 + 1);
            for c in &mut s.cells {
                c.submit.0 = squeeze(c.submit.0);
                c.run.0 = squeeze(c.run.0);
            }
        }
        self
    }

    /// The same cells with no time to think: each is submitted with the earlier one's reply.
    #[must_use]
    pub fn without_think(mut self) -> Self {
        for s in &mut self.sessions {
            let Some(first) = s.cells.first().map(|c| c.submit) else {
                continue;
            };
            let run: u64 = s.cells.iter().map(|c| c.run.0).sum();
            for c in &mut s.cells {
                c.submit = first;
            }
            s.close = (first + Span(run)).max(Timestamp(first.0 + 1));
        }
        self.name.push_str(", no think time");
        self
    }

    /// The part of the trace from `from` for `length`: cells submitted then, cut at its end, with times counted from
    /// `from`.
    #[must_use]
    pub fn window(&self, from: Timestamp, length: Span) -> Self {
        let end = from + length;
        let mut sessions = Vec::new();
        for s in &self.sessions {
            if s.close <= from || s.open >= end {
                continue;
            }
            let shift = |t: Timestamp| Timestamp(t.0.max(from.0).min(end.0) - from.0);
            let mut cut = s.clone();
            cut.open = shift(s.open);
            cut.close = shift(s.close);
            cut.cells = s
                .cells
                .iter()
                .filter(|c| c.submit + c.run > from && c.submit < end)
                .map(|c| {
                    let (start, stop) = (shift(c.submit), shift(c.submit + c.run));
                    Cell {
                        submit: start,
                        run: stop.since(start),
                        ..c.clone()
                    }
                })
                .collect();
            sessions.push(cut);
        }
        Self {
            name: format!("{}+{:.0}h", self.name, from.0 as f64 / 3.6e9),
            sessions,
            left_out: self.left_out,
        }
    }

    /// Leaves out sessions, drawn by seed, until those open at once ask for at most `gpus` GPUs in all.
    #[must_use]
    pub fn thinned(&self, gpus: u32, seed: u64) -> Self {
        let mut order: Vec<usize> = (0..self.sessions.len()).collect();
        let mut rng = Rng::new(seed, 0x7417);
        for i in (1..order.len()).rev() {
            order.swap(i, rng.below(i + 1));
        }
        // Keep as many as fit, in the drawn order.
        let mut kept: Vec<usize> = Vec::new();
        for i in order {
            kept.push(i);
            let chosen: Vec<&Session> = kept.iter().map(|&k| &self.sessions[k]).collect();
            if peak(&chosen) > gpus {
                kept.pop();
            }
        }
        kept.sort_unstable();
        Self {
            name: format!("{}~{gpus}", self.name),
            sessions: kept.into_iter().map(|i| self.sessions[i].clone()).collect(),
            left_out: self.left_out,
        }
    }
}

/// Most GPUs held at once if each session holds its own from opening to closing.
pub fn peak(sessions: &[&Session]) -> u32 {
    let mut changes: Vec<(Timestamp, i64)> = Vec::new();
    for s in sessions {
        let g = i64::from(s.gpus());
        changes.push((s.open, g));
        changes.push((s.close, -g));
    }
    changes.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, d) in changes {
        now += d;
        most = most.max(now);
    }
    most.max(0) as u32
}

/// The table of shared/data: whole minutes, sessions one after the other, a new one where the time goes back.
fn parse_table(text: &str, seed: u64) -> Result<Vec<Session>, TraceError> {
    let mut rows = Rows::of(text);
    let header = Header::of(&mut rows).ok_or(TraceError::Empty)??;
    let line = header.line();
    let find = |column| header.find(column)?.ok_or(TraceError::Column { line, column });
    let (gpus_at, submit_at, run_at) = (find("num_gpu")?, find("submit_time")?, find("duration")?);
    let mut sessions: Vec<Vec<(u64, u64, u16)>> = Vec::new();
    for row in rows {
        let (line, fields) = row?;
        let gpus = number(&fields, gpus_at, line, "num_gpu")?;
        let submit = number(&fields, submit_at, line, "submit_time")?;
        let run = number(&fields, run_at, line, "duration")?;
        let gpus = gpus_of_cell(gpus, line)?;
        for (minutes, what) in [(submit, "submit_time"), (run, "duration")] {
            if minutes as f64 * 60.0 > TEN_YEARS {
                return Err(TraceError::TooLate { line, what });
            }
        }
        let starts = sessions
            .last()
            .and_then(|s| s.last())
            .is_none_or(|last| submit < last.0);
        if starts {
            sessions.push(Vec::new());
        }
        let session = sessions.last_mut().expect("one was pushed if there was none");
        session.push((submit, run, gpus));
    }
    let mut rng = Rng::new(seed, 0x5e55);
    Ok(sessions
        .iter()
        .enumerate()
        .map(|(i, s)| minutes(i, s, &mut rng))
        .collect())
}

/// A session from whole minutes. Real sessions don't begin at full minutes: all cells of a session are shifted by the
/// same part of a minute, which keeps the gaps.
fn minutes(i: usize, cells: &[(u64, u64, u16)], rng: &mut Rng) -> Session {
    const MINUTE: u64 = 60_000_000;
    let offset = (rng.unit() * MINUTE as f64) as u64 + OPENED_BEFORE.0;
    let cells: Vec<Cell> = cells
        .iter()
        .map(|&(submit, run, gpus)| Cell {
            submit: Timestamp(submit * MINUTE + offset),
            run: Span(run * MINUTE),
            gpus,
            cpus: 0,
            print: 0,
        })
        .collect();
    session(format!("s{i:04}"), format!("u{:03}", i % 97), None, cells)
}

fn gpus_of_cell(gpus: u64, line: usize) -> Result<u16, TraceError> {
    match u16::try_from(gpus) {
        Ok(n) if n <= 8 => Ok(n),
        _ => Err(TraceError::Gpus { line, gpus }),
    }
}

fn number(fields: &[Cow<'_, str>], at: usize, line: usize, what: &'static str) -> Result<u64, TraceError> {
    let value = fields.get(at).ok_or(TraceError::Short { line, column: what })?;
    let value = value.as_ref();
    // Some tools write whole minutes as 12.0.
    let whole = value.strip_suffix(".0").unwrap_or(value);
    whole.parse().map_err(|_| TraceError::Number {
        line,
        value: value.chars().take(QUOTED).collect(),
        what,
    })
}

/// serde's error, without its own line number.
fn not_json(line: usize, error: &serde_json::Error) -> TraceError {
    let (text, column) = (error.to_string(), error.column());
    let place = format!(" at line {} column {column}", error.line());
    TraceError::Json {
        line,
        column,
        what: text.strip_suffix(&place).unwrap_or(&text).to_owned(),
    }
}

fn parse_lines(text: &str) -> Result<Vec<Session>, TraceError> {
    let mut sessions: BTreeMap<String, (String, Option<String>, Vec<Cell>)> = BTreeMap::new();
    for (n, text) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let number = n + 1;
        let line: Line = serde_json::from_str(text).map_err(|e| not_json(number, &e))?;
        if line.v != 1 {
            return Err(TraceError::Version {
                line: number,
                version: line.v,
            });
        }
        for (value, what) in [(line.submit, "submit"), (line.run, "run")] {
            if value.is_nan() || value < 0.0 {
                return Err(TraceError::Negative { line: number, what });
            }
            if value > TEN_YEARS {
                return Err(TraceError::TooLate { line: number, what });
            }
        }
        let gpus = gpus_of_cell(line.gpus.into(), number)?;
        let user = if line.user.is_empty() {
            line.session.clone()
        } else {
            line.user
        };
        let entry = sessions
            .entry(line.session.clone())
            .or_insert_with(|| (user.clone(), line.account, Vec::new()));
        if entry.0 != user {
            return Err(TraceError::OtherUser {
                line: number,
                session: line.session.chars().take(QUOTED).collect(),
            });
        }
        entry.2.push(Cell {
            submit: Timestamp((line.submit * 1e6) as u64),
            run: Span((line.run * 1e6) as u64),
            gpus,
            cpus: line.cpus,
            print: line.print,
        });
    }
    Ok(sessions
        .into_iter()
        .map(|(id, (user, account, cells))| session(id, user, account, cells))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n\
        0,1,10,0,x,2,0\n1,4,20,0,x,3,0\n2,8,5,0,x,1,0\n";

    #[test]
    fn a_new_session_begins_where_the_time_goes_back() {
        let t = Trace::parse("t", TABLE, 1).unwrap();
        assert_eq!(t.sessions.len(), 2);
        assert_eq!(t.sessions[0].cells.len(), 2);
        let gap = t.sessions[0].cells[1].submit.since(t.sessions[0].cells[0].submit);
        assert_eq!(gap, Span::from_secs(600));
        assert_eq!(t.sessions[1].gpus(), 8);
        assert!((t.gpu_hours_used() - (2.0 + 12.0 + 8.0) / 60.0).abs() < 1e-9);
    }

    #[test]
    fn a_table_may_have_its_fields_in_quotes() {
        let quoted: Vec<String> = TABLE
            .lines()
            .map(|line| {
                line.split(',')
                    .map(|f| format!("\"{f}\""))
                    .collect::<Vec<_>>()
                    .join(",")
            })
            .collect();
        let t = Trace::parse("t", &quoted.join("\r\n").replace("\"x\"", "\"a, b\""), 1).unwrap();
        assert_eq!(t, Trace::parse("t", TABLE, 1).unwrap());
    }

    #[test]
    fn our_own_form_survives_a_round_trip() {
        let t = Trace::parse("t", TABLE, 1).unwrap();
        let again = Trace::parse("t", &t.to_lines(), 9).unwrap();
        assert_eq!(t.sessions.len(), again.sessions.len());
        for (a, b) in t.sessions.iter().zip(&again.sessions) {
            assert_eq!((&a.id, &a.cells), (&b.id, &b.cells));
        }
    }

    #[test]
    fn what_can_not_be_read_is_named_with_its_line() {
        let bad = |text: &str| Trace::parse("t", text, 1).unwrap_err().to_string();
        assert_eq!(bad(""), "the trace is empty");
        assert!(bad("num_gpu,duration\n1,2\n").starts_with("line 1 names no column submit_time: "));
        let header = "num_gpu,submit_time,duration\n";
        assert_eq!(
            bad(&format!("{header}1,x,2\n")),
            "line 2: submit_time is \"x\"; it must be a whole number, not negative"
        );
        assert_eq!(
            bad(&format!("{header}9,1,2\n")),
            "line 2 asks for 9 GPUs; one cell gets at most 8"
        );
        assert_eq!(
            bad("{\"session\":\"a\",\"submit\":-1,\"run\":1}"),
            "line 1: submit must not be negative"
        );
        assert!(bad("{\"session\":1}").contains("line 1"));
        assert!(bad("{\"v\":2,\"session\":\"a\",\"submit\":1,\"run\":1}").contains("version 2"));
    }

    #[test]
    fn without_think_each_cell_comes_with_the_reply_to_the_one_before() {
        let t = Trace::parse("t", TABLE, 1).unwrap();
        let quick = t.clone().without_think();
        assert!((t.gpu_hours_used() - quick.gpu_hours_used()).abs() < 1e-9);
        let s = &quick.sessions[0];
        assert_eq!(s.cells[0].submit, s.cells[1].submit);
        assert_eq!(s.close.since(s.cells[0].submit), Span::from_secs(5 * 60));
    }

    #[test]
    fn windows_cut_and_thinning_fits() {
        let t = Trace::parse("t", TABLE, 1).unwrap();
        let w = t.window(Timestamp(0), Span::from_secs(15 * 60));
        assert_eq!(w.cells(), 2);
        let thin = t.thinned(4, 3);
        assert_eq!(thin.sessions.len(), 1);
        assert_eq!(thin.sessions[0].gpus(), 4);
        assert_eq!(t.thinned(4, 3), t.thinned(4, 3));
    }
}
