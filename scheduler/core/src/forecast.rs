//! Forecast of the next needs for GPUs, and the worth of an idle pilot.
//!
//! A quiet kernel's return is forecast from its own think times, blended with the think times of all kernels after an
//! equal time of work without a break. An idle pilot serves every kernel with a replica on its node. The GPU's worth is
//! the sum over these kernels, less the part served as well by other idle GPUs. A pilot is started ahead of need where
//! the sum is large. The places are spare nodes, which new kernels take last, and the own node of a kernel that runs
//! elsewhere for now.

use crate::core::Core;
use crate::index::Idx;
use crate::output::Output;
use crate::predict::streak_class;
use crate::price::Price;
use crate::state::{Kernel, LeaseState, Node, Pilot, PilotState, Pool, Timer};
use hop_words::id::LeaseId;
use hop_words::time::Span;
use std::collections::BTreeSet;

/// How often it is looked whether idle pilots should be started ahead of need.
const EVERY: Span = Span::from_secs(30);
/// Pause between forecasts after a long time without events, as a part of that time.
const EVERY_PART: u64 = 100;
const EVERY_MOST: Span = Span::from_secs(600);
/// After GPUs that were kept for the next comer were taken.
const SOON: Span = Span::from_secs(1);
/// A pilot is started only if the worth is this many times the worth of keeping a pilot, or pilots would come and go.
const INERTIA: f64 = 1.3;
/// Weight of the other kernels' think times beside a kernel's own: as of so many own ones.
const OTHERS: f32 = 10.0;
/// Worth of running where the last cell ran, relative to not waiting.
const SAME: f64 = 0.25;
/// How often what other idle GPUs would serve finds them gone.
const UNSURE: f64 = 0.25;
/// A quiet of more than this counts as absence.
const AWAY: Span = Span::from_secs(3600);
/// Expected run of a cell, and think time of a person, before any has been seen.
const UNKNOWN: Span = Span::from_secs(300);
/// How long the balance of GPUs and of what kernels could ask for is believed.
const BALANCE_FOR: Span = Span::from_secs(15);

/// One size of need on a node.
#[derive(Debug, Clone, Copy)]
struct Demand {
    gpus: u16,
    /// Cells a second to be served here.
    rate: f64,
    /// Worth of finding GPUs for these cells, in idle GPUs.
    worth: f64,
    /// Needs of this size to be served at once by the idle GPUs here.
    lanes: u16,
}

impl Core {
    /// The kernel's next cell has come after `think`.
    pub(crate) fn learn_pace(&mut self, kernel: Idx<Kernel>, think: Span) {
        let k = &mut self.work.kernels[kernel];
        let pool = &mut self.supply.pools[k.pool];
        k.think.observe(think);
        pool.think.observe_of_many(think);
        pool.thinks[streak_class(k.streak)].observe_of_many(think);
        k.streak = if think > AWAY {
            0
        } else {
            k.streak.saturating_add(1)
        };
    }

    /// The price of sparing one cell the wait for a pilot, in idle GPU-seconds.
    pub(crate) fn price(&self, pool: Idx<Pool>) -> f64 {
        let p = &self.supply.pools[pool];
        let price = p.price.or_else(|| p.config.scale.as_ref().map(Price::new));
        price.map_or(0.0, Price::get)
    }

    /// A cell with GPUs came to the pool. `waited` says whether the cell needed the start of a pilot.
    pub(crate) fn learn_price(&mut self, pool: Idx<Pool>, waited: bool) {
        let p = &mut self.supply.pools[pool];
        if let Some(scale) = &p.config.scale {
            p.price
                .get_or_insert_with(|| Price::new(scale))
                .observe(scale, waited);
        }
    }

    /// How often a second the kernel's next cell is expected.
    pub(crate) fn comes_back(&self, kernel: Idx<Kernel>) -> f64 {
        let k = &self.work.kernels[kernel];
        let pool = &self.supply.pools[k.pool];
        let others = &pool.thinks[streak_class(k.streak)];
        if let Some(since) = self.busy_since(kernel) {
            let run = k.runs.remaining(&pool.runs, OTHERS, self.now.since(since), 0.5);
            let think = k.think.remaining(others, OTHERS, Span::ZERO, 0.5);
            let both = run.unwrap_or(UNKNOWN).0 + think.unwrap_or(UNKNOWN).0;
            return 1e6 / both.max(1) as f64;
        }
        k.think.index(others, OTHERS, self.now.since(k.quiet_since))
    }

