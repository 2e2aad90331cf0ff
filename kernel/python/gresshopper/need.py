"""Needs of code: the magics ``%%gpu`` and ``%%cpu``, and ``with gresshopper.gpu():``.

The magics are read by the kernel's supervisor before the cell runs. Here their line is only blanked, to leave all else
in the cell unchanged: line numbers, the last expression's display, ``await``, other cell magics.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import threading
from dataclasses import dataclass, field
from operator import index
from pathlib import Path
from types import TracebackType
from typing import Any, Callable

from gresshopper import between, channel, revoked

_MAGIC = re.compile(r"\s*%%(gpu|cpu)(\s|$)")
_RETRY = re.compile(r"\s*%%retry\s*(\s#.*)?$")
_HELP = re.compile(r"\s*%%(gpu|cpu)\s+([^#]*\s)?(--help|-h)(\s|$)")

HELP = """A cell that asks for GPUs or cores waits its turn, runs with them, and gives them back.

%%gpu [N] [--type T] [--mem G] [--cpus C] [--deadline D]     on the cell's first line
    N             GPUs, all on one node; 1 without it
    --type T      Slurm's GPU type, as `hop info -o node,gputypes` shows it
    --mem G       at least so much memory on each GPU, in GiB (40, 40G, 512M)
    --cpus C      cores that come with the lease, beside the kernel's own
    --deadline D  by when it should be done: 10m, 2h30m, 2026-12-01T18:00Z
%%cpu --cpus C           cores alone
%%retry                  above either: run the cell again if its node is lost in its middle
with gresshopper.gpu(N): for a part of a cell (import gresshopper)
%gpu                     how this kernel stands, its memory too
%gpu release             gives back a GPU that is kept for the next cell

