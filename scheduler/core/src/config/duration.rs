//! Lengths of time as people write them in a configuration: seconds, with a fraction if need be.

use hop_words::time::Span;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Nothing that a site sets is longer.
const MOST_S: f64 = 10.0 * 366.0 * 86_400.0;

/// Seconds, written as a whole number if possible.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "a number of seconds is needed")]
enum Seconds {
    Whole(i64),
    Part(f64),
}

impl Seconds {
    fn of(span: Span) -> Self {
        if span.0.is_multiple_of(1_000_000) {
            Self::Whole(i64::try_from(span.0 / 1_000_000).unwrap_or(i64::MAX))
        } else {
            Self::Part(span.as_secs_f64())
        }
    }

    fn span<E: serde::de::Error>(self) -> Result<Span, E> {
        let seconds = match self {
            Self::Whole(n) => n as f64,
            Self::Part(s) => s,
        };
        if (0.0..=MOST_S).contains(&seconds) {
            Ok(Span((seconds * 1e6) as u64))
        } else {
            Err(E::custom(format!(
                "{seconds} is no number of seconds from 0 to {MOST_S}"
            )))
        }
    }
}

/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(span: &Span, to: S) -> Result<S::Ok, S::Error> {
    Seconds::of(*span).serialize(to)
}

/// # Errors
/// No number, a negative number, or more than ten years.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Span, D::Error> {
    Seconds::deserialize(from)?.span()
}

/// The same where there may be none.
pub mod option {
    use super::{Deserialize, Deserializer, Seconds, Serialize, Serializer, Span};

    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(span: &Option<Span>, to: S) -> Result<S::Ok, S::Error> {
        span.map(Seconds::of).serialize(to)
    }

    /// # Errors
    /// No number, a negative number, or more than ten years.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Span>, D::Error> {
        Option::<Seconds>::deserialize(from)?
            .map(Seconds::span)
            .transpose()
    }
}
