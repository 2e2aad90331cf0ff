//! Reads the saved form (docs/state-format.md): proves a state with its owner's key, and lists its content.
//!
//! Nothing is unpickled: a look at a state of the owner's runs no code.

use crate::compact;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The version of the form. A number is never used twice: a state of another version is refused by its number.
pub const VERSION: u32 = 7;
const MAGIC: &[u8; 8] = b"HOPSTATE";
const START: usize = 16;
/// Proofs are keyed BLAKE3.
const KIND: &[u8; 4] = b"b3\0\0";
const MAC: usize = 32;
/// Content is cut into chunks of this many bytes (`hop_blobs::CHUNK_BYTES`).
const CHUNK: u64 = 4 * 1024 * 1024;

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
    #[error("the state has version {found} of the form, this is for version {VERSION}")]
    Version { found: u32 },
    #[error(
        "the state was saved by a kernel without libhop_tracker.so: only a kernel can read it (`hop state restore`). The library \
         belongs into lib/ of Gresshopper's installation on each node, for your administrator to add"
    )]
    Kind,
    #[error("the state is truncated, damaged, tampered with, or was saved under another key: refused")]
    Refused,
}

#[derive(Debug, Deserialize)]
struct Said {
    version: u32,
    kind: String,
    records: usize,
    length: usize,
    mac: String,
}

/// Content of a state's proven `head`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    pub records: usize,
    /// Bytes of the log that count.
    pub length: usize,
    /// Proof of the last record, in hexadecimal: unique among this owner's logs.
    pub mac: String,
    /// The head of a state in its shortest form: the newest slot, twice.
    pub raw: Vec<u8>,
}

/// A state as it lies, proven.
#[derive(Debug, Clone)]
pub struct Saved {
    pub head: Head,
    /// As many bytes as count.
    pub log: Vec<u8>,
    pub snapshot: Snapshot,
}

/// Place of a stream: in its record, or in chunks.
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
    /// Unsaved parts, each with a reason.
    pub gone: Vec<(String, String)>,
    pub notes: Vec<String>,
    pub types: Vec<String>,
    /// Seconds that writing it took.
    pub sec: f64,
    /// A hash of its stream.
    pub dig: String,
    /// `true` for an unstored variable: a restore runs its cells again.
    #[serde(default)]
    pub left: bool,
    /// Hash of the content of an unstored variable's buffers.
    #[serde(default)]
    pub tags: String,
}

impl Unit {
    /// Variables of the unit.
    pub fn names(&self) -> Vec<&str> {
        self.members.iter().filter_map(|m| m.strip_prefix("n:")).collect()
    }

    /// Length of the stream and its buffers in bytes.
    pub fn bytes(&self) -> u64 {
        self.stream.bytes() + self.buffers.iter().map(|b| b.0).sum::<u64>()
    }

    /// What tells one version from another.
    pub fn content(&self) -> (&str, &str, Vec<&[String]>) {
        let tags = if self.left { &self.tags } else { "" };
        (&self.dig, tags, self.buffers.iter().map(|b| &b.2[..]).collect())
    }
}

/// The environment at the save of a state.
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
    redo: Option<Redo>,
}

/// Data for cells that a restore runs again.
#[derive(Debug, Default, Deserialize)]
struct Redo {
    cells: Vec<Rerun>,
}

#[derive(Debug, Deserialize)]
struct Rerun {
    #[serde(default)]
    drawn: BTreeMap<String, StreamRef>,
}

/// A saved state after its last record.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    pub units: BTreeMap<u64, Unit>,
    /// Sections of the process's state.
    pub sections: BTreeMap<String, StreamRef>,
    pub environment: Environment,
    /// Seconds since 1970.
    pub saved_at: f64,
    pub records: usize,
    /// Chunks that any record refers to, and the length of their plain content in bytes.
    pub chunks: BTreeMap<String, u64>,
}

