//! Queue of the connections' messages to the scheduler's task, in a fair order.
//!
//! Each user has a queue of their own. The next message comes from the user with the least of the task's time so far:
//! a sender of costly or many messages waits behind everybody else. Agents go first, since leases depend on them.
//! Order within a user's queue, and so within a connection, is kept.

use crate::caller::Incoming;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Messages of one user that may wait.
const ROOM: usize = 64;
/// Users whose time is remembered while they are silent.
const REMEMBERED: usize = 10_000;

#[derive(Debug)]
pub(crate) struct Inbox {
    lanes: Mutex<Lanes>,
    filled: Notify,
}

#[derive(Debug)]
struct Lanes {
    /// The service account, whose agents go first.
    first: u32,
    lanes: HashMap<u32, Lane>,
    /// Users with messages, by the time spent on them.
    ready: BTreeSet<(Duration, u32)>,
    /// Time spent before on the user served last: the least value for users who come back.
    floor: Duration,
}

#[derive(Debug)]
struct Lane {
    queue: VecDeque<(Incoming, OwnedSemaphorePermit)>,
    room: Arc<Semaphore>,
    spent: Duration,
}

impl Inbox {
    pub(crate) fn new(service_uid: u32) -> Self {
        let lanes = Lanes {
            first: service_uid,
            lanes: HashMap::new(),
            ready: BTreeSet::new(),
            floor: Duration::ZERO,
        };
        Self {
            lanes: Mutex::new(lanes),
            filled: Notify::new(),
        }
    }

    /// Brings something from a user; waits while too much of theirs waits already.
    pub(crate) async fn push(&self, uid: u32, incoming: Incoming) {
        let room = self.lanes().lane(uid).room.clone();
        let Ok(permit) = room.acquire_owned().await else {
            return;
        };
        self.lanes().push(uid, incoming, permit);
        self.filled.notify_one();
    }

    /// The next message in turn, and its user's uid. Waits for a message; cancel-safe.
    pub(crate) async fn next(&self) -> (u32, Incoming) {
        loop {
            let filled = self.filled.notified();
            if let Some(next) = self.lanes().pop() {
                return next;
            }
            filled.await;
        }
    }

    /// Records the time spent on this user's last message.
    pub(crate) fn spent(&self, uid: u32, time: Duration) {
        self.lanes().spent(uid, time);
    }

