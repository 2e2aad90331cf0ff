"""Asks ``hop``, and remembers its answers for a moment: several windows ask for the same."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Awaitable
from typing import Any, Callable

from gresshopper_jupyter.programs import find_program

#: How long an answer of ``hop`` may take, in seconds.
TIMEOUT_S = 15.0

#: The exit status of ``hop`` when the scheduler can't be reached.
UNREACHABLE = 3


class HopError(RuntimeError):
    """``hop`` failed or refused. The text is its own sentence."""


class Away(HopError):
    """The scheduler can't be reached."""


class Hop:
    """``hop`` as the user of this server."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, ...], tuple[float, Any]] = {}
        self._locks: dict[tuple[str, ...], asyncio.Lock] = {}

    async def rows(self, *argv: str, max_age_s: float) -> list[dict[str, Any]]:
        """The rows of ``hop ARGV --json``, at most ``max_age_s`` old."""

        async def ask() -> list[dict[str, Any]]:
            rows: list[dict[str, Any]] = json.loads(await self.run(*argv, "--json"))["rows"]
            return rows

        answer: list[dict[str, Any]] = await self.remembered(argv, ask, max_age_s)
        return answer

    async def remembered(self, key: tuple[str, ...], ask: Callable[[], Awaitable[Any]], max_age_s: float) -> Any:
        """An answer of ``ask`` not older than ``max_age_s``; one caller asks for all waiting ones."""
        async with self._locks.setdefault(key, asyncio.Lock()):
            at, answer = self._answers.get(key, (float("-inf"), None))
            if time.monotonic() - at > max_age_s:
                answer = await ask()
                self._answers[key] = (time.monotonic(), answer)
            return answer

    async def run(self, *argv: str) -> str:
        """What ``hop ARGV`` prints. :class:`Away` where the scheduler can't be reached, else :class:`HopError`."""
        status, out, err = await run(find_program("hop"), *argv)
        if status == 0:
            return out
        # Its own name is before each line for a terminal's sake.
        lines = [line[len("hop: ") :] if line.startswith("hop: ") else line for line in err.strip().splitlines()]
        text = " ".join(lines) or f"hop {argv[0]} ended with status {status}"
        raise (Away if status == UNREACHABLE else HopError)(text)


async def run(*argv: str) -> tuple[int, str, str]:
    """Runs a program to its end: status, standard output, standard error."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    except asyncio.TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise HopError(f"{os.path.basename(argv[0])} did not answer within {TIMEOUT_S:.0f} s") from None
    return process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")
