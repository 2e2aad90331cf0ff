"""Finds a cell's changes: groups of variables with shared objects, their content, and the process's state.

A capture writes the units with possible changes, compares them with the known content, and yields a `Delta`. It keeps
no reference to a user's object.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Callable, NamedTuple

from gresshopper import clock

from . import (
    gc_pause,
    hooks,
    limits,
    module_entries,
    muting,
    pickling,
    process,
    programs,
    reach,
    recursion,
    settings,
    threads,
    user_modules,
    verify,
)
from . import names as naming
from .buffers import Memories
from .grouping import ATOMS, Grouped, Search
from .session import title
from .store import Store
from .units import Unit, Units, adopted, name_of
from .variables import Look, Variables

#: How many times the pointers of an array of objects its copies take while it is stored, about.
_ITEMS_COPIED = 4
#: Seconds that a trial of a class's own pickling takes beside loading, and how many times as long as writing that takes.
_FORK, _LOADS = 0.02, 3.0
#: Seconds from which on the actual time for content corrects the expected time.
_LEARNT = 0.001


class Changed(NamedTuple):
    """A new or changed unit, with its stream, and with its buffers if the caller asked for everything."""

    unit: Unit
    stream: bytes
    buffers: Sequence[pickling.Buffer] = ()


class Delta(NamedTuple):
    """What changed since the capture before."""

    changed: list[Changed]
    removed: list[int]
    process: dict[str, bytes]
    seconds: float


class Capture:
    """What is known of one namespace."""

    def __init__(self, namespace: dict[str, Any], hidden: Callable[[str, Any], bool], store: Store) -> None:
        self.namespace = namespace
        self.session = pickling.Session(namespace)
        self.memories = Memories(store)
        self.session.unchanged = self.memories.unchanged
        self.store = store
        self._known = Units(self.session)
        #: The groups as last written, by number.
        self.units = self._known.by_number
        self._variables = Variables(namespace, hidden)
        self._process: dict[str, bytes] = {}
        #: What the last audit found in libraries.
        self._libraries: dict[str, bytes] = {}
        self._next = 1
        #: Units with unread parts: unchanged since their save.
        self.pending: Collection[int] = ()
        self._threads = set(threading.enumerate())
        self.programs = programs.Programs()
        #: Whether something ran beside the cells at the last capture: it may have changed anything since, and have ended.
        self._ran_beside = False
        #: Whether the process has hooks of the notebook's; None: as yet unknown.
        self._hooked: bool | None = None
        #: Variables that code handed to libraries reaches: nothing shows where that is kept.
        self._handed: set[str] = set()
        #: How many times as long as expected content took lately: on a busy machine it takes longer.
        self._pace = 1.0
        self.cell = 0
        #: Units that the last cell may have touched, by their former number.
        self.chosen: list[int] = []

    # --- which units to look at ---

    def touched(self, found: naming.Names, visible: Look) -> set[int] | None:
        """Units within reach of code with these names, of hooks, and of objects that couldn't be saved; None means any."""
        if found.dynamic:
            return None
        if self._hooked is None:
            self._hooked = hooks.are_there()
        roots = hooks.roots() if self._hooked else hooks.passing()
        if user_modules.loaded() and any(
            user_modules.is_from_own(self.namespace[name]) for name in found.names if name in self.namespace
        ):
            roots += hooks.of_own_modules()
        named = self._of_variables({*found.names, *self._handed})
        chosen = self._known.close([*named, *(self.units[uid] for uid in self._known.outside)])
        return chosen if chosen is None else self._reached(roots, chosen, visible)

    def _reached(self, roots: list[Any], chosen: set[int] | None, visible: Look) -> set[int] | None:
        """These units, and those within reach of these objects and of the units' parts that couldn't be saved."""
        looked: set[int] = set()
        held: dict[int, str] = {}
        while chosen is not None:
            gone = [] if roots else [uid for uid in chosen if uid not in looked and self.units[uid].gone]
            if not gone and not roots:
                break
            looked.update(gone)
            held = held or {at: name for name, at in zip(visible.names, visible.ids) if name in visible.shown}
            within = reach.reached(roots, held, self._values(gone))
            if not within.whole:
                return None
            more = {unit.uid for unit in self._of_variables(within.names)}
            more |= self._known.holders(within.places, chosen)
            roots, chosen = [], self._known.close(self.units[uid] for uid in chosen | more if uid in self.units)
        return chosen

    def _values(self, uids: Iterable[int]) -> list[Any]:
        """The present values of these units' variables."""
        there = (name for uid in uids for name in self.units[uid].names if name in self.namespace)
        return [self.namespace[name] for name in there]

    def _of_variables(self, found: Iterable[str]) -> list[Unit]:
        """The units of variables with these names."""
        return [unit for unit in map(self._known.owner, map("n:".__add__, found)) if unit is not None]

    def beside(self) -> list[str]:
        """Threads and tasks that may touch the user's objects at any time."""
        running = [f"the thread {thread.name}" for thread in threads.of_user(self._threads, self.namespace)]
        running += [f"the task {name}" for name in threads.tasks_of_user(self.namespace)]
        return running + [f"the callback {name}" for name in threads.callbacks_of_user()]

    def running(self) -> list[str]:
        """The same, and programs that cells started."""
        return self.beside() + [f"the program {name}" for name in self.programs.running()]

    def busy(self) -> list[str]:
        """The same, in sentences."""
        return [f"{one} runs beside the cells" for one in self.running()]

    def away(self) -> list[str]:
        """Groups whose memory is on a GPU and can't be read now, in sentences."""
        held = [unit for unit in self.units.values() if unit.on_device]
        gpu = sys.modules.get("gresshopper.gpu") if held else None
        if gpu is None or not gpu.is_away():
            return []
        return [f"{title(unit.members)}: its memory is with the GPU's driver" for unit in held]

    def reset(self) -> None:
        """Know of no variable any more."""
        for uid in list(self.units):
            self.memories.forget(self.units[uid].buffers)
        self._known.reset()
        self._variables.reset()
        self._process, self.pending = {}, ()
        self._hooked, self._handed = None, set()

    # --- a capture ---

    def run(
        self,
        found: naming.Names | None,
        cell: int = 0,
        arm: bool = False,
        everything: bool = False,
        libraries: bool = True,
    ) -> Delta:
        """Capture the changes. `found`: names that may have been touched; None for an audit of everything.
        `everything`: yield all units, also unchanged ones. `libraries`: an audit also looks for functions that the
        notebook put into libraries.

        # Errors
        `StoreError` if the store can't take it, `Interrupted` at the word of the session's `check`, `NoRoom` for a
        lack of memory. The known state is then as before, and nothing is lost.
        """
        with (
            gc_pause.Paused(),
            recursion.Bounded(),
            muting.muted(),
            limits.roomy(self.session),
            limits.reading_devices(self.session),
        ):
            return self._run(found, cell, arm, everything, libraries)

    def _run(self, found: naming.Names | None, cell: int, arm: bool, everything: bool, libraries: bool) -> Delta:
        started = clock.now()
        self.cell = cell
        visible = self._variables.look()
        if found is not None and found.stored:
            settings.see(found.stored)
        if found is not None:
            self._handed |= hooks.handed(found, visible.shown)
        beside = bool(self.beside())
        chosen = None if found is None or beside or self._ran_beside else self.touched(found, visible)
        called = (self.units[uid].touches for uid in (self.units if chosen is None else chosen))
        module_entries.see(module_entries.may_put(found, called))
        # A group in pieces is noticed in think time; until then the pieces are written as one group.
        work = Search(self.session, self._known, visible, split=arm)
        for name in visible.changed:
            if name in visible.shown:
                work.fresh("n:" + name)
            elif name in self._variables.shown:
                work.lost_member("n:" + name)
        looked_at = [self.units[uid] for uid in (list(self.units) if chosen is None else chosen) if uid in self.units]
        for unit in (
            looked_at if everything else [u for u in looked_at if not self._settled(u, visible, found is None)]
        ):
            work.look(unit)
        self.session.expect(work.seconds())
        final = work.settle()
        if self.session.device is not None:
            self.session.device.has_read()
        buffers = [b for block in final.blocks for b in block.dump.buffers]
        expected = sum(map(self.memories.cost, buffers))
        self.session.room(_ITEMS_COPIED * sum(b.nbytes for b in buffers if b.items is not None and expected))
        expected += sum(_FORK + _LOADS * block.seconds for block in final.blocks if block.dump.suspects)
        self.session.expect(self._pace * expected)
        # From here on it is carried through.
        check, self.session.check = self.session.check, lambda: None
        begun = clock.now()
        try:
            changed, removed = self._adopt(final, arm, everything)
        finally:
            self.session.check, self.session.kept = check, []
        if expected >= _LEARNT:
            self._pace = max(1.0, (self._pace + (clock.now() - begun) / expected) / 2)
        self._variables.keep(visible)
        self._ran_beside = beside
        if everything:
            self._process = {}
        self.chosen = sorted(self.units) if chosen is None else sorted(chosen)
        return Delta(changed, removed, self._process_delta(found is None and libraries), clock.now() - started)

    def order(self) -> list[str]:
        """The variables in the order in which the namespace holds them."""
        return self._variables.order()

    def _settled(self, unit: Unit, visible: Look, audit: bool) -> bool:
        """Whether a unit can't have changed: an immutable atom or a module under the same name."""
        if unit.uid in self.pending:
            return True
        if unit.on_device and audit and self.session.device is not None and self.session.device.is_away():
            return True  # nobody can have touched it
        if len(unit.members) != 1 or not unit.members[0].startswith("n:"):
            return False
        name = unit.members[0][2:]
        if name not in visible or name in visible.changed:
            return False
        kind = type(visible[name])
        return kind in ATOMS or (kind is types.ModuleType and not user_modules.of_notebook(visible[name]))

    def _process_delta(self, libraries: bool) -> dict[str, bytes]:
        now = process.read()
        if libraries:
            self._libraries = process.look_at_libraries(self.namespace)  # sees new modules, too
        else:
            user_modules.see()
        now.update(self._libraries)
        changed = {k: v for k, v in now.items() if self._process.get(k) != v}
        self._process = now
        if not hooks.SECTIONS.isdisjoint(changed):
            self._hooked = None
        return changed

    def _adopt(self, final: Grouped, arm: bool, everything: bool) -> tuple[list[Changed], list[int]]:
        changed: list[Changed] = []
        kept: set[int] = set()
        # Groups with common memory are one: memory held by no examined group is held by nobody.
        held_before = {key for uid in final.looked_at if uid in self.units for key in self.units[uid].buffers}
        for block in final.blocks:
            members, dump, digest = block.members, block.dump, block.digest()
            unit = self._known.same_members(members)
            blobs = [self.memories.content(buffer, arm) for buffer in dump.buffers]
            if unit is None or unit.digest != digest or unit.blobs != blobs or _tells_else(unit, dump):
                uid = unit.uid if unit is not None else self._next
                self._next += unit is None
                fresh = Unit(uid, members)
                fresh.digest, fresh.blobs, fresh.cell = digest, blobs, self.cell
                changed.append(Changed(fresh, dump.stream, dump.buffers if everything else ()))
            else:
                fresh = unit
                if everything:
                    changed.append(Changed(fresh, dump.stream, dump.buffers))
            self._describe(fresh, dump, block.seconds)
            if not fresh.tags:
                held = [self.memories.tags(b) for b in dump.buffers if b.nbytes]
                fresh.tags = hashlib.blake2b(b"".join(held), digest_size=16).hexdigest()
            if dump.suspects and fresh is not unit:
                fresh.notes = sorted({*fresh.notes, *verify.own_pickling(self.session, dump, blobs, self.store)})
            kept.add(fresh.uid)
            final.install.append(fresh)
        removed = [uid for uid in final.looked_at if uid not in kept]
        for uid in set(removed) | {unit.uid for unit in final.install}:
            self._known.uninstall(uid)
        for unit in final.install:
            self._known.install(unit)
        self.memories.forget(held_before.difference(*(unit.buffers for unit in final.install)))
        return changed, removed

    def _describe(self, unit: Unit, dump: pickling.Dump, seconds: float) -> None:
        unit.size, unit.ids, unit.ranges = len(dump.stream), dump.ids, dump.ranges
        unit.buffers = [(b.address, b.nbytes) for b in dump.buffers]
        unit.foreign, unit.first = dump.foreign, dump.first
        unit.classes, unit.touches, unit.dynamic = dump.classes, dump.touches, dump.dynamic
        unit.on_device = dump.on_device
        unit.gone = dump.gone
        unit.plain = sum(b.nbytes for b in dump.buffers if b.items is None)
        unit.notes = sorted(set(dump.notes)) if not dump.suspects or not unit.notes else unit.notes
        unit.types = set(map(name_of, dump.types))
        unit.seconds = seconds

    def adopt(self, entries: Iterable[Mapping[str, Any]], process: Mapping[str, bytes]) -> None:
        """Go on from a saved state, now in the namespace: its units keep their numbers, and count as unchanged. Their
        objects are known after the first look.
        """
        for said in entries:
            self._known.install(adopted(said))
            self._next = max(self._next, said["u"] + 1)
        self._variables.keep(self._variables.look())
        self._process, self._hooked = dict(process), None

    def resettle(self, names: Iterable[str]) -> None:
        """Notes that these variables now hold their units' content, read only now."""
        self._variables.resettle(names)


def _tells_else(unit: Unit, dump: pickling.Dump) -> bool:
    """Whether something else is to be told of a unit than was, though its stream is the same: a lock that is held now."""
    told = set(dump.notes)
    return not told <= set(unit.notes) if dump.suspects else told != set(unit.notes)
