//! The change of a kernel's executor: the log elects another executor, perhaps unknown to earlier executors. Taking in
//! and losing replicas in general is [`crate::kernels`]'.

use crate::core::Core;
use crate::index::Idx;
use crate::input::ReplicaFacts;
use crate::output::Output;
use crate::state::{Cell, Kernel, LeaseState, Replica, Timer};
use hop_words::id::{Incarnation, Tenure};
use hop_words::reason::RefusedBecause;
use hop_words::time::Span;
use std::collections::BTreeSet;

/// Time in which a kernel's new executor asks for the cells of the executor before. It is given them at once.
const ASKED_WITHIN: Span = Span::from_secs(10);

impl Core {
    /// Whether the report comes from an executor whose kernel has another executor of a higher tenure.
    pub(crate) fn is_deposed(&self, k: Idx<Kernel>, up: &ReplicaFacts) -> bool {
        let Some(tenure) = up.executes else {
            return false;
        };
        let mut replicas = self.work.kernels[k].replicas.iter();
        replicas.any(|r| r.executes > Some(tenure))
    }

    /// The executors to be replaced: the kernel's log has elected the new executor, perhaps unknown to these. An
    /// executor with a lease but without a replica held the lease before a restart of the driver.
    pub(crate) fn deposed_by(&self, k: Idx<Kernel>, up: &ReplicaFacts) -> BTreeSet<Incarnation> {
        if !has_log(up) {
            return BTreeSet::new();
        }
        let kernel = &self.work.kernels[k];
        let before = |r: &&Replica| r.executes.is_some() && r.executes < up.executes;
        let executors = kernel.replicas.iter().filter(before).map(|r| r.incarnation);
        let is_up = |executor: &Incarnation| kernel.replicas.iter().any(|r| r.incarnation == *executor);
        let leases = kernel.leases.iter().map(|l| &self.work.leases[l]);
        let held = leases.filter(|l| !matches!(l.state, LeaseState::Ending { .. }));
        let holders = held.map(|l| l.executor);
        let others = executors.chain(holders.filter(|e| !is_up(e)));
        others.filter(|e| *e != up.incarnation).collect()
    }

    /// Deals with the kernel's cells submitted by another process. With a log, the new executor is given these cells
    /// too, and asks for the unbegun ones. Without a log the cells went with the other process.
    pub(crate) fn cells_of_another(
        &mut self,
        k: Idx<Kernel>,
        up: &ReplicaFacts,
        deposes: bool,
        out: &mut Vec<Output>,
    ) {
        let was_alone = self.work.kernels[k].alone_since.take().is_some();
        if !was_alone && !deposes {
            return;
        }
        for cell in self.work.kernels[k].cells.clone() {
            let c = &self.work.cells[cell];
            let asked = up.waiting.iter().any(|w| w.cell == c.id);
            if asked {
                self.work.cells[cell].unasked = None;
            } else if has_log(up) {
                self.await_asking(cell);
            } else {
                self.drop_cell(cell, Some(RefusedBecause::ReplicaLost), out);
            }
        }
    }

    /// The cell keeps its place until the kernel's new executor has asked for the cell, or should have.
    fn await_asking(&mut self, cell: Idx<Cell>) {
        let until = self.now + ASKED_WITHIN;
        let c = &mut self.work.cells[cell];
        c.unasked = Some(until);
        let timer = Timer::Unasked(cell, c.seq);
        self.at(until, timer);
    }

    pub(crate) fn unasked_due(&mut self, cell: Idx<Cell>, seq: u64, out: &mut Vec<Output>) {
        let late = |c: &Cell| c.seq == seq && c.unasked.is_some_and(|until| until <= self.now);
        if self.work.cells.get(cell).is_some_and(late) {
            self.drop_cell(cell, Some(RefusedBecause::ReplicaLost), out);
        }
    }

    /// Takes an executor and all its holdings from a kernel with another executor.
    pub(crate) fn depose(
        &mut self,
        k: Idx<Kernel>,
        executor: Incarnation,
        by: &ReplicaFacts,
        out: &mut Vec<Output>,
    ) {
        let until = self.now + ASKED_WITHIN;
        for id in &self.work.kernels[k].leases {
            let lease = self.work.leases.get_mut(id).expect("a kernel's leases live");
            if let LeaseState::Starting { cell } = &mut lease.state
                && lease.executor == executor
                && !by.waiting.iter().any(|w| w.cell == cell.id)
            {
                // It waits again, as the others.
                cell.unasked = Some(until);
            }
        }
        self.moving_lost(k, executor);
        if self.remove_replica(k, executor, out).is_none() {
            self.end_leases_of(k, executor, out);
        }
        self.unreserve_where_it_is_not(k);
    }
}

/// Whether the kernel has a log for the election of its executors.
fn has_log(up: &ReplicaFacts) -> bool {
    up.executes.is_some_and(|tenure| tenure > Tenure(0))
}
