"""The processes that `park.py` measures: each reads orders, a JSON line in, a JSON line out.

`subjects.py KIND` with KIND one of the functions below. The subjects need a bare machine with torch, and
`gresshopper.gpu` from this tree. The fake subject needs neither torch nor a GPU.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "kernel/python"), str(ROOT / "kernel/python/tests/gpu")]

import gresshopper.gpu as agent  # noqa: E402

Commands = dict[str, Callable[[dict[str, Any]], Any]]


def converse(commands: Commands) -> None:
    """Answers until stdin ends. Output of libraries goes to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps({"ok": "ready"}), file=out, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        start = time.perf_counter()
        try:
            agent.keeper().before_cell(request.get("code", ""))
            answer = {"ok": commands[request["do"]](request)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        finally:
            agent.keeper().after_cell()
        print(json.dumps({**answer, "seconds": time.perf_counter() - start}), file=out, flush=True)


class Refusing:
    """A lease source under the test's control."""

    def __init__(self) -> None:
        self.source: Any = agent.NoLease("This cell has no GPU")

    def acquire(self, why: str) -> None:
        self.source.acquire(why)


def lease_commands(source: Refusing) -> Commands:
    def lease(request: dict[str, Any]) -> str:
        source.source = (
            agent.Workstation(request["hop"]) if request["lease"] else agent.NoLease("This cell has no GPU")
        )
        return "so"

    return {"lease": lease, "pid": lambda _: os.getpid()}


def fake() -> None:
    """Blocks of a FAKE framework beside a context of the fake libcuda: rung (b) frees the blocks, (c) the context."""
    from fakes import FakeDevice, FakeHalf

    size = int(sys.argv[2])
    cuda = ctypes.CDLL(os.environ["GRESSHOPPER_LIBCUDA"])
    context, at = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(1 << 20)) == 0
    assert cuda.cuMemsetD8_v2(at, 7, ctypes.c_size_t(1 << 20)) == 0
    content = os.urandom(size // 4)
    half = FakeHalf(FakeDevice(2 * size), [content, content[::-1], content, content])
    source = Refusing()
    keeper = agent.install(source)
    keeper.halves = [half]

    def digest(_: dict[str, Any]) -> str:
        if not keeper.usable:
            keeper.ensure("the digest asks")
        rest = (ctypes.c_char * (1 << 20))()
        assert cuda.cuMemcpyDtoH_v2(rest, at, ctypes.c_size_t(1 << 20)) == 0
        return hashlib.sha256(b"".join(c or b"" for c in half.contents()) + bytes(rest)).hexdigest()

    converse({"digest": digest, **lease_commands(source)})


def torch_subject(build: Callable[[Any], Commands]) -> None:
    source = Refusing()
    agent.install(source)
    import torch

    commands = build(torch)
    torch.cuda.synchronize()
    converse({**commands, **lease_commands(source)})


def tensors() -> None:
    """So many bytes of random tensors, with views and aliases."""
    size = int(sys.argv[2])

    def build(torch: Any) -> Commands:
        generator = torch.Generator("cuda").manual_seed(7)
        piece = min(size, 256 << 20)
        held = [
            torch.randint(0, 256, (piece,), dtype=torch.uint8, device="cuda", generator=generator)
            for _ in range(max(1, size // piece))
        ]
        views = [t[::2] for t in held]

        def digest(_: dict[str, Any]) -> list[int]:
            return [int(t[:: 1 << 12].to(torch.int64).sum()) for t in (*held, *views)]

        return {"digest": digest, "touch": lambda _: float(held[0][0]), "ask": lambda _: torch.cuda.is_available()}

    torch_subject(build)


def trainer() -> None:
    """A real small model; `cell` trains a few steps, as one cell of a notebook would."""

    def build(torch: Any) -> Commands:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
        torch.manual_seed(11)
        nn = torch.nn
        model = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3),
            nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Linear(128, 10),
        ).cuda()  # fmt: skip
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 40)
        losses: list[float] = []

        def cell(_: dict[str, Any]) -> float:
            for _step in range(4):
                x = torch.randn(128, 1, 28, 28, device="cuda")
                y = torch.randint(0, 10, (128,), device="cuda")
                optimiser.zero_grad(set_to_none=True)
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimiser.step()
                losses.append(loss.item())
            schedule.step()
            return losses[-1]

        def result(_: dict[str, Any]) -> dict[str, Any]:
            weights = hashlib.sha256()
            for value in model.state_dict().values():
                weights.update(value.cpu().numpy().tobytes())
            return {"losses": [value.hex() for value in losses], "weights": weights.hexdigest()}

        return {"cell": cell, "result": result}

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch_subject(build)


