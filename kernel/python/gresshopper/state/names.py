"""Names within reach of a cell, read from its bytecode.

The answer only narrows the work of a capture: the audit finds missed names. `capture` closes the set over groups and
over their functions.
"""

from __future__ import annotations

import ast
import dis
import re
import types
from collections.abc import Iterator
from typing import NamedTuple

#: Names through which a cell reaches variables absent from the cell's bytecode.
DYNAMIC = frozenset({"exec", "eval", "globals", "locals", "vars", "__main__"})
#: Names that a `%magic` or `!command` compiles to; their text may name variables.
SHELL = frozenset({"get_ipython", "run_line_magic", "run_cell_magic", "system", "getoutput"})
#: Magics that run a file or swap the namespace.
DYNAMIC_MAGICS = frozenset({"run", "load", "loadpy", "reset", "reset_selective", "store", "macro", "rerun", "recall"})

#: Stands among the names for code that makes a set, whose order is another in another process.
SETS = "{}"
_SET_OPS = frozenset(dis.opmap[op] for op in ("BUILD_SET", "SET_ADD", "SET_UPDATE") if op in dis.opmap)

_WORD = re.compile(r"[^\W\d]\w*")


def named_in(value: object) -> list[str]:
    """Words of a text that may name variables."""
    return _WORD.findall(value) if type(value) is str and len(value) < 100_000 else []


class Names(NamedTuple):
    """Names that code may touch; `dynamic` means any."""

    names: set[str]
    dynamic: bool
    #: Dotted names to which the code assigns, from a name on: `np.x`. A name that begins with a dot belongs to an object without a name.
    stored: frozenset[str] = frozenset()
    #: Words of its strings: a library may take them for variables (`df.query("x > @least")`, SQL on a data frame).
    words: frozenset[str] = frozenset()
    #: Names in its functions and classes, which may run at another time than the code itself.
    inner: frozenset[str] = frozenset()


#: Code that runs where it stands.
_INLINE = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>"})


def code_objects(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code object and all nested in it."""
    stack = [code]
    while stack:
        top = stack.pop()
        yield top
        stack.extend(const for const in top.co_consts if isinstance(const, types.CodeType))


def names_of_code(code: types.CodeType) -> Names:
    """Names that a code object may load, store or delete (attribute names among them, without harm)."""
    names: set[str] = set()
    words: set[str] = set()
    inner: set[str] = set()
    for part in code_objects(code):
        names.update(part.co_names)
        if part is not code and part.co_name not in _INLINE:
            inner.update(part.co_names)
        if not _SET_OPS.isdisjoint(part.co_code[::2]):
            names.add(SETS)
        for const in part.co_consts:
            words.update(named_in(const))
            if isinstance(const, frozenset):
                names.add(SETS)
    dynamic = not DYNAMIC.isdisjoint(names) and _loads_dynamic(code)
    if not SHELL.isdisjoint(names):
        dynamic = dynamic or not DYNAMIC_MAGICS.isdisjoint(words) or not DYNAMIC.isdisjoint(words)
        names |= words
    return Names(names, dynamic, _stored(code), frozenset(words), frozenset(inner))


_STORE = dis.opmap["STORE_ATTR"]


def _stored(code: types.CodeType) -> frozenset[str]:
    found: set[str] = set()
    for part in code_objects(code):
        path: list[str] = []
        for step in dis.get_instructions(part) if _STORE in part.co_code[::2] else ():
            if step.opname in ("LOAD_NAME", "LOAD_GLOBAL"):
                path = [step.argval]
            elif step.opname == "LOAD_ATTR" and path:
                path.append(step.argval)
            elif step.opname == "STORE_ATTR":
                found.add(".".join([*(path or [""]), step.argval]))
                path = []
            elif step.opname not in ("EXTENDED_ARG", "CACHE"):
                path = []
        if "setattr" in part.co_names:
            found.update(f".{const}" for const in part.co_consts if isinstance(const, str) and const.isidentifier())
    return frozenset(found)


def _loads_dynamic(code: types.CodeType) -> bool:
    """Whether a dynamic name is loaded as a name; as an attribute (`frame.eval`) it means something else."""
    return any(
        step.argval in DYNAMIC and step.opname in ("LOAD_NAME", "LOAD_GLOBAL")
        for part in code_objects(code)
        for step in dis.get_instructions(part)
    )


def names_of_source(source: str) -> Names:
    """Names within reach of a cell, given its source after IPython's own transformation."""
    try:
        code = compile(source, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, RecursionError):
        return Names(set(_WORD.findall(source)), True)
    return names_of_code(code)
