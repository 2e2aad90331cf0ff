"""Which entries of `sys.modules` are the notebook's, and what a library's place taken by one does to captures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import child

pytest.importorskip("cloudpickle")

CAPTURED = """
import json, sys
from pathlib import Path
import harness
kernel = harness.Kernel(Path(sys.argv[1]))
kernel.log.create()
for source in json.loads(sys.argv[2]):
    assert kernel.run(source), kernel.error
    kernel.snap(source)
kernel.snap("", audit=True)
print(json.dumps({name: gone.why for unit in kernel.capture.units.values() for gone in unit.gone for name in unit.names}))
"""
OF_LIBRARIES = """
import importlib, json, sys
from gresshopper.state import module_entries
for name in ("decimal", "xml.etree.ElementTree", "typing", "os.path", *sys.argv[1:]):
    try:
        importlib.import_module(name)
    except ImportError:
        pass
module_entries.see(by_cells=True)
print(json.dumps([module_entries.other_names(), module_entries.entries()]))
"""


def run(script: str, *given: str) -> str:
    paths = os.pathsep.join([str(child.HERE.parent.parent), str(child.HERE)])
    env = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", script, *given], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("library", ["torch", "pandas", "numpy", "ipywidgets"])
@pytest.mark.parametrize("what", ["None", "types.ModuleType('x')", "unittest.mock.MagicMock()", "object()"])
def test_captures_go_on_with_something_else_in_a_librarys_place(library: str, what: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    cells = [
        f"import sys, types, unittest.mock\nsys.modules[{library!r}]={what}\nx=[1]",
        "class A: pass\na=A()\na.v=x\nf=lambda: a",
    ]
    assert json.loads(run(CAPTURED, str(tmp_path), json.dumps(cells))) == {}


def test_libraries_own_entries_are_not_the_notebooks() -> None:
    found = run(
        OF_LIBRARIES, "six", "scipy.stats", "pandas", "sklearn.linear_model", "zmq", "matplotlib.pyplot", "pytest"
    )
    assert json.loads(found) == [{}, {"kept": {}, "told": []}]
