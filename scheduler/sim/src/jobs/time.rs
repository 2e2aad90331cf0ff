//! Dates and durations as the traces write them.

/// Seconds since 1970 of a date and a time, such as `2020-06-09 18:41:01` or `2020-06-09T18:41:01Z`. A zone is passed
/// over: times are only compared with those of the same trace.
pub(super) fn seconds(text: &str) -> Option<f64> {
    let (date, clock) = text.trim().split_once([' ', 'T'])?;
    let mut parts = date.split('-').map(str::parse::<i64>);
    let (year, month, day) = (parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?);
    let clock = clock.split(['Z', '+', ' ']).next()?;
    let mut parts = clock.split(':');
    let (hour, minute) = (
        parts.next()?.parse::<u32>().ok()?,
        parts.next()?.parse::<u32>().ok()?,
    );
    let second: f64 = parts.next()?.parse().ok()?;
    let in_range = (1970..2200).contains(&year)
        && (1..=12).contains(&month)
        && (1..=days_of(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && (0.0..61.0).contains(&second);
    // Nothing is computed of a date that is none: a year of ten digits would take seconds.
    in_range.then(|| {
        let whole = days(year, month, day) * 86_400 + i64::from(hour * 3600 + minute * 60);
        whole as f64 + second
    })
}

/// Seconds of `[days-][hours:]minutes:seconds`, as Slurm writes durations.
pub(super) fn duration(text: &str) -> Option<f64> {
    let (days, clock) = match text.trim().split_once('-') {
        Some((days, clock)) => (days.parse::<u32>().ok()?, clock),
        None => (0, text.trim()),
    };
    let parts: Vec<f64> = clock
        .split(':')
        .map(|p| p.parse::<f64>().ok().filter(|v| v.is_finite() && *v >= 0.0))
        .collect::<Option<_>>()?;
    let clock = match parts[..] {
        [h, m, s] => h * 3600.0 + m * 60.0 + s,
        [m, s] => m * 60.0 + s,
        _ => return None,
    };
    Some(f64::from(days) * 86_400.0 + clock)
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_of(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970 on.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let years: i64 = (1970..year).map(|y| 365 + i64::from(is_leap(y))).sum();
    let months: i64 = (1..month.clamp(1, 12)).map(|m| days_of(year, m)).sum();
    years + months + day - 1
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
