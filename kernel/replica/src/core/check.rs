//! Invariants of the core, and the place of each cell as tests and readers see it.

use super::cells::StageName;
use super::lease::{Kind, Lease};
use super::memory::Park;
use super::{Core, Phase};
use hop_words::id::CellId;

/// The place of a cell on its way from arrival to reply. A cell is in exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Waits behind other cells, or for the kernel.
    Held,
    /// Its lease was asked for.
    Asked,
    /// Has a lease, whose GPUs the kernel's parked memory is coming back to.
    Returning,
    /// Has its lease, and waits for the front's word or for the kernel.
    Beginning,
    /// The cell is in the kernel, with a lease or without.
    Running,
    /// The cell is being stopped, to leave its GPUs.
    Stopping,
    /// Stands still in its middle.
    Standing,
    /// The cell is in the kernel, outside of the order.
    Free,
}

impl Core {
    /// `None` means a cell already answered, or never received.
    pub fn place(&self, id: &CellId) -> Option<Place> {
        let cell = self.cells.find(id)?;
        let mine = self.lease.is_for(id);
        Some(match (cell.stage(), &self.lease) {
            (StageName::Held | StageName::Early, _) => Place::Held,
            (StageName::Free, _) => Place::Free,
            (StageName::Seeking, Lease::Returning(..)) => Place::Returning,
            (StageName::Seeking, Lease::Held(_)) => Place::Beginning,
            (StageName::Seeking, _) => Place::Asked,
            (StageName::Running, Lease::Stopping(..)) if mine => Place::Stopping,
            (StageName::Running, Lease::Standing(_)) if mine => Place::Standing,
            (StageName::Running, _) => Place::Running,
        })
    }

    /// Invariants that hold after every [`Core::handle`].
    ///
    /// # Panics
    /// An invariant is broken.
    pub fn sanity_check(&self) {
        assert!(self.out.is_empty(), "outputs are handed out by handle()");
        self.check_order();
        self.check_lease();
        self.check_memory();
        self.check_notices();
        if let Phase::Starting { early, .. } | Phase::Preparing { early, .. } = &self.phase {
            assert!(early.iter().all(|(.., message)| !message.0.is_empty()));
            assert!(
                self.cells.running().is_none(),
                "no cell runs before the kernel is up"
            );
        }
        if matches!(self.phase, Phase::Up) && !self.keeps_back() {
            let early = |c: &super::cells::Cell| c.stage() == StageName::Early;
            assert!(
                !self.cells.iter().any(early),
                "a cell outside of the order waits for no cell"
            );
        }
        if let Some(durable) = &self.durable {
            durable.sanity_check();
            assert!(durable.kept_back.is_empty() || self.keeps_back());
        }
    }

    /// Cells of the kernel come before the cell in search of a lease, which comes before the waiting cells.
    fn check_order(&self) {
        let rank = |stage| match stage {
            StageName::Free | StageName::Early => None,
            StageName::Running => Some(0),
            StageName::Seeking => Some(1),
            StageName::Held => Some(2),
        };
        let ranks: Vec<u8> = self.cells.iter().filter_map(|c| rank(c.stage())).collect();
        assert!(
            ranks.is_sorted(),
            "cells run in the order of their arrival: {ranks:?}"
        );
        let seeking = ranks.iter().filter(|r| **r == 1).count();
        assert!(seeking <= 1, "a kernel asks for one lease at a time");
        assert!(
            seeking == 0 || !ranks.contains(&0),
            "a lease is asked for when nothing runs"
        );
        let up = matches!(self.phase, Phase::Up) && self.durable.is_none();
        assert!(!up || ranks.first() != Some(&2), "a cell waits for nothing");
        for cell in self.cells.iter() {
            assert!(
                cell.is_with_kernel() || cell.signs == super::signs::Signs::default(),
                "the kernel says nothing of a cell that it hasn't got"
            );
            assert!(!self.cells.is_given_up(&cell.id), "a cell is answered once");
        }
        let mut ids: Vec<_> = self.cells.iter().map(|c| &c.id).collect();
        ids.sort();
        let all = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), all, "a request arrives once");
    }

    /// The lease and its cell refer to each other.
    fn check_lease(&self) {
        let seeker = self.lease.seeker().and_then(|s| s.as_cell());
        let known = |cell: &CellId| Some(cell) == seeker;
        assert!(
            self.cells.seeking().is_none_or(known),
            "a cell that seeks is known to its lease"
        );
        if let (Some(cell), Lease::Asked(..) | Lease::Returning(..)) = (seeker, &self.lease) {
            assert_eq!(
                self.cells.seeking(),
                Some(cell),
                "a lease is asked for a cell that is there"
            );
        }
        if let Some(cell) = self
            .lease
            .running_cell()
            .filter(|c| self.cells.seeking() != Some(c))
        {
            assert_eq!(self.cells.running(), Some(cell), "the lease's cell runs");
            let running = |c: &&super::cells::Cell| c.stage() == StageName::Running;
            let alone = self.cells.iter().filter(running).count() == 1;
            assert!(alone, "a cell with a lease runs alone");
        }
        if let Some(seeker) = self.lease.seeker() {
            assert!(
                !seeker.need.is_none() || seeker.kind != Kind::Cell,
                "a cell without a need has no lease"
            );
        }
    }

    fn check_memory(&self) {
        let stopping = matches!(self.lease, Lease::Stopping(..));
        assert!(
            !stopping || matches!(self.gpu.park, Park::Stopping(_)),
            "a cell is stopped by an errand"
        );
        if let Some((cell, lease)) = &self.gpu.after {
            assert!(
                self.cells.find(cell).is_some(),
                "lease {lease} waits for the end of a cell that is there"
            );
        }
    }
}
