//! Leases that are taken away, GPU memory that leaves and comes back, cells that are parked in their middle.

use super::*;

/// A cell that runs on a lease of one GPU.
fn running() -> World {
    let mut world = World::up();
    world.run("g", gpu());
    world.grant("g", 1, 1);
    world
}

/// The same, parked in its middle.
fn standing() -> World {
    let mut world = running();
    assert_eq!(world.park("g", 1), ["gpu: Stop 1"]);
    assert_eq!(world.place("g"), Some(Place::Stopping));
    let out = world.errand(ErrandEnd::Stopped(Left::Parked));
    assert_eq!(
        out,
        [
            "front: stream g gresshopper: the cell is parked",
            "hopd: parked g 1"
        ]
    );
    assert_eq!(world.place("g"), Some(Place::Standing));
    world
}

fn why() -> String {
    "why".into()
}

#[test]
fn memory_leaves_when_a_lease_is_over() {
    let mut world = running();
    world.reply("g", "ok");
    assert_eq!(world.revoke(1), ["gpu: Leave 1"]);
    assert_eq!(world.errand(ErrandEnd::Left(Left::Parked)), ["hopd: release 1"]);
    world.run("h", gpu());
    assert_eq!(world.grant("h", 2, 1), ["gpu: Return 1"]);
    assert_eq!(world.place("h"), Some(Place::Returning));
    assert_eq!(
        world.errand(ErrandEnd::Returned(Returned::Back)),
        ["kernel: execute_request h lease 2"]
    );
}

#[test]
fn a_lease_without_gpus_moves_no_memory() {
    let mut world = World::up();
    world.run("c", json!({"cpus": 2}));
    assert_eq!(world.grant("c", 1, 0), ["kernel: execute_request c lease 1"]);
    world.reply("c", "ok");
    assert_eq!(world.revoke(1), ["hopd: release 1"]);
}

#[test]
fn a_lease_that_is_taken_away_interrupts_its_cell() {
    let mut world = running();
    let out = world.revoke(1);
    let told = "front: stream g gresshopper: the GPU was taken away";
    assert_eq!(out, ["front: status g revoked", told, "interrupt"]);
    let out = world.reply("g", "error");
    assert_eq!(
        out,
        [
            "front: execute_reply g error KeyboardInterrupt lease 1",
            "hopd: ended g 1 Error",
            "gpu: Leave 1"
        ]
        .map(|line| line.replace("error KeyboardInterrupt", "error"))
    );
    assert_eq!(world.errand(ErrandEnd::Left(Left::Nothing)), ["hopd: release 1"]);
    let mut world = running();
    world.revoke(1);
    let out = world.input(Input::Exited(Exit {
        reason: "killed".into(),
        killed: true,
    }));
    assert!(out[0].contains("hadn't ended 4 s later"), "{out:?}");
}

#[test]
fn a_kernel_that_cannot_leave_is_warned() {
    let mut world = running();
    world.reply("g", "ok");
    world.revoke(1);
    let out = world.errand(ErrandEnd::Left(Left::Failed(why())));
    assert_eq!(
        out,
        [
            "front: stream g gresshopper: the GPU goes back, but this kernel still holds it",
            "hopd: release 1"
        ]
    );
    let out = world.input(Input::Exited(Exit {
        reason: "killed".into(),
        killed: true,
    }));
    assert!(out[0].contains("still held its GPU 2 s after"), "{out:?}");
}

/// The lease's pilot ended, for instance.
#[test]
fn a_lease_that_ends_without_a_grace_is_told_without_a_number() {
    let mut world = running();
    world.revoke_after(1, Span::ZERO);
    let running = killed(&mut world);
    let mut world = self::running();
    world.reply("g", "ok");
    world.revoke_after(1, Span::ZERO);
    let leaving = killed(&mut world);
    let mut world = self::running();
    world.reply("g", "ok");
    world.revoke_after(1, Span::ZERO);
    world.errand(ErrandEnd::Left(Left::Failed(why())));
    let held = killed(&mut world);
    assert!(
        held.contains("still held its GPU after the end of its lease"),
        "{held}"
    );
    for said in [running, leaving, held] {
        assert!(said.contains("GPU") && !said.contains("0 s"), "{said}");
    }
}

/// A kernel that can't let go of the GPU of its cell, and was told that it stays.
fn holding() -> World {
    let mut world = running();
    world.reply("g", "ok");
    assert_eq!(world.over(1), ["gpu: Leave 1"]);
    assert_eq!(
        world.errand(ErrandEnd::Left(Left::Failed(why()))),
        ["hopd: still held 1"]
    );
    assert_eq!(
        world.held(1, None),
        ["front: stream g gresshopper: this kernel still holds its GPU"]
    );
    world
}

fn killed(world: &mut World) -> String {
    let out = world.input(Input::Exited(Exit {
        reason: "killed".into(),
        killed: true,
    }));
    out[0].clone()
}

