//! A kernel's cgroups: making them at registration, opening and closing devices in them, removing them.
//!
//! On v1 a kernel gets a devices cgroup of ours outside Slurm's tree, since Slurm rewrites the rules in its own
//! directories at each start of a step. Freezer, memory and accounting stay Slurm's. Our cgroup is never wider than
//! Slurm's. On v2 the device program of the task's own cgroup, which Slurm never touches again, gets exceptions in
//! place and loses them again. [`crate::cores`] handles cores.

use crate::bpf::{Number, Program};
use crate::cpuset::CpuSet;
use crate::mounts::{Group, Mounts, Placement, numbered, placement};
use crate::probe::{self, Answers, DeviceFile};
use crate::proc::Membership;
use crate::record::{CpusetV1, KernelCgroup, StepKey};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A failed action on a cgroup.
#[derive(Debug, thiserror::Error)]
#[error("{what} {}", .path.display())]
pub struct CgroupError {
    what: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CgroupError {
    let path = path.to_owned();
    move |source| CgroupError { what, path, source }
}

pub(crate) fn write(dir: &Path, file: &str, text: &str, what: &'static str) -> Result<(), CgroupError> {
    let path = dir.join(file);
    // Cgroup files take a value in one write(2), and must not be created.
    File::options()
        .write(true)
        .open(&path)
        .and_then(|mut f| f.write_all(text.as_bytes()))
        .map_err(failed(what, &path))
}

pub(crate) fn read_cpus(dir: &Path, file: &str) -> Result<CpuSet, CgroupError> {
    let path = dir.join(file);
    let text = std::fs::read_to_string(&path).map_err(failed("can't read", &path))?;
    text.parse()
        .map_err(|e| failed("can't understand", &path)(io::Error::other(e)))
}

/// Confines a kernel's process as Slurm did, in a form that allows exceptions for devices. Returns the devices that
/// Slurm denies. `None` means that Slurm denies nothing (`ConstrainDevices=no`): the kernel then gets no device.
///
/// `pid` is the step's task before it runs the user's program: no descriptor is open yet.
///
/// # Errors
/// Anything refused by the kernel; the task is then where Slurm put the task.
pub fn confine(
    mounts: &Mounts,
    node: &str,
    key: StepKey,
    uid: u32,
    pid: u32,
) -> Result<Option<(KernelCgroup, Vec<DeviceFile>)>, CgroupError> {
    let task = || Path::new("the task");
    let membership = Membership::of(pid).map_err(failed("can't read the cgroups of", task()))?;
    let placement = placement(&membership);
    if placement == Placement::None {
        return Ok(None);
    }
    let files = probe::files(Path::new("/dev"));
    let slurms =
        probe::ask(mounts, &membership, &files).map_err(failed("can't ask what opens for", task()))?;
    let cgroup = match placement {
        Placement::V1 => {
            let denied = numbers_denied(&slurms);
            let path = own_path(node, key, uid);
            Some(confine_v1(mounts, &membership, &path, pid, &denied)?)
        }
        Placement::V2(task) => confine_v2(mounts, task)?,
        Placement::None => None,
    };
    Ok(cgroup.map(|cgroup| (cgroup, slurms.denied)))
}

/// Numbers that a copy of Slurm's cgroup has to deny: Slurm's own, and all others of the same drivers for devices made
/// later. Devices that open (control devices, say) are left out.
fn numbers_denied(slurms: &Answers) -> Vec<Number> {
    /// The number of a GPU driver's minors.
    const MINORS: u32 = 256;
    let majors: BTreeSet<u32> = slurms.denied.iter().map(|f| f.number.major).collect();
    let all = majors
        .iter()
        .flat_map(|major| (0..MINORS).map(|minor| Number { major: *major, minor }));
    let mut denied: BTreeSet<Number> = all.chain(slurms.denied.iter().map(|f| f.number)).collect();
    for file in &slurms.opens {
        denied.remove(&file.number);
    }
    denied.into_iter().collect()
}

fn own_path(node: &str, key: StepKey, uid: u32) -> PathBuf {
    Path::new("/")
        .join(format!("gresshopper_{node}"))
        .join(format!("{key}.{uid}"))
}

fn confine_v1(
    mounts: &Mounts,
    membership: &Membership,
    path: &Path,
    pid: u32,
    denied: &[Number],
) -> Result<KernelCgroup, CgroupError> {
    let no_mount = || failed("found no mount of the cgroup", path)(io::ErrorKind::NotFound.into());
    let dir = mounts.v1("devices", path).ok_or_else(no_mount)?;
    std::fs::create_dir_all(&dir).map_err(failed("can't make", &dir))?;
    for number in denied {
        write(&dir, "devices.deny", &rule(*number), "can't deny a device in")?;
    }
    write(
        &dir,
        "cgroup.procs",
        &pid.to_string(),
        "can't move the kernel into",
    )?;
    let slurms = membership.v1("cpuset").filter(|p| *p != Path::new("/"));
    let cpuset = slurms
        .map(|slurms| confine_cpuset_v1(mounts, slurms, path, pid))
        .transpose()?
        .flatten();
    let freezer = membership.v1("freezer").filter(|p| *p != Path::new("/"));
    Ok(KernelCgroup::V1 {
        devices: path.to_owned(),
        cpuset,
        freezer: freezer.map(Path::to_owned),
    })
}

/// A cpuset of ours beside Slurm's, with the same cores: Slurm's could not grow beyond its job's.
fn confine_cpuset_v1(
    mounts: &Mounts,
    slurms: &Path,
    path: &Path,
    pid: u32,
) -> Result<Option<CpusetV1>, CgroupError> {
    let (Some(from), Some(dir)) = (mounts.v1("cpuset", slurms), mounts.v1("cpuset", path)) else {
        return Ok(None);
    };
    let base = read_cpus(&from, "cpuset.cpus")?;
    let parent = dir.parent().unwrap_or(&dir).to_owned();
    let root = parent.parent().unwrap_or(&parent).to_owned();
    std::fs::create_dir_all(&dir).map_err(failed("can't make", &dir))?;
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let all = std::fs::read_to_string(root.join(file)).map_err(failed("can't read", &root.join(file)))?;
        write(&parent, file, all.trim(), "can't set")?;
    }
    let mems = std::fs::read_to_string(from.join("cpuset.mems")).map_err(failed("can't read", &from))?;
    write(&dir, "cpuset.mems", mems.trim(), "can't set")?;
    write(&dir, "cpuset.cpus", &base.to_string(), "can't set")?;
    write(
        &dir,
        "cgroup.procs",
        &pid.to_string(),
        "can't move the kernel into",
    )?;
    Ok(Some(CpusetV1 {
        path: path.to_owned(),
        base,
    }))
}