impl Snapshot {
    /// The chunks of the present variables and sections.
    pub(crate) fn live(&self) -> HashSet<&String> {
        let units = self.units.values();
        let streams = units.clone().map(|u| &u.stream).chain(self.sections.values());
        let in_chunks = streams.filter_map(|stream| match stream {
            StreamRef::Chunks { c, .. } => Some(c),
            StreamRef::Inline { .. } => None,
        });
        let buffers = units.flat_map(|unit| unit.buffers.iter().map(|b| &b.2));
        in_chunks.chain(buffers).flatten().collect()
    }

    /// Notes `bytes` bytes of content in these chunks.
    fn refer(&mut self, bytes: u64, chunks: &[String]) {
        let mut left = bytes;
        for name in chunks {
            self.chunks.insert(name.clone(), left.min(CHUNK));
            left = left.saturating_sub(CHUNK);
        }
    }
}

/// Path of the owner's key, given the environment's `XDG_CONFIG_HOME` and `HOME`.
pub fn key_path(config: Option<&Path>, home: &Path) -> PathBuf {
    config
        .map_or_else(|| home.join(".config"), Path::to_owned)
        .join("gresshopper/state.key")
}

/// Reads the owner's key.
///
/// # Errors
/// [`ReadError::Key`] for a missing key, another's key, or a key open to others.
pub fn owner_key(path: &Path, uid: u32) -> Result<[u8; 32], ReadError> {
    let failed = |why: String| ReadError::Key {
        path: path.to_owned(),
        why,
    };
    let found = fs::symlink_metadata(path).map_err(|e| failed(e.to_string()))?;
    if !found.is_file() || found.uid() != uid {
        return Err(failed("it isn't a file of yours".to_owned()));
    }
    if found.mode() & 0o077 != 0 {
        return Err(failed("it is open to other users".to_owned()));
    }
    let raw = fs::read(path).map_err(|e| failed(e.to_string()))?;
    raw.try_into()
        .map_err(|_| failed("it isn't 32 bytes long".to_owned()))
}

/// Reads and proves a state.
///
/// # Errors
/// [`ReadError`]; nothing of a state that isn't proven is returned.
pub fn read(directory: &Path, key: &[u8; 32], uid: u32) -> Result<Snapshot, ReadError> {
    load(directory, key, uid).map(|saved| saved.snapshot)
}

/// Reads and proves a state, and keeps the bytes read.
///
/// # Errors
/// [`ReadError`]; nothing of a state that isn't proven is returned.
pub fn load(directory: &Path, key: &[u8; 32], uid: u32) -> Result<Saved, ReadError> {
    let missing = |source| ReadError::Missing {
        path: directory.to_owned(),
        source,
    };
    must_be_own(directory, uid)?;
    let head = fs::read(directory.join("head")).map_err(missing)?;
    let log = fs::read(directory.join("log")).map_err(missing)?;
    prove(&head, log, key)
}

/// Proves a state that lies elsewhere than in a directory.
///
/// # Errors
/// [`ReadError`]; nothing of a state that isn't proven is returned.
pub fn prove(head: &[u8], mut log: Vec<u8>, key: &[u8; 32]) -> Result<Saved, ReadError> {
    let head = prove_head(head, key)?;
    let (snapshot, _) = counted(&head, &log, key)?;
    log.truncate(head.length);
    Ok(Saved { head, log, snapshot })
}

/// The part of a log that counts by a head, proven, and its last proof.
fn counted(head: &Head, log: &[u8], key: &[u8; 32]) -> Result<(Snapshot, [u8; MAC]), ReadError> {
    let log = log.get(..head.length).ok_or(ReadError::Refused)?;
    let mut snapshot = Snapshot::default();
    let mac = replay(log, key, &mut snapshot)?;
    if hex::encode(mac) != head.mac || snapshot.records != head.records {
        return Err(ReadError::Refused);
    }
    Ok((snapshot, mac))
}

