//! Commands inside a cluster: as the right user, in the right mount namespace and chroot, with a clean
//! environment.
//!
//! Entering is left to util-linux and coreutils (`nsenter`, `chroot`, `setpriv`, `env`), which every Debian
//! has, so that nothing here needs `unsafe`.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::layout::Layout;
use crate::process::{self, MARK, Process};

/// Where programs are looked for, after the cluster's own `opt/bin`.
pub(crate) const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A Unix user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Login name.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Home directory inside the cluster.
    pub home: PathBuf,
}

impl Identity {
    /// The superuser.
    pub fn root() -> Self {
        Self {
            name: "root".into(),
            uid: 0,
            gid: 0,
            home: "/root".into(),
        }
    }

    /// The entry of this name in a passwd file.
    pub(crate) fn from_passwd(table: &str, name: &str) -> Option<Self> {
        table.lines().find_map(|line| {
            let mut f = line.split(':');
            if f.next()? != name {
                return None;
            }
            let (uid, gid) = (f.nth(1)?.parse().ok()?, f.next()?.parse().ok()?);
            Some(Self {
                name: name.to_owned(),
                uid,
                gid,
                home: f.nth(1)?.into(),
            })
        })
    }
}

/// The place that a cluster's commands run in.
#[derive(Debug, Clone)]
pub(crate) struct Sandbox {
    layout: Layout,
    /// The process whose mount namespace to enter.
    namespace_of: Option<Process>,
    chroot: Option<PathBuf>,
}

impl Sandbox {
    pub(crate) fn new(layout: Layout, namespace_of: Option<Process>, chroot: Option<PathBuf>) -> Self {
        Self {
            layout,
            namespace_of,
            chroot,
        }
    }

    /// The path under which this process can read what the cluster sees as `path`.
    pub(crate) fn outside(&self, path: &str) -> PathBuf {
        let mut outside = match self.namespace_of {
            Some(p) => PathBuf::from(format!("/proc/{}/root", p.pid)),
            None => PathBuf::from("/"),
        };
        for part in [self.chroot.as_deref(), Some(Path::new(path))]
            .into_iter()
            .flatten()
        {
            outside.push(part.strip_prefix("/").unwrap_or(part));
        }
        outside
    }

    /// A user of the cluster, with the home that it has there.
    pub(crate) fn user(&self, name: &str) -> Result<Identity> {
        let file = self.outside("/etc/passwd");
        let table = fs::read_to_string(&file).with_context(|| format!("can't read {}", file.display()))?;
        let mut user = Identity::from_passwd(&table, name)
            .with_context(|| format!("there is no user {name} in this cluster"))?;
        let home = self.layout.home(name);
        if home.is_dir() {
            user.home = home;
        }
        Ok(user)
    }

    /// A command as this user, in `dir`.
    pub(crate) fn command(&self, who: &Identity, dir: &Path, program: impl AsRef<OsStr>) -> Command {
        let mut words: Vec<Box<OsStr>> = vec![];
        let mut say = |s: String| words.push(OsStr::new(&s).into());
        if let Some(p) = self.namespace_of {
            say("nsenter".into());
            say(format!("--mount=/proc/{}/ns/mnt", p.pid));
        }
        if let Some(root) = &self.chroot {
            say("chroot".into());
            say(root.display().to_string());
        }
        if who.uid != 0 {
            for word in [
                "setpriv".into(),
                format!("--reuid={}", who.uid),
                format!("--regid={}", who.gid),
            ] {
                say(word);
            }
            say("--clear-groups".into());
        }
        say("env".into());
        say(format!("--chdir={}", dir.display()));
        words.push(program.as_ref().into());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
            .env_clear()
            .envs(self.environment(who))
            .env(MARK, self.layout.base());
        command
    }

    /// What each command of the cluster has in its environment.
    pub(crate) fn environment(&self, who: &Identity) -> Vec<(&'static str, String)> {
        let layout = &self.layout;
        let show = |p: PathBuf| p.display().to_string();
        let mut env = vec![
            (
                "PATH",
                format!("{}:{SYSTEM_PATH}", layout.opt().join("bin").display()),
            ),
            ("SLURM_CONF", show(layout.slurm_conf())),
            ("MUNGE_SOCKET", show(layout.munge_socket())),
            ("HOP_DEV_BASE", show(layout.base().to_owned())),
            ("HOME", show(who.home.clone())),
            ("USER", who.name.clone()),
            ("LOGNAME", who.name.clone()),
            ("SHELL", "/bin/bash".to_owned()),
        ];
        for name in ["TERM", "TZ"] {
            if let Ok(value) = std::env::var(name) {
                env.push((name, value));
            }
        }
        env.push(("LANG", "C.UTF-8".to_owned()));
        env
    }

    /// Runs a program as root to its end and returns what it wrote; an error unless it succeeded.
    pub(crate) fn run(&self, program: &str, args: &[&str], limit: Duration) -> Result<String> {
        let mut command = self.command(&Identity::root(), Path::new("/"), program);
        command.args(args);
        let told = format!("{program} {}", args.join(" "));
        let output = output_within(&mut command, limit).with_context(|| format!("can't run {told}"))?;
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(out);
        }
        bail!(
            "{told}: {}: {out}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end()
        )
    }
}

/// Runs a command to its end, and ends it with an error when `limit` has passed.
pub(crate) fn output_within(command: &mut Command, limit: Duration) -> Result<Output> {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let pid = i32::try_from(child.id()).expect("pids fit into i32");
    let this = Process::find(pid);
    let (tx, rx) = mpsc::channel();
    std::thread::spawn(move || tx.send(child.wait_with_output()));
    match rx.recv_timeout(limit) {
        Ok(output) => Ok(output?),
        Err(_) => {
            if let Some(p) = this {
                p.signal(rustix::process::Signal::KILL);
                process::wait_until(Duration::from_secs(1), || !p.alive());
            }
            bail!("no end after {limit:?}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_user_by_its_whole_name() {
        let table =
            "root:x:0:0:root:/root:/bin/sh\nalice2:x:7:8::/h:/bin/sh\nalice:x:1001:1002:A:/home/a:/bin/sh\n";
        let alice = Identity::from_passwd(table, "alice").unwrap();
        assert_eq!(
            (alice.uid, alice.gid, alice.home),
            (1001, 1002, PathBuf::from("/home/a"))
        );
        assert_eq!(Identity::from_passwd(table, "ali"), None);
    }

    #[test]
    fn enters_namespace_then_chroot_then_user() {
        let me = Process::find(i32::try_from(std::process::id()).unwrap());
        let sandbox = Sandbox::new(Layout::new("/b"), me, Some("/c".into()));
        let who = Identity {
            name: "alice".into(),
            uid: 5,
            gid: 6,
            home: "/h".into(),
        };
        let command = sandbox.command(&who, Path::new("/h"), "id");
        let mut words = vec![command.get_program().to_str().unwrap().to_owned()];
        words.extend(command.get_args().map(|a| a.to_str().unwrap().to_owned()));
        let ns = format!("--mount=/proc/{}/ns/mnt", std::process::id());
        let expected = [
            "nsenter",
            &ns,
            "chroot",
            "/c",
            "setpriv",
            "--reuid=5",
            "--regid=6",
            "--clear-groups",
            "env",
            "--chdir=/h",
            "id",
        ];
        assert_eq!(words, expected);
    }

    #[test]
    fn a_command_without_end_is_ended() {
        let error = output_within(Command::new("sleep").arg("60"), Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().contains("no end after"), "{error}");
    }
}
