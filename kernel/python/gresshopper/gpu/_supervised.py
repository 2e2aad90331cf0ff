"""The half under a supervisor: a lease from the scheduler for a cell that has none and turns out to need one."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from gresshopper import need
from gresshopper.gpu import install as put_in_place

from ._errors import GpuUnavailable
from ._keeper import Keeper


class Scheduler:
    """Obtains a lease for the rest of the cell that runs, by the channel to the supervisor."""

    def __init__(self) -> None:
        self.in_cell = False
        self._block: need.Need | None = None
        self._lock = threading.Lock()

    def acquire(self, why: str) -> None:
        """Waits in the scheduler's queue, which the client shows and an interrupt ends."""
        with self._lock:
            if not self.in_cell:
                raise GpuUnavailable(
                    f"This kernel has no GPU now ({why}), and code that runs beside the cells can't obtain one: do it in "
                    "a cell with %%gpu."
                )
            if self._block is not None:
                return
            block = need.Need({"gpus": 1, "cpus": 0, "gpu_mem_mib": 0}, of_cell=True)
            try:
                block.__enter__()
            except need.LeaseRefused as error:
                raise GpuUnavailable(f"No GPU could be had for this cell ({why}): {error}") from None
            self._block = block

    def begins(self, info: Any = None) -> None:
        """A cell begins."""
        self.in_cell = True

    def over(self, result: Any = None) -> None:
        """Ends the cell, and gives its lease back."""
        self.in_cell = False
        with self._lock:
            block, self._block = self._block, None
            if block is not None:
                block.__exit__(None, None, None)


def install(shell: Any, threads: Sequence[int | None], in_cell: bool) -> Keeper:
    """Puts the half in place, perhaps in the middle of a cell."""
    source = Scheduler()
    # Before the keeper's own hooks, which may ask at once.
    shell.events.register("pre_run_cell", source.begins)
    keeper = put_in_place(source, ipython=shell)
    shell.events.register("post_run_cell", source.over)
    keeper.came_with_lease = lambda: need.came_with_lease(shell)
    keeper.threads.began_with(threads)
    need.on_change.append(lambda holds: keeper.grant() if holds else keeper.revoke())
    if in_cell:
        source.begins()
        keeper.joined_late()
    else:
        keeper.revoke()
    return keeper
