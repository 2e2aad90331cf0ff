"""Keeps a standby's namespace equal to its executor's, record by record (docs/agent-wire.md, `state.apply`).

A changed group is read anew and replaces the old one, as do groups with instances of a changed class. Replaced
objects go without a trace. If their end would run code (a finalizer), or if following is impossible for another
reason, the standby must be rebuilt. Unsavable values are placeholders here: no cell runs again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from gresshopper import typenames

from . import form, gc_pause, process, restore
from .session import Session, title
from .shipped import cloudpickle
from .store import Store

#: Modules of types whose finalizer does nothing but close.
_HARMLESS = ("_io", "io", "builtins")
#: Types that run something at their end without a finalizer of their own.
_RUNS = frozenset({"tempfile.TemporaryDirectory", "weakref.finalize"})


class RebuildError(Exception):
    """This namespace can't follow; says why. It may be half changed: another has to be built."""


class Follower:
    """A namespace that was restored, and follows."""

    def __init__(
        self,
        snapshot: restore.Snapshot,
        store: Store,
        session: Session,
        set_names: Callable[[dict[str, Any]], None],
    ) -> None:
        self.snapshot, self._store, self._session, self._set = snapshot, store, session, set_names
        # The history of all records is no longer needed: `units` has the present state.
        snapshot.records = []
        self._broken: str | None = None

    def apply(self, record: form.Record) -> restore.Told:
        """Have the variables as they are after a record.

        # Errors
        `RebuildError`.
        """
        if self._broken is not None:
            raise RebuildError(self._broken)
        self._broken = "a record before it couldn't be applied"
        try:
            told = self._apply(record)
        except RebuildError:
            raise
        except Exception as e:
            raise RebuildError(f"a record couldn't be applied: {typenames.name_of(type(e))}: {e}") from e
        self._broken = None
        return told

    def _apply(self, record: form.Record) -> restore.Told:
        head = record.head
        if head.get("full"):
            raise RebuildError("the record replaces all before it")
        units = self.snapshot.units
        before = {uid: units[uid] for uid in [*head["gone"], *(said["u"] for said in head["units"])] if uid in units}
        self.snapshot.add(record)
        self.snapshot.records = []
        changed = self._with_dependents({said["u"] for said in head["units"]})
        before.update({uid: units[uid] for uid in changed if uid not in before and uid in units})
        self._refuse(before.values(), [units[uid] for uid in changed])
        fresh = set(head["process"])
        sections = {name: self._section(name) for name in fresh}
        loader = restore.Loader(self.snapshot, self._store, self._session)
        process.apply_early(sections, loader.notice)
        staged = self._read(loader, changed)
        there = {name for entry in units.values() for name in entry.names}
        for entry in before.values():
            for name in entry.names:
                if name not in there:
                    self._session.namespace.pop(name, None)
        self._set(staged)
        loader.forget()
        # Sections that say the same as before name variables that hold other objects now.
        sections.update(process.naming(self.snapshot.sections.keys() - fresh, self._section, staged))
        process.apply_anew(sections, fresh, loader.notice)
        for uid in changed:
            loader.notice_of(units[uid])
        return restore.Told(sorted(staged), self._lost(changed, staged), loader.notices, 0.0)

    def _section(self, name: str) -> bytes:
        """A section of the process, as last written."""
        return restore.stream(self.snapshot.sections[name], self._store)

    def _with_dependents(self, changed: set[int]) -> set[int]:
        """These groups, and groups with instances of their classes: a class read anew is a new object."""
        units = self.snapshot.units
        found, added = set(changed), set(changed)
        while added:
            classes = {m[2:] for uid in added for m in units[uid].said["m"] if m.startswith("c:")}
            added = {uid for uid, e in units.items() if uid not in found and not classes.isdisjoint(e.said["c"])}
            found |= added
        return found

    def _refuse(self, before: Iterable[restore.Entry], after: Iterable[restore.Entry]) -> None:
        """Refuse what can't be followed."""
        for entry in after:
            if entry.said["dev"]:
                raise RebuildError(f"{title(entry.said['m'])} is in a GPU's memory")
            if entry.said.get("redo"):
                raise RebuildError(f"{title(entry.said['m'])} is left to its cells")
        for entry in before:
            kind = next((kind for kind in entry.said["types"] if _runs(kind)), None)
            kinds = (self._session.classes.get(cid) for cid in entry.said["c"])
            kind = kind or next(
                (typenames.qualname_of(k) for k in kinds if k is not None and hasattr(k, "__del__")), None
            )
            if kind is not None:
                raise RebuildError(f"a {kind} would run code when it goes")

    def _read(self, loader: restore.Loader, changed: Collection[int]) -> dict[str, Any]:
        units = self.snapshot.units
        for uid in changed:
            for member in units[uid].said["m"]:
                if member.startswith("c:"):
                    _forget_class(self._session.classes.pop(member[2:], None))
        with gc_pause.Paused():
            staged: dict[str, Any] = {}
            for uid in sorted(changed, key=lambda uid: (not any(m[:2] == "c:" for m in units[uid].said["m"]), uid)):
                staged.update(loader._values(uid, units[uid]))
        if loader.failed:
            raise RebuildError("; ".join(sorted(loader.failed.values())))
        return staged

    def _lost(self, changed: Collection[int], staged: Mapping[str, Any]) -> dict[str, str]:
        part = restore.Snapshot([])
        part.told = self.snapshot.told
        part.units = {uid: self.snapshot.units[uid] for uid in changed}
        return restore.lost_in(part, staged)


def _forget_class(cls: type | None) -> None:
    """Have a class made anew, with its present bases and members; cloudpickle would reuse the earlier class."""
    known = cloudpickle.cloudpickle
    number = None if cls is None else known._DYNAMIC_CLASS_TRACKER_BY_CLASS.pop(cls, None)
    if number is not None:
        known._DYNAMIC_CLASS_TRACKER_BY_ID.pop(number, None)


def _runs(kind: str) -> bool:
    """Whether the end of an object of this type runs code with visible effects."""
    module, _, name = kind.rpartition(".")
    if kind in _RUNS:
        return True
    if module in _HARMLESS:
        return False
    return hasattr(getattr(sys.modules.get(module), name, None), "__del__")
