"""IPython: how the shell shows results and errors, and the notebook's magics, aliases and formatters."""

from __future__ import annotations
import __future__

import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from gresshopper import typenames

from .. import recipes, settings, singles
from ..lost import Lost, LostError
from ..session import MAIN, NotHereError, own_module, reason
from . import Adapter, Rule, Section

_TEXT = ("float_precision", "pprint", "max_seq_length", "max_width")

_RELOADER = ("enabled", "check_all", "autoload_obj", "modules", "skip_modules")


def ipython() -> dict[str, Any]:
    """How the shell shows results and errors, and the notebook's magics, aliases and formatters."""
    shell = get_shell()
    # Made at the first need, by the configuration of then.
    formatters = shell.display_formatter._trait_values.get("formatters", {})
    text = formatters.get("text/plain")
    manager = shell.magics_manager
    magics = [(kind, name, f) for kind, by_name in manager.magics.items() for name, f in by_name.items()]
    reloader = _reloader(manager)
    hung = _hung_in(shell)
    return {
        "shown": shell.ast_node_interactivity,
        "automagic": shell.automagic,
        "errors": shell.InteractiveTB.mode,
        "text": {} if text is None else {name: getattr(text, name) for name in _TEXT},
        "types": [(*key, kept) for what, key, _, kept in hung if what == "type" and kept is not None],
        "magics": [(*key, kept) for what, key, _, kept in hung if what == "magic" and kept is not None],
        "aliases": [
            (kind, name, f.magic_name, f.magic_kind, f.magic_params)
            for kind, name, f in magics
            if typenames.name_of(type(f)) == "MagicAlias" and (name, f.magic_name) not in _ALIASES
        ],
        "called": [(*key, kept) for what, key, _, kept in hung if what == "event" and kept is not None],
        "transformers": {
            name: [kept for what, key, _, kept in hung if key == (name,) and kept is not None]
            for name in _TRANSFORMERS
        },
        "others": _others(hung),
        "commands": _commands(shell.alias_manager),
        "extensions": sorted(_extensions(shell)),
        "held": _held(manager),
        "registered": _registered(manager),
        "logged": bool(shell.logger.log_active),
        "handled": [typenames.name_of(error) for error in shell.custom_exceptions],
        "pdb": bool(shell.call_pdb),
        "directories": list(shell.dir_stack),
        "folders": _folders(shell)[:],
        "config": _config(shell),
        "traits": _traits(shell),
        "trees": [
            typenames.qualname_of(type(t)) for t in shell.ast_transformers if typenames.module_of(type(t)) == MAIN
        ],
        "reloader": None
        if reloader is None
        else {k: getattr(reloader, k) for k in _RELOADER if hasattr(reloader, k)},
    }


#: Flags of the compiler by the names of `from __future__ import ..`, which holds for all later cells.
_FUTURES: dict[str, int] = {name: getattr(__future__, name).compiler_flag for name in __future__.all_feature_names}
#: Belong to the process rather than to the notebook.
_APPLICATIONS = (
    "App",
    "Application",
    "ConnectionFileMixin",
    "ProfileDir",
    "HistoryManager",
    "HistoryAccessor",
    "Session",
)
_OF_PROCESS = frozenset({"lazy_magics", "ipython_dir", "logfile", "logappend", "logstart", "hist_file"})
#: Configurable traits of a class with their defaults, as far as these are written down.
_defaults: dict[type, dict[str, Any]] = {}


def _folders(shell: Any) -> list[str]:
    """IPython's list of folders. The variable `_dh` may be the user's own."""
    found: list[str] = getattr(getattr(shell, "history_manager", None), "dir_hist", [])
    return found


def _configurables(shell: Any) -> dict[str, Any]:
    return {
        typenames.name_of(type(c)): c
        for c in shell.configurables
        if not typenames.name_of(type(c)).endswith(_APPLICATIONS)
    }


def _config(shell: Any) -> dict[str, dict[str, Any]]:
    """Plain traits in the shell's configuration, which `%config` changes, also of classes that aren't loaded yet."""
    found = {}
    for kind, traits in shell.config.items():
        if not kind.endswith(_APPLICATIONS) and isinstance(traits, dict):
            plain = {name: v for name, v in traits.items() if name not in _OF_PROCESS and singles.is_plain(v)}
            found.update({kind: plain} if plain else {})
    return found


def _traits(shell: Any) -> dict[str, dict[str, Any]]:
    """Traits that aren't as IPython makes them."""
    found: dict[str, dict[str, Any]] = {}
    for kind, made in _configurables(shell).items():
        values = made._trait_values
        for name, default in _defaults_of(made).items():
            value = values.get(name, default)
            if value is not default and value != default and singles.is_plain(value):
                found.setdefault(kind, {})[name] = value
    return found


