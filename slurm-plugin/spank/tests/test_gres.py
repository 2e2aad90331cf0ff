"""What is lent is what opens in the lease's step: gres.conf may say what it likes once Slurm has read it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import harness
import pytest
from harness import Cluster, Kernel, Pilot, end

EPERM = ["EPERM", "EPERM"]


@contextlib.contextmanager
def gres_conf(cluster: Cluster, *lines: str) -> Iterator[None]:
    """Another gres.conf, which Slurm's daemons don't read before their next start."""
    conf = cluster.base / "etc" / "gres.conf"
    text = conf.read_text(encoding="utf-8")
    conf.write_text("\n".join(lines) + "\n", encoding="utf-8")
    try:
        yield
    finally:
        conf.write_text(text, encoding="utf-8")


def kernel(cluster: Cluster, user: str) -> Kernel:
    return harness.kernel(cluster, user, cluster.submit(user, "--mem=256"))


def swapped(cluster: Cluster) -> list[str]:
    """Two types in another order than Slurm's."""
    return [f"NodeName={cluster.node} Name=gpu Type={'ba'[i]} File={cluster.gpu(i)}" for i in (1, 0)]


def lend_and_compare(cluster: Cluster, pilot: Pilot, alice: Kernel) -> None:
    """Slurm's index i is the file of that name, by the configuration that it runs with."""
    step, told = pilot.lend(alice)
    (device,) = told["devices"]
    number = os.stat(cluster.gpu(device["index"])).st_rdev
    assert (device["major"], device["minor"]) == (os.major(number), os.minor(number))
    assert alice.opens() == ["ok" if i == device["index"] else "EPERM" for i in (0, 1)]
    end(step)
    assert pilot.hear()["clean"]
    assert alice.opens() == EPERM


def test_two_types_in_swapped_order(cluster: Cluster, pilot: Pilot) -> None:
    with gres_conf(cluster, *swapped(cluster)):
        alice = kernel(cluster, "alice")
        assert alice.opens() == EPERM
        lend_and_compare(cluster, pilot, alice)


def test_the_foreign_job_on_the_other_gpu_lives(cluster: Cluster) -> None:
    """It was ended where the order was believed."""
    pilot = harness.pilot(cluster, gpus=1)
    other = cluster.submit("bob", "--gres=gpu:1", "--mem=64")
    with gres_conf(cluster, *swapped(cluster)):
        alice = kernel(cluster, "alice")
        step, told = pilot.lend(alice)
        (device,) = told["devices"]
        assert device["path"] == cluster.gpu(device["index"])
        end(step)
        taken = pilot.hear()
        assert (taken["clean"], taken["ended_pids"]) == (True, [])
    assert cluster.state(other) == "RUNNING"


@pytest.mark.parametrize("line", ["", "# nothing", "AutoDetect=nvml", "Name=gpu File = /dev/nowhere"])
def test_whatever_gres_conf_says_a_kernel_opens_nothing(cluster: Cluster, pilot: Pilot, line: str) -> None:
    """Anybody may call a step a kernel's: it opens no more than Slurm lets it."""
    with gres_conf(cluster, line):
        alice = kernel(cluster, "alice")
        assert alice.opens() == EPERM
        lend_and_compare(cluster, pilot, alice)


def test_a_device_file_that_is_made_later_is_denied(cluster: Cluster) -> None:
    """It is away while the kernel registers."""
    path = Path(cluster.gpu(1))
    number = path.stat().st_rdev
    path.unlink()
    try:
        alice = kernel(cluster, "alice")
    finally:
        os.mknod(path, 0o666 | stat.S_IFCHR, number)
        path.chmod(0o666)
    assert alice.opens() == EPERM


def test_a_step_that_shares_the_pilots_gpus_is_refused(cluster: Cluster, pilot: Pilot) -> None:
    """More opens in it than the token says."""
    alice = kernel(cluster, "alice")
    step = pilot.step(pilot.mint(pilot.token(alice)), "-n1", "-c1", "--mem=0", "--gres=gpu:2")
    told = pilot.hear()
    assert told["reason"] == {"code": "wrong-gpus", "token": 1, "step": 2, "opens": 2}
    end(step)
    assert alice.opens() == EPERM


@contextlib.contextmanager
def order_swapped(cluster: Cluster) -> Iterator[None]:
    """Slurm has read gres.conf anew, with the node's two GPUs the other way round."""
    text = (cluster.base / "etc" / "gres.conf").read_text(encoding="utf-8").splitlines()
    here = [i for i, line in enumerate(text) if f"/fakegpu-{cluster.node}-" in line]
    text[here[0]], text[here[1]] = text[here[1]], text[here[0]]

    def read_anew() -> None:
        # Since 23.11 a slurmd starts itself anew when Slurm is reconfigured, and isn't to be killed in the midst of it.
        cluster.devcluster("kill-slurmd", cluster.node)
        cluster.run("root", "scontrol", "reconfigure")
        cluster.devcluster("start-slurmd", cluster.node)

    with gres_conf(cluster, *text):
        read_anew()
        yield
    read_anew()


def test_a_living_lease_keeps_its_device_when_the_order_changes(cluster: Cluster, pilot: Pilot) -> None:
    """Slurm gives bob's step the device of alice's lease, under its other GPU's index."""
    alice, bob = kernel(cluster, "alice"), kernel(cluster, "bob")
    first, told = pilot.lend(alice)
    (lent,) = told["devices"]
    holder = alice.ask("daemon", lent["path"])
    with order_swapped(cluster):
        second = pilot.step(pilot.mint(pilot.token(bob)))
        refused = pilot.hear()["reason"]
        end(second)
        assert (refused["code"], refused["index"]) == ("blocked", 1 - lent["index"]), refused
        assert refused["why"].startswith(f"it is lent to lease {told['lease']}, which lives"), refused
        assert [(b["index"], b["lease"]) for b in pilot.look()["blocked"]] == [(1 - lent["index"], told["lease"])]
        assert bob.opens() == EPERM
        assert alice.ask("open", lent["path"]) == "ok" and alice.ask("alive", holder)
        end(first)
        taken = pilot.hear()
        assert (taken["clean"], taken["ended_pids"]) == (True, [holder])
        assert pilot.look()["blocked"] == []
        second, told = pilot.lend(bob)
        assert bob.ask("open", told["devices"][0]["path"]) == "ok"
        end(second)
        assert pilot.hear()["clean"]
