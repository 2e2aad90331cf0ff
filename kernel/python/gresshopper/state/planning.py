"""From measurements to a plan: groups to ship, and groups to make again by running their cells.

The notes of the cells name the versions of groups that each read and made. This module turns notes and measured costs
into the problem solved by `kernel/state` with a plan. `rerun` decides which cells may run again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from . import effects, native

#: Seconds of a trial beside the cells: a separate Python, and its imports.
TRIAL = 2.0
#: Runs of a cell whose groups aren't shipped for their cost: in the trial and at the restore.
TWICE = 2.0
#: Least share of plain memory, written alike by every run, in an omitted group.
PLAIN = 0.9
#: Number of unstored bytes from which on an omission may be worth a trial.
WORTH = 16 * 1024 * 1024

SHIP, RECOMPUTE, PLACEHOLDER = "ship", "recompute", "placeholder"


class Group(NamedTuple):
    """A group's present state, with measurements."""

    uid: int
    members: tuple[str, ...]
    #: Bytes of the group's stream and buffers.
    nbytes: int
    #: Bytes among them that aren't in the store.
    unstored: int
    #: Bytes of its buffers of plain memory.
    plain: int
    #: Seconds to serialise it.
    seconds: float
    #: Whether a part of it can't be written.
    gone: bool
    #: Why its cells can't make it again, whatever they are.
    belongs: str | None = None


class Rates(NamedTuple):
    """Measured rates of the store, in bytes per second."""

    write: float
    read: float


class Plan(NamedTuple):
    """A choice for each group by its number, the notes whose cells run again, and why a group can't be rebuilt."""

    choices: dict[int, str]
    rerun: list[int]
    why: dict[int, str]


class History:
    """Known versions, from the notes: a version is a group's number and the note that wrote it."""

    def __init__(self, notes: Sequence[Mapping[str, Any]]) -> None:
        self.notes = notes
        #: For each note, the versions possibly read by its cell.
        self.reads: list[set[tuple[int, int]]] = []
        self.last: dict[int, int] = {}
        #: For each note, the earlier content of the sections from which cells draw.
        self.before: list[dict[str, bytes]] = []
        owner: dict[str, int] = {}
        lost: set[int] = set()
        drawn: dict[str, bytes] = {}
        for i, note in enumerate(notes):
            self.before.append(dict(drawn))
            drawn.update(note["drawn"])
            cell = note["cell"]
            read: set[int] = set()
            if cell is not None:
                read = {u for u in cell["touched"] if u in self.last}
                read |= {owner[n] for n in cell["names"] if n in owner}
            self.reads.append({(u, self.last[u]) for u in read})
            # An unwritable group may change without a sign: each cell that touched the group counts as its maker.
            self.last.update(dict.fromkeys(lost & read, i))
            for uid in note["gone"]:
                self.last.pop(uid, None)
            for made in note["units"]:
                self.last[made["u"]] = i
                (lost.add if made["lost"] else lost.discard)(made["u"])
                owner.update({m[2:]: made["u"] for m in made["m"] if m.startswith("n:")})
            owner = {name: uid for name, uid in owner.items() if uid in self.last}
        #: The same as of the last note.
        self.now = drawn

    def back(self, uid: int) -> list[int]:
        """The notes whose cells must run to rebuild a group, in order: back to versions still in store."""
        first = self.last.get(uid)
        stack, seen = ([] if first is None else [first]), set()
        while stack:
            top = stack.pop()
            if top not in seen:
                seen.add(top)
                stack += [at for u, at in self.reads[top] if self.last.get(u) != at]
        return sorted(seen)


def shortened(notes: Sequence[Mapping[str, Any]], keep: int) -> list[dict[str, Any]]:
    """The newest of these notes, behind a note for the dropped ones: groups made by no remembered cell."""
    old, new = notes[: len(notes) - keep], notes[len(notes) - keep :]
    units: dict[int, Any] = {}
    drawn: dict[str, bytes] = {}
    for note in old:
        for uid in note["gone"]:
            units.pop(uid, None)
        units.update({made["u"]: made for made in note["units"]})
        drawn.update(note["drawn"])
    return [{"cell": None, "units": list(units.values()), "gone": [], "drawn": drawn}, *map(dict, new)]


