"""Records every open and close of the device files, by fanotify: nothing is sampled, nothing is missed.

fanotify(7): one group per device, so the group says which device it was; events carry a pidfd, so a pid that is used
again can't be mistaken for another process.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLOEXEC, _NONBLOCK, _REPORT_PIDFD, _REPORT_FID = 0x1, 0x2, 0x80, 0x200
_UNLIMITED_QUEUE = 0x10
_MARK_ADD = 0x1
_OPEN, _CLOSE = 0x20, 0x08 | 0x10
_Q_OVERFLOW = 0x4000
_AT_FDCWD = -100
_INFO_PIDFD = 4


class Overflow(Exception):
    """The kernel dropped events: the record is not whole."""


@dataclass(frozen=True)
class Seen:
    """One event: a process opened or closed a device."""

    at: float
    device: str
    pid: int
    opened: bool
    kernel: str


class Recorder:
    """Records from `start` to `stop`; `seen` is the record."""

    def __init__(self, devices: list[str]) -> None:
        self.seen: list[Seen] = []
        self._names: dict[int, str] = {}
        self._groups: dict[int, str] = {}
        self._done = threading.Event()
        for device in devices:
            group = _LIBC.fanotify_init(_CLOEXEC | _UNLIMITED_QUEUE | _REPORT_FID | _REPORT_PIDFD, os.O_RDONLY)
            if group < 0:
                raise OSError(ctypes.get_errno(), "fanotify_init")
            mask = ctypes.c_uint64(_OPEN | _CLOSE)
            if _LIBC.fanotify_mark(group, _MARK_ADD, mask, _AT_FDCWD, os.fsencode(device)) < 0:
                raise OSError(ctypes.get_errno(), f"fanotify_mark {device}")
            self._groups[group] = device
        self._threads = [threading.Thread(target=self._read, args=(g,), daemon=True) for g in self._groups]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        time.sleep(0.3)
        self._done.set()
        for group in self._groups:
            os.set_blocking(group, False)

    def _read(self, group: int) -> None:
        while not self._done.is_set():
            try:
                data = os.read(group, 65536)
            except BlockingIOError:
                return
            now = time.monotonic()
            at = 0
            while at + 24 <= len(data):
                length, _, _, meta, mask, _, pid = struct.unpack_from("=IBBHQii", data, at)
                if mask & _Q_OVERFLOW:
                    raise Overflow
                self._close_pidfd(data[at + meta : at + length])
                kernel = self._kernel_of(pid)
                for bits, opened in ((_OPEN, True), (_CLOSE, False)):
                    if mask & bits:
                        self.seen.append(Seen(now, self._groups[group], pid, opened, kernel))
                at += length

    @staticmethod
    def _close_pidfd(info: bytes) -> None:
        at = 0
        while at + 4 <= len(info):
            kind, _, length = struct.unpack_from("=BBH", info, at)
            if kind == _INFO_PIDFD:
                (fd,) = struct.unpack_from("=i", info, at + 4)
                if fd >= 0:
                    os.close(fd)
            at += max(length, 4)

    def _kernel_of(self, pid: int) -> str:
        """The kernel id in the process's environment, or its command line: who it is. Remembered for its close."""
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            return self._names.get(pid, f"pid {pid}")
        for entry in environ.split(b"\0"):
            if entry.startswith(b"GRESSHOPPER_KERNEL="):
                self._names[pid] = entry.partition(b"=")[2].decode()
                break
        else:
            self._names[pid] = command[:80]
        return self._names[pid]


def shared(seen: list[Seen]) -> list[str]:
    """Each moment at which processes of two kernels had one device open, as a sentence."""
    found = []
    open_by: dict[str, dict[str, int]] = {}
    for event in sorted(seen, key=lambda e: e.at):
        users = open_by.setdefault(event.device, {})
        if event.opened:
            others = [k for k, n in users.items() if n > 0 and k != event.kernel]
            if others:
                found.append(f"{event.device} was opened by {event.kernel} while {others} had it open")
            users[event.kernel] = users.get(event.kernel, 0) + 1
        else:
            users[event.kernel] = max(0, users.get(event.kernel, 0) - 1)
    return found
