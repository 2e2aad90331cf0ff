"""Data of a dump in the making: buffers, memory, classes and names, and omissions."""

from __future__ import annotations

import bisect
import contextlib
import gc
import pickle
import types
from collections.abc import Iterator, Mapping
from typing import Any

from gresshopper import typenames

from . import adapters, names, native
from .kinds import a_kind, harmless, kind_of
from .lost import Lost
from .session import Away, Buffer, Gone, Session

#: Buffers below this many bytes stay in the stream.
INBAND = 32 * 1024


class Roots:
    """Written memory, by address; overlaps with a range are found by bisection."""

    def __init__(self) -> None:
        self._lows: list[int] = []
        self._apart: list[tuple[int, int, Any]] = []  # sorted, none overlaps another
        self._over: list[tuple[int, int, Any]] = []  # the few that do

    def add(self, low: int, high: int, root: Any) -> None:
        """Remember memory up to `high` and its root."""
        if not self.free(low, high):
            self._over.append((low, high, root))
            return
        i = bisect.bisect_left(self._lows, low)
        self._lows.insert(i, low)
        self._apart.insert(i, (low, high, root))

    def free(self, low: int, high: int) -> bool:
        """Whether no remembered memory overlaps this range."""
        i = bisect.bisect_right(self._lows, low)
        if i and low < self._apart[i - 1][1]:
            return False
        return (i == len(self._lows) or self._lows[i] >= high) and not any(
            one[0] < high and low < one[1] for one in self._over
        )

    def kept(self) -> tuple[list[tuple[int, int, Any]], list[tuple[int, int, Any]]]:
        """The lists of all remembered memory."""
        return self._apart, self._over

    def near(self, low: int, high: int) -> Iterator[tuple[int, int, Any]]:
        """Remembered memory overlapping with this range, the larger first."""
        i = max(0, bisect.bisect_right(self._lows, low) - 1)
        found = [one for one in self._over if one[0] < high and low < one[1]]
        while i < len(self._lows) and self._lows[i] < high:
            if low < self._apart[i][1]:
                found.append(self._apart[i])
            i += 1
        return iter(sorted(found, key=lambda one: one[0] - one[1])) if len(found) > 1 else iter(found)


def _referents(obj: Any, works_on: Mapping[str, str]) -> list[Any]:
    """The objects that an object holds, and the owners of bound built-in methods: a `csv.writer` holds `buf.write`."""
    found = gc.get_referents(obj)
    found += [r.__self__ for r in found if type(r) is types.BuiltinFunctionType]
    attr = works_on.get(kind_of(obj))
    if attr is not None:
        with contextlib.suppress(Exception):  # an iterator that was closed
            held = getattr(obj, attr)
            found += held if type(held) is tuple else [held]
    return found


class Writing:
    """One dump."""

    session: Session
    owned: set[str]
    bad: dict[int, str]

    def prepare(self, session: Session, owned: set[str], bad: dict[int, str]) -> None:
        self.session, self.owned, self.bad = session, owned, bad
        self.buffers: list[Buffer] = []
        self.roots = Roots()  # what aliases by memory alone
        self.ranges: list[tuple[int, int]] = []
        self.storages: dict[int, Any] = {}
        self.classes: set[str] = set()
        self.touches: set[str] = set()
        self.dynamic = False
        self.on_device = False
        self.gone: list[Gone] = []
        self.notes: list[str] = []
        self.seen: set[type] = set()
        self.last: Any = None
        self.detached: dict[int, Any] = {}
        self.scopes: dict[int, Any] = {}
        self.plain: dict[int, Any] = {}  # a subclass's array -> the plain array that stands for its memory
        self.frames: dict[int, Any] = {}  # such a plain array -> what its memory belongs to, if not to an array
        self.functions: list[Any] = []
        self.linked: set[int] = set()
        #: Objects that link no groups, though several hold them: nothing of them is the notebook's.
        self.unlinked: set[int] = set()
        self.made: dict[type, Any] = {}  # how pickle makes instances of a type
        self.suspects: list[Any] = []
        self.sets: list[Any] = []  # instances of subclasses of `set`

    def holding(self) -> list[Any]:
        """The lists and dictionaries with the objects kept by a finished dump, among them objects made by the dump."""
        self.last = None
        kept = [self.buffers, self.storages, self.detached, self.scopes, self.plain, self.frames, self.functions]
        scopes_copied = getattr(self, "globals_ref", {})  # cloudpickle's
        return [*kept, scopes_copied, self.suspects, self.sets, *self.roots.kept()]

    def with_left_out(self, obj: Any, t: Any) -> Any:
        """How an instance is written with the notebook's attributes that its library's pickling leaves out."""
        raise NotImplementedError

    def lose(self, obj: Any, why: str) -> Any:
        what = a_kind(kind_of(obj))
        self.gone.append(Gone(what, why))
        for part in ("gi_code", "cr_code", "ag_code"):
            code = getattr(obj, part, None) if typenames.module_of(type(obj)) == "builtins" else None
            if isinstance(code, types.CodeType):
                self.touches |= names.names_of_code(code).names
        self.link_referents(obj)
        return Lost, (what, why)

    def link_referents(self, obj: Any) -> None:
        """Unwritable objects still share their parts with other variables: these are rebuilt together."""
        passed_over = harmless()
        works_on = {kind: attr for adapter in adapters.loaded() for kind, attr in adapter.works_on.items()}
        level = [obj]
        for _ in range(3):  # a generator, its frame, its variables
            level = [
                r
                for o in level
                for r in _referents(o, works_on)
                if type(r) not in passed_over
                and not isinstance(r, type)
                and r is not self.session.namespace
                and not (isinstance(r, dict) and ("__builtins__" in r or "__build_class__" in r))
            ][:1000]
            self.linked.update(map(id, level))

    def add_buffer(self, address: int, nbytes: int, keep: Any, items: Any = None) -> int:
        self.buffers.append(Buffer(address, nbytes, keep, items))
        return len(self.buffers) - 1

    def out_of_band(self, buffer: pickle.PickleBuffer) -> bool:
        """Buffers that libraries hand over themselves: large ones go out of band."""
        raw = buffer.raw()
        if raw.nbytes < INBAND:
            return True
        self.add_buffer(native.address(raw), raw.nbytes, (buffer, raw))
        self.foreign.append(len(self.buffers) - 1)
        return False

    def on_a_device(self, device_type: str | None = None) -> None:
        """Marks the object being written as a device's memory.

        # Errors
        `Away` when it can't be read now.
        """
        self.on_device = True
        if self.session.device is not None and self.session.device.is_away(device_type):
            raise Away

    foreign: list[int]
    leads: set[int]
    #: Addresses of the objects that are written as their places.
    placed: set[int]
