"""Threads beside the cells: which of them may touch the user's objects at any time.

A thread that may run user code makes each capture look at everything. Libraries' own threads don't, nor do
executors' workers that wait for work, which only another thread could give them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection
from typing import Any

#: Modules whose threads touch nothing but their own: progress bars, queues' feeders, executors' managers, the kernel's.
_HARMLESS = (
    "IPython",
    "asyncio",
    "concurrent.futures.process",
    "debugpy",
    "distributed",
    "gresshopper",
    "ipykernel",
    "joblib.externals.loky",
    "jupyter",
    "multiprocessing.queues",
    "multiprocessing.resource",
    "pydevd",
    "_pydevd",
    "torch._inductor",
    "torch.utils.data",
    "tornado",
    "tqdm",
    "zmq",
)


def of_user(known: Collection[threading.Thread]) -> list[threading.Thread]:
    """Threads beside the `known` ones that may touch the user's objects at any time."""
    candidates = [t for t in threading.enumerate() if t not in known and t.is_alive()]
    if not candidates:
        return []
    frames = sys._current_frames()
    return [t for t in candidates if not _is_harmless(t) and not _waits(t, frames.get(t.ident or 0))]


def _is_harmless(thread: threading.Thread) -> bool:
    if thread.name.startswith(("gresshopper", "IPython")) or thread is threading.main_thread():
        return True
    kind = type(thread)
    if kind is not threading.Thread and kind.__module__.startswith(_HARMLESS):
        return True
    target = getattr(thread, "_target", None)
    return str(getattr(target, "__module__", None) or "").startswith(_HARMLESS)


def _waits(thread: threading.Thread, frame: Any) -> bool:
    """Whether a thread is an executor's worker without work: it stands in the loop that fetches some."""
    target = getattr(thread, "_target", None)
    if getattr(target, "__module__", None) != "concurrent.futures.thread" or frame is None:
        return False
    return bool(frame.f_code is getattr(target, "__code__", None))
