"""jax's half: against a FAKE jax everywhere, and against real jax on two of the CPU's devices where jax is installed."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import FakeDevice
from gresshopper.gpu import Keeper, NoLease, ParkRefused
from gresshopper.gpu._jax import JaxHalf


class FakeGpu:
    """A FAKE jax device."""

    platform = "gpu"


class FakeArray:
    """A FAKE ArrayImpl: bytes on a FAKE device, which other arrays may share."""

    def __init__(self, jax: Any, memory: Any, devices: set[Any]) -> None:
        self._jax, self.memory, self._devices = jax, memory, devices
        self.shape, self.dtype, self.aval = (len(memory),), "uint8", None
        self.nbytes = len(memory)
        self.sharding = SimpleNamespace(memory_kind="device", devices=devices)
        jax.arrays.append(self)

    def devices(self) -> set[Any]:
        return self._devices

    def is_deleted(self) -> bool:
        return self.memory is None

    def unsafe_buffer_pointer(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def delete(self) -> None:
        self._jax.device.call("free")
        if self.memory is not None and not any(a.memory is self.memory for a in self._jax.arrays if a is not self):
            self._jax.device.used -= self.nbytes
        self.memory = None

    def _rewrap_with_aval_and_sharding(self, aval: Any, sharding: Any) -> Any:
        return SimpleNamespace(memory=self.memory)

    def block_until_ready(self) -> None:
        self._jax.device.call("sync")

    def _replace_with(self, other: FakeArray) -> None:
        self.memory = other.memory


class FakeOnHost:
    """A FAKE ArrayImpl on the CPU, for the half's trial."""

    def __init__(self, jax: Any) -> None:
        self._jax, self._deleted = jax, False

    def is_deleted(self) -> bool:
        return self._deleted

    def delete(self) -> None:
        self._deleted = True

    def _replace_with(self, other: FakeOnHost) -> None:
        if self._jax.strict and self._deleted:
            raise RuntimeError("one or both arrays have been deleted")
        self._deleted = other._deleted


class FakeHost:
    """A FAKE numpy view of host memory."""

    def __init__(self, buffer: memoryview) -> None:
        self.buffer = buffer

    def view(self, dtype: Any) -> FakeHost:
        return self

    def reshape(self, shape: Any) -> FakeHost:
        return self

    def __setitem__(self, where: Any, value: Any) -> None:
        self.buffer[:] = value


class FakeJax:
    """A module with what the half uses of jax 0.10 and 0.11."""

    def __init__(self, device: FakeDevice) -> None:
        self.device, self.arrays = device, []  # type: ignore[var-annotated]
        #: As from 0.11 on.
        self.strict = False
        self.gpu = FakeGpu()

    def devices(self, platform: str) -> list[Any]:
        return [platform]

    def live_arrays(self) -> list[Any]:
        return list(self.arrays)

    def array(self, content: bytes) -> FakeArray:
        memory = self.device.take(len(content))
        memory[:] = content
        return FakeArray(self, memory, {self.gpu})

    def device_put(self, host: FakeHost, sharding: Any) -> FakeArray:
        if sharding == "cpu":
            return FakeOnHost(self)
        self.device.call("copy_in")
        made = self.array(bytes(host.buffer))
        self.arrays.remove(made)
        return made


@pytest.fixture
def jax(monkeypatch: pytest.MonkeyPatch) -> FakeJax:
    fake = FakeJax(FakeDevice())

    def asarray(array: Any) -> bytes:
        fake.device.call("copy_out")
        return bytes(array.memory)

    numpy = SimpleNamespace(
        uint8="u1",
        zeros=lambda n, dtype: None,
        frombuffer=lambda buffer, dtype, count: FakeHost(buffer[:count]),
        asarray=asarray,
    )
    monkeypatch.setitem(sys.modules, "jax", fake)
    monkeypatch.setitem(sys.modules, "numpy", numpy)
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", SimpleNamespace(_backends={"gpu": 1}))
    monkeypatch.setenv("XLA_PYTHON_CLIENT_ALLOCATOR", "platform")
    return fake


