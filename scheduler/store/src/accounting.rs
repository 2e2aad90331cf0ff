//! The accounting database: SQLite, with a row per lease, and a row per cell on a lease.
//!
//! Rows are [`AcctRow`]s, written again under the same key as a lease goes on; a lease that has ended stays ended.
//! Each query has a connection of its own (WAL), so a long report holds nobody up.

use crate::writer::{Health, SaveError, Sink, Ticket, Writer};
use hop_api::message::{AcctQuery, AcctRow};
use hop_words::id::{CellId, GpuIndex, JobId, LeaseId, NodeName};
use hop_words::time::{Span, Timestamp};
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags, Row, Transaction, params, params_from_iter};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};

/// `PRAGMA user_version`. Rule: raised by every change of the tables; older ones are brought up to it at open.
const SCHEMA: i64 = 1;
/// `PRAGMA application_id`: "hop1".
const APPLICATION: i64 = 0x686f_7031;

const CREATE: &str = "
CREATE TABLE leases (
    lease INTEGER PRIMARY KEY,
    user TEXT NOT NULL, account TEXT, pool TEXT NOT NULL, kernel TEXT NOT NULL, name TEXT NOT NULL,
    node TEXT NOT NULL, gpus TEXT NOT NULL, cpus INTEGER NOT NULL, pilot INTEGER NOT NULL, step INTEGER NOT NULL,
    state TEXT NOT NULL, submit INTEGER NOT NULL, start INTEGER, \"end\" INTEGER,
    wait INTEGER NOT NULL, held INTEGER NOT NULL, run INTEGER NOT NULL, linger INTEGER NOT NULL,
    cells INTEGER NOT NULL, reason TEXT NOT NULL
) STRICT;
CREATE INDEX leases_user ON leases (user, submit);
CREATE INDEX leases_submit ON leases (submit);
CREATE TABLE lease_gpus (
    lease INTEGER NOT NULL, node TEXT NOT NULL, gpu INTEGER NOT NULL,
    PRIMARY KEY (lease, gpu)
) STRICT, WITHOUT ROWID;
CREATE TABLE cells (
    lease INTEGER NOT NULL, cell TEXT NOT NULL,
    user TEXT NOT NULL, account TEXT, pool TEXT NOT NULL, kernel TEXT NOT NULL, name TEXT NOT NULL,
    node TEXT NOT NULL, gpus TEXT NOT NULL, cpus INTEGER NOT NULL, pilot INTEGER NOT NULL, step INTEGER NOT NULL,
    state TEXT NOT NULL, submit INTEGER NOT NULL, start INTEGER, \"end\" INTEGER,
    wait INTEGER NOT NULL, held INTEGER NOT NULL, run INTEGER NOT NULL, linger INTEGER NOT NULL,
    cells INTEGER NOT NULL, reason TEXT NOT NULL,
    PRIMARY KEY (lease, cell)
) STRICT, WITHOUT ROWID;
";

/// A lease's end; beyond all times while it goes on.
pub(crate) const END: &str = "coalesce(\"end\", 9223372036854775807)";

/// Queries with a user or an earliest time read no others' rows, and sums those of their time alone. Older releases keep these indexes up as well.
fn indexes() -> String {
    format!(
        "CREATE INDEX IF NOT EXISTS leases_end ON leases ({END});
         CREATE INDEX IF NOT EXISTS leases_user_end ON leases (user, {END});
         CREATE INDEX IF NOT EXISTS cells_end ON cells ({END});
         CREATE INDEX IF NOT EXISTS cells_user_end ON cells (user, {END});
         CREATE INDEX IF NOT EXISTS cells_submit ON cells (submit);
         CREATE INDEX IF NOT EXISTS cells_parked ON cells ({END}) WHERE state = 'PREEMPTED';"
    )
}

const COLUMNS: &str = "user, account, pool, kernel, name, node, gpus, cpus, pilot, step, state, submit, start, \"end\", \
                       wait, held, run, linger, cells, reason";

