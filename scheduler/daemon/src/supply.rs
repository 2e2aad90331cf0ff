//! Slurm's nodes as the pools see them: the pool of each, its GPUs of the pool's type, and the room beside the jobs of
//! others.
//!
//! Pure: what Slurm tells, and the configuration. Pilots' own jobs count as nobody's: the core knows them itself.

use crate::installation::Installation;
use crate::pilot_jobs::is_pilot;
use hop_api::config::{Config, Pool};
use hop_core::{NodeFacts, Room};
use hop_slurm::gres::Gres;
use hop_slurm::state::NodeFlag;
use hop_slurm::{Job, Node};
use hop_words::id::{GpuType, JobId, NodeName, PoolName};
use std::collections::{BTreeMap, BTreeSet};

/// The nodes of the pools' own partitions.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Own {
    pub nodes: Vec<NodeFacts>,
    pub down: Vec<NodeName>,
    /// Nodes that can take the pilots of each pool now.
    pub usable: BTreeMap<PoolName, Vec<NodeName>>,
    /// Pools whose pilots could go to another pool's nodes, with the reasons.
    pub disputed: BTreeMap<PoolName, String>,
}

/// The room on the pools' nodes.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Rooms {
    pub of: BTreeMap<NodeName, Room>,
    /// Nodes where no whole pilot fits beside the jobs of others.
    pub full: BTreeSet<NodeName>,
}

/// The number of the pool's GPUs in a list: its pilots may have GPUs of the pool's type alone.
pub(crate) fn gpus(pool: &Pool, list: &[Gres]) -> u16 {
    let all = hop_slurm::gres::gpus_of(list, pool.gpu_type.as_deref());
    u16::try_from(all).unwrap_or(u16::MAX)
}

/// The type of these GPUs; empty if there is none.
pub(crate) fn gpu_type(pool: &Pool, list: &[Gres]) -> GpuType {
    let first = list.iter().find(|g| g.is_gpu_of(pool.gpu_type.as_deref()));
    first.map_or_else(|| "".into(), Gres::gpu_type)
}

/// Whether the node is in the pool's partition and has GPUs of its type.
fn is_in(pool: &Pool, node: &Node) -> bool {
    node.partitions.contains(&pool.partition) && (pool.gpu_type.is_none() || gpus(pool, &node.gres) > 0)
}

/// Whether a pilot of the pool could ever run on the node.
fn takes_pilots(pool: &Pool, node: &Node) -> bool {
    is_in(pool, node)
        && gpus(pool, &node.gres) >= pool.gpus_per_pilot
        && node.cpus >= u32::from(pool.cpus_per_pilot)
}

/// The pool to which the node belongs: the first whose pilots it can take.
fn pool_of<'a>(config: &'a Config, node: &Node) -> Option<(&'a PoolName, &'a Pool)> {
    let mut takers = config.pool.iter().filter(|(_, p)| takes_pilots(p, node));
    let first = || config.pool.iter().find(|(_, p)| is_in(p, node));
    takers.next().or_else(first)
}

fn node_facts(name: &PoolName, pool: &Pool, node: &Node) -> NodeFacts {
    NodeFacts {
        node: node.name.clone(),
        pool: name.clone(),
        gpus: gpus(pool, &node.gres),
        gpu_type: gpu_type(pool, &node.gres),
        gpu_mem_mib: pool.gpu_mem_mib,
        cpus: u16::try_from(node.cpus).unwrap_or(u16::MAX),
    }
}

pub(crate) fn own<'a>(config: &Config, nodes: impl Iterator<Item = &'a Node>) -> Own {
    let mut own = Own::default();
    for node in nodes {
        let Some((name, pool)) = pool_of(config, node) else {
            continue;
        };
        own.nodes.push(node_facts(name, pool, node));
        let others = config.pool.iter().filter(|(other, _)| *other != name);
        for (other, _) in others.filter(|(_, p)| takes_pilots(p, node)) {
            let why = format!(
                "its pilots could go to node {} of pool {name}: give each of the two a partition or a gpu_type of its \
                 own",
                node.name
            );
            own.disputed.entry(other.clone()).or_insert(why);
        }
        if !node.state.is_usable() {
            own.down.push(node.name.clone());
        } else if takes_pilots(pool, node) {
            let usable = own.usable.entry(name.clone()).or_default();
            usable.push(node.name.clone());
        }
    }
    own
}

/// Room by Slurm's word, of its jobs and nodes at about the same time. `known`: the pilots, also those renamed.
/// Those of another `hopd` are jobs of others. `service`: the uid of the pilots' jobs.
pub(crate) fn rooms(
    config: &Config,
    service: u32,
    jobs: &[Job],
    nodes: &[Node],
    known: &BTreeSet<JobId>,
    installation: &Installation,
) -> Rooms {
    let is_signed = |j: &Job| Installation::of_comment(j.comment.as_deref()).as_ref() == Some(installation);
    let is_pilot = |j: &Job| is_pilot(&j.name) && is_signed(j) || known.contains(&j.id);
    let is_ours = |j: &&Job| j.uid == service && j.state.holds_resources() && is_pilot(j);
    let mut ours: BTreeMap<&NodeName, Vec<&Job>> = BTreeMap::new();
    for job in jobs.iter().filter(is_ours) {
        if let Some(node) = job.nodes.first() {
            ours.entry(node).or_default().push(job);
        }
    }
    let mut rooms = Rooms::default();
    for node in nodes {
        let bursts = |p: &Pool| p.burst.iter().any(|b| node.partitions.contains(&b.partition));
        let burst = || config.pool.iter().find(|(_, p)| bursts(p));
        let Some((_, pool)) = pool_of(config, node).or_else(burst) else {
            continue;
        };
        let here = ours.get(&node.name).map_or(&[][..], Vec::as_slice);
        let room = room(config, pool, here, node);
        let left = gpus(pool, &node.gres).saturating_sub(room.taken);
        if room.taken > 0 && left < pool.gpus_per_pilot {
            rooms.full.insert(node.name.clone());
        }
        rooms.of.insert(node.name.clone(), room);
    }
    rooms
}

/// `ours`: the pilots' jobs there. A node without cores for the smallest pilot, or set aside by a reservation, counts
/// as taken.
fn room(config: &Config, pool: &Pool, ours: &[&Job], node: &Node) -> Room {
    if node.state.has(&NodeFlag::Reserved) {
        return Room {
            taken: u16::MAX,
            seat: false,
        };
    }
    let our_gpus = ours.iter().map(|j| gpus(pool, &j.gres)).sum();
    let our_cpus: u32 = ours.iter().map(|j| j.cpus).sum();
    let others = node.cpus_allocated.saturating_sub(our_cpus);
    let whole = pool.gpus_per_pilot;
    let least = if pool.scale.as_ref().is_some_and(|s| s.right_size) {
        whole.min(1)
    } else {
        whole
    };
    let cores = node.cpus.saturating_sub(others) >= u32::from(pool.cpus_for(least));
    let seat = &config.seat;
    Room {
        taken: if cores {
            gpus(pool, &node.gres_used).saturating_sub(our_gpus)
        } else {
            u16::MAX
        },
        seat: node.cpus.saturating_sub(node.cpus_allocated) >= u32::from(seat.cpus)
            && node.mem_mib.saturating_sub(node.mem_allocated_mib) >= seat.mem_mib,
    }
}
