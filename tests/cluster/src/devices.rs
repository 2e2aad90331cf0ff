//! The fake GPUs: device nodes with the numbers of unused virtual consoles.
//!
//! Such a device can be opened without any hardware, so whether an open succeeds is the device cgroup's
//! doing alone. Each GPU needs a number of its own, and none may be a console that somebody uses.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rustix::fs::{CWD, FileType, Mode, major, makedev, minor, mknodat};

use crate::options::Options;
use crate::registry::Taken;

const TTY_MAJOR: u32 = 4;
/// Virtual consoles that no getty or X server takes by default.
const MINORS: std::ops::RangeInclusive<u32> = 8..=63;

/// Paths of a node's GPUs: fake ones, unless the machine's own were named.
pub(crate) fn paths(options: &Options, node: &str) -> Vec<PathBuf> {
    if options.gpu_files.is_empty() {
        fakes(options, node).collect()
    } else {
        options.gpu_files.clone()
    }
}

fn fakes(options: &Options, node: &str) -> impl Iterator<Item = PathBuf> {
    (0..options.gpus_per_node).map(move |gpu| format!("/dev/fakegpu-{node}-{gpu}").into())
}

/// The fake GPUs to be made.
fn wanted(options: &Options) -> Vec<PathBuf> {
    if !options.gpu_files.is_empty() {
        return Vec::new();
    }
    options
        .all_nodes()
        .iter()
        .flat_map(|node| fakes(options, node).collect::<Vec<_>>())
        .collect()
}

/// Other clusters hold the numbers.
#[derive(Debug, thiserror::Error)]
#[error(
    "{wanted} fake GPUs are wanted and {free} device numbers are free: take down another cluster, or ask for fewer with \
     --gpus-per-node or --burst-nodes, or wait for them with --patience"
)]
pub(crate) struct Shortage {
    wanted: usize,
    free: usize,
}

/// Chooses a free number for each of the cluster's GPUs; those it has already stay as they are.
pub(crate) fn choose(
    options: &Options,
    taken: &Taken,
    in_use: &BTreeSet<u32>,
) -> Result<BTreeMap<PathBuf, u32>, Shortage> {
    let own = taken.clusters.get(&options.base).map(|c| &c.devices);
    let held: BTreeSet<u32> = taken
        .clusters
        .values()
        .flat_map(|c| c.devices.values().copied())
        .collect();
    let mut free = MINORS.filter(|m| !held.contains(m) && !in_use.contains(m));
    let wanted = wanted(options);
    let mut chosen = BTreeMap::new();
    for device in &wanted {
        if let Some(number) = own.and_then(|d| d.get(device)).copied().or_else(|| free.next()) {
            chosen.insert(device.clone(), number);
        }
    }
    let (wanted, free) = (wanted.len(), chosen.len());
    if free < wanted {
        return Err(Shortage { wanted, free });
    }
    Ok(chosen)
}

/// Numbers of consoles that a process has open or that the screen shows.
pub(crate) fn consoles_in_use() -> BTreeSet<u32> {
    let mut used = BTreeSet::new();
    let active = fs::read_to_string("/sys/class/tty/tty0/active").unwrap_or_default();
    used.extend(
        active
            .trim()
            .strip_prefix("tty")
            .and_then(|n| n.parse::<u32>().ok()),
    );
    for process in crate::process::all() {
        let Ok(fds) = fs::read_dir(format!("/proc/{}/fd", process.pid)) else {
            continue;
        };
        for device in fds.flatten().filter_map(|fd| fs::metadata(fd.path()).ok()) {
            if device.file_type().is_char_device() && major(device.rdev()) == TTY_MAJOR {
                used.insert(minor(device.rdev()));
            }
        }
    }
    used
}

/// Makes the device nodes that aren't there yet.
pub(crate) fn create(devices: &BTreeMap<PathBuf, u32>) -> Result<()> {
    for (path, number) in devices {
        let number = makedev(TTY_MAJOR, *number);
        if fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_char_device() && m.rdev() == number) {
            continue;
        }
        remove_one(path)?;
        mknodat(CWD, path, FileType::CharacterDevice, Mode::from(0o666), number)
            .with_context(|| format!("can't make the fake GPU {}", path.display()))?;
        // mknod is subject to the umask.
        fs::set_permissions(path, fs::Permissions::from_mode(0o666))
            .context("can't open the fake GPU to all")?;
    }
    Ok(())
}

/// Removes the device nodes.
pub(crate) fn remove(devices: &BTreeMap<PathBuf, u32>) -> Result<()> {
    devices.keys().try_for_each(|path| remove_one(path))
}

fn remove_one(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("can't remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::sample;
    use crate::registry::Claim;

    #[test]
    fn takes_only_free_numbers_and_keeps_its_own() {
        let mut taken = Taken::default();
        let others = BTreeMap::from([(PathBuf::from("/dev/x"), 8), (PathBuf::from("/dev/y"), 10)]);
        taken.clusters.insert(
            "/srv/other".into(),
            Claim {
                index: 5,
                devices: others,
            },
        );
        let first = choose(&sample(), &taken, &BTreeSet::from([9])).unwrap();
        assert_eq!(
            first.values().copied().collect::<BTreeSet<_>>(),
            (11..=22).collect()
        );
        taken.clusters.insert(
            sample().base,
            Claim {
                index: 0,
                devices: first.clone(),
            },
        );
        assert_eq!(choose(&sample(), &taken, &BTreeSet::new()).unwrap(), first);
    }

    #[test]
    fn says_so_when_numbers_run_out() {
        let many = Options {
            gpus_per_node: 16,
            ..sample()
        };
        let error = choose(&many, &Taken::default(), &BTreeSet::new())
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("96 fake GPUs are wanted and 56 device numbers are free"),
            "{error}"
        );
    }
}
