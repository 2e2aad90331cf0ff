//! The cluster as a whole: up, down, and what is between.
//!
//! Commands that change a cluster hold its lock, so two of them never meet.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use serde::Serialize;

use crate::config::{self, Facts};
use crate::daemons::{self, Daemons};
use crate::devices::Shortage;
use crate::host::{self, CgroupSetup};
use crate::layout::Layout;
use crate::options::{Options, Variant};
use crate::process::{self, MARK, Process, wait_until};
use crate::registry::{Claim, Registry, lock_file};
use crate::sandbox::{Identity, Sandbox};
use crate::{cgroups, devices, trixie, users};

/// A cluster, running or not.
#[derive(Debug)]
pub struct Cluster {
    options: Options,
    layout: Layout,
    patience: Duration,
}

/// What `up` found and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpOutcome {
    /// Nothing was running.
    Started,
    /// All of it was running already.
    AlreadyUp,
    /// Some daemons were missing and have been started.
    Mended,
}

/// State of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeStatus {
    /// Node name.
    pub node: String,
    /// As sinfo says it.
    pub state: String,
}

/// What of a cluster is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Base directory.
    pub base: PathBuf,
    /// The Slurm series and cgroup version.
    pub variant: Variant,
    /// Daemons that run, with their pids.
    pub running: Vec<(String, i32)>,
    /// Daemons that should run and don't.
    pub missing: Vec<String>,
    /// Nodes; empty while slurmctld is away.
    pub nodes: Vec<NodeStatus>,
}

impl Cluster {
    /// A cluster to be brought up with these options.
    pub fn new(options: Options) -> Result<Self> {
        options.check()?;
        let layout = Layout::new(&options.base);
        Ok(Self {
            options,
            layout,
            patience: Duration::ZERO,
        })
    }

    /// `up` waits so long for device numbers that other clusters hold.
    #[must_use]
    pub fn patient(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// The cluster that was brought up at `base`.
    ///
    /// # Errors
    /// When there never was one.
    pub fn open(base: &Path) -> Result<Self> {
        let layout = Layout::new(base);
        let file = layout.options();
        let text = fs::read(&file).with_context(|| {
            format!(
                "there is no cluster at {}: bring one up with `devcluster up`",
                base.display()
            )
        })?;
        let options =
            serde_json::from_slice(&text).with_context(|| format!("{} is damaged", file.display()))?;
        Self::new(options)
    }

    /// Whether a cluster was ever brought up at `base`, and not purged since.
    pub fn exists(base: &Path) -> bool {
        Layout::new(base).options().exists()
    }

    /// What `up` was asked for.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Where things lie.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    fn facts(&self) -> Result<Facts> {
        let host = host::short_name();
        Ok(Facts {
            is_localhost: host::is_localhost(&host),
            host,
            cores: host::cores(),
            cgroups: host::cgroup_setup()?,
        })
    }

    fn private_mounts(&self) -> Result<bool> {
        Ok(self.options.variant.private_mounts(host::cgroup_setup()?))
    }

    fn node_daemons(&self) -> Vec<String> {
        self.options
            .node_names()
            .iter()
            .map(|n| format!("slurmd.{n}"))
            .collect()
    }

    /// All daemons that run while the cluster is up, in the order of starting.
    fn daemon_names(&self) -> Vec<String> {
        let mut names: Vec<String> = ["keeper", "munged", "mariadbd", "slurmdbd", "slurmctld"]
            .map(str::to_owned)
            .into();
        names.extend(self.node_daemons());
        names
    }

    fn running(&self) -> Vec<(String, Process)> {
        let find = |name: String| daemons::find(&self.layout, &name).map(|p| (name, p));
        self.daemon_names().into_iter().filter_map(find).collect()
    }

    /// The place commands run in. Any of the cluster's own daemons can stand in for a lost keeper.
    fn sandbox(&self) -> Result<Sandbox> {
        let chroot = (self.options.variant == Variant::Trixie).then(|| self.layout.chroot());
        let mut holder = None;
        if self.private_mounts()? {
            let slurm = |(name, _): &(String, Process)| name == "keeper" || name.starts_with("slurm");
            let (_, process) = self
                .running()
                .into_iter()
                .find(slurm)
                .with_context(|| format!("the cluster at {} is down", self.layout.base().display()))?;
            holder = Some(process);
        }
        Ok(Sandbox::new(self.layout.clone(), holder, chroot))
    }

