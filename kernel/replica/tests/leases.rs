//! A replica with a real ipykernel, between a front and a lender that this test plays: what becomes of cells that ask
//! for a lease. Needs a Python with ipykernel (`HOP_TEST_PYTHON`, else `python3`).
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod world;

use hop_api::message::{EndCause, Event, Outcome, Request};
use hop_protocol::jupyter::Channel;
use hop_protocol::link::Item;
use hop_protocol::message::{Note, Over};
use hop_replica::leases::News;
use hop_words::id::LeaseId;
use hop_words::need::Need;
use hop_words::time::Span;
use serde_json::json;
use std::time::Duration;
use world::{Heard, World, is_told, python, with_replica};

#[tokio::test]
async fn cells_that_ask_for_a_lease_wait_for_it_in_order() {
    let Some(python) = python() else {
        eprintln!("skipped: no Python with ipykernel (set HOP_TEST_PYTHON)");
        return;
    };
    with_replica(&python, async |world| {
        refused(world).await;
        granted_in_order(world).await;
        // A signal that the kernel should not get would strike the next cell by chance.
        for _ in 0..5 {
            interrupted_while_it_waits(world).await;
        }
        refused(world).await;
        resubmitted_when_the_scheduler_is_back(world).await;
        revoked(world).await;
        closed(world).await;
    })
    .await;
}

/// The time that this thread, and with it the replica, has had of a core.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

#[tokio::test]
async fn a_quiet_replica_costs_no_time() {
    let Some(python) = python() else {
        eprintln!("skipped: no Python with ipykernel (set HOP_TEST_PYTHON)");
        return;
    };
    with_replica(&python, async |world| {
        let cell = world.run("1", 0).await;
        world.reply(&cell).await;
        let before = cpu_time();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let took = cpu_time() - before;
        assert!(took < Duration::from_millis(300), "{took:?} of a second");
        closed(world).await;
    })
    .await;
}

async fn granted_in_order(world: &mut World) {
    let first = world.run("import time; time.sleep(0.3); x = 1", 0).await;
    let leased = world.run("x += 1; x", 1).await;
    let behind = world.run("x * 10", 0).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.nothing_asked();
    world.reply(&first).await;
    let asked = world.asked().await;
    assert!(matches!(asked, Request::Submit { cell, need, .. } if cell == leased && need == Need::gpus(1)));
    world.grant(&leased, 5);
    let answer = world.reply(&leased).await;
    assert_eq!(answer.content["status"], "ok");
    let lease = json!({"lease": 5, "node": "localhost", "gpus": [], "devices": [], "cores": "2-3", "waited_ms": 7,
        "lingering": false});
    assert_eq!(answer.metadata["gresshopper"], lease);
    assert!(!answer.heard.iter().any(is_told), "a short wait is not told");
    let ended = world.asked().await;
    assert!(matches!(ended, Request::CellEnded { cell, outcome: Outcome::Ok, .. } if cell == leased));
    let answer = world.reply(&behind).await;
    assert!(answer.metadata.get("gresshopper").is_none());
    let result = answer
        .heard
        .iter()
        .find(|(kind, ..)| kind == "execute_result")
        .unwrap();
    assert_eq!(result.2["data"]["text/plain"], "20");
    world.nothing_asked();
}

async fn interrupted_while_it_waits(world: &mut World) {
    let waits = world.run("never", 2).await;
    let behind = world.run("never", 0).await;
    assert!(matches!(world.asked().await, Request::Submit { .. }));
    let (kernel, cell) = (world.kernel.clone(), waits.clone());
    world.tell(Event::Queued {
        kernel,
        cell,
        position: 2,
        reason: "others came first".into(),
        estimate: Some(Span::from_secs(5)),
        range: None,
    });
    let (_, metadata, content) = world.hear(is_told).await;
    assert_eq!(content["execution_state"], "busy");
    assert_eq!(metadata["gresshopper"]["position"], 2);
    assert_eq!(metadata["gresshopper"]["reason"], "others came first");
    world
        .send(Channel::Control, "interrupt_request", json!({}), json!({}))
        .await;
    assert_eq!(world.reply(&waits).await.content["ename"], "KeyboardInterrupt");
    assert_eq!(world.reply(&behind).await.content["status"], "aborted");
    // Before the interrupt is answered: the kernel, which ran nothing, must not have been signalled.
    let next = world.run("time.sleep(0.3); x", 0).await;
    let (kind, _, content) = world.control().await;
    assert_eq!(
        (kind.as_str(), &content["status"]),
        ("interrupt_reply", &json!("ok"))
    );
    assert!(matches!(world.asked().await, Request::CancelCell { cell, .. } if cell == waits));
    world.grant(&waits, 6);
    assert_eq!(
        world.reply(&next).await.content["status"],
        "ok",
        "a late grant runs nothing"
    );
    world.nothing_asked();
}

