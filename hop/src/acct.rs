//! `hop acct`: accounting in sacct's manner. A lease takes the place of a job, a cell that of a step.

use crate::context::Context;
use crate::failure::Failure;
use crate::filter::{Accounts, Nodes, Pools, is_state, no_state};
use crate::hopd::unexpected;
use crate::kernels;
use crate::output::{Field, Options, Value, View, Whose, field};
use crate::time::parse_time;
use hop_api::message::{AcctQuery, AcctRow, Request, Response};
use hop_slurm::gres::write_index;
use hop_words::id::LeaseId;
use hop_words::time::{Span, Timestamp};

const EXAMPLES: &str = "\
Examples:
  hop acct                              today's leases of yours, each with its cells
  hop acct -X -S now-7days              a week, leases alone
  hop acct -j 12 -l                     all about lease 12
  hop acct -a -X -s R                   who has a GPU now (operators)
  hop acct -P -o user,gputimeraw -X     for scripts
  hop acct --json=v1 -S 2026-11-01      the same as JSON

A lease is a GRES step of Slurm: `sacct -j PILOT.STEP` (field SlurmJobID) shows it too.";

/// Show accounting: leases, and the cells that they served.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    whose: Whose,
    #[command(flatten)]
    accounts: Accounts,
    /// These leases, or single cells of them: 12,13.2
    #[arg(
        short = 'j',
        long = "jobs",
        visible_alias = "leases",
        value_name = "LEASES[.CELL]",
        value_delimiter = ','
    )]
    jobs: Vec<String>,
    /// Only these kernels: ids, beginnings of ids, or notebook names
    #[arg(short = 'k', long = "kernels", value_name = "KERNELS", value_delimiter = ',')]
    kernels: Vec<String>,
    /// Leases not over at this time; default: midnight, or any time with -j
    #[arg(short = 'S', long, value_name = "TIME")]
    starttime: Option<String>,
    /// Leases submitted before this time; default: now
    #[arg(short = 'E', long, value_name = "TIME")]
    endtime: Option<String>,
    /// Only these states: running, lingering, completed, cancelled, failed, node_fail, preempted, or R CD CA F NF PR
    #[arg(short = 's', long = "state", value_name = "STATES", value_delimiter = ',')]
    states: Vec<String>,
    #[command(flatten)]
    pools: Pools,
    #[command(flatten)]
    nodes: Nodes,
    /// Leases alone, without their cells
    #[arg(short = 'X', long = "allocations")]
    leases_only: bool,
    #[command(flatten)]
    output: Options,
}

const TOO_MANY: &str = "there are more rows than hopd hands out at once, and the rest is missing: ask for a shorter time (-S, -E)";

/// A row, with the number of the cell within its lease (from 1; 0 for the lease itself).
struct Record {
    row: AcctRow,
    ordinal: u32,
}

impl Record {
    fn gpu_time(&self) -> Span {
        Span(self.row.held.0.saturating_mul(self.row.gpus.len() as u64))
    }

    /// How much of the held time cells ran. A cell itself is all run.
    fn efficiency(&self) -> Option<f64> {
        let share = self.row.run.0 as f64 / self.row.held.0 as f64;
        (self.row.cell.is_none() && self.row.held.0 > 0).then(|| (share * 1000.0).round() / 10.0)
    }

    fn id(&self) -> String {
        match self.ordinal {
            0 => self.row.lease.to_string(),
            n => format!("{}.{n}", self.row.lease),
        }
    }
}

