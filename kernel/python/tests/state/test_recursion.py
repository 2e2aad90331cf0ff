"""No nesting ends the process, whatever recursion limit the notebook set."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from gresshopper.state import recursion

import child

KEPT = """
import os, sys
from pathlib import Path
from harness import Kernel
sources, check = sys.argv[1:-1], sys.argv[-1]
kernel = Kernel(Path.cwd())
kernel.log.create()
sys.setrecursionlimit(10**6)
for source in sources:
    assert kernel.run(source), kernel.error
    kernel.snap(source)
kernel.snap("", audit=True)
kernel.log.commit(False)
kernel.log.close()
lost = [g.why for unit in kernel.capture.units.values() for g in unit.gone]
limits = [sys.getrecursionlimit()]
sys.setrecursionlimit(1000)
fresh = Kernel(Path.cwd())
told = fresh.restore()[0].lost
limits.append(sys.getrecursionlimit())
exec(check, fresh.ns)
print("\\x1e" + __import__("json").dumps([lost, limits, fresh.ns["out"], told]), flush=True)
os._exit(0)
"""
LIST = """
class Node: pass
head = None
for i in range(40_000): node = Node(); node.v = i; node.next = head; head = node
"""
BESIDE = """
import sys, threading, time
from pathlib import Path
from harness import Kernel
def deep(n):
    if n: return deep(n - 1)
    while True: time.sleep(0.001); threading.get_ident(), len(str(n).upper())
kernel = Kernel(Path.cwd())
kernel.log.create()
sys.setrecursionlimit(10**6)
threading.Thread(target=deep, args=(6000,), daemon=True, name="deep").start()
time.sleep(0.2)
assert kernel.run(sys.argv[1])
kernel.snap(sys.argv[1])
print("\\x1e" + __import__("json").dumps([t.name for t in threading.enumerate()]), flush=True)
__import__("os")._exit(0)
"""
DEEP = {
    "objects": ([LIST], "out = 0\nwhile head: head = head.next; out += 1", 40_000),
    "tuples": (["t = None\nfor i in range(60_000): t = (i, t)"], "out = 0\nwhile t: t = t[1]; out += 1", 60_000),
    "functions": (
        ["def after(f): return lambda: f\nf = None\nfor i in range(12_000): f = after(f)"],
        "out = 0\nwhile f: f = f(); out += 1",
        12_000,
    ),
    "an option": (
        [
            "import csv\nclass D(csv.excel): pass\nv = []\nfor i in range(60_000): v = [v]\nD.v = v; csv.register_dialect('d', D)"
        ],
        "out = 'v' in dir()",
        True,
    ),
}


@pytest.mark.parametrize("what", DEEP)
def test_deep_nesting_under_a_high_limit_is_kept(what: str, tmp_path: Path) -> None:
    cells, check, out = DEEP[what]
    (lost, limits, found, _), _ = child.answer(KEPT, *cells, check, base=tmp_path)
    assert (lost, limits, found) == ([], [10**6] * 2, out)


def test_what_is_too_deep_in_any_way_is_told_and_costs_nothing_else(tmp_path: Path) -> None:
    script = KEPT.replace("sources,", "from gresshopper.state import pickling; pickling.DEEP_LIMIT = 5000\nsources,")
    cells = ["kept = [1]", "t = None\nfor i in range(60_000): t = (i, t)"]
    (lost, _, found, told), _ = child.answer(script, *cells, "out = kept", base=tmp_path)
    assert len(lost) == 1 and found == [1] and "can't be compared" in told["t"]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="C's calls have a limit of their own")
def test_a_thread_beside_the_cells_keeps_its_depth(tmp_path: Path) -> None:
    running, errors = child.answer(BESIDE, LIST, base=tmp_path)
    assert "deep" in running and "RecursionError" not in errors


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="C's calls have a limit of their own")
def test_the_bound_doesnt_show_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recursion, "asked", [])  # other tests' threads run
    before = sys.getrecursionlimit()
    try:
        recursion.set_limit(50_000)
        with recursion.Bounded(), recursion.Bounded():
            assert recursion.limit() == 50_000 and sys.getrecursionlimit() < 5000 and not recursion.is_high()
        assert sys.getrecursionlimit() == 50_000
        with pytest.raises(ZeroDivisionError), recursion.Bounded():
            recursion.set_limit(60_000)
            assert recursion.limit() == 60_000 and sys.getrecursionlimit() < 5000
            raise ZeroDivisionError
        assert sys.getrecursionlimit() == 60_000
        with recursion.Bounded():
            sys.setrecursionlimit(70_000)  # as code of the notebook may, while it is pickled
        assert sys.getrecursionlimit() == 70_000
    finally:
        sys.setrecursionlimit(before)
