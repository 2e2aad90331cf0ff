"""The agent in a kernel: hooks around each cell, and the commands of `hop state`.

The hooks are IPython's own events; nothing of the user's is wrapped or replaced. A failing capture never fails a
cell: it is told once and the next capture makes up for it.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import functools
import json
import linecache
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import capture, effects, form, hurry, later, names, native, pickling, planning, process, recipes, redo, rerun
from . import restore as restoring
from .store import Store, StoreError, ask_for

#: Share of the cells' time that captures may hold them up for; beyond, they wait for think time.
SHARE = 0.01
#: A capture that holds up a cell is given up after so many seconds, and isn't begun when there are fewer than LEAST.
MOST, LEAST = 0.05, 0.003
#: Seconds after a cell from which on the user is taken to think.
THINK = 0.05
#: Seconds of thinking from which on everything is audited, which takes at most one part in AUDITS of the time.
REST, AUDITS = 1.0, 20

_log = logging.getLogger("gresshopper.state")
_agent: Agent | None = None


def default_store() -> Path:
    """The user's store, unless told otherwise."""
    given = os.environ.get("GRESSHOPPER_STORE")
    base = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    return Path(given) if given else Path(base) / "gresshopper" / "store"


class _Ran:
    """A cell that ran and waits to be captured."""

    __slots__ = ("count", "effects", "ok", "raw", "seconds")

    def __init__(self, result: Any, seconds: float, effects: dict[str, Any]) -> None:
        self.raw = result.info.raw_cell if result.info is not None else ""
        self.seconds, self.effects = seconds, effects
        self.ok, self.count = bool(result.success), result.execution_count


