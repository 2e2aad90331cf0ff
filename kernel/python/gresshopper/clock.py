"""Clocks and a sleep that a notebook can't replace.

Notebooks put functions of their own in the place of `time.monotonic`, `time.time` or `time.sleep`, and freezegun does
so in every module that has imported them. A capture by such a clock never begins, or never ends. freezegun looks for
the functions themselves: a partial one stays.
"""

from __future__ import annotations

import functools
import time

#: Seconds since an arbitrary moment, of this process alone. Never set back.
now = functools.partial(time.perf_counter)
#: Seconds since 1970.
since_1970 = functools.partial(time.time)
#: Do nothing for so many seconds.
sleep = functools.partial(time.sleep)
