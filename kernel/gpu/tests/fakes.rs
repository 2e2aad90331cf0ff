//! Rungs (a) and (c) against the fake libcuda and NVML of `tests/fakes`, with faults at each call, and the helper as
//! two users. Real processes throughout: only the driver and NVML are fakes.

#![allow(unsafe_code)] // environment of the fakes, and one thread as another user
#![allow(
    clippy::disallowed_methods,
    reason = "the fakes are loaded into this very process"
)]
#![allow(clippy::unwrap_used, reason = "a test's helpers are tests, too")]

use hop_gpu::Pid;
use hop_gpu::driver::{Api, Driver, DriverError, GpuUuid, ProcessState, Step};
use hop_gpu::helper::Client;
use hop_gpu::inspect::{Site, Sources};
use hop_gpu::ladder::{Place, Reason, Rung};
use hop_gpu::machine::{Call, Outcome};
use hop_gpu::park::{self, NoRestart, ParkContext, ParkError, Report};
use hop_gpu::procs::Procs;
use hop_gpu::reserve::Want;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const FAKE: &str = "GPU-fa4e0000-0000-0000-0000-000000000001";

/// The fakes, built once for this test binary.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("fakes-{}", std::process::id()));
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fakes/build.sh");
        let status = Command::new("sh").arg(script).arg(&out).status().unwrap();
        assert!(status.success(), "the fakes can't be built");
        out
    })
}

fn example(name: &str) -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.join("examples").join(name)
}

/// One fake GPU of its own.
struct World {
    dir: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("fake-gpu").tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        fs::create_dir(dir.path().join("dev")).unwrap();
        fs::create_dir(dir.path().join("run")).unwrap();
        fs::set_permissions(dir.path().join("run"), fs::Permissions::from_mode(0o700)).unwrap();
        let world = Self { dir };
        for file in ["dev/nvidia0", "dev/nvidiactl"] {
            world.set(file, "");
            fs::set_permissions(world.path(file), fs::Permissions::from_mode(0o666)).unwrap();
        }
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn set(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn unset(&self, name: &str) {
        fs::remove_file(self.path(name)).unwrap();
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env("FAKE_GPU_DIR", self.dir.path())
            .env("FAKE_LIBCUDA", built().join("libcuda.so.1"));
        command
    }

    fn sources(&self) -> Sources {
        Sources {
            procs: Procs {
                dev_prefix: self.path("dev/nvidia").display().to_string(),
                ..Procs::default()
            },
            libcuda: Some(built().join("libcuda.so.1")),
            libnvml: Some(built().join("libnvidia-ml.so.1")),
            helper: self.path("no-helper.sock"),
            dir: Some(self.path("run")),
            deadline: Duration::from_secs(1),
            ..Sources::default()
        }
    }

    /// The fake libraries read the environment of the process that loads them: this one.
    fn site(&self) -> Site {
        // SAFETY: each test runs in a process of its own, where no other thread reads the environment meanwhile.
        unsafe {
            std::env::set_var("FAKE_GPU_DIR", self.dir.path());
        }
        Site::open(self.sources())
    }

    fn reserver(&self) -> impl Fn(Want) -> Command {
        |want: Want| {
            let mut command = self.command(&example("hold"));
            command
                .arg("reserve")
                .arg(want.device.to_string())
                .arg(want.bytes.to_string());
            command
        }
    }

    fn park(&self, site: &Site, pid: Pid) -> Result<Report, ParkError> {
        park::park(site, pid, &self.context(&self.reserver(), None))
    }

    fn unpark(&self, site: &Site, pid: Pid) -> Result<Report, ParkError> {
        park::unpark(site, pid, &[], &self.context(&self.reserver(), None))
    }

    fn park_mid_cell(&self, site: &Site, pid: u32) -> Result<Report, ParkError> {
        let reserver = self.reserver();
        let context = ParkContext {
            mid_cell: true,
            ..self.context(&reserver, None)
        };
        park::park(site, Pid::try_from(pid).unwrap(), &context)
    }

    fn context<'a>(&self, reserver: &'a dyn Fn(Want) -> Command, only: Option<Rung>) -> ParkContext<'a> {
        ParkContext {
            reserver,
            progress: &|_| {},
            restart: &NoRestart,
            only,
            mid_cell: false,
        }
    }
}

