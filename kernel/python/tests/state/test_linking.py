"""Objects that a dump makes for itself link no groups: others come to lie at their addresses."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from gresshopper.state import pickling


class Making:
    """An instance that makes new objects, within one another, at each dump."""

    def __init__(self) -> None:
        self.kept = [1]

    def __getstate__(self) -> dict[str, Any]:
        return {"made": [{"of": ([2], self.kept)}]}


def test_only_the_users_own_objects_link_groups() -> None:
    shared = {"x": [3]}
    made = Making()
    values = [made, shared, [shared]]
    dump = pickling.dump(pickling.Session({}), values)
    assert set(dump.ids) == {id(made), id(made.kept), id(shared), id(shared["x"]), id(values[2])}


def test_the_lists_of_a_dump_link_nothing() -> None:
    inner = [4]
    values = [inner]
    assert list(pickling.dump(pickling.Session({}), values).ids) == [id(inner)]


#: Two objects each, made apart from one another. Their classes and libraries hand out what they share.
APART = {
    "frames": ("pandas", "pd.DataFrame({'a': [1.5, 2]})", "pd.DataFrame({'b': [3.5]})"),
    "series": ("pandas", "pd.Series([1.5, 2])", "pd.DataFrame({'b': [3.5]})"),
    "frames with a note": ("pandas", "noted(pd.DataFrame({'a': [1.5]}))", "noted(pd.Series([1.5]))"),
    "frames of strings": ("pandas", "pd.DataFrame({'a': ['x']})", "pd.DataFrame({'b': ['y']})"),
    "masked integers": ("pandas", "1 + pd.Series([1], dtype='Int64')", "1 + pd.array([2], dtype='Int64')"),
    "kinds of masked integers": (
        "pandas",
        "[(1 + pd.array([1], dtype='Int64')).dtype]",
        "[(2 + pd.array([1], dtype='Int64')).dtype]",
    ),
    "masked truth": ("pandas", "pd.array([True], dtype='boolean')", "pd.array([False], dtype='boolean')"),
    "periods": ("pandas", "pd.period_range('2020', periods=2, freq='D')", "pd.Series(pd.Period('2021', 'D'))"),
    "times in a zone": ("pandas", "pd.Series(pd.Timestamp(1, tz='UTC'))", "pd.date_range('2020', '2021', tz='UTC')"),
    "times in a pytz zone": ("pandas pytz", "pd.Series(in_pytz)", "pd.DataFrame({'t': [in_pytz]})"),
    "offsets": ("pandas", "[pd.offsets.Day(2)]", "[pd.offsets.Day(2)]"),
    "structured arrays": ("numpy", "np.zeros(2, kind)", "np.ones(2, kind)"),
    "frozen distributions": ("scipy", "scipy.stats.norm(1, 2)", "scipy.stats.norm(3, 4)"),
    "trees": ("sklearn", "tree()", "tree()"),
    "figures with lines": (
        "matplotlib",
        "figure().subplots().plot([1, 2], 'o-')",
        "figure().subplots().errorbar([1], [2], 1)",
    ),
    "figures with bars": ("matplotlib", "figure().subplots().bar([1], [2])", "figure().subplots().hist([1, 2])"),
    "figures with text": ("matplotlib", "figure().suptitle('x')", "figure().subplots().text(0, 0, 'y')"),
    "figures with colours": ("matplotlib", "coloured('viridis')", "coloured('viridis')"),
    "figures with other colours": ("matplotlib", "coloured('RdBu')", "coloured('RdBu')"),
    "figures with circles": ("matplotlib", "circled()", "circled()"),
    "figures with dots": (
        "matplotlib",
        "figure().subplots().scatter([1], [2], c=[3])",
        "figure().subplots().scatter(1, 2)",
    ),
}

PREPARED = """
import numpy as np
try:
    import pandas as pd
    import pytz
    in_pytz = pd.Timestamp(1, tz=pytz.timezone("Europe/Berlin"))
except ImportError: pass
try: import scipy.stats
except ImportError: pass
try: from sklearn.tree import DecisionTreeClassifier
except ImportError: pass
try: from matplotlib.figure import Figure as figure
except ImportError: pass
def circled():
    from matplotlib.patches import Circle
    return figure().subplots().add_patch(Circle((0, 0)))