/// Refuses a folder of another user.
fn must_be_own(folder: &Path, uid: u32) -> Result<(), ReadError> {
    let path = || folder.to_owned();
    let found = fs::metadata(folder).map_err(|source| ReadError::Missing { path: path(), source })?;
    if found.uid() == uid {
        Ok(())
    } else {
        Err(ReadError::Stranger { path: path() })
    }
}

/// Length of each of the two places in `head`, which are written in turns: a torn write leaves the other.
pub(crate) const SLOT: usize = 512;

/// Length of a `head`.
pub const HEAD: usize = 2 * SLOT;

/// Proves a `head`, and returns the content of its newest slot.
///
/// # Errors
/// [`ReadError`] but for [`ReadError::Missing`] and [`ReadError::Stranger`].
pub fn prove_head(raw: &[u8], key: &[u8; 32]) -> Result<Head, ReadError> {
    if raw.len() != HEAD {
        return Err(ReadError::Refused);
    }
    match (read_slot(&raw[..SLOT], key), read_slot(&raw[SLOT..], key)) {
        (Ok(a), Ok(b)) => Ok(if a.records > b.records { a } else { b }),
        (Ok(head), Err(_)) | (Err(_), Ok(head)) => Ok(head),
        (Err(e), Err(_)) => Err(e),
    }
}

fn read_slot(raw: &[u8], key: &[u8; 32]) -> Result<Head, ReadError> {
    let lines: Vec<&[u8]> = raw.split(|&b| b == b'\n').collect();
    let [text, proof, _padding] = lines[..] else {
        return Err(ReadError::Refused);
    };
    let said: Said = serde_json::from_slice(text).map_err(|_| ReadError::Refused)?;
    if said.version != VERSION {
        return Err(ReadError::Version { found: said.version });
    }
    if said.kind != hex::encode(KIND) {
        return Err(ReadError::Kind);
    }
    let proof = blake3::Hash::from_hex(proof).map_err(|_| ReadError::Refused)?;
    // blake3's comparison takes the same time whatever differs.
    if blake3::keyed_hash(key, &[b"head", text].concat()) != proof {
        return Err(ReadError::Refused);
    }
    Ok(Head {
        records: said.records,
        length: said.length,
        mac: said.mac,
        raw: raw.repeat(2),
    })
}

/// Set in the length of a part that is compressed.
const DEFLATED: u64 = 1 << 63;

fn number(raw: &[u8]) -> Result<(usize, bool), ReadError> {
    let raw = u64::from_le_bytes(raw.try_into().map_err(|_| ReadError::Refused)?);
    let length = usize::try_from(raw & !DEFLATED).map_err(|_| ReadError::Refused)?;
    Ok((length, raw & DEFLATED != 0))
}

fn inflated(part: &[u8], deflated: bool) -> Result<Cow<'_, [u8]>, ReadError> {
    if !deflated {
        return Ok(Cow::Borrowed(part));
    }
    let mut whole = Vec::new();
    flate2::read::ZlibDecoder::new(part)
        .read_to_end(&mut whole)
        .map_err(|_| ReadError::Refused)?;
    Ok(Cow::Owned(whole))
}

fn replay(log: &[u8], key: &[u8; 32], snapshot: &mut Snapshot) -> Result<[u8; MAC], ReadError> {
    each(log, key, |said, _| {
        apply(
            serde_json::from_slice(said).map_err(|_| ReadError::Refused)?,
            snapshot,
        );
        Ok(())
    })
}

/// The records of a log whose last proof is `mac`, proven.
///
/// # Errors
/// [`ReadError::Refused`].
pub(crate) fn records(log: &[u8], key: &[u8; 32], mac: &str) -> Result<Vec<compact::Record>, ReadError> {
    let mut records = Vec::new();
    let found = each(log, key, |said, body| {
        let said = serde_json::from_slice(said).map_err(|_| ReadError::Refused)?;
        let body = body.to_vec();
        records.push(compact::Record { said, body });
        Ok(())
    })?;
    if hex::encode(found) != mac {
        return Err(ReadError::Refused);
    }
    Ok(records)
}

