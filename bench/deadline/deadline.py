"""bench `deadline`: twenty live `hop run` with deadlines on too few GPUs, by slack and first come, first served.

The same notebooks, drawn by seed, run on the real cluster twice per seed: once with `--deadline`, and once without,
as batch notebooks in the order of arrival. The simulator then gets their submissions and run times, and runs the
same two policies. Prints a measured line per case (see hop-bench); the peer is first come, first served.

Kernels are started beforehand: a notebook's first cell, which needs no GPU, sleeps until the notebook begins. Cells
sleep, to spare this machine's cores. The run time of each is known from "its last run" (papermill's fields in the
notebook).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/e2e"))
from harness import HUB_PYTHON, REPO, Cluster, until

COUNT, GPUS = 20, 4
OVER = 40.0
SPEC = "small"


def draw(seed: int) -> list[dict[str, Any]]:
    """Notebooks: start, run times of cells, deadline. Seconds from the start."""
    rng = random.Random(seed)
    books = []
    for _ in range(COUNT):
        cells = [rng.uniform(3, 8) for _ in range(rng.randint(2, 4))]
        begin = rng.uniform(0, OVER)
        books.append({"begin": begin, "cells": cells, "deadline": begin + rng.uniform(1.5, 4) * sum(cells)})
    return books


def write(path: Path, book: dict[str, Any], start: float) -> None:
    def cell(source: str, took: float | None) -> dict[str, Any]:
        metadata = {"papermill": {"status": "completed", "duration": took}} if took else {}
        made = {"cell_type": "code", "id": f"c{len(cells)}", "source": source, "outputs": [], "execution_count": None}
        return {**made, "metadata": metadata}

    cells: list[dict[str, Any]] = []
    cells.append(cell(f"import time\ntime.sleep(max(0, {start + book['begin']!r} - time.time()))", None))
    for took in book["cells"]:
        cells.append(cell(f"%%gpu 1\ntime.sleep({took!r})", took))
    spec = {"name": SPEC, "language": "python", "display_name": SPEC}
    path.write_text(
        json.dumps({"cells": cells, "metadata": {"kernelspec": spec}, "nbformat": 4, "nbformat_minor": 5})
    )
    path.chmod(0o644)


def live(cluster: Cluster, books: list[dict[str, Any]], by_slack: bool, prepare: float) -> list[dict[str, Any]]:
    """Runs the notebooks. Returns actual starts, run times of cells, and ends."""
    home = cluster.base / "home/alice/deadline"
    cluster.run("alice", "sh", "-c", f"rm -rf {home} && mkdir {home}")
    env = {"GRESSHOPPER_JUPYTER_PYTHON": HUB_PYTHON, "XDG_STATE_HOME": str(home / "state")}
    start = time.time() + prepare
    running = []
    for i, book in enumerate(books):
        path = home / f"d{i:02}.ipynb"
        write(path, book, start)
        by = datetime.fromtimestamp(start + book["deadline"]).isoformat()
        argv = ["hop", "run", str(path), "--json", *(["--deadline", by] if by_slack else [])]
        running.append(cluster.popen("alice", argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        time.sleep(prepare * 0.7 / COUNT)
    late = time.time() - start
    if late > 0 or any(process.poll() is not None for process in running):
        raise SystemExit(f"the preparation failed ({late:.0f} s): {running[0].poll()}")
    done = []
    for i, process in enumerate(running):
        out, err = process.communicate(timeout=600)
        if process.returncode not in (0, 4):
            raise SystemExit(err)
        report = json.loads(out)
        cells = json.loads((home / f"d{i:02}.out.ipynb").read_text())["cells"]
        at = [datetime.fromisoformat(c["metadata"]["papermill"]["start_time"]).timestamp() - start for c in cells]
        begin = at[1]
        if begin - books[i]["begin"] > 3:
            print(f"notebook {i} began {begin - books[i]['begin']:.1f} s late", file=sys.stderr)
        runs = [c["run_s"] for c in report["cells"][1:]]
        end = report["end"] - start
        done.append({"begin": begin, "cells": runs, "deadline": books[i]["deadline"], "end": end})
    until("no lease is left", cluster.quiet, 30)
    return done


def simulate(done: list[dict[str, Any]], lease: tuple[float, float]) -> dict[str, list[list[float]]]:
    """Ends in the simulator, by policy, a list per seed of the noise."""
    jobs = json.dumps({"gpus": GPUS, "lease": lease, "notebooks": done})
    argv = ["cargo", "run", "-q", "--release", "-p", "hop-sim", "--example", "live_deadlines"]
    program = os.environ.get("LIVE_DEADLINES")
    out = subprocess.run(
        [program] if program else argv, input=jobs, capture_output=True, text=True, check=True, cwd=REPO
    )
    found: dict[str, list[list[float]]] = {}
    for line in out.stdout.splitlines():
        one = json.loads(line)
        found.setdefault(one["policy"], []).append(one["ends"])
    return found


def met(books: list[dict[str, Any]], ends: list[float]) -> int:
    return sum(end <= book["deadline"] for book, end in zip(books, ends, strict=True))


def kendall(a: list[float], b: list[float]) -> float:
    """Kendall's tau of two orders: 1 the same, -1 reversed."""
    n = len(a)
    pairs = [(i, j) for i in range(n) for j in range(i)]
    agree = sum((a[i] - a[j]) * (b[i] - b[j]) > 0 for i, j in pairs)
    return 2 * agree / len(pairs) - 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--base", default="/srv/gresshopper-bench")
    parser.add_argument("--index", type=int, default=9)
    parser.add_argument("--prepare", type=float, default=75.0, help="seconds for the kernels to come up")
    parser.add_argument("--lease", type=float, nargs=2, default=(0.049, 0.085), help="p50 and p99, as measured")
    parser.add_argument("--draw", action="store_true", help="only simulate what would be run")
    args = parser.parse_args()
    if args.draw:
        for seed in args.seeds:
            books = draw(seed)
            for name, runs in simulate(books, tuple(args.lease)).items():
                print(seed, name, statistics.mean(met(books, ends) for ends in runs))
        return
    options = ("--nodes", "1", "--gpus-per-node", str(GPUS))
    cluster = Cluster(args.base, args.index, "auto", *options, PILOTS="1", GPUS_PER_PILOT=str(GPUS))
    try:
        cluster.up()
        python = "/opt/gresshopper-dev/user/bin/python"
        spec = ["kernelspec", "install", "--name", SPEC, "--mem", "300", "--python", python]
        subprocess.run([cluster.base / "opt/bin/hop", *spec, "--prefix", cluster.base / "opt"], check=True)
        measure(cluster, args)
    finally:
        cluster.down()


