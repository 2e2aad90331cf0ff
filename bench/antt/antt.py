"""bench `antt`: six CPU-bound notebooks on two real cores: by leases of cores, left to the OS, in fixed parts.

Six notebooks of one user, each of a few cells, drawn by seed, whose work goes on on two threads and is a fixed number
of hashes. Three ways of running them, in turn, with think time between the cells and without:

- leases: each notebook's kernel lives in a seat with a single core; a cell is `%%cpu --cpus 1` and runs on the seat's
  core and the lease's. So only one cell runs at a time, and the other kernels wait.
- OS: plain ipykernels with free use of both cores.
- partitioned: plain ipykernels, each in a CPU cgroup with a quota of a sixth of the machine.

A notebook's time is the sum over its cells from submission to reply; the time alone is the same sum on a plain kernel
with the machine to itself. ANTT is the mean of (time / time alone), STP the sum of (time alone / time) (Eyerman and
Eeckhout, IEEE Micro 28(3), 2008). Prints a measured line per case (see hop-bench).

Needs cgroup v1's cpu controller for the fixed parts, and a machine of two cores with little else on it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/e2e"))
from harness import Cluster, Notebook, until

COUNT, CELLS, THREADS = 6, 3, 2
# About a core-second's worth.
HASHES = 2_200_000
CHUNKS = 8
USER_PYTHON = "/opt/gresshopper-dev/user/bin/python"
CODE = """{magic}
import hashlib
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor({threads}) as pool:
    work = lambda _: hashlib.pbkdf2_hmac("sha256", b"word", b"salt", {hashes})
    list(pool.map(work, range({chunks})))
"""
CGROUPS = Path("/sys/fs/cgroup/cpu/gresshopper-bench-antt")

Book = list[tuple[float, float]]


def draw(seed: int) -> list[Book]:
    """Of each notebook's cells: the seconds of thinking before it, and of running alone."""
    rng = random.Random(seed)
    return [[(rng.uniform(4, 12), rng.uniform(1, 3)) for _ in range(CELLS)] for _ in range(COUNT)]


def code(magic: str, run: float) -> str:
    hashes = int(run * THREADS * HASHES / CHUNKS)
    return CODE.format(magic=magic, threads=THREADS, hashes=hashes, chunks=CHUNKS).lstrip()


def through(notebook: Notebook, book: Book, magic: str, think: bool) -> float:
    """The time of its cells from submission to reply."""
    spent = 0.0
    for pause, run in book:
        if think:
            time.sleep(pause)
        begun = time.monotonic()
        got = notebook.execute(code(magic, run), 300)
        spent += time.monotonic() - begun
        if got["status"] != "ok":
            raise SystemExit(f"a cell failed: {got['reply']}")
    return spent


def together(notebooks: list[Notebook], books: list[Book], magic: str, think: bool) -> list[float]:
    spent = [0.0] * len(books)

    def one(i: int) -> None:
        spent[i] = through(notebooks[i], books[i], magic, think)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(books))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if 0.0 in spent:
        raise SystemExit("a notebook is not through")
    return spent


