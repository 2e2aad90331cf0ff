"""Device memory as a capture of the notebook's state reads it: from the device, from host copies, or not now.

A capture never wakes a kernel with parked GPU memory, and never asks for a lease. During the reading, this thread has
no guard; code that could ask the driver is told that no device exists. A park requested meanwhile waits for the capture
to give way, at the capture's next question.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from ._errors import ParkRefused
from ._guard import TorchGuard


class Access:
    """Present user of the device's memory: a capture or a move."""

    def __init__(self) -> None:
        self._held = threading.Lock()
        self._wanted = threading.Event()

    def read(self) -> bool:
        """Take the memory for a capture, if it is free."""
        return self._held.acquire(blocking=False)

    def move(self, seconds: float) -> None:
        """Take the memory for a move. A capture gives way.

        Raises ParkRefused when that takes too long.
        """
        self._wanted.set()
        try:
            if not self._held.acquire(timeout=seconds):
                raise ParkRefused("a capture of the kernel's state reads the device")
        finally:
            self._wanted.clear()

    def end(self) -> None:
        """Give it back."""
        self._held.release()

    @property
    def wanted(self) -> bool:
        """Whether a move waits."""
        return self._wanted.is_set()


class Reading:
    """One capture's look at the device's memory."""

    def __init__(self, access: Access, guard: TorchGuard, device_type: str, off: bool, parked: Iterable[Any]) -> None:
        self._access, self._guard, self._device_type, self._off = access, guard, device_type, off
        self._parked = parked
        self._has = self._holds = self._guarded = False
        self._copies: dict[int, memoryview] = {}

    def __enter__(self) -> Reading:
        self._has = self._holds = self._access.read()
        self._guarded = self._guard.guards_this_thread
        self._guard.leave()
        if self._has:
            self._copies = {
                key: buffer
                for parked in self._parked
                for block, buffer in zip(parked.blocks, parked.buffers)
                if (key := getattr(block, "key", None)) is not None
            }
        return self

    def __exit__(self, *_: object) -> None:
        self._copies = {}
        if self._guarded:
            self._guard.enter()
        if self._holds:
            self._access.end()

    def has_read(self) -> None:
        """Gives the device up before the capture is stored, since nothing more is read from the device. A capture with
        the host's copies keeps the device: the next park would write over the copies."""
        if self._holds and not self._copies:
            self._holds = False
            self._access.end()

    def copy(self, storage: Any) -> memoryview | None:
        """The host's copy of a torch storage that was moved out."""
        return self._copies.get(storage._cdata) if self._copies else None

    def is_away(self, device_type: str | None = None) -> bool:
        """Whether memory of a device (of the guarded type, unless told otherwise) can't be read now."""
        return (self._off or not self._has) and device_type in (None, self._device_type)

    @property
    def wanted(self) -> bool:
        """Whether a park waits for this capture to let go."""
        return self._access.wanted
