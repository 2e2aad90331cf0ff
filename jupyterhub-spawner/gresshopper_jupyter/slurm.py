"""What the spawner asks of Slurm: submit as a user, one look at all jobs, cancel.

Slurm's own commands do the work, without a shell, as the user whose job it is. Output formats are our own, so
that they mean the same in every Slurm release.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

COMMAND_TIMEOUT_S = 30.0
_FIELDS = "%i|%T|%r|%S|%N|%k"
_PORT = re.compile(r"^gresshopper port=(\d{1,5})$")

PENDING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD"})
RUNNING = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "SIGNALING", "STAGE_OUT", "STOPPED", "RESIZING"})


class SlurmError(Exception):
    """A Slurm command failed; the text says which, and what it printed."""


@dataclass(frozen=True)
class Job:
    """A job as squeue shows it."""

    id: str
    state: str
    reason: str
    start: str
    node: str
    port: int | None

    @property
    def pending(self) -> bool:
        return self.state in PENDING

    @property
    def alive(self) -> bool:
        return self.pending or self.state in RUNNING


def parse_jobs(text: str) -> dict[str, Job]:
    """The jobs in squeue's output, by id. A comment that is not ours gives no port."""
    jobs = {}
    for line in text.splitlines():
        fields = line.split("|", 5)
        if len(fields) != 6:
            continue
        job_id, state, reason, start, node, comment = fields
        match = _PORT.match(comment)
        port = int(match.group(1)) if match else None
        jobs[job_id] = Job(job_id, state, reason, start, node, port if port and port < 65536 else None)
    return jobs


async def run(
    argv: Sequence[str],
    *,
    user: str | None = None,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> str:
    """Run a command, as `user` where one is named, and return its standard output.

    As root we become the user ourselves; otherwise `prefix` (sudo, say) must do it.
    """
    as_user: dict[str, Any] = {}
    if user is not None and not prefix:
        entry = pwd.getpwnam(user)
        if os.geteuid() == 0:
            as_user = {
                "user": entry.pw_uid,
                "group": entry.pw_gid,
                "extra_groups": os.getgrouplist(user, entry.pw_gid),
            }
        elif os.geteuid() != entry.pw_uid:
            raise SlurmError(
                f"the hub runs as uid {os.geteuid()} and can't act as {user}: "
                "run it as root, or set GresshopperSpawner.exec_prefix to a sudo command"
            )
    full = [*prefix, *argv]
    try:
        process = await asyncio.create_subprocess_exec(
            *full,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(env) if env is not None else None,
            cwd="/",
            **as_user,
        )
    except OSError as error:
        raise SlurmError(f"{full[0]} can't be run: {error}") from error
    try:
        out, err = await asyncio.wait_for(process.communicate(stdin), COMMAND_TIMEOUT_S)
    except asyncio.TimeoutError:
        process.kill()
        await process.wait()
        raise SlurmError(f"{argv[0]} did not answer within {COMMAND_TIMEOUT_S:.0f} s") from None
    if process.returncode != 0:
        text = err.decode(errors="replace").strip() or out.decode(errors="replace").strip()
        raise SlurmError(f"{argv[0]} failed: {text[:500] or f'exit status {process.returncode}'}")
    return out.decode(errors="replace")


class JobTable:
    """One squeue for all servers of this hub, however many spawners ask."""

    def __init__(self, job_name: str) -> None:
        self._job_name = job_name
        self._jobs: dict[str, Job] = {}
        self._at = float("-inf")
        self._lock = asyncio.Lock()

    async def get(self, job_id: str, max_age_s: float) -> Job | None:
        """The job, or None if Slurm no longer lists it. SlurmError if Slurm can't be asked now."""
        async with self._lock:
            if time.monotonic() - self._at > max_age_s:
                text = await run(["squeue", "-h", "-a", "--name", self._job_name, "-t", "all", "-o", _FIELDS])
                self._jobs = parse_jobs(text)
                self._at = time.monotonic()
        return self._jobs.get(job_id)


async def node_address(node: str) -> str:
    """The address under which Slurm itself reaches a node."""
    text = await run(["scontrol", "show", "node", "-o", node])
    match = re.search(r"\bNodeAddr=(\S+)", text)
    if not match:
        raise SlurmError(f"scontrol shows no NodeAddr for {node}")
    return match.group(1)
