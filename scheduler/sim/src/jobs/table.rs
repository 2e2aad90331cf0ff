//! Tables with a header line: Slurm's accounting as `sacct --parsable2` writes it, Helios's `cluster_log.csv`, and
//! openb's pod lists. Columns are found by name, and others are passed over.

use super::{Job, Jobs, time};
use crate::session::TraceError;
use std::borrow::Cow;

/// A column's place, and its name for messages.
type Column = (usize, &'static str);

/// A table's first line.
pub(crate) struct Header<'a> {
    line: usize,
    separator: char,
    columns: Vec<Cow<'a, str>>,
}

impl<'a> Header<'a> {
    /// Fields are separated by bars if the line has one, else by commas.
    pub(crate) fn new(line: usize, text: &'a str) -> Self {
        let separator = if text.contains('|') { '|' } else { ',' };
        Self {
            line,
            separator,
            columns: split(text, separator),
        }
    }

    fn has(&self, column: &str) -> bool {
        self.columns.iter().any(|c| c == column)
    }

    /// Place of the column; `None` where there is none.
    pub(crate) fn find(&self, column: &'static str) -> Result<Option<usize>, TraceError> {
        let line = self.line;
        let mut found = self.columns.iter().enumerate().filter(|(_, c)| *c == column);
        let first = found.next().map(|(at, _)| at);
        match found.next() {
            Some(_) => Err(TraceError::Twice { line, column }),
            None => Ok(first),
        }
    }

    /// The first of the columns that the table has.
    fn column<const N: usize>(
        &self,
        names: [&'static str; N],
        form: &'static str,
    ) -> Result<Column, TraceError> {
        for name in names {
            if let Some(at) = self.find(name)? {
                return Ok((at, name));
            }
        }
        let (line, column) = (self.line, names[0]);
        Err(TraceError::Lacks { line, column, form })
    }
}

/// Fields of a line. A field in quotes may hold the separator, and quotes doubled.
fn split(line: &str, separator: char) -> Vec<Cow<'_, str>> {
    if !line.contains('"') {
        return line.split(separator).map(|f| f.trim().into()).collect();
    }
    let (mut fields, mut field, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                field.push('"');
                chars.next();
            }
            '"' => quoted = !quoted,
            c if c == separator && !quoted => {
                fields.push(std::mem::take(&mut field).trim().to_owned().into());
            }
            c => field.push(c),
        }
    }
    fields.push(field.trim().to_owned().into());
    fields
}

/// A line below the header.
struct Row<'a> {
    line: usize,
    fields: Vec<Cow<'a, str>>,
}

impl Row<'_> {
    fn text(&self, (at, column): Column) -> Result<&str, TraceError> {
        let line = self.line;
        let field = self.fields.get(at).ok_or(TraceError::Short { line, column })?;
        Ok(field.as_ref())
    }

    /// What may be missing from the table as a whole.
    fn maybe(&self, column: Option<Column>) -> Result<Option<String>, TraceError> {
        column.map(|c| self.text(c).map(str::to_owned)).transpose()
    }

    fn number(&self, column: Column) -> Result<f64, TraceError> {
        let text = self.text(column)?;
        let value = text.parse::<f64>().ok();
        let value = value.filter(|v| v.is_finite() && *v >= 0.0);
        value.ok_or_else(|| TraceError::value(self.line, column.1, text, "a number, not negative"))
    }

    fn moment(&self, column: Column) -> Result<f64, TraceError> {
        let text = self.text(column)?;
        let must = "a date and a time, such as 2020-06-09 18:41:01";
        time::seconds(text).ok_or_else(|| TraceError::value(self.line, column.1, text, must))
    }

    fn place(&self) -> String {
        format!("line {}", self.line)
    }
}

