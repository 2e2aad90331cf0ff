//! The chroot of Debian 13, which has the second Slurm series: its place and its contents. [`crate::prepare`] makes it.

use std::fs;
use std::path::{Path, PathBuf};

/// Where the chroot lies.
pub(crate) const CACHE: &str = "/var/cache/gresshopper-dev/trixie";
pub(crate) const STAMP: &str = "/var/cache/gresshopper-dev/trixie.ready";
pub(crate) const PACKAGES: &str =
    "slurm-wlm slurmdbd munge mariadb-server libslurm-dev procps python3-venv python3-pandas";
/// The Python environments, made at the same place as on the host and of the same packages.
pub(crate) const ENVIRONMENTS: [(&str, &str); 2] = [
    ("user", include_str!("../../setup/requirements-user.txt")),
    ("hub", include_str!("../../setup/requirements-hub.txt")),
];
pub(crate) const ENVIRONMENTS_AT: &str = "/opt/gresshopper-dev";
/// Changes whenever the chroot must be made anew.
pub(crate) fn contents() -> String {
    ENVIRONMENTS
        .iter()
        .fold(PACKAGES.to_owned(), |all, (name, packages)| {
            format!("{all}\n{name}\n{packages}")
        })
}

/// Whether the chroot is there, complete and up to date.
pub(crate) fn ready() -> bool {
    fs::read_to_string(STAMP).is_ok_and(|s| s == contents())
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
