"""Captures that failed: what failed is told once, remembered, and makes the pace slower.

A failed audit is apart from failed captures of cells: cells may be captured as before, and what only an audit finds is
unsaved until one succeeds.
"""

from __future__ import annotations

import logging
import sys
import traceback

from gresshopper import clock, typenames

from .form import FormError
from .pace import Pace
from .records import Outcome
from .session import Away, Interrupted, NoRoom
from .store import StoreError, StoreHangs

#: Number of the last failures that are remembered.
REMEMBERED = 100

#: What no cell's names show.
_FOUND_BY_AUDITS = "changes outside of cells, as by a widget or a thread,"
#: Failures that are sentences for the user.
_SAID = (StoreError, FormError, NoRoom)

_log = logging.getLogger("gresshopper.state")


class Failures:
    """The failed captures of one kernel."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        #: The last failures in words, oldest first.
        self.texts: list[str] = []
        #: Why the last capture found no room.
        self._no_room = ""
        #: How the last capture failed, and since which cell captures fail, until one doesn't. No cell's own message tells
        #: the supervisor of it.
        self.last: Outcome | None = None
        #: How the last audit failed, until one doesn't.
        self.missed: Outcome | None = None

    def tell(self, e: BaseException, what: str = "this cell's state") -> None:
        """Remember a failure, and tell the user if it is theirs to mend, and the first since the last good capture.
        `what` couldn't be saved.
        """
        text = f"{typenames.name_of(type(e))}: {e}"
        again = text in self.texts or self.last is not None or self.missed is not None
        self.texts = [*self.texts, text][-REMEMBERED:]
        if isinstance(e, StoreHangs):
            self._pace.waits_for_store(clock.now())
        else:
            self._pace.fails(clock.now())
        _log.debug("%s", traceback.format_exc())
        if again or not isinstance(e, _SAID):
            return
        print(f"Gresshopper: {what} couldn't be saved: {e}", file=sys.stderr)

    def hold_off(self, e: Interrupted, what: str = "this cell's state") -> None:
        """Pause captures after a capture was given up, if the reason would stop the next capture, too. `what` as for
        `tell`.
        """
        if isinstance(e, Away):
            self._pace.fails(clock.now())
        elif isinstance(e, NoRoom):
            self.tell(e, what)
            self._no_room = str(e)
            self._pace.finds_no_room(clock.now())

    # `since` is the execution count of the first cell that waits for the capture.

    def given_up(self, e: Interrupted, since: int | None = None) -> Outcome:
        """The outcome of a capture that was given up."""
        self.hold_off(e)
        if isinstance(e, NoRoom):
            return self._failed(str(e), since)
        if isinstance(e, Away):
            return Outcome("later", "what is on the GPU can't be read now")
        return Outcome("later", "it took longer than the reply may wait")

    def failed(self, e: BaseException, since: int | None = None) -> Outcome:
        """The outcome of a capture that raised this error."""
        self.tell(e)
        return self._failed(self._in_words(e), since)

    def audit_failed(self, e: BaseException) -> Outcome:
        """The outcome of an audit that raised this error, or that was given up for lack of room."""
        if isinstance(e, Interrupted):
            self.hold_off(e, _FOUND_BY_AUDITS)
        else:
            self.tell(e, _FOUND_BY_AUDITS)
        self.missed = Outcome("failed", f"{_FOUND_BY_AUDITS} couldn't be saved: {self._in_words(e)}")
        return self.missed

    def crowded(self, since: int | None = None) -> Outcome:
        """The outcome of a capture that isn't begun, since the last one found no room."""
        return self._failed(self._no_room, since)

    def store_hangs(self, e: StoreHangs, since: int | None = None) -> Outcome:
        """The outcome of a capture that isn't begun, since the store still hangs."""
        self._pace.waits_for_store(clock.now())
        return self._failed(str(e), since)

    def whole(self) -> Outcome:
        """The outcome of a capture that didn't fail."""
        self._pace.succeeds()
        self.last = None
        return Outcome("whole")

    def _in_words(self, e: BaseException) -> str:
        return str(e) if isinstance(e, _SAID) else self.texts[-1]

    def _failed(self, why: str, since: int | None) -> Outcome:
        self.last = Outcome("failed", why, since if self.last is None else self.last.since)
        return self.last
