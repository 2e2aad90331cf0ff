"""The channel's Python end and what stands on it, against a supervisor that this test plays."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gresshopper import channel, need, operations


class Supervisor:
    """The other end: answers as told, and remembers what it was asked."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.heard: list[dict[str, Any]] = []
        self.refuse: str | None = None
        self.silent = False
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            wire, _ = self.read()
            if wire is None:
                return
            self.heard.append(wire)
            if "re" in wire or "id" not in wire or (self.silent and wire["op"] != "hello"):
                continue
            if self.refuse and wire["op"] != "hello":
                self.write({"re": wire["id"], "error": {"kind": "refused", "message": self.refuse}})
            else:
                self.write({"re": wire["id"], "ok": {"version": 1, "lease": 7, "gpus": [1], "node": "n1"}})

    def read(self) -> tuple[dict[str, Any] | None, list[bytes]]:
        head = self._exactly(8)
        if not head:
            return None, []
        size, count = struct.unpack(">II", head)
        sizes = struct.unpack(f">{count}Q", self._exactly(8 * count))
        return json.loads(self._exactly(size)), [self._exactly(n) for n in sizes]

    def _exactly(self, size: int) -> bytes:
        out = b""
        while len(out) < size:
            piece = self.sock.recv(size - len(out))
            if not piece:
                return b""
            out += piece
        return out

    def write(self, wire: dict[str, Any], *attachments: bytes) -> None:
        text = json.dumps(wire).encode()
        sizes = b"".join(struct.pack(">Q", len(a)) for a in attachments)
        self.sock.sendall(struct.pack(">II", len(text), len(attachments)) + sizes + text + b"".join(attachments))

    def ops(self) -> list[str]:
        return [w["op"] for w in self.heard if w.get("op") != "hello"]


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(need, "_held", need._Held())
    monkeypatch.setenv(channel.FD_VARIABLE, str(theirs.detach()))
    channel.adopt()
    assert channel.FD_VARIABLE not in os.environ
    yield Supervisor(ours)
    ours.close()


def eventually(true: Any) -> None:
    until = time.monotonic() + 10
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_block_has_a_grant_and_gives_it_back(supervisor: Supervisor) -> None:
    with need.gpu(2, mem=40, cpus=4) as grant:
        assert (grant.lease, grant.gpus, grant.node) == (7, (1,), "n1")
        with need.gpu():
            pass
        with pytest.raises(need.LeaseRefused, match="outer block"):
            need.gpu(3).__enter__()
    eventually(lambda: supervisor.ops() == ["need.acquire", "need.release"])
    assert supervisor.heard[1]["body"] == {"need": {"gpus": 2, "cpus": 4, "gpu_mem_mib": 40960}}


def test_a_refusal_is_told_with_its_reason_and_without_a_chain(supervisor: Supervisor) -> None:
    supervisor.refuse = "no such thing"
    with pytest.raises(need.LeaseRefused, match="no such thing") as error, need.cpu(8):
        pass
    assert error.value.__cause__ is None and error.value.__suppress_context__
    assert supervisor.ops() == ["need.acquire"]


