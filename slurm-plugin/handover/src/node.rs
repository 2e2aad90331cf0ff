//! Registration, handover and take-back on one node: the thin shell round [`crate::decide`].
//!
//! Runs as root in any slurmstepd with a callback, for a moment each; lasting facts are in [`crate::store`]. Order on
//! disk: a lease is recorded before anything is opened, and forgotten after everything is closed and no process holds
//! it. So a process killed at any point leaves a record of the steps to undo.

use crate::bpf::Number;
use crate::cgroup::{self, CgroupError};
use crate::cores;
use crate::count::{BPF_DIR, Counter};
use crate::cpuset::CpuSet;
use crate::decide::{self, Arrival, Before, LiveProcess, Rules};
use crate::mounts::{self, Group, Mounts, Placement};
use crate::options::Isolation;
use crate::probe;
use crate::proc::{self, Membership};
use crate::record::{
    Agent, Blocked, DeviceRecord, DeviceState, KernelCgroup, KernelRecord, LeaseRecord, ProcessId, StepKey,
};
use crate::release::{DYING, Release, Released, end_all};
use crate::store::{Lock, Store, StoreError};
use crate::token::{
    BlockedDevice, Device, HandedOver, Hold, Holder, Lend, Level, Look, Refusal, Standing, TakenBack, Token,
};
use hop_words::clock::now;
use hop_words::error::chain;
use hop_words::id::{Epoch, GpuIndex, JobId, LeaseId, NodeName};
use hop_words::lease::Handover;
use hop_words::process::start_time;
use std::cell::OnceCell;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A longer grace is not believed: the step's end would be held up, and Slurm drains the node after a minute.
const MAX_GRACE: Duration = Duration::from_secs(30);
/// How long a step waits for another that works on the same device or kernel: longer than any take-back.
const LOCK_PATIENCE: Duration = Duration::from_secs(MAX_GRACE.as_secs() + DYING.as_secs() + 5);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Time for another look at a blocked device: a request shan't wait long for another lease's holder.
const BLOCKED_AGAIN: Duration = Duration::from_millis(500);

/// Linux gives it to nobody.
const NO_ACCOUNT: u32 = u32::MAX;

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
    Cgroup(#[from] CgroupError),
    #[error("the counting programs refuse the kernel")]
    Counter(#[source] std::io::Error),
    #[error("process {pid} is gone")]
    Gone { pid: u32 },
    #[error("the step {key} is a kernel's already, and that kernel has processes")]
    Known { key: StepKey },
}

/// The word on which a take-back rests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    /// The proof of the lease's own level.
    Ours,
    /// An operator's, after the count was lost: a look that sees no holder suffices.
    Operators,
}

