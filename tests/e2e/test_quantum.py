"""Cells that outrun their class's quantum while others wait: parked in their middle by the FAKE driver of `tests/fakes`
(its libcuda and NVML stand for the GPU's; device files, leases, kernels and `hop gpu` are the real ones), or not.

Two GPUs on one node, of which carol's cell holds one throughout. Batch cells alone have a quantum: two seconds.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import OPENABLE, REPO, Cluster, Notebook, notebook, until
from opens import Recorder, shared

# Its functions `begin` and `work` put a number into the GPU's memory, and add to it until `stop`.
WORK = (REPO / "tests/fakes/work.py").read_text()
HOLD = """
import os, time
fds = [os.open(path, os.O_RDWR | os.O_NOCTTY) for path in openable()]
while not os.path.exists("stop"):
    time.sleep(0.02)
os.remove("stop")
for fd in fds:
    os.close(fd)
print(len(fds))
"""
BATCH = {"gresshopper": {"need": {"gpus": 1}, "run": {"class": "batch"}}}


@pytest.fixture(scope="module")
def fake(two_gpus: Cluster) -> dict[str, str]:
    """The environment of a kernel with the fake driver."""
    out = two_gpus.base / "opt/tests/fakes"
    out.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["sh", REPO / "tests/fakes/build.sh", out], check=True)
    (out / "gpu/dev").chmod(0o777)
    return {
        "FAKE_GPU_DIR": str(out / "gpu"),
        "GRESSHOPPER_LIBCUDA": str(out / "libcuda.so.1"),
        "GRESSHOPPER_LIBNVML": str(out / "libnvidia-ml.so.1"),
        "GRESSHOPPER_DEV_PREFIX": f"/dev/fakegpu-{two_gpus.env['HOP_DEV_NODES']}-",
    }


@pytest.fixture(scope="module")
def books(two_gpus: Cluster, fake: dict[str, str]) -> Iterator[dict[str, Notebook]]:
    with (
        notebook(two_gpus, "alice", env=fake) as alice,
        notebook(two_gpus, "bob") as bob,
        notebook(two_gpus, "carol") as carol,
    ):
        for book in (alice, bob, carol):
            book.execute(OPENABLE)
        got = alice.execute(WORK)
        assert got["status"] == "ok", got
        cell = carol.submit(f"%%gpu 1\n{HOLD}")["cell"]
        runs(two_gpus, "carol")
        yield {"alice": alice, "bob": bob}
        stop(two_gpus, "carol")
        assert carol.wait(cell)["status"] == "ok"


def rows(cluster: Cluster, user: str) -> list[dict[str, Any]]:
    return [r for r in cluster.hop("queue", "-a")["rows"] if r["user"] == user]


def is_in(cluster: Cluster, user: str, state: str) -> dict[str, Any]:
    def row() -> dict[str, Any] | None:
        return next((r for r in rows(cluster, user) if r["state"] == state), None)

    found: dict[str, Any] = until(f"{user}'s cell is {state}", row, 60)
    return found


def runs(cluster: Cluster, user: str) -> dict[str, Any]:
    return is_in(cluster, user, "RUNNING")


def stop(cluster: Cluster, user: str) -> None:
    (cluster.base / "home" / user / "stop").touch(mode=0o666)


def outrun(cluster: Cluster, book: Notebook, code: str = "begin() if not at.value else None\nprint(work())") -> str:
    """A batch cell of alice's that has run for longer than its quantum."""
    cell: str = book.submit(code, metadata=BATCH)["cell"]
    until("alice's cell has run for 2 s", lambda: runs(cluster, "alice")["time"] > 2.2, 60)
    return cell


def test_one_gpu_two_cells_each_in_its_turn_and_the_first_goes_on_where_it_was(
    two_gpus: Cluster, books: dict[str, Notebook]
) -> None:
    alice, bob = books["alice"], books["bob"]
    recorder = Recorder([str(p) for p in Path("/dev").glob(f"fakegpu-{two_gpus.env['HOP_DEV_NODES']}-*")])
    recorder.start()
    first = outrun(two_gpus, alice)
    row = runs(two_gpus, "alice")
    (device,) = alice.usage(gpus=True)["usage"]["gpus"]
    # Eight bytes beside the context.
    assert (device["name"], device["utilisation"], device["memory_used"] % 2**20) == ("FAKE GPU", 37, 8)
    said = two_gpus.run("root", "hop", "explain", row["kernel_id"], first)
    assert "After 2 s it may be parked" in said, said
    assert "batch:2" in two_gpus.run("root", "hop", "info", "-n", "-P", "-o", "quantum")
    second = bob.submit(f"%%gpu 1\n{HOLD}")["cell"]
    parked = is_in(two_gpus, "alice", "SUSPENDED")
    assert parked["cell_id"] == first
    runs(two_gpus, "bob")
    said = two_gpus.run("root", "hop", "explain", row["kernel_id"], first)
    assert "was parked for others" in said, said
    time.sleep(0.5)  # A short wait isn't told.
    stop(two_gpus, "bob")
    got = bob.wait(second)
    assert (got["status"], got["text"]) == ("ok", "1\n"), got
    assert runs(two_gpus, "alice")["cell_id"] == first

    # It has its lease before its memory is back, and goes on only then.
    def is_back() -> bool:
        states = [n["state"] for n in alice.notices(first)["notices"]]
        return "parked" in states and states[-1] == "granted"

    until("the cell goes on", is_back, 60)
    stop(two_gpus, "alice")
    got = alice.wait(first)
    lines = got["text"].splitlines()
    assert got["status"] == "ok"
    assert "True" in lines, got
    assert any("the cell is parked: it has run for" in line for line in lines), lines
    assert any("the cell goes on; it stood still for" in line for line in lines), lines
    assert [n["state"] for n in got["notices"]][-1] == "granted"
    assert "parked" in {n["state"] for n in got["notices"]}
    assert got["lease"]["parked"] == 1
    recorder.stop()
    assert shared(recorder.seen) == [], "never open in two kernels"
    the_books(two_gpus, row["lease_id"], first, got["lease"]["lease"])


