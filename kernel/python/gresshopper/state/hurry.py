"""How long a capture may hold up the user, and how much memory it may add to their process.

A capture asks often, and is given up by `Interrupted`, which leaves everything as before the capture.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Protocol

from gresshopper.between import in_main_thread

from . import native
from .session import Away, Interrupted, NoRoom, Session

#: Seconds between two looks at what the user asked for.
EVERY = 0.002
#: Seconds from our hook in which the cell has to begin.
BEGINS_WITHIN = 1.0
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
    """Until a moment of `time.perf_counter`, or until an interrupt that was deferred."""

    def __init__(self, moment: float) -> None:
        self._moment = moment

    def check(self) -> None:
        """As `Patience`."""
        self.expect(0.0)

    def expect(self, seconds: float) -> None:
        """As `Patience`."""
        if _deferred or time.perf_counter() + seconds > self._moment:
            raise Interrupted


#: Deferred interrupts from the keyboard, and those for the cell that begins.
_deferred: list[int] = []
_for_the_cell: list[int] = []


def _defer(number: int, _: Any) -> None:
    _deferred.append(number)
    _for_the_cell.append(number)


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Take an interrupt as the wish to give up the capture. Its cell is over, and a broken-off capture must know the
    unrecorded changes."""
    before = signal.getsignal(signal.SIGINT) if in_main_thread() else None
    if before is None:
        yield
        return
    _deferred.clear()
    signal.signal(signal.SIGINT, _defer)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        _deferred.clear()


@contextlib.contextmanager
def interrupts_for_the_cell(namespace: dict[str, Any]) -> Iterator[None]:
    """Leave an interrupt to the cell that begins after this: in a hook, IPython would print and swallow it."""
    if not in_main_thread():
        yield
        return
    _for_the_cell.clear()
    try:
        with interrupts_deferred():
            yield
    finally:
        if _for_the_cell:
            threading.Thread(target=_interrupt, args=(threading.get_ident(), namespace), daemon=True).start()


def _interrupt(thread: int, namespace: dict[str, Any]) -> None:
    """Interrupt a thread as soon as it runs code of the notebook: before that, nobody would take the interrupt for the cell's."""
    until = time.monotonic() + BEGINS_WITHIN
    while time.monotonic() < until:
        frame = sys._current_frames().get(thread)
        while frame is not None and frame.f_globals is not namespace:
            frame = frame.f_back
        if frame is not None:
            return signal.pthread_kill(thread, signal.SIGINT)
        time.sleep(0.001)
    return None


def is_asked(shell: Any) -> bool:
    """Whether a request was read from its socket and has yet to begin. No descriptor tells of it any more, and it can begin
    only once the loop gets its turn.
    """
    queue = getattr(getattr(shell, "kernel", None), "msg_queue", None)  # before ipykernel 7
    if queue is not None and queue.qsize():
        return True
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:  # no loop runs
        return False
    return any(_is_next(task) for task in tasks)


def _is_next(task: Any) -> bool:
    """Whether a task is ipykernel's, and goes on in the loop's next turn: it is new, or what it waited for is there."""
    coro = task.get_coro()
    code = getattr(coro, "cr_code", None)
    if code is None or os.path.basename(os.path.dirname(code.co_filename)) != "ipykernel":
        return False
    waits = getattr(task, "_fut_waiter", None)
    return inspect.getcoroutinestate(coro) == inspect.CORO_CREATED or (waits is not None and bool(waits.done()))


class UntilAsked:
    """Until a request arrives for the kernel's main thread.

    The socket itself is never asked. Reading ``zmq.EVENTS``, polling through ZeroMQ or receiving takes the edge from
    the descriptor, and the event loop waits for that edge: it would sleep on with the request in the socket. The
    descriptor is only looked at.
    """

    def __init__(self, shell: Any) -> None:
        self._descriptor = _descriptor(shell)
        self._next = 0.0

    def check(self) -> None:
        """As `Patience`."""
        now = time.perf_counter()
        if self._descriptor is not None and now >= self._next:
            self._next = now + EVERY
            if _readable(self._descriptor):
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


def _readable(descriptor: int) -> bool:
    """Whether something happened on a descriptor that nobody has dealt with yet."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return any(event & select.POLLIN for _, event in poll.poll(0))


def _descriptor(shell: Any) -> int | None:
    """The descriptor that tells of requests; ``None`` where the stream is closed, or of another kind."""
    try:
        return int(_requests(shell).socket.fileno())
    except Exception:
        return None


def _requests(shell: Any) -> Any:
    """The stream of the main thread's requests."""
    kernel = shell.kernel
    if getattr(kernel, "_supports_kernel_subshells", False):
        return kernel.shell_channel_thread.manager.get_shell_channel_to_subshell_pair(None).to_stream
    return kernel.shell_stream


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
