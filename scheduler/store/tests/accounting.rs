//! The accounting database: one row per lease, queries, retention, and whether it adds up.

#![allow(clippy::unwrap_used, reason = "a test")]

use hop_api::message::{AcctQuery, AcctRow, SumBy, Sums, SumsQuery, add_rows};
use hop_store::{Accounting, AccountingOpenError, Discrepancy, First, Most};
use hop_words::id::{GpuIndex, JobId, LeaseId};
use hop_words::time::{Span, Timestamp};
use std::collections::BTreeMap;
use std::path::Path;

fn at(seconds: u64) -> Timestamp {
    Timestamp(seconds * 1_000_000)
}

/// A lease of GPU `gpu` on n1 from `start` to `end` (0: it goes on), in seconds.
fn lease(id: u64, user: &str, gpu: u16, start: u64, end: u64) -> AcctRow {
    let ended = end > 0;
    let held = if ended {
        Span::from_secs(end - start)
    } else {
        Span::ZERO
    };
    AcctRow {
        lease: LeaseId(id),
        cell: None,
        user: user.into(),
        account: Some("lab".into()),
        pool: "main".into(),
        kernel: format!("kernel-{user}").as_str().into(),
        name: "it's; a \"notebook\"".into(),
        node: "n1".into(),
        gpus: vec![GpuIndex(gpu)],
        cpus: 2,
        pilot: JobId(100),
        step: id as u32,
        state: if ended { "COMPLETED" } else { "RUNNING" }.into(),
        submit: at(start - 1),
        start: Some(at(start)),
        end: ended.then(|| at(end)),
        wait: Span::from_secs(1),
        held,
        run: held,
        linger: Span::ZERO,
        cells: 0,
        reason: String::new(),
    }
}

fn cell(of: &AcctRow, name: &str) -> AcctRow {
    AcctRow {
        cell: Some(name.into()),
        ..of.clone()
    }
}

fn open(path: &Path) -> Accounting {
    Accounting::open(path).unwrap()
}

fn record(accounting: &Accounting, rows: impl IntoIterator<Item = AcctRow>) {
    accounting.record(rows).durable_blocking().unwrap();
}

fn ids(rows: &[AcctRow]) -> Vec<u64> {
    rows.iter().map(|row| row.lease.0).collect()
}

#[test]
fn a_lease_has_one_row_and_an_end_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("accounting.db");
    let accounting = open(&path);
    record(&accounting, [lease(1, "alice", 0, 10, 0)]);
    let running = accounting.query(&AcctQuery::default(), at(25)).unwrap();
    assert_eq!(
        (running.len(), running[0].held),
        (1, Span::from_secs(15)),
        "held until now"
    );
    let ended = lease(1, "alice", 0, 10, 30);
    record(&accounting, [ended.clone()]);
    record(&accounting, [lease(1, "alice", 0, 10, 0)]);
    drop(accounting);
    assert_eq!(open(&path).query(&AcctQuery::default(), at(99)).unwrap(), [ended]);
}

fn names(rows: &[AcctRow]) -> Vec<Option<&str>> {
    rows.iter()
        .map(|row| row.cell.as_ref().map(|cell| cell.as_str()))
        .collect()
}

