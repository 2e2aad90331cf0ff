"""Saves and restores all cases, each half in a Python of its own, and judges what came back."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import child

#: Seconds for all cases; they take a minute.
LIMIT = 420


def both(base: Path, only: Sequence[str] = ()) -> tuple[dict[str, Any], dict[str, Any], str]:
    """What was saved and what was restored, by case, and what the two processes complained of."""
    halves = [half(do, base, only) for do in ("save", "restore")]
    return halves[0][0], halves[1][0], "".join(errors[-3000:] for _, errors in halves)


def half(do: str, base: Path, only: Sequence[str] = ()) -> tuple[dict[str, Any], str]:
    """Save or restore all cases, or `only` some; what came of each, and what the process complained of.

    Nothing, if it takes too long: each case's test says so then, and none waits again.
    """
    harness = str(child.HERE / "harness.py")
    try:
        said, errors = child.run(harness, do, str(base), "cases", *only, base=base, timeout=LIMIT)
    except subprocess.TimeoutExpired as error:
        return {}, f"{error}\n{(error.stderr or b'').decode(errors='replace')[-3000:]}"
    return {one["name"]: one for one in said}, errors


def verdict(saved: dict[str, Any], restored: dict[str, Any]) -> str:
    """In words: equal, reported, or what is wrong."""
    if "error" in saved:
        return "couldn't be set up: " + saved["error"]
    if "error" in restored:
        return "not restored: " + restored["error"]
    told = bool(restored["lost"] or restored["notices"])
    if saved["out"] == restored["out"]:
        return "equal"
    return "reported" if told else f"SILENTLY WRONG: {saved['out']} became {restored['out']}"
