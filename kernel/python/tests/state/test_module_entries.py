"""Which entries of `sys.modules` are the notebook's, and what a library's place taken by one does to captures."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from gresshopper.state import module_entries

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
print("\\x1e" + json.dumps({name: gone.why for unit in kernel.capture.units.values() for gone in unit.gone for name in unit.names}))
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
print("\\x1e" + json.dumps([module_entries.other_names(), module_entries.entries()]))
"""


@pytest.mark.parametrize("library", ["torch", "pandas", "numpy", "ipywidgets"])
@pytest.mark.parametrize("what", ["None", "types.ModuleType('x')", "unittest.mock.MagicMock()", "object()"])
def test_captures_go_on_with_something_else_in_a_librarys_place(library: str, what: str, tmp_path: Path) -> None:
    cells = [
        f"import sys, types, unittest.mock\nsys.modules[{library!r}]={what}\nx=[1]",
        "class A: pass\na=A()\na.v=x\nf=lambda: a",
    ]
    said, errors = child.answer(CAPTURED, str(tmp_path), json.dumps(cells), base=tmp_path)
    assert said == {}, errors


def test_a_look_at_the_table_loads_no_module_that_is_to_be_loaded_lazily() -> None:
    spec = importlib.util.find_spec("ftplib")
    assert spec is not None and spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules["hop_lazy"] = module
    try:
        spec.loader.exec_module(module)
        module_entries.see(by_cells=True)
        assert type(module).__name__ == "_LazyModule"
    finally:
        del sys.modules["hop_lazy"]


def test_libraries_own_entries_are_not_the_notebooks(tmp_path: Path) -> None:
    libraries = ("six", "scipy.stats", "pandas", "sklearn.linear_model", "zmq", "matplotlib.pyplot", "pytest")
    said, errors = child.answer(OF_LIBRARIES, *libraries, base=tmp_path)
    assert said == [{}, {"kept": {}, "told": []}], errors
