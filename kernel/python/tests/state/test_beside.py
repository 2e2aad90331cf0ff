"""What runs beside the cells and no variable holds, in a real ipykernel: it is told, and its effects are captured."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gresshopper.state import form

from supervisor import Kernel

for package in ("ipykernel", "jupyter_client", "cloudpickle"):
    pytest.importorskip(package)

TICK = """
import asyncio, os, threading
hits, on, stop = [0], [1], threading.Event()
async def tick():
    while on:
        hits[0] += 1
        await asyncio.sleep(0.01)
async def short():
    while not os.path.exists('over'):
        await asyncio.sleep(0.01)
def go(): asyncio.ensure_future(tick())
"""
BESIDE = {
    "the task tick": ("go()", "on.clear()"),
    "the task tick, displayed": ("asyncio.create_task(tick());", "on.clear()"),
    "the task short": ("asyncio.create_task(short());", ""),  # it changes no variable
    "the thread worker": ("threading.Thread(target=stop.wait, name='worker').start()", "stop.set()"),
}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Kernel]]:
    made: list[Kernel] = []

    def one() -> Kernel:
        made.append(Kernel(tmp_path))
        return made[-1]

    yield one
    for kernel in made:
        kernel.close()


def restored(kernel: Kernel, records: list[bytes], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notices once a kernel goes on from these records."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(kernel.base / "config"))
    folder = kernel.base / f"log-{kernel.process.pid}"
    log = form.Log(folder, form.owner_key())
    log.create()
    log.commit(False)
    log.close()
    kernel.begin(capture="nothing")
    kernel.ask("restore", {"folder": str(folder), "lazy": False}, records)
    assert not kernel.of("notice")
    kernel.begin(record=len(records))
    kernel.run("1")
    return [text for said, _ in kernel.of("notice") for text in said["notices"]]


@pytest.mark.parametrize("what", BESIDE)
def test_what_no_variable_holds_is_told(
    start: Callable[[], Kernel], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins, ends = BESIDE[what]
    what = what.partition(",")[0]
    kernel = start()
    kernel.begin(patience_ms=None)
    kernel.run(TICK)
    kernel.run(begins)
    assert kernel.of("cell")[-1][0]["unmovable"] == [f"{what} runs beside the cells"]
    kernel.eventually(lambda: kernel.records()[-1][0]["unmovable"])
    running = kernel.attachments()
    if ends:
        kernel.run(ends)
    else:
        assert kernel.ask("flush")["unmovable"]  # all is audited: nothing else makes a record
    (kernel.base / "over").touch()
    kernel.eventually(lambda: kernel.records()[-1][0]["unmovable"] == [])
    ended = kernel.attachments()
    kernel.close()
    said = f"{what}, which ran beside the cells, ended with its process"
    assert restored(start(), running, monkeypatch) == [said]
    assert restored(start(), ended, monkeypatch) == []


def test_what_a_task_changes_is_captured_while_the_user_thinks(start: Callable[[], Kernel]) -> None:
    kernel = start()
    kernel.begin(patience_ms=None)
    kernel.run(TICK)
    kernel.run("go()")

    def audits() -> list[Any]:
        heads = [json.loads(text) for said, text, _ in kernel.records() if said["cause"] == "audit"]
        return [head for head in heads if ["n:hits"] in [unit["m"] for unit in head["units"]]]

    kernel.eventually(lambda: len(audits()) >= 3)


PROGRAMS = {
    "sleep": ("def go(): subprocess.Popen(['sleep', '3600'])\ngo()", "sleep"),
    "script": ("def go(): subprocess.Popen([sys.executable, '-u', 'train.py', '3'])\ngo()", "train.py"),
    "bash": ("%%bash --bg\nsleep 3600", "bash"),
    "left": ("os.system('setsid nohup sleep 3600 >/dev/null 2>&1 &');", "sleep"),
    "process": (
        "import multiprocessing\ndef w(): time.sleep(3600)\n"
        "multiprocessing.get_context('fork').Process(target=w, name='training', daemon=True).start()",
        "training",
    ),
}
HELPERS = {
    "tracker": "from multiprocessing import resource_tracker; resource_tracker.ensure_running()",
    "executor": "import concurrent.futures as cf\np = cf.ProcessPoolExecutor(1); p.submit(abs, 1).result(); "
    "keep = [p]; del p, keep[:]",
    "joblib": "import joblib; joblib.Parallel(n_jobs=2)(joblib.delayed(abs)(i) for i in range(4))",
    "ended": "!true",
}


def end_programs(kernel: Kernel) -> None:
    mark = f"GRESSHOPPER_TEST_MARK={kernel.base}".encode()
    for found in Path("/proc").iterdir():
        try:
            marked = found.name.isdigit() and mark in (found / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if marked and int(found.name) != kernel.process.pid:
            os.kill(int(found.name), signal.SIGKILL)
            kernel.eventually(lambda found=found: has_ended(found), 10)


def has_ended(process: Path) -> bool:
    try:
        return (process / "stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return True


@pytest.mark.parametrize("what", PROGRAMS)
def test_programs_that_outlast_their_cell_are_told(tmp_path: Path, what: str) -> None:
    cell, name = PROGRAMS[what]
    kernel = Kernel(tmp_path, JPY_PARENT_PID=str(os.getpid()), GRESSHOPPER_TEST_MARK=str(tmp_path))
    (tmp_path / "train.py").write_text("import time; time.sleep(3600)")
    try:
        kernel.begin()
        kernel.run("import os, subprocess, sys, time")
        kernel.run(cell)
        kernel.run("1")
        said, attachments = kernel.of("cell")[-1]
        assert said["unmovable"] == [f"the program {name} runs beside the cells"]
        assert json.loads(attachments[0])["beside"] == [f"the program {name}"]
        end_programs(kernel)
        kernel.run("2")
        assert kernel.of("cell")[-1][0]["unmovable"] == []
    finally:
        end_programs(kernel)
        kernel.close()


@pytest.mark.parametrize("what", HELPERS)
def test_helpers_of_libraries_and_ended_programs_do_not_count(start: Callable[[], Kernel], what: str) -> None:
    kernel = start()
    kernel.begin()
    kernel.run("import os")
    kernel.run(HELPERS[what])
    kernel.run("1")
    assert not [one for one in kernel.of("cell")[-1][0]["unmovable"] if "program" in one]
