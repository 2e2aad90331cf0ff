"""What a save leaves to its cells, what it doesn't, and that a restore in a fresh Python gives the same."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

import child

for package in ("numpy", "IPython", "cloudpickle"):
    pytest.importorskip(package)

BIG = 3_000_000
#: A slow store, so that a group of this size is worth a trial.
SLOW = (2e6, 1e9)

SCRIPT = """
import contextlib, io, json, os, sys
from pathlib import Path
from IPython.core.interactiveshell import InteractiveShell
from gresshopper.state.agent import Agent
base, asked = Path(sys.argv[1]), json.loads(sys.argv[2])
ip = InteractiveShell.instance()
agent = Agent(ip, base / "store")
said = {}
quiet = io.StringIO()
with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
    if asked["do"] in ("save", "again"):
        if asked["do"] == "again":
            agent.restore(base / "state")
        agent.watcher.pace.patience, agent.saver.rates = float("inf"), tuple(asked["rates"])
        agent.watch(ahead=False)
        for cell in asked["cells"]:
            ip.run_cell(cell, store_history=True)
        said = agent.save(base / "state", durable=False, whole=asked["whole"])
    else:
        told = agent.restore(base / "state")
        said = {"lost": told.lost, "notices": told.notices}
    for cell in asked["check"]:
        ip.run_cell(cell)
