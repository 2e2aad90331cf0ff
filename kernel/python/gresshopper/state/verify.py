"""Loads the streams of classes with pickling code of their own, and compares.

The load happens in a forked child: the class's own loading code has no effect on the user's process.
"""

from __future__ import annotations

import os
import select
import signal
import types
import warnings
from collections.abc import Sequence
from typing import Any

from gresshopper import typenames

from . import native, pickling, recursion, rules, shapes
from .session import reason
from .store import Store

#: Seconds after which a load counts as failed.
LIMIT = 5.0


class _Source:
    """Gives a stream its own buffers back."""

    apart = True

    def __init__(self, session: pickling.Session, dump: pickling.Dump, blobs: Sequence[Any], store: Store) -> None:
        self.namespace = session.namespace
        self._session, self._dump, self._blobs, self._store = session, dump, blobs, store

    def nbytes(self, index: int) -> int:
        return int(self._blobs[index].nbytes)

    def fill(self, index: int, into: memoryview) -> None:
        buffer = self._dump.buffers[index]
        into[:] = native.view_of(buffer.address, buffer.nbytes)

    def mapped(self, index: int) -> Any:
        return None

    def items(self, index: int) -> list[Any]:
        found: list[Any] = self._dump.buffers[index].items.tolist()  # type: ignore[union-attr]
        return found

    def class_of(self, cid: str) -> type:
        return self._session.classes[cid]

    def reads(self, code: types.CodeType) -> None:
        pass

    def notice(self, text: str) -> None:
        pass


def own_pickling(session: pickling.Session, dump: pickling.Dump, blobs: Sequence[Any], store: Store) -> list[str]:
    """Losses by the notebook's own pickling code, in sentences; nothing if all comes back."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fork beside threads: the child only loads and compares
        child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            recursion.lift()
            os.write(writer, "\n".join(_compare(session, dump, blobs, store)).encode()[:4000])
        finally:
            os._exit(0)
    os.close(writer)
    try:
        return _answer(reader, child)
    finally:
        os.close(reader)


def _answer(reader: int, child: int) -> list[str]:
    ready, _, _ = select.select([reader], [], [], LIMIT)
    if not ready:
        os.kill(child, signal.SIGKILL)
    said = os.read(reader, 4096).decode(errors="replace") if ready else "loading it takes too long to be sure of it"
    os.waitpid(child, 0)
    return [line for line in said.splitlines() if line]


def _compare(session: pickling.Session, dump: pickling.Dump, blobs: Sequence[Any], store: Store) -> list[str]:
    source = _Source(session, dump, blobs, store)
    try:
        foreign = [bytearray(native.view_of(dump.buffers[i].address, dump.buffers[i].nbytes)) for i in dump.foreign]
        made = pickling.load(source, dump.stream, foreign, bool(dump.first))
    except Exception as e:
        return [f"its class's own pickling can't be loaded: {reason(e)}"]
    loaded = _instances(made, {type(s) for s in dump.suspects})
    return [*_differences(dump.suspects, loaded), *_lost_keys(dump.suspects)]


def _lost_keys(suspects: Sequence[Any]) -> list[str]:
    """Keys that their dictionary or set no longer finds, since they changed: a restore would find them again."""
    import gc

    hashing = {type(s) for s in suspects if rules.own_hook(type(s), "__hash__")}
    if not hashing:
        return []
    holders = [h for h in gc.get_referrers(*suspects) if type(h) in (dict, set, frozenset)]
    lost = {typenames.qualname_of(type(k)) for h in holders for k in list(h) if type(k) in hashing and k not in h}
    return [f"a key of the class {name} was changed after it was put in; a restore finds it again" for name in lost]


def _instances(root: Any, wanted: set[type]) -> dict[type, list[Any]]:
    """Instances of these classes, in the order of a walk."""
    import gc

    found: dict[type, list[Any]] = {}
    seen = {id(root)}
    queue = [root]
    while queue and len(seen) < 100_000:
        top = queue.pop(0)
        if type(top) in wanted:
            found.setdefault(type(top), []).append(top)
        for inner in gc.get_referents(top):
            if (
                id(inner) not in seen
                and not isinstance(inner, type)
                and typenames.name_of(type(inner)) != "module"
                and not (isinstance(inner, dict) and "__builtins__" in inner)
            ):
                seen.add(id(inner))
                queue.append(inner)
    return found


def _differences(suspects: Sequence[Any], loaded: dict[type, list[Any]]) -> list[str]:
    said = []
    for cls in {type(s) for s in suspects}:
        want = sorted(shapes.of(s) for s in suspects if type(s) is cls)
        got = sorted(shapes.of(s) for s in loaded.get(cls, []))
        if want != got:
            missing = sorted({n for shape in want for n, _ in shape} - {n for shape in got for n, _ in shape})
            what = f"loses {', '.join(missing)}" if missing else "changes it"
            said.append(f"{typenames.qualname_of(cls)}'s own pickling {what}")
    return said
