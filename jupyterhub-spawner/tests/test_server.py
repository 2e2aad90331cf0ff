"""The server extension: what the panel is told, and that a running cell counts as activity."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gresshopper_jupyter.provisioner import GresshopperProvisioner
from gresshopper_jupyter.server.activity import any_busy
from gresshopper_jupyter.server.handlers import local
from gresshopper_jupyter.server.hop import Away, Hop, HopError
from gresshopper_jupyter.server.ids import HopId, JupyterId, hops_id_of, ours
from gresshopper_jupyter.server.overview import Local, kernels, with_gpus
from gresshopper_jupyter.server.session import Session
from gresshopper_jupyter.server.usage import Gpus, Used, parse


def queued(kernel: str, state: str, **more: Any) -> dict[str, Any]:
    """A row of `hop queue --json`."""
    row: dict[str, Any] = dict.fromkeys(("node", "gpus", "lease_id", "position", "estimate", "reason"))
    return {**row, "kernel_id": kernel, "name": f"{kernel}.ipynb", "state": state, "time": 1.5, **more}


def here(hops_id: str, path: str, used: Used | None = None) -> Local:
    """A kernel of this server that came back: Jupyter's id is a new one."""
    return Local(HopId(hops_id), JupyterId(f"jupyters-{hops_id}"), path, used)


def manager_of(**hops_ids: str) -> Any:
    """Jupyter's manager of kernels that came back, with a kernel of somebody else's. The names are Jupyter's ids."""

    def kernel(jupyters_id: str, hops_id: str) -> Any:
        provisioner = GresshopperProvisioner(kernel_id=jupyters_id)
        provisioner._kernel = hops_id
        return SimpleNamespace(provisioner=provisioner)

    found = {name: kernel(name, hops_id) for name, hops_id in hops_ids.items()}
    found["plain"] = SimpleNamespace(provisioner=object())
    return SimpleNamespace(list_kernel_ids=lambda: list(found), get_kernel=found.__getitem__)


def test_a_row_for_each_kernel_here_and_elsewhere() -> None:
    queue = [
        queued("k1", "PENDING", position=2, estimate=30.0, reason="all are in use"),
        queued("k3", "RUNNING", node="n1", gpus="0-1", lease_id="12"),
    ]
    acct = [
        {"kernel_id": "k1", "gpu_time_raw": 60.0, "wait_raw": 5.0},
        {"kernel_id": "k1", "gpu_time_raw": None, "wait_raw": 1.0},
        {"kernel_id": "gone", "gpu_time_raw": 9.0, "wait_raw": 9.0},
    ]
    rows = kernels([here("k2", ""), here("k1", "work/a.ipynb")], queue, acct)
    assert [row["id"] for row in rows] == ["k1", "k3", "k2"], "the idle one comes last"
    waits, elsewhere, idle = rows
    assert (waits["name"], waits["path"], waits["position"]) == ("a.ipynb", "work/a.ipynb", 2)
    assert waits["week"] == {"gpu_s": 60.0, "wait_s": 6.0}
    assert (elsewhere["path"], elsewhere["lease"], elsewhere["gpus"]) == (None, 12, "0-1")
    assert (idle["state"], idle["path"], idle["name"]) == ("IDLE", None, "k2")
    jupyters = [row["jupyter_id"] for row in rows]
    assert jupyters == ["jupyters-k1", None, "jupyters-k2"], "Jupyter here knows no kernel of another server"


async def test_jupyters_id_is_jupyters_and_hops_is_hops() -> None:
    asked: list[Any] = []

    class Asked:
        async def of(self, kernels: Any, with_gpus: Any) -> dict[str, Used]:
            asked.extend((sorted(name for name, _ in kernels), with_gpus))
            return {"j1": Used(512.0, 30.0)}

    async def list_sessions() -> list[dict[str, Any]]:
        return [{"kernel": {"id": "j1"}, "path": "a.ipynb"}, {"kernel": None, "path": "gone.ipynb"}]

    manager = manager_of(j1="h1", j2="")
    found = await local(manager, SimpleNamespace(list_sessions=list_sessions), Asked(), {HopId("h1")})  # type: ignore[arg-type]
    assert found == [
        Local(HopId("h1"), JupyterId("j1"), "a.ipynb", Used(512.0, 30.0)),
        Local(HopId("j2"), JupyterId("j2"), ""),
    ]
    assert asked == [["j1", "j2"], {"j1"}], "kernels are asked by Jupyter's id"
    assert set(ours(manager)) == {"j1", "j2"}


