//! Notebooks that run unattended and have a deadline, made from the sessions of a trace.

use crate::metrics::CellResult;
use crate::rng::Rng;
use crate::session::LeftOut;
use crate::trace::{Session, Trace};
use hop_words::time::{Span, Timestamp};

/// The longest that a notebook runs alone.
const LONGEST: Span = Span::from_secs(3 * 3600);

/// `count` notebooks, begun at times drawn over `over`. Each runs a few consecutive cells of a session of the trace
/// without pauses, with a deadline of 1.5 to 4 times its run time.
pub fn notebooks(trace: &Trace, count: usize, over: Span, seed: u64) -> Trace {
    let mut rng = Rng::new(seed, 0xdead);
    let mut sessions = Vec::new();
    while sessions.len() < count {
        let from = &trace.sessions[rng.below(trace.sessions.len())];
        let length = 3 + rng.below(10);
        if from.cells.len() < length {
            continue;
        }
        let first = rng.below(from.cells.len() - length + 1);
        let mut cells = from.cells[first..first + length].to_vec();
        let run: u64 = cells.iter().map(|c| c.run.0).sum();
        if run > LONGEST.0 {
            continue;
        }
        let begin = Timestamp((rng.unit() * over.0 as f64) as u64 + 120_000_000);
        for c in &mut cells {
            c.submit = begin;
        }
        let slack = 1.5 + 2.5 * rng.unit();
        let n = sessions.len();
        sessions.push(Session {
            id: format!("d{n:04}"),
            user: format!("u{:03}", n % 20),
            account: None,
            open: Timestamp(begin.0 - 120_000_000),
            close: begin + Span(run),
            deadline: Some(begin + Span((run as f64 * slack) as u64)),
            cells,
        });
    }
    Trace {
        name: format!("{}, {count} notebooks with deadlines", trace.name),
        sessions,
        left_out: LeftOut::default(),
    }
}

/// Deadlines met, and set; `None` if the trace has none.
pub(crate) fn met(trace: &Trace, cells: &[CellResult]) -> Option<(u64, u64)> {
    let mut done = vec![Timestamp(0); trace.sessions.len()];
    for c in cells {
        let s = c.session as usize;
        done[s] = done[s].max(c.end);
    }
    let sessions = trace.sessions.iter().zip(&done);
    let met: Vec<bool> = sessions
        .filter_map(|(s, d)| s.deadline.map(|by| *d <= by))
        .collect();
    let count = met.iter().filter(|m| **m).count() as u64;
    (!met.is_empty()).then_some((count, met.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Synth;

    #[test]
    fn every_notebook_could_meet_its_deadline_alone() {
        let synth: Synth = "synth:a,sessions=30,days=10".parse().unwrap();
        let t = notebooks(&synth.trace(1), 50, Span::from_secs(3600), 2);
        assert_eq!(t.sessions.len(), 50);
        for s in &t.sessions {
            assert!(s.deadline.unwrap() > s.close);
        }
    }
}
