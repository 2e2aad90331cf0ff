"""A home or a store that hangs, as over a network: cells are answered all the same."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import HangingDisk, Kernel, eventually, outputs

#: Longer than any wait of a cell for the disk.
HANGS = 12

#: A reply on a busy machine.
SOON = 4


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    yield kernel
    kernel.close()


DIGESTS = "import hashlib; print(*(hashlib.sha256(m).hexdigest() for m in (a, big)))"


def saved(store: Path) -> None:
    """Waits until nothing more is stored."""

    def chunks() -> int:
        return sum(1 for path in store.rglob("*") if path.is_file())

    last, since = chunks(), time.monotonic()
    while time.monotonic() - since < 3:
        time.sleep(0.1)
        if chunks() != last:
            last, since = chunks(), time.monotonic()


def timed(kernel: Kernel, code: str) -> tuple[float, tuple[str, str]]:
    began = time.monotonic()
    said = outputs(kernel, code)
    return time.monotonic() - began, said


def test_a_home_that_hangs_holds_no_reply_up(hanging_home: HangingDisk, kernel: Kernel, home: Path) -> None:
    outputs(kernel, "import os; a = 1")
    # Also what is written at times alone: the notebook's name.
    thawing = hanging_home.hang(HANGS)
    kernel.km.provisioner._front._say('notebook "other.ipynb"')
    took = {code: timed(kernel, code) for code in ("a += 1", "print(a)", "b = list(range(1000))", "print(sum(b))")}
    assert thawing.poll() is None, "it hung to the last cell"
    assert all(seconds < SOON for seconds, _ in took.values()), took
    assert took["print(a)"][1] == ("2\n", "") and took["print(sum(b))"][1] == ("499500\n", "")
    thawing.wait()
    # All was saved after the hang.
    kernel.run("c = 3")
    time.sleep(1.5)
    os.kill(kernel.pids()["kernel"], signal.SIGKILL)
    assert kernel.value("a, len(b), c") == "2 1000 3"


def test_a_front_that_is_killed_while_the_home_hangs_is_followed(hanging_home: HangingDisk, kernel: Kernel) -> None:
    seen: Counter[str] = Counter()
    texts = []

    def listen(seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                message = kernel.kc.get_iopub_msg(timeout=0.2)
            except Exception:  # Nothing came: queue.Empty, by whatever name.
                continue
            seen[message["header"]["msg_id"]] += 1
            if message["msg_type"] == "stream":
                texts.append(message["content"]["text"])

    pids = kernel.pids()
    thawing = hanging_home.hang(8)
    for n in range(5):
        kernel.kc.execute(f"print({n})")
        listen(0.5)
    os.kill(pids["front"], signal.SIGKILL)
    thawing.wait()
    eventually(lambda: kernel.km.provisioner.pid != pids["front"], "another front follows")
    kernel.kc.execute("print(5)")
    listen(5)
    assert "".join(texts).split() == ["0", "1", "2", "3", "4", "5"]
    assert max(seen.values()) == 1, [(id, n) for id, n in seen.items() if n > 1]


def test_a_store_that_hangs_holds_a_cell_up_once_and_for_a_moment(
    hanging_store: HangingDisk, kernel: Kernel, home: Path
) -> None:
    outputs(kernel, "import os; a = bytearray(os.urandom(20_000_000))")
    time.sleep(2)
    thawing = hanging_store.hang(HANGS)
    told = []
    cells = ["big = bytearray(os.urandom(20_000_000))", "a[:3] = b'abc'", "x = 3", "big[:3] = b'def'; y = 4"]
    took = []
    for code in cells:
        seconds, (_, said) = timed(kernel, code)
        took.append(seconds)
        told.append(said)
        time.sleep(0.5)
    assert thawing.poll() is None, "it hung to the last cell"
    assert all(seconds < SOON for seconds in took), took
    assert sum(seconds > 1 for seconds in took) <= 1, took
    seconds, (digests, said) = timed(kernel, DIGESTS)
    assert thawing.poll() is None and seconds < SOON
    thawing.wait()
    # The store answers, and has all by itself: the memory as it is now.
    saved(home / "other")
    os.kill(kernel.pids()["kernel"], signal.SIGKILL)
    assert kernel.text(DIGESTS) == digests
    assert kernel.value("x, y") == "3 4"
    assert "".join([*told, said]).count("doesn't answer") == 1
