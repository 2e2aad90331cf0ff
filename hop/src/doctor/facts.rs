//! Facts for `hop doctor`: files, users, MUNGE, Slurm's own output, `hopd`.
//!
//! Nothing is judged here. An unreadable fact is stored as the sentence that gives the reason.

use super::gres::{NodeGres, read_gres_conf};
use super::plugin_file;
use crate::hopd::Hopd;
use hop_api::config::{Config, DEFAULT_PATH};
use hop_api::identity::{Identity as _, Munge, user_id};
use hop_api::message::{InfoReport, Request, Response};
use hop_protocol::file::data_dir;
use hop_protocol::mount::{Kind, kind_of};
use hop_slurm::{Association, Node, Partition, Settings, Slurm, Version};
use hop_words::error::{chain, system_words};
use hop_words::id::UserName;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A credential of the host that asked, in the environment of the step on a node.
pub(crate) const CREDENTIAL: &str = "GRESSHOPPER_DOCTOR_CREDENTIAL";
/// The uid on the asking host for which a node makes its credential.
pub(crate) const ASKER: &str = "GRESSHOPPER_DOCTOR_ASKER";
/// Slurm's settings that leases rest on.
pub(crate) const SETTINGS: [&str; 10] = [
    "SelectType",
    "GresTypes",
    "AccountingStorageType",
    "AccountingStorageTRES",
    "PrologFlags",
    "ProctrackType",
    "TaskPlugin",
    "ConstrainDevices",
    "ClusterName",
    "PlugStackConfig",
];
/// What an installation has below `bin/`.
pub(crate) const PROGRAMS: [&str; 6] = [
    "hop",
    "hopd",
    "hop-agent",
    "hop-front",
    "hop-replica",
    "hop-slurm-link",
];
/// Packages loaded by kernels: our agent, the tracker of variables' changes, and a pickler for environments without
/// one.
const LOADED: [&str; 3] = [
    "python/gresshopper/__init__.py",
    "python/gresshopper/shipped/cloudpickle/__init__.py",
    "lib/libhop_tracker.so",
];
/// Slurm's commands answer at once or not at all.
const PATIENCE: Duration = Duration::from_secs(10);
/// Includes in plugstack.conf go no deeper than anybody writes them.
const DEPTH: u8 = 4;

/// What was asked for.
pub(crate) struct Asked<'a> {
    pub(crate) node: Option<&'a str>,
    pub(crate) plugstack: Option<&'a Path>,
    pub(crate) hopd: &'a dyn Hopd,
    pub(crate) env: fn(&str) -> Option<String>,
}

/// A file or folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) uid: u32,
    pub(crate) mode: u32,
    pub(crate) is_dir: bool,
    /// The kind of its file system.
    pub(crate) kind: Kind,
}

/// Slurm by its own words.
#[derive(Debug, Clone)]
pub(crate) struct SlurmSeen {
    pub(crate) version: Option<Version>,
    pub(crate) settings: BTreeMap<String, String>,
    pub(crate) partitions: Vec<Partition>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) associations: Result<Vec<Association>, String>,
    /// The kinds of facts that Slurm hides from the service account (`PrivateData`).
    pub(crate) hidden: Result<Vec<String>, String>,
}

/// plugstack.conf and the plugin that it names.
#[derive(Debug, Clone)]
pub(crate) struct PluginSeen {
    pub(crate) plugstack: PathBuf,
    /// Our line's words, without the first.
    pub(crate) line: Option<Vec<String>>,
    pub(crate) file: Option<Seen>,
    pub(crate) version: Result<Option<Version>, String>,
}

/// This host as a node of Slurm's.
#[derive(Debug, Clone)]
pub(crate) struct NodeSeen {
    pub(crate) name: String,
    /// GPUs that Slurm has on it.
    pub(crate) gpus: u64,
    /// gres.conf's device files, and whether each is there.
    pub(crate) devices: Result<Vec<(PathBuf, bool)>, String>,
    pub(crate) autodetect: bool,
    /// gres.conf gives each GPU several device files (`MultipleFiles`).
    pub(crate) several_files: bool,
    pub(crate) state_dir: Option<Seen>,
    /// The folder of [`log_dir`].
    pub(crate) log_dir: Option<Seen>,
}

/// The folder in which seats keep the logs of kernels with three replicas, unless a job has a `TMPDIR` of its own.
pub(crate) fn log_dir(config: &Config) -> &Path {
    config
        .seat
        .log_dir
        .as_deref()
        .unwrap_or_else(|| Path::new("/tmp"))
}

