"""Changes made by cells in libraries without any trace in a variable, found by a look at all modules.

There are three kinds. Entries of the notebook in a library's tables (registries of converters, scales, hooks) come
back. Functions of the notebook in modules and classes are only named, and so are functions that one library has put
into another at a cell's word.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

from gresshopper import typenames

from . import adapters, settings
from .session import MAIN, NotHereError

#: Libraries whose tables are left out: the engine's own, and those that other sections read.
_OTHERS = frozenset(
    {
        "builtins",
        "sys",
        "gc",
        "copyreg",
        "abc",
        "weakref",
        "threading",
        "asyncio",
        "concurrent",
        "multiprocessing",
        "signal",
        "atexit",
        "warnings",
        "linecache",
        "csv",
        "gresshopper",
        "cloudpickle",
    }
)


class _LeftOut:
    """Libraries that aren't looked into, as the adapters of loaded libraries name them."""

    #: Their tables are left out.
    tables: frozenset[str] = _OTHERS
    #: Their functions stand in other libraries from the kernel's start on, or from their own import.
    functions: frozenset[str] = _OTHERS
    #: Beginnings of the names of modules whose objects in classes come back.
    accessors: tuple[str, ...] = ("builtins",)

    @classmethod
    def see(cls) -> None:
        """Take what is loaded now."""
        cls.tables = _OTHERS.union(adapters.entries("of_kernel"))
        cls.functions = cls.tables.union(adapters.entries("lends"))
        cls.accessors = ("builtins", *adapters.entries("accessors"))


_STANDARD: frozenset[str] = getattr(sys, "stdlib_module_names", frozenset())
_TABLES = (dict, list, set)
#: Entries of a large table, and those of its end.
_LARGE, _END = 64, 8


class _Scan(NamedTuple):
    """Members of a module or a class that may be the notebook's doing."""

    #: The notebook's functions.
    mine: list[str]
    #: Functions of another library, with the name of their place there.
    lent: list[tuple[str, str]]
    tables: list[tuple[str, Any]]
    #: Of a module only.
    classes: list[tuple[str, type]]


#: A fingerprint of the members, the classes among them, and the scan. None: it is empty.
_Seen = tuple[int, "list[tuple[str, type]]", "_Scan | None"]
#: The scans of modules and classes: a look at each value is slow.
_modules: dict[int, _Seen] = {}
_classes: dict[int, _Seen] = {}


class _Place(NamedTuple):
    """A module or a class in it."""

    module: str
    path: str

    def named(self, attr: str) -> str:
        return ".".join(filter(None, (*self, attr)))


class _Found(NamedTuple):
    """The findings of one pass."""

    patched: list[str]
    lent: dict[str, str]
    #: The notebook's entries in tables.
    entries: list[tuple[_Place, str, _Entry]]
    #: Tables that were looked at: several modules may hold one.
    tables: set[int]

    def add(self, module: str, path: str, scan: _Scan) -> None:
        place = _Place(module, path)
        self.patched.extend(map(place.named, scan.mine))
        self.lent.update((place.named(attr), lender) for attr, lender in scan.lent)
        for attr, table in scan.tables:
            if id(table) not in self.tables:
                self.tables.add(id(table))
                self.entries.extend((place, attr, entry) for entry in _entries(table))


#: Of a dictionary a pair, else a single value.
_Entry = tuple[Any, ...]


def look(scope: dict[str, Any]) -> dict[str, Any]:
    """The sections `patched`, `lent functions` and `library tables`, by one pass over all modules and their classes."""
    _LeftOut.see()
    found = _Found([], {}, [], set())
    seen: set[int] = set()
    members_of = type.__dict__["__dict__"].__get__
    for name, module in list(sys.modules.items()):
        if type(module) is not types.ModuleType or name == MAIN or vars(module) is scope:
            continue
        _, classes, scan = _scanned(_modules, id(module), name, vars(module), scope)
        if scan is not None:
            found.add(name, "", scan)
        for attr, kind in classes:
            if id(kind) not in seen:
                seen.add(id(kind))
                _, _, scan = _scanned(_classes, id(kind), typenames.module_of(kind), members_of(kind), scope)
                if scan is not None:
                    found.add(name, attr, scan)
    _seen_last[:] = found.patched, [(place, attr) for place, attr, _ in found.entries]
    return {
        "patched": sorted(found.patched),
        "lent functions": found.lent,
        "library tables": _described(found.entries),
    }