/// Nothing changes: Slurm's own program stays in force, and is kept to be excepted from and to be put back.
fn confine_v2(mounts: &Mounts, task: PathBuf) -> Result<Option<KernelCgroup>, CgroupError> {
    let dir = mounts.v2(&task).ok_or_else(|| gone(&task))?;
    let slurms = File::open(&dir).and_then(Program::attached);
    let Some(program) = slurms.map_err(failed("can't read the device program of", &dir))? else {
        return Ok(None);
    };
    let base = read_cpus(&dir, "cpuset.cpus.effective")
        .ok()
        .filter(|c| !c.is_empty());
    let base = base.filter(|_| dir.join("cpuset.cpus").exists());
    Ok(Some(KernelCgroup::V2 { task, base, program }))
}

fn rule(number: Number) -> String {
    format!("c {}:{} rwm", number.major, number.minor)
}

fn gone(path: &Path) -> CgroupError {
    failed("there is no cgroup", path)(io::ErrorKind::NotFound.into())
}

/// The directory that judges the kernel's devices. None: it is gone.
fn dir(mounts: &Mounts, cgroup: &KernelCgroup) -> Option<PathBuf> {
    match cgroup {
        KernelCgroup::V1 { devices, .. } => mounts.v1("devices", devices).filter(|d| d.is_dir()),
        KernelCgroup::V2 { task, .. } => mounts.v2(task),
    }
}

