"""Instances of subclasses of Python's containers, written and made again without a call of their methods.

Pickle reads the items by the class's own `items` or `__iter__`, and puts the items in by the class's own `__setitem__`,
`extend` or `__init__`, before any attribute is set. A class with counted, converted or limited items would count,
convert or limit again at each restore. The containers' own methods in C read and put the items here.

An own `__reduce__` or `__reduce_ex__` is respected, and so are `__getstate__`, `__setstate__` and `__getnewargs__`.
"""

from __future__ import annotations

import collections
import contextlib
import copyreg
import struct
import sys
import types
import weakref
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple


class Kind(NamedTuple):
    """A container of Python's."""

    base: Any
    #: Methods by which pickle reads and makes the container's instances.
    asked: tuple[str, ...]
    content: Callable[[Any], Any]
    #: Makes this the content. `None`: the content is given to `__new__`.
    put: Callable[[Any, Any], None] | None


def _pairs(made: Any) -> Any:
    if type(made).__iter__ is dict.__iter__:
        return dict.copy(made)  # asks no key for its hash
    return dict(dict.items(made))


def _put_pairs(made: Any, content: dict[Any, Any]) -> None:
    dict.clear(made)
    dict.update(made, content)


def _put_in_order(made: Any, content: dict[Any, Any]) -> None:
    collections.OrderedDict.clear(made)
    for key, value in content.items():
        collections.OrderedDict.__setitem__(made, key, value)


_factory: Any = vars(collections.defaultdict)["default_factory"]
_limit: Any = vars(collections.deque)["maxlen"]


def _put_with_factory(made: Any, content: tuple[Any, dict[Any, Any]]) -> None:
    _factory.__set__(made, content[0])
    _put_pairs(made, content[1])


def _put_items(made: Any, content: list[Any]) -> None:
    list.__setitem__(made, slice(None), content)


def _put_limited(made: Any, content: tuple[list[Any], int | None]) -> None:
    collections.deque.__init__(made, *content)


_KINDS = (
    Kind(
        collections.OrderedDict,
        ("__init__", "items", "__setitem__"),
        lambda made: dict(collections.OrderedDict.items(made)),
        _put_in_order,
    ),
    Kind(
        collections.defaultdict,
        ("__init__", "items", "__setitem__", "default_factory"),
        lambda made: (_factory.__get__(made), _pairs(made)),
        _put_with_factory,
    ),
    Kind(
        collections.Counter,
        ("__init__", "__iter__", "keys", "__getitem__", "update", "__setitem__"),
        _pairs,
        _put_pairs,
    ),
    Kind(dict, ("items", "__setitem__"), _pairs, _put_pairs),
    Kind(
        list,
        ("__iter__", "append", "extend"),
        lambda made: list.__getitem__(made, slice(None)),
        _put_items,
    ),
    Kind(
        collections.deque,
        ("__init__", "__iter__", "append", "extend", "maxlen"),
        lambda made: (list(collections.deque.__iter__(made)), _limit.__get__(made)),
        _put_limited,
    ),
    Kind(
        set,
        ("__init__", "__iter__"),
        lambda made: list(set.__iter__(made)),
        set.__init__,
    ),
    Kind(
        bytearray,
        ("__init__",),
        lambda made: bytearray.__getitem__(made, slice(None)),
        bytearray.__init__,
    ),
    Kind(frozenset, ("__init__", "__iter__"), lambda made: list(frozenset.__iter__(made)), None),
    Kind(tuple, (), lambda made: tuple.__getitem__(made, slice(None)), None),
)
_BASES = tuple(kind.base for kind in _KINDS)


_kinds: weakref.WeakKeyDictionary[type, Kind | None] = weakref.WeakKeyDictionary()


def kind(t: Any) -> Kind | None:
    """The container whose subclass `t` is, if pickle takes the instances' items in its usual way."""
    if not issubclass(t, _BASES):
        return None
    if t not in _kinds:
        found = next(kind for kind in _KINDS if issubclass(t, kind.base))
        _kinds[t] = found if t is not found.base and _is_plain(t, found.base) else None
    return _kinds[t]