/// Everything that was seen.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) config_path: PathBuf,
    pub(crate) config_file: Option<Seen>,
    pub(crate) config: Result<Config, String>,
    pub(crate) service_uid: Option<u32>,
    /// By their path below the prefix.
    pub(crate) installed: BTreeMap<String, Option<Seen>>,
    pub(crate) munge: Result<(), String>,
    /// Fate of the asking host's credential; `None` means that no host asked.
    pub(crate) carried: Option<Result<(), String>>,
    pub(crate) credential: Option<String>,
    pub(crate) slurm: Result<SlurmSeen, String>,
    pub(crate) plugin: PluginSeen,
    pub(crate) node: Option<NodeSeen>,
    /// The node given by name.
    pub(crate) asked_node: Option<String>,
    pub(crate) hopd_state: Option<Seen>,
    pub(crate) hopd: Result<InfoReport, String>,
    /// `None` means that the asking user has no home that can be written.
    pub(crate) home: Option<HomeSeen>,
    /// The folder above all users' stores. `None` means that it is missing, or that the site names no store.
    pub(crate) stores: Option<Seen>,
}

/// The folder in which kernels are saved, or the nearest folder above it.
#[derive(Debug, Clone)]
pub(crate) struct HomeSeen {
    pub(crate) folder: PathBuf,
    /// The kind of the folder's file system.
    pub(crate) kind: Kind,
    pub(crate) lock: Result<(), String>,
}

pub(crate) fn gather(asked: &Asked<'_>) -> Facts {
    let env = asked.env;
    let config_path =
        env(hop_api::config::CONFIG_VARIABLE).map_or_else(|| DEFAULT_PATH.into(), PathBuf::from);
    let config = Config::read(&config_path).map_err(|error| chain(&error));
    let usable = config.clone().unwrap_or_default();
    let slurm = ask_slurm(&usable.service_user);
    let conf = slurm_conf(env);
    let plugstack = asked
        .plugstack
        .map_or_else(|| plugstack_of(&slurm, &conf), Path::to_owned);
    let node = node_of(asked, &slurm, &conf, &usable);
    let munge = Munge {
        socket: usable.munge_socket.clone(),
    };
    let own = rustix::process::geteuid().as_raw();
    let made = munge.encode(b"hop doctor", own);
    Facts {
        config_file: seen(&config_path),
        service_uid: user_id(usable.service_user.as_str()).ok().flatten(),
        installed: installed(&usable.prefix),
        munge: made
            .and_then(|made| munge.decode(&made))
            .map(|_| ())
            .map_err(|e| e.to_string()),
        carried: env(CREDENTIAL).map(|text| munge.decode(&text).map(|_| ()).map_err(|e| e.to_string())),
        // A credential is decoded once per host: the asker needs a separate credential.
        credential: munge.encode(b"hop doctor", asker(own, env)).ok(),
        plugin: plugin_of(plugstack),
        hopd_state: seen(&usable.hopd.state_dir),
        hopd: ask_hopd(asked.hopd),
        home: data_dir().and_then(|data| home(&data)),
        stores: usable.seat.stores().and_then(|above| seen(&above)),
        config_path,
        config,
        slurm,
        node,
        asked_node: asked.node.map(str::to_owned),
    }
}

/// The uid that decodes this host's credential.
fn asker(own: u32, env: fn(&str) -> Option<String>) -> u32 {
    env(ASKER).and_then(|uid| uid.parse().ok()).unwrap_or(own)
}

fn ask_hopd(hopd: &dyn Hopd) -> Result<InfoReport, String> {
    match hopd.ask(Request::Info) {
        Ok(Response::Info(report)) => Ok(report),
        Ok(_) => Err("hopd answered with something else: another release".into()),
        Err(failure) => Err(failure.to_string()),
    }
}

/// Locks a file without a name: nothing of it is left.
fn home(data: &Path) -> Option<HomeSeen> {
    let folder = data.ancestors().find(|folder| folder.is_dir())?;
    folder.parent()?;
    let file = tempfile::tempfile_in(folder).ok()?;
    Some(HomeSeen {
        folder: folder.to_owned(),
        kind: kind_of(folder).unwrap_or(Kind::Local),
        lock: file.try_lock().map_err(|error| match error {
            fs::TryLockError::Error(error) => system_words(&error),
            busy @ fs::TryLockError::WouldBlock => busy.to_string(),
        }),
    })
}

pub(crate) fn seen(path: &Path) -> Option<Seen> {
    let about = fs::metadata(path).ok()?;
    Some(Seen {
        uid: about.uid(),
        mode: about.mode() & 0o7777,
        is_dir: about.is_dir(),
        kind: kind_of(path).unwrap_or(Kind::Local),
    })
}

fn installed(prefix: &Path) -> BTreeMap<String, Option<Seen>> {
    PROGRAMS
        .iter()
        .map(|name| format!("bin/{name}"))
        .chain(LOADED.map(str::to_owned))
        .map(|name| {
            let there = seen(&prefix.join(&name));
            (name, there)
        })
        .collect()
}

