"""jax's half: the buffers behind its arrays out and in.

In jax up to 0.10 a deleted array takes a new buffer in place (`ArrayImpl._replace_with`). The object, the sharding and
the owners stay, and arrays with a common buffer share a buffer again. From 0.11 on jax replaces only living arrays, on
the same device, so the driver takes everything. A trial on the CPU tells which way works.

Device memory is only freed if XLA gives it back. With XLA's usual allocator, which keeps all memory, the driver takes
everything, too, and the user reads the setting for another allocator. Arrays over several devices are refused by name.

jax looks for devices once and keeps the result: an answer without a GPU must be forgotten when a GPU comes.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from typing import Any, Callable

from ._host import Pin, address
from ._move import Found
from ._torch import within

#: XLA's allocators that give memory back to the driver when an array goes.
_GIVES_BACK = ("platform",)
_ALLOCATOR = "XLA_PYTHON_CLIENT_ALLOCATOR"
#: jax's names of backends with GPUs.
_GPU_BACKENDS = ("cuda", "rocm", "gpu")


class BufferBlock:
    """One buffer and all arrays over it."""

    def __init__(self, jax: Any, arrays: list[Any]) -> None:
        self._jax = jax
        self.arrays = arrays
        first = arrays[0]
        self.nbytes = int(first.nbytes)
        self._shape, self._dtype, self._sharding = first.shape, first.dtype, first.sharding

    def _host(self, buffer: memoryview) -> Any:
        """The host's copy as numpy sees it."""
        np = sys.modules["numpy"]
        return np.frombuffer(buffer, dtype=np.uint8, count=self.nbytes).view(self._dtype).reshape(self._shape)

    def copy_out(self, to: memoryview) -> None:
        first = self.arrays[0]
        # An array keeps the numpy copies made of it: a copy asked through another array goes with the latter.
        passing = first._rewrap_with_aval_and_sharding(first.aval, first.sharding)
        self._host(to)[...] = sys.modules["numpy"].asarray(passing)

    def free(self) -> None:
        for array in self.arrays:
            array.delete()

    def allocate(self) -> None:
        """The copy in takes the memory."""

    def copy_in(self, source: memoryview) -> None:
        host = self._host(source)
        new = self._jax.device_put(host, self._sharding)
        # The copy may be under way still, and reads the host's memory.
        new.block_until_ready()
        if new.unsafe_buffer_pointer() == address(source):
            # A device with the host's memory takes the copy as is; the buffer is reused.
            new = self._jax.device_put(host.copy(), self._sharding)
        for array in self.arrays:
            array._replace_with(new)


def can_refill(jax: Any) -> bool:
    """Whether this jax gives a deleted array a new buffer: tried with a number on the CPU."""
    try:
        host = jax.devices("cpu")[0]
        array, other = (jax.device_put(sys.modules["numpy"].zeros(1, "u1"), host) for _ in range(2))
        array.delete()
        array._replace_with(other)
        return not array.is_deleted()
    except Exception:
        return False


