"""What the plugin costs a job that isn't ours: the same srun with and without it, interleaved.

    foreign_launch.py BASE [PAIRS]     BASE: a dev cluster that is up; HOP_E2E_PLUGIN: the library (release)

Prints one JSON object: the medians in milliseconds from starting srun to its end, and their ratio. The two lines of
plugstack.conf are exchanged before each launch, and the order of a pair alternates.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from harness import Cluster


def launch(cluster: Cluster, job: int) -> float:
    command = cluster.command("bob", ["srun", "-Q", f"--jobid={job}", "--overlap", "-n1", "/bin/true"])
    start = time.perf_counter()
    subprocess.run(command, check=True, timeout=60)
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    cluster = Cluster(Path(sys.argv[1]))
    pairs = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    cluster.install()
    job = cluster.submit("bob", "--mem=64")
    times: dict[str, list[float]] = {"with": [], "without": []}
    lines = {"with": cluster.plugin_line(), "without": ""}
    try:
        for i in range(-3, pairs):
            for case in ("with", "without") if i % 2 else ("without", "with"):
                cluster.plugstack(lines[case])
                spent = launch(cluster, job)
                if i >= 0:
                    times[case].append(spent)
    finally:
        cluster.plugstack(lines["with"])
        cluster.tidy()
    ours, peer = (statistics.median(times[case]) for case in ("with", "without"))
    deltas = [a - b for a, b in zip(times["with"], times["without"])]
    result = {
        "case": "foreign_launch",
        "ours_ms": round(ours, 2),
        "peer_ms": round(peer, 2),
        "ratio": round(ours / peer, 4),
        "median_difference_ms": round(statistics.median(deltas), 3),
        "n": pairs,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
