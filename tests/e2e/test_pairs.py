"""Two parts of a kernel with three replicas die within a second of each other: each cell that was sent is answered in bounded
time, none begins twice, and none hangs.

`HOP_E2E_PAIRS` says how many pairs are tried, and `HOP_E2E_SEED` which: 0 pairs means all of them, at each moment.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from groups import THREE, kernel_row, processes, send
from harness import Cluster, Failed, Notebook, notebook, nothing_is_left, stream, until

#: Seconds within which each cell is answered, whatever was lost.
ANSWER = 90

#: Parts that are killed, in pairs.
PARTS = ("front", "supervisor", "seat", "node", "process", "leader", "hopd", "agent")

#: When they die: between cells, just before a cell, in one, or in the first of several.
MOMENTS = ("rest", "before", "in", "all")

PAIRS = [(a, b, moment) for a, b in itertools.product(PARTS, PARTS) for moment in MOMENTS if a != b]

#: These are tried first: a request that only the front has may be lost with it.
WORST = [
    ("seat", "front", "all"),
    ("front", "seat", "all"),
    ("front", "node", "in"),
    ("front", "supervisor", "before"),
    ("process", "front", "all"),
]


def chosen() -> list[tuple[str, str, str]]:
    count, seed = int(os.environ.get("HOP_E2E_PAIRS", "5")), int(os.environ.get("HOP_E2E_SEED", "1"))
    others = [pair for pair in PAIRS if pair not in WORST]
    random.Random(seed).shuffle(others)
    return (WORST + others)[: count or None]


class Killer:
    """Kills parts of alice's kernel and of what serves it."""

    def __init__(self, cluster: Cluster, book: Notebook) -> None:
        self.cluster, self.book = cluster, book
        self.lost: list[str] = []
        self.hopd = False

    def aim(self) -> dict[str, Callable[[], None]]:
        """What kills each part, as the parts stand now."""
        row = kernel_row(self.cluster)
        node, leader = row["node"], row["leader"]
        fixed = {
            "front": self.cluster.pids(r"hop-front", "alice"),
            "supervisor": processes(self.cluster, [node], r"hop-replica run"),
            "seat": processes(self.cluster, [node], r"hop-replica"),
            "process": processes(self.cluster, [node], r"ipykernel_launcher"),
            "leader": processes(self.cluster, [leader], r"hop-replica seat"),
            "agent": processes(self.cluster, [node], r"hop-agent run", "gresshopper"),
            "hopd": self.cluster.pids(r"opt/bin/hopd", "gresshopper"),
        }

        def kill(part: str) -> None:
            self.hopd |= part == "hopd"
            send(fixed[part], signal.SIGKILL)

        def lose() -> None:
            self.lost.append(node)
            self.cluster.devcluster("lose-node", node)

        aims: dict[str, Callable[[], None]] = {part: lambda part=part: kill(part) for part in fixed}  # type: ignore[misc]
        return {**aims, "node": lose}

    def another_front(self, killed: list[int]) -> None:
        # A cell that is sent to the dying front is lost in its socket's buffer, as with any server.
        until("another front is there", lambda: set(self.cluster.pids(r"hop-front", "alice")) - set(killed), 30)

    def mend(self) -> None:
        if self.hopd:
            self.cluster.deploy("hopd")
        for node in self.lost:
            self.cluster.bring_back(node)
        self.hopd, self.lost = False, []
        self.cluster.wait_for_pilots()
        until("the kernel has three replicas", self.is_grown, 120)

    def is_grown(self) -> bool:
        with contextlib.suppress(Failed, ValueError):
            row = kernel_row(self.cluster)
            return int(row["replicas"]) == 3 and bool(row["leader"])
        return False


@pytest.fixture
def alice(cluster: Cluster) -> Iterator[Notebook]:
    with notebook(cluster, "alice", env=THREE) as book:
        book.execute("x = 41")
        yield book
    nothing_is_left(cluster)


