"""One pickler for everything in a namespace: C speed, one memo, buffers out of band, recipes where pickle is wrong.

A dump also yields what a capture needs to know: which objects it went through (for the groups), which memory
ranges, which classes and global names. The recipes that it writes are in `recipes`. It never calls a user's
`__eq__` and never changes an object.
"""

from __future__ import annotations

import _thread
import array
import bisect
import builtins
import collections
import collections.abc
import copyreg
import ctypes
import datetime
import decimal
import enum
import functools
import gc
import io
import operator
import os
import pathlib
import pickle
import re
import stat
import struct
import sys
import threading
import types
import typing
import uuid
import weakref
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple, TypeVar

import cloudpickle

from . import iterators, names, native, recipes

#: Buffers below this many bytes stay in the stream.
INBAND = 32 * 1024
#: Arrays of objects with at least this many elements, all immutable, are written apart and tracked by their pointers.
ATOMS = 4096
#: About how many seconds it takes to look at an element of such an array, and at what a byte of a stream stands for.
ELEMENT, LOOKED_AT = 2e-8, 1.5e-8
#: Bytes of stack for a dump that is nested too deeply for the ordinary one.
DEEP_STACK = 512 * 1024 * 1024
DEEP_LIMIT = 400_000
#: After so many placeholders inside one group the whole group counts as one that can't be pickled.
MAX_LOST = 200
#: Bytes of a file that was removed while it was open, up to which they are kept; and that are read in a second.
KEPT, READ_RATE = 64 * 1024 * 1024, 1e9

#: What to tell of each class under a cloudpickle that loses slots and the fields of dataclasses, as those before 3.0 do.
_FORGETS = (
    f"a class may lose slots, or fields of a dataclass, under cloudpickle {cloudpickle.__version__}: 3.0 keeps them"
    if not cloudpickle.__version__.partition(".")[0].isdigit() or int(cloudpickle.__version__.partition(".")[0]) < 3
    else ""
)

_MAIN = "__main__"
_CArrayType: type = type(ctypes.c_int * 1)
_FunctionType = types.FunctionType


class Buffer(NamedTuple):
    """Memory that a stream refers to by number. `items` is set for an array of objects: what it holds."""

    address: int
    nbytes: int
    keep: Any
    items: Any | None = None


class Gone(NamedTuple):
    """Something that couldn't be written."""

    what: str
    why: str


#: Types of what stands for something outside the process, which may change without anybody's touching it.
OUTSIDE: tuple[type, ...] = (io.TextIOWrapper, io.BufferedReader, io.FileIO)


class Dump(NamedTuple):
    """One unit, written."""

    stream: bytes
    buffers: list[Buffer]
    foreign: list[int]  # which of them some library handed over, in the stream's order
    ids: Any  # addresses of the objects that link groups: sorted, see native.memo_ids
    ranges: list[tuple[int, int]]  # memory that roots cover: (address, end)
    classes: set[str]  # stable ids of the notebook's classes that it refers to
    touches: set[str]  # global names that functions in it may touch
    dynamic: bool
    gone: list[Gone]
    notes: list[str]
    types: set[type]
    suspects: list[Any]  # instances of the notebook's classes that pickle in a way of their own
    keep: Any  # holds the memo, so that no address is used again before the groups are known


class _Order(NamedTuple):
    """A set whose items come in another order when they are put into a new one."""

    made: Any
    items: list[Any]
    filling: list[int]
    size: int


class Unpicklable(Exception):
    """A unit can't be written; says why."""


class Interrupted(BaseException):
    """A capture was given up for now: it took longer than it may hold up the user. Nothing was changed.

    As an interrupt from the keyboard it isn't an `Exception`: it passes through what a library catches.
    """


class _Stream(io.BytesIO):
    """What a pickler writes to, which it does every 64 KiB: then is asked whether there is still time."""

    def __init__(self, check: Callable[[], None]) -> None:
        super().__init__()
        self._check = check

    def write(self, data: Any) -> int:
        self._check()
        return super().write(data)


class _Overlap(Exception):
    """Memory that is already written in part belongs to a larger root, which must be written first."""

    def __init__(self, root: Any) -> None:
        super().__init__("overlap")
        self.root = root


class Session:
    """What dumps of one kernel share: the namespace and the stable ids of its classes."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        self.class_ids: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()
        self.classes: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()
        self._by_value: dict[int, tuple[Any, bool]] = {}
        #: Whether memory that holds pointers to immutable objects is known to be as it was (set by the capture).
        self.unchanged: Callable[[int, int], bool] = lambda address, nbytes: False
        #: Files that are open for reading, as they were when they were first seen.
        self.opened: weakref.WeakKeyDictionary[Any, tuple[int, int, int]] = weakref.WeakKeyDictionary()
        #: What each dump of the capture that goes on went through: their memos hold those objects, too.
        self.kept: list[Any] = []
        #: Raises `Interrupted` when a dump should be given up for now (set by the agent).
        self.check: Callable[[], None] = lambda: None
        #: The same when what follows takes longer than there is time, and can't be given up in between.
        self.expect: Callable[[float], None] = lambda seconds: None

    def class_id(self, cls: type) -> str:
        """The stable id of a class of the notebook."""
        found = self.class_ids.get(cls)
        if found is None:
            found = f"{cls.__qualname__}#{uuid.uuid4().hex[:12]}"
            self.adopt(found, cls)
        return found

    def adopt(self, cid: str, cls: type) -> None:
        """Give a class that was rebuilt the id that it had."""
        self.class_ids[cls] = cid
        self.classes[cid] = cls

    def holding(self, obj: Any) -> int:
        """How many references to an instance's `__dict__` dumps of this capture hold."""
        at = id(object.__getattribute__(obj, "__dict__"))
        slots: Any = copyreg._slotnames  # type: ignore[attr-defined]
        each = 2 if slots(type(obj)) else 1  # with slots the memo holds a pair, too
        return each * sum(_among(ids, at) for ids in self.kept)

    def by_value(self, cls: type) -> bool:
        """Whether a class belongs to the notebook rather than to an importable module."""
        found = self._by_value.get(id(cls))
        if found is not None and found[0]() is cls:
            return found[1]
        heap = cls.__flags__ & (1 << 9)
        answer = bool(heap) and cls.__module__ != "builtins" and not _importable(cls)
        self._by_value[id(cls)] = (weakref.ref(cls), answer)
        return answer


def _among(ids: Any, at: int) -> bool:
    i = bisect.bisect_left(ids, at)
    return bool(i < len(ids) and ids[i] == at)


def _importable(obj: Any) -> bool:
    """Whether `obj` is what its module (other than `__main__`) holds under its qualified name."""
    module = getattr(obj, "__module__", None)
    path = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None)
    if not isinstance(module, str) or not isinstance(path, str) or module == _MAIN or "<locals>" in path:
        return False
    found: Any = sys.modules.get(module)
    if found is None or (getattr(found, "__file__", None) is None and getattr(found, "__spec__", None) is None):
        return False
    for part in path.split("."):
        found = getattr(found, part, None)
    return found is obj


# --- what kinds there are --------------------------------------------------------------------------------------------

#: Types whose instances may be shared between groups without linking them: immutable, or names of global things.
HARMLESS_TYPES: set[type] = {
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    tuple,
    type(None),
    type(Ellipsis),
    type,
    frozenset,
    range,
    slice,
    types.BuiltinFunctionType,
    types.ModuleType,
    types.CodeType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.ClassMethodDescriptorType,
    decimal.Decimal,
    uuid.UUID,
    re.Pattern,
    pathlib.PosixPath,
    pathlib.PurePosixPath,
    datetime.date,
    datetime.datetime,
    datetime.time,
    datetime.timedelta,
    datetime.timezone,
    struct.Struct,
}
# Metaclasses: instances of these are classes, written by reference or as units of their own.
HARMLESS_TYPES.update({type(collections.abc.Mapping), enum.EnumMeta, _FunctionType})

_CANT: dict[str, str] = {
    "generator": "a generator's place can't be saved",
    "coroutine": "a coroutine's place can't be saved",
    "async_generator": "a generator's place can't be saved",
    "frame": "a frame of a running function can't be saved",
}
#: Kinds that are bound to this process: module prefix of the type -> why.
_BOUND = (
    ("_socket", "a connection belongs to this process"),
    ("socket", "a connection belongs to this process"),
    ("ssl", "a connection belongs to this process"),
    ("_ssl", "a connection belongs to this process"),
    ("sqlite3", "a connection belongs to this process"),
    ("_sqlite3", "a connection belongs to this process"),
    ("subprocess.Popen", "a child process belongs to this process"),
    ("concurrent.futures.thread.ThreadPoolExecutor", "its threads belong to this process"),
    ("concurrent.futures.process.ProcessPoolExecutor", "its processes belong to this process"),
    ("multiprocessing", "it belongs to this process and its children"),
    ("_multiprocessing", "it belongs to this process and its children"),
    ("select.", "a handle of this process"),
    ("mmap.mmap", "a memory map belongs to this process"),
    ("_hashlib.", "a hash in progress can't be saved"),
    ("_md5.", "a hash in progress can't be saved"),
    ("_sha", "a hash in progress can't be saved"),
    ("_blake2.", "a hash in progress can't be saved"),
    ("_contextvars", "context variables belong to this process"),
    ("_ctypes.", "foreign memory belongs to this process"),
    ("ctypes.", "foreign memory belongs to this process"),
    ("_asyncio.", "a task of this process's event loop"),
    ("asyncio.events", "this process's event loop"),
    ("asyncio.unix_events", "this process's event loop"),
    ("tempfile.", "a temporary file or directory ends with its process"),
    ("_queue.SimpleQueue", "it can't be read without emptying it"),
    ("_thread._local", "values of threads belong to this process"),
    ("_csv.", "a reader's place can't be saved"),
    ("zmq.", "a connection belongs to this process"),
    ("weakref.finalize", "a finaliser belongs to this process"),
)


