//! All formats for a record type: table, `-p`/`-P`, JSON.
//!
//! A command describes its record once, as a list of [`Field`]s. The rules are sacct's: names in any case,
//! `--format=a,b%30,c%-20` or `all`, right-aligned unless the width is negative, cells cut with `+`, headers as the
//! field is named. JSON is `{"version": "v1", "command": ..., "rows": [...]}` with times and lengths in seconds; its
//! keys are never changed within a version, only added to.

use crate::context::Context;
use crate::failure::Failure;
use crate::time::{write_span, write_time};
use clap::builder::NonEmptyStringValueParser;
use hop_words::id::UserName;
use hop_words::text::{acts, plain};
use hop_words::time::{Span, Timestamp};
use jiff::tz::TimeZone;
use serde_json::{Map, json};
use std::io::{self, Write};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The formats of `--json=`.
const JSON_VERSIONS: [&str; 1] = ["v1"];

/// Writes text without characters that act on a terminal, but for the ends of lines: others have chosen names and
/// reasons.
pub(crate) struct Plain<W>(pub(crate) W);

impl<W: Write> Write for Plain<W> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let shown: String = String::from_utf8_lossy(text)
            .chars()
            .map(|c| if acts(c) && c != '\n' && c != '\t' { '?' } else { c })
            .collect();
        self.0.write_all(shown.as_bytes())?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// What a field of one record is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Text(String),
    Number(u64),
    /// With one digit behind the point.
    Decimal(f64),
    /// Of whole percents.
    Percent(Option<f64>),
    Span(Span),
    /// The `Raw` twin of a span: seconds, with a fraction.
    Seconds(Span),
    Time(Timestamp),
    /// MiB; shown with a unit unless `--noconvert`.
    Mib(u64),
    /// An empty cell; null in JSON.
    Absent,
}

impl Value {
    pub(crate) fn text(value: impl ToString) -> Self {
        Self::Text(value.to_string())
    }

    pub(crate) fn time(value: Option<Timestamp>) -> Self {
        value.map_or(Self::Absent, Self::Time)
    }

    pub(crate) fn maybe(value: Option<impl ToString>) -> Self {
        value.map_or(Self::Absent, Self::text)
    }

    fn write(&self, zone: &TimeZone, convert: bool) -> String {
        match self {
            Self::Text(text) => plain(text),
            Self::Number(n) => n.to_string(),
            Self::Decimal(n) => format!("{n:.1}"),
            Self::Percent(Some(p)) => format!("{p:.1}%"),
            Self::Span(span) => write_span(*span),
            Self::Seconds(span) => format!("{:.3}", span.as_secs_f64()),
            Self::Time(at) => write_time(*at, zone),
            Self::Mib(mib) if convert && *mib >= 1024 && mib % 1024 == 0 => format!("{}G", mib / 1024),
            Self::Mib(mib) => format!("{mib}M"),
            Self::Percent(None) | Self::Absent => String::new(),
        }
    }

    fn json(&self) -> serde_json::Value {
        match self {
            Self::Text(text) => json!(text),
            Self::Number(n) | Self::Mib(n) => json!(n),
            Self::Decimal(n) => json!(n),
            Self::Percent(p) => json!(p),
            Self::Span(span) | Self::Seconds(span) => json!(span.as_secs_f64()),
            Self::Time(at) => json!(at.0 as f64 / 1e6),
            Self::Absent => serde_json::Value::Null,
        }
    }
}

/// One field of a record.
pub(crate) struct Field<R> {
    pub(crate) name: &'static str,
    /// Positive: right-aligned; negative: left-aligned.
    pub(crate) width: i16,
    pub(crate) help: &'static str,
    pub(crate) value: fn(&R) -> Value,
}

/// `field!(name, width, help, value)`: a [`Field`] on one line.
macro_rules! field {
    ($name:literal, $width:literal, $help:literal, $value:expr) => {
        Field {
            name: $name,
            width: $width,
            help: $help,
            value: $value,
        }
    };
}
pub(crate) use field;

/// Whose records a command lists.
#[derive(Debug, clap::Args)]
pub(crate) struct Whose {
    /// All users' rows (operators; the default for root)
    #[arg(short = 'a', long)]
    allusers: bool,
    /// Only these users
    #[arg(
        short = 'u',
        long = "user",
        value_name = "USERS",
        value_delimiter = ',',
        conflicts_with = "allusers"
    )]
    users: Vec<String>,
    /// Only your own rows, also for root
    #[arg(long, conflicts_with_all = ["allusers", "users"])]
    me: bool,
}

