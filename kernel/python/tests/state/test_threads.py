"""Which threads and tasks beside the cells make a capture look at everything."""

from __future__ import annotations

import asyncio
import concurrent.futures
import multiprocessing
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from gresshopper.state import threads


@pytest.fixture
def known() -> Iterator[set[threading.Thread]]:
    yield set(threading.enumerate())


def found(known: set[threading.Thread]) -> list[str]:
    return [thread.name for thread in threads.of_user(known)]


def eventually(what: Any) -> None:
    until = time.monotonic() + 10
    while not what():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_a_users_thread_counts_also_while_it_waits(known: set[threading.Thread]) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=lambda: (stop.wait(), 1), name="worker")
    thread.start()
    assert found(known) == ["worker"]
    stop.set()
    thread.join()
    assert found(known) == []


def test_a_thread_in_foreign_code_counts(known: set[threading.Thread]) -> None:
    thread = threading.Thread(target=time.sleep, args=(0.5,))
    thread.start()
    assert len(found(known)) == 1
    thread.join()


def test_a_timer_counts(known: set[threading.Thread]) -> None:
    timer = threading.Timer(30, print)
    timer.start()
    assert len(found(known)) == 1
    timer.cancel()
    timer.join()


def test_workers_of_executors_count_while_they_work(known: set[threading.Thread]) -> None:
    began, stop = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        stop.wait()

    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        executor.submit(work)
        assert began.wait(10) and len(found(known)) == 1
        stop.set()
        eventually(lambda: found(known) == [])
        executor.submit(time.sleep, 0.3)  # nothing of Python's runs then
        eventually(lambda: len(found(known)) == 1)
        eventually(lambda: found(known) == [])


def test_the_monitor_of_progress_bars_is_harmless(known: set[threading.Thread]) -> None:
    tqdm = pytest.importorskip("tqdm")
    bar = tqdm.tqdm(total=3)
    bar.update()
    assert any("tqdm" in type(t).__module__ for t in threading.enumerate()) and found(known) == []
    bar.close()


def test_the_threads_of_multiprocessing_are_harmless(known: set[threading.Thread]) -> None:
    queue: Any = multiprocessing.get_context("spawn").Queue()
    queue.put([1])
    assert len(threading.enumerate()) > len(known) and found(known) == []
    queue.close()
    queue.join_thread()


NOTEBOOK = """
import asyncio
async def tick():
    while True:
        await asyncio.sleep(3600)
async def outer():
    await tick()
"""


def tasks(source: str, turns: int) -> list[str]:
    """The user's tasks after a cell and turns of the loop."""
    namespace: dict[str, Any] = {}
    exec(NOTEBOOK, namespace)

    async def main() -> list[str]:
        exec(source, namespace)
        for _ in range(turns):
            await asyncio.sleep(0)
        found = threads.tasks_of_user(namespace)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        return found

    return asyncio.run(main())


@pytest.mark.parametrize("turns", [0, 3])
def test_tasks_that_run_the_notebooks_code_count(turns: int) -> None:
    assert tasks("t = asyncio.ensure_future(tick())", turns) == ["tick"]
    assert tasks("t = asyncio.ensure_future(outer())", turns) == ["outer"]
    assert tasks("t = asyncio.ensure_future(asyncio.wait_for(tick(), 3600))", turns) == ["tick"]
    assert tasks("t = asyncio.gather(tick(), outer())", turns) == ["outer", "tick"]


@pytest.mark.parametrize("turns", [0, 3])
def test_tasks_of_libraries_and_tasks_that_ended_do_not_count(turns: int) -> None:
    assert tasks("t = asyncio.ensure_future(asyncio.sleep(3600))", turns) == []
    assert tasks("async def short(): pass\nt = asyncio.ensure_future(short())", 3) == []
    assert tasks("t = asyncio.ensure_future(tick()); t.cancel()", 3) == []


def test_without_a_loop_there_are_no_tasks() -> None:
    assert threads.tasks_of_user({}) == []
