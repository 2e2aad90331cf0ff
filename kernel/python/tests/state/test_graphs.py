"""Random namespaces with aliases and cycles, changed at random: what is loaded has the same values and the same shape."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hypothesis")
np = pytest.importorskip("numpy")
from gresshopper.state import form, names, pickling, restore
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import Kernel

KINDS = ("list", "dict", "tuple", "object", "array", "view", "closure", "set")


class Node:
    """An instance whose attributes refer to others."""


def make(kind: str, others: list[Any]) -> Any:
    if kind == "list":
        return list(others)
    if kind == "dict":
        return {i: o for i, o in enumerate(others)}
    if kind == "tuple":
        return tuple(others)
    if kind == "object":
        node = Node()
        node.__dict__.update({f"a{i}": o for i, o in enumerate(others)})
        return node
    if kind == "array":
        return np.arange(6.0)
    if kind == "view":
        arrays = [o for o in others if isinstance(o, np.ndarray)]
        return arrays[0][1:] if arrays and arrays[0].size > 1 else np.zeros(4)[1:3]
    if kind == "closure":
        held = others[0] if others else None
        return _closure(held)
    return {1, 2, len(others)}


def _closure(held: Any) -> Any:
    def inner() -> Any:
        return held

    return inner


def shape(namespace: dict[str, Any]) -> Any:
    """A form of a namespace in which equal aliasing and equal values are equal text."""
    numbers: dict[int, int] = {}
    keep: list[Any] = []
    memory: dict[int, tuple[int, int]] = {}

    def walk(value: Any) -> Any:
        if type(value) in (int, float, str, type(None), bool):
            return value
        if id(value) in numbers:
            return ("seen", numbers[id(value)])
        keep.append(value)
        mutable = type(value) is not tuple
        if mutable:
            numbers[id(value)] = len(numbers)
        if type(value) in (list, tuple):
            return (type(value).__name__, [walk(v) for v in value])
        if type(value) is dict:
            return ("dict", [(k, walk(v)) for k, v in value.items()])
        if type(value) is set:
            return ("set", sorted(value))
        if isinstance(value, Node):
            return ("object", [(k, walk(v)) for k, v in sorted(value.__dict__.items())])
        if isinstance(value, np.ndarray):
            root = value
            while isinstance(root.base, np.ndarray):
                root = root.base
            start = memory.setdefault(root.__array_interface__["data"][0], (len(memory), 0))
            offset = value.__array_interface__["data"][0] - root.__array_interface__["data"][0]
            return ("array", start, offset, value.shape, value.tolist())
        return ("closure", walk(value.__closure__[0].cell_contents))

    return [(name, walk(value)) for name, value in sorted(namespace.items())]


links = st.lists(st.integers(0, 30), max_size=4)
nodes = st.lists(st.tuples(st.sampled_from(KINDS), links), min_size=1, max_size=14)
edits = st.lists(
    st.tuples(
        st.sampled_from(("append", "rebind", "delete", "write", "attach", "alias", "cut")),
        st.integers(0, 30),
        st.integers(0, 30),
    ),
    max_size=10,
)


def build(spec: list[tuple[str, list[int]]]) -> list[Any]:
    made: list[Any] = []
    for kind, refs in spec:
        made.append(make(kind, [made[r % len(made)] for r in refs] if made else []))
    for (kind, refs), node in zip(spec, made):  # and back edges, for cycles
        if kind == "list":
            node.extend(made[r % len(made)] for r in refs[:1])
        elif kind == "object":
            node.back = made[refs[0] % len(made)] if refs else None
    return made


def edit(namespace: dict[str, Any], made: list[Any], what: str, a: int, b: int) -> list[str]:
    """Change something; gives the names that a cell doing so would name."""
    if not namespace:
        return []
    name = sorted(namespace)[a % len(namespace)]
    other = sorted(namespace)[b % len(namespace)]
    value = namespace[name]
    if what == "append" and isinstance(value, list):
        value.append(b)
    elif what == "attach" and isinstance(value, (list, dict)):
        value.append(namespace[other]) if isinstance(value, list) else value.__setitem__(b, namespace[other])
        return [name, other]
    elif what == "write" and isinstance(value, np.ndarray) and value.size:
        value[b % value.size] = b
    elif what == "rebind":
        namespace[name] = [b]
    elif what == "alias":
        namespace[name] = namespace[other]
        return [name, other]
    elif what == "delete":
        del namespace[name]
    elif what == "cut" and isinstance(value, list):
        value.clear()
    return [name]


@pytest.mark.timeout(900)
@settings(
    max_examples=int(os.environ.get("HOP_GRAPHS", "15")), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(nodes, st.lists(st.integers(0, 13), min_size=1, max_size=8), edits)
def test_what_is_loaded_has_the_same_shape(spec: Any, named: Any, changes: Any) -> None:
    with tempfile.TemporaryDirectory() as base:
        kernel = Kernel(Path(base))
        kernel.log.create()
        kernel.did = {"did": [], "read": {}}
        made = build(spec)
        for i, at in enumerate(named):
            kernel.ns[f"v{i}"] = made[at % len(made)]
        variables = {k: v for k, v in kernel.ns.items() if k not in kernel.hidden}
        kernel.write(kernel.capture.run(None), None)
        for what, a, b in changes:
            touched = edit(variables, made, what, a, b)
            for name in [n for n in kernel.ns if n not in kernel.hidden]:
                if name not in variables:
                    del kernel.ns[name]
            kernel.ns.update(variables)
            kernel.write(kernel.capture.run(names.Names(set(touched), False)), None)
        kernel.log.commit(False)
        kernel.log.close()
        loaded: dict[str, Any] = {}
        session = pickling.Session(loaded)
        snapshot = restore.Snapshot(form.read(Path(base) / "log", form.owner_key(Path(base) / "key")))
        loader = restore.Loader(snapshot, kernel.store, session)
        loaded.update(loader.load_all())
        assert shape(loaded) == shape(variables)
