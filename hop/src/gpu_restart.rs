//! Rung (d) for a notebook's kernel: the state engine (`hop state`) saves, the agent inside starts the interpreter
//! again in its own place, and the next cell restores.

use hop_gpu::Pid;
use hop_gpu::inspect::Site;
use hop_gpu::ladder::StateOffer;
use hop_gpu::park::Restart;
use hop_protocol::file::states_dir;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long a kernel may be busy before it is passed over, in seconds.
const BUSY: &str = "10";
/// How long the agent may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// How long an interpreter may take to start.
const START: Duration = Duration::from_secs(60);

const NO_KERNEL: &str = "only a Jupyter kernel of yours can be saved and started again";

/// The kernels of Jupyter on this machine.
pub(crate) struct Kernels<'a> {
    pub(crate) site: &'a Site,
}

/// A group of variables, as `hop state show --json` says.
#[derive(Deserialize)]
struct Group {
    names: Vec<String>,
    bytes: u64,
    #[serde(default)]
    lost: Vec<serde_json::Value>,
}

/// What `hop state save --json` says.
#[derive(Deserialize)]
struct Saved {
    #[serde(default)]
    lost: BTreeMap<String, String>,
}

impl Restart for Kernels<'_> {
    fn offer(&self, pid: Pid) -> Result<StateOffer, String> {
        let file = self.connection_file(pid).ok_or(NO_KERNEL)?;
        let uid = self.uid(pid).ok_or(NO_KERNEL)?;
        let asked = self.site.agent(pid, uid).report(ANSWER);
        asked.map_err(|error| error.to_string())?;
        let shown = state(&["show", "--timeout", BUSY, &file])?;
        let groups: Vec<Group> = serde_json::from_slice(&shown).map_err(|error| error.to_string())?;
        let lost = groups.iter().filter(|g| !g.lost.is_empty());
        Ok(StateOffer {
            bytes: groups.iter().map(|g| g.bytes).sum(),
            lost: lost.flat_map(|g| g.names.clone()).collect(),
        })
    }

    fn restart(&self, pid: Pid) -> Result<(), String> {
        let file = self.connection_file(pid).ok_or(NO_KERNEL)?;
        let uid = self.uid(pid).ok_or("it has ended")?;
        let place = place(pid)?;
        let to = place.to_str().ok_or("the state's folder is not text")?;
        let saved = state(&["save", "--timeout", BUSY, "--to", to, &file])?;
        let saved: Saved = serde_json::from_slice(&saved).map_err(|error| error.to_string())?;
        if let Some((name, why)) = saved.lost.first_key_value() {
            return Err(format!("{name} can't be saved: {why}"));
        }
        let agent = self.site.agent(pid, uid);
        agent.restart(&place, ANSWER).map_err(|error| error.to_string())?;
        let start = Instant::now();
        while start.elapsed() < START {
            std::thread::sleep(Duration::from_millis(50));
            if agent.report(ANSWER).is_ok_and(|report| report.saved) {
                return Ok(());
            }
        }
        Err(format!(
            "the interpreter has not come up again after {} s; its variables are saved: hop state restore {to}",
            START.as_secs()
        ))
    }
}

impl Kernels<'_> {
    fn uid(&self, pid: Pid) -> Option<u32> {
        self.site.sources.procs.uids(pid).ok().map(|uids| uids.real)
    }

    /// The connection file in the arguments of a kernel of this user's. A state is only its owner's.
    fn connection_file(&self, pid: Pid) -> Option<String> {
        if self.uid(pid)? != rustix::process::geteuid().as_raw() {
            return None;
        }
        let raw = std::fs::read(self.site.sources.procs.proc.join(pid.to_string()).join("cmdline")).ok()?;
        let words = raw.split(|b| *b == 0).map(String::from_utf8_lossy);
        connection_file(words.map(|w| w.into_owned())).filter(|file| Path::new(file).is_file())
    }
}

fn connection_file(mut words: impl Iterator<Item = String>) -> Option<String> {
    while let Some(word) = words.next() {
        match word.split_once('=') {
            Some(("--f" | "-f" | "--IPKernelApp.connection_file", file)) => return Some(file.to_owned()),
            _ if word == "-f" => return words.next(),
            _ => {}
        }
    }
    None
}

/// Folder with a process's state until the restoration.
fn place(pid: Pid) -> Result<PathBuf, String> {
    let states = states_dir().ok_or("HOME isn't set")?;
    Ok(states.join(format!("gpu-restart-{pid}")))
}

/// `hop state` of this very program.
fn state(args: &[&str]) -> Result<Vec<u8>, String> {
    let exe = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(exe)
        .args(["state", "--json"])
        .args(args)
        .output()
        .map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(said.lines().last().unwrap_or("hop state failed").to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::connection_file;

    #[test]
    fn a_kernels_connection_file_is_in_its_arguments() {
        let of = |words: &[&str]| connection_file(words.iter().map(|w| (*w).to_owned()));
        let file = Some("/run/k.json".to_owned());
        assert_eq!(
            of(&["python3", "-m", "ipykernel_launcher", "-f", "/run/k.json"]),
            file
        );
        assert_eq!(
            of(&["python3", "-m", "ipykernel_launcher", "--f=/run/k.json"]),
            file
        );
        assert_eq!(of(&["python3", "train.py"]), None);
        assert_eq!(of(&["python3", "-f"]), None);
    }
}
