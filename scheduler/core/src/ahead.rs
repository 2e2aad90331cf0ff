//! Moves replicas to nodes with idle GPUs before their kernels need them.
//!
//! When a cell finds no GPU on its kernel's nodes, a pilot is nearly always idle on another node. A replica is moved
//! there if its kernel is quiet, is expected back within hours and would find no GPU. The move takes a few seconds
//! while the user waits for nothing. Two replicas stay: the last executor, which has the namespace ready, and the
//! replica on the kernel's own node.

use crate::core::Core;
use crate::index::Idx;
use crate::output::Output;
use crate::state::{Kernel, Node, Pilot, PilotState, Pool};
use hop_words::id::Incarnation;
use hop_words::replica::MoveCause;
use hop_words::time::Span;

/// No replica is moved for a kernel that is expected back later.
const BACK_WITHIN: Span = Span::from_secs(5 * 3600);
/// Least time between two moves of a kernel.
const REST: Span = Span::from_secs(600);
/// Least time between two moves of a kernel, as a part of the time for which the kernel has been quiet.
const REST_OF_QUIET: u64 = 4;
/// Moves begun at a time.
const AT_ONCE: usize = 2;

impl Core {
    /// Begins moves for the stranded kernels that are expected back first.
    pub(crate) fn move_ahead(&mut self, pool: Idx<Pool>, out: &mut Vec<Output>) {
        let config = &self.supply.pools[pool].config;
        if !config.migrate.as_ref().is_some_and(|m| m.ahead) {
            return;
        }
        let least = 1.0 / BACK_WITHIN.as_secs_f64();
        let stranded = self
            .work
            .kernels
            .iter()
            .filter(|(_, k)| k.pool == pool && self.may_be_moved(k));
        let stranded = stranded.filter_map(|(i, k)| Some((i, self.finds_none(k)?)));
        let mut first: Vec<(f64, Idx<Kernel>, u16)> = stranded
            .map(|(i, gpus)| (self.comes_back(i), i, gpus))
            .filter(|(back, ..)| *back >= least)
            .collect();
        first.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        for (_, kernel, gpus) in first.into_iter().take(AT_ONCE) {
            if let Some((node, victim)) = self.idle_node_for(kernel, gpus).zip(self.spare_replica(kernel)) {
                self.begin_move(kernel, victim, node, MoveCause::Ahead, out);
            }
        }
    }

    /// It is quiet, has replicas to move, and wasn't moved lately.
    fn may_be_moved(&self, k: &Kernel) -> bool {
        let quiet = self.now.since(k.quiet_since);
        let rest = Span(REST.0.max(quiet.0 / REST_OF_QUIET));
        k.cells.is_empty()
            && k.leases.is_empty()
            && k.planned.is_empty()
            && k.migrating.is_none()
            && k.only().is_none()
            && k.fixed.is_none()
            && !k.closed
            && k.replicas.len() > 1
            && self.now.since(k.moved) >= rest
    }

    /// GPUs that the kernel usually asks for, if it would find none now.
    fn finds_none(&self, k: &Kernel) -> Option<u16> {
        let usual = k.sizes.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        let gpus = usual.map_or(k.default_need.gpus, |&(gpus, _)| gpus);
        let found = |node: Idx<Node>| {
            let mut pilots = self.supply.nodes[node].pilots.iter();
            pilots.any(|&p| lies_idle(&self.supply.pilots[p], gpus))
        };
        (gpus > 0 && !k.replicas.iter().any(|r| found(r.node))).then_some(gpus)
    }

    /// Node with enough idle GPUs that leaves the fewest over; among equals, the node with the fewest other kernels.
    fn idle_node_for(&self, kernel: Idx<Kernel>, gpus: u16) -> Option<Idx<Node>> {
        let k = &self.work.kernels[kernel];
        let pilots = self.supply.pools[k.pool]
            .pilots
            .iter()
            .map(|&p| (p, &self.supply.pilots[p]));
        let fits = |p: &Pilot| {
            lies_idle(p, gpus)
                && !k.replicas.iter().any(|r| r.node == p.node)
                && self.may_sit(p.node, &k.default_need, &[])
        };
        pilots
            .filter(|(_, p)| fits(p))
            .min_by_key(|(i, p)| (p.free_gpus(), self.supply.nodes[p.node].sitting.len(), *i))
            .map(|(_, p)| p.node)
    }

    /// The replica that is missed least: neither the last executor nor the one on the kernel's own node.
    fn spare_replica(&self, kernel: Idx<Kernel>) -> Option<Incarnation> {
        let k = &self.work.kernels[kernel];
        let spare =
            |r: &&crate::state::Replica| k.last_executor != Some(r.incarnation) && k.base != Some(r.node);
        let spares = k.replicas.iter().filter(spare);
        let least = spares.max_by_key(|r| (!self.is_apart(k.pool, r.node), r.incarnation));
        least.map(|r| r.incarnation)
    }
}

fn lies_idle(p: &Pilot, gpus: u16) -> bool {
    p.state == PilotState::Up && p.reserved.is_empty() && p.free_gpus() >= gpus
}
