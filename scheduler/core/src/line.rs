//! The line before a place on a node: how many cells of its queue compete for the node's GPUs, and how long they keep
//! them. The estimators of waits (`wait.rs`) rest on it.
//!
//! The run expected of each cell ahead is laid on the GPUs that are free first. A cell unable to start now goes
//! before nobody: a limit keeps the cell out, the kernel leaves the node, or the new executor hasn't asked for the
//! cell yet. Of cells under one limit only as many go before others as the limit leaves GPUs for.

use crate::core::Core;
use crate::foretell::{Basis, UNKNOWN};
use crate::index::Idx;
use crate::state::{Account, Cell, Group, Node, Pilot, Pool, Rank, Scope, User};
use hop_words::need::Need;
use hop_words::time::Span;
use std::collections::BTreeMap;

/// Number of a line's cells to be looked at singly. All behind them count as their average: a forecast is asked
/// for often, and over so many cells the error is small.
const LOOKED_AT: u64 = 256;

/// Place of a cell in a queue.
pub(crate) type Place = (Rank, Idx<Cell>);

/// A part of the line before a place on a node.
pub(crate) struct Line<'a> {
    core: &'a Core,
    node: Idx<Node>,
    /// Evidence for the runs. `None` means that the cells are only counted.
    basis: Option<Basis>,
    /// When each GPU of the node is free, the soonest first.
    gpus: Vec<(Span, &'a Group)>,
    /// Run of the competing cells on cores alone, times their cores, in core-microseconds.
    on_cores: u64,
    cores: u64,
    /// Run of the competing cells with GPUs, times their GPUs, in GPU-microseconds.
    on_gpus: u64,
    competing: u64,
    looked_at: u64,
    behind: u64,
    limits: LimitsLeft,
}

/// The user, account and pool that limits may be of.
type Lessee = (Idx<User>, Idx<Account>, Idx<Pool>);

/// GPUs that limits leave to cells further back.
#[derive(Default)]
struct LimitsLeft {
    left: BTreeMap<Scope, u32>,
    scopes: BTreeMap<Lessee, Vec<Scope>>,
}

impl LimitsLeft {
    /// Whether the limits leave `gpus` GPUs to a cell of a user in an account; if so, counts the GPUs.
    fn take(&mut self, core: &Core, of: Lessee, gpus: u16) -> bool {
        let scopes = self.scopes.entry(of).or_insert_with(|| {
            let mut found: BTreeMap<Scope, u32> = BTreeMap::new();
            for (scope, left) in core.left_by_limits(of.0, of.1, of.2) {
                let least = found.entry(scope).or_insert(left);
                *least = left.min(*least);
            }
            for (&scope, &left) in &found {
                self.left.entry(scope).or_insert(left);
            }
            found.into_keys().collect()
        });
        let gpus = u32::from(gpus);
        if scopes.iter().any(|s| self.left[s] < gpus) {
            return false;
        }
        for scope in scopes {
            *self.left.entry(*scope).or_default() -= gpus;
        }
        true
    }
}

impl<'a> Line<'a> {
    /// Counts the cells alone.
    fn counted(core: &'a Core, node: Idx<Node>) -> Self {
        Self {
            core,
            node,
            basis: None,
            gpus: Vec::new(),
            on_cores: 0,
            cores: 0,
            on_gpus: 0,
            competing: 0,
            looked_at: 0,
            behind: 0,
            limits: LimitsLeft::default(),
        }
    }

    /// An empty line for the pool's pilots that are up on the node.
    pub(crate) fn new(core: &'a Core, node: Idx<Node>, pool: Idx<Pool>, basis: Basis) -> Self {
        let mut line = Self::counted(core, node);
        line.basis = Some(basis);
        for pilot in core.supply.lending_of(node, pool) {
            line.cores += u64::from(pilot.cpus);
            line.add_gpus(pilot, basis);
        }
        line.gpus.sort_by_key(|(free, _)| *free);
        line
    }

    fn add_gpus(&mut self, pilot: &'a Pilot, basis: Basis) {
        for group in &pilot.groups {
            let free = (0..group.free()).map(|_| (Span::ZERO, group));
            self.gpus.extend(free);
        }
        for lease in pilot.leases.iter().map(|l| &self.core.work.leases[l]) {
            let Some(group) = lease.group.map(|g| &pilot.groups[g]) else {
                continue;
            };
            let left = self.core.lease_left(lease, basis);
            self.gpus.extend((0..lease.gpus).map(|_| (left, group)));
        }
    }

