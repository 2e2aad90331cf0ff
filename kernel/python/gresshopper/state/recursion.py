"""A bound on the depth of our own work in C, whatever recursion limit the notebook set; invisible in captured state.

Until Python 3.11 the recursion limit also counts C's calls, such as those of the pickler. A limit far above Python's own lets
a nested object overflow the C stack, which ends the process. From 3.12 on C's calls have a fixed limit of their own.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Callable

#: Most levels on an ordinary stack, and bytes of stack for a level: three times as many as were measured.
_MOST, _LEVEL = 3000, 1024
#: Levels that every stack has room for: Python's own limit.
_ALWAYS = 1000
#: Whether Python's recursion limit counts the calls of C.
_COUNTS_C = sys.version_info < (3, 12)

#: The notebook's limit, and the limit of our work; none outside of such work.
_bound: tuple[int, int] | None = None


def limit() -> int:
    """The notebook's recursion limit."""
    now = sys.getrecursionlimit()
    return _bound[0] if _bound is not None and now == _bound[1] else now


def set_limit(wanted: int) -> None:
    """Set the notebook's recursion limit, after our work if that is under way."""
    global _bound  # noqa: PLW0603 - a process has one limit
    if _bound is None:
        sys.setrecursionlimit(wanted)
    else:
        _bound = wanted, _bound[1]


def is_high() -> bool:
    """Whether the limit that holds now lets C's calls overflow an ordinary stack."""
    return _COUNTS_C and (now := sys.getrecursionlimit()) > _ALWAYS and now > _most()


def _most() -> int:
    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return _MOST if stack == resource.RLIM_INFINITY else min(_MOST, max(stack // _LEVEL, 200))


#: Says whether a thread of the notebook's runs: `threads` puts it here, which itself needs the limit.
asked: list[Callable[[], bool]] = []


class Bounded(contextlib.ContextDecorator):
    """Nesting too deep for the C stack raises `RecursionError`.

    The limit holds for all threads of a process, so it stays while a thread of the notebook's runs, which may be deeper.
    """

    def __enter__(self) -> None:
        global _bound  # noqa: PLW0603 - a process has one limit
        self._mine = _bound is None and is_high() and not any(ask() for ask in asked)
        if self._mine:
            bound = sys.getrecursionlimit(), _most()
            try:
                sys.setrecursionlimit(bound[1])
            except RecursionError:  # the caller is deeper already
                self._mine = False
            else:
                _bound = bound

    def __exit__(self, *_: object) -> None:
        if self._mine:
            lift()

    def _recreate_cm(self) -> Bounded:
        return Bounded()


def lift() -> None:
    """Have the notebook's limit again, unless its code has set another one meanwhile."""
    global _bound  # noqa: PLW0603 - a process has one limit
    if _bound is not None and sys.getrecursionlimit() == _bound[1]:
        sys.setrecursionlimit(_bound[0])
    _bound = None