_bound_cache: dict[type, str | None] = {}


def _bound_kind(t: type) -> str | None:
    """Why instances of a type can't be saved, if so."""
    if t not in _bound_cache:
        kind = f"{t.__module__}.{t.__qualname__}" if t.__module__ != "builtins" else t.__qualname__
        why = _CANT.get(kind)
        if why is None:
            why = next((reason for prefix, reason in _BOUND if kind.startswith(prefix)), None)
        _bound_cache[t] = why
    return _bound_cache[t]


def _kind(obj: Any) -> str:
    t = type(obj)
    return f"{t.__module__}.{t.__qualname__}" if t.__module__ != "builtins" else t.__qualname__


def _a(kind: str) -> str:
    return ("an " if kind[:1].lower() in "aeiou" else "a ") + kind


_harmless_cache: tuple[int, frozenset[type]] = (-1, frozenset())


def _harmless() -> frozenset[type]:
    """The harmless types, with those of the libraries that are loaded."""
    global _harmless_cache  # noqa: PLW0603 - libraries are loaded once for the process
    if _harmless_cache[0] != len(sys.modules):
        _harmless_cache = (len(sys.modules), frozenset(_find_harmless()))
    return _harmless_cache[1]


def _find_harmless() -> set[type]:
    found = set(HARMLESS_TYPES)
    np = sys.modules.get("numpy")
    if np is not None:
        found.update({np.ufunc, np.dtype})
        for part in vars(np).values():
            if isinstance(part, type) and (issubclass(part, np.generic) or issubclass(part, np.dtype)):
                found.add(part)
        found.update(np.dtype(c).__class__ for c in np.typecodes["All"])
        found.add(np.dtype)
    torch = sys.modules.get("torch")
    if torch is not None:
        found.update({torch.dtype, torch.device, torch.layout, torch.Size})
    pd = sys.modules.get("pandas")
    if pd is not None:
        found.update({pd.Timestamp, pd.Timedelta, pd.Period, type(pd.NaT), type(getattr(pd, "NA", None))})
    return found


# --- the pickler -----------------------------------------------------------------------------------------------------


class _Roots:
    """Memory that was written, by address: what overlaps a range is found by bisection."""

    def __init__(self) -> None:
        self._lows: list[int] = []
        self._apart: list[tuple[int, int, Any]] = []  # sorted, none overlaps another
        self._over: list[tuple[int, int, Any]] = []  # the few that do

    def add(self, low: int, high: int, root: Any) -> None:
        """Remember memory up to `high` and what it belongs to."""
        if not self.free(low, high):
            self._over.append((low, high, root))
            return
        i = bisect.bisect_left(self._lows, low)
        self._lows.insert(i, low)
        self._apart.insert(i, (low, high, root))

    def free(self, low: int, high: int) -> bool:
        """Whether nothing that was remembered overlaps this range."""
        i = bisect.bisect_right(self._lows, low)
        if i and low < self._apart[i - 1][1]:
            return False
        return (i == len(self._lows) or self._lows[i] >= high) and not any(
            one[0] < high and low < one[1] for one in self._over
        )

    def near(self, low: int, high: int) -> Iterator[tuple[int, int, Any]]:
        """What was remembered and overlaps this range, the larger first."""
        i = max(0, bisect.bisect_right(self._lows, low) - 1)
        found = [one for one in self._over if one[0] < high and low < one[1]]
        while i < len(self._lows) and self._lows[i] < high:
            if low < self._apart[i][1]:
                found.append(self._apart[i])
            i += 1
        return iter(sorted(found, key=lambda one: one[0] - one[1])) if len(found) > 1 else iter(found)


