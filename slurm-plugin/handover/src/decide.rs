//! Conditions for handing a device to a kernel, and verdicts on processes that must let go of it afterwards.
//!
//! Pure: the facts come from [`crate::node`], which also carries out the answers. The order of the checks is
//! part of the contract: who calls comes before what is asked, and nothing is touched before all have passed.

use crate::probe::DeviceFile;
use crate::record::{Blocked, DeviceRecord, DeviceState, KernelRecord, LeaseRecord, StepKey};
use crate::token::{BlockedDevice, Device, Hold, KernelProcess, Lend, MAX_AGE_S, Refusal, Token};
use hop_words::id::{Epoch, GpuIndex};
use hop_words::time::Timestamp;

/// Circumstances of a token, as told by Slurm and MUNGE.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// The step that carried it.
    pub step: StepKey,
    /// The owner of that step's job.
    pub job_uid: u32,
    /// The service account, which made the credential.
    pub service_uid: u32,
    pub now: Timestamp,
}

/// Checks that the token is the service account's, made in the account's job for this pilot, and fresh.
///
/// # Errors
/// The first failed check.
pub fn check_arrival(token: &Token, at: &Arrival) -> Result<(), Refusal> {
    if at.job_uid != at.service_uid {
        return Err(Refusal::JobOfOther { uid: at.job_uid });
    }
    if token.pilot != at.step.job {
        return Err(Refusal::WrongPilot {
            token: token.pilot,
            step: at.step.job,
        });
    }
    let age_s = at.now.since(token.issued_at).0 / 1_000_000;
    if age_s > MAX_AGE_S {
        return Err(Refusal::TooOld { age_s });
    }
    Ok(())
}

/// A kernel's process as `/proc` shows it now.
#[derive(Debug, Clone, Copy)]
pub struct LiveProcess {
    /// None: there is no such process.
    pub start_time: Option<u64>,
    /// The process is in the cgroup of its record.
    pub in_its_cgroup: bool,
}

/// Checks that the executor is the process started by Slurm as this user's kernel step.
///
/// # Errors
/// The first failed check.
pub fn check_kernel<'a>(
    wanted: &KernelProcess,
    record: Option<&'a KernelRecord>,
    live: LiveProcess,
) -> Result<&'a KernelRecord, Refusal> {
    let unknown = Refusal::UnknownKernel {
        job: wanted.seat_job,
        step: wanted.seat_step,
    };
    let record = record.ok_or(unknown)?;
    if wanted.uid != record.uid {
        return Err(Refusal::WrongUid {
            token: wanted.uid,
            record: record.uid,
        });
    }
    if record.uid == 0 {
        return Err(Refusal::RootKernel);
    }
    let same = record.process.pid == wanted.pid && record.process.start_time == wanted.start_time;
    if !same || live.start_time != Some(record.process.start_time) {
        return Err(Refusal::WrongProcess { pid: wanted.pid });
    }
    if !live.in_its_cgroup {
        return Err(Refusal::OutsideItsStep { pid: wanted.pid });
    }
    Ok(record)
}

/// Checks that the step holds the lease's devices, by Slurm's word and by a try to open them. Returns the devices with
/// Slurm's indices, which are names alone.
///
/// # Errors
/// [`Refusal::WrongGpus`].
pub fn lent_devices(lend: &Lend, names: &[GpuIndex], opens: &[DeviceFile]) -> Result<Vec<Device>, Refusal> {
    let number = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
    let (step, opening) = (number(names.len()), number(opens.len()));
    if (step, opening) != (lend.gpus, lend.gpus) {
        return Err(Refusal::WrongGpus {
            token: lend.gpus,
            step,
            opens: opening,
        });
    }
    let device = |(index, file): (&GpuIndex, &DeviceFile)| Device {
        index: *index,
        path: file.path.clone(),
        major: file.number.major,
        minor: file.number.minor,
    };
    Ok(names.iter().zip(opens).map(device).collect())
}

/// First step of a device's grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// The last lease was taken back cleanly.
    Nothing,
    /// Nothing is known of it since the node booted: look for holders.
    Unknown,
    /// Undo this lease of an earlier step.
    Undo(StepKey),
}

/// Decides whether the device may be granted under this epoch, and whether anything must be undone first.
///
/// # Errors
/// [`Refusal::StaleEpoch`].
pub fn check_device(index: GpuIndex, record: Option<&DeviceRecord>, epoch: Epoch) -> Result<Before, Refusal> {
    let Some(record) = record else {
        return Ok(Before::Unknown);
    };
    if epoch <= record.epoch {
        return Err(Refusal::StaleEpoch {
            epoch,
            last: record.epoch,
            index,
        });
    }
    Ok(match record.state {
        DeviceState::Free => Before::Nothing,
        DeviceState::Lent { step, .. } | DeviceState::Blocked(Blocked { step, .. }) => Before::Undo(step),
    })
}

