"""Deferred parts of a restored state: large groups, and displayed values (`Out`).

Deferred variables are placeholders until a cell's bytecode, or that of a function within its reach, names one of their
group. The group is then read before the cell runs. In think time the others are read, one group after another. Each
group is proven before it is unpickled. A group with a failed proof stays a placeholder with a message, and the user
is told.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from gresshopper import clock

from . import adapters, effects, gc_pause, names, restore, settings
from .lost import Lost, Pending, is_read
from .namespace import DISPLAYED, SHOWN, Namespace, outputs_of

#: Groups from so many bytes on are read later.
LARGE = 1024 * 1024
#: Seconds of think time after which the reading of group after group pauses.
AT_ONCE = 0.01


def waiting(snapshot: restore.Snapshot, large: bool, shown: bool) -> dict[int, list[str]]:
    """Groups of a state with deferrable variables, and these variables: those of `large` groups, and `shown`
    values."""
    entries = list(snapshot.units.values())
    # The libraries may not be loaded yet.
    running = tuple(adapters.entries("events", adapters.known()))
    unnamed = (*_UNNAMED, *adapters.entries("unnamed", adapters.known()))
    if any(kind.startswith(running) for entry in entries for kind in entry.said["types"]):
        return {}  # a widget's events run code of the notebook beside the cells
    found = {}
    for entry in entries:
        said = entry.said
        if said["gone"] or said.get("redo") or any(m.startswith("c:") for m in said["m"]):
            continue
        if any(kind.startswith(unnamed) for kind in said["types"]):
            continue
        names = entry.names if large and _size(said) >= LARGE else _shown(entry) if shown else []
        if names:
            found[int(said["u"])] = names
    return found


#: Beginnings of the names of types whose objects are reached without a variable: through an own module.
_UNNAMED = ("gresshopper.state.singles.",)


def _shown(entry: restore.Entry) -> list[str]:
    """Displayed values of a group, if they can be read apart and loading runs no code of the notebook's."""
    if entry.said["c"]:
        return []
    names = entry.names[entry.first :]
    return names if all(effects.shown(name) for name in names) else []


def _size(said: Any) -> int:
    ref = said["s"]
    stream = ref["in"][1] if "in" in ref else ref["n"]
    return int(stream) + sum(int(blob[0]) for blob in said["b"])


