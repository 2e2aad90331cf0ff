"""Guards user code that asks torch for a GPU without a lease.

The guard has three places, all before the driver is asked. They are the questions (`torch.cuda.is_available` and its
like), torch's lazy initialisation, and, while anything is parked, every torch operation on a parked tensor or a
device. Each calls `ensure`, which either returns with the GPU usable or raises a sentence. torch's C++ keeps its first
answer to "how many devices" for ever: no question may reach torch before a device exists.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Callable

from gresshopper import typenames

from ._own import is_own

Ensure = Callable[[str], None]

#: Operations on a tensor's properties, without access to its memory.
_LOOKS = {
    "shape", "device", "dtype", "layout", "requires_grad", "is_leaf", "grad_fn", "is_cuda", "is_cpu", "ndim", "names",
    "itemsize", "nbytes", "is_sparse", "is_meta", "is_quantized", "is_nested", "output_nr", "_version", "_base", "name",
    "size", "dim", "stride", "numel", "element_size", "storage_offset", "is_contiguous", "is_floating_point", "__len__",
    "is_complex", "is_signed", "get_device", "nelement", "ndimension", "__hash__", "requires_grad_", "type", "_is_view",
    "grad", "retains_grad", "register_hook", "is_inference", "is_same_size", "is_shared", "volatile", "__dir__",
    "is_conj", "is_neg", "has_names", "_is_zerotensor", "dense_dim", "sparse_dim", "is_tensor",
}  # fmt: skip


def can_use_cuda(torch: Any) -> bool:
    """Whether this build of torch could use a GPU at all. If not, its answers are true without a GPU."""
    version = getattr(torch, "version", None)
    return version is None or getattr(version, "cuda", None) is not None


#: Questions to torch.cuda that would reach the driver.
_QUESTIONS = ("is_available", "device_count")


def operation(func: Any) -> str:
    """An operation's name; for a property, the property's."""
    name: str = getattr(func, "__name__", "")
    owner = getattr(func, "__self__", None)
    if name in ("__get__", "__set__", "__delete__") and owner is not None:
        return getattr(owner, "__name__", name)
    return name


#: Values that are no tensor, looked for first: the guard is in the way of each operation.
_SCALARS = frozenset((int, float, bool, complex, type(None)))


def touches(func: Any, args: Sequence[Any], kwargs: Any, device_type: str = "cuda") -> bool:
    """Whether an operation uses a device's memory or makes some."""
    for value in args:
        if _is_on(value, device_type, 3):
            return operation(func) not in _LOOKS
    for value in kwargs.values():
        if _is_on(value, device_type, 3):
            return operation(func) not in _LOOKS
    return False


def _is_on(value: Any, device_type: str, depth: int) -> bool:
    kind = type(value)
    if kind in _SCALARS:
        return False
    torch = sys.modules["torch"]
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return bool(value.is_cuda) if device_type == "cuda" else bool(value.device.type == device_type)
    if isinstance(value, (list, tuple, dict)):
        inner = value.values() if isinstance(value, dict) else value
        return depth > 0 and any(_is_on(one, device_type, depth - 1) for one in inner)
    if isinstance(value, torch.Tensor):
        with torch._C.DisableTorchFunction():
            return bool(value.device.type == device_type)
    named = value if kind is str else value.type if kind is torch.device else ""
    return bool(named == device_type or named.startswith(device_type + ":"))


