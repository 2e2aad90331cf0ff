"""The process's own `sys.stdin`, `sys.stdout` and `sys.stderr`. A notebook may put others in their places."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from .lost import Lost

#: The streams from before any cell, by name.
STREAMS: dict[str, Any] = {}


def know() -> None:
    """Remember the process's own, before any cell has run."""
    STREAMS.setdefault("stdin", sys.stdin)
    STREAMS.setdefault("stdout", sys.stdout)
    STREAMS.setdefault("stderr", sys.stderr)


#: The notebook's streams in their places, set by a restore.
_restored: dict[str, Any] = {}


def are_restored() -> None:
    """Note the notebook's streams, after a restore."""
    _restored.update({name: getattr(sys, name) for name, own in STREAMS.items() if getattr(sys, name) is not own})


def show_under(request: Mapping[str, Any]) -> None:
    """Have the process's streams show under this cell what the notebook's streams pass on to them. ipykernel names each
    cell to the streams in place alone, and those from before the restore knew an earlier cell.
    """
    for name, stream in _restored.items():
        set_parent = getattr(STREAMS[name], "set_parent", None)
        if set_parent is not None and getattr(sys, name) is stream and not hasattr(stream, "set_parent"):
            set_parent(request)


def take_back() -> None:
    """Replace streams that are lost: with a lost `sys.stdout`, the kernel couldn't send any reply."""
    for name, stream in STREAMS.items():
        if isinstance(getattr(sys, name), Lost):
            setattr(sys, name, stream)
            print(
                f"Gresshopper: sys.{name} was set to a value that is lost, and is the notebook's own again",
                file=STREAMS["stderr"] if name == "stdin" else stream,
            )
