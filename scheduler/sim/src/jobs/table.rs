//! Tables with a header line: Slurm's accounting as `sacct --parsable2` writes it, Helios's `cluster_log.csv`, and
//! openb's pod lists. Columns are found by name, and others are passed over.

use super::{Job, Jobs, time};
use crate::session::TraceError;
use std::borrow::Cow;

/// A column's place, and its name for messages.
type Column = (usize, &'static str);

/// Rows of a table, each with the number of its first line. Blank lines are passed over.
///
/// Bars separate the fields if the first line has one, and a quote is a letter as any other then: so writes sacct. Else
/// commas do, and a field in quotes may hold commas, line ends, and quotes doubled.
pub(crate) struct Rows<'a> {
    rest: &'a str,
    /// Lines before `rest`.
    before: usize,
    bars: bool,
}

impl<'a> Rows<'a> {
    pub(crate) fn of(text: &'a str) -> Self {
        let first = text.lines().find(|l| !l.trim().is_empty());
        Self {
            rest: text,
            before: 0,
            // A column's name in quotes may have a bar.
            bars: first.is_some_and(|l| l.split('"').step_by(2).any(|part| part.contains('|'))),
        }
    }

    /// Takes a row with quotes off the rest, which may go over several lines.
    fn quoted(&mut self) -> Result<Vec<Cow<'a, str>>, TraceError> {
        let line = self.before + 1;
        let (mut fields, mut field, mut in_quotes) = (Vec::new(), String::new(), false);
        let mut chars = self.rest.char_indices().peekable();
        let mut end = self.rest.len();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' if in_quotes && chars.peek().is_some_and(|(_, next)| *next == '"') => {
                    field.push('"');
                    chars.next();
                }
                '"' if in_quotes || field.trim().is_empty() => in_quotes = !in_quotes,
                ',' if !in_quotes => fields.push(std::mem::take(&mut field).trim().to_owned().into()),
                '\n' => {
                    self.before += 1;
                    if !in_quotes {
                        end = at + 1;
                        break;
                    }
                    field.push(c);
                }
                c => field.push(c),
            }
        }
        if in_quotes {
            return Err(TraceError::Quote { line });
        }
        fields.push(field.trim().to_owned().into());
        self.rest = &self.rest[end..];
        Ok(fields)
    }
}

impl<'a> Iterator for Rows<'a> {
    type Item = Result<(usize, Vec<Cow<'a, str>>), TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.rest.is_empty() {
                return None;
            }
            let (text, rest) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
            if !text.trim().is_empty() {
                let line = self.before + 1;
                let plain = self.bars || !text.contains('"');
                let fields = if plain {
                    (self.rest, self.before) = (rest, line);
                    let separator = if self.bars { '|' } else { ',' };
                    Ok(text.split(separator).map(|f| f.trim().into()).collect())
                } else {
                    self.quoted()
                };
                if fields.is_err() {
                    self.rest = "";
                }
                return Some(fields.map(|fields| (line, fields)));
            }
            (self.rest, self.before) = (rest, self.before + 1);
        }
    }
}

/// A table's first line.
pub(crate) struct Header<'a> {
    line: usize,
    bars: bool,
    columns: Vec<Cow<'a, str>>,
}

impl<'a> Header<'a> {
    /// Takes the header off the rows. `None` means that there is no row.
    pub(crate) fn of(rows: &mut Rows<'a>) -> Option<Result<Self, TraceError>> {
        let bars = rows.bars;
        let header = rows.next()?;
        Some(header.map(|(line, columns)| Self { line, bars, columns }))
    }

    pub(crate) fn line(&self) -> usize {
        self.line
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

    /// A text that may be missing from the table.
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
pub(super) fn read(text: &str) -> Option<Result<Jobs, TraceError>> {
    let mut rows = Rows::of(text);
    let header = match Header::of(&mut rows)? {
        Ok(header) => header,
        Err(error) => return Some(Err(error)),
    };
    let reader = if header.bars && header.has("Submit") {
        sacct(&header)
    } else if header.has("gpu_num") && header.has("submit_time") {
        helios(&header)
    } else if header.has("num_gpu") && header.has("creation_time") {
        openb(&header)
    } else {
        return None;
    };
    Some(reader.and_then(|reader| jobs(rows, &reader)))
}

fn jobs(rows: Rows<'_>, reader: &Reader) -> Result<Jobs, TraceError> {
    let mut jobs = Jobs::default();
    for row in rows {
        let (line, fields) = row?;
        reader(&Row { line, fields }, &mut jobs)?;
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

/// GPUs of a list such as `cpu=8,gres/gpu=2,gres/gpu:a100=2`: all, or the sum over the types where the sum isn't
/// listed.
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
