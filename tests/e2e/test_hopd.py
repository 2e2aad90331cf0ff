"""hopd killed, restarted, cut off from Slurm: what it wrote down, and what became of leases."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import BASE, INDEX, deployed
from harness import Cluster, Failed, Notebook, node_of, notebook, stream, until, without_slurmctld

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


@pytest.mark.parametrize("how", [pytest.param("stopped", marks=pytest.mark.thorough), "frozen"])
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


def of_leases(cluster: Cluster) -> dict[int, dict[str, Any]]:
    """The rows of all leases. An id that two leases have would be one row here, and two there."""
    rows = cluster.hop("acct", "-a", "-X", "-S", "now-1hour")["rows"]
    found = {int(row["lease_id"]): dict(row) for row in rows}
    assert len(found) == len(rows)
    return found


def test_a_damaged_journal_is_set_aside_as_the_page_says(small: Cluster, alice: Notebook) -> None:
    """`docs/operations.md`, "A way back from a damaged journal": kernels live, the accounting stays, ids are new."""
    state = small.base / "state/hopd"
    with notebook(small, "alice") as second:
        second.execute("import os; x = 41; y = 42")
        alice.execute("import os")
        if node_of(second) != node_of(alice):
            kernel = stream(second.execute("print(os.environ['GRESSHOPPER_KERNEL'])"), "stdout").strip()
            small.run("alice", "hop", "migrate", kernel, "--to", node_of(alice))
        assert alice.execute(CELL, timeout=90)["text"] == "2\n"
        running = alice.submit("%%gpu 2\nimport time\ntime.sleep(300)")["cell"]
        until("its lease lives", lambda: "RUNNING" in small.run("root", "hop", "queue", "-a"), 30)
        waiting = second.submit("%%gpu 1\nprint(y)")["cell"]
        until("the other cell waits", lambda: "PENDING" in small.run("root", "hop", "queue", "-a"), 20)
        (lease,) = {int(lease) for lease in small.leases_live()}
        before = of_leases(small)
        assert lease in before

        # Meanwhile no other hopd starts on this directory.
        refused = hopd_says(small)
        assert f"another hopd runs on {state}" in refused, refused

        small.kill(r"opt/bin/hopd")
        until("hopd is gone", lambda: not small.pids(r"opt/bin/hopd"))
        journal = state / "journal.redb"
        whole = journal.read_bytes()
        journal.write_bytes(whole[:4096] + bytes(len(whole) - 4096))
        refused = hopd_says(small)
        assert "`hopd --recover` sets a journal aside" in refused, refused
        assert f"{journal} is damaged" in refused, refused
        assert journal.exists(), "by itself hopd throws nothing away"

        # The page: "`hopd --recover`, as the service account, then start it".
        said = hopd_says(small, "--recover")
        aside = max(state.glob("journal.redb.aside-*"))
        assert f"the journal is now {aside}" in said, said
        small.deploy("hopd")
        small.wait_for_pilots()

        got = alice.wait(running, 60)
        assert got["status"] == "error", got
        assert alice.execute("print(x)")["text"] == "41\n", "the kernel lives on"
        assert second.wait(waiting, 60)["text"] == "42\n", "what waited is asked for again"
        assert alice.execute(CELL, timeout=90)["text"] == "2\n"
        until("no lease is left", lambda: not small.leases_live() and small.quiet(), 40)
    until("each lease has its end", lambda: all(row["end"] for row in of_leases(small).values()), 20)
    after = of_leases(small)
    assert {n: row for n, row in after.items() if n in before and n != lease} == {
        n: row for n, row in before.items() if n != lease
    }, "the accounting is what it was"
    assert after[lease]["start"] == before[lease]["start"]
    new = set(after) - set(before)
    assert len(new) == 2
    assert min(new) > max(before), "no id is used again"
    steps = Counter(row["slurm_job_id"] for row in after.values() if row["start"])
    assert steps.most_common(1)[0][1] == 1, "nor a step named twice"


def hopd_says(cluster: Cluster, *argv: str) -> str:
    """What `hopd` says by the service account's hand; it ends by itself."""
    process = cluster.popen("gresshopper", ["hopd", *argv], stderr=subprocess.PIPE)
    _, said = process.communicate(timeout=30)
    assert (process.returncode == 0) == (argv == ("--recover",)), said
    return str(said)


def test_another_directory_in_the_place_of_its_own_ends_hopd_and_no_lease(small: Cluster, alice: Notebook) -> None:
    state, aside = small.base / "state/hopd", small.base / "state/hopd.aside"
    cell = alice.submit("%%gpu 1\nimport time\ntime.sleep(12)\nprint('through', x)")["cell"]
    lease = until("the cell has its lease", small.leases_live, 30)
    until("the lease has begun", lambda: small.steps("alice"), 30)
    state.rename(aside)
    try:
        until("hopd has ended", lambda: not small.pids(r"opt/bin/hopd"), 10)
    finally:
        aside.rename(state)
    told = (small.base / "log/hopd.log").read_text().splitlines()[-1]
    assert f"{state} is no longer the directory that this hopd was started on; this one ends" in told, told
    small.deploy("hopd")
    until("hopd answers", lambda: answers(small), 20)
    assert small.leases_live() == lease
    got = alice.wait(cell)
    assert (got["status"], got["text"]) == ("ok", "through 41\n"), got
