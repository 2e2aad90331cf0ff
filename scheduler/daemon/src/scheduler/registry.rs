//! Registered kernels: their owners, their executors, and who speaks for each.

use crate::caller::ConnId;
use hop_api::message::{Bound, Refusal, ReplicaRow, ReplicaUp, SeatStep};
use hop_words::id::{Incarnation, JobId, KernelId, NodeName, ReplicaId, Tenure, UserName};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

/// A registered replica that isn't lost.
#[derive(Debug)]
pub(super) struct Registered {
    /// `None` means that the connection broke a moment ago.
    pub(super) conn: Option<ConnId>,
    pub(super) tenure: Tenure,
    pub(super) seat: SeatStep,
    pub(super) node: NodeName,
    /// `true` if the replica can be asked to park a cell.
    pub(super) parks: bool,
    /// `true` if the state is captured: the kernel can be asked to move and to hibernate.
    pub(super) captured: bool,
    /// Why nothing is saved now, though the kernel captures.
    pub(super) unsaved: Option<String>,
    /// What speaks against that.
    pub(super) bound: Bound,
    /// Number of replicas that the kernel should have, and the ones without a process.
    pub(super) wanted: u16,
    pub(super) standbys: Vec<ReplicaRow>,
    /// The replica that leads the kernel's log.
    pub(super) leader: Option<Incarnation>,
}

impl Registered {
    pub(super) fn new(conn: ConnId, up: &ReplicaUp) -> Self {
        Self {
            conn: Some(conn),
            tenure: up.tenure,
            seat: up.seat.clone(),
            node: up.node.clone(),
            parks: up.parks,
            captured: up.captured,
            unsaved: up.unsaved.clone(),
            bound: up.bound.clone(),
            wanted: up.wanted.max(1),
            standbys: up.standbys.clone(),
            leader: up.leader,
        }
    }

    /// The leader of the kernel's log. `None` means that neither the executor `me` nor a standby is known to lead.
    pub(super) fn leader_among(&self, me: Incarnation) -> Option<Incarnation> {
        let stands_by = |l: &Incarnation| self.standbys.iter().any(|s| s.incarnation == *l);
        self.leader.filter(|l| *l == me || stands_by(l))
    }

    /// Whether the kernel can be asked to leave. A kernel whose store fails has the store tried then: its user may have
    /// made room.
    pub(super) fn may_be_asked_to_leave(&self) -> bool {
        self.captured || self.unsaved.is_some()
    }

    /// Reason for which policy leaves the kernel in place; `None` means a movable kernel.
    pub(super) fn fixed(&self) -> Option<String> {
        fixed(self.captured, &self.bound)
    }
}

/// Reason against moves of a kernel with such an executor by policy.
pub(super) fn fixed(captured: bool, bound: &Bound) -> Option<String> {
    if !captured {
        return Some("its state is not saved, so it would be lost".to_owned());
    }
    let first = bound.reasons().into_iter().next()?;
    Some(first.trim_end_matches('.').to_owned())
}

#[derive(Debug, Default)]
pub(super) struct Registry {
    replicas: HashMap<ReplicaId, Registered>,
    owners: HashMap<KernelId, UserName>,
    /// The highest tenure that has spoken for each kernel with a log.
    tenures: HashMap<KernelId, Tenure>,
    /// Fronts that wait for a placement, in the order of their requests.
    placements: HashMap<KernelId, VecDeque<(ConnId, u64)>>,
}

impl Registry {
    // --- owners, and who speaks for a kernel ---

    pub(super) fn restore_owner(&mut self, kernel: KernelId, user: UserName) {
        self.owners.insert(kernel, user);
    }

    pub(super) fn restore_tenure(&mut self, kernel: KernelId, tenure: Tenure) {
        self.tenures.insert(kernel, tenure);
    }

    pub(super) fn owner(&self, kernel: &KernelId) -> Option<&UserName> {
        self.owners.get(kernel)
    }

    pub(super) fn owned(&self) -> Vec<KernelId> {
        self.owners.keys().cloned().collect()
    }

    pub(super) fn owned_by(&self, user: &UserName) -> impl Iterator<Item = &KernelId> {
        let theirs = self.owners.iter().filter(move |(_, owner)| *owner == user);
        theirs.map(|(kernel, _)| kernel)
    }

    /// Makes the user the kernel's owner; `true` if it had none.
    pub(super) fn own(&mut self, kernel: &KernelId, user: &UserName) -> bool {
        let new = !self.owners.contains_key(kernel);
        if new {
            self.owners.insert(kernel.clone(), user.clone());
        }
        new
    }

    /// Takes in a speaker's tenure. `true` means a new owner, to be journalled.
    ///
    /// # Errors
    /// [`Refusal::Superseded`]: a higher tenure has spoken.
    pub(super) fn hear(&mut self, kernel: &KernelId, tenure: Tenure) -> Result<bool, Refusal> {
        let highest = self.tenures.get(kernel).copied().unwrap_or_default();
        if tenure < highest {
            return Err(Refusal::Superseded {
                kernel: kernel.clone(),
                tenure: highest,
            });
        }
        if tenure > highest {
            self.tenures.insert(kernel.clone(), tenure);
        }
        Ok(tenure > highest)
    }

    /// Forgets all of a kernel. Returns whether owner and tenure were journalled.
    pub(super) fn forget(&mut self, kernel: &KernelId) -> (bool, bool) {
        let owner = self.owners.remove(kernel).is_some();
        (owner, self.tenures.remove(kernel).is_some())
    }

