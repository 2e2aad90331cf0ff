//! The accounting rows of leases that go on, made from the core's records.
//!
//! Pure. Every ordered lease gets exactly one row, rewritten as the lease goes on and for the last time when it is
//! closed. Every cell on the lease gets a row below it. The row of a cell lost with its lease says how the lease ended,
//! and has no end before that. A lease known only to its node, because a crash took the
//! order's row, gets its row from the node's report.

use hop_api::message::{AcctRow, EndCause, EndedLease, Handover, LeaseEnd, Outcome, StartLease};
use hop_core::Record;
use hop_words::id::{AccountName, GpuIndex, JobId, KernelId, LeaseId, NodeName, PoolName, UserName};
use hop_words::time::{Span, Timestamp, spell};
use std::collections::{BTreeMap, HashMap, HashSet};

#[derive(Debug, Default)]
pub(crate) struct AccountingRows {
    /// Rows of leases without an end, with the run time and number of the cells that have rows.
    open: HashMap<LeaseId, AcctRow>,
    /// Leases that lost their running cell.
    cut_short: HashSet<LeaseId>,
    /// Rows of cells that were lost with their lease, until the lease's end.
    lost_cells: HashMap<LeaseId, AcctRow>,
    /// Leases whose cell was parked for others.
    parked: HashSet<LeaseId>,
    /// Users with withdrawn cells, each with the time at which the cells' rows would end if written [`APART`].
    withdrawing: HashMap<UserName, Timestamp>,
    /// The site's `quota.cells`: number of a user's cells that may go together, each with a row.
    quota: u64,
}

/// Rows of a user's withdrawn cells: `AT_ONCE` together, and in the long run a row every `APART`. A program that
/// submits and withdraws would fill the disk. A quota above `AT_ONCE` counts instead.
const AT_ONCE: u64 = 600;
const APART: Span = Span::from_secs(2);

impl AccountingRows {
    /// Takes over an earlier `hopd`'s records of leases that go on, and of the cells on these leases. A later row of
    /// the same lease or cell replaces an earlier one.
    pub(crate) fn restore(rows: impl IntoIterator<Item = AcctRow>, quota: usize) -> Self {
        let rows = rows.into_iter().map(|row| ((row.lease, row.cell.clone()), row));
        let mut rows: BTreeMap<_, AcctRow> = rows.collect();
        let cells: Vec<AcctRow> = rows
            .extract_if(.., |(_, cell), _| cell.is_some())
            .map(|(_, row)| row)
            .collect();
        let open = rows.into_values().filter(|row| row.end.is_none());
        let mut open: HashMap<LeaseId, AcctRow> = open.map(|row| (row.lease, row)).collect();
        let (mut cut_short, mut lost_cells) = (HashSet::new(), HashMap::new());
        for cell in cells {
            if let Some(row) = open.get_mut(&cell.lease) {
                count(row, cell.run);
                if cell.end.is_none() {
                    cut_short.insert(cell.lease);
                    lost_cells.insert(cell.lease, cell);
                }
            }
        }
        Self {
            open,
            cut_short,
            lost_cells,
            quota: quota as u64,
            ..Self::default()
        }
    }

    /// Leases whose rows are open.
    pub(crate) fn open(&self) -> impl Iterator<Item = (LeaseId, &AcctRow)> {
        self.open.iter().map(|(id, row)| (*id, row))
    }

