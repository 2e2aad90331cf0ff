"""The wait until a cell's last messages have left the kernel.

ipykernel's threads send a cell's output and reply. The sending needs the interpreter, and a capture in the main thread
would keep the interpreter to itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from gresshopper import clock

#: Turns of the shell channel's loop from the arrival of a reply to its sending: it is taken, queued, sent.
_TURNS = 3


def wait(shell: Any, seconds: float) -> None:
    """Wait for the other threads of this shell's kernel, at most `seconds`."""
    kernel = getattr(shell, "kernel", None)
    until = clock.now() + seconds
    left: list[threading.Event] = []
    for send in (_published, _replied):
        done = threading.Event()
        # A kernel without such a thread has sent everything by itself.
        with contextlib.suppress(AttributeError, RuntimeError):
            send(kernel, done.set, until)
            left.append(done)
    for done in left:
        done.wait(max(until - clock.now(), 0.0))


def _published(kernel: Any, done: Callable[[], None], until: float) -> None:
    kernel.iopub_thread.schedule(done)


def _replied(kernel: Any, done: Callable[[], None], until: float) -> None:
    loop, stream = kernel.shell_channel_thread.io_loop, kernel.shell_stream

    def look(turns: int) -> None:
        if turns > 0 or (stream.sending() and clock.now() < until):
            loop.add_callback(look, turns - 1)
        else:
            done()

    loop.add_callback(look, _TURNS)
