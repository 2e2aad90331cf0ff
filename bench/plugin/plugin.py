"""bench `plugin`: cost of the plugin at a foreign job's launch and end, beside the same without the plugin.

Prints a measured line for each case (see hop-bench). `foreign_launch.py` and `foreign_epilog.py` of
`slurm-plugin/spank/tests` measure; this brings up a cluster of two nodes for them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPO / "target")) / os.environ.get("PROFILE", "release")
CASES = ["foreign_launch", "foreign_epilog"]
DEVCLUSTER = str(TARGET / "devcluster")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--case", choices=CASES, action="append", help="all, unless named")
    parser.add_argument("--base", default="/srv/gresshopper-bench")
    args = parser.parse_args()
    options = ["--index", "11", "--nodes", "2", "--burst-nodes", "0", "--gpus-per-node", "1"]
    environment = {
        **os.environ,
        "HOP_E2E_DEVCLUSTER": DEVCLUSTER,
        "HOP_E2E_PLUGIN": str(TARGET / "libgresshopper.so"),
    }
    try:
        subprocess.run([DEVCLUSTER, "up", "--base", args.base, *options], check=True, stdout=sys.stderr, timeout=180)
        for case in args.case or CASES:
            script = REPO / "slurm-plugin/spank/tests" / f"{case}.py"
            measure = [sys.executable, str(script), args.base, str(args.pairs)]
            done = subprocess.run(
                measure, check=True, env=environment, stdout=subprocess.PIPE, text=True, timeout=1800
            )
            tell(json.loads(done.stdout))
    finally:
        subprocess.run(
            [DEVCLUSTER, "down", "--purge", "--base", args.base], check=False, stdout=sys.stderr, timeout=180
        )


def tell(found: dict[str, Any]) -> None:
    line = {
        "bench": "plugin",
        "case": found["case"],
        "ours": found["ours_ms"],
        "peer": "without the plugin",
        "peer_value": found["peer_ms"],
        "unit": "ms",
        "n": found["n"],
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
