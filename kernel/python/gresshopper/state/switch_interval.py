"""A shorter switch interval of the interpreter, invisible in captured or restored state.

A kernel sends replies and takes requests in threads of its own. Each of their steps may wait for a whole
interval, 5 ms by Python's default, while the main thread computes.
"""

from __future__ import annotations

import contextlib
import sys

#: Seconds after which another thread gets the interpreter's lock.
SHORT = 0.0002

#: The interval after the work; none outside of it.
_after: float | None = None


def seconds() -> float:
    """The interval in seconds, but for our work."""
    return sys.getswitchinterval() if _after is None else _after


def set_seconds(wanted: float) -> None:
    """Set the interval in seconds, after our work if that is under way."""
    global _after  # noqa: PLW0603 - a process has one lock
    if _after is None:
        sys.setswitchinterval(wanted)
    else:
        _after = wanted


class Shortened(contextlib.ContextDecorator):
    """Work of the main thread between cells, which other threads interrupt at once."""

    def __enter__(self) -> None:
        global _after  # noqa: PLW0603 - a process has one lock
        self._outer = _after is None
        if self._outer:
            _after = sys.getswitchinterval()
            sys.setswitchinterval(min(SHORT, _after))

    def __exit__(self, *_: object) -> None:
        global _after  # noqa: PLW0603 - a process has one lock
        if self._outer and _after is not None:
            # Python cuts off below a microsecond: the same number would lose one each time.
            sys.setswitchinterval(_after + 5e-7)
            _after = None

    def _recreate_cm(self) -> Shortened:
        return Shortened()
