"""Reasons why a kernel would change by a move to another process. The supervisor asks for them with each record."""

from __future__ import annotations

from typing import Any

from . import capture, effects, planning, rerun, user_modules
from .recorder import Recorder
from .session import title


class Unmovable:
    """The objects of one kernel that no move brings along."""

    def __init__(self, taken: capture.Capture, recorder: Recorder) -> None:
        self._capture, self._recorder = taken, recorder
        #: Sentences on what no cells can make again, and the findings behind them.
        self._bound: tuple[Any, set[str]] = None, set()

    def reasons(self) -> list[str]:
        """The uncapturable objects, in sentences."""
        unfindable = (f"{names}: {note}" for names, notes in self.unfindable().items() for note in notes)
        return sorted({*self._not_rerunnable(), *self._capture.busy(), *self._capture.away(), *unfindable})

    def unfindable(self) -> dict[str, list[str]]:
        """Notes on variables with parts of modules of the user's own that no import finds again."""
        found: dict[str, list[str]] = {}
        for module in sorted(user_modules.without_file()):
            for unit in self._capture.units.values():
                held = (self._capture.namespace.get(name) for name in unit.names)
                if any(t.startswith(f"{module}.") for t in unit.types) or any(
                    user_modules.home_of(v) == module for v in held
                ):
                    found.setdefault(title(unit.members), []).append(f"the file of the module {module} is gone")
        return found

    def _not_rerunnable(self) -> set[str]:
        """Uncapturable objects that no cells can make again. Asked for before each reply, and found anew after captures."""
        gone = [unit for unit in self._capture.units.values() if unit.gone]
        if not gone:
            return set()
        said = {unit.uid: [f"{title(unit.members)}: {p.what}: {p.why}" for p in unit.gone] for unit in gone}
        notes = self._recorder.notes
        key = len(notes), id(notes[-1]) if notes else 0, said
        if self._bound[0] != key:
            history = planning.History(notes)
            belong = {unit.uid for unit in gone if effects.belonging(unit.gone) is not None}
            bound = (uid for uid in said if uid in belong or not planning.rerunnable(history, uid, rerun.MOST))
            self._bound = key, {sentence for uid in bound for sentence in said[uid]}
        return self._bound[1]