    /// New row of a live lease that has none. `None` means that the lease has a row.
    pub(crate) fn adopt(
        &mut self,
        node: &NodeName,
        order: &StartLease,
        handover: Option<&Handover>,
    ) -> Option<AcctRow> {
        if self.open.contains_key(&order.lease) {
            return None;
        }
        let start = handover.map(|h| h.at);
        let asked = Asked {
            lease: order.lease,
            user: order.user.clone(),
            account: order.account.clone(),
            pool: order.pool.clone(),
            kernel: order.kernel.clone(),
            name: order.name.clone(),
            node: node.clone(),
            pilot: handover.map_or(order.pilot, |h| h.pilot),
            cpus: order.cpus,
            submit: order.submit,
        };
        let row = AcctRow {
            gpus: handover.map_or_else(Vec::new, |h| h.devices.iter().map(|d| d.index).collect()),
            step: handover.map_or(0, |h| h.step),
            start,
            wait: start.map_or(Span::ZERO, |start| start.since(order.submit)),
            ..asked.row(if start.is_some() { "RUNNING" } else { "PENDING" })
        };
        self.open.insert(order.lease, row.clone());
        Some(row)
    }

    /// Last rows of a lease unknown to the core, by its node's word.
    pub(crate) fn ended_on_node(&mut self, node: &NodeName, ended: &EndedLease) -> Vec<AcctRow> {
        self.adopt(node, &ended.order, ended.handover.as_ref());
        let LeaseEnd {
            cause,
            clean,
            at,
            detail,
            ..
        } = &ended.end;
        self.close_alone(ended.order.lease, *cause, *clean, *at, detail)
    }

    /// The last rows of a lease that neither the core nor any node knows.
    pub(crate) fn lost(&mut self, lease: LeaseId, at: Timestamp) -> Vec<AcctRow> {
        self.close_alone(lease, EndCause::StepLost, true, at, UNKNOWN_END)
    }

    /// Closes a lease by the lease's row and the rows of its cells.
    fn close_alone(
        &mut self,
        lease: LeaseId,
        cause: EndCause,
        clean: bool,
        at: Timestamp,
        detail: &str,
    ) -> Vec<AcctRow> {
        let Some(row) = self.open.get(&lease) else {
            return Vec::new();
        };
        let held = row.start.map_or(Span::ZERO, |start| at.since(start));
        let run = Span(row.run.0.min(held.0));
        let (wait, cells, at) = (row.wait, row.cells, row.start.map_or(at, |start| start + held));
        self.closed(Record::LeaseClosed {
            lease,
            cause,
            clean,
            at,
            held,
            run,
            linger: Span::ZERO,
            wait,
            cells,
            detail: detail.to_owned(),
            held_on: None,
        })
    }

    /// Records the lease's step in its pilot, as soon as the step is known.
    pub(crate) fn step(&mut self, lease: LeaseId, step: u32) {
        if let Some(row) = self.open.get_mut(&lease) {
            row.step = step;
        }
    }

    /// The rows to be written for a record.
    pub(crate) fn enter(&mut self, record: Record) -> Vec<AcctRow> {
        let row = match record {
            Record::LeaseOpened { .. } => self.opened(record),
            Record::LeaseStarted { lease, devices, at } => self.started(lease, devices, at),
            Record::CellServed { .. } => self.cell(record),
            Record::CellWithdrawn { .. } => self.withdrawn(record),
            Record::LeaseClosed { .. } => return self.closed(record),
        };
        row.into_iter().collect()
    }

    fn started(&mut self, lease: LeaseId, devices: Vec<GpuIndex>, at: Timestamp) -> Option<AcctRow> {
        let row = self.open.get_mut(&lease)?;
        row.gpus = devices;
        row.start = Some(at);
        row.wait = at.since(row.submit);
        "RUNNING".clone_into(&mut row.state);
        Some(row.clone())
    }

    fn withdrawn(&mut self, record: Record) -> Option<AcctRow> {
        let Record::CellWithdrawn { ref user, at, .. } = record else {
            return None;
        };
        let said = self.room(user, at)?;
        let mut row = withdrawn(record)?;
        row.reason.push_str(said);
        Some(row)
    }

