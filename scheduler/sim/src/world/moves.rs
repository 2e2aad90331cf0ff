//! Replicas: they start in their planned place, and move when the core asks.
//!
//! One replica executes, the others stand by. A new executor's tenure deposes the one before, with one replica as well.
//! If a cell finds a GPU only at a standby's node, `hopd` asks for a move there. The log elects this standby, which
//! reads the kernel's state first.

use super::{Event, World, node_name};
use hop_core::{Input, ReplicaFacts, SeatPlan, Standby};
use hop_words::id::{Incarnation, JobId, KernelId, NodeName, Tenure};
use hop_words::time::Span;

/// A kernel's replicas, each with its node: the executor and the others.
pub(super) struct Log {
    executor: (Incarnation, usize),
    tenure: Tenure,
    standbys: Vec<(Incarnation, usize)>,
}

impl World<'_> {
    pub(super) fn place(&mut self, kernel: &KernelId, seat: &SeatPlan) {
        let session = self.by_kernel[kernel];
        let node = self.by_node[&seat.node];
        let incarnation = seat.incarnation;
        let takes = self.cluster.latency.replica.draw(&mut self.rng);
        self.after(
            takes,
            Event::ReplicaReady {
                session,
                incarnation,
                node,
            },
        );
    }

    pub(super) fn replica(&mut self, s: usize, incarnation: Incarnation, node: usize) {
        if self.core.owner(&self.sessions[s].kernel).is_none() {
            return;
        }
        match &mut self.sessions[s].log {
            Some(log) => {
                log.standbys.push((incarnation, node));
                let (executor, at) = log.executor;
                self.report(s, executor, at);
            }
            none => {
                *none = Some(Log {
                    executor: (incarnation, node),
                    tenure: Tenure(1),
                    standbys: Vec::new(),
                });
                self.report(s, incarnation, node);
            }
        }
        self.grow(s);
    }

    /// Asks for the kernel's next replica, as a front does: one after the other, each on another node.
    fn grow(&mut self, s: usize) {
        let Some(log) = &self.sessions[s].log else {
            return;
        };
        let standbys = log.standbys.iter().map(|(_, node)| *node);
        let taken: Vec<NodeName> = standbys.chain([log.executor.1]).map(node_name).collect();
        if taken.len() < usize::from(self.cluster.replicas) {
            self.ask_for_place(s, taken);
        }
    }

    /// The executor reports itself.
    fn report(&mut self, s: usize, incarnation: Incarnation, node: usize) {
        let session = &self.trace.sessions[s];
        let waiting = self.sessions[s].waiting.as_ref().map(|w| w.cell);
        let waiting = waiting.filter(|&c| session.cells[c].gpus > 0 || session.cells[c].cpus > 0);
        let seat = JobId(1_000_000 + s as u32);
        let standby = |&(incarnation, node): &(Incarnation, usize)| Standby {
            incarnation,
            node: node_name(node),
            seat,
        };
        let log = self.sessions[s].log.as_ref();
        self.tell(Input::ReplicaUp(ReplicaFacts {
            kernel: self.sessions[s].kernel.clone(),
            incarnation,
            user: session.user.as_str().into(),
            account: session.account.as_deref().map(Into::into),
            pool: "main".into(),
            node: node_name(node),
            seat,
            name: String::new(),
            holds: None,
            ended: None,
            waiting: waiting.map(|c| self.waiting_cell(s, c)).into_iter().collect(),
            parked: None,
            fixed: None,
            standbys: log.map_or_else(Vec::new, |log| log.standbys.iter().map(standby).collect()),
            executes: log.map(|log| log.tenure),
        }));
    }

    /// Moves a replica: the successor starts, and reads the kernel's state if only the replica has the state.
    pub(super) fn migrate(&mut self, kernel: &KernelId, victim: Incarnation, seat: &SeatPlan) {
        let session = self.by_kernel[kernel];
        self.result.migrations += 1;
        if let Some(w) = &mut self.sessions[session].waiting {
            w.migrated = true;
        }
        let log = self.sessions[session].log.as_ref();
        let stands_by = log.is_some_and(|log| log.standbys.iter().any(|(i, _)| *i == seat.incarnation));
        let start = match stands_by {
            true => Span::ZERO,
            false => self.cluster.latency.replica.draw(&mut self.rng),
        };
        let takes = match self.cluster.replicas {
            1 => start + self.move_takes(session),
            _ => start + self.switch_takes(session),
        };
        let node = self.by_node[&seat.node];
        let incarnation = seat.incarnation;
        self.after(
            takes,
            Event::Moved {
                session,
                victim,
                incarnation,
                node,
            },
        );
    }

    pub(super) fn moved(&mut self, s: usize, victim: Incarnation, incarnation: Incarnation, node: usize) {
        let kernel = self.sessions[s].kernel.clone();
        if self.core.owner(&kernel).is_none() {
            return;
        }
        let executor = self.sessions[s].log.as_ref().map(|log| log.executor.0);
        if executor != Some(victim) || self.runs_on(s, victim) {
            // Another has been elected since, or the copy predates this cell: the executor stays, and the copy is
            // thrown away.
            return self.tell(Input::MigrationFailed { kernel, incarnation });
        }
        self.has_moved(s, node);
        if let Some(log) = &mut self.sessions[s].log {
            let before = std::mem::replace(&mut log.executor, (incarnation, node));
            log.tenure = Tenure(log.tenure.0 + 1);
            if let Some(standby) = log.standbys.iter_mut().find(|(i, _)| *i == incarnation) {
                *standby = before;
            }
        }
        // Its tenure deposes the one before.
        self.report(s, incarnation, node);
    }

    /// Whether the session's cell runs on this replica, or is leaving it.
    fn runs_on(&self, s: usize, executor: Incarnation) -> bool {
        let lease = self.sessions[s].runs.and_then(|r| self.leases.get(&r.lease));
        lease.is_some_and(|l| l.start.executor == executor)
    }
}
