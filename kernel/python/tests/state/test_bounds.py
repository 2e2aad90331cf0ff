"""What the engine adds to a process has a bound: a capture that would grow beyond it is given up, and told."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from gresshopper.state import agent as agents
from gresshopper.state import limits, native, pickling, planning, recorder, session, units
from gresshopper.state.session import NoRoom

import child
from harness import Kernel

ENDLESS = """
class Endless:
    def __reduce__(self):
        return list, (), None, ("x" * 1000 + str(i) for i in iter(int, 1))
e = Endless(); a = [1]
"""
DEEPER = """
class Deeper:
    def __init__(self, n=0): self.n = n
    def __getstate__(self): return {"n": self.n, "next": Deeper(self.n + 1)}
d = Deeper(); a = [1]
"""


@pytest.mark.parametrize("source", [ENDLESS, DEEPER], ids=["endless", "deeper"])
def test_a_capture_that_never_ends_is_given_up(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FLOOR", 64 << 20)
    monkeypatch.setattr(native, "room", lambda: 0)
    kernel = Kernel(tmp_path)
    assert kernel.run("b = [2]")
    kernel.capture.run(None)
    assert kernel.run(source), kernel.error
    before, known = limits.resident(), set(kernel.capture.units)
    try:
        kernel.capture.run(None)
    except NoRoom as e:
        assert "64 MiB" in str(e)
        assert set(kernel.capture.units) == known
    else:  # another limit was met first, and then it is told
        assert any(unit.gone for unit in kernel.capture.units.values())
    gc.collect()
    assert limits.resident() - before < 400 << 20
    assert kernel.run("del e, d") or kernel.run("e = d = 0")
    assert kernel.capture.run(None).changed


MOCK = """
from unittest.mock import MagicMock
e = MagicMock(return_value=3); e(1); a = [1]
"""


@pytest.mark.parametrize("source", [DEEPER.replace("d =", "e ="), MOCK], ids=["deeper", "mock"])
def test_what_makes_objects_without_end_costs_no_other(tmp_path: Path, source: str) -> None:
    kernel = Kernel(tmp_path)
    assert kernel.run(source), kernel.error
    assert kernel.run("also = {1: e, 2: [2]}; apart = [a]")
    kernel.capture.run(None)
    gone = {name: unit.gone for unit in kernel.capture.units.values() for name in unit.names if unit.gone}
    assert set(gone) == {"also", "e"}
    assert [g.why for g in gone["e"]] == [session.ENDLESS]
    assert kernel.run("a.append(2)")
    assert [c.unit.names for c in kernel.capture.run(None).changed] == [["a", "apart"]]


FINITE = {
    "a list of nodes": "class Node: pass\nd = None\nfor i in range(6000):\n    n = Node(); n.next = d; d = n",
    "made at once": """
class Node: pass
class Held:
    def __getstate__(self):
        d = None
        for i in range(6000):
            n = Node(); n.next = d; d = n
        return {"d": d}
