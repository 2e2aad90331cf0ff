//! hopd, agents and the plugin on a real Slurm cluster. Root and `HOP_E2E=1` are needed; the cluster is made (or
//! found) below `HOP_E2E_BASE` with index `HOP_E2E_INDEX`. Build `hop-agent` and `gresshopper-spank` beforehand.
//!
//! The replica is the stand-in of `examples/test-replica.rs`, a real process in a real seat step; GPUs are the
//! cluster's device nodes. Each test has a hopd and pilots of its own; a lock lets one run at a time.

#![allow(clippy::unwrap_used)] // what fails here fails the test

mod rig;

use hop_api::message::{CancelTarget, Request, Response};
use rig::{Rig, millis, wait_until};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn two_leases_in_one_pilot_have_different_devices_and_open_only_them() {
    let Some(rig) = Rig::start() else { return };
    let node = rig.pilot_nodes()[0].clone();
    let mut replicas = [rig.replica("alice", &node, "k1"), rig.replica("bob", &node, "k2")];
    for r in &mut replicas {
        for gpu in 0..2 {
            assert_ne!(r.open(&rig.device(&node, gpu)), "ok", "before any lease");
        }
    }
    let [a, b] = &mut replicas;
    let (one, two) = (a.run("c1", 1, 0), b.run("c1", 1, 0));
    assert_ne!(one.devices, two.devices, "Slurm's indices differ");
    assert_eq!(a.open(&rig.device(&node, one.devices[0])), "ok");
    assert_eq!(b.open(&rig.device(&node, two.devices[0])), "ok");
    assert_ne!(a.open(&rig.device(&node, two.devices[0])), "ok");
    assert_ne!(b.open(&rig.device(&node, one.devices[0])), "ok");
    // What Slurm itself says of the two steps.
    let steps = rig.slurm("alice", "squeue", &["-s", "-h", "-o", "%i %b %j"]);
    for (lease, user) in [(&one, "alice"), (&two, "bob")] {
        let step = format!("{}.{} ", lease.pilot, lease.step);
        let line = steps
            .lines()
            .find(|l| l.trim_start().starts_with(&step))
            .unwrap_or_else(|| panic!("{steps}"));
        assert!(
            line.contains("gpu:1") && line.contains(&format!("{user}/k")),
            "{line}"
        );
    }
    a.end("c1");
    a.release();
    rig.leases_are(1);
    assert_ne!(
        a.open(&rig.device(&node, one.devices[0])),
        "ok",
        "after the lease"
    );
    assert_eq!(
        b.open(&rig.device(&node, two.devices[0])),
        "ok",
        "the other lease goes on"
    );
    b.end("c1");
    b.release();
    rig.leases_are(0);
    rig.accounting_adds_up(2);
}

#[test]
fn cores_alone_are_a_lease_too() {
    let Some(rig) = Rig::start() else { return };
    let node = rig.pilot_nodes()[0].clone();
    let mut a = rig.replica("alice", &node, "k1");
    let lease = a.run("c1", 0, 4);
    assert!(lease.devices.is_empty());
    let steps = rig.slurm(
        "root",
        "sacct",
        &[
            "-n",
            "-P",
            "-o",
            "AllocTRES",
            "-j",
            &format!("{}.{}", lease.pilot, lease.step),
        ],
    );
    assert!(steps.contains("cpu=4") && !steps.contains("gres/gpu"), "{steps}");
    assert_ne!(a.open(&rig.device(&node, 0)), "ok");
    a.end("c1");
    a.release();
    rig.leases_are(0);
}

#[test]
fn a_killed_hopd_comes_back_to_running_cells_and_waiting_ones() {
    let Some(mut rig) = Rig::start() else { return };
    let node = rig.pilot_nodes()[0].clone();
    let mut a = rig.replica("alice", &node, "k1");
    let mut b = rig.replica("bob", &node, "k2");
    let lease = a.run("c1", 2, 0);
    b.submit("c2", 1, 0);
    b.wait_event("queued");
    rig.kill_hopd();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(
        a.open(&rig.device(&node, 0)),
        "ok",
        "the cell goes on without hopd"
    );
    rig.start_hopd();
    a.wait("connected");
    b.wait("connected");
    rig.wait_pilots();
    rig.leases_are(1);
    assert_eq!(a.open(&rig.device(&node, 1)), "ok", "and with the next one");
    a.end("c1");
    let next = b.wait_granted();
    assert_eq!(next.devices.len(), 1);
    b.end("c2");
    b.release();
    rig.leases_are(0);
    let rows = rig.accounting_adds_up(2);
    assert!(
        rows.iter()
            .any(|r| r.lease == lease.lease && r.state == "COMPLETED"),
        "{rows:?}"
    );
}

