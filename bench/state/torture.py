"""Runs the torture set (`kernel/python/tests/state`), and prints how many of its cases came back wrong without a
word, as one JSON object for `hop-bench record`. A case neither saved nor restored is an error, and no case that came
back.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
KERNEL = HERE.parent.parent / "kernel" / "python"
sys.path[:0] = [str(KERNEL), str(KERNEL / "tests" / "state")]
import cases
import torture_set

from micro import emit


def verdicts() -> list[str]:
    possible = [case.name for case in cases.CASES if case.possible()]
    with tempfile.TemporaryDirectory(prefix="hop-bench-") as base:
        saved, restored, errors = torture_set.both(Path(base))
    missing = [name for name in possible if name not in saved or name not in restored]
    if missing:
        raise SystemExit(f"these were not run: {missing}: {errors}")
    found = {name: torture_set.verdict(saved[name], restored[name]) for name in possible}
    for name, verdict in found.items():
        if verdict not in ("equal", "reported"):
            print(f"{name}: {verdict}", file=sys.stderr)
    broken = [name for name, verdict in found.items() if verdict.startswith(("couldn't", "not restored"))]
    if broken:
        raise SystemExit(f"these weren't set up, or not restored: {broken}")
    return list(found.values())


def main() -> None:
    found = verdicts()
    emit("torture_silent_wrong", sum(v.startswith("SILENTLY WRONG") for v in found), "cases", len(found))


if __name__ == "__main__":
    main()
