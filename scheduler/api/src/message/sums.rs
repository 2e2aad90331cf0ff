//! Sums of the accounting over a time, for `hop report`: usage, cells and their waits.

use super::AcctRow;
use hop_words::id::{AccountName, CellId, KernelId, PoolName, UserName};
use hop_words::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What one row of sums is of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SumBy {
    /// Of everything: a single row, of the empty name.
    #[default]
    All,
    User,
    Account,
    Pool,
    Node,
    Name,
}

impl SumBy {
    /// The group of a row of the accounting.
    pub fn group(self, row: &AcctRow) -> &str {
        match self {
            Self::All => "",
            Self::User => row.user.as_str(),
            Self::Account => row.account.as_ref().map_or("", AccountName::as_str),
            Self::Pool => row.pool.as_str(),
            Self::Node => row.node.as_str(),
            Self::Name => &row.name,
        }
    }
}

/// Asks for the sums of all that was submitted from `since` on and before `until`. A lease and each of its cells count
/// by their own times of submission.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SumsQuery {
    /// Whose rows; empty: the caller's own. Others' need an operator.
    pub users: Vec<UserName>,
    pub all_users: bool,
    pub accounts: Vec<AccountName>,
    pub pools: Vec<PoolName>,
    pub since: Timestamp,
    pub until: Timestamp,
    pub by: SumBy,
    /// The begins of parts of the time, in their order; each lasts until the next. A row's group is then its part's
    /// place in this list, from 0 on, and `by` counts for nothing. Empty: the time isn't parted.
    pub parts: Vec<Timestamp>,
}

impl SumsQuery {
    /// Most parts of a query.
    pub const MOST_PARTS: usize = 62;

    /// The answer, where `sums` answers a query without parts.
    ///
    /// # Errors
    /// The first of `sums`.
    pub fn by_parts<E>(&self, mut sums: impl FnMut(&Self) -> Result<Vec<Sums>, E>) -> Result<Vec<Sums>, E> {
        if self.parts.is_empty() {
            return sums(self);
        }
        let ends = self.parts.iter().skip(1).copied().chain([self.until]);
        let mut all = Vec::new();
        for (number, (since, until)) in self.parts.iter().zip(ends).enumerate() {
            let part = Self {
                since: (*since).max(self.since),
                until: until.min(self.until),
                by: SumBy::All,
                parts: Vec::new(),
                ..self.clone()
            };
            let group = number.to_string();
            all.extend(sums(&part)?.into_iter().map(|sums| Sums {
                group: group.clone(),
                ..sums
            }));
        }
        Ok(all)
    }
}

/// Sums of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sums {
    pub group: String,
    /// Users who asked for something.
    pub users: BTreeSet<UserName>,
    /// Leases that began.
    pub leases: u64,
    pub cells: u64,
    /// Cells that failed, and leases that never began.
    pub failed: u64,
    /// Cells that waited in vain.
    pub withdrawn: u64,
    /// Microseconds of one GPU for which leases were held, and for which cells ran on them.
    pub held: u64,
    pub run: u64,
    /// Waits of the cells that began, in any order.
    pub waits: Vec<Span>,
}

impl Sums {
    /// Adds a row of the accounting. `again`: the cell was parked, and counted by an earlier row.
    pub fn add(&mut self, row: &AcctRow, again: bool) {
        self.users.insert(row.user.clone());
        match (&row.cell, row.start) {
            (Some(_), start) => self.add_cell(&row.state, again, start.map(|_| row.wait)),
            (None, Some(_)) => self.add_lease(row.gpus.len() as u64, row.held, row.run),
            (None, None) if row.end.is_some() || row.state == "CANCELLED" => self.add_unbegun(&row.state),
            (None, None) => {}
        }
    }

    /// Adds a lease that began.
    pub fn add_lease(&mut self, gpus: u64, held: Span, run: Span) {
        self.leases += 1;
        self.held = self.held.saturating_add(held.0.saturating_mul(gpus));
        self.run = self.run.saturating_add(run.0.saturating_mul(gpus));
    }

    /// Adds a lease that ended before it began.
    pub fn add_unbegun(&mut self, state: &str) {
        let withdrawn = state == "CANCELLED";
        self.withdrawn += u64::from(withdrawn);
        self.failed += u64::from(!withdrawn);
    }

    /// Adds a row of a cell, with its wait if the cell began. `again`: as in [`Self::add`].
    pub fn add_cell(&mut self, state: &str, again: bool, wait: Option<Span>) {
        self.failed += u64::from(matches!(state, "FAILED" | "NODE_FAIL"));
        if !again {
            self.cells += 1;
            self.waits.extend(wait);
        }
    }

    /// Adds the sums of another group or time.
    pub fn absorb(&mut self, other: &Self) {
        self.users.extend(other.users.iter().cloned());
        self.waits.extend_from_slice(&other.waits);
        self.leases += other.leases;
        self.cells += other.cells;
        self.failed += other.failed;
        self.withdrawn += other.withdrawn;
        self.held = self.held.saturating_add(other.held);
        self.run = self.run.saturating_add(other.run);
    }
}