#[test]
fn a_gpu_that_nobody_waits_for_stays_and_is_told_once() {
    let mut world = holding();
    // hopd asks once more.
    assert_eq!(world.over(1), ["gpu: Leave 1"]);
    assert_eq!(
        world.errand(ErrandEnd::Left(Left::Failed(why()))),
        ["hopd: still held 1"]
    );
    assert_eq!(world.held(1, None), [""; 0]);
    assert!(!killed(&mut world).contains("GPU"), "nobody threatened it");
}

#[test]
fn a_kernel_that_holds_on_is_warned_once_somebody_waits() {
    let mut world = holding();
    world.over(1);
    world.errand(ErrandEnd::Left(Left::Failed(why())));
    assert_eq!(
        world.held(1, Some("somebody waits for it")),
        [
            "front: stream g gresshopper: the GPU goes back, as somebody waits for it, but this kernel still holds it"
        ]
    );
    // The take-back may be ordered while it tries again.
    world.run("p", json!({}));
    assert_eq!(world.reply("p", "ok").last().unwrap(), "gpu: Leave 1");
    assert_eq!(
        world.errand(ErrandEnd::Left(Left::Failed(why()))),
        ["hopd: still held 1"]
    );
    let died = killed(&mut world);
    assert!(
        died.contains("after it was warned") && died.contains("somebody waits for it"),
        "{died}"
    );
}

#[test]
fn who_waited_and_is_gone_leaves_the_gpu_where_it_is() {
    let mut world = holding();
    world.over(1);
    world.errand(ErrandEnd::Left(Left::Failed(why())));
    world.held(1, Some("somebody waits for it"));
    assert_eq!(
        world.held(1, None),
        ["front: stream g gresshopper: this kernel still holds its GPU"]
    );
    assert!(!killed(&mut world).contains("GPU"));
}

#[test]
fn a_cell_that_lets_go_gives_the_gpu_back() {
    let mut world = holding();
    world.run("p", json!({}));
    assert_eq!(world.reply("p", "ok").last().unwrap(), "gpu: Leave 1");
    assert_eq!(world.errand(ErrandEnd::Left(Left::Nothing)), ["hopd: release 1"]);
    world.run("q", json!({}));
    assert_ne!(world.reply("q", "ok").last().unwrap(), "gpu: Leave 1");
}

#[test]
fn a_user_who_lets_go_in_vain_reads_why_and_keeps_the_kernel() {
    let mut world = running();
    world.reply("g", "ok");
    let out = world.agent(2, "need.end_linger", json!({}));
    assert!(out.contains(&"gpu: Leave 1".to_owned()), "{out:?}");
    assert_eq!(
        world.errand(ErrandEnd::Left(Left::Failed(why()))),
        ["hopd: still held 1"]
    );
    assert_eq!(
        world.held(1, None),
        ["front: stream g gresshopper: this kernel still holds its GPU"]
    );
    let notice = world.core.notice();
    assert_eq!(
        (&notice["state"], &notice["reason"]),
        (&json!("lingering"), &json!("why"))
    );
}

#[test]
fn the_next_cell_goes_on_with_the_gpu_that_is_held() {
    let mut world = holding();
    world.run("p", json!({}));
    world.reply("p", "ok");
    // Asked for while the kernel tries to let go.
    world.run("h", gpu());
    assert_eq!(world.grant("h", 1, 1), [""; 0]);
    let out = world.errand(ErrandEnd::Left(Left::Failed(why())));
    assert!(
        out.iter()
            .all(|line| !line.starts_with("hopd: ") && !line.starts_with("front: stream ")),
        "the lease is in use, and nothing of it goes back: {out:?}"
    );
    assert_eq!(world.place("h"), Some(Place::Running));
    assert_eq!(world.reply("h", "ok").last().unwrap(), "hopd: ended h 1 Ok");
    assert!(!killed(&mut world).contains("GPU"), "nobody threatened it");
}

#[test]
fn memory_that_cannot_come_back_fails_the_cell() {
    let mut world = running();
    world.reply("g", "ok");
    world.revoke(1);
    world.errand(ErrandEnd::Left(Left::Parked));
    world.run("h", gpu());
    world.grant("h", 2, 1);
    let out = world.errand(ErrandEnd::Returned(Returned::StillAway(why())));
    assert_eq!(out[..2], ["hopd: ended h 2 Aborted", "hopd: release 2"]);
    assert!(
        out.contains(&"front: execute_reply h error LeaseRefused".into()),
        "{out:?}"
    );
}

#[test]
fn a_lease_may_be_over_before_memory_is_back() {
    let mut world = running();
    world.reply("g", "ok");
    world.revoke(1);
    world.errand(ErrandEnd::Left(Left::Parked));
    world.run("h", gpu());
    world.grant("h", 2, 1);
    let out = world.revoke(2);
    assert!(
        out.contains(&"front: execute_reply h error LeaseRefused".into()),
        "{out:?}"
    );
    assert_eq!(
        world.errand(ErrandEnd::Returned(Returned::Back)),
        ["gpu: Leave 1"]
    );
    assert_eq!(world.errand(ErrandEnd::Left(Left::Parked)), ["hopd: release 2"]);
}

