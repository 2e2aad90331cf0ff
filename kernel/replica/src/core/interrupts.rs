//! The user's interrupts: of the cell in the kernel, or of the first waiting cell while the kernel has none.

use super::answers::Verdict;
use super::lease::Lease;
use super::{Core, Output, Phase, wording};

impl Core {
    /// The user interrupts the kernel as with a signal.
    pub(super) fn interrupt(&mut self) {
        if !self.interrupt_waiting() {
            self.interrupt_kernel();
        }
    }

    /// Interrupts the first cell where the kernel has none: the cell waits for its lease, for the kernel's process, for
    /// its former run's end, or for the front's word. Returns whether the interrupt is dealt with: the kernel must not
    /// get the signal then. The signal would strike the user's next cell, since our answer to this cell arrives sooner.
    /// The signal would also break the start of a process: the next cell would never be answered.
    pub(super) fn interrupt_waiting(&mut self) -> bool {
        if let Some(cell) = self.cells.seeking().cloned() {
            self.lease = Lease::None;
            self.withdraw(&cell);
            self.fail(&cell, Verdict::Interrupted(wording::ITS_LEASE));
            return true;
        }
        let held = self.cells.held().next().cloned();
        if let Some(cell) = held.filter(|_| self.cells.running().is_none()) {
            let retries = self.attempts.waiting.as_ref().is_some_and(|w| w.cell == cell);
            let what = match retries {
                true => wording::ITS_FORMER_RUN,
                false => wording::ITS_KERNEL,
            };
            self.fail(&cell, Verdict::Interrupted(what));
            return true;
        }
        matches!(self.phase, Phase::Starting { .. } | Phase::Preparing { .. })
    }

    pub(super) fn interrupt_kernel(&mut self) {
        if matches!(self.phase, Phase::Up) {
            self.cells.note_interrupt(self.now);
            self.out.push(Output::InterruptKernel { why: None });
        }
        self.standing_interrupted();
    }
}
