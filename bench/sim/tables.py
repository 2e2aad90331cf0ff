#!/usr/bin/env python3
"""Makes docs/simulation/tables.md: every table of the simulator's page, by one build and one command.

    cargo build --release --locked -p hop-sim --examples
    bench/sim/tables.py [SECTION..] >docs/simulation/tables.md

A figure is the median over the seeds, in brackets the least and the most. SECTION names single sections, to try them.
The examples `study`, `families`, `deadlines` and `run` do the work; about 40 minutes of one core.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "examples"
TRACE = os.environ.get("TRACE", str(ROOT.parent / "shared" / "data" / "adobe-june-2021.csv"))

#: Columns: heading, figure of `study`, factor, digits.
KEPT = ("pilots keep, %", "provisioned_saving_share", 100, 1)
IMMEDIATE = ("immediate, %", "immediate_fraction", 100, 1)
P95 = ("p95 s", "delay_p95_s", 1, 1)
P99 = ("p99 s", "delay_p99_s", 1, 1)
ANTT = ("ANTT", "antt", 1, 3)
LONGEST = ("longest wait, h", "longest_wait_h", 1, 1)
OVERTAKEN = ("overtaken", "overtaken_most", 1, 0)
REUSED = ("last executor, %", "executor_reuse_fraction", 100, 1)
MOVES = ("moves", "migrations", 1, 0)
DONE = ("jobs' GPU-hours done", "batch_gpu_hours_done", 1, 0)
VAIN = ("in vain", "batch_gpu_hours_lost", 1, 0)
SHIPPED = (KEPT, IMMEDIATE, P95, P99, ANTT, LONGEST, OVERTAKEN, REUSED)


def run(example: str, *arguments: str, **environment: str) -> str:
    """The output of one of the simulator's examples."""
    done = subprocess.run(
        [str(EXAMPLES / example), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def study(trace: str, nodes: str, seeds: str, *policies: str, columns: tuple = SHIPPED, **environment: str) -> None:
    """Print a table with a row for each number of GPUs and policy."""
    heading = ["GPUs", "policy", *(name for name, *_ in columns)]
    print(f"| {' | '.join(heading)} |\n{'|---' * len(heading)}|")
    for line in run("study", trace, nodes, seeds, *policies, **environment).splitlines():
        who, figures = line.split(":", 1)
        gpus, policy = who.split()
        found = {
            name: (float(middle), float(least), float(most))
            for name, middle, least, most in re.findall(r"(\w+) (\S+) \((\S+) to (\S+)\)", figures)
        }
        cells = [gpus if gpus != "0" else "as reservation needs", policy]
        for _, figure, factor, digits in columns:
            if figure not in found:
                cells.append("-")
                continue
            middle, least, most = (f"{factor * value:,.{digits}f}" for value in found[figure])
            cells.append(middle if least == most else f"{middle} ({least} to {most})")
        print(f"| {' | '.join(cells)} |")


def shipped() -> None:
    """The month as shipped, ten seeds."""
    print(
        "The default configuration: moves on, one replica, GPU memory with its kernel, parking counted in the delay.\n"
    )
    study(TRACE, "0,50,42,37", "1..10", "ours")


def replicas() -> None:
    """The month with three replicas, ten seeds."""
    study(TRACE, "0,37", "1..10", "ours-three-replicas")


def baselines() -> None:
    """The month by other policies, three seeds."""
    print("`notebookos` as its public code does it; `bound` is preemptive and clairvoyant.\n")
    others = (
        "notebookos",
        "notebookos-free-scale-in",
        "warm-pool",
        "fcfs-batch",
        "idle-cull",
        "time-slicing",
        "partitioning",
        "reservation",
        "bound",
    )
    study(TRACE, "0,50,42,37", "1..3", *others)


def parts() -> None:
    """The worth of each part: the month without it, 1,144 and 296 GPUs, three seeds."""
    without = (
        "ours",
        "ours-no-migration",
        "ours-no-affinity",
        "ours-no-packing",
        "ours-no-learning",
        "ours-no-linger",
        "ours-no-fair-share",
    )
    study(TRACE, "0,37", "1..3", *without)


def unseen() -> None:
    """Traces that the policy was not made on: each seed is a trace of its own."""
    for family, seeds in (("synth:a", "1..5"), ("synth:b", "1..5"), ("synth:june", "1..10")):
        print(f"`{family}`, seeds {seeds}:\n")
        study(family, "0", seeds, "ours", "notebookos", "idle-cull")
        print()


def short() -> None:
    """Far too few GPUs, five seeds."""
    for family in ("synth:a", "synth:b"):
        print(f"`{family}`:\n")
        study(
            family,
            "30,24",
            "1..5",
            "ours",
            "notebookos",
            "warm-pool",
            columns=(IMMEDIATE, P99, ANTT, LONGEST, OVERTAKEN, MOVES),
        )
        print()


def thinned() -> None:
    """NotebookOS's scale: sessions left out by seed until reservation fits into 240 GPUs, ten seeds."""
    study(TRACE, "30,20,12,10", "1..10", "ours", "notebookos", THIN="240")


def frontier() -> None:
    """The price of a spared wait: `most_per_wait` on the whole cluster, three seeds."""
    for price in (15_000, 25_000, 58_000, 230_000):
        print(f"`most_per_wait = {price}`:\n")
        with cluster(f"[policy.scale]\nmost_per_wait = {price}\n") as file:
            study(TRACE, "0", "1..3", "ours", columns=(KEPT, IMMEDIATE, P95, P99, ANTT), CLUSTER=file)
        print()


def neighbours() -> None:
    """Beside a batch queue that never runs empty, five seeds."""
    for name, text in (("jobs yield within 30 s", "yields_s = 30"), ("jobs are never stopped", "gpus = 1")):
        print(f"{name}:\n")
        with cluster(f"[batch]\n{text}\n") as file:
            study(TRACE, "0,50", "1..5", "ours", columns=(*SHIPPED, DONE, VAIN), CLUSTER=file)
        print()


def burst() -> None:
    """NotebookOS's scale on 10 own nodes, with 6 that boot when wanted, five seeds."""
    for heading, boot in (
        ("no others", None),
        ("nodes that boot in 30 s", 30),
        ("nodes that boot in 90 s", 90),
        ("nodes that boot in 5 min", 300),
    ):
        print(f"{heading}:\n")
        text = (
            f"[[burst]]\npartition = 'cloud'\nnodes = 6\nboot = {{ p50 = {boot}.0, p99 = {2 * boot}.0 }}\nprice = 1.0\n"
            if boot
            else ""
        )
        with cluster(text) as file:
            study(TRACE, "10", "1..5", "ours", THIN="240", CLUSTER=file)
        print()


def quantum() -> None:
    """Parking a cell after an hour for others, short of GPUs, three seeds."""
    study(TRACE, "50,42,37", "1..3", "ours", "ours-parking", columns=(P95, P99, ANTT, LONGEST, OVERTAKEN))


def families() -> None:
    """Families of traces for which no policy was tuned, at 90 % load, with one seed."""
    said = run("families", "-l", "90", "ours", "notebookos", "warm-pool")
    pattern = re.compile(
        r"(.+?) +90 % +(\d+) nodes (\S+) +antt +(\S+) mean +(\S+) s p99 +\S+ s longest +(\S+) h overtaken +(\S+) moves +(\S+)"
    )
    print(
        "| family | nodes | policy | ANTT | mean delay, s | longest wait, h | overtaken | moves |\n|---|---|---|---|---|---|---|---|"
    )
    for row in sorted(match.groups() for match in map(pattern.match, said.splitlines()) if match):
        print(f"| {' | '.join(row)} |")


def deadlines() -> None:
    """Deadlines met: the same core by slack, and first come, first served."""
    said = run("deadlines", TRACE, "16", "14", "12", "10", "8", "6").splitlines()
    print("\n".join([said[0], "|---|---|---|---|", *said[1:]]))


def causes() -> None:
    """Cells that still wait on the whole cluster, seed 1, by what came before the cell."""
    with tempfile.TemporaryDirectory() as folder:
        rows = f"{folder}/rows.csv"
        run("run", TRACE, "ours", CSV=rows)
        done = subprocess.run([str(ROOT / "bench/sim/causes.py"), rows], capture_output=True, text=True, check=True)
        print(done.stdout.strip())


@contextlib.contextmanager
def cluster(text: str) -> Iterator[str]:
    """A file with a cluster's description, as long as a table is made."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        yield file.name


SECTIONS = (
    shipped,
    replicas,
    baselines,
    parts,
    unseen,
    short,
    thinned,
    frontier,
    neighbours,
    burst,
    quantum,
    families,
    deadlines,
    causes,
)


def main() -> None:
    asked = sys.argv[1:] or [section.__name__ for section in SECTIONS]
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    )
    print(
        f"# Tables\n\nMade by `bench/sim/tables.py` at {commit.stdout.strip()}, {time.strftime('%Y-%m-%d', time.gmtime())}; don't edit."
    )
    print("[README.md](README.md) says what the figures mean.")
    for section in SECTIONS:
        if section.__name__ in asked:
            print(f"\n## {(section.__doc__ or '').strip().rstrip('.')}\n", flush=True)
            section()


if __name__ == "__main__":
    main()
