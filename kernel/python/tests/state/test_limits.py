"""A capture that is given up leaves everything as it was, and the next one misses nothing."""

from __future__ import annotations

import asyncio
import select
import socket
import time
import types
from pathlib import Path
from typing import Any

import pytest
from gresshopper.state import buffers, event_loop, grouping, limits, pace, pickling, threads
from gresshopper.state.pickling import Interrupted

import child
from harness import Kernel

CELLS = (
    "a = [1, 2]; b = {'a': a}; c = list(map(str, range(60_000)))",
    "a.append(3); c[7] = 'changed'; d = {'b': b}",
    "del b; e = lambda: a; c.append('more')",
)


class After:
    """Gives up at the n-th question."""

    def __init__(self, n: int) -> None:
        self.left = n

    def check(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Interrupted

    def expect(self, seconds: float) -> None:
        self.check()


def known(kernel: Kernel) -> Any:
    return {u.uid: (u.members, u.digest, u.blobs) for u in kernel.capture.units.values()}


def test_giving_up_anywhere_changes_nothing_and_loses_nothing(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.log.create()
    given_up = 0
    for source in CELLS:
        assert kernel.run(source), kernel.error
        before = known(kernel)
        for n in range(10_000):
            try:
                with limits.bound(kernel.capture.session, After(n)):
                    kernel.snap(source)
                break
            except Interrupted:
                given_up += 1
                assert known(kernel) == before
        assert not kernel.capture.run(None).changed
        kernel.log.commit(False)
    kernel.log.close()
    assert given_up > 10
    fresh = Kernel(tmp_path)
    fresh.restore()
    ns = fresh.ns
    assert ns["a"] == [1, 2, 3] and ns["d"]["b"]["a"] is ns["a"] and ns["e"]() is ns["a"] and "b" not in ns
    assert len(ns["c"]) == 60_001 and ns["c"][7] == "changed"


def asked_in_a_capture(kernel: Kernel) -> int:
    """How often a capture asks whether it may go on."""
    patience = After(10_000)
    with limits.bound(kernel.capture.session, patience):
        kernel.capture.run(None)
    return 10_000 - patience.left


def test_a_large_group_asks_often(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    assert kernel.run("big = set(map(str, range(400_000)))")
    assert asked_in_a_capture(kernel) > 30


def test_a_class_with_slow_pickling_of_its_own_is_asked_between_two_objects(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    assert kernel.run("class A:\n    def __getstate__(self): return {}\nmany = [A() for _ in range(50)]")
    assert asked_in_a_capture(kernel) >= 50


def test_looking_for_what_many_objects_share_asks_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(tmp_path)
    assert kernel.run("big = [[] for i in range(300_000)]; small = [1]")
    patience, asked = After(10_000), []
    merge = grouping.Search._merge

    def counted(work: Any) -> Any:
        before = patience.left
        found = merge(work)
        asked.append(before - patience.left)
        return found

    monkeypatch.setattr(grouping.Search, "_merge", counted)
    with limits.bound(kernel.capture.session, patience):
        kernel.capture.run(None)
    assert asked[-1] >= 4


def test_memory_that_takes_too_long_to_store_is_left_for_later(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    kernel = Kernel(tmp_path)
    assert kernel.run("import numpy as np; big = np.ones(3_000_000)")
    with pytest.raises(Interrupted), limits.bound(kernel.capture.session, limits.Until(time.perf_counter() + 0.02)):
        kernel.capture.run(None)
    assert kernel.store.written == 0
    kernel.capture.run(None)
    assert kernel.store.written > 0


def test_what_an_array_of_objects_holds_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numpy")
    kernel = Kernel(tmp_path)
    assert kernel.run("import numpy as np; names = np.array([str(i) for i in range(6000)], dtype=object)")
    kernel.capture.run(None)
    before = {u.members: u.tags for u in kernel.capture.units.values()}
    monkeypatch.setattr(buffers, "content_tags", lambda buffer: pytest.fail("it was written a second time"))
    assert kernel.run("also = [names]")
    assert kernel.capture.run(None).changed
    after = {u.members: u.tags for u in kernel.capture.units.values()}
    assert after[("n:also", "n:names")] == before[("n:names",)]


def test_watched_memory_that_was_written_costs_what_it_takes_to_store(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    kernel = Kernel(tmp_path)
    memories = kernel.capture.memories
    if not memories.tracking:
        pytest.skip("Linux doesn't track writes here")
    assert kernel.run("import numpy as np; items = np.arange(400_000).astype(object); plain = np.ones(2_000_000)")
    for _ in range(2):
        kernel.capture.run(None, arm=True)
    buffers = {n: pickling.dump(kernel.capture.session, [kernel.ns[n]]).buffers[0] for n in ("items", "plain")}
    assert {n: memories.cost(b) for n, b in buffers.items()} == {"items": 0.0, "plain": 0.0}
    assert kernel.run("items[7] = 'another'; plain[7] = 3")
    assert memories.cost(buffers["items"]) > 0.05 and 0.005 < memories.cost(buffers["plain"]) < 0.05
    with pytest.raises(Interrupted), limits.bound(kernel.capture.session, limits.Until(time.perf_counter() + 0.05)):
        kernel.capture.run(None)
    assert len(kernel.capture.run(None).changed) == 2  # asking what it costs hides nothing


def test_what_took_long_to_write_is_not_begun_in_a_hurry(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    assert kernel.run("a = [1]; b = [2]")
    kernel.capture.run(None)
    for unit in kernel.capture.units.values():
        unit.seconds = 0.5

    class Counts(After):
        def check(self) -> None:
            pytest.fail("it was begun")

        def expect(self, seconds: float) -> None:
            if seconds >= 1.0:
                raise Interrupted

    with pytest.raises(Interrupted), limits.bound(kernel.capture.session, Counts(0)):
        kernel.capture.run(None)


def _shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    interactive = pytest.importorskip("IPython.core.interactiveshell")
    traitlets = pytest.importorskip("traitlets.config")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    quiet = traitlets.Config()
    quiet.HistoryManager.enabled = False
    return interactive.InteractiveShell(config=quiet)


def test_what_no_name_shows_is_found_while_the_user_thinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gresshopper.state import agent as agents

    monkeypatch.setattr(pace, "THINK", 0.01)
    monkeypatch.setattr(pace, "REST", 0.02)
    monkeypatch.setattr(pace, "AUDITS", 1)  # on a busy machine the first audit may take seconds
    monkeypatch.setattr(threads, "tasks_of_user", lambda namespace: [])  # this test's own would be one
    shell = _shell(tmp_path, monkeypatch)
    agent = agents.Agent(shell, tmp_path / "store")
    agent.watch()

    async def thinks() -> None:
        agent.watcher._after(_Cell("a = [1]"))
        shell.user_ns["a"] = [1]
        while agent.watcher._audited < 1:  # noqa: ASYNC110 - the agent tells nobody
            await asyncio.sleep(0.01)
        shell.user_ns["a"].append(2)  # as a callback may
        agent.watcher._after(_Cell("1 + 1"))
        while agent.watcher._audited < 2:  # noqa: ASYNC110 - the agent tells nobody
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(thinks(), 30))
    assert not agent.watcher.failures.texts
    assert agent.recorder.notes[-1]["cell"] is None and agent.recorder.notes[-1]["units"][0]["m"] == ["n:a"]
    assert not agent.capture.run(None).changed


def test_nothing_is_audited_while_cell_follows_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gresshopper.state import agent as agents

    monkeypatch.setattr(pace, "REST", 1000.0)
    agent = agents.Agent(_shell(tmp_path, monkeypatch), tmp_path / "store")
    agent.watch()
    planned: list[float] = []
    monkeypatch.setattr(event_loop, "after", lambda seconds, work: planned.append(seconds))
    agent.watcher._after(_Cell("a = [1]"))
    agent.watcher.idle()
    assert agent.watcher.pace._audit_due and not agent.watcher._waiting
    planned.clear()
    agent.watcher.idle()
    assert not planned
    agent.watcher.rest()
    assert agent.watcher._audited < 1 and len(planned) == 1 and 900 < planned[0] <= 1000
    agent.watcher.pace._ended -= 1000
    agent.watcher.rest()
    assert agent.watcher._audited == 1 and not agent.watcher.pace._audit_due and len(planned) == 1


def test_a_request_that_came_with_the_timer_goes_first() -> None:
    ours, theirs = socket.socketpair()
    order: list[str] = []

    async def cell() -> None:
        order.append("cell")

    async def both_at_once() -> None:
        loop = asyncio.get_running_loop()
        running: list[Any] = []
        loop.add_reader(ours, lambda: (ours.recv(1), running.append(loop.create_task(cell()))))
        event_loop.after(0.01, lambda: order.append("capture"))
        theirs.send(b"x")
        time.sleep(0.03)  # noqa: ASYNC251 - the loop is late: it finds both
        await asyncio.sleep(0.05)
        loop.remove_reader(ours)

    asyncio.run(both_at_once())
    ours.close()
    theirs.close()
    assert order == ["cell", "capture"]


def test_asking_for_requests_takes_none_from_the_loop() -> None:
    zmq = pytest.importorskip("zmq")
    with zmq.Context() as context, context.socket(zmq.ROUTER) as ours, context.socket(zmq.DEALER) as theirs:
        port = ours.bind_to_random_port("tcp://127.0.0.1")
        theirs.connect(f"tcp://127.0.0.1:{port}")
        shell = types.SimpleNamespace(kernel=types.SimpleNamespace(shell_stream=types.SimpleNamespace(socket=ours)))
        ours.getsockopt(zmq.EVENTS)
        patience = limits.UntilAsked(shell)
        theirs.send(b"a request")
        for _ in range(3):  # it tells each time, until whoever the request is for has looked
            with pytest.raises(Interrupted):
                _ask_for_seconds(patience, 5)
        assert select.select([ours.fileno()], [], [], 0)[0]
        while ours.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            ours.recv_multipart()
        _ask_for_seconds(patience, 0.05)


def _ask_for_seconds(patience: limits.UntilAsked, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        patience.check()
        time.sleep(0.001)


class _Cell:
    """What IPython tells of a cell that ran."""

    success, execution_count = True, 1

    def __init__(self, source: str) -> None:
        self.info = types.SimpleNamespace(raw_cell=source)


BEFORE = """
import signal, sys, time
from pathlib import Path
from IPython.core.interactiveshell import InteractiveShell
from gresshopper.state.agent import Agent
ip = InteractiveShell.instance()
agent = Agent(ip, Path(sys.argv[1]) / "store")
agent.watch()
begins = agent.watcher._cells.begins
def interrupted(info):
    signal.raise_signal(signal.SIGINT)
    return begins(info)
agent.watcher._cells.begins = interrupted
result = ip.run_cell("time = __import__('time'); time.sleep(20)")
print("\\x1e" + __import__("json").dumps(type(result.error_in_exec).__name__))
"""


def test_an_interrupt_in_our_own_hook_reaches_the_cell(tmp_path: Path) -> None:
    began = time.monotonic()
    said, told = child.answer(BEFORE, str(tmp_path), base=tmp_path)
    assert said == "KeyboardInterrupt" and "Error in callback" not in told
    assert time.monotonic() - began < 20
