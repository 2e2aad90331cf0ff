"""A FAKE framework and a FAKE cupy: device memory is a bytearray, and each step can be told to fail."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from gresshopper.gpu._move import Found


class Fault(Exception):
    """What a fake raises when it was told to."""


class FakeDevice:
    """So much memory, and faults at chosen calls."""

    def __init__(self, total: int = 1 << 20) -> None:
        self.total = total
        self.used = 0
        self.fail_at: dict[str, int] = {}
        self.calls: list[str] = []

    def call(self, name: str) -> None:
        self.calls.append(name)
        left = self.fail_at.get(name)
        if left is not None:
            self.fail_at[name] = left - 1
            if left == 0:
                raise Fault(f"fake fault at {name}")

    def take(self, size: int) -> bytearray:
        if self.used + size > self.total:
            raise Fault("fake out of memory")
        self.used += size
        return bytearray(size)


class FakeBlock:
    """One allocation; `aliases` look at it through the block, as views look at a storage."""

    def __init__(self, device: FakeDevice, content: bytes) -> None:
        self.device = device
        self.nbytes = len(content)
        self.memory: bytearray | None = device.take(self.nbytes)
        self.memory[:] = content

    def copy_out(self, to: memoryview) -> None:
        self.device.call("copy_out")
        assert self.memory is not None
        to[:] = self.memory

    def free(self) -> None:
        self.device.call("free")
        if self.memory is not None:
            self.device.used -= self.nbytes
        self.memory = None

    def allocate(self) -> None:
        self.device.call("allocate")
        if self.memory is None:
            self.memory = self.device.take(self.nbytes)

    def copy_in(self, source: memoryview) -> None:
        self.device.call("copy_in")
        assert self.memory is not None
        self.memory[:] = source


class FakeHalf:
    """A framework that holds `blocks`."""

    def __init__(self, device: FakeDevice, contents: list[bytes], name: str = "fake") -> None:
        self.name = name
        self.device = device
        self.blocks = [FakeBlock(device, content) for content in contents]
        self.refusals: list[str] = []

    def loaded(self) -> bool:
        return True

    def find(self) -> Found:
        return Found(blocks=[b for b in self.blocks if b.memory is not None], refusals=list(self.refusals))

    def sync(self, deadline: float) -> None:
        self.device.call("sync")

    def empty_caches(self) -> None:
        self.device.call("empty_caches")

    def pin(self) -> Callable[[int, int], None] | None:
        return lambda address, size: self.device.call("pin")

    def unpin(self) -> Callable[[int], None] | None:
        return lambda address: self.device.call("unpin")

    def contents(self) -> list[bytes | None]:
        return [None if b.memory is None else bytes(b.memory) for b in self.blocks]


class FakeMemory:
    """cupy's PooledMemory."""

    def __init__(self, device: FakeDevice, size: int) -> None:
        self.device, self.size, self.device_id = device, size, 0
        self.bytes = device.take(size)
        self.ptr = id(self.bytes)

    def __del__(self) -> None:
        self.device.used -= self.size


FakeMemory.__name__ = "PooledMemory"


def fake_cupy(device: FakeDevice) -> Any:
    """A module with what the cupy half uses of cupy 14."""

    class UnownedMemory:
        def __init__(self, ptr: int, size: int, owner: Any, device_id: int) -> None:
            self.ptr, self.size, self.device_id = ptr, size, device_id

    class MemoryPointer:
        def __init__(self, mem: Any, offset: int) -> None:
            assert mem.ptr != 0 or offset == 0, "as cupy's does"
            self.mem, self.ptr, self.offset, self.device_id = mem, mem.ptr + offset, offset, mem.device_id

        def copy_to_host_async(self, to: Any, size: int, stream: Any) -> None:
            device.call("copy_out")
            ctypes.memmove(to, bytes(self.mem.bytes[:size]), size)

        def copy_from_host_async(self, source: Any, size: int, stream: Any) -> None:
            device.call("copy_in")
            self.mem.bytes[:size] = ctypes.string_at(source.value, size)

    class Device:
        def __init__(self, index: int) -> None:
            pass

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: Any) -> None:
            pass

    class ndarray:
        def __init__(self, shape: Any, dtype: str, memptr: Any, base: Any = None) -> None:
            self.shape, self.dtype, self.base, self.nbytes = shape, dtype, base, shape[0]
            self._data = memptr

        @property
        def data(self) -> Any:
            """Can't be set, as cupy's can't."""
            return self._data

        def tobytes(self) -> bytes:
            return bytes(self.data.mem.bytes[self.data.offset : self.data.offset + self.shape[0]])

    def alloc(size: int) -> Any:
        device.call("allocate")
        return MemoryPointer(FakeMemory(device, size), 0)

    pool = SimpleNamespace(free_all_blocks=lambda: device.call("empty_caches"))
    runtime = SimpleNamespace(
        deviceSynchronize=lambda: device.call("sync"),
        hostRegister=lambda address, size, flags: device.call("pin"),
        hostUnregister=lambda address: None,
    )
    cuda = SimpleNamespace(
        UnownedMemory=UnownedMemory,
        MemoryPointer=MemoryPointer,
        Device=Device,
        alloc=alloc,
        runtime=runtime,
        get_current_stream=lambda: None,
    )
    return SimpleNamespace(
        ndarray=ndarray,
        cuda=cuda,
        get_default_memory_pool=lambda: pool,
        get_default_pinned_memory_pool=lambda: pool,
    )
