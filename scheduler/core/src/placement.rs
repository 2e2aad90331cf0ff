//! Seats of kernels: the choice of a node for a new replica, planned seats, and the seats that run.

use crate::core::Core;
use crate::index::Idx;
use crate::input::{PlaceReplica, SeatUp};
use crate::output::{Output, SeatPlan};
use crate::state::{Kernel, Node, Pilot, PilotState, Planned, Pool, Replica, Seat, Timer, User};
use hop_words::id::{GpuType, Incarnation, JobId, KernelId, NodeName};
use hop_words::need::Need;
use hop_words::reason::RefusedBecause;
use std::collections::BTreeSet;

/// Most planned seats of one kernel at a time.
const PLANS: usize = 10;

/// Most subscription of a node: (GPUs wanted) / (GPUs there).
const SUBSCRIPTION_CAP: f64 = 7.0;

/// A candidate node: over the cap or not, load, without a seat of the user's or with one, index.
pub(crate) type Fit = (bool, u32, bool, Idx<Node>);

impl Core {
    pub(crate) fn place_kernel(&mut self, place: PlaceReplica, out: &mut Vec<Output>) {
        let Some(pool) = self.find_pool(&place.pool) else {
            return out.push(Output::PlaceRefused {
                kernel: place.kernel,
                reason: RefusedBecause::NoPool { pool: place.pool },
            });
        };
        let user = self.user_index(&place.user);
        self.withdraw_unused_plans(&place);
        let Some(node) = self.choose_node(pool, user, &place) else {
            let never = self.never_in(pool, &place.default_need);
            return out.push(Output::PlaceRefused {
                kernel: place.kernel,
                reason: never.unwrap_or(RefusedBecause::NoNode { pool: place.pool }),
            });
        };
        let k = self.kernel_of(
            &place.kernel,
            &place.user,
            place.account.as_ref(),
            &place.pool,
            &place.name,
        );
        let home = self.work.kernels[k].home;
        self.set_home(k, None);
        let kernel = &mut self.work.kernels[k];
        let first = place.first.map_or(0, |first| first.0);
        kernel.next_incarnation = kernel.next_incarnation.max(first);
        kernel.default_need = place.default_need;
        kernel.last_gpus = kernel.default_need.gpus;
        kernel.cpus = place.cpus;
        self.set_mem(k, place.mem_mib);
        self.set_home(k, home);
        if self.work.kernels[k].replicas.is_empty() {
            self.set_home(k, Some(node));
            self.work.kernels[k].base = Some(node);
        }
        self.tally_kernel(k);
        let seat = self.plan_seat(k, node, None);
        self.work.kernels[k].quiet_since = self.now;
        self.expect_kernel(k, out);
        self.note_kernel(k, out);
        out.push(Output::Place {
            kernel: place.kernel,
            seat,
        });
    }

    /// A front that asks for numbers from `first` on has not used the seats of its earlier request: no replica comes
    /// there.
    fn withdraw_unused_plans(&mut self, place: &PlaceReplica) {
        let (Some(k), Some(first)) = (self.find_kernel(&place.kernel), place.first) else {
            return;
        };
        let kernel = &self.work.kernels[k];
        let moves = kernel.migrating.as_ref().map(|m| m.incarnation);
        let numbers = kernel.planned.iter().map(|p| p.incarnation);
        let unused: Vec<Incarnation> = numbers.filter(|n| *n >= first && Some(*n) != moves).collect();
        for incarnation in unused {
            self.unplan(k, incarnation);
        }
    }

