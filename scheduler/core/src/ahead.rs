//! Moves replicas of quiet kernels, before the kernels need GPUs, to nodes where the next cell will find some.
//!
//! Two kinds of kernels are moved. The move takes a few seconds while the user waits for nothing.
//! - A kernel of one replica whose node is crowded: the kernels there may together ask for more GPUs than it has.
//!   Nobody knew their needs at their placement. The kernel goes to a node with a pilot, or where a pilot can always be
//!   started, and with room for its need beside those of all others. Otherwise its next cell may have to go elsewhere,
//!   and wait for all memory of the kernel.
//! - A kernel of several replicas that is expected back within hours and would find no GPU. A replica goes to where a
//!   pilot lies idle. Two replicas stay: the last executor, which has the namespace ready, and the replica on the
//!   kernel's own node.

use crate::core::Core;
use crate::index::Idx;
use crate::output::Output;
use crate::state::{Kernel, Node, Pilot, PilotState, Pool};
use crate::tally::may_ask_for;
use hop_words::id::Incarnation;
use hop_words::replica::MoveCause;
use hop_words::time::{Span, Timestamp};
use std::collections::BTreeMap;

/// No replica is moved for a kernel that is expected back later.
const BACK_WITHIN: Span = Span::from_secs(5 * 3600);
/// Least time between two moves of a kernel.
const REST: Span = Span::from_secs(600);
/// Least time between two moves of a kernel, as a part of the time for which the kernel has been quiet.
const REST_OF_QUIET: u64 = 4;
/// Quiet time after which a kernel of one replica is moved. The kernel can't run during the move.
const QUIET: Span = Span::from_secs(180);
/// Least time between two looks for crowded nodes.
const LOOK: Span = Span::from_secs(120);
/// Moves begun at a time.
const AT_ONCE: usize = 2;

impl Core {
    /// Begins moves for kernels on crowded nodes, and for the stranded kernels that are expected back first.
    pub(crate) fn move_ahead(&mut self, pool: Idx<Pool>, out: &mut Vec<Output>) {
        if !self.moves_ahead(pool) {
            return;
        }
        self.move_apart(pool, out);
        if !self.has_idle_pilot(pool) {
            return;
        }
        let least = 1.0 / BACK_WITHIN.as_secs_f64();
        let several = self.supply.pools[pool].tally.several.iter();
        let stranded = several
            .map(|&i| (i, &self.work.kernels[i]))
            .filter(|(_, k)| self.may_be_moved(k))
            .filter_map(|(i, k)| Some((i, self.finds_none(k)?)));
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

    pub(crate) fn moves_ahead(&self, pool: Idx<Pool>) -> bool {
        let config = &self.supply.pools[pool].config;
        config.migrate.as_ref().is_some_and(|m| m.ahead)
    }

    /// Whether a kernel could be moved to a pilot at all: else no kernel need be looked at.
    fn has_idle_pilot(&self, pool: Idx<Pool>) -> bool {
        let free = self.supply.pools[pool].lanes.free.range((1, Idx::FIRST)..);
        free.into_iter()
            .any(|&(gpus, p)| lies_idle(&self.supply.pilots[p], gpus))
    }

    /// It is quiet, and wasn't moved lately.
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
            && match k.replicas.len() {
                0 => false,
                1 => quiet >= QUIET,
                _ => true,
            }
            && self.now.since(k.moved) >= rest
    }

    // --- apart from others ---

