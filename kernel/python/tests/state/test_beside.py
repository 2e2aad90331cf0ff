"""What runs beside the cells and no variable holds, in a real ipykernel: it is told, and its effects are captured."""

from __future__ import annotations

import json
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
