//! `hop run`: a whole notebook, unattended, with a GPU for each cell that needs one, and by a deadline.
//!
//! nbclient runs the cells in a Python process ([`worker`]) and asks before each cell how to run it. This side plans
//! ([`plan`]) from the cells' earlier run times ([`history`]). The plan has each cell's class, its GPUs and
//! the time by which the cell should be done. The command reports to the user. The order of cells in the queue is left
//! to `hopd`.

mod history;
mod plan;
mod report;
mod terms;
mod worker;

use crate::context::Context;
use crate::failure::Failure;
use crate::files;
use crate::hopd::unexpected;
use crate::time::{tell_span, write_time};
use crate::values::CORES;
use history::{History, Print, Ran};
use hop_api::config::{MOST_GPUS, Pool};
use hop_api::message::{EXPECT_MAX, Expect, NodeInfo, QueueQuery, Request, Response};
use hop_replica::need::{self, Unattended};
use hop_words::clock::now;
use hop_words::error::system_words;
use hop_words::id::{KernelId, PoolName};
use hop_words::need::{Class, Need};
use hop_words::time::{Span, Timestamp};
use indicatif::{ProgressBar, ProgressStyle};
use plan::{Basis, Forecast, Gpus, Verdict, Waits};
use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;
use terms::{GpusWord, absolute, parse_length, parse_pair};
use tokio::signal::unix::{Signal, SignalKind, signal};
use worker::{CellOver, Event, Link, Opened, Order, Over, Status};

const EXAMPLES: &str = "\
Examples:
  hop run train.ipynb                                   writes train.out.ipynb
  hop run train.ipynb -o day1.ipynb -p epochs=20 -p lr=0.1
  hop run train.ipynb --deadline 18:00 --gpus auto      the fewest GPUs that keep the deadline
  hop run train.ipynb --deadline +2h --dry-run          only forecast whether it will hold
  hop run train.ipynb --resume                          go on after a failure

Exit status: 0 all cells ran, in time; 1 a cell failed; 2 wrong usage, or an unreadable notebook;
3 hopd can't be reached; 4 all cells ran, but the deadline was missed; 5 not begun, because the
deadline is not expected to hold (--ask, --dry-run); 6 the kernel was lost or could not be started;
128 and the signal's number when told to stop.";

/// The kernel's start, where none has been seen.
const START: f64 = 5.0;

/// A kernel that takes longer to start is spoken of.
const SLOW_START: Duration = Duration::from_secs(20);

