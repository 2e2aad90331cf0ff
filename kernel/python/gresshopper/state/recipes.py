"""Functions called by the streams of a saved state while loading.

Every function here is part of the saved form: its name and arguments are kept for as long as the form's version is.
`pickling` writes calls of them.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import importlib
import io
import itertools
import os
import sys
import threading
import types
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NewType, Protocol, TypeVar

from .lost import Lost, LostError, stands_still


class Source(Protocol):
    """Source of a stream's numbered buffers and classes while it is loaded."""

    @property
    def namespace(self) -> dict[str, Any]: ...
    def nbytes(self, index: int) -> int: ...
    def fill(self, index: int, into: memoryview) -> None: ...
    def mapped(self, index: int) -> Any | None: ...
    def items(self, index: int) -> list[Any]: ...
    def class_of(self, cid: str) -> type: ...
    def notice(self, text: str) -> None: ...


_local = threading.local()
# A stream may be loaded on a separate thread (deep nesting), and the source then goes to that thread.


def loading(source: Source | None) -> Source | None:
    """Make `source` this thread's source for recipes; returns the former source."""
    before: Source | None = getattr(_local, "source", None)
    _local.source = source
    stands_still(source is not None)
    return before


def _source() -> Source:
    source: Source | None = getattr(_local, "source", None)
    if source is None:
        raise LostError("a stream of a saved state is only readable through gresshopper.state")
    return source


# --- names, functions, classes ---------------------------------------------------------------------------------------


def namespace() -> dict[str, Any]:
    """The live namespace."""
    return _source().namespace


def function(
    code: types.CodeType, name: str, in_namespace: bool, foreign: dict[str, Any] | None, cells: tuple[Any, ...] | None
) -> types.FunctionType:
    """A function without its defaults and attributes, bound to the live namespace."""
    scope = namespace() if in_namespace else (foreign if foreign is not None else {"__builtins__": builtins})
    return types.FunctionType(code, scope, name, None, cells)


def set_function(made: types.FunctionType, state: dict[str, Any]) -> None:
    """Defaults, attributes and names of a function."""
    made.__dict__.update(state["dict"])
    for key in ("defaults", "kwdefaults", "doc", "module", "qualname", "annotations"):
        value = state.get(key)
        if value is not None or key in ("defaults", "doc"):
            setattr(made, f"__{key}__", value)
    if state.get("type_params"):
        setattr(made, "__type_params__", state["type_params"])  # noqa: B010 - Python 3.12 and later


def foreign_globals(marker: str) -> dict[str, Any]:
    """A namespace of functions that belongs to no importable module."""
    return {"__builtins__": builtins, "__name__": marker}


def cell() -> Any:
    """An empty closure cell."""
    return types.CellType()


def set_cell(made: Any, content: tuple[Any, ...]) -> None:
    """The content of a closure cell, or none."""
    if content:
        made.cell_contents = content[0]


def class_of(cid: str) -> type:
    """A class of the notebook, by its stable id."""
    return _source().class_of(cid)


def cached(wrapped: Any, maxsize: int | None, typed: bool) -> Any:
    """A function under `functools.lru_cache`, its cache empty."""
    import functools

    return functools.lru_cache(maxsize=maxsize, typed=typed)(wrapped)


def attributes(made: Any, state: Mapping[str, Any]) -> None:
    """Set instance attributes without the object's own `__setattr__`."""
    made.__dict__.update(state)


def set_shared(made: Any, state: tuple[dict[str, Any], dict[str, Any] | None]) -> None:
    """Sets an instance's very attribute dictionary, with other holders besides, and its slots."""
    object.__setattr__(made, "__dict__", state[0])
    for name, value in (state[1] or {}).items():
        object.__setattr__(made, name, value)


def bare(cls: Any, *args: Any) -> Any:
    """An instance, made by its first base not written in Python."""
    base = next(
        b for b in cls.__mro__ if "__new__" in vars(b) and isinstance(vars(b)["__new__"], types.BuiltinFunctionType)
    )
    return base.__new__(cls, *args)


def new_module(name: str) -> types.ModuleType:
    """A module of the notebook, which no file holds."""
    return types.ModuleType(name)


def set_module(made: types.ModuleType, state: tuple[dict[str, Any], bool]) -> None:
    """Sets a module's content. Code that ran in the module had the built-in names."""
    made.__dict__.update(state[0])
    if state[1]:
        made.__dict__["__builtins__"] = builtins.__dict__


