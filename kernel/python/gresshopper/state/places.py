"""Containers of the interpreter's that a variable holds too: `from sys import path`.

A capture writes such a container as its place in `sys`. After a restore the variable holds the new process's container.
The content belongs to the process, or has a section of its own.
"""

from __future__ import annotations

import sys
from typing import Any

_TYPES = frozenset({dict, list, set})


class Held:
    """Written before all else of a dump. From then on the object itself is known as written."""

    def __init__(self, held: Any, name: str) -> None:
        self.held, self.name = held, name


class Known:
    """Written after a `Held` object's place."""

    def __init__(self, of: Held) -> None:
        self.of = of

    def take_its_place(self, pickler: Any) -> None:
        """Have the pickler know the object itself in the stand of `Held`, under the same number."""
        memo = pickler.memo
        memo = dict(memo) if isinstance(memo, dict) else memo.copy()
        number, _ = memo.pop(id(self.of))
        memo[id(self.of.held)] = number, self.of.held
        pickler.memo = memo


def direct(values: Any) -> list[Held]:
    """Places of the objects among these variables' values that `sys` holds."""
    if not isinstance(values, list):
        return []
    wanted = {id(value): value for value in values if type(value) in _TYPES}
    if not wanted:
        return []
    there = {id(value): name for name, value in list(vars(sys).items()) if not name.startswith("_")}
    return [Held(value, there[at]) for at, value in wanted.items() if at in there]
