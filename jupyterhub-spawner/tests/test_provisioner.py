"""The provisioner where it can start no kernel."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from gresshopper_jupyter import provisioner


async def test_on_a_mac_it_can_be_imported_and_a_launch_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    made = provisioner.GresshopperProvisioner()
    with pytest.raises(provisioner.FrontError, match="need a Jupyter server on Linux"):
        await made.launch_kernel(["python"])
    assert not made.has_process


#: A front whose first process is killed, whose second doesn't come up, and whose third ends as its kernel does.
_FRONT = """
import json, os, pathlib, signal, sys
start = json.loads(sys.stdin.readline())
count = pathlib.Path(sys.argv[1])
number = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(number))
with count.with_suffix(".tenures").open("a") as heard:
    print(start["tenure"], file=heard)
if number == 2:
    print(json.dumps({"event": "failed", "reason": "no space left"}), flush=True)
    sys.exit(1)
ports = dict.fromkeys(("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port"), 1)
print(json.dumps({"event": "launched", "kernel": "k", **ports}), flush=True)
print(json.dumps({"event": "tenure", "tenure": 10 - number}), flush=True)
if number == 1:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_front_that_does_not_come_up_after_another_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provisioner, "_PAUSE", 0.1)
    count = tmp_path / "count"
    front = provisioner.Front([sys.executable, "-c", _FRONT, str(count)], {"epoch": 1, "ports": {}}, dict(os.environ))
    front.wait_launched()
    assert front.wait(20) == 0, "the third has ended by itself"
    assert count.read_text() == "3"
    assert count.with_suffix(".tenures").read_text().split() == ["0", "9", "9"]
    assert front.tenure == 9, "of tenures the highest counts"


def test_a_first_front_that_does_not_come_up_is_told_and_not_followed(tmp_path: Path) -> None:
    count = tmp_path / "count"
    count.write_text("1")
    front = provisioner.Front([sys.executable, "-c", _FRONT, str(count)], {"epoch": 1, "ports": {}}, dict(os.environ))
    with pytest.raises(provisioner.FrontError, match="no space left"):
        front.wait_launched()
    assert count.read_text() == "2"


#: A front whose kernel dies, and that ends soon after. Each start is noted with whether it is a close.
_DEAD = """
import json, pathlib, sys
start = json.loads(sys.stdin.readline())
with pathlib.Path(sys.argv[1]).open("a") as noted:
    print(start.get("close", False), file=noted)
ports = dict.fromkeys(("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port"), 1)
print(json.dumps({"event": "launched", "kernel": "k", **ports}), flush=True)
print(json.dumps({"event": "dead", "reason": "it ran out of memory"}), flush=True)
sys.exit(1)
"""


@pytest.mark.parametrize(
    ("notebook", "close", "starts"),
    [
        (None, True, ["False", "True"]),
        (None, False, ["False"]),
        ({"path": "/home/a/x.ipynb", "kernelspec": "python3"}, True, ["False"]),
    ],
)
def test_a_dead_kernel_is_closed_with_its_state_unless_somebody_comes_back_for_it(
    tmp_path: Path, notebook: dict[str, str] | None, close: bool, starts: list[str]
) -> None:
    noted = tmp_path / "noted"
    start = {"epoch": 1, "ports": {}, "notebook": notebook}
    front = provisioner.Front([sys.executable, "-c", _DEAD, str(noted)], start, dict(os.environ))
    front.wait(20)
    front._process.wait(20)
    for _ in range(2):
        front.end(close=close)
    assert noted.read_text().split() == starts


def test_an_opening_is_waited_for_while_it_waits_for_the_notebooks_kernel_to_be_saved() -> None:
    rust = (ROOT / "kernel/front/src/termination.rs").read_text()
    parting = re.search(r"const PARTING: Span = Span::from_secs\((\d+)\);", rust)
    assert parting is not None
    # The front waits five seconds more, and then binds its sockets.
    assert int(parting[1]) + 5 + 10 <= provisioner._LAUNCH
