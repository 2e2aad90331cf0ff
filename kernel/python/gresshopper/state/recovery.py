"""Brings a saved state into a kernel: the variables, what IPython remembers, and the notices for the user.

Unreadable groups are made again by their cells where the state allows a re-run. Large groups may be read later. The
`Watcher` goes on from there, or a `Standby`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gresshopper import clock
from gresshopper.between import in_main_thread

from . import capture, deferred, form, process, redo, rerun, restore, streams
from .deferred import Unread
from .lost import Lost
from .namespace import Namespace, know_sources
from .notices import Notices
from .recorder import Recorder
from .store import StoreError, ask_for


def read(directory: Path, upto: int | None = None, end: form.End | None = None) -> restore.Snapshot:
    """A state that lies in a folder, proven. `end`: as much of its log as counts.

    # Errors
    `FormError`.
    """
    for path in (form.key_path(), directory / "head", directory / "log"):
        ask_for(path)  # together: each takes as long as the disk does
    return restore.Snapshot(form.read(directory, form.owner_key(make=False), upto, end))


def cells_of(record: form.Record) -> list[dict[str, Any]]:
    """The cells that a record completes."""
    return [cell for cell in [*record.head.get("before", ()), record.head.get("cell")] if cell]


class Recovery:
    """Restores states in one kernel. `think` has the agent use the next think time, for what is read later."""

    def __init__(
        self,
        namespace: Namespace,
        taken: capture.Capture,
        recorder: Recorder,
        unread: Unread,
        notices: Notices,
        think: Callable[[], None],
    ) -> None:
        self._namespace, self._capture, self._recorder = namespace, taken, recorder
        self._unread, self._notices, self._think = unread, notices, think
        #: Reports the progress of a restore beside the notebook.
        self.progress: Callable[[str], None] | None = None

    def rebuild(
        self,
        snapshot: restore.Snapshot,
        lazy: bool = True,
        again: bool = True,
        wait: bool = True,
        shown: bool = True,
    ) -> restore.Told:
        """Rebuild a state in this kernel; nothing is said beside the notebook's cells. Without `wait`, large groups are
        read when needed. Without `shown`, displayed values outside all variables are read when needed, too.

        # Errors
        `FormError` or `StoreError`, with the namespace as it was.
        """
        self._unread.read_all()
        with self._namespace.as_in_a_cell():
            return self._rebuild(snapshot, lazy, again, wait, shown)

    def _rebuild(self, snapshot: restore.Snapshot, lazy: bool, again: bool, wait: bool, shown: bool) -> restore.Told:
        store, session, put = self._capture.store, self._capture.session, self._namespace.put
        differences = restore.differences(snapshot.environment)
        pending = deferred.waiting(snapshot, not wait, not shown) if not (wait and shown) else {}
        told, loader = restore.restore(snapshot, store, session, put, lazy, self._progress(), pending)
        pending = {uid: names for uid, names in pending.items() if uid not in {*loader.failed, *loader.sooner}}
        if pending:
            self._capture.pending = self._unread.begin(loader, pending, self._put_read, self.tell)
            self._think()
        if again and snapshot.redo["cells"]:
            told = redo.recover(snapshot, store, session, put, told)
        if again and told.lost and any(r.head["cell"] for r in snapshot.records):
            told = rerun.recover(snapshot, store, session, put, told)
        self._recorder.adopt_redone(snapshot)
        space = self._namespace.variables
        self._notices.forget()
        self._notices.know(n for n in snapshot.told if n in told.lost or issubclass(type(space.get(n)), Lost))
        self.settle(
            snapshot, [*snapshot.redo["cells"], *(cell for record in snapshot.records for cell in cells_of(record))]
        )
        return told._replace(notices=[*differences, *told.notices])

    def _put_read(self, staged: dict[str, Any]) -> None:
        self._namespace.put_read(staged)
        self._capture.resettle(staged)

    def _progress(self) -> Callable[[int, int], None]:
        started = last = clock.now()

        def tell(done: int, of: int) -> None:
            nonlocal last
            now = clock.now()
            if now - started > 1 and (now - last > 1 or done == of):
                last = now
                said = f"restoring, {done} of {of} groups"
                print(f"Gresshopper: {said}", file=sys.stderr)
                if self.progress is not None:
                    self.progress(said)

        return tell

    def tell(self, lost: Mapping[str, str], notices: Sequence[str]) -> None:
        """Tell the user which variables came back changed, or not at all."""
        journal = self._recorder.journal
        if journal is not None and journal.notice(self._notices.news(lost), notices):
            return
        for text in notices:
            print(f"Gresshopper: {text}", file=sys.stderr)
        for name, why in lost.items():
            print(f"Gresshopper: {name} couldn't be restored: {why}", file=sys.stderr)

    def settle(self, snapshot: restore.Snapshot, cells: Sequence[Mapping[str, Any]]) -> None:
        """Have IPython's own memory, the next cell's context and the sources of these cells as they were."""
        self._namespace.settle(snapshot)
        self._set_in_cell(snapshot)
        streams.are_restored()
        know_sources(cells)

    def _set_in_cell(self, snapshot: restore.Snapshot) -> None:
        """Have the next cell find settings beyond the reach of a restore."""
        sections: dict[str, bytes] = {}
        for name in process.of_context():
            with contextlib.suppress(KeyError, StoreError):  # the restore has told it
                sections[name] = restore.stream(snapshot.sections[name], self._capture.store)
        process.for_cells(sections)
        events = self._namespace.shell.events
        if self._in_cell not in events.callbacks["pre_execute"]:
            events.register("pre_execute", self._in_cell)

    def _in_cell(self) -> None:
        if in_main_thread():
            self._namespace.shell.events.unregister("pre_execute", self._in_cell)
            if told := process.cell_begins():
                self.tell({}, told)
