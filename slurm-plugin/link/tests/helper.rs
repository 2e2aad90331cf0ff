//! The helper, alone and behind `hop_slurm::Slurm`. What needs a cluster runs with `HOP_E2E=1` (see hop-slurm's
//! tests/e2e.rs).

#![allow(clippy::unwrap_used, reason = "a test")]

use hop_slurm::gres::{Gres, gpu_index};
use hop_slurm::link::{Answer, Ask, Hello, PROTOCOL};
use hop_slurm::{Job, JobFilter, JobSpec, Settings, Slurm};
use hop_words::id::JobId;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const HELPER: &str = env!("CARGO_BIN_EXE_hop-slurm-link");

/// A slurm.conf that libslurm ends its process over.
fn bad_conf(folder: &Path) -> PathBuf {
    let conf = folder.join("slurm.conf");
    std::fs::write(
        &conf,
        "this is no slurm.conf
",
    )
    .unwrap();
    conf
}

fn hello() -> Hello {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(HELPER)
        .env("SLURM_CONF", bad_conf(folder.path()))
        .output()
        .unwrap();
    let line = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(line.lines().next().unwrap()).unwrap()
}

fn end_to_end() -> Option<Slurm> {
    if std::env::var_os("HOP_E2E").is_none() {
        eprintln!("skipped: HOP_E2E is not set");
        return None;
    }
    let base = PathBuf::from(std::env::var_os("HOP_DEV_BASE").expect("devcluster env sets it"));
    Some(Slurm::new(Settings {
        conf: Some(base.join("etc/slurm.conf")),
        ..Settings::default()
    }))
}

#[test]
fn it_says_what_it_was_built_for_before_libslurm_is_touched() {
    let hello = hello();
    assert_eq!(hello.protocol, PROTOCOL);
    assert_eq!(hello.fits(), hello.built.is_some(), "{hello:?}");
    let other = Hello {
        api: hello.api.map(|(built, running)| (built + 1, running)),
        ..hello
    };
    assert!(!other.fits(), "the library of another series");
}

#[test]
fn fatal_of_libslurm_ends_the_helper_alone() {
    if hello().built.is_none() {
        eprintln!("skipped: built without libslurm");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(HELPER)
        .env("SLURM_CONF", bad_conf(folder.path()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _ = writeln!(child.stdin.take().unwrap(), "{{\"ask\":\"jobs\",\"since\":0}}");
    let output = child.wait_with_output().unwrap();
    assert!(!output.status.success());
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).lines().count(),
        1,
        "the hello and no answer"
    );
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("fatal"), "libslurm itself ended it: {stderr}");
}

/// A helper that reads another slurm.conf than the commands.
fn helper_with_conf(folder: &Path, conf: &Path) -> PathBuf {
    let conf = conf.display();
    let script = folder.join("helper");
    std::fs::write(&script, format!("#!/bin/sh\nSLURM_CONF={conf} exec {HELPER}\n")).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    script
}

#[tokio::test]
async fn after_fatal_the_commands_answer() {
    let Some(slurm) = end_to_end() else { return };
    let folder = tempfile::tempdir().unwrap();
    let slurm = slurm.with_link(helper_with_conf(folder.path(), &bad_conf(folder.path())));
    for _ in 0..3 {
        assert!(!slurm.nodes().await.unwrap().is_empty());
    }
    slurm.jobs(&JobFilter::default()).await.unwrap();
}