/// A process with a known pattern on the fake device.
struct Subject {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Subject {
    fn start(world: &World, bytes: u64) -> Self {
        Self::start_as(world, bytes, None)
    }

    fn start_as(world: &World, bytes: u64, uid: Option<u32>) -> Self {
        let mut command = world.command(&example("hold"));
        command
            .arg("pattern")
            .arg(bytes.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (
            child.stdin.take().unwrap(),
            BufReader::new(child.stdout.take().unwrap()),
        );
        let mut subject = Self { child, stdin, stdout };
        assert_eq!(subject.line(), "ready");
        subject
    }

    fn pid(&self) -> Pid {
        Pid::try_from(self.child.id()).unwrap()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Whether its device memory still holds the pattern.
    fn is_whole(&mut self) -> bool {
        writeln!(self.stdin).unwrap();
        self.line() == "same"
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn there_and_back_with_proof() {
    let world = World::new();
    let mut subject = Subject::start(&world, 64 * MIB);
    let site = world.site();
    let look = site.look(subject.pid()).unwrap();
    assert_eq!(look.found.device_bytes, Some(72 * MIB));
    assert_eq!(look.state, Some(ProcessState::Running));

    let report = world.park(&site, subject.pid()).unwrap();
    assert_eq!(
        (report.rung, &report.outcome),
        (Some(Rung::Checkpoint), &Outcome::Parked)
    );
    assert!(report.left.unwrap().is_empty());
    let calls: Vec<Call> = report.log.calls.iter().map(|(call, _)| *call).collect();
    assert_eq!(calls, [Call::Lock, Call::Checkpoint, Call::Prove]);
    assert!(
        report
            .passed_over
            .contains(&(Rung::CopyOut, vec![Reason::NoAgent]))
    );
    assert_eq!(site.sample().unwrap().devices[0].memory_used, Some(0));
    assert!(matches!(
        world.park(&site, subject.pid()),
        Err(ParkError::AlreadyParked { .. })
    ));

    let report = world.unpark(&site, subject.pid()).unwrap();
    assert_eq!(report.outcome, Outcome::Unparked);
    assert!(subject.is_whole());
    assert!(matches!(
        world.unpark(&site, subject.pid()),
        Err(ParkError::NotParked { .. })
    ));
}

#[test]
fn a_process_that_never_touched_cuda_needs_nothing() {
    let world = World::new();
    let mut child = Command::new("sleep").arg("20").spawn().unwrap();
    let site = world.site();
    let report = world.park(&site, Pid::try_from(child.id()).unwrap()).unwrap();
    assert_eq!(
        (report.rung, report.outcome),
        (Some(Rung::Nothing), Outcome::Parked)
    );
    assert_eq!(report.log.calls, []);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Each driver call of a park and an unpark, failing and hanging in turn: it ends in time, and the memory is whole.
#[test]
fn a_fault_at_each_call_loses_nothing_and_never_hangs() {
    let world = World::new();
    let site = world.site();
    let mut subject = Subject::start(&world, 8 * MIB);
    let calls = ["Lock", "Checkpoint", "Restore", "Unlock"].map(|call| format!("cuCheckpointProcess{call}"));
    for function in &calls {
        for (code, ms) in [(999, 0), (0, 1500), (999, 1500)] {
            let start = Instant::now();
            world.set("inject", &format!("{function} {code} {ms}\n"));
            let parked = world.park(&site, subject.pid());
            let unparked = parked.is_ok().then(|| world.unpark(&site, subject.pid()));
            assert!(
                start.elapsed() < Duration::from_secs(25),
                "{function} {code} {ms}: {:?}",
                start.elapsed()
            );
            let shown = format!("{function} {code} {ms}: {parked:?}, {unparked:?}");
            // The fault is over: whatever came of it, the process comes back whole.
            world.set("inject", "");
            std::thread::sleep(Duration::from_millis(if ms > 0 { 1600 } else { 0 }));
            if site.look(subject.pid()).unwrap().state != Some(ProcessState::Running) {
                let report = world.unpark(&site, subject.pid()).unwrap();
                assert_eq!(report.outcome, Outcome::Unparked, "{shown}");
            }
            assert!(subject.is_whole(), "{shown}");
            site.records(rustix::process::geteuid().as_raw())
                .remove(subject.pid());
        }
    }
}

/// Every function of a fake library.
fn functions(file: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fakes")
        .join(file);
    let text = fs::read_to_string(path).unwrap();
    let names = text.lines().filter_map(|line| {
        let name = line.strip_prefix("EXPORT int ")?.split('(').next()?;
        Some(name.to_owned())
    });
    let names: Vec<String> = names.collect();
    for name in &names {
        assert!(
            text.contains(&format!("INJECT(\"{name}\")")),
            "{name} can't be told to fail"
        );
    }
    names
}

/// Parks and unparks beside another process, so that the reservation is really made, with one function failing or
/// hanging all the while: it ends in time, and once the fault is over the process comes back whole.
fn with_a_fault_at(names: &[String], faults: &[(i32, u64)]) {
    let world = World::new();
    let mut subject = Subject::start(&world, 8 * MIB);
    let mut other = Subject::start(&world, 8 * MIB);
    for name in names {
        for (code, ms) in faults {
            world.set("inject", &format!("{name} {code} {ms}\n"));
            let start = Instant::now();
            let site = world.site();
            let parked = world.park(&site, subject.pid());
            let unparked = parked.is_ok().then(|| world.unpark(&site, subject.pid()));
            let took = start.elapsed();
            let shown = format!("{name} {code} {ms}: {took:?} {parked:?}, {unparked:?}");
            assert!(took < Duration::from_secs(60), "{shown}");
            if let Ok(report) = &parked
                && report.outcome == Outcome::Parked
            {
                let left = report.left.as_ref().unwrap();
                assert!(left.is_empty() && left.unknown.is_empty(), "not proven: {shown}");
            }
            world.set("inject", "");
            std::thread::sleep(Duration::from_millis(*ms));
            let site = world.site();
            let records = site.records(rustix::process::geteuid().as_raw());
            if site.look(subject.pid()).unwrap().state != Some(ProcessState::Running) {
                let report = world.unpark(&site, subject.pid()).unwrap();
                assert_eq!(report.outcome, Outcome::Unparked, "{shown}");
            }
            assert!(subject.is_whole() && other.is_whole(), "{shown}");
            records.remove(subject.pid());
        }
    }
}

#[test]
fn a_refusal_at_each_function_of_libcuda_loses_nothing() {
    with_a_fault_at(&functions("fake_libcuda.c"), &[(999, 0)]);
}

#[test]
fn a_refusal_at_each_function_of_nvml_loses_nothing_and_proves_nothing() {
    with_a_fault_at(&functions("fake_libnvml.c"), &[(999, 0)]);
}

/// One function never answers whoever parks and unparks, nor what that starts: it ends, and calls nothing parked without
/// a proof; whoever comes after it brings the process back whole.
fn with_a_hang_at(name: &str) {
    let world = World::new();
    let mut subject = Subject::start(&world, 8 * MIB);
    let mut other = Subject::start(&world, 8 * MIB);
    let parks = |verb: &str, ms: &str| {
        let mut command = world.command(Path::new("timeout"));
        command
            .args(["--signal=KILL", "30"])
            .arg(example("park"))
            .args([verb, ms, &subject.pid().to_string()])
            .env("FAKE_LIBNVML", built().join("libnvidia-ml.so.1"));
        let done = command.output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{name}: {}: {said}", done.status);
        said.into_owned()
    };
    world.set("inject", &format!("{name} 0 3600000\n"));
    let said = parks("there-and-back", "200");
    world.set("inject", "");
    parks("home", "10000");
    assert!(subject.is_whole() && other.is_whole(), "{name}: {said}");
}

/// Waiting costs nothing, so many are tried at a time.
#[test]
fn a_hang_at_each_function_ends() {
    let names = ["fake_libcuda.c", "fake_libnvml.c"].map(functions).concat();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                    with_a_hang_at(name);
                }
            });
        }
    });
}

