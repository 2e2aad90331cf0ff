"""Clocks and a sleep that a notebook can't replace.

Notebooks put functions of their own in the place of `time.monotonic`, `time.time` or `time.sleep`, and freezegun does
so in every module that has imported them. A capture by such a clock never begins, or never ends.
"""

from __future__ import annotations

import time
from typing import Callable


def _held(read: Callable[[], float]) -> Callable[[], float]:
    def clock() -> float:
        return read()

    return clock


def _held_sleep(wait: Callable[[float], None]) -> Callable[[float], None]:
    def sleep(seconds: float) -> None:
        wait(seconds)

    return sleep


#: Seconds since an arbitrary moment, of this process alone. Never set back.
now = _held(time.perf_counter)
#: Seconds since 1970.
since_1970 = _held(time.time)
#: Do nothing for so many seconds.
sleep = _held_sleep(time.sleep)
