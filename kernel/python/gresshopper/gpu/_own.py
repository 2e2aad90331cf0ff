"""The threads that park and unpark: the guard lets them pass.

`hop gpu` is answered on a thread of the kernel's process, and each thread of the process meets the guard from the
start. A park asks torch for memory kept from the user's code by the guard. The park's threads therefore declare their
work to the guard.
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