    fn with_daemons<T>(&self, act: impl FnOnce(&Daemons<'_>) -> Result<T>) -> Result<T> {
        let sandbox = self.sandbox()?;
        act(&Daemons {
            options: &self.options,
            layout: &self.layout,
            sandbox: &sandbox,
        })
    }

    fn lock(&self) -> Result<fs::File> {
        lock_file(&self.layout.lock())
    }

    /// Brings the cluster up; does nothing to what runs already.
    ///
    /// # Errors
    /// With the end of the log of the daemon that failed. A cluster that could not be started from nothing
    /// is taken down again, its logs stay.
    pub fn up(&self) -> Result<UpOutcome> {
        require_root()?;
        self.check_host()?;
        fs::create_dir_all(self.layout.base())
            .with_context(|| format!("can't make {}", self.layout.base().display()))?;
        let _lock = self.lock()?;
        let before = self.running().len();
        if before > 0 {
            self.refuse_other_options()?;
            if before == self.daemon_names().len() {
                return Ok(UpOutcome::AlreadyUp);
            }
        } else {
            self.sweep()?;
        }
        host::mount_bpf()?;
        let prepared = if before == 0 { self.prepare() } else { Ok(()) };
        match prepared.and_then(|()| self.start()) {
            Ok(()) if before == 0 => Ok(UpOutcome::Started),
            Ok(()) => Ok(UpOutcome::Mended),
            Err(e) if before == 0 => {
                let cleaned = self.take_down();
                Err(match cleaned {
                    Ok(()) => e,
                    Err(c) => e.context(format!("and could not be taken down again: {c:#}")),
                })
            }
            Err(e) => Err(e),
        }
    }

    fn check_host(&self) -> Result<()> {
        let setup = host::cgroup_setup()?;
        match self.options.variant {
            Variant::V1 if setup == CgroupSetup::V2 => {
                bail!("this host has cgroup v2 alone: use --variant v2 or trixie")
            }
            Variant::V2 | Variant::Trixie if setup == CgroupSetup::V1 => {
                bail!("this host has no cgroup2 mount: use --variant v1")
            }
            Variant::Trixie if !trixie::ready() => {
                bail!("the chroot of Debian 13 isn't there: make it with `devcluster prepare trixie`")
            }
            _ => Ok(()),
        }
    }

    fn refuse_other_options(&self) -> Result<()> {
        let is = Self::open(self.layout.base())?.options;
        ensure!(
            is == self.options,
            "a cluster with other options is up at {0}: take it down first (devcluster down --base {0})",
            self.layout.base().display()
        );
        Ok(())
    }

    /// Everything that must be there before the first daemon.
    fn prepare(&self) -> Result<()> {
        let was = Self::open(self.layout.base()).ok();
        if was.is_some_and(|w| w.options.variant != self.options.variant) {
            self.forget_other_series();
        }
        for dir in [
            "etc",
            "log",
            "run",
            "state",
            "home",
            "opt/bin",
            "opt/lib",
            "opt/python",
        ] {
            let dir = self.layout.base().join(dir);
            fs::create_dir_all(&dir).with_context(|| format!("can't make {}", dir.display()))?;
        }
        // First: whoever ends this here leaves a cluster that can be taken down.
        let text = serde_json::to_vec_pretty(&self.options).context("can't write the options")?;
        fs::write(self.layout.options(), text).context("can't write the options")?;
        self.claim()?;
        self.write_config()
    }

    /// Another series' database and state can't be read back, and its users have other numbers.
    fn forget_other_series(&self) {
        let spools = self
            .options
            .all_nodes()
            .into_iter()
            .map(|n| self.layout.spool(&n));
        let state = ["ctld", "mysql"].map(|part| self.layout.state().join(part));
        for dir in [self.layout.log(), self.layout.munge()]
            .into_iter()
            .chain(state)
            .chain(spools)
        {
            // What isn't there needs no removal; what can't be removed is told by the daemon that trips over it.
            let _ = fs::remove_dir_all(dir);
        }
    }

    /// Takes index, device numbers and users from the machine, as soon as there are numbers enough.
    fn claim(&self) -> Result<()> {
        let begun = Instant::now();
        loop {
            match self.claim_at_once() {
                Err(e) if e.is::<Shortage>() && begun.elapsed() < self.patience => {
                    std::thread::sleep(Duration::from_secs(1));
                }
                done => return done,
            }
        }
    }

    fn claim_at_once(&self) -> Result<()> {
        let (mut registry, gone) = Registry::open()?;
        gone.iter()
            .try_for_each(|claim| devices::remove(&claim.devices))?;
        let base = self.layout.base();
        if let Some(holder) = registry.taken.holder_of(self.options.index, base) {
            bail!(
                "index {} belongs to the cluster at {}: choose another",
                self.options.index,
                holder.display()
            );
        }
        let chosen = devices::choose(&self.options, &registry.taken, &devices::consoles_in_use())?;
        if registry.taken.clusters.is_empty() {
            registry.taken.withheld = cgroups::withheld();
        }
        let former = registry.taken.clusters.insert(
            base.to_owned(),
            Claim {
                index: self.options.index,
                devices: chosen.clone(),
            },
        );
        let mut stale = former.unwrap_or_default().devices;
        stale.retain(|path, _| !chosen.contains_key(path));
        devices::remove(&stale)?;
        devices::create(&chosen)?;
        users::ensure(&self.layout, &mut registry.taken)?;
        let table: String = registry
            .taken
            .passwords
            .iter()
            .map(|(n, p)| format!("{n}:{p}\n"))
            .collect();
        write_mode(&self.layout.etc().join("passwords"), &table, 0o600)?;
        registry.save()
    }

    fn write_config(&self) -> Result<()> {
        let (o, facts, etc) = (&self.options, self.facts()?, self.layout.etc());
        let files = [
            ("slurm.conf", config::slurm_conf(o, &facts), 0o644),
            ("gres.conf", config::gres_conf(o), 0o644),
            ("cgroup.conf", config::cgroup_conf(o, &facts), 0o644),
            ("slurmdbd.conf", config::slurmdbd_conf(o, &facts), 0o600),
            ("plugstack.conf", config::plugstack_conf(o), 0o644),
            ("resume.sh", config::power_script(o, "resume"), 0o755),
            ("suspend.sh", config::power_script(o, "suspend"), 0o755),
            ("slurmd.sh", config::slurmd_script(o, &facts), 0o755),
            ("keeper.sh", config::keeper_script(o, &facts), 0o755),
            ("passwd.users", users::passwd_lines()?, 0o644),
            ("group.users", users::group_lines()?, 0o644),
        ];
        for (name, text, mode) in files {
            write_mode(&etc.join(name), &text, mode)?;
        }
        if o.variant.hides_v1(facts.cgroups) {
            build_shim(&self.layout.shim())?;
        }
        Ok(())
    }

    fn start(&self) -> Result<()> {
        self.start_keeper()?;
        let sandbox = self.sandbox()?;
        self.make_owned_directories(&sandbox)?;
        let d = Daemons {
            options: &self.options,
            layout: &self.layout,
            sandbox: &sandbox,
        };
        d.munged()?;
        d.mariadbd()?;
        d.slurmdbd()?;
        d.accounts()?;
        d.slurmctld()?;
        let nodes = self.options.node_names();
        nodes.iter().try_for_each(|n| d.slurmd(n))?;
        d.await_nodes(&nodes)
    }

    fn start_keeper(&self) -> Result<()> {
        if daemons::find(&self.layout, "keeper").is_some() {
            return Ok(());
        }
        let others = self.running();
        ensure!(
            others.is_empty() || !self.private_mounts()?,
            "the keeper of the cluster's mount namespace is gone: take the cluster down and up again"
        );
        let fifo = self.layout.power_fifo();
        if !fifo.exists() {
            mknodat(CWD, &fifo, FileType::Fifo, Mode::from(0o600), 0)
                .context("can't make the keeper's fifo")?;
        }
        let log = fs::File::create(self.layout.log_file("keeper")).context("can't make the keeper's log")?;
        let err = log.try_clone().context("can't share the keeper's log")?;
        let mut command = Command::new("setsid");
        command.arg("--fork");
        if self.private_mounts()? {
            command.args(["unshare", "--mount", "--propagation", "private"]);
        }
        command.arg("sh").arg(self.layout.etc().join("keeper.sh"));
        command
            .env_clear()
            .env("PATH", crate::sandbox::SYSTEM_PATH)
            .env(MARK, self.layout.base());
        command
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(err)
            .current_dir("/");
        ensure!(
            command.status().context("can't start the keeper")?.success(),
            "the keeper refuses to start"
        );
        let there = wait_until(Duration::from_secs(20), || {
            daemons::find(&self.layout, "keeper").is_some()
        });
        let told = fs::read_to_string(self.layout.log_file("keeper")).unwrap_or_default();
        ensure!(
            there,
            "the keeper of the cluster's mount namespace failed: {}",
            told.trim_end()
        );
        Ok(())
    }

    /// Directories and files that belong to the daemons' own users, whose numbers a chroot has of its own.
    fn make_owned_directories(&self, sandbox: &Sandbox) -> Result<()> {
        let [slurm, munge, mysql] = ["slurm", "munge", "mysql"].map(|name| sandbox.user(name));
        let (slurm, munge, mysql) = (slurm?, munge?, mysql?);
        let base = self.layout.base();
        // The log directory is sticky: each daemon makes its own file in it.
        let mut owned = vec![
            (self.layout.log(), &slurm, 0o1777),
            (self.layout.run(), &slurm, 0o1777),
            (self.layout.state().join("ctld"), &slurm, 0o700),
            (self.layout.munge(), &munge, 0o755),
            (self.layout.mysql_data(), &mysql, 0o700),
            (base.join("mysqlrun"), &mysql, 0o755),
        ];
        let root = Identity::root();
        owned.extend(
            self.options
                .all_nodes()
                .iter()
                .map(|n| (self.layout.spool(n), &root, 0o755)),
        );
        for (dir, owner, mode) in owned {
            fs::create_dir_all(&dir).with_context(|| format!("can't make {}", dir.display()))?;
            give(&dir, owner, mode)?;
        }
        give(&self.layout.etc().join("slurmdbd.conf"), &slurm, 0o600)?;
        give(&self.layout.power_fifo(), &slurm, 0o600)
    }

    /// Stops everything that `up` started and takes away what it made outside the base directory; with
    /// `purge` the base directory too.
    pub fn down(&self, purge: bool) -> Result<()> {
        require_root()?;
        {
            let _lock = self.lock()?;
            self.take_down()?;
        }
        if purge {
            fs::remove_dir_all(self.layout.base())
                .with_context(|| format!("can't remove {}", self.layout.base().display()))?;
        }
        Ok(())
    }

    fn take_down(&self) -> Result<()> {
        if daemons::find(&self.layout, "slurmctld").is_some() {
            // Whatever is not gone by then is ended with its cgroup.
            let _ = self.with_daemons(|d| Ok(d.cancel_all()));
        }
        let mut order = self.daemon_names();
        order.splice(
            0..0,
            self.options.burst_names().iter().map(|n| format!("slurmd.{n}")),
        );
        let groups = [
            order
                .iter()
                .filter(|d| d.starts_with("slurmd."))
                .cloned()
                .collect::<Vec<_>>(),
            vec!["slurmctld".into()],
            vec!["slurmdbd".into()],
            vec!["mariadbd".into(), "munged".into()],
        ];
        for group in groups {
            self.stop_all(&group);
        }
        self.sweep()?;
        self.release()?;
        for left in [self.layout.run(), self.layout.base().join("mysqlrun")] {
            let _ = fs::remove_dir_all(left);
        }
        Ok(())
    }

    fn stop_all(&self, group: &[String]) {
        let found: Vec<Process> = group
            .iter()
            .filter_map(|d| daemons::find(&self.layout, d))
            .collect();
        std::thread::scope(|s| {
            found
                .iter()
                .for_each(|p| drop(s.spawn(|| p.stop(Duration::from_secs(15)))))
        });
    }

    /// Ends what is left of the cluster's processes, whoever lost them, and removes its cgroups.
    fn sweep(&self) -> Result<()> {
        let mut left = vec![];
        let gone = wait_until(Duration::from_secs(10), || {
            left = process::of_cluster(self.layout.base(), &self.layout.log());
            left.iter().for_each(|p| p.signal(rustix::process::Signal::KILL));
            left.is_empty()
        });
        let told = |p: &Process| format!("{} ({})", p.pid, p.command_line());
        ensure!(
            gone,
            "these processes don't end: {}",
            left.iter().map(told).collect::<Vec<_>>().join(", ")
        );
        cgroups::remove(&self.options.all_nodes())
    }

    fn release(&self) -> Result<()> {
        let (mut registry, gone) = Registry::open()?;
        let own = registry.taken.clusters.remove(self.layout.base());
        gone.iter()
            .chain(own.iter())
            .try_for_each(|claim| devices::remove(&claim.devices))?;
        users::remove(&self.layout, &mut registry.taken)?;
        if registry.taken.clusters.is_empty() {
            cgroups::withhold(&registry.taken.withheld);
            cgroups::remove_slice()?;
        }
        registry.save()
    }

    /// What of the cluster is there.
    pub fn status(&self) -> Result<Status> {
        let running = self.running();
        let missing = self
            .daemon_names()
            .into_iter()
            .filter(|d| running.iter().all(|(name, _)| name != d))
            .collect();
        let nodes = match running.iter().any(|(name, _)| name == "slurmctld") {
            true => self.with_daemons(|d| d.node_states()).unwrap_or_default(),
            false => vec![],
        };
        Ok(Status {
            base: self.layout.base().to_owned(),
            variant: self.options.variant,
            running: running.into_iter().map(|(name, p)| (name, p.pid)).collect(),
            missing,
            nodes: nodes
                .into_iter()
                .map(|(node, state)| NodeStatus { node, state })
                .collect(),
        })
    }

    /// What somebody outside needs to know of the cluster, as environment variables.
    pub fn env(&self) -> Vec<(String, String)> {
        let (o, layout) = (&self.options, &self.layout);
        let show = |p: PathBuf| p.display().to_string();
        let (include, library) = match o.variant {
            Variant::Trixie => (trixie::include_dir(), trixie::library_dir()),
            Variant::V1 | Variant::V2 => (
                "/usr/include".into(),
                format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH).into(),
            ),
        };
        let pairs = [
            ("SLURM_CONF", show(layout.slurm_conf())),
            ("MUNGE_SOCKET", show(layout.munge_socket())),
            ("HOP_DEV_BASE", show(layout.base().to_owned())),
            ("HOP_DEV_VARIANT", o.variant.to_string()),
            ("HOP_DEV_NODES", o.node_names().join(",")),
            ("HOP_DEV_BURST_NODES", o.burst_names().join(",")),
            (
                "HOP_DEV_PORTS",
                format!("{}-{}", o.free_port(), o.free_port() + 39),
            ),
            ("HOP_SLURM_INCLUDE", show(include)),
            ("HOP_SLURM_LIB", show(library)),
        ];
        let path = format!(
            "{}:{}",
            layout.opt().join("bin").display(),
            std::env::var("PATH").unwrap_or_default()
        );
        pairs
            .into_iter()
            .map(|(k, v)| (k.to_owned(), v))
            .chain([("PATH".to_owned(), path)])
            .collect()
    }

