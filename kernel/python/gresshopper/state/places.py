"""Containers that a loaded module holds under a name, and the notebook too: `from config import CONFIG`.

A variable that holds such an object is written as its place, with the content: after a restore it is the module's again,
and the module's has that content. Of the user's own modules all are found, wherever the notebook holds them. Of a
library's only what a variable holds: its name is the library's own, or the module is a variable too.
"""

from __future__ import annotations

import argparse
import bisect
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from . import libraries, own, settings
from .lost import Lost
from .session import MAIN

_ATTRIBUTED = (types.SimpleNamespace, argparse.Namespace)
#: Kinds of such objects by the names under which they are written.
KINDS: dict[str, type] = {kind.__name__: kind for kind in (dict, list, set, bytearray, *_ATTRIBUTED)}
_TYPES = frozenset(KINDS.values())
#: Most bytes of an array that is written so, by a copy.
_COPIED = 16 << 20
#: Their content belongs to the process, or is a section of its own.
_OF_PROCESS = libraries.OTHERS


class Held:
    """Written before all else of a dump. From then on the object itself is known as written."""

    def __init__(self, held: Any, module: str, name: str) -> None:
        self.held, self.module, self.name = held, module, name

    def content(self) -> Any:
        """A plain copy. None: it isn't the notebook's to set."""
        if self.module.partition(".")[0] in _OF_PROCESS:
            return None
        held = self.held
        if _is_array(held):
            return held.copy()
        if isinstance(held, (dict, *_ATTRIBUTED)):
            return dict(held if isinstance(held, dict) else vars(held))
        return [bytes(held)] if isinstance(held, bytearray) else list(held)

    def where(self) -> tuple[Any, ...]:
        """Arguments of the recipe."""
        like = (self.held.shape, self.held.dtype) if _is_array(self.held) else ()
        return (self.module, self.name, type(self.held).__name__, *like)


def _is_array(value: Any) -> bool:
    return type(value).__name__ == "ndarray" and type(value) not in _TYPES


def found(module: Any, name: str, kind: str, *like: Any) -> Any | None:
    """What the module holds there, if it is of the kind, and of the array's shape and type."""
    value: Any = getattr(module, name, None)
    if like:
        return value if _is_array(value) and (value.shape, value.dtype) == like else None
    return value if type(value) is KINDS[kind] else None


def made(kind: str, *like: Any) -> Any:
    """An empty object of the kind."""
    return sys.modules["numpy"].empty(*like) if like else KINDS[kind]()


class Known:
    """Written after a `Held` object's place, before its content."""

    def __init__(self, of: Held) -> None:
        self.of = of

    def take_its_place(self, pickler: Any) -> None:
        """Have the pickler know the object itself in the stand of `Held`, under the same number."""
        memo = pickler.memo
        memo = dict(memo) if isinstance(memo, dict) else memo.copy()
        number, _ = memo.pop(id(self.of))
        memo[id(self.of.held)] = number, self.of.held
        pickler.memo = memo


def fill(made: Any, content: Any) -> None:
    """Give an object its content. What holds a lost value isn't the module's to have."""
    if _is_array(made):
        made[...] = content
        return
    values = content.values() if isinstance(content, dict) else content
    if any(type(value) is Lost for value in values):
        return
    if isinstance(made, _ATTRIBUTED):
        vars(made).clear()
        vars(made).update(content)
    elif isinstance(made, list):
        made[:] = content
    elif isinstance(made, bytearray):
        made[:] = content[0]
    else:
        made.clear()
        made.update(content)


def _held_by(module: types.ModuleType, arrays: bool = False) -> Iterator[tuple[str, Any]]:
    for name, value in list(vars(module).items()):
        held = type(value) in _TYPES or (arrays and _is_small_array(value))
        if held and isinstance(name, str) and not name.startswith("__"):
            yield name, value


def _is_small_array(value: Any) -> bool:
    return _is_array(value) and value.base is None and not value.dtype.hasobject and value.nbytes <= _COPIED


#: Modules and names of what the user's own modules hold, by its id, as of a count of looks.
_own: tuple[int, dict[int, tuple[types.ModuleType, str]]] = (-1, {})


