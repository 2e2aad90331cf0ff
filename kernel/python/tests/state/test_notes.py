"""What comes back otherwise than it was is told, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import Kernel

CACHED = "import functools\n@functools.lru_cache\ndef f(x): return x\n"
COUNTS = "class A:\n    asked = 0\n"
CHANGES = "A's own pickling changes it at each capture: asked"
LOCK = "import threading\nlock = threading.Lock()\n"


def test_what_shares_with_a_lost_value_is_not_lost(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.log.create()
    cell = (
        "import time\nrows = [1, 2, 3]\nboxed = {'r': rows}\ndef each(x): yield from x\n"
        "halves = (n / 2 for n in each(rows))\nnext(halves)\nheld = [[halves], boxed]\nmax_of = lambda: max(rows)\n"
        "since = time.time()"
    )
    assert kernel.run(cell), kernel.error
    kernel.snap(cell)
    kernel.log.commit(False)
    kernel.log.close()
    fresh = Kernel(tmp_path)
    told, _ = fresh.restore()
    assert sorted(told.lost) == ["halves", "held"]
    assert fresh.ns["held"][1]["r"] is fresh.ns["rows"] and fresh.ns["max_of"]() == 3


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        (CACHED + "f(1)", ["what an lru_cache held is computed again after a restore"]),
        (CACHED, []),
        (LOCK + "lock.acquire()", ["a lock that was held is free after a restore"]),
        (LOCK, []),
        (COUNTS + "    def __reduce__(self):\n        A.asked += 1\n        return A, ()\na = A()", [CHANGES]),
        (COUNTS + "    def __reduce__(self): return A, ()\na = A()", []),
        (COUNTS + "    def __getattribute__(self, name):\n        A.asked += 1\n        return 1\na = A()", []),
    ],
)
def test_told_only_where_it_is_so(tmp_path: Path, cell: str, told: list[str]) -> None:
    kernel = Kernel(tmp_path)
    kernel.log.create()
    assert kernel.run(cell), kernel.error
    kernel.snap(cell)
    assert [note for unit in kernel.capture.units.values() for note in unit.notes] == told


def test_only_what_is_gone_is_said_to_be(tmp_path: Path) -> None:
    cell = "def g():\n    while True: yield data\ndata = [1]\nmore = {'data': data}\nit = g(); next(it)"
    kernel = Kernel(tmp_path)
    kernel.log.create()
    assert kernel.run(cell), kernel.error
    kernel.snap(cell, ok=False)  # so that it isn't run again
    kernel.log.commit(False)
    fresh = Kernel(tmp_path)
    told, _ = fresh.restore()
    assert list(told.lost) == ["it"] and fresh.ns["more"]["data"] is fresh.ns["data"]
