"""Values of context variables (`contextvars`) that the notebook or the user's own modules hold, as the last cell left them.

A value that can't be written is told.
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib
from collections.abc import Iterator
from typing import Any

from . import settings, user_modules
from .lost import Lost, LostError
from .session import NotHereError

#: A module of the user's own, or nothing for the notebook, and the variable's name there.
_Place = tuple[str, str]
#: The user's own modules, and the context variables that they held when first seen.
_found: tuple[Any, list[tuple[_Place, Any]]] = (None, [])


def _of_modules() -> list[tuple[_Place, Any]]:
    global _found  # noqa: PLW0603 - a process has one list of modules
    modules = user_modules.loaded()
    if _found[0] is not modules:
        held = (((m.__name__, name), value) for m in modules for name, value in list(vars(m).items()))
        _found = modules, [(place, value) for place, value in held if type(value) is contextvars.ContextVar]
    return _found[1]


def _held() -> Iterator[tuple[_Place, Any]]:
    try:  # without a copy: they are seldom, and asked for after each cell
        there = contextvars.ContextVar in map(type, settings.scope().values())
    except RuntimeError:  # another thread has set a variable meanwhile
        there = True
    if there:
        for name, value in list(settings.scope().items()):
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
    """Read what the values are made of: they are set where the next cell begins.

    # Errors
    `NotHereError` names what wasn't written.
    """
    for how, what in state["kept"].values():
        with contextlib.suppress(Exception):  # told where the next cell begins
            _value(how, what)
    _tell(state["told"])


def set_in_context(state: dict[str, Any]) -> None:
    """Set the values, in the present context.

    # Errors
    `NotHereError` names what couldn't be set.
    """
    missing = []
    for (module, name), (how, what) in state["kept"].items():
        try:
            held = vars(importlib.import_module(module)) if module else settings.scope()
            if not module and type(held.get(name)) is not contextvars.ContextVar:
                continue  # lost itself, and told
            value = _value(how, what)
            if isinstance(value, Lost):
                raise LostError(name)
            held[name].set(value)
        except Exception:
            missing.append(".".join(filter(None, (module, name))))
    _tell(missing)


def _value(how: str, what: Any) -> Any:
    return settings.named(what) if how == "named" else settings.load(what)


def _tell(missing: list[str]) -> None:
    if missing:
        raise NotHereError(f"{', '.join(missing)}: the value of a context variable isn't saved, set it again")
