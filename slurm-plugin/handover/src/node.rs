//! Registration, handover and take-back on one node: the thin shell round [`crate::decide`].
//!
//! Runs as root in whatever slurmstepd has a callback, for a moment each; what must outlive it is in
//! [`crate::store`]. Order on disk: a lease is recorded before anything is opened, and forgotten after everything
//! is closed and no process holds it, so a process killed at any point leaves a record that says what to undo.

use crate::bpf::Number;
use crate::cgroup::{self, Mounts, Placement};
use crate::cores;
use crate::count::{BPF_DIR, Counter};
use crate::cpuset::CpuSet;
use crate::decide::{self, Arrival, Before, LiveProcess, Rules};
use crate::options::Isolation;
use crate::probe::{self, DeviceFile};
use crate::proc::{self, Membership};
use crate::record::{
    Agent, DeviceRecord, DeviceState, KernelCgroup, KernelRecord, LeaseRecord, ProcessId, StepKey,
};
use crate::release::{DYING, Release, Released, end_all};
use crate::store::{Lock, Store, StoreError};
use crate::token::{
    BlockedDevice, Device, HandedOver, Hold, Holder, Lend, Level, Look, Refusal, Standing, TakenBack, Token,
};
use hop_words::clock::now;
use hop_words::error::chain;
use hop_words::id::{Epoch, GpuIndex, JobId, NodeName};
use hop_words::process::start_time;
use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A longer grace is not believed: the step's end would be held up, and Slurm drains the node after a minute.
const MAX_GRACE: Duration = Duration::from_secs(30);
/// How long a step waits for another that works on the same device or kernel: longer than any take-back.
const LOCK_PATIENCE: Duration = Duration::from_secs(MAX_GRACE.as_secs() + DYING.as_secs() + 5);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Time for another look at a blocked device: a request shan't wait long for another lease's holder.
const BLOCKED_AGAIN: Duration = Duration::from_millis(500);

/// The plugin's settings for the node.
#[derive(Debug, Clone)]
pub struct Site {
    pub run_dir: PathBuf,
    pub node: String,
    pub service_uid: u32,
    /// Programs outside all jobs that may hold devices.
    pub ignore_holders: Vec<String>,
    pub isolation: Isolation,
    /// End nobody after a lease.
    pub dry_run: bool,
}

