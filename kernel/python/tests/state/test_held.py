"""What a variable, or an object of the notebook's, holds of the shell or the interpreter is the new kernel's own."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

import pytest

from supervisor import Kernel
from test_afterwards import printed, restored
from test_messages import start  # noqa: F401 - a fixture

for package in ("ipykernel", "jupyter_client", "cloudpickle"):
    pytest.importorskip(package)

HELD = """
import code, sys, timeit
class Holder:
    def __init__(self, **held): vars(self).update(held)
g = globals()
deep = Holder(ns=[locals()], path=sys.path, told=In, shown=[Out], folders=_dh)
console = code.InteractiveInterpreter(globals())
timer = timeit.Timer('big.append(2)', globals=globals())
told, shown = In, Out
x, big = 1, [1] * 200_000
"""
ASKED = (
    "print(g is globals() is deep.ns[0] is console.locals, deep.path is sys.path, told is In is deep.told,"
    " shown is Out is deep.shown[0], deep.folders is _dh, x, len(big), g.get('late'), sorted(Out), len(In))"
)


@pytest.mark.parametrize(
    ("cells", "lazy"),
    [
        (["x = 2", "42"], True),
        (["console.runsource('x = 5')", "timer.timeit(1); None"], True),
        (["g['late'] = 3", "deep.ns[0]['big'].append(2)"], True),
        (["[[7]]", "shown[max(shown)][0].append(8)", "x"], False),
    ],
)
def test_what_holds_the_namespace_or_the_history_holds_the_kernels_own(
    cells: list[str],
    lazy: bool,
    start: Callable[..., Kernel],  # noqa: F811
    tmp_path: Path,
) -> None:
    kernel = start()
    kernel.begin(patience_ms=None)
    for cell in (HELD, *cells):
        assert kernel.run(cell)[1] == "ok"
    fresh = restored(kernel, start, tmp_path / "log", lazy)
    for source in (ASKED, "g['x'] = 9", "print(len(deep.ns[0]['big']))", "print(x)", "print(Out)", ASKED):
        assert printed(fresh, source) == printed(kernel, source)


def test_a_group_that_is_read_later_is_there_through_the_namespace(
    start: Callable[..., Kernel],  # noqa: F811
    tmp_path: Path,
) -> None:
    kernel = start()
    kernel.begin(patience_ms=None)
    for cell in ("g = globals()\nname = 'large'", "large = [bytes([i]) * 300_000 for i in range(9)]"):
        kernel.run(cell)
    fresh = restored(kernel, start, tmp_path / "log")
    assert printed(fresh, "print(len(g[name]))") == "9\n"
