"""Cores come with the lease: on a cluster with the machine's real ones (HOP_E2E_CORES=1, an `up` with --real-cores)."""

from __future__ import annotations

import os

import harness
import pytest
from harness import Cluster, Kernel, Pilot, end

pytestmark = pytest.mark.skipif(
    os.environ.get("HOP_E2E_CORES") != "1", reason="needs a cluster with --real-cores: HOP_E2E_CORES=1"
)


@pytest.fixture
def alice(cluster: Cluster) -> Kernel:
    return harness.kernel(cluster, "alice", cluster.submit("alice", "-c1", "--mem=128"), "-c1", "--mem=64")


@pytest.fixture
def pilot(cluster: Cluster) -> Pilot:
    return harness.pilot(cluster, cpus=1)


@pytest.mark.parametrize("gpus", [0, 1])
def test_the_executors_cores_grow_with_the_lease_and_shrink_after(alice: Kernel, pilot: Pilot, gpus: int) -> None:
    before = alice.ask("cores")
    assert all(mask == before["process"] for mask in before.values()), before
    assert len(before["process"]) == 1
    gres = f"--gres=gpu:{gpus}" if gpus else "--gres=none"
    for _ in range(2):
        step, told = pilot.lend(alice, "--exact", "-n1", "-c1", "--mem=0", gres, gpus=gpus, cpus=1)
        lent = {int(core) for core in told["cores"].split(",")}
        assert len(lent) == 1 and not lent & set(before["process"])
        wide = sorted(lent | set(before["process"]))
        during = alice.ask("cores")
        assert set(during) >= set(before)
        assert all(mask == wide for mask in during.values()), during
        end(step)
        assert pilot.hear()["clean"]
        after = alice.ask("cores")
        assert all(mask == before["process"] for mask in after.values()), after


def test_no_cores_are_lent_that_were_not_asked_for(alice: Kernel, pilot: Pilot) -> None:
    before = alice.ask("cores")
    step, told = pilot.lend(alice)
    assert told["cores"] == "" and alice.ask("cores")["process"] == before["process"]
    end(step)
    assert pilot.hear()["clean"]


def test_a_lost_lease_of_cores_is_narrowed_by_the_take_back_step(
    cluster: Cluster, alice: Kernel, pilot: Pilot
) -> None:
    before = alice.ask("cores")["process"]
    step, told = pilot.lend(alice, "--exact", "-n1", "-c1", "--mem=0", "--gres=gpu:1", cpus=1)
    assert len(alice.ask("cores")["process"]) == 2
    os.kill(cluster.records("leases")[f"{pilot.job}.{told['step']}"]["stepd"]["pid"], 9)
    step.kill()
    assert pilot.take_back(told["lease"])["clean"]
    assert alice.ask("cores")["process"] == before