/// Why the database can't be used.
#[derive(Debug, thiserror::Error)]
pub enum AccountingOpenError {
    #[error("{} was written by a newer release (schema {found}, this release knows {SCHEMA}): install that release again", .path.display())]
    Newer { path: PathBuf, found: i64 },
    #[error("{} is a database of something else", .0.display())]
    Foreign(PathBuf),
    #[error("{} is damaged: {why}; restore a copy, or move the file away, and the accounting begins anew", .path.display())]
    Damaged { path: PathBuf, why: String },
    #[error("{} can't be opened", .path.display())]
    Sqlite {
        path: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
    #[error("no thread for {}", .path.display())]
    Thread {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Why rows could not be read or removed.
#[derive(Debug, thiserror::Error)]
pub enum AccountingError {
    #[error("the accounting database could not be read")]
    Sqlite(#[from] rusqlite::Error),
    #[error("lease {lease} has a value that can't be read: {value}")]
    Value { lease: i64, value: String },
}

/// Something that doesn't add up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Discrepancy {
    /// Two leases had one GPU at the same time.
    Overlap {
        node: NodeName,
        gpu: GpuIndex,
        first: LeaseId,
        second: LeaseId,
        by: Span,
    },
    /// An ended lease whose held time isn't the time between start and end.
    Held { lease: LeaseId, held: Span, wall: Span },
    /// Cells ran and it lingered for longer than the lease was held.
    RunBeyondHeld {
        lease: LeaseId,
        run: Span,
        linger: Span,
        held: Span,
    },
    /// The lease counts other cells than have rows.
    CellCount { lease: LeaseId, counted: u32, rows: u32 },
    /// A cell without its lease.
    Orphan { lease: LeaseId, cell: CellId },
}

/// The open database.
#[derive(Debug)]
pub struct Accounting {
    writer: Writer<RowKey, AcctRow>,
    path: PathBuf,
}

/// Bounds of an answer.
#[derive(Debug, Clone, Copy)]
pub struct Most {
    pub rows: usize,
    /// Of the rows as JSON.
    pub bytes: usize,
}

impl Most {
    pub(crate) const ALL: Self = Self {
        rows: usize::MAX,
        bytes: usize::MAX,
    };

    /// Whether a row of `size` fits; if so, takes the room for the row.
    fn takes(&mut self, size: usize) -> bool {
        match (self.rows.checked_sub(1), self.bytes.checked_sub(size)) {
            (Some(rows), Some(bytes)) => {
                *self = Self { rows, bytes };
                true
            }
            _ => false,
        }
    }

    /// The size of a row as JSON, with its comma; 0 without a bound of bytes.
    fn size(self, row: &AcctRow) -> usize {
        if self.bytes == usize::MAX {
            return 0;
        }
        let mut size = Size(1);
        serde_json::to_writer(&mut size, row).map_or(usize::MAX, |()| size.0)
    }
}

/// Counts what is written.
struct Size(usize);

impl io::Write for Size {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The first rows of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct First {
    pub rows: Vec<AcctRow>,
    /// More rows fit the query.
    pub more: bool,
}

/// A lease's row comes before the rows of its cells.
type RowKey = (LeaseId, Option<CellId>);

impl Accounting {
    /// Opens or creates the database at `path`. `known` tells that it was there before.
    pub fn open_known(path: &Path, known: bool) -> Result<Self, AccountingOpenError> {
        if known && std::fs::metadata(path).is_ok_and(|file| file.len() == 0) {
            return Err(AccountingOpenError::Damaged {
                path: path.to_owned(),
                why: "it is empty".to_owned(),
            });
        }
        Self::open(path)
    }

    /// Opens or creates the database at `path`.
    pub fn open(path: &Path) -> Result<Self, AccountingOpenError> {
        let sqlite = |source| open_error(path, source);
        let mut connection = Connection::open(path).map_err(sqlite)?;
        check_owner(&connection, path)?;
        prepare(&mut connection).map_err(sqlite)?;
        let sink = Tables {
            path: path.to_owned(),
            connection,
        };
        let writer = Writer::start("accounting", sink).map_err(|source| AccountingOpenError::Thread {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            writer,
            path: path.to_owned(),
        })
    }

    /// Queues rows of leases (`cell` is `None`) and of cells. A row without an end is replaced by a later row of the
    /// same lease and cell; a row with an end is final. Never waits for the disk.
    pub fn record(&self, rows: impl IntoIterator<Item = AcctRow>) -> Ticket {
        self.writer.post(
            rows.into_iter()
                .map(|row| ((row.lease, row.cell.clone()), row))
                .collect(),
        )
    }

    /// Rows that overlap the query's time, ordered by lease; each lease is followed by its cells if the query wants
    /// them. A running lease is `held` until `now`. Blocks for the length of the query.
    pub fn query(&self, query: &AcctQuery, now: Timestamp) -> Result<Vec<AcctRow>, AccountingError> {
        Ok(self.first(query, now, Most::ALL)?.rows)
    }

    /// The first rows of [`Accounting::query`]. Reads little more than these.
    pub fn first(&self, query: &AcctQuery, now: Timestamp, most: Most) -> Result<First, AccountingError> {
        let reader = self.reader()?;
        let mut rows = select(&reader, Table::Leases, query, now, most)?;
        if query.cells {
            rows.extend(select(&reader, Table::Cells, query, now, most)?);
            rows.sort_by(|(a, _), (b, _)| {
                (a.lease, a.cell.is_some(), a.start, &a.cell).cmp(&(
                    b.lease,
                    b.cell.is_some(),
                    b.start,
                    &b.cell,
                ))
            });
        }
        let mut room = most;
        let fit = rows.iter().take_while(|(_, size)| room.takes(*size)).count();
        let more = fit < rows.len();
        let rows = rows.into_iter().take(fit).map(|(row, _)| row).collect();
        Ok(First { rows, more })
    }

    pub(crate) fn reader(&self) -> Result<Connection, rusqlite::Error> {
        let reader = Connection::open_with_flags(&self.path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        reader.busy_timeout(std::time::Duration::from_secs(5))?;
        Ok(reader)
    }

    /// The highest lease that has a row. Blocks.
    pub fn last_lease(&self) -> Result<LeaseId, AccountingError> {
        let reader = self.reader()?;
        let last: Option<i64> = reader.query_row("SELECT max(lease) FROM leases", [], |row| row.get(0))?;
        Ok(LeaseId(last.and_then(|id| u64::try_from(id).ok()).unwrap_or(0)))
    }

    /// Removes leases that ended before `before`, with their cells; returns how many. Blocks.
    pub fn prune(&self, before: Timestamp) -> Result<usize, AccountingError> {
        let mut connection = Connection::open(&self.path)?;
        connection.busy_timeout(std::time::Duration::from_secs(5))?;
        let txn = connection.transaction()?;
        let old = format!("{END} < ?1");
        let gone = format!("(SELECT lease FROM leases WHERE {old})");
        txn.execute(
            &format!("DELETE FROM cells WHERE lease IN {gone}"),
            params![time(before)],
        )?;
        txn.execute(
            &format!("DELETE FROM lease_gpus WHERE lease IN {gone}"),
            params![time(before)],
        )?;
        let removed = txn.execute(&format!("DELETE FROM leases WHERE {old}"), params![time(before)])?;
        txn.commit()?;
        // Each step gives one page back.
        let mut vacuum = connection.prepare("PRAGMA incremental_vacuum")?;
        let mut pages = vacuum.query([])?;
        while pages.next()?.is_some() {}
        Ok(removed)
    }

    /// Rows that don't add up, with running leases taken until `now`. Blocks.
    pub fn check(&self, now: Timestamp) -> Result<Vec<Discrepancy>, AccountingError> {
        let reader = self.reader()?;
        let mut found = overlaps(&reader, now)?;
        found.extend(sums(&reader)?);
        found.extend(orphans(&reader)?);
        Ok(found)
    }

    pub fn health(&self) -> Health {
        self.writer.health()
    }
}

fn open_error(path: &Path, source: rusqlite::Error) -> AccountingOpenError {
    let path = path.to_owned();
    match source.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DatabaseCorrupt) => AccountingOpenError::Damaged {
            path,
            why: source.to_string(),
        },
        _ => AccountingOpenError::Sqlite { path, source },
    }
}

fn check_owner(connection: &Connection, path: &Path) -> Result<(), AccountingOpenError> {
    let pragma = |name| {
        connection
            .query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i64>(0))
            .map_err(|source| match source.sqlite_error_code() {
                Some(rusqlite::ErrorCode::NotADatabase) => AccountingOpenError::Foreign(path.to_owned()),
                _ => open_error(path, source),
            })
    };
    let (owner, found) = (pragma("application_id")?, pragma("user_version")?);
    match (owner, found) {
        (0, 0) => Ok(()),
        (APPLICATION, found) if found > SCHEMA => Err(AccountingOpenError::Newer {
            path: path.to_owned(),
            found,
        }),
        (APPLICATION, _) => Ok(()),
        _ => Err(AccountingOpenError::Foreign(path.to_owned())),
    }
}

fn prepare(connection: &mut Connection) -> Result<(), rusqlite::Error> {
    connection.busy_timeout(std::time::Duration::from_secs(5))?;
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if version == 0 {
        connection.execute_batch("PRAGMA auto_vacuum = INCREMENTAL")?;
    }
    connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")?;
    if version == 0 {
        let txn = connection.transaction()?;
        txn.execute_batch(CREATE)?;
        txn.execute_batch(&format!(
            "PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {SCHEMA};"
        ))?;
        txn.commit()?;
    }
    connection.execute_batch(&indexes())
}

/// The database in the writer's thread.
struct Tables {
    path: PathBuf,
    connection: Connection,
}

impl Sink<RowKey, AcctRow> for Tables {
    fn save(&mut self, entries: &BTreeMap<RowKey, AcctRow>) -> Result<(), SaveError> {
        let path = self.path.clone();
        let write = |txn: &Transaction<'_>| entries.values().try_for_each(|row| upsert(txn, row));
        let result = self.connection.transaction().and_then(|txn| {
            write(&txn)?;
            txn.commit()
        });
        result.map_err(|error| save_error(&path, error))
    }
}

fn upsert(txn: &Transaction<'_>, row: &AcctRow) -> Result<(), rusqlite::Error> {
    let (table, key) = match row.cell {
        None => ("leases", "lease"),
        Some(_) => ("cells", "lease, cell"),
    };
    let marks: Vec<String> = (1..=20).map(|i| format!("?{i}")).collect();
    let set: Vec<String> = COLUMNS
        .split(", ")
        .map(|column| format!("{column} = excluded.{column}"))
        .collect();
    let mut values = columns(row);
    values.push(Value::Integer(row.lease.0.cast_signed()));
    let more = match &row.cell {
        None => "?21",
        Some(cell) => {
            values.push(Value::Text(cell.to_string()));
            "?21, ?22"
        }
    };
    let sql = format!(
        "INSERT INTO {table} ({COLUMNS}, {key}) VALUES ({}, {more}) ON CONFLICT ({key}) DO UPDATE SET {} \
         WHERE {table}.\"end\" IS NULL",
        marks.join(", "),
        set.join(", ")
    );
    txn.prepare_cached(&sql)?.execute(params_from_iter(values))?;
    if row.cell.is_none() {
        write_gpus(txn, row)?;
    }
    Ok(())
}

fn write_gpus(txn: &Transaction<'_>, row: &AcctRow) -> Result<(), rusqlite::Error> {
    let mut insert =
        txn.prepare_cached("INSERT OR REPLACE INTO lease_gpus (lease, node, gpu) VALUES (?1, ?2, ?3)")?;
    for gpu in &row.gpus {
        insert.execute(params![row.lease.0.cast_signed(), row.node.as_str(), gpu.0])?;
    }
    Ok(())
}

/// The values of [`COLUMNS`].
fn columns(row: &AcctRow) -> Vec<Value> {
    let text = |value: &str| Value::Text(value.to_owned());
    let optional = |value: Option<Timestamp>| value.map_or(Value::Null, |t| Value::Integer(time(t)));
    let gpus: Vec<String> = row.gpus.iter().map(ToString::to_string).collect();
    vec![
        text(row.user.as_str()),
        row.account
            .as_ref()
            .map_or(Value::Null, |account| text(account.as_str())),
        text(row.pool.as_str()),
        text(row.kernel.as_str()),
        text(&row.name),
        text(row.node.as_str()),
        text(&gpus.join(",")),
        Value::Integer(row.cpus.into()),
        Value::Integer(row.pilot.0.into()),
        Value::Integer(row.step.into()),
        text(&row.state),
        Value::Integer(time(row.submit)),
        optional(row.start),
        optional(row.end),
        Value::Integer(span(row.wait)),
        Value::Integer(span(row.held)),
        Value::Integer(span(row.run)),
        Value::Integer(span(row.linger)),
        Value::Integer(row.cells.into()),
        text(&row.reason),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Table {
    Leases,
    Cells,
}

/// The first rows, each with its size, and one beyond `most`.
pub(crate) fn select(
    reader: &Connection,
    table: Table,
    query: &AcctQuery,
    now: Timestamp,
    mut most: Most,
) -> Result<Vec<(AcctRow, usize)>, AccountingError> {
    let (sql, values) = statement(table, query, most.rows);
    let mut statement = reader.prepare(&sql)?;
    let mut rows = statement.query(params_from_iter(values))?;
    let mut out = Vec::new();
    while let Some(row) = rows.next()? {
        let row = read_row(row, now)?;
        let size = most.size(&row);
        let fits = most.takes(size);
        out.push((row, size));
        if !fits {
            break;
        }
    }
    Ok(out)
}

/// Asks for this many rows and one more: if the last comes, the answer isn't whole.
fn statement(table: Table, query: &AcctQuery, rows: usize) -> (String, Vec<Value>) {
    let (own, values) = conditions(query);
    let limit = i64::try_from(rows).map_or(-1, |rows| rows.saturating_add(1));
    // Rows since some time are found by their ends, which is less to read than all leases in their order.
    let lease = if query.since.is_some() { "+lease" } else { "lease" };
    let leases = format!("FROM leases WHERE {own} ORDER BY {lease} LIMIT {limit}");
    let sql = match table {
        Table::Leases => format!("SELECT {COLUMNS}, lease, NULL {leases}"),
        Table::Cells => {
            let condition = match query.whole {
                true => format!("lease IN (SELECT lease {leases})"),
                false => own,
            };
            format!(
                "SELECT {COLUMNS}, lease, cell FROM cells WHERE {condition} ORDER BY lease, start, cell LIMIT {limit}"
            )
        }
    };
    (sql, values)
}

pub(crate) fn conditions(query: &AcctQuery) -> (String, Vec<Value>) {
    let (mut parts, mut values) = (vec!["1".to_owned()], Vec::new());
    let mut list = |column: &str, items: Vec<Value>| {
        if !items.is_empty() {
            parts.push(format!("{column} IN ({})", vec!["?"; items.len()].join(", ")));
            values.extend(items);
        }
    };
    let text = |value: &str| Value::Text(value.to_owned());
    if !query.all_users {
        list(
            "user",
            query.users.iter().map(|user| text(user.as_str())).collect(),
        );
    }
    list(
        "account",
        query
            .accounts
            .iter()
            .map(|account| text(account.as_str()))
            .collect(),
    );
    list(
        "kernel",
        query.kernels.iter().map(|kernel| text(kernel.as_str())).collect(),
    );
    list(
        "lease",
        query
            .leases
            .iter()
            .map(|lease| Value::Integer(lease.0.cast_signed()))
            .collect(),
    );
    list(
        "node",
        query.nodes.iter().map(|node| text(node.as_str())).collect(),
    );
    if query.open {
        parts.push(format!(
            "lease IN (SELECT lease FROM leases WHERE {END} = {})",
            i64::MAX
        ));
    }
    if let Some(since) = query.since {
        parts.push(format!("{END} >= ?"));
        values.push(Value::Integer(time(since)));
    }
    if let Some(until) = query.until {
        parts.push("submit <= ?".to_owned());
        values.push(Value::Integer(time(until)));
    }
    (parts.join(" AND "), values)
}

fn read_row(row: &Row<'_>, now: Timestamp) -> Result<AcctRow, AccountingError> {
    let text = |i: usize| row.get::<_, String>(i);
    let lease: i64 = row.get(20)?;
    let at = |i: usize| -> Result<Option<Timestamp>, rusqlite::Error> {
        Ok(row
            .get::<_, Option<i64>>(i)?
            .map(|t| Timestamp(t.cast_unsigned())))
    };
    let length =
        |i: usize| -> Result<Span, rusqlite::Error> { Ok(Span(row.get::<_, i64>(i)?.cast_unsigned())) };
    let (start, end) = (at(12)?, at(13)?);
    let held = match (start, end) {
        (Some(start), None) => now.since(start),
        _ => length(15)?,
    };
    Ok(AcctRow {
        lease: LeaseId(lease.cast_unsigned()),
        cell: row.get::<_, Option<String>>(21)?.map(CellId::from),
        user: text(0)?.into(),
        account: row.get::<_, Option<String>>(1)?.map(Into::into),
        pool: text(2)?.into(),
        kernel: text(3)?.into(),
        name: text(4)?,
        node: text(5)?.into(),
        gpus: read_gpus(lease, &text(6)?)?,
        cpus: row.get(7)?,
        pilot: JobId(row.get(8)?),
        step: row.get(9)?,
        state: text(10)?,
        submit: at(11)?.unwrap_or_default(),
        start,
        end,
        wait: length(14)?,
        held,
        run: length(16)?,
        linger: length(17)?,
        cells: row.get(18)?,
        reason: text(19)?,
    })
}

fn read_gpus(lease: i64, list: &str) -> Result<Vec<GpuIndex>, AccountingError> {
    let read = |word: &str| {
        word.parse().map_err(|_| AccountingError::Value {
            lease,
            value: list.to_owned(),
        })
    };
    list.split(',')
        .filter(|word| !word.is_empty())
        .map(read)
        .collect()
}

/// Leases of a single GPU, in order of start: each must begin after the end of all before.
fn overlaps(reader: &Connection, now: Timestamp) -> Result<Vec<Discrepancy>, AccountingError> {
    let sql = "SELECT g.node, g.gpu, l.lease, l.start, coalesce(l.\"end\", ?1) FROM lease_gpus g JOIN leases l USING (lease) \
               WHERE l.start IS NOT NULL ORDER BY g.node, g.gpu, l.start, l.lease";
    let mut statement = reader.prepare(sql)?;
    let mut rows = statement.query(params![time(now)])?;
    let mut busy: HashMap<(String, u16), (LeaseId, u64)> = HashMap::new();
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let slot: (String, u16) = (row.get(0)?, row.get(1)?);
        let lease = LeaseId(row.get::<_, i64>(2)?.cast_unsigned());
        let (start, end) = (
            row.get::<_, i64>(3)?.cast_unsigned(),
            row.get::<_, i64>(4)?.cast_unsigned(),
        );
        let last = busy.get(&slot).copied();
        if let Some((first, until)) = last.filter(|(_, until)| *until > start) {
            found.push(Discrepancy::Overlap {
                node: slot.0.as_str().into(),
                gpu: GpuIndex(slot.1),
                first,
                second: lease,
                by: Span(until.min(end) - start),
            });
        }
        if last.is_none_or(|(_, until)| end > until) {
            busy.insert(slot, (lease, end));
        }
    }
    Ok(found)
}

fn sums(reader: &Connection) -> Result<Vec<Discrepancy>, AccountingError> {
    let sql = "SELECT lease, held, \"end\" - start, run, linger, cells, \
               (SELECT count(*) FROM cells c WHERE c.lease = leases.lease) FROM leases \
               WHERE \"end\" IS NOT NULL AND start IS NOT NULL";
    let mut statement = reader.prepare(sql)?;
    let mut rows = statement.query([])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let lease = LeaseId(row.get::<_, i64>(0)?.cast_unsigned());
        let length = |i: usize| -> Result<Span, rusqlite::Error> {
            Ok(Span(row.get::<_, i64>(i)?.max(0).cast_unsigned()))
        };
        let (held, wall, run, linger) = (length(1)?, length(2)?, length(3)?, length(4)?);
        if held != wall {
            found.push(Discrepancy::Held { lease, held, wall });
        }
        if run.0 + linger.0 > held.0 {
            found.push(Discrepancy::RunBeyondHeld {
                lease,
                run,
                linger,
                held,
            });
        }
        let (counted, rows): (u32, u32) = (row.get(5)?, row.get(6)?);
        if counted != rows {
            found.push(Discrepancy::CellCount { lease, counted, rows });
        }
    }
    Ok(found)
}

fn orphans(reader: &Connection) -> Result<Vec<Discrepancy>, AccountingError> {
    let mut statement = reader.prepare(
        "SELECT lease, cell FROM cells WHERE lease NOT IN (SELECT lease FROM leases) ORDER BY lease, cell",
    )?;
    let rows = statement.query_map([], |row| {
        Ok(Discrepancy::Orphan {
            lease: LeaseId(row.get::<_, i64>(0)?.cast_unsigned()),
            cell: row.get::<_, String>(1)?.into(),
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(crate) fn time(t: Timestamp) -> i64 {
    t.0.min(i64::MAX as u64).cast_signed()
}

fn span(s: Span) -> i64 {
    s.0.min(i64::MAX as u64).cast_signed()
}

fn save_error(path: &Path, error: rusqlite::Error) -> SaveError {
    use rusqlite::ErrorCode as C;
    let kind = match error.sqlite_error_code() {
        Some(C::DiskFull) => io::ErrorKind::StorageFull,
        Some(C::SystemIoFailure | C::CannotOpen) => io::ErrorKind::Other,
        _ => {
            return SaveError::Database {
                path: path.to_owned(),
                reason: error.to_string(),
            };
        }
    };
    SaveError::io(path, io::Error::new(kind, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How SQLite carries the statement out, a line for each step.
    fn plan(connection: &Connection, (sql, values): (String, Vec<Value>)) -> String {
        let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let steps = statement.query_map(params_from_iter(values), |row| row.get::<_, String>(3));
        let steps: Vec<String> = steps.unwrap().map(Result::unwrap).collect();
        steps.join("\n")
    }

    #[test]
    fn a_query_of_users_or_since_a_time_reads_no_other_rows() {
        let mut connection = Connection::open_in_memory().unwrap();
        prepare(&mut connection).unwrap();
        let of = |query: AcctQuery| AcctQuery {
            users: vec!["ada".into()],
            ..query
        };
        let since = Some(Timestamp(5));
        let bounds = [
            of(AcctQuery::default()),
            of(AcctQuery {
                since,
                ..AcctQuery::default()
            }),
            of(AcctQuery {
                since,
                until: Some(Timestamp(6)),
                ..AcctQuery::default()
            }),
            of(AcctQuery {
                until: Some(Timestamp(6)),
                ..AcctQuery::default()
            }),
            of(AcctQuery {
                open: true,
                ..AcctQuery::default()
            }),
            AcctQuery {
                open: true,
                ..AcctQuery::default()
            },
            AcctQuery {
                since,
                ..AcctQuery::default()
            },
        ];
        for query in bounds {
            for (table, whole) in [
                (Table::Leases, false),
                (Table::Cells, false),
                (Table::Cells, true),
            ] {
                let query = AcctQuery {
                    whole,
                    ..query.clone()
                };
                let plan = plan(&connection, statement(table, &query, 7));
                assert!(!plan.contains("SCAN"), "{query:?}\n{plan}");
                let by_end = query.since.is_some();
                assert!(!by_end || plan.contains("<expr>>?"), "{query:?}\n{plan}");
            }
        }
    }
}
