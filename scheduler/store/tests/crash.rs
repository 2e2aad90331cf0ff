//! The journal under kill -9 and on a full disk. The child processes are this test binary itself.

#![allow(clippy::unwrap_used, reason = "a test")]

use hop_store::{Journal, SaveError};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

type Numbers = Journal<String, u64>;

/// What a child is to do comes in these variables.
const ROLE: &str = "HOP_STORE_TEST_ROLE";
const PLACE: &str = "HOP_STORE_TEST_PLACE";

fn child_role(role: &str) -> Option<PathBuf> {
    (std::env::var(ROLE).ok()? == role).then(|| PathBuf::from(std::env::var_os(PLACE).unwrap()))
}

fn me(test: &str, role: &str, place: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .env(ROLE, role)
        .env(PLACE, place);
    command
}

/// Saying it at once is the point: the parent believes what it has read.
fn say(text: &str) {
    let mut out = std::io::stderr();
    writeln!(out, "{text}").unwrap();
    out.flush().unwrap();
}

#[test]
fn what_was_acknowledged_survives_kill_9() {
    if let Some(path) = child_role("commit for ever") {
        let (journal, snapshot) = Numbers::open(&path).unwrap();
        let start = snapshot
            .entries
            .iter()
            .map(|(_, value)| *value)
            .max()
            .unwrap_or(0);
        for n in start + 1.. {
            let key = format!("k{}", n % 50);
            journal.post([(&key, Some(&n))]).durable_blocking().unwrap();
            say(&format!("acknowledged {n}"));
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let mut last = 0;
    for round in 1..=8_u64 {
        let mut child = me("what_was_acknowledged_survives_kill_9", "commit for ever", &path)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let mut seen = 0;
        for line in lines
            .by_ref()
            .filter_map(|line| line.strip_prefix("acknowledged ").map(str::to_owned))
        {
            last = line.parse().unwrap();
            seen += 1;
            if seen == 3 * round {
                break;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        for line in lines.filter_map(|line| line.strip_prefix("acknowledged ").map(str::to_owned)) {
            last = line.parse().unwrap();
        }
        assert!(seen > 0, "the child committed nothing");
        let (journal, snapshot) = Numbers::open(&path).unwrap();
        drop(journal);
        let newest = snapshot.entries.iter().map(|(_, value)| *value).max().unwrap();
        // One more may have been durable before it could say so.
        assert!(
            newest == last || newest == last + 1,
            "acknowledged {last}, found {newest}"
        );
        assert_eq!(snapshot.entries.len() as u64, newest.min(50));
        assert_eq!(snapshot.term.0, 2 * round);
        last = newest;
    }
}

/// Fills the disk, is refused, goes on once there is room, and has lost nothing.
fn survive_a_full_disk(path: &Path, make_room: impl FnOnce()) {
    let (journal, _) = Numbers::open(path).unwrap();
    let mut posted = 0_u64;
    let refused = loop {
        posted += 1;
        assert!(posted < 100_000, "the disk never filled");
        // Long keys: the file must grow.
        let key = format!("{posted:0>2000}");
        if let Err(error) = journal.post([(&key, Some(&posted))]).durable_blocking() {
            break error;
        }
    };
    assert!(refused.is_full(), "{refused:?}");
    assert!(refused.to_string().contains("no space is left"), "{refused}");
    let health = journal.health();
    assert!(health.unsaved > 0 && health.error.is_some_and(|error: SaveError| error.is_full()));
    let while_full = journal.post([(&"late".to_owned(), Some(&0))]).durable_blocking();
    assert!(while_full.is_err());
    make_room();
    let until = Instant::now() + Duration::from_secs(10);
    while journal.health().unsaved > 0 {
        assert!(
            Instant::now() < until,
            "not saved by itself: {:?}",
            journal.health()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(journal);
    let (_, snapshot) = Numbers::open(path).unwrap();
    assert_eq!(snapshot.entries.len() as u64, posted + 1);
    say("survived");
}

fn expect_survival(mut command: Command) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("survived"),
        "{}\n{text}",
        output.status
    );
}

#[test]
fn a_file_size_limit_is_an_error_and_loses_nothing() {
    if let Some(path) = child_role("limited") {
        let raise = || {
            let hard = rustix::process::getrlimit(rustix::process::Resource::Fsize);
            let soft = rustix::process::Rlimit {
                current: hard.maximum,
                maximum: hard.maximum,
            };
            rustix::process::setrlimit(rustix::process::Resource::Fsize, soft).unwrap();
        };
        survive_a_full_disk(&path, raise);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let child = me(
        "a_file_size_limit_is_an_error_and_loses_nothing",
        "limited",
        &folder.path().join("journal"),
    );
    // The shell sets the limit and lets SIGXFSZ be ignored, so that writes fail with EFBIG as with a quota.
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; ulimit -S -f 6144; exec \"$@\"", "sh"]);
    shell.arg(child.get_program()).args(child.get_args());
    shell.envs(child.get_envs().filter_map(|(name, value)| Some((name, value?))));
    expect_survival(shell);
}

#[test]
fn a_full_disk_is_an_error_and_loses_nothing() {
    if let Some(path) = child_role("full") {
        let filler = path.with_file_name("filler");
        // redb doubles its file: half of the disk must be enough for the next size.
        std::fs::write(&filler, vec![0; 12 << 20]).unwrap();
        survive_a_full_disk(&path, || std::fs::remove_file(&filler).unwrap());
        return;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: mounting a small tmpfs needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let child = me(
        "a_full_disk_is_an_error_and_loses_nothing",
        "full",
        &folder.path().join("journal"),
    );
    let mut shell = Command::new("unshare");
    shell.args([
        "--mount",
        "sh",
        "-c",
        "mount -t tmpfs -o size=24m none \"$0\" && exec \"$@\"",
    ]);
    shell
        .arg(folder.path())
        .arg(child.get_program())
        .args(child.get_args());
    shell.envs(child.get_envs().filter_map(|(name, value)| Some((name, value?))));
    expect_survival(shell);
}
