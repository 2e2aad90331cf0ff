//! Kernels that `hopd` asks to leave their node or seat: which of them can, and each again only after a pause.

use super::Scheduler;
use super::registry::Registered;
use hop_words::id::KernelId;
use hop_words::time::{Span, Timestamp};
use std::collections::HashMap;

/// Pause before a kernel that could not be moved is asked again.
const AGAIN: Span = Span::from_secs(60);

/// When each kernel was last asked to leave.
#[derive(Debug, Default)]
pub(super) struct Asked(HashMap<KernelId, Timestamp>);

impl Asked {
    /// Whether the kernel may be asked now; if so, notes the question.
    pub(super) fn may_ask(&mut self, kernel: &KernelId, now: Timestamp) -> bool {
        let rests = |at: &Timestamp| now.since(*at) < AGAIN;
        if self.0.get(kernel).is_some_and(rests) {
            return false;
        }
        self.0.insert(kernel.clone(), now);
        true
    }

    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}

impl Scheduler {
    /// The kernel's executor, if nothing speaks against its moving now.
    pub(super) fn free_to_leave(&self, kernel: &KernelId) -> Option<&Registered> {
        let (_, executor) = self.registry.executor(kernel)?;
        let free = executor.conn.is_some() && executor.fixed().is_none();
        let busy = self.kept.moving(kernel).is_some() || self.kept.saves_since(kernel).is_some();
        (free && !busy).then_some(executor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_could_not_leave_is_asked_again_after_a_while() {
        let mut asked = Asked::default();
        let kernel = KernelId::from("k");
        assert!(asked.may_ask(&kernel, Timestamp(0)));
        assert!(!asked.may_ask(&kernel, Timestamp(1)));
        assert!(asked.may_ask(&kernel, Timestamp(0) + AGAIN));
    }
}
