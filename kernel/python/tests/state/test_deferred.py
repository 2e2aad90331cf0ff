"""Large groups of a restored state, and what cells displayed, are read when they are needed: before the cell that names them, else in think time."""

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
from gresshopper.state import deferred
from gresshopper.state.agent import Agent
base, do = Path(sys.argv[1]), json.loads(sys.argv[2])
ip = InteractiveShell.instance()
agent = Agent(ip, base / "store")
said = []
def waiting():
    names = do["names"] or "abcdef"
    return sorted(n for n in names if isinstance(ip.user_ns.get(n), deferred.Pending))
if do["cells"]:
    agent.watch()
    for cell in do["cells"]:
        ip.run_cell(cell, store_history=True)
    agent.save(base / "state", durable=False)
else:
    agent.restore(base / "state", wait=do["wait"], shown=False)
    said.append(waiting())
    for cell in do["then"]:
        ip.run_cell(cell)
        said.append([repr(ip.user_ns.get("out")), waiting()])
    if do["save"]:
        agent.save(base / "again", durable=False)
    agent.unread.read_all()
    said += [waiting(), len(ip.ast_transformers)]
print("\\x1e" + json.dumps(said))
"""


def run(base: Path, cells: Any = (), then: Any = (), save: bool = False, script: str = SCRIPT, **how: Any) -> Any:
    do = {"cells": cells, "then": then, "save": save, "wait": False, "names": None, **how}
    return child.answer(script, str(base), json.dumps(do), base=base)


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


def test_what_an_own_module_holds_too_is_read_at_once(tmp_path: Path) -> None:
    (tmp_path / "held.py").write_text("class A: big = ()\none = A()\none.big = ()\ndef size(): return len(one.big)\n")
    cells = ["import sys; sys.path.insert(0, '.')\nfrom held import one, size", "import numpy as np"]
    cells += ["one.big = np.ones(300_000)", "f = np.zeros(300_000)"]
    names = ["f", "one"]
    run(tmp_path, cells=cells, names=names)
    said, _ = run(tmp_path, then=["out = size()"], names=names)
    assert said[:2] == [["f"], ["300000", ["f"]]]


REACHED = [
    "import functools, numpy as np, pandas as pd",
    "def evaluated(): return eval('float(d.sum())')\ndef asked(): return len(df.query('x >= @least'))",
    "part = functools.partial(asked)\nquery = 'least + 1'",
    "class Model:\n    def fit(self): return float(d.sum())\n    @property\n    def n(self): return asked()",
    "m, many = Model(), [[Model()]]",
    "d = np.ones(300_000)\nleast = np.arange(200_000)\ndf = pd.DataFrame({'x': np.arange(200_000)})",
]


@pytest.mark.parametrize(
    ("cell", "out"),
    [
        ("out = m.fit()", "300000.0"),
        ("out = many[0][0].fit()", "300000.0"),
        ("out = evaluated()", "300000.0"),
        ("out = asked()", "200000"),
        ("out = part()", "200000"),
        ("out = m.n", "200000"),
        ("out = len(df.query('x >= @least'))", "200000"),
        ("out = len(pd.eval(query))", "200000"),
    ],
)
def test_what_methods_strings_and_earlier_functions_name_is_read_first(tmp_path: Path, cell: str, out: str) -> None:
    pytest.importorskip("pandas")
    run(tmp_path, cells=REACHED)
    said, _ = run(tmp_path, then=["out = 0", cell], names=["d", "df", "least"])
    assert said[1] == ["0", ["d", "df", "least"]] and said[2][0] == out


COPIED = """
    agent.watch()
    agent.restore(base / "state", wait=False, shown=False)
    behind = ip.user_ns["behind"] = []
    def copies(*_):
        if not behind:
            behind.extend([ip.user_ns["a"], ip.user_ns["_6"]])
    ip.events.register("post_run_cell", copies)
"""


def test_a_copied_placeholder_is_captured_as_its_value(tmp_path: Path) -> None:
    run(tmp_path, cells=CELLS)
    ours = SCRIPT.replace('\n    agent.restore(base / "state", wait=do["wait"], shown=False)\n', COPIED)
    said, told = run(tmp_path, then=["out = 1"], save=True, script=ours, names=["a"])
    assert said[0] == ["a"] and "ecursion" not in told
    (tmp_path / "state").rename(tmp_path / "first")
    (tmp_path / "again").rename(tmp_path / "state")
    said, _ = run(tmp_path, then=["out = behind[0] is a, behind[1] is e, int(behind[0][5])"])
    assert said[1][0] == "(True, True, 5)"


INTERRUPTED = """
    agent.restore(base / "state", wait=False, shown=False)
    values = agent.unread._deferred._loader.values
    def interrupted(uid):
        agent.unread._deferred._loader.values = values
        raise KeyboardInterrupt
    agent.unread._deferred._loader.values = interrupted
