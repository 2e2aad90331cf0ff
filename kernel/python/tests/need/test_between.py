"""Work in the main thread waits for the cell that runs, whatever kind of cell that is."""

from __future__ import annotations

import asyncio
import threading
import types
from typing import Any

import pytest
from gresshopper.between import Between, Cells

Info = types.SimpleNamespace


def ended(info: Any) -> Any:
    return types.SimpleNamespace(info=info)


def test_cells_within_cells_are_one() -> None:
    cells, outer, inner = Cells(), Info(raw_cell="outer"), Info(raw_cell="inner")
    assert cells.begins(outer) and not cells.begins(inner)
    assert not cells.over(ended(inner)) and cells
    assert not cells.over(ended(Info(raw_cell="  "))) and cells  # an empty one, which never began
    assert cells.over(ended(outer)) and not cells


def test_an_empty_cell_by_itself_is_one() -> None:
    cells = Cells()
    assert cells.over(ended(Info(raw_cell=""))) and not cells


@pytest.mark.parametrize("result", [None, ended(Info(raw_cell="outer"))], ids=["no result", "another info"])
def test_an_interrupted_cell_is_over(result: Any) -> None:
    cells = Cells()
    cells.begins(Info(raw_cell="outer"))
    assert cells.over(result) and not cells


class Events:
    """IPython's events, as far as they are used."""

    def __init__(self) -> None:
        self.callbacks: dict[str, list[Any]] = {}

    def register(self, name: str, hook: Any) -> None:
        self.callbacks.setdefault(name, []).append(hook)

    def trigger(self, name: str, argument: Any) -> None:
        for hook in self.callbacks[name]:
            hook(argument)


def test_work_waits_for_an_asynchronous_cell() -> None:
    done: list[str] = []

    async def kernel() -> None:
        loop = asyncio.get_running_loop()
        io_loop = types.SimpleNamespace(add_callback=loop.call_soon_threadsafe)
        shell = types.SimpleNamespace(events=Events(), kernel=types.SimpleNamespace(io_loop=io_loop))
        between, info = Between(shell), Info(raw_cell="await something()")
        shell.events.trigger("pre_run_cell", info)
        poster = threading.Thread(target=between.post, args=(lambda: done.append(threading.current_thread().name),))
        poster.start()
        await asyncio.sleep(0.05)  # the cell waits, and the loop goes round
        poster.join()
        assert not done
        shell.events.trigger("post_run_cell", ended(info))
        assert not done  # not before its reply is on its way
        await asyncio.sleep(0.01)
        assert done == ["MainThread"]
        between.post(lambda: done.append("from the main thread"))
        await asyncio.sleep(0.01)
        assert done[1:] == ["from the main thread"]

    asyncio.run(kernel())
