"""The cloudpickle by which the engine writes, 3 or newer: the user's own, or the copy that the installation brings.

The user's own goes first, since the user's libraries were tested with it. Where the environment has none, the copy is
loaded under cloudpickle's name. Beside an older one the copy has a name of its own: `import cloudpickle` keeps giving
the user's. Streams refer to either name, so each is read where the other was written. Nothing is added to the path of
modules.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import pickle
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

#: Where an installation puts the copy (docs/operations.md).
FOLDER = Path(__file__).resolve().parent.parent / "shipped"
NAME = "cloudpickle"
#: Name of the copy beside an older cloudpickle. It is importable in each installation.
BESIDE = f"gresshopper.shipped.{NAME}"
#: Older versions lose slots of classes, and the fields of dataclasses.
LEAST = 3

#: Tables that both versions keep alike. The copy uses the older one's: modules that the user has pickled by value, and
#: the identities of classes in bytes that the user pickled.
_SHARED = (
    "_PICKLE_BY_VALUE_MODULES",
    "_DYNAMIC_CLASS_TRACKER_BY_CLASS",
    "_DYNAMIC_CLASS_TRACKER_BY_ID",
    "_DYNAMIC_CLASS_TRACKER_LOCK",
)


class MissingError(ImportError):
    """No cloudpickle can be used; says what to install."""


def provide(folder: Path = FOLDER) -> Any:
    """The module to write with.

    # Errors
    `MissingError` where neither the environment nor the installation has one that is new enough.
    """
    theirs, has = _of_environment()
    if theirs is not None and _is_new(theirs):
        for part in ("", f".{NAME}"):
            sys.modules.setdefault(BESIDE + part, sys.modules[NAME + part])
        return theirs
    # If the user has blocked the import, it stays blocked.
    name = NAME if has == _NONE and NAME not in sys.modules else BESIDE
    if name in sys.modules:
        return sys.modules[name]
    made = _load(name, folder / NAME)
    if made is None:
        raise MissingError(
            f"the kernel's Python environment has {has}: install it there (pip install '{NAME}>={LEAST}'), and restart "
            "the kernel"
        )
    if theirs is not None:
        _share(getattr(theirs, NAME, None), getattr(made, NAME))
    return made


_NONE = f"no {NAME}"


def _of_environment() -> tuple[Any | None, str]:
    """The environment's own, and what a user is told that the environment has."""
    try:
        found = importlib.import_module(NAME)
    except Exception as e:  # an old version may fail in a new Python, in any way
        missing = isinstance(e, ImportError) and e.name == NAME
        return None, _NONE if missing else f"a {NAME} that can't be imported, where {LEAST} or newer is needed"
    version = getattr(found, "__version__", "?")
    return found, f"{NAME} {version}, where {LEAST} or newer is needed"


def _is_new(module: Any) -> bool:
    first = str(getattr(module, "__version__", "")).partition(".")[0]
    return first.isdigit() and int(first) >= LEAST


def _load(name: str, inside: Path) -> Any | None:
    """The copy, imported under this name; None where there is none."""
    file = inside / "__init__.py"
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=[str(inside)])
    if spec is None or spec.loader is None or not file.is_file():
        return None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _share(theirs: Any, ours: Any) -> None:
    for name in _SHARED:
        if type(getattr(theirs, name, None)) is type(getattr(ours, name, None)):
            setattr(ours, name, getattr(theirs, name))


#: Helpers of cloudpickle's for streams that aren't named as such.
_HELPERS = ("subimport", "dynamic_subimport")


class _Reader(pickle.Unpickler):
    """Finds the parts of cloudpickle that a stream of another environment names, beside an older cloudpickle."""

    def find_class(self, module: str, name: str) -> Any:
        """As pickle's, but for cloudpickle's own helpers. All else in cloudpickle is named by the user's values."""
        if module == f"{NAME}.{NAME}" and (name.startswith("_") or name in _HELPERS):
            module = f"{BESIDE}.{NAME}"
        return super().find_class(module, name)


cloudpickle = provide()
#: Reads streams.
Unpickler: Any = _Reader if cloudpickle.__name__ == BESIDE else pickle.Unpickler


def loads(stream: bytes, buffers: Iterable[Any] = ()) -> Any:
    """As pickle's."""
    if Unpickler is pickle.Unpickler:
        return pickle.loads(stream, buffers=buffers)
    return Unpickler(io.BytesIO(stream), buffers=buffers).load()
