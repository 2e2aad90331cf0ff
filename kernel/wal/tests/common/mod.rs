//! Random operations on a log, and a plain model of what it must hold.

#![allow(
    dead_code,
    unreachable_pub,
    missing_debug_implementations,
    clippy::unwrap_used,
    reason = "each test uses a part of it"
)]

use bytes::Bytes;
use hop_wal::{Group, Options, Wal};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Debug, Clone)]
pub enum Op {
    Append { group: usize, entries: Vec<usize> },
    Put { group: usize, slot: u64, size: usize },
    Truncate { group: usize, back: u64 },
    Purge { group: usize, forward: u64 },
    Close { group: usize },
}

pub fn ops(max: usize, largest: usize) -> impl Strategy<Value = Vec<Op>> {
    let group = 0usize..3;
    let op = prop_oneof![
        6 => (group.clone(), proptest::collection::vec(0..largest, 1..4)).prop_map(|(group, entries)| Op::Append { group, entries }),
        3 => (group.clone(), 0u64..3, 0..largest).prop_map(|(group, slot, size)| Op::Put { group, slot, size }),
        2 => (group.clone(), 0u64..4).prop_map(|(group, back)| Op::Truncate { group, back }),
        2 => (group.clone(), 0u64..4).prop_map(|(group, forward)| Op::Purge { group, forward }),
        1 => group.prop_map(|group| Op::Close { group }),
    ];
    proptest::collection::vec(op, 1..max)
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    pub slots: BTreeMap<u64, Bytes>,
    pub entries: BTreeMap<u64, Bytes>,
    pub purged: Option<u64>,
}

/// All groups by their names.
pub type Model = BTreeMap<String, Content>;

pub fn name(group: usize) -> String {
    format!("kernel-{group}/0")
}

pub fn small(segment: u64) -> Options {
    Options {
        segment,
        spare: 2,
        ..Options::default()
    }
}

/// The content of the log in a folder.
pub fn content(wal: &Wal) -> Model {
    let read = |name: Bytes| {
        let group = wal.group(&name).unwrap();
        let content = group
            .read(|g| Content {
                slots: (0..4).filter_map(|s| Some((s, g.slot(s)?.clone()))).collect(),
                entries: g.entries(..).map(|(i, e)| (i, e.clone())).collect(),
                purged: g.purged(),
            })
            .unwrap();
        (String::from_utf8(name.to_vec()).unwrap(), content)
    };
    wal.names().into_iter().map(read).collect()
}

pub fn bytes(seed: usize, size: usize) -> Bytes {
    (0..size).map(|i| (seed * 31 + i * 7) as u8).collect()
}

/// Does the operation on both. A group is opened with its first use.
pub fn perform(wal: &Wal, model: &mut Model, op: &Op, seed: usize) {
    let number = match op {
        Op::Append { group, .. }
        | Op::Put { group, .. }
        | Op::Truncate { group, .. }
        | Op::Purge { group, .. }
        | Op::Close { group } => *group,
    };
    let group = wal.group(name(number).as_bytes()).unwrap();
    let content = model.entry(name(number)).or_default();
    let last = content
        .entries
        .last_key_value()
        .map(|(i, _)| *i)
        .max(content.purged);
    match op {
        Op::Append { entries, .. } => {
            let first = last.map_or(1, |l| l + 1);
            let entries: Vec<Bytes> = entries.iter().map(|size| bytes(seed, *size)).collect();
            group.append(first, &entries).unwrap();
            content.entries.extend((first..).zip(entries));
        }
        Op::Put { slot, size, .. } => {
            let value = bytes(seed, *size);
            group.put(*slot, value.clone()).unwrap();
            content.slots.insert(*slot, value);
        }
        Op::Truncate { back, .. } => {
            let from = last
                .unwrap_or(0)
                .saturating_sub(*back)
                .max(content.purged.map_or(1, |p| p + 1));
            group.truncate(from).unwrap();
            content.entries.split_off(&from);
        }
        Op::Purge { forward, .. } => {
            let upto = (content.purged.unwrap_or(0) + forward).min(last.unwrap_or(0));
            group.purge(upto).unwrap();
            content.entries = content.entries.split_off(&(upto + 1));
            content.purged = Some(upto);
        }
        Op::Close { .. } => {
            group.close().unwrap();
            model.remove(&name(number));
        }
    }
}

/// Waits until everything that was written is synced.
pub fn sync(wal: &Wal, group: &Group) {
    let position = group.put(3, Bytes::from_static(b"synced")).unwrap();
    let (tx, rx) = std::sync::mpsc::channel();
    wal.on_synced(position, move |result| tx.send(result).unwrap());
    rx.recv().unwrap().unwrap();
}

/// The segments in a folder, the oldest first.
pub fn segments(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut paths: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "wal"))
        .collect();
    paths.sort();
    paths
}