#[test]
fn a_driver_that_cannot_say_how_it_stands_is_announced() {
    let world = World::new();
    let site = world.site();
    let subject = Subject::start(&world, MIB);
    world.set(
        "inject",
        "cuCheckpointProcessLock 999\ncuCheckpointProcessGetState 999\n",
    );
    let report = world.park(&site, subject.pid()).unwrap();
    assert!(matches!(report.outcome, Outcome::Broken { .. }), "{report:?}");
}

#[test]
fn a_ruined_process_is_announced() {
    let world = World::new();
    let site = world.site();
    let subject = Subject::start(&world, MIB);
    world.set("ruin", "");
    let report = world.park(&site, subject.pid()).unwrap();
    assert!(
        matches!(
            report.outcome,
            Outcome::Broken {
                frameworks_in_host: false,
                ..
            }
        ),
        "{report:?}"
    );
}

#[test]
fn work_that_does_not_come_to_rest_keeps_the_device() {
    let world = World::new();
    let site = world.site();
    let mut subject = Subject::start(&world, MIB);
    world.set("busy", "");
    let refusal = world.park(&site, subject.pid()).unwrap_err();
    assert!(refusal.to_string().contains("not ready"), "{refusal}");
    world.unset("busy");
    assert!(subject.is_whole());
}

