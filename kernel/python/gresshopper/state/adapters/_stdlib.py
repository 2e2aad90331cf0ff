"""How objects of the interpreter and of the standard library are written: files, locks, views, exceptions, modules.

Each rule is a function of the dump and the object, as an adapter's. It answers as `reducer_override` does.
"""

from __future__ import annotations

import _thread
import gc
import io
import os
import pickle
import re
import stat
import struct
import sys
import threading
import types
import typing
import weakref
from collections.abc import Iterable
from typing import Any

from gresshopper import typenames

from .. import contexts, iterators, native, places, recipes
from ..kinds import CANT, a_kind, kind_of
from ..session import MAIN, importable
from ..shipped import cloudpickle
from ..streams import STREAMS
from ..user_modules import of_notebook
from ..writing import Writing
from . import Adapter, Rule, rules_of

#: Most bytes that are kept of a file that was removed while open, and the bytes that are read in a second.
KEPT, READ_RATE = 64 * 1024 * 1024, 1e9


def _decimals(writing: Writing, made: Any) -> Any:
    # Before the next cell the cells have the one that was restored.
    waits = recipes.decimals and contexts.waits("decimal")
    if made is not (recipes.decimals[0] if waits else contexts.of_cells(sys.modules["decimal"].getcontext)):
        return NotImplemented
    writing.unlinked.add(id(made))  # its content is the process's
    return recipes.decimal_context, ()


def _lock(writing: Writing, made: Any) -> Any:
    if made.locked():
        writing.notes.append("a lock that was held is free after a restore")
    return recipes.lock, ()


def _rlock(writing: Writing, made: Any) -> Any:
    if "owner=0" not in repr(made):
        writing.notes.append("a lock that was held is free after a restore")
    return recipes.rlock, ()


def _weakref(writing: Writing, ref: Any) -> Any:
    target = ref()
    if target is not None and ref.__callback__ is not None:
        writing.notes.append("what a weak reference calls when its object ends isn't called any more")
    return (recipes.dead_ref, ()) if target is None else (recipes.weak_ref, (target,))


def _weak_dict(writing: Writing, made: Any) -> Any:
    return recipes.weak_dict, (type(made), list(made.items()))


def _weak_set(writing: Writing, made: Any) -> Any:
    return recipes.weak_set, (type(made), list(made))


def exception(writing: Writing, e: BaseException) -> Any:
    """An exception, with the exceptions that it came of."""
    if e.__traceback__ is not None:
        writing.notes.append("an exception's traceback isn't saved")
    own_init = isinstance(type(e).__init__, types.FunctionType)
    if not own_init or isinstance(e, (OSError, SyntaxError, UnicodeError)):
        if e.__cause__ is None and e.__context__ is None:
            return cloudpickle.CloudPickler.reducer_override(writing, e)
        plain: Any = e.__reduce_ex__(5)
        links = (plain[2] if len(plain) > 2 else None, e.__cause__, e.__context__, e.__suppress_context__)
        return plain[0], plain[1], links, None, None, recipes.set_linked_exception
    state = (e.args, dict(e.__dict__), e.__cause__, e.__context__, e.__suppress_context__)
    return recipes.exception, (type(e), e.args), state, None, None, recipes.set_exception


def file(writing: Writing, handle: Any) -> Any:
    """An open file that is read, at its place; a stream of the process; a closed file."""
    for name in ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__"):
        if handle is (STREAMS.get(name) or getattr(sys, name, None)):
            return recipes.std_stream, (name,)
    text = isinstance(handle, io.TextIOWrapper)
    raw = isinstance(handle, io.FileIO)
    try:
        if handle.closed:
            closed = _closed(handle)
            return (recipes.closed_file, closed) if closed else writing.lose(handle, "it was closed")
        if handle.writable():
            return writing.lose(handle, "a file that is open for writing can't be opened again without changing it")
        if type(_below(handle)) is not io.FileIO:
            return writing.lose(
                handle, f"it reads through {a_kind(kind_of(_below(handle)))}, whose place can't be saved"
            )
        found = os.fstat(handle.fileno())
        offset = handle.tell()
        newline = _newline(handle) if text else None
        path = os.path.abspath(os.fsdecode(handle.name))
        kept = None if _is_at(found, path) else _content_of(writing, handle.fileno(), found)
    except (OSError, ValueError, TypeError, AttributeError) as e:
        return writing.lose(handle, f"its place can't be saved ({e})")
    writing.seen.add(type(handle))
    how = (handle.encoding, handle.errors, handle.line_buffering, newline) if text else None
    mode = "r" if text else ("raw" if raw else "rb")
    if kept is not None:
        writing.notes.append(
            "a file that was removed or replaced while it was open is a copy of the one that was open"
        )
        return recipes.reopen_copy, (handle.name, mode, how, offset, kept)
    same = (found.st_ino, found.st_size, found.st_mtime_ns)
    if writing.session.opened.setdefault(handle, same) != same:
        writing.notes.append("a file was changed while it was open: what was read ahead of it isn't kept")
    return recipes.reopen, (path, mode, how, offset, same, handle.name)