def hog() -> None:
    """Another program with the whole device in use: `work` gives the device back afterwards, `keep` doesn't."""
    import torch

    agent.install(agent.NoLease("none"), serve=False)
    kept: list[Any] = []

    def work(_: dict[str, Any]) -> float:
        free, _total = torch.cuda.mem_get_info()
        block = torch.empty(int(free * 0.9), dtype=torch.uint8, device="cuda").fill_(3)
        a = torch.randn(4096, 4096, device="cuda")
        for _i in range(50):
            a.copy_(torch.nn.functional.normalize(a @ a))
        torch.cuda.synchronize()
        kept.append(block)
        return float(block[-1])

    def work_and_leave(request: dict[str, Any]) -> float:
        found = work(request)
        kept.clear()
        torch.cuda.empty_cache()
        return found

    converse({"work": work_and_leave, "keep": work})


def special() -> None:
    """Objects of part 2: streams, events, graphs, compiled modules, pinned tensors, workers, threads."""
    kind = sys.argv[2]
    torch_subject(SPECIALS[kind])


def _streams(torch: Any) -> Commands:
    stream, begin, end = (
        torch.cuda.Stream(),
        torch.cuda.Event(enable_timing=True),
        torch.cuda.Event(enable_timing=True),
    )
    with torch.cuda.stream(stream):
        begin.record()
        held = torch.arange(1 << 20, device="cuda").double().sqrt()
        end.record()

    def digest(_: dict[str, Any]) -> list[Any]:
        end.synchronize()
        with torch.cuda.stream(stream):
            total = held.sum()
        stream.synchronize()
        return [float(total), begin.elapsed_time(end) >= 0]

    return {"digest": digest}


def _graph(torch: Any) -> Commands:
    held = torch.arange(1024.0, device="cuda")
    out = torch.zeros_like(held)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        out.copy_(held * 2 + 1)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out.copy_(held * 2 + 1)

    def digest(_: dict[str, Any]) -> list[float]:
        out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        # A graph keeps addresses and not tensors: its input must live as long.
        return [float(out.sum()), float(held.sum())]

    return {"digest": digest}


def _compiled(torch: Any) -> Commands:
    torch.manual_seed(3)
    model = torch.compile(
        torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 1)).cuda()
    )
    x = torch.ones(8, 64, device="cuda")
    with torch.no_grad():
        model(x)

    def digest(_: dict[str, Any]) -> str:
        with torch.no_grad():
            return float(model(x).sum()).hex()

    return {"digest": digest}


def _pinned(torch: Any) -> Commands:
    host = torch.arange(1 << 20).pin_memory()
    held = host.cuda(non_blocking=True)

    def digest(_: dict[str, Any]) -> list[Any]:
        held.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        return [host.is_pinned(), int(held.sum())]

    return {"digest": digest}


def _autograd(torch: Any) -> Commands:
    torch.manual_seed(5)
    weight = torch.randn(256, 256, device="cuda", requires_grad=True)
    loss = (torch.tanh(weight @ weight).exp() @ weight).square().mean()
    expected = torch.autograd.grad(loss, weight, retain_graph=True)[0].cpu()

    def digest(_: dict[str, Any]) -> bool:
        got = torch.autograd.grad(loss, weight, retain_graph=True)[0].cpu()
        return bool(torch.equal(got, expected))

    return {"digest": digest}


def _loader(pin: bool) -> Callable[[Any], Commands]:
    def build(torch: Any) -> Commands:
        data = torch.utils.data.TensorDataset(torch.arange(4096.0))
        loader = torch.utils.data.DataLoader(data, 32, num_workers=2, persistent_workers=True, pin_memory=pin)
        held = torch.zeros(1, device="cuda")
        batches = iter(loader)
        next(batches)

        def digest(_: dict[str, Any]) -> float:
            (batch,) = next(iter(loader))
            return float((batch.cuda() + held).sum())

        return {"digest": digest, "batches": lambda _: float(next(batches)[0].sum())}

    return build


