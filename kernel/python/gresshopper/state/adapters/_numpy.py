"""numpy: arrays with their memory, random generators, and how arrays are shown.

An array is written over the root array with the memory: views stay views.
"""

from __future__ import annotations

import array
import ctypes
import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gresshopper import typenames

from .. import contexts, native, recipes
from ..lost import Lost
from ..session import NotHereError
from ..writing import INBAND, Writing
from . import Adapter, Rule, Section
from ._shared import bytes_storage, data_of, extent_of, find_root, is_dense, is_writeable, storage_nbytes, storage_of

# --- writing ---


def _ndarray(dump: Writing, a: Any) -> Any:
    import numpy as np

    t = type(a)
    dump.seen.add(t)
    if t is np.memmap:
        return _memmap(dump, a)
    if isinstance(a, np.ma.MaskedArray):
        if t is not np.ma.MaskedArray:
            return NotImplemented
        return np_masked, (a.data.view(np.ndarray), a._mask, a._fill_value, a._hardmask, a._sharedmask)
    if t is not np.ndarray:
        if t is np.matrix or t is np.recarray or t.__reduce__ is np.ndarray.__reduce__:
            if type(a.base) is t:
                dump.notes.append("what the view of an array of a subclass calls its base is a plain array")
            return (
                np_as,
                (a.view(np.ndarray), t),
                dict(a.__dict__) or None,
                None,
                None,
                recipes.attributes,
            )
        return NotImplemented
    if a.dtype.hasobject and a.dtype != object:
        dump.notes.append("a structured array of objects is saved as a copy")
        return NotImplemented
    if id(a) in dump.frames:
        return _np_root(dump, a) if dump.frames[id(a)] is None else _np_foreign(dump, a, dump.frames[id(a)])
    root = a
    while root.base is not None:
        base = root.base
        if not isinstance(base, np.ndarray):
            inner = getattr(base, "base", None)
            if typenames.name_of(type(base)) == "DummyArray" and isinstance(inner, np.ndarray):
                base = inner
            else:
                break
        root = base
        if type(base) is np.memmap and not isinstance(base.base, np.memmap):
            break
    if root is a:
        return _np_root(dump, a) if a.base is None else _np_foreign(dump, a, a.base)
    if type(root) is not np.ndarray and type(root) is not np.memmap:
        root = _frame(dump, root)
    return _np_view(dump, a, root)


def _np_void(dump: Writing, scalar: Any) -> Any:
    """An element of a structured array: a view of the array."""
    import numpy as np

    if not isinstance(scalar.base, np.ndarray) or scalar.dtype.names is None or scalar.dtype.hasobject:
        return NotImplemented
    at = native.address(memoryview(scalar))
    view = np.asarray(DummyArray(at, scalar.dtype.itemsize, scalar.base)).view(scalar.dtype)
    return np_element, (view,)


def _frame(dump: Writing, root: Any) -> Any:
    """A plain array over the whole memory of an array of a subclass; in the stream the plain array takes that
    memory's place."""
    import numpy as np

    made = dump.plain.get(id(root))
    if made is None:
        made = dump.plain[id(root)] = root.view(np.ndarray)
        dump.frames[id(made)] = root.base
    return made


def _np_view(dump: Writing, a: Any, root: Any) -> Any:
    offset = data_of(a) - data_of(root)
    if not (root.flags.c_contiguous or root.flags.f_contiguous) or offset < 0:
        return _np_copy(dump, a, "a view of memory with gaps is saved as a copy")
    return np_view, (root, offset, a.shape, a.strides, a.dtype, is_writeable(a))


def _np_copy(dump: Writing, a: Any, note: str | None) -> Any:
    if note:
        dump.notes.append(note)
    dump.session.room(a.nbytes)
    fresh = a.copy(order="C")
    if a.dtype == object:
        return _np_objects(dump, fresh)
    return _np_own(dump, fresh, is_writeable(a))


def _np_root(dump: Writing, a: Any) -> Any:
    if a.dtype == object:
        return _np_objects(dump, a)
    if id(a) not in dump.detached:
        over = find_root(dump, data_of(a), a.nbytes)
        if over is not None:
            return _np_over_root(dump, a, over)
    return _np_own(dump, a, is_writeable(a))


