//! The front's owner: the kernel provisioner, or a person at a shell. The owner writes the start order on the front's
//! standard input, in one line of JSON, and reads events on standard output, one line of JSON each. The front lives
//! no longer than its owner.

use hop_protocol::file::Launch;
use hop_words::id::{Incarnation, KernelId, Tenure};
use hop_words::line;
use hop_words::replica::Replicas;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// The version in every [`Start`].
pub const VERSION: u32 = 2;

/// The longest line of the owner's, in bytes: [`Start`] has the kernel's environment.
pub const MAX_LINE: usize = 64 << 20;

/// What to run. The signing key comes this way because arguments and environments can be read by others.
#[derive(Clone, Deserialize)]
pub struct Start {
    pub version: u32,
    pub kernel: KernelId,
    /// The lowest permitted number for the kernel's replica: the owner counts its starts.
    pub incarnation: Incarnation,
    /// The user restarted the kernel: the namespace is to be empty, whatever the state says.
    #[serde(default)]
    pub fresh: bool,
    /// The highest tenure of the kernel that an earlier front told the owner: a restart may leave no other record. 0
    /// means none.
    #[serde(default)]
    pub tenure: Tenure,
    /// Grows with every front of the kernel.
    pub epoch: u64,
    /// Take over a killed front's ports and replica.
    #[serde(default)]
    pub resume: bool,
    /// The kernel was shut down, but the closing front is lost: close the kernel, and serve nobody.
    #[serde(default)]
    pub close: bool,
    /// Where to listen for clients. Ports 0 or absent: any free ones.
    #[serde(default = "loopback")]
    pub ip: std::net::IpAddr,
    #[serde(default)]
    pub ports: Ports,
    pub key: String,
    pub launch: Launch,
    /// Of the replica's step, in MiB; absent: the configuration's.
    #[serde(default)]
    pub mem_mib: Option<u64>,
    #[serde(default)]
    pub cpus: Option<u16>,
    /// Number of replicas for the kernel; absent: as for its pool's kernels.
    #[serde(default)]
    pub replicas: Option<Replicas>,
    /// Whether one of three replicas is a hot standby; absent: as for its pool's kernels.
    #[serde(default)]
    pub hot_standby: Option<bool>,
    /// The notebook that the kernel belongs to. A kernel of a notebook is saved when its owner goes, and found again.
    #[serde(default)]
    pub notebook: Option<Notebook>,
    /// The notebook's first kernel, if it ran elsewhere when this kernel began.
    #[serde(default)]
    pub beside: Option<KernelId>,
    /// The owner's memory for this front's records, which outlives a killed front. Without the memory, outputs that
    /// pages lack are lost with the front.
    #[serde(default)]
    pub heirs: Option<PathBuf>,
    /// The owner's memory for the record of deliveries, which outlives a killed front. Without the memory the record is
    /// in the user's home alone.
    #[serde(default)]
    pub delivered: Option<PathBuf>,
}

/// A notebook, as the next opening names it again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Notebook {
    pub path: String,
    pub kernelspec: String,
}

/// What the owner wants after the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// Save the kernel and end: one line `hibernate` on our standard input.
    Hibernate,
    /// The owner is gone.
    Gone,
    /// The notebook has another path: a line `notebook` with the path in JSON.
    Renamed { path: String },
}

impl Wish {
    /// The wish in a line of the owner's. A line of a later release has none.
    pub fn read(line: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(line).ok()?.trim();
        match line.split_once(' ') {
            None if line == "hibernate" => Some(Self::Hibernate),
            Some(("notebook", path)) => {
                let path = serde_json::from_str(path).ok()?;
                Some(Self::Renamed { path })
            }
            _ => None,
        }
    }
}

impl std::fmt::Debug for Start {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Start")
            .field("kernel", &self.kernel)
            .field("resume", &self.resume)
            .finish_non_exhaustive()
    }
}

fn loopback() -> std::net::IpAddr {
    std::net::Ipv4Addr::LOCALHOST.into()
}

/// The five ports of a kernel, as in a connection file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Ports {
    pub shell_port: u16,
    pub iopub_port: u16,
    pub stdin_port: u16,
    pub control_port: u16,
    pub hb_port: u16,
}

/// What the owner learns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Said {
    /// All sockets are bound; clients may connect.
    Launched {
        #[serde(flatten)]
        ports: Ports,
        /// The requested kernel, or a saved kernel of the same notebook.
        kernel: KernelId,
        /// As in [`Start`], for the owner's next start of this kernel.
        #[serde(skip_serializing_if = "Option::is_none")]
        beside: Option<KernelId>,
    },
    /// The tenure that the front opens or takes over. The owner names it in its next start of this kernel.
    Tenure { tenure: Tenure },
    /// The kernel runs there.
    Up { node: String },
    /// It could not be launched at all.
    Failed { reason: String },
    /// The kernel is dead; the front ends shortly after.
    Dead { reason: String },
}

/// Whether the owner reads our events.
static READ: AtomicBool = AtomicBool::new(true);

/// The owner is a client that shows its kernels' output to people: only the reason for a kernel's death is reported.
pub fn speak_to_people() {
    READ.store(false, Ordering::Relaxed);
}

/// Tells the owner. One that is gone is noticed elsewhere.
pub fn say(said: &Said) {
    if !READ.load(Ordering::Relaxed) {
        if let Said::Dead { reason } = said {
            eprintln!("hop-front: {reason}");
        }
        return;
    }
    let _ = line::write(&mut std::io::stdout().lock(), said);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owners_lines_are_read() {
        let renamed = Wish::Renamed {
            path: "/home/a/b c\n.ipynb".into(),
        };
        assert_eq!(Wish::read(b"hibernate\n"), Some(Wish::Hibernate));
        assert_eq!(Wish::read(b"notebook \"/home/a/b c\\n.ipynb\"\n"), Some(renamed));
        for nothing in ["", "hibernate now", "notebook", "notebook x", "notebook 7"] {
            assert_eq!(Wish::read(nothing.as_bytes()), None, "{nothing}");
        }
    }
}
