"""Functions called by the streams of a saved state while loading.

Every function here is part of the saved form: its name and arguments are kept for as long as the form's version is.
`pickling` writes calls of them. Recipes for objects of a library stand in its adapter, and are found here by name.
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
import typing
import weakref
from collections.abc import Mapping
from typing import Any, Callable, NewType, Protocol, TypeVar

from gresshopper import typenames

from . import adapters, containers, contexts, singles
from .lost import Lost, LostError, stands_still
from .session import MAIN
from .streams import STREAMS


class Source(Protocol):
    """Source of a stream's numbered buffers and classes while it is loaded."""

    @property
    def namespace(self) -> dict[str, Any]: ...
    @property
    def apart(self) -> bool: ...
    def nbytes(self, index: int) -> int: ...
    def fill(self, index: int, into: memoryview) -> None: ...
    def mapped(self, index: int) -> Any | None: ...
    def items(self, index: int) -> list[Any]: ...
    def class_of(self, cid: str) -> type: ...
    def reads(self, code: types.CodeType) -> None: ...
    def notice(self, text: str) -> None: ...


_local = threading.local()
# A stream may be loaded on a separate thread (deep nesting), and the source then goes to that thread.


def loading(source: Source | None) -> Source | None:
    """Make `source` this thread's source for recipes; returns the former source."""
    before: Source | None = getattr(_local, "source", None)
    _local.source = source
    stands_still(source is not None)
    return before


def current() -> Source:
    source: Source | None = getattr(_local, "source", None)
    if source is None:
        raise LostError("a stream of a saved state is only readable through gresshopper.state")
    return source


# --- names, functions, classes ---------------------------------------------------------------------------------------


def namespace() -> dict[str, Any]:
    """The live namespace."""
    return current().namespace


def function(
    code: types.CodeType, name: str, in_namespace: bool, foreign: dict[str, Any] | None, cells: tuple[Any, ...] | None
) -> types.FunctionType:
    """A function without its defaults and attributes, bound to the live namespace."""
    if in_namespace:
        current().reads(code)
    scope = namespace() if in_namespace else (foreign if foreign is not None else {"__builtins__": builtins})
    return types.FunctionType(code, scope, name, None, cells)


def set_function(made: types.FunctionType, state: dict[str, Any]) -> None:
    """Defaults, attributes and names of a function."""
    made.__dict__.update(state["dict"])
    for key in ("defaults", "kwdefaults", "doc", "module", "qualname", "annotations"):
        value = state.get(key)
        if value is not None or key in ("defaults", "doc", "module"):
            setattr(made, f"__{key}__", value)
    if state.get("type_params"):
        setattr(made, "__type_params__", state["type_params"])  # noqa: B010 - Python 3.12 and later


def cell() -> Any:
    """An empty closure cell."""
    return types.CellType()


def set_cell(made: Any, content: tuple[Any, ...]) -> None:
    """The content of a closure cell, or none."""
    if content:
        made.cell_contents = content[0]


def class_of(cid: str) -> type:
    """A class of the notebook, by its stable id."""
    return current().class_of(cid)


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


def set_directly(made: Any, state: tuple[dict[str, Any] | None, dict[str, Any]]) -> None:
    """Sets an instance's attributes and slots without a question to the instance: an answer may need attributes not set
    yet."""
    attrs, slots = state
    if attrs:
        object.__getattribute__(made, "__dict__").update(
            {sys.intern(name) if type(name) is str else name: value for name, value in attrs.items()}
        )
    for name, value in slots.items():
        object.__setattr__(made, name, value)


def set_state(made: Any, attrs: dict[str, Any] | None, slots: dict[str, Any], shared: bool) -> None:
    """Sets attributes and slots of an instance after all that holds it. `shared`: others hold its very dictionary."""
    if shared:
        object.__setattr__(made, "__dict__", attrs)
        attrs = None
    set_directly(made, (attrs, slots))


def bare(cls: Any, *args: Any) -> Any:
    """An instance, made by its first base not written in Python."""
    base = next(
        b for b in cls.__mro__ if "__new__" in vars(b) and isinstance(vars(b)["__new__"], types.BuiltinFunctionType)
    )
    return base.__new__(cls, *args)


