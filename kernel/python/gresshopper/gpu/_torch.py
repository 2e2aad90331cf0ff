"""torch's half: storages out and in.

A storage is emptied and filled in place (`resize_`). Every tensor, view, gradient, optimiser state and saved
activation that shares it stays the very same object, and nothing has to be found and replaced. Memory without a
Python object (activations kept by a graph in C++) isn't found: the driver's checkpoint takes it with the rest.
"""

from __future__ import annotations

import gc
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any, Callable

from ._errors import ParkRefused
from ._host import Pin
from ._move import Found
from ._own import own_work

#: Places of the classes of such objects, if loaded at all.
_USERS = (
    ("torch.cuda", "CUDAGraph"),
    ("torch._inductor.cudagraph_trees", "CUDAGraphTreeManager"),
    ("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter"),
    ("torch.cuda", "Event"),
    ("torch.cuda", "Stream"),
    ("torch.cuda", "ExternalStream"),
)
#: Of these, what is valid as long as the context lives, but whose end is a call of the driver's.
_KEPT = ("Event", "Stream", "ExternalStream")


def _untyped(tensor: Any) -> Any:
    """The tensor's untyped storage, by 2.x's name or by 1.13's."""
    if hasattr(tensor, "untyped_storage"):
        return tensor.untyped_storage()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tensor.storage().untyped()


class StorageBlock:
    """One storage."""

    def __init__(self, torch: Any, storage: Any) -> None:
        self._torch = torch
        self._storage = storage
        self.nbytes = int(storage.nbytes())
        #: The storage's identity, whatever Python object stands for it.
        self.key = int(storage._cdata)

    def _bytes(self) -> Any:
        """A tensor of bytes over the storage."""
        torch = self._torch
        empty = torch.empty(0, dtype=torch.uint8, device=self._storage.device)
        if hasattr(torch.Tensor, "untyped_storage"):
            return empty.set_(self._storage, 0, (self.nbytes,), (1,))
        typed = torch.storage.TypedStorage(wrap_storage=self._storage, dtype=torch.uint8)
        return empty.set_(typed, 0, (self.nbytes,), (1,))

    def copy_out(self, to: memoryview) -> None:
        with self._torch.no_grad():
            self._torch.frombuffer(to, dtype=self._torch.uint8).copy_(self._bytes(), non_blocking=True)

    def free(self) -> None:
        self._storage.resize_(0)

    def allocate(self) -> None:
        self._storage.resize_(self.nbytes)

    def copy_in(self, source: memoryview) -> None:
        with self._torch.no_grad():
            self._bytes().copy_(self._torch.frombuffer(source, dtype=self._torch.uint8), non_blocking=True)


