"""Programs that cells have started and that outlast them: they end with the kernel's process tree, or stay behind alone.

A process without children that started no program costs one system call. Helpers of libraries aren't counted: they hold
nothing of the user's, or an object in a variable stands for them.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gresshopper import started

from . import adapters

#: Effects by which a cell starts programs.
_STARTS = frozenset(
    {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn", "subprocess.Popen"}
)
#: Parts of the command lines of helpers: of `multiprocessing`, joblib, the debugger, and this package.
_HELPERS = re.compile(
    r"resource_tracker|semaphore_tracker|multiprocessing\.forkserver|multiprocessing\.spawn|loky|debugpy|pydevd|\bgresshopper\."
)
#: Programs that run the script named after them.
_RUNNERS = re.compile(r"(python|pypy|perl|ruby|node|Rscript|sh|bash|dash|zsh|nohup|env|julia)[\d.]*")
#: Set by the supervisor, and inherited by programs: the supervisor's process.
_MARK = "JPY_PARENT_PID"
#: Most characters of a name.
_SHORT = 60


class _Stat(NamedTuple):
    """A living process: its parent and start, in the clock ticks of the system."""

    parent: int
    began: int


class Programs:
    """The programs of one kernel."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        #: Whether a program may have been started whose parent is gone.
        self._may_be_left = False
        #: Programs without their parent, by number and start.
        self._left: dict[int, tuple[int, str]] = {}
        self._before: set[int] = set()

    def note(self, did: Collection[str]) -> None:
        """Note the effects of a cell."""
        self._may_be_left = self._may_be_left or not _STARTS.isdisjoint(did)

    def running(self) -> list[str]:
        """Names of the programs that run now."""
        has = _has_children()
        if not has and not self._may_be_left and not self._left and not self._before:
            return []
        children = self._children() if has else {}
        # A child that ended may have left others behind.
        look = self._may_be_left or not self._before <= children.keys()
        self._before = set(children)
        if look:
            self._left = dict(self._found_alone())
            self._may_be_left = False
        for pid, (began, _) in list(self._left.items()):
            if (stat := self._stat(pid)) is None or stat.began != began:
                del self._left[pid]
        return sorted({*children.values(), *(name for _, name in self._left.values())})

    def _children(self) -> dict[int, str]:
        named = ((pid, self._named(pid)) for pid in self._child_numbers() if self._stat(pid) is not None)
        return {pid: name for pid, name in named if name is not None}

    def _child_numbers(self) -> set[int]:
        own = self._proc / str(os.getpid()) / "task"
        try:
            lists = [(own / task / "children").read_text() for task in os.listdir(own)]
            return {int(pid) for found in lists for pid in found.split()}
        except OSError:  # a Linux without these lists
            me = os.getpid()
            return {pid for pid in self._all() if (stat := self._stat(pid)) is not None and stat.parent == me}

    def _all(self) -> Iterator[int]:
        return (int(name) for name in os.listdir(self._proc) if name.isdigit())

    def _stat(self, pid: int) -> _Stat | None:
        """None: it has ended."""
        try:
            said = (self._proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
            return None if said[0] in (b"Z", b"X") else _Stat(int(said[1]), int(said[19]))
        except (OSError, ValueError, IndexError):
            return None

    def _named(self, pid: int) -> str | None:
        """A program's name. None: it is a helper."""
        known = next((child for child in _processes() if getattr(child, "pid", None) == pid), None)
        if known is not None:
            return None if _is_worker(known) else str(known.name)
        line = self._command(pid)
        # `hop` asks the kernel that waits for it, by `%hop` in a cell.
        is_helper = not line or os.path.basename(line[0]) == "hop" or any(map(_HELPERS.search, line[1:]))
        return None if is_helper else name_of(line)

    def _command(self, pid: int) -> list[str]:
        try:
            return [os.fsdecode(part) for part in (self._proc / str(pid) / "cmdline").read_bytes().split(b"\0")[:-1]]
        except OSError:
            return []

    def _found_alone(self) -> Iterator[tuple[int, tuple[int, str]]]:
        """Programs of this kernel's whose parent has ended: they inherited its environment, and nobody else has."""
        mark, own = started.start().environment.get(_MARK), self._stat(os.getpid())
        if mark is None or own is None:
            return
        ours = {pid for pid in self._all() if self._is_marked(pid, f"{_MARK}={mark}".encode())}
        for pid in ours - {os.getpid()}:
            stat = self._stat(pid)
            if stat is None or stat.parent in ours or str(stat.parent) == mark or stat.began < own.began:
                continue
            if (name := self._named(pid)) is not None:
                yield pid, (stat.began, name)

    def _is_marked(self, pid: int, mark: bytes) -> bool:
        with contextlib.suppress(OSError):
            return mark in (self._proc / str(pid) / "environ").read_bytes().split(b"\0")
        return False


def _processes() -> list[Any]:
    """Processes of `multiprocessing` that weren't waited for."""
    return list(getattr(sys.modules.get("multiprocessing.process"), "_children", ()))


def _is_worker(process: Any) -> bool:
    """Whether a process of `multiprocessing` is an executor's, a pool's, or a loader of data."""
    pids = {pid for thread in threading.enumerate() for pid in getattr(thread, "processes", None) or ()}
    works = (
        process.daemon and "Process-" in process.name and any(m in sys.modules for m in adapters.entries("workers"))
    )
    return process.pid in pids or "PoolWorker" in process.name or works


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def name_of(line: list[str]) -> str:
    """A program's name by its command line: a script's, where one is run."""
    first, *rest = line
    name = os.path.basename(first).lstrip("-")
    if _RUNNERS.fullmatch(name) and rest:
        script: Any = next((given for given in rest if not given.startswith("-")), None)
        if script is not None:
            name = os.path.basename(script) if " " not in script else script
    return name if len(name) <= _SHORT else f"{name[:_SHORT]}..."
