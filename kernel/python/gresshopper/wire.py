"""Frames of the agent channel: JSON with binary attachments over a stream socket (docs/agent-wire.md).

Sending and receiving only. Requests, answers and operations are `channel`'s.
"""

from __future__ import annotations

import ctypes
import json
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Any, Union

VERSION = 1

#: Memory that travels as one attachment.
Attachment = Union[bytes, bytearray, memoryview]

_HEAD = struct.Struct(">II")
_JSON_MAX = 64 << 20
_ATTACHMENTS_MAX = 4096
_FRAME_MAX = 4 << 30
#: Size up to which a frame is sent as a single piece.
_SMALL = 64 << 10


#: send(2) without letting go of the interpreter. Python's own does, and then waits until the kernel's other threads, which
#: have just got messages of their own to send, give it back: half a millisecond of each cell.
_send = ctypes.PyDLL(None).send
_send.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
_send.restype = ctypes.c_ssize_t
_AT_ONCE = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


class WireError(Exception):
    """The peer has closed the connection, or sent what is no frame."""


class Frames:
    """One end of a connection. Any thread may send; one thread receives, frames of at most ``largest`` bytes."""

    def __init__(self, sock: socket.socket, largest: int = _FRAME_MAX) -> None:
        self._sock = sock
        self._largest = largest
        self._sending = threading.Lock()

    def send(self, message: dict[str, Any], attachments: Sequence[Attachment] = ()) -> None:
        """Send one frame.

        # Errors
        `WireError` when the peer is gone. After an interrupt in the middle of a frame the connection is closed: what
        followed couldn't be read.
        """
        text = json.dumps(message).encode()
        sizes = struct.pack(f">{len(attachments)}Q", *(len(part) for part in attachments))
        head = _HEAD.pack(len(text), len(attachments)) + sizes + text
        whole = len(head) + sum(map(len, attachments)) <= _SMALL
        with self._sending:
            try:
                if whole:
                    self._send_small(b"".join([head, *attachments]))
                else:
                    for piece in [head, *attachments]:
                        self._sock.sendall(piece)
            except OSError as error:
                raise WireError("the peer is gone") from error
            except BaseException:
                self.close()
                raise

    def _send_small(self, frame: bytes) -> None:
        sent = max(0, _send(self._sock.fileno(), frame, len(frame), _AT_ONCE))
        if sent < len(frame):
            self._sock.sendall(frame[sent:])  # waits for room, or says why there is none

    def receive(self) -> tuple[dict[str, Any], list[bytes]]:
        """The next frame: JSON and attachments.

        # Errors
        `WireError` at the end of the connection, and for what is no frame.
        """
        size, count = _HEAD.unpack(self._read(_HEAD.size))
        if size > min(_JSON_MAX, self._largest) or count > _ATTACHMENTS_MAX:
            raise WireError("a frame is too large")
        sizes = struct.unpack(f">{count}Q", self._read(8 * count))
        if sum(sizes) > self._largest:
            raise WireError("a frame is too large")
        try:
            message = json.loads(self._read(size))
        except ValueError as error:
            raise WireError("a frame holds no JSON") from error
        if not isinstance(message, dict):
            raise WireError("a frame holds no object")
        return message, [self._read(length) for length in sizes]

    def _read(self, size: int) -> bytes:
        buffer = bytearray(size)
        view = memoryview(buffer)
        while view:
            try:
                got = self._sock.recv_into(view)
            except OSError as error:
                raise WireError("the connection broke") from error
            if not got:
                raise WireError("the peer has closed the connection")
            view = view[got:]
        return bytes(buffer)

    def close(self) -> None:
        """Close the connection; whoever waits for a frame is told."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        finally:
            self._sock.close()
