//! The files of a state's log as they are written (docs/state-format.md): the chain of proofs over the records, and the
//! head that says how much counts. The one writer of the form: [`crate::writer`] adds compaction for the supervisor,
//! the in-kernel agent writes through `kernel/tracker`. What a record says is theirs.

use crate::form::{self, ReadError};
use hop_blobs::private;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, IoSlice, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Parts of a record beyond this size are compressed, if shorter compressed.
pub(crate) const SMALL: usize = 512;

/// Why a state can't be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("the owner's key can't be used")]
    Key(#[source] Box<ReadError>),
    #[error("there is no home folder for the owner's key (HOME is not set)")]
    NoHome,
    #[error("can't write {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} can't be gone on from: it is truncated or damaged", path.display())]
    Source { path: PathBuf },
    #[error("can't go on in {}", path.display())]
    Head {
        path: PathBuf,
        #[source]
        source: Box<ReadError>,
    },
}

/// The owner's key, which proves states.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The caller's own key, made at its first use.
    ///
    /// # Errors
    /// No home exists, or the key there is not the caller's alone.
    pub fn of_owner() -> Result<Self, WriteError> {
        let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
        let config = variable("XDG_CONFIG_HOME").filter(|p| p.is_absolute());
        let home = variable("HOME").ok_or(WriteError::NoHome)?;
        let path = form::key_path(config.as_deref(), &home);
        if !path.exists() {
            make_key(&path).map_err(|source| WriteError::Io {
                path: path.clone(),
                source,
            })?;
        }
        let key = form::owner_key(&path, own_uid()).map_err(|e| WriteError::Key(Box::new(e)))?;
        Ok(Self(key))
    }
}

pub(crate) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

pub(crate) fn random() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Makes the key. Of several processes at once, the first succeeds, and the others use its key.
fn make_key(path: &Path) -> io::Result<()> {
    let folder = path.parent().unwrap_or(path);
    fs::DirBuilder::new().recursive(true).create(folder)?;
    let bytes = random()?;
    let new = folder.join(format!(".key-{}", std::process::id()));
    let mut file = private::open(File::options().write(true).create_new(true), &new)?;
    let made = file.write_all(&bytes).and_then(|()| file.sync_all());
    let linked = made.and_then(|()| match fs::hard_link(&new, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    });
    fs::remove_file(&new)?;
    linked
}

/// The parts of a record to compress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compress {
    Nothing,
    Text,
    Both,
}

/// The end of what is written: the last record's, and its proof.
#[derive(Debug)]
pub(crate) struct Position {
    pub(crate) length: u64,
    pub(crate) records: u64,
    pub(crate) mac: blake3::Hash,
}

/// The log of one state, open for adding by a single process.
#[derive(Debug)]
pub struct Log {
    folder: PathBuf,
    key: Key,
    file: File,
    /// The file's name before the first commit, if it replaces another log only then.
    beside: Option<PathBuf>,
    head: Option<File>,
    at: Position,
}

impl Log {
    /// Begins an empty log, in place of an existing one.
    ///
    /// # Errors
    /// The file system's.
    pub fn create(folder: &Path, key: &Key) -> Result<Self, WriteError> {
        let file = new_file(folder, "log")?;
        Self::begin(folder, key, file, None)
    }

    /// Begins an empty log. An existing state stays as it is until the first commit, which replaces it.
    ///
    /// # Errors
    /// The file system's.
    pub fn beside(folder: &Path, key: &Key) -> Result<Self, WriteError> {
        let (path, file) = new_beside(folder, "log").map_err(|source| WriteError::Io {
            path: folder.to_owned(),
            source,
        })?;
        Self::begin(folder, key, file, Some(path))
    }

    fn begin(folder: &Path, key: &Key, file: File, beside: Option<PathBuf>) -> Result<Self, WriteError> {
        let start = form::start();
        let at = Position {
            length: start.len() as u64,
            records: 0,
            mac: blake3::keyed_hash(key.bytes(), &start),
        };
        let mut log = Self::over(folder, key, file, at);
        log.beside = beside;
        log.file.write_all(&start).map_err(|e| log.failed(e))?;
        Ok(log)
    }

