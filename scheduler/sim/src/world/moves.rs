//! Replicas: they start where they are placed, and move when the core asks.

use super::{Event, World, node_name};
use hop_core::{Input, ReplicaUp, SeatPlan};
use hop_words::id::{Incarnation, JobId, KernelId};
use hop_words::time::Span;

impl World<'_> {
    pub(super) fn place(&mut self, kernel: &KernelId, seats: Vec<SeatPlan>) {
        let session = self.by_kernel[kernel];
        for seat in seats {
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
    }

    pub(super) fn replica(&mut self, s: usize, incarnation: Incarnation, node: usize) {
        let session = &self.trace.sessions[s];
        let waiting = self.sessions[s].waiting.as_ref().map(|w| w.cell);
        let waiting = waiting.filter(|&c| session.cells[c].gpus > 0 || session.cells[c].cpus > 0);
        self.tell(Input::ReplicaUp(ReplicaUp {
            kernel: self.sessions[s].kernel.clone(),
            incarnation,
            user: session.user.as_str().into(),
            account: session.account.as_deref().map(Into::into),
            pool: "main".into(),
            node: node_name(node),
            seat: JobId(1_000_000 + s as u32),
            name: String::new(),
            holds: None,
            ended: None,
            waiting: waiting.map(|c| self.waiting_cell(s, c)).into_iter().collect(),
            parked: None,
            fixed: None,
            standbys: Vec::new(),
            executes: None,
        }));
    }

    /// Moves a replica: the successor starts, and reads the kernel's state if only the replica has the state.
    pub(super) fn migrate(&mut self, kernel: &KernelId, victim: Incarnation, seat: &SeatPlan) {
        let session = self.by_kernel[kernel];
        self.result.migrations += 1;
        if let Some(w) = &mut self.sessions[session].waiting {
            w.migrated = true;
        }
        let start = self.cluster.latency.replica.draw(&mut self.rng);
        let comes_along = self.core.other_replicas(kernel, victim) == 0;
        let copy = match comes_along {
            true => self.move_takes(session),
            false => Span::ZERO,
        };
        let node = self.by_node[&seat.node];
        let incarnation = seat.incarnation;
        self.after(
            start + copy,
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
        if self.runs_on(s, victim) {
            // The copy predates this cell: the executor stays, and the copy is thrown away.
            return self.tell(Input::MigrationDone {
                kernel,
                incarnation,
                moved: false,
            });
        }
        if self.core.other_replicas(&kernel, victim) == 0 {
            self.has_moved(s, node);
        }
        self.replica(s, incarnation, node);
        self.tell(Input::MigrationDone {
            kernel: kernel.clone(),
            incarnation,
            moved: true,
        });
        self.tell(Input::ReplicaLost {
            kernel,
            incarnation: victim,
        });
    }

    /// Whether the session's cell runs on this replica, or is leaving it.
    fn runs_on(&self, s: usize, executor: Incarnation) -> bool {
        let lease = self.sessions[s].runs.and_then(|r| self.leases.get(&r.lease));
        lease.is_some_and(|l| l.start.executor == executor)
    }
}
