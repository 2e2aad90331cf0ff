"""Entries that cells put into `sys.modules`: other names of modules, None, which forbids an import, and modules made in
the notebook.

An entry counts if no import makes it, and if it is None or came with code that may name `sys.modules`. Libraries put
other such entries there when they are imported, and do so again after a restore.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from gresshopper import typenames

from . import names, settings
from .lost import Lost, LostError
from .session import COMPILERS, MAIN, NotHereError

#: The name by which code reaches the entries.
_NAME = "modules"
#: Attributes that the import system gives to each module. A saved module's content is all its other attributes.
_OF_IMPORT = frozenset({"__builtins__", "__loader__", "__spec__"})


class _Entries:
    """The entries of `sys.modules` at the last look, and those that cells or a restore put there."""

    #: The addresses of the table's modules at the last look.
    ids: dict[str, int] = {}
    #: Names of the entries that cells put there.
    put: set[str] = set()
    #: Entries made for a saved state, by section: a later state may lack them.
    made: dict[str, dict[str, Any]] = {"names": {}, "modules": {}}


def may_put(found: names.Names | None, called: Iterable[Collection[str]]) -> bool:
    """Whether code with these names may put entries there. `called`: names in the functions that the code may call."""
    if found is None:
        return False
    return found.dynamic or _NAME in found.names or _NAME in found.words or any(_NAME in one for one in called)


def see(by_cells: bool) -> None:
    """Notes new entries. `by_cells`: cells may have put them there."""
    # The table of a large library costs a tenth of a millisecond. Only code that may name the table exchanges entries.
    if not by_cells and len(sys.modules) == len(_Entries.ids):
        return
    table = dict(sys.modules)
    before, _Entries.ids = _Entries.ids, dict(zip(table, map(id, table.values())))
    for name, module in table.items():
        if before.get(name) == id(module):
            continue
        _Entries.put.discard(name)
        if type(name) is not str or _is_imported(name, module):
            continue
        if module is None or (by_cells and not _is_of_library(name, module)):
            _Entries.put.add(name)
    _Entries.put.intersection_update(table)


def _is_imported(name: str, module: Any) -> bool:
    """Whether an import makes such an entry."""
    if name in (MAIN, "__mp_main__"):
        return True
    if not issubclass(type(module), types.ModuleType) or typenames.name_of_module(module) != name:
        return False
    spec = settings.held_by(module).get("__spec__")
    return getattr(spec, "loader", None) is not None or getattr(spec, "submodule_search_locations", None) is not None


def _is_of_library(name: str, module: Any) -> bool:
    """Whether the import of a library made an entry."""
    parent, _, last = name.rpartition(".")
    if name.startswith(COMPILERS) or settings.held_by(sys.modules.get(parent)).get(last) is module:
        return True
    kind = type(module)
    spec = settings.held_by(module).get("__spec__")
    if type(getattr(spec, "loader", None)) is importlib.machinery.ExtensionFileLoader:
        # An extension module may enter `sys.modules` a second time, under the name that it was compiled with.
        return typenames.name_of_module(module).rpartition(".")[2].strip("_") == last.strip("_")
    is_own_kind = kind is types.ModuleType or typenames.module_of(kind) == MAIN
    return issubclass(kind, types.ModuleType) and not is_own_kind and _home(module) is None


def _home(module: Any) -> str | None:
    """The other name under which an import makes a module."""
    name = typenames.name_of_module(module) if issubclass(type(module), types.ModuleType) else ""
    return name if name and sys.modules.get(name) is module and _is_imported(name, module) else None


def is_made(module: types.ModuleType) -> bool:
    """Whether a cell made a module, and put it there under its name."""
    return typenames.name_of_module(module) in _Entries.put


# --- other names of modules ---


def other_names() -> dict[str, str]:
    """Other names of modules, with the modules' own."""
    found = ((name, _home(sys.modules.get(name))) for name in sorted(_Entries.put))
    return {name: home for name, home in found if home is not None}


def set_other_names(state: Mapping[str, str]) -> None:
    """Gives modules these names, too.

    # Errors
    `NotHereError` names those whose modules can't be imported.
    """
    made: dict[str, Any] = {}
    missing = []
    for name, home in state.items():
        try:
            made[name] = importlib.import_module(home)
        except Exception:
            missing.append(name)
    _set("names", made)
    _tell(missing)


# --- all others ---


def entries() -> dict[str, Any]:
    """None, modules made in the notebook, and objects of variables; others are only named."""
    kept: dict[str, tuple[str, Any]] = {}
    told = []
    for name in sorted(_Entries.put):
        module = sys.modules.get(name)
        if _home(module) is not None:
            continue
        try:
            kept[name] = _kept(module)
        except Exception:  # an object of a library, or a module that holds what can't be written
            told.append(name)
    return {"kept": kept, "told": told}


def _kept(module: Any) -> tuple[str, Any]:
    if module is None:
        return "none", None
    variable = settings.name_of(module)
    if variable is not None:
        return "named", variable
    if type(module) is not types.ModuleType:
        raise TypeError
    content = {name: value for name, value in vars(module).items() if name not in _OF_IMPORT}
    return "content", settings.dump(content, short=True)


def set_entries(state: Mapping[str, Any]) -> None:
    """Makes these entries.

    # Errors
    `NotHereError` names those that can't be made.
    """
    made: dict[str, Any] = {}
    missing = list(state["told"])
    for name, (how, what) in state["kept"].items():
        try:
            made[name] = _made(how, what)
        except Exception:
            missing.append(name)
    _set("modules", made)
    _tell(missing)


def _made(how: str, what: Any) -> Any:
    if how == "none":
        return None
    if how == "content":
        module = types.ModuleType("")
        vars(module).update(settings.load(what))
        return module
    value = settings.named(what)
    if isinstance(value, Lost):
        raise LostError(what)
    return value


def _set(section: str, made: dict[str, Any]) -> None:
    for name, module in _Entries.made[section].items():
        if name not in made and sys.modules.get(name, made) is module:
            del sys.modules[name]
    sys.modules.update(made)
    _Entries.made[section] = made
    see(by_cells=False)
    _Entries.put.update(made)


def _tell(missing: Iterable[str]) -> None:
    names_ = ", ".join(f"sys.modules[{name!r}]" for name in sorted(missing))
    if names_:
        raise NotHereError(f"{names_}: the notebook put something there, run its cell again")


see(by_cells=False)
