//! As root, on throwaway cgroups: that the devices are really denied and opened, on cgroup v1 and v2, and that a
//! take-back finds who holds them. Elsewhere each test says why it is skipped.
//!
//! The bpf file system is mounted where it isn't, as systemd would. The device nodes are made by the test, with the numbers of consoles that are not there and that no dev cluster
//! uses; they open without hardware. One test at a time has them, since a take-back ends who else holds them.

#![allow(clippy::unwrap_used, reason = "a test that fails to prepare has failed")]

use hop_handover::bpf::{Number, Program};
use hop_handover::cgroup;
use hop_handover::count::{BPF_DIR, CountError, Counter};
use hop_handover::decide::Arrival;
use hop_handover::mounts::Mounts;
use hop_handover::node::{Node, NodeError, Site};
use hop_handover::options::Isolation;
use hop_handover::probe::DeviceFile;
use hop_handover::record::{DeviceRecord, KernelCgroup, KernelRecord, LeaseRecord, ProcessId, StepKey};
use hop_handover::token::{KernelProcess, Lend, Level, Op, Refusal, Token, VERSION};
use hop_words::id::{Epoch, GpuIndex, JobId, LeaseId};
use hop_words::process::start_time;
use hop_words::time::Timestamp;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const SERVICE: u32 = 990;
const NOBODY: u32 = 65534;
const MAJOR: u32 = 4;

/// Two device nodes that anybody may open; removed when dropped.
struct Gpus {
    dir: tempfile::TempDir,
    paths: Vec<PathBuf>,
    minors: Vec<u32>,
    _alone: std::fs::File,
}

impl Drop for Gpus {
    fn drop(&mut self) {
        self.paths.iter().for_each(|p| drop(std::fs::remove_file(p)));
    }
}

impl Gpus {
    /// None, with the reason, where this can't be done.
    fn make() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: needs root");
            return None;
        }
        let alone = std::fs::File::create("/run/hop-handover-test.lock").unwrap();
        rustix::fs::flock(&alone, rustix::fs::FlockOperation::LockExclusive).unwrap();
        mount_bpf();
        let minors: Vec<u32> = free_minors().into_iter().take(2).collect();
        if minors.len() < 2 {
            eprintln!("SKIPPED: no two console numbers are unused");
            return None;
        }
        let name = |i| PathBuf::from(format!("/dev/fakegpu-hoptest{}-{i}", std::process::id()));
        let paths: Vec<PathBuf> = (0..2).map(name).collect();
        for (path, minor) in paths.iter().zip(&minors) {
            let numbers = ["c", &MAJOR.to_string(), &minor.to_string()];
            assert!(
                Command::new("mknod")
                    .args(["-m", "666"])
                    .arg(path)
                    .args(numbers)
                    .status()
                    .unwrap()
                    .success()
            );
        }
        Some(Self {
            dir: tempfile::tempdir().unwrap(),
            paths,
            minors,
            _alone: alone,
        })
    }

    fn numbers(&self) -> Vec<Number> {
        self.minors
            .iter()
            .map(|&minor| Number { major: MAJOR, minor })
            .collect()
    }
}

impl Gpus {
    fn files(&self) -> Vec<DeviceFile> {
        let file = |(path, number): (&PathBuf, Number)| DeviceFile {
            number,
            path: path.clone(),
        };
        self.paths.iter().zip(self.numbers()).map(file).collect()
    }
}

fn mount_bpf() {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    if !table.lines().any(|l| l.split(' ').nth(1) == Some("/sys/fs/bpf")) {
        let mount = ["-t", "bpf", "-o", "mode=700", "bpf", "/sys/fs/bpf"];
        assert!(Command::new("mount").args(mount).status().unwrap().success());
    }
}

/// What this Linux can do; the reason is told where it can't count.
fn counts() -> Level {
    match Counter::open(Path::new(BPF_DIR)) {
        Ok(_) => Level::Counted,
        Err(CountError::NoCgroup2 | CountError::Blind | CountError::NoTypes(_)) => {
            eprintln!("SKIPPED the half of it: this Linux can't count");
            Level::Scanned
        }
        Err(e) => panic!("{e}: {:?}", std::error::Error::source(&e)),
    }
}

