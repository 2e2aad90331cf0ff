//! Moves quiet kernels off crowded nodes, before the kernels need GPUs.
//!
//! A node is crowded if its kernels may together ask for more GPUs than it has: their needs were unknown at their
//! placement. A kernel of one replica goes to a node with room for its need beside those of all others. The node has a
//! pilot, or one can always be started there. Otherwise the kernel's next cell may have to go elsewhere, and wait for
//! all memory of the kernel. The move takes a few seconds while the user waits for nothing.

use crate::core::Core;
use crate::index::Idx;
use crate::output::Output;
use crate::state::{Kernel, Node, Pool};
use crate::tally::may_ask_for;
use hop_words::replica::MoveCause;
use hop_words::time::{Span, Timestamp};
use std::collections::BTreeMap;

/// Least time between two moves of a kernel.
const REST: Span = Span::from_secs(600);
/// Least time between two moves of a kernel, as a part of the time for which the kernel has been quiet.
const REST_OF_QUIET: u64 = 4;
/// Quiet time after which a kernel is moved. The kernel can't run during the move.
const QUIET: Span = Span::from_secs(180);
/// Least time between two looks for crowded nodes.
const LOOK: Span = Span::from_secs(120);
/// Moves begun at a time.
const AT_ONCE: usize = 2;

impl Core {
    /// Begins moves for kernels on crowded nodes.
    pub(crate) fn move_ahead(&mut self, pool: Idx<Pool>, out: &mut Vec<Output>) {
        if self.moves_ahead(pool) {
            self.move_apart(pool, out);
        }
    }

    pub(crate) fn moves_ahead(&self, pool: Idx<Pool>) -> bool {
        let config = &self.supply.pools[pool].config;
        config.migrate.as_ref().is_some_and(|m| m.ahead)
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
            && !k.failed_moves.pauses(self.now)
            && self.can_be_asked_to_move(k)
            && !k.closed
            && quiet >= QUIET
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
                && !k.failed_moves.avoids(n, self.now)
                && here(n) + gpus <= self.gpus_left_for(pool, n)
        });
        roomy.max_by_key(|&n| (stands_by(n), here(n), std::cmp::Reverse(n)))
    }
}
