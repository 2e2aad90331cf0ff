"""What the kernels' processes use, by ``usage_request`` on their control channels: the kernel itself answers from its node,
also in the middle of a cell. A kernel that doesn't know the request (ipykernel does) has no figures.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

#: How long an answer may take, in seconds: a kernel that moves or starts has none.
TIMEOUT_S = 1.0


@dataclass(frozen=True)
class Used:
    """Memory and processor of a kernel and its children."""

    memory_mib: float
    #: 100 is a whole core.
    cpu_percent: float


class Usage:
    """Asks kernels, by one connection to each, kept for the next time."""

    def __init__(self) -> None:
        self._clients: dict[str, Any] = {}

    async def of(self, kernels: Iterable[tuple[str, Any]]) -> dict[str, Used]:
        """By the kernels' ids. Connections to others are closed."""
        wanted = dict(kernels)
        for gone in self._clients.keys() - wanted.keys():
            self._clients.pop(gone).stop_channels()
        asked = await asyncio.gather(*(self._ask(kernel_id, kernel) for kernel_id, kernel in wanted.items()))
        return {kernel_id: used for kernel_id, used in zip(wanted, asked) if used is not None}

    async def _ask(self, kernel_id: str, kernel: Any) -> Used | None:
        client = self._clients.get(kernel_id)
        if client is None:
            client = self._clients[kernel_id] = kernel.client()
            client.start_channels(shell=False, iopub=False, stdin=False, hb=False)
        request = client.session.msg("usage_request", {})
        client.control_channel.send(request)
        try:
            return await asyncio.wait_for(_answer(client, request["header"]["msg_id"]), TIMEOUT_S)
        except (asyncio.TimeoutError, queue.Empty):
            return None


async def _answer(client: Any, request: str) -> Used | None:
    while True:
        # Later than an earlier request's patience, perhaps.
        message = await client.control_channel.get_msg(timeout=TIMEOUT_S)
        if message["parent_header"].get("msg_id") == request:
            return parse(message["content"])


def parse(content: dict[str, Any]) -> Used | None:
    """The figures of a ``usage_reply``, if the kernel has some."""
    memory, cpu = content.get("kernel_memory"), content.get("kernel_cpu")
    if not isinstance(memory, (int, float)) or not isinstance(cpu, (int, float)):
        return None
    return Used(memory / 2**20, float(cpu))
