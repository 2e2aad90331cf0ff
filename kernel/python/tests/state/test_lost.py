"""A placeholder raises `LostError` however it is used, and lets only itself be looked at."""

from __future__ import annotations

import importlib
import io
import os
import pickle
import sys
import types
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from gresshopper.state import capture, lost, pickling, recipes, records, restore
from gresshopper.state.notices import Notices
from gresshopper.state.recorder import Recorder

from harness import Kernel
from test_form import saved


def stand() -> Any:
    return lost.Lost("a generator", "its place can't be saved")


MODULES = ("asyncio", "cloudpickle", "copy", "math", "operator", "os", "pickle")
TWO = ["+", "-", "*", "@", "/", "//", "%", "**", "<<", ">>", "&", "|", "^", "==", "!=", "<", "<=", ">", ">=", "in"]
CALLS = """len iter next list tuple set dict sorted sum any all max reversed int float complex bool hash round abs bytes
math.floor math.ceil math.trunc operator.index os.fspath copy.copy copy.deepcopy vars open pickle.dumps pickle._dumps
cloudpickle.dumps"""
#: Code that uses a placeholder, `it`.
PYTHON = [
    *(f"it {sign} 2" for sign in TWO if sign != "in"),
    *(f"2 {sign} it" for sign in TWO),
    *(f"it {sign}= 2" for sign in ("+", "-", "*", "|", "**")),
    *(f"{sign}it" for sign in ("-", "+", "~", "not ")),
    *(f"{call}(it)" for call in CALLS.split()),
    "divmod(it, 2)",
    "list(enumerate(it))",
    "list(zip(it))",
    "list(map(str, it))",
    "it(1)",
    "it(a=1)",
    "it.shape",
    "hasattr(it, 'shape')",
    "getattr(it, 'shape', None)",
    "it.x = 1",
    "del it.x",
    "it[0]",
    "it[1:]",
    "it[0] = 1",
    "del it[0]",
    "it in [1, 2]",
    "{it: 1}",
    "{it}",
    "{}.get(it)",
    "a, *b = it",
    "[*it]",
    "dict(**it)",
    "print(*it)",
    "for _ in it: pass",
    "if it: pass",
    "f'{it}'",
    "f'{it:>8}'",
    "'{}'.format(it)",
    "isinstance(1, it)",
    "issubclass(int, it)",
    "class Derived(it): pass",
    "with it: pass",
    "async def f():\n    await it\nasyncio.run(f())",
    "async def f():\n    async for _ in it: pass\nasyncio.run(f())",
    "async def f():\n    async with it: pass\nasyncio.run(f())",
    "def f():\n    yield from it\nlist(f())",
    "match it:\n    case 5: pass",
    "pickle.dumps([it])",
    "copy.deepcopy({'a': [it]})",
    "sorted([it, 1])",
    "[1, 2].index(it)",
    "max(1, it)",
]

