"""A server at its end saves its kernels: the same notebooks' next opening goes on with their variables.

Jupyter Server shuts all kernels down at its end, in the same way as a user shuts down a kernel. So the kernels are
saved first.
"""

from __future__ import annotations

import asyncio
from typing import Any

from jupyter_server.utils import ensure_async

from gresshopper_jupyter.server.ids import ours


def save_at_the_end(serverapp: Any) -> None:
    """Has the kernels hibernate before the server shuts down what is left."""
    manager = serverapp.kernel_manager
    shutdown_all = manager.shutdown_all

    async def save_and_shut_down(now: bool = False) -> None:
        await save_all(manager)
        await ensure_async(shutdown_all(now))

    manager.shutdown_all = save_and_shut_down


async def save_all(manager: Any) -> None:
    """Saves all kernels of ours at once."""
    kernels = ours(manager).values()
    for kernel in kernels:
        kernel.stop_restarter()  # it would take a saved kernel for a dead one, and start it again
    await asyncio.gather(*(kernel.provisioner.hibernate() for kernel in kernels), return_exceptions=True)
