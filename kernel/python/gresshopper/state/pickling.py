"""The pickler for everything in a namespace: C speed, one memo, buffers out of band, recipes where pickle is wrong.

A dump also yields facts for the capture: the objects that it went through (for the groups), memory ranges, classes
and global names. `rules` chooses the recipes. The pickler never calls a user's `__eq__` and never changes an object; what a
class's own pickling code changes is told.
"""

from __future__ import annotations

import array
import bisect
import collections
import copyreg
import gc
import io
import itertools
import pickle
import sys
import threading
from collections.abc import Iterable
from typing import Any, Callable, NamedTuple

from gresshopper import typenames

from . import native, places, recipes, recursion, shapes, shipped
from .kinds import harmless
from .lost import Lost, parts
from .muting import DEEP_THREAD
from .rules import NotFlat, Rules, States, library_rules
from .session import (
    ENDLESS,
    MAIN,
    Buffer,
    Gone,
    Interrupted,
    Overlap,
    Session,
    Unpicklable,
    importable,
    reason,
)
from .setorder import Order, ordered
from .shipped import cloudpickle

__all__ = ["Buffer", "Dump", "Gone", "Interrupted", "Session", "Unpicklable", "dump", "load"]

#: Bytes of stack for a dump with too deep nesting for the ordinary one.
DEEP_STACK = 512 * 1024 * 1024
DEEP_LIMIT = 400_000
#: Number of nesting levels tried for a group. An object that makes another at each write never ends.
DEPTHS = 4
#: Objects of a deep dump until the first look for ones without end, and between two checks for time. Each look comes after
#: twice as many objects as the one before.
FIRST_LOOK, CHECKED = 2000, 64
#: Instances by which a dump must have got deeper since the last look, the deeper half of them made since, to be without end.
WITHOUT_END = 100
#: Number of placeholders inside a group from which on the whole group counts as unpicklable.
MAX_LOST = 200
#: About how many seconds it takes to look at what a byte of a stream stands for.
LOOKED_AT = 1.5e-8
#: Types of objects outside the process, which may change without a touch.
OUTSIDE: tuple[type, ...] = (io.TextIOWrapper, io.BufferedReader, io.FileIO)


class Dump(NamedTuple):
    """One unit, written."""

    stream: bytes
    buffers: list[Buffer]
    foreign: list[int]  # which of them some library handed over, in the stream's order
    ids: Any  # addresses of the objects that link groups: sorted, see native.memo_ids
    ranges: list[tuple[int, int]]  # memory that roots cover: (address, end)
    classes: set[str]  # stable ids of the notebook's classes that it refers to
    touches: set[str]  # global names that functions in it may touch
    dynamic: bool
    gone: list[Gone]
    notes: list[str]
    types: set[type]
    suspects: list[Any]  # instances of the notebook's classes that pickle in a way of their own
    keep: Any  # holds the memo, so that no address is used again before the groups are known
    on_device: bool = False  # some of its memory is a GPU's
    first: int = 0  # so many values are in the first of the stream's two pickles; 0: it is one


