//! The highest term of an obeyed `hopd`, and the term's way to the node's disk.
//!
//! A term is obeyed from the welcome on, even if the disk is full: an agent ending for a full disk would end the
//! pilot's leases. Until the term is on record, this agent alone knows the term. The node's other agents, and this
//! agent's successor, may then obey an older `hopd` that still runs. Still no GPU is lent twice: each agent lends
//! only the GPUs of its own pilot, by epochs that are on disk before their use.

use super::{AgentState, Output};
use hop_words::id::Term;
use hop_words::time::Timestamp;

/// How the term stands to the node's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeping {
    /// As far as we know the record has it.
    Kept,
    /// The next try is due then.
    Due(Timestamp),
    /// The shell tries.
    Trying,
}

impl AgentState {
    pub(super) fn connected(&mut self, term: Term, out: &mut Vec<Output>) {
        if term < self.term {
            let reason = format!(
                "hopd of term {term} is older than term {} that this node obeys",
                self.term
            );
            out.push(Output::Warn(reason.clone()));
            // The older `hopd` hears of the younger one, refuses us, and can tell its administrator.
            self.older = Some(reason);
            self.report_up(out);
            return;
        }
        self.older = None;
        self.term = term;
        self.report_up(out);
    }

    /// `hopd` has refused a report.
    pub(super) fn report_refused(&mut self, out: &mut Vec<Output>) {
        if let Some(reason) = self.older.take() {
            out.push(Output::HangUp { reason });
        }
    }

    pub(super) fn term_kept(&mut self, term: Term, now: Timestamp, out: &mut Vec<Output>) {
        if term < self.term {
            // We have heard of a higher one meanwhile.
            if self.keeping == Keeping::Trying {
                self.keeping = Keeping::Due(now);
            }
            return;
        }
        self.term = term;
        if self.keeping != Keeping::Kept {
            out.push(Output::Warn(format!("term {term} is in the node's record")));
        }
        self.keeping = Keeping::Kept;
    }

    pub(super) fn term_failed(&mut self, term: Term, why: &str, now: Timestamp, out: &mut Vec<Output>) {
        self.term = self.term.max(term);
        if self.keeping == Keeping::Kept {
            out.push(Output::Warn(format!(
                "term {term} is obeyed, and can't be put in the node's record: {why}"
            )));
        }
        self.keeping = Keeping::Due(now + self.facts.waits.disk);
    }

    /// When the next try to put the term on disk is due.
    pub(super) fn keep_term_at(&self) -> Option<Timestamp> {
        match self.keeping {
            Keeping::Due(at) => Some(at),
            Keeping::Kept | Keeping::Trying => None,
        }
    }

    pub(super) fn keep_term_if_due(&mut self, now: Timestamp, out: &mut Vec<Output>) {
        if self.keep_term_at().is_some_and(|at| at <= now) {
            self.keeping = Keeping::Trying;
            out.push(Output::KeepTerm(self.term));
        }
    }
}
