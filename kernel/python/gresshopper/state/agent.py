"""The agent in a kernel: hooks around each cell, captures after it or in think time, saves and restores.

The hooks are IPython's own events; nothing of the user's is wrapped or replaced. A failing capture never fails a cell:
the failure is told once and the next capture makes up for the gap. Everything here runs in the kernel's main thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gresshopper.between import Cells, in_main_thread

from . import (
    capture,
    contexts,
    effects,
    form,
    hurry,
    leaving,
    pace,
    pickling,
    process,
    records,
    recovery,
    streams,
    yielding,
)
from .later import Unread
from .namespace import Namespace
from .notices import Notices
from .recorder import Recorder
from .records import Outcome, Ran
from .recovery import Recovery
from .restore import Told, environment
from .saving import Saver
from .session import Away, NoRoom, NotYet
from .standby import Standby
from .store import Store, StoreError
from .unmovable import Unmovable

#: Seconds that a capture waits at most for the kernel's other threads to send a reply away.
LEAVES = 0.004
#: Most cells that may wait for their capture. Older cells are captured with them, but their sources aren't recorded.
WAITING = 500
#: Number of the last troubles that are remembered.
TROUBLE = 100

_log = logging.getLogger("gresshopper.state")
_agent: Agent | None = None


def default_store() -> Path:
    """The user's store, unless told otherwise."""
    given = os.environ.get("GRESSHOPPER_STORE")
    base = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    return Path(given) if given else Path(base) / "gresshopper" / "store"