class JaxHalf:
    """What jax holds."""

    name = "jax"

    def __init__(self, on_device: Callable[[Any], bool] | None = None) -> None:
        #: Tests without a GPU let a CPU device take its place.
        self._on_device = on_device or (lambda device: device.platform != "cpu")
        self._refills: bool | None = None
        #: Backends that jax found while a GPU existed.
        self._found_with_gpu: Any = None

    def renew(self) -> None:
        """Has jax look for the GPU again after a look without one. Arrays on the CPU stay, and compiled functions are
        compiled again."""
        bridge = sys.modules.get("jax._src.xla_bridge")
        backends = getattr(bridge, "_backends", None)
        if not backends or backends is self._found_with_gpu or set(backends) != {"cpu"}:
            return
        wanted = getattr(getattr(self._jax, "config", None), "jax_platforms", None)
        if wanted and not any(name.strip() in _GPU_BACKENDS for name in wanted.split(",")):
            return
        why = self._why_not_again(getattr(bridge, "_backend_factories", {}))
        if why is None:
            try:
                importlib.import_module("jax.extend.backend").clear_backends()
                return
            except Exception as error:
                why = f"it can't be had to look again ({error})"
        # Said once for each answer, and not at each cell.
        self._found_with_gpu = backends
        if why:
            text = f"jax looked for a GPU before this kernel had one and goes on without: {why}."
            warnings.warn(f"{text} Restart the kernel to use jax with a GPU.", stacklevel=2)

    def _why_not_again(self, factories: Any) -> str | None:
        """Why jax can't look again: empty where it has nothing to look with."""
        if not any(name in factories for name in _GPU_BACKENDS):
            tried = any(name.startswith(("jax_plugins.xla_cuda", "jax_plugins.cuda")) for name in sys.modules)
            return "its CUDA plugin gave up at once" if tried else ""
        live = self._jax.live_arrays() if self._jax is not None else []
        bound = sum(1 for array in live if getattr(array, "_committed", False) and not array.is_deleted())
        if bound:
            return f"{bound} arrays were put on the CPU's device by name and wouldn't go together with new ones"
        return None

    def settle(self) -> None:
        """Notes that jax found its present backends on a machine with a GPU."""
        self._found_with_gpu = getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None) or None

    @property
    def _jax(self) -> Any:
        return sys.modules.get("jax")

    def loaded(self) -> bool:
        return bool(self._live())

    def _live(self) -> list[Any]:
        jax = self._jax
        if jax is None or not hasattr(jax, "live_arrays"):
            return []
        bridge = sys.modules.get("jax._src.xla_bridge")
        # Asking for arrays would start the backends: where none has been started, there are none.
        if bridge is None or not getattr(bridge, "_backends", None):
            return []
        return [a for a in jax.live_arrays() if not a.is_deleted() and self._is_held(a)]

    def _is_held(self, array: Any) -> bool:
        kind = getattr(array.sharding, "memory_kind", None)
        in_host = kind is not None and "host" in kind and any(d.platform != "cpu" for d in array.devices())
        return not in_host and any(self._on_device(device) for device in array.devices())

    def find(self) -> Found:
        live = self._live()
        size = sum(int(a.nbytes) for a in live)
        what = f"{len(live)} jax arrays ({size >> 20} MiB)"
        if os.environ.get(_ALLOCATOR, "").lower() not in _GIVES_BACK:
            return Found(
                refusals=[
                    f"{what} lie in memory that jax keeps for itself until the process ends; with "
                    f"{_ALLOCATOR}=platform in its environment they could be copied out"
                ]
            )
        if self._refills is None:
            self._refills = can_refill(self._jax)
        if not self._refills:
            version = getattr(self._jax, "__version__", "this version")
            return Found(
                refusals=[f"{what} are on the device, and jax {version} can't give them other memory in place"]
            )
        spread = [a for a in live if len(a.devices()) > 1]
        found = Found(refusals=[f"{len(spread)} jax arrays are spread over several devices"] if spread else [])
        buffers: dict[tuple[Any, int], list[Any]] = {}
        for array in live:
            if len(array.devices()) == 1 and array.nbytes:
                (device,) = array.devices()
                buffers.setdefault((device, array.unsafe_buffer_pointer()), []).append(array)
        for (_, pointer), arrays in buffers.items():
            if len({(a.shape, a.dtype) for a in arrays}) > 1:
                found.refusals.append(f"{len(arrays)} jax arrays of different shapes share one buffer ({pointer:#x})")
            else:
                found.blocks.append(BufferBlock(self._jax, arrays))
        return found

    def sync(self, deadline: float) -> None:
        live = self._live()
        within(deadline, lambda: self._wait(live), "jax is still at work")

    def _wait(self, live: list[Any]) -> None:
        for array in live:
            array.block_until_ready()

    def empty_caches(self) -> None:
        # Memory that XLA's allocator gives back goes with the arrays.
        return

    def pin(self) -> Pin | None:
        return None

    def unpin(self) -> Callable[[int], None] | None:
        return None