fn numbers(devices: &[Device]) -> Vec<Number> {
    devices.iter().map(Number::of).collect()
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

fn refused<E: Error>(what: &'static str) -> impl FnOnce(E) -> Refusal {
    move |e| Refusal::Failed {
        what: what.to_owned(),
        detail: chain(&e),
    }
}

impl From<StoreError> for Refusal {
    fn from(e: StoreError) -> Self {
        refused("the node's records")(e)
    }
}

impl From<CgroupError> for Refusal {
    fn from(e: CgroupError) -> Self {
        refused("the kernel's cgroup")(e)
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

    /// Registers a kernel's step and confines the step's task, before the task runs the user's program. `None` means
    /// that Slurm constrains no devices here: no lease will reach the kernel.
    ///
    /// # Errors
    /// The task stays where Slurm put the task, without any device, and no lease will reach the task.
    pub fn register(&self, key: StepKey, uid: u32, pid: u32) -> Result<Option<KernelRecord>, NodeError> {
        let lock = self.store.lock("cgroups", LOCK_PATIENCE)?;
        self.sweep();
        // The parts of a heterogeneous step bear one key: a second record would hide the first one's cgroup for ever.
        if let Some(before) = self.store.get::<KernelRecord>(key)? {
            if !cgroup::remove(&self.mounts, &before.cgroup) {
                return Err(NodeError::Known { key });
            }
            self.forget(&before)?;
        }
        let start_time = start_time(pid).ok_or(NodeError::Gone { pid })?;
        let confined = cgroup::confine(&self.mounts, &self.site.node, key, uid, pid)?;
        let Some((cgroup, denied)) = confined else {
            return Ok(None);
        };
        let record = KernelRecord {
            key,
            uid,
            process: ProcessId { pid, start_time },
            group: cgroup::group(&self.mounts, &cgroup),
            cgroup,
            denied,
        };
        // Recorded first: what no record names is never forgotten.
        self.store.put(&record)?;
        if let (Some(group), Ok(counter)) = (record.group, self.counter())
            && let Err(e) = counter.admit(group)
        {
            self.store.remove::<KernelRecord>(key)?;
            return Err(NodeError::Counter(e));
        }
        drop(lock);
        self.widen_again(key.job)?;
        Ok(Some(record))
    }

    /// Kernels of a seat share the job's cpuset on v2, which is read and written back. Taken last of all locks.
    fn lock_cpusets(&self) -> Result<Lock, StoreError> {
        self.store.lock("cpusets", LOCK_PATIENCE)
    }

    /// On v2 Slurm sets a job's cpuset anew at a step's start, and takes lent cores away.
    fn widen_again(&self, seat: JobId) -> Result<(), StoreError> {
        let lent = |l: &LeaseRecord| l.kernel.job == seat && !l.cores.is_empty() && !l.closed;
        for lease in self.store.all::<LeaseRecord>()?.iter().filter(|l| lent(l)) {
            if matches!(lease.cgroup, KernelCgroup::V2 { .. }) {
                // A lease that is over meanwhile narrows again: both hold the kernel's lock. If it is held now, the lease
                // begins, or ends and waits for its holders.
                let Ok(_lock) = self.store.lock(&kernel_lock(lease.kernel), Duration::ZERO) else {
                    continue;
                };
                if self.store.get(lease.step)?.is_some_and(|l| lent(&l)) {
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
        while let Some(record) = self.store.get::<KernelRecord>(key)? {
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
        for record in self.store.all::<KernelRecord>().unwrap_or_default() {
            let alive = start_time(record.process.pid) == Some(record.process.start_time);
            if !alive && cgroup::remove(&self.mounts, &record.cgroup) {
                let _ = self.forget(&record);
            }
        }
    }

    fn forget(&self, kernel: &KernelRecord) -> Result<(), StoreError> {
        if let (Some(group), Ok(counter)) = (kernel.group, self.counter()) {
            let _ = counter.forget(group);
        }
        self.store.remove_lock(&kernel_lock(kernel.key));
        self.store.remove::<KernelRecord>(kernel.key)
    }

    /// Hands this step's devices and cores over, or refuses and leaves everything as before.
    ///
    /// `names`: the GPUs of the lease's step, as Slurm calls them. `task`: the step's process, confined by Slurm.
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
        let step = Membership::of(task).map_err(refused("the step's cgroups"))?;
        if mounts::placement(&step) == Placement::None {
            return Err(Refusal::Unconstrained);
        }
        let kernel = self.executor(lend).map_err(|refusal| self.reworded(refusal))?;
        let level = self.level()?;
        // The devices that open in the lease's step and are denied to the kernel's own: Slurm gave exactly these.
        let answers = probe::ask(&self.mounts, &step, &kernel.denied);
        let opens = answers.map_err(refused("asking what opens in the step"))?.opens;
        let devices = decide::lent_devices(lend, names, &opens)?;
        self.check_lessee(&kernel, &devices)?;
        self.undo_before(token.epoch, arrival.step, &kernel, &devices)?;

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
            node: NodeName::from(self.site.node.as_str()),
            level,
            handover: Handover {
                epoch: token.epoch,
                pilot: arrival.step.job,
                step: arrival.step.step,
                devices: record.devices,
                cores: record.cores.to_string(),
                at: now(),
            },
        })
    }

    /// The refusal. Where no record can be written, that is the reason why a kernel has none.
    fn reworded(&self, refusal: Refusal) -> Refusal {
        if !matches!(refusal, Refusal::UnknownKernel { .. }) {
            return refusal;
        }
        self.store.check_room().map_or_else(Refusal::from, |()| refusal)
    }

    /// How the end of a lease will be known.
    fn level(&self) -> Result<Level, Refusal> {
        match (self.counter(), self.site.isolation) {
            (Ok(_), _) => Ok(Level::Counted),
            (Err(why), Isolation::Counted) => Err(Refusal::NotCounted { why: why.to_owned() }),
            (Err(_), Isolation::Scanned) => Ok(Level::Scanned),
        }
    }

    /// A lessee that left a device blocked gets no other here.
    fn check_lessee(&self, kernel: &KernelRecord, devices: &[Device]) -> Result<(), Refusal> {
        let uid = kernel.uid;
        for (device, blocked) in self.blocked()? {
            // A requested device is examined below anyway.
            let asked_for = numbers(devices).contains(&Number::of(&device));
            if blocked.lessee == uid && !asked_for && self.undo(blocked.step, &device).is_err() {
                let index = device.index;
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
        let record: Option<KernelRecord> = self.store.get(key)?;
        let holds = |r: &KernelRecord| cgroup::holds(&r.cgroup, wanted.pid);
        let live = LiveProcess {
            start_time: start_time(wanted.pid),
            in_its_cgroup: record.as_ref().is_some_and(holds),
        };
        decide::check_kernel(wanted, record.as_ref(), live).cloned()
    }

    fn step_cores(&self, lend: &Lend, kernel: &KernelRecord, step: &Membership) -> CpuSet {
        if lend.cpus == 0 || cores::base(&kernel.cgroup).is_none() {
            return CpuSet::default();
        }
        cores::of_step(&self.mounts, step)
    }

    fn lock_device(&self, device: &Device) -> Result<Lock, StoreError> {
        self.store
            .lock(&format!("gpu.{}", Number::of(device)), LOCK_PATIENCE)
    }

    fn lock_kernel(&self, kernel: StepKey) -> Result<Lock, StoreError> {
        self.store.lock(&kernel_lock(kernel), LOCK_PATIENCE)
    }

    /// Devices by number, then the kernel: one order for everybody.
    fn lock(&self, devices: &[Device], kernel: StepKey) -> Result<Vec<Lock>, StoreError> {
        let mut locks = Vec::new();
        for device in devices {
            locks.push(self.lock_device(device)?);
        }
        locks.push(self.lock_kernel(kernel)?);
        Ok(locks)
    }

    /// Undoes the leavings of the devices' earlier leases, or of a lost lease of the kernel.
    fn undo_before(
        &self,
        epoch: Epoch,
        step: StepKey,
        kernel: &KernelRecord,
        devices: &[Device],
    ) -> Result<(), Refusal> {
        for device in devices {
            let record = self.record_of(device)?;
            match decide::check_device(device.index, record.as_ref(), epoch)? {
                Before::Nothing => {}
                Before::Unknown => self.clear_unknown(device)?,
                Before::Undo(step) => self.undo(step, device)?,
            }
            if record.is_some_and(|r| r.pilot != Some(step.job)) {
                self.check_strangers(device)?;
            }
        }
        self.undo_lost_lease_of(kernel)
    }

    /// The device's record, with the name that Slurm has for the device now: agents and operators know no other.
    fn record_of(&self, device: &Device) -> Result<Option<DeviceRecord>, StoreError> {
        let number = Number::of(device);
        let record: Option<DeviceRecord> = self.store.get(number)?;
        if record.as_ref().is_none_or(|r| r.device.index == device.index) {
            return Ok(record);
        }
        let _lock = self.lock_device(device)?;
        let record = self.store.get::<DeviceRecord>(number)?.map(|r| DeviceRecord {
            device: device.clone(),
            ..r
        });
        if let Some(record) = &record {
            self.store.put(record)?;
        }
        Ok(record)
    }

    fn undo(&self, step: StepKey, device: &Device) -> Result<(), Refusal> {
        let Some((record, locks)) = self.lock_lease(step)? else {
            return self.clear_unknown(device);
        };
        // Under the locks: a lease in its take-back has ended by now.
        decide::check_undo(device.index, &record, start_time(record.stepd.pid))?;
        let taken = self.take_back_locked(&record, Word::Ours);
        let known = self.store.get::<DeviceRecord>(Number::of(device))?;
        drop(locks);
        // Another device of the lease may be held.
        if taken.clean || known.is_some_and(|r| r.state == DeviceState::Free) {
            return Ok(());
        }
        Err(Refusal::Blocked {
            index: device.index,
            why: why(&taken.holders),
        })
    }

    /// Undoes a lost lease of the kernel: nobody else takes back a lease without its slurmstepd, and a kernel has one
    /// lease.
    fn undo_lost_lease_of(&self, kernel: &KernelRecord) -> Result<(), Refusal> {
        for lease in self.leases_of(kernel)? {
            if decide::lives(&lease, start_time(lease.stepd.pid)) {
                return Err(Refusal::KernelHolds { lease: lease.lease });
            }
            for device in &lease.devices {
                self.undo(lease.step, device)?;
            }
            if lease.devices.is_empty() {
                let _ = self.take_back(lease.step);
            }
        }
        Ok(())
    }

    fn leases_of(&self, kernel: &KernelRecord) -> Result<Vec<LeaseRecord>, StoreError> {
        let mut leases = self.store.all::<LeaseRecord>()?;
        leases.retain(|l| l.kernel == kernel.key && !l.closed);
        Ok(leases)
    }

    /// Clears a device without a record: no kernel may open the device, and no process may hold the device. The last
    /// lessee is unknown, so nobody is ended.
    fn clear_unknown(&self, device: &Device) -> Result<(), Refusal> {
        let _lock = self.lock_device(device)?;
        let record: Option<DeviceRecord> = self.store.get(Number::of(device))?;
        // Another step may have cleared or lent the device while this step waited.
        let told = match record.as_ref().map(|r| &r.state) {
            None => false,
            Some(DeviceState::Free) => true,
            Some(DeviceState::Lent { step, .. } | DeviceState::Blocked(Blocked { step, .. })) => {
                self.store.get::<LeaseRecord>(step)?.is_some()
            }
        };
        if told {
            return Ok(());
        }
        // A lease tells of its devices without their records, too.
        for lease in self.store.all::<LeaseRecord>()? {
            if numbers(&lease.devices).contains(&Number::of(device)) {
                decide::check_undo(device.index, &lease, start_time(lease.stepd.pid))?;
            }
        }
        self.close_everywhere(device)?;
        let numbers = [Number::of(device)];
        let nobodys = self.of_nobody(&numbers);
        let mut holders = nobodys.run(Duration::ZERO, Duration::ZERO).holders;
        holders.extend(nobodys.strangers());
        if holders.is_empty() {
            self.store.put(&DeviceRecord {
                device: device.clone(),
                epoch: record.as_ref().map_or(Epoch(0), |r| r.epoch),
                pilot: record.and_then(|r| r.pilot),
                state: DeviceState::Free,
            })?;
            return Ok(());
        }
        Err(Refusal::Blocked {
            index: device.index,
            why: why(&holders),
        })
    }

    /// A look at devices without a lease: nobody is ended.
    fn of_nobody<'a>(&'a self, numbers: &'a [Number]) -> Release<'a> {
        let counter = self.counter().ok();
        Release {
            mounts: &self.mounts,
            numbers,
            cgroup: None,
            process: ProcessId {
                pid: 0,
                start_time: 0,
            },
            service: self.site.service_uid,
            rules: self.rules(NO_ACCOUNT, self.site.service_uid, counter.is_some()),
            counter,
            dry_run: true,
        }
    }

    /// A job with the device from Slurm may have left it to another process of its user's. Then this user has to let go
    /// of the device, and the device is blocked until a whole look sees no holder. Whoever keeps a look from being whole
    /// counts as a holder: anybody may be hidden behind such a process.
    fn check_strangers(&self, device: &Device) -> Result<(), Refusal> {
        let number = Number::of(device);
        let _lock = self.lock_device(device)?;
        let holders = self.of_nobody(&[number]).strangers();
        let Some(first) = holders.first() else {
            return Ok(());
        };
        let (index, why) = (device.index, why(&holders));
        let known: Option<DeviceRecord> = self.store.get(number)?;
        if let Some(record) = known.filter(|r| r.state == DeviceState::Free) {
            let nobodys = StepKey {
                job: JobId(0),
                step: 0,
            };
            let blocked = Blocked {
                step: nobodys,
                lease: LeaseId(0),
                lessee: first.uid,
                why: why.clone(),
            };
            self.store.put(&DeviceRecord {
                state: DeviceState::Blocked(blocked),
                ..record
            })?;
        }
        Err(Refusal::Blocked { index, why })
    }

    /// Denies a device to every kernel without it in a record.
    fn close_everywhere(&self, device: &Device) -> Result<(), Refusal> {
        let number = Number::of(device);
        if let Ok(counter) = self.counter() {
            // This shuts every kernel out, whatever the kernel's cgroup allows.
            let closed = counter.know(number).and_then(|()| counter.close(number));
            return closed.map_err(refused("closing the device"));
        }
        let leases = self.store.all::<LeaseRecord>()?;
        for other in self.store.all::<KernelRecord>()? {
            let _lock = self.lock_kernel(other.key)?;
            let its = |l: &LeaseRecord| l.kernel == other.key && !l.devices.is_empty();
            if matches!(other.cgroup, KernelCgroup::V1 { .. }) || !leases.iter().any(its) {
                cgroup::close_devices(&self.mounts, &other.cgroup, &[number])?;
            }
        }
        Ok(())
    }

    fn rules(&self, lessee: u32, service_uid: u32, counted: bool) -> Rules<'_> {
        if counted {
            // To a file of the lease no program is entitled by its name or account.
            let (service_uid, ignore) = (NO_ACCOUNT, &[][..]);
            return Rules {
                lessee,
                service_uid,
                ignore,
            };
        }
        Rules {
            lessee,
            service_uid,
            ignore: &self.site.ignore_holders,
        }
    }

    /// Checks under the locks that the findings of [`Self::undo_before`] still hold.
    fn check_still(&self, epoch: Epoch, kernel: &KernelRecord, devices: &[Device]) -> Result<(), Refusal> {
        for device in devices {
            let number = Number::of(device);
            let record: Option<DeviceRecord> = self.store.get(number)?;
            let index = device.index;
            let blocked = |why| Refusal::Blocked { index, why };
            if decide::check_device(index, record.as_ref(), epoch)? != Before::Nothing {
                return Err(blocked("another lease took it at the same moment".to_owned()));
            }
            let open = self.counter().map_or(Ok(0), |c| c.open_files(number));
            match open.map_err(refused("counting"))? {
                0 => {}
                n => return Err(blocked(format!("{n} files of an earlier lease are open"))),
            }
        }
        match self.leases_of(kernel)?.first() {
            Some(lease) => Err(Refusal::KernelHolds { lease: lease.lease }),
            None => Ok(()),
        }
    }

    /// Records first, then opens: the cgroup before the count, which refuses opens until the end.
    fn open_lease(&self, record: &LeaseRecord) -> Result<(), Refusal> {
        self.store.put(record)?;
        for device in &record.devices {
            self.store.put(&DeviceRecord {
                device: device.clone(),
                epoch: record.epoch,
                pilot: Some(record.step.job),
                state: DeviceState::Lent {
                    step: record.step,
                    lease: record.lease,
                },
            })?;
        }
        let counted = match (record.level, self.counter(), record.group) {
            (Level::Counted, Ok(counter), Some(group)) => Some((counter, group)),
            _ => None,
        };
        let numbers = numbers(&record.devices);
        let each = |what: fn(&Counter, Number, Group) -> std::io::Result<()>| {
            let mut each = counted
                .iter()
                .flat_map(|counted| numbers.iter().map(move |n| (*counted, *n)));
            each.try_for_each(|((counter, group), n)| what(counter, n, group))
                .map_err(refused("counting"))
        };
        each(Counter::prepare)?;
        cgroup::open_devices(&self.mounts, &record.cgroup, &numbers)?;
        each(Counter::lend)?;
        if !record.cores.is_empty() {
            let _cpusets = self.lock_cpusets()?;
            cores::widen(&self.mounts, &record.cgroup, &record.affinity, &record.cores)?;
        }
        Ok(())
    }

    /// Ends the lease of a pilot's step; None if there is none (any more). Gives the agent's socket with it.
    ///
    /// # Errors
    /// Records that can't be read or locked. Whatever could not be closed is told in the answer.
    pub fn take_back(&self, step: StepKey) -> Result<Option<(TakenBack, Agent)>, StoreError> {
        self.take_back_by(step, Word::Ours)
    }

    fn take_back_by(&self, step: StepKey, word: Word) -> Result<Option<(TakenBack, Agent)>, StoreError> {
        let Some((record, _locks)) = self.lock_lease(step)? else {
            return Ok(None);
        };
        Ok(Some((self.take_back_locked(&record, word), record.notify)))
    }

    /// The lease of a step under the locks of its devices and its kernel.
    fn lock_lease(&self, step: StepKey) -> Result<Option<(LeaseRecord, Vec<Lock>)>, StoreError> {
        let Some(record) = self.store.get::<LeaseRecord>(step)? else {
            return Ok(None);
        };
        let locks = self.lock(&record.devices, record.kernel)?;
        let record = self.store.get::<LeaseRecord>(step)?;
        Ok(record.map(|record| (record, locks)))
    }

    /// Carries out a token's [`crate::token::Op::TakeBack`].
    ///
    /// # Errors
    /// The first reason against it. A lease that is over already is a clean success.
    pub fn take_back_by_token(&self, token: &Token, arrival: &Arrival) -> Result<TakenBack, Refusal> {
        decide::check_arrival(token, arrival)?;
        let leases = self.store.all::<LeaseRecord>()?;
        let taken = match leases.into_iter().find(|l| l.lease == token.lease) {
            Some(record) => self.take_back(record.step)?,
            None => None,
        };
        let over = || self.taken_back(token.lease, token.epoch, token.pilot);
        Ok(taken.map_or_else(over, |(taken, _)| taken))
    }

    /// A lease that left nothing to take back.
    fn taken_back(&self, lease: LeaseId, epoch: Epoch, pilot: JobId) -> TakenBack {
        TakenBack {
            lease,
            epoch,
            node: NodeName::from(self.site.node.as_str()),
            pilot,
            devices: Vec::new(),
            clean: true,
            blocked: Vec::new(),
            level: Level::default(),
            ended_pids: Vec::new(),
            holders: Vec::new(),
            at: now(),
        }
    }

    /// How the node stands, after another look at the blocked devices that are named.
    ///
    /// # Errors
    /// The first reason against the action, or unreadable records.
    pub fn look(&self, token: &Token, look: &Look, arrival: &Arrival) -> Result<Standing, Refusal> {
        decide::check_arrival(token, arrival)?;
        let word = match look.operator {
            Some(_) => Word::Operators,
            None => Word::Ours,
        };
        let before = self.blocked()?;
        for (device, blocked) in before.iter().filter(|(d, _)| look.again.contains(&d.index)) {
            if self.take_back_by(blocked.step, word)?.is_none() {
                // The lease's record is gone: the device is cleared as an unknown one.
                drop(self.clear_unknown(device));
            }
        }
        let after = self.blocked()?;
        let (level, why) = match self.counter() {
            Ok(_) => (Level::Counted, ""),
            Err(why) => (Level::Scanned, why),
        };
        let blocked = after.iter().map(|(device, blocked)| BlockedDevice {
            index: device.index,
            lease: blocked.lease,
            why: blocked.why.clone(),
        });
        let renamed = self.lent_under_another_name()?;
        let freed = before.iter().filter(|(b, _)| after.iter().all(|(a, _)| a != b));
        Ok(Standing {
            node: NodeName::from(self.site.node.as_str()),
            pilot: token.pilot,
            level,
            why: why.to_owned(),
            blocked: blocked.chain(renamed).collect(),
            freed: freed.map(|(d, blocked)| (d.index, blocked.lease)).collect(),
            asked: look.asked,
            at: now(),
        })
    }

    /// The devices that are lent to nobody.
    fn blocked(&self) -> Result<Vec<(Device, Blocked)>, StoreError> {
        let records = self.store.all::<DeviceRecord>()?.into_iter();
        let blocked = records.filter_map(|record| match record.state {
            DeviceState::Blocked(blocked) => Some((record.device, blocked)),
            DeviceState::Free | DeviceState::Lent { .. } => None,
        });
        Ok(blocked.collect())
    }

    /// Devices of leases that live, under the names that Slurm has for them since.
    fn lent_under_another_name(&self) -> Result<Vec<BlockedDevice>, StoreError> {
        let mut leases = self.store.all::<LeaseRecord>()?;
        leases.retain(|lease| decide::lives(lease, start_time(lease.stepd.pid)));
        let records = self.store.all::<DeviceRecord>()?;
        let renamed = records
            .iter()
            .filter_map(|record| leases.iter().find_map(|lease| decide::renamed(record, lease)));
        Ok(renamed.collect())
    }

    /// Takes back all leases of an ended job, and forgets its kernels. Returns the agent's socket with each lease.
    ///
    /// # Errors
    /// Records that can't be read.
    pub fn job_ended(&self, job: JobId) -> Result<Vec<(TakenBack, Agent)>, StoreError> {
        let mut leases = self.store.all::<LeaseRecord>()?;
        leases.retain(|l| l.step.job == job);
        leases.sort_by_key(|l| l.step);
        let mut taken = Vec::new();
        for record in leases {
            taken.extend(self.take_back(record.step)?);
        }
        let kernels = self.store.all::<KernelRecord>()?;
        if !kernels.iter().any(|k| k.key.job == job) {
            return Ok(taken);
        }
        for record in kernels.iter().filter(|k| k.key.job == job) {
            end_all(&self.mounts, &record.cgroup);
        }
        let _lock = self.store.lock("cgroups", LOCK_PATIENCE)?;
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
        let mut kept = match holders.is_empty() {
            true => Vec::new(),
            false => self.kept(&devices, closed && level == Level::Counted),
        };
        if let Err(e) = self.conclude(record, &devices, &kept, &holders, closed) {
            holders.push(kernels(record, Hold::Record, chain(&e)));
            kept = devices;
        }
        TakenBack {
            devices: record.devices.iter().map(|d| d.index).collect(),
            clean: holders.is_empty(),
            blocked: kept.iter().map(|d| d.index).collect(),
            level,
            ended_pids: released.ended,
            holders,
            ..self.taken_back(record.lease, record.epoch, record.step.job)
        }
    }

    /// The devices that aren't free after a take-back with holders: where Linux counts, those with open files, else all.
    fn kept(&self, devices: &[Device], is_counted: bool) -> Vec<Device> {
        let is_free = |device: &Device| {
            let count = self.counter().map(|c| c.open_files(Number::of(device)));
            is_counted && matches!(count, Ok(Ok(0)))
        };
        let held: Vec<Device> = devices.iter().filter(|d| !is_free(d)).cloned().collect();
        // The last one may have become free just now: the next look says so.
        if held.is_empty() { devices.to_vec() } else { held }
    }

    /// Takes the cgroups back; gives what could not be taken.
    fn close_lease(&self, record: &LeaseRecord, devices: &[Device]) -> Vec<Holder> {
        let mut unclosed = Vec::new();
        if record.level == Level::Counted {
            for device in devices {
                let counter = self.counter().map_err(std::io::Error::other);
                if let Err(e) = counter.and_then(|c| c.close(Number::of(device))) {
                    unclosed.push(kernels(record, Hold::Cgroup, chain(&e)));
                }
            }
        }
        if let Err(e) = cgroup::close_devices(&self.mounts, &record.cgroup, &numbers(devices)) {
            unclosed.push(kernels(record, Hold::Cgroup, chain(&e)));
        }
        // Without the lock a neighbour may keep cores that are lent elsewhere: slow, not unsafe.
        let _cpusets = (!record.cores.is_empty()).then(|| self.lock_cpusets().ok());
        if !record.cores.is_empty()
            && let Err(e) = cores::narrow(&self.mounts, &record.cgroup, &record.affinity, &record.cores)
        {
            unclosed.push(kernels(record, Hold::Cgroup, chain(&e)));
        }
        unclosed
    }

    /// The lease's devices, without those of a later lease.
    fn still_its(&self, record: &LeaseRecord) -> Vec<Device> {
        let its = |device: &Device| match self.store.get::<DeviceRecord>(Number::of(device)) {
            Ok(Some(r)) => match r.state {
                DeviceState::Free => r.epoch <= record.epoch,
                DeviceState::Lent { step, .. } | DeviceState::Blocked(Blocked { step, .. }) => {
                    step == record.step
                }
            },
            // A missing or unreadable record: closing twice does no harm.
            _ => true,
        };
        record.devices.iter().filter(|d| its(d)).cloned().collect()
    }

    fn conclude(
        &self,
        record: &LeaseRecord,
        devices: &[Device],
        kept: &[Device],
        holders: &[Holder],
        closed: bool,
    ) -> Result<(), StoreError> {
        for device in devices {
            let known: Option<DeviceRecord> = self.store.get(Number::of(device))?;
            let state = if !kept.contains(device) {
                DeviceState::Free
            } else {
                DeviceState::Blocked(Blocked {
                    step: record.step,
                    lease: record.lease,
                    lessee: record.uid,
                    why: why(holders),
                })
            };
            self.store.put(&DeviceRecord {
                device: known.as_ref().map_or(device, |r| &r.device).clone(),
                epoch: known.map_or(record.epoch, |r| r.epoch.max(record.epoch)),
                pilot: Some(record.step.job),
                state,
            })?;
        }
        if holders.is_empty() {
            self.store.remove::<LeaseRecord>(record.step)
        } else {
            // A free device may be anybody's from now on.
            let (record, devices) = (record.clone(), kept.to_vec());
            self.store.put(&LeaseRecord {
                closed,
                devices,
                ..record
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
            // Nothing proves that the device is free.
            let why = "the counting programs are gone, or began anew, during the lease".to_owned();
            let holders = vec![kernels(record, Hold::OpenFile, why)];
            let ended = Vec::new();
            return (Released { ended, holders }, Level::Scanned);
        }
        let counted = counter;
        // No file is there to be taken off the count: only an operator's word and a look end that.
        let left = word == Word::Operators && counted.is_some_and(|c| is_left(c, &numbers));
        let counter = counter.filter(|_| !lost && !left);
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
            cgroup: Some(&record.cgroup),
            process: record.process,
            service: record.notify.uid,
            rules: self.rules(record.uid, record.notify.uid, counter.is_some()),
            counter,
            dry_run: self.site.dry_run,
        }
        .run(grace, dying);
        if let (true, true, Some(counted)) = (left, released.holders.is_empty(), counted) {
            // A failure here shows at the next grant: the grant refuses a device with a count.
            numbers.iter().for_each(|n| drop(counted.restart(*n)));
        }
        let level = if lost || left {
            Level::Scanned
        } else {
            record.level
        };
        (released, level)
    }
}

/// Whether devices have a count and no counted file, and none has a counted file.
fn is_left(counter: &Counter, numbers: &[Number]) -> bool {
    let count = |n: &Number| counter.open_files(*n).unwrap_or(0);
    numbers.iter().any(|n| count(n) > 0) && numbers.iter().all(|n| counter.files(*n).is_empty())
}

/// The lessee's kernel itself, as what keeps a device.
fn kernels(record: &LeaseRecord, how: Hold, why: String) -> Holder {
    Holder {
        pid: record.process.pid,
        uid: record.uid,
        exe: proc::exe(record.process.pid),
        how,
        why,
    }
}

fn kernel_lock(kernel: StepKey) -> String {
    format!("kernel.{kernel}")
}

fn why(holders: &[Holder]) -> String {
    let holders: Vec<String> = holders.iter().map(ToString::to_string).collect();
    holders.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::Program;
    use crate::count::tests::{NOBODYS, count_one_more, is_admitted};
    use crate::cpuset::CpuSet;

    fn node(run_dir: &Path) -> Node {
        let site = Site {
            run_dir: run_dir.to_owned(),
            node: "n1".to_owned(),
            service_uid: 900,
            ignore_holders: Vec::new(),
            isolation: Isolation::Counted,
            dry_run: true,
        };
        Node::open(site).unwrap()
    }

    /// A lease whose kernel is gone.
    fn lent(number: Number, group: Option<Group>) -> (LeaseRecord, DeviceRecord) {
        let step = StepKey {
            job: JobId(1),
            step: 0,
        };
        let process = ProcessId {
            pid: 1,
            start_time: 1,
        };
        let device = Device {
            index: GpuIndex(0),
            path: "/dev/gpu0".into(),
            major: number.major,
            minor: number.minor,
        };
        let lease = LeaseRecord {
            step,
            lease: LeaseId(2),
            epoch: Epoch(7),
            kernel: step,
            uid: 1000,
            process,
            cgroup: KernelCgroup::V1 {
                devices: "/gone".into(),
                cpuset: None,
                freezer: None,
            },
            level: Level::Counted,
            group,
            devices: vec![device.clone()],
            cores: CpuSet::default(),
            affinity: CpuSet::default(),
            notify: Agent {
                socket: "/nowhere".into(),
                uid: 900,
            },
            grace_ms: 0,
            closed: false,
            stepd: process,
        };
        let record = DeviceRecord {
            device,
            epoch: Epoch(7),
            pilot: Some(JobId(1)),
            state: DeviceState::Lent {
                step,
                lease: LeaseId(2),
            },
        };
        (lease, record)
    }

    #[test]
    fn a_count_without_a_file_needs_an_operators_word() {
        let dir = tempfile::tempdir().unwrap();
        let node = node(dir.path());
        let counter = match node.counter() {
            Ok(counter) => counter,
            Err(why) => {
                eprintln!("SKIPPED: {why}");
                return;
            }
        };
        let group = Group { hierarchy: 0, id: 1 };
        counter.prepare(NOBODYS, group).unwrap();
        count_one_more(counter, NOBODYS);
        let (lease, record) = lent(NOBODYS, Some(group));
        node.store.put(&lease).unwrap();
        node.store.put(&record).unwrap();
        let take_back = |word| node.take_back_by(lease.step, word).unwrap().unwrap().0;
        let ours = take_back(Word::Ours);
        assert_eq!((ours.clean, ours.level), (false, Level::Counted));
        let theirs = take_back(Word::Operators);
        assert_eq!((theirs.clean, theirs.level), (true, Level::Scanned), "{theirs:?}");
        assert_eq!(counter.open_files(NOBODYS).unwrap(), 0);
    }

    /// The device's record can't be written: a folder is in its way, as a full disk would be.
    #[test]
    fn a_free_device_whose_record_cannot_be_written_has_no_holder() {
        let dir = tempfile::tempdir().unwrap();
        let node = node(dir.path());
        let (lease, record) = lent(Number { major: 195, minor: 7 }, None);
        let lease = LeaseRecord {
            level: Level::Scanned,
            ..lease
        };
        node.store.put(&lease).unwrap();
        node.store.put(&record).unwrap();
        let file = dir.path().join("n1/gpus/195-7.json");
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        let taken = node.take_back_by(lease.step, Word::Ours).unwrap().unwrap().0;
        assert!(!taken.clean);
        let told = why(&taken.holders);
        assert!(
            told.starts_with("the end of its lease can't be recorded: "),
            "{told}"
        );
        assert!(!told.contains("process"), "{told}");
    }

    #[test]
    fn a_kernel_without_a_record_is_told_of_the_disk_while_it_is_full() {
        let dir = tempfile::tempdir().unwrap();
        let node = node(dir.path());
        let unknown = || Refusal::UnknownKernel {
            job: JobId(1),
            step: 0,
        };
        assert_eq!(node.reworded(unknown()), unknown());
        std::fs::remove_dir_all(dir.path().join("n1")).unwrap();
        let told = node.reworded(unknown()).to_string();
        assert!(told.starts_with("the node's records: "), "{told}");
        assert_eq!(node.reworded(Refusal::RootKernel), Refusal::RootKernel);
    }

    fn gone_v2() -> KernelCgroup {
        KernelCgroup::V2 {
            task: "/gone".into(),
            base: None,
            program: Program::default(),
        }
    }

    /// As the parts of a heterogeneous step do, one after the other.
    #[test]
    fn a_kernel_whose_step_registers_again_is_forgotten_first() {
        let dir = tempfile::tempdir().unwrap();
        let node = node(dir.path());
        let counter = match node.counter() {
            Ok(counter) => counter,
            Err(why) => {
                eprintln!("SKIPPED: {why}");
                return;
            }
        };
        let key = StepKey {
            job: JobId(1),
            step: 0,
        };
        let group = Group { hierarchy: 0, id: 2 };
        let pid = std::process::id();
        counter.admit(group).unwrap();
        let before = KernelRecord {
            key,
            uid: 1000,
            // Not swept: this process lives.
            process: ProcessId {
                pid,
                start_time: start_time(pid).unwrap(),
            },
            cgroup: gone_v2(),
            group: Some(group),
            denied: Vec::new(),
        };
        node.store.put(&before).unwrap();
        // A process without any confinement by Slurm is no kernel.
        assert_eq!(node.register(key, 1000, pid).unwrap(), None);
        assert_eq!(node.store.get::<KernelRecord>(key).unwrap(), None);
        assert!(!is_admitted(counter, group));
    }

    /// Slurm calls the device by another index since its lease began, and gives it to another step.
    #[test]
    fn a_device_has_slurms_newest_name_and_is_blocked_under_it_while_it_is_lent() {
        let dir = tempfile::tempdir().unwrap();
        let node = node(dir.path());
        let (lease, record) = lent(Number { major: 195, minor: 3 }, None);
        let pid = std::process::id();
        let stepd = ProcessId {
            pid,
            start_time: start_time(pid).unwrap(),
        };
        let lease = LeaseRecord { stepd, ..lease };
        node.store.put(&lease).unwrap();
        node.store.put(&record).unwrap();
        let kernel = KernelRecord {
            key: StepKey {
                job: JobId(2),
                step: 0,
            },
            uid: 1001,
            process: stepd,
            cgroup: gone_v2(),
            group: None,
            denied: Vec::new(),
        };
        let blocked = || {
            let token = Token {
                v: crate::token::VERSION,
                op: crate::token::Op::TakeBack,
                lease: LeaseId(0),
                epoch: Epoch(0),
                pilot: JobId(1),
                notify: "/nowhere".into(),
                grace_ms: 0,
                issued_at: now(),
            };
            let arrival = Arrival {
                step: lease.step,
                job_uid: 900,
                service_uid: 900,
                now: now(),
            };
            let blocked = node.look(&token, &Look::default(), &arrival).unwrap().blocked;
            blocked
                .into_iter()
                .map(|b| (b.index, b.lease))
                .collect::<Vec<_>>()
        };
        assert_eq!(blocked(), []);
        let device = Device {
            index: GpuIndex(1),
            ..record.device
        };
        let refused = node.undo_before(Epoch(8), lease.step, &kernel, &[device]);
        assert!(
            matches!(
                refused,
                Err(Refusal::Blocked {
                    index: GpuIndex(1),
                    ..
                })
            ),
            "{refused:?}"
        );
        assert_eq!(blocked(), [(GpuIndex(1), LeaseId(2))]);
        let stepd = ProcessId {
            start_time: stepd.start_time + 1,
            ..stepd
        };
        let lost = LeaseRecord {
            stepd,
            ..lease.clone()
        };
        node.store.put(&lost).unwrap();
        assert_eq!(blocked(), [], "the next grant undoes a lost lease");
    }

    #[test]
    fn a_lease_in_its_take_back_holds_up_no_kernel_of_its_seat() {
        let dir = tempfile::tempdir().unwrap();
        let node = node(dir.path());
        let (lease, _) = lent(NOBODYS, None);
        let lease = LeaseRecord {
            cores: "1".parse().unwrap(),
            cgroup: gone_v2(),
            ..lease
        };
        node.store.put(&lease).unwrap();
        let _taken_back = node.lock_kernel(lease.kernel).unwrap();
        node.widen_again(lease.kernel.job).unwrap();
    }

    /// A step that found the device without a lease waits for the lock; meanwhile another step lends the device.
    #[test]
    fn a_device_that_was_lent_meanwhile_is_not_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let node = node(dir.path());
        let (lease, record) = lent(Number { major: 195, minor: 0 }, None);
        let device = record.device.clone();
        node.store.put(&lease).unwrap();
        node.store.put(&record).unwrap();
        node.clear_unknown(&device).unwrap();
        let after = node.store.get::<DeviceRecord>(Number::of(&device)).unwrap();
        assert_eq!(after, Some(record));
    }
}