impl Whose {
    /// Names those that are asked for. A name that nobody has is a mistake, and no empty table.
    pub(crate) fn users(&self, context: &Context<'_>) -> Result<Vec<UserName>, Failure> {
        let name = |user: &String| {
            let known = (context.user)(user);
            known.map(UserName::from).ok_or_else(|| {
                Failure::Failed(format!(
                    "there is no user {user:?} on this host: look at the spelling"
                ))
            })
        };
        self.users.iter().map(name).collect()
    }

    pub(crate) fn all(&self, is_root: bool) -> bool {
        self.allusers || (is_root && self.users.is_empty() && !self.me)
    }
}

/// What a command lists.
pub(crate) struct View<R: 'static> {
    pub(crate) command: &'static str,
    pub(crate) fields: &'static [Field<R>],
    /// The columns without `--format`.
    pub(crate) default: &'static str,
    pub(crate) brief: &'static str,
    /// The environment variable that sets the columns.
    pub(crate) variable: &'static str,
}

/// The options of everything that lists.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Options {
    /// Columns: NAME[%[-]WIDTH],...; a negative width aligns left
    #[arg(short = 'o', long, value_name = "FIELDS")]
    pub(crate) format: Option<String>,
    /// List the names of all fields
    #[arg(short = 'e', long)]
    pub(crate) helpformat: bool,
    /// No header
    #[arg(short = 'n', long)]
    pub(crate) noheader: bool,
    /// Whole fields between '|', one at the end too
    #[arg(short = 'p', long, conflicts_with_all = ["parsable2", "json"])]
    pub(crate) parsable: bool,
    /// Whole fields between '|', none at the end
    #[arg(short = 'P', long, conflicts_with = "json")]
    pub(crate) parsable2: bool,
    /// Separator of fields for -p and -P
    #[arg(long, value_name = "TEXT", default_value = "|", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) delimiter: String,
    /// JSON; =v1 asks for this version, =list names the versions
    #[arg(long, value_name = "VERSION", num_args = 0..=1, require_equals = true, default_missing_value = "v1")]
    pub(crate) json: Option<String>,
    /// Memory in M, never in G
    #[arg(long)]
    pub(crate) noconvert: bool,
    /// The fewest columns
    #[arg(short = 'b', long, conflicts_with_all = ["format", "long"])]
    pub(crate) brief: bool,
    /// All columns
    #[arg(short = 'l', long, conflicts_with = "format")]
    pub(crate) long: bool,
}

impl Options {
    /// Answers `--helpformat` and `--json=list`, which need no records. True if one of them was given.
    pub(crate) fn answered<R>(&self, view: &View<R>, context: &mut Context<'_>) -> Result<bool, Failure> {
        if self.helpformat {
            for field in view.fields {
                writeln!(context.out, "{:<16} {}", field.name, field.help)?;
            }
            return Ok(true);
        }
        match self.json.as_deref() {
            Some("list") => {
                writeln!(context.out, "{}", JSON_VERSIONS.join("\n"))?;
                Ok(true)
            }
            Some(version) if !JSON_VERSIONS.contains(&version) => Err(Failure::Usage(format!(
                "there is no JSON version {version:?}: this release has {}",
                JSON_VERSIONS.join(", ")
            ))),
            _ => Ok(false),
        }
    }

    /// A table for people.
    pub(crate) fn is_table(&self) -> bool {
        self.json.is_none() && !self.parsable && !self.parsable2 && !self.noheader
    }

    /// Writes the records.
    pub(crate) fn write<R>(
        &self,
        view: &View<R>,
        rows: &[R],
        context: &mut Context<'_>,
    ) -> Result<(), Failure> {
        let columns = self.columns(view, context.env)?;
        if self.json.is_some() {
            return self.write_json(view, &columns, rows, context);
        }
        if self.parsable || self.parsable2 {
            return self.write_parsable(&columns, rows, context);
        }
        self.write_table(self.filling(columns, rows, context), rows, context)
    }

    /// On a wide terminal the last column of a view has all the room needed by its cells.
    fn filling<R>(&self, mut columns: Vec<Column<R>>, rows: &[R], context: &Context<'_>) -> Vec<Column<R>> {
        let before: usize = columns.iter().rev().skip(1).map(|c| c.width + 1).sum();
        if let (Some(screen), Some(last)) = (context.columns, columns.last_mut())
            && self.format.is_none()
            && last.left
        {
            let cells = rows.iter().map(|row| self.cell(last, row, &context.zone).width());
            let needed = cells.max().unwrap_or(0).min(screen.saturating_sub(before));
            last.width = last.width.max(needed);
        }
        columns
    }

