"""A process's GPU half: parked memory, permission to ask, and the order of events.

Copy-outs happen between cells only. Copy-ins may happen while a cell waits for them. Everything that waits has an
end.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Callable

from gresshopper import operations, typenames
from gresshopper.imports import after_import
from gresshopper.operations import Call, OperationError

from . import _move
from ._cupy import CupyHalf
from ._errors import GpuUnavailable, ParkRefused
from ._guard import Threads, TorchGuard, close_devices_in_children
from ._host import Pool
from ._jax import JaxHalf
from ._lease import LeaseSource, Workstation
from ._others import others
from ._own import own_work
from ._reading import Access, Reading
from ._torch import TorchHalf
from ._touch import may_touch

#: How long the device may take to come to rest before a park.
SYNC_S = 10.0
#: How long memory waits to come back while a capture still stores the host's copies of it. The next cell waits for the
#: capture anyway, and a refusal would fail that cell.
BACK_S = 60.0
#: Frameworks without a hook at each operation: cells are looked through before they run.
_UNHOOKED = {"cupy", "jax", "numba", "tensorflow", "pycuda"}
#: Frameworks imported only for a device.
_DEVICE_ONLY = {"cupy", "pycuda"}


class Keeper:
    """The state of this process's GPU half."""

    def __init__(
        self, source: LeaseSource | None = None, halves: Sequence[Any] | None = None, device_type: str = "cuda"
    ) -> None:
        self.source: LeaseSource = source or Workstation()
        self.halves: list[Any] = (
            list(halves) if halves is not None else [TorchHalf(), CupyHalf(), JaxHalf(), *others()]
        )
        self.pool = Pool()
        self.parked: list[_move.Parked] = []
        self.guard = TorchGuard(self.ensure, lambda: self.usable, device_type)
        self.threads = Threads(self.guard)
        self.namespace: Callable[[], Mapping[str, Any]] = dict
        #: Whether the device may be used now: false while parked, and while a supervisor says so.
        self._leased = True
        self._off = False
        self._doing = threading.Lock()
        self._access = Access()
        self._device_type = device_type
        self._asking = threading.RLock()
        self._in_cell = False
        #: The cell that runs may use the device without asking first.
        self._cell_uses = False
        self._beginning = threading.Lock()
        #: Under a supervisor: whether the cell that begins came with a lease. A lease is for one cell then.
        self.came_with_lease: Callable[[], bool] | None = None
        #: Objects not to be destroyed while the device is away: destruction calls the driver, which waits.
        self._kept: list[Any] = []
        #: Starts the interpreter again (rung d), given a saved state; restores one.
        self.start_again: Callable[[Path], None] | None = None
        self.restore: Callable[[Path], None] = lambda state: None
        #: A state that the next cell needs.
        self.saved: Path | None = None
        self._cancelled = threading.Event()
        #: Why the next cell must not run.
        self.refusal: GpuUnavailable | None = None
        self._unhooked: set[str] = set()

    @property
    def usable(self) -> bool:
        return self._leased and not self._off

    # --- what the supervisor says ---

    def grant(self) -> None:
        """A lease exists: the device may be used once parked memory is back."""
        self._leased = True
        if self._in_cell and self.usable:
            self._renew()

    def revoke(self) -> None:
        """The lease is over."""
        self._leased = False

    # --- what the user's code asks ---

    def ensure(self, why: str) -> None:
        """Returns with the device usable, or raises GpuUnavailable. Never waits without an end."""
        with self._asking:
            if self.usable:
                return
            self.source.acquire(why)
            if not self.usable:
                raise GpuUnavailable(f"A GPU was promised and isn't here ({why}). Run the cell again.")
            self._cell_uses = self._in_cell
            self._renew()
            for half in self.halves:
                stuck = getattr(half, "stuck", lambda: None)()
                if stuck:
                    raise GpuUnavailable(stuck)

    def before_cell(self, code: str) -> None:
        """Runs on the main thread before a cell. `GpuUnavailable` keeps the cell from running."""
        self.refusal = None
        if self.saved is not None:
            self._with_refusal(self._bring_variables)
        try:
            with self._beginning:
                self._in_cell = True
                if self.came_with_lease is not None:
                    self._leased = self.came_with_lease()
                self._cell_uses = self.usable
            if self._cell_uses:
                self._renew()
            elif frameworks := self._may_touch(code):
                self._with_refusal(lambda: self.ensure(f"the cell may use {', '.join(sorted(frameworks))}"))
        finally:
            # With a lease the cell runs without the guard, which costs a little at each operation.
            if not self.usable:
                self.guard.enter()

    def _may_touch(self, code: str) -> set[str]:
        """Frameworks without a hook, if the cell may use one."""
        unhooked = self._unhooked_now()
        try:
            may = bool(unhooked) and may_touch(code, self.namespace(), self._is_unhooked, unhooked - {"torch"})
        except Exception:  # an object that can't be looked at: doubt counts as "may"
            may = True
        return unhooked if may else set()

    def _renew(self) -> None:
        """There is a GPU: an answer "no GPU" of before is forgotten."""
        self._each_that_can("renew")

    def _each_that_can(self, what: str) -> None:
        for half in self.halves:
            with contextlib.suppress(Exception):  # a framework of another release, or half imported
                getattr(half, what, lambda: None)()

    def _with_refusal(self, work: Callable[[], None]) -> None:
        try:
            work()
        except GpuUnavailable as error:
            self.refusal = error
            raise
        except Exception as error:
            self.refusal = GpuUnavailable(f"This cell needs a GPU, and asking for one failed: {error}")
            raise self.refusal from error

    def _bring_variables(self) -> None:
        """After a restart: the cell needs the variables, and they need their device."""
        if self.saved is not None:
            if not self.usable:
                self.ensure("the kernel's variables were saved, to be restored with a GPU")
            self.restore(self.saved)
            self.saved = None

    def begin_saved(self, state: Path) -> None:
        """Notes that the interpreter was restarted and still waits for the variables."""
        self.saved = state
        self._off = True

    def _start_again(self, state: str) -> None:
        if self._in_cell:
            raise ParkRefused("a cell is running")
        if self.start_again is None:
            raise ParkRefused("the interpreter can't start again: it is no notebook's kernel")
        self.start_again(Path(state))

    def _unhooked_now(self) -> set[str]:
        """The frameworks without a hook that a cell could reach a device by."""
        if self._off:
            return self._unhooked
        if self.came_with_lease is None:
            return set()
        # cupy's arrays are found only by a look at every object: cupy counts as loaded without any array found.
        loaded = {
            half.name.split(".")[0] for half in self.halves if half.name not in _DEVICE_ONLY and _is_loaded(half)
        }
        self._unhooked = (loaded & _UNHOOKED) | _DEVICE_ONLY
        if "torch" in loaded and "torch._dynamo" in sys.modules:
            self._unhooked.add("torch")
        return self._unhooked

    def joined_late(self) -> None:
        """The half was made in the middle of a cell."""
        self._in_cell = True
        if self.came_with_lease is not None:
            self._leased = self.came_with_lease()
        self._cell_uses = self.usable

    def raise_refusal(self) -> None:
        """The first statement of a refused cell."""
        if self.refusal is not None:
            raise self.refusal

    def after_cell(self) -> None:
        """On the main thread, after a cell."""
        self.guard.leave()
        if self._cell_uses:
            self._each_that_can("settle")
        with self._beginning:
            self._in_cell = self._cell_uses = False
            if self.came_with_lease is not None:
                self._leased = False

    def _is_unhooked(self, found: Any) -> bool:
        kind = type(found)
        root = typenames.module_of(kind).partition(".")[0]
        # Attributes are asked only of functions: a question to any object may run code of its own.
        is_function = issubclass(kind, types.FunctionType)
        compiled = typenames.name_of(kind) == "OptimizedModule" or (
            is_function and hasattr(found, "_torchdynamo_orig_callable")
        )
        return (root in self._unhooked and root != "torch") or ("torch" in self._unhooked and compiled)

    # --- what the supervisor asks ---

    @own_work()
    def report(self) -> dict[str, Any]:
        """Reports the memory to be moved by a copy-out, and the obstacles to a copy-out."""
        total, refusals, managed, ipc = 0, list(self.threads.unguarded()), False, False
        unknown_managed = unknown_ipc = False
        if not self._off:
            for half in self._loaded():
                found = half.find()
                total += sum(block.nbytes for block in found.blocks)
                refusals += found.refusals
                managed, unknown_managed = managed or found.managed is True, unknown_managed or found.managed is None
                ipc, unknown_ipc = ipc or found.ipc is True, unknown_ipc or found.ipc is None
        if self._cell_uses:
            refusals.append("a cell is running")
        return {
            "frameworks_bytes": total,
            "pool_bytes": self.pool.bytes,
            "refusals": refusals,
            "managed": _known(managed, unknown_managed),
            "ipc": _known(ipc, unknown_ipc),
            "saved": self.saved is not None,
        }

    def _loaded(self) -> list[Any]:
        return [half for half in self.halves if half.loaded()]

    @own_work()
    def out(self) -> _move.Moved:
        """Copies out what the frameworks hold. Raises ParkRefused, and nothing has changed."""
        if not self._doing.acquire(blocking=False):
            raise ParkRefused("another park or unpark is under way")
        try:
            self._cancelled.clear()
            self._access.move(SYNC_S)
            try:
                return self._out()
            finally:
                self._access.end()
        finally:
            self._doing.release()

    @property
    def is_away(self) -> bool:
        """Whether only the driver holds the contents of the device."""
        return self._off and not self.parked

    def reading(self) -> Reading:
        """Device memory as a capture of the notebook's state may read it."""
        return Reading(self._access, self.guard, self._device_type, self._off, self.parked)

    def _out(self) -> _move.Moved:
        if self.parked:
            raise ParkRefused("it is parked already")
        watch, moved = _move.Stopwatch(), _move.Moved()
        self._close()
        try:
            for half in self._loaded():
                found = half.find()
                refusals = [*found.refusals, *self.threads.unguarded()]
                if refusals:
                    raise ParkRefused("; ".join(refusals))
                self._kept += found.keep
                self._one_out(half, found, moved)
        except BaseException:
            self._all_back()
            self._open(bool(self.parked))
            raise
        self._unhooked = {half.name.split(".")[0] for half in self._loaded()} & _UNHOOKED
        if "torch._dynamo" in sys.modules:
            self._unhooked.add("torch")
        moved.seconds = watch.seconds() - moved.pin_s
        return moved

    def _close(self) -> None:
        """From here on the user's code meets the guard."""
        with self._beginning:
            if self._cell_uses:
                raise ParkRefused("a cell is running")
            self._off = True

    def _open(self, off: bool = False) -> None:
        self._off = off
        if not off:
            self._kept = []

    def _one_out(self, half: Any, found: _move.Found, moved: _move.Moved) -> None:
        if not found.blocks:
            half.empty_caches()
            return
        parked = _move.out(half, found.blocks, self.pool, SYNC_S, self._cancelled.is_set)
        self.parked.append(parked)
        moved.bytes += parked.nbytes
        moved.pin_s += self.pool.last_pin_s

    @own_work()
    def back(self) -> _move.Moved:
        """Copies everything in again, and calls off a copy-out that is under way. Raises ParkRefused, with the
        unreturned memory safe in host memory; another request goes on from there."""
        self._cancelled.set()
        with self._doing:
            watch, moved = _move.Stopwatch(), _move.Moved(bytes=sum(parked.nbytes for parked in self.parked))
            self._access.move(BACK_S)
            try:
                self._all_back()
            finally:
                self._access.end()
            self._open()
            self._unhooked = set()
            moved.seconds = watch.seconds()
            return moved

    def _all_back(self) -> None:
        while self.parked:
            _move.back(self.parked[-1], SYNC_S)
            self.parked.pop()
        self.pool.give_back()

    @own_work()
    def driver_only(self, off: bool) -> None:
        """The driver checkpoints everything (`off`), or has brought it back: nothing is copied, but what the user's
        code touches must meet the guard."""
        if not off:
            self._unhooked = set()
            return self._open()
        self._access.move(SYNC_S)
        self._access.end()  # what reads from here on finds the device away
        self._close()
        for half in self.halves:
            # An object that can't be examined isn't kept, and goes when its owner lets go.
            with contextlib.suppress(Exception):
                if half.loaded():
                    found = half.find()
                    self._kept += [*found.keep, *found.blocks]
        loaded = {str(name).partition(".")[0] for name, module in list(sys.modules.items()) if module is not None}
        self._unhooked = (_UNHOOKED | {"torch"}) & loaded

    def register(self) -> None:
        """Answers `hop gpu` from now on. Each request has a thread, so that a copy-in can call off a copy-out."""
        for name, work in self.requests().items():
            operations.register(f"gpu.{name}", partial(_refusing, work))

    def requests(self) -> dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]]:
        """The requests of `hop gpu`, as docs/gpu-park.md lists them."""
        return {
            "report": lambda asked: {"report": self.report()},
            "out": lambda asked: {"moved": _moved(self.out())},
            "in": lambda asked: {"moved": _moved(self.back())},
            "guard": lambda asked: self._nothing(lambda: self.driver_only(True)),
            "unguard": lambda asked: self._nothing(lambda: self.driver_only(False)),
            "trim": lambda asked: self._nothing(self.pool.trim),
            "restart": lambda asked: self._nothing(lambda: self._start_again(str(asked.get("state", "")))),
        }

    @staticmethod
    def _nothing(work: Callable[[], None]) -> dict[str, Any]:
        work()
        return {}

    def install(self) -> None:
        """Puts the guard in place, before the user's code."""
        self.threads.install()
        after_import("torch", self.guard.patch)
        close_devices_in_children()


def _refusing(work: Callable[[Mapping[str, Any]], dict[str, Any]], call: Call) -> dict[str, Any]:
    """Each obstacle is a sentence for the user."""
    try:
        return work(call.body)
    except Exception as error:
        raise OperationError("refused", str(error) or typenames.name_of(type(error))) from error


def _is_loaded(half: Any) -> bool:
    """Whether a framework is there. Doubt counts as yes."""
    try:
        return bool(half.loaded())
    except Exception:
        return True


def _known(yes: bool, unknown: bool) -> str:
    return "yes" if yes else "unknown" if unknown else "no"


def _moved(moved: _move.Moved) -> dict[str, Any]:
    return {"bytes": moved.bytes, "copy_s": moved.seconds, "pin_s": moved.pin_s}
