//! Values on the command line of `hop run`.

use crate::failure::Failure;
use crate::files;
use crate::time::parse_time;
use hop_api::config::MOST_GPUS;
use hop_words::error::system_words;
use hop_words::time::Timestamp;
use jiff::tz::TimeZone;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

const DAY: u64 = 86_400;

/// The longest length of time.
const LONGEST: Duration = Duration::from_secs(366 * DAY);

/// `--gpus`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GpusWord {
    Count(u16),
    Auto,
}

impl FromStr for GpusWord {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let count = || text.parse().ok().filter(|n| (1..=MOST_GPUS).contains(n));
        match text {
            "auto" => Ok(Self::Auto),
            _ => count()
                .map(Self::Count)
                .ok_or_else(|| format!("write a number from 1 to {MOST_GPUS}, or auto")),
        }
    }
}

pub(super) fn parse_pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, value) = pair.ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// `90s`, `2h30m`, `1d`, or a number of seconds; a year at most.
pub(super) fn parse_length(text: &str) -> Result<Duration, String> {
    let seconds = || text.parse::<u64>().ok();
    let days = || text.strip_suffix('d')?.parse::<u64>().ok()?.checked_mul(DAY);
    let words = || {
        let span = text.parse::<jiff::SignedDuration>().ok()?;
        Duration::try_from(span).ok()
    };
    seconds()
        .or_else(days)
        .map(Duration::from_secs)
        .or_else(words)
        .filter(|length| *length <= LONGEST)
        .ok_or_else(|| format!("{text:?} is no length of time: write 90s, 10m, 2h30m or 1d, a year at most"))
}

/// `+2h`, `18:00` (the next), or any other time readable for `hop`.
pub(super) fn parse_deadline(text: &str, now: Timestamp, zone: &TimeZone) -> Result<Timestamp, String> {
    if let Some(length) = text.strip_prefix('+') {
        let micros = u64::try_from(parse_length(length)?.as_micros()).unwrap_or(u64::MAX);
        return Ok(Timestamp(now.0.saturating_add(micros)));
    }
    let zoned = || {
        let at = text.parse::<jiff::Timestamp>().ok()?;
        u64::try_from(at.as_microsecond()).ok().map(Timestamp)
    };
    let civil = || {
        let at: jiff::civil::DateTime = text.parse().ok()?;
        let at = zone.to_ambiguous_timestamp(at).compatible().ok()?;
        u64::try_from(at.as_microsecond()).ok().map(Timestamp)
    };
    let at = match zoned().or_else(|| civil().filter(|_| text.contains(':'))) {
        Some(at) => at,
        None => parse_time(text, now, zone)
            .map_err(|_| format!("{text:?} is no deadline: write 18:00, +2h30m or 2026-11-21T18:00"))?,
    };
    let clock = text.contains(':') && !text.contains(['-', '/', '.', 'T', 't']);
    if at <= now && clock {
        let tomorrow = parse_time("tomorrow", now, zone)?.0 - parse_time("today", now, zone)?.0;
        return Ok(Timestamp(at.0 + tomorrow));
    }
    if at <= now {
        return Err(format!("the deadline {text} is over already"));
    }
    Ok(at)
}

/// A path independent of the current folder.
pub(super) fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    let path = std::path::absolute(path).map_err(|e| Failure::Usage(format!("{}: {e}", path.display())))?;
    // A single path for a folder with several; the file itself may not exist yet.
    match (path.parent().map(Path::canonicalize), path.file_name()) {
        (Some(Ok(folder)), Some(name)) => Ok(folder.join(name)),
        _ => Ok(path),
    }
}

/// The file of the notebook with outputs. `/dev/stdout` is this process's own standard output for the worker, too.
pub(super) fn output(path: &Path) -> Result<PathBuf, Failure> {
    files::behind_links(path)
        .map_err(|e| Failure::Usage(format!("can't write {}: {}", path.display(), system_words(&e))))
}

/// A folder for the kernel. A kernel would start somewhere else if there were none.
pub(super) fn folder(path: &Path) -> Result<PathBuf, Failure> {
    let folder = absolute(path)?;
    match folder.is_dir() {
        true => Ok(folder),
        false => Err(Failure::Usage(format!(
            "--cwd: there is no folder {}",
            folder.display()
        ))),
    }
}

/// Without what would move a terminal's cursor.
pub(super) fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::write_time;

    #[test]
    fn deadlines() {
        let zone = TimeZone::fixed(jiff::tz::offset(1));
        // 2026-11-21T14:30:00 at UTC+1.
        let now = Timestamp(1_795_267_800_000_000);
        let at = |text: &str| parse_deadline(text, now, &zone).map(|t| write_time(t, &zone));
        for (text, expected) in [
            ("18:00", "2026-11-21T18:00:00"),
            ("08:15", "2026-11-22T08:15:00"),
            ("+2h", "2026-11-21T16:30:00"),
            ("+1h30m", "2026-11-21T16:00:00"),
            ("+90", "2026-11-21T14:31:30"),
            ("+2d", "2026-11-23T14:30:00"),
            ("2026-11-21T18:00", "2026-11-21T18:00:00"),
            ("2026-11-21T18:00Z", "2026-11-21T19:00:00"),
            ("2026-11-21T18:00:00.123456", "2026-11-21T18:00:00"),
            ("2026-11-21 18:00", "2026-11-21T18:00:00"),
            ("tomorrow", "2026-11-22T00:00:00"),
        ] {
            assert_eq!(at(text).as_deref(), Ok(expected), "{text}");
        }
        for text in ["soon", "+", "+x", "2020-01-01T00:00", "25:00"] {
            assert!(at(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_kernels_folder_is_there() {
        let tmp = tempfile::tempdir().unwrap();
        assert!(folder(tmp.path()).is_ok());
        let said = folder(&tmp.path().join("no")).unwrap_err().to_string();
        assert!(said.starts_with("--cwd: there is no folder /"), "{said}");
    }

    #[test]
    fn words() {
        assert_eq!("auto".parse(), Ok(GpusWord::Auto));
        assert_eq!("3".parse(), Ok(GpusWord::Count(3)));
        assert!("0".parse::<GpusWord>().is_err() && "65".parse::<GpusWord>().is_err());
        assert_eq!("16".parse(), Ok(GpusWord::Count(16)));
        assert_eq!(parse_pair("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(parse_pair("=b").is_err() && parse_pair("a").is_err());
        assert_eq!(parse_length("0"), Ok(Duration::ZERO));
        assert_eq!(parse_length("2h30m"), Ok(Duration::from_secs(9000)));
        assert_eq!(parse_length("366d"), Ok(LONGEST));
        for text in [
            "-1s",
            "soon",
            "",
            "367d",
            "18446744073709551615",
            "99999999999d",
            "9999999h",
        ] {
            assert!(parse_length(text).is_err(), "{text}");
        }
    }
}
