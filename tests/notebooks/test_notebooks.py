"""Notebooks whose kernel is saved, killed and restored after every cell: later outputs are those of an undisturbed run.

All of them take long: `HOP_NOTEBOOKS=all` runs all, else only short ones run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FAST = ("own_classes", "own_text", "cheryl")
for package in ("numpy", "pandas", "sklearn", "matplotlib", "IPython", "cloudpickle"):
    pytest.importorskip(package)


def chosen() -> list[str]:
    if os.environ.get("HOP_NOTEBOOKS") == "all":
        return sorted(p.stem for p in (HERE / "books").glob("*.ipynb"))
    return list(FAST)


@pytest.mark.parametrize("name", chosen())
def test_outputs_are_those_of_an_undisturbed_run(name: str) -> None:
    # In a process of its own: it loads libraries and forks, which the tests' process must not.
    code = f"import json, runner; runner.preload(); print('\\x1e' + json.dumps(runner.compare({name!r})))"
    env = dict(os.environ, PYTHONPATH=f"{HERE}:{HERE.parent.parent / 'kernel' / 'python'}", PYTHONWARNINGS="ignore")
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=HERE, capture_output=True, text=True, timeout=3000, check=False
    )
    assert "\x1e" in done.stdout, done.stderr[-3000:]
    said = json.loads(done.stdout.rpartition("\x1e")[2])
    assert not said["wrong"], json.dumps(said["wrong"])[:3000]
    assert said["equal"] > 0


def test_there_are_enough() -> None:
    assert len(list((HERE / "books").glob("*.ipynb"))) >= 14