said["out"], said["trouble"] = repr(ip.user_ns.get("out")), agent.watcher.failures.texts
print("\\x1e" + json.dumps(said))
"""


def run(base: Path, **asked: Any) -> dict[str, Any]:
    said: dict[str, Any] = child.answer(SCRIPT, str(base), json.dumps(asked), base=base)[0]
    assert not said["trouble"]
    return said


def both(
    base: Path, *cells: str, check: str, rates: Any = SLOW, whole: bool = False, between: Any = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    cells = tuple(textwrap.dedent(c) for c in cells)
    saved = run(base, do="save", cells=cells, rates=rates, whole=whole, check=[check])
    if between is not None:
        between()
    return saved, run(base, do="restore", check=[check])


def named(groups: dict[str, int]) -> set[str]:
    return {name for group in groups for name in group.split(", ")}


def test_a_large_array_that_is_cheap_to_make_is_left_to_its_cell(tmp_path: Path) -> None:
    saved, restored = both(
        tmp_path,
        "import numpy as np",
        f"n = {BIG}",
        "x = np.arange(n) * 2.0",
        "x[5] = -1",
        check="out = float(x.sum()), x[5]",
    )
    assert named(saved["left"]) == {"x"}
    assert saved["chunk_bytes"] < 1_000_000
    assert saved["out"] == restored["out"] and not restored["lost"]


def test_on_a_fast_store_it_is_shipped(tmp_path: Path) -> None:
    saved, restored = both(
        tmp_path, "import numpy as np", f"x = np.arange({BIG})", check="out = int(x.sum())", rates=(5e9, 5e9)
    )
    assert not saved["left"] and saved["out"] == restored["out"]


def test_all_is_shipped_when_asked(tmp_path: Path) -> None:
    saved, restored = both(
        tmp_path, "import numpy as np", f"x = np.arange({BIG})", check="out = int(x.sum())", whole=True
    )
    assert not saved["left"] and saved["chunk_bytes"] > BIG and saved["out"] == restored["out"]


def test_what_is_dear_to_make_is_shipped(tmp_path: Path) -> None:
    cells = ["import numpy as np", f"x = np.zeros({BIG})", "for i in range(60_000_000): pass\nx += i"]
    saved, restored = both(tmp_path, *cells, check="out = float(x.sum())", rates=(2e7, 1e9))
    assert not saved["left"] and saved["out"] == restored["out"]


def test_drawn_numbers_are_those_that_were_drawn(tmp_path: Path) -> None:
    saved, restored = both(
        tmp_path, "import numpy as np", f"x = np.random.rand({BIG})", "y = 1", check="out = x[:3].tolist()"
    )
    assert named(saved["left"]) == {"x"}
    assert saved["out"] == restored["out"]


#: Each makes a large array that is cheap to make, and that another run might make otherwise.
DOUBTFUL = {
    "own generator": [f"V = np.random.default_rng().random({BIG})"],
    "clock": [f"V = np.full({BIG}, time.time())"],
    "clock in a function": ["def now_():\n    return time.time()", f"V = np.full({BIG}, now_())"],
    "environment": [f"V = np.full({BIG}, float(len(os.environ)))"],
    "file": ["open('f.txt', 'w').write('3')", f"V = np.full({BIG}, float(open('f.txt').read()))"],
    "order of a set": [f"V = np.full({BIG}, float(len(str([s for s in {{'a', 'b'}}]))))"],
    "writes a file": [f"V = np.zeros({BIG})\nopen('log.txt', 'a').write('x')"],
    "hash of a string": [f"V = np.full({BIG}, float(hash('a') % 1000))"],
    "address": [f"V = np.full({BIG}, float(id(object()) % 1000))"],
    "module of the user's": ["open('own_q.py', 'w').write('v = 4.0')", f"import own_q\nV = np.full({BIG}, own_q.v)"],
    "failed cell": [f"V = np.zeros({BIG})\n1 / 0"],
}


def test_what_might_be_another_is_shipped(tmp_path: Path) -> None:
    cells = [c.replace("V", f"x{i}") for i, case in enumerate(DOUBTFUL.values()) for c in case]
    check = "out = " + ", ".join(f"float(x{i}.sum())" for i in range(len(DOUBTFUL)))
    saved, restored = both(tmp_path, "import numpy as np, os, time", *cells, check=check, rates=(1e6, 1e9))
    assert not saved["left"], dict(zip((f"x{i}" for i in range(99)), DOUBTFUL))
    assert saved["out"] == restored["out"]


def test_what_is_changed_beside_the_names_of_its_cell_comes_back_so(tmp_path: Path) -> None:
    cells = [
        "import numpy as np, builtins",
        f"x = np.zeros({BIG})\nbuiltins.q = x",
        "import builtins as b_\nb_.q[3] = 5",
    ]
    saved, restored = both(tmp_path, *cells, check="out = float(x.sum()), x[3]", rates=(1e6, 1e9))
    assert saved["out"] == restored["out"] and not restored["lost"]


def test_what_the_trial_finds_different_is_shipped(tmp_path: Path) -> None:
    # Nothing in the cell's names tells that a library gives each process something else.
    saved, restored = both(
        tmp_path,
        "import numpy as np, multiprocessing.process as mp_",
        f"x = np.full({BIG}, float(mp_._current_process._config['authkey'][0] * 256 + mp_._current_process._config['authkey'][1]))",
        check="out = float(x.sum())",
    )
    assert not saved["left"]
    assert saved["out"] == restored["out"]


def test_a_generator_is_rebuilt_and_one_of_the_clock_is_not(tmp_path: Path) -> None:
    saved, restored = both(
        tmp_path,
        "import time",
        "def ticks():\n    t = time.time()\n    while True:\n        yield t",
        "g = (i * j for i in range(9) for j in range(i, i + 1))\nnext(g)",
        "c = ticks()\nnext(c)",
        "next(g)",
        check="out = list(g)",
    )
    assert named(saved["rebuilt"]) == {"g"} and set(saved["lost"]) == {"c"}
    assert "can't be made again" in saved["lost"]["c"]
    assert saved["out"] == restored["out"] == "[4, 9, 16, 25, 36, 49, 64]"
    assert set(restored["lost"]) == {"c"} and "can't be made again" in restored["lost"]["c"]


def test_a_generator_over_a_file_that_changed_is_told(tmp_path: Path) -> None:
    saved, restored = both(
        tmp_path,
        "open('f.txt', 'w').write('a\\nb\\nc\\n')",
        "g = (word for line in open('f.txt').readlines() for word in line.split())\nnext(g)",
        check="out = type(g).__name__",
        between=lambda: (tmp_path / "f.txt").write_text("x\ny\nzzz\n"),
    )
    assert named(saved["rebuilt"]) == {"g"}
    assert "was changed since" in restored["lost"]["g"] and restored["out"] == "'Lost'"


GEN = "def gen(*held):\n    while True:\n        yield held\n"


def test_cells_run_again_in_their_own_settings_and_leave_none(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    saved, restored = both(
        tmp_path,
        f"import decimal, logging, os, sys\nfrom decimal import Decimal\n{GEN}base = os.getcwd()",
        "os.environ['MODE'] = 'train'; decimal.getcontext().prec = 4; os.chdir('a')",
        """g = gen(os.environ['MODE'], Decimal(1) / 3, os.path.relpath(os.getcwd(), base)); next(g)
        sys.setrecursionlimit(1500); os.chdir('../b'); os.environ['N'] = os.environ.get('N', '') + 'x'
        os.environ['NEW'] = '1'; logging.getLogger('hop').addHandler(logging.StreamHandler())
        decimal.getcontext().prec += 1""".replace("        ", ""),
        "os.environ['MODE'] = 'test'; decimal.getcontext().prec = 20; sys.setrecursionlimit(1600); del os.environ['NEW']",
        check="""now = os.environ['N'], 'NEW' in os.environ, decimal.getcontext().prec, sys.getrecursionlimit()