    // --- replicas ---

    pub(super) fn replica(&self, id: &ReplicaId) -> Option<&Registered> {
        self.replicas.get(id)
    }

    pub(super) fn contains(&self, id: &ReplicaId) -> bool {
        self.replicas.contains_key(id)
    }

    /// Registers a replica; returns the replica's other connection, if any.
    pub(super) fn register(&mut self, id: ReplicaId, replica: Registered) -> Option<ConnId> {
        let conn = replica.conn;
        let before = self.replicas.insert(id, replica)?;
        before.conn.filter(|old| Some(*old) != conn)
    }

    pub(super) fn replica_mut(&mut self, id: &ReplicaId) -> Option<&mut Registered> {
        self.replicas.get_mut(id)
    }

    /// All replicas of the kernel.
    pub(super) fn of_kernel(&self, kernel: &KernelId) -> Vec<ReplicaId> {
        self.executors_of(kernel).map(|(id, _)| id.clone()).collect()
    }

    /// The kernels with a replica on the node, with it.
    pub(super) fn on_node(&self, node: &NodeName) -> Vec<ReplicaId> {
        let there = self.replicas.iter().filter(|(_, r)| r.node == *node);
        let mut there: Vec<_> = there.map(|(id, _)| id.clone()).collect();
        there.sort();
        there
    }

    pub(super) fn tenure(&self, kernel: &KernelId) -> Tenure {
        self.tenures.get(kernel).copied().unwrap_or_default()
    }

    pub(super) fn remove(&mut self, id: &ReplicaId) -> Option<Registered> {
        self.replicas.remove(id)
    }

    /// The replica's connection broke; `false` means that the replica has another connection.
    pub(super) fn disconnected(&mut self, id: &ReplicaId, conn: ConnId) -> bool {
        let here = self.replicas.get_mut(id).filter(|r| r.conn == Some(conn));
        here.map(|r| r.conn = None).is_some()
    }

    /// The replica that speaks for the kernel.
    pub(super) fn executor(&self, kernel: &KernelId) -> Option<(&ReplicaId, &Registered)> {
        self.executors_of(kernel)
            .max_by_key(|(id, r)| (r.tenure, id.incarnation))
    }

    /// Disconnected executors of a kernel without a log, to be replaced by a new executor without a wait: executors in
    /// the new executor's seat, or without a lease. A cell must not start in their dead process. An executor that was
    /// merely cut off returns as if new.
    pub(super) fn superseded_by(
        &self,
        new: &ReplicaId,
        up: &ReplicaUp,
        holds: impl Fn(&ReplicaId) -> bool,
    ) -> Vec<ReplicaId> {
        if up.tenure != Tenure(0) {
            return Vec::new();
        }
        let before = |id: &ReplicaId, r: &Registered| r.conn.is_none() && id.incarnation < new.incarnation;
        let others = self.executors_of(&new.kernel).filter(|(id, r)| before(id, r));
        let gone = others.filter(|(id, r)| r.seat.job == up.seat.job || !holds(id));
        gone.map(|(id, _)| id.clone()).collect()
    }

    /// Executors of lower tenures than the new one's. Their log has a new executor, whatever they hold; an executor cut
    /// off from the other members alone is connected here, without knowledge of its successor.
    pub(super) fn deposed_by(&self, new: &ReplicaId, up: &ReplicaUp) -> Vec<ReplicaId> {
        let before = |id: &ReplicaId, r: &Registered| r.tenure < up.tenure && id != new;
        let deposed = self.executors_of(&new.kernel).filter(|(id, r)| before(id, r));
        deposed.map(|(id, _)| id.clone()).collect()
    }

    fn executors_of(&self, kernel: &KernelId) -> impl Iterator<Item = (&ReplicaId, &Registered)> {
        self.replicas.iter().filter(move |(id, _)| id.kernel == *kernel)
    }

    /// Whether a replica that is connected sits in the seat.
    pub(super) fn is_seated(&self, job: JobId) -> bool {
        self.replicas
            .values()
            .any(|r| r.seat.job == job && r.conn.is_some())
    }

    pub(super) fn in_seat(&self, job: JobId) -> Vec<ReplicaId> {
        let seated = self.replicas.iter().filter(|(_, r)| r.seat.job == job);
        seated.map(|(id, _)| id.clone()).collect()
    }

    /// The kernels with a replica.
    pub(super) fn kernels(&self) -> HashSet<&KernelId> {
        self.replicas.keys().map(|id| &id.kernel).collect()
    }

    /// The nodes where replicas are.
    pub(super) fn homes(&self) -> BTreeSet<NodeName> {
        self.replicas.values().map(|r| r.node.clone()).collect()
    }

    // --- placements ---

    pub(super) fn placing(&mut self, kernel: KernelId, conn: ConnId, id: u64) {
        self.placements.entry(kernel).or_default().push_back((conn, id));
    }

    /// The connection with the first request for a placement of this kernel.
    pub(super) fn placed(&mut self, kernel: &KernelId) -> Option<(ConnId, u64)> {
        let waiting = self.placements.get_mut(kernel)?;
        let first = waiting.pop_front();
        if waiting.is_empty() {
            self.placements.remove(kernel);
        }
        first
    }

    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        (self.owners.len(), self.placements.len(), self.replicas.len())
    }

    #[cfg(test)]
    pub(super) fn ids(&self) -> impl Iterator<Item = &ReplicaId> {
        self.replicas.keys()
    }
}
