"""Rebuilds a namespace from a saved state.

Everything is proven and read before anything is set. Variables that can't be rebuilt become placeholders, and each is
told: a group whose content is missing or damaged costs no other group.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import pickle
import platform
import sys
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Callable, NamedTuple

from gresshopper import clock, typenames

from . import adapters, form, gc_pause, pickling, process, recipes, settings
from .lost import Lost, LostError
from .session import MAIN, reason, title
from .store import Store, StoreError

#: Arrays from this many bytes on lie on a private map of the store, read at their first use.
LAZY = 64 * 1024 * 1024


#: Number of attempts to load a failed group.
AGAIN = 3


class Entry(NamedTuple):
    """A unit in a saved state: description and record."""

    said: Mapping[str, Any]
    record: form.Record

    @property
    def names(self) -> list[str]:
        """Its variables."""
        return [m[2:] for m in self.said["m"] if m.startswith("n:")]

    @property
    def first(self) -> int:
        """Number of members in the first of the stream's two pickles; 0 means a single pickle."""
        return int(self.said.get("v", 0))


class Snapshot:
    """A namespace as of the end of the last of these records."""

    def __init__(self, records: Sequence[form.Record]) -> None:
        self.records: list[form.Record] = []
        self.units: dict[int, Entry] = {}
        self.sections: dict[str, Entry] = {}
        self.environment: Mapping[str, Any] = {}
        self.history: dict[int, str] = {}
        #: Inputs as they were typed, where IPython ran another text.
        self.raw: dict[int, str] = {}
        self.count = 1
        self.shown: Mapping[str, int] = {}
        #: The variables in the namespace's order, as far as known.
        self.order: list[str] = []
        #: Variables that are lost, as their user knows.
        self.told: list[str] = []
        #: Threads, tasks and programs that ran beside the cells.
        self.beside: list[str] = []
        #: Cells to run again for groups with `redo`, and the record with these cells.
        self.redo: Mapping[str, Any] = {"cells": []}
        self._redo_record: form.Record | None = None
        for record in records:
            self.add(record)

    def add(self, record: form.Record) -> None:
        """A further record."""
        self.records.append(record)
        head = record.head
        if head.get("full"):
            self.units, self.sections = {}, {}
        for uid in head["gone"]:
            self.units.pop(uid, None)
        for said in head["units"]:
            self.units[said["u"]] = Entry(said, record)
        for name, ref in head["process"].items():
            self.sections[name] = Entry({"s": ref}, record)
        if "order" in head:
            kept, names = head["order"]
            there = {name for entry in self.units.values() for name in entry.names} if kept else set()
            self.order = [name for name in self.order if name in there][:kept] + names
        self.environment = head.get("env") or self.environment
        self.history.update({int(k): v for k, v in head.get("inputs", {}).items()})
        self.raw.update({int(k): v for k, v in head.get("raw", {}).items()})
        self.count = head.get("count", self.count)
        self.shown = head.get("shown", self.shown)
        self.told = head.get("told", [])
        self.beside = head.get("beside", [])
        if head.get("redo"):
            self.redo, self._redo_record = head["redo"], record

    def ended(self) -> list[str]:
        """Sentences on the threads, tasks and programs that ended with the process: no restore brings them back."""
        return [f"{one}, which ran beside the cells, ended with its process" for one in self.beside]

    def redo_bytes(self, ref: Mapping[str, Any], store: Store) -> bytes:
        """Bytes to which the re-run cells refer."""
        assert self._redo_record is not None
        return stream(Entry({"s": ref}, self._redo_record), store)

    def process(self, store: Store, lacks: Callable[[str], None] | None = None) -> dict[str, bytes]:
        """The process's sections. `lacks` hears of each whose content is missing or damaged; without it, that is an
        error.

        # Errors
        `StoreError`.
        """
        found = {}
        for name, entry in self.sections.items():
            try:
                found[name] = stream(entry, store)
            except StoreError as e:
                if lacks is None:
                    raise
                lacks(f"what the process kept of {name} couldn't be restored: {reason(e)}")
        return found


