"""Effects of a cell outside the process, and whether the cell may run again.

A cell is barred that had an effect outside the process, failed, or used the clock, the network, the user or a
source of randomness that isn't recorded.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import os
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import names, native

#: Names through which a cell gets values different from run to run.
BARRED_NAMES = frozenset(
    {
        "input",
        "getpass",
        "time",
        "perf_counter",
        "monotonic",
        "now",
        "today",
        "utcnow",
        "urandom",
        "default_rng",
        "uuid1",
        "uuid4",
        "secrets",
        "SystemRandom",
        "token_hex",
        "requests",
        "urlopen",
        "socket",
        "subprocess",
        "Popen",
        "system",
        "getoutput",
        "threading",
        "Thread",
        "multiprocessing",
        "ThreadPoolExecutor",
        "ProcessPoolExecutor",
        "asyncio",
        "get_ipython",
        "run_line_magic",
        "run_cell_magic",
        "exec",
        "eval",
        "globals",
        "connect",
        "id",
        "getpid",
        "gethostname",
        "manual_seed",
        "Generator",
        "RandomState",
        "display",
        "widgets",
        "sleep",
        "tempfile",
        "mkstemp",
        "mkdtemp",
        "TemporaryDirectory",
        # Written by libraries in C, whose files Python doesn't see.
        "to_netcdf",
        "to_hdf",
        "to_parquet",
        "to_feather",
        "HDFStore",
        "VideoWriter",
        "imwrite",
    }
)
#: Calls to open a file by a library in C, and the calls' modes for writing.
_OPENERS = frozenset({"File", "Dataset", "open_file", "AlignmentFile", "VariantFile"})
_MODES = frozenset({"w", "a", "x", "w-", "r+", "wb", "ab"})
#: Stands among the names for a module of the user's own, whose file may change.
LOCAL = "<own module>"
#: Names whose values may differ tomorrow or elsewhere. Groups of their cells are shipped if possible.
DOUBTFUL_NAMES = frozenset(
    {
        names.SETS,
        LOCAL,
        "set",
        "frozenset",
        "hash",
        "open",
        "environ",
        "getenv",
        "getcwd",
        "listdir",
        "scandir",
        "iterdir",
        "walk",
        "glob",
        "rglob",
        "stat",
        "exists",
        "compile",
        "vars",
        "locals",
        "memmap",
        "argv",
        "cpu_count",
        "getrusage",
        "process_time",
        "thread_time",
        "ctypes",
        "File",
        "imread",
        "device",
        "cuda",
    }
)
#: The same for names that begin so.
DOUBTFUL_STARTS = (
    "read",
    "load",
    "fetch",
    "download",
    "scan",
    "get_data",
    "from_file",
    "fromfile",
    "memory",
    "open_",
)
_EFFECTS = (
    "socket.connect",
    "socket.bind",
    "subprocess.Popen",
    "os.system",
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "os.fork",
    "os.exec",
    "os.posix_spawn",
    "shutil.",
    "builtins.input",
    "sqlite3.connect",
    "os.truncate",
    "os.chmod",
    "os.kill",
    "urllib.Request",
    "smtplib.",
    "ftplib.",
    "webbrowser.",
    "pty.spawn",
)


class Effects:
    """Effects of a cell outside the process, by Python's audit events."""

    _installed: Effects | None = None

    def __init__(self) -> None:
        self._on = False
        self._found: set[str] = set()
        self._files: dict[str, list[int]] = {}
        self._handles: set[str] = set()
        # ipykernel asks for it at a process's first cell, and the first answer takes a file that is written and removed.
        with contextlib.suppress(OSError):
            tempfile.gettempdir()

    def start(self) -> None:
        """Watch from here."""
        if Effects._installed is None:
            _listen()
        Effects._installed = self
        self._found, self._files = set(), {}
        self._handles = _handles()
        self._on = True

    def stop(self) -> dict[str, Any]:
        """Events since `start`: effects, and files read, with their size and time of change."""
        self._on = False
        for handle in _handles() - self._handles:
            self._holds(handle)
        return {"did": sorted(self._found), "read": self._files}

    def _holds(self, handle: str) -> None:
        """A file that the cell left open: a library in C (HDF5) opens it without an audit event."""
        try:
            path = os.readlink(f"/proc/self/fd/{handle}")
            if not path.startswith("/") or path.startswith(("/dev/", "/memfd:", "/proc/")) or "/gresshopper/" in path:
                return
            # A thread of IPython's writes what was typed, and has the history's folder written.
            if os.path.basename(path).startswith("history.sqlite") or os.path.isdir(path):
                return
            with open(f"/proc/self/fdinfo/{handle}", "rb") as said:
                flags = int(said.read().partition(b"flags:")[2].split()[0], 8)
        except (OSError, ValueError, IndexError):  # it is closed by now
            return
        self._opened((path, None, flags))

    def event(self, event: str, args: tuple[Any, ...]) -> None:
        """Handles an audit event of a kind that counts."""
        if event == "open":
            self._opened(args)
        else:
            self._found.add(event)

    def _opened(self, args: tuple[Any, ...]) -> None:
        path, _, flags = args
        if not isinstance(path, (str, bytes)):
            return
        path = os.fsdecode(path)
        if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR):
            self._found.add("open for writing")
        elif not path.endswith((".py", ".pyc", ".so")) and "/site-packages/" not in path and len(self._files) < 100:
            self._files[path] = _stamp(path)