class _Mixin:
    """Recipes; mixed into cloudpickle's C pickler, and into Python's own for nesting that C's stack can't hold."""

    session: Session
    owned: set[str]
    bad: dict[int, str]

    def prepare(self, session: Session, owned: set[str], bad: dict[int, str]) -> None:
        self.session, self.owned, self.bad = session, owned, bad
        self.buffers: list[Buffer] = []
        self.roots = _Roots()  # what aliases by memory alone
        self.ranges: list[tuple[int, int]] = []
        self.storages: dict[int, Any] = {}
        self.classes: set[str] = set()
        self.touches: set[str] = set()
        self.dynamic = False
        self.gone: list[Gone] = []
        self.notes: list[str] = []
        self.seen: set[type] = set()
        self.ordinary = _ordinary()
        self.plainly: set[type] = set()  # of those, the ones none of whose instances needs another look in this dump
        self.last: Any = None
        self.detached: dict[int, Any] = {}
        self.scopes: dict[int, Any] = {}
        self.plain: dict[int, Any] = {}  # a subclass's array -> the plain array that stands for its memory
        self.frames: dict[int, Any] = {}  # such a plain array -> what its memory belongs to, if not to an array
        self.functions: list[Any] = []
        self.linked: set[int] = set()
        self.made: dict[type, tuple[bool, bool]] = {}  # of a type: plain attributes, a `__new__` of its own
        self.suspects: list[Any] = []

    # The order matters: cheap and frequent kinds first.
    def reducer_override(self, obj: Any) -> Any:
        self.last = obj
        t = type(obj)
        if t in self.plainly:
            return NotImplemented
        if t in self.ordinary and id(obj) not in _SINGLETONS and id(obj) not in self.bad:
            self.seen.add(t)
            if t in _ATTRIBUTED:
                return self._attributes(obj)
            if not self.bad and t not in _SINGLE_TYPES:
                self.plainly.add(t)
            return NotImplemented
        if self.bad and id(obj) in self.bad:
            return self._lose(obj, self.bad[id(obj)])
        if t is _FunctionType:
            return self._function(obj)
        if isinstance(obj, type):
            return self._class(obj)
        rule = _RULES.get(t)
        if rule is not None:
            return rule(self, obj)
        held = _SINGLETONS.get(id(obj))
        if held is not None and held[0] is obj:
            return recipes.module_value, held[1]
        if t in self.ordinary:
            self.seen.add(t)
            return NotImplemented
        if obj is self.session.namespace:
            return recipes.namespace, ()
        if t is TypeVar and getattr(obj, "__infer_variance__", False):
            return recipes.type_variable, (obj.__name__, obj.__constraints__, obj.__bound__)
        if isinstance(obj, enum.Enum):
            return recipes.enum_member, (t, obj.name) if obj.name is not None and obj.name in t.__members__ else (
                t,
                obj.value,
            )
        self.seen.add(t)
        ruled = False
        for base, later in _library_rules():
            if isinstance(obj, base):
                ruled = True
                reduced = later(self, obj)
                if reduced is not NotImplemented:
                    return reduced
        if isinstance(obj, BaseException):
            return self._exception(obj)
        why = _bound_kind(t)
        if why is not None:
            return self._lose(obj, why)
        if not self.session.by_value(t):
            single = _SINGLETONS.get(id(obj)) if _stateless(t) and _find_singles(t) else None
            if single is not None:
                return recipes.module_value, single[1]
            if not ruled and not issubclass(t, (dict, TypeVar)):
                self.ordinary.add(t)
                if _has_plain_state(t):
                    _ATTRIBUTED.add(t)
        elif any(_own_hook(t, hook) for hook in _HOOKS) or self._hashes(t):
            self.suspects.append(obj)
        plain, itself = self._made(t)
        reduced = self._attributes(obj) if plain else NotImplemented
        if reduced is NotImplemented and itself:
            reduced = obj.__reduce_ex__(5)
        if reduced is not NotImplemented:
            return _bare(reduced) if itself else reduced
        return cloudpickle.CloudPickler.reducer_override(self, obj)

    def _made(self, t: type) -> tuple[bool, bool]:
        found = self.made.get(t)
        if found is None:
            found = self.made[t] = _has_plain_state(t), _makes_itself(t)
        return found

    def _attributes(self, obj: Any) -> Any:
        """An instance whose `__dict__` others hold too: as `vars(obj)`, or for their own."""
        others = _dict_refs(obj) - _ALONE
        if others <= 0 or others <= self.session.holding(obj):
            return NotImplemented
        if isinstance(obj, types.SimpleNamespace):
            self.notes.append("what vars() gives of a SimpleNamespace isn't its attributes any more")
            return NotImplemented
        return _sharing(obj)

    def _hashes(self, t: type) -> bool:
        """Whether instances hash in a way of the notebook's, so that one that was changed may be a lost key."""
        if len(self.suspects) >= MANY or not _own_hook(t, "__hash__"):
            return False
        params = getattr(t, "__dataclass_params__", None)
        return params is None or not params.frozen

    def _lose(self, obj: Any, why: str) -> Any:
        what = _a(_kind(obj))
        self.gone.append(Gone(what, why))
        for part in ("gi_code", "cr_code", "ag_code"):
            code = getattr(obj, part, None) if type(obj).__module__ == "builtins" else None
            if isinstance(code, types.CodeType):
                self.touches |= names.names_of_code(code).names
        self._link_referents(obj)
        return recipes.Lost, (what, why)

    def _link_referents(self, obj: Any) -> None:
        """What can't be written still shares its objects with other variables: those are rebuilt together."""
        harmless = _harmless()
        level = [obj]
        for _ in range(3):  # a generator, its frame, its variables
            level = [
                r
                for o in level
                for r in gc.get_referents(o)
                if type(r) not in harmless
                and not isinstance(r, type)
                and r is not self.session.namespace
                and not (isinstance(r, dict) and ("__builtins__" in r or "__build_class__" in r))
            ][:1000]
            self.linked.update(map(id, level))

    # --- functions and classes ---

    def _function(self, f: types.FunctionType) -> Any:
        if _importable(f):
            return NotImplemented
        self.seen.add(_FunctionType)
        self.functions.append(f)
        scope = f.__globals__
        live = scope is self.session.namespace
        if not live:
            module = sys.modules.get(str(scope.get("__name__")))
            if module is not None and vars(module) is scope and module.__name__ != _MAIN:
                foreign: Any = _ModuleScope(module.__name__)
                foreign = self.scopes.setdefault(id(scope), foreign)
            else:
                return self._detached_function(f)
        else:
            foreign = None
            touched = names.names_of_code(f.__code__)
            self.touches |= touched.names
            self.dynamic = self.dynamic or touched.dynamic
        made = (f.__code__, f.__name__, live, foreign, f.__closure__)
        return recipes.function, made, self._function_state(f), None, None, recipes.set_function

    def _function_state(self, f: types.FunctionType) -> dict[str, Any]:
        state: dict[str, Any] = {
            "dict": f.__dict__,
            "defaults": f.__defaults__,
            "kwdefaults": f.__kwdefaults__,
            "doc": f.__doc__,
            "module": f.__module__,
            "qualname": f.__qualname__,
            "annotations": _annotations(f),
        }
        params = getattr(f, "__type_params__", None)
        if params:
            state["type_params"] = params
        return state

    def _detached_function(self, f: types.FunctionType) -> Any:
        scope = f.__globals__
        for held in self.session.namespace.values():
            if type(held) is types.ModuleType and vars(held) is scope and _of_notebook(held):
                foreign = self.scopes.setdefault(id(scope), _MadeScope(held))
                made = (f.__code__, f.__name__, False, foreign, f.__closure__)
                return recipes.function, made, self._function_state(f), None, None, recipes.set_function
        if any(held is scope for held in self.session.namespace.values()):
            # A namespace that the user gave to `exec`: it is written first, so that its functions can refer to it.
            if id(scope) not in self.leads:
                raise _Overlap(scope)
            made = (f.__code__, f.__name__, False, scope, f.__closure__)
            return recipes.function, made, self._function_state(f), None, None, recipes.set_function
        # Made by a library with globals of its own (namedtuple's, dataclass's, exec's): cloudpickle copies those.
        return self._dynamic_function_reduce(f)  # type: ignore[attr-defined]

    def _class(self, cls: type) -> Any:
        if cls in _BUILTIN_CLASSES:
            return cloudpickle.CloudPickler.reducer_override(self, cls)
        if type(cls) is _CArrayType:
            return operator.mul, (cls._type_, cls._length_)  # type: ignore[attr-defined]
        if not self.session.by_value(cls):
            return cloudpickle.CloudPickler.reducer_override(self, cls)
        cid = self.session.class_id(cls)
        if cid in self.owned:
            if _FORGETS:
                self.notes.append(_FORGETS)
            return _whole_class(cls, cloudpickle.CloudPickler.reducer_override(self, cls))
        self.classes.add(cid)
        return recipes.class_of, (cid,)

    def _cell(self, made: Any) -> Any:
        try:
            content: tuple[Any, ...] = (made.cell_contents,)
        except ValueError:
            content = ()
        return recipes.cell, (), content, None, None, recipes.set_cell

    def _lru(self, f: Any) -> Any:
        if _importable(f) and getattr(f, "__module__", _MAIN) != _MAIN:
            return NotImplemented
        params = f.cache_parameters()
        if f.cache_info().currsize:
            self.notes.append("what an lru_cache held is computed again after a restore")
        attrs = {k: v for k, v in f.__dict__.items() if k != "__wrapped__"}
        return (
            recipes.cached,
            (f.__wrapped__, params["maxsize"], params["typed"]),
            attrs,
            None,
            None,
            recipes.attributes,
        )

    def _order(self, order: _Order) -> Any:
        return recipes.set_order, tuple(order)

    # --- the standard library ---

    def _lock(self, made: Any) -> Any:
        if made.locked():
            self.notes.append("a lock that was held is free after a restore")
        return recipes.lock, ()

    def _rlock(self, made: Any) -> Any:
        if "owner=0" not in repr(made):
            self.notes.append("a lock that was held is free after a restore")
        return recipes.rlock, ()

    def _weakref(self, ref: Any) -> Any:
        target = ref()
        if target is not None and ref.__callback__ is not None:
            self.notes.append("what a weak reference calls when its object ends isn't called any more")
        return (recipes.dead_ref, ()) if target is None else (recipes.weak_ref, (target,))

    def _weak_dict(self, made: Any) -> Any:
        return recipes.weak_dict, (type(made), list(made.items()))

    def _weak_set(self, made: Any) -> Any:
        return recipes.weak_set, (type(made), list(made))

    def _exception(self, e: BaseException) -> Any:
        if e.__traceback__ is not None:
            self.notes.append("an exception's traceback isn't saved")
        own_init = isinstance(type(e).__init__, _FunctionType)
        if not own_init or isinstance(e, (OSError, SyntaxError, UnicodeError)):
            if e.__cause__ is None and e.__context__ is None:
                return cloudpickle.CloudPickler.reducer_override(self, e)
            plain: Any = e.__reduce_ex__(5)
            links = (plain[2] if len(plain) > 2 else None, e.__cause__, e.__context__, e.__suppress_context__)
            return plain[0], plain[1], links, None, None, recipes.set_linked_exception
        state = (e.args, dict(e.__dict__), e.__cause__, e.__context__, e.__suppress_context__)
        return recipes.exception, (type(e), e.args), state, None, None, recipes.set_exception

    def _file(self, handle: Any) -> Any:
        for name in ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__"):
            if handle is getattr(sys, name, None):
                return recipes.std_stream, (name,)
        text = isinstance(handle, io.TextIOWrapper)
        raw = isinstance(handle, io.FileIO)
        try:
            if handle.closed:
                closed = _closed(handle)
                return (recipes.closed_file, closed) if closed else self._lose(handle, "it was closed")
            if handle.writable():
                return self._lose(handle, "a file that is open for writing can't be opened again without changing it")
            found = os.fstat(handle.fileno())
            offset = handle.tell()
            newline = _newline(handle) if text else None
            path = os.path.abspath(os.fsdecode(handle.name))
            kept = None if _is_at(found, path) else self._content_of(handle.fileno(), found)
        except (OSError, ValueError, TypeError, AttributeError) as e:
            return self._lose(handle, f"its place can't be saved ({e})")
        self.seen.add(type(handle))
        how = (handle.encoding, handle.errors, handle.line_buffering, newline) if text else None
        mode = "r" if text else ("raw" if raw else "rb")
        if kept is not None:
            self.notes.append(
                "a file that was removed or replaced while it was open is a copy of the one that was open"
            )
            return recipes.reopen_copy, (handle.name, mode, how, offset, kept)
        same = (found.st_ino, found.st_size, found.st_mtime_ns)
        if self.session.opened.setdefault(handle, same) != same:
            self.notes.append("a file was changed while it was open: what was read ahead of it isn't kept")
        return recipes.reopen, (path, mode, how, offset, same, handle.name)

    def _content_of(self, handle: int, found: os.stat_result) -> pickle.PickleBuffer:
        """What is in a file that nobody else can open any more.

        # Errors
        `ValueError` when it isn't kept, `OSError`.
        """
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("its file was removed or replaced")
        if found.st_size > KEPT:
            raise ValueError("its file was removed or replaced, and is too large to be kept")
        self.session.expect(found.st_size / READ_RATE)
        content = bytearray(found.st_size)
        length = os.preadv(handle, [content], 0)
        return pickle.PickleBuffer(bytes(content[:length]))

    def _generator(self, made: Any) -> Any:
        found = iterators.generator(made, _importable, self.notes.append)
        return self._lose(made, _CANT["generator"]) if found is None else found

    def _iterator(self, made: Any) -> Any:
        return iterators.iterator(made, self.notes.append)

    def _dict_keys(self, view: Any) -> Any:
        return recipes.dict_view, (_mapping_of(view), "keys")

    def _dict_values(self, view: Any) -> Any:
        return recipes.dict_view, (_mapping_of(view), "values")

    def _dict_items(self, view: Any) -> Any:
        return recipes.dict_view, (_mapping_of(view), "items")

    def _proxy(self, proxy: Any) -> Any:
        # A proxy doesn't name its mapping; the garbage collector does.
        mapping = gc.get_referents(proxy)[0]
        if type(mapping) is dict and "__module__" in mapping and "__doc__" in mapping:
            self.notes.append("a view of a class's attributes is saved as a copy")
        return recipes.mapping_proxy, (mapping,)

    def _module(self, module: Any) -> Any:
        if not _of_notebook(module):
            return NotImplemented
        if any(held is vars(module) for held in self.session.namespace.values()):
            self.notes.append("what vars() gives of a module isn't its attributes any more")
        self.linked.add(id(module))
        held = {name: value for name, value in vars(module).items() if name != "__builtins__"}
        state = (held, "__builtins__" in vars(module))
        return recipes.new_module, (module.__name__,), state, None, None, recipes.set_module

    def _argparse(self, made: Any) -> Any:
        # Which string it is says more than that it is equal.
        attrs = object.__getattribute__(made, "__dict__")
        suppress = sys.modules["argparse"].SUPPRESS
        names_ = [name for name, value in attrs.items() if value is suppress]
        plain: Any = made.__reduce_ex__(5) if names_ else ()
        if len(plain) < 3 or any(plain[3:]) or plain[2] is not attrs:
            return NotImplemented
        state = {name: None if value is suppress else value for name, value in attrs.items()}
        return plain[0], plain[1], (state, names_), None, None, recipes.suppressed

    def _new_type(self, made: Any) -> Any:
        if made.__module__ != _MAIN:
            return NotImplemented
        return recipes.new_type, (made.__name__, made.__supertype__, made.__qualname__)

    def _match(self, m: Any) -> Any:
        for how in ("search", "match", "fullmatch"):
            again = getattr(m.re, how)(m.string, m.pos, m.endpos)
            if again is not None and again.regs == m.regs:
                return recipes.match, (m.re, m.string, m.pos, m.endpos, how)
        for pos in (m.start(),):
            again = m.re.match(m.string, pos, m.endpos)
            if again is not None and again.regs == m.regs:
                return recipes.match, (m.re, m.string, pos, m.endpos, "match")
        return self._lose(m, "the search that found it can't be repeated")

    def _struct(self, made: struct.Struct) -> Any:
        return recipes.struct_of, (made.format,)

    def _memoryview(self, view: memoryview) -> Any:
        obj = view.obj
        if obj is None or not view.contiguous or isinstance(obj, memoryview):
            return self._lose(view, "it lies over memory that isn't an object's")
        base = memoryview(obj)
        offset = native.address(view) - native.address(base) if view.nbytes else 0
        shape = tuple(view.shape or ())
        return recipes.memory, (obj, offset, view.nbytes, view.format, shape, view.readonly and not base.readonly)

    def _future(self, future: Any) -> Any:
        return NotImplemented if future.done() else self._lose(future, "what it waits for runs in this process")

    def _thread(self, thread: Any) -> Any:
        if thread.is_alive():
            return self._lose(thread, "a running thread can't be saved")
        return self._lose(thread, "a thread belongs to this process")

    # --- memory ---

    def add_buffer(self, address: int, nbytes: int, keep: Any, items: Any = None) -> int:
        self.buffers.append(Buffer(address, nbytes, keep, items))
        return len(self.buffers) - 1

    def out_of_band(self, buffer: pickle.PickleBuffer) -> bool:
        """Buffers that libraries hand over themselves: large ones go out of band."""
        raw = buffer.raw()
        if raw.nbytes < INBAND:
            return True
        self.add_buffer(native.address(raw), raw.nbytes, (buffer, raw))
        self.foreign.append(len(self.buffers) - 1)
        return False

    foreign: list[int]
    leads: set[int]

    def _ndarray(self, a: Any) -> Any:
        import numpy as np

        t = type(a)
        self.seen.add(t)
        if t is np.memmap:
            return self._memmap(a)
        if isinstance(a, np.ma.MaskedArray):
            if t is not np.ma.MaskedArray:
                return NotImplemented
            return recipes.np_masked, (a.data.view(np.ndarray), a._mask, a._fill_value, a._hardmask, a._sharedmask)
        if t is not np.ndarray:
            if t is np.matrix or t is np.recarray or t.__reduce__ is np.ndarray.__reduce__:
                return (
                    recipes.np_as,
                    (a.view(np.ndarray), t),
                    dict(a.__dict__) or None,
                    None,
                    None,
                    recipes.attributes,
                )
            return NotImplemented
        if a.dtype.hasobject and a.dtype != object:
            self.notes.append("a structured array of objects is saved as a copy")
            return NotImplemented
        if id(a) in self.frames:
            return self._np_root(a) if self.frames[id(a)] is None else self._np_foreign(a, self.frames[id(a)])
        root = a
        while root.base is not None:
            base = root.base
            if not isinstance(base, np.ndarray):
                inner = getattr(base, "base", None)
                if type(base).__name__ == "DummyArray" and isinstance(inner, np.ndarray):
                    base = inner
                else:
                    break
            root = base
            if type(base) is np.memmap and not isinstance(base.base, np.memmap):
                break
        if root is a:
            return self._np_root(a) if a.base is None else self._np_foreign(a, a.base)
        if type(root) is not np.ndarray and type(root) is not np.memmap:
            root = self._frame(root)
        return self._np_view(a, root)

    def _np_void(self, scalar: Any) -> Any:
        """An element of a structured array, which is a view of it."""
        import numpy as np

        if not isinstance(scalar.base, np.ndarray) or scalar.dtype.names is None or scalar.dtype.hasobject:
            return NotImplemented
        at = native.address(memoryview(scalar))
        view = np.asarray(DummyArray(at, scalar.dtype.itemsize, scalar.base)).view(scalar.dtype)
        return recipes.np_element, (view,)

    def _frame(self, root: Any) -> Any:
        """A plain array over the whole memory of one of a subclass, which stands for that memory in the stream."""
        import numpy as np

        made = self.plain.get(id(root))
        if made is None:
            made = self.plain[id(root)] = root.view(np.ndarray)
            self.frames[id(made)] = root.base
        return made

    def _np_view(self, a: Any, root: Any) -> Any:
        offset = _data(a) - _data(root)
        if not (root.flags.c_contiguous or root.flags.f_contiguous) or offset < 0:
            return self._np_copy(a, "a view of memory with gaps is saved as a copy")
        return recipes.np_view, (root, offset, a.shape, a.strides, a.dtype, bool(a.flags.writeable))

    def _np_copy(self, a: Any, note: str | None) -> Any:
        if note:
            self.notes.append(note)
        fresh = a.copy(order="C")
        if a.dtype == object:
            return self._np_objects(fresh)
        return self._np_own(fresh, bool(a.flags.writeable))

    def _np_root(self, a: Any) -> Any:
        if a.dtype == object:
            return self._np_objects(a)
        if id(a) not in self.detached:
            over = self._find_root(_data(a), a.nbytes)
            if over is not None:
                return self._np_over_root(a, over)
        return self._np_own(a, bool(a.flags.writeable))

    def _np_own(self, a: Any, writeable: bool) -> Any:
        nbytes = a.nbytes
        dense = a.flags.c_contiguous or a.flags.f_contiguous
        if not dense and not _dense(a):
            return self._np_copy(a, None)
        address = _data(a)
        if nbytes:
            self.ranges.append((address, address + nbytes))
            if id(a) not in self.detached:
                self.roots.add(address, address + nbytes, a)
        if nbytes < INBAND and dense:
            order = "C" if a.flags.c_contiguous else "F"
            return recipes.np_small, (a.tobytes(order), a.dtype, a.shape, order, writeable)
        index = self.add_buffer(address, nbytes, a)
        return recipes.np_root, (index, nbytes, a.dtype, a.shape, a.strides, writeable)

    def _np_objects(self, a: Any) -> Any:
        dense = a.flags.c_contiguous or a.flags.f_contiguous
        if not dense:
            return self._np_copy(a, None)
        order = "C" if a.flags.c_contiguous else "F"
        flat = a.reshape(-1) if order == "C" else a.T.reshape(-1)
        items: Any
        if a.size >= ATOMS:
            self.session.expect(a.size * ELEMENT)
        if a.size >= ATOMS and (
            self.session.unchanged(_data(a), a.nbytes) or native.all_atoms(_data(a), a.size, flat)
        ):
            items = self.add_buffer(_data(a), a.nbytes, a, flat)
        else:
            items = flat.tolist()
        state = (items, bool(a.flags.writeable))
        return recipes.np_objects, (a.shape, order), state, None, None, recipes.set_np_objects

    def _foreign_owner(self, base: Any) -> Any | None:
        while isinstance(base, memoryview):
            base = base.obj
        owns = (bytes, bytearray, array.array, ctypes.Array)
        return base if isinstance(base, owns) else None

    def _np_foreign(self, a: Any, base: Any) -> Any:
        """An array over memory of something that isn't an array."""
        owner = self._foreign_owner(base)
        if owner is not None and a.dtype != object:
            offset = _data(a) - native.address(memoryview(owner))
            return recipes.np_over, (owner, offset, a.shape, a.strides, a.dtype, bool(a.flags.writeable))
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(base, torch.Tensor) and base.device.type == "cpu":
            storage = self._torch_storage(base)
            offset = _data(a) - storage.data_ptr()
            return recipes.np_of_tensor, (storage, offset, a.shape, a.strides, a.dtype)
        if a.dtype == object:
            return self._np_objects(a)
        over = self._find_root(*_extent(a))
        if over is not None:
            return self._np_over_root(a, over)
        if not (a.flags.c_contiguous or a.flags.f_contiguous):
            return self._np_copy(a, "a view of foreign memory is saved as a copy")
        return self._np_own(a, bool(a.flags.writeable))

    def _np_over_root(self, a: Any, over: Any) -> Any:
        if type(over).__module__.startswith("torch"):
            return recipes.np_of_tensor, (over, _data(a) - over.data_ptr(), a.shape, a.strides, a.dtype)
        return recipes.np_view, (over, _data(a) - _data(over), a.shape, a.strides, a.dtype, bool(a.flags.writeable))

    def _find_root(self, address: int, nbytes: int) -> Any | None:
        """A root that was written already and holds this memory, though no object says so."""
        if not nbytes or self.roots.free(address, address + nbytes):
            return None
        for low, high, root in self.roots.near(address, address + nbytes):
            if low <= address and address + nbytes <= high:
                return root
            raise _Overlap(self.last)
        return None

    def _memmap(self, a: Any) -> Any:
        import numpy as np

        if a.base is not None and isinstance(a.base, np.memmap):
            root = a.base
            while isinstance(root.base, np.memmap):
                root = root.base
            return recipes.np_as, (recipes_view(self, a, root), np.memmap)
        path = getattr(a, "filename", None)
        if path is None or not (a.flags.c_contiguous or a.flags.f_contiguous):
            return self._lose(a, "a memory map without a file")
        address = _data(a)
        if a.nbytes:
            self.ranges.append((address, address + a.nbytes))
        index = self.add_buffer(address, a.nbytes, a)
        order = "C" if a.flags.c_contiguous else "F"
        return recipes.np_memmap, (os.fspath(path), a.dtype, a.mode, a.offset, a.shape, order, index, a.nbytes)

    def _npz(self, archive: Any) -> Any:
        own = getattr(archive, "fid", None)
        held = own if own is not None else getattr(getattr(archive, "zip", None), "fp", None)
        if held is None:
            return self._lose(archive, "it was closed")
        limits = {"max_header_size": archive.max_header_size} if hasattr(archive, "max_header_size") else {}
        how = (bool(archive.allow_pickle), archive.pickle_kwargs, limits)
        return recipes.np_npz_over, (type(archive), held, own is not None, *how)

    def _np_generator(self, made: Any) -> Any:
        return recipes.np_generator, (type(made), made.bit_generator)

    def _np_random_state(self, made: Any) -> Any:
        legacy = made.get_state(legacy=False)
        drawn = {k: legacy[k] for k in ("has_gauss", "gauss")}
        return (
            recipes.np_random_state,
            (type(made), made._bit_generator),
            drawn,
            None,
            None,
            recipes.set_np_random_state,
        )

    # --- torch ---

    def _torch_storage(self, tensor: Any) -> Any:
        storage = recipes._untyped(tensor)
        return self.storages.setdefault(storage.data_ptr() or id(storage), storage)

    def _torch_untyped(self, storage: Any) -> Any:
        nbytes = recipes._storage_nbytes(storage)
        device = str(storage.device)
        address = storage.data_ptr()
        self.storages.setdefault(address or id(storage), storage)
        if device == "cpu" and nbytes:
            over = self._find_root(address, nbytes)
            if over is not None and not type(over).__module__.startswith("torch"):
                return recipes.torch_storage_over, (over, address - _data(over), nbytes)
            self.ranges.append((address, address + nbytes))
            self.roots.add(address, address + nbytes, storage)
            index = self.add_buffer(address, nbytes, storage)
        elif nbytes:
            import torch

            raw = torch.empty(0, dtype=torch.uint8, device=storage.device)
            host = raw.set_(storage, 0, (nbytes,), (1,)).cpu().numpy()
            index = self.add_buffer(_data(host), nbytes, host)
        else:
            index = self.add_buffer(0, 0, storage)
        return recipes.torch_storage, (index, nbytes, device)

    def _tensor(self, t: Any) -> Any:
        import torch

        cls = type(t)
        self.seen.add(cls)
        plain = cls is torch.Tensor or cls is torch.nn.Parameter
        if t.is_quantized:
            self.notes.append("a quantised tensor is saved as a copy")
        elif t.is_inference():
            self.notes.append("a tensor of inference mode is an ordinary one after a restore")
        if not plain or t.layout != torch.strided or t.is_quantized or t.device.type == "meta":
            return NotImplemented
        if t.is_conj() or t.is_neg():
            kind = "conj" if t.is_conj() else "neg"
            return recipes.torch_lazy, (recipes.torch_lazy(t, kind), kind)
        history = t.grad_fn is not None
        if history:
            self.notes.append("a tensor's history of operations isn't saved")
        storage = self._torch_storage(t)
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
        hooks = {k: getattr(t, k) for k in recipes.TORCH_HOOKS if getattr(t, k, None)} if t.is_leaf else {}
        state: Any = {"grad": grad, "dict": attrs, "hooks": hooks} if grad is not None or attrs or hooks else None
        if t.has_names():
            state = {**(state or {"grad": None, "dict": {}, "hooks": {}}), "names": t.names}
        return recipes.torch_tensor, made, state, None, None, recipes.set_torch_tensor

    def _torch_typed(self, storage: Any) -> Any:
        self.notes.append("a storage of torch is saved as a copy")
        return NotImplemented

    def _torch_generator(self, g: Any) -> Any:
        import torch

        default = g is torch.default_generator
        return recipes.torch_generator, (str(g.device), None if default else g.get_state(), default)

    # --- pandas ---

    def _pd_refs(self, refs: Any) -> Any:
        return recipes.pd_refs, ()

    def _pd_manager(self, manager: Any) -> Any:
        blocks = []
        for block in manager.blocks:
            where = block.mgr_locs
            sliced = where.as_slice if where.is_slice_like else None
            spec: Any = (sliced.start, sliced.stop, sliced.step) if sliced is not None else where.as_array.copy()
            blocks.append((block.values, spec, block.ndim, block.refs))
        return recipes.pd_manager, (type(manager), list(manager.axes), blocks)

    def _pd_looked_up(self, index: Any) -> Any:
        if len(index) > LOOKED_UP or not _looked_up(index):
            return NotImplemented
        reduced = index.__reduce__()
        plain = len(reduced[1]) == 2 and not any(reduced[2:])
        return (recipes.pd_index, (reduced[0], *reduced[1])) if plain else reduced

    def _pd_index(self, index: Any) -> Any:
        # An index copies on write by counts that restored memory wouldn't have: its data are written as its own.
        reduced = index.__reduce__()
        if len(reduced) == 2 and isinstance(reduced[1][1], dict):
            data = reduced[1][1].get("data")
            if data is not None and type(data).__name__ == "ndarray":
                own = data.copy()
                self.detached[id(own)] = own
                made = (reduced[1][0], dict(reduced[1][1], data=own))
                looked_up = len(index) <= LOOKED_UP and _looked_up(index)
                return (recipes.pd_index, (reduced[0], *made)) if looked_up else (reduced[0], made)
        return reduced

    # --- figures ---

    def _figure(self, figure: Any) -> Any:
        manager = getattr(figure.canvas, "manager", None)
        registry = getattr(figure.canvas, "callbacks", None)
        connected = [f for by in getattr(registry, "callbacks", {}).values() for f in by.values()]
        if any(getattr(f() if callable(f) else None, "__module__", "") == _MAIN for f in connected):
            self.notes.append("what was connected to a figure's events isn't connected any more")
        if manager is None:
            return NotImplemented
        plain: Any = figure.__reduce_ex__(5)
        state = (plain[2], manager.num)
        return plain[0], plain[1], state, None, None, recipes.set_figure

    def _callbacks(self, registry: Any) -> Any:
        """What artists, norms, axes and widgets call when they change, most of which matplotlib drops. What canvases call
        for events is connected by those that are there.
        """
        plain: Any = registry.__reduce_ex__(5)
        state = plain[2] if len(plain) > 2 else None
        if not isinstance(state, dict) or not isinstance(state.get("callbacks"), dict):
            return NotImplemented
        kept = {signal: dict(by) for signal, by in state["callbacks"].items()}
        for signal, by in registry.callbacks.items():
            if not str(signal).endswith("_event"):
                found = {cid: proxy() for cid, proxy in by.items()}
                kept[signal] = {cid: function for cid, function in found.items() if function is not None}
        return (*plain[:2], {**state, "callbacks": kept}, *plain[3:])

    # --- widgets ---

    def _traits(self, made: Any) -> Any:
        found: dict[str, Any] = {}
        for name, by_type in made._trait_notifiers.items():
            for kind, handlers in by_type.items():
                mine = [h for h in handlers if not _own_handler(h, made) and not _is_observer(h)]
                if mine:
                    found.setdefault(name, {})[kind] = mine
        plain: Any = made.__reduce_ex__(5) if found else ()
        if len(plain) < 3 or any(plain[3:]):
            return NotImplemented
        return plain[0], plain[1], (plain[2], found), None, None, recipes.set_traits

    def _widget(self, w: Any) -> Any:
        traits: dict[str, Any] = {}
        for key in w.keys:
            if key.startswith(("_model_", "_view_")) or key == "comm":
                continue
            trait = w.traits().get(key)
            if trait is None or trait.read_only:
                continue
            traits[key] = getattr(w, key)
        if "options" in w.traits():
            traits = {"options": w.options, **traits}  # what its index counts in
        notifiers: dict[str, Any] = {}
        for name, by_type in w._trait_notifiers.items():
            for kind, handlers in by_type.items():
                mine = [h for h in handlers if not _own_handler(h, w)]
                if mine:
                    notifiers.setdefault(name, {})[kind] = mine
        attrs = {
            k: v
            for k, v in w.__dict__.items()
            if k in ("_click_handlers", "_submission_callbacks", "_msg_callbacks", "_display_callbacks")
            and getattr(v, "callbacks", None)
        }
        state = (w.model_id if w.comm is not None else None, traits, notifiers, attrs)
        return recipes.widget, (type(w), state[0]), state, None, None, recipes.set_widget