@contextlib.contextmanager
def parts(notebooks: list[Notebook]) -> Iterator[None]:
    """A sixth of the machine for each, while it lasts."""
    period = 100_000
    homes = [CGROUPS / str(i) for i in range(len(notebooks))]
    pids = [notebook.execute("import os; print(os.getpid())")["text"].strip() for notebook in notebooks]
    try:
        for home, pid in zip(homes, pids):
            home.mkdir(parents=True)
            (home / "cpu.cfs_period_us").write_text(str(period))
            (home / "cpu.cfs_quota_us").write_text(str(period * THREADS // COUNT))
            (home / "cgroup.procs").write_text(pid)
        yield
    finally:
        for home, pid in zip(homes, pids):
            with contextlib.suppress(OSError):
                (CGROUPS.parent / "cgroup.procs").write_text(pid)
            with contextlib.suppress(OSError):
                home.rmdir()
        with contextlib.suppress(OSError):
            CGROUPS.rmdir()


def plain_kernelspec(cluster: Cluster) -> None:
    folder = cluster.base / "opt/share/jupyter/kernels/plain"
    folder.mkdir(parents=True, exist_ok=True)
    argv = [USER_PYTHON, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (folder / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "plain", "language": "python"}))


@contextlib.contextmanager
def six(cluster: Cluster, kernel: str) -> Iterator[list[Notebook]]:
    notebooks = []
    try:
        for _ in range(COUNT):
            notebooks.append(Notebook(cluster, "alice"))
            notebooks[-1].start(kernel=kernel)
        time.sleep(3)
        yield notebooks
    finally:
        for notebook in notebooks:
            notebook.close()


def measure(cluster: Cluster, books: list[Book]) -> dict[str, list[float]]:
    """Each notebook's time, by way of running and with think time or without."""
    found: dict[str, list[float]] = {}
    with six(cluster, "plain") as plain:
        load = os.getloadavg()[0]
        found["alone"] = [through(plain[i], books[i], "", False) for i in range(COUNT)]
        for think in (False, True):
            found[f"os {think}"] = together(plain, books, "", think)
        with parts(plain):
            for think in (False, True):
                found[f"parts {think}"] = together(plain, books, "", think)
    # A seat is as large as the first kernel. The large kernel here ends at once and leaves room for all six.
    large = Notebook(cluster, "alice")
    large.start(kernel="large")
    large.close()
    with six(cluster, "small") as leased:
        for think in (False, True):
            found[f"leases {think}"] = together(leased, books, "%%cpu --cpus 1", think)
            until("no lease is left", cluster.quiet, 30)
    print(f"load before: {load:.1f}; {json.dumps(found)}", file=sys.stderr, flush=True)
    return found


def report(rounds: list[dict[str, list[float]]]) -> None:
    def mean(way: str, what: str) -> float:
        ratios = [[t / alone for t, alone in zip(found[way], found["alone"])] for found in rounds]
        if what == "antt":
            return statistics.mean(statistics.mean(r) for r in ratios)
        return statistics.mean(sum(1 / x for x in r) for r in ratios)

    for think, name in ((False, "busy"), (True, "thinking")):
        for what, unit in (("antt", "x"), ("stp", "notebooks")):
            for way, peer in (("os", "OS scheduling"), ("parts", "static partitioning")):
                row: dict[str, Any] = {"bench": "antt", "case": f"{what}_{name}_{way}", "unit": unit}
                row |= {"ours": round(mean(f"leases {think}", what), 3), "peer": peer}
                row |= {"peer_value": round(mean(f"{way} {think}", what), 3), "n": COUNT * len(rounds)}
                print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--base", default="/srv/gresshopper-bench")
    parser.add_argument("--index", type=int, default=9)
    args = parser.parse_args()
    if len(os.sched_getaffinity(0)) != THREADS:
        raise SystemExit(f"this benchmark is for a machine of {THREADS} cores")
    pool = {"PILOTS": "1", "GPUS_PER_PILOT": "1", "CPUS_PER_PILOT": "1"}
    options = ("--real-cores", "--nodes", "1", "--gpus-per-node", "1")
    cluster = Cluster(args.base, args.index, "auto", *options, **pool)
    try:
        cluster.up()
        plain_kernelspec(cluster)
        for name, mem in (("small", 300), ("large", 300 * COUNT)):
            spec = ["kernelspec", "install", "--name", name, "--mem", str(mem), "--python", USER_PYTHON]
            cluster.run("root", "hop", *spec, "--prefix", str(cluster.base / "opt"))
        report([measure(cluster, draw(seed)) for seed in args.seeds])
    finally:
        cluster.down()


if __name__ == "__main__":
    main()
