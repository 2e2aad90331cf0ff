//! The plugin's knowledge of its node: plugstack.conf's arguments, slurmd's environment, slurm.conf's AuthInfo.

use crate::ffi::Arguments;
use hop_handover::node::{Node, NodeError, Site};
use hop_handover::options::{Options, munge_socket_of};
use hop_handover::store;
use hop_words::error::chain;
use hop_words::id::JobId;
use nix::unistd::User;
use std::path::PathBuf;

/// What a lease's beginning needs, but for the node's records.
#[derive(Debug)]
pub(crate) struct Here {
    options: Options,
    pub(crate) name: String,
    pub(crate) service_uid: u32,
    pub(crate) agent_dir: PathBuf,
    pub(crate) munge_socket: Option<PathBuf>,
}

impl Here {
    /// Looks at it all anew: plugins are short-lived, and the files may change between steps.
    pub(crate) fn find(arguments: Arguments) -> Result<Self, String> {
        let (options, name) = options_and_name(arguments)?;
        let service_uid = uid_of(&options.service_user)?;
        let of_slurm = || {
            let conf = std::env::var_os("SLURM_CONF");
            let conf = conf.map_or_else(|| PathBuf::from("/etc/slurm/slurm.conf"), PathBuf::from);
            munge_socket_of(&std::fs::read_to_string(conf).ok()?)
        };
        Ok(Self {
            munge_socket: options.munge_socket.clone().or_else(of_slurm),
            agent_dir: options.agent_dir.clone(),
            options,
            name,
            service_uid,
        })
    }

    pub(crate) fn open_node(&self) -> Result<Node, NodeError> {
        open(self.options.clone(), self.name.clone(), self.service_uid)
    }

    /// As much as the records need to be undone: no configuration of Slurm's, no user database.
    pub(crate) fn by_its_records(arguments: Arguments) -> Result<Node, String> {
        let (options, name) = options_and_name(arguments)?;
        open(options, name, u32::MAX).map_err(|e| chain(&e))
    }

    /// Whether a job has records, by their names: the whole cost of a foreign job's end.
    pub(crate) fn knows(job: JobId, arguments: Arguments) -> bool {
        options_and_name(arguments).is_ok_and(|(o, name)| store::knows(&o.run_dir, &name, job))
    }
}

fn open(options: Options, node: String, service_uid: u32) -> Result<Node, NodeError> {
    let site = Site {
        run_dir: options.run_dir,
        node,
        service_uid,
        ignore_holders: options.ignore_holders,
        isolation: options.isolation,
        dry_run: options.dry_run,
    };
    Node::open(site)
}

fn options_and_name(arguments: Arguments) -> Result<(Options, String), String> {
    let words = arguments.words();
    let options = Options::parse(words.iter().map(String::as_str)).map_err(|e| e.to_string())?;
    // Set by slurmd itself; spank_getenv would give what the user exported.
    let name = std::env::var("SLURMD_NODENAME").map_err(|_| "slurmd named no node")?;
    Ok((options, name))
}

/// The uid of a user by name or number.
fn uid_of(user: &str) -> Result<u32, String> {
    if let Ok(uid) = user.parse() {
        return Ok(uid);
    }
    match User::from_name(user) {
        Ok(Some(found)) => Ok(found.uid.as_raw()),
        Ok(None) => Err(format!(
            "there is no user {user}, which plugstack.conf names as service_user"
        )),
        Err(e) => Err(format!("the user {user} can't be looked up: {e}")),
    }
}