    /// A command inside the cluster as this user; in its home unless `dir` says otherwise.
    pub fn command(&self, user: &str, dir: Option<&Path>, program: &str) -> Result<Command> {
        let sandbox = self.sandbox()?;
        let who = sandbox.user(user)?;
        let fallback = match (user, self.options.variant) {
            ("root", Variant::V1 | Variant::V2) => std::env::current_dir().unwrap_or_else(|_| "/".into()),
            ("root", Variant::Trixie) => "/".into(),
            _ => who.home.clone(),
        };
        Ok(sandbox.command(&who, dir.unwrap_or(&fallback), program))
    }

    fn known_node(&self, node: &str) -> Result<()> {
        let nodes = self.options.all_nodes();
        ensure!(
            nodes.iter().any(|n| n == node),
            "there is no node {node} here, only {}",
            nodes.join(", ")
        );
        Ok(())
    }

    /// Kills the slurmd of a node with SIGKILL.
    pub fn kill_slurmd(&self, node: &str) -> Result<()> {
        self.known_node(node)?;
        let process = daemons::find(&self.layout, &format!("slurmd.{node}"))
            .with_context(|| format!("no slurmd of {node} runs"))?;
        process.stop(Duration::ZERO);
        Ok(())
    }

    /// Starts the slurmd of a node and waits until the node can take jobs.
    pub fn start_slurmd(&self, node: &str) -> Result<()> {
        self.known_node(node)?;
        let _lock = self.lock()?;
        self.with_daemons(|d| d.slurmd(node).and_then(|()| d.await_nodes(&[node.to_owned()])))
    }

