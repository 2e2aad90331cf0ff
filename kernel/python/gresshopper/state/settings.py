"""Settings outside the namespace with functions and classes of the notebook, and its attributes of libraries.

This module writes sections of the process beyond plain pickle. A variable's object is written as the variable's name. A
function without a name is written with its code, and runs in the live namespace.
"""

from __future__ import annotations

import abc
import collections.abc
import contextlib
import functools
import io
import numbers
import os
import pickle
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gresshopper import typenames

from . import adapters, recursion, shipped
from .lost import Lost, LostError
from .session import MAIN, importable, reason
from .shipped import cloudpickle
from .streams import STREAMS

#: Attributes that are sections of their own, or belong to the process.
_ELSEWHERE = frozenset(
    {
        ("sys", "path"),
        ("sys", "argv"),
        ("sys", "modules"),
        ("sys", "excepthook"),
        ("sys", "displayhook"),
        ("sys", "last_type"),
        ("sys", "last_value"),
        ("sys", "last_traceback"),
        ("os", "environ"),
        ("warnings", "filters"),
        ("logging", "level"),
        ("logging", "handlers"),
    }
)
ATOMS = frozenset({str, bytes, int, float, complex, bool, type(None)})
#: Most bytes of an exception that is kept, and of an entry in a library's table.
SHORT = 1 << 20


def scope() -> dict[str, Any]:
    """The notebook's namespace."""
    return vars(sys.modules[MAIN])


def of_notebook(value: Any) -> bool:
    """Whether a function or class was made in the notebook."""
    if type(value) is types.FunctionType:
        return value.__globals__ is scope()
    return issubclass(type(value), type) and typenames.module_of(value) == MAIN


#: Types of which no instance is the notebook's doing.
_PLAIN = frozenset(
    {str, int, float, bool, bytes, type(None), dict, list, types.BuiltinFunctionType, types.ModuleType}
)


def is_mine(value: Any) -> bool:
    """Whether a value is a function, a class or an object of the notebook, or made of one."""
    kind = type(value)
    if kind in _PLAIN:
        return False
    if kind is types.FunctionType:
        return value.__globals__ is scope()
    if kind is tuple:
        return len(value) < 10 and any(map(is_mine, value))
    if kind is types.MethodType:
        return is_mine(value.__func__) or is_mine(value.__self__)
    if kind is functools.partial:
        return is_mine(value.func)
    return typenames.module_of(value if issubclass(kind, type) else kind) == MAIN


@recursion.Bounded()
def dump(value: Any, short: bool = False) -> bytes:
    """Content that plain pickle can't write. `short`: refuses more than `SHORT` bytes.

    # Errors
    Whatever pickling raises.
    """
    out = _Short() if short else io.BytesIO()
    _Pickler(out, 5).dump(value)
    return out.getvalue()


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    @functools.cached_property
    def held(self) -> dict[int, str]:
        """Variables by the id of what they hold, the first of each."""
        return {id(value): name for name, value in reversed(list(scope().items())) if name[:1] != "_"}

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not types.FunctionType and not isinstance(obj, type):
            held = self.held.get(id(obj)) if typenames.module_of(type(obj)) == MAIN else None
            return NotImplemented if held is None else (named, (held,))
        if not of_notebook(obj):
            if importable(obj) or isinstance(obj, type):
                return super().reducer_override(obj)
            raise pickle.PicklingError("a function of a library that its module doesn't hold")
        name = self.held.get(id(obj))
        if name is not None:
            return named, (name,)
        if isinstance(obj, type):
            raise pickle.PicklingError(f"no variable holds the class {typenames.qualname_of(obj)}")
        return (
            function,
            (obj.__code__, obj.__name__, obj.__defaults__, obj.__closure__),
            {
                "__kwdefaults__": obj.__kwdefaults__,
                "__doc__": obj.__doc__,
                "__qualname__": obj.__qualname__,
            },
            None,
            None,
            set_function,
        )


def name_of(value: Any) -> str | None:
    """A variable that holds this very object."""
    return next((name for name, held in list(scope().items()) if held is value and name[:1] != "_"), None)


#: Variables and code of functions that settings were made of: what they reach may run beside the cells' own code.
read_names: set[str] = set()
read_codes: set[types.CodeType] = set()


class Unread:
    """Variables that a restore has put off."""

    #: Reads one.
    read: Callable[[str], Any] | None = None


def named(name: str) -> Any:
    """What a variable holds."""
    read_names.add(name)
    space = scope()
    return space[name] if name in space or Unread.read is None else Unread.read(name)