/// Whether a lease has the slurmstepd that takes the lease back at its end.
///
/// `stepd`: the start time of the process with that slurmstepd's pid now.
pub fn lives(lease: &LeaseRecord, stepd: Option<u64>) -> bool {
    !lease.closed && stepd == Some(lease.stepd.start_time)
}

/// Decides whether a grant of the device may undo this lease of it. A lease that lives keeps the device: Slurm gives one
/// device to two steps once it calls the device by another index than at the first one's start.
///
/// # Errors
/// [`Refusal::Blocked`].
pub fn check_undo(index: GpuIndex, lease: &LeaseRecord, stepd: Option<u64>) -> Result<(), Refusal> {
    if !lives(lease, stepd) {
        return Ok(());
    }
    let why = why_lent(lease);
    Err(Refusal::Blocked { index, why })
}

fn why_lent(lease: &LeaseRecord) -> String {
    format!(
        "it is lent to lease {}, which lives. Slurm gave it to another step as well, as after a change of the GPUs' \
         order in gres.conf",
        lease.lease
    )
}

/// The device as a blocked one under Slurm's newest name, if the lease has it under another.
pub fn renamed(record: &DeviceRecord, lease: &LeaseRecord) -> Option<BlockedDevice> {
    let device = &record.device;
    let is_its = matches!(record.state, DeviceState::Lent { step, .. } if step == lease.step);
    let is_renamed =
        |d: &Device| (d.major, d.minor) == (device.major, device.minor) && d.index != device.index;
    (is_its && lease.devices.iter().any(is_renamed)).then(|| BlockedDevice {
        index: device.index,
        lease: lease.lease,
        why: why_lent(lease),
    })
}

/// A process seen with a device after its cgroup was denied the device.
#[derive(Debug, Clone)]
pub struct Suspect {
    /// The real uid: a setuid program that a user started counts as the user's.
    pub real_uid: u32,
    pub exe: String,
    pub how: Hold,
    /// It is in the cgroup of the lease's kernel.
    pub in_kernel: bool,
    /// It is in a job of Slurm's.
    pub in_job: bool,
}

/// Whose hold counts how.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    /// The lease's user.
    pub lessee: u32,
    pub service_uid: u32,
    /// Programs outside all jobs that the site allows to hold the devices.
    pub ignore: &'a [String],
}

/// What becomes of a holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It may go on.
    Ignore,
    /// It is the lessee's, and is ended when the grace is over.
    End,
    /// Not ours to end: the device stays blocked while the process holds it.
    Block(&'static str),
}

/// Is it the lessee's: in the kernel's cgroup, or of the lessee's uid in a job? Nobody else is ever ended.
pub fn is_lessees(suspect: &Suspect, lessee: u32) -> bool {
    suspect.in_kernel || suspect.in_job && suspect.real_uid == lessee
}