    /// Kills everything that runs on a node at once: its slurmd, every step with its slurmstepd, and what they started. Slurm
    /// isn't told, as when a machine loses power; connections are reset, though, where a machine's would fall silent.
    pub fn lose_node(&self, node: &str) -> Result<()> {
        self.known_node(node)?;
        let mut left = vec![];
        let gone = wait_until(Duration::from_secs(10), || {
            left = self.processes_of(node);
            left.iter().for_each(|p| p.signal(Signal::KILL));
            left.is_empty()
        });
        ensure!(gone, "{} processes of {node} don't end", left.len());
        Ok(())
    }

    /// Stops everything that runs on a node, as when a virtual machine is paused; its connections stay open and silent.
    pub fn pause_node(&self, node: &str) -> Result<()> {
        self.signal_node(node, Signal::STOP)
    }

    /// Lets a paused node go on.
    pub fn resume_node(&self, node: &str) -> Result<()> {
        self.signal_node(node, Signal::CONT)
    }

    fn signal_node(&self, node: &str, signal: Signal) -> Result<()> {
        self.known_node(node)?;
        // A second round finds those that were being started in the first.
        for _ in 0..2 {
            self.processes_of(node).iter().for_each(|p| p.signal(signal));
        }
        Ok(())
    }

    /// The node's slurmd, what lives in the node's cgroups, and what a slurmd of this cluster started for the node.
    fn processes_of(&self, node: &str) -> Vec<Process> {
        let mut found = cgroups::processes(node).unwrap_or_default();
        found.extend(daemons::find(&self.layout, &format!("slurmd.{node}")));
        let ours = process::of_cluster(self.layout.base(), &self.layout.log());
        found.extend(ours.into_iter().filter(|p| p.is_of_node(node)));
        found
    }

