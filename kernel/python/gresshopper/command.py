"""``%hop``: the command ``hop`` in a notebook.

Unlike ``!hop``, the command may concern the kernel itself: the kernel carries out the command's requests meanwhile
(``%hop state save``).
"""

from __future__ import annotations

import collections
import os
import selectors
import shlex
import shutil
import socket
import subprocess
import sys
from typing import IO, Any, Callable

from gresshopper import door

#: Tells the command the process of its kernel, and the word for the door (`door.Door.within`).
VARIABLE = "GRESSHOPPER_ASK"


def line_magic(line: str) -> None:
    """``%hop ARGUMENTS`` runs the command hop: ``%hop queue``, ``%hop explain notebook.ipynb``, ``%hop state save --to
    work``."""
    # Imported here: the package is importable without IPython.
    from IPython.core.error import UsageError

    program = shutil.which("hop")
    if program is None:
        raise UsageError("hop is not on PATH: ask your administrator where it is")
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"%hop: {error}") from None
    opened = door.get()
    argv, posted = [program, *(words or ["--help"])], _Posted()
    try:
        if opened is None:
            status = _run(argv, dict(os.environ), posted)
        else:
            with opened.within(posted.post) as word:
                status = _run(argv, {**os.environ, VARIABLE: f"{os.getpid()}:{word}"}, posted)
    finally:
        posted.close()
    if status:
        raise UsageError(f"hop ended with status {status}")


class _Posted:
    """Work for the main thread, which is waiting for the command."""

    def __init__(self) -> None:
        self._work: collections.deque[Callable[[], None]] = collections.deque()
        self.ready, self._bell = socket.socketpair()

    def post(self, work: Callable[[], None]) -> None:
        """From the door's threads."""
        self._work.append(work)
        self._bell.send(b"!")

    def do(self) -> bool:
        """Does one."""
        self.ready.recv(1)
        self._work.popleft()()
        return False

    def close(self) -> None:
        """Nobody waits any more."""
        self.ready.close()
        self._bell.close()


def _run(argv: list[str], env: dict[str, str], posted: _Posted) -> int:
    """Runs the command to the end, passes on the output, and does the work asked for by the command."""
    process = subprocess.Popen(
        argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        with selectors.DefaultSelector() as ready:
            for pipe, out in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
                ready.register(pipe, selectors.EVENT_READ, _passed_on(pipe, out))  # type: ignore[arg-type]
            ready.register(posted.ready, selectors.EVENT_READ, posted.do)
            while len(ready.get_map()) > 1:
                for key, _ in ready.select():
                    if key.data():
                        ready.unregister(key.fileobj)
        return process.wait()
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def _passed_on(pipe: Any, out: IO[str]) -> Callable[[], bool]:
    """Passes on the present output; True at its end."""

    def pass_on() -> bool:
        data = os.read(pipe.fileno(), 65536)
        out.write(data.decode(errors="replace"))
        out.flush()
        return not data

    return pass_on
