"""Kernels with three replicas whose links are cut for a while. The oracle of `chaos.py` says what must hold."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from chaos import Oracle, Person
from groups import end_seats, is_grown, kernel_row
from harness import Cluster, lost_node, no_process_is_left, nothing_is_left, stream, until
from links import PEOPLE, Links, Way, both, can_cut

#: The ways to cut, from the nodes of the executor and the standbys.
CUTS: dict[str, Callable[[str, list[str]], list[Way]]] = {
    "executor | standbys": both,
    "executor -> standbys": lambda e, s: [(e, t) for t in s],
    "standbys -> executor": lambda e, s: [(t, e) for t in s],
    # All but hopd hear nothing of the executor: the others elect another one, and the old one's requests still arrive.
    "executor | all": lambda e, s: both(e, [PEOPLE, *s]),
    "a standby | the others": lambda e, s: both(s[0], [e, s[1]]),
    "front | executor": lambda e, s: both(PEOPLE, [e]),
    "front -> executor": lambda e, s: [(PEOPLE, e)],
    "executor -> front": lambda e, s: [(e, PEOPLE)],
    "all": lambda e, s: [*both(PEOPLE, [e, *s]), *both(e, s), *both(s[0], s[1:])],
}

#: Shorter and longer than the silence after which a seat is lost. By hand: `HOP_E2E_LINKS=some` or `all`.
WANTED = os.environ.get("HOP_E2E_LINKS", "")
CASES = [
    ("executor | standbys", 3),
    ("executor | standbys", 25),
    ("standbys -> executor", 25),
    ("executor | all", 14),
    ("front | executor", 25),
    ("all", 25),
]
if WANTED == "all":
    CASES += [(cut, seconds) for seconds in (3, 12, 25, 40) for cut in CUTS if (cut, seconds) not in CASES]

#: Each takes minutes.
long = pytest.mark.skipif(not WANTED, reason="HOP_E2E_LINKS isn't set")


@pytest.fixture(scope="module")
def links(cluster: Cluster) -> Iterator[Links]:
    if why := can_cut(cluster.variant):
        pytest.skip(why)
    with Links(cluster) as links:
        yield links


class Kernel:
    """A person who works at a notebook with three replicas until it is enough."""

    def __init__(self, cluster: Cluster, links: Links, seed: int) -> None:
        self.cluster = cluster
        self.links = links
        self.oracle = Oracle(cluster)
        self.person = Person(self.oracle, "alice", seed, seed)
        # After a restart the kernel may execute elsewhere, and the cut would be another one.
        del self.person.kinds["restart"]
        links.take_in(self.person.book)

    def begin(self) -> None:
        self.person.begin()
        self.grow()
        self.links.seats_can_be_cut("alice")

    def grow(self) -> None:
        until("the kernel has three replicas", lambda: is_grown(self.cluster), 120)

    def ways(self, cut: str) -> list[Way]:
        got = self.person.execute("print(os.environ['SLURMD_NODENAME'])")
        assert got is not None
        node = stream(got, "stdout").strip()
        standbys = sorted(set(kernel_row(self.cluster)["nodes"].split(",")) - {node})
        return CUTS[cut](node, standbys)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Cells run one after the other meanwhile."""
        self.oracle.over.clear()
        working = threading.Thread(target=self.person.work)
        working.start()
        try:
            time.sleep(1)
            yield
            time.sleep(3)
        finally:
            self.oracle.over.set()
            working.join()

    def is_well(self) -> None:
        self.person.look()
        self.grow()
        self.person.look()
        assert not self.oracle.tally.faults


@pytest.fixture
def kernel(cluster: Cluster, links: Links, request: pytest.FixtureRequest) -> Iterator[Kernel]:
    # A seat outlives its kernel, and the next kernel finds it warm: with the sockets that it opened before.
    end_seats(cluster)
    links.adopt()
    kernel = Kernel(cluster, links, zlib.crc32(request.node.name.encode()))
    try:
        kernel.begin()
        yield kernel
    finally:
        kernel.person.close()
    assert not kernel.oracle.tally.faults
    nothing_is_left(cluster)


#: What each run tries, on one kernel: how often a cut is made, and for how many seconds.
SHORT = [
    ("executor -> standbys", 1, 3.0),
    ("standbys -> executor", 1, 3.0),
    ("executor | standbys", 1, 4.0),
    ("front -> executor", 1, 3.0),
    ("executor | all", 6, 1.5),
]