class Deferred:
    """Unread variables of one restored state."""

    def __init__(
        self,
        loader: restore.Loader,
        waiting: Mapping[int, Collection[str]],
        shell: Any,
        setter: Callable[[Any], None],
        tell: Callable[[dict[str, str], list[str]], None],
    ) -> None:
        self._loader, self._shell, self._set, self._tell = loader, shell, setter, tell
        self._units = loader.snapshot.units
        self._waiting = dict(waiting)
        self._stands: dict[int, dict[str, Pending]] = {}
        self._owner = {name: uid for uid, entry in self._units.items() for name in entry.names}
        self._shown = [name for name in self._owner if effects.shown(name)]
        self._gate = _Gate(self)

    def begin(self) -> None:
        """Put placeholders, read what callbacks and other settings reach, and look at each cell before it runs."""
        for uid, waiting in self._waiting.items():
            self._stands[uid] = {name: Pending(name) for name in waiting}
            self._set(dict(self._stands[uid]))
        self._shell.ast_transformers.append(self._gate)
        # Callbacks and transformers of input run before the cell is looked at.
        codes = map(names.names_of_code, settings.read_codes)
        self._reach([*settings.read_names, *(name for found in codes for name in self._named(found))])

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def need(self, found: names.Names) -> None:
        """Read the groups within reach of code with these names, also through functions and classes."""
        self._reach(self._named(found))

    def _reach(self, first: Iterable[str]) -> None:
        stack, seen, shown = list(first), set[int](), self._shown
        while stack:
            name = stack.pop()
            if name in DISPLAYED:
                # Once: the user's own `_` is among them.
                stack, shown = [*stack, *shown], []
            if name in self._owner:
                stack += self._within(self._owner[name], seen)

    def _within(self, uid: int, seen: set[int]) -> list[str]:
        """Read a group and its classes' groups, unless they were seen. Returns the names within their reach."""
        found, groups = [], [uid]
        while groups:
            uid = groups.pop()
            if uid in seen:
                continue
            seen.add(uid)
            if uid in self._waiting:
                self._read(uid)
            groups += self._loader.within(uid)
            found += self._units[uid].names
            if self._units[uid].said["dyn"]:  # it holds the namespace, say
                found += self._owner
            for code in self._loader.codes.get(uid, ()):
                found += self._named(names.names_of_code(code))
            for name in self._units[uid].names:
                found += names.named_in(self._shell.user_ns.get(name))
        return found

    def _named(self, found: names.Names) -> Collection[str]:
        """Variables that code names, also within a string: pandas' `query` and SQL find a frame that way."""
        if found.dynamic or not names.SHELL.isdisjoint(found.names):
            return self._owner
        return found.names | found.words

    def one(self) -> None:
        """Read the next group."""
        if self._waiting:
            self._read(next(iter(self._waiting)))

    def some(self) -> None:
        """Read for a moment."""
        started = clock.now()
        while self._waiting and clock.now() - started < AT_ONCE:
            self.one()

    def all(self) -> None:
        """Read what is left."""
        while self._waiting:
            self.one()

    @property
    def pending(self) -> Collection[int]:
        """The groups that are still to be read."""
        return self._waiting.keys()

    def drop(self) -> None:
        """Read nothing any more."""
        self._waiting.clear()
        self._loader.codes.clear()
        for name, stand in (item for stands in self._stands.values() for item in stands.items()):
            is_read(stand, Lost(name, "the kernel was reset before it was read"))
        self._stands.clear()
        with contextlib.suppress(ValueError):
            self._shell.ast_transformers.remove(self._gate)

    def size(self) -> tuple[int, int]:
        """How many groups are still to be read, and their bytes."""
        return len(self._waiting), sum(_size(self._units[uid].said) for uid in self._waiting)

    def _read(self, uid: int) -> None:
        waiting, stands = self._waiting.pop(uid), self._stands.pop(uid)
        told = len(self._loader.notices)
        lost: dict[str, str] = {}
        try:
            with gc_pause.Paused():
                values = self._loader.values(uid)
            self._loader.forget()
        except Exception as e:
            lost = dict.fromkeys(stands, f"it couldn't be read: {e}")
            values = {name: Lost(name, why) for name, why in lost.items()}
        except BaseException:  # the user interrupts: it is read the next time
            self._waiting[uid], self._stands[uid] = waiting, stands
            raise
        for name, stand in stands.items():
            is_read(stand, values[name])
        if lost or len(self._loader.notices) > told:
            self._tell(lost, self._loader.notices[told:])
        space = self._shell.user_ns
        # A variable that the user has set meanwhile stays.
        found = {name: values[name] for name in stands if space.get(name) is stands[name]}
        for shown in SHOWN:
            for name, stand in stands.items():
                if space.get(shown) is stand:
                    found[shown] = values[name]
        self._set(found)
        displayed = outputs_of(self._shell)
        for name, stand in stands.items():
            number = int(name[1:]) if name[1:].isdigit() else 0
            if number and displayed.get(number) is stand:
                displayed[number] = values[name]  # though its variable was deleted
        if not self._waiting:
            self.drop()


class _Gate(ast.NodeTransformer):
    """Sees each cell, silent ones too, before the cell runs; changes nothing."""

    def __init__(self, deferred: Deferred) -> None:
        self._deferred = deferred

    def visit(self, node: Any) -> Any:
        """Have what the cell needs read."""
        try:
            code = compile(node, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            self._deferred.need(names.names_of_code(code))
        except Exception:  # whatever can't be looked at gets everything
            self._deferred.all()
        return node


class Unread:
    """The unread parts of the state that was restored last, if there are any."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._deferred: Deferred | None = None

    def begin(
        self,
        loader: restore.Loader,
        waiting: Mapping[int, Collection[str]],
        setter: Callable[[Any], None],
        tell: Callable[[dict[str, str], list[str]], None],
    ) -> Collection[int]:
        """Defer these groups; returns the groups that are still to be read, at any time."""
        self._deferred = Deferred(loader, waiting, self._namespace.shell, setter, tell)
        self._deferred.begin()
        return self._deferred.pending

    def __bool__(self) -> bool:
        return bool(self._deferred)

    def read_all(self) -> None:
        """Read what is left."""
        if self._deferred is not None:
            with self._namespace.as_in_a_cell():
                self._deferred.all()

    def read_some(self) -> None:
        """Read for a moment."""
        if self._deferred is not None:
            with self._namespace.as_in_a_cell():
                self._deferred.some()

    def drop(self) -> None:
        """Read nothing any more."""
        if self._deferred is not None:
            self._deferred.drop()
            self._deferred = None

    def size(self) -> tuple[int, int]:
        """How many groups are still to be read, and their bytes."""
        return (0, 0) if self._deferred is None else self._deferred.size()