def test_a_refusal_is_shown_where_the_cell_asks_without_our_frames(
    supervisor: Supervisor, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor.refuse = "no such thing"
    shell = InteractiveShell()
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    shell.user_ns["need"] = need
    for ask, said in (
        ("with need.gpu(99): pass", "LeaseRefused: no such thing"),
        ("need.gpu(0)", "BadNeed: a block has at least 1 GPU"),
        ("need.cpu(0)", "BadNeed: cpus is at least 1"),
    ):
        shell.run_cell(ask)
        shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
        assert f"1 {ask}" in shown and said in shown
        assert "need.py" not in shown, shown


def test_an_interrupt_ends_the_wait_and_withdraws(supervisor: Supervisor, request: pytest.FixtureRequest) -> None:
    supervisor.silent = True
    # Whoever runs the tests may ignore it, as a shell's jobs in the background do.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    # To the thread that waits: the process's others may take what is sent to the process.
    waits = threading.get_ident()
    threading.Timer(0.3, lambda: signal.pthread_kill(waits, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt), need.gpu():
        pass
    eventually(lambda: supervisor.ops() == ["need.acquire", "need.release"])


def test_a_supervisor_that_is_gone_is_an_error_not_a_hang(supervisor: Supervisor) -> None:
    supervisor.sock.shutdown(socket.SHUT_RDWR)
    with pytest.raises(need.LeaseRefused), need.gpu():
        pass


def test_the_supervisor_asks_with_attachments(supervisor: Supervisor) -> None:
    operations.register("test.echo", lambda call: ({"n": call.body["n"] + 1}, [f[::-1] for f in call.attachments]))
    operations.register("test.bad", lambda call: 1 / 0)  # type: ignore[arg-type,return-value]
    channel.get().open()
    supervisor.write({"op": "test.echo", "id": 5, "body": {"n": 1}}, b"abc", b"")
    eventually(lambda: {"re": 5, "ok": {"n": 2}} in supervisor.heard)
    supervisor.write({"op": "test.bad", "id": 6, "body": {}})
    eventually(lambda: any(w.get("re") == 6 and w["error"]["kind"] == "failed" for w in supervisor.heard))
    supervisor.write({"op": "nobody.knows", "id": 7, "body": {}})
    eventually(lambda: any(w.get("re") == 7 and w["error"]["kind"] == "unknown" for w in supervisor.heard))


def test_a_child_of_the_kernel_can_not_ask(supervisor: Supervisor) -> None:
    pid = os.fork()
    if not pid:
        try:
            need.gpu().__enter__()
        except need.LeaseRefused:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


def test_only_the_magics_line_is_blanked() -> None:
    cases = [
        (["%%gpu 1\n", "x\n"], ["\n", "x\n"]),
        (["%%cpu\n"], ["\n"]),
        (["  %%gpu 2 --mem 40\n", "  x"], ["\n", "  x"]),
        (["%%gpu\n", "\n", "%%time\n", "x\n"], ["%%time\n", "x\n"]),
        (["%%gpus\n", "x"], ["%%gpus\n", "x"]),
        (["x\n", "%%gpu\n"], ["x\n", "%%gpu\n"]),
        (["# a\n", "%%gpu 1 # b\n", "x\n"], ["# a\n", "\n", "x\n"]),
        (["# a\n", "%%retry # b\n", "# c\n", "%%cpu\n", "x\n"], ["# a\n", "\n", "# c\n", "\n", "x\n"]),
        (["# a\n", "%%gpu\n", "%%bash\n", "x\n"], ["%%bash\n", "x\n"]),
        (["%%gpu 1 # --help\n", "x\n"], ["\n", "x\n"]),
        (["%%gpu --help\n", "x\n"], ["get_ipython().run_line_magic('gpu', '--help')\n"]),
        (["# a\n", "%%cpu -h"], ["get_ipython().run_line_magic('gpu', '--help')\n"]),
        ([], []),
    ]
    for lines, expected in cases:
        assert need.blank_magic(lines) == expected


def request(code: str, kind: str = "execute_request") -> Any:
    parent = {"header": {"msg_type": kind}, "content": {"code": code}}
    return type("Shell", (), {"get_parent": lambda self: parent})()


def test_a_magic_that_the_supervisor_did_not_read_is_refused_and_not_blanked() -> None:
    assert need.was_read(request("\n%%gpu 1\nx"))
    assert need.was_read(request("# why\n%%gpu 1\nx"))
    assert need.was_read(request("x", "is_complete_request"))
    assert need.was_read(object())
    for code in ["%%time\n%%gpu\nx", "%rerun 3", ""]:
        assert not need.was_read(request(code)), code
    # Twice: the second one is left for IPython, which finds what refuses it.
    assert need.blank_magic(["%%gpu\n", "%%gpu\n", "x\n"]) == ["%%gpu\n", "x\n"]
    with pytest.raises(Exception, match="first line of the cell"):
        need.misplaced_magic("", "x")


def test_a_block_that_is_left_twice_leaves_the_next_one_whole(supervisor: Supervisor) -> None:
    block = need.gpu()
    with block:
        pass
    with pytest.raises(RuntimeError, match="left already"):
        block.__exit__(None, None, None)
    with need.gpu():
        pass
    eventually(lambda: supervisor.ops() == ["need.acquire", "need.release"] * 2)


def test_an_interrupt_while_the_memory_is_moved_gives_the_lease_back_all_the_same(supervisor: Supervisor) -> None:
    def interrupted(holds: bool) -> None:
        if not holds:
            raise KeyboardInterrupt

    need.on_change.append(interrupted)
    try:
        with pytest.raises(KeyboardInterrupt), need.gpu():
            pass
    finally:
        need.on_change.remove(interrupted)
    eventually(lambda: supervisor.ops() == ["need.acquire", "need.release"])
    assert not need.holds_gpu()


@pytest.mark.parametrize("wrong", [{"n": 0}, {"n": 1.5}, {"cpus": -1}, {"mem": -5}, {"mem": float("nan")}])
def test_what_is_no_amount_is_told_before_anybody_is_asked(wrong: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        need.gpu(**wrong)


class Result:
    """What IPython says at a cell's end, of the cell that it said began."""

    def __init__(self, info: object) -> None:
        self.info = info


def standing(block: need.Need) -> Iterator[int]:
    with block:
        yield 1
        yield 2


def test_a_generator_that_stands_in_a_block_keeps_no_gpu_after_its_cell(
    supervisor: Supervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    cells, info = need.Cells(), object()
    changes: list[bool] = []
    need.on_change.append(changes.append)
    try:
        cells.begins(info)
        cells.begins(object())
        left = standing(need.gpu())
        next(left)
        cells.over(Result(object()))
        assert need.holds_gpu(), "a cell within the cell is over"
        cells.over(Result(info))
        assert not need.holds_gpu()
        assert "GPUs were given back" in capsys.readouterr().err
        eventually(lambda: supervisor.ops() == ["need.acquire", "need.release"])
        # It goes on, and leaves alone what a later cell holds.
        with need.gpu():
            assert list(left) == [2]
            assert need.holds_gpu()
        eventually(lambda: supervisor.ops() == ["need.acquire", "need.release"] * 2)
        assert changes == [True, False] * 2
    finally:
        need.on_change.remove(changes.append)


def test_what_runs_beside_the_cells_keeps_its_block(
    supervisor: Supervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    cells, info, inside, leave = need.Cells(), object(), threading.Event(), threading.Event()

    def train() -> None:
        with need.gpu():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=train)
    cells.begins(info)
    thread.start()
    assert inside.wait(10)
    cells.over(Result(info))
    assert need.holds_gpu()
    leave.set()
    thread.join(10)
    # And what a cell's own helper holds goes back by itself.
    cells.begins(info)
    block = need.Need({"gpus": 1}, of_cell=True)
    block.__enter__()
    cells.over(Result(info))
    assert need.holds_gpu()
    block.__exit__(None, None, None)
    eventually(lambda: supervisor.ops() == ["need.acquire", "need.release"] * 2)
    assert capsys.readouterr().err == ""


def test_a_task_of_its_own_keeps_its_block_after_the_cell(supervisor: Supervisor) -> None:
    async def notebook() -> None:
        cells, info = need.Cells(), object()

        async def train() -> None:
            with need.gpu():
                await asyncio.sleep(0.05)

        cells.begins(info)
        task = asyncio.ensure_future(train())
        await asyncio.sleep(0)
        cells.over(Result(info))
        assert need.holds_gpu()
        await task

    asyncio.run(notebook())
    eventually(lambda: supervisor.ops() == ["need.acquire", "need.release"])
