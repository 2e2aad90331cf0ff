"""torch's half against real torch on the CPU, where the device doesn't matter: storages out and in, and the guard."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from gresshopper.gpu import GpuUnavailable, Keeper, NoLease, ParkRefused
from gresshopper.gpu._guard import TorchGuard, operation, touches
from gresshopper.gpu._torch import TorchHalf, _refusals, _untyped, within

torch: Any = pytest.importorskip("torch")


class World:
    """CPU tensors of this test that stand for tensors on a device."""

    def __init__(self) -> None:
        self.mine: set[int] = set()
        self.half = TorchHalf("cpu", lambda tensor: _untyped(tensor)._cdata in self.mine)
        self.keeper = Keeper(NoLease("This cell has no GPU"), [self.half], "cpu")

    def on(self, *tensors: Any) -> None:
        self.mine |= {_untyped(tensor)._cdata for tensor in tensors}


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.keeper.guard.leave()


def size(tensor: Any) -> int:
    return int(_untyped(tensor).nbytes())


def test_storages_move_once_and_views_follow(world: World) -> None:
    whole = torch.arange(100.0)
    part, turned = whole[10:20], whole.view(10, 10).t()
    alias = whole
    world.on(whole)
    assert world.keeper.report()["frameworks_bytes"] == 400
    world.keeper.out()
    assert size(whole) == size(part) == 0
    world.keeper.back()
    assert alias is whole
    assert torch.equal(whole, torch.arange(100.0))
    assert torch.equal(turned[3], torch.arange(100.0).view(10, 10).t()[3])
    part[0] = -1
    assert whole[10] == -1, "the view is still a view"


def train(steps: int, world: World | None) -> tuple[list[float], dict[str, Any]]:
    """Trains a small model; with a world it is parked after each step, as between cells."""
    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    x, y = torch.randn(64, 16), torch.randn(64, 1)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        if world is not None:
            held = [x, y, loss, *model.parameters(), *model.buffers(), *(p.grad for p in model.parameters())]
            held += [v for state in optimiser.state.values() for v in state.values() if torch.is_tensor(v)]
            world.mine.clear()
            world.on(*held)
            world.keeper.out()
            assert all(size(tensor) == 0 for tensor in held)
            world.keeper.back()
    return losses, {name: value.clone() for name, value in model.state_dict().items()}


def test_training_parked_after_each_step_is_equal_to_the_bit(world: World) -> None:
    plain, parked = train(6, None), train(6, world)
    assert plain[0] == parked[0]
    assert all(torch.equal(plain[1][name], parked[1][name]) for name in plain[1])


def test_gradients_that_nobody_looked_at_are_found(world: World) -> None:
    weight = torch.ones(8, requires_grad=True)
    (weight * 3).sum().backward()
    world.half._select = lambda tensor: tensor.numel() == 8
    held = {block._storage._cdata for block in world.half.find().blocks}
    assert _untyped(weight.grad)._cdata in held


def test_sparse_tensors_move_by_their_parts(world: World) -> None:
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.tensor([3.0, 4.0]), (4,)).coalesce()
    world.on(sparse._indices(), sparse._values())
    world.half._select = None
    parts = list(world.half._parts(sparse))
    assert [part.data_ptr() for part in parts] == [sparse._indices().data_ptr(), sparse._values().data_ptr()]


def test_memory_that_torch_does_not_own_is_refused(world: World) -> None:
    foreign = torch.frombuffer(bytearray(64), dtype=torch.uint8)
    if not hasattr(_untyped(foreign), "resizable"):
        pytest.skip("this torch can't say whose memory a storage is")
    world.on(foreign)
    with pytest.raises(ParkRefused, match="doesn't own"):
        world.keeper.out()
    assert size(foreign) == 64


def test_a_device_at_work_refuses_in_time(world: World) -> None:
    with pytest.raises(ParkRefused, match="still at work"):
        within(0.05, lambda: threading.Event().wait(5) and None, "the device is still at work")


def test_a_touch_without_a_lease_fails_at_once_with_a_sentence(world: World) -> None:
    weights = torch.ones(4)
    world.on(weights)
    world.keeper.out()
    world.keeper.before_cell("weights + 1")
    assert weights.shape == (4,), "looking is allowed"
    assert weights.dtype == torch.float32
    for touch in (lambda: weights + 1, lambda: repr(weights), weights.sum, lambda: torch.stack([weights])):
        with pytest.raises(GpuUnavailable, match="This cell has no GPU"):
            touch()
    world.keeper.after_cell()
    world.keeper.back()
    assert torch.equal(weights + 1, torch.full((4,), 2.0))


def test_a_touch_obtains_a_lease_and_goes_on(world: World) -> None:
    weights = torch.arange(4.0)
    world.on(weights)
    world.keeper.out()
    asked: list[str] = []

    class Source:
        def acquire(self, why: str) -> None:
            asked.append(why)
            # As from outside: another thread copies in while this one waits.
            worker = threading.Thread(target=world.keeper.back)
            worker.start()
            worker.join(10)

    world.keeper.source = Source()
    world.keeper.before_cell("weights.sum()")
    assert weights.sum().item() == 6
    world.keeper.after_cell()
    assert len(asked) == 1
    assert "sum" in asked[0]


def test_threads_that_the_user_starts_meet_the_guard(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "run", threading.Thread.run)
    world.keeper.threads.install()
    weights = torch.ones(4)
    world.on(weights)
    go, errors = threading.Event(), []

    def work() -> None:
        assert go.wait(10)
        try:
            weights.sum()
        except GpuUnavailable as error:
            errors.append(error)

    worker = threading.Thread(target=work, name="prefetch")
    worker.start()
    world.keeper.out()
    go.set()
    worker.join(10)
    assert len(errors) == 1
    world.keeper.back()


def test_a_park_on_a_thread_that_meets_the_guard_moves_everything(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`hop gpu park` is answered on a thread that begins after torch was imported."""
    monkeypatch.setattr(threading.Thread, "run", threading.Thread.run)
    world.keeper.threads.install()
    weights = torch.arange(100.0)
    world.on(weights)
    world.keeper.came_with_lease = lambda: False
    world.keeper.after_cell()
    assert not world.keeper.usable, "the lease is over, and the guard refuses everybody else"
    moved: list[int] = []

    def asked(work: Callable[[], int]) -> None:
        thread = threading.Thread(target=lambda: moved.append(work()), name="gresshopper-op")
        thread.start()
        thread.join(30)

    asked(lambda: int(world.keeper.report()["frameworks_bytes"]))
    asked(lambda: world.keeper.out().bytes)
    assert size(weights) == 0
    asked(lambda: world.keeper.back().bytes)
    assert size(weights) == 400
    assert moved == [400, 400, 400]


