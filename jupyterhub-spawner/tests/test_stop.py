"""No job is left behind: whatever Slurm answers, and however late, while a server is stopped or submitted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gresshopper_jupyter import server_job, slurm
from gresshopper_jupyter import spawner as spawner_module
from gresshopper_jupyter.failures import Failure
from gresshopper_jupyter.spawner import GresshopperSpawner
from test_spawner import spawner, squeue, wait_for


class Slurm:
    """Stands in for Slurm's commands at the process boundary, with the clock that they take time from.

    A silent command fails after half a minute.
    """

    def __init__(self, state: str = "RUNNING", silent: int = 0, refuses: int = 0) -> None:
        self.now = 1000.0
        self.state = state
        #: Commands that get no answer yet, and scancels that are refused yet.
        self.silent, self.refuses = silent, refuses
        self.cancelled = False
        self.told_to_end: list[str] = []

    async def run(self, argv: list[str], **more: Any) -> str:
        if "gresshopper_jupyter.server_job" in argv:
            self.told_to_end.append(" ".join(argv[argv.index("gresshopper_jupyter.server_job") + 1 :]))
            return ""
        if self.silent > 0:
            self.silent -= 1
            self.now += 30
            raise slurm.SlurmError(f"{argv[0]} did not answer within 30 s")
        if argv[0] == "scancel":
            if self.refuses > 0:
                self.refuses -= 1
                raise slurm.SlurmError("scancel failed: not allowed")
            self.cancelled = True
            return ""
        state = "COMPLETING" if self.cancelled else self.state
        return squeue(argv, f"42|{state}|None|N/A|n1|")

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Callable[[Slurm], GresshopperSpawner]:
    """A spawner with job 42 in such a Slurm."""

    def with_job(now: Slurm) -> GresshopperSpawner:
        for module in (slurm, spawner_module):
            monkeypatch.setattr(module, "run", now.run)
        monkeypatch.setattr("gresshopper_jupyter.spawner.time.monotonic", lambda: now.now)
        monkeypatch.setattr("gresshopper_jupyter.spawner.asyncio.sleep", now.sleep)
        made = spawner(job_name=request.node.name)
        made.job_id, made._name = "42", "20261129-aa"
        return made

    return with_job


async def test_scancel_is_repeated_until_slurm_takes_it(started: Callable[[Slurm], GresshopperSpawner]) -> None:
    now = Slurm(silent=3)
    await started(now).stop()
    assert now.cancelled


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "SUSPENDED"])
async def test_a_stop_while_slurm_is_silent_ends_and_the_server_ends_without_slurm(
    started: Callable[[Slurm], GresshopperSpawner], state: str
) -> None:
    now = Slurm(state, silent=sys.maxsize)
    made = started(now)
    await made.stop()
    assert now.now < 1000 + 300, "nobody waits for an hour"
    # The hub forgets the job after this.
    await made.run_post_stop_hook()
    assert now.told_to_end == ["end 20261129-aa"]


async def test_what_slurm_says_against_scancel_is_said(started: Callable[[Slurm], GresshopperSpawner]) -> None:
    now = Slurm(refuses=sys.maxsize)
    made = started(now)
    with pytest.raises(RuntimeError, match="job 42 is still there: scancel failed: not allowed"):
        await made.stop()
    await made.run_post_stop_hook()
    assert now.told_to_end == ["end 20261129-aa"]


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "SUSPENDED"])
async def test_no_job_that_is_there_outlives_the_hubs_interest(
    started: Callable[[Slurm], GresshopperSpawner], state: str
) -> None:
    now = Slurm(state)
    await started(now).run_post_stop_hook()
    assert now.cancelled
    assert now.told_to_end == []


async def test_a_job_that_is_ending_is_left_alone(started: Callable[[Slurm], GresshopperSpawner]) -> None:
    now = Slurm()
    made = started(now)
    await made.stop()
    now.refuses = sys.maxsize
    await made.run_post_stop_hook()
    assert now.told_to_end == []


async def test_all_who_look_while_slurm_is_silent_wait_for_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    begun, silence = asyncio.Event(), asyncio.Event()

    async def run(argv: list[str], **more: Any) -> str:
        asked.append(argv)
        begun.set()
        await silence.wait()
        raise slurm.SlurmError("squeue did not answer within 30 s")

    monkeypatch.setattr(slurm, "run", run)
    table = slurm.JobTable("jupyter")
    looks = [asyncio.ensure_future(table.get(str(job), 0)) for job in range(20)]
    await begun.wait()
    looks[0].cancel()
    silence.set()
    answers = await asyncio.gather(*looks, return_exceptions=True)
    assert [type(answer) for answer in answers] == [asyncio.CancelledError] + [slurm.SlurmError] * 19
    assert len(asked) == 1


# A job whose start has been given up.


class Submission:
    """Stands in for `server_job` at the process boundary: it says what Slurm says, when it says it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, scancel: Exception | None = None) -> None:
        self.asked, self.said, self.done = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.scancel = scancel
        self.afterwards: list[str] = []
        monkeypatch.setattr(spawner_module, "run", self.run)

    async def run(self, argv: list[str], **more: Any) -> str:
        if argv[-1] == "submit":
            self.asked.set()
            await self.said.wait()
            return json.dumps({"job": "77", "name": "20261129-bb", "log": "/log"})
        self.afterwards.append(" ".join(argv[-2:]))
        if argv[0] == "scancel" and self.scancel:
            raise self.scancel
        self.done.set()
        return ""


def to_submit(monkeypatch: pytest.MonkeyPatch) -> GresshopperSpawner:
    made = spawner()
    monkeypatch.setattr(made, "get_env", dict)
    monkeypatch.setattr(made, "get_args", list)
    made.orm_spawner = None
    return made