def _of_own(ids: Iterable[int]) -> Iterator[Held]:
    """Places of objects with these ids in the user's own modules."""
    global _own  # noqa: PLW0603 - a process has one set of modules
    if _own[0] != own.looks():
        there = {id(v): (module, name) for module in own.modules() for name, v in _held_by(module, arrays=True)}
        _own = own.looks(), there
    return _at(_own[1], ids)


def _at(table: dict[int, tuple[types.ModuleType, str]], ids: Any) -> Iterator[Held]:
    for at in _common(table, ids):
        module, name = table[at]
        held = vars(module).get(name)
        if id(held) == at and (type(held) in _TYPES or _is_small_array(held)):
            yield Held(held, module.__name__, name)


#: Places in the modules that are variables, as of their numbers of names.
_tables: tuple[dict[int, int], dict[int, tuple[types.ModuleType, str]]] = ({}, {})
#: These places, and the variables that hold a container by its id, as of a count of looks.
_variables: tuple[Any, dict[int, tuple[types.ModuleType, str]], dict[int, str]] = (None, {}, {})


def _of_variables(namespace: Mapping[str, Any]) -> tuple[dict[int, tuple[types.ModuleType, str]], dict[int, str]]:
    global _tables, _variables  # noqa: PLW0603 - a process has one namespace
    key = own.looks(), id(namespace), len(namespace)
    if _variables[0] != key:
        held = list(namespace.items())
        modules = {id(v): v for _, v in held if type(v) is types.ModuleType and vars(v) is not namespace}
        modules[id(sys)] = sys
        known = {at: len(vars(module)) for at, module in modules.items()}
        if _tables[0] != known:
            loaded = [m for m in modules.values() if sys.modules.get(str(vars(m).get("__name__"))) is m]
            _tables = known, {id(v): (module, name) for module in loaded for name, v in _held_by(module)}
        names = {id(v): name for name, v in held if type(v) in _TYPES and not name.startswith("_")}
        _variables = key, _tables[1], names
    return _variables[1:]


def _common(table: dict[int, Any], ids: Any) -> list[int]:
    if len(ids) < _OFTEN * len(table):
        return [at for at in ids if at in table]
    found = ((at, bisect.bisect_left(ids, at)) for at in table)
    return [at for at, i in found if i < len(ids) and ids[i] == at]


#: So many ids are looked up in the time of one bisection.
_OFTEN = 8


def within(ids: Sequence[int], known: Sequence[Held]) -> list[Held]:
    """Places of further objects of the user's own modules among these sorted addresses."""
    there = {id(held.held) for held in known}
    return [held for held in _of_own(ids) if id(held.held) not in there and not _is_given(held)]


def direct(namespace: Mapping[str, Any], values: Any) -> list[Held]:
    """Places of the objects among these values that a module holds."""
    if not isinstance(values, list):
        return []
    wanted = {id(value) for value in values if type(value) in _TYPES}
    found = {id(held.held): held for held in _of_own(sorted({*wanted, *map(id, filter(_is_array, values))}))}
    if not wanted:
        return [held for held in found.values() if not _is_given(held)]
    table, names = _of_variables(namespace)
    for held in _at(table, sorted(wanted - found.keys())):
        found[id(held.held)] = held
    for at in wanted - found.keys():
        name = names.get(at, "")
        value = namespace.get(name)
        if id(value) == at and (place := _place(name, value)):
            found[at] = Held(value, place, name)
    return [held for held in found.values() if not _is_given(held)]


def _is_given(held: Held) -> bool:
    """Whether a cell put it there: then the module's is set to the variable's instead."""
    return (held.module, "", held.name) in settings.places()


#: By a variable's name: what was asked for last, and the answer.
_asked: dict[str, tuple[tuple[int, int], str]] = {}


def _place(name: str, value: Any) -> str:
    """The first module that holds an object under its variable's name; empty if none does."""
    question = id(value), len(sys.modules)
    known = _asked.get(name)
    if known is None or known[0] != question:
        modules = (
            (place, m) for place, m in list(sys.modules.items()) if type(m) is types.ModuleType and place != MAIN
        )
        answer = next((place for place, module in modules if vars(module).get(name) is value), "")
        _asked[name] = known = question, answer
    return known[1]
