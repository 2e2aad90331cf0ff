"""The wall clock of `hopd`, of nodes or of a person's host is set by an hour while kernels with three replicas work. No rule
needs that clock: nobody is elected, no lease ends, and a loss afterwards is a loss as any other."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from clocks import ELSEWHERE, HOUR, Clocks, can_step
from groups import SAVED, THREE, end_seats, grown, kernel_row, processes, send
from harness import OPENABLE, Cluster, Notebook, notebook, nothing_is_left, stream, until

#: Nobody else's seats have this clock.
USER = "carol"


@pytest.fixture(scope="module")
def clocks(cluster: Cluster) -> Clocks:
    if why := can_step():
        pytest.skip(why)
    return Clocks(cluster)


@pytest.fixture
def carol(cluster: Cluster, clocks: Clocks) -> Iterator[Notebook]:
    # A seat outlives its kernels, and would keep the clock that it was started with.
    end_seats(cluster, USER)
    clocks.step(0)
    try:
        with clocks.in_new_seats(), notebook(cluster, USER, env=THREE | clocks.env) as book:
            book.execute(OPENABLE)
            book.execute("import time; x = 41")
            grown(cluster, user=USER)
            yield book
        nothing_is_left(cluster, USER)
    finally:
        clocks.step(0)
        end_seats(cluster, USER)


@contextlib.contextmanager
def hopd_with(cluster: Cluster, clocks: Clocks) -> Iterator[None]:
    """`hopd` runs by these clocks."""
    cluster.kill(r"/opt/bin/hopd", "gresshopper")
    env = {**clocks.env, "GRESSHOPPER_LOG": "info"}
    with (cluster.base / "log/hopd.log").open("a") as log:
        process = cluster.popen(
            "gresshopper",
            [str(cluster.base / "opt/bin/hopd")],
            env=env,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        cluster.wait_for_pilots()
        assert bears(process.pid)
        yield
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        cluster.deploy("hopd")
        cluster.wait_for_pilots()


def bears(pid: int) -> bool:
    """The process has the clock of a file."""
    return "clocks.so" in Path(f"/proc/{pid}/maps").read_text() and "HOP_TEST_CLOCKS" in os.fsdecode(
        Path(f"/proc/{pid}/environ").read_bytes()
    )


def with_a_gpu(book: Notebook) -> None:
    """A cell has a GPU, and the variables are there. No effect was lost."""
    got = book.execute("%%gpu 1\nprint(len(openable()), x)", timeout=90)
    assert (got["status"], stream(got, "stdout")) == ("ok", "1 41\n"), got
    assert "gone" not in stream(got, "stderr"), got


@pytest.mark.parametrize("seconds", [pytest.param(HOUR, marks=pytest.mark.thorough), -HOUR])
def test_hopds_clock_is_set_while_a_cell_has_a_gpu(
    cluster: Cluster, clocks: Clocks, carol: Notebook, seconds: int
) -> None:
    with hopd_with(cluster, clocks):
        with_a_gpu(carol)
        row = kernel_row(cluster, USER)
        cell = carol.submit("%%gpu 1\ntime.sleep(6)\nprint(len(openable()), x)")["cell"]
        until("it has its GPU", cluster.leases_live, 30)
        leases = cluster.leases_live()
        time.sleep(1)
        clocks.step(seconds, ELSEWHERE)
        time.sleep(3)
        assert cluster.leases_live() == leases
        got = carol.wait(cell, 60)
        assert (got["status"], stream(got, "stdout"), stream(got, "stderr")) == ("ok", "1 41\n", ""), got
        with_a_gpu(carol)
        until("the lease is over after its linger", lambda: not cluster.leases_live(), 30)
        with_a_gpu(carol)
        now = kernel_row(cluster, USER)
        assert (now["node"], now["tenure"], now["replicas"]) == (row["node"], row["tenure"], 3)
        send(processes(cluster, [row["node"]], user=USER), signal.SIGKILL)
        with_a_gpu(carol)
        grown(cluster, user=USER)
    with_a_gpu(carol)


def test_clocks_of_nodes_are_set_apart(cluster: Cluster, clocks: Clocks, carol: Notebook) -> None:
    """First the executor's, then the standbys' the other way, then all of them by two hours at once."""
    row = kernel_row(cluster, USER)
    node, members = row["node"], row["nodes"].split(",")
    standbys = [other for other in members if other != node]
    seats = processes(cluster, members, r"hop-replica seat", USER)
    assert len(seats) == 3 and all(bears(pid) for pid in seats)
    carol.execute("x = 40; began = time.time(), time.monotonic()")
    for seconds, places in ((HOUR, [node]), (-HOUR, standbys), (-HOUR, [node]), (HOUR, members)):
        cell = carol.submit("time.sleep(1); x += 1; x -= 1")["cell"]
        time.sleep(0.5)
        clocks.step(seconds, *places)
        assert carol.wait(cell, 60)["status"] == "ok"
        time.sleep(1)
    carol.execute("x += 1")
    got = carol.execute("print(round((time.time() - began[0]) - (time.monotonic() - began[1])))")
    assert stream(got, "stdout") == f"{HOUR}\n", "the kernel's clock was set"
    with_a_gpu(carol)
    now = kernel_row(cluster, USER)
    assert (now["node"], now["tenure"], now["replicas"]) == (node, row["tenure"], 3), "nobody was elected"
    clocks.step(-HOUR, *standbys)
    send(processes(cluster, [node], user=USER), signal.SIGKILL)
    with_a_gpu(carol)
    assert kernel_row(cluster, USER)["node"] in standbys
    grown(cluster, user=USER)


@pytest.mark.thorough
def test_a_kernel_is_restarted_after_its_persons_clock_went_back(
    cluster: Cluster, clocks: Clocks, carol: Notebook
) -> None:
    """A restarted kernel's group is numbered by the clock's seconds, and never below the group of before."""
    for seconds in (HOUR, -HOUR):
        clocks.step(seconds)
        carol.restart()
        got = carol.execute("print('x' in globals())", timeout=90)
        assert stream(got, "stdout") == "False\n", got
        carol.execute(OPENABLE)
        carol.execute("x = 41")
        grown(cluster, user=USER)
        with_a_gpu(carol)
    time.sleep(1)
    node = kernel_row(cluster, USER)["node"]
    send(processes(cluster, [node], user=USER), signal.SIGKILL)
    with_a_gpu(carol)
    # A majority is lost: the front opens the next group from what was saved.
    time.sleep(SAVED)
    send(cluster.pids("hop-replica", USER), signal.SIGKILL)
    with_a_gpu(carol)
    grown(cluster, user=USER)


@pytest.mark.timeout(600)
@pytest.mark.thorough
def test_a_member_of_before_two_restarts_is_not_followed(cluster: Cluster, clocks: Clocks, carol: Notebook) -> None:
    """The executor's node is out of reach at each restart, and comes back. The person's clock goes back by an hour between
    them."""
    last = 0
    for seconds in (HOUR, HOUR, 0):
        if seconds and is_by_the_clock(cluster):
            continue
        clocks.step(seconds, ELSEWHERE)
        node = kernel_row(cluster, USER)["node"]
        cluster.devcluster("pause-node", node)
        try:
            carol.restart()
            carol.execute(OPENABLE, timeout=90)
            assert carol.execute(f"x = {seconds}", timeout=90)["status"] == "ok"
            grown(cluster, without=node, user=USER)
        finally:
            cluster.devcluster("resume-node", node)
        for _ in range(5):
            time.sleep(2)
            got = carol.execute("print(x)", timeout=60)
            assert (got["status"], stream(got, "stdout")) == ("ok", f"{seconds}\n"), got
        tenure = int(kernel_row(cluster, USER)["tenure"])
        assert tenure > last
        last = tenure


def is_by_the_clock(cluster: Cluster) -> bool:
    """The group's number is a time: the restart found nothing left of the one before."""
    return int(kernel_row(cluster, USER)["tenure"]) > 10**12
