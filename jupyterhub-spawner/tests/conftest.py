"""Kernels for the tests: the same ipykernel behind Gresshopper (`--local`, no Slurm), and plain.

`HOP_BIN` names the folder with hop-front and hop-replica (default: the workspace's target/debug).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("HOP_BIN", ROOT / "target" / "debug"))


def write_spec(folder: Path, **config: Any) -> None:
    """A kernelspec named python3 in front of the native one."""
    spec = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Python 3 (GPU on demand)",
        "language": "python",
        "interrupt_mode": "message",
        "metadata": {
            "debugger": True,
            "kernel_provisioner": {
                "provisioner_name": "gresshopper",
                "config": {"local": True, "front_program": str(BIN / "hop-front"), **config},
            },
        },
    }
    place = folder / "kernels" / "python3"
    place.mkdir(parents=True, exist_ok=True)
    (place / "kernel.json").write_text(json.dumps(spec))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home of the test's own, in which nothing may be left at the end."""
    if not (BIN / "hop-front").is_file():
        pytest.skip(f"no hop-front in {BIN}: cargo build -p hop-front -p hop-replica, or set HOP_BIN")
    write_spec(tmp_path / "overlay")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "overlay"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("GRESSHOPPER_PYTHON", str(ROOT / "kernel" / "python"))
    yield tmp_path
    kernels = tmp_path / "data" / "gresshopper" / "kernels"
    eventually(lambda: not (kernels.is_dir() and any(kernels.iterdir())), "the kernel's folder is removed", 5)


def eventually(true: Callable[[], object], what: str, seconds: float = 20) -> None:
    """Waits until it is so."""
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, f"not within {seconds} s: {what}"
        time.sleep(0.05)