#: A small index in which something was looked up keeps its table for that, which its `memory_usage` counts.
LOOKED_UP = 1000


def _looked_up(index: Any) -> bool:
    cache = getattr(index, "_cache", None)
    engine = cache.get("_engine") if isinstance(cache, dict) else None
    return bool(getattr(engine, "is_mapping_populated", False)) and getattr(index, "nlevels", 2) == 1


def recipes_view(pickler: _Mixin, a: Any, root: Any) -> Any:
    """A plain view of memory-mapped memory, to be written as a view of the map."""
    import numpy as np

    return a.view(np.ndarray) if a is not root else a


class _ModuleScope:
    """Written in place of the globals of a function that a module holds under no name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> Any:
        return recipes.module_value, (self.name, "__dict__")


class _MadeScope:
    """Written in place of the globals of a function that a module of the notebook holds."""

    def __init__(self, module: types.ModuleType) -> None:
        self.module = module

    def __reduce__(self) -> Any:
        return recipes.module_scope, (self.module,)


def _of_notebook(module: types.ModuleType) -> bool:
    """Whether a module was made in the notebook rather than imported."""
    name = vars(module).get("__name__")
    return sys.modules.get(str(name)) is not module and vars(module).get("__spec__") is None


#: So many instances with a hash of their own are looked at more closely.
MANY = 200
#: Ways in which a class takes its pickling into its own hands.
_HOOKS = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")


def _own_hook(cls: type, hook: str) -> bool:
    found = getattr(cls, hook, None)
    return isinstance(found, _FunctionType) and found.__module__ == _MAIN


_NO_STATE = getattr(object, "__getstate__", None)
#: Libraries' types whose instances are pickled with their `__dict__` as it is.
_ATTRIBUTED: set[type] = set()


def _has_plain_state(t: Any) -> bool:
    """Whether pickle takes the attributes of its instances as they are, from their `__dict__`."""
    return bool(
        t.__dictoffset__ != 0
        and t.__reduce_ex__ is object.__reduce_ex__
        and t.__reduce__ in (object.__reduce__, types.SimpleNamespace.__reduce__)
        and getattr(t, "__getstate__", None) is _NO_STATE
        and not hasattr(t, "__setstate__")
        and t not in copyreg.dispatch_table
        and not issubclass(t, (type, BaseException, types.ModuleType))
    )


def _dict_refs(obj: Any) -> int:
    return sys.getrefcount(object.__getattribute__(obj, "__dict__"))


class _Probe:
    pass


#: References to an instance's `__dict__` that nobody else holds.
_ALONE = _dict_refs(_Probe())


def _sharing(obj: Any) -> Any:
    """How an instance is written with the very dictionary that holds its attributes."""
    reduced: Any = obj.__reduce_ex__(5)
    attrs = object.__getattribute__(obj, "__dict__")
    state = reduced[2] if len(reduced) > 2 else None
    slots = state[1] if isinstance(state, tuple) else None
    if (state[0] if isinstance(state, tuple) else state) is not attrs and attrs:
        return NotImplemented
    items = (*reduced[3:5], None, None)[:2]
    return (*reduced[:2], (attrs, slots), *items, recipes.set_shared)


def _makes_itself(t: Any) -> bool:
    """Whether a class of the notebook has a `__new__` that pickle would run, and doesn't say with what."""
    return (
        isinstance(t.__new__, _FunctionType)
        and t.__new__.__module__ == _MAIN
        and t.__reduce_ex__ is object.__reduce_ex__
        and t.__reduce__ is object.__reduce__
        and not any(
            isinstance(getattr(t, hook, None), _FunctionType) for hook in ("__getnewargs__", "__getnewargs_ex__")
        )
    )