/// Proves the records of a log one after the other, and hands out the text and body of each. The last one's proof.
fn each(
    log: &[u8],
    key: &[u8; 32],
    mut found_one: impl FnMut(&[u8], &[u8]) -> Result<(), ReadError>,
) -> Result<[u8; MAC], ReadError> {
    let start = log.get(..START).ok_or(ReadError::Refused)?;
    if &start[..8] != MAGIC {
        return Err(ReadError::Refused);
    }
    let mut mac = *blake3::keyed_hash(key, start).as_bytes();
    let mut rest = &log[START..];
    while !rest.is_empty() {
        let record = proven(&mac, rest, key)?;
        found_one(&record.text()?, &record.body()?)?;
        (mac, rest) = (record.mac, record.rest);
    }
    Ok(mac)
}

/// A proven record as it lies in the log.
struct Framed<'a> {
    text: (&'a [u8], bool),
    body: (&'a [u8], bool),
    mac: [u8; MAC],
    /// What follows it in the log.
    rest: &'a [u8],
}

impl Framed<'_> {
    fn text(&self) -> Result<Cow<'_, [u8]>, ReadError> {
        inflated(self.text.0, self.text.1)
    }

    fn body(&self) -> Result<Cow<'_, [u8]>, ReadError> {
        inflated(self.body.0, self.body.1)
    }
}

/// The first record here, which follows on the record with the proof `before`.
fn proven<'a>(before: &[u8; MAC], log: &'a [u8], key: &[u8; 32]) -> Result<Framed<'a>, ReadError> {
    let (text, text_deflated) = number(log.get(..8).ok_or(ReadError::Refused)?)?;
    let (body, body_deflated) = number(log.get(8..16).ok_or(ReadError::Refused)?)?;
    let end = text
        .checked_add(body)
        .and_then(|n| n.checked_add(16))
        .ok_or(ReadError::Refused)?;
    let framed = log.get(..end).ok_or(ReadError::Refused)?;
    let proof = log.get(end..end + MAC).ok_or(ReadError::Refused)?;
    let proof = blake3::Hash::from_slice(proof).map_err(|_| ReadError::Refused)?;
    let found = blake3::keyed_hash(key, &[&before[..], framed].concat());
    if found != proof {
        return Err(ReadError::Refused);
    }
    let (text, body) = framed[16..].split_at(text);
    Ok(Framed {
        text: (text, text_deflated),
        body: (body, body_deflated),
        mac: *found.as_bytes(),
        rest: &log[end + MAC..],
    })
}

/// The chunks that the log in a folder refers to, also in records that don't count yet: their writer may be about to
/// make them count. A folder without a log refers to nothing.
///
/// # Errors
/// [`ReadError`]: what the log needs is unknown.
pub fn named(folder: &Path, key: &[u8; 32], uid: u32) -> Result<BTreeMap<String, u64>, ReadError> {
    let failed = |source| ReadError::Missing {
        path: folder.to_owned(),
        source,
    };
    must_be_own(folder, uid)?;
    let read = |name| match fs::read(folder.join(name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some).map_err(failed),
    };
    // The head comes first: the log only grows meanwhile.
    let head = read("head")?;
    let log = match (read("log")?, &head) {
        (Some(log), _) => log,
        (None, None) => return Ok(BTreeMap::new()),
        (None, Some(_)) => return Err(ReadError::Refused),
    };
    let (mut snapshot, mut mac, counted) = match head {
        Some(head) => {
            let head = prove_head(&head, key)?;
            let (snapshot, mac) = counted(&head, &log, key)?;
            (snapshot, mac, head.length)
        }
        // Its first record isn't whole yet.
        None if log.len() < START => return Ok(BTreeMap::new()),
        None if log[..START] == start() => {
            let mac = *blake3::keyed_hash(key, &log[..START]).as_bytes();
            (Snapshot::default(), mac, START)
        }
        None => return Err(ReadError::Refused),
    };
    let mut rest = &log[counted..];
    while let Ok(record) = proven(&mac, rest, key) {
        let said = serde_json::from_slice(&record.text()?).map_err(|_| ReadError::Refused)?;
        apply(said, &mut snapshot);
        (mac, rest) = (record.mac, record.rest);
    }
    Ok(snapshot.chunks)
}

