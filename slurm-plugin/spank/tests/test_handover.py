"""Who can open a device before, during and after a lease, and what take-back does to those who hold it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import harness
import pytest
from harness import Cluster, Kernel, Pilot, end, until

EPERM = ["EPERM", "EPERM"]


@pytest.fixture
def seat(cluster: Cluster) -> int:
    return cluster.submit("alice", "--mem=256")


@pytest.fixture
def alice(cluster: Cluster, seat: int) -> Kernel:
    return harness.kernel(cluster, "alice", seat)


@pytest.fixture
def bob(cluster: Cluster) -> Kernel:
    return harness.kernel(cluster, "bob", cluster.submit("bob", "--mem=256"))


@pytest.fixture
def pilot(cluster: Cluster) -> Pilot:
    return harness.pilot(cluster)


def taken_back(pilot: Pilot, clean: bool = True) -> Any:
    told = pilot.hear(60)
    assert told["kind"] == "taken-back", told
    assert told["clean"] == clean, told
    return told


def end_and_take_back(cluster: Cluster, step: subprocess.Popen[str], pilot: Pilot) -> list[int]:
    """Ends a lease. Which of this cluster's processes the take-back ended: what waits in a connection that nobody has
    accepted can't be told from this device, so the tests of another cluster on this host may lose one, too."""
    ours = cluster.pids()
    end(step)
    return [pid for pid in taken_back(pilot)["ended_pids"] if pid in ours]


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
    assert cluster.records("gpus")[str(index)]["state"] == {"state": "free"}


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
def test_take_back_ends_who_holds_the_device(cluster: Cluster, alice: Kernel, pilot: Pilot, how: str) -> None:
    ended: list[int] = []
    for _ in range(3 if how == "backlog" else 1):
        step, told = pilot.lend(alice)
        holder = alice.ask(how, told["devices"][0]["path"])
        if isinstance(holder, dict):
            pytest.skip(f"{how}: {holder['error']}")
        ended = end_and_take_back(cluster, step, pilot)
        assert not alice.ask("alive", holder)
        assert alice.opens() == EPERM, "the kernel itself lives on"
        if ended:
            break  # Else another cluster's take-back was before us.
    assert ended == [holder]


def test_what_others_have_in_flight_neither_holds_up_a_take_back_nor_ends_them(
    cluster: Cluster, alice: Kernel, bob: Kernel, pilot: Pilot
) -> None:
    if not Path("/sys/kernel/btf/vmlinux").exists():
        pytest.skip("this kernel doesn't describe its types, so what is in flight can't be looked into")
    bystanders = [(who, who.ask("fly-harmless")) for who in (alice, bob)]
    step, _told = pilot.lend(alice, grace_ms=20_000)
    assert end_and_take_back(cluster, step, pilot) == []
    for who, pid in bystanders:
        assert who.ask("alive", pid)
        assert who.ask("end-child", pid) == "ended"


def test_take_back_ends_a_kernel_that_does_not_let_go(cluster: Cluster, alice: Kernel, pilot: Pilot) -> None:
    step, told = pilot.lend(alice)
    pid = alice.ask("hold", told["devices"][0]["path"])
    assert end_and_take_back(cluster, step, pilot) == [pid]
    alice.process.wait(timeout=20)


def test_the_grace_is_kept(alice: Kernel, pilot: Pilot) -> None:
    step, told = pilot.lend(alice, grace_ms=3000)
    holder = alice.ask("child", told["devices"][0]["path"])
    step.stdin.close()  # type: ignore[union-attr]
    assert pilot.heard.nothing(1.5)
    assert alice.ask("alive", holder)
    assert alice.opens() == EPERM, "denied at once, for all that"
    assert taken_back(pilot)["ended_pids"] == [holder]


def test_a_descriptor_given_to_another_user_is_ended_with_its_holder(
    cluster: Cluster, alice: Kernel, bob: Kernel, pilot: Pilot
) -> None:
    name = f"hop-test-{pilot.job}"
    holder = bob.ask("receive", name)
    step, told = pilot.lend(alice)
    assert alice.ask("send", told["devices"][0]["path"], name) == "sent"
    assert end_and_take_back(cluster, step, pilot) == [holder]
    until("the holder is gone", lambda: not bob.ask("alive", holder))


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