def rerunnable(history: History, uid: int, most: int) -> bool:
    """Whether a restore may make a group again by running its cells, as far as can be told before."""
    back = history.back(uid)
    return 0 < len(back) <= most and all(_barred(history.notes[i]) is None for i in back)


def plan(
    history: History, groups: Sequence[Group], measure: Callable[[], tuple[float, float]], failed: Iterable[int] = ()
) -> Plan:
    """The cheapest way to have every group in the restored kernel. Groups in `failed` must not be left out.
    `measure`: the store's rates, asked for only where they count.
    """
    notes = history.notes
    why_not = [_barred(note) for note in notes]
    index = {group.uid: i for i, group in enumerate(groups)}
    never, trial = len(notes), len(notes) + 1
    cells = [_cell(history, i, why_not[i], index) for i in range(len(notes))]
    cells += [{"run": None, "reads": []}, {"run": TRIAL, "reads": []}]
    refused = set(failed)
    free = {g.uid for g in groups if g.uid not in refused and not g.gone and g.unstored >= WORTH and _may(history, g)}
    rates = Rates(*measure()) if free else Rates(math.inf, math.inf)
    described = [
        {
            "producer": never if group.belongs is not None else history.last.get(group.uid, never),
            "ship": None if group.gone else _ship(group, rates),
            "also": None if group.gone else (trial if group.uid in free else never),
        }
        for group in groups
    ]
    made = _solve({"cells": cells, "groups": described})
    choices = {group.uid: choice for group, choice in zip(groups, made["choices"])}
    why = {g.uid: _why(history, g, why_not, choices) for g in groups if choices[g.uid] == PLACEHOLDER}
    return Plan(choices, [c for c in made["rerun"] if c < len(notes)], why)


def _cell(history: History, at: int, why_not: str | None, index: Mapping[int, int]) -> dict[str, Any]:
    cell = history.notes[at]["cell"]
    reads = [
        {"cell": made, "active": index.get(uid) if history.last.get(uid) == made else None}
        for uid, made in sorted(history.reads[at])
    ]
    return {"run": None if why_not is not None else TWICE * cell["seconds"], "reads": reads}


def _ship(group: Group, rates: Rates) -> float:
    """Seconds to write a group, and to read it again (a pickle is read about as fast as written)."""
    return 2 * group.seconds + group.unstored / rates.write + group.nbytes / rates.read


def _barred(note: Mapping[str, Any]) -> str | None:
    if note["cell"] is None:
        return "no cell that was seen made it"
    if any(m.startswith("c:") for made in note["units"] for m in made["m"]):
        return "its cell also made a class, which must stay the same"
    return effects.barred(note["cell"])


def _may(history: History, group: Group) -> bool:
    """Whether a shippable group may be left out: only if every run gives the same."""
    if group.plain < PLAIN * group.nbytes or any(m.startswith("c:") for m in group.members):
        return False
    return all(
        history.notes[i]["cell"] is not None and effects.doubtful(history.notes[i]["cell"]) is None
        for i in history.back(group.uid)
    )


def _why(history: History, group: Group, why_not: Sequence[str | None], choices: Mapping[int, str]) -> str:
    """Why a group can be neither shipped nor rebuilt."""
    if group.belongs is not None:
        return group.belongs
    back = history.back(group.uid)
    for i in back or [-1]:
        reason = why_not[i] if i >= 0 else "the cell that made it wasn't recorded"
        if reason is not None:
            return reason
    for i in back:
        for uid, at in history.reads[i]:
            if history.last.get(uid) == at and choices.get(uid) == PLACEHOLDER and uid != group.uid:
                return "it needs what can't be saved either"
    return "its cells can't be run again"


def _solve(problem: dict[str, Any]) -> dict[str, Any]:
    solved: dict[str, Any] = json.loads(native.plan(json.dumps(problem).encode()))
    return solved