#[test]
fn queries_filter_and_cells_follow_their_lease() {
    let folder = tempfile::tempdir().unwrap();
    let accounting = open(&folder.path().join("accounting.db"));
    let (mut a, b) = (lease(1, "alice", 0, 10, 30), lease(2, "bob", 1, 20, 0));
    a.cells = 2;
    let cells = [cell(&a, "b-cell"), cell(&a, "a-cell"), cell(&b, "c")];
    let (mut early, mut late) = (cell(&b, "early"), cell(&b, "late"));
    (early.end, late.end) = (Some(at(21)), Some(at(29)));
    record(&accounting, [a, b]);
    record(&accounting, cells);
    let query = |query: AcctQuery| accounting.query(&query, at(100)).unwrap();
    assert_eq!(ids(&query(AcctQuery::default())), [1, 2]);
    let with_cells = query(AcctQuery {
        cells: true,
        ..AcctQuery::default()
    });
    assert_eq!(
        names(&with_cells),
        [None, Some("a-cell"), Some("b-cell"), None, Some("c")]
    );
    assert_eq!(
        ids(&query(AcctQuery {
            users: vec!["bob".into()],
            ..AcctQuery::default()
        })),
        [2]
    );
    let everybody = AcctQuery {
        users: vec!["bob".into()],
        all_users: true,
        ..AcctQuery::default()
    };
    assert_eq!(ids(&query(everybody)), [1, 2]);
    assert_eq!(
        ids(&query(AcctQuery {
            kernels: vec!["kernel-alice".into()],
            ..AcctQuery::default()
        })),
        [1]
    );
    assert_eq!(
        ids(&query(AcctQuery {
            leases: vec![LeaseId(2)],
            ..AcctQuery::default()
        })),
        [2]
    );
    assert_eq!(
        ids(&query(AcctQuery {
            nodes: vec!["n2".into()],
            ..AcctQuery::default()
        })),
        [0_u64; 0]
    );
    assert_eq!(
        ids(&query(AcctQuery {
            accounts: vec!["lab".into()],
            since: Some(at(31)),
            ..AcctQuery::default()
        })),
        [2]
    );
    assert_eq!(
        ids(&query(AcctQuery {
            until: Some(at(15)),
            ..AcctQuery::default()
        })),
        [1]
    );
    record(&accounting, [early, late]);
    let later = |whole| AcctQuery {
        users: vec!["bob".into()],
        since: Some(at(28)),
        cells: true,
        whole,
        ..AcctQuery::default()
    };
    assert_eq!(names(&query(later(false))), [None, Some("c"), Some("late")]);
    assert_eq!(
        names(&query(later(true))),
        [None, Some("c"), Some("early"), Some("late")]
    );
    let injection = AcctQuery {
        users: vec!["x' OR '1'='1".into()],
        ..AcctQuery::default()
    };
    assert_eq!(ids(&query(injection)), [0_u64; 0]);
}

#[test]
fn an_answer_has_the_first_rows_and_says_that_there_are_more() {
    let folder = tempfile::tempdir().unwrap();
    let accounting = open(&folder.path().join("accounting.db"));
    let leases: Vec<AcctRow> = (1..=6)
        .map(|id| lease(id, "ada", 0, 10 * id, 10 * id + 5))
        .collect();
    let cells = leases.iter().flat_map(|l| [cell(l, "b"), cell(l, "a")]);
    record(&accounting, leases.iter().cloned().chain(cells));
    for (cells, whole) in [(false, false), (true, false), (true, true)] {
        let query = AcctQuery {
            users: vec!["ada".into()],
            since: Some(at(1)),
            cells,
            whole,
            ..AcctQuery::default()
        };
        let all = accounting.query(&query, at(100)).unwrap();
        let sizes = all
            .iter()
            .map(|row| serde_json::to_string(row).unwrap().len() + 1);
        let sizes: Vec<usize> = sizes.collect();
        for count in 0..=all.len() {
            let first = |rows, bytes| accounting.first(&query, at(100), Most { rows, bytes }).unwrap();
            let wanted = First {
                rows: all[..count].to_vec(),
                more: count < all.len(),
            };
            assert_eq!(first(count, usize::MAX), wanted);
            assert_eq!(first(usize::MAX, sizes[..count].iter().sum()), wanted);
        }
    }
}

#[test]
fn a_database_without_the_indexes_of_today_gets_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("accounting.db");
    record(&open(&path), [lease(1, "ada", 0, 10, 20)]);
    let indexes = || -> Vec<String> {
        let connection = rusqlite::Connection::open(&path).unwrap();
        let sql = "SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL ORDER BY name";
        let mut statement = connection.prepare(sql).unwrap();
        let names = statement.query_map([], |row| row.get(0)).unwrap();
        names.map(Result::unwrap).collect()
    };
    let today = indexes();
    let new = [
        "cells_end",
        "cells_parked",
        "cells_submit",
        "cells_user_end",
        "leases_end",
        "leases_user_end",
    ];
    let drop = new.map(|name| format!("DROP INDEX {name};")).concat();
    rusqlite::Connection::open(&path)
        .unwrap()
        .execute_batch(&drop)
        .unwrap();
    assert_eq!(indexes(), ["leases_submit", "leases_user"], "as once");
    let accounting = open(&path);
    assert_eq!(indexes(), today);
    assert_eq!(
        ids(&accounting.query(&AcctQuery::default(), at(99)).unwrap()),
        [1]
    );
}