class _Stream(io.BytesIO):
    """The pickler's output, written every 64 KiB: each write checks for time and room."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._check, self._room = session.check, session.room

    def write(self, data: Any) -> int:
        self._check()
        self._room(len(data))
        return super().write(data)


#: cloudpickle's reducers. A plain dictionary with the process's own finds these at once.
_REDUCERS: dict[Any, Any] = dict(
    getattr(cloudpickle.CloudPickler, "_dispatch_table", None)
    or getattr(cloudpickle.CloudPickler, "dispatch_table", {})
)


class _Fast(Rules, cloudpickle.CloudPickler):  # type: ignore[misc]
    """The C pickler."""


class _Flat(_Fast):
    """The C pickler, for instances that hold one another in long chains: their attributes come after all else."""


class _Deep(Rules, pickle._Pickler):
    """Python's own pickler, for nesting beyond what C's stack allows."""

    def __init__(self, file: Any, protocol: int, buffer_callback: Any) -> None:
        super().__init__(file, protocol, buffer_callback=buffer_callback)
        self.globals_ref: dict[int, Any] = {}
        self.proto = 5
        self._met, self._next_look = 0, FIRST_LOOK
        #: How deep the dump was at the last look, and the young objects of then, held lest another gets the address of one.
        self._looked: tuple[int, list[Any]] | None = None

    def reducer_override(self, obj: Any) -> Any:
        self._met += 1
        if self._met % CHECKED == 0:
            self.session.check()
        if self._met == self._next_look:
            self._next_look *= 2
            self._look()
        return super().reducer_override(obj)

    def dump(self, obj: Any) -> None:
        try:
            super().dump(obj)
        finally:
            self._looked = None  # it holds this pickler, too

    def _look(self) -> None:
        """Ends a dump that gets deeper by objects made during the dump itself: a `MagicMock` makes another for each
        attribute asked for. Python's collector waits meanwhile, so all objects made since then are young.
        """
        path = [obj for obj in _path(sys._getframe()) if _is_instance(obj)]
        before, self._looked = self._looked, (len(path), gc.get_objects(generation=0))
        deeper = (
            path[(before[0] + len(path)) // 2 :] if before else []
        )  # some of the nearer half were about to be written
        if before is None or 2 * len(deeper) < WITHOUT_END:
            return
        made = set(map(id, self._looked[1])).difference(map(id, before[1]))
        if made.issuperset(map(id, deeper)):
            raise _Endless(_maker(type(deeper[-1])))

    _dynamic_function_reduce = cloudpickle.CloudPickler._dynamic_function_reduce
    _function_getnewargs = cloudpickle.CloudPickler._function_getnewargs
    _function_reduce = cloudpickle.CloudPickler._function_reduce


class _Endless(Exception):
    """A dump without end, since instances of the class make others during the writing."""

    def __init__(self, kind: type) -> None:
        super().__init__("endless")
        self.kind = kind


def _path(frame: Any) -> list[Any]:
    """The objects that Python's pickler is in the midst of, the outermost first."""
    found = []
    while frame is not None:
        if frame.f_code is _SAVE:
            found.append(frame.f_locals["obj"])
        frame = frame.f_back
    return found[::-1]


_SAVE: Any = pickle._Pickler.save.__code__  # type: ignore[attr-defined]


def _is_instance(obj: Any) -> bool:
    """Whether an object is of a class with a reduction, and known to the collector."""
    t = type(obj)
    return not issubclass(t, type) and t not in pickle._Pickler.dispatch and gc.is_tracked(obj)


def _maker(t: type) -> type:
    """The nearest class that can be found again by name. Each mock has a class of its own, whose base has the name."""
    return next((c for c in t.__mro__[:-1] if typenames.module_of(c) == MAIN or importable(c)), t)