    fn lanes(&self) -> std::sync::MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lanes {
    fn lane(&mut self, uid: u32) -> &mut Lane {
        if self.lanes.len() >= REMEMBERED && !self.lanes.contains_key(&uid) {
            self.lanes
                .retain(|_, lane| !lane.queue.is_empty() || Arc::strong_count(&lane.room) > 1);
        }
        self.lanes.entry(uid).or_insert_with(|| Lane {
            queue: VecDeque::new(),
            room: Arc::new(Semaphore::new(ROOM)),
            spent: Duration::ZERO,
        })
    }

    fn push(&mut self, uid: u32, incoming: Incoming, permit: OwnedSemaphorePermit) {
        let floor = self.floor;
        let lane = self.lane(uid);
        if lane.queue.is_empty() {
            // Silence is no credit.
            lane.spent = lane.spent.max(floor);
            let entry = (lane.spent, uid);
            lane.queue.push_back((incoming, permit));
            self.ready.insert(entry);
        } else {
            lane.queue.push_back((incoming, permit));
        }
    }

    fn pop(&mut self) -> Option<(u32, Incoming)> {
        let first = self.lanes.get(&self.first).map(|lane| (lane.spent, self.first));
        let first = first.filter(|entry| self.ready.contains(entry));
        let (spent, uid) = first.or_else(|| self.ready.first().copied())?;
        if first.is_none() {
            self.floor = spent;
        }
        let lane = self.lanes.get_mut(&uid)?;
        let (incoming, _permit) = lane.queue.pop_front()?;
        if lane.queue.is_empty() {
            self.ready.remove(&(spent, uid));
        }
        Some((uid, incoming))
    }

    fn spent(&mut self, uid: u32, time: Duration) {
        let Some(lane) = self.lanes.get_mut(&uid) else {
            return;
        };
        let was_ready = self.ready.remove(&(lane.spent, uid));
        lane.spent += time;
        if was_ready {
            self.ready.insert((lane.spent, uid));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::ConnId;

    fn closed(conn: u64) -> Incoming {
        Incoming::Closed { conn: ConnId(conn) }
    }

    fn number(incoming: &Incoming) -> u64 {
        match incoming {
            Incoming::Closed { conn } => conn.0,
            other => panic!("{other:?}"),
        }
    }

    const AGENTS: u32 = 0;
    const MS: Duration = Duration::from_millis(1);

    /// Serves up to `count` queued messages; each message of a user costs `cost(uid)`.
    async fn served(inbox: &Inbox, count: usize, cost: impl Fn(u32) -> Duration) -> Vec<(u32, u64)> {
        let mut order = Vec::new();
        for _ in 0..count {
            let (uid, incoming) = inbox.next().await;
            inbox.spent(uid, cost(uid));
            order.push((uid, number(&incoming)));
        }
        order
    }

    #[tokio::test]
    async fn each_user_has_their_turn_and_their_own_order() {
        let inbox = Inbox::new(AGENTS);
        for n in 0..10 {
            inbox.push(1, closed(n)).await;
        }
        inbox.push(2, closed(20)).await;
        inbox.push(2, closed(21)).await;
        let order = served(&inbox, 5, |_| MS).await;
        assert_eq!(order, [(1, 0), (2, 20), (1, 1), (2, 21), (1, 2)]);
    }

    #[tokio::test]
    async fn who_takes_much_time_waits_behind_who_takes_little() {
        let inbox = Inbox::new(AGENTS);
        for n in 0..20 {
            inbox.push(1, closed(n)).await;
            inbox.push(2, closed(n)).await;
        }
        let cost = |uid| if uid == 1 { 10 * MS } else { MS };
        let order = served(&inbox, 12, cost).await;
        let first = order.iter().filter(|(uid, _)| *uid == 1).count();
        assert_eq!(first, 2, "{order:?}");
    }

    #[tokio::test]
    async fn agents_go_first() {
        let inbox = Inbox::new(AGENTS);
        inbox.push(1, closed(1)).await;
        inbox.push(AGENTS, closed(2)).await;
        inbox.push(AGENTS, closed(3)).await;
        let order = served(&inbox, 3, |_| MS).await;
        assert_eq!(order, [(AGENTS, 2), (AGENTS, 3), (1, 1)]);
    }

    #[tokio::test]
    async fn silence_is_no_credit() {
        let inbox = Inbox::new(AGENTS);
        for n in 0..40 {
            inbox.push(1, closed(n)).await;
        }
        served(&inbox, 20, |_| 10 * MS).await;
        // Somebody new goes next, but not for the next 200 ms.
        for n in 0..40 {
            inbox.push(2, closed(n)).await;
        }
        let order = served(&inbox, 10, |_| 10 * MS).await;
        let second = order.iter().filter(|(uid, _)| *uid == 2).count();
        assert!((5..=6).contains(&second), "{order:?}");
    }

    #[tokio::test]
    async fn a_full_queue_holds_up_its_own_user_alone() {
        let inbox = Arc::new(Inbox::new(AGENTS));
        for n in 0..ROOM as u64 {
            inbox.push(1, closed(n)).await;
        }
        let waits = inbox.clone();
        let more = tokio::spawn(async move { waits.push(1, closed(999)).await });
        inbox.push(2, closed(7)).await;
        tokio::task::yield_now().await;
        assert!(!more.is_finished());
        served(&inbox, 2, |_| MS).await;
        more.await.unwrap();
        let rest = served(&inbox, ROOM, |_| MS).await;
        assert_eq!(rest.last(), Some(&(1, 999)));
    }
}
