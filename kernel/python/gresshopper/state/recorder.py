"""Captures the effects of cells, and makes a record of the journal and a note for the plan of a save.

Each capture's record is a difference to the previous record. The `Watcher` decides on the times of captures and on the
fate of a failed capture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gresshopper import clock

from . import capture, effects, names, planning, process, records, redo, restore, user_modules
from .deferred import Unread
from .namespace import Namespace
from .notices import Notices
from .records import Ran
from .session import NotYet
from .store import StoreHangs

#: Cells whose findings are remembered for plans: a plan doesn't run older ones again.
NOTES = 2000
_NOTHING = capture.Delta([], [], {}, 0.0)


class Recorder:
    """The captures of one kernel, and their records."""

    def __init__(self, namespace: Namespace, taken: capture.Capture, unread: Unread, notices: Notices) -> None:
        self._namespace, self._capture, self._unread, self._notices = namespace, taken, unread, notices
        self._writer = records.Writer(namespace.shell, taken)
        #: Where records are kept, if anywhere.
        self.journal: records.Journal | None = None
        #: Numbers of the last run cell and of the last captured cell.
        self.last = self.seq = 0
        #: Findings of each capture, for the plan of a save.
        self.notes: list[dict[str, Any]] = []
        #: The next record holds everything, because an earlier one was lost.
        self._anew = False

    def begin(self, journal: records.Journal | None) -> None:
        """Keep records in a journal if one is given, the first one of the state before the first observed cell."""
        self.journal = journal
        if self.notes:
            return
        started = clock.now()
        delta = self._capture.run(None, self.seq, everything=self._anew, libraries=False)
        self.note(delta)
        self._keep(delta, [], (), "begin", started)

    def end(self) -> None:
        """Keep no more records."""
        if self.journal is not None:
            self.journal.close()
            self.journal = None

    # --- captures ---

    def cells(self, waiting: list[Ran], reply_waits: bool) -> None:
        """Capture what these cells did. `reply_waits`: the last one's reply waits for the record."""
        started = clock.now()
        for ran in waiting:
            self._capture.programs.note(ran.effects.get("did", ()))
        sources = [self._namespace.source_of(ran.raw, ran.count) for ran in waiting]
        found = [names.names_of_source(source) for source in sources]
        together = names.Names(
            set().union(*(f.names for f in found)),
            any(f.dynamic for f in found),
            frozenset().union(*(f.stored for f in found)),
            frozenset().union(*(f.words for f in found)),
            frozenset().union(*(f.inner for f in found)),
        )
        together.names.update(self._namespace.displayed(together.names))
        delta = self._run(together, waiting[-1].seq)
        self.seq = waiting[-1].seq
        cells = self._described(waiting, sources, found)
        for i, cell in enumerate(cells):
            self.note(delta if i + 1 == len(cells) else _NOTHING, cell)
        if not cells:
            self.note(delta)
        self._keep(delta, cells, waiting, "cells", started, reply_waits)

    def audit(self, always: bool = False) -> capture.Delta:
        """Look at everything. It finds what no cell's names showed, and arms the tracking. `always`: a record says that
        all is saved even if nothing was found.
        """
        started = clock.now()
        try:
            delta = self._run(None, self.seq)
        except NotYet:
            self._unread.read_all()
            delta = self._run(None, self.seq)
        self.note(delta)
        # A record of everything says of an empty namespace that it is empty.
        found = delta.changed or delta.removed or delta.process or self._anew or always
        if self.journal is not None and (found or self._writer.moved()):
            self._keep(delta, [], (), "audit", started)
        return delta

    @property
    def hung(self) -> StoreHangs | None:
        """The error of a store that hangs: no capture of large values can be whole."""
        store = self._capture.store
        return store.hung() if store.hangs else None

    def is_beside(self) -> bool:
        """Whether something runs beside the cells, or did at the last record."""
        return self._writer.is_beside()

    def _run(self, found: names.Names | None, seq: int) -> capture.Delta:
        if self._anew:
            self._unread.read_all()
            return self._capture.run(None, seq, everything=True, libraries=found is None)
        return self._capture.run(found, seq, arm=found is None)

    def _keep(
        self,
        delta: capture.Delta,
        cells: list[dict[str, Any]],
        ran: Sequence[Ran],
        cause: str,
        started: float,
        reply_waits: bool = False,
    ) -> None:
        """Put a capture's findings into the journal. After a failure no record has these units, so the next record
        holds everything."""
        if self.journal is None:
            return
        anew, self._anew = self._anew, True
        head, body = self._writer.record(delta, cells, full=anew)
        self._notices.lost_anew(name for one in delta.changed if one.unit.gone for name in one.unit.names)
        if told := self._notices.standing():
            head["told"] = told
        took = clock.now() - started
        self.journal.add(records.Record(head, body, tuple(ran), cause, took, reply_waits))
        self._anew = False

    def _described(self, waiting: list[Ran], sources: list[str], found: list[names.Names]) -> list[dict[str, Any]]:
        cells = []
        shown = [one for one in zip(waiting, sources, found) if not one[0].silent]
        joint = sum(not ran.silent or bool(ran.raw.strip()) for ran in waiting) > 1
        for i, (ran, source, named) in enumerate(shown):
            touched = self._capture.chosen if i + 1 == len(shown) else sorted(self._capture.units)
            used = sorted(n for n in named.names if n in self._namespace.variables)
            cells.append(
                {
                    "seq": ran.seq,
                    "source": source,
                    "file": self._namespace.file_of(source, ran.raw, ran.count),
                    "seconds": ran.seconds,
                    "ok": ran.ok,
                    "joint": joint,
                    "names": used,
                    "touched": touched,
                    "uses": self._uses(used, touched),
                    "effects": ran.effects,
                    "count": ran.count,
                }
            )
        return cells

    def _uses(self, used: list[str], touched: list[int]) -> list[str]:
        """Names in the functions that a cell may call, if relevant for a re-run."""
        units = self._capture.units
        reached = {m for u in touched if u in units for m in units[u].touches}
        told = effects.telling(reached)
        space = self._namespace.variables
        if any(user_modules.is_from_own(space[n]) for n in {*used, *reached} if n in space):
            told.append(effects.LOCAL)
        return told

    def note(self, delta: capture.Delta, cell: dict[str, Any] | None = None) -> None:
        """Remember what a capture found."""
        again = process.again() if delta.process else ()
        drawn = {k: v for k, v in delta.process.items() if k in again}
        if cell is None and not delta.changed and not delta.removed and not drawn:
            return
        units = [
            {
                "u": c.unit.uid,
                "m": list(c.unit.members),
                "dig": c.unit.digest.hex(),
                "tags": c.unit.tags,
                "lost": bool(c.unit.gone),
            }
            for c in delta.changed
        ]
        self.notes.append({"cell": cell, "units": units, "gone": list(delta.removed), "drawn": drawn})
        if len(self.notes) > NOTES:
            self.notes = planning.shortened(self.notes, NOTES // 2)

    # --- where records begin ---

    def next_record(self, anew: bool) -> None:
        """The next record is asked for; `anew`: it has to hold everything."""
        self._anew = self._anew or anew

    def forget(self) -> None:
        """Nothing of what was recorded counts any more."""
        self._capture.reset()
        self.notes, self._anew = [], True

    def adopt(self, snapshot: restore.Snapshot) -> None:
        """Go on from a restored state: later captures are differences to it."""
        cells = [r.head["cell"]["seq"] for r in snapshot.records if r.head["cell"]]
        self.last = self.seq = max([self.seq, *cells])
        self._adopt_units(snapshot)
        self._writer.continues(len(self._namespace.inputs or [""]), snapshot.beside)
        self.notes = self.notes or redo.notes_of(snapshot, self._capture.store)

    def adopt_redone(self, snapshot: restore.Snapshot) -> None:
        """Have a save leave to their cells what those have just made again, in a kernel without notes of its own."""
        if snapshot.redo["cells"] and not self.notes:
            self.notes = redo.notes_of(snapshot, self._capture.store)
            self._adopt_units(snapshot)
            self.last = self.seq = max(cell["seq"] for cell in snapshot.redo["cells"])

    def _adopt_units(self, snapshot: restore.Snapshot) -> None:
        said = [entry.said for entry in snapshot.units.values()]
        self._capture.adopt(said, snapshot.process(self._capture.store, _unsaid))


def _unsaid(_: str) -> None:
    """Something that the restore has told already."""