def load(content: bytes) -> Any:
    """Settings as `dump` or plain pickle wrote them.

    # Errors
    Whatever unpickling raises.
    """
    return _Unpickler(io.BytesIO(content)).load()


class _Unpickler(shipped.Unpickler):  # type: ignore[misc]
    def find_class(self, module: str, name: str) -> Any:
        if module != MAIN:
            return super().find_class(module, name)
        first, *parts = name.split(".")
        return functools.reduce(getattr, parts, named(first))


def function(code: types.CodeType, name: str, defaults: Any, closure: Any) -> types.FunctionType:
    """A function of the notebook that no variable holds."""
    read_codes.add(code)
    return types.FunctionType(code, scope(), name, defaults, closure)


def set_function(made: types.FunctionType, state: dict[str, Any]) -> None:
    """The rest of such a function."""
    for attr, value in state.items():
        setattr(made, attr, value)


# --- attributes of libraries ---

#: Module, class or object in it (or nothing) and attribute, for all that a cell's code may have set.
_places: set[tuple[str, str, str]] = set()
#: Names of all attributes that the notebook's code has set, of whatever object.
attributes: set[str] = set()


def see(stored: Iterable[str]) -> None:
    """Remember which of these dotted names are attributes of libraries' modules or classes, or of objects in them."""
    space = scope()
    for path in stored:
        first, *middle, attr = path.split(".")
        attributes.add(attr)
        if not first:
            continue
        base = space.get(first)
        for part in middle:
            base = held_by(base).get(part)
        where = _where(base)
        if where is not None and (where[0], attr) not in _ELSEWHERE.union(adapters.entries("elsewhere")):
            _places.add((*where, attr))


#: The members of a module or a class itself.
held_by = typenames.held_by


def _where(base: Any) -> tuple[str, str] | None:
    if issubclass(type(base), types.ModuleType):
        name = typenames.name_of_module(base)
        return (name, "") if name not in ("", MAIN) and sys.modules.get(name) is base else None
    if issubclass(type(base), type):
        return (typenames.module_of(base), typenames.qualname_of(base)) if importable(base) else None
    return library_object(base)


def library_object(value: Any) -> tuple[str, str] | None:
    """The place of an object that the module of its class holds, or the library's first module: `mpmath.mp`."""
    of = typenames.module_of(type(value))
    if type(value).__dictoffset__ == 0 or of in ("", MAIN, "builtins"):
        return None
    places = ((name, attr) for name, attr, held in home_variables(of) if held is value)
    return next((place for place in places if (place[0], "", place[1]) not in _places), None)


def home_variables(of: str) -> Iterator[tuple[str, str, Any]]:
    """The variables of a class's module, and those of its library's first module: module, name and value."""
    for name in dict.fromkeys((of, of.partition(".")[0])):
        for attr, held in list(held_by(sys.modules.get(name)).items()):
            yield name, attr, held


def base_of(module: str, path: str) -> Any:
    """A module, or what a dotted path in it names."""
    found: Any = sys.modules.get(module)
    for part in path.split(".") if path else ():
        found = held_by(found).get(part)
    return found


def assigned() -> dict[str, Any]:
    """Objects that cells gave to libraries: kept if plain, a variable, a function or a class; else only named."""
    kept: dict[tuple[str, str, str], tuple[str, Any]] = {}
    told: list[str] = []
    for place in sorted(_places | _elsewhere()):
        module, path, attr = place
        base = base_of(module, path)
        value = held_by(base).get(attr, _places)
        if type(base) is not types.ModuleType and not isinstance(base, type):
            with contextlib.suppress(Exception):  # as torch's backends, which ask the library
                value = getattr(base, attr, _places)
        if value is _places or (module == "sys" and value is STREAMS.get(attr)):
            continue
        name = None if type(value) in ATOMS else name_of(value)
        if name is not None:
            kept[place] = ("named", name)
        elif _plain(value):
            kept[place] = ("value", value)
        elif isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type, io.StringIO)):
            try:
                kept[place] = ("pickled", dump(value, short=True))
            except Exception:
                told.append(".".join(filter(None, place)))
        else:
            told.append(".".join(filter(None, place)))
    return {"kept": kept, "told": told, "names": sorted(attributes)}


def _elsewhere() -> set[tuple[str, str, str]]:
    """Streams of the process with another in their place, set by no name in a cell: `contextlib.redirect_stdout`."""
    found = set()
    for name, own in STREAMS.items():
        value = getattr(sys, name, own)
        if value is not own and (type(value) in _REDIRECTED or name_of(value) is not None):
            found.add(("sys", "", name))
    return found