/// Run a whole notebook unattended.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The notebook
    notebook: PathBuf,
    /// Notebook with outputs, written after every cell; default: NAME.out.ipynb beside the input. A pipe or a device is
    /// written once, at the end
    #[arg(short = 'o', long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Parameter, as papermill's -p: numbers, True, False and None are recognised
    #[arg(short = 'p', long = "parameter", value_name = "NAME=VALUE", value_parser = parse_pair)]
    parameters: Vec<(String, String)>,
    /// Parameter taken as a string, whatever it looks like
    #[arg(short = 'r', long = "raw-parameter", value_name = "NAME=TEXT", value_parser = parse_pair)]
    raw_parameters: Vec<(String, String)>,
    /// Parameters in a file, JSON or YAML
    #[arg(short = 'f', long = "parameters-file", value_name = "FILE")]
    parameter_files: Vec<PathBuf>,
    /// Time by which the notebook should be done: 18:00, +2h30m, 2026-11-21T18:00
    #[arg(long, value_name = "TIME")]
    deadline: Option<String>,
    /// GPUs of each cell that asks for GPUs, or of every cell if none asks; auto: the fewest that keep the deadline
    #[arg(long, value_name = "N|auto")]
    gpus: Option<GpusWord>,
    /// Most GPUs for auto; default: as many as a node has
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(MOST_GPUS)))]
    max_gpus: Option<u16>,
    /// Cores with each of the leases of --gpus
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(CORES))]
    cpus: Option<u16>,
    /// Kernel; default: the notebook's, or one of Gresshopper's
    #[arg(short = 'k', long, value_name = "NAME")]
    kernel: Option<String>,
    /// Go on from the output notebook: with the first cell that failed or has changed
    #[arg(long)]
    resume: bool,
    /// Time to keep the kernel with its variables after a failure, for --resume; 0: none
    #[arg(long, value_name = "LENGTH", default_value = "1h", value_parser = parse_length)]
    keep: Duration,
    /// The longest that a cell may run, waiting not counted
    #[arg(long, value_name = "LENGTH", value_parser = parse_length)]
    timeout: Option<Duration>,
    /// The longest that the kernel may take to come up
    #[arg(long, value_name = "LENGTH", default_value = "10m", value_parser = parse_length)]
    startup_timeout: Duration,
    /// Go on after cells that fail
    #[arg(long)]
    allow_errors: bool,
    /// Folder of the kernel; default: the notebook's
    #[arg(long, value_name = "FOLDER")]
    cwd: Option<PathBuf>,
    /// JSON on standard output: the outcome, or with --dry-run the forecast
    #[arg(long, value_name = "VERSION", num_args = 0..=1, require_equals = true, default_missing_value = "v1", value_parser = ["v1"])]
    json: Option<String>,
    /// Only print the forecast
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Ask before the start if the deadline isn't expected to hold; without a terminal: don't begin
    #[arg(long)]
    ask: bool,
}

/// A cell that is still to be run, or not again.
struct Todo {
    index: usize,
    run: bool,
    plan: plan::Cell,
}

/// One run.
struct Session<'a, 'c> {
    args: &'a Args,
    context: &'a mut Context<'c>,
    out: PathBuf,
    deadline: Option<Timestamp>,
    history: History,
    history_file: Option<PathBuf>,
    opened: Opened,
    params: Print,
    todo: Vec<Todo>,
    gpus: Gpus,
    limit: u16,
    waits: Waits,
    bar: ProgressBar,
    /// Place of the running cell in `todo`, and its expected length.
    current: usize,
    missed_was_told: bool,
    report: report::Report,
    /// A signal that told us to stop.
    stopped: Option<u8>,
    warned_history: bool,
    /// When the last cell's outputs were written.
    done: Option<Timestamp>,
}

struct Signals([(Signal, u8); 3]);

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self([
            (signal(SignalKind::interrupt())?, 2),
            (signal(SignalKind::terminate())?, 15),
            (signal(SignalKind::hangup())?, 1),
        ]))
    }

    async fn next(&mut self) -> u8 {
        let [(a, x), (b, y), (c, z)] = &mut self.0;
        tokio::select! {
            _ = a.recv() => *x,
            _ = b.recv() => *y,
            _ = c.recv() => *z,
        }
    }
}

pub(crate) fn run(args: &Args, context: &mut Context<'_>) -> Result<(), Failure> {
    if args.max_gpus.is_some() && args.gpus != Some(GpusWord::Auto) {
        return Err(Failure::Usage(
            "--max-gpus is the most for --gpus auto".to_owned(),
        ));
    }
    let deadline = match &args.deadline {
        Some(text) => Some(terms::parse_deadline(text, context.now, &context.zone).map_err(Failure::Usage)?),
        None => None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::of(&e))?;
    runtime.block_on(Box::pin(whole(args, deadline, context)))
}