#[test]
fn a_killed_agent_is_started_again_and_its_leases_go_on() {
    let Some(rig) = Rig::start() else { return };
    let node = rig.pilot_nodes()[0].clone();
    let mut a = rig.replica("alice", &node, "k1");
    let lease = a.run("c1", 1, 0);
    let agent = rig.process("gresshopper", &["hop-agent", "run"], lease.pilot);
    rig::kill(agent);
    wait_until(PATIENCE, "another agent", || {
        rig.find("gresshopper", &["hop-agent", "run"], lease.pilot) != Some(agent)
            && rig
                .find("gresshopper", &["hop-agent", "run"], lease.pilot)
                .is_some()
    });
    rig.wait_pilots();
    std::thread::sleep(Duration::from_secs(3));
    rig.leases_are(1);
    assert_eq!(a.open(&rig.device(&node, lease.devices[0])), "ok");
    a.end("c1");
    a.release();
    rig.leases_are(0);
    let again = a.run("c2", 2, 0);
    assert_eq!(again.pilot, lease.pilot);
    a.end("c2");
    a.release();
    rig.leases_are(0);
    rig.accounting_adds_up(2);
}

#[test]
fn the_killed_srun_of_a_lease_changes_nothing() {
    let Some(rig) = Rig::start() else { return };
    let node = rig.pilot_nodes()[0].clone();
    let mut a = rig.replica("alice", &node, "k1");
    let lease = a.run("c1", 1, 0);
    // An srun that is killed while its step is launched takes the step along: Slurm's launch needs it.
    std::thread::sleep(Duration::from_secs(1));
    // srun has a helper process of the same name: both are killed.
    while let Some(srun) = rig.find("gresshopper", &["srun", "--exact"], lease.pilot) {
        rig::kill(srun);
        std::thread::sleep(Duration::from_millis(100));
    }
    std::thread::sleep(Duration::from_secs(3));
    rig.leases_are(1);
    assert_eq!(a.open(&rig.device(&node, lease.devices[0])), "ok");
    a.end("c1");
    a.release();
    rig.leases_are(0);
    assert_ne!(a.open(&rig.device(&node, lease.devices[0])), "ok");
    let again = a.run("c2", 2, 0);
    assert_eq!(again.devices.len(), 2);
    a.end("c2");
    a.release();
    rig.leases_are(0);
}

#[test]
fn a_killed_slurmstepd_costs_the_lease_and_the_pilot_is_replaced() {
    let Some(rig) = Rig::start() else { return };
    let node = rig.pilot_nodes()[0].clone();
    let mut a = rig.replica("alice", &node, "k1");
    let lease = a.run("c1", 1, 0);
    let stepd = rig.process(
        "root",
        &["slurmstepd", &format!("[{}.{}]", lease.pilot, lease.step)],
        0,
    );
    rig::kill(stepd);
    let event = a.wait_event("revoked");
    assert_eq!(event["lease"], lease.lease.0);
    assert_ne!(
        a.open(&rig.device(&node, lease.devices[0])),
        "ok",
        "taken back by a step of its own"
    );
    wait_until(PATIENCE, "the pilot to be replaced", || {
        rig.pilots().iter().all(|p| p.0 != lease.pilot)
    });
    rig.wait_pilots();
    let again = a.run("c2", 1, 0);
    assert_ne!(again.pilot, lease.pilot);
    a.end("c2");
    a.release();
    rig.leases_are(0);
    rig.accounting_adds_up(2);
}

#[test]
fn a_cancelled_pilot_revokes_its_leases_and_is_replaced() {
    let Some(rig) = Rig::start() else { return };
    let node = rig.pilot_nodes()[0].clone();
    let mut a = rig.replica("alice", &node, "k1");
    let lease = a.run("c1", 1, 0);
    rig.slurm("root", "scancel", &[&lease.pilot.to_string()]);
    let event = a.wait_event("revoked");
    assert_eq!(event["lease"], lease.lease.0);
    wait_until(PATIENCE, "the device to be closed", || {
        a.open(&rig.device(&node, lease.devices[0])) != "ok"
    });
    wait_until(PATIENCE, "the pilot to go", || {
        rig.pilots().iter().all(|p| p.0 != lease.pilot)
    });
    rig.wait_pilots();
    let again = a.run("c2", 1, 0);
    assert_ne!(again.pilot, lease.pilot);
    a.end("c2");
    a.release();
    rig.leases_are(0);
    rig.accounting_adds_up(2);
}

#[test]
fn a_suspended_pilot_is_cancelled_and_its_leases_end() {
    let Some(rig) = Rig::start() else { return };
    let node = rig.pilot_nodes()[0].clone();
    let mut a = rig.replica("alice", &node, "k1");
    let lease = a.run("c1", 1, 0);
    rig.slurm("root", "scontrol", &["suspend", &lease.pilot.to_string()]);
    a.wait_event("revoked");
    wait_until(PATIENCE, "the pilot to go", || {
        rig.pilots().iter().all(|p| p.0 != lease.pilot)
    });
    wait_until(PATIENCE, "the device to be closed", || {
        a.open(&rig.device(&node, lease.devices[0])) != "ok"
    });
    rig.wait_pilots();
    a.run("c2", 1, 0);
    a.end("c2");
    a.release();
    rig.leases_are(0);
}

