"""Captures of a kernel whose GPU memory is parked: from host copies, or later, and never by waking it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from gresshopper.gpu import Keeper, ParkRefused
from gresshopper.gpu._torch import TorchHalf
from gresshopper.state.adapters import _shared, _torch
from gresshopper.state.capture import Capture
from gresshopper.state.session import Away

from harness import Kernel

SOURCE = (
    "import torch\nweights = torch.arange(50_000.0)\nview = weights[10:20]\nlayer = torch.nn.Linear(300, 200)\n"
    "holder = {'w': weights, 'l': layer}\nplain = [1]"
)


class Never:
    """A source of leases that must not be asked."""

    def acquire(self, why: str) -> None:
        pytest.fail(f"a capture asked for a GPU: {why}")


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeper]:
    """A keeper for which the CPU stands for the device."""
    mine: set[int] = set()
    made = Keeper(Never(), [TorchHalf("cpu", lambda tensor: _shared.untyped(tensor)._cdata in mine)], "cpu")
    made.mine = mine  # type: ignore[attr-defined]
    monkeypatch.setattr(sys.modules["gresshopper.gpu"]._Process, "keeper", made)
    yield made
    made.guard.leave()


def on_device(keeper: Any, kernel: Kernel) -> None:
    """These are the tensors that are on the device."""
    ns = kernel.ns
    keeper.mine.update(_shared.untyped(t)._cdata for t in (ns["weights"], *ns["layer"].parameters()))


def restored(base: Path) -> dict[str, Any]:
    fresh = Kernel(base)
    fresh.restore()
    return fresh.ns


def test_what_was_copied_out_is_captured_from_there(tmp_path: Path, keeper: Keeper) -> None:
    kernel = Kernel(tmp_path)
    kernel.log.create()
    assert kernel.run(SOURCE), kernel.error
    want = kernel.ns["layer"].weight.detach().clone()
    on_device(keeper, kernel)
    keeper.out()
    keeper.guard.enter()  # as in a cell without a lease
    assert keeper.guard.guards_this_thread
    kernel.snap(SOURCE)
    assert keeper.guard.guards_this_thread and keeper.parked
    assert not kernel.capture.run(None).changed
    keeper.guard.leave()
    assert not kernel.ns["weights"].storage().nbytes()
    keeper.back()
    kernel.log.commit(False)
    kernel.log.close()
    ns = restored(tmp_path)
    assert torch.equal(ns["weights"], torch.arange(50_000.0)) and ns["holder"]["w"] is ns["weights"]
    ns["weights"][10] = -1
    assert ns["view"][0] == -1 and torch.equal(ns["layer"].weight, want)


def test_what_only_the_driver_has_comes_later(tmp_path: Path, keeper: Keeper) -> None:
    kernel = Kernel(tmp_path)
    kernel.log.create()
    assert kernel.run(SOURCE), kernel.error
    kernel.snap(SOURCE)
    assert all(unit.on_device for unit in kernel.capture.units.values() if "n:weights" in unit.members)
    assert kernel.run("weights += 1; plain.append(2)")
    known = {uid: unit.digest for uid, unit in kernel.capture.units.items()}
    keeper.driver_only(True)
    with pytest.raises(Away):
        kernel.snap("weights += 1; plain.append(2)")
    assert {uid: unit.digest for uid, unit in kernel.capture.units.items()} == known
    found = kernel.capture.run(None).changed  # an audit passes over it
    assert [c.unit.members for c in found] == [("n:plain",)]
    assert any("weights" in text and "driver" in text for text in kernel.capture.away())
    keeper.driver_only(False)
    assert not kernel.capture.away()
    changed = kernel.capture.run(None).changed
    assert any("n:weights" in c.unit.members for c in changed)


def test_a_park_ends_a_capture_that_reads_the_device(tmp_path: Path, keeper: Keeper) -> None:
    kernel = Kernel(tmp_path)
    assert kernel.run(SOURCE + "\nmore = [str(i) for i in range(300_000)]"), kernel.error
    on_device(keeper, kernel)
    began = threading.Event()
    session = kernel.capture.session

    def slow() -> None:
        began.set()
        time.sleep(0.05)

    session.check = slow
    parked: list[Any] = []
    thread = threading.Thread(target=lambda: (began.wait(), parked.append(keeper.out())))
    thread.start()
    with pytest.raises(Away):
        kernel.capture.run(None)
    thread.join()
    session.check = lambda: None
    assert parked[0].bytes and keeper.parked
    keeper.back()
    assert kernel.capture.run(None).changed


def test_a_park_need_not_wait_until_what_was_read_is_stored(
    tmp_path: Path, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gresshopper.gpu import _keeper

    monkeypatch.setattr(_keeper, "SYNC_S", 0.1)
    kernel = Kernel(tmp_path)
    assert kernel.run(SOURCE), kernel.error
    on_device(keeper, kernel)
    while_storing: list[Any] = []
    adopt = Capture._adopt

    def stores(*args: Any) -> Any:
        thread = threading.Thread(target=lambda: while_storing.append(keeper.out().bytes))
        thread.start()
        thread.join()
        return adopt(*args)

    monkeypatch.setattr(Capture, "_adopt", stores)
    assert kernel.capture.run(None).changed
    assert while_storing == [sum(keeper.parked[0].blocks[i].nbytes for i in range(3))]

    # The next capture uses the host's copies: memory comes back once they are stored, and waits longer than a park does.
    comes_back: list[Any] = []

    def stores_copies(*args: Any) -> Any:
        thread = threading.Thread(target=lambda: comes_back.append(keeper.back().bytes))
        thread.start()
        comes_back.append(thread)
        thread.join(0.5)
        assert thread.is_alive() and keeper.parked
        return adopt(*args)

    monkeypatch.setattr(Capture, "_adopt", stores_copies)
    kernel.capture.run(None)
    comes_back.pop(0).join(30)
    assert comes_back == while_storing and not keeper.parked


def test_device_memory_is_read_in_pieces_and_given_up_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_torch, "PIECE", 1000)
    asked: list[float] = []

    class Session:
        def expect(self, seconds: float) -> None:
            asked.append(seconds)

        def check(self) -> None:
            asked.append(0)
            if len(asked) > limit:
                raise Away

    memory = torch.arange(2500, dtype=torch.float32).to(torch.uint8)
    limit = 10
    assert (_torch.read_device(Session(), memory) == memory.numpy()).all()
    assert asked == [2500 / _torch.READ_RATE, 0, 0, 0]
    asked.clear()
    limit = 2
    with pytest.raises(Away):
        _torch.read_device(Session(), memory)


def test_a_capture_that_does_not_let_go_refuses_the_park(
    tmp_path: Path, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gresshopper.gpu import _keeper

    monkeypatch.setattr(_keeper, "SYNC_S", 0.1)
    monkeypatch.setattr(_keeper, "BACK_S", 0.1)
    with keeper.reading():
        with pytest.raises(ParkRefused, match="capture"):
            keeper.out()
        with keeper.reading() as second:
            assert second.is_away()
    assert keeper.out() is not None
    with keeper.reading(), pytest.raises(ParkRefused, match="capture"):
        keeper.back()
