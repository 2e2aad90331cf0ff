"""A slurmstepd that is killed has no callback left. Whoever comes next undoes what it left."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import harness
from harness import Cluster, Kernel, Pilot, Taker, end, until

EPERM = ["EPERM", "EPERM"]


def lose(cluster: Cluster, pilot: Pilot, target: Kernel) -> Any:
    """A lease whose slurmstepd is killed; its device stays open. Gives what was told and the kernel's holder."""
    step, told = pilot.lend(target)
    path = told["devices"][0]["path"]
    holder = target.ask("daemon", path)
    record = cluster.records("leases")[f"{pilot.job}.{told['step']}"]
    os.kill(record["stepd"]["pid"], signal.SIGKILL)
    step.kill()
    step.wait()
    assert target.ask("open", path) == "ok", "nobody has taken it back yet"
    return told, holder


def check_clean(cluster: Cluster, target: Kernel, holder: int) -> None:
    assert target.opens() == EPERM
    assert not target.ask("alive", holder)
    assert cluster.records("leases") == {}
    assert {r["state"]["state"] for r in cluster.records("gpus").values()} == {"free"}


def test_a_lease_ends_by_its_record_alone(cluster: Cluster, alice: Kernel, pilot: Pilot) -> None:
    """gres.conf can't be read any more: nothing new is lent, and what is lent comes back."""
    step, told = pilot.lend(alice)
    conf = cluster.base / "etc" / "gres.conf"
    text = conf.read_text(encoding="utf-8")
    try:
        conf.write_text(text + "Include /nowhere/at/all.conf\n", encoding="utf-8")
        end(step)
        taken = pilot.hear()
        assert (taken["clean"], taken["lease"]) == (True, told["lease"])
        assert alice.opens() == EPERM
    finally:
        conf.write_text(text, encoding="utf-8")


def test_the_take_back_step_cleans(cluster: Cluster, alice: Kernel, pilot: Pilot) -> None:
    told, holder = lose(cluster, pilot, alice)
    taken = pilot.take_back(told["lease"])
    assert (taken["kind"], taken["clean"], taken["ended_pids"]) == ("taken-back", True, [holder])
    check_clean(cluster, alice, holder)
    again = pilot.take_back(told["lease"])
    assert (again["clean"], again["devices"], again["ended_pids"]) == (True, [], [])


def test_the_pilots_epilog_cleans(cluster: Cluster, alice: Kernel, pilot: Pilot) -> None:
    _told, holder = lose(cluster, pilot, alice)
    cluster.cancel(pilot.job)
    until("the epilog has run", lambda: cluster.records("leases") == {})
    check_clean(cluster, alice, holder)


def test_the_next_grant_of_the_device_cleans(cluster: Cluster, alice: Kernel, pilot: Pilot) -> None:
    """The epilog doesn't see the plugin; the next pilot's grant of the same device, to bob, does."""
    bob = harness.kernel(cluster, "bob", cluster.submit("bob", "--mem=256"))
    _told, holder = lose(cluster, pilot, alice)
    cluster.plugstack("")
    cluster.cancel(pilot.job)
    assert cluster.records("leases") != {}
    assert alice.opens().count("ok") == 1
    cluster.plugstack(cluster.plugin_line())
    second = harness.pilot(cluster)
    step, _ = second.lend(bob, "--exact", "-n1", "-c1", "--mem=0", "--gres=gpu:2", gpus=2)
    assert alice.opens() == EPERM and bob.opens() == ["ok", "ok"]
    assert not alice.ask("alive", holder)
    end(step)
    assert second.hear()["clean"]
    check_clean(cluster, alice, holder)


def test_the_next_grant_to_the_kernel_cleans(cluster: Cluster, alice: Kernel, pilot: Pilot) -> None:
    """The lost step's device stays with Slurm; the same kernel gets the other one."""
    told, holder = lose(cluster, pilot, alice)
    step, second = pilot.lend(alice)
    assert second["devices"][0]["index"] != told["devices"][0]["index"]
    assert alice.ask("open", told["devices"][0]["path"]) == "EPERM"
    assert alice.ask("open", second["devices"][0]["path"]) == "ok"
    end(step)
    assert pilot.hear()["clean"]
    check_clean(cluster, alice, holder)


def test_a_stranger_who_holds_blocks_the_device_and_is_not_ended(
    cluster: Cluster, alice: Kernel, pilot: Pilot, taker: Taker
) -> None:
    """Root took a descriptor: the device is blocked, its lessee gets no other, and it is free at last."""
    second = harness.kernel(cluster, "alice", alice.identity["job"])
    step, told = pilot.lend(alice)
    index = told["devices"][0]["index"]
    assert alice.ask("send", told["devices"][0]["path"], taker.name) == "sent"
    end(step)
    taken = pilot.hear()
    assert not taken["clean"] and os.getpid() not in taken["ended_pids"]
    assert second.identity["pid"] not in taken["ended_pids"], "it is the lessee's, but it holds nothing"
    assert os.getpid() in [h["pid"] for h in taken["holders"]]
    assert harness.uid("alice") in [h["uid"] for h in taken["holders"]], "the lessee is named"
    assert cluster.state_of(index)["lessee"] == harness.uid("alice")
    assert alice.opens() == second.opens() == EPERM, "the kernel lives on: its end would free nothing"
    assert taken["ended_pids"] == []
    assert pilot.heard.nothing(1), "the second try tells nothing new"
    step = pilot.step(pilot.mint(pilot.token(second)))
    refused = pilot.hear()
    assert refused["reason"]["code"] in ("blocked", "lessee-blocks"), refused
    end(step)
    taker.drop()
    step, _ = pilot.lend(second)
    end(step)
    assert pilot.hear()["clean"]


def test_what_is_hidden_beside_a_strangers_file_is_ended(alice: Kernel, pilot: Pilot, taker: Taker) -> None:
    """One file of two is root's, and another is the lessee's, in flight: whom to end is decided file by file."""
    step, told = pilot.lend(alice)
    path = told["devices"][0]["path"]
    assert alice.ask("send", path, taker.name) == "sent"
    hidden = alice.ask("in-flight", path)
    end(step)
    taken = pilot.hear()
    assert (taken["clean"], taken["ended_pids"]) == (False, [hidden])
    assert os.getpid() in [h["pid"] for h in taken["holders"]]
    assert alice.opens() == EPERM
    taker.drop()
    assert pilot.take_back(told["lease"])["clean"]


def test_a_stranger_on_the_other_gpu_is_not_the_lessees(cluster: Cluster, alice: Kernel, pilot: Pilot) -> None:
    """A daemon of root's that opened the device itself, as it may, neither blocks it nor is ended."""
    fds = [os.open(cluster.gpu(i), os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK) for i in (0, 1)]
    try:
        step, _ = pilot.lend(alice)
        end(step)
        taken = pilot.hear()
        assert (taken["clean"], taken["ended_pids"], taken["level"]) == (True, [], "counted")
    finally:
        for fd in fds:
            os.close(fd)


def test_a_kernel_step_whose_slurmstepd_was_killed_is_swept(cluster: Cluster, alice: Kernel) -> None:
    assert len(cluster.records("kernels")) == 1
    pid = alice.identity["pid"]
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    parent = int(stat.rsplit(")", 1)[1].split()[1])
    os.kill(parent, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    cluster.tidy()
    until("the epilog sweeps", lambda: cluster.records("kernels") == {})
