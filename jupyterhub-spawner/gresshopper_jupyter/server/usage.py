"""Use of memory, processor and GPUs by kernels, by ``usage_request`` on their control channels: the kernel itself
answers from its node, also in the middle of a cell. A kernel that doesn't know the request (ipykernel does) has no
figures. A kernel with a lease is asked for its GPUs as well (`gresshopper.usage` there).
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Any

from gresshopper_jupyter.server.ids import JupyterId

#: How long an answer may take, in seconds: a kernel that moves or starts has none.
TIMEOUT_S = 1.0


@dataclass(frozen=True)
class Gpus:
    """All GPUs of a lease together. A figure is known of all if each GPU says its own."""

    #: The mean over the devices: the share of the last moment in which a device computed.
    percent: float | None
    memory_mib: float | None
    total_mib: float | None


@dataclass(frozen=True)
class Used:
    """Memory and processor of a kernel and its children."""

    memory_mib: float
    #: 100 is a whole core.
    cpu_percent: float
    gpus: Gpus | None = None


class Usage:
    """Asks kernels, by one connection to each, kept for the next time."""

    def __init__(self) -> None:
        self._clients: dict[JupyterId, Any] = {}

    async def of(self, kernels: Iterable[tuple[JupyterId, Any]], with_gpus: Set[JupyterId]) -> dict[JupyterId, Used]:
        """Usage by the kernels' ids, given which of them have GPUs. Closes connections to other kernels."""
        wanted = dict(kernels)
        for gone in self._clients.keys() - wanted.keys():
            self._clients.pop(gone).stop_channels()
        asks = (self._ask(kernel_id, kernel, kernel_id in with_gpus) for kernel_id, kernel in wanted.items())
        asked = await asyncio.gather(*asks)
        return {kernel_id: used for kernel_id, used in zip(wanted, asked) if used is not None}

    async def _ask(self, kernel_id: JupyterId, kernel: Any, gpus: bool) -> Used | None:
        client = self._clients.get(kernel_id)
        if client is None:
            client = self._clients[kernel_id] = kernel.client()
            client.start_channels(shell=False, iopub=False, stdin=False, hb=False)
        request = client.session.msg("usage_request", {"gpus": True} if gpus else {})
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
    return Used(memory / 2**20, float(cpu), _of_gpus(content.get("gpus")))


def _of_gpus(found: Any) -> Gpus | None:
    if not isinstance(found, list) or not found or not all(isinstance(one, dict) for one in found):
        return None
    busy, used, total = (_sum(found, name) for name in ("utilisation", "memory_used", "memory_total"))
    mib = 1 / 2**20
    return Gpus(
        percent=None if busy is None else busy / len(found),
        memory_mib=None if used is None else used * mib,
        total_mib=None if total is None else total * mib,
    )


def _sum(found: list[dict[str, Any]], name: str) -> float | None:
    values = [float(one[name]) for one in found if isinstance(one.get(name), (int, float))]
    return sum(values) if len(values) == len(found) else None
