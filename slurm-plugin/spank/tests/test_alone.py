"""What reaches every cluster of a host: a look at all processes that isn't whole, and counting programs that go.

HOP_E2E_ALONE=1 says that there is no other cluster.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import harness
import pytest
from harness import Cluster, Kernel, Pilot, end, until

pytestmark = pytest.mark.skipif(
    "HOP_E2E_ALONE" not in os.environ,
    reason="it reaches every cluster of the host: set HOP_E2E_ALONE=1 where it is the only one",
)

PINNED = Path("/sys/fs/bpf/gresshopper-3")
EPERM = ["EPERM", "EPERM"]
BOTH = ("--exact", "-n1", "-c1", "--mem=0", "--gres=gpu:2")


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


def lock_memory(who: Kernel, *arguments: str) -> int:
    locked = who.ask("lock-memory", *arguments)
    assert isinstance(locked, int), locked
    if not who.ask("alive", locked):
        assert "trixie" in str(who.cluster.base)
        pytest.skip("Linux makes no user namespace in a chroot")
    return locked


@pytest.mark.parametrize("whose", ["a-strangers", "the-lessees"])
def test_memory_that_nobody_may_look_at_holds_up_no_take_back(
    alice: Kernel, bob: Kernel, pilot: Pilot, fuse: str, whose: str
) -> None:
    """Whoever looks at such a process waits for ever."""
    step, told = pilot.lend(alice)
    path = told["devices"][0]["path"]
    locked = lock_memory(bob, fuse) if whose == "a-strangers" else lock_memory(alice, fuse, path)
    child = alice.ask("child", path)
    end(step)
    taken = pilot.hear(30)
    assert taken["clean"], taken
    assert child in taken["ended_pids"]
    assert whose == "the-lessees" or bob.ask("alive", locked)
    assert whose == "the-lessees" or alice.opens() == EPERM


def test_memory_that_nobody_may_look_at_hides_nobody_from_a_pilots_first_lease(
    cluster: Cluster, alice: Kernel, bob: Kernel, pilot: Pilot, fuse: str
) -> None:
    """Behind such a process anybody may have what an own GPU job left, so nothing is lent, and the process is named."""
    step, _ = pilot.lend(alice, *BOTH, gpus=2)
    end(step)
    assert pilot.hear()["clean"]
    cluster.cancel(pilot.job)
    locked = lock_memory(bob, fuse)
    later = harness.pilot(cluster)
    step = later.step(later.mint(later.token(alice, gpus=2)), *BOTH)
    refused = later.hear(30)
    assert (refused["kind"], refused["reason"]["code"]) == ("refused", "blocked"), refused
    assert f"process {locked} " in refused["reason"]["why"]
    assert f"uid {harness.uid('bob')})" in refused["reason"]["why"]
    end(step)
    assert alice.opens() == EPERM
    assert cluster.state_of(refused["reason"]["index"])["lessee"] == harness.uid("bob")
    cluster.cancel(bob.identity["job"])
    until("nobody is in the way", lambda: not Path(f"/proc/{locked}").exists())
    step, _ = later.lend(alice, *BOTH, gpus=2)
    assert alice.opens() == ["ok", "ok"]
    end(step)
    assert later.hear()["clean"]


def test_an_operators_word_does_where_the_count_was_lost(cluster: Cluster, pilot: Pilot, alice: Kernel) -> None:
    """Root took the counting programs away during a lease: nothing proves any more that the device is free."""
    step, told = pilot.lend(alice)
    index = told["devices"][0]["index"]
    shutil.rmtree(PINNED)
    end(step)
    assert not pilot.hear()["clean"]
    assert [b["index"] for b in pilot.look(index)["blocked"]] == [index]
    assert alice.opens() == ["EPERM", "EPERM"]
    after = pilot.look(index, operator="root")
    assert (after["blocked"], after["freed"]) == ([], [[index, told["lease"]]])
    assert cluster.state_of(index) == {"state": "free"}


def test_an_operator_hears_who_is_in_the_way_of_a_look(
    cluster: Cluster, alice: Kernel, bob: Kernel, pilot: Pilot, fuse: str
) -> None:
    """Without a count the look is through /proc, and one that isn't whole frees nothing."""
    step, told = pilot.lend(alice)
    index = told["devices"][0]["index"]
    shutil.rmtree(PINNED)
    end(step)
    assert not pilot.hear()["clean"]
    locked = lock_memory(bob, fuse)
    (held,) = pilot.look(index, operator="root", seconds=90)["blocked"]
    assert held["index"] == index
    assert f"process {locked} " in held["why"]
    cluster.cancel(bob.identity["job"])
    until("nobody is in the way", lambda: not Path(f"/proc/{locked}").exists())
    after = pilot.look(index, operator="root", seconds=90)
    assert (after["blocked"], after["freed"]) == ([], [[index, told["lease"]]])