def coloured(by):
    made = figure()
    made.colorbar(made.subplots().imshow([[1, 2]], cmap=by))
    return made
kind = np.dtype([("a", "i4"), ("b", "f8")])
def tree():
    return DecisionTreeClassifier(random_state=0).fit([[0.0], [1.0]], [0, 1])
def noted(frame):
    object.__setattr__(frame, "note", "mine")
    return frame
"""

AT_EACH_DUMP = """
import collections
try: import scipy.sparse
except ImportError: pass
try: import torch
except ImportError: pass
class Part:
    def __init__(self, of): self.of = of
class Making:
    def __reduce__(self):
        return (tuple, ([Part([Part([1])])],))
"""


@pytest.mark.parametrize("name", APART)
def test_objects_that_were_made_apart_are_not_linked(name: str) -> None:
    needs, one, other = APART[name]
    for package in needs.split():
        pytest.importorskip(package)
    scope: dict[str, Any] = {}
    exec(PREPARED, scope)
    session = pickling.Session({})
    values = [eval(one, scope), eval(other, scope)]
    dumps = [pickling.dump(session, [value]) for value in values]
    one_ids, other_ids = (set(dump.ids) for dump in dumps)
    assert one_ids, "each is linked to what else holds it"
    assert not one_ids & other_ids
    assert not [
        one for one in dumps[0].ranges for other in dumps[1].ranges if one[0] < other[1] and other[0] < one[1]
    ]


#: Values for which a library makes arrays, views, buffers and instances at each dump.
MAKING = {
    "tree": ("sklearn", "tree()"),
    "index": ("pandas", "pd.Index([1, 2, 3])"),
    "frame": ("pandas", "pd.DataFrame({'a': [1.5, 2], 'b': ['x', 'y']}, index=['u', 'v'])"),
    "masked": ("numpy", "np.ma.array([1, 2], mask=[True, False])"),
    "subclass": ("numpy", "[np.rec.array(np.zeros(2, kind)), np.matrix([[1.0]])]"),
    "of objects": ("numpy", "np.array([[1], [2]], dtype=object)"),
    "generator": ("numpy", "np.random.default_rng(1)"),
    "sparse": ("scipy", "scipy.sparse.eye(3, format='csr')"),
    "distribution": ("scipy", "scipy.stats.norm(1, 2)"),
    "figure": ("matplotlib", "figure().subplots().plot([1, 2], 'o-')"),
    "tensor": ("torch", "torch.ones(3, requires_grad=True)"),
    "memory": ("numpy", "memoryview(np.zeros(90_000))[10:]"),
    "deque": ("numpy", "collections.deque([[1], [2]])"),
    "instances": ("numpy", "Making()"),
    "a class with globals of its own": ("numpy", "collections.namedtuple('Pair', 'one other')(1, [2])"),
    "a generator": ("numpy", "(one for one in [[1]])"),
}


@pytest.mark.parametrize("name", MAKING)
def test_what_a_dump_makes_for_itself_links_nothing(name: str) -> None:
    if name == "instances" and sys.version_info >= (3, 13):
        pytest.skip("an instance doesn't show the collector its dictionary, which links still")
    needs, source = MAKING[name]
    for package in needs.split():
        pytest.importorskip(package)
    scope: dict[str, Any] = {}
    exec(PREPARED + AT_EACH_DUMP, scope)
    value = eval(source, scope)
    session = pickling.Session({})
    dumps = [pickling.dump(session, [value]) for _ in range(2)]  # both alive: neither is at the other's address
    assert list(dumps[0].ids) == list(dumps[1].ids)
    assert dumps[0].ranges == dumps[1].ranges


def test_an_object_of_a_library_with_a_state_links_what_holds_it() -> None:
    mpmath = pytest.importorskip("mpmath")
    session = pickling.Session({})
    ids = [set(pickling.dump(session, [[mpmath.mp]]).ids) for _ in range(2)]
    assert id(mpmath.mp) in ids[0] & ids[1], "its state comes with the last group that holds it"
