"""cupy's half: the memory behind arrays out and in, and empty pools.

An array's initialiser moves the array's pointer to other memory: the object, shape, base and strides stay. Arrays over
memory of other libraries are refused by name.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Any, Callable

from gresshopper import typenames

from ._host import Pin, address
from ._move import Found
from ._torch import within


class MemoryBlock:
    """An allocation and all arrays in it."""

    def __init__(self, cupy: Any, memory: Any) -> None:
        self._cupy = cupy
        self._device = memory.device_id
        self.nbytes = int(memory.size)
        self._address = int(memory.ptr)
        self._pointer: Any = cupy.cuda.MemoryPointer(memory, 0)
        self.arrays: list[tuple[Any, int]] = []

    def add(self, array: Any) -> None:
        self.arrays.append((array, int(array.data.ptr) - self._address))

    def _point_at(self, memory: Any) -> None:
        for array, offset in self.arrays:
            # In place: views keep sharing a pointer, and shape, strides and base stay.
            array.data.__init__(memory, offset)

    def copy_out(self, to: memoryview) -> None:
        with self._cupy.cuda.Device(self._device):
            self._pointer.copy_to_host_async(
                ctypes.c_void_p(address(to)), self.nbytes, self._cupy.cuda.get_current_stream()
            )

    def free(self) -> None:
        # A null pointer has no offset, so the old address is kept.
        nowhere = self._cupy.cuda.UnownedMemory(self._address, self.nbytes, None, self._device)
        self._point_at(nowhere)
        self._pointer = None

    def allocate(self) -> None:
        with self._cupy.cuda.Device(self._device):
            self._pointer = self._cupy.cuda.alloc(self.nbytes)
        self._address = int(self._pointer.ptr)
        self._point_at(self._pointer.mem)

    def copy_in(self, source: memoryview) -> None:
        with self._cupy.cuda.Device(self._device):
            self._pointer.copy_from_host_async(
                ctypes.c_void_p(address(source)), self.nbytes, self._cupy.cuda.get_current_stream()
            )


#: The CUDA runtime's answer without a device in sight.
_NO_DEVICE = 100


class CupyHalf:
    """What cupy holds."""

    name = "cupy"

    def stuck(self) -> str | None:
        """Why a present GPU can't be used. cupy itself keeps no answer; the CUDA runtime below may."""
        runtime = getattr(getattr(self._cupy, "cuda", None), "runtime", None)
        if runtime is None or not hasattr(runtime, "getDeviceCount"):
            return None
        try:
            seen = runtime.getDeviceCount() > 0
        except Exception as error:
            seen = getattr(error, "status", None) != _NO_DEVICE
        if seen:
            return None
        return (
            "cupy sees no GPU although there is one: the CUDA runtime was asked before this kernel had one and keeps the "
            "answer. Restart the kernel."
        )

    @property
    def _cupy(self) -> Any:
        return sys.modules.get("cupy")

    def loaded(self) -> bool:
        cupy = self._cupy
        return cupy is not None and hasattr(cupy, "ndarray") and any(True for _ in self._arrays())

    def _arrays(self) -> list[Any]:
        kind = self._cupy.ndarray
        return [o for o in gc.get_objects() if issubclass(type(o), kind) and o.nbytes]

    def find(self) -> Found:
        found = Found()
        cupy = self._cupy
        blocks: dict[tuple[int, int], MemoryBlock] = {}
        foreign = 0
        for array in self._arrays():
            memory = array.data.mem
            kind = typenames.name_of(type(memory))
            if kind == "ManagedMemory":
                found.managed = True
            if kind not in ("PooledMemory", "Memory"):
                foreign += 1
                continue
            key = (memory.device_id, int(memory.ptr))
            if key not in blocks:
                blocks[key] = MemoryBlock(cupy, memory)
            blocks[key].add(array)
        found.blocks = list(blocks.values())
        if foreign:
            found.refusals.append(f"{foreign} cupy arrays lie over memory that cupy's pool doesn't own")
        return found

    def sync(self, deadline: float) -> None:
        within(deadline, self._cupy.cuda.runtime.deviceSynchronize, "the device is still at work")

    def empty_caches(self) -> None:
        # Blocks are dropped by reference count; what is left in the pools is free.
        self._cupy.get_default_memory_pool().free_all_blocks()
        self._cupy.get_default_pinned_memory_pool().free_all_blocks()
        if hasattr(self._cupy, "fft"):
            self._cupy.fft.config.get_plan_cache().clear()

    def pin(self) -> Pin | None:
        register = self._cupy.cuda.runtime.hostRegister

        def pin(address: int, size: int) -> None:
            register(address, size, 0)

        return pin

    def unpin(self) -> Callable[[int], None] | None:
        unregister: Callable[[int], None] = self._cupy.cuda.runtime.hostUnregister
        return unregister
