//! Facts on processes from `/proc`: open device files, by descriptor or mapping, parents, and owners.

use crate::Pid;
use hop_words::process::open_flags;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::PathBuf;

/// Where to look. The defaults are the machine's; tests and `--dev-prefix` say otherwise.
#[derive(Debug, Clone)]
pub struct Procs {
    pub proc: PathBuf,
    /// What device files' paths begin with.
    pub dev_prefix: String,
}

impl Default for Procs {
    fn default() -> Self {
        Self {
            proc: "/proc".into(),
            dev_prefix: "/dev/nvidia".into(),
        }
    }
}

/// How a process holds a device file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    Descriptor,
    Mapping,
}

/// One device file that one process holds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Held {
    pub pid: Pid,
    pub comm: String,
    pub file: String,
    pub how: How,
}

impl Held {
    /// Whether the file is a device's own (`nvidia0`, a MIG capability) rather than one of the driver's
    /// (`nvidiactl`, `nvidia-uvm`), which holds no device.
    pub fn is_device(&self, prefix: &str) -> bool {
        let rest = self.file.strip_prefix(prefix).unwrap_or_default();
        rest.starts_with("-caps/") || (!rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    }
}

/// A process's four user ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uids {
    pub real: u32,
    pub effective: u32,
    pub saved: u32,
    pub fs: u32,
}

impl Uids {
    /// Whether the process is `uid`'s and nobody else's.
    pub fn are_all(self, uid: u32) -> bool {
        [self.real, self.effective, self.saved, self.fs] == [uid; 4]
    }
}

impl Procs {
    fn path(&self, pid: Pid, file: &str) -> PathBuf {
        self.proc.join(pid.to_string()).join(file)
    }

    /// The process's start, in clock ticks since boot: together with the pid the name of a process for ever.
    ///
    /// # Errors
    /// There is no such process.
    pub fn start_time(&self, pid: Pid) -> io::Result<u64> {
        let stat = fs::read_to_string(self.path(pid, "stat"))?;
        stat_field(&stat, 22)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "stat without a start time"))
    }

    /// # Errors
    /// There is no such process.
    pub fn uids(&self, pid: Pid) -> io::Result<Uids> {
        let status = fs::read_to_string(self.path(pid, "status"))?;
        let line = status
            .lines()
            .find_map(|l| l.strip_prefix("Uid:"))
            .unwrap_or_default();
        let ids: Vec<u32> = line.split_whitespace().filter_map(|id| id.parse().ok()).collect();
        match ids[..] {
            [real, effective, saved, fs] => Ok(Uids {
                real,
                effective,
                saved,
                fs,
            }),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "status without Uid")),
        }
    }

    pub fn comm(&self, pid: Pid) -> String {
        fs::read_to_string(self.path(pid, "comm")).map_or_else(|_| String::new(), |s| s.trim_end().to_owned())
    }

    /// Whether an environment variable was set at the process's start; `None` if unreadable.
    pub fn env(&self, pid: Pid, name: &str) -> Option<bool> {
        let environ = fs::read(self.path(pid, "environ")).ok()?;
        let wanted = format!("{name}=");
        Some(
            environ
                .split(|b| *b == 0)
                .any(|var| var.starts_with(wanted.as_bytes())),
        )
    }

    /// All processes.
    pub fn all(&self) -> Vec<Pid> {
        let Ok(entries) = fs::read_dir(&self.proc) else {
            return Vec::new();
        };
        entries
            .flatten()
            .filter_map(|e| e.file_name().to_str()?.parse().ok())
            .collect()
    }

    /// `pid` and everything that descends from it.
    pub fn tree(&self, pid: Pid) -> Vec<Pid> {
        let parents: Vec<(Pid, Pid)> = self
            .all()
            .into_iter()
            .filter_map(|p| Some((p, self.parent(p)?)))
            .collect();
        let mut tree = vec![pid];
        let mut next = 0;
        while let Some(parent) = tree.get(next).copied() {
            tree.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(p, _)| *p));
            next += 1;
        }
        tree
    }

    fn parent(&self, pid: Pid) -> Option<Pid> {
        let stat = fs::read_to_string(self.path(pid, "stat")).ok()?;
        stat_field(&stat, 4).and_then(|ppid| Pid::try_from(ppid).ok())
    }

    /// The device files that `pid` holds, each way named once.
    ///
    /// # Errors
    /// The process is gone, or isn't ours to look into.
    pub fn held(&self, pid: Pid) -> io::Result<Vec<Held>> {
        let mut files: Vec<(String, How)> = Vec::new();
        for entry in fs::read_dir(self.path(pid, "fd"))?.flatten() {
            // A descriptor closed since the listing holds nothing.
            let Ok(target) = fs::read_link(entry.path()) else {
                continue;
            };
            let file = target.to_string_lossy().into_owned();
            if file.starts_with(&self.dev_prefix) && !self.is_path_only(pid, &entry.file_name()) {
                files.push((file, How::Descriptor));
            }
        }
        let maps = fs::read_to_string(self.path(pid, "maps"))?;
        files.extend(
            maps.lines()
                .filter_map(mapped_file)
                .map(|file| (file.to_owned(), How::Mapping)),
        );
        files.retain(|(file, _)| file.starts_with(&self.dev_prefix));
        files.sort();
        files.dedup();
        let comm = self.comm(pid);
        let held = |(file, how)| Held {
            pid,
            comm: comm.clone(),
            file,
            how,
        };
        Ok(files.into_iter().map(held).collect())
    }

    /// Whether a descriptor is opened with `O_PATH`: a name, for which nobody asks a driver or needs a permission. The
    /// plugin's take-back passes over it as well.
    fn is_path_only(&self, pid: Pid, number: &OsStr) -> bool {
        let info = fs::read_to_string(self.path(pid, "fdinfo").join(number));
        let flags = info.ok().and_then(|info| open_flags(&info));
        flags.is_some_and(|flags| flags & libc::O_PATH.cast_unsigned() != 0)
    }
}

