//! Starting and stopping the daemons, each with a readiness check of its own and never a fixed sleep.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use crate::layout::Layout;
use crate::options::Options;
use crate::process::{Process, wait_until};
use crate::sandbox::{Identity, Sandbox, output_within};
use crate::users;

/// Generous: emulated machines are slow, and what can't succeed is noticed sooner.
const START: Duration = Duration::from_secs(180);
const COMMAND: Duration = Duration::from_secs(120);

/// The daemons of one cluster, reached through its sandbox.
#[derive(Debug)]
pub(crate) struct Daemons<'a> {
    pub options: &'a Options,
    pub layout: &'a Layout,
    pub sandbox: &'a Sandbox,
}

/// The living process of a pid file, if it is this cluster's.
pub(crate) fn find(layout: &Layout, daemon: &str) -> Option<Process> {
    let file = match daemon {
        "mariadbd" => layout.base().join("mysqlrun/mysqld.pid"),
        _ => layout.pid_file(daemon),
    };
    Process::from_pid_file(&file).filter(|p| p.marked(layout.base()) || p.holds_file_in(&layout.log()))
}

/// An error with the end of the log that explains it.
fn failure(what: &str, log: &Path) -> anyhow::Error {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let tail = lines[lines.len().saturating_sub(12)..].join("\n  ");
    anyhow!("{what}; the end of {}:\n  {tail}", log.display())
}