def _is_plain(t: Any, base: Any) -> bool:
    words = len(_slotnames(t)) + bool(t.__dictoffset__) + bool(t.__weakrefoffset__)
    return bool(
        t.__reduce_ex__ is base.__reduce_ex__
        and t.__reduce__ is base.__reduce__
        and t not in copyreg.dispatch_table
        and t.__basicsize__ <= base.__basicsize__ + _WORD * words  # of C otherwise
        and not (hasattr(base, "__getnewargs__") and t.__getnewargs__ is not base.__getnewargs__)  # a named tuple
    )


def differs(t: Any, kind: Kind, own: bool) -> bool:
    """Whether pickle would call methods of the class's, or lose what its instances hold beside their items. `own`: the
    class is the user's."""
    if own and (kind.base.__reduce__ is not object.__reduce__ or isinstance(t.__new__, types.FunctionType)):
        return True
    if not own and kind.put is None:
        return False
    return any(getattr(t, name) is not getattr(kind.base, name) for name in kind.asked)


def given(made: Any, kind: Kind) -> tuple[Any, ...]:
    """Arguments of the container's `__new__`."""
    return () if kind.put is not None else (kind.content(made),)


def by_its_new(made: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """How an instance is made whose class says what its `__new__` needs."""
    t = type(made)
    if hasattr(t, "__getnewargs_ex__"):
        args, keywords = made.__getnewargs_ex__()
        return _NEWOBJ_EX, (t, args, keywords)
    if isinstance(getattr(t, "__getnewargs__", None), types.FunctionType):
        return _NEWOBJ, (t, *made.__getnewargs__())
    return None


class State(NamedTuple):
    """An instance, but for its class."""

    content: Any
    attrs: Any
    slots: dict[str, Any]
    #: Whether others hold the attributes' dictionary, too.
    shared: bool
    #: Whether `attrs` is what the class's own `__getstate__` says, or goes to its own `__setstate__`.
    own: bool


def read(made: Any, kind: Kind, shared: bool) -> State:
    """Read without a question to the instance, but for a `__getstate__` of its class's."""
    t: Any = type(made)
    content = kind.content(made) if kind.put is not None else None
    if getattr(t, "__getstate__", None) is not _NO_STATE:
        return State(content, made.__getstate__(), {}, False, True)
    attrs = object.__getattribute__(made, "__dict__") if t.__dictoffset__ else None
    slots = slots_of(made)
    if hasattr(t, "__setstate__"):
        return State(content, (attrs or None, slots) if slots else attrs or None, {}, False, True)
    return State(content, attrs, slots, shared, False)


def slots_of(obj: Any) -> dict[str, Any]:
    """The values of an instance's slots, without a question to it."""
    slots = {}
    for name in _slotnames(type(obj)):
        with contextlib.suppress(AttributeError):  # it has no value
            slots[name] = object.__getattribute__(obj, name)
    return slots


def put(made: Any, state: State) -> None:
    """Set the state's attributes on the instance, then its items."""
    found = kind(type(made))
    if not state.own:
        _set_attributes(made, state.attrs, state.slots, state.shared)
    if found is not None and found.put is not None:
        found.put(made, state.content)
    if not state.own or state.attrs is None:
        return
    if hasattr(type(made), "__setstate__"):
        made.__setstate__(state.attrs)
    else:
        attrs, slots = state.attrs if isinstance(state.attrs, tuple) else (state.attrs, None)
        _set_attributes(made, attrs, slots or {}, False)


def _set_attributes(made: Any, attrs: dict[str, Any] | None, slots: Mapping[str, Any], shared: bool) -> None:
    if shared:
        object.__setattr__(made, "__dict__", attrs)
    elif attrs:
        object.__getattribute__(made, "__dict__").update(
            {sys.intern(name) if type(name) is str else name: value for name, value in attrs.items()}
        )
    for name, value in slots.items():
        object.__setattr__(made, name, value)


_slotnames: Any = copyreg._slotnames  # type: ignore[attr-defined]
_NEWOBJ: Any = copyreg.__newobj__  # type: ignore[attr-defined]
_NEWOBJ_EX: Any = copyreg.__newobj_ex__  # type: ignore[attr-defined]
_NO_STATE = getattr(object, "__getstate__", None)
_WORD = struct.calcsize("P")
