//! Writes the log of a kernel whose supervisor keeps it, and writes it anew, shorter, once it has grown long
//! (docs/state-format.md). The files are [`crate::log`]'s. The text and the streams of a record are the in-kernel
//! agent's; this never looks into them.

use crate::compact;
use crate::form::{self, Contents};
use crate::log::{Compress, Key, Log, Position, SMALL, WriteError, new_file};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The size of a piece in which a log is copied.
const PIECE: usize = 1 << 20;

/// Length up to which a log is never compacted.
const SHORT: u64 = 1 << 20;

/// Bytes of content in chunks for which alone no log is compacted.
const LITTLE: u64 = 256 << 20;

/// The part of a log that is on disk and counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Bytes of the log that count.
    pub length: u64,
    /// The last record's proof, in hexadecimal.
    pub mac: String,
}

/// The log of one state, open for adding by a single process.
#[derive(Debug)]
pub struct Writer {
    log: Log,
    /// The content that the log's records name. `None` means that a record isn't of the known form.
    contents: Option<Contents>,
    /// Length at which compaction is considered.
    long: u64,
    /// Bytes of content that only replaced versions need, at which compaction is considered.
    much: u64,
}

impl Writer {
    /// Begins an empty log, in place of an existing one.
    ///
    /// # Errors
    /// The file system's.
    pub fn create(folder: &Path, key: &Key) -> Result<Self, WriteError> {
        Ok(Self {
            log: Log::create(folder, key)?,
            contents: Some(Contents::default()),
            long: SHORT,
            much: LITTLE,
        })
    }

    /// Begins a log with all records of another one, as far as `length`, where the last record's proof is `mac`.
    ///
    /// # Errors
    /// The other log is shorter, has another proof there, or can't be read.
    pub fn go_on(
        folder: &Path,
        key: &Key,
        source: &Path,
        length: u64,
        mac: &str,
    ) -> Result<Self, WriteError> {
        let records = proven(key, source, length, mac).ok();
        let contents = records.and_then(|records| contents_of(&records));
        Self::copied(folder, key, source, (length, mac), contents)
    }

    /// As [`Writer::go_on`], where the contents are known.
    fn copied(
        folder: &Path,
        key: &Key,
        source: &Path,
        (length, mac): (u64, &str),
        contents: Option<Contents>,
    ) -> Result<Self, WriteError> {
        let damaged = || WriteError::Source {
            path: source.to_owned(),
        };
        let mac = blake3::Hash::from_hex(mac).map_err(|_| damaged())?;
        let from = File::open(source.join("log")).map_err(|_| damaged())?;
        let records = form::count_records(&from, length, mac.as_bytes()).ok_or_else(damaged)?;
        let log = new_file(folder, "log")?;
        copy(&from, &log, length).map_err(|source| WriteError::Io {
            path: folder.join("log"),
            source,
        })?;
        let at = Position { length, records, mac };
        let mut writer = Self {
            log: Log::over(folder, key, log, at),
            contents,
            long: 0,
            much: 0,
        };
        writer.stays_as_it_is();
        writer.long = SHORT.max(length + length / 8);
        Ok(writer)
    }

    /// As [`Writer::go_on`], without what nothing needs any more if that is more than half of the log, or of the content
    /// named by it.
    ///
    /// # Errors
    /// As [`Writer::go_on`], and a record of the other log isn't proven.
    pub fn go_on_compactly(
        folder: &Path,
        key: &Key,
        source: &Path,
        length: u64,
        mac: &str,
    ) -> Result<Self, WriteError> {
        let records = proven(key, source, length, mac)?;
        let contents = contents_of(&records);
        match Self::smaller(folder, key, source, length, &records, garbage(contents.as_ref()))? {
            Some(writer) => Ok(writer),
            None => Self::copied(folder, key, source, (length, mac), contents),
        }
    }

    /// Begins a log with the needed records of another log, left unchanged for its readers. `None` means that the gain
    /// is too small: the new log would be more than half as long, and would need more than half of the content.
    ///
    /// # Errors
    /// As [`Writer::go_on`], and a record of the other log isn't proven.
    pub fn compacted(
        folder: &Path,
        key: &Key,
        source: &Path,
        length: u64,
        mac: &str,
    ) -> Result<Option<Self>, WriteError> {
        let records = proven(key, source, length, mac)?;
        let garbage = garbage(contents_of(&records).as_ref());
        Self::smaller(folder, key, source, length, &records, garbage)
    }