def test_a_thread_without_a_guard_is_refused_by_name(world: World) -> None:
    go = threading.Event()
    worker = threading.Thread(target=lambda: go.wait(10) and None, name="loader")
    worker.start()
    with pytest.raises(ParkRefused, match="thread 'loader'"):
        world.keeper.out()
    go.set()
    worker.join()
    world.keeper.out()


def test_what_counts_as_a_touch() -> None:
    tensor = torch.ones(2)
    assert touches(torch.zeros, (2,), {"device": "cuda:1"})
    assert touches(torch.Tensor.to, (tensor, torch.device("cuda")), {})
    assert not touches(torch.Tensor.add, (tensor, tensor), {})
    assert not touches(torch.Tensor.shape.__get__, (tensor,), {}, "cpu")
    assert touches(torch.Tensor.data.__get__, (tensor,), {}, "cpu")
    assert operation(torch.Tensor.shape.__get__) == "shape"


class FakeCuda:
    """A FAKE torch.cuda that keeps its first answer for ever, as torch's C++ does."""

    def __init__(self) -> None:
        self.devices = 0
        self.kept: int | None = None

    def is_available(self) -> bool:
        return self.device_count() > 0

    def device_count(self) -> int:
        self.kept = self.devices if self.kept is None else self.kept
        return self.kept

    def _lazy_init(self) -> None:
        if not self.device_count():
            raise RuntimeError("no GPU")