def _thread(torch: Any) -> Commands:
    held = torch.ones(1024, device="cuda")
    go = threading.Event()
    found: list[Any] = []

    def touch() -> None:
        go.wait(60)
        try:
            found.append(float(held.sum()))
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")

    worker = threading.Thread(target=touch, name="prefetch")
    worker.start()

    def let(_: dict[str, Any]) -> Any:
        go.set()
        worker.join(20)
        return [worker.is_alive(), *found]

    return {"digest": lambda _: float(held.sum()), "let": let}


def _cupy(torch: Any) -> Commands:
    import cupy

    held = cupy.arange(1 << 20, dtype=cupy.float64)
    view = held[::3]
    return {"digest": lambda _: [float(held.sum()), float(view.sum())]}


def _jax(allocator: str) -> Callable[[Any], Commands]:
    def build(torch: Any) -> Commands:
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] = allocator
        import jax.numpy as jnp

        held = jnp.arange(1 << 20, dtype=jnp.float32)
        half = held.astype(jnp.bfloat16)
        held.block_until_ready()
        return {"digest": lambda _: [float(held.sum()), float(half.max())]}

    return build


SPECIALS: dict[str, Callable[[Any], Commands]] = {
    "streams": _streams,
    "graph": _graph,
    "compiled": _compiled,
    "pinned": _pinned,
    "autograd": _autograd,
    "loader": _loader(False),
    "loader-pin": _loader(True),
    "thread": _thread,
    "cupy": _cupy,
    "jax": _jax("default"),
    "jax-platform": _jax("platform"),
}


def late() -> None:
    """Hides the device at first: does a framework, asked early, see it later? For torch `guard` or `bare` names the
    first asker."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if sys.argv[2] in LATE:
        return late_in_cells(LATE[sys.argv[2]])
    guarded = sys.argv[2] == "guard"
    source = Refusing()
    if guarded:
        agent.install(source).revoke()
    import torch

    try:
        first: Any = torch.cuda.is_available()
    except agent.GpuUnavailable as error:
        first = str(error)
    del os.environ["CUDA_VISIBLE_DEVICES"]
    keeper = agent.install(source)
    keeper.grant()

    def use(_: dict[str, Any]) -> list[Any]:
        stuck = keeper.halves[0].stuck()
        if stuck:
            return [first, stuck]
        return [first, torch.cuda.is_available(), float(torch.ones(3, device="cuda").sum())]

    converse({"use": use})


def late_in_cells(sees: Callable[[], bool]) -> None:
    """The question in a cell without a lease, and again in one with a lease."""
    keeper = agent.install(agent.NoLease("none"))
    keeper.came_with_lease = lambda: False
    keeper.before_cell("")
    first = sees()
    keeper.after_cell()
    del os.environ["CUDA_VISIBLE_DEVICES"]

    def use(_: dict[str, Any]) -> list[Any]:
        keeper.came_with_lease = lambda: True
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            keeper.before_cell("")
        stuck = [half.stuck() for half in keeper.halves if half.name == "cupy"]
        return [first, sees(), " ".join([*(str(one.message) for one in said), *filter(None, stuck)])]

    converse({"use": use})


def _jax_sees() -> bool:
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax

    return any(device.platform != "cpu" for device in jax.devices())


def _cupy_sees() -> bool:
    import cupy

    return bool(cupy.cuda.is_available())


LATE: dict[str, Callable[[], bool]] = {"jax": _jax_sees, "cupy": _cupy_sees}


def idle() -> None:
    """A process that never touches CUDA."""
    agent.install(agent.NoLease("none"))
    converse({"pid": lambda _: os.getpid()})


if __name__ == "__main__":
    kinds = {f.__name__: f for f in (fake, tensors, trainer, hog, special, late, idle)}
    try:
        kinds[sys.argv[1]]()
    except ModuleNotFoundError as error:
        # Before the first answer: a bare machine may be without it.
        print(json.dumps({"absent": error.name}), flush=True)
