"""A notebook's own comms are told where they are lost; the comms of libraries are these libraries' affair."""

from __future__ import annotations

from typing import Any

import pytest

comm = pytest.importorskip("comm")

from gresshopper.state import adapters
from gresshopper.state.session import NotHereError


def manager_with(*callers: str) -> Any:
    """A manager with a target and a comm by a function of each of these modules."""
    manager = comm.base_comm.CommManager()
    for module in callers:

        def answer(*_: Any) -> None: ...

        answer.__module__ = module
        manager.register_target(f"of {module}", answer)
        made = comm.base_comm.BaseComm(target_name=module, primary=False)
        made.on_msg(answer)
        manager.register_comm(made)
    return manager


def test_what_of_the_notebooks_own_is_not_there_again_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    section = next(adapter.sections["comm"] for adapter in adapters.known() if "comm" in adapter.sections)
    monkeypatch.setattr(comm, "get_comm_manager", lambda: manager_with("__main__", "ipywidgets"))
    saved = section.read()
    assert sorted(saved) == ["on_msg of a comm", "the comm target of __main__"]
    section.set(saved)
    monkeypatch.setattr(comm, "get_comm_manager", lambda: manager_with("ipywidgets"))
    assert section.read() == {}
    with pytest.raises(NotHereError, match="on_msg of a comm, the comm target of __main__: the notebook set this"):
        section.set(saved)
