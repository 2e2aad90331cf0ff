"""Names of classes and of their modules, as Python itself keeps them.

A metaclass may answer for `__module__`, `__qualname__` and `__name__` with code of its own, and a class may hold any
object as its `__module__`, as the functions that Cython compiled do. The names given here are always text, and none of
the user's code runs for those of a class.
"""

from __future__ import annotations

import types
from typing import Any

_module: Any = type.__dict__["__module__"].__get__
_qualname: Any = type.__dict__["__qualname__"].__get__
_name: Any = type.__dict__["__name__"].__get__
_of_class: Any = type.__dict__["__dict__"].__get__
_of_module: Any = vars(types.ModuleType)["__dict__"].__get__
#: The text before and after a class's name in what `type.__repr__` returns.
_BEFORE, _BEHIND = "<class '", "'>"


def module_of(kind: type) -> str:
    """The name of a class's module; empty if the class has none."""
    try:
        found = _module(kind)
    except AttributeError:
        found = None
    if type(found) is str:
        return found
    # Python then writes the name that the class was made with: of a class of C the full one.
    said = type.__repr__(kind)
    return said[len(_BEFORE) : -len(_BEHIND)].rpartition(".")[0]


def qualname_of(kind: type) -> str:
    """The qualified name of a class."""
    return str(_qualname(kind))


def name_of(kind: type) -> str:
    """The name of a class."""
    return str(_name(kind))


def full_name(kind: type) -> str:
    """A class's qualified name behind its module's. A builtin class, and one without a module, has no module's."""
    module = module_of(kind)
    return qualname_of(kind) if module in ("", "builtins") else f"{module}.{qualname_of(kind)}"


def name_of_module(module: types.ModuleType) -> str:
    """A module's own name, without a question to the module; empty if it has none."""
    found = held_by(module).get("__name__")
    return found if type(found) is str else ""


def held_by(base: Any) -> Any:
    """The members of a module or a class, without a question to either: one that is to be loaded lazily stays unloaded.
    Empty for any other object."""
    kind = type(base)
    if issubclass(kind, types.ModuleType):
        return _of_module(base)
    return _of_class(base) if issubclass(kind, type) else {}


def called(value: Any) -> str:
    """The qualified name of a function or another object, or else of its class."""
    return text_of(value, "__qualname__") or qualname_of(type(value))


def text_of(value: Any, attr: str) -> str:
    """An attribute of a function or another object, which may be asked; empty if it is no text."""
    if issubclass(type(value), type) and attr in _OF_CLASSES:
        return _OF_CLASSES[attr](value)
    try:
        found = getattr(value, attr, "")
    except Exception:  # code of the user's
        return ""
    return found if type(found) is str else ""


_OF_CLASSES = {"__module__": module_of, "__qualname__": qualname_of, "__name__": name_of}


def home_of(value: Any) -> str:
    """The name of the module that a function or another object says it is from."""
    return text_of(value, "__module__")


def is_by_notebook(value: Any) -> bool:
    """Whether a function or another object says that it, or its class, is from the notebook."""
    return "__main__" in (home_of(value), module_of(type(value)))
