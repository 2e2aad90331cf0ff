//! A replica parks its kernel when a lease is over and brings it back before the next is used: a real ipykernel with
//! the real agent, the real `hop gpu`, the fake libcuda and NVML of `tests/fakes`, a fake framework in the kernel, and a
//! front and a lender that this test plays. Needs a Python with ipykernel (`HOP_TEST_PYTHON`, else `python3`), a C
//! compiler, and `hop` beside `hop-replica`.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(unsafe_code)] // the environment, which the replica, the kernel and `hop` get
#![allow(
    clippy::disallowed_methods,
    reason = "each test has a process of its own, and nothing reads the environment meanwhile"
)]

mod world;

use hop_api::message::{EndCause, Event, Outcome, Request};
use hop_core::id::{CellId, LeaseId};
use hop_core::time::Span;
use hop_protocol::link::Item;
use hop_protocol::message::{Note, Over};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use world::{Answer, World, python, with_replica};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// One fake GPU, and how the test plays with it.
struct Gpu {
    dir: PathBuf,
    device: PathBuf,
}

impl Gpu {
    /// Sets the environment for it, too.
    fn new(dir: &Path) -> Self {
        let script = Path::new(ROOT).join("tests/fakes/build.sh");
        assert!(
            Command::new("sh")
                .arg(script)
                .arg(dir)
                .status()
                .unwrap()
                .success()
        );
        let run = dir.join("run");
        fs::create_dir(&run).unwrap();
        fs::set_permissions(&run, fs::Permissions::from_mode(0o700)).unwrap();
        let gpu = Self {
            dir: dir.join("gpu"),
            device: dir.join("gpu/dev/nvidia0"),
        };
        let python = Path::new(ROOT).join("kernel/python");
        for (name, value) in [
            ("FAKE_GPU_DIR", gpu.dir.clone()),
            ("GRESSHOPPER_LIBCUDA", dir.join("libcuda.so.1")),
            ("GRESSHOPPER_LIBNVML", dir.join("libnvidia-ml.so.1")),
            ("GRESSHOPPER_DEV_PREFIX", gpu.dir.join("dev/nvidia")),
            ("GRESSHOPPER_GPU_DIR", run),
            ("GRESSHOPPER_PYTHON", python.clone()),
            ("PYTHONPATH", python.join("tests/gpu/fake_framework")),
        ] {
            // SAFETY: no other thread reads the environment yet.
            unsafe { std::env::set_var(name, value) };
        }
        gpu
    }

    fn set(&self, name: &str, text: &str) {
        fs::write(self.dir.join(name), text).unwrap();
    }

    fn is_held(&self, pid: &str) -> bool {
        let fds = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        fds.flatten()
            .any(|fd| fs::read_link(fd.path()).is_ok_and(|file| file == self.device))
    }
}

fn over(world: &World, lease: u64) {
    world.tell(Event::Revoked {
        kernel: world.kernel.clone(),
        lease: LeaseId(lease),
        cause: EndCause::Done,
        reason: "nobody used it".into(),
        grace: Span::from_secs(2),
    });
}

/// Runs a cell with a lease of the fake GPU.
async fn leased(world: &mut World, gpu: &Gpu, code: &str, lease: u64) -> (CellId, Answer) {
    let cell = world.run(code, 1).await;
    assert!(matches!(world.asked().await, Request::Submit { .. }));
    world.grant_devices(&cell, lease, &[&gpu.device]);
    let answer = world.reply(&cell).await;
    (cell, answer)
}

async fn ended(world: &mut World, lease: u64) -> Outcome {
    match world.asked().await {
        Request::CellEnded {
            lease: ended,
            outcome,
            ..
        } if ended == LeaseId(lease) => outcome,
        other => panic!("{other:?}"),
    }
}

/// The kernel is off the lease's GPU, or stays: hopd may have it taken back.
async fn let_go(world: &mut World, lease: u64) {
    let asked = world.asked().await;
    assert!(
        matches!(asked, Request::ReleaseLease { lease: gone, .. } if gone == LeaseId(lease)),
        "{asked:?}"
    );
}

