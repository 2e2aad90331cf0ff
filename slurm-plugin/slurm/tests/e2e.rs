//! Against a real Slurm: run with `HOP_E2E=1` and the variables of `devcluster env`, as root.

#![allow(clippy::unwrap_used, reason = "a test")]

use hop_slurm::gres::{Gres, gpu_index};
use hop_slurm::id::{StepId, StepKey};
use hop_slurm::state::JobState;
use hop_slurm::{
    AllocateError, CancelError, Job, JobFilter, JobSpec, Partition, QueryError, RunAs, Settings, Signal,
    Slurm, SubmitError,
};
use hop_words::id::JobId;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The dev cluster as `user`, or nothing where this is not an end-to-end run.
fn cluster(user: &str) -> Option<Slurm> {
    if std::env::var_os("HOP_E2E").is_none() {
        eprintln!("skipped: HOP_E2E is not set");
        return None;
    }
    let base = PathBuf::from(std::env::var_os("HOP_DEV_BASE").expect("devcluster env sets it"));
    let slurm = Slurm::new(Settings {
        conf: Some(base.join("etc/slurm.conf")),
        ..Settings::default()
    });
    if user == "root" {
        return Some(slurm);
    }
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap();
    let line = passwd
        .lines()
        .find(|line| line.starts_with(&format!("{user}:")))
        .expect("a user of the dev cluster");
    let fields: Vec<&str> = line.split(':').collect();
    Some(slurm.as_user(RunAs {
        uid: fields[2].parse().unwrap(),
        gid: fields[3].parse().unwrap(),
        user: user.to_owned(),
        home: base.join("home").join(user),
    }))
}

fn spec(name: &str, command: &str) -> JobSpec {
    JobSpec {
        script: format!("#!/bin/sh\n{command}\n"),
        name: name.to_owned(),
        partition: Some("notebook".to_owned()),
        mem_mib: Some(64),
        ..JobSpec::default()
    }
}

