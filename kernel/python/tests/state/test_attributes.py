"""Instances whose `__dict__` others hold are told from those whose is their own, however often they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import Kernel

CELL = """
class Plain: pass
class Slots:
    __slots__ = ("a", "__dict__")
class Shared:
    state = {}
    def __init__(self): self.__dict__ = Shared.state
a, b, c, d = Plain(), Slots(), Shared(), Shared()
a.x, b.a, b.x, c.x = [1], 1, [2], [3]
e = vars(a)
f = [Plain() for _ in range(9)]
for one in f: one.other = f[0]
g = f[3].__dict__ is None
h = [a, f[1], c, b]
"""


@pytest.mark.thorough
def test_what_is_shared_is_written_so_each_time(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.log.create()
    assert kernel.run(CELL), kernel.error
    kernel.snap(CELL)
    kernel.capture.run(None, arm=True)
    for source in ("g = 1", "h.append(a)", "h.pop()", "del e\ne = vars(a)", "i = [h]", "del i"):
        assert kernel.run(source), kernel.error
        kernel.capture.run(None, arm=True)
        assert not kernel.capture.run(None).changed, source
        assert not kernel.capture.run(None, arm=True).changed, source


def test_only_what_is_shared_is_written_so(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.log.create()
    cell = "class A: pass\na, b = A(), A()\na.b, b.a = b, a\nc = [a, b, a]\nd = {'a': a}"
    assert kernel.run(cell), kernel.error
    for _ in range(3):
        kernel.capture.run(None, arm=True)
    streams = [changed.stream for changed in kernel.capture.run(None, everything=True).changed]
    assert streams and not any(b"set_shared" in stream for stream in streams)
