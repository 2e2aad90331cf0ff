"""Finds a cell's changes: groups of variables with shared objects, their content, and the process's state.

A *member* is a variable (`n:name`) or a class of the notebook (`c:id`); a *unit* is a group of members that share
mutable objects or memory, written as one stream. A capture writes the units with possible changes, compares them with
the known content, and yields a `Delta`. It keeps no reference to a user's object.
"""

from __future__ import annotations

import array
import bisect
import hashlib
import itertools
import operator
import pickle
import sys
import threading
import time
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Callable, NamedTuple

from . import effects, hurry, kinds, native, own, pickling, process, quiet, rules, settings, threads, unswept, verify
from . import names as naming
from .lost import Lost
from .store import CHUNK, Store

#: Memory from this many bytes on is tracked by the kernel rather than hashed.
TRACKED = 1024 * 1024
#: Units with more linking objects than this are looked up by bisection, not by a table; likewise units by which the
#: table of all units would exceed ALL_TABLED, at about a hundred bytes each.
TABLED, ALL_TABLED = 20_000, 2_000_000
#: Bytes per second, for what is not known yet: an array of objects, memory to be stored, memory to be hashed.
_ITEMS_RATE, _STORE_RATE, _HASH_RATE = 3e7, 7e8, 8e9
#: How many times the pointers of an array of objects its copies take while it is stored, about.
_ITEMS_COPIED = 4
#: Seconds that a trial of a class's own pickling takes beside loading, and how many times as long as writing that takes.
_FORK, _LOADS = 0.02, 3.0
#: Seconds for which a disk may let new content wait until it is there to stay.
_DISK = 0.02
#: Seconds from which on the actual time for content corrects the expected time.
_LEARNT = 0.001
#: Seconds for which stored content stays though no record names it, of the hour that collections of garbage give.
_FRESH = 20 * 60.0
#: Objects that a search for those of several groups looks at between two checks for time.
_PIECE = 1 << 16
#: Tells an object by its address. Each call of `id` is told to those who listen to Python's audit events, us among them.
_place_of = object.__hash__
_ATOMS = (int, float, str, bytes, bool, complex, type(None), type(Ellipsis))


class Blob(NamedTuple):
    """Content of a buffer: length in bytes, and chunks."""

    nbytes: int
    chunks: tuple[str, ...]
    items: bool

    @property
    def deferred(self) -> bool:
        """Whether the content isn't in the store: then the names are its tags."""
        return bool(self.chunks) and self.chunks[0].startswith("~")


def _deferred(nbytes: int, tags: bytes) -> Blob:
    return Blob(nbytes, tuple("~" + tags[i : i + 16].hex() for i in range(0, len(tags), 16)), False)


def content_tags(buffer: pickling.Buffer) -> bytes:
    """Tags that tell a buffer's content from other content, the same in every process."""
    if buffer.items is not None:
        return _items_tags(pickle.dumps(buffer.items.tolist(), protocol=5))
    return _tags(buffer.address, buffer.nbytes)