fn apply(record: Record, snapshot: &mut Snapshot) {
    if record.full {
        snapshot.units.clear();
        snapshot.sections.clear();
    }
    for id in record.gone {
        snapshot.units.remove(&id);
    }
    let cells = record.redo.into_iter().flat_map(|redo| redo.cells);
    let drawn: Vec<StreamRef> = cells.flat_map(|cell| cell.drawn.into_values()).collect();
    let streams = record.units.iter().map(|u| &u.stream);
    for stream in streams.chain(record.process.values()).chain(&drawn) {
        if let StreamRef::Chunks { n, c } = stream {
            snapshot.refer(*n, c);
        }
    }
    for unit in record.units {
        for (bytes, _, chunks) in &unit.buffers {
            snapshot.refer(*bytes, chunks);
        }
        snapshot.units.insert(unit.id, unit);
    }
    snapshot.sections.extend(record.process);
    snapshot.environment = record
        .env
        .unwrap_or_else(|| std::mem::take(&mut snapshot.environment));
    snapshot.saved_at = record.at;
    snapshot.records += 1;
}

/// The content in chunks that a log refers to, kept up record by record.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    snapshot: Snapshot,
}

impl Contents {
    /// Takes a further record in. `false` means that it isn't as the form says.
    pub(crate) fn add(&mut self, text: &[u8]) -> bool {
        let record = serde_json::from_slice(text);
        record.map(|said| apply(said, &mut self.snapshot)).is_ok()
    }

    /// As [`Contents::add`], for a record that is parsed already.
    pub(crate) fn take(&mut self, said: &serde_json::Map<String, serde_json::Value>) -> bool {
        let record = Record::deserialize(said);
        record.map(|said| apply(said, &mut self.snapshot)).is_ok()
    }

    /// Bytes of the chunks of the present variables and sections, and of all other chunks.
    pub(crate) fn live_and_garbage(&self) -> (u64, u64) {
        let bytes = |name: &String| self.snapshot.chunks.get(name).copied().unwrap_or(0);
        let live: u64 = self.snapshot.live().into_iter().map(bytes).sum();
        let all: u64 = self.snapshot.chunks.values().sum();
        (live, all - live)
    }
}

// Writing.

/// The start of a log.
pub(crate) fn start() -> [u8; START] {
    let mut start = [0; START];
    start[..8].copy_from_slice(MAGIC);
    start[8..12].copy_from_slice(&VERSION.to_le_bytes());
    start[12..].copy_from_slice(KIND);
    start
}

/// A record as stored in the log, without its proof. Parts longer than `small` are compressed if that makes them
/// shorter.
pub(crate) fn framed(text: &[u8], body: &[u8], small: usize) -> Vec<u8> {
    let (text, body) = (deflated(text, small), Part(Cow::Borrowed(body), false));
    [&sizes(&text, &body)[..], &text.0, &body.0].concat()
}

/// A part of a record as it lies in a log, and whether it is compressed.
pub(crate) struct Part<'a>(pub(crate) Cow<'a, [u8]>, bool);

/// The lengths of a record's parts, which go before them.
pub(crate) fn sizes(text: &Part<'_>, body: &Part<'_>) -> [u8; 16] {
    let mut sizes = [0; 16];
    for (place, part) in sizes.chunks_exact_mut(8).zip([text, body]) {
        let flag = if part.1 { DEFLATED } else { 0 };
        place.copy_from_slice(&(part.0.len() as u64 | flag).to_le_bytes());
    }
    sizes
}

