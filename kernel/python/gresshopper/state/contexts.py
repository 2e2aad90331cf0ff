"""Settings kept by Python for each context (`contextvars`): all cells share a context, and our own work runs in others.

The part found in a section of :mod:`.process` is read as the last cell left it, and set again where the next cell
begins.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping
from typing import Any

from .session import NotHereError

#: The context at the last cell's end.
_last: contextvars.Context | None = None
#: Settings to be made in the cells' context, by section, until the next cell begins.
_waiting: dict[str, Any] = {}


def cell_is_over() -> None:
    """Remember the context of the cell that ends here."""
    global _last  # noqa: PLW0603 - the main thread has one
    _last = contextvars.copy_context()


def of_cells(reader: Callable[[], Any]) -> Any:
    """The result of a function that runs in the cells' context."""
    return reader() if _last is None else _last.copy().run(reader)


def waits(name: str) -> bool:
    """Whether a setting is still to be made where the next cell begins."""
    return name in _waiting


def wait_for_cell(settings: Mapping[str, Any]) -> None:
    """Have these settings made where the next cell begins."""
    _waiting.update(settings)


def cell_begins(make: Callable[[str, Any], None]) -> list[str]:
    """Make the waiting values, in the context of the cell that begins here. Returns what is missing."""
    told: list[str] = []
    while _waiting:
        name, setting = _waiting.popitem()
        try:
            make(name, setting)
        except NotHereError as e:
            told.append(str(e))
        except Exception:  # it was told when it was restored
            continue
    return told


def read(name: str, reader: Callable[[], Any]) -> Any:
    """The value found by a section's reader in the cells' context."""
    found = of_cells(reader)
    if name not in _waiting:
        return found
    waiting = _waiting[name]
    return {**found, **waiting} if isinstance(waiting, dict) else waiting