    /// Since when the kernel has a cell that runs or starts or waits.
    fn busy_since(&self, kernel: Idx<Kernel>) -> Option<hop_words::time::Timestamp> {
        let k = &self.work.kernels[kernel];
        let since = |l: &LeaseId| match &self.work.leases[l].state {
            LeaseState::Running(r) => Some(r.since),
            LeaseState::Starting { .. } => Some(self.now),
            LeaseState::Lingering { .. } | LeaseState::Ending { .. } => None,
        };
        let waits = (!k.cells.is_empty()).then_some(self.now);
        k.leases.iter().find_map(since).or(waits)
    }

    /// Needs of `gpus` GPUs that the node could serve at once, without the pilot `but`. A much larger pilot doesn't
    /// count until its GPUs are partly lent.
    fn lanes(&self, node: Idx<Node>, gpus: u16, but: Option<Idx<Pilot>>) -> u16 {
        let pilots = self.supply.nodes[node]
            .pilots
            .iter()
            .map(|p| (p, &self.supply.pilots[*p]));
        pilots
            .filter(|(i, p)| Some(**i) != but && p.state == PilotState::Up)
            .filter(|(_, p)| p.gpus() < 4 * gpus || !p.leases.is_empty())
            .map(|(_, p)| p.free_gpus() / gpus.max(1))
            .sum()
    }

    /// Expected demand on the node, by size of need, beside what the pilot `but` would serve. `None` means a forecast
    /// for a new pilot: then only kernels count for which a pilot is started ahead of need.
    fn demands(&self, pool: Idx<Pool>, node: Idx<Node>, but: Option<Idx<Pilot>>) -> Vec<Demand> {
        let mut demands: Vec<Demand> = Vec::new();
        if self.scale(pool).is_none() {
            return demands;
        }
        let ahead = but.is_none() && !self.is_apart(pool, node);
        for &k in &self.supply.nodes[node].sitting {
            let kernel = &self.work.kernels[k];
            let sits = |r: &crate::state::Replica| {
                r.node == node && kernel.only().is_none_or(|b| b == r.incarnation)
            };
            let counts = kernel.pool == pool && !kernel.closed && kernel.replicas.iter().any(sits);
            if !counts || ahead && !self.returns_to(k, node) {
                continue;
            }
            let back = self.comes_back(k);
            let total: f32 = kernel.sizes.iter().map(|(_, w)| w).sum();
            let unknown = [(kernel.default_need.gpus, 1.0)];
            let (sizes, total) = match total > 0.0 {
                true => (&kernel.sizes[..], total),
                false => (&unknown[..], 1.0),
            };
            for &(gpus, weight) in sizes.iter().filter(|(g, _)| *g > 0) {
                let worth = self.worth_here(k, node, gpus);
                if worth <= 0.0 {
                    continue;
                }
                let known = demands.iter().position(|d| d.gpus == gpus);
                let i = known.unwrap_or_else(|| {
                    demands.push(Demand {
                        gpus,
                        rate: 0.0,
                        worth: 0.0,
                        lanes: self.lanes(node, gpus, but),
                    });
                    demands.len() - 1
                });
                let rate = back * f64::from(weight / total);
                demands[i].rate += rate;
                demands[i].worth += rate * worth;
            }
        }
        demands
    }

    /// Whether the kernel runs elsewhere for now and `node` is its own.
    fn returns_to(&self, k: Idx<Kernel>, node: Idx<Node>) -> bool {
        let kernel = &self.work.kernels[k];
        kernel.base == Some(node) && kernel.home != Some(node) && self.busy_since(k).is_some()
    }

