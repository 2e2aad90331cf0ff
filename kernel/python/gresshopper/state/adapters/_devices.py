"""Arrays of cupy and jax, whose own pickling reads the device."""

from __future__ import annotations

import sys
from typing import Any

from ..writing import Writing
from . import Adapter, Rule


def _device_array(dump: Writing, array: Any) -> Any:
    """cupy's and jax's own pickling reads the device."""
    dump.on_a_device()
    return NotImplemented


def _bases() -> list[tuple[Any, Rule]]:
    kinds = [
        getattr(sys.modules.get(library), name, None) for library, name in (("cupy", "ndarray"), ("jax", "Array"))
    ]
    return [(kind, _device_array) for kind in kinds if isinstance(kind, type)]


ADAPTER = Adapter(modules=("cupy", "jax"), bases=_bases)
