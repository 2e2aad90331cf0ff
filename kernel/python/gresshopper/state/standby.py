"""A kernel in waiting: it holds the variables of another one, record by record, until it is elected to run cells."""

from __future__ import annotations

import contextlib

from . import capture, follow, form, process, restore
from .deferred import Unread
from .namespace import Namespace
from .notices import Notices
from .recorder import Recorder
from .recovery import Recovery, cells_of
from .store import StoreError


class Standby:
    """What one kernel follows, if anything."""

    def __init__(
        self,
        namespace: Namespace,
        taken: capture.Capture,
        recorder: Recorder,
        unread: Unread,
        notices: Notices,
        recovery: Recovery,
    ) -> None:
        self._namespace, self._capture, self._recorder = namespace, taken, recorder
        self._unread, self._notices, self._recovery = unread, notices, recovery
        #: Keeps the variables equal to the executor's.
        self._follower: follow.Follower | None = None

    def follow(self, snapshot: restore.Snapshot) -> None:
        """From here on records of an executor may be applied to what was restored."""
        self._follower = follow.Follower(snapshot, self._capture.store, self._capture.session, self._namespace.put)

    def apply(self, record: form.Record) -> restore.Told:
        """Have the variables as they are at the executor after a record.

        # Errors
        `RebuildError`.
        """
        if self._follower is None:
            raise follow.RebuildError("this kernel follows nobody: nothing was restored in it, or it captures")
        self._unread.read_all()
        with self._namespace.as_in_a_cell():
            told = self._follower.apply(record)
        snapshot, cells = self._follower.snapshot, cells_of(record)
        self._notices.forget(told.names)
        self._notices.know(snapshot.told)
        self._recovery.settle(snapshot, cells)
        self._recorder.last = self._recorder.seq = max([self._recorder.seq, *(cell["seq"] for cell in cells)])
        return told

    def elect(self) -> list[str]:
        """Follow no more: later captures are differences to the last applied record. Returns what ended with the process
        that was followed, in sentences.
        """
        if self._follower is None:
            return []
        snapshot, self._follower = self._follower.snapshot, None
        self._draw_again(snapshot)
        self._capture.reset()
        self._recorder.adopt(snapshot)
        return snapshot.ended()

    def _draw_again(self, snapshot: restore.Snapshot) -> None:
        sections: dict[str, bytes] = {}
        for name in process.drawn() & snapshot.sections.keys():
            with contextlib.suppress(StoreError):  # the restore told it
                sections[name] = restore.stream(snapshot.sections[name], self._capture.store)
        process.draw_again(sections)

    def forget(self) -> None:
        """Follow no more: the variables are gone."""
        self._follower = None