"""


def test_what_an_interrupt_kept_from_being_read_is_read_at_the_next_cell(tmp_path: Path) -> None:
    run(tmp_path, cells=CELLS)
    ours = SCRIPT.replace('\n    agent.restore(base / "state", wait=do["wait"], shown=False)\n', INTERRUPTED)
    ours = ours.replace(
        "        ip.run_cell(cell)\n", "        try: ip.run_cell(cell)\n        except KeyboardInterrupt: pass\n"
    )
    said, _ = run(tmp_path, then=["out = int(a[7])"] * 2, script=ours, names=["a"])
    assert said[1] == ["None", ["a"]] and said[2] == ["7", []]


DISPLAYED = [
    "x = [1]\nx",  # one group with a variable
    "[2, 3]",
    "import fractions\nfractions.Fraction(1, 3)",
    "def last(): return Out[3]",
    "class A:\n    def __repr__(self): return 'A'\nA()",
    "'end'",
]


@pytest.mark.parametrize(
    "cell", ["out = Out[2]", "out = _2", "out = _oh[2]", "out = globals()['_2']", "out = last(), _2"]
)
def test_what_was_displayed_is_there_when_a_cell_asks_for_it(tmp_path: Path, cell: str) -> None:
    run(tmp_path, cells=DISPLAYED)
    names = ["_1", "_2", "_3", "_5", "_6", "x"]
    said, _ = run(tmp_path, then=["out = x", cell, "out = Out"], wait=True, names=names)
    # Not what loading runs code of the notebook for; and what is a variable, too, comes with it.
    assert said[0] == ["_1", "_2", "_3", "_6"] and said[1] == ["[1]", ["_2", "_3", "_6"]]
    assert "[2, 3]" in said[2][0] and "_2" not in said[2][1]
    assert said[3] == ["{1: [1], 2: [2, 3], 3: Fraction(1, 3), 5: A, 6: 'end'}", []]


SHARED = [
    "import numpy as np, weakref",
    "m = np.arange(6)\nm[1:3]",
    "big = np.arange(50_000)\n[big, big[10:], bytes(40_000)]",
    "d = {'s': {8, 1, 16}, 'k': []}\n(d['s'], {24, 0, 8}, [d])",
    "class_of = type('T', (), {})\nd",
    "held = [b'x' * 40_000, 'y']\n[held, {'x': held}]",
]


@pytest.mark.parametrize("wait", [True, False])
def test_what_was_displayed_still_shares_its_objects_with_the_variables(tmp_path: Path, wait: bool) -> None:
    run(tmp_path, cells=SHARED)
    names = ["_2", "_3", "_4", "_5", "_6", "m", "big", "d", "held"]
    then = [
        "out = 0",
        "m[1] = 9\nout = _2.tolist(), _2.base is m",
        "big[10] = -1\nout = _3[0] is big, int(_3[1][0]), len(_3[2])",
        "d['s'].add(0)\nd['k'].append(d)\nout = _4[0] is d['s'], _4[2][0] is d, list(_4[1]), _5 is d, sorted(_4[0])",
        "out = _6[0] is held and _6[1]['x'] is held",
    ]
    said, _ = run(tmp_path, then=then, wait=wait, names=names)
    assert said[0] == said[1][1] == ["_2", "_3", "_4", "_5", "_6"]
    assert [one[0] for one in said[2:6]] == [
        "([9, 2], True)",
        "(True, -1, 40000)",
        f"(True, True, {list({24, 0, 8})}, True, [0, 1, 8, 16])",
        "True",
    ]
    assert said[-2:] == [[], 0]


def test_a_displayed_part_that_is_damaged_is_told_and_the_variable_stays(tmp_path: Path) -> None:
    run(tmp_path, cells=[SHARED[0], "x = [1]\n[x, np.random.rand(20_000)]"])
    damage(chunks(tmp_path)[-1])
    said, told = run(tmp_path, then=["out = 0", "x.append(2)\nout = x, type(_2).__name__"], names=["_2", "x"])
    assert said[0] == ["_2"] and said[2][0] == "([1, 2], 'Lost')" and "_2 couldn't be restored" in told


def test_a_save_reads_what_is_left_first(tmp_path: Path) -> None:
    run(tmp_path, cells=CELLS)
    said, _ = run(tmp_path, save=True)
    assert said[0] == ["a", "b", "c", "d", "e", "f"] and said[-2:] == [[], 0]
    (tmp_path / "state").rename(tmp_path / "first")
    (tmp_path / "again").rename(tmp_path / "state")
    said, _ = run(tmp_path, then=["out = int(a.sum()), len(c), total()"])
    assert said[1][0] == f"({sum(range(300_000))}, 200000, 300000.0)"


def damage(chunk: Path) -> None:
    content = bytearray(chunk.read_bytes())
    content[1000] ^= 1
    chunk.write_bytes(content)


def chunks(base: Path) -> list[Path]:
    return sorted((p for p in (base / "store" / "chunks").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def test_what_was_tampered_with_is_told_and_never_used(tmp_path: Path) -> None:
    run(tmp_path, cells=[CELLS[0], "f = np.random.rand(300_000)"])
    damage(chunks(tmp_path)[-1])
    said, told = run(tmp_path, then=["out = 0", "out = type(f).__name__"])
    assert said[0] == ["f"] and said[2][0] == "'Lost'" and "f couldn't be restored" in told


def test_what_is_missing_costs_its_group_alone_and_is_told_at_once(tmp_path: Path) -> None:
    cells = [
        CELLS[0],
        *(f"{name} = np.random.rand({n})" for name, n in zip("hfg", (10_000, 300_000, 400_000))),
        "n = 7",
    ]
    run(tmp_path, cells=cells)
    of_h, of_f, of_g = chunks(tmp_path)
    assert of_g.stat().st_size == 3_200_000
    of_f.unlink()
    of_h.unlink()  # which isn't read later
    said, told = run(tmp_path, then=["out = 0", "out = type(f).__name__, len(g), type(h).__name__, n"], names="fgh")
    assert said[0] == ["g"]
    assert said[2][0] == "('Lost', 400000, 'Lost', 7)"
    assert "f couldn't be restored" in told and "h couldn't be restored" in told


def test_variables_follow_one_another_as_they_did(tmp_path: Path) -> None:
    cells = [
        "class C: pass",
        "a = [1]",
        "b = 2",
        "f = C()",
        "c = bytearray(2_000_000)",
        "del a",
        "a = C()",
        "d = 1",
        "b = 3",
    ]
    run(tmp_path, cells=cells)
    said, _ = run(tmp_path, then=["out = [n for n in globals() if len(n) == 1 and n.isalpha()]"])
    assert said[0] == ["c"] and said[1][0] == "['C', 'b', 'f', 'c', 'a', 'd']"


CALLED = [
    "import numpy as np, fractions\nip, seen = get_ipython(), []",
    "a, b, c, d, e, f = (np.full(300_000, n) for n in range(6))",
    "def size(x): return len(b) + x\nclass P: pass\nclass W:\n    def __init__(self): self.held = np.full(300_000, 6)\n"
    "    def ran(self): seen.append(int(self.held[0]))\np, w = P(), W()",
]
HUNG = {
    "a callback": ("ip.events.register('post_run_cell', lambda result: seen.append(size(1)))", "b", "[300001]"),
    "a callback that is a variable": (
        "def late(result): seen.append(len(f))\nip.events.register('post_run_cell', late)",
        "f",
        "[300000]",
    ),
    "a callback before the cell": (
        "ip.events.register('pre_execute', lambda: seen.append(size(2)))",
        "b",
        "[300002]",
    ),
    "a transformer": (
        "ip.input_transformers_cleanup.append(lambda lines: seen.append(len(c)) or lines)",
        "c",
        "[300000]",
    ),
    "a formatter": (
        "ip.display_formatter.formatters['text/plain'].for_type(P, lambda o, q, _: q.text(str(seen.append(len(d)))))",
        "d",
        "[300000]",
    ),
    "a library's attribute": ("fractions.SIZE = lambda: seen.append(int(e[0]))", "e", "[4]"),
    "a method of what is read later": ("ip.events.register('pre_execute', w.ran)", "w", "[6]"),
}


@pytest.mark.parametrize("kind", HUNG)
def test_what_callbacks_and_other_settings_reach_is_read_at_once(tmp_path: Path, kind: str) -> None:
    cell, reached, out = HUNG[kind]
    run(tmp_path, cells=[*CALLED, cell, "seen.clear()"])
    use = "fractions.__dict__.get('SIZE', int)()\nip.display_formatter.format(p)"
    ours = SCRIPT.replace(
        "said.append(waiting())\n    for", "said.append(waiting())\n    ip.user_ns['seen'].clear()\n    for"
    )
    said, told = run(tmp_path, then=[use, "out = seen[:1]"], script=ours, names="abcdefw")
    assert said[0] == sorted(set("abcdefw") - set(reached)), told
    assert said[2][0] == out and "LostError" not in told, told


OF_CONTEXT = "import contextvars\na, b, c, d = (contextvars.ContextVar(name, default=None) for name in 'abcd')\n"


def test_what_context_variables_hold_is_read_at_once_or_told(tmp_path: Path) -> None:
    (tmp_path / "of_context.py").write_text(OF_CONTEXT)
    (tmp_path / "gone.py").write_text(OF_CONTEXT)
    cells = [
        "import sys; sys.path.insert(0, '.')",
        "import numpy as np, of_context as of, gone",
        "x, y, z = (np.full(300_000, n) for n in range(3))",
        "class M: pass\nm = M()\nm.w = np.ones(300_000)\ndef total(): return float(x.sum())",
        "t = of.b.set(m), of.c.set([total]), of.d.set(y), gone.a.set(1), of.a.set(2)",
        "del t, gone",
        "z",
    ]
    run(tmp_path, cells=cells)
    (tmp_path / "gone.py").write_text("raise ImportError")
    check = "out = of.a.get(), of.b.get() is m, float(m.w[0]), of.d.get() is y, of.c.get()[0]()"
    said, told = run(tmp_path, then=["out = 0", check], names="mxyz")
    assert said[0] == ["z"], told
    assert said[2][0] == "(2, True, 1.0, True, 0.0)", told
    assert "of_context" not in told and "gone.a: the value of a context variable isn't saved, set it again" in told
