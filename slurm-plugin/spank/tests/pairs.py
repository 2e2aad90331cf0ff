"""The same measurement with the plugin and without it, in alternating order, and its result as one JSON object."""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Callable

from harness import Cluster

CASES = ("with", "without")

#: Pairs before the first that counts.
WARM = 3


def srun(cluster: Cluster, *args: str) -> float:
    """Milliseconds from the start of bob's srun to its end."""
    command = cluster.command("bob", ["srun", "-Q", *args, "-n1", "/bin/true"])
    start = time.perf_counter()
    subprocess.run(command, check=True, timeout=60)
    return (time.perf_counter() - start) * 1e3


def lines(cluster: Cluster) -> dict[str, str]:
    """plugstack.conf's line in each case."""
    return {"with": cluster.plugin_line(), "without": ""}


def measure(cluster: Cluster, name: str, pairs: int, spent: Callable[[str], float]) -> None:
    """Prints the medians of `spent` in milliseconds, and their ratio. plugstack.conf is exchanged before each call."""
    line = lines(cluster)
    times: dict[str, list[float]] = {case: [] for case in CASES}
    for i in range(-WARM, pairs):
        for case in CASES if i % 2 else CASES[::-1]:
            cluster.plugstack(line[case])
            took = spent(case)
            if i >= 0:
                times[case].append(took)
    ours, peer = (statistics.median(times[case]) for case in CASES)
    deltas = [a - b for a, b in zip(times["with"], times["without"], strict=True)]
    result = {
        "case": name,
        "ours_ms": round(ours, 2),
        "peer_ms": round(peer, 2),
        "ratio": round(ours / peer, 4),
        "median_difference_ms": round(statistics.median(deltas), 3),
        "n": pairs,
    }
    print(json.dumps(result))
