"""Marks of values, the same in every process: of two values with different marks one is another.

A mark leaves out parts that belong to a process (locks, handles, addresses), and parts that only code of the user's can
read. A library's object counts as it is pickled.
"""

from __future__ import annotations

import collections
import contextlib
import copyreg
import enum
import functools
import gc
import hashlib
import io
import itertools
import pickle
import sys
import threading
import types
from collections.abc import Iterable
from typing import Any, Callable, NamedTuple

from gresshopper import typenames

from . import adapters, recursion
from .session import own_module

#: Most objects to be looked at singly; a larger value is pickled.
_MOST = 5_000
#: Most bytes of what is pickled, without arrays' memory.
_PICKLED = 16 << 20
#: Most bytes of memory that are read whole. Of more memory so many bytes are read, in evenly spaced pieces; a few of each
#: further array.
_READ, _PIECE, _FEW = 64 << 20, 4096, 16
#: Read by their own iterators: a subclass may have another.
_SETS_OF: tuple[Any, ...] = (set, frozenset)
_SEQUENCES: tuple[Any, ...] = (list, tuple, collections.deque)
#: Bytes that begin a set in a pickle: its order differs from process to process.
_SETS = (b"\x8f", b"\x91")

_ATOMS = frozenset({int, float, complex, bool, type(None), type(Ellipsis), type(NotImplemented)})
_BY_NAME = (type, types.BuiltinFunctionType, types.ModuleType)


@recursion.Bounded()
def mark(value: Any) -> str:
    """A value's mark; empty if it has none."""
    try:
        if issubclass(type(value), (dict, list, tuple, set, frozenset)) and len(value) > _MOST:
            raise _Large
        found = _Look().at(value)
    except _Large:
        found = _pickled(value) or b""
    except Exception:  # nested too deeply, or changed meanwhile by a thread
        found = b""
    return hashlib.blake2b(found, digest_size=8).hexdigest() if found else ""


class _Large(Exception):
    """A value holds too many objects."""


class _Look:
    """A walk through one value."""

    def __init__(self) -> None:
        self._left = _MOST
        self._within: set[int] = set()

    def at(self, value: Any) -> bytes:
        kind = type(value)
        self._left -= 1
        if self._left < 0:
            raise _Large
        if kind in _ATOMS:
            return f"{kind.__name__} {value!r}".encode()
        if kind is str or kind is bytes:
            content = value.encode("utf-8", "surrogatepass") if kind is str else value
            return _digest(kind.__name__.encode(), content)
        if issubclass(type(value), _BY_NAME):
            return _name(value)
        if id(value) in self._within:
            return b"again"
        self._within.add(id(value))
        try:
            return self._inside(value)
        finally:
            self._within.discard(id(value))

    def _inside(self, value: Any) -> bytes:
        if type(value) is types.FunctionType:
            return self._function(value)
        parts = _parts(value)
        if parts is not None:
            return _digest(_name(type(value)), *map(self.at, parts))
        if issubclass(type(value), enum.Enum):
            return _digest(_name(type(value)), str(value._name_).encode(), self.at(value._value_))
        own = _is_own(typenames.module_of(type(value)))
        attrs = self._attributes(value) if own else b""
        items = self._items(value)
        if items is not None:
            return _digest(_name(type(value)), *items, attrs)
        if own:
            return _digest(_name(type(value)), attrs)
        if issubclass(type(value), itertools.count):
            return repr(value).encode()  # from Python 3.14 on it isn't pickled
        return _pickled(value) or _name(type(value))

    def _items(self, value: Any) -> Iterable[bytes] | None:
        if issubclass(type(value), dict):
            pairs = [_digest(self.at(k), self.at(v)) for k, v in list(dict.items(value))]
            return pairs if issubclass(type(value), collections.OrderedDict) else sorted(pairs)
        for base in _SETS_OF:
            if issubclass(type(value), base):
                return sorted(map(self.at, list(base.__iter__(value))))
        for base in _SEQUENCES:
            if issubclass(type(value), base):
                return list(map(self.at, list(base.__iter__(value))))
        return None

    def _attributes(self, value: Any) -> bytes:
        if issubclass(type(value), threading.Thread):
            return b""  # it has numbers of the process's
        attrs = object.__getattribute__(value, "__dict__") if type(value).__dictoffset__ else {}
        slots = {}
        for base in type(value).__mro__:
            for name, member in list(vars(base).items()):
                if type(member) is types.MemberDescriptorType:
                    with contextlib.suppress(AttributeError):
                        slots[name] = member.__get__(value)
        return _digest(*sorted(_digest(str(k).encode(), self.at(v)) for k, v in [*attrs.items(), *slots.items()]))

    def _function(self, f: types.FunctionType) -> bytes:
        if not _is_own(typenames.home_of(f)):
            return _name(f)
        held = [f.__defaults__, f.__kwdefaults__, f.__dict__]
        cells = [cell.cell_contents for cell in f.__closure__ or () if not _is_empty(cell)]
        if not _is_own(f.__globals__.get("__name__")):
            # A library's wrapper: it may count calls, and keep results.
            cells = [held for held in cells if type(held) is types.FunctionType]
        return _digest(code_mark(f.__code__), *map(self.at, held), *map(self.at, cells))


