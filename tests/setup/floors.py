#!/usr/bin/env python3
"""Check that dependencies between the top-level folders point one way: down the floors of docs/architecture.md.

Arrows come from cargo's metadata (normal, build and development dependencies), and from the imports of our Python
packages. A crate that no source of its dependent names is wrong as well, but for those that only bring a feature along
(`FEATURES`). Root's plugin is held to few crates, however far below they are. Each wrong arrow is a line on standard
error with its cure; the exit status is then 1.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

# A folder leans on lower floors and on itself. Folders of the same floor don't know each other.
FLOORS = {
    "words": 0,
    "slurm-plugin": 1,
    "scheduler": 2,
    "kernel": 3,
    "hop": 4,
    "bench": 4,
    "jupyterhub-spawner": 4,
    "tests": 5,
}

# Crates and programs that a single folder may know.
DOORS = {
    "openraft": "kernel/raft",
    "slurm-plugin/sys": "slurm-plugin/link",
}
# Daemons and the library that Slurm loads: ends of the graph.
ENDS = {
    "scheduler/daemon",
    "scheduler/agent",
    "slurm-plugin/spank",
    "slurm-plugin/link",
    "kernel/front",
    "hop",
    "bench",
}

# Dependencies that no source names: they turn on features of crates below.
FEATURES = {("kernel/remote", "reqwest")}

# What Slurm loads as root, and crates that it must not carry.
PLUGIN = "hop-spank"
TOO_LARGE = {"tokio", "hop-core", "hop-api", "hop-slurm"}

PYTHON = {"gresshopper": "kernel/python", "gresshopper_jupyter": "jupyterhub-spawner"}


class Arrow(NamedTuple):
    """`source` depends on `target`: folders of ours below the root, or the name of a crate of others."""

    source: str
    target: str
    told_by: str
    name: str = ""


def crates() -> Iterator[Arrow]:
    command = ["cargo", "metadata", "--locked", "--offline", "--no-deps", "--format-version", "1"]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if out.returncode:
        sys.exit(f"floors: cargo metadata failed: {out.stderr.strip()}")
    for package in json.loads(out.stdout)["packages"]:
        manifest = Path(package["manifest_path"]).relative_to(ROOT)
        for dependency in package["dependencies"]:
            path = dependency.get("path")
            target = str(Path(path).relative_to(ROOT)) if path else dependency["name"]
            name = dependency["rename"] or dependency["name"]
            yield Arrow(str(manifest.parent), target, str(manifest), name)


def carried() -> set[str]:
    """Crates that root's plugin carries against `TOO_LARGE`."""
    command = ["cargo", "tree", "--locked", "--offline", "-p", PLUGIN, "-e", "normal", "--prefix", "none"]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if out.returncode:
        sys.exit(f"floors: cargo tree failed: {out.stderr.strip()}")
    return {line.split()[0] for line in out.stdout.splitlines() if line} & TOO_LARGE


def unused(arrow: Arrow) -> bool:
    """Whether a crate's sources never name the dependency."""
    folder = ROOT / arrow.source
    if not arrow.told_by.endswith("Cargo.toml") or (arrow.source, arrow.name) in FEATURES:
        return False
    named = re.compile(rf"\b{re.escape(arrow.name.replace('-', '_'))}\b")
    nested = {path.parent for path in folder.glob("*/**/Cargo.toml")}
    sources = (path for path in folder.rglob("*.rs") if not nested & set(path.parents))
    return not any(named.search(path.read_text()) for path in sources)


def imports() -> Iterator[Arrow]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *(f"{folder}/{package}/*.py" for package, folder in PYTHON.items())],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        source = next(folder for folder in PYTHON.values() if name.startswith(folder + "/"))
        if not (ROOT / name).is_file():
            continue
        for node in ast.walk(ast.parse((ROOT / name).read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules = [node.module]
            else:
                continue
            for module in modules:
                target = PYTHON.get(module.split(".")[0])
                if target is not None:
                    yield Arrow(source, target, f"{name}:{node.lineno}")


def wrong(arrow: Arrow) -> str | None:
    """The reason why an arrow must not be, or None."""
    door = DOORS.get(arrow.target)
    if door not in (None, arrow.source):
        return f"only {door} may know {arrow.target}"
    if arrow.target in ENDS and arrow.target != arrow.source:
        return f"{arrow.target} is an end of the graph: nothing depends on it"
    above, below = (folder.split("/")[0] for folder in (arrow.source, arrow.target))
    of_others = "/" not in arrow.target and arrow.target not in FLOORS
    if of_others or above == below:
        return None
    homeless = next((folder for folder in (above, below) if folder not in FLOORS), None)
    if homeless:
        return f"{homeless}/ has no floor: give it one in {Path(__file__).name} and in docs/architecture.md"
    if FLOORS[below] >= FLOORS[above]:
        return f"{below}/ is not below {above}/: move what both need to a lower floor"
    return None


def main() -> int:
    arrows = [*crates(), *imports()]
    found = [(arrow, reason) for arrow in arrows if (reason := wrong(arrow))]
    found += [(arrow, "no source names it: drop it") for arrow in arrows if unused(arrow)]
    for arrow, reason in found:
        print(f"floors: {arrow.told_by}: {arrow.source} -> {arrow.target}: {reason}", file=sys.stderr)
    heavy = carried()
    for crate in sorted(heavy):
        print(
            f"floors: {PLUGIN} carries {crate}: keep it out of root's plugin, by a feature or a crate",
            file=sys.stderr,
        )
    return 1 if found or heavy else 0


if __name__ == "__main__":
    sys.exit(main())
