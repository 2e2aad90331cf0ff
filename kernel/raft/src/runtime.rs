//! The runtime that openraft sees: Tokio's, without the tick.
//!
//! openraft 0.9 wakes a task of each member at one and a half heartbeat intervals, even with ticks disabled
//! (`core/tick.rs`). 300 quiet groups of three would cost two percent of a core for nothing. Only this task asks for
//! [`AsyncRuntime::sleep_until`]; the test below notices should a later release differ.

use openraft::{AsyncRuntime, OptionalSend, TokioRuntime};
use std::time::Duration;

/// Longer than any seat lives.
const NEVER: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Tokio, with a tick that never comes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tickless;

impl AsyncRuntime for Tickless {
    type JoinError = <TokioRuntime as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <TokioRuntime as AsyncRuntime>::Sleep;
    type Instant = <TokioRuntime as AsyncRuntime>::Instant;
    type TimeoutError = <TokioRuntime as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = <TokioRuntime as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = <TokioRuntime as AsyncRuntime>::ThreadLocalRng;
    type OneshotSender<T: OptionalSend> = <TokioRuntime as AsyncRuntime>::OneshotSender<T>;
    type OneshotReceiver<T: OptionalSend> = <TokioRuntime as AsyncRuntime>::OneshotReceiver<T>;
    type OneshotReceiverError = <TokioRuntime as AsyncRuntime>::OneshotReceiverError;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        TokioRuntime::spawn(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        TokioRuntime::sleep(duration)
    }

    fn sleep_until(_: Self::Instant) -> Self::Sleep {
        TokioRuntime::sleep(NEVER)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Self::Instant,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout_at(deadline, future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        TokioRuntime::is_panic(join_error)
    }

    fn thread_rng() -> Self::ThreadLocalRng {
        TokioRuntime::thread_rng()
    }

    fn oneshot<T>() -> (Self::OneshotSender<T>, Self::OneshotReceiver<T>)
    where
        T: OptionalSend,
    {
        TokioRuntime::oneshot()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Member, Opening, Transport, Unreachable};
    use bytes::Bytes;
    use hop_log::State;
    use hop_wal::{Options, Wal};
    use hop_words::id::Incarnation;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::runtime::Handle;

    struct Nobody;

    impl Transport for Nobody {
        async fn ask(&self, _: Incarnation, _: Bytes) -> Result<Bytes, Unreachable> {
            Err(Unreachable)
        }
    }

    #[tokio::test]
    async fn a_quiet_member_wakes_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let wal = Wal::open(dir.path(), Options::default()).unwrap();
        let member = Member::open(Opening {
            wal: &wal,
            name: "kernel.0",
            me: Incarnation(1),
            transport: Arc::new(Nobody),
        });
        let member = member.await.unwrap();
        member.found(&State::new()).await.unwrap();
        // Not before: the disk takes its time by another clock.
        tokio::time::pause();
        let woken = || Handle::current().metrics().worker_park_count(0);
        let before = woken();
        tokio::time::sleep(Duration::from_secs(1000)).await;
        assert!(woken() - before < 20, "{} times in 1000 s", woken() - before);
    }
}