"""


class _AtTheCell(Exception):
    """Shown by IPython where the cell asks. The frames beneath are our code, which the cell's author can't mend."""

    def _render_traceback_(self) -> list[str]:
        # Imported here: the package is importable without IPython.
        from IPython import get_ipython

        shown: list[str] = get_ipython().InteractiveTB.structured_traceback(
            type(self), self, _above_us(self.__traceback__)
        )
        return shown


def _above_us(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without our own frames at its end."""
    frames = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    ours = str(Path(__file__).parent)
    while frames and frames[-1].tb_frame.f_code.co_filename.startswith(ours):
        frames.pop()
    made: TracebackType | None = None
    for frame in reversed(frames):
        made = TracebackType(made, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return made


class LeaseRefused(_AtTheCell, RuntimeError):
    """The scheduler will not grant what was asked for, or nobody can be asked."""


class BadNeed(_AtTheCell, ValueError):
    """What was asked for is no need."""


@dataclass(frozen=True)
class Grant:
    """What code runs with."""

    lease: int | None = None
    node: str = ""
    gpus: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()
    cores: str = ""
    waited_ms: int = 0
    lingering: bool = False

    @classmethod
    def _from_wire(cls, ok: dict[str, Any]) -> Grant:
        return cls(
            lease=ok.get("lease"),
            node=ok.get("node", ""),
            gpus=tuple(ok.get("gpus", ())),
            devices=tuple(ok.get("devices", ())),
            cores=ok.get("cores", ""),
            waited_ms=ok.get("waited_ms", 0),
            lingering=ok.get("lingering", False),
        )


@dataclass
class _Held:
    """The lease of this kernel's blocks, and the number of open blocks."""

    need: dict[str, Any] = field(default_factory=dict)
    grant: Grant = field(default_factory=Grant)
    shared: bool = False
    depth: int = 0
    #: Owner: thread and task. Work beside the cells may hold on.
    owner: tuple[int, object] = (0, None)
    #: `True` for a lease given back by its owner at the cell's end.
    of_cell: bool = False
    #: Number of leases that ended with their cell, under blocks still open.
    ended: int = 0


_lock = threading.RLock()
_held = _Held()

#: Told, with whether it holds GPUs now, when a block's lease comes and goes.
on_change: list[Callable[[bool], None]] = []


class Need:
    """A block with a lease. Blocks nest: an inner block shares the outer lease if that is enough."""

    def __init__(self, need: dict[str, Any], *, of_cell: bool = False) -> None:
        self._need = need
        self._of_cell = of_cell
        #: Counts of such ends at each entrance, the innermost last.
        self._entered: list[int] = []

    def __enter__(self) -> Grant:
        with _lock:
            if _held.depth:
                if not _covers(_held.need, self._need):
                    raise LeaseRefused(
                        "an outer block holds a smaller lease already: ask there for all that is needed"
                    )
            else:
                _acquire(self._need)
                _held.owner, _held.of_cell = _here(), self._of_cell
            _held.depth += 1
            self._entered.append(_held.ended)
            return _held.grant

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with _lock:
            if not self._entered:
                raise RuntimeError("this block was not entered, or was left already")
            if self._entered.pop() != _held.ended:
                # Its lease ended with its cell.
                return
            _held.depth -= 1
            if not _held.depth and not _held.shared:
                try:
                    _tell(_held.need, False)
                finally:
                    # A second interrupt may come while the GPU's memory is moved: the lease goes all the same.
                    _release()


def _acquire(need: dict[str, Any]) -> None:
    try:
        ok, _ = channel.get().request("need.acquire", {"need": need})
    except channel.Refused as error:
        raise LeaseRefused(str(error)) from None
    except channel.ChannelClosed as error:
        raise LeaseRefused(str(error)) from None
    except BaseException:
        # An interrupted wait: the request is withdrawn.
        _release()
        raise
    _held.need, _held.grant = need, Grant._from_wire(ok)
    _held.shared = bool(ok.get("shared"))
    revoked.block_begins()
    _tell(need, True)


def _here() -> tuple[int, object]:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident(), task


class Cells:
    """Ends a cell's open blocks: a generator inside a block keeps no GPU until code resumes the generator. Threads and
    tasks of their own run beside the cells and keep their leases."""

    def __init__(self) -> None:
        self._cells = between.Cells()
        self._owner: tuple[int, object] = (0, None)

    def begins(self, info: object = None) -> None:
        if self._cells.begins(info):
            self._owner = _here()

    def over(self, result: Any = None) -> None:
        # Another thread has the lock while waiting for its lease: then no block is open.
        if self._cells.over(result) and _lock.acquire(blocking=False):
            try:
                self._end_left_open()
            finally:
                _lock.release()

    def _end_left_open(self) -> None:
        if not _held.depth or _held.of_cell or _held.owner != self._owner:
            return
        _held.depth = 0
        _held.ended += 1
        if not _held.shared:
            try:
                _tell(_held.need, False)
            finally:
                _release()
        what = "GPUs were" if _held.need.get("gpus") else "cores were"
        print(
            f"gresshopper: a block of this cell was still open at its end (a generator that stands in it?): its {what} "
            "given back. Code that goes on in it later runs without them, or with those of its own cell.",
            file=sys.stderr,
        )


def _tell(need: dict[str, Any], holds: bool) -> None:
    if need.get("gpus") and not _held.shared:
        for told in on_change:
            told(holds)


def holds_gpu() -> bool:
    """Whether a block of this kernel's holds GPUs now."""
    return bool(_held.depth and _held.need.get("gpus"))


def came_with_lease(shell: Any) -> bool:
    """Whether the running cell has GPUs by its own need, or through a block in it."""
    parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
    ours = (parent.get("metadata") or {}).get("gresshopper") or {}
    lease = ours.get("lease") if isinstance(ours, dict) else None
    return bool(isinstance(lease, dict) and lease.get("devices")) or holds_gpu()


def _release() -> None:
    with contextlib.suppress(channel.ChannelClosed):
        channel.get().notify("need.release", {})


def _covers(held: dict[str, Any], wanted: dict[str, Any]) -> bool:
    numbers = all(held.get(k, 0) >= wanted.get(k, 0) for k in ("gpus", "cpus", "gpu_mem_mib"))
    kind = wanted.get("gpu_type")
    return numbers and (kind is None or kind == held.get("gpu_type"))


def gpu(n: int = 1, *, type: str | None = None, mem: float = 0, cpus: int = 0) -> Need:
    """``with gresshopper.gpu():`` runs its block with ``n`` GPUs.

    ``type`` is Slurm's GPU type, ``mem`` the least memory of each in GiB, ``cpus`` cores beside those
    that come with the GPUs. Waiting can be interrupted. Raises :class:`LeaseRefused`.
    """
    if n < 1:
        raise BadNeed("a block has at least 1 GPU: without one, leave the block out")
    if cpus < 0 or not 0 <= mem < float("inf"):
        raise BadNeed("cpus and mem are at least 0")
    need: dict[str, Any] = {"gpus": index(n), "cpus": index(cpus), "gpu_mem_mib": int(mem * 1024)}
    if type is not None:
        need["gpu_type"] = type
    return Need(need)


def cpu(cpus: int) -> Need:
    """``with gresshopper.cpu(8):`` runs its block with eight more cores."""
    if cpus < 1:
        raise BadNeed("cpus is at least 1")
    return Need({"gpus": 0, "cpus": index(cpus)})


def blank_magic(lines: list[str]) -> list[str]:
    """An input transformation that takes our magics' lines out of a cell: ``%%retry`` before ``%%gpu`` or ``%%cpu``."""
    ours: list[int] = []
    for magic in (_RETRY, _MAGIC):
        at = _next_code(lines, ours[-1] + 1 if ours else 0)
        if at is not None and magic.match(lines[at]):
            ours.append(at)
    if not ours:
        return lines
    if _HELP.match(lines[ours[-1]]):
        return ["get_ipython().run_line_magic('gpu', '--help')\n"]
    following = _next_line(lines, ours[-1] + 1)
    if following is not None and lines[following].startswith("%%"):
        # Another cell magic must stand first, and counts lines from there.
        return lines[following:]
    return ["\n" if i in ours else line for i, line in enumerate(lines)]


def _next_line(lines: list[str], begin: int) -> int | None:
    """The index of the next line with anything in it."""
    return next((i for i in range(begin, len(lines)) if lines[i].strip()), None)


def _next_code(lines: list[str], begin: int) -> int | None:
    """The index of the next line with anything but a comment, as the supervisor reads them."""
    return next((i for i in range(begin, len(lines)) if lines[i].strip() and lines[i].lstrip()[0] != "#"), None)


def was_read(shell: Any) -> bool:
    """Whether the supervisor read our magic at the beginning of the running request: text brought in by another magic
    or ``%rerun`` stays unseen."""
    parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
    if (parent.get("header") or {}).get("msg_type") != "execute_request":
        return True
    lines = str((parent.get("content") or {}).get("code", "")).split("\n")
    at = _next_code(lines, 0)
    return at is not None and bool(_MAGIC.match(lines[at]) or _RETRY.match(lines[at]))


def help_text() -> str:
    """What ``%%gpu --help`` and ``%%gpu?`` show."""
    page = Path(__file__).resolve().parents[2] / "share/doc/users.md"
    return HELP + (
        f"The page for users: {page}" if page.is_file() else "The page for users: docs/users.md of Gresshopper"
    )


def misplaced_magic(line: str, cell: str = "") -> None:
    # The magics in places where the supervisor didn't read them: beneath another magic, or a second time.
    # Imported here: the package is importable without IPython.
    from IPython.core.error import UsageError

    raise UsageError(
        "%%gpu, %%cpu and %%retry have to stand on the first line of the cell, once and before any other magic: nothing was run"
    )


#: What `%%gpu?` shows.
misplaced_magic.__doc__ = help_text()
