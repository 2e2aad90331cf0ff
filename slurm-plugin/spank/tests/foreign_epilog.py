"""What the plugin costs the end of a job that isn't ours, with many records of other jobs on the node.

    foreign_epilog.py BASE [PAIRS]     BASE: a dev cluster of two nodes that is up; HOP_E2E_PLUGIN: the library (release)

Prints one JSON object: the medians in milliseconds of a whole job on a node that the job before has not yet left, so that
its epilog counts, and their ratio. slurmd asks at its start whether a plugin has an epilog: the first node's is started
with the plugin, the second's without. The order of a pair alternates.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pairs
from harness import Cluster

RECORDS = 100


def after_another(cluster: Cluster, node: str) -> float:
    """A job that needs the whole node, submitted when another has just run there."""
    whole_node = ("-w", node, "--exclusive", "--mem=0")
    pairs.srun(cluster, *whole_node)
    return pairs.srun(cluster, *whole_node)


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
    number = int(sys.argv[2]) if len(sys.argv) > 2 else 50
    cluster.install()
    nodes = dict(zip(pairs.CASES, cluster.nodes, strict=False))
    lines = pairs.lines(cluster)
    for case, node in nodes.items():
        start_anew(cluster, node, lines[case])
    made = records(cluster, nodes["with"])
    try:
        pairs.measure(cluster, "foreign_epilog", number, lambda case: after_another(cluster, nodes[case]))
    finally:
        for path in made:
            path.unlink()
        start_anew(cluster, nodes["without"], lines["with"])


if __name__ == "__main__":
    main()
