"""Python runs this module at the start of debugpy's adapter: the adapter then accepts connections of the same user
alone."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import sys
from typing import Any

_accept = socket.socket.accept


def _entry(address: tuple[str, int]) -> str:
    """An address as ``/proc/net/tcp`` writes it: the IP as a number of the machine's byte order."""
    packed = socket.inet_aton(address[0])
    return f"{int.from_bytes(packed, sys.byteorder):08X}:{address[1]:04X}"


def _is_ours(sock: socket.socket) -> bool:
    """Whether the other end is a process of this user's, or of root's."""
    try:
        wanted = [_entry(sock.getpeername()), _entry(sock.getsockname())]
        with open("/proc/net/tcp", encoding="ascii") as table:
            uids = [int(row[7]) for row in map(str.split, table) if row[1:3] == wanted]
    except OSError:
        return False
    return bool(uids) and uids[0] in (os.getuid(), 0)


def _accept_ours(self: socket.socket) -> tuple[socket.socket, Any]:
    while True:
        sock, address = _accept(self)
        if self.family != socket.AF_INET or not address[0].startswith("127.") or _is_ours(sock):
            return sock, address
        sock.close()


socket.socket.accept = _accept_ours  # type: ignore[method-assign]

# The site's or the environment's module of this name still runs.
sys.path.remove(os.path.dirname(os.path.abspath(__file__)))
sys.modules.pop("sitecustomize", None)
with contextlib.suppress(ImportError):
    importlib.import_module("sitecustomize")
