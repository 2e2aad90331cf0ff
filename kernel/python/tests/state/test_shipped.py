"""What an installation ships for environments that lack it."""

from __future__ import annotations

import importlib.machinery
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from gresshopper.state import shipped

cloudpickle = pytest.importorskip("cloudpickle")


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without cloudpickle."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "cloudpickle"]:
        monkeypatch.delitem(sys.modules, name)
    find = importlib.machinery.PathFinder.find_spec

    def found(name: str, *where: Any) -> Any:
        return None if name == "cloudpickle" else find(name, *where)

    monkeypatch.setattr(importlib.machinery.PathFinder, "find_spec", staticmethod(found))


@pytest.mark.usefixtures("without")
def test_the_copy_serves_where_the_environment_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(Path(cloudpickle.__file__).parent, tmp_path / "cloudpickle")
    before = list(sys.path)
    shipped.provide(folder=tmp_path)
    found = sys.modules["cloudpickle"]
    # What a stream names is found under that name.
    assert found is not cloudpickle and str(found.__file__).startswith(str(tmp_path))
    assert found.loads(found.dumps(lambda: 7))() == 7 and "cloudpickle.cloudpickle" in sys.modules
    assert sys.path == before
    for name in [name for name in sys.modules if name.partition(".")[0] == "cloudpickle"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("without")
def test_without_any_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(shipped.MissingError, match="pip install cloudpickle"):
        shipped.provide(folder=tmp_path)
    assert "cloudpickle" not in sys.modules


def test_the_environments_own_goes_first(tmp_path: Path) -> None:
    shipped.provide(folder=tmp_path)
    assert sys.modules["cloudpickle"] is cloudpickle