    fn opened(&mut self, record: Record) -> Option<AcctRow> {
        let Record::LeaseOpened {
            lease,
            kernel,
            name,
            user,
            account,
            pool,
            node,
            pilot,
            cpus,
            submit,
            ..
        } = record
        else {
            return None;
        };
        let asked = Asked {
            lease,
            user,
            account,
            pool,
            kernel,
            name,
            node,
            pilot,
            cpus,
            submit,
        };
        let row = asked.row("PENDING");
        self.open.insert(lease, row.clone());
        Some(row)
    }

    fn cell(&mut self, record: Record) -> Option<AcctRow> {
        let Record::CellServed {
            lease,
            cell,
            submit,
            start,
            end,
            wait,
            outcome,
            with_lease,
        } = record
        else {
            return None;
        };
        let row = self.open.get_mut(&lease)?;
        let ran = end.since(start);
        count(row, ran);
        let row = row.clone();
        let (state, reason) = match outcome {
            Outcome::Ok => ("COMPLETED", ""),
            Outcome::Error => ("FAILED", "its code raised an exception"),
            Outcome::Aborted => ("CANCELLED", "it was interrupted"),
            Outcome::Lost if with_lease => ("RUNNING", ""),
            Outcome::Lost => ("FAILED", LOST_ALONE),
            Outcome::Parked => ("PREEMPTED", "it was parked for others"),
        };
        match outcome {
            Outcome::Lost => drop(self.cut_short.insert(lease)),
            Outcome::Parked => drop(self.parked.insert(lease)),
            Outcome::Ok | Outcome::Error | Outcome::Aborted => {}
        }
        let is_lost_with_lease = with_lease && outcome == Outcome::Lost;
        let row = AcctRow {
            cell: Some(cell),
            state: state.into(),
            submit,
            start: Some(start),
            end: (!is_lost_with_lease).then_some(end),
            wait,
            held: ran,
            run: ran,
            linger: Span::ZERO,
            cells: 1,
            reason: reason.into(),
            ..row
        };
        if is_lost_with_lease {
            self.lost_cells.insert(lease, row.clone());
        }
        Some(row)
    }

    fn closed(&mut self, record: Record) -> Vec<AcctRow> {
        let Record::LeaseClosed {
            lease,
            cause,
            clean,
            at,
            held,
            run,
            linger,
            wait,
            cells,
            detail,
            held_on,
        } = record
        else {
            return Vec::new();
        };
        let Some(row) = self.open.remove(&lease) else {
            return Vec::new();
        };
        let detail = match held_on {
            Some((span, why)) => held_to_its_end(&detail, span, &why),
            None => detail,
        };
        let parked = self.parked.remove(&lease) && cause == EndCause::Claimed;
        let withdrawn = cells == 0 && cause == EndCause::Released;
        let mut reason = match (detail.is_empty(), parked) {
            _ if withdrawn => WITHDRAWN.to_owned(),
            (false, _) => detail,
            (true, true) => PARKED.to_owned(),
            (true, false) => cause.sentence().unwrap_or_default().to_owned(),
        };
        let cut_short = self.cut_short.remove(&lease);
        let state = match parked {
            true => "PREEMPTED",
            false => state_word(cause, cut_short, cells > 0),
        };
        let cell = self.lost_cells.remove(&lease);
        let cell = cell.map(|row| lost_with_lease(row, state, &reason));
        if !clean {
            reason = format!("{reason} (a device stays blocked)")
                .trim_start()
                .to_owned();
        }
        let row = AcctRow {
            state: state.into(),
            end: Some(at),
            held,
            run,
            linger,
            wait,
            cells,
            reason,
            ..row
        };
        cell.into_iter().chain([row]).collect()
    }

    /// The remark for the row of a cell withdrawn now. `None` means that the cell has no row, as the last row before says.
    fn room(&mut self, user: &UserName, now: Timestamp) -> Option<&'static str> {
        let all = Span(APART.0.saturating_mul(AT_ONCE.max(self.quota)));
        let taken = self.withdrawing.entry(user.clone()).or_insert(now);
        let after = (*taken).max(now) + APART;
        if after.since(now) > all {
            return None;
        }
        *taken = after;
        Some(if after.since(now) + APART > all {
            ONE_OF_MANY
        } else {
            ""
        })
    }
}

