//! Most that a pool could ever offer, and with this the needs beyond any wait.
//!
//! Slurm tells the core of all nodes of the pool, including nodes down or not booted. A fact that Slurm can't tell yet
//! is no reason to refuse a cell: the cell waits.

use crate::core::Core;
use crate::index::Idx;
use crate::input::PoolOffers;
use crate::output::Output;
use crate::state::{Cell, Group, Pool};
use hop_words::id::{GpuType, PoolName};
use hop_words::need::Need;
use hop_words::reason::RefusedBecause;

impl Core {
    /// Takes over the most that the pool could ever have. Cells with an impossible need are told.
    pub(crate) fn pool_offers(&mut self, offers: PoolOffers, out: &mut Vec<Output>) {
        let pool = self.pool_index(&offers.pool);
        if self.supply.pools[pool].offers.as_ref() == Some(&offers) {
            return;
        }
        self.supply.pools[pool].offers = Some(offers);
        let waiting: Vec<Idx<Cell>> = self.supply.pools[pool].queue.iter().map(|&(_, c)| c).collect();
        for cell in waiting {
            let Some(c) = self.work.cells.get(cell) else {
                continue;
            };
            if let Some(reason) = self.never_in(pool, &c.need) {
                self.drop_cell(cell, Some(reason), out);
            }
        }
    }

    /// The type to ask Slurm for in a pilot for the cell: a node may have GPUs of several types. `None` means any type;
    /// an agent may know types that Slurm doesn't name.
    pub(crate) fn type_to_name(&self, cell: Idx<Cell>) -> Option<GpuType> {
        let c = &self.work.cells[cell];
        let pool = &self.supply.pools[self.work.kernels[c.kernel].pool];
        let (offers, asked) = (pool.offers.as_ref()?, c.need.gpu_type.as_ref()?);
        (c.need.gpus > 0 && has(offers, asked)).then(|| asked.clone())
    }

    /// Reason for which the pool can never serve this need; `None` means servable, or unknown.
    pub(crate) fn never_in(&self, pool: Idx<Pool>, need: &Need) -> Option<RefusedBecause> {
        let p = &self.supply.pools[pool];
        let (config, name) = (&p.config, || p.config.name.clone());
        // An unconfigured pool has no shape (yet): cells wait for it.
        if !config.is_configured() {
            return None;
        }
        let (asked, most) = (need.gpus, config.gpus_per_pilot);
        if asked > most {
            return Some(RefusedBecause::TooManyGpus {
                pool: name(),
                asked,
                most,
            });
        }
        let offers = p.offers.as_ref();
        let pilots = || p.pilots.iter().map(|&i| &self.supply.pilots[i]);
        let cores = || {
            let up = pilots().map(|p| p.cpus).max().unwrap_or(0);
            offers.map_or(u16::MAX, |o| o.cpus).max(up)
        };
        // Hardly any cell names cores, and there may be a thousand pilots.
        let most = config
            .cpus_per_pilot
            .min(if need.cpus > 0 { cores() } else { u16::MAX });
        if need.cpus > most {
            return Some(RefusedBecause::TooManyCores {
                pool: name(),
                asked: need.cpus,
                most,
            });
        }
        let offers = offers.filter(|_| asked > 0)?;
        // A running pilot's GPUs count, whatever Slurm says of its node.
        let groups = || pilots().flat_map(|p| &p.groups);
        if groups().any(|g| g.could_serve(need)) {
            return None;
        }
        self.wrong_memory(offers, need)
            .or_else(|| self.wrong_type(pool, offers, need))
            .or_else(|| too_many(offers, groups(), need, config.gpus_per_pilot))
    }

    fn wrong_memory(&self, offers: &PoolOffers, need: &Need) -> Option<RefusedBecause> {
        (need.gpu_mem_mib > offers.gpu_mem_mib).then(|| RefusedBecause::TooLittleMemory {
            pool: offers.pool.clone(),
            asked: need.gpu_mem_mib,
            most: offers.gpu_mem_mib,
        })
    }

    fn wrong_type(&self, pool: Idx<Pool>, offers: &PoolOffers, need: &Need) -> Option<RefusedBecause> {
        let asked = need.gpu_type.as_ref().filter(|_| offers.types_known)?;
        if has(offers, asked) {
            return None;
        }
        let others = self.supply.pools.iter().filter(|(i, _)| *i != pool);
        let elsewhere: Vec<PoolName> = others
            .filter_map(|(_, p)| p.offers.as_ref().filter(|o| has(o, asked)))
            .map(|o| o.pool.clone())
            .collect();
        let named = |t: &&GpuType| !t.as_str().is_empty();
        Some(RefusedBecause::NoSuchType {
            pool: offers.pool.clone(),
            asked: asked.clone(),
            there: offers
                .gpus
                .iter()
                .map(|(t, _)| t)
                .filter(named)
                .cloned()
                .collect(),
            elsewhere,
        })
    }
}

fn has(offers: &PoolOffers, gpu_type: &GpuType) -> bool {
    offers.gpus.iter().any(|(t, n)| t == gpu_type && *n > 0)
}

/// The refusal of a need for more GPUs that fit than any node has.
fn too_many<'a>(
    offers: &PoolOffers,
    groups: impl Iterator<Item = &'a Group>,
    need: &Need,
    whole: u16,
) -> Option<RefusedBecause> {
    if !offers.types_known {
        return None;
    }
    let fits = |t: &GpuType| need.gpu_type.as_ref().is_none_or(|asked| asked == t);
    let said = offers.gpus.iter().filter(|(t, _)| fits(t)).map(|&(_, n)| n);
    let up = groups.filter(|g| g.fits(need)).map(|g| g.slots.len() as u16);
    let most = said.chain(up).max().unwrap_or(0).min(whole);
    (need.gpus > most).then(|| RefusedBecause::TooManyGpus {
        pool: offers.pool.clone(),
        asked: need.gpus,
        most,
    })
}
