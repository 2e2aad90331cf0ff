//! The devices that Slurm lets a step open, by Linux's answer to a child in the step's own cgroup.
//!
//! The devices denied to a kernel's step are the node's GRES; the devices that open in a lease's step are lent.
//! gres.conf, its order and Slurm's detection play no part. The child asks with access(2), judged by Linux as an open
//! for reading and writing, without waking any device. Conclusions from the answers are left to [`crate::decide`].

use crate::apart::apart;
use crate::bpf::Number;
use crate::mounts::{Mounts, Placement, placement};
use crate::proc::Membership;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// For a child in a cgroup that may be held still, or starved by its other processes.
const PATIENCE: Duration = Duration::from_secs(10);
/// More device files than a node has: bounds what a strange /dev may cost.
const MOST: usize = 8192;

/// A character device's file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct DeviceFile {
    pub number: Number,
    pub path: PathBuf,
}

/// The character devices below `dev`, one file for each number, in the numbers' order. Links and other file systems
/// (terminals, shared memory) are left out.
pub fn files(dev: &Path) -> Vec<DeviceFile> {
    let mut found = Vec::new();
    let device_of = |path: &Path| std::fs::symlink_metadata(path).map(|m| m.dev());
    let Ok(own) = device_of(dev) else { return found };
    let mut folders = vec![dev.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            if meta.dev() != own || found.len() + folders.len() >= MOST {
                continue;
            }
            if meta.is_dir() {
                folders.push(entry.path());
            } else if meta.file_type().is_char_device() {
                let number = Number {
                    major: libc::major(meta.rdev()),
                    minor: libc::minor(meta.rdev()),
                };
                let path = entry.path();
                found.push(DeviceFile { number, path });
            }
        }
    }
    found.sort();
    found.dedup_by_key(|f| f.number);
    found
}

const OPENS: u8 = 1;
const DENIED: u8 = 2;
const GONE: u8 = 3;

/// `files` as a process in the cgroups of `membership` finds them.
#[derive(Debug, Default)]
pub struct Answers {
    pub opens: Vec<DeviceFile>,
    pub denied: Vec<DeviceFile>,
}

/// Asks for each of `files`, where Slurm put the process of `membership`.
///
/// # Errors
/// The cgroup doesn't exist, or no child can be made in it.
pub fn ask(mounts: &Mounts, membership: &Membership, files: &[DeviceFile]) -> io::Result<Answers> {
    let mut answers = Answers::default();
    let cgroup = entrance(mounts, membership)?;
    let names: Result<Vec<CString>, _> = files
        .iter()
        .map(|f| CString::new(f.path.as_os_str().as_bytes()))
        .collect();
    let said = in_child(&cgroup, &names?)?;
    if said.len() != files.len() {
        return Err(io::Error::other("the asking process was ended"));
    }
    for (file, answer) in files.iter().zip(said) {
        match answer {
            OPENS => answers.opens.push(file.clone()),
            DENIED => answers.denied.push(file.clone()),
            _ => {}
        }
    }
    Ok(answers)
}

/// The file for entering the cgroup whose rules decide on the process's devices.
fn entrance(mounts: &Mounts, membership: &Membership) -> io::Result<File> {
    let dir = match placement(membership) {
        Placement::V1 => membership
            .v1("devices")
            .and_then(|path| mounts.v1("devices", path)),
        Placement::V2(task) => mounts.v2(&task),
        Placement::None => None,
    };
    let dir = dir.ok_or(io::ErrorKind::NotFound)?;
    File::options().write(true).open(dir.join("cgroup.procs"))
}

/// One byte for each name.
fn in_child(cgroup: &File, names: &[CString]) -> io::Result<Vec<u8>> {
    let (said, _) = apart(PATIENCE, names.len(), |mut out| {
        (&*cgroup).write_all(b"0")?;
        let mut said = vec![GONE; names.len()];
        for (name, answer) in names.iter().zip(&mut said) {
            let mode = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
            *answer = match rustix::fs::access(name.as_c_str(), mode) {
                Ok(()) => OPENS,
                Err(rustix::io::Errno::PERM) => DENIED,
                Err(_) => GONE,
            };
        }
        out.write_all(&said)
    })?;
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_one_file_and_links_have_none() {
        let files = files(Path::new("/dev"));
        let null = Number { major: 1, minor: 3 };
        let of_null: Vec<_> = files.iter().filter(|f| f.number == null).collect();
        assert_eq!(of_null.len(), 1);
        assert!(files.iter().all(|f| !f.path.is_symlink()));
        assert!(!files.iter().any(|f| f.path.starts_with("/dev/pts")));
    }

    #[test]
    fn a_child_says_what_opens_and_what_is_gone() {
        let cgroup = tempfile::tempfile().unwrap();
        let names = [c"/dev/null".to_owned(), c"/dev/nowhere".to_owned()];
        assert_eq!(in_child(&cgroup, &names).unwrap(), [OPENS, GONE]);
    }
}
