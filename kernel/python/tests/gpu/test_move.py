"""Out and in, against fakes, with a fault at each call: all or nothing, and nothing lost."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import FakeDevice, FakeHalf, fake_cupy
from gresshopper import operations
from gresshopper.gpu import GpuUnavailable, Keeper, NoLease, ParkRefused
from gresshopper.gpu._cupy import CupyHalf
from gresshopper.gpu._torch import TorchHalf
from gresshopper.operations import Call

CONTENTS = [b"weights" * 100, b"state" * 1000, b"x"]


def make(*contents: bytes) -> tuple[FakeDevice, FakeHalf, Keeper]:
    device = FakeDevice()
    half = FakeHalf(device, list(contents) or CONTENTS)
    return device, half, Keeper(NoLease("This cell has no GPU"), [half])


def test_there_and_back() -> None:
    device, half, keeper = make()
    before = half.contents()
    moved = keeper.out()
    assert (moved.bytes, device.used, half.contents()) == (sum(map(len, CONTENTS)), 0, [None] * 3)
    assert not keeper.usable
    keeper.back()
    assert half.contents() == before
    assert keeper.usable


def test_page_locked_memory_is_kept_and_used_again() -> None:
    device, _, keeper = make()
    keeper.out()
    keeper.back()
    assert device.calls.count("pin") == 1
    kept = keeper.pool.bytes
    keeper.out()
    keeper.back()
    assert (device.calls.count("pin"), keeper.pool.bytes) == (1, kept)
    keeper.pool.trim()
    assert keeper.pool.bytes == 0
    assert device.calls.count("unpin") == 1


#: How often each call is made, so that a fault can be put at each.
OUT = {"sync": 2, "copy_out": 3, "free": 3, "empty_caches": 1}
IN = {"allocate": 3, "copy_in": 3, "sync": 1}


def each(calls: dict[str, int]) -> list[tuple[str, int]]:
    return [(call, nth) for call, times in calls.items() for nth in range(times)]


@pytest.mark.parametrize(("call", "nth"), each(OUT))
def test_a_fault_on_the_way_out_changes_nothing(call: str, nth: int) -> None:
    device, half, keeper = make()
    before = half.contents()
    device.fail_at[call] = nth
    with pytest.raises(ParkRefused, match="fake fault"):
        keeper.out()
    device.fail_at.clear()
    assert half.contents() == before
    assert keeper.usable
    keeper.out()
    keeper.back()
    assert half.contents() == before


@pytest.mark.parametrize(("call", "nth"), each(IN))
def test_a_fault_on_the_way_in_loses_nothing(call: str, nth: int) -> None:
    device, half, keeper = make()
    before = half.contents()
    keeper.out()
    device.fail_at[call] = nth
    with pytest.raises(ParkRefused, match="safe in host memory"):
        keeper.back()
    assert not keeper.usable
    assert device.used == 0
    device.fail_at.clear()
    keeper.back()
    assert half.contents() == before


def test_without_room_it_stays_in_host_memory() -> None:
    device, half, keeper = make()
    before = half.contents()
    keeper.out()
    device.total = 100
    with pytest.raises(ParkRefused, match="safe in host memory"):
        keeper.back()
    device.total = 1 << 20
    keeper.back()
    assert half.contents() == before


def test_the_second_framework_failing_brings_the_first_back() -> None:
    one, two = FakeDevice(), FakeDevice()
    halves = [FakeHalf(one, CONTENTS, "one"), FakeHalf(two, CONTENTS, "two")]
    keeper = Keeper(NoLease("none"), halves)
    two.fail_at["copy_out"] = 1
    with pytest.raises(ParkRefused, match="two"):
        keeper.out()
    assert halves[0].contents() == halves[1].contents() == CONTENTS
    assert keeper.usable


def test_more_than_an_arena_holds_is_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gresshopper.gpu._host.ARENA", 8192)
    device, half, keeper = make(b"a" * 5000, b"b" * 5000, b"c" * 20000, b"d")
    before = half.contents()
    for _ in range(2):
        keeper.out()
        keeper.back()
    assert half.contents() == before
    assert device.calls.count("pin") == 4, "the second time all is found again"


def test_a_pin_that_fails_costs_only_speed() -> None:
    device, half, keeper = make()
    device.fail_at["pin"] = 0
    keeper.out()
    assert not keeper.pool.pinned
    keeper.back()
    assert half.contents() == CONTENTS


def test_a_copy_in_calls_off_a_copy_out_that_hangs() -> None:
    _, half, keeper = make()
    at_sync, go_on = threading.Event(), threading.Event()

    def slow_sync(deadline: float) -> None:
        at_sync.set()
        assert go_on.wait(10)

    half.sync = slow_sync  # type: ignore[method-assign]
    errors: list[BaseException] = []

    def out() -> None:
        try:
            keeper.out()
        except ParkRefused as error:
            errors.append(error)

    worker = threading.Thread(target=out)
    worker.start()
    assert at_sync.wait(10)
    backer = threading.Thread(target=keeper.back)
    backer.start()
    assert keeper._cancelled.wait(10)
    go_on.set()
    for thread in (worker, backer):
        thread.join(10)
        assert not thread.is_alive()
    assert "called off" in str(errors[0])
    assert half.contents() == CONTENTS
    assert keeper.usable


def test_nothing_moves_while_a_cell_runs_or_something_refuses() -> None:
    _, half, keeper = make()
    keeper.before_cell("x")
    with pytest.raises(ParkRefused, match="a cell is running"):
        keeper.out()
    assert "a cell is running" in keeper.report()["refusals"]
    keeper.after_cell()
    half.refusals.append("a CUDA graph keeps addresses")
    with pytest.raises(ParkRefused, match="CUDA graph"):
        keeper.out()
    assert half.contents() == CONTENTS


def test_what_hop_gpu_asks_is_answered_or_refused_by_a_sentence() -> None:
    _, _, keeper = make()
    keeper.register()

    def ask(name: str) -> dict[str, Any]:
        answers: list[dict[str, Any]] = []
        operations.carry_out(
            f"gpu.{name}", Call({}, []), lambda said, _: answers.append(said), runner=lambda work: work()
        )
        return answers[0]

    assert ask("report")["ok"]["report"]["frameworks_bytes"] == sum(map(len, CONTENTS))
    assert ask("out")["ok"]["moved"]["bytes"] == sum(map(len, CONTENTS))
    assert ask("out")["error"] == {"kind": "refused", "message": "it is parked already"}
    assert ask("in")["ok"]["moved"]["bytes"] == sum(map(len, CONTENTS))
    assert ask("reset")["error"]["kind"] == "unknown"


def test_a_parked_process_fails_at_once_or_gets_its_lease() -> None:
    _, half, keeper = make()
    keeper.out()
    with pytest.raises(GpuUnavailable, match="This cell has no GPU"):
        keeper.ensure("the test asks")

    class Source:
        def acquire(self, why: str) -> None:
            keeper.back()

    keeper.source = Source()
    keeper.ensure("the test asks")
    assert half.contents() == CONTENTS


def test_cupy_arrays_keep_shape_aliases_and_content(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    cupy = fake_cupy(device)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    pointer = cupy.cuda.alloc(100)
    pointer.mem.bytes[:] = bytes(range(100))
    whole = cupy.ndarray((100,), "u1", pointer)
    part = cupy.ndarray((10,), "u1", cupy.cuda.MemoryPointer(pointer.mem, 20), base=whole)
    same = cupy.ndarray((100,), "u1", whole.data, base=whole)
    del pointer
    keeper = Keeper(NoLease("none"), [CupyHalf()])
    assert keeper.report()["frameworks_bytes"] == 100, "the view's memory counts once"
    keeper.out()
    assert device.used == 0
    assert (whole.shape, part.shape) == ((100,), (10,))
    keeper.back()
    assert whole.tobytes() == bytes(range(100))
    assert part.tobytes() == bytes(range(20, 30))
    assert whole.data.mem is part.data.mem
    assert same.data is whole.data
    assert part.base is whole


def test_cupy_over_foreign_memory_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    cupy = fake_cupy(device)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    foreign: Any = cupy.ndarray((4,), "u1", cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(4096, 4, None, 0), 0))
    keeper = Keeper(NoLease("none"), [CupyHalf()])
    assert "doesn't own" in keeper.report()["refusals"][0]
    with pytest.raises(ParkRefused, match="doesn't own"):
        keeper.out()
    assert foreign.shape == (4,)


class NoDevice(Exception):
    """A FAKE CUDARuntimeError."""

    status = 100


def test_a_gpu_that_cupy_cannot_see_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = fake_cupy(FakeDevice())
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    half = CupyHalf()
    assert half.stuck() is None, "it wasn't asked"
    answers: list[Any] = [1, 0, NoDevice("no device"), RuntimeError("an old driver is another matter")]

    def count() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    cupy.cuda.runtime.getDeviceCount = count
    said = [half.stuck() for _ in range(4)]
    assert [why is not None and "Restart the kernel" in why for why in said] == [False, True, True, False]


class Lends:
    """A lease source that grants at once."""

    def __init__(self) -> None:
        self.keeper: Keeper

    def acquire(self, why: str) -> None:
        self.keeper.grant()


@pytest.mark.parametrize("kept", [0, 1])
def test_a_gpu_that_torch_cannot_see_is_named(monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    """A FAKE torch whose C++ keeps `kept` as its count, and whose Python keeps no GPU."""
    cuda = SimpleNamespace(is_initialized=lambda: False, _cached_device_count=0)
    torch = SimpleNamespace(cuda=cuda, _C=SimpleNamespace(_cuda_getDeviceCount=lambda: kept))
    monkeypatch.setitem(sys.modules, "torch", torch)
    source = Lends()
    keeper = source.keeper = Keeper(source, [TorchHalf()])
    keeper.revoke()
    if kept:
        keeper.ensure("the test asks")
    else:
        with pytest.raises(GpuUnavailable, match="Restart the kernel"):
            keeper.ensure("the test asks")
    assert cuda._cached_device_count is None, "Python's own answer is forgotten"