#[test]
fn running_leases_go_on_while_slurmctld_is_stopped_and_new_ones_come_with_it() {
    let Some(rig) = Rig::start() else { return };
    let node = rig.pilot_nodes()[0].clone();
    let mut a = rig.replica("alice", &node, "k1");
    let mut b = rig.replica("bob", &node, "k2");
    let lease = a.run("c1", 1, 0);
    rig.cluster.stop_slurmctld(false).unwrap();
    let stopped = Instant::now();
    b.submit("c1", 1, 0);
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(a.open(&rig.device(&node, lease.devices[0])), "ok");
    let info = rig.info();
    assert_eq!(
        info.nodes.len(),
        2,
        "no pilot is given up because Slurm is away: {info:?}"
    );
    let stepmgr = rig.has_stepmgr();
    if stepmgr {
        b.wait_granted();
        assert!(
            stopped.elapsed() < Duration::from_secs(10),
            "stepmgr needs no slurmctld"
        );
    }
    std::thread::sleep(Duration::from_secs(20).saturating_sub(stopped.elapsed()));
    rig.cluster.start_slurmctld().unwrap();
    if !stepmgr {
        b.wait_granted();
    }
    for r in [&mut a, &mut b] {
        r.end("c1");
        r.release();
    }
    rig.leases_are(0);
    wait_until(PATIENCE, "hopd to see Slurm again", || {
        rig.info().problems.is_empty()
    });
    assert_eq!(rig.info().nodes.len(), 2);
}

#[test]
fn a_killed_replica_leaves_nothing_behind() {
    let Some(rig) = Rig::start() else { return };
    let node = rig.pilot_nodes()[0].clone();
    let mut a = rig.replica("alice", &node, "k1");
    let mut b = rig.replica("bob", &node, "k2");
    a.run("c1", 2, 0);
    b.submit("c1", 1, 0);
    b.wait_event("queued");
    rig::kill(a.pid);
    let killed = Instant::now();
    b.wait_granted();
    assert!(
        killed.elapsed() < Duration::from_secs(8),
        "{:?}",
        killed.elapsed()
    );
    b.end("c1");
    b.release();
    rig.leases_are(0);
    rig.accounting_adds_up(2);
}

#[test]
fn users_touch_only_their_own() {
    let Some(rig) = Rig::start() else { return };
    let node = rig.pilot_nodes()[0].clone();
    let mut a = rig.replica("alice", &node, "k1");
    let lease = a.run("c1", 1, 0);
    // Bob says that alice's kernel is his.
    let mut thief = rig.replica_unregistered("bob", &node, "k1", 1);
    assert!(
        thief.wait("refused")["refused"]
            .as_str()
            .unwrap()
            .contains("kernel k1 of yours")
    );
    // His own kernel, in alice's seat by word.
    let said = rig.hop_as("bob", &["cancel-lease", &lease.lease.to_string()]);
    assert!(said.contains("there is no live lease"), "{said}");
    let said = rig.hop_as("bob", &["queue-all"]);
    assert!(said.contains("no operator"), "{said}");
    assert_eq!(rig.hop_as("bob", &["queue"]), "0");
    assert_eq!(rig.hop_as("alice", &["queue"]), "1");
    assert_eq!(rig.hop_as("root", &["queue-all"]), "1");
    assert!(rig.hop_as("bob", &["agent"]).contains("not the service account"));
    assert_eq!(
        a.open(&rig.device(&node, lease.devices[0])),
        "ok",
        "nothing of this has touched the lease"
    );
    // An operator may end it.
    let cancel = Request::Cancel(CancelTarget::Lease { lease: lease.lease });
    assert!(matches!(rig.ask(cancel), Response::Done));
    a.wait_event("revoked");
    rig.leases_are(0);
}

/// Not a promise but a measurement, printed; `bench/` keeps the official figures.
#[test]
fn latencies_beside_a_bare_srun() {
    let Some(rig) = Rig::start() else { return };
    let node = rig.pilot_nodes()[0].clone();
    let mut a = rig.replica("alice", &node, "k1");
    let mut b = rig.replica("bob", &node, "k2");
    let (mut fresh, mut linger, mut hand_on, mut bare) = (vec![], vec![], vec![], vec![]);
    let rounds: usize = std::env::var("HOP_E2E_ROUNDS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(5);
    for n in 0..rounds {
        bare.push(rig.bare_step(&node));
        let cell = format!("f{n}");
        fresh.push(a.run(&cell, 2, 0).waited);
        a.end(&cell);
        let cell = format!("l{n}");
        linger.push(a.run(&cell, 2, 0).waited);
        // The next user waits: from the end of this cell to the grant of theirs.
        b.submit(&cell, 2, 0);
        b.wait_event("queued");
        let ended = a.end(&cell);
        hand_on.push(millis(b.wait_granted().at - ended));
        b.end(&cell);
        b.release();
        rig.leases_are(0);
    }
    for (name, mut times) in [
        ("bare srun --exact", bare),
        ("fresh", fresh),
        ("linger", linger),
        ("hand on", hand_on),
    ] {
        times.sort_by(f64::total_cmp);
        println!(
            "LATENCY {name}: p50 {:.1} ms, min {:.1}, max {:.1} (n={rounds})",
            times[times.len() / 2],
            times[0],
            times[times.len() - 1]
        );
    }
}