/// Cells that were parked: each has a row for each of its leases, the first lease first.
#[derive(Debug, Default)]
struct Parked(BTreeSet<(KernelId, CellId)>);

impl Parked {
    /// Whether an earlier row is of the same cell.
    fn counted(&mut self, row: &AcctRow) -> bool {
        let Some(cell) = row.cell.clone() else {
            return false;
        };
        let id = (row.kernel.clone(), cell);
        let again = self.0.contains(&id);
        if row.state == "PREEMPTED" {
            self.0.insert(id);
        }
        again
    }
}

/// Adds rows of the accounting, in the order of their leases, to the sums of their groups.
pub fn add_rows<'a>(sums: &mut Vec<Sums>, by: SumBy, rows: impl IntoIterator<Item = &'a AcctRow>) {
    let mut parked = Parked::default();
    for row in rows {
        let (group, again) = (by.group(row), parked.counted(row));
        let at = sums.iter().position(|s| s.group == group).unwrap_or_else(|| {
            let group = group.to_owned();
            sums.push(Sums {
                group,
                ..Sums::default()
            });
            sums.len() - 1
        });
        sums[at].add(row, again);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_words::id::{GpuIndex, JobId, LeaseId};

    /// A row of one GPU for `seconds`; none: it never began.
    fn row(lease: u64, cell: Option<&str>, state: &str, seconds: Option<u64>) -> AcctRow {
        let at = Timestamp(1_000_000);
        let ran = Span::from_secs(seconds.unwrap_or(0));
        AcctRow {
            lease: LeaseId(lease),
            cell: cell.map(Into::into),
            user: "ada".into(),
            account: None,
            pool: "main".into(),
            kernel: "k".into(),
            name: "nb".into(),
            node: "n1".into(),
            gpus: seconds.iter().map(|_| GpuIndex(0)).collect(),
            cpus: 1,
            pilot: JobId(3),
            step: 0,
            state: state.into(),
            submit: at,
            start: seconds.map(|_| at),
            end: Some(at + ran),
            wait: Span::from_secs(lease),
            held: ran,
            run: ran,
            linger: Span::ZERO,
            cells: 0,
            reason: String::new(),
        }
    }

    #[test]
    fn parts_follow_each_other_within_the_time() {
        let query = SumsQuery {
            since: Timestamp(15),
            until: Timestamp(35),
            by: SumBy::User,
            parts: [10, 20, 30].map(Timestamp).to_vec(),
            ..SumsQuery::default()
        };
        let asked = |query: &SumsQuery| {
            let mut times = Vec::new();
            let answer = query.by_parts(|part| {
                assert!(part.parts.is_empty());
                times.push((part.since.0, part.until.0, part.by));
                Ok::<_, ()>(vec![Sums::default()])
            });
            let groups: Vec<String> = answer.unwrap().into_iter().map(|sums| sums.group).collect();
            (times, groups.join(" "))
        };
        let all = SumBy::All;
        let parts = vec![(15, 20, all), (20, 30, all), (30, 35, all)];
        assert_eq!(asked(&query), (parts, "0 1 2".to_owned()));
        let whole = SumsQuery {
            parts: Vec::new(),
            ..query
        };
        assert_eq!(asked(&whole), (vec![(15, 35, SumBy::User)], String::new()));
        assert_eq!(whole.by_parts(|_| Err("it fails")), Err("it fails"));
    }

    fn sums(rows: &[AcctRow]) -> Sums {
        let mut sums = Vec::new();
        add_rows(&mut sums, SumBy::All, rows);
        sums.remove(0)
    }

    #[test]
    fn each_lease_and_each_cell_counts_once() {
        let waits = row(9, None, "PENDING", None);
        let sums = sums(&[
            // The first lease of cell `a` was lost before the start. On the second lease the cell was parked, on
            // the third the cell failed.
            row(1, None, "FAILED", None),
            row(2, None, "PREEMPTED", Some(10)),
            row(2, Some("a"), "PREEMPTED", Some(10)),
            row(3, None, "COMPLETED", Some(20)),
            row(3, Some("a"), "FAILED", Some(5)),
            row(3, Some("b"), "COMPLETED", Some(5)),
            // Withdrawn from the queue, and while its lease was being started.
            row(4, None, "CANCELLED", None),
            row(5, None, "CANCELLED", None),
            row(6, None, "NODE_FAIL", None),
            AcctRow { end: None, ..waits },
        ]);
        let counts = (sums.leases, sums.cells, sums.failed, sums.withdrawn);
        assert_eq!(counts, (2, 2, 3, 2));
        assert_eq!(
            sums.waits,
            [Span::from_secs(2), Span::from_secs(3)],
            "until it first began"
        );
        assert_eq!(
            (sums.held, sums.run),
            (30 * 1_000_000, 30 * 1_000_000),
            "no GPU was held before"
        );
    }
}
