//! `gresshopper.toml`: the one configuration file of an installation, the same on every node.
//!
//! World-readable, without secrets. Reading is strict: an unknown key, a wrong type or an impossible value is an
//! error that names the key. `docs/configuration.md` explains each key to administrators.

pub use hop_core::config::{Burst, Linger, Migrate, Quantum, Scale};
use hop_words::deadline::Patience;
use hop_words::id::{AccountName, PoolName, UserName};
use hop_words::net::PortRange;
use hop_words::replica::Replicas;
use hop_words::time::Span;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

mod checks;
mod or_false;

/// The environment variable that names the file.
pub const CONFIG_VARIABLE: &str = "GRESSHOPPER_CONF";
/// The file where the variable isn't set.
pub const DEFAULT_PATH: &str = "/etc/gresshopper/gresshopper.toml";

/// GPUs of a node at most: of a whole pilot, and so of a lease.
pub const MOST_GPUS: u16 = 64;

/// The whole file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The service account: it runs `hopd` and owns the pilots. Never root.
    pub service_user: UserName,
    /// Users who see and may cancel everybody's work.
    pub operators: Vec<UserName>,
    /// The installation, at the same path on every node: `bin/`, `lib/`, `python/`.
    pub prefix: PathBuf,
    /// The MUNGE daemon's socket; none: MUNGE's own default.
    pub munge_socket: Option<PathBuf>,
    /// The Python with nbclient and gresshopper-jupyter taken by `hop run` where the user's environment has none.
    pub jupyter_python: Option<PathBuf>,
    /// First and last port on which fronts and seats listen for each other; none: any that is free.
    pub port_range: Option<PortRange>,
    /// JupyterHub's address in a browser, for `hop open`.
    pub jupyterhub_url: Option<String>,
    pub hopd: Hopd,
    pub quota: Quota,
    pub agent: Agent,
    pub seat: Seat,
    /// The pools, by name: `[pool.NAME]`.
    pub pool: BTreeMap<PoolName, Pool>,
}

/// `[hopd]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Hopd {
    /// The address that `hopd` binds.
    pub listen: String,
    /// Addresses for all other clients, tried in this order.
    pub connect: Vec<String>,
    /// Journal, accounting database and lock of `hopd`; 0700, service account.
    pub state_dir: PathBuf,
    /// Seconds after a start of `hopd` in which agents and replicas may report back before their leases count as
    /// lost.
    pub grace_s: u32,
    /// Seconds between two looks at the pilots in Slurm's queue.
    pub poll_s: u32,
    /// Seconds between two looks at Slurm's nodes, settings, limits and fair shares.
    pub refresh_s: u32,
    /// Days after which an ended lease leaves the accounting; 0: never.
    pub accounting_days: u32,
    /// How the Slurm steps of leases are named.
    pub step_names: StepNames,
}

/// Names of the leases' Slurm steps, which every user of the cluster may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepNames {
    /// `USER/NOTEBOOK`.
    #[default]
    Notebook,
    /// `USER/LEASE`.
    Lease,
}

/// `[quota]`: bounds on a user's requests to `hopd`: nobody can fill `hopd`'s memory or delay the others. The service
/// account and operators have no quotas.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quota {
    /// Connections at a time.
    pub connections: usize,
    /// Kernels that are open at a time.
    pub kernels: usize,
    /// Kernels that hibernate and are remembered; the first to fall asleep go first.
    pub asleep: usize,
    /// Cells that wait at a time.
    pub cells: usize,
    /// Messages a second, over all of a user's connections; five times as many at once.
    pub messages_per_s: u32,
}

/// `[agent]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Agent {
    /// Local to each node; the node's name is appended.
    pub state_dir: PathBuf,
    /// Seconds until a lease's step has to be confirmed by the plugin.
    pub start_timeout_s: u32,
}

/// `[seat]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Seat {
    pub partition: String,
    /// Memory of a replica's step in MiB, unless the kernelspec names another size.
    pub mem_mib: u64,
    pub cpus: u16,
    /// Most memory in MiB that a kernel may ask for; `None`: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most_mem_mib: Option<u64>,
    /// Most cores that a kernel may ask for; `None`: any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most_cpus: Option<u16>,
    /// Slurm time limit in minutes; 0: the partition's.
    pub time_limit_min: u32,
    /// How long before its time limit a seat takes no new kernel and its kernels are moved, in seconds; at most a fifth
    /// of the limit.
    pub replace_before_s: u32,
    /// Spare interpreters in a seat that has standbys of kernels with three replicas; 0: none.
    pub spares: u32,
    /// The folder of saved kernels' large variables, the same on all nodes, with [`USER`] in place of the user's name.
    /// `None` means each user's home.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// The folder below which a seat makes the folder of its kernels' logs, on a disk of each node; `None`: the job's
    /// `TMPDIR`, or `/tmp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_dir: Option<PathBuf>,
    pub log_sync: LogSync,
}

/// When the logs of kernels with three replicas are on their disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogSync {
    /// Before the reply of each cell.
    #[default]
    Always,
    /// Within a second. A power cut of most replicas' nodes at once loses the cells answered in the last second.
    Second,
}

/// The place of the user's name in [`Seat::store`].
pub const USER: &str = "{user}";

