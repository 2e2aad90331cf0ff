//! After a lease: waits until nobody holds the lease's devices, and ends the holders among the lessee's processes.
//!
//! Only the lessee's processes are ever ended: processes in the kernel's cgroup, and processes of the lessee's uid in a
//! job of Slurm's. If Linux counts ([`crate::count`]), a count of zero ends the wait, and the search may miss holders:
//! it starts with the seen holders, and ends with the whole kernel. Each stage ends more processes than the last, but
//! only while it may lower the count: not once every counted file is seen with somebody else, too. Without a count, a
//! single look at frozen processes must do.

use crate::bpf::Number;
use crate::cgroup::{self, Frozen};
use crate::count::{Counter, Look, Opener, Sight, Sighting};
use crate::decide::{self, Rules, Suspect, Verdict};
use crate::holders::{self, Found};
use crate::mounts::Mounts;
use crate::proc::{self, Membership};
use crate::record::{KernelCgroup, ProcessId};
use crate::token::{Hold, Holder};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long processes may take to go after SIGKILL: closing a GPU with much memory mapped takes a while.
pub(crate) const DYING: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(2);
const ROUND: Duration = Duration::from_millis(50);
/// How long a look may take, while the kernel stands still.
const LOOKING: Duration = Duration::from_secs(2);
/// How long a look may take that is of no use unless it is whole.
const LOOKING_FOR_STRANGERS: Duration = Duration::from_secs(5);
/// As many are named; a record and a line to the agent stay short.
pub(crate) const NAMED: usize = 8;
/// As many are told by their number.
pub(crate) const NUMBERED: usize = 1000;

/// One lease's devices, on their way back.
#[derive(Debug, Clone, Copy)]
pub struct Release<'a> {
    pub mounts: &'a Mounts,
    pub numbers: &'a [Number],
    /// None: the lessee isn't known.
    pub cgroup: Option<&'a KernelCgroup>,
    /// The kernel's registered process, which is ended last.
    pub process: ProcessId,
    /// The service account, whose pilots have the devices.
    pub service: u32,
    pub rules: Rules<'a>,
    /// None: nothing was counted.
    pub counter: Option<&'a Counter>,
    /// End nobody, and say who would be.
    pub dry_run: bool,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Released {
    pub ended: Vec<u32>,
    /// Empty: the devices are free.
    pub holders: Vec<Holder>,
}

/// Processes that a round ends. Each stage goes further, and follows once the last one finds nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Processes seen with a hold on a device.
    Seen,
    /// Processes with a possible hiding place of a device.
    Suspect,
    /// All processes of the kernel but its first.
    Children,
    /// All processes of the kernel.
    Kernel,
}

impl Stage {
    fn next(self) -> Option<Self> {
        match self {
            Self::Seen => Some(Self::Suspect),
            Self::Suspect => Some(Self::Children),
            Self::Children => Some(Self::Kernel),
            Self::Kernel => None,
        }
    }
}

/// Those that were sent SIGKILL.
#[derive(Debug, Default)]
struct Ended(BTreeMap<u32, OwnedFd>);

impl Ended {
    fn dying(&self) -> Vec<u32> {
        let alive = |fd: &OwnedFd| {
            let mut poll = [rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN)];
            let now = rustix::event::Timespec::default();
            matches!(rustix::event::poll(&mut poll, Some(&now)), Ok(0))
        };
        self.0
            .iter()
            .filter(|(_, fd)| alive(fd))
            .map(|(pid, _)| *pid)
            .collect()
    }

    /// The pidfd keeps the process from being another of the same number: `still` looks once more after the open.
    fn end(&mut self, pid: u32, still: impl FnOnce() -> bool) -> bool {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let Some(Ok(pidfd)) = raw.map(|raw| pidfd_open(raw, PidfdFlags::empty())) else {
            return false;
        };
        let sent = still() && pidfd_send_signal(&pidfd, Signal::KILL).is_ok();
        if sent {
            self.0.insert(pid, pidfd);
        }
        sent
    }
}

