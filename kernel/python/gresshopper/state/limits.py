"""How long a capture may take, and how much memory it may add to the process.

A capture asks often, and is given up by `Interrupted`, which leaves everything as before the capture.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, Protocol

from gresshopper import clock

from . import incoming, interrupts, native
from .session import Away, Interrupted, NoRoom, Session

#: Seconds between two looks at what the user asked for.
EVERY = 0.002
#: Bytes that a capture may always add to the process; beyond, a fraction (1/SHARED) of the room left at its start.
FLOOR, SHARED = 256 << 20, 2
#: Number of checks for room for each look at the process's size.
LOOKS = 8


class Patience(Protocol):
    """Says when a capture is to be given up."""

    def check(self) -> None:
        """Raise `Interrupted` when the time is over."""

    def expect(self, seconds: float) -> None:
        """The same, for work that can't be given up once begun."""


class Until:
    """Until a moment of `clock.now`, or until an interrupt that was deferred."""

    def __init__(self, moment: float) -> None:
        self._moment = moment

    def check(self) -> None:
        """As `Patience`."""
        self.expect(0.0)

    def expect(self, seconds: float) -> None:
        """As `Patience`."""
        if interrupts.received or clock.now() + seconds > self._moment:
            raise Interrupted


class UntilAsked:
    """Until a request arrives for the kernel's main thread."""

    def __init__(self, shell: Any) -> None:
        self._descriptor = incoming.descriptor(shell)
        self._next = 0.0

    def check(self) -> None:
        """As `Patience`."""
        now = clock.now()
        if self._descriptor is not None and now >= self._next:
            self._next = now + EVERY
            if incoming.is_readable(self._descriptor):
                raise Interrupted

    def expect(self, seconds: float) -> None:
        """As `Patience`: nobody waits yet, and how long they think isn't known."""
        self.check()


class Room:
    """Until the process has grown by more than a capture may add to it."""

    def __init__(self) -> None:
        self._before = resident()
        self._most = 0
        self._asked = 0

    def ask(self, nbytes: int = 0) -> None:
        """Raise `NoRoom` when the process has grown too much, or would by so many bytes more."""
        self._asked += 1
        if nbytes < FLOOR and self._asked % LOOKS:
            return
        grown = resident() - self._before
        if grown + nbytes <= FLOOR:
            return
        self._most = self._most or max(FLOOR, (native.room() + grown) // SHARED)
        if grown + nbytes > self._most:
            raise NoRoom(f"capturing it would take more than {self._most >> 20} MiB of memory")


@contextlib.contextmanager
def roomy(session: Session) -> Iterator[None]:
    """Have the dumps of a capture ask whether there is room."""
    before, session.room = session.room, Room().ask
    try:
        yield
    finally:
        session.room = before


@contextlib.contextmanager
def reading_devices(session: Session) -> Iterator[None]:
    """Have a capture read GPU memory as `gresshopper.gpu` permits, if loaded."""
    gpu = sys.modules.get("gresshopper.gpu")
    reading = gpu.reading() if gpu is not None else None
    if reading is None:
        yield
        return
    check = session.check

    def asked() -> None:
        if reading.wanted:
            raise Away
        check()

    with reading:
        session.device, session.check = reading, asked
        try:
            yield
        finally:
            session.device, session.check = None, check


def resident() -> int:
    """Resident bytes of this process."""
    with open("/proc/self/statm", "rb", buffering=0) as said:
        return int(said.read().split()[1]) * _PAGE


_PAGE = os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def bound(session: Session, patience: Patience | None) -> Iterator[None]:
    """Let the captures of a session ask `patience`."""
    if patience is None:
        yield
        return
    before = session.check, session.expect
    session.check, session.expect = patience.check, patience.expect
    try:
        yield
    finally:
        session.check, session.expect = before