def _stamp(path: str) -> list[int]:
    try:
        found = os.stat(path)
    except OSError:
        return []
    return [found.st_size, found.st_mtime_ns]


def _handles() -> set[str]:
    """The numbers of this process's open files."""
    try:
        own = os.dup(0)  # the number that the listing itself takes next
        os.close(own)
        return set(os.listdir("/proc/self/fd")) - {str(own)}
    except OSError:
        return set()


def _by_kernel() -> bool:
    """Whether a thread of the kernel's own raised the event: it writes what was captured while the next cell runs."""
    thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined] # without a lock
    return thread is not None and thread.name.startswith(("gresshopper", "IPython"))


def _listen() -> None:
    if not native.hear(("open", *_EFFECTS), _hook):  # this Python's hooks can't be set by the library
        sys.addaudithook(_hook)


#: Whether an event of this name counts. An import raises thousands that don't.
_counts: dict[str, bool] = {}


def _hook(event: str, args: tuple[Any, ...]) -> None:
    counts = _counts.get(event)
    if counts is None:
        counts = _counts[event] = event == "open" or event.startswith(_EFFECTS)
    if not counts:
        return
    watching = Effects._installed
    if watching is not None and watching._on and not _by_kernel():
        with contextlib.suppress(Exception):
            watching.event(event, args)


def barred(cell: Mapping[str, Any]) -> str | None:
    """Why a cell mustn't be run again, if so."""
    if cell.get("joint"):
        return "several cells ran before their state could be captured"
    if not cell["ok"]:
        return "its cell failed"
    did = cell["effects"]["did"]
    if not did and _may_write(cell["source"]):
        did = ["open for writing"]
    if did:
        return f"its cell did what mustn't be done twice ({', '.join(did)})"
    for path, stamp in cell["effects"]["read"].items():
        if _stamp(path) != stamp:
            return f"the file {path} was changed since its cell read it"
    if _awaits(cell["source"]):
        return "its cell awaits something, and only the kernel runs such a cell"
    used = sorted(_used(cell) & BARRED_NAMES)
    if used:
        return f"its cell can't be trusted to do the same again ({', '.join(used)})"
    return None


#: Kinds of objects that act for another object without holding it: a finaliser runs when its object goes.
_BELONGING = ("a weakref.finalize",)


def belonging(gone: Iterable[Sequence[str]]) -> str | None:
    """Why a group with these unwritable parts isn't made again by its cells, if so: the cells run on copies of others."""
    found = next((part[0] for part in gone if part[0] in _BELONGING), None)
    return found and f"{found} made by its cell again would belong to another object"


def doubtful(cell: Mapping[str, Any]) -> str | None:
    """A reason, if any, why a cell that may run again might give a different result."""
    files = cell["effects"]["read"]
    if files:
        return f"it reads {next(iter(files))}"
    used = _used(cell)
    found = sorted((used & DOUBTFUL_NAMES) | {n for n in used if n.startswith(DOUBTFUL_STARTS)})
    return f"it uses {found[0]}" if found else None


def _used(cell: Mapping[str, Any]) -> set[str]:
    """Names used by a cell, also within functions called from the cell."""
    return set(_named(cell["source"]).union(cell.get("uses", ())))


@functools.lru_cache(maxsize=4096)
def _named(source: str) -> frozenset[str]:
    return frozenset(names.names_of_source(source).names)


@functools.lru_cache(maxsize=4096)
def _may_write(source: str) -> bool:
    """Whether a cell opens a file by a library in C, in a mode of writing."""
    if not any(opener in source for opener in _OPENERS):
        return False
    try:
        calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    except (SyntaxError, ValueError):
        return True
    return any(
        getattr(call.func, "attr", getattr(call.func, "id", None)) in _OPENERS
        and any(
            isinstance(given, ast.Constant) and given.value in _MODES
            for given in (*call.args[1:], *(k.value for k in call.keywords))
        )
        for call in calls
    )


@functools.lru_cache(maxsize=4096)
def _awaits(source: str) -> bool:
    """Whether Python refuses a cell outside a coroutine."""
    try:
        compile(source, "<cell>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as e:
        return "outside" in str(e)
    return False


def telling(used: Iterable[str]) -> list[str]:
    """The names among these that decide whether a cell may run again."""
    return sorted(n for n in used if n in BARRED_NAMES or n in DOUBTFUL_NAMES or n.startswith(DOUBTFUL_STARTS))


def members_in_order(members: Iterable[str]) -> tuple[str, ...]:
    """Sorts displayed values to the end, to be read last."""
    return tuple(sorted(members, key=lambda m: (m.startswith("n:") and shown(m[2:]), m)))


def not_only_shown(members: Sequence[str]) -> int:
    """Number of members that aren't just displayed values, if all others are, else 0."""
    if not members or any(m.startswith("c:") for m in members):
        return 0
    count = next((i for i, m in enumerate(members) if shown(m[2:])), 0)
    return count if all(shown(m[2:]) for m in members[count:]) else 0


def shown(name: str) -> bool:
    """Whether IPython keeps a displayed value under this name."""
    return not name.strip("_") or (name.startswith("_") and name[1:].isdigit())