    /// As [`Writer::compacted`], of proven records with so much unneeded content.
    fn smaller(
        folder: &Path,
        key: &Key,
        source: &Path,
        length: u64,
        records: &[compact::Record],
        garbage: u64,
    ) -> Result<Option<Self>, WriteError> {
        if length <= SHORT && garbage <= LITTLE {
            return Ok(None);
        }
        let Some(least) = least(records) else {
            return Ok(None);
        };
        let contents = contents_of(&least);
        let left = self::garbage(contents.as_ref());
        let framed = all_framed(&least, source)?;
        let live: u64 = framed.iter().map(|f| (f.len() + blake3::OUT_LEN) as u64).sum();
        if length <= SHORT + 2 * live && garbage <= LITTLE + 2 * left {
            return Ok(None);
        }
        Self::of_framed(folder, key, &framed, contents).map(Some)
    }

    /// As [`Writer::compacted`], however little that spares. `None` means that a record isn't as the form says.
    ///
    /// # Errors
    /// As [`Writer::compacted`].
    pub fn compacted_anyway(
        folder: &Path,
        key: &Key,
        source: &Path,
        length: u64,
        mac: &str,
    ) -> Result<Option<Self>, WriteError> {
        let Some(least) = least(&proven(key, source, length, mac)?) else {
            return Ok(None);
        };
        let framed = all_framed(&least, source)?;
        Self::of_framed(folder, key, &framed, contents_of(&least)).map(Some)
    }

    fn of_framed(
        folder: &Path,
        key: &Key,
        framed: &[Vec<u8>],
        contents: Option<Contents>,
    ) -> Result<Self, WriteError> {
        let mut writer = Self::create(folder, key)?;
        for framed in framed {
            writer.log.append_framed(framed)?;
        }
        writer.contents = contents;
        writer.stays_as_it_is();
        writer.long = SHORT + 2 * writer.length();
        Ok(writer)
    }

    /// As [`Writer::compacted`], of this log as far as it is committed.
    ///
    /// # Errors
    /// As [`Writer::compacted`].
    pub fn shorter(&self, folder: &Path) -> Result<Option<Self>, WriteError> {
        let (key, source, at) = (self.log.key(), self.log.folder(), self.log.at());
        let records = proven(key, source, at.length, &at.mac.to_hex())?;
        let garbage = garbage(self.contents.as_ref());
        Self::smaller(folder, key, source, at.length, &records, garbage)
    }

    /// The log's folder has another name now.
    pub fn is_moved(&mut self, folder: &Path) {
        self.log.is_moved(folder);
    }

    /// Whether the log, or the content that only its replaced versions need, has grown enough to try to compact it,
    /// into another folder.
    pub fn is_long(&self) -> bool {
        self.length() > self.long || garbage(self.contents.as_ref()) > self.much
    }

    /// Records that compaction isn't worthwhile before the log or its unneeded content has grown further.
    pub fn stays_as_it_is(&mut self) {
        self.long = SHORT + self.length() + self.length() / 8;
        let (live, garbage) = self.contents.as_ref().map_or((0, 0), Contents::live_and_garbage);
        self.much = garbage + live.max(LITTLE);
    }

    fn length(&self) -> u64 {
        self.log.at().length
    }

    /// Adds a record. It doesn't count before [`Writer::commit`].
    ///
    /// # Errors
    /// The file system's.
    pub fn append(&mut self, text: &[u8], body: &[u8]) -> Result<(), WriteError> {
        self.log.append(text, body, Compress::Text)?;
        self.contents.take_if(|contents| !contents.add(text));
        Ok(())
    }

    /// Makes the added records count; they are on disk on return.
    ///
    /// # Errors
    /// The file system's.
    pub fn commit(&mut self) -> Result<Committed, WriteError> {
        self.log.commit(true)?;
        let at = self.log.at();
        Ok(Committed {
            length: at.length,
            mac: at.mac.to_hex().to_string(),
        })
    }
}

/// The records of a log, proven.
fn proven(key: &Key, source: &Path, length: u64, mac: &str) -> Result<Vec<compact::Record>, WriteError> {
    let damaged = || WriteError::Source {
        path: source.to_owned(),
    };
    let mut log = vec![0; usize::try_from(length).map_err(|_| damaged())?];
    let from = File::open(source.join("log")).map_err(|_| damaged())?;
    from.read_exact_at(&mut log, 0).map_err(|_| damaged())?;
    form::records(&log, key.bytes(), mac).map_err(|_| damaged())
}

/// The records that compaction of a log would keep. `None` means that a record isn't of the known form: then the log is
/// kept as it is.
fn least(records: &[compact::Record]) -> Option<Vec<compact::Record>> {
    compact::compact(records).ok()
}

