"""Instances of classes that answer for their attributes themselves: by `__getattr__` or `__getattribute__`, or that refuse
to have their slots set.

Pickle asks an instance for methods, at writing and at reading. At reading the instance has no attribute yet: a
`__getattr__` that looks into an attribute never ends. Here the instances are written and read without a question to
them.
"""

from __future__ import annotations

import copyreg
import struct
import types
from typing import Any

from . import containers, recipes
from .session import MAIN


def answers(t: Any) -> bool:
    """Whether pickle would run the instances' own code as it asks for a missing `__setstate__`, or sets their slots."""
    if hasattr(t, "__setstate__"):
        return False
    sets = isinstance(t.__setattr__, types.FunctionType) and bool(_slotnames(t))
    asked = isinstance(t.__getattribute__, types.FunctionType)
    return sets or asked or any("__getattr__" in vars(base) for base in t.__mro__)


def is_plain(t: Any) -> bool:
    """Whether pickle takes the instances' attributes, slots and items as they are, and makes them with nothing else."""
    return bool(
        t.__reduce_ex__ is object.__reduce_ex__
        and t.__reduce__ is object.__reduce__
        and getattr(t, "__getstate__", None) is _NO_STATE
        and not hasattr(t, "__getnewargs_ex__")
        and not isinstance(getattr(t, "__getnewargs__", None), types.FunctionType)
        and t not in copyreg.dispatch_table
        and not issubclass(t, (type, BaseException, types.ModuleType))
        and (issubclass(t, (list, dict)) or hasattr(t, "__getnewargs__") or not _holds_more(t))
    )


def _holds_more(t: Any) -> bool:
    """Whether C code keeps something in the instances: pickle refuses these by the same sizes."""
    managed = t.__flags__ & _MANAGED_DICT
    words = len(_slotnames(t)) + bool(t.__dictoffset__ and not managed) + (t.__weakrefoffset__ > 0)
    return bool(t.__itemsize__ or t.__basicsize__ > object.__basicsize__ + words * _WORD)


#: Python's flag of types whose instances' `__dict__` lies before them, and the bytes of a pointer.
_MANAGED_DICT, _WORD = 1 << 4, struct.calcsize("P")
_NO_STATE = getattr(object, "__getstate__", None)


def written(obj: Any) -> Any:
    """As `object.__reduce_ex__`, without a question to the instance."""
    t: Any = type(obj)
    attrs = object.__getattribute__(obj, "__dict__") if t.__dictoffset__ else None
    slots = containers.slots_of(obj)
    given = t.__getnewargs__(obj) if hasattr(t, "__getnewargs__") else ()
    items = list.__iter__(obj) if issubclass(t, list) else None
    pairs = iter(dict.items(obj)) if issubclass(t, dict) else None
    state = (attrs, slots) if attrs or slots else None
    # A library's own `__new__` may do what the others need.
    make = recipes.bare if getattr(t.__new__, "__module__", MAIN) in (MAIN, None) else _NEWOBJ
    return make, (t, *given), state, items, pairs, recipes.set_directly


_slotnames: Any = copyreg._slotnames  # type: ignore[attr-defined]
_NEWOBJ: Any = copyreg.__newobj__  # type: ignore[attr-defined]
