"""Kernels that move to another node: asked for, or because their node is drained. Each test says what the user sees."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from harness import (
    OPENABLE,
    UNTIL_GO,
    WHERE,
    Cluster,
    Notebook,
    lost_node,
    no_process_is_left,
    node_of,
    notebook,
    nothing_is_left,
    stream,
    until,
)


def opened(cluster: Cluster, name: str, user: str = "alice") -> Any:
    return notebook(cluster, user, env={"JPY_SESSION_NAME": f"{cluster.base}/home/{user}/{name}"})


@pytest.fixture
def alice(cluster: Cluster) -> Iterator[Notebook]:
    (cluster.base / "home/alice/go").unlink(missing_ok=True)
    with opened(cluster, "a.ipynb") as book:
        book.execute("x = 41")
        until("the kernel has its replicas", lambda: row(cluster)["replicas"] == cluster.replicas, 60)
        yield book
    nothing_is_left(cluster)


@pytest.fixture
def undrained(cluster: Cluster) -> Iterator[Cluster]:
    """Every node is as it was."""
    yield cluster
    for node in nodes(cluster):
        cluster.run("root", "scontrol", "update", f"nodename={node}", "state=resume", check=False)
    cluster.wait_for_pilots()


def stdout(got: dict[str, Any]) -> str:
    return stream(got, "stdout")


def stderr(got: dict[str, Any]) -> str:
    return stream(got, "stderr")


def nodes(cluster: Cluster) -> list[str]:
    return cluster.env["HOP_DEV_NODES"].split(",")


def hop(cluster: Cluster, *argv: str, user: str = "alice") -> tuple[int, str]:
    """Its exit status and what it complained of."""
    process = cluster.popen(user, ["hop", *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    _, err = process.communicate(timeout=150)
    return process.returncode, err


def row(cluster: Cluster, name: str = "a.ipynb") -> dict[str, Any]:
    rows = cluster.hop("kernels", user="alice")["rows"]
    # One that another test closed is known for a while.
    found: dict[str, Any] = next(r for r in rows if r["name"] == name and r["state"] not in ("STARTING", "LOST"))
    return found


def prepared(cluster: Cluster) -> None:
    """A replica waits in the new seat with a kernel's process of its own."""
    until("a replica waits", lambda: cluster.pids(r"^\S+/hop-replica run .*--standby", "alice"), 40)
    until("its kernel runs", lambda: len(cluster.pids(r"ipykernel", "alice")) >= 2, 40)


def test_an_idle_kernel_moves_and_its_user_notices_nothing(cluster: Cluster, alice: Notebook) -> None:
    before = node_of(alice)
    to = next(n for n in nodes(cluster) if n != before)
    assert hop(cluster, "migrate", "a.ipynb", "--to", to) == (0, "")
    got = alice.execute(WHERE)
    assert (got["status"], stdout(got), stderr(got)) == ("ok", f"{to} 41\n", ""), got
    assert row(cluster)["node"] == to
    until("one replica is left", lambda: len(cluster.pids(r"^\S+/hop-replica run", "alice")) == 1)
    # And on, to a node that the scheduler chooses.
    assert hop(cluster, "migrate", "a.ipynb") == (0, "")
    assert node_of(alice) != to
    assert stdout(alice.execute("%%gpu 1\nprint(x)")) == "41\n"


def test_a_running_cell_ends_first_and_the_next_one_runs_in_the_new_seat(cluster: Cluster, alice: Notebook) -> None:
    before = node_of(alice)
    cell = alice.submit(UNTIL_GO)["cell"]
    assert hop(cluster, "migrate", "a.ipynb", "--no-wait") == (0, "")
    if cluster.replicas == 1:
        prepared(cluster)
    assert row(cluster)["state"] == "MOVING"
    behind = alice.submit(WHERE)["cell"]  # Not in ipykernel yet: before a move cells go there one by one.
    assert not alice.wait(cell, 1)["done"]
    (cluster.base / "home/alice/go").touch(mode=0o666)
    got = alice.wait(cell)
    assert (got["status"], stdout(got)) == ("ok", "through 41\n"), got
    got = alice.wait(behind)
    assert got["status"] == "ok", got
    # Where the new replica is not ready yet, this cell still runs in the old seat.
    assert (stdout(got).split()[1], stderr(got)) == ("41", "")
    until("the next cell runs in the new seat", lambda: node_of(alice) != before, 40)


def test_a_drained_node_is_left_by_every_kernel(undrained: Cluster, alice: Notebook) -> None:
    cluster = undrained
    with opened(cluster, "b.ipynb") as second, opened(cluster, "c.ipynb") as third:
        books = [alice, second, third]
        for book in books[1:]:
            book.execute("x = 41")
        node = node_of(alice)
        for name in ("b.ipynb", "c.ipynb"):
            if row(cluster, name)["node"] != node:
                said = hop(cluster, "migrate", name, "--to", node)
                # Policy may have moved it there in this moment.
                assert said == (0, "") or "already" in said[1], said
        time.sleep(1)
        cluster.run("root", "scontrol", "update", f"nodename={node}", "state=drain", "reason=a fan is loud")
        names = ("a.ipynb", "b.ipynb", "c.ipynb")
        until("all have left", lambda: all(row(cluster, name)["node"] != node for name in names), 60)
        for book in books:
            got = book.execute(WHERE, timeout=90)
            assert (got["status"], stderr(got)) == ("ok", ""), got
            assert stdout(got).split()[0] != node
            assert stdout(got).split()[1] == "41"