async fn whole(args: &Args, deadline: Option<Timestamp>, context: &mut Context<'_>) -> Result<(), Failure> {
    let notebook = absolute(&args.notebook)?;
    // Before anything else is found to be missing.
    files::open(&notebook)
        .map_err(|e| Failure::Usage(format!("can't read {}: {}", notebook.display(), system_words(&e))))?;
    let out = match &args.output {
        Some(out) => out.clone(),
        None => notebook.with_extension("out.ipynb"),
    };
    let (out, shown) = (terms::output(&out)?, absolute(&out)?);
    let name = blake3::hash(out.as_os_str().as_encoded_bytes());
    let record = worker::folder(context.env)?.join(format!("{}.json", &name.to_hex()[..16]));
    let kept = worker::kept(&record).map(|k| k.kernel);
    let (mut link, patient) = reach(args, &record, context).await?;
    // Until here a signal ends this process at once.
    let mut signals = Signals::new().map_err(|e| Failure::of(&e))?;
    let cwd = match &args.cwd {
        Some(folder) => terms::folder(folder)?,
        None => notebook.parent().unwrap_or_else(|| Path::new("/")).to_owned(),
    };
    let open = worker::Open {
        version: worker::VERSION,
        notebook,
        out,
        cwd,
        record,
        kernel: args.kernel.clone(),
        parameters: args.parameters.clone(),
        raw_parameters: args.raw_parameters.clone(),
        parameter_files: args.parameter_files.clone(),
        resume: args.resume,
        patient,
        allow_errors: args.allow_errors,
        startup_timeout_s: args.startup_timeout.as_secs(),
        keep_s: args.keep.as_secs(),
    };
    link.say(&Order::Open(Box::new(open))).await;
    let opened = tokio::select! {
        opened = opened(&mut link) => opened?,
        number = signals.next() => return Err(stopped_before(number)),
    };
    let kept = kept.filter(|_| opened.living);
    let mut session = Session::new(args, context, shown, deadline, opened, kept)?;
    if !session.begin()? {
        return Ok(());
    }
    let over = session.follow(&mut link, &mut signals).await;
    session.bar.finish_and_clear();
    session.end(over?)
}

/// Reaches the process that runs the cells: an earlier run's process with its kept kernel, or a new process. The flag
/// says whether the run may have to wait for another run's end.
async fn reach(args: &Args, record: &Path, context: &mut Context<'_>) -> Result<(Link, bool), Failure> {
    let kept = worker::kept(record).filter(|_| !args.dry_run);
    if let Some(kept) = &kept {
        let here = rustix::system::uname().nodename().to_string_lossy().into_owned();
        if kept.host != here {
            return Err(Failure::Usage(format!(
                "the kernel of the last run on this output is kept on {}: run this there, or end it with `hop cancel --kernel {}` first",
                kept.host, kept.kernel
            )));
        }
        if let Ok(mut link) = Link::connect(kept, record) {
            if args.resume {
                return Ok((link, false));
            }
            writeln!(
                context.err,
                "hop: the kernel that the last run kept is ended (--resume goes on with it)"
            )?;
            link.say(&Order::End).await;
        }
    }
    let python = worker::find_python(context.env, context.config.as_ref())?;
    Ok((Link::spawn(&python, record)?, kept.is_some()))
}

async fn opened(link: &mut Link) -> Result<Opened, Failure> {
    match link.next().await {
        Some(Event::Opened(opened)) => Ok(opened),
        Some(Event::Refused { reason }) => Err(Failure::Usage(reason)),
        Some(_) | None => Err(Failure::Failed(format!(
            "the process that runs notebooks ended at once: {}",
            link.last_words()
        ))),
    }
}

fn stopped_before(number: u8) -> Failure {
    Failure::Ended {
        status: 128 + number,
        text: "stopped before the first cell".to_owned(),
    }
}

fn span(seconds: f64) -> Span {
    Span((seconds.max(0.0) * 1e6) as u64)
}

