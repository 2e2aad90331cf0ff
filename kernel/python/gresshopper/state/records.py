"""Records of the saved form, made of the findings of captures (docs/state-format.md), and the places of records.

A `Writer` makes records; a journal keeps them: a log of this process's own (`FileJournal`), or the supervisor's
(`supervised`). The agent decides on captures and their times.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from gresshopper import clock

from . import capture, form, native
from . import restore as restoring
from .namespace import SHOWN, inputs_of, number_of
from .units import Unit


class Ran:
    """A cell that ran, to be captured."""

    __slots__ = ("count", "effects", "msg_id", "ok", "raw", "seconds", "seq", "silent")

    def __init__(self, result: Any, seq: int, msg_id: str, seconds: float, effects: dict[str, Any]) -> None:
        info = getattr(result, "info", None)
        self.raw = (info.raw_cell if info is not None else "") or ""
        self.seq, self.msg_id, self.seconds, self.effects = seq, msg_id, seconds, effects
        self.ok = bool(result is not None and result.success)
        self.count = getattr(result, "execution_count", None)
        #: True for a silent request, which is no cell of the notebook: nothing is known but the effects.
        self.silent = False

    @classmethod
    def silently(cls, source: str, seq: int, msg_id: str) -> Ran:
        """A silent request that ran. `seq`: the number of the last cell before."""
        ran = cls(None, seq, msg_id, 0.0, {})
        ran.raw, ran.silent = source, True
        return ran


class Record(NamedTuple):
    """Findings of one capture, in their stored form."""

    head: dict[str, Any]
    body: bytes
    #: The cells and silent requests that it completes, oldest first.
    cells: tuple[Ran, ...]
    #: Why it was made: `begin`, `cells` or `audit`.
    cause: str
    seconds: float
    #: Whether the reply of the last cell waits for this record.
    reply_waits: bool = False

    def text(self) -> bytes:
        """The head as it lies in a log."""
        return json.dumps(self.head, separators=(",", ":")).encode()


class Outcome(NamedTuple):
    """Result of a cell's capture before its reply: `whole`, `later` or `failed`, and a sentence for the latter
    two."""

    status: str
    why: str = ""
    #: Execution count of the first cell that isn't captured, after a failure.
    since: int | None = None


class Journal(Protocol):
    """Where records are kept."""

    def add(self, record: Record) -> None:
        """Keep a record.

        # Errors
        `FormError` if it wasn't kept.
        """

    def cell_over(self, ran: Ran, outcome: Outcome, seconds: float) -> None:
        """A cell's capture is over for now; the reply leaves next."""

    def failed(self, outcome: Outcome) -> None:
        """Captures fail from now on, and no reply is in wait that could say so."""

    def audited(self, after: str) -> None:
        """An audit looked for what the callbacks of widgets changed until this message."""

    def notice(self, lost: Mapping[str, str], notices: Sequence[str]) -> bool:
        """Tell the user the late findings of a restore; returns whether that is done here."""

    def close(self) -> None:
        """No more records come."""


class FileJournal:
    """A log in a folder, written by this process itself."""

    def __init__(self, directory: Path, resume: bool = False) -> None:
        self._log = form.Log(directory, form.owner_key())
        if resume:
            self._log.resume()
        else:
            self._log.create()
            self._log.commit(False)

    def add(self, record: Record) -> None:
        """As `Journal`."""
        self._log.add(record.text(), record.body)
        self._log.commit(False)

    def cell_over(self, ran: Ran, outcome: Outcome, seconds: float) -> None:
        """As `Journal`."""

    def failed(self, outcome: Outcome) -> None:
        """As `Journal`."""

    def audited(self, after: str) -> None:
        """As `Journal`."""

    def notice(self, lost: Mapping[str, str], notices: Sequence[str]) -> bool:
        """As `Journal`."""
        return False

    def close(self) -> None:
        """As `Journal`."""
        self._log.close()