/// Lets the kernel open `leased` beside the devices allowed by Slurm.
///
/// # Errors
/// Anything that the kernel refuses; the caller closes again.
pub fn open_devices(mounts: &Mounts, cgroup: &KernelCgroup, leased: &[Number]) -> Result<(), CgroupError> {
    let dir = dir(mounts, cgroup).ok_or_else(|| gone(cgroup.path()))?;
    permit(&dir, cgroup, leased, true)
}

/// Lets the kernel no longer open any of `leased`; on v2 only the devices allowed by Slurm. A missing cgroup has no
/// processes, and is no error.
///
/// # Errors
/// Anything that the kernel refuses: the device must not go to anybody then.
pub fn close_devices(mounts: &Mounts, cgroup: &KernelCgroup, leased: &[Number]) -> Result<(), CgroupError> {
    let Some(dir) = dir(mounts, cgroup) else {
        return Ok(());
    };
    // The directory may vanish between looking and writing.
    permit(&dir, cgroup, leased, false).or_else(|e| if dir.is_dir() { Err(e) } else { Ok(()) })
}

fn permit(dir: &Path, cgroup: &KernelCgroup, leased: &[Number], open: bool) -> Result<(), CgroupError> {
    match cgroup {
        KernelCgroup::V1 { .. } => {
            let file = if open { "devices.allow" } else { "devices.deny" };
            let mut rules = leased.iter().map(|number| rule(*number));
            rules.try_for_each(|rule| write(dir, file, &rule, "can't allow or deny a device in"))
        }
        KernelCgroup::V2 { program, .. } => {
            let excepted = if open { leased } else { &[] };
            File::open(dir)
                .and_then(|file| program.attach(&file, excepted))
                .map_err(failed("can't replace the device program of", dir))
        }
    }
}

/// Whether a process is in the cgroup of its record.
pub fn holds(cgroup: &KernelCgroup, pid: u32) -> bool {
    let path = Some(cgroup.path());
    Membership::of(pid).is_ok_and(|membership| match cgroup {
        KernelCgroup::V1 { .. } => membership.v1("devices") == path,
        KernelCgroup::V2 { .. } => membership.v2() == path,
    })
}

/// The processes of a kernel, children included.
pub fn processes(mounts: &Mounts, cgroup: &KernelCgroup) -> Vec<i32> {
    listed(mounts, cgroup, "cgroup.procs", "cgroup.procs")
}

/// The threads of a kernel and its children.
pub fn threads(mounts: &Mounts, cgroup: &KernelCgroup) -> Vec<i32> {
    listed(mounts, cgroup, "tasks", "cgroup.threads")
}

fn listed(mounts: &Mounts, cgroup: &KernelCgroup, v1: &str, v2: &str) -> Vec<i32> {
    let file = match cgroup {
        KernelCgroup::V1 { .. } => v1,
        KernelCgroup::V2 { .. } => v2,
    };
    let text = dir(mounts, cgroup).and_then(|dir| std::fs::read_to_string(dir.join(file)).ok());
    text.unwrap_or_default()
        .lines()
        .filter_map(|l| l.trim().parse().ok())
        .filter(|t| *t > 0)
        .collect()
}

/// The kernel's cgroup as the counting programs know it. None: it is gone.
pub fn group(mounts: &Mounts, cgroup: &KernelCgroup) -> Option<Group> {
    let hierarchy = match cgroup {
        KernelCgroup::V1 { .. } => Group::DEVICES,
        KernelCgroup::V2 { .. } => Group::UNIFIED,
    };
    numbered(hierarchy, dir(mounts, cgroup))
}

