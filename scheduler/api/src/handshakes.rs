//! Limit on connections whose callers are still unproven, whatever the proof.
//!
//! The caller accepts and proves. A proof takes milliseconds, so a flood of unproven connections locks nobody out: the
//! flood displaces its own connections first.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use tokio::task::AbortHandle;

/// Tasks that each prove a connection, by source address, the oldest first.
#[derive(Debug)]
pub struct HandshakeLimit {
    most: usize,
    count: usize,
    proving: HashMap<IpAddr, VecDeque<AbortHandle>>,
}

impl HandshakeLimit {
    /// At most so many tasks at a time.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            count: 0,
            proving: HashMap::new(),
        }
    }

    /// Takes in one more. Without room, the address with the most of them loses its oldest.
    pub fn begin(&mut self, from: IpAddr, proving: AbortHandle) {
        if self.count >= self.most {
            self.drop_finished();
        }
        if self.count >= self.most {
            self.displace();
        }
        let queue = self.proving.entry(from).or_default();
        queue.push_back(proving);
        self.count += 1;
    }

    fn drop_finished(&mut self) {
        self.proving.retain(|_, tasks| {
            tasks.retain(|task| !task.is_finished());
            !tasks.is_empty()
        });
        self.count = self.proving.values().map(VecDeque::len).sum();
    }

    fn displace(&mut self) {
        let most = self.proving.values_mut().max_by_key(|tasks| tasks.len());
        if let Some(oldest) = most.and_then(VecDeque::pop_front) {
            oldest.abort();
            self.count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::task::JoinHandle;

    const MOST: usize = 8;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    /// Endless tasks, begun from these addresses in order.
    fn begun(limit: &mut HandshakeLimit, from: impl IntoIterator<Item = u8>) -> Vec<JoinHandle<()>> {
        let begin = |last| {
            let task = tokio::spawn(std::future::pending::<()>());
            limit.begin(address(last), task.abort_handle());
            task
        };
        from.into_iter().map(begin).collect()
    }

    #[tokio::test]
    async fn the_oldest_of_the_unproven_makes_room() {
        let mut limit = HandshakeLimit::new(MOST);
        let mut tasks = begun(&mut limit, [1; MOST + 1]);
        assert_eq!(limit.count, MOST);
        let first = tasks.remove(0);
        assert!(first.await.unwrap_err().is_cancelled());
        assert!(tasks.iter().all(|t| !t.is_finished()));
    }

    #[tokio::test]
    async fn a_flood_from_one_address_displaces_its_own() {
        let mut limit = HandshakeLimit::new(MOST);
        let honest = begun(&mut limit, [2, 3]);
        let mut flood = begun(&mut limit, [1; 100]);
        let left = flood.split_off(100 - (MOST - 2));
        for displaced in flood {
            assert!(displaced.await.unwrap_err().is_cancelled());
        }
        assert!(honest.iter().chain(&left).all(|t| !t.is_finished()));
    }

    #[tokio::test]
    async fn what_has_been_proven_takes_no_room() {
        let mut limit = HandshakeLimit::new(2);
        for _ in 0..10 {
            let done = tokio::spawn(async {});
            limit.begin(address(1), done.abort_handle());
            done.await.unwrap();
        }
        let waiting = begun(&mut limit, [1, 2]);
        tokio::task::yield_now().await;
        assert!(waiting.iter().all(|t| !t.is_finished()));
    }
}
