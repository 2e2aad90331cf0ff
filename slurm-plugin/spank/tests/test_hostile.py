"""Users who use what Linux and Slurm give them against the take-back, or against another user's lease."""

from __future__ import annotations

import harness
import pytest
from harness import Cluster, Kernel, Pilot, end

EPERM = ["EPERM", "EPERM"]


@pytest.fixture
def bob(cluster: Cluster) -> Kernel:
    return harness.kernel(cluster, "bob", cluster.submit("bob", "--mem=256"))


def test_a_device_that_a_users_own_gpu_job_left_to_another_process(
    cluster: Cluster, alice: Kernel, bob: Kernel, pilot: Pilot
) -> None:
    """Slurm gives a GPU from job to job. Bob had both by Slurm, and has one open in a job without any."""
    step, _ = pilot.lend(alice)
    end(step)
    assert pilot.hear()["clean"]
    cluster.cancel(pilot.job)
    own = cluster.submit("bob", "--mem=128", "--gres=gpu:2")
    owner = harness.kernel(cluster, "bob", own, "--gres=gpu:2", variable=False)
    name = f"hop-left-{cluster.node}-{own}"
    keeper = bob.ask("receive", name)
    assert owner.ask("send", cluster.gpu(0), name) == "sent"
    cluster.cancel(own)
    assert bob.ask("alive", keeper)
    later = harness.pilot(cluster)
    step = later.step(later.mint(later.token(alice, gpus=2)), "--exact", "-n1", "-c1", "--mem=0", "--gres=gpu:2")
    refused = later.hear()
    assert refused["kind"] == "refused", refused
    assert refused["reason"]["code"] == "blocked"
    assert f"process {keeper} " in refused["reason"]["why"]
    end(step)
    assert alice.opens() == EPERM
    assert [device["lessee"] for device in (cluster.state_of(0),)] == [harness.uid("bob")]
    assert later.look(0)["freed"] == [], "a look doesn't free what is held"
    # It is Bob who gets no GPU meanwhile.
    step = later.step(later.mint(later.token(bob)))
    assert later.hear()["reason"]["code"] in ("blocked", "lessee-blocks")
    end(step)
    assert bob.ask("end-child", keeper) == "ended"
    assert later.look(0)["blocked"] == []
    step, told = later.lend(alice)
    end(step)
    assert later.hear()["clean"]
    step, _ = later.lend(bob)
    end(step)


def test_a_holder_that_holds_itself_still(cluster: Cluster, alice: Kernel, pilot: Pilot) -> None:
    """On v1 Slurm gives the user their step's folder of the freezer, and SIGKILL does nothing to a frozen process."""
    step, told = pilot.lend(alice)
    frozen = alice.ask("freeze-itself", told["devices"][0]["path"])
    if isinstance(frozen, dict):
        pytest.skip(f"v2 gives nobody a freezer: {frozen['error']}")
    end(step)
    taken = pilot.hear()
    assert (taken["clean"], taken["ended_pids"]) == (True, [frozen])


def test_a_program_with_a_long_name_is_told_in_short(
    cluster: Cluster, alice: Kernel, bob: Kernel, pilot: Pilot
) -> None:
    """Of a line that is too long the agent hears nothing."""
    step, told = pilot.lend(alice)
    path = told["devices"][0]["path"]
    name = f"hop-long-{pilot.cluster.node}-{pilot.job}"
    takers = bob.ask("receive-by-a-long-name", name, 8)
    for number in range(8):
        assert alice.ask("send", path, f"{name}-{number}") == "sent"
    end(step)
    line = pilot.heard.next(30)
    assert str(takers[0]) in line
    assert len(line) < 16_384
    cluster.cancel(bob.identity["job"])
    assert pilot.take_back(told["lease"])["clean"]