fn shown(answer: &Answer) -> String {
    let results = answer.heard.iter().filter(|(kind, ..)| kind == "execute_result");
    let texts = results.map(|(.., content)| content["data"]["text/plain"].as_str().unwrap_or("").to_owned());
    texts.collect()
}

fn said(answer: &Answer) -> Vec<&Value> {
    answer
        .heard
        .iter()
        .filter(|(kind, ..)| kind == "stream")
        .map(|(.., content)| &content["text"])
        .collect()
}

/// Where both can be had: a Python with ipykernel, and `hop`.
fn programs() -> Option<String> {
    let hop = Path::new(env!("CARGO_BIN_EXE_hop-replica")).with_file_name("hop");
    let found = python().filter(|_| hop.exists());
    if found.is_none() {
        eprintln!(
            "skipped: needs a Python with ipykernel (HOP_TEST_PYTHON) and {}",
            hop.display()
        );
    }
    found
}

#[tokio::test]
async fn parked_at_the_end_of_each_lease_and_back_before_the_next() {
    let Some(python) = programs() else { return };
    let tmp = tempfile::tempdir().unwrap();
    let gpu = Gpu::new(tmp.path());
    with_replica(&python, async |world| {
        let pid = there_and_back(world, &gpu).await;
        a_cell_without_a_lease_obtains_one(world, &gpu, &pid).await;
        revoked_while_a_cell_runs(world, &gpu, &pid).await;
        no_room_on_the_way_back(world, &gpu, &pid).await;
        what_cannot_leave_is_told_and_its_end_explained(world, &gpu, &pid).await;
    })
    .await;
}

#[tokio::test]
async fn a_kernel_that_is_ended_while_it_is_parked_says_what_to_set() {
    let Some(python) = programs() else { return };
    let tmp = tempfile::tempdir().unwrap();
    let gpu = Gpu::new(tmp.path());
    with_replica(&python, async |world| {
        let code = "import os, torch; torch.hold(b'weights' * 1000); os.getpid()";
        let (_, answer) = leased(world, &gpu, code, 5).await;
        let pid = shown(&answer);
        ended(world, 5).await;
        gpu.set("inject", "cuCheckpointProcessCheckpoint 0 60000\n");
        over(world, 5);
        // Written before the first call.
        let record = tmp.path().join(format!("run/gpu-{pid}.parked.json"));
        while !record.exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let reason = killed_as_by_the_take_back(world, &pid).await;
        assert!(
            reason.contains("still on its way to host memory 4 s after") && reason.contains("`grace_ms`"),
            "{reason}"
        );
    })
    .await;
}

async fn there_and_back(world: &mut World, gpu: &Gpu) -> String {
    let code = "import os, torch; torch.hold(b'weights' * 1000); os.getpid()";
    let (_, answer) = leased(world, gpu, code, 5).await;
    let pid = shown(&answer);
    assert_eq!(ended(world, 5).await, Outcome::Ok);
    assert!(gpu.is_held(&pid));
    over(world, 5);
    let_go(world, 5).await;
    assert!(!gpu.is_held(&pid), "it says so when it is off");
    let plain = world.run("6 * 7", 0).await;
    let answer = world.reply(&plain).await;
    assert_eq!((shown(&answer), said(&answer)), ("42".to_owned(), vec![]));
    let (_, answer) = leased(world, gpu, "torch.content() == b'weights' * 1000", 6).await;
    assert_eq!((shown(&answer), said(&answer)), ("True".to_owned(), vec![]));
    assert!(gpu.is_held(&pid));
    ended(world, 6).await;
    over(world, 6);
    let_go(world, 6).await;
    assert!(!gpu.is_held(&pid));
    world.nothing_asked();
    pid
}