def set_contained(made: Any, state: tuple[Any, Any, dict[str, Any], bool, bool]) -> None:
    """Sets attributes and items of an instance of a container's subclass, without a call of its methods."""
    containers.put(made, containers.State(*state))


def based(base: Any, cls: Any, *args: Any) -> Any:
    """An instance of the notebook's class, made by its first base of a library: what the class's own `__init__` did was done."""
    made = base.__new__(cls) if base.__new__ is object.__new__ else base.__new__(cls, *args)
    if base.__init__ is not object.__init__:
        base.__init__(made, *args)
    return made


def set_left_out(made: Any, state: tuple[Any, dict[str, Any]]) -> None:
    """Sets an instance's state as its class does, then the attributes that the class leaves out."""
    own, left = state
    held = object.__getattribute__(made, "__dict__")
    if own is not None and hasattr(type(made), "__setstate__"):
        made.__setstate__(own)
    elif own is not None:
        attrs, slots = own if isinstance(own, tuple) else (own, None)
        held.update(attrs or {})
        for name, value in (slots or {}).items():
            object.__setattr__(made, name, value)
    for name, value in left.items():
        held.setdefault(name, value)


def set_selected(made: Any, state: tuple[dict[str, Any], dict[str, Any], list[str]]) -> None:
    """As `set_left_out`, and tell of attributes that the class leaves out and nothing sets again."""
    selected, left, others = state
    set_left_out(made, (selected, left))
    held = object.__getattribute__(made, "__dict__")
    gone = sorted(name for name in others if name not in held)
    if gone:
        kind = type(made)
        current().notice(f"{typenames.full_name(kind)}'s own pickling loses {', '.join(gone)}")


def set_whole(made: Any, state: tuple[Any, dict[str, Any]]) -> None:
    """As `set_left_out`, but what the class leaves out is as it was, also where the class sets something itself."""
    set_left_out(made, (state[0], {}))
    object.__getattribute__(made, "__dict__").update(state[1])


def made_quietly(make: Any, *given: Any) -> type:
    """A class by cloudpickle, without what the notebook's `__init_subclass__` and metaclass do when one is made: it was done."""
    bases = types.resolve_bases(next(part for part in given if isinstance(part, tuple)))
    own = {b: hook for base in bases for b in base.__mro__ if (hook := own_hook(b)) is not None}
    kind, *rest = given
    if isinstance(kind, type) and is_own_kind(kind):
        given = (lambda *made: _past_own(kind, "__new__")(kind, *made), *rest)
    for base in own:
        type.__setattr__(base, "__init_subclass__", _passing_on(base))
    try:
        made: type = make(*given)
    finally:
        for base, hook in own.items():
            type.__setattr__(base, "__init_subclass__", hook)
    return made


def own_hook(cls: type) -> Any | None:
    """The `__init_subclass__` that a class of the notebook defines."""
    hook = vars(cls).get("__init_subclass__")
    return hook if isinstance(hook, classmethod) and _is_own(hook.__func__) else None


def is_own_kind(kind: type) -> bool:
    """Whether a metaclass does something of the notebook's when a class is made."""
    made_by = (vars(k).get(name) for k in kind.__mro__ for name in ("__new__", "__init__", "__call__"))
    return any(_is_own(getattr(way, "__func__", way)) for way in made_by)


def _is_own(function: Any) -> bool:
    return isinstance(function, types.FunctionType) and typenames.home_of(function) == MAIN


def _past_own(kind: type, name: str) -> Any:
    """The method of the first base that isn't the notebook's."""
    found = (vars(k)[name] for k in kind.__mro__ if name in vars(k))
    way = next(w for w in found if not _is_own(getattr(w, "__func__", w)))
    return getattr(way, "__func__", way)


def _passing_on(base: Any) -> Any:
    return classmethod(lambda cls, **given: super(base, cls).__init_subclass__(**given))


def new_module(name: str) -> types.ModuleType:
    """A module of the notebook, which no file holds. `set_module` gives it its names."""
    made = types.ModuleType(name)
    vars(made).clear()
    return made


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


