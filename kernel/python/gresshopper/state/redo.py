"""Carries out a plan at the target: runs cells again for the groups that a saved state leaves to them.

Cells run in order in a scratch namespace, each with its own versions of the inputs. Their results must equal the
recorded results. Only the wanted groups are taken; other effects of a cell are dropped. As a program, the module is the
trial: a fresh Python that reads the state and reports the groups it could rebuild.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import buffers, effects, form, pickling, planning, process, rerun, restore
from .session import reason, title
from .store import Store


def described(history: planning.History, cells: Sequence[int], ref: Callable[[bytes], Any]) -> list[dict[str, Any]]:
    """The cells that run again, as the saved form holds them. `ref` keeps bytes and says where."""
    found = []
    for i in cells:
        cell = dict(history.notes[i]["cell"])
        changed = history.notes[i]["drawn"]
        drew = {k: v for k, v in history.before[i].items() if k in changed or history.now.get(k) != v}
        cell["reads"] = sorted(u for u, at in history.reads[i] if history.last.get(u) == at)
        cell["drawn"] = {k: ref(v) for k, v in drew.items()}
        cell["made"] = [
            [made["m"], made["dig"], made["tags"]]
            for made in history.notes[i]["units"]
            if not made["lost"] and not any(effects.shown(m[2:]) for m in made["m"])
        ]
        cell["units"] = history.notes[i]["units"]
        found.append(cell)
    return found


def notes_of(snapshot: restore.Snapshot, store: Store) -> list[dict[str, Any]]:
    """The notes of a restored state's cells, for a later save to leave the same groups to these cells again."""
    rest = [
        {"u": e.said["u"], "m": e.said["m"], "dig": e.said["dig"], "tags": "", "lost": bool(e.said["gone"])}
        for e in snapshot.units.values()
        if not e.said.get("redo")
    ]
    notes: list[dict[str, Any]] = [{"cell": None, "units": rest, "gone": [], "drawn": {}}]
    for cell in snapshot.redo["cells"]:
        drawn = {k: snapshot.redo_bytes(ref, store) for k, ref in cell["drawn"].items()}
        notes.append({"cell": None, "units": [], "gone": [], "drawn": drawn})
        notes.append({"cell": cell, "units": cell["units"], "gone": [], "drawn": drawn})
    return notes


def fingerprint(session: pickling.Session, values: Sequence[Any], first: int = 0) -> tuple[str, str]:
    """Digests of a group's content: hashes of the stream and of the buffers."""
    dump = pickling.dump(session, list(values), first=first)
    return hashlib.blake2b(dump.stream, digest_size=16).hexdigest(), tags_of(dump.buffers, _plain_tags)


def tags_of(buffers: Sequence[pickling.Buffer], of: Callable[[pickling.Buffer], bytes]) -> str:
    """A single hash for the content of some buffers."""
    return hashlib.blake2b(b"".join(of(b) for b in buffers if b.nbytes), digest_size=16).hexdigest()


def _plain_tags(buffer: pickling.Buffer) -> bytes:
    return buffers.content_tags(buffer)


class _Mismatch(Exception):
    """A rebuilt group differs from the recorded one; says how."""