fn all_framed(records: &[compact::Record], source: &Path) -> Result<Vec<Vec<u8>>, WriteError> {
    let framed = records.iter().map(|record| {
        let text = serde_json::to_vec(&record.said).map_err(|_| WriteError::Source {
            path: source.to_owned(),
        })?;
        Ok(form::framed(&text, &record.body, SMALL))
    });
    framed.collect()
}

fn contents_of(records: &[compact::Record]) -> Option<Contents> {
    let mut contents = Contents::default();
    records
        .iter()
        .all(|record| contents.take(&record.said))
        .then_some(contents)
}

/// Bytes of content that only replaced versions need, as far as known.
fn garbage(contents: Option<&Contents>) -> u64 {
    contents.map_or(0, |contents| contents.live_and_garbage().1)
}

fn copy(from: &File, mut to: &File, length: u64) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    let mut at = 0;
    while at < length {
        let piece = buffer.len().min((length - at) as usize);
        from.read_exact_at(&mut buffer[..piece], at)?;
        to.write_all(&buffer[..piece])?;
        at += piece as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::own_uid;
    use std::fs;

    const KEY: [u8; 32] = [7; 32];

    fn record(at: f64) -> Vec<u8> {
        format!("{{\"at\": {at}, \"units\": [], \"gone\": [], \"process\": {{}}}}").into_bytes()
    }

    fn records(folder: &Path) -> usize {
        form::read(folder, &KEY, own_uid()).unwrap().records
    }

    #[test]
    fn what_is_committed_is_read_and_the_rest_is_not() {
        let tmp = tempfile::tempdir().unwrap();
        let mut log = Writer::create(tmp.path(), &Key::new(KEY)).unwrap();
        for n in 1..=3 {
            log.append(&record(1.0), &vec![b'x'; 2000 * n]).unwrap();
            let at = log.commit().unwrap();
            assert_eq!(fs::metadata(tmp.path().join("log")).unwrap().len(), at.length);
            assert_eq!(records(tmp.path()), n);
        }
        log.append(&record(2.0), b"torn").unwrap();
        assert_eq!(records(tmp.path()), 3);
    }

    /// A record of a variable with so many bytes of content, under names of their own.
    fn large(of: u64, version: u64, bytes: u64) -> Vec<u8> {
        let chunks: Vec<String> = (0..bytes.div_ceil(4 << 20))
            .map(|n| {
                blake3::hash(format!("{of} {version} {n}").as_bytes())
                    .to_hex()
                    .to_string()
            })
            .collect();
        let said = serde_json::json!({
            "at": 1.0, "gone": [], "process": {}, "inputs": {}, "env": null, "cell": null,
            "units": [{"u": of, "m": [format!("n:v{of}")], "s": {"in": [0, 0]}, "b": [[bytes, 0, chunks]], "f": [],
                "c": [], "t": [], "gone": [], "notes": [], "types": [], "sec": 0.0, "dig": ""}],
        });
        said.to_string().into_bytes()
    }

    #[test]
    fn a_log_is_long_once_replaced_versions_keep_more_content_than_there_is() {
        let tmp = tempfile::tempdir().unwrap();
        let folders = ["one", "two", "three"].map(|name| tmp.path().join(name));
        folders.iter().for_each(|f| fs::create_dir(f).unwrap());
        let mut log = Writer::create(&folders[0], &Key::new(KEY)).unwrap();
        let mut version = 0;
        let mut grow = |log: &mut Writer| {
            let before = version;
            while !log.is_long() {
                version += 1;
                log.append(&large(1, version, 100 << 20), b"").unwrap();
            }
            version - before
        };
        log.append(&large(2, 0, 1 << 30), b"").unwrap();
        assert!(!log.is_long());
        assert_eq!(grow(&mut log), 4, "300 MiB that nobody needs");
        let at = log.commit().unwrap();
        let named = |folder: &Path| form::named(folder, &KEY, own_uid()).unwrap().len();
        let mut shorter = log.shorter(&folders[1]).unwrap().unwrap();
        shorter.commit().unwrap();
        assert_eq!((named(&folders[0]), named(&folders[1])), (256 + 100, 256 + 25));
        assert!(!shorter.is_long());
        // Nothing would become shorter.
        assert!(shorter.shorter(&folders[2]).unwrap().is_none());
        assert_eq!(grow(&mut shorter), 12, "as much as is needed");

        let next =
            Writer::go_on_compactly(&folders[2], &Key::new(KEY), &folders[0], at.length, &at.mac).unwrap();
        assert!(!next.is_long(), "a later tenure begins with what is needed");
        let mut next = Writer::go_on(&folders[2], &Key::new(KEY), &folders[0], at.length, &at.mac).unwrap();
        assert!(!next.is_long());
        next.stays_as_it_is();
        assert!(!next.is_long());
    }

    #[test]
    fn a_log_goes_on_from_another_ones_middle() {
        let tmp = tempfile::tempdir().unwrap();
        let (old, new) = (tmp.path().join("old"), tmp.path().join("new"));
        fs::create_dir(&old).unwrap();
        fs::create_dir(&new).unwrap();
        let mut log = Writer::create(&old, &Key::new(KEY)).unwrap();
        log.append(&record(1.0), b"one").unwrap();
        log.append(&record(2.0), &[b'2'; 4096]).unwrap();
        let at = log.commit().unwrap();
        log.append(&record(3.0), b"later").unwrap();
        log.commit().unwrap();

        let mut next = Writer::go_on(&new, &Key::new(KEY), &old, at.length, &at.mac).unwrap();
        next.append(&record(4.0), b"other").unwrap();
        next.commit().unwrap();
        assert_eq!((records(&old), records(&new)), (3, 3));

        let go_on = |length, mac: &str| Writer::go_on(&new, &Key::new(KEY), &old, length, mac);
        assert!(matches!(
            go_on(at.length - 1, &at.mac),
            Err(WriteError::Source { .. })
        ));
        assert!(matches!(
            go_on(at.length, &"0".repeat(64)),
            Err(WriteError::Source { .. })
        ));
        assert!(matches!(go_on(1 << 20, &at.mac), Err(WriteError::Source { .. })));
    }

    /// A record of a variable, with an incompressible stream of this many bytes.
    fn version(of: u64, bytes: usize) -> (Vec<u8>, Vec<u8>) {
        let said = serde_json::json!({
            "at": 1.0, "gone": [], "process": {}, "inputs": {}, "env": null, "cell": null,
            "units": [{"u": of, "m": [format!("n:v{of}")], "s": {"in": [0, bytes]}, "b": [], "f": [], "c": [], "t": [],
                "gone": [], "notes": [], "types": [], "sec": 0.0, "dig": ""}],
        });
        let mut body = vec![0; bytes];
        blake3::Hasher::new().finalize_xof().fill(&mut body);
        (said.to_string().into_bytes(), body)
    }

    #[test]
    fn a_log_that_is_mostly_replaced_versions_is_compacted_and_read() {
        let tmp = tempfile::tempdir().unwrap();
        let (old, new, newer) = (
            tmp.path().join("old"),
            tmp.path().join("new"),
            tmp.path().join("newer"),
        );
        for folder in [&old, &new, &newer] {
            fs::create_dir(folder).unwrap();
        }
        let mut log = Writer::create(&old, &Key::new(KEY)).unwrap();
        let mut at = log.commit().unwrap();
        for of in (0..60).map(|i| i % 3) {
            let (text, body) = version(of, 50_000);
            log.append(&text, &body).unwrap();
            at = log.commit().unwrap();
        }
        assert!(log.is_long());
        let before = fs::read(old.join("log")).unwrap();
        let mut next = Writer::go_on_compactly(&new, &Key::new(KEY), &old, at.length, &at.mac).unwrap();
        let (text, body) = version(7, 100);
        next.append(&text, &body).unwrap();
        let compact = next.commit().unwrap();
        assert!(compact.length < 4 * 50_000 && !next.is_long());
        // The source is unchanged, for its readers.
        assert_eq!(fs::read(old.join("log")).unwrap(), before);
        let found = form::read(&new, &KEY, own_uid()).unwrap();
        assert_eq!((found.records, found.units.len()), (61, 4));

        let none = Writer::compacted(&newer, &Key::new(KEY), &new, compact.length, &compact.mac).unwrap();
        assert!(none.is_none(), "it is all needed");
        assert!(matches!(
            Writer::compacted(&newer, &Key::new([8; 32]), &old, at.length, &at.mac),
            Err(WriteError::Source { .. })
        ));
    }

    #[test]
    fn a_log_of_another_key_is_refused() {
        let tmp = tempfile::tempdir().unwrap();
        let mut log = Writer::create(tmp.path(), &Key::new([8; 32])).unwrap();
        log.append(&record(1.0), b"").unwrap();
        log.commit().unwrap();
        assert!(form::read(tmp.path(), &KEY, own_uid()).is_err());
    }
}