/// `[pool.NAME]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    pub partition: String,
    /// The Slurm account that the pilots are charged to; none: the service account's default.
    #[serde(default)]
    pub account: Option<AccountName>,
    /// Slurm's GPU type of the pool's pilots (`--gres=gpu:TYPE:n`); none: any.
    #[serde(default)]
    pub gpu_type: Option<String>,
    /// Memory of each GPU in MiB, for cells that ask for some (`--mem`); 0: unknown.
    #[serde(default)]
    pub gpu_mem_mib: u64,
    pub gpus_per_pilot: u16,
    /// All cores of a pilot, including its GPUs' share.
    pub cpus_per_pilot: u16,
    /// Memory of a pilot in MiB, for the agent and what runs for each lease; 0: Slurm's default. Kernels have their
    /// seats' memory.
    #[serde(default = "default_mem_mib")]
    pub mem_mib: u64,
    pub min_pilots: u32,
    pub max_pilots: u32,
    /// Slurm time limit of a pilot in minutes; 0: the partition's.
    #[serde(default)]
    pub time_limit_min: u32,
    /// How long before its time limit a pilot takes no new lease and is replaced, in seconds: longer than most cells.
    #[serde(default = "default_rotate_before_s")]
    pub rotate_before_s: u32,
    /// How long a lease stays with its kernel after a cell, in milliseconds; `None`: as `linger` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub linger_ms: Option<u64>,
    /// How long a lease stays with its kernel after a cell, by the kernel's own think times.
    #[serde(default)]
    pub linger: Linger,
    /// Grace at the end of a lease, in milliseconds. The kernel has this time to leave its GPUs before they are taken
    /// back. Remaining holders then have it once more, before they are ended.
    #[serde(default = "default_grace_ms")]
    pub grace_ms: u64,
    #[serde(default)]
    pub isolation: Isolation,
    /// Cells that run for long are asked to park for others; none: all run to their end.
    #[serde(default)]
    pub quantum: Option<Quantum>,
    /// Pilots follow demand between `min_pilots` and `max_pilots`; none: `min_pilots` are kept up.
    #[serde(default)]
    pub scale: Option<Scale>,
    /// Kernels are moved to where GPUs are free; none (`false`): by hand and off drained nodes alone.
    #[serde(default = "default_migrate", with = "or_false")]
    pub migrate: Option<Migrate>,
    /// Replicas of a kernel that doesn't name a number; `None`: as [`Pool::replicas`] says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<Replicas>,
    /// Keeps the variables in one of a kernel's three replicas while another executes, unless the kernel says
    /// otherwise.
    #[serde(default)]
    pub hot_standby: bool,
    /// Partitions to turn to when the pool's own has no room, the cheapest first.
    #[serde(default)]
    pub burst: Vec<Burst>,
}

/// Mechanism that keeps a GPU away from processes without a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// Slurm's device cgroups and the plugin. A pool whose Slurm doesn't constrain devices is not lent.
    #[default]
    Devices,
    /// Nothing: said aloud by the site.
    None,
}

/// Pilots of a pool whose kernels have three replicas, unless the site says otherwise: a pilot is on one node.
const PILOTS_FOR_THREE: u32 = 3;

impl Pool {
    /// Replicas of a kernel that doesn't name a number.
    pub fn replicas(&self) -> Replicas {
        let usual = || match self.max_pilots >= PILOTS_FOR_THREE {
            true => Replicas::Three,
            false => Replicas::One,
        };
        self.replicas.unwrap_or_else(usual)
    }
}

fn default_mem_mib() -> u64 {
    1024
}

fn default_rotate_before_s() -> u32 {
    600
}

#[allow(clippy::unnecessary_wraps, reason = "the field's type")]
fn default_migrate() -> Option<Migrate> {
    Some(Migrate::default())
}

/// Enough for the first park of some 30 GB, whose host memory has to be page-locked (docs/gpu-park.md, "Measured on a
/// GPU").
fn default_grace_ms() -> u64 {
    10_000
}

impl Default for Config {
    fn default() -> Self {
        Self {
            service_user: "gresshopper".into(),
            operators: vec!["root".into()],
            prefix: "/opt/gresshopper".into(),
            munge_socket: None,
            jupyter_python: None,
            port_range: None,
            jupyterhub_url: None,
            hopd: Hopd::default(),
            quota: Quota::default(),
            agent: Agent::default(),
            seat: Seat::default(),
            pool: BTreeMap::new(),
        }
    }
}

impl Default for Hopd {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:17900".into(),
            connect: vec!["127.0.0.1:17900".into()],
            state_dir: "/var/lib/gresshopper/hopd".into(),
            grace_s: 8,
            poll_s: 3,
            refresh_s: 60,
            accounting_days: 0,
            step_names: StepNames::default(),
        }
    }
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            connections: 256,
            kernels: 100,
            asleep: 500,
            cells: 500,
            messages_per_s: 200,
        }
    }
}

impl Default for Agent {
    fn default() -> Self {
        Self {
            state_dir: "/var/lib/gresshopper/agent".into(),
            start_timeout_s: 30,
        }
    }
}

impl Default for Seat {
    fn default() -> Self {
        Self {
            partition: "notebook".into(),
            mem_mib: 2048,
            cpus: 1,
            most_mem_mib: None,
            most_cpus: None,
            time_limit_min: 0,
            replace_before_s: 600,
            spares: 1,
            store: None,
            log_dir: None,
            log_sync: LogSync::default(),
        }
    }
}