def _defaults_of(made: Any) -> dict[str, Any]:
    known = _defaults.get(type(made))
    if known is None:
        # Traits with a dynamic default are left out: reading the default may create an object.
        found_out = {name for base in type(made).__mro__ for name in vars(base).get("_trait_default_generators", ())}
        known = _defaults[type(made)] = {
            name: trait.default(made)
            for name, trait in made.traits(config=True).items()
            if name not in _OF_PROCESS | found_out and not hasattr(made, f"_{name}_default")
        }
    return known


#: The traits that were set for a saved state: a later one may lack them.
_set: list[tuple[str, str]] = []


def _set_configured(shell: Any, state: dict[str, Any]) -> None:
    if state["config"] != _config(shell):
        config = type(shell.config)(state["config"])
        for made in _configurables(shell).values():
            made.update_config(config)
    there, wanted = _configurables(shell), state["traits"]
    while _set:
        kind, name = _set.pop()
        if name not in wanted.get(kind, ()) and kind in there:
            setattr(there[kind], name, _defaults_of(there[kind])[name])
    for kind, traits in wanted.items():
        for name, value in traits.items() if kind in there else ():
            if getattr(there[kind], name) != value:
                setattr(there[kind], name, value)
            _set.append((kind, name))


#: An object hung into the shell: the kind, the place, the object, and the object's written form.
_Hung = tuple[str, "tuple[Any, ...]", Any, Any]


def _hung_in(shell: Any) -> list[_Hung]:
    """Objects that hang in the shell and aren't the shell's own. Magics of a class are left out: the class is told."""
    manager = shell.magics_manager
    found: list[tuple[str, tuple[Any, ...], Any]] = []
    for mime, formatter in shell.display_formatter._trait_values.get("formatters", {}).items():
        # The class is a module's name and its own, if it isn't loaded yet.
        for printers in (formatter.type_printers, formatter.deferred_printers):
            found += [("type", (mime, cls), how) for cls, how in printers.items() if not _is_shells(how)]
    classes = {id(held) for held in manager.registry.values()}
    for kind, by_name in manager.magics.items():
        found += [
            ("magic", (kind, name), f)
            for name, f in by_name.items()
            if not _is_shells(f) and id(getattr(f, "__self__", None)) not in classes
        ]
    for event, functions in shell.events.callbacks.items():
        found += [("event", (event,), f) for f in functions if not _is_shells(f) and _called(f) not in _OF_PYPLOT]
    for name in _TRANSFORMERS:
        found += [("transformer", (name,), f) for f in getattr(shell, name) if not _is_shells(f)]
    return [(*one, _kept(one[2]) if settings.is_mine(one[2]) else None) for one in found]


def _hooks() -> Iterator[Any]:
    """What the shell calls of the notebook's."""
    try:
        shell = get_shell()
    except LookupError:
        return
    for _, key, hook, _ in _hung_in(shell):
        yield hook
        yield key[-1] if isinstance(key[-1], type) and settings.of_notebook(key[-1]) else None
    yield from (tree for tree in shell.ast_transformers if settings.is_mine(tree))
    yield from (held for held in shell.magics_manager.registry.values() if settings.is_mine(held))
    if shell.custom_exceptions:
        yield shell.CustomTB


#: Libraries whose own parts of the shell are there in each.
_SHELLS = ("IPython", "ipykernel", "matplotlib_inline", "gresshopper")
#: Functions that pyplot calls after each cell, from its first figure on.
_OF_PYPLOT = ("_draw_all_if_interactive", "install_repl_displayhook.<locals>.post_execute")


def _is_shells(f: Any) -> bool:
    kind = type(f)
    if kind is types.MethodType:
        return typenames.module_of(type(f.__self__)).startswith(_SHELLS)
    if kind is functools.partial:
        return _is_shells(f.func)
    return typenames.home_of(f if kind is types.FunctionType else kind).startswith(_SHELLS)


def _kept(f: Any) -> Any | None:
    """The written form of a notebook's function or callable object. An object is written by the variable that holds the
    object, and stays a single object. None if the object can't be written."""
    kind = type(f)
    if kind in settings.ATOMS or kind is types.FunctionType or issubclass(kind, type):
        return f
    if kind is functools.partial:
        wanted = [f.func, *f.args, *f.keywords.values()]
        parts = [_kept(part) for part in wanted]
        if any(kept is None and part is not None for kept, part in zip(parts, wanted)):
            return None
        return "partial", tuple(parts), tuple(f.keywords)
    name = settings.name_of(f.__self__ if kind is types.MethodType else f)
    method = typenames.text_of(f.__func__, "__name__") if kind is types.MethodType else ""
    return None if name is None or (kind is types.MethodType and not method) else ("held", name, method)