fn ask_slurm(service_user: &UserName) -> Result<SlurmSeen, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let slurm = Slurm::new(Settings {
        timeout: PATIENCE,
        ..Settings::default()
    });
    runtime.block_on(async {
        let config = slurm.config().await.map_err(|error| chain(&error))?;
        let settings = SETTINGS
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), config.get(name)?.to_owned())))
            .collect();
        let cluster = config.cluster().unwrap_or_default();
        Ok(SlurmSeen {
            version: config.version(),
            settings,
            partitions: slurm.partitions().await.map_err(|error| chain(&error))?,
            nodes: slurm.nodes().await.map_err(|error| chain(&error))?,
            associations: slurm.associations(cluster).await.map_err(|error| chain(&error)),
            hidden: slurm
                .hidden_from(service_user, &config)
                .await
                .map_err(|error| chain(&error)),
        })
    })
}

/// slurm.conf: from the environment, the default place, or slurmd's configless copy.
fn slurm_conf(env: fn(&str) -> Option<String>) -> PathBuf {
    let named = env("SLURM_CONF").map(PathBuf::from);
    let usual = ["/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf"].map(PathBuf::from);
    let found = usual.iter().find(|path| path.exists()).unwrap_or(&usual[0]);
    named.unwrap_or_else(|| found.clone())
}

/// slurmctld's path of plugstack.conf, else the file beside slurm.conf, configless slurmd's place.
fn plugstack_of(slurm: &Result<SlurmSeen, String>, conf: &Path) -> PathBuf {
    let told = slurm
        .as_ref()
        .ok()
        .and_then(|slurm| slurm.settings.get("PlugStackConfig"));
    told.map(PathBuf::from)
        .filter(|path| path.is_absolute() && path.exists())
        .unwrap_or_else(|| conf.with_file_name("plugstack.conf"))
}

fn plugin_of(plugstack: PathBuf) -> PluginSeen {
    let line = plugin_line(&plugstack, DEPTH);
    let path = line.as_ref().and_then(|words| words.first()).map(PathBuf::from);
    let version = path.as_ref().map(|path| {
        let bytes = fs::read(path).map_err(|error| error.to_string())?;
        plugin_file::version(&bytes)
    });
    PluginSeen {
        plugstack,
        file: path.as_deref().and_then(seen),
        line,
        version: version.transpose(),
    }
}

/// Our line in plugstack.conf or in an included file; a pattern's `*` stands in the file's name.
fn plugin_line(plugstack: &Path, depth: u8) -> Option<Vec<String>> {
    let text = fs::read_to_string(plugstack).ok()?;
    text.lines().find_map(|line| {
        if crate::plugin::is_ours(line) {
            return Some(line.split_whitespace().skip(1).map(str::to_owned).collect());
        }
        let mut words = line.split_whitespace();
        if words.next() != Some("include") || depth == 0 {
            return None;
        }
        included(plugstack, words.next()?)
            .into_iter()
            .find_map(|file| plugin_line(&file, depth - 1))
    })
}

fn included(from: &Path, pattern: &str) -> Vec<PathBuf> {
    let path = from.with_file_name(pattern);
    let name = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let Some((head, tail)) = name.split_once('*') else {
        return vec![path];
    };
    let folder = path.parent().map(fs::read_dir);
    let mut files: Vec<PathBuf> = folder
        .and_then(Result::ok)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with(head) && name.ends_with(tail)
        })
        .map(|entry| entry.path())
        .collect();
    files.sort();
    files
}

fn node_of(
    asked: &Asked<'_>,
    slurm: &Result<SlurmSeen, String>,
    conf: &Path,
    config: &Config,
) -> Option<NodeSeen> {
    let slurm = slurm.as_ref().ok()?;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let short = host.split('.').next().unwrap_or_default().to_owned();
    let named = asked
        .node
        .map(str::to_owned)
        .or_else(|| (asked.env)("SLURMD_NODENAME"));
    let name = named.unwrap_or(short);
    let known = slurm.nodes.iter().find(|node| node.name.as_str() == name)?;
    let gres = gres_of(conf, &name);
    Some(NodeSeen {
        gpus: hop_slurm::gres::gpus(&known.gres),
        autodetect: gres.as_ref().is_ok_and(|gres| gres.autodetect),
        several_files: gres.as_ref().is_ok_and(|gres| gres.several_files),
        devices: gres.map(|gres| {
            gres.gpus
                .into_iter()
                .map(|path| (path.clone(), path.exists()))
                .collect()
        }),
        state_dir: seen(&config.agent.state_dir),
        log_dir: seen(log_dir(config)),
        name,
    })
}

fn gres_of(conf: &Path, node: &str) -> Result<NodeGres, String> {
    let file = conf.with_file_name("gres.conf");
    read_gres_conf(&file, node, &|path| fs::read_to_string(path)).map_err(|error| chain(&error))
}