def test_a_question_without_a_lease_never_reaches_the_driver() -> None:
    class FakeTorch:
        cuda = FakeCuda()

    cuda = FakeTorch.cuda
    state = {"usable": False}

    def refuse(why: str) -> None:
        raise GpuUnavailable(f"none now ({why})")

    guard = TorchGuard(refuse, lambda: state["usable"])
    guard.patch(FakeTorch)
    for ask in (cuda.is_available, cuda.device_count, cuda._lazy_init):
        with pytest.raises(GpuUnavailable, match="none now"):
            ask()
    assert cuda.kept is None, "the answer that would be kept was never given"
    counts: list[int] = []
    within(5.0, lambda: counts.append(cuda.device_count()), "it asks")
    assert counts == [0], "the park itself may ask: it only runs where torch has its device"
    cuda.kept = None
    state["usable"], cuda.devices = True, 1
    assert cuda.is_available()


def test_what_holds_addresses_or_runs_by_itself_is_refused_by_name(world: World) -> None:
    class Alive:
        def is_alive(self) -> bool:
            return True

    class Loader:
        _pin_memory_thread = Alive()

    assert _refusals({}) == []
    assert "CUDA graph (torch.cuda.CUDAGraph)" in _refusals({"CUDAGraph": [object()]})[0]
    assert "reduce-overhead" in _refusals({"CUDAGraphTreeManager": [object()], "CUDAGraph": [object()]})[0]
    assert "pin_memory=True" in _refusals({"_MultiProcessingDataLoaderIter": [Loader()]})[0]
    loader = torch.utils.data.DataLoader([1, 2], num_workers=1)
    batches = iter(loader)
    assert world.half._walk()[1].keys() == {"_MultiProcessingDataLoaderIter"}, "live iterators are found"
    assert len(list(batches)) == 2


def test_streams_and_events_live_on_while_the_device_is_away(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    class Event:
        """A FAKE torch.cuda.Event: its end is a call of the driver's, which waits while the device is away."""

        def __del__(self) -> None:
            ended.append("cudaEventDestroy")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    weights = torch.ones(4)
    world.on(weights)
    for out, back in (
        (world.keeper.out, world.keeper.back),
        (lambda: world.keeper.driver_only(True), lambda: world.keeper.driver_only(False)),
    ):
        event = Event()
        out()
        del event
        gc.collect()
        assert ended == []
        back()
        gc.collect()
        assert ended == ["cudaEventDestroy"]
        ended.clear()


def test_workers_of_a_data_loader_go_on(world: World) -> None:
    weights = torch.arange(4.0)
    world.on(weights)
    loader = torch.utils.data.DataLoader(torch.arange(40.0), 10, num_workers=2, persistent_workers=True)
    batches = iter(loader)
    assert next(batches).sum() == 45
    world.keeper.out()
    assert next(batches).sum() == 145, "a worker has no device and needs none"
    world.keeper.back()
    assert [float(batch.sum()) for batch in batches] == [245, 345]
    assert torch.equal(weights, torch.arange(4.0))


def test_tensors_in_host_memory_page_locked_or_not_stay_where_they_are() -> None:
    host = torch.arange(4.0)
    half = TorchHalf("cuda")
    assert list(half._parts(host)) == []
    assert not touches(torch.Tensor.add, (host, host), {})
    assert touches(torch.Tensor.cuda, (host, "cuda"), {}), "its copy to the device needs the device"
