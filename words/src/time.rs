//! Time in the core: a number handed in by the driver.

use serde::{Deserialize, Serialize};

/// A point in time: microseconds since the Unix epoch in the daemon, since the trace's start in the simulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

/// A length of time in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Span(pub u64);

impl Span {
    pub const ZERO: Self = Self(0);

    pub const fn from_secs(s: u64) -> Self {
        Self(s * 1_000_000)
    }

    pub const fn from_millis(ms: u64) -> Self {
        Self(ms * 1_000)
    }

    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    pub fn as_millis_f64(self) -> f64 {
        self.0 as f64 / 1e3
    }
}

impl std::ops::Add for Span {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Timestamp {
    /// The span from `earlier` to `self`; zero if `earlier` is later (clocks of two hosts may disagree).
    pub fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Span> for Timestamp {
    type Output = Self;

    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

/// A length of time as people say it: "less than a second", "40 s", "12 min", "3.5 h".
pub fn spell(span: Span) -> String {
    let s = span.as_secs_f64();
    match s {
        _ if s < 1.0 => "less than a second".to_owned(),
        _ if s < 90.0 => format!("{s:.0} s"),
        _ if s < 5400.0 => format!("{:.0} min", s / 60.0),
        _ => format!("{:.1} h", s / 3600.0),
    }
}