def held(jax: FakeJax) -> list[bytes | None]:
    return [None if a.memory is None else bytes(a.memory) for a in jax.arrays]


def test_arrays_come_back_in_place_and_share_again(jax: FakeJax) -> None:
    one, two = jax.array(b"weights" * 9), jax.array(b"state" * 7)
    alias = FakeArray(jax, one.memory, {jax.gpu})
    before = held(jax)
    keeper = Keeper(NoLease("none"), [JaxHalf()])
    assert keeper.report()["frameworks_bytes"] == len(before[0] or b"") + len(before[1] or b"")
    keeper.out()
    assert (jax.device.used, held(jax)) == (0, [None] * 3)
    keeper.back()
    assert held(jax) == before
    assert alias.memory is one.memory
    assert two.memory is not one.memory


@pytest.mark.parametrize(("call", "nth"), [("copy_out", 0), ("copy_out", 1), ("sync", 0), ("free", 0), ("free", 1)])
def test_a_fault_on_the_way_out_changes_nothing(jax: FakeJax, call: str, nth: int) -> None:
    jax.array(b"a" * 10)
    jax.array(b"b" * 20)
    before = held(jax)
    keeper = Keeper(NoLease("none"), [JaxHalf()])
    jax.device.fail_at[call] = nth
    with pytest.raises(ParkRefused, match="fake fault"):
        keeper.out()
    assert held(jax) == before
    assert keeper.usable


@pytest.mark.parametrize(("call", "nth"), [("copy_in", 0), ("copy_in", 1), ("sync", 0), ("sync", 1)])
def test_a_fault_on_the_way_in_loses_nothing(jax: FakeJax, call: str, nth: int) -> None:
    jax.array(b"a" * 10)
    jax.array(b"b" * 20)
    before = held(jax)
    keeper = Keeper(NoLease("none"), [JaxHalf()])
    keeper.out()
    jax.device.fail_at[call] = nth
    with pytest.raises(ParkRefused, match="safe in host memory"):
        keeper.back()
    jax.device.fail_at.clear()
    keeper.back()
    assert held(jax) == before


