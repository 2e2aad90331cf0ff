"""Kernels that outlive their node and their seat. Each test says what the user sees; nothing is left over after it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from harness import (
    OPENABLE,
    Cluster,
    Notebook,
    lose_in_a_cell,
    lost_node,
    node_of,
    notebook,
    nothing_is_left,
    stream,
    until,
)

#: Each kernel is brought back from its state: no other replica has it.
pytestmark = pytest.mark.usefixtures("one_replica")

#: Seconds within which the effects of a cell that was answered are on disk.
SAVED = 1.0


@pytest.fixture
def alice(cluster: Cluster) -> Iterator[Notebook]:
    with notebook(cluster, "alice") as book:
        book.execute(OPENABLE)
        book.execute("x = 41")
        yield book
    nothing_is_left(cluster)


def stdout(got: dict[str, Any]) -> str:
    return stream(got, "stdout")


def saved_on(book: Notebook) -> str:
    """The kernel's node, after everything answered is saved."""
    node = node_of(book)
    time.sleep(SAVED)
    return node


def test_a_node_is_lost_between_cells_and_the_kernel_goes_on_elsewhere(cluster: Cluster, alice: Notebook) -> None:
    node = saved_on(alice)
    with lost_node(cluster, node):
        assert node_of(alice) != node
        assert alice.is_alive()["alive"]
        got = alice.execute("%%gpu 1\nprint(len(openable()), x)", timeout=90)
        assert (got["status"], stdout(got)) == ("ok", "1 41\n"), got


def row_of(cluster: Cluster, *states: str) -> dict[str, Any] | None:
    rows: list[dict[str, Any]] = cluster.hop("kernels", "-t", ",".join(states), user="alice")["rows"]
    return rows[0] if rows else None


def test_hop_kernels_says_that_a_kernels_node_is_lost_and_that_it_is_replaced(
    cluster: Cluster, alice: Notebook
) -> None:
    node = saved_on(alice)
    # Nobody replaces it before the front goes on.
    (front,) = cluster.kill(r"hop-front", "alice", signal.SIGSTOP)
    try:
        with lost_node(cluster, node):
            silent = until("it is told", lambda: row_of(cluster, "silent"), 10)
            assert silent["reason"] == f"its process on {node} does not answer"
            os.kill(front, signal.SIGCONT)
            until("it is replaced", lambda: row_of(cluster, "idle"), 60)
            assert node_of(alice) != node
    finally:
        os.kill(front, signal.SIGCONT)


def test_a_node_is_lost_in_a_cell_and_its_user_reads_so(cluster: Cluster, alice: Notebook) -> None:
    saved_on(alice)
    told = lose_in_a_cell(cluster, alice)
    assert "was lost" in told and "variables as they were saved" in told


def test_the_front_is_killed_while_the_kernels_first_seat_waits(cluster: Cluster) -> None:
    for seat in cluster.run("root", "squeue", "-h", "-u", "carol", "-o", "%i").split():
        cluster.run("root", "scancel", seat)
    cluster.run("root", "scontrol", "update", "partitionname=notebook", "state=down")
    try:
        book = Notebook(cluster, "carol")
        starts = threading.Thread(target=book.start, daemon=True)
        starts.start()
        until("its seat waits", lambda: cluster.run("root", "squeue", "-h", "-u", "carol", "-t", "PD", "-o", "%i"))
        killed = cluster.kill(r"hop-front", "carol")
        until("another front is there", lambda: set(cluster.pids(r"hop-front", "carol")) - set(killed))
    finally:
        cluster.run("root", "scontrol", "update", "partitionname=notebook", "state=up")
    starts.join(90)
    try:
        assert stdout(book.execute("print(41)", timeout=90)) == "41\n"
    finally:
        book.close()


