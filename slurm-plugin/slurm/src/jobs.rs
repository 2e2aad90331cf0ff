//! Jobs and steps as Slurm tells them, and which GPUs a job has.

use crate::gres::{Gres, Tres};
use crate::id::StepId;
use crate::record::{Marks, ParseError, node_names, number, some_text, value_of};
use crate::span::{TimeLimit, parse_time};
use crate::state::JobState;
use hop_words::id::{AccountName, JobId, NodeName, UserName};
use hop_words::time::Timestamp;
use serde::{Deserialize, Serialize};

/// A job as `squeue` knows it: waiting, running, or over for less than MinJobAge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    pub id: JobId,
    /// Whatever its owner wrote: any characters.
    pub name: String,
    pub comment: Option<String>,
    pub user: UserName,
    pub uid: u32,
    pub account: Option<AccountName>,
    /// For a waiting job several, separated by commas.
    pub partition: String,
    pub qos: Option<String>,
    pub state: JobState,
    /// Why it waits or ended, in Slurm's word (`Resources`, `AssocGrpGRES`, ...).
    pub reason: Option<String>,
    /// Empty while it waits.
    pub nodes: Vec<NodeName>,
    pub cpus: u32,
    /// Asked for per node.
    pub gres: Vec<Gres>,
    pub submitted: Option<Timestamp>,
    /// When it started, or is expected to.
    pub start: Option<Timestamp>,
    /// End of the job, or the end by its limit.
    pub end: Option<Timestamp>,
    pub limit: TimeLimit,
}

/// Which jobs; empty lists mean all. A job needs to be of one of the users: by name, or by uid.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobFilter {
    pub ids: Vec<JobId>,
    pub users: Vec<UserName>,
    /// An owner by uid is recognised while this host's user database names nobody.
    pub uids: Vec<u32>,
    pub names: Vec<String>,
    pub partitions: Vec<String>,
    /// Includes ended jobs that slurmctld still remembers.
    pub ended: bool,
}

/// A job's GRES on some of its nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobGres {
    pub nodes: Vec<NodeName>,
    /// Abstract CPU ids, as Slurm writes them (`0-3,8`).
    pub cpus: String,
    pub mem_mib: u64,
    /// With `IDX`.
    pub gres: Vec<Gres>,
}

/// A step that has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub id: StepId,
    /// Free text of the job's owner. Text after it in Slurm's output may be forged by the owner.
    pub name: String,
    pub uid: u32,
    pub state: JobState,
    pub partition: String,
    pub nodes: Vec<NodeName>,
    pub start: Option<Timestamp>,
    /// What it holds in all.
    pub tres: Tres,
}

pub(crate) const JOB_LETTERS: [&str; 17] = [
    "%A", "%T", "%r", "%u", "%U", "%P", "%a", "%q", "%N", "%C", "%b", "%V", "%S", "%e", "%l", "%k", "%j",
];

impl JobFilter {
    pub fn matches(&self, job: &Job) -> bool {
        let any = |empty: bool, found: bool| empty || found;
        any(self.ids.is_empty(), self.ids.contains(&job.id))
            && any(
                self.users.is_empty() && self.uids.is_empty(),
                self.users.contains(&job.user) || self.uids.contains(&job.uid),
            )
            && any(self.names.is_empty(), self.names.contains(&job.name))
            && any(
                self.partitions.is_empty(),
                job.partition
                    .split(',')
                    .any(|p| self.partitions.iter().any(|wanted| wanted == p)),
            )
            && (self.ended || !job.state.is_over())
    }

    /// The same filter for jobs of all users.
    pub(crate) fn of_all_users(&self) -> Self {
        Self {
            users: Vec::new(),
            uids: Vec::new(),
            ..self.clone()
        }
    }

    /// The arguments of `squeue` for this filter.
    pub(crate) fn args(&self) -> Vec<String> {
        let mut args = vec!["--noheader".to_owned(), "--all".to_owned(), "--local".to_owned()];
        if self.ended {
            args.push("--states=all".to_owned());
        }
        let mut list = |name: &str, words: Vec<String>| {
            // A word with a comma would mean two; such filters are applied to the answer alone.
            if !words.is_empty() && !words.iter().any(|word| word.contains(',')) {
                args.push(format!("--{name}={}", words.join(",")));
            }
        };
        list("jobs", self.ids.iter().map(ToString::to_string).collect());
        let users = self.users.iter().map(ToString::to_string);
        list(
            "user",
            users.chain(self.uids.iter().map(ToString::to_string)).collect(),
        );
        list("name", self.names.clone());
        list("partition", self.partitions.clone());
        args
    }
}

pub(crate) fn parse_jobs(marks: &Marks, output: &str) -> Result<Vec<Job>, ParseError> {
    let records = marks.split(output, JOB_LETTERS.len())?;
    records.into_iter().map(|fields| parse_job(&fields)).collect()
}