impl<'a, 'c> Session<'a, 'c> {
    fn new(
        args: &'a Args,
        context: &'a mut Context<'c>,
        out: PathBuf,
        deadline: Option<Timestamp>,
        opened: Opened,
        kept: Option<String>,
    ) -> Result<Self, Failure> {
        let history_file = history::place(context.env);
        let history = history_file.as_deref().map(History::read).unwrap_or_default();
        let params = Print::of(&opened.parameters);
        let todo = todo(args, &opened);
        let report = report::Report::new(
            args.notebook.display().to_string(),
            &out,
            &opened.kernel,
            deadline,
        );
        let mut session = Self {
            args,
            context,
            out,
            deadline,
            history,
            history_file,
            params,
            todo,
            gpus: Gpus::Own,
            limit: 8,
            waits: Waits::Free,
            bar: ProgressBar::hidden(),
            current: 0,
            missed_was_told: false,
            report,
            stopped: None,
            warned_history: false,
            done: None,
            opened,
        };
        session.look_around(kept)?;
        session.gpus = match args.gpus {
            None => Gpus::Own,
            Some(GpusWord::Count(n)) => Gpus::Fixed(n),
            Some(GpusWord::Auto) => Gpus::Auto(args.max_gpus.unwrap_or(session.limit)),
        };
        Ok(session)
    }

    /// Asks `hopd` for its GPUs and for a cell's expected wait. `kernel` is the kept kernel.
    fn look_around(&mut self, kernel: Option<String>) -> Result<(), Failure> {
        if !self.opened.ours || self.opened.local {
            return Ok(());
        }
        if let Some(GpusWord::Count(asked)) = self.args.gpus {
            self.refuse_too_many(asked)?;
        }
        self.limit = self.most_gpus()?.clamp(1, MOST_GPUS);
        self.waits = Waits::Told(self.told_waits(kernel)?);
        Ok(())
    }

    /// More GPUs than a node of the pool lends can never be had: better said now than by the first cell that asks.
    fn refuse_too_many(&self, asked: u16) -> Result<(), Failure> {
        match self.pool() {
            Some((name, pool)) if asked > pool.gpus_per_pilot => Err(Failure::Usage(format!(
                "--gpus {asked} can't be had: a lease lies on one node, and pool {name} has {} on each",
                report::gpus(pool.gpus_per_pilot)
            ))),
            _ => Ok(()),
        }
    }

    /// The kernel's pool as the site configured it, if this host knows.
    fn pool(&self) -> Option<(PoolName, &Pool)> {
        let config = self.context.config.as_ref()?;
        let named = self.opened.pool.clone().map(PoolName::from);
        let name = named.unwrap_or_else(|| config.default_pool());
        let pool = config.pool.get(&name)?;
        Some((name, pool))
    }

    /// The GPUs of a node of the pool. The pilots that happen to be up may be smaller, or none.
    fn most_gpus(&mut self) -> Result<u16, Failure> {
        if let Some((_, pool)) = self.pool() {
            return Ok(pool.gpus_per_pilot);
        }
        let info = match self.context.hopd.ask(Request::Info)? {
            Response::Info(info) => info,
            other => return Err(unexpected(&other)),
        };
        let is_ours = |n: &&NodeInfo| self.opened.pool.as_deref().is_none_or(|p| n.pool.as_str() == p);
        let nodes = info.nodes.iter().filter(is_ours);
        Ok(nodes.map(|n| n.gpus).max().unwrap_or(1))
    }

    /// Waits expected by `hopd` for the first cell with GPUs, by the number of GPUs.
    fn told_waits(&mut self, kernel: Option<String>) -> Result<BTreeMap<u16, Option<f64>>, Failure> {
        let asks = |t: &&Todo| t.run && (t.plan.gpus > 0 || t.plan.scaled);
        let Some(first) = self.todo.iter().find(asks) else {
            return Ok(BTreeMap::new());
        };
        let cell = self.opened.cells.iter().find(|c| c.index == first.index);
        let need = cell.map_or_else(Need::default, |c| need_of(c, &self.opened.need));
        let numbers = asked_numbers(self.limit, first.plan.gpus);
        let expect = numbers.iter().map(|&gpus| Expect {
            kernel: kernel.clone().map(KernelId::from),
            pool: self.opened.pool.clone().map(PoolName::from),
            default_need: self.opened.need.clone(),
            need: Need {
                gpus,
                cpus: self.args.cpus.filter(|_| first.plan.scaled).unwrap_or(need.cpus),
                deadline: self.deadline,
                ..need.clone()
            },
            class: self.class(),
        });
        let query = QueueQuery {
            expect: expect.collect(),
            ..QueueQuery::default()
        };
        let waits = match self.context.hopd.ask(Request::Queue(query))? {
            Response::Queue { expected, .. } => expected,
            other => return Err(unexpected(&other)),
        };
        let waits = waits.into_iter().map(|w| w.map(Span::as_secs_f64));
        Ok(numbers.into_iter().zip(waits).collect())
    }