    /// A log over a file that ends at this position.
    pub(crate) fn over(folder: &Path, key: &Key, file: File, at: Position) -> Self {
        Self {
            folder: folder.to_owned(),
            key: key.clone(),
            file,
            beside: None,
            head: None,
            at,
        }
    }

    /// Goes on after the last record that counts. Records after it are removed.
    ///
    /// # Errors
    /// The head isn't proven; the file system's.
    pub fn resume(folder: &Path, key: &Key) -> Result<Self, WriteError> {
        let failed = |source| WriteError::Io {
            path: folder.to_owned(),
            source,
        };
        let refused = |e| WriteError::Head {
            path: folder.to_owned(),
            source: Box::new(e),
        };
        let raw = fs::read(folder.join("head")).map_err(failed)?;
        let said = form::prove_head(&raw, key.bytes()).map_err(refused)?;
        let mac = blake3::Hash::from_hex(&said.mac).map_err(|_| refused(ReadError::Refused))?;
        let open = |name| File::options().read(true).write(true).open(folder.join(name));
        let (file, head) = (open("log").map_err(failed)?, open("head").map_err(failed)?);
        let at = Position {
            length: said.length as u64,
            records: said.records as u64,
            mac,
        };
        if file.metadata().map_err(failed)?.len() < at.length {
            return Err(refused(ReadError::Refused));
        }
        let mut log = Self::over(folder, key, file, at);
        log.head = Some(head);
        log.back().map_err(failed)?;
        Ok(log)
    }

    /// Adds a record, which doesn't count before [`Log::commit`]. Returns the bytes that it takes in the log.
    ///
    /// # Errors
    /// The file system's; the log is as before, unless its disk fails further.
    pub fn append(&mut self, text: &[u8], body: &[u8], compress: Compress) -> Result<u64, WriteError> {
        let least = |wanted| if wanted { SMALL } else { usize::MAX };
        let text = form::deflated(text, least(compress != Compress::Nothing));
        let body = form::deflated(body, least(compress == Compress::Both));
        let sizes = form::sizes(&text, &body);
        self.append_parts(&[&sizes, &text.0, &body.0])
    }

    /// As [`Log::append`], of a record as it lies in a log, without its proof.
    pub(crate) fn append_framed(&mut self, framed: &[u8]) -> Result<u64, WriteError> {
        self.append_parts(&[framed])
    }

    /// Variables may be as long as memory: no part is copied.
    fn append_parts(&mut self, parts: &[&[u8]]) -> Result<u64, WriteError> {
        let mut hasher = blake3::Hasher::new_keyed(self.key.bytes());
        hasher.update(self.at.mac.as_bytes());
        for part in parts {
            hasher.update(part);
        }
        let mac = hasher.finalize();
        let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        slices.push(IoSlice::new(mac.as_bytes()));
        let length: usize = slices.iter().map(|slice| slice.len()).sum();
        if let Err(error) = write_all(&self.file, &mut slices) {
            // Nothing follows on half a record.
            self.back().ok();
            return Err(self.failed(error));
        }
        self.at.mac = mac;
        self.at.length += length as u64;
        self.at.records += 1;
        Ok(length as u64)
    }

    /// Cuts off what lies behind the last whole record.
    fn back(&mut self) -> io::Result<()> {
        self.file.set_len(self.at.length)?;
        io::Seek::seek(&mut self.file, io::SeekFrom::Start(self.at.length)).map(|_| ())
    }

    /// Makes the added records count, as a whole. A `durable` commit is on disk on return.
    ///
    /// # Errors
    /// The file system's.
    pub fn commit(&mut self, durable: bool) -> Result<(), WriteError> {
        self.committed(durable).map_err(|e| self.failed(e))
    }