/// A kernel asks for more than the site allows each kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TooLarge {
    #[error(
        "{asked} MiB of memory are asked for, and this site allows a kernel {most} MiB (seat.most_mem_mib)"
    )]
    Memory { asked: u64, most: u64 },
    #[error("{asked} cores are asked for, and this site allows a kernel {most} (seat.most_cpus)")]
    Cores { asked: u16, most: u16 },
}

impl Seat {
    /// The folder of this user's large variables. `None` means the user's home.
    pub fn store_of(&self, user: &str) -> Option<PathBuf> {
        let named = self.store.as_ref()?;
        Some(named.replace(USER, user).into())
    }

    /// The folder above all users' stores.
    pub fn stores(&self) -> Option<PathBuf> {
        let mut above = Path::new(self.store.as_ref()?).ancestors();
        let above = above.find(|path| !path.to_string_lossy().contains(USER))?;
        Some(above.to_owned())
    }

    /// Whether a user's store lies directly in the folder above all users' stores, and each user makes it there.
    pub fn are_stores_side_by_side(&self) -> bool {
        let store = self.store.as_deref().map(Path::new);
        store.is_some_and(|store| store.parent() == self.stores().as_deref())
    }

    /// Whether a kernel may have so much memory and so many cores.
    ///
    /// # Errors
    /// If the site allows less.
    pub fn allows(&self, mem_mib: u64, cpus: u16) -> Result<(), TooLarge> {
        match (self.most_mem_mib, self.most_cpus) {
            (Some(most), _) if mem_mib > most => Err(TooLarge::Memory { asked: mem_mib, most }),
            (_, Some(most)) if cpus > most => Err(TooLarge::Cores { asked: cpus, most }),
            _ => Ok(()),
        }
    }
}

impl Pool {
    pub fn linger(&self) -> Linger {
        let fixed = self.linger_ms.map(Span::from_millis);
        fixed.map_or(self.linger, Linger::fixed)
    }

    /// Cores of a pilot with `gpus` GPUs: in proportion, at least one for each GPU.
    pub fn cpus_for(&self, gpus: u16) -> u16 {
        let whole = self.gpus_per_pilot.max(1);
        if gpus >= whole {
            return self.cpus_per_pilot;
        }
        (self.cpus_per_pilot / whole * gpus).max(gpus).max(1)
    }

    pub fn grace(&self) -> Span {
        Span::from_millis(self.grace_ms)
    }
}

/// Why the configuration can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("can't read the configuration {path}; set {CONFIG_VARIABLE} or install the file")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the configuration {path} can't be read: its file system does not answer")]
    Hangs { path: PathBuf },
    #[error("the configuration {path} is not right: {message}")]
    Parse { path: PathBuf, message: String },
    #[error("the configuration {path} is not right: {key}: {reason}")]
    Value {
        path: PathBuf,
        key: String,
        reason: String,
    },
}

/// A site may keep the file on a network's file system.
static FILE_SYSTEM: Patience = Patience::of(Duration::from_secs(5));

impl Config {
    /// The path that [`CONFIG_VARIABLE`] names, or [`DEFAULT_PATH`]. An empty variable counts as none.
    pub fn path() -> PathBuf {
        let named = std::env::var_os(CONFIG_VARIABLE).filter(|path| !path.is_empty());
        named.map_or_else(|| DEFAULT_PATH.into(), PathBuf::from)
    }

    /// The pool of kernels without a named pool: `main`, else the first.
    pub fn default_pool(&self) -> PoolName {
        let main = PoolName::from("main");
        if self.pool.contains_key(&main) {
            return main;
        }
        self.pool.keys().next().cloned().unwrap_or(main)
    }

    /// Reads [`Config::path`].
    pub fn load() -> Result<Self, ConfigError> {
        Self::read(&Self::path())
    }

    /// Reads the file `path`.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let file = path.to_owned();
        let read = FILE_SYSTEM.within(move || {
            let kind = std::fs::metadata(&file)?.file_type();
            if kind.is_char_device() || kind.is_block_device() {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a device"));
            }
            std::fs::read(file)
        });
        let read = read.ok_or_else(|| ConfigError::Hangs { path: path.into() })?;
        let bytes = read.map_err(|source| ConfigError::Read {
            path: path.into(),
            source,
        })?;
        let text = std::str::from_utf8(&bytes).map_err(|error| {
            let before = &bytes[..error.valid_up_to()];
            let line = before.iter().filter(|b| **b == b'\n').count() + 1;
            ConfigError::Parse {
                path: path.into(),
                message: format!("line {line} has a character that is not UTF-8"),
            }
        })?;
        Self::parse(text, path)
    }

    /// `path` is for the messages only.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text).map_err(|e| ConfigError::Parse {
            path: path.into(),
            message: e.to_string().trim_end().to_owned(),
        })?;
        config.check().map_err(|(key, reason)| ConfigError::Value {
            path: path.into(),
            key,
            reason,
        })?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIRING: &str = r#"
