"""Makes the disk under a seat's log full, or slow, and the one under the plugin's records full.

The log is a folder of the seat's own. Full: a file system without room lies over the folder, so that no further segment can
be made. Slow: the kernel lets the seat write a few times a second. The plugin's records of a node are copied to a file
system without further room, which lies over their folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from harness import Cluster

BLKIO = Path("/sys/fs/cgroup/blkio")


class NoLog(Exception):
    """The process keeps no log, or has ended."""


def can_slow() -> str:
    """Why no disk can be made slow here. Empty: it can be."""
    if not BLKIO.joinpath("blkio.throttle.write_iops_device").exists():
        return "no blkio controller of cgroup v1"
    # Logs lie in the folder for temporary files.
    device = Path("/tmp").stat().st_dev
    return (
        "" if Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").exists() else "/tmp is on no block device"
    )


def seats(cluster: Cluster, user: str) -> list[int]:
    """The processes that keep the logs of a user's kernels, or are ready to."""
    return cluster.pids(r"hop-replica seat", user)


def log_of(pid: int) -> Path:
    """The folder of the process's log."""
    with contextlib.suppress(OSError):
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if (path := fd.readlink()).suffix == ".wal":
                    return path.parent
    raise NoLog(f"process {pid} keeps no log")


@contextlib.contextmanager
def full(pid: int) -> Iterator[None]:
    folder = log_of(pid)
    owner = folder.stat()
    options = f"size=64k,mode=700,uid={owner.st_uid},gid={owner.st_gid}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        if not Path(f"/proc/{pid}").exists():
            # The seat has ended and could not remove it.
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def full_of_records(cluster: Cluster, node: str) -> Iterator[None]:
    folder = cluster.base / "run/gresshopper" / node
    crowded = cluster.base / "run" / f"crowded-{node}"
    crowded.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "none", str(crowded)], check=True)
    try:
        shutil.copytree(folder, crowded, dirs_exist_ok=True)
        with contextlib.suppress(OSError), (crowded / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
        subprocess.run(["mount", "--bind", str(crowded), str(folder)], check=True)
        try:
            yield
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)
    finally:
        subprocess.run(["umount", "-l", str(crowded)], check=True)
        crowded.rmdir()


def written(group: Path) -> int:
    """Writes of the group's processes that the disk's limit let pass."""
    lines = group.joinpath("blkio.throttle.io_serviced").read_text().splitlines()
    return sum(int(line.split()[2]) for line in lines if " Write " in line)


@contextlib.contextmanager
def slow(cluster: Cluster, writes_per_second: int, *pids: int) -> Iterator[Callable[[], int]]:
    """The processes write so often, all together. Gives the count of their writes so far."""
    assert not can_slow()
    group = BLKIO / f"hop-disks-{cluster.index}"
    device = log_of(pids[0]).stat().st_dev
    group.mkdir(exist_ok=True)
    limit = f"{os.major(device)}:{os.minor(device)} {writes_per_second}"
    group.joinpath("blkio.throttle.write_iops_device").write_text(limit)
    try:
        for pid in pids:
            group.joinpath("cgroup.procs").write_text(str(pid))
        yield lambda: written(group)
    finally:
        for left in group.joinpath("cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                BLKIO.joinpath("cgroup.procs").write_text(left)
        for _ in range(50):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)
