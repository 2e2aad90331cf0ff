"""The threads that park and unpark: the guard lets them pass, whatever the user's code would be told.

A park runs on a thread of its own, and asks torch for what the user's code may no longer ask: each thread of a process
meets the guard unless it says that it does this module's work.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Callable


class _Here(threading.local):
    """Whether this thread parks or unparks now."""

    own = False


_here = _Here()


def is_own() -> bool:
    """Whether this thread does the parking's own work now."""
    return _here.own


@contextlib.contextmanager
def own_work() -> Iterator[None]:
    """Within, this thread passes the guard."""
    before, _here.own = _here.own, True
    try:
        yield
    finally:
        _here.own = before


def own_thread(work: Callable[[], None], name: str) -> threading.Thread:
    """A thread, not started yet, that passes the guard."""

    def run() -> None:
        with own_work():
            work()

    return threading.Thread(target=run, daemon=True, name=name)
