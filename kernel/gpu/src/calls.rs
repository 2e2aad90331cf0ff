//! Making the machine's calls for real, each with a deadline.
//!
//! A driver call without a return is left behind on a thread. Only the end of the process ends the call:
//! long-lived processes run `hop gpu` as a child.

use crate::Pid;
use crate::driver::{DriverError, GpuPair, Step};
use crate::inside::{Agent, Op};
use crate::inspect::{STATE, Site};
use crate::machine::{Answer, Call, Machine, Next, Outcome};
use crate::proof;
use crate::record::Record;
use crate::reserve::{self, Means, Want};
use hop_words::deadline::within;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long after a checkpoint NVML and `/proc` may still show what is going away.
const SETTLE: Duration = Duration::from_secs(2);
/// How long the running kernels of a process may take before a lock gives up.
const LOCK: Duration = Duration::from_secs(10);
/// No copy is slower than this, in bytes a second; deadlines grow with the amount to be moved.
const SLOWEST: u64 = 200 << 20;

/// What happened, call by call.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub struct Log {
    pub calls: Vec<(Call, f64)>,
    /// What the agent moved last.
    pub moved: Option<crate::inside::Moved>,
}

impl Log {
    /// Seconds over all calls of one kind.
    pub fn seconds(&self, call: Call) -> f64 {
        self.calls
            .iter()
            .filter(|(c, _)| *c == call)
            .map(|(_, s)| s)
            .sum()
    }
}

/// Makes the calls on one process.
pub struct Calls<'a> {
    site: &'a Site,
    record: &'a Record,
    agent: Agent,
    pairs: Vec<GpuPair>,
    /// Starts a process that ends in [`reserve::hold`].
    reserver: &'a dyn Fn(Want) -> Command,
    progress: &'a dyn Fn(Call),
    held: Vec<reserve::Held>,
    pub log: Log,
}

impl std::fmt::Debug for Calls<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Calls")
            .field("record", &self.record)
            .field("log", &self.log)
            .finish_non_exhaustive()
    }
}

impl<'a> Calls<'a> {
    pub fn new(
        site: &'a Site,
        record: &'a Record,
        uid: u32,
        pairs: Vec<GpuPair>,
        reserver: &'a dyn Fn(Want) -> Command,
        progress: &'a dyn Fn(Call),
    ) -> Self {
        let agent = site.agent(record.pid, uid);
        Self {
            site,
            record,
            agent,
            pairs,
            reserver,
            progress,
            held: Vec::new(),
            log: Log::default(),
        }
    }

    /// Makes calls until the machine has ended.
    pub fn drive(&mut self, (mut machine, mut next): (Machine, Next)) -> Outcome {
        loop {
            match next {
                Next::End(outcome) => return outcome,
                Next::Call(call) => {
                    (self.progress)(call);
                    let start = Instant::now();
                    let answer = self.make(call);
                    self.log.calls.push((call, start.elapsed().as_secs_f64()));
                    next = machine.next(answer);
                }
            }
        }
    }

    fn make(&mut self, call: Call) -> Answer {
        match call {
            Call::CopyOut => self.ask(Op::Out),
            Call::CopyIn => self.ask(Op::In),
            Call::Prove => self.prove(),
            Call::Reserve => self.reserve(),
            Call::State => self.step(Step::State, self.site.sources.limit(STATE)),
            Call::Lock => {
                if let Err(why) = self.guard() {
                    return Answer::Failed(why);
                }
                let sources = &self.site.sources;
                let (rest, answer) = (sources.limit(LOCK), sources.limit(STATE));
                let timeout_ms = u32::try_from(rest.as_millis()).unwrap_or(u32::MAX);
                self.step(Step::Lock { timeout_ms }, rest + answer)
            }
            Call::Checkpoint => self.step(
                Step::Checkpoint,
                self.moving(self.record.device_bytes.unwrap_or(0)),
            ),
            Call::Restore => {
                self.held.clear();
                let pairs = self.pairs.clone();
                self.step(
                    Step::Restore { pairs },
                    self.moving(self.record.device_bytes.unwrap_or(0)),
                )
            }
            Call::Unlock => {
                let answer = self.step(Step::Unlock, self.site.sources.limit(LOCK));
                if answer == Answer::Done {
                    self.unguard();
                }
                answer
            }
        }
    }