    /// Of the cells.
    fn class(&self) -> Class {
        if self.deadline.is_some() {
            Class::Deadline
        } else {
            Class::Batch
        }
    }

    /// Cells still to run, from a place in `todo` on.
    fn left(&self, from: usize) -> Vec<plan::Cell> {
        let rest = self.todo[from..].iter().filter(|t| t.run);
        rest.map(|t| t.plan.clone()).collect()
    }

    fn basis<'b>(&'b self, at: Timestamp, start: f64, waits: &'b Waits) -> Basis<'b> {
        let seconds = |by: Timestamp| (by.0 as f64 - at.0 as f64) / 1e6;
        Basis {
            history: &self.history,
            params: &self.params,
            start,
            waits,
            deadline: self.deadline.map(seconds),
            gpus: self.gpus,
            limit: self.limit,
        }
    }

    /// Reports the forecast. `false` means that the run ends here, by the user's choice or after a dry run.
    fn begin(&mut self) -> Result<bool, Failure> {
        for text in &self.opened.warnings {
            writeln!(self.context.err, "hop: {text}")?;
        }
        let start = if self.opened.living {
            0.0
        } else {
            let runs = self
                .history
                .runs(&start_print(&self.opened.kernel), &Print::of(""));
            history::median(&runs.iter().map(|r| r.seconds).collect::<Vec<_>>()).unwrap_or(START)
        };
        let left = self.left(0);
        let forecast = self.basis(self.context.now, start, &self.waits).forecast(&left);
        let said = report::Expected::of(&forecast, self.context.now, self.deadline, &left);
        self.report.expected = Some(said.clone());
        let lines = said.lines(&self.context.zone, self.args.gpus.is_some());
        if self.args.dry_run {
            if self.args.json.is_some() {
                self.report.write(self.context.out)?;
            } else {
                for line in lines {
                    writeln!(self.context.out, "{line}")?;
                }
            }
            return self.holds(&forecast).map(|()| false);
        }
        self.introduce(&left)?;
        for line in lines {
            writeln!(self.context.err, "hop: {line}")?;
        }
        self.missed_was_told = matches!(forecast.verdict, Verdict::Missed(_));
        if left.is_empty() {
            writeln!(self.context.err, "hop: nothing is left to be run")?;
            return Ok(false);
        }
        if self.args.ask
            && !matches!(forecast.verdict, Verdict::NoDeadline | Verdict::Holds(_))
            && !self.agreed()?
        {
            return Err(Failure::Ended {
                status: 5,
                text: "not begun, for it is not sure that the deadline holds (--ask)".to_owned(),
            });
        }
        self.bar = bar(left.len());
        Ok(true)
    }

    fn introduce(&mut self, left: &[plan::Cell]) -> Result<(), Failure> {
        let again = self.opened.cells.iter().filter(|c| c.again).count();
        let gone_on = match (self.args.resume, self.opened.living) {
            (true, true) => ", on the kernel that was kept".to_owned(),
            (true, false) if again > 0 => format!(", {again} of them again, for their variables"),
            _ => String::new(),
        };
        writeln!(
            self.context.err,
            "hop: {} -> {}, kernel {}, {} to run{gone_on}",
            self.args.notebook.display(),
            self.out.display(),
            self.opened.kernel,
            report::cells(left.len()),
        )?;
        Ok(())
    }

