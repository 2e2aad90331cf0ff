"""The native library (`kernel/tracker`). Without the library nothing is captured, and a new agent says so."""

from __future__ import annotations

import array
import ctypes
import enum
import os
import sys
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Callable

#: This module's version of the C interface.
ABI = 7
#: Message where the library is needed and missing.
MISSING = "the library libhop_tracker.so isn't there, or is another version's: it belongs into lib/ of Gresshopper's installation"
CHUNK = 4 * 1024 * 1024
#: References to an object of a memo that nothing else holds, as `sys.getrefcount` counts them in the loop.
MADE_FOR_DUMP = 4

_ATOMS: set[type] = {str, bytes, int, float, complex, bool, type(None)}


class _PyBuffer(ctypes.Structure):
    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


def address(obj: Any) -> int:
    """Where the memory of a buffer starts."""
    raw = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(obj), ctypes.byref(raw), ctypes.c_int(0x11C))
    try:
        return raw.buf or 0
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(raw))


def second_word(obj: Any) -> int:
    """The word behind an object's count of references and type."""
    return ctypes.c_size_t.from_address(id(obj) + 2 * _WORD).value


_WORD = ctypes.sizeof(ctypes.c_void_p)


def view_of(at: int, nbytes: int) -> memoryview:
    """The memory at an address. The caller keeps it alive."""
    return memoryview((ctypes.c_char * nbytes).from_address(at)).cast("B") if nbytes else memoryview(b"")


def _candidates() -> Iterable[Path]:
    given = os.environ.get("GRESSHOPPER_TRACKER")
    if given == "none":
        return
    if given:
        yield Path(given)
    here = Path(__file__).resolve()
    yield here.parent.parent / "libhop_tracker.so"
    for up in here.parents:
        for build in ("release", "debug"):
            yield up / "lib" / "libhop_tracker.so"
            yield up / "target" / build / "libhop_tracker.so"
        if (up / "Cargo.toml").exists() and (up / "kernel").exists():
            break


def _load() -> Any | None:
    for path in _candidates():
        if not path.is_file():
            continue
        try:
            lib = ctypes.CDLL(str(path))
            lib.hop_abi.restype = ctypes.c_uint32
            if lib.hop_abi() != ABI:
                continue
            held = ctypes.PyDLL(str(path))
        except (OSError, AttributeError):
            continue
        _declare(lib, held)
        return lib, held
    return None


def _declare(lib: Any, held: Any) -> None:
    p, n, i = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
    for name, args, result in (
        ("hop_track_init", [], i),
        ("hop_track_arm", [p, n], i),
        ("hop_track_drop", [p, n], i),
        ("hop_track_scan", [p, n, n, p, ctypes.c_int32], i),
        ("hop_room", [], i),
        ("hop_tags", [p, n, n, p], i),
        ("hop_put", [ctypes.c_char_p, p, n, n, p, p], i),
        ("hop_keep", [ctypes.c_char_p, p, n], i),
        ("hop_hangs", [ctypes.c_char_p], i),
        ("hop_get", [ctypes.c_char_p, p, n, p, n], i),
        ("hop_map", [ctypes.c_char_p, p, n, n], p),
        ("hop_unmap", [p, n], i),
        ("hop_sync", [ctypes.c_char_p], i),
        ("hop_pack", [ctypes.c_char_p], i),
        ("hop_keyed", [p, p, n, p], i),
        ("hop_error", [p, n], i),
        ("hop_plan", [p, n, p, n], i),
        ("hop_log_open", [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int32], i),
        ("hop_log_add", [i, p, n, p, n, ctypes.c_int32], i),
        ("hop_log_commit", [i, ctypes.c_int32], i),
        ("hop_log_close", [i], i),
    ):
        function = getattr(lib, name)
        function.argtypes, function.restype = args, result
    for name, args in (
        ("hop_memo_ids", [p, p, n, p, n, p, n]),
        ("hop_memo_of", [p, p, p, n]),
        ("hop_all_atoms", [p, n, p, n]),
    ):
        function = getattr(held, name)
        function.argtypes, function.restype = args, i
    held.hop_audit.argtypes, held.hop_audit.restype = [ctypes.c_char_p, ctypes.py_object], i


_found = _load()
lib: Any = _found[0] if _found else None
_held: Any = _found[1] if _found else None


def error() -> str:
    """Message of the library's last failing call in this thread."""
    out = ctypes.create_string_buffer(512)
    lib.hop_error(out, 512)
    return out.value.decode(errors="replace")


