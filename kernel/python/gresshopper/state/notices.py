"""The losses that the user knows of: each is told once while its placeholder stands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .lost import Lost
from .namespace import Namespace


class Notices:
    """The lost variables of which the user of one kernel was told."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        #: The ids of their values, by name.
        self._told: dict[str, int] = {}

    def news(self, lost: Mapping[str, str]) -> dict[str, str]:
        """The lost variables of which the user has not been told. It is done now."""
        new = {name: why for name, why in lost.items() if name not in self._told}
        self.know(new)
        return new

    def know(self, names: Iterable[str]) -> None:
        """Note that the user knows of the loss of these variables."""
        space = self._namespace.variables
        self._told.update({name: id(space[name]) for name in names if name in space})

    def forget(self, names: Iterable[str] | None = None) -> None:
        """Note that these variables hold other values now. None means all variables."""
        gone = self._told.keys() if names is None else set(names)
        self._told = {name: was for name, was in self._told.items() if name not in gone}

    def lost_anew(self, names: Iterable[str]) -> None:
        """Note that these variables' groups hold what can't be saved, beside the placeholders: its loss will be news."""
        space = self._namespace.variables
        self.forget(name for name in names if type(space.get(name)) is not Lost)

    def standing(self) -> list[str]:
        """The variables that are lost and known to be. A variable that was set anew, and is lost again, is told of again."""
        space = self._namespace.variables
        stands = ((n, was, space[n]) for n, was in self._told.items() if n in space)
        self._told = {n: was for n, was, value in stands if type(value) is Lost or id(value) == was}
        return sorted(self._told)