    /// An error with status 5 where the deadline is not expected to hold.
    fn holds(&self, forecast: &Forecast) -> Result<(), Failure> {
        match forecast.verdict {
            Verdict::Missed(late) => Err(Failure::Ended {
                status: 5,
                text: format!(
                    "the deadline is not expected to hold, by {}",
                    tell_span(span(late))
                ),
            }),
            _ => Ok(()),
        }
    }

    fn agreed(&mut self) -> Result<bool, Failure> {
        if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
            return Ok(false);
        }
        write!(self.context.err, "hop: begin all the same? [y/N] ")?;
        self.context.err.flush()?;
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer)?;
        Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
    }

    /// Lets the cells run. None: the process ended without a word.
    async fn follow(&mut self, link: &mut Link, signals: &mut Signals) -> Result<Option<Over>, Failure> {
        link.say(&Order::Go).await;
        let mut starting = !self.opened.living;
        self.bar.set_message("the kernel starts");
        let slow = tokio::time::sleep(SLOW_START);
        tokio::pin!(slow);
        loop {
            let event = tokio::select! {
                event = link.next() => event,
                () = &mut slow, if starting => {
                    starting = false;
                    self.say("the kernel is not up yet: its seat may wait in Slurm's queue (squeue --me)");
                    continue;
                }
                number = signals.next() => {
                    self.stop(number, link).await;
                    continue;
                }
            };
            let Some(event) = event else {
                return Ok(None);
            };
            match event {
                Event::Cell { index } => {
                    let order = self.cell(index);
                    link.say(&order).await;
                }
                Event::CellOver(over) => self.cell_over(&over),
                Event::Waiting {
                    position,
                    reason,
                    eta_s,
                } => self.waiting(position, reason, eta_s),
                Event::Running {} | Event::Opened(_) => {}
                Event::Kernel { id } => {
                    starting = false;
                    self.kernel_up(id);
                }
                Event::Written {} => self.done = Some(now()),
                Event::Warning { text } => self.say(&text),
                Event::Over(over) => return Ok(Some(over)),
                Event::Refused { reason } => return Err(Failure::Usage(reason)),
            }
        }
    }

    async fn stop(&mut self, number: u8, link: &mut Link) {
        if self.stopped.is_some() {
            link.kill();
            return;
        }
        self.stopped = Some(number);
        self.say("stopping: the cell that runs is interrupted, what ran so far is kept (once more: at once)");
        link.say(&Order::Stop).await;
    }

    /// A line on standard error, above the bar.
    fn say(&mut self, text: &str) {
        let err = &mut *self.context.err;
        // stderr may be gone; the run goes on without it.
        self.bar.suspend(|| drop(writeln!(err, "hop: {text}")));
    }

    fn kernel_up(&mut self, id: String) {
        self.report.kernel_id = Some(id);
        let ran = Ran {
            print: start_print(&self.opened.kernel),
            params: Print::of(""),
            gpus: 0,
            seconds: now().since(self.context.now).as_secs_f64(),
            waited: 0.0,
        };
        self.remember(&ran);
    }

    fn remember(&mut self, ran: &Ran) {
        let Some(path) = &self.history_file else {
            return;
        };
        if let Err(error) = history::add(path, ran)
            && !std::mem::replace(&mut self.warned_history, true)
        {
            let text = format!(
                "can't keep how long cells take in {}: {}",
                path.display(),
                system_words(&error)
            );
            self.say(&text);
        }
    }

    /// How this cell is to run.
    fn cell(&mut self, index: usize) -> Order {
        let timeout_s = self.args.timeout.map(|t| t.as_secs_f64()).filter(|t| *t > 0.0);
        let Some(at) = self.todo.iter().position(|t| t.index == index && t.run) else {
            return Order::Cell { run: None, timeout_s };
        };
        self.current = at;
        let (left, time) = (self.left(at), now());
        let basis = self.basis(time, 0.0, &Waits::Free);
        let forecast = basis.forecast(&left);
        // Latest end of the cell: the latest start of the rest.
        let done_by = basis.latest_start(&left[1..], forecast.gpus);
        let expected = basis.of_cell(&left[0], forecast.gpus);
        let cell = &self.todo[at].plan;
        let run = Unattended {
            class: self.class(),
            deadline: done_by.map(|s| Timestamp((time.0 as f64 + s * 1e6).max(0.0) as u64)),
            gpus: forecast.gpus.filter(|_| cell.scaled),
            cpus: self.args.cpus.filter(|_| cell.scaled),
        };
        if let Verdict::Missed(late) = forecast.verdict
            && !std::mem::replace(&mut self.missed_was_told, true)
        {
            let text = format!(
                "the deadline is not expected to hold any more, by {}",
                tell_span(span(late))
            );
            self.say(&text);
        }
        let expected = expected.map_or(String::new(), |s| {
            format!(", about {} expected", tell_span(span(s)))
        });
        self.bar.set_prefix(self.label(at));
        self.bar.set_message(format!("runs{expected}"));
        Order::Cell {
            run: Some(run),
            timeout_s,
        }
    }

    fn label(&self, at: usize) -> String {
        format!("cell {} of {}", at + 1, self.todo.len())
    }

    fn waiting(&mut self, position: Option<u32>, reason: Option<String>, eta_s: Option<f64>) {
        let mut text = format!("{} waits", self.label(self.current));
        if let Some(reason) = reason {
            text = format!("{text}: {}", terms::printable(&reason));
        }
        if let Some(position) = position {
            text = format!("{text}; position {position}");
        }
        if let Some(eta) = eta_s {
            text = format!("{text}, about {}", tell_span(span(eta)));
        }
        if self.bar.is_hidden() {
            self.say(&text);
        } else {
            self.bar.set_message(text);
        }
    }

    fn cell_over(&mut self, over: &CellOver) {
        let label = self.label(self.current);
        let lease = over.lease.clone().unwrap_or_default();
        let gpus = u16::try_from(lease.gpus.len()).unwrap_or(u16::MAX);
        let place = match (lease.node.as_str(), gpus) {
            ("", _) => String::new(),
            (node, 0) => format!(" on {}", terms::printable(node)),
            (node, n) => format!(
                " on {}, GPUs: {n}, waited {}",
                terms::printable(node),
                tell_span(span(over.waited))
            ),
        };
        let took = tell_span(span(over.seconds));
        match over.status {
            Status::Ok => self.say(&format!("{label}: {took}{place}")),
            _ => self.say(&format!("{label}: failed after {took}{place}")),
        }
        self.bar.inc(1);
        let print = self.todo[self.current].plan.print.clone();
        if over.status == Status::Ok {
            let ran = Ran {
                print,
                params: self.params.clone(),
                gpus,
                seconds: over.seconds,
                waited: over.waited,
            };
            self.remember(&ran);
        }
        self.report.cell(over);
    }

    /// Prints the outcome of the run, and sets the exit status.
    fn end(&mut self, over: Option<Over>) -> Result<(), Failure> {
        let lost = || Over {
            status: Status::Died,
            reason: "the process that ran the cells was ended".to_owned(),
            kept_until: None,
            kernel: None,
        };
        let over = over.unwrap_or_else(lost);
        let done = self.done.unwrap_or_else(now);
        self.report.end(&over, done);
        if self.args.json.is_some() {
            self.report.write(self.context.out)?;
        }
        let out = self.out.display().to_string();
        let label = self.label(self.current.min(self.todo.len().saturating_sub(1)));
        let again = match (over.kept_until, &over.kernel) {
            (Some(until), Some(kernel)) => format!(
                "\nhop: {out} has the outputs so far; the kernel is kept with its variables until {}\n\
                 hop: the same command with --resume goes on from this cell, changed or not; `hop cancel --kernel {kernel}` ends it",
                write_time(Timestamp((until * 1e6) as u64), &self.context.zone)
            ),
            _ => format!(
                "\nhop: {out} has the outputs so far; the same command with --resume runs the cells above once more, for \
                 their variables, and goes on"
            ),
        };
        let reason = terms::printable(&over.reason);
        let ended = |status: u8, text: String| Err(Failure::Ended { status, text });
        match (over.status, self.stopped) {
            (Status::Ok, _) => self.in_time(done),
            (_, Some(number)) => ended(128 + number, format!("stopped at {label}{again}")),
            (Status::Error, _) => ended(1, format!("{label} failed: {reason}{again}")),
            (Status::Timeout, _) => ended(1, format!("{label} ran for longer than --timeout allows{again}")),
            (Status::Unwritten, _) => ended(1, reason),
            (Status::NotStarted, _) => ended(6, format!("the kernel could not be started: {reason}")),
            (Status::Died | Status::Interrupted, _) => {
                let why = if reason.is_empty() {
                    "no reason is known".to_owned()
                } else {
                    reason
                };
                ended(6, format!("the kernel was lost at {label}: {why}{again}"))
            }
        }
    }

    fn in_time(&mut self, done: Timestamp) -> Result<(), Failure> {
        let took = tell_span(done.since(self.context.now));
        match self.deadline {
            Some(by) if done > by => Err(Failure::Ended {
                status: 4,
                text: format!(
                    "all cells ran, in {took}, but the deadline was missed by {}",
                    tell_span(done.since(by))
                ),
            }),
            Some(by) => {
                writeln!(
                    self.context.err,
                    "hop: all cells ran, in {took}, {} before the deadline",
                    tell_span(by.since(done))
                )?;
                Ok(())
            }
            None => {
                writeln!(self.context.err, "hop: all cells ran, in {took}")?;
                Ok(())
            }
        }
    }
}

