"""Puts the package and these modules on the path of the tests, and leaves some tests of corners to `make test-all`."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE)]

#: Files whose tests each start a kernel or two, about corners of the state engine: `make test` tries every third of them.
CORNERS = ("afterwards", "beside", "deferred", "held", "module_entries", "plan", "recursion", "settings", "shipped")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    corners = [item for item in items if item.path.stem.removeprefix("test_") in CORNERS]
    for at, item in enumerate(corners):
        if at % 3:
            item.add_marker(pytest.mark.thorough)