class Agent:
    """One kernel's capturing and restoring."""

    def __init__(self, shell: Any, root: Path | None = None) -> None:
        self.shell = shell
        self.store = Store(root or default_store())
        self._hidden_at_start = dict(shell.user_ns_hidden)
        self.capture = capture.Capture(shell.user_ns, self._hidden, self.store)
        self.log: form.Log | None = None
        self.spent = 0.0
        self.ran = 0.0
        self.last: capture.Delta | None = None
        self.trouble: list[str] = []
        self._started = 0.0
        self._seq = 0
        #: Capture after each cell, whatever it costs, because somebody waits for it.
        self.prompt = False
        self.thought = 0.0
        self._running = False
        self._audited = -1
        self._audit_from = 0.0
        self._waiting: list[_Ran] = []
        self._inputs = 0
        self.effects = effects.Effects()
        #: What each capture found, for the plan of a save.
        self.notes: list[dict[str, Any]] = []
        self._drawn: dict[str, bytes] = {}
        #: What the store was found to take and give, in bytes per second (measured at the first need).
        self.rates: tuple[float, float] | None = None
        #: What is still to be read of a state that was restored.
        self.later: later.Later | None = None
        #: Where to say how far a restore is, beside the notebook.
        self.progress: str | None = None
        process.know()

    # --- hooks ---

    def watch(self, directory: Path | None = None, ahead: bool = True) -> None:
        """Capture after each cell; with a directory, keep each capture there. `ahead`: large content is stored when it
        is captured, so that a save finds it there; else with the save, which may then leave out what its cells make
        again.
        """
        if directory is not None:
            self.log = form.Log(directory, form.owner_key())
            self.log.create()
            self.log.commit(False)
        self._start(ahead or directory is not None)

    def _start(self, ahead: bool) -> None:
        self.capture.memories.ahead = ahead
        if not self.notes:
            self.audit()  # what was there before the first cell that is seen
        self.shell.events.register("pre_run_cell", self._before)
        self.shell.events.register("post_run_cell", self._after)

    def unwatch(self) -> None:
        """Stop capturing."""
        for event, hook in (("pre_run_cell", self._before), ("post_run_cell", self._after)):
            if hook in self.shell.events.callbacks[event]:
                self.shell.events.unregister(event, hook)
        self._audited = -1
        if self.log is not None:
            self.log.close()
            self.log = None

    def _before(self, info: Any) -> None:
        self._running = True
        self.effects.start()
        self._started = time.perf_counter()

    def _after(self, result: Any) -> None:
        ended = time.perf_counter()
        self._running = False
        seconds = ended - self._started if self._started else 0.0
        ran = _Ran(result, seconds, self.effects.stop())
        self._waiting.append(ran)
        self.ran += seconds
        left = min(SHARE * self.ran - self.spent, MOST)
        if self.later:
            self._later()
        elif self.prompt:
            self._work_off()
        elif left < LEAST or not self._work_off(hurry.Until(ended + left)):
            self._later()
        self.spent += time.perf_counter() - ended

    def _later(self) -> None:
        """Capture in think time: a cell that costs less than its capture isn't held up by it."""
        self._after_seconds(THINK, self._idle)

    @staticmethod
    def _after_seconds(seconds: float, work: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # outside of a kernel there is no loop: the next audit does it
            asyncio.get_running_loop().call_later(seconds, work)

    def _idle(self) -> None:
        if self._running:
            return
        started = time.perf_counter()
        if self.later:
            self.later.some()
            self._later()
            return
        if self._work_off(hurry.UntilAsked(self.shell)):
            self._after_seconds(REST, self._rest)
        else:
            self._later()
        self.thought += time.perf_counter() - started

    def _rest(self) -> None:
        """Audit once after the last cell when the user thinks for longer: again later if they ask for something."""
        started = time.perf_counter()
        if self._running or self._waiting or self._audited == self._seq:
            return
        if started < self._audit_from:
            self._after_seconds(self._audit_from - started, self._rest)
            return
        try:
            with hurry.bound(self.capture, hurry.UntilAsked(self.shell)):
                self.audit()
            self._audited = self._seq
            restoring.environment()  # which a save asks for
        except pickling.Interrupted:
            self._after_seconds(REST, self._rest)
        except Exception as e:  # nor must an audit fail anything of the user's
            self._told(e)
        took = time.perf_counter() - started
        self._audit_from = time.perf_counter() + AUDITS * took
        self.thought += took

    def _work_off(self, patience: hurry.Patience | None = None) -> bool:
        """Capture what the cells since the last capture did; false when that was given up for now."""
        if self.later:
            self.later.all()
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return True
        try:
            with hurry.bound(self.capture, patience):
                self._take(waiting)
        except pickling.Interrupted:
            self._waiting = waiting + self._waiting
            return False
        except Exception as e:  # a capture must never fail the user's cell
            self._told(e)
        return True

    def _take(self, waiting: list[_Ran]) -> None:
        sources = [self.shell.transform_cell(ran.raw) for ran in waiting]
        found = [names.names_of_source(source) for source in sources]
        together = names.Names(
            set().union(*(f.names for f in found)),
            any(f.dynamic for f in found),
            frozenset().union(*(f.stored for f in found)),
        )
        self.last = self.capture.run(together, self._seq + len(waiting))
        self._seq += len(waiting)
        cells = self._cells(waiting, sources, found)
        for i, cell in enumerate(cells):
            self._note(self.last if i + 1 == len(cells) else _NOTHING, cell)
        if self.log is not None:
            self._log_cells(cells)

    def _cells(self, waiting: list[_Ran], sources: list[str], found: list[names.Names]) -> list[dict[str, Any]]:
        cells = []
        for i, (ran, source, named) in enumerate(zip(waiting, sources, found)):
            touched = self.capture.chosen if i + 1 == len(waiting) else sorted(self.capture.units)
            used = sorted(n for n in named.names if n in self.shell.user_ns)
            cells.append(
                {
                    "seq": self._seq - len(waiting) + i + 1,
                    "source": source,
                    "file": self._file(source, ran),
                    "seconds": ran.seconds,
                    "ok": ran.ok,
                    "joint": len(waiting) > 1,
                    "names": used,
                    "touched": touched,
                    "uses": self._uses(used, touched),
                    "effects": ran.effects,
                    "count": ran.count,
                }
            )
        return cells

    def _uses(self, used: list[str], touched: list[int]) -> list[str]:
        """Names in the functions that a cell may call, as far as they tell whether it may run again."""
        reached = {m for u in touched if u in self.capture.units for m in self.capture.units[u].touches}
        told = effects.telling(reached)
        space = self.shell.user_ns
        if any(_own_module(space[n]) for n in {*used, *reached} if n in space):
            told.append(effects.LOCAL)
        return told

    def _note(self, delta: capture.Delta, cell: dict[str, Any] | None) -> None:
        """Remember what a capture found."""
        drawn = {k: v for k, v in delta.process.items() if k in planning.DRAWN}
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

    def _log_cells(self, cells: list[dict[str, Any]]) -> None:
        assert self.log is not None and self.last is not None
        for i, cell in enumerate(cells):
            delta = self.last if i + 1 == len(cells) else _NOTHING
            self.log.add(self._record(delta, cell, False), self._body)
        self.log.commit(False)

    def _file(self, source: str, ran: _Ran) -> str:
        """The file name under which the cell was compiled, which its functions remember."""
        namer = getattr(self.shell.compile, "get_code_name", None)
        return "" if namer is None else str(namer(ran.raw, source, ran.count or 0))

    def _told(self, e: BaseException) -> None:
        text = f"{type(e).__name__}: {e}"
        self.trouble.append(text)
        _log.debug("%s", traceback.format_exc())
        if not isinstance(e, (StoreError, form.FormError)):
            return
        print(f"Gresshopper: this cell's state couldn't be saved: {e}", file=sys.stderr)

    def audit(self) -> capture.Delta:
        """Look at everything, in think time: what the cells' names missed is found here, and arms the tracking."""
        self._work_off()
        delta = self.capture.run(None, self._seq, arm=True)
        self._note(delta, None)
        moved = self.log is not None and self.capture.order() != self._ordered
        if self.log is not None and (delta.changed or delta.removed or delta.process or moved):
            self.log.add(self._record(delta, None, False), self._body)
            self.log.commit(False)
        return delta

    # --- names ---

    def _hidden(self, name: str, value: Any) -> bool:
        """Whether a name is IPython's own rather than the user's."""
        if name in _IPYTHON:
            return name not in _SHOWN or (isinstance(value, str) and value == "") or self._number_of(value) > 0
        if name in self._hidden_at_start and self._hidden_at_start[name] is value:
            return True
        return name.startswith("_i") and name[2:].isdigit()

    def _number_of(self, value: Any) -> int:
        """The cell that displayed this, or 0."""
        out = self.shell.user_ns.get("_oh")
        if not isinstance(out, dict):
            return 0
        return next((n for n in list(reversed(out))[:100] if isinstance(n, int) and out[n] is value), 0)

    # --- writing ---

    def _record(
        self,
        delta: capture.Delta,
        cell: Mapping[str, Any] | None,
        full: bool,
        again: Mapping[int, Mapping[str, Any]] | None = None,
        cells: Callable[[Callable[[bytes], Any]], Any] | None = None,
    ) -> dict[str, Any]:
        body = bytearray()
        units = []
        for changed in delta.changed:
            said = (again or {}).get(changed.unit.uid)
            if said is not None and not changed.unit.gone:
                units.append({**self._left(changed.unit), **said})
            else:
                units.append({**self._entry(changed, body), **(said or {})})
        inputs = self.shell.user_ns.get("_ih") or [""]
        first = 0 if full else self._inputs
        self._inputs = len(inputs)
        head: dict[str, Any] = {
            "full": full,
            "shown": {n: self._number_of(self.shell.user_ns[n]) for n in _SHOWN if n in self.shell.user_ns},
            "at": time.time(),
            "cell": cell,
            "units": units,
            "gone": delta.removed,
            "process": {k: self._ref(v, body) for k, v in delta.process.items()},
            "inputs": {str(i): inputs[i] for i in range(first, len(inputs))},
            "count": cell["count"] + 1 if cell and cell["count"] else self.shell.execution_count,
            "env": restoring.environment() if full or (cell is None and self._new_modules()) else None,
        }
        order = self._order(full)
        if order is not None:
            head["order"] = order
        if cells is not None:
            head["redo"] = {"cells": cells(lambda data: self._ref(data, body))}
        self._body = bytes(body)
        return head

    def _order(self, full: bool) -> tuple[int, list[str]] | None:
        """How the order of the variables differs from that of the record before: so many are as they were, and the rest."""
        now = self.capture.order()
        there = frozenset(now)
        before = [] if full else [name for name in self._ordered if name in there]
        same = not full and len(before) == len(self._ordered) and before == now
        self._ordered = now
        kept = next((i for i, (a, b) in enumerate(zip(before, now)) if a != b), len(before))
        return None if same else (kept, now[kept:])

    _ordered: Sequence[str] = []
    _modules = 0
    _body = b""

    def _new_modules(self) -> bool:
        changed = self._modules != len(sys.modules)
        self._modules = len(sys.modules)
        return changed

    def _ref(self, data: bytes, body: bytearray) -> dict[str, Any]:
        if len(data) <= form.INLINE:
            body += data
            return {"in": [len(body) - len(data), len(data)]}
        return {"n": len(data), "c": self.store.put(native.address(memoryview(data)), len(data))}

    def _entry(self, changed: capture.Changed, body: bytearray) -> dict[str, Any]:
        unit = changed.unit
        for i, buffer in enumerate(changed.buffers):
            unit.blobs[i] = self.capture.memories.keep(buffer, unit.blobs[i])
        return {
            "u": unit.uid,
            "m": list(unit.members),
            "s": self._ref(changed.stream, body),
            "b": [[b.nbytes, int(b.items), list(b.chunks)] for b in unit.blobs],
            "f": unit.foreign,
            "v": unit.first,
            "c": sorted(unit.classes),
            "t": sorted(t for t in unit.touches if t in self.shell.user_ns),
            "gone": [list(g) for g in unit.gone],
            "notes": unit.notes,
            "types": sorted(unit.types),
            "cell": unit.cell,
            "sec": round(unit.seconds, 6),
            "dig": unit.digest.hex(),
        }

    def _left(self, unit: capture.Unit) -> dict[str, Any]:
        """A group that is left to its cells."""
        return {
            "u": unit.uid,
            "m": list(unit.members),
            "left": True,
            "s": {"n": 0, "c": []},
            "b": [[b.nbytes, int(b.items), []] for b in unit.blobs],
            "f": [],
            "v": unit.first,
            "c": sorted(unit.classes),
            "t": [],
            "gone": [],
            "notes": unit.notes,
            "types": sorted(unit.types),
            "cell": unit.cell,
            "sec": round(unit.seconds, 6),
            "dig": unit.digest.hex(),
        }

    def save(self, directory: Path, durable: bool = True, whole: bool = False) -> dict[str, Any]:
        """Write the whole state as it is now. What the plan leaves to its cells is left out, unless `whole`.

        # Errors
        `FormError` or `StoreError`; a state that was there before stays as it was.
        """
        started = time.perf_counter()
        before = self.store.written
        self._work_off()
        if self.log is not None:
            self.audit()  # what is found is to be in the log, too
        known = {unit.uid: (unit.digest, unit.tags) for unit in self.capture.units.values()}
        # Nothing ran since everything was audited: going through all classes of all libraries takes the longest.
        delta = self.capture.run(None, self._seq, everything=True, libraries=self._audited != self._seq)
        fresh = [c for c in delta.changed if known.get(c.unit.uid) != (c.unit.digest, c.unit.tags)]
        self._note(delta._replace(changed=fresh), None)
        plan = planning.Plan({c.unit.uid: planning.SHIP for c in delta.changed}, [], {})
        history = planning.History([])
        again: dict[int, dict[str, Any]] = {}
        if any(c.unit.gone or _unstored(c.unit) >= planning.WORTH for c in delta.changed):
            history = planning.History(self.notes)
            plan, again = self._planned(directory, delta, history, durable, whole)
        length = self._write(directory, delta, history, plan, again, durable)
        if self.store.written != self._packed:
            self._packed = self.store.written
            self._packing = threading.Event()
            _thread.start_new_thread(self._pack, (self._packing,))  # without waiting until it runs
        return {
            "units": len(delta.changed),
            "log_bytes": length,
            "chunk_bytes": self.store.written - before,
            "seconds": time.perf_counter() - started,
            "lost": self._lost(plan),
            "left": self._again(plan, gone=False),
            "rebuilt": self._again(plan, gone=True),
            "notes": self._notes(),
        }

    def _planned(
        self, directory: Path, delta: capture.Delta, history: planning.History, durable: bool, whole: bool
    ) -> tuple[planning.Plan, dict[int, dict[str, Any]]]:
        """What is shipped, and what is left to its cells: only what a trial could make again."""
        units = [c.unit for c in delta.changed]
        groups = [
            planning.Group(u.uid, u.members, u.nbytes(), _unstored(u), u.plain, u.seconds, bool(u.gone))
            for u in units
        ]
        failed: dict[int, str] = {u.uid: "" for u in units if whole or self._shown_as(u) is None}
        again: dict[int, dict[str, Any]] = {}
        for _ in range(_TRIALS):
            plan = planning.plan(history, groups, lambda: self._measure(durable), failed)
            again = {
                u.uid: {"redo": self._seqs(history, u.uid), "as": self._shown_as(u) or {}, "tags": u.tags}
                for u in units
                if plan.choices[u.uid] == planning.RECOMPUTE
            }
            again.update({uid: {"why": why} for uid, why in plan.why.items()})
            if not any(u.uid in again and not u.gone for u in units):
                return plan, again
            wrong = self._trial(directory, delta, history, plan, again)
            if not wrong:
                return plan, again
            failed.update(wrong)
        return self._planned(directory, delta, history, durable, whole=True)

    def _measure(self, durable: bool) -> tuple[float, float]:
        if self.rates is None:
            self.rates = self.store.rates(durable)
        return self.rates

    def _seqs(self, history: planning.History, uid: int) -> list[int]:
        return [self.notes[i]["cell"]["seq"] for i in history.back(uid)]

    def _shown_as(self, unit: capture.Unit) -> dict[str, str] | None:
        """Which variable each name under which IPython keeps what was displayed is; nothing if one is none of them."""
        space = self.shell.user_ns
        plain = [n for n in unit.names if not effects.shown(n)]
        found = {
            name: next((n for n in plain if space[n] is space[name]), "")
            for name in unit.names
            if effects.shown(name)
        }
        return found if all(found.values()) else None

    def _trial(
        self,
        directory: Path,
        delta: capture.Delta,
        history: planning.History,
        plan: planning.Plan,
        again: dict[int, dict[str, Any]],
    ) -> dict[int, str]:
        """Rebuild what would be left out in a Python of its own; those for which that fails, and why."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".trial-", dir=directory) as place:
            self._write(Path(place), delta, history, plan, again, False)
            seconds = sum(self.notes[i]["cell"]["seconds"] for i in plan.rerun)
            try:
                done = subprocess.run(
                    [sys.executable, "-c", _TRIAL, str(Path(__file__).parents[2]), place, str(self.store.root)],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=30 + 4 * seconds,
                    check=False,
                    env={k: v for k, v in os.environ.items() if k != "GRESSHOPPER_AGENT_FD"},
                )
                said = json.loads(done.stdout.decode(errors="replace").rpartition("\x1e")[2])
                return {int(uid): str(why) for uid, why in said.items() if not self.capture.units[int(uid)].gone}
            except (OSError, ValueError, subprocess.SubprocessError) as e:
                return {uid: f"its trial failed: {e}" for uid in again if not self.capture.units[uid].gone}

    def _write(
        self,
        directory: Path,
        delta: capture.Delta,
        history: planning.History,
        plan: planning.Plan,
        again: dict[int, dict[str, Any]],
        durable: bool,
    ) -> int:
        log = form.Log(directory, form.owner_key())
        log.create()
        try:
            cells: Any = functools.partial(redo.described, history, plan.rerun) if plan.rerun else None
            length = log.add(self._record(delta, None, True, again, cells), self._body, compress=True)
            if durable:
                self.store.sync()
            log.commit(durable)
        finally:
            log.close()
        return length

    _packing: threading.Event | None = None
    _packed = 0

    def _pack(self, done: threading.Event) -> None:
        try:
            self.store.pack()
        finally:
            done.set()

    def packed(self) -> None:
        """Wait until what was saved is compressed."""
        if self._packing is not None:
            self._packing.wait()

    def _lost(self, plan: planning.Plan) -> dict[str, str]:
        """What is gone, and why it can't be made again."""
        return {
            name: f"{g.what}: {g.why}; it can't be made again: {plan.why[u.uid]}"
            for u in self.capture.units.values()
            if u.uid in plan.why
            for g in u.gone
            for name in u.names
        }

    def _again(self, plan: planning.Plan, gone: bool) -> dict[str, int]:
        """What is left to its cells, and its bytes: because it can't be saved (`gone`), or because that is cheaper."""
        return {
            ", ".join(u.names): u.nbytes()
            for u in self.capture.units.values()
            if plan.choices.get(u.uid) == planning.RECOMPUTE and bool(u.gone) == gone
        }

    def _notes(self) -> dict[str, list[str]]:
        return {", ".join(u.names): u.notes for u in self.capture.units.values() if u.notes}

    def show(self) -> list[dict[str, Any]]:
        """Each group: its variables, what it costs, and what can't be saved of it."""
        self.audit()
        return [
            {
                "names": u.names,
                "bytes": u.nbytes(),
                "seconds": u.seconds,
                "types": sorted(u.types),
                "lost": [list(g) for g in u.gone],
                "notes": u.notes,
            }
            for u in sorted(self.capture.units.values(), key=lambda u: -u.nbytes())
            if u.names
        ]

    # --- restoring ---

    def restore(
        self,
        directory: Path,
        upto: int | None = None,
        lazy: bool = True,
        again: bool = True,
        wait: bool = True,
        shown: bool = True,
    ) -> restoring.Told:
        """Rebuild a saved state in this kernel. Without `wait`, large groups are read when they are needed; so is, without
        `shown`, what cells displayed and no variable holds.

        # Errors
        `FormError` or `StoreError`, with the namespace as it was.
        """
        for path in (form.key_path(), directory / "head", directory / "log"):
            ask_for(path)  # together: each takes as long as the disk does
        snapshot = restoring.Snapshot(form.read(directory, form.owner_key(make=False), upto))
        if self.later:
            self.later.all()
        for line in restoring.differences(snapshot.environment):
            print(f"Gresshopper: {line}", file=sys.stderr)
        pending = later.waiting(snapshot, not wait, not shown) if not (wait and shown) else {}
        told, loader = restoring.restore(
            snapshot, self.store, self.capture.session, self._set, lazy, self._progress(), pending
        )
        if pending:
            self.later = later.Later(loader, pending, self.shell, self._set)
            self.later.begin()
            self._later()
        if again and snapshot.redo["cells"]:
            told = redo.recover(snapshot, self.store, self.capture.session, self._set, told)
        if again and told.lost and any(r.head["cell"] for r in snapshot.records):
            told = rerun.recover(snapshot, self.store, self.capture.session, self._set, told)
        if snapshot.redo["cells"] and not self.notes:
            self.notes = redo.notes_of(snapshot, self.store)
            self.capture.adopt([e.said for e in snapshot.units.values()])
            self._seq = max(cell["seq"] for cell in snapshot.redo["cells"])
        self._show(snapshot)
        restoring.arrange(self.shell.user_ns, snapshot.order)
        self._history(snapshot)
        _sources(snapshot)
        for text in told.notices:
            print(f"Gresshopper: {text}", file=sys.stderr)
        for name, why in told.lost.items():
            print(f"Gresshopper: {name} couldn't be restored: {why}", file=sys.stderr)
        return told

    def _progress(self) -> Any:
        started = last = time.monotonic()

        def tell(done: int, of: int) -> None:
            nonlocal last
            now = time.monotonic()
            if now - started > 1 and (now - last > 1 or done == of):
                last = now
                said = f"restoring, {done} of {of} groups"
                print(f"Gresshopper: {said}", file=sys.stderr)
                if self.progress is not None:
                    with contextlib.suppress(OSError):
                        Path(self.progress).write_text(said, encoding="utf-8")

        return tell

    def resume(self, directory: Path, lazy: bool = True) -> restoring.Told:
        """Restore a state and go on in its log, so that what is captured from here on is added to it.

        # Errors
        `FormError` or `StoreError`, with the namespace as it was.
        """
        told = self.restore(directory, lazy=lazy)
        records = form.read(directory, form.owner_key(make=False))
        snapshot = restoring.Snapshot(records)
        self.log = form.Log(directory, form.owner_key())
        self.log.resume()
        self._seq = max([r.head["cell"]["seq"] for r in records if r.head["cell"]], default=0)
        self.capture.adopt([entry.said for entry in snapshot.units.values()])
        self.audit()
        self.watch()
        return told

    def _set(self, staged: dict[str, Any]) -> None:
        self.shell.user_ns.update(staged)
        out = self.shell.user_ns.get("_oh")
        if isinstance(out, dict):
            shown = {int(n[1:]): value for n, value in staged.items() if n[:1] == "_" and n[1:].isdigit()}
            out.update(shown)
            numbers = list(out) if shown else []
            if any(type(number) is not int for number in numbers):
                numbers = []  # the user's own
            for number in sorted(numbers) if numbers != sorted(numbers) else ():
                out[number] = out.pop(number)
        hook = self.shell.displayhook
        for name, attr in (("_", "_"), ("__", "__"), ("___", "___")):
            if name in staged and hasattr(hook, attr):
                setattr(hook, attr, staged[name])

    def _show(self, snapshot: restoring.Snapshot) -> None:
        """`_` and its like are what the last cells displayed."""
        out = self.shell.user_ns.get("_oh", {})
        for name, number in snapshot.shown.items():
            if number in out:
                self._set({name: out[number]})

    def _history(self, snapshot: restoring.Snapshot) -> None:
        inputs = self.shell.user_ns.get("_ih")
        if isinstance(inputs, list) and snapshot.history:
            top = max(snapshot.history)
            inputs[:] = [snapshot.history.get(i, "") for i in range(top + 1)]
        self.shell.execution_count = max(self.shell.execution_count, snapshot.count)


def _sources(snapshot: restoring.Snapshot) -> None:
    """Where functions of the notebook say that they are from, their source is found, as far as their cells are recorded."""
    cells = [r.head["cell"] for r in snapshot.records if r.head.get("cell")]
    for cell in [*snapshot.redo["cells"], *cells]:
        name, source = cell.get("file"), cell["source"]
        if name and name not in linecache.cache:
            linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)