def _bare(reduced: Any) -> Any:
    """An instance that is made without running its class's own `__new__`: what that does was done."""
    return (recipes.bare, *reduced[1:]) if reduced[0] is _NEWOBJ else reduced


_NEWOBJ: Any = copyreg.__newobj__  # type: ignore[attr-defined]


def _stateless(t: Any) -> bool:
    return (
        t.__basicsize__ <= _LARGEST and t.__reduce_ex__ is object.__reduce_ex__ and t.__reduce__ is object.__reduce__
    )


#: Bytes of an instance without slots of its own.
_LARGEST = _Probe.__basicsize__


def _find_singles(t: type) -> bool:
    """Instances of a library's class that its module holds and that have no attributes: others ask whether something
    is one of them."""
    held = vars(sys.modules.get(t.__module__, builtins))
    for name, value in list(held.items()):
        if type(value) is t and not getattr(value, "__dict__", None):
            _keep_single(value, (t.__module__, name))
    return True


def _whole_class(cls: type, reduced: Any) -> Any:
    """With what cloudpickle leaves out of a class: its slots, and a name that says where it was defined."""
    if len(reduced) != 6 or not isinstance(reduced[2], tuple) or len(reduced[1]) != 6:
        return reduced
    made, (attrs, rest) = list(reduced[1]), reduced[2]
    slots = attrs.get("__slots__")
    own = {k for k, v in attrs.items() if type(v) is types.MemberDescriptorType and v.__objclass__ is cls}
    attrs = {k: v for k, v in attrs.items() if k not in own}
    # A class of `typing.NamedTuple` gets its own when it is made.
    given = bool(own) or "__orig_bases__" not in attrs
    if given and isinstance(slots, (str, tuple, list, dict)) and isinstance(made[3], dict):
        made[3] = {**made[3], "__slots__": attrs.pop("__slots__")}
    if cls.__qualname__ != cls.__name__:
        attrs["__qualname__"] = cls.__qualname__
    return (reduced[0], tuple(made), (attrs, rest), *reduced[3:])