def _is_own(module: Any) -> bool:
    return isinstance(module, str) and own_module(sys.modules.get(module))


def _parts(value: Any) -> tuple[Any, ...] | None:
    """The parts of what wraps functions."""
    if issubclass(type(value), property):
        return value.fget, value.fset, value.fdel
    if issubclass(type(value), (staticmethod, classmethod)):
        return (value.__func__,)
    if issubclass(type(value), functools.cached_property):
        return (value.func,)
    if issubclass(type(value), types.MethodType):
        return value.__func__, value.__self__
    if type(value) is functools.partial:
        return value.func, value.args, value.keywords
    if issubclass(type(value), functools._lru_cache_wrapper):
        return (value.__wrapped__,)
    for prefix, attr in _of_libraries().wraps:
        if typenames.module_of(type(value)).startswith(prefix) and hasattr(value, attr):
            return (getattr(value, attr),)
    return None


def _is_empty(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return True
    return False


def _name(value: Any) -> bytes:
    if issubclass(type(value), types.ModuleType):
        return f".{typenames.name_of_module(value)}".encode()
    return f"{typenames.home_of(value) or None}.{typenames.text_of(value, '__qualname__')}".encode()


def _digest(*parts: bytes) -> bytes:
    found = hashlib.blake2b(digest_size=12)
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.digest()


#: Marks of code by the code's id, with the code, to keep the id from other objects.
_codes: dict[int, tuple[types.CodeType, bytes]] = {}


def code_mark(code: types.CodeType) -> bytes:
    """A mark of the behaviour of code, wherever the file is: comparable only within a version of Python."""
    known = _codes.get(id(code))
    if known is None:
        names = (code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        found = _digest(repr((names, counts)).encode(), code.co_code, *map(_constant, code.co_consts))
        _codes[id(code)] = known = code, found
    return known[1]


def _constant(value: Any) -> bytes:
    if issubclass(type(value), types.CodeType):
        return code_mark(value)
    if issubclass(type(value), frozenset):
        return _digest(*sorted(map(_constant, value)))
    if issubclass(type(value), tuple):
        return _digest(*map(_constant, value))
    return f"{type(value).__name__} {value!r}".encode("utf-8", "surrogatepass")


# --- what is pickled ---


class _Short(io.BytesIO):
    """Takes little."""

    def write(self, data: Any) -> int:
        if self.tell() > _PICKLED:
            raise ValueError("too large")
        return super().write(data)


class _Pickler(pickle.Pickler):
    """Leaves out caches."""

    def __init__(self, out: _Short, buffers: list[pickle.PickleBuffer]) -> None:
        super().__init__(out, protocol=5, buffer_callback=buffers.append)
        self.fast = True  # which strings are one object differs from process to process
        self._ways, self._singles, _ = _of_libraries()
        self._known: dict[type, Callable[[Any], Any] | None] = {}
        self._names: dict[tuple[Any, ...], tuple[str, ...] | None] = {}

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind not in self._known:
            self._known[kind] = self._way_of(obj)
        way = self._known[kind]
        return NotImplemented if way is None else way(obj)

    def _way_of(self, obj: Any) -> Callable[[Any], Any] | None:
        """How objects of a type count. None: as pickle writes them."""
        if issubclass(type(obj), _APART):
            return None
        if any(type(held) is type(obj) for held, _ in self._singles.values()):
            return self._reduced
        way = next((way for kind, way in self._ways if issubclass(type(obj), kind)), None)
        return way or (None if _has_no_cache(type(obj)) else self._reduced)

    def _reduced(self, obj: Any) -> Any:
        held = self._singles.get(id(obj))
        if held is not None:
            return str, held[1]  # its content is the process's
        kind: Any = type(obj)
        for base, way in self._ways:
            if issubclass(type(obj), base):
                return way(obj)
        how = copyreg.dispatch_table.get(kind)
        reduced: Any = obj.__reduce_ex__(5) if how is None else how(obj)
        if not isinstance(reduced, tuple) or len(reduced) < 2:
            return reduced
        args = self._lasting(kind, reduced[1])
        return (reduced[0], args, *(self._lasting(kind, part) for part in reduced[2:3]), *reduced[3:])

    def _lasting(self, kind: type, part: Any) -> Any:
        """An object's attributes without its caches. Their order may differ from process to process."""
        if type(part) is tuple:
            apart = _NESTED.isdisjoint(map(type, part))
            return part if apart else tuple([self._lasting(kind, one) for one in part])
        if type(part) is not dict or not _STR.issuperset(map(type, part)):
            return part
        if len(part) > _NAMES:
            names = _lasting_names(kind, part)
        else:
            key = (kind, *part)
            if key not in self._names:
                self._names[key] = _lasting_names(kind, part)
            names = self._names[key]
        return part if names is None else {name: part[name] for name in names}


#: Most names that are remembered together.
_NAMES = 64
_NESTED, _STR = frozenset({tuple, dict}), frozenset({str})


def _lasting_names(kind: type, part: dict[str, Any]) -> tuple[str, ...] | None:
    """The names that count, in their order. None: all as they are."""
    names = tuple(name for name in sorted(part) if not _is_cache(kind, name))
    return None if names == tuple(part) else names


def _has_no_cache(kind: Any) -> bool:
    """Whether instances have no attributes but slots in their order, or are of a kind written without any."""
    if kind.__dictoffset__ != 0:
        return False
    if not kind.__flags__ & _HEAP:
        return typenames.module_of(kind) in _WITHOUT
    slots: list[str] = copyreg._slotnames(kind)  # type: ignore[attr-defined]
    plain = kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__
    told = getattr(kind, "__getstate__", None) is not getattr(object, "__getstate__", None)
    return plain and not told and slots == sorted(slots) and not any(_is_cache(kind, name) for name in slots)


#: The flag of types that are made at run time, and modules whose others are written without a dictionary.
_HEAP, _WITHOUT = 1 << 9, frozenset({"array", "datetime", "decimal"})


class _Ways(NamedTuple):
    """How objects of libraries count, objects that a library has once for the process, by their ids, and types that wrap
    a function."""

    marks: list[tuple[Any, Callable[[Any], Any]]]
    held: dict[int, tuple[Any, tuple[str, str]]]
    wraps: list[tuple[str, str]]


_ways: tuple[int, _Ways] = (-1, _Ways([], {}, []))


def _of_libraries() -> _Ways:
    """What the loaded libraries' adapters say."""
    global _ways  # noqa: PLW0603 - libraries are loaded once for the process
    if _ways[0] != len(sys.modules):
        known = list(adapters.loaded())
        places = [("random", "_inst"), *(place for adapter in known for place in adapter.singles)]
        held = {id(value): (value, place) for place in places if (value := _at(*place)) is not None}
        marks = [way for adapter in known for way in adapter.marks()]
        _ways = len(sys.modules), _Ways(marks, held, list(adapters.entries("wraps", known)))
    return _ways[1]


def _at(module: str, path: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _is_cache(kind: type, name: str) -> bool:
    return (name[:1] == "_" and "cache" in name) or isinstance(getattr(kind, name, None), functools.cached_property)


class _WithSets(_Pickler):
    """Writes a set by the marks of its items."""

    def __init__(self, out: _Short, buffers: list[pickle.PickleBuffer]) -> None:
        super().__init__(out, buffers)
        self._left = _WITH_SETS

    def persistent_id(self, obj: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise ValueError("too large")
        return sorted(map(_Look().at, list(obj))) if type(obj) in _SETS_OF else None


#: Most objects beside a set.
_WITH_SETS = 100_000


def _pickled(value: Any) -> bytes | None:
    """A digest of a value's pickle and of its arrays' memory. None: there is none that is the same in every process."""
    written = _written(_Pickler, value)
    if written is None or (any(mark in written[0] for mark in _SETS) and _holds_set(written[0], value)):
        written = _written(_WithSets, value)
    if written is None:
        return None
    found, room = hashlib.blake2b(digest_size=12), _READ
    for buffer in written[1]:
        room -= _read(buffer.raw(), found, max(room, _FEW * _PIECE))
    found.update(written[0])
    return found.digest()


def _written(kind: type[_Pickler], value: Any) -> tuple[bytes, list[pickle.PickleBuffer]] | None:
    out, buffers = _Short(), list[pickle.PickleBuffer]()
    try:
        kind(out, buffers).dump(value)
    except Exception:  # what can't be pickled, holds itself, or is too large
        return None
    return out.getvalue(), buffers


#: Longest pickle that is looked at op by op.
_SHORT = 1 << 18


def _holds_set(stream: bytes, value: Any) -> bool:
    if len(stream) <= _SHORT:
        import pickletools  # a fresh kernel has it no sooner than a spare one

        return any(op.name in ("EMPTY_SET", "FROZENSET") for op, _, _ in pickletools.genops(stream))
    level, seen = [value], {id(value)}
    while level:
        inside = {id(o): o for o in gc.get_referents(*level) if gc.is_tracked(o) and not issubclass(type(o), _APART)}
        level = [o for at, o in inside.items() if at not in seen]
        seen.update(inside)
        if any(issubclass(type(o), (set, frozenset)) for o in level):
            return True
    return False


#: Pickled by name, and lead to all others.
_APART = (type, types.FunctionType, types.ModuleType)


def _read(memory: memoryview, found: Any, most: int) -> int:
    """Reads so many bytes, or all. Returns how many."""
    size = memory.nbytes
    found.update(size.to_bytes(8, "little"))
    if size <= most:
        found.update(memory)
        return size
    pieces = most // _PIECE
    for i in range(pieces):
        at = i * (size - _PIECE) // (pieces - 1)
        found.update(memory[at : at + _PIECE])
    return pieces * _PIECE
