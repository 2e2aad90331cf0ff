"""A socket for requests of `hop gpu`, on a workstation without any supervisor.

The socket lies in a directory closed to all other users, and only the user and root may ask.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import struct
import threading
from collections.abc import Mapping
from typing import Any, Callable

Handle = Callable[[Mapping[str, Any]], dict[str, Any]]
_MAX = 64 << 10


def directory() -> str:
    """The user's private directory, made if need be.

    Raises PermissionError if the folder is another user's, or open to others.
    """
    own = os.environ.get("GRESSHOPPER_GPU_DIR")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    # A value inherited from another machine may name a missing folder.
    has_runtime = runtime and os.path.isdir(runtime)
    path = own or (os.path.join(runtime or "", "gresshopper") if has_runtime else f"/tmp/gresshopper-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{path} must be a directory of yours with mode 0700")
    return path


class Server:
    """Serves each connection on its own thread, to let a copy-in call off a copy-out."""

    def __init__(self, handle: Handle, path: str | None = None) -> None:
        self.path = path or os.path.join(directory(), f"gpu-{os.getpid()}.sock")
        self._handle = handle
        self._pid = os.getpid()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(self.path)
        os.chmod(self.path, 0o600)
        self._socket.listen(8)
        threading.Thread(target=self._accept, daemon=True, name="gresshopper-gpu").start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(connection,), daemon=True, name="gresshopper-gpu-ask").start()

    def _one(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.settimeout(10.0)
                if _peer(connection) not in (0, os.getuid()):
                    return
                line = connection.makefile("rb").readline(_MAX)
                request = json.loads(line)
                answer = self._handle(request if isinstance(request, dict) else {})
                connection.sendall(json.dumps(answer).encode() + b"\n")
            except (OSError, ValueError):
                return

    def close(self) -> None:
        """Stops listening; a child that was forked leaves the file alone."""
        self._socket.close()
        if os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                os.unlink(self.path)


def _peer(connection: socket.socket) -> int:
    _, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    )
    return int(uid)
