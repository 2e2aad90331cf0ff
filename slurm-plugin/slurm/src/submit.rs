//! Submitting batch jobs, and allocating at once.

use crate::gres::Gres;
use crate::handle::Slurm;
use crate::run::{Call, CommandLine, RunError};
use hop_words::id::{AccountName, JobId, NodeName};
use std::path::PathBuf;
use std::time::Duration;

/// A batch job. Everything that is `None` or empty is left to Slurm's defaults.
#[derive(Debug, Clone, Default)]
pub struct JobSpec {
    /// The batch script, `#!` line first. It goes to `sbatch` on stdin.
    pub script: String,
    pub name: String,
    pub partition: Option<String>,
    pub account: Option<AccountName>,
    pub qos: Option<String>,
    pub reservation: Option<String>,
    pub constraint: Option<String>,
    /// Only on these nodes. With several, the job may get any of them unless `nodes` says how many.
    pub nodelist: Vec<NodeName>,
    pub exclude: Vec<NodeName>,
    /// How many nodes.
    pub nodes: Option<u32>,
    pub ntasks: Option<u32>,
    pub cpus_per_task: Option<u32>,
    /// MiB per node.
    pub mem_mib: Option<u64>,
    /// Per node.
    pub gres: Vec<Gres>,
    /// Minutes; none: the partition's.
    pub time_limit_min: Option<u32>,
    pub workdir: Option<PathBuf>,
    /// stdout and stderr; none: `/dev/null`.
    pub output: Option<PathBuf>,
    pub comment: Option<String>,
    /// The job's environment, beside what Slurm sets. The values travel in the environment of `sbatch`, never
    /// in its arguments. Of the caller's environment only PATH, HOME, USER and LOGNAME reach the job beside it.
    pub env: Vec<(String, String)>,
    /// Ask for a step manager of its own: only where [`crate::Version::has_stepmgr`].
    pub stepmgr: bool,
    /// May Slurm start it again after a node failed?
    pub requeue: bool,
    /// Send SIGTERM to the batch script this long before the time limit.
    pub term_before_end: Option<Duration>,
    /// More arguments of `sbatch`, from the site's configuration.
    pub extra: Vec<String>,
}

/// What is wrong with a [`JobSpec`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    #[error("the script does not begin with #!")]
    NoInterpreter,
    #[error("{what} {value:?} has a character that Slurm can't take there")]
    Characters { what: &'static str, value: String },
}

/// Why a job was not submitted.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    #[error("the job's description is wrong")]
    Spec(#[from] SpecError),
    /// Also when Slurm is away. After [`RunError::Timeout`] the job may exist all the same: look for its name.
    #[error(transparent)]
    Run(RunError),
    #[error("Slurm refused the job: {reason} (`{}`)", .command.program())]
    Refused { command: CommandLine, reason: String },
    #[error("`{}` ended well but named no job: {output:?}", .command.program())]
    NoJobId { command: CommandLine, output: String },
}

impl SubmitError {
    /// Slurm itself is away; the same call may work later.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Run(run) if run.is_unreachable())
    }
}

/// Why nothing was allocated at once.
#[derive(Debug, thiserror::Error)]
pub enum AllocateError {
    #[error("the allocation's description is wrong")]
    Spec(#[from] SpecError),
    #[error("nothing is free now: {reason}")]
    Busy { reason: String },
    #[error(transparent)]
    Run(RunError),
    #[error("`{}` ended well but named no job: {output:?}", .command.program())]
    NoJobId { command: CommandLine, output: String },
}

impl Slurm {
    /// Submits a batch job and returns its id.
    pub async fn submit(&self, spec: &JobSpec) -> Result<JobId, SubmitError> {
        let call = submit_call(spec)?;
        let said = self
            .runner
            .run(&call)
            .await
            .map_err(|error| refused(error, &call))?;
        parse_parsable(&said.stdout).ok_or_else(|| SubmitError::NoJobId {
            command: call.failed(),
            output: said.stdout.chars().take(200).collect(),
        })
    }

