"""What a capture in think time does to the cells around it, in a real ipykernel."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor import Kernel

for package in ("ipykernel", "jupyter_client", "cloudpickle"):
    pytest.importorskip(package)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Kernel]]:
    made: list[Kernel] = []

    def one() -> Kernel:
        made.append(Kernel(tmp_path))
        made[-1].begin(patience_ms=None)
        return made[-1]

    yield one
    for kernel in made:
        kernel.close()


#: Notes the order of captures in think time and of cells in a list on disk. Each capture lasts until a request is there.
ORDER = """
import pathlib, select, sys
_watchers, _limits = sys.modules['gresshopper.state.watcher'], sys.modules['gresshopper.state.limits']
_captures, _pace = sys.modules['gresshopper.state.capture'], sys.modules['gresshopper.state.pace']
_of = sys.modules['gresshopper.state.agent'].agent().watcher
def _note(what):
    with open('order', 'a') as file:
        file.write(what + ' ')
def _lasting(patience, seconds=0.0):
    poll = select.poll()
    poll.register(patience._descriptor, select.POLLIN)
    assert poll.poll(30_000)
    raise _limits.Interrupted
def _noted(capture, *asked, **how):
    if not getattr(capture.session.check, '__func__', None) is _lasting:
        return _run(capture, *asked, **how)
    _note('capture')
    try:
        return _run(capture, *asked, **how)
    except _limits.Interrupted:
        _note('broken')
        raise
_run, _captures.Capture._run = _captures.Capture._run, _noted
_limits.UntilAsked.check = _limits.UntilAsked.expect = _lasting
_watchers.Watcher._promptly = lambda self: None
get_ipython().events.register('pre_execute', lambda: _note('cell'))
"""


def order(kernel: Kernel) -> list[str]:
    found = kernel.base / "order"
    return found.read_text().split() if found.exists() else []


def test_after_a_request_broke_a_capture_off_its_cell_runs_before_the_next_capture(
    start: Callable[[], Kernel],
) -> None:
    kernel = start()
    kernel.run(ORDER + "for _ in range(3): _of.think()")
    kernel.eventually(lambda: order(kernel) == ["capture"])
    kernel.run("1")
    kernel.eventually(lambda: len(order(kernel)) >= 3)
    assert order(kernel)[:3] == ["capture", "broken", "cell"]


@pytest.mark.parametrize(
    "replaced",
    [
        "time.monotonic = lambda stopped=time.monotonic(): stopped",
        "time.monotonic = lambda: 0.0",
        "time.monotonic = time.perf_counter = time.time = lambda: 0.0; time.sleep = lambda seconds: None",
        "asyncio.get_running_loop().time = lambda: 0.0",
    ],
)
def test_a_clock_of_the_notebook_keeps_no_think_time_from_being_used(
    start: Callable[[], Kernel], replaced: str
) -> None:
    kernel = start()
    kernel.run("import asyncio, sys, time\n" + replaced)
    kernel.run(
        """
_of = sys.modules['gresshopper.state.agent'].agent().watcher
_of._promptly = lambda: None
_timer = _of._think_time
def _noted(work=_timer._work):
    work()
    with open('order', 'a') as file:
        file.write(f'{_of._waiting} ')
_timer._work = _noted
"""
    )
    kernel.eventually(lambda: order(kernel) == ["[]"])


def test_a_request_that_was_read_begins_before_a_capture(start: Callable[[], Kernel]) -> None:
    """A request takes several turns of the loop from its socket to its cell, and no descriptor tells of it meanwhile."""
    kernel = start()
    kernel.run(
        ORDER
        + """
_pace.THINK, _pace.REST = 600, 600
_stream = sys.modules['gresshopper.state.incoming'].stream(get_ipython())
def _and_capture(message, read=_stream._recv_callback):
    _stream._recv_callback = read
    begun = read(message)
    get_ipython().kernel.io_loop.asyncio_loop.call_soon(_of.idle)
    if begun is None:
        _of.idle()
    return begun
_stream._recv_callback = _and_capture
"""
    )
    kernel.run("1")
    assert order(kernel)[:1] == ["cell"]


def test_a_mock_in_a_variable_keeps_nothing_from_being_saved(start: Callable[[], Kernel]) -> None:
    kernel = start()
    kernel.run("data = [1]")
    kernel.run("from unittest.mock import MagicMock; m = MagicMock(return_value=3); m(1)")
    kernel.run("data.append(2)")
    last, _ = kernel.run("z = 5")

    def saved() -> bool:
        return any(cell["msg_id"] == last for said, _, _ in kernel.records() for cell in said["cells"])

    kernel.eventually(saved)
    units = {unit["m"][0]: unit for _, text, _ in kernel.records() for unit in json.loads(text)["units"]}
    assert {name for name, unit in units.items() if unit["gone"]} == {"n:m"}
    assert {"n:data", "n:z"} <= set(units)
    assert any("MagicMock" in reason for reason in kernel.records()[-1][0]["unmovable"])


SAVING = """
import sys
class A:
    saves = 0
    def __getstate__(self):
        self.saves += 1
        print("saving", self.saves)
        print("saving", file=sys.stderr)
        return dict(self.__dict__)
a = A()
"""


def test_what_pickling_code_prints_reaches_no_cell_and_what_it_changes_is_told(start: Callable[[], Kernel]) -> None:
    kernel = start()
    kernel.run(SAVING)
    kernel.eventually(lambda: any(said["cause"] == "audit" for said, _, _ in kernel.records()))
    kernel.run("a.x = 5")
    assert kernel.ask("flush")["whole"]
    kernel.run("print('the last'); printed = sys.stdout.write('of all\\n')")
    heard = []
    while not heard or "of all" not in heard[-1]:
        message = kernel.client.get_iopub_msg(timeout=30)
        heard += [message["content"]["text"]] if message["msg_type"] == "stream" else []
    assert [text for text in heard if "saving" in text] == []
    units = [unit for _, text, _ in kernel.records() for unit in json.loads(text)["units"] if unit["m"] == ["n:a"]]
    assert len(units) > 1 and all(unit["notes"] == [CHANGES] for unit in units)


CHANGES = "A's own pickling changes it at each capture: saves"
