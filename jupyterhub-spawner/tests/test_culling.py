"""Jupyter Server's own culling of idle kernels, with kernels of ours."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager


async def until(true: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        await asyncio.sleep(0.1)


async def test_an_idle_kernel_is_culled_for_good_and_one_whose_cell_runs_is_not(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = home / "data" / "gresshopper" / "states"
    manager = AsyncMappingKernelManager(cull_idle_timeout=600, cull_interval=1, root_dir=str(home))
    monkeypatch.setenv("GRESSHOPPER_NOTEBOOK", str(home / "a.ipynb"))
    idle = await manager.start_kernel(kernel_name="python3")
    monkeypatch.delenv("GRESSHOPPER_NOTEBOOK")
    await until(lambda: states.is_dir() and any(states.iterdir()), 30)
    (saved,) = states.iterdir()
    busy = await manager.start_kernel(kernel_name="python3")
    clients = {}
    for kernel in (idle, busy):
        clients[kernel] = manager.get_kernel(kernel).client()
        clients[kernel].start_channels()
        await clients[kernel].wait_for_ready(timeout=60)
    try:
        go = home / "go"
        clients[busy].execute(f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.1)")
        await until(lambda: manager.get_kernel(busy).execution_state == "busy", 30)
        manager.cull_idle_timeout = 3
        await until(lambda: idle not in manager.list_kernel_ids(), 30)
        await until(lambda: not saved.exists(), 10)
        # Its cell is silent: twice as long as an idle kernel lives.
        await asyncio.sleep(6)
        assert manager.get_kernel(busy).execution_state == "busy"
        # Its cell ends, and nobody asks for it any more.
        go.touch()
        await until(lambda: not manager.list_kernel_ids(), 40)
    finally:
        for client in clients.values():
            client.stop_channels()
        await manager.shutdown_all(now=True)
