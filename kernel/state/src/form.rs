//! Reads the saved form (docs/state-format.md): proves it with its owner's key, and says what is in it.
//!
//! It doesn't unpickle, so it can look at any state of its owner's without running anything.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The version of the form that this reads.
pub const VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"HOPSTATE";
const START: usize = 16;
const MAC: usize = 32;

/// Why a saved state can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("there is no saved state in {path}")]
    Missing {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the key {path} can't be used: {why}")]
    Key { path: PathBuf, why: String },
    #[error("{path} belongs to another user")]
    Stranger { path: PathBuf },
    #[error("the state has version {found} of the form, this is for {VERSION}")]
    Version { found: u32 },
    #[error("the state was written without the native library; only a kernel can read it")]
    Kind,
    #[error("the state is truncated, damaged, tampered with, or was saved under another key: refused")]
    Refused,
}

#[derive(Debug, Deserialize)]
struct Head {
    version: u32,
    kind: String,
    records: usize,
    length: usize,
    mac: String,
}

/// Where a stream lies: in its record, or in chunks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StreamRef {
    Inline {
        #[serde(rename = "in")]
        place: (u64, u64),
    },
    Chunks {
        n: u64,
        c: Vec<String>,
    },
}

impl StreamRef {
    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Inline { place } => place.1,
            Self::Chunks { n, .. } => *n,
        }
    }
}

/// A group of variables as a record holds it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Unit {
    #[serde(rename = "u")]
    pub id: u64,
    /// `n:` and a variable's name, or `c:` and a class's id.
    #[serde(rename = "m")]
    pub members: Vec<String>,
    #[serde(rename = "s")]
    pub stream: StreamRef,
    /// Length in bytes, 1 if it holds the items of an array of objects, and the chunks.
    #[serde(rename = "b")]
    pub buffers: Vec<(u64, u8, Vec<String>)>,
    /// What of it couldn't be saved, and why.
    pub gone: Vec<(String, String)>,
    pub notes: Vec<String>,
    pub types: Vec<String>,
    /// Seconds that writing it took.
    pub sec: f64,
    /// A hash of its stream.
    pub dig: String,
}

impl Unit {
    /// Its variables.
    pub fn names(&self) -> Vec<&str> {
        self.members.iter().filter_map(|m| m.strip_prefix("n:")).collect()
    }

    /// Length of its stream and buffers in bytes.
    pub fn bytes(&self) -> u64 {
        self.stream.bytes() + self.buffers.iter().map(|b| b.0).sum::<u64>()
    }

    /// What tells one version from another.
    pub fn content(&self) -> (&str, Vec<&[String]>) {
        (&self.dig, self.buffers.iter().map(|b| &b.2[..]).collect())
    }
}

/// The environment that a state was saved in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Environment {
    pub python: String,
    pub packages: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
struct Record {
    #[serde(default)]
    full: bool,
    at: f64,
    units: Vec<Unit>,
    gone: Vec<u64>,
    process: BTreeMap<String, StreamRef>,
    env: Option<Environment>,
}

/// A saved state as its last record leaves it.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    pub units: BTreeMap<u64, Unit>,
    /// Sections of the process's state.
    pub sections: BTreeMap<String, StreamRef>,
    pub environment: Environment,
    /// Seconds since 1970.
    pub saved_at: f64,
    pub records: usize,
    /// Chunks that any record refers to.
    pub chunks: BTreeSet<String>,
}

/// Where the owner's key lies, given the environment's `XDG_CONFIG_HOME` and `HOME`.
pub fn key_path(config: Option<&Path>, home: &Path) -> PathBuf {
    config.map_or_else(|| home.join(".config"), Path::to_owned).join("gresshopper/state.key")
}

/// Reads the owner's key.
///
/// # Errors
/// [`ReadError::Key`] when it isn't there, is another's or open to others.
pub fn owner_key(path: &Path, uid: u32) -> Result<[u8; 32], ReadError> {
    let failed = |why: String| ReadError::Key { path: path.to_owned(), why };
    let found = fs::symlink_metadata(path).map_err(|e| failed(e.to_string()))?;
    if !found.is_file() || found.uid() != uid {
        return Err(failed("it isn't a file of yours".to_owned()));
    }
    if found.mode() & 0o077 != 0 {
        return Err(failed("it is open to other users".to_owned()));
    }
    let raw = fs::read(path).map_err(|e| failed(e.to_string()))?;
    raw.try_into().map_err(|_| failed("it isn't 32 bytes long".to_owned()))
}

