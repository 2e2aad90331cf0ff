"""Who can open a device before, during and after a lease, and what take-back does to those who hold it."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import harness
import pytest
from harness import Cluster, Kernel, Pilot, end, until

EPERM = ["EPERM", "EPERM"]
# Leases in a row for what is random.
TURNS = int(os.environ.get("HOP_E2E_TURNS", "3"))


@pytest.fixture
def seat(cluster: Cluster) -> int:
    return cluster.submit("alice", "--mem=256")


@pytest.fixture
def alice(cluster: Cluster, seat: int) -> Kernel:
    return harness.kernel(cluster, "alice", seat)


@pytest.fixture
def bob(cluster: Cluster) -> Kernel:
    return harness.kernel(cluster, "bob", cluster.submit("bob", "--mem=256"))


def taken_back(pilot: Pilot, clean: bool = True) -> Any:
    told = pilot.hear(60)
    assert told["kind"] == "taken-back", told
    assert told["clean"] == clean, told
    return told


def end_and_take_back(step: subprocess.Popen[str], pilot: Pilot) -> list[int]:
    """Ends a lease cleanly. Gives whom that ended."""
    end(step)
    told = taken_back(pilot)
    assert told["level"] == "counted"
    return sorted(told["ended_pids"])


def test_the_leased_device_opens_during_the_lease_and_no_other(
    cluster: Cluster, seat: int, alice: Kernel, bob: Kernel, pilot: Pilot
) -> None:
    other = harness.kernel(cluster, "alice", seat)
    assert alice.opens() == bob.opens() == other.opens() == EPERM
    step, told = pilot.lend(alice)
    index = told["devices"][0]["index"]
    assert told["devices"][0]["path"] == cluster.gpu(index)
    assert (told["pilot"], told["node"], told["cores"]) == (pilot.job, cluster.node, "")
    expected = ["ok" if i == index else "EPERM" for i in (0, 1)]
    assert alice.opens() == expected
    assert bob.opens() == other.opens() == EPERM
    late = harness.kernel(cluster, "alice", seat)
    assert late.opens() == EPERM
    assert alice.opens() == expected, "a new step in the seat does no harm"
    end(step)
    after = taken_back(pilot)
    assert (after["lease"], after["epoch"]) == (told["lease"], told["epoch"])
    assert (after["ended_pids"], after["holders"], after["devices"]) == ([], [], [index])
    assert alice.opens() == bob.opens() == EPERM
    assert pilot.heard.nothing()
    assert cluster.records("leases") == {}
    assert cluster.state_of(index) == {"state": "free"}


def test_two_leases_of_a_pilot_have_different_devices(
    cluster: Cluster, alice: Kernel, bob: Kernel, pilot: Pilot
) -> None:
    first, told_first = pilot.lend(alice)
    second, told_second = pilot.lend(bob)
    indices = {told["devices"][0]["index"] for told in (told_first, told_second)}
    assert indices == {0, 1}
    assert sorted(zip(alice.opens(), bob.opens())) == [("EPERM", "ok"), ("ok", "EPERM")]
    end(first)
    taken_back(pilot)
    assert alice.opens() == EPERM
    assert bob.opens().count("ok") == 1, "the other lease goes on"
    end(second)
    taken_back(pilot)


def test_a_lease_of_two(alice: Kernel, pilot: Pilot) -> None:
    step, told = pilot.lend(alice, "--exact", "-n1", "-c1", "--mem=0", "--gres=gpu:2", gpus=2)
    assert [d["index"] for d in told["devices"]] == [0, 1]
    assert alice.opens() == ["ok", "ok"]
    end(step)
    taken_back(pilot)
    assert alice.opens() == EPERM


@pytest.mark.parametrize("how", ["child", "daemon", "thread", "in-flight", "backlog", "ring"])
def test_take_back_ends_who_holds_the_device(alice: Kernel, pilot: Pilot, how: str) -> None:
    step, told = pilot.lend(alice)
    holder = alice.ask(how, told["devices"][0]["path"])
    if isinstance(holder, dict):
        pytest.skip(f"{how}: {holder['error']}")
    assert holder in end_and_take_back(step, pilot)
    assert not alice.ask("alive", holder)
    assert alice.opens() == EPERM, "the kernel itself lives on"


@pytest.mark.parametrize("how", ["fork-chain", "dance", "traced"])
def test_nobody_evades_the_count(alice: Kernel, pilot: Pilot, how: str) -> None:
    """The device is called free when it is, and not before."""
    for _ in range(1 if how == "traced" else TURNS):
        step, told = pilot.lend(alice)
        alice.ask(how, told["devices"][0]["path"])
        assert end_and_take_back(step, pilot), "it was held until somebody was ended"
        assert not alice.ask("holders", told["devices"][0]["path"])
        assert alice.opens() == EPERM, "the kernel itself lives on"


def test_duplicates_make_no_take_back_longer(alice: Kernel, pilot: Pilot) -> None:
    """Each process is looked up once, however many descriptors it has."""
    step, told = pilot.lend(alice)
    holders = alice.ask("duplicates", told["devices"][0]["path"])
    assert len(end_and_take_back(step, pilot)) == holders
    assert alice.opens() == EPERM, "the kernel itself lives on"


@pytest.mark.parametrize("how", ["blocked-send", "blocked-datagram", "blocked-poll"])
def test_a_reference_on_a_sleeping_threads_stack_counts(alice: Kernel, pilot: Pilot, how: str) -> None:
    """It is there for the grace, and gone when the freezer wakes the thread, or its process is ended."""
    step, told = pilot.lend(alice, grace_ms=3000)
    assert alice.ask("alive", alice.ask(how, told["devices"][0]["path"]))
    assert not alice.ask("holders", told["devices"][0]["path"]), "there is nothing to be seen"
    step.stdin.close()  # type: ignore[union-attr]
    assert pilot.heard.nothing(1.5), "it is held"
    assert taken_back(pilot)["level"] == "counted"
    assert alice.opens() == EPERM, "the kernel itself lives on"


@pytest.mark.parametrize("how", ["ring-socket", "ring-alone"])
def test_no_ring_hides_a_device(alice: Kernel, pilot: Pilot, how: str) -> None:
    step, told = pilot.lend(alice)
    answer = alice.ask(how, told["devices"][0]["path"])
    if isinstance(answer, dict):
        pytest.skip(f"{how}: {answer['error']}")
    assert end_and_take_back(step, pilot), "it was held until somebody was ended"
    assert alice.opens() == EPERM, "the kernel itself lives on"


def test_bystanders_live(cluster: Cluster, alice: Kernel, bob: Kernel, pilot: Pilot) -> None:
    """Who listens and never accepts, who has the device's name alone, whose sockets carry something: none is the lessee's."""
    bystanders = [(who, who.ask("fly-harmless")) for who in (alice, bob)]
    for i in (0, 1):
        bystanders.append((bob, bob.ask("name-only", cluster.gpu(i))))
    name = f"hop-bystander-{pilot.cluster.node}-{pilot.job}"
    bystanders.append((bob, bob.ask("listen", name)))
    step, told = pilot.lend(alice, grace_ms=20_000)
    assert alice.ask("send-harmless", name) == "sent"
    assert end_and_take_back(step, pilot) == []
    assert all(who.ask("alive", pid) for who, pid in bystanders)
    for who, pid in bystanders:
        assert who.ask("end-child", pid) == "ended"
    assert told["level"] == "counted"


@pytest.mark.parametrize("accepts", [True, False])
def test_a_descriptor_given_to_another_user_blocks_the_device_until_it_is_gone(
    cluster: Cluster, alice: Kernel, bob: Kernel, pilot: Pilot, accepts: bool
) -> None:
    """Bob is never ended, whether he took it or it only lies in his socket; alice gets nothing more here before it is gone."""
    name = f"hop-test-{pilot.cluster.node}-{pilot.job}"
    holder = bob.ask("receive" if accepts else "listen", name)
    step, told = pilot.lend(alice)
    assert alice.ask("send" if accepts else "throw", told["devices"][0]["path"], name) == "sent"
    end(step)
    after = taken_back(pilot, clean=False)
    assert holder not in after["ended_pids"]
    assert bob.ask("alive", holder)
    named = {h["uid"] for h in after["holders"]}
    assert harness.uid("alice") in named
    if accepts:
        assert alice.opens() == EPERM, "the kernel lives on: its end would free nothing"
    assert bob.ask("end-child", holder) == "ended"
    assert pilot.take_back(told["lease"])["clean"]


def test_of_a_leases_devices_those_that_nobody_holds_are_free(
    cluster: Cluster, alice: Kernel, bob: Kernel, pilot: Pilot
) -> None:
    name = f"hop-two-{pilot.cluster.node}-{pilot.job}"
    holder = bob.ask("receive", name)
    step, told = pilot.lend(alice, "--exact", "-n1", "-c1", "--mem=0", "--gres=gpu:2", gpus=2)
    free, kept = told["devices"]
    assert alice.ask("send", kept["path"], name) == "sent"
    end(step)
    after = taken_back(pilot, clean=False)
    assert after["blocked"] == [kept["index"]]
    assert [b["index"] for b in pilot.look(free["index"])["blocked"]] == [kept["index"]]
    assert [b["index"] for b in pilot.look(kept["index"])["blocked"]] == [kept["index"]]
    # Slurm gives the lower one.
    step, told = pilot.lend(bob)
    assert told["devices"] == [free]
    end_and_take_back(step, pilot)
    assert bob.ask("end-child", holder) == "ended"
    assert pilot.look(kept["index"])["blocked"] == []


def test_dry_run_ends_nobody(cluster: Cluster, alice: Kernel, pilot: Pilot) -> None:
    cluster.plugstack(cluster.plugin_line(extra="dry_run"))
    step, told = pilot.lend(alice)
    holder = alice.ask("child", told["devices"][0]["path"])
    end(step)
    after = taken_back(pilot, clean=False)
    assert after["ended_pids"] == []
    assert "dry_run" in next(h["why"] for h in after["holders"] if h["pid"] == holder)
    assert alice.ask("alive", holder)
    cluster.plugstack(cluster.plugin_line())
    again = pilot.take_back(told["lease"])
    assert (again["clean"], again["ended_pids"]) == (True, [holder])


def test_take_back_ends_a_kernel_that_does_not_let_go(alice: Kernel, pilot: Pilot) -> None:
    step, told = pilot.lend(alice)
    pid = alice.ask("hold", told["devices"][0]["path"])
    assert end_and_take_back(step, pilot) == [pid]
    alice.process.wait(timeout=20)


def test_the_grace_is_kept(alice: Kernel, pilot: Pilot) -> None:
    step, told = pilot.lend(alice, grace_ms=3000)
    holder = alice.ask("child", told["devices"][0]["path"])
    step.stdin.close()  # type: ignore[union-attr]
    assert pilot.heard.nothing(1.5)
    assert alice.ask("alive", holder)
    assert alice.opens() == EPERM, "denied at once, for all that"
    assert taken_back(pilot)["ended_pids"] == [holder]


def test_leases_follow_each_other(alice: Kernel, bob: Kernel, pilot: Pilot) -> None:
    for target in (alice, bob, alice, alice):
        step, _told = pilot.lend(target, "--exact", "-n1", "-c1", "--mem=0", "--gres=gpu:2", gpus=2)
        assert target.opens() == ["ok", "ok"]
        end(step)
        taken_back(pilot)
        assert alice.opens() == bob.opens() == EPERM


def test_a_kernel_has_one_lease(alice: Kernel, pilot: Pilot) -> None:
    step, _told = pilot.lend(alice)
    second = pilot.step(pilot.mint(pilot.token(alice)))
    refused = pilot.hear()
    assert (refused["kind"], refused["reason"]["code"]) == ("refused", "kernel-holds")
    end(second)
    assert alice.opens().count("ok") == 1
    end(step)
    taken_back(pilot)


def test_a_seat_that_ends_during_the_lease(cluster: Cluster, alice: Kernel, pilot: Pilot) -> None:
    step, _ = pilot.lend(alice)
    cluster.cancel(alice.identity["job"])
    assert step.poll() is None
    end(step)
    taken_back(pilot)
    until("the kernel's record goes", lambda: cluster.records("kernels") == {})


def test_a_pilot_that_is_cancelled_takes_back(cluster: Cluster, alice: Kernel, pilot: Pilot) -> None:
    pilot.lend(alice)
    cluster.cancel(pilot.job)
    taken_back(pilot)
    assert alice.opens() == EPERM


def test_removing_the_plugin_while_a_lease_lives(cluster: Cluster, alice: Kernel, pilot: Pilot) -> None:
    step, told = pilot.lend(alice)
    cluster.plugstack("")
    (cluster.base / "opt/lib/gresshopper.so").unlink()
    assert alice.ask("open", told["devices"][0]["path"]) == "ok"
    assert cluster.run("bob", "srun", "-w", cluster.node, "--mem=16", "echo", "hello") == "hello"
    try:
        end(step)
        taken_back(pilot)
        assert alice.opens() == EPERM
    finally:
        cluster.install()