async fn a_cell_without_a_lease_obtains_one(world: &mut World, gpu: &Gpu, pid: &str) {
    let cell = world.run("torch.content() == b'weights' * 1000", 0).await;
    let Request::Submit {
        cell: asked, need, ..
    } = world.asked().await
    else {
        panic!("no lease was asked for")
    };
    assert!(asked.as_str().starts_with(cell.as_str()) && need.gpus == 1);
    world.grant_devices(&asked, 7, &[&gpu.device]);
    assert_eq!(shown(&world.reply(&cell).await), "True");
    ended(world, 7).await;
    over(world, 7);
    let_go(world, 7).await;
    assert!(!gpu.is_held(pid));
    let cell = world.run("torch.content()", 0).await;
    let Request::Submit { cell: asked, .. } = world.asked().await else {
        panic!("no lease was asked for")
    };
    world.tell(Event::Refused {
        kernel: world.kernel.clone(),
        cell: asked,
        reason: "your limit is reached".into(),
    });
    let answer = world.reply(&cell).await;
    assert_eq!(answer.content["ename"], "GpuUnavailable");
    assert!(
        answer.content["evalue"]
            .as_str()
            .unwrap()
            .contains("your limit is reached")
    );
}

async fn revoked_while_a_cell_runs(world: &mut World, gpu: &Gpu, pid: &str) {
    let code = "import time; print('on it', flush=True); time.sleep(60)";
    let cell = world.run(code, 1).await;
    world.asked().await;
    world.grant_devices(&cell, 8, &[&gpu.device]);
    world
        .hear(|(kind, _, content)| kind == "stream" && content["text"] == "on it\n")
        .await;
    over(world, 8);
    let answer = world.reply(&cell).await;
    assert_eq!(answer.content["ename"], "KeyboardInterrupt");
    ended(world, 8).await;
    let_go(world, 8).await;
    assert!(!gpu.is_held(pid));
}

async fn no_room_on_the_way_back(world: &mut World, gpu: &Gpu, pid: &str) {
    gpu.set("others", &(1u64 << 30).to_string());
    let (_, answer) = leased(world, gpu, "'ran'", 9).await;
    assert_eq!(answer.content["ename"], "LeaseRefused");
    let why = answer.content["evalue"].as_str().unwrap();
    assert!(why.contains("what this kernel has in host memory"), "{why}");
    assert_eq!(ended(world, 9).await, Outcome::Aborted);
    assert!(matches!(world.asked().await, Request::ReleaseLease { lease, .. } if lease == LeaseId(9)));
    over(world, 9);
    let_go(world, 9).await;
    fs::remove_file(gpu.dir.join("others")).unwrap();
    let (_, answer) = leased(world, gpu, "torch.content() == b'weights' * 1000", 10).await;
    assert_eq!(shown(&answer), "True", "nothing was lost");
    ended(world, 10).await;
    assert!(gpu.is_held(pid));
}

async fn what_cannot_leave_is_told_and_its_end_explained(world: &mut World, gpu: &Gpu, pid: &str) {
    gpu.set("inject", "cuCheckpointProcessLock 999\n");
    over(world, 10);
    let (.., content) = world.hear(|(kind, ..)| kind == "stream").await;
    let text = content["text"].as_str().unwrap();
    assert!(
        text.contains("still holds it") && text.contains("999") && text.contains("2 s"),
        "{text}"
    );
    let_go(world, 10).await;
    let plain = world.run("torch is not None", 0).await;
    assert_eq!(
        shown(&world.reply(&plain).await),
        "True",
        "it runs until it is ended"
    );
    let reason = killed_as_by_the_take_back(world, pid).await;
    assert!(
        reason.contains("still held its GPU 2 s after the end of its lease"),
        "{reason}"
    );
}

/// What the take-back does when the grace is over, and what is said of it.
async fn killed_as_by_the_take_back(world: &mut World, pid: &str) -> String {
    Command::new("kill").args(["-9", pid]).status().unwrap();
    loop {
        if let Item::Note(Note::KernelOver {
            over: Over::Died { reason },
        }) = world.item().await
        {
            return reason;
        }
    }
}