out = next(g), now, os.path.relpath(os.getcwd(), base), len(logging.getLogger('hop').handlers)""",
    )
    assert named(saved["rebuilt"]) == {"g"} and not restored["lost"]
    assert restored["notices"] == ["g: rebuilt by running the cells again"]
    wanted = "(('train', Decimal('0.3333'), 'a'), ('x', False, 20, 1600), 'b', 1)"
    assert saved["out"] == restored["out"] == wanted


def test_what_cells_that_ran_again_leave_behind_is_told(tmp_path: Path) -> None:
    saved, restored = both(
        tmp_path,
        f"import csv\n{GEN}",
        "csv.register_dialect('hop', delimiter=';'); g = gen(1); next(g)",
        "csv.unregister_dialect('hop')",
        check="out = next(g)",
    )
    assert saved["out"] == restored["out"] == "(1,)"
    assert "g: running its cells again changed the process's csv settings" in restored["notices"]


def test_a_generator_of_a_module_that_changed_since_is_told(tmp_path: Path) -> None:
    (tmp_path / "settings_of.py").write_text("N, DONE = 1, []\n")
    saved, restored = both(
        tmp_path,
        f"import sys; sys.path.insert(0, '')\nimport settings_of\n{GEN}",
        "settings_of.N = 3",
        "g = gen(settings_of.N); next(g)",
        "settings_of.N = 100",
        check="out = next(g)",
    )
    assert saved["out"] == "(3,)" and restored["out"] != "(100,)"
    assert "settings_of.N changed" in restored["lost"]["g"]


def test_what_was_shown_is_still_the_variable(tmp_path: Path) -> None:
    saved, restored = both(
        tmp_path, "import numpy as np", f"x = np.arange({BIG})\nx", check="out = Out[2] is x, int(x[-1])"
    )
    assert "x" in named(saved["left"])
    assert saved["out"] == restored["out"] == f"(True, {BIG - 1})"


def test_what_was_rebuilt_is_rebuilt_from_the_next_save_too(tmp_path: Path) -> None:
    cells = ["l = [3, 4]", "g = (i * j for i in range(9) for j in range(i, i + 1))\nnext(g)", "next(g)"]
    saved, _ = both(tmp_path, *cells, check="out = 1")
    assert named(saved["rebuilt"]) == {"g"}
    again = run(tmp_path, do="again", cells=["l.append(5)"], rates=SLOW, whole=False, check=[])
    assert named(again["rebuilt"]) == {"g"} and not again["lost"], again
    restored = run(tmp_path, do="restore", check=["out = list(g), l"])
    assert restored["out"] == "([4, 9, 16, 25, 36, 49, 64], [3, 4, 5])", restored
