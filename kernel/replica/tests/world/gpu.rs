//! One fake GPU of `tests/fakes`, and what a lender and a kernel say of it.
#![allow(unsafe_code)] // the environment, which the replica, the kernel and `hop` get
#![allow(
    clippy::disallowed_methods,
    reason = "each test has a process of its own, and nothing reads the environment meanwhile"
)]

use super::{Answer, World, python};
use hop_api::message::{EndCause, Event, Outcome, Request};
use hop_words::id::{CellId, LeaseId};
use hop_words::time::Span;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// One fake GPU, and how the test plays with it.
pub struct Gpu {
    pub dir: PathBuf,
    pub device: PathBuf,
}

impl Gpu {
    /// Sets the environment for it, too.
    pub fn new(dir: &Path) -> Self {
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
            ("GRESSHOPPER_RUN_DIR", run),
            ("GRESSHOPPER_PYTHON", python.clone()),
            ("PYTHONPATH", python.join("tests/gpu/fake_framework")),
        ] {
            // SAFETY: no other thread reads the environment yet.
            unsafe { std::env::set_var(name, value) };
        }
        gpu
    }

    pub fn set(&self, name: &str, text: &str) {
        fs::write(self.dir.join(name), text).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn is_held(&self, pid: &str) -> bool {
        let fds = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        fds.flatten()
            .any(|fd| fs::read_link(fd.path()).is_ok_and(|file| file == self.device))
    }
}

pub fn over(world: &World, lease: u64) {
    world.tell(Event::Revoked {
        kernel: world.kernel.clone(),
        lease: LeaseId(lease),
        cause: EndCause::Done,
        reason: "nobody used it".into(),
        grace: Span::from_secs(2),
        may_hold: false,
    });
}

/// Runs a cell with a lease of the fake GPU.
pub async fn leased(world: &mut World, gpu: &Gpu, code: &str, lease: u64) -> (CellId, Answer) {
    let cell = world.run(code, 1).await;
    assert!(matches!(world.asked().await, Request::Submit { .. }));
    world.grant_devices(&cell, lease, &[&gpu.device]);
    let answer = world.reply(&cell).await;
    (cell, answer)
}

pub async fn ended(world: &mut World, lease: u64) -> Outcome {
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
pub async fn let_go(world: &mut World, lease: u64) {
    let asked = world.asked().await;
    assert!(
        matches!(asked, Request::ReleaseLease { lease: gone, .. } if gone == LeaseId(lease)),
        "{asked:?}"
    );
}

pub fn shown(answer: &Answer) -> String {
    let results = answer.heard.iter().filter(|(kind, ..)| kind == "execute_result");
    let texts = results.map(|(.., content)| content["data"]["text/plain"].as_str().unwrap_or("").to_owned());
    texts.collect()
}

pub fn said(answer: &Answer) -> Vec<&Value> {
    answer
        .heard
        .iter()
        .filter(|(kind, ..)| kind == "stream")
        .map(|(.., content)| &content["text"])
        .collect()
}

/// Where both can be had: a Python with ipykernel, and `hop`.
pub fn programs() -> Option<String> {
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
