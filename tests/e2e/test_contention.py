"""Two users, three notebooks each, two GPUs, and an adversary who tries all the time."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

from harness import Cluster, Notebook, until
from opens import Recorder, shared

# Each open is held, so that each is an event of its own: fanotify merges what one process does in quick succession.
HOLD = """
import glob, os, time
def use(seconds):
    held = {}
    for path in sorted(glob.glob(f"/dev/fakegpu-{os.environ['SLURMD_NODENAME']}-*")):
        try:
            held[path] = os.open(path, os.O_RDWR | os.O_NOCTTY)
        except OSError:
            continue
    time.sleep(seconds)
    for fd in held.values():
        os.close(fd)
    (path,) = held
    return path
"""

ROUNDS = 5

# Runs as carol, on the same node, outside and inside Slurm steps: any open that succeeds is printed.
ADVERSARY = """
import glob, os, sys, time
end = time.time() + float(sys.argv[1])
while time.time() < end:
    for path in glob.glob(f"/dev/fakegpu-{os.environ['SLURMD_NODENAME']}-*"):
        try:
            os.open(path, os.O_RDWR | os.O_NOCTTY)
            print("opened", path, flush=True)
        except OSError:
            pass
    time.sleep(0.001)
print("tried", flush=True)
"""


def test_cells_queue_nobody_starves_and_no_gpu_is_ever_open_in_two_kernels(two_gpus: Cluster, tmp_path: Path) -> None:
    devices = sorted(
        str(p) for p in Path("/dev").glob(f"fakegpu-{two_gpus.env['HOP_DEV_NODES'].split(',')[0][:-1]}*")
    )
    recorder = Recorder(devices)
    recorder.start()
    adversary = in_a_step(two_gpus, tmp_path)
    with contextlib.ExitStack() as stack:
        books = []
        for user in ("alice", "bob"):
            for _ in range(3):
                book = Notebook(two_gpus, user)
                stack.callback(book.close)
                book.start()
                book.execute(HOLD)
                books.append(book)
        began = time.time()
        cells = [
            (book, [book.submit(f"%%gpu 1\nprint(use(0.2), {n})")["cell"] for n in range(ROUNDS)]) for book in books
        ]
        for book, submitted in cells:
            for n, cell in enumerate(submitted):
                got = book.wait(cell, 120)
                assert got["status"] == "ok", got
                assert got["text"].split()[1] == str(n)
        took = time.time() - began
        until("no lease is left", two_gpus.quiet, 30)
    out, _ = adversary.communicate(timeout=120)
    recorder.stop()
    assert "tried" in out
    assert "opened" not in out, "the adversary opened a device"
    opened = [e for e in recorder.seen if e.opened]
    assert len(opened) == 6 * ROUNDS, "the recorder must have seen the cells' own opens, and no other"
    assert shared(recorder.seen) == []
    print(f"{len(opened)} opens by {len({e.kernel for e in opened})} kernels in {took:.1f} s", file=sys.stderr)
    the_books_add_up(two_gpus)


def in_a_step(cluster: Cluster, tmp_path: Path) -> subprocess.Popen[str]:
    """The adversary, in a Slurm job of carol's on the pool's node."""
    script = cluster.base / "home/carol/adversary.py"
    script.write_text(ADVERSARY)
    os.chmod(script, 0o644)
    node = cluster.run("root", "squeue", "-h", "-t", "R", "-u", "gresshopper", "-o", "%N").split()[0]
    argv = ["srun", "-Q", "-w", node, "-n1", "--mem=64", "/usr/bin/python3", str(script), "60"]
    return cluster.popen("carol", argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def the_books_add_up(cluster: Cluster) -> None:
    """One row per lease; each lease a Slurm step with gres/gpu; per device no two at once."""
    rows = [r for r in cluster.hop("acct", "-a", "-X")["rows"] if r["start"] is not None and r["n_gpus"]]
    leases = [r["lease_id"] for r in rows]
    assert len(leases) == len(set(leases))
    sacct = cluster.run("root", "sacct", "-a", "-n", "-P", "-o", "JobID,AllocTRES")
    steps = {line.split("|")[0] for line in sacct.splitlines() if "gres/gpu=" in line}
    by_device: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows:
        assert row["run"] + row["linger"] <= row["held"] + 1e-3, row
        assert row["slurm_job_id"] in steps, f"{row} is not among Slurm's steps"
        for gpu in row["gpus"].split(","):
            by_device.setdefault((row["node"], gpu), []).append((row["start"], row["start"] + row["held"]))
    for spans in by_device.values():
        spans.sort()
        for (_, end), (start, _) in itertools.pairwise(spans):
            assert start >= end - 1e-3
