"""The GPUs' figures in the answer to ``usage_request``: a real kernel of ipykernel's, and a ``hop`` that these tests play."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ipykernel.kernelbase import Kernel
from jupyter_client.session import Session

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gresshopper import usage

DEVICE = {"name": "FAKE GPU", "memory_used": 7, "memory_total": 1 << 30, "utilisation": 37, "power_mw": 9}


class Sent(Session):  # type: ignore[misc, unused-ignore]
    """A session that keeps what is sent."""

    def send(self, stream: Any, kind: str, content: Any, *about: Any, **more: Any) -> None:  # type: ignore[override]
        self.last = (kind, content, about)


@pytest.fixture
def hop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes the program that answers for NVML."""

    def make(script: str) -> None:
        program = tmp_path / "hop"
        program.write_text(f"#!/bin/sh\n[ \"$*\" = 'gpu --json status' ] || exit 9\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    yield make


def ask(content: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request with this content."""
    kernel = Kernel(session=Sent(), log=logging.getLogger(__name__))
    usage.watch(kernel)
    asyncio.run(kernel.control_handlers["usage_request"](None, b"i", {"content": content}))
    kind, reply, about = kernel.session.last
    assert (kind, about) == ("usage_reply", ({"content": content}, b"i"))
    assert reply["pid"] == os.getpid()
    answered: dict[str, Any] = reply
    return answered


def said(*devices: dict[str, Any]) -> str:
    return f"echo '{json.dumps({'nvml': {'devices': devices}})}'"


def test_who_asks_for_the_gpus_has_their_figures_beside_the_kernels(hop: Any) -> None:
    hop(said(DEVICE, {**DEVICE, "utilisation": None}))
    plain = ask({})
    assert "gpus" not in plain
    reply = ask({"gpus": True})
    assert reply.keys() >= plain.keys() - {"host_cpu_percent"}, "which psutil has from the second time on"
    figures = {"name": "FAKE GPU", "memory_used": 7, "memory_total": 1 << 30, "utilisation": 37}
    assert reply["gpus"] == [figures, {**figures, "utilisation": None}]


@pytest.mark.parametrize("script", ["exit 1", "echo nonsense", """echo '{"nvml": null}'""", """echo '[1]'"""])
def test_a_node_without_a_driver_has_no_list(hop: Any, script: str) -> None:
    hop(script)
    assert "gpus" not in ask({"gpus": True})


def test_a_driver_that_hangs_is_not_waited_for_and_leaves_no_process(
    hop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "WITHIN_S", 0.3)
    hop(f"echo $$ > {tmp_path}/pid; exec sleep 600")
    assert "gpus" not in ask({"gpus": True})
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_kernel_goes_on_meanwhile(hop: Any) -> None:
    hop(f"sleep 0.3; {said(DEVICE)}")

    async def both() -> int:
        turns, look = 0, asyncio.ensure_future(usage.gpus())
        while not look.done():
            turns += 1
            await asyncio.sleep(0.01)
        assert look.result()
        return turns

    begin = time.monotonic()
    assert asyncio.run(both()) > 5, time.monotonic() - begin
