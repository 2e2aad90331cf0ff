//! Sums of the accounting: a report on years reads millions of rows, and hands out a few.
//!
//! Leases that go on are returned as rows: their times are the caller's to bring up to date.

use crate::accounting::{self, Accounting, AccountingError, END, Most, Table, conditions, select};
use hop_api::message::{AcctQuery, AcctRow, SumBy, Sums, SumsQuery};
use hop_words::time::{Span, Timestamp};
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};
use std::collections::{HashMap, HashSet};

/// Clocks may have been set between a cell's park and the submission of its next row.
const EARLIER: Span = Span::from_secs(3600);

/// The answer to a [`SumsQuery`].
#[derive(Debug)]
pub struct Summed {
    /// Without the leases that go on.
    pub sums: Vec<Sums>,
    /// Leases that go on.
    pub open: Vec<AcctRow>,
    /// Waits beyond the most that were wanted are missing.
    pub more: bool,
}

impl Accounting {
    /// Sums of what was submitted in the query's time, with at most so many waits. Blocks for the length of the query.
    pub fn sums(&self, query: &SumsQuery, now: Timestamp, waits: usize) -> Result<Summed, AccountingError> {
        let mut reader = self.reader()?;
        // The transaction shows one state of the database: a lease that ends meanwhile counts once.
        let reader = reader.transaction()?;
        let mut groups = Groups::default();
        leases(&reader, query, &mut groups)?;
        let more = cells(&reader, query, waits, &mut groups)?;
        let open = AcctQuery {
            open: true,
            until: Some(query.until),
            ..whose(query)
        };
        let open = select(&reader, Table::Leases, &open, now, Most::ALL)?.into_iter();
        let is_wanted = |row: &AcctRow| {
            let pools = &query.pools;
            (query.since..query.until).contains(&row.submit)
                && (pools.is_empty() || pools.contains(&row.pool))
        };
        Ok(Summed {
            sums: groups.into_sums(),
            open: open.map(|(row, _)| row).filter(is_wanted).collect(),
            more,
        })
    }
}

fn whose(query: &SumsQuery) -> AcctQuery {
    AcctQuery {
        users: query.users.clone(),
        all_users: query.all_users,
        accounts: query.accounts.clone(),
        ..AcctQuery::default()
    }
}

fn column(by: SumBy) -> &'static str {
    match by {
        SumBy::All => "''",
        SumBy::User => "user",
        SumBy::Account => "coalesce(account, '')",
        SumBy::Pool => "pool",
        SumBy::Node => "node",
        SumBy::Name => "name",
    }
}

fn time(t: Timestamp) -> Value {
    Value::Integer(accounting::time(t))
}

/// The condition on the rows, with its values.
fn condition(query: &SumsQuery) -> (String, Vec<Value>) {
    let (mut sql, mut values) = conditions(&whose(query));
    if !query.pools.is_empty() {
        sql += &format!(" AND pool IN ({})", vec!["?"; query.pools.len()].join(", "));
        values.extend(query.pools.iter().map(|pool| Value::Text(pool.to_string())));
    }
    sql += " AND submit >= ? AND submit < ?";
    values.extend([time(query.since), time(query.until)]);
    (sql, values)
}

/// SQLite reads the rows and no more: sorting them into groups there takes several times as long.
fn leases(reader: &Connection, query: &SumsQuery, groups: &mut Groups) -> Result<(), AccountingError> {
    let (condition, values) = condition(query);
    let group = column(query.by);
    let sql = format!(
        "SELECT {group}, user, start IS NOT NULL, state, gpus, held, run FROM leases \
         WHERE {condition} AND \"end\" IS NOT NULL"
    );
    let mut statement = reader.prepare(&sql)?;
    let mut rows = statement.query(params_from_iter(values))?;
    while let Some(row) = rows.next()? {
        let sums = groups.of(text(row, 0)?, text(row, 1)?);
        if !row.get::<_, bool>(2)? {
            sums.add_unbegun(text(row, 3)?);
            continue;
        }
        let span = |i: usize| Ok::<_, rusqlite::Error>(Span(row.get::<_, i64>(i)?.cast_unsigned()));
        sums.add_lease(gpus(text(row, 4)?), span(5)?, span(6)?);
    }
    Ok(())
}

