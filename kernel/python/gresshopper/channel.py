"""The channel to this kernel's supervisor: docs/agent-wire.md.

One inherited socket, requests in both directions. Code asks with :meth:`Channel.request`, from any thread; what the
supervisor asks is answered by the operations that were registered (`operations`). Nothing is read or written before the
first request, event or :meth:`Channel.open`, so a kernel that needs nothing runs no thread of ours.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

from gresshopper import operations
from gresshopper.wire import VERSION, Attachment, Frames, WireError

FD_VARIABLE = "GRESSHOPPER_AGENT_FD"

#: Seconds between two looks of a thread that waits for an answer.
_LOOKS_EVERY = 1.0


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
        self._frames = Frames(sock)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._pending: dict[int, _Pending] = {}
        self._last_id = 0
        self._reader: threading.Thread | None = None
        self._closed = False

    def open(self) -> None:
        """Begin to listen to the supervisor, and say hello.

        # Errors
        `ChannelClosed` in a child of the kernel, and when the supervisor is gone; `Refused` for another version.
        """
        if self._pid != os.getpid():
            raise ChannelClosed("this is a child of the kernel: only the kernel itself can ask")
        with self._lock:
            if self._reader is not None or self._closed:
                return
            self._reader = threading.Thread(target=self._read_all, name="gresshopper-agent", daemon=True)
            self._reader.start()
        self._ask("hello", {"version": VERSION}, ())

    def request(
        self, op: str, body: dict[str, Any], attachments: Sequence[Attachment] = ()
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Asks the supervisor and waits; a ``KeyboardInterrupt`` ends the wait."""
        self.open()
        return self._ask(op, body, attachments)

    def notify(self, op: str, body: dict[str, Any], attachments: Sequence[Attachment] = ()) -> None:
        """Sends the supervisor an event, which has no answer."""
        self.open()
        self._send({"op": op, "body": body}, attachments)

    def _ask(
        self, op: str, body: dict[str, Any], attachments: Sequence[Attachment]
    ) -> tuple[dict[str, Any], list[bytes]]:
        pending = _Pending()
        with self._lock:
            if self._closed:
                raise ChannelClosed("the kernel's supervisor has closed the channel")
            self._last_id += 1
            number = self._last_id
            self._pending[number] = pending
        try:
            self._send({"op": op, "id": number, "body": body}, attachments)
            # A signal just before the thread sleeps doesn't wake the thread (CPython's lock): the next look finds the
            # signal.
            while not pending.event.wait(_LOOKS_EVERY):
                pass
        finally:
            with self._lock:
                self._pending.pop(number, None)
        if pending.error is not None:
            raise pending.error
        return pending.ok or {}, pending.attachments

    def _send(self, wire: dict[str, Any], attachments: Sequence[Attachment]) -> None:
        try:
            self._frames.send(wire, attachments)
        except WireError as error:
            raise ChannelClosed("the kernel's supervisor is gone") from error

    def _read_all(self) -> None:
        with contextlib.suppress(WireError):
            while True:
                self._dispatch(*self._frames.receive())
        with self._lock:
            self._closed = True
            waiting = list(self._pending.values())
        for pending in waiting:
            pending.error = ChannelClosed("the kernel's supervisor has closed the channel")
            pending.event.set()

    def _dispatch(self, wire: dict[str, Any], attachments: list[bytes]) -> None:
        if "re" in wire:
            self._answered(wire, attachments)
            return
        number = wire.get("id")
        call = operations.Call(wire.get("body") or {}, attachments, partial(self._progress, number))
        operations.carry_out(wire.get("op", ""), call, partial(self._answer, number))

    def _answered(self, wire: dict[str, Any], attachments: list[bytes]) -> None:
        with self._lock:
            pending = self._pending.get(wire["re"])
        if pending is not None:
            error = wire.get("error")
            if error is not None:
                pending.error = Refused(error.get("kind", ""), error.get("message", ""))
            pending.ok, pending.attachments = wire.get("ok"), attachments
            pending.event.set()

    def _answer(self, number: int | None, outcome: dict[str, Any], attachments: Sequence[Attachment]) -> None:
        if number is not None:
            with contextlib.suppress(ChannelClosed):
                self._send({"re": number, **outcome}, attachments)

    def _progress(self, number: int | None, text: str) -> None:
        if number is not None:
            with contextlib.suppress(ChannelClosed):
                self._send({"op": "state.progress", "body": {"re": number, "text": text}}, ())


_channel: Channel | None = None


def adopt() -> None:
    """Takes the inherited descriptor out of the environment: no child of the kernel sees it."""
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
