"""What an installation ships for environments that lack it."""

from __future__ import annotations

import importlib.machinery
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gresshopper.state import native, shipped

cloudpickle = pytest.importorskip("cloudpickle")
pytest.importorskip("IPython")

PACKAGE = Path(shipped.__file__).parents[1]

#: As cloudpickle 2 in what it lacks: the helpers that streams of 3 name. A class pickled by it is a plain name.
OLD = {
    "__init__.py": '__version__ = "2.2.1"\nfrom . import cloudpickle\nfrom .cloudpickle import *\n',
    "cloudpickle.py": (
        "import pickle, threading, weakref\n"
        "def dumps(made): return pickle.dumps(made)\n"
        "_PICKLE_BY_VALUE_MODULES = set()\n"
        "_DYNAMIC_CLASS_TRACKER_BY_CLASS = weakref.WeakKeyDictionary()\n"
        "_DYNAMIC_CLASS_TRACKER_BY_ID = weakref.WeakValueDictionary()\n"
        "_DYNAMIC_CLASS_TRACKER_LOCK = threading.Lock()\n"
        "class CloudPickler(pickle.Pickler): pass\n"
        "def register_pickle_by_value(module): _PICKLE_BY_VALUE_MODULES.add(module.__name__)\n"
    ),
}
BROKEN = {"__init__.py": "raise AttributeError('this Python has no such type of code')\n"}

SCRIPT = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
before = sys.argv[4] == "before"
if before:
    import cloudpickle
from IPython.core.interactiveshell import InteractiveShell
from gresshopper.state import shipped
from gresshopper.state.agent import Agent
base, cells = Path(sys.argv[2]), json.loads(sys.argv[3])
ip = InteractiveShell.instance()
agent = Agent(ip, base / "store")
if cells:
    agent.watch()
    for cell in cells:
        ip.run_cell(cell, store_history=True)
    lost = agent.save(base / "state", durable=False, whole=True)["lost"]
else:
    lost = agent.restore(base / "state", wait=True, shown=False).lost
ip.run_cell("import cloudpickle\\nsaid = [shown(), cloudpickle.__version__, dumps is cloudpickle.dumps]")
said = ip.user_ns.get("said")
print("\\x1e" + json.dumps([shipped.cloudpickle.__name__, lost, said]))
"""
CELLS = [
    "import cloudpickle, dataclasses\nfrom cloudpickle import dumps",
    "@dataclasses.dataclass\nclass P:\n    x: int\n    y: int = 2\nclass S:\n    __slots__ = ('a', 'b')\np, s = P(1), S(); s.a = 3",
    "k = 4\ndef deep(): return (lambda: k + 1)()\nf = lambda n: [n, deep()]",
    "def shown(): return [repr(p), [d.name for d in dataclasses.fields(P)], S.__slots__, s.a, f(6), type(s) is S]",
]
SAID = [["P(x=1, y=2)", ["x", "y"], ["a", "b"], 3, [6, 5], True], None, True]


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An environment without cloudpickle."""
    forget(monkeypatch)
    find = importlib.machinery.PathFinder.find_spec

    def found(name: str, *where: Any) -> Any:
        return None if name == "cloudpickle" else find(name, *where)

    monkeypatch.setattr(importlib.machinery.PathFinder, "find_spec", staticmethod(found))
    yield
    forget(monkeypatch)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "cloudpickle" or n.startswith(shipped.BESIDE)]:
        monkeypatch.delitem(sys.modules, name)


def package(folder: Path, files: dict[str, str]) -> Path:
    """A cloudpickle of this content below a folder."""
    (folder / "cloudpickle").mkdir(parents=True)
    for name, content in files.items():
        (folder / "cloudpickle" / name).write_text(content)
    return folder


def installed(base: Path) -> Path:
    """An installation that ships a copy."""
    shutil.copytree(PACKAGE, base / "gresshopper", ignore=shutil.ignore_patterns("__pycache__", "shipped"))
    shutil.copytree(Path(cloudpickle.__file__).parent, base / "gresshopper" / "shipped" / "cloudpickle")
    return base