async fn refused(world: &mut World) {
    let cell = world.run("never", 8).await;
    world.asked().await;
    world.tell(Event::Refused {
        kernel: world.kernel.clone(),
        cell: cell.clone(),
        reason: "too many".into(),
    });
    let answer = world.reply(&cell).await;
    assert_eq!(
        (&answer.content["ename"], &answer.content["evalue"]),
        (&json!("LeaseRefused"), &json!("too many"))
    );
    let count = answer.content["execution_count"].as_u64();
    assert!(count >= Some(1), "as the first cell too it shows that it was run");
    assert!(answer.heard.iter().any(|(kind, ..)| kind == "error"));
}

async fn resubmitted_when_the_scheduler_is_back(world: &mut World) {
    let reason = "no route".to_owned();
    world.news.send(News::Down { reason }).unwrap();
    let plain = world.run("x", 0).await;
    assert_eq!(world.reply(&plain).await.content["status"], "ok");
    let waits = world.run("x", 1).await;
    world.asked().await;
    let (_, metadata, _) = world.hear(is_told).await;
    assert_eq!(
        metadata["gresshopper"]["reason"],
        "the scheduler is away: no route"
    );
    world.news.send(News::Up).unwrap();
    let up = world.asked().await;
    assert!(matches!(up, Request::ReplicaUp(up) if up.waiting[0].cell == waits && up.holds.is_none()));
    world.grant(&waits, 7);
    assert_eq!(world.reply(&waits).await.metadata["gresshopper"]["lease"], 7);
    assert!(matches!(world.asked().await, Request::CellEnded { .. }));
}

async fn revoked(world: &mut World) {
    let cell = world.run("print('on it', flush=True); time.sleep(30)", 1).await;
    world.asked().await;
    world.grant(&cell, 8);
    world
        .hear(|(kind, _, content)| kind == "stream" && content["text"] == "on it\n")
        .await;
    world.tell(Event::Revoked {
        kernel: world.kernel.clone(),
        lease: LeaseId(8),
        cause: EndCause::Cancelled,
        reason: "an operator cancelled it".into(),
        grace: Span::from_secs(2),
        may_hold: false,
    });
    let answer = world.reply(&cell).await;
    assert_eq!(answer.content["ename"], "KeyboardInterrupt");
    assert_eq!(
        answer.metadata["gresshopper"]["revoked"],
        "an operator cancelled it"
    );
    let why = |(kind, _, content): &Heard| {
        kind == "stream"
            && content["text"]
                .as_str()
                .is_some_and(|t| t.contains("an operator cancelled it"))
    };
    assert!(answer.heard.iter().any(why), "its user reads why");
    assert!(
        matches!(world.asked().await, Request::ReleaseLease { lease, .. } if lease == LeaseId(8)),
        "it has no GPU to leave"
    );
    assert!(matches!(
        world.asked().await,
        Request::CellEnded {
            outcome: Outcome::Error,
            ..
        }
    ));
}

async fn closed(world: &mut World) {
    world.tell(Event::Close {
        kernel: world.kernel.clone(),
        reason: "hop cancel".into(),
    });
    loop {
        if let Item::Note(Note::KernelOver { over }) = world.item().await {
            let reason = "the kernel was closed: hop cancel".to_owned();
            assert_eq!(over, Over::Died { reason });
            return;
        }
    }
}
