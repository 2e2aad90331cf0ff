"""The disk below the log of a kernel with three replicas is full, or slow. Its user sees a delay; a cell that runs on a
node whose disk is full may be told lost, with all variables as before it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import disks
import pytest
from groups import KEEPER, THREE, end_seats, grown, kernel_row, processes
from harness import Cluster, Notebook, notebook, nothing_is_left, stream

#: A seat's log of messages says that its disk is full.
TELLS = {"GRESSHOPPER_LOG": THREE["GRESSHOPPER_LOG"] + ",hop_keeper=error"}


@pytest.fixture
def fresh(cluster: Cluster) -> None:
    """No seat is left of tests before: its log may have segments enough for ever, and it tells less."""
    end_seats(cluster)


@pytest.fixture
def alice(cluster: Cluster, fresh: None) -> Iterator[Notebook]:
    with notebook(cluster, "alice", env=THREE | TELLS) as book:
        assert book.execute("import os; seen = []")["status"] == "ok"
        grown(cluster)
        yield book
    nothing_is_left(cluster)


def keeper(cluster: Cluster, node: str) -> int:
    (pid,) = processes(cluster, [node], KEEPER)
    return pid


#: Bytes that go into the log itself, whose segments of 1 MiB are full after some cells. Larger data go to the store.
DATA = 60_000

#: Cells after which some segment must have been full.
MOST = 250

#: Seconds within which a group goes on without a member whose disk is full. A lost majority takes a quarter of a minute.
AT_ONCE = 10


#: The tenures of a group's generation begin at a million times its number.
GENERATION = 1_000_000


def work(book: Notebook, cells: int, size: int = DATA) -> list[float]:
    """Runs cells that leave data, each again if it is told lost. Returns how long each took."""
    took = []
    for _ in range(cells):
        began = time.monotonic()
        got = book.execute(f"data = os.urandom({size}); seen.append(len(seen))", timeout=90)
        if got["status"] == "error":
            assert (got["reply"]["ename"], got["answers"]) == ("CellLost", 1), got
            got = book.execute(f"data = os.urandom({size}); seen.append(len(seen))", timeout=90)
        assert (got["status"], got["answers"]) == ("ok", 1), got
        took.append(time.monotonic() - began)
    return took


def has(book: Notebook, cells: int) -> None:
    got = book.execute("print(seen == list(range(len(seen))), len(seen))", timeout=90)
    assert (stream(got, "stdout"), stream(got, "stderr")) == (f"True {cells}\n", ""), got


@pytest.mark.parametrize("who", ["executor", pytest.param("standby", marks=pytest.mark.thorough)])
def test_a_full_disk_costs_no_answered_cell_and_no_variable(cluster: Cluster, alice: Notebook, who: str) -> None:
    row = kernel_row(cluster)
    node = row["node"] if who == "executor" else min(set(row["nodes"].split(",")) - {row["node"]})
    seat = keeper(cluster, node)
    said = cluster.base / f"home/alice/.local/share/gresshopper/seats/{cluster.environ(seat)['SLURM_JOB_ID']}.log"
    waits: list[float] = []
    with disks.full(seat):
        while "No space left on device" not in said.read_text():
            assert len(waits) < MOST, "no further segment is needed"
            waits += work(alice, 5)
        waits += work(alice, 10)
        has(alice, len(waits))
        now = kernel_row(cluster)
        assert (now["node"] == row["node"]) == (who == "standby"), "a full disk is not the executor's"
        assert seat in cluster.pids(KEEPER, "alice"), "its seat lives"
        replaced = int(now["tenure"]) // GENERATION == int(row["tenure"]) // GENERATION and is_without(cluster, node)
    print(f"{who}: the longest cell took {max(waits):.1f} s")
    waits += work(alice, 5)
    has(alice, len(waits))
    assert replaced, "the others don't hear that the member can't go on"


def is_without(cluster: Cluster, node: str) -> bool:
    """The kernel has three replicas on other nodes soon."""
    until_then = time.monotonic() + AT_ONCE
    while time.monotonic() < until_then:
        row = kernel_row(cluster)
        if int(row["replicas"]) == 3 and node not in row["nodes"].split(","):
            return True
        time.sleep(0.5)
    return False


@pytest.mark.parametrize("who", [pytest.param("one standby", marks=pytest.mark.thorough), "all"])
def test_a_slow_disk_costs_time_alone(cluster: Cluster, alice: Notebook, who: str) -> None:
    """At ten writes a second each commit takes 100 ms. It waits for a majority's disks, and nobody is elected."""
    if why := disks.can_slow():
        pytest.skip(why)
    row = kernel_row(cluster)
    members = row["nodes"].split(",")
    standby = min(set(members) - {row["node"]})
    nodes = {"one standby": [standby], "all": members}[who]
    before = statistics.median(work(alice, 8, 100))
    with disks.slow(cluster, 10, *(keeper(cluster, node) for node in nodes)) as written:
        during = statistics.median(work(alice, 8, 100))
        assert written(), "none of them was held up"
        now = kernel_row(cluster)
    assert (now["node"], now["tenure"], set(now["nodes"].split(","))) == (row["node"], row["tenure"], set(members))
    print(f"{who}: a cell took {1e3 * before:.0f} ms before, {1e3 * during:.0f} ms on slow disks")
    has(alice, 16)
