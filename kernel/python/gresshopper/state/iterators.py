"""Generators and iterators at their place, as calls of `recipes`.

pickle often turns an iterator into another type over the remaining items. Here each iterator either comes back
unchanged, or the change is noted. A generator can be written before the start, after the end, and within a generator
expression of a single loop. Elsewhere the position is in the interpreter's memory. Nothing is taken from an iterator.
No frame is asked for its locals: the answer would keep the locals alive.
"""

from __future__ import annotations

import dis
import functools
import gc
import sys
import types
from collections.abc import Callable
from typing import Any

from . import recipes

#: Since Python 3.11 a generator holds its function, and the arguments in order.
_HOLDS_FUNCTION = sys.version_info >= (3, 11)
_AMONG_LOOPS = ("GET_A", "SEND", "SETUP_", "BEFORE_", "YIELD_FROM", "END_ASYNC", "IMPORT", "LOAD_FAST_AND_CLEAR")

BEGUN = "a generator that had begun goes on at its place, though it says that it hasn't started"
OTHER = "an iterator comes back as one over a list of what it has still to give"


def generator(
    made: types.GeneratorType[Any, Any, Any], importable: Callable[[Any], bool], note: Callable[[str], None]
) -> Any:
    """How a generator is written, if it can be."""
    code = made.gi_code
    if made.gi_running:
        return None
    begun = _begun(made)
    if begun is None:
        return recipes.ended_generator, (code, made.__name__, made.__qualname__)
    if begun and not _one_loop(code):
        return None
    found = _held(made, code)
    if found is None:
        return None
    function, values = found
    if not importable(function):  # one of its own, so that what the variable of its name is doesn't matter
        function = _bare(code, function.__globals__, function.__closure__ or (), made)
    if begun:
        note(BEGUN)
    split = code.co_argcount
    keywords = dict(zip(code.co_varnames[split : split + code.co_kwonlyargcount], values[split:]))
    rest = values[split + code.co_kwonlyargcount :]
    positional = list(values[:split])
    if code.co_flags & 0x04:
        positional += rest[0]
        rest = rest[1:]
    if code.co_flags & 0x08:
        keywords.update(rest[0])
    return recipes.generator, (function, made.__name__, made.__qualname__, tuple(positional), keywords)


def _begun(made: Any) -> bool | None:
    """Whether the generator has started; nothing if it ended."""
    if getattr(made, "gi_suspended", False):
        return True
    frame = made.gi_frame
    if frame is None:
        return None
    return not _HOLDS_FUNCTION and bool(frame.f_lasti >= 0)


@functools.lru_cache(maxsize=256)
def _one_loop(code: types.CodeType) -> bool:
    """Whether this is a generator expression of one loop, to be continued by another generator over the same
    iterator."""
    if code.co_name != "<genexpr>" or code.co_argcount != 1 or code.co_cellvars:
        return False
    steps = [step.opname for step in dis.get_instructions(code)]
    once = steps.count("FOR_ITER") == 1 and steps.count("YIELD_VALUE") == 1
    return once and not any(step.startswith(_AMONG_LOOPS) for step in steps)


def _held(made: Any, code: types.CodeType) -> tuple[types.FunctionType, list[Any]] | None:
    """Its function and its arguments."""
    wanted = code.co_argcount + code.co_kwonlyargcount
    wanted += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
    if not _HOLDS_FUNCTION:
        return _held_by_frame(made, code, wanted)
    held = gc.get_referents(made)
    at = next((i for i, one in enumerate(held) if type(one) is types.FunctionType and one.__code__ is code), None)
    if at is None:
        return None
    function = held[at]
    at += 1
    if at < len(held) and held[at] is code:
        at += 1
    values = held[at : at + wanted]
    if len(values) != wanted:
        return None
    for i, name in enumerate(code.co_varnames[:wanted]):
        if name in code.co_cellvars:
            if type(values[i]) is not types.CellType:
                return None
            values[i] = values[i].cell_contents
    return function, values


def _held_by_frame(made: Any, code: types.CodeType, wanted: int) -> tuple[types.FunctionType, list[Any]] | None:
    if code.co_cellvars:
        return None
    held = gc.get_referents(made.gi_frame)
    at = next((i for i, one in enumerate(held) if one is made.gi_frame.f_globals), None)
    if at is None:
        return None
    values = held[at + 1 : at + 1 + wanted]
    cells = [one for one in held[at + 1 + wanted :] if type(one) is types.CellType]
    if len(values) != wanted or len(cells) != len(code.co_freevars):
        return None
    return _bare(code, held[at], tuple(cells), made), values


def _bare(code: types.CodeType, scope: dict[str, Any], cells: tuple[Any, ...], made: Any) -> types.FunctionType:
    function = types.FunctionType(code, scope, made.__name__, None, cells)
    function.__qualname__ = made.__qualname__
    return function


def iterator(made: Any, note: Callable[[str], None]) -> Any:
    """How an iterator of a built-in type is written, which pickle would write as one of another type."""
    kind = type(made).__name__
    reduced = made.__reduce__()
    if kind == "_grouper":
        return (recipes.spent, (kind,)) if reduced[0] is iter else reduced
    if reduced[0] is not iter or len(reduced[1]) != 1:
        return reduced
    left = reduced[1][0]
    held = next((one for one in gc.get_referents(made) if isinstance(one, dict)), None)
    if kind in recipes.DICT_ITERATORS and held is not None:
        return recipes.dict_iterator, (held, kind, dict.__len__(held) - len(left), dict.__len__(held))
    if type(left) in _PLAIN and not left:
        return recipes.spent, (kind,)
    if type(left) in _PLAIN and type(iter(left)) is not type(made):
        note(OTHER)
    return reduced


#: Types whose own iterators run nothing of the user's.
_PLAIN = (list, tuple, str, bytes, bytearray)
#: The types that `iterator` is for.
TYPES: tuple[type, ...] = tuple({type(make()) for make in recipes.SPENT.values()})