#: The places of the last look with something of the notebook's: of functions, and of tables.
_seen_last: list[Any] = [[], []]


def of_notebook() -> Iterator[Any]:
    """What stands now at the places where the last look has found something of the notebook's."""
    patched, tables = _seen_last
    yield from map(_found, patched)
    for place, attr in tables:
        table = settings.held_by(settings.base_of(*place)).get(attr)
        if issubclass(type(table), _TABLES):
            yield from itertools.chain.from_iterable(_entries(table))


def _scanned(known: dict[int, _Seen], key: int, home: Any, members: Any, scope: dict[str, Any]) -> _Seen:
    mark = hash((id(scope), *map(id, members.values())))
    before = known.get(key)
    if before is not None and before[0] == mark:
        return before
    scan = _Scan([], [], [], [])
    root = str(home).partition(".")[0]
    borrows = root in _STANDARD if known is _modules else root not in _LeftOut.functions
    for attr, value in list(members.items()):
        kind = type(value)
        if kind is types.FunctionType:
            if value.__globals__ is scope:
                scan.mine.append(attr)
            elif borrows and (lender := _lender(value, root)):
                scan.lent.append((attr, lender))
        elif issubclass(kind, _TABLES):
            if root not in _LeftOut.tables and attr[:2] != "__":
                scan.tables.append((attr, value))
        elif known is _modules and issubclass(kind, type) and typenames.module_of(value) != MAIN:
            scan.classes.append((attr, value))
        elif known is _classes and root not in _LeftOut.functions and _wraps(value):
            scan.mine.append(attr)
    known[key] = before = (mark, scan.classes, scan if scan.mine or scan.lent or scan.tables else None)
    return before


def _wraps(value: Any) -> bool:
    """Whether a library's object, put into one of its classes, holds a function or class of the notebook: an accessor.
    Accessors that come back with their library aren't told."""
    kind = type(value)
    if kind.__dictoffset__ == 0 or issubclass(kind, type) or typenames.module_of(kind).startswith(_LeftOut.accessors):
        return False
    return any(map(settings.of_notebook, list(object.__getattribute__(value, "__dict__").values())))


def _lender(function: types.FunctionType, root: str) -> str:
    """The home of a function held by another library; empty for any other function."""
    home = function.__globals__.get("__name__")
    if not isinstance(home, str):
        return ""
    lender = home.partition(".")[0]
    if lender == root or lender in _STANDARD or lender in _LeftOut.functions or lender not in sys.modules:
        return ""
    return f"{home}.{function.__qualname__}"


def set_patched(state: list[str]) -> None:
    """Says which of these functions aren't there."""
    missing = [where for where in state if not settings.of_notebook(_found(where)) and not _wraps(_found(where))]
    if missing:
        raise NotHereError(f"{', '.join(missing)}: the notebook put a function of its own there, run its cell again")


def set_lent(state: dict[str, str]) -> None:
    """Says which of these functions aren't there. A library that no variable needs isn't loaded, and doesn't count."""
    missing = sorted(where for where, lender in state.items() if _is_loaded(where) and _is_else(where, lender))
    if missing:
        lenders = ", ".join(sorted({state[where].partition(".")[0] for where in missing}))
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        raise NotHereError(
            f"{', '.join(missing[:_NAMED])}{more}: functions of {lenders} stood there, run the cell again that put them there"
        )


#: Most functions that a sentence names.
_NAMED = 4