d = Held()
""",
}


@pytest.mark.parametrize("source", FINITE.values(), ids=FINITE)
def test_deep_objects_that_have_an_end_are_written(tmp_path: Path, source: str) -> None:
    kernel = Kernel(tmp_path)
    gc.disable()  # whatever the cell makes stays young
    try:
        assert kernel.run(source), kernel.error
        kernel.capture.run(None)
    finally:
        gc.enable()
    assert not [unit.gone for unit in kernel.capture.units.values() if unit.gone]


AGENT = """
import json, sys
from pathlib import Path
from IPython.core.interactiveshell import InteractiveShell
from gresshopper.state import agent as agents, limits, native
limits.FLOOR = 32 << 20
native.room = lambda: 0
ip = InteractiveShell.instance()
agent = agents.Agent(ip, Path(sys.argv[1]) / "store")
agent.watcher.pace.patience = float("inf")
agent.watch()
ip.run_cell("big = [str(i) * 20 for i in range(2_000_000)]")
ip.run_cell("x = 1")
first = len(agent.watcher.failures.texts), len(agent.watcher._waiting)
agent.watcher.pace._crowded_until = 0.0
ip.run_cell("del big; x = 2")
print("\\x1e" + json.dumps([first, agent.watcher.failures.texts, len(agent.watcher._waiting)]))
"""


def test_no_room_is_told_once_and_made_up_for(tmp_path: Path) -> None:
    said, errors = child.answer(AGENT, str(tmp_path), base=tmp_path)
    assert said[0] == [1, 2] and said[2] == 0
    assert errors.count("32 MiB of memory") == 1


@pytest.mark.thorough
def test_memory_of_the_engine_does_not_grow_with_the_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two notebooks' worth of cells later it holds no more than before."""
    interactive = pytest.importorskip("IPython.core.interactiveshell")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(recorder, "NOTES", 60)
    monkeypatch.setattr(units, "TABLED", 100)
    tmp_path.chmod(0o700)
    config = pytest.importorskip("traitlets.config").Config()
    config.HistoryManager.enabled = False
    shell = interactive.InteractiveShell(config=config)
    agent = agents.Agent(shell, tmp_path / "store")
    agent.watcher.pace.patience = float("inf")
    agent.watch(tmp_path / "log")

    def cells(n: int) -> int:
        for i in range(n):
            shell.run_cell(
                f"import random\nrandom.random()\nclass A: pass\na = A(); b = [a, {i}]\ndef f(): return a, {i}\n"
                "try: 1 / 0\nexcept Exception as e: caught = e"
            )
        gc.collect()
        agent.watcher.audit()  # as in think time: it finds that the older classes are gone
        ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/gresshopper/state/*")])
        return sum(stat.size for stat in ours.statistics("filename"))

    tracemalloc.start()
    try:
        cells(10)
        held = [cells(80), cells(80), cells(80)]
    finally:
        tracemalloc.stop()
        agent.unwatch()
    assert not agent.watcher.failures.texts
    assert held[2] - held[1] < 40_000, held


def test_a_class_that_is_defined_anew_goes_with_what_it_holds(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.log.create()
    assert kernel.run("import weakref, collections\nseen = []")
    for _ in range(10):
        assert kernel.run(
            "class A:\n    data = bytearray(100_000)\nclass B(A):\n    def __reduce__(self): return B, ()\n"
            "P = collections.namedtuple('P', 'x y')\na, b, p = A(), B(), P(1, 2)\n"
            "seen += [weakref.ref(A), weakref.ref(B), weakref.ref(P)]"
        )
        kernel.snap("class A: pass\nB = P = a = b = p = seen = collections = weakref = None")
        kernel.capture.run(None)
    gc.collect()
    kernel.capture.run(None)
    assert sum(ref() is not None for ref in kernel.ns["seen"]) == 3
    assert sum(m.startswith("c:") for u in kernel.capture.units.values() for m in u.members) == 3


def test_the_table_of_objects_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "ALL_TABLED", 1000)
    kernel = Kernel(tmp_path)
    assert kernel.run("".join(f"l{i} = [[j] for j in range(150)]\n" for i in range(20)))
    kernel.capture.run(None)
    assert len(kernel.capture._known._table) <= 1000 and kernel.capture._known._large
    assert kernel.run("alias = l19[3]")  # what isn't in the table is found all the same
    changed = kernel.capture.run(None).changed
    assert [c.unit.members for c in changed] == [("n:alias", "n:l19")]


def test_older_notes_become_one(tmp_path: Path) -> None:
    notes: list[dict[str, Any]] = [
        {
            "cell": {"names": [], "touched": []},
            "units": [{"u": i % 7, "m": [f"n:v{i % 7}"], "lost": False}],
            "gone": [i % 5] if i % 3 == 0 and i % 5 != i % 7 else [],
            "drawn": {"random": bytes([i])},
        }
        for i in range(40)
    ]
    short = planning.shortened(notes, 10)
    assert len(short) == 11 and short[1:] == notes[-10:]
    long, now = planning.History(notes), planning.History(short)
    assert set(long.last) == set(now.last)
    assert [b for b in now.before[1:]] == long.before[-10:]
    for uid, at in long.last.items():
        assert now.last[uid] == max(0, at - 29)


def test_a_long_chain_of_objects_needs_no_deep_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one, the user's next cell would wait until the whole stack is unwound."""
    ran: list[str] = []
    deep = pickling._deep
    monkeypatch.setattr(pickling, "_deep", lambda run: (ran.append("deep"), deep(run))[1])
    kernel = Kernel(tmp_path)
    kernel.log.create()
    for source in (
        "class Node: pass\nhead = None\nfor i in range(20_000): n = Node(); n.next = head; head = n",
        "head.x = 1",
    ):
        assert kernel.run(source), kernel.error
        kernel.snap(source)
    assert not ran and not [gone for unit in kernel.capture.units.values() for gone in unit.gone]