def test_what_cannot_be_moved_is_refused_by_name(jax: FakeJax, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = Keeper(NoLease("none"), [JaxHalf()])
    array = jax.array(b"a" * 10)
    monkeypatch.delenv("XLA_PYTHON_CLIENT_ALLOCATOR")
    with pytest.raises(ParkRefused, match="XLA_PYTHON_CLIENT_ALLOCATOR=platform"):
        keeper.out()
    monkeypatch.setenv("XLA_PYTHON_CLIENT_ALLOCATOR", "platform")
    jax.strict = True
    with pytest.raises(ParkRefused, match="can't give them other memory in place"):
        Keeper(NoLease("none"), [JaxHalf()]).out()
    jax.strict = False
    array._devices = {jax.gpu, FakeGpu()}
    with pytest.raises(ParkRefused, match="spread over several devices"):
        keeper.out()
    assert held(jax) == [b"a" * 10]


def test_donated_arrays_and_arrays_in_host_memory_are_nobodys(jax: FakeJax) -> None:
    jax.array(b"donated").delete()
    jax.array(b"offloaded").sharding.memory_kind = "pinned_host"
    assert not JaxHalf().loaded()


class Asked:
    """A FAKE of what jax remembers of its devices: `look` finds a GPU where `gpu` says that there is one."""

    def __init__(self, jax: FakeJax, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bridge = SimpleNamespace(_backends={}, _backend_factories={"cpu": 1, "cuda": 1})
        self.gpu = False
        self.cleared = 0
        monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", self.bridge)
        monkeypatch.setitem(sys.modules, "jax.extend.backend", SimpleNamespace(clear_backends=self.clear))

    def clear(self) -> None:
        self.cleared += 1
        self.bridge._backends = {}

    def look(self) -> set[str]:
        if not self.bridge._backends:
            self.bridge._backends.update({"cpu": 1, **({"cuda": 1} if self.gpu else {})})
        return set(self.bridge._backends)


@pytest.fixture
def asked(jax: FakeJax, monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(jax, monkeypatch)


def cell(keeper: Keeper, lease: bool, body: Any) -> Any:
    keeper.came_with_lease = lambda: lease
    keeper.before_cell("")
    try:
        return body()
    finally:
        keeper.after_cell()


def test_a_gpu_gained_after_no_gpu_is_looked_for_again(asked: Asked) -> None:
    keeper = Keeper(NoLease("none"), [JaxHalf()])
    assert cell(keeper, False, asked.look) == {"cpu"}
    assert cell(keeper, False, asked.look) == {"cpu"}
    assert asked.cleared == 0, "without a lease there is nothing new to see"
    asked.gpu = True
    assert cell(keeper, True, asked.look) == {"cpu", "cuda"}
    cell(keeper, False, asked.look)
    cell(keeper, True, asked.look)
    assert asked.cleared == 1


def test_a_gpu_gained_within_a_cell_is_looked_for_again(asked: Asked) -> None:
    keeper = Keeper(NoLease("none"), [JaxHalf()])

    def body() -> set[str]:
        assert asked.look() == {"cpu"}
        keeper.grant()
        asked.gpu = True
        return asked.look()

    assert cell(keeper, False, body) == {"cpu", "cuda"}


def test_an_answer_got_with_a_gpu_there_stays(asked: Asked) -> None:
    keeper = Keeper(NoLease("none"), [JaxHalf()])
    for _ in range(3):
        assert cell(keeper, True, asked.look) == {"cpu"}
    assert asked.cleared == 0, "nothing is compiled again at each cell where jax can't use the GPU"
    asked.clear()
    cell(keeper, False, asked.look)
    asked.gpu = True
    assert cell(keeper, True, asked.look) == {"cpu", "cuda"}, "that was another answer, got without one"


@pytest.mark.filterwarnings("error")
def test_who_wants_no_gpu_is_left_alone(asked: Asked, jax: FakeJax) -> None:
    jax.config = SimpleNamespace(jax_platforms="cpu")  # type: ignore[attr-defined]
    keeper = Keeper(NoLease("none"), [JaxHalf()])
    cell(keeper, False, asked.look)
    cell(keeper, True, asked.look)
    jax.config.jax_platforms = ""  # type: ignore[attr-defined]
    del asked.bridge._backend_factories["cuda"]
    cell(keeper, False, asked.look)
    cell(keeper, True, asked.look)
    assert asked.cleared == 0


@pytest.mark.parametrize("why", ["put on the CPU's device by name", "plugin gave up", "fake fault"])
def test_a_jax_that_cannot_look_again_is_named_once(
    asked: Asked, jax: FakeJax, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if "device" in why:
        jax.array(b"bound")._committed = True  # type: ignore[attr-defined]
    elif "plugin" in why:
        del asked.bridge._backend_factories["cuda"]
        monkeypatch.setitem(sys.modules, "jax_plugins.xla_cuda13", SimpleNamespace())
    else:

        def fail() -> None:
            raise RuntimeError("fake fault")

        monkeypatch.setattr(sys.modules["jax.extend.backend"], "clear_backends", fail)
    keeper = Keeper(NoLease("none"), [JaxHalf()])
    cell(keeper, False, asked.look)
    with pytest.warns(UserWarning, match=f"{why}.*Restart the kernel"):
        cell(keeper, True, asked.look)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cell(keeper, True, asked.look)
    assert asked.cleared == 0


REAL = """
import sys
sys.path.insert(0, sys.argv[1])
import jax, jax.numpy as jnp, numpy as np
from gresshopper.gpu import Keeper, NoLease
from gresshopper.gpu._jax import JaxHalf

_, device = jax.devices()
put = lambda value: jax.device_put(value, device)
half = JaxHalf(lambda d: d == device)
keeper = Keeper(NoLease("none"), [half])
elsewhere = jnp.arange(4.0)
held = {
    "f32": put(np.arange(1000.0, dtype="f4").reshape(10, 100)), "bf16": put(jnp.ones((3, 5), jnp.bfloat16) * 1.5),
    "bool": put(np.array([True, False, True])), "scalar": put(np.float32(7)), "c64": put(np.ones(4, "c8") * 1j),
    "i8": put(np.arange(7, dtype="i1")), "key": put(jax.random.key(3)),
}
tree = [held["f32"], {"w": held["f32"]}]
alias = jax.device_put(held["f32"], device)
plain = lambda v: np.asarray(jax.random.key_data(v) if jnp.issubdtype(v.dtype, jax.dtypes.prng_key) else v).tobytes()
before = {name: plain(v) for name, v in held.items()}
pointer = held["f32"].unsafe_buffer_pointer() == alias.unsafe_buffer_pointer()
step = jax.jit(lambda x: (x @ x.T).sum())
expected = step(held["f32"])
if tuple(map(int, jax.__version__.split(".")[:2])) >= (0, 11):
    assert "other memory in place" in keeper.report()["refusals"][0], keeper.report()
    print("bytes", 0)
    sys.exit()
for _ in range(2):
    report = keeper.report()
    assert not report["refusals"], report
    moved = keeper.out()
    assert all(v.is_deleted() for name, v in held.items() if name != "key") and not elsewhere.is_deleted()
    keeper.back()
    assert {name: plain(v) for name, v in held.items()} == before
    assert tree[0] is held["f32"] and tree[1]["w"] is held["f32"]
    assert (held["f32"].unsafe_buffer_pointer() == alias.unsafe_buffer_pointer()) == pointer
    assert held["f32"].devices() == {device} and step(held["f32"]) == expected
try:
    donate = jax.jit(lambda x: x + 1, donate_argnums=0)
    gone = put(np.ones(8, "f4"))
    kept = donate(gone)
    assert gone.is_deleted()
    keeper.out()
    keeper.back()
    assert gone.is_deleted() and float(kept.sum()) == 16
finally:
    print("bytes", moved.bytes)
"""


GAINED = """
import sys
sys.path.insert(0, sys.argv[1])
import jax, jax.numpy as jnp, numpy as np
from jax._src import xla_bridge
from jaxlib import xla_client
from gresshopper.gpu import Keeper, NoLease
from gresshopper.gpu._jax import JaxHalf

gained = False
def fake_gpu():
    if not gained:
        raise RuntimeError("no device")
    return xla_client.make_cpu_client()
xla_bridge.register_backend_factory("rocm", fake_gpu, priority=500)
keeper = Keeper(NoLease("none"), [JaxHalf()])
keeper.came_with_lease = lambda: gained
keeper.before_cell("")
step = jax.jit(lambda x: jnp.tanh(x * 2 + 1).sum())
key, held = jax.random.key(3), jnp.arange(1000.0)
expected, alias, first = step(held), held, jax.devices()
keeper.after_cell()
assert "rocm" not in xla_bridge.backends()
gained = True
keeper.before_cell("")
assert "rocm" in xla_bridge.backends() and jax.devices()[0] is not first[0]
assert (np.asarray(held) == np.arange(1000)).all() and step(held) == expected == step(jnp.arange(1000.0))
assert (held + jnp.ones(1000)).devices() == set(jax.devices()) and jax.random.normal(key, (3,)).shape == (3,)
assert jax.device_put(held, jax.devices()[0]).devices() == set(jax.devices())
keeper.after_cell()
print("usable")
"""


def jax_python() -> str:
    python = os.environ.get("HOP_JAX_PYTHON", sys.executable)
    probe = subprocess.run([python, "-c", "import jax"], capture_output=True, check=False, timeout=60)
    if probe.returncode:
        pytest.skip("no jax here; HOP_JAX_PYTHON names a Python that has it")
    return python


def test_real_jax_looks_again(tmp_path: Path) -> None:
    """The GPU is a FAKE: a second client of the CPU's, as a backend that isn't there at first."""
    package = str(Path(__file__).parents[2])
    done = subprocess.run(
        [jax_python(), "-c", GAINED, package], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split()[-1] == "usable"


def test_real_jax_on_the_cpu(tmp_path: Path) -> None:
    env = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "XLA_PYTHON_CLIENT_ALLOCATOR": "platform",
    }
    package = str(Path(__file__).parents[2])
    done = subprocess.run(
        [jax_python(), "-c", REAL, package], env=env, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "bytes" in done.stdout