class Writer:
    """Makes the records of a kernel, each a difference to its predecessor."""

    def __init__(self, shell: Any, taken: capture.Capture) -> None:
        self._shell, self._capture = shell, taken
        self._inputs = 0
        self._ordered: Sequence[str] = []
        self._modules = 0
        #: Threads, tasks and programs that ran beside the cells at the last record.
        self._beside: Sequence[str] = []

    def moved(self) -> bool:
        """Whether the variables follow one another otherwise than in the last record, or something else runs beside the
        cells.
        """
        return self._capture.order() != self._ordered or self._capture.running() != self._beside

    def is_beside(self) -> bool:
        """Whether something runs beside the cells, or did at the last record."""
        return bool(self._beside or self._capture.running())

    def continues(self, inputs: int, beside: Sequence[str]) -> None:
        """Notes that the present state was recorded: the variables in their order, the number of inputs, and what ran
        beside the cells.
        """
        self._ordered, self._inputs, self._beside = self._capture.order(), inputs, beside

    def record(
        self,
        delta: capture.Delta,
        cells: Sequence[Mapping[str, Any]],
        full: bool = False,
        again: Mapping[int, Mapping[str, Any]] | None = None,
        redo: Callable[[Callable[[bytes], Any]], Any] | None = None,
    ) -> tuple[dict[str, Any], bytes]:
        """A record's head and body. `cells`: the cells that it completes. `again`: descriptions of groups that their
        cells make again. `redo`: describes those cells, given a way to keep bytes."""
        body = bytearray()
        units = []
        for changed in delta.changed:
            said = (again or {}).get(changed.unit.uid)
            if said is not None and not changed.unit.gone:
                units.append({**_left(changed.unit), **said})
            else:
                units.append({**self._entry(changed, body), **(said or {})})
        space = self._shell.user_ns
        inputs = inputs_of(self._shell) or [""]
        raw = self._shell.history_manager.input_hist_raw if hasattr(self._shell, "history_manager") else []
        first = 0 if full else self._inputs
        self._inputs = len(inputs)
        before, last = cells[:-1], cells[-1] if cells else None
        head: dict[str, Any] = {
            "full": full,
            "shown": {n: number_of(self._shell, n, space[n]) for n in SHOWN if n in space},
            "at": clock.since_1970(),
            "before": list(before),
            "cell": last,
            "units": units,
            "gone": delta.removed,
            "process": {k: self._ref(v, body) for k, v in delta.process.items()},
            "inputs": {str(i): inputs[i] for i in range(first, len(inputs))},
            # As they were typed, where IPython runs something else: `%history`, `%rerun` and `_i3` are these.
            "raw": {str(i): raw[i] for i in range(first, min(len(inputs), len(raw))) if raw[i] != inputs[i]},
            "count": last["count"] + 1 if last and last["count"] else self._shell.execution_count,
            "env": restoring.environment() if full or (last is None and self._new_modules()) else None,
        }
        order = self._order(full)
        if order is not None:
            head["order"] = order
        self._beside = self._capture.running()
        if self._beside:
            head["beside"] = self._beside
        if redo is not None:
            head["redo"] = {"cells": redo(lambda data: self._ref(data, body))}
        return head, bytes(body)

    def _order(self, full: bool) -> tuple[int, list[str]] | None:
        """The order of the variables as a difference to the last record: the number of unmoved ones, and the
        rest."""
        now = self._capture.order()
        if now is self._ordered and not full:
            return None
        if not full and now[: len(self._ordered)] == self._ordered:  # what is new comes last, nearly always
            kept, self._ordered = len(self._ordered), now
            return None if kept == len(now) else (kept, now[kept:])
        there = frozenset(now)
        before = [] if full else [name for name in self._ordered if name in there]
        same = not full and len(before) == len(self._ordered) and before == now
        self._ordered = now
        kept = next((i for i, (a, b) in enumerate(zip(before, now)) if a != b), len(before))
        return None if same else (kept, now[kept:])

    def _new_modules(self) -> bool:
        changed = self._modules != len(sys.modules)
        self._modules = len(sys.modules)
        return changed

    def _ref(self, data: bytes, body: bytearray) -> dict[str, Any]:
        if len(data) <= form.INLINE:
            body += data
            return {"in": [len(body) - len(data), len(data)]}
        return {"n": len(data), "c": self._capture.store.put(native.address(memoryview(data)), len(data))}

    def _entry(self, changed: capture.Changed, body: bytearray) -> dict[str, Any]:
        unit = changed.unit
        for i, buffer in enumerate(changed.buffers):
            unit.blobs[i] = self._capture.memories.keep(buffer, unit.blobs[i])
        return {
            **_described(unit),
            "s": self._ref(changed.stream, body),
            "b": [[b.nbytes, int(b.items), list(b.chunks)] for b in unit.blobs],
            "f": unit.foreign,
            "t": sorted(t for t in unit.touches if t in self._shell.user_ns),
            "gone": [list(g) for g in unit.gone],
        }


def _left(unit: Unit) -> dict[str, Any]:
    """A group left to its cells."""
    nothing = {"left": True, "s": {"n": 0, "c": []}, "f": [], "t": [], "gone": []}
    return {**_described(unit), **nothing, "b": [[b.nbytes, int(b.items), []] for b in unit.blobs]}


def _described(unit: Unit) -> dict[str, Any]:
    return {
        "u": unit.uid,
        "m": list(unit.members),
        "v": unit.first,
        "c": sorted(unit.classes),
        "dyn": int(unit.dynamic),
        "dev": int(unit.on_device),
        "notes": unit.notes,
        "types": sorted(unit.types),
        "cell": unit.cell,
        "sec": round(unit.seconds, 6),
        "dig": unit.digest.hex(),
    }
