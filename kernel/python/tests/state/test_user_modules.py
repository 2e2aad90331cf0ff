"""A difference of the user's own modules is told by its name, and nothing is where there is none."""

from __future__ import annotations

from typing import Any

import pytest
from gresshopper.state import marks

import amounts
import cases
import cases_own
import torture_set

OWN = [case for case in cases.CASES if case.name in cases_own.NAMED]
_restored: dict[str, Any] = {}


@pytest.mark.parametrize("case", amounts.one_in(2, OWN, lambda case: case.name))
def test_what_differs_is_named_and_nothing_else(
    case: cases.Case, request: pytest.FixtureRequest, tmp_path_factory: Any
) -> None:
    if not case.possible():
        pytest.skip("not here")
    if not _restored:
        base, names = tmp_path_factory.mktemp("own"), [case.name for case in amounts.chosen(request)]
        for do in ("save", "restore"):
            said, errors = torture_set.half(do, base, only=names)
            assert all("error" not in one for one in said.values()), (said, errors)
        _restored.update(said)
    told, named = _restored[case.name]["notices"], cases_own.NAMED[case.name]
    end = ": what the notebook's own modules hold isn't saved, run its cells again"
    assert set(told) == ({f"{named}{end}"} if named else set())


class Parts:
    def __init__(self, n: int) -> None:
        self.b, self.a, self._cached = n, str(n), None


def test_a_type_is_asked_for_its_caches_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    real = marks._is_cache
    monkeypatch.setattr(marks, "_is_cache", lambda kind, name: asked.append((kind, name)) or real(kind, name))
    paths = [Parts(n) for n in range(marks._MOST + 1)]
    first = marks.mark(paths)
    assert first and sorted(asked) == [(Parts, name) for name in ("_cached", "a", "b")]
    for made in paths:
        made._cached, made.b, made.a = 7, made.b, vars(made).pop("a")
    assert marks.mark(paths) == first
    paths[-1].b = 0
    assert marks.mark(paths) not in (first, "")