#[test]
fn without_room_the_restore_waits_and_nothing_is_stuck() {
    let world = World::new();
    let site = world.site();
    let mut subject = Subject::start(&world, 64 * MIB);
    assert_eq!(world.park(&site, subject.pid()).unwrap().outcome, Outcome::Parked);
    world.set("others", &(1000 * MIB).to_string());
    let report = world.unpark(&site, subject.pid()).unwrap();
    assert!(
        matches!(report.outcome, Outcome::StillParked { .. }),
        "{report:?}"
    );
    assert!(!report.log.calls.iter().any(|(call, _)| *call == Call::Restore));
    world.unset("others");
    assert_eq!(
        world.unpark(&site, subject.pid()).unwrap().outcome,
        Outcome::Unparked
    );
    assert!(subject.is_whole());
}

/// Somebody else is on the device, so the memory is really taken before the restore, and given up for it.
#[test]
fn beside_others_the_memory_is_held_until_the_restore() {
    let world = World::new();
    let site = world.site();
    let mut subject = Subject::start(&world, 64 * MIB);
    assert_eq!(world.park(&site, subject.pid()).unwrap().outcome, Outcome::Parked);
    let _other = Subject::start(&world, 64 * MIB);
    world.set("inject", "cuDevicePrimaryCtxRetain 999\n");
    let report = world.unpark(&site, subject.pid()).unwrap();
    assert!(
        matches!(report.outcome, Outcome::StillParked { .. }),
        "the reservation was skipped: {report:?}"
    );
    world.set("inject", "");
    assert_eq!(
        world.unpark(&site, subject.pid()).unwrap().outcome,
        Outcome::Unparked
    );
    assert!(subject.is_whole());
}

#[test]
fn in_the_middle_of_a_cell_the_process_is_stopped_and_goes_on() {
    let world = World::new();
    let mut subject = Subject::start(&world, MIB);
    let site = world.site();
    let park = || world.park_mid_cell(&site, subject.child.id());
    let report = park().unwrap();
    assert_eq!(
        (report.rung, &report.outcome),
        (Some(Rung::Checkpoint), &Outcome::Parked)
    );
    assert!(matches!(park(), Err(ParkError::AlreadyParked { .. })));
    assert_eq!(
        world.unpark(&site, subject.pid()).unwrap().outcome,
        Outcome::Unparked
    );
    assert!(subject.is_whole());
    // Whatever fails on the way: it runs on, on its GPU.
    for failing in ["cuCheckpointProcessLock 999", "cuCheckpointProcessCheckpoint 801"] {
        world.set("inject", &format!("{failing}\n"));
        let report = world.park_mid_cell(&site, subject.child.id()).unwrap();
        assert!(
            matches!(report.outcome, Outcome::NotParked { .. }),
            "{failing}: {report:?}"
        );
        world.unset("inject");
        assert!(subject.is_whole(), "{failing}");
    }
    world.set("keeps_file", "");
    let report = world.park_mid_cell(&site, subject.child.id()).unwrap();
    let Outcome::NotParked { why } = report.outcome else {
        panic!("{report:?}")
    };
    assert!(why.contains("dev/nvidia0"), "{why}");
    assert!(subject.is_whole());
}

