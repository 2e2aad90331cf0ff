"""A kernel whose seat waits in Slurm's queue. Slurm's commands are stand-ins at the process boundary: no queue of a test
cluster is full for as long as a test needs it. Real seats: tests/e2e."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import eventually, write_spec
from jupyter_client.manager import KernelManager

#: Without `hopd`: the seat goes wherever Slurm has room.
CONFIG = """
service_user = "daemon"
[hopd]
connect = ["127.0.0.1:9"]
[pool.main]
partition = "p"
account = "a"
gpus_per_pilot = 1
cpus_per_pilot = 1
min_pilots = 0
max_pilots = 1
"""


@pytest.fixture
def slurm(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder: with `go` there sbatch answers; `submitted` and `cancelled` are what was asked for."""
    folder = home / "slurm"
    folder.mkdir()
    commands = {
        "sbatch": f"cat >/dev/null; echo x >>{folder}/submitted; until [ -e {folder}/go ]; do sleep 0.05; done; echo 7",
        "squeue": "echo 'PENDING||Resources|N/A|(null)'",
        "scancel": f'echo "$@" >>{folder}/cancelled',
        "srun": "exit 1",
    }
    for name, script in commands.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    config = home / "gresshopper.toml"
    config.write_text(CONFIG)
    monkeypatch.setenv("GRESSHOPPER_CONF", str(config))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    write_spec(home / "overlay", local=False)
    return folder


@pytest.mark.parametrize("late", [False, True], ids=["it waits in the queue", "sbatch has not answered yet"])
def test_a_seat_that_waits_is_withdrawn_when_its_kernel_ends(slurm: Path, late: bool) -> None:
    if not late:
        (slurm / "go").touch()
    km = KernelManager(kernel_name="python3")
    km.start_kernel()
    eventually((slurm / "submitted").exists, "a seat is submitted")
    if late:
        km.provisioner._front.release()  # type: ignore[union-attr]
        km.provisioner._front.send_signal(15)  # type: ignore[union-attr]
        (slurm / "go").touch()
    km.shutdown_kernel(now=True)
    eventually((slurm / "cancelled").exists, "the seat is withdrawn")
    assert (slurm / "cancelled").read_text() == "7 --state=PENDING\n"
    assert (slurm / "submitted").read_text() == "x\n"
