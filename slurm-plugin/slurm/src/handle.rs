//! The handle that all calls hang on.

use crate::link::Link;
use crate::run::{RunAs, Runner};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::process::Command;

/// How to reach Slurm.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Folder of `sbatch` and Slurm's other commands; `None` means `PATH`.
    pub bin: Option<PathBuf>,
    /// `slurm.conf`; none: the caller's `SLURM_CONF`, else Slurm's own default.
    pub conf: Option<PathBuf>,
    /// More variables for the commands. They override all others.
    pub env: Vec<(OsString, OsString)>,
    /// Run the commands as this user; needs root.
    pub run_as: Option<RunAs>,
    /// How long one command may take.
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            bin: None,
            conf: None,
            env: Vec::new(),
            run_as: None,
            timeout: Duration::from_secs(30),
        }
    }
}

/// A handle on Slurm. Cheap to clone; holds no connection.
#[derive(Debug, Clone)]
pub struct Slurm {
    pub(crate) runner: Arc<Runner>,
    pub(crate) link: Option<Link>,
    /// GRES that can't be read, as logged.
    pub(crate) told: Arc<Mutex<BTreeSet<String>>>,
}

impl Slurm {
    pub fn new(settings: Settings) -> Self {
        Self {
            runner: Arc::new(Runner {
                bin: settings.bin,
                conf: settings.conf,
                env: settings.env,
                run_as: settings.run_as,
                timeout: settings.timeout,
            }),
            link: None,
            told: Arc::default(),
        }
    }

    /// The same Slurm, with commands run as `user` (needs root). The helper process is not used for others.
    pub fn as_user(&self, user: RunAs) -> Self {
        Self {
            runner: Arc::new(Runner {
                run_as: Some(user),
                ..(*self.runner).clone()
            }),
            link: None,
            told: self.told.clone(),
        }
    }

    /// Reads jobs, nodes and partitions through the helper process at `program` where that works.
    pub fn with_link(mut self, program: PathBuf) -> Self {
        self.link = Some(Link::new(program, self.runner.clone()));
        self
    }

    /// The helper process, for its unique abilities ([`crate::link::Ask::Allocate`]).
    pub fn link(&self) -> Option<&Link> {
        self.link.as_ref()
    }

    /// A command of Slurm's with a clean environment and the identity set, for what runs as long as a step
    /// lives (`srun`). The caller sets arguments, pipes and lifetime.
    pub fn command(&self, program: &str) -> Command {
        self.runner.command(program)
    }
}

impl Default for Slurm {
    fn default() -> Self {
        Self::new(Settings::default())
    }
}
