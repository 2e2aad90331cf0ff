"""What the plugin costs the end of a job that isn't ours, with many records of other jobs on the node.

    foreign_epilog.py BASE [PAIRS]     BASE: a dev cluster of two nodes that is up; HOP_E2E_PLUGIN: the library (release)

Prints one JSON object: the medians in milliseconds of a whole job on a node that the job before has not yet left, so that
its epilog counts, and their ratio. slurmd asks at its start whether a plugin has an epilog: the first node's is started
with the plugin, the second's without. The order of a pair alternates.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from harness import Cluster

RECORDS = 100


def whole_node(cluster: Cluster, node: str) -> float:
    command = cluster.command("bob", ["srun", "-Q", "-w", node, "--exclusive", "-n1", "--mem=0", "/bin/true"])
    start = time.perf_counter()
    subprocess.run(command, check=True, timeout=60)
    return (time.perf_counter() - start) * 1e3


def after_another(cluster: Cluster, node: str) -> float:
    """A job that needs the whole node, submitted when another has just run there."""
    whole_node(cluster, node)
    return whole_node(cluster, node)


def start_anew(cluster: Cluster, node: str, line: str) -> None:
    cluster.plugstack(line)
    cluster.devcluster("kill-slurmd", node)
    cluster.devcluster("start-slurmd", node)


def records(cluster: Cluster, node: str) -> list[Path]:
    """Records of jobs that are none of the measured ones."""
    made = []
    for i in range(RECORDS):
        part = cluster.run_dir / node / ("kernels", "leases")[i % 2]
        part.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = part / f"{4_000_000 + i}.0.json"
        path.write_text("{}", encoding="utf-8")
        made.append(path)
    return made


def main() -> None:
    cluster = Cluster(Path(sys.argv[1]))
    pairs = int(sys.argv[2]) if len(sys.argv) > 2 else 50
    cluster.install()
    nodes = dict(zip(("with", "without"), cluster.nodes, strict=False))
    lines = {"with": cluster.plugin_line(), "without": ""}
    times: dict[str, list[float]] = {"with": [], "without": []}
    for case, node in nodes.items():
        start_anew(cluster, node, lines[case])
    made = records(cluster, nodes["with"])
    try:
        for i in range(-3, pairs):
            for case in ("with", "without") if i % 2 else ("without", "with"):
                cluster.plugstack(lines[case])
                spent = after_another(cluster, nodes[case])
                if i >= 0:
                    times[case].append(spent)
    finally:
        for path in made:
            path.unlink()
        start_anew(cluster, nodes["without"], lines["with"])
    ours, peer = (statistics.median(times[case]) for case in ("with", "without"))
    deltas = [a - b for a, b in zip(times["with"], times["without"], strict=True)]
    result = {
        "case": "foreign_epilog",
        "ours_ms": round(ours, 2),
        "peer_ms": round(peer, 2),
        "ratio": round(ours / peer, 4),
        "median_difference_ms": round(statistics.median(deltas), 3),
        "n": pairs,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
