//! The accounting rows of leases that go on, made from the core's records.
//!
//! Pure. Every lease that was ordered gets exactly one row, written again as it goes on and for the last time
//! when it is closed; every cell that it served gets one below it.

use hop_api::message::{AcctRow, EndCause, Outcome};
use hop_core::Record;
use hop_core::id::LeaseId;
use hop_core::time::Span;
use std::collections::{HashMap, HashSet};

#[derive(Debug, Default)]
pub(crate) struct Books {
    open: HashMap<LeaseId, AcctRow>,
    /// Leases that lost the cell that ran on them.
    cut_short: HashSet<LeaseId>,
    /// Leases whose cell was parked for others.
    parked: HashSet<LeaseId>,
}

impl Books {
    /// Takes over rows of leases that go on, after a restart.
    pub(crate) fn restore(rows: impl IntoIterator<Item = AcctRow>) -> Self {
        let open = rows
            .into_iter()
            .filter(|r| r.cell.is_none() && r.end.is_none())
            .map(|r| (r.lease, r))
            .collect();
        Self {
            open,
            ..Self::default()
        }
    }

    /// The lease's step in its pilot, as soon as it is known.
    pub(crate) fn step(&mut self, lease: LeaseId, step: u32) {
        if let Some(row) = self.open.get_mut(&lease) {
            row.step = step;
        }
    }

    /// The rows to be written for a record.
    pub(crate) fn enter(&mut self, record: Record) -> Option<AcctRow> {
        match record {
            Record::LeaseOpened { .. } => self.opened(record),
            Record::LeaseStarted { lease, devices, at } => {
                let row = self.open.get_mut(&lease)?;
                row.gpus = devices;
                row.start = Some(at);
                row.wait = at.since(row.submit);
                "RUNNING".clone_into(&mut row.state);
                Some(row.clone())
            }
            Record::CellServed { .. } => self.cell(record),
            Record::LeaseClosed { .. } => self.closed(record),
        }
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
        let row = AcctRow {
            lease,
            cell: None,
            user,
            account,
            pool,
            kernel,
            name,
            node,
            gpus: Vec::new(),
            cpus,
            pilot,
            step: 0,
            state: "PENDING".into(),
            submit,
            start: None,
            end: None,
            wait: Span::ZERO,
            held: Span::ZERO,
            run: Span::ZERO,
            linger: Span::ZERO,
            cells: 0,
            reason: String::new(),
        };
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
        } = record
        else {
            return None;
        };
        let row = self.open.get(&lease)?.clone();
        let ran = end.since(start);
        let state = match outcome {
            Outcome::Ok => "COMPLETED",
            Outcome::Error => "FAILED",
            Outcome::Aborted => "CANCELLED",
            Outcome::Lost => "NODE_FAIL",
            Outcome::Parked => "PREEMPTED",
        };
        match outcome {
            Outcome::Lost => drop(self.cut_short.insert(lease)),
            Outcome::Parked => drop(self.parked.insert(lease)),
            Outcome::Ok | Outcome::Error | Outcome::Aborted => {}
        }
        Some(AcctRow {
            cell: Some(cell),
            state: state.into(),
            submit,
            start: Some(start),
            end: Some(end),
            wait,
            held: ran,
            run: ran,
            linger: Span::ZERO,
            cells: 1,
            ..row
        })
    }

    fn closed(&mut self, record: Record) -> Option<AcctRow> {
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
        } = record
        else {
            return None;
        };
        let row = self.open.remove(&lease)?;
        let parked = self.parked.remove(&lease) && cause == EndCause::Claimed;
        let mut reason = match (detail.is_empty(), parked) {
            (false, _) => detail,
            (true, true) => PARKED.to_owned(),
            (true, false) => cause.sentence().unwrap_or_default().to_owned(),
        };
        if !clean {
            reason = format!("{reason} (a device stays blocked)")
                .trim_start()
                .to_owned();
        }
        let cut_short = self.cut_short.remove(&lease);
        Some(AcctRow {
            state: if parked {
                "PREEMPTED"
            } else {
                state_word(cause, cut_short, row.start.is_some())
            }
            .into(),
            end: Some(at),
            held,
            run,
            linger,
            wait,
            cells,
            reason,
            ..row
        })
    }
}

/// Why a lease ended whose cell goes on with another.
const PARKED: &str =
    "its cell had run for long and was parked for somebody who waited; it goes on with another lease";