@pytest.mark.thorough
def test_a_front_that_stood_still_for_a_minute_finds_its_kernel_and_the_running_cell(
    cluster: Cluster, alice: Notebook
) -> None:
    assert alice.execute("x = 41")["status"] == "ok"
    cell = alice.submit("import time; print('begun', flush=True); time.sleep(80); x += 1")["cell"]
    # A cell begins by the front's word: without it the cell would begin after the standstill.
    until("the cell runs", lambda: "begun" in stdout(alice.wait(cell, 0.2)))
    (front,) = cluster.kill(r"hop-front", "alice", signal.SIGSTOP)
    time.sleep(70)
    os.kill(front, signal.SIGCONT)
    got = alice.wait(cell, 60)
    assert got["status"] == "ok", got
    got = alice.execute("print(x)")
    assert (stream(got, "stdout"), stream(got, "stderr")) == ("42\n", "")


def test_a_cell_with_retry_runs_again_elsewhere(cluster: Cluster, alice: Notebook) -> None:
    node = saved_on(alice)
    code = (
        f"%%retry\nimport os, time\nif os.environ['SLURMD_NODENAME'] == {node!r}: time.sleep(120)\nprint('there', x)"
    )
    cell = alice.submit(code)["cell"]
    until("the cell runs", lambda: not alice.wait(cell, 1)["done"])
    with lost_node(cluster, node):
        got = alice.wait(cell, 90)
        assert (got["status"], stdout(got)) == ("ok", "there 41\n"), got


def test_a_node_that_falls_silent_runs_nothing_twice(cluster: Cluster, alice: Notebook) -> None:
    """Its virtual machine is paused in a cell, and goes on when the kernel is elsewhere already."""
    alice.execute("count = open('count', 'a', buffering=1)\nfrom pathlib import Path")
    node = saved_on(alice)
    cell = alice.submit("import time\nPath('count').open('a').write('begun ')\ntime.sleep(30)\nx = 0")["cell"]
    until("the cell runs", lambda: "begun" in stdout(alice_reads(cluster)))
    cluster.devcluster("pause-node", node)
    try:
        got = alice.wait(cell, 90)
        assert (got["status"], got["reply"]["ename"]) == ("error", "CellLost"), got
        assert node_of(alice) != node
    finally:
        cluster.devcluster("resume-node", node)
    until("the old replica has ended", lambda: len(cluster.pids(r"^\S+/hop-replica run", "alice")) == 1, 60)
    assert stdout(alice.execute("print(Path('count').read_text().count('begun'), x)")) == "1 41\n"
    cluster.wait_for_pilots()


def alice_reads(cluster: Cluster) -> dict[str, Any]:
    text = cluster.run("alice", "cat", "count", check=False)
    return {"outputs": [{"name": "stdout", "text": text}]}


def test_the_seat_is_cancelled_and_what_could_not_come_back_is_told(cluster: Cluster, alice: Notebook) -> None:
    alice.execute("import socket\nsock = socket.socket()")
    alice.execute("y = [x, x]")
    seat = stdout(alice.execute("import os; print(os.environ['SLURM_JOB_ID'])")).strip()
    time.sleep(SAVED)
    cluster.run("alice", "scancel", "-u", "alice")
    until("the seat has ended", lambda: seat not in cluster.run("root", "squeue", "-h", "-o", "%i").split(), 30)
    got = alice.execute("import os; print(os.environ['SLURM_JOB_ID'])", timeout=90)
    assert got["status"] == "ok" and stdout(got).strip() != seat, got
    assert "sock" in stream(got, "stderr") and "could not be brought back" in stream(got, "stderr")
    assert stdout(alice.execute("print(x, y)")) == "41 [41, 41]\n"
    assert alice.execute("sock.fileno()")["reply"]["ename"] == "LostError"


def test_a_kernel_that_was_shut_down_leaves_no_state(cluster: Cluster) -> None:
    states = cluster.base / "home/bob/.local/share/gresshopper/states"
    with notebook(cluster, "bob") as book:
        book.execute("x = list(range(1000))")
        until("its state is in bob's home", lambda: any(states.iterdir()))
        assert states.stat().st_mode & 0o777 == 0o700
    until("its state is gone", lambda: not any(states.iterdir()), 10)