    fn columns<R>(&self, view: &View<R>, env: fn(&str) -> Option<String>) -> Result<Vec<Column<R>>, Failure> {
        let from_env = || env(view.variable).filter(|text| !text.trim().is_empty());
        if let Some(format) = &self.format {
            return read_format(view, format);
        }
        if self.brief {
            return read_format(view, view.brief);
        }
        let everything = || view.fields.iter().filter(|field| !field.name.ends_with("Raw"));
        if self.long || self.json.is_some() {
            return Ok(everything().map(Column::plain).collect());
        }
        match from_env() {
            Some(format) => read_format(view, &format)
                .map_err(|failure| Failure::Usage(format!("{}: {failure}", view.variable))),
            None => read_format(view, view.default),
        }
    }

    fn write_json<R>(
        &self,
        view: &View<R>,
        columns: &[Column<R>],
        rows: &[R],
        context: &mut Context<'_>,
    ) -> Result<(), Failure> {
        let row = |record: &R| -> Map<String, serde_json::Value> {
            columns
                .iter()
                .map(|column| (json_key(column.field.name), (column.field.value)(record).json()))
                .collect()
        };
        let rows: Vec<_> = rows.iter().map(row).collect();
        let document = json!({ "version": "v1", "command": view.command, "rows": rows });
        writeln!(
            context.out,
            "{}",
            serde_json::to_string_pretty(&document).map_err(|e| Failure::of(&e))?
        )?;
        Ok(())
    }

    fn write_parsable<R>(
        &self,
        columns: &[Column<R>],
        rows: &[R],
        context: &mut Context<'_>,
    ) -> Result<(), Failure> {
        let end = if self.parsable {
            self.delimiter.as_str()
        } else {
            ""
        };
        if !self.noheader {
            let names: Vec<&str> = columns.iter().map(|column| column.field.name).collect();
            writeln!(context.out, "{}{end}", names.join(&self.delimiter))?;
        }
        for row in rows {
            let cells: Vec<String> = columns
                .iter()
                .map(|column| self.delimited(column, row, &context.zone))
                .collect();
            writeln!(context.out, "{}{end}", cells.join(&self.delimiter))?;
        }
        Ok(())
    }

    fn write_table<R>(
        &self,
        columns: Vec<Column<R>>,
        rows: &[R],
        context: &mut Context<'_>,
    ) -> Result<(), Failure> {
        if !self.noheader {
            let names: Vec<String> = columns
                .iter()
                .map(|column| column.fit(column.field.name))
                .collect();
            let rules: Vec<String> = columns.iter().map(|column| "-".repeat(column.width)).collect();
            writeln!(context.out, "{}", names.join(" ").trim_end())?;
            writeln!(context.out, "{}", rules.join(" "))?;
        }
        for row in rows {
            let cells: Vec<String> = columns
                .iter()
                .map(|column| column.fit(&self.cell(column, row, &context.zone)))
                .collect();
            writeln!(context.out, "{}", cells.join(" ").trim_end())?;
        }
        Ok(())
    }

    fn cell<R>(&self, column: &Column<R>, row: &R, zone: &TimeZone) -> String {
        (column.field.value)(row).write(zone, !self.noconvert)
    }

    /// A cell between delimiters, with delimiters in its text replaced to keep the next columns in place.
    fn delimited<R>(&self, column: &Column<R>, row: &R, zone: &TimeZone) -> String {
        let cell = self.cell(column, row, zone);
        if self.delimiter.is_empty() {
            cell
        } else {
            cell.replace(&self.delimiter, "?")
        }
    }
}

/// A field and its width.
struct Column<R: 'static> {
    field: &'static Field<R>,
    width: usize,
    left: bool,
}

impl<R> Column<R> {
    fn plain(field: &'static Field<R>) -> Self {
        Self::wide(field, field.width)
    }

    fn wide(field: &'static Field<R>, width: i16) -> Self {
        Self {
            field,
            width: usize::from(width.unsigned_abs()),
            left: width < 0,
        }
    }

    /// Pads or cuts to the width; a cut cell ends with `+`.
    fn fit(&self, text: &str) -> String {
        let width = text.width();
        if width <= self.width {
            let space = " ".repeat(self.width - width);
            return if self.left {
                format!("{text}{space}")
            } else {
                format!("{space}{text}")
            };
        }
        let mut cut = String::new();
        let mut used = 0;
        for c in text.chars() {
            let next = c.width().unwrap_or(0);
            if used + next > self.width.saturating_sub(1) {
                break;
            }
            used += next;
            cut.push(c);
        }
        cut.push_str(&" ".repeat(self.width.saturating_sub(used + 1)));
        cut.push('+');
        cut
    }
}

