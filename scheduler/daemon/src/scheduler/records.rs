//! Records on disk: the journal, the accounting behind it, and when each is durable.
//!
//! A row of the accounting is posted to the journal in the same transaction as the core's entries of the same event,
//! and leaves the journal when the accounting database has it. So entries and rows survive together or not at all.

use super::kept::Asleep;
use super::seats::Seat;
use crate::accounting_rows::AccountingRows;
use crate::admission::Rules;
use crate::scheduler::Report;
use hop_api::message::{AcctQuery, AcctRow};
use hop_core::config::{Limits, Shares};
use hop_core::journal::{Key, Value};
use hop_store::{Accounting, AccountingError, Journal, SaveError, Ticket};
use hop_words::id::{CellId, JobId, KernelId, LeaseId, PoolName, Tenure, UserName};
use hop_words::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::mpsc;
use tracing::error;

/// Between two looks at whether a disk that was full or broken has room again.
const AGAIN: Duration = Duration::from_secs(1);

/// The keys of the journal: the core's entries and the daemon's own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum JournalKey {
    Core(Key),
    /// A kernel id belongs to its first user until nothing is left of the kernel.
    Owner(KernelId),
    /// The highest tenure that has spoken for a kernel.
    Tenure(KernelId),
    /// A seat and its owner, for a start while slurmctld is away.
    Seat(JobId),
    /// The limits that Slurm named last, for a start while slurmdbd is away.
    Limits,
    /// Admission rules of the pools' partitions, for a start while slurmctld is away.
    Rules,
    /// Fair shares and usage by Slurm's word of some time in the last hour, for a start while Slurm is away.
    Shares,
    /// A row that the accounting database may not have yet.
    Row(RowId),
    /// A kernel that hibernates.
    Asleep(KernelId),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum JournalValue {
    Core(Value),
    Owner(UserName),
    Tenure(Tenure),
    Seat(Seat),
    Limits(Box<Limits>),
    Rules(BTreeMap<PoolName, Rules>),
    Shares(Box<Shares>),
    Row(Box<AcctRow>),
    Asleep(Box<Asleep>),
}

/// Row of a lease, or of a cell on it.
pub(crate) type RowId = (LeaseId, Option<CellId>);

pub(crate) type HopJournal = Journal<JournalKey, JournalValue>;

pub(super) type Change = (JournalKey, Option<JournalValue>);

/// The journal, the accounting, and the rows of leases that go on.
#[derive(Debug)]
pub(super) struct Records {
    journal: Arc<HopJournal>,
    accounting: Arc<Accounting>,
    pub(super) rows: AccountingRows,
    /// Rows that the journal still holds, with the number of their last version.
    unsettled: HashMap<RowId, u64>,
    versions: u64,
    reports: mpsc::UnboundedSender<Report>,
}

impl Records {
    /// `unsettled` are the journal's rows: these rows go to the accounting again.
    ///
    /// # Errors
    /// The accounting can't be read.
    pub(super) fn open(
        journal: HopJournal,
        accounting: Accounting,
        unsettled: Vec<AcctRow>,
        quota_cells: usize,
        reports: mpsc::UnboundedSender<Report>,
        now: Timestamp,
    ) -> Result<Self, AccountingError> {
        let open = AcctQuery {
            all_users: true,
            open: true,
            cells: true,
            ..AcctQuery::default()
        };
        let known = accounting.query(&open, now)?;
        let mut records = Self {
            journal: Arc::new(journal),
            accounting: Arc::new(accounting),
            rows: AccountingRows::restore(known.into_iter().chain(unsettled.iter().cloned()), quota_cells),
            unsettled: HashMap::new(),
            versions: 0,
            reports,
        };
        records.settle(unsettled);
        Ok(records)
    }

    /// Posts changes and rows in a single transaction, without waiting: see `docs/operations.md`, "What a crash can
    /// lose".
    pub(super) fn write(&mut self, mut changes: Vec<Change>, rows: Vec<AcctRow>) {
        let row = |r: &AcctRow| {
            let key = JournalKey::Row((r.lease, r.cell.clone()));
            (key, Some(JournalValue::Row(Box::new(r.clone()))))
        };
        changes.extend(rows.iter().map(row));
        if !changes.is_empty() {
            drop(self.post(&changes));
        }
        if !rows.is_empty() {
            self.settle(rows);
        }
    }

