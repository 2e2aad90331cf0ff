"""A FAKE torch for kernels: what the guard looks at of the real one, and blocks on a FAKE device beside a context of
the fake libcuda (tests/fakes), as a framework would have them."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

#: What reached the driver.
calls: list[str] = []
version = types.SimpleNamespace(cuda="13.0")
_halves: list[Any] = []


def _is_available() -> bool:
    calls.append("is_available")
    return True


cuda = types.SimpleNamespace(
    is_available=_is_available,
    device_count=lambda: 1,
    _lazy_init=lambda: calls.append("init"),
    is_initialized=lambda: bool(calls),
)


def hold(content: bytes) -> None:
    """Takes device memory, as the first tensor does."""
    import fake_context
    from fakes import FakeDevice, FakeHalf
    from gresshopper import gpu

    cuda._lazy_init()
    fake_context.hold()
    half = FakeHalf(FakeDevice(4 * len(content)), [content, content[::-1]])
    _halves.append(half)
    gpu.keeper().halves = [half]


def content() -> bytes:
    """Touches it, as an operation does."""
    from gresshopper import gpu

    keeper = gpu.keeper()
    if not keeper.usable:
        keeper.ensure("torch's add needs it")
    one, two = _halves[-1].contents()
    assert one == two[::-1]
    return bytes(one)