async def test_a_job_that_slurm_takes_late_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawner_module, "SUBMIT_S", 0)
    now = Submission(monkeypatch)
    made = to_submit(monkeypatch)
    with pytest.raises(Failure, match="Slurm did not take the server's job: sbatch did not answer"):
        await made.submit()
    assert (made.job_id, now.afterwards) == ("", [])
    now.said.set()
    await now.done.wait()
    assert now.afterwards == ["scancel 77"]


async def test_a_job_whose_start_is_given_up_meanwhile_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    now = Submission(monkeypatch, scancel=slurm.SlurmError("scancel did not answer within 30 s"))
    start = asyncio.ensure_future(to_submit(monkeypatch).submit())
    await now.asked.wait()
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    now.said.set()
    await now.done.wait()
    assert now.afterwards == ["scancel 77", "end 20261129-bb"]


REQUEST = {
    "options": [],
    "python": "/p",
    "shell": "/bin/sh",
    "prologue": "",
    "env": {"TOKEN": "s3cret"},
    "cmd": ["x"],
}


class Home:
    """A user's home, with stand-ins for Slurm's commands."""

    def __init__(self, place: Path) -> None:
        self.bin, self.servers = place / "bin", place / "data" / "gresshopper" / "servers"
        self.bin.mkdir()
        self.env = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", "XDG_DATA_HOME": str(place / "data")}

    def has(self, name: str, script: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.bin / name).chmod(0o755)

    def submit(self, **settings: float) -> subprocess.Popen[str]:
        """As the hub runs it, with other times to wait."""
        code = "import sys\nfrom gresshopper_jupyter import server_job\n"
        code += "".join(f"server_job.{name} = {value}\n" for name, value in settings.items())
        process = subprocess.Popen(
            [sys.executable, "-c", code + "sys.exit(server_job.main())", "submit"],
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(REQUEST))
        process.stdin.close()
        process.stdin = None
        return process

    def secrets(self) -> list[Path]:
        return list(self.servers.glob("*.json"))


@pytest.fixture
def place(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_an_sbatch_that_hangs_is_given_up_and_its_job_has_nothing_to_run(place: Home) -> None:
    place.has("sbatch", "exec sleep 60")
    process = place.submit(SBATCH_S=0.2)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "sbatch did not answer within 0 s" in err
    assert place.secrets() == []


def test_a_submission_that_the_hub_ends_leaves_no_secret(place: Home, tmp_path: Path) -> None:
    place.has("sbatch", f"echo there > {tmp_path}/asked; exec sleep 60")
    process = place.submit()
    wait_for(tmp_path / "asked")
    assert len(place.secrets()) == 1
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert place.secrets() == []


def test_a_job_of_a_hub_that_has_gone_is_cancelled(place: Home, tmp_path: Path) -> None:
    place.has("sbatch", f"echo there > {tmp_path}/asked; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo 77")
    place.has("scancel", f'echo "$@" > {tmp_path}/cancelled')
    process = place.submit()
    wait_for(tmp_path / "asked")
    assert process.stdout is not None
    process.stdout.close()
    (tmp_path / "go").touch()
    assert process.wait(30) == 1
    assert (tmp_path / "cancelled").read_text() == "77\n"
    assert place.secrets() == []


def test_a_job_whose_server_was_given_up_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / "x.end").touch()
    argv = [sys.executable, "-m", "gresshopper_jupyter.server_job", "run", str(tmp_path / "x.json")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 1
    assert done.stderr == "gresshopper: the hub had given this server up before its job began\n"
    assert list(tmp_path.glob("x.*")) == []


def test_a_running_server_ends_without_slurm(place: Home, tmp_path: Path) -> None:
    place.servers.mkdir(parents=True)
    env_file = place.servers / "x.json"
    env = {"JUPYTERHUB_SERVICE_URL": "http://127.0.0.1:0/user/a/"}
    code = "import os, socket, time, urllib.parse as u\n"
    code += "s = socket.create_server(('', u.urlsplit(os.environ['JUPYTERHUB_SERVICE_URL']).port))\ntime.sleep(60)"
    request = {"env": env, "cmd": [sys.executable, "-c", code], "certs": None, "ports": None}
    request |= {"shell": "/bin/sh", "epilogue": "echo over"}
    server_job.write_secret(env_file, json.dumps(request))
    quick = "import sys\nfrom gresshopper_jupyter import server_job\nserver_job.END_LOOK_S = 0.05\n"
    process = subprocess.Popen(
        [sys.executable, "-c", quick + "sys.exit(server_job.main())", "run", str(env_file)],
        env=place.env,
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_for(place.servers / "x.port")
    argv = [sys.executable, "-m", "gresshopper_jupyter.server_job", "end", "x"]
    subprocess.run(argv, env=place.env, check=True, timeout=30)
    out, _ = process.communicate(timeout=30)
    assert out == "over\n"
    assert process.returncode == 128 + signal.SIGTERM
    assert list(place.servers.glob("x.*")) == []


def test_a_waiting_server_is_ended_by_its_secrets_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    secret = server_job.state_dir() / "x.json"
    server_job.write_secret(secret, "{}")
    monkeypatch.setattr("sys.argv", ["server_job", "end", "../servers/x"])
    assert server_job.main() == 0
    assert not secret.exists()
    assert capsys.readouterr().out == ""


def test_notes_of_jobs_that_never_ran_arent_kept(tmp_path: Path) -> None:
    for name in ("x.json", "x.end"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1, 1))
    server_job.prune(tmp_path)
    assert list(tmp_path.glob("x.*")) == []
