//! A replica parks its kernel when a lease is over and brings it back before the next is used: a real ipykernel with
//! the real agent, the real `hop gpu`, the fake libcuda and NVML of `tests/fakes`, a fake framework in the kernel, and a
//! front and a lender that this test plays. Needs a Python with ipykernel (`HOP_TEST_PYTHON`, else `python3`), a C
//! compiler, and `hop` beside `hop-replica`.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod world;

use hop_api::message::{Event, Outcome, Request};
use hop_protocol::link::Item;
use hop_protocol::message::{Note, Over};
use hop_words::id::LeaseId;
use std::fs;
use std::process::Command;
use std::time::Duration;
use world::gpu::{Gpu, ended, leased, let_go, over, programs, said, shown};
use world::{World, with_replica};

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
    assert_eq!(answer.content["ename"], "LeaseRevoked");
    assert!(answer.content["evalue"].as_str().unwrap().contains("taken away"));
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
