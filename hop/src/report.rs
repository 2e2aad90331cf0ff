//! `hop report`: usage and waits in sums, by day or by whom. Slurm's `sreport` is the model.
//!
//! The rows are those of `hop acct`, requested day by day, because one answer of `hopd` is bounded.

use crate::acct;
use crate::context::Context;
use crate::failure::Failure;
use crate::filter::{Accounts, Pools};
use crate::output::{Field, Options, Value, View, Whose, field};
use crate::time::{days, parse_time, tell_span, write_date};
use clap::ValueEnum;
use hop_api::message::{AcctQuery, AcctRow};
use hop_words::id::{CellId, KernelId, UserName};
use hop_words::time::{Span, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

const EXAMPLES: &str = "\
Examples:
  hop report                            your last seven days
  hop report -a                         everybody's (operators; the default for root)
  hop report -a --by account -S 11/01   who used what since the first
  hop report -a --json | jq '.rows[] | [.group, .wait_p95]'

A lease and its cells count on the day on which they were asked for.";

/// Usage and waits in sums: GPU-hours, cells, how long they waited.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// What a row is of
    #[arg(long, value_enum, default_value_t = By::Day)]
    by: By,
    #[command(flatten)]
    whose: Whose,
    #[command(flatten)]
    accounts: Accounts,
    #[command(flatten)]
    pools: Pools,
    /// From the beginning of this day on
    #[arg(short = 'S', long, value_name = "TIME", default_value = "now-6days")]
    starttime: String,
    /// What was asked for before this time
    #[arg(short = 'E', long, value_name = "TIME", default_value = "now")]
    endtime: String,
    #[command(flatten)]
    output: Options,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    Day,
    User,
    Account,
    Pool,
    Node,
    Name,
}

/// Sums of a group.
#[derive(Debug, Default)]
struct Sums {
    group: String,
    users: BTreeSet<UserName>,
    leases: u64,
    cells: u64,
    failed: u64,
    withdrawn: u64,
    /// Of cells that began, in order once all are counted.
    waits: Vec<Span>,
    /// Microseconds of one GPU.
    held: u64,
    run: u64,
}

impl Sums {
    /// `again`: the cell was parked, and counted by an earlier row.
    fn add(&mut self, row: &AcctRow, again: bool) {
        let gpus = row.gpus.len() as u64;
        self.users.insert(row.user.clone());
        if row.cell.is_some() {
            self.failed += u64::from(matches!(row.state.as_str(), "FAILED" | "NODE_FAIL"));
            if !again {
                self.cells += 1;
                self.waits.extend(row.start.map(|_| row.wait));
            }
        } else if row.start.is_none() {
            let withdrawn = row.state == "CANCELLED";
            self.withdrawn += u64::from(withdrawn);
            self.failed += u64::from(!withdrawn && row.end.is_some());
        } else {
            self.leases += 1;
            self.held = self.held.saturating_add(row.held.0.saturating_mul(gpus));
            self.run = self.run.saturating_add(row.run.0.saturating_mul(gpus));
        }
    }

    fn absorb(&mut self, other: &Self) {
        self.users.extend(other.users.iter().cloned());
        self.waits.extend_from_slice(&other.waits);
        self.leases += other.leases;
        self.cells += other.cells;
        self.failed += other.failed;
        self.withdrawn += other.withdrawn;
        self.held = self.held.saturating_add(other.held);
        self.run = self.run.saturating_add(other.run);
    }

    /// The wait within which this share of the cells began. Needs `waits` in order.
    fn within(&self, percent: usize) -> Option<Span> {
        let at = (self.waits.len() * percent).div_ceil(100).saturating_sub(1);
        self.waits.get(at).copied()
    }

    fn hours(&self) -> f64 {
        self.held as f64 / 3.6e9
    }

    fn efficiency(&self) -> Option<f64> {
        let share = self.run as f64 / self.held as f64;
        (self.held > 0).then(|| (share * 1000.0).round() / 10.0)
    }
}

/// Cells that were parked: each has a row for each of its leases, the first lease first.
#[derive(Default)]
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

static FIELDS: [Field<Sums>; 14] = [
    field!(
        "Group",
        -12,
        "the day, user, account, pool, node or notebook",
        |s| { Value::text(&s.group) }
    ),
    field!("Users", 5, "users who asked for something", |s| Value::Number(
        s.users.len() as u64
    )),
    field!("Leases", 6, "leases that began", |s| Value::Number(s.leases)),
    field!("Cells", 7, "cells that ran on them", |s| Value::Number(s.cells)),
    field!(
        "GPUHours",
        8,
        "time that leases were held, times their GPUs",
        |s| { Value::Decimal(s.hours()) }
    ),
    field!("Efficiency", 10, "of it, in percent: cells ran", |s| {
        Value::Percent(s.efficiency())
    }),
    field!(
        "WaitP50",
        9,
        "half of the cells waited for at most so long",
        |s| { span(s.within(50)) }
    ),
    field!("WaitP50Raw", 10, "in seconds", |s| seconds(s.within(50))),
    field!(
        "WaitP95",
        9,
        "95 % of the cells waited for at most so long",
        |s| { span(s.within(95)) }
    ),
    field!("WaitP95Raw", 10, "in seconds", |s| seconds(s.within(95))),
    field!("WaitMax", 9, "the longest wait", |s| span(s.within(100))),
    field!("WaitMaxRaw", 10, "in seconds", |s| seconds(s.within(100))),
    field!("Withdrawn", 9, "cells that waited in vain", |s| Value::Number(
        s.withdrawn
    )),
    field!(
        "Failed",
        6,
        "cells that failed, and leases that never began",
        |s| Value::Number(s.failed)
    ),
];

