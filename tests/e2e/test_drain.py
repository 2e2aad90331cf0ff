"""A node that Slurm drains: what the daemon lends there, says of it, and does when it is back."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness import OPENABLE, Cluster, notebook, until

REASON = "a fan is loud"


@pytest.fixture
def undrained(cluster: Cluster) -> Iterator[Cluster]:
    """Every node is as it was."""
    yield cluster
    for node in cluster.env["HOP_DEV_NODES"].split(","):
        open_again(cluster, node)
    cluster.wait_for_pilots()


def row_of(cluster: Cluster, node: str) -> dict[str, Any] | None:
    rows: list[dict[str, Any]] = cluster.hop("info")["rows"]
    return next((r for r in rows if r["node"] == node), None)


def drain(cluster: Cluster, node: str) -> str:
    cluster.run("root", "scontrol", "update", f"nodename={node}", "state=drain", f"reason={REASON}")
    return REASON


def open_again(cluster: Cluster, node: str) -> None:
    cluster.run("root", "scontrol", "delete", "reservationname=now", check=False)
    cluster.run("root", "scontrol", "update", f"nodename={node}", "state=resume", check=False)


def begin_maintenance(cluster: Cluster, node: str) -> str:
    what = ["flags=maint,ignore_jobs", f"nodes={node}", "user=root", "starttime=now", "duration=600"]
    cluster.run("root", "scontrol", "create", "reservation", "reservationname=now", *what)
    return "MAINTENANCE"


@pytest.mark.parametrize("close", [drain, pytest.param(begin_maintenance, marks=pytest.mark.thorough)])
def test_a_drained_node_gets_no_new_lease_and_says_why(
    undrained: Cluster, close: Callable[[Cluster, str], str]
) -> None:
    cluster = undrained
    with notebook(cluster, "alice") as book:
        book.execute(OPENABLE)
        # Its lease runs on while the node is drained.
        cell = book.submit(
            "%%gpu 1\nimport os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.05)\nos.remove('go')"
        )
        (lease,) = until(
            "the cell runs", lambda: [r for r in cluster.hop("queue")["rows"] if r["state"] == "RUNNING"]
        )
        node = lease["node"]
        why = close(cluster, node)

        def drains() -> bool:
            row = row_of(cluster, node)
            return row is not None and row["state"] == "DRAINING" and why in row["reason"]

        until(f"hop info says that {node} is drained, and why", drains)
        (row,) = [r for r in cluster.hop("kernels")["rows"] if r["kernel_id"] == lease["kernel_id"]]
        assert (row["node"], row["user"]) == (node, "alice")
        (cluster.base / "home/alice/go").touch(mode=0o666)
        assert book.wait(cell["cell"])["status"] == "ok"

        def over() -> bool:
            row = row_of(cluster, node)
            return row is not None and row["state"] == "DRAINED" and why in row["reason"]

        until("its pilot is over, and hop info still says why nothing is lent there", over, 60)

        # A kernel that can't leave waits until the node is back.
        waits = book.submit("%%gpu 1\nprint(len(openable()))")["cell"]
        open_again(cluster, node)
        got = book.wait(waits, 90)
        assert (got["status"], got["text"]) == ("ok", "1\n"), got


@pytest.fixture
def planned_maintenance(cluster: Cluster) -> Iterator[Cluster]:
    """Every node is reserved from one hour on."""
    what = ["flags=maint,ignore_jobs", "nodes=ALL", "user=root", "starttime=now+1hour", "duration=600"]
    cluster.run("root", "scontrol", "create", "reservation", "reservationname=maint", *what)
    yield cluster
    cluster.run("root", "scontrol", "delete", "reservationname=maint")


def limits(cluster: Cluster, name: str) -> dict[str, str]:
    """The time limits of the running jobs of this name."""
    rows = cluster.run("root", "squeue", "-h", "-o", "%T %A %l %j").splitlines()
    running = [row.split() for row in rows if row.startswith("RUNNING ") and name in row]
    return {job: limit for _, job, limit, _ in running}


def test_before_a_planned_maintenance_seats_and_pilots_end_in_time(planned_maintenance: Cluster) -> None:
    cluster = planned_maintenance
    before, seats = limits(cluster, "hop-pool"), limits(cluster, "kernels")
    assert before
    for job in before:
        cluster.run("root", "scancel", job)

    def new(name: str, known: dict[str, str]) -> list[str]:
        return [limit for job, limit in limits(cluster, name).items() if job not in known]

    with notebook(cluster, "carol") as book:
        book.execute(OPENABLE)
        cell = book.submit("%%gpu 1\nprint(len(openable()))")["cell"]
        got = book.wait(cell, 60)
        assert (got["status"], got["text"]) == ("ok", "1\n"), got
        pilots = until("a pilot is there again", lambda: new("hop-pool", before))
        for limit in pilots + new("kernels", seats):
            minutes, _ = limit.split(":")
            assert 50 < int(minutes) < 60, limit


def test_kernels_are_listed_and_steered_by_their_users_alone(cluster: Cluster) -> None:
    with notebook(cluster, "alice"):

        def grown() -> Any:
            rows = cluster.hop("kernels", user="alice")["rows"]
            # A kernel that another test killed is known for a while.
            (row,) = [r for r in rows if r["state"] not in ("STARTING", "LOST")]
            return row if row["replicas"] == cluster.replicas else None

        row = until("the kernel has its replicas", grown, 60)
        assert (row["state"], row["user"]) == ("IDLE", "alice")
        assert row["node"] in cluster.env["HOP_DEV_NODES"].split(",")
        assert row["mem"] > 0
        assert kernel_ids(cluster, "bob").isdisjoint({row["kernel_id"]})
        kernel = row["kernel_id"]
        for user, argv, said in (
            ("alice", ["wake", kernel], "is awake"),
            ("alice", ["forget", kernel[:8]], "does not sleep"),
            ("alice", ["migrate", kernel, "--to", row["node"]], "can't be moved"),
            ("bob", ["hibernate", kernel], "no kernel"),
            ("bob", ["migrate", kernel], "no kernel"),
        ):
            process = cluster.popen(user, ["hop", *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            _, err = process.communicate(timeout=60)
            assert process.returncode == 1, err
            assert said in err, err


def kernel_ids(cluster: Cluster, user: str) -> set[str]:
    return {str(r["kernel_id"]) for r in cluster.hop("kernels", user=user)["rows"]}
