"""Frameworks whose memory can't be moved from inside: refused by name, so the driver's checkpoint takes everything.

A jax array can't be given other memory of the same device without that its owner's code may go on computing with it
elsewhere (jaxlib replaces buffers only while both are alive), so live jax arrays are refused.
"""

from __future__ import annotations

import sys
from typing import Any, Callable

from ._host import Pin
from ._move import Found


class JaxHalf:
    """jax: nothing is moved; what is live is named."""

    name = "jax"

    def loaded(self) -> bool:
        return bool(self._live())

    def _live(self) -> list[Any]:
        jax = sys.modules.get("jax")
        if jax is None or not hasattr(jax, "live_arrays"):
            return []
        bridge = sys.modules.get("jax._src.xla_bridge")
        # Asking for arrays would start the backends: where none has been started, there are none.
        if bridge is None or not getattr(bridge, "_backends", None):
            return []
        return [a for a in jax.live_arrays() if not a.is_deleted() and any(d.platform != "cpu" for d in a.devices())]

    def find(self) -> Found:
        live = self._live()
        size = sum(int(a.nbytes) for a in live)
        return Found(refusals=[f"{len(live)} jax arrays ({size >> 20} MiB) are on the device; jax can't move them"])

    def sync(self, deadline: float) -> None:
        pass

    def empty_caches(self) -> None:
        pass

    def pin(self) -> Pin | None:
        return None

    def unpin(self) -> Callable[[int], None] | None:
        return None


class NamedHalf:
    """A framework that is known to use the device and isn't known to give anything back."""

    def __init__(self, name: str, module: str, in_use: Callable[[Any], bool]) -> None:
        self.name = name
        self._module = module
        self._in_use = in_use

    def loaded(self) -> bool:
        module = sys.modules.get(self._module)
        try:
            return module is not None and bool(self._in_use(module))
        except Exception:
            return False

    def find(self) -> Found:
        return Found(
            refusals=[f"{self.name} uses the device and can't be asked to give it back"], managed=None, ipc=None
        )

    def sync(self, deadline: float) -> None:
        pass

    def empty_caches(self) -> None:
        pass

    def pin(self) -> Pin | None:
        return None

    def unpin(self) -> Callable[[int], None] | None:
        return None


def others() -> list[Any]:
    """jax, and those that are only named."""
    return [
        JaxHalf(),
        NamedHalf("tensorflow", "tensorflow", lambda tf: bool(tf.config.list_logical_devices("GPU"))),
        NamedHalf("numba.cuda", "numba.cuda.cudadrv.devices", lambda m: bool(m.gpus.lst)),
        NamedHalf("pycuda", "pycuda.driver", lambda m: m.Context.get_current() is not None),
    ]
