//! The beginning and the end of a kernel: start, state, end or death.

use super::{Core, Exit, Hopd, Output, Phase, START, wording};
use hop_api::message::Request as ToHopd;
use hop_protocol::message::{Note, Over};
use hop_words::time::Span;

impl Core {
    pub(super) fn kernel_up(&mut self, pid: u32) {
        if let Phase::Starting { .. } = self.phase {
            let early = self.phase.take_early();
            self.phase = Phase::Preparing { early, pid };
            self.prepare();
        }
    }

    /// The kernel has its state, and takes requests.
    pub(super) fn up(&mut self) {
        let Phase::Preparing { pid, .. } = self.phase else {
            return;
        };
        let early = self.phase.take_early();
        self.phase = Phase::Up;
        self.note(Note::KernelUp { pid });
        if matches!(self.hopd, Hopd::Up) && self.durable.is_some() {
            self.register();
        }
        for (channel, identity, message) in early {
            self.request(channel, identity, message);
        }
        self.send_early();
    }

    /// `hopd` learns the notebook's other name.
    pub(super) fn renamed(&mut self, name: String) {
        self.identity.launch.name = name;
        if matches!(self.hopd, Hopd::Up) {
            self.register();
        }
    }

    pub(super) fn tick(&mut self) {
        self.tell_long_wait();
        self.attempts_tick();
        self.missing_tick();
        self.standing_tick();
        self.durable_tick();
        if self.kill_at.take_if(|at| *at <= self.now).is_some() {
            self.out.push(Output::KillKernel);
        }
        if let Phase::Starting { until, .. } = &mut self.phase
            && *until <= self.now
        {
            // The end is told once; a process that can't be killed doesn't come up either.
            *until = self.now + START;
            self.end_kernel(format!(
                "the kernel didn't come up within {} s",
                START.0 / 1_000_000
            ));
        }
    }

    /// Ends the kernel, for a reason not told by the process's end.
    pub(super) fn end_kernel(&mut self, reason: String) {
        self.ended_by = Some(reason);
        self.out.push(Output::KillKernel);
    }

    /// The seat's step is being ended.
    pub(super) fn terminated(&mut self, grace: Span) {
        let reason = "its seat was cancelled or reached its time limit";
        if self.durable.is_some() {
            return self.leave_seat(reason.into(), grace);
        }
        self.end_kernel(format!("the kernel's step was ended ({reason})"));
    }

    /// Nobody wants the kernel any more.
    pub(super) fn orphaned(&mut self, reason: String) {
        if matches!(self.phase, Phase::Over) {
            return;
        }
        if self.is_found_again() && (self.outlives_process() || self.is_leaving()) {
            return self.sleep_as_an_orphan(reason);
        }
        // The server may end before its front does, which else closes a kernel without a state.
        if !self.has_state() {
            self.tell_ended();
        }
        self.out.push(Output::KillKernel);
        self.over(wording::ended_unsaved(&reason));
    }

    /// The kernel's process is over. The kernel goes on in another process, or the front is told the reason.
    pub(super) fn exited(&mut self, exit: Exit) {
        let wanted = !self.shutting_down && self.ended_by.is_none();
        if wanted && self.outlives_process() && !self.fails_to_start(&exit) {
            return self.come_back(exit);
        }
        if wanted && self.is_leaving() {
            // What is saved goes on elsewhere.
            return self.go();
        }
        let starting = matches!(self.phase, Phase::Starting { .. } | Phase::Preparing { .. });
        if matches!(self.phase, Phase::Over) {
            return;
        }
        let reason = self.reason_of(exit);
        let over = if self.shutting_down {
            Over::Shutdown
        } else if starting {
            Over::NotStarted { reason }
        } else {
            Over::Died { reason }
        };
        self.say_over(over);
    }

    /// Whether the end of a process says that its kernel can't start: the process ended by itself before it was heard,
    /// and the kernel has no state. A process killed by somebody, or once heard, would come up another time.
    fn fails_to_start(&self, exit: &Exit) -> bool {
        matches!(self.phase, Phase::Starting { .. }) && !exit.killed && !self.has_state()
    }

    pub(super) fn reason_of(&mut self, exit: Exit) -> String {
        let doomed = self.gpu.doomed.take().filter(|_| exit.killed);
        self.ended_by.take().or(doomed).unwrap_or(exit.reason)
    }

    /// The kernel is dead for good.
    pub(super) fn over(&mut self, reason: String) {
        self.say_over(Over::Died { reason });
    }

    fn say_over(&mut self, over: Over) {
        // A client that ends or restarts a kernel decides on the state, with the front.
        let leaves_state = !matches!(over, Over::Shutdown) && self.has_state();
        self.phase = Phase::Over;
        if leaves_state {
            self.tell_kept();
        }
        self.note(Note::KernelOver { over });
        self.disband();
        self.out.push(Output::Leave);
    }

    /// The kernel is dead, and its state stays. A kernel that its notebook finds again counts as one that hibernates:
    /// nothing starts it, and its user can forget it. Without a word `hopd` would list the kernel as starting for a day.
    fn tell_kept(&mut self) {
        // Else the lease of a running cell would end as one that was given back.
        self.forget_process();
        if !self.is_found_again() {
            return self.tell_ended();
        }
        let (kernel, tenure) = self.office();
        self.tell_hopd(ToHopd::Hibernated { kernel, tenure });
    }

    fn tell_ended(&mut self) {
        let (kernel, tenure) = self.office();
        self.tell_hopd(ToHopd::KernelEnded { kernel, tenure });
    }
}
