//! A process that dies while it writes, a disk that lies, a disk that is full.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use bytes::Bytes;
use common::*;
use hop_wal::{AppendError, OpenError, Options, Wal};
use proptest::prelude::*;
use std::path::Path;
use std::process::Command;

/// Large enough for everything that a property test writes.
const SEGMENT: u64 = 8 << 10;

/// A log of one segment, with the length of its content after each operation, and the content.
fn written(dir: &Path, ops: &[Op]) -> Vec<(usize, Model)> {
    let wal = Wal::open(dir, small(SEGMENT)).unwrap();
    let mut model = Model::new();
    let mut steps = vec![(length(dir), model.clone())];
    for (i, op) in ops.iter().enumerate() {
        perform(&wal, &mut model, op, i);
        steps.push((length(dir), model.clone()));
    }
    steps
}

/// Where the content of the only used segment ends.
fn length(dir: &Path) -> usize {
    let bytes = std::fs::read(&segments(dir)[0]).unwrap();
    bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1)
}

/// The log as it would be if only `keep` bytes of its segment had reached the file.
fn cut(dir: &Path, keep: usize) {
    let path = &segments(dir)[0];
    let mut bytes = std::fs::read(path).unwrap();
    bytes[keep..].fill(0);
    std::fs::write(path, bytes).unwrap();
}

fn copy(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for path in segments(from) {
        std::fs::copy(&path, to.path().join(path.file_name().unwrap())).unwrap();
    }
    to
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3))]

    #[test]
    fn a_log_cut_at_any_byte_has_what_was_whole(ops in ops(10, 40)) {
        let dir = tempfile::tempdir().unwrap();
        let steps = written(dir.path(), &ops);
        let end = steps.last().unwrap().0;
        for keep in 0..=end {
            let torn = copy(dir.path());
            cut(torn.path(), keep);
            let opened = Wal::open(torn.path(), small(SEGMENT));
            if keep < 9 {
                let refused = matches!(opened, Err(OpenError::Version { .. }));
                prop_assert!(refused, "cut at {keep}");
                continue;
            }
            let found = content(&opened.unwrap());
            // An operation of several frames may be there in part, which nobody was told of.
            let at = steps.iter().rposition(|(length, _)| *length <= keep).unwrap();
            let next = steps.get(at + 1).map(|(_, model)| model);
            let known = found == steps[at].1 || next.is_some_and(|n| lies_between(&steps[at].1, &found, n));
            prop_assert!(known, "cut at {keep} of {end}: {found:?} is not {:?}", steps[at].1);
        }
    }

    #[test]
    fn a_log_with_any_byte_changed_is_refused_or_a_prefix(ops in ops(10, 40), bit in 0u8..8) {
        let dir = tempfile::tempdir().unwrap();
        let steps = written(dir.path(), &ops);
        let end = steps.last().unwrap().0;
        for at in 0..end {
            let damaged = copy(dir.path());
            let path = &segments(damaged.path())[0];
            let mut bytes = std::fs::read(path).unwrap();
            bytes[at] ^= 1 << bit;
            std::fs::write(path, bytes).unwrap();
            match Wal::open(damaged.path(), small(SEGMENT)) {
                Err(OpenError::Damaged { .. } | OpenError::Version { .. }) => {}
                Err(error) => prop_assert!(false, "{error}"),
                Ok(wal) => {
                    // Only the last frame can be taken for one that was torn.
                    let found = content(&wal);
                    let last = steps.len() - 2;
                    let known = lies_between(&steps[last].1, &found, &steps[last + 1].1);
                    prop_assert!(known, "byte {at} of {end}: {found:?}");
                }
            }
        }
    }
}

/// Whether the content is that after a part of one operation's frames.
fn lies_between(before: &Model, found: &Model, after: &Model) -> bool {
    if found == before || found == after {
        return true;
    }
    // Opening the group is a frame of its own, and so is each entry of an append.
    let changed: Vec<_> = found
        .iter()
        .filter(|(name, c)| before.get(*name) != Some(c))
        .collect();
    let [(name, content)] = changed[..] else {
        return false;
    };
    let (old, new) = (
        before.get(name).cloned().unwrap_or_default(),
        after.get(name).cloned().unwrap_or_default(),
    );
    let grows = content
        .entries
        .iter()
        .all(|(i, e)| new.entries.get(i) == Some(e) || old.entries.get(i) == Some(e));
    let opened = *content == Content::default();
    (grows && content.slots == old.slots && content.purged == old.purged) || opened
}