/// Reads and proves a state.
///
/// # Errors
/// [`ReadError`]; nothing of a state that isn't proven is returned.
pub fn read(directory: &Path, key: &[u8; 32], uid: u32) -> Result<Snapshot, ReadError> {
    let missing = |source| ReadError::Missing { path: directory.to_owned(), source };
    let found = fs::metadata(directory).map_err(missing)?;
    if found.uid() != uid {
        return Err(ReadError::Stranger { path: directory.to_owned() });
    }
    let head = read_head(&fs::read(directory.join("head")).map_err(missing)?, key)?;
    let log = fs::read(directory.join("log")).map_err(missing)?;
    let log = log.get(..head.length).ok_or(ReadError::Refused)?;
    let mut snapshot = Snapshot::default();
    let mac = replay(log, key, &mut snapshot)?;
    if hex::encode(mac) != head.mac || snapshot.records != head.records {
        return Err(ReadError::Refused);
    }
    Ok(snapshot)
}

fn read_head(raw: &[u8], key: &[u8; 32]) -> Result<Head, ReadError> {
    let mut lines = raw.split(|&b| b == b'\n');
    let (text, proof) = lines.next().zip(lines.next()).ok_or(ReadError::Refused)?;
    let head: Head = serde_json::from_slice(text).map_err(|_| ReadError::Refused)?;
    if head.version != VERSION {
        return Err(ReadError::Version { found: head.version });
    }
    if head.kind != hex::encode(b"b3\0\0") {
        return Err(ReadError::Kind);
    }
    let proof = blake3::Hash::from_hex(proof).map_err(|_| ReadError::Refused)?;
    // blake3's comparison takes the same time whatever differs.
    if blake3::keyed_hash(key, &[b"head", text].concat()) == proof { Ok(head) } else { Err(ReadError::Refused) }
}

fn number(raw: &[u8]) -> Result<usize, ReadError> {
    let raw: [u8; 8] = raw.try_into().map_err(|_| ReadError::Refused)?;
    usize::try_from(u64::from_le_bytes(raw)).map_err(|_| ReadError::Refused)
}

fn replay(log: &[u8], key: &[u8; 32], snapshot: &mut Snapshot) -> Result<[u8; MAC], ReadError> {
    let start = log.get(..START).ok_or(ReadError::Refused)?;
    if &start[..8] != MAGIC {
        return Err(ReadError::Refused);
    }
    let mut mac = *blake3::keyed_hash(key, start).as_bytes();
    let mut rest = &log[START..];
    while !rest.is_empty() {
        let text = number(rest.get(..8).ok_or(ReadError::Refused)?)?;
        let body = number(rest.get(8..16).ok_or(ReadError::Refused)?)?;
        let end = text.checked_add(body).and_then(|n| n.checked_add(16)).ok_or(ReadError::Refused)?;
        let framed = rest.get(..end).ok_or(ReadError::Refused)?;
        let proof = rest.get(end..end + MAC).ok_or(ReadError::Refused)?;
        let proof = blake3::Hash::from_slice(proof).map_err(|_| ReadError::Refused)?;
        let found = blake3::keyed_hash(key, &[&mac[..], framed].concat());
        if found != proof {
            return Err(ReadError::Refused);
        }
        mac = *found.as_bytes();
        apply(serde_json::from_slice(&framed[16..16 + text]).map_err(|_| ReadError::Refused)?, snapshot);
        rest = &rest[end + MAC..];
    }
    Ok(mac)
}

fn apply(record: Record, snapshot: &mut Snapshot) {
    if record.full {
        snapshot.units.clear();
        snapshot.sections.clear();
    }
    for id in record.gone {
        snapshot.units.remove(&id);
    }
    let streams = record.units.iter().map(|u| &u.stream).chain(record.process.values());
    for stream in streams {
        if let StreamRef::Chunks { c, .. } = stream {
            snapshot.chunks.extend(c.iter().cloned());
        }
    }
    for unit in record.units {
        snapshot.chunks.extend(unit.buffers.iter().flat_map(|b| b.2.iter().cloned()));
        snapshot.units.insert(unit.id, unit);
    }
    snapshot.sections.extend(record.process);
    snapshot.environment = record.env.unwrap_or_else(|| std::mem::take(&mut snapshot.environment));
    snapshot.saved_at = record.at;
    snapshot.records += 1;
}

/// How a group differs between two states.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Difference {
    Added,
    Removed,
    Changed,
}

/// Variables that differ between two states, with the bytes that they hold in the later one.
pub fn differences(before: &Snapshot, after: &Snapshot) -> BTreeMap<String, (Difference, u64)> {
    let by_name = |s: &Snapshot| -> BTreeMap<String, Unit> {
        s.units.values().flat_map(|u| u.names().into_iter().map(|n| (n.to_owned(), u.clone())).collect::<Vec<_>>()).collect()
    };
    let (old, new) = (by_name(before), by_name(after));
    let mut found = BTreeMap::new();
    for (name, unit) in &new {
        match old.get(name) {
            None => {
                found.insert(name.clone(), (Difference::Added, unit.bytes()));
            }
            Some(was) if was.content() != unit.content() || was.members != unit.members => {
                found.insert(name.clone(), (Difference::Changed, unit.bytes()));
            }
            Some(_) => {}
        }
    }
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        found.insert(name.clone(), (Difference::Removed, 0));
    }
    found
}
