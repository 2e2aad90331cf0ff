"""Single objects of a library, each held by a variable of the library: `mpmath.mp`.

The library itself uses the object: a variable of the notebook that holds the object is written as the object's place.
Plain attributes are set again; of the others a fingerprint is compared, and a difference is told. An object of a module
of the user's own gets its whole content again.
"""

from __future__ import annotations

import contextlib
import copyreg
import hashlib
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

from gresshopper import typenames

from . import marks, settings
from .lost import Lost
from .session import own_module

#: An object's place: its module, and the path in it.
Place = tuple[str, str]
#: Plain attributes, and fingerprints of the others.
State = tuple[dict[str, Any], dict[str, str]]

#: Containers deeper than this, and more values, are not looked into.
_DEPTH, _MOST = 4, 2000
_CONTAINERS = frozenset({list, dict, set, tuple, frozenset})
_missing = object()


def find(t: type) -> Iterator[tuple[Any, Place]]:
    """The instances of a class with content that the class's module holds, or the library's first."""
    home = typenames.module_of(t)
    own = own_module(sys.modules.get(home))
    if not home or (own and not is_ordinary(t)):
        return
    for _, _, value in settings.home_variables(home):
        if type(value) is t and (any(Content.of(value)) if own else getattr(value, "__dict__", None)):
            where = settings.library_object(value)
            if where is not None:
                yield value, where


#: Bases of classes whose instances `Content` tells whole.
_BASES = (object, list, dict, types.SimpleNamespace)


def is_ordinary(t: Any) -> bool:
    """Whether a class leaves the content of its instances to pickle, without a word of its own."""
    base: Any = next(b for b in t.__mro__ if not b.__flags__ & _HEAP)
    fields = len(_slots(t)) + bool(t.__dictoffset__) + bool(t.__weakrefoffset__)
    return (
        base in _BASES
        and t.__basicsize__ <= base.__basicsize__ + _POINTER * fields  # of C otherwise
        and t.__reduce_ex__ is object.__reduce_ex__
        and t.__reduce__ is base.__reduce__
        and getattr(t, "__getstate__", None) is getattr(object, "__getstate__", None)
        and not any(hasattr(t, hook) for hook in ("__getnewargs__", "__getnewargs_ex__"))
        and t not in copyreg.dispatch_table
        and not issubclass(t, (type, BaseException, types.ModuleType))
    )


#: The flag of types that are made at run time, and bytes of a pointer.
_HEAP, _POINTER = 1 << 9, 8


def _slots(t: type) -> list[str]:
    return copyreg._slotnames(t)  # type: ignore[attr-defined, no-any-return]


class Content(NamedTuple):
    """The content of an instance of an ordinary class."""

    attrs: dict[str, Any] | None
    slots: dict[str, Any]
    items: list[Any] | None
    pairs: dict[Any, Any] | None

    @staticmethod
    def of(made: Any) -> Content:
        """Read without a question to the instance."""
        attrs = object.__getattribute__(made, "__dict__") if type(made).__dictoffset__ else None
        slots = {}
        for name in _slots(type(made)):
            with contextlib.suppress(AttributeError):
                slots[name] = object.__getattribute__(made, name)
        kind = type(made)
        items = list(list.__iter__(made)) if issubclass(kind, list) else None
        return Content(attrs, slots, items, dict(dict.items(made)) if issubclass(kind, dict) else None)

    def put(self, made: Any) -> None:
        """Make this the instance's content. What is lost stays the instance's own."""
        held = {} if self.attrs is None else object.__getattribute__(made, "__dict__")
        attrs = {k: held.get(k, v) if type(v) is Lost else v for k, v in (self.attrs or {}).items()}
        held.clear()
        held.update(attrs)
        for name in _slots(type(made)):
            if name in self.slots:
                object.__setattr__(made, name, self.slots[name])
            else:
                with contextlib.suppress(AttributeError):
                    object.__delattr__(made, name)
        if self.items is not None:
            list.__setitem__(made, slice(None), self.items)
        if self.pairs is not None:
            dict.clear(made)
            dict.update(made, self.pairs)


def state_of(single: Any) -> State:
    """Attributes of a single object that cells may have changed."""
    plain, prints = {}, {}
    for name, value in list(vars(single).items()):
        if not isinstance(name, str) or name.startswith("__") or "cache" in name:
            continue
        if is_plain(value):
            plain[name] = value
        elif not callable(value) and not isinstance(value, types.ModuleType):
            prints[name] = _print(value)
    return plain, prints


def set_state(single: Any, state: State) -> list[str]:
    """Sets the plain attributes where they differ. Returns the names of other attributes that differ."""
    plain, prints = state
    held = vars(single)
    for name, value in plain.items():
        if held.get(name, _missing) != value:
            _put(held, name, value)
    return sorted(name for name, print in prints.items() if name not in held or _print(held[name]) != print)


def _put(held: dict[str, Any], name: str, value: Any) -> None:
    """A container keeps its identity: the library may hold it elsewhere, too."""
    here: Any = held.get(name)
    if type(here) is not type(value):
        held[name] = value
    elif type(value) is list:
        here[:] = value
    elif type(value) in (dict, set):
        here.clear()
        here.update(value)
    else:
        held[name] = value


def is_plain(value: Any, depth: int = _DEPTH) -> bool:
    """Whether a value is an atom, or a small container of such ones."""
    kind = type(value)
    if kind in settings.ATOMS:
        return True
    if kind not in _CONTAINERS or depth == 0 or len(value) > _MOST:
        return False
    if kind is dict and not all(is_plain(key, depth - 1) for key in value):
        return False
    return all(is_plain(item, depth - 1) for item in (value.values() if kind is dict else value))


def _print(value: Any) -> str:
    """Tells a value from another as far as it is plain, an array, names of functions and classes, and attributes."""
    left = [_MOST]
    return hashlib.blake2b(_described(value, _DEPTH, left).encode("utf-8", "replace"), digest_size=8).hexdigest()


def _described(value: Any, depth: int, left: list[int]) -> str:
    kind = type(value)
    left[0] -= 1
    if kind in settings.ATOMS:
        return repr(value)
    if depth == 0 or left[0] < 0:
        return ""
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return f"{typenames.home_of(value) or None}.{typenames.text_of(value, '__qualname__')}"
    if kind is dict:
        pairs = list(value.items())
        return f"{{{','.join(_described(part, depth - 1, left) for pair in pairs for part in pair)}}}"
    if kind in (set, frozenset):
        return f"{{{','.join(sorted(_described(item, depth - 1, left) for item in value))}}}"
    if kind in _CONTAINERS:
        return f"[{','.join(_described(item, depth - 1, left) for item in value)}]"
    name = f"{typenames.module_of(kind)}.{typenames.qualname_of(kind)}"
    if hasattr(kind, "__array__"):
        return f"{name}{marks.mark(value)}"
    own = kind.__dictoffset__  # read without a question to the instance
    inside = object.__getattribute__(value, "__dict__") if own else getattr(value, "__dict__", None)
    below = _described(inside, depth - 1, left) if type(inside) is dict else ""
    return f"{name}{below}"