/// Consoles of which there is no node in /dev but the console's own.
fn free_minors() -> Vec<u32> {
    let used: Vec<u32> = std::fs::read_dir("/dev")
        .unwrap()
        .flatten()
        .filter(|e| !e.file_name().to_string_lossy().starts_with("tty"))
        .filter_map(|e| e.metadata().ok())
        .filter(|m| m.file_type().is_char_device() && libc::major(m.rdev()) == MAJOR)
        .map(|m| libc::minor(m.rdev()))
        .collect();
    (8..64).rev().filter(|m| !used.contains(m)).collect()
}

/// A shell of nobody's that opens what it is told to.
struct Shell {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Shell {
    fn start() -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "while read -r line; do eval \"$line\"; done"]);
        command
            .uid(NOBODY)
            .gid(NOBODY)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, answers }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer.trim().to_owned()
    }

    fn opens(&mut self, path: &Path) -> bool {
        self.ask(&format!(
            "if (exec 9<>{}) then echo yes; else echo no; fi",
            path.display()
        )) == "yes"
    }
}

/// A cgroup v2 of the test's own, removed at its end. None where there is no cgroup2 mount.
struct Group(PathBuf);

impl Group {
    fn make(name: &str) -> Option<(Self, PathBuf)> {
        let mounts = Mounts::of_self().unwrap();
        let path = PathBuf::from(format!(
            "/hop-test-{}-{name}/step_0/user/task_0",
            std::process::id()
        ));
        let Some(top) = mounts.v2(Path::new("/")) else {
            eprintln!("SKIPPED: no cgroup2 mount");
            return None;
        };
        let dir = top.join(path.strip_prefix("/").unwrap());
        std::fs::create_dir_all(&dir).unwrap();
        Some((Self(dir), path))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for dir in self.0.ancestors().take(4) {
            for _ in 0..100 {
                if std::fs::remove_dir(dir).is_ok() || !dir.exists() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
    }
}

#[test]
fn the_device_program_really_denies_and_is_replaced_in_place() {
    let Some(gpus) = Gpus::make() else {
        return;
    };
    let Some((group, _)) = Group::make("bpf") else {
        return;
    };
    let paths = &gpus.paths;
    let mut shell = Shell::start();
    std::fs::write(group.0.join("cgroup.procs"), shell.pid().to_string()).unwrap();
    assert!(shell.opens(&paths[0]) && shell.opens(&paths[1]));
    let file = std::fs::File::open(&group.0).unwrap();
    assert_eq!(Program::attached(&file).unwrap(), None);
    let slurms = Program::denying(&gpus.numbers());
    slurms.attach(&file, &[]).unwrap();
    assert!(!shell.opens(&paths[0]) && !shell.opens(&paths[1]));
    assert!(shell.opens(Path::new("/dev/null")), "everything else stays open");
    // As it is read back it does the same, and nothing but what is excepted opens.
    let read = Program::attached(&file).unwrap().unwrap();
    read.attach(&file, &gpus.numbers()[..1]).unwrap();
    assert!(shell.opens(&paths[0]) && !shell.opens(&paths[1]));
    read.attach(&file, &[]).unwrap();
    assert!(!shell.opens(&paths[0]) && !shell.opens(&paths[1]));
    assert!(
        Program::attached(&file).unwrap().is_some(),
        "one in place of another"
    );
}

fn site(run_dir: PathBuf) -> Site {
    Site {
        run_dir,
        node: format!("hoptest{}", std::process::id()),
        service_uid: SERVICE,
        ignore_holders: Vec::new(),
        isolation: Isolation::Scanned,
        dry_run: false,
    }
}

/// A node whose records lie in a temporary directory.
fn node(gpus: &Gpus) -> Node {
    Node::open(site(gpus.dir.path().join("run"))).unwrap()
}

fn token(kernel: &KernelRecord, lease: u64) -> (Token, Lend) {
    let lend = Lend {
        kernel: KernelProcess {
            uid: kernel.uid,
            pid: kernel.process.pid,
            start_time: kernel.process.start_time,
            seat_job: kernel.key.job,
            seat_step: kernel.key.step,
        },
        gpus: 1,
        cpus: 0,
    };
    let token = Token {
        v: VERSION,
        op: Op::Lend(lend.clone()),
        lease: LeaseId(lease),
        epoch: Epoch(lease),
        pilot: JobId(500),
        notify: "/nowhere".into(),
        grace_ms: 50,
        issued_at: Timestamp(0),
    };
    (token, lend)
}

fn arrival(step: u32) -> Arrival {
    Arrival {
        step: StepKey {
            job: JobId(500),
            step,
        },
        job_uid: SERVICE,
        service_uid: SERVICE,
        now: Timestamp(0),
    }
}

fn this_process() -> ProcessId {
    let pid = std::process::id();
    ProcessId {
        pid,
        start_time: start_time(pid).unwrap(),
    }
}

/// A lease from the handover to the take-back, whatever confines the kernel. `steps`: a process for each GPU in a step
/// where that one opens and the other doesn't.
fn lend_and_take_back(node: &Node, kernel: &KernelRecord, shell: &mut Shell, gpus: &Gpus, steps: [u32; 2]) {
    let paths = &gpus.paths;
    let gpu = [GpuIndex(1)];
    let (first, lend) = token(kernel, 7);
    let more = node.lend(
        &first,
        &lend,
        &arrival(0),
        &[GpuIndex(0), GpuIndex(1)],
        steps[1],
        this_process(),
    );
    assert!(matches!(more, Err(Refusal::WrongGpus { .. })), "{more:?}");
    assert!(!shell.opens(&paths[0]) && !shell.opens(&paths[1]));
    let handed = node
        .lend(&first, &lend, &arrival(0), &gpu, steps[1], this_process())
        .unwrap();
    assert_eq!(
        (handed.handover.devices.len(), handed.handover.devices[0].minor),
        (1, gpus.minors[1])
    );
    assert!(!shell.opens(&paths[0]) && shell.opens(&paths[1]));
    let again = node.lend(
        &token(kernel, 8).0,
        &lend,
        &arrival(1),
        &[GpuIndex(0)],
        steps[0],
        this_process(),
    );
    assert_eq!(again, Err(Refusal::KernelHolds { lease: LeaseId(7) }));

    let hold = format!(
        "sh -c 'exec 9<>{}; echo $$; exec sleep 1000 >&2' &",
        paths[1].display()
    );
    let holder: u32 = shell.ask(&hold).parse().unwrap();
    let (taken, _) = node.take_back(arrival(0).step).unwrap().unwrap();
    assert!(taken.clean, "{taken:?}");
    assert_eq!((handed.level, taken.level), (counts(), counts()));
    assert_eq!(
        (taken.ended_pids, taken.devices),
        (vec![holder], vec![GpuIndex(1)])
    );
    assert!(!shell.opens(&paths[0]) && !shell.opens(&paths[1]));
    assert_eq!(node.take_back(arrival(0).step).unwrap(), None);

    let stale = node.lend(&first, &lend, &arrival(2), &gpu, steps[1], this_process());
    assert!(matches!(stale, Err(Refusal::StaleEpoch { .. })), "{stale:?}");
    // A lease whose slurmstepd has died is undone by the next grant to its kernel.
    let dead = ProcessId {
        pid: std::process::id(),
        start_time: 1,
    };
    node.lend(&token(kernel, 9).0, &lend, &arrival(3), &gpu, steps[1], dead)
        .unwrap();
    node.lend(
        &token(kernel, 10).0,
        &lend,
        &arrival(4),
        &[GpuIndex(0)],
        steps[0],
        this_process(),
    )
    .unwrap();
    assert!(shell.opens(&paths[0]) && !shell.opens(&paths[1]));
    check_that_a_living_lease_stays(node, kernel, shell, gpus, steps[0]);
    // A lost one is taken back with its job.
    let ended = node.job_ended(JobId(500)).unwrap();
    assert!(
        matches!(ended.as_slice(), [(t, _)] if t.clean && t.lease == LeaseId(10)),
        "{ended:?}"
    );
    assert!(!shell.opens(&paths[0]) && !shell.opens(&paths[1]));
    assert!(node.store().all::<LeaseRecord>().unwrap().is_empty());
}

/// Slurm calls the device of a lease by another index since, and gives it to another kernel's step.
fn check_that_a_living_lease_stays(
    node: &Node,
    kernel: &KernelRecord,
    shell: &mut Shell,
    gpus: &Gpus,
    step: u32,
) {
    let other = KernelRecord {
        key: StepKey {
            job: JobId(609),
            ..kernel.key
        },
        ..kernel.clone()
    };
    node.store().put(&other).unwrap();
    let (second, lend) = token(&other, 11);
    let refused = node.lend(&second, &lend, &arrival(5), &[GpuIndex(1)], step, this_process());
    let lent = "it is lent to lease 10, which lives";
    assert!(
        matches!(&refused, Err(Refusal::Blocked { index: GpuIndex(1), why }) if why.starts_with(lent)),
        "{refused:?}"
    );
    assert!(shell.opens(&gpus.paths[0]));
    // Nor is it taken for a device of which nothing is known.
    let number = gpus.numbers()[0];
    let record: DeviceRecord = node.store().get(number).unwrap().unwrap();
    node.store().remove::<DeviceRecord>(number).unwrap();
    let refused = node.lend(&second, &lend, &arrival(5), &[GpuIndex(1)], step, this_process());
    assert!(
        matches!(&refused, Err(Refusal::Blocked { why, .. }) if why.starts_with(lent)),
        "{refused:?}"
    );
    assert!(shell.opens(&gpus.paths[0]));
    node.store().put(&record).unwrap();
    node.store().remove::<KernelRecord>(other.key).unwrap();
}

/// As Slurm does.
fn denying(group: &Group, numbers: &[Number]) -> Program {
    let program = Program::denying(numbers);
    let file = std::fs::File::open(&group.0).unwrap();
    program.attach(&file, &[]).unwrap();
    program
}

#[test]
fn where_slurm_constrains_nothing_nothing_is_lent() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let node = Node::open(site(dir.path().join("run"))).unwrap();
    let shell = Shell::start();
    let key = StepKey {
        job: JobId(602),
        step: 0,
    };
    assert_eq!(node.register(key, NOBODY, shell.pid()).unwrap(), None);
    let kernel = KernelRecord {
        key,
        uid: NOBODY,
        process: ProcessId {
            pid: shell.pid(),
            start_time: start_time(shell.pid()).unwrap(),
        },
        group: None,
        cgroup: KernelCgroup::V2 {
            task: "/".into(),
            base: None,
            program: Program::default(),
        },
        denied: Vec::new(),
    };
    node.store().put(&kernel).unwrap();
    let (token, lend) = token(&kernel, 7);
    let refused = node.lend(
        &token,
        &lend,
        &arrival(0),
        &[GpuIndex(0)],
        shell.pid(),
        this_process(),
    );
    assert_eq!(refused, Err(Refusal::Unconstrained));
}

#[test]
fn a_lease_on_cgroup_v2() {
    let Some(gpus) = Gpus::make() else {
        return;
    };
    let Some((group, task)) = Group::make("v2") else {
        return;
    };
    let node = node(&gpus);
    let mut shell = Shell::start();
    std::fs::write(group.0.join("cgroup.procs"), shell.pid().to_string()).unwrap();
    // Registered by hand: on a hybrid host the v1 devices controller is found first.
    let program = denying(&group, &gpus.numbers());
    let numbers = gpus.numbers();
    let steps = [0, 1].map(|i| {
        let (group, _) = Group::make(&format!("v2-{i}")).unwrap();
        denying(&group, &numbers[1 - i..2 - i]);
        let shell = Shell::start();
        std::fs::write(group.0.join("cgroup.procs"), shell.pid().to_string()).unwrap();
        (shell, group)
    });
    let start_time = start_time(shell.pid()).unwrap();
    let kernel = KernelRecord {
        key: StepKey {
            job: JobId(600),
            step: 0,
        },
        uid: NOBODY,
        process: ProcessId {
            pid: shell.pid(),
            start_time,
        },
        group: None,
        cgroup: KernelCgroup::V2 {
            task,
            base: None,
            program,
        },
        denied: gpus.files(),
    };
    node.store().put(&kernel).unwrap();
    let pids = [steps[0].0.pid(), steps[1].0.pid()];
    lend_and_take_back(&node, &kernel, &mut shell, &gpus, pids);
}

#[test]
fn a_lease_on_cgroup_v1() {
    let Some(gpus) = Gpus::make() else { return };
    let mounts = Mounts::of_self().unwrap();
    let slurm = PathBuf::from(format!("/slurm_hoptest{}", std::process::id()));
    let Some(slurms) = mounts
        .v1("devices", &slurm)
        .filter(|d| d.parent().is_some_and(Path::is_dir))
    else {
        eprintln!("SKIPPED: the devices controller is not on cgroup v1");
        return;
    };
    let made = |name: &str, denied: &[Number]| {
        let dir = slurms.join(name);
        std::fs::create_dir_all(&dir).unwrap();
        for number in denied {
            let rule = format!("c {}:{} rwm", number.major, number.minor);
            std::fs::write(dir.join("devices.deny"), rule).unwrap();
        }
        let shell = Shell::start();
        std::fs::write(dir.join("cgroup.procs"), shell.pid().to_string()).unwrap();
        (shell, dir)
    };
    let node = node(&gpus);
    let numbers = gpus.numbers();
    let (mut shell, kernels) = made("kernel", &numbers);
    let steps = [0, 1].map(|i| made(&format!("step-{i}"), &numbers[1 - i..2 - i]));
    let key = StepKey {
        job: JobId(601),
        step: 0,
    };
    let kernel = node.register(key, NOBODY, shell.pid()).unwrap().unwrap();
    assert!(matches!(kernel.cgroup, KernelCgroup::V1 { .. }), "{kernel:?}");
    assert_eq!(kernel.denied.len(), 2, "{:?}", kernel.denied);
    let pids = [steps[0].0.pid(), steps[1].0.pid()];
    lend_and_take_back(&node, &kernel, &mut shell, &gpus, pids);
    drop(shell);
    let dirs = steps.map(|(shell, dir)| {
        drop(shell);
        dir
    });
    for dir in dirs.iter().chain([&kernels, &slurms]) {
        std::fs::remove_dir(dir).unwrap();
    }
    node.unregister(key).unwrap();
    assert_eq!(node.store().get::<KernelRecord>(key).unwrap(), None);
    assert!(cgroup::remove(&mounts, &kernel.cgroup), "nothing is left");
}

/// Its processes are shut out by their cgroup's number, one of so many: whoever forgets the record never takes it off.
#[test]
fn a_kernel_with_processes_left_on_cgroup_v2_is_kept() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let Some((group, task)) = Group::make("left") else {
        return;
    };
    let node = Node::open(site(dir.path().join("run"))).unwrap();
    let shell = Shell::start();
    std::fs::write(group.0.join("cgroup.procs"), shell.pid().to_string()).unwrap();
    let key = StepKey {
        job: JobId(603),
        step: 0,
    };
    let kernel = KernelRecord {
        key,
        uid: NOBODY,
        // It has ended, and its child has not.
        process: ProcessId {
            pid: shell.pid(),
            start_time: 1,
        },
        group: None,
        cgroup: KernelCgroup::V2 {
            task,
            base: None,
            program: Program::default(),
        },
        denied: Vec::new(),
    };
    node.store().put(&kernel).unwrap();
    let is_known = || node.store().get::<KernelRecord>(key).unwrap().is_some();
    node.unregister(key).unwrap();
    assert!(is_known());
    let again = node.register(key, NOBODY, shell.pid());
    assert!(matches!(again, Err(NodeError::Known { .. })), "{again:?}");
    assert!(is_known());
    drop(shell);
    node.unregister(key).unwrap();
    assert!(!is_known());
}
