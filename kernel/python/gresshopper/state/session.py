"""Shared data of one kernel's dumps: the namespace, the stable ids of its classes, and the early end of a dump."""

from __future__ import annotations

import bisect
import copyreg
import os
import sys
import types
import uuid
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from gresshopper import typenames

MAIN = "__main__"

#: Folders of modules that aren't the user's own.
INSTALLED = tuple({sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.__file__), "/usr/lib/python3"})


def own_module(module: Any) -> bool:
    """Whether a module is the user's own, of files beside the notebook."""
    if type(module) is not types.ModuleType or typenames.name_of_module(module) in ("", MAIN):
        return False
    file = vars(module).get("__file__")
    if not isinstance(file, str) or file.startswith(INSTALLED) or "-packages/" in file:
        return False
    return not file.startswith(_OURS)


_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Buffer(NamedTuple):
    """Memory to which a stream refers by number. `items` is set for an array of objects: its content."""

    address: int
    nbytes: int
    keep: Any
    items: Any | None = None


class Gone(NamedTuple):
    """Something that couldn't be written."""

    what: str
    why: str


class NotHereError(RuntimeError):
    """Names an effect of the notebook outside its variables that is missing here."""


def check_hung_in(state: dict[str, str], here: dict[str, str]) -> None:
    """Compare what the notebook hung in, by place, with what hangs there.

    # Errors
    `NotHereError` names the places that lack it.
    """
    missing = sorted(where for where, what in state.items() if here.get(where) != what)
    if missing:
        raise NotHereError(f"{', '.join(missing)}: the notebook set this, run its cell again")


class Unpicklable(Exception):
    """A unit can't be written; says why."""


class Interrupted(BaseException):
    """A capture was given up for now: it took longer than it may hold up the user. Nothing was changed.

    Like an interrupt from the keyboard, not an `Exception`: handlers of libraries don't catch the class.
    """


class NoRoom(Interrupted):
    """A capture was given up because it would have added more memory to the process than it may. Nothing was changed."""


class Away(Interrupted):
    """A capture was given up because it met unreadable device memory. Nothing was changed."""


class NotYet(Interrupted):
    """A capture met what is still to be read of a restored state: it has to be read first. Nothing was changed."""


def title(members: Iterable[str]) -> str:
    """A group's variables, or its classes where no variable is in it, in words."""
    members = list(members)
    names = [member[2:] for member in members if member.startswith("n:")]
    return ", ".join(names or [f"the class {member[2:].partition('#')[0]}" for member in members])


class Overlap(Exception):
    """Memory that is already written in part belongs to a larger root, which must be written first."""

    def __init__(self, root: Any) -> None:
        super().__init__("overlap")
        self.root = root


#: Why an instance of a class in `Session.endless` can't be written.
ENDLESS = "it makes new objects as it is written, without end"


class Session:
    """Shared data of a kernel's dumps: the namespace and the stable ids of its classes."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        self.class_ids: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()
        self.classes: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()
        self._by_value: dict[int, tuple[Any, bool]] = {}
        #: Whether memory that holds pointers to immutable objects is known to be as it was (set by the capture).
        self.unchanged: Callable[[int, int], bool] = lambda address, nbytes: False
        #: Files open for reading, as they were when first seen.
        self.opened: weakref.WeakKeyDictionary[Any, tuple[int, int, int]] = weakref.WeakKeyDictionary()
        #: Classes whose instances make others as they are written, without end: a dump of one was given up.
        self.endless: weakref.WeakSet[type] = weakref.WeakSet()
        #: Objects in the memos of each dump of the present capture.
        self.kept: list[Any] = []
        #: Device memory as readable for this capture. None: read in place.
        self.device: Any | None = None
        #: Raises `Interrupted` when a dump should be given up for now (set by the agent).
        self.check: Callable[[], None] = lambda: None
        #: Raises `NoRoom` when the process has grown too much, or would by these bytes more (set by the capture).
        self.room: Callable[[int], None] = lambda nbytes: None
        #: As `check`, when what follows takes longer than there is time, and can't be given up in between.
        self.expect: Callable[[float], None] = lambda seconds: None

    def class_id(self, cls: type) -> str:
        """The stable id of a class of the notebook."""
        found = self.class_ids.get(cls)
        if found is None:
            found = f"{typenames.qualname_of(cls)}#{uuid.uuid4().hex[:12]}"
            self.adopt(found, cls)
        return found

    def adopt(self, cid: str, cls: type) -> None:
        """Give a rebuilt class its former id."""
        self.class_ids[cls] = cid
        self.classes[cid] = cls

    def holding(self, obj: Any, in_tuple: bool = False) -> int:
        """How many references to an instance's `__dict__` dumps of this capture hold. `in_tuple`: they wrote it in one."""
        at = id(object.__getattribute__(obj, "__dict__"))
        slots: Any = copyreg._slotnames  # type: ignore[attr-defined]
        each = 2 if in_tuple or slots(type(obj)) else 1  # with slots the memo holds a pair, too
        return each * sum(_among(ids, at) for ids in self.kept)

    def by_value(self, cls: type) -> bool:
        """Whether a class belongs to the notebook rather than to an importable module."""
        found = self._by_value.get(id(cls))
        if found is not None and found[0]() is cls:
            return found[1]
        heap = cls.__flags__ & (1 << 9)
        answer = bool(heap) and typenames.module_of(cls) != "builtins" and not importable(cls)
        self._by_value[id(cls)] = (weakref.ref(cls), answer)
        return answer


def _among(ids: Any, at: int) -> bool:
    i = bisect.bisect_left(ids, at)
    return bool(i < len(ids) and ids[i] == at)


#: Beginnings of the names of modules that compiled libraries make for their common types, without a file.
COMPILERS = ("_cython_", "cython_runtime")


def importable(obj: Any) -> bool:
    """Whether the module of `obj` (other than `__main__`) holds the object under its qualified name."""
    module = typenames.home_of(obj)
    path = typenames.text_of(obj, "__qualname__") or typenames.text_of(obj, "__name__")
    if module in ("", MAIN) or not path or "<locals>" in path:
        return False
    found: Any = sys.modules.get(module)
    try:
        of_file = getattr(found, "__file__", None) is not None or getattr(found, "__spec__", None) is not None
        if not of_file and not module.startswith(COMPILERS):
            return False
        for part in path.split("."):
            found = getattr(found, part, None)
    except Exception:  # code of a module's or of a class's, asked for its attributes
        return False
    return found is obj


def reason(why: BaseException) -> str:
    """An error in one line."""
    text = str(why).strip().splitlines()
    return f"{typenames.name_of(type(why))}: {text[0][:200]}" if text else typenames.name_of(type(why))
