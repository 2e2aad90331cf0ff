//! Reason for a cell's wait: a limit, its own kernel, or the nodes where the kernel could run it.
//!
//! Only the reason is decided here; its wording lies with the words (`hop_words::reason`), the length of the wait in
//! `wait.rs`.

use crate::core::Core;
use crate::index::Idx;
use crate::state::{Cell, Kernel, Lease, Pilot, PilotState, Ticket, Work};
use hop_words::id::NodeName;
use hop_words::reason::{Reason, Yours};

impl Core {
    /// The reason for the cell's wait, recomputed.
    pub(crate) fn reason(&self, cell: Idx<Cell>) -> Reason {
        let c = &self.work.cells[cell];
        let k = &self.work.kernels[c.kernel];
        if let Some(m) = &k.migrating {
            return Reason::Migrating {
                to: self.supply.nodes[m.to].name.clone(),
            };
        }
        if k.replicas.is_empty() || c.unasked.is_some() {
            return Reason::NoReplica;
        }
        if let Some(over) = self.over_limit(c) {
            return self.limit_reason(&over, c);
        }
        if let Some(again) = self.retry_reason(c) {
            return again;
        }
        if k.able().all(|r| self.own_lease_ending(c.kernel, r.node)) {
            return Reason::OwnLease;
        }
        if let Some(p) = c.reserved
            && self.idle_needed_now(p, cell)
        {
            let node = self.supply.pilots[p].node;
            return Reason::Claiming {
                node: self.supply.nodes[node].name.clone(),
            };
        }
        if let Some(p) = c.reserved
            && self.is_asked(p)
        {
            let node = self.supply.nodes[self.supply.pilots[p].node].name.clone();
            return Reason::Parking { node };
        }
        let reason = self.reason_on_nodes(cell);
        if matches!(reason, Reason::NoPilot { coming: false, .. })
            && c.limited.is_some()
            && let Some(over) = self.over_limit_soon(cell)
        {
            // No pilot is asked for: the limit leaves none beside those on their way.
            return self.limit_reason(&over, c);
        }
        reason
    }

    /// Reason to try the cell again after a pause, on a node where nothing else holds it up.
    fn retry_reason(&self, c: &Cell) -> Option<Reason> {
        let nodes = self.work.kernels[c.kernel]
            .able()
            .map(|r| &self.supply.nodes[r.node]);
        let mut pilots = nodes.flat_map(|n| n.pilots.iter().map(move |p| (n, &self.supply.pilots[*p])));
        pilots.find_map(|(node, pilot)| {
            let until = c.avoids(pilot.job, self.now)?;
            Some(Reason::Retrying {
                node: node.name.clone(),
                tries: c.failures,
                again_in: until.since(self.now),
                why: c.why_failed.clone(),
            })
        })
    }

    /// Whether what is ending already on the pilot will do for the cell.
    fn idle_needed_now(&self, pilot: Idx<Pilot>, cell: Idx<Cell>) -> bool {
        let p = &self.supply.pilots[pilot];
        let groups = p.groups_for(&self.work.cells[cell].need);
        groups
            .into_iter()
            .any(|g| self.idle_needed(p, g, cell) == Some(0))
    }

    /// The reason that the kernel's nodes give: no pilot, wrong type, busy, held back.
    fn reason_on_nodes(&self, cell: Idx<Cell>) -> Reason {
        let c = &self.work.cells[cell];
        let k = &self.work.kernels[c.kernel];
        let mut pilots = 0;
        let mut best: Option<Reason> = None;
        for r in k.able() {
            let node = &self.supply.nodes[r.node];
            for &p in &node.pilots {
                let pilot = &self.supply.pilots[p];
                if pilot.pool != k.pool || pilot.state != PilotState::Up {
                    continue;
                }
                pilots += 1;
                let reason = self.reason_on_pilot(pilot, node.name.clone(), c);
                if best.as_ref().is_none_or(|b| tells(b) < tells(&reason)) {
                    best = Some(reason);
                }
            }
        }
        // A larger pilot comes.
        let larger = || self.supply.tickets.for_cell((cell, c.seq)).next().is_some();
        if pilots == 0 || matches!(best, Some(Reason::PilotsSmall { .. })) && larger() {
            return self.reason_without_pilot(k);
        }
        best.unwrap_or(Reason::NoReplica)
    }