    /// If the driver takes everything and an agent exists, the agent must guard the user's code: a CUDA call in a
    /// locked process waits for ever. In the middle of a cell just that is wanted.
    fn guard(&self) -> Result<(), String> {
        use crate::inside::AskError;
        if self.record.halves.inside || self.record.mid_cell {
            return Ok(());
        }
        match self.agent.do_it(Op::Guard, STATE) {
            Ok(_) | Err(AskError::Nobody { .. }) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The device is usable again, so the guard may let go. A process without an agent has none.
    pub fn unguard(&self) {
        if !self.record.halves.inside && !self.record.mid_cell {
            let _ = self.agent.do_it(Op::Unguard, STATE);
        }
    }

    /// The deadline of moving so many bytes.
    fn moving(&self, bytes: u64) -> Duration {
        self.site
            .sources
            .deadline
            .max(Duration::from_secs(bytes / SLOWEST))
    }

    fn ask(&mut self, op: Op) -> Answer {
        match self.agent.do_it(op, self.moving(self.record.frameworks_bytes)) {
            Ok(moved) => {
                self.log.moved = Some(moved);
                Answer::Done
            }
            Err(error @ crate::inside::AskError::TimedOut(_)) => Answer::TimedOut(error.to_string()),
            Err(error) => Answer::Failed(error.to_string()),
        }
    }

    fn step(&self, step: Step, deadline: Duration) -> Answer {
        let driver = match &self.site.driver {
            Ok(driver) => Arc::clone(driver),
            Err(why) => return Answer::Failed(why.clone()),
        };
        let pid = self.record.pid;
        if self.site.sources.procs.start_time(pid).ok() != Some(self.record.start_time) {
            return Answer::Failed(format!("process {pid} has ended"));
        }
        let asked = step.clone();
        match within(deadline, move || driver.step(pid, &asked)) {
            Some(Ok(state)) if step == Step::State => Answer::State(state),
            Some(Ok(_)) => Answer::Done,
            Some(Err(error @ DriverError::TimedOut { .. })) => Answer::TimedOut(error.to_string()),
            Some(Err(error)) => Answer::Failed(error.to_string()),
            None => {
                let call = step.name().to_owned();
                Answer::TimedOut(
                    DriverError::TimedOut {
                        call,
                        after: deadline,
                    }
                    .to_string(),
                )
            }
        }
    }

    /// Looks until nothing is left, or for [`SETTLE`].
    fn prove(&self) -> Answer {
        let start = Instant::now();
        loop {
            let left = self.left();
            if left.is_empty() {
                return Answer::Done;
            }
            if start.elapsed() > SETTLE {
                return Answer::Failed(format!("the device isn't empty of it: {left}"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Device memory and files still in use by the process and its children.
    pub fn left(&self) -> proof::Left {
        let procs = &self.site.sources.procs;
        let sample = self.site.sample_or_gap();
        proof::look(&procs.tree(self.record.pid), procs, sample.as_ref())
    }

    fn reserve(&mut self) -> Answer {
        let sample = self.site.sample();
        for want in self.wants() {
            match reserve::means(want, sample.as_ref()) {
                Ok(Means::Free) => {}
                Err(error) => return Answer::Failed(error.to_string()),
                Ok(Means::Hold) => match reserve::Held::by((self.reserver)(want), self.site.sources.deadline)
                {
                    Ok(held) => self.held.push(held),
                    Err(error) => return Answer::Failed(error.to_string()),
                },
            }
        }
        Answer::Done
    }

    /// Each device's share of the process's memory. NVML tells them apart only while the process runs, so each counts
    /// with an even share.
    fn wants(&self) -> Vec<Want> {
        let devices = &self.record.devices;
        let Some(bytes) = self.record.device_bytes else {
            return Vec::new();
        };
        let share = bytes.div_ceil(devices.len().max(1) as u64);
        let place = |uuid| self.pairs.iter().find(|p| p.old == uuid).map_or(uuid, |p| p.new);
        devices
            .iter()
            .map(|d| Want {
                device: place(d.uuid),
                bytes: share,
            })
            .collect()
    }

    pub fn pid(&self) -> Pid {
        self.record.pid
    }
}
