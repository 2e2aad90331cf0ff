"""A kernel's standing towards its GPU: ``%gpu`` and :func:`status`, and the user's own queue: :func:`queue`.

The kernel's supervisor sends the same notice as to JupyterLab (docs/wiring.md, "Notices"). Other users' waits are
left to the command ``hop``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gresshopper import channel, clock, need
from gresshopper.memory import memory

#: How long ``hop`` may take, in seconds.
_HOP_S = 10.0


@dataclass(frozen=True)
class Status:
    """How a kernel stands towards its GPU. What doesn't apply is ``None`` or empty."""

    #: ``cpu``, ``queued``, ``parked``, ``granted``, ``lingering`` ..
    state: str
    #: The cell's need: ``gpus``, ``cpus``, ``gpu_type``, ``gpu_mem_mib``.
    need: Mapping[str, Any]
    #: When this state began, in seconds since the epoch.
    since: float | None = None
    lease: int | None = None
    node: str = ""
    #: Slurm's indices of the GPUs on that node.
    gpus: tuple[int, ...] = ()
    #: The GPUs' names by NVML.
    models: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    cores: str = ""
    waited_ms: int = 0
    #: End of a lingering lease, or of a granted lease's quantum, in seconds since the epoch.
    until: float | None = None
    #: The place in the queue; 1 is next.
    position: int | None = None
    reason: str = ""
    #: The expected wait in seconds.
    eta_s: float | None = None
    #: Why the scheduler can't be reached; empty while it can.
    away: str = ""

    @classmethod
    def _from_wire(cls, notice: Mapping[str, Any]) -> Status:
        return cls(
            state=notice.get("state", "cpu"),
            need=notice.get("need") or {},
            since=notice.get("since"),
            lease=notice.get("lease"),
            node=notice.get("node", ""),
            gpus=tuple(notice.get("gpus", ())),
            models=tuple(notice.get("models", ())),
            devices=tuple(notice.get("devices", ())),
            cores=notice.get("cores", ""),
            waited_ms=notice.get("waited_ms", 0),
            until=notice.get("until"),
            position=notice.get("position"),
            reason=notice.get("reason") or "",
            eta_s=notice.get("eta_s"),
            away=notice.get("away", ""),
        )

    def __str__(self) -> str:
        lines = [_sentence(self)]
        if self.away:
            lines.append(f"The scheduler can't be reached: {self.away}.")
        return "\n".join(lines)


@dataclass(frozen=True)
class Waiting:
    """A cell of the user waiting for its lease."""

    kernel: str
    notebook: str
    #: How many GPUs it asked for.
    gpus: int
    waited_s: float
    #: The place in the queue; 1 is next.
    position: int | None
    #: The expected further wait in seconds.
    eta_s: float | None
    reason: str


class HopError(RuntimeError):
    """``hop`` failed, or is not on PATH. The text is for the user."""


def status() -> Status:
    """How this kernel stands towards its GPU. Raises ``ChannelClosed`` in a process that is no kernel of Gresshopper's."""
    notice, _ = channel.get().request("need.status", {})
    return Status._from_wire(notice)


def release() -> bool:
    """Ends the lease that is kept for the next cell. Returns whether there was one."""
    answer, _ = channel.get().request("need.end_linger", {})
    return bool(answer.get("ended"))


def queue() -> list[Waiting]:
    """One's own waiting cells, of all kernels, the next one first. Raises :class:`HopError`."""
    rows = [row for row in _hop("queue", "--me") if row["state"] == "PENDING"]
    waiting = [
        Waiting(
            kernel=row["kernel_id"],
            notebook=row["name"],
            gpus=row["n_gpus"],
            waited_s=row["time"],
            position=row["position"],
            eta_s=row["estimate"],
            reason=row["reason"] or "",
        )
        for row in rows
    ]
    return sorted(waiting, key=lambda cell: (cell.position is None, cell.position or 0))


def line_magic(line: str) -> None:
    """``%gpu`` shows what this kernel holds or waits for, and how much of its memory is used. ``%gpu release`` ends
    the lease that is kept for the next cell. ``%gpu --help`` says how to ask for GPUs."""
    # Imported here: the package is importable without IPython.
    from IPython.core.error import UsageError

    word = line.split("#", maxsplit=1)[0].strip()
    if word in ("--help", "-h"):
        print(need.help_text())
        return
    if word not in ("", "status", "release"):
        raise UsageError(f"%gpu knows status and release, not {word!r}; a GPU for a cell: %%gpu N on its first line")
    try:
        if word == "release":
            print("The GPU is being given back." if release() else "There is no GPU that is kept for the next cell.")
        else:
            print(status())
            used = memory()
            if used is not None:
                print(f"{used}.")
    except channel.ChannelClosed as error:
        raise UsageError(str(error)) from None


def _hop(*argv: str) -> list[dict[str, Any]]:
    program = shutil.which("hop")
    if program is None:
        raise HopError("hop is not on PATH: ask your administrator where it is")
    try:
        done = subprocess.run([program, *argv, "--json"], capture_output=True, text=True, timeout=_HOP_S, check=False)
    except subprocess.TimeoutExpired:
        raise HopError(f"hop did not answer within {_HOP_S:.0f} s") from None
    if done.returncode != 0:
        raise HopError(done.stderr.strip() or f"hop ended with status {done.returncode}")
    rows: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return rows


def _sentence(of: Status) -> str:
    if of.state in ("queued", "parked"):
        place = "" if of.position is None else f", place {of.position} in the queue"
        eta = "" if of.eta_s is None else f", about {of.eta_s:.0f} s more"
        reason = f" ({of.reason})" if of.reason else ""
        what = "A cell of this kernel is parked" if of.state == "parked" else "A cell of this kernel waits"
        return f"{what}{place}{eta}{reason}."
    if of.state == "granted":
        return f"This cell runs on {_where(of)}; it waited {of.waited_ms / 1000:.1f} s."
    if of.state == "lingering" and of.reason:
        kept = f"{_where(of)} stays with this kernel, which can't let go of it ({of.reason})"
        return f"{kept}. You are warned here once somebody waits for it."
    if of.state == "lingering":
        left = "" if of.until is None else f" for {max(0.0, of.until - clock.since_1970()):.0f} s more"
        return f"{_where(of)} is kept for the next cell{left}; %gpu release gives it back now."
    return "This kernel holds no GPU. %%gpu 1 on a cell's first line asks for one."


def _where(of: Status) -> str:
    if not of.gpus:
        # Slurm binds no cores everywhere.
        return f"{of.node}, cores {of.cores}" if of.cores else f"{of.node}, {of.need.get('cpus', 0)} more cores"
    names = f" ({', '.join(dict.fromkeys(of.models))})" if of.models else ""
    return f"{of.node}, GPU {', '.join(map(str, of.gpus))}{names}, lease {of.lease}"