    /// Reserves a seat for a new replica on this node, or the standby's there.
    pub(crate) fn plan_seat(
        &mut self,
        k: Idx<Kernel>,
        node: Idx<Node>,
        standby: Option<&Replica>,
    ) -> SeatPlan {
        let now = self.now;
        // A client keeps only the last few plans of repeated requests.
        while self.work.kernels[k].planned.len() >= PLANS {
            let oldest = self.work.kernels[k].planned[0].incarnation;
            self.unplan(k, oldest);
        }
        let kernel = &mut self.work.kernels[k];
        let incarnation = standby.map_or(Incarnation(kernel.next_incarnation), |s| s.incarnation);
        kernel.next_incarnation = kernel.next_incarnation.max(incarnation.0 + 1);
        let (user, mem_mib, cpus, gpus) =
            (kernel.user, kernel.mem_mib, kernel.cpus, kernel.default_need.gpus);
        kernel.planned.push(Planned {
            incarnation,
            node,
            at: now,
        });
        self.tally_kernel(k);
        let n = &mut self.supply.nodes[node];
        n.subscribed += u32::from(gpus);
        n.replicas += 1;
        let (name, partition) = (n.name.clone(), n.burst.clone());
        self.at(now + self.config.placement_ttl, Timer::Planned(k, incarnation));
        SeatPlan {
            incarnation,
            node: name,
            existing: standby
                .map(|s| s.seat)
                .or_else(|| self.seat_with_room(user, node, mem_mib)),
            partition,
            mem_mib,
            cpus,
        }
    }

    fn seat_with_room(&self, user: Idx<User>, node: Idx<Node>, mem_mib: u64) -> Option<JobId> {
        let mut rooms = self.seats_with_room(user, mem_mib);
        rooms.find(|(n, _)| *n == node).map(|(_, job)| job)
    }