static FIELDS: [Field<Record>; 31] = [
    field!("LeaseID", -9, "the lease, or lease.cell", |r| Value::text(r.id())),
    field!("Name", 12, "what the notebook is called", |r| Value::text(
        &r.row.name
    )),
    field!("User", 9, "who", |r| Value::text(&r.row.user)),
    field!("Account", 10, "the user's Slurm account", |r| Value::maybe(
        r.row.account.as_ref()
    )),
    field!("Pool", 10, "whose GPUs they are", |r| Value::text(&r.row.pool)),
    field!("Partition", 10, "the same as Pool, for sacct's name", |r| {
        Value::text(&r.row.pool)
    }),
    field!("KernelID", 36, "the kernel", |r| Value::text(&r.row.kernel)),
    field!("CellID", 36, "the cell's msg_id; empty for a lease", |r| {
        Value::maybe(r.row.cell.as_ref())
    }),
    field!("Node", 8, "where", |r| Value::text(&r.row.node)),
    field!("NodeList", 15, "the same as Node, for sacct's name", |r| {
        Value::text(&r.row.node)
    }),
    field!("GPUs", 6, "which GPUs of the node: Slurm's IDX", |r| Value::text(
        write_index(&r.row.gpus)
    )),
    field!("NGPUs", 5, "how many", |r| Value::Number(r.row.gpus.len() as u64)),
    field!("CPUs", 4, "cores lent", |r| Value::Number(r.row.cpus.into())),
    field!("SlurmJobID", 14, "the lease's step in its pilot: job.step", |r| {
        Value::text(format!("{}.{}", r.row.pilot, r.row.step))
    }),
    field!(
        "State",
        10,
        "RUNNING, LINGERING, COMPLETED, CANCELLED, FAILED, NODE_FAIL, PREEMPTED",
        |r| Value::text(&r.row.state)
    ),
    field!("Submit", 19, "when it was asked for", |r| Value::Time(
        r.row.submit
    )),
    field!(
        "Start",
        19,
        "when it was handed over; for a cell, when it began",
        |r| Value::time(r.row.start)
    ),
    field!(
        "End",
        19,
        "when it was taken back; for a cell, when it ended",
        |r| Value::time(r.row.end)
    ),
    field!("Wait", 9, "from submission to start", |r| Value::Span(r.row.wait)),
    field!("WaitRaw", 10, "in seconds", |r| Value::Seconds(r.row.wait)),
    field!(
        "Held",
        10,
        "from start to end, or to now; for a cell, its run time",
        |r| Value::Span(r.row.held)
    ),
    field!("HeldRaw", 12, "in seconds", |r| Value::Seconds(r.row.held)),
    field!("Elapsed", 10, "the same as Held, for sacct's name", |r| {
        Value::Span(r.row.held)
    }),
    field!("Run", 10, "time that cells ran within it", |r| Value::Span(
        r.row.run
    )),
    field!("RunRaw", 12, "in seconds", |r| Value::Seconds(r.row.run)),
    field!("Linger", 10, "time that it lay ready for the next cell", |r| {
        Value::Span(r.row.linger)
    }),
    field!("LingerRaw", 12, "in seconds", |r| Value::Seconds(r.row.linger)),
    field!("GPUTime", 11, "Held times the number of GPUs", |r| Value::Span(
        r.gpu_time()
    )),
    field!("GPUTimeRaw", 12, "in seconds", |r| Value::Seconds(r.gpu_time())),
    field!("Efficiency", 10, "Run in percent of Held", |r| Value::Percent(
        r.efficiency()
    )),
    field!("Reason", 30, "how it ended, where that was not ordinary", |r| {
        Value::text(&r.row.reason)
    }),
];

static VIEW: View<Record> = View {
    command: "acct",
    fields: &FIELDS,
    default: "LeaseID,Name,User,Account,Node,NGPUs,State,Held",
    brief: "LeaseID,State,Held",
    variable: "HOP_FORMAT",
};

/// The rows that `hopd` has. Says what is missing among them.
pub(crate) fn ask(query: AcctQuery, context: &mut Context<'_>) -> Result<Vec<AcctRow>, Failure> {
    match context.hopd.ask(Request::Acct(query))? {
        Response::Acct { rows, more, behind } => {
            if more {
                writeln!(context.err, "hop: {TOO_MANY}")?;
            }
            tell_behind(behind, context)?;
            Ok(rows)
        }
        other => Err(unexpected(&other)),
    }
}

/// Says that so many entries of the accounting are not written yet.
pub(crate) fn tell_behind(entries: usize, context: &mut Context<'_>) -> Result<(), Failure> {
    if entries > 0 {
        writeln!(
            context.err,
            "hop: the accounting is behind by {entries} entries: what ended last may be missing"
        )?;
    }
    Ok(())
}

pub(crate) fn run(args: &Args, context: &mut Context<'_>) -> Result<(), Failure> {
    if args.output.answered(&VIEW, context)? {
        return Ok(());
    }
    let wanted = Wanted::read(args, context)?;
    let rows = ask(wanted.query.clone(), context)?;
    let records: Vec<Record> = number(rows)
        .into_iter()
        .filter(|record| wanted.keeps(record))
        .collect();
    args.output.write(&VIEW, &records, context)
}