fn parse_job(fields: &[&str]) -> Result<Job, ParseError> {
    let &[
        id,
        state,
        reason,
        user,
        uid,
        partition,
        account,
        qos,
        nodes,
        cpus,
        gres,
        submitted,
        start,
        end,
        limit,
        comment,
        name,
    ] = fields
    else {
        return Err(ParseError::Missing("a field"));
    };
    Ok(Job {
        id: number("job id", id).map(JobId)?,
        name: name.to_owned(),
        comment: some_text(comment),
        user: user.into(),
        uid: number("uid", uid)?,
        account: some_text(account).map(AccountName::from),
        partition: partition.to_owned(),
        qos: some_text(qos),
        state: JobState::from(state),
        reason: some_text(reason),
        nodes: node_names(nodes)?,
        cpus: number("cpus", cpus)?,
        gres: Gres::parse_list(gres),
        submitted: parse_time(submitted),
        start: parse_time(start),
        end: parse_time(end),
        limit: TimeLimit::parse(limit)?,
    })
}

pub(crate) fn parse_steps(output: &str) -> Result<Vec<Step>, ParseError> {
    output
        .lines()
        .filter(|line| line.starts_with("StepId="))
        .map(parse_step)
        .collect()
}

/// The name may imitate keys: keys before the name are found first, the key behind the name last.
fn parse_step(line: &str) -> Result<Step, ParseError> {
    let value = |key: &'static str| value_of(line, key).ok_or(ParseError::Missing(key));
    let tres = line.rfind(" TRES=").and_then(|at| value_of(&line[at..], "TRES"));
    Ok(Step {
        id: value("StepId")?.parse()?,
        name: value("Name")?.to_owned(),
        uid: number("UserId", value("UserId")?)?,
        state: JobState::from(value("State")?),
        partition: value("Partition")?.to_owned(),
        nodes: node_names(value("NodeList")?)?,
        start: parse_time(value("StartTime")?),
        tres: Tres::parse(tres.unwrap_or_default())?,
    })
}

/// The `Nodes=` lines below `NumNodes=` of one job. A job's name or comment may hold newlines: a second line of either
/// kind proves an imitation.
pub(crate) fn parse_job_gres(output: &str) -> Result<Vec<JobGres>, ParseError> {
    let lines: Vec<&str> = output.lines().collect();
    let head = |line: &&str| line.starts_with("   NumNodes=");
    if lines.iter().filter(|line| head(line)).count() > 1 {
        return Err(ParseError::Forged("NumNodes="));
    }
    let Some(at) = lines.iter().position(head) else {
        return Ok(Vec::new());
    };
    let block = |line: &&&str| {
        line.starts_with("   TRES=")
            || line.starts_with("   ReqTRES=")
            || line.starts_with("   AllocTRES=")
            || line.starts_with("   Socks/Node=")
            || line.starts_with("   JOB_GRES=")
            || line.starts_with("     Nodes=")
    };
    let details: Vec<&str> = lines[at + 1..]
        .iter()
        .take_while(block)
        .copied()
        .filter(|l| l.starts_with("     Nodes="))
        .collect();
    if lines
        .iter()
        .filter(|line| line.starts_with("     Nodes="))
        .count()
        != details.len()
    {
        return Err(ParseError::Forged("Nodes="));
    }
    details
        .into_iter()
        .map(|line| parse_gres_line(line.trim()))
        .collect()
}

/// Whether a job has a time of its preemption. Slurm writes the line for jobs that can be preempted.
pub(crate) fn parse_preempted(output: &str) -> bool {
    let mut lines = output.lines();
    let line = lines.find(|line| line.starts_with("   PreemptEligibleTime="));
    let at = line.and_then(|line| value_of(line, "PreemptTime"));
    at.is_some_and(|at| !["None", "N/A", "Unknown", ""].contains(&at))
}

