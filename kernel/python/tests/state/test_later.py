"""Large groups of a restored state are read when they are needed: before the cell that names them, else in think time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import child

for package in ("numpy", "IPython", "cloudpickle"):
    pytest.importorskip(package)

CELLS = [
    "import numpy as np",
    "a = np.arange(300_000)\nb = a[5:10]",
    "c = {i: str(i) for i in range(200_000)}",
    "d = np.ones(300_000)\ndef total(): return float(d.sum())",
    "small = [1]",
    "e = np.full(300_000, 7)\ne",
    "f = np.zeros(300_000)",
]
SCRIPT = """
import json, sys
from pathlib import Path
from IPython.core.interactiveshell import InteractiveShell
from gresshopper.state import later
from gresshopper.state.agent import Agent
base, do = Path(sys.argv[1]), json.loads(sys.argv[2])
ip = InteractiveShell.instance()
agent = Agent(ip, base / "store")
said = []
def waiting():
    return sorted(n for n in "abcdef" if isinstance(ip.user_ns.get(n), later.Pending))
if do["cells"]:
    agent.watch()
    for cell in do["cells"]:
        ip.run_cell(cell, store_history=True)
    agent.save(base / "state", durable=False)
else:
    agent.restore(base / "state", wait=False)
    said.append(waiting())
    for cell in do["then"]:
        ip.run_cell(cell)
        said.append([repr(ip.user_ns.get("out")), waiting()])
    if do["save"]:
        agent.save(base / "again", durable=False)
    agent.later.all()
    said += [waiting(), len(ip.ast_transformers)]
print("\\x1e" + json.dumps(said))
"""


def run(base: Path, cells: Any = (), then: Any = (), save: bool = False) -> Any:
    return child.answer(SCRIPT, str(base), json.dumps({"cells": cells, "then": then, "save": save}), base=base)


def test_each_is_there_when_a_cell_needs_it(tmp_path: Path) -> None:
    run(tmp_path, cells=CELLS)
    then = [
        "out = small",
        "b[0] = -1\nout = int(a[5])",  # one group, of two variables
        "out = total()",  # through a function
        "out = Out[6] is e and int(_6[0])",
        "f = 5\nout = f",  # set anew
        "out = len(globals()['c'])",  # any
    ]
    said, _ = run(tmp_path, then=then)
    assert said == [
        ["a", "b", "c", "d", "e", "f"],
        ["[1]", ["a", "b", "c", "d", "e", "f"]],
        ["-1", ["c", "d", "e", "f"]],
        ["300000.0", ["c", "e", "f"]],
        ["7", ["c", "f"]],
        ["5", ["c"]],
        ["200000", []],
        [],
        0,
    ]


def test_a_save_reads_what_is_left_first(tmp_path: Path) -> None:
    run(tmp_path, cells=CELLS)
    said, _ = run(tmp_path, save=True)
    assert said[0] == ["a", "b", "c", "d", "e", "f"] and said[-2:] == [[], 0]
    (tmp_path / "state").rename(tmp_path / "first")
    (tmp_path / "again").rename(tmp_path / "state")
    said, _ = run(tmp_path, then=["out = int(a.sum()), len(c), total()"])
    assert said[1][0] == f"({sum(range(300_000))}, 200000, 300000.0)"


def chunks(base: Path) -> list[Path]:
    return sorted((p for p in (base / "store" / "chunks").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def test_what_was_tampered_with_is_told_and_never_used(tmp_path: Path) -> None:
    run(tmp_path, cells=[CELLS[0], "f = np.random.rand(300_000)"])
    large = chunks(tmp_path)[-1]
    content = bytearray(large.read_bytes())
    content[1000] ^= 1
    large.write_bytes(content)
    said, told = run(tmp_path, then=["out = 0", "out = type(f).__name__"])
    assert said[0] == ["f"] and said[2][0] == "'Lost'" and "f couldn't be restored" in told


def test_what_is_missing_is_refused_at_once(tmp_path: Path) -> None:
    run(tmp_path, cells=[CELLS[0], "f = np.random.rand(300_000)"])
    chunks(tmp_path)[-1].unlink()
    with pytest.raises(AssertionError, match="isn't in the store any more"):
        run(tmp_path, then=["out = 0"])