    fn committed(&mut self, durable: bool) -> io::Result<()> {
        if durable {
            self.file.sync_data()?;
        }
        if let Some(path) = &self.beside {
            fs::rename(path, self.folder.join("log"))?;
            self.beside = None;
        }
        let at = &self.at;
        let slot = form::slot(self.key.bytes(), at.records, at.length, &at.mac);
        if let Some(head) = &self.head {
            head.write_all_at(&slot, form::SLOT as u64 * (at.records % 2))?;
            if durable {
                head.sync_data()?;
            }
            return Ok(());
        }
        let (path, mut head) = new_beside(&self.folder, "head")?;
        head.write_all(&slot.repeat(2))?;
        if durable {
            head.sync_all()?;
        }
        fs::rename(&path, self.folder.join("head"))?;
        if durable {
            File::open(&self.folder)?.sync_all()?;
        }
        self.head = Some(head);
        Ok(())
    }

    fn failed(&self, source: io::Error) -> WriteError {
        WriteError::Io {
            path: self.folder.join("log"),
            source,
        }
    }

    /// The log's folder has another name now.
    pub(crate) fn is_moved(&mut self, folder: &Path) {
        folder.clone_into(&mut self.folder);
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    pub(crate) fn at(&self) -> &Position {
        &self.at
    }

    /// Records in the log.
    pub fn records(&self) -> u64 {
        self.at.records
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if let Some(path) = &self.beside {
            fs::remove_file(path).ok();
        }
    }
}

/// Writes all parts, in one call of the system as long as it takes them.
fn write_all(mut file: &File, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match file.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut slices, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A new file, to be renamed to `name`. Another node's process may write into the same folder.
fn new_beside(folder: &Path, name: &str) -> io::Result<(PathBuf, File)> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    loop {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!(".{name}-{}-{count}", std::process::id()));
        match private::open(File::options().read(true).write(true).create_new(true), &path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => return other.map(|file| (path, file)),
        }
    }
}

