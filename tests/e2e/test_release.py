"""A GPU that somebody keeps after its lease: `hop info` says who, and an operator has it lent again when it is free."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import Any

import pytest
from harness import OPENABLE, Cluster, Failed, notebook, until

KEEP = """%%gpu 1
import os, socket
fd = os.open(openable()[0], os.O_RDWR | os.O_NOCTTY)
peer = socket.socket(socket.AF_UNIX)
peer.connect("\\0{name}")
socket.send_fds(peer, [b"x"], [fd])
os.close(fd)
print(peer.recv(1))
"""


def keeper(name: str, kept: list[int]) -> None:
    """This process, which is root's and nobody's to end, keeps a descriptor."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + name)
        server.listen()
        server.settimeout(120)
        with contextlib.suppress(TimeoutError):
            peer, _ = server.accept()
            with peer:
                kept.extend(socket.recv_fds(peer, 1, 4)[1])
                peer.send(b"k")


def test_a_blocked_gpu_costs_the_others_nothing_and_is_lent_again_when_it_is_free(two_gpus: Cluster) -> None:
    node = two_gpus.env["HOP_DEV_NODES"]
    kept: list[int] = []
    name = f"hop-keeper-{os.getpid()}"
    threading.Thread(target=keeper, args=(name, kept), daemon=True).start()

    def row(blocked: int) -> Any:
        rows = two_gpus.hop("info")["rows"]
        return next((r for r in rows if (r["state"], r["blocked"]) == ("UP", blocked)), None)

    with notebook(two_gpus, "alice") as alice, notebook(two_gpus, "bob") as bob:
        try:
            bob.execute(OPENABLE)
            alice.execute(OPENABLE)
            before = until("a pilot is up", lambda: row(0), 60)
            pilot = before["pilot"]
            got = alice.execute(KEEP.format(name=name))
            assert got["text"] == "b'k'\n", got
            with contextlib.suppress(Failed):
                two_gpus.run("root", "hop", "cancel", str(got["lease"]["lease"]))
            told = until("hop info shows that it is blocked", lambda: row(1), 30)
            assert (told["blocked_gpus"], told["gpus_free"], told["pilot"]) == ("0", 1, pilot), told
            assert told["isolation"] == "counted", told
            assert f"process {os.getpid()} " in told["reason"]
            for _ in range(2):
                other = bob.execute("%%gpu 1\nprint(openable())", timeout=30)
                assert other["status"] == "ok", other
                two_gpus.run("root", "hop", "cancel", str(other["lease"]["lease"]))
            got = alice.execute("%%gpu 1\n1", timeout=60)
            assert "which a lease of theirs left blocked" in got["reply"]["evalue"], got
            after = row(1)
            assert after and after["pilot"] == pilot, "no pilot ends for a GPU that is known to be blocked"
            with pytest.raises(Failed, match="no operator"):
                two_gpus.run("alice", "hop", "release", node)
            with pytest.raises(Failed, match=f"stays blocked: process {os.getpid()} "):
                two_gpus.run("root", "hop", "release", node)
        finally:
            for fd in kept:
                os.close(fd)
        two_gpus.run("root", "hop", "release", node)
        free = row(0)
        assert free and free["pilot"] == pilot, two_gpus.hop("info")
        same = alice.execute("print(type(fd).__name__)")
        assert same["text"] == "int\n", "the kernel lives on: its end would have freed nothing"
        again = bob.execute("%%gpu 2\nprint(len(openable()))")
        assert (again["status"], again["text"]) == ("ok", "2\n"), again
        two_gpus.run("root", "hop", "cancel", str(again["lease"]["lease"]))
        until("no step is left", two_gpus.quiet)
