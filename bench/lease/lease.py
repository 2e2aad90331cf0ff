"""bench `lease`: from a cell's submission to its first instruction, beside a bare `srun --exact` step.

Prints one measured line per case (see hop-bench). Runs of ours and of the peer alternate, on the same cluster, in the
same run. Both ends are times of the machine's one clock, printed by the first instruction of the cell and of the step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/e2e"))
from harness import Cluster, Notebook, notebook, until

STAMP = "import time; print(repr(time.time()))"


def cell(book: Notebook, magic: str) -> float:
    """Milliseconds from the submission to the cell's first instruction."""
    got = book.timed(code=f"{magic}\n{STAMP}" if magic else STAMP)
    if got["status"] != "ok":
        raise SystemExit(f"a cell failed: {got['reply']}")
    return (float(got["text"]) - got["submitted"]) * 1000


class Bare:
    """A GPU job of the service account's own, in whose batch step bare steps are started."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        argv = [
            "salloc",
            "-Q",
            "-w",
            node,
            "-A",
            "pool",
            "--gres=gpu:1",
            "-c",
            "2",
            "--mem=512",
            "sh",
            "-c",
            "while read -r _; do "
            "date +%s.%N; srun -Q --exact -n1 -c1 --mem=0 --gres=gpu:1 --mpi=none --cpu-bind=none --export=PATH "
            "--input=none date +%s.%N; done",
        ]
        self.process = cluster.popen("gresshopper", argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1)

    def step(self) -> float:
        """Milliseconds from starting srun to the task's first instruction."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        begun, ran = float(self.process.stdout.readline()), float(self.process.stdout.readline())
        return (ran - begun) * 1000

    def close(self) -> None:
        if self.process.stdin:
            self.process.stdin.close()
        self.process.wait(30)


def line(case: str, ours: list[float], peer: str, theirs: list[float], at: int) -> None:
    def value(runs: list[float]) -> float:
        return statistics.quantiles(runs, n=100, method="inclusive")[at - 1]

    print(
        json.dumps(
            {
                "bench": "lease",
                "case": f"{case}_p{at}",
                "ours": value(ours),
                "peer": peer,
                "peer_value": value(theirs),
                "unit": "ms",
                "n": len(ours),
            }
        ),
        flush=True,
    )


def main() -> None:
    args = argparse.ArgumentParser()
    args.add_argument("--rounds", type=int, default=100)
    args.add_argument("--base", default="/srv/gresshopper-bench")
    rounds = args.parse_args().rounds
    # Three of the four nodes have pilots; the fourth is for the bare steps.
    cluster = Cluster(args.parse_args().base, 11, PILOTS="3", LINGER_MS="0")
    try:
        cluster.up()
        pilots = set(cluster.run("root", "squeue", "-h", "-t", "R", "-u", "gresshopper", "-o", "%N").split())
        free = next(n for n in cluster.env["HOP_DEV_NODES"].split(",") if n not in pilots)
        bare = Bare(cluster, free)
        with notebook(cluster, "alice") as alice:
            for _ in range(5):
                cell(alice, "%%gpu 1"), bare.step(), cell(alice, "")
                until("the lease is over", cluster.quiet)
            fresh, steps = [], []
            for _ in range(rounds):
                steps.append(bare.step())
                fresh.append(cell(alice, "%%gpu 1"))
                until("the lease is over", cluster.quiet, every=0.02)
                time.sleep(0.05)
        for at in (50, 99):
            line("fresh", fresh, "srun --exact", steps, at)
        bare.close()
        cluster.deploy("down")
        cluster.deploy_env["LINGER_MS"] = "30000"
        cluster.deploy("up")
        cluster.wait_for_pilots()
        with notebook(cluster, "alice") as alice:
            cell(alice, "%%gpu 1")
            linger, cpu = [], []
            for _ in range(rounds):
                cpu.append(cell(alice, ""))
                linger.append(cell(alice, "%%gpu 1"))
        line("linger", linger, "a CPU cell", cpu, 50)
    finally:
        cluster.down()
    line("hand_on", *hand_on(args.parse_args().base, rounds), 50)


def hand_on(base: str, rounds: int) -> tuple[list[float], str, list[float]]:
    """From the end of a user's cell to the first instruction of another user's cell that waited for the GPU."""
    cluster = Cluster(
        base, 11, "auto", "--nodes", "1", "--gpus-per-node", "1", PILOTS="1", GPUS_PER_PILOT="1", LINGER_MS="0"
    )
    waits, fresh = [], []
    try:
        cluster.up()
        with notebook(cluster, "alice") as alice, notebook(cluster, "bob") as bob:
            for _ in range(rounds):
                fresh.append(cell(bob, "%%gpu 1"))
                until("the lease is over", cluster.quiet, every=0.02)
                held = alice.submit("%%gpu 1\nimport time; time.sleep(0.4); print(repr(time.time()))")["cell"]
                until("alice has it", lambda: cluster.steps("alice"), every=0.01)
                waiting = bob.submit(f"%%gpu 1\n{STAMP}")["cell"]
                ended = float(alice.wait(held)["text"])
                waits.append((float(bob.wait(waiting)["text"]) - ended) * 1000)
                until("the lease is over", cluster.quiet, every=0.02)
    finally:
        cluster.down()
    return waits, "a fresh lease", fresh


if __name__ == "__main__":
    main()