#[test]
fn who_can_not_be_stopped_in_the_middle_of_a_cell_is_told_why() {
    let world = World::new();
    let subject = Subject::start(&world, MIB);
    let why = |pid| world.park_mid_cell(&world.site(), pid).unwrap_err().to_string();
    let of = |name: &str, value: &str| {
        world.set(name, value);
        let said = why(subject.child.id());
        world.unset(name);
        said
    };
    assert!(of("version", "12040").contains("CUDA 12.4"));
    assert!(of("mig", "").contains("MIG"));
    assert!(of("no_nvml", "").contains("without NVML"));
    let mut idle = Command::new("sleep").arg("20").spawn().unwrap();
    assert!(why(idle.id()).contains("holds no GPU yet"), "{}", why(idle.id()));
    idle.kill().unwrap();
    idle.wait().unwrap();
    // The device in another way than by CUDA.
    let device = fs::File::open(world.path("dev/nvidia0")).unwrap();
    let mut holder = Command::new("sleep").arg("20").stdin(device).spawn().unwrap();
    assert!(
        why(holder.id()).contains("another way than by CUDA"),
        "{}",
        why(holder.id())
    );
    holder.kill().unwrap();
    holder.wait().unwrap();
}

#[test]
fn an_open_device_file_is_not_empty() {
    let world = World::new();
    let site = world.site();
    let mut subject = Subject::start(&world, MIB);
    world.set("keeps_file", "");
    let refusal = world.park(&site, subject.pid()).unwrap_err();
    assert!(refusal.to_string().contains("dev/nvidia0"), "{refusal}");
    assert!(subject.is_whole(), "what wasn't off is back on");
}