class Replay:
    """One run of the planned cells."""

    def __init__(self, snapshot: restore.Snapshot, store: Store, session: pickling.Session) -> None:
        self._snapshot, self._store, self._session = snapshot, store, session
        self._wanted = {uid: e for uid, e in snapshot.units.items() if e.said.get("redo")}
        self._flags = rerun.flags_of(lambda: restore.stream(snapshot.sections[rerun.FUTURES], store))
        self.values: dict[str, Any] = {}
        self.failed: dict[int, str] = {}
        #: Sections of the process that the cells changed.
        self.left: list[str] = []

    def run(self) -> None:
        """Run the cells; what could be rebuilt is in `values`, why not in `failed`."""
        if not self._wanted:
            return
        aside = process.Aside()
        namespace = self._session.namespace
        live = dict(namespace)
        try:
            with rerun.emptied(namespace, self._snapshot):
                loader = restore.Loader(self._snapshot, self._store, self._session, lazy=False, live=live)
                for cell in self._snapshot.redo["cells"]:
                    self._cell(cell, loader, namespace, aside)
                aside.back()
                for uid, entry in self._wanted.items():
                    if uid not in self.failed:
                        self._take(uid, entry, namespace)
        finally:
            self.left = aside.end()

    def _cell(
        self, cell: Mapping[str, Any], loader: restore.Loader, scratch: dict[str, Any], aside: process.Aside
    ) -> None:
        if all(uid in self.failed for uid in self._needing(cell)):
            return
        why = effects.barred(cell) or rerun.other_modules(cell, self._snapshot, self._store)
        try:
            if why is not None:
                raise _Mismatch(why)
            for uid in cell["reads"]:
                if uid not in self._wanted:
                    scratch.update(loader.values(uid))
            drawn = {k: self._snapshot.redo_bytes(ref, self._store) for k, ref in cell["drawn"].items()}
            aside.back()
            why = aside.set(drawn)
            if why is not None:
                raise _Mismatch(why)
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                file = cell.get("file") or "<re-run>"
                exec(compile(cell["source"], file, "exec", self._flags, dont_inherit=True), scratch)
            self._compare(cell, scratch)
        except _Mismatch as e:
            self._fail(cell, str(e))
        except BaseException as e:
            self._fail(cell, f"running its cell again failed: {reason(e)}")

    def _needing(self, cell: Mapping[str, Any]) -> list[int]:
        return [uid for uid, e in self._wanted.items() if cell["seq"] in e.said["redo"]]

    def _fail(self, cell: Mapping[str, Any], why: str) -> None:
        for uid in self._needing(cell):
            self.failed.setdefault(uid, why)

    def _compare(self, cell: Mapping[str, Any], scratch: dict[str, Any]) -> None:
        for members, digest, tags in cell["made"]:
            names = [m[2:] for m in members]
            if any(name not in scratch for name in names):
                raise _Mismatch("running its cell again gave other variables")
            if fingerprint(self._session, [scratch[name] for name in names]) != (digest, tags):
                raise _Mismatch(f"running its cell again gave another {', '.join(names)}")

    def _take(self, uid: int, entry: restore.Entry, scratch: dict[str, Any]) -> None:
        made = {name: scratch[name] for name in entry.names if name in scratch and not effects.shown(name)}
        made.update({name: made[same] for name, same in entry.said.get("as", {}).items() if same in made})
        if sorted(made) != sorted(entry.names):
            self.failed[uid] = "running its cells again gave other variables"
            return
        values = [made[m[2:]] for m in entry.said["m"]]
        if fingerprint(self._session, values, entry.first) != (entry.said["dig"], entry.said["tags"]):
            self.failed[uid] = "running its cells again didn't give the same"
            return
        self.values.update(made)


def recover(
    snapshot: restore.Snapshot,
    store: Store,
    session: pickling.Session,
    set_names: Callable[[dict[str, Any]], None],
    told: restore.Told,
) -> restore.Told:
    """Rebuild groups that the plan left to their cells. A failed one stays a placeholder, and the reason is told."""
    replay = Replay(snapshot, store, session)
    replay.run()
    set_names(replay.values)
    lost, notices = dict(told.lost), list(told.notices)
    if replay.left:
        notices.append(rerun.left_over([name for e in replay._wanted.values() for name in e.names], replay.left))
    for uid, entry in snapshot.units.items():
        if not entry.said.get("redo"):
            continue
        if uid in replay.failed:
            for name in entry.names:
                lost[name] = f"{lost.get(name, 'it was left to its cells')}; {replay.failed[uid]}"
        else:
            for name in entry.names:
                lost.pop(name, None)
            if not entry.said.get("left"):
                notices.append(f"{title(entry.said['m'])}: rebuilt by running the cells again")
    return restore.Told(told.names, lost, notices, told.seconds)


def trial(directory: Path, store: Path) -> dict[int, str]:
    """Omitted groups that can't be rebuilt here, with reasons."""
    snapshot = restore.Snapshot(form.read(directory, form.owner_key(make=False)))
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    session = pickling.Session(main.__dict__)
    opened = Store(store)
    process.apply_early(snapshot.process(opened), lambda _: None)
    replay = Replay(snapshot, opened, session)
    replay.run()
    return replay.failed


def main() -> None:
    """The trial: answers on the last line of its output."""
    with contextlib.suppress(OSError):  # where memory runs out, the trial is to go, not the user's kernel
        Path("/proc/self/oom_score_adj").write_text("1000")
    failed = trial(Path(sys.argv[1]), Path(sys.argv[2]))
    print("\x1e" + json.dumps(failed), flush=True)


if __name__ == "__main__":
    main()