    /// Reports [`Report::Durable`] when everything written before this call is on disk, however late.
    pub(super) fn when_durable(&self, acknowledged: Vec<(LeaseId, JobId)>) {
        let (ticket, journal) = (self.post(&[]), Arc::downgrade(&self.journal));
        let reports = self.reports.clone();
        tokio::spawn(async move {
            if until_durable(ticket, || flush(&journal)).await {
                let _ = reports.send(Report::Durable(acknowledged));
            }
        });
    }

    fn post(&self, changes: &[Change]) -> Ticket {
        self.journal.post(changes.iter().map(|(k, v)| (k, v.as_ref())))
    }

    /// Hands rows to the accounting, which reports after storing the rows.
    fn settle(&mut self, rows: Vec<AcctRow>) {
        let mut ids = Vec::new();
        for row in &rows {
            self.versions += 1;
            let id = (row.lease, row.cell.clone());
            self.unsettled.insert(id.clone(), self.versions);
            ids.push((id, self.versions));
        }
        if ids.is_empty() {
            return;
        }
        let ticket = self.accounting.record(rows);
        let (accounting, reports) = (Arc::downgrade(&self.accounting), self.reports.clone());
        let again = move || accounting.upgrade().map(|a| a.record([]));
        tokio::spawn(async move {
            if until_durable(ticket, again).await {
                let _ = reports.send(Report::Settled(ids));
            }
        });
    }

    /// The accounting has stored these versions of rows: the journal drops them, unless a later version exists.
    pub(super) fn settled(&mut self, ids: Vec<(RowId, u64)>) {
        let latest = |id: &RowId, version| self.unsettled.get(id) == Some(&version);
        let done: Vec<RowId> = ids
            .into_iter()
            .filter(|(id, version)| latest(id, *version))
            .map(|(id, _)| id)
            .collect();
        let changes: Vec<Change> = done
            .into_iter()
            .map(|id| {
                self.unsettled.remove(&id);
                (JournalKey::Row(id), None)
            })
            .collect();
        if !changes.is_empty() {
            drop(self.post(&changes));
        }
    }

    /// How many rows the accounting may not have yet.
    pub(super) fn unsettled(&self) -> usize {
        self.unsettled.len()
    }

    pub(super) fn accounting(&self) -> Arc<Accounting> {
        self.accounting.clone()
    }

    /// The reason why this `hopd` can save nothing any more, and another may.
    pub(super) fn superseded(&self) -> Option<String> {
        let healths = [self.journal.health(), self.accounting.health()];
        let mut errors = healths.into_iter().filter_map(|health| health.error);
        errors.find(SaveError::must_end).map(|error| error.to_string())
    }

    /// Everything that is behind, in sentences.
    pub(super) fn problems(&self) -> Vec<String> {
        let healths = [
            ("journal", self.journal.health()),
            ("accounting", self.accounting.health()),
        ];
        let behind = healths.into_iter().filter_map(|(what, health)| {
            let error = health.error?;
            Some(format!(
                "The {what} is behind by {} entries: {error}.",
                health.unsaved
            ))
        });
        behind.collect()
    }

    /// Waits until everything is on disk.
    pub(super) async fn flush(&self) {
        if let Err(error) = self.journal.flush().await {
            error!("the journal is not on disk: {error}");
        }
        if let Err(error) = self.accounting.record([]).durable().await {
            error!("the accounting is not on disk: {error}");
        }
    }
}

fn flush(journal: &Weak<HopJournal>) -> Option<Ticket> {
    journal.upgrade().map(|j| j.post([]))
}

/// Waits for durability, through full disks and failures that pass. `false`: it will never come.
async fn until_durable(mut ticket: Ticket, again: impl Fn() -> Option<Ticket>) -> bool {
    loop {
        match ticket.durable().await {
            Ok(()) => return true,
            Err(error) if error.is_lasting() => return false,
            Err(SaveError::Closed) => return false,
            Err(_) => {}
        }
        tokio::time::sleep(AGAIN).await;
        match again() {
            Some(next) => ticket = next,
            None => return false,
        }
    }
}