/// The end of a lease whose kernel couldn't let go of the GPUs.
fn held_to_its_end(detail: &str, span: Span, why: &str) -> String {
    let between = if detail.is_empty() { "" } else { "; " };
    format!(
        "{detail}{between}its kernel held the GPU for {} after its last cell ({why})",
        spell(span)
    )
}

/// Last row of a cell that was lost with its lease. An ordinary end of the lease was the kernel's own wish.
fn lost_with_lease(row: AcctRow, state: &str, reason: &str) -> AcctRow {
    let (state, reason) = match (state, reason) {
        ("COMPLETED", _) => ("CANCELLED", LET_GO),
        (state, "") => (state, LET_GO),
        as_lease => as_lease,
    };
    AcctRow {
        state: state.into(),
        reason: reason.into(),
        end: row.start.map(|start| start + row.run),
        held: row.run,
        ..row
    }
}

/// Counts a cell in the row of its lease.
fn count(row: &mut AcctRow, ran: Span) {
    row.run = Span(row.run.0.saturating_add(ran.0));
    row.cells = row.cells.saturating_add(1);
}

/// Row of a cell withdrawn while waiting, without a lease.
fn withdrawn(record: Record) -> Option<AcctRow> {
    let Record::CellWithdrawn {
        lease,
        kernel,
        name,
        user,
        account,
        pool,
        cpus,
        submit,
        at,
        reason,
        ..
    } = record
    else {
        return None;
    };
    let asked = Asked {
        lease,
        user,
        account,
        pool,
        kernel,
        name,
        node: "".into(),
        pilot: JobId(0),
        cpus,
        submit,
    };
    Some(AcctRow {
        end: Some(at),
        wait: at.since(submit),
        reason: reason.map_or_else(|| INTERRUPTED.to_owned(), |because| because.to_string()),
        ..asked.row("CANCELLED")
    })
}

/// Columns of a lease's row known before the lease's start.
struct Asked {
    lease: LeaseId,
    user: UserName,
    account: Option<AccountName>,
    pool: PoolName,
    kernel: KernelId,
    name: String,
    node: NodeName,
    pilot: JobId,
    cpus: u16,
    submit: Timestamp,
}

impl Asked {
    /// Row of a lease before its start.
    fn row(self, state: &str) -> AcctRow {
        AcctRow {
            lease: self.lease,
            cell: None,
            user: self.user,
            account: self.account,
            pool: self.pool,
            kernel: self.kernel,
            name: self.name,
            node: self.node,
            gpus: Vec::new(),
            cpus: self.cpus,
            pilot: self.pilot,
            step: 0,
            state: state.into(),
            submit: self.submit,
            start: None,
            end: None,
            wait: Span::ZERO,
            held: Span::ZERO,
            run: Span::ZERO,
            linger: Span::ZERO,
            cells: 0,
            reason: String::new(),
        }
    }
}

/// The reason in the row of a cell that was lost while its lease goes on.
const LOST_ALONE: &str = "its kernel's process ended while it ran, or nobody told how it ended";

/// The reason in the row of a cell that ran when its kernel gave up the lease.
const LET_GO: &str = "its kernel was closed, or let the GPU go, while it ran";

/// Why a lease that never started is over, where nobody says.
const WITHDRAWN: &str = "it was withdrawn before its cell began";

/// The reason in the row of a waiting cell that its kernel withdrew.
const INTERRUPTED: &str = "it was interrupted while it waited, or its kernel was restarted";

/// Said of the last withdrawn cell that has a row.
const ONE_OF_MANY: &str = " (cells withdrawn right after it have no rows: they were too many)";

