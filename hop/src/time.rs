//! Times and lengths of time, read and written as Slurm's commands do.

use hop_words::time::{Span, Timestamp};
use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;

/// Reads `now[{+|-}N[seconds|minutes|hours|days|weeks]]`, `today`, `midnight`, `noon`, `fika`, `teatime`,
/// `tomorrow`, `yesterday`, `HH:MM[:SS][AM|PM]`, `YYYY-MM-DD[THH:MM[:SS]]`, and `MMDD[YY]`, `MM/DD[/YY]` or `MM.DD[.YY]` with
/// `-HH:MM[:SS]` behind it or without.
pub(crate) fn parse_time(text: &str, now: Timestamp, zone: &TimeZone) -> Result<Timestamp, String> {
    read_time(text, now, zone).ok_or_else(|| {
        format!("{text:?} is no time: write YYYY-MM-DD[THH:MM[:SS]], HH:MM[:SS], MM/DD[/YY], today, noon, now or now-2days")
    })
}

fn read_time(text: &str, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    let lower = text.trim().to_ascii_lowercase();
    if let Some(offset) = lower.strip_prefix("now") {
        return read_offset(offset, now);
    }
    let here = jiff::Timestamp::from_microsecond(i64::try_from(now.0).ok()?)
        .ok()?
        .to_zoned(zone.clone());
    let today = here.date();
    let clock = |hour| Time::new(hour, 0, 0, 0).ok();
    let at = match lower.as_str() {
        "today" | "midnight" => today.to_datetime(Time::midnight()),
        "tomorrow" => today.tomorrow().ok()?.to_datetime(Time::midnight()),
        "yesterday" => today.yesterday().ok()?.to_datetime(Time::midnight()),
        "noon" => today.to_datetime(clock(12)?),
        "fika" => today.to_datetime(clock(15)?),
        "teatime" => today.to_datetime(clock(16)?),
        other => read_date_time(other, today)?,
    };
    to_timestamp(at, zone)
}

fn to_timestamp(at: DateTime, zone: &TimeZone) -> Option<Timestamp> {
    let micros = zone
        .to_ambiguous_timestamp(at)
        .compatible()
        .ok()?
        .as_microsecond();
    u64::try_from(micros).ok().map(Timestamp)
}

fn read_offset(offset: &str, now: Timestamp) -> Option<Timestamp> {
    if offset.is_empty() {
        return Some(now);
    }
    let (sign, rest) = offset.split_at_checked(1)?;
    let unit_at = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let count: u64 = rest[..unit_at].parse().ok()?;
    let seconds = match &rest[unit_at..] {
        "" | "second" | "seconds" => 1,
        "minute" | "minutes" => 60,
        "hour" | "hours" => 3600,
        "day" | "days" => 86_400,
        "week" | "weeks" => 7 * 86_400,
        _ => return None,
    };
    let span = count.checked_mul(seconds)?.checked_mul(1_000_000)?;
    match sign {
        "+" => Some(Timestamp(now.0.checked_add(span)?)),
        "-" => Some(Timestamp(now.0.saturating_sub(span))),
        _ => None,
    }
}

fn read_date_time(text: &str, today: Date) -> Option<DateTime> {
    match text.split_once('t') {
        Some((date, time)) => Some(read_date(date, today)?.to_datetime(read_clock(time)?)),
        None if text.contains(':') => match text.split_once('-') {
            Some((date, time)) => Some(read_date(date, today)?.to_datetime(read_clock(time)?)),
            None => Some(today.to_datetime(read_clock(text)?)),
        },
        None => Some(read_date(text, today)?.to_datetime(Time::midnight())),
    }
}

fn read_clock(text: &str) -> Option<Time> {
    let half = |half| text.strip_suffix(half).map(str::trim_end);
    if let Some((clock, afternoon)) = half("am").map(|c| (c, 0)).or_else(|| half("pm").map(|c| (c, 12))) {
        let time = read_clock(clock).filter(|time| (1..=12).contains(&time.hour()))?;
        return time.with().hour(time.hour() % 12 + afternoon).build().ok();
    }
    let parts: Vec<i8> = text
        .split(':')
        .map(|part| part.parse().ok())
        .collect::<Option<_>>()?;
    match parts[..] {
        [h, m] => Time::new(h, m, 0, 0).ok(),
        [h, m, s] => Time::new(h, m, s, 0).ok(),
        _ => None,
    }
}

/// Years without a 29th of February follow one another so often at most, plus one.
const LEAP: i16 = 8;

