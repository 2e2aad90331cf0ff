"""Stops a cell whose lease is taken away with an exception of our own, :class:`LeaseRevoked`.

The supervisor writes the reason to a file and then interrupts, as a user would. While a cell or a block runs with a
lease, the handler of the interrupt looks for that file. At all other times Python's own handler is in place.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from types import FrameType
from typing import Any

from gresshopper.between import in_main_thread

#: Set by the supervisor: where it writes the sentence.
VARIABLE = "GRESSHOPPER_REVOKED"


class LeaseRevoked(KeyboardInterrupt):
    """The lease was taken away under running code. A KeyboardInterrupt: no ``except Exception`` goes on without
    GPUs.
    """


class Watch:
    """The handler of interrupts while code runs with a lease."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._in_place = False

    def begin(self) -> None:
        """Code begins to run with a lease. A handler other than Python's own is the user's, and stays."""
        if not in_main_thread() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return
        # Of an interrupt that came too late.
        self._place.unlink(missing_ok=True)
        signal.signal(signal.SIGINT, self.stop)
        self._in_place = True

    def over(self) -> None:
        """The cell is over."""
        if self._in_place and in_main_thread():
            self._in_place = False
            if signal.getsignal(signal.SIGINT) == self.stop:
                signal.signal(signal.SIGINT, signal.default_int_handler)

    def stop(self, number: int, frame: FrameType | None) -> None:
        """An interrupt."""
        with contextlib.suppress(OSError):
            why = self._place.read_text(encoding="utf-8")
            self._place.unlink()
            raise LeaseRevoked(why)
        signal.default_int_handler(number, frame)


_watch: Watch | None = None


def install(shell: Any) -> None:
    """Watch the cells of this kernel, if the supervisor gives reasons for interrupts."""
    global _watch  # noqa: PLW0603  one process, one handler
    place = os.environ.pop(VARIABLE, None)
    if place is None:
        return
    watch = _watch = Watch(Path(place))

    def begins(info: Any) -> None:
        parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
        ours = (parent.get("metadata") or {}).get("gresshopper")
        if isinstance(ours, dict) and ours.get("lease"):
            watch.begin()

    shell.events.register("pre_run_cell", begins)
    shell.events.register("post_run_cell", lambda result: watch.over())


def block_begins() -> None:
    """A block of a cell has its lease."""
    if _watch is not None:
        _watch.begin()