/// Why a lease is over whose end nobody reported.
const UNKNOWN_END: &str = "hopd lost track of it: it is counted until hopd's next start";

/// Why a lease ended whose cell goes on with another.
const PARKED: &str =
    "its cell had run for long and was parked for somebody who waited; it goes on with another lease";

/// Slurm's word for how a lease ended. An idle lease of a closed kernel has completed; a lease withdrawn before its
/// first cell ran was cancelled.
fn state_word(cause: EndCause, cut_short: bool, served: bool) -> &'static str {
    match cause {
        EndCause::Done | EndCause::Claimed | EndCause::Released if !served => "CANCELLED",
        EndCause::Done | EndCause::Claimed | EndCause::Released => "COMPLETED",
        // Before its first cell: that cell may go on with another lease, and wasn't withdrawn.
        EndCause::ReplicaLost if served && !cut_short => "COMPLETED",
        EndCause::Cancelled => "CANCELLED",
        EndCause::PilotLost => "PREEMPTED",
        EndCause::NodeLost => "NODE_FAIL",
        EndCause::StepLost | EndCause::ReplicaLost | EndCause::Failed => "FAILED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_words::reason::RefusedBecause;

    fn opened() -> Record {
        Record::LeaseOpened {
            lease: LeaseId(7),
            kernel: "k".into(),
            name: "nb".into(),
            user: "alice".into(),
            account: Some("lab".into()),
            pool: "main".into(),
            node: "n1".into(),
            pilot: JobId(3),
            gpus: 1,
            cpus: 2,
            submit: Timestamp(100),
            at: Timestamp(110),
        }
    }

    /// The only row of a record.
    fn one(mut rows: Vec<AcctRow>) -> AcctRow {
        let row = rows.pop().unwrap();
        assert_eq!(rows, []);
        row
    }

    fn closed(cause: EndCause, detail: &str) -> Record {
        Record::LeaseClosed {
            lease: LeaseId(7),
            cause,
            clean: true,
            at: Timestamp(300),
            held: Span(150),
            run: Span(100),
            linger: Span::ZERO,
            wait: Span(50),
            cells: 1,
            detail: detail.into(),
            held_on: None,
        }
    }

    fn claimed(detail: &str, held_on: Option<(Span, String)>) -> Record {
        Record::LeaseClosed {
            lease: LeaseId(7),
            cause: EndCause::Claimed,
            clean: true,
            at: Timestamp(300),
            held: Span(150),
            run: Span(100),
            linger: Span(50),
            wait: Span(50),
            cells: 1,
            detail: detail.into(),
            held_on,
        }
    }

    fn served(outcome: Outcome) -> Record {
        Record::CellServed {
            lease: LeaseId(7),
            cell: "c1".into(),
            submit: Timestamp(100),
            start: Timestamp(150),
            end: Timestamp(250),
            wait: Span(50),
            outcome,
            with_lease: outcome == Outcome::Lost,
        }
    }

    #[test]
    fn a_lease_has_one_row_from_its_order_to_its_end() {
        let mut rows = AccountingRows::default();
        let row = one(rows.enter(opened()));
        assert_eq!((row.state.as_str(), row.start, row.cpus), ("PENDING", None, 2));
        rows.step(LeaseId(7), 4);
        let started = Record::LeaseStarted {
            lease: LeaseId(7),
            devices: vec![GpuIndex(1)],
            at: Timestamp(150),
        };
        let row = one(rows.enter(started));
        assert_eq!((row.state.as_str(), row.step, row.wait), ("RUNNING", 4, Span(50)));
        let cell = one(rows.enter(served(Outcome::Error)));
        assert_eq!(
            (cell.state.as_str(), cell.run, cell.step),
            ("FAILED", Span(100), 4)
        );
        assert_eq!(cell.cell, Some("c1".into()));
        let closed = claimed("", None);
        let row = one(rows.enter(closed.clone()));
        assert_eq!((row.state.as_str(), row.end), ("COMPLETED", Some(Timestamp(300))));
        assert_eq!(
            (row.held, row.run, row.linger, row.cells),
            (Span(150), Span(100), Span(50), 1)
        );
        assert_eq!(row.gpus, [GpuIndex(1)]);
        assert!(row.reason.contains("somebody else waited"));
        assert_eq!(rows.enter(closed), [], "a lease is closed once");
    }

    #[test]
    fn many_withdrawn_cells_of_a_user_have_few_rows() {
        let mut rows = AccountingRows::default();
        let mut withdraw = |user: &str, at: Timestamp| {
            rows.enter(Record::CellWithdrawn {
                lease: LeaseId(7),
                cell: "c1".into(),
                kernel: "k".into(),
                name: "nb".into(),
                user: user.into(),
                account: None,
                pool: "main".into(),
                gpus: 1,
                cpus: 2,
                submit: at,
                at,
                reason: Some(RefusedBecause::Closed),
            })
        };
        let at = |n: u64| Timestamp(1_000_000 + n * 1000);
        let written: Vec<AcctRow> = (0..5000).flat_map(|n| withdraw("mallory", at(n))).collect();
        let fewest = AT_ONCE as usize;
        assert!((fewest..fewest + 4).contains(&written.len()), "{}", written.len());
        let told = |row: &AcctRow| row.reason != "the kernel was closed";
        let first = written.iter().position(told);
        assert_eq!(first, Some(fewest - 1), "the last before a gap");
        assert!(
            written[fewest - 1..]
                .iter()
                .all(|row| row.reason.contains("too many"))
        );
        assert_eq!(one(withdraw("bob", at(5000))).reason, "the kernel was closed");
        let rested = at(5000) + Span(APART.0 * AT_ONCE);
        assert_eq!(one(withdraw("mallory", rested)).reason, "the kernel was closed");
    }

    #[test]
    fn all_cells_within_a_large_quota_may_be_withdrawn_at_once() {
        let mut rows = AccountingRows::restore([], 5000);
        let room = |rows: &mut AccountingRows| rows.room(&"ada".into(), Timestamp(1_000_000));
        assert!((0..4999).all(|_| room(&mut rows) == Some("")));
    }

    #[test]
    fn a_lease_whose_cell_was_parked_is_preempted() {
        let mut rows = AccountingRows::default();
        rows.enter(opened());
        let cell = one(rows.enter(served(Outcome::Parked)));
        assert_eq!((cell.state.as_str(), cell.run), ("PREEMPTED", Span(100)));
        let closed = Record::LeaseClosed {
            lease: LeaseId(7),
            cause: EndCause::Claimed,
            clean: true,
            at: Timestamp(260),
            held: Span(110),
            run: Span(100),
            linger: Span::ZERO,
            wait: Span(50),
            cells: 1,
            detail: String::new(),
            held_on: None,
        };
        let row = one(rows.enter(closed));
        assert_eq!(row.state, "PREEMPTED");
        assert!(row.reason.contains("was parked"), "{}", row.reason);
    }

    #[test]
    fn a_cell_lost_with_its_lease_is_told_as_the_lease() {
        for (cause, state) in [
            (EndCause::Cancelled, "CANCELLED"),
            (EndCause::PilotLost, "PREEMPTED"),
            (EndCause::NodeLost, "NODE_FAIL"),
            (EndCause::StepLost, "FAILED"),
            (EndCause::ReplicaLost, "FAILED"),
        ] {
            let mut rows = AccountingRows::default();
            rows.enter(opened());
            let cell = one(rows.enter(served(Outcome::Lost)));
            assert_eq!(cell.end, None, "nobody knows yet who ended the lease");
            let [cell, lease] = &rows.enter(closed(cause, "that is why"))[..] else {
                panic!("two rows")
            };
            assert_eq!(
                (cell.cell.as_ref(), lease.cell.as_ref()),
                (Some(&"c1".into()), None)
            );
            for row in [cell, lease] {
                assert_eq!((row.state.as_str(), row.reason.as_str()), (state, "that is why"));
            }
            assert_eq!((cell.end, cell.run), (Some(Timestamp(250)), Span(100)));
        }
    }

    #[test]
    fn a_cell_whose_kernel_let_the_lease_go_is_cancelled() {
        let mut rows = AccountingRows::default();
        rows.enter(opened());
        rows.enter(served(Outcome::Lost));
        let cell = rows.enter(closed(EndCause::Released, "")).remove(0);
        assert_eq!((cell.state.as_str(), cell.reason.as_str()), ("CANCELLED", LET_GO));
    }

    #[test]
    fn a_cell_lost_before_a_restart_has_its_end_with_its_lease() {
        let mut rows = AccountingRows::default();
        let lease = one(rows.enter(opened()));
        let cell = one(rows.enter(served(Outcome::Lost)));
        let mut rows = AccountingRows::restore([lease, cell], 0);
        let [cell, lease] = &rows.lost(LeaseId(7), Timestamp(400))[..] else {
            panic!("two rows")
        };
        assert_eq!((cell.state.as_str(), cell.end), ("FAILED", Some(Timestamp(250))));
        assert_eq!((lease.state.as_str(), lease.cells), ("FAILED", 1));
        assert_eq!(
            (cell.reason.as_str(), lease.reason.as_str()),
            (UNKNOWN_END, UNKNOWN_END)
        );
    }

    #[test]
    fn a_lease_that_its_kernel_held_on_to_says_so() {
        let held_on = |detail: &str| {
            let mut rows = AccountingRows::default();
            rows.enter(opened());
            let held_on = Some((Span::from_secs(60), "process 9 holds it".into()));
            one(rows.enter(claimed(detail, held_on))).reason
        };
        let held = "its kernel held the GPU for 60 s after its last cell (process 9 holds it)";
        assert_eq!(held_on(""), held);
        assert_eq!(held_on("pid 9 was ended"), format!("pid 9 was ended; {held}"));
    }

    #[test]
    fn a_lease_that_was_withdrawn_before_it_started_is_cancelled() {
        for (cause, word) in [
            (EndCause::ReplicaLost, "FAILED"),
            (EndCause::Cancelled, "CANCELLED"),
            (EndCause::Failed, "FAILED"),
        ] {
            let mut rows = AccountingRows::default();
            rows.enter(opened());
            let closed = Record::LeaseClosed {
                lease: LeaseId(7),
                cause,
                clean: true,
                at: Timestamp(300),
                held: Span::ZERO,
                run: Span::ZERO,
                linger: Span::ZERO,
                wait: Span::ZERO,
                cells: 0,
                detail: "it was withdrawn".into(),
                held_on: None,
            };
            let row = one(rows.enter(closed));
            assert_eq!(
                (row.state.as_str(), row.reason.as_str()),
                (word, "it was withdrawn")
            );
        }
    }

    #[test]
    fn rows_that_go_on_survive_a_restart_and_a_blocked_device_is_told() {
        let mut rows = AccountingRows::default();
        let row = one(rows.enter(opened()));
        let mut rows = AccountingRows::restore([row], 0);
        let closed = Record::LeaseClosed {
            lease: LeaseId(7),
            cause: EndCause::StepLost,
            clean: false,
            at: Timestamp(300),
            held: Span::ZERO,
            run: Span::ZERO,
            linger: Span::ZERO,
            wait: Span::ZERO,
            cells: 0,
            detail: "pid 9 holds it".into(),
            held_on: None,
        };
        let row = one(rows.enter(closed));
        assert_eq!(row.state, "FAILED");
        assert_eq!(row.reason, "pid 9 holds it (a device stays blocked)");
    }
}
