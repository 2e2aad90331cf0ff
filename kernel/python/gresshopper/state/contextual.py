"""Values of context variables (`contextvars`) that the notebook or the user's own modules hold, as the last cell left them.

A value that can't be written is told.
"""

from __future__ import annotations

import contextvars
import importlib
import pickle
from collections.abc import Iterator
from typing import Any

from . import own, settings
from .lost import Lost
from .session import NotHereError

#: A module of the user's own, or nothing for the notebook, and the variable's name there.
_Place = tuple[str, str]
#: The user's own modules, and the context variables that they held when first seen.
_found: tuple[Any, list[tuple[_Place, Any]]] = (None, [])


def _of_modules() -> list[tuple[_Place, Any]]:
    global _found  # noqa: PLW0603 - a process has one list of modules
    modules = own.loaded()
    if _found[0] is not modules:
        held = (((m.__name__, name), value) for m in modules for name, value in list(vars(m).items()))
        _found = modules, [(place, value) for place, value in held if type(value) is contextvars.ContextVar]
    return _found[1]


def _held() -> Iterator[tuple[_Place, Any]]:
    variables = dict(settings.scope())
    if contextvars.ContextVar in map(type, variables.values()):  # seldom, and asked for after each cell
        for name, value in variables.items():
            if type(value) is contextvars.ContextVar:
                yield ("", name), value
    yield from _of_modules()


def read() -> dict[str, Any]:
    """The values in the present context: kept, or only named."""
    kept: dict[_Place, tuple[str, Any]] = {}
    told: list[str] = []
    context = contextvars.copy_context()
    for place, variable in _held():
        if variable not in context:
            continue
        value = context[variable]
        name = None if type(value) in settings.ATOMS else settings.name_of(value)
        try:
            kept[place] = ("named", name) if name is not None else ("pickled", settings.dump(value, short=True))
        except Exception:
            told.append(".".join(filter(None, place)))
    return {"kept": kept, "told": told}


def set_(state: dict[str, Any]) -> None:
    """
    # Errors
    `NotHereError` names what wasn't written. The rest is set where the next cell begins.
    """
    if state["told"]:
        raise NotHereError(f"{', '.join(state['told'])}: the value of a context variable isn't saved, set it again")


def set_in_context(state: dict[str, Any]) -> None:
    """Set the values, in the present context."""
    for (module, name), (how, what) in state["kept"].items():
        held = vars(importlib.import_module(module)) if module else settings.scope()
        value = settings.named(what) if how == "named" else pickle.loads(what)
        if type(held.get(name)) is contextvars.ContextVar and type(value) is not Lost:
            held[name].set(value)