/// The number of GPUs in a row's list.
fn gpus(list: &str) -> u64 {
    match list {
        "" => 0,
        list => 1 + list.bytes().filter(|b| *b == b',').count() as u64,
    }
}

/// Parked cells, by id and kernel, each with the first of its leases here.
type Parked = HashMap<String, Vec<(String, i64)>>;

/// Cells that were parked in the query's time or a little earlier: a parked cell's next row is submitted then.
fn parked(reader: &Connection, query: &SumsQuery) -> Result<Parked, AccountingError> {
    let (condition, mut values) = conditions(&whose(query));
    values.extend([
        time(Timestamp(query.since.0.saturating_sub(EARLIER.0))),
        time(query.until),
    ]);
    let sql = format!(
        "SELECT cell, kernel, min(lease) FROM cells INDEXED BY cells_parked \
         WHERE state = 'PREEMPTED' AND {condition} AND {END} >= ? AND {END} <= ? GROUP BY cell, kernel"
    );
    let mut statement = reader.prepare(&sql)?;
    let mut rows = statement.query(params_from_iter(values))?;
    let mut parked = Parked::new();
    while let Some(row) = rows.next()? {
        let first = (row.get(1)?, row.get(2)?);
        parked.entry(row.get(0)?).or_default().push(first);
    }
    Ok(parked)
}

/// A parked cell has a row for each of its leases, and counts by the first. `true`: waits are missing.
fn cells(
    reader: &Connection,
    query: &SumsQuery,
    mut waits: usize,
    groups: &mut Groups,
) -> Result<bool, AccountingError> {
    let parked = parked(reader, query)?;
    let (condition, values) = condition(query);
    let group = column(query.by);
    let sql = format!(
        "SELECT {group}, user, iif(start IS NULL, NULL, wait), state, cell, kernel, lease FROM cells WHERE {condition}"
    );
    let mut statement = reader.prepare(&sql)?;
    let mut rows = statement.query(params_from_iter(values))?;
    let mut more = false;
    while let Some(row) = rows.next()? {
        let sums = groups.of(text(row, 0)?, text(row, 1)?);
        let again = match parked.get(text(row, 4)?) {
            Some(of_id) => {
                let (kernel, lease) = (text(row, 5)?, row.get::<_, i64>(6)?);
                of_id.iter().any(|(k, first)| k == kernel && *first < lease)
            }
            None => false,
        };
        let wait = row.get::<_, Option<i64>>(2)?.filter(|_| !again);
        let mut wait = wait.map(|wait| Span(wait.cast_unsigned()));
        if wait.is_some() {
            match waits.checked_sub(1) {
                Some(left) => waits = left,
                None => (more, wait) = (true, None),
            }
        }
        sums.add_cell(text(row, 3)?, again, wait);
    }
    Ok(more)
}

fn text<'a>(row: &'a rusqlite::Row<'_>, column: usize) -> Result<&'a str, rusqlite::Error> {
    Ok(row.get_ref(column)?.as_str()?)
}

/// The groups so far.
#[derive(Default)]
struct Groups {
    groups: Vec<Group>,
    by_name: HashMap<String, usize>,
}

#[derive(Default)]
struct Group {
    sums: Sums,
    users: HashSet<String>,
}

impl Groups {
    /// The sums of the group, in which the user has a row.
    fn of(&mut self, group: &str, user: &str) -> &mut Sums {
        let at = match self.by_name.get(group) {
            Some(at) => *at,
            None => {
                self.by_name.insert(group.to_owned(), self.groups.len());
                let mut new = Group::default();
                group.clone_into(&mut new.sums.group);
                self.groups.push(new);
                self.groups.len() - 1
            }
        };
        let group = &mut self.groups[at];
        if !group.users.contains(user) {
            group.users.insert(user.to_owned());
        }
        &mut group.sums
    }

    fn into_sums(self) -> Vec<Sums> {
        let sums = self.groups.into_iter().map(|Group { mut sums, users }| {
            sums.users = users.iter().map(|user| user.as_str().into()).collect();
            sums
        });
        sums.collect()
    }
}
