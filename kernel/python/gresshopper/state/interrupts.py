"""Interrupts from the keyboard that arrive while our own code runs around a cell.

A capture takes one as the wish to end. An interrupt that arrives before a cell is left to the cell.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from gresshopper import clock
from gresshopper.between import in_main_thread

#: Seconds from our hook in which the cell has to begin.
BEGINS_WITHIN = 1.0

#: Interrupts received while `deferred`, and interrupts for the beginning cell.
received: list[int] = []
_for_the_cell: list[int] = []


def _defer(number: int, _: Any) -> None:
    received.append(number)
    _for_the_cell.append(number)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Take an interrupt as the wish to give up the capture. Its cell is over, and a broken-off capture must know the
    unrecorded changes."""
    before = signal.getsignal(signal.SIGINT) if in_main_thread() else None
    if before is None:
        yield
        return
    received.clear()
    signal.signal(signal.SIGINT, _defer)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        received.clear()


@contextlib.contextmanager
def for_the_cell(namespace: dict[str, Any]) -> Iterator[None]:
    """Leave an interrupt to the cell that begins next: in a hook, IPython would print and swallow the interrupt."""
    if not in_main_thread():
        yield
        return
    _for_the_cell.clear()
    try:
        with deferred():
            yield
    finally:
        if _for_the_cell:
            threading.Thread(target=_interrupt, args=(threading.get_ident(), namespace), daemon=True).start()


def _interrupt(thread: int, namespace: dict[str, Any]) -> None:
    """Interrupt a thread as soon as it runs code of the notebook: before that, nobody would take the interrupt for the cell's."""
    until = clock.now() + BEGINS_WITHIN
    while clock.now() < until:
        frame = sys._current_frames().get(thread)
        while frame is not None and frame.f_globals is not namespace:
            frame = frame.f_back
        if frame is not None:
            return signal.pthread_kill(thread, signal.SIGINT)
        clock.sleep(0.001)
    return None
