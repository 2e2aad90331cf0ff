"""How many of many like cases a run tries: some are marked `thorough`, which `make test` leaves to `make test-all`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def one_in(number: int, some: Iterable[Any], name: Callable[[Any], str], first: int = 0) -> list[Any]:
    """Parameters of a test: one case in `number`, beginning with that at `first`, isn't `thorough`."""
    return [
        pytest.param(case, id=name(case), marks=() if at % number == first else pytest.mark.thorough)
        for at, case in enumerate(some)
    ]


def chosen(request: pytest.FixtureRequest) -> list[Any]:
    """The cases that this run tries in the file of the test that asks: markers and `-k` have left out the others."""
    own = [item for item in request.session.items if item.path == request.node.path]
    params = [item.callspec.params for item in own if hasattr(item, "callspec")]
    return [param["case"] for param in params if "case" in param]
