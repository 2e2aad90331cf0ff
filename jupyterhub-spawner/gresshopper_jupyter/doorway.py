"""The port of a server: found free, known to be the user's own, and held when its server has gone.

A port that was free a moment ago may be taken by any user. Linux names the owner of a listening socket
(`/proc/net/tcp`). A copy of our own listening socket keeps the port ours while the copy is open.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import socket
import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_LISTEN = "0A"
# The same number on each architecture.
_PIDFD_GETFD = 438


@dataclass(frozen=True)
class Listener:
    """A socket that listens on a port."""

    uid: int
    inode: int


def parse_listeners(text: str, port: int) -> list[Listener]:
    """Listening sockets of that port, in the text of `/proc/net/tcp` or `tcp6`."""
    found = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN and int(fields[1].rsplit(":", 1)[1], 16) == port:
            found.append(Listener(int(fields[7]), int(fields[9])))
    return found


def listeners(port: int) -> list[Listener]:
    """Listening sockets on a port of this host."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            found += parse_listeners(Path(table).read_text(), port)
    return found


def _candidates(span: Sequence[int] | None, tried: Container[int]) -> Iterable[int]:
    if span is None:
        yield from (0 for _ in range(20))
        return
    ports = [port for port in range(span[0], span[1] + 1) if port not in tried]
    yield from random.sample(ports, len(ports))


def free_port(ip: str, span: Sequence[int] | None, tried: Container[int] = ()) -> int | None:
    """An untried port, free on `ip` at present, within the span if one is set."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    for candidate in _candidates(span, tried):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((ip, candidate))
            except OSError:
                continue
            port: int = probe.getsockname()[1]
        if port not in tried and not listeners(port):
            return port
    return None


def _descriptor(inodes: set[int]) -> tuple[int, int] | None:
    """Our process with a hold on such a socket, and the descriptor."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{name}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{name}/fd/{fd}") in wanted:
                        return int(name), int(fd)
    return None


def share(port: int) -> socket.socket | None:
    """A copy of this user's socket listening on that port; None if the kernel gives no copies."""
    found = _descriptor({listener.inode for listener in listeners(port) if listener.uid == os.getuid()})
    if found is None:
        return None
    pid, descriptor = found
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        copy = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, pidfd, descriptor, 0)
    finally:
        os.close(pidfd)
    return socket.socket(fileno=copy) if copy >= 0 else None


def refuse_all(held: socket.socket, seconds: float, enough: Callable[[], bool]) -> None:
    """Closes each connection to the socket, for some seconds or until it is enough."""
    until = time.monotonic() + seconds
    held.settimeout(0.5)
    while time.monotonic() < until and not enough():
        with contextlib.suppress(OSError):
            held.accept()[0].close()
