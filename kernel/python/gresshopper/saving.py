"""The commands of `hop state` for a kernel whose state engine may not be loaded: it is imported when a command comes."""

from __future__ import annotations

from functools import partial
from typing import Any

from gresshopper import between, operations
from gresshopper.operations import Answer, Call, OperationError

#: The operations of `gresshopper.state.commands`.
_COMMANDS = ("show", "save", "load", "spent")


def offer(shell: Any) -> None:
    """Answer `hop state` from now on."""
    for name in _COMMANDS:
        operations.register(f"state.{name}", partial(_carry_out, shell, name), between.of(shell).post)


def _carry_out(shell: Any, name: str, call: Call) -> Answer:
    try:
        from gresshopper.state import commands
    except ImportError as error:
        raise OperationError("refused", f"this kernel's environment lacks what saving needs: {error}") from error
    return commands.carry_out(shell, name, call)
