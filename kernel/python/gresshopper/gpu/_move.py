"""Moving blocks of device memory out and in, as a whole or not at all.

A block can copy itself, give up its device memory, and take the memory again. This module has the order without any
loss: memory is given up only after every copy is complete, and the host's copies are dropped only after everything is
back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, Protocol

from gresshopper import clock

from ._errors import ParkRefused
from ._host import Pin, Pool


class Block(Protocol):
    """Device memory of one owner; all aliases of the owner follow."""

    @property
    def nbytes(self) -> int: ...

    def copy_out(self, to: memoryview) -> None:
        """May return before the copy is complete; `Half.sync` waits."""

    def free(self) -> None: ...

    def allocate(self) -> None: ...

    def copy_in(self, source: memoryview) -> None: ...


@dataclass
class Found:
    """A framework's memory, and the obstacles to moving it."""

    blocks: list[Any] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    managed: bool | None = False
    ipc: bool | None = False
    #: Objects that the framework's C++ destroys by a call of the driver's.
    keep: list[Any] = field(default_factory=list)


class Half(Protocol):
    """One framework."""

    name: str

    def loaded(self) -> bool:
        """Whether the framework is there and has touched a device."""

    def find(self) -> Found: ...

    def sync(self, deadline: float) -> None:
        """Waits for the device; raises ParkRefused when that takes longer than `deadline` seconds."""

    def empty_caches(self) -> None: ...

    def pin(self) -> Pin | None: ...

    def unpin(self) -> Callable[[int], None] | None: ...


@dataclass
class Parked:
    """Blocks whose content is in host memory."""

    half: Any
    blocks: list[Any]
    buffers: list[memoryview]
    #: Blocks with device memory again: after a failed copy-in, none.
    nbytes: int


def out(half: Half, blocks: Sequence[Any], pool: Pool, sync_s: float, cancelled: Callable[[], bool]) -> Parked:
    """Copies all blocks out and gives their device memory up.

    Raises ParkRefused, and all blocks are as before.
    """
    sizes = [block.nbytes for block in blocks]
    try:
        half.sync(sync_s)
        buffers = pool.take(sizes, half.pin(), half.unpin())
        for block, buffer in zip(blocks, buffers):
            block.copy_out(buffer)
        half.sync(sync_s)
    except ParkRefused:
        raise
    except Exception as error:
        raise ParkRefused(f"{half.name}: copying out failed, nothing was moved ({error})") from error
    if cancelled():
        raise ParkRefused("copying out was called off, nothing was moved")
    parked = Parked(half, list(blocks), buffers, sum(sizes))
    freed: list[int] = []
    try:
        for i, block in enumerate(blocks):
            freed.append(i)
            block.free()
        half.empty_caches()
    except Exception as error:
        _bring_back(parked, freed)
        raise ParkRefused(f"{half.name}: device memory couldn't be given up, all is back ({error})") from error
    return parked


def _bring_back(parked: Parked, which: Sequence[int]) -> None:
    for i in which:
        block = parked.blocks[i]
        block.allocate()
        block.copy_in(parked.buffers[i])
    parked.half.sync(60.0)


def back(parked: Parked, sync_s: float) -> None:
    """Copies all blocks in again.

    Raises ParkRefused, and all blocks are still in host memory, whole.
    """
    taken: list[Any] = []
    try:
        for block in parked.blocks:
            taken.append(block)
            block.allocate()
        for block, buffer in zip(parked.blocks, parked.buffers):
            block.copy_in(buffer)
        parked.half.sync(sync_s)
    except Exception as error:
        for block in taken:
            with contextlib.suppress(Exception):
                block.free()
        raise ParkRefused(
            f"{parked.half.name}: copying in failed, everything is safe in host memory ({error})"
        ) from error


@dataclass
class Moved:
    """What one move took."""

    bytes: int = 0
    seconds: float = 0.0
    pin_s: float = 0.0


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = clock.now()

    def seconds(self) -> float:
        return clock.now() - self._start
