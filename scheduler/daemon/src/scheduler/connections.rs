//! Open connections: their callers, and the kernels and pilots whose events each is told.
//!
//! Owned by the scheduler's task. Proving callers and carrying bytes is `server.rs`'s.

use crate::caller::{Caller, ConnId, Outgoing};
use hop_api::message::{EndedLease, Event, Order, Response, Role, ToHopd};
use hop_words::id::{JobId, KernelId, ReplicaId};
use std::collections::{BTreeSet, HashMap, VecDeque};
use tokio::sync::mpsc;
use tracing::{debug, warn};

/// Most messages of a user waiting for Slurm's answer about their seats.
pub(super) const HELD_UP: usize = 256;
/// Most unread answers of a caller; beyond, its next request is not read.
pub(super) const UNREAD: usize = 8;
/// Most unread answers on all connections of one user. A user may have hundreds.
pub(super) const UNREAD_OF_USER: usize = 64;
/// Most open accounting queries of one user.
const ACCT_OPEN: usize = 4;

/// One open connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) caller: Caller,
    pub(super) outgoing: mpsc::Sender<Outgoing>,
    /// The pilot of an agent.
    pub(super) pilot: Option<JobId>,
    /// Ended leases from the parts of an agent's report, before its last part. An agent is the service account's, and
    /// has no more of them than steps in its pilot.
    pub(super) ended: Vec<EndedLease>,
    pub(super) replicas: BTreeSet<ReplicaId>,
    /// Kernels whose events go here.
    pub(super) kernels: BTreeSet<KernelId>,
    /// Messages that came while Slurm is asked whose the caller's seat is, in order. `None` means that nothing is
    /// asked.
    pub(super) held_up: Option<VecDeque<ToHopd>>,
}

#[derive(Debug, Default)]
pub(super) struct Connections {
    open: HashMap<ConnId, Connection>,
    agents: HashMap<JobId, ConnId>,
    /// The connections of a kernel's replicas and fronts.
    listeners: HashMap<KernelId, BTreeSet<ConnId>>,
    /// Questions about the accounting that are open, by uid.
    acct_open: HashMap<u32, usize>,
    /// Callers that don't read: to be hung up on.
    deaf: Vec<ConnId>,
    /// Callers whose seats are theirs by their own word alone.
    believed: Vec<ConnId>,
}

impl Connections {
    pub(super) fn opened(&mut self, conn: ConnId, caller: Caller, outgoing: mpsc::Sender<Outgoing>) {
        let open = Connection {
            caller,
            outgoing,
            pilot: None,
            ended: Vec::new(),
            replicas: BTreeSet::new(),
            kernels: BTreeSet::new(),
            held_up: None,
        };
        self.open.insert(conn, open);
    }

    /// Forgets a connection, and returns its record. The flag marks a pilot left without an agent.
    pub(super) fn closed(&mut self, conn: ConnId) -> Option<(Connection, bool)> {
        let open = self.open.remove(&conn)?;
        for kernel in &open.kernels {
            self.drop_listener(conn, kernel);
        }
        let was_agent = open.pilot.filter(|p| self.agents.get(p) == Some(&conn));
        if let Some(pilot) = was_agent {
            self.agents.remove(&pilot);
        }
        Some((open, was_agent.is_some()))
    }

    pub(super) fn get(&self, conn: ConnId) -> Option<&Connection> {
        self.open.get(&conn)
    }

    pub(super) fn get_mut(&mut self, conn: ConnId) -> Option<&mut Connection> {
        self.open.get_mut(&conn)
    }

    // --- sending ---

    /// Sends one message. A caller that has not read thousands of others is hung up on by [`Connections::next_deaf`].
    pub(super) fn send(&mut self, conn: ConnId, id: u64, body: Response) {
        let Some(open) = self.open.get(&conn) else { return };
        let message = Outgoing {
            id,
            body,
            unread: None,
        };
        if open.outgoing.try_send(message).is_err() {
            warn!(?conn, user = %open.caller.user, "a caller doesn't read: hung up");
            self.deaf.push(conn);
        }
    }

    /// Answers a request. A request without an answer gets refusals and pongs alone: a pong keeps a quiet connection
    /// from looking dead to its caller.
    pub(super) fn answer(&mut self, conn: ConnId, id: u64, body: Response) {
        let always = matches!(body, Response::Refused(_) | Response::Pong);
        if id != 0 || always {
            self.send(conn, id, body);
        }
    }

    /// Tells all who listen to the kernel.
    pub(super) fn tell(&mut self, kernel: &KernelId, event: &Event) {
        let listeners = self.listeners.get(kernel);
        let listeners: Vec<_> = listeners.into_iter().flatten().copied().collect();
        for conn in listeners {
            self.send(conn, 0, Response::Event(event.clone()));
        }
    }

    /// Tells the kernel's fronts; `false` if it has none.
    pub(super) fn tell_fronts(&mut self, kernel: &KernelId, event: &Event) -> bool {
        let role = |conn: &ConnId| self.open.get(conn).map(|open| open.caller.role);
        let listeners = self.listeners.get(kernel).into_iter().flatten().copied();
        let fronts: Vec<_> = listeners.filter(|c| role(c) == Some(Role::Front)).collect();
        for conn in &fronts {
            self.send(*conn, 0, Response::Event(event.clone()));
        }
        !fronts.is_empty()
    }