async fn wait_for(slurm: &Slurm, id: JobId, what: impl Fn(&Job) -> bool) -> Job {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let job = slurm.job(id).await.unwrap();
        match job {
            Some(job) if what(&job) => return job,
            job => assert!(Instant::now() < until, "{job:#?}"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn a_job_from_submission_to_cancellation() {
    let Some(slurm) = cluster("alice") else { return };
    let run = std::process::id();
    let name = &format!("odd | name, 'with' \"quotes\" $HOME \u{fc} {run}");
    let mut wanted = spec(
        name,
        "printenv > $HOME/e2e-env; srun --exact -n1 -c1 --mem=0 --gres=gpu:1 sleep 100 & wait",
    );
    wanted.gres = vec![Gres::parse("gpu:2").unwrap()];
    wanted.cpus_per_task = Some(2);
    wanted.env = vec![("TOKEN".into(), "s3cret with space".into())];
    wanted.comment = Some("pilot of main".into());
    let id = slurm.submit(&wanted).await.unwrap();
    let job = wait_for(&slurm, id, |job| job.state == JobState::Running).await;
    assert_eq!(
        (job.name.as_str(), job.user.as_str(), job.cpus),
        (name.as_str(), "alice", 2)
    );
    assert_eq!(job.comment.as_deref(), Some("pilot of main"));
    let by_name = JobFilter {
        names: vec![name.clone()],
        ..JobFilter::default()
    };
    assert_eq!(slurm.jobs(&by_name).await.unwrap().len(), 1);

    let gres = slurm.job_gres(id).await.unwrap();
    assert_eq!((gres.len(), gpu_index(&gres[0].gres).len()), (1, 2));
    assert_eq!(gres[0].nodes, job.nodes);

    let until = Instant::now() + Duration::from_secs(20);
    let steps = loop {
        let steps = slurm.steps(id).await.unwrap();
        if steps.iter().any(|step| step.id.step == StepKey::Number(0)) {
            break steps;
        }
        assert!(Instant::now() < until, "{steps:#?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert!(steps.iter().any(|step| step.id.step == StepKey::Extern));
    let env = std::fs::read_to_string(
        PathBuf::from(std::env::var_os("HOP_DEV_BASE").unwrap()).join("home/alice/e2e-env"),
    )
    .unwrap();
    assert!(env.lines().any(|line| line == "TOKEN=s3cret with space"), "{env}");

    let step = StepId {
        job: id,
        step: StepKey::Number(0),
    };
    slurm.signal(step, Signal::Kill).await.unwrap();
    slurm.cancel(id).await.unwrap();
    wait_for(&slurm, id, |job| {
        job.state == JobState::Cancelled || job.state.is_over()
    })
    .await;
    let gone = slurm.signal(step, Signal::Kill).await;
    assert!(matches!(gone, Err(CancelError::Gone(_))), "{gone:?}");
}

#[tokio::test]
async fn what_is_refused_says_why() {
    let Some(slurm) = cluster("bob") else { return };
    let mut wrong = spec("wrong", "true");
    wrong.partition = Some("nowhere".into());
    match slurm.submit(&wrong).await {
        Err(SubmitError::Refused { reason, .. }) => {
            assert!(reason.to_lowercase().contains("partition"), "{reason}")
        }
        other => panic!("{other:?}"),
    }
    let mut greedy = spec("greedy", "true");
    greedy.gres = vec![Gres::parse("gpu:9").unwrap()];
    assert!(matches!(
        slurm.submit(&greedy).await,
        Err(SubmitError::Refused { .. })
    ));
    assert_eq!(slurm.job(JobId(4_000_000)).await.unwrap(), None);
    assert!(slurm.steps(JobId(4_000_000)).await.unwrap().is_empty());
}

#[tokio::test]
async fn another_users_job_is_not_cancelled() {
    let (Some(alice), Some(bob)) = (cluster("alice"), cluster("bob")) else {
        return;
    };
    let id = alice.submit(&spec("mine", "sleep 60")).await.unwrap();
    let refused = bob.cancel(id).await;
    assert!(
        matches!(refused, Err(CancelError::Forbidden { .. })),
        "{refused:?}"
    );
    alice.cancel(id).await.unwrap();
}

#[tokio::test]
async fn the_cluster_as_it_is() {
    let Some(slurm) = cluster("root") else { return };
    let nodes = slurm.nodes().await.unwrap();
    let expected = std::env::var("HOP_DEV_NODES").unwrap();
    for name in expected.split(',') {
        assert!(
            nodes
                .iter()
                .any(|node| node.name.as_str() == name && !node.gres.is_empty()),
            "{nodes:#?}"
        );
    }
    let partitions = slurm.partitions().await.unwrap();
    let burst = std::env::var("HOP_DEV_BURST_NODES").unwrap();
    for name in burst.split(',').filter(|name| !name.is_empty()) {
        let named = |partition: &Partition| partition.nodes.iter().any(|node| node.as_str() == name);
        assert!(
            partitions.iter().any(named),
            "{name} is powered down and yet of a partition"
        );
    }
    let config = slurm.config().await.unwrap();
    assert!(config.constrains_devices() && config.max_step_count().is_some());
    assert_eq!(
        config.version().unwrap().series(),
        slurm.version().await.unwrap().series()
    );
    assert_eq!(config.has_stepmgr(), config.version().unwrap().has_stepmgr());
    assert!(
        slurm
            .partitions()
            .await
            .unwrap()
            .iter()
            .any(|p| p.name == "notebook" && p.is_default)
    );
    let associations = slurm.associations(config.cluster().unwrap()).await.unwrap();
    assert!(
        associations
            .iter()
            .any(|row| row.user == Some("alice".into()) && row.account == "lab".into())
    );
    assert!(!slurm.qos_limits().await.unwrap().is_empty());
    assert!(
        slurm
            .shares()
            .await
            .unwrap()
            .iter()
            .any(|row| row.user == Some("alice".into()))
    );
}

#[tokio::test]
async fn an_allocation_at_once_or_not_at_all() {
    let Some(slurm) = cluster("carol") else { return };
    let mut wanted = spec("now", "");
    wanted.gres = vec![Gres::parse("gpu:2").unwrap()];
    wanted.nodes = Some(1);
    let id = slurm.allocate(&wanted).await.unwrap();
    let node = wait_for(&slurm, id, |job| job.state == JobState::Running)
        .await
        .nodes[0]
        .clone();
    wanted.nodelist = vec![node];
    let busy = slurm.allocate(&wanted).await;
    assert!(matches!(busy, Err(AllocateError::Busy { .. })), "{busy:?}");
    slurm.cancel(id).await.unwrap();
}

#[tokio::test]
async fn an_unreachable_slurmctld_is_told_apart() {
    let Some(_) = cluster("root") else { return };
    let folder = tempfile::tempdir().unwrap();
    let conf = folder.path().join("slurm.conf");
    let base = PathBuf::from(std::env::var_os("HOP_DEV_BASE").unwrap());
    let text = std::fs::read_to_string(base.join("etc/slurm.conf")).unwrap();
    let closed: String = text
        .lines()
        .map(|line| {
            if line.starts_with("SlurmctldPort=") {
                "SlurmctldPort=1\n".to_owned()
            } else {
                format!("{line}\n")
            }
        })
        .collect();
    std::fs::write(&conf, closed).unwrap();
    let slurm = Slurm::new(Settings {
        conf: Some(conf),
        timeout: Duration::from_secs(3),
        ..Settings::default()
    });
    let error = slurm.jobs(&JobFilter::default()).await.unwrap_err();
    assert!(error.is_unreachable(), "{error}");
    assert!(matches!(error, QueryError::Run(_)));
}
