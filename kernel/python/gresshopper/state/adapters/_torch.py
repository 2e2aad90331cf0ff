"""torch: tensors over their storages, random generators, and settings of the process."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from typing import Any, Callable

from gresshopper import typenames

from .. import native, recipes
from ..lost import LostError
from ..session import Session
from ..writing import Writing
from . import Adapter, Rule, Section
from ._shared import data_of, find_root, storage_nbytes, storage_of, untyped

# --- writing ---

#: Bytes that are read from a device between two looks at whether somebody waits for the device, or for the kernel.
PIECE = 64 << 20
#: Bytes a second into new host memory: 1.1 GB with an H200.
READ_RATE = 1e9


def read_device(session: Session, raw: Any) -> Any:
    """Device memory, given as a tensor of bytes, as a numpy array.

    # Errors
    `Interrupted` when there is no time for it, or somebody waits.
    """
    import torch

    session.expect(len(raw) / READ_RATE)
    host = torch.empty(len(raw), dtype=torch.uint8, device="cpu")
    for at in range(0, len(raw), PIECE):
        session.check()
        host[at : at + PIECE].copy_(raw[at : at + PIECE])
    return host.numpy()


def _torch_untyped(dump: Writing, storage: Any) -> Any:
    nbytes = storage_nbytes(storage)
    device = str(storage.device)
    address = storage.data_ptr()
    dump.storages.setdefault(address or storage._cdata, storage)
    copy = dump.session.device.copy(storage) if dump.session.device is not None else None
    if copy is not None:
        dump.on_device = True
        at = native.address(copy)
        dump.ranges.append((at, at + copy.nbytes))
        index = dump.add_buffer(at, copy.nbytes, copy)
        return torch_storage, (index, copy.nbytes, device)
    if device != "cpu" or dump.session.device is not None:
        dump.on_a_device(storage.device.type)
    if device == "cpu" and nbytes:
        over = find_root(dump, address, nbytes)
        if over is not None and not typenames.module_of(type(over)).startswith("torch"):
            return torch_storage_over, (over, address - data_of(over), nbytes)
        dump.ranges.append((address, address + nbytes))
        dump.roots.add(address, address + nbytes, storage)
        index = dump.add_buffer(address, nbytes, storage)
    elif nbytes:
        import torch

        dump.session.room(nbytes)
        raw = torch.empty(0, dtype=torch.uint8, device=storage.device)
        host = read_device(dump.session, raw.set_(storage, 0, (nbytes,), (1,)))
        dump.ranges.append((address, address + nbytes))  # on the device: what shares it is one group
        index = dump.add_buffer(data_of(host), nbytes, host)
    else:
        index = dump.add_buffer(0, 0, storage)
    return torch_storage, (index, nbytes, device)


def _tensor(dump: Writing, t: Any) -> Any:
    import torch

    cls = type(t)
    dump.seen.add(cls)
    plain = cls is torch.Tensor or cls is torch.nn.Parameter
    if t.is_quantized:
        dump.notes.append("a quantised tensor is saved as a copy")
    elif t.is_inference():
        dump.notes.append("a tensor of inference mode is an ordinary one after a restore")
    if not plain or t.layout != torch.strided or t.is_quantized or t.device.type == "meta":
        return NotImplemented
    if t.is_conj() or t.is_neg():
        kind = "conj" if t.is_conj() else "neg"
        return torch_lazy, (torch_lazy(t, kind), kind)
    history = t.grad_fn is not None
    if history:
        dump.notes.append("a tensor's history of operations isn't saved")
    storage = storage_of(dump, t)
    made = (
        storage,
        t.dtype,
        t.storage_offset(),
        tuple(t.size()),
        tuple(t.stride()),
        bool(t.requires_grad),
        cls is torch.nn.Parameter,
        history,
    )
    grad = t.grad if t.is_leaf else None
    attrs = {k: v for k, v in getattr(t, "__dict__", {}).items()}
    hooks = {k: getattr(t, k) for k in TORCH_HOOKS if getattr(t, k, None)} if t.is_leaf else {}
    state: Any = {"grad": grad, "dict": attrs, "hooks": hooks} if grad is not None or attrs or hooks else None
    if t.has_names():
        state = {**(state or {"grad": None, "dict": {}, "hooks": {}}), "names": t.names}
    return torch_tensor, made, state, None, None, set_torch_tensor


def _torch_typed(dump: Writing, storage: Any) -> Any:
    dump.notes.append("a storage of torch is saved as a copy")
    return NotImplemented


def _torch_generator(dump: Writing, g: Any) -> Any:
    import torch

    default = g is torch.default_generator
    return torch_generator, (str(g.device), None if default else g.get_state(), default)


def _optimizer(dump: Writing, made: Any) -> Any:
    """An optimizer with all its attributes: its own pickling keeps three, and an `LBFGS` can't go on without its others."""
    import torch

    t: Any = type(made)
    if t.__getstate__ is not torch.optim.Optimizer.__getstate__ or t.__reduce_ex__ is not object.__reduce_ex__:
        return NotImplemented
    dump.seen.add(t)
    make, args, state, *_ = made.__reduce_ex__(5)
    left = {name: value for name, value in vars(made).items() if name not in state}
    return make, args, (state, left), None, None, recipes.set_whole