def _tags(at: int, nbytes: int) -> bytes:
    out = bytearray(16 * -(-nbytes // CHUNK))
    native.lib.hop_tags(at, nbytes, CHUNK, native.address(out))
    return bytes(out)


def _items_tags(stream: bytes) -> bytes:
    return hashlib.blake2b(stream, digest_size=16).digest()


class Unit:
    """A group of members as it was last written."""

    __slots__ = (
        "blobs",
        "buffers",
        "cell",
        "classes",
        "digest",
        "dynamic",
        "first",
        "foreign",
        "gone",
        "ids",
        "members",
        "notes",
        "on_device",
        "plain",
        "ranges",
        "seconds",
        "size",
        "tags",
        "touches",
        "types",
        "uid",
    )

    def __init__(self, uid: int, members: tuple[str, ...]) -> None:
        self.uid, self.members = uid, members
        self.digest = b""
        self.size = 0
        self.ids: Any = ()
        self.ranges: list[tuple[int, int]] = []
        self.blobs: list[Blob] = []
        self.buffers: list[tuple[int, int]] = []
        self.foreign: list[int] = []
        #: Number of members in the first of the stream's two pickles; 0 means a single pickle.
        self.first = 0
        self.classes: set[str] = set()
        self.touches: set[str] = set()
        self.dynamic = False
        #: Whether some of its memory is a GPU's.
        self.on_device = False
        self.gone: list[pickling.Gone] = []
        self.notes: list[str] = []
        self.types: set[str] = set()
        self.seconds = 0.0
        self.cell = 0
        #: A hash of its buffers' content, the same in another process.
        self.tags = ""
        #: Bytes of its buffers without the items of arrays of objects.
        self.plain = 0

    @property
    def names(self) -> list[str]:
        """The variables of the group."""
        return [m[2:] for m in self.members if m.startswith("n:")]

    def nbytes(self) -> int:
        """Bytes of the stream and of its buffers."""
        return self.size + sum(blob.nbytes for blob in self.blobs)


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


class _Memory:
    """Facts on one range of memory."""

    __slots__ = ("armed", "blob", "heat", "kept", "seen", "tags")

    def __init__(self) -> None:
        self.blob: Blob | None = None
        #: When all its chunks were stored or asked for.
        self.kept = time.monotonic()
        self.tags: bytes = b""
        self.armed = False
        self.heat = 1
        self.seen = 0


class Memories:
    """Content of large buffers, by address: write tracking where there is any, else hashes."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._known: dict[tuple[int, int], _Memory] = {}
        self.tracking = native.lib.hop_track_init() == 0
        #: Whether content is stored at its capture; else content is only told apart, and stored with a save.
        self.ahead = True

    def content(self, buffer: pickling.Buffer, arm: bool) -> Blob:
        """The content of a buffer, stored. `arm`: there is time to start tracking."""
        if not buffer.nbytes:
            return Blob(0, (), False)
        key = (buffer.address, buffer.nbytes)
        memory = self._known.get(key)
        items = buffer.items is not None
        if memory is not None and (memory.blob is None or memory.blob.items != items):
            memory = None
        if memory is not None and self.ahead and memory.blob is not None and memory.blob.deferred:
            memory = None
        if memory is None:
            memory = _Memory()
            blob = self._first(memory, buffer)
            self._known[key] = memory
            return blob
        return self._kept(memory, buffer, self._again(memory, buffer, arm))

    def _kept(self, memory: _Memory, buffer: pickling.Buffer, blob: Blob) -> Blob:
        """Content that a record is about to name. It may have been stored for a capture that was given up, and collected
        as garbage since."""
        if blob.deferred or time.monotonic() - memory.kept < _FRESH:
            return blob
        blob = self.keep(buffer, blob)
        memory.kept = time.monotonic()
        return blob

    def _first(self, memory: _Memory, buffer: pickling.Buffer) -> Blob:
        if buffer.items is not None:
            self._arm(memory, buffer.address, buffer.nbytes)
            memory.blob, memory.tags = self._store_items(buffer)
        else:
            memory.tags = _tags(buffer.address, buffer.nbytes)
            if self.ahead or not memory.tags:
                names = self.store.put(buffer.address, buffer.nbytes)
                memory.blob = Blob(buffer.nbytes, tuple(names), False)
            else:
                memory.blob = _deferred(buffer.nbytes, memory.tags)
        return memory.blob

    def keep(self, buffer: pickling.Buffer, blob: Blob) -> Blob:
        """Store content so far only told apart, and content lost by the store."""
        if not blob.deferred and self.store.holds(blob.chunks):
            return blob
        memory = self._known.get((buffer.address, buffer.nbytes))
        if buffer.items is not None:
            stored, _ = self._store_items(buffer)
        else:
            stored = Blob(buffer.nbytes, tuple(self.store.put(buffer.address, buffer.nbytes)), False)
        if memory is not None and memory.blob == blob:
            memory.blob = stored
        return stored

    def tags(self, buffer: pickling.Buffer) -> bytes:
        """As `content_tags`, without reading memory whose tags are known."""
        memory = self._known.get((buffer.address, buffer.nbytes))
        known = memory is not None and memory.blob is not None and memory.blob.items == (buffer.items is not None)
        return memory.tags if memory is not None and known and memory.tags else content_tags(buffer)

    def _store_items(self, buffer: pickling.Buffer) -> tuple[Blob, bytes]:
        """The content of an array of objects, stored, and its tags."""
        stream = pickle.dumps(buffer.items.tolist(), protocol=5)  # type: ignore[union-attr]
        names = self.store.put(native.address(memoryview(stream)), len(stream))
        return Blob(len(stream), tuple(names), True), _items_tags(stream)

    def _again(self, memory: _Memory, buffer: pickling.Buffer, arm: bool) -> Blob:
        assert memory.blob is not None
        dirty = self._scan(memory, buffer.address, buffer.nbytes)
        if dirty is not None and not any(dirty):
            return memory.blob
        if buffer.items is not None:
            if dirty is None:
                self._arm(memory, buffer.address, buffer.nbytes)
            try:
                memory.blob, memory.tags = self._store_items(buffer)
            except BaseException:
                memory.armed = False
                raise
            return memory.blob
        if dirty is None:
            if memory.heat <= 1 or (arm and memory.heat <= 3):
                self._arm(memory, buffer.address, buffer.nbytes)
            dirty = bytearray(b"\1" * -(-buffer.nbytes // CHUNK))
        return self._compare(memory, buffer, dirty)

    def _compare(self, memory: _Memory, buffer: pickling.Buffer, dirty: bytearray) -> Blob:
        """Store the chunks among the `dirty` ones whose hash differs."""
        assert memory.blob is not None
        before, tags = memory.tags, bytearray(memory.tags)
        marked = [i for i, is_dirty in enumerate(dirty) if is_dirty]
        if len(marked) > 2:
            tags = bytearray(_tags(buffer.address, buffer.nbytes))
        else:
            for i in marked:
                length = min(CHUNK, buffer.nbytes - i * CHUNK)
                tags[16 * i : 16 * i + 16] = _tags(buffer.address + i * CHUNK, length)
        changed = bytearray(
            1 if before[16 * i : 16 * i + 16] != tags[16 * i : 16 * i + 16] else 0 for i in range(len(dirty))
        )
        if not any(changed):
            memory.heat = max(0, memory.heat - 1)
            memory.tags = bytes(tags)
            return memory.blob
        memory.heat = min(6, memory.heat + (1 if 8 * sum(changed) >= len(changed) else 0))
        if memory.heat >= 4 and memory.armed:
            native.lib.hop_track_drop(buffer.address, buffer.nbytes)
            memory.armed = False
        if not self.ahead:
            memory.blob, memory.tags = _deferred(buffer.nbytes, bytes(tags)), bytes(tags)
            return memory.blob
        try:
            names = self.store.put(buffer.address, buffer.nbytes, changed, memory.blob.chunks)
        except BaseException:
            # The scan's report is known only here: without it everything must be compared next time.
            memory.armed = False
            raise
        memory.blob, memory.tags = Blob(buffer.nbytes, tuple(names), False), bytes(tags)
        return memory.blob

    def _arm(self, memory: _Memory, at: int, nbytes: int) -> None:
        if self.tracking and nbytes >= TRACKED and not memory.armed:
            memory.armed = native.lib.hop_track_arm(at, nbytes) == 0

    def _scan(self, memory: _Memory, at: int, nbytes: int) -> bytearray | None:
        """Chunks written since the last scan; nothing if unknown."""
        if not memory.armed:
            return None
        dirty = bytearray(-(-nbytes // CHUNK))
        if native.lib.hop_track_scan(at, nbytes, CHUNK, native.address(dirty), 1) < 0:
            memory.armed = False
            return None
        return dirty

    def cost(self, buffer: pickling.Buffer) -> float:
        """Upper bound in seconds for storing the content: written memory may be unchanged."""
        memory = self._known.get((buffer.address, buffer.nbytes))
        nbytes = buffer.nbytes
        if memory is not None and memory.armed:
            dirty = bytearray(-(-nbytes // CHUNK))
            # Without re-arming, which would lose findings.
            if native.lib.hop_track_scan(buffer.address, nbytes, CHUNK, native.address(dirty), 0) == 0:
                return 0.0
            nbytes = min(nbytes, CHUNK * sum(dirty)) or nbytes
        if buffer.items is not None:
            return buffer.nbytes / _ITEMS_RATE
        stored = nbytes / _STORE_RATE + _DISK
        return nbytes / _HASH_RATE + (stored if self.ahead else 0.0)

    def unchanged(self, at: int, nbytes: int) -> bool:
        """Whether an array of immutable objects is known to hold the same ones as before."""
        memory = self._known.get((at, nbytes))
        if memory is None or memory.blob is None or not memory.blob.items or not memory.armed:
            return False
        dirty = bytearray(-(-nbytes // CHUNK))
        # A scan with re-arming would lose its findings here, so the scan asks without re-arming.
        return bool(native.lib.hop_track_scan(at, nbytes, CHUNK, native.address(dirty), 0) == 0)

    def forget(self, gone: Iterable[tuple[int, int]]) -> None:
        """Stop watching memory that no unit refers to any more."""
        for key in gone:
            memory = self._known.pop(key, None)
            if memory is not None and memory.armed:
                native.lib.hop_track_drop(*key)


class _Visible:
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
        #: The user's variables that follow those of the look before, if that is all that distinguishes the two orders.
        self.newer = newer

    def __contains__(self, name: str) -> bool:
        return name in self.shown

    def __getitem__(self, name: str) -> Any:
        return self._namespace[name]


class Capture:
    """What is known of one namespace."""

    def __init__(self, namespace: dict[str, Any], hidden: Callable[[str, Any], bool], store: Store) -> None:
        self.namespace, self._hidden = namespace, hidden
        self.session = pickling.Session(namespace)
        self.memories = Memories(store)
        self.session.unchanged = self.memories.unchanged
        self.store = store
        self.units: dict[int, Unit] = {}
        self._owner: dict[str, Unit] = {}
        self._names: list[str] = []
        self._ids: list[int] = []
        #: Names of the user's variables. Never changed in place; another object once the names or their order change.
        self._shown: set[str] = set()
        #: The set of which `order` was last asked, and its answer.
        self._ordered: tuple[set[str], list[str]] = (self._shown, [])
        self._tabled = 0
        self._table: dict[int, int] = {}
        self._large: set[int] = set()
        #: Units that hold open files.
        self._outside: set[int] = set()
        self._process: dict[str, bytes] = {}
        #: What the last audit found in libraries.
        self._libraries: dict[str, bytes] = {}
        self._next = 1
        #: Units with unread parts: unchanged since their save.
        self.pending: Collection[int] = ()
        self._threads = set(threading.enumerate())
        #: How many times as long as expected content took lately: on a busy machine it takes longer.
        self._pace = 1.0
        self.cell = 0
        #: Units that the last cell may have touched, by their former number.
        self.chosen: list[int] = []

    # --- which units to look at ---

    def visible(self) -> _Visible:
        """The variables that are the user's."""
        names, ids = list(self.namespace), list(map(_place_of, self.namespace.values()))
        known = len(self._names)
        goes_on = names[:known] == self._names
        if goes_on:  # what is new comes last, unless something was deleted
            changed = {*itertools.compress(names, map(operator.ne, ids, self._ids)), *names[known:]}
        else:
            changed = {name for name, _ in set(zip(names, ids)) ^ set(zip(self._names, self._ids))}
        there = (name for name in changed if isinstance(name, str) and name in self.namespace)
        now = {name for name in there if not self._hidden(name, self.namespace[name])}
        shown, gone = self._shown, changed - now
        newer = None
        if goes_on and gone.isdisjoint(shown):
            newer = [name for name in names[known:] if name in now]
            newer = newer if len(newer) == len(now - shown) else None
        if newer != []:
            shown = (shown | now) - gone
        return _Visible(self.namespace, names, ids, shown, changed, newer)

    def touched(self, found: naming.Names) -> set[int] | None:
        """Units within reach of code with these names; None means any."""
        if found.dynamic or self.beside():
            return None
        named = [self._owner[m] for m in map("n:".__add__, found.names) if m in self._owner]
        return self._close([*named, *(self.units[uid] for uid in self._outside)])

    def beside(self) -> list[str]:
        """Threads and tasks that may touch the user's objects at any time."""
        running = [f"the thread {thread.name}" for thread in threads.of_user(self._threads)]
        return running + [f"the task {name}" for name in threads.tasks_of_user(self.namespace)]

    def busy(self) -> list[str]:
        """The same, in sentences."""
        return [f"{one} runs beside the cells" for one in self.beside()]

    def away(self) -> list[str]:
        """Groups whose memory is on a GPU and can't be read now, in sentences."""
        held = [unit for unit in self.units.values() if unit.on_device]
        gpu = sys.modules.get("gresshopper.gpu") if held else None
        if gpu is None or not gpu.is_away():
            return []
        return [f"{', '.join(unit.names)}: its memory is with the GPU's driver" for unit in held]

    def reset(self) -> None:
        """Know of no variable any more."""
        for uid in list(self.units):
            self.memories.forget(self.units[uid].buffers)
            self._uninstall(uid)
        self._names, self._ids, self._shown, self._process = [], [], set(), {}
        self._table, self._tabled, self.pending = {}, 0, ()

    def _close(self, start: Iterable[Unit]) -> set[int] | None:
        stack, seen = list(start), set()
        while stack:
            unit = stack.pop()
            if unit.uid in seen:
                continue
            seen.add(unit.uid)
            if unit.dynamic:
                return None
            for name in unit.touches:
                owner = self._owner.get("n:" + name)
                if owner is not None and owner.uid not in seen:
                    stack.append(owner)
            for cid in unit.classes:
                owner = self._owner.get("c:" + cid)
                if owner is not None and owner.uid not in seen:
                    stack.append(owner)
        return seen

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
        with unswept.Unswept(), quiet.quiet(), hurry.roomy(self.session), hurry.reading_devices(self.session):
            return self._run(found, cell, arm, everything, libraries)

    def _run(self, found: naming.Names | None, cell: int, arm: bool, everything: bool, libraries: bool) -> Delta:
        started = time.perf_counter()
        self.cell = cell
        visible = self.visible()
        if found is not None and found.stored:
            settings.see(found.stored)
        chosen = None if found is None else self.touched(found)
        # A group in pieces is noticed in think time; until then the pieces are written as one group.
        work = _Round(self, visible, split=arm)
        for name in visible.changed:
            if name in visible.shown:
                work.fresh("n:" + name)
            elif name in self._shown:
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
        begun = time.perf_counter()
        try:
            changed, removed = self._adopt(final, arm, everything)
        finally:
            self.session.check, self.session.kept = check, []
        if expected >= _LEARNT:
            self._pace = max(1.0, (self._pace + (time.perf_counter() - begun) / expected) / 2)
        if visible.newer and self._ordered[0] is self._shown:
            self._ordered = visible.shown, [*self._ordered[1], *visible.newer]
        self._names, self._ids, self._shown = visible.names, visible.ids, visible.shown
        if everything:
            self._process = {}
        self.chosen = sorted(self.units) if chosen is None else sorted(chosen)
        return Delta(
            changed, removed, self._process_delta(found is None and libraries), time.perf_counter() - started
        )

    def order(self) -> list[str]:
        """The variables in the order in which the namespace holds them."""
        if self._ordered[0] is not self._shown:
            self._ordered = self._shown, [name for name in self._names if name in self._shown]
        return self._ordered[1]

    def _settled(self, unit: Unit, visible: _Visible, audit: bool) -> bool:
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
        return kind in _ATOMS or (kind is types.ModuleType and not rules.of_notebook(visible[name]))

    def _process_delta(self, libraries: bool) -> dict[str, bytes]:
        now = process.read()
        if libraries:
            self._libraries = process.look_at_libraries(self.namespace)  # sees new modules, too
        else:
            own.see()
        now.update(self._libraries)
        changed = {k: v for k, v in now.items() if self._process.get(k) != v}
        self._process = now
        return changed

    def value_of(self, member: str, visible: _Visible) -> Any:
        """What a member is now."""
        return visible[member[2:]] if member.startswith("n:") else self.session.classes[member[2:]]

    def _adopt(self, final: _Final, arm: bool, everything: bool) -> tuple[list[Changed], list[int]]:
        changed: list[Changed] = []
        kept: set[int] = set()
        # Groups with common memory are one: memory held by no examined group is held by nobody.
        held_before = {key for uid in final.looked_at if uid in self.units for key in self.units[uid].buffers}
        for block in final.blocks:
            members, dump, digest = block.members, block.dump, block.digest()
            unit = self._same_members(members)
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
            self._uninstall(uid)
        for unit in final.install:
            self._install(unit)
        self.memories.forget(held_before.difference(*(unit.buffers for unit in final.install)))
        return changed, removed

    def _same_members(self, members: tuple[str, ...]) -> Unit | None:
        unit = self._owner.get(members[0])
        return unit if unit is not None and unit.members == members else None

    def _describe(self, unit: Unit, dump: pickling.Dump, seconds: float) -> None:
        unit.size, unit.ids, unit.ranges = len(dump.stream), dump.ids, dump.ranges
        unit.buffers = [(b.address, b.nbytes) for b in dump.buffers]
        unit.foreign, unit.first = dump.foreign, dump.first
        unit.classes, unit.touches, unit.dynamic = dump.classes, dump.touches, dump.dynamic
        unit.on_device = dump.on_device
        unit.gone = dump.gone
        unit.plain = sum(b.nbytes for b in dump.buffers if b.items is None)
        unit.notes = sorted(set(dump.notes)) if not dump.suspects or not unit.notes else unit.notes
        unit.types = set(map(_name_of, dump.types))
        unit.seconds = seconds

    def _uninstall(self, uid: int) -> None:
        unit = self.units.pop(uid, None)
        if unit is None:
            return
        self._large.discard(uid)
        self._outside.discard(uid)
        for member in unit.members:
            if self._owner.get(member) is unit:
                del self._owner[member]

    def _install(self, unit: Unit) -> None:
        self.units[unit.uid] = unit
        for member in unit.members:
            self._owner[member] = unit
        if not unit.types.isdisjoint(_OUTSIDE):
            self._outside.add(unit.uid)
        if len(unit.ids) > TABLED or self._tabled + len(unit.ids) > ALL_TABLED:
            self._large.add(unit.uid)
            return
        for at in unit.ids:
            self._table[at] = unit.uid
        self._tabled += len(unit.ids)
        if self._tabled > 16 * (TABLED + len(self.units)):
            self._table = {at: u.uid for u in self.units.values() if u.uid not in self._large for at in u.ids}
            self._tabled = len(self._table)

    def holders(self, ids: Any, skip: set[int]) -> set[int]:
        """Units outside `skip` that may hold these objects (a stale address may name a wrong unit)."""
        found: set[int] = set()
        table = self._table
        if len(ids) > len(table):
            ordered = ids
            for at, uid in self.checking(table.items()):
                if uid not in skip and uid not in found and uid in self.units:
                    i = bisect.bisect_left(ordered, at)
                    if i < len(ordered) and ordered[i] == at:
                        found.add(uid)
        else:
            for at in self.checking(ids):
                uid = table.get(at, 0)
                if uid and uid not in skip and uid in self.units:
                    found.add(uid)
        for uid in self._large - skip:
            self.session.check()
            if _intersect(self.units[uid].ids, ids):
                found.add(uid)
        return found

    def checking(self, found: Iterable[Any]) -> Iterable[Any]:
        """These, with a look at the time between pieces of them: millions take seconds."""
        left = iter(found)
        while piece := list(itertools.islice(left, _PIECE)):
            self.session.check()
            yield from piece

    def adopt(self, entries: Iterable[Mapping[str, Any]], process: Mapping[str, bytes]) -> None:
        """Go on from a saved state, now in the namespace: its units keep their numbers, and count as unchanged. Their
        objects are known after the first look.
        """
        for said in entries:
            self._install(_adopted(said))
            self._next = max(self._next, said["u"] + 1)
        visible = self.visible()
        self._names, self._ids, self._shown = visible.names, visible.ids, visible.shown
        self._process = dict(process)

    def resettle(self, names: Iterable[str]) -> None:
        """Notes that these variables now hold their units' content, read only now."""
        places = {name: i for i, name in enumerate(self._names)}
        for name in names:
            if name in places and name in self.namespace:
                self._ids[places[name]] = _place_of(self.namespace[name])

    def owner(self, member: str) -> Unit | None:
        """The unit of a member."""
        return self._owner.get(member)


def _adopted(said: Mapping[str, Any]) -> Unit:
    unit = Unit(said["u"], tuple(said["m"]))
    unit.digest, unit.cell, unit.first = bytes.fromhex(said["dig"]), said["cell"], said["v"]
    unit.blobs = [Blob(n, tuple(chunks), bool(items)) for n, items, chunks in said["b"]]
    ref = said["s"]
    unit.size = ref["in"][1] if "in" in ref else ref["n"]
    unit.foreign, unit.seconds = list(said["f"]), said["sec"]
    unit.classes, unit.touches, unit.types = set(said["c"]), set(said["t"]), set(said["types"])
    unit.dynamic, unit.on_device = bool(said["dyn"]), bool(said["dev"])
    unit.gone, unit.notes = [pickling.Gone(*part) for part in said["gone"]], list(said["notes"])
    return unit


def _intersect(a: Any, b: Any) -> bool:
    """Whether two sorted sequences share an element."""
    if len(a) > len(b):
        a, b = b, a
    if len(a) * 20 > len(b):
        return not set(a).isdisjoint(b)
    for at in a:
        i = bisect.bisect_left(b, at)
        if i < len(b) and b[i] == at:
            return True
    return False


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


_OUTSIDE = frozenset(map(_name_of, pickling.OUTSIDE))


class _Final(NamedTuple):
    blocks: list[_Block]
    looked_at: list[int]
    install: list[Unit]


class _Block:
    __slots__ = ("_digest", "dump", "members", "seconds")

    def __init__(self, members: tuple[str, ...], dump: pickling.Dump, seconds: float) -> None:
        self.members, self.dump, self.seconds = members, dump, seconds
        self._digest = b""

    def digest(self) -> bytes:
        """Digest of the stream, computed once: the stream may be large."""
        self._digest = self._digest or hashlib.blake2b(self.dump.stream, digest_size=16).digest()
        return self._digest


class _Round:
    """A capture's search for the groups: blocks are written, linked, and linked ones written again together."""

    def __init__(self, capture: Capture, visible: _Visible, split: bool) -> None:
        self.capture, self.visible, self._split = capture, visible, split
        self._fresh: set[str] = set()
        self._units: dict[int, Unit] = {}
        self._done: set[int] = set()
        self._blocks: dict[tuple[str, ...], _Block] = {}
        self._placed: set[str] = set()
        self._dissolved: list[int] = []
        self._keep: list[Any] = []  # memos: no address is used twice within one capture
        capture.session.kept = []
        self._linked: set[tuple[str, ...]] = set()

    def fresh(self, member: str) -> None:
        """A member that is new, or now another object."""
        owner = self.capture.owner(member)
        if owner is not None:
            self._dissolve(owner)
        self._fresh.add(member)

    def lost_member(self, member: str) -> None:
        """A variable that was deleted."""
        owner = self.capture.owner(member)
        if owner is not None:
            self._dissolve(owner)

    def look(self, unit: Unit) -> None:
        """A unit that may have changed."""
        if unit.uid not in self._done:
            self._units[unit.uid] = unit

    def seconds(self) -> float:
        """Seconds that the remaining units took when last written."""
        return sum(unit.seconds for unit in self._units.values())

    def _dissolve(self, unit: Unit) -> None:
        if unit.uid in self._done:
            return
        self._done.add(unit.uid)
        self._units.pop(unit.uid, None)
        self._dissolved.append(unit.uid)
        for member in unit.members:
            if member.startswith("n:") and member[2:] in self.visible:
                self._fresh.add(member)

    def settle(self) -> _Final:
        """Write until nothing that was written leads to anything else."""
        while self._units or self._fresh:
            while self._units:
                self._write_unit(self._units.popitem()[1])
            while self._fresh:
                self._write_member(self._fresh.pop())
            self._follow()
        # Examined units are kept under their number or have gone into others.
        return _Final(self._merge(), sorted(self._done), [])

    def _write_unit(self, unit: Unit) -> None:
        self._done.add(unit.uid)
        if not all(
            m[2:] in self.visible if m.startswith("n:") else m[2:] in self.capture.session.classes
            for m in unit.members
        ):
            self._done.discard(unit.uid)
            self._dissolve(unit)
            return
        block = self._write(unit.members)
        if self._split and len(unit.members) > 1 and block.digest() != unit.digest:
            self._done.discard(unit.uid)
            self._dissolve(unit)
            return
        self._place(block)

    def _write_member(self, member: str) -> None:
        if member in self._placed:
            return
        if member.startswith("c:") and member[2:] not in self.capture.session.classes:
            return
        self._place(self._write((member,)))

    def _place(self, block: _Block) -> None:
        self._blocks[block.members] = block
        self._placed.update(block.members)

    def _write(self, members: tuple[str, ...]) -> _Block:
        self.capture.session.check()
        started = time.perf_counter()
        values = [self.capture.value_of(m, self.visible) for m in members]
        owned = {m[2:] for m in members if m.startswith("c:")}
        if len(values) == 1 and type(values[0]) in _ATOMS:
            dump = _atom(values)
        else:
            try:
                first = effects.not_only_shown(members)
                dump = pickling.dump(self.capture.session, values, owned, first)
            except pickling.Unpicklable as e:
                dump = self._placeholder(members, values, str(e))
        self._keep.append(dump.keep)
        if dump.keep is not None:
            self.capture.session.kept.append(dump.ids)
        return _Block(members, dump, time.perf_counter() - started)

    def _placeholder(self, members: Sequence[str], values: Sequence[Any], why: str) -> pickling.Dump:
        stands = [Lost(kinds.a_kind(kinds.kind_of(value)), why) for value in values]
        gone = [pickling.Gone(kinds.a_kind(kinds.kind_of(value)), why) for value in values]
        return _plain(pickling.placeholders(stands), gone)

    def _follow(self) -> None:
        """Units with an object or memory in common with written units, and classes still unwritten."""
        capture = self.capture
        new = [b for key, b in self._blocks.items() if key not in self._linked]
        for block in new:
            self._linked.add(block.members)
            for uid in capture.holders(block.dump.ids, self._done):
                self.look(capture.units[uid])
            for cid in block.dump.classes:
                member = "c:" + cid
                owner = capture.owner(member)
                if member not in self._placed and (owner is None or owner.uid in self._dissolved):
                    self._fresh.add(member)
        self._follow_memory(new)

    def _follow_memory(self, new: Sequence[_Block]) -> None:
        wanted = [r for b in new for r in b.dump.ranges]
        if not wanted:
            return
        others = sorted(
            (low, high, u.uid)
            for u in self.capture.units.values()
            if u.uid not in self._done
            for low, high in u.ranges
        )
        if not others:
            return
        starts = [o[0] for o in others]
        for low, high in wanted:
            i = max(0, bisect.bisect_right(starts, low) - 1)
            while i < len(others) and others[i][0] < high:
                if others[i][1] > low and others[i][2] not in self._done:
                    self.look(self.capture.units[others[i][2]])
                i += 1

    def _merge(self) -> list[_Block]:
        blocks = list(self._blocks.values())
        parent = list(range(len(blocks)))

        def find(i: int) -> int:
            while parent[i] != i:
                parent[i] = parent[parent[i]]
                i = parent[i]
            return i

        seen: dict[int, int] = {}
        for i, block in enumerate(blocks):
            for at in self.capture.checking(block.dump.ids):
                j = seen.setdefault(at, i)
                if j != i:
                    parent[find(i)] = find(j)
        spans = sorted((low, high, i) for i, b in enumerate(blocks) for low, high in b.dump.ranges)
        reach, holder = 0, -1
        for low, high, i in spans:
            if low < reach:
                parent[find(i)] = find(holder)
            if high > reach:
                reach, holder = high, i
        self._join_class_cycles(blocks, parent, find)
        groups: dict[int, list[_Block]] = {}
        for i, block in enumerate(blocks):
            groups.setdefault(find(i), []).append(block)
        return [self._final(group) for group in groups.values()]

    def _join_class_cycles(self, blocks: Sequence[_Block], parent: list[int], find: Callable[[int], int]) -> None:
        """Groups in mutual need of classes are one: else neither could be read first."""
        where = {m: i for i, b in enumerate(blocks) for m in b.members if m.startswith("c:")}
        edges: dict[int, set[int]] = {}
        for i, block in enumerate(blocks):
            for cid in block.dump.classes:
                j = where.get("c:" + cid)
                if j is not None:
                    edges.setdefault(find(i), set()).add(find(j))
        for start in list(edges):
            for other in self._reachable(edges, start):
                if other != start and start in self._reachable(edges, other):
                    parent[find(start)] = find(other)

    @staticmethod
    def _reachable(edges: dict[int, set[int]], start: int) -> set[int]:
        seen: set[int] = set()
        stack = list(edges.get(start, ()))
        while stack:
            top = stack.pop()
            if top not in seen:
                seen.add(top)
                stack.extend(edges.get(top, ()))
        return seen

    def _final(self, group: list[_Block]) -> _Block:
        if len(group) == 1:
            return group[0]
        return self._write(effects.members_in_order(m for block in group for m in block.members))


def _tells_else(unit: Unit, dump: pickling.Dump) -> bool:
    """Whether something else is to be told of a unit than was, though its stream is the same: a lock that is held now."""
    told = set(dump.notes)
    return not told <= set(unit.notes) if dump.suspects else told != set(unit.notes)


def _plain(stream: bytes, gone: list[pickling.Gone]) -> pickling.Dump:
    return pickling.Dump(stream, [], [], array.array("Q"), [], set(), set(), False, gone, [], set(), [], None)


def _atom(values: list[Any]) -> pickling.Dump:
    return _plain(pickle.dumps(([], values), protocol=5), [])
