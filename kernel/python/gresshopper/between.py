"""Work for the kernel's main thread, between cells.

A cell may be asynchronous. Then the event loop goes round while the cell waits, and other work on the loop would find
the cell's variables half-changed. Work posted here waits until no cell runs.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import threading
from typing import Any, Callable

from gresshopper import clock

#: Seconds that posted work waits for the kernel's loop at the kernel's start.
LOOP_LIMIT = 60.0


class Cells:
    """The cells of the main thread. A cell may run others within itself, and an empty one isn't announced. Cells of
    subshells run in threads of their own, and don't count.
    """

    def __init__(self) -> None:
        self._running: list[Any] = []

    def __bool__(self) -> bool:
        return bool(self._running)

    def begins(self, info: Any) -> bool:
        """A cell begins. Returns whether no other cell runs around it."""
        if not in_main_thread():
            return True
        self._running.append(info)
        return len(self._running) == 1

    def over(self, result: Any) -> bool:
        """A cell is over. Returns whether no other cell ran around it."""
        if not self._running or not in_main_thread():
            return True
        info = getattr(result, "info", None)
        at = next((i for i, running in enumerate(self._running) if running is info), None)
        if at is None:
            if str(getattr(info, "raw_cell", "-")).isspace() or getattr(info, "raw_cell", "-") == "":
                return False  # an empty one within another
            at = len(self._running) - 1  # the innermost, which an interrupt ended outside of its code
        del self._running[at:]
        return at == 0


def in_main_thread() -> bool:
    """Whether the kernel's cells run in this thread."""
    return threading.current_thread() is threading.main_thread()


class Between:
    """The main thread of one kernel."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._cells = Cells()
        self._waiting: collections.deque[Callable[[], None]] = collections.deque()
        shell.events.register("pre_run_cell", self._cells.begins)
        shell.events.register("post_run_cell", self._over)

    def is_of(self, shell: Any) -> bool:
        """Whether it is this shell's."""
        return self._shell is shell

    def post(self, work: Callable[[], None]) -> None:
        """Have work done in the main thread. It mustn't raise."""
        self._waiting.append(work)
        if in_main_thread():
            self._soon()
        elif self._loop() is not None:
            self._loop().add_callback(self._drain)
        else:  # the kernel's start isn't over, and may wait for this thread
            threading.Thread(target=self._once_started, name="gresshopper-start", daemon=True).start()

    def _loop(self) -> Any:
        return getattr(getattr(self._shell, "kernel", None), "io_loop", None)

    def _once_started(self) -> None:
        until = clock.now() + LOOP_LIMIT
        while self._loop() is None and clock.now() < until:
            clock.sleep(0.005)
        if self._loop() is not None:
            self._loop().add_callback(self._drain)

    def _over(self, result: Any) -> None:
        self._cells.over(result)
        if self._waiting:
            self._soon()

    def _soon(self) -> None:
        with contextlib.suppress(RuntimeError):  # no loop runs yet: the next cell's end does it
            asyncio.get_running_loop().call_soon(self._drain)

    def _drain(self) -> None:
        while self._waiting and not self._cells:
            self._waiting.popleft()()


_of: Between | None = None


def of(shell: Any) -> Between:
    """The main thread of this kernel, made at the first call."""
    global _of  # noqa: PLW0603  one process, one main thread
    if _of is None or not _of.is_of(shell):
        _of = Between(shell)
    return _of
