"""The user's own modules, of files beside the notebook: a save leaves out their content, and a difference is told.

A restore imports them anew. Marks of their variables, of their functions and of those of their classes, are compared
with those of the save.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gresshopper import clock, typenames

from . import module_entries
from .marks import mark
from .session import NotHereError, own_module


class _Seen(NamedTuple):
    """A module at the first look after it was loaded, or loaded again."""

    #: Another object after each loading.
    spec: Any
    marks: dict[str, str]
    #: A digest of its file.
    file: str


#: Seconds for marks of new modules in a capture, and for those of all in an audit. The next ones go on from there.
_NEW, _ALL = 0.02, 0.5
#: The user's own modules, found anew after a load of modules; each at the first look, and its last marks.
_own: tuple[Any, list[types.ModuleType]] = (None, [])
_first: dict[str, _Seen] = {}
_last: dict[str, dict[str, str]] = {}


def loaded() -> list[types.ModuleType]:
    """The user's own modules that are loaded."""
    global _own  # noqa: PLW0603 - a process has one list of modules
    loaded = (len(sys.modules), next(reversed(sys.modules)))
    if _own[0] != loaded:
        _own = (loaded, [module for module in list(sys.modules.values()) if own_module(module)])
    return _own[1]


def see(seconds: float = _NEW) -> list[types.ModuleType]:
    """The user's own modules; remembers the content of new ones."""
    until = clock.now() + seconds
    found = loaded()
    for module in found:
        spec, seen = vars(module).get("__spec__"), _first.get(module.__name__)
        if (seen is None or seen.spec is not spec) and clock.now() < until:
            marks = _last[module.__name__] = _marks(module)
            _first[module.__name__] = _Seen(spec, marks, _file(str(module.__file__)))
    return found


def read() -> dict[str, dict[str, Any]]:
    """Marks of the modules (`is`), names of what has changed since the first look, and their files as of then."""
    look_for_files()
    until = clock.now() + _ALL
    before = dict(_last)
    names = {module.__name__: module for module in see(_ALL) if module.__name__ in _first}
    old = [name for name, marks in before.items() if name in names and _last[name] is marks]
    for name in old:  # those first that were marked longest ago
        if clock.now() > until:
            break
        del _last[name]
        _last[name] = _marks(names[name])
    return {
        name: {
            "is": _last[name],
            "changed": _differ(_first[name].marks, _last[name]),
            "python": _PYTHON,
            "file": (module.__file__, _first[name].file),
        }
        for name, module in names.items()
    }


def set_(state: dict[str, dict[str, Any]]) -> None:
    """
    # Errors
    `NotHereError` names what is another here.
    """
    found = others(state)
    if found:
        more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
        raise NotHereError(
            f"{', '.join(found[:NAMED])}{more}: what the notebook's own modules hold isn't saved, run its cells again"
        )


def others(state: dict[str, dict[str, Any]]) -> list[str]:
    """Names in the user's own modules that are others here than in a state that was read."""
    found: list[str] = []
    until = clock.now() + _ALL
    for name, saved in state.items():
        module = sys.modules.get(name)
        if module is None or not own_module(module) or saved.get("python") not in (None, _PYTHON):
            found += [f"{name}.{attr}" for attr in saved["changed"]]
            path, was = saved.get("file", ("", ""))
            if _file(path) not in (was, ""):
                found.append(f"the module {name}")
            continue
        here = _marks(module) if clock.now() < until else dict.fromkeys(saved["is"], "")
        if "python" not in saved:  # a former version marked less
            here = {k: here[k] for k in saved["is"] if k in here}
            found += [f"{name}.{k}" for k, v in saved["is"].items() if k not in here]
        found += [f"{name}.{attr}" for attr in _differ(saved["is"], here)]
    return found


#: The Python that made the marks, and the manner of marking.
_PYTHON = f"{sys.implementation.cache_tag} 2"
#: Most names in a sentence.
NAMED = 8


def _differ(was: dict[str, str], now: dict[str, str]) -> list[str]:
    """Names that only one of the two has, and names with two known, different marks."""
    there = was.keys() & now.keys()
    return sorted((was.keys() ^ now.keys()) | {k for k in there if was[k] and now[k] and was[k] != now[k]})


def _marks(module: types.ModuleType) -> dict[str, str]:
    """A mark for each name; empty for what has none. Other modules, and what is theirs, don't count."""
    found: dict[str, str] = {}
    home = typenames.name_of_module(module)
    for name, value in list(vars(module).items()):
        kind = type(value)  # an instance isn't asked for its class
        if name.startswith("__") or issubclass(kind, (types.ModuleType, types.BuiltinFunctionType)):
            continue
        if issubclass(kind, (type, types.FunctionType)):
            if typenames.home_of(value) != home:
                continue
            if issubclass(kind, type):
                found.update((f"{name}.{k}", mark(v)) for k, v in _members(value))
                continue
        found[name] = mark(value)
    return found