/// Decides about one holder. A mere hiding place in another user's process proves nothing: anybody can put a
/// descriptor into a stranger's socket.
pub fn judge(suspect: &Suspect, rules: &Rules<'_>) -> Verdict {
    if is_lessees(suspect, rules.lessee) {
        return Verdict::End;
    }
    let allowed = !suspect.in_job && rules.ignore.contains(&suspect.exe);
    let sure = matches!(suspect.how, Hold::Descriptor | Hold::Mapping);
    if suspect.real_uid == rules.service_uid || allowed || !sure {
        return Verdict::Ignore;
    }
    Verdict::Block(
        "it isn't the lessee's to be ended; name its program in ignore_holders= if it may hold GPUs",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::{Number, Program};
    use crate::cpuset::CpuSet;
    use crate::record::{Agent, KernelCgroup, ProcessId};
    use crate::token::{Level, Op, VERSION};
    use hop_words::id::{JobId, LeaseId};
    use proptest::prelude::*;

    const SERVICE: u32 = 900;
    const PILOT: StepKey = StepKey {
        job: JobId(10),
        step: 4,
    };
    const SEAT: StepKey = StepKey {
        job: JobId(20),
        step: 1,
    };

    fn kernel() -> KernelProcess {
        KernelProcess {
            uid: 1000,
            pid: 77,
            start_time: 5,
            seat_job: SEAT.job,
            seat_step: SEAT.step,
        }
    }

    fn token() -> Token {
        Token {
            v: VERSION,
            op: Op::Lend(Lend {
                kernel: kernel(),
                gpus: 1,
                cpus: 0,
            }),
            lease: LeaseId(1),
            epoch: Epoch(8),
            pilot: PILOT.job,
            notify: "/x".into(),
            grace_ms: 1,
            issued_at: Timestamp(1_000_000),
        }
    }

    fn arrival() -> Arrival {
        Arrival {
            step: PILOT,
            job_uid: SERVICE,
            service_uid: SERVICE,
            now: Timestamp(2_000_000),
        }
    }

    fn record() -> KernelRecord {
        KernelRecord {
            key: SEAT,
            uid: 1000,
            process: ProcessId {
                pid: 77,
                start_time: 5,
            },
            cgroup: KernelCgroup::V2 {
                task: "/t".into(),
                base: None,
                program: Program::default(),
            },
            group: None,
            denied: Vec::new(),
        }
    }

    fn file(minor: u32) -> DeviceFile {
        let path = format!("/dev/gpu{minor}").into();
        let number = Number { major: 195, minor };
        DeviceFile { number, path }
    }

    fn gpu(index: u16) -> Device {
        let lend = Lend {
            kernel: kernel(),
            gpus: 1,
            cpus: 0,
        };
        let mut devices = lent_devices(&lend, &[GpuIndex(index)], &[file(index.into())]).unwrap();
        devices.remove(0)
    }

    #[test]
    fn what_opens_in_the_step_is_lent_whatever_slurm_calls_it() {
        let lend = |gpus| Lend {
            kernel: kernel(),
            gpus,
            cpus: 0,
        };
        let lent = |gpus, names: &[u16], opens: &[u32]| {
            let names: Vec<GpuIndex> = names.iter().copied().map(GpuIndex).collect();
            let opens: Vec<DeviceFile> = opens.iter().copied().map(file).collect();
            lent_devices(&lend(gpus), &names, &opens)
        };
        // Two types in swapped order: Slurm's GPU 0 is the file of another number.
        let [swapped] = &lent(1, &[0], &[1]).unwrap()[..] else {
            panic!()
        };
        assert_eq!(
            (swapped.index, Number::of(swapped)),
            (GpuIndex(0), file(1).number)
        );
        assert!(lent(0, &[], &[]).unwrap().is_empty());
        let wrong = |gpus, names: &[u16], opens: &[u32]| match lent(gpus, names, opens) {
            Err(Refusal::WrongGpus { token, step, opens }) => (token, step, opens),
            other => panic!("{other:?}"),
        };
        // More opens than was asked for, less, or other than Slurm says; cores alone with a device that opens.
        assert_eq!(wrong(1, &[0], &[0, 1]), (1, 1, 2));
        assert_eq!(wrong(1, &[0], &[]), (1, 1, 0));
        assert_eq!(wrong(2, &[0], &[0, 1]), (2, 1, 2));
        assert_eq!(wrong(0, &[], &[3]), (0, 0, 1));
    }

    const ALIVE: LiveProcess = LiveProcess {
        start_time: Some(5),
        in_its_cgroup: true,
    };

    #[test]
    fn only_the_service_account_for_this_pilot_and_in_time() {
        assert_eq!(check_arrival(&token(), &arrival()), Ok(()));
        let cases = [
            (
                Arrival {
                    job_uid: 1000,
                    ..arrival()
                },
                Refusal::JobOfOther { uid: 1000 },
            ),
            (
                Arrival {
                    step: StepKey {
                        job: JobId(11),
                        step: 0,
                    },
                    ..arrival()
                },
                Refusal::WrongPilot {
                    token: JobId(10),
                    step: JobId(11),
                },
            ),
            (
                Arrival {
                    now: Timestamp(302_000_000),
                    ..arrival()
                },
                Refusal::TooOld { age_s: 301 },
            ),
        ];
        for (at, refusal) in cases {
            assert_eq!(check_arrival(&token(), &at), Err(refusal));
        }
    }

    #[test]
    fn the_executor_must_be_the_registered_process() {
        assert!(check_kernel(&kernel(), Some(&record()), ALIVE).is_ok());
        let refused = |wanted: KernelProcess, record: Option<KernelRecord>, live| {
            check_kernel(&wanted, record.as_ref(), live).unwrap_err()
        };
        assert!(matches!(
            refused(kernel(), None, ALIVE),
            Refusal::UnknownKernel { .. }
        ));
        let mallory = KernelProcess {
            uid: 1001,
            ..kernel()
        };
        assert!(matches!(
            refused(mallory, Some(record()), ALIVE),
            Refusal::WrongUid {
                token: 1001,
                record: 1000
            }
        ));
        let root = KernelRecord { uid: 0, ..record() };
        assert_eq!(
            refused(KernelProcess { uid: 0, ..kernel() }, Some(root), ALIVE),
            Refusal::RootKernel
        );
        for wanted in [
            KernelProcess { pid: 78, ..kernel() },
            KernelProcess {
                start_time: 6,
                ..kernel()
            },
        ] {
            assert!(matches!(
                refused(wanted, Some(record()), ALIVE),
                Refusal::WrongProcess { .. }
            ));
        }
        for start_time in [None, Some(6)] {
            let live = LiveProcess { start_time, ..ALIVE };
            assert!(matches!(
                refused(kernel(), Some(record()), live),
                Refusal::WrongProcess { pid: 77 }
            ));
        }
        let elsewhere = LiveProcess {
            in_its_cgroup: false,
            ..ALIVE
        };
        assert!(matches!(
            refused(kernel(), Some(record()), elsewhere),
            Refusal::OutsideItsStep { .. }
        ));
    }

    proptest! {
        #[test]
        fn an_epoch_is_granted_once_and_only_upwards(last: u64, epoch: u64) {
            let record = DeviceRecord { device: gpu(0), epoch: Epoch(last), pilot: None, state: DeviceState::Free };
            let granted = check_device(GpuIndex(0), Some(&record), Epoch(epoch)).is_ok();
            prop_assert_eq!(granted, epoch > last);
        }
    }

    #[test]
    fn what_an_earlier_lease_left_is_undone_first() {
        let device = |state| DeviceRecord {
            device: gpu(1),
            epoch: Epoch(3),
            pilot: None,
            state,
        };
        let before = |state| check_device(GpuIndex(1), Some(&device(state)), Epoch(4)).unwrap();
        assert_eq!(before(DeviceState::Free), Before::Nothing);
        assert_eq!(
            before(DeviceState::Lent {
                step: PILOT,
                lease: LeaseId(2)
            }),
            Before::Undo(PILOT)
        );
        let blocked = DeviceState::Blocked(Blocked {
            step: PILOT,
            lease: LeaseId(2),
            lessee: 1000,
            why: String::new(),
        });
        assert_eq!(before(blocked), Before::Undo(PILOT));
        assert_eq!(check_device(GpuIndex(1), None, Epoch(0)), Ok(Before::Unknown));
    }

    #[test]
    fn a_grant_undoes_no_lease_whose_slurmstepd_lives() {
        let stepd = ProcessId {
            pid: 41,
            start_time: 6,
        };
        let lease = |closed| LeaseRecord {
            step: PILOT,
            lease: LeaseId(2),
            epoch: Epoch(3),
            kernel: SEAT,
            uid: 1000,
            process: record().process,
            cgroup: record().cgroup,
            level: Level::Counted,
            group: None,
            devices: vec![gpu(0)],
            cores: CpuSet::default(),
            affinity: CpuSet::default(),
            notify: Agent {
                socket: "/x".into(),
                uid: SERVICE,
            },
            grace_ms: 1,
            closed,
            stepd,
        };
        // Slurm calls the device by another index since.
        let refused = check_undo(GpuIndex(1), &lease(false), Some(6)).unwrap_err();
        let told = refused.to_string();
        assert!(
            told.starts_with("GPU 1 is blocked: it is lent to lease 2, which lives."),
            "{told}"
        );
        for (closed, stepd) in [(false, None), (false, Some(7)), (true, Some(6))] {
            assert_eq!(
                check_undo(GpuIndex(1), &lease(closed), stepd),
                Ok(()),
                "{stepd:?}"
            );
        }
    }

    #[test]
    fn only_what_is_the_lessees_is_ended() {
        let ignore = ["/usr/bin/nvidia-persistenced".to_owned()];
        let rules = Rules {
            lessee: 1000,
            service_uid: SERVICE,
            ignore: &ignore,
        };
        let verdict = |real_uid, exe: &str, how, in_kernel, in_job| {
            let exe = exe.to_owned();
            judge(
                &Suspect {
                    real_uid,
                    exe,
                    how,
                    in_kernel,
                    in_job,
                },
                &rules,
            )
        };
        let block = |v| matches!(v, Verdict::Block(_));
        for how in [Hold::Descriptor, Hold::Mapping, Hold::IoUring, Hold::InFlight] {
            let sure = matches!(how, Hold::Descriptor | Hold::Mapping);
            assert_eq!(verdict(1000, "python3", how, true, true), Verdict::End);
            assert_eq!(verdict(0, "/usr/bin/su", how, true, true), Verdict::End);
            assert_eq!(verdict(1000, "python3", how, false, true), Verdict::End);
            // A login of the lessee's, another user, root, a system account's daemon.
            for (uid, in_job) in [
                (1000, false),
                (1001, true),
                (1001, false),
                (0, false),
                (109, false),
            ] {
                assert_eq!(
                    block(verdict(uid, "x", how, false, in_job)),
                    sure,
                    "{uid} {in_job}"
                );
            }
            assert_eq!(verdict(109, &ignore[0], how, false, false), Verdict::Ignore);
            assert_eq!(block(verdict(1001, &ignore[0], how, false, true)), sure);
            assert_eq!(
                verdict(SERVICE, "/opt/hop-agent", how, false, true),
                Verdict::Ignore
            );
        }
    }
}
