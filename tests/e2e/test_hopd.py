"""hopd killed, restarted, cut off from Slurm: what it wrote down, and what became of leases."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from conftest import BASE, INDEX, deployed
from harness import Cluster, Failed, Notebook, notebook, until, without_slurmctld

CELL = "%%gpu 1\nprint(1 + 1)"


@pytest.fixture(scope="module")
def small() -> Iterator[Cluster]:
    """Two nodes with two GPUs each; leases don't linger."""
    variant = os.environ.get("HOP_E2E_VARIANT", "auto")
    made = Cluster(f"{BASE}-hopd", INDEX + 30, variant, "--nodes", "2", PILOTS="2", LINGER_MS="0")
    yield from deployed(made)


@pytest.fixture
def alice(small: Cluster) -> Iterator[Notebook]:
    with notebook(small, "alice") as book:
        book.execute("x = 41")
        yield book


def restart(cluster: Cluster) -> None:
    cluster.kill(r"opt/bin/hopd")
    until("hopd is gone", lambda: not cluster.pids(r"opt/bin/hopd"))
    cluster.deploy("hopd")


def answers(cluster: Cluster) -> bool:
    """A process that has just been started doesn't listen yet."""
    try:
        cluster.hop("info")
    except Failed:
        return False
    return True


def lease_steps(cluster: Cluster) -> list[str]:
    """All lease steps that Slurm's accounting has seen, `job.step`."""
    out = cluster.run("root", "sacct", "-n", "-P", "-u", "gresshopper", "-S", "now-1hour", "-o", "JobID,JobName")
    return [line.split("|")[0] for line in out.splitlines() if re.match(r"\d+\.\d+\|(?!look$)", line)]


def test_each_lease_has_one_row_with_an_end_however_often_hopd_is_killed(small: Cluster, alice: Notebook) -> None:
    random.seed(1)
    for _ in range(12):
        got = alice.execute(CELL, timeout=90)
        assert (got["status"], got["text"]) == ("ok", "2\n"), got
        # The lease ends at once, its end is written down some milliseconds later.
        time.sleep(random.uniform(0, 0.12))
        restart(small)
    until("hopd answers", lambda: answers(small), 20)
    until("no lease step is left", small.quiet, 40)
    until("no lease is left in the books", lambda: not small.leases_live(), 20)

    def rows() -> list[dict[str, object]]:
        return list(small.hop("acct", "-a", "-X", "-S", "now-1hour")["rows"])

    until("each lease has ended", lambda: all(row["end"] for row in rows()), 20)
    known = Counter(str(row["slurm_job_id"]) for row in rows() if row["start"])
    steps = lease_steps(small)
    assert len(steps) >= 12
    assert {step: known[step] for step in steps} == dict.fromkeys(steps, 1), rows()


@pytest.mark.parametrize("how", ["stopped", "frozen"])
def test_a_restart_while_slurmctld_is_away_ends_no_lease(small: Cluster, alice: Notebook, how: str) -> None:
    """The cell runs through, on the lease that it had, though hopd comes back to a Slurm that says nothing."""
    cell = alice.submit("%%gpu 1\nimport time\ntime.sleep(28)\nprint('through', x)")["cell"]
    lease = until("the cell has its lease", small.leases_live, 30)
    time.sleep(1)
    with without_slurmctld(small, how):
        # The second hopd finds nothing about the seat that the first has not seen confirmed.
        restart(small)
        time.sleep(22)
        assert small.leases_live() == lease
    got = alice.wait(cell)
    assert (got["status"], got["text"]) == ("ok", "through 41\n"), got


def test_the_pools_partition_says_whose_cells_it_takes(small: Cluster, alice: Notebook) -> None:
    """As for jobs: who may not use the partition gets no lease of it, and reads why."""
    account = small.run("root", "squeue", "-h", "-u", "alice", "-o", "%a").split()[0]

    def rule(text: str) -> None:
        small.run("root", "scontrol", "update", "partitionname=notebook", *text.split())
        small.kill(r"opt/bin/hopd", sig=signal.SIGHUP)

    def refused(word: str) -> bool:
        got = alice.execute(CELL, timeout=90)
        return got["status"] == "error" and word in json.dumps(got)

    groups = small.run("alice", "id", "-Gn").split()
    try:
        rule(f"DenyAccounts={account}")
        until("the account is denied", lambda: refused(f"account {account} may not use partition notebook"))
        # hopd remembers it where Slurm says nothing.
        with without_slurmctld(small, "stopped"):
            restart(small)
            assert refused(f"account {account} may not use partition notebook")
        rule("DenyAccounts= AllowGroups=daemon")
        until("the groups are denied", lambda: refused("is for the groups daemon"))
        rule(f"AllowGroups={groups[0]}")
        until("the group is allowed", lambda: alice.execute(CELL, timeout=90)["status"] == "ok")
    finally:
        rule("DenyAccounts= AllowGroups=ALL")


def test_a_pilot_that_waits_in_slurms_queue_is_waited_for(small: Cluster) -> None:
    """A job that asked first has the node's GPUs: Slurm names no user of the pilot that waits behind it (22.05)."""
    small.wait_for_pilots()
    pilot = small.pilots()[0]
    node = small.run("root", "squeue", "-h", "-j", pilot, "-o", "%N").strip()
    batch = ("sbatch", "-w", node, "--gres=gpu:2", "--mem=64", "-o", "/dev/null", "--wrap", "sleep 300")
    theirs = small.run("bob", *batch, "--parsable").strip()
    small.run("root", "scancel", pilot)
    until("the job has the GPUs", lambda: job_state(small, theirs) == "RUNNING", 60, every=0.3)
    until("another pilot waits", lambda: len(waiting_pilots(small)) == 1, 30, every=0.3)
    (waiting,) = waiting_pilots(small)
    since = time.monotonic()
    # After a failed pilot, hopd waits for ten seconds.
    while time.monotonic() - since < 14:
        assert waiting_pilots(small) == [waiting], "one pilot is enough"
        time.sleep(0.3)
    small.run("root", "scancel", theirs)
    small.wait_for_pilots()
    assert waiting in small.pilots(), "the pilot that waited has come up"


def waiting_pilots(cluster: Cluster) -> list[str]:
    return cluster.run("root", "squeue", "-h", "-t", "PD", "-u", "gresshopper", "-o", "%i").split()


def job_state(cluster: Cluster, job: str) -> str:
    return cluster.run("root", "squeue", "-h", "-j", job, "-o", "%T", check=False).strip()
