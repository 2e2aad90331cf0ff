"""The agent in a kernel: captures the effects of cells, saves and restores variables, and follows another kernel.

Each task has a module. The agent puts the modules together, and holds the work that takes several modules.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from gresshopper import clock, private

from . import process, records, recovery, streams
from .capture import Capture
from .deferred import Unread
from .namespace import Namespace
from .notices import Notices
from .recorder import Recorder
from .recovery import Recovery
from .restore import Told
from .saving import Saver
from .standby import Standby
from .store import Store, home_store
from .unmovable import Unmovable
from .watcher import Watcher

_agent: Agent | None = None
_log = logging.getLogger("gresshopper")


def default_store() -> Path:
    """The user's store, unless told otherwise. A relative path is no store, as for the front and `hop`
    (`hop_protocol::content::by_user`): it depends on the folder in which a process runs.
    """
    given = os.environ.get("GRESSHOPPER_STORE")
    if given and not os.path.isabs(given):
        _log.warning("GRESSHOPPER_STORE is %s, which is no absolute path: it isn't used", given)
        given = None
    return Path(given) if given else home_store()


class Agent:
    """One kernel's capturing and restoring."""

    def __init__(self, shell: Any, root: Path | None = None) -> None:
        self.shell = shell
        self.store = Store(root or default_store())
        space = self.namespace = Namespace(shell)
        taken = self.capture = Capture(shell.user_ns, space.is_hidden, self.store)
        unread, notices = self.unread, self.notices = Unread(space), Notices(space)
        recorder = self.recorder = Recorder(space, taken, unread, notices)
        self.watcher = Watcher(shell, taken.session, recorder, unread)
        self.unmovable = Unmovable(taken, recorder)
        self.saver = Saver(space, taken, recorder, self.unmovable)
        self.recovery = Recovery(space, taken, recorder, unread, notices, self.watcher.think)
        self.standby = Standby(space, taken, recorder, unread, notices, self.recovery)
        streams.know()
        process.know()

    def watch(self, directory: Path | None = None, ahead: bool = True) -> None:
        """Capture after each cell; with a directory, keep each capture there. `ahead` stores large content at its
        capture, before any save. Otherwise the save stores the content, and may leave out parts that cells make again.
        """
        if directory is not None:
            self.store.keep_content_of(directory)
        self.begin(None if directory is None else records.FileJournal(directory), ahead or directory is not None)

    def begin(self, journal: records.Journal | None, ahead: bool = True) -> None:
        """Capture after each cell, and keep each capture in a journal if one is given."""
        self.capture.memories.ahead = ahead
        self.recorder.begin(journal)
        self.watcher.begin()

    def unwatch(self) -> None:
        """Stop capturing."""
        self.watcher.end()
        self.recorder.end()

    def forget(self) -> None:
        """Empty the namespace, and begin anew: nothing of what was recorded or is still to be read counts."""
        self.unread.drop()
        self.standby.forget()
        self.shell.reset(new_session=True, aggressive=False)
        self.recorder.forget()
        self.watcher.forget()

    def save(self, directory: Path, durable: bool = True, whole: bool = False) -> dict[str, Any]:
        """Write the whole present state. Content left by the plan to its cells is omitted, unless `whole`.

        # Errors
        `FormError` or `StoreError`; an existing state stays as before.
        """
        started = clock.now()
        before = self.store.written
        private.make(directory)  # a collection forgets a place that isn't there
        self.store.keep_content_of(directory)
        self.unread.read_all()
        self.watcher.work_off()
        if self.recorder.journal is not None:
            self.watcher.audit()  # what is found is to be in the log, too
        # Nothing ran since everything was audited: going through all classes of all libraries takes the longest.
        said = self.saver.save(directory, durable, whole, libraries=not self.watcher.is_audited)
        return {**said, "chunk_bytes": self.store.written - before, "seconds": clock.now() - started}

    def show(self) -> list[dict[str, Any]]:
        """Each group: its variables, cost and unsavable parts."""
        self.watcher.audit()
        return self.saver.groups()

    def restore(
        self,
        directory: Path,
        upto: int | None = None,
        lazy: bool = True,
        again: bool = True,
        wait: bool = True,
        shown: bool = True,
    ) -> Told:
        """Rebuild a saved state in the kernel as `Recovery.rebuild` does, and tell the user of the losses.

        # Errors
        `FormError` or `StoreError`, with the namespace as it was.
        """
        snapshot = recovery.read(directory, upto)
        told = self.recovery.rebuild(snapshot, lazy, again, wait, shown)
        told = told._replace(notices=[*told.notices, *snapshot.ended()])
        self.recovery.tell(told.lost, told.notices)
        return told

    def resume(self, directory: Path, lazy: bool = True) -> Told:
        """Restore a state and go on in the state's log, to which later captures are added.

        # Errors
        `FormError` or `StoreError`, with the namespace as it was.
        """
        self.store.keep_content_of(directory)
        told = self.restore(directory, lazy=lazy)
        self.recorder.adopt(recovery.read(directory))
        self.recorder.journal = records.FileJournal(directory, resume=True)
        self.watcher.audit()
        self.begin(self.recorder.journal)
        return told


def agent(shell: Any = None, root: Path | None = None) -> Agent:
    """The kernel's agent, made at the first call."""
    global _agent  # noqa: PLW0603 - a kernel has one
    if _agent is None:
        if shell is None:
            from IPython.core.getipython import get_ipython

            shell = get_ipython()
        _agent = Agent(shell, root)
    return _agent
