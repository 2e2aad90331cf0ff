//! The cluster's Unix users.
//!
//! They are users of the machine, shared by its clusters and known by their comment field, so one that
//! belongs to the machine itself is used but never removed. The last cluster takes them away.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, chown};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::layout::Layout;
use crate::registry::Taken;
use crate::sandbox::{Identity, output_within};

/// The people. Numbers are ours above Debian's range for users, so that files outlive a `down`.
pub(crate) const PEOPLE: [(&str, u32); 3] = [("alice", 61_101), ("bob", 61_102), ("carol", 61_103)];
/// The account that hopd and the pilots run under.
pub(crate) const SERVICE: (&str, u32) = ("gresshopper", 61_100);
const COMMENT: &str = "gresshopper-dev";
const PASSWD: &str = "/etc/passwd";

fn all() -> impl Iterator<Item = (&'static str, u32)> {
    PEOPLE.into_iter().chain([SERVICE])
}

/// Lines of /etc/passwd for the cluster's users.
pub(crate) fn passwd_lines() -> Result<String> {
    lines_of(PASSWD)
}

/// Lines of /etc/group for the cluster's users.
pub(crate) fn group_lines() -> Result<String> {
    lines_of("/etc/group")
}

fn lines_of(file: &str) -> Result<String> {
    let table = fs::read_to_string(file).context("can't read the users")?;
    let ours = |line: &&str| all().any(|(name, _)| line.split(':').next() == Some(name));
    Ok(table.lines().filter(ours).map(|l| format!("{l}\n")).collect())
}

/// Makes the users that aren't there yet, and their homes.
pub(crate) fn ensure(layout: &Layout, taken: &mut Taken) -> Result<()> {
    for (name, number) in all() {
        let table = fs::read_to_string(PASSWD).context("can't read the users")?;
        if Identity::from_passwd(&table, name).is_none() {
            add(name, number, &layout.home(name), &table)?;
        }
        if made_by_us(name)? && !taken.passwords.contains_key(name) {
            taken.passwords.insert(name.to_owned(), new_password(name)?);
        }
        let table = fs::read_to_string(PASSWD).context("can't read the users")?;
        let user =
            Identity::from_passwd(&table, name).with_context(|| format!("user {name} is not there"))?;
        make_home(&layout.home(name), &user)?;
    }
    Ok(())
}

fn add(name: &str, number: u32, home: &Path, table: &str) -> Result<()> {
    let mut command = Command::new("useradd");
    command.args([
        "--no-create-home",
        "--user-group",
        "--no-log-init",
        "--shell",
        "/bin/bash",
    ]);
    // Without this useradd would leave ranges in /etc/subuid and /etc/subgid.
    command.args([
        "--key",
        "SUB_UID_COUNT=0",
        "--key",
        "SUB_GID_COUNT=0",
        "--comment",
        COMMENT,
        "--home-dir",
    ]);
    command.arg(home);
    let number = number.to_string();
    if !table.lines().any(|l| l.split(':').nth(2) == Some(&number)) {
        command.args(["--uid", &number]);
    }
    succeed(command.arg(name))
}

fn succeed(command: &mut Command) -> Result<()> {
    let told = command.get_program().display().to_string();
    let output =
        output_within(command, Duration::from_secs(20)).with_context(|| format!("can't run {told}"))?;
    ensure!(
        output.status.success(),
        "{told}: {}",
        String::from_utf8_lossy(&output.stderr).trim_end()
    );
    Ok(())
}

fn made_by_us(name: &str) -> Result<bool> {
    let table = fs::read_to_string(PASSWD).context("can't read the users")?;
    Ok(table.lines().any(|l| {
        let mut f = l.split(':');
        f.next() == Some(name) && f.nth(3) == Some(COMMENT)
    }))
}

fn new_password(name: &str) -> Result<String> {
    let mut bytes = [0_u8; 12];
    fs::File::open("/dev/urandom")
        .and_then(|mut f| f.read_exact(&mut bytes))
        .context("no random numbers")?;
    let password: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    let mut child = Command::new("chpasswd")
        .stdin(Stdio::piped())
        .spawn()
        .context("can't run chpasswd")?;
    let mut input = child.stdin.take().context("chpasswd has no input")?;
    writeln!(input, "{name}:{password}").context("can't write to chpasswd")?;
    drop(input);
    ensure!(
        child.wait().context("lost chpasswd")?.success(),
        "chpasswd refused a password for {name}"
    );
    Ok(password)
}

fn make_home(home: &Path, user: &Identity) -> Result<()> {
    if !home.is_dir() {
        fs::DirBuilder::new()
            .recursive(false)
            .mode(0o700)
            .create(home)
            .with_context(|| format!("can't make {}", home.display()))?;
    }
    let owner = fs::metadata(home)
        .with_context(|| format!("can't look at {}", home.display()))?
        .uid();
    if owner == user.uid {
        return Ok(());
    }
    chown(home, Some(user.uid), Some(user.gid))
        .with_context(|| format!("can't give {} away", home.display()))?;
    // Left by an earlier run under another number.
    if fs::read_dir(home).is_ok_and(|mut d| d.next().is_some()) {
        let whom = format!("{}:{}", user.uid, user.gid);
        succeed(
            Command::new("chown")
                .args(["--recursive", "--no-dereference", &whom])
                .arg(home),
        )?;
    }
    Ok(())
}

/// Takes away the users that we made, unless another cluster is there; then it hands the homes on to it.
pub(crate) fn remove(layout: &Layout, taken: &mut Taken) -> Result<()> {
    let heir = taken.clusters.keys().find(|b| *b != layout.base()).cloned();
    let mut failed = vec![];
    for (name, _) in all() {
        if !made_by_us(name)? {
            continue;
        }
        let result = match &heir {
            None => succeed(Command::new("userdel").arg(name)),
            Some(base) => hand_on(layout, name, &Layout::new(base)),
        };
        failed.extend(result.err().map(|e| format!("{e:#}")));
        if heir.is_none() {
            taken.passwords.remove(name);
        }
    }
    if failed.is_empty() {
        Ok(())
    } else {
        bail!("users remain: {}", failed.join("; "))
    }
}

fn hand_on(layout: &Layout, name: &str, heir: &Layout) -> Result<()> {
    let table = fs::read_to_string(PASSWD).context("can't read the users")?;
    let user = Identity::from_passwd(&table, name).with_context(|| format!("user {name} is not there"))?;
    if user.home != layout.home(name) {
        return Ok(());
    }
    // usermod refuses while the user has processes in the other cluster. HOME is set by `exec` anyway.
    let _ = succeed(
        Command::new("usermod")
            .arg("--home")
            .arg(heir.home(name))
            .arg(name),
    );
    Ok(())
}