/// An empty file of this name, private to its owner.
pub(crate) fn new_file(folder: &Path, name: impl AsRef<OsStr>) -> Result<File, WriteError> {
    let path = folder.join(name.as_ref());
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(true);
    // Written in the user's process, under any umask.
    private::open(&mut options, &path).map_err(|source| WriteError::Io { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const KEY: Key = Key([7; 32]);

    fn record(at: u32) -> Vec<u8> {
        format!("{{\"at\": {at}.0, \"units\": [], \"gone\": [], \"process\": {{}}}}").into_bytes()
    }

    fn read(folder: &Path) -> (usize, f64) {
        let found = form::read(folder, &KEY.0, own_uid()).unwrap();
        (found.records, found.saved_at)
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_log_beside_replaces_the_old_state_at_its_commit_alone() {
        let tmp = tempfile::tempdir().unwrap();
        let mut old = Log::create(tmp.path(), &KEY).unwrap();
        old.append(&record(1), b"", Compress::Nothing).unwrap();
        old.commit(false).unwrap();
        drop(old);
        let mut given_up = Log::beside(tmp.path(), &KEY).unwrap();
        given_up.append(&record(2), b"", Compress::Nothing).unwrap();
        drop(given_up);
        assert_eq!((read(tmp.path()), names(tmp.path()).len()), ((1, 1.0), 2));
        let mut new = Log::beside(tmp.path(), &KEY).unwrap();
        let body = [b'x'; 5000];
        assert!(new.append(&record(3), &body, Compress::Both).unwrap() < 500);
        assert!(new.append(&record(4), &body, Compress::Text).unwrap() > 5000);
        assert_eq!(read(tmp.path()), (1, 1.0));
        new.commit(true).unwrap();
        assert_eq!((read(tmp.path()), new.records()), ((2, 4.0), 2));
        new.append(&record(5), b"", Compress::Nothing).unwrap();
        new.commit(false).unwrap();
        assert_eq!(read(tmp.path()), (3, 5.0));
        assert_eq!(names(tmp.path()), ["head", "log"]);
        for name in ["head", "log"] {
            use std::os::unix::fs::MetadataExt;
            let mode = fs::metadata(tmp.path().join(name)).unwrap().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
    }

    #[test]
    fn a_torn_write_of_the_head_leaves_the_commit_before() {
        let tmp = tempfile::tempdir().unwrap();
        let mut log = Log::create(tmp.path(), &KEY).unwrap();
        let head = tmp.path().join("head");
        let mut last: Vec<u8> = Vec::new();
        for at in 1..=5 {
            log.append(&record(at), b"", Compress::Nothing).unwrap();
            log.commit(false).unwrap();
            let whole = fs::read(&head).unwrap();
            if at > 1 {
                let slots = || whole.chunks(form::SLOT).zip(last.chunks(form::SLOT));
                assert_eq!(slots().filter(|(new, old)| new != old).count(), 1);
                let torn = slots().flat_map(|(new, old)| {
                    if new == old {
                        new.to_vec()
                    } else {
                        vec![0; form::SLOT]
                    }
                });
                fs::write(&head, Vec::from_iter(torn)).unwrap();
                assert_eq!(read(tmp.path()), (at as usize - 1, f64::from(at - 1)));
                fs::write(&head, &whole).unwrap();
            }
            last = whole;
        }
    }

    #[test]
    fn an_owners_key_is_made_private_and_once() {
        use std::os::unix::fs::MetadataExt;
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("gresshopper/key");
        make_key(&path).unwrap();
        let first = fs::read(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        make_key(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), first, "another process was first");
        assert_eq!(names(&tmp.path().join("gresshopper")), ["key"]);
    }

    /// A file system of 64 KiB.
    struct Small(tempfile::TempDir);

    impl Small {
        /// `None` means that this process may mount nothing.
        fn mount() -> Option<Self> {
            let dir = tempfile::tempdir().unwrap();
            let options = ["-t", "tmpfs", "-o", "size=64k", "small"];
            let mounted = Command::new("mount").args(options).arg(dir.path()).output();
            mounted.is_ok_and(|o| o.status.success()).then_some(Self(dir))
        }
    }

    impl Drop for Small {
        fn drop(&mut self) {
            let umounted = Command::new("umount").arg(self.0.path()).status();
            assert!(umounted.unwrap().success());
        }
    }

    #[test]
    fn a_record_without_room_leaves_the_log_as_it_was() {
        let Some(disk) = Small::mount() else {
            eprintln!("SKIPPED: needs root");
            return;
        };
        let folder = disk.0.path();
        let mut log = Log::create(folder, &KEY).unwrap();
        log.append(&record(1), b"", Compress::Nothing).unwrap();
        log.commit(false).unwrap();
        let length = log.at().length;
        let too_long = log.append(&record(2), &[0; 100_000], Compress::Nothing);
        assert!(matches!(too_long, Err(WriteError::Io { .. })), "{too_long:?}");
        assert_eq!(fs::metadata(folder.join("log")).unwrap().len(), length);
        log.append(&record(3), &[0; 1000], Compress::Nothing).unwrap();
        log.commit(true).unwrap();
        assert_eq!(read(folder), (2, 3.0));
    }

    #[test]
    fn a_log_goes_on_after_the_last_record_that_counts() {
        let tmp = tempfile::tempdir().unwrap();
        let mut log = Log::create(tmp.path(), &KEY).unwrap();
        log.append(&record(1), b"one", Compress::Nothing).unwrap();
        log.commit(false).unwrap();
        log.append(&record(2), &[0; 9000], Compress::Nothing).unwrap();
        drop(log);
        let mut log = Log::resume(tmp.path(), &KEY).unwrap();
        log.append(&record(3), b"", Compress::Nothing).unwrap();
        log.commit(false).unwrap();
        assert_eq!(read(tmp.path()), (2, 3.0));
        let refused = Log::resume(tmp.path(), &Key([8; 32]));
        assert!(matches!(refused, Err(WriteError::Head { .. })));
        fs::write(tmp.path().join("log"), b"cut").unwrap();
        assert!(matches!(
            Log::resume(tmp.path(), &KEY),
            Err(WriteError::Head { .. })
        ));
    }
}