/// Holds a kernel's processes still until dropped.
#[derive(Debug)]
pub struct Frozen {
    file: Option<(PathBuf, &'static str)>,
}

/// How long processes may take to stand still; what is in a system call that doesn't end goes on.
const FREEZING: Duration = Duration::from_millis(100);

/// Holds the kernel's processes still, as far as they let themselves. Whom Slurm holds already stays so afterwards.
pub fn freeze(mounts: &Mounts, cgroup: &KernelCgroup) -> Frozen {
    let (file, freeze, thaw, state, still) = match cgroup {
        KernelCgroup::V1 { freezer, .. } => {
            let dir = freezer.as_ref().and_then(|f| mounts.v1("freezer", f));
            let state = dir.as_ref().map(|d| d.join("freezer.state"));
            (state.clone(), "FROZEN", "THAWED", state, "FROZEN")
        }
        KernelCgroup::V2 { task, .. } => {
            let dir = mounts.v2(task);
            let events = dir.as_ref().map(|d| d.join("cgroup.events"));
            (dir.map(|d| d.join("cgroup.freeze")), "1", "0", events, "frozen 1")
        }
    };
    let none = Frozen { file: None };
    let (Some(file), Some(state)) = (file, state) else {
        return none;
    };
    let says = |path: &Path, text: &str| std::fs::read_to_string(path).is_ok_and(|t| t.contains(text));
    if says(&state, still) || std::fs::write(&file, freeze).is_err() {
        return none;
    }
    let deadline = Instant::now() + FREEZING;
    while !says(&state, still) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    Frozen {
        file: Some((file, thaw)),
    }
}

/// Thaws a process held still by the user, since SIGKILL does nothing to a frozen process. On v1 users may make
/// their own freezers below their step's.
pub fn thaw(mounts: &Mounts, pid: u32) {
    let membership = Membership::of(pid).unwrap_or_default();
    for own in membership.v1("freezer").into_iter().flat_map(below_step) {
        if let Some(dir) = mounts.v1("freezer", own) {
            let _ = std::fs::write(dir.join("freezer.state"), "THAWED");
        }
    }
}

/// The path and the ancestors below Slurm's step, the outermost folder of that name: a user names the folders
/// inside.
fn below_step(path: &Path) -> impl Iterator<Item = &Path> {
    let is_step = |path: &&Path| {
        path.file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with("step_"))
    };
    let step = path.ancestors().filter(is_step).last().unwrap_or(path);
    path.ancestors().take_while(move |p| *p != step)
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Some((file, thaw)) = &self.file {
            let _ = std::fs::write(file, thaw);
        }
    }
}

/// Removes the cgroups made by [`confine`], if empty. `true` means that none is left. On v2 it is Slurm's, and to be
/// empty.
pub fn remove(mounts: &Mounts, cgroup: &KernelCgroup) -> bool {
    let KernelCgroup::V1 { devices, cpuset, .. } = cgroup else {
        return processes(mounts, cgroup).is_empty();
    };
    let cpuset = cpuset.as_ref().and_then(|c| mounts.v1("cpuset", &c.path));
    let dirs = mounts.v1("devices", devices).into_iter().chain(cpuset);
    let mut gone = true;
    for dir in dirs {
        if let Err(e) = std::fs::remove_dir(&dir) {
            gone &= e.kind() == io::ErrorKind::NotFound;
        }
        // The node's own directory goes with its last kernel.
        if let Some(parent) = dir.parent() {
            let _ = std::fs::remove_dir(parent);
        }
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_numbers_of_a_denied_driver_are_denied_too_but_not_what_opens() {
        let file = |major, minor| DeviceFile {
            number: Number { major, minor },
            path: PathBuf::new(),
        };
        let slurms = Answers {
            opens: vec![file(1, 3), file(195, 255)],
            denied: vec![file(195, 0), file(234, 300)],
        };
        let denied = numbers_denied(&slurms);
        let is = |major, minor| denied.contains(&Number { major, minor });
        assert!(is(195, 0) && is(195, 1) && is(234, 300) && is(234, 0));
        assert!(!is(195, 255) && !is(1, 3) && !is(1, 5));
        assert!(numbers_denied(&Answers::default()).is_empty());
    }

    #[test]
    fn what_a_user_names_as_a_step_is_below_slurms() {
        let below = |path| below_step(Path::new(path)).collect::<Vec<_>>();
        let own = "/slurm_n1/uid_5/job_4/step_0/step_1/x";
        assert_eq!(
            below(own),
            [Path::new(own), Path::new("/slurm_n1/uid_5/job_4/step_0/step_1")]
        );
        assert!(below("/slurm_n1/uid_5/job_4/step_0").is_empty());
        assert!(below("/user.slice/x").is_empty());
    }
}
