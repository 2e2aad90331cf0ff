"""IPython: how the shell shows results and errors, and the notebook's magics, aliases and formatters."""

from __future__ import annotations

import sys
import types
from typing import Any

from .. import recipes
from ..session import MAIN, NotHereError, own_module
from . import Adapter, Rule, Section

_TEXT = ("float_precision", "pprint", "max_seq_length", "max_width")

_RELOADER = ("enabled", "check_all", "autoload_obj")


def ipython() -> dict[str, Any]:
    """How the shell shows results and errors, and the notebook's magics, aliases and formatters."""
    shell = get_shell()
    text = shell.display_formatter.formatters["text/plain"]
    manager = shell.magics_manager
    magics = [(kind, name, f) for kind, by_name in manager.magics.items() for name, f in by_name.items()]
    reloader = _reloader(manager)
    return {
        "shown": shell.ast_node_interactivity,
        "automagic": shell.automagic,
        "errors": shell.InteractiveTB.mode,
        "text": {name: getattr(text, name) for name in _TEXT},
        "types": [
            (mime, cls, how)
            for mime, formatter in shell.display_formatter.formatters.items()
            for cls, how in formatter.type_printers.items()
            if type(how) is types.FunctionType and how.__globals__ is shell.user_ns
        ],
        "magics": [magic for magic in magics if _by_notebook(magic[2], shell)],
        "aliases": [
            (kind, name, f.magic_name, f.magic_kind, f.magic_params)
            for kind, name, f in magics
            if type(f).__name__ == "MagicAlias" and (name, f.magic_name) not in _ALIASES
        ],
        "called": [
            (event, f)
            for event, functions in shell.events.callbacks.items()
            for f in functions
            if _by_notebook(f, shell)
        ],
        "transformers": {name: [f for f in getattr(shell, name) if _by_notebook(f, shell)] for name in _TRANSFORMERS},
        "commands": _commands(shell.alias_manager),
        "extensions": sorted(_extensions(shell)),
        "held": _held(manager),
        "registered": _registered(manager),
        "handled": [error.__name__ for error in shell.custom_exceptions],
        "reloader": None if reloader is None else {k: getattr(reloader, k, None) for k in _RELOADER},
    }


def _by_notebook(f: Any, shell: Any) -> bool:
    return type(f) is types.FunctionType and f.__globals__ is shell.user_ns


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
    return sorted(cls for cls, held in manager.registry.items() if type(held).__module__ == MAIN)


def _held(manager: Any) -> dict[str, str]:
    """What the magics of the user's own extensions keep for themselves, as far as it is plain."""
    return {
        f"{cls}.{name}": repr(value)[:200]
        for cls, held in manager.registry.items()
        if own_module(sys.modules.get(type(held).__module__))
        for name, value in vars(held).items()
        if type(value) in _PLAIN and not name.startswith(_OF_TRAITS) and name not in _OF_MAGICS
    }


_PLAIN = (bool, int, float, str, bytes, type(None), list, tuple, dict, set)
_OF_TRAITS = ("_trait", "_cross_validation")
_OF_MAGICS = ("magics", "options_table")


def set_ipython(state: dict[str, Any]) -> None:
    """
    # Errors
    `NotHereError` names what isn't there.
    """
    shell = get_shell()
    text = shell.display_formatter.formatters["text/plain"]
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
    for mime, cls, how in state["types"]:
        shell.display_formatter.formatters[mime].for_type(cls, how)
    for kind, name, f in state["magics"]:
        shell.magics_manager.register_function(f, kind, name)
    for event, f in state.get("called", ()):
        shell.events.register(event, f)
    for name, functions in state.get("transformers", {}).items():
        there = getattr(shell, name)
        there.extend(f for f in functions if f not in there)
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
    told = [f"{', '.join(missing)}: what a class of magics holds isn't saved, run its cells again"] if missing else []
    if state.get("handled") and not shell.custom_exceptions:
        told.append(f"the handler of {', '.join(state['handled'])}: the notebook set this, run its cell again")
    if told:
        raise NotHereError("; ".join(told))


def _formatter(dump: Any, made: Any) -> Any:
    for kind, formatter in get_shell().display_formatter.formatters.items():
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


ADAPTER = Adapter(modules=("IPython",), bases=_bases, sections={"IPython": Section(ipython, set_ipython)})