/// The path of a line of `/proc/PID/maps`.
fn mapped_file(line: &str) -> Option<&str> {
    line.find('/').map(|at| &line[at..])
}

/// A field of `/proc/PID/stat`, counted from 1; the command in field 2 may hold blanks and parentheses.
fn stat_field(stat: &str, field: usize) -> Option<u64> {
    let (_, after) = stat.rsplit_once(')')?;
    after.split_whitespace().nth(field.checked_sub(3)?)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn fields_of_stat_survive_a_strange_command() {
        let stat = "7 (a ) b) S 3 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 4242 0";
        assert_eq!(stat_field(stat, 4), Some(3));
        assert_eq!(stat_field(stat, 22), Some(4242));
    }

    #[test]
    fn our_own_device_file_is_seen_by_descriptor_and_by_mapping() {
        let dir = tempfile::tempdir().unwrap();
        let procs = Procs {
            dev_prefix: format!("{}/nvidia", dir.path().display()),
            ..Procs::default()
        };
        let me = Pid::try_from(std::process::id()).unwrap();
        assert_eq!(procs.held(me).unwrap(), []);
        fs::write(dir.path().join("nvidia0"), [0; 4096]).unwrap();
        let path_only = rustix::fs::OFlags::PATH;
        let name = rustix::fs::open(dir.path().join("nvidia0"), path_only, rustix::fs::Mode::empty());
        assert_eq!(procs.held(me).unwrap(), [], "a name alone holds nothing");
        drop(name.unwrap());
        let file = File::open(dir.path().join("nvidia0")).unwrap();
        let held = procs.held(me).unwrap();
        assert_eq!(held.len(), 1);
        assert!(held[0].how == How::Descriptor && held[0].is_device(&procs.dev_prefix));
        // SAFETY: a private read-only mapping of a file that lives as long as the test.
        let map = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                4096,
                rustix::mm::ProtFlags::READ,
                rustix::mm::MapFlags::PRIVATE,
                &file,
                0,
            )
        }
        .unwrap();
        drop(file);
        let held = procs.held(me).unwrap();
        assert_eq!(held.iter().map(|h| h.how).collect::<Vec<_>>(), [How::Mapping]);
        // SAFETY: the mapping made above, unmapped once.
        unsafe { rustix::mm::munmap(map, 4096) }.unwrap();
        assert_eq!(procs.held(me).unwrap(), []);
    }

    #[test]
    fn control_files_hold_no_device() {
        let held = |file: &str| Held {
            pid: 1,
            comm: String::new(),
            file: file.into(),
            how: How::Descriptor,
        };
        for (file, device) in [
            ("/dev/nvidia0", true),
            ("/dev/nvidia12", true),
            ("/dev/nvidia-caps/nvidia-cap1", true),
            ("/dev/nvidiactl", false),
            ("/dev/nvidia-uvm", false),
        ] {
            assert_eq!(held(file).is_device("/dev/nvidia"), device, "{file}");
        }
    }

    #[test]
    fn the_tree_holds_the_children() {
        let mut child = std::process::Command::new("sleep").arg("5").spawn().unwrap();
        let me = Pid::try_from(std::process::id()).unwrap();
        let tree = Procs::default().tree(me);
        assert!(tree.contains(&me) && tree.contains(&Pid::try_from(child.id()).unwrap()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
