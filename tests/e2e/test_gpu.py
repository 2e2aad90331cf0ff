"""A real GPU, leased by the cell: notebooks with torch on a real cluster of one node. Nothing is faked here.

Skipped on a machine without a GPU. `bench/gpu/README.md` says how it runs on a lent one.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import BASE, INDEX, deployed
from harness import HUB_PYTHON, Cluster, Notebook, notebook, stream, until

DEVICE = Path("/dev/nvidia0")
USER_PYTHON = os.environ.get("USER_PYTHON", "/opt/gresshopper-dev/user/bin/python")
pytestmark = pytest.mark.skipif(not DEVICE.exists(), reason="no GPU on this machine")

#: A cell without a lease: nothing of it touches the device.
BEGIN = "import os, time, torch"
#: A model's worth of memory, and its sum.
HOLD = """%%gpu 1
held = [torch.full((1 << 28,), i, dtype=torch.float32, device="cuda") for i in range({gib})]
print(sum(float(t[::4096].double().sum()) for t in held))
"""
AGAIN = "%%gpu 1\nprint(sum(float(t[::4096].double().sum()) for t in held))"
#: Most of the whole GPU, for the time of one cell.
WHOLE = """%%gpu 1
free, total = torch.cuda.mem_get_info()
block = torch.full((int(free * 0.9) // 4,), 3.0, device="cuda")
print(free > 0.95 * total, float(block[-1]))
del block
torch.cuda.empty_cache()
"""
OPENS = """
try:
    os.close(os.open("/dev/nvidia0", os.O_RDWR))
    print("opens")
except OSError as error:
    print(type(error).__name__)
"""


@pytest.fixture(scope="module")
def gpu() -> Iterator[Cluster]:
    """One node with the machine's first GPU. Batch cells have a quantum of two seconds."""
    found = subprocess.run([USER_PYTHON, "-c", "import torch"], capture_output=True, check=False)
    if found.returncode != 0:
        pytest.skip(f"{USER_PYTHON} has no torch")
    made = Cluster(
        f"{BASE}-gpu",
        INDEX + 21,
        os.environ.get("HOP_E2E_VARIANT", "auto"),
        *("--nodes", "1", "--gpu-file", str(DEVICE)),
        PILOTS="1",
        GPUS_PER_PILOT="1",
        SEAT_MEM_MIB="18000",
        LINGER_MS="0",
        GRACE_MS="20000",
        USER_PYTHON=USER_PYTHON,
        HUB_PYTHON=HUB_PYTHON,
        POOL_EXTRA="quantum = { batch_s = 2, worth_waiting_s = 0 }",
    )
    yield from deployed(made)


@pytest.fixture(scope="module")
def books(gpu: Cluster) -> Iterator[tuple[Notebook, Notebook]]:
    with notebook(gpu, "alice") as alice, notebook(gpu, "bob") as bob:
        for book in (alice, bob):
            ran(book, BEGIN)
        yield alice, bob


def ran(book: Notebook, code: str, **more: Any) -> str:
    """What the cell printed, once it has run well. Tells how long it took from request to reply."""
    start = time.monotonic()
    got = book.execute(code, timeout=150, **more)
    seconds = time.monotonic() - start
    assert got["status"] == "ok", got
    print(f"{book.user}: {seconds:.2f} s, lease {got.get('lease')}: {code.splitlines()[-1][:60]!r}")
    return stream(got, "stdout").strip()


def holders() -> set[int]:
    """Processes with the device open or mapped."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            held = any(os.readlink(fd) == str(DEVICE) for fd in (entry / "fd").iterdir())
            held = held or f" {DEVICE}\n" in (entry / "maps").read_text()
        except OSError:
            continue
        if held:
            found.add(int(entry.name))
    return found


def nobody_holds() -> None:
    until("nobody holds the GPU", lambda: not holders(), 40)


def test_two_notebooks_take_turns_with_the_whole_gpu(gpu: Cluster, books: tuple[Notebook, Notebook]) -> None:
    alice, bob = books
    kept = ran(alice, HOLD.format(gib=8))
    for _ in range(3):
        assert ran(bob, WHOLE) == "True 3.0", "no byte of alice's is on the GPU"
        assert ran(alice, AGAIN) == kept
    nobody_holds()


def test_between_its_cells_the_gpu_can_not_be_opened(gpu: Cluster, books: tuple[Notebook, Notebook]) -> None:
    alice, _ = books
    nobody_holds()
    assert ran(alice, OPENS) == "PermissionError"
    assert ran(alice, "%%gpu 1" + OPENS) == "opens"
    got = alice.execute("float(held[0][0])", timeout=60)
    # A touch asks for a lease of its own, or says in a sentence that the cell has none.
    assert got["status"] == "ok" or got["reply"]["ename"] == "GpuUnavailable", got


def test_a_loaders_workers_live_on_without_the_gpu(gpu: Cluster, books: tuple[Notebook, Notebook]) -> None:
    alice, bob = books
    ran(
        alice,
        "%%gpu 1\ndata = torch.utils.data.DataLoader(torch.arange(4000.0), 100, num_workers=2, persistent_workers=True)\n"
        "batches = iter(data)\nprint(float(next(batches).cuda().sum()))",
    )
    assert ran(bob, WHOLE) == "True 3.0"
    assert ran(alice, "%%gpu 1\nprint(float(next(batches).cuda().sum()))") == str(float(sum(range(100, 200))))
    ran(alice, "del batches, data")


def test_a_process_that_keeps_the_gpu_beyond_its_lease_is_ended(
    gpu: Cluster, books: tuple[Notebook, Notebook]
) -> None:
    alice, bob = books
    code = "import torch, time; x = torch.ones(1 << 28, device='cuda'); print('has it', flush=True); time.sleep(600)"
    assert "has it" in ran(
        alice,
        f"%%gpu 1\nimport subprocess, sys\nother = subprocess.Popen([sys.executable, '-c', {code!r}], "
        "stdout=subprocess.PIPE, text=True)\nprint(other.stdout.readline())",
    )
    assert ran(bob, WHOLE) == "True 3.0"


def test_a_cell_is_parked_in_its_middle_for_another(gpu: Cluster, books: tuple[Notebook, Notebook]) -> None:
    _, bob = books
    work = """
a = torch.eye(2048, device="cuda", dtype=torch.float64)
total = torch.zeros((), device="cuda", dtype=torch.float64)
start, steps = time.monotonic(), 0
while time.monotonic() - start < 12:
    total += (a @ a).sum(); steps += 1
    torch.cuda.synchronize()
print(float(total) == 2048 * steps)
"""
    with notebook(gpu, "carol") as carol:
        ran(carol, BEGIN)
        batch = {"gresshopper": {"need": {"gpus": 1}, "run": {"class": "batch"}}}
        first = carol.submit(work, metadata=batch)["cell"]

        def long() -> bool:
            rows = gpu.hop("queue", "-a")["rows"]
            return any(r["user"] == "carol" and r["state"] == "RUNNING" and r["time"] > 3 for r in rows)

        until("carol's cell has outrun its quantum", long, 60)
        (device,) = carol.usage(gpus=True)["usage"]["gpus"]
        print(device)
        assert device["memory_used"] > 1 << 25
        assert ran(bob, WHOLE) == "True 3.0"
        got = carol.wait(first, 90)
        assert got["status"] == "ok", got
        assert "True" in got["text"].splitlines(), got
        assert got["lease"]["parked"] == 1
    nobody_holds()
