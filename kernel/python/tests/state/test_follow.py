"""A standby that applies each record has what its executor has, or says that it can't follow: over the torture set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gresshopper.state import form

import amounts
import cases
import child
import torture_set

#: The first test runs all the cases that are chosen.
pytestmark = pytest.mark.timeout(900)
#: Those of more than one record.
FOLLOWABLE = [case for case in cases.CASES if len(case.cells) > 1 or case.audit]
#: A standby has imported the module, as its executor has, and says that the module holds another object there.
TOLD = {"own object/in whose place its module holds another"}
_results: dict[str, Any] = {}


def results(request: pytest.FixtureRequest, tmp: Any) -> Any:
    if not _results:
        base = tmp.mktemp("followed")
        names = [case.name for case in amounts.chosen(request) if case.possible()]
        saved, errors = torture_set.half("save", base, only=names)
        followed, more = torture_set.half("follow", base, only=names)
        _results.update(saved=saved, followed=followed, errors=errors + more)
    return _results


@pytest.mark.parametrize("case", amounts.one_in(9, FOLLOWABLE, lambda c: c.name, first=2))
def test_follows_or_says_so(case: cases.Case, request: pytest.FixtureRequest, tmp_path_factory: Any) -> None:
    if not case.possible():
        pytest.skip("not here")
    found = results(request, tmp_path_factory)
    assert case.name in found["saved"] and case.name in found["followed"], found["errors"][-3000:]
    saved, followed = found["saved"][case.name], found["followed"][case.name]
    if "rebuild" in followed:
        return
    # What only its cells can make again is a placeholder in a standby.
    wanted = ("equal", "reported") if case.reported or case.name in TOLD or followed.get("lost") else ("equal",)
    assert torture_set.verdict(saved, followed) in wanted, str(followed)[:500]


def test_most_can_be_followed(request: pytest.FixtureRequest, tmp_path_factory: Any) -> None:
    followed = results(request, tmp_path_factory)["followed"].values()
    refused = {one["name"]: one["rebuild"] for one in followed if "rebuild" in one}
    assert len(refused) <= len(followed) // 10, refused


#: Cells, of which the last changes an object that a setting holds, and a check.
SETTINGS = {
    "attribute": (
        ["import json\ncfg = [1]\njson.cfg = cfg", "cfg.append(2)"],
        "out = (json.cfg is cfg, cfg)",
    ),
    "class": (["import collections\nclass C: pass\ncollections.Mine = C", "C.x = 1"], "out = collections.Mine is C"),
    "handler": (
        [
            "import logging\nclass L(logging.Handler):\n    def __init__(s): super().__init__(); s.r = []\n"
            "    def emit(s, r): s.r.append(r.getMessage())\nh = L(); logging.getLogger('f').addHandler(h)",
            "h.r.append(0)",
        ],
        "logging.getLogger('f').error('b'); out = (h.r, logging.getLogger('f').handlers == [h])",
    ),
    "stream": (
        ["import sys, io\nbuf = io.StringIO(); old = sys.stdin; sys.stdin = buf", "buf.write('into')"],
        "out = sys.stdin is buf; sys.stdin = old",
    ),
    "context": (
        ["import contextvars, json\nv = contextvars.ContextVar('v'); held = [1]; json.held = held", "held.append(v)"],
        "out = json.held is held",
    ),
}
FOLLOW = """
import os, sys, json, pathlib, harness
base, cells, check = pathlib.Path(sys.argv[1]), *json.loads(sys.argv[2])
os.chdir(base)
kernel = harness.Kernel(base)
kernel.log.create()
for cell in cells:
    assert kernel.run(cell), kernel.error
    kernel.snap(cell)
kernel.log.commit(False)
kernel.log.close()
if os.fork():
    os.wait()
    sys.exit()
os.execv(sys.executable, [sys.executable, "-c", '''
import json, pathlib, sys, types, harness
found = harness.follow_one(types.SimpleNamespace(check=sys.argv[2]), pathlib.Path(sys.argv[1]))
print(chr(30) + json.dumps(found), file=sys.__stdout__, flush=True)
''', str(base), check])
"""


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_hold_the_objects_of_variables_that_were_read_anew(setting: str, tmp_path: Path) -> None:
    cells, check = SETTINGS[setting]
    followed, errors = child.answer(FOLLOW, str(tmp_path), json.dumps([cells, check]), base=tmp_path)
    assert "rebuild" not in followed and "raised" not in followed["out"], (followed, errors[-2000:])
    assert "False" not in followed["out"] and not followed["notices"]
    if setting == "handler":
        assert followed["out"] == "([0, 'b'], True)"


EVENTS = """
class O:
    n = 0
    def note(s, *a): s.n += 1
o, got = O(), []
get_ipython().events.register('post_run_cell', o.note)
get_ipython().events.register('post_run_cell', lambda r: got.append(1))
"""
CALLED = """
here = get_ipython().events.callbacks['post_run_cell']
print([f.__self__ is o for f in here if hasattr(f, '__self__') and type(f.__self__).__name__ == 'O'], end=' ')
print(sum(getattr(f, '__module__', '') == '__main__' for f in here), end='')
"""


def test_callbacks_are_those_of_objects_that_were_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = pytest.importorskip("supervisor")
    executor = supervisor.Kernel(tmp_path)
    executor.begin()  # it has its ports: the other one takes none of them
    standby = supervisor.Kernel(tmp_path)
    try:
        for cell in (EVENTS, "o.n += 1", "import json; json.indent = 2", "o.n += 1"):
            executor.run(cell)
        records = [(said["record"], [text, body]) for said, text, body in executor.records()]
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        log = form.Log(tmp_path / "log", form.owner_key())
        log.create()
        log.commit(False)
        log.close()
        standby.begin(capture="nothing")
        first = [part for _, parts in records[:2] for part in parts]
        standby.ask("restore", {"folder": str(tmp_path / "log"), "lazy": False}, first)
        for number, parts in records[2:]:
            standby.ask("apply", {"record": number}, parts)
        standby.begin(record=records[-1][0] + 1)
        assert standby.printed(CALLED) == executor.printed(CALLED) == "[True] 2"
    finally:
        executor.close()
        standby.close()
