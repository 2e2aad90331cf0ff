//! Waiting in a select loop for something that may be absent.

use tokio::time::{Instant, sleep_until};

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