@pytest.mark.thorough
def test_no_cell_is_lost_or_runs_twice_while_links_are_cut_for_a_moment(links: Links, kernel: Kernel) -> None:
    """One way, both ways, and again and again. The kernel may execute on another node after each."""
    for cut, times, seconds in SHORT:
        ways = kernel.ways(cut)
        with kernel.at_work():
            for _ in range(times):
                with links.without(ways):
                    time.sleep(seconds)
                    links.drops(cut, 10)
                time.sleep(1)
        print(cut, sorted(round(wait, 1) for wait in kernel.oracle.tally.waits)[-3:], kernel.oracle.tally.cell_lost)
        kernel.is_well()


@long
@pytest.mark.parametrize(("cut", "seconds"), CASES)
def test_no_cell_is_lost_or_runs_twice_while_links_are_cut(
    links: Links, kernel: Kernel, cut: str, seconds: float
) -> None:
    ways = kernel.ways(cut)
    with kernel.at_work(), links.without(ways):
        time.sleep(seconds)
        assert links.dropped()
    # The longest waits, for a look by hand.
    print(sorted(round(wait, 1) for wait in kernel.oracle.tally.waits)[-3:], kernel.oracle.tally.cell_lost)
    kernel.is_well()


@long
def test_a_standby_that_is_cut_off_while_its_kernel_ends_leaves_too(
    cluster: Cluster, links: Links, kernel: Kernel
) -> None:
    ways = kernel.ways("a standby | the others")
    standby = ways[0][0]
    with links.without([*ways, *both(PEOPLE, [standby])]):
        kernel.person.book.shutdown()
        time.sleep(10)
        assert links.dropped()
    no_process_is_left(cluster, timeout=30)


#: The capture of its effects takes six seconds.
SLOW = """
class Slow:
    def __getstate__(self):
        import time
        time.sleep(6)
        return {{}}
slow = Slow()
open({begun!r}, 'w').close()
time.sleep(2)
"""


@long
def test_an_answer_that_reached_nobody_is_not_given_without_its_cells_effects(
    cluster: Cluster, links: Links, kernel: Kernel
) -> None:
    """The group has the cell's end, the client has no reply, and the capture of the effects goes down with the node."""
    book, begun = kernel.person.book, kernel.person.notes.with_name("begun")
    begun.unlink(missing_ok=True)
    assert book.execute("slow = None")["status"] == "ok"
    ways = kernel.ways("executor -> front")
    ((node, _),) = ways
    got: list[dict[str, Any]] = []
    asked = threading.Thread(
        target=lambda: got.append(book.execute("import time" + SLOW.format(begun=str(begun)), timeout=150))
    )
    asked.start()
    until("the cell runs", begun.exists, 60)
    with links.without(ways):
        time.sleep(3.5)
        assert links.dropped()
        with lost_node(cluster, node):
            asked.join()
    links.adopt()
    assert got[0]["reply"].get("ename") == "CellLost", got
    looked = book.execute("print(slow)")
    assert (looked["status"], stream(looked, "stdout")) == ("ok", "None\n")
    told = stream(got[0], "stderr") + stream(looked, "stderr")
    assert "effects are gone" not in told, "its own reply has said so"


@long
def test_a_cell_with_a_gpu_whose_front_is_cut_off_for_long_is_lost_as_any_other(links: Links, kernel: Kernel) -> None:
    """The front takes the silent executor for lost after half a minute: the kernel goes on elsewhere."""
    book, begun = kernel.person.book, kernel.person.notes.with_name("begun")
    begun.unlink(missing_ok=True)
    assert book.execute("x = 41")["status"] == "ok"
    ways = kernel.ways("front | executor")
    body = f"%%gpu 1\nimport time\nopen({str(begun)!r}, 'w').close()\ntime.sleep(55)\nx += 1"
    cell = book.submit(body)["cell"]
    until("the cell runs", begun.exists, 60)
    with links.without(ways):
        time.sleep(45)
        assert links.dropped()
    got = book.wait(cell, 150)
    assert got["reply"].get("ename") == "CellLost", got
    looked = book.execute("print(x)", timeout=150)
    assert (looked["status"], stream(looked, "stdout"), stream(looked, "stderr")) == ("ok", "41\n", "")