NUMPY: dict[str, str] = {
    "asarray": "np.asarray(it)",
    "array": "np.array(it)",
    "array of objects": "np.array(it, dtype=object)",
    "array of a list": "np.array([it, 1])",
    "array of nested lists": "np.array([[1, it], [2, 3]])",
    "asarray as float": "np.asarray(it, float)",
    "ufunc": "np.add(it, 1)",
    "ufunc right": "np.add(np.ones(2), it)",
    "array plus": "np.ones(3) + it",
    "plus array": "it + np.ones(3)",
    "array equals": "np.ones(3) == it",
    "array less": "np.ones(3) < it",
    "scalar plus": "np.float64(1) + it",
    "matmul": "np.ones((2, 2)) @ it",
    "sum": "np.sum(it)",
    "mean": "np.mean(it)",
    "concatenate": "np.concatenate([np.ones(2), it])",
    "stack": "np.stack([it, it])",
    "isnan": "np.isnan(it)",
    "shape": "np.shape(it)",
    "index": "np.arange(3)[it]",
    "save": "np.save(io.BytesIO(), it)",
    "array of objects as float": "np.array([it, 1], dtype=object).astype(float)",
}
LIBRARIES: dict[str, tuple[str, str]] = {
    "pandas frame": ("pandas", "pd.DataFrame(it)"),
    "pandas series": ("pandas", "pd.Series(it)"),
    "pandas plus": ("pandas", "pd.Series([1, 2]) + it"),
    "pandas equals": ("pandas", "pd.Series([1, 2]) == it"),
    "pandas concat": ("pandas", "pd.concat([pd.Series([1]), it])"),
    "pandas column": ("pandas", "pd.DataFrame({'a': [1, 2]}).__setitem__('b', it)"),
    "pandas isna": ("pandas", "pd.isna(it)"),
    "torch tensor": ("torch", "torch.tensor(it)"),
    "torch as tensor": ("torch", "torch.as_tensor(it)"),
    "torch add": ("torch", "torch.add(torch.ones(2), it)"),
    "torch plus": ("torch", "torch.ones(2) + it"),
    "torch stack": ("torch", "torch.stack([torch.ones(2), it])"),
    "torch save": ("torch", "torch.save({'a': it}, io.BytesIO())"),
    "sklearn": ("sklearn", "importlib.import_module('sklearn.linear_model').LinearRegression().fit(it, it)"),
    "matplotlib": ("matplotlib", "importlib.import_module('matplotlib.figure').Figure().subplots().plot(it)"),
}


@pytest.mark.parametrize("use", PYTHON)
def test_python_refuses(use: str) -> None:
    if use.startswith("match") and sys.version_info < (3, 10):
        pytest.skip("Python 3.10 brought it")
    scope = {name: importlib.import_module(name) for name in MODULES}
    with pytest.raises(lost.LostError, match="this was a generator, which is gone: its place can't be saved"):
        exec(use, {**scope, "it": stand()})


@pytest.mark.parametrize("use", NUMPY)
def test_numpy_refuses(use: str) -> None:
    np = pytest.importorskip("numpy")
    with pytest.raises(lost.LostError):
        eval(NUMPY[use], {"np": np, "it": stand(), "io": io})


@pytest.mark.parametrize("use", ["np.frombuffer(it)", "np.zeros(2).__setitem__(0, it)"])
def test_numpy_raises_an_error_of_its_own(use: str) -> None:
    np = pytest.importorskip("numpy")
    with pytest.raises((TypeError, ValueError, lost.LostError)):
        eval(use, {"np": np, "it": stand()})


@pytest.mark.parametrize("use", LIBRARIES)
def test_libraries_refuse(use: str) -> None:
    library, expression = LIBRARIES[use]
    module = pytest.importorskip(library)
    with pytest.raises(lost.LostError):
        eval(expression, {"pd": module, "torch": module, "importlib": importlib, "io": io, "it": stand()})


def test_it_says_what_it_was() -> None:
    it = stand()
    assert repr(it) == str(it) == "<lost: a generator; its place can't be saved>"
    assert dir(it) == [] and isinstance(it, lost.Lost) and type(it).__name__ == "Lost"
    formatter = pytest.importorskip("IPython.core.formatters").DisplayFormatter()
    shown, _ = formatter.format(it)
    assert shown["text/plain"] == repr(it)


def test_containers_come_back_around_it() -> None:
    with TemporaryDirectory() as base:
        os.chmod(base, 0o700)
        kernel = Kernel(Path(base))
        kernel.log.create()
        source = (
            "import threading, weakref, itertools\n"
            "def g():\n    yield from (1, 2)\n"
            "it = g(); next(it)\n"
            "thread = threading.Thread()\n"
            "held = {it: 1}; kept = {it, 2}; zipped = zip(it, [1]); chained = itertools.chain([1], it)\n"
            "named = {thread: 'name'}; ref = weakref.ref(it)"
        )
        assert kernel.run(source), kernel.error
        kernel.snap(source)
        kernel.log.commit(False)
        kernel.log.close()
        fresh = Kernel(Path(base))
        told, _ = fresh.restore()
        ns = fresh.ns
        assert set(told.lost) == {"it", "thread"}
        assert type(next(iter(ns["held"]))) is lost.Lost and len(ns["kept"]) == 2
        with pytest.raises(lost.LostError):
            list(ns["zipped"])
        assert next(ns["chained"]) == 1
        with pytest.raises(lost.LostError):
            next(ns["chained"])
        with pytest.raises(lost.LostError):
            ns["held"][ns["it"]]


