"""The placeholder for a lost value: names the value, and raises `LostError` on every use.

A usable placeholder would turn a told loss into a wrong number. So each protocol for the use of a value raises:
attributes, calls, items, iteration, truth, comparison, arithmetic, conversion, formatting, copying, pickling, and
numpy's and torch's own protocols. ``repr`` and ``str`` alone answer: they name the lost value.

While a stream of a saved state is loaded, a placeholder may be hashed, compared and iterated over. A dictionary, a
set or a ``zip`` around it can't be made otherwise. Only the engine's own picklers write a placeholder (`Rules`).
"""

from __future__ import annotations

import threading
from typing import Any, NoReturn

_loading = threading.local()


class LostError(RuntimeError):
    """A variable was used that couldn't be restored."""


def stands_still(on: bool) -> None:
    """Sets whether this thread loads a stream, to permit containers around placeholders."""
    _loading.on = on


class Lost:
    """Takes the place of a value that can't be restored; names the value and the reason."""

    __slots__ = ("__weakref__", "_what", "_why")

    def __init__(self, what: str, why: str) -> None:
        object.__setattr__(self, "_what", what)
        object.__setattr__(self, "_why", why)

    def __repr__(self) -> str:
        return f"<lost: {self._what}; {self._why}>"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith(_ASKED):
            raise AttributeError(name)
        _refuse(self)

    def flush(self) -> None:
        """Nothing: the kernel asks it of whatever a cell has put in the place of `sys.stdout`."""

    def __dir__(self) -> list[str]:
        return []  # a completer asks for it

    def __hash__(self) -> int:
        return object.__hash__(self) if _is_loading() else _refuse(self)

    def __eq__(self, other: object) -> bool:
        return self is other if _is_loading() else _refuse(self)

    def __iter__(self) -> Any:
        return self if _is_loading() else _refuse(self)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        found = [one for one in _flat([*args, *(kwargs or {}).values()]) if isinstance(one, Lost)]
        if found:
            _refuse(found[0])
        raise LostError("a placeholder for what couldn't be restored was used")


class Pending(Lost):
    """Stands where a variable will be once its group is read. A copy elsewhere stays, and is captured as the value."""

    __slots__ = ("_value",)

    def __init__(self, what: str) -> None:
        super().__init__(what, "it is still being restored")


def is_read(made: Pending, value: Any) -> None:
    """The group of a placeholder was read: its value, or why there is none."""
    object.__setattr__(made, "_value", value)


def value_of(made: Pending) -> tuple[Any, ...]:
    """The value of a placeholder whose group was read, in a tuple; empty before."""
    try:
        return (object.__getattribute__(made, "_value"),)
    except AttributeError:
        return ()


#: Optional attributes requested by displays of a value.
_ASKED = ("_repr_", "_ipython_", "__wrapped__")


def parts(made: Lost) -> tuple[str, str]:
    """The value that a placeholder replaces, and the reason."""
    return made._what, made._why


def _is_loading() -> bool:
    return getattr(_loading, "on", False)


def _refuse(made: Lost, *_: Any, **__: Any) -> NoReturn:
    if isinstance(made, Pending):
        raise LostError(f"{made._what} was used while it was still being restored. Run this cell again in a moment.")
    raise LostError(f"this was {made._what}, which is gone: {made._why}. Run the cell that made it again.")


def _flat(values: list[Any]) -> list[Any]:
    return [one for value in values for one in (value if type(value) in (list, tuple) else [value])]


_ARITHMETIC = [
    "add",
    "sub",
    "mul",
    "matmul",
    "truediv",
    "floordiv",
    "mod",
    "divmod",
    "pow",
    "lshift",
    "rshift",
    "and",
    "xor",
    "or",
]
_REFUSED = [
    *_ARITHMETIC,
    *(f"r{name}" for name in _ARITHMETIC),
    *(f"i{name}" for name in _ARITHMETIC if name != "divmod"),
    *["ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert"],
    *[
        "bool",
        "bytes",
        "complex",
        "float",
        "format",
        "fspath",
        "index",
        "int",
        "round",
        "trunc",
        "floor",
        "ceil",
        "buffer",
    ],
    *["len", "length_hint", "getitem", "setitem", "delitem", "contains", "reversed", "missing", "next", "call"],
    *["enter", "exit", "aenter", "aexit", "aiter", "anext", "await", "setattr", "delattr"],
    *["instancecheck", "subclasscheck", "mro_entries", "copy", "deepcopy", "reduce", "reduce_ex", "getstate"],
    *["array", "array_ufunc", "array_function", "array_wrap", "array_namespace"],
]
for _name in _REFUSED:
    setattr(Lost, f"__{_name}__", _refuse)
# numpy asks the instance for these, and takes any value found.
for _name in ("array_struct", "array_interface"):
    setattr(Lost, f"__{_name}__", property(_refuse))