/// The query, and the filters applied here.
struct Wanted {
    query: AcctQuery,
    states: Vec<String>,
    pools: Pools,
    jobs: Vec<(LeaseId, Option<u32>)>,
    leases_only: bool,
}

impl Wanted {
    fn read(args: &Args, context: &Context<'_>) -> Result<Self, Failure> {
        let jobs: Vec<_> = args
            .jobs
            .iter()
            .map(|word| read_job(word))
            .collect::<Result<_, _>>()?;
        let time = |text: &str| parse_time(text, context.now, &context.zone).map_err(Failure::Usage);
        let since = match &args.starttime {
            Some(text) => Some(time(text)?),
            None if jobs.is_empty() => Some(time("midnight")?),
            None => None,
        };
        let until = args.endtime.as_deref().map(time).transpose()?;
        check_order(since, until)?;
        Ok(Self {
            query: AcctQuery {
                users: args.whose.users(context)?,
                visible: false,
                all_users: args.whose.all(context.is_root),
                accounts: args.accounts.names(),
                kernels: args
                    .kernels
                    .iter()
                    .map(|word| kernels::find(word, context))
                    .collect::<Result<_, _>>()?,
                leases: jobs.iter().map(|(lease, _)| *lease).collect(),
                nodes: args.nodes.names(),
                open: false,
                since,
                until,
                cells: !args.leases_only,
                // A cell's number stays the same whatever -S says.
                whole: true,
            },
            states: args
                .states
                .iter()
                .map(|word| read_state(word))
                .collect::<Result<_, _>>()?,
            pools: args.pools.clone(),
            jobs,
            leases_only: args.leases_only,
        })
    }

    fn keeps(&self, record: &Record) -> bool {
        let state = self.states.is_empty() || self.states.contains(&record.row.state);
        let pool = self.pools.has(&record.row.pool);
        let job = self.jobs.is_empty()
            || self
                .jobs
                .iter()
                .any(|(lease, cell)| *lease == record.row.lease && cell.is_none_or(|n| n == record.ordinal));
        state && pool && job && !(self.leases_only && record.row.cell.is_some())
    }
}

fn check_order(since: Option<Timestamp>, until: Option<Timestamp>) -> Result<(), Failure> {
    match (since, until) {
        (Some(since), Some(until)) if since > until => Err(Failure::Usage(
            "the time of -S is after that of -E: nothing can lie between them".to_owned(),
        )),
        _ => Ok(()),
    }
}

fn read_job(word: &str) -> Result<(LeaseId, Option<u32>), Failure> {
    let wrong = || {
        Failure::Usage(format!(
            "{word:?} is no lease: write its number, or number.cell as in 12.1"
        ))
    };
    let (lease, cell) = match word.split_once('.') {
        Some((lease, cell)) => (lease, Some(cell.parse().map_err(|_| wrong())?)),
        None => (word, None),
    };
    Ok((lease.parse().map_err(|_| wrong())?, cell))
}

fn read_state(word: &str) -> Result<String, Failure> {
    const STATES: [&str; 8] = [
        "PENDING",
        "RUNNING",
        "LINGERING",
        "COMPLETED",
        "CANCELLED",
        "FAILED",
        "NODE_FAIL",
        "PREEMPTED",
    ];
    let known = STATES.iter().find(|state| is_state(word, state));
    known
        .map(|state| (*state).to_owned())
        .ok_or_else(|| no_state(word, &STATES))
}

/// Gives the cells their numbers: leases in order, and behind each its cells in order of beginning.
fn number(mut rows: Vec<AcctRow>) -> Vec<Record> {
    rows.sort_by(|a, b| {
        (a.lease, a.cell.is_some(), a.start, a.submit, &a.cell).cmp(&(
            b.lease,
            b.cell.is_some(),
            b.start,
            b.submit,
            &b.cell,
        ))
    });
    let (mut last, mut ordinal) = (None, 0);
    rows.into_iter()
        .map(|row| {
            ordinal = if last == Some(row.lease) { ordinal } else { 0 };
            last = Some(row.lease);
            ordinal += u32::from(row.cell.is_some());
            let ordinal = if row.cell.is_some() { ordinal } else { 0 };
            Record { row, ordinal }
        })
        .collect()
}
