"""The threads that park and unpark: the guard lets them pass.

`hop gpu` is answered on a thread of the kernel's process, and a thread there meets the guard from its start. A park asks
torch for the memory that the guard keeps from the user's code, so its threads say that they do a park's work.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


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
