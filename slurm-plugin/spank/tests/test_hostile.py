"""Users who use what Linux and Slurm give them against the take-back, or against another user's lease."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import harness
import pytest
from harness import Cluster, Kernel, Pilot, end

EPERM = ["EPERM", "EPERM"]


@pytest.fixture
def bob(cluster: Cluster) -> Kernel:
    return harness.kernel(cluster, "bob", cluster.submit("bob", "--mem=256"))


@pytest.fixture
def fuse(cluster: Cluster) -> Iterator[str]:
    """A door to FUSE that everybody may open, as udev makes it."""
    path = cluster.base / "opt" / "fuse"
    path.unlink(missing_ok=True)
    os.mknod(path, stat.S_IFCHR, os.makedev(10, 229))
    path.chmod(0o666)
    yield str(path)
    path.unlink()


@pytest.mark.parametrize("whose", ["a-strangers", "the-lessees"])
def test_memory_that_nobody_may_look_at_holds_up_no_take_back(
    alice: Kernel, bob: Kernel, pilot: Pilot, fuse: str, whose: str
) -> None:
    """Whoever looks at such a process waits for ever."""
    step, told = pilot.lend(alice)
    path = told["devices"][0]["path"]
    locked = bob.ask("lock-memory", fuse) if whose == "a-strangers" else alice.ask("lock-memory", fuse, path)
    assert isinstance(locked, int), locked
    child = alice.ask("child", path)
    end(step)
    taken = pilot.hear(30)
    assert taken["clean"], taken
    assert child in taken["ended_pids"]
    assert whose == "the-lessees" or bob.ask("alive", locked)
    assert whose == "the-lessees" or alice.opens() == EPERM
