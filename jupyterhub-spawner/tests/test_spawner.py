"""The spawner's pure parts, and its life against stand-ins for Slurm's commands at the process boundary."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from gresshopper_jupyter import server_job, slurm
from gresshopper_jupyter.slurm import Job, parse_jobs
from gresshopper_jupyter.spawner import GresshopperSpawner, describe


def test_jobs_are_read_as_squeue_prints_them() -> None:
    jobs = parse_jobs(
        "12|RUNNING|None|2026-11-21T10:00:00|n1|gresshopper port=4321\n13|PENDING|Resources|N/A||(null)\nnot a job\n"
    )
    assert jobs["12"] == Job("12", "RUNNING", "None", "2026-11-21T10:00:00", "n1", 4321)
    assert jobs["13"].port is None
    assert jobs["13"].pending
    assert len(jobs) == 2


@pytest.mark.parametrize("comment", ["port=1", "gresshopper port=99999", "gresshopper port=80 x", "x|y"])
def test_a_comment_that_is_not_ours_gives_no_port(comment: str) -> None:
    (job,) = parse_jobs(f"1|RUNNING|None|N/A|n1|{comment}").values()
    assert job.port is None


def test_the_spawn_page_says_why_a_job_waits() -> None:
    event = describe(Job("7", "PENDING", "(Resources)", "2026-11-21T12:00:00", "", None))
    assert event["message"] == "Job 7 waits: no node has room yet; Slurm expects to start it at 2026-11-21T12:00:00"
    assert describe(Job("7", "PENDING", "Weird", "N/A", "", None))["message"] == "Job 7 waits: Weird"
    assert "n2" in describe(Job("7", "RUNNING", "", "", "n2", 1))["message"]


class User:
    def __init__(self, name: str) -> None:
        self.name = name
        self.url = "/user/x"


def spawner(**settings: Any) -> GresshopperSpawner:
    made = GresshopperSpawner(**settings)
    made.user = User("alice")
    return made


def test_sbatch_gets_what_the_profile_says_and_no_more() -> None:
    profiles = [
        {
            "slug": "small",
            "display_name": "Small",
            "settings": {"mem_mib": 512, "sbatch_options": ["--wrap=x"]},
        },
        {"slug": "big", "display_name": "Big <b>", "settings": {"mem_mib": 4096, "partition": "long"}},
    ]
    made = spawner(profiles=profiles, sbatch_options=["--comment=site"])
    made.user_options = {"profile": "big"}
    argv = made.sbatch_argv()
    assert "--mem=4096M" in argv
    assert "--partition=long" in argv
    assert argv[-1] == "--comment=site"
    made.user_options = {}
    assert "--mem=512M" in made.sbatch_argv()
    assert not any("wrap" in a for a in made.sbatch_argv())
    assert "Big &lt;b&gt;" in made.options_form


def test_an_unknown_profile_is_refused() -> None:
    made = spawner(profiles=[{"slug": "a", "display_name": "A"}])
    made.user_options = {"profile": "a\n#SBATCH --gres=gpu:8"}
    with pytest.raises(ValueError, match="there is no profile"):
        made.sbatch_argv()


def test_the_state_survives_a_restart_of_the_hub() -> None:
    made = spawner()
    made.job_id = "42"
    other = spawner()
    other.load_state(made.get_state())
    assert other.job_id == "42"
    other.clear_state()
    assert other.job_id == ""


async def test_silence_of_slurm_is_no_reason_to_give_a_session_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(self: object, job_id: str, age: float) -> Job | None:
        raise slurm.SlurmError("squeue failed: Unable to contact slurm controller")

    monkeypatch.setattr(slurm.JobTable, "get", away)
    made = spawner()
    made.job_id = "42"
    assert await made.poll() is None


async def test_a_job_that_is_gone_is_an_ended_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(self: object, job_id: str, age: float) -> Job | None:
        return None

    monkeypatch.setattr(slurm.JobTable, "get", gone)
    made = spawner()
    made.job_id = "42"
    assert await made.poll() == 0
    assert await spawner().poll() == 0


def test_the_servers_environment_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token is in one file of mode 0600, not in the script and not in an argument."""
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    sbatch = bin_dir / "sbatch"  # a stand-in for Slurm's command, at the process boundary
    sbatch.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/argv\ncat > {tmp_path}/script\nenv > {tmp_path}/env\necho "77;c"\n'
    )
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_dir}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    request = {
        "options": ["--mem=1M"],
        "python": "/p",
        "prologue": "",
        "env": {"JUPYTERHUB_API_TOKEN": "s3cret"},
        "cmd": ["x"],
    }
    monkeypatch.setattr("sys.stdin", __import__("io").StringIO(json.dumps(request)))
    assert server_job.submit() == 0
    (env_file,) = (tmp_path / ".local/share/gresshopper/servers").iterdir()
    assert stat.S_IMODE(env_file.stat().st_mode) == 0o600
    assert "s3cret" in env_file.read_text()
    for name in ("argv", "script", "env"):
        assert "s3cret" not in (tmp_path / name).read_text()
    assert "SLURM_JOB_ID" not in (tmp_path / "env").read_text()
    env_file.chmod(0o644)
    with pytest.raises(PermissionError):
        server_job.read_secret(env_file)


def test_the_port_goes_into_the_service_url() -> None:
    assert server_job.with_port("http://0.0.0.0:0/user/a/", 81) == "http://0.0.0.0:81/user/a/"
    assert server_job.with_port("http://[::1]:0/x", 81) == "http://[::1]:81/x"
