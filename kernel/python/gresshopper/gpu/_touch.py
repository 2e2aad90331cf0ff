"""Whether a cell may touch something, found out before it runs.

Frameworks without a hook at each operation (cupy, jax, compiled torch functions) could let a cell wait for ever on an
absent device. Therefore the cell's names and the objects behind them are examined before it runs. Doubt counts as
"may".
"""

from __future__ import annotations

import ast
import gc
import types
from collections.abc import Iterable, Mapping
from typing import Any, Callable

from gresshopper import typenames

#: How many objects are looked at before the answer is "may".
LIMIT = 20_000
_OPAQUE = {"eval", "exec", "globals", "locals", "vars", "get_ipython", "__import__"}
_PLAIN = (str, bytes, int, float, complex, bool, type(None), types.BuiltinFunctionType)


def may_touch(code: str, namespace: Mapping[str, Any], is_device: Callable[[Any], bool], modules: set[str]) -> bool:
    """Whether `code` may reach one of `modules`, or an object accepted by `is_device`."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        # Magics, or a mistake: a line beginning with % or ! may do anything.
        return any(line.lstrip().startswith(("%", "!")) for line in code.splitlines())
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if names & _OPAQUE or _imports(tree) & modules:
        return True
    return _leads_to((namespace[name] for name in names if name in namespace), is_device, modules)


def _imports(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found


def _leads_to(roots: Iterable[Any], is_device: Callable[[Any], bool], modules: set[str]) -> bool:
    todo = list(roots)
    seen: set[int] = set()
    while todo:
        found = todo.pop()
        if id(found) in seen or issubclass(type(found), _PLAIN):
            continue
        seen.add(id(found))
        if len(seen) > LIMIT or is_device(found):
            return True
        if issubclass(type(found), types.ModuleType):
            if typenames.name_of_module(found).partition(".")[0] in modules:
                return True
            continue
        if issubclass(type(found), types.FunctionType):
            todo += _of_function(found)
        elif issubclass(type(found), type):
            todo += [member for member in typenames.held_by(found).values() if isinstance(member, types.FunctionType)]
        else:
            todo += gc.get_referents(found)
            todo.append(type(found))
    return False


def _of_function(function: types.FunctionType) -> Iterable[Any]:
    """Objects that a function can reach by name, by closure and by default."""
    code = function.__code__
    yield from (function.__globals__[name] for name in code.co_names if name in function.__globals__)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not bound yet
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
