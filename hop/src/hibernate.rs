//! `hop hibernate`, `hop wake` and `hop forget`: kernels that lie in their user's home and hold nothing on the cluster.

use crate::context::Context;
use crate::failure::Failure;
use crate::hopd::unexpected;
use crate::kernels;
use crate::values::SECONDS;
use hop_api::message::{HibernateTarget, KernelRow, KernelState, Request, Response};
use hop_words::id::KernelId;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  hop hibernate lecture.ipynb          save it whole and end its processes
  hop hibernate --all                  all your kernels; for an operator, everybody's
  hop hibernate --all --node n2        kernels with a process on node n2, before maintenance

`hop wake` or the notebook's next opening brings a kernel back.";

/// Save kernels whole in their user's home, and end their processes.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Kernels: ids, beginnings of them, or notebooks' names
    #[arg(value_name = "KERNEL", required_unless_present = "all")]
    kernels: Vec<String>,
    /// All your kernels; for an operator, everybody's
    #[arg(long, conflicts_with = "kernels")]
    all: bool,
    /// With --all: kernels with a process on this node
    #[arg(long, value_name = "NODE", requires = "all")]
    node: Option<String>,
    /// Also kernels with unsavable objects, which are lost
    #[arg(long)]
    force: bool,
    /// Don't wait until they are saved
    #[arg(long)]
    no_wait: bool,
    /// Longest wait, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(SECONDS))]
    timeout: u64,
}

/// All are tried; the status tells whether all sleep.
pub(crate) fn run(args: &Args, context: &mut Context<'_>) -> Result<(), Failure> {
    let (mut asked, mut failures) = (Vec::new(), Vec::new());
    for target in targets(args, context)? {
        let request = Request::Hibernate {
            target,
            force: args.force,
        };
        match context.hopd.ask(request) {
            Ok(Response::Asked { kernels, refused }) => {
                asked.extend(kernels);
                failures.extend(refused.into_iter().map(|(_, why)| why));
            }
            Ok(other) => return Err(unexpected(&other)),
            Err(Failure::Failed(why)) => failures.push(why),
            Err(other) => return Err(other),
        }
    }
    if asked.is_empty() && failures.is_empty() {
        // A node's name that is mistyped before maintenance is to be noticed.
        let place = args
            .node
            .as_ref()
            .map_or_else(String::new, |node| format!(" on node {node}"));
        writeln!(context.err, "hop: no open kernel is there to hibernate{place}")?;
    }
    if !args.no_wait {
        failures.extend(wait(&asked, args.timeout, context)?);
    }
    match failures.is_empty() {
        true => Ok(()),
        false => Err(Failure::Failed(failures.join("\nhop: "))),
    }
}

fn targets(args: &Args, context: &Context<'_>) -> Result<Vec<HibernateTarget>, Failure> {
    if args.all {
        let node = args.node.as_deref().map(Into::into);
        return Ok(vec![HibernateTarget::All { node }]);
    }
    let ids = args.kernels.iter().map(|word| kernels::find(word, context));
    let target = |kernel| HibernateTarget::Kernel { kernel };
    ids.map(|id| id.map(target)).collect()
}

/// Waits until each sleeps or stays awake; says which don't sleep, and why.
fn wait(asked: &[KernelId], seconds: u64, context: &Context<'_>) -> Result<Vec<String>, Failure> {
    let outcome = |row: &KernelRow| match (row.state, &row.stayed) {
        (KernelState::Hibernating, _) => None,
        (KernelState::Asleep, _) => Some(None),
        (_, stayed) => {
            Some(Some(stayed.clone().unwrap_or_else(|| {
                "it was restarted or woken meanwhile".to_owned()
            })))
        }
    };
    let watched = kernels::watch(asked, Duration::from_secs(seconds), context, outcome)?;
    let stayed = watched.settled.iter().filter_map(|(kernel, why)| {
        let why = why.as_ref()?;
        Some(format!("kernel {kernel} does not hibernate: {why}"))
    });
    let closed = watched
        .closed
        .iter()
        .map(|kernel| format!("kernel {kernel} does not hibernate: it was closed meanwhile"));
    let late = watched.left().map(|kernel| {
        format!(
            "kernel {kernel} is not saved after {seconds} s: `hop kernels` shows whether it still saves its state"
        )
    });
    Ok(stayed.chain(closed).chain(late).collect())
}

/// Bring a hibernated kernel back, with its variables.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A kernel whose notebook is open in no Jupyter server comes back when somebody opens it.")]
pub(crate) struct WakeArgs {
    /// Kernel: its id, the beginning of its id, or the notebook's name
    kernel: String,
}

pub(crate) fn wake(args: &WakeArgs, context: &mut Context<'_>) -> Result<(), Failure> {
    let kernel = kernels::find(&args.kernel, context)?;
    match context.hopd.ask(Request::Wake { kernel })? {
        Response::Done => Ok(()),
        other => Err(unexpected(&other)),
    }
}

/// Forget hibernated kernels: their variables are lost.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The kernel's saved state in your home (~/.local/share/gresshopper/states/KERNEL) is removed as
well. Other users' homes are left alone.")]
pub(crate) struct ForgetArgs {
    /// Kernels: ids, beginnings of them, or notebooks' names
    #[arg(value_name = "KERNEL", required = true)]
    kernels: Vec<String>,
}

pub(crate) fn forget(args: &ForgetArgs, context: &mut Context<'_>) -> Result<(), Failure> {
    let mut failures = Vec::new();
    for word in &args.kernels {
        match forget_one(word, context) {
            Ok(()) => {}
            Err(failure) if failure.is_of_all_arguments() => return Err(failure),
            Err(failure) => failures.push(failure.to_string()),
        }
    }
    match failures.is_empty() {
        true => Ok(()),
        false => Err(Failure::Failed(failures.join("\nhop: "))),
    }
}

fn forget_one(word: &str, context: &Context<'_>) -> Result<(), Failure> {
    let kernel = kernels::find(word, context)?;
    let request = Request::Forget {
        kernel: kernel.clone(),
    };
    match context.hopd.ask(request)? {
        Response::Done => {}
        other => return Err(unexpected(&other)),
    }
    let folder = kernels::state_folder(&kernel, context);
    let Some(folder) = folder.filter(|folder| folder.is_dir()) else {
        return Ok(());
    };
    std::fs::remove_dir_all(&folder).map_err(|error| {
        Failure::Failed(format!(
            "hopd has forgotten kernel {kernel}, but {} can't be removed: {error}",
            folder.display()
        ))
    })
}
