"""Capturing, saving and restoring the state of a notebook's kernel.

`agent` puts the parts of one kernel together; `supervised` and `commands` ask it. Where to look:

- Around cells: `watcher` runs captures, `pace` decides when and how long, `failures` tells of failed ones. Beside them
  `event_loop`, `limits`, `interrupts`, `incoming` requests, `draining` of messages, and the `switch_interval`.
- What changed: `capture` makes deltas of `variables` (the changed ones), `units` (the known groups), `grouping` (the search
  for groups), `buffers` (content of large memory) and `process` (all settings outside of variables).
- Objects as bytes: `pickling`, by `rules` and `adapters` of libraries and of the standard library; `recipes` makes them again.
- What is kept: `recorder` makes `records` of deltas, in the `form` on disk and the `store` of content.
- Saves: `saving`, with `planning` of what cells make again, `redo` and `rerun` of cells, and their `effects`.
- Restores: `recovery`, with `restore` of the variables, `deferred` reading, `lost` placeholders, `notices` of losses, and
  the `namespace` that IPython keeps. `standby` and `follow` are for a kernel in waiting.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["load_ipython_extension", "unload_ipython_extension"]


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
