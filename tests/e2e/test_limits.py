"""What Slurm's associations and QOS allow a user holds for leases too; what slurmdbd and the helper do doesn't matter."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import pytest
from harness import Cluster, notebook, until

USER = "carol"


@pytest.fixture
def one_gpu(cluster: Cluster) -> Iterator[Cluster]:
    """Carol's association allows one GPU at a time."""
    sacctmgr(cluster, "GrpTRES=gres/gpu=1")
    refresh(cluster, "limits=1")
    try:
        yield cluster
    finally:
        sacctmgr(cluster, "GrpTRES=gres/gpu=-1")
        refresh(cluster, "limits=0")


def sacctmgr(cluster: Cluster, what: str) -> None:
    cluster.run("root", "sacctmgr", "-i", "modify", "user", USER, "set", what)


def log(cluster: Cluster) -> str:
    return (cluster.base / "log/hopd.log").read_text(errors="replace")


def refresh(cluster: Cluster, said: str) -> None:
    """hopd asks Slurm anew, and says so if something has changed."""
    before = len(log(cluster))
    pid = int((cluster.base / "run/hopd.pid").read_text())
    os.kill(pid, signal.SIGHUP)
    until(f"hopd says {said}", lambda: said in log(cluster)[before:], 20)


def held(cluster: Cluster) -> int:
    rows = cluster.hop("queue", "-a")["rows"]
    return sum(len(r["gpus"]) for r in rows if r["lease_id"] is not None and r["user"] == USER)


def test_a_user_never_holds_more_gpus_than_their_association_allows(one_gpu: Cluster) -> None:
    with notebook(one_gpu, USER) as a, notebook(one_gpu, USER) as b:
        most = 0
        running = a.submit("%%gpu 1\nimport time; time.sleep(4); print('a')")["cell"]
        until("carol holds a GPU", lambda: held(one_gpu) == 1, 20)
        waiting = b.submit("%%gpu 1\nprint('b')")["cell"]
        kernel = until("her other cell waits", lambda: waiting_kernel(one_gpu), 10)
        said = one_gpu.run(USER, "hop", "explain", kernel)
        assert f"limit GrpTRES of {USER} in account lab: 1 of 1 GPUs are in use already" in said
        end = time.monotonic() + 30
        while time.monotonic() < end and held(one_gpu):
            most = max(most, held(one_gpu))
        assert a.wait(running, 30)["text"].strip() == "a"
        assert b.wait(waiting, 30)["text"].strip() == "b"
        assert most == 1
        got = a.execute("%%gpu 2\nprint('never')")
        assert got["status"] == "error"
        assert "limit GrpTRES" in str(got), got


def waiting_kernel(cluster: Cluster) -> str | None:
    rows = cluster.hop("queue", "-a")["rows"]
    found = [str(r["kernel_id"]) for r in rows if r["user"] == USER and r["state"] == "PENDING"]
    return found[0] if found else None


def test_limits_hold_while_slurmdbd_is_down_and_hopd_starts_anew(one_gpu: Cluster) -> None:
    (dbd,) = one_gpu.pids(r"^slurmdbd|/slurmdbd")
    os.kill(dbd, signal.SIGSTOP)
    try:
        one_gpu.deploy("down")
        one_gpu.deploy("hopd")
        one_gpu.wait_for_pilots()
        with notebook(one_gpu, USER) as book:
            got = book.execute("%%gpu 2\nprint('never')")
            assert got["status"] == "error"
            assert "limit GrpTRES" in str(got), got
            assert book.execute("%%gpu 1\nprint('one')")["text"].strip() == "one"
    finally:
        os.kill(dbd, signal.SIGCONT)


def test_the_libslurm_helper_is_used_and_may_be_killed(cluster: Cluster) -> None:
    helper = until("the helper runs", lambda: cluster.pids("bin/hop-slurm-link ?$", "gresshopper"), 20)
    for _ in range(3):
        for pid in cluster.pids("bin/hop-slurm-link ?$", "gresshopper"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with notebook(cluster) as book:
            assert book.execute("%%gpu 1\nprint('fine')")["text"].strip() == "fine"
    new = until("another helper runs", lambda: cluster.pids("bin/hop-slurm-link ?$", "gresshopper"), 90)
    assert not set(new) & set(helper)