def _is_observer(handler: Any) -> bool:
    """Whether a class's decorator made the handler: the class makes it again."""
    return type(handler).__name__ in ("ObserveHandler", "_CallbackWrapper")


def _is_link(holder: Any) -> bool:
    return type(holder).__name__ in ("link", "directional_link")


def _own_handler(handler: Any, w: Any) -> bool:
    """Whether a widget's class, not the user, set the handler."""
    if getattr(handler, "__func__", None) is not None:
        holder = handler.__self__
        return holder is w or (type(holder).__module__.startswith("ipywidgets") and not _is_link(holder))
    module = getattr(handler, "__module__", None) or type(handler).__module__
    return str(module).startswith(("traitlets", "ipywidgets"))


def _closed(handle: Any) -> tuple[Any, ...] | None:
    """What a file that was closed still says: the arguments of `recipes.closed_file`."""
    kind = type(handle)
    if kind is io.FileIO:
        return handle.name, handle.mode, None, None
    text = None
    buffer = handle
    if kind is io.TextIOWrapper:
        buffer = handle.buffer
        text = (handle.encoding, handle.errors, handle.line_buffering, handle.write_through, handle.newlines)
    if type(buffer) not in (io.BufferedReader, io.BufferedWriter, io.BufferedRandom):
        return None
    if type(buffer.raw) is not io.FileIO:
        return None
    return handle.name, handle.mode, buffer.raw.mode, text


