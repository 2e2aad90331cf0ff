"""Kernels with three replicas, as tests look at them: who has which part, and which processes are whose."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from typing import Any

from harness import Cluster, until

THREE = {"GRESSHOPPER_REPLICAS": "3", "GRESSHOPPER_LOG": "hop_replica=info,hop_front=info"}
HOT = THREE | {"GRESSHOPPER_HOT_STANDBY": "1"}

#: Seconds within which the effects of a cell that was answered are in the store.
SAVED = 1.0

#: The states of a kernel that doesn't sleep, and isn't on its way there.
AWAKE = "starting,running,waiting,idle,moving,silent,lost,replacing"

#: A replica's processes on its node: keeper, supervisor, spare interpreters and the kernel.
REPLICA = r"hop-replica|ipykernel_launcher"
#: The keeper alone.
KEEPER = r"^\S+/hop-replica seat"


def kernel_row(cluster: Cluster, user: str = "alice") -> dict[str, Any]:
    (row,) = cluster.hop("kernels", "-t", AWAKE, user=user)["rows"]
    found: dict[str, Any] = row
    return found


def is_grown(cluster: Cluster, user: str = "alice") -> bool:
    return int(kernel_row(cluster, user)["replicas"]) == 3


def grown(cluster: Cluster, without: str = "", user: str = "alice") -> set[str]:
    """The nodes of the kernel's three replicas, once all of them count.

    A silent replica is replaced after half a minute, a replica whose seat ended after some seconds.
    """

    def whole() -> bool:
        return is_grown(cluster, user) and without not in kernel_row(cluster, user)["nodes"].split(",")

    until("the kernel has three replicas", whole, 90)
    return set(kernel_row(cluster, user)["nodes"].split(","))


def hot_node(cluster: Cluster, without: str = "") -> str:
    """The node of the hot standby, once there is one."""

    def hot() -> str:
        node = kernel_row(cluster)["hot"] or ""
        return "" if node == without else node

    until("a standby is hot", hot, 120)
    return hot()


def seats_of(cluster: Cluster, *which: str) -> set[str]:
    return set(cluster.run("alice", "squeue", "-h", "-u", "alice", *which, "-o", "%i").split())


def end_seats(cluster: Cluster, user: str = "alice") -> None:
    """No seat of earlier tests is left."""
    cluster.run("root", "scancel", "-u", user)
    until("no seat is left", lambda: not cluster.pids("hop-replica", user), 40)


def processes(cluster: Cluster, nodes: Iterable[str], pattern: str = REPLICA, user: str = "alice") -> list[int]:
    """The user's processes on these nodes."""
    wanted, found = set(nodes), []
    for pid in cluster.pids(pattern, user):
        with contextlib.suppress(OSError):
            if cluster.environ(pid).get("SLURMD_NODENAME") in wanted:
                found.append(pid)
    return found


def send(pids: Iterable[int], sig: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sig)


@contextlib.contextmanager
def paused(cluster: Cluster, node: str) -> Iterator[None]:
    """Alice's seat on the node stands still: nobody hears from it, and all its connections stay."""
    pids = processes(cluster, [node], "hop-replica")
    assert pids
    send(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        send(pids, signal.SIGCONT)


@contextlib.contextmanager
def without_hopd(cluster: Cluster) -> Iterator[None]:
    """`hopd` is killed, and started again at the end."""
    cluster.kill(r"/opt/bin/hopd", "gresshopper")
    try:
        yield
    finally:
        cluster.deploy("hopd")
        cluster.wait_for_pilots()
