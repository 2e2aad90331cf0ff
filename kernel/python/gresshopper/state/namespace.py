"""IPython's namespace of a user: the variables, and what IPython remembers beside them.

IPython keeps displayed values, inputs and own names among the variables, and once more in the display hook, the history
manager and the table of hidden names. Both places are asked and set here. The engine knows variables alone.
"""

from __future__ import annotations

import contextlib
import itertools
import linecache
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import restore
from .lost import Pending

#: Names under which IPython keeps the values displayed last.
SHOWN = ("_", "__", "___")
#: Names through which a cell reaches whatever was displayed.
DISPLAYED = frozenset({"Out", "_oh", *SHOWN})
#: Names that Python binds itself in a namespace.
_PYTHON = frozenset({"__builtin__", "__builtins__"})
#: Names under which IPython keeps the inputs before a cell, beside `_i1` and its like.
_INPUTS = frozenset({"_i", "_ii", "_iii"})
#: Names of the module that a notebook is, and of the kernel's notebook. Another value than at the start is the user's.
_OF_MODULE = ("__name__", "__doc__", "__package__", "__loader__", "__spec__", "__session__")


class Namespace:
    """The namespace of one shell."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        of_module = {name: shell.user_ns[name] for name in _OF_MODULE if name in shell.user_ns}
        self._hidden_at_start = {**of_module, **shell.user_ns_hidden}

    @property
    def variables(self) -> dict[str, Any]:
        """The variables, and IPython's names among them."""
        found: dict[str, Any] = self.shell.user_ns
        return found

    def is_hidden(self, name: str, value: Any) -> bool:
        """Whether a name holds IPython's own object. The user may give another one to any name."""
        if name in _PYTHON:
            return True
        if name in SHOWN:
            empty = isinstance(value, str) and value == ""
            return empty or number_of(self.shell, name, value) > 0
        if name in self._hidden_at_start:
            was = self._hidden_at_start[name]
            if was is value or (type(value) is types.MethodType and was == value):
                return True
        is_input = name in _INPUTS or (name.startswith("_i") and name[2:].isdigit())
        return is_input and self.shell.user_ns_hidden.get(name) is value

    @property
    def inputs(self) -> list[str]:
        """IPython's inputs by their number, as run."""
        return inputs_of(self.shell)

    @property
    def _outputs(self) -> dict[Any, Any]:
        return outputs_of(self.shell)

    def as_in_a_cell(self) -> Any:
        """Libraries that are imported here find `get_ipython` among the builtins, as in a cell: pandas takes defaults by it."""
        return getattr(self.shell, "builtin_trap", None) or contextlib.nullcontext()

    # --- IPython's record of a cell ---

    def source_of(self, raw: str, count: int | None) -> str:
        """IPython's transformed source of a cell, as run, from the history where possible: a user's transformer isn't
        called twice."""
        history: Any = getattr(self.shell, "history_manager", None)
        at = count or 0
        known = history is not None and 0 < at < min(len(history.input_hist_raw), len(history.input_hist_parsed))
        if known and history.input_hist_raw[at] == raw:
            # The history takes the ends of lines away at the end.
            return f"{history.input_hist_parsed[at]}\n"
        try:
            return str(self.shell.transform_cell(raw))
        except Exception:  # the request failed by it: nothing else of it ran
            return raw

    def file_of(self, source: str, raw: str, count: int | None) -> str:
        """The file name under which a cell was compiled, as remembered by its functions."""
        namer = getattr(self.shell.compile, "get_code_name", None)
        return "" if namer is None else str(namer(raw, source, count or 0))

    def displayed(self, names: Iterable[str]) -> list[str]:
        """Variables of the displayed values that a cell with these names may reach through `_` and its like, or through
        `Out`.
        """
        named = DISPLAYED.intersection(names)
        if not named:
            return []
        numbers = [n for n in self._outputs if type(n) is int]
        # The cell may itself have displayed something, which moves the older values on by one place.
        return [f"_{n}" for n in (numbers if {"Out", "_oh"} & named else numbers[-len(SHOWN) - 1 :])]

    # --- restored variables ---

    def put(self, staged: Mapping[str, Any]) -> None:
        """Set variables, and the displayed values among them."""
        self.variables.update(staged)
        out = self._outputs
        shown = {int(n[1:]): value for n, value in staged.items() if n[:1] == "_" and n[1:].isdigit()}
        out.update(shown)
        numbers = list(out) if shown else []
        if any(type(number) is not int for number in numbers):
            numbers = []  # the user's own
        for number in sorted(numbers) if numbers != sorted(numbers) else ():
            out[number] = out.pop(number)

    def put_read(self, staged: Mapping[str, Any]) -> None:
        """Set variables in place of their placeholders, also where IPython holds one."""
        space, hook, hidden = self.variables, self.shell.displayhook, self.shell.user_ns_hidden
        stood = ((space.get(name), value) for name, value in staged.items())
        read = {id(old): value for old, value in stood if isinstance(old, Pending)}
        for name in SHOWN:
            if (old := id(getattr(hook, name, None))) in read:
                setattr(hook, name, read[old])
            if (old := id(hidden.get(name))) in read:
                hidden[name] = read[old]
        self.put(staged)

    def settle(self, snapshot: restore.Snapshot) -> None:
        """Have IPython's own memory as it was."""
        self._show(snapshot)
        restore.arrange(self.variables, snapshot.order)
        self._history(snapshot)

    def _show(self, snapshot: restore.Snapshot) -> None:
        """Sets `_` and its like to the last displayed values, unless the user has set these names.

        IPython knows by `user_ns_hidden` whether they are, and goes on setting them if not.
        """
        space, hook = self.variables, self.shell.displayhook
        out = self._outputs
        newest = sorted((n for n in out if type(n) is int), reverse=True)
        for i, name in enumerate(SHOWN):
            number = snapshot.shown.get(name, 0)
            if number in out:
                space[name] = self.shell.user_ns_hidden[name] = out[number]
                setattr(hook, name, out[number])
            elif i < len(newest):
                setattr(hook, name, out[newest[i]])
            if snapshot.shown and name not in snapshot.shown:
                space.pop(name, None)  # the user deleted it

    def _history(self, snapshot: restore.Snapshot) -> None:
        inputs = self.inputs
        if snapshot.history:
            top = max(snapshot.history)
            inputs[:] = [snapshot.history.get(i, "") for i in range(top + 1)]
            self._inputs(inputs, snapshot)
        if getattr(self.shell, "last_execution_result", None) is None:
            from IPython.core.interactiveshell import ExecutionResult

            self.shell.last_execution_result = ExecutionResult(None)  # `%xdel` asks it for its result
        self.shell.execution_count = max(self.shell.execution_count, snapshot.count)

    def _inputs(self, inputs: list[str], snapshot: restore.Snapshot) -> None:
        """Make `_i` and its like, and lookups of inputs by number, find the inputs as they were typed."""
        manager = self.shell.history_manager
        inputs = [snapshot.raw.get(n, text) for n, text in enumerate(inputs)]
        found = {f"_i{n}": text for n, text in enumerate(inputs) if n}
        newest = [*reversed(inputs[1:]), "", "", "", ""]
        # IPython moves each one on when the next cell begins.
        names = ("_i00", "_i", "_ii", "_iii")
        for name, text in zip(names, newest):
            setattr(manager, name, text)
        found.update(zip(names[1:], newest[1:]))
        users = {name for entry in snapshot.units.values() for name in entry.names}
        self.variables.update({name: text for name, text in found.items() if name not in users})
        self.shell.user_ns_hidden.update(found)
        raw = manager.input_hist_raw
        if len(raw) < len(inputs):
            raw[:] = inputs


