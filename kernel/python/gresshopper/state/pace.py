"""When a capture may run, and how long it may take.

A `Pace` is told what happened and decides. It reads no clock: each `now` is a moment of `clock.now`. The agent
measures, captures, and puts the decisions on the event loop.
"""

from __future__ import annotations

#: Share of the cells' time for which captures may hold up cells; beyond, captures wait for think time.
SHARE = 0.01
#: Seconds after which a capture in a cell's way is given up, and the least time for beginning a capture.
MOST, LEAST = 0.05, 0.003
#: Seconds that a capture between two cells may always take. Beyond, it may take this share of the cells' run time,
#: at most LONG at once, and of other time, at most PASSED at once.
SHORT, BEYOND, LONG, PASSED = 0.025, 0.05, 30.0, 0.5
#: Seconds after a cell from which on the user is taken to think.
THINK = 0.05
#: Seconds of thinking after which everything is audited. Audits take at most one part in AUDITS of the time.
REST, AUDITS = 1.0, 20
#: Most seconds between two audits while something runs beside the cells.
RESTS = 60.0
#: Seconds after a capture that failed until it is tried again in think time; twice as many each time, up to FAILED_MOST.
FAILED, FAILED_MOST = 4.0, 300.0
#: Seconds between two looks at a store that hangs.
HANGS = 1.0
#: Seconds after a capture without room until the next attempt.
CROWDED = 60.0


class Allowance:
    """How long a capture between two cells may take, where the next request may be there already.

    A short capture is always allowed. A longer one takes a share of the cells' run time and of the time that passed:
    a long run of cells is delayed a little, and captured all the same. After a given-up capture the next one begins
    only with twice the time.
    """

    def __init__(self, now: float) -> None:
        self._since = now
        self._ran = 0.0
        self._in_vain = 0.0

    def ran(self, seconds: float) -> None:
        """A cell ran."""
        self._ran = min(self._ran + BEYOND * seconds, LONG)

    def at(self, now: float) -> float:
        """Seconds that a capture may take now. 0: it isn't worth beginning."""
        saved = self._ran + self._passed(now)
        if self._in_vain:
            return saved if saved >= min(2 * self._in_vain, LONG) else 0.0
        return max(saved, SHORT)

    def took(self, now: float, seconds: float, whole: bool) -> None:
        """A capture took so long, and was done with or given up."""
        self._in_vain = 0.0 if whole else max(self._in_vain, seconds)
        if seconds > SHORT or not whole:
            self._ran = max(self._ran - max(seconds - self._passed(now), 0.0), 0.0)
            self._since = now

    def _passed(self, now: float) -> float:
        return min(BEYOND * (now - self._since), PASSED)


class Pace:
    """Decides on the captures of a kernel, by the time that earlier cells and captures took."""

    def __init__(self, now: float) -> None:
        #: Seconds by which a capture may delay its cell's reply. None: the capture follows the reply where records are
        #: kept, else it may take a share of the cells' run time.
        self.patience: float | None = None
        #: Seconds of captures before their cell's reply, of cells, of captures in think time, and between a reply and
        #: the next request.
        self.spent = self.ran = self.thought = self.between = 0.0
        self._allowance = Allowance(now)
        #: When the last cell began and ended; 0 before the first one.
        self._began = self._ended = 0.0
        #: When the planned audit is due; 0 if none is planned.
        self._audit_due = 0.0
        #: The earliest next audit, by what the last one took.
        self._audit_from = 0.0
        #: No capture is tried before, for lack of room.
        self._crowded_until = 0.0
        #: No capture is tried in think time before, after the last failure.
        self._idle_from = 0.0
        #: Failed captures since the last that didn't fail.
        self._failures = 0

    # --- cells ---

    def cell_begins(self, now: float) -> None:
        """A cell begins."""
        self._began = now

    def cell_over(self, now: float) -> float:
        """A cell is over; returns the seconds that it ran."""
        self._ended = now
        seconds = now - self._began if self._began else 0.0
        self.ran += seconds
        self._allowance.ran(seconds)
        return seconds

    # --- before a cell's reply ---

    def share(self) -> float:
        """Seconds by which a capture may delay a reply without `patience`. 0: it isn't worth beginning."""
        left = min(SHARE * self.ran - self.spent, MOST)
        return 0.0 if left < LEAST else left

    def gave_up_before_reply(self, now: float) -> None:
        """A capture took all of `patience` in vain. The time after the reply is tried only where it is longer."""
        if self.patience is not None and self.patience >= SHORT:
            self._allowance.took(now, self.patience, whole=False)

    def took_before_reply(self, seconds: float) -> None:
        """A reply was delayed."""
        self.spent += seconds

    # --- between a reply and the next request ---

    def after_reply(self, now: float) -> float:
        """Seconds that a capture may take before the next request. 0: it isn't worth beginning."""
        return 0.0 if now < self._idle_from else self._allowance.at(now)

    def took_after_reply(self, began: float, now: float, whole: bool) -> None:
        """A capture between two cells is over, done with or given up."""
        self._allowance.took(now, now - began, whole)
        self.between += now - began

    # --- think time ---

    def took_thinking(self, seconds: float) -> None:
        """Think time was used."""
        self.thought += seconds

    def retry(self, now: float) -> float:
        """Seconds until think time is used again after a capture that wasn't whole."""
        return max(THINK, self._idle_from - now)

    def plan_audit(self, now: float, seconds: float) -> float | None:
        """Plan an audit in so many seconds; returns when the audit is due. None: a planned one comes earlier."""
        due = now + seconds
        if self._audit_due and due >= self._audit_due:
            return None
        self._audit_due = due
        return due

    def is_audit_due(self, due: float) -> bool:
        """Whether an audit that was planned for this moment still counts."""
        return due == self._audit_due

    def audit_begins(self) -> None:
        """No audit is planned any more."""
        self._audit_due = 0.0

    def until_audit(self, now: float) -> float:
        """Seconds until an audit may begin; not above 0: it may begin now."""
        return max(self._audit_from, self._ended + REST) - now

    def audit_retry(self, now: float) -> float:
        """Seconds until an audit is tried again after one that was given up."""
        return max(REST, self._idle_from - now)

    def audited(self, began: float, now: float) -> float:
        """An audit is over, done with or given up. Returns the seconds until the next one, should something run beside
        the cells.
        """
        took = now - began
        self._audit_from = now + AUDITS * took
        self.thought += took
        return max(AUDITS * took, min(began - self._ended, RESTS))

    # --- failures ---

    def is_crowded(self, now: float) -> bool:
        """Whether no capture is tried for lack of room."""
        return now < self._crowded_until

    def fails(self, now: float) -> None:
        """A capture failed: the next one in think time waits, longer each time."""
        # After a thousand failures the power would be too large for a float.
        doubled = FAILED * 2 ** min(self._failures, 10)
        self._failures += 1
        self._idle_from = now + min(doubled, FAILED_MOST)

    def waits_for_store(self, now: float) -> None:
        """The store hangs: the next capture waits until the store answers."""
        self._idle_from = now + HANGS

    def finds_no_room(self, now: float) -> None:
        """A capture found no room: none is tried for a while."""
        self._crowded_until = self._idle_from = now + CROWDED

    def succeeds(self) -> None:
        """A capture was whole."""
        self._failures = 0
