"""Kinds of objects in a dump: objects shared by several groups without linking the groups, and objects savable as this
process's own.
"""

from __future__ import annotations

import collections.abc
import datetime
import decimal
import enum
import pathlib
import re
import struct
import sys
import types
import uuid
import weakref
from typing import Any

from gresshopper import typenames

from . import adapters
from .session import COMPILERS

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
HARMLESS_TYPES.update({type(collections.abc.Mapping), enum.EnumMeta, types.FunctionType})

CANT: dict[str, str] = {
    "generator": "a generator's place can't be saved",
    "coroutine": "a coroutine's place can't be saved",
    "async_generator": "a generator's place can't be saved",
    "frame": "a frame of a running function can't be saved",
}
#: Kinds of objects bound to this process: module prefix of the type -> reason.
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
    ("weakref.finalize", "a finaliser belongs to this process"),
)


#: Weak: a redefined class of the notebook must go, with all its content.
_bound_cache: weakref.WeakKeyDictionary[type, str | None] = weakref.WeakKeyDictionary()


def bound_kind(t: type) -> str | None:
    """Why instances of a type can't be saved, if so."""
    if t not in _bound_cache:
        kind = typenames.full_name(t)
        why = CANT.get(kind)
        if why is None:
            why = next(
                (reason for prefix, reason in (*_BOUND, *adapters.entries("bound")) if kind.startswith(prefix)), None
            )
        _bound_cache[t] = why
    return _bound_cache[t]


def kind_of(obj: Any) -> str:
    return typenames.full_name(type(obj))


def a_kind(kind: str) -> str:
    return ("an " if kind[:1].lower() in "aeiou" else "a ") + kind


_harmless_cache: tuple[int, frozenset[type]] = (-1, frozenset())


def harmless() -> frozenset[type]:
    """The harmless types, with those of loaded libraries."""
    global _harmless_cache  # noqa: PLW0603 - libraries are loaded once for the process
    if _harmless_cache[0] != len(sys.modules):
        _harmless_cache = (len(sys.modules), frozenset(_find_harmless()))
    return _harmless_cache[1]


def _find_harmless() -> set[type]:
    found = HARMLESS_TYPES.union(*(adapter.harmless() for adapter in adapters.loaded()))
    return found.union(_cython_functions())


def _cython_functions() -> collections.abc.Iterator[type]:
    """The types of functions that Cython compiled, which are found again by name: each release of Cython has its own."""
    for name, module in list(sys.modules.items()):
        if name.startswith(COMPILERS):
            kind = getattr(module, "cython_function_or_method", None)
            if isinstance(kind, type):
                yield kind
