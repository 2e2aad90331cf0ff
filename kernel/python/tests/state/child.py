"""Runs code that uses the package in a Python of its own, and reads what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def run(*command: str, base: Path, timeout: float = 120) -> tuple[list[Any], str]:
    """What a Python says (JSON, each after the character 1E), and its errors; its home's part of ours is `base`."""
    env = dict(
        os.environ,
        PYTHONPATH=f"{HERE.parent.parent}:{HERE}",
        XDG_CONFIG_HOME=str(base / "config"),
        IPYTHONDIR=str(base / "ipython"),
        PYTHONWARNINGS="ignore",
        MPLBACKEND="agg",
    )
    base.chmod(0o700)
    done = subprocess.run(
        [sys.executable, *command],
        env=env,
        cwd=base,
        timeout=timeout,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    return [json.loads(said.splitlines()[0]) for said in done.stdout.split("\x1e")[1:]], done.stderr


def answer(script: str, *arguments: str, base: Path) -> tuple[Any, str]:
    """The one thing that a script says, and its errors."""
    said, errors = run("-c", script, *arguments, base=base)
    assert said, errors[-3000:]
    return said[-1], errors
