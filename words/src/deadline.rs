//! Calls without a certain return, with a deadline. The caller decides the meaning of a missing answer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// The deadline after a call that has not returned.
const MOMENT: Duration = Duration::from_millis(100);

/// Most calls without a return, each with a thread that nothing ends.
const WITHOUT_RETURN: usize = 8;

/// Calls to one thing that may hang, like a file system or the user database. The first call that hangs waits its
/// time; later ones wait for a moment only, until a call has returned.
#[derive(Debug)]
pub struct Patience {
    deadline: Duration,
    without_return: AtomicUsize,
}

impl Patience {
    pub const fn of(deadline: Duration) -> Self {
        Self {
            deadline,
            without_return: AtomicUsize::new(0),
        }
    }

    /// As [`within`], with a deadline that depends on earlier calls.
    pub fn within<T: Send + 'static>(&'static self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let deadline = match self.without_return.load(Ordering::Relaxed) {
            0 => self.deadline,
            n if n < WITHOUT_RETURN => MOMENT,
            _ => return None,
        };
        // Without a place for an answer that nobody takes: a failed sending shows that the caller has given up.
        let (tell, told) = mpsc::sync_channel(0);
        std::thread::spawn(move || {
            if tell.send(work()).is_err() {
                self.without_return.fetch_sub(1, Ordering::Relaxed);
            }
        });
        match told.recv_timeout(deadline) {
            Ok(answer) => Some(answer),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                self.without_return.fetch_add(1, Ordering::Relaxed);
                None
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => None,
        }
    }
}

/// Runs `work` on a separate thread; `None` means not done in time.
pub fn within<T: Send + 'static>(deadline: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        // Nobody listens any longer when the deadline is over.
        let _ = tell.send(work());
    });
    told.recv_timeout(deadline).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    static PATIENCE: Patience = Patience::of(Duration::from_secs(2));

    #[test]
    fn one_call_waits_for_what_hangs_and_the_next_ones_do_not() {
        assert_eq!(PATIENCE.within(|| 1), Some(1));
        let (end, ends) = mpsc::channel::<()>();
        let hangs = move || ends.recv().is_ok();
        assert_eq!(PATIENCE.within(hangs), None);
        let asked = Instant::now();
        let slow = || std::thread::sleep(Duration::from_secs(1));
        for _ in 1..WITHOUT_RETURN {
            assert_eq!(PATIENCE.within(slow), None);
        }
        assert_eq!(PATIENCE.within(|| 1), None, "no thread more");
        assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
        drop(end);
        let returned = |_| {
            std::thread::sleep(Duration::from_millis(100));
            PATIENCE.without_return.load(Ordering::Relaxed) == 0
        };
        assert!((0..100).any(returned));
        assert_eq!(PATIENCE.within(|| std::thread::sleep(3 * MOMENT)), Some(()));
    }
}