def test_the_engine_writes_it_again() -> None:
    made = stand()
    stream = pickling.placeholders([made, made])
    loaded = pickle.loads(stream)[1]
    assert loaded[0] is loaded[1] and lost.parts(loaded[0]) == lost.parts(made)
    assert recipes.Lost is lost.Lost


class Holder:
    def __init__(self, *held: Any) -> None:
        self.held = held


def _group(gone: int, told: tuple[str, ...], **loaded: Any) -> list[str]:
    """The names that are told of one group of variables with so many new losses."""
    said = {"m": [f"n:{name}" for name in loaded], "gone": [["a socket", "gone"]] * gone}
    snapshot = restore.Snapshot([])
    snapshot.units, snapshot.told = {1: restore.Entry(said, None)}, list(told)  # type: ignore[arg-type]
    return sorted(restore.lost_in(snapshot, loaded))


def test_a_lost_value_is_told_under_its_variable_alone() -> None:
    s, shared = stand(), [1]
    assert _group(1, (), s=s, pair=[s, shared], other=[shared]) == ["s"]


def test_a_lost_value_without_a_variable_is_told_under_each_that_holds_it() -> None:
    s, hidden, shared = stand(), stand(), [1]
    assert _group(2, (), s=s, pair=[s], a=Holder(hidden), b=[hidden], c=shared) == ["a", "b", "s"]


def test_the_placeholder_of_an_earlier_loss_stands_for_no_new_one() -> None:
    s, new, shared = stand(), stand(), [1]
    assert _group(1, ("s",), s=s, _5=s, cl=Holder([s, shared], new), pair=[s, shared]) == ["cl", "s"]
    assert _group(1, ("s",), s=s, t=new, pair=[s, new]) == ["s", "t"]
    assert _group(1, ("s",), s=s, it=object()) == ["it", "s"]  # where nothing shows who holds it


def test_a_variable_that_can_be_lost_again_is_no_more_known_as_lost() -> None:
    space = {"s": stand(), "cl": Holder(stand()), "other": Holder(stand())}
    notices = Notices(types.SimpleNamespace(variables=space))  # type: ignore[arg-type]
    notices.know(space)
    kept: list[Any] = []
    recorder: Any = object.__new__(Recorder)
    recorder.journal, recorder._anew, recorder._notices = types.SimpleNamespace(add=kept.append), False, notices
    recorder._writer = types.SimpleNamespace(record=lambda delta, cells, full: ({}, b""))
    connected = types.SimpleNamespace(gone=[pickling.Gone("a socket", "gone")], names=["s", "cl"])
    other = types.SimpleNamespace(gone=[], names=["other"])
    changed = [capture.Changed(unit, b"") for unit in (connected, other)]  # type: ignore[arg-type]
    recorder._keep(capture.Delta(changed, [], {}, 0.0), [], (), "cells", 0.0)
    assert [record.head["told"] for record in kept] == [["other", "s"]] and isinstance(kept[0], records.Record)


def test_a_finaliser_is_not_made_again_of_a_copy(tmp_path: Path) -> None:
    saved(
        tmp_path,
        "import weakref\nclass O: pass\no = O()\nhits = []",
        "f = weakref.finalize(o, hits.append, 1)",
    )
    told, _ = Kernel(tmp_path).restore()
    assert set(told.lost) == {"f"}