    /// Sends an order to the pilot's agent. An absent agent is ordered when it reports again: the core compares.
    pub(super) fn order(&mut self, pilot: JobId, order: Order) {
        match self.agents.get(&pilot) {
            Some(conn) => self.send(*conn, 0, Response::Order(order)),
            None => debug!(%pilot, "an order has no agent to go to"),
        }
    }

    /// A caller that leaves its answers unread, to be closed.
    pub(super) fn next_deaf(&mut self) -> Option<ConnId> {
        self.deaf.pop()
    }

    /// Notes a caller that was believed because Slurm could not be asked.
    pub(super) fn believed(&mut self, conn: ConnId) {
        self.believed.push(conn);
    }

    /// Slurm answers again: the believed callers are disconnected, and report anew. Then Slurm is asked.
    pub(super) fn doubt(&mut self) {
        self.deaf.append(&mut self.believed);
    }

    /// Whether answers pile up: the caller asks and doesn't read.
    pub(super) fn does_not_read(&self, conn: ConnId) -> bool {
        let unread = |c: &Connection| c.outgoing.max_capacity() - c.outgoing.capacity();
        self.open.get(&conn).is_some_and(|asks| {
            let its_users = self.open.values().filter(|c| c.caller.uid == asks.caller.uid);
            // Unasked events may pile up on a connection at a standstill.
            let of_user: usize = its_users.map(|c| unread(c).min(UNREAD)).sum();
            unread(asks) >= UNREAD || of_user >= UNREAD_OF_USER
        })
    }

    // --- agents, replicas, listeners ---

    pub(super) fn is_agent(&mut self, conn: ConnId, pilot: JobId) {
        if let Some(open) = self.open.get_mut(&conn) {
            open.pilot = Some(pilot);
            self.agents.insert(pilot, conn);
        }
    }

    pub(super) fn has_agent(&self, pilot: JobId) -> bool {
        self.agents.contains_key(&pilot)
    }

    pub(super) fn has_replica(&mut self, conn: ConnId, replica: ReplicaId) {
        self.listen(conn, &replica.kernel);
        if let Some(open) = self.open.get_mut(&conn) {
            open.replicas.insert(replica);
        }
    }

    /// The replica has another connection, or is gone.
    pub(super) fn replica_left(&mut self, conn: ConnId, replica: &ReplicaId) {
        let Some(open) = self.open.get_mut(&conn) else {
            return;
        };
        open.replicas.remove(replica);
        if open.replicas.iter().all(|r| r.kernel != replica.kernel) {
            open.kernels.remove(&replica.kernel);
            self.drop_listener(conn, &replica.kernel);
        }
    }

    pub(super) fn listen(&mut self, conn: ConnId, kernel: &KernelId) {
        if let Some(open) = self.open.get_mut(&conn) {
            open.kernels.insert(kernel.clone());
            self.listeners.entry(kernel.clone()).or_default().insert(conn);
        }
    }

    /// The kernels whose fronts or replicas are connected.
    pub(super) fn heard(&self) -> impl Iterator<Item = &KernelId> {
        self.listeners.keys()
    }

    pub(super) fn is_heard(&self, kernel: &KernelId) -> bool {
        self.listeners.contains_key(kernel)
    }

    pub(super) fn forget(&mut self, kernel: &KernelId) {
        self.listeners.remove(kernel);
    }

    fn drop_listener(&mut self, conn: ConnId, kernel: &KernelId) {
        if let Some(listeners) = self.listeners.get_mut(kernel) {
            listeners.remove(&conn);
            if listeners.is_empty() {
                self.listeners.remove(kernel);
            }
        }
    }

    // --- bounds ---

    /// Whether another message of this user's may wait for Slurm's word on a seat.
    pub(super) fn may_hold_up(&self, uid: u32) -> bool {
        let theirs = self.open.values().filter(|c| c.caller.uid == uid);
        let waiting: usize = theirs.filter_map(|c| c.held_up.as_ref()).map(VecDeque::len).sum();
        waiting < HELD_UP
    }

    /// Counts a question about the accounting; `false` means that the user has too many open.
    pub(super) fn acct_begins(&mut self, uid: u32) -> bool {
        let open = self.acct_open.entry(uid).or_default();
        if *open >= ACCT_OPEN {
            return false;
        }
        *open += 1;
        true
    }

    pub(super) fn acct_answered(&mut self, uid: u32) {
        if let Some(open) = self.acct_open.get_mut(&uid) {
            *open -= 1;
            if *open == 0 {
                self.acct_open.remove(&uid);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn held_up(&self) -> usize {
        let waiting = self.open.values().filter_map(|c| c.held_up.as_ref());
        waiting.map(VecDeque::len).sum()
    }

    #[cfg(test)]
    pub(super) fn heard_kernels(&self) -> usize {
        self.listeners.len()
    }
}
