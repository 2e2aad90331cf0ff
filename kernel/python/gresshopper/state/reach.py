"""The variables and objects within reach of objects that no variable holds: a hook, or what couldn't be saved.

Code of a library may call or change these beside a cell's own names. Modules, the kernel's own objects and event loops
aren't looked into: through them, everything is within reach of everything.
"""

from __future__ import annotations

import array
import collections
import gc
import logging
import types
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gresshopper import typenames

from . import adapters, names, settings
from .session import MAIN

#: Most objects that are looked at.
MOST = 5_000
#: Types whose instances lead nowhere.
_LEAVES = frozenset(
    {str, bytes, bytearray, int, float, complex, bool, type(None), types.ModuleType, types.CodeType}
    | {types.BuiltinFunctionType, logging.Logger, logging.RootLogger, logging.Manager}
)
#: Beginnings of the names of modules of types that lead to the whole kernel, beside those of libraries.
_WHOLE = ("gresshopper", "asyncio.unix")


class Reach(NamedTuple):
    """Names of variables, and other objects by their sorted addresses. `whole`: nothing is missing."""

    names: set[str]
    places: Any
    whole: bool


def reached(roots: Iterable[Any], held: Mapping[int, str], unsaved: Iterable[Any] = ()) -> Reach:
    """All within reach of these objects, the nearest first. `held`: variables by the address of their values, which
    aren't looked into. `unsaved`: values of variables that are looked into as far as is worth the time.
    """
    found: set[str] = set()
    opened = list(unsaved)
    queue = collections.deque([*((root, False) for root in roots), *((value, True) for value in opened)])
    # Each object is kept, so that no address is used twice.
    seen: dict[int, Any] = {}
    scope, whole = settings.scope(), True
    closed = (*_WHOLE, *adapters.entries("whole"))
    while queue:
        made, is_open = queue.popleft()
        kind, at = type(made), object.__hash__(made)
        if kind in _LEAVES or at in seen or made is scope:
            continue
        if at in held and not is_open:
            found.add(held[at])
            continue
        if len(seen) >= MOST:
            whole = whole and bool(opened)
            break
        seen[at] = made
        if kind is types.FunctionType:
            if made.__globals__ is scope:
                called = names.names_of_code(made.__code__)
                found |= called.names
                whole = whole and not called.dynamic
            parts = [made.__closure__, made.__defaults__, made.__kwdefaults__, made.__dict__]
        else:
            parts = _parts(made, kind, closed)
        queue.extend((part, False) for part in parts)
    return Reach(found, array.array("Q", sorted(map(id, seen.values()))), whole)


def _parts(made: Any, kind: type, closed: tuple[str, ...]) -> list[Any]:
    """Objects that an object holds. `closed`: beginnings of the names of modules whose objects aren't looked into."""
    if issubclass(kind, type):
        of_notebook = typenames.module_of(made) == MAIN
        return [*typenames.held_by(made).values(), *made.__mro__[1:]] if of_notebook else []
    if kind is dict and "__name__" in made and "__spec__" in made:
        return []  # a module's variables
    module = typenames.module_of(kind)
    if module.startswith(closed):
        return []
    return [*gc.get_referents(made), kind] if module == MAIN else gc.get_referents(made)