def _np_own(dump: Writing, a: Any, writeable: bool) -> Any:
    nbytes = a.nbytes
    dense = a.flags.c_contiguous or a.flags.f_contiguous
    if not dense and not is_dense(a):
        return _np_copy(dump, a, None)
    address = data_of(a)
    if nbytes and id(a) not in dump.detached:
        dump.ranges.append((address, address + nbytes))
        dump.roots.add(address, address + nbytes, a)
    if nbytes < INBAND and dense:
        order = "C" if a.flags.c_contiguous else "F"
        return np_small, (a.tobytes(order), a.dtype, a.shape, order, writeable)
    index = dump.add_buffer(address, nbytes, a)
    return np_root, (index, nbytes, a.dtype, a.shape, a.strides, writeable)


def _np_objects(dump: Writing, a: Any) -> Any:
    dense = a.flags.c_contiguous or a.flags.f_contiguous
    if not dense:
        return _np_copy(dump, a, None)
    order = "C" if a.flags.c_contiguous else "F"
    flat = a.reshape(-1) if order == "C" else a.T.reshape(-1)
    items: Any
    if a.size >= ATOMS:
        dump.session.expect(a.size * ELEMENT)
    if a.size >= ATOMS and (dump.session.unchanged(data_of(a), a.nbytes) or native.all_atoms(data_of(a), a.size)):
        items = dump.add_buffer(data_of(a), a.nbytes, a, flat)
    else:
        items = flat.tolist()
    state = (items, is_writeable(a))
    return np_objects, (a.shape, order), state, None, None, set_np_objects


def _foreign_owner(dump: Writing, base: Any) -> Any | None:
    while isinstance(base, memoryview):
        base = base.obj
    owns = (bytes, bytearray, array.array, ctypes.Array)
    return base if isinstance(base, owns) else None


def _np_foreign(dump: Writing, a: Any, base: Any) -> Any:
    """An array over memory of something that isn't an array."""
    owner = _foreign_owner(dump, base)
    if owner is not None and a.dtype != object:
        offset = data_of(a) - native.address(memoryview(owner))
        return np_over, (owner, offset, a.shape, a.strides, a.dtype, is_writeable(a))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(base, torch.Tensor) and base.device.type == "cpu":
        storage = storage_of(dump, base)
        offset = data_of(a) - storage.data_ptr()
        return np_of_tensor, (storage, offset, a.shape, a.strides, a.dtype)
    if a.dtype == object:
        return _np_objects(dump, a)
    over = find_root(dump, *extent_of(a))
    if over is not None:
        return _np_over_root(dump, a, over)
    if not (a.flags.c_contiguous or a.flags.f_contiguous):
        return _np_copy(dump, a, "a view of foreign memory is saved as a copy")
    return _np_own(dump, a, is_writeable(a))


def _np_over_root(dump: Writing, a: Any, over: Any) -> Any:
    if typenames.module_of(type(over)).startswith("torch"):
        return np_of_tensor, (over, data_of(a) - over.data_ptr(), a.shape, a.strides, a.dtype)
    return np_view, (
        over,
        data_of(a) - data_of(over),
        a.shape,
        a.strides,
        a.dtype,
        is_writeable(a),
    )


def _memmap(dump: Writing, a: Any) -> Any:
    import numpy as np

    if a.base is not None and isinstance(a.base, np.memmap):
        root = a.base
        while isinstance(root.base, np.memmap):
            root = root.base
        return np_as, (recipes_view(dump, a, root), np.memmap)
    path = getattr(a, "filename", None)
    if path is None or not (a.flags.c_contiguous or a.flags.f_contiguous):
        return dump.lose(a, "a memory map without a file")
    address = data_of(a)
    if a.nbytes:
        dump.ranges.append((address, address + a.nbytes))
    index = dump.add_buffer(address, a.nbytes, a)
    order = "C" if a.flags.c_contiguous else "F"
    return np_memmap, (os.fspath(path), a.dtype, a.mode, a.offset, a.shape, order, index, a.nbytes)


def _npz(dump: Writing, archive: Any) -> Any:
    own = getattr(archive, "fid", None)
    held = own if own is not None else getattr(getattr(archive, "zip", None), "fp", None)
    if held is None:
        return dump.lose(archive, "it was closed")
    limits = {"max_header_size": archive.max_header_size} if hasattr(archive, "max_header_size") else {}
    how = (bool(archive.allow_pickle), archive.pickle_kwargs, limits)
    return np_npz_over, (type(archive), held, own is not None, *how)


def _np_dtype(dump: Writing, dtype: Any) -> Any:
    """A kind with fields. Its pickling hands out the kind's own table, which would link all arrays of the kind."""
    make, args, state = dtype.__reduce__()
    return make, args, tuple(dict(part) if type(part) is dict else part for part in state)


def _np_generator(dump: Writing, made: Any) -> Any:
    return np_generator, (type(made), made.bit_generator)


