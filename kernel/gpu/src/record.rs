//! What an unpark must know of the park: written when a process is parked, in its owner's private directory, and
//! removed when it is back.

use crate::Pid;
use crate::inside::run_dirs;
use crate::ladder::Place;
use crate::machine::Halves;
use crate::procs::check_private_dir;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, chown};
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
    /// Device memory that the process held, over all devices, where NVML said so.
    pub device_bytes: Option<u64>,
    pub frameworks_bytes: u64,
    /// The context is back on the device, the frameworks' share is not.
    pub half_back: bool,
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
        }
    }
}

/// Where records of `uid`'s processes lie.
#[derive(Debug, Clone)]
pub struct Records {
    uid: u32,
    dirs: Vec<PathBuf>,
}

impl Records {
    pub fn of(uid: u32, dir: Option<&Path>) -> Self {
        let dirs = dir.map_or_else(|| run_dirs(uid), |dir| vec![dir.to_path_buf()]);
        Self { uid, dirs }
    }

    fn file(dir: &Path, pid: Pid) -> PathBuf {
        dir.join(format!("gpu-{pid}.parked.json"))
    }

    /// The record of a process, unless it is of an earlier process with the same pid.
    pub fn get(&self, pid: Pid, start_time: u64) -> Option<Record> {
        let safe = self
            .dirs
            .iter()
            .filter(|dir| check_private_dir(dir, self.uid).is_ok());
        safe.filter_map(|dir| fs::read(Self::file(dir, pid)).ok())
            .filter_map(|text| serde_json::from_slice::<Record>(&text).ok())
            .find(|record| record.v == VERSION && (record.pid, record.start_time) == (pid, start_time))
    }

    /// Writes the record, in place of an older one.
    ///
    /// # Errors
    /// There is no directory that is the owner's alone, or it can't be written.
    pub fn put(&self, record: &Record) -> io::Result<()> {
        let dir = self.private_dir()?;
        let path = Self::file(&dir, record.pid);
        let new = path.with_extension("new");
        let _ = fs::remove_file(&new);
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)?;
        io::Write::write_all(&mut file, &serde_json::to_vec(record).map_err(io::Error::other)?)?;
        file.sync_all()?;
        if rustix::process::geteuid().as_raw() != self.uid {
            chown(&new, Some(self.uid), None)?;
        }
        fs::rename(&new, &path)
    }

    fn private_dir(&self) -> io::Result<PathBuf> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for dir in &self.dirs {
            let made = fs::DirBuilder::new().mode(0o700).create(dir);
            let me = rustix::process::geteuid().as_raw();
            if made.is_ok() && me != self.uid {
                chown(dir, Some(self.uid), None)?;
            }
            match check_private_dir(dir, self.uid) {
                Ok(()) => return Ok(dir.clone()),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    pub fn remove(&self, pid: Pid) {
        for dir in &self.dirs {
            let _ = fs::remove_file(Self::file(dir, pid));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_record_is_its_processs_and_nobody_elses() {
        let tmp = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let records = Records::of(uid, Some(tmp.path()));
        let halves = Halves {
            inside: true,
            driver: true,
        };
        fs::set_permissions(tmp.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(
            records.put(&Record::new(7, 42, halves)).is_err(),
            "others could read that directory"
        );
        fs::set_permissions(tmp.path(), fs::Permissions::from_mode(0o700)).unwrap();
        records.put(&Record::new(7, 42, halves)).unwrap();
        assert_eq!(records.get(7, 42).unwrap().halves, halves);
        assert_eq!(records.get(7, 43), None, "another process with that pid");
        records.remove(7);
        assert_eq!(records.get(7, 42), None);
    }
}