    /// Allocates now or not at all (`salloc --immediate --no-shell`); the job lives until it is cancelled.
    /// `script`, `output`, `env` and `term_before_end` of the spec have no meaning here.
    ///
    /// A refusal leaves a FAILED row in Slurm's accounting: don't poll with this call.
    pub async fn allocate(&self, spec: &JobSpec) -> Result<JobId, AllocateError> {
        check(spec)?;
        let mut args = vec!["--immediate=1".to_owned(), "--no-shell".to_owned()];
        args.extend(resource_args(spec));
        let call = Call::new("salloc", args);
        let said = self.runner.run(&call).await.map_err(busy)?;
        said.stderr
            .lines()
            .find_map(|line| line.rsplit_once("Granted job allocation ")?.1.trim().parse().ok())
            .ok_or_else(|| AllocateError::NoJobId {
                command: call.failed(),
                output: said.stderr.chars().take(200).collect(),
            })
    }
}

fn submit_call(spec: &JobSpec) -> Result<Call, SpecError> {
    check(spec)?;
    if !spec.script.starts_with("#!") {
        return Err(SpecError::NoInterpreter);
    }
    let mut args = vec!["--parsable".to_owned(), "--input=/dev/null".to_owned()];
    let output = spec
        .output
        .as_ref()
        .map_or_else(|| "/dev/null".into(), |p| p.display().to_string());
    args.push(format!("--output={output}"));
    args.push("--open-mode=append".to_owned());
    args.push(if spec.requeue { "--requeue" } else { "--no-requeue" }.to_owned());
    args.push(export_arg(&spec.env));
    if let Some(before) = spec.term_before_end {
        args.push(format!("--signal=B:TERM@{}", before.as_secs().clamp(1, 65_535)));
    }
    args.extend(resource_args(spec));
    let mut call = Call::new("sbatch", args);
    call.stdin = Some(spec.script.clone().into_bytes());
    call.env = spec.env.clone();
    Ok(call)
}

/// Names only: the values are in the environment of `sbatch`. `NONE` would start a login shell per job: variables
/// expected by every program are named; `sbatch` leaves out unset variables.
fn export_arg(env: &[(String, String)]) -> String {
    const ALWAYS: [&str; 4] = ["PATH", "HOME", "USER", "LOGNAME"];
    let more = env
        .iter()
        .map(|(name, _)| name.as_str())
        .filter(|name| !ALWAYS.contains(name));
    let names: Vec<&str> = ALWAYS.into_iter().chain(more).collect();
    format!("--export={}", names.join(","))
}

fn resource_args(spec: &JobSpec) -> Vec<String> {
    let mut args = Vec::new();
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            args.push(format!("--{name}={value}"));
        }
    };
    let list = |names: &[NodeName]| {
        (!names.is_empty()).then(|| crate::hostlist::compress(names.iter().map(NodeName::as_str)))
    };
    let gres: Vec<String> = spec.gres.iter().map(ToString::to_string).collect();
    add("job-name", (!spec.name.is_empty()).then(|| spec.name.clone()));
    add("partition", spec.partition.clone());
    add("account", spec.account.as_ref().map(ToString::to_string));
    add("qos", spec.qos.clone());
    add("reservation", spec.reservation.clone());
    add("constraint", spec.constraint.clone());
    add("nodelist", list(&spec.nodelist));
    add("exclude", list(&spec.exclude));
    add("nodes", spec.nodes.map(|n| n.to_string()));
    add("ntasks", spec.ntasks.map(|n| n.to_string()));
    add("cpus-per-task", spec.cpus_per_task.map(|n| n.to_string()));
    add("mem", spec.mem_mib.map(|mib| format!("{mib}M")));
    add("gres", (!gres.is_empty()).then(|| gres.join(",")));
    add(
        "time",
        spec.time_limit_min.map(|min| {
            if min == 0 {
                "UNLIMITED".to_owned()
            } else {
                min.to_string()
            }
        }),
    );
    add("chdir", spec.workdir.as_ref().map(|p| p.display().to_string()));
    add("comment", spec.comment.clone());
    if spec.stepmgr {
        args.push("--stepmgr".to_owned());
    }
    args.extend(spec.extra.iter().cloned());
    args
}