def the_books(cluster: Cluster, lease: str, cell: str, second: int) -> None:
    """One cell, two leases, and in a trace one cell."""

    def closed() -> list[dict[str, Any]]:
        found = cluster.hop("acct", "-a", "-X", "-j", lease)["rows"]
        return [r for r in found if r["end"] is not None]

    (told,) = until("the first lease is closed", closed, 60)
    assert told["state"] == "PREEMPTED", told
    assert "parked for somebody who waited" in told["reason"]

    # A cell's row may come after its reply.
    def both() -> list[dict[str, Any]]:
        found = [r for r in cluster.hop("acct", "-a")["rows"] if r["cell_id"] == cell]
        return sorted(found, key=lambda r: r["start"]) if len(found) > 1 else []

    found = until("each of the two leases has a row of the cell", both, 60)
    assert [(r["state"], r["lease_id"].split(".")[0]) for r in found] == [
        ("PREEMPTED", lease),
        ("COMPLETED", str(second)),
    ]
    assert found[0]["run"] > 2
    assert found[1]["wait"] > 0.1, "as long as it stood still"


def test_a_parked_cell_keeps_its_place_while_hopd_is_killed(two_gpus: Cluster, books: dict[str, Notebook]) -> None:
    alice, bob = books["alice"], books["bob"]
    first = outrun(two_gpus, alice)
    second = bob.submit(f"%%gpu 1\n{HOLD}")["cell"]
    is_in(two_gpus, "alice", "SUSPENDED")
    runs(two_gpus, "bob")
    two_gpus.kill(r"opt/bin/hopd")
    two_gpus.deploy("hopd")
    two_gpus.wait_for_pilots()
    assert is_in(two_gpus, "alice", "SUSPENDED")["cell_id"] == first
    assert runs(two_gpus, "bob")["cell_id"] == second
    stop(two_gpus, "bob")
    assert bob.wait(second)["status"] == "ok"
    runs(two_gpus, "alice")
    stop(two_gpus, "alice")
    got = alice.wait(first)
    assert got["status"] == "ok"
    assert "True\n" in got["text"], got


def test_a_kernel_is_restarted_while_its_cell_is_parked(two_gpus: Cluster, books: dict[str, Notebook]) -> None:
    alice, bob = books["alice"], books["bob"]
    outrun(two_gpus, alice)
    second = bob.submit(f"%%gpu 1\n{HOLD}")["cell"]
    is_in(two_gpus, "alice", "SUSPENDED")
    (pid,) = two_gpus.pids(r"ipykernel", "alice")
    alice.restart()
    until("nothing waits for alice", lambda: rows(two_gpus, "alice") == [])
    assert not Path(f"/proc/{pid}").exists()
    uid = os.stat(two_gpus.base / "home/alice").st_uid
    assert list(Path("/").glob(f"tmp/gresshopper-{uid}/*-{pid}.*")) == []
    stop(two_gpus, "bob")
    assert bob.wait(second)["status"] == "ok"
    alice.execute(OPENABLE)
    got = alice.execute("%%gpu 1\nprint(len(openable()))")
    assert (got["status"], got["text"]) == ("ok", "1\n"), got


def test_one_that_can_not_be_parked_runs_on_while_the_other_waits(
    two_gpus: Cluster, books: dict[str, Notebook]
) -> None:
    alice, bob = books["alice"], books["bob"]
    # It holds the device, and not by CUDA.
    first = outrun(two_gpus, alice, HOLD)
    row = runs(two_gpus, "alice")
    second = bob.submit("%%gpu 1\nprint(len(openable()))")["cell"]

    def said() -> bool:
        return "can't: it runs to its end" in two_gpus.run("root", "hop", "explain", row["kernel_id"], first)

    until("alice's cell has said no", said)
    assert runs(two_gpus, "alice")["lease_id"] == row["lease_id"]
    waits = is_in(two_gpus, "bob", "PENDING")
    assert waits["reason"].endswith("in use"), waits
    log = (two_gpus.base / "log/hopd.log").read_text()
    assert "holds its GPU in another way than by CUDA" in log
    stop(two_gpus, "alice")
    got = alice.wait(first)
    assert (got["status"], got["text"]) == ("ok", "1\n"), got
    got = bob.wait(second)
    assert (got["status"], got["text"]) == ("ok", "1\n"), got
