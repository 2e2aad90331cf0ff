"""What is found outside of a cell's capture is in the log of the cells all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

import child

for package in ("IPython", "cloudpickle"):
    pytest.importorskip(package)

SCRIPT = """
import json, sys
from pathlib import Path
from IPython.core.interactiveshell import InteractiveShell
from gresshopper.state.agent import Agent
base, do = Path(sys.argv[1]), sys.argv[2]
ip = InteractiveShell.instance()
agent = Agent(ip, base / "store")
if do == "restore":
    agent.restore(base / "log")
    print("\\x1e" + json.dumps([ip.user_ns["a"], [n for n in ip.user_ns if n in "abc"], ip.user_ns["In"]]))
else:
    agent.watcher.pace.patience = float("inf")
    agent.watch(base / "log")
    ip.run_cell("b = 1; a = [1]; c = a", store_history=True)
    ip.user_ns["a"].append(2)  # as a callback does
    ip.user_ns["b"] = ip.user_ns.pop("b")
    agent.show() if do == "show" else agent.save(base / "saved", durable=False)
    if do == "save and go on":
        ip.run_cell("b = 2", store_history=True)
    print("\\x1e" + json.dumps("done"))
"""


@pytest.mark.parametrize("do", ["show", "save", "save and go on"])
def test_what_a_save_or_a_look_finds_is_logged(tmp_path: Path, do: str) -> None:
    child.answer(SCRIPT, str(tmp_path), do, base=tmp_path)
    said, _ = child.answer(SCRIPT, str(tmp_path), "restore", base=tmp_path)
    inputs = ["", "b = 1; a = [1]; c = a", *(["b = 2"] if do == "save and go on" else [])]
    assert said == [[1, 2], ["a", "c", "b"], inputs]


SOURCE = """
import inspect, json, sys
from pathlib import Path
from IPython.core.interactiveshell import InteractiveShell
from gresshopper.state.agent import Agent
base, again = Path(sys.argv[1]), sys.argv[2] == "again"
ip = InteractiveShell.instance()
agent = Agent(ip, base / "store")
if again:
    agent.resume(base / "log")
else:
    agent.watch(base / "log")
    ip.run_cell("def f():\\n    return 'the source'\\n", store_history=True)
    agent.watcher.audit()
print("\\x1e" + json.dumps(inspect.getsource(ip.user_ns["f"])))
"""


def test_the_source_of_functions_is_found_again(tmp_path: Path) -> None:
    before, _ = child.answer(SOURCE, str(tmp_path), "first", base=tmp_path)
    after, _ = child.answer(SOURCE, str(tmp_path), "again", base=tmp_path)
    assert before == after and "the source" in after
