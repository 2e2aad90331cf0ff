//! `hop doctor`: finds faults of an installation, and says how to mend them.
//!
//! [`facts`] looks at this host, at Slurm and at `hopd`; [`checks`] judges what was seen and is pure. With `--nodes`
//! the same runs on each node of the pools, as a step in the node's pilot or as a separate job. Each node gets a MUNGE
//! credential of this host and hands a credential back. Then a job there leases a GPU for a second ([`lease`]). Nothing
//! is changed.

mod checks;
mod facts;
mod gres;
mod lease;
mod nodes;
pub(crate) mod plugin_file;

use crate::context::Context;
use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  hop doctor                  this host, Slurm's settings, hopd
  hop doctor --nodes          and each node of the pools, which leases a GPU for a second
  hop doctor --all            say what is right as well
  hop doctor --json | jq '.rows[] | select(.result == \"failed\")'

Run it as root or as the service account: others can't look into every folder.
Exit status: 0 nothing failed; 1 something did.";

/// Find faults of the installation, and say how to mend them.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Look at each node of the pools as well, and lease a GPU there for a second
    #[arg(long, conflicts_with = "here")]
    nodes: bool,
    /// Say what is right as well
    #[arg(long)]
    all: bool,
    /// JSON
    #[arg(long, value_name = "VERSION", num_args = 0..=1, require_equals = true, default_missing_value = "v1", value_parser = ["v1"])]
    json: Option<String>,
    /// This host's name in Slurm; default: the host's own
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// plugstack.conf; default: slurmctld's
    #[arg(long, value_name = "FILE")]
    plugstack: Option<PathBuf>,
    /// This host alone, as on each node of --nodes
    #[arg(long, hide = true)]
    here: bool,
    /// Lease a GPU in this step, as on each node of --nodes
    #[arg(long, hide = true, requires = "here")]
    lease: bool,
    /// The pool to lease it of; default: the site's default
    #[arg(long, hide = true, requires = "lease", value_name = "NAME")]
    pool: Option<String>,
}

/// How one thing stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    Ok,
    Failed,
    /// Something else has to be mended before this can be looked at.
    Unknown,
}

/// What was found about one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Finding {
    /// One word for scripts.
    pub(crate) check: String,
    pub(crate) result: Outcome,
    /// What was seen.
    pub(crate) says: String,
    /// How to mend it; empty if nothing is wrong.
    pub(crate) mend: String,
    /// Node of the finding; `None` means the examined host itself.
    #[serde(default)]
    pub(crate) node: Option<String>,
}

impl Finding {
    pub(crate) fn ok(check: &str, says: impl Into<String>) -> Self {
        Self::new(check, Outcome::Ok, says.into(), String::new())
    }

    pub(crate) fn failed(check: &str, says: impl Into<String>, mend: impl Into<String>) -> Self {
        Self::new(check, Outcome::Failed, says.into(), mend.into())
    }

    pub(crate) fn unknown(check: &str, says: impl Into<String>) -> Self {
        Self::new(check, Outcome::Unknown, says.into(), String::new())
    }

    fn new(check: &str, result: Outcome, says: String, mend: String) -> Self {
        Self {
            check: check.to_owned(),
            result,
            says,
            mend,
            node: None,
        }
    }
}

/// The output of `--json`, and the nodes' answers.
#[derive(Debug, Serialize, Deserialize)]
struct Report {
    version: String,
    command: String,
    rows: Vec<Finding>,
    /// Credential made by the examined host for the asking host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    credential: Option<String>,
}

pub(crate) fn run(args: &Args, context: &mut Context<'_>) -> Result<(), Failure> {
    let facts = facts::gather(&facts::Asked {
        node: args.node.as_deref(),
        plugstack: args.plugstack.as_deref(),
        hopd: &*context.hopd,
        env: context.env,
    });
    let mut rows = match (args.lease, args.here) {
        (true, _) => vec![lease_here(&facts, args.pool.as_deref())],
        (false, true) => checks::of_node(&facts),
        (false, false) => checks::of_host(&facts),
    };
    if args.nodes {
        rows.extend(nodes::look(&facts, context.is_root));
    }
    let failed = rows.iter().filter(|row| row.result == Outcome::Failed).count();
    match args.json.is_some() || args.here {
        true => write_json(rows, args.here, &facts, context)?,
        false => write_text(&rows, args.all, context)?,
    }
    match failed {
        0 => Ok(()),
        1 => Err(Failure::Failed("doctor: 1 check failed".into())),
        n => Err(Failure::Failed(format!("doctor: {n} checks failed"))),
    }
}

fn lease_here(facts: &facts::Facts, pool: Option<&str>) -> Finding {
    match &facts.config {
        Ok(config) => {
            let node = facts.asked_node.as_deref().unwrap_or_default();
            lease::try_here(config, node, pool)
        }
        Err(_) => Finding::unknown(lease::CHECK, "the configuration has to be right first"),
    }
}

fn write_json(
    rows: Vec<Finding>,
    here: bool,
    facts: &facts::Facts,
    context: &mut Context<'_>,
) -> Result<(), Failure> {
    let report = Report {
        version: "v1".into(),
        command: "doctor".into(),
        rows,
        credential: here.then(|| facts.credential.clone()).flatten(),
    };
    let text = serde_json::to_string(&report).map_err(|error| Failure::of(&error))?;
    Ok(writeln!(context.out, "{text}")?)
}

fn write_text(rows: &[Finding], all: bool, context: &mut Context<'_>) -> Result<(), Failure> {
    let shown = |row: &&Finding| all || row.result != Outcome::Ok;
    for row in rows.iter().filter(shown) {
        let word = match row.result {
            Outcome::Ok => "ok",
            Outcome::Failed => "FAILED",
            Outcome::Unknown => "unknown",
        };
        let node = row
            .node
            .as_deref()
            .map(|node| format!("{node}: "))
            .unwrap_or_default();
        writeln!(context.out, "{word:<8}{:<14}{node}{}", row.check, row.says)?;
        if !row.mend.is_empty() {
            writeln!(context.out, "{:22}mend: {}", "", row.mend)?;
        }
    }
    let good = rows.iter().filter(|row| row.result == Outcome::Ok).count();
    Ok(writeln!(
        context.err,
        "hop: doctor: {good} of {} checks are fine",
        rows.len()
    )?)
}