/// As `!hop gpu park` does from a notebook: NVML opens the device in the process that looks.
#[test]
fn who_looks_from_below_the_process_is_no_child_that_holds_the_device() {
    let world = World::new();
    let device = || fs::File::open(world.path("dev/nvidia0")).unwrap();
    let _own = device();
    let site = world.site();
    let parent = Pid::try_from(std::os::unix::process::parent_id()).unwrap();
    assert_eq!(site.look(parent).unwrap().found.children, [0; 0]);
    let mut other = Command::new("sleep").arg("20").stdin(device()).spawn().unwrap();
    let pid = Pid::try_from(other.id()).unwrap();
    assert_eq!(site.look(parent).unwrap().found.children, [pid]);
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn mig_and_an_old_driver_are_refused_by_name() {
    let world = World::new();
    let subject = Subject::start(&world, MIB);
    world.set("mig", "");
    let refusal = world.park(&world.site(), subject.pid()).unwrap_err();
    assert!(refusal.to_string().contains("MIG"), "{refusal}");
    world.unset("mig");
    world.set("version", "12040");
    let refusal = world.park(&world.site(), subject.pid()).unwrap_err();
    assert!(refusal.to_string().contains("CUDA 12.4"), "{refusal}");
}

/// The fake checks, as the driver does, that unused bytes are zero in its own generation's structures.
#[test]
fn both_generations_of_the_structures_are_spoken() {
    for (version, api) in [("12080", Api::V12_8), ("13000", Api::V13)] {
        let world = World::new();
        world.set("version", version);
        let site = world.site();
        assert_eq!(site.driver.as_ref().unwrap().api(), Some(api));
        let mut subject = Subject::start(&world, MIB);
        assert_eq!(world.park(&site, subject.pid()).unwrap().outcome, Outcome::Parked);
        let other = Place {
            uuid: GpuUuid([9; 16]),
            name: "FAKE GPU".into(),
            total_bytes: 1 << 30,
        };
        let reserver = world.reserver();
        let context = world.context(&reserver, None);
        let moved = park::unpark(&site, subject.pid(), std::slice::from_ref(&other), &context);
        match api {
            Api::V12_8 => assert!(matches!(moved, Err(ParkError::Remap(_))), "{moved:?}"),
            // No such device in the fake NVML, so its memory can't be made sure of.
            Api::V13 => assert!(matches!(moved.unwrap().outcome, Outcome::StillParked { .. })),
        }
        if api == Api::V13 {
            let driver = site.driver.as_ref().unwrap();
            let pairs = vec![hop_gpu::driver::GpuPair {
                old: FAKE.parse().unwrap(),
                new: other.uuid,
            }];
            driver.step(subject.pid(), &Step::Restore { pairs }).unwrap();
            let share = fs::read(world.path(&format!("p.{}", subject.pid()))).unwrap();
            assert!(
                share.windows(16).any(|w| w == [9; 16]),
                "the new device's UUID arrived"
            );
        }
        assert_eq!(
            world.unpark(&site, subject.pid()).unwrap().outcome,
            Outcome::Unparked
        );
        assert!(subject.is_whole());
    }
}

#[test]
fn whoever_parked_may_die_on_the_way() {
    let world = World::new();
    let site = world.site();
    let mut subject = Subject::start(&world, MIB);
    world.park(&site, subject.pid()).unwrap();
    // As if an unpark had been killed between restore and unlock.
    site.driver
        .as_ref()
        .unwrap()
        .step(subject.pid(), &Step::Restore { pairs: Vec::new() })
        .unwrap();
    assert_eq!(
        world.unpark(&site, subject.pid()).unwrap().outcome,
        Outcome::Unparked
    );
    assert!(subject.is_whole());
}

#[test]
fn telemetry_has_devices_processes_and_mig_instances() {
    let world = World::new();
    world.set("mig", "");
    let subject = Subject::start(&world, MIB);
    let sample = world.site().sample().unwrap();
    let [device, instance] = &sample.devices[..] else {
        panic!("{sample:?}")
    };
    assert_eq!(
        (device.power_mw, device.energy_mj, device.utilisation),
        (Some(123_456), Some(7000), Some(37))
    );
    assert_eq!(device.process(subject.pid()).unwrap().memory, Some(9 * MIB));
    assert_eq!(instance.uuid, "MIG-fa4e0000-0000-0000-0000-0000000000aa");
    assert_eq!(
        (instance.parent.as_deref(), instance.power_mw),
        (Some(FAKE), None)
    );
}

#[test]
fn a_machine_without_nvml_says_so_and_goes_on() {
    let world = World::new();
    let mut subject = Subject::start(&world, MIB);
    let site = Site::open(Sources {
        libnvml: Some("/nonexistent/libnvidia-ml.so.1".into()),
        ..world.site().sources
    });
    assert!(
        site.telemetry
            .as_ref()
            .unwrap_err()
            .to_string()
            .contains("NVML can't be used")
    );
    let report = world.park(&site, subject.pid()).unwrap();
    assert_eq!(report.outcome, Outcome::Parked);
    assert!(!report.left.unwrap().nvml);
    assert_eq!(
        world.unpark(&site, subject.pid()).unwrap().outcome,
        Outcome::Unparked
    );
    assert!(subject.is_whole());
}

const ALICE: u32 = 64_001;
const BOB: u32 = 64_002;

/// A running `hop-gpu-helper`.
struct HelperProcess(Child);

impl Drop for HelperProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn helper(world: &World) -> (HelperProcess, PathBuf) {
    let dir = world.path("helper");
    let socket = dir.join("helper.sock");
    let mut command = world.command(Path::new(env!("CARGO_BIN_EXE_hop-gpu-helper")));
    let child = command
        .arg("--socket")
        .arg(&socket)
        .arg("--libcuda")
        .arg(built().join("libcuda.so.1"))
        .spawn()
        .unwrap();
    let helper = HelperProcess(child);
    let start = Instant::now();
    while !socket.exists() {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "the helper doesn't listen"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    (helper, socket)
}

/// Does steps as another user, in a child that has become that user.
fn as_user(uid: u32, socket: &Path, pid: Pid, step: &Step) -> Result<ProcessState, DriverError> {
    let (client, step) = (
        Client::new(
            socket.into(),
            Some(Api::V13),
            Procs::default(),
            Duration::from_secs(5),
        ),
        step.clone(),
    );
    // Thread-level ids: SO_PEERCRED takes the connecting thread's.
    std::thread::spawn(move || {
        // SAFETY: plain system calls; the raw calls change this thread's ids only, and the thread ends with this.
        unsafe {
            assert_eq!(libc::syscall(libc::SYS_setresgid, uid, uid, uid), 0);
            assert_eq!(libc::syscall(libc::SYS_setresuid, uid, uid, uid), 0);
        }
        client.step(pid, &step)
    })
    .join()
    .unwrap()
}

#[test]
fn the_helper_serves_the_owner_and_nobody_else() {
    if !is_root() {
        eprintln!("skipped: two users can only be had by root");
        return;
    }
    let world = World::new();
    world.set("needs_root", "");
    let (_helper, socket) = helper(&world);
    let mut subject = Subject::start_as(&world, MIB, Some(ALICE));
    let lock = Step::Lock { timeout_ms: 1000 };
    let denied = as_user(BOB, &socket, subject.pid(), &lock).unwrap_err();
    assert!(denied.to_string().contains("is not yours"), "{denied}");
    assert_eq!(
        as_user(ALICE, &socket, subject.pid(), &Step::State),
        Ok(ProcessState::Running),
        "nothing was done"
    );
    assert_eq!(
        as_user(ALICE, &socket, subject.pid(), &lock),
        Ok(ProcessState::Locked)
    );
    assert_eq!(
        as_user(ALICE, &socket, subject.pid(), &Step::Checkpoint),
        Ok(ProcessState::Checkpointed)
    );
    let denied = as_user(BOB, &socket, subject.pid(), &Step::Restore { pairs: Vec::new() }).unwrap_err();
    assert!(denied.to_string().contains("is not yours"), "{denied}");
    let back = Step::Restore { pairs: Vec::new() };
    assert_eq!(
        as_user(ALICE, &socket, subject.pid(), &back),
        Ok(ProcessState::Locked)
    );
    assert_eq!(
        as_user(ALICE, &socket, subject.pid(), &Step::Unlock),
        Ok(ProcessState::Running)
    );
    assert!(subject.is_whole());
    // A process of root's is nobody's but root's.
    let roots = Subject::start(&world, MIB);
    let denied = as_user(ALICE, &socket, roots.pid(), &Step::State).unwrap_err();
    assert!(denied.to_string().contains("is not yours"), "{denied}");
}

#[test]
fn the_helper_refuses_nonsense_and_survives_it() {
    let world = World::new();
    let (_helper, socket) = helper(&world);
    let subject = Subject::start(&world, MIB);
    let ask = |line: &[u8]| {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        stream.write_all(line).unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        answer
    };
    let started = Procs::default().start_time(subject.pid()).unwrap();
    let request = |v: u32, pid: Pid, started: u64| {
        format!("{{\"v\":{v},\"pid\":{pid},\"start_time\":{started},\"step\":{{\"do\":\"state\"}}}}\n")
            .into_bytes()
    };
    assert!(ask(b"hello\n").contains("no request"));
    assert!(ask(&request(2, subject.pid(), started)).contains("version 2"));
    assert!(ask(&request(1, subject.pid(), started + 1)).contains("is gone"));
    assert!(ask(&request(1, -1, started)).contains("no process id"));
    assert!(ask(&request(1, Pid::MAX, started)).contains("no process"));
    assert!(ask(&request(1, subject.pid(), started)).contains("running"));
}
