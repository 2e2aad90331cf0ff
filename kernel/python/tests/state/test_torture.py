"""Each case of the torture set restores equal, or is reported; with the native library and without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cases

HERE = Path(__file__).parent
#: The first test of each kind runs all the cases.
pytestmark = pytest.mark.timeout(900)
_results: dict[Any, Any] = {}


def run(do: str, base: Path, tracker: bool) -> dict[str, Any]:
    env = dict(os.environ, PYTHONPATH=f"{HERE.parent.parent}:{HERE}", PYTHONWARNINGS="ignore", MPLBACKEND="agg")
    if not tracker:
        env["GRESSHOPPER_TRACKER"] = "none"
    done = subprocess.run(
        [sys.executable, str(HERE / "harness.py"), do, str(base), "cases"],
        env=env,
        timeout=600,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    found = {}
    for line in done.stdout.split("\x1e")[1:]:
        said = json.loads(line.splitlines()[0])
        found[said["name"]] = said
    found["stderr"] = done.stderr[-3000:]
    return found


def results(tracker: bool, tmp: Any) -> Any:
    if tracker not in _results:
        base = tmp.mktemp("native" if tracker else "python")
        _results[tracker] = run("save", base, tracker), run("restore", base, tracker)
    return _results[tracker]


def verdict(saved: dict[str, Any], restored: dict[str, Any]) -> str:
    if "error" in saved:
        return "couldn't be set up: " + saved["error"]
    if "error" in restored:
        return "not restored: " + restored["error"]
    told = bool(restored["lost"] or restored["notices"])
    if saved["out"] == restored["out"]:
        return "equal"
    return "reported" if told else f"SILENTLY WRONG: {saved['out']} became {restored['out']}"


def test_there_are_enough() -> None:
    assert len(cases.CASES) >= 200
    assert len({c.name for c in cases.CASES}) == len(cases.CASES)
    assert sum(c.audit for c in cases.CASES) >= 20


@pytest.mark.parametrize("tracker", [True, False], ids=["native", "python"])
@pytest.mark.parametrize("case", cases.CASES, ids=lambda c: c.name)
def test_restores_equal_or_is_reported(case: cases.Case, tracker: bool, tmp_path_factory: Any) -> None:
    if not case.possible():
        pytest.skip("not here")
    saved, restored = results(tracker, tmp_path_factory)
    assert case.name in saved and case.name in restored, saved["stderr"] + restored["stderr"]
    found = verdict(saved[case.name], restored[case.name])
    wanted = ("equal", "reported") if case.reported else ("equal",)
    assert found in wanted, found + " " + str(restored[case.name].get("lost"))[:500]
