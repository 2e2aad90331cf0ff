"""The kernel's memory limit, in cgroups that these tests write."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gresshopper.memory import Memory, memory

MIB = 1 << 20


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"memory.{name}").write_text(text)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    made = tmp_path / "proc"
    made.mkdir()
    return made


def test_version_2_and_the_tightest_limit(tmp_path: Path, proc: Path) -> None:
    (proc / "cgroup").write_text("0::/slurm/job_1/step_2\n")
    (proc / "mountinfo").write_text(f"40 24 0:36 / {tmp_path}/fs rw shared:10 - cgroup2 cgroup2 rw\n")
    write(tmp_path / "fs/slurm/job_1/step_2", max="max\n", current="1\n", stat="inactive_file 0\n")
    write(
        tmp_path / "fs/slurm/job_1",
        max=f"{2048 * MIB}\n",
        current=f"{700 * MIB}\n",
        stat=f"anon 7\ninactive_file {300 * MIB}\n",
    )
    write(tmp_path / "fs/slurm", max=f"{9000 * MIB}\n", current="5\n", stat="")
    assert memory(proc) == Memory(used=400 * MIB, limit=2048 * MIB)
    assert str(memory(proc)) == "400 of 2048 MiB of memory are used"


def test_version_1(tmp_path: Path, proc: Path) -> None:
    (proc / "cgroup").write_text("5:cpuset:/x\n4:memory:/slurm/job_1\n0::/y\n")
    (proc / "mountinfo").write_text(
        f"31 24 0:27 / {tmp_path}/none rw - cgroup cgroup rw,cpuset\n30 24 0:26 / {tmp_path}/fs rw shared:9 - cgroup cgroup rw,memory\n"
    )
    write(
        tmp_path / "fs/slurm/job_1",
        limit_in_bytes=f"{1024 * MIB}\n",
        usage_in_bytes=f"{500 * MIB}\n",
        stat=f"cache 1\ntotal_inactive_file {200 * MIB}\n",
    )
    write(tmp_path / "fs/slurm", limit_in_bytes="9223372036854771712\n", usage_in_bytes="1\n", stat="")
    assert memory(proc) == Memory(used=300 * MIB, limit=1024 * MIB)


def test_no_limit_is_none(tmp_path: Path, proc: Path) -> None:
    assert memory(proc) is None
    (proc / "cgroup").write_text("0::/x\n")
    (proc / "mountinfo").write_text(f"40 24 0:36 / {tmp_path}/fs rw - cgroup2 cgroup2 rw\n")
    write(tmp_path / "fs/x", max="max\n", current="1\n", stat="inactive_file 0\n")
    assert memory(proc) is None
