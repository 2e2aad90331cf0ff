"""What is not proven is refused: nothing is handed over, and the agent reads why."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import harness
import pytest
from harness import Cluster, Kernel, Pilot, end

EPERM = ["EPERM", "EPERM"]


@pytest.fixture(scope="module")
def cluster(up: Cluster) -> Iterator[Cluster]:
    """One seat and one pilot for all of them: what is refused leaves nothing, and each test looks that it did."""
    up.plugstack(up.plugin_line())
    with harness.tidied(up):
        yield up


@pytest.fixture(scope="module")
def alice(cluster: Cluster) -> Kernel:
    return harness.kernel(cluster, "alice", cluster.submit("alice", "--mem=256"))


@pytest.fixture(scope="module")
def bob(cluster: Cluster) -> Kernel:
    return harness.kernel(cluster, "bob", cluster.submit("bob", "--mem=256"))


@pytest.fixture(scope="module")
def pilot(cluster: Cluster) -> Pilot:
    return harness.pilot(cluster)


def refused(pilot: Pilot, step: Any) -> Any:
    told = pilot.hear()
    assert told["kind"] == "refused", told
    end(step)
    assert pilot.heard.nothing()
    assert pilot.cluster.records("leases") == {}
    return told


def refused_token(pilot: Pilot, token: Any, code: str, *flags: str) -> None:
    told = refused(pilot, pilot.step(pilot.mint(token), *flags))
    assert told["reason"]["code"] == code, told
    assert told["lease"] == token["lease"]


def test_records_that_cannot_be_used_are_told(alice: Kernel, pilot: Pilot) -> None:
    """As on a full disk: the plugin finds nothing to work with, and the agent hears of it."""
    folder = pilot.cluster.run_dir / pilot.cluster.node
    mode = folder.stat().st_mode
    token = pilot.token(alice)
    folder.chmod(0o777)
    try:
        told = refused(pilot, pilot.step(pilot.mint(token)))
    finally:
        folder.chmod(mode)
    assert (told["lease"], told["reason"]["code"]) == (token["lease"], "failed")
    assert told["reason"]["what"] == "the node's records", told
    assert alice.opens() == EPERM


def test_a_forged_executor(alice: Kernel, bob: Kernel, pilot: Pilot) -> None:
    who = alice.identity
    cases = [
        ({"uid": harness.uid("bob")}, "wrong-uid"),
        ({"uid": 0}, "wrong-uid"),
        ({"pid": bob.identity["pid"]}, "wrong-process"),
        ({"pid": bob.identity["pid"], "start_time": bob.identity["start_time"]}, "wrong-process"),
        ({"start_time": who["start_time"] + 1}, "wrong-process"),
        ({"seat_step": who["step"] + 1}, "unknown-kernel"),
        ({"seat_job": bob.identity["job"]}, "wrong-uid"),
        ({"seat_job": pilot.job}, "unknown-kernel"),
    ]
    for change, code in cases:
        refused_token(pilot, pilot.token(alice, kernel=change), code)
        assert alice.opens() == bob.opens() == EPERM


def test_a_step_that_is_no_kernels(cluster: Cluster, pilot: Pilot) -> None:
    plain = harness.kernel(cluster, "alice", cluster.submit("alice", "--mem=256"), variable=False)
    refused_token(pilot, pilot.token(plain), "unknown-kernel")
    assert plain.opens() == EPERM


def test_a_kernel_of_roots(cluster: Cluster, pilot: Pilot) -> None:
    root = harness.kernel(cluster, "root", cluster.submit("root", "--mem=256"))
    refused_token(pilot, pilot.token(root), "root-kernel")
    assert root.opens() == EPERM


def test_the_number_of_gpus(alice: Kernel, pilot: Pilot) -> None:
    refused_token(pilot, pilot.token(alice, gpus=2), "wrong-gpus")
    refused_token(pilot, pilot.token(alice, gpus=0), "wrong-gpus")
    none = ["--overlap", "--gres=none", "-n1", "--mem=0"]
    refused_token(pilot, pilot.token(alice), "wrong-gpus", *none)
    assert alice.opens() == EPERM


def test_forged_step_gpus_are_overwritten_by_slurm(cluster: Cluster, alice: Kernel, pilot: Pilot) -> None:
    credential = pilot.mint(pilot.token(alice))
    step = cluster.start(
        harness.SERVICE,
        "srun", "-Q", f"--jobid={pilot.job}", "--overlap", "--gres=none", "-n1", "--mem=0",
        "--export=GRESSHOPPER_LEASE,SLURM_STEP_GPUS,SLURMD_NODENAME,PATH", "cat",
        environment={"GRESSHOPPER_LEASE": credential, "SLURM_STEP_GPUS": "0", "SLURMD_NODENAME": cluster.nodes[1]},
    )  # fmt: skip
    assert refused(pilot, step)["reason"]["code"] == "wrong-gpus"
    assert alice.opens() == EPERM


def test_a_stale_epoch(alice: Kernel, pilot: Pilot) -> None:
    step, told = pilot.lend(alice)
    end(step)
    assert pilot.hear()["kind"] == "taken-back"
    for epoch in (told["epoch"], told["epoch"] - 1, 0):
        refused_token(pilot, pilot.token(alice, epoch=epoch), "stale-epoch")
    assert alice.opens() == EPERM


def test_a_replayed_credential(alice: Kernel, pilot: Pilot) -> None:
    credential = pilot.mint(pilot.token(alice))
    step = pilot.step(credential)
    assert pilot.hear()["kind"] == "handed-over"
    end(step)
    assert pilot.hear()["kind"] == "taken-back"
    told = refused(pilot, pilot.step(credential))
    assert (told["reason"]["code"], told["lease"]) == ("replayed", None)
    assert alice.opens() == EPERM


@pytest.mark.parametrize("user", ["alice", "root"])
def test_a_token_that_the_service_account_did_not_make(alice: Kernel, pilot: Pilot, user: str) -> None:
    told = refused(pilot, pilot.step(pilot.mint(pilot.token(alice), user=user)))
    assert told["reason"] == {"code": "minted-by-other", "uid": harness.uid(user)}
    assert alice.opens() == EPERM


def test_a_token_that_is_none(alice: Kernel, pilot: Pilot) -> None:
    assert refused(pilot, pilot.step("MUNGE:garbage:"))["reason"]["code"] == "credential"
    assert refused(pilot, pilot.step("x" * 20000))["reason"]["code"] == "token"
    assert refused(pilot, pilot.step(pilot.mint({"v": 1})))["reason"]["code"] == "token"
    newer = refused(pilot, pilot.step(pilot.mint(pilot.token(alice, v=2))))
    assert newer["reason"] == {"code": "version", "ours": 1, "theirs": 2}
    assert alice.opens() == EPERM


def test_a_token_that_is_too_old(alice: Kernel, pilot: Pilot) -> None:
    long_ago = int((time.time() - 400) * 1_000_000)
    refused_token(pilot, pilot.token(alice, issued_at=long_ago), "too-old")


def test_a_token_of_another_pilot(cluster: Cluster, alice: Kernel) -> None:
    elsewhere = cluster.nodes[1]
    first, second = (harness.pilot(cluster, gpus=1, node=elsewhere) for _ in range(2))
    told = None
    step = second.step(second.mint(first.token(alice)))
    told = first.hear()
    assert told["reason"] == {"code": "wrong-pilot", "token": first.job, "step": second.job}
    end(step)
    assert alice.opens() == EPERM
    cluster.cancel(first.job, second.job)


def test_a_users_own_gpu_job_with_a_stolen_token(cluster: Cluster, alice: Kernel, pilot: Pilot) -> None:
    """The service account's true token in a step of bob's: even its own GPU doesn't go to alice's kernel."""
    own = cluster.submit("bob", "--gres=gpu:1", "--mem=256", node=cluster.nodes[1])
    credential = pilot.mint(pilot.token(alice, pilot=own))
    step = pilot.step(credential, "-n1", "--gres=gpu:1", user="bob", job=own)
    assert refused(pilot, step)["reason"] == {"code": "job-of-other", "uid": harness.uid("bob")}
    assert alice.opens() == EPERM
    cluster.cancel(own)


def test_an_agent_that_is_not_the_service_accounts_is_told_nothing(
    cluster: Cluster, alice: Kernel, pilot: Pilot
) -> None:
    path = cluster.base / "home/bob/agent.sock"
    process = cluster.start("bob", "/usr/bin/python3", f"{cluster.base}/opt/lib/agent.py", str(path))
    ear = harness.Lines(process)
    assert ear.next() == "ready"
    step = pilot.step(pilot.mint(pilot.token(alice, notify=str(path))))
    assert ear.nothing(1)
    end(step)
    assert ear.nothing(1)
    assert alice.opens() == EPERM
    assert cluster.records("leases") == {}
