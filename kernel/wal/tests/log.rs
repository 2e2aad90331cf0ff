//! The log against a plain model: what was written is there, after any operations, in any segments, after reopening.

mod common;

use bytes::Bytes;
use common::*;
use hop_wal::{AppendError, OpenError, Options, Sync, Wal};
use proptest::prelude::*;
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc;
use std::time::Duration;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn what_was_written_is_there_after_reopening(ops in ops(120, 900), every in 1usize..40) {
        let dir = tempfile::tempdir().unwrap();
        let mut wal = Wal::open(dir.path(), small(2048)).unwrap();
        let mut model = Model::new();
        for (i, op) in ops.iter().enumerate() {
            perform(&wal, &mut model, op, i);
            prop_assert_eq!(&content(&wal), &model);
            if i % every == 0 {
                drop(wal);
                wal = Wal::open(dir.path(), small(2048)).unwrap();
                prop_assert_eq!(&content(&wal), &model);
            }
        }
    }
}

#[test]
fn the_log_stays_small_whatever_is_written_and_purged() {
    let dir = tempfile::tempdir().unwrap();
    let wal = Wal::open(dir.path(), small(8192)).unwrap();
    let idle = wal.group(b"idle").unwrap();
    idle.put(0, Bytes::from_static(b"vote")).unwrap();
    idle.append(1, &[Bytes::from_static(b"first")]).unwrap();
    let busy = wal.group(b"busy").unwrap();
    for index in 1..4000u64 {
        busy.append(index, &[bytes(index as usize, 200)]).unwrap();
        busy.purge(index.saturating_sub(5)).unwrap();
        if index % 50 == 0 {
            sync(&wal, &busy);
        }
    }
    sync(&wal, &busy);
    while wal.disk() > 5 * 8192 {
        std::thread::sleep(Duration::from_millis(10));
    }
    drop((wal, idle, busy));
    let wal = Wal::open(dir.path(), small(8192)).unwrap();
    let kept = wal.group(b"idle").unwrap();
    let entry = kept
        .read(|g| (g.slot(0).cloned(), g.entries(..).count()))
        .unwrap();
    assert_eq!(entry, (Some(Bytes::from_static(b"vote")), 1));
    assert!(segments(dir.path()).len() <= 8);
}

#[test]
fn a_frame_larger_than_a_segment_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let wal = Wal::open(dir.path(), small(4096)).unwrap();
    let group = wal.group(b"k").unwrap();
    group.append(1, &[bytes(1, 100_000)]).unwrap();
    group.append(2, &[bytes(2, 10)]).unwrap();
    drop((wal, group));
    let wal = Wal::open(dir.path(), small(4096)).unwrap();
    let read = wal
        .group(b"k")
        .unwrap()
        .read(|g| g.entries(..).map(|(_, e)| e.len()).collect::<Vec<_>>());
    assert_eq!(read.unwrap(), [100_000, 10]);
}

#[test]
fn entries_without_a_gap_and_groups_that_are_open() {
    let dir = tempfile::tempdir().unwrap();
    let wal = Wal::open(dir.path(), Options::default()).unwrap();
    let group = wal.group(b"k").unwrap();
    group.append(7, &[Bytes::from_static(b"a")]).unwrap();
    for index in [7, 9] {
        let error = group.append(index, &[Bytes::new()]).unwrap_err();
        assert!(matches!(error, AppendError::Gap { last: 7, .. }), "{error}");
    }
    group.purge(7).unwrap();
    group.append(8, &[Bytes::from_static(b"b")]).unwrap();
    group.close().unwrap();
    assert!(matches!(
        group.append(9, &[Bytes::new()]),
        Err(AppendError::Closed)
    ));
    assert!(matches!(group.put(0, Bytes::new()), Err(AppendError::Closed)));
    let again = wal.group(b"k").unwrap();
    assert_eq!(
        again.read(|g| g.last()).unwrap(),
        None,
        "a new group of the same name"
    );
}

#[test]
fn one_process_has_it_open_and_nobody_else_reads_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wal");
    let wal = Wal::open(&path, Options::default()).unwrap();
    assert!(matches!(
        Wal::open(&path, Options::default()),
        Err(OpenError::Locked { .. })
    ));
    let mode = |p: &std::path::Path| std::fs::metadata(p).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    assert!(segments(&path).iter().all(|p| mode(p) == 0o600));
    drop(wal);
    Wal::open(&path, Options::default()).unwrap();
}

#[test]
fn everybody_who_waits_is_told_once() {
    let dir = tempfile::tempdir().unwrap();
    let wal = Wal::open(dir.path(), Options::default()).unwrap();
    let (tx, rx) = mpsc::channel();
    let groups: Vec<_> = (0..50u8).map(|n| wal.group(&[n]).unwrap()).collect();
    for round in 1..=20u64 {
        for (n, group) in groups.iter().enumerate() {
            let position = group.append(round, &[bytes(n, 50)]).unwrap();
            let tx = tx.clone();
            wal.on_synced(position, move |result| tx.send(result.map(|()| n)).unwrap());
        }
    }
    let mut told = vec![0; groups.len()];
    for _ in 0..1000 {
        told[rx.recv_timeout(Duration::from_secs(60)).unwrap().unwrap()] += 1;
    }
    assert!(told.iter().all(|n| *n == 20), "{told:?}");
    assert!(rx.recv_timeout(Duration::from_millis(50)).is_err());
}

#[test]
fn nobody_waits_where_the_policy_is_by_time() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        sync: Sync::Every(Duration::from_secs(3600)),
        ..Options::default()
    };
    let wal = Wal::open(dir.path(), options).unwrap();
    let position = wal.group(b"k").unwrap().put(0, Bytes::from_static(b"x")).unwrap();
    let (tx, rx) = mpsc::channel();
    wal.on_synced(position, move |result| tx.send(result.is_ok()).unwrap());
    assert!(rx.try_recv().unwrap());
    drop(wal);
    let wal = Wal::open(dir.path(), Options::default()).unwrap();
    assert_eq!(wal.names(), ["k"]);
}