class Agent:
    """One kernel's capturing and restoring."""

    def __init__(self, shell: Any, root: Path | None = None) -> None:
        self.shell = shell
        self.store = Store(root or default_store())
        self.namespace = Namespace(shell)
        self.capture = capture.Capture(shell.user_ns, self.namespace.is_hidden, self.store)
        #: Unread parts of a restored state.
        self.unread = Unread(self.namespace)
        self.notices = Notices(self.namespace)
        self.recorder = Recorder(self.namespace, self.capture, self.unread, self.notices)
        self.unmovable = Unmovable(self.capture, self.recorder)
        self.saver = Saver(self.namespace, self.capture, self.recorder, self.unmovable)
        self.pace = pace.Pace(time.perf_counter())
        #: Whether a cell's reply leaves without its capture, then made before the next request.
        self._due = False
        self.trouble: list[str] = []
        self._cells = Cells()
        #: Whether the reply of the last cell waits for what is captured now.
        self._reply_waits = False
        self._waiting: list[Ran] = []
        self._audited = -1
        #: The planned capture in think time; others that the loop still holds are superseded.
        self._intended: object = None
        #: How the last capture failed, until one doesn't.
        self._failed: Outcome | None = None
        self.effects = effects.Effects()
        self.recovery = Recovery(self.namespace, self.capture, self.recorder, self.unread, self.notices, self._later)
        self.standby = Standby(self.namespace, self.capture, self.recorder, self.unread, self.notices, self.recovery)
        streams.know()
        process.know()

    # --- hooks ---

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
        self.recorder.journal = journal
        if not self.recorder.notes:
            self.recorder.first()
        self.shell.events.register("pre_run_cell", self._before)
        self.shell.events.register("post_run_cell", self._after)
        self.shell.events.register("post_execute", self._after_silent)

    def unwatch(self) -> None:
        """Stop capturing."""
        hooks = (
            ("pre_run_cell", self._before),
            ("post_run_cell", self._after),
            ("post_execute", self._after_silent),
        )
        for event, hook in hooks:
            if hook in self.shell.events.callbacks[event]:
                self.shell.events.unregister(event, hook)
        self._audited = -1
        if self.recorder.journal is not None:
            self.recorder.journal.close()
            self.recorder.journal = None

    def _before(self, info: Any) -> None:
        with hurry.interrupts_for_the_cell(self.shell.user_ns):
            if not self._cells and in_main_thread():
                self._promptly()  # should the loop have taken this request first
            if self._cells.begins(info):
                self.effects.start()
                self.pace.cell_begins(time.perf_counter())

    def _after(self, result: Any) -> None:
        ended = time.perf_counter()
        if not self._cells.over(result):
            return
        if in_main_thread():
            contexts.cell_is_over()
            streams.take_back()
        seconds = self.pace.cell_over(ended)
        self.recorder.last += 1
        ran = Ran(result, self.recorder.last, self._msg_id(), seconds, self.effects.stop())
        self._waiting = [*self._waiting, ran][-WAITING:]
        with hurry.interrupts_deferred():
            self._reply_waits = True
            outcome = self._hold_up(ended)
            self._reply_waits = False
            took = time.perf_counter() - ended
            self.pace.took_before_reply(took)
            if self.recorder.journal is not None:
                self.recorder.journal.cell_over(ran, outcome, took)

    def _after_silent(self) -> None:
        """Note a silent request, which fires no hooks of a cell. It is captured between its reply and the next cell."""
        if self._cells:
            return
        asked = self._parent().get("content") or {}
        ran = Ran.silently(str(asked.get("code", "")), self.recorder.last, self._msg_id())
        if not asked.get("silent") or (self._waiting and self._waiting[-1].msg_id == ran.msg_id):
            return
        self._waiting = [*self._waiting, ran][-WAITING:]
        if ran.raw.strip():
            self._audited = -1
        if in_main_thread():
            self._due = self.recorder.journal is not None and self._soon(self._promptly)
            self._later()
        else:
            self.shell.kernel.io_loop.add_callback(self._later)

    def _parent(self) -> Mapping[str, Any]:
        """The request that runs."""
        return (self.shell.get_parent() if hasattr(self.shell, "get_parent") else None) or {}

    def _msg_id(self) -> str:
        return str((self._parent().get("header") or {}).get("msg_id", ""))

    def _hold_up(self, ended: float) -> Outcome:
        """Capture before the reply if time permits."""
        if not in_main_thread():
            self.shell.kernel.io_loop.add_callback(self._later)
            return Outcome("later", "it ran in a subshell")
        self._due = self.recorder.journal is not None and self._soon(self._promptly)
        if self.pace.patience is not None:
            outcome = self._work_off(hurry.Until(ended + self.pace.patience), read=False)
            if outcome.status == "later":
                self.pace.gave_up_before_reply(time.perf_counter())
        elif self._due:
            outcome = self._failed or Outcome("later", "it comes after the reply")
        else:
            left = self.pace.share()
            short = Outcome("later", "it takes longer than the reply may wait")
            outcome = self._work_off(hurry.Until(ended + left)) if left else short
        if outcome.status != "whole":
            self._later()
        return outcome

    @staticmethod
    def _soon(work: Callable[[], None]) -> bool:
        """Schedule work for after this cell's reply; returns whether a loop is there to do the work."""
        try:
            # The kernel sends the reply, and lets the next request be taken, without giving the loop a turn between the two.
            asyncio.get_running_loop().call_soon(work)
        except RuntimeError:
            return False
        return True

    @yielding.Yielding()
    def _promptly(self) -> None:
        """Capture between a cell's reply and the next request, within the allowance."""
        if not self._due or self._cells or not self._waiting:
            return
        self._due = False
        started = time.perf_counter()
        allowed = self.pace.after_reply(started)
        if not allowed:
            return
        with hurry.interrupts_deferred():
            leaving.wait(self.shell, LEAVES)
            outcome = self._work_off(hurry.Until(started + allowed), read=False)
        self.pace.took_after_reply(started, time.perf_counter(), outcome.status == "whole")

    def _later(self, seconds: float | None = None) -> None:
        """Capture in think time: a cell cheaper than its capture isn't delayed. One attempt is planned at a time. If a
        request breaks off the first of two attempts, the second would begin before the request's turn.
        """
        self._intended = intended = object()
        self._after_seconds(pace.THINK if seconds is None else seconds, functools.partial(self._idle_if, intended))

    def _idle_if(self, intended: object) -> None:
        if intended is self._intended:
            self._idle()

    @staticmethod
    def _after_seconds(seconds: float, work: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # outside of a kernel there is no loop: the next audit does it
            loop = asyncio.get_running_loop()
            # A turn of the loop later: a request that arrived with the timer goes first, unannounced by any descriptor.
            loop.call_later(seconds, loop.call_soon, work)

    @yielding.Yielding()
    def _idle(self) -> None:
        if self._cells:
            return
        started = time.perf_counter()
        if hurry.is_asked(self.shell):
            self._later()
        elif self._work_off(hurry.UntilAsked(self.shell)).status != "whole":
            self._later(self.pace.retry(started))
        elif self.unread:
            self.unread.read_some()
            self._later()
        else:
            self._rest_in(pace.REST)
        self.pace.took_thinking(time.perf_counter() - started)

    def _rest_in(self, seconds: float) -> None:
        due = self.pace.plan_audit(time.perf_counter(), seconds)
        if due is not None:
            self._after_seconds(seconds, functools.partial(self._rest_if, due))

    def _rest_if(self, due: float) -> None:
        if self.pace.is_audit_due(due):
            self._rest()

    @yielding.Yielding()
    def _rest(self) -> None:
        """Audit once after the last cell when the user thinks for longer. A request puts the audit off. While
        something runs beside the cells, audits follow in longer and longer pauses.
        """
        self.pace.audit_begins()
        started = time.perf_counter()
        if self._cells or self._waiting or (self._audited == self.recorder.seq and not self.recorder.is_beside()):
            return
        left = self.pace.until_audit(started)
        if left > 0 or hurry.is_asked(self.shell):
            self._rest_in(max(left, pace.THINK))
            return
        try:
            with hurry.bound(self.capture.session, hurry.UntilAsked(self.shell)):
                self.audit()
            self._audited = self.recorder.seq
            environment()  # which a save asks for
        except pickling.Interrupted as e:
            self._hold_off(e)
            self._rest_in(self.pace.audit_retry(started))
        except Exception as e:  # nor must an audit fail anything of the user's
            self._told(e)
        following = self.pace.audited(started, time.perf_counter())
        if self.recorder.is_beside():
            self._rest_in(following)

    def _work_off(self, patience: hurry.Patience | None = None, read: bool = True) -> Outcome:
        """Capture the effects of the cells since the last capture. `read`: even if unread parts of a restored state
        must be read."""
        if not self._waiting:
            return Outcome("whole")
        if patience is not None and self.pace.is_crowded(time.perf_counter()):
            return Outcome("failed", self.trouble[-1])
        waiting, self._waiting = self._waiting, []
        try:
            with hurry.bound(self.capture.session, patience):
                self.recorder.cells(waiting, self._reply_waits)
        except NotYet:
            self._waiting = waiting + self._waiting
            if not read:
                return Outcome("later", "what is still being restored has to be read for it")
            self.unread.read_all()
            return self._work_off(patience, read=False)
        except pickling.Interrupted as e:
            self._waiting = waiting + self._waiting
            self._hold_off(e)
            return self._fails(_given_up(e))
        except Exception as e:  # a capture must never fail the user's cell
            self._waiting = waiting + self._waiting
            self._told(e)
            return self._fails(Outcome("failed", self.trouble[-1]))
        self.pace.succeeds()
        self._failed = None
        return Outcome("whole")

    def _fails(self, outcome: Outcome) -> Outcome:
        """Remember a failure that no cell's own message tells the supervisor."""
        self._failed = outcome if outcome.status == "failed" else self._failed
        return outcome

    def _hold_off(self, e: pickling.Interrupted) -> None:
        """After a capture that found no room: tell the user, and pause captures for a while."""
        if isinstance(e, Away):
            self.pace.fails(time.perf_counter())
        elif isinstance(e, NoRoom):
            self._told(e)
            self.pace.finds_no_room(time.perf_counter())

    def _told(self, e: BaseException) -> None:
        text = f"{type(e).__name__}: {e}"
        again = text in self.trouble
        self.trouble = [*self.trouble, text][-TROUBLE:]
        self.pace.fails(time.perf_counter())
        _log.debug("%s", traceback.format_exc())
        if again or not isinstance(e, (StoreError, form.FormError, NoRoom)):
            return
        print(f"Gresshopper: this cell's state couldn't be saved: {e}", file=sys.stderr)

    def audit(self) -> capture.Delta:
        """Look at everything, in think time: what the cells' names missed is found here, and arms the tracking."""
        self._work_off()
        return self.recorder.audit()

    # --- saving ---

    def flush(self, audit: bool = True) -> Outcome:
        """Capture all waiting cells, and changes that no name showed. Captured cells stay in the journal even if the
        rest fails."""
        try:
            outcome = self._work_off()
            if audit and outcome.status == "whole":
                self.audit()
            return outcome
        except (pickling.Interrupted, Exception) as e:
            self._told(e)
            return Outcome("failed", str(e))

    def forget(self) -> None:
        """Empty the namespace, and begin anew: nothing of what was recorded or is still to be read counts."""
        self.unread.drop()
        self.standby.forget()
        self.shell.reset(new_session=True, aggressive=False)
        self.recorder.forget()
        self._waiting = []

    def save(self, directory: Path, durable: bool = True, whole: bool = False) -> dict[str, Any]:
        """Write the whole present state. Content left by the plan to its cells is omitted, unless `whole`.

        # Errors
        `FormError` or `StoreError`; an existing state stays as before.
        """
        started = time.perf_counter()
        before = self.store.written
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)  # a collection forgets a place that isn't there
        self.store.keep_content_of(directory)
        self.unread.read_all()
        self._work_off()
        if self.recorder.journal is not None:
            self.audit()  # what is found is to be in the log, too
        # Nothing ran since everything was audited: going through all classes of all libraries takes the longest.
        libraries = self._audited != self.recorder.seq
        said = self.saver.save(directory, durable, whole, libraries)
        return {**said, "chunk_bytes": self.store.written - before, "seconds": time.perf_counter() - started}

    def show(self) -> list[dict[str, Any]]:
        """Each group: its variables, cost and unsavable parts."""
        self.audit()
        return self.saver.groups()

    # --- restoring ---

    def restore(
        self,
        directory: Path,
        upto: int | None = None,
        lazy: bool = True,
        again: bool = True,
        wait: bool = True,
        shown: bool = True,
    ) -> Told:
        """Rebuild a saved state in this kernel as `Recovery.rebuild` does, and tell its user what didn't come back.

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
        self.audit()
        self.begin(self.recorder.journal)
        return told


def _given_up(e: pickling.Interrupted) -> Outcome:
    if isinstance(e, NoRoom):
        return Outcome("failed", str(e))
    if isinstance(e, Away):
        return Outcome("later", "what is on the GPU can't be read now")
    return Outcome("later", "it took longer than the reply may wait")


def agent(shell: Any = None, root: Path | None = None) -> Agent:
    """The kernel's agent, made at the first call."""
    global _agent  # noqa: PLW0603 - a kernel has one
    if _agent is None:
        if shell is None:
            from IPython.core.getipython import get_ipython

            shell = get_ipython()
        _agent = Agent(shell, root)
    return _agent