/// A part, compressed if it is longer than `small` and that makes it shorter.
pub(crate) fn deflated(part: &[u8], small: usize) -> Part<'_> {
    if part.len() <= small {
        return Part(Cow::Borrowed(part), false);
    }
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    let packed = encoder.write_all(part).and_then(|()| encoder.finish());
    match packed {
        Ok(packed) if packed.len() < part.len() => Part(Cow::Owned(packed), true),
        _ => Part(Cow::Borrowed(part), false),
    }
}

/// One of a head's two slots.
pub(crate) fn slot(key: &[u8; 32], records: u64, length: u64, mac: &blake3::Hash) -> Vec<u8> {
    let said = serde_json::json!({
        "version": VERSION, "kind": hex::encode(KIND), "records": records, "length": length,
        "mac": mac.to_hex().as_str(),
    });
    let text = said.to_string().into_bytes();
    let proof = blake3::keyed_hash(key, &[b"head", &text[..]].concat()).to_hex();
    let mut slot = [&text[..], b"\n", proof.as_bytes(), b"\n"].concat();
    slot.resize(SLOT, b' ');
    slot
}

/// Number of records in the first `length` bytes of a log with the last proof `mac`. `None` means no record's end
/// there, or another proof. The records themselves are not proven.
pub(crate) fn count_records(log: &fs::File, length: u64, mac: &[u8; MAC]) -> Option<u64> {
    let (mut at, mut records) = (START as u64, 0);
    while at < length {
        let mut sizes = [0; 16];
        log.read_exact_at(&mut sizes, at).ok()?;
        let (text, _) = number(&sizes[..8]).ok()?;
        let (body, _) = number(&sizes[8..]).ok()?;
        let size = (text as u64).checked_add(body as u64)?;
        at = at.checked_add(size)?.checked_add(16 + MAC as u64)?;
        records += 1;
    }
    let mut found = [0; MAC];
    log.read_exact_at(&mut found, length.checked_sub(MAC as u64)?)
        .ok()?;
    (at == length && records > 0 && found == *mac).then_some(records)
}

/// How a group differs between two states.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Difference {
    Added,
    Removed,
    Changed,
}