def stream(entry: Entry, store: Store) -> bytes:
    """The stream of a unit or section, checked against its name where stored apart."""
    ref = entry.said["s"]
    if "in" in ref:
        return entry.record.inline(ref)
    into = bytearray(ref["n"])
    store.get(ref["c"], into)
    return bytes(into)


def chunks_of(entry: Entry) -> list[str]:
    """The chunks of a unit's stream and buffers."""
    return [*entry.said["s"].get("c", ()), *(name for blob in entry.said["b"] for name in blob[2])]


def environment() -> dict[str, Any]:
    """Versions on which a state depends: Python and the loaded packages."""
    global _seen  # noqa: PLW0603 - what is loaded only grows
    if len(sys.modules) != _seen[0]:
        _seen = (len(sys.modules), _packages())
    return {"python": platform.python_version(), "packages": dict(_seen[1])}


_seen: tuple[int, dict[str, str]] = (0, {})


def _packages() -> dict[str, str]:
    packages: dict[str, str] = {}
    for name in sorted(name for name in list(sys.modules) if "." not in name):
        # Read from the dictionary: a module that computes the version on request may import half a library for the
        # answer.
        version = getattr(sys.modules.get(name), "__dict__", {}).get("__version__")
        installed = _installed(name) if isinstance(version, str) and not name.startswith("_") else None
        if installed is not None:
            packages[name] = installed
    return packages


_known: dict[str, str | None] = {}


def _installed(name: str) -> str | None:
    """The version of the package whose own a module is; none if another carries it inside. A module may say another."""
    if name not in _known:
        _known[name] = _by_metadata(name)
    return _known[name]


def _by_metadata(name: str) -> str | None:
    for candidate in (name, adapters.distribution(name)):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(candidate)
    return None


def differences(saved: Mapping[str, Any]) -> list[str]:
    """Differences between this environment and the saved state's, in sentences."""
    found: list[str] = []
    here = platform.python_version()
    if saved.get("python") and saved["python"].split(".")[:2] != here.split(".")[:2]:
        found.append(f"Python was {saved['python']}, here it is {here}")
    for name, version in saved.get("packages", {}).items():
        # Sooner known than what is installed; as text, since torch's takes both apart to compare them.
        own = getattr(sys.modules.get(name), "__dict__", {}).get("__version__")
        if isinstance(own, str) and str.__eq__(own, version):
            continue
        now = _installed(name)
        if now is None:
            found.append(f"{name} {version} isn't installed here")
        elif now != version:
            found.append(f"{name} was {version}, here it is {now}")
    return found


class Told(NamedTuple):
    """What a restore did."""

    names: list[str]
    lost: dict[str, str]
    notices: list[str]
    seconds: float