# --- loading ---


@recipes.recipe
def torch_storage(index: int, nbytes: int, device: str) -> Any:
    """The memory of tensors."""
    import torch

    source = recipes.current()
    raw = torch.empty(nbytes, dtype=torch.uint8)
    if nbytes:
        source.fill(index, memoryview(raw.numpy()))
    if device != "cpu":
        try:
            raw = raw.to(device)
        except (RuntimeError, AssertionError) as e:
            source.notice(f"a tensor that was on {device} is on the CPU now: {e}")
    return untyped(raw)


@recipes.recipe
def torch_storage_over(array: Any, offset: int, nbytes: int) -> Any:
    """Memory of tensors in common with an array."""
    import numpy as np
    import torch

    flat = (array if array.flags.c_contiguous else array.T).reshape(-1).view(np.uint8)
    return untyped(torch.from_numpy(flat[offset : offset + nbytes]))


@recipes.recipe
def torch_tensor(
    storage: Any,
    dtype: Any,
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
    parameter: bool,
    history: bool,
) -> Any:
    """A tensor over a storage."""
    import torch

    device = getattr(storage, "device", None) or "cpu"
    made = torch.empty(0, dtype=dtype, device=device).set_(storage, offset, size, stride)
    if parameter:
        return torch.nn.Parameter(made, requires_grad=requires_grad)
    if history:
        recipes.current().notice(
            "a tensor was restored without the operations that led to it; a backward pass through it fails"
        )
        return _gone_history().apply(made.requires_grad_(True))
    if requires_grad:
        made.requires_grad_(True)
    return made


def _gone_history() -> Any:
    import torch

    class RestoredWithoutHistory(torch.autograd.Function):  # type: ignore[misc]
        """Stands for the operations that led to a restored tensor."""

        @staticmethod
        def forward(ctx: Any, value: Any) -> Any:
            return value.view_as(value)

        @staticmethod
        def backward(ctx: Any, *_: Any) -> Any:
            raise LostError("this tensor was restored without the operations that led to it: run its cell again")

    return RestoredWithoutHistory


@recipes.recipe
def set_torch_tensor(made: Any, state: dict[str, Any]) -> None:
    """Gradient and attributes of a tensor."""
    if state.get("names"):
        made.rename_(*state["names"])
    if state.get("grad") is not None:
        made.grad = state["grad"]
    for key, value in state.get("dict", {}).items():
        setattr(made, key, value)
    for key, value in state.get("hooks", {}).items():
        setattr(made, key, value)


#: Attributes in which a tensor keeps functions called with its gradient.
TORCH_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


