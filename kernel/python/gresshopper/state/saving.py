"""Writes the whole present state into a folder.

A plan may leave groups to the cells that made them. Before the plan counts, a fresh Python tries the plan: groups not
made again by the cells are written after all. The store's content is compressed afterwards, beside the cells.
"""

from __future__ import annotations

import _thread
import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, NamedTuple

from gresshopper import private

from . import capture, effects, form, planning, records, redo
from .namespace import Namespace
from .recorder import Recorder
from .session import title
from .units import Unit
from .unmovable import Unmovable

#: Program of the trial's Python, with this process's copy of the package.
_TRIAL = "import sys; sys.path.insert(0, sys.argv.pop(1)); from gresshopper.state import redo; redo.main()"
#: So often a plan is made and tried; then everything is stored.
_TRIALS = 4


class _Planned(NamedTuple):
    """A plan, the notes behind the plan, and descriptions of the groups left to their cells."""

    plan: planning.Plan
    history: planning.History
    again: dict[int, dict[str, Any]]


class Saver:
    """Saves the state of one kernel."""

    def __init__(
        self, namespace: Namespace, taken: capture.Capture, recorder: Recorder, unmovable: Unmovable
    ) -> None:
        self._namespace, self._capture, self._recorder, self._unmovable = namespace, taken, recorder, unmovable
        self._store = taken.store
        #: Rates of the store for writing and reading, in bytes per second (measured at the first need).
        self.rates: tuple[float, float] | None = None
        #: Whether the content of the last save is compressed.
        self._packing: threading.Event | None = None
        #: Bytes that the store had written when it was compressed last.
        self._packed = 0

    def save(self, directory: Path, durable: bool, whole: bool, libraries: bool) -> dict[str, Any]:
        """Write the state. Content left by the plan to its cells is omitted, unless `whole`. `libraries`: libraries may
        have changed since the last audit.

        # Errors
        `FormError` or `StoreError`; an existing state stays as before.
        """
        units = self._capture.units
        known = {unit.uid: (unit, unit.digest, unit.tags) for unit in units.values()}
        delta = self._capture.run(None, self._recorder.seq, everything=True, libraries=libraries)
        fresh = [c for c in delta.changed if not _is_known(c.unit, known.get(c.unit.uid))]
        self._recorder.note(delta._replace(changed=fresh))
        if any(c.unit.gone or _unstored(c.unit) >= planning.WORTH for c in delta.changed):
            planned = self._planned(directory, delta, planning.History(self._recorder.notes), durable, whole)
        else:
            every = planning.Plan({c.unit.uid: planning.SHIP for c in delta.changed}, [], {})
            planned = _Planned(every, planning.History([]), {})
        length = self._write(directory, delta, planned, durable)
        self._compress()
        return {
            "units": len(delta.changed),
            "log_bytes": length,
            "lost": self._lost(planned.plan),
            "left": self._left(planned.plan, gone=False),
            "rebuilt": self._left(planned.plan, gone=True),
            "notes": self._notes(),
        }

    def groups(self) -> list[dict[str, Any]]:
        """Each group with variables, as last captured: its cost and unsavable parts."""
        return [
            {
                "names": u.names,
                "bytes": u.nbytes(),
                "seconds": u.seconds,
                "types": sorted(u.types),
                "lost": [list(g) for g in u.gone],
                "notes": u.notes,
            }
            for u in sorted(self._capture.units.values(), key=lambda u: -u.nbytes())
            if u.names
        ]

    # --- the plan ---

    def _planned(
        self, directory: Path, delta: capture.Delta, history: planning.History, durable: bool, whole: bool
    ) -> _Planned:
        """Groups to ship, and groups to leave to their cells: only groups within a trial's power."""
        units = [c.unit for c in delta.changed]
        groups = [
            planning.Group(
                u.uid,
                u.members,
                u.nbytes(),
                _unstored(u),
                u.plain,
                u.seconds,
                bool(u.gone),
                effects.belonging(u.gone),
            )
            for u in units
        ]
        failed: dict[int, str] = {u.uid: "" for u in units if whole or self._shown_as(u) is None}
        for _ in range(_TRIALS):
            plan = planning.plan(history, groups, lambda: self._measure(durable), failed)
            again: dict[int, dict[str, Any]] = {
                u.uid: {"redo": self._seqs(history, u.uid), "as": self._shown_as(u) or {}, "tags": u.tags}
                for u in units
                if plan.choices[u.uid] == planning.RECOMPUTE
            }
            again.update({uid: {"why": why} for uid, why in plan.why.items()})
            planned = _Planned(plan, history, again)
            if not any(u.uid in again and not u.gone for u in units):
                return planned
            wrong = self._trial(directory, delta, planned)
            if not wrong:
                return planned
            failed.update(wrong)
        return self._planned(directory, delta, history, durable, whole=True)

    def _measure(self, durable: bool) -> tuple[float, float]:
        if self.rates is None:
            self.rates = self._store.rates(durable)
        return self.rates

    def _seqs(self, history: planning.History, uid: int) -> list[int]:
        return [self._recorder.notes[i]["cell"]["seq"] for i in history.back(uid)]

    def _shown_as(self, unit: Unit) -> dict[str, str] | None:
        """The variable behind each of IPython's names for displayed values; nothing if one of them isn't a
        variable."""
        space = self._namespace.variables
        plain = [n for n in unit.names if not effects.shown(n)]
        found = {
            name: next((n for n in plain if space[n] is space[name]), "")
            for name in unit.names
            if effects.shown(name)
        }
        return found if all(found.values()) else None

    def _trial(self, directory: Path, delta: capture.Delta, planned: _Planned) -> dict[int, str]:
        """Rebuild omitted groups in a fresh Python; returns the failed groups with reasons."""
        units = self._capture.units
        private.make(directory)
        with tempfile.TemporaryDirectory(prefix=".trial-", dir=directory) as place:
            private.make(Path(place), mend=True)
            self._write(Path(place), delta, planned, False)
            seconds = sum(self._recorder.notes[i]["cell"]["seconds"] for i in planned.plan.rerun)
            try:
                done = subprocess.run(
                    [sys.executable, "-c", _TRIAL, str(Path(__file__).parents[2]), place, str(self._store.root)],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=30 + 4 * seconds,
                    check=False,
                    env={k: v for k, v in os.environ.items() if k != "GRESSHOPPER_AGENT_FD"},
                )
                said = json.loads(done.stdout.decode(errors="replace").rpartition("\x1e")[2])
                return {int(uid): str(why) for uid, why in said.items() if not units[int(uid)].gone}
            except (OSError, ValueError, subprocess.SubprocessError) as e:
                return {uid: f"its trial failed: {e}" for uid in planned.again if not units[uid].gone}

    # --- the folder ---

    def _write(self, directory: Path, delta: capture.Delta, planned: _Planned, durable: bool) -> int:
        plan, history, again = planned
        log = form.Log(directory, form.owner_key())
        log.create()
        try:
            cells: Any = functools.partial(redo.described, history, plan.rerun) if plan.rerun else None
            writer = records.Writer(self._namespace.shell, self._capture)
            head, body = writer.record(delta, [], True, again, cells)
            length = log.add(json.dumps(head, separators=(",", ":")).encode(), body, compress=True)
            if durable:
                self._store.sync()
            log.commit(durable)
        finally:
            log.close()
        return length

    def _compress(self) -> None:
        """Begin to compress what the store has written since the last time."""
        if self._store.written != self._packed:
            self._packed = self._store.written
            self._packing = threading.Event()
            _thread.start_new_thread(self._pack, (self._packing,))  # without waiting until it runs

    def _pack(self, done: threading.Event) -> None:
        try:
            self._store.pack()
        finally:
            done.set()

    def packed(self) -> None:
        """Wait until what was saved is compressed."""
        if self._packing is not None:
            self._packing.wait()

    # --- the answer ---

    def _lost(self, plan: planning.Plan) -> dict[str, str]:
        """Lost values, and why they can't be made again."""
        return {
            name: f"{g.what}: {g.why}; it can't be made again: {plan.why[u.uid]}"
            for u in self._capture.units.values()
            if u.uid in plan.why
            for g in u.gone
            for name in u.names
        }

    def _left(self, plan: planning.Plan, gone: bool) -> dict[str, int]:
        """Groups left to their cells, with bytes: unsavable ones (`gone`), or ones cheaper to make again."""
        return {
            title(u.members): u.nbytes()
            for u in self._capture.units.values()
            if plan.choices.get(u.uid) == planning.RECOMPUTE and bool(u.gone) == gone
        }

    def _notes(self) -> dict[str, list[str]]:
        found = {title(u.members): u.notes for u in self._capture.units.values() if u.notes}
        more = self._unmovable.unfindable()
        return {**found, **{names: found.get(names, []) + notes for names, notes in more.items()}}


def _is_known(unit: Unit, before: tuple[Unit, bytes, str] | None) -> bool:
    """Whether a unit is unchanged: the same object, or the same content under new chunk names."""
    return before is not None and (unit is before[0] or (unit.digest, unit.tags) == before[1:])


def _unstored(unit: Unit) -> int:
    return unit.size + sum(b.nbytes for b in unit.blobs if b.deferred)
