"""What Slurm's associations and QOS allow a user holds for leases too; what slurmdbd and the helper do doesn't matter."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from harness import Cluster, Notebook, notebook, until

USER = "carol"
#: A QOS of these tests.
QOS = "few"


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


def accounting(cluster: Cluster, *what: str) -> None:
    """`sacctmgr` does so without a question."""
    cluster.run("root", "sacctmgr", "-i", *what)


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


class Limit(NamedTuple):
    """Something that allows one GPU at a time, by Slurm's own commands."""

    #: On a QOS of its own; or on what `sacctmgr modify` names.
    of: str
    what: str
    #: Whether two users have it together.
    together: bool
    said: str


LIMITS = [
    Limit("partition", "MaxTRESPerUser", False, f"MaxTRESPerUser of QOS {QOS} of partition notebook"),
    Limit("partition", "GrpTRES", True, f"GrpTRES of QOS {QOS} of partition notebook"),
    Limit("people", "MaxTRESPerUser", False, f"MaxTRESPerUser of QOS {QOS}"),
    Limit("people", "GrpTRES", True, f"GrpTRES of QOS {QOS}"),
    Limit("account lab", "GrpTRES", True, "GrpTRES of account lab"),
]


@contextlib.contextmanager
def limited(cluster: Cluster, limit: Limit) -> Iterator[None]:
    with contextlib.ExitStack() as undo:
        if limit.of in ("partition", "people"):
            accounting(cluster, "add", "qos", QOS, "set", f"{limit.what}=gres/gpu=1")
            undo.callback(accounting, cluster, "delete", "qos", QOS)
        if limit.of == "partition":
            partition = ("scontrol", "update", "partitionname=notebook")
            undo.callback(cluster.run, "root", *partition, "qos=")
            cluster.run("root", *partition, f"qos={QOS}")
        elif limit.of == "people":
            people = ("modify", "user", "alice,bob", "set")
            undo.callback(accounting, cluster, *people, "qos=normal", "defaultqos=-1")
            accounting(cluster, *people, f"qos+={QOS}", f"defaultqos={QOS}")
        else:
            modify = ("modify", *limit.of.split(), "set")
            undo.callback(accounting, cluster, *modify, f"{limit.what}=gres/gpu=-1")
            accounting(cluster, *modify, f"{limit.what}=gres/gpu=1")
        refresh(cluster, "limits=1")
        yield
    refresh(cluster, "limits=0")


@pytest.fixture(scope="module")
def books(two_gpus: Cluster) -> Iterator[list[Notebook]]:
    """Two notebooks of alice's and one of bob's, where there are two GPUs."""
    with (
        notebook(two_gpus, "alice") as first,
        notebook(two_gpus, "alice") as second,
        notebook(two_gpus, "bob") as bob,
    ):
        yield [first, second, bob]


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param(limit, id=f"{limit.of}-{limit.what}", marks=pytest.mark.thorough if at % 2 else ())
        for at, limit in enumerate(LIMITS)
    ],
)
def test_a_limit_of_qos_or_account_holds_up_whom_it_binds_and_nobody_else(
    two_gpus: Cluster, books: list[Notebook], limit: Limit
) -> None:
    first, second, bob = books
    go = two_gpus.base / "home/alice/go"
    go.unlink(missing_ok=True)
    with limited(two_gpus, limit):
        running = first.submit(UNTIL_GO)["cell"]
        until("alice holds a GPU", lambda: rows(two_gpus, "alice", "RUNNING"), 30)
        if not limit.together:
            assert bob.execute("%%gpu 1\nprint('bob')", timeout=60)["text"] == "bob\n"
        (user, waiter) = ("bob", bob) if limit.together else ("alice", second)
        waiting = waiter.submit("%%gpu 1\nprint('waited')")["cell"]
        (row,) = until("it waits", lambda: rows(two_gpus, user, "PENDING"), 20)
        said = two_gpus.run(user, "hop", "explain", row["kernel_id"])
        assert f"limit {limit.said}: 1 of 1 GPUs are in use already" in said, said
        # The other GPU is free all the while.
        time.sleep(1)
        assert rows(two_gpus, user, "PENDING")
        go.touch(mode=0o666)
        assert first.wait(running, 30)["text"] == "through\n"
        assert waiter.wait(waiting, 60)["text"] == "waited\n"
        got = waiter.execute("%%gpu 2\nprint('never')")
        assert got["status"] == "error"
        assert f"limit {limit.said}" in str(got), got


#: Runs until a file is there.
UNTIL_GO = "%%gpu 1\nimport os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.05)\nprint('through')"


def rows(cluster: Cluster, user: str, state: str) -> list[dict[str, Any]]:
    found = cluster.hop("queue", "-a")["rows"]
    return [row for row in found if row["user"] == user and row["state"] == state]


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


