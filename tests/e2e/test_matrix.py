"""Each part of a kernel with three replicas is lost at each moment: what was answered is there, or its loss was told; the cell
in the middle is answered once, and ran once at most; the kernel has three replicas again; nothing is left over.

A run tries four parts, each at one moment. `HOP_E2E_SEED` gives others, and `HOP_E2E_MATRIX=all` tries all of them, the
parts by their processes' death and by their nodes' loss. `HOP_E2E_MATRIX=seat` and `node` have one half each.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chaos import GONE
from groups import HOT, KEEPER, REPLICA, SAVED, THREE, grown, hot_node, kernel_row, processes, send
from harness import Cluster, Failed, Notebook, notebook, nothing_is_left, stream, until

#: Parts that are lost. The leader's keeper dies alone, its node's other processes live.
WHO = ("executor", "leader", "warm", "hot", "two of three", "all three")

#: Moments: just before a cell, in it, when the log has its end and its process hasn't made the reply yet, when its reply is on
#: its way to a front that stands still, and while another seat takes a lost standby's place.
WHEN = ("before", "in", "committed", "unheard", "replaced")

#: Further moments: while the kernel goes to a fourth node, and before it has more than one replica.
MORE = [
    *((who, "moved") for who in ("executor", "warm", "all three")),
    *((who, "grows") for who in ("executor", "all three")),
]

#: Seconds within which each cell is answered, whatever was lost.
ANSWER = 90

WANTED = os.environ.get("HOP_E2E_MATRIX", "")
SEED = int(os.environ.get("HOP_E2E_SEED", "1"))


def cases() -> list[tuple[str, str, str]]:
    if WANTED:
        every = [(who, when) for who in WHO for when in WHEN] + MORE
        kept = {
            who: ("seat",) if who == "leader" else ("seat", "node") if WANTED == "all" else (WANTED,) for who in WHO
        }
        return [(who, when, how) for who, when in every for how in kept[who]]
    parts = ("executor", "leader", ("warm", "hot")[SEED % 2], ("two of three", "all three")[SEED % 2])
    # One moment for each, all of them different.
    return [(who, WHEN[(i + SEED + 1) % len(WHEN)], ("node", "seat")[SEED % 2]) for i, who in enumerate(parts)]


SETUP = """
import os, time
seen = []
def begins(n):
    with open({notes!r}, "a") as notes:
        notes.write(f"{{n}}\\n")
"""

#: A hook of the user's own, which IPython calls after ours: the log has the cell's end, and the reply isn't made.
HELD = """
def hold(result):
    get_ipython().events.unregister("post_run_cell", hold)
    open({held!r}, "w").close()
    while not os.path.exists({go!r}):
        time.sleep(0.05)
get_ipython().events.register("post_run_cell", hold)
"""


class Work:
    """Numbered cells of a notebook, and what its kernel must have of them."""

    def __init__(self, cluster: Cluster, book: Notebook) -> None:
        self.cluster, self.book = cluster, book
        self.folder = cluster.base / "home/alice"
        self.notes = self.file("began")
        self.held, self.go = self.file("held"), self.file("go")
        #: Answered cells, with their counts.
        self.kept: dict[int, int] = {}
        #: Cells whose user was told that their effects are gone.
        self.told: list[int] = []
        self.last = 0

    def file(self, name: str) -> Path:
        path = self.folder / f"matrix-{name}"
        path.unlink(missing_ok=True)
        return path

    def began(self) -> list[int]:
        return [int(n) for n in self.notes.read_text().split()] if self.notes.exists() else []

    def submit(self, body: str = "") -> str:
        self.last += 1
        code = f"begins({self.last})\n{body}\nseen.append({self.last})"
        return str(self.book.submit(code)["cell"])

    def until_go(self) -> str:
        return f"while not os.path.exists({str(self.go)!r}): time.sleep(0.05)"

    def set_up(self) -> None:
        got = self.book.execute(SETUP.format(notes=str(self.notes)), timeout=ANSWER)
        assert got["status"] == "ok", got
        for _ in range(3):
            self.answered(self.book.wait(self.submit(), ANSWER))

    def answered(self, got: dict[str, Any]) -> str:
        """How the last cell ended. Whatever is wrong with its answer fails."""
        ended = got["reply"]["ename"] if got["status"] == "error" else got["status"]
        assert got["done"] and got["answers"] == 1 and ended in ("ok", "CellLost"), got
        ran = self.began().count(self.last)
        assert ran == 1 if ended == "ok" else ran <= 1, (ran, got)
        if ended == "ok":
            self.kept[self.last] = int(got["reply"]["execution_count"])
        self.hear(got)
        return str(ended)

    def hear(self, got: dict[str, Any]) -> None:
        for names in GONE.findall(stream(got, "stderr")):
            gone = [n for n, count in self.kept.items() if f"[{count}]" in names]
            self.told += gone
            self.kept = {n: count for n, count in self.kept.items() if n not in gone}

    def look(self) -> None:
        """The namespace has each answered cell's effect once, and no other's."""
        got = self.book.execute("print(seen)", timeout=ANSWER)
        self.hear(got)
        assert (got["status"], stream(got, "stdout")) == ("ok", f"{list(self.kept)}\n"), (self.kept, self.told, got)


class Losses:
    """Loses parts of alice's kernel, as they stand when it is made."""

    def __init__(self, cluster: Cluster, who: str, how: str) -> None:
        self.cluster, self.how = cluster, how
        self.lost: list[str] = []
        row = kernel_row(cluster)
        executor, hot = str(row["node"]), str(row["hot"])
        standbys = sorted(set(row["nodes"].split(",")) - {executor})
        warm = [node for node in standbys if node != hot]
        self.nodes = {
            "executor": [executor],
            "leader": [str(row["leader"])],
            "warm": warm[:1],
            "hot": [hot],
            "two of three": [executor, *warm[:1]],
            "all three": [executor, *standbys],
        }[who]
        #: A standby that can be replaced before.
        self.other = next((node for node in standbys if node not in self.nodes), standbys[0] if standbys else "")
        self.pattern = KEEPER if who == "leader" else REPLICA

    def strike(self) -> None:
        if self.how == "seat":
            found = processes(self.cluster, self.nodes, self.pattern)
            assert found, "none of them was there"
            send(found, signal.SIGKILL)
            return
        for node in self.nodes:
            self.lost.append(node)
            self.cluster.devcluster("lose-node", node)

    def mend(self) -> None:
        for node in self.lost:
            self.cluster.bring_back(node)
        if self.lost:
            self.cluster.wait_for_pilots()


