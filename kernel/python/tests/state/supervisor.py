"""Plays the supervisor of a real ipykernel: the other end of the agent channel, and a client of the kernel's."""

from __future__ import annotations

import fcntl
import json
import os
import queue
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from typing import Any, Callable

HERE = Path(__file__).parent


class Refused(Exception):
    """The kernel answered with an error."""

    def __init__(self, error: dict[str, str]) -> None:
        super().__init__(error["message"])
        self.kind = error["kind"]


class Kernel:
    """A kernel with a supervisor that keeps its state."""

    def __init__(self, base: Path, **environment: str) -> None:
        from jupyter_client import BlockingKernelClient
        from jupyter_client.connect import write_connection_file

        base.chmod(0o700)
        self.base = base
        ours, theirs = socket.socketpair()
        self._sock = ours
        file, _ = write_connection_file(str(base / f"kernel-{time.monotonic_ns()}.json"))
        env = {
            **os.environ,
            "PYTHONPATH": str(HERE.parent.parent),
            "XDG_CONFIG_HOME": str(base / "config"),
            "GRESSHOPPER_STORE": str(base / "store"),
            "GRESSHOPPER_RUN_DIR": str(base),
            "IPYTHONDIR": str(base / "ipython"),
            "PYTHONWARNINGS": "ignore",
            "GRESSHOPPER_AGENT_FD": str(theirs.fileno()),
            "GRESSHOPPER_STATE": "1",
            **environment,
        }
        self.log = base / "kernel.log"
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "ipykernel_launcher",
                "-f",
                file,
                "--InteractiveShellApp.extra_extensions=gresshopper.extension",
            ],
            env=env,
            cwd=base,
            pass_fds=[theirs.fileno()],
            stdout=self.log.open("wb"),
            stderr=subprocess.STDOUT,
        )
        theirs.close()
        #: Events in the order in which they came: name, body, attachments.
        self.events: list[tuple[str, dict[str, Any], list[bytes]]] = []
        #: Requests whose code was about to run (`state.begins`), in their order.
        self.begun: list[str] = []
        self._answers: queue.Queue[tuple[dict[str, Any], list[bytes]]] = queue.Queue()
        self._last = 0
        threading.Thread(target=self._read_all, daemon=True).start()
        self.client = BlockingKernelClient(connection_file=file)
        self.client.load_connection_file()
        self.client.start_channels()

    # --- the channel ---

    def _read_all(self) -> None:
        while True:
            self._between = True
            head = self._exactly(8)
            if not head:
                return
            self._between = False
            size, count = struct.unpack(">II", head)
            sizes = struct.unpack(f">{count}Q", self._exactly(8 * count))
            wire = json.loads(self._exactly(size))
            attachments = [self._exactly(n) for n in sizes]
            if wire.get("op") == "hello":
                self._write({"re": wire["id"], "ok": {"version": 1, "ops": ["need", "state"]}})
            elif "re" in wire:
                self._answers.put((wire, attachments))
            elif wire["op"] == "state.begins":
                self.begun.append(wire["body"]["msg_id"])
            else:
                self.events.append((wire["op"], wire["body"], attachments))

    def _exactly(self, size: int) -> bytes:
        out = b""
        while len(out) < size:
            try:
                piece = self._sock.recv(size - len(out))
            except OSError:
                piece = b""
            if not piece:
                return b""
            out += piece
        return out

    def _write(self, wire: dict[str, Any], attachments: Any = ()) -> None:
        text = json.dumps(wire).encode()
        sizes = b"".join(struct.pack(">Q", len(a)) for a in attachments)
        self._sock.sendall(struct.pack(">II", len(text), len(attachments)) + sizes + text + b"".join(attachments))

    def send(self, op: str, body: dict[str, Any], attachments: Any = ()) -> int:
        """Ask, without waiting for the answer."""
        self._last += 1
        self._write({"op": f"state.{op}", "id": self._last, "body": body}, attachments)
        return self._last

    def answer(self, timeout: float = 30) -> dict[str, Any]:
        """The next answer."""
        wire, _ = self._answers.get(timeout=timeout)
        if "error" in wire:
            raise Refused(wire["error"])
        assert wire["re"] == self._last
        ok: dict[str, Any] = wire["ok"]
        return ok

    def ask(self, op: str, body: dict[str, Any] | None = None, attachments: Any = ()) -> dict[str, Any]:
        """Ask, and wait."""
        self.send(op, body or {}, attachments)
        return self.answer()

    def begin(self, **asked: Any) -> dict[str, Any]:
        """Have the kernel keep its state, each cell before its reply."""
        return self.ask("begin", {"capture": "cells", "patience_ms": 10_000, "record": 1, **asked})

    # --- the client ---

    def run(self, source: str, timeout: float = 60, **how: Any) -> tuple[str, str]:
        """Run a cell; its request's id and its status. The events are those that came until the reply.

        An error doesn't stop what follows: on a busy machine ipykernel would abort the next cell, sent after the reply.
        """
        number = self.client.execute(source, **{"stop_on_error": False, **how})
        return number, self.reply(number, timeout)

    def reply(self, number: str, timeout: float = 60) -> str:
        """The status of a request's reply."""
        until = time.monotonic() + timeout
        while True:
            reply = self.client.get_shell_msg(timeout=max(0.1, until - time.monotonic()))
            if reply["parent_header"].get("msg_id") == number:
                self.replied = reply["content"]
                self.settle()
                return str(reply["content"]["status"])

    def printed(self, source: str) -> str:
        """What a cell prints."""
        out: list[str] = []
        self.client.execute_interactive(
            source,
            timeout=60,
            store_history=False,
            stop_on_error=False,
            output_hook=lambda m: out.append(
                m["content"].get("text") or "\n".join(m["content"].get("traceback", []))
            ),
        )
        return "".join(text for text in out if text)

    # --- what came ---

    def of(self, name: str) -> list[tuple[dict[str, Any], list[bytes]]]:
        """The events of one name."""
        return [(body, attachments) for op, body, attachments in self.events if op == f"state.{name}"]

    def records(self) -> list[tuple[dict[str, Any], bytes, bytes]]:
        """All records, by their numbers: what was said, text and body."""
        found = [(b, *a) for op, b, a in list(self.events) if a and op in ("state.cell", "state.record")]
        return sorted(found, key=lambda one: one[0]["record"])  # type: ignore[return-value]

    def attachments(self) -> list[bytes]:
        """All records, as they travel."""
        return [part for _, text, body in self.records() for part in (text, body)]

    def settle(self) -> None:
        """Take in what the kernel has sent until now, and no more."""
        while self._unread() or not self._between:
            time.sleep(0.001)

    def _unread(self) -> int:
        return int(struct.unpack("i", fcntl.ioctl(self._sock, termios.FIONREAD, b"\0" * 4))[0])

    def eventually(self, what: Callable[[], Any], seconds: float = 30) -> None:
        """Wait until something is so."""
        until = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < until, self.log.read_text(errors="replace")[-3000:]
            time.sleep(0.01)

    def close(self) -> None:
        """End it, as a crash would."""
        self.client.stop_channels()
        self.process.kill()
        self.process.wait()
        self._sock.close()
