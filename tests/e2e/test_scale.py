"""Pilots follow demand: more under load, burst nodes when the own ones are full, fewer when idle, new ones in time."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

import pytest
from harness import Cluster, Notebook, notebook, until

SCALE = """
{rotate}
[pool.main.scale]
idle_min_s = 4
idle_max_s = 6
learn = false
spares = 0
[[pool.main.burst]]
partition = "burst"
max_pilots = 1
boot_s = 15
"""
RUN = "%%gpu 2\nimport os, time; time.sleep(6); print(os.environ['SLURMD_NODENAME'])"


class Scaling(Cluster):
    """Two nodes of two GPUs with one or two pilots, and a node that Slurm powers up."""

    def __init__(self) -> None:
        base = os.environ.get("HOP_E2E_SCALE_BASE", "/srv/gresshopper-e2e-scale")
        index = int(os.environ.get("HOP_E2E_SCALE_INDEX", "7"))
        super().__init__(base, index, PILOTS="1", MAX_PILOTS="2", LINGER_MS="300", POOL_EXTRA=SCALE.format(rotate=""))

    def devcluster(self, *args: str, check: bool = True, timeout: float = 180) -> str:
        if args[0] == "up":
            args = ("up", "--index", str(self.index), "--nodes", "2", "--burst-nodes", "1")
        return super().devcluster(*args, check=check, timeout=timeout)

    def pilot_nodes(self) -> list[str]:
        """Where pilots are up, by hopd."""
        rows = self.hop("info")["rows"]
        return [str(r["node"]) for r in rows if r["state"] == "UP"]


@pytest.fixture(scope="module")
def scaling() -> Iterator[Scaling]:
    made = Scaling()
    try:
        made.up()
        yield made
    finally:
        made.down()


def test_pilots_grow_burst_and_shrink(scaling: Scaling) -> None:
    own = {n for n in scaling.env["HOP_DEV_NODES"].split(",") if "b" not in n}
    seen: set[str] = set()
    most = 0
    with contextlib.ExitStack() as stack:
        cells = []
        # On a busy machine a kernel takes as long to start as a cell to run: the first cells wait for the last kernel.
        go = scaling.base / "home/alice/go"
        first = f"{RUN}\nimport pathlib\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.1)"
        for _ in range(5):
            book = Notebook(scaling, "alice")
            stack.callback(book.close)
            book.start()
            cells += [(book, book.submit(source)["cell"]) for source in (first, RUN)]
            nodes = scaling.pilot_nodes()
            most = max(most, len([n for n in nodes if n in own]))
            seen |= set(nodes)
        go.touch()
        for book, cell in cells:
            got = book.wait(cell, 150)
            assert got["status"] == "ok", got
            seen.add(got["text"].strip())
    assert most == 2, "the pool has grown to its maximum and no further"
    assert own <= seen
    assert seen - own, "a burst node was used"
    until("the pool has shrunk to its minimum", lambda: len(scaling.pilot_nodes()) == 1, 60, every=0.5)
    until("Slurm has the other pilots' GPUs back", lambda: len(scaling.pilots()) == 1, 30, every=0.5)


def test_a_pilot_comes_to_a_kernel_where_none_is_and_gives_nothing_leased_away(scaling: Scaling) -> None:
    with notebook(scaling, "alice") as a, notebook(scaling, "bob") as b:
        nodes = {a.execute(RUN)["text"].strip(), b.execute(RUN)["text"].strip()}
        # However they lie, both are served again when the pilots under them have gone.
        time.sleep(9)
        cells = [(book, book.submit(RUN)["cell"]) for book in (a, b)]
        for book, cell in cells:
            got = book.wait(cell, 90)
            assert got["status"] == "ok", got
            assert got["text"].strip() in nodes


def test_a_pilot_is_replaced_before_its_time_limit_under_a_running_cell(scaling: Scaling) -> None:
    scaling.deploy_env |= {"TIME_LIMIT_MIN": "1", "POOL_EXTRA": "rotate_before_s = 28", "MAX_PILOTS": "1"}
    scaling.deploy("down")
    scaling.deploy("up")
    scaling.run("root", "scancel", "-u", "gresshopper")
    until("the pilot has the new limit", lambda: limits(scaling) == ["1:00"], 60, every=0.3)
    scaling.wait_for_pilots()
    (first,) = scaling.pilots()
    with notebook(scaling, "alice") as book:
        until("it is nearly time", lambda: age(scaling, first) > 24, 60, every=0.3)
        cell = book.submit("%%gpu 1\nimport time; time.sleep(18); print('unharmed')")["cell"]
        until("another pilot is asked for", lambda: queued_pilots(scaling) - {first}, 40, every=0.3)
        got = book.wait(cell, 60)
        assert (got["status"], got["text"].strip()) == ("ok", "unharmed"), got
        until("the old pilot has ended of itself", lambda: first not in queued_pilots(scaling), 20, every=0.3)
        state = scaling.run("root", "sacct", "-n", "-X", "-P", "-j", first, "-o", "State").strip()
        assert state == "COMPLETED", "before its limit"
        assert book.execute("%%gpu 1\nprint('next')", 60)["text"].strip() == "next"


def queued_pilots(cluster: Cluster) -> set[str]:
    return set(cluster.run("root", "squeue", "-h", "-u", "gresshopper", "-o", "%i").split())


def limits(cluster: Cluster) -> list[str]:
    return cluster.run("root", "squeue", "-h", "-t", "R", "-u", "gresshopper", "-o", "%l").split()


def age(cluster: Cluster, job: str) -> float:
    """Seconds that a job has run for."""
    out = cluster.run("root", "squeue", "-h", "-j", job, "-o", "%M", check=False).strip()
    minutes, _, seconds = (out or "0:00").rpartition(":")
    return int(minutes.replace("-", "") or 0) * 60 + int(seconds)
