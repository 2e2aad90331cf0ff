"""A standby that applies each record has what its executor has, or says that it can't follow: over the torture set."""

from __future__ import annotations

import os
from typing import Any

import pytest

import cases
import torture_set

#: The first test runs all the cases.
pytestmark = pytest.mark.timeout(900)
#: Those of more than one record, or so many of them; all with HOP_FOLLOW=all.
FOLLOWABLE = [case for case in cases.CASES if len(case.cells) > 1 or case.audit]
CASES = FOLLOWABLE if os.environ.get("HOP_FOLLOW") == "all" else FOLLOWABLE[::3]
#: A standby has imported the module, as its executor has, and says that the module holds another object there.
TOLD = {"own object/in whose place its module holds another"}
_results: dict[str, Any] = {}


def results(tmp: Any) -> Any:
    if not _results:
        base = tmp.mktemp("followed")
        names = [case.name for case in CASES if case.possible()]
        saved, errors = torture_set.half("save", base, only=names)
        followed, more = torture_set.half("follow", base, only=names)
        _results.update(saved=saved, followed=followed, errors=errors + more)
    return _results


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_follows_or_says_so(case: cases.Case, tmp_path_factory: Any) -> None:
    if not case.possible():
        pytest.skip("not here")
    found = results(tmp_path_factory)
    assert case.name in found["saved"] and case.name in found["followed"], found["errors"][-3000:]
    saved, followed = found["saved"][case.name], found["followed"][case.name]
    if "rebuild" in followed:
        return
    # What only its cells can make again is a placeholder in a standby.
    wanted = ("equal", "reported") if case.reported or case.name in TOLD or followed.get("lost") else ("equal",)
    assert torture_set.verdict(saved, followed) in wanted, str(followed)[:500]


def test_most_can_be_followed(tmp_path_factory: Any) -> None:
    followed = results(tmp_path_factory)["followed"].values()
    refused = {one["name"]: one["rebuild"] for one in followed if "rebuild" in one}
    assert len(refused) <= len(followed) // 10, refused