fn read_format<R>(view: &View<R>, format: &str) -> Result<Vec<Column<R>>, Failure> {
    let columns: Vec<Column<R>> = format
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .map(|item| {
            if item.eq_ignore_ascii_case("all") {
                Ok(view.fields.iter().map(Column::plain).collect())
            } else {
                read_column(view, item).map(|column| vec![column])
            }
        })
        .collect::<Result<Vec<Vec<_>>, _>>()?
        .into_iter()
        .flatten()
        .collect();
    match columns.is_empty() {
        true => Err(Failure::Usage(
            "--format names no field: `--helpformat` lists them".to_owned(),
        )),
        false => Ok(columns),
    }
}

fn read_column<R>(view: &View<R>, item: &str) -> Result<Column<R>, Failure> {
    let (name, width) = item
        .split_once('%')
        .map_or((item, None), |(name, width)| (name, Some(width)));
    let field = view
        .fields
        .iter()
        .find(|field| field.name.eq_ignore_ascii_case(name))
        .ok_or_else(|| {
            let shown = if name.is_empty() { item } else { name };
            Failure::Usage(format!(
                "there is no field {shown:?}: `hop {} --helpformat` lists them",
                view.command
            ))
        })?;
    let Some(width) = width else {
        return Ok(Column::plain(field));
    };
    match width.parse::<i16>() {
        Ok(width) if width != 0 && width != i16::MIN => Ok(Column::wide(field, width)),
        _ => Err(Failure::Usage(format!(
            "{item:?}: after % comes a width, as in {name}%30 or {name}%-30"
        ))),
    }
}

/// `SlurmJobID` as `slurm_job_id`, `NGPUs` as `n_gpus`.
fn json_key(name: &str) -> String {
    let name = name
        .replace("GPU", "Gpu")
        .replace("CPU", "Cpu")
        .replace("ID", "Id");
    let mut key = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !key.is_empty() {
            key.push('_');
        }
        key.push(c.to_ascii_lowercase());
    }
    key
}

/// A count of bytes for people.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELD: Field<String> = Field {
        name: "Name",
        width: 6,
        help: "",
        value: |row| Value::text(row),
    };

    #[test]
    fn sizes_are_for_people() {
        assert_eq!((size(0), size(1023), size(1536), size(3 << 30)).3, "3.0 GiB");
        assert_eq!(size(1536), "1.5 KiB");
    }

    #[test]
    fn cells_are_padded_cut_and_counted_in_columns() {
        static FIELDS: [Field<String>; 1] = [FIELD];
        let column = |width| Column::wide(&FIELDS[0], width);
        assert_eq!(column(6).fit("abc"), "   abc");
        assert_eq!(column(-6).fit("abc"), "abc   ");
        assert_eq!(column(6).fit("abcdef"), "abcdef");
        assert_eq!(column(6).fit("abcdefg"), "abcde+");
        assert_eq!(column(6).fit("日本語版"), "日本 +");
        assert_eq!(column(1).fit("ab"), "+");
    }

    #[test]
    fn keys_of_json() {
        for (name, key) in [
            ("SlurmJobID", "slurm_job_id"),
            ("NGPUs", "n_gpus"),
            ("HeldRaw", "held_raw"),
            ("User", "user"),
            ("GPUTimeRaw", "gpu_time_raw"),
            ("KernelID", "kernel_id"),
        ] {
            assert_eq!(json_key(name), key);
        }
    }

    #[test]
    fn nothing_that_is_written_acts_on_a_terminal() {
        let mut written = Vec::new();
        write!(Plain(&mut written), "a\u{1b}[2J\u{9b}31m\u{202e}\nb\tc").unwrap();
        assert_eq!(String::from_utf8(written).unwrap(), "a?[2J?31m?\nb\tc");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(
            Value::text("a\u{1b}[31mb\n").write(&TimeZone::UTC, true),
            "a?[31mb "
        );
    }

    proptest::proptest! {
        #[test]
        fn a_fitted_cell_has_its_width(text in ".{0,30}", width in 1_i16..40) {
            static FIELDS: [Field<String>; 1] = [FIELD];
            let text = Value::text(text).write(&TimeZone::UTC, true);
            let fitted = Column::wide(&FIELDS[0], width).fit(&text);
            proptest::prop_assert!(fitted.chars().map(|c| c.width().unwrap_or(0)).sum::<usize>() <= usize::from(width.unsigned_abs()) + 1);
        }
    }
}