    fn reason_without_pilot(&self, k: &Kernel) -> Reason {
        let tickets = &self.supply.tickets;
        let here = k.able().flat_map(|r| tickets.on(r.node)).map(|(_, t)| t);
        let asked = here.chain(tickets.anywhere()).filter(|t| t.pool == k.pool);
        let (late, coming): (Vec<&Ticket>, Vec<&Ticket>) =
            asked.partition(|t| !t.bursts && self.is_late_to_boot(t));
        let late = late.iter().find_map(|t| t.node);
        match late.filter(|_| coming.is_empty()) {
            Some(node) => Reason::PilotLate {
                node: self.supply.nodes[node].name.clone(),
            },
            None => Reason::NoPilot {
                pool: self.supply.pools[k.pool].config.name.clone(),
                coming: !coming.is_empty(),
            },
        }
    }

    fn reason_on_pilot(&self, pilot: &Pilot, node: NodeName, c: &Cell) -> Reason {
        let fitting: Vec<_> = pilot.groups.iter().filter(|g| g.fits(&c.need)).collect();
        if c.need.gpus > 0 && fitting.is_empty() {
            return Reason::WrongType {
                gpu_type: c.need.gpu_type.clone(),
                mem_mib: c.need.gpu_mem_mib,
            };
        }
        if c.need.gpus > 0 && !fitting.iter().any(|g| g.could_serve(&c.need)) {
            return self.reason_of_small_pilots(pilot, node, c);
        }
        let lendable = fitting.iter().map(|g| g.lendable()).max().unwrap_or(0);
        if lendable < c.need.gpus {
            let why = fitting
                .iter()
                .flat_map(|g| &g.slots)
                .find_map(|s| s.blocked.clone());
            return Reason::Blocked {
                node,
                why: why.unwrap_or_default(),
            };
        }
        if !fitting.iter().any(|g| g.free() >= c.need.gpus) && c.need.gpus > 0 {
            return Reason::GpusBusy {
                node,
                gpus: c.need.gpus,
                fitting: fitting.iter().map(|g| g.slots.len() as u16).sum(),
                yours: self
                    .work
                    .yours(c, pilot.leases.iter().map(|l| &self.work.leases[l])),
            };
        }
        if pilot.cpus_free() < c.cpus {
            return Reason::CoresBusy {
                node,
                cpus: c.cpus,
                free: pilot.cpus_free(),
            };
        }
        Reason::HeldBack { node }
    }

    /// The node's pilots are as large as what others asked for.
    fn reason_of_small_pilots(&self, pilot: &Pilot, node: NodeName, c: &Cell) -> Reason {
        let here = || self.supply.lending_of(pilot.node, pilot.pool);
        let leases = here().flat_map(|p| &p.leases);
        Reason::PilotsSmall {
            node,
            gpus: c.need.gpus,
            used: here().map(Pilot::used_gpus).sum(),
            of: self.supply.nodes[pilot.node]
                .gpus
                .max(here().map(Pilot::gpus).sum()),
            yours: self.work.yours(c, leases.map(|l| &self.work.leases[l])),
        }
    }
}

impl Work {
    /// Notebooks of the cell's user with GPUs by these leases, without the cell's own notebook.
    pub(crate) fn yours<'a>(&'a self, c: &Cell, leases: impl Iterator<Item = &'a Lease>) -> Yours {
        let user = self.kernels[c.kernel].user;
        let mut yours = Yours::default();
        for lease in leases.filter(|l| l.user == user && l.kernel != c.kernel && l.gpus > 0) {
            let kernel = &self.kernels[lease.kernel];
            let named = match kernel.name.as_str() {
                "" => kernel.id.to_string(),
                name => name.to_owned(),
            };
            yours.notebooks.insert(named);
            yours.gpus += lease.gpus;
        }
        yours
    }
}

/// How much the reason of one of several pilots tells of the wait.
fn tells(reason: &Reason) -> u8 {
    match reason {
        Reason::WrongType { .. } => 0,
        Reason::PilotsSmall { .. } => 1,
        _ => 2,
    }
}
