"""The random states of GPUs' generators belong to the process. No GPU is needed: torch's CUDA is a fake here."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gresshopper.state.adapters import _torch


class FakeCuda:
    """The parts of `torch.cuda` that are asked: whether it has begun, its generators, and calls that wait for it."""

    def __init__(self, begun: bool, devices: int = 2) -> None:
        self._begun, self._queued = begun, []
        self.default_generators = tuple(torch.Generator().manual_seed(n) for n in range(devices))
        self._lazy_seed_tracker = type("Tracker", (), {"manual_seed_all_cb": None})()

    def is_initialized(self) -> bool:
        return self._begun

    def _lazy_call(self, call: Any) -> None:
        assert not self._begun
        self._queued.append(call)

    def manual_seed_all(self, seed: int) -> None:
        def cb() -> None:
            for generator in self.default_generators:
                generator.manual_seed(seed)

        if self._begun:
            cb()
        else:
            self._lazy_seed_tracker.manual_seed_all_cb = cb, []

    def begin(self) -> None:
        self._begun = True
        seeds = self._lazy_seed_tracker.manual_seed_all_cb
        for call in [*self._queued, *([seeds[0]] if seeds else [])]:
            call()

    def drawn(self) -> list[float]:
        return [float(torch.rand(1, generator=generator)) for generator in self.default_generators]


@pytest.fixture(autouse=True)
def _none_waits() -> Any:
    _torch._waiting.clear()
    yield
    _torch._waiting.clear()


def put(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(torch, "cuda", cuda)
    return _torch.ADAPTER.sections["torch"]


@pytest.mark.parametrize("begun", [False, True])
def test_draws_go_on(begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    before = FakeCuda(begun=True)
    before.drawn()
    state = put(before, monkeypatch).read()
    after = FakeCuda(begun)
    section = put(after, monkeypatch)
    section.set(state)
    section.set(state)
    assert section.read()["cuda"] == state["cuda"]  # also before CUDA has begun here
    if not begun:
        after.begin()
    assert after.drawn() == before.drawn()
    assert section.read()["cuda"] == put(before, monkeypatch).read()["cuda"]


def test_a_seed_from_before_cuda_has_begun_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    before = FakeCuda(begun=False)
    section = put(before, monkeypatch)
    before.manual_seed_all(7)
    state = section.read()
    after = FakeCuda(begun=False)
    put(after, monkeypatch).set(state)
    before.begin()
    after.begin()
    assert after.drawn() == before.drawn()


def test_fewer_devices_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    before = FakeCuda(begun=True, devices=3)
    state = put(before, monkeypatch).read()
    after = FakeCuda(begun=False, devices=1)
    put(after, monkeypatch).set(state)
    after.begin()
    assert after.drawn() == before.drawn()[:1]