def package(name: str, parts: tuple[str, ...]) -> types.ModuleType:
    """A package, with these of its modules."""
    found = importlib.import_module(name)
    for part in parts:
        try:
            importlib.import_module(part)
        except Exception as e:
            current().notice(f"{part} can't be imported here: {e}")
    return found


def module_value(module: str, path: str) -> Any:
    """A module's value under a dotted path."""
    value: Any = importlib.import_module(module)
    for part in path.split("."):
        value = getattr(value, part)
    return value


def own_single(module: str, path: str, cls: Any) -> Any:
    """An object that a module of the user's own holds, or another one where it doesn't, or where cells are run again."""
    value = vars(importlib.import_module(module)).get(path)
    return value if type(value) is cls and not current().apart else bare(cls)


def set_own_single(made: Any, content: tuple[Any, Any, Any, Any]) -> None:
    """The whole content of such an object."""
    singles.Content(*content).put(made)


def held(name: str) -> Any:
    """A container of the interpreter's."""
    return getattr(sys, name)


def set_held(made: Any, state: Any) -> None:
    """Its content is the process's."""


#: The context of decimals that a restored variable holds: the cells' one.
decimals: list[Any] = []


def decimal_context() -> Any:
    """The cells' context of decimals."""
    import decimal

    if not decimals:
        decimals.append(contexts.of_cells(decimal.getcontext))
    return decimals[0]


def set_single(made: Any, state: singles.State) -> None:
    """Attributes of an object of which a library has one. A difference that can't be mended is told."""
    differ = singles.set_state(made, state)
    if differ:
        which = typenames.full_name(type(made))
        current().notice(
            f"a library's {which}: cells may have changed its {', '.join(differ)}, which isn't saved, run them again"
        )


def type_variable(name: str, constraints: tuple[Any, ...], bound: Any) -> Any:
    """A type parameter of a generic function or class (Python 3.12)."""
    made: Any = TypeVar
    return made(name, *constraints, bound=bound, infer_variance=True)


def type_parameter(kind: str, name: str, how: dict[str, Any]) -> Any:
    """A `typing.ParamSpec` or `TypeVarTuple` of the notebook."""
    made = getattr(typing, kind)(name, **how)
    made.__module__ = "__main__"
    return made


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


_Recipe = TypeVar("_Recipe", bound=Callable[..., Any])


def recipe(make: _Recipe) -> _Recipe:
    """Makes a function of an adapter a part of the saved form, under this module's name."""
    make.__module__ = __name__
    globals()[make.__name__] = make
    return make


def __getattr__(name: str) -> Any:
    if name == "SHELL":
        return _Shell()()
    if not name.startswith("_"):
        for _ in adapters.known():  # which adds their recipes
            pass
        if name in globals():
            return globals()[name]
    raise AttributeError(name)


def set_order(made: set[Any], items: list[Any], filling: list[int], size: int) -> None:
    """The iteration order of a set: items in the order of insertion. With a `size`, the keys go into a table of that
    size, beside others that are removed again.
    """
    set.clear(made)
    if not size:
        for item in items:
            set.add(made, item)
        return
    going_in = [*filling, *items]
    first = going_in[: size // 2 - 1]
    # An update from a dictionary first enlarges the table for all of it; mere fillers come last.
    rest = [object() for _ in range(size // 4 - len(first))]
    set.update(made, dict.fromkeys([*first, *rest]))
    for item in going_in[len(first) :]:
        set.add(made, item)
    for item in (*rest, *filling):
        set.discard(made, item)  # one by one: `difference_update` would build the table anew


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


def std_stream(name: str) -> Any:
    """`sys.stdout` and its like."""
    return STREAMS.get(name) or getattr(sys, name)


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
        return lost(f"the open file {path}", f"it can't be opened again ({e.strerror})")
    if (now.st_size, now.st_mtime_ns) != found[1:]:
        return lost(f"the open file {path}", "the file was changed or replaced since")
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


def lost(what: str, why: str) -> Lost:
    current().notice(f"{what} is gone: {why}")
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
        return lost(f"a {kind}", "its dictionary holds it, and isn't complete yet when it is made")
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
    source = current()
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


def callbacks(attr: str, owner: Any) -> Callable[..., Any]:
    """A bound method, by name."""
    found: Callable[..., Any] = getattr(owner, attr)
    return found