/// Reads one row into the jobs.
type Reader = Box<dyn Fn(&Row<'_>, &mut Jobs) -> Result<(), TraceError>>;

/// `None` means that the header is none of a table of jobs.
pub(super) fn read<'a>(
    header: Header<'a>,
    lines: impl Iterator<Item = (usize, &'a str)>,
) -> Option<Result<Jobs, TraceError>> {
    let reader = if header.separator == '|' && header.has("Submit") {
        sacct(&header)
    } else if header.has("gpu_num") && header.has("submit_time") {
        helios(&header)
    } else if header.has("num_gpu") && header.has("creation_time") {
        openb(&header)
    } else {
        return None;
    };
    Some(reader.and_then(|reader| rows(&header, lines, &reader)))
}

fn rows<'a>(
    header: &Header<'_>,
    lines: impl Iterator<Item = (usize, &'a str)>,
    reader: &Reader,
) -> Result<Jobs, TraceError> {
    let mut jobs = Jobs::default();
    for (n, text) in lines {
        let row = Row {
            line: n + 1,
            fields: split(text, header.separator),
        };
        reader(&row, &mut jobs)?;
    }
    Ok(jobs)
}

fn helios(header: &Header<'_>) -> Result<Reader, TraceError> {
    const FORM: &str = "Helios's cluster_log.csv has";
    let column = |name| header.column([name], FORM);
    let (user, gpus, submit, run) = (
        column("user")?,
        column("gpu_num")?,
        column("submit_time")?,
        column("duration")?,
    );
    let account = header.find("vc")?.map(|at| (at, "vc"));
    Ok(Box::new(move |row: &Row<'_>, jobs: &mut Jobs| {
        let gpus = row.number(gpus)?;
        jobs.add(Job {
            place: row.place(),
            user: row.text(user)?.to_owned(),
            account: row.maybe(account)?,
            submit: row.moment(submit)?,
            run: row.number(run)?,
            gpus: gpus.ceil() as u64,
        });
        Ok(())
    }))
}

fn openb(header: &Header<'_>) -> Result<Reader, TraceError> {
    const FORM: &str = "openb's pod lists have";
    let column = |name| header.column([name], FORM);
    let (name, gpus) = (column("name")?, column("num_gpu")?);
    let (created, scheduled, deleted) = (
        column("creation_time")?,
        column("scheduled_time")?,
        column("deletion_time")?,
    );
    Ok(Box::new(move |row: &Row<'_>, jobs: &mut Jobs| {
        if row.text(scheduled)?.is_empty() || row.text(deleted)?.is_empty() {
            jobs.left_out.never_ran += 1;
            return Ok(());
        }
        let run = row.number(deleted)? - row.number(scheduled)?;
        if run < 0.0 {
            return Err(TraceError::Negative {
                line: row.line,
                what: "the time from scheduled_time to deletion_time",
            });
        }
        jobs.add(Job {
            place: row.place(),
            user: row.text(name)?.to_owned(),
            account: None,
            submit: row.number(created)?,
            run,
            gpus: row.number(gpus)?.ceil() as u64,
        });
        Ok(())
    }))
}

fn sacct(header: &Header<'_>) -> Result<Reader, TraceError> {
    const FORM: &str = "sacct --parsable2 writes";
    let column = |name| header.column([name], FORM);
    let (user, submit) = (column("User")?, column("Submit")?);
    let id = header.column(["JobID", "JobIDRaw"], FORM)?;
    let run = header.column(["ElapsedRaw", "Elapsed"], FORM)?;
    let gpus = header.column(["AllocTRES", "ReqTRES"], FORM)?;
    let account = header.find("Account")?.map(|at| (at, "Account"));
    Ok(Box::new(move |row: &Row<'_>, jobs: &mut Jobs| {
        // A step of a job.
        if row.text(id)?.contains('.') {
            return Ok(());
        }
        let elapsed = match run.1 {
            "ElapsedRaw" => row.number(run)?,
            _ => {
                let text = row.text(run)?;
                let must = "a duration, such as 1-02:03:04";
                time::duration(text).ok_or_else(|| TraceError::value(row.line, run.1, text, must))?
            }
        };
        let tres = row.text(gpus)?;
        if row.text(submit)? == "Unknown" || tres.is_empty() {
            jobs.left_out.never_ran += 1;
            return Ok(());
        }
        jobs.add(Job {
            place: row.place(),
            user: row.text(user)?.to_owned(),
            account: row.maybe(account)?,
            submit: row.moment(submit)?,
            run: elapsed,
            gpus: gpus_of(tres).ok_or_else(|| {
                let must = "a list of resources, such as cpu=8,gres/gpu=2";
                TraceError::value(row.line, gpus.1, tres, must)
            })?,
        });
        Ok(())
    }))
}

/// GPUs of a list such as `cpu=8,gres/gpu=2,gres/gpu:a100=2`: all, or the sum over the types where the sum isn't listed.
fn gpus_of(tres: &str) -> Option<u64> {
    let (mut all, mut typed) = (None, 0u64);
    for part in tres.split(',') {
        let (name, count) = part.split_once('=')?;
        if name == "gres/gpu" {
            all = Some(count.parse::<u64>().ok()?);
        } else if name.starts_with("gres/gpu:") {
            typed = typed.saturating_add(count.parse::<u64>().ok()?);
        }
    }
    Some(all.unwrap_or(typed))
}
