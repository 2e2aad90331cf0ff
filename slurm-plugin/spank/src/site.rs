//! What the plugin knows of its node: plugstack.conf's arguments, slurmd's environment, slurm.conf's AuthInfo.

use crate::ffi;
use hop_handover::node::{Node, Site};
use hop_handover::options::{Options, munge_socket_of};
use hop_handover::store;
use hop_words::error::chain;
use hop_words::id::JobId;
use std::ffi::{CString, c_char, c_int};
use std::path::PathBuf;

/// The node with what else the callbacks need.
#[derive(Debug)]
pub(crate) struct Here {
    pub(crate) node: Node,
    pub(crate) name: String,
    pub(crate) service_uid: u32,
    pub(crate) agent_dir: PathBuf,
    pub(crate) munge_socket: Option<PathBuf>,
}

impl Here {
    /// Looks at it all anew: plugins are short-lived, and the files may change between steps.
    pub(crate) fn find(count: c_int, values: *mut *mut c_char) -> Result<Self, String> {
        let (options, name) = options_and_name(count, values)?;
        let slurm_conf = std::env::var_os("SLURM_CONF")
            .map_or_else(|| PathBuf::from("/etc/slurm/slurm.conf"), PathBuf::from);
        let service_uid = uid_of(&options.service_user)?;
        let munge_socket = options.munge_socket.clone().or_else(|| {
            std::fs::read_to_string(&slurm_conf)
                .ok()
                .and_then(|text| munge_socket_of(&text))
        });
        let site = Site {
            run_dir: options.run_dir.clone(),
            node: name.clone(),
            service_uid,
            ignore_holders: options.ignore_holders,
            isolation: options.isolation,
            dry_run: options.dry_run,
        };
        let node = Node::open(site).map_err(|e| chain(&e))?;
        Ok(Self {
            node,
            name,
            service_uid,
            agent_dir: options.agent_dir,
            munge_socket,
        })
    }

    /// As much as the records need to be undone: no configuration of Slurm's, no user database.
    pub(crate) fn by_its_records(count: c_int, values: *mut *mut c_char) -> Result<Node, String> {
        let (options, name) = options_and_name(count, values)?;
        let site = Site {
            run_dir: options.run_dir,
            node: name,
            service_uid: u32::MAX,
            ignore_holders: options.ignore_holders,
            isolation: options.isolation,
            dry_run: options.dry_run,
        };
        Node::open(site).map_err(|e| chain(&e))
    }

    /// Whether a job has records, by their names: the whole cost of a foreign job's end.
    pub(crate) fn knows(job: JobId, count: c_int, values: *mut *mut c_char) -> bool {
        options_and_name(count, values).is_ok_and(|(o, name)| store::knows(&o.run_dir, &name, job))
    }
}

fn options_and_name(count: c_int, values: *mut *mut c_char) -> Result<(Options, String), String> {
    let arguments = ffi::arguments(count, values);
    let options = Options::parse(arguments.iter().map(String::as_str)).map_err(|e| e.to_string())?;
    // Set by slurmd itself; spank_getenv would give what the user exported.
    let name = std::env::var("SLURMD_NODENAME").map_err(|_| "slurmd named no node")?;
    Ok((options, name))
}

/// The uid of a user by name or number.
fn uid_of(user: &str) -> Result<u32, String> {
    if let Ok(uid) = user.parse() {
        return Ok(uid);
    }
    let name = CString::new(user).map_err(|_| "service_user holds a NUL")?;
    let mut buffer: Vec<c_char> = vec![0; 16 * 1024];
    let mut found = std::ptr::null_mut();
    // SAFETY: passwd is plain data that getpwnam_r fills in.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    // SAFETY: all pointers are valid for the call, the buffer has the length given.
    let code = unsafe {
        libc::getpwnam_r(
            name.as_ptr(),
            &raw mut entry,
            buffer.as_mut_ptr(),
            buffer.len(),
            &raw mut found,
        )
    };
    if code != 0 || found.is_null() {
        return Err(format!(
            "there is no user {user}, which plugstack.conf names as service_user"
        ));
    }
    Ok(entry.pw_uid)
}