def module_scope(made: types.ModuleType) -> dict[str, Any]:
    """The namespace of a module, as seen by its functions."""
    return made.__dict__


def suppressed(made: Any, state: tuple[dict[str, Any], list[str]]) -> None:
    """A part of an `argparse` parser, with attributes that are the very marker `argparse.SUPPRESS`."""
    import argparse

    made.__dict__.update(state[0])
    for name in state[1]:
        made.__dict__[name] = argparse.SUPPRESS


def new_type(name: str, supertype: Any, qualname: str) -> Any:
    """A `typing.NewType` of the notebook."""
    make: Any = NewType
    made = make(name, supertype)
    made.__module__, made.__qualname__ = "__main__", qualname
    return made


def module_value(module: str, path: str) -> Any:
    """A module's value under a dotted path."""
    value: Any = importlib.import_module(module)
    for part in path.split("."):
        value = getattr(value, part)
    return value


def type_variable(name: str, constraints: tuple[Any, ...], bound: Any) -> Any:
    """A type parameter of a generic function or class (Python 3.12)."""
    made: Any = TypeVar
    return made(name, *constraints, bound=bound, infer_variance=True)


def enum_member(cls: Any, key: Any) -> Any:
    """A member of an enumeration, by name, or by value for a combination of flags."""
    return cls[key] if isinstance(key, str) and key in cls.__members__ else cls(key)


def set_enum(made: Any, state: tuple[Any, Any, dict[str, dict[str, Any]], dict[str, Any] | None]) -> None:
    """The rest of an enumeration: attributes of the class and of its members, and the members' values if chosen by the
    class."""
    attrs, set_class, held, values = state
    set_class(made, attrs)
    for name, own in held.items():
        member = made._member_map_[name]
        member.__dict__.update(own)
        if values is not None:
            member._value_ = values[name]
    if values is not None:
        made._value2member_map_.clear()
        for name in made._member_names_:
            with contextlib.suppress(TypeError):  # not hashable: then it is looked for among all
                made._value2member_map_[values[name]] = made._member_map_[name]


class _Shell:
    """Found by streams that refer to IPython's shell."""

    def __call__(self) -> Any:
        from IPython.core.getipython import get_ipython

        return get_ipython()


def __getattr__(name: str) -> Any:
    if name == "SHELL":
        return _Shell()()
    raise AttributeError(name)


