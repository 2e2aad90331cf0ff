"""The notebook's settings of Python's loggers: levels, and handlers that print, write to a file, or are variables.

Others' handlers, and filters, are only named (`process`).
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from . import settings

_STYLES: dict[type, str] = {
    logging.PercentStyle: "%",
    logging.StrFormatStyle: "{",
    logging.StringTemplateStyle: "$",
}
#: A handler: kind, target, level and format.
_Handler = tuple[str, str, int, "tuple[Any, ...] | None"]


def known() -> dict[str, logging.Logger]:
    """All loggers by name; the root's is empty."""
    made = list(logging.root.manager.loggerDict.items())
    return {"": logging.root, **{name: found for name, found in made if isinstance(found, logging.Logger)}}


def _named(name: str) -> logging.Logger:
    return logging.getLogger(name) if name else logging.root


def levels() -> dict[str, Any]:
    """By name of the logger (empty for the root): its level; except for the root, also whether it is disabled and
    propagates."""
    found: dict[str, Any] = {"": logging.root.level}
    for name, logger in known().items():
        if name and (logger.level or logger.disabled or not logger.propagate):
            found[name] = (logger.level, logger.disabled, logger.propagate)
    return found


def set_levels(state: dict[str, Any]) -> None:
    """Set what `levels` read."""
    for name, value in state.items():
        logger = _named(name)
        level = value[0] if name else value
        if logger.level != level:  # each time all loggers' caches are emptied
            logger.setLevel(level)
        if name:
            logger.disabled, logger.propagate = value[1], value[2]


def handlers() -> dict[str, list[_Handler]]:
    """By name of the logger: handlers that can be made again, or are variables."""
    found = {}
    for name, logger in known().items():
        told = [one for one in map(_told, logger.handlers) if one is not None] if logger.handlers else []
        if told:
            found[name] = told
    return found


def set_handlers(state: dict[str, list[_Handler]]) -> None:
    """Add what `handlers` read and isn't there."""
    for name, wanted in state.items():
        logger = _named(name)
        there = [_told(handler) for handler in logger.handlers]
        for told in wanted:
            made = None if told in there else _made(*told)
            if made is not None and made not in logger.handlers:
                logger.addHandler(made)
                _added.append((logger, made))


#: Handlers that were made here for a saved state, with their loggers.
_added: list[tuple[logging.Logger, logging.Handler]] = []


def take_out_handlers() -> None:
    """Take out what `set_handlers` added."""
    while _added:
        logger, handler = _added.pop()
        logger.removeHandler(handler)


def _told(handler: logging.Handler) -> _Handler | None:
    kind = type(handler)
    if kind is logging.NullHandler:
        return "null", "", handler.level, None
    name = settings.name_of(handler)
    if name is not None:
        return "variable", name, 0, None
    format = _format_of(handler.formatter)
    if handler.filters or handler.get_name() or "terminator" in vars(handler) or format == ():
        return None
    if kind is logging.StreamHandler:
        stream = handler.stream  # type: ignore[attr-defined]
        to = "stdout" if stream is sys.stdout else "stderr" if stream is sys.stderr else None
        return None if to is None else ("stream", to, handler.level, format)
    if kind is logging.FileHandler:
        return "file", handler.baseFilename, handler.level, (format, handler.encoding)  # type: ignore[attr-defined]
    return None


def _format_of(formatter: logging.Formatter | None) -> tuple[Any, ...] | None:
    """How to make a formatter again; empty if that isn't known."""
    if formatter is None:
        return None
    style = formatter._style
    plain = type(formatter) is logging.Formatter and type(style) in _STYLES and not getattr(style, "_defaults", None)
    plain = plain and set(vars(formatter)) <= {"_style", "_fmt", "datefmt"}
    return (formatter._fmt, formatter.datefmt, _STYLES[type(style)]) if plain else ()


def _made(kind: str, where: str, level: int, how: Any) -> logging.Handler | None:
    made: logging.Handler
    if kind == "variable":
        held = settings.scope().get(where)
        return held if isinstance(held, logging.Handler) else None
    if kind == "null":
        made = logging.NullHandler()
    elif kind == "stream":
        made = logging.StreamHandler(getattr(sys, where))
    else:
        how, encoding = how
        if not os.path.exists(where):
            return None  # what was written is gone: told, as others' handlers are
        made = logging.FileHandler(where, encoding=encoding)
    made.setLevel(level)
    if how is not None:
        made.setFormatter(logging.Formatter(how[0], how[1], how[2]))
    return made