impl Release<'_> {
    /// Waits for the grace, then ends who is to be ended, for at most `dying`.
    pub fn run(&self, grace: Duration, dying: Duration) -> Released {
        if self.numbers.is_empty() || self.wait(Instant::now() + grace) {
            return Released::default();
        }
        // Without this sight, holders seen through /proc are ended as suspects.
        let sight = self.counter.and_then(|_| Sight::of(self.numbers).ok());
        let mut ended = Ended::default();
        let deadline = Instant::now() + dying;
        let mut stage = Stage::Seen;
        let mut free = false;
        while !self.dry_run && !free && Instant::now() < deadline {
            let any = self.round(stage, sight.as_ref(), &mut ended, deadline) || !ended.dying().is_empty();
            if !any {
                match stage.next() {
                    Some(next) if !self.only_others_hold(sight.as_ref()) => stage = next,
                    _ => break,
                }
            }
            free = self.wait(deadline.min(Instant::now() + if any { ROUND } else { LOOK_AGAIN }));
        }
        let free = free || self.wait(Instant::now());
        Released {
            holders: if free {
                Vec::new()
            } else {
                self.holders(sight.as_ref(), &ended)
            },
            ended: ended.0.into_keys().take(NUMBERED).collect(),
        }
    }

    /// Whether the devices became free before the deadline.
    fn wait(&self, deadline: Instant) -> bool {
        loop {
            if self.is_free() {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            // A look holds the kernel still: not for most of the time.
            let pause = if self.counter.is_some() { LOOK_AGAIN } else { ROUND };
            std::thread::sleep(left.min(pause));
        }
    }

    fn is_free(&self) -> bool {
        match self.counter {
            Some(counter) => self
                .numbers
                .iter()
                .all(|n| counter.open_files(*n).is_ok_and(|c| c == 0)),
            None => {
                let _still = self.freeze();
                let (found, whole) = self.search();
                whole && self.judge(found).is_empty()
            }
        }
    }

    fn freeze(&self) -> Option<Frozen> {
        self.cgroup.map(|c| cgroup::freeze(self.mounts, c))
    }

    fn suspect(&self, found: Found) -> Option<Suspect> {
        Some(Suspect {
            real_uid: proc::real_uid(found.pid)?,
            exe: proc::exe(found.pid),
            how: found.how,
            in_kernel: self.in_kernel(found.pid),
            in_job: Membership::of(found.pid).is_ok_and(|m| m.in_job()),
        })
    }

    fn in_kernel(&self, pid: u32) -> bool {
        self.cgroup.is_some_and(|c| cgroup::holds(c, pid))
    }

    fn is_lessees(&self, pid: u32) -> bool {
        let how = Hold::Descriptor;
        self.suspect(Found { pid, how })
            .is_some_and(|s| decide::is_lessees(&s, self.rules.lessee))
    }

    /// The relevant ones of the processes, each with its verdict.
    fn judge(&self, found: impl IntoIterator<Item = Found>) -> Vec<(Found, Suspect, Verdict)> {
        let judged = found.into_iter().filter_map(|found| {
            let suspect = self.suspect(found)?;
            let verdict = decide::judge(&suspect, &self.rules);
            (verdict != Verdict::Ignore).then_some((found, suspect, verdict))
        });
        judged.collect()
    }

    /// Ends the processes named by the stage, and tracers in the way of an end; false without any. Each process is
    /// looked up once: a user may have any number of descriptors.
    fn round(&self, stage: Stage, sight: Option<&Sight>, ended: &mut Ended, deadline: Instant) -> bool {
        let _still = self.freeze();
        let mut targets: BTreeSet<u32> = match stage {
            Stage::Seen if self.counter.is_some() => {
                self.sightings(sight).into_iter().map(|s| s.pid).collect()
            }
            Stage::Seen | Stage::Suspect => self.holding(stage == Stage::Suspect),
            Stage::Children | Stage::Kernel => {
                let all = self.cgroup.map(|c| cgroup::processes(self.mounts, c));
                let all = all.unwrap_or_default().into_iter();
                all.map(i32::cast_unsigned)
                    .filter(|pid| stage == Stage::Kernel || *pid != self.process.pid)
                    .collect()
            }
        };
        targets.extend(ended.dying().into_iter().flat_map(proc::tracers));
        targets.retain(|pid| !ended.0.contains_key(pid));
        let mut any = false;
        // Some are ended, even if the look took all the time.
        let deadline = deadline.max(Instant::now() + ROUND);
        for pid in targets.into_iter().take_while(|_| Instant::now() < deadline) {
            any |= ended.end(pid, || self.is_lessees(pid));
        }
        for pid in ended.dying() {
            cgroup::thaw(self.mounts, pid);
        }
        any
    }

    /// Processes in jobs that hold a file of the devices outside of any lease, or keep the look for them from its end.
    /// Root's and the service account's processes may hold one.
    pub fn strangers(&self) -> Vec<Holder> {
        if self.counter.is_none() {
            return Vec::new();
        }
        let look = Sight::of(self.numbers)
            .ok()
            .and_then(|s| s.look(LOOKING_FOR_STRANGERS).ok());
        let Look { seen, stopped } = look.unwrap_or(Look {
            seen: Vec::new(),
            stopped: Some(0),
        });
        let mut holders = Vec::new();
        for found in found(seen) {
            let suspect = self.suspect(found);
            let may = |s: &Suspect| !s.in_job || s.real_uid == 0 || s.real_uid == self.service;
            if let Some(suspect) = suspect.filter(|s| !may(s)) {
                holders.push(Holder {
                    pid: found.pid,
                    uid: suspect.real_uid,
                    exe: suspect.exe,
                    how: found.how,
                    why: "it is a job's, and has had it since before the pilot".to_owned(),
                });
            }
        }
        holders.extend(stopped.map(unseen));
        holders.truncate(NAMED);
        holders
    }

    /// Processes seen with a counted file of the devices.
    fn sightings(&self, sight: Option<&Sight>) -> Vec<Sighting> {
        let files: HashSet<u64> = self.files().into_iter().map(|(file, _)| file).collect();
        let Look { mut seen, .. } = sight.and_then(|s| s.look(LOOKING).ok()).unwrap_or_default();
        seen.retain(|s| files.contains(&s.file));
        seen
    }

    fn files(&self) -> Vec<(u64, Opener)> {
        let of = |counter: &Counter| self.numbers.iter().flat_map(|n| counter.files(*n)).collect();
        self.counter.map(of).unwrap_or_default()
    }

    /// Whether ending the lessee's processes would free nothing: somebody else is seen with every open file.
    fn only_others_hold(&self, sight: Option<&Sight>) -> bool {
        if self.counter.is_none() {
            let seen = self.judge(self.search().0);
            return seen.iter().all(|(.., verdict)| *verdict != Verdict::End);
        }
        let mut files: HashSet<u64> = self.files().into_iter().map(|(file, _)| file).collect();
        let counted = !files.is_empty();
        let seen = self.sightings(sight);
        let mut others: BTreeSet<u32> = seen.iter().map(|s| s.pid).collect();
        others.retain(|pid| !self.is_lessees(*pid));
        for seen in seen.iter().filter(|s| others.contains(&s.pid)) {
            files.remove(&seen.file);
        }
        counted && files.is_empty()
    }

    /// A look through `/proc`, with the answer whether it was whole.
    fn search(&self) -> (Vec<Found>, bool) {
        let pids = holders::all_processes();
        pids.map_or_else(
            |_| (Vec::new(), false),
            |pids| holders::among(&pids, self.numbers),
        )
    }

    /// The lessee's processes that hold a device, or may.
    fn holding(&self, suspects: bool) -> BTreeSet<u32> {
        let mut pids = holders::all_processes().unwrap_or_default();
        pids.retain(|pid| self.is_lessees(*pid));
        let found = holders::among(&pids, self.numbers).0.into_iter();
        found.filter(|f| suspects || f.is_sure()).map(|f| f.pid).collect()
    }

    /// Remaining holders, for reports: the seen ones, the openers of counted files, and who keeps others from being
    /// seen.
    fn holders(&self, sight: Option<&Sight>, ended: &Ended) -> Vec<Holder> {
        let (judged, whole) = if self.counter.is_some() {
            (self.judge(found(self.sightings(sight))), true)
        } else {
            let (found, whole) = self.search();
            (self.judge(found), whole)
        };
        let sure = judged.into_iter().filter(|(found, ..)| found.is_sure());
        let mut holders: Vec<Holder> = sure
            .map(|(found, suspect, verdict)| self.describe(found, suspect, &verdict, ended))
            .collect();
        let openers: BTreeSet<Opener> = self.files().into_iter().map(|(_, opener)| opener).collect();
        holders.extend(openers.into_iter().map(|opener| Holder {
            pid: opener.pid,
            uid: opener.uid,
            exe: proc::exe(opener.pid),
            how: Hold::OpenFile,
            why: "what it opened during the lease is open still, here or elsewhere".to_owned(),
        }));
        if !whole {
            holders.push(unseen(0));
        }
        if holders.is_empty() {
            holders.push(Holder {
                pid: 0,
                uid: self.rules.lessee,
                exe: String::new(),
                how: Hold::OpenFile,
                why: "it held the device a moment ago".to_owned(),
            });
        }
        holders.truncate(NAMED);
        holders
    }

    fn describe(&self, found: Found, suspect: Suspect, verdict: &Verdict, ended: &Ended) -> Holder {
        let why = match verdict {
            Verdict::Block(_) if self.counter.is_some() => "it has a file that the lessee opened",
            Verdict::Block(why) => why,
            _ if self.dry_run => "it would be ended, were it not for dry_run",
            _ if ended.0.contains_key(&found.pid) => "it was sent SIGKILL and has not ended",
            _ => "it took the device when others were ended",
        };
        Holder {
            pid: found.pid,
            uid: suspect.real_uid,
            exe: suspect.exe,
            how: found.how,
            why: why.to_owned(),
        }
    }
}

