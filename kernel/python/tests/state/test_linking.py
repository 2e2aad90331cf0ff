"""Objects that a dump makes for itself link no groups: others come to lie at their addresses."""

from __future__ import annotations

from typing import Any

import pytest
from gresshopper.state import native, pickling


class Making:
    """An instance that makes new objects, within one another, at each dump."""

    def __init__(self) -> None:
        self.kept = [1]

    def __getstate__(self) -> dict[str, Any]:
        return {"made": [{"of": ([2], self.kept)}]}


@pytest.mark.skipif(native.lib is None, reason="without the library, objects that were made within one another link")
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