def test_a_seat_is_left_before_its_time_limit_with_the_running_cell_at_its_end(cluster: Cluster) -> None:
    go = cluster.base / "home/bob/go"
    go.unlink(missing_ok=True)

    def is_moving() -> bool:
        return any(r["state"] == "MOVING" for r in cluster.hop("kernels", user="bob")["rows"])

    def seat_of(book: Notebook) -> str:
        got = book.execute("print(os.environ['SLURM_JOB_ID'], x)", timeout=90)
        assert (got["status"], stderr(got)) == ("ok", ""), got
        seat, x = stdout(got).split()
        assert x == "41"
        return seat

    # Another user than in the other tests: their seats are older than the limit.
    with opened(cluster, "a.ipynb", "bob") as book:
        book.execute("import os; x = 41")
        seat = seat_of(book)
        cell = book.submit(UNTIL_GO)["cell"]
        cluster.run("root", "scontrol", "update", f"jobid={seat}", "timelimit=1")
        until("the kernel is asked to leave its seat", is_moving, 90)
        assert not book.wait(cell, 1)["done"]
        go.touch(mode=0o666)
        got = book.wait(cell)
        assert (got["status"], stdout(got), stderr(got)) == ("ok", "through 41\n", ""), got
        # Cells go on in the old seat until a replica waits in the new one.
        until("the kernel has left its seat", lambda: seat_of(book) != seat, 60)
    no_process_is_left(cluster, "bob")


def test_the_target_dies_and_the_kernel_stays_where_its_state_is(cluster: Cluster, alice: Notebook) -> None:
    cluster.wait_for_pilots()  # a node that was drained before has a new one
    before = node_of(alice)
    to = next(n for n in nodes(cluster) if n != before)
    cell = alice.submit(UNTIL_GO)["cell"]
    # Slurm doesn't date a node's return: it is known within ten seconds and one look, after its pilot.
    goes = lambda: hop(cluster, "migrate", "a.ipynb", "--to", to, "--no-wait") == (0, "")  # noqa: E731
    until("hopd knows that the node is back", goes, 40)
    if cluster.replicas == 1:
        prepared(cluster)
    with lost_node(cluster, to):
        until("hopd hears why", lambda: "failed" in row(cluster)["reason"], 60)
        (cluster.base / "home/alice/go").touch(mode=0o666)
        got = alice.wait(cell)
        assert (got["status"], stdout(got)) == ("ok", "through 41\n"), got
        assert node_of(alice) == before


def test_a_kernel_that_holds_a_socket_moves_by_its_users_word_alone(undrained: Cluster, alice: Notebook) -> None:
    cluster = undrained
    before = node_of(alice)
    alice.execute("import socket\nsock = socket.socket()")
    until("hopd knows what it holds", lambda: "sock" in row(cluster)["reason"])
    status, said = hop(cluster, "migrate", "a.ipynb")
    assert status == 1
    assert "sock" in said
    assert "--force" in said
    cluster.run("root", "scontrol", "update", f"nodename={before}", "state=drain", "reason=a fan is loud")
    time.sleep(3)
    assert node_of(alice) == before
    assert hop(cluster, "migrate", "a.ipynb", "--force") == (0, "")
    got = alice.execute(WHERE)
    assert "sock" in stderr(got)
    assert "could not be brought back" in stderr(got)
    assert stdout(got).split()[0] != before


def test_a_cell_that_waits_where_no_gpu_comes_free_runs_where_one_is(
    roaming: Cluster, undrained: Cluster, alice: Notebook
) -> None:
    cluster = roaming
    alice.execute(OPENABLE)
    before = node_of(alice)
    go = cluster.base / "home/bob/go"
    go.unlink(missing_ok=True)
    with opened(cluster, "b.ipynb", "bob") as other:
        other.execute("import os; x = 41")
        if node_of(other) != before:
            assert hop(cluster, "migrate", "b.ipynb", "--to", before, user="bob") == (0, "")
        held = other.submit(f"%%gpu 2\n{UNTIL_GO}")["cell"]
        until("it holds the node's GPUs", lambda: len(cluster.leases_live()) == 1)
        got = alice.execute(f"%%gpu 1\n{WHERE}; print(len(openable()))", timeout=150)
        assert got["status"] == "ok", got
        node, x, count = stdout(got).split()
        assert (node != before, x, count) == (True, "41", "1")
        assert not other.wait(held, 0.1)["done"]
        go.touch(mode=0o666)
        assert other.wait(held)["status"] == "ok"
