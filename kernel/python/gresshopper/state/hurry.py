"""How long a capture may hold up the user: until a moment, or until they ask for something.

A capture asks often, and is given up by `pickling.Interrupted`, which leaves everything as it was before it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from .pickling import Interrupted

if TYPE_CHECKING:
    from .capture import Capture

#: Seconds between two looks at what the user asked for.
EVERY = 0.002


class Patience(Protocol):
    """Says when a capture is to be given up."""

    def check(self) -> None:
        """Raise `Interrupted` when the time is over."""

    def expect(self, seconds: float) -> None:
        """The same, for what can't be given up once it is begun."""


class Until:
    """Until a moment of `time.perf_counter`."""

    def __init__(self, moment: float) -> None:
        self._moment = moment

    def check(self) -> None:
        """As `Patience`."""
        self.expect(0.0)

    def expect(self, seconds: float) -> None:
        """As `Patience`."""
        if time.perf_counter() + seconds > self._moment:
            raise Interrupted


class UntilAsked:
    """Until a request waits for the kernel's main thread."""

    def __init__(self, shell: Any) -> None:
        self._stream = _requests(shell)
        self._next = 0.0

    def check(self) -> None:
        """As `Patience`."""
        now = time.perf_counter()
        if self._stream is not None and now >= self._next:
            self._next = now + EVERY
            if self._waits():
                raise Interrupted

    def expect(self, seconds: float) -> None:
        """As `Patience`: nobody waits yet, and how long they think isn't known."""
        self.check()

    def _waits(self) -> bool:
        import zmq

        try:
            return bool(self._stream.socket.getsockopt(zmq.EVENTS) & zmq.POLLIN)
        except Exception:  # a stream that was closed, or is of another kind: then captures aren't given up
            self._stream = None
            return False


def _requests(shell: Any) -> Any:
    """The stream on which the main thread gets its requests, where that can be told."""
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return None
    try:
        if getattr(kernel, "_supports_kernel_subshells", False):
            return kernel.shell_channel_thread.manager.get_shell_channel_to_subshell_pair(None).to_stream
        return kernel.shell_stream
    except Exception:  # another generation of ipykernel
        return None


@contextlib.contextmanager
def bound(capture: Capture, patience: Patience | None) -> Iterator[None]:
    """Let a capture ask `patience`, which it doesn't otherwise."""
    if patience is None:
        yield
        return
    session = capture.session
    before = session.check, session.expect
    session.check, session.expect = patience.check, patience.expect
    try:
        yield
    finally:
        session.check, session.expect = before
