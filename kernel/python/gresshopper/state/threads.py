"""Threads and tasks beside the cells: which of them may touch the user's objects at any time.

A thread that may run user code makes each capture look at everything. Libraries' own threads don't, nor do
executors' workers that wait for work, which only another thread could give them. The same holds for tasks of the kernel's
loop that run a coroutine of the notebook, or of a module of the user's own.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from . import adapters
from .session import own_module

#: Modules whose threads touch nothing but their own: progress bars, queues' feeders, executors' managers, the kernel's.
_HARMLESS = (
    "asyncio",
    "concurrent.futures.process",
    "gresshopper",
    "multiprocessing.queues",
    "multiprocessing.resource",
)


def of_user(known: Collection[threading.Thread]) -> list[threading.Thread]:
    """Threads beside the `known` ones that may touch the user's objects at any time."""
    candidates = [t for t in threading.enumerate() if t not in known and t.is_alive()]
    if not candidates:
        return []
    frames = sys._current_frames()
    harmless = (*_HARMLESS, *adapters.entries("threads"))
    return [t for t in candidates if not _is_harmless(t, harmless) and not _waits(t, frames.get(t.ident or 0))]


def _is_harmless(thread: threading.Thread, harmless: tuple[str, ...]) -> bool:
    if thread.name.startswith(("gresshopper", "IPython")) or thread is threading.main_thread():
        return True
    kind = type(thread)
    if kind is not threading.Thread and kind.__module__.startswith(harmless):
        return True
    target = getattr(thread, "_target", None)
    return str(getattr(target, "__module__", None) or "").startswith(harmless)


def _waits(thread: threading.Thread, frame: Any) -> bool:
    """Whether a thread is an executor's worker without work: it stands in the loop that fetches some."""
    target = getattr(thread, "_target", None)
    if getattr(target, "__module__", None) != "concurrent.futures.thread" or frame is None:
        return False
    return bool(frame.f_code is getattr(target, "__code__", None))


def tasks_of_user(namespace: Mapping[str, Any]) -> list[str]:
    """Names of the coroutines of the user's that pending tasks of this thread's loop run, but for the task that asks."""
    try:
        pending = asyncio.all_tasks() - {asyncio.current_task()}
    except RuntimeError:  # no loop runs
        return []
    found = (_of_user(task.get_coro(), namespace) for task in pending)
    return sorted(name for name in found if name is not None)


def _of_user(coro: Any, namespace: Mapping[str, Any]) -> str | None:
    """The name of the user's coroutine that this coroutine is, or runs."""
    for inner, frame in _awaited(coro):
        scope = frame.f_globals
        if scope is namespace or own_module(sys.modules.get(str(scope.get("__name__")))):
            return str(inner.__qualname__)
        if inspect.iscoroutine(inner) and inspect.getcoroutinestate(inner) == inspect.CORO_CREATED:
            # A library's coroutine that hasn't begun may have the user's as argument (`asyncio.wait_for(own(), 10)`).
            given = filter(inspect.iscoroutine, frame.f_locals.values())
            return next((name for name in (_of_user(one, namespace) for one in given) if name is not None), None)
    return None


def _awaited(coro: Any) -> Iterator[tuple[Any, Any]]:
    """A coroutine and the chain of coroutines awaited from there, with their frames."""
    while coro is not None:
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None)
        if frame is None:
            return
        yield coro, frame
        coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None)
