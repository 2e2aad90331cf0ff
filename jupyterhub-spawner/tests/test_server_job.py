"""What the user's half of the spawner leaves in their home, and what of the hub it takes along."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gresshopper_jupyter import server_job


def test_three_logs_of_servers_that_are_over_are_kept_and_all_of_those_that_run(tmp_path: Path) -> None:
    for number in range(9):
        log = tmp_path / f"server-{number}.log"
        log.write_text("")
        os.utime(log, (number, number))
    (tmp_path / "server-0.port").write_text("")
    (tmp_path / "server-1.json").write_text("")
    server_job.prune(tmp_path)
    kept = sorted(path.stem for path in tmp_path.glob("*.log"))
    assert kept == [f"server-{number}" for number in (0, 1, 6, 7, 8)]
    assert (tmp_path / "server-0.port").exists()


def test_a_job_has_no_folder_on_its_path_that_is_closed_to_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may look into anything: what isn't there stands for what is closed.
    monkeypatch.setenv("PATH", f"{tmp_path}/closed:/usr/bin::{tmp_path}")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    kept = server_job.clean_environment()
    assert kept["PATH"] == f"/usr/bin:{tmp_path}"
    assert "SLURM_JOB_ID" not in kept


def test_the_hub_is_given_a_bounded_part_of_a_users_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.truncate(1 << 26)
        file.seek(0, os.SEEK_END)
        file.write(b"\nlast words\n")
    assert server_job.tail(str(log)) == 0
    said = capsys.readouterr().out
    assert said.endswith("\nlast words\n")
    assert len(said) <= server_job.LOG_MOST
    log.chmod(0o600)
    assert len(server_job.read_secret(log)) == server_job.SECRET_MOST
