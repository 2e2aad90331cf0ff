"""Source of GPUs: the scheduler's lease later, the workstation's own GPU until then."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Protocol

from ._errors import GpuUnavailable


class LeaseSource(Protocol):
    """Obtains a GPU for this process."""

    def acquire(self, why: str) -> None:
        """Returns when the GPU is usable and what was parked is back.

        Must come to an end by itself. Raises GpuUnavailable with a sentence for the user.
        """


class NoLease:
    """No GPU, and why: the source of a cell that said it needs none, or of a kernel whose scheduler is away."""

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence

    def acquire(self, why: str) -> None:
        raise GpuUnavailable(f"{self._sentence} ({why}.)")


class Workstation:
    """The machine's own GPU: what was parked is brought back by `hop gpu unpark`."""

    def __init__(self, hop: str = "hop", timeout_s: float = 120.0) -> None:
        self._hop = hop
        self._timeout_s = timeout_s

    def acquire(self, why: str) -> None:
        program = shutil.which(os.environ.get("GRESSHOPPER_HOP", self._hop))
        pid = os.getpid()
        if program is None:
            raise GpuUnavailable(
                f"This process was parked ({why}), and `hop` isn't here to bring it back. Run: hop gpu unpark {pid}"
            )
        try:
            done = subprocess.run(
                [program, "gpu", "unpark", str(pid)],
                capture_output=True,
                text=True,
                timeout=self._timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise GpuUnavailable(
                f"The GPU was not back after {self._timeout_s:.0f} s. See: hop gpu status {pid}"
            ) from None
        if done.returncode:
            said = done.stderr.strip().splitlines()
            raise GpuUnavailable(f"The GPU can't come back now: {said[-1] if said else 'hop gpu unpark failed'}")