def _is_else(where: str, lender: str) -> bool:
    here = _found(where)
    return type(here) is not types.FunctionType or f"{here.__globals__.get('__name__')}.{here.__qualname__}" != lender


def _is_loaded(where: str) -> bool:
    name = where.rpartition(".")[0]
    return name in sys.modules or name.rpartition(".")[0] in sys.modules


def _found(where: str) -> Any:
    """A module's value, or that of a class in a module."""
    name, _, attr = where.rpartition(".")
    if name in sys.modules:
        return settings.held_by(sys.modules[name]).get(attr)
    module, _, kind = name.rpartition(".")
    return getattr(settings.held_by(sys.modules.get(module)).get(kind), attr, None)


# --- tables ---

#: By a table's id: the fingerprint, the notebook's entries, and the table itself, to keep the id from other objects.
_looked: dict[int, tuple[tuple[int, int], list[_Entry], Any]] = {}


def _entries(table: Any) -> list[_Entry]:
    mark = _mark(table)
    before = _looked.get(id(table))
    if before is None or before[0] != mark:
        items = list(dict.items(table)) if issubclass(type(table), dict) else [(value,) for value in table]
        found = [item for item in items if any(map(settings.is_mine, item))]
        _looked[id(table)] = before = (mark, found, table)
    return before[1]


def _mark(table: Any) -> tuple[int, int]:
    """A fingerprint; of a large table of its end alone, where entries are added: all others of it would take long."""
    size = len(table)
    if not issubclass(type(table), dict):
        last = table if size <= _LARGE or type(table) is set else table[-_END:]
        return size, hash((*map(id, last),))
    if size <= _LARGE:
        return size, hash((*map(id, table), *map(id, dict.values(table))))
    return size, hash((*map(id, itertools.islice(reversed(dict.values(table)), _END)),))


def _described(entries: list[tuple[_Place, str, _Entry]]) -> dict[str, Any]:
    """The entries that can be kept, and the names of the tables with others."""
    kept: list[tuple[str, str, str, bytes]] = []
    told: set[str] = set()
    for place, attr, entry in entries:
        try:
            kept.append((*place, attr, settings.dump(entry, short=True)))
        except Exception:  # a class that no variable holds, a handle, much data
            told.add(place.named(attr))
    return {"kept": kept, "told": sorted(told)}


#: Entries that were made here for a saved state, with their tables: a later state may lack them.
_entered: list[tuple[Any, _Entry]] = []


def set_tables(state: dict[str, Any]) -> None:
    """Makes the entries again; says which couldn't be."""
    missing: set[str] = set(state["told"])
    while _entered:
        with contextlib.suppress(Exception):
            _take_out(*_entered.pop())
    for module, path, attr, content in state["kept"]:
        place = _Place(module, path)
        try:
            __import__(module)
            table, entry = _table(place, attr), settings.load(content)
            _enter(table, entry)
            _entered.append((table, entry))
        except Exception:
            missing.add(place.named(attr))
    if missing:
        raise NotHereError(f"{', '.join(sorted(missing))}: the notebook set something there, run its cell again")


def _table(place: _Place, attr: str) -> Any:
    base = settings.base_of(*place)
    held = settings.held_by(base).get(attr)
    if held is None and isinstance(base, type):
        # Registering made a copy of the base class's, as PyYAML does.
        held = copy.copy(getattr(base, attr))
        setattr(base, attr, held)
    return held


def _enter(table: Any, entry: _Entry) -> None:
    if issubclass(type(table), dict):
        table[entry[0]] = entry[1]
    elif issubclass(type(table), set):
        table.add(entry[0])
    elif not any(there is entry[0] for there in table):
        table.append(entry[0])


def _take_out(table: Any, entry: _Entry) -> None:
    if issubclass(type(table), dict):
        if table.get(entry[0]) is entry[1]:
            del table[entry[0]]
    elif issubclass(type(table), set):
        table.discard(entry[0])
    else:
        table[:] = [there for there in table if there is not entry[0]]
