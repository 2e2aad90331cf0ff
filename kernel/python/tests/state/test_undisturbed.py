"""A capture is not noticed: it keeps nothing alive (what the user deletes is gone at once, not with the next sweep for
cycles), and warns of nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gresshopper.state import pickling

import child
from harness import Kernel

HERE = Path(__file__).parent
MADE = {
    "lock": "x = A()\nx.l = threading.Lock()",
    "generator": "x = A()\nx.g = (i for i in [])",
    "can't be pickled": "x = A()\nx.r = R()",
    "list": "x = L([1])\nx.append(L([2]))",
    "function": "x = A()\nx.f = lambda: 1",
    "deep": "x = A()\ny = x\nfor i in range(2000):\n    y.n = A()\n    y = y.n",
    "set with an order": "x = A()\nx.s = {7, (1, 3), (2, 1), (9, 9)}",
}
SCRIPT = """
import gc, os, sys, tempfile
from pathlib import Path
import harness, test_undisturbed
gc.disable()
directory = Path(sys.argv[1])
kernel = harness.Kernel(directory)
kernel.log.create()
start = ("import threading, weakref\\nclass A: pass\\nclass L(list): pass\\nclass R:\\n"
         "    def __reduce__(self): raise TypeError\\nseen = {}")
cells = [f"{source}\\nseen[{name!r}] = weakref.ref(x)" for name, source in test_undisturbed.MADE.items()]
for source in [start, *cells, "del x\\ny = 0"]:
    assert kernel.run(source), kernel.error
    kernel.snap(source)
print(sorted(name for name, ref in kernel.ns["seen"].items() if ref() is not None))
"""


def test_what_is_deleted_is_gone(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    env = dict(os.environ, PYTHONPATH=f"{HERE.parent.parent}:{HERE}")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        env=env,
        timeout=60,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr[-2000:]


def test_looking_at_a_figure_takes_nothing_from_it(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    kernel = Kernel(tmp_path)
    cell = "import matplotlib\nmatplotlib.use('agg')\nimport matplotlib.pyplot as plt\nfig, ax = plt.subplots()\n"
    assert kernel.run(cell + "line, = ax.plot([1, 2])\nbar = fig.colorbar(ax.imshow([[1]]))"), kernel.error
    before = repr(kernel.ns["ax"].callbacks._cid_gen)
    for _ in range(2):
        kernel.capture.run(None)
    assert not kernel.capture.run(None).changed
    assert repr(kernel.ns["ax"].callbacks._cid_gen) == before
    assert kernel.run("plt.close('all')")


@pytest.mark.filterwarnings("error")
def test_no_warning_is_for_a_broadcast_array() -> None:
    numpy = pytest.importorskip("numpy")
    assert not pickling.dump(pickling.Session({}), [numpy.broadcast_arrays([1, 2], [[1], [2]])]).gone


COUNTED = """
class Counted:
    asked = []
    def __init__(self): object.__setattr__(self, "x", 1)
    def __getattribute__(self, name):
        Counted.asked.append(name)
        return object.__getattribute__(self, name)
class Missing:
    asked = []
    def __getattr__(self, name):
        Missing.asked.append(name)
        raise AttributeError(name)
a, b, c = Counted(), [Counted()], Missing()
"""
IN_A_SHELL = """
import json, sys
from pathlib import Path
from IPython.core.interactiveshell import InteractiveShell
from gresshopper.state.agent import Agent
base, cells = Path(sys.argv[1]), json.loads(sys.argv[2])
ip = InteractiveShell.instance()
agent = Agent(ip, base / "store")
agent.watch()
for cell in cells:
    assert ip.run_cell(cell, store_history=True).success, cell
agent.save(base / "state", durable=False)
asked = [ip.user_ns["Counted"].asked, ip.user_ns["Missing"].asked]
print("\\x1e" + json.dumps(asked))
"""


def test_an_instance_that_notes_each_question_is_asked_nothing(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    cells = [COUNTED, "a.x", "a.y = b\na.z = c", "d = [a, c]"]
    asked, errors = child.answer(IN_A_SHELL, str(tmp_path), json.dumps(cells), base=tmp_path)
    assert asked == [["x"], []], errors


def test_an_instance_that_an_own_module_holds_is_asked_nothing(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    (tmp_path / "counting.py").write_text(COUNTED)
    cells = ["import sys; sys.path.insert(0, '.')\nfrom counting import *", "a.x", "d = [a, c]"]
    asked, errors = child.answer(IN_A_SHELL, str(tmp_path), json.dumps(cells), base=tmp_path)
    assert asked == [["x"], []], errors