    /// The user's seats with so much room, by node.
    fn seats_with_room(
        &self,
        user: Idx<User>,
        mem_mib: u64,
    ) -> impl Iterator<Item = (Idx<Node>, JobId)> + '_ {
        let known = self.people.users.get(user);
        let seats = known.into_iter().flat_map(|u| &u.seats);
        let seats = seats.map(|job| (*job, &self.work.seats[job]));
        let rooms = seats.filter(move |(_, s)| {
            let has_room = u128::from(s.mem_mib) >= s.mem_used + u128::from(mem_mib);
            has_room && !s.ends
        });
        rooms.filter_map(|(job, s)| Some((self.find_node(&s.node)?, job)))
    }

    /// The node for a new replica, of nodes with the right GPUs: the least subscribed, under the cap while there is one.
    /// A seat of the user's breaks ties.
    pub(crate) fn choose_node(
        &self,
        pool: Idx<Pool>,
        user: Idx<User>,
        place: &PlaceReplica,
    ) -> Option<Idx<Node>> {
        let need = &place.default_need;
        let gpus = u32::from(need.gpus);
        let cap = self.cap(pool);
        let seats: BTreeSet<Idx<Node>> = self
            .seats_with_room(user, place.mem_mib)
            .map(|(n, _)| n)
            .collect();
        let mut fit: Vec<Fit> = self.supply.pools[pool]
            .nodes
            .iter()
            .copied()
            .filter(|&n| self.may_sit(n, need, &place.avoid))
            .map(|n| {
                let node = &self.supply.nodes[n];
                let there = f64::from(node.gpus.max(1));
                let ratio = f64::from(node.subscribed + gpus) / there;
                // Parts per thousand: an order without floats.
                let load = (ratio * 1000.0) as u32 + node.replicas.min(999) * u32::from(gpus == 0);
                (ratio > cap, load, !seats.contains(&n), n)
            })
            .collect();
        self.where_room_is(pool, place, &seats, &mut fit);
        self.where_gpus_are(pool, &mut fit);
        let config = &self.supply.pools[pool].config;
        if config.pack && config.scale.is_some() && gpus > 0 {
            return self.best_home(pool, need.gpus, &fit);
        }
        fit.iter().min().map(|&(_, _, _, n)| n)
    }

    /// Reduces a list in three steps, each to the nodes that it prefers, if there are any. The first prefers nodes
    /// with news from their agents, the second nodes with a seat of the user's or room for one, the third nodes with
    /// a pilot or room for one.
    fn where_room_is(
        &self,
        pool: Idx<Pool>,
        place: &PlaceReplica,
        seats: &BTreeSet<Idx<Node>>,
        fit: &mut Vec<Fit>,
    ) {
        let size = self.pilot_size(pool, place.default_need.gpus, 0);
        let lends = |p: &Idx<Pilot>| self.supply.pilots[*p].state == PilotState::Up;
        let seat = |n: Idx<Node>| seats.contains(&n) || self.supply.nodes[n].room.seat;
        let pilot = |n: Idx<Node>| !self.is_taken(n, size) || self.supply.nodes[n].pilots.iter().any(lends);
        keep_if_any(fit, &|f| !self.is_silent(f.3));
        keep_if_any(fit, &|f| seat(f.3));
        keep_if_any(fit, &|f| pilot(f.3));
    }

    /// Reduces a list to the preferred nodes, if there are any: nodes with pilots, unless
    /// pilots follow demand. Next come the pool's own nodes while they have room, then those of burst partitions.
    fn where_gpus_are(&self, pool: Idx<Pool>, fit: &mut Vec<Fit>) {
        let mut only = |better: &dyn Fn(&Fit) -> bool| keep_if_any(fit, better);
        let config = &self.supply.pools[pool].config;
        if config.scale.is_none() {
            let up = |n: Idx<Node>| {
                let mut pilots = self.supply.nodes[n]
                    .pilots
                    .iter()
                    .map(|p| &self.supply.pilots[*p]);
                pilots.any(|p| p.state != PilotState::Draining && p.pool == pool)
            };
            only(&|f| up(f.3));
        }
        if !config.burst.is_empty() {
            let room = |f: &Fit| !f.0 && !self.is_crowded(pool, f.3);
            let found = only(&|f| room(f) && !self.is_burst(f.3)) || only(&|f| room(f));
            if !found {
                only(&|f| !self.is_burst(f.3));
            }
        }
    }

    /// Whether nothing is heard of the node: its pilots' agents are all away. A seat there may be lost, and a step in a
    /// lost seat fails only after seconds.
    fn is_silent(&self, n: Idx<Node>) -> bool {
        let pilots = &self.supply.nodes[n].pilots;
        !pilots.is_empty()
            && pilots
                .iter()
                .all(|p| matches!(self.supply.pilots[*p].state, PilotState::Silent { .. }))
    }

    /// Whether the node has no free GPU, and cells wait already or no pilot will come.
    fn is_crowded(&self, pool: Idx<Pool>, n: Idx<Node>) -> bool {
        let node = &self.supply.nodes[n];
        let mut pilots = node.pilots.iter().map(|p| &self.supply.pilots[*p]);
        let free = pilots.any(|p| p.state == PilotState::Up && p.free_gpus() > 0);
        let coming = self.supply.tickets.on(n).any(|(_, t)| !self.is_stuck(t));
        let none = node.pilots.is_empty() && !coming && !self.could_bring(pool, n);
        !free && (!node.queue.is_empty() || none)
    }

    pub(crate) fn may_sit(&self, n: Idx<Node>, need: &Need, avoid: &[NodeName]) -> bool {
        let node = &self.supply.nodes[n];
        let type_fits = need.gpu_type.as_ref().is_none_or(|t| *t == node.gpu_type);
        let mem_fits = need.gpu_mem_mib == 0 || node.gpu_mem_mib >= need.gpu_mem_mib;
        node.standing.is_up()
            && node.gpus >= need.gpus
            && (need.gpus == 0 || type_fits && mem_fits)
            && !avoid.contains(&node.name)
    }

    /// Whether a pilot on the node may have GPUs that would do, by Slurm's word on their type and memory. A type that no
    /// node of the pool is said to have may be on a node of several types: Slurm's word names the first.
    pub(crate) fn may_suit(&self, n: Idx<Node>, need: &Need) -> bool {
        let said = |n: Idx<Node>| {
            let node = &self.supply.nodes[n];
            let unknown = node.gpu_type.as_str().is_empty();
            let type_fits = need
                .gpu_type
                .as_ref()
                .is_none_or(|t| unknown || *t == node.gpu_type);
            type_fits && (node.gpu_mem_mib == 0 || node.gpu_mem_mib >= need.gpu_mem_mib)
        };
        let all = &self.supply.pools[self.supply.nodes[n].pool].nodes;
        let lacks = |t: &GpuType| self.supply.nodes[n].lacks.contains(t);
        let lacks = need.gpu_type.as_ref().is_some_and(lacks);
        need.gpus == 0 || !lacks && (said(n) || !all.iter().any(|&other| said(other)))
    }

    /// The cap on a node's subscription: what demand over use says.
    fn cap(&self, pool: Idx<Pool>) -> f64 {
        let p = &self.supply.pools[pool];
        if p.running == 0 {
            return SUBSCRIPTION_CAP;
        }
        let ratio = f64::from(p.demand) / f64::from(p.running);
        ratio.clamp(1.0, SUBSCRIPTION_CAP)
    }

    pub(crate) fn planned_over(&mut self, k: Idx<Kernel>, incarnation: Incarnation) {
        let Some(kernel) = self.work.kernels.get(k) else {
            return;
        };
        let ttl = self.config.placement_ttl;
        let old = |p: &Planned| p.incarnation == incarnation && self.now.since(p.at) >= ttl;
        if kernel.planned.iter().any(old) {
            self.unplan(k, incarnation);
        }
    }

    /// Forgets a planned seat.
    pub(crate) fn unplan(&mut self, k: Idx<Kernel>, incarnation: Incarnation) {
        let kernel = &mut self.work.kernels[k];
        let Some(i) = kernel.planned.iter().position(|p| p.incarnation == incarnation) else {
            return;
        };
        let planned = kernel.planned.remove(i);
        let gpus = u32::from(kernel.default_need.gpus);
        self.tally_kernel(k);
        self.unsubscribe(planned.node, gpus);
    }

    pub(crate) fn unsubscribe(&mut self, node: Idx<Node>, gpus: u32) {
        let n = &mut self.supply.nodes[node];
        n.subscribed = n.subscribed.saturating_sub(gpus);
        n.replicas = n.replicas.saturating_sub(1);
    }

    pub(crate) fn seat_up(&mut self, up: SeatUp) {
        let SeatUp { job, mem_mib, .. } = up;
        let user = self.user_index(&up.user);
        // Replicas may have reported themselves before their seat.
        let mem_used = self.mem_used_in(job);
        let ends = self.work.seats.get(&job).is_some_and(|s| s.ends);
        let seat = Seat {
            user,
            node: up.node,
            mem_mib,
            mem_used,
            ends,
        };
        if let Some(before) = self.work.seats.insert(job, seat) {
            self.people.users[before.user].seats.remove(&job);
        }
        self.people.users[user].seats.insert(job);
    }

    /// Memory of all replicas in the seat, in MiB.
    pub(crate) fn mem_used_in(&self, seat: JobId) -> u128 {
        let of = |k: &Kernel| {
            let here = k.replicas.iter().filter(|r| r.seat == seat).count();
            here as u128 * u128::from(k.mem_mib)
        };
        self.work.kernels.iter().map(|(_, k)| of(k)).sum()
    }

    /// Takes over the memory of the kernel's replicas, living ones included.
    fn set_mem(&mut self, k: Idx<Kernel>, mem_mib: u64) {
        let kernel = &mut self.work.kernels[k];
        let before = std::mem::replace(&mut kernel.mem_mib, mem_mib);
        for r in &kernel.replicas {
            if let Some(s) = self.work.seats.get_mut(&r.seat) {
                s.mem_used = s.mem_used - u128::from(before) + u128::from(mem_mib);
            }
        }
    }

    pub(crate) fn seat_ends(&mut self, job: JobId, soon: bool) {
        if let Some(seat) = self.work.seats.get_mut(&job) {
            seat.ends = soon;
        }
    }

    pub(crate) fn seat_gone(&mut self, job: JobId, out: &mut Vec<Output>) {
        let Some(seat) = self.work.seats.remove(&job) else {
            return;
        };
        self.people.users[seat.user].seats.remove(&job);
        let lost: Vec<(KernelId, Incarnation)> = self
            .work
            .kernels
            .iter()
            .flat_map(|(_, k)| k.replicas.iter().map(move |r| (k, r)))
            .filter(|(_, r)| r.seat == job)
            .map(|(k, r)| (k.id.clone(), r.incarnation))
            .collect();
        for (kernel, incarnation) in lost {
            self.replica_lost(&kernel, incarnation, out);
        }
    }
}

/// Reduces the list to its better nodes, if there are any. Returns whether there are.
fn keep_if_any(fit: &mut Vec<Fit>, better: &dyn Fn(&Fit) -> bool) -> bool {
    let any = fit.iter().any(better);
    if any {
        fit.retain(better);
    }
    any
}