#: What the trial's Python runs; the package lies where this one does.
_TRIAL = "import sys; sys.path.insert(0, sys.argv.pop(1)); from gresshopper.state import redo; redo.main()"
#: So often a plan is made and tried; then everything is stored.
_TRIALS = 4
_NOTHING = capture.Delta([], [], {}, 0.0)


def _unstored(unit: capture.Unit) -> int:
    return unit.size + sum(b.nbytes for b in unit.blobs if b.deferred)


def _own_module(value: Any) -> bool:
    """Whether a value is, or comes from, a module of the user's own."""
    if isinstance(value, types.ModuleType):
        module: Any = value
    elif isinstance(value, types.FunctionType):
        module = sys.modules.get(str(value.__module__))
    else:
        kind = value if isinstance(value, type) else type(value)
        module = sys.modules.get(str(type.__getattribute__(kind, "__module__")))
    return process.own_module(module)


_SHOWN = ("_", "__", "___")
_IPYTHON = frozenset(
    {
        "In",
        "Out",
        "_ih",
        "_oh",
        "_dh",
        "_i",
        "_ii",
        "_iii",
        "_",
        "__",
        "___",
        "get_ipython",
        "exit",
        "quit",
        "open",
        "__builtin__",
        "__builtins__",
        "__name__",
        "__doc__",
        "__package__",
        "__loader__",
        "__spec__",
        "_exit_code",
        "__annotations__",
        "__session__",
        "__file__",
    }
)


