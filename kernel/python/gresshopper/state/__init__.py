"""Capturing, saving and restoring the state of a notebook's kernel."""

from __future__ import annotations

import sys
from typing import Any

from . import shipped

__all__ = ["load_ipython_extension", "unload_ipython_extension"]

shipped.provide()


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext gresshopper.state`: capture after each cell."""
    from gresshopper import door

    from . import commands
    from .agent import agent

    commands.register(shell)
    try:
        door.open_here()
    except OSError as error:
        print(f"Gresshopper: `hop state` can't reach this kernel: {error}", file=sys.stderr)
    of = agent(shell)
    if of.recorder.journal is not None:
        print("Gresshopper keeps this kernel's state already: nothing is to be loaded.", file=sys.stderr)
        return
    of.watch(ahead=False)


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext gresshopper.state`."""
    from .agent import agent

    agent(shell).unwatch()