def test_hop_is_asked_by_its_own_id_for_the_kernel_of_a_page() -> None:
    named = ("j1", "j2", "plain", "h1", "elsewhere")
    assert [hops_id_of(manager_of(j1="h1", j2=""), name) for name in named] == [
        "h1",
        "j2",
        "plain",
        "h1",
        "elsewhere",
    ]


def test_what_sleeps_moves_or_can_is_told() -> None:
    def row(kernel: str, state: str, captured: str = "yes", reason: str = "") -> dict[str, Any]:
        told = {"kernel_id": kernel, "name": f"{kernel}.ipynb", "state": state, "time": 9.0, "node": "n2"}
        return {**told, "captured": captured, "reason": reason}

    known = [
        row("a", "ASLEEP"),
        row("m", "MOVING", reason="moves to n3"),
        row("k", "IDLE"),
        row("q", "WAITING", "no"),
        row("g", "LOST", reason="its process on n2 is lost"),
    ]
    queue = [queued("q", "PENDING", position=1), queued("g", "RUNNING")]
    rows = {one["id"]: one for one in kernels([here("k", "k.ipynb")], queue, [], known)}
    assert {name: (one["state"], one["kept"]) for name, one in rows.items()} == {
        "a": ("ASLEEP", True),
        "m": ("MOVING", True),
        "k": ("IDLE", True),
        "q": ("PENDING", False),
        "g": ("LOST", True),
    }
    assert (rows["m"]["reason"], rows["k"]["node"], rows["q"]["node"]) == ("moves to n3", "n2", None)
    assert rows["g"]["reason"] == "its process on n2 is lost"


def test_memory_and_processor_are_the_kernels_own_and_the_limit_hopds() -> None:
    known = [
        {"kernel_id": "k", "name": "k", "state": "IDLE", "time": 1.0, "node": "n1", "captured": "no", "reason": ""}
    ]
    (alone,) = kernels([here("k", "k.ipynb", Used(512.0, 30.0))], [], [], [{**known[0], "mem": 2048, "replicas": 1}])
    assert (alone["memory_mib"], alone["limit_mib"], alone["cpu_percent"]) == (512.0, 2048, 30.0)
    (one_of_three,) = kernels([here("k", "")], [], [], [{**known[0], "mem": 6144, "replicas": 3}])
    assert (one_of_three["memory_mib"], one_of_three["limit_mib"]) == (None, 2048)
    assert parse({"hostname": "n1", "pid": 7}) is None, "without psutil"
    assert parse({"kernel_memory": 2**30, "kernel_cpu": 12.5}) == Used(1024.0, 12.5)


def test_a_leases_gpus_are_summed_up_and_what_one_does_not_say_is_not_known() -> None:
    plain = {"kernel_memory": 2**30, "kernel_cpu": 12.5}
    one = {"name": "NVIDIA H200", "utilisation": 30, "memory_used": 2**30, "memory_total": 2**32}
    used = parse({**plain, "gpus": [one, {**one, "utilisation": 50}]})
    assert used == Used(1024.0, 12.5, Gpus(40.0, 2048.0, 8192.0))
    (row,) = kernels([here("k", "k.ipynb", used)], [], [])
    assert (row["gpu_percent"], row["gpu_memory_mib"], row["gpu_total_mib"]) == (40.0, 2048.0, 8192.0)
    silent = parse({**plain, "gpus": [one, {**one, "utilisation": None}]})
    assert silent == Used(1024.0, 12.5, Gpus(None, 2048.0, 8192.0))
    for nothing in (None, [], "3", [7]):
        assert parse({**plain, "gpus": nothing}) == Used(1024.0, 12.5)


