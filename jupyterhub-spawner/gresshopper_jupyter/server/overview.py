"""Joins what the server and the scheduler know of one's own kernels. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gresshopper_jupyter.server.ids import HopId, JupyterId
from gresshopper_jupyter.server.usage import Used

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Local:
    """A kernel that this server started."""

    id: HopId
    jupyter_id: JupyterId
    #: The notebook's path on this server; empty for a kernel without a notebook.
    path: str
    used: Used | None = None


@dataclass
class Use:
    """What a kernel's leases came to."""

    #: GPUs times seconds held.
    gpu_s: float = 0.0
    #: Seconds that its cells waited.
    wait_s: float = 0.0


@dataclass
class Kernel:
    """A row of the panel, as ``lab/src/api.ts`` reads it. Times are in seconds."""

    id: HopId
    name: str
    #: Jupyter's id of a kernel of this server; Jupyter here knows no other kernel.
    jupyter_id: JupyterId | None = None
    path: str | None = None
    #: ``IDLE``, or the state that ``hop queue`` shows, or one of ``hop kernels`` in :data:`_TOLD` or :data:`_GONE`.
    state: str = "IDLE"
    time_s: float | None = None
    node: str | None = None
    gpus: str | None = None
    lease: int | None = None
    position: int | None = None
    estimate_s: float | None = None
    reason: str | None = None
    #: Whether the kernel's state is saved: the kernel can then sleep and move.
    kept: bool = False
    #: The present use of memory by the kernel's processes, and the limit.
    memory_mib: float | None = None
    limit_mib: float | None = None
    cpu_percent: float | None = None
    #: Present use of the lease's GPUs, and of their memory; all of the lease's GPUs together.
    gpu_percent: float | None = None
    gpu_memory_mib: float | None = None
    gpu_total_mib: float | None = None
    week: Use = field(default_factory=Use)


#: States of a kernel's row in the order of urgency: one cell may wait while another lease ends.
_URGENCY = ("RUNNING", "SUSPENDED", "PENDING", "STARTING", "LINGERING")


#: The states of ``hop kernels`` that say more than ``hop queue``.
_TOLD = ("ASLEEP", "SAVING", "MOVING")


#: The states of a kernel without an executor, whatever ``hop queue`` shows of its leases.
_GONE = ("SILENT", "LOST", "REPLACING")


def kernels(
    local: Iterable[Local], queue: Iterable[Row], acct: Iterable[Row], known: Iterable[Row] = ()
) -> list[dict[str, Any]]:
    """Rows of all kernels of this server, and of the others known to ``hopd``."""
    found = {one.id: _of_this_server(one) for one in local}
    for row in sorted(queue, key=lambda row: _urgency(row["state"]), reverse=True):
        kernel = found.setdefault(row["kernel_id"], _of_elsewhere(row))
        _note(kernel, row)
    for row in known:
        kernel = found.setdefault(row["kernel_id"], _of_elsewhere(row))
        _know(kernel, row)
    for row in acct:
        if row["kernel_id"] in found:
            week = found[row["kernel_id"]].week
            week.gpu_s += row["gpu_time_raw"] or 0.0
            week.wait_s += row["wait_raw"] or 0.0
    rows = sorted(found.values(), key=lambda k: (k.state == "IDLE", k.path is None, k.name.lower(), k.id))
    return [asdict(kernel) for kernel in rows]


def with_gpus(queue: Iterable[Row]) -> set[HopId]:
    """The kernels with GPUs in hand."""
    return {row["kernel_id"] for row in queue if row["gpus"] and row["state"] in ("RUNNING", "LINGERING")}


def _of_elsewhere(row: Row) -> Kernel:
    return Kernel(row["kernel_id"], row["name"] or row["kernel_id"][:8])


def _of_this_server(one: Local) -> Kernel:
    kernel = Kernel(one.id, one.path.rsplit("/", 1)[-1] or one.id[:8], one.jupyter_id, one.path or None)
    if one.used is not None:
        kernel.memory_mib, kernel.cpu_percent = one.used.memory_mib, one.used.cpu_percent
        if (gpus := one.used.gpus) is not None:
            kernel.gpu_percent = gpus.percent
            kernel.gpu_memory_mib, kernel.gpu_total_mib = gpus.memory_mib, gpus.total_mib
    return kernel


def _urgency(state: str) -> int:
    return _URGENCY.index(state) if state in _URGENCY else len(_URGENCY)


def _know(kernel: Kernel, row: Row) -> None:
    kernel.kept = row["captured"] == "yes"
    if row.get("mem"):
        # Each replica has as much.
        kernel.limit_mib = row["mem"] / (row.get("replicas") or 1)
    if kernel.state == "IDLE" or row["state"] in _GONE:
        kernel.state = row["state"] if row["state"] in _TOLD + _GONE else "IDLE"
        kernel.time_s = row["time"]
        kernel.node = row["node"] or None
        kernel.reason = row["reason"] or None


def _note(kernel: Kernel, row: Row) -> None:
    kernel.state = row["state"]
    kernel.time_s = row["time"]
    kernel.node, kernel.gpus = row["node"], row["gpus"] or None
    kernel.lease = int(row["lease_id"]) if row["lease_id"] else None
    kernel.position, kernel.estimate_s = row["position"], row["estimate"]
    kernel.reason = row["reason"] or None