    /// Stops slurmctld; at once if `kill`.
    pub fn stop_slurmctld(&self, kill: bool) -> Result<()> {
        let process = daemons::find(&self.layout, "slurmctld").context("no slurmctld runs")?;
        process.stop(if kill {
            Duration::ZERO
        } else {
            Duration::from_secs(20)
        });
        Ok(())
    }

    /// Starts slurmctld and waits until it answers.
    pub fn start_slurmctld(&self) -> Result<()> {
        let _lock = self.lock()?;
        self.with_daemons(|d| d.slurmctld())
    }
}

impl Variant {
    /// The variant that a host without wishes gets: v1 where the devices controller is on v1, else v2.
    pub fn of_host() -> Result<Self> {
        Ok(match host::cgroup_setup()? {
            CgroupSetup::V1 | CgroupSetup::Hybrid => Self::V1,
            CgroupSetup::V2 => Self::V2,
        })
    }
}

fn require_root() -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "a cluster's daemons, users and devices need root: run this as root"
    );
    Ok(())
}

fn write_mode(path: &Path, text: &str, mode: u32) -> Result<()> {
    let next = path.with_extension("new");
    fs::write(&next, text)
        .and_then(|()| fs::set_permissions(&next, fs::Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&next, path))
        .with_context(|| format!("can't write {}", path.display()))
}

fn give(path: &Path, owner: &Identity, mode: u32) -> Result<()> {
    chown(path, Some(owner.uid), Some(owner.gid))
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
        .with_context(|| format!("can't give {} to {}", path.display(), owner.name))
}

fn build_shim(path: &Path) -> Result<()> {
    let source = path.with_extension("c");
    fs::write(&source, include_str!("cgroup-shim.c")).context("can't write the cgroup shim")?;
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-o"])
        .arg(path)
        .arg(&source);
    let output = crate::sandbox::output_within(&mut cc, Duration::from_secs(30))
        .context("can't compile the cgroup shim: is a C compiler installed?")?;
    ensure!(
        output.status.success(),
        "cc: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
