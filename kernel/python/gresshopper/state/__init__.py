"""Capturing, saving and restoring the state of a notebook's kernel.

`agent` puts the parts of one kernel together; `supervised` and `commands` ask it. Where to look:

- Around cells: `watcher` runs captures, `pace` decides when and how long, `failures` tells of failed ones. Beside them
  `event_loop`, `limits`, `interrupts`, `threads`, `programs`, `incoming` requests, widgets' `callbacks`, `draining` and
  `muting` of messages, the `gc_pause`, the `switch_interval`, and the `recursion`.
- Changes: `capture` makes the deltas. `variables` finds the changed variables, by the `names` in a cell. `units` has
  the known groups, and `grouping` searches for groups. `hooks` run beside a cell's names, and `reach` follows them.
  `buffers` has the content of large memory, `marks` those of values.
- Outside of variables: `process`, with `settings`, `standard`, `loggers`, `contexts`, `context_variables`, `streams`,
  `libraries`, `singles`, `places`, `user_modules` and `module_entries`.
- Objects as bytes: `pickling` in a `session`, by `rules` and `adapters` of libraries; `writing` holds the result, and
  `recipes` makes them again. Beside them `kinds`, `shapes`, `containers`, `dynamic_attributes`, `iterators`, `setorder`, the
  `shipped` cloudpickle, and `verify`, which loads what was written.
- Storage: `recorder` makes `records` of deltas, in the `form` on disk and the `store` of content. `native` calls the
  native library.
- Saves: `saving`, with `planning` of what cells make again, `redo` and `rerun` of cells, and their `effects`. `export`
  writes a save as files for other tools.
- Restores: `recovery`, with `restore` of the variables, `deferred` reading, `lost` placeholders, `notices` of losses, and
  the `namespace` that IPython keeps. `standby` and `follow` are for a kernel in waiting, `unmovable` says what can't go.

Modules stay at one level: saved states name functions of this package (docs/state-format.md).
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
