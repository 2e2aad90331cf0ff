"""The lent GPUs' figures in the answer to ``usage_request``, beside ipykernel's of memory and processor.

If a client knows of a lease, it asks with ``{"gpus": true}`` and finds a list ``gpus`` in the reply, an item for each
device or MIG instance. An item has ``name``, ``memory_used`` and ``memory_total`` in bytes, ``utilisation`` in percent;
a value that the device doesn't tell is ``None``. Without a driver the reply has no list. NVML holds device files open:
a separate process, ``hop gpu status``, asks NVML and is gone before the reply.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from typing import Any

from gresshopper import clock

#: How long NVML may take, in seconds: a client that polls doesn't wait for longer.
WITHIN_S = 0.8
#: Seconds between two looks whether the process has ended. A thread would do without, but count as one of the user's.
_LOOKS_EVERY = 0.01

_FIGURES = ("name", "memory_used", "memory_total", "utilisation")


def watch(kernel: Any) -> None:
    """Answers the kernel's usage requests from now on."""
    handlers = getattr(kernel, "control_handlers", None)
    plain = getattr(type(kernel), "usage_request", None)
    if handlers is None or plain is None or "usage_request" not in handlers:
        return

    async def usage_request(stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        asked = (parent.get("content") or {}).get("gpus") is True
        found = await gpus() if asked else None
        await plain(kernel if found is None else _Adding(kernel, {"gpus": found}), stream, ident, parent)

    handlers["usage_request"] = usage_request


async def gpus() -> list[dict[str, Any]] | None:
    """The figures of the devices that this process may open; ``None`` without a driver, or without an answer in time."""
    program = shutil.which("hop")
    if program is None:
        return None
    argv = [program, "gpu", "--json", "status"]
    with subprocess.Popen(  # noqa: ASYNC220  asyncio's own starts a thread
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as look:
        end = clock.now() + WITHIN_S
        while look.poll() is None and clock.now() < end:  # noqa: ASYNC110  a process sets no event
            await asyncio.sleep(_LOOKS_EVERY)
        if look.poll() is None:
            look.kill()
            return None
        assert look.stdout is not None
        return _figures(look.stdout.read())


def _figures(text: str) -> list[dict[str, Any]] | None:
    try:
        found = json.loads(text)["nvml"]
        return found and [{name: device.get(name) for name in _FIGURES} for device in found["devices"]]
    except (ValueError, LookupError, AttributeError, TypeError):
        return None


class _Adding:
    """Stands in for a kernel and adds to the content of each message sent. ipykernel has no hook for this answer."""

    def __init__(self, kernel: Any, more: dict[str, Any]) -> None:
        self.__dict__.update(_kernel=kernel, _more=more)

    def __getattr__(self, name: str) -> Any:
        return self if name == "session" else getattr(self._kernel, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._kernel, name, value)

    def send(self, stream: Any, kind: str, content: dict[str, Any], *about: Any) -> Any:
        """As the session's."""
        return self._kernel.session.send(stream, kind, {**content, **self._more}, *about)
