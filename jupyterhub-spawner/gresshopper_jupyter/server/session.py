"""The server's own Slurm job: its end, and requests for more time."""

from __future__ import annotations

import contextlib
import os

from gresshopper_jupyter.server.hop import Hop, HopError, run

#: How old the known end of the job may be, in seconds.
AGE_S = 60.0
#: The length of a request for more time, in minutes.
MORE_MIN = 60


class Session:
    """The Slurm job of this server, if any."""

    def __init__(self, hop: Hop) -> None:
        self._hop = hop
        #: The end that Slurm told last.
        self._end: float | None = None

    @property
    def _job(self) -> str:
        job = os.environ.get("SLURM_JOB_ID", "")
        return job if job.isdigit() else ""

    async def end(self, max_age_s: float = AGE_S) -> float | None:
        """The time at which Slurm ends this server, in seconds since the epoch. ``None`` without a job or a limit.

        While Slurm doesn't answer, the last answer's time: a page would take ``None`` for a lifted limit.
        """
        job = self._job
        if not job:
            return None

        async def ask() -> float | None:
            status, out, _ = await run("env", "SLURM_TIME_FORMAT=%s", "squeue", "-h", "-j", job, "-o", "%e")
            if status == 0:
                self._end = float(out) if out.strip().isdigit() else None
            return self._end

        with contextlib.suppress(HopError, OSError):
            await self._hop.remembered(("job", job), ask, max_age_s)
        return self._end

    async def more_time(self) -> float | None:
        """Asks Slurm for more time. The new end, or :class:`HopError` with Slurm's reason and what helps instead."""
        if not self._job:
            raise HopError("this server runs in no Slurm job, so nothing ends it")
        try:
            status, _, err = await run("scontrol", "update", f"JobId={self._job}", f"TimeLimit=+{MORE_MIN}")
        except OSError as error:
            raise HopError(f"Slurm can't be asked here: {error.strerror or error}") from error
        if status != 0:
            raise HopError(refused(err))
        return await self.end(max_age_s=0)


def refused(said: str) -> str:
    """Slurm's refusal as a sentence. Most sites let operators alone raise a limit."""
    # "Access/permission denied for job 12", "slurm_update error: Requested time limit is invalid ..."
    lines = [line.rpartition("error:")[2].strip() for line in said.splitlines() if line.strip()]
    why = lines[-1] if lines else "it gives no reason"
    return (
        f"Slurm gives this server no more time: {why}. A server that is stopped and started on the Hub's page has all "
        "of its time again, and notebooks whose kernels are saved go on there with their variables."
    )
