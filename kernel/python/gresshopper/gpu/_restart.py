"""Rung (d), inside: the interpreter starts again in place, and the next cell finds its variables.

The state engine has saved the state before. The process becomes a new kernel by `exec`: pid, parent, connection file
and standard streams stay, and nothing on a device can outlive it. The variables come back with the next cell, in the
main thread, once there is a device for them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from gresshopper import channel

from ._errors import GpuUnavailable, ParkRefused

#: Names the state that the new interpreter is to restore.
VARIABLE = "GRESSHOPPER_GPU_RESTORE"
_EXTENSION = "--InteractiveShellApp.extra_extensions="


def refusal(shell: Any) -> str | None:
    """Why this process can't start again."""
    kernel = getattr(shell, "kernel", None)
    if kernel is None or not getattr(kernel, "io_loop", None):
        return "it is no Jupyter kernel"
    if channel.is_here():
        return "its supervisor would lose it"
    return None


def start_again(shell: Any, state: Path) -> None:
    """Has the main thread restart, once its present work is over.

    Raises ParkRefused where this process can't.
    """
    why = refusal(shell)
    if why is not None:
        raise ParkRefused(f"the interpreter can't start again: {why}")
    if not (state / "head").exists():
        raise ParkRefused(f"there is no saved state at {state}")
    arguments, environment = _arguments(), _environment(state)
    loop = shell.kernel.io_loop
    # In the main thread, and after the answer to whoever asks.
    loop.add_callback(lambda: loop.call_later(0.05, _become, arguments, environment))


def _arguments() -> list[str]:
    raw = Path("/proc/self/cmdline").read_bytes()
    arguments = [os.fsdecode(part) for part in raw.split(b"\0")[:-1]]
    ours = _EXTENSION + "gresshopper.gpu"
    return [argument for argument in arguments if argument != ours] + [ours]


def _environment(state: Path) -> dict[bytes, bytes]:
    """The environment at the process's start, and the state to go on from. The user's changes are in the state."""
    raw = Path("/proc/self/environ").read_bytes()
    environment = dict(part.split(b"=", 1) for part in raw.split(b"\0") if b"=" in part)
    package = os.fsencode(Path(__file__).resolve().parents[2])
    path = environment.get(b"PYTHONPATH", b"")
    if package not in path.split(b":"):
        environment[b"PYTHONPATH"] = package + (b":" + path if path else b"")
    environment[VARIABLE.encode()] = os.fsencode(state)
    return environment


def _become(arguments: list[str], environment: dict[bytes, bytes]) -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        # ipykernel puts a pipe of its own in the place of the process's standard streams.
        copy, original = (getattr(stream, f"_original_stdstream_{name}", None) for name in ("copy", "fd"))
        if copy is not None and original is not None:
            os.dup2(copy, original)
    for name in os.listdir("/proc/self/fd"):
        # No descriptor of a device may come along; that of the listing itself is closed already.
        if int(name) > 2:
            with contextlib.suppress(OSError):
                fcntl.fcntl(int(name), fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    os.execve(sys.executable, arguments, environment)


def pending() -> Path | None:
    """The state that this interpreter began for."""
    state = os.environ.pop(VARIABLE, None)
    return Path(state) if state else None


def restore(shell: Any, state: Path) -> None:
    """Brings the variables back, on the main thread.

    Raises GpuUnavailable with the place of the state, which stays.
    """
    try:
        from gresshopper.state.agent import agent

        agent(shell).restore(state, lazy=False)
    except Exception as error:
        raise GpuUnavailable(
            f"The kernel's variables are saved at {state}, and can't be restored now: {error}. Try again, or: hop state "
            f"restore {state}"
        ) from error
    shutil.rmtree(state, ignore_errors=True)