#[test]
fn what_does_not_add_up_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let accounting = open(&folder.path().join("accounting.db"));
    record(
        &accounting,
        [
            lease(1, "alice", 0, 10, 30),
            lease(2, "bob", 0, 30, 40),
            lease(3, "bob", 1, 15, 20),
        ],
    );
    assert_eq!(accounting.check(at(100)).unwrap(), []);
    let mut wrong = lease(6, "alice", 3, 10, 20);
    wrong.held = Span::from_secs(11);
    wrong.linger = Span::from_secs(5);
    wrong.cells = 1;
    let orphan = cell(&lease(9, "bob", 5, 1, 2), "lost");
    record(
        &accounting,
        [
            lease(4, "carol", 0, 39, 0),
            lease(5, "carol", 0, 90, 95),
            wrong,
            orphan,
        ],
    );
    let overlap = |first, second, by| Discrepancy::Overlap {
        node: "n1".into(),
        gpu: GpuIndex(0),
        first: LeaseId(first),
        second: LeaseId(second),
        by: Span::from_secs(by),
    };
    let (held, wall) = (Span::from_secs(11), Span::from_secs(10));
    assert_eq!(
        accounting.check(at(100)).unwrap(),
        [
            overlap(2, 4, 1),
            overlap(4, 5, 5),
            Discrepancy::Held {
                lease: LeaseId(6),
                held,
                wall
            },
            Discrepancy::RunBeyondHeld {
                lease: LeaseId(6),
                run: wall,
                linger: Span::from_secs(5),
                held
            },
            Discrepancy::CellCount {
                lease: LeaseId(6),
                counted: 1,
                rows: 0
            },
            Discrepancy::Orphan {
                lease: LeaseId(9),
                cell: "lost".into()
            },
        ]
    );
}

#[test]
fn old_rows_go_with_their_cells() {
    let folder = tempfile::tempdir().unwrap();
    let accounting = open(&folder.path().join("accounting.db"));
    let (old, new, running) = (
        lease(1, "a", 0, 10, 20),
        lease(2, "a", 0, 30, 40),
        lease(3, "a", 1, 5, 0),
    );
    record(&accounting, [cell(&old, "x"), old, new, running]);
    assert_eq!(accounting.prune(at(25)).unwrap(), 1);
    let all = AcctQuery {
        cells: true,
        ..AcctQuery::default()
    };
    assert_eq!(ids(&accounting.query(&all, at(100)).unwrap()), [2, 3]);
    assert_eq!(accounting.check(at(100)).unwrap(), []);
}

#[test]
fn the_room_of_old_rows_is_given_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("accounting.db");
    let accounting = open(&path);
    let pages = || -> i64 {
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection
            .query_row("PRAGMA page_count", [], |row| row.get(0))
            .unwrap()
    };
    let empty = pages();
    record(&accounting, (1..2000).map(|id| lease(id, "a", 0, 10, 20)));
    let full = pages();
    assert_eq!(accounting.prune(at(25)).unwrap(), 1999);
    assert!(pages() < empty + (full - empty) / 4, "{empty} {full} {}", pages());
}

#[test]
fn a_damaged_database_is_told_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("accounting.db");
    let accounting = open(&path);
    record(&accounting, (1..2000).map(|id| lease(id, "a", 0, 10, 20)));
    drop(accounting);
    let whole = std::fs::read(&path).unwrap();
    for left in [whole.len() / 2, 0] {
        std::fs::write(&path, &whole[..left]).unwrap();
        let error = Accounting::open_known(&path, true).unwrap_err();
        assert!(
            matches!(error, AccountingOpenError::Damaged { .. }),
            "{left}: {error:?}"
        );
        assert!(error.to_string().contains("move the file away"), "{error}");
    }
    // A first start may have been killed before it wrote anything.
    Accounting::open_known(&path, false).unwrap();
}

#[test]
fn newer_and_foreign_databases_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("accounting.db");
    drop(open(&path));
    rusqlite::Connection::open(&path)
        .unwrap()
        .execute_batch("PRAGMA user_version = 2")
        .unwrap();
    let error = Accounting::open(&path).unwrap_err();
    assert!(
        matches!(error, AccountingOpenError::Newer { found: 2, .. }),
        "{error}"
    );
    let theirs = folder.path().join("theirs.db");
    rusqlite::Connection::open(&theirs)
        .unwrap()
        .execute_batch("PRAGMA user_version = 7")
        .unwrap();
    assert!(matches!(
        Accounting::open(&theirs),
        Err(AccountingOpenError::Foreign(_))
    ));
    let text = folder.path().join("text.db");
    std::fs::write(
        &text,
        "not a database, but long enough to be looked at ".repeat(50),
    )
    .unwrap();
    assert!(matches!(
        Accounting::open(&text),
        Err(AccountingOpenError::Foreign(_))
    ));
}

