//! Calls without a certain return, with a deadline. The caller decides the meaning of a missing answer.

use std::sync::mpsc;
use std::time::Duration;

/// Runs `work` on a separate thread; `None` means not done in time.
pub fn within<T: Send + 'static>(deadline: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        // Nobody listens any longer when the deadline is over.
        let _ = tell.send(work());
    });
    told.recv_timeout(deadline).ok()
}