#[test]
fn a_parked_cell_goes_on_with_the_next_lease() {
    let mut world = standing();
    assert_eq!(world.run("b", Value::Null), [""; 0], "its place is kept");
    assert_eq!(world.hopd(News::Up), ["hopd: up waits g parked g from 1"]);
    assert_eq!(world.grant("g", 2, 1), ["gpu: Return 1"]);
    assert_eq!(world.hopd(News::Up), ["hopd: up holds 2 g"]);
    let out = world.errand(ErrandEnd::Returned(Returned::Back));
    assert_eq!(out, ["front: stream g gresshopper: the cell goes on"]);
    assert_eq!(world.place("g"), Some(Place::Running));
    assert_eq!(
        world.reply("g", "ok"),
        [
            "front: execute_reply g ok lease 2",
            "hopd: ended g 2 Ok",
            "kernel: execute_request b"
        ]
    );
}

#[test]
fn a_parked_cell_that_ends_waits_no_longer() {
    let mut world = standing();
    assert_eq!(
        world.reply("g", "error"),
        ["front: execute_reply g error lease 1", "hopd: cancel g"]
    );
    assert_eq!(world.run("h", gpu()), ["hopd: submit h 1 gpus"]);
}

#[test]
fn a_cell_that_cannot_be_stopped_runs_on() {
    let mut world = running();
    world.park("g", 1);
    assert_eq!(world.park("g", 1), [""; 0], "asked again");
    assert_eq!(
        world.errand(ErrandEnd::Stopped(Left::Failed(why()))),
        ["hopd: park-refused 1"]
    );
    assert_eq!(world.place("g"), Some(Place::Running));
    assert_eq!(world.park("other", 1), ["hopd: park-refused 1"]);
}

#[test]
fn a_cell_that_ends_while_it_is_stopped_is_over() {
    let mut world = running();
    world.park("g", 1);
    assert_eq!(
        world.reply("g", "ok"),
        ["front: execute_reply g ok lease 1", "hopd: ended g 1 Ok"]
    );
    assert_eq!(world.errand(ErrandEnd::Stopped(Left::Parked)), [""; 0]);
    world.run("h", gpu());
    assert_eq!(
        world.grant("h", 1, 1),
        ["gpu: Return 1"],
        "the same lease, lingering"
    );
}

#[test]
fn a_lease_may_end_while_its_cell_is_stopped() {
    let mut world = running();
    world.park("g", 1);
    world.revoke(1);
    let out = world.errand(ErrandEnd::Stopped(Left::Parked));
    let told = "front: stream g gresshopper: the cell is parked";
    assert_eq!(
        out,
        [
            told,
            "hopd: parked g 1",
            "hopd: release 1",
            "hopd: up waits g parked g from 1"
        ]
    );
}

#[test]
fn a_cell_that_cannot_return_asks_again_later() {
    let mut world = standing();
    world.after(Span::from_millis(200));
    world.grant("g", 2, 1);
    let out = world.errand(ErrandEnd::Returned(Returned::StillAway(why())));
    assert_eq!(out[..2], ["hopd: ended g 2 Parked", "hopd: release 2"]);
    assert_eq!(world.after(Span::from_secs(3)), [""; 0]);
    assert_eq!(
        world.after(Span::from_secs(1)),
        ["hopd: up ended g Parked waits g parked g from 1"]
    );
}

#[test]
fn an_interrupt_of_a_parked_cell_is_explained() {
    let mut world = standing();
    world.after(Span::from_millis(200));
    assert_eq!(world.input(Input::Interrupt), ["interrupt"]);
    let out = world.after(Span::from_secs(1));
    assert_eq!(
        out,
        [
            "front: stream g gresshopper: the cell is interrupted, but stands in a GPU operation, which waits for a GPU"
        ]
    );
}

#[test]
fn a_driver_that_loses_a_parked_cell_ends_the_kernel() {
    let mut world = standing();
    assert_eq!(world.errand(ErrandEnd::Broken(why())), ["kill"]);
    let out = world.input(Input::Exited(Exit {
        reason: "killed".into(),
        killed: true,
    }));
    assert!(
        out[0].contains("the driver lost what it had on its GPU: why"),
        "{out:?}"
    );
}

#[test]
fn the_end_of_an_older_lease_leaves_a_stop_alone() {
    let mut world = World::up();
    world.agent(1, "need.acquire", json!({"need": gpu()}));
    world.grant("background/1", 2, 1);
    world.run("c", Value::Null);
    world.revoke(2);
    world.agent(1, "need.acquire", json!({"need": gpu()}));
    world.grant("c/2", 4, 1);
    assert_eq!(world.park("c/2", 4), ["gpu: Stop 1"]);
    assert_eq!(
        world.reply("c", "error"),
        ["front: execute_reply c error lease 4", "hopd: release 2"]
    );
    assert_eq!(
        world.errand(ErrandEnd::Stopped(Left::Parked))[1..],
        ["hopd: parked c/2 4"]
    );
}
