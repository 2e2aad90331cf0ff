"""A difference of the user's own modules is told by its name, and nothing is where there is none."""

from __future__ import annotations

from typing import Any

import pytest

import cases
import cases_own
import torture_set

CASES = [case for case in cases.CASES if case.name in cases_own.NAMED]
_restored: dict[str, Any] = {}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_differs_is_named_and_nothing_else(case: cases.Case, tmp_path_factory: Any) -> None:
    if not case.possible():
        pytest.skip("not here")
    if not _restored:
        base, names = tmp_path_factory.mktemp("own"), [case.name for case in CASES]
        for do in ("save", "restore"):
            said, errors = torture_set.half(do, base, only=names)
            assert all("error" not in one for one in said.values()), (said, errors)
        _restored.update(said)
    told, named = _restored[case.name]["notices"], cases_own.NAMED[case.name]
    end = ": what the notebook's own modules hold isn't saved, run its cells again"
    assert set(told) == ({f"{named}{end}"} if named else set())
