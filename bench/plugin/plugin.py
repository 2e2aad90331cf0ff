"""bench `plugin`: cost of the plugin for a foreign job, by `srun /bin/true` with and without it.

Prints one measured line (see hop-bench). `slurm-plugin/spank/tests/foreign_launch.py` measures; this brings up a cluster
of one node for it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPO / "target")) / os.environ.get("PROFILE", "release")
DEVCLUSTER = str(TARGET / "devcluster")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--base", default="/srv/gresshopper-bench")
    args = parser.parse_args()
    options = ["--index", "11", "--nodes", "1", "--burst-nodes", "0", "--gpus-per-node", "1"]
    environment = {
        **os.environ,
        "HOP_E2E_DEVCLUSTER": DEVCLUSTER,
        "HOP_E2E_PLUGIN": str(TARGET / "libgresshopper.so"),
    }
    measure = [sys.executable, str(REPO / "slurm-plugin/spank/tests/foreign_launch.py"), args.base, str(args.pairs)]
    try:
        subprocess.run([DEVCLUSTER, "up", "--base", args.base, *options], check=True, stdout=sys.stderr, timeout=180)
        done = subprocess.run(measure, check=True, env=environment, stdout=subprocess.PIPE, text=True, timeout=1800)
    finally:
        subprocess.run(
            [DEVCLUSTER, "down", "--purge", "--base", args.base], check=False, stdout=sys.stderr, timeout=180
        )
    found = json.loads(done.stdout)
    print(
        json.dumps(
            {
                "bench": "plugin",
                "case": found["case"],
                "ours": found["ours_ms"],
                "peer": "without the plugin",
                "peer_value": found["peer_ms"],
                "unit": "ms",
                "n": found["n"],
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
