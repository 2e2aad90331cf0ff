//! Synthetic traces by seed: families A and B of the production traces, and people at human pace.
//!
//! The parameters were measured on the traces; `docs/trace-format.md` names the unknown ones.

use crate::rng::Rng;
use crate::session::LeftOut;
use crate::trace::{Cell, Session, Trace};
use hop_words::time::{Span, Timestamp};
use std::str::FromStr;

/// Trace to synthesise: `synth:a`, `synth:b`, `synth:june`, with `,sessions=N,days=D`.
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
            left_out: LeftOut::default(),
        }
    }

    fn session(&self, i: usize, rng: &mut Rng) -> Session {
        let whole = self.days * 86_400.0;
        let (open, close, cells) = match self.family {
            Family::June => Self::at_human_pace(whole, rng),
            Family::A => sitting(&A, whole, rng),
            Family::B => sitting(&B, whole, rng),
        };
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

    /// Cells of 4 s on the average, with a standard deviation of 32 s, and a pace of one's own.
    fn at_human_pace(whole: f64, rng: &mut Rng) -> (f64, f64, Vec<Cell>) {
        let open = rng.unit() * whole * 0.3;
        let close = (open + rng.exponential(2.5 * 3600.0).max(600.0)).min(whole);
        let pace = rng.lognormal(10.0f64.ln(), 0.4);
        let mut cells = Vec::new();
        let mut at = open + 60.0;
        while at < close {
            let run = rng.lognormal(-0.7, 2.03).min(3600.0).min(close - at);
            cells.push(cell(at, run, 1));
            let away = rng.unit() < 0.002;
            at += run
                + if away {
                    rng.lognormal((14.0f64 * 3600.0).ln(), 0.8)
                } else {
                    rng.lognormal(pace.ln(), 0.9)
                };
        }
        (open, close, cells)
    }
}

/// How long cells run: minutes.
struct Runs {
    least: f64,
    median: f64,
    sigma: f64,
    /// Share of a Pareto tail with this exponent, from `from` on.
    tail: f64,
    from: f64,
    exponent: f64,
}

impl Runs {
    fn draw(&self, rng: &mut Rng) -> f64 {
        if rng.unit() < self.tail {
            return (self.from / rng.unit().powf(1.0 / self.exponent)).min(26_000.0);
        }
        rng.lognormal(self.median.ln(), self.sigma).max(self.least)
    }
}

/// A family of sessions that last for days.
struct Kind {
    /// Sessions of each size, and the median number of their cells.
    sizes: [(u16, f64); 3],
    cells: [f64; 3],
    cells_sigma: f64,
    /// How many cells of a session of many GPUs need one.
    single: f64,
    one: Runs,
    many: Runs,
    /// Think time between consecutive cells, in minutes, of sessions with few cells and of sessions with many.
    think: (f64, f64),
    think_sigma: f64,
    /// Chance of a break of more than an hour after a cell, in sessions with few cells, and the number of cells at
    /// which the chance is half as high.
    away: f64,
    steady: f64,
}

const A: Kind = Kind {
    sizes: [(1, 117.0), (4, 89.0), (8, 131.0)],
    cells: [12.0, 28.0, 32.0],
    cells_sigma: 1.9,
    single: 0.36,
    one: Runs {
        least: 3.0,
        median: 3.0,
        sigma: 0.75,
        tail: 0.015,
        from: 60.0,
        exponent: 0.8,
    },
    many: Runs {
        least: 3.0,
        median: 8.5,
        sigma: 1.0,
        tail: 0.08,
        from: 60.0,
        exponent: 0.56,
    },
    think: (5.5, 2.0),
    think_sigma: 1.1,
    away: 0.4,
    steady: 60.0,
};

const B: Kind = Kind {
    sizes: [(1, 12.0), (4, 36.0), (8, 52.0)],
    cells: [57.0; 3],
    cells_sigma: 2.1,
    single: 0.1,
    one: Runs {
        least: 1.0,
        median: 2.0,
        sigma: 0.8,
        tail: 0.005,
        from: 30.0,
        exponent: 0.75,
    },
    many: Runs {
        least: 1.0,
        median: 2.5,
        sigma: 1.1,
        tail: 0.04,
        from: 30.0,
        exponent: 0.75,
    },
    think: (3.0, 1.0),
    think_sigma: 1.1,
    away: 0.4,
    steady: 30.0,
};

/// Most cells that a session has.
const MOST: f64 = 3000.0;

/// Opening, closing and cells of a session: a number of cells within its life, in rows with long breaks between.
fn sitting(kind: &Kind, whole: f64, rng: &mut Rng) -> (f64, f64, Vec<Cell>) {
    let size = rng.weighted(&kind.sizes);
    let class = kind.sizes.iter().position(|(g, _)| *g == size).unwrap_or(0);
    let count = rng
        .lognormal(kind.cells[class].ln(), kind.cells_sigma)
        .clamp(1.0, MOST);
    // Openings are spread over the month, most at its beginning and its end.
    let life = 30.0 * 86_400.0 * (std::f64::consts::FRAC_PI_2 * rng.unit()).sin().powi(2);
    let open = rng.unit() * (whole - life).max(0.3 * whole);
    let busy = 1.0 / (1.0 + count / kind.steady);
    let pace = kind.think.1 + (kind.think.0 - kind.think.1) * busy;
    let mut steps = Vec::with_capacity(count as usize);
    let (mut sum, mut breaks) = (0.0, 0.0);
    for i in 0..count as usize {
        let single = size > 1 && rng.unit() < kind.single;
        let gpus = if single { 1 } else { size };
        let run = 60.0 * if gpus == 1 { &kind.one } else { &kind.many }.draw(rng);
        // A user who came at all comes back at least once.
        let away = (i == 0 || rng.unit() < kind.away * busy).then(|| rng.lognormal(0.0, 1.5));
        let think = 60.0 * rng.lognormal(pace.ln(), kind.think_sigma);
        sum += run + if away.is_some() { 3600.0 } else { think };
        breaks += away.unwrap_or(0.0);
        steps.push((gpus, run, think, away));
    }
    // The rest of the session's life is the breaks' time beyond an hour each.
    let rest = (life - sum).max(0.0);
    let (mut at, mut cells) = (open + 60.0, Vec::with_capacity(steps.len()));
    let mut close = at;
    for (gpus, run, think, away) in steps {
        if at >= whole {
            break;
        }
        let run = run.min(whole - at);
        cells.push(cell(at, run, gpus));
        close = at + run;
        at = close + away.map_or(think, |w| 3600.0 + rest * w / breaks);
    }
    (open, close, cells)
}

fn cell(at: f64, run: f64, gpus: u16) -> Cell {
    Cell {
        submit: micros(at),
        run: Span(micros(run).0),
        gpus,
        cpus: 0,
        print: 0,
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
                // Microseconds are cut off, not rounded.
                assert!(pair[0].submit + pair[0].run <= pair[1].submit + Span(2));
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
