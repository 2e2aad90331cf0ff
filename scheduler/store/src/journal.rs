//! The journal: the last value of each key, and the term, in a redb file.
//!
//! Keys and values are whatever the caller serialises; they lie as JSON, so that a person can read them with a
//! few lines of code and a field can be added. A file of a newer format is refused with a sentence, a torn or
//! interrupted write leaves the state of the last complete commit (redb's copy-on-write with checksums), and two
//! daemons can't open one file (it is locked) nor share a term (it grows with each open, durably).

use crate::writer::{Health, SaveError, Sink, Ticket, Writer};
use hop_core::id::Term;
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

/// What a journal held when it was opened.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot<K, V> {
    /// The term of the daemon that opened it: one more than the last, and durable already. An id made of the
    /// term and a counter in memory is never used twice, without waiting for the disk.
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
    /// Opens or creates the journal at `path`, begins a new term, and reads what is there.
    pub fn open(path: &Path) -> Result<(Self, Snapshot<K, V>), JournalOpenError> {
        let database = open_file(path)?;
        let last = read_header(&database, path)?;
        let term = last + 1;
        let entries = read_entries(&database, path)?;
        write_header(&database, term).map_err(|error| open_error(path, error))?;
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

    /// Queues changes and waits until they are durable. An error says that they are not durable *yet*.
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

    /// Waits until everything posted so far is durable.
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

/// The file as the writer's thread has it.
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
    builder
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
        // What redb says of a file that does not begin with its magic.
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