@recipes.recipe
def torch_lazy(plain: Any, kind: str) -> Any:
    """A tensor that is another's conjugate or negative without being computed; and back."""
    import torch

    negative: Any = torch._neg_view
    return plain.conj() if kind == "conj" else negative(plain)


@recipes.recipe
def torch_generator(device: str, state: Any, default: bool) -> Any:
    """A random generator of torch."""
    import torch

    made = torch.default_generator if default else torch.Generator(device)
    if not default:
        made.set_state(state)
    return made


# --- the process ---


def _torch() -> Any:
    torch = sys.modules["torch"]
    state, seed = bytes(torch.get_rng_state().numpy()), torch.initial_seed()
    return {
        **({"seed": seed} if _torch_seeded(torch, seed) == state else {"rng": state}),
        "dtype": str(torch.get_default_dtype()),
        "grad": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "flags": {name: read(torch) for name, (read, _) in _FLAGS.items()},
        "hooks": torch.utils.hooks.RemovableHandle.next_id,
        "cuda": _cuda(torch),
        "anomaly": torch.is_anomaly_enabled(),
        "print": {name: getattr(torch._tensor_str.PRINT_OPTS, name) for name in _TORCH_PRINT},
    }


_TORCH_PRINT = ("precision", "threshold", "edgeitems", "linewidth", "sci_mode")


#: The product is zero where the processor takes the tiniest numbers for zero.
_TINIEST: float = math.ulp(0.0)
_ONE: float = 1.0
#: Settings by their functions.
_FLAGS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], None]]] = {
    "precision": (
        lambda torch: torch.get_float32_matmul_precision(),
        lambda torch, value: torch.set_float32_matmul_precision(value),
    ),
    "warn_always": (
        lambda torch: torch.is_warn_always_enabled(),
        lambda torch, value: torch.set_warn_always(value),
    ),
    # torch doesn't tell; Python's arithmetic has the same mode.
    "flush": (lambda torch: _TINIEST * _ONE == 0, lambda torch, value: torch.set_flush_denormal(value)),
}

#: The random states of GPUs that a restored state has, until CUDA begins here.
_waiting: list[list[bytes]] = []


def _cuda(torch: Any) -> dict[str, Any]:
    """The random states of the GPUs' generators, which lie in host memory, or what will be set once CUDA begins."""
    if torch.cuda.is_initialized():
        _waiting.clear()
        return {"rng": [bytes(generator.get_state().numpy()) for generator in torch.cuda.default_generators]}
    queued = getattr(getattr(torch.cuda, "_lazy_seed_tracker", None), "manual_seed_all_cb", None)
    seed = inspect.getclosurevars(queued[0]).nonlocals.get("seed") if queued else None
    return {**({"rng": _waiting[-1]} if _waiting else {}), **({} if seed is None else {"seed": seed})}


def _set_cuda(torch: Any, state: dict[str, Any]) -> None:
    if "rng" in state:
        begins = not _waiting and not torch.cuda.is_initialized()
        _waiting[:] = [state["rng"]]
        if begins:
            torch.cuda._lazy_call(lambda: _set_generators(torch))  # asks no GPU before the notebook does
        elif torch.cuda.is_initialized():
            _set_generators(torch)
    if "seed" in state:
        torch.cuda.manual_seed_all(state["seed"])


def _set_generators(torch: Any) -> None:
    for generator, state in zip(torch.cuda.default_generators, _waiting.pop() if _waiting else ()):
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


@functools.lru_cache(maxsize=2)
def _torch_seeded(torch: Any, seed: int) -> bytes:
    """The state of torch's generator after it was seeded, until something is drawn."""
    return bytes(torch.Generator().manual_seed(seed).get_state().numpy())


