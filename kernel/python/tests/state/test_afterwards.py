"""After a restore IPython's own memory and settings of the cells' context are as in a kernel that nothing happened to."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable

import pytest

from supervisor import Kernel
from test_messages import start, write_log  # noqa: F401 - a fixture

SHOWN = (
    "print([repr(globals().get(n, 'none'))[:40] for n in ('_', '__', '___')], {k: repr(v)[:20] for k, v in Out.items()},"
    " [getattr(get_ipython().displayhook, n) is globals().get(n) for n in ('_', '__', '___')])"
)


def told_and_restored(
    kernel: Kernel,
    start: Callable[..., Kernel],  # noqa: F811
    folder: Path,
    lazy: bool = True,
) -> tuple[Any, Kernel]:
    """What a restore tells, and another kernel with what this one has recorded."""
    # An audit would find what the capture of the cells has missed.
    kernel.ask("flush", {"audit": False})
    kernel.settle()
    write_log(folder, [])
    fresh = start()
    fresh.begin(record=99, capture="nothing", patience_ms=None)
    told = fresh.ask("restore", {"folder": str(folder), "lazy": lazy}, kernel.attachments())
    fresh.begin(record=50, patience_ms=None)
    return told, fresh


def restored(kernel: Kernel, start: Callable[..., Kernel], folder: Path, lazy: bool = True) -> Kernel:  # noqa: F811
    """Another kernel with what this one has recorded."""
    return told_and_restored(kernel, start, folder, lazy)[1]


def printed(kernel: Kernel, source: str) -> str:
    """What a cell prints that counts as one."""
    out: list[str] = []
    kernel.client.execute_interactive(
        source, timeout=60, output_hook=lambda m: out.append(m["content"].get("text", ""))
    )
    return re.sub("0x[0-9a-f]+", "", "".join(out))


@pytest.mark.parametrize(
    "cells",
    [
        ["x = [1]", "x", "x.append(2)"],
        ["x = {'a': 1}", "x", "_", "_['b'] = 2"],
        ["x = [1]", "x", "Out[2].append(3)"],
        ["5", "for _ in range(3): pass", "7"],
        ["5", "for _ in range(3): pass", "del _", "8", "9"],
        ["a, _ = 1, [2]", "_"],
        ["_ = str.upper", "lambda: 3", "(i for i in 'ab')"],
    ],
)
def test_displayed_values_go_on(
    cells: list[str],
    start: Callable[..., Kernel],  # noqa: F811
    tmp_path: Path,
) -> None:
    kernel = start()
    kernel.begin(patience_ms=None)
    for cell in cells:
        kernel.run(cell)
    fresh = restored(kernel, start, tmp_path / "log")
    for source in (SHOWN, "11", SHOWN, "12", SHOWN):
        assert printed(fresh, source) == printed(kernel, source)


@pytest.mark.parametrize("lazy", [True, False])
def test_what_belongs_to_the_cells_context_is_there(
    lazy: bool,
    start: Callable[..., Kernel],  # noqa: F811
    tmp_path: Path,
) -> None:
    kernel = start()
    kernel.begin(patience_ms=None)
    for cell in (
        "import decimal, numpy as np; decimal.getcontext().prec = 50; from decimal import Decimal",
        "before = np.seterr(all='raise'); np.set_printoptions(precision=2)",
        "with decimal.localcontext() as c:\n    c.prec = 3\n    short = Decimal(1) / 3",
        "'last'",
    ):
        kernel.run(cell)
    check = "print(Decimal(1) / 3, short, np.geterr(), np.array([1 / 3]), _, repr(_i), repr(_ii), _i1[:6], len(In))"
    once = restored(kernel, start, tmp_path / "one", lazy)
    # Once more before a cell has run there: nothing is taken for changed.
    kernel.events += once.events
    again = restored(kernel, start, tmp_path / "two", lazy)
    wanted = printed(kernel, check)
    assert wanted.startswith("0." + 50 * "3" + " 0.333 ") and "[0.33] last" in wanted
    assert printed(once, check) == wanted
    assert printed(again, check) == wanted
    once.run("decimal.getcontext().prec = 7")
    assert printed(once, "print(Decimal(1) / 3)").strip() == "0.3333333"


def test_context_variables_have_their_values_again(
    start: Callable[..., Kernel],  # noqa: F811
    tmp_path: Path,
) -> None:
    kernel = start()
    (kernel.base / "of_context.py").write_text(
        "from contextvars import ContextVar\nuser = ContextVar('user', default='nobody')\n"
    )
    kernel.begin(patience_ms=None)
    for cell in (
        "from contextvars import ContextVar\ncv, other, unset = ContextVar('cv', default=3), ContextVar('other'), ContextVar('unset')",
        "import of_context; shared = [1]",
        "before = cv.set(5)",
        "of_context.user.set(shared);",
        "other.set(i for i in [1, 2]); x = 1",
        "x",
    ):
        assert kernel.run(cell)[1] == "ok", kernel.replied
    check = "print(cv.get(), of_context.user.get() is shared, unset.get('none'), other.get('none') == 'none')"
    told, once = told_and_restored(kernel, start, tmp_path / "one")
    assert "other: the value of a context variable isn't saved, set it again" in told["notices"]
    kernel.events += once.events
    again = restored(kernel, start, tmp_path / "two")
    assert printed(kernel, check) == "5 True none False\n"
    assert printed(once, check) == printed(again, check) == "5 True none True\n"
    once.run("cv.set(6)")
    assert printed(once, "print(cv.get())") == "6\n"


IN_A_CELL = """
from IPython.core.interactiveshell import InteractiveShell
with InteractiveShell().builtin_trap:
    from gresshopper.state import process
