//! Slurm's lengths and points of time in text.

use hop_words::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A job's or partition's time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TimeLimit {
    Unlimited,
    /// The partition's default, which Slurm has not filled in yet.
    Unset,
    At(Span),
}

/// Not a length of time as Slurm writes them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no length of time ([days-]hours:minutes:seconds)")]
pub struct SpanError(pub String);

/// Reads `minutes`, `minutes:seconds`, `hours:minutes:seconds`, `days-hours`, `days-hours:minutes`,
/// `days-hours:minutes:seconds`: the forms of Slurm's `--time`, and those that `squeue` prints.
pub fn parse_span(text: &str) -> Result<Span, SpanError> {
    read_span(text).ok_or_else(|| SpanError(text.to_owned()))
}

fn read_span(text: &str) -> Option<Span> {
    let number = |word: &str| -> Option<u64> {
        let clean = !word.is_empty() && word.len() <= 9 && word.bytes().all(|b| b.is_ascii_digit());
        if clean { word.parse().ok() } else { None }
    };
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (Some(number(days)?), rest),
        None => (None, text),
    };
    let words: Vec<u64> = rest.split(':').map(number).collect::<Option<_>>()?;
    let (hours, minutes, seconds) = match (days, &words[..]) {
        (None, [m]) => (0, *m, 0),
        (None, [m, s]) => (0, *m, *s),
        (Some(_), [h]) => (*h, 0, 0),
        (Some(_), [h, m]) => (*h, *m, 0),
        (_, [h, m, s]) => (*h, *m, *s),
        _ => return None,
    };
    Some(Span::from_secs(
        ((days.unwrap_or(0) * 24 + hours) * 60 + minutes) * 60 + seconds,
    ))
}

/// Writes `[D-]HH:MM:SS` as Slurm does, whole seconds.
pub fn write_span(span: Span) -> String {
    let s = span.0 / 1_000_000;
    let (days, h, m, s) = (s / 86_400, s / 3600 % 24, s / 60 % 60, s % 60);
    match days {
        0 => format!("{h:02}:{m:02}:{s:02}"),
        _ => format!("{days}-{h:02}:{m:02}:{s:02}"),
    }
}

/// Seconds since the epoch, as `SLURM_TIME_FORMAT=%s` makes Slurm print them; `None` for its words for "none".
pub fn parse_time(text: &str) -> Option<Timestamp> {
    text.parse::<u64>()
        .ok()
        .filter(|s| *s > 0)
        .map(|s| Timestamp(s.saturating_mul(1_000_000)))
}

impl TimeLimit {
    pub fn parse(text: &str) -> Result<Self, SpanError> {
        Ok(match text {
            "UNLIMITED" | "INFINITE" => Self::Unlimited,
            "NOT_SET" | "INVALID" | "Partition_Limit" | "NONE" | "N/A" | "" => Self::Unset,
            text => Self::At(parse_span(text)?),
        })
    }

    pub fn span(self) -> Option<Span> {
        match self {
            Self::At(span) => Some(span),
            Self::Unlimited | Self::Unset => None,
        }
    }
}

impl fmt::Display for TimeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.write_str("UNLIMITED"),
            Self::Unset => f.write_str("NOT_SET"),
            Self::At(span) => f.write_str(&write_span(*span)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_forms_of_slurm() {
        let cases = [
            ("5", 300),
            ("5:30", 330),
            ("1:00:00", 3600),
            ("2-0", 172_800),
            ("2-1:30", 178_200),
            ("1-00:00:01", 86_401),
            ("0:00", 0),
        ];
        for (text, seconds) in cases {
            assert_eq!(parse_span(text).unwrap(), Span::from_secs(seconds), "{text}");
        }
        for text in ["", "-1", "1:2:3:4", "a", "1-2:3:4:5", "1-", "+5", "99999999999"] {
            assert!(parse_span(text).is_err(), "{text}");
        }
    }

    #[test]
    fn limits_and_times() {
        assert_eq!(TimeLimit::parse("UNLIMITED").unwrap(), TimeLimit::Unlimited);
        assert_eq!(TimeLimit::parse("NOT_SET").unwrap(), TimeLimit::Unset);
        assert_eq!(
            TimeLimit::parse("10:00").unwrap(),
            TimeLimit::At(Span::from_secs(600))
        );
        assert!(TimeLimit::parse("soon").is_err());
        assert_eq!(parse_time("1700000000"), Some(Timestamp(1_700_000_000_000_000)));
        for none in ["N/A", "Unknown", "None", "0", ""] {
            assert_eq!(parse_time(none), None);
        }
    }

    proptest! {
        #[test]
        fn spans_read_back_as_written(s in 0_u64..100_000_000) {
            prop_assert_eq!(parse_span(&write_span(Span::from_secs(s))).unwrap(), Span::from_secs(s));
        }
    }
}
