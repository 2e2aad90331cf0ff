"""Settings of the standard library that its functions hide.

Logging as a whole, the calendar's first day, prefixes of XML, encodings, types of files.
"""

from __future__ import annotations

import codecs
import encodings
import gc
import logging
import os
import sys
from typing import Any

from . import settings

_LEVELS = {50: "CRITICAL", 40: "ERROR", 30: "WARNING", 20: "INFO", 10: "DEBUG", 0: "NOTSET"}


def logs() -> dict[str, Any]:
    """Settings of all loggers: names of levels, the level that is off, where warnings go, and what loggers are."""
    made, factory, names = logging.getLoggerClass(), logging.getLogRecordFactory(), logging._levelToName
    return {
        "names": {} if names == _LEVELS else {level: n for level, n in names.items() if _LEVELS.get(level) != n},
        "off": logging.root.manager.disable,
        "warnings": logging._warnings_showwarning is not None,  # type: ignore[attr-defined]
        "class": made if settings.of_notebook(made) else None,
        "records": factory if settings.of_notebook(factory) else None,
    }


def set_logs(state: dict[str, Any]) -> None:
    """Set what `logs` read."""
    for level, name in {**_LEVELS, **state["names"]}.items():
        if logging.getLevelName(level) != name:
            logging.addLevelName(level, name)
    logging.disable(state["off"])
    logging.captureWarnings(state["warnings"])
    made = state["class"] or (logging.Logger if settings.of_notebook(logging.getLoggerClass()) else None)
    if made is not None:
        logging.setLoggerClass(made)
    factory = state["records"] or (logging.LogRecord if settings.of_notebook(logging.getLogRecordFactory()) else None)
    if factory is not None:
        logging.setLogRecordFactory(factory)


def first_weekday() -> int:
    """The day with which the calendar's weeks begin."""
    return int(sys.modules["calendar"].firstweekday())


def set_first_weekday(day: int) -> None:
    """Set it."""
    import calendar

    calendar.setfirstweekday(day)


def prefixes() -> dict[str, str]:
    """The prefixes of XML's namespaces."""
    return dict(sys.modules["xml.etree.ElementTree"]._namespace_map)


def set_prefixes(state: dict[str, str]) -> None:
    """Set them."""
    from xml.etree import ElementTree

    ElementTree._namespace_map.update(state)  # type: ignore[attr-defined]


# --- encodings ---

#: The interpreter's own tables: handlers of errors by name, and functions that find a codec. None until they are found.
_codecs: tuple[dict[str, Any], list[Any]] | None = None
_ERRORS = ("strict", "ignore", "replace", "xmlcharrefreplace", "backslashreplace")


def find_codecs() -> None:
    """Finds the tables, which no module holds, by what refers to their first entries: a walk through all objects."""
    global _codecs  # noqa: PLW0603 - the tables are the process's, too
    if _codecs is not None:
        return
    handlers: dict[str, Any] = {}
    finders: list[Any] = []
    known = {name: codecs.lookup_error(name) for name in _ERRORS}
    for holder in gc.get_referrers(known["strict"], encodings.search_function):
        if type(holder) is dict and len(holder) > len(known) and all(holder.get(n) is f for n, f in known.items()):
            handlers = holder
        elif type(holder) is list and holder[:1] == [encodings.search_function]:
            finders = holder
    _codecs = (handlers, finders)


def coding() -> dict[str, Any]:
    """The notebook's handlers of errors, and its functions that find a codec."""
    handlers, finders = _codecs or ({}, [])
    return {
        "errors": {name: handler for name, handler in handlers.items() if settings.is_mine(handler)},
        "finders": [finder for finder in finders if settings.is_mine(finder)],
    }


def set_coding(state: dict[str, Any]) -> None:
    """Register them."""
    for name, handler in state["errors"].items():
        codecs.register_error(name, handler)
    there = coding()["finders"]
    for finder in state["finders"]:
        if finder not in there:
            codecs.register(finder)


# --- types of files ---

#: The tables without the notebook's changes, and the last findings with a fingerprint of the tables.
_untouched: tuple[dict[str, str], ...] | None = None
_types: tuple[int, dict[str, dict[str, str]]] = (0, {})
_KINDS = ("common", "strict", "suffixes", "encodings")


def types_of_files() -> dict[str, dict[str, str]]:
    """Entries that were added to the tables of `mimetypes`, or changed there."""
    global _types, _untouched  # noqa: PLW0603 - the process has one set of tables
    known: Any = sys.modules.get("mimetypes")
    if known is None or not known.inited:
        return {}
    tables = _tables(known._db)
    mark = hash(tuple(id(value) for table in tables for value in table.values()))
    if _types[0] != mark:
        if _untouched is None:
            _untouched = _tables(known.MimeTypes(filter(os.path.isfile, known.knownfiles)))
        changed = {}
        for kind, now, was in zip(_KINDS, tables, _untouched):
            changed[kind] = {ending: value for ending, value in now.items() if was.get(ending) != value}
        _types = (mark, {kind: table for kind, table in changed.items() if table})
    return _types[1]


def set_types_of_files(state: dict[str, dict[str, str]]) -> None:
    """Make them again."""
    if not state:
        return
    import mimetypes

    if not mimetypes.inited:
        mimetypes.init()
    for kind in ("common", "strict"):
        for ending, value in state.get(kind, {}).items():
            mimetypes.add_type(value, ending, strict=kind == "strict")
    mimetypes.suffix_map.update(state.get("suffixes", {}))
    mimetypes.encodings_map.update(state.get("encodings", {}))


def _tables(types: Any) -> tuple[dict[str, str], ...]:
    return (*types.types_map, types.suffix_map, types.encodings_map)