def _is_at(found: os.stat_result, path: str) -> bool:
    """Whether a file is the one of this path."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return (there.st_ino, there.st_dev) == (found.st_ino, found.st_dev)


def _newline(handle: Any) -> str | None:
    """How a text file treats line ends, which it doesn't say; it only matters where there are others than \\n.

    # Errors
    `ValueError` when that can't be found out.
    """
    if b"\r" not in os.pread(handle.fileno(), 1 << 20, 0):
        return None
    # In a text file's order of references, its own line end comes between the encoding's name and what was read.
    texts = [r for r in gc.get_referents(handle) if isinstance(r, str)]
    if len(texts) == 2:
        return None
    if len(texts) == 4:
        return texts[1]
    if texts[1] in ("", "\n", "\r", "\r\n"):
        raise ValueError("how it treats line ends isn't known")
    return None


def _mapping_of(view: Any) -> Any:
    return gc.get_referents(view)[0]


def _annotations(f: types.FunctionType) -> Any:
    try:
        return f.__annotations__
    except Exception:  # a lazily evaluated annotation may name what isn't there
        return None


def _data(a: Any) -> int:
    return native.array_data(a)


class DummyArray:
    """Bytes of an array's memory, as numpy makes them under the same name for views that it can't make otherwise."""

    def __init__(self, at: int, nbytes: int, base: Any) -> None:
        self.__array_interface__ = {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (at, False)}
        self.base = base


def _extent(a: Any) -> tuple[int, int]:
    low = high = _data(a)
    for extent, stride in zip(a.shape, a.strides):
        if stride < 0:
            low += (extent - 1) * stride
        else:
            high += (extent - 1) * stride
    return low, high + a.itemsize - low


def _dense(a: Any) -> bool:
    low, length = _extent(a)
    return low == _data(a) and length == a.nbytes


_BUILTIN_CLASSES = {type(None), type(NotImplemented), type(Ellipsis)}

_RULES: dict[type, Callable[[Any, Any], Any]] = {
    _Order: _Mixin._order,
    types.CellType: _Mixin._cell,
    functools._lru_cache_wrapper: _Mixin._lru,
    _thread.LockType: _Mixin._lock,
    type(threading.RLock()): _Mixin._rlock,
    weakref.ref: _Mixin._weakref,
    weakref.WeakValueDictionary: _Mixin._weak_dict,
    weakref.WeakKeyDictionary: _Mixin._weak_dict,
    weakref.WeakSet: _Mixin._weak_set,
    io.TextIOWrapper: _Mixin._file,
    io.BufferedReader: _Mixin._file,
    io.BufferedWriter: _Mixin._file,
    io.BufferedRandom: _Mixin._file,
    io.FileIO: _Mixin._file,
    type({}.keys()): _Mixin._dict_keys,
    type({}.values()): _Mixin._dict_values,
    type({}.items()): _Mixin._dict_items,
    types.MappingProxyType: _Mixin._proxy,
    re.Match: _Mixin._match,
    struct.Struct: _Mixin._struct,
    memoryview: _Mixin._memoryview,
    types.GeneratorType: _Mixin._generator,
    types.ModuleType: _Mixin._module,
    **dict.fromkeys(iterators.TYPES, _Mixin._iterator),
}
if isinstance(typing.NewType, type):  # since Python 3.10
    _RULES[typing.NewType] = _Mixin._new_type

_ordinary_types: tuple[int, set[type]] = (-1, set())


def _ordinary() -> set[type]:
    """Types of modules whose instances need no recipe of ours, as far as they came up."""
    global _ordinary_types  # noqa: PLW0603 - libraries are loaded once for the process
    if _ordinary_types[0] != len(sys.modules):
        _ordinary_types = (len(sys.modules), set())
    return _ordinary_types[1]


_library_cache: tuple[int, list[tuple[Any, Callable[[Any, Any], Any]]]] = (0, [])


_modules_seen = -1


#: Libraries that there are rules for.
_RULED = (
    "numpy",
    "numpy.ma",
    "numpy.random",
    "matplotlib.figure",
    "traitlets",
    "torch",
    "torch.nn",
    "pandas",
    "ipywidgets",
    "concurrent.futures",
    "numpy.lib.npyio",
    "matplotlib",
    "IPython",
    "argparse",
)


def _library_rules() -> list[tuple[Any, Callable[[Any, Any], Any]]]:
    """Rules for the libraries that are loaded, by `isinstance`; exact types go into the table."""
    global _library_cache, _modules_seen  # noqa: PLW0603 - libraries are loaded once for the process
    count = len(sys.modules)
    if count == _modules_seen:
        return _library_cache[1]
    _modules_seen = count
    _singletons()
    loaded = sum(name in sys.modules for name in _RULED)
    if _library_cache[0] == loaded and loaded:
        return _library_cache[1]
    rules: list[tuple[Any, Callable[[Any, Any], Any]]] = [(threading.Thread, _Mixin._thread)]
    for out in (sys.stdout, sys.stderr):
        _RULES.setdefault(type(out), _Mixin._file)
    np = sys.modules.get("numpy")
    if np is not None and hasattr(np, "ndarray") and hasattr(np, "ma"):
        _RULES[np.ndarray] = _Mixin._ndarray
        rules.append((np.ndarray, _Mixin._ndarray))
        npyio: Any = sys.modules.get("numpy.lib.npyio")
        generators: Any = sys.modules.get("numpy.random")
        if generators is not None and hasattr(generators, "Generator"):
            _RULES[generators.Generator] = _Mixin._np_generator
            _RULES[generators.RandomState] = _Mixin._np_random_state
        _RULES[np.void] = _RULES[np.record] = _Mixin._np_void
        if npyio is not None and hasattr(npyio, "NpzFile"):
            rules.append((npyio.NpzFile, _Mixin._npz))
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "nn") and hasattr(torch, "default_generator"):
        rules.append((torch.Tensor, _Mixin._tensor))
        untyped = getattr(torch, "UntypedStorage", None) or getattr(torch.storage, "_UntypedStorage", None)
        if untyped is not None:
            _RULES[untyped] = _Mixin._torch_untyped
        rules.append((torch.Generator, _Mixin._torch_generator))
        typed = getattr(torch.storage, "TypedStorage", None) or getattr(torch.storage, "_TypedStorage", None)
        if typed is not None:
            rules.append((typed, _Mixin._torch_typed))
    pd = sys.modules.get("pandas")
    if pd is not None and hasattr(pd, "Index"):
        _pandas_rules(rules)
    futures: Any = sys.modules.get("concurrent.futures")
    if futures is not None and hasattr(futures, "Future"):
        rules.append((futures.Future, _Mixin._future))
    widgets = sys.modules.get("ipywidgets")
    if widgets is not None and hasattr(widgets, "Widget"):
        rules.append((widgets.Widget, _Mixin._widget))
    # After the widgets, which have traits too.
    traits = sys.modules.get("traitlets")
    if traits is not None and hasattr(traits, "HasTraits"):
        rules.append((traits.HasTraits, _Mixin._traits))
    _later_rules(rules)
    _library_cache = (loaded, rules)
    return rules


#: Objects that a module holds for the whole process: id -> (object, where it is found).
_SINGLETONS: dict[int, tuple[Any, tuple[str, str]]] = {}
_SINGLE_TYPES: set[type] = set()


def _keep_single(value: Any, where: tuple[str, str]) -> None:
    _SINGLETONS[id(value)] = (value, where)
    _SINGLE_TYPES.add(type(value))


def _single(module: str, path: str) -> None:
    held: Any = sys.modules.get(module)
    for part in path.split("."):
        held = getattr(held, part, None)
    if held is not None:
        _keep_single(held, (module, path))


def _singletons() -> None:
    import random

    _single(random.__name__, "_inst")
    _single("os", "environ")
    _single("numpy.random.mtrand", "_rand")
    _single("numpy.random.mtrand", "_rand._bit_generator")
    _single("matplotlib", "rcParams")
    shell = getattr(sys.modules.get("IPython.core.interactiveshell"), "InteractiveShell", None)
    if shell is not None and shell.initialized():
        held = shell.instance()
        _keep_single(held, ("gresshopper.state.recipes", "SHELL"))


def _later_rules(rules: list[tuple[Any, Callable[[Any, Any], Any]]]) -> None:
    arguments = sys.modules.get("argparse")
    if arguments is not None and hasattr(arguments, "SUPPRESS"):
        kinds: Any = (arguments.Action, arguments._ActionsContainer)
        rules.append((kinds, _Mixin._argparse))
    figures = sys.modules.get("matplotlib.figure")
    if figures is not None and hasattr(figures, "Figure"):
        rules.append((figures.Figure, _Mixin._figure))
    cbook: Any = sys.modules.get("matplotlib.cbook")
    if cbook is not None and hasattr(cbook, "CallbackRegistry"):
        _RULES[cbook.CallbackRegistry] = _Mixin._callbacks


def _pandas_rules(rules: list[tuple[Any, Callable[[Any, Any], Any]]]) -> None:
    """Copy-on-write pandas: its managers and reference counts. Older ones need none of that."""
    import pandas as pd

    try:
        from pandas._libs.internals import BlockValuesRefs
        from pandas.core.internals import BlockManager, SingleBlockManager
    except ImportError:
        rules.append((pd.Index, _Mixin._pd_looked_up))
        return
    _RULES[BlockValuesRefs] = _Mixin._pd_refs
    _RULES[BlockManager] = _Mixin._pd_manager
    _RULES[SingleBlockManager] = _Mixin._pd_manager
    rules.append((pd.Index, _Mixin._pd_index))


#: How cloudpickle reduces its types. Together with those of the process in one plain dictionary they are found at once.
_REDUCERS: dict[Any, Any] = dict(
    getattr(cloudpickle.CloudPickler, "_dispatch_table", None)
    or getattr(cloudpickle.CloudPickler, "dispatch_table", {})
)


class _Fast(_Mixin, cloudpickle.CloudPickler):  # type: ignore[misc]
    """The C pickler."""


class _Deep(_Mixin, pickle._Pickler):
    """Python's own pickler, for nesting beyond what C's stack allows."""

    def __init__(self, file: Any, protocol: int, buffer_callback: Any) -> None:
        super().__init__(file, protocol, buffer_callback=buffer_callback)
        self.globals_ref: dict[int, Any] = {}
        self.proto = 5

    _dynamic_function_reduce = cloudpickle.CloudPickler._dynamic_function_reduce
    _function_getnewargs = cloudpickle.CloudPickler._function_getnewargs
    _function_reduce = cloudpickle.CloudPickler._function_reduce


def dump(session: Session, value: Any, owned: set[str] | None = None) -> Dump:
    """Write `value`. Classes in `owned` are written by value, the notebook's others by their id.

    # Errors
    `Unpicklable` when nothing of it can be written.
    """
    bad: dict[int, str] = {}
    lead: list[Any] = []
    kept: list[Any] = []
    kind: Any = _Fast
    orders: list[_Order] | None = None
    for _ in range(MAX_LOST):
        out = _Stream(session.check)
        pickler: Any = None
        try:
            pickler = _attempt(kind, session, out, owned or set(), bad, lead, value, orders or [])
        except _Overlap as overlap:
            if any(root is overlap.root for root in lead):
                raise Unpicklable("memory that overlaps in a way that can't be written") from None
            lead.append(overlap.root)
            continue
        except _Culprit as culprit:
            culprit.forget()
            if _too_deep(culprit.why) and kind is _Fast:
                kind = _Deep
                continue
            if id(culprit.obj) in bad or culprit.obj is value:
                raise Unpicklable(_reason(culprit.why)) from None
            bad[id(culprit.obj)] = _reason(culprit.why)
            kept.append(culprit.obj)
            continue
        session.expect(out.tell() * LOOKED_AT)
        if orders is None and _EMPTY_SET in out.getvalue():
            orders = [order for made in native.memo_sets(pickler) for order in _ordered(made)]
            if orders:
                continue
        return Dump(
            out.getvalue(),
            pickler.buffers,
            pickler.foreign,
            _linking(pickler),
            pickler.ranges,
            pickler.classes,
            pickler.touches,
            pickler.dynamic,
            pickler.gone,
            pickler.notes,
            pickler.seen,
            pickler.suspects,
            (pickler, kept),
        )
    raise Unpicklable("too much of it can't be written")


_EMPTY_SET = b"\x8f"
#: Larger sets come back in the order in which their items are put into a new one.
ORDERED = 50_000
#: Items that the unpickler puts into a set at once.
_BATCH = 1000


def _ordered(made: set[Any]) -> list[_Order]:
    """How a set gets its order back, if it needs that and it can be done. Only sets of numbers, and of tuples of
    them, have an order that is the same in another process.
    """
    if not 1 < len(made) <= ORDERED:
        return []
    items = list(made)
    if not all(map(_numeric, items)):
        return []
    plain: set[Any] = set()
    for i in range(0, len(items), _BATCH):
        plain.update(tuple(items[i : i + _BATCH]))
    if list(plain) == items:
        return []
    places = native.set_table(made)
    if places is None:
        return []
    going_in, filling = _insertion(made, places)
    for order in (_Order(made, going_in, [], 0), _Order(made, going_in, filling, len(places))):
        recipes.set_order(plain, order.items, order.filling, order.size)
        if list(plain) == items and (order.size or len(native.set_table(plain) or ()) == len(places)):
            return [order]
    return []


def _insertion(made: set[Any], places: list[int]) -> tuple[list[Any], list[int]]:
    """An order in which the items of a set come to lie where they are: each after those that it had to go round.
    Where it went round something that is gone, a number stands in that belongs there.
    """
    by_address = {id(item): item for item in made}
    found = {place: by_address[at] for place, at in enumerate(places) if at in by_address}
    done: dict[int, None] = {}
    filling: dict[int, int] = {}
    for start in found:
        stack = [start]
        while stack:
            top = stack[-1]
            before = [q for q in _round(hash(found[top]), top, len(places)) if q not in done]
            filling.update((q, q + (len(places) << 24)) for q in before if q not in found)
            ahead = next((q for q in before if q in found and q not in stack), None)
            if ahead is not None:
                stack.append(ahead)
            else:
                done[stack.pop()] = None
    # Those that went round nothing come first: they may be moved by a growing table without harm.
    order = sorted(done, key=lambda place: bool(_round(hash(found[place]), place, len(places))))
    return [found[place] for place in order], list(filling.values())


def _round(hashed: int, place: int, size: int) -> list[int]:
    """The places that CPython tries for a hash before the one where it was put."""
    tried: list[int] = []
    perturb = hashed & (2**64 - 1)
    at = perturb & (size - 1)
    while len(tried) < 4 * size:
        for step in range(10 if at + 9 <= size - 1 else 1):
            if at + step == place:
                return tried
            tried.append(at + step)
        perturb >>= 5
        at = (at * 5 + 1 + perturb) & (size - 1)
    return tried


def _numeric(item: Any) -> bool:
    kind = type(item)
    return kind is int or kind is float or (kind is tuple and all(map(_numeric, item)))


def _linking(pickler: Any) -> Any:
    ids = native.memo_ids(pickler, _harmless())
    if pickler.functions or pickler.linked:
        ids = array.array("Q", sorted(set(ids).union(map(id, pickler.functions), pickler.linked)))
    return ids


class _Culprit(Exception):
    def __init__(self, obj: Any, why: BaseException) -> None:
        super().__init__("culprit")
        self.obj, self.why = obj, why

    def forget(self) -> None:
        """Let go of the frames that it came through, which hold the user's objects in circles."""
        error: BaseException | None = self
        while error is not None:
            error.__traceback__ = None
            error = error.__cause__ or error.__context__


