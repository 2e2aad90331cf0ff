"""Frames over a real pair of sockets."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from gresshopper.wire import Frames, WireError


def test_frames_arrive_whole_and_in_order_though_the_peer_reads_late() -> None:
    here, there = socket.socketpair()
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sent, received = Frames(here), Frames(there)
    parts = [bytes([i % 256]) * (i * 997 % 60_000) for i in range(100)]

    def send() -> None:
        for i, part in enumerate(parts):
            sent.send({"number": i}, [part, b""])

    sending = threading.Thread(target=send)
    sending.start()
    time.sleep(0.05)  # the buffer is full, and the sender waits
    assert sending.is_alive()
    for i, part in enumerate(parts):
        assert received.receive() == ({"number": i}, [part, b""])
    sending.join(10)
    assert not sending.is_alive()


def test_a_peer_that_is_gone_is_an_error_and_no_signal() -> None:
    here, there = socket.socketpair()
    there.close()
    with pytest.raises(WireError):
        Frames(here).send({"number": 1})
    with pytest.raises(WireError):
        Frames(here).send({"number": 1}, [bytes(100_000)])
    here.close()
    with pytest.raises(WireError):
        Frames(here).send({"number": 1})