def _set_torch(state: Any) -> None:
    import torch

    if "seed" in state:
        torch.default_generator.manual_seed(state["seed"])
    else:
        torch.set_rng_state(torch.frombuffer(bytearray(state["rng"]), dtype=torch.uint8))
    torch.set_default_dtype(getattr(torch, state["dtype"].split(".")[1]))
    torch.set_grad_enabled(state["grad"])
    if torch.get_num_threads() != state["threads"]:
        torch.set_num_threads(state["threads"])
    torch.use_deterministic_algorithms(state["deterministic"], warn_only=state.get("warn_only", False))
    for name, value in state.get("flags", {}).items():
        read, put = _FLAGS[name]
        if read(torch) != value:
            put(torch, value)
    # The next hook to be registered must not take the number of a present hook.
    handle = torch.utils.hooks.RemovableHandle
    handle.next_id = max(handle.next_id, state.get("hooks", 0))
    _set_cuda(torch, state.get("cuda", {}))
    if state.get("anomaly", False) != torch.is_anomaly_enabled():
        torch.autograd.set_detect_anomaly(state["anomaly"])
    for name, value in state.get("print", {}).items():
        setattr(torch._tensor_str.PRINT_OPTS, name, value)


def _ready() -> Any:
    """torch, unless half imported."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "nn") and hasattr(torch, "default_generator") else None


def _exact() -> dict[type, Rule]:
    torch = _ready()
    if torch is None:
        return {}
    kind = getattr(torch, "UntypedStorage", None) or getattr(torch.storage, "_UntypedStorage", None)
    return {} if kind is None else {kind: _torch_untyped}


def _bases() -> list[tuple[Any, Rule]]:
    torch = _ready()
    if torch is None:
        return []
    rules: list[tuple[Any, Rule]] = [(torch.Tensor, _tensor), (torch.Generator, _torch_generator)]
    typed = getattr(torch.storage, "TypedStorage", None) or getattr(torch.storage, "_TypedStorage", None)
    if typed is not None:
        rules.append((typed, _torch_typed))
    optimizer = getattr(getattr(torch, "optim", None), "Optimizer", None)
    if optimizer is not None:
        rules.append((optimizer, _optimizer))
    return rules


def _marked(t: Any) -> Any:
    """A tensor by its content: torch pickles it with addresses."""
    import torch

    if t.layout != torch.strided or t.is_quantized or t.device.type == "meta":
        return t.__reduce_ex__(5)
    plain = t.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    raw = (torch.view_as_real(plain).reshape(-1) if plain.is_complex() else plain).view(torch.uint8)
    step = 1 if t.device.type == "cpu" else max(1, len(raw) // _OF_DEVICE)
    content = raw[::step].cpu().numpy()
    return type(t), (str(t.dtype), str(t.device), tuple(t.shape), t.requires_grad, content)


#: About the most bytes that a mark reads of a tensor on a device, evenly spaced.
_OF_DEVICE = 1 << 20


def _marks() -> list[tuple[Any, Callable[[Any], Any]]]:
    torch = _ready()
    return [] if torch is None else [(torch.Tensor, _marked)]


def _harmless() -> set[type]:
    torch: Any = sys.modules["torch"]
    return {torch.dtype, torch.device, torch.layout, torch.Size}


#: Tables of hooks for all modules and optimizers: a handle removes its hook from the very table.
_TABLES = {
    "torch.nn.modules.module": (
        "_global_backward_hooks",
        "_global_backward_pre_hooks",
        "_global_forward_hooks",
        "_global_forward_hooks_always_called",
        "_global_forward_hooks_with_kwargs",
        "_global_forward_pre_hooks",
        "_global_buffer_registration_hooks",
        "_global_module_registration_hooks",
        "_global_parameter_registration_hooks",
    ),
    "torch.optim.optimizer": ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"),
}

ADAPTER = Adapter(
    modules=("torch", "torch.nn"),
    singles=tuple((module, name) for module, names in _TABLES.items() for name in names),
    exact=_exact,
    bases=_bases,
    harmless=_harmless,
    marks=_marks,
    sections={"torch": Section(_torch, _set_torch, soon=True, again=True, draws=True)},
    threads=("torch._inductor", "torch.utils.data"),
    workers=("torch.utils.data.dataloader",),
)
