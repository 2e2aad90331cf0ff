"""Work that waits for a turn of the kernel's event loop: after a cell's reply, or in think time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from gresshopper import clock

#: By which the loop's timers go, unless the notebook has put another in its place.
_MONOTONIC = time.monotonic


def soon(work: Callable[[], None]) -> bool:
    """Schedule work for after this cell's reply; returns whether a loop is there to do the work."""
    try:
        # The kernel sends the reply, and lets the next request be taken, without giving the loop a turn between the two.
        asyncio.get_running_loop().call_soon(work)
    except RuntimeError:
        return False
    return True


def after(seconds: float, work: Callable[[], None]) -> None:
    """Schedule work for think time."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # outside of a kernel there is no loop: the next audit does it
        return
    # A turn of the loop later: a request that arrived with the timer goes first, unannounced by any descriptor.
    if _keeps_time(loop):
        loop.call_later(seconds, loop.call_soon, work)
    else:
        timer = threading.Timer(seconds, _soon_in, (loop, work))
        timer.name, timer.daemon = "gresshopper-think-time", True
        timer.start()


def _keeps_time(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a timer of the loop ends: a notebook may stop or set the clock by which the loop goes."""
    if time.monotonic is not _MONOTONIC:
        return False
    return abs(loop.time() - clock.now()) < 1  # on Linux both are CLOCK_MONOTONIC


def _soon_in(loop: Any, work: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(loop.call_soon, work)
    except RuntimeError:  # the kernel has ended
        return


class Timer:
    """Work that is planned once at a time: a new start replaces the one before."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        #: The start that counts. The loop may still hold others.
        self._counts: object = None

    def start(self, seconds: float) -> None:
        """Do the work in so many seconds, and at no time planned before."""
        self._counts = start = object()
        after(seconds, lambda: self._do(start))

    def _do(self, start: object) -> None:
        if start is self._counts:
            self._work()
