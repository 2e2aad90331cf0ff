"""What the plugin costs a job that isn't ours: the same srun with and without it, interleaved.

    foreign_launch.py BASE [PAIRS]     BASE: a dev cluster that is up; HOP_E2E_PLUGIN: the library (release)

Prints one JSON object: the medians in milliseconds from starting srun to its end, and their ratio. The two lines of
plugstack.conf are exchanged before each launch, and the order of a pair alternates.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pairs
from harness import Cluster


def main() -> None:
    cluster = Cluster(Path(sys.argv[1]))
    number = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    cluster.install()
    job = cluster.submit("bob", "--mem=64")
    try:
        pairs.measure(cluster, "foreign_launch", number, lambda _: pairs.srun(cluster, f"--jobid={job}", "--overlap"))
    finally:
        cluster.plugstack(cluster.plugin_line())
        cluster.tidy()


if __name__ == "__main__":
    main()
