//! Pilots that were asked for and aren't up, found by node, job or cell without a walk over all of them.

use super::{Cell, Node, Pool};
use crate::index::Idx;
use hop_words::id::{CellId, GpuType, JobId, KernelId};
use hop_words::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// A waiting cell, by index and sequence number.
pub(crate) type Waiting = (Idx<Cell>, u64);

/// A cell that waited before a restart.
pub(crate) type Returning = (KernelId, CellId);

/// A pilot was asked for and isn't up yet.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ticket {
    pub pool: Idx<Pool>,
    pub partition: Option<String>,
    pub node: Option<Idx<Node>>,
    /// It is for a burst partition.
    pub bursts: bool,
    pub gpus: u16,
    /// The type asked for. `None` means any of the pool's.
    pub gpu_type: Option<GpuType>,
    pub job: Option<JobId>,
    pub at: Timestamp,
    /// The waiting cell for which the pilot was started.
    pub cell: Option<Waiting>,
    /// The same before a restart of the driver: the cell has yet to be asked for again.
    pub returning: Option<Returning>,
}

/// Pilots and their GPUs.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Coming {
    pub pilots: u32,
    pub gpus: u32,
}

/// The tickets in the order of their numbers, and lists of them by purpose.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Tickets {
    all: BTreeMap<u64, Ticket>,
    on_node: BTreeSet<(Idx<Node>, u64)>,
    /// Tickets whose node Slurm chooses.
    anywhere: BTreeSet<u64>,
    of_job: BTreeSet<(JobId, u64)>,
    for_cell: BTreeSet<(Waiting, u64)>,
    for_returning: BTreeSet<(Returning, u64)>,
    /// Coming pilots on each pool's own nodes.
    own: BTreeMap<Idx<Pool>, Coming>,
}

/// The range of all entries of a list for this key.
fn all_of<K: Copy>(key: K) -> RangeInclusive<(K, u64)> {
    (key, 0)..=(key, u64::MAX)
}

impl Tickets {
    pub(crate) fn get(&self, ticket: u64) -> Option<&Ticket> {
        self.all.get(&ticket)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Ticket> {
        self.all.values()
    }

    pub(crate) fn numbered(&self) -> impl Iterator<Item = (u64, &Ticket)> {
        self.all.iter().map(|(&number, ticket)| (number, ticket))
    }

    pub(crate) fn insert(&mut self, number: u64, ticket: Ticket) {
        self.remove(number);
        match ticket.node {
            Some(node) => self.on_node.insert((node, number)),
            None => self.anywhere.insert(number),
        };
        self.of_job.extend(ticket.job.map(|job| (job, number)));
        self.for_cell.extend(ticket.cell.map(|cell| (cell, number)));
        let returning = ticket.returning.clone();
        self.for_returning.extend(returning.map(|cell| (cell, number)));
        if !ticket.bursts {
            let own = self.own.entry(ticket.pool).or_default();
            own.pilots += 1;
            own.gpus += u32::from(ticket.gpus);
        }
        self.all.insert(number, ticket);
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<Ticket> {
        let ticket = self.all.remove(&number)?;
        match ticket.node {
            Some(node) => self.on_node.remove(&(node, number)),
            None => self.anywhere.remove(&number),
        };
        if let Some(job) = ticket.job {
            self.of_job.remove(&(job, number));
        }
        if let Some(cell) = ticket.cell {
            self.for_cell.remove(&(cell, number));
        }
        if let Some(cell) = &ticket.returning {
            self.for_returning.remove(&(cell.clone(), number));
        }
        if !ticket.bursts {
            let own = self.own.entry(ticket.pool).or_default();
            own.pilots -= 1;
            own.gpus -= u32::from(ticket.gpus);
            if *own == Coming::default() {
                self.own.remove(&ticket.pool);
            }
        }
        Some(ticket)
    }

    /// Changes a ticket and its place in the lists. Returns whether the ticket exists.
    pub(crate) fn change(&mut self, number: u64, change: impl FnOnce(&mut Ticket)) -> bool {
        let Some(mut ticket) = self.remove(number) else {
            return false;
        };
        change(&mut ticket);
        self.insert(number, ticket);
        true
    }

    /// Numbers and tickets of the node, the first first.
    pub(crate) fn on(&self, node: Idx<Node>) -> impl Iterator<Item = (u64, &Ticket)> {
        let numbers = self.on_node.range(all_of(node));
        numbers.map(|&(_, number)| (number, &self.all[&number]))
    }

    /// Tickets whose node Slurm chooses.
    pub(crate) fn anywhere(&self) -> impl Iterator<Item = &Ticket> {
        self.anywhere.iter().map(|number| &self.all[number])
    }

    pub(crate) fn of(&self, job: JobId) -> Option<(u64, &Ticket)> {
        let &(_, number) = self.of_job.range(all_of(job)).next()?;
        Some((number, &self.all[&number]))
    }

    /// Tickets of pilots that were asked for on account of the cell.
    pub(crate) fn for_cell(&self, cell: Waiting) -> impl Iterator<Item = (u64, &Ticket)> {
        let numbers = self.for_cell.range(all_of(cell));
        numbers.map(|&(_, number)| (number, &self.all[&number]))
    }

    /// Numbers of the pilots asked for on account of this cell before a restart.
    pub(crate) fn of_returning(&self, kernel: &KernelId, cell: &CellId) -> Vec<u64> {
        let here = self.for_returning.iter();
        let own = here.filter(|((k, c), _)| k == kernel && c == cell);
        own.map(|(_, number)| *number).collect()
    }

    /// Coming pilots on the pool's own nodes.
    pub(crate) fn own(&self, pool: Idx<Pool>) -> Coming {
        self.own.get(&pool).copied().unwrap_or_default()
    }

    /// The same tickets, listed anew.
    pub(crate) fn listed_anew(&self) -> Self {
        let mut anew = Self::default();
        for (&number, ticket) in &self.all {
            anew.insert(number, ticket.clone());
        }
        anew
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(node: Option<Idx<Node>>, bursts: bool) -> Ticket {
        Ticket {
            pool: Idx::FIRST,
            partition: None,
            node,
            bursts,
            gpus: 4,
            gpu_type: None,
            job: None,
            at: Timestamp(0),
            cell: None,
            returning: None,
        }
    }

    #[test]
    fn a_ticket_is_found_by_all_it_is_for_until_it_is_gone() {
        let (node, cell) = (Idx::FIRST, (Idx::FIRST, 9));
        let mut tickets = Tickets::default();
        tickets.insert(7, ticket(Some(node), false));
        tickets.insert(3, ticket(Some(node), true));
        tickets.insert(5, ticket(None, false));
        assert!(tickets.change(7, |t| (t.job, t.cell) = (Some(JobId(1)), Some(cell))));
        assert!(!tickets.change(8, |_| {}));
        assert!(tickets.on(node).map(|(number, _)| number).eq([3, 7]));
        assert_eq!(tickets.anywhere().count(), 1);
        assert_eq!(tickets.of(JobId(1)).map(|(number, _)| number), Some(7));
        assert_eq!(tickets.for_cell(cell).count(), 1);
        assert_eq!(tickets.own(Idx::FIRST), Coming { pilots: 2, gpus: 8 });
        assert_eq!(tickets, tickets.listed_anew());
        for number in [3, 5, 7] {
            assert!(tickets.remove(number).is_some());
        }
        assert_eq!(tickets, Tickets::default());
    }
}
