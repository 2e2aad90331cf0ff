"""Page-locked host memory, kept between parks.

Page-locking costs more than copying, so page-locked memory is reused. Kept memory counts against the seat; `trim`
gives it back.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
from collections.abc import Sequence
from typing import Callable

from gresshopper import clock

#: Alignment of blocks in bytes: a page, to keep two copies off the same page.
ALIGN = 4096
#: The most that is asked for at once, unless one block is larger: a machine may refuse or grow only step by step.
ARENA = 4 << 30
#: Linux's MADV_HUGEPAGE, which not each Python names.
_HUGEPAGE = 14
#: Bytes below which threads cost more than they save.
_PARALLEL = 64 << 20

Pin = Callable[[int, int], None]


def address(buffer: memoryview) -> int:
    """Where a buffer lies."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


class Arena:
    """One mapping. `used` grows as blocks are handed out and falls to zero when all are given back."""

    def __init__(self, size: int, pin: Pin | None) -> None:
        self.size = size
        self.used = 0
        self.pinned = False
        self._map = mmap.mmap(-1, size)
        self._whole = memoryview(self._map)
        self._hold = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._hold)
        _populate(self._map, self.address, size)
        if pin is not None:
            try:
                pin(self.address, size)
                self.pinned = True
            except Exception:
                self.pinned = False

    def take(self, size: int) -> memoryview | None:
        """`size` bytes, or nothing if they don't fit."""
        start = -(-self.used // ALIGN) * ALIGN
        if start + size > self.size:
            return None
        self.used = start + size
        return self._whole[start : start + size]


def _populate(mapping: mmap.mmap, address: int, size: int) -> None:
    """Has all pages there, by several threads: a single thread faults pages in at a few GB a second."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        mapping.madvise(_HUGEPAGE)
    workers = min(8, len(os.sched_getaffinity(0)))
    if size < _PARALLEL or workers < 2:
        return
    step = -(-size // workers // ALIGN) * ALIGN
    touch = [(address + at, min(step, size - at)) for at in range(0, size, step)]
    threads = [threading.Thread(target=ctypes.memset, args=(at, 0, n), daemon=True) for at, n in touch]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Pool:
    """The arenas of one process."""

    def __init__(self) -> None:
        self._arenas: list[Arena] = []
        self._unpin: Callable[[int], None] | None = None
        #: Seconds that finding and page-locking memory took in the last `take`.
        self.last_pin_s = 0.0

    @property
    def bytes(self) -> int:
        """All that is kept."""
        return sum(arena.size for arena in self._arenas)

    @property
    def pinned(self) -> bool:
        """Whether all of it is page-locked."""
        return all(arena.pinned for arena in self._arenas)

    def take(self, sizes: Sequence[int], pin: Pin | None, unpin: Callable[[int], None] | None) -> list[memoryview]:
        """One buffer for each size. Only one set of buffers is out at a time: `give_back` takes all.

        Raises MemoryError when the host has no more; nothing is taken then.
        """
        start = clock.now()
        self._unpin = unpin
        buffers: list[memoryview] = []
        try:
            for i, size in enumerate(sizes):
                buffers.append(self._one(size, sizes[i:], pin))
        except (MemoryError, OSError, ValueError) as error:
            self.give_back()
            raise MemoryError(f"the host has no {sum(sizes) >> 20} MiB for what the device holds: {error}") from error
        finally:
            self.last_pin_s = clock.now() - start
        return buffers

    def _one(self, size: int, still: Sequence[int], pin: Pin | None) -> memoryview:
        for arena in self._arenas:
            found = arena.take(size)
            if found is not None:
                return found
        wanted = sum(-(-n // ALIGN) * ALIGN for n in still)
        arena = Arena(max(ALIGN, size, min(wanted, ARENA)), pin)
        self._arenas.append(arena)
        found = arena.take(size)
        if found is None:
            raise MemoryError("an arena is smaller than what it was made for")
        return found

    def give_back(self) -> None:
        """All buffers are free again, and stay page-locked."""
        for arena in self._arenas:
            arena.used = 0

    def trim(self) -> None:
        """Gives unused memory back to the machine."""
        kept = []
        for arena in self._arenas:
            if arena.used:
                kept.append(arena)
            elif arena.pinned and self._unpin is not None:
                try:
                    self._unpin(arena.address)
                except Exception:
                    kept.append(arena)
        self._arenas = kept
