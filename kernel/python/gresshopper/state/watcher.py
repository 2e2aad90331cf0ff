"""Runs captures around the cells of a kernel: before a reply, between two cells, or in think time.

The hooks are IPython's own events, and around the kernel's handlers of comms; nothing of the user's is wrapped or
replaced. A failing capture never fails a cell: the next one makes up for the gap. Everything runs in the kernel's main
thread. `Pace` decides when and how long; `Recorder` captures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gresshopper import clock
from gresshopper.between import Cells, in_main_thread

from . import (
    callbacks,
    capture,
    contexts,
    draining,
    effects,
    event_loop,
    incoming,
    interrupts,
    limits,
    pace,
    streams,
    switch_interval,
)
from .deferred import Unread
from .failures import Failures
from .recorder import Recorder
from .records import Outcome, Ran
from .restore import environment
from .session import Interrupted, NoRoom, NotYet, Session

#: Seconds that a capture waits at most for the kernel's other threads to send a reply away.
LEAVES = 0.004
#: Most cells that may wait for their capture. Older cells are captured with them, but their sources aren't recorded.
WAITING = 500


class Watcher:
    """The cells of one kernel, and when they are captured."""

    def __init__(self, shell: Any, session: Session, recorder: Recorder, unread: Unread) -> None:
        self._shell, self._session, self._recorder, self._unread = shell, session, recorder, unread
        self.pace = pace.Pace(clock.now())
        self.failures = Failures(self.pace)
        self._effects = effects.Effects()
        self._cells = Cells()
        #: Cells and silent requests that wait for their capture.
        self._waiting: list[Ran] = []
        #: Whether a cell's reply leaves without its capture, then made before the next request.
        self._due = False
        #: Whether the reply of the last cell waits for what is captured now.
        self._reply_waits = False
        #: Number of the last captured cell at the last audit; -1 if something ran since.
        self._audited = -1
        self._think_time = event_loop.Timer(self.idle)
        self._comms = callbacks.Comms(shell, self._after_callback)
        #: The last message of a widget whose callbacks have run, until an audit has looked for their changes.
        self._called = ""

    # --- hooks ---

    def begin(self) -> None:
        """Capture after each cell."""
        for event, hook in self._hooks():
            self._shell.events.register(event, hook)
        self._comms.begin()

    def end(self) -> None:
        """Stop capturing."""
        for event, hook in self._hooks():
            if hook in self._shell.events.callbacks[event]:
                self._shell.events.unregister(event, hook)
        self._comms.end()
        self._audited = -1

    def _hooks(self) -> tuple[tuple[str, Any], ...]:
        return (
            ("pre_run_cell", self._before),
            ("post_run_cell", self._after),
            ("post_execute", self._after_silent),
        )

    def _before(self, info: Any) -> None:
        with interrupts.for_the_cell(self._shell.user_ns):
            if not self._cells and in_main_thread():
                self._promptly()  # should the loop have taken this request first
            if self._cells.begins(info):
                self._effects.start()
                streams.show_under(self._parent())
                self.pace.cell_begins(clock.now())

    def _after(self, result: Any) -> None:
        ended = clock.now()
        if not self._cells.over(result):
            return
        if in_main_thread():
            contexts.cell_is_over()
            streams.take_back()
        seconds = self.pace.cell_over(ended)
        self._recorder.last += 1
        ran = Ran(result, self._recorder.last, self._msg_id(), seconds, self._effects.stop())
        self._waiting = [*self._waiting, ran][-WAITING:]
        with interrupts.deferred():
            self._reply_waits = True
            outcome = self._hold_up(ended)
            self._reply_waits = False
            took = clock.now() - ended
            self.pace.took_before_reply(took)
            if self._recorder.journal is not None:
                self._recorder.journal.cell_over(ran, outcome, took)

    def _after_silent(self) -> None:
        """Note a silent request, which fires no hooks of a cell. It is captured between its reply and the next cell."""
        if self._cells:
            return
        asked = self._parent().get("content") or {}
        ran = Ran.silently(str(asked.get("code", "")), self._recorder.last, self._msg_id())
        if not asked.get("silent") or (self._waiting and self._waiting[-1].msg_id == ran.msg_id):
            return
        self._waiting = [*self._waiting, ran][-WAITING:]
        if ran.raw.strip():
            self._audited = -1
        if in_main_thread():
            self._due = self._recorder.journal is not None and event_loop.soon(self._promptly)
        self._think_in_main()

    def _after_callback(self) -> None:
        """Note that a widget's callback ran, which may have changed anything: no source names what. The audit of the think
        time that begins now finds it.
        """
        self._audited, self._called = -1, self._msg_id()
        if not self._cells:  # else the cell's end begins think time
            self._think_in_main()

    def _parent(self) -> Mapping[str, Any]:
        """The request that runs."""
        return (self._shell.get_parent() if hasattr(self._shell, "get_parent") else None) or {}

    def _msg_id(self) -> str:
        return str((self._parent().get("header") or {}).get("msg_id", ""))

    # --- before a reply, and between it and the next request ---

    def _hold_up(self, ended: float) -> Outcome:
        """Capture before the reply if time permits."""
        if not in_main_thread():
            self._think_in_main()
            return Outcome("later", "it ran in a subshell")
        self._due = self._recorder.journal is not None and event_loop.soon(self._promptly)
        if self.pace.patience is not None:
            outcome = self.work_off(limits.Until(ended + self.pace.patience), read=False)
            if outcome.status == "later":
                self.pace.gave_up_before_reply(clock.now())
                outcome = self.failures.last or outcome
        elif self._due:
            outcome = self.failures.last or Outcome("later", "it comes after the reply")
        else:
            left = self.pace.share()
            short = Outcome("later", "it takes longer than the reply may wait")
            outcome = self.work_off(limits.Until(ended + left)) if left else short
        self.think()  # to capture what waits, and then for the audit
        return outcome

    @switch_interval.Shortened()
    def _promptly(self) -> None:
        """Capture between a cell's reply and the next request, within the allowance."""
        if not self._due or self._cells or not self._waiting:
            return
        self._due = False
        started = clock.now()
        allowed = self.pace.after_reply(started)
        if not allowed:
            return
        with interrupts.deferred():
            draining.wait(self._shell, LEAVES)
            outcome = self.work_off(limits.Until(started + allowed), read=False)
        self.pace.took_after_reply(started, clock.now(), outcome.status == "whole")

    # --- think time ---

    def think(self, seconds: float | None = None) -> None:
        """Use the think time that begins in so many seconds, by default the time after a cell. A cell cheaper than its
        capture isn't delayed. One attempt is planned at a time: if a request breaks off the first of two attempts, the
        second would begin before the request's turn.
        """
        self._think_time.start(pace.THINK if seconds is None else seconds)

    def _think_in_main(self) -> None:
        if in_main_thread():
            self.think()
        else:
            self._shell.kernel.io_loop.add_callback(self.think)

    @switch_interval.Shortened()
    def idle(self) -> None:
        """Capture what waits, else read what is unread, else plan an audit."""
        if self._cells:
            return
        started = clock.now()
        if incoming.is_asked(self._shell):
            self.think()
        elif self.work_off(limits.UntilAsked(self._shell)).status != "whole":
            self.think(self.pace.retry(started))
        elif self._unread:
            self._unread.read_some()
            self.think()
        else:
            self._rest_in(pace.REST)
        self.pace.took_thinking(clock.now() - started)

    def _rest_in(self, seconds: float) -> None:
        due = self.pace.plan_audit(clock.now(), seconds)
        if due is not None:
            event_loop.after(seconds, lambda: self._rest_if(due))

    def _rest_if(self, due: float) -> None:
        if self.pace.is_audit_due(due):
            self.rest()

    @switch_interval.Shortened()
    def rest(self) -> None:
        """Audit once after the last cell when the user thinks for longer. A request puts the audit off. While
        something runs beside the cells, audits follow in longer and longer pauses.
        """
        self.pace.audit_begins()
        started = clock.now()
        if self._cells or self._waiting or (self.is_audited and not self._recorder.is_beside()):
            return
        left = self.pace.until_audit(started)
        if left > 0 or incoming.is_asked(self._shell):
            self._rest_in(max(left, pace.THINK))
            return
        try:
            with limits.bound(self._session, limits.UntilAsked(self._shell)):
                self.audit()
            self._audited = self._recorder.seq
            environment()  # which a save asks for
        except Interrupted as e:
            if not isinstance(e, NoRoom):  # which has been told
                self.failures.hold_off(e)
            self._rest_in(self.pace.audit_retry(started))
        except Exception:  # nor must an audit fail anything of the user's
            self._rest_in(self.pace.audit_retry(started))
        following = self.pace.audited(started, clock.now())
        if self._recorder.is_beside():
            self._rest_in(following)

    # --- captures ---

    def work_off(self, patience: limits.Patience | None = None, read: bool = True) -> Outcome:
        """Capture the effects of the cells since the last capture. `read`: even if unread parts of a restored state
        must be read."""
        is_first = self.failures.last is None
        outcome = self._work_off(patience, read)
        is_untold = is_first and not self._reply_waits
        if outcome.status == "failed" and is_untold and self._recorder.journal is not None:
            self._recorder.journal.failed(outcome)
        return outcome

    def _work_off(self, patience: limits.Patience | None, read: bool) -> Outcome:
        if not self._waiting:
            return Outcome("whole")
        since = next((ran.count for ran in self._waiting if ran.count), None)
        if patience is not None and self.pace.is_crowded(clock.now()):
            return self.failures.crowded(since)
        if (hung := self._recorder.hung) is not None:
            return self.failures.store_hangs(hung, since)
        waiting, self._waiting = self._waiting, []
        try:
            with limits.bound(self._session, patience):
                self._recorder.cells(waiting, self._reply_waits)
        except NotYet:
            self._waiting = waiting + self._waiting
            if not read:
                return Outcome("later", "what is still being restored has to be read for it")
            self._unread.read_all()
            return self._work_off(patience, read=False)
        except Interrupted as e:
            self._waiting = waiting + self._waiting
            return self.failures.given_up(e, since)
        except Exception as e:  # a capture must never fail the user's cell
            self._waiting = waiting + self._waiting
            return self.failures.failed(e, since)
        return self.failures.whole()

    def audit(self) -> capture.Delta:
        """Look at everything, in think time: what the cells' names missed is found here, and arms the tracking. A
        failure is told as that of a capture is.
        """
        self.work_off()
        known, called = self.failures.missed, self._called
        try:
            delta = self._recorder.audit(always=known is not None)
        except (NoRoom, Exception) as e:
            self._audited = -1
            outcome = self.failures.audit_failed(e)
            if known is None and self._recorder.journal is not None:
                self._recorder.journal.failed(outcome)
            raise
        self.failures.missed = None
        if called and self._recorder.journal is not None:
            self._recorder.journal.audited(called)
            self._called = "" if self._called == called else self._called
        return delta

    @property
    def is_audited(self) -> bool:
        """Whether no cell was captured since the audit of the last think time."""
        return self._audited == self._recorder.seq

    def flush(self, audit: bool = True) -> Outcome:
        """Capture all waiting cells, and changes that no name showed. Captured cells stay in the journal even if the
        rest fails."""
        try:
            outcome = self.work_off()
            if audit and outcome.status == "whole":
                self.audit()
            return self.failures.missed or outcome
        except (Interrupted, Exception) as e:
            if self.failures.missed is None:
                self.failures.tell(e)
            return self.failures.missed or Outcome("failed", str(e))

    def forget(self) -> None:
        """Capture none of the cells that wait, and nothing that an audit missed."""
        self._waiting, self.failures.missed = [], None