    /// Worth, in GPU-seconds, of `gpus` idle GPUs on this node for this kernel.
    fn worth_here(&self, k: Idx<Kernel>, node: Idx<Node>, gpus: u16) -> f64 {
        let kernel = &self.work.kernels[k];
        // GPUs in use by the kernel are idle again after its cell.
        let own = |n: Idx<Node>| {
            let mut own = kernel
                .leases
                .iter()
                .map(|l| &self.supply.pilots[self.work.leases[l].pilot]);
            own.any(|p| p.node == n && p.state == PilotState::Up && p.gpus() >= gpus)
        };
        let elsewhere = |n: Idx<Node>| n != node && (self.lanes(n, gpus, None) > 0 || own(n));
        if kernel.home == Some(node) {
            let served = kernel.replicas.iter().any(|r| elsewhere(r.node));
            return self.price(kernel.pool) * (SAME + if served { UNSURE } else { 1.0 });
        }
        let earlier = kernel.replicas.iter().take_while(|r| r.node != node);
        let served = kernel.home.is_some_and(elsewhere) || earlier.into_iter().any(|r| elsewhere(r.node));
        if served { 0.0 } else { self.price(kernel.pool) }
    }

    /// Seconds between the lending of idle GPUs and their replacement.
    fn refill(&self, pool: Idx<Pool>) -> f64 {
        let (seen, told) = self.boots_of(pool, None);
        let boot = seen.remaining(seen, 0.0, Span::ZERO, 0.9).unwrap_or(told);
        boot.as_secs_f64() + SOON.as_secs_f64()
    }

    /// Whether the idle pilot is worth its GPUs now.
    pub(crate) fn worth_keeping(&mut self, pilot: Idx<Pilot>) -> bool {
        let p = &self.supply.pilots[pilot];
        let (pool, node, gpus) = (p.pool, p.node, p.gpus());
        if self.covers_all(pool, gpus) {
            return false;
        }
        let demands = self.demands(pool, node, Some(pilot));
        adds(&demands, gpus, self.refill(pool)) > f64::from(gpus)
    }

    /// Whether the pilots of the pool, but for so many of their GPUs, are as many as all kernels could ask for at once.
    /// More pilots would cost more than a GPU of one's own for everybody.
    fn covers_all(&mut self, pool: Idx<Pool>, but: u16) -> bool {
        let (there, asked) = self.supply_and_demand(pool);
        let there = there.saturating_sub(but.into());
        there >= self.supply.pools[pool].demand && there >= asked
    }

    /// GPUs of the pool's pilots, and the most that all kernels could ask for at once. Every check of an idle pilot
    /// needs both numbers. So both are kept for a while, or until the pilots change.
    fn supply_and_demand(&mut self, pool: Idx<Pool>) -> (u32, u32) {
        let p = &self.supply.pools[pool];
        if let Some((at, there, asked)) = p.balance
            && self.now.since(at) < BALANCE_FOR
        {
            return (there, asked);
        }
        let (there, asked) = (self.gpus_coming(pool), p.tally.asked);
        self.supply.pools[pool].balance = Some((self.now, there, asked));
        (there, asked)
    }

    // --- ahead of need ---

    /// Starts pilots where cells are expected that would find no GPU, and moves kernels ahead of need.
    pub(crate) fn foresee(&mut self, pool: Idx<Pool>, out: &mut Vec<Output>) {
        self.supply.pools[pool].foreseeing = None;
        if self.scale(pool).is_some_and(|s| s.learn) {
            let refill = self.refill(pool);
            for node in self.worth_a_look(pool) {
                if !self.covers_all(pool, 0) {
                    self.foresee_on(pool, node, refill, out);
                }
            }
        }
        self.move_ahead(pool, out);
        // Without a kernel likely to ask for GPUs, no cell is expected. A kernelspec without a need says nothing of its
        // kernels' cells.
        if self.supply.pools[pool].tally.asked > 0 {
            let quiet = self.now.since(self.supply.pools[pool].stirred);
            let every = (quiet.0 / EVERY_PART).clamp(EVERY.0, EVERY_MOST.0);
            self.foresee_in(pool, Span(every));
        }
    }

    /// Spare nodes, and own nodes of kernels that run elsewhere.
    fn worth_a_look(&self, pool: Idx<Pool>) -> BTreeSet<Idx<Node>> {
        let returns = self.supply.pools[pool].tally.away.iter().filter_map(|&k| {
            let base = self.work.kernels[k].base?;
            self.returns_to(k, base).then_some(base)
        });
        self.apart(pool).chain(returns).collect()
    }

