"""Captures that failed: what failed is told once, remembered, and makes the pace slower."""

from __future__ import annotations

import logging
import sys
import time
import traceback

from .form import FormError
from .pace import Pace
from .records import Outcome
from .session import Away, Interrupted, NoRoom
from .store import StoreError, StoreHangs

#: Number of the last failures that are remembered.
REMEMBERED = 100

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

    def tell(self, e: BaseException) -> None:
        """Remember a failure, and tell the user if it is theirs to mend, and the first since the last good capture."""
        text = f"{type(e).__name__}: {e}"
        again = text in self.texts or self.last is not None
        self.texts = [*self.texts, text][-REMEMBERED:]
        if isinstance(e, StoreHangs):
            self._pace.waits_for_store(time.perf_counter())
        else:
            self._pace.fails(time.perf_counter())
        _log.debug("%s", traceback.format_exc())
        if again or not isinstance(e, _SAID):
            return
        print(f"Gresshopper: this cell's state couldn't be saved: {e}", file=sys.stderr)

    def hold_off(self, e: Interrupted) -> None:
        """Pause captures after a capture was given up, if the reason would stop the next capture, too."""
        if isinstance(e, Away):
            self._pace.fails(time.perf_counter())
        elif isinstance(e, NoRoom):
            self.tell(e)
            self._no_room = str(e)
            self._pace.finds_no_room(time.perf_counter())

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
        return self._failed(str(e) if isinstance(e, _SAID) else self.texts[-1], since)

    def crowded(self, since: int | None = None) -> Outcome:
        """The outcome of a capture that isn't begun, since the last one found no room."""
        return self._failed(self._no_room, since)

    def store_hangs(self, e: StoreHangs, since: int | None = None) -> Outcome:
        """The outcome of a capture that isn't begun, since the store still hangs."""
        self._pace.waits_for_store(time.perf_counter())
        return self._failed(str(e), since)

    def whole(self) -> Outcome:
        """The outcome of a capture that didn't fail."""
        self._pace.succeeds()
        self.last = None
        return Outcome("whole")

    def _failed(self, why: str, since: int | None) -> Outcome:
        self.last = Outcome("failed", why, since if self.last is None else self.last.since)
        return self.last
