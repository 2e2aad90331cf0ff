//! Private folders of a user's, in which processes listen.

use crate::Pid;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Folders in which a user's processes listen, the likeliest first.
pub fn of(uid: u32) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if rustix::process::geteuid().as_raw() == uid {
        found.extend(std::env::var_os("GRESSHOPPER_RUN_DIR").map(PathBuf::from));
        found.extend(std::env::var_os("XDG_RUNTIME_DIR").map(|dir| PathBuf::from(dir).join("gresshopper")));
    }
    found.push(format!("/run/user/{uid}/gresshopper").into());
    found.push(format!("/tmp/gresshopper-{uid}").into());
    found
}

/// Checks that a folder belongs to `uid` and is closed to all others.
///
/// # Errors
/// The folder is missing, another user's, or open to others.
pub fn check(dir: &Path, uid: u32) -> io::Result<()> {
    let meta = fs::symlink_metadata(dir)?;
    match meta.is_dir() && meta.uid() == uid && meta.mode() & 0o077 == 0 {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "{} is not a directory of user {uid} with mode 0700",
                dir.display()
            ),
        )),
    }
}

/// Name of a process's door.
pub fn name(pid: Pid) -> String {
    format!("process-{pid}.sock")
}

/// Processes of a user's that have a door in `dirs`, by the doors' names. Some may have ended.
pub fn processes(uid: u32, dirs: &[PathBuf]) -> Vec<Pid> {
    let mut found: Vec<Pid> = dirs
        .iter()
        .filter(|dir| check(dir, uid).is_ok())
        .filter_map(|dir| fs::read_dir(dir).ok())
        .flatten()
        .filter_map(|entry| {
            let name = entry.ok()?.file_name();
            let pid = name.to_str()?.strip_prefix("process-")?.strip_suffix(".sock")?;
            pid.parse().ok()
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}
