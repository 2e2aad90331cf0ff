"""Frameworks whose memory can't be moved from inside: refused by name, so the driver's checkpoint takes everything."""

from __future__ import annotations

import sys
from typing import Any, Callable

from ._host import Pin
from ._move import Found


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


def _tensorflow_uses(context: Any) -> bool:
    """Whether TensorFlow has looked for its devices, and found a GPU. Asking it otherwise would make it look."""
    made = getattr(context, "_context", None)
    if made is None or not getattr(made, "_initialized", False):
        return False
    return bool(sys.modules["tensorflow"].config.list_logical_devices("GPU"))


def others() -> list[Any]:
    """Those that are only named."""
    return [
        NamedHalf("tensorflow", "tensorflow.python.eager.context", _tensorflow_uses),
        NamedHalf("numba.cuda", "numba.cuda.cudadrv.devices", lambda m: bool(m.gpus.lst)),
        NamedHalf("pycuda", "pycuda.driver", lambda m: m.Context.get_current() is not None),
    ]