impl Daemons<'_> {
    /// Asks `probe` until it succeeds. Two things never heal: a client's `fatal:` (a slurm.conf that can't be
    /// read), and a daemon that has ended.
    fn await_ready(&self, daemon: &str, mut probe: impl FnMut() -> Result<()>) -> Result<()> {
        let (mut last, mut seen) = (None, false);
        wait_until(START, || {
            last = probe().err();
            let lives = find(self.layout, daemon).is_some();
            let ended = seen && !lives;
            seen |= lives;
            last.as_ref()
                .is_none_or(|e| ended || e.to_string().contains("fatal:"))
        });
        match last {
            None => Ok(()),
            Some(e) => Err(failure(
                &format!("{daemon} isn't ready: {e:#}"),
                &self.layout.log_file(daemon),
            )),
        }
    }

    fn run(&self, program: &str, args: &[&str]) -> Result<String> {
        self.sandbox.run(program, args, COMMAND)
    }

    /// Starts munged with the cluster's own key.
    pub(crate) fn munged(&self) -> Result<()> {
        if find(self.layout, "munged").is_some() {
            return Ok(());
        }
        let munge = self.sandbox.user("munge")?;
        let dir = self.layout.munge();
        let key = dir.join("key");
        if !key.exists() {
            write_key(&key, &munge)?;
        }
        let mut command = self.sandbox.command(&munge, Path::new("/"), "munged");
        let log = self.layout.log_file("munged");
        command.args([
            format!("--key-file={}", key.display()),
            format!("--socket={}", self.layout.munge_socket().display()),
            format!("--pid-file={}", self.layout.pid_file("munged").display()),
            format!("--log-file={}", log.display()),
            format!("--seed-file={}", dir.join("seed").display()),
            "--num-threads=4".into(),
            "--force".into(),
        ]);
        let output = output_within(&mut command, COMMAND).context("can't start munged")?;
        if !output.status.success() {
            bail!(
                "munged refuses to start: {}",
                String::from_utf8_lossy(&output.stderr).trim_end()
            );
        }
        self.await_ready("munged", || {
            UnixStream::connect(self.layout.munge_socket())?;
            Ok(())
        })
    }

    /// Starts MariaDB on a Unix socket alone, and makes slurmdbd's database.
    pub(crate) fn mariadbd(&self) -> Result<()> {
        if find(self.layout, "mariadbd").is_some() {
            return Ok(());
        }
        let data = self.layout.mysql_data();
        let datadir = format!("--datadir={}", data.display());
        // In a common one, whoever starts removes what looks like a dead server's, and others' tables with it.
        let tmpdir = format!("--tmpdir={}", self.layout.base().join("mysqlrun").display());
        let fresh = !data.join("mysql").is_dir();
        if fresh {
            self.run(
                "mariadb-install-db",
                &[
                    "--no-defaults",
                    "--user=mysql",
                    &datadir,
                    &tmpdir,
                    "--skip-test-db",
                    "--skip-name-resolve",
                ],
            )?;
        }
        let socket = self.layout.mysql_socket();
        let log = fs::File::create(self.layout.log_file("mariadbd")).context("can't make MariaDB's log")?;
        let mut command = self.sandbox.command(&Identity::root(), Path::new("/"), "setsid");
        command.args([
            "--fork",
            "mariadbd",
            "--no-defaults",
            "--user=mysql",
            &datadir,
            &tmpdir,
            "--skip-networking",
        ]);
        command.args([
            format!("--socket={}", socket.display()),
            format!(
                "--pid-file={}",
                self.layout.base().join("mysqlrun/mysqld.pid").display()
            ),
        ]);
        command.args([
            "--innodb-buffer-pool-size=64M",
            "--innodb-flush-log-at-trx-commit=2",
        ]);
        command.args(["--performance-schema=off", "--innodb-lock-wait-timeout=900"]);
        let err = log.try_clone().context("can't share MariaDB's log")?;
        command.stdin(Stdio::null()).stdout(log).stderr(err);
        ensure!(
            command.status().context("can't start mariadbd")?.success(),
            "mariadbd refuses to start"
        );
        let socket_option = format!("--socket={}", socket.display());
        self.await_ready("mariadbd", || {
            UnixStream::connect(&socket)?;
            self.run("mariadb-admin", &["--no-defaults", &socket_option, "ping"])
                .map(drop)
        })?;
        if fresh {
            self.run("mariadb", &["--no-defaults", &socket_option, "-e", DATABASE])?;
        }
        Ok(())
    }

    /// Starts slurmdbd.
    pub(crate) fn slurmdbd(&self) -> Result<()> {
        if find(self.layout, "slurmdbd").is_some() {
            return Ok(());
        }
        let mut command = self
            .sandbox
            .command(&Identity::root(), Path::new("/"), "slurmdbd");
        command.env("MYSQL_UNIX_PORT", self.layout.mysql_socket());
        let output = output_within(&mut command, COMMAND).context("can't start slurmdbd")?;
        let log = self.layout.log_file("slurmdbd");
        if !output.status.success() {
            return Err(failure("slurmdbd refuses to start", &log));
        }
        self.await_ready("slurmdbd", || {
            self.run("sacctmgr", &["-n", "show", "cluster"]).map(drop)
        })
    }

    /// Registers the cluster, its accounts and users with slurmdbd, as far as they are missing.
    pub(crate) fn accounts(&self) -> Result<()> {
        let cluster = self.options.cluster_name();
        let there = self.run(
            "sacctmgr",
            &["-nP", "show", "assoc", "format=cluster,account,user"],
        )?;
        let has =
            |account: &str, user: &str| there.lines().any(|l| l == format!("{cluster}|{account}|{user}"));
        let add = |args: &[&str]| {
            let all: Vec<&str> = ["-i", "-Q", "add"]
                .into_iter()
                .chain(args.iter().copied())
                .collect();
            self.run("sacctmgr", &all).map(drop)
        };
        if !has("root", "") {
            add(&["cluster", &cluster])?;
        }
        let people: Vec<&str> = users::PEOPLE.iter().map(|(name, _)| *name).collect();
        for (account, members) in [("lab", people.as_slice()), ("pool", &[users::SERVICE.0])] {
            if !has(account, "") {
                add(&[
                    "account",
                    account,
                    &format!("Description={account}"),
                    "Organization=dev",
                ])?;
            }
            let missing: Vec<&str> = members.iter().copied().filter(|m| !has(account, m)).collect();
            if !missing.is_empty() {
                add(&["user", &missing.join(","), &format!("Account={account}")])?;
            }
        }
        Ok(())
    }

    /// Starts slurmctld and waits until it answers.
    pub(crate) fn slurmctld(&self) -> Result<()> {
        if find(self.layout, "slurmctld").is_some() {
            return Ok(());
        }
        let log = self.layout.log_file("slurmctld");
        if let Err(e) = self.run("slurmctld", &[]) {
            return Err(failure(&format!("slurmctld refuses to start ({e:#})"), &log));
        }
        self.await_ready("slurmctld", || {
            let told = self.run("scontrol", &["ping"])?;
            ensure!(told.contains("UP"), "{}", told.trim());
            Ok(())
        })
    }

    /// Starts the slurmd of one node; it is ready when [`Self::await_nodes`] says so.
    pub(crate) fn slurmd(&self, node: &str) -> Result<()> {
        let daemon = format!("slurmd.{node}");
        if find(self.layout, &daemon).is_some() {
            return Ok(());
        }
        let script = self.layout.slurmd_script().display().to_string();
        if let Err(e) = self.run(&script, &[node]) {
            return Err(failure(
                &format!("slurmd of {node} refuses to start ({e:#})"),
                &self.layout.log_file(&daemon),
            ));
        }
        Ok(())
    }

    /// States of nodes, as sinfo tells them; `*` is appended when a node doesn't answer.
    pub(crate) fn node_states(&self) -> Result<Vec<(String, String)>> {
        let all = self.options.all_nodes().join(",");
        let out = self.run("sinfo", &["-h", "-N", "-n", &all, "-o", "%N %T"])?;
        let pairs = out.lines().filter_map(|l| l.split_once(' '));
        Ok(pairs
            .map(|(node, state)| (node.to_owned(), state.trim().to_owned()))
            .collect())
    }

    /// Waits until all these nodes can take jobs; puts those back that an earlier run left down or drained.
    pub(crate) fn await_nodes(&self, nodes: &[String]) -> Result<()> {
        let mut last = vec![];
        let ready = wait_until(START, || {
            let Ok(states) = self.node_states() else {
                return false;
            };
            last = states
                .into_iter()
                .filter(|(n, s)| nodes.contains(n) && !usable(s))
                .collect();
            for (node, state) in &last {
                if state.starts_with("down") || state.starts_with("drain") {
                    // Refused while slurmd hasn't registered: then the next round does it.
                    let _ = self.run(
                        "scontrol",
                        &["update", &format!("nodename={node}"), "state=resume"],
                    );
                }
            }
            last.is_empty()
        });
        match last.first() {
            Some((node, state)) if !ready => {
                let log = self.layout.log_file(&format!("slurmd.{node}"));
                Err(failure(&format!("node {node} is {state} after {START:?}"), &log))
            }
            None if !ready => Err(failure(
                "sinfo gives no answer",
                &self.layout.log_file("slurmctld"),
            )),
            _ => Ok(()),
        }
    }

    /// Cancels every job and waits until none is left; true when that was so in time.
    pub(crate) fn cancel_all(&self) -> bool {
        wait_until(Duration::from_secs(12), || {
            let Ok(jobs) = self.run("squeue", &["-h", "-r", "-o", "%A"]) else {
                return false;
            };
            let jobs: Vec<&str> = jobs.split_whitespace().collect();
            if jobs.is_empty() {
                return true;
            }
            let mut args = vec!["--full"];
            args.extend(jobs);
            // A job that ended in between is an error to scancel and none to us.
            let _ = self.run("scancel", &args);
            false
        })
    }
}

