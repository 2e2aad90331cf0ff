"""The process's own `sys.stdin`, `sys.stdout` and `sys.stderr`. A notebook may put others in their places."""

from __future__ import annotations

import sys
from typing import Any

from .lost import Lost

#: The streams from before any cell, by name.
STREAMS: dict[str, Any] = {}


def know() -> None:
    """Remember the process's own, before any cell has run."""
    STREAMS.setdefault("stdin", sys.stdin)
    STREAMS.setdefault("stdout", sys.stdout)
    STREAMS.setdefault("stderr", sys.stderr)


def take_back() -> None:
    """Replace streams that are lost: with a lost `sys.stdout`, the kernel couldn't send any reply."""
    for name, stream in STREAMS.items():
        if isinstance(getattr(sys, name), Lost):
            setattr(sys, name, stream)
            print(
                f"Gresshopper: sys.{name} was set to a value that is lost, and is the notebook's own again",
                file=STREAMS["stderr"] if name == "stdin" else stream,
            )
