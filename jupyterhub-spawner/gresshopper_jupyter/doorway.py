"""The port of a server: found free, known to be the user's own, and held when its server has gone.

A port that was free a moment ago may be taken by any user. Linux names the owner of a listening socket
(`/proc/net/tcp`). A copy of our own listening socket keeps the port ours while the copy is open. IPv4 and IPv6 have each
port apart: in the family on which the server doesn't listen, a bound socket of ours keeps the port.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import random
import select
import socket
import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_LISTEN = "0A"
# The same number on each architecture.
_PIDFD_GETFD = 438
#: Every address of a family.
_ANY = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}
#: The errors of a host without the family, on which nobody else can use it either.
_NO_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


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


@dataclass(frozen=True)
class Port:
    """A port for a server, and the socket that keeps it in the other family."""

    number: int
    keeper: socket.socket | None

    def close(self) -> None:
        if self.keeper is not None:
            self.keeper.close()


def _addresses(ip: str) -> list[tuple[int, str]]:
    """The listening addresses, with their families, of a server given `ip`, an address or a name. Empty means all
    families."""
    found = socket.getaddrinfo(ip or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return sorted({(int(family), str(address[0])) for family, _, _, _, address in found})


def _bound(family: int, address: str, port: int) -> socket.socket | None:
    """A bound socket, listening or not: while the socket is open, Linux gives nobody the port at an overlapping address
    of the family, whatever options the other socket has. None on a host without the family.
    """
    made = None
    try:
        made = socket.socket(family, socket.SOCK_STREAM)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((address, port))
    except OSError as error:
        if made is not None:
            made.close()
        if error.errno in _NO_FAMILY:
            return None
        raise
    return made


def _probe(addresses: Sequence[tuple[int, str]], candidate: int, probes: contextlib.ExitStack) -> int:
    """The candidate, or for 0 a port of Linux's choice, held at all these addresses by `probes`; 0 if the host has none
    of these families. OSError if it isn't free at one of them."""
    number = 0
    for family, address in addresses:
        probe = _bound(family, address, number or candidate)
        if probe is not None:
            number = probes.enter_context(probe).getsockname()[1]
    return number


def _reserve(addresses: Sequence[tuple[int, str]], candidate: int) -> Port:
    """The port, free at the addresses, and kept in the family without addresses. OSError if the port isn't free."""
    with contextlib.ExitStack() as probes:
        number = _probe(addresses, candidate, probes)
        if not number:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        # One at most: a server listens somewhere.
        others = set(_ANY) - {family for family, _ in addresses}
        return Port(number, next((_bound(family, _ANY[family], number) for family in others), None))


def free_port(ip: str, span: Sequence[int] | None, tried: Container[int] = ()) -> Port | None:
    """An untried port, free on `ip` at present, within the span if one is set."""
    try:
        addresses = _addresses(ip)
    except OSError:
        return None
    for candidate in _candidates(span, tried):
        try:
            port = _reserve(addresses, candidate)
        except OSError:
            continue
        if port.number not in tried and not listeners(port.number):
            return port
        port.close()
    return None


def is_free(ip: str, port: int) -> bool:
    """Whether a server could listen there. A socket that is bound and doesn't listen is in no table."""
    try:
        with contextlib.ExitStack() as probes:
            _probe(_addresses(ip), port, probes)
    except OSError:
        return False
    # Nobody has a port in a family that the host hasn't.
    return True


def _descriptor(inode: int) -> tuple[int, int] | None:
    """Our process with a hold on that socket, and the descriptor."""
    wanted = f"socket:[{inode}]"
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{name}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{name}/fd/{fd}") == wanted:
                        return int(name), int(fd)
    return None


def _copy(inode: int) -> socket.socket | None:
    """A copy of this user's socket; None if the kernel gives no copies."""
    found = _descriptor(inode)
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


def share(port: int) -> list[socket.socket]:
    """Copies of the user's own sockets listening on the port: a server may have a socket for each address."""
    own = [listener.inode for listener in listeners(port) if listener.uid == os.getuid()]
    return [copy for inode in own if (copy := _copy(inode)) is not None]


def refuse_all(held: Sequence[socket.socket], seconds: float, enough: Callable[[], bool]) -> None:
    """Closes each connection to the sockets, for some seconds or until it is enough."""
    until = time.monotonic() + seconds
    for one in held:
        one.setblocking(False)
    while time.monotonic() < until and not enough():
        for one in select.select(held, [], [], 0.5)[0]:
            with contextlib.suppress(OSError):
                one.accept()[0].close()