#: A QOS whose jobs count as so much more in `sshare`.
DEAR = 100_000
FORGIVE = ("modify", "user", "where", "name=bob", "account=lab", "set", "RawUsage=0")


@pytest.fixture
def dear(two_gpus: Cluster) -> Iterator[Cluster]:
    accounting(two_gpus, "add", "qos", "dear", "set", f"UsageFactor={DEAR}")
    accounting(two_gpus, "modify", "user", "bob", "set", "qos+=dear")
    try:
        yield two_gpus
    finally:
        accounting(two_gpus, "modify", "user", "bob", "set", "qos=normal", "GrpTRESMins=gres/gpu=-1")
        accounting(two_gpus, *FORGIVE)
        accounting(two_gpus, "delete", "qos", "dear")
        reread(two_gpus)
        two_gpus.wait_for_pilots()


def used(cluster: Cluster, user: str) -> tuple[int, int]:
    """What Slurm says that the user's own jobs have used: billed seconds, and GPU-minutes."""
    out = cluster.run("root", "sshare", "-a", "-h", "-P", "-U", "-u", user, "-o", "RawUsage,GrpTRESRaw")
    billed, minutes = out.strip().split("|")
    return int(billed), int(dict(pair.split("=") for pair in minutes.split(","))["gres/gpu"])


def job_of_bobs_own(cluster: Cluster) -> None:
    """It gets a GPU when the pilot goes, and the next pilot waits behind it."""
    batch = ("sbatch", "--parsable", "--qos=dear", "--gres=gpu:1", "--mem=64", "-o", "/dev/null", "--wrap", "sleep 2")
    job = cluster.run("bob", *batch).strip()
    cluster.run("root", "scancel", *cluster.pilots())
    until("the job is over", lambda: not cluster.run("root", "squeue", "-h", "-j", job, check=False).strip(), 60)
    until("Slurm has counted it", lambda: used(cluster, "bob")[1] > DEAR / 60, 30)
    cluster.wait_for_pilots()


def gpu_hours(cluster: Cluster, user: str) -> float:
    """What the core says that the user has used; a cell of theirs waits."""
    (row,) = rows(cluster, user, "PENDING")
    said = cluster.run(user, "hop", "explain", row["kernel_id"])
    found = re.search(rf"{user} has used (\S+) GPU-hours", said)
    assert found, said
    return float(found[1])


def reread(cluster: Cluster) -> None:
    cluster.kill(r"opt/bin/hopd", sig=signal.SIGHUP)


def test_jobs_of_their_own_count_for_a_user_as_long_as_slurm_says_so(dear: Cluster, books: list[Notebook]) -> None:
    """`hopd` has read `sshare` before: each reading counts. What it leases is the service account's in `sshare`."""
    cluster, (alice, _, bob) = dear, books
    go = cluster.base / "home/alice/go"
    go.unlink(missing_ok=True)
    alices, pilots = used(cluster, "alice")[1], used(cluster, "gresshopper")[0]
    job_of_bobs_own(cluster)
    with notebook(cluster, "carol") as carol:
        when = "%%gpu 2\nimport time; print(time.time())"
        held = alice.submit(UNTIL_GO.replace("%%gpu 1", "%%gpu 2"))["cell"]
        until("alice holds both GPUs", lambda: rows(cluster, "alice", "RUNNING"), 60)
        first = bob.submit(when)["cell"]
        until("bob waits", lambda: rows(cluster, "bob", "PENDING"), 20)
        second = carol.submit(when)["cell"]
        until("carol waits", lambda: rows(cluster, "carol", "PENDING"), 20)
        reread(cluster)
        until("hopd knows of bob's job", lambda: gpu_hours(cluster, "bob") > DEAR / 3600, 20)
        go.touch(mode=0o666)
        ran = {who.user: float(who.wait(cell, 60)["text"]) for who, cell in ((bob, first), (carol, second))}
        assert ran["carol"] < ran["bob"], "bob asked first, and has used more"
        assert alice.wait(held, 10)["text"] == "through\n"
        assert used(cluster, "alice")[1] == alices
        assert used(cluster, "gresshopper")[0] > pilots

    # His minutes are used up, until an operator forgives him his job.
    accounting(cluster, "modify", "user", "bob", "set", "GrpTRESMins=gres/gpu=1000")
    refresh(cluster, "limits=1")
    got = bob.execute("%%gpu 1\nprint('never')")
    assert got["status"] == "error"
    assert "GrpTRESMins of bob in account lab" in str(got), got
    accounting(cluster, *FORGIVE)
    reread(cluster)
    until("he is served", lambda: bob.execute("%%gpu 1\n1", timeout=60)["status"] == "ok", 30, every=0.5)
