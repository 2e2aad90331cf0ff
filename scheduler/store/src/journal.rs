//! The journal: the last value of each key, and the term, in a redb file.
//!
//! The caller serialises keys and values. They are stored as JSON: a person can read them with a few lines of code,
//! and a field can be added. A file of a newer format is refused with a sentence. A torn or interrupted write leaves
//! the state of the last complete commit (redb's copy-on-write with checksums). Two daemons can't open the same file (a
//! lock), nor share a term (durably raised by each open).

use crate::writer::{Health, SaveError, Sink, Ticket, Writer};
use hop_words::id::{NoTerm, Term};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, TableError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The format that this release writes. Rule: a change after which an older release would misread the file
/// raises it; a new optional field doesn't.
const FORMAT: u64 = 1;

const HEADER: TableDefinition<'_, &str, u64> = TableDefinition::new("gresshopper-journal");
const ENTRIES: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("entries");
const CACHE_BYTES: usize = 16 << 20;

/// Why a journal can't be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalOpenError {
    #[error("{} is in use by another hopd", .0.display())]
    InUse(PathBuf),
    #[error("{} was written by a newer release (journal format {found}, this release knows {FORMAT}): install that release again, or restore the copy made before it", .path.display())]
    Newer { path: PathBuf, found: u64 },
    #[error("{} is no journal of hopd", .0.display())]
    Foreign(PathBuf),
    #[error("{} holds an entry that this release can't read: {key}", .path.display())]
    Entry {
        path: PathBuf,
        key: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("{} is damaged: {reason}", .path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("{} can't be opened", .path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Contents of a journal at its opening.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot<K, V> {
    /// Term of the daemon with the file open: the last term plus one, already durable. An id of the term and a counter
    /// in memory is never used twice, without a wait for the disk.
    pub term: Term,
    pub entries: Vec<(K, V)>,
}

/// An open journal.
#[derive(Debug)]
pub struct Journal<K, V> {
    writer: Writer<Vec<u8>, Option<Vec<u8>>>,
    entry: PhantomData<fn(K, V)>,
}

impl<K, V> Journal<K, V>
where
    K: Serialize + DeserializeOwned,
    V: Serialize + DeserializeOwned,
{
    /// Opens or creates the journal at `path`, begins a new term, and reads the content.
    pub fn open(path: &Path) -> Result<(Self, Snapshot<K, V>), JournalOpenError> {
        Self::open_after(path, Term(0))
    }

    /// The same with a term above `known`, which is known from elsewhere: the journal may be a new one in a lost one's
    /// place.
    pub fn open_after(path: &Path, known: Term) -> Result<(Self, Snapshot<K, V>), JournalOpenError> {
        // redb takes some damage for impossible, and panics. The administrator needs a sentence all the same.
        let read = std::panic::catch_unwind(|| read_file(path, known));
        let (database, term, entries) = read.unwrap_or_else(|_| {
            Err(JournalOpenError::Damaged {
                path: path.to_owned(),
                reason: "its pages contradict each other".to_owned(),
            })
        })?;
        let file = File {
            path: path.to_owned(),
            database: Some(database),
            term,
        };
        let writer = Writer::start("journal", file).map_err(|source| JournalOpenError::Io {
            path: path.to_owned(),
            source,
        })?;
        let journal = Self {
            writer,
            entry: PhantomData,
        };
        let snapshot = Snapshot {
            term: Term(term),
            entries,
        };
        Ok((journal, snapshot))
    }

    /// Queues changes (no value: the key goes), all of them in one transaction. Never waits for the disk.
    pub fn post<'a>(&self, changes: impl IntoIterator<Item = (&'a K, Option<&'a V>)>) -> Ticket
    where
        K: 'a,
        V: 'a,
    {
        match changes
            .into_iter()
            .map(|(key, value)| encode(key, value))
            .collect()
        {
            Ok(entries) => self.writer.post(entries),
            Err(error) => Ticket::failed(SaveError::Encode(Arc::new(error))),
        }
    }

    /// Queues changes and waits until they are durable. An error means that the entries aren't durable *yet*.
    pub async fn commit<'a>(
        &self,
        changes: impl IntoIterator<Item = (&'a K, Option<&'a V>)>,
    ) -> Result<(), SaveError>
    where
        K: 'a,
        V: 'a,
    {
        self.post(changes).durable().await
    }

    /// Waits until all earlier posts are durable.
    pub async fn flush(&self) -> Result<(), SaveError> {
        self.writer.post(Vec::new()).durable().await
    }

    pub fn health(&self) -> Health {
        self.writer.health()
    }
}

type Encoded = (Vec<u8>, Option<Vec<u8>>);

fn encode<K: Serialize, V: Serialize>(key: &K, value: Option<&V>) -> Result<Encoded, serde_json::Error> {
    let value = value.map(serde_json::to_vec).transpose()?;
    Ok((serde_json::to_vec(key)?, value))
}

/// The file in the writer's thread.
struct File {
    path: PathBuf,
    /// None after a failure: redb wants to be opened anew then.
    database: Option<Database>,
    term: u64,
}

impl Sink<Vec<u8>, Option<Vec<u8>>> for File {
    fn save(&mut self, entries: &BTreeMap<Vec<u8>, Option<Vec<u8>>>) -> Result<(), SaveError> {
        let database = self.reopened()?;
        match write_entries(&database, entries) {
            Ok(()) => {
                self.database = Some(database);
                Ok(())
            }
            Err(error) => Err(save_error(&self.path, error)),
        }
    }
}

impl File {
    fn reopened(&mut self) -> Result<Database, SaveError> {
        if let Some(database) = self.database.take() {
            return Ok(database);
        }
        let database = builder()
            .open(&self.path)
            .map_err(|error| save_error(&self.path, error.into()))?;
        let found = database
            .begin_read()
            .map_err(redb::Error::from)
            .and_then(|txn| {
                Ok(txn
                    .open_table(HEADER)?
                    .get("term")?
                    .map_or(0, |term| term.value()))
            })
            .map_err(|error| save_error(&self.path, error))?;
        match found == self.term {
            true => Ok(database),
            false => Err(SaveError::Superseded {
                path: self.path.clone(),
                term: found,
            }),
        }
    }
}

fn builder() -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    // The checksums of a file that was closed in order aren't looked at otherwise: a flipped bit would be believed.
    builder.set_check_integrity_on_open(true);
    builder
}

/// The file as it is for a daemon of the next term, which is on disk by then.
type Opened<K, V> = (Database, u64, Vec<(K, V)>);

fn read_file<K: DeserializeOwned, V: DeserializeOwned>(
    path: &Path,
    known: Term,
) -> Result<Opened<K, V>, JournalOpenError> {
    // A file of before is never empty: it has a header before a term is known elsewhere.
    if known > Term(0) && std::fs::metadata(path).is_ok_and(|file| file.len() == 0) {
        return Err(JournalOpenError::Damaged {
            path: path.to_owned(),
            reason: format!("it is empty, though term {known} has begun"),
        });
    }
    let database = open_file(path)?;
    let term = read_header(&database, path)?.max(known.0).saturating_add(1);
    let no_term = |error: NoTerm| JournalOpenError::Damaged {
        path: path.to_owned(),
        reason: error.to_string(),
    };
    let term = Term::try_from(term).map_err(no_term)?.0;
    let entries = read_entries(&database, path)?;
    write_header(&database, term).map_err(|error| open_error(path, error))?;
    Ok((database, term, entries))
}

fn open_file(path: &Path) -> Result<Database, JournalOpenError> {
    builder()
        .create(path)
        .map_err(|error| open_error(path, error.into()))
}

/// The term of the last daemon; 0 for a new file.
fn read_header(database: &Database, path: &Path) -> Result<u64, JournalOpenError> {
    let read = || -> Result<Option<(u64, u64)>, redb::Error> {
        let txn = database.begin_read()?;
        let table = match txn.open_table(HEADER) {
            Ok(table) => table,
            Err(TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let value = |key| Ok::<_, redb::Error>(table.get(key)?.map_or(0, |value| value.value()));
        Ok(Some((value("format")?, value("term")?)))
    };
    match read().map_err(|error| open_error(path, error))? {
        Some((found, _)) if found > FORMAT => Err(JournalOpenError::Newer {
            path: path.to_owned(),
            found,
        }),
        Some((_, term)) => Ok(term),
        None if is_empty(database).map_err(|error| open_error(path, error))? => Ok(0),
        None => Err(JournalOpenError::Foreign(path.to_owned())),
    }
}

fn is_empty(database: &Database) -> Result<bool, redb::Error> {
    Ok(database.begin_read()?.list_tables()?.next().is_none())
}

fn read_entries<K: DeserializeOwned, V: DeserializeOwned>(
    database: &Database,
    path: &Path,
) -> Result<Vec<(K, V)>, JournalOpenError> {
    let txn = database
        .begin_read()
        .map_err(|error| open_error(path, error.into()))?;
    let table = match txn.open_table(ENTRIES) {
        Ok(table) => table,
        Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
        Err(error) => return Err(open_error(path, error.into())),
    };
    let rows = table.iter().map_err(|error| open_error(path, error.into()))?;
    rows.map(|row| {
        let (key, value) = row.map_err(|error| open_error(path, error.into()))?;
        decode(key.value(), value.value()).map_err(|source| JournalOpenError::Entry {
            path: path.to_owned(),
            key: String::from_utf8_lossy(key.value()).into_owned(),
            source,
        })
    })
    .collect()
}

fn decode<K: DeserializeOwned, V: DeserializeOwned>(
    key: &[u8],
    value: &[u8],
) -> Result<(K, V), serde_json::Error> {
    Ok((serde_json::from_slice(key)?, serde_json::from_slice(value)?))
}

fn write_header(database: &Database, term: u64) -> Result<(), redb::Error> {
    let txn = database.begin_write()?;
    {
        let mut table = txn.open_table(HEADER)?;
        table.insert("format", FORMAT)?;
        table.insert("term", term)?;
    }
    txn.commit()?;
    Ok(())
}

fn write_entries(
    database: &Database,
    entries: &BTreeMap<Vec<u8>, Option<Vec<u8>>>,
) -> Result<(), redb::Error> {
    let txn = database.begin_write()?;
    {
        let mut table = txn.open_table(ENTRIES)?;
        for (key, value) in entries {
            match value {
                Some(value) => drop(table.insert(key.as_slice(), value.as_slice())?),
                None => drop(table.remove(key.as_slice())?),
            }
        }
    }
    txn.commit()?;
    Ok(())
}

fn open_error(path: &Path, error: redb::Error) -> JournalOpenError {
    let path = path.to_owned();
    match error {
        redb::Error::DatabaseAlreadyOpen => JournalOpenError::InUse(path),
        // redb's error for a file without redb's magic at the beginning.
        redb::Error::Io(source) if source.kind() == io::ErrorKind::InvalidData => {
            JournalOpenError::Foreign(path)
        }
        redb::Error::Io(source) => JournalOpenError::Io { path, source },
        redb::Error::UpgradeRequired(found) => JournalOpenError::Newer {
            path,
            found: u64::from(found),
        },
        other => JournalOpenError::Damaged {
            path,
            reason: other.to_string(),
        },
    }
}

fn save_error(path: &Path, error: redb::Error) -> SaveError {
    match error {
        redb::Error::Io(source) => SaveError::io(path, source),
        other => SaveError::Database {
            path: path.to_owned(),
            reason: other.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use redb::StorageBackend;
    use std::sync::Mutex;

    type Strings = Journal<String, String>;

    fn s(text: &str) -> String {
        text.to_owned()
    }

    #[tokio::test]
    async fn the_last_value_of_each_key_comes_back_and_the_term_grows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let (journal, snapshot) = Strings::open(&path).unwrap();
        assert_eq!(
            snapshot,
            Snapshot {
                term: Term(1),
                entries: vec![]
            }
        );
        journal
            .commit([(&s("a"), Some(&s("1"))), (&s("b"), Some(&s("2")))])
            .await
            .unwrap();
        drop(journal.post([(&s("a"), Some(&s("3")))]));
        drop(journal.post([(&s("b"), None)]));
        drop(journal.post([(&s("c"), Some(&s("4")))]));
        drop(journal);
        let (journal, snapshot) = Strings::open(&path).unwrap();
        assert_eq!(snapshot.term, Term(2));
        assert_eq!(snapshot.entries, [(s("a"), s("3")), (s("c"), s("4"))]);
        assert_eq!(journal.health().unsaved, 0);
    }

    #[tokio::test]
    async fn a_ticket_that_is_awaited_means_on_disk() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let (journal, _) = Strings::open(&path).unwrap();
        let tickets: Vec<Ticket> = (0..100)
            .map(|i| journal.post([(&format!("{i:03}"), Some(&s("x")))]))
            .collect();
        for ticket in tickets {
            ticket.durable().await.unwrap();
        }
        // A copy of the file as of now: the file after a crash.
        let copy = folder.path().join("copy");
        std::fs::copy(&path, &copy).unwrap();
        assert_eq!(Strings::open(&copy).unwrap().1.entries.len(), 100);
    }

    #[test]
    fn two_daemons_do_not_share_a_journal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let (_journal, _) = Strings::open(&path).unwrap();
        assert!(matches!(Strings::open(&path), Err(JournalOpenError::InUse(_))));
    }

    #[test]
    fn a_newer_format_is_refused_with_a_sentence() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        drop(Strings::open(&path).unwrap());
        let database = open_file(&path).unwrap();
        let txn = database.begin_write().unwrap();
        txn.open_table(HEADER)
            .unwrap()
            .insert("format", FORMAT + 1)
            .unwrap();
        txn.commit().unwrap();
        drop(database);
        let error = Strings::open(&path).unwrap_err();
        assert!(
            matches!(error, JournalOpenError::Newer { found: 2, .. }),
            "{error}"
        );
        assert!(error.to_string().contains("newer release"));
    }

    #[test]
    fn a_journal_of_an_impossible_term_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        drop(Strings::open(&path).unwrap());
        write_header(&open_file(&path).unwrap(), u64::MAX).unwrap();
        let error = Strings::open(&path).unwrap_err().to_string();
        assert!(
            error.ends_with(
                "is damaged: 18446744073709551615 is no term of a hopd: the highest is 1000000000000"
            ),
            "{error}"
        );
    }

    #[test]
    fn a_journal_that_was_cut_to_nothing_is_not_taken_for_a_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        std::fs::write(&path, "").unwrap();
        let error = Strings::open_after(&path, Term(3)).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("it is empty, though term 3 has begun"),
            "{error}"
        );
        // A first start may have been killed before it wrote anything.
        Strings::open(&path).unwrap();
    }

    /// A disk that has lost a sector, wherever in the file.
    #[tokio::test]
    async fn a_damaged_journal_is_refused_or_has_nothing_else_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let (journal, _) = Strings::open(&path).unwrap();
        let entries: Vec<(String, String)> = (0..300).map(|n| (format!("{n:04}"), "x".repeat(50))).collect();
        for some in entries.chunks(50) {
            journal
                .commit(some.iter().map(|(k, v)| (k, Some(v))))
                .await
                .unwrap();
        }
        let crashed = std::fs::read(&path).unwrap();
        drop(journal);
        let closed = std::fs::read(&path).unwrap();
        let mut refused = 0;
        for (whole, fill) in [(&closed, 0u8), (&closed, 0xa5), (&crashed, 0xa5)] {
            for at in (0..whole.len()).step_by(4096) {
                let mut damaged = whole.clone();
                damaged[at..at + 512].fill(fill);
                std::fs::write(&path, damaged).unwrap();
                match Strings::open(&path) {
                    // After a crash redb goes back to the commit before, where the last one is torn.
                    Ok((_, found)) => assert!(
                        found.entries == entries || whole == &crashed && found.entries == entries[..250],
                        "{fill} at {at}: {} entries",
                        found.entries.len()
                    ),
                    Err(_) => refused += 1,
                }
            }
        }
        assert!(refused > 8, "{refused}");
    }

    /// One flipped bit, wherever in the file, is noticed or has changed nothing.
    #[test]
    fn a_flipped_bit_is_never_believed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, copy) = (folder.path().join("journal"), folder.path().join("copy"));
        let (journal, _) = Strings::open(&path).unwrap();
        let entry = |i: u32| {
            (
                format!("k{i:03}"),
                format!("{{\"user\":\"alice\",\"lease\":{i}}}"),
            )
        };
        for i in 0..40 {
            let (key, value) = entry(i);
            drop(journal.post([(&key, Some(&value))]));
        }
        drop(journal);
        let whole = std::fs::read(&path).unwrap();
        let entries: Vec<_> = (0..40).map(entry).collect();
        let used = (0..whole.len()).filter(|&at| whole[at & !15..(at & !15) + 16].iter().any(|b| *b != 0));
        let mut refused = 0;
        for (n, at) in used.step_by(61).enumerate() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << (n % 8);
            std::fs::write(&copy, damaged).unwrap();
            match Strings::open(&copy) {
                Ok((_, found)) => assert_eq!((&found.entries, found.term), (&entries, Term(2)), "at {at}"),
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 50, "{refused}");
    }

    #[test]
    fn other_files_are_not_taken_for_journals() {
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().join("text");
        std::fs::write(&text, "x".repeat(100_000)).unwrap();
        assert!(matches!(Strings::open(&text), Err(JournalOpenError::Foreign(_))));
        assert_eq!(
            std::fs::read_to_string(&text).unwrap().len(),
            100_000,
            "nor changed"
        );
        let other = folder.path().join("other");
        let database = Database::create(&other).unwrap();
        let txn = database.begin_write().unwrap();
        txn.open_table(TableDefinition::<u64, u64>::new("theirs"))
            .unwrap();
        txn.commit().unwrap();
        drop(database);
        assert!(matches!(Strings::open(&other), Err(JournalOpenError::Foreign(_))));
    }

    #[test]
    fn an_entry_that_is_not_understood_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let (journal, _) = Strings::open(&path).unwrap();
        journal
            .post([(&s("lease-7"), Some(&s("text")))])
            .durable_blocking()
            .unwrap();
        drop(journal);
        let error = Journal::<String, u64>::open(&path).unwrap_err();
        assert!(
            matches!(&error, JournalOpenError::Entry { key, .. } if key.contains("lease-7")),
            "{error}"
        );
    }

    /// A disk that can lose what was not synced: any part of the writes since the last sync, in any combination.
    #[derive(Debug, Default, Clone)]
    struct Disk(Arc<Mutex<Platter>>);

    #[derive(Debug, Default, Clone)]
    struct Platter {
        synced: Vec<u8>,
        now: Vec<u8>,
        writes: Vec<(usize, Vec<u8>)>,
    }

    impl StorageBackend for Disk {
        fn len(&self) -> io::Result<u64> {
            Ok(self.0.lock().unwrap().now.len() as u64)
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            let at = offset as usize;
            out.copy_from_slice(&self.0.lock().unwrap().now[at..at + out.len()]);
            Ok(())
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.0.lock().unwrap().now.resize(len as usize, 0);
            Ok(())
        }

        fn sync_data(&self) -> io::Result<()> {
            let mut platter = self.0.lock().unwrap();
            platter.synced = platter.now.clone();
            platter.writes.clear();
            Ok(())
        }

        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            let mut platter = self.0.lock().unwrap();
            let at = offset as usize;
            platter.now[at..at + data.len()].copy_from_slice(data);
            platter.writes.push((at, data.to_vec()));
            Ok(())
        }
    }

    impl Disk {
        /// The disk after the power went: of each unsynced write as many bytes arrived as `arrived` says.
        fn after_power_loss(&self, arrived: &[u16]) -> Self {
            let platter = self.0.lock().unwrap();
            let mut bytes = platter.synced.clone();
            bytes.resize(platter.now.len().max(bytes.len()), 0);
            for ((at, data), share) in platter.writes.iter().zip(arrived.iter().cycle()) {
                let count = data.len() * usize::from(*share) / usize::from(u16::MAX);
                bytes[*at..at + count].copy_from_slice(&data[..count]);
            }
            Self(Arc::new(Mutex::new(Platter {
                synced: bytes.clone(),
                now: bytes,
                writes: Vec::new(),
            })))
        }
    }

    fn write_round(database: &Database, round: u64) {
        let entries = (0..20_u64)
            .map(|i| {
                (
                    serde_json::to_vec(&format!("k{i}")).unwrap(),
                    Some(serde_json::to_vec(&round).unwrap()),
                )
            })
            .collect();
        write_entries(database, &entries).unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_torn_write_leaves_the_last_whole_commit(
            rounds in 1_u64..8, arrived in proptest::collection::vec(any::<u16>(), 1..12)
        ) {
            let disk = Disk::default();
            let database = builder().create_with_backend(disk.clone()).unwrap();
            (1..=rounds).for_each(|round| write_round(&database, round));
            // A write stopped before its sync: commit without durability, then the power goes.
            let mut txn = database.begin_write().unwrap();
            txn.set_durability(redb::Durability::None).unwrap();
            txn.open_table(ENTRIES).unwrap().insert(&b"\"torn\""[..], &[b'1'; 5000][..]).unwrap();
            txn.commit().unwrap();
            let after = disk.after_power_loss(&arrived);
            let database = builder().create_with_backend(after).unwrap();
            let txn = database.begin_read().unwrap();
            let table = txn.open_table(ENTRIES).unwrap();
            for i in 0..20 {
                let key = serde_json::to_vec(&format!("k{i}")).unwrap();
                let value: u64 = serde_json::from_slice(table.get(key.as_slice()).unwrap().unwrap().value()).unwrap();
                prop_assert_eq!(value, rounds);
            }
        }
    }
}