def _np_bits(dump: Writing, made: Any) -> Any:
    """A source of random bits with its seed, of which later ones are spawned: numpy before 1.25 leaves the seed out."""
    import numpy as np

    reduced, seed = made.__reduce__(), getattr(made, "_seed_seq", None)
    if type(reduced[2]) is tuple or type(seed) is not np.random.SeedSequence:
        return reduced
    return np_bits, (type(made), seed), made.state, None, None, set_np_bits


def _np_random_state(dump: Writing, made: Any) -> Any:
    legacy = made.get_state(legacy=False)
    drawn = {k: legacy[k] for k in ("has_gauss", "gauss")}
    return (
        np_random_state,
        (type(made), made._bit_generator),
        drawn,
        None,
        None,
        set_np_random_state,
    )


def recipes_view(pickler: Writing, a: Any, root: Any) -> Any:
    """A plain view of memory-mapped memory, to be written as a view of the map."""
    import numpy as np

    return a.view(np.ndarray) if a is not root else a


class DummyArray:
    """Bytes of an array's memory, as numpy makes them under the same name for views that it can't make otherwise."""

    def __init__(self, at: int, nbytes: int, base: Any) -> None:
        self.__array_interface__ = {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (at, False)}
        self.base = base


#: Arrays of objects with at least this many elements, all immutable, are written apart and tracked by their pointers.
ATOMS = 4096

#: Seconds, roughly, for a look at an element of such an array.
ELEMENT = 2e-8

# --- loading ---


@recipes.recipe
def np_root(
    index: int, nbytes: int, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...], writeable: bool
) -> Any:
    """An array with memory of its own, or on a private map of the store."""
    import numpy as np

    source = recipes.current()
    held = source.mapped(index)
    mapped = None if held is None else np.asarray(held)
    c_order = strides == _c_strides(shape, dtype.itemsize)
    f_order = not c_order and strides == _c_strides(shape[::-1], dtype.itemsize)[::-1]
    if mapped is not None:
        made = np.ndarray(shape, dtype, buffer=mapped, strides=strides)
    elif c_order or f_order:
        made = np.empty(shape, dtype, order="C" if c_order else "F")
        if made.nbytes:
            source.fill(index, _flat(made))
    else:
        raw = np.empty(nbytes, np.uint8)
        source.fill(index, memoryview(raw))
        made = np.ndarray(shape, dtype, buffer=raw, strides=strides)
    if not writeable:
        made.flags.writeable = False
    return made


def _c_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    strides: list[int] = []
    step = itemsize
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def _flat(array: Any) -> memoryview:
    """All bytes of a contiguous array, whatever its dtype, without a copy."""
    import numpy as np

    flat = array if array.flags.c_contiguous else array.T
    return memoryview(flat.reshape(-1).view(np.uint8)) if array.nbytes else memoryview(b"")


@recipes.recipe
def np_generator(cls: Any, bits: Any) -> Any:
    """A generator over its source of bits; other generators may share the source."""
    return cls(bits)


@recipes.recipe
def np_random_state(cls: Any, bits: Any) -> Any:
    """A `RandomState` over its source of bits."""
    return cls(bits)


@recipes.recipe
def set_np_random_state(made: Any, drawn: dict[str, Any]) -> None:
    """The second of two normal numbers, if it was drawn with the first."""
    made.set_state({**made.get_state(legacy=False), **drawn})


@recipes.recipe
def np_small(data: bytes, dtype: Any, shape: tuple[int, ...], order: str, writeable: bool) -> Any:
    """A small array that owns its memory."""
    import numpy as np

    made = np.ndarray(shape, dtype, buffer=data, order=order).copy(order=order)
    if not writeable:
        made.flags.writeable = False
    return made


@recipes.recipe
def np_objects(shape: tuple[int, ...], order: str) -> Any:
    """An array of objects, still empty."""
    import numpy as np

    return np.empty(shape, object, order=order)


#: Number of elements from which setting them together pays.
_MANY = 16


def _objects(items: list[Any]) -> Any:
    """A list as an array of objects, with each item as one element."""
    import numpy as np

    try:
        return np.fromiter(items, object, len(items))
    except ValueError:  # before numpy 1.23
        made = np.empty(len(items), object)
        for i, item in enumerate(items):
            made[i] = item
        return made


@recipes.recipe
def set_np_objects(made: Any, state: tuple[Any, bool]) -> None:
    """The elements of an array of objects: a list, or the number of the buffer that holds them."""
    items, writeable = state
    if isinstance(items, int):
        items = recipes.current().items(items)
    flat = made.reshape(-1) if made.flags.c_contiguous else made.T.reshape(-1)
    if len(items) < _MANY:
        for i, item in enumerate(items):
            flat[i] = item
    else:
        flat[:] = _objects(items)
    made.flags.writeable = writeable