def _made(kept: Any) -> Any:
    """What `_kept` wrote.

    # Errors
    `LostError`, `KeyError` or `AttributeError`, if the variable that holds the object is missing.
    """
    if type(kept) is not tuple:
        return kept
    if kept[0] == "partial":
        (call, *given), names = map(_made, kept[1]), kept[2]
        split = len(given) - len(names)
        return functools.partial(call, *given[:split], **dict(zip(names, given[split:])))
    held = settings.named(kept[1])
    if isinstance(held, Lost):
        raise LostError(kept[1])
    return getattr(held, kept[2]) if kept[2] else held


def _others(hung: list[_Hung]) -> list[str]:
    """What is written nowhere, in words."""
    words = {
        "event": "the callback of {0} {1}",
        "transformer": "the transformer of input {1}",
        "magic": "the magic {0}",
    }
    found = set()
    for what, key, f, kept in hung:
        if kept is None:
            found.add(words.get(what, "a formatter of {2}").format(key[-1], _called(f), _origin(f)))
    return sorted(found)


def _origin(f: Any) -> str:
    kind = type(f)
    if kind is types.MethodType:
        return typenames.module_of(type(f.__self__))
    if kind is functools.partial:
        return _origin(f.func)
    return typenames.home_of(f if kind is types.FunctionType or issubclass(kind, type) else kind)


def _called(f: Any) -> str:
    if type(f) is functools.partial:
        return _called(f.func)
    name = typenames.text_of(f, "__qualname__") if type(f) in (types.FunctionType, types.MethodType) else ""
    return name or typenames.qualname_of(type(f))


_TRANSFORMERS = ("input_transformers_cleanup", "input_transformers_post")

#: Aliases that IPython makes.
_ALIASES = {
    ("ed", "edit"),
    ("hist", "history"),
    ("rep", "recall"),
    ("SVG", "svg"),
    ("HTML", "html"),
    ("file", "writefile"),
}


def get_shell() -> Any:
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is None:
        raise LookupError("no shell")
    return shell


def _commands(manager: Any) -> list[tuple[str, str]]:
    """The notebook's aliases of shell commands."""
    by_default = manager.default_aliases
    return [pair for pair in manager.aliases if pair not in by_default]


def _extensions(shell: Any) -> set[str]:
    return {
        name
        for name in shell.extension_manager.loaded
        if not name.startswith("gresshopper") and not name.endswith("storemagic")
    }


def _reloader(manager: Any) -> Any:
    return getattr(manager.registry.get("AutoreloadMagics"), "_reloader", None)


def _registered(manager: Any) -> list[str]:
    """The notebook's own classes of magics."""
    return sorted(cls for cls, held in manager.registry.items() if typenames.module_of(type(held)) == MAIN)


def _held(manager: Any) -> dict[str, str]:
    """Plain values that the magics of the user's own extensions keep for themselves."""
    return {
        f"{cls}.{name}": repr(value)[:200]
        for cls, held in manager.registry.items()
        if own_module(sys.modules.get(typenames.module_of(type(held))))
        for name, value in vars(held).items()
        if type(value) in _PLAIN and not name.startswith(_OF_TRAITS) and name not in _OF_MAGICS
    }


_PLAIN = (bool, int, float, str, bytes, type(None), list, tuple, dict, set)
_OF_TRAITS = ("_trait", "_cross_validation")
_OF_MAGICS = ("magics", "options_table")


def _futures() -> list[str]:
    flags = get_shell().compile.flags
    return [name for name, flag in _FUTURES.items() if flags & flag]


def _set_futures(state: list[str]) -> None:
    compiler = get_shell().compile
    for name, flag in _FUTURES.items():
        compiler.flags = compiler.flags & ~flag | (flag if name in state else 0)