def _content_of(writing: Writing, handle: int, found: os.stat_result) -> pickle.PickleBuffer:
    """Content of a file that no other process can open any more.

    # Errors
    `ValueError` when the content isn't kept, and `OSError`.
    """
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("its file was removed or replaced")
    if found.st_size > KEPT:
        raise ValueError("its file was removed or replaced, and is too large to be kept")
    writing.session.expect(found.st_size / READ_RATE)
    content = bytearray(found.st_size)
    length = os.preadv(handle, [content], 0)
    return pickle.PickleBuffer(bytes(content[:length]))


def _generator(writing: Writing, made: Any) -> Any:
    found = iterators.generator(made, importable, writing.notes.append)
    if found is None:
        return writing.lose(made, CANT["generator"])
    if found[0] is recipes.generator:
        writing.unlinked.add(id(found[1][0]))  # a library's function, or made for the dump
    return found


def _iterator(writing: Writing, made: Any) -> Any:
    return iterators.iterator(made, writing.notes.append)


def _dict_keys(writing: Writing, view: Any) -> Any:
    return recipes.dict_view, (_mapping_of(view), "keys")


def _dict_values(writing: Writing, view: Any) -> Any:
    return recipes.dict_view, (_mapping_of(view), "values")


def _dict_items(writing: Writing, view: Any) -> Any:
    return recipes.dict_view, (_mapping_of(view), "items")


def _proxy(writing: Writing, proxy: Any) -> Any:
    # A proxy doesn't name its mapping; the garbage collector does.
    mapping = gc.get_referents(proxy)[0]
    if type(mapping) is dict and "__module__" in mapping and "__doc__" in mapping:
        writing.notes.append("a view of a class's attributes is saved as a copy")
    return recipes.mapping_proxy, (mapping,)


def _module(writing: Writing, module: Any) -> Any:
    places.check(module, writing)
    if not of_notebook(module):
        parts = _named_parts(module, places.inputs())
        return (recipes.package, (typenames.name_of_module(module), parts)) if parts else NotImplemented
    if any(held is vars(module) for held in writing.session.namespace.values()):
        writing.notes.append("what vars() gives of a module isn't its attributes any more")
    writing.linked.add(id(module))
    held = {name: value for name, value in vars(module).items() if name != "__builtins__"}
    state = (held, "__builtins__" in vars(module))
    return recipes.new_module, (typenames.name_of_module(module),), state, None, None, recipes.set_module


def _argparse(writing: Writing, made: Any) -> Any:
    # argparse knows `SUPPRESS` by its identity, so an equal string isn't enough.
    attrs = object.__getattribute__(made, "__dict__")
    suppress = sys.modules["argparse"].SUPPRESS
    names_ = [name for name, value in attrs.items() if value is suppress]
    plain: Any = made.__reduce_ex__(5) if names_ else ()
    if len(plain) < 3 or any(plain[3:]) or plain[2] is not attrs:
        return NotImplemented
    state = {name: None if value is suppress else value for name, value in attrs.items()}
    return plain[0], plain[1], (state, names_), None, None, recipes.suppressed


def _new_type(writing: Writing, made: Any) -> Any:
    if made.__module__ != MAIN:
        return NotImplemented
    return recipes.new_type, (made.__name__, made.__supertype__, made.__qualname__)


def _type_parameter(writing: Writing, made: Any) -> Any:
    if made.__module__ != MAIN:
        return NotImplemented
    names_ = ("bound", "covariant", "contravariant", "infer_variance")
    how = {name: getattr(made, f"__{name}__") for name in names_ if getattr(made, f"__{name}__", None)}
    if getattr(made, "has_default", bool)():  # since Python 3.13
        how["default"] = made.__default__
    return recipes.type_parameter, (typenames.name_of(type(made)), made.__name__, how)


def _match(writing: Writing, m: Any) -> Any:
    for how in ("search", "match", "fullmatch"):
        again = getattr(m.re, how)(m.string, m.pos, m.endpos)
        if again is not None and again.regs == m.regs:
            return recipes.match, (m.re, m.string, m.pos, m.endpos, how)
    for pos in (m.start(),):
        again = m.re.match(m.string, pos, m.endpos)
        if again is not None and again.regs == m.regs:
            return recipes.match, (m.re, m.string, pos, m.endpos, "match")
    return writing.lose(m, "the search that found it can't be repeated")