def set_order(made: set[Any], items: list[Any], filling: list[int], size: int) -> None:
    """The iteration order of a set: items in the order of insertion. With a `size`, the keys go into a table of that
    size, beside others that are removed again.
    """
    made.clear()
    if not size:
        for item in items:
            made.add(item)
        return
    going_in = [*filling, *items]
    first = going_in[: size // 2 - 1]
    # An update from a dictionary first enlarges the table for all of it; mere fillers come last.
    rest = [object() for _ in range(size // 4 - len(first))]
    made.update(dict.fromkeys([*first, *rest]))
    for item in going_in[len(first) :]:
        made.add(item)
    for item in (*rest, *filling):
        made.discard(item)  # one by one: `difference_update` would build the table anew


# --- the standard library --------------------------------------------------------------------------------------------


def lock() -> Any:
    """An unlocked lock."""
    return threading.Lock()


def rlock() -> Any:
    """An unlocked re-entrant lock."""
    return threading.RLock()


def weak_ref(target: Any) -> Any:
    """A weak reference."""
    return weakref.ref(target)


def dead_ref() -> Any:
    """A weak reference whose target is gone."""

    class _Gone:
        pass

    return weakref.ref(_Gone())


def weak_dict(cls: type, pairs: list[tuple[Any, Any]]) -> Any:
    """A `WeakValueDictionary` or `WeakKeyDictionary`."""
    return cls(pairs)


def weak_set(cls: type, members: list[Any]) -> Any:
    """A `WeakSet`."""
    return cls(members)


def exception(cls: Any, args: tuple[Any, ...]) -> Any:
    """An exception, without its own `__init__`."""
    return cls.__new__(cls, *args)


def set_exception(made: BaseException, state: tuple[Any, Any, Any, Any, Any]) -> None:
    """Arguments, attributes and causes of an exception."""
    args, attrs, cause, context, suppress = state
    made.args = args
    made.__dict__.update(attrs)
    made.__cause__, made.__context__, made.__suppress_context__ = cause, context, suppress


def set_linked_exception(made: BaseException, state: tuple[Any, Any, Any, Any]) -> None:
    """Attributes and causes of an exception."""
    attrs, made.__cause__, made.__context__, made.__suppress_context__ = state
    if attrs:
        made.__setstate__(attrs)


def set_figure(made: Any, state: tuple[Any, Any]) -> None:
    """A figure's state, under its former number if free."""
    from matplotlib._pylab_helpers import Gcf

    made.__setstate__(state[0])
    manager = getattr(made.canvas, "manager", None)
    if manager is None or manager.num == state[1] or state[1] in Gcf.figs:
        return
    if Gcf.figs.get(manager.num) is manager:
        del Gcf.figs[manager.num]
    manager.num = state[1]
    Gcf.figs[state[1]] = manager
    vars(made)["_number" if "_number" in vars(made) else "number"] = state[1]


def set_plot_args(made: Any, state: tuple[dict[str, Any], list[Any], int]) -> None:
    """An axes' colour cycle, at its position."""
    attrs, items, taken = state
    made.__dict__.update(attrs)
    made.prop_cycler = itertools.cycle(items)
    for _ in range(taken):
        next(made.prop_cycler)


def no_region() -> None:
    """A canvas's stored pixels; the next drawing stores them again."""


def set_traits(made: Any, state: tuple[Any, dict[str, Any]]) -> None:
    """An object with traits, and what observes them."""
    made.__setstate__(state[0])
    for name, by_type in state[1].items():
        for kind, handlers in by_type.items():
            there = made._trait_notifiers.setdefault(name, {}).setdefault(kind, [])
            there.extend(handler for handler in handlers if handler not in there)


def std_stream(name: str) -> Any:
    """`sys.stdout` and its like."""
    return getattr(sys, name)


def reopen(
    path: str,
    mode: str,
    text: tuple[Any, ...] | None,
    offset: int,
    found: tuple[int, int, int],
    name: Any = None,
) -> Any:
    """A file open for reading, at its position, if the file is unchanged. `name`: the file's name at its opening."""
    try:
        now = os.stat(path)
    except OSError as e:
        return _lost(f"the open file {path}", f"it can't be opened again ({e.strerror})")
    if (now.st_size, now.st_mtime_ns) != found[1:]:
        return _lost(f"the open file {path}", "the file was changed or replaced since")
    return _opened(path, path if name is None else name, mode, text, offset)


def reopen_copy(name: Any, mode: str, text: tuple[Any, ...] | None, offset: int, content: Any) -> Any:
    """A copy of a file that was open for reading and is nowhere else, at its place: a file without a path."""
    made = os.memfd_create("removed")
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(made, left) :]
        return _opened(f"/proc/self/fd/{made}", name, mode, text, offset)
    finally:
        os.close(made)


def _opened(path: str, name: Any, mode: str, text: tuple[Any, ...] | None, offset: int) -> Any:
    raw = io.FileIO(path)
    raw.name = name
    handle: Any = raw if mode == "raw" else io.BufferedReader(raw)
    if text is not None:
        handle = io.TextIOWrapper(handle, text[0], text[1], text[3] if len(text) > 3 else None, text[2])
        handle.mode = mode
    handle.seek(offset)
    return handle


def closed_file(name: Any, mode: str, raw: str | None, text: tuple[Any, ...] | None) -> Any:
    """A closed file, with its answers. `raw`: the mode of the file below a buffer."""
    below = raw or mode
    handle: Any = io.FileIO(os.memfd_create("closed"), below.replace("b", ""))
    handle.name = name
    if raw is not None:
        read = io.BufferedReader if below.startswith("r") else io.BufferedWriter
        handle = (io.BufferedRandom if "+" in below else read)(handle)
    if text is not None:
        encoding, errors, line_buffering, write_through, newlines = text
        ends = (newlines,) if isinstance(newlines, str) else newlines or ()
        if ends:
            os.pwrite(handle.fileno(), "".join([*(f"x{end}" for end in ends), "x"]).encode(encoding), 0)
        handle = io.TextIOWrapper(handle, encoding, errors, None, line_buffering, write_through)
        if ends:
            handle.read()
        handle.mode = mode
    handle.close()
    return handle


def _lost(what: str, why: str) -> Lost:
    _source().notice(f"{what} is gone: {why}")
    return Lost(what, why)


class _Empty:
    """A sequence of the older kind, without items."""

    def __getitem__(self, index: int) -> Any:
        raise IndexError


def _group() -> Any:
    groups = itertools.groupby([0, 1])
    first = next(groups)[1]
    next(groups)
    return first


_FORWARD = {"dict_keyiterator": dict.keys, "dict_valueiterator": dict.values, "dict_itemiterator": dict.items}
#: Iterators over a dictionary, by the names of their types: the objects of the iteration, and whether backwards.
DICT_ITERATORS: dict[str, tuple[Any, bool]] = {
    **{kind: (view, False) for kind, view in _FORWARD.items()},
    **{kind.replace("_", "_reverse"): (view, True) for kind, view in _FORWARD.items()},
}
#: What makes iterators that end at once.
_ENDING: tuple[Callable[[], Any], ...] = (
    lambda: iter({}),
    lambda: iter({}.values()),
    lambda: iter({}.items()),
    lambda: reversed({}),
    lambda: reversed({}.values()),
    lambda: reversed({}.items()),
    lambda: iter(collections.OrderedDict()),
    lambda: iter(set()),
    lambda: iter(int, 0),
    lambda: iter(_Empty()),
    lambda: iter(b""),
    lambda: iter(bytearray()),
    lambda: iter("\u2026"),
    lambda: iter(""),
    lambda: reversed([]),
    _group,
)
#: The same by the names of their types.
SPENT = {type(make()).__name__: make for make in _ENDING}


def spent(kind: str) -> Any:
    """An iterator that has nothing to give any more."""
    made = SPENT[kind]()
    for _ in made:
        pass
    return made


def dict_iterator(mapping: dict[Any, Any], kind: str, taken: int, size: int) -> Any:
    """A partly consumed iterator over a dictionary."""
    if dict.__len__(mapping) != size:
        return _lost(f"a {kind}", "its dictionary holds it, and isn't complete yet when it is made")
    view, backwards = DICT_ITERATORS[kind]
    made = reversed(view(mapping)) if backwards else iter(view(mapping))
    for _ in range(taken):
        next(made)
    return made


def generator(
    function: Any, name: str, qualname: str, positional: tuple[Any, ...], keywords: dict[str, Any]
) -> types.GeneratorType[Any, Any, Any]:
    """A generator that hasn't begun. Calling its function runs nothing of it."""
    made: types.GeneratorType[Any, Any, Any] = function(*positional, **keywords)
    made.__name__, made.__qualname__ = name, qualname
    return made


def ended_generator(code: types.CodeType, name: str, qualname: str) -> types.GeneratorType[Any, Any, Any]:
    """A generator that has nothing to give any more."""
    function = types.FunctionType(code, {}, name, None, tuple(types.CellType() for _ in code.co_freevars))
    split = code.co_argcount
    by_name = dict.fromkeys(code.co_varnames[split : split + code.co_kwonlyargcount])
    made = generator(function, name, qualname, (None,) * split, by_name)
    made.close()
    return made


def dict_view(mapping: Any, kind: str) -> Any:
    """`d.keys()`, `d.values()` or `d.items()`."""
    return getattr(dict, kind)(mapping)


def match(pattern: Any, string: Any, pos: int, endpos: int, how: str) -> Any:
    """A `re.Match`, found again."""
    return getattr(pattern, how)(string, pos, endpos)


def memory(obj: Any, offset: int, nbytes: int, fmt: str, shape: tuple[int, ...], readonly: bool) -> memoryview:
    """A memoryview over `obj`."""
    view: Any = memoryview(obj).cast("B")[offset : offset + nbytes]
    if fmt != "B" or len(shape) != 1:
        view = view.cast(fmt, shape) if len(shape) != 1 else view.cast(fmt)
    made: memoryview = view.toreadonly() if readonly else view
    return made


def blob(index: int) -> Any:
    """A buffer that some library handed out of band."""
    source = _source()
    into = bytearray(source.nbytes(index))
    source.fill(index, memoryview(into))
    return into


def mapping_proxy(mapping: Any) -> Any:
    """A read-only view of a mapping."""
    return types.MappingProxyType(mapping)


def struct_of(fmt: Any) -> Any:
    """A `struct.Struct`."""
    import struct

    return struct.Struct(fmt)


# --- numpy -----------------------------------------------------------------------------------------------------------


def np_root(
    index: int, nbytes: int, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...], writeable: bool
) -> Any:
    """An array with memory of its own, or on a private map of the store."""
    import numpy as np

    source = _source()
    mapped = source.mapped(index)
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


def np_generator(cls: Any, bits: Any) -> Any:
    """A generator over its source of bits; other generators may share the source."""
    return cls(bits)


def np_random_state(cls: Any, bits: Any) -> Any:
    """A `RandomState` over its source of bits."""
    return cls(bits)


def set_np_random_state(made: Any, drawn: dict[str, Any]) -> None:
    """The second of two normal numbers, if it was drawn with the first."""
    made.set_state({**made.get_state(legacy=False), **drawn})


def np_small(data: bytes, dtype: Any, shape: tuple[int, ...], order: str, writeable: bool) -> Any:
    """A small array that owns its memory."""
    import numpy as np

    made = np.ndarray(shape, dtype, buffer=data, order=order).copy(order=order)
    if not writeable:
        made.flags.writeable = False
    return made


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


def set_np_objects(made: Any, state: tuple[Any, bool]) -> None:
    """The elements of an array of objects: a list, or the number of the buffer that holds them."""
    items, writeable = state
    if isinstance(items, int):
        items = _source().items(items)
    flat = made.reshape(-1) if made.flags.c_contiguous else made.T.reshape(-1)
    if len(items) < _MANY:
        for i, item in enumerate(items):
            flat[i] = item
    else:
        flat[:] = _objects(items)
    made.flags.writeable = writeable


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


def np_element(view: Any) -> Any:
    """An element of a structured array, over a view of it alone."""
    return view[0]


def np_over(
    obj: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, writeable: bool
) -> Any:
    """An array over the memory of something that isn't an array."""
    import numpy as np

    made = np.ndarray(shape, dtype, buffer=obj, offset=offset, strides=strides)
    if not writeable:
        made.flags.writeable = False
    return made


def np_as(plain: Any, cls: type) -> Any:
    """An array as a subclass, over the same memory."""
    return plain.view(cls)


def np_masked(data: Any, mask: Any, fill_value: Any, hard: bool, shared: bool) -> Any:
    """A masked array over its data and mask."""
    import numpy as np

    made = np.ma.MaskedArray(data, mask=mask, copy=False, keep_mask=False, fill_value=fill_value, hard_mask=hard)
    made._sharedmask = shared
    return made


def np_memmap(
    path: str, dtype: Any, mode: str, offset: int, shape: tuple[int, ...], order: str, index: int, nbytes: int
) -> Any:
    """A memory-mapped file, if the content is unchanged; else an array of that content."""
    import numpy as np

    kept = np.empty(shape, dtype, order=order)
    _source().fill(index, _flat(kept))
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
    _source().notice(f"the memory map of {path} became an array in memory: {why}")
    return kept


def np_of_tensor(storage: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
    """An array that shares memory with a tensor."""
    import numpy as np
    import torch

    raw = torch.empty(0, dtype=torch.uint8)
    raw.set_(_bytes_storage(storage), 0, (_storage_nbytes(storage),), (1,))
    return np.ndarray(shape, dtype, buffer=raw.numpy(), offset=offset, strides=strides)


def np_npz(path: str, allow_pickle: bool) -> Any:
    """An `.npz` file, opened again (up to version 4 of the form)."""
    import numpy as np

    try:
        return np.load(path, allow_pickle=allow_pickle)
    except OSError as e:
        return _lost(f"the open archive {path}", str(e))


def np_npz_over(
    cls: Any, held: Any, own: bool, allow_pickle: bool, pickle_kwargs: Any, limits: dict[str, Any]
) -> Any:
    """An `.npz` archive over its file."""
    if isinstance(held, Lost):
        return held
    return cls(held, own_fid=own, allow_pickle=allow_pickle, pickle_kwargs=pickle_kwargs, **limits)


# --- pandas ----------------------------------------------------------------------------------------------------------


def pd_index(make: Any, cls: type, state: dict[str, Any]) -> Any:
    """An index in which something was looked up."""
    made = make(cls, state)
    with contextlib.suppress(Exception):  # that makes its table, whatever it finds
        made.get_loc(made[0])
    return made


def pd_refs() -> Any:
    """A fresh count of the frames that share a block."""
    from pandas._libs.internals import BlockValuesRefs

    return BlockValuesRefs()


def pd_manager(cls: Any, axes: list[Any], blocks: list[tuple[Any, Any, int, Any]]) -> Any:
    """A frame's or series' blocks, with the reference counts that copy-on-write asks."""
    from pandas.core.internals.blocks import new_block

    made = []
    for values, placement, ndim, refs in blocks:
        block = new_block(values, _placement(placement), ndim=ndim, refs=refs)
        made.append(block)
    if cls.__name__ == "SingleBlockManager":
        return cls(made[0], axes[0])
    return cls(tuple(made), axes, verify_integrity=False)


def _placement(spec: Any) -> Any:
    from pandas._libs.internals import BlockPlacement

    return BlockPlacement(slice(*spec) if isinstance(spec, tuple) else spec)


# --- torch -----------------------------------------------------------------------------------------------------------


def _bytes_storage(storage: Any) -> Any:
    """The untyped storage, under the name given by this version of torch."""
    return getattr(storage, "_storage", None) or storage


def _storage_nbytes(storage: Any) -> int:
    return int(storage.nbytes())


def _untyped(tensor: Any) -> Any:
    if hasattr(tensor, "untyped_storage"):
        return tensor.untyped_storage()
    typed = tensor.storage()
    return typed._storage if hasattr(typed, "_storage") else typed.untyped()


def torch_storage(index: int, nbytes: int, device: str) -> Any:
    """The memory of tensors."""
    import torch

    source = _source()
    raw = torch.empty(nbytes, dtype=torch.uint8)
    if nbytes:
        source.fill(index, memoryview(raw.numpy()))
    if device != "cpu":
        try:
            raw = raw.to(device)
        except (RuntimeError, AssertionError) as e:
            source.notice(f"a tensor that was on {device} is on the CPU now: {e}")
    return _untyped(raw)


def torch_storage_over(array: Any, offset: int, nbytes: int) -> Any:
    """Memory of tensors in common with an array."""
    import numpy as np
    import torch

    flat = (array if array.flags.c_contiguous else array.T).reshape(-1).view(np.uint8)
    return _untyped(torch.from_numpy(flat[offset : offset + nbytes]))


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
        _source().notice(
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


def torch_lazy(plain: Any, kind: str) -> Any:
    """A tensor that is another's conjugate or negative without being computed; and back."""
    import torch

    negative: Any = torch._neg_view
    return plain.conj() if kind == "conj" else negative(plain)


def torch_generator(device: str, state: Any, default: bool) -> Any:
    """A random generator of torch."""
    import torch

    made = torch.default_generator if default else torch.Generator(device)
    if not default:
        made.set_state(state)
    return made


# --- numba -----------------------------------------------------------------------------------------------------------


def nb_dict(keys: Any, values: Any) -> Any:
    """A typed dictionary of numba, still empty."""
    from numba import typed

    return typed.Dict.empty(keys, values)


def nb_list(items: Any) -> Any:
    """A typed list of numba, still empty."""
    from numba import typed

    return typed.List.empty_list(items)


# --- widgets ---------------------------------------------------------------------------------------------------------


def widget(cls: Any, model_id: str | None) -> Any:
    """A widget, not yet open."""
    return cls.__new__(cls)


def set_composed(made: Any, state: Any) -> None:
    """A composed widget, without its `__init__`, whose work was done."""
    *plain, unsent = state
    base = next(c for c in type(made).__mro__ if "__init__" in vars(c) and c.__module__ in _simple_widgets())
    made._trait_values.update(unsent)
    set_widget(made, tuple(plain), base)
    made._trait_values.update(unsent)  # what the observers of its own traits did is undone


def _simple_widgets() -> set[str]:
    composed = ("ipywidgets.widgets.interaction", "ipywidgets.widgets.widget_templates")
    return {name for name in sys.modules if name.startswith("ipywidgets.widgets.") and name not in composed}


def set_widget(
    made: Any, state: tuple[str | None, dict[str, Any], dict[str, Any], dict[str, Any]], base: Any = None
) -> None:
    """Traits, observers and attributes of a widget, opened under its old model id."""
    model_id, traits, notifiers, attrs = state
    begin = (base or type(made)).__init__
    if model_id is not None:
        begin(made, model_id=model_id, **traits)
    else:
        begin(made, **traits)
    for key, value in attrs.items():
        made.__dict__[key] = value
    for name, by_type in notifiers.items():
        for kind, handlers in by_type.items():
            there = made._trait_notifiers.setdefault(name, {}).setdefault(kind, [])
            there.extend(handler for handler in handlers if handler not in there)


def callbacks(attr: str, owner: Any) -> Callable[..., Any]:
    """A bound method, by name."""
    found: Callable[..., Any] = getattr(owner, attr)
    return found