def before(work: Work, losses: Losses) -> str:
    losses.strike()
    return work.submit()


def in_it(work: Work, losses: Losses) -> str:
    cell = work.submit("time.sleep(2)")
    until("the cell runs", lambda: work.last in work.began(), 60)
    losses.strike()
    return cell


def committed(work: Work, losses: Losses) -> str:
    work.last += 1
    code = f"begins({work.last}); seen.append({work.last})" + HELD.format(held=str(work.held), go=str(work.go))
    cell = str(work.book.submit(code)["cell"])
    until("the reply is held", work.held.exists, 60)
    time.sleep(2)  # Until the log has the cell's end, on a busy machine too.
    assert not work.book.wait(cell, 0)["reply"]
    losses.strike()
    time.sleep(1)  # The kernel's process ends with its supervisor. Until then it would make the reply itself.
    work.go.touch(mode=0o666)
    return cell


def unheard(work: Work, losses: Losses) -> str:
    fronts = work.cluster.pids(r"hop-front", "alice")
    cell = work.submit("time.sleep(1)")
    until("the cell runs", lambda: work.last in work.began(), 60)
    send(fronts, signal.SIGSTOP)
    try:
        time.sleep(2)
        losses.strike()
        time.sleep(1)
    finally:
        send(fronts, signal.SIGCONT)
    return cell


def replaced(work: Work, losses: Losses) -> str:
    """In the middle of a cell, as soon as another seat is there, or another node's is a replica's."""
    seats = set(work.cluster.pids(KEEPER, "alice"))
    cell = work.submit(work.until_go())
    until("the cell runs", lambda: work.last in work.began(), 60)
    send(processes(work.cluster, [losses.other]), signal.SIGKILL)

    def is_replaced() -> bool:
        is_new = set(work.cluster.pids(KEEPER, "alice")) - seats
        return bool(is_new) or losses.other not in kernel_row(work.cluster)["nodes"].split(",")

    until("another replica takes its place", is_replaced, 60, every=0.02)
    losses.strike()
    work.go.touch(mode=0o666)
    return cell


def moved(work: Work, losses: Losses) -> str:
    """A move to a node without a replica makes a group of other members."""
    row = kernel_row(work.cluster)
    (fourth,) = set(work.cluster.env["HOP_DEV_NODES"].split(",")) - set(row["nodes"].split(","))

    def is_ordered() -> bool:
        with contextlib.suppress(Failed):
            work.cluster.run("alice", "hop", "migrate", row["kernel_id"], "--to", fourth, "--no-wait")
            return True
        return False

    # hopd hears after a minute that a node is there again.
    until("the move is ordered", is_ordered, 90)
    cell = work.submit(work.until_go())
    until("the cell runs", lambda: work.last in work.began(), 60)
    time.sleep(1)
    losses.strike()
    work.go.touch(mode=0o666)
    return cell


MOMENTS: dict[str, Callable[[Work, Losses], str]] = {
    "before": before,
    "in": in_it,
    "committed": committed,
    "unheard": unheard,
    "replaced": replaced,
    "moved": moved,
    "grows": before,
}


@pytest.fixture
def work(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Work]:
    who, when = request.node.callspec.params["who"], request.node.callspec.params["when"]
    with notebook(cluster, "alice", env=HOT if who in ("warm", "hot") else THREE) as book:
        work = Work(cluster, book)
        work.set_up()
        if when != "grows":
            grown(cluster)
            time.sleep(SAVED)
        if who in ("warm", "hot"):
            hot_node(cluster)
        yield work
        work.go.touch(mode=0o666)
    nothing_is_left(cluster)


@pytest.mark.parametrize(("who", "when", "how"), cases())
def test_what_was_answered_is_there_and_nothing_ran_twice(
    cluster: Cluster, work: Work, who: str, when: str, how: str
) -> None:
    if who == "leader":
        until("hopd knows the leader", lambda: kernel_row(cluster)["leader"], 60)
    losses, began = Losses(cluster, who, how), time.monotonic()
    try:
        cell = MOMENTS[when](work, losses)
        got = work.book.wait(cell, ANSWER)
        ended = work.answered(got)
        took = time.monotonic() - began
        if (who, when) == ("executor", "committed"):
            assert "may be missing" in stream(got, "stderr"), "the reply is the log's"
        if when in ("committed", "unheard") and who not in ("two of three", "all three"):
            assert ended == "ok", "the log has its answer"
        work.look()
        for _ in range(3):
            assert work.answered(work.book.wait(work.submit(), ANSWER)) == "ok"
        work.look()
        print(f"{who}, {when}, {how}: {ended}, in {took:.1f} s, told {work.told}")
    finally:
        losses.mend()
    grown(cluster)
    work.look()