fn read_date(text: &str, today: Date) -> Option<Date> {
    let numbers = |separator| {
        text.split(separator)
            .map(|part| part.parse::<i16>().ok())
            .collect::<Option<Vec<i16>>>()
    };
    if text.contains('-') {
        return match numbers('-')?[..] {
            [year, month, day] => date(year, month, day),
            _ => None,
        };
    }
    let parts = match text {
        _ if text.contains('/') => numbers('/')?,
        _ if text.contains('.') => numbers('.')?,
        _ if matches!(text.len(), 4 | 6) && text.bytes().all(|b| b.is_ascii_digit()) => text
            .as_bytes()
            .chunks(2)
            .map(|pair| std::str::from_utf8(pair).ok()?.parse().ok())
            .collect::<Option<_>>()?,
        _ => return None,
    };
    match parts[..] {
        // The last such day, as for sacct: in January, `12/31` was yesterday's year.
        [month, day] => (0..=LEAP).find_map(|years| {
            let day = date(today.year() - years, month, day);
            day.filter(|day| *day <= today)
        }),
        [month, day, year] => date(if year < 100 { 2000 + year } else { year }, month, day),
        _ => None,
    }
}

fn date(year: i16, month: i16, day: i16) -> Option<Date> {
    Date::new(year, i8::try_from(month).ok()?, i8::try_from(day).ok()?).ok()
}

/// `2026-11-21T14:00:00`, local time.
pub(crate) fn write_time(at: Timestamp, zone: &TimeZone) -> String {
    let micros = i64::try_from(at.0).unwrap_or(i64::MAX);
    match jiff::Timestamp::from_microsecond(micros) {
        Ok(at) => at
            .to_zoned(zone.clone())
            .strftime("%Y-%m-%dT%H:%M:%S")
            .to_string(),
        Err(_) => "Unknown".to_owned(),
    }
}

/// `2026-11-21`, local time.
pub(crate) fn write_date(at: Timestamp, zone: &TimeZone) -> String {
    let time = write_time(at, zone);
    time.split('T').next().unwrap_or_default().to_owned()
}

/// The local days from `since` until `until`, each with its first instant and the next day's.
pub(crate) fn days(since: Timestamp, until: Timestamp, zone: &TimeZone) -> Vec<(Timestamp, Timestamp)> {
    let civil = |at: Timestamp| {
        let at = jiff::Timestamp::from_microsecond(i64::try_from(at.0).ok()?).ok()?;
        Some(at.to_zoned(zone.clone()).date())
    };
    let first = |date: Date| to_timestamp(date.to_datetime(Time::midnight()), zone);
    let mut found = Vec::new();
    let mut day = civil(since);
    while let Some(date) = day {
        let next = date.tomorrow().ok();
        let (Some(begin), Some(end)) = (first(date), next.and_then(first)) else {
            break;
        };
        if begin >= until {
            break;
        }
        found.push((begin, end));
        day = next;
    }
    found
}

/// `[DD-[HH:]]MM:SS` with milliseconds below a minute: cells are short.
pub(crate) fn write_span(span: Span) -> String {
    let (s, ms) = (span.0 / 1_000_000, span.0 / 1000 % 1000);
    let (days, h, m, sec) = (s / 86_400, s / 3600 % 24, s / 60 % 60, s % 60);
    match (days, h) {
        (0, 0) if s < 60 => format!("00:{sec:02}.{ms:03}"),
        (0, 0) => format!("{m:02}:{sec:02}"),
        (0, _) => format!("{h:02}:{m:02}:{sec:02}"),
        _ => format!("{days}-{h:02}:{m:02}:{sec:02}"),
    }
}