def test_kernels_with_gpus_in_hand_alone_are_asked_for_them() -> None:
    queue = [
        queued("runs", "RUNNING", gpus="0"),
        queued("kept", "LINGERING", gpus="1"),
        queued("waits", "PENDING"),
        queued("cores", "RUNNING"),
    ]
    assert with_gpus(queue) == {"runs", "kept"}


def test_a_running_cell_goes_before_a_lingering_lease() -> None:
    queue = [queued("k", "LINGERING", lease_id="1"), queued("k", "RUNNING", lease_id="2")]
    for rows in (queue, queue[::-1]):
        assert [row["lease"] for row in kernels([], rows, [])] == [2]


def hop_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Hop:
    """A stand-in for the command, at the process boundary."""
    program = tmp_path / "bin" / "hop"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("GRESSHOPPER_PREFIX", str(tmp_path))
    return Hop()


async def test_hop_is_asked_once_for_all_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hop = hop_that(tmp_path, monkeypatch, f"echo x >> {tmp_path}/asked; echo '{{\"rows\": [{{}}]}}'")
    for _ in range(2):
        rows = await asyncio.gather(*(hop.rows("queue", max_age_s=60) for _ in range(5)))
        assert rows == [[{}]] * 5
    assert (tmp_path / "asked").read_text() == "x\n"
    await hop.rows("queue", max_age_s=0)
    assert (tmp_path / "asked").read_text() == "x\nx\n"


@pytest.mark.parametrize(("status", "kind"), [(1, HopError), (3, Away)])
async def test_a_failure_is_hops_own_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, kind: type[HopError]
) -> None:
    hop = hop_that(tmp_path, monkeypatch, f"echo 'hop: no such kernel' >&2; exit {status}")
    with pytest.raises(kind, match=r"^no such kernel$"):
        await hop.run("explain", "x")


@pytest.mark.parametrize(
    ("scontrol", "said"),
    [
        ("exit 0", ""),
        ("echo 'Access/permission denied for job 7' >&2; exit 1", "denied for job 7. A server that is stopped"),
        ("echo 'slurm_update error: Job is over' >&2; exit 1", "no more time: Job is over. "),
    ],
)
async def test_more_time_is_slurms_to_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scontrol: str, said: str
) -> None:
    hop = hop_that(tmp_path, monkeypatch, "exit 1")
    for name, script in [("scontrol", f'echo "$@" > {tmp_path}/asked; {scontrol}'), ("squeue", "echo 1900000000")]:
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    if said:
        with pytest.raises(HopError, match=said):
            await Session(hop).more_time()
    else:
        assert await Session(hop).more_time() == 1900000000
    assert (tmp_path / "asked").read_text() == "update JobId=7 TimeLimit=+60\n"
    monkeypatch.delenv("SLURM_JOB_ID")
    with pytest.raises(HopError, match="no Slurm job"):
        await Session(hop).more_time()


async def test_an_end_that_slurm_told_holds_while_slurm_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(hop_that(tmp_path, monkeypatch, "exit 1"))
    squeue = tmp_path / "bin" / "squeue"
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    said = []
    for script in ("exit 1", "echo 1900000000", "exit 1", "echo NONE", "exit 1"):
        squeue.write_text(f"#!/bin/sh\n{script}\n")
        squeue.chmod(0o755)
        said.append(await session.end(max_age_s=0))
    assert said == [None, 1900000000, 1900000000, None, None]


def test_a_kernel_that_runs_or_waits_is_activity() -> None:
    def manager(*states: str) -> Any:
        found = {str(at): SimpleNamespace(execution_state=state) for at, state in enumerate(states)}
        return SimpleNamespace(list_kernel_ids=lambda: list(found), get_kernel=found.__getitem__)

    assert any_busy(manager("idle", "busy"))
    assert not any_busy(manager("idle", "starting"))
    assert not any_busy(manager())


def test_the_extension_is_enabled_by_being_installed() -> None:
    import json

    folder = Path(__file__).parents[1]
    config = json.loads((folder / "jupyter-config/gresshopper_jupyter.json").read_text())
    assert config["ServerApp"]["jpserver_extensions"] == {"gresshopper_jupyter.server": True}
    assert os.path.isfile(folder / "lab/install.json")
