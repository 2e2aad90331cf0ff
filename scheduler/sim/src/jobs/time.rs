//! Dates and durations as the traces write them.

use hop_slurm::span::parse_span;
use jiff::civil::{DateTime, date};

/// Seconds since 1970 of a date and a time, such as `2020-06-09 18:41:01` or `2020-06-09T18:41:01Z`. A zone is passed
/// over: times are only compared with those of the same trace.
pub(super) fn seconds(text: &str) -> Option<f64> {
    let (day, clock) = text.trim().split_once([' ', 'T'])?;
    let clock = clock.split(['Z', '+', ' ']).next()?;
    let at: DateTime = format!("{day}T{clock}").parse().ok()?;
    let since = at.duration_since(date(1970, 1, 1).at(0, 0, 0, 0));
    ((1970..2200).contains(&at.year())).then(|| since.as_secs_f64())
}

/// Seconds of `[days-][hours:]minutes:seconds`, as `sacct` writes what has elapsed.
pub(super) fn duration(text: &str) -> Option<f64> {
    // A number alone would be minutes.
    let span = parse_span(text.trim()).ok().filter(|_| text.contains(':'))?;
    Some(span.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_that_is_none_costs_nothing() {
        for text in [
            "2000000024-05-01T12:00:00",
            "9223372036854775807-01-01 00:00:00",
            "2024-05-9223372036854775807 00:00:00",
            "2024-05-01 4294967295:00:00",
        ] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }

    /// A start is taken from an end, and a simulation walks from the first to the last.
    #[test]
    fn a_year_is_one_of_a_traces() {
        assert_eq!(seconds("2199-12-31 23:59:59"), Some(7_258_118_399.0));
        for text in [
            "2200-01-01 00:00:00",
            "9999-12-31 23:59:59",
            "1969-12-31 23:59:59",
            "0001-01-01 00:00:00",
            "-000001-01-01 00:00:00",
            "+010000-01-01 00:00:00",
            "2000000024-12-31 00:00:00",
        ] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }

    #[test]
    fn dates_count_from_1970() {
        assert_eq!(seconds("1970-01-01 00:00:00"), Some(0.0));
        assert_eq!(seconds("2020-03-01T00:00:01"), Some(1_583_020_801.0));
        assert_eq!(seconds("2020-02-29 12:00:00.5Z"), Some(1_582_977_600.5));
        for bad in [
            "",
            "None",
            "2021-02-29 00:00:00",
            "2020-13-01 00:00:00",
            "2020-01-01",
            "2020-01-01 24:00:00",
        ] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }

    #[test]
    fn durations_have_days_or_not() {
        assert_eq!(duration("01:02"), Some(62.0));
        assert_eq!(duration("2-00:00:01"), Some(172_801.0));
        for bad in ["", "5", "-1:00", "a:b", "1-1-1:1", "inf:1"] {
            assert_eq!(duration(bad), None, "{bad}");
        }
    }
}
