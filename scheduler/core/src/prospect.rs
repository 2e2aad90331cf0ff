//! Expected waits of future cells, for clients that plan ahead (`hop run --deadline`).

use crate::core::Core;
use crate::index::Idx;
use crate::input::PlaceReplica;
use crate::state::{Account, Band, Kernel, Node, Pilot, PilotState, Pool, Rank, User};
use hop_words::id::{KernelId, PoolName, UserName};
use hop_words::need::{Class, Need};
use hop_words::time::{Span, Timestamp};

/// A cell that might be submitted.
#[derive(Debug, Clone)]
pub struct Prospect {
    /// Kernel of the cell; `None`, or a kernel without a process, means a new one.
    pub kernel: Option<KernelId>,
    pub user: UserName,
    pub pool: PoolName,
    /// The need that would decide a new kernel's placement.
    pub default_need: Need,
    pub need: Need,
    pub class: Class,
}

impl Core {
    /// Expected wait of such a cell if submitted now, reckoned as for waiting cells. `None` means an unknown wait, or a
    /// refusal of the cell.
    pub fn would_wait(&self, prospect: &Prospect) -> Option<Span> {
        let pool = self.find_pool(&prospect.pool)?;
        let need = &prospect.need;
        if need.is_none() {
            return Some(Span::ZERO);
        }
        if self.never_in(pool, need).is_some() {
            return None;
        }
        let user = self.find_user(&prospect.user);
        let kernel = prospect.kernel.as_ref().and_then(|k| self.find_kernel(k));
        let known = kernel.or_else(|| self.last_kernel_of(user?));
        // No account is charged until Slurm has named one.
        let nobodys = || {
            let mut accounts = self.people.accounts.iter();
            accounts.find(|(_, a)| a.name.is_none()).map(|(i, _)| i)
        };
        let account = known.map(|k| self.work.kernels[k].account).or_else(nobodys);
        if let (Some(user), Some(account)) = (user, account)
            && self.over(need.gpus, user, account, pool).is_some()
        {
            return None;
        }
        let rank = self.rank_of_prospect(prospect, user, account, kernel);
        let cpus = self.cpus_of(pool, need);
        let nodes = kernel.map_or_else(Vec::new, |k| {
            self.work.kernels[k].able().map(|r| r.node).collect()
        });
        let nodes = if nodes.is_empty() {
            self.where_it_would_sit(pool, user, prospect)
                .into_iter()
                .collect()
        } else {
            nodes
        };
        let waits = nodes.iter().map(|&n| {
            let there = self.wait_on(n, (rank, Idx::NONE), pool, need, cpus);
            [there, self.boots_in(n, pool, need, cpus)]
                .into_iter()
                .flatten()
                .min()
        });
        waits.flatten().min()
    }

    fn last_kernel_of(&self, user: Idx<User>) -> Option<Idx<Kernel>> {
        let own = self.work.kernels.iter().filter(|(_, k)| k.user == user);
        own.max_by_key(|(_, k)| k.quiet_since).map(|(i, _)| i)
    }

    fn where_it_would_sit(
        &self,
        pool: Idx<Pool>,
        user: Option<Idx<User>>,
        prospect: &Prospect,
    ) -> Option<Idx<Node>> {
        let place = PlaceReplica {
            kernel: "".into(),
            user: prospect.user.clone(),
            account: None,
            pool: prospect.pool.clone(),
            first: None,
            default_need: prospect.default_need.clone(),
            mem_mib: 0,
            cpus: 0,
            avoid: Vec::new(),
            name: String::new(),
        };
        self.choose_node(pool, user.unwrap_or(Idx::NONE), &place)
    }

    fn rank_of_prospect(
        &self,
        prospect: &Prospect,
        user: Option<Idx<User>>,
        account: Option<Idx<Account>>,
        known: Option<Idx<Kernel>>,
    ) -> Rank {
        let own = known.map_or(0.0, |k| self.used(&self.work.kernels[k].usage));
        let (service, fine) = match user.zip(account) {
            Some((user, account)) => self.service(own, user, account, prospect.class),
            None => (i16::MIN, i16::MIN),
        };
        let latest = prospect
            .need
            .deadline
            .filter(|_| prospect.class == Class::Deadline);
        Rank {
            band: Band::Ordinary,
            service,
            class: prospect.class,
            latest: latest.unwrap_or(Timestamp(u64::MAX)),
            fine,
            submitted: self.now,
            seq: u64::MAX,
        }
    }

    /// Time until a pilot is up: a pilot in boot there, or a pilot started for the cell. `None` means no such pilot.
    fn boots_in(&self, node: Idx<Node>, pool: Idx<Pool>, need: &Need, cpus: u16) -> Option<Span> {
        if !self.may_suit(node, need) {
            return None;
        }
        let coming = self.supply.tickets.values();
        let coming =
            coming.filter(|t| t.pool == pool && t.node.is_none_or(|n| n == node) && t.gpus >= need.gpus);
        if let Some(soonest) = coming.map(|t| self.up_in(t)).min() {
            return Some(soonest);
        }
        let size = self.pilot_size(pool, need.gpus, cpus);
        let room = self.supply.nodes[node].standing.is_up() && self.has_room(node, size);
        let up = |p: &Idx<Pilot>| {
            self.supply.pilots[*p].pool == pool && self.supply.pilots[*p].state == PilotState::Up
        };
        let starts = if self.supply.nodes[node].pilots.iter().any(up) {
            self.scale(pool).is_some() && self.may_add(pool, node, size)
        } else {
            self.could_bring(pool, node)
        };
        let (seen, told) = self.boots_of(pool, self.supply.nodes[node].burst.as_ref());
        let boot = seen.remaining(seen, 0.0, Span::ZERO, 0.5).unwrap_or(told);
        (room && starts).then_some(boot)
    }
}
