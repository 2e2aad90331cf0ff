"""The door of a process, asked over a real socket."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gresshopper import door, operations
from gresshopper.operations import Call, OperationError
from gresshopper.wire import Frames, WireError

WAIT = 20


class Command:
    """A command at the door."""

    def __init__(self, path: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(WAIT)
        self.sock.connect(path)
        self.frames = Frames(self.sock)
        self.last = 0

    def send(self, op: str, body: Any = None) -> None:
        self.last += 1
        self.frames.send({"op": op, "id": self.last, "body": body})

    def ask(self, op: str, body: Any = None) -> Any:
        self.send(op, body)
        return self.answer()

    def answer(self) -> Any:
        wire, _ = self.frames.receive()
        assert wire["re"] == self.last
        return wire.get("ok") or wire["error"]

    def hello(self, **more: Any) -> Any:
        return self.ask("hello", {"version": 1, **more})


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[door.Door]:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("GRESSHOPPER_RUN_DIR", str(tmp_path))
    made = door.Door()
    yield made
    made.close()


def test_the_socket_is_the_users_alone_and_goes_with_the_door(opened: door.Door, tmp_path: Path) -> None:
    assert opened.path == str(tmp_path / f"process-{os.getpid()}.sock")
    assert stat.S_IMODE(os.lstat(opened.path).st_mode) == 0o600
    opened.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRESSHOPPER_RUN_DIR", str(tmp_path))
    tmp_path.chmod(0o755)
    with pytest.raises(PermissionError, match="mode 0700"):
        door.Door()


def test_hello_says_what_the_process_is(opened: door.Door) -> None:
    operations.register("test.echo", lambda call: call.body)
    said = Command(opened.path).hello()
    assert (said["version"], said["pid"], said["standby"]) == (1, os.getpid(), False)
    assert "test" in said["ops"]
    opened.standby = True
    assert Command(opened.path).hello()["standby"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_another_user_is_not_answered() -> None:
    # A door's folder keeps others out. This one doesn't.
    with tempfile.TemporaryDirectory() as folder:
        opened = door.Door(f"{folder}/process.sock")
        os.chmod(folder, 0o755)
        os.chmod(opened.path, 0o777)
        script = textwrap.dedent(
            """
            import os, socket, struct, sys
            os.setgid(65534)
            os.setuid(65534)
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(20)
            sock.connect(sys.argv[1])
            hello = b'{"op": "hello", "id": 1, "body": {"version": 1}}'
            try:
                sock.sendall(struct.pack(">II", len(hello), 0) + hello)
                print("answer", sock.recv(1))
            except (BrokenPipeError, ConnectionResetError):
                print("answer", b"")
            """
        )
        asked = [sys.executable, "-c", script, opened.path]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        assert done.stdout == "answer b''\n", done.stderr
        assert Command(opened.path).hello()["pid"] == os.getpid(), "the user still is"
        opened.close()


def test_operations_are_answered_or_refused(opened: door.Door) -> None:
    def refuse(call: Call) -> Any:
        raise OperationError("busy", "another one stands in the way")

    operations.register("test.echo", lambda call: {"said": call.body["say"]})
    operations.register("test.refuse", refuse)
    command = Command(opened.path)
    command.hello()
    assert command.ask("test.echo", {"say": "x"}) == {"said": "x"}
    assert command.ask("test.refuse") == {"kind": "busy", "message": "another one stands in the way"}
    assert command.ask("test.nothing")["kind"] == "unknown"
    assert command.ask("test.echo", [1])["kind"] == "failed", "a body is an object"
    operations.register("state.flush", lambda call: {"flushed": True})
    assert command.ask("state.flush")["kind"] == "refused", "it is the supervisor's"


@pytest.mark.parametrize("first", [("test.echo", {"version": 1}), ("hello", {"version": 2}), ("hello", [])])
def test_a_conversation_opens_with_a_hello_of_this_version(opened: door.Door, first: tuple[str, Any]) -> None:
    command = Command(opened.path)
    refused = command.ask(*first)
    assert refused["kind"] == "version" and "restart the kernel" in refused["message"]
    with pytest.raises(WireError):
        command.frames.receive()


@pytest.mark.parametrize(
    "sent",
    [
        (1 << 21).to_bytes(4, "big") + bytes(4),  # larger than a command's may be
        (2).to_bytes(4, "big") + (1).to_bytes(4, "big") + (1 << 40).to_bytes(8, "big"),
        (3).to_bytes(4, "big") + bytes(4) + b"nil",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["json", "attachment", "no json", "http"],
)
def test_nonsense_ends_the_conversation_and_no_other(opened: door.Door, sent: bytes) -> None:
    beside = Command(opened.path)
    beside.hello()
    for greets in (False, True):
        command = Command(opened.path)
        if greets:
            command.hello()
        command.sock.sendall(sent)
        with pytest.raises(WireError):
            command.frames.receive()
    operations.register("test.echo", lambda call: call.body)
    assert beside.ask("test.echo", {"x": 1}) == {"x": 1}


def test_one_command_calls_off_what_another_waits_for(opened: door.Door) -> None:
    called_off = threading.Event()

    def call_off(call: Call) -> Any:
        called_off.set()
        return {"in": True}

    operations.register("test.out", lambda call: {"called off": called_off.wait(WAIT)})
    operations.register("test.in", call_off)
    first, second = Command(opened.path), Command(opened.path)
    first.hello()
    second.hello()
    first.send("test.out")
    assert second.ask("test.in") == {"in": True}
    assert first.answer() == {"called off": True}


def test_what_nobody_waits_for_any_more_is_not_begun(opened: door.Door) -> None:
    posted: list[Any] = []
    came = threading.Event()

    def post(work: Any) -> None:
        posted.append(work)
        came.set()

    def do(call: Call) -> Any:
        done.append(call.body["by"])
        return {}

    done: list[str] = []
    operations.register("test.later", do, post)
    before = threading.enumerate()
    gone = Command(opened.path)
    gone.hello()
    (asker,) = [t for t in threading.enumerate() if t not in before]
    stays = Command(opened.path)
    stays.hello()
    for command, name in ((gone, "gone"), (stays, "stays")):
        came.clear()
        command.send("test.later", {"by": name})
        assert came.wait(WAIT)
    gone.sock.close()
    asker.join(WAIT)
    for work in posted:
        work()
    stays.frames.receive()
    assert done == ["stays"]


def test_a_command_that_does_not_read_holds_up_nobody(opened: door.Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "_TAKE_S", 1)
    operations.register("test.much", lambda call: {"text": "x" * (8 << 20)}, lambda work: work())
    before = threading.enumerate()
    lazy = Command(opened.path)
    lazy.hello()
    (asker,) = [t for t in threading.enumerate() if t not in before]
    lazy.send("test.much")
    command = Command(opened.path)
    command.hello()
    operations.register("test.echo", lambda call: call.body)
    assert command.ask("test.echo", {"x": 1}) == {"x": 1}
    asker.join(WAIT)
    assert not asker.is_alive()
    with pytest.raises(WireError):  # after what was in the buffer
        lazy.frames.receive()


def test_the_cell_that_waits_for_a_command_does_its_work(opened: door.Door) -> None:
    operations.register("test.between", lambda call: {"by": "the cell"}, lambda work: None)
    did: list[int] = []

    def in_the_cell(work: Any) -> None:
        did.append(1)
        work()

    with opened.within(in_the_cell) as word:
        command = Command(opened.path)
        command.hello(within=word)
        assert command.ask("test.between") == {"by": "the cell"}
        stranger = Command(opened.path)
        stranger.hello(within="another word")
        stranger.send("test.between")
    assert did == [1]
    assert opened.runner(word) is None, "the cell is over"
    assert opened.runner(None) is None