def attack(killer: Killer, pair: tuple[str, str, str], rng: random.Random, number: int) -> list[str]:
    """Loses the pair. Returns what was wrong."""
    first, second, moment = pair
    cluster, book, gap = killer.cluster, killer.book, rng.choice((0.0, 0.05, 0.3, 1.0))
    notes = cluster.base / f"home/alice/pairs-{number}"
    notes.unlink(missing_ok=True)

    def submit(n: int, seconds: float) -> tuple[int, str]:
        code = f"with open({str(notes)!r}, 'a') as f: f.write('{n} ')\nimport time; time.sleep({seconds}); done_{number} = {n}"
        return n, book.submit(code)["cell"]

    cells = [
        submit(n, s) for n, s in {"in": [(0, 3.0)], "all": [(0, 2.0), (1, 1.0), (2, 0.0), (3, 0.0)]}.get(moment, [])
    ]
    if cells:
        until("the first cell runs", notes.exists, 60)
    aims, fronts = killer.aim(), cluster.pids(r"hop-front", "alice")
    aims[first]()
    if moment == "before" and first == "front":
        killer.another_front(fronts)
    time.sleep(gap)
    if moment == "before":
        cells.append(submit(0, 0.0))
        time.sleep(0.1)
    aims[second]()
    if moment == "rest":
        if "front" in (first, second):
            killer.another_front(fronts)
        cells.append(submit(0, 0.0))
    began = time.monotonic()
    got = [(n, book.wait(cell, max(1.0, began + ANSWER - time.monotonic()))) for n, cell in cells]
    took = time.monotonic() - began
    ran = notes.read_text().split() if notes.exists() else []
    said = [g["reply"]["ename"] if g["status"] == "error" else g["status"] for _, g in got]
    print(f"{number} {pair} gap {gap}: {said} in {took:.1f} s, began {ran}", flush=True)
    wrong = [f"cell {n} has no answer" for n, g in got if not g["done"]]
    wrong += [f"cell {n} began {ran.count(str(n))} times" for n, _ in got if ran.count(str(n)) > 1]
    wrong += [f"cell {n} never began, and ended well" for n, g in got if g["status"] == "ok" and str(n) not in ran]
    wrong += [f"cell {n} ran and is aborted" for n, g in got if g["status"] == "aborted" and str(n) in ran]
    wrong += [f"cell {n} ended with {s}" for (n, _), s in zip(got, said, strict=True) if s not in ENDS]
    for (n, g), s in zip(got, said, strict=True):
        if s == "CellLost" and g["number"] not in (None, told := g["reply"]["execution_count"]):
            wrong.append(f"cell {n} ran as [{g['number']}] and is lost as [{told}]")
    stopped = False
    for (n, _), s in zip(got, said, strict=True):
        if stopped and s != "aborted":
            wrong.append(f"cell {n} ended with {s} behind an error")
        stopped |= s == "CellLost"
    return [f"{pair}, gap {gap}: {w}" for w in wrong]


#: A kernel is given up once its front has died more often than five times within a minute.
FRONTS, A_MINUTE = 4, 62.0

#: How a cell may end.
ENDS = ("ok", "aborted", "CellLost")


@pytest.mark.thorough
def test_whatever_two_are_lost_each_cell_is_answered_and_none_runs_twice(cluster: Cluster, alice: Notebook) -> None:
    rng, killer = random.Random(int(os.environ.get("HOP_E2E_SEED", "1"))), Killer(cluster, alice)
    until("the kernel has three replicas", killer.is_grown, 60)
    wrong: list[str] = []
    fronts: list[float] = []
    for number, pair in enumerate(chosen()):
        if "front" in pair:
            fronts = [kill for kill in fronts if kill > time.monotonic() - A_MINUTE]
            if len(fronts) == FRONTS:
                time.sleep(max(0.0, fronts[0] + A_MINUTE - time.monotonic()))
            fronts.append(time.monotonic())
        wrong += attack(killer, pair, rng, number)
        killer.mend()
        got = alice.execute("x", timeout=ANSWER)
        if stream(got, "stderr") or got["status"] != "ok":
            alice.execute("x = 41", timeout=ANSWER)
    assert not wrong, "\n".join(wrong)