#[tokio::test]
async fn a_helper_that_was_killed_is_started_again() {
    let Some(slurm) = end_to_end() else { return };
    let folder = tempfile::tempdir().unwrap();
    let counter = folder.path().join("starts");
    let script = folder.path().join("helper");
    // Dies after its first answer, as often as it is started.
    let text = format!("#!/bin/sh\necho >> {}\nhead -n1 | {HELPER}\n", counter.display());
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let slurm = slurm.with_link(script);
    let until = Instant::now() + Duration::from_secs(6);
    while Instant::now() < until {
        assert!(!slurm.nodes().await.unwrap().is_empty());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let starts = std::fs::read_to_string(&counter).unwrap().lines().count();
    assert!(
        (2..=8).contains(&starts),
        "{starts} starts in 6 s: it rests between them"
    );
}

#[tokio::test]
async fn the_library_says_what_the_commands_say() {
    let Some(commands) = end_to_end() else { return };
    let library = commands.clone().with_link(HELPER.into());
    let script = "#!/bin/sh\nsleep 60\n";
    let spec = JobSpec {
        script: script.into(),
        name: "a | b".into(),
        gres: vec![Gres::parse("gpu:1").unwrap()],
        mem_mib: Some(64),
        account: Some("pool".into()),
        comment: Some("c".into()),
        ..JobSpec::default()
    };
    let live = library.link().unwrap().request(&Ask::Jobs { since: 0 }).await;
    assert!(matches!(live, Ok(Answer::Jobs { .. })), "{live:?}");
    let submitter = as_service(&commands);
    let id = submitter.submit(&spec).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let filter = JobFilter {
        ids: vec![id],
        ended: true,
        ..JobFilter::default()
    };
    let (a, b) = (
        commands.jobs(&filter).await.unwrap(),
        library.jobs(&filter).await.unwrap(),
    );
    assert_eq!(a, b);
    let [Job { nodes, .. }] = &a[..] else {
        panic!("{a:#?}")
    };
    assert_eq!(nodes.len(), 1);
    let (a, b) = (
        commands.job_gres(id).await.unwrap(),
        library.job_gres(id).await.unwrap(),
    );
    assert_eq!(gpu_index(&a[0].gres), gpu_index(&b[0].gres));
    assert_eq!((a.len(), &a[0].nodes), (b.len(), &b[0].nodes));
    submitter.cancel(id).await.unwrap();
    assert_eq!(
        commands.partitions().await.unwrap(),
        library.partitions().await.unwrap()
    );
    let names = |nodes: Vec<hop_slurm::Node>| {
        nodes
            .into_iter()
            .map(|n| (n.name, n.cpus, n.gres, n.partitions, n.version))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        names(commands.nodes().await.unwrap()),
        names(library.nodes().await.unwrap())
    );
}

fn as_service(slurm: &Slurm) -> Slurm {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap();
    let line = passwd
        .lines()
        .find(|line| line.starts_with("gresshopper:"))
        .expect("a user of the dev cluster");
    let fields: Vec<&str> = line.split(':').collect();
    slurm.as_user(hop_slurm::RunAs {
        uid: fields[2].parse().unwrap(),
        gid: fields[3].parse().unwrap(),
        user: "gresshopper".into(),
        home: fields[5].into(),
    })
}

/// Not an assertion on time: prints what the two ways take.
#[tokio::test]
async fn the_cost_of_a_call() {
    let Some(commands) = end_to_end() else { return };
    let library = commands.clone().with_link(HELPER.into());
    for (what, slurm) in [("commands", &commands), ("library", &library)] {
        let mut millis = Vec::new();
        for _ in 0..20 {
            let start = Instant::now();
            slurm.nodes().await.unwrap();
            millis.push(start.elapsed().as_secs_f64() * 1e3);
        }
        millis.sort_by(f64::total_cmp);
        eprintln!(
            "nodes by {what}: p50 {:.2} ms, max {:.2} ms (n=20)",
            millis[10], millis[19]
        );
    }
    let link = library.link().unwrap();
    let ask = Ask::Allocate {
        partition: Some("notebook".into()),
        account: None,
        gres: Some("gpu:1".into()),
        cpus: 1,
        mem_mib: Some(64),
        time_limit_min: None,
        name: "timing".into(),
    };
    let mut millis = Vec::new();
    let mut refused = 0;
    for _ in 0..10 {
        let start = Instant::now();
        match link.request(&ask).await {
            Ok(Answer::Allocated { job }) => {
                millis.push(start.elapsed().as_secs_f64() * 1e3);
                link.request(&Ask::Cancel { job }).await.unwrap();
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                refused += 1;
                eprintln!("allocation: {error}");
            }
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    millis.sort_by(f64::total_cmp);
    eprintln!("allocations by RPC: {millis:.2?} ms, {refused} refused");
    let gone = link
        .request(&Ask::JobGres {
            job: JobId(4_000_000),
        })
        .await;
    assert!(gone.is_err());
}
