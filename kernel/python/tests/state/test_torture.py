"""Each case of the torture set restores equal, or is reported."""

from __future__ import annotations

from typing import Any

import pytest

import amounts
import cases
import torture_set

#: The first test runs all the cases that are chosen.
pytestmark = pytest.mark.timeout(900)
_results: list[Any] = []


def results(request: pytest.FixtureRequest, tmp: Any) -> Any:
    if not _results:
        names = [case.name for case in amounts.chosen(request)]
        _results.append(torture_set.both(tmp.mktemp("torture"), names))
    return _results[0]


def test_there_are_enough() -> None:
    assert len(cases.CASES) >= 200
    assert len({c.name for c in cases.CASES}) == len(cases.CASES)
    assert sum(c.audit for c in cases.CASES) >= 20


@pytest.mark.parametrize("case", amounts.one_in(3, cases.CASES, lambda c: c.name))
def test_restores_equal_or_is_reported(
    case: cases.Case, request: pytest.FixtureRequest, tmp_path_factory: Any
) -> None:
    if not case.possible():
        pytest.skip("not here")
    saved, restored, errors = results(request, tmp_path_factory)
    assert case.name in saved and case.name in restored, errors
    found = torture_set.verdict(saved[case.name], restored[case.name])
    wanted = ("equal", "reported") if case.reported else ("equal",)
    assert found in wanted, found + " " + str(restored[case.name].get("lost"))[:500]