def measure(cluster: Cluster, args: argparse.Namespace) -> None:
    hits: dict[str, list[int]] = {}
    taus: dict[str, list[float]] = {}
    same: dict[str, list[int]] = {}
    for seed in args.seeds:
        books = draw(seed)
        for name in ("slack", "fcfs") if seed % 2 else ("fcfs", "slack"):
            load = os.getloadavg()[0]
            done = live(cluster, books, name == "slack", args.prepare)
            ends = [one["end"] for one in done]
            runs = simulate(done, tuple(args.lease))[name]
            hits.setdefault(f"live_{name}", []).append(met(done, ends))
            hits.setdefault(f"sim_{name}", []).append(statistics.mean(met(done, r) for r in runs))
            taus.setdefault(name, []).append(statistics.mean(kendall(ends, r) for r in runs))
            agree = [
                sum((a <= d["deadline"]) == (b <= d["deadline"]) for a, b, d in zip(ends, r, done, strict=True))
                for r in runs
            ]
            same.setdefault(name, []).append(statistics.mean(agree))
            said = (
                f"seed {seed} {name}: live {met(done, ends)}, simulated {hits[f'sim_{name}'][-1]} of {COUNT} in time"
            )
            more = f"tau {taus[name][-1]:.3f}, {same[name][-1]} alike, last end {max(ends):.0f} s, load {load:.1f}"
            print(f"{said}; {more}", file=sys.stderr)
    n = COUNT * len(args.seeds)
    for place in ("live", "sim"):
        ours, peer = (sum(hits[f"{place}_{name}"]) / n for name in ("slack", "fcfs"))
        line(f"{place}_hit_fraction", ours, peer, n)
    for name in ("slack", "fcfs"):
        line(f"order_{name}_tau", statistics.mean(taus[name]), None, n)
        line(f"same_outcome_{name}", sum(same[name]) / n, None, n)


def line(case: str, ours: float, peer: float | None, n: int) -> None:
    peer_name = None if peer is None else "first come, first served"
    row = {"bench": "deadline", "case": case, "ours": round(ours, 4), "peer": peer_name, "peer_value": peer}
    print(json.dumps({**row, "unit": "share", "n": n}), flush=True)


if __name__ == "__main__":
    main()