@pytest.mark.usefixtures("without")
def test_the_copy_serves_where_the_environment_has_none(tmp_path: Path) -> None:
    shutil.copytree(Path(cloudpickle.__file__).parent, tmp_path / "cloudpickle")
    before = list(sys.path)
    found = shipped.provide(folder=tmp_path)
    # What a stream names is found under that name.
    assert found is sys.modules["cloudpickle"] is not cloudpickle and str(found.__file__).startswith(str(tmp_path))
    assert found.loads(found.dumps(lambda: 7))() == 7 and "cloudpickle.cloudpickle" in sys.modules
    assert sys.path == before


@pytest.mark.usefixtures("without")
def test_without_any_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(shipped.MissingError, match="has no cloudpickle: install it there"):
        shipped.provide(folder=tmp_path)
    assert "cloudpickle" not in sys.modules


def test_the_environments_own_goes_first(tmp_path: Path) -> None:
    assert shipped.provide(folder=tmp_path) is sys.modules["cloudpickle"] is cloudpickle
    assert sys.modules[f"{shipped.BESIDE}.cloudpickle"] is sys.modules["cloudpickle.cloudpickle"]


@pytest.mark.parametrize(
    ("files", "has"),
    [(OLD, "has cloudpickle 2.2.1, where 3 or newer"), (BROKEN, "has a cloudpickle that can't be imported, where 3")],
)
def test_an_older_one_without_a_copy_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], has: str
) -> None:
    forget(monkeypatch)
    monkeypatch.syspath_prepend(package(tmp_path / "site", files))
    with pytest.raises(shipped.MissingError, match=f"{has} .*pip install 'cloudpickle>=3'.*restart"):
        shipped.provide(folder=tmp_path)
    forget(monkeypatch)


def test_beside_an_older_one_the_copy_has_a_name_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)
    monkeypatch.syspath_prepend(package(tmp_path / "site", OLD))
    shutil.copytree(Path(cloudpickle.__file__).parent, tmp_path / "cloudpickle")
    found = shipped.provide(folder=tmp_path)
    theirs = sys.modules["cloudpickle"]
    assert found.__name__ == shipped.BESIDE and theirs.__version__ == "2.2.1"
    assert b"gresshopper.shipped.cloudpickle.cloudpickle" in found.dumps(lambda: 7)
    # A module that the user registers at theirs is pickled by value by the copy.
    theirs.register_pickle_by_value(json)
    assert "json" in found.list_registry_pickle_by_value()
    forget(monkeypatch)


def test_a_cloudpickle_that_the_user_has_blocked_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    shutil.copytree(Path(cloudpickle.__file__).parent, tmp_path / "cloudpickle")
    assert shipped.provide(folder=tmp_path).__name__ == shipped.BESIDE
    assert sys.modules["cloudpickle"] is None
    forget(monkeypatch)


@pytest.mark.parametrize("imported", ["before", "later"])
@pytest.mark.parametrize(("saved", "read"), [("old", "old"), ("old", "new"), ("new", "old")])
def test_a_state_is_read_in_an_environment_with_another(tmp_path: Path, saved: str, read: str, imported: str) -> None:
    ours = installed(tmp_path / "ours")
    old = package(tmp_path / "site", OLD)

    def said(of: str, cells: list[str]) -> Any:
        path = [str(ours), *([str(old)] if of == "old" else [])]
        env = dict(
            os.environ,
            PYTHONPATH=os.pathsep.join(path),
            XDG_CONFIG_HOME=str(tmp_path / "config"),
            IPYTHONDIR=str(tmp_path / "ipython"),
            PYTHONWARNINGS="ignore",
            GRESSHOPPER_TRACKER=native.lib._name,
        )
        command = [sys.executable, "-c", SCRIPT, str(ours), str(tmp_path), json.dumps(cells), imported]
        done = subprocess.run(
            command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert "\x1e" in done.stdout, done.stderr[-3000:]
        return json.loads(done.stdout.rpartition("\x1e")[2].splitlines()[0])

    tmp_path.chmod(0o700)
    names = {"old": shipped.BESIDE, "new": "cloudpickle"}
    versions = {"old": "2.2.1", "new": cloudpickle.__version__}
    assert said(saved, CELLS) == [names[saved], {}, [SAID[0], versions[saved], True]]
    assert said(read, []) == [names[read], {}, [SAID[0], versions[read], True]]
