//! Reading from Slurm: jobs, steps, nodes, partitions, settings. The helper process answers first where present.

use crate::config::{Config, Version};
use crate::handle::Slurm;
use crate::jobs::{self, JOB_LETTERS, Job, JobFilter, JobGres, Step};
use crate::nodes::{self, Node, Partition};
use crate::record::{Marks, ParseError};
use crate::run::{Call, QueryError};
use hop_words::id::JobId;
use std::sync::PoisonError;

/// Whether `squeue` knew all users that it was asked for.
enum Users {
    Known,
    Unknown,
}

impl Slurm {
    /// The jobs that `filter` lets through. An id that Slurm has forgotten is not an error.
    ///
    /// If this host's user database doesn't know one of the filter's users now, the jobs of all users come: `squeue`
    /// leaves out the jobs of such a user, and ends well.
    pub async fn jobs(&self, filter: &JobFilter) -> Result<Vec<Job>, QueryError> {
        if let Some(link) = &self.link
            && let Some(jobs) = link.jobs().await
        {
            return Ok(jobs.iter().filter(|job| filter.matches(job)).cloned().collect());
        }
        match self.squeue(filter).await {
            Ok((jobs, Users::Known)) => Ok(jobs),
            Ok((_, Users::Unknown)) => Ok(self.squeue(&filter.of_all_users()).await?.0),
            Err(error) if is_unknown_id(&error) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    async fn squeue(&self, filter: &JobFilter) -> Result<(Vec<Job>, Users), QueryError> {
        let marks = Marks::random();
        let mut args = filter.args();
        args.push(format!("--format={}", marks.format(&JOB_LETTERS)));
        let call = Call::new("squeue", args);
        let said = self.runner.run(&call).await?;
        let mut jobs = call.read(&said.stdout, |out| jobs::parse_jobs(&marks, out))?;
        jobs.retain(|job| filter.matches(job));
        let users = match said.stderr.contains("Invalid user") {
            true => Users::Unknown,
            false => Users::Known,
        };
        Ok((jobs, users))
    }

    /// A job, running or ended; `None` once Slurm has forgotten it.
    pub async fn job(&self, id: JobId) -> Result<Option<Job>, QueryError> {
        let filter = JobFilter {
            ids: vec![id],
            ended: true,
            ..JobFilter::default()
        };
        Ok(self.jobs(&filter).await?.into_iter().next())
    }

    /// A job's GRES on the job's nodes, with the indices of the GPUs. Empty for a job that has not started. An ended
    /// job's GRES are known for as long as Slurm remembers the job.
    pub async fn job_gres(&self, id: JobId) -> Result<Vec<JobGres>, QueryError> {
        if let Some(link) = &self.link
            && let Some(gres) = link.job_gres(id).await
        {
            return Ok(gres);
        }
        let call = Call::new(
            "scontrol",
            [
                "--details".to_owned(),
                "show".to_owned(),
                "job".to_owned(),
                id.to_string(),
            ],
        );
        match self.runner.query(&call, jobs::parse_job_gres).await {
            Err(error) if is_unknown_id(&error) => Ok(Vec::new()),
            other => other,
        }
    }

    /// Whether Slurm preempts the job, or has. With a GraceTime the job runs for that long, though its steps have been
    /// told to end.
    pub async fn is_preempted(&self, id: JobId) -> Result<bool, QueryError> {
        let call = Call::new("scontrol", ["show".to_owned(), "job".to_owned(), id.to_string()]);
        self.runner
            .query(&call, |out| Ok(jobs::parse_preempted(out)))
            .await
    }

    /// The steps of a job that have not ended, `extern` and `batch` among them. `squeue` would leave out steps started
    /// by the job's own step manager (`--stepmgr`).
    pub async fn steps(&self, job: JobId) -> Result<Vec<Step>, QueryError> {
        let id = job.to_string();
        let call = Call::new("scontrol", ["--oneliner", "show", "step", &id]);
        match self.runner.query(&call, jobs::parse_steps).await {
            Ok(steps) => Ok(steps.into_iter().filter(|step| step.id.job == job).collect()),
            Err(error) if is_unknown_id(&error) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// All nodes that Slurm shows. Slurm hides powered-down CLOUD nodes, unless slurm.conf says `PrivateData=cloud`;
    /// [`Partition::nodes`] names these too.
    pub async fn nodes(&self) -> Result<Vec<Node>, QueryError> {
        if let Some(link) = &self.link
            && let Some(nodes) = link.nodes().await
        {
            self.tell_unread(&nodes);
            return Ok(nodes.to_vec());
        }
        let call = Call::new("scontrol", ["--details", "--oneliner", "--all", "show", "nodes"]);
        let nodes = self.runner.query(&call, nodes::parse_nodes).await?;
        self.tell_unread(&nodes);
        Ok(nodes)
    }

    /// Logs each GRES that can't be read, once. A job can ask for no other than the nodes'.
    fn tell_unread(&self, nodes: &[Node]) {
        let unread = nodes
            .iter()
            .flat_map(|node| node.gres_unread.iter().map(move |gres| (node, gres)));
        for (node, gres) in unread {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            if told.insert(gres.clone()) {
                tracing::warn!(node = %node.name, gres, "a GRES of Slurm's can't be read, and counts for nothing");
            }
        }
    }

    /// All partitions, hidden ones too.
    pub async fn partitions(&self) -> Result<Vec<Partition>, QueryError> {
        if let Some(link) = &self.link
            && let Some(partitions) = link.partitions().await
        {
            return Ok(partitions.to_vec());
        }
        let call = Call::new("scontrol", ["--oneliner", "--all", "show", "partitions"]);
        self.runner.query(&call, nodes::parse_partitions).await
    }

    /// The version of the installed commands. slurmctld's own is in [`Slurm::config`].
    pub async fn version(&self) -> Result<Version, QueryError> {
        let call = Call::new("scontrol", ["--version"]);
        let parse = |out: &str| Version::parse(out).ok_or(ParseError::Missing("the version"));
        self.runner.query(&call, parse).await
    }

    /// slurmctld's settings.
    pub async fn config(&self) -> Result<Config, QueryError> {
        self.runner
            .query(&Call::new("scontrol", ["show", "config"]), Config::parse)
            .await
    }
}

fn is_unknown_id(error: &QueryError) -> bool {
    match error {
        QueryError::Run(run) => run
            .said()
            .is_some_and(|said| said.contains("Invalid job id specified") || said.contains("not found")),
        QueryError::Output { .. } => false,
    }
}