const DATABASE: &str = "CREATE DATABASE slurm_acct_db; \
    CREATE USER slurm@localhost IDENTIFIED VIA unix_socket; \
    GRANT ALL ON slurm_acct_db.* TO slurm@localhost;";

fn usable(state: &str) -> bool {
    ["idle", "mixed", "allocated", "completing"].contains(&state)
}

fn write_key(path: &PathBuf, owner: &Identity) -> Result<()> {
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::{OpenOptionsExt as _, fchown};
    let mut key = [0_u8; 128];
    fs::File::open("/dev/urandom")
        .and_then(|mut f| f.read_exact(&mut key))
        .context("no random numbers")?;
    let mut file = fs::File::options()
        .create_new(true)
        .write(true)
        .mode(0o400)
        .open(path)
        .with_context(|| format!("can't make {}", path.display()))?;
    file.write_all(&key).context("can't write munged's key")?;
    fchown(&file, Some(owner.uid), Some(owner.gid)).context("can't give munged its key")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_or_drained_node_is_not_usable() {
        assert!(usable("idle") && usable("mixed"));
        for state in [
            "idle*", "down", "drained", "unknown", "idle~", "draining", "idle#",
        ] {
            assert!(!usable(state), "{state}");
        }
    }

    #[test]
    fn an_error_shows_the_end_of_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("x.log");
        fs::write(&log, (1..=20).map(|i| format!("line {i}\n")).collect::<String>()).unwrap();
        let text = failure("no", &log).to_string();
        assert!(
            text.contains("line 20") && text.contains("line 9\n") && !text.contains("line 8\n"),
            "{text}"
        );
    }
}