@recipes.recipe
def np_view(
    root: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, writeable: bool
) -> Any:
    """A view into the memory of `root`, `offset` bytes from its start."""
    import numpy as np

    if dtype.hasobject:
        flat = root.reshape(-1) if root.flags.c_contiguous else root.T.reshape(-1)
        made = np.lib.stride_tricks.as_strided(flat[offset // dtype.itemsize :], shape, strides)
    else:
        # A read-only root may have writeable views (made before the lock): open the root for a moment.
        locked = not root.flags.writeable
        if locked and writeable:
            root.flags.writeable = True
        flat = root if root.flags.c_contiguous else root.T
        made = np.ndarray(shape, dtype, buffer=flat.reshape(-1).view(np.uint8), offset=offset, strides=strides)
        if locked and writeable:
            root.flags.writeable = False
    if not writeable:
        made.flags.writeable = False
    return made


@recipes.recipe
def np_element(view: Any) -> Any:
    """An element of a structured array, over a view of it alone."""
    return view[0]


@recipes.recipe
def np_over(
    obj: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, writeable: bool
) -> Any:
    """An array over the memory of something that isn't an array."""
    import numpy as np

    made = np.ndarray(shape, dtype, buffer=obj, offset=offset, strides=strides)
    if not writeable:
        made.flags.writeable = False
    return made


@recipes.recipe
def np_as(plain: Any, cls: type) -> Any:
    """An array as a subclass, over the same memory."""
    return plain.view(cls)


@recipes.recipe
def np_masked(data: Any, mask: Any, fill_value: Any, hard: bool, shared: bool) -> Any:
    """A masked array over its data and mask."""
    import numpy as np

    made = np.ma.MaskedArray(data, mask=mask, copy=False, keep_mask=False, fill_value=fill_value, hard_mask=hard)
    made._sharedmask = shared
    return made


@recipes.recipe
def np_bits(cls: Any, seed: Any) -> Any:
    """A source of random bits of a seed."""
    return cls(seed)


@recipes.recipe
def set_np_bits(made: Any, state: Any) -> None:
    """How far it is."""
    made.state = state


@recipes.recipe
def np_memmap(
    path: str, dtype: Any, mode: str, offset: int, shape: tuple[int, ...], order: str, index: int, nbytes: int
) -> Any:
    """A memory-mapped file, if the content is unchanged; else an array of that content."""
    import numpy as np

    kept = np.empty(shape, dtype, order=order)
    recipes.current().fill(index, _flat(kept))
    try:
        made = np.memmap(
            path, dtype=dtype, mode="r+" if mode == "w+" else mode, offset=offset, shape=shape, order=order
        )
        made.mode = mode
        if bytes(_flat(np.asarray(made))) == bytes(_flat(kept)):
            return made
        if mode == "c":
            made[...] = kept
            return made
        why = "its content was changed since"
    except (OSError, ValueError) as e:
        why = str(e)
    recipes.current().notice(f"the memory map of {path} became an array in memory: {why}")
    return kept


@recipes.recipe
def np_of_tensor(storage: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
    """An array that shares memory with a tensor."""
    import numpy as np
    import torch

    raw = torch.empty(0, dtype=torch.uint8)
    raw.set_(bytes_storage(storage), 0, (storage_nbytes(storage),), (1,))
    return np.ndarray(shape, dtype, buffer=raw.numpy(), offset=offset, strides=strides)


@recipes.recipe
def np_npz_over(
    cls: Any, held: Any, own: bool, allow_pickle: bool, pickle_kwargs: Any, limits: dict[str, Any]
) -> Any:
    """An `.npz` archive over its file."""
    if isinstance(held, Lost):
        return held
    return cls(held, own_fid=own, allow_pickle=allow_pickle, pickle_kwargs=pickle_kwargs, **limits)


# --- the process ---


def _numpy() -> Any:
    np = sys.modules["numpy"]
    found = {
        "random": _numpy_random(np),
        "print": np.get_printoptions(),
        "err": np.geterr(),
        "buffer": np.getbufsize(),
    }
    hidden = np.ma.masked_print_option
    found["masked"] = str(hidden.display()), bool(hidden.enabled())
    call = np.geterrcall()
    if call is not None:
        found["call"] = call
    if hasattr(np, "set_string_function") and not _is_plain(np):
        with np.printoptions(legacy=False, formatter=None):  # these change it, too
            if not _is_plain(np):
                found["shown"] = True
    return found


def _is_plain(np: Any) -> bool:
    return bool(repr(np.bool_(0).reshape(1)) == "array([False])")


def _numpy_random(np: Any) -> Any:
    """The state of numpy's global generator; its seed alone, while nothing was drawn."""
    state = np.random.get_state()
    made_of = getattr(getattr(np.random.mtrand._rand, "_bit_generator", None), "_seed_seq", None)
    entropy = getattr(made_of, "entropy", None)
    if isinstance(entropy, int) and isinstance(state, tuple) and _same_state(_numpy_made_of(np, entropy), state):
        return {"entropy": entropy}
    return state


@functools.lru_cache(maxsize=2)
def _numpy_made_of(np: Any, entropy: int) -> Any:
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence(entropy))).get_state()


def _same_state(one: Any, other: Any) -> bool:
    return bool(one[0] == other[0] and one[2:] == other[2:] and one[1].tobytes() == other[1].tobytes())


def _set_numpy(state: Any) -> None:
    import numpy as np

    drawn = state["random"]
    made_of = drawn.get("entropy") if isinstance(drawn, dict) else None
    np.random.set_state(drawn if made_of is None else _numpy_made_of(np, made_of))
    _set_numpy_modes(state)
    if "masked" in state:
        np.ma.masked_print_option.set_display(state["masked"][0])
        np.ma.masked_print_option.enable(state["masked"][1])
    if state.get("shown"):
        raise NotHereError("numpy.set_string_function: the notebook set this, run its cell again")


def _set_numpy_modes(state: Any) -> None:
    import numpy as np

    np.set_printoptions(**state["print"])
    np.seterr(**state["err"])
    if state.get("buffer", np.getbufsize()) != np.getbufsize():
        np.setbufsize(state["buffer"])
    if "call" in state:
        np.seterrcall(state["call"])


#: The part of numpy's section that newer releases keep for each context.
_MODES = ("print", "err", "call", "buffer")


def _exact() -> dict[type, Rule]:
    np: Any = sys.modules["numpy"]
    if not hasattr(np, "ndarray") or not hasattr(np, "ma"):  # half imported
        return {}
    rules: dict[type, Rule] = {np.ndarray: _ndarray, np.void: _np_void, np.record: _np_void}
    void = type(np.dtype("V1"))
    if void is not np.dtype:  # each kind has a type of its own
        rules[void] = _np_dtype
    generators: Any = sys.modules.get("numpy.random")
    if generators is not None and hasattr(generators, "Generator"):
        rules[generators.Generator] = _np_generator
        rules[generators.RandomState] = _np_random_state
    return rules


def _bases() -> list[tuple[Any, Rule]]:
    np: Any = sys.modules["numpy"]
    if not hasattr(np, "ndarray") or not hasattr(np, "ma"):
        return []
    rules: list[tuple[Any, Rule]] = [(np.ndarray, _ndarray)]
    npyio: Any = sys.modules.get("numpy.lib.npyio")
    if npyio is not None and hasattr(npyio, "NpzFile"):
        rules.append((npyio.NpzFile, _npz))
    bits = getattr(sys.modules.get("numpy.random"), "BitGenerator", None)
    if bits is not None:
        rules.append((bits, _np_bits))
    return rules


def _harmless() -> set[type]:
    np: Any = sys.modules["numpy"]
    found: set[type] = {np.ufunc, np.dtype}
    for part in vars(np).values():
        if isinstance(part, type) and (issubclass(part, np.generic) or issubclass(part, np.dtype)):
            found.add(part)
    found.update(np.dtype(c).__class__ for c in np.typecodes["All"])
    return found


def _export_array(array: Any, target: Path) -> Path | None:
    if array.dtype.hasobject:
        return None
    file = target.with_name(f"{target.name}.npy")
    sys.modules["numpy"].save(file, array, allow_pickle=False)
    return file


ADAPTER = Adapter(
    modules=("numpy", "numpy.ma", "numpy.random", "numpy.lib.npyio"),
    exact=_exact,
    bases=_bases,
    harmless=_harmless,
    exports={"numpy.ndarray": _export_array},
    works_on={"numpy.flatiter": "base", "numpy.nditer": "operands", "numpy.broadcast": "iters"},
    singles=(("numpy.random.mtrand", "_rand"), ("numpy.random.mtrand", "_rand._bit_generator")),
    sections={
        "numpy": Section(
            functools.partial(contexts.read, "numpy", _numpy),
            _set_numpy,
            soon=True,
            in_context=_set_numpy_modes,
            modes=_MODES,
            again=True,
            draws=True,
        )
    },
)