#[test]
fn a_torn_end_is_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let wal = Wal::open(dir.path(), small(SEGMENT)).unwrap();
    let group = wal.group(b"k").unwrap();
    group.append(1, &[bytes(1, 500)]).unwrap();
    let whole = length(dir.path());
    group.append(2, &[bytes(2, 500)]).unwrap();
    drop((wal, group));
    cut(dir.path(), whole + 100);
    let wal = Wal::open(dir.path(), small(SEGMENT)).unwrap();
    wal.group(b"k").unwrap().append(2, &[bytes(3, 20)]).unwrap();
    drop(wal);
    let wal = Wal::open(dir.path(), small(SEGMENT)).unwrap();
    let lengths = wal
        .group(b"k")
        .unwrap()
        .read(|g| g.entries(..).map(|(_, e)| e.len()).collect::<Vec<_>>());
    assert_eq!(lengths.unwrap(), [500, 20]);
}

#[test]
fn a_missing_or_damaged_segment_in_the_middle_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let wal = Wal::open(dir.path(), small(4096)).unwrap();
    let group = wal.group(b"k").unwrap();
    for index in 1..=20 {
        group.append(index, &[bytes(index as usize, 1000)]).unwrap();
    }
    drop((wal, group));
    let paths = segments(dir.path());
    assert!(paths.len() > 4);
    let without = copy(dir.path());
    std::fs::remove_file(&segments(without.path())[2]).unwrap();
    assert!(matches!(
        Wal::open(without.path(), small(4096)),
        Err(OpenError::Damaged { .. })
    ));
    let changed = copy(dir.path());
    let path = &segments(changed.path())[1];
    let mut bytes = std::fs::read(path).unwrap();
    bytes[2000] ^= 1;
    std::fs::write(path, bytes).unwrap();
    assert!(matches!(
        Wal::open(changed.path(), small(4096)),
        Err(OpenError::Damaged { .. })
    ));
}

/// Run by `a_full_disk_refuses_and_keeps_what_it_has` with a file system of 3 MiB in `HOP_WAL_SMALL_DISK`.
#[test]
#[ignore = "needs a small file system"]
fn on_a_small_disk() {
    let dir = std::env::var_os("HOP_WAL_SMALL_DISK")
        .map(std::path::PathBuf::from)
        .unwrap();
    let wal = Wal::open(&dir, Options::default()).unwrap();
    let group = wal.group(b"k").unwrap();
    let mut index = 0;
    let error = loop {
        match group.append(index + 1, &[bytes(index as usize, 50_000)]) {
            Ok(_) => index += 1,
            Err(error) => break error,
        }
        assert!(index < 100, "3 MiB are never full");
    };
    assert!(matches!(error, AppendError::Segment { .. }), "{error:?}");
    let full = std::error::Error::source(&error)
        .map(ToString::to_string)
        .unwrap_or_default();
    assert!(full.contains("No space left"), "{full}");
    assert!(index > 20, "{index} entries");
    assert!(!dir.join("blank").exists(), "half a segment keeps the disk full");
    let (entries, small) = (index, Bytes::from_static(b"small"));
    assert_eq!(group.read(|g| g.last()).unwrap(), Some(entries));
    // What others need less room for still goes, as long as the last segment has some.
    wal.group(b"other").unwrap().put(0, small.clone()).unwrap();
    drop((wal, group));
    // Space comes back: the log goes on.
    let wal = Wal::open(&dir, Options::default()).unwrap();
    let group = wal.group(b"k").unwrap();
    assert_eq!(group.read(|g| g.last()).unwrap(), Some(entries));
    assert_eq!(
        wal.group(b"other").unwrap().read(|g| g.slot(0).cloned()).unwrap(),
        Some(small)
    );
    group.purge(entries).unwrap();
    std::fs::remove_file(dir.join("ballast")).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1100));
    for n in 1..=30 {
        group.append(entries + n, &[bytes(1, 50_000)]).unwrap();
    }
}

#[test]
fn a_full_disk_refuses_and_keeps_what_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let script =
        "mount -t tmpfs -o size=5m none \"$0\" && head -c 2097152 /dev/zero > \"$0/ballast\" && exec \"$@\"";
    let done = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
        .arg(dir.path())
        .arg(std::env::current_exe().unwrap())
        .args(["on_a_small_disk", "--exact", "--ignored", "--nocapture"])
        .env("HOP_WAL_SMALL_DISK", dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned() + &String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("1 passed"), "{said}");
}
