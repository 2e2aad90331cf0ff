#!/usr/bin/env python3
"""Benchmarks of another commit beside the present tree's, by turns in a single run: did a change make anything slower?

    bench/beside.py COMMIT NAME.. [--turns N] [| target/release/hop-bench record]

A NAME is a benchmark of `bench/run`, with arguments after it where quoted ("state micro"). Each turn runs the benchmark
on COMMIT, in a worktree below target/beside, and on the present tree; the order changes by turn. The output is one
measured line for each case that both know: the medians over the turns, with the other commit's as the peer's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
PYTHON = "/opt/gresshopper-dev/hub/bin/python"
Case = tuple[str, str, str]


def worktree(commit: str) -> Path:
    """A checkout of `commit`, made at the first call."""
    place = HERE / "target" / "beside" / commit
    if not place.exists():
        subprocess.run(["git", "-C", HERE, "worktree", "add", "-q", "--detach", place, commit], check=True)
        shared = HERE.parent / "shared"
        if shared.exists():
            (place.parent / "shared").unlink(missing_ok=True)
            (place.parent / "shared").symlink_to(shared)
    return place


def build(tree: Path) -> None:
    command = ["cargo", "build", "--quiet", "--locked", "--release", "--workspace", "--bins", "--lib"]
    subprocess.run(command, cwd=tree, check=True, env=environment(tree))


def environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "CARGO_TARGET_DIR": str(tree / "target"), "PROFILE": "release"}


def lines(tree: Path, name: str) -> dict[Case, float]:
    """Each case's figure by one run of a benchmark in `tree`."""
    name, *more = name.split()
    script = tree / "bench" / name / "run"
    command = [str(script)] if script.exists() else [PYTHON, str(script.with_name(f"{name}.py"))]
    ran = subprocess.run(
        [*command, *more], cwd=tree, check=True, stdout=subprocess.PIPE, text=True, env=environment(tree)
    )
    said = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    return {(m["bench"], m["case"], m["unit"]): m["ours"] for m in said if m["ours"] is not None}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("commit")
    parser.add_argument("names", nargs="+")
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    other = worktree(asked.commit)
    for tree in (other, HERE):
        build(tree)
    got: dict[Path, dict[Case, list[float]]] = {tree: defaultdict(list) for tree in (other, HERE)}
    for name in asked.names:
        for turn in range(asked.turns):
            for tree in (other, HERE) if turn % 2 == 0 else (HERE, other):
                print(f"== {name}, turn {turn + 1}, {tree.name}", file=sys.stderr)
                for case, value in lines(tree, name).items():
                    got[tree][case].append(value)
    for known, values in got[HERE].items():
        if before := got[other].get(known):
            bench, name, unit = known
            measured = {
                "bench": bench,
                "case": f"beside_{name}",
                "ours": statistics.median(values),
                "peer": asked.commit,
                "peer_value": statistics.median(before),
                "unit": unit,
                "n": len(values),
            }
            print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