_REDIRECTED = (io.StringIO, io.TextIOWrapper)


def assigned_values() -> Iterator[Any]:
    """What stands at the places that cells have set, where no look runs code of the library's."""
    for module, path, attr in list(_places):
        yield held_by(base_of(module, path)).get(attr)


def _plain(value: Any) -> bool:
    return type(value) in ATOMS or (type(value) is tuple and all(map(_plain, value)))


#: Streams that were set as in a saved state: a later one may lack them.
_set: set[tuple[str, str, str]] = set()


def set_assigned(state: dict[str, Any]) -> list[str]:
    """Set it again; says what couldn't be."""
    missing = list(state["told"])
    attributes.update(state.get("names", ()))
    for place in _set - state["kept"].keys():
        setattr(sys, place[2], STREAMS[place[2]])  # the output comes here again
    _set.intersection_update(state["kept"])
    for place, (how, what) in state["kept"].items():
        module, path, attr = place
        try:
            __import__(module)
            base = base_of(module, path)
            value = named(what) if how == "named" else load(what) if how == "pickled" else what
            if isinstance(value, Lost):
                raise LostError(attr)
            if getattr(base, attr, _places) is not value:
                setattr(base, attr, value)
            _places.add(place)
            if module == "sys" and attr in STREAMS:
                _set.add(place)
        except Exception:
            missing.append(".".join(filter(None, place)))
    return missing


# --- the standard library ---


def dialects() -> dict[str, dict[str, Any]]:
    """The notebook's dialects of CSV."""
    csv = sys.modules["csv"]
    own = [name for name in csv.list_dialects() if name not in ("excel", "excel-tab", "unix")]
    return {name: {attr: getattr(csv.get_dialect(name), attr) for attr in _DIALECT} for name in own}


_DIALECT = (
    "delimiter",
    "doublequote",
    "escapechar",
    "lineterminator",
    "quotechar",
    "quoting",
    "skipinitialspace",
    "strict",
)


def set_dialects(state: dict[str, dict[str, Any]]) -> None:
    import csv

    for name, attrs in state.items():
        csv.register_dialect(name, **attrs)


_GET_DUMP: Any = getattr(abc, "_get_dump", lambda base: ((),))
_registered: tuple[Any, list[tuple[str, str, Any]]] = (None, [])


def registered() -> list[tuple[str, str, Any]]:
    """Classes of the notebook that were registered with the standard library's abstract ones."""
    global _registered  # noqa: PLW0603 - the counter is the process's, too
    token = abc.get_cache_token()
    if _registered[0] != token:
        found = []
        for base in _ABSTRACT:
            for ref in _GET_DUMP(base)[0]:
                cls = ref()
                if cls is not None and of_notebook(cls):
                    found.append((typenames.module_of(base), typenames.qualname_of(base), ref))
        _registered = (token, found)
    return [(module, name, ref()) for module, name, ref in _registered[1] if ref() is not None]


_ABSTRACT = [
    *(v for v in vars(collections.abc).values() if isinstance(v, abc.ABCMeta)),
    *(v for v in vars(numbers).values() if isinstance(v, abc.ABCMeta)),
    os.PathLike,
]


def set_registered(state: list[tuple[str, str, Any]]) -> None:
    for module, name, cls in state:
        getattr(sys.modules[module], name).register(cls)


#: The exception shown last, also held by `sys`, and its section: with possibly many references, so written once.
_last: tuple[Any, dict[str, Any]] = (None, {})


def last() -> dict[str, Any]:
    """The exception that was shown last."""
    global _last  # noqa: PLW0603 - a process has one
    error = getattr(sys, "last_value", None)
    if error is not _last[0]:
        _last = (error, {} if error is None else _exception(error))
    return _last[1]


def _exception(error: BaseException) -> dict[str, Any]:
    out = _Short()
    try:
        _Pickler(out, 5).dump(error)
    except Exception as e:
        return {"why": reason(e)}
    return {"value": out.getvalue(), "traceback": error.__traceback__ is not None}


class _Short(io.BytesIO):
    """Refuses long content before all of it has arrived."""

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > SHORT:
            raise pickle.PicklingError("it is too large")
        return super().write(data)


def set_last(state: dict[str, Any]) -> str | None:
    """Sets it again; says what was lost."""
    if not state:
        return None
    if "why" in state:
        return f"the exception couldn't be saved: {state['why']}"
    error = load(state["value"])
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, None
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    return "an exception's traceback isn't saved" if state["traceback"] else None