/// Slurm's word for how a lease ended. One that lay idle when its kernel was closed has done all that was asked of it;
/// one that was withdrawn before it started has done nothing.
fn state_word(cause: EndCause, cut_short: bool, started: bool) -> &'static str {
    match cause {
        EndCause::Done | EndCause::Claimed | EndCause::Released | EndCause::ReplicaLost if !started => {
            "CANCELLED"
        }
        EndCause::Done | EndCause::Claimed | EndCause::Released => "COMPLETED",
        EndCause::ReplicaLost if !cut_short => "COMPLETED",
        EndCause::Cancelled => "CANCELLED",
        EndCause::PilotLost => "PREEMPTED",
        EndCause::NodeLost => "NODE_FAIL",
        EndCause::StepLost | EndCause::ReplicaLost | EndCause::Failed => "FAILED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_core::id::{GpuIndex, JobId};
    use hop_core::time::Timestamp;

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

    fn served(outcome: Outcome) -> Record {
        Record::CellServed {
            lease: LeaseId(7),
            cell: "c1".into(),
            submit: Timestamp(100),
            start: Timestamp(150),
            end: Timestamp(250),
            wait: Span(50),
            outcome,
        }
    }

    #[test]
    fn a_lease_has_one_row_from_its_order_to_its_end() {
        let mut books = Books::default();
        let row = books.enter(opened()).unwrap();
        assert_eq!((row.state.as_str(), row.start, row.cpus), ("PENDING", None, 2));
        books.step(LeaseId(7), 4);
        let started = Record::LeaseStarted {
            lease: LeaseId(7),
            devices: vec![GpuIndex(1)],
            at: Timestamp(150),
        };
        let row = books.enter(started).unwrap();
        assert_eq!((row.state.as_str(), row.step, row.wait), ("RUNNING", 4, Span(50)));
        let cell = books.enter(served(Outcome::Error)).unwrap();
        assert_eq!(
            (cell.state.as_str(), cell.run, cell.step),
            ("FAILED", Span(100), 4)
        );
        assert_eq!(cell.cell, Some("c1".into()));
        let closed = Record::LeaseClosed {
            lease: LeaseId(7),
            cause: EndCause::Claimed,
            clean: true,
            at: Timestamp(300),
            held: Span(150),
            run: Span(100),
            linger: Span(50),
            wait: Span(50),
            cells: 1,
            detail: String::new(),
        };
        let row = books.enter(closed.clone()).unwrap();
        assert_eq!((row.state.as_str(), row.end), ("COMPLETED", Some(Timestamp(300))));
        assert_eq!(
            (row.held, row.run, row.linger, row.cells),
            (Span(150), Span(100), Span(50), 1)
        );
        assert_eq!(row.gpus, [GpuIndex(1)]);
        assert!(row.reason.contains("somebody else waited"));
        assert_eq!(books.enter(closed), None, "a lease is closed once");
    }

    #[test]
    fn a_lease_whose_cell_was_parked_is_preempted() {
        let mut books = Books::default();
        books.enter(opened());
        let cell = books.enter(served(Outcome::Parked)).unwrap();
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
        };
        let row = books.enter(closed).unwrap();
        assert_eq!(row.state, "PREEMPTED");
        assert!(row.reason.contains("was parked"), "{}", row.reason);
    }

    #[test]
    fn a_lease_that_was_withdrawn_before_it_started_is_cancelled() {
        for (cause, word) in [
            (EndCause::Released, "CANCELLED"),
            (EndCause::ReplicaLost, "CANCELLED"),
            (EndCause::Cancelled, "CANCELLED"),
            (EndCause::Failed, "FAILED"),
        ] {
            let mut books = Books::default();
            books.enter(opened());
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
            };
            let row = books.enter(closed).unwrap();
            assert_eq!(
                (row.state.as_str(), row.reason.as_str()),
                (word, "it was withdrawn")
            );
        }
    }

    #[test]
    fn rows_that_go_on_survive_a_restart_and_a_blocked_device_is_told() {
        let mut books = Books::default();
        let row = books.enter(opened()).unwrap();
        let mut books = Books::restore([row]);
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
        };
        let row = books.enter(closed).unwrap();
        assert_eq!(row.state, "FAILED");
        assert_eq!(row.reason, "pid 9 holds it (a device stays blocked)");
    }
}