/// Variables different between two states, with their bytes in the later state.
pub fn differences(before: &Snapshot, after: &Snapshot) -> BTreeMap<String, (Difference, u64)> {
    let by_name = |s: &Snapshot| -> BTreeMap<String, Unit> {
        s.units
            .values()
            .flat_map(|u| {
                u.names()
                    .into_iter()
                    .map(|n| (n.to_owned(), u.clone()))
                    .collect::<Vec<_>>()
            })
            .collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 32] = [7; 32];

    fn unit(name: &str, dig: &str) -> String {
        format!(
            r#"{{"u":1,"m":["n:{name}"],"s":{{"in":[0,4]}},"b":[[9,0,["aa"]]],"f":[],"c":[],"t":[],"gone":[],"notes":[],"types":[],"cell":1,"sec":0.5,"dig":"{dig}"}}"#
        )
    }

    fn record(mac: &mut [u8; 32], units: &str) -> Vec<u8> {
        let text = format!(
            r#"{{"full":false,"at":1.0,"cell":null,"units":[{units}],"gone":[],"process":{{}},"env":null}}"#
        );
        let mut framed = (text.len() as u64).to_le_bytes().to_vec();
        framed.extend(4u64.to_le_bytes());
        framed.extend(text.as_bytes());
        framed.extend(b"body");
        *mac = *blake3::keyed_hash(&KEY, &[&mac[..], &framed].concat()).as_bytes();
        framed.extend(*mac);
        framed
    }

    fn state(units: &[String]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let mut log = b"HOPSTATE".to_vec();
        log.extend(1u32.to_le_bytes());
        log.extend(b"b3\0\0");
        let mut mac = *blake3::keyed_hash(&KEY, &log).as_bytes();
        for unit in units {
            log.extend(record(&mut mac, unit));
        }
        let head = format!(
            r#"{{"version":7,"kind":"{}","records":{},"length":{},"mac":"{}"}}"#,
            hex::encode(KIND),
            units.len(),
            log.len(),
            hex::encode(mac)
        );
        let proof = blake3::keyed_hash(&KEY, &[b"head", head.as_bytes()].concat());
        fs::write(dir.path().join("log"), &log).unwrap();
        let slot = format!("{:<512}", format!("{head}\n{}\n", proof.to_hex()));
        fs::write(dir.path().join("head"), slot.repeat(2)).unwrap();
        dir
    }

    fn me(dir: &tempfile::TempDir) -> u32 {
        fs::metadata(dir.path()).unwrap().uid()
    }

    #[test]
    fn a_proven_state_is_read() {
        let dir = state(&[unit("x", "00"), unit("y", "01")]);
        let read = read(dir.path(), &KEY, me(&dir)).unwrap();
        assert_eq!(read.records, 2);
        assert_eq!(read.units[&1].names(), ["y"]);
        assert_eq!(read.units[&1].bytes(), 13);
        assert_eq!(read.chunks, BTreeMap::from([("aa".to_owned(), 9)]));
    }

    #[test]
    fn each_changed_byte_and_each_cut_is_refused() {
        let dir = state(&[unit("x", "00")]);
        let uid = me(&dir);
        let path = dir.path().join("log");
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(&path, &changed).unwrap();
            assert!(read(dir.path(), &KEY, uid).is_err(), "byte {at}");
            fs::write(&path, &whole[..at]).unwrap();
            assert!(read(dir.path(), &KEY, uid).is_err(), "cut at {at}");
        }
        fs::write(&path, &whole).unwrap();
        let path = dir.path().join("head");
        let whole = fs::read(&path).unwrap();
        let text = whole.iter().position(|&b| b == b' ').unwrap();
        for at in 0..text {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(&path, &changed).unwrap();
            assert!(
                read(dir.path(), &KEY, uid).is_ok(),
                "one torn place leaves the other"
            );
            changed[SLOT + at] ^= 1;
            fs::write(&path, &changed).unwrap();
            assert!(read(dir.path(), &KEY, uid).is_err(), "head byte {at}");
            fs::write(&path, &whole[..at]).unwrap();
            assert!(read(dir.path(), &KEY, uid).is_err(), "head cut at {at}");
        }
        fs::write(&path, &whole).unwrap();
        assert!(read(dir.path(), &KEY, uid).is_ok());
        assert!(matches!(read(dir.path(), &[8; 32], uid), Err(ReadError::Refused)));
        assert!(matches!(
            read(dir.path(), &KEY, uid + 1),
            Err(ReadError::Stranger { .. })
        ));
    }

    #[test]
    fn what_was_added_behind_the_head_does_not_count() {
        let dir = state(&[unit("x", "00")]);
        let path = dir.path().join("log");
        let mut log = fs::read(&path).unwrap();
        log.extend(b"half a record");
        fs::write(&path, log).unwrap();
        assert_eq!(read(dir.path(), &KEY, me(&dir)).unwrap().records, 1);
    }

    #[test]
    fn differences_are_by_name_and_content() {
        let at = |u: &[String]| {
            let dir = state(u);
            read(dir.path(), &KEY, me(&dir)).unwrap()
        };
        let (x, changed, y) = (
            at(&[unit("x", "00")]),
            at(&[unit("x", "01")]),
            at(&[unit("y", "00")]),
        );
        assert_eq!(differences(&x, &x), BTreeMap::new());
        assert_eq!(differences(&x, &changed)["x"].0, Difference::Changed);
        let moved = differences(&x, &y);
        assert_eq!(
            (&moved["x"].0, &moved["y"].0),
            (&Difference::Removed, &Difference::Added)
        );
    }
}