@recursion.Bounded()
def dump(session: Session, value: Any, owned: set[str] | None = None, first: int = 0) -> Dump:
    """Write `value`. Classes in `owned` are written by value, the notebook's others by their id. `first`: so many values
    of a list are to be read without the others, if not 0.

    # Errors
    `Unpicklable` when nothing of it can be written.
    """
    bad: dict[int, str] = {}
    lead: list[Any] = [*places.direct(value, session.namespace)]
    kept: list[Any] = []
    kind: Any = _Fast
    depths = 0
    orders: list[Order] | None = None
    for _ in range(MAX_LOST):
        out = _Stream(session)
        pickler: Any = None
        try:
            pickler = _attempt(kind, session, out, owned or set(), bad, lead, value, orders or [], first)
        except Overlap as overlap:
            if any(root is overlap.root for root in lead):
                raise Unpicklable("memory that overlaps in a way that can't be written") from None
            lead.append(overlap.root)
            continue
        except NotFlat:
            kind, depths = _Deep, 1
            continue
        except _Endless as endless:
            _note(session, endless)
            kind, depths = _Fast, 0
            continue
        except _Culprit as culprit:
            culprit.forget()
            if _too_deep(culprit.why):
                if kind is _Fast:
                    kind, first = _Flat, 0
                    continue
                if depths == DEPTHS:
                    raise Unpicklable("it is nested too deeply, or without end") from None
                kind, depths = _Deep, depths + 1
                if depths == 1:
                    continue
            _leave_out(culprit, value, bad, kept)
            continue
        session.expect(out.tell() * LOOKED_AT)
        if orders is None and (pickler.sets or _EMPTY_SET in out.getvalue()):
            sets = [*native.memo_sets(pickler), *pickler.sets]
            orders = [order for made in sets for order in ordered(made)]
            if orders:
                continue
        ids = _linking(pickler, (lead, value, orders))
        within = places.within(ids, session.namespace) if len(ids) else []
        if within:
            lead += within
            continue
        return Dump(
            out.getvalue(),
            pickler.buffers,
            pickler.foreign,
            ids,
            _lasting(pickler, ids),
            pickler.classes,
            pickler.touches,
            pickler.dynamic,
            pickler.gone,
            [*pickler.notes, *shapes.changed(pickler.shapes)],
            pickler.seen,
            pickler.suspects,
            (pickler, kept),
            pickler.on_device,
            first,
        )
    raise Unpicklable("too much of it can't be written")


_EMPTY_SET = b"\x8f"


def _linking(pickler: Any, ours: Iterable[Any]) -> Any:
    """Addresses of the objects that link groups. The lists `ours` of the dump's own, soon gone, leave their addresses to
    objects of other groups."""
    ids = native.memo_ids(pickler, harmless())
    if pickler.functions or pickler.linked:
        ids = array.array("Q", sorted(set(ids).union(map(id, pickler.functions), pickler.linked)))
    for at in (*map(id, ours), *pickler.unlinked):
        i = _place(ids, at)
        if i is not None:
            ids.pop(i)
    return ids


def _lasting(pickler: Any, ids: Any) -> list[tuple[int, int]]:
    """The memory that links groups. An array that links none takes its own memory out: other arrays have the memory of an
    array that was made for the dump next."""
    gone = {
        (low, high)
        for low, high, root in itertools.chain(*pickler.roots.kept())
        if getattr(root, "base", root) is None and _place(ids, id(root)) is None
    }
    return [span for span in pickler.ranges if span not in gone] if gone else pickler.ranges


def _place(ids: Any, at: int) -> int | None:
    """Where a sorted array holds an address."""
    i = bisect.bisect_left(ids, at)
    return i if i < len(ids) and ids[i] == at else None


class _Culprit(Exception):
    def __init__(self, obj: Any, why: BaseException) -> None:
        super().__init__("culprit")
        self.obj, self.why = obj, why

    def forget(self) -> None:
        """Drop the traceback's frames, which hold the user's objects in circles."""
        error: BaseException | None = self
        while error is not None:
            error.__traceback__ = None
            error = error.__cause__ or error.__context__


def _leave_out(culprit: _Culprit, value: Any, bad: dict[int, str], kept: list[Any]) -> None:
    if id(culprit.obj) in bad or culprit.obj is value:
        raise Unpicklable(reason(culprit.why)) from None
    bad[id(culprit.obj)] = reason(culprit.why)
    kept.append(culprit.obj)


def _note(session: Session, endless: _Endless) -> None:
    endless.__traceback__ = None
    if endless.kind in session.endless:
        raise Unpicklable(ENDLESS) from None
    session.endless.add(endless.kind)


def _too_deep(why: BaseException) -> bool:
    return any(isinstance(e, RecursionError) for e in (why, why.__cause__, why.__context__))


