//! Where those wait who have connected and have still to prove who they are: so many at a time, whatever they prove it
//! with. Accepting and proving is the caller's.

use std::collections::VecDeque;
use tokio::task::{AbortHandle, JoinHandle};

/// Tasks that each prove one connection, the oldest first. The newest takes the place of the oldest: to prove oneself
/// takes milliseconds, so a flood of strangers keeps nobody out, nor uses up descriptors.
#[derive(Debug)]
pub struct Porch {
    most: usize,
    proving: VecDeque<AbortHandle>,
}

impl Porch {
    /// For at most so many.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            proving: VecDeque::new(),
        }
    }

    /// Takes one in; shows the oldest the door if there is no room.
    pub fn enter(&mut self, proving: &JoinHandle<()>) {
        if self.proving.len() >= self.most {
            self.proving.retain(|task| !task.is_finished());
        }
        if self.proving.len() >= self.most
            && let Some(oldest) = self.proving.pop_front()
        {
            oldest.abort();
        }
        self.proving.push_back(proving.abort_handle());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_of_the_unproven_makes_room() {
        const MOST: usize = 8;
        let mut porch = Porch::new(MOST);
        let mut tasks = Vec::new();
        for _ in 0..=MOST {
            let task = tokio::spawn(std::future::pending::<()>());
            porch.enter(&task);
            tasks.push(task);
        }
        assert_eq!(porch.proving.len(), MOST);
        let first = tasks.remove(0);
        assert!(first.await.unwrap_err().is_cancelled());
        assert!(tasks.iter().all(|t| !t.is_finished()));
    }
}
