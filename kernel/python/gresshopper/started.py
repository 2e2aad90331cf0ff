"""The kernel's environment and arguments, from before any code of the user's.

Later differences are the notebook's doing, and belong to its state. All else belongs to the process and its job.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple


class Start(NamedTuple):
    """A process's environment and `sys.argv` before the first cell."""

    environment: dict[str, str]
    #: None: the extension was loaded later, and `sys.argv` may be the user's already.
    arguments: list[str] | None


_start: Start | None = None


def know() -> None:
    """Remember what is there now: no code of the user's has run."""
    global _start  # noqa: PLW0603 - a process starts once
    _start = _start or Start(dict(os.environ), list(sys.argv))


def start() -> Start:
    """The start as `know` found it. Without that call, the environment comes from the operating system."""
    global _start  # noqa: PLW0603 - a process starts once
    if _start is None:
        _start = Start(_given(), None)
    return _start


def is_given(arguments: list[str]) -> bool:
    """Whether these are the arguments with which the process was started."""
    known = start().arguments
    if known is not None:
        return arguments == known
    given = _parts("cmdline")
    return not given or len(arguments) == 1 or given[len(given) - len(arguments) + 1 :] == arguments[1:]


def _given() -> dict[str, str]:
    pairs = (part.partition("=") for part in _parts("environ"))
    return {name: value for name, equals, value in pairs if equals} or dict(os.environ)


def _parts(of: str) -> list[str]:
    try:
        return [os.fsdecode(part) for part in Path(f"/proc/self/{of}").read_bytes().split(b"\0")[:-1]]
    except OSError:
        return []