    /// Puts a cell of the queue at the end of the line.
    pub(crate) fn add(&mut self, cell: Idx<Cell>) {
        if self.looked_at == LOOKED_AT {
            self.behind += 1;
            return;
        }
        self.looked_at += 1;
        let core = self.core;
        let c = &core.work.cells[cell];
        if !self.competes(c) {
            return;
        }
        self.competing += 1;
        let Some(basis) = self.basis else { return };
        let run = core.run_of_cell(c, basis);
        if c.need.gpus == 0 {
            let taken = run.0.saturating_mul(c.cpus.into());
            self.on_cores = self.on_cores.saturating_add(taken);
            return;
        }
        if let Some(starts) = self.gpus_free_in(&c.need) {
            self.on_gpus = self
                .on_gpus
                .saturating_add(run.0.saturating_mul(c.need.gpus.into()));
            let until = Span(starts.0.saturating_add(run.0));
            let fitting = self.gpus.iter_mut().filter(|(_, g)| g.fits(&c.need));
            for (free, _) in fitting.take(c.need.gpus.into()) {
                *free = until;
            }
            self.gpus.sort_by_key(|(free, _)| *free);
        }
    }

    fn competes(&mut self, c: &Cell) -> bool {
        let k = &self.core.work.kernels[c.kernel];
        c.limited.is_none()
            && c.unasked.is_none()
            && k.staying().any(|r| r.node == self.node)
            && (self.core.people.limits.values().next().is_none()
                || self
                    .limits
                    .take(self.core, (k.user, k.account, k.pool), c.need.gpus))
    }

    /// The time until as many GPUs are free as the need asks for. `None` means that the node has too few.
    fn gpus_free_in(&self, need: &Need) -> Option<Span> {
        let last = usize::from(need.gpus.checked_sub(1)?);
        let mut fitting = self.gpus.iter().filter(|(_, g)| g.fits(need));
        fitting.nth(last).map(|(free, _)| *free)
    }

    /// Number of cells in the line that compete for the node's GPUs and cores.
    pub(crate) fn cells(&self) -> u64 {
        self.competing + self.per_looked_at(self.competing)
    }

    /// The time until the line has let a cell of this need through. Zero where the node has too few GPUs for it.
    pub(crate) fn lets_through_in(&self, need: &Need) -> Span {
        if need.gpus == 0 {
            let taken = self.on_cores.saturating_add(self.per_looked_at(self.on_cores));
            return Span(taken.checked_div(self.cores).unwrap_or(0));
        }
        let first = self.gpus_free_in(need).unwrap_or_default();
        let taken = self.per_looked_at(self.on_gpus);
        let more = taken.checked_div(self.gpus.len() as u64).unwrap_or(0);
        Span(first.0.saturating_add(more).min(UNKNOWN.0))
    }

    /// The part of the cells behind the looked-at cells, if both are alike.
    fn per_looked_at(&self, sum: u64) -> u64 {
        let all = u128::from(sum) * u128::from(self.behind);
        let part = all.checked_div(self.looked_at.into()).unwrap_or(0);
        u64::try_from(part).unwrap_or(u64::MAX)
    }

    /// All cells of the node's queue before the place.
    fn up_to(mut self, place: Place) -> Self {
        let mut ahead = self.core.supply.nodes[self.node].queue.range(..place);
        for &(_, cell) in ahead.by_ref().take(LOOKED_AT as usize) {
            self.add(cell);
        }
        self.behind += ahead.count() as u64;
        self
    }
}

impl Core {
    /// The line before the place on the node.
    pub(crate) fn line_before(
        &self,
        place: Place,
        node: Idx<Node>,
        pool: Idx<Pool>,
        basis: Basis,
    ) -> Line<'_> {
        Line::new(self, node, pool, basis).up_to(place)
    }

    /// How many cells go before the place on the node.
    pub(crate) fn ahead_on(&self, node: Idx<Node>, place: Place) -> u64 {
        Line::counted(self, node).up_to(place).cells()
    }

    /// Expected run of a waiting cell.
    pub(crate) fn run_of_cell(&self, c: &Cell, basis: Basis) -> Span {
        match basis {
            Basis::Seen if !self.has_seen(c.kernel, c.print, Span::ZERO) => UNKNOWN,
            Basis::Seen | Basis::Guess => c.runs_for,
        }
    }
}