    /// Kernels of one replica on crowded nodes go to nodes with room for them, the longest quiet kernels first.
    fn move_apart(&mut self, pool: Idx<Pool>, out: &mut Vec<Output>) {
        let p = &mut self.supply.pools[pool];
        if p.looked_apart.is_some_and(|at| self.now.since(at) < LOOK) {
            return;
        }
        p.looked_apart = Some(self.now);
        let room = |asked: &BTreeMap<Idx<Node>, u32>, node: Idx<Node>| {
            let all = self.gpus_for(pool, node);
            all.checked_sub(asked.get(&node).copied().unwrap_or_default())
        };
        let mut asked = self.supply.pools[pool].tally.asked_on.clone();
        let full = asked.keys().filter(|&&node| room(&asked, node).is_none());
        let sit_there =
            full.flat_map(|&node| self.supply.nodes[node].sitting.iter().map(move |&i| (i, node)));
        let crowded = sit_there.filter_map(|(i, node)| {
            let k = &self.work.kernels[i];
            let alone = k.pool == pool && k.replicas.len() == 1 && k.replicas[0].node == node;
            (alone && self.may_be_moved(k)).then(|| (k.quiet_since, i, node, u32::from(may_ask_for(k))))
        });
        let mut crowded: Vec<(Timestamp, Idx<Kernel>, Idx<Node>, u32)> = crowded.collect();
        crowded.sort_unstable();
        let mut moves = Vec::new();
        // No node has room for this many GPUs, or more.
        let mut too_many = u32::MAX;
        for (_, kernel, from, gpus) in crowded {
            // An earlier move may have made room on this node by now.
            if moves.len() == AT_ONCE || gpus >= too_many || room(&asked, from).is_some() {
                continue;
            }
            let Some(to) = self.roomy_node(kernel, &asked, gpus) else {
                too_many = gpus;
                continue;
            };
            too_many = u32::MAX;
            *asked.entry(from).or_default() -= gpus;
            *asked.entry(to).or_default() += gpus;
            moves.push((kernel, self.work.kernels[kernel].replicas[0].incarnation, to));
        }
        for (kernel, victim, to) in moves {
            self.begin_move(kernel, victim, to, MoveCause::Ahead, out);
        }
    }

    /// GPUs of the node for the pool to lend: its pilots' GPUs or, where pilots follow demand, all.
    fn gpus_for(&self, pool: Idx<Pool>, node: Idx<Node>) -> u32 {
        if self.scale(pool).is_some() {
            return self.supply.nodes[node].gpus.into();
        }
        let pilots = self.supply.nodes[node].pilots.iter();
        let ours = pilots.filter(|&&p| self.supply.pilots[p].pool == pool);
        ours.filter_map(|&p| self.pilots_part(p)).map(u32::from).sum()
    }

    /// GPUs of [`Self::gpus_for`] that no jobs of others hold. Pilots have theirs in any case.
    fn gpus_left_for(&self, pool: Idx<Pool>, node: Idx<Node>) -> u32 {
        let taken = self.scale(pool).map_or(0, |_| self.supply.nodes[node].room.taken);
        self.gpus_for(pool, node).saturating_sub(taken.into())
    }

    /// The fullest of the pool's own nodes with room for so many GPUs beside all possible requests there, a node with a
    /// standby of the kernel first.
    fn roomy_node(
        &self,
        kernel: Idx<Kernel>,
        asked: &BTreeMap<Idx<Node>, u32>,
        gpus: u32,
    ) -> Option<Idx<Node>> {
        let here = |n: Idx<Node>| asked.get(&n).copied().unwrap_or_default();
        let k = &self.work.kernels[kernel];
        let stands_by = |n: Idx<Node>| k.standbys.iter().any(|s| s.node == n);
        let pool = k.pool;
        let nodes = self.supply.pools[pool].nodes.iter().copied();
        let roomy = nodes.filter(|&n| {
            let node = &self.supply.nodes[n];
            node.standing.is_up()
                && !self.is_burst(n)
                && node.held_for.is_none()
                && here(n) + gpus <= self.gpus_left_for(pool, n)
        });
        roomy.max_by_key(|&n| (stands_by(n), here(n), std::cmp::Reverse(n)))
    }

    // --- to where a pilot lies idle ---

    /// Usual number of GPUs for the kernel's cells, if the next cell would find none now.
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

    /// The most dispensable replica: neither the last executor nor the replica on the kernel's own node.
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