static VIEW: View<Sums> = View {
    command: "report",
    fields: &FIELDS,
    default: "Group,Leases,Cells,GPUHours,Efficiency,WaitP50,WaitP95,Withdrawn",
    brief: "Group,GPUHours,WaitP95",
    variable: "HOP_REPORT_FORMAT",
};

pub(crate) fn run(args: &Args, context: &mut Context<'_>) -> Result<(), Failure> {
    if args.output.answered(&VIEW, context)? {
        return Ok(());
    }
    let time = |text: &str| parse_time(text, context.now, &context.zone).map_err(Failure::Usage);
    let (since, until) = (time(&args.starttime)?, time(&args.endtime)?);
    if since > until {
        let text = "the time of -S is after that of -E: nothing can lie between them";
        return Err(Failure::Usage(text.to_owned()));
    }
    let mut groups: BTreeMap<String, Sums> = BTreeMap::new();
    let mut parked = Parked::default();
    for (first, next) in days(since, until, &context.zone) {
        let day = write_date(first, &context.zone);
        if args.by == By::Day {
            groups.insert(day.clone(), Sums::default());
        }
        for row in asked_for(args, (first, next.min(until)), context)? {
            groups
                .entry(args.by.group(&row, &day))
                .or_default()
                .add(&row, parked.counted(&row));
        }
    }
    let mut total = Sums::default();
    let mut rows = Vec::new();
    for (group, mut sums) in groups {
        total.absorb(&sums);
        sums.waits.sort_unstable();
        rows.push(Sums { group, ..sums });
    }
    if args.by != By::Day {
        rows.sort_by_key(|sums| std::cmp::Reverse(sums.held));
    }
    args.output.write(&VIEW, &rows, context)?;
    if args.output.is_table() {
        total.waits.sort_unstable();
        for sentence in in_words(&total) {
            writeln!(context.err, "hop: {sentence}.")?;
        }
    }
    Ok(())
}

impl By {
    fn group(self, row: &AcctRow, day: &str) -> String {
        match self {
            Self::Day => day.to_owned(),
            Self::User => row.user.to_string(),
            Self::Account => row.account.as_ref().map(ToString::to_string).unwrap_or_default(),
            Self::Pool => row.pool.to_string(),
            Self::Node => row.node.to_string(),
            Self::Name => row.name.clone(),
        }
    }
}

/// What was submitted within a day.
fn asked_for(
    args: &Args,
    (first, next): (Timestamp, Timestamp),
    context: &mut Context<'_>,
) -> Result<Vec<AcctRow>, Failure> {
    let query = AcctQuery {
        users: args.whose.users(context)?,
        all_users: args.whose.all(context.is_root),
        accounts: args.accounts.names(),
        since: Some(first),
        until: Some(next),
        cells: true,
        ..AcctQuery::default()
    };
    let (mut rows, more) = acct::ask(query, context)?;
    if more {
        let day = write_date(first, &context.zone);
        writeln!(
            context.err,
            "hop: {day} has more rows than hopd hands out at once: its sums are too small"
        )?;
    }
    rows.retain(|row| (first..next).contains(&row.submit) && args.pools.has(&row.pool));
    Ok(rows)
}

fn in_words(total: &Sums) -> [String; 2] {
    let used = format!(
        "{:.1} GPU-hours in {} leases of {} users; {} cells waited in vain",
        total.hours(),
        total.leases,
        total.users.len(),
        total.withdrawn
    );
    let waits = match (total.within(50), total.within(95)) {
        (Some(half), Some(most)) => format!(
            "half of {} cells began within {}, 95 % within {}",
            total.cells,
            tell_span(half),
            tell_span(most)
        ),
        _ => "no cell ran".to_owned(),
    };
    [used, waits]
}

fn span(span: Option<Span>) -> Value {
    span.map_or(Value::Absent, Value::Span)
}

fn seconds(span: Option<Span>) -> Value {
    span.map_or(Value::Absent, Value::Seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row of one GPU for `seconds`; none: it never began.
    fn row(lease: u64, cell: Option<&str>, state: &str, seconds: Option<u64>) -> AcctRow {
        let at = Timestamp(1_000_000);
        let ran = Span::from_secs(seconds.unwrap_or(0));
        AcctRow {
            lease: hop_words::id::LeaseId(lease),
            cell: cell.map(Into::into),
            user: "ada".into(),
            account: None,
            pool: "main".into(),
            kernel: "k".into(),
            name: "nb".into(),
            node: "n1".into(),
            gpus: seconds.iter().map(|_| hop_words::id::GpuIndex(0)).collect(),
            cpus: 1,
            pilot: hop_words::id::JobId(3),
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

    fn sums(rows: &[AcctRow]) -> Sums {
        let (mut sums, mut parked) = (Sums::default(), Parked::default());
        for row in rows {
            sums.add(row, parked.counted(row));
        }
        sums
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

    #[test]
    fn a_share_of_the_cells_began_within() {
        let of = |waits: &[u64]| Sums {
            waits: waits.iter().map(|w| Span(*w)).collect(),
            ..Sums::default()
        };
        let at = |waits: &[u64], percent| of(waits).within(percent).map(|s| s.0);
        assert_eq!(at(&[], 95), None);
        assert_eq!((at(&[7], 50), at(&[7], 100)), (Some(7), Some(7)));
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!(
            [50, 95, 100].map(|p| at(&hundred, p)),
            [Some(50), Some(95), Some(100)]
        );
        assert_eq!(at(&[1, 2, 3], 50), Some(2));
    }
}
