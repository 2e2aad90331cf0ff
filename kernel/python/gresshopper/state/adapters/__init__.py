"""The engine's knowledge of libraries: an adapter for each library.

An adapter says how objects of its library are written and loaded, and which of them may be shared without linking
variables. It also says which of the library's settings belong to the process. An adapter is imported after its
library: a kernel without torch never has torch's adapter.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from gresshopper import typenames

#: How an object is written: given the dump and the object, returns what `__reduce_ex__` would, or NotImplemented.
Rule = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Section:
    """Settings that belong to the process: a section of its state, named after the module that has to be loaded."""

    read: Callable[[], Any]
    set: Callable[[Any], None]
    #: Set faster than read, or never so in another process: set without a look at the present value.
    soon: bool = False
    #: Set after all other sections.
    last: bool = False
    #: Takes out what was set of the notebook's: a kernel that follows sets it anew, with other objects.
    take_out: Callable[[], None] | None = None
    #: Looks up unchanging facts before a user waits for them.
    know: Callable[[], Any] | None = None
    #: Sets the part that Python keeps for each context.
    in_context: Callable[[Any], None] | None = None
    #: The keys of that part.
    modes: tuple[str, ...] = ()
    #: Cells run again with it.
    again: bool = False
    #: Cells draw random numbers from it.
    draws: bool = False


@dataclass(frozen=True)
class Adapter:
    """A library, as far as the engine must know it."""

    #: Modules of the library that have something to be found, the library itself first.
    modules: tuple[str, ...]
    #: Rules for exact types.
    exact: Callable[[], dict[type, Rule]] = dict
    #: Rules for all instances, the first match first.
    bases: Callable[[], list[tuple[Any, Rule]]] = list
    #: Types whose instances may be shared between groups without linking them.
    harmless: Callable[[], set[type]] = set
    #: Objects that a module holds for the whole process: module, and dotted path in it.
    singles: tuple[tuple[str, str], ...] = ()
    #: Rules for types that can only be told by name.
    by_name: dict[str, Rule] = field(default_factory=dict)
    sections: dict[str, Section] = field(default_factory=dict)
    #: How objects count in a mark, if not as they are pickled: each as `__reduce_ex__` would say it.
    marks: Callable[[], list[tuple[Any, Callable[[Any], Any]]]] = list
    #: How an exported value is written, by the root of its type's module and the type's name: given the value and a path
    #: without suffix, returns the file. None means that it is pickled.
    exports: dict[str, Callable[[Any, Path], Path | None]] = field(default_factory=dict)
    #: Kinds of objects bound to this process: beginnings of the types' names, and reasons.
    bound: tuple[tuple[str, str], ...] = ()
    #: Beginnings of the names of types that wrap a function, and the attribute that holds it. It counts in a mark.
    wraps: tuple[tuple[str, str], ...] = ()
    #: Attributes of modules that are sections of their own.
    elsewhere: tuple[tuple[str, str], ...] = ()
    #: Beginnings of the names of modules whose threads touch no object of the user's.
    threads: tuple[str, ...] = ()
    #: Attributes that hold what an object works on, unknown to the collector of cycles, by the types' names.
    works_on: dict[str, str] = field(default_factory=dict)
    #: Beginnings of the names of types whose events run code of the notebook beside the cells.
    events: tuple[str, ...] = ()
    #: Beginnings of the names of types whose objects are reached without a variable.
    unnamed: tuple[str, ...] = ()
    #: Find functions and objects of the notebook that the library calls, of whatever cell runs.
    hooks: tuple[Callable[[], Iterable[Any]], ...] = ()
    #: Beginnings of the names of modules through whose objects everything in the kernel is within reach.
    whole: tuple[str, ...] = ()
    #: Modules whose processes work for an object of the notebook's.
    workers: tuple[str, ...] = ()
    #: Packages of modules, where the package has another name.
    distributions: dict[str, str] = field(default_factory=dict)
    #: Roots of modules that are the kernel's own. Neither their tables nor their functions are the notebook's doing.
    of_kernel: tuple[str, ...] = ()
    #: Roots of modules whose functions stand in other libraries from these libraries' import on.
    lends: tuple[str, ...] = ()
    #: Beginnings of the names of modules whose objects in classes come back with the library: accessors.
    accessors: tuple[str, ...] = ()


#: The adapters, each with modules of which one has to be loaded for the adapter to matter. The first adapter that
#: takes an object has it. Sections are set in this order.
_KNOWN = {
    "_ipython": ("IPython",),
    "_numpy": ("numpy",),
    "_torch": ("torch",),
    "_matplotlib": ("matplotlib",),
    "_pandas": ("pandas",),
    "_registers": ("matplotlib", "pandas"),
    "_sklearn": ("sklearn",),
    "_widgets": ("ipywidgets", "traitlets"),
    "_devices": ("cupy", "jax"),
    "_numba": ("numba",),
    "_pillow": ("PIL",),
    "_others": ("bs4", "decorator", "distributed", "joblib", "pytest", "tqdm", "typing_extensions", "yaml", "zmq"),
    "_stdlib": ("sys",),
}
_imported: dict[str, Adapter] = {}


def _adapter(name: str) -> Adapter:
    found = _imported.get(name)
    if found is None:
        found = _imported[name] = importlib.import_module(f"{__name__}.{name}").ADAPTER
    return found


def loaded() -> Iterator[Adapter]:
    """The adapters of libraries that are loaded."""
    for name, libraries in _KNOWN.items():
        if any(map(_is_there, libraries)):
            yield _adapter(name)


def _is_there(library: str) -> bool:
    """Whether a library was imported. A cell may have put None, a mock or a module of its own in its place."""
    spec = typenames.held_by(sys.modules.get(library)).get("__spec__")
    return getattr(spec, "loader", None) is not None


def known() -> Iterator[Adapter]:
    """All adapters."""
    return map(_adapter, _KNOWN)


def rules_of(module: str, by_name: dict[str, Rule]) -> list[tuple[Any, Rule]]:
    """Rules for classes of a module, by the classes' names. None unless the module is loaded with all of them."""
    made = sys.modules.get(module)
    whole = all(hasattr(made, name) for name in by_name)
    return [(getattr(made, name), rule) for name, rule in by_name.items()] if whole else []


def entries(part: str, of: Iterable[Adapter] | None = None) -> Iterator[Any]:
    """Entries of one field of the adapters, by default of loaded libraries."""
    for adapter in loaded() if of is None else of:
        yield from getattr(adapter, part)


def distribution(module: str) -> str:
    """The package of a module. A module that isn't loaded is looked for in all adapters."""
    for adapter in loaded() if module in sys.modules else known():
        if module in adapter.distributions:
            return adapter.distributions[module]
    return module
