"""Off the GPU and back on, from inside the process: copies torch's and cupy's memory out, and guards user code that
asks for an absent GPU.

    import gresshopper.gpu
    gresshopper.gpu.install()          # before torch is used; `%load_ext gresshopper.gpu` does it
    with gresshopper.gpu():            # in the middle of a cell: returns with a GPU, or raises a sentence
        ...

The device itself is freed by the driver's checkpoint from outside (`hop gpu park PID`); see docs/gpu-park.md.
"""

from __future__ import annotations

import ast
import contextlib
import sys
from types import ModuleType, TracebackType
from typing import Any

from gresshopper import channel, door, need, saving

from . import _restart
from ._errors import GpuUnavailable, ParkRefused
from ._keeper import Keeper
from ._lease import LeaseSource, NoLease, Workstation
from ._reading import Reading

__all__ = [
    "GpuUnavailable",
    "Keeper",
    "LeaseSource",
    "NoLease",
    "ParkRefused",
    "Workstation",
    "install",
    "is_away",
    "keeper",
    "reading",
]


class _Process:
    """Single objects of a process."""

    keeper: Keeper | None = None


def keeper() -> Keeper:
    """This process's keeper; `install` makes it."""
    if _Process.keeper is None:
        raise RuntimeError("gresshopper.gpu.install() has not been called")
    return _Process.keeper


def install(source: LeaseSource | None = None, *, serve: bool = True, ipython: Any = None) -> Keeper:
    """Puts the guard in place and, with `serve`, opens the door to `hop gpu`. Calling it again changes only the source."""
    if _Process.keeper is not None:
        if source is not None:
            _Process.keeper.source = source
        return _Process.keeper
    made = _Process.keeper = Keeper(source)
    made.install()
    if ipython is not None:
        _watch_cells(made, ipython)
    if serve:
        made.register()
        if ipython is not None:
            saving.offer(ipython)
        door.open_here()
    return made


class _Gate(ast.NodeTransformer):
    """Has a refused cell raise its refusal instead of running: IPython only prints exceptions of hooks."""

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Module) and keeper().refusal is not None:
            node.body = ast.parse("__import__('gresshopper.gpu').gpu.keeper().raise_refusal()").body
        return node


def _watch_cells(keeper: Keeper, ipython: Any) -> None:
    def before(info: Any) -> None:
        # A refusal is the cell's to raise. Whatever else failed, the guard is in place, and no cell shows an error of ours.
        with contextlib.suppress(Exception):
            keeper.before_cell(info.raw_cell or "")

    keeper.namespace = lambda: ipython.user_ns
    keeper.start_again = lambda state: _restart.start_again(ipython, state)
    keeper.restore = lambda state: _restart.restore(ipython, state)
    ipython.events.register("pre_run_cell", before)
    ipython.events.register("post_run_cell", lambda result: keeper.after_cell())
    ipython.ast_transformers.append(_Gate())


def load_ipython_extension(ipython: Any) -> None:
    """`%load_ext gresshopper.gpu`"""
    made = install(ipython=ipython)
    state = _restart.pending()
    if state is not None:
        made.begin_saved(state)


def reading() -> Reading | None:
    """Device memory as a capture of the notebook's state may read it. None: nobody moves any here."""
    return None if _Process.keeper is None else _Process.keeper.reading()


def is_away() -> bool:
    """Whether only the driver holds the contents of the device."""
    return _Process.keeper is not None and _Process.keeper.is_away


class _Asked:
    """`with gresshopper.gpu():`"""

    def __enter__(self) -> None:
        install().ensure("the code asks for one")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        return None


class _Callable(ModuleType):
    """A callable module: `gresshopper.gpu` is both module and function."""

    def __call__(self, n: int = 1, **asked: Any) -> _Asked | need.Need:
        """In a kernel of Gresshopper a lease (`gresshopper.need.gpu`), elsewhere the workstation's own GPU."""
        return need.gpu(n, **asked) if channel.is_here() else _Asked()


sys.modules[__name__].__class__ = _Callable