def _too_deep(why: BaseException) -> bool:
    return any(isinstance(e, RecursionError) for e in (why, why.__cause__, why.__context__))


def _reason(why: BaseException) -> str:
    text = str(why).strip().splitlines()
    return f"{type(why).__name__}: {text[0][:200]}" if text else type(why).__name__


def _attempt(
    kind: Any,
    session: Session,
    out: io.BytesIO,
    owned: set[str],
    bad: dict[int, str],
    lead: list[Any],
    value: Any,
    orders: list[_Order],
) -> Any:
    def run() -> Any:
        # Emptied at the end: a pickler that its own callback holds would keep the user's objects until a sweep.
        held: list[Any] = []

        def callback(buffer: pickle.PickleBuffer) -> bool:
            return bool(held[0].out_of_band(buffer))

        kind.dispatch_table = {**copyreg.dispatch_table, **_REDUCERS}
        pickler = kind(out, 5, buffer_callback=callback)
        held.append(pickler)
        pickler.prepare(session, owned, bad)
        pickler.leads = {id(root) for root in lead}
        pickler.foreign = []
        _library_rules()
        try:
            pickler.dump((lead, value, orders) if orders else (lead, value))
        except _Overlap:
            raise
        except Exception as e:  # whatever a user's own reducing code raises
            raise _Culprit(pickler.last, e) from e
        finally:
            held.clear()
        return pickler

    if kind is _Deep:
        return _deep(run)
    return run()


def _deep(run: Callable[[], Any]) -> Any:
    """Run with a large stack and a high recursion limit."""
    result: list[Any] = []

    def body() -> None:
        try:
            result.append((run(), None))
        except BaseException as e:
            result.append((None, e))

    before_size = threading.stack_size(DEEP_STACK)
    before_limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(DEEP_LIMIT)
        thread = threading.Thread(target=body, name="gresshopper-deep")
        thread.start()
        thread.join()
    finally:
        sys.setrecursionlimit(before_limit)
        threading.stack_size(before_size)
    done, error = result.pop()
    try:
        if error is not None:
            raise error
    finally:
        error = None  # else its traceback would hold this frame, and this frame it
    return done


def dump_items(session: Session, flat: Any) -> bytes:
    """The elements of an array of immutable objects."""
    return pickle.dumps(flat.tolist(), protocol=5)


def load(source: recipes.Source, stream: bytes, foreign: list[Any] | None = None) -> Any:
    """Read what `dump` wrote."""
    before = recipes.loading(source)
    try:
        return pickle.loads(stream, buffers=foreign)[1]
    finally:
        recipes.loading(before)
