"""What a compacted log restores is what the log restored before: each case of the torture set, after a real compaction."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import cases
import torture_set

#: The first test runs all the cases.
pytestmark = pytest.mark.timeout(900)
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or Path(__file__).resolve().parents[4] / "target")
#: So many of the cases; all of them with HOP_COMPACTION=all.
CASES = cases.CASES if os.environ.get("HOP_COMPACTION") == "all" else cases.CASES[::7]


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


def results(base: Path) -> Any:
    if not _results:
        names = [case.name for case in CASES if case.possible()]
        saved, errors = torture_set.half("save", base, only=names)
        program = compactor()
        assert program is not None
        sizes = [compacted(path.parent.parent, program) for path in base.glob("*/log/log")]
        restored, more = torture_set.half("restore", base, only=names)
        _results.update(saved=saved, restored=restored, errors=errors + more, sizes=sizes)
    return _results


@pytest.mark.skipif(compactor() is None, reason="cargo build -p hop-state --examples builds the compaction")
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_restores_as_before(case: cases.Case, tmp_path_factory: Any) -> None:
    if not case.possible():
        pytest.skip("not here")
    found = results(tmp_path_factory.mktemp("compacted") if not _results else Path())
    assert case.name in found["saved"] and case.name in found["restored"], found["errors"][-3000:]
    verdict = torture_set.verdict(found["saved"][case.name], found["restored"][case.name])
    wanted = ("equal", "reported") if case.reported else ("equal",)
    assert verdict in wanted, verdict + " " + str(found["restored"][case.name].get("lost"))[:500]
