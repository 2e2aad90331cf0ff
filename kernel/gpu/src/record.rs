//! Records of parks for the unpark: written in the owner's private directory when a process is parked, and removed
//! when it is back.

use crate::Pid;
use crate::ladder::Place;
use crate::machine::Halves;
use hop_door::folders;
use rustix::fs::{self, AtFlags, Mode, OFlags, Uid};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

const VERSION: u32 = 1;

/// One parked process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub v: u32,
    pub pid: Pid,
    pub start_time: u64,
    pub halves: Halves,
    pub devices: Vec<Place>,
    /// Device memory of the process over all devices, if NVML reported it.
    pub device_bytes: Option<u64>,
    pub frameworks_bytes: u64,
    /// The context is back on the device, the frameworks' share is not.
    pub half_back: bool,
    /// A cell runs in the process, which wasn't told: nothing there is to be told of the way back either.
    #[serde(default)]
    pub mid_cell: bool,
}

impl Record {
    pub fn new(pid: Pid, start_time: u64, halves: Halves) -> Self {
        Self {
            v: VERSION,
            pid,
            start_time,
            halves,
            devices: Vec::new(),
            device_bytes: None,
            frameworks_bytes: 0,
            half_back: false,
            mid_cell: false,
        }
    }
}

/// Where records of `uid`'s processes lie.
///
/// Root may work on a user's processes, in a directory that the user may change at any time. Everything therefore goes
/// through a descriptor of the directory, follows no link, and waits for no pipe.
#[derive(Debug, Clone)]
pub struct Records {
    uid: u32,
    dirs: Vec<PathBuf>,
}

/// A record is far smaller; what is larger is none.
const MAX_RECORD: u64 = 64 << 10;

impl Records {
    pub fn of(uid: u32, dir: Option<&Path>) -> Self {
        let dirs = dir.map_or_else(|| folders::of(uid), |dir| vec![dir.to_path_buf()]);
        Self { uid, dirs }
    }

    fn name(pid: Pid) -> String {
        format!("gpu-{pid}.parked.json")
    }

    /// The record of a process, unless it is of an earlier process with the same pid.
    pub fn get(&self, pid: Pid, start_time: u64) -> Option<Record> {
        let dirs = self.dirs.iter().filter_map(|dir| self.open(dir).ok());
        dirs.filter_map(|dir| read(&dir, &Self::name(pid)))
            .find(|record| record.v == VERSION && (record.pid, record.start_time) == (pid, start_time))
    }

    /// Writes the record, in place of an older one.
    ///
    /// # Errors
    /// No directory belongs to the owner alone, or the file can't be written.
    pub fn put(&self, record: &Record) -> io::Result<()> {
        let dir = self.private_dir()?;
        let name = Self::name(record.pid);
        let new = format!("{name}.new");
        let _ = fs::unlinkat(&dir, &new, AtFlags::empty());
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(fs::openat(&dir, &new, flags, Mode::RUSR | Mode::WUSR)?);
        file.write_all(&serde_json::to_vec(record).map_err(io::Error::other)?)?;
        self.give(&file)?;
        file.sync_all()?;
        fs::renameat(&dir, &new, &dir, &name)?;
        Ok(())
    }

    /// The first directory that is the owner's alone, made if need be.
    fn private_dir(&self) -> io::Result<OwnedFd> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for path in &self.dirs {
            if fs::mkdir(path, Mode::RWXU).is_ok() {
                // A new directory is ours until given away; anything else in its place fails the check.
                self.give(&fs::open(path, DIRECTORY, Mode::empty())?)?;
            }
            match self.open(path) {
                Ok(dir) => return Ok(dir),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Gives what we have just made to the records' owner.
    fn give(&self, made: impl AsFd) -> io::Result<()> {
        let me = rustix::process::geteuid();
        if me.as_raw() == self.uid {
            return Ok(());
        }
        if fs::fstat(&made)?.st_uid != me.as_raw() {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "something else took its place",
            ));
        }
        Ok(fs::fchown(&made, Some(Uid::from_raw(self.uid)), None)?)
    }

    fn open(&self, path: &Path) -> io::Result<OwnedFd> {
        let dir = fs::open(path, DIRECTORY, Mode::empty())?;
        let stat = fs::fstat(&dir)?;
        match stat.st_uid == self.uid && stat.st_mode & 0o077 == 0 {
            true => Ok(dir),
            false => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!(
                    "{} is not a directory of user {} with mode 0700",
                    path.display(),
                    self.uid
                ),
            )),
        }
    }

    pub fn remove(&self, pid: Pid) {
        for dir in self.dirs.iter().filter_map(|dir| self.open(dir).ok()) {
            let _ = fs::unlinkat(&dir, Self::name(pid), AtFlags::empty());
        }
    }
}

/// Removes the leavings of an ended process: the record, and the door.
pub fn forget(uid: u32, pid: u32) {
    let Ok(pid) = Pid::try_from(pid) else { return };
    let records = Records::of(uid, None);
    records.remove(pid);
    for dir in records.dirs.iter().filter_map(|dir| records.open(dir).ok()) {
        let _ = fs::unlinkat(&dir, folders::name(pid), AtFlags::empty());
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

fn read(dir: &OwnedFd, name: &str) -> Option<Record> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(fs::openat(dir, name, flags, Mode::empty()).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    serde_json::from_reader(file.take(MAX_RECORD)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_record_is_its_processs_and_nobody_elses() {
        let tmp = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let records = Records::of(uid, Some(tmp.path()));
        let halves = Halves {
            inside: true,
            driver: true,
        };
        fs::set_permissions(tmp.path(), Permissions::from_mode(0o755)).unwrap();
        assert!(
            records.put(&Record::new(7, 42, halves)).is_err(),
            "others could read that directory"
        );
        fs::set_permissions(tmp.path(), Permissions::from_mode(0o700)).unwrap();
        records.put(&Record::new(7, 42, halves)).unwrap();
        assert_eq!(records.get(7, 42).unwrap().halves, halves);
        assert_eq!(records.get(7, 43), None, "another process with that pid");
        records.remove(7);
        assert_eq!(records.get(7, 42), None);
    }

    #[test]
    fn links_and_pipes_are_not_followed() {
        let tmp = tempfile::tempdir().unwrap();
        let (real, link) = (tmp.path().join("real"), tmp.path().join("link"));
        fs::create_dir(&real).unwrap();
        fs::set_permissions(&real, Permissions::from_mode(0o700)).unwrap();
        symlink(&real, &link).unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let halves = Halves {
            inside: false,
            driver: true,
        };
        assert!(
            Records::of(uid, Some(&link))
                .put(&Record::new(7, 42, halves))
                .is_err()
        );
        let records = Records::of(uid, Some(&real));
        let status = std::process::Command::new("mkfifo")
            .arg(real.join(Records::name(7)))
            .status()
            .unwrap();
        assert!(status.success());
        assert_eq!(
            records.get(7, 42),
            None,
            "a pipe is no record, and nobody waits for it"
        );
        records.put(&Record::new(7, 42, halves)).unwrap();
        assert!(records.get(7, 42).is_some());
    }
}
