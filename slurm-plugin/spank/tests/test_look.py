"""How the node stands, and an operator's word about a blocked device."""

from __future__ import annotations

import os
import shutil

import harness
from harness import Cluster, Kernel, Pilot, Taker, end


def block(pilot: Pilot, alice: Kernel, taker: Taker) -> int:
    """Leaves a device blocked. Gives its index."""
    step, told = pilot.lend(alice)
    assert alice.ask("send", told["devices"][0]["path"], taker.name) == "sent"
    end(step)
    assert not pilot.hear()["clean"]
    return int(told["devices"][0]["index"])


def test_a_look_says_what_is_blocked_and_by_whom(pilot: Pilot, alice: Kernel, taker: Taker) -> None:
    first = pilot.look()
    assert (first["kind"], first["level"], first["why"], first["blocked"]) == ("standing", "counted", "", [])
    index = block(pilot, alice, taker)
    told = pilot.look()
    assert [b["index"] for b in told["blocked"]] == [index]
    assert f"process {os.getpid()} " in told["blocked"][0]["why"]
    assert told["freed"] == []
    held = pilot.look(index, operator="root")
    assert [b["index"] for b in held["blocked"]] == [index], "nobody's word makes a device free that is held"
    lease = held["blocked"][0]["lease"]
    taker.drop()
    assert pilot.look()["blocked"], "it was not asked to look again"
    after = pilot.look(index)
    assert (after["blocked"], after["freed"]) == ([], [[index, lease]])


def test_records_wiped_during_a_lease(cluster: Cluster, pilot: Pilot, alice: Kernel) -> None:
    """The counting programs outlive the records: the device is closed to all, and lent to nobody while it is open."""
    step, told = pilot.lend(alice)
    path = told["devices"][0]["path"]
    holder = alice.ask("child", path)
    shutil.rmtree(cluster.run_dir / cluster.node)
    end(step)
    bob = harness.kernel(cluster, "bob", cluster.submit("bob", "--mem=256"))
    second = ["--exact", "-n1", "-c1", "--mem=0", "--gres=gpu:2"]
    step = pilot.step(pilot.mint(pilot.token(bob, gpus=2)), *second)
    refused = pilot.hear()
    assert (refused["kind"], refused["reason"]["code"]) == ("refused", "blocked"), refused
    end(step)
    assert alice.ask("open", path) == "EPERM", "the look at it closed it"
    assert bob.opens() == ["EPERM", "EPERM"]
    assert alice.ask("end-child", holder) == "ended"
    step, _ = pilot.lend(bob, *second, gpus=2)
    assert bob.opens() == ["ok", "ok"]
    end(step)
    assert pilot.hear()["clean"]