fn found(seen: Vec<Sighting>) -> BTreeSet<Found> {
    let found = |Sighting { pid, how, .. }| Found { pid, how };
    seen.into_iter().map(found).collect()
}

/// The process that kept a look from being whole, so that others weren't seen: whose memory nobody may look at, else
/// where the look stopped.
fn unseen(stopped: u32) -> Holder {
    let pid = holders::locked().unwrap_or(stopped);
    Holder {
        pid,
        uid: proc::real_uid(pid).unwrap_or(u32::MAX),
        exe: proc::exe(pid),
        how: Hold::Unseen,
        why: "the look for holders got no further than this process".to_owned(),
    }
}

/// Ends all processes of a kernel whose job is over, as its slurmstepd would have had it not been killed.
pub(crate) fn end_all(mounts: &Mounts, cgroup: &KernelCgroup) {
    let deadline = Instant::now() + Duration::from_secs(2);
    let mut ended = Ended::default();
    loop {
        let processes = cgroup::processes(mounts, cgroup);
        if processes.is_empty() || Instant::now() >= deadline {
            return;
        }
        let still = cgroup::freeze(mounts, cgroup);
        for pid in processes.into_iter().map(i32::cast_unsigned) {
            ended.end(pid, || cgroup::holds(cgroup, pid));
        }
        drop(still);
        std::thread::sleep(LOOK_AGAIN);
    }
}
