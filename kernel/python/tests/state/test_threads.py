"""Which threads and tasks beside the cells make a capture look at everything."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
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
    return [thread.name for thread in threads.of_user(known, {})]


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


async def tick() -> None:
    while True:  # noqa: ASYNC110  it stands for work
        await asyncio.sleep(0.01)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.call_soon_threadsafe(made.stop)
    eventually(lambda: not made.is_running())
    for task in asyncio.all_tasks(made):
        task.cancel()
    made.run_until_complete(asyncio.sleep(0))
    made.close()


def runs(thread: threading.Thread, known: set[threading.Thread]) -> bool:
    return found(known) == [thread.name]


def test_a_loops_thread_counts_while_tasks_of_the_users_run(
    known: set[threading.Thread], loop: asyncio.AbstractEventLoop
) -> None:
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    eventually(lambda: loop.is_running() and found(known) == [])
    ticking = asyncio.run_coroutine_threadsafe(tick(), loop)
    eventually(lambda: runs(thread, known))
    ticking.cancel()
    eventually(lambda: found(known) == [])


def test_a_thread_that_runs_a_coroutine_of_the_users_counts(known: set[threading.Thread]) -> None:
    task: list[Any] = []

    async def main() -> None:
        task.append((asyncio.current_task(), asyncio.get_running_loop()))
        await tick()

    thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    thread.start()
    assert runs(thread, known)
    eventually(lambda: task)
    time.sleep(0.05)
    assert runs(thread, known)
    task[0][1].call_soon_threadsafe(task[0][0].cancel)
    eventually(lambda: found(known) == [])


def test_a_thread_with_tornados_loop_counts(
    known: set[threading.Thread], loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    ioloop = pytest.importorskip("tornado.ioloop")
    monkeypatch.setattr(threads.adapters, "entries", lambda part: ["tornado"])  # as IPython's adapter says
    io = ioloop.IOLoop(asyncio_loop=loop, make_current=False)
    io.add_callback(tick)
    thread = threading.Thread(target=io.start, daemon=True)
    thread.start()
    eventually(loop.is_running)
    time.sleep(0.05)
    assert runs(thread, known)


def test_callbacks_that_a_loop_is_to_call_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def later() -> None:
        pass

    monkeypatch.setattr(threads.settings, "is_mine", lambda value: value is later)

    async def main() -> list[list[str]]:
        loop, seen = asyncio.get_running_loop(), [threads.callbacks_of_user()]
        handles = [loop.call_later(60, later), loop.call_later(60, functools.partial(later))]
        seen.append(threads.callbacks_of_user())
        for handle in handles:
            handle.cancel()
        return [*seen, threads.callbacks_of_user()]

    name = later.__qualname__
    assert asyncio.run(main()) == [[], [name, name], []]


def test_an_executor_of_processes_counts_while_it_is_to_call_the_notebook(
    known: set[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    def done(_: Any) -> None:
        pass

    monkeypatch.setattr(threads.settings, "is_mine", lambda value: value is done)
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as executor:
        executor.submit(time.sleep, 0).result()
        assert found(known) == []
        work = executor.submit(time.sleep, 0.3)
        work.add_done_callback(done)
        assert len(found(known)) == 1
        work.result()
        eventually(lambda: found(known) == [])


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
