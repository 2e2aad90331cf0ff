//! Where things lie below the base directory.

use std::path::{Path, PathBuf};

/// Paths below a cluster's base directory.
#[derive(Debug, Clone)]
pub struct Layout {
    base: PathBuf,
}

impl Layout {
    /// The layout below `base`.
    pub fn new(base: impl Into<PathBuf>) -> Self {
        Self { base: base.into() }
    }

    /// The base directory itself.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// slurm.conf and its companions.
    pub fn etc(&self) -> PathBuf {
        self.base.join("etc")
    }

    /// What `SLURM_CONF` names.
    pub fn slurm_conf(&self) -> PathBuf {
        self.etc().join("slurm.conf")
    }

    /// SPANK plugins; read anew by each srun and slurmstepd.
    pub fn plugstack_conf(&self) -> PathBuf {
        self.etc().join("plugstack.conf")
    }

    /// The daemons' logs.
    pub fn log(&self) -> PathBuf {
        self.base.join("log")
    }

    /// Pid files, the keeper's fifo.
    pub fn run(&self) -> PathBuf {
        self.base.join("run")
    }

    /// What outlives a restart: slurmctld's state, spools, the database.
    pub fn state(&self) -> PathBuf {
        self.base.join("state")
    }

    /// A slurmd's spool.
    pub fn spool(&self, node: &str) -> PathBuf {
        self.state().join(format!("spool.{node}"))
    }

    /// MariaDB's data.
    pub fn mysql_data(&self) -> PathBuf {
        self.state().join("mysql")
    }

    /// MariaDB's socket.
    pub fn mysql_socket(&self) -> PathBuf {
        self.base.join("mysqlrun/mysqld.sock")
    }

    /// munged's key and socket.
    pub fn munge(&self) -> PathBuf {
        self.base.join("munge")
    }

    /// munged's socket.
    pub fn munge_socket(&self) -> PathBuf {
        self.munge().join("munge.socket")
    }

    /// A user's home.
    pub fn home(&self, user: &str) -> PathBuf {
        self.base.join("home").join(user)
    }

    /// Where a test installs what it tests: bin/, lib/, python/.
    pub fn opt(&self) -> PathBuf {
        self.base.join("opt")
    }

    /// A daemon's pid file; for slurmd the name is `slurmd.NODE`.
    pub fn pid_file(&self, daemon: &str) -> PathBuf {
        self.run().join(format!("{daemon}.pid"))
    }

    /// A daemon's log.
    pub fn log_file(&self, daemon: &str) -> PathBuf {
        self.log().join(format!("{daemon}.log"))
    }

    /// The fifo by which Slurm's power saving asks the keeper for slurmd.
    pub fn power_fifo(&self) -> PathBuf {
        self.run().join("power.fifo")
    }

    /// Starts one slurmd; used by us and by the keeper alike.
    pub fn slurmd_script(&self) -> PathBuf {
        self.etc().join("slurmd.sh")
    }

    /// The library that hides cgroup v1 from slurmd where the host mounts both.
    pub fn shim(&self) -> PathBuf {
        self.run().join("cgroup-shim.so")
    }

    /// Root of the chroot of variant `trixie`, seen only in the keeper's mount namespace.
    pub fn chroot(&self) -> PathBuf {
        self.state().join("chroot/root")
    }

    /// What `up` was asked for.
    pub fn options(&self) -> PathBuf {
        self.base.join("options.json")
    }

    /// Held by each command that changes the cluster.
    pub fn lock(&self) -> PathBuf {
        self.base.join(".lock")
    }
}