/// The cells in their order, each with its need.
fn todo(args: &Args, opened: &Opened) -> Vec<Todo> {
    let needs: Vec<Need> = opened.cells.iter().map(|c| need_of(c, &opened.need)).collect();
    let none_asks = needs.iter().all(|n| n.gpus == 0);
    let said = args.gpus.is_some() || args.cpus.is_some();
    let cells = opened.cells.iter().zip(needs);
    cells
        .map(|(cell, need)| {
            let on_cpus = cell.source.trim_start().starts_with("%%cpu");
            let scaled = need.gpus > 0 || said && none_asks && !on_cpus;
            Todo {
                index: cell.index,
                run: !cell.good || cell.again,
                plan: plan::Cell {
                    print: Print::of(&cell.source),
                    gpus: need.gpus,
                    scaled,
                    prior: cell.seconds,
                },
            }
        })
        .collect()
}

/// The need as the replica will read it. An unreadable need fails at the start of its cell.
fn need_of(cell: &worker::BookCell, default: &Need) -> Need {
    let metadata = serde_json::json!({"gresshopper": {"need": cell.need}}).to_string();
    let read = need::of_cell(&cell.source, metadata.as_bytes(), false, default, now());
    read.unwrap_or_default()
}

fn start_print(kernel: &str) -> Print {
    Print::of(&format!("start of kernel {kernel}"))
}

/// Numbers of GPUs for which `hopd` is asked for the wait: all, or where those are too many some up to the last.
fn asked_numbers(limit: u16, planned: u16) -> BTreeSet<u16> {
    let all = 1..=limit;
    let some = all.filter(|n| usize::from(limit) < EXPECT_MAX || n.is_power_of_two() || *n == limit);
    some.chain([planned]).filter(|n| *n > 0).collect()
}

fn bar(cells: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(cells as u64);
    let style = ProgressStyle::with_template("{spinner} {prefix} {msg} [{elapsed}]");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