/// A length within a sentence: "0.3 s", "9 s", "1 min 50 s", "2 h 5 min", "3 days 2 h".
pub(crate) fn tell_span(span: Span) -> String {
    let s = span.as_secs_f64();
    if s < 0.95 {
        return format!("{s:.1} s");
    }
    let s = s.round() as u64;
    let two = |many: u64, unit: &str, rest: u64, of: &str| match rest {
        0 => format!("{many} {unit}"),
        _ => format!("{many} {unit} {rest} {of}"),
    };
    match s {
        0..60 => format!("{s} s"),
        60..3600 => two(s / 60, "min", s % 60, "s"),
        3600..86_400 => two(s / 3600, "h", s / 60 % 60, "min"),
        86_400..172_800 => two(1, "day", s / 3600 % 24, "h"),
        _ => two(s / 86_400, "days", s / 3600 % 24, "h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_local_and_follow_each_other() {
        let berlin = TimeZone::get("Europe/Berlin").unwrap();
        let at = |text: &str| Timestamp(text.parse::<jiff::Timestamp>().unwrap().as_microsecond() as u64);
        // The clocks go back on the 25th.
        let found = days(at("2026-10-24T12:00:00Z"), at("2026-10-26T00:00:00Z"), &berlin);
        let midnights = [
            "2026-10-23T22:00:00Z",
            "2026-10-24T22:00:00Z",
            "2026-10-25T23:00:00Z",
        ]
        .map(at);
        let last = at("2026-10-26T23:00:00Z");
        assert_eq!(
            found,
            [
                (midnights[0], midnights[1]),
                (midnights[1], midnights[2]),
                (midnights[2], last)
            ]
        );
        assert_eq!(write_date(found[1].0, &berlin), "2026-10-25");
        assert_eq!(days(midnights[0], midnights[0], &berlin), []);
    }

    #[test]
    fn lengths_within_sentences() {
        let told = [
            0.04, 0.96, 9.011, 59.6, 110.0, 3600.0, 7530.0, 100_000.0, 200_000.0,
        ]
        .map(|s: f64| tell_span(Span((s * 1e6) as u64)));
        let expected = [
            "0.0 s",
            "1 s",
            "9 s",
            "1 min",
            "1 min 50 s",
            "1 h",
            "2 h 5 min",
            "1 day 3 h",
            "2 days 7 h",
        ];
        assert_eq!(told, expected);
    }

    fn at(text: &str) -> Option<String> {
        let zone = TimeZone::fixed(jiff::tz::offset(1));
        // 2026-11-21T14:30:00 at UTC+1.
        let now = Timestamp(1_795_267_800_000_000);
        assert_eq!(write_time(now, &zone), "2026-11-21T14:30:00");
        parse_time(text, now, &zone).ok().map(|t| write_time(t, &zone))
    }

    #[test]
    fn the_forms_of_sacct() {
        let cases = [
            ("now", "2026-11-21T14:30:00"),
            ("now-2days", "2026-11-19T14:30:00"),
            ("now-90", "2026-11-21T14:28:30"),
            ("now+1hour", "2026-11-21T15:30:00"),
            ("now-1week", "2026-11-14T14:30:00"),
            ("today", "2026-11-21T00:00:00"),
            ("midnight", "2026-11-21T00:00:00"),
            ("noon", "2026-11-21T12:00:00"),
            ("teatime", "2026-11-21T16:00:00"),
            ("Yesterday", "2026-11-20T00:00:00"),
            ("08:15", "2026-11-21T08:15:00"),
            ("2026-01-02", "2026-01-02T00:00:00"),
            ("2026-01-02T03:04", "2026-01-02T03:04:00"),
            ("2026-01-02T03:04:05", "2026-01-02T03:04:05"),
            ("0102", "2026-01-02T00:00:00"),
            ("010225", "2025-01-02T00:00:00"),
            ("01/02/25", "2025-01-02T00:00:00"),
            ("01.02", "2026-01-02T00:00:00"),
            ("1121", "2026-11-21T00:00:00"),
            ("1122", "2025-11-22T00:00:00"),
            ("12/31-03:04", "2025-12-31T03:04:00"),
            ("02.29", "2024-02-29T00:00:00"),
            ("01/02-03:04", "2026-01-02T03:04:00"),
            ("010225-03:04:05", "2025-01-02T03:04:05"),
            ("12:30am", "2026-11-21T00:30:00"),
            ("12:30 PM", "2026-11-21T12:30:00"),
            ("11:00:05PM", "2026-11-21T23:00:05"),
            ("01/02/25-1:00pm", "2025-01-02T13:00:00"),
        ];
        for (text, expected) in cases {
            assert_eq!(at(text).as_deref(), Some(expected), "{text}");
        }
        for text in [
            "",
            "soon",
            "now-",
            "now-2years",
            "now*2",
            "2026-13-01",
            "25:00",
            "13:00pm",
            "0:30am",
            "1:00pmpm",
            "-03:04",
            "1",
            "99999",
            "now-99999999999999999999",
        ] {
            assert_eq!(at(text), None, "{text}");
        }
    }

    #[test]
    fn lengths() {
        let cases = [
            (0, "00:00.000"),
            (12_345, "00:12.345"),
            (60_000, "01:00"),
            (3_599_999, "59:59"),
            (3_600_000, "01:00:00"),
            (90_061_000, "1-01:01:01"),
        ];
        for (ms, expected) in cases {
            assert_eq!(write_span(Span::from_millis(ms)), expected);
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in ".{0,24}") {
            let _ = parse_time(&text, Timestamp(1_795_267_800_000_000), &TimeZone::UTC);
        }
    }
}
