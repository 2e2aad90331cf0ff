"""The benchmark's dry run: `hop gpu`, the in-kernel half and the helper together, as real processes, against the fake
libcuda and NVML, in an empty environment. Nothing is measured."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
HOP = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / os.environ.get("PROFILE", "debug") / "hop"


def others_can_run_this_python() -> bool:
    try:
        return subprocess.run([sys.executable, "-c", ""], user=65534, check=False).returncode == 0
    except PermissionError:
        return False


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that the second user of the dry run can reach. Below `tmp_path` it isn't one: each run of pytest that
    begins meanwhile takes the access to all of root's folders away."""
    with tempfile.TemporaryDirectory(prefix="dry-run-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(not HOP.exists() or not shutil.which("cc"), reason="hop isn't built, or there is no C compiler")
def test_every_rung_against_the_fakes(tmp_path: Path, reachable: Path) -> None:
    fakes, out = reachable / "fakes", tmp_path / "out"
    out.mkdir()
    subprocess.run([ROOT / "tests/fakes/build.sh", fakes], check=True)
    done = subprocess.run(
        [sys.executable, ROOT / "bench/gpu/park.py", "--hop", HOP, "--fake", fakes, "--out", out],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={},  # as on a bare machine
    )
    cases = json.loads((out / "cases.json").read_text())
    results = {case["case"]: case["result"] for case in cases}
    failed = [case for case in cases if case["result"] == "fail"]
    assert (failed, done.returncode) == ([], 0), done.stderr
    assert done.stdout == "", "a dry run measures nothing"
    wanted = {"a touch of parked memory", "no room for the restore", "rung c, tiny", "rung b and b+c, tiny"}
    if os.geteuid() == 0 and others_can_run_this_python():
        wanted.add("the same through the helper")
    assert wanted <= {case for case, result in results.items() if result == "pass"}