service_user = "gresshopper"
operators = ["root"]
prefix = "/opt/gresshopper"
[hopd]
listen = "127.0.0.1:17900"
connect = ["127.0.0.1:17900"]
state_dir = "/var/lib/gresshopper/hopd"
[agent]
state_dir = "/var/lib/gresshopper/agent"
[seat]
partition = "notebook"
mem_mib = 2048
cpus = 1
time_limit_min = 0
[pool.main]
partition = "notebook"
account = "pool"
gpus_per_pilot = 2
cpus_per_pilot = 8
min_pilots = 4
max_pilots = 4
time_limit_min = 1440
linger_ms = 2000
isolation = "devices"
"#;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("g.toml")).map_err(|e| e.to_string())
    }

    #[test]
    fn the_documented_file_is_read_and_what_it_leaves_out_has_defaults() {
        let config = parse(WIRING).unwrap();
        let pool = &config.pool[&"main".into()];
        assert_eq!(pool.gpus_per_pilot, 2);
        assert_eq!(pool.linger(), Linger::fixed(Span::from_millis(2000)));
        assert_eq!(pool.isolation, Isolation::Devices);
        assert_eq!(config.munge_socket, None);
        assert_eq!(parse("").unwrap(), Config::default());
    }

    #[test]
    fn a_grace_that_the_plugin_would_cut_is_refused() {
        let with = |ms: u32| parse(&WIRING.replace("linger_ms = 2000", &format!("grace_ms = {ms}")));
        assert_eq!(
            with(30_000).unwrap().pool[&"main".into()].grace(),
            Span::from_secs(30)
        );
        let refused = with(30_001).unwrap_err();
        assert!(
            refused.contains("grace_ms") && refused.contains("30000"),
            "{refused}"
        );
    }

    #[test]
    fn a_quantum_is_of_the_classes_that_are_named_and_off_by_default() {
        let pool = |text: &str| parse(text).unwrap().pool[&"main".into()].clone();
        assert_eq!(pool(WIRING).quantum, None);
        let text = format!("{WIRING}\n[pool.main.quantum]\nbatch_s = 600\ninteractive_s = 3600\n");
        let quantum = pool(&text).quantum.unwrap();
        assert_eq!(
            (quantum.interactive, quantum.deadline, quantum.batch),
            (Some(Span::from_secs(3600)), None, Some(Span::from_secs(600)))
        );
        assert_eq!(quantum.worth_waiting, Span::from_secs(30));
    }

    #[test]
    fn a_pools_kernels_have_one_replica_or_three() {
        let with = |count: u8| parse(&WIRING.replace("linger_ms = 2000", &format!("replicas = {count}")));
        let of = |config: Config| config.pool[&config.default_pool()].replicas();
        assert_eq!(of(with(3).unwrap()), Replicas::Three);
        assert_eq!(of(with(1).unwrap()), Replicas::One);
        let pilots = |most: u32| {
            let least = WIRING.replace("min_pilots = 4", "min_pilots = 1");
            parse(&least.replace("max_pilots = 4", &format!("max_pilots = {most}"))).unwrap()
        };
        assert_eq!(of(pilots(2)), Replicas::One, "a third node isn't there");
        assert_eq!(of(pilots(3)), Replicas::Three);
        let refused = with(2).unwrap_err();
        assert!(refused.contains("1 or 3 replicas, not 2"), "{refused}");
    }

    #[test]
    fn a_pools_kernels_move_unless_the_site_says_no() {
        let with = |line: &str| parse(&WIRING.replace("linger_ms = 2000", line));
        let of = |config: Config| config.pool[&config.default_pool()].migrate.clone();
        for usual in ["", "migrate = true", "migrate = {}"] {
            assert_eq!(of(with(usual).unwrap()), Some(Migrate::default()), "{usual}");
        }
        let off = with("migrate = false").unwrap();
        assert_eq!(parse(&toml::to_string(&off).unwrap()).unwrap(), off);
        assert_eq!(of(off), None);
        let quick = of(with("migrate = { margin_s = 1 }").unwrap()).unwrap();
        assert_eq!(quick.margin, Span::from_secs(1));
        for (wrong, named) in [
            ("migrate = { marginn_s = 1 }", "marginn_s"),
            ("migrate = 3", "a table, or false for none"),
        ] {
            let refused = with(wrong).unwrap_err();
            assert!(refused.contains(named), "{refused}");
        }
    }

    #[test]
    fn an_unknown_key_is_named() {
        for (text, key) in [
            ("servce_user = 'x'", "servce_user"),
            ("[hopd]\nlsten = 'x'", "lsten"),
            (&WIRING.replace("linger_ms", "lingr_ms"), "lingr_ms"),
        ] {
            let message = parse(text).unwrap_err();
            assert!(
                message.contains("unknown field") && message.contains(key),
                "{message}"
            );
        }
    }

    #[test]
    fn values_that_cannot_work_are_named_with_their_reason() {
        for (from, to, key) in [
            (
                "service_user = \"gresshopper\"",
                "service_user = \"root\"",
                "service_user",
            ),
            (
                "cpus_per_pilot = 8",
                "cpus_per_pilot = 1",
                "pool.main.cpus_per_pilot",
            ),
            ("max_pilots = 4", "max_pilots = 3", "pool.main.max_pilots"),
            ("connect = [\"127.0.0.1:17900\"]", "connect = []", "hopd.connect"),
            (
                "connect = [\"127",
                "connect = [\"service1\", \"127",
                "hopd.connect",
            ),
            ("connect = [\"127", "connect = [\"\", \"127", "hopd.connect"),
            (
                "connect = [\"127.0.0.1:17900",
                "connect = [\":17900",
                "hopd.connect",
            ),
            (
                "connect = [\"127.0.0.1:17900",
                "connect = [\"hub:179000",
                "hopd.connect",
            ),
            ("listen = \"127.0.0.1:17900", "listen = \"foo", "hopd.listen"),
            ("[agent]", "[agent]\nstart_timeout_s = 0", "agent.start_timeout_s"),
            (
                "[seat]\npartition = \"notebook\"",
                "[seat]\npartition = \"\"",
                "seat.partition",
            ),
            (
                "[pool.main]\npartition = \"notebook\"",
                "[pool.main]\npartition = \"a,b\"",
                "pool.main.partition",
            ),
            ("account = \"pool\"", "account = \"\"", "pool.main.account"),
            ("account = \"pool\"", "gpu_type = \"a:b\"", "pool.main.gpu_type"),
            (
                "account = \"pool\"",
                "scale = {}\nburst = [{partition = \"c d\", max_pilots = 1}]",
                "pool.main.burst.partition",
            ),
            (
                "time_limit_min = 1440",
                "time_limit_min = 19",
                "pool.main.rotate_before_s",
            ),
            ("[hopd]", "munge_socket = \"run/munge\"\n[hopd]", "munge_socket"),
            ("[hopd]", "jupyterhub_url = \"hub\"\n[hopd]", "jupyterhub_url"),
            (
                "[hopd]",
                "jupyterhub_url = \"https://\"\n[hopd]",
                "jupyterhub_url",
            ),
            ("prefix = \"/opt", "prefix = \"opt", "prefix"),
            (
                "isolation = \"devices\"",
                "quantum = {worth_waiting_s = 5}",
                "pool.main.quantum",
            ),
            (
                "isolation = \"devices\"",
                "quantum = {batch_s = 0, interactive_s = 3600}",
                "pool.main.quantum.batch_s",
            ),
            (
                "isolation = \"devices\"",
                "scale = {immediate = 97.0}",
                "pool.main.scale.immediate",
            ),
            (
                "isolation = \"devices\"",
                "scale = {most_per_wait = -1.0}",
                "pool.main.scale.most_per_wait",
            ),
        ] {
            let message = parse(&WIRING.replace(from, to)).unwrap_err();
            assert!(message.contains(&format!("{key}:")), "{message}");
        }
        for (from, to) in [
            ("connect = [\"127", "connect = [\"[fd00::1]:17900\", \"127"),
            ("time_limit_min = 1440", "time_limit_min = 20"),
            ("[hopd]", "jupyterhub_url = \"https://hub.site/a\"\n[hopd]"),
            ("account = \"pool\"", "gpu_type = \"nvidia_a100_3g.20gb\""),
        ] {
            parse(&WIRING.replace(from, to)).unwrap();
        }
        let message = parse(&WIRING.replace("min_pilots = 4\n", "")).unwrap_err();
        assert!(message.contains("min_pilots"), "{message}");
    }

    #[test]
    fn a_file_in_another_encoding_is_told_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("g.toml");
        std::fs::write(&path, b"[pool.main]\n# B\xfcro\n").unwrap();
        let error = Config::read(&path).unwrap_err().to_string();
        assert!(
            error.ends_with("line 2 has a character that is not UTF-8"),
            "{error}"
        );
    }

    #[test]
    fn a_value_that_makes_no_sense_is_refused_by_its_key() {
        let burst = |price: &str| {
            format!(
                "[pool.main.scale]\n[[pool.main.burst]]\npartition = \"b\"\nmax_pilots = 1\nprice = {price}\n"
            )
        };
        for (from, to, key) in [
            ("mem_mib = 2048", "mem_mib = 0".to_owned(), "seat.mem_mib"),
            (
                "mem_mib = 2048",
                format!("mem_mib = {}", i64::MAX),
                "seat.mem_mib",
            ),
            ("cpus = 1\n", "cpus = 0\n".to_owned(), "seat.cpus"),
            (
                "cpus = 1\n",
                "cpus = 4\nmost_cpus = 3\n".to_owned(),
                "seat.most_cpus",
            ),
            (
                "cpus = 1\n",
                "cpus = 1\nmost_mem_mib = 2047\n".to_owned(),
                "seat.most_mem_mib",
            ),
            (
                "cpus = 1\n",
                format!("cpus = 1\nmost_mem_mib = {}\n", i64::MAX),
                "seat.most_mem_mib",
            ),
            ("[pool.main]", "[pool.\"\"]".to_owned(), "pool"),
            ("[pool.main]", "[pool.\"a b\"]".to_owned(), "pool"),
            (
                "[hopd]",
                "port_range = [40000, 40010, 50000]\n[hopd]".to_owned(),
                "port_range",
            ),
            (
                "linger_ms = 2000",
                format!("linger_ms = {}", i64::MAX),
                "pool.main.linger_ms",
            ),
            (
                "linger_ms = 2000",
                format!("mem_mib = {}", i64::MAX),
                "pool.main.mem_mib",
            ),
            (
                "linger_ms = 2000",
                format!("gpu_mem_mib = {}", i64::MAX),
                "pool.main.gpu_mem_mib",
            ),
            ("isolation = \"devices\"\n", burst("-1"), "pool.main.burst.price"),
            ("isolation = \"devices\"\n", burst("nan"), "pool.main.burst.price"),
            (
                "isolation = \"devices\"",
                "scale = {too_small = -0.1}".to_owned(),
                "pool.main.scale.too_small",
            ),
            (
                "isolation = \"devices\"",
                "scale = {spare_share = nan}".to_owned(),
                "pool.main.scale.spare_share",
            ),
        ] {
            let message = parse(&WIRING.replace(from, &to)).unwrap_err();
            assert!(message.contains(key), "{to}: {message}");
        }
        parse(&WIRING.replace("isolation = \"devices\"\n", &burst("0"))).unwrap();
        parse(&WIRING.replace("[hopd]", "port_range = [40000, 40010]\n[hopd]")).unwrap();
    }

    #[test]
    fn each_check_refuses_its_value() {
        let hopd = |line: &str| ("[hopd]", format!("{line}\n[hopd]"));
        let pool = |line: &str| ("linger_ms = 2000", line.to_owned());
        let most = |most: u32| format!("gpus_per_pilot = {most}\ncpus_per_pilot = {most}");
        let gpus = |n| ("gpus_per_pilot = 2\ncpus_per_pilot = 8", most(n));
        let burst = |partition: &str, pilots: u32| {
            pool(&format!(
                "scale = {{}}\nburst = [{{partition = \"{partition}\", max_pilots = {pilots}}}]"
            ))
        };
        let connect = |address: &str| ("connect = [\"127", format!("connect = [\"{address}\", \"127"));
        for ((from, to), key) in [
            (
                ("service_user = \"gresshopper\"", "service_user = \"\"".into()),
                "service_user",
            ),
            (hopd("port_range = [1023, 40000]"), "port_range"),
            (hopd("port_range = [40001, 40000]"), "port_range"),
            (hopd("jupyterhub_url = \"https:///a\""), "jupyterhub_url"),
            (hopd("jupyterhub_url = \"https://hub site\""), "jupyterhub_url"),
            (connect("hub:0"), "hopd.connect"),
            (connect("a hub:17900"), "hopd.connect"),
            (hopd("[quota]\nconnections = 0"), "quota.connections"),
            (hopd("[quota]\nkernels = 0"), "quota.kernels"),
            (hopd("[quota]\ncells = 0"), "quota.cells"),
            (hopd("[quota]\nmessages_per_s = 0"), "quota.messages_per_s"),
            (("[hopd]", "[hopd]\npoll_s = 0".into()), "hopd.poll_s"),
            (("[hopd]", "[hopd]\nrefresh_s = 0".into()), "hopd.refresh_s"),
            (("/var/lib/gresshopper/hopd", "hopd".into()), "hopd.state_dir"),
            (("/var/lib/gresshopper/agent", "agent".into()), "agent.state_dir"),
            (("[seat]", "[seat]\nlog_dir = \"tmp\"".into()), "seat.log_dir"),
            (gpus(u32::from(MOST_GPUS) + 1), "pool.main.gpus_per_pilot"),
            (gpus(0), "pool.main.cpus_per_pilot"),
            (pool("linger = {least_s = 5, most_s = 4}"), "pool.main.linger"),
            (burst("notebook", 1), "pool.main.burst"),
            (burst("cloud", 0), "pool.main.burst"),
            (
                pool("burst = [{partition = \"cloud\", max_pilots = 1}]"),
                "pool.main.burst",
            ),
            (
                pool("scale = {idle_min_s = 9, idle_max_s = 8}"),
                "pool.main.scale",
            ),
            (pool("scale = {immediate = -0.1}"), "pool.main.scale.immediate"),
            (
                pool("scale = {most_per_wait = 1e13}"),
                "pool.main.scale.most_per_wait",
            ),
            (pool("scale = {too_small = 1.1}"), "pool.main.scale.too_small"),
            (
                pool("scale = {spare_share = -1.0}"),
                "pool.main.scale.spare_share",
            ),
            (
                pool("scale = {spare_share = 1001.0}"),
                "pool.main.scale.spare_share",
            ),
            (
                pool("scale = {}\nburst = [{partition = \"cloud\", max_pilots = 1, price = 1e13}]"),
                "pool.main.burst.price",
            ),
        ] {
            assert!(WIRING.contains(from), "{from}");
            let message = parse(&WIRING.replace(from, &to)).expect_err(&to);
            assert!(message.contains(&format!("{key}:")), "{to}: {message}");
        }
        for c in " \t\u{7f},:;=|*()/\\'\"".chars() {
            let word = format!("partition = {:?}", format!("a{c}b"))
                .replace("\\u{7f}", "\\u007f")
                .replace("\\'", "'");
            let message = parse(&WIRING.replace("partition = \"notebook\"", &word)).expect_err(&word);
            assert!(message.contains("partition: one name"), "{word}: {message}");
        }
    }

    #[test]
    fn odd_values_are_named_in_a_sentence() {
        let hopd = |line: &str| ("[hopd]", format!("[hopd]\n{line}"));
        let quota = |line: &str| ("[agent]", format!("[quota]\n{line}\n[agent]"));
        let seat = |line: &str| ("cpus = 1\n", format!("cpus = 1\n{line}\n"));
        let pool = |line: &str| ("linger_ms = 2000", line.to_owned());
        let first = |line: &str| ("operators = [\"root\"]", line.to_owned());
        let connect = |addresses: &str| {
            (
                "connect = [\"127.0.0.1:17900\"]",
                format!("connect = [{addresses}]"),
            )
        };
        for ((from, to), key, reason) in [
            (
                ("gresshopper\"\noper", "0\"\noper".into()),
                "service_user",
                "not root",
            ),
            (
                ("gresshopper\"\noper", "a,b\"\noper".into()),
                "service_user",
                "a user's name",
            ),
            (first("operators = [\"\"]"), "operators", "a user's name"),
            (first("operators = [\"-x\"]"), "operators", "a user's name"),
            (
                first("jupyterhub_url = \"https://h\\u0007\""),
                "jupyterhub_url",
                "https://HOST",
            ),
            (
                ("/var/lib/gresshopper/hopd", "/".into()),
                "hopd.state_dir",
                "not the root",
            ),
            (connect("\"999.1.1.1:5\""), "hopd.connect", "HOST:PORT"),
            (connect("\"-:5\""), "hopd.connect", "HOST:PORT"),
            (
                ("mem_mib = 2048", "mem_mib = 1".into()),
                "seat.mem_mib",
                "1 is not from 64",
            ),
            (pool("mem_mib = 1"), "pool.main.mem_mib", "1 is not from 64"),
            (
                pool("gpu_type = \"-x\""),
                "pool.main.gpu_type",
                "one name of Slurm's",
            ),
            (
                first("operators = [\"eve\", \"eve\"]"),
                "operators",
                "eve is named twice",
            ),
            (
                first("operators = [\"root\"]\njupyter_python = \"python\""),
                "jupyter_python",
                "absolute",
            ),
            (
                ("/opt/gresshopper", "/opt/\\u001bx".into()),
                "prefix",
                "control character",
            ),
            (
                ("/gresshopper/agent", "/gresshopper/hopd".into()),
                "agent.state_dir",
                "of its own",
            ),
            (
                connect("\"0.0.0.0:1\""),
                "hopd.connect",
                "nobody can connect to 0.0.0.0:1",
            ),
            (connect("\"[::]:1\""), "hopd.connect", "nobody can connect"),
            (connect("\"::1:17900\""), "hopd.connect", "HOST:PORT"),
            (connect("\"http://hub:1\""), "hopd.connect", "HOST:PORT"),
            (connect("\"a:1\", \"a:1\""), "hopd.connect", "a:1 is named twice"),
            (hopd("grace_s = 0"), "hopd.grace_s", "0 is not from 1 to"),
            (hopd("grace_s = 4294967295"), "hopd.grace_s", "is not from"),
            (hopd("poll_s = 4294967295"), "hopd.poll_s", "is not from"),
            (hopd("refresh_s = 0"), "hopd.refresh_s", "is not from"),
            (
                hopd("accounting_days = 4294967295"),
                "hopd.accounting_days",
                "is not from",
            ),
            (
                quota("messages_per_s = 4294967295"),
                "quota.messages_per_s",
                "is not from",
            ),
            (
                quota("asleep = 9223372036854775807"),
                "quota.asleep",
                "is not from",
            ),
            (
                ("[agent]", "[agent]\nstart_timeout_s = 4294967295".into()),
                "agent.start_timeout_s",
                "is not from",
            ),
            (seat("spares = 4294967295"), "seat.spares", "is not from"),
            (
                seat("replace_before_s = 4294967295"),
                "seat.replace_before_s",
                "is not from",
            ),
            (
                ("time_limit_min = 0", "time_limit_min = 4294967295".into()),
                "seat.time_limit_min",
                "is not from",
            ),
            (
                ("max_pilots = 4", "max_pilots = 4294967295".into()),
                "pool.main.max_pilots",
                "is not from",
            ),
            (
                pool("rotate_before_s = 4294967295"),
                "pool.main.rotate_before_s",
                "is not from",
            ),
            (
                ("time_limit_min = 1440", "time_limit_min = 4294967295".into()),
                "pool.main.time_limit_min",
                "is not",
            ),
            (
                pool("scale = {immediate = nan}"),
                "pool.main.scale.immediate",
                "NaN is not from 0 to 1",
            ),
            (
                pool("scale = {spares = 4294967295}"),
                "pool.main.scale.spares",
                "is not from",
            ),
            (
                pool(
                    "scale = {}\nburst = [{partition = \"c\", max_pilots = 1}, {partition = \"c\", max_pilots = 2}]",
                ),
                "pool.main.burst",
                "c is named twice",
            ),
        ] {
            assert!(WIRING.contains(from), "{from}");
            let message = parse(&WIRING.replacen(from, &to, 1)).expect_err(&to);
            assert!(
                message.contains(&format!("{key}: ")) && message.contains(reason),
                "{to}: {message}"
            );
        }
        for (linger, reason) in [
            ("nan", "NaN is no number of seconds"),
            ("-1", "-1 is no number of seconds"),
            ("inf", "inf is no number of seconds"),
            ("\"x\"", "a number of seconds is needed"),
        ] {
            let (from, to) = pool(&format!("linger = {{least_s = {linger}}}"));
            let message = parse(&WIRING.replace(from, &to)).unwrap_err();
            assert!(message.contains(reason), "{message}");
        }
    }

    #[test]
    fn settings_without_effect_are_doubted() {
        let doubts = |text: &str| parse(text).unwrap().doubts().join(" ");
        assert_eq!(doubts(WIRING), "");
        let front = format!("port_range = [17900, 17999]\n{WIRING}");
        assert!(doubts(&front).contains("hopd's port 17900"));
        let none = WIRING.replace("min_pilots = 4\nmax_pilots = 4", "min_pilots = 0\nmax_pilots = 0");
        assert_eq!(doubts(&none), "Pool main lends nothing: its max_pilots is 0.");
        let both = WIRING.replace("linger_ms = 2000", "linger_ms = 2000\nlinger = {most_s = 9}");
        assert!(doubts(&both).contains("linger has no effect"));
        let (start, main) = WIRING.split_once("[pool.main]").unwrap();
        let two = |one: &str, two: &str| format!("{start}[pool.a]{main}{one}\n[pool.b]{main}{two}\n");
        assert!(
            doubts(&two("", ""))
                .starts_with("Pool b is not lent: its pilots could go to the nodes of pool a.")
        );
        assert!(!doubts(&two("", "gpu_type = 'h100'")).is_empty());
        assert_eq!(doubts(&two("gpu_type = 'a100'", "gpu_type = 'h100'")), "");
    }

    #[test]
    fn a_kernel_may_ask_for_no_more_than_the_site_allows() {
        let with = |more: &str| parse(&WIRING.replace("cpus = 1\n", &format!("cpus = 1\n{more}"))).unwrap();
        assert_eq!(with("").seat.allows(u64::MAX, u16::MAX), Ok(()), "no bound");
        let config = with("most_mem_mib = 16384\nmost_cpus = 4\n");
        assert_eq!(parse(&toml::to_string(&config).unwrap()).unwrap(), config);
        let seat = config.seat;
        assert_eq!(seat.allows(16_384, 4), Ok(()));
        let (asked, most) = (16_385, 16_384);
        assert_eq!(seat.allows(asked, 1), Err(TooLarge::Memory { asked, most }));
        let (asked, most) = (5, 4);
        assert_eq!(seat.allows(1, asked), Err(TooLarge::Cores { asked, most }));
    }

    #[test]
    fn the_sites_store_is_a_place_of_each_users_own() {
        let with =
            |store: &str| parse(&WIRING.replace("cpus = 1\n", &format!("cpus = 1\nstore = {store:?}\n")));
        let config = with("/scratch/{user}/gresshopper").unwrap();
        assert_eq!(
            config.seat.store_of("ada"),
            Some("/scratch/ada/gresshopper".into())
        );
        let above = |store: &str| with(store).unwrap().seat.stores().unwrap();
        assert_eq!(above("/scratch/{user}/gresshopper"), Path::new("/scratch"));
        assert_eq!(above("/lustre/u-{user}"), Path::new("/lustre"));
        assert_eq!(above("/{user}"), Path::new("/"));
        for (store, are_side_by_side) in [
            ("/scratch/{user}", true),
            ("/lustre/u-{user}/", true),
            ("/scratch/{user}/gresshopper", false),
        ] {
            let seat = with(store).unwrap().seat;
            assert_eq!(seat.are_stores_side_by_side(), are_side_by_side, "{store}");
        }
        assert_eq!(parse(&toml::to_string(&config).unwrap()).unwrap(), config);
        assert_eq!(parse(WIRING).unwrap().seat.store_of("ada"), None);
        for (store, reason) in [
            ("scratch/{user}", "absolute path"),
            ("", "absolute path"),
            ("/scratch/gresshopper", "{user}"),
            ("/scratch/{user}/../all", "\"..\""),
            ("/scratch/{user}/{node}", "no other braces"),
            ("/scratch/{user}/$HOME", "variable"),
            ("/scratch/{user}\t", "control"),
        ] {
            let message = with(store).unwrap_err();
            assert!(
                message.contains("seat.store:") && message.contains(reason),
                "{store}: {message}"
            );
        }
    }

    #[test]
    fn a_file_system_that_hangs_is_told_and_holds_up_the_first_reader_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("g.toml");
        // Nobody writes to it: a reader waits.
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        for most in [Duration::from_secs(20), Duration::from_secs(2)] {
            let asked = std::time::Instant::now();
            let error = Config::read(&path).unwrap_err();
            assert!(matches!(error, ConfigError::Hangs { .. }), "{error}");
            assert!(asked.elapsed() < most, "{:?}", asked.elapsed());
        }
        std::fs::write(&path, WIRING).unwrap();
    }

    #[test]
    fn a_missing_file_says_where_it_was_looked_for() {
        let error = Config::read(Path::new("/nowhere/g.toml")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/g.toml"));
        assert!(error.to_string().contains(CONFIG_VARIABLE));
        let error = Config::read(Path::new("/dev/zero")).unwrap_err();
        assert!(
            matches!(error, ConfigError::Read { .. }),
            "a device has no end: {error}"
        );
    }
}
