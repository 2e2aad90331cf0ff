//! Waiting in a select loop for something that may be absent.

use hop_words::time::Timestamp;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// A point of a core's time on the runtime's clock. `now` is the present by the core's clock.
pub fn instant(at: Timestamp, now: Timestamp) -> Instant {
    Instant::now() + Duration::from_micros(at.since(now).0)
}

/// Waits until this time. `None` never comes.
pub async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Waits as `wait` does. `None` never ends.
pub async fn on<T, R>(present: &mut Option<T>, wait: impl AsyncFnOnce(&mut T) -> R) -> R {
    match present {
        Some(present) => wait(present).await,
        None => std::future::pending().await,
    }
}

/// Waits for the next item of a channel; `received` is its `recv()`. A channel whose senders are gone never ends: a select loop
/// would find the end again and again, without a pause.
pub async fn some<T>(received: impl Future<Output = Option<T>>) -> T {
    match received.await {
        Some(item) => item,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;

    #[tokio::test(start_paused = true)]
    async fn a_channel_without_senders_wakes_nobody() {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        sender.send(1).unwrap();
        assert_eq!(some(receiver.recv()).await, 1);
        drop(sender);
        let hour = Duration::from_secs(3600);
        assert!(tokio::time::timeout(hour, some(receiver.recv())).await.is_err());
    }
}
