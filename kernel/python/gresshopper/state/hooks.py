"""The notebook's hooks: functions and objects of its own that Python and libraries call, of whatever cell runs.

A hook may change variables that a cell doesn't name. `roots` finds the hooks that are there now, without a reference to
stay. `handed` knows what code hands to a library that shows it nowhere: a database, say, or an audit hook.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import builtins
import copyreg
import gc
import logging
import re
import sys
import threading
import types
import weakref
from collections.abc import Collection, Iterator
from typing import Any

from gresshopper import typenames

from . import adapters, libraries, loggers, names, settings, user_modules
from .session import MAIN
from .streams import STREAMS

#: Sections of the process that change with a hook.
SECTIONS = frozenset({"IPython", "assigned", "handlers", "hung in", "library tables", "patched", "registered"})
#: Builtins from before any cell.
_BUILTINS = dict(vars(builtins))
#: Verbs by which code hands a function to a library that keeps it out of sight.
_HANDS = re.compile(
    r"register|audithook|^add_(?!subplot|axes|patch|artist)|^create_(function|aggregate|collation|window)|"
    r"^set_?(authorizer|progress|trace|profile|custom|wakeup)|hook|callback|connect|subscribe|observe|^on_|bind|"
    r"listen|handler|^(ref|finalize|WeakMethod)$",
    re.IGNORECASE,
)
#: Handlers that write to a file or to a stream and hold nothing else.
_HANDLERS = (logging.NullHandler, logging.StreamHandler, logging.FileHandler)


def roots() -> list[Any]:
    """The notebook's hooks in the interpreter, in the standard library and in libraries."""
    return [*passing(), *(hook for hook in _places() if hook is not None)]


def are_there() -> bool:
    """Whether there is any of those that a section of the process shows."""
    return any(hook is not None for hook in _places())


def passing() -> list[Any]:
    """Hooks that no section shows: streams, and functions of the notebook that run at the end of another object."""
    found = [there for name, own in STREAMS.items() if (there := getattr(sys, name, own)) is not own]
    for made in list(_ENDS.values()):
        if settings.is_mine(made.func):
            found += [made.func, made.args, made.kwargs]
    return found


#: Python's functions for the ends of objects.
_ENDS: dict[Any, Any] = getattr(weakref.finalize, "_registry", {})


def of_own_modules() -> list[Any]:
    """What the user's own modules hold."""
    return [
        value
        for module in user_modules.loaded()
        for name, value in list(vars(module).items())
        if name[:2] != "__" and _may_call(value)
    ]


def _places() -> Iterator[Any]:
    yield from filter(settings.is_mine, _of_interpreter())
    for logger in loggers.known().values():
        yield from filter(_holds, logger.handlers)
        yield from logger.filters
    yield from filter(_may_call, settings.assigned_values())
    yield from libraries.of_notebook()
    for found in adapters.entries("hooks"):
        yield from found()


def _of_interpreter() -> Iterator[Any]:
    yield from (sys.excepthook, sys.displayhook, sys.unraisablehook, threading.excepthook)
    yield from (sys.getprofile(), sys.gettrace())
    yield from (*gc.callbacks, *sys.meta_path, *sys.path_hooks)
    yield from map(_signal.getsignal, range(1, _signal.NSIG))
    yield from list(copyreg.dispatch_table.values())
    yield from (value for name, value in list(vars(builtins).items()) if _BUILTINS.get(name) is not value)


def _holds(handler: logging.Handler) -> bool:
    """Whether a handler may change an object of the notebook's."""
    if type(handler) not in _HANDLERS or handler.filters or settings.is_mine(handler.formatter):
        return True
    stream = getattr(handler, "stream", None)
    return settings.is_mine(stream) or typenames.name_of(type(stream)) in ("StringIO", "BytesIO")


def _may_call(value: Any) -> bool:
    """Whether a value in a library may be, or hold, something of the notebook's."""
    kind = type(value)
    if kind is types.FunctionType:
        return value.__globals__ is settings.scope() or value.__closure__ is not None
    if issubclass(kind, type):
        return settings.of_notebook(value)
    return kind not in settings.ATOMS and kind not in (types.ModuleType, types.BuiltinFunctionType)


def handed(found: names.Names, variables: Collection[str]) -> set[str]:
    """Variables in functions that code may hand to a library, and functions and objects of the notebook handed there."""
    if not any(map(_HANDS.search, found.names)):
        return set()
    space = settings.scope()
    mine = {name for name in found.names if name in variables and _is_own(space[name])}
    return mine.union(found.inner.intersection(variables))


def _is_own(value: Any) -> bool:
    """Whether a value is a function or class of the notebook, or an object of no library's kind: others are large."""
    kind = type(value)
    if kind is types.MethodType:
        return _is_own(value.__func__) or _is_own(value.__self__)
    return settings.of_notebook(value) or (
        typenames.module_of(kind) == MAIN and all(typenames.module_of(base) in _PLAIN for base in kind.__mro__)
    )


_PLAIN = (MAIN, "builtins", "abc", "typing")