def _members(kind: type) -> list[tuple[str, Any]]:
    """A class's own members. Of names that begin with two underscores, only functions count."""
    held = typenames.held_by(kind)
    return [
        (name, value)
        for name, value in list(held.items())
        if (not name.startswith("__") or type(value) is types.FunctionType)
        and not isinstance(value, (types.GetSetDescriptorType, types.MemberDescriptorType))
    ]


# --- values ---


def is_from_own(value: Any) -> bool:
    """Whether a value is, or comes from, a module of the user's own."""
    return own_module(value if issubclass(type(value), types.ModuleType) else sys.modules.get(home_of(value)))


def of_notebook(module: types.ModuleType) -> bool:
    """Whether a module was made in the notebook, or is of a file beside it and isn't there under its name."""
    name = vars(module).get("__name__")
    if sys.modules.get(str(name)) is module:
        return module_entries.is_made(module)
    return vars(module).get("__spec__") is None or own_module(module)


def home_of(value: Any) -> str:
    """The name of the module that a value is or comes from. The value isn't asked for its class: it may count questions."""
    kind: type = type(value)
    if issubclass(kind, types.ModuleType):
        return typenames.name_of_module(value)
    if kind is types.FunctionType:
        return typenames.home_of(value)
    return typenames.module_of(value if issubclass(kind, type) else kind)


# --- found again ---

#: A module's file (none: a package without one), and the folders of a package.
Place = tuple["str | None", "list[str] | None"]


class Finder:
    """Finds the user's own modules where they were found first: the cells may have gone to another directory since."""

    def __init__(self) -> None:
        self.places: dict[str, Place] = {}

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        """A module's spec, if nothing else leads to its file."""
        file, folders = self.places.get(name, (None, None))
        if file is None and not folders:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path)
        if found is not None and (_origin(found), _paths(found.submodule_search_locations)) == (file, folders):
            return None
        if file is not None:
            there = os.path.isfile(file)
            return (
                importlib.util.spec_from_file_location(name, file, submodule_search_locations=folders)
                if there
                else None
            )
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = folders
        return spec


def _origin(spec: importlib.machinery.ModuleSpec) -> str | None:
    return spec.origin and os.path.abspath(spec.origin)


def _paths(folders: Iterable[str] | None) -> list[str] | None:
    return None if folders is None else list(map(os.path.abspath, folders))


_finder = Finder()
#: The modules whose places are known, the places, and names of the modules without a file.
_placed: tuple[Any, dict[str, Place], frozenset[str]] = (None, {}, frozenset())


def places() -> dict[str, Place]:
    """Where the user's own modules and their packages are."""
    global _placed  # noqa: PLW0603 - a process has one list of modules
    own = loaded()
    if _placed[0] is not own:
        found = dict(_finder.places)
        for module in own:
            file, folders = str(module.__file__), _paths(getattr(module, "__path__", None))
            found[module.__name__] = _absolute(module.__name__, file), folders
            parents = module.__name__.split(".")[:-1]
            for name in (".".join(parents[: n + 1]) for n in range(len(parents))):
                package = sys.modules.get(name)
                if type(package) is types.ModuleType and getattr(package, "__file__", None) is None:
                    found.setdefault(name, (None, _paths(package.__path__)))
        _finder.places = {name: place for name, place in _finder.places.items() if name not in sys.modules}
        _placed = own, dict(sorted(found.items())), frozenset()
        look_for_files()
    return _placed[1]


def set_places(known: dict[str, Place]) -> None:
    """Have imports find modules there."""
    _finder.places.update(known)
    if _finder.places and _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def look_for_files() -> None:
    """Find out which modules no import would find any more."""
    global _placed  # noqa: PLW0603
    own, known, _ = _placed
    gone = {name for name, (file, _) in known.items() if file is not None and not os.path.isfile(file)}
    loaders = {name: getattr(sys.modules.get(name), "__loader__", None) for name in gone}
    _placed = own, known, frozenset(name for name in gone if typenames.module_of(type(loaders[name])) != "zipimport")


def without_file() -> frozenset[str]:
    """Names of loaded modules whose files are gone."""
    places()
    return _placed[2]


@functools.cache
def _absolute(name: str, file: str) -> str:
    """A module's file by its first look: later the working directory may be another."""
    return os.path.abspath(file)


def _file(path: str) -> str:
    try:
        return hashlib.blake2b(Path(path).read_bytes(), digest_size=8).hexdigest() if path.endswith(".py") else ""
    except OSError:
        return ""
