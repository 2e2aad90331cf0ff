"""Containers that a variable, or an object of the notebook's, holds beside the interpreter or the shell: `from sys import
path`, `g = globals()`, `hist = In`.

A capture writes such a container as its place. After a restore the variable holds the new process's container. The
content belongs to the process, or is restored apart. The pickler writes exact dictionaries and lists without asking
the engine. A container within an object is therefore found in the memo, and the dump is made anew.
"""

from __future__ import annotations

import bisect
import builtins
import sys
from collections.abc import Callable, Iterable
from typing import Any

from . import recipes
from .session import Overlap

_TYPES = frozenset({dict, list, set})
#: Names in `sys` of the containers that are also looked for within objects.
_WITHIN = ("path", "modules", "argv", "meta_path", "path_hooks", "path_importer_cache", "warnoptions")
#: Containers of the shell, by their names in its history manager.
_OF_SHELL = ("output_hist", "input_hist_parsed", "input_hist_raw", "dir_hist")
#: Up to so many addresses a look at all is faster than a search.
_FEW = 100


class Held:
    """Written before all else of a dump. From then on the object itself is known as written."""

    def __init__(self, held: Any, make: Callable[..., Any], given: tuple[str, ...], dynamic: bool = False) -> None:
        self.held, self.make, self.given = held, make, given
        #: Whether any variable may be reached through it.
        self.dynamic = dynamic


class Met(Overlap):
    """A dump has met such an object within another: the object must be written first."""


class Known:
    """Written after a `Held` object's place."""

    def __init__(self, of: Held) -> None:
        self.of = of

    def take_its_place(self, pickler: Any) -> None:
        """Have the pickler know the object itself in the stand of `Held`, under the same number."""
        memo = pickler.memo
        memo = dict(memo) if isinstance(memo, dict) else memo.copy()
        number, _ = memo.pop(id(self.of))
        memo[id(self.of.held)] = number, self.of.held
        pickler.memo = memo


def direct(values: Any, namespace: dict[str, Any]) -> list[Held]:
    """Places of the objects among these variables' values that the interpreter or the shell holds."""
    if not isinstance(values, list):
        return []
    wanted = {id(value) for value in values if type(value) in _TYPES}
    if not wanted:
        return []
    names = [name for name in vars(sys) if not name.startswith("_")]
    return list({id(one.held): one for one in _all(namespace, names) if id(one.held) in wanted}.values())


def within(ids: Any, namespace: dict[str, Any]) -> list[Held]:
    """Places of the objects that a dump went through. `ids`: the sorted addresses of all that link groups."""
    held = vars(sys)
    here = [id(namespace), *[id(held.get(name)) for name in _WITHIN], *[id(value) for _, value in _of_shell()]]
    if (frozenset(here).isdisjoint(ids)) if len(ids) < _FEW else not any(_has(ids, at) for at in here):
        return []
    return [one for one in _all(namespace, _WITHIN) if _has(ids, id(one.held))]


def _has(ids: Any, at: int) -> bool:
    i = bisect.bisect_left(ids, at)
    return bool(i < len(ids) and ids[i] == at)


def check(module: Any, pickler: Any) -> None:
    """Ends a dump that is about to write all variables, as it comes to one of the namespace's first values.

    # Errors
    `Met`.
    """
    namespace = pickler.session.namespace
    if module is not builtins or id(namespace) in pickler.placed:
        return
    memo = pickler.memo
    if id(namespace) in (memo if isinstance(memo, dict) else memo.copy()):
        raise Met(_of_namespace(namespace))


def _of_namespace(namespace: dict[str, Any]) -> Held:
    return Held(namespace, recipes.namespace, (), dynamic=True)


def _all(namespace: dict[str, Any], names: Iterable[str]) -> Iterable[Held]:
    held = vars(sys)
    for name in names:
        value = held.get(name)
        if type(value) in _TYPES:
            yield Held(value, recipes.held, (name,))
    yield _of_namespace(namespace)
    for name, value in _of_shell():
        place = (recipes.__name__, f"SHELL.history_manager.{name}")
        yield Held(value, recipes.module_value, place, dynamic=name == "output_hist")


def inputs() -> list[str]:
    """The shell's inputs, as run."""
    return next((value for name, value in _of_shell() if name == "input_hist_parsed"), [])


def _of_shell() -> Iterable[tuple[str, Any]]:
    """The shell's containers: variables under their names may be the user's own."""
    shell = getattr(sys.modules.get("IPython.core.interactiveshell"), "InteractiveShell", None)
    if shell is None or not shell.initialized():
        return
    history = getattr(shell.instance(), "history_manager", None)
    for name in _OF_SHELL:
        value = getattr(history, name, None)
        if type(value) in _TYPES:
            yield name, value