def number_of(shell: Any, name: str, value: Any) -> int:
    """The cell that displayed this value, held by `_` or its like; or 0, as for a value given to the name by the user."""
    out, hidden = shell.user_ns.get("_oh"), shell.user_ns_hidden
    given = hidden[name] if name in hidden else getattr(shell.displayhook, name, None)
    if given is not value or not isinstance(out, dict):
        return 0
    last = itertools.islice(reversed(out), 100)
    return next((n for n in last if isinstance(n, int) and out[n] is value), 0)


def inputs_of(shell: Any) -> list[str]:
    """IPython's inputs by their number, as run. `In` may be the user's own."""
    history = getattr(shell, "history_manager", None)
    found = shell.user_ns.get("_ih") if history is None else history.input_hist_parsed
    return found if isinstance(found, list) else []


def outputs_of(shell: Any) -> dict[Any, Any]:
    """The displayed values by their number. `Out` may be the user's own."""
    history = getattr(shell, "history_manager", None)
    found = shell.user_ns.get("_oh") if history is None else history.output_hist
    return found if isinstance(found, dict) else {}


def know_sources(cells: Sequence[Mapping[str, Any]]) -> None:
    """Make sources of restored functions available under their file names, as far as their cells are recorded."""
    for cell in cells:
        name, source = cell.get("file"), cell["source"]
        if name and name not in linecache.cache:
            linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
