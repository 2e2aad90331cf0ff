"""Threads and tasks beside the cells: which of them may touch the user's objects at any time.

A thread that may run user code makes each capture look at everything. Libraries' own threads don't, nor do
executors' workers that wait for work, which only another thread could give them. The same holds for tasks of the kernel's
loop that run a coroutine of the notebook, or of a module of the user's own.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import threading
import types
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from gresshopper import typenames

from . import adapters, recursion, settings
from .session import own_module

#: Modules whose threads touch nothing but their own: progress bars, queues' feeders, executors' managers, the kernel's.
_HARMLESS = (
    "asyncio",
    "concurrent.futures.process",
    "gresshopper",
    "multiprocessing.queues",
    "multiprocessing.resource",
)


#: Modules whose threads run what the user gives them, although their library's others don't.
_RUNS = ("IPython.lib.backgroundjobs",)


def of_user(known: Collection[threading.Thread], namespace: Mapping[str, Any]) -> list[threading.Thread]:
    """Threads beside the `known` ones that may touch the user's objects at any time."""
    candidates = [t for t in threading.enumerate() if t not in known and t.is_alive()]
    if not candidates:
        return []
    frames = sys._current_frames()
    harmless = (*_HARMLESS, *adapters.entries("threads"))
    found = ((t, frames.get(t.ident or 0)) for t in candidates)
    return [t for t, frame in found if not _waits(t, frame) and not _is_harmless(t, harmless, frame, namespace)]


recursion.asked.append(lambda: bool(of_user((), settings.scope())))


def _is_harmless(
    thread: threading.Thread, harmless: tuple[str, ...], frame: Any, namespace: Mapping[str, Any]
) -> bool:
    if thread.name.startswith(("gresshopper", "IPython")) or thread is threading.main_thread():
        return True
    loop = _loop_in(frame)
    if loop is not None and (_tasks(asyncio.all_tasks(loop), namespace) or _callbacks(loop)):
        return False
    kind = type(thread)
    if kind is not threading.Thread and typenames.module_of(kind).startswith(harmless):
        return not typenames.module_of(kind).startswith(_RUNS) and not _calls_back(thread)
    target = getattr(thread, "_target", None)
    if not typenames.home_of(target).startswith(harmless):
        return False
    # The user, too, may have a thread run a library's function: an event loop, say.
    return loop is not None or _is_private(target)


def _is_private(target: Any) -> bool:
    """Whether only its own library has a thread run a function."""
    name = typenames.text_of(target, "__qualname__")
    return "<locals>" in name or name.rpartition(".")[2].startswith("_")


def _loop_in(frame: Any) -> Any | None:
    """The event loop that runs in a thread."""
    while frame is not None:
        if frame.f_code is asyncio.BaseEventLoop.run_forever.__code__:
            return frame.f_locals.get("self")
        frame = frame.f_back
    return None


def _calls_back(thread: threading.Thread) -> bool:
    """Whether the manager of an executor's processes is to call functions of the notebook."""
    pending = list((getattr(thread, "pending_work_items", None) or {}).values())
    return any(map(_user_in, (call for work in pending for call in work.future._done_callbacks)))


def _waits(thread: threading.Thread, frame: Any) -> bool:
    """Whether a thread is an executor's worker without work: it stands in the loop that fetches some."""
    target = getattr(thread, "_target", None)
    if typenames.home_of(target) != "concurrent.futures.thread" or frame is None:
        return False
    return bool(frame.f_code is getattr(target, "__code__", None))


def tasks_of_user(namespace: Mapping[str, Any]) -> list[str]:
    """Names of the coroutines of the user's that pending tasks of this thread's loop run, but for the task that asks."""
    try:
        return _tasks(asyncio.all_tasks() - {asyncio.current_task()}, namespace)
    except RuntimeError:  # no loop runs
        return []


def _tasks(pending: Collection[Any], namespace: Mapping[str, Any]) -> list[str]:
    found = (_of_user(task.get_coro(), namespace) for task in pending)
    return sorted(name for name in found if name is not None)


def callbacks_of_user() -> list[str]:
    """Names of the notebook's functions that this thread's loop is to call."""
    try:
        return _callbacks(asyncio.get_running_loop())
    except RuntimeError:  # no loop runs
        return []


def _callbacks(loop: Any) -> list[str]:
    waiting = [*list(getattr(loop, "_scheduled", ())), *list(getattr(loop, "_ready", ()))]
    calls = ((handle._callback, handle._args) for handle in waiting if not handle._cancelled)
    found = (_user_in(one) for callback, given in calls if callback is not None for one in (callback, *(given or ())))
    return sorted(name for name in found if name is not None)


def _user_in(call: Any) -> str | None:
    """The name of a function or object of the notebook that this is, or calls."""
    while type(call) is functools.partial:
        call = call.func if settings.is_mine(call.func) or not call.args else call.args[0]
    parts = [call]
    if type(call) is types.MethodType and (held := getattr(call.__self__, "__dict__", None)):
        parts += held.values()  # as tornado's periodic callbacks
    for part in parts:
        if settings.is_mine(part):
            return typenames.called(part)
    return None


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