def make_mode(ensure: Ensure, is_usable: Callable[[], bool], device_type: str = "cuda") -> Any:
    """A torch function mode: calls `ensure` before each operation on a device."""
    overrides: Any = sys.modules["torch.overrides"]

    class Guard(overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if not is_usable() and not is_own():
                moves = operation(func) == "cuda" and device_type == "cuda"
                if moves or touches(func, args, kwargs, device_type):
                    ensure(f"torch's {operation(func)} needs it")
            return func(*args, **kwargs)

    return Guard()


class ModeStack(threading.local):
    """The guard entered by this thread: modes are per thread."""

    mode: Any | None = None


class TorchGuard:
    """The guard's three places."""

    def __init__(self, ensure: Ensure, is_usable: Callable[[], bool], device_type: str = "cuda") -> None:
        self._ensure = ensure
        self._is_usable = is_usable
        self._device_type = device_type
        self._here = ModeStack()
        self._patched = False

    def patch(self, torch: Any) -> None:
        """Puts `ensure` before torch's questions and its initialisation."""
        cuda = getattr(torch, "cuda", None)
        if self._patched or cuda is None or not hasattr(cuda, "_lazy_init") or not can_use_cuda(torch):
            return
        self._patched = True
        for name in (*_QUESTIONS, "_lazy_init"):
            original = getattr(cuda, name)
            setattr(cuda, name, self._before(name, original))

    def _before(self, name: str, original: Any) -> Any:
        @functools.wraps(original)
        def asked(*args: Any, **kwargs: Any) -> Any:
            if not self._is_usable() and not is_own():
                self._ensure(f"torch.cuda.{name.lstrip('_')}() asks for one")
            return original(*args, **kwargs)

        return asked

    def enter(self) -> None:
        """Guards this thread's operations until `leave`."""
        torch = sys.modules.get("torch")
        if self._here.mode is not None or torch is None or not hasattr(torch, "overrides"):
            return
        mode = make_mode(self._ensure, self._is_usable, self._device_type)
        mode.__enter__()
        self._here.mode = mode

    def leave(self) -> None:
        mode, self._here.mode = self._here.mode, None
        if mode is not None:
            mode.__exit__(None, None, None)

    @property
    def guards_this_thread(self) -> bool:
        return self._here.mode is not None


class Threads:
    """Threads started by the user's code are guarded from their start; other possible users of the device are named."""

    #: Threads of these modules never touch a device.
    HARMLESS = ("IPython", "ipykernel", "zmq", "jupyter", "tornado", "debugpy", "pydevd", "_pydevd", "tqdm", "gresshopper",
                "torch._inductor", "concurrent.futures.process", "multiprocessing")  # fmt: skip

    def __init__(self, guard: TorchGuard) -> None:
        self._guard = guard
        self._guarded: set[int] = set()
        self._ours = {thread.ident for thread in threading.enumerate()}

    def began_with(self, ours: Iterable[int | None]) -> None:
        """Records the threads from before the user's code."""
        self._ours = set(ours)

    def install(self) -> None:
        original = threading.Thread.run
        threads = self

        @functools.wraps(original)
        def run(thread: threading.Thread) -> None:
            threads._begin()
            try:
                original(thread)
            finally:
                threads._end()

        threading.Thread.run = run  # type: ignore[method-assign, assignment]

    def _begin(self) -> None:
        self._guard.enter()
        if self._guard.guards_this_thread:
            self._guarded.add(threading.get_ident())

    def _end(self) -> None:
        self._guarded.discard(threading.get_ident())
        self._guard.leave()

    def unguarded(self) -> list[str]:
        """Threads that could use a device unseen."""
        found = []
        for thread in threading.enumerate():
            known = thread.ident in self._guarded or thread.ident in self._ours or thread is threading.main_thread()
            target = typenames.home_of(getattr(thread, "_target", None))
            if known or thread is threading.current_thread() or thread.name.startswith("gresshopper"):
                continue
            if type(thread) is not threading.Thread and typenames.module_of(type(thread)).startswith(self.HARMLESS):
                continue
            if target.startswith(self.HARMLESS):
                continue
            found.append(f"thread {thread.name!r} may use the device at any time")
        return found


#: Linux's MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS | MAP_NORESERVE, which not each Python names.
_OVER = 0x02 | 0x10 | 0x20 | 0x4000


def close_devices_in_children(prefix: str = "/dev/nvidia") -> None:
    """Has forked children (DataLoader workers) let go of the devices that they inherit and can't use. CUDA doesn't
    survive a fork, and an open or mapped file in a child would hold the device after a park."""
    # Looked up before the fork: a child may find the loader's lock taken for ever.
    mmap = ctypes.CDLL(None, use_errno=True).mmap
    mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]

    def let_go() -> None:
        for name in os.listdir("/proc/self/fd"):
            try:
                if os.readlink(f"/proc/self/fd/{name}").startswith(prefix):
                    os.close(int(name))
            except OSError:
                continue
        for start, size in _mapped(prefix):
            # Empty memory takes the place: a stray access to a hole would end the child.
            mmap(start, size, 3, _OVER, -1, 0)

    os.register_at_fork(after_in_child=let_go)


def _mapped(prefix: str) -> list[tuple[int, int]]:
    """Addresses and sizes of this process's mappings of files whose path begins with this text."""
    found = []
    with open("/proc/self/maps") as lines:
        for line in lines:
            fields = line.rstrip("\n").split(maxsplit=5)
            if len(fields) == 6 and fields[5].startswith(prefix):
                start, end = (int(at, 16) for at in fields[0].split("-"))
                found.append((start, end - start))
    return found