def set_ipython(state: dict[str, Any]) -> None:
    """
    # Errors
    `NotHereError` names what isn't there.
    """
    shell = get_shell()
    if "traits" in state:
        _set_configured(shell, state)
        shell.dir_stack[:] = state["directories"]
        folders = _folders(shell)
        folders[:] = state.get("folders", folders)
        if bool(shell.call_pdb) != state["pdb"]:
            shell.call_pdb = state["pdb"]
    text = shell.display_formatter.formatters["text/plain"] if state["text"] else None
    for owner, name, value in (
        (shell, "ast_node_interactivity", state["shown"]),
        (shell, "automagic", state["automagic"]),
        *((text, name, value) for name, value in state["text"].items()),
    ):
        if getattr(owner, name) != value:
            setattr(owner, name, value)
    if shell.InteractiveTB.mode != state["errors"]:
        shell.InteractiveTB.set_mode(mode=state["errors"])
    for name in state["extensions"]:
        if name not in shell.extension_manager.loaded:
            shell.extension_manager.load_extension(name)
    told = _hang_in(shell, state)
    for kind, name, target, _, params in state["aliases"]:
        shell.magics_manager.register_alias(name, target, kind, params)
    for name, command in state["commands"]:
        shell.alias_manager.define_alias(name, command)
    reloader = _reloader(shell.magics_manager)
    for name, value in (state["reloader"] or {}).items() if reloader is not None else ():
        setattr(reloader, name, value)
    here = _held(shell.magics_manager)
    missing = sorted(name for name, what in state.get("held", {}).items() if here.get(name) != what)
    missing += [name for name in state.get("registered", ()) if name not in _registered(shell.magics_manager)]
    if missing:
        told.append(f"{', '.join(missing)}: what a class of magics holds isn't saved, run its cells again")
    trees = [
        name
        for name in state.get("trees", ())
        if name not in [typenames.qualname_of(type(t)) for t in shell.ast_transformers]
    ]
    if trees:
        told.append(f"the transformer of trees {', '.join(trees)}: the notebook set this, run its cell again")
    if state.get("handled") and not shell.custom_exceptions:
        told.append(f"the handler of {', '.join(state['handled'])}: the notebook set this, run its cell again")
    if state.get("logged") and not shell.logger.log_active:
        told.append("the log of %logstart: the notebook began it, run its cell again")
    others = set(state.get("others", ()))
    if others := others and others.difference(_others(_hung_in(shell))):
        told.append(f"{', '.join(sorted(others))}: the notebook set this, run its cell again")
    if told:
        raise NotHereError("; ".join(told))


def _hang_in(shell: Any, state: dict[str, Any]) -> list[str]:
    """Hang the notebook's functions and objects into the shell; says which couldn't be."""
    told = []

    def put(kept: Any, where: str, into: Callable[[Any], Any]) -> None:
        try:
            into(_made(kept))
        except Exception as e:
            told.append(f"{where}: the notebook set this, run its cell again ({reason(e)})")

    for mime, cls, how in state["types"]:
        formatter = shell.display_formatter.formatters[mime]
        if isinstance(cls, tuple):
            put(how, f"the formatter of {'.'.join(cls)}", functools.partial(formatter.for_type_by_name, *cls))
        else:
            put(how, f"the formatter of {typenames.qualname_of(cls)}", functools.partial(formatter.for_type, cls))
    for kind, name, f in state["magics"]:
        add = functools.partial(shell.magics_manager.register_function, magic_kind=kind, magic_name=name)
        put(f, f"the magic {name}", add)
    for event, f in state.get("called", ()):
        put(f, f"the callback of {event}", functools.partial(shell.events.register, event))
    for name, functions in state.get("transformers", {}).items():
        there = getattr(shell, name)
        for f in functions:
            put(f, "the transformer of input", functools.partial(_append, there))
    return told


def _take_out() -> None:
    """Take the notebook's callbacks and transformers of input out of the shell: others replace the rest."""
    shell = get_shell()
    for functions in (*shell.events.callbacks.values(), *(getattr(shell, name) for name in _TRANSFORMERS)):
        functions[:] = [f for f in functions if not settings.is_mine(f)]


def _append(there: list[Any], made: Any) -> None:
    if made not in there:
        there.append(made)


def _formatter(dump: Any, made: Any) -> Any:
    for kind, formatter in get_shell().display_formatter._trait_values.get("formatters", {}).items():
        if formatter is made:
            dump.unlinked.add(id(made))  # what the notebook registered there is a section
            return recipes.formatter, (kind,)
    return NotImplemented


@recipes.recipe
def formatter(kind: str) -> Any:
    """The shell's formatter of a kind of output."""
    return get_shell().display_formatter.formatters[kind]


def _bases() -> list[tuple[Any, Rule]]:
    formatters: Any = sys.modules.get("IPython.core.formatters")
    return [] if formatters is None else [(formatters.BaseFormatter, _formatter)]


ADAPTER = Adapter(
    modules=("IPython",),
    bases=_bases,
    threads=("IPython", "debugpy", "ipykernel", "jupyter", "pydevd", "_pydevd", "tornado"),
    hooks=(_hooks,),
    whole=("IPython", "ipykernel", "zmq", "tornado.platform", "tornado.ioloop", "traitlets"),
    distributions={"dateutil": "python-dateutil"},
    of_kernel=(
        "IPython",
        "comm",
        "debugpy",
        "ipykernel",
        "jedi",
        "jupyter_client",
        "jupyter_core",
        "parso",
        "pydevd",
        "_pydev_bundle",
        "_pydevd_bundle",
        "tornado",
        "traitlets",
        "zmq",
    ),
    lends=("decorator", "matplotlib_inline", "typing_extensions"),
    sections={
        "IPython": Section(ipython, set_ipython, take_out=_take_out),
        # A separate section: a cell's re-run needs the future flags, and nothing else of the shell's.
        "IPython.core.compilerop": Section(_futures, _set_futures),
    },
)
