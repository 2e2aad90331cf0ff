"""A pause of Python's collector of cycles, invisible in captured or restored state."""

from __future__ import annotations

import contextlib
import gc

#: Whether the collector runs again after the pause; none outside of one.
_after: bool | None = None


def enabled() -> bool:
    """Whether the collector runs, but for a pause."""
    return gc.isenabled() if _after is None else _after


def enable(on: bool) -> None:
    """Let the collector run or not, after the pause if one is under way."""
    global _after  # noqa: PLW0603 - a process has one collector
    if _after is not None:
        _after = on
    elif on:
        gc.enable()
    else:
        gc.disable()


class Paused(contextlib.ContextDecorator):
    """The collector waits: it would go through all of a notebook's objects again and again while millions of new ones,
    none of them garbage, are made."""

    def __enter__(self) -> None:
        global _after  # noqa: PLW0603 - a process has one collector
        self._outer = _after is None
        if self._outer:
            _after = gc.isenabled()
            gc.disable()

    def __exit__(self, *_: object) -> None:
        global _after  # noqa: PLW0603 - a process has one collector
        if self._outer:
            if _after:
                gc.enable()
            _after = None

    def _recreate_cm(self) -> Paused:
        return Paused()