class TorchHalf:
    """torch's memory on the devices of one type."""

    name = "torch"

    def __init__(self, device_type: str = "cuda", select: Callable[[Any], bool] | None = None) -> None:
        #: Tests on a machine without a GPU look at "cpu" tensors, and only at some of them.
        self._device_type = device_type
        self._select = select

    @property
    def _torch(self) -> Any:
        return sys.modules.get("torch")

    @property
    def _is_cuda(self) -> bool:
        return self._device_type == "cuda"

    def loaded(self) -> bool:
        torch = self._torch
        if torch is None or not hasattr(torch, "Tensor"):
            return False
        return not self._is_cuda or bool(torch.cuda.is_initialized())

    def stuck(self) -> str | None:
        """Why a present GPU can't be used: torch's C++ keeps its first count of devices for ever."""
        torch = self._torch
        if torch is None or not self._is_cuda or not hasattr(torch, "_C") or torch.cuda.is_initialized():
            return None
        torch.cuda._cached_device_count = None
        count = getattr(torch._C, "_cuda_getDeviceCount", None)
        if count is None or count() > 0:
            return None
        return (
            "torch sees no GPU although there is one: it counted them before this kernel had one and keeps the answer, "
            "or it is a build without CUDA. Restart the kernel, and let gresshopper load before torch is used."
        )

    def _walk(self) -> tuple[list[Any], dict[str, list[Any]]]:
        """All live tensors and, by name, live objects with addresses or use of the device. A single pass over the
        garbage collector's objects finds both; it is most of the cost of a small park."""
        types = _with_subclasses(self._torch.Tensor)
        named = {cls: name for module, name in _USERS if (cls := getattr(sys.modules.get(module), name, None))}
        wanted = types | named.keys()
        tensors: list[Any] = []
        users: dict[str, list[Any]] = {}
        for found in [o for o in gc.get_objects() if type(o) in wanted]:
            if type(found) in types:
                tensors.append(found)
            else:
                users.setdefault(named[type(found)], []).append(found)
        return tensors, users

    def _parts(self, tensor: Any) -> Iterator[Any]:
        torch = self._torch
        try:
            if tensor.device.type != self._device_type:
                return
            layout = tensor.layout
        except Exception:
            return
        if layout == torch.strided:
            if self._select is None or self._select(tensor):
                yield tensor
        elif layout == torch.sparse_coo:
            yield from (tensor._indices(), tensor._values())
        elif layout in (torch.sparse_csr, torch.sparse_bsr):
            yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
        elif layout in (torch.sparse_csc, torch.sparse_bsc):
            yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())

    def find(self) -> Found:
        found = Found()
        torch = self._torch
        storages: dict[int, Any] = {}
        foreign = 0
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tensors, users = self._walk()
            held = (part for found_tensor in tensors for t in _with_gradient(found_tensor) for part in self._parts(t))
            for tensor in held:
                try:
                    storage = _untyped(tensor)
                    key, size = storage._cdata, storage.nbytes()
                except Exception:
                    continue
                if size and key not in storages:
                    storages[key] = storage
                    foreign += not _is_resizable(storage)
        found.blocks = [StorageBlock(torch, storage) for storage in storages.values()]
        found.keep = [one for name in _KEPT for one in users.get(name, [])]
        if foreign:
            found.refusals.append(
                f"{foreign} torch tensors lie over memory that torch doesn't own (DLPack, from_blob)"
            )
        if self._is_cuda:
            found.refusals += _refusals(users)
            found.ipc = self._shares_with_others()
        return found

    def _shares_with_others(self) -> bool | None:
        reductions = sys.modules.get("torch.multiprocessing.reductions")
        if reductions is None:
            return False
        # A CUDA handle is bytes; a CPU one is a pair of numbers or a name.
        return any(isinstance(key, bytes) and len(key) >= 64 for key in list(reductions.shared_cache))

    def sync(self, deadline: float) -> None:
        if self._is_cuda:
            within(deadline, self._sync_all, "the device is still at work")

    def _sync_all(self) -> None:
        torch = self._torch
        # A question to an unused device to come to rest would put a context on the device.
        in_use = getattr(torch._C, "_cuda_hasPrimaryContext", lambda index: True)
        for index in range(torch.cuda.device_count()):
            if in_use(index):
                torch.cuda.synchronize(index)

    def empty_caches(self) -> None:
        if not self._is_cuda:
            return
        torch = self._torch
        clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear is not None:
            clear()
        torch.cuda.empty_cache()

    def pin(self) -> Pin | None:
        if not self._is_cuda:
            return None
        runtime = self._torch.cuda.cudart()

        def register(address: int, size: int) -> None:
            code = int(runtime.cudaHostRegister(address, size, 0))
            if code:
                raise OSError(f"cudaHostRegister answered {code}")

        return register

    def unpin(self) -> Callable[[int], None] | None:
        if not self._is_cuda:
            return None
        runtime = self._torch.cuda.cudart()

        def unregister(address: int) -> None:
            code = int(runtime.cudaHostUnregister(address))
            if code:
                raise OSError(f"cudaHostUnregister answered {code}")

        return unregister


def _with_subclasses(cls: Any) -> set[Any]:
    found = {cls}
    for sub in cls.__subclasses__():
        found |= _with_subclasses(sub)
    return found


def _with_gradient(tensor: Any) -> Iterator[Any]:
    """The tensor and the gradient: a gradient has no Python object before the first use."""
    yield tensor
    try:
        gradient = tensor.grad if tensor.is_leaf else None
    except Exception:
        return
    if gradient is not None:
        yield gradient


def _is_resizable(storage: Any) -> bool:
    return bool(storage.resizable()) if hasattr(storage, "resizable") else True


def _refusals(users: dict[str, list[Any]]) -> list[str]:
    """Objects that keep device addresses or may use the device at any moment."""
    reasons = []
    if "CUDAGraphTreeManager" in users:
        reasons.append('a function compiled with torch.compile(mode="reduce-overhead") keeps CUDA graphs')
    elif "CUDAGraph" in users:
        reasons.append("a CUDA graph (torch.cuda.CUDAGraph) keeps addresses on the device")
    threads = (
        getattr(loader, "_pin_memory_thread", None) for loader in users.get("_MultiProcessingDataLoaderIter", [])
    )
    if any(thread is not None and thread.is_alive() for thread in threads):
        reasons.append("a DataLoader with pin_memory=True is in the middle of an epoch")
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        reasons.append("torch.distributed is connected to other processes")
    return reasons


def within(deadline: float, work: Callable[[], None], otherwise: str) -> None:
    """Does `work` on a separate thread; raises ParkRefused after `deadline` seconds."""
    errors: list[BaseException] = []

    @own_work()
    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True, name="gresshopper-sync")
    thread.start()
    thread.join(deadline)
    if thread.is_alive():
        raise ParkRefused(f"{otherwise} after {deadline:.0f} s")
    if errors:
        raise errors[0]
