"""Cores come with the lease: on the machine's real cores."""

from __future__ import annotations

import os

import pytest
from harness import Cluster, notebook, until

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this machine has one core: none to lend")

WATCH = """
import os, subprocess, sys, threading, time
seen = []
def look():
    while True:
        seen.append(sorted(os.sched_getaffinity(threading.get_native_id())))
        time.sleep(0.02)
threading.Thread(target=look, daemon=True).start()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
def cores():
    return [sorted(os.sched_getaffinity(p)) for p in (0, child.pid)] + [seen[-1]]
"""


@pytest.mark.parametrize("magic", ["%%gpu 1 --cpus 1", "%%cpu --cpus 1"])
def test_the_cell_has_the_leases_core_and_then_no_longer(real_cores: Cluster, magic: str) -> None:
    """Threads that were there before, and children, included."""
    with notebook(real_cores, "alice") as alice:
        alice.execute(WATCH)
        before = eval(alice.execute("print(cores())")["text"])
        assert {len(c) for c in before} == {1}, before
        during = eval(alice.execute(f"{magic}\ntime.sleep(0.1)\nprint(cores())")["text"])
        assert {len(c) for c in during} == {2}, during
        until("the lease is over", real_cores.quiet, 20)
        after = eval(alice.execute("time.sleep(0.1)\nprint(cores())")["text"])
        assert after == before
        alice.execute("child.kill()")
