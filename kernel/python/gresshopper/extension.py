"""The IPython extension through which an unmodified ipykernel loads this package.

The kernel stays as without the extension: the path and the environment are restored before the first cell runs.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from gresshopper import (
    channel,
    command,
    debugger,
    door,
    lending,
    need,
    overview,
    revoked,
    saving,
    started,
    undrawn,
    unkept,
    usage,
)
from gresshopper.imports import after_import

_log = logging.getLogger("gresshopper")

_OLD_PATH = "GRESSHOPPER_OLD_PYTHONPATH"
#: Set by the supervisor, which will ask for the kernel's state and chose the hash seed in the user's place.
_STATE, _HASH_SEED = "GRESSHOPPER_STATE", "GRESSHOPPER_HASH_SEED"


def load_ipython_extension(ip: Any) -> None:
    """Called by IPython at the kernel's start."""
    _restore_path()
    channel.adopt()
    _open_door(ip)
    ip.input_transformers_cleanup.append(lambda lines: need.blank_magic(lines) if need.was_read(ip) else lines)
    for magic in ("gpu", "cpu", "retry"):
        ip.register_magic_function(need.misplaced_magic, "cell", magic)
        # IPython takes a cell magic in the middle of a cell for the line magic of that name.
        ip.register_magic_function(need.misplaced_magic, "line", f"%{magic}")
    ip.register_magic_function(overview.line_magic, "line", "gpu")
    ip.register_magic_function(command.line_magic, "line", "hop")
    cells = need.Cells()
    ip.events.register("pre_run_cell", cells.begins)
    ip.events.register("post_run_cell", cells.over)
    revoked.install(ip)
    lending.watch(ip)
    undrawn.install()
    _keep_state(ip)
    _reply_at_once(ip)
    _lose_no_output(ip)
    usage.watch(getattr(ip, "kernel", None))
    after_import("debugpy", debugger.guard)
    if channel.is_here():
        started.know()  # the last: none of our own changes is the user's


def _open_door(ip: Any) -> None:
    saving.offer(ip)
    try:
        door.open_here()
    except OSError as error:  # the kernel serves its notebook all the same
        _log.warning("hop state and hop gpu can't reach this kernel: %s", error)


def _reply_at_once(ip: Any) -> None:
    """Don't sleep before each reply. ipykernel sleeps for half a millisecond, so that clients are likely to read a
    cell's output before its reply (`Kernel._execute_sleep`). But it has flushed the output before, and clients wait for
    `idle`.
    """
    kernel = getattr(ip, "kernel", None)
    sleep = getattr(type(kernel), "_execute_sleep", None)
    if (
        kernel is not None
        and sleep is not None
        and channel.is_here()
        and kernel._execute_sleep == sleep.default_value
    ):
        kernel._execute_sleep = 0.0


#: Messages that wait for the supervisor. ZeroMQ's own limit is 1,000, and a cell that flushes each line reaches it while
#: the supervisor gets no core: ZeroMQ drops the others without a word.
_UNREAD_MAX = 100_000


def _lose_no_output(ip: Any) -> None:
    """Have more of a cell's output wait for a busy supervisor, the only reader of the kernel's iopub."""
    thread = getattr(getattr(ip, "kernel", None), "iopub_thread", None)
    socket = getattr(thread, "socket", None)
    if thread is None or socket is None or not channel.is_here():
        return
    import zmq

    # The thread alone may use its socket.
    thread.schedule(lambda: socket.setsockopt(zmq.SNDHWM, _UNREAD_MAX))


def _keep_state(ip: Any) -> None:
    """Answers for the kernel's state, if its supervisor will ask."""
    seeded = bool(os.environ.pop(_HASH_SEED, None))
    if seeded:
        os.environ.pop("PYTHONHASHSEED", None)
    if not (os.environ.pop(_STATE, None) and channel.is_here()):
        return
    try:
        from gresshopper.state import setorder, supervised
    except Exception as e:  # what the engine lacks in this environment must not keep the kernel from starting
        unkept.serve(channel.get(), str(e) if isinstance(e, ImportError) else f"{type(e).__name__}: {e}")
        return
    setorder.seeded = seeded
    supervised.serve(ip, channel.get())


def _restore_path() -> None:
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if channel.FD_VARIABLE not in os.environ:
        # The extension was loaded by hand, in a kernel without a supervisor.
        return
    if ours in sys.path:
        sys.path.remove(ours)
    old = os.environ.pop(_OLD_PATH, None)
    if old is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = old