print([where for where in process._hung_in() if where.startswith("builtins.")])
"""


def test_what_ipython_hides_while_a_cell_runs_was_not_set_by_the_notebook() -> None:
    """The engine may be loaded while the first cell runs."""
    package = Path(__file__).resolve().parents[2]
    run = subprocess.run(
        [sys.executable, "-c", IN_A_CELL], cwd=package, capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout == "[]\n"


@pytest.mark.parametrize("magic", ["%matplotlib inline\n", ""])
@pytest.mark.parametrize("source", ["fig", "plt.plot([1, 2])\nplt.show()"])
def test_the_first_figure_is_shown_as_before(
    magic: str,
    source: str,
    start: Callable[..., Kernel],  # noqa: F811
    tmp_path: Path,
) -> None:
    def pictures(kernel: Kernel) -> list[str]:
        data: list[dict[str, str]] = []
        kernel.client.execute_interactive(
            source, timeout=60, output_hook=lambda m: data.append(m["content"].get("data", {}))
        )
        return [each["image/png"] for each in data if "image/png" in each]

    kernel = start()
    kernel.begin(patience_ms=None)
    kernel.run(f"{magic}import matplotlib.pyplot as plt")
    # Closed: shown where its user names it alone.
    kernel.run("fig, axes = plt.subplots()\naxes.plot([1, 2, 1])\nplt.close(fig)")
    fresh = restored(kernel, start, tmp_path / "log")
    shown = pictures(fresh)
    assert len(shown) == 1
    assert shown == pictures(kernel)


def test_figures_are_shown_or_not_as_the_notebook_has_it_and_open_ones_stay_open(
    start: Callable[..., Kernel],  # noqa: F811
    tmp_path: Path,
) -> None:
    def shown(kernel: Kernel, source: str) -> list[Any]:
        said: list[Any] = []
        kernel.client.execute_interactive(
            source,
            timeout=60,
            output_hook=lambda m: said.append(
                (m["content"].get("data", {}).get("text/plain"), m["content"].get("text"))
            ),
        )
        return [each for each in said if each != (None, None)]

    kernel = start()
    kernel.begin(patience_ms=None)
    kernel.run("%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.figure().gca().plot([1, 2])")
    kernel.run("plt.ioff()\nheld = plt.figure(figsize=(1, 1))")
    fresh = restored(kernel, start, tmp_path / "log")
    for source in (
        "print(plt.isinteractive(), plt.get_fignums(), plt.gcf() is held)",
        "plt.figure(figsize=(2, 1)); print(plt.isinteractive(), plt.get_fignums())",
        "plt.gca().plot([1, 2]); print(len(plt.gcf().axes), plt.gcf() is held)",
    ):
        assert shown(fresh, source) == shown(kernel, source) != [], source


def test_a_large_figure_is_there_before_a_cell_names_it(start: Callable[..., Kernel], tmp_path: Path) -> None:  # noqa: F811
    kernel = start()
    kernel.begin(patience_ms=None)
    kernel.run("%matplotlib inline\nimport matplotlib.pyplot as plt")
    kernel.run("plt.ioff()\nheld, axes = plt.subplots()\nlines = axes.plot(range(200_000))")
    told, fresh = told_and_restored(kernel, start, tmp_path / "log")
    assert not told["pending"]["groups"], told
    source = "print(plt.get_fignums(), len(plt.gcf().axes), len(plt.gca().lines))"
    assert printed(fresh, source) == printed(kernel, source) == "[1] 1 1\n"
    assert not fresh.of("notice")


def test_a_figure_that_pyplot_alone_held_is_told(start: Callable[..., Kernel], tmp_path: Path) -> None:  # noqa: F811
    kernel = start()
    kernel.begin(patience_ms=None)
    kernel.run("%matplotlib inline\nimport matplotlib.pyplot as plt")
    kernel.run("plt.ioff()\nplt.figure()\nheld = plt.figure()\nplt.figure()")
    kernel.run("None")
    told, _ = told_and_restored(kernel, start, tmp_path / "log", lazy=False)
    figures = [notice for notice in told["notices"] if "pyplot" in notice]
    assert len(figures) == 1 and ": 1" in figures[0] and "2" not in figures[0], told
