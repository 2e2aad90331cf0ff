//! Making the chroot of Debian 13 ([`crate::trixie`]).
//!
//! It is made once and never written to again: a cluster mounts an overlay above it.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::cluster::Cluster;
use crate::options::Variant;
use crate::registry::{Registry, lock_file};
use crate::trixie::{CACHE, ENVIRONMENTS, ENVIRONMENTS_AT, PACKAGES, STAMP, contents, ready};

/// What debootstrap downloaded, kept for its next try.
const DOWNLOADS: &str = "/var/cache/gresshopper-dev/trixie.debs";
const TRIES: usize = 3;
const PAUSE: Duration = Duration::from_secs(5);
const SHOWN: usize = 20;
/// The host's pip, which knows how packages are had from here.
const HOST_PIP: &str = "/opt/gresshopper-dev/hub/bin/pip";

/// Makes the chroot unless it is there. Takes two or three minutes and needs Debian's mirror, and the host's Python
/// environments (`tests/setup/install.sh`) for the chroot's own.
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
    refuse_while_used()?;
    let _ = fs::remove_file(STAMP);
    let _ = fs::remove_dir_all(CACHE);
    progress("making the chroot of Debian 13 by debootstrap");
    let log = parent.join("trixie.log");
    let result = again("debootstrap", &mut progress, || debootstrap(&log)).and_then(|()| {
        progress("installing Slurm 24.11 in it");
        again("the installation", &mut progress, || install(&log))?;
        progress("making its Python environments");
        ENVIRONMENTS.iter().try_for_each(|(name, packages)| {
            again("the environment", &mut progress, || {
                environment(name, packages, &log)
            })
        })
    });
    if result.is_err() {
        let _ = fs::remove_dir_all(CACHE);
    }
    result.with_context(|| {
        format!(
            "can't make the chroot; {} ends with:\n{}",
            log.display(),
            last_lines(&log)
        )
    })?;
    fs::write(STAMP, contents()).context("can't write the chroot's stamp")
}

/// Some hundred files come from mirrors, and debootstrap gives up at the first refusal: each step is tried three times.
fn again(what: &str, progress: &mut impl FnMut(&str), step: impl Fn() -> Result<()>) -> Result<()> {
    for _ in 1..TRIES {
        match step() {
            Ok(()) => return Ok(()),
            Err(error) => progress(&format!("{what} is tried again: {error:#}")),
        }
        std::thread::sleep(PAUSE);
    }
    step()
}

/// What a log of another machine's run is read for.
fn last_lines(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(SHOWN)..].join("\n")
}

/// Under a running cluster's overlay the chroot must not change.
fn refuse_while_used() -> Result<()> {
    let (registry, _) = Registry::open()?;
    for base in registry.taken.clusters.keys() {
        let used = Cluster::open(base).is_ok_and(|c| c.options().variant == Variant::Trixie);
        ensure!(
            !used,
            "the cluster at {} uses the chroot of Debian 13: take it down first",
            base.display()
        );
    }
    registry.save()
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
    let _ = fs::remove_dir_all(CACHE);
    fs::create_dir_all(DOWNLOADS).context("can't make a place for debootstrap's downloads")?;
    let cache = format!("--cache-dir={DOWNLOADS}");
    logged(
        Command::new("debootstrap").args(["--variant=minbase", &cache, "trixie", CACHE]),
        log,
    )?;
    fs::remove_dir_all(DOWNLOADS).context("can't remove debootstrap's downloads")
}

/// Makes a Python environment; its packages come through the host's pip.
fn environment(name: &str, packages: &str, log: &Path) -> Result<()> {
    let wheels = format!("{CACHE}/var/tmp/wheels-{name}");
    let _ = fs::remove_dir_all(format!("{CACHE}{ENVIRONMENTS_AT}/{name}"));
    fs::create_dir_all(&wheels).context("can't make a place for Python packages")?;
    let list = format!("{wheels}/requirements.txt");
    fs::write(&list, packages).context("can't write the list of Python packages")?;
    let mut fetch = Command::new(HOST_PIP);
    fetch.args([
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--python-version=3.13",
    ]);
    for glibc in [
        "2014", "_2_17", "_2_24", "_2_26", "_2_27", "_2_28", "_2_31", "_2_34",
    ] {
        fetch.arg(format!("--platform=manylinux{glibc}_{}", std::env::consts::ARCH));
    }
    logged(fetch.args(["--dest", &wheels, "--requirement", &list]), log)?;
    let (at, inside) = (
        format!("{ENVIRONMENTS_AT}/{name}"),
        format!("/var/tmp/wheels-{name}"),
    );
    let site = if name == "user" {
        "--system-site-packages"
    } else {
        ""
    };
    let script = format!(
        "python3 -m venv {site} {at} && {at}/bin/pip install --quiet --no-index --no-deps --find-links {inside} \
         --requirement {inside}/requirements.txt && rm -r {inside} && chmod -R a+rX {ENVIRONMENTS_AT}"
    );
    logged(Command::new("chroot").args([CACHE, "sh", "-c", &script]), log)
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
    // A mirror that is older than the machine's clock likes is the host's to judge.
    let dates = Command::new("apt-config")
        .args(["dump", "--no-empty", "Acquire"])
        .output()
        .context("can't ask for apt's settings")?;
    let dates: String = String::from_utf8_lossy(&dates.stdout)
        .lines()
        .filter(|line| line.starts_with("Acquire::Check-"))
        .map(|line| format!("{line}\n"))
        .collect();
    fs::write(Path::new(CACHE).join("etc/apt/apt.conf.d/90host-dates"), dates)
        .context("can't copy apt's settings")?;
    let script = format!(
        "mount --rbind /proc {CACHE}/proc && mount --rbind /dev {CACHE}/dev && \
         exec chroot {CACHE} sh -c 'apt-get update && apt-get install -y --no-install-recommends {PACKAGES} && apt-get clean'"
    );
    logged(
        Command::new("unshare").args(["--mount", "--propagation", "private", "sh", "-c", &script]),
        log,
    )?;
    fs::remove_file(policy).context("can't remove policy-rc.d")
}