fn check(spec: &JobSpec) -> Result<(), SpecError> {
    let plain = [
        ("job name", Some(&spec.name)),
        ("partition", spec.partition.as_ref()),
        ("QOS", spec.qos.as_ref()),
        ("reservation", spec.reservation.as_ref()),
        ("constraint", spec.constraint.as_ref()),
        ("comment", spec.comment.as_ref()),
    ];
    for (what, value) in plain {
        if let Some(value) = value.filter(|value| value.contains(char::is_control)) {
            return Err(SpecError::Characters {
                what,
                value: value.clone(),
            });
        }
    }
    for (name, _) in &spec.env {
        let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !starts_well || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(SpecError::Characters {
                what: "variable",
                value: name.clone(),
            });
        }
    }
    Ok(())
}

/// `123` or `123;cluster`, on the last line that has anything.
fn parse_parsable(stdout: &str) -> Option<JobId> {
    let line = stdout.lines().rev().find(|line| !line.trim().is_empty())?;
    line.split(';').next()?.trim().parse().ok()
}

fn refused(error: RunError, call: &Call) -> SubmitError {
    match error
        .said()
        .and_then(|said| said.split_once("Batch job submission failed:"))
    {
        // The failed run is in the log already.
        Some((_, reason)) => SubmitError::Refused {
            command: call.line(),
            reason: reason.trim().to_owned(),
        },
        None => SubmitError::Run(error),
    }
}

fn busy(error: RunError) -> AllocateError {
    const BUSY: [&str; 4] = [
        "Unable to allocate resources",
        "Requested nodes are busy",
        "Job allocation",
        "immediate",
    ];
    match error
        .said()
        .filter(|said| BUSY.iter().any(|words| said.contains(words)))
    {
        Some(said) => AllocateError::Busy {
            reason: said.to_owned(),
        },
        None => AllocateError::Run(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> JobSpec {
        JobSpec {
            script: "#!/bin/sh\nsleep 1\n".into(),
            name: "a b".into(),
            partition: Some("notebook".into()),
            nodelist: vec!["n2".into(), "n1".into()],
            nodes: Some(1),
            mem_mib: Some(512),
            gres: vec![Gres::parse("gpu:2").unwrap()],
            env: vec![("TOKEN".into(), "secret".into())],
            stepmgr: true,
            term_before_end: Some(Duration::from_secs(30)),
            ..JobSpec::default()
        }
    }

    #[test]
    fn arguments_are_whole_and_hold_no_values_of_the_environment() {
        let call = submit_call(&spec()).unwrap();
        assert_eq!(
            call.line().to_string(),
            "sbatch --parsable --input=/dev/null --output=/dev/null --open-mode=append --no-requeue \
             --export=PATH,HOME,USER,LOGNAME,TOKEN --signal=B:TERM@30 \"--job-name=a b\" --partition=notebook --nodelist=n[1-2] \
             --nodes=1 --mem=512M --gres=gpu:2 --stepmgr"
        );
        assert_eq!(call.env, [("TOKEN".to_owned(), "secret".to_owned())]);
        assert_eq!(call.stdin.as_deref(), Some(&b"#!/bin/sh\nsleep 1\n"[..]));
    }

    #[test]
    fn odd_descriptions_are_refused_before_slurm_sees_them() {
        let mut wrong = spec();
        wrong.name = "a\nb".into();
        assert!(matches!(
            submit_call(&wrong),
            Err(SpecError::Characters { what: "job name", .. })
        ));
        let mut wrong = spec();
        wrong.env[0].0 = "A,B".into();
        assert!(matches!(
            submit_call(&wrong),
            Err(SpecError::Characters { what: "variable", .. })
        ));
        let mut wrong = spec();
        wrong.script = "sleep".into();
        assert_eq!(submit_call(&wrong).unwrap_err(), SpecError::NoInterpreter);
    }

    #[test]
    fn the_job_id_is_read() {
        assert_eq!(parse_parsable("12\n"), Some(JobId(12)));
        assert_eq!(parse_parsable("site says hello\n12;cluster\n"), Some(JobId(12)));
        assert_eq!(parse_parsable("\n"), None);
    }
}