def _attempt(
    kind: Any,
    session: Session,
    out: io.BytesIO,
    owned: set[str],
    bad: dict[int, str],
    lead: list[Any],
    value: Any,
    orders: list[Order],
    first: int,
) -> Any:
    begins, rest = (value[:first], value[first:]) if first else (value, None)

    def run() -> Any:
        # Emptied at the end: a pickler held by its own callback would keep the user's objects until a sweep.
        held: list[Any] = []

        def callback(buffer: pickle.PickleBuffer) -> bool:
            return bool(held[0].out_of_band(buffer))

        kind.dispatch_table = {**copyreg.dispatch_table, **_REDUCERS}
        pickler = kind(out, 5, buffer_callback=callback)
        held.append(pickler)
        pickler.prepare(session, owned, bad)
        pickler.leads = {id(root) for root in lead}
        pickler.placed = {id(one.held) for one in lead if type(one) is places.Held}
        pickler.foreign = []
        library_rules()
        parts: tuple[Any, ...] = (lead, begins, orders) if orders else (lead, begins)
        if kind is _Flat:
            pickler.states, parts = collections.deque(), (lead, begins, orders, States())
        try:
            pickler.dump(parts)
            if rest is not None:
                pickler.dump(rest)  # with the same memo
            if pickler.states:
                raise NotFlat  # another pickler than CPython's in C
        except (Overlap, _Endless, NotFlat):
            raise
        except Exception as e:  # whatever a user's own reducing code raises
            raise _Culprit(pickler.last, e) from e
        finally:
            held.clear()
        return pickler

    return _deep(run) if kind is _Deep or recursion.is_high() else run()


def _deep(run: Callable[[], Any]) -> Any:
    """Run with a large stack and a high recursion limit."""
    result: list[Any] = []

    def body() -> None:
        try:
            result.append((run(), None))
        except BaseException as e:
            result.append((None, e))

    before_size = threading.stack_size(DEEP_STACK)
    before_limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(DEEP_LIMIT)
        thread = threading.Thread(target=body, name=DEEP_THREAD)
        thread.start()
        thread.join()
    finally:
        sys.setrecursionlimit(before_limit)
        threading.stack_size(before_size)
    done, error = result.pop()
    try:
        if error is not None:
            raise error
    finally:
        error = None  # else its traceback would hold this frame, and this frame it
    return done


def dump_items(session: Session, flat: Any) -> bytes:
    """The elements of an array of immutable objects."""
    return pickle.dumps(flat.tolist(), protocol=5)


class _Placeholders(pickle.Pickler):
    """Writes placeholders, which refuse to be pickled otherwise."""

    dispatch_table = {Lost: lambda made: (Lost, parts(made))}


def placeholders(stands: list[Lost]) -> bytes:
    """A stream of values none of which could be written."""
    out = io.BytesIO()
    _Placeholders(out, 5).dump(([], stands))
    return out.getvalue()


class Reading:
    """A stream that is read in two parts."""

    def __init__(self, stream: bytes, foreign: Iterable[Any]) -> None:
        self._unpickler = shipped.Unpickler(io.BytesIO(stream), buffers=foreign)

    def begin(self, source: recipes.Source) -> list[Any]:
        """The values of the first part."""
        return list(self._load(source)[1])

    def rest(self, source: recipes.Source) -> list[Any]:
        """The values of the second, which share their objects with the first."""
        return list(self._load(source))

    def _load(self, source: recipes.Source) -> Any:
        before = recipes.loading(source)
        try:
            return self._unpickler.load()
        finally:
            recipes.loading(before)


def load(source: recipes.Source, stream: bytes, foreign: Iterable[Any] = (), parts: bool = False) -> list[Any]:
    """Read what `dump` wrote."""
    if parts:
        reading = Reading(stream, foreign)
        return reading.begin(source) + reading.rest(source)
    before = recipes.loading(source)
    try:
        values: list[Any] = shipped.loads(stream, foreign)[1]
        return values
    finally:
        recipes.loading(before)
