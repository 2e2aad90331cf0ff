//! Requests to kernels from outside the queue. A kernel is asked to move by its user, by a node's drain or by its
//! seat's coming end. A hibernated kernel is asked to be forgotten.

use crate::core::Core;
use crate::index::Idx;
use crate::input::PlaceReplica;
use crate::output::Output;
use crate::state::{Kernel, Node, Replica};
use hop_words::id::{Incarnation, JobId, KernelId, NodeName, UserName};
use hop_words::lease::EndCause;
use hop_words::reason::{MoveRefused, RefusedBecause};
use hop_words::replica::MoveCause;
use hop_words::time::{Span, Timestamp};

/// A kernel, for `hop kernels`.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelView {
    pub kernel: KernelId,
    pub name: String,
    pub user: UserName,
    pub account: Option<hop_words::id::AccountName>,
    pub pool: hop_words::id::PoolName,
    pub replicas: Vec<ReplicaView>,
    /// The executor of the kernel's last cell with a lease.
    pub executor: Option<Incarnation>,
    pub doing: Doing,
    pub since: Timestamp,
    pub lease: Option<hop_words::id::LeaseId>,
    /// Memory of all its replicas' steps.
    pub mem_mib: u64,
    /// Cores of these steps. 0 means that the kernel was never placed, as with its memory.
    pub cpus: u32,
    /// Why policy leaves it where it is.
    pub fixed: Option<String>,
}

/// One replica of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaView {
    pub incarnation: Incarnation,
    pub node: NodeName,
    pub seat: JobId,
}

/// What a kernel does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// No replica is up.
    Starting,
    Idle,
    /// A cell waits for its lease.
    Waiting,
    /// A cell starts or runs on a lease.
    Running,
    /// A replica of it moves.
    Moving,
}

impl Core {
    // --- moves that are asked for ---

    /// Has a replica of the kernel moved: the replica on node `from`, else the last executor. The target is `to`,
    /// else the pool's best node. Answered by [`Output::Migrate`] or [`Output::MoveRefused`].
    pub(crate) fn migrate(
        &mut self,
        id: &KernelId,
        from: Option<&NodeName>,
        to: Option<&NodeName>,
        cause: MoveCause,
        out: &mut Vec<Output>,
    ) {
        match self.plan_move(id, from, to, cause) {
            Ok((k, victim, node)) => self.begin_move(k, victim, node, cause, out),
            Err(reason) => out.push(Output::MoveRefused {
                kernel: id.clone(),
                cause,
                reason,
            }),
        }
    }

    fn plan_move(
        &self,
        id: &KernelId,
        from: Option<&NodeName>,
        to: Option<&NodeName>,
        cause: MoveCause,
    ) -> Result<(Idx<Kernel>, Incarnation, Idx<Node>), MoveRefused> {
        let k = self.find_kernel(id).ok_or(MoveRefused::NoReplica)?;
        let kernel = &self.work.kernels[k];
        if let Some(moving) = kernel.migrating {
            let to = self.supply.nodes[moving.to].name.clone();
            return Err(MoveRefused::Moves { to });
        }
        let victim = self.victim_on(kernel, from).ok_or(MoveRefused::NoReplica)?;
        let node = match to {
            Some(name) => self.named_target(k, name)?,
            None => match (self.best_target(k), self.beside(k, victim, cause)) {
                (Ok(node), _) | (Err(_), Some(node)) => node,
                (Err(reason), None) => return Err(reason),
            },
        };
        Ok((k, victim, node))
    }

    /// The replica's own node, if only its seat ends: another seat there does as well.
    fn beside(&self, k: Idx<Kernel>, victim: Incarnation, cause: MoveCause) -> Option<Idx<Node>> {
        let here = self.work.kernels[k]
            .replicas
            .iter()
            .find(|r| r.incarnation == victim)?;
        let stays_up = self.supply.nodes[here.node].standing.is_up();
        (cause == MoveCause::SeatEnds && stays_up).then_some(here.node)
    }

    /// The replica on node `from`, else the last executor, else the only replica.
    fn victim_on(&self, kernel: &Kernel, from: Option<&NodeName>) -> Option<Incarnation> {
        let on = |r: &&Replica| from.is_none_or(|n| self.supply.nodes[r.node].name == *n);
        let there = kernel.replicas.iter().filter(on);
        let chosen = there.max_by_key(|r| (kernel.last_executor == Some(r.incarnation), r.incarnation));
        chosen.map(|r| r.incarnation)
    }

