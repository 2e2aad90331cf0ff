//! Synthetic traces by seed: families A and B of the production traces, and people at human pace.
//!
//! The parameters are those that were measured on the traces; what is not known is said in `docs/trace-format.md`.

use crate::rng::Rng;
use crate::trace::{Cell, Session, Trace};
use hop_core::time::{Span, Timestamp};
use std::str::FromStr;

/// What to synthesise: `synth:a`, `synth:b`, `synth:june`, with `,sessions=N,days=D`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Synth {
    pub family: Family,
    pub sessions: usize,
    pub days: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Training tasks sampled at 60 s.
    A,
    /// The same service, sampled at 15 s.
    B,
    /// JuNE: twenty people, seconds between actions.
    June,
}

/// A description that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no synthetic trace; write synth:a, synth:b or synth:june, with ,sessions=N and ,days=D if you like"
)]
pub struct UnknownSynth(pub String);

impl FromStr for Synth {
    type Err = UnknownSynth;

    fn from_str(s: &str) -> Result<Self, UnknownSynth> {
        let bad = || UnknownSynth(s.to_owned());
        let mut parts = s.strip_prefix("synth:").ok_or_else(bad)?.split(',');
        let mut synth = match parts.next() {
            Some("a") => Self {
                family: Family::A,
                sessions: 337,
                days: 30.0,
            },
            Some("b") => Self {
                family: Family::B,
                sessions: 337,
                days: 30.0,
            },
            Some("june") => Self {
                family: Family::June,
                sessions: 20,
                days: 1.0,
            },
            _ => return Err(bad()),
        };
        for part in parts {
            match part.split_once('=') {
                Some(("sessions", n)) => synth.sessions = n.parse().map_err(|_| bad())?,
                Some(("days", d)) => synth.days = d.parse().map_err(|_| bad())?,
                _ => return Err(bad()),
            }
        }
        let sane =
            synth.sessions > 0 && synth.sessions <= 1_000_000 && synth.days > 0.0 && synth.days <= 3660.0;
        if sane { Ok(synth) } else { Err(bad()) }
    }
}

impl Synth {
    pub fn trace(&self, seed: u64) -> Trace {
        let mut rng = Rng::new(seed, 0x5711);
        let sessions = (0..self.sessions).map(|i| self.session(i, &mut rng)).collect();
        let family = match self.family {
            Family::A => "a",
            Family::B => "b",
            Family::June => "june",
        };
        Trace {
            name: format!("synth:{family},sessions={},days={}", self.sessions, self.days),
            sessions,
        }
    }

    fn session(&self, i: usize, rng: &mut Rng) -> Session {
        let whole = self.days * 86_400.0;
        // Sessions keep arriving over the first half; most live for days.
        let (open, life) = match self.family {
            Family::June => (rng.unit() * whole * 0.3, rng.exponential(2.5 * 3600.0).max(600.0)),
            Family::A | Family::B => (
                rng.unit() * rng.unit() * whole * 0.8,
                rng.lognormal(12.6, 1.0).max(3600.0),
            ),
        };
        let close = (open + life).min(whole);
        let mut cells = Vec::new();
        let mut at = open + 60.0;
        let gpus = self.gpus(rng);
        let pace = self.pace(rng);
        while at < close {
            let run = self.run(rng).min(close - at);
            if run <= 0.0 {
                break;
            }
            // A third of a notebook's cells need less than its most.
            let gpus = if gpus > 1 && rng.unit() < 0.35 { 1 } else { gpus };
            cells.push(Cell {
                submit: micros(at),
                run: Span(micros(run).0),
                gpus,
                cpus: 0,
                print: 0,
            });
            at += run + self.think(pace, rng);
        }
        Session {
            id: format!("s{i:04}"),
            user: format!("u{:03}", i % (self.sessions / 3).max(1)),
            account: None,
            open: micros(open),
            close: micros(close),
            deadline: None,
            cells,
        }
    }

    fn gpus(&self, rng: &mut Rng) -> u16 {
        match self.family {
            Family::A => rng.weighted(&[(1, 117.0), (4, 89.0), (8, 131.0)]),
            Family::B => rng.weighted(&[(1, 47.0), (4, 19.0), (8, 20.0)]),
            Family::June => 1,
        }
    }

    /// Median think time of one person, in seconds.
    fn pace(&self, rng: &mut Rng) -> f64 {
        // Half of the people are much alike, the other half come by once in hours or days.
        let (median, quick, slow) = match self.family {
            Family::A => (18.0 * 60.0, 0.7, 2.3),
            Family::B => (6.0 * 60.0, 0.6, 1.9),
            Family::June => return rng.lognormal(10.0f64.ln(), 0.4),
        };
        let z = rng.lognormal(0.0, 1.0).ln();
        median * f64::exp(z * if z < 0.0 { quick } else { slow })
    }

    fn think(&self, pace: f64, rng: &mut Rng) -> f64 {
        // Nights and weekends.
        let away = match self.family {
            Family::A => 0.045,
            Family::B => 0.014,
            Family::June => 0.002,
        };
        if rng.unit() < away {
            return rng.lognormal((14.0f64 * 3600.0).ln(), 0.8);
        }
        let sigma = if self.family == Family::June { 0.9 } else { 1.2 };
        rng.lognormal(pace.ln(), sigma)
    }

    fn run(&self, rng: &mut Rng) -> f64 {
        let (mu, sigma, tail) = match self.family {
            Family::A => (2.03, 1.23, 0.02),
            Family::B => (1.27, 1.23, 0.01),
            // Mean 4 s with a standard deviation of 32 s.
            Family::June => return rng.lognormal(-0.7, 2.03).min(3600.0),
        };
        if rng.unit() < tail {
            // A Pareto tail from 220 minutes on.
            return 60.0 * (220.0 / rng.unit().powf(1.0 / 1.1)).min(26_000.0);
        }
        60.0 * rng.lognormal(mu, sigma).max(1.0)
    }
}

fn micros(seconds: f64) -> Timestamp {
    Timestamp((seconds * 1e6) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_one_trace_and_families_differ() {
        let synth: Synth = "synth:b,sessions=40,days=5".parse().unwrap();
        assert_eq!(synth.trace(3), synth.trace(3));
        assert_ne!(synth.trace(3), synth.trace(4));
        let t = synth.trace(3);
        assert!(t.cells() > 200, "{}", t.cells());
        for s in &t.sessions {
            for pair in s.cells.windows(2) {
                assert!(pair[0].submit + pair[0].run <= pair[1].submit);
            }
        }
        assert!("synth:c".parse::<Synth>().is_err());
        assert!("synth:a,sessions=0".parse::<Synth>().is_err());
    }

    #[test]
    fn people_at_human_pace_run_for_seconds() {
        let t = "synth:june".parse::<Synth>().unwrap().trace(1);
        let mut runs: Vec<f64> = t
            .sessions
            .iter()
            .flat_map(|s| &s.cells)
            .map(|c| c.run.as_secs_f64())
            .collect();
        runs.sort_unstable_by(f64::total_cmp);
        let median = runs[runs.len() / 2];
        assert!((0.2..1.5).contains(&median), "{median}");
    }
}