/// Leases and cells of all kinds, over 1000 s.
fn all_kinds() -> Vec<AcctRow> {
    let mut seed = 7_u64;
    let mut below = |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % n
    };
    let mut rows = Vec::new();
    for id in 1..400 {
        let (start, goes_on) = (2 + below(1000), below(20) == 0);
        let end = if goes_on { 0 } else { start + 1 + below(100) };
        let mut row = lease(id, ["ada", "bob", "eve"][below(3) as usize], 0, start, end);
        row.account = [Some("lab".into()), None][below(2) as usize].clone();
        row.pool = ["main", "old"][below(2) as usize].into();
        row.node = ["n1", "n2"][below(2) as usize].into();
        row.gpus = (0..below(3) as u16).map(GpuIndex).collect();
        row.wait = Span(below(5_000_000));
        row.run = Span(row.held.0 / 2);
        if !goes_on {
            let states = ["COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "PREEMPTED"];
            row.state = states[below(5) as usize].into();
        }
        for n in 0..below(3) {
            let mut ran = cell(&row, &format!("c{id}-{n}"));
            (ran.submit, ran.wait) = (Timestamp(row.submit.0 + below(9_000_000)), Span(below(9_000_000)));
            if ran.state == "PREEMPTED" {
                let again = AcctRow {
                    lease: LeaseId(1000 + 2 * id + n),
                    state: "COMPLETED".into(),
                    submit: ran.end.unwrap(),
                    ..ran.clone()
                };
                rows.push(again);
            }
            rows.push(ran);
        }
        if below(9) == 0 {
            (row.start, row.held, row.run, row.gpus) = (None, Span::ZERO, Span::ZERO, Vec::new());
        }
        rows.push(row);
    }
    rows
}

#[test]
fn sums_are_those_of_the_rows() {
    let folder = tempfile::tempdir().unwrap();
    let accounting = open(&folder.path().join("accounting.db"));
    let mut rows = all_kinds();
    record(&accounting, rows.clone());
    let now = at(2000);
    rows.sort_by_key(|row| (row.lease, row.cell.is_some()));
    for row in rows.iter_mut().filter(|row| row.end.is_none()) {
        row.held = row.start.map_or(Span::ZERO, |start| now.since(start));
    }
    let all = SumsQuery {
        all_users: true,
        until: at(5000),
        ..SumsQuery::default()
    };
    let asked = [
        all.clone(),
        SumsQuery {
            since: at(300),
            until: at(600),
            ..all.clone()
        },
        SumsQuery {
            all_users: false,
            users: vec!["ada".into(), "eve".into()],
            ..all.clone()
        },
        SumsQuery {
            accounts: vec!["lab".into()],
            pools: vec!["old".into()],
            ..all
        },
    ];
    let in_order = |mut sums: Vec<Sums>| {
        sums.sort_by(|a, b| a.group.cmp(&b.group));
        sums.iter_mut().for_each(|s| s.waits.sort_unstable());
        sums
    };
    for query in asked {
        let is_wanted = |row: &&AcctRow| {
            (query.all_users || query.users.contains(&row.user))
                && (query.accounts.is_empty()
                    || row.account.as_ref().is_some_and(|a| query.accounts.contains(a)))
                && (query.pools.is_empty() || query.pools.contains(&row.pool))
                && (query.since..query.until).contains(&row.submit)
        };
        for by in [
            SumBy::All,
            SumBy::User,
            SumBy::Account,
            SumBy::Pool,
            SumBy::Node,
            SumBy::Name,
        ] {
            let query = SumsQuery { by, ..query.clone() };
            let summed = accounting.sums(&query, now, usize::MAX).unwrap();
            assert!(!summed.more);
            let mut sums = summed.sums;
            add_rows(&mut sums, by, &summed.open);
            let mut expected: BTreeMap<&str, Sums> = BTreeMap::new();
            for row in rows.iter().filter(is_wanted) {
                let again = rows.iter().any(|first| {
                    first.state == "PREEMPTED" && first.cell == row.cell && first.lease < row.lease
                });
                let sums = expected.entry(by.group(row)).or_default();
                by.group(row).clone_into(&mut sums.group);
                sums.add(row, row.cell.is_some() && again);
            }
            let expected = expected.into_values().collect();
            assert_eq!(in_order(sums), in_order(expected), "{query:?}");
        }
        let few = accounting.sums(&query, now, 3).unwrap();
        assert_eq!((few.sums[0].waits.len(), few.more), (3, true));
    }
}