def _struct(writing: Writing, made: struct.Struct) -> Any:
    return recipes.struct_of, (made.format,)


def _memoryview(writing: Writing, view: memoryview) -> Any:
    obj = view.obj
    if obj is None or not view.contiguous or isinstance(obj, memoryview):
        return writing.lose(view, "it lies over memory that isn't an object's")
    base = memoryview(obj)
    offset = native.address(view) - native.address(base) if view.nbytes else 0
    shape = tuple(view.shape or ())
    return recipes.memory, (obj, offset, view.nbytes, view.format, shape, view.readonly and not base.readonly)


def _future(writing: Writing, future: Any) -> Any:
    return NotImplemented if future.done() else writing.lose(future, "what it waits for runs in this process")


def thread(writing: Writing, made: Any) -> Any:
    """A thread, which no process can give away."""
    if made.is_alive():
        return writing.lose(made, "a running thread can't be saved")
    return writing.lose(made, "a thread belongs to this process")


def _named_parts(module: types.ModuleType, sources: Iterable[str]) -> tuple[str, ...]:
    """Modules of a package that cells name. Importing the package doesn't import all of them (`import html.parser`)."""
    package = typenames.name_of_module(module)
    if not package or not hasattr(module, "__path__"):
        return ()
    named = re.compile(rf"\b{re.escape(package)}((?:\.\w+)+)")
    tails = {tail for source in sources if package in source for tail in named.findall(source)}
    parts = {
        ".".join([package, *tail.split(".")[1 : n + 1]]) for tail in tails for n in range(1, tail.count(".") + 1)
    }
    return tuple(sorted(part for part in parts if part in sys.modules))


def _closed(handle: Any) -> tuple[Any, ...] | None:
    """Attributes of a closed file, as arguments of `recipes.closed_file`. `None` means a file of another kind."""
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


def _below(handle: Any) -> Any:
    """The layer below a file's buffer: the file on the disk, or a decompressor (`gzip.open` in text mode)."""
    buffer = handle.buffer if isinstance(handle, io.TextIOWrapper) else handle
    return buffer.raw if isinstance(buffer, (io.BufferedReader, io.BufferedRandom)) else buffer


def _is_at(found: os.stat_result, path: str) -> bool:
    """Whether the file is still the file at this path."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return (there.st_ino, there.st_dev) == (found.st_ino, found.st_dev)


def _newline(handle: Any) -> str | None:
    """A text file's `newline`, which the file object doesn't tell. It only matters for line ends other than \\n.

    # Errors
    `ValueError` when the `newline` can't be found out.
    """
    if b"\r" not in os.pread(handle.fileno(), 1 << 20, 0):
        return None
    # Among a text file's references, its own line end comes between the encoding's name and the text that was read.
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


#: Rules by exact type.
TYPES: dict[type, Rule] = {
    _thread.LockType: _lock,
    type(threading.RLock()): _rlock,
    weakref.ref: _weakref,
    weakref.WeakValueDictionary: _weak_dict,
    weakref.WeakKeyDictionary: _weak_dict,
    weakref.WeakSet: _weak_set,
    io.TextIOWrapper: file,
    io.BufferedReader: file,
    io.BufferedWriter: file,
    io.BufferedRandom: file,
    io.FileIO: file,
    type({}.keys()): _dict_keys,
    type({}.values()): _dict_values,
    type({}.items()): _dict_items,
    types.MappingProxyType: _proxy,
    re.Match: _match,
    struct.Struct: _struct,
    memoryview: _memoryview,
    types.GeneratorType: _generator,
    types.ModuleType: _module,
    **dict.fromkeys(iterators.TYPES, _iterator),
}
if isinstance(typing.NewType, type):  # since Python 3.10
    TYPES[typing.NewType] = _new_type
for _kind in ("ParamSpec", "TypeVarTuple"):  # since Python 3.10 and 3.11
    if hasattr(typing, _kind):
        TYPES[getattr(typing, _kind)] = _type_parameter


def _exact() -> dict[type, Rule]:
    """Rules by exact type, of the modules that are loaded."""
    return dict(rules_of("decimal", {"Context": _decimals}))


def _bases() -> list[tuple[Any, Rule]]:
    """Rules by `isinstance`, of the modules that are loaded."""
    return [
        *rules_of("concurrent.futures", {"Future": _future}),
        *rules_of("argparse", {"Action": _argparse, "_ActionsContainer": _argparse}),
    ]


ADAPTER = Adapter(modules=("concurrent.futures", "argparse", "decimal"), exact=_exact, bases=_bases)
