//! The chroot of Debian 13, which has the second Slurm series.
//!
//! It is made once and never written to again: a cluster mounts an overlay above it.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::registry::lock_file;

/// Where the chroot lies.
pub(crate) const CACHE: &str = "/var/cache/gresshopper-dev/trixie";
const STAMP: &str = "/var/cache/gresshopper-dev/trixie.ready";
/// Changes whenever the chroot must be made anew.
const CONTENTS: &str = "slurm-wlm slurmdbd munge mariadb-server libslurm-dev python3-venv python3-numpy";

/// Whether the chroot is there, complete and up to date.
pub(crate) fn ready() -> bool {
    fs::read_to_string(STAMP).is_ok_and(|s| s == CONTENTS)
}

/// Slurm's headers of that series, as seen from outside.
pub(crate) fn include_dir() -> PathBuf {
    Path::new(CACHE).join("usr/include")
}

/// Slurm's library of that series, as seen from outside.
pub(crate) fn library_dir() -> PathBuf {
    Path::new(CACHE)
        .join("usr/lib")
        .join(format!("{}-linux-gnu", std::env::consts::ARCH))
}

/// Makes the chroot unless it is there. Takes a minute or two and needs Debian's mirror.
///
/// # Errors
/// When debootstrap or the packages in the chroot fail; what was made until then is taken away.
pub fn prepare(mut progress: impl FnMut(&str)) -> Result<()> {
    let parent = Path::new(CACHE).parent().context("the cache has a parent")?;
    fs::create_dir_all(parent).with_context(|| format!("can't make {}", parent.display()))?;
    let _lock = lock_file(&parent.join("trixie.lock"))?;
    if ready() {
        return Ok(());
    }
    let _ = fs::remove_file(STAMP);
    let _ = fs::remove_dir_all(CACHE);
    progress("making the chroot of Debian 13 by debootstrap");
    let log = parent.join("trixie.log");
    let result = debootstrap(&log).and_then(|()| {
        progress("installing Slurm 24.11 in it");
        install(&log)
    });
    if result.is_err() {
        let _ = fs::remove_dir_all(CACHE);
    }
    result.with_context(|| format!("can't make the chroot: see {}", log.display()))?;
    fs::write(STAMP, CONTENTS).context("can't write the chroot's stamp")
}

fn logged(command: &mut Command, log: &Path) -> Result<()> {
    let mut file = fs::File::options()
        .create(true)
        .append(true)
        .open(log)
        .context("can't open the log")?;
    writeln!(file, "+ {command:?}").context("can't write the log")?;
    let err = file.try_clone().context("can't share the log")?;
    let status = command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(err)
        .status()
        .with_context(|| format!("can't run {}", command.get_program().display()))?;
    ensure!(
        status.success(),
        "{} failed: {status}",
        command.get_program().display()
    );
    Ok(())
}

fn debootstrap(log: &Path) -> Result<()> {
    logged(
        Command::new("debootstrap").args(["--variant=minbase", "trixie", CACHE]),
        log,
    )
}

/// Installs in a private mount namespace, so that /proc is never left mounted; the packages start nothing.
fn install(log: &Path) -> Result<()> {
    let policy = Path::new(CACHE).join("usr/sbin/policy-rc.d");
    fs::write(&policy, "#!/bin/sh\nexit 101\n").context("can't keep the packages from starting daemons")?;
    fs::set_permissions(&policy, std::os::unix::fs::PermissionsExt::from_mode(0o755)).context("chmod")?;
    // apt drops to its own user, who must reach what this machine's apt is told to use.
    let settings = Path::new("/etc/apt/apt.conf");
    if settings.is_file() {
        fs::copy(settings, Path::new(CACHE).join("etc/apt/apt.conf")).context("can't copy apt's settings")?;
    }
    let script = format!(
        "mount --rbind /proc {CACHE}/proc && mount --rbind /dev {CACHE}/dev && \
         exec chroot {CACHE} sh -c 'apt-get update && apt-get install -y --no-install-recommends {CONTENTS} && apt-get clean'"
    );
    logged(
        Command::new("unshare").args(["--mount", "--propagation", "private", "sh", "-c", &script]),
        log,
    )?;
    fs::remove_file(policy).context("can't remove policy-rc.d")
}
