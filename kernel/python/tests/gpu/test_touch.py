"""Which cells may touch what."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from gresshopper.gpu import GpuUnavailable, Keeper
from gresshopper.gpu._touch import may_touch


class OnDevice:
    pass


class Holder:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def use(self) -> Any:
        return self.inner


thing = OnDevice()


def uses() -> Any:
    return thing


def closing(inner: Any) -> Any:
    return lambda: inner


SPACE = {
    "a": OnDevice(),
    "n": 5,
    "listed": [[1, {"k": OnDevice()}]],
    "held": Holder(OnDevice()),
    "plain": Holder([1, 2]),
    "uses": uses,
    "numbers": list(range(100)),
    "closure": closing(OnDevice()),
    "big": [object() for _ in range(30_000)],
}


@pytest.mark.parametrize(
    ("code", "may"),
    [
        ("n + 1", False),
        ("a + 1", True),
        ("listed[0]", True),
        ("held.use()", True),
        ("plain.use()", False),
        ("uses()", True),
        ("closure()", True),
        ("sum(numbers)", False),
        ("import cupy", True),
        ("from jax import numpy", True),
        ("import math", False),
        ("eval('a')", True),
        ("big", True),
        ("%timeit n", True),
        ("n = ", False),
        ("unknown", False),
    ],
)
def test_cells(code: str, may: bool) -> None:
    assert may_touch(code, SPACE, lambda o: isinstance(o, OnDevice), {"cupy", "jax"}) is may


def test_of_torch_only_what_it_compiled_is_asked_about() -> None:
    class OptimizedModule:
        pass

    asked: list[str] = []
    keeper = _watched(lambda: {"torch": types.ModuleType("torch"), "model": OptimizedModule()}, asked)
    keeper._unhooked = {"torch", "cupy"}
    keeper.before_cell("torch.ones(3)")
    keeper.after_cell()
    assert asked == []
    for code in ("model(x)", "import cupy"):
        with pytest.raises(GpuUnavailable):
            keeper.before_cell(code)
        keeper.after_cell()
    assert len(asked) == 2
    keeper.driver_only(False)
    keeper.before_cell("model(x)")
    assert len(asked) == 2


class _Answering(type):
    """A metaclass whose classes answer for their names with code, and with what is no text."""

    __module__ = property(lambda cls: 5)
    __name__ = property(lambda cls: 1 / 0)


class Odd(metaclass=_Answering):
    @property
    def __class__(self) -> Any:
        raise RuntimeError("asked for its class")


class Nameless:
    pass


Nameless.__module__ = property(lambda made: "x")  # type: ignore[assignment]
nameless_module = types.ModuleType("x")
del nameless_module.__name__


class Guard:
    """Notes whether it was entered."""

    def __init__(self) -> None:
        self.entered = 0

    def enter(self) -> None:
        self.entered += 1

    def leave(self) -> None:
        pass


def _watched(namespace: Any, asked: list[str]) -> Keeper:
    class Source:
        def acquire(self, why: str) -> None:
            asked.append(why)
            raise GpuUnavailable("none")

    keeper = Keeper(Source(), [])
    keeper.driver_only(True)
    keeper._unhooked = {"cupy", "jax"}
    keeper.namespace = namespace
    keeper.guard = Guard()  # type: ignore[assignment]
    return keeper


@pytest.mark.parametrize("which", range(6))
def test_names_that_are_no_text_are_looked_at(which: int) -> None:
    asked: list[str] = []
    value = (Odd(), Odd, _Answering, Nameless(), Nameless, nameless_module)[which]
    keeper = _watched(lambda: {"value": [value]}, asked)
    keeper.before_cell("value")
    assert (asked, keeper.guard.entered) == ([], 1)  # type: ignore[attr-defined]


def test_a_look_that_fails_means_that_the_cell_may_touch_a_device_and_the_guard_is_entered() -> None:
    def fails() -> Any:
        raise RuntimeError("no namespace")

    asked: list[str] = []
    keeper = _watched(fails, asked)
    with pytest.raises(GpuUnavailable):
        keeper.before_cell("1")
    assert (len(asked), keeper.guard.entered) == (1, 1)  # type: ignore[attr-defined]


def test_asking_that_fails_refuses_the_cell() -> None:
    class Broken:
        def acquire(self, why: str) -> None:
            raise OSError("the line is cut")

    keeper = _watched(dict, [])
    keeper.source = Broken()
    with pytest.raises(GpuUnavailable, match="the line is cut"):
        keeper.before_cell("import cupy")
    assert keeper.guard.entered == 1  # type: ignore[attr-defined]
    with pytest.raises(GpuUnavailable, match="the line is cut"):
        keeper.raise_refusal()


def test_a_lease_that_cannot_be_told_is_none_and_the_guard_is_entered() -> None:
    keeper = _watched(dict, [])
    keeper.came_with_lease = lambda: bool(1 / 0)
    with pytest.raises(ZeroDivisionError):
        keeper.before_cell("1")
    assert keeper.guard.entered == 1  # type: ignore[attr-defined]


NOTEBOOK = """
import os, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "gresshopper.gpu")
import gresshopper.gpu as gpu
keeper = gpu.keeper()
assert os.path.exists(os.path.join(os.environ["GRESSHOPPER_RUN_DIR"], f"process-{os.getpid()}.sock"))
keeper.source = gpu.NoLease("This cell has no GPU")
keeper.driver_only(True)
keeper._unhooked = {"cupy"}
assert shell.run_cell("1 + 1").result == 2
found = shell.run_cell("ran = True; import cupy")
assert "ran" not in shell.user_ns, "the cell ran"
assert not keeper._in_cell
print("said:", found.error_before_exec or found.error_in_exec)
assert shell.run_cell("1 + 1").result == 2
keeper.driver_only(False)
shell.run_cell("ran = True; import os as cupy")
assert shell.user_ns["ran"]
keeper.came_with_lease = lambda: 1 / 0
assert shell.run_cell("1 + 1").result == 2
"""


def test_in_ipython(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    tmp_path.chmod(0o700)
    env = {**os.environ, "GRESSHOPPER_RUN_DIR": str(tmp_path), "IPYTHONDIR": str(tmp_path / "ipython")}
    env["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", NOTEBOOK], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "said: This cell has no GPU" in done.stdout, done.stdout + done.stderr
    assert "Error in callback" not in done.stdout + done.stderr


CHILD = """
import mmap, os, sys
from gresshopper.gpu._guard import close_devices_in_children
close_devices_in_children(sys.argv[1] + "/nvidia")
device, other = os.open(sys.argv[1] + "/nvidia0", os.O_RDWR), os.open(sys.argv[1] + "/other", os.O_RDWR)
mapped = mmap.mmap(device, 4096), mmap.mmap(other, 4096)
if os.fork() == 0:
    open_still = [os.readlink(f"/proc/self/fd/{fd}") for fd in (device, other) if os.path.exists(f"/proc/self/fd/{fd}")]
    print([os.path.basename(path) for path in open_still], end=" ")
    maps = [line.split()[5] for line in open("/proc/self/maps") if sys.argv[1] in line]
    print(sorted(os.path.basename(path) for path in maps), mapped[0][0], chr(mapped[1][0]), flush=True)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
os.fstat(device)
assert chr(mapped[0][0]) == "n"
"""


def test_forked_children_hold_no_device(tmp_path: Path) -> None:
    for name in ("nvidia0", "other"):
        (tmp_path / name).write_bytes(name.encode() + bytes(4096))
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.returncode) == ("['other'] ['other'] 0 o", 0), done.stderr