/// Why a node's records and cgroups can't be worked with.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("the records can't be used")]
    Store(#[from] StoreError),
    #[error("the cgroup mounts can't be read")]
    Mounts(#[source] std::io::Error),
    #[error("the kernel can't be confined")]
    Cgroup(#[from] cgroup::CgroupError),
    #[error("the counting programs refuse the kernel")]
    Counter(#[source] std::io::Error),
    #[error("process {pid} is gone")]
    Gone { pid: u32 },
}

/// Whose word a take-back rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    /// What the lease's level can prove.
    Ours,
    /// Where the count was lost, an operator accepts that nobody is seen to hold.
    Operators,
}

/// The major number of devices of which nothing is known; Linux gives it to none.
const UNKNOWN: u32 = 0;

/// Those of the devices that are known.
fn numbers(devices: &[Device]) -> Vec<Number> {
    let known = devices.iter().map(Number::of);
    known.filter(|n| n.major != UNKNOWN).collect()
}

/// One node, as root sees it.
#[derive(Debug)]
pub struct Node {
    site: Site,
    store: Store,
    mounts: Mounts,
    /// Opened on first use; else the reason why this Linux can't count.
    counter: OnceCell<Result<Counter, String>>,
}

fn refused(what: &'static str) -> impl FnOnce(&dyn std::error::Error) -> Refusal {
    move |e| Refusal::Failed {
        what: what.to_owned(),
        detail: chain(e),
    }
}

impl Node {
    /// # Errors
    /// The run directory can't be made or trusted, or the cgroup mounts can't be read.
    pub fn open(site: Site) -> Result<Self, NodeError> {
        let store = Store::open(&site.run_dir, &site.node)?;
        let mounts = Mounts::of_self().map_err(NodeError::Mounts)?;
        Ok(Self {
            site,
            store,
            mounts,
            counter: OnceCell::new(),
        })
    }

    fn counter(&self) -> Result<&Counter, &str> {
        let open = || Counter::open(Path::new(BPF_DIR)).map_err(|e| chain(&e));
        self.counter.get_or_init(open).as_ref().map_err(String::as_str)
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Registers a kernel's step and confines its task, before it runs the user's program.
    ///
    /// # Errors
    /// The task stays where Slurm put it, without any device, and no lease will reach it.
    pub fn register(&self, key: StepKey, uid: u32, pid: u32) -> Result<KernelRecord, NodeError> {
        let _lock = self.store.lock("cgroups", LOCK_PATIENCE)?;
        self.sweep();
        let start_time = start_time(pid).ok_or(NodeError::Gone { pid })?;
        let (cgroup, denied) = cgroup::confine(&self.mounts, &self.site.node, key, uid, pid)?;
        let group = cgroup::group(&self.mounts, &cgroup);
        if let (Some(group), Ok(counter)) = (group, self.counter()) {
            counter.admit(group).map_err(NodeError::Counter)?;
        }
        let record = KernelRecord {
            key,
            uid,
            process: ProcessId { pid, start_time },
            cgroup,
            group,
            denied,
        };
        self.store.put_kernel(&record)?;
        self.widen_again(key.job)?;
        Ok(record)
    }

    /// Kernels of one seat share its job's cpuset on v2, which is read and written back. Taken last of all locks.
    fn lock_cpusets(&self) -> Result<Lock, StoreError> {
        self.store.lock("cpusets", LOCK_PATIENCE)
    }

    /// On v2 Slurm sets a job's cpuset anew when a step of it starts, which takes lent cores away.
    fn widen_again(&self, seat: JobId) -> Result<(), NodeError> {
        let lent = |l: &LeaseRecord| l.kernel.job == seat && !l.cores.is_empty() && !l.closed;
        for lease in self.store.leases()?.iter().filter(|l| lent(l)) {
            if matches!(lease.cgroup, KernelCgroup::V2 { .. }) {
                // The lease that is over meanwhile narrows again: both hold the kernel's lock.
                let _lock = self
                    .store
                    .lock(&format!("kernel.{}", lease.kernel), LOCK_PATIENCE)?;
                if self.store.lease(lease.step)?.is_some_and(|l| lent(&l)) {
                    let _cpusets = self.lock_cpusets()?;
                    let _ = cores::widen(&self.mounts, &lease.cgroup, &lease.affinity, &lease.cores);
                }
            }
        }
        Ok(())
    }

    /// Forgets a kernel whose step is over, waiting a moment for its last processes.
    ///
    /// # Errors
    /// Records that can't be read. A cgroup that still has processes stays, and goes with a later sweep.
    pub fn unregister(&self, key: StepKey) -> Result<(), NodeError> {
        let deadline = Instant::now() + Duration::from_millis(200);
        while let Some(record) = self.store.kernel(key)? {
            let lock = self.store.lock("cgroups", LOCK_PATIENCE)?;
            if cgroup::remove(&self.mounts, &record.cgroup) {
                self.forget(&record)?;
            } else if Instant::now() >= deadline {
                break;
            }
            drop(lock);
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// Forgets kernels whose slurmstepd could not. Best effort: what is still in use stays for the next time.
    fn sweep(&self) {
        for record in self.store.kernels().unwrap_or_default() {
            let alive = start_time(record.process.pid) == Some(record.process.start_time);
            if !alive && cgroup::remove(&self.mounts, &record.cgroup) {
                let _ = self.forget(&record);
            }
        }
    }

    fn forget(&self, kernel: &KernelRecord) -> Result<(), StoreError> {
        // On v2 the cgroup is Slurm's, and may still have processes: they stay shut out until it is gone.
        let empty = cgroup::processes(&self.mounts, &kernel.cgroup).is_empty();
        if let (Some(group), true, Ok(counter)) = (kernel.group, empty, self.counter()) {
            let _ = counter.forget(group);
        }
        self.store.remove_kernel(kernel.key)
    }

    /// Hands this step's devices and cores over, or refuses and leaves everything as it was.
    ///
    /// `names`: the GPUs of the lease's step, as Slurm calls them. `task`: its process, where Slurm has confined it.
    /// `stepd`: its slurmstepd.
    ///
    /// # Errors
    /// The first reason against it.
    pub fn lend(
        &self,
        token: &Token,
        lend: &Lend,
        arrival: &Arrival,
        names: &[GpuIndex],
        task: u32,
        stepd: ProcessId,
    ) -> Result<HandedOver, Refusal> {
        decide::check_arrival(token, arrival)?;
        let kernel = self.executor(lend)?;
        let level = self.level(&kernel)?;
        let step = Membership::of(task).map_err(|e| refused("the step's cgroups")(&e))?;
        let devices = self.lent_devices(lend, &kernel, names, &step)?;
        self.check_lessee(&kernel, &devices)?;
        self.undo_before(token.epoch, &kernel, &devices)?;

        let _locks = self.lock(&devices, kernel.key)?;
        self.check_still(token.epoch, &kernel, &devices)?;
        let kernel = self.executor(lend)?;
        let cores = self.step_cores(lend, &kernel, &step);
        let record = LeaseRecord {
            step: arrival.step,
            lease: token.lease,
            epoch: token.epoch,
            kernel: kernel.key,
            uid: kernel.uid,
            process: kernel.process,
            affinity: cores::affinity_of(kernel.process.pid),
            level,
            group: cgroup::group(&self.mounts, &kernel.cgroup),
            cgroup: kernel.cgroup,
            devices,
            cores,
            notify: Agent {
                socket: token.notify.clone(),
                uid: self.site.service_uid,
            },
            grace_ms: token.grace_ms,
            closed: false,
            stepd,
        };
        if let Err(refusal) = self.open_lease(&record) {
            self.take_back_locked(&record, Word::Ours);
            return Err(refusal);
        }
        Ok(HandedOver {
            lease: token.lease,
            epoch: token.epoch,
            node: NodeName::from(self.site.node.as_str()),
            pilot: arrival.step.job,
            step: arrival.step.step,
            devices: record.devices,
            cores: record.cores.to_string(),
            level,
            at: now(),
        })
    }

    /// How the end of a lease to this kernel will be known.
    fn level(&self, kernel: &KernelRecord) -> Result<Level, Refusal> {
        match (self.counter(), self.site.isolation) {
            _ if kernel.cgroup == KernelCgroup::Unconstrained => Ok(Level::None),
            (Ok(_), _) => Ok(Level::Counted),
            (Err(why), Isolation::Counted) => Err(Refusal::NotCounted { why: why.to_owned() }),
            (Err(_), Isolation::Scanned | Isolation::None) => Ok(Level::Scanned),
        }
    }

    /// A lessee that left a device blocked gets no other here.
    fn check_lessee(&self, kernel: &KernelRecord, devices: &[Device]) -> Result<(), Refusal> {
        let records = self.store.devices();
        for record in records.map_err(|e| refused("the devices' records")(&e))? {
            let DeviceState::Blocked { lessee, step, .. } = record.state else {
                continue;
            };
            // A requested device is examined below anyway.
            let asked_for = devices
                .iter()
                .any(|d| Number::of(d) == Number::of(&record.device));
            let index = record.device.index;
            if lessee == kernel.uid && !asked_for && self.undo(step, index).is_err() {
                let uid = kernel.uid;
                return Err(Refusal::LesseeBlocks { uid, index });
            }
        }
        Ok(())
    }

    /// The record of the kernel that the lease is for, proven.
    fn executor(&self, lend: &Lend) -> Result<KernelRecord, Refusal> {
        let wanted = &lend.kernel;
        let key = StepKey {
            job: wanted.seat_job,
            step: wanted.seat_step,
        };
        let record = self
            .store
            .kernel(key)
            .map_err(|e| refused("the kernel's record")(&e))?;
        let live = LiveProcess {
            start_time: start_time(wanted.pid),
            in_its_cgroup: record
                .as_ref()
                .is_some_and(|r| cgroup::holds(&r.cgroup, wanted.pid)),
        };
        decide::check_kernel(
            wanted,
            record.as_ref(),
            live,
            self.site.isolation == Isolation::None,
        )
        .cloned()
    }

    /// What opens in the lease's step and is denied to the kernel's own: neither more nor less was given by Slurm.
    fn lent_devices(
        &self,
        lend: &Lend,
        kernel: &KernelRecord,
        names: &[GpuIndex],
        step: &Membership,
    ) -> Result<Vec<Device>, Refusal> {
        if kernel.cgroup == KernelCgroup::Unconstrained {
            // Nothing tells one device from another: names are all there is.
            let unknown = |index: &GpuIndex| DeviceFile {
                number: Number {
                    major: UNKNOWN,
                    minor: index.0.into(),
                },
                path: PathBuf::new(),
            };
            let unknown: Vec<DeviceFile> = names.iter().map(unknown).collect();
            return decide::lent_devices(lend, names, &unknown);
        }
        if cgroup::placement(step) == Placement::None {
            return Err(Refusal::Unconstrained);
        }
        let answers = probe::ask(&self.mounts, step, &kernel.denied);
        let answers = answers.map_err(|e| refused("asking what opens in the step")(&e))?;
        decide::lent_devices(lend, names, &answers.opens)
    }

    fn step_cores(&self, lend: &Lend, kernel: &KernelRecord, step: &Membership) -> CpuSet {
        if lend.cpus == 0 || cores::base(&kernel.cgroup).is_none() {
            return CpuSet::default();
        }
        cores::of_step(&self.mounts, step)
    }

    fn lock(&self, devices: &[Device], kernel: StepKey) -> Result<Vec<Lock>, Refusal> {
        self.try_lock(devices, kernel)
            .map_err(|e| refused("another step works on the device or the kernel")(&e))
    }

    /// Devices by number, then the kernel: one order for everybody.
    fn try_lock(&self, devices: &[Device], kernel: StepKey) -> Result<Vec<Lock>, StoreError> {
        let names = devices.iter().map(|d| format!("gpu.{}", Number::of(d)));
        names
            .chain([format!("kernel.{kernel}")])
            .map(|name| self.store.lock(&name, LOCK_PATIENCE))
            .collect()
    }

    /// Undoes what earlier leases of the devices, or a lost one of the kernel, left behind.
    fn undo_before(&self, epoch: Epoch, kernel: &KernelRecord, devices: &[Device]) -> Result<(), Refusal> {
        for device in devices {
            let record = self
                .store
                .device(Number::of(device))
                .map_err(|e| refused("the device's record")(&e))?;
            match decide::check_device(device.index, record.as_ref(), epoch)? {
                Before::Nothing => {}
                Before::Unknown => self.clear_unknown(device)?,
                Before::Undo(step, _) => {
                    let lease = self
                        .store
                        .lease(step)
                        .map_err(|e| refused("the lease's record")(&e))?;
                    match lease {
                        Some(lease) => self.undo(lease.step, device.index)?,
                        None => self.clear_unknown(device)?,
                    }
                }
            }
        }
        self.undo_lost_lease_of(kernel)
    }

    fn undo(&self, step: StepKey, index: GpuIndex) -> Result<(), Refusal> {
        match self
            .take_back(step)
            .map_err(|e| refused("the earlier lease")(&e))?
        {
            Some((taken, _)) if !taken.clean => Err(Refusal::Blocked {
                index,
                why: why(&taken.holders),
            }),
            _ => Ok(()),
        }
    }

    /// Undoes a lost lease of the kernel: nobody else takes back a lease without its slurmstepd, and a kernel has one
    /// lease.
    fn undo_lost_lease_of(&self, kernel: &KernelRecord) -> Result<(), Refusal> {
        let leases = self
            .store
            .leases()
            .map_err(|e| refused("the leases' records")(&e))?;
        for lease in leases.into_iter().filter(|l| l.kernel == kernel.key && !l.closed) {
            if start_time(lease.stepd.pid) == Some(lease.stepd.start_time) {
                return Err(Refusal::KernelHolds { lease: lease.lease });
            }
            match lease.devices.first() {
                Some(device) => self.undo(lease.step, device.index)?,
                None => {
                    let _ = self.take_back(lease.step);
                }
            }
        }
        Ok(())
    }

    /// Clears a device without a record: no kernel may open it, and nobody may hold it. Its last lessee is unknown,
    /// so nobody is ended.
    fn clear_unknown(&self, device: &Device) -> Result<(), Refusal> {
        let name = format!("gpu.{}", Number::of(device));
        let _lock = self
            .store
            .lock(&name, LOCK_PATIENCE)
            .map_err(|e| refused("another step works on the device")(&e))?;
        self.close_everywhere(device)?;
        let released = Release {
            mounts: &self.mounts,
            numbers: &[Number::of(device)],
            cgroup: &KernelCgroup::Unconstrained,
            process: ProcessId {
                pid: 0,
                start_time: 0,
            },
            rules: self.rules(u32::MAX, self.site.service_uid),
            counter: self.counter().ok(),
            dry_run: true,
        }
        .run(Duration::ZERO, Duration::ZERO);
        if released.holders.is_empty() {
            let state = DeviceState::Free;
            self.store
                .put_device(device, Epoch(0), state)
                .map_err(|e| refused("the device's record")(&e))
        } else {
            Err(Refusal::Blocked {
                index: device.index,
                why: why(&released.holders),
            })
        }
    }

    /// Denies a device to every kernel without it in a record.
    fn close_everywhere(&self, device: &Device) -> Result<(), Refusal> {
        if let Ok(counter) = self.counter() {
            // This shuts every kernel out, whatever its cgroup allows.
            return counter
                .close(Number::of(device))
                .map_err(|e| refused("closing the device")(&e));
        }
        let leases = self
            .store
            .leases()
            .map_err(|e| refused("the leases' records")(&e))?;
        for other in self
            .store
            .kernels()
            .map_err(|e| refused("the kernels' records")(&e))?
        {
            let name = format!("kernel.{}", other.key);
            let lock = self.store.lock(&name, LOCK_PATIENCE);
            let _lock = lock.map_err(|e| refused("another step works on the kernel")(&e))?;
            let lent = leases
                .iter()
                .any(|l| l.kernel == other.key && !l.devices.is_empty());
            if !lent || matches!(other.cgroup, KernelCgroup::V1 { .. }) {
                cgroup::close_devices(&self.mounts, &other.cgroup, &[Number::of(device)])
                    .map_err(|e| refused("closing the device elsewhere")(&e))?;
            }
        }
        Ok(())
    }

    fn rules(&self, lessee: u32, service_uid: u32) -> Rules<'_> {
        Rules {
            lessee,
            service_uid,
            ignore: &self.site.ignore_holders,
        }
    }

    /// Checks under the locks that the findings of [`Self::undo_before`] still hold.
    fn check_still(&self, epoch: Epoch, kernel: &KernelRecord, devices: &[Device]) -> Result<(), Refusal> {
        for device in devices {
            let record = self
                .store
                .device(Number::of(device))
                .map_err(|e| refused("the device's record")(&e))?;
            let blocked = |why| Refusal::Blocked {
                index: device.index,
                why,
            };
            if decide::check_device(device.index, record.as_ref(), epoch)? != Before::Nothing {
                return Err(blocked("another lease took it at the same moment".to_owned()));
            }
            let open = self.counter().map_or(Ok(0), |c| c.open_files(Number::of(device)));
            match open.map_err(|e| refused("counting")(&e))? {
                0 => {}
                n => return Err(blocked(format!("{n} files of an earlier lease are open"))),
            }
        }
        let leases = self
            .store
            .leases()
            .map_err(|e| refused("the leases' records")(&e))?;
        match leases.into_iter().find(|l| l.kernel == kernel.key && !l.closed) {
            Some(lease) => Err(Refusal::KernelHolds { lease: lease.lease }),
            None => Ok(()),
        }
    }

    /// The counting begins before anything is opened.
    fn begin_to_count(&self, record: &LeaseRecord) -> Result<(), Refusal> {
        let (Level::Counted, Ok(counter), Some(group)) = (record.level, self.counter(), record.group) else {
            return Ok(());
        };
        for device in &record.devices {
            counter
                .lend(Number::of(device), group)
                .map_err(|e| refused("counting")(&e))?;
        }
        Ok(())
    }

    /// Records first, then opens.
    fn open_lease(&self, record: &LeaseRecord) -> Result<(), Refusal> {
        self.store
            .put_lease(record)
            .map_err(|e| refused("recording the lease")(&e))?;
        for device in &record.devices {
            let state = DeviceState::Lent {
                step: record.step,
                lease: record.lease,
            };
            self.store
                .put_device(device, record.epoch, state)
                .map_err(|e| refused("recording the device")(&e))?;
        }
        self.begin_to_count(record)?;
        cgroup::open_devices(&self.mounts, &record.cgroup, &numbers(&record.devices))
            .map_err(|e| refused("opening the device")(&e))?;
        if record.cores.is_empty() {
            return Ok(());
        }
        let _cpusets = self
            .lock_cpusets()
            .map_err(|e| refused("another step works on the cores")(&e))?;
        cores::widen(&self.mounts, &record.cgroup, &record.affinity, &record.cores)
            .map_err(|e| refused("widening the cores")(&e))
    }

    /// Ends the lease of a pilot's step; None if there is none (any more). Gives the agent's socket with it.
    ///
    /// # Errors
    /// Records that can't be read or locked. Whatever could not be closed is told in the answer.
    pub fn take_back(&self, step: StepKey) -> Result<Option<(TakenBack, Agent)>, StoreError> {
        self.take_back_by(step, Word::Ours)
    }

    fn take_back_by(&self, step: StepKey, word: Word) -> Result<Option<(TakenBack, Agent)>, StoreError> {
        let Some(record) = self.store.lease(step)? else {
            return Ok(None);
        };
        let _locks = self.try_lock(&record.devices, record.kernel)?;
        let Some(record) = self.store.lease(step)? else {
            return Ok(None);
        };
        Ok(Some((self.take_back_locked(&record, word), record.notify)))
    }

    /// Carries out a token's [`crate::token::Op::TakeBack`].
    ///
    /// # Errors
    /// The first reason against it. A lease that is over already is a clean success.
    pub fn take_back_by_token(&self, token: &Token, arrival: &Arrival) -> Result<TakenBack, Refusal> {
        decide::check_arrival(token, arrival)?;
        let record = self
            .store
            .lease_by_id(token.lease)
            .map_err(|e| refused("the leases' records")(&e))?;
        let nothing = || TakenBack {
            lease: token.lease,
            epoch: token.epoch,
            node: NodeName::from(self.site.node.as_str()),
            pilot: token.pilot,
            devices: Vec::new(),
            clean: true,
            level: Level::default(),
            ended_pids: Vec::new(),
            holders: Vec::new(),
            at: now(),
        };
        let Some(record) = record else {
            return Ok(nothing());
        };
        let taken = self
            .take_back(record.step)
            .map_err(|e| refused("the take-back")(&e))?;
        Ok(taken.map_or_else(nothing, |(taken, _)| taken))
    }

    /// How the node stands, after another look at the blocked devices that are named. `task`: the asking step's process.
    ///
    /// # Errors
    /// The first reason against it, or records that can't be read.
    pub fn look(
        &self,
        token: &Token,
        look: &Look,
        arrival: &Arrival,
        task: u32,
    ) -> Result<Standing, Refusal> {
        decide::check_arrival(token, arrival)?;
        let word = match look.operator {
            Some(_) => Word::Operators,
            None => Word::Ours,
        };
        let before = self.blocked()?;
        for device in before.iter().filter(|b| look.again.contains(&b.0.device.index)) {
            let (record, step, _) = device;
            match self.take_back_by(*step, word) {
                // Its lease's record is gone: as if nothing were known of it.
                Ok(None) => drop(self.clear_unknown(&record.device)),
                Ok(Some(_)) => {}
                Err(e) => return Err(refused("the earlier lease")(&e)),
            }
        }
        let after = self.blocked()?;
        let freed = before
            .iter()
            .filter(|(b, ..)| after.iter().all(|(a, ..)| a.device != b.device))
            .map(|(record, _, blocked)| (record.device.index, blocked.lease))
            .collect();
        let confined = Membership::of(task).is_ok_and(|m| cgroup::placement(&m) != Placement::None);
        let (level, why) = match (self.counter(), self.site.isolation) {
            (_, Isolation::None) if !confined => (Level::None, String::new()),
            (Ok(_), _) => (Level::Counted, String::new()),
            (Err(why), _) => (Level::Scanned, why.to_owned()),
        };
        Ok(Standing {
            node: NodeName::from(self.site.node.as_str()),
            pilot: token.pilot,
            level,
            why,
            blocked: after.into_iter().map(|(.., blocked)| blocked).collect(),
            freed,
            at: now(),
        })
    }

    /// The devices that are lent to nobody, with the steps whose leases left them so.
    fn blocked(&self) -> Result<Vec<(DeviceRecord, StepKey, BlockedDevice)>, Refusal> {
        let records = self.store.devices();
        let records = records.map_err(|e| refused("the devices' records")(&e))?;
        let blocked = records.into_iter().filter_map(|record| match &record.state {
            DeviceState::Blocked { step, lease, why, .. } => {
                let blocked = BlockedDevice {
                    index: record.device.index,
                    lease: *lease,
                    why: why.clone(),
                };
                Some((record.clone(), *step, blocked))
            }
            DeviceState::Free | DeviceState::Lent { .. } => None,
        });
        Ok(blocked.collect())
    }

    /// Takes back all leases of an ended job, and forgets its kernels. Returns the agent's socket with each lease.
    ///
    /// # Errors
    /// Records that can't be read.
    pub fn job_ended(&self, job: JobId) -> Result<Vec<(TakenBack, Agent)>, StoreError> {
        let mut taken = Vec::new();
        for record in self.store.leases_of(job)? {
            taken.extend(self.take_back(record.step)?);
        }
        let kernels = self.store.kernels()?;
        if !kernels.iter().any(|k| k.key.job == job) {
            return Ok(taken);
        }
        let _lock = self.store.lock("cgroups", LOCK_PATIENCE)?;
        for record in kernels.iter().filter(|k| k.key.job == job) {
            end_all(&self.mounts, &record.cgroup);
        }
        self.sweep();
        Ok(taken)
    }

    fn take_back_locked(&self, record: &LeaseRecord, word: Word) -> TakenBack {
        let devices = self.still_its(record);
        // Already closed: the kernel may have another lease by now, which must not be touched.
        let mut holders = if record.closed {
            Vec::new()
        } else {
            self.close_lease(record, &devices)
        };
        let closed = holders.is_empty();
        let (released, level) = self.release(record, &devices, word);
        holders.extend(released.holders);
        if let Err(e) = self.conclude(record, &devices, &holders, closed) {
            holders.push(self.unclosed(record, &e));
        }
        TakenBack {
            lease: record.lease,
            epoch: record.epoch,
            node: NodeName::from(self.site.node.as_str()),
            pilot: record.step.job,
            devices: record.devices.iter().map(|d| d.index).collect(),
            clean: holders.is_empty(),
            level,
            ended_pids: released.ended,
            holders,
            at: now(),
        }
    }

    /// Takes the cgroups back; gives what could not be taken.
    fn close_lease(&self, record: &LeaseRecord, devices: &[Device]) -> Vec<Holder> {
        let mut unclosed = Vec::new();
        if record.level == Level::Counted {
            for device in devices {
                let counter = self.counter().map_err(std::io::Error::other);
                if let Err(e) = counter.and_then(|c| c.close(Number::of(device))) {
                    unclosed.push(self.unclosed(record, &e));
                }
            }
        }
        if let Err(e) = cgroup::close_devices(&self.mounts, &record.cgroup, &numbers(devices)) {
            unclosed.push(self.unclosed(record, &e));
        }
        // Without the lock a neighbour may keep cores that are lent elsewhere: slow, not unsafe.
        let _cpusets = (!record.cores.is_empty()).then(|| self.lock_cpusets().ok());
        if !record.cores.is_empty()
            && let Err(e) = cores::narrow(&self.mounts, &record.cgroup, &record.affinity, &record.cores)
        {
            unclosed.push(self.unclosed(record, &e));
        }
        unclosed
    }

    /// The lease's devices, without those of a later lease.
    fn still_its(&self, record: &LeaseRecord) -> Vec<Device> {
        let its = |device: &Device| match self.store.device(Number::of(device)) {
            Ok(Some(r)) => match r.state {
                DeviceState::Free => r.epoch <= record.epoch,
                DeviceState::Lent { step, .. } | DeviceState::Blocked { step, .. } => step == record.step,
            },
            // A missing or unreadable record: closing twice does no harm.
            _ => true,
        };
        record.devices.iter().filter(|d| its(d)).cloned().collect()
    }

    fn unclosed(&self, record: &LeaseRecord, error: &dyn std::error::Error) -> Holder {
        Holder {
            pid: record.process.pid,
            uid: record.uid,
            exe: proc::exe(record.process.pid),
            how: Hold::Cgroup,
            why: chain(error),
        }
    }

    fn conclude(
        &self,
        record: &LeaseRecord,
        devices: &[Device],
        holders: &[Holder],
        closed: bool,
    ) -> Result<(), StoreError> {
        for device in devices {
            let epoch = self
                .store
                .device(Number::of(device))?
                .map_or(record.epoch, |r| r.epoch.max(record.epoch));
            let state = if holders.is_empty() {
                DeviceState::Free
            } else {
                DeviceState::Blocked {
                    step: record.step,
                    lease: record.lease,
                    lessee: record.uid,
                    why: why(holders),
                }
            };
            self.store.put_device(device, epoch, state)?;
        }
        if holders.is_empty() {
            self.store.remove_lease(record.step)
        } else {
            self.store.put_lease(&LeaseRecord {
                closed,
                ..record.clone()
            })
        }
    }

    /// Waits until nobody holds the devices, and ends the lessee's processes that do.
    fn release(&self, record: &LeaseRecord, devices: &[Device], word: Word) -> (Released, Level) {
        let numbers: Vec<Number> = numbers(devices);
        let counter = match (record.level, self.counter()) {
            (Level::Counted, Ok(counter)) => Some(counter),
            _ => None,
        };
        let last = |n: &Number| counter.and_then(|c| c.last_lessee(*n).ok().flatten());
        let lost = record.level == Level::Counted && numbers.iter().any(|n| last(n) != record.group);
        if lost && word == Word::Ours {
            let holders = vec![uncounted(record)];
            let ended = Vec::new();
            return (Released { ended, holders }, Level::Scanned);
        }
        let counter = counter.filter(|_| !lost);
        // Looked at once before: its holders had their time.
        let (grace, dying) = if record.closed {
            (Duration::ZERO, BLOCKED_AGAIN)
        } else {
            let grace = Duration::from_millis(record.grace_ms.into());
            (grace.min(MAX_GRACE), DYING)
        };
        let released = Release {
            mounts: &self.mounts,
            numbers: &numbers,
            cgroup: &record.cgroup,
            process: record.process,
            rules: self.rules(record.uid, record.notify.uid),
            counter,
            dry_run: self.site.dry_run,
        }
        .run(grace, dying);
        let level = if lost { Level::Scanned } else { record.level };
        (released, level)
    }
}

/// The programs were taken away during the lease: nothing proves that the device is free.
fn uncounted(record: &LeaseRecord) -> Holder {
    Holder {
        pid: record.process.pid,
        uid: record.uid,
        exe: proc::exe(record.process.pid),
        how: Hold::OpenFile,
        why: "the counting programs are gone, or began anew, during the lease".to_owned(),
    }
}

fn why(holders: &[Holder]) -> String {
    let one = |h: &Holder| {
        format!(
            "process {} ({}, uid {}) holds it by {}: {}",
            h.pid, h.exe, h.uid, h.how, h.why
        )
    };
    holders.iter().map(one).collect::<Vec<_>>().join("; ")
}