class Loader:
    """Reads the units of a snapshot; the source of its streams."""

    def __init__(
        self,
        snapshot: Snapshot,
        store: Store,
        session: pickling.Session,
        lazy: bool = True,
        live: Mapping[str, Any] | None = None,
    ) -> None:
        self.snapshot, self.store, self.session, self._lazy = snapshot, store, session, lazy
        #: Variables that are there already: a group with a class of the notebook is taken from them, since a class
        #: must not become two.
        self._live = live
        self.notices: list[str] = []
        self._where = {m[2:]: uid for uid, e in snapshot.units.items() for m in e.said["m"] if m.startswith("c:")}
        self._loaded: dict[int, list[Any]] = {}
        #: Groups with unread displayed values.
        self._begun: dict[int, pickling.Reading] = {}
        self._stack: list[Entry] = []
        #: The code of each group's functions, which may name any variable.
        self.codes: dict[int, list[types.CodeType]] = {}
        self.failed: dict[int, str] = {}
        #: Groups that were to be read later, and were read at once.
        self.sooner: set[int] = set()

    # --- asked by recipes ---

    @property
    def namespace(self) -> dict[str, Any]:
        """The live namespace."""
        return self.session.namespace

    @property
    def apart(self) -> bool:
        """Whether values are read beside those that the variables have."""
        return self._live is not None

    def _blob(self, index: int) -> Sequence[Any]:
        found: Sequence[Any] = self._stack[-1].said["b"][index]
        return found

    def nbytes(self, index: int) -> int:
        """Length of a buffer in bytes."""
        return int(self._blob(index)[0])

    def fill(self, index: int, into: memoryview) -> None:
        """Read a buffer into memory."""
        blob = self._blob(index)
        if into.nbytes != blob[0]:
            raise form.FormError("the state is damaged: a buffer has another length than its array")
        self.store.get(blob[2], into)

    def mapped(self, index: int) -> Any | None:
        """A buffer on a private map, if it is large and maps are possible."""
        blob = self._blob(index)
        if not self._lazy or blob[0] < LAZY:
            return None
        return self.store.map(blob[2], blob[0])

    def items(self, index: int) -> list[Any]:
        """What an array of objects holds."""
        blob = self._blob(index)
        into = bytearray(blob[0])
        self.store.get(blob[2], into)
        found: list[Any] = pickle.loads(into)
        return found

    def class_of(self, cid: str) -> type:
        """A class of the notebook."""
        found = self.session.classes.get(cid)
        if found is None and cid in self._where:
            self.load(self._where[cid])
            found = self.session.classes.get(cid)
        if found is None:
            raise LostError(f"its class {cid.partition('#')[0]} isn't in the state")
        return found

    def reads(self, code: types.CodeType) -> None:
        """A function's code that runs in the notebook's namespace."""
        self.codes.setdefault(int(self._stack[-1].said["u"]), []).append(code)

    def within(self, uid: int) -> list[int]:
        """The groups of a group's classes."""
        return [self._where[cid] for cid in self.snapshot.units[uid].said["c"] if cid in self._where]

    def notice(self, text: str) -> None:
        """Something that the user must know."""
        if text not in self.notices:
            self.notices.append(text)

    def notice_of(self, entry: Entry) -> None:
        """What the capture noted of these variables."""
        for note in entry.said["notes"]:
            self.notice(f"{title(entry.said['m'])}: {note}")

    # --- loading ---

    def load(self, uid: int) -> list[Any]:
        """The values of a unit's members, in their order."""
        values = self.begin(uid)
        reading = self._begun.pop(uid, None)
        if reading is not None:
            del self._loaded[uid]  # should the rest fail, all of it has
            values = values + self._read(uid, reading.rest)
            self._loaded[uid] = values
        return values

    def begin(self, uid: int) -> list[Any]:
        """The same, without deferrable members, which `load` reads."""
        if uid in self._loaded:
            return self._loaded[uid]
        entry = self.snapshot.units[uid]
        there = self._there(entry)
        if there is not None:
            self._loaded[uid] = there
            return there
        data = stream(entry, self.store)
        foreign = (recipes_blob(self, i) for i in entry.said["f"])
        if entry.first:
            reading = pickling.Reading(data, foreign)
            values = self._read(uid, reading.begin)
            self._begun[uid] = reading
        else:
            values = self._read(uid, lambda source: pickling.load(source, data, foreign))
        for member, value in zip(entry.said["m"], values):
            if member.startswith("c:"):
                self.session.adopt(member[2:], value)
        self._loaded[uid] = values
        return values

    def _read(self, uid: int, read: Callable[[recipes.Source], list[Any]]) -> list[Any]:
        self._stack.append(self.snapshot.units[uid])
        try:
            return read(self)
        finally:
            self._stack.pop()

    def forget(self) -> None:
        """Hold no values any more: once they are the user's, nobody else may keep them. Classes are found all the same."""
        self._loaded = {uid: self._loaded[uid] for uid in self._begun}

    def _there(self, entry: Entry) -> list[Any] | None:
        members = entry.said["m"]
        if self._live is None or not any(m.startswith("c:") for m in members):
            return None
        held = [self.session.classes.get(m[2:]) if m.startswith("c:") else self._live.get(m[2:]) for m in members]
        return None if any(value is None for value in held) else held

    def values(self, uid: int) -> dict[str, Any]:
        """The variables of a unit."""
        return {m[2:]: v for m, v in zip(self.snapshot.units[uid].said["m"], self.load(uid)) if m.startswith("n:")}

    def load_all(
        self,
        only: set[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
        later: Mapping[int, Collection[str]] = MappingProxyType({}),
    ) -> dict[str, Any]:
        """All variables (or the variables of `only`), without the groups in `later`, classes first; nothing is set yet.

        # Errors
        `FormError` when a record isn't as the form says.
        """
        staged: dict[str, Any] = {}
        order = sorted(self.snapshot.units, key=lambda uid: (not self._has_class(uid), uid))
        done = 0
        for uid in order:
            entry = self.snapshot.units[uid]
            waiting = later.get(uid, ())
            if len(waiting) == len(entry.names) > 0 or (only is not None and only.isdisjoint(entry.names)):
                continue
            staged.update(self._values(uid, entry, self.begin if waiting else self.load))
            done += 1
            if progress is not None:
                progress(done, len(order))
        return staged

    def again(self) -> dict[str, Any]:
        """The variables of groups that couldn't be loaded before the others were set: code of the notebook that their
        loading runs may have asked for those. Repeated for as long as it helps."""
        found: dict[str, Any] = {}
        waiting = [uid for uid in self.failed if not self.snapshot.units[uid].said.get("left")]
        for _ in waiting[:AGAIN]:
            for uid in sorted(waiting, key=lambda uid: (not self._has_class(uid), uid)):
                entry, why = self.snapshot.units[uid], self.failed.pop(uid)
                said = {f"{name}: {why}" for name in entry.names}
                self.notices = [notice for notice in self.notices if notice not in said]
                found.update(self._values(uid, entry))
            left = [uid for uid in waiting if uid in self.failed]
            if len(left) == len(waiting):
                break
            waiting = left
        return found

    def _has_class(self, uid: int) -> bool:
        return any(m.startswith("c:") for m in self.snapshot.units[uid].said["m"])

    def _values(self, uid: int, entry: Entry, load: Callable[[int], list[Any]] | None = None) -> dict[str, Any]:
        if entry.said.get("left"):
            why = "it was left to its cells, which weren't run again"
            self.failed[uid] = why
            return {name: Lost(name, why) for name in entry.names}
        try:
            values = (load or self.load)(uid)
        except (form.FormError, MemoryError):
            raise
        except Exception as e:
            why = f"it couldn't be loaded: {reason(e)}"
            self.failed[uid] = why
            for name in entry.names:
                self.notice(f"{name}: {why}")
            return {name: Lost(name, why) for name in entry.names}
        return {m[2:]: v for m, v in zip(entry.said["m"], values) if m.startswith("n:")}


def recipes_blob(loader: Loader, index: int) -> bytearray:
    """A buffer in the form expected by its library."""
    into = bytearray(loader.nbytes(index))
    loader.fill(index, memoryview(into))
    return into


def lost_in(snapshot: Snapshot, loaded: Mapping[str, Any]) -> dict[str, str]:
    """Variables that are, or hold, a lost value. Where a lost value is a variable's, just that variable. Placeholders of
    earlier losses stand for no new one."""
    found: dict[str, str] = {}
    earlier = {id(loaded[name]) for name in snapshot.told if name in loaded}
    for entry in snapshot.units.values():
        gone = entry.said["gone"]
        if not gone:
            continue
        stands = {name: id(loaded[name]) for name in entry.names if type(loaded.get(name)) is Lost}
        names, known = [name for name, at in stands.items() if at not in earlier], frozenset(stands.values())
        if len(known - earlier) < len(gone):
            others = (name for name in entry.names if name in loaded and name not in stands)
            names += [name for name in others if _holds(loaded[name], known)]
        names = [*(names or entry.names), *(name for name in stands if name in snapshot.told)]
        again = entry.said.get("why")
        for what, why in gone:
            for name in names:
                found.setdefault(name, f"{what}: {why}" + (f"; it can't be made again: {again}" if again else ""))
    return found


#: So many objects of a variable are looked at for a lost value.
LOOKED_AT = 200_000


def _holds(value: Any, known: frozenset[int]) -> bool:
    """Whether a lost value other than the `known` is within reach of a variable's; yes where that can't be told."""
    seen: set[int] = set()
    level = [value]
    while level:
        if any(type(one) is Lost and id(one) not in known for one in level) or len(seen) > LOOKED_AT:
            return True
        seen.update(map(id, level))
        inside = [*gc.get_referents(*level), *(part for held in level for part in _objects_of(held))]
        level = [one for one in {id(one): one for one in inside}.values() if id(one) not in seen and _may_hold(one)]
    return False


def _may_hold(one: Any) -> bool:
    if isinstance(one, types.ModuleType) or (isinstance(one, type) and typenames.module_of(one) != MAIN):
        return False
    if type(one) is dict:
        return "__builtins__" not in one and "__build_class__" not in one  # the globals of functions
    return gc.is_tracked(one) or typenames.name_of(type(one)) == "ndarray"


def _objects_of(array: Any) -> list[Any]:
    """Items of an array of objects: the collector of cycles doesn't know them."""
    if typenames.name_of(type(array)) != "ndarray" or not array.dtype.hasobject or array.dtype.fields:
        return []
    found: list[Any] = array.ravel().tolist()
    return found


def arrange(namespace: dict[str, Any], order: Sequence[str]) -> None:
    """Restores the order of the variables."""
    wanted = dict.fromkeys(name for name in order if name in namespace)
    if list(wanted) != [name for name in namespace if name in wanted]:
        for name in wanted:
            namespace[name] = namespace.pop(name)


@contextlib.contextmanager
def _put_off(
    loader: Loader,
    later: Mapping[int, Collection[str]],
    staged: dict[str, Any],
    set_names: Callable[[dict[str, Any]], None],
) -> Iterator[None]:
    """Variables of these groups are read sooner, where the process's settings are made of them."""
    owner = {name: uid for uid, names in later.items() for name in names}

    def read(name: str) -> Any:
        found = loader.values(owner[name])
        loader.sooner.add(owner[name])
        staged.update(found)
        set_names(found)
        return found[name]

    settings.Unread.read = read
    try:
        yield
    finally:
        settings.Unread.read = None


def restore(
    snapshot: Snapshot,
    store: Store,
    session: pickling.Session,
    set_names: Callable[[dict[str, Any]], None],
    lazy: bool = True,
    progress: Callable[[int, int], None] | None = None,
    later: Mapping[int, Collection[str]] = MappingProxyType({}),
) -> tuple[Told, Loader]:
    """Rebuild everything but the variables of groups in `later`, then set it at once.

    # Errors
    `FormError`, with the namespace untouched.
    """
    started = clock.now()
    loader = Loader(snapshot, store, session, lazy)
    store.ask_for([name for entry in snapshot.units.values() for name in chunks_of(entry)])
    # Read at once, what isn't there is told at once.
    later = {uid: names for uid, names in later.items() if store.holds(chunks_of(snapshot.units[uid]))}
    sections = snapshot.process(store, loader.notice)
    process.apply_early(sections, loader.notice)
    with gc_pause.Paused():
        staged = loader.load_all(progress=progress, later=later)
    gone = {name for uid in loader.failed for name in snapshot.units[uid].names}
    set_names({name: value for name, value in staged.items() if name not in gone})
    if gone:
        with gc_pause.Paused():
            staged.update(loader.again())
        set_names({name: staged[name] for name in gone})
    with _put_off(loader, later, staged, set_names):
        process.apply_late(sections, loader.notice)
    loader.forget()
    lost = lost_in(snapshot, staged)
    lost.update({name: why for uid, why in loader.failed.items() for name in snapshot.units[uid].names})
    for entry in snapshot.units.values():
        loader.notice_of(entry)
    return Told(sorted(staged), lost, loader.notices, clock.now() - started), loader
