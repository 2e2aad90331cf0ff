//! Sums and short lists over all kernels and pilots of a pool, kept as these change.
//!
//! The forecasts ask for them at nearly every input. A walk over everything there is would make each input dearer
//! the more sessions are open. `check.rs` counts them from scratch.

use crate::core::Core;
use crate::index::Idx;
use crate::state::{Kernel, Node, Part, Pilot, PilotState, Pool, Tally};
use std::collections::btree_map::Entry;

/// A kernel may ask for a number of GPUs if at least this share of the recent cells did.
const RARELY: f32 = 0.05;

/// The most GPUs that the kernel is likely to ask for.
pub(crate) fn may_ask_for(k: &Kernel) -> u16 {
    let total: f32 = k.sizes.iter().map(|(_, w)| w).sum();
    let often = k.sizes.iter().filter(|(_, w)| *w >= RARELY * total);
    often.map(|&(gpus, _)| gpus).max().unwrap_or(k.default_need.gpus)
}

/// The node where the kernel's next cell is expected. For a moving kernel, it is the target; for a kernel of several
/// replicas, its home; else the present or planned place of its replica.
fn expected_on(k: &Kernel) -> Option<Idx<Node>> {
    let goes = k.migrating.map(|m| m.to);
    let plans = k.planned.first().map(|p| p.node);
    let sits = k.replicas.first().map(|r| r.node);
    let home = k.home.filter(|_| k.replicas.len() > 1);
    goes.or(home).or(sits).or(plans)
}

impl Tally {
    fn add_asks(&mut self, part: Part) {
        if let Some((node, gpus)) = part.asks.filter(|(_, gpus)| *gpus > 0) {
            *self.asked_on.entry(node).or_default() += u32::from(gpus);
        }
    }

    fn take_asks(&mut self, part: Part) {
        let Some((node, gpus)) = part.asks.filter(|(_, gpus)| *gpus > 0) else {
            return;
        };
        if let Entry::Occupied(mut there) = self.asked_on.entry(node) {
            *there.get_mut() -= u32::from(gpus);
            if *there.get() == 0 {
                there.remove();
            }
        }
    }
}

impl Core {
    /// The GPUs of the pilot, if the pilot counts for its pool.
    pub(crate) fn pilots_part(&self, pilot: Idx<Pilot>) -> Option<u16> {
        let p = &self.supply.pilots[pilot];
        let lends = match p.state {
            PilotState::Up => true,
            PilotState::Silent { draining, .. } => !draining,
            PilotState::Draining => false,
        };
        (lends && !self.is_burst(p.node)).then(|| p.gpus())
    }

    /// Brings the tally up to date after a change on the pilot.
    pub(crate) fn tally_pilot(&mut self, pilot: Idx<Pilot>) {
        let new = self.pilots_part(pilot);
        let p = &mut self.supply.pilots[pilot];
        let old = std::mem::replace(&mut p.tallied, new);
        let tally = &mut self.supply.pools[p.pool].tally;
        if let Some(gpus) = old {
            tally.pilots -= 1;
            tally.gpus -= u32::from(gpus);
        }
        if let Some(gpus) = new {
            tally.pilots += 1;
            tally.gpus += u32::from(gpus);
        }
    }

    /// The kernel's part as it is now.
    pub(crate) fn kernels_part(&self, kernel: Idx<Kernel>) -> Part {
        let k = &self.work.kernels[kernel];
        let most = k.sizes.iter().map(|(gpus, _)| *gpus);
        let most = most.fold(k.default_need.gpus, u16::max);
        Part {
            pool: k.pool,
            asked: match k.replicas.is_empty() {
                true => 0,
                false => most.into(),
            },
            asks: expected_on(k).map(|node| (node, may_ask_for(k))),
            away: k.base.is_some() && k.base != k.home,
            stuck: !k.replicas.is_empty() && (k.fixed.is_some() || k.only().is_some()),
        }
    }

    /// Brings the tally up to date after a change on the kernel.
    pub(crate) fn tally_kernel(&mut self, kernel: Idx<Kernel>) {
        let new = self.kernels_part(kernel);
        let old = self.work.kernels[kernel].tallied.replace(new);
        if old == Some(new) {
            return;
        }
        if let Some(old) = old {
            if old.stuck != new.stuck {
                self.reconsider_holds_of(kernel);
            }
            self.untally(kernel, old);
        }
        let tally = &mut self.supply.pools[new.pool].tally;
        tally.asked += new.asked;
        tally.add_asks(new);
        if new.away {
            tally.away.insert(kernel);
        }
        if new.stuck {
            tally.stuck.insert(kernel);
        }
    }

    /// The kernel with this part is gone or has changed.
    pub(crate) fn untally(&mut self, kernel: Idx<Kernel>, part: Part) {
        let tally = &mut self.supply.pools[part.pool].tally;
        tally.asked -= part.asked;
        tally.take_asks(part);
        if part.away {
            tally.away.remove(&kernel);
        }
        if part.stuck {
            tally.stuck.remove(&kernel);
        }
    }

    /// The pool's tally, counted from scratch.
    pub(crate) fn tally_anew(&self, pool: Idx<Pool>) -> Tally {
        let mut tally = Tally::default();
        for &p in &self.supply.pools[pool].pilots {
            if let Some(gpus) = self.pilots_part(p) {
                tally.pilots += 1;
                tally.gpus += u32::from(gpus);
            }
        }
        for (i, _) in self.work.kernels.iter().filter(|(_, k)| k.pool == pool) {
            let part = self.kernels_part(i);
            tally.asked += part.asked;
            tally.add_asks(part);
            tally.away.extend(Some(i).filter(|_| part.away));
            tally.stuck.extend(Some(i).filter(|_| part.stuck));
        }
        tally
    }
}