fn parse_gres_line(line: &str) -> Result<JobGres, ParseError> {
    let value = |key: &'static str| value_of(line, key).ok_or(ParseError::Missing(key));
    Ok(JobGres {
        nodes: node_names(value("Nodes")?)?,
        cpus: value("CPU_IDs")?.to_owned(),
        mem_mib: number("Mem", value("Mem")?)?,
        gres: Gres::parse_list(value("GRES").unwrap_or_default()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gres::{gpu_index, gpus};
    use hop_words::id::GpuIndex;

    /// A recorded output, of both series that we have.
    macro_rules! recorded {
        ($file:literal) => {
            [
                include_str!(concat!("../tests/recorded/22.05/", $file)),
                include_str!(concat!("../tests/recorded/24.11/", $file)),
            ]
        };
    }

    #[test]
    fn a_job_is_preempted_once_it_has_a_time_of_that() {
        for job in recorded!("job-1.txt") {
            let with = |times: &str| job.replacen("   StartTime=", &format!("   {times}\n   StartTime="), 1);
            assert!(!parse_preempted(job));
            let eligible = "PreemptEligibleTime=1795274881";
            assert!(!parse_preempted(&with(&format!("{eligible} PreemptTime=None"))));
            assert!(parse_preempted(&with(&format!(
                "{eligible} PreemptTime=1795274991"
            ))));
        }
    }

    /// The random word of the recorded calls.
    fn marks() -> Marks {
        Marks::of("0123456789abcdef")
    }

    #[test]
    fn jobs_of_both_series() {
        for output in recorded!("squeue.txt") {
            let jobs = parse_jobs(&marks(), output).unwrap();
            let [waiting, one, two] = &jobs[..] else {
                panic!("{jobs:#?}")
            };
            assert_eq!(
                (waiting.id, &waiting.state, waiting.reason.as_deref()),
                (JobId(3), &JobState::Pending, Some("Resources"))
            );
            assert!(waiting.nodes.is_empty() && waiting.start.is_some() && waiting.end.is_none());
            assert_eq!(waiting.limit, TimeLimit::Unlimited);
            assert_eq!((one.user.as_str(), one.uid, one.cpus), ("alice", 61101, 2));
            assert_eq!(
                (one.name.as_str(), one.comment.as_deref()),
                ("évil|name, \"x\"", Some("c1|x"))
            );
            assert_eq!(
                (one.nodes.as_slice(), gpus(&one.gres), &one.reason),
                (&[NodeName::from("c2n1")][..], 1, &None)
            );
            assert_eq!(
                two.name,
                "two\nlines   \n     Nodes=n9 CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:0)"
            );
            assert_eq!(two.state, JobState::Running);
        }
    }

    #[test]
    fn filters_are_applied_to_the_answer_too() {
        let jobs = parse_jobs(&marks(), include_str!("../tests/recorded/22.05/squeue.txt")).unwrap();
        let ids = |filter: JobFilter| {
            jobs.iter()
                .filter(|job| filter.matches(job))
                .map(|job| job.id.0)
                .collect::<Vec<_>>()
        };
        let named = JobFilter {
            names: vec!["évil|name, \"x\"".into()],
            ..JobFilter::default()
        };
        assert_eq!(ids(JobFilter::default()), [3, 1, 2]);
        assert!(
            !named.args().iter().any(|arg| arg.starts_with("--name")),
            "a comma would mean two names"
        );
        assert_eq!(ids(named), [1]);
        let bobs = JobFilter {
            users: vec!["bob".into()],
            partitions: vec!["notebook".into()],
            ..JobFilter::default()
        };
        assert!(bobs.args().contains(&"--user=bob".to_owned()));
        assert_eq!(ids(bobs), [3, 2]);
        let either = JobFilter {
            users: vec!["bob".into()],
            uids: vec![61101],
            ..JobFilter::default()
        };
        assert!(either.args().contains(&"--user=bob,61101".to_owned()));
        assert_eq!(ids(either.clone()), [3, 1, 2]);
        let alices = JobFilter {
            users: Vec::new(),
            ..either
        };
        assert_eq!(ids(alices), [1]);
    }

    #[test]
    fn steps_of_both_series() {
        let [old, new] = recorded!("steps.txt").map(|output| parse_steps(output).unwrap());
        let ids = |steps: &[Step]| steps.iter().map(|step| step.id.to_string()).collect::<Vec<_>>();
        assert_eq!(ids(&old), ["1.extern", "1.batch"]);
        assert_eq!(
            ids(&new),
            ["1.extern", "1.batch", "1.0"],
            "a step of the job's own step manager"
        );
        let lease = &new[2];
        assert_eq!(
            (lease.uid, lease.name.as_str(), &lease.state),
            (61101, "sleep", &JobState::Running)
        );
        assert_eq!((lease.tres.gpus(), new[0].tres.gpus()), (Some(1), None));
        assert!(lease.start.is_some() && lease.nodes == ["c2n1".into()]);
    }

    #[test]
    fn a_steps_name_does_not_pass_for_its_other_fields() {
        let line = "StepId=1.0 UserId=7 StartTime=9 TimeLimit=UNLIMITED State=RUNNING Partition=p NodeList=n1 Nodes=1 CPUs=1 Tasks=1 \
                    Name=x UserId=0 State=FAILED TRES=gres/gpu=8 Network=(null) TRES=cpu=1,gres/gpu=1 ResvPorts=(null)";
        let step = parse_step(line).unwrap();
        assert_eq!(
            (step.uid, &step.state, step.tres.gpus()),
            (7, &JobState::Running, Some(1))
        );
    }

    #[test]
    fn gpus_of_a_job_in_both_series() {
        for output in recorded!("job-1.txt") {
            let gres = parse_job_gres(output).unwrap();
            assert_eq!(gres.len(), 1);
            assert_eq!((gres[0].cpus.as_str(), gres[0].mem_mib), ("0-1", 256));
            assert_eq!(gpu_index(&gres[0].gres), [GpuIndex(0)]);
        }
        for output in recorded!("job-3.txt") {
            assert!(parse_job_gres(output).unwrap().is_empty());
        }
    }

    #[test]
    fn a_job_whose_name_imitates_the_detail_is_refused() {
        for output in recorded!("job-2.txt") {
            assert_eq!(parse_job_gres(output), Err(ParseError::Forged("Nodes=")));
        }
        let twice = "JobId=1 JobName=a\n   NumNodes=1\n     Nodes=n9 CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:0)\n   NumNodes=1\n";
        assert_eq!(parse_job_gres(twice), Err(ParseError::Forged("NumNodes=")));
    }
}
