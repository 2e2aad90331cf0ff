"""What a compacted log restores is what the log restored before: each case of the torture set, after a real compaction."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import amounts
import cases
import torture_set

#: The first test runs all the cases that are chosen.
pytestmark = pytest.mark.timeout(900)
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or Path(__file__).resolve().parents[4] / "target")


def compactor() -> Path | None:
    """The compaction of `kernel/state`, as a program."""
    built = [TARGET / profile / "examples" / "compact" for profile in ("debug", "release")]
    return next((path for path in built if path.is_file()), None)


def compacted(case: Path, program: Path) -> tuple[int, int]:
    """Put a compacted log in the place of a case's; the bytes of both."""
    log, new = case / "log", case / "new"
    done = subprocess.run([program, log, new, case / "key"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{case.name}: {done.stderr}"
    sizes = (log / "log").stat().st_size, (new / "log").stat().st_size
    shutil.rmtree(log)
    new.rename(log)
    return sizes


_results: dict[str, Any] = {}


def results(request: pytest.FixtureRequest, base: Path) -> Any:
    if not _results:
        names = [case.name for case in amounts.chosen(request) if case.possible()]
        saved, errors = torture_set.half("save", base, only=names)
        program = compactor()
        assert program is not None
        sizes = [compacted(path.parent.parent, program) for path in base.glob("*/log/log")]
        restored, more = torture_set.half("restore", base, only=names)
        _results.update(saved=saved, restored=restored, errors=errors + more, sizes=sizes)
    return _results


@pytest.mark.skipif(compactor() is None, reason="cargo build -p hop-state --examples builds the compaction")
@pytest.mark.parametrize("case", amounts.one_in(21, cases.CASES, lambda c: c.name, first=1))
def test_restores_as_before(case: cases.Case, request: pytest.FixtureRequest, tmp_path_factory: Any) -> None:
    if not case.possible():
        pytest.skip("not here")
    found = results(request, tmp_path_factory.mktemp("compacted") if not _results else Path())
    assert case.name in found["saved"] and case.name in found["restored"], found["errors"][-3000:]
    verdict = torture_set.verdict(found["saved"][case.name], found["restored"][case.name])
    wanted = ("equal", "reported") if case.reported else ("equal",)
    assert verdict in wanted, verdict + " " + str(found["restored"][case.name].get("lost"))[:500]
