"""The user's variables: their order, and the ones that changed since the last capture."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable
from typing import Any

#: Tells an object by its address. Each call of `id` is told to those who listen to Python's audit events, us among them.
_place_of = object.__hash__


class Look:
    """A look at the namespace: the user's variables, their places, and the moved ones."""

    __slots__ = ("_namespace", "changed", "ids", "names", "newer", "shown")

    def __init__(
        self,
        namespace: dict[str, Any],
        names: list[str],
        ids: list[int],
        shown: set[str],
        changed: set[str],
        newer: list[str] | None,
    ) -> None:
        self._namespace, self.names, self.ids, self.shown, self.changed = namespace, names, ids, shown, changed
        #: The user's variables behind the variables of the previous look, if the two orders differ in nothing else.
        self.newer = newer

    def __contains__(self, name: str) -> bool:
        return name in self.shown

    def __getitem__(self, name: str) -> Any:
        return self._namespace[name]


class Variables:
    """The variables of one namespace, as of the last capture."""

    def __init__(self, namespace: dict[str, Any], hidden: Callable[[str, Any], bool]) -> None:
        self._namespace, self._hidden = namespace, hidden
        self._names: list[str] = []
        self._ids: list[int] = []
        #: Names of the user's variables. Never changed in place; another object once the names or their order change.
        self.shown: set[str] = set()
        #: The set of which `order` was last asked, and its answer.
        self._ordered: tuple[set[str], list[str]] = (self.shown, [])

    def look(self) -> Look:
        """The variables that are the user's now."""
        names, ids = list(self._namespace), list(map(_place_of, self._namespace.values()))
        known = len(self._names)
        goes_on = names[:known] == self._names
        if goes_on:  # what is new comes last, unless something was deleted
            changed = {*itertools.compress(names, map(operator.ne, ids, self._ids)), *names[known:]}
        else:
            changed = {name for name, _ in set(zip(names, ids)) ^ set(zip(self._names, self._ids))}
        there = (name for name in changed if isinstance(name, str) and name in self._namespace)
        now = {name for name in there if not self._hidden(name, self._namespace[name])}
        shown, gone = self.shown, changed - now
        newer = None
        if goes_on and gone.isdisjoint(shown):
            newer = [name for name in names[known:] if name in now]
            newer = newer if len(newer) == len(now - shown) else None
        if newer != []:
            shown = (shown | now) - gone
        return Look(self._namespace, names, ids, shown, changed, newer)

    def keep(self, look: Look) -> None:
        """What a look saw was captured."""
        if look.newer and self._ordered[0] is self.shown:
            self._ordered = look.shown, [*self._ordered[1], *look.newer]
        self._names, self._ids, self.shown = look.names, look.ids, look.shown

    def reset(self) -> None:
        """Know of no variable any more."""
        self._names, self._ids, self.shown = [], [], set()

    def order(self) -> list[str]:
        """The variables in the order in which the namespace holds them."""
        if self._ordered[0] is not self.shown:
            self._ordered = self.shown, [name for name in self._names if name in self.shown]
        return self._ordered[1]

    def resettle(self, names: Iterable[str]) -> None:
        """Notes that these variables now hold their units' content, read only now."""
        places = {name: i for i, name in enumerate(self._names)}
        for name in names:
            if name in places and name in self._namespace:
                self._ids[places[name]] = _place_of(self._namespace[name])
