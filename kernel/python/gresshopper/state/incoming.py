"""Requests that arrived for the kernel's main thread and have yet to begin.

The socket itself is never asked: only its descriptor is looked at. Reading ``zmq.EVENTS``, polling through ZeroMQ or
receiving takes the edge from the descriptor. The event loop waits for that edge, and would sleep on with the request
in the socket.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import select
from typing import Any


def is_asked(shell: Any) -> bool:
    """Whether a request was read from its socket and has yet to begin. No descriptor tells of the request any more, and
    the request can begin only once the loop gets a turn.
    """
    queue = getattr(getattr(shell, "kernel", None), "msg_queue", None)  # before ipykernel 7
    if queue is not None and queue.qsize():
        return True
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:  # no loop runs
        return False
    return any(_is_next(task) for task in tasks)


def _is_next(task: Any) -> bool:
    """Whether a task is ipykernel's, and goes on in the loop's next turn: the task is new, or the awaited result has
    come."""
    coro = task.get_coro()
    code = getattr(coro, "cr_code", None)
    if code is None or os.path.basename(os.path.dirname(code.co_filename)) != "ipykernel":
        return False
    waits = getattr(task, "_fut_waiter", None)
    return inspect.getcoroutinestate(coro) == inspect.CORO_CREATED or (waits is not None and bool(waits.done()))


def is_readable(descriptor: int) -> bool:
    """Whether something happened on a descriptor that nobody has dealt with yet."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return any(event & select.POLLIN for _, event in poll.poll(0))


def descriptor(shell: Any) -> int | None:
    """The descriptor that tells of requests; ``None`` where the stream is closed, or of another kind."""
    try:
        return int(stream(shell).socket.fileno())
    except Exception:
        return None


def stream(shell: Any) -> Any:
    """The stream of the main thread's requests."""
    kernel = shell.kernel
    if getattr(kernel, "_supports_kernel_subshells", False):
        return kernel.shell_channel_thread.manager.get_shell_channel_to_subshell_pair(None).to_stream
    return kernel.shell_stream