def agent(shell: Any = None, root: Path | None = None) -> Agent:
    """The kernel's agent, made at the first call."""
    global _agent  # noqa: PLW0603 - a kernel has one
    if _agent is None:
        if shell is None:
            from IPython.core.getipython import get_ipython

            shell = get_ipython()
        _agent = Agent(shell, root)
    return _agent


def command(request: str) -> str:
    """Carry out a command of `hop state`, given and answered in JSON (docs/state.md)."""
    asked = json.loads(request)
    try:
        store = Path(asked["store"]) if asked.get("store") else None
        of = agent(root=store)
        of.progress = asked.get("progress")
        done = _COMMANDS[asked["do"]](of, asked)
        return json.dumps({"ok": done})
    except (form.FormError, StoreError, recipes.LostError, OSError) as e:
        return json.dumps({"error": str(e)})
    except Exception as e:
        return json.dumps({"error": f"{type(e).__name__}: {e}", "trace": traceback.format_exc()})


def _do_restore(of: Agent, asked: Mapping[str, Any]) -> Any:
    directory = Path(asked["state"])
    snapshot = restoring.Snapshot(form.read(directory, form.owner_key(make=False), asked.get("upto")))
    differ = restoring.differences(snapshot.environment)
    if differ and not asked.get("anyway"):
        return {"differences": differ}
    wait = asked.get("wait", True)
    told = of.restore(directory, asked.get("upto"), asked.get("lazy", True), wait=wait, shown=wait)
    return {
        "names": told.names,
        "lost": told.lost,
        "notices": told.notices,
        "seconds": told.seconds,
        "differences": differ,
    }


_COMMANDS: dict[str, Any] = {
    "save": lambda of, asked: of.save(Path(asked["state"]), asked.get("durable", True), asked.get("whole", False)),
    "show": lambda of, asked: of.show(),
    "watch": lambda of, asked: of.watch(Path(asked["state"]) if asked.get("state") else None),
    "unwatch": lambda of, asked: of.unwatch(),
    "restore": _do_restore,
    "spent": lambda of, asked: {"ran": of.ran, "spent": of.spent, "thought": of.thought, "trouble": of.trouble},
}


def answer(request: str, path: str) -> None:
    """Carry out a command and leave its answer in a file of the asking process's."""
    said = command(json.dumps({**json.loads(request), "progress": f"{path}.progress"}))
    with open(path, "w", encoding="utf-8") as out:
        out.write(said)