    fn foresee_on(&mut self, pool: Idx<Pool>, node: Idx<Node>, refill: f64, out: &mut Vec<Output>) {
        let free = self.supply.nodes[node].listed;
        let held = self.supply.nodes[node].held_for.is_some();
        if free == 0
            || held
            || !self.takes_pilots(node, pool)
            || self.supply.tickets.on(node).next().is_some()
        {
            return;
        }
        let demands = self.demands(pool, node, None);
        let best = demands
            .iter()
            .map(|d| {
                let size = self.pilot_size(pool, d.gpus, 0);
                (adds(&demands, size, refill) - INERTIA * f64::from(size), size)
            })
            .filter(|&(gain, size)| gain > 0.0 && size <= free)
            .max_by(|a, b| a.0.total_cmp(&b.0));
        let Some((_, size)) = best else { return };
        let spare = !self.is_apart(pool, node) || self.may_spare(pool, size);
        if spare && !self.is_taken(node, size) && self.may_add(pool, node, size) {
            self.submit_pilot(pool, None, Some(node), Some(size), None, out);
        }
    }

    /// Whether so many GPUs more may lie idle on the nodes set apart.
    fn may_spare(&self, pool: Idx<Pool>, size: u16) -> bool {
        let Some(scale) = self.scale(pool) else {
            return false;
        };
        let p = &self.supply.pools[pool];
        let whole = u32::from(p.config.gpus_per_pilot);
        let share = (f64::from(p.held) * scale.spare_share) as u32;
        let most = (scale.spares * whole).min(share.max(whole));
        let apart = |n: Idx<Node>| self.is_apart(pool, n);
        let idle = p.pilots.iter().map(|&i| &self.supply.pilots[i]);
        let idle = idle.filter(|p| p.state == PilotState::Up && p.leases.is_empty() && apart(p.node));
        let coming = self.supply.tickets.values().filter(|t| t.node.is_some_and(apart));
        let there = idle.map(crate::state::Pilot::gpus).chain(coming.map(|t| t.gpus));
        there.map(u32::from).sum::<u32>() + u32::from(size) <= most
    }

    /// Schedules [`Self::foresee`] within `span`.
    pub(crate) fn foresee_in(&mut self, pool: Idx<Pool>, span: Span) {
        let when = self.now + span;
        let set = self.supply.pools[pool].foreseeing;
        let learns = self.scale(pool).is_some_and(|s| s.learn);
        if !(learns || self.moves_ahead(pool)) || set.is_some_and(|w| w <= when) {
            return;
        }
        if let Some(old) = set {
            self.timers.remove(&(old, Timer::Foresee(pool)));
        }
        self.supply.pools[pool].foreseeing = Some(when);
        self.at(when, Timer::Foresee(pool));
    }

    /// GPUs of the pool were taken, or are gone: perhaps others should be made ready.
    pub(crate) fn foresee_soon(&mut self, pool: Idx<Pool>) {
        self.supply.pools[pool].stirred = self.now;
        self.foresee_in(pool, SOON);
    }
}

/// Worth of a pilot of `size` GPUs on a node with these demands, in GPUs. `refill` is the time to replace a lent
/// pilot, in seconds.
fn adds(demands: &[Demand], size: u16, refill: f64) -> f64 {
    let added = |d: &Demand| {
        let load = d.rate * refill;
        let (without, with) = (blocked(d.lanes, load), blocked(d.lanes + size / d.gpus, load));
        d.worth * (without - with)
    };
    demands.iter().filter(|d| d.gpus <= size).map(added).sum()
}

/// Share of arrivals that find none of `lanes` free at an offered load of `load` (Erlang B).
fn blocked(lanes: u16, load: f64) -> f64 {
    let next = |b: f64, i: u16| load * b / (f64::from(i) + load * b);
    (1..=lanes).fold(1.0, next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_idle_pilot_is_worth_less_than_the_first() {
        let demand = |lanes| Demand {
            gpus: 1,
            rate: 0.02,
            worth: 100.0,
            lanes,
        };
        let worth: Vec<f64> = (0..4).map(|lanes| adds(&[demand(lanes)], 1, 5.0)).collect();
        assert!(worth.windows(2).all(|w| w[1] < w[0] / 2.0), "{worth:?}");
        assert!(
            (blocked(1, 0.5) - 1.0 / 3.0).abs() < 1e-12,
            "Erlang B of one lane"
        );
        assert!(blocked(0, 3.0) == 1.0 && adds(&[demand(0)], 0, 5.0) == 0.0);
    }
}
