"""Attributes of an instance as far as they compare without calling anything of the user's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gresshopper import typenames

Shape = list[tuple[str, str]]

#: Bits of an integer that is written out.
_WORD = 64


def of(obj: Any) -> Shape:
    """The shape of an instance, or of a class: its attributes, with plain values, lengths, or types."""
    if issubclass(type(obj), type):
        # Python notes there, too: names of slots, documentation, what an abstract class knows.
        own = (item for item in vars(obj).items() if item[0][:2] != "__" and item[0] != "_abc_impl")
        return sorted((name, _print(value)) for name, value in own)
    attrs = object.__getattribute__(obj, "__dict__") if type(obj).__dictoffset__ else {}
    return sorted((str(name), _print(value)) for name, value in attrs.items())


def changed(before: Iterable[tuple[Any, Shape]]) -> list[str]:
    """Changes since these shapes were taken, in sentences: of instances that only their own pickling touched since."""
    found: dict[str, set[str]] = {}
    for obj, shape in before:
        if which := {name for name, _ in set(shape) ^ set(of(obj))}:
            kind = obj if issubclass(type(obj), type) else type(obj)
            found.setdefault(typenames.qualname_of(kind), set()).update(which)
    return [f"{kind}'s own pickling changes it at each capture: {', '.join(sorted(w))}" for kind, w in found.items()]


def _print(value: Any) -> str:
    if type(value) in (str, bytes) or (type(value) is int and value.bit_length() > _WORD):
        return f"{type(value).__name__} {hash(value)}"  # of any size, without a copy
    if type(value) in (int, float, bool, type(None)):
        return repr(value)
    if type(value) in (list, tuple, set, frozenset, dict):
        return f"{type(value).__name__} of {len(value)}"
    return typenames.qualname_of(type(value))