    fn named_target(&self, k: Idx<Kernel>, name: &NodeName) -> Result<Idx<Node>, MoveRefused> {
        let node = name.clone();
        let kernel = &self.work.kernels[k];
        let found = self
            .find_node(name)
            .filter(|&n| self.supply.nodes[n].pool == kernel.pool);
        let Some(n) = found else {
            let pool = self.supply.pools[kernel.pool].config.name.clone();
            return Err(MoveRefused::NotInPool { node, pool });
        };
        if self.sits_on(k, n) {
            return Err(MoveRefused::SitsThere { node });
        }
        match self.may_sit(n, &kernel.default_need, &[]) {
            true => Ok(n),
            false => Err(MoveRefused::Unfit { node }),
        }
    }

    fn best_target(&self, k: Idx<Kernel>) -> Result<Idx<Node>, MoveRefused> {
        let kernel = &self.work.kernels[k];
        let taken = kernel.replicas.iter().map(|r| r.node);
        let taken = taken.chain(kernel.planned.iter().map(|p| p.node));
        let pool = self.supply.pools[kernel.pool].config.name.clone();
        let place = PlaceReplica {
            kernel: kernel.id.clone(),
            user: self.people.users[kernel.user].name.clone(),
            account: None,
            pool: pool.clone(),
            first: None,
            default_need: kernel.default_need.clone(),
            mem_mib: kernel.mem_mib,
            cpus: kernel.cpus,
            avoid: taken.map(|n| self.supply.nodes[n].name.clone()).collect(),
            name: String::new(),
        };
        let found = self.choose_node(kernel.pool, kernel.user, &place);
        found.ok_or(MoveRefused::NoOtherNode { pool })
    }

    /// Records the kernel's reason against moves by policy. `None` means that policy may move the kernel.
    pub(crate) fn kernel_fixed(&mut self, id: &KernelId, why: Option<String>) {
        if let Some(k) = self.find_kernel(id) {
            self.fix(k, why);
        }
    }

    pub(crate) fn fix(&mut self, k: Idx<Kernel>, why: Option<String>) {
        let changes = self.work.kernels[k].fixed.is_some() != why.is_some();
        self.work.kernels[k].fixed = why;
        if !changes {
            return;
        }
        self.tally_kernel(k);
        // Where its cells compete has changed.
        for cell in self.work.kernels[k].cells.clone() {
            self.dequeue(cell);
            self.enqueue(cell);
        }
    }

    // --- asleep ---

    /// The kernel is saved whole and its replicas end. The core forgets the kernel.
    pub(crate) fn hibernated(&mut self, id: &KernelId, out: &mut Vec<Output>) {
        self.end_kernel(id, EndCause::Released, &RefusedBecause::Asleep, out);
    }

    // --- views ---

    /// All kernels.
    pub fn kernels(&self) -> Vec<KernelView> {
        let kernels = self.work.kernels.iter();
        let open = kernels.filter(|(_, k)| !k.closed);
        open.map(|(_, k)| self.kernel_view(k)).collect()
    }

    /// One kernel.
    pub fn kernel(&self, id: &KernelId) -> Option<KernelView> {
        let k = self.find_kernel(id)?;
        Some(self.kernel_view(&self.work.kernels[k]))
    }

    fn kernel_view(&self, k: &Kernel) -> KernelView {
        let replicas = k.replicas.iter().map(|r| ReplicaView {
            incarnation: r.incarnation,
            node: self.supply.nodes[r.node].name.clone(),
            seat: r.seat,
        });
        let (doing, since) = self.doing(k);
        KernelView {
            kernel: k.id.clone(),
            name: k.name.clone(),
            user: self.people.users[k.user].name.clone(),
            account: self.people.accounts[k.account].name.clone(),
            pool: self.supply.pools[k.pool].config.name.clone(),
            replicas: replicas.collect(),
            executor: k.last_executor,
            doing,
            since,
            lease: k.leases.last().copied(),
            mem_mib: k.mem_mib.saturating_mul(k.replicas.len() as u64),
            cpus: match k.mem_mib {
                0 => 0,
                _ => u32::from(k.cpus).saturating_mul(k.replicas.len() as u32),
            },
            fixed: k.fixed.clone(),
        }
    }

    fn doing(&self, k: &Kernel) -> (Doing, Timestamp) {
        let leases = k.leases.iter().filter_map(|id| self.lease(*id));
        let runs = leases
            .into_iter()
            .find(|l| l.state == "RUNNING" || l.state == "STARTING");
        let waits = k.cells.iter().map(|&c| self.work.cells[c].submitted).min();
        match (k.alone_since, k.migrating, runs, waits) {
            (Some(since), ..) => (Doing::Starting, since),
            (None, Some(moving), ..) => (Doing::Moving, moving.since),
            (None, None, Some(lease), _) => (Doing::Running, lease.since),
            (None, None, None, Some(since)) => (Doing::Waiting, since),
            (None, None, None, None) => (Doing::Idle, k.last_end.unwrap_or(k.quiet_since)),
        }
    }
}

/// Expected time of a move where the pool's configuration names none.
pub(crate) fn move_takes_by_default() -> Span {
    crate::config::Migrate::default().takes
}
