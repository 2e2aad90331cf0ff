"""The door of this process: `hop state` and `hop gpu` ask its operations over a socket of the user's own.

docs/agent-wire.md, "The door". Each connection has a thread, so that one command can call off another's work in the
middle of a cell. Operations on the notebook's variables run in the main thread, between cells (`between`).
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import secrets
import socket
import stat
import struct
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gresshopper import channel, operations, private
from gresshopper.operations import Call, Runner
from gresshopper.wire import VERSION, Attachment, Frames, WireError

#: Operations for the supervisor alone.
_SUPERVISORS = ("state.begin", "state.restore", "state.apply", "state.flush", "state.forget")
#: Largest request of a command, in bytes.
_LARGEST = 1 << 20
#: Seconds for a command to say hello.
_HELLO_S = 10.0
#: Seconds for a command to take its answer; the main thread, which may give the answer, isn't held up for longer.
_TAKE_S = 5


def directory() -> str:
    """The first usable folder for sockets, made if need be: the user's own, and closed to others.

    # Errors
    `OSError` where none is usable.
    """
    refusal: OSError | None = None
    for path in _folders():
        try:
            os.stat(os.path.dirname(path))  # a missing one isn't made
            with contextlib.suppress(FileExistsError):
                private.make(Path(path), mend=True)
            found = os.lstat(path)
        except OSError as error:
            refusal = error
            continue
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
            return path
        refusal = PermissionError(f"{path} must be a directory of yours with mode 0700")
    raise refusal or FileNotFoundError("there is no folder for sockets")


def _folders() -> Iterator[str]:
    own, runtime = os.environ.get("GRESSHOPPER_RUN_DIR"), os.environ.get("XDG_RUNTIME_DIR")
    if own:
        yield own
        return
    # A value inherited from another machine may name a missing folder.
    if runtime and os.path.isdir(runtime):
        yield os.path.join(runtime, "gresshopper")
    yield f"/tmp/gresshopper-{os.getuid()}"


class Door:
    """A listening socket, and the facts for a command about the process behind it."""

    def __init__(self, path: str | None = None) -> None:
        self.path = path or os.path.join(directory(), f"process-{os.getpid()}.sock")
        self._pid = os.getpid()
        #: Whether the process follows another one, which runs the kernel's cells.
        self.standby = False
        #: The word that proves a command of `%hop`, and its runner.
        self._within: tuple[str, Runner] | None = None
        self._kernel = os.environ.get("GRESSHOPPER_KERNEL") if channel.is_here() else None
        unheard = f"{self.path}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unheard)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(unheard)
        os.chmod(unheard, 0o600)
        self._socket.listen(8)
        os.rename(unheard, self.path)  # a command removes a socket where nobody listens
        threading.Thread(target=self._accept, daemon=True, name="gresshopper-door").start()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._socket.close)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            asker = _Asker(self, connection)
            threading.Thread(target=asker.serve, daemon=True, name="gresshopper-door-ask").start()

    def hello(self) -> dict[str, Any]:
        """What a command is told first."""
        return {
            "version": VERSION,
            "ops": operations.namespaces(),
            "pid": os.getpid(),
            "kernel": self._kernel,
            "standby": self.standby,
            **_connection(),
        }

    @contextlib.contextmanager
    def within(self, runner: Runner) -> Iterator[str]:
        """Has `runner` do the work of commands with the right word, and returns the word. The cell waits for these
        commands."""
        word = secrets.token_hex(16)
        self._within = word, runner
        try:
            yield word
        finally:
            self._within = None

    def runner(self, word: Any) -> Runner | None:
        """The runner for a command with this word. None means that the operation's own runner is used."""
        word_and_runner = self._within
        return word_and_runner[1] if word_and_runner is not None and word_and_runner[0] == word else None

    def close(self) -> None:
        """Stop listening; a forked child leaves the file alone."""
        self._socket.close()
        if os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                os.unlink(self.path)


class _Asker:
    """A connection of a command's."""

    def __init__(self, door: Door, connection: socket.socket) -> None:
        self._door, self._connection = door, connection
        self._frames = Frames(connection, _LARGEST)
        self._is_here = True
        self._runner: Runner | None = None

    def serve(self) -> None:
        """Answers until the command hangs up. Then drops the requests that have not begun."""
        try:
            if _uid(self._connection) in (0, os.getuid()):
                self._converse()
        except (OSError, WireError):
            pass
        finally:
            self._is_here = False
            self._frames.close()

    def _converse(self) -> None:
        self._connection.settimeout(_HELLO_S)
        wire, _ = self._frames.receive()
        self._connection.settimeout(None)
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _TAKE_S, 0))
        asked = _body(wire)
        if wire.get("op") != "hello" or asked.get("version") != VERSION:
            refusal = (
                f"this process speaks version {VERSION} of the agent channel; restart the kernel after an upgrade"
            )
            return self._answer(wire.get("id"), {"error": {"kind": "version", "message": refusal}}, ())
        self._runner = self._door.runner(asked.get("within"))
        self._answer(wire.get("id"), {"ok": self._door.hello()}, ())
        while True:
            wire, attachments = self._frames.receive()
            number = wire.get("id")
            call = Call(_body(wire), attachments, partial(self._progress, number), lambda: self._is_here)
            operations.carry_out(str(wire.get("op")), call, partial(self._answer, number), _SUPERVISORS, self._runner)

    def _answer(self, number: Any, outcome: dict[str, Any], attachments: Sequence[Attachment]) -> None:
        self._send({"re": number, **outcome}, attachments)

    def _progress(self, number: Any, text: str) -> None:
        self._send({"op": "state.progress", "body": {"re": number, "text": text}}, ())

    def _send(self, wire: dict[str, Any], attachments: Sequence[Attachment]) -> None:
        try:
            self._frames.send(wire, attachments)
        except WireError:  # it has hung up, or doesn't read
            self._is_here = False
            self._frames.close()


def _body(wire: dict[str, Any]) -> dict[str, Any]:
    body = wire.get("body")
    return body if isinstance(body, dict) else {}


def _uid(connection: socket.socket) -> int:
    _, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    )
    return int(uid)


def _connection() -> dict[str, str]:
    """By what a client knows the kernel."""
    kernelapp: Any = sys.modules.get("ipykernel.kernelapp")
    if kernelapp is None or not kernelapp.IPKernelApp.initialized():
        return {}
    app = kernelapp.IPKernelApp.instance()
    file = os.path.realpath(str(app.abs_connection_file))
    return {"connection_file": file, "key": hashlib.sha256(app.session.key).hexdigest()}


class _Process:
    """The door of this process."""

    door: Door | None = None


def get() -> Door | None:
    """The door, if it is open."""
    return _Process.door


def open_here() -> Door:
    """Listen for commands.

    # Errors
    `OSError` where no folder is usable.
    """
    if _Process.door is None:
        _Process.door = Door()
    return _Process.door
