"""The groups of a namespace, as last written, and which of them hold an object.

A *member* is a variable (`n:name`) or a class of the notebook (`c:id`). A *unit* is a group of members with common
mutable objects or memory, written as a single stream.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from gresshopper import typenames

from . import pickling
from .buffers import Blob

#: Units with more than TABLED linking objects are looked up by bisection, not by a table. So are units by which the
#: table of all units would exceed ALL_TABLED objects, at about a hundred bytes each.
TABLED, ALL_TABLED = 20_000, 2_000_000
#: Objects that a search for those of several groups looks at between two checks for time.
_PIECE = 1 << 16


class Unit:
    """A group of members as it was last written."""

    __slots__ = (
        "blobs",
        "buffers",
        "cell",
        "classes",
        "digest",
        "dynamic",
        "first",
        "foreign",
        "gone",
        "ids",
        "members",
        "notes",
        "on_device",
        "plain",
        "ranges",
        "seconds",
        "size",
        "tags",
        "touches",
        "types",
        "uid",
    )

    def __init__(self, uid: int, members: tuple[str, ...]) -> None:
        self.uid, self.members = uid, members
        self.digest = b""
        self.size = 0
        self.ids: Any = ()
        self.ranges: list[tuple[int, int]] = []
        self.blobs: list[Blob] = []
        self.buffers: list[tuple[int, int]] = []
        self.foreign: list[int] = []
        #: Number of members in the first of the stream's two pickles; 0 means a single pickle.
        self.first = 0
        self.classes: set[str] = set()
        self.touches: set[str] = set()
        self.dynamic = False
        #: Whether some of its memory is a GPU's.
        self.on_device = False
        self.gone: list[pickling.Gone] = []
        self.notes: list[str] = []
        self.types: set[str] = set()
        self.seconds = 0.0
        self.cell = 0
        #: A hash of its buffers' content, the same in another process.
        self.tags = ""
        #: Bytes of its buffers without the items of arrays of objects.
        self.plain = 0

    @property
    def names(self) -> list[str]:
        """The variables of the group."""
        return [m[2:] for m in self.members if m.startswith("n:")]

    def nbytes(self) -> int:
        """Bytes of the stream and of its buffers."""
        return self.size + sum(blob.nbytes for blob in self.blobs)


class Units:
    """The units of one namespace, by number, by member and by object."""

    def __init__(self, session: pickling.Session) -> None:
        self._session = session
        self.by_number: dict[int, Unit] = {}
        self._owner: dict[str, Unit] = {}
        #: The unit of each object, but for the units in `_large`.
        self._table: dict[int, int] = {}
        self._tabled = 0
        self._large: set[int] = set()
        #: Units that any cell may touch: they hold open files, or classes whose instances run code at their end.
        self.outside: set[int] = set()

    def owner(self, member: str) -> Unit | None:
        """The unit of a member."""
        return self._owner.get(member)

    def same_members(self, members: tuple[str, ...]) -> Unit | None:
        """The unit of exactly these members."""
        unit = self._owner.get(members[0])
        return unit if unit is not None and unit.members == members else None

    def close(self, start: Iterable[Unit]) -> set[int] | None:
        """These units and those within their reach; None means any."""
        stack, seen = list(start), set()
        while stack:
            unit = stack.pop()
            if unit.uid in seen:
                continue
            seen.add(unit.uid)
            if unit.dynamic:
                return None
            for name in unit.touches:
                owner = self._owner.get("n:" + name)
                if owner is not None and owner.uid not in seen:
                    stack.append(owner)
            for cid in unit.classes:
                owner = self._owner.get("c:" + cid)
                if owner is not None and owner.uid not in seen:
                    stack.append(owner)
        return seen

    def install(self, unit: Unit) -> None:
        """Know a unit."""
        self.by_number[unit.uid] = unit
        for member in unit.members:
            self._owner[member] = unit
        classes = (self._session.classes.get(member[2:]) for member in unit.members if member.startswith("c:"))
        if not unit.types.isdisjoint(_OUTSIDE) or any(hasattr(cls, "__del__") for cls in classes):
            self.outside.add(unit.uid)
        if len(unit.ids) > TABLED or self._tabled + len(unit.ids) > ALL_TABLED:
            self._large.add(unit.uid)
            return
        for at in unit.ids:
            self._table[at] = unit.uid
        self._tabled += len(unit.ids)
        if self._tabled > 16 * (TABLED + len(self.by_number)):
            self._table = {at: u.uid for u in self.by_number.values() if u.uid not in self._large for at in u.ids}
            self._tabled = len(self._table)

    def uninstall(self, uid: int) -> None:
        """Know a unit no more."""
        unit = self.by_number.pop(uid, None)
        if unit is None:
            return
        self._large.discard(uid)
        self.outside.discard(uid)
        for member in unit.members:
            if self._owner.get(member) is unit:
                del self._owner[member]

    def reset(self) -> None:
        """Know of no unit any more."""
        for uid in list(self.by_number):
            self.uninstall(uid)
        self._table, self._tabled = {}, 0

    def holders(self, ids: Any, skip: set[int]) -> set[int]:
        """Units outside `skip` that may hold these objects (a stale address may name a wrong unit)."""
        found: set[int] = set()
        table = self._table
        if len(ids) > len(table):
            ordered = ids
            for at, uid in self.checking(table.items()):
                if uid not in skip and uid not in found and uid in self.by_number:
                    i = bisect.bisect_left(ordered, at)
                    if i < len(ordered) and ordered[i] == at:
                        found.add(uid)
        else:
            for at in self.checking(ids):
                uid = table.get(at, 0)
                if uid and uid not in skip and uid in self.by_number:
                    found.add(uid)
        for uid in self._large - skip:
            self._session.check()
            if _intersect(self.by_number[uid].ids, ids):
                found.add(uid)
        return found

    def checking(self, found: Iterable[Any]) -> Iterable[Any]:
        """These, with a look at the time between pieces of them: millions take seconds."""
        left = iter(found)
        while piece := list(itertools.islice(left, _PIECE)):
            self._session.check()
            yield from piece


def adopted(said: Mapping[str, Any]) -> Unit:
    """A unit as a record describes it."""
    unit = Unit(said["u"], tuple(said["m"]))
    unit.digest, unit.cell, unit.first = bytes.fromhex(said["dig"]), said["cell"], said["v"]
    unit.blobs = [Blob(n, tuple(chunks), bool(items)) for n, items, chunks in said["b"]]
    ref = said["s"]
    unit.size = ref["in"][1] if "in" in ref else ref["n"]
    unit.foreign, unit.seconds = list(said["f"]), said["sec"]
    unit.classes, unit.touches, unit.types = set(said["c"]), set(said["t"]), set(said["types"])
    unit.dynamic, unit.on_device = bool(said["dyn"]), bool(said["dev"])
    unit.gone, unit.notes = [pickling.Gone(*part) for part in said["gone"]], list(said["notes"])
    return unit


def _intersect(a: Any, b: Any) -> bool:
    """Whether two sorted sequences share an element."""
    if len(a) > len(b):
        a, b = b, a
    if len(a) * 20 > len(b):
        return not set(a).isdisjoint(b)
    for at in a:
        i = bisect.bisect_left(b, at)
        if i < len(b) and b[i] == at:
            return True
    return False


def name_of(kind: type) -> str:
    """The full name of a type."""
    return f"{typenames.module_of(kind)}.{typenames.qualname_of(kind)}"


_OUTSIDE = frozenset(map(name_of, pickling.OUTSIDE))
