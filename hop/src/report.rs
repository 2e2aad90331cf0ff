//! `hop report`: usage and waits in sums, by day or by whom. Slurm's `sreport` is the model.
//!
//! `hopd` sums the rows of `hop acct`, of some days at a time, because one answer of it is bounded.

use crate::acct;
use crate::context::Context;
use crate::failure::Failure;
use crate::filter::{Accounts, Pools};
use crate::hopd::unexpected;
use crate::output::{Field, Options, Value, View, Whose, field};
use crate::time::{days, parse_time, tell_span, write_date};
use clap::ValueEnum;
use hop_api::message::{Request, Response, SumBy, Sums, SumsQuery};
use hop_words::time::{Span, Timestamp};
use std::collections::BTreeMap;

const EXAMPLES: &str = "\
Examples:
  hop report                            your last seven days
  hop report -a                         everybody's (operators; the default for root)
  hop report -a --by account -S 11/01   who used what since the first
  hop report -a --json | jq '.rows[] | [.group, .wait_p95]'

A lease and its cells count on the day on which they were asked for.";

/// Days of which the sums are asked for at once.
const DAYS_AT_ONCE: usize = 28;

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

/// A row of the report.
#[derive(Debug, Default)]
struct Row {
    group: String,
    /// The waits are in order once all are counted.
    sums: Sums,
}

impl Row {
    /// The wait within which this share of the cells began. Needs `waits` in order.
    fn within(&self, percent: usize) -> Option<Span> {
        let at = (self.sums.waits.len() * percent).div_ceil(100).saturating_sub(1);
        self.sums.waits.get(at).copied()
    }

    fn hours(&self) -> f64 {
        self.sums.held as f64 / 3.6e9
    }

    fn efficiency(&self) -> Option<f64> {
        let share = self.sums.run as f64 / self.sums.held as f64;
        (self.sums.held > 0).then(|| (share * 1000.0).round() / 10.0)
    }
}

static FIELDS: [Field<Row>; 14] = [
    field!(
        "Group",
        -12,
        "the day, user, account, pool, node or notebook",
        |s| { Value::text(&s.group) }
    ),
    field!("Users", 5, "users who asked for something", |s| Value::Number(
        s.sums.users.len() as u64
    )),
    field!("Leases", 6, "leases that began", |s| Value::Number(s.sums.leases)),
    field!("Cells", 7, "cells that ran on them", |s| Value::Number(
        s.sums.cells
    )),
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
        s.sums.withdrawn
    )),
    field!(
        "Failed",
        6,
        "cells that failed, and leases that never began",
        |s| Value::Number(s.sums.failed)
    ),
];

static VIEW: View<Row> = View {
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
    let mut total = Row::default();
    let mut behind = 0;
    let days = days(since, until, &context.zone);
    for days in days.chunks(DAYS_AT_ONCE) {
        let dates: Vec<String> = match args.by {
            By::Day => days.iter().map(|day| write_date(day.0, &context.zone)).collect(),
            _ => Vec::new(),
        };
        groups.extend(dates.iter().map(|date| (date.clone(), Sums::default())));
        let (sums, unwritten) = asked_for(args, days, until, context)?;
        behind = behind.max(unwritten);
        for sums in sums {
            total.sums.absorb(&sums);
            let date = sums.group.parse().ok().and_then(|day: usize| dates.get(day));
            let group = date.unwrap_or(&sums.group);
            groups.entry(group.clone()).or_default().absorb(&sums);
        }
    }
    acct::tell_behind(behind, context)?;
    let mut rows = Vec::new();
    for (group, mut sums) in groups {
        sums.waits.sort_unstable();
        rows.push(Row { group, sums });
    }
    if args.by != By::Day {
        rows.sort_by_key(|row| std::cmp::Reverse(row.sums.held));
    }
    args.output.write(&VIEW, &rows, context)?;
    if args.output.is_table() {
        total.sums.waits.sort_unstable();
        for sentence in in_words(&total) {
            writeln!(context.err, "hop: {sentence}.")?;
        }
    }
    Ok(())
}

impl By {
    fn sums(self) -> SumBy {
        match self {
            Self::Day => SumBy::All,
            Self::User => SumBy::User,
            Self::Account => SumBy::Account,
            Self::Pool => SumBy::Pool,
            Self::Node => SumBy::Node,
            Self::Name => SumBy::Name,
        }
    }
}

/// Sums of what was submitted on the days, before `until`, and how many entries they may lack.
fn asked_for(
    args: &Args,
    days: &[(Timestamp, Timestamp)],
    until: Timestamp,
    context: &mut Context<'_>,
) -> Result<(Vec<Sums>, usize), Failure> {
    let (since, until) = (days[0].0, days[days.len() - 1].1.min(until));
    let query = SumsQuery {
        users: args.whose.users(context)?,
        all_users: args.whose.all(context.is_root),
        accounts: args.accounts.names(),
        pools: args.pools.names(),
        since,
        until,
        by: args.by.sums(),
        parts: match args.by {
            By::Day => days.iter().map(|day| day.0).collect(),
            _ => Vec::new(),
        },
    };
    let (rows, more, behind) = match context.hopd.ask(Request::Sums(query))? {
        Response::Sums { rows, more, behind } => (rows, more, behind),
        other => return Err(unexpected(&other)),
    };
    if more {
        let day = write_date(since, &context.zone);
        writeln!(
            context.err,
            "hop: the time from {day} on has more cells than hopd hands out the waits of: some waits are missing"
        )?;
    }
    Ok((rows, behind))
}

fn in_words(total: &Row) -> [String; 2] {
    let used = format!(
        "{:.1} GPU-hours in {} leases of {} users; {} cells waited in vain",
        total.hours(),
        total.sums.leases,
        total.sums.users.len(),
        total.sums.withdrawn
    );
    let waits = match (total.within(50), total.within(95)) {
        (Some(half), Some(most)) => format!(
            "half of {} cells began within {}, 95 % within {}",
            total.sums.cells,
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

    #[test]
    fn a_share_of_the_cells_began_within() {
        let of = |waits: &[u64]| Row {
            group: String::new(),
            sums: Sums {
                waits: waits.iter().map(|w| Span(*w)).collect(),
                ..Sums::default()
            },
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
