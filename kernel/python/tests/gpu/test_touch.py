"""Which cells may touch what."""

from __future__ import annotations

from typing import Any

import pytest
from gresshopper.gpu._touch import may_touch


class OnDevice:
    pass


class Holder:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def use(self) -> Any:
        return self.inner


thing = OnDevice()


def uses() -> Any:
    return thing


def closing(inner: Any) -> Any:
    return lambda: inner


SPACE = {
    "a": OnDevice(),
    "n": 5,
    "listed": [[1, {"k": OnDevice()}]],
    "held": Holder(OnDevice()),
    "plain": Holder([1, 2]),
    "uses": uses,
    "numbers": list(range(100)),
    "closure": closing(OnDevice()),
    "big": [object() for _ in range(30_000)],
}


@pytest.mark.parametrize(
    ("code", "may"),
    [
        ("n + 1", False),
        ("a + 1", True),
        ("listed[0]", True),
        ("held.use()", True),
        ("plain.use()", False),
        ("uses()", True),
        ("closure()", True),
        ("sum(numbers)", False),
        ("import cupy", True),
        ("from jax import numpy", True),
        ("import math", False),
        ("eval('a')", True),
        ("big", True),
        ("%timeit n", True),
        ("n = ", False),
        ("unknown", False),
    ],
)
def test_cells(code: str, may: bool) -> None:
    assert may_touch(code, SPACE, lambda o: isinstance(o, OnDevice), {"cupy", "jax"}) is may
