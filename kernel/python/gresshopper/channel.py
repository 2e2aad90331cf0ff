"""The channel to the process that supervises this kernel: docs/agent-wire.md.

One inherited socket, JSON with binary attachments, requests in both directions. A module registers the
operations that it answers with :func:`serve`, in a namespace of its own (``need.``, ``state.``,
``gpu.``), and asks with :meth:`Channel.request`, from any thread. Nothing is read or written before the
first of either, so a kernel that needs nothing runs no thread of ours.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Any, Callable

VERSION = 1
FD_VARIABLE = "GRESSHOPPER_AGENT_FD"

_HEAD = struct.Struct(">II")
_JSON_MAX = 64 << 20
_log = logging.getLogger("gresshopper")

#: An operation: takes a body and attachments, returns the same.
Operation = Callable[[dict[str, Any], list[bytes]], "tuple[dict[str, Any], Sequence[bytes]]"]


class ChannelClosed(Exception):
    """There is no supervisor (any more)."""


class Refused(Exception):
    """The supervisor refused a request. ``kind`` is for programs, the text for people."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _Pending:
    """A request without an answer yet."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.ok: dict[str, Any] | None = None
        self.attachments: list[bytes] = []
        self.error: Exception | None = None


class Channel:
    """Our end of the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._pid = os.getpid()
        self._send_lock = threading.Lock()
        self._lock = threading.Lock()
        self._pending: dict[int, _Pending] = {}
        self._operations: dict[str, Operation] = {}
        self._last_id = 0
        self._reader: threading.Thread | None = None
        self._closed = False

    def serve(self, name: str, operation: Operation) -> None:
        """Answers requests of the supervisor for ``name`` with ``operation``, in a thread of ours."""
        with self._lock:
            self._operations[name] = operation
        self._start()

    def request(
        self, op: str, body: dict[str, Any], attachments: Sequence[bytes] = ()
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Asks the supervisor and waits; a ``KeyboardInterrupt`` ends the wait."""
        self._start()
        return self._ask(op, body, attachments)

    def notify(self, op: str, body: dict[str, Any]) -> None:
        """Tells the supervisor something that has no answer."""
        self._start()
        self._send({"op": op, "body": body}, ())

    def _start(self) -> None:
        if self._pid != os.getpid():
            raise ChannelClosed("this is a child of the kernel: only the kernel itself can ask")
        with self._lock:
            if self._reader is not None or self._closed:
                return
            self._reader = threading.Thread(target=self._read_all, name="gresshopper-agent", daemon=True)
            self._reader.start()
        self._ask("hello", {"version": VERSION}, ())

    def _ask(self, op: str, body: dict[str, Any], attachments: Sequence[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        pending = _Pending()
        with self._lock:
            if self._closed:
                raise ChannelClosed("the kernel's supervisor has closed the channel")
            self._last_id += 1
            number = self._last_id
            self._pending[number] = pending
        try:
            self._send({"op": op, "id": number, "body": body}, attachments)
            pending.event.wait()
        finally:
            with self._lock:
                self._pending.pop(number, None)
        if pending.error is not None:
            raise pending.error
        return pending.ok or {}, pending.attachments

    def _send(self, wire: dict[str, Any], attachments: Sequence[bytes]) -> None:
        text = json.dumps(wire).encode()
        sizes = struct.pack(f">{len(attachments)}Q", *(len(a) for a in attachments))
        with self._send_lock:
            try:
                self._sock.sendall(_HEAD.pack(len(text), len(attachments)) + sizes + text)
                for attachment in attachments:
                    self._sock.sendall(attachment)
            except OSError as error:
                raise ChannelClosed("the kernel's supervisor is gone") from error

    def _read_all(self) -> None:
        try:
            while True:
                self._dispatch(*self._read_one())
        except (OSError, ValueError, ChannelClosed):
            pass
        with self._lock:
            self._closed = True
            waiting = list(self._pending.values())
        for pending in waiting:
            pending.error = ChannelClosed("the kernel's supervisor has closed the channel")
            pending.event.set()

    def _read_one(self) -> tuple[dict[str, Any], list[bytes]]:
        size, count = _HEAD.unpack(self._read(_HEAD.size))
        if size > _JSON_MAX:
            raise ValueError("a message is too large")
        sizes = struct.unpack(f">{count}Q", self._read(8 * count))
        wire = json.loads(self._read(size))
        return wire, [self._read(n) for n in sizes]

    def _read(self, size: int) -> bytes:
        buffer = bytearray(size)
        view = memoryview(buffer)
        while view:
            got = self._sock.recv_into(view)
            if not got:
                raise ChannelClosed("closed")
            view = view[got:]
        return bytes(buffer)

    def _dispatch(self, wire: dict[str, Any], attachments: list[bytes]) -> None:
        answered = wire.get("re")
        if answered is not None:
            with self._lock:
                pending = self._pending.get(answered)
            if pending is not None:
                error = wire.get("error")
                if error is not None:
                    pending.error = Refused(error.get("kind", ""), error.get("message", ""))
                pending.ok, pending.attachments = wire.get("ok"), attachments
                pending.event.set()
            return
        # Off the reader, so that an operation may ask in its turn.
        threading.Thread(target=self._operate, args=(wire, attachments), name="gresshopper-op", daemon=True).start()

    def _operate(self, wire: dict[str, Any], attachments: list[bytes]) -> None:
        name, number = wire.get("op", ""), wire.get("id")
        operation = self._operations.get(name)
        answer: dict[str, Any]
        out: Sequence[bytes] = ()
        if operation is None:
            error = {"kind": "unknown", "message": f"there is no operation {name}"}
            answer = {"re": number, "error": error}
        else:
            try:
                ok, out = operation(wire.get("body") or {}, attachments)
                answer = {"re": number, "ok": ok}
            except Exception as error:
                _log.warning("operation %s failed", name, exc_info=True)
                answer = {"re": number, "error": {"kind": "failed", "message": str(error)}}
        if number is not None:
            with contextlib.suppress(ChannelClosed):
                self._send(answer, out)


_channel: Channel | None = None


def adopt() -> None:
    """Takes the inherited descriptor out of the environment, so that no child of the kernel has it."""
    global _channel  # noqa: PLW0603  one process, one channel
    number = os.environ.pop(FD_VARIABLE, None)
    if number is None:
        return
    sock = socket.socket(fileno=int(number))
    sock.set_inheritable(False)
    _channel = Channel(sock)


def is_here() -> bool:
    """Whether this process is a kernel with a supervisor."""
    return _channel is not None


def get() -> Channel:
    """The channel of this kernel."""
    if _channel is None:
        raise ChannelClosed(
            'this Python process is not a kernel of Gresshopper: choose a kernel such as "Python 3 (GPU on demand)"'
        )
    return _channel