def hear(kinds: Iterable[str], told: Callable[[str, tuple[Any, ...]], None]) -> bool:
    """Pass each audit event to `told` if the event's name begins with any of `kinds`. Returns whether the hook is in
    place. Unlike a hook of Python's, the native hook costs the other events next to nothing.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(told))  # for the life of the process
    return bool(_held.hop_audit("\n".join(kinds).encode(), told) == 0)


def room() -> int:
    """Bytes of memory left for this process, by the limits of the machine and of the memory cgroups."""
    left = int(lib.hop_room())
    return left if left >= 0 else sys.maxsize


def plan(problem: bytes) -> bytes:
    """The plan for a problem, both in JSON (`hop_state::plan`)."""
    cap = 64 * 1024
    while True:
        out = ctypes.create_string_buffer(cap)
        got = lib.hop_plan(problem, len(problem), out, cap)
        if got < 0:
            raise ValueError(f"no plan could be made: {error()}")
        if got <= cap:
            return out.raw[:got]
        cap = got


def _memo_layout_known() -> bool:
    """Whether a pickler's memo lies at the library's expected place in this Python."""
    import io
    import pickle

    if _held is None:
        return False
    probe: Any = [[], {}, [[]]]
    pickler = pickle.Pickler(io.BytesIO(), 5)
    pickler.dump(probe)
    want = sorted([id(probe), id(probe[0]), id(probe[1]), id(probe[2]), id(probe[2][0])])
    return list(_native_ids(pickler, {str}, [])) == want


_skips: tuple[Any, Any] = (None, None)


def _skip(harmless: AbstractSet[type]) -> Any:
    """The harmless types as the library takes them: the metaclass of enumerations comes last."""
    global _skips  # noqa: PLW0603 - the same set is asked for again and again
    if _skips[0] is not harmless:
        _skips = (harmless, (ctypes.c_size_t * (len(harmless) + 1))(*map(id, harmless), id(enum.EnumMeta)))
    return _skips[1]


def _native_ids(pickler: Any, harmless: AbstractSet[type], held: list[Any]) -> Any:
    skip = _skip(harmless)
    notes = (ctypes.c_size_t * len(held))(*map(id, held))
    cap = 64
    while True:
        out = array.array("Q", bytes(8 * cap))
        got = _held.hop_memo_ids(id(pickler), skip, len(skip), notes, len(held), out.buffer_info()[0], cap)
        if got <= cap:
            return out[:got]
        cap = got


#: The picklers in C.
_IN_C = ("_Fast", "_Flat")


def memo_ids(pickler: Any, harmless: AbstractSet[type]) -> Any:
    """Sorted addresses of the objects written by a pickler that link groups."""
    if _layout and type(pickler).__name__ in _IN_C:
        return _native_ids(pickler, harmless, pickler.holding())
    return sorted(_python_ids(pickler, harmless))


def memo_sets(pickler: Any) -> list[Any]:
    """The sets that a pickler wrote."""
    if not (_layout and type(pickler).__name__ in _IN_C):
        memo = pickler.memo
        return [e[1] for e in (memo.copy() if not isinstance(memo, dict) else memo).values() if type(e[1]) is set]
    cap = 64
    while True:
        out = array.array("Q", bytes(8 * cap))
        got = _held.hop_memo_of(id(pickler), id(set), out.buffer_info()[0], cap)
        if got <= cap:
            return [ctypes.cast(at, ctypes.py_object).value for at in out[:got]]
        cap = got


class _PySet(ctypes.Structure):
    _fields_ = [
        ("head", ctypes.c_size_t * 2),
        ("fill", ctypes.c_ssize_t),
        ("used", ctypes.c_ssize_t),
        ("mask", ctypes.c_ssize_t),
        ("table", ctypes.POINTER(ctypes.c_size_t)),
    ]


def set_table(made: set[Any]) -> list[int] | None:
    """The addresses of the entries of a set's table, place by place; an empty place has 0 or a marker. None for a
    Python whose sets are laid out in another way than those of CPython 3.9 to 3.13.
    """
    if sys.implementation.name != "cpython" or not (3, 9) <= sys.version_info[:2] <= (3, 13) or _without_lock():
        return None
    raw = _PySet.from_address(id(made))
    if raw.used != set.__len__(made) or raw.fill < raw.used or raw.mask & (raw.mask + 1) or raw.mask < 7:
        return None
    found: list[int] = raw.table[: 2 * (raw.mask + 1) : 2]
    return found


def _without_lock() -> bool:
    return not getattr(sys, "_is_gil_enabled", lambda: True)()


def _python_ids(pickler: Any, harmless: AbstractSet[type]) -> list[int]:
    memo = pickler.memo
    table = memo.copy() if not isinstance(memo, dict) else memo
    ids = []
    for at, entry in table.items():
        obj = entry[1]
        t = type(obj)
        if t in harmless or issubclass(t, type):
            continue
        # Only the memo, the memo's copy and this loop hold the object: a product of the dump.
        if sys.getrefcount(obj) <= MADE_FOR_DUMP or issubclass(t, enum.Enum):
            continue
        ids.append(at)
    return ids


_layout = _memo_layout_known()


def all_atoms(at: int, count: int) -> bool:
    """Whether an array of objects holds only immutable ones."""
    types_ = (ctypes.c_size_t * len(_ATOMS))(*[id(t) for t in _ATOMS])
    return bool(_held.hop_all_atoms(at, count, types_, len(_ATOMS)))
