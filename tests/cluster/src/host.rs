//! Facts about the machine: its cgroup mounts, cores and name.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

/// How the host mounts control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupSetup {
    /// v1 alone.
    V1,
    /// v1 controllers and an additional cgroup2 mount.
    Hybrid,
    /// cgroup2 alone.
    V2,
}

/// One cgroup file system mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CgroupMount {
    pub path: PathBuf,
    /// `None` for cgroup2; else the controllers.
    pub controllers: Option<Vec<String>>,
}

/// The cgroup mounts of this process's mount namespace.
pub(crate) fn cgroup_mounts() -> Result<Vec<CgroupMount>> {
    let table = fs::read_to_string("/proc/self/mounts").context("can't read the mount table")?;
    Ok(parse_mounts(&table))
}

fn parse_mounts(table: &str) -> Vec<CgroupMount> {
    table
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (path, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
            let controllers = match kind {
                "cgroup" => Some(options.split(',').map(str::to_owned).collect()),
                "cgroup2" => None,
                _ => return None,
            };
            Some(CgroupMount {
                path: path.into(),
                controllers,
            })
        })
        .collect()
}

fn classify(mounts: &[CgroupMount]) -> Option<CgroupSetup> {
    let devices_v1 = mounts.iter().any(|m| {
        m.controllers
            .as_ref()
            .is_some_and(|c| c.iter().any(|c| c == "devices"))
    });
    let unified = mounts.iter().any(|m| m.controllers.is_none());
    match (devices_v1, unified) {
        (true, true) => Some(CgroupSetup::Hybrid),
        (true, false) => Some(CgroupSetup::V1),
        (false, true) => Some(CgroupSetup::V2),
        (false, false) => None,
    }
}

/// How this host mounts control groups, judged by where the devices controller is.
pub(crate) fn cgroup_setup() -> Result<CgroupSetup> {
    match classify(&cgroup_mounts()?) {
        Some(setup) => Ok(setup),
        None => bail!("no cgroup file system is mounted: Slurm can't constrain devices here"),
    }
}

/// Mounts the bpf file system as systemd would, where nobody has. It stays.
pub(crate) fn mount_bpf() -> Result<()> {
    const PLACE: &str = "/sys/fs/bpf";
    let table = fs::read_to_string("/proc/self/mounts").context("can't read the mount table")?;
    let mounted = |line: &str| line.split(' ').nth(1) == Some(PLACE);
    if table.lines().any(mounted) || !Path::new(PLACE).is_dir() {
        return Ok(());
    }
    let status = Command::new("mount")
        .args(["-t", "bpf", "-o", "mode=700", "bpf", PLACE])
        .status()
        .context("can't start mount")?;
    ensure!(status.success(), "can't mount the bpf file system on {PLACE}");
    Ok(())
}

/// The machine's name without its domain, as slurmctld compares it.
pub(crate) fn short_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    name.split('.').next().unwrap_or("localhost").to_owned()
}

/// Whether the machine's name stands for 127.0.0.1, the address that connections within the machine come from.
pub(crate) fn is_localhost(name: &str) -> bool {
    let first = |mut a: std::vec::IntoIter<SocketAddr>| a.find(SocketAddr::is_ipv4);
    (name, 0)
        .to_socket_addrs()
        .ok()
        .and_then(first)
        .is_some_and(|a| a.ip() == Ipv4Addr::LOCALHOST)
}

/// Cores of this machine.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_the_three_kinds_of_host_apart() {
        let v1 = "cgroup /sys/fs/cgroup/devices cgroup rw,relatime,devices 0 0\n";
        let v2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let named = "cgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0\n";
        let ext4 = "/dev/vda / ext4 rw 0 0\n";
        let kind = |s: &str| classify(&parse_mounts(s));
        assert_eq!(kind(&format!("{ext4}{v1}")), Some(CgroupSetup::V1));
        assert_eq!(kind(&format!("{ext4}{v1}{v2}")), Some(CgroupSetup::Hybrid));
        assert_eq!(kind(&format!("{v2}{named}")), Some(CgroupSetup::V2));
        assert_eq!(kind(ext4), None);
    }
}
