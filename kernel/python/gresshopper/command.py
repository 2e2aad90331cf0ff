"""``%hop``: the command ``hop`` in a notebook.

Unlike ``!hop``, the command may concern the kernel itself: the kernel carries out the command's requests meanwhile
(``%hop state save``).
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from typing import IO, Any, Callable

#: Tells the command where its kernel listens.
VARIABLE = "GRESSHOPPER_ASK"


def line_magic(line: str) -> None:
    """``%hop ARGUMENTS`` runs the command hop: ``%hop queue``, ``%hop explain notebook.ipynb``, ``%hop state save --to work``."""
    # Imported here: the package is importable without IPython.
    from IPython.core.error import UsageError

    program = shutil.which("hop")
    if program is None:
        raise UsageError("hop is not on PATH: ask your administrator where it is")
    with tempfile.TemporaryDirectory(prefix="gresshopper-ask-") as folder:
        path = os.path.join(folder, "ask")
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as door:
            door.bind(path)
            door.listen(1)
            status = _run([program, *shlex.split(line)], {**os.environ, VARIABLE: path}, door)
    if status:
        raise UsageError(f"hop ended with status {status}")


def _run(argv: list[str], env: dict[str, str], door: socket.socket) -> int:
    """Runs the command to its end, passes on its output, and answers the command's questions."""
    process = subprocess.Popen(
        argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        with selectors.DefaultSelector() as ready:
            for pipe, out in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
                ready.register(pipe, selectors.EVENT_READ, _passed_on(pipe, out))  # type: ignore[arg-type]
            ready.register(door, selectors.EVENT_READ, lambda: _answer(door))
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


def _answer(door: socket.socket) -> bool:
    connection, _ = door.accept()
    with connection:
        request = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        connection.sendall(_carried_out(request).encode())
    return False


def _carried_out(request: str) -> str:
    try:
        from gresshopper.state import agent
    except ImportError as error:
        hint = "; install it there: pip install cloudpickle" if "cloudpickle" in str(error) else ""
        return json.dumps({"error": f"this kernel's environment lacks what saving needs: {error}{hint}"})
    return agent.command(request)
